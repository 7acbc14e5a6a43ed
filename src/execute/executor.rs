//! Executors: the code that runs a command, and the outcomes of its attempts.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::execute::context::Context;
use crate::execute::shortage::Shortage;

/// The outcome of an attempt. Most executors return `Result<T, Failure>` and never name it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// The job is completed, with a result that is stored in `bugle.jobs.result`.
    Complete(Option<Box<RawValue>>),
    /// The attempt failed. The job is retried by its policy, unless the failure says otherwise.
    Fail(Failure),
    /// Run the job again after this time. The attempt does not count.
    Snooze(Duration),
    /// The job waits for an answer: `bugle.resolve`, `bugle.reject` or `bugle.resume_with`.
    Wait {
        /// A token that the answer must name, if it is set.
        token: Option<String>,
        /// How long to wait for the answer; forever if not set.
        at_most: Option<Duration>,
    },
    /// This step of a chain is skipped, for this reason, and the chain continues. A job that is no chain is completed.
    Skip(String),
    /// The job is cancelled, for this reason.
    Cancelled(String),
    /// The outcome is already committed: by [`Context::complete_in`] or [`Context::spawn`].
    Settled,
}

impl Outcome {
    /// The job is completed with this result. `null` is stored as no result.
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
    /// What the worker itself was short of: the job is given back, and the attempt does not count.
    pub(crate) shortage: Option<Shortage>,
    /// A host reports it for all jobs of a call: they are retried each in a call of its own.
    pub(crate) alone: bool,
}

impl Failure {
    /// A failure that is retried by the job's policy.
    pub fn new(message: impl Into<String>) -> Self {
        Failure {
            message: message.into(),
            code: None,
            retryable: true,
            retry_after: None,
            shortage: None,
            alone: false,
        }
    }

    /// A short name for this kind of failure, stored in `last_error_code`.
    pub fn code(mut self, code: impl Into<String>) -> Self {
        self.code = Some(code.into());
        self
    }

    /// Do not retry: the job has failed.
    pub fn not_retryable(mut self) -> Self {
        self.retryable = false;
        self
    }

    /// An error with its causes, and the shortage among them.
    pub(crate) fn caused_by(error: &(dyn std::error::Error + 'static)) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(next) = cause {
            message.push_str("\ncaused by: ");
            message.push_str(&next.to_string());
            cause = next.source();
        }
        Failure {
            shortage: Shortage::in_causes(error),
            ..Failure::new(message)
        }
    }

    /// The result matches `retry_when` of the command.
    pub(crate) fn of_condition() -> Self {
        Failure::new("the result matches retry_when of the command").code("retry_when")
    }

    /// `Outcome::Settled` was not true.
    pub(crate) fn of_a_promise() -> Self {
        Failure::new("the executor reported that its completion was committed, but it was not")
            .code("bad_result")
            .not_retryable()
    }

    /// Recording a failure must never fail itself: no NUL, not too long, cut between characters.
    pub(crate) fn clean_message(&self) -> String {
        clean(&self.message)
    }

    /// The same for its code.
    pub(crate) fn clean_code(&self) -> Option<String> {
        self.code.as_deref().map(clean)
    }

    /// Retry after this time, instead of by the policy.
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }
}

/// What becomes of a job, or a step, whose result matches a condition of its command.
pub(crate) fn outcome_of_condition(verdict: &str) -> Option<Outcome> {
    match verdict {
        "retry_when" => Some(Outcome::Fail(Failure::of_condition())),
        "wait_when" => Some(Outcome::Wait {
            token: None,
            at_most: None,
        }),
        _ => None,
    }
}

/// The most text of an error that is sent at all; the schema keeps less.
const LONGEST_ERROR: usize = 20_000;

/// A text that Postgres can keep.
pub(crate) fn clean(text: &str) -> String {
    text.chars().filter(|c| *c != '\0').take(LONGEST_ERROR).collect()
}

/// Its causes are kept, one line each. If one of them is that this process has too many open files, not enough memory
/// or no local port, it is a shortage of the worker: the job is given back, and the attempt does not count.
impl<E: std::error::Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::caused_by(&error)
    }
}

/// What an executor may return on success: a result, which is anything that serializes, or an [`Outcome`].
pub trait IntoOutcome {
    /// The outcome of the attempt.
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

/// The future that executors and stages return.
pub type Execution = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// Runs a command. For most commands a function is enough: see [`Registry::job`](crate::Registry::job) and
/// [`Registry::on`](crate::Registry::on).
pub trait Executor: Send + Sync + 'static {
    /// Start an attempt. The future is dropped if it times out or the claim is lost.
    fn execute(&self, context: Context) -> Execution;

    /// The time limit of an attempt, if neither the job nor its command sets one.
    fn default_timeout(&self) -> Option<Duration> {
        None
    }
}
