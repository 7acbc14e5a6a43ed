//! The registry: which executor runs which command, and which stages are around it.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::client::job::Job;
use crate::error::Error;
use crate::execute::batch::{Batch, BatchExecutor, GatheringExecutor, TypedMany};
use crate::execute::context::Context;
use crate::execute::executor::{Execution, Executor, Failure, IntoOutcome, Outcome};
use crate::execute::stage::{self, Next, Stage};
use crate::host::Hosts;

/// Which executor runs which command.
///
/// An executor is an async closure or function that takes a [`Context`] and the job's payload, as any type that can be
/// deserialized, and returns `Result<T, Failure>`. `T` is anything that serializes, and becomes the job's result; or it
/// is an [`Outcome`].
///
/// ```
/// use bugle::{Context, Failure, Registry};
///
/// let registry = Registry::new()
///     .on("add", async |_: Context, (a, b): (i64, i64)| Ok(a + b))
///     .on("fail", async |_: Context, why: String| Err::<(), _>(Failure::new(why).not_retryable()));
/// assert_eq!(registry.commands(), ["add", "fail"]);
/// ```
pub struct Registry<S = ()> {
    /// What its executors share.
    state: Arc<S>,
    executors: BTreeMap<String, Arc<dyn Executor>>,
    /// Those that take many jobs in one call. In `executors`, their jobs gather.
    many: BTreeMap<String, Arc<dyn BatchExecutor>>,
    /// Commands that were registered more than once.
    ambiguous: BTreeSet<String>,
    /// Stages and the names they are around, outermost first.
    stages: Vec<(String, Arc<dyn Stage>)>,
    /// Which run further commands.
    hosts: Option<Hosts>,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Registry::with_state(())
    }
}

impl<S: Send + Sync + 'static> Registry<S> {
    /// An empty registry whose executors share `state`: a pool, a client of a mail server, the configuration. They
    /// reach it with [`Context::state`]. It needs no `Arc` of its own.
    ///
    /// ```
    /// use bugle::{Failure, Registry};
    ///
    /// struct App {
    ///     sender: String,
    /// }
    /// type Context = bugle::Context<App>;
    ///
    /// async fn send_mail(context: Context, to: String) -> Result<String, Failure> {
    ///     Ok(format!("from {} to {to}", context.state().sender))
    /// }
    ///
    /// let registry = Registry::with_state(App { sender: "shop@example.org".into() }).on("send_mail", send_mail);
    /// ```
    pub fn with_state(state: S) -> Self {
        Registry {
            state: Arc::new(state),
            executors: BTreeMap::new(),
            many: BTreeMap::new(),
            ambiguous: BTreeSet::new(),
            stages: Vec::new(),
            hosts: None,
        }
    }

    /// Run jobs of type `J` with an async closure or function. The command is [`J::COMMAND`](Job::COMMAND).
    ///
    /// A payload that does not deserialize fails the job at once, with the message and the path of the field.
    ///
    /// ```
    /// use bugle::{Context, Failure, Job, Registry};
    ///
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct SendMail {
    ///     to: String,
    /// }
    ///
    /// impl Job for SendMail {
    ///     const COMMAND: &'static str = "send_mail";
    /// }
    ///
    /// let registry = Registry::new().job(async |_: Context, mail: SendMail| {
    ///     if !mail.to.contains('@') {
    ///         return Err(Failure::new("no such address").code("bad_address").not_retryable());
    ///     }
    ///     Ok(serde_json::json!({ "sent_to": mail.to }))
    /// });
    /// ```
    pub fn job<J, R, F, Fut>(self, run: F) -> Self
    where
        J: Job + Send + 'static,
        R: IntoOutcome + 'static,
        F: Fn(Context<S>, J) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, Failure>> + Send + 'static,
    {
        self.on(J::COMMAND, run)
    }

    /// Run `command` with an async closure or function. Its second argument is the payload.
    ///
    /// A payload that does not deserialize fails the job at once, with the message and the path of the field.
    ///
    /// ```
    /// use bugle::{Context, Registry};
    ///
    /// let registry = Registry::new().on("add", async |_: Context, (a, b): (i64, i64)| Ok(a + b));
    /// assert_eq!(registry.commands(), ["add"]);
    /// ```
    pub fn on<P, R, F, Fut>(self, command: &str, run: F) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        R: IntoOutcome + 'static,
        F: Fn(Context<S>, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, Failure>> + Send + 'static,
    {
        let state = self.state.clone();
        self.register(
            command,
            Typed {
                run: Arc::new(run),
                state,
                payload: PhantomData::<fn(P)>,
            },
        )
    }

    /// Run up to `most` jobs of type `J` in one call, with an async closure or function: see
    /// [`on_many`](Registry::on_many).
    pub fn job_many<J, F, Fut>(self, most: usize, run: F) -> Self
    where
        J: Job + Send + 'static,
        F: Fn(Batch<J, S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.on_many(J::COMMAND, most, run)
    }

    /// Run up to `most` jobs of `command` in one call, with an async closure or function that takes a [`Batch`] and
    /// reports an outcome for each of its jobs.
    ///
    /// Each job keeps its own time limit, cancellation, retries and claim; only the call is shared. A call gets the
    /// jobs that are there, and waits for no more: a single job runs at once. If it returns an error or panics, the
    /// jobs without an outcome fail with it.
    ///
    /// ```
    /// use bugle::{Batch, Failure, Registry};
    /// # async fn bulk_index(_: Vec<&String>) -> std::io::Result<Vec<Result<i64, String>>> { Ok(Vec::new()) }
    ///
    /// async fn index(batch: Batch<String>) -> Result<(), Failure> {
    ///     let answers = bulk_index(batch.payloads().collect()).await?;
    ///     for (job, answer) in batch.into_iter().zip(answers) {
    ///         match answer {
    ///             Ok(version) => job.complete(version),
    ///             Err(why) => job.fail(Failure::new(why).not_retryable()),
    ///         }
    ///     }
    ///     Ok(())
    /// }
    ///
    /// let registry = Registry::new().on_many("index", 500, index);
    /// assert_eq!(registry.commands(), ["index"]);
    /// ```
    ///
    /// # Panics
    /// If `most` is 0.
    pub fn on_many<P, F, Fut>(self, command: &str, most: usize, run: F) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        F: Fn(Batch<P, S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        assert!(most > 0, "a call of {command:?} must take at least one job");
        let state = self.state.clone();
        self.register_many(
            command,
            TypedMany {
                most,
                run: Arc::new(run),
                state,
                payload: PhantomData::<fn(P)>,
            },
        )
    }

    /// Run `command` with this batch executor.
    pub fn register_many(self, command: &str, executor: impl BatchExecutor) -> Self {
        self.register_many_arc(command, Arc::new(executor))
    }

    fn register_many_arc(mut self, command: &str, executor: Arc<dyn BatchExecutor>) -> Self {
        self.many.insert(command.to_string(), executor.clone());
        self.register(command, GatheringExecutor::new(command, executor))
    }

    /// Run `command` with this executor.
    ///
    /// A command has one executor: a worker does not start with a registry in which a command was registered twice.
    pub fn register(self, command: &str, executor: impl Executor) -> Self {
        self.register_arc(command, Arc::new(executor))
    }

    /// Run `command` with this executor, which may be shared.
    pub fn register_arc(mut self, command: &str, executor: Arc<dyn Executor>) -> Self {
        if self.executors.insert(command.to_string(), executor).is_some() {
            self.ambiguous.insert(command.to_string());
        }
        self
    }

    /// Put a stage around every command whose name matches `pattern` (`mail.*`, `*`). Stages are entered in the order
    /// in which they were added, and left in reverse order, whenever their commands are registered.
    pub fn stage(mut self, pattern: &str, stage: impl Stage) -> Self {
        self.stages.push((pattern.to_string(), Arc::new(stage)));
        self
    }

    /// Add the executors and stages of another registry, which may have another state. Its stages come after those
    /// that are here, and are around all commands that match their patterns.
    pub fn merge<T>(mut self, other: Registry<T>) -> Self {
        for (command, executor) in other.executors {
            // jobs gather by worker: those of a registry that two workers share are not mixed
            self = match other.many.get(&command) {
                Some(executor) => self.register_many_arc(&command, executor.clone()),
                None => self.register_arc(&command, executor),
            };
        }
        self.ambiguous.extend(other.ambiguous);
        self.stages.extend(other.stages);
        self
    }

    /// The commands that have an executor, in alphabetical order.
    pub fn commands(&self) -> Vec<String> {
        self.executors.keys().cloned().collect()
    }

    /// Whether no command is registered.
    pub fn is_empty(&self) -> bool {
        self.executors.is_empty()
    }
}

impl Registry {
    /// Reject a registry in which a command has more than one executor.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.ambiguous.is_empty() {
            return Ok(());
        }
        let commands: Vec<String> = self.ambiguous.iter().map(|name| format!("{name:?}")).collect();
        Err(Error::new(format!(
            "more than one executor is registered for {}",
            commands.join(", ")
        ))
        .with_hint("Register each command once, or give one of them another name."))
    }

    /// Run the commands that these announce, too.
    pub(crate) fn with_hosts(self, hosts: Option<Hosts>) -> Self {
        Registry { hosts, ..self }
    }

    pub(crate) fn has_hosts(&self) -> bool {
        self.hosts.is_some()
    }

    /// The executor of a command, with the stages around it.
    pub(crate) fn way_to(&self, command: &str) -> Option<Next> {
        let around = self.stages.iter().filter(|(pattern, _)| stage::fits(pattern, command));
        let stages = around.map(|(_, stage)| stage.clone()).collect();
        Some(Next::new(stages, self.executor_for(command)?))
    }

    /// Whether an executor takes many jobs in one call.
    pub(crate) fn has_batches(&self) -> bool {
        !self.many.is_empty()
    }

    pub(crate) fn executor_for(&self, command: &str) -> Option<Arc<dyn Executor>> {
        let own = self.executors.get(command).cloned();
        own.or_else(|| self.hosts.as_ref()?.executor_for(command))
    }
}

impl Default for Registry {
    fn default() -> Self {
        Registry::new()
    }
}

impl<S> Clone for Registry<S> {
    fn clone(&self) -> Self {
        Registry {
            state: self.state.clone(),
            executors: self.executors.clone(),
            many: self.many.clone(),
            ambiguous: self.ambiguous.clone(),
            stages: self.stages.clone(),
            hosts: self.hosts.clone(),
        }
    }
}

impl<S> std::fmt::Debug for Registry<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let commands: Vec<&String> = self.executors.keys().collect();
        f.debug_struct("Registry")
            .field("commands", &commands)
            .finish_non_exhaustive()
    }
}

struct Typed<S, P, F> {
    run: Arc<F>,
    state: Arc<S>,
    payload: PhantomData<fn(P)>,
}

impl<S, P, R, F, Fut> Executor for Typed<S, P, F>
where
    S: Send + Sync + 'static,
    P: DeserializeOwned + Send + 'static,
    R: IntoOutcome + 'static,
    F: Fn(Context<S>, P) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, Failure>> + Send + 'static,
{
    fn execute(&self, context: Context) -> Execution {
        let (run, context) = (self.run.clone(), context.with_state(self.state.clone()));
        Box::pin(async move {
            let payload = match context.payload_as::<P>() {
                Ok(payload) => payload,
                Err(failure) => return Outcome::Fail(failure),
            };
            match run(context, payload).await {
                Ok(result) => result.into_outcome(),
                Err(failure) => Outcome::Fail(failure),
            }
        })
    }
}
