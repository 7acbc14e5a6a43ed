//! Executors that take many jobs of a command in one call, and report an outcome for each.
//!
//! To the crew each of these jobs is one like any other: a task with a time limit, a cancellation and a claim of its
//! own. The task waits for its outcome at the [`Gathering`] of its command, which hands the jobs that are ready to the
//! executor, up to its `most` in one call.
//!
//! Nothing is delayed while no call is under way. Jobs that were claimed together come together: the gathering waits
//! until each of them has been started ([`Burst`]). While a call is under way, the next jobs are collected until there
//! are `most` of them, until it ends, or for a moment.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::execute::context::Context;
use crate::execute::executor::{Execution, Executor, Failure, Outcome};
use crate::execute::panics;
use crate::job::JobId;

/// How long jobs are collected while a call of their command is under way.
const LINGER: Duration = Duration::from_millis(5);

/// How many jobs are remembered that were in a call which panicked.
const MOST_SUSPECTS: usize = 10_000;

/// Jobs of one command that are run in one call: see [`Registry::on_many`](crate::Registry::on_many).
///
/// `P` is the type of their payloads, and `S` the state that the executors of a registry share.
pub struct Batch<P = (), S = ()> {
    jobs: Vec<BatchJob<P, S>>,
    state: Arc<S>,
    cancellation: CancellationToken,
}

impl<P, S> Batch<P, S> {
    /// How many jobs there are. At least one.
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// What the executors of this registry share: see [`Registry::with_state`](crate::Registry::with_state).
    pub fn state(&self) -> &S {
        &self.state
    }

    /// The jobs, in the order of their priorities and ids.
    pub fn iter(&self) -> std::slice::Iter<'_, BatchJob<P, S>> {
        self.jobs.iter()
    }

    /// Their payloads, in the same order.
    pub fn payloads(&self) -> impl Iterator<Item = &P> {
        self.jobs.iter().map(BatchJob::payload)
    }

    /// Cancelled when every job should stop that has no outcome yet. One job that should stop, because it was cancelled
    /// or its time is over, is cancelled by the [`cancellation`](Context::cancellation) of its own context.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.cancellation
    }
}

impl<P, S> IntoIterator for Batch<P, S> {
    type Item = BatchJob<P, S>;
    type IntoIter = std::vec::IntoIter<BatchJob<P, S>>;

    fn into_iter(self) -> Self::IntoIter {
        self.jobs.into_iter()
    }
}

impl<'a, P, S> IntoIterator for &'a Batch<P, S> {
    type Item = &'a BatchJob<P, S>;
    type IntoIter = std::slice::Iter<'a, BatchJob<P, S>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<P, S> std::fmt::Debug for Batch<P, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch")
            .field("jobs", &self.jobs.len())
            .finish_non_exhaustive()
    }
}

impl Batch {
    /// With payloads of type `P`. A job whose payload does not fit fails by itself, and is not in the batch.
    fn typed<P: DeserializeOwned, S>(self, state: Arc<S>) -> Batch<P, S> {
        let mut jobs = Vec::with_capacity(self.jobs.len());
        for job in self.jobs {
            match job.context.payload_as::<P>() {
                Ok(payload) => jobs.push(BatchJob {
                    context: job.context.with_state(state.clone()),
                    payload,
                    seat: job.seat,
                }),
                Err(failure) => job.fail(failure),
            }
        }
        Batch {
            jobs,
            state,
            cancellation: self.cancellation,
        }
    }
}

/// A job of a [`Batch`]. Reporting its outcome consumes it; the outcome is delivered at once, whatever becomes of the
/// others.
///
/// A job that is dropped without an outcome fails when the call has ended: with the error that the executor returned,
/// or with the code `no_outcome`.
pub struct BatchJob<P = (), S = ()> {
    context: Context<S>,
    payload: P,
    seat: Seat,
}

impl<P, S> BatchJob<P, S> {
    /// The job's own context, as an executor of one job gets it.
    pub fn context(&self) -> &Context<S> {
        &self.context
    }

    /// Its id.
    pub fn id(&self) -> JobId {
        self.context.id()
    }

    /// Its payload.
    pub fn payload(&self) -> &P {
        &self.payload
    }

    /// It is completed, with this result.
    pub fn complete<T: Serialize>(self, result: T) {
        self.end(Outcome::complete(result));
    }

    /// Its attempt has failed.
    pub fn fail(self, failure: impl Into<Failure>) {
        self.end(Outcome::Fail(failure.into()));
    }

    /// Any outcome. [`Outcome::Settled`], after [`Context::complete_in`] and a commit, makes the completion of all jobs
    /// one transaction with the writes of the call.
    pub fn end(self, outcome: Outcome) {
        self.seat.call.end(self.seat.number, outcome);
    }
}

impl<P, S> std::fmt::Debug for BatchJob<P, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchJob")
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}

/// The future of a call.
pub type BatchExecution = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

/// Runs many jobs of a command in one call. For most commands a function is enough: see
/// [`Registry::on_many`](crate::Registry::on_many).
pub trait BatchExecutor: Send + Sync + 'static {
    /// The most jobs of one call.
    fn most(&self) -> usize;

    /// Start a call. Each job is to be ended by [`BatchJob::end`], in any order, as soon as its outcome is known. When
    /// the future returns, the jobs without an outcome fail: with the error it returned, or with the code `no_outcome`.
    /// It is dropped when all jobs that have no outcome yet were taken from it, because their time is over for example.
    fn execute(&self, batch: Batch) -> BatchExecution;

    /// The time limit of an attempt, if neither the job nor its command sets one.
    fn default_timeout(&self) -> Option<Duration> {
        None
    }
}

/// [`Registry::on_many`](crate::Registry::on_many).
pub(crate) struct TypedMany<S, P, F> {
    pub most: usize,
    pub run: Arc<F>,
    pub state: Arc<S>,
    pub payload: std::marker::PhantomData<fn(P)>,
}

impl<S, P, F, Fut> BatchExecutor for TypedMany<S, P, F>
where
    S: Send + Sync + 'static,
    P: DeserializeOwned + Send + 'static,
    F: Fn(Batch<P, S>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), Failure>> + Send + 'static,
{
    fn most(&self) -> usize {
        self.most
    }

    fn execute(&self, batch: Batch) -> BatchExecution {
        let (run, state) = (self.run.clone(), self.state.clone());
        Box::pin(async move {
            let batch = batch.typed::<P, S>(state);
            match batch.is_empty() {
                true => Ok(()),
                false => run(batch).await,
            }
        })
    }
}

/// A job's place in a call.
struct Seat {
    call: Arc<Call>,
    number: usize,
}

/// Where the outcomes of one call go.
struct Call {
    waiting: Mutex<Vec<Option<oneshot::Sender<Outcome>>>>,
}

impl Call {
    fn end(&self, number: usize, outcome: Outcome) {
        let tell = self.waiting.lock().unwrap()[number].take();
        if let Some(tell) = tell {
            // if its receiver is gone, the job was stopped, and has an outcome
            let _ = tell.send(outcome);
        }
    }

    fn is_over(&self) -> bool {
        self.waiting.lock().unwrap().iter().all(Option::is_none)
    }

    /// The call has ended: fail the jobs that have no outcome.
    fn fail_rest(&self, failure: &Failure) {
        let rest: Vec<_> = self
            .waiting
            .lock()
            .unwrap()
            .iter_mut()
            .filter_map(Option::take)
            .collect();
        for tell in rest {
            let _ = tell.send(Outcome::Fail(failure.clone()));
        }
    }
}

/// The executor of a command that takes many jobs: each of them waits here for its outcome.
pub(crate) struct GatheringExecutor(Arc<Gathering>);

impl GatheringExecutor {
    pub(crate) fn new(command: &str, executor: Arc<dyn BatchExecutor>) -> Self {
        GatheringExecutor(Arc::new(Gathering {
            command: command.to_string(),
            most: executor.most().max(1),
            executor,
            desk: Mutex::default(),
        }))
    }
}

impl Executor for GatheringExecutor {
    fn execute(&self, context: Context) -> Execution {
        let gathering = self.0.clone();
        Box::pin(async move {
            let (tell, told) = oneshot::channel();
            let gone = CancellationToken::new();
            let _gone = gone.clone().drop_guard();
            gathering.join(Ready { context, tell, gone });
            told.await.unwrap_or_else(|_| {
                Outcome::Fail(Failure::new("the call of the executor was dropped").code("no_outcome"))
            })
        })
    }

    fn default_timeout(&self) -> Option<Duration> {
        self.0.executor.default_timeout()
    }
}

/// A job that waits to be part of a call.
struct Ready {
    context: Context,
    tell: oneshot::Sender<Outcome>,
    /// Cancelled when its outcome is no longer awaited.
    gone: CancellationToken,
}

/// The jobs of one command that are ready, and the calls that are under way.
pub(crate) struct Gathering {
    command: String,
    most: usize,
    executor: Arc<dyn BatchExecutor>,
    desk: Mutex<Desk>,
}

#[derive(Default)]
struct Desk {
    ready: Vec<Ready>,
    calls: usize,
    /// Whether the jobs that are ready will be looked at again in a moment.
    lingers: bool,
    /// Jobs of calls that panicked. They run alone, so that one of them cannot fail the others again.
    suspects: HashSet<JobId>,
}

impl Desk {
    /// The next call, if there is to be one.
    fn next(&mut self, most: usize, at_once: bool) -> Option<Vec<Ready>> {
        self.ready.retain(|ready| !ready.tell.is_closed());
        if let Some(alone) = self
            .ready
            .iter()
            .position(|ready| self.suspects.contains(&ready.context.id()))
        {
            return Some(vec![self.ready.remove(alone)]);
        }
        // their tasks have come in any order
        self.ready
            .sort_by_key(|ready| (ready.context.job().priority, ready.context.id()));
        let count = self.ready.len().min(most);
        (count > 0 && (count == most || at_once)).then(|| self.ready.drain(..count).collect())
    }
}

impl Gathering {
    fn join(self: &Arc<Self>, ready: Ready) {
        let burst = ready.context.inner.attempt.burst();
        let count = {
            let mut desk = self.desk.lock().unwrap();
            desk.ready.push(ready);
            desk.ready.len()
        };
        match burst {
            Some(burst) => {
                burst.brings(self);
                if count >= self.most {
                    self.start(false);
                }
            }
            None => self.settle(),
        }
    }

    /// Start what is ready, unless a call is under way: then collect for a moment.
    fn settle(self: &Arc<Self>) {
        let is_idle = self.desk.lock().unwrap().calls == 0;
        self.start(is_idle);
        let Ok(runtime) = Handle::try_current() else {
            return; // it is shutting down
        };
        let mut desk = self.desk.lock().unwrap();
        if !desk.ready.is_empty() && !std::mem::replace(&mut desk.lingers, true) {
            let gathering = self.clone();
            runtime.spawn(async move {
                tokio::time::sleep(LINGER).await;
                gathering.desk.lock().unwrap().lingers = false;
                gathering.start(true);
            });
        }
    }

    /// Start as many calls as there are to be; with `at_once`, also one that is not full.
    fn start(self: &Arc<Self>, at_once: bool) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let mut desk = self.desk.lock().unwrap();
        while let Some(jobs) = desk.next(self.most, at_once) {
            desk.calls += 1;
            let span = tracing::info_span!("batch", command = self.command, jobs = jobs.len());
            runtime.spawn(self.clone().call(jobs).instrument(span));
        }
    }

    async fn call(self: Arc<Self>, ready: Vec<Ready>) {
        let jobs: Vec<JobId> = ready.iter().map(|ready| ready.context.id()).collect();
        tracing::debug!(event = "batch", command = self.command, jobs = jobs.len());
        let did_panic = self.run(ready).await;
        {
            let mut desk = self.desk.lock().unwrap();
            desk.calls -= 1;
            if did_panic && desk.suspects.len() < MOST_SUSPECTS {
                desk.suspects.extend(jobs);
            } else if let [job] = jobs[..] {
                desk.suspects.remove(&job);
            }
        }
        self.settle();
    }

    /// Run a call to its end. True if it panicked.
    async fn run(&self, ready: Vec<Ready>) -> bool {
        let cancellation = CancellationToken::new();
        let signs: Vec<_> = ready
            .iter()
            .map(|ready| (ready.context.cancellation().clone(), ready.gone.clone()))
            .collect();
        let (contexts, waiting): (Vec<Context>, Vec<_>) =
            ready.into_iter().map(|ready| (ready.context, Some(ready.tell))).unzip();
        let call = Arc::new(Call {
            waiting: Mutex::new(waiting),
        });
        let jobs = contexts.into_iter().enumerate().map(|(number, context)| BatchJob {
            context,
            payload: (),
            seat: Seat {
                call: call.clone(),
                number,
            },
        });
        let batch = Batch {
            jobs: jobs.collect(),
            state: Arc::default(),
            cancellation: cancellation.clone(),
        };
        // an executor may panic before it returns its future, too
        let execution = panics::caught(async { self.executor.execute(batch).await });
        let ended = tokio::select! {
            ended = execution => ended,
            () = abandoned(&call, &signs, &cancellation) => return false,
        };
        let (failure, did_panic) = match ended {
            Ok(Err(failure)) => (failure, false),
            Ok(Ok(())) => (no_outcome(&self.command), false),
            Err(panic) => (panic, true),
        };
        call.fail_rest(&failure);
        did_panic
    }
}

/// Returns if all jobs that have no outcome were stopped. Before that, when all of them should stop, tell the executor.
async fn abandoned(call: &Call, signs: &[(CancellationToken, CancellationToken)], cancellation: &CancellationToken) {
    for (cancelled, gone) in signs {
        tokio::select! {
            () = cancelled.cancelled() => {}
            () = gone.cancelled() => {}
        }
    }
    if !call.is_over() {
        cancellation.cancel();
    }
    for (_, gone) in signs {
        gone.cancelled().await;
    }
    // an executor that has reported every outcome may take its time to end
    if call.is_over() {
        std::future::pending::<()>().await;
    }
}

fn no_outcome(command: &str) -> Failure {
    Failure::new(format!(
        "the executor of {command:?} reported no outcome for this job\nhint: Call complete, fail or end for each \
         job of the batch, or return an error."
    ))
    .code("no_outcome")
}

/// Jobs that were claimed together, until each of them was started and has come as far as it could without waiting.
/// Each of them holds it; the last one starts the calls.
#[derive(Default)]
pub(crate) struct Burst {
    gatherings: Mutex<Vec<Arc<Gathering>>>,
}

impl Burst {
    fn brings(&self, gathering: &Arc<Gathering>) {
        let mut gatherings = self.gatherings.lock().unwrap();
        if !gatherings.iter().any(|known| Arc::ptr_eq(known, gathering)) {
            gatherings.push(gathering.clone());
        }
    }
}

impl Drop for Burst {
    fn drop(&mut self) {
        for gathering in self.gatherings.get_mut().unwrap().drain(..) {
            gathering.settle();
        }
    }
}
