//! The crew: runs claimed jobs, and always knows which jobs this worker is responsible for.

use std::collections::HashMap;
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, field};

use crate::db::calls::Undecodable;
use crate::execute::batch::Burst;
use crate::execute::chain;
use crate::execute::context::{Attempt, Context, Inner, Settled, Stop};
use crate::execute::executor::{Failure, Outcome};
use crate::execute::panics;
use crate::execute::registry::Registry;
use crate::execute::shortage::Shortage;
use crate::job::{ClaimedJob, HeldJob, JobId};
use crate::observe::trace::{self, Ids};
use crate::observe::{Ending, Observed, Run};
use crate::worker::Identity;
use crate::worker::completer::{self, End, How};
use crate::worker::fleet::Part;
use crate::worker::run::Pools;
use crate::worker::slots::Share;
use crate::worker::watch::Watch;

/// With more undelivered outcomes than this, no more jobs are claimed, because the database is slower than the
/// executors. Enough for the flush in flight and the next two; more would only mean more work to repeat after a crash.
const MOST_UNDELIVERED: usize = 3_000;

/// If a flush takes longer than this, no more jobs are claimed. The worker may be about to be declared lost, and jobs
/// that end until then would run again elsewhere.
const LONGEST_FLUSH: Duration = Duration::from_secs(1);

/// How long an executor may take to stop after its time limit.
const TIMEOUT_GRACE: Duration = Duration::from_secs(3);
/// An executor that still runs this long after its time limit does not stop: it blocks its thread.
const OVERDUE_GRACE: Duration = Duration::from_secs(5);

/// Everything that runs jobs in this worker.
pub struct Crew {
    registry: Registry,
    pub pools: Pools,
    workspaces: PathBuf,
    identity: RwLock<Identity>,
    /// Every job this worker is responsible for: running, or ended with an undelivered outcome.
    held: Arc<Mutex<HashMap<HeldJob, Hold>>>,
    watch: OnceLock<Watch>,
    ends: mpsc::UnboundedSender<End>,
    undelivered: AtomicUsize,
    /// When the flush in flight was started.
    flushing_since: Mutex<Option<Instant>>,
    /// Jobs that did not finish because the worker is stopping.
    interrupted: AtomicUsize,
    /// Notified when the worker is no longer responsible for a job.
    let_go: Notify,
    /// Notified when there is more room: a slot became free, or outcomes were delivered.
    freed: Notify,
    /// Metrics and health.
    pub observed: Arc<Observed>,
    /// If this is one of several databases.
    part: Option<Part>,
}

/// A job that is held.
#[derive(Default)]
pub struct Hold {
    cancellation: CancellationToken,
    /// While its executor runs.
    task: Option<AbortHandle>,
    /// Shared with its executor once it has started.
    attempt: Option<Arc<Attempt>>,
    /// Set when the executor was told to stop because the worker is stopping: a failure then means giving the job back.
    stopping: bool,
}

impl Hold {
    /// Tell its executor to stop.
    fn stop(&self, why: Stop) {
        if let Some(attempt) = &self.attempt {
            attempt.note_stop(why);
        }
        self.cancellation.cancel();
    }
}

impl Crew {
    pub fn new(
        registry: Registry,
        pools: Pools,
        workspaces: &Path,
        identity: Identity,
        ends: mpsc::UnboundedSender<End>,
        part: Option<Part>,
    ) -> Arc<Self> {
        let crew = Arc::new(Crew {
            registry,
            pools,
            workspaces: workspaces.to_path_buf(),
            identity: RwLock::new(identity),
            held: Arc::default(),
            watch: OnceLock::new(),
            ends,
            undelivered: AtomicUsize::new(0),
            flushing_since: Mutex::default(),
            interrupted: AtomicUsize::new(0),
            let_go: Notify::new(),
            freed: Notify::new(),
            observed: part.as_ref().map(|part| part.observed.clone()).unwrap_or_default(),
            part,
        });
        // what reports on this database finds its crew
        if let Some(part) = &crew.part {
            *part.crew.lock().unwrap() = Arc::downgrade(&crew);
        }
        crew
    }

    /// Its share of the slots, if there are several databases.
    pub fn share(&self) -> Option<&Share> {
        self.part.as_ref().map(|part| &part.share)
    }

    fn database(&self) -> Option<&Arc<str>> {
        self.part.as_ref().map(|part| &part.database)
    }

    /// A slot is free.
    fn end_one(&self, running: &AtomicUsize) {
        running.fetch_sub(1, Ordering::AcqRel);
        if let Some(share) = self.share() {
            share.put_back(1);
        }
    }

    /// Whether hosts run some of its commands.
    pub fn has_hosts(&self) -> bool {
        self.registry.has_hosts()
    }

    pub fn identity(&self) -> Identity {
        *self.identity.read().unwrap()
    }

    pub fn rename(&self, identity: Identity) {
        *self.identity.write().unwrap() = identity;
    }

    /// How many more jobs may be claimed before some outcomes are delivered.
    pub fn room(&self) -> usize {
        let flushing_since = *self.flushing_since.lock().unwrap();
        if flushing_since.is_some_and(|since| since.elapsed() > LONGEST_FLUSH) {
            return 0;
        }
        MOST_UNDELIVERED.saturating_sub(self.undelivered.load(Ordering::Acquire))
    }

    /// Wait until there may be more room than before.
    pub async fn freed(&self) {
        match self.share() {
            None => self.freed.notified().await,
            Some(share) => tokio::select! {
                () = self.freed.notified() => {}
                () = share.freed() => {}
            },
        }
    }

    /// Outcomes that are not delivered yet.
    #[cfg(feature = "web")]
    pub fn undelivered(&self) -> usize {
        self.undelivered.load(Ordering::Acquire)
    }

    pub fn held_jobs(&self) -> Vec<HeldJob> {
        self.held.lock().unwrap().keys().copied().collect()
    }

    pub fn is_idle(&self) -> bool {
        self.held.lock().unwrap().is_empty()
    }

    /// Whether its executor is running and has not completed the job itself; in that case the job is no longer held in
    /// the database, but not lost either.
    pub fn is_running(&self, held: HeldJob) -> bool {
        let jobs = self.held.lock().unwrap();
        let Some(Hold {
            task: Some(task),
            attempt: Some(attempt),
            ..
        }) = jobs.get(&held)
        else {
            return false;
        };
        !task.is_finished() && attempt.settled().is_none()
    }

    /// Watch over the jobs that run.
    pub fn watch(&self) {
        if let Some(watch) = Watch::start(self.held.clone(), self.observed.clone()) {
            let _ = self.watch.set(watch);
        }
    }

    /// Jobs whose executors were told to stop at their time limit and do not.
    pub fn overdue(&self) -> Vec<JobId> {
        let overdue = overdue(&self.held.lock().unwrap());
        overdue.into_iter().map(|(job, _)| job.id).collect()
    }

    /// Take responsibility for these jobs.
    pub fn take(&self, jobs: impl Iterator<Item = HeldJob>) {
        let mut all = self.held.lock().unwrap();
        all.extend(jobs.map(|held| (held, Hold::default())));
        drop(all);
        if let Some(watch) = self.watch.get() {
            watch.wake();
        }
    }

    /// Held while jobs that were claimed together are started, so that a batch executor gets them together. None if
    /// there is no such executor.
    pub fn burst(&self) -> Option<Arc<Burst>> {
        self.registry.has_batches().then(Arc::default)
    }

    /// Run a claimed job. Its slot is free when its executor has ended.
    pub fn start(self: &Arc<Self>, job: ClaimedJob, running: Arc<AtomicUsize>, burst: Option<Arc<Burst>>) {
        let held = job.held;
        let slot = Slot {
            running,
            crew: self.clone(),
        };
        let Some(cancellation) = self.held.lock().unwrap().get(&held).map(|h| h.cancellation.clone()) else {
            return;
        };
        let context = self.context(job, cancellation);
        let attempt = context.inner.attempt.clone();
        let is_part_of_burst = burst.is_some();
        attempt.join_burst(burst);
        let job = context.job();
        let due = job.created_at.max(job.run_at);
        let run = self.observed.tallies.start(&job.queue, &job.command, due);
        // locked until the task is recorded, so that it cannot end before that
        let mut all = self.held.lock().unwrap();
        let task = tokio::spawn(self.clone().run_to_the_end(context, slot, is_part_of_burst, run));
        if let Some(hold) = all.get_mut(&held) {
            hold.task = Some(task.abort_handle());
            hold.attempt = Some(attempt);
        }
    }

    /// Run a job, free its slot, and have its outcome delivered.
    async fn run_to_the_end(self: Arc<Self>, context: Context, slot: Slot, is_part_of_burst: bool, run: Run) {
        let started = Instant::now();
        let (job, shared) = (context.job(), context.inner.attempt.clone());
        let (held, address) = (job.held, job.address);
        let (command, queue, attempt) = (job.command.clone(), job.queue.clone(), job.attempt);
        let (span, ids) = self.trace(job);
        let mut way = std::pin::pin!(self.run_one(context).instrument(span.clone()));
        let mut outcome = Poll::Pending;
        if is_part_of_burst {
            outcome = poll_fn(|task| Poll::Ready(way.as_mut().poll(task))).await;
            shared.leave_burst();
        }
        let outcome = match outcome {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => way.await,
        };
        trace::ended(&span, &outcome);
        drop(slot);
        let ending = self.ended(held, outcome, &shared, |how| End {
            held,
            address: address.filter(|_| !shared.moved.load(Ordering::Acquire)),
            how,
            command,
            queue,
            attempt,
            took: started.elapsed(),
            trace: ids,
        });
        run.end(ending);
    }

    /// The span of a job: the logs of its executor carry the job and its trace.
    fn trace(&self, job: &ClaimedJob) -> (Span, Ids) {
        let span = tracing::info_span!(
            "job",
            job = job.held.id,
            claim = job.held.claim,
            attempt = job.attempt,
            command = job.command,
            queue = job.queue,
            worker = self.identity().worker,
            database = self.database().map(|name| &**name),
            traceparent = job.traceparent(),
            trace_id = field::Empty,
            span_id = field::Empty
        );
        let ids = Ids::of(&span, job.traceparent());
        span.record("trace_id", field::display(ids.trace_id()));
        span.record("span_id", field::display(ids.span_id()));
        tracing::debug!(
            event = "start",
            job = job.held.id,
            claim = job.held.claim,
            attempt = job.attempt,
            command = job.command,
            queue = job.queue,
            trace_id = %ids.trace_id(),
            span_id = %ids.span_id()
        );
        (span, ids)
    }

    async fn run_one(&self, context: Context) -> Outcome {
        let job = context.job();
        if job.steps.is_some() {
            let time_limit = job.timeout;
            // boxed: otherwise every job would need the memory of a chain
            return limited(
                Box::pin(chain::run(&self.registry, &self.observed.tallies, context.clone())),
                time_limit,
                &context,
            )
            .await;
        }
        let way = self.registry.way_to(&job.command);
        let (Some(way), Some(executor)) = (way, self.registry.executor_for(&job.command)) else {
            let failure = Failure::new(format!("no executor is registered for {:?}", job.command));
            return Outcome::Fail(failure.code("unknown_command"));
        };
        let own = job.timeout.or_else(|| executor.default_timeout());
        limited(way.run(context.clone()), own.or(job.default_timeout), &context).await
    }

    fn context(&self, job: ClaimedJob, cancellation: CancellationToken) -> Context {
        Context::new(Inner {
            job,
            identity: self.identity(),
            pool: self.pools.executors.clone(),
            steps: self.pools.steps.clone(),
            cancellation,
            workspaces: self.workspaces.clone(),
            attempt: Arc::default(),
            position: None,
            rehearsal: None,
            outputs: None,
            database: self.database().cloned(),
        })
    }

    fn ended(&self, held: HeldJob, outcome: Outcome, attempt: &Attempt, end: impl FnOnce(How) -> End) -> Ending {
        let stopping = match self.held.lock().unwrap().get_mut(&held) {
            None => return Ending::Fenced, // its claim was lost
            Some(hold) => {
                hold.task = None;
                hold.stopping
            }
        };
        let how = match outcome {
            Outcome::Settled => match attempt.settled() {
                Some(settled) if !attempt.is_promised() => {
                    self.let_go(held);
                    return already(settled, end);
                }
                settled => How::Promised(settled.and_then(outcome_of)),
            },
            Outcome::Fail(_) | Outcome::Cancelled(_) | Outcome::Snooze(_) if stopping => {
                self.interrupted.fetch_add(1, Ordering::AcqRel);
                How::GivenBack
            }
            Outcome::Fail(failure) => match attempt.shortage().or(failure.shortage) {
                Some(shortage) => {
                    self.note_shortage(shortage);
                    How::GivenBack
                }
                None if attempt.is_blameless() => How::GivenBack,
                None => How::Outcome(Outcome::Fail(failure)),
            },
            outcome => How::Outcome(outcome),
        };
        let ending = ending(&how);
        self.deliver(end(how));
        ending
    }

    /// Claim fewer jobs for a while. Reported once until the shortage is over.
    fn note_shortage(&self, shortage: Shortage) {
        let running = self.held.lock().unwrap().len();
        let throttle = &self.observed.health.throttle;
        if throttle.hit(shortage, running, Instant::now()) {
            tracing::warn!(
                event = "shortage",
                short_of = ?shortage,
                "{}; jobs are given back and fewer are claimed until the shortage is over",
                shortage.words()
            );
        }
    }

    pub fn deliver(&self, end: End) {
        self.undelivered.fetch_add(1, Ordering::AcqRel);
        let _ = self.ends.send(end);
    }

    /// Give back a job that was claimed and never started.
    pub fn hand_back(&self, held: HeldJob, running: &AtomicUsize) {
        self.end_one(running);
        self.deliver(End::given_back(held));
    }

    /// Fail a claimed job that cannot be decoded and can therefore never run.
    pub fn refuse(&self, job: Undecodable, running: &AtomicUsize) {
        self.end_one(running);
        let run = self.observed.tallies.start(&job.queue, &job.command, SystemTime::now());
        run.end(Ending::Failed);
        let failure = Failure::new(format!(
            "{}\nhint: Fix the application that enqueues such rows, then enqueue the job again.",
            job.reason
        ));
        self.deliver(End {
            held: job.held,
            address: None,
            how: How::Outcome(Outcome::Fail(failure.code("undecodable").not_retryable())),
            command: job.command,
            queue: job.queue,
            attempt: job.attempt,
            took: Duration::ZERO,
            trace: Ids::default(),
        });
    }

    /// A flush starts.
    pub fn flushing(&self) {
        *self.flushing_since.lock().unwrap() = Some(Instant::now());
    }

    /// The outcomes of these jobs were delivered, or never will be.
    pub fn delivered(&self, jobs: impl Iterator<Item = HeldJob>) {
        *self.flushing_since.lock().unwrap() = None;
        {
            let mut all = self.held.lock().unwrap();
            for held in jobs {
                self.undelivered.fetch_sub(1, Ordering::AcqRel);
                all.remove(&held);
            }
        }
        self.let_go.notify_waiters();
        self.freed.notify_one();
    }

    fn let_go(&self, held: HeldJob) {
        self.held.lock().unwrap().remove(&held);
        self.let_go.notify_waiters();
    }

    /// The claim of a running job was lost: tell its executor, and stop it if it does not react.
    pub fn fence(&self, held: HeldJob, why: Stop, grace: Duration) {
        let Some(hold) = self.held.lock().unwrap().remove(&held) else {
            return;
        };
        tracing::warn!(
            event = "fenced",
            job = held.id,
            claim = held.claim,
            "the claim was lost; stopping its executor"
        );
        hold.stop(why);
        if let Some(task) = hold.task {
            tokio::spawn(async move {
                tokio::time::sleep(grace).await;
                task.abort();
            });
        }
        self.let_go.notify_waiters();
    }

    /// Tell every running executor that the worker is stopping.
    pub fn cancel_all(&self) {
        for hold in self.held.lock().unwrap().values_mut() {
            hold.stopping = true;
            hold.stop(Stop::Shutdown);
        }
    }

    /// Stop every running executor and give its job back. Returns the total number of interrupted jobs.
    pub fn abort_all(&self) -> usize {
        let running: Vec<HeldJob> = {
            let mut held = self.held.lock().unwrap();
            held.iter_mut()
                .filter_map(|(job, hold)| {
                    let task = hold.task.take()?;
                    let still_runs = !task.is_finished();
                    task.abort();
                    still_runs.then_some(*job)
                })
                .collect()
        };
        for held in &running {
            self.deliver(End::given_back(*held));
        }
        self.interrupted.fetch_add(running.len(), Ordering::AcqRel) + running.len()
    }

    /// Wait until this worker is responsible for no jobs.
    pub async fn idle(&self) {
        loop {
            let changed = self.let_go.notified();
            if self.is_idle() {
                return;
            }
            changed.await;
        }
    }
}

/// Those of these jobs whose executors were told to stop at their time limit and do not, with the limit.
pub fn overdue(held: &HashMap<HeldJob, Hold>) -> Vec<(HeldJob, Duration)> {
    let running = held
        .iter()
        .filter_map(|(job, hold)| Some((*job, hold.attempt.as_ref()?, hold.task.as_ref()?)));
    let mut overdue: Vec<_> = running
        .filter(|(_, _, task)| !task.is_finished())
        .filter_map(|(job, attempt, _)| Some((job, attempt.passed_limit(OVERDUE_GRACE)?)))
        .collect();
    overdue.sort_by_key(|(job, _)| job.id);
    overdue
}

/// Decrements the count of its lane when dropped, even if the task is aborted.
struct Slot {
    running: Arc<AtomicUsize>,
    crew: Arc<Crew>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.crew.end_one(&self.running);
        self.crew.freed.notify_one();
    }
}

/// Run until it ends, panics or reaches its time limit. At the limit it is asked to stop, and dropped if it does not.
pub(crate) async fn limited(
    execution: impl Future<Output = Outcome>,
    limit: Option<Duration>,
    context: &Context,
) -> Outcome {
    let attempt = &context.inner.attempt;
    if limit.is_some() {
        attempt.note_limit(limit);
    }
    let _limited = limit.map(|limit| attempt.limit_to(limit));
    let mut caught = std::pin::pin!(panics::caught(execution));
    let outcome = match limit {
        None => caught.await,
        Some(limit) => match in_time(&mut caught, limit, attempt).await {
            Some(outcome) => outcome,
            None => {
                attempt.note_stop(Stop::Timeout);
                context.cancellation().cancel();
                let last_outcome = tokio::time::timeout(TIMEOUT_GRACE, caught).await;
                return timed_out(limit, last_outcome.ok().and_then(Result::ok));
            }
        },
    };
    outcome.unwrap_or_else(Outcome::Fail)
}

/// What it returns within this time, without the time it waits for its executor; none if it takes longer.
async fn in_time<T>(
    execution: &mut (impl Future<Output = T> + Unpin),
    limit: Duration,
    attempt: &Attempt,
) -> Option<T> {
    let (started, waited) = (Instant::now(), attempt.waited());
    let mut left = limit;
    loop {
        if let Ok(outcome) = tokio::time::timeout(left, &mut *execution).await {
            return Some(outcome);
        }
        let ran = started.elapsed().saturating_sub(attempt.waited() - waited);
        left = limit.saturating_sub(ran);
        if left.is_zero() {
            return None;
        }
    }
}

/// The job was completed, or its chain continues elsewhere.
fn already(settled: Settled, end: impl FnOnce(How) -> End) -> Ending {
    let Some(outcome) = outcome_of(settled) else {
        return Ending::Fenced;
    };
    let how = How::Outcome(outcome);
    let ending = ending(&how);
    completer::log(&end(how), None);
    ending
}

/// None if another worker has the job now.
fn outcome_of(settled: Settled) -> Option<Outcome> {
    match settled {
        Settled::Lost => None,
        Settled::Waiting => Some(Outcome::Wait {
            token: None,
            at_most: None,
        }),
        Settled::Retried(_) => Some(Outcome::Fail(Failure::of_condition())),
        Settled::Completed => Some(Outcome::Complete(None)),
    }
}

fn ending(how: &How) -> Ending {
    let outcome = match how {
        How::GivenBack => return Ending::GivenBack,
        How::Promised(None) => return Ending::Completed,
        How::Outcome(outcome) | How::Promised(Some(outcome)) => outcome,
    };
    match outcome {
        Outcome::Complete(_) | Outcome::Skip(_) | Outcome::Settled => Ending::Completed,
        Outcome::Fail(failure) if failure.code.as_deref() == Some("timeout") => Ending::TimedOut,
        Outcome::Fail(_) => Ending::Failed,
        Outcome::Snooze(_) => Ending::Snoozed,
        Outcome::Wait { .. } => Ending::Waiting,
        Outcome::Cancelled(_) => Ending::Cancelled,
    }
}

/// The attempt has timed out; a failure that the executor returned when it was told to stop may explain why.
fn timed_out(limit: Duration, last_outcome: Option<Outcome>) -> Outcome {
    let mut message = format!("not finished within {}", humantime::format_duration(limit));
    if let Some(Outcome::Settled) = last_outcome {
        return Outcome::Settled;
    }
    if let Some(Outcome::Fail(failure)) = last_outcome {
        message.push('\n');
        message.push_str(&failure.message);
    }
    Outcome::Fail(Failure::new(message).code("timeout"))
}
