//! The completer: tells the database how jobs ended, in natural batches.
//!
//! There is no timer. What has ended is flushed at once when no flush is under way; what ends meanwhile is the next batch.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postgres_types::Json;
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use crate::calls::{self, FailedJob, FinishedJob, Verdict};
use crate::connect::{Link, Session};
use crate::error::{Backoff, Error, Result};
use crate::execute::Crew;
use crate::executor::{Failure, Outcome, clean};
use crate::job::{Address, HeldJob};
use crate::observe;

/// The most ends in one flush.
const LARGEST_BATCH: usize = 1_000;

/// How one job ended.
pub struct End {
    pub held: HeldJob,
    /// Where its row lies, if it is still there and can be completed there.
    pub address: Option<Address>,
    pub how: How,
    pub command: String,
    pub queue: String,
    pub attempt: i32,
    pub took: Duration,
}

/// What is to be told about it.
pub enum How {
    /// What its executor said.
    Outcome(Outcome),
    /// Not finished, through no fault of its own.
    GivenBack,
}

impl End {
    pub fn given_back(held: HeldJob) -> Self {
        End {
            held,
            address: None,
            how: How::GivenBack,
            command: String::new(),
            queue: String::new(),
            attempt: 0,
            took: Duration::ZERO,
        }
    }
}

/// Deliver ends until all senders are gone.
pub async fn deliver(crew: Arc<Crew>, link: Arc<Link>, mut ends: mpsc::UnboundedReceiver<End>) {
    let mut batch = Vec::new();
    while ends.recv_many(&mut batch, LARGEST_BATCH).await > 0 {
        let sorted = Batch::sort(std::mem::take(&mut batch));
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        // Every call is safe to repeat, so a batch whose reply was lost is simply sent again.
        let started = Instant::now();
        while let Err(error) = flush(&crew, &link, &sorted).await {
            tracing::warn!(event = "undelivered", jobs = sorted.len(), %error, "cannot reach the database; will repeat");
            tokio::time::sleep(backoff.next()).await;
        }
        observe::time(&crew.observed.tallies.flushes, started.elapsed());
        crew.delivered(sorted.all());
    }
}

/// A batch, sorted by the function that is to be called. In id order: rows are locked in that order.
#[derive(Default)]
struct Batch {
    completed: Vec<FinishedJob>,
    completed_at: Vec<(FinishedJob, Address)>,
    failed: Vec<FailedJob>,
    given_back: Vec<HeldJob>,
    others: Vec<(HeldJob, Outcome)>,
}

impl Batch {
    fn sort(mut ends: Vec<End>) -> Batch {
        ends.sort_by_key(|end| end.held.id);
        let mut batch = Batch::default();
        for end in ends {
            log(&end);
            let held = end.held;
            match end.how {
                How::GivenBack => batch.given_back.push(held),
                How::Outcome(Outcome::Complete(result)) => batch.complete(held, end.address, result),
                How::Outcome(Outcome::Skip(_)) => batch.complete(held, end.address, None),
                How::Outcome(Outcome::Fail(failure)) => batch.failed.push(failed_job(held, failure)),
                How::Outcome(outcome) => batch.others.push((held, outcome)),
            }
        }
        batch
    }

    fn complete(&mut self, held: HeldJob, address: Option<Address>, result: Option<Box<RawValue>>) {
        // jsonb has no NUL character: found here, it fails one job and not a whole batch
        if result.as_ref().is_some_and(|json| json.get().contains("\\u0000")) {
            let failure = Failure::new("the result holds a NUL character, which JSON in Postgres cannot");
            self.failed
                .push(failed_job(held, failure.code("bad_result").not_retryable()));
            return;
        }
        let job = FinishedJob {
            id: held.id,
            claim: held.claim,
            result: result.map(Json),
        };
        match address {
            Some(address) => self.completed_at.push((job, address)),
            None => self.completed.push(job),
        }
    }

    fn all(&self) -> impl Iterator<Item = HeldJob> + '_ {
        let held = |id, claim| HeldJob { id, claim };
        let completed_at = self.completed_at.iter().map(|(job, _)| job);
        let completed = self
            .completed
            .iter()
            .chain(completed_at)
            .map(move |j| held(j.id, j.claim));
        let failed = self.failed.iter().map(move |j| held(j.id, j.claim));
        completed
            .chain(failed)
            .chain(self.given_back.iter().copied())
            .chain(self.others.iter().map(|(held, _)| *held))
    }

    fn len(&self) -> usize {
        self.all().count()
    }
}

async fn flush(crew: &Crew, link: &Link, batch: &Batch) -> Result<()> {
    let session = link.session().await?;
    let me = crew.identity();
    if !batch.completed_at.is_empty() {
        match calls::complete_at(&session, me, &batch.completed_at).await {
            Err(error) if !error.is_transient() => {
                let jobs: Vec<FinishedJob> = batch.completed_at.iter().map(|(job, _)| job.clone()).collect();
                complete_one_by_one(crew, &session, &jobs).await?;
            }
            verdicts => judge(verdicts)?,
        }
    }
    if !batch.completed.is_empty() {
        match calls::complete(&session, me, &batch.completed).await {
            Err(error) if !error.is_transient() => complete_one_by_one(crew, &session, &batch.completed).await?,
            verdicts => judge(verdicts)?,
        }
    }
    if !batch.failed.is_empty() {
        judge(calls::fail(&session, me, &batch.failed).await)?;
    }
    if !batch.given_back.is_empty() {
        judge(calls::give_back(&session, me, &batch.given_back).await)?;
    }
    for (held, outcome) in &batch.others {
        let verdicts = match outcome {
            Outcome::Snooze(delay) => calls::snooze(&session, me, *held, *delay).await,
            Outcome::Wait { token, at_most } => calls::wait(&session, me, *held, token.as_deref(), *at_most).await,
            Outcome::Cancelled(why) => calls::give_up(&session, me, *held, &clean(why)).await,
            Outcome::Complete(_) | Outcome::Skip(_) | Outcome::Fail(_) | Outcome::Settled => Ok(Vec::new()),
        };
        judge(verdicts)?;
    }
    Ok(())
}

/// One result that the database does not take must not hold up the others: its job has failed.
async fn complete_one_by_one(crew: &Crew, session: &Session, jobs: &[FinishedJob]) -> Result<()> {
    let me = crew.identity();
    for job in jobs {
        match calls::complete(session, me, std::slice::from_ref(job)).await {
            Err(error) if !error.is_transient() && !error.is_fenced() => {
                let held = HeldJob {
                    id: job.id,
                    claim: job.claim,
                };
                let failure = Failure::new(format!("the result was not taken: {error}"));
                let failed = failed_job(held, failure.code("bad_result").not_retryable());
                judge(calls::fail(session, me, &[failed]).await)?;
            }
            verdicts => judge(verdicts)?,
        }
    }
    Ok(())
}

/// Only a lost connection is worth a repetition. Whatever else is said is final, and logged.
fn judge(verdicts: Result<Vec<Verdict>, Error>) -> Result<()> {
    match verdicts {
        Ok(verdicts) => {
            for verdict in verdicts.iter().filter(|v| v.verdict == "fenced") {
                tracing::warn!(
                    event = "fenced",
                    job = verdict.id,
                    claim = verdict.claim,
                    "the end of this job came too late"
                );
            }
            Ok(())
        }
        Err(error) if error.is_transient() => Err(error),
        Err(error) => {
            tracing::error!(event = "refused", %error, "the database refused to hear how jobs ended; they will be given back");
            Ok(())
        }
    }
}

fn failed_job(held: HeldJob, failure: Failure) -> FailedJob {
    FailedJob {
        id: held.id,
        claim: held.claim,
        error: clean(&failure.message),
        code: failure.code.as_deref().map(clean),
        retryable: failure.retryable,
        retry_after_seconds: failure.retry_after.map(|d| d.as_secs_f64()),
    }
}

fn log(end: &End) {
    let (job, claim) = (end.held.id, end.held.claim);
    let (command, queue, attempt) = (&end.command, &end.queue, end.attempt);
    let took_ms = end.took.as_millis() as u64;
    match &end.how {
        How::GivenBack => tracing::info!(event = "give_back", job, claim),
        How::Outcome(Outcome::Fail(failure)) => tracing::warn!(
            event = "fail",
            job,
            claim,
            command,
            queue,
            attempt,
            took_ms,
            code = failure.code.as_deref(),
            retryable = failure.retryable
        ),
        How::Outcome(Outcome::Snooze(_)) => {
            tracing::info!(event = "snooze", job, claim, command, queue, attempt, took_ms)
        }
        How::Outcome(Outcome::Wait { .. }) => {
            tracing::info!(event = "wait", job, claim, command, queue, attempt, took_ms)
        }
        How::Outcome(Outcome::Cancelled(_)) => {
            tracing::info!(event = "cancel", job, claim, command, queue, attempt, took_ms)
        }
        How::Outcome(_) => tracing::debug!(event = "complete", job, claim, command, queue, attempt, took_ms),
    }
}
