//! What an executor is given: the job, and the means to work on it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use postgres_types::Json;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio_postgres::{Client, Statement};
use tokio_util::sync::CancellationToken;

use crate::db::calls::{self, FinishedJob, Try};
use crate::db::connect::{Connection, Pool};
use crate::error::{Error, Result};
use crate::execute::batch::Burst;
use crate::execute::executor::Failure;
use crate::execute::rehearsal::Rehearsal;
use crate::execute::shortage::Shortage;
use crate::execute::workspace::Workspace;
use crate::job::{Address, ChainPosition, ClaimedJob, JobId};
use crate::worker::Identity;

/// The job an executor runs, and what it may use meanwhile. Cheap to clone.
///
/// `S` is the state that the executors of a registry share: see [`Registry::with_state`](crate::Registry::with_state).
pub struct Context<S = ()> {
    pub(crate) inner: Arc<Inner>,
    state: Arc<S>,
}

impl<S> Clone for Context<S> {
    fn clone(&self) -> Self {
        Context {
            inner: self.inner.clone(),
            state: self.state.clone(),
        }
    }
}

#[derive(Clone)]
pub(crate) struct Inner {
    pub(crate) job: ClaimedJob,
    pub(crate) identity: Identity,
    pub(crate) pool: Pool,
    /// For step updates.
    pub(crate) steps: Pool,
    /// Fires when the job should stop: its claim was lost, it was cancelled, its time is over, the worker shuts down.
    pub(crate) cancellation: CancellationToken,
    /// Where working directories are created.
    pub(crate) workspaces: PathBuf,
    pub(crate) attempt: Arc<Attempt>,
    /// Where in a chain this is, if it is one of its steps.
    pub(crate) position: Option<ChainPosition>,
    /// The name of the database, if the worker serves several.
    pub(crate) database: Option<Arc<str>>,
    /// In a test without a database, what stands in for it.
    pub(crate) rehearsal: Option<Arc<Rehearsal>>,
    /// In a chain, the outputs of the steps before this one.
    pub(crate) outputs: Option<Arc<RawValue>>,
}

/// What all contexts of an attempt share.
#[derive(Default)]
pub(crate) struct Attempt {
    /// Removed with the last of them.
    workspace: OnceLock<Workspace>,
    /// The job's row was written to since it was claimed: it is not where it was.
    pub(crate) moved: AtomicBool,
    /// What the worker was short of when the executor asked for it.
    shortage: Mutex<Option<Shortage>>,
    /// How the executor has settled the job itself, if it has.
    settled: Mutex<Option<Settled>>,
    /// Only the executor knows whether that was committed.
    promised: AtomicBool,
    /// The jobs it was claimed with, while they are being started.
    burst: Mutex<Option<Arc<Burst>>>,
    /// Its executor could not run it, for a reason that is neither the job's nor a shortage.
    blameless: AtomicBool,
    /// Why it was told to stop, if it was.
    stop: Mutex<Option<Stop>>,
    /// The time limits that run: the job's, and that of its step.
    limits: Mutex<Vec<Running>>,
    /// How long it has waited for its executor, which is no part of its time limit.
    waited: Mutex<Waited>,
    /// The time limit that applies now: that of the job, or of the step of a chain.
    limit: Mutex<Option<Duration>>,
}

/// Why a running job should stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    Timeout,
    Cancelled,
    Lost,
    Shutdown,
}

#[derive(Default)]
struct Waited {
    before: Duration,
    since: Option<Instant>,
}

/// How a job was settled by its executor, or by the last step of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    /// It is completed.
    Completed,
    /// It waits for its children; or for an answer, by a condition of its command.
    Waiting,
    /// It has failed by a condition of its command. If it is a step of a chain, this worker may retry it after this
    /// delay.
    Retried(Option<Duration>),
    /// It was not: another worker has the job now.
    Lost,
}

/// A time limit that runs.
#[derive(Debug)]
struct Running {
    since: Instant,
    limit: Duration,
    /// How long the attempt had waited before.
    waited: Duration,
}

/// A time limit runs until this is dropped.
pub(crate) struct Limited<'a>(&'a Attempt);

impl Drop for Limited<'_> {
    fn drop(&mut self) {
        self.0.limits.lock().unwrap().pop();
    }
}

impl Attempt {
    /// From now on a time limit runs.
    pub(crate) fn limit_to(&self, limit: Duration) -> Limited<'_> {
        let running = Running {
            since: Instant::now(),
            limit,
            waited: self.waited(),
        };
        self.limits.lock().unwrap().push(running);
        Limited(self)
    }

    /// The time limit that passed more than this long ago.
    pub(crate) fn passed_limit(&self, grace: Duration) -> Option<Duration> {
        let waited = self.waited();
        let limits = self.limits.lock().unwrap();
        let passed = limits
            .iter()
            .find(|running| running.since.elapsed().saturating_sub(waited - running.waited) > running.limit + grace);
        passed.map(|running| running.limit)
    }

    pub(crate) fn join_burst(&self, burst: Option<Arc<Burst>>) {
        *self.burst.lock().unwrap() = burst;
    }

    pub(crate) fn leave_burst(&self) {
        // dropped when it is unlocked: the last one starts calls
        let burst = self.burst.lock().unwrap().take();
        drop(burst);
    }

    pub(crate) fn burst(&self) -> Option<Arc<Burst>> {
        self.burst.lock().unwrap().clone()
    }

    pub(crate) fn shortage(&self) -> Option<Shortage> {
        *self.shortage.lock().unwrap()
    }

    pub(crate) fn settled(&self) -> Option<Settled> {
        *self.settled.lock().unwrap()
    }

    /// Whether only the executor knows that this was committed.
    pub(crate) fn is_promised(&self) -> bool {
        self.promised.load(Ordering::Acquire)
    }

    /// A failure of this attempt is not the job's: the job is given back.
    pub(crate) fn is_blameless(&self) -> bool {
        self.blameless.load(Ordering::Acquire) || self.shortage().is_some()
    }

    pub(crate) fn note_blameless(&self) {
        self.blameless.store(true, Ordering::Release);
    }

    pub(crate) fn note_stop(&self, why: Stop) {
        *self.stop.lock().unwrap() = Some(why);
    }

    pub(crate) fn stop(&self) -> Option<Stop> {
        *self.stop.lock().unwrap()
    }

    /// From now on its time limit does not run.
    pub(crate) fn pause_clock(&self) {
        let mut waited = self.waited.lock().unwrap();
        waited.since.get_or_insert_with(Instant::now);
    }

    /// Its time limit runs again.
    pub(crate) fn resume_clock(&self) {
        let mut waited = self.waited.lock().unwrap();
        if let Some(since) = waited.since.take() {
            waited.before += since.elapsed();
        }
    }

    /// How long its time limit has not run.
    pub(crate) fn waited(&self) -> Duration {
        let waited = self.waited.lock().unwrap();
        waited.before + waited.since.map(|since| since.elapsed()).unwrap_or_default()
    }

    pub(crate) fn note_limit(&self, limit: Option<Duration>) {
        *self.limit.lock().unwrap() = limit;
    }

    pub(crate) fn limit(&self) -> Option<Duration> {
        *self.limit.lock().unwrap()
    }
}

impl Context {
    pub(crate) fn new(inner: Inner) -> Context {
        Context {
            inner: Arc::new(inner),
            state: Arc::default(),
        }
    }

    /// The same job, with the state that its executor shares with others.
    pub(crate) fn with_state<S>(self, state: Arc<S>) -> Context<S> {
        Context {
            inner: self.inner,
            state,
        }
    }
}

impl<S> Context<S> {
    /// What the executors of this registry share: see [`Registry::with_state`](crate::Registry::with_state).
    pub fn state(&self) -> &S {
        &self.state
    }

    /// The job's id.
    pub fn id(&self) -> JobId {
        self.inner.job.held.id
    }

    /// The job as it was claimed.
    pub fn job(&self) -> &ClaimedJob {
        &self.inner.job
    }

    /// The number of this attempt, from 1.
    pub fn attempt(&self) -> i32 {
        self.inner.job.attempt
    }

    /// How often the job is attempted before it fails for good: its own number, its command's, or its retry policy's.
    /// None if that is not limited, and in a chain that is not retried as a whole.
    pub fn max_attempts(&self) -> Option<i32> {
        self.inner.job.max_attempts
    }

    /// The trace it was enqueued in: the header `traceparent`, if it is well formed.
    pub fn traceparent(&self) -> Option<&str> {
        self.inner.job.traceparent()
    }

    /// A header that was enqueued with the job.
    pub fn header(&self, name: &str) -> Option<&serde_json::Value> {
        self.inner.job.headers.get(name)
    }

    /// Where in a chain this is, if it is one of its steps.
    pub fn position(&self) -> Option<&ChainPosition> {
        self.inner.position.as_ref()
    }

    /// The payload, as `T`.
    ///
    /// # Errors
    /// A failure that is not retried, with serde's message and the path of the offending field.
    pub fn payload_as<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        let json = &mut serde_json::Deserializer::from_str(self.inner.job.payload.get());
        serde_path_to_error::deserialize(json).map_err(|error| {
            Failure::new(format!(
                "the payload cannot be decoded: {} at {}",
                error.inner(),
                error.path()
            ))
            .code("bad_payload")
            .not_retryable()
        })
    }

    /// The same job with another payload, for stages that change what the executor sees. The stored payload stays.
    ///
    /// # Errors
    /// If it cannot be written as JSON.
    pub fn with_payload(&self, payload: impl Serialize) -> Result<Context<S>, Failure> {
        let mut inner = Inner::clone(&self.inner);
        inner.job.payload = serde_json::value::to_raw_value(&payload)?;
        Ok(Context {
            inner: Arc::new(inner),
            state: self.state.clone(),
        })
    }

    /// Cancelled when the job should stop: its claim was lost, it was cancelled or timed out, or the worker stops.
    /// Long-running executors should watch it.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.inner.cancellation
    }

    /// A directory for this attempt, shared by all steps of a chain. It is created at the first call, and removed when
    /// the attempt has ended.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub fn workspace(&self) -> std::io::Result<&Path> {
        if let Some(workspace) = self.inner.attempt.workspace.get() {
            workspace
                .make()
                .inspect_err(|error| self.note_shortage(Shortage::at_start(error)))?;
            return Ok(workspace.path());
        }
        let workspace = Workspace::prepare(&self.inner.workspaces, self.inner.job.held)
            .inspect_err(|error| self.note_shortage(Shortage::at_start(error)))?;
        // if another clone was faster, the folder is the same: do not remove it
        if let Err(same) = self.inner.attempt.workspace.set(workspace) {
            same.keep();
        }
        Ok(self.inner.attempt.workspace.get().expect("just set").path())
    }

    pub(crate) fn rehearsal(&self) -> Option<&Rehearsal> {
        self.inner.rehearsal.as_deref()
    }

    /// The path of that directory, which an executor outside of this process creates when it needs it.
    pub(crate) fn future_workspace(&self) -> &Path {
        let workspace = &self.inner.attempt.workspace;
        workspace
            .get_or_init(|| Workspace::announce(&self.inner.workspaces, self.inner.job.held))
            .path()
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    /// A connection from the worker's pool, for the executor's own statements.
    ///
    /// # Errors
    /// If none can be had. If that is because the worker or the server has too few of them, or if the job has to stop
    /// while it waits for one, the job is given back, and the attempt is not counted.
    pub async fn database(&self) -> Result<Connection> {
        if let Some(rehearsal) = self.rehearsal() {
            rehearsal.check_database()?;
        }
        let before = self.inner.attempt.shortage();
        self.note_shortage(Some(Shortage::Connections));
        let connection = self.inner.pool.get().await;
        let shortage = connection.as_ref().err().and_then(Shortage::of_connection);
        self.note_shortage(shortage.or(before));
        connection
    }

    /// The name of the database the job came from, if the worker serves several: see
    /// [`Settings::database`](crate::Settings::database). [`database`](Context::database) is that one.
    pub fn database_name(&self) -> Option<&str> {
        self.inner.database.as_deref()
    }

    /// If this attempt fails, the job is not to blame for it.
    pub(crate) fn note_shortage(&self, shortage: Option<Shortage>) {
        *self.inner.attempt.shortage.lock().unwrap() = shortage;
    }

    pub(crate) fn note_settled(&self, settled: Option<Settled>) {
        *self.inner.attempt.settled.lock().unwrap() = settled;
        self.inner.attempt.promised.store(false, Ordering::Release);
    }

    /// The executor says so, or will, once it has committed.
    pub(crate) fn note_promised(&self, settled: Settled) {
        self.note_settled(Some(settled));
        self.inner.attempt.promised.store(true, Ordering::Release);
    }

    /// The transaction in which the job was completed has been committed.
    pub(crate) fn note_committed(&self) {
        self.inner.attempt.promised.store(false, Ordering::Release);
    }

    /// The job could not be completed by its executor.
    fn note_unsettled(&self, error: &Error) {
        self.note_settled(None);
        // neither the job's fault nor its executor's
        if !error.is_transient() && !error.is_fenced() && !error.is_caused_by_data() {
            self.note_shortage(Some(Shortage::History));
        }
    }

    /// Report the progress of the job (0 to 100), which is shown in `bugle.running_jobs`.
    ///
    /// # Errors
    /// If the database cannot be reached. Work can go on regardless.
    pub async fn progress(&self, percent: f32, note: &str) -> Result<()> {
        if let Some(rehearsal) = self.rehearsal() {
            rehearsal
                .noted
                .lock()
                .unwrap()
                .progress
                .push((percent, note.to_string()));
            return Ok(());
        }
        let connection = self.database().await?;
        self.inner.attempt.moved.store(true, Ordering::Release);
        calls::report_progress(&connection, self.inner.identity, self.inner.job.held, percent, note).await
    }

    /// Complete the job, or the step of a chain, inside `transaction`, so that the executor's own writes and the
    /// completion commit together. Then commit, and return [`Outcome::Settled`](crate::Outcome::Settled). If the result
    /// matches a condition of the command (`retry_when`, `wait_when`), the job is retried or waits instead.
    ///
    /// # Errors
    /// If the claim is no longer current: roll back, another worker runs this job now.
    pub async fn complete_in<T: Serialize>(
        &self,
        transaction: &tokio_postgres::Transaction<'_>,
        result: T,
    ) -> Result<()> {
        let json = serde_json::value::to_raw_value(&result)
            .map_err(|error| Error::new(format!("the result cannot be written as JSON: {error}")))?;
        let result = (json.get() != "null").then_some(json);
        if let Some(rehearsal) = self.rehearsal() {
            rehearsal.noted.lock().unwrap().completed_in = Some(result);
            return Ok(());
        }
        let (me, held) = (self.inner.identity, self.inner.job.held);
        let result = result.as_deref();
        self.note_promised(Settled::Completed);
        let settled = match self.position() {
            None => calls::complete_in(transaction, me, held, result).await,
            Some(at) => {
                let step = Try {
                    position: at.step,
                    number: at.attempt,
                };
                calls::finish_step_in(transaction, me, held, step, result).await
            }
        };
        let settled = settled.inspect_err(|error| self.note_unsettled(error))?;
        self.note_promised(settled);
        Ok(())
    }
}

impl Context {
    /// Complete these jobs, none of which is a step of a chain, with these results inside the transaction that the
    /// client is in: all of them, or the transaction can no longer be committed. `prepared` is
    /// [`calls::prepare_complete_all`].
    pub(crate) async fn complete_all_in(
        jobs: &[&Context],
        results: &[Option<Box<RawValue>>],
        client: &Client,
        prepared: &Statement,
    ) -> Result<()> {
        let mut finished: Vec<_> = jobs
            .iter()
            .zip(results)
            .map(|(job, result)| job.finished(result))
            .collect();
        finished.sort_by_key(|(job, _)| job.id);
        let me = jobs[0].inner.identity;
        jobs.iter().for_each(|job| job.note_settled(Some(Settled::Completed)));
        match calls::complete_all(client, prepared, me, &finished).await {
            Ok(verdicts) => {
                for job in jobs {
                    let verdict = verdicts.iter().find(|verdict| verdict.held() == job.inner.job.held);
                    job.note_settled(calls::settled(verdict));
                }
                Ok(())
            }
            Err(error) => {
                jobs.iter().for_each(|job| job.note_unsettled(&error));
                Err(error)
            }
        }
    }

    fn finished<'a>(&self, result: &'a Option<Box<RawValue>>) -> (FinishedJob<'a>, Option<Address>) {
        let job = self.job();
        let finished = FinishedJob {
            id: job.held.id,
            claim: job.held.claim,
            result: result.as_deref().filter(|json| json.get() != "null").map(Json),
        };
        let has_moved = self.inner.attempt.moved.load(Ordering::Acquire);
        (finished, job.address.filter(|_| !has_moved))
    }
}
