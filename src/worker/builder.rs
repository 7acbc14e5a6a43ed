//! A worker, put together in one expression.

use std::future::Future;

use serde::de::DeserializeOwned;

use crate::client::job::Job;
use crate::config::{CommandConfig, HostConfig, Settings};
use crate::error::Result;
use crate::execute::batch::Batch;
use crate::execute::context::Context;
use crate::execute::executor::{Failure, IntoOutcome};
use crate::execute::registry::Registry;
use crate::execute::stage::Stage;
use crate::worker::run::Worker;
use crate::worker::service::Drained;
use crate::worker::shutdown::Shutdown;

/// Builds a [`Worker`]: its settings and its [`Registry`] in one expression.
///
/// ```no_run
/// use bugle::{Failure, Job, Settings, Shutdown, Worker};
/// use serde::{Deserialize, Serialize};
/// use std::time::Duration;
///
/// /// What all executors share.
/// struct App {
///     sender: String,
/// }
/// type Context = bugle::Context<App>;
///
/// #[derive(Serialize, Deserialize)]
/// struct SendMail {
///     to: String,
/// }
///
/// impl Job for SendMail {
///     const COMMAND: &'static str = "send_mail";
/// }
///
/// async fn send_mail(context: Context, mail: SendMail) -> Result<(), Failure> {
///     println!("from {} to {}", context.state().sender, mail.to);
///     Ok(())
/// }
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let settings = Settings::new(&std::env::var("DATABASE_URL")?).drain(Duration::from_secs(10));
/// Worker::builder(settings)
///     .queue("default", 8)
///     .queue("mail", 2)
///     .state(App { sender: "shop@example.org".into() })
///     .job(send_mail)
///     .run(Shutdown::on_signals()?)
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct WorkerBuilder<S = ()> {
    settings: Settings,
    registry: Registry<S>,
}

impl WorkerBuilder {
    pub(crate) fn new(settings: Settings) -> Self {
        WorkerBuilder {
            settings,
            registry: Registry::new(),
        }
    }

    /// What the executors share: see [`Registry::with_state`]. Executors that are added from here on take a
    /// [`Context`] with this state.
    pub fn state<S: Send + Sync + 'static>(self, state: S) -> WorkerBuilder<S> {
        WorkerBuilder {
            settings: self.settings,
            registry: Registry::with_state(state).merge(self.registry),
        }
    }
}

impl<S: Send + Sync + 'static> WorkerBuilder<S> {
    /// Serve this queue, and run at most this many of its jobs at once. Without any, the queue `default` is served.
    pub fn queue(mut self, queue: &str, slots: u32) -> Self {
        self.settings = self.settings.queue(queue, slots);
        self
    }

    /// Run this command without any code: see [`CommandConfig`].
    pub fn command(mut self, name: &str, command: impl Into<CommandConfig>) -> Self {
        self.settings = self.settings.command(name, command);
        self
    }

    /// Start this host with the worker: see [`HostConfig`].
    pub fn host(mut self, name: &str, host: HostConfig) -> Self {
        self.settings = self.settings.host(name, host);
        self
    }

    /// Run jobs of type `J` with an async closure or function: see [`Registry::job`].
    pub fn job<J, R, F, Fut>(mut self, run: F) -> Self
    where
        J: Job + Send + 'static,
        R: IntoOutcome + 'static,
        F: Fn(Context<S>, J) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, Failure>> + Send + 'static,
    {
        self.registry = self.registry.job(run);
        self
    }

    /// Run `command` with an async closure or function: see [`Registry::on`].
    pub fn on<P, R, F, Fut>(mut self, command: &str, run: F) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        R: IntoOutcome + 'static,
        F: Fn(Context<S>, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, Failure>> + Send + 'static,
    {
        self.registry = self.registry.on(command, run);
        self
    }

    /// Run up to `most` jobs of type `J` in one call: see [`Registry::job_many`].
    pub fn job_many<J, F, Fut>(mut self, most: usize, run: F) -> Self
    where
        J: Job + Send + 'static,
        F: Fn(Batch<J, S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.registry = self.registry.job_many(most, run);
        self
    }

    /// Run up to `most` jobs of `command` in one call: see [`Registry::on_many`].
    pub fn on_many<P, F, Fut>(mut self, command: &str, most: usize, run: F) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        F: Fn(Batch<P, S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.registry = self.registry.on_many(command, most, run);
        self
    }

    /// Put a stage around commands: see [`Registry::stage`].
    pub fn stage(mut self, pattern: &str, stage: impl Stage) -> Self {
        self.registry = self.registry.stage(pattern, stage);
        self
    }

    /// Add the executors and stages of a registry: see [`Registry::merge`].
    pub fn registry<T>(mut self, registry: Registry<T>) -> Self {
        self.registry = self.registry.merge(registry);
        self
    }

    /// The worker, which starts with [`Worker::run`].
    pub fn build(self) -> Worker {
        Worker::new(self.settings, self.registry)
    }

    /// Build the worker and serve until `shutdown` is requested.
    ///
    /// # Errors
    /// As [`Worker::run`].
    pub async fn run(self, shutdown: Shutdown) -> Result<Drained> {
        self.build().run(shutdown).await
    }
}
