//! The registry: which executor carries out which command, and which stages are around it.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::execute::context::Context;
use crate::execute::executor::{Execution, Executor, Failure, IntoOutcome, Outcome};
use crate::execute::stage::{self, Next, Stage};

/// Which executor carries out which command.
#[derive(Clone, Default)]
pub struct Registry {
    executors: BTreeMap<String, Arc<dyn Executor>>,
    /// Commands that were registered more than once.
    ambiguous: BTreeSet<String>,
    /// Stages and the names they are around, outermost first.
    stages: Vec<(String, Arc<dyn Stage>)>,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Registry::default()
    }

    /// Carry out `command` with an async closure over the typed payload.
    ///
    /// A payload that does not deserialise fails the job at once, with the message and the path of the field.
    ///
    /// ```
    /// use bugle::{Context, Failure, Registry};
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Mail { to: String }
    ///
    /// let registry = Registry::new().on("send_mail", async |_context: Context, mail: Mail| {
    ///     if !mail.to.contains('@') {
    ///         return Err(Failure::new("no such address").not_retryable());
    ///     }
    ///     Ok(serde_json::json!({ "sent": true }))
    /// });
    /// assert_eq!(registry.commands(), ["send_mail"]);
    /// ```
    pub fn on<P, R, F, Fut>(self, command: &str, run: F) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        R: IntoOutcome + 'static,
        F: Fn(Context, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, Failure>> + Send + 'static,
    {
        self.register(
            command,
            Typed {
                run: Arc::new(run),
                payload: std::marker::PhantomData::<fn(P)>,
            },
        )
    }

    /// Carry out `command` with this executor.
    ///
    /// A command has one executor: a worker does not start with a registry in which a command was registered twice.
    pub fn register(self, command: &str, executor: impl Executor) -> Self {
        self.register_arc(command, Arc::new(executor))
    }

    /// Carry out `command` with this executor, which may be shared.
    pub fn register_arc(mut self, command: &str, executor: Arc<dyn Executor>) -> Self {
        if self.executors.insert(command.to_string(), executor).is_some() {
            self.ambiguous.insert(command.to_string());
        }
        self
    }

    /// Refuse a registry in which a command has more than one executor.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.ambiguous.is_empty() {
            return Ok(());
        }
        let commands: Vec<String> = self.ambiguous.iter().map(|name| format!("{name:?}")).collect();
        Err(Error::new(format!(
            "more than one executor is registered for {}",
            commands.join(", ")
        ))
        .hint("Register each command once, or give one of them another name."))
    }

    /// The commands that have an executor, in order.
    pub fn commands(&self) -> Vec<String> {
        self.executors.keys().cloned().collect()
    }

    /// Whether nothing is registered.
    pub fn is_empty(&self) -> bool {
        self.executors.is_empty()
    }

    /// Put a stage around every command whose name fits `pattern` (`mail.*`, `*`). Stages are entered in the order in
    /// which they were added and left in the reverse one, whenever their commands are registered.
    pub fn stage(mut self, pattern: &str, stage: impl Stage) -> Self {
        self.stages.push((pattern.to_string(), Arc::new(stage)));
        self
    }

    /// The executor of a command, with the stages around it.
    pub(crate) fn way_to(&self, command: &str) -> Option<Next> {
        let around = self.stages.iter().filter(|(pattern, _)| stage::fits(pattern, command));
        let stages = around.map(|(_, stage)| stage.clone()).collect();
        Some(Next::new(stages, self.executor_for(command)?))
    }

    pub(crate) fn executor_for(&self, command: &str) -> Option<Arc<dyn Executor>> {
        self.executors.get(command).cloned()
    }
}

struct Typed<P, F> {
    run: Arc<F>,
    payload: std::marker::PhantomData<fn(P)>,
}

impl<P, R, F, Fut> Executor for Typed<P, F>
where
    P: DeserializeOwned + Send + 'static,
    R: IntoOutcome + 'static,
    F: Fn(Context, P) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, Failure>> + Send + 'static,
{
    fn execute(&self, context: Context) -> Execution {
        let run = self.run.clone();
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
