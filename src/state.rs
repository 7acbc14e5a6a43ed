//! The states of jobs, steps and workers, as the database spells them.

use std::fmt;

use serde::Serializer;
use tokio_postgres::Row;
use tokio_postgres::row::RowIndex;

use crate::error::Result;
use crate::spelled::spelled;

spelled! {
    /// The state of a job: `bugle.jobs.state`.
    ///
    /// The set is closed: a new state would be a new major version, because every program that reads jobs would have to
    /// handle it. So it can be matched without a wildcard.
    ///
    /// ```
    /// use bugle::State;
    ///
    /// assert_eq!("retrying".parse::<State>()?, State::Retrying);
    /// assert_eq!(State::Retrying.to_string(), "retrying");
    /// assert!(!State::Retrying.is_final());
    /// # Ok::<(), bugle::Error>(())
    /// ```
    State, "the state of a job" {
        /// Its `run_at` is in the future.
        Scheduled = "scheduled",
        /// Ready to be claimed by the next free worker.
        Ready = "ready",
        /// Claimed by a worker.
        Running = "running",
        /// Failed, and waiting for its next attempt.
        Retrying = "retrying",
        /// Paused by an operator.
        Paused = "paused",
        /// Waiting for other jobs, or for an answer.
        Waiting = "waiting",
        /// Done.
        Completed = "completed",
        /// Failed for good: a dead letter. `reason` says why.
        Failed = "failed",
        /// Cancelled by an operator or by its executor.
        Cancelled = "cancelled",
    }
}

spelled! {
    /// Why a job ended as it did: `bugle.jobs.reason`. A job that its executor completed has none.
    #[non_exhaustive]
    Reason, "the reason of a finished job" {
        /// The last attempt failed, or its worker was lost.
        AttemptsExhausted = "attempts_exhausted",
        /// The last attempt took too long.
        Timeout = "timeout",
        /// A step of a chain failed, and its retries were used up.
        StepFailed = "step_failed",
        /// The executor said that a retry is useless.
        NotRetryable = "not_retryable",
        /// It was not running at its deadline.
        Deadline = "deadline",
        /// No worker served its command.
        NoExecutor = "no_executor",
        /// Too many workers were lost while running it.
        CrashLoop = "crash_loop",
        /// The answer it waited for did not come in time.
        AnswerOverdue = "answer_overdue",
        /// It was answered with `bugle.reject`.
        Rejected = "rejected",
        /// It was answered with `bugle.resolve`: it is completed.
        Resolved = "resolved",
        /// A job it waited for failed or was cancelled.
        DependencyFailed = "dependency_failed",
        /// Its executor cancelled it.
        Executor = "executor",
        /// An operator cancelled it, or set its state.
        Operator = "operator",
        /// A reason that this version does not know: the schema is newer.
        Unknown = "unknown",
    }
}

/// The reason in a column. One that a newer schema has added is no error.
pub(crate) fn reason(row: &Row, column: impl RowIndex + fmt::Display) -> Result<Option<Reason>> {
    let text: Option<&str> = row.try_get(column)?;
    Ok(text.map(|text| text.parse().unwrap_or(Reason::Unknown)))
}

impl State {
    /// Whether a job in this state has ended. Only an operator can change it now.
    pub const fn is_final(self) -> bool {
        matches!(self, State::Completed | State::Failed | State::Cancelled)
    }
}

spelled! {
    /// The state of a step: `bugle.steps.state`.
    #[non_exhaustive]
    StepState, "the state of a step" {
        /// Not started yet.
        Pending = "pending",
        /// Running now.
        Running = "running",
        /// Failed, and about to be tried again by the same worker.
        Retrying = "retrying",
        /// Its job waits for other jobs, or for an answer.
        Waiting = "waiting",
        /// Its job stopped running before the step ended.
        Interrupted = "interrupted",
        /// Done, with its output stored.
        Done = "done",
        /// Skipped, by its executor or by an operator.
        Skipped = "skipped",
        /// Failed.
        Failed = "failed",
    }
}

spelled! {
    /// The state of a worker: `bugle.workers.state`.
    #[non_exhaustive]
    WorkerState, "the state of a worker" {
        /// It serves its queues.
        Alive = "alive",
        /// It runs what it has claimed, and claims nothing more.
        Paused = "paused",
        /// Its connection or its heartbeat is gone.
        Lost = "lost",
        /// It signed off.
        Stopped = "stopped",
    }
}

/// How the database spells the state of a job that no longer exists.
const GONE: &str = "gone";

/// The state of a job that may have been deleted, from a column in which `gone` stands for none.
pub(crate) fn unless_gone(row: &Row, column: impl RowIndex + fmt::Display) -> Result<Option<State>> {
    match row.try_get::<_, &str>(column)? {
        GONE => Ok(None),
        state => state.parse().map(Some),
    }
}

/// The reverse, for people.
pub(crate) fn or_gone(state: Option<State>) -> &'static str {
    state.map_or(GONE, State::as_str)
}

/// The reverse, in JSON.
pub(crate) fn serialize_or_gone<S: Serializer>(state: &Option<State>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(or_gone(*state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_as_it_is_written() {
        for state in State::ALL {
            let json = serde_json::to_string(&state).unwrap();

            assert_eq!(json, format!("\"{state}\""));
            assert_eq!(serde_json::from_str::<State>(&json).unwrap(), state);
        }
        let error = "done".parse::<State>().unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("\"done\" is not the state of a job\nhint: Use one of: scheduled, ready, ")
        );
    }
}
