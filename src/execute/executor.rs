//! Executors: the code that carries out a command, what it is given, and how it ends.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::execute::context::Context;

/// How an attempt ended. Most executors return `Result<T, Failure>` and never name this.
#[derive(Debug)]
pub enum Outcome {
    /// Done, with a result to be kept in `bugle.jobs.result`.
    Complete(Option<Box<RawValue>>),
    /// Not done. Retried by the job's policy, unless the failure says otherwise.
    Fail(Failure),
    /// Run again after this time; the attempt is not counted.
    Snooze(Duration),
    /// Ended without a result: the job waits until `bugle.resolve` or `bugle.reject` is called.
    Wait {
        /// The answer must name this token, if it is set.
        token: Option<String>,
        /// How long to wait for the answer; without end if none.
        at_most: Option<Duration>,
    },
    /// This step of a chain need not be done: the chain goes on with the next. A job that is no chain is completed.
    Skip(String),
    /// There is nothing to do any more: the job ends as cancelled.
    Cancelled(String),
    /// The end of the job, or of the step of a chain, is already committed, by [`Context::complete_in`].
    Settled,
}

impl Outcome {
    /// Done, with this result. `null` is kept as no result.
    pub fn complete<T: Serialize>(result: T) -> Outcome {
        match serde_json::value::to_raw_value(&result) {
            Ok(json) if json.get() == "null" => Outcome::Complete(None),
            Ok(json) => Outcome::Complete(Some(json)),
            Err(error) => Outcome::Fail(
                Failure::new(format!("the result cannot be written as JSON: {error}"))
                    .code("bad_result")
                    .not_retryable(),
            ),
        }
    }
}

/// Why an attempt failed. Any error becomes one with `?`.
#[derive(Debug, Clone)]
pub struct Failure {
    pub(crate) message: String,
    pub(crate) code: Option<String>,
    pub(crate) retryable: bool,
    pub(crate) retry_after: Option<Duration>,
}

impl Failure {
    /// A failure that is retried by the job's policy.
    pub fn new(message: impl Into<String>) -> Self {
        Failure {
            message: message.into(),
            code: None,
            retryable: true,
            retry_after: None,
        }
    }

    /// A short name for this kind of failure, kept in `last_error_code`.
    pub fn code(mut self, code: impl Into<String>) -> Self {
        self.code = Some(code.into());
        self
    }

    /// Do not try again: the job has failed.
    pub fn not_retryable(mut self) -> Self {
        self.retryable = false;
        self
    }

    /// Recording a failure must never fail itself: no NUL, not too long, cut between characters.
    pub(crate) fn clean_message(&self) -> String {
        clean(&self.message)
    }

    /// The same for its code.
    pub(crate) fn clean_code(&self) -> Option<String> {
        self.code.as_deref().map(clean)
    }

    /// Try again after this time, whatever the policy says.
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }
}

/// The most text of an error that is sent at all; the schema keeps less.
const LONGEST_ERROR: usize = 20_000;

/// A text that Postgres can keep.
pub(crate) fn clean(text: &str) -> String {
    text.chars().filter(|c| *c != '\0').take(LONGEST_ERROR).collect()
}

/// The cause's whole chain is kept, one line each.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(next) = cause {
            message.push_str("\ncaused by: ");
            message.push_str(&next.to_string());
            cause = next.source();
        }
        Failure::new(message)
    }
}

/// What an executor may return on success: anything that serialises is the result; an [`Outcome`] is itself.
pub trait IntoOutcome {
    /// The outcome it stands for.
    fn into_outcome(self) -> Outcome;
}

impl<T: Serialize> IntoOutcome for T {
    fn into_outcome(self) -> Outcome {
        Outcome::complete(self)
    }
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

/// A future that borrows nothing, as executors return it.
pub type Execution = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// Carries out one command. A closure is enough for most: see [`Registry::on`](crate::Registry::on).
pub trait Executor: Send + Sync + 'static {
    /// Start one attempt. The future is dropped if its time is over or its claim is lost.
    fn execute(&self, context: Context) -> Execution;

    /// How long an attempt may take if neither the job nor its command says so.
    fn default_timeout(&self) -> Option<Duration> {
        None
    }
}
