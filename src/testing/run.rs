//! One executor on one payload, in a test without a database.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tokio_util::sync::CancellationToken;

use crate::client::enqueue::NewJob;
use crate::db::connect::{self, Pool};
use crate::execute::batch::Burst;
use crate::execute::context::{Attempt, Context, Inner, Settled};
use crate::execute::executor::Outcome;
use crate::execute::family::DependencyResult;
use crate::execute::registry::Registry;
use crate::execute::rehearsal::{Noted, Rehearsal};
use crate::execute::workspace::Workspaces;
use crate::job::{ClaimedJob, HeldJob, JobId};
use crate::state::State;
use crate::worker::Identity;
use crate::worker::crew::limited;

/// Run a job once, by its executor and the stages around it, without a worker and without a database. Await the
/// [`Run`] that this returns.
///
/// The context behaves as in a worker, but stores nothing: progress, steps and children are noted for the test.
///
/// # Panics
/// If the command has no executor, or the job is one that could not be enqueued.
#[track_caller]
pub fn run<S>(registry: &Registry<S>, job: impl Into<NewJob>) -> Run {
    Run::new(Arc::new(Registry::new().merge(registry.clone())), job.into())
}

/// Run these jobs at once. Jobs of a batch executor ([`Registry::on_many`]) are given to it together.
///
/// # Panics
/// As [`run`].
#[track_caller]
pub fn run_many<S, J: Into<NewJob>>(
    registry: &Registry<S>,
    jobs: impl IntoIterator<Item = J>,
) -> impl Future<Output = Vec<RunResult>> {
    let registry = Arc::new(Registry::new().merge(registry.clone()));
    let burst: Arc<Burst> = Arc::default();
    let runs: Vec<_> = jobs
        .into_iter()
        .enumerate()
        .map(|(number, job)| {
            let run = Run::new(registry.clone(), job.into()).id(number as JobId + 1);
            run.go(Some(burst.clone()))
        })
        .collect();
    drop(burst);
    async {
        let runs: Vec<_> = runs.into_iter().map(tokio::spawn).collect();
        let mut all = Vec::with_capacity(runs.len());
        for run in runs {
            all.push(run.await.expect("a run does not panic"));
        }
        all
    }
}

/// A job that is about to be [`run`]: what its executor finds. Await it.
#[must_use = "await it"]
pub struct Run {
    registry: Arc<Registry>,
    job: ClaimedJob,
    rehearsal: Rehearsal,
    database: Option<String>,
    cancellation: CancellationToken,
}

impl Run {
    #[track_caller]
    fn new(registry: Arc<Registry>, job: NewJob) -> Run {
        let spec = serde_json::to_value(&job).unwrap_or_else(|error| panic!("this job cannot be enqueued: {error}"));
        let text = |name: &str| spec[name].as_str().map(str::to_string);
        let command = text("command").unwrap_or_default();
        assert!(
            registry.executor_for(&command).is_some(),
            "no executor is registered for {command:?}; there are {}",
            registry.commands().join(", ")
        );
        let seconds = |text: String| text.strip_suffix(" seconds").and_then(|seconds| seconds.parse().ok());
        let now = SystemTime::now();
        Run {
            registry,
            job: ClaimedJob {
                held: HeldJob { id: 1, claim: 1 },
                command,
                queue: text("queue").unwrap_or_else(|| "default".into()),
                priority: spec["priority"].as_i64().unwrap_or_default() as i32,
                attempt: 1,
                max_attempts: spec["max_attempts"].as_i64().map(|most| most as i32),
                timeout: text("timeout").and_then(seconds).map(Duration::from_secs_f64),
                default_timeout: None,
                created_at: now,
                run_at: now,
                headers: serde_json::from_value(spec["headers"].clone()).unwrap_or_default(),
                payload: to_raw_value(&spec["payload"]).expect("is JSON"),
                answer: None,
                steps: None,
                step: 0,
                address: None,
            },
            rehearsal: Rehearsal::default(),
            database: None,
            cancellation: CancellationToken::new(),
        }
    }

    /// The job's id. 1 if it is not set.
    pub fn id(mut self, id: JobId) -> Self {
        self.job.held.id = id;
        self
    }

    /// The number of the attempt. 1 if it is not set.
    pub fn attempt(mut self, attempt: i32) -> Self {
        self.job.attempt = attempt;
        self
    }

    /// The answer with which it is resumed: [`Context::answer`].
    ///
    /// # Panics
    /// If it cannot be written as JSON.
    pub fn answer(mut self, answer: impl Serialize) -> Self {
        self.job.answer = Some(json(answer));
        self
    }

    /// A step that an earlier attempt has done, with its output: [`Context::step`] does not do it again.
    ///
    /// # Panics
    /// If it cannot be written as JSON.
    pub fn step_done(self, name: &str, output: impl Serialize) -> Self {
        let step = (name.to_string(), json(output));
        self.rehearsal.noted.lock().unwrap().steps.push(step);
        self
    }

    /// A child that completed: [`Context::children`].
    ///
    /// # Panics
    /// If its result cannot be written as JSON.
    pub fn child(self, result: impl Serialize) -> Self {
        self.with_child(Ok(json(result)))
    }

    /// A child that failed.
    pub fn failed_child(self, error: &str) -> Self {
        self.with_child(Err(error))
    }

    fn with_child(mut self, ended: Result<Box<RawValue>, &str>) -> Self {
        let id = self.rehearsal.children.len() as JobId + 2;
        self.rehearsal.children.push(related(id, None, ended));
        self
    }

    /// A job that it waited for and that completed, by its name in the workflow: [`Context::dependencies`].
    ///
    /// # Panics
    /// If its result cannot be written as JSON.
    pub fn dependency(self, name: &str, result: impl Serialize) -> Self {
        self.with_dependency(name, Ok(json(result)))
    }

    /// A job that it waited for and that failed.
    pub fn failed_dependency(self, name: &str, error: &str) -> Self {
        self.with_dependency(name, Err(error))
    }

    fn with_dependency(mut self, name: &str, ended: Result<Box<RawValue>, &str>) -> Self {
        let id = self.rehearsal.dependencies.len() as JobId + 2;
        self.rehearsal.dependencies.push(related(id, Some(name), ended));
        self
    }

    /// What [`Context::database`] connects to. The executor's own statements are run there; what it reports about its
    /// job is noted, as without a database.
    pub fn database(mut self, url: impl Into<String>) -> Self {
        self.database = Some(url.into());
        self.rehearsal.has_database = true;
        self
    }

    /// The token of [`Context::cancellation`]: cancel it to see how the executor stops.
    pub fn cancellation(mut self, token: CancellationToken) -> Self {
        self.cancellation = token;
        self
    }

    async fn go(self, burst: Option<Arc<Burst>>) -> RunResult {
        let command = self.job.command.clone();
        let url = self
            .database
            .as_deref()
            .unwrap_or("host=/nowhere user=nobody dbname=none");
        let pool = connect::parse(url)
            .and_then(|target| Pool::for_client(&target, "testing", 4))
            .unwrap_or_else(|error| panic!("{error}"));
        let (rehearsal, attempt) = (Arc::new(self.rehearsal), Arc::<Attempt>::default());
        attempt.join_burst(burst);
        let executor = self.registry.executor_for(&command).expect("looked up before");
        let limit = self.job.timeout.or_else(|| executor.default_timeout());
        let way = self.registry.way_to(&command).expect("looked up before");
        let folder = Workspaces::open(&Workspaces::default_base());
        let folder = folder.unwrap_or_else(|error| panic!("cannot create a working directory: {error}"));
        let context = Context::new(Inner {
            job: self.job,
            identity: Identity {
                worker: 0,
                nonce: uuid::Uuid::nil(),
            },
            pool: pool.clone(),
            steps: pool,
            cancellation: self.cancellation.clone(),
            workspaces: folder.path().to_path_buf(),
            attempt: attempt.clone(),
            position: None,
            outputs: None,
            database: None,
            rehearsal: Some(rehearsal.clone()),
        });
        let mut way = std::pin::pin!(limited(way.run(context.clone()), limit, &context));
        let first = std::future::poll_fn(|task| std::task::Poll::Ready(way.as_mut().poll(task))).await;
        attempt.leave_burst();
        let outcome = match first {
            std::task::Poll::Ready(outcome) => outcome,
            std::task::Poll::Pending => way.await,
        };
        let noted = std::mem::take(&mut *rehearsal.noted.lock().unwrap());
        RunResult {
            command,
            settled: attempt.settled(),
            outcome,
            noted,
        }
    }
}

impl IntoFuture for Run {
    type Output = RunResult;
    type IntoFuture = Pin<Box<dyn Future<Output = RunResult> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.go(None))
    }
}

fn json(value: impl Serialize) -> Box<RawValue> {
    to_raw_value(&value).unwrap_or_else(|error| panic!("this cannot be written as JSON: {error}"))
}

fn related(id: JobId, name: Option<&str>, ended: Result<Box<RawValue>, &str>) -> DependencyResult {
    let (state, result, error) = match ended {
        Ok(result) => (State::Completed, Some(result), None),
        Err(error) => (State::Failed, None, Some(error.to_string())),
    };
    DependencyResult {
        id,
        name: name.map(str::to_string),
        state: Some(state),
        reason: None,
        result,
        error,
    }
}

/// How a [`run`] ended, and what the executor did.
#[derive(Debug)]
pub struct RunResult {
    command: String,
    outcome: Outcome,
    settled: Option<Settled>,
    noted: Noted,
}

/// The failure of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedAttempt {
    /// The message, with its causes.
    pub message: String,
    /// The code: of [`Failure::code`](crate::Failure::code), or `panic`, `timeout`, `bad_payload`.
    pub code: Option<String>,
    /// Whether it would be retried.
    pub retryable: bool,
    /// After which time, if it says so.
    pub retry_after: Option<Duration>,
}

/// The outcome [`Outcome::Wait`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiting {
    /// The token that the answer must name.
    pub token: Option<String>,
    /// How long it waits.
    pub at_most: Option<Duration>,
}

impl RunResult {
    /// The result. `()` if there is none.
    ///
    /// # Panics
    /// If it did not complete, or the result is not a `T`.
    #[track_caller]
    pub fn result<T: DeserializeOwned>(&self) -> T {
        let result = match (&self.outcome, &self.noted.completed_in) {
            (Outcome::Complete(result), _) | (Outcome::Settled, Some(result)) => result,
            _ => self.is_not("complete"),
        };
        let result = result.as_deref().map_or("null", RawValue::get);
        serde_json::from_str(result).unwrap_or_else(|error| {
            panic!(
                "the result of {:?} cannot be decoded as the requested type: {error}: {result}",
                self.command
            )
        })
    }

    /// How it failed.
    ///
    /// # Panics
    /// If it did not fail.
    #[track_caller]
    pub fn failure(&self) -> FailedAttempt {
        match &self.outcome {
            Outcome::Fail(failure) => FailedAttempt {
                message: failure.message.clone(),
                code: failure.code.clone(),
                retryable: failure.retryable,
                retry_after: failure.retry_after,
            },
            _ => self.is_not("fail"),
        }
    }

    /// After which time it is to run again.
    ///
    /// # Panics
    /// If it was not snoozed.
    #[track_caller]
    pub fn snoozed(&self) -> Duration {
        match &self.outcome {
            Outcome::Snooze(delay) => *delay,
            _ => self.is_not("be snoozed"),
        }
    }

    /// What it waits for.
    ///
    /// # Panics
    /// If it does not wait for an answer.
    #[track_caller]
    pub fn waiting(&self) -> Waiting {
        match &self.outcome {
            Outcome::Wait { token, at_most } => Waiting {
                token: token.clone(),
                at_most: *at_most,
            },
            _ => self.is_not("wait for an answer"),
        }
    }

    /// Why it was cancelled.
    ///
    /// # Panics
    /// If it was not cancelled by its executor.
    #[track_caller]
    pub fn cancelled(&self) -> &str {
        match &self.outcome {
            Outcome::Cancelled(why) => why,
            _ => self.is_not("be cancelled"),
        }
    }

    /// Why the step was skipped.
    ///
    /// # Panics
    /// If it was not skipped.
    #[track_caller]
    pub fn skipped(&self) -> &str {
        match &self.outcome {
            Outcome::Skip(why) => why,
            _ => self.is_not("be skipped"),
        }
    }

    /// The children that it spawned, as JSON: objects with `command`, `payload` and what else was set.
    ///
    /// # Panics
    /// If it did not spawn any.
    #[track_caller]
    pub fn spawned(&self) -> Vec<Value> {
        let Some(spawned) = &self.noted.spawned else {
            self.is_not("spawn children");
        };
        match serde_json::from_str(spawned.get()).expect("is JSON") {
            Value::Array(children) => children,
            mut workflow => workflow["jobs"].take().as_array().cloned().unwrap_or_default(),
        }
    }

    /// What it reported with [`Context::progress`], in order.
    pub fn progress(&self) -> &[(f32, String)] {
        &self.noted.progress
    }

    /// The steps that are done, by name, with their outputs.
    pub fn steps(&self) -> BTreeMap<&str, Value> {
        let value = |output: &RawValue| serde_json::from_str(output.get()).unwrap_or_default();
        let steps = self.noted.steps.iter();
        steps.map(|(name, output)| (name.as_str(), value(output))).collect()
    }

    /// The outcome itself.
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    #[track_caller]
    fn is_not(&self, wanted: &str) -> ! {
        let described = match &self.outcome {
            Outcome::Settled if self.settled == Some(Settled::Waiting) => "it spawned children".to_string(),
            Outcome::Settled if self.noted.completed_in.is_none() => {
                "it returned Settled, and did not complete the job".to_string()
            }
            outcome => describe(outcome),
        };
        panic!("{:?} was to {wanted}: {described}", self.command)
    }
}

/// An outcome in words, for the message of a failed test.
pub(super) fn describe(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Complete(None) => "it completed".into(),
        Outcome::Complete(Some(result)) => format!("it completed with {result}"),
        Outcome::Fail(failure) => {
            let retried = if failure.retryable { "" } else { ", not retryable" };
            let code = failure.code.as_deref().map(|code| format!(", code {code}"));
            format!("it failed{}{retried}: {}", code.unwrap_or_default(), failure.message)
        }
        Outcome::Snooze(delay) => format!("it was snoozed for {}", humantime::format_duration(*delay)),
        Outcome::Wait { .. } => "it waits for an answer".into(),
        Outcome::Skip(why) => format!("it was skipped: {why}"),
        Outcome::Cancelled(why) => format!("it was cancelled: {why}"),
        Outcome::Settled => "it was completed in a transaction".into(),
    }
}

impl std::fmt::Debug for Noted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Noted").finish_non_exhaustive()
    }
}
