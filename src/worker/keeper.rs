//! The heartbeat, and the maintenance done by the keeper: promote due jobs, rescue jobs of lost workers, maintain
//! history partitions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};

use crate::db::calls::{self, Condition, Pulse};
use crate::db::connect::{Link, Session};
use crate::error::Result;
use crate::execute::context::Stop;
use crate::job::HeldJob;
use crate::observe::REPORT_EVERY;
use crate::worker::claimer::Hint;
use crate::worker::crew::Crew;
use crate::worker::reconcile::{ClaimCounter, Reconciler};
use crate::worker::slots::Share;

/// How long the executor of a job whose claim was lost may take to stop.
const FENCE_GRACE: Duration = Duration::from_secs(5);
/// The minimum interval between two requested promotions, because any login can request one.
const PROMOTE_PAUSE: Duration = Duration::from_millis(5);
/// How many due jobs the first call of promote makes ready, and how many the largest. Each call that finds more doubles
/// the next: the first jobs become ready at once, and many cost little each.
const PROMOTE_FIRST: i32 = 1000;
const PROMOTE_MOST: i32 = 16_000;
/// The delay after a due job could not be promoted because another session has locked it.
const OVERDUE_PAUSE: Duration = Duration::from_millis(50);

/// The heartbeat of a worker.
pub struct Keeper {
    pub crew: Arc<Crew>,
    pub link: Arc<Link>,
    pub hints: mpsc::UnboundedSender<Hint>,
    /// Notified by the claimer when a job is due soon.
    pub called: Arc<Notify>,
    /// The claims in flight.
    pub claims: Arc<ClaimCounter>,
    /// How often the heartbeat polls for jobs without a notification; zero for never. Correctness does not depend on
    /// it.
    pub safety_poll: Duration,
}

impl Keeper {
    /// Send heartbeats until dropped.
    pub async fn run(self) {
        let crew = self.crew.clone();
        crew.observed.health.while_waiting(self.beat_and_promote()).await;
    }

    async fn beat_and_promote(self) {
        let mut has_role = false;
        let mut reconciler = Reconciler::new(self.claims.clone());
        let mut noted = (self.crew.identity().worker, Condition::default());
        let mut reported = Instant::now();
        let mut next_beat = Instant::now();
        let mut next_due: Option<Instant> = None;
        let mut promoted = Instant::now();
        let mut batch = PROMOTE_FIRST;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(next_beat.into()) => match
                    self.link.watched(self.beat(&mut reconciler, &mut noted)).await
                {
                    Ok(pulse) => {
                        self.crew.observed.health.answered(&pulse.role);
                        let now = Instant::now();
                        next_beat = now + self.rest(pulse.again);
                        next_due = pulse.next_due.map(|due| now + due);
                        if now - reported >= REPORT_EVERY {
                            reported = now;
                            self.link.watched(self.report()).await;
                        }
                        if has_role != (pulse.role != "none") {
                            has_role = !has_role;
                            tracing::debug!(event = "role", role = pulse.role);
                            let _ = self.hints.send(Hint::ListenForDue(has_role));
                        }
                    }
                    Err(error) => {
                        self.crew.observed.health.note(&error.to_string());
                        tracing::debug!(event = "heartbeat", %error);
                        next_beat = Instant::now() + Duration::from_millis(500);
                    }
                },
                () = sleep_until(next_due) => {
                    next_due = self.link.watched(self.promote(&mut batch)).await;
                    promoted = Instant::now();
                }
                () = self.called.notified(), if has_role => {
                    let soon = Instant::now().max(promoted + PROMOTE_PAUSE);
                    next_due = Some(next_due.map_or(soon, |due| due.min(soon)));
                }
            }
        }
    }

    /// The server decides when; a safety poll may be configured to be more frequent.
    fn rest(&self, again: Duration) -> Duration {
        match self.safety_poll {
            Duration::ZERO => again,
            every => again.min(every),
        }
    }

    async fn beat(&self, reconciler: &mut Reconciler, noted: &mut (i64, Condition)) -> Result<Pulse> {
        let session = self.link.session().await?;
        let running = self.crew.held_jobs();
        let pulse = calls::heartbeat(&session, self.crew.identity(), &running, !self.safety_poll.is_zero()).await?;
        for verdict in &pulse.fenced {
            self.fence_if_still_held(verdict.held());
        }
        if !pulse.has_work.is_empty() {
            let _ = self.hints.send(Hint::HasWork(pulse.has_work.clone()));
        }
        reconciler.reconcile(&session, &self.crew).await?;
        self.note_condition(&session, noted).await?;
        for trouble in &pulse.troubles {
            tracing::error!(event = "maintenance", error = trouble);
        }
        if pulse.upkeep {
            upkeep(&session).await?;
        }
        Ok(pulse)
    }

    /// Report what keeps this worker from starting jobs, and which executors do not stop, if that has changed.
    async fn note_condition(&self, session: &Session, (worker, noted): &mut (i64, Condition)) -> Result<()> {
        let me = self.crew.identity();
        let condition = Condition {
            short_of: self.crew.observed.health.throttle.words(),
            lacks_slots: self.crew.share().is_some_and(Share::lacks_room),
            overdue: self.crew.overdue(),
        };
        if me.worker != *worker || condition != *noted {
            calls::note_condition(session, me, &condition).await?;
            (*worker, *noted) = (me.worker, condition);
        }
        Ok(())
    }

    /// Report the counters. A failure is ignored.
    async fn report(&self) {
        if let Ok(session) = self.link.session().await {
            self.crew.observed.report(&session, self.crew.identity()).await;
        }
    }

    /// A job whose outcome is being delivered is no longer held in the database, but not lost either: only running jobs
    /// are stopped.
    fn fence_if_still_held(&self, held: HeldJob) {
        if self.crew.is_running(held) {
            self.crew.fence(held, Stop::Lost, FENCE_GRACE);
        }
    }

    /// One batch. Returns when the next is due: at once, if there may be more; heartbeats go on in between.
    async fn promote(&self, batch: &mut i32) -> Option<Instant> {
        let limit = *batch;
        let promoted = match self.link.session().await {
            Ok(session) => calls::promote(&session, limit).await,
            Err(error) => Err(error),
        };
        let now = Instant::now();
        *batch = next_batch(limit, promoted.as_ref().map_or(0, |(promoted, _)| *promoted));
        match promoted {
            Ok((promoted, _)) if promoted >= limit => Some(now),
            Ok((0, Some(due))) => Some(now + due.max(if due.is_zero() { OVERDUE_PAUSE } else { due })),
            Ok((_, due)) => due.map(|due| now + due),
            Err(error) => {
                tracing::debug!(event = "promote", %error);
                Some(now + Duration::from_millis(500))
            }
        }
    }
}

/// How many jobs the next call of promote takes, after one that took at most `limit` and found this many.
fn next_batch(limit: i32, promoted: i32) -> i32 {
    match promoted >= limit {
        true => limit.saturating_mul(2).min(PROMOTE_MOST),
        false => PROMOTE_FIRST,
    }
}

/// In small steps, so that no lock is held for long.
pub async fn upkeep(session: &Session) -> Result<()> {
    while let Some(done) = calls::upkeep(session).await? {
        tracing::info!(event = "upkeep", done);
    }
    Ok(())
}

async fn sleep_until(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_due_jobs_grow_while_there_are_more_and_start_small_again() {
        let mut batch = PROMOTE_FIRST;
        let mut batches = Vec::new();
        for found in [1000, 2000, 4000, 8000, 16_000, 16_000, 15_999, 1] {
            batches.push(batch);
            batch = next_batch(batch, found);
        }

        assert_eq!(batches, [1000, 2000, 4000, 8000, 16_000, 16_000, 16_000, 1000]);
    }
}
