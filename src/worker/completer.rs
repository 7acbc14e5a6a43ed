//! The completer: delivers the outcomes of jobs to the database, in natural batches.
//!
//! There is no timer. Outcomes are flushed at once if no flush is in flight; those that arrive meanwhile are the next
//! batch.

use std::collections::HashSet;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use postgres_types::Json;
use tokio::sync::mpsc;

use crate::db::calls::{self, AfterFailure, FailedJob, FinishedJob, Verdict};
use crate::db::connect::{Link, Session};
use crate::error::{Backoff, Error, Result};
use crate::execute::executor::{Failure, Outcome, clean, outcome_of_condition};
use crate::job::{Address, HeldJob, JobId};
use crate::observe::trace::Ids;
use crate::observe::{self, error_line};
use crate::worker::Identity;
use crate::worker::crew::Crew;
use crate::worker::keeper::upkeep;

/// The maximum number of outcomes in one flush.
const LARGEST_BATCH: usize = 1_000;

/// The outcome of one job.
pub struct End {
    pub held: HeldJob,
    /// The address of its row, if the job can be completed by it.
    pub address: Option<Address>,
    pub how: How,
    pub command: String,
    pub queue: String,
    pub attempt: i32,
    pub took: Duration,
    /// Of this attempt.
    pub trace: Ids,
}

/// What to report.
pub enum How {
    /// The outcome of its executor.
    Outcome(Outcome),
    /// The executor says that it has committed this outcome. None if it has not said which.
    Promised(Option<Outcome>),
    /// Not finished, for a reason that is not the job's.
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
            trace: Ids::default(),
        }
    }

    fn call(&self) -> Call {
        match &self.how {
            How::GivenBack => Call::GiveBack,
            How::Promised(_) => Call::Confirm,
            How::Outcome(Outcome::Complete(_) | Outcome::Skip(_)) if self.address.is_some() => Call::CompleteAt,
            How::Outcome(Outcome::Complete(_) | Outcome::Skip(_)) => Call::Complete,
            How::Outcome(Outcome::Fail(_)) => Call::Fail,
            How::Outcome(_) => Call::Single,
        }
    }

    fn finished(&self) -> FinishedJob<'_> {
        let result = match &self.how {
            How::Outcome(Outcome::Complete(result)) => result.as_deref(),
            _ => None,
        };
        FinishedJob {
            id: self.held.id,
            claim: self.held.claim,
            result: result.map(Json),
        }
    }

    fn failed(&self) -> Option<FailedJob> {
        let How::Outcome(Outcome::Fail(failure)) = &self.how else {
            return None;
        };
        Some(FailedJob {
            id: self.held.id,
            claim: self.held.claim,
            error: failure.clean_message(),
            code: failure.clean_code(),
            retryable: failure.retryable,
            retry_after_seconds: failure.retry_after.map(|delay| delay.as_secs_f64()),
        })
    }

    /// The failure that replaces an outcome that cannot be stored.
    fn instead(&self, error: &Error) -> End {
        let failure = match &self.how {
            How::Outcome(Outcome::Fail(failure)) => Failure {
                message: format!("the error of this attempt cannot be stored: {error}"),
                code: None,
                ..failure.clone()
            },
            _ => Failure::new(format!("the result cannot be stored: {error}"))
                .code("bad_result")
                .not_retryable(),
        };
        self.instead_of_completion(Outcome::Fail(failure))
    }

    fn instead_of_completion(&self, outcome: Outcome) -> End {
        End {
            held: self.held,
            address: None,
            how: How::Outcome(outcome),
            command: self.command.clone(),
            queue: self.queue.clone(),
            attempt: self.attempt,
            took: self.took,
            trace: self.trace,
        }
    }
}

/// The SQL function to call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Call {
    CompleteAt,
    Complete,
    Fail,
    GiveBack,
    /// Which of these jobs are no longer held.
    Confirm,
    /// Snooze, wait, cancel: one job per call.
    Single,
}

/// Deliver outcomes until all senders are gone.
///
/// Every call is safe to repeat, so a call whose reply was lost is repeated. A call that the database rejects for
/// reasons that are not the job's (a history partition was dropped manually) is repeated as well, separately from the
/// others, because the work is done.
pub async fn deliver(crew: Arc<Crew>, link: Arc<Link>, mut ends: mpsc::UnboundedReceiver<End>) {
    let mut batch = Vec::new();
    let mut refused: Vec<End> = Vec::new();
    let patience = || Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
    let (mut pause, mut again_at) = (patience(), Instant::now());
    loop {
        tokio::select! {
            count = ends.recv_many(&mut batch, LARGEST_BATCH) => if count == 0 {
                return;
            },
            () = tokio::time::sleep_until(again_at.into()), if !refused.is_empty() => batch.append(&mut refused),
        }
        // in the order of ids, because rows are locked in that order
        batch.sort_by_key(|end| (end.call(), end.held.id));
        let mut left = HashSet::new();
        let started = Instant::now();
        for group in batch.chunk_by(|a, b| a.call() == b.call() && a.call() != Call::Single) {
            let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
            crew.flushing();
            while let Err(error) = link.watched(flush(&crew, &link, group, &mut left)).await {
                tracing::warn!(event = "undelivered", jobs = group.len(), %error, "cannot reach the database; \
                    retrying");
                tokio::time::sleep(backoff.next()).await;
            }
        }
        observe::time(&crew.observed.tallies.flushes, started.elapsed());
        let (still, done): (Vec<End>, Vec<End>) = batch.drain(..).partition(|end| left.contains(&end.held));
        crew.delivered(done.iter().map(|end| end.held));
        if refused.is_empty() {
            if still.is_empty() {
                pause = patience();
            }
            again_at = Instant::now() + pause.next();
        }
        refused.extend(still);
    }
}

async fn flush(crew: &Crew, link: &Link, ends: &[End], left: &mut HashSet<HeldJob>) -> Result<()> {
    let session = link.session().await?;
    tell(&session, crew.identity(), ends, left).await
}

/// Deliver outcomes of the same kind in one call and log the verdicts. Only a lost connection is an error; outcomes
/// that may be accepted later are left in `ends`.
async fn tell(session: &Session, me: Identity, ends: &[End], left: &mut HashSet<HeldJob>) -> Result<()> {
    let mut answer = call(session, me, ends).await;
    if answer.as_ref().is_err_and(Error::lacks_partition) {
        // a history partition was detached or dropped manually: run the maintenance now that creates one
        upkeep(session).await?;
        answer = call(session, me, ends).await;
    }
    let error = match answer {
        Ok(gone) if ends[0].call() == Call::Confirm => return confirm(session, me, ends, &gone, left).await,
        Ok(verdicts) => {
            log_answers(session, me, ends, &verdicts).await;
            return Ok(());
        }
        Err(error) if error.is_transient() => return Err(error),
        Err(error) => error,
    };
    match ends {
        // this worker is no longer registered: its calls are rejected, and its jobs were given to other workers
        _ if error.is_fenced() => tracing::warn!(event = "fenced", jobs = ends.len(), %error),
        [end] if error.is_caused_by_data() => {
            let instead = end.instead(&error);
            match call(session, me, slice::from_ref(&instead)).await {
                Ok(verdicts) => log_answers(session, me, slice::from_ref(&instead), &verdicts).await,
                Err(error) if error.is_transient() => return Err(error),
                Err(error) => leave(ends, &error, left),
            }
        }
        // a rejected outcome must not hold up the others
        [_, _, ..] if !error.lacks_partition() => {
            let (first, second) = ends.split_at(ends.len() / 2);
            Box::pin(tell(session, me, first, left)).await?;
            Box::pin(tell(session, me, second, left)).await?;
        }
        _ => leave(ends, &error, left),
    }
    Ok(())
}

/// A job that this worker still holds was not completed by its executor. It fails: it would be held forever.
async fn confirm(
    session: &Session,
    me: Identity,
    ends: &[End],
    gone: &[Verdict],
    left: &mut HashSet<HeldJob>,
) -> Result<()> {
    let gone: HashSet<HeldJob> = gone.iter().map(Verdict::held).collect();
    let (done, open): (Vec<&End>, Vec<&End>) = ends.iter().partition(|end| gone.contains(&end.held));
    done.into_iter().for_each(|end| log(end, None));
    let failed = |end: &&End| end.instead_of_completion(Outcome::Fail(Failure::of_a_promise()));
    let failed: Vec<End> = open.iter().map(failed).collect();
    match failed.is_empty() {
        true => Ok(()),
        false => Box::pin(tell(session, me, &failed, left)).await,
    }
}

fn leave(ends: &[End], error: &Error, left: &mut HashSet<HeldJob>) {
    tracing::error!(event = "undelivered", jobs = ends.len(), %error, "the database rejected outcomes of jobs; \
        retrying");
    left.extend(ends.iter().map(|end| end.held));
}

async fn call(session: &Session, me: Identity, ends: &[End]) -> Result<Vec<Verdict>> {
    let Some(first) = ends.first() else {
        return Ok(Vec::new());
    };
    match first.call() {
        Call::CompleteAt => {
            let jobs: Vec<(FinishedJob, Address)> = ends
                .iter()
                .filter_map(|end| Some((end.finished(), end.address?)))
                .collect();
            calls::complete_at(session, me, &jobs).await
        }
        Call::Complete => {
            let jobs: Vec<FinishedJob> = ends.iter().map(End::finished).collect();
            calls::complete(session, me, &jobs).await
        }
        Call::Fail => {
            let jobs: Vec<FailedJob> = ends.iter().filter_map(End::failed).collect();
            calls::fail(session, me, &jobs).await
        }
        Call::GiveBack => {
            let jobs: Vec<HeldJob> = ends.iter().map(|end| end.held).collect();
            calls::give_back(session, me, &jobs).await
        }
        Call::Confirm => {
            let jobs: Vec<HeldJob> = ends.iter().map(|end| end.held).collect();
            calls::not_held(session, me, &jobs).await
        }
        Call::Single => match &first.how {
            How::Outcome(Outcome::Snooze(delay)) => calls::snooze(session, me, first.held, *delay).await,
            How::Outcome(Outcome::Wait { token, at_most }) => {
                calls::wait(session, me, first.held, token.as_deref(), *at_most).await
            }
            How::Outcome(Outcome::Cancelled(why)) => calls::cancel_held(session, me, first.held, &clean(why)).await,
            _ => Ok(Vec::new()),
        },
    }
}

/// No verdict means success; `repeated` means that the reply to an earlier call was lost. Failed attempts are logged
/// last: the database is asked what became of their jobs.
async fn log_answers(session: &Session, me: Identity, ends: &[End], verdicts: &[Verdict]) {
    let mut failed = Vec::new();
    let mut converted = Vec::new();
    for end in ends {
        let (job, claim) = (end.held.id, end.held.claim);
        let verdict = verdicts.iter().find(|verdict| verdict.held() == end.held);
        match verdict.map(|verdict| verdict.verdict.as_str()) {
            None | Some("repeated") => log_or_keep(end, &mut failed),
            Some("gone") => tracing::debug!(event = "gone", job, claim),
            Some(verdict) => match outcome_of_condition(verdict) {
                Some(outcome) => converted.push(end.instead_of_completion(outcome)),
                None => tracing::warn!(
                    event = "fenced",
                    job,
                    claim,
                    "this worker no longer held the job; its outcome was rejected"
                ),
            },
        }
    }
    for end in &converted {
        log_or_keep(end, &mut failed);
    }
    if failed.is_empty() {
        return;
    }
    let ids: Vec<JobId> = failed.iter().map(|end| end.held.id).collect();
    // it is only for the log: an attempt of which this is not known is logged as well
    let told = calls::after_failure(session, me, &ids).await.unwrap_or_default();
    for end in failed {
        log(end, told.iter().find(|told| told.id == end.held.id));
    }
}

fn log_or_keep<'a>(end: &'a End, failed: &mut Vec<&'a End>) {
    match &end.how {
        How::Outcome(Outcome::Fail(_)) => failed.push(end),
        _ => log(end, None),
    }
}

/// Log the outcome of a job after the database has accepted it.
pub fn log(end: &End, after: Option<&AfterFailure>) {
    let (job, claim) = (end.held.id, end.held.claim);
    let (command, queue, attempt) = (&end.command, &end.queue, end.attempt);
    let took_ms = end.took.as_millis() as u64;
    // each event with what all of them have
    macro_rules! outcome {
        ($level:ident, $event:literal $(, $more:ident = $value:expr)*) => {
            tracing::$level!(
                event = $event, job, claim, command, queue, attempt, took_ms, trace_id = %end.trace.trace_id(),
                span_id = %end.trace.span_id() $(, $more = $value)*
            )
        };
    }
    let accepted = match &end.how {
        How::GivenBack => return tracing::debug!(event = "give_back", job, claim),
        How::Promised(None) => return,
        How::Outcome(outcome) | How::Promised(Some(outcome)) => outcome,
    };
    match accepted {
        Outcome::Fail(failure) => {
            let (code, error) = (failure.code.as_deref(), error_line::for_log(&failure.message));
            let attempts = after.and_then(|after| after.attempts);
            match after {
                Some(after) if !after.has_failed => outcome!(
                    info,
                    "retry",
                    attempts = attempts,
                    next_at = after
                        .retry_at
                        .map(|at| humantime::format_rfc3339_millis(at).to_string()),
                    code = code,
                    error = error
                ),
                _ => outcome!(
                    warn,
                    "fail",
                    attempts = attempts,
                    reason = after.and_then(|after| after.reason.as_deref()),
                    code = code,
                    retryable = failure.retryable,
                    error = error
                ),
            }
        }
        Outcome::Snooze(_) => outcome!(info, "snooze"),
        Outcome::Wait { .. } => outcome!(info, "wait"),
        Outcome::Cancelled(_) => outcome!(info, "cancel"),
        _ => outcome!(debug, "complete"),
    }
}
