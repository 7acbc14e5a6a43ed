//! The settings of a worker.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::{CommandConfig, HostConfig};
use crate::error::{Error, Result};
use crate::execute::workspace::Workspaces;
use crate::observe::check_address;

/// How a worker connects, what it serves and how it behaves.
///
/// ```
/// use bugle::Settings;
/// use std::time::Duration;
///
/// let settings = Settings::new("postgres://localhost/shop")
///     .name("mailer")
///     .queue("default", 8)
///     .queue("mail", 2)
///     .drain(Duration::from_secs(10));
/// assert_eq!(settings.queues.len(), 2);
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct Settings {
    /// The database.
    pub database_url: String,
    /// Where that URL comes from, for errors: a flag, a variable or a file.
    pub database_url_from: String,
    /// The name of the worker.
    pub name: String,
    /// The queues to serve, each with its number of slots (jobs that run at once). If empty: `default` with 4.
    pub queues: Vec<(String, u32)>,
    /// The commands that need no code.
    pub commands: BTreeMap<String, CommandConfig>,
    /// The hosts: long-lived processes that run jobs.
    pub hosts: BTreeMap<String, HostConfig>,
    /// How long running jobs may continue after the worker was asked to stop.
    pub drain: Duration,
    /// How often to poll for jobs without a notification; zero for never.
    pub safety_poll: Duration,
    /// The parent directory of the working directories of jobs.
    pub workdir: PathBuf,
    /// Whether to install or upgrade the schema at startup.
    pub migrate: bool,
    /// The size of the connection pool for executors.
    pub pool_size: usize,
    /// Whether to exit when there are no more jobs to run.
    pub until_empty: bool,
    /// The address for metrics, health checks and the JSON API.
    pub listen: Option<SocketAddr>,
    /// Bearer token required for writes.
    pub token: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            database_url: String::new(),
            database_url_from: "the connection string".into(),
            name: "worker".into(),
            queues: Vec::new(),
            commands: BTreeMap::new(),
            hosts: BTreeMap::new(),
            drain: Duration::from_secs(30),
            safety_poll: Duration::from_secs(10),
            workdir: Workspaces::default_base(),
            migrate: false,
            pool_size: 8,
            until_empty: false,
            listen: None,
            token: None,
        }
    }
}

impl Settings {
    /// # Errors
    /// If a value is out of its range.
    pub(crate) fn check(&self) -> Result<()> {
        check_name("worker", &self.name, 200)?;
        for (place, (queue, slots)) in self.queues.iter().enumerate() {
            check_queue(queue, *slots)?;
            if self.queues[..place].iter().any(|(other, _)| other == queue) {
                return Err(Error::new(format!("queue {queue:?} is named twice"))
                    .hint("Name each queue once, with all of its slots."));
            }
        }
        if let Some(address) = self.listen {
            check_address(address, self.token.is_some())?;
        }
        if !(1..=1000).contains(&self.pool_size) {
            return Err(Error::new(format!(
                "pool_size is {}; it must be between 1 and 1000",
                self.pool_size
            )));
        }
        if !self.safety_poll.is_zero() && self.safety_poll < Duration::from_millis(100) {
            return Err(Error::new("safety_poll must be 0s or at least 100ms").hint(
                "Workers are notified of new jobs; this poll is a fallback for lost notifications. 0s disables it.",
            ));
        }
        Ok(())
    }
}

/// The builder: each takes the settings and returns them with one of them changed.
impl Settings {
    /// The defaults, for the database at `url`: a connection string as psql takes it.
    pub fn new(url: impl Into<String>) -> Self {
        Settings {
            database_url: url.into(),
            ..Settings::default()
        }
    }

    /// What this worker is called in `bugle.workers`, logs and metrics.
    pub fn name(mut self, name: &str) -> Self {
        self.name = name.to_string();
        self
    }

    /// Serve this queue, and run at most this many of its jobs at once. Without any, the queue `default` is served.
    pub fn queue(mut self, queue: &str, slots: u32) -> Self {
        self.queues.push((queue.to_string(), slots));
        self
    }

    /// The commands it can run without any code, as `Config` reads them from a file. Their executors are registered
    /// by [`builtin::register`](crate::builtin::register).
    pub fn commands(mut self, commands: BTreeMap<String, CommandConfig>) -> Self {
        self.commands = commands;
        self
    }

    /// The hosts to start with the worker, as `Config` reads them from a file.
    pub fn hosts(mut self, hosts: BTreeMap<String, HostConfig>) -> Self {
        self.hosts = hosts;
        self
    }

    /// How long running jobs may go on after the worker was asked to stop: 30 seconds by default.
    pub fn drain(mut self, limit: Duration) -> Self {
        self.drain = limit;
        self
    }

    /// How often to poll for jobs even if no notification arrived: 10 seconds by default, zero for never.
    pub fn safety_poll(mut self, interval: Duration) -> Self {
        self.safety_poll = interval;
        self
    }

    /// Where working folders are made.
    pub fn workdir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.workdir = folder.into();
        self
    }

    /// Whether to create or upgrade the schema before the worker starts.
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
        self
    }

    /// How many connections the executors share ([`Context::database`](crate::Context::database)): 8 by default.
    pub fn pool_size(mut self, connections: usize) -> Self {
        self.pool_size = connections;
        self
    }

    /// Whether to stop when no job is left that could run: for tests, and for workers started by a timer.
    pub fn until_empty(mut self, until_empty: bool) -> Self {
        self.until_empty = until_empty;
        self
    }

    /// The address of the endpoints: `/metrics`, `/livez`, `/readyz` and the JSON API.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = Some(address);
        self
    }

    /// The bearer token that the API requires for writes.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Queues and their slots, by name.
    pub(crate) fn served_queues(&self) -> Vec<(String, u32)> {
        let mut queues = match self.queues.is_empty() {
            true => default_queues(),
            false => self.queues.clone(),
        };
        queues.sort();
        queues
    }
}

pub(super) fn default_queues() -> Vec<(String, u32)> {
    vec![("default".into(), 4)]
}

impl From<&str> for Settings {
    fn from(url: &str) -> Self {
        Settings::new(url)
    }
}

impl From<&String> for Settings {
    fn from(url: &String) -> Self {
        Settings::new(url)
    }
}

impl From<String> for Settings {
    fn from(url: String) -> Self {
        Settings::new(url)
    }
}

/// Without the database URL, which may contain a password.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("name", &self.name)
            .field("queues", &self.queues)
            .field("commands", &self.commands)
            .field("hosts", &self.hosts)
            .field("drain", &self.drain)
            .field("safety_poll", &self.safety_poll)
            .field("workdir", &self.workdir)
            .field("migrate", &self.migrate)
            .field("pool_size", &self.pool_size)
            .field("until_empty", &self.until_empty)
            .field("listen", &self.listen)
            .finish_non_exhaustive()
    }
}

pub(super) fn check_queue(queue: &str, slots: u32) -> Result<()> {
    check_name("queue", queue, 100)?;
    if !(1..=10_000).contains(&slots) {
        return Err(Error::new(format!(
            "queue {queue:?} has {slots} slots; it must have 1 to 10000"
        )));
    }
    Ok(())
}

pub(super) fn check_name(kind: &str, name: &str, most: usize) -> Result<()> {
    let length = name.chars().count();
    if name.trim().is_empty() || length > most {
        return Err(Error::new(format!(
            "the {kind} name {name:?} has {length} characters; it must have 1 to {most} and must not be blank"
        )));
    }
    Ok(())
}
