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

/// The slots of the queue `default`, if no queue is named and no host needs more.
const LEAST_SLOTS: u32 = 4;
/// The most slots that a queue can have.
const MOST_SLOTS: u32 = 10_000;
/// How many jobs a process of a host is taken to run at once, before it has said so.
const USUAL_CONCURRENCY: u32 = 16;

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
    /// The queues to serve, each with its number of slots (jobs that run at once). If empty: `default`, with 4, or with
    /// as many as the hosts run at once: `processes` times `concurrency`, or times 16 where the file has none.
    pub queues: Vec<(String, u32)>,
    /// Several databases, instead of the one at `database_url` and `queues`.
    pub databases: Vec<Database>,
    /// How many jobs of all these databases run at once. If not set: as many as their queues have slots.
    pub slots: Option<usize>,
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
    /// After how long without progress `/livez` fails. Only tests set it.
    #[doc(hidden)]
    pub stuck_after: Duration,
}

/// One of several databases that a worker serves.
#[derive(Clone)]
#[non_exhaustive]
pub struct Database {
    /// Its name in logs, metrics and probes.
    pub name: String,
    /// How to connect.
    pub url: String,
    /// Where that URL comes from, for errors.
    pub url_from: String,
    /// The queues to serve there, each with its number of slots. If empty: as for a worker of one database.
    pub queues: Vec<(String, u32)>,
}

/// Without its URL, which may contain a password.
impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database")
            .field("name", &self.name)
            .field("queues", &self.queues)
            .finish_non_exhaustive()
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            database_url: String::new(),
            database_url_from: "the connection string".into(),
            name: "worker".into(),
            queues: Vec::new(),
            databases: Vec::new(),
            slots: None,
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
            stuck_after: Duration::from_secs(60),
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
                    .with_hint("Name each queue once, with all of its slots."));
            }
        }
        for (place, database) in self.databases.iter().enumerate() {
            check_database_name(&database.name)?;
            if self.databases[..place].iter().any(|other| other.name == database.name) {
                return Err(Error::new(format!("database {:?} is named twice", database.name)));
            }
        }
        for (name, host) in &self.hosts {
            host.check()
                .map_err(|wrong| Error::new(format!("hosts.{name}: {wrong}")))?;
        }
        for worker in self.for_each_database() {
            worker.check()?;
        }
        if !self.databases.is_empty() && (!self.database_url.is_empty() || !self.queues.is_empty()) {
            return Err(
                Error::new("both named databases and a database URL or queues outside of them are set")
                    .with_hint("Give each database its URL and its queues."),
            );
        }
        match self.slots {
            Some(_) if self.databases.is_empty() => {
                return Err(Error::new("slots is set, but no named databases that could share them")
                    .with_hint("Each queue has its number of slots; slots is for a worker of several databases."));
            }
            Some(slots) if slots < self.databases.len() => {
                return Err(Error::new(format!(
                    "slots is {slots}, and there are {} databases; each needs at least one",
                    self.databases.len()
                )));
            }
            _ => {}
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
            return Err(Error::new("safety_poll must be 0s or at least 100ms").with_hint(
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

    /// Serve this database too, with these queues: `("mail", 8)`. A worker serves either databases by name, or the one
    /// of [`Settings::new`]. [`Context::database_name`](crate::Context::database_name) says which one a job came from.
    ///
    /// ```
    /// use bugle::Settings;
    ///
    /// let settings = Settings::default()
    ///     .database("shop", "postgres://localhost/shop", [("default", 32), ("mail", 8)])
    ///     .database("billing", "postgres://localhost/billing", [("default", 16)])
    ///     .slots(48);
    /// assert_eq!(settings.databases.len(), 2);
    /// ```
    pub fn database<'a>(
        mut self,
        name: &str,
        url: impl Into<String>,
        queues: impl IntoIterator<Item = (&'a str, u32)>,
    ) -> Self {
        self.databases.push(Database {
            name: name.to_string(),
            url: url.into(),
            url_from: "the connection string".into(),
            queues: queues
                .into_iter()
                .map(|(queue, slots)| (queue.to_string(), slots))
                .collect(),
        });
        self
    }

    /// How many jobs of all databases run at once. They are shared fairly between those that have work.
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = Some(slots);
        self
    }

    /// Run this command without any code: see [`CommandConfig`].
    pub fn command(mut self, name: &str, command: impl Into<CommandConfig>) -> Self {
        self.commands.insert(name.to_string(), command.into());
        self
    }

    /// The commands that it runs without any code, as `Config` reads them from a file.
    pub fn commands(mut self, commands: BTreeMap<String, CommandConfig>) -> Self {
        self.commands = commands;
        self
    }

    /// Start this host with the worker: see [`HostConfig`].
    pub fn host(mut self, name: &str, host: HostConfig) -> Self {
        self.hosts.insert(name.to_string(), host);
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

    /// The parent directory of the working directories of jobs.
    pub fn workdir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.workdir = directory.into();
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

    /// The settings of the worker of each database.
    pub(crate) fn for_each_database(&self) -> Vec<Settings> {
        let worker = |database: &Database| Settings {
            database_url: database.url.clone(),
            database_url_from: database.url_from.clone(),
            queues: database.queues.clone(),
            databases: Vec::new(),
            slots: None,
            listen: None,
            token: None,
            ..self.clone()
        };
        self.databases.iter().map(worker).collect()
    }

    /// The slots of all its queues.
    pub(crate) fn all_slots(&self) -> usize {
        self.served_queues().iter().map(|(_, slots)| *slots as usize).sum()
    }

    /// Queues and their slots, by name.
    pub(crate) fn served_queues(&self) -> Vec<(String, u32)> {
        let mut queues = match self.queues.is_empty() {
            true => default_queues(&self.hosts),
            false => self.queues.clone(),
        };
        queues.sort();
        queues
    }
}

/// The slots of the queue `default`, if no queue is named: for its hosts, as many jobs as they run at once.
pub(super) fn default_queues(hosts: &BTreeMap<String, HostConfig>) -> Vec<(String, u32)> {
    let of_host = |host: &HostConfig| {
        host.processes
            .saturating_mul(host.concurrency.unwrap_or(USUAL_CONCURRENCY))
    };
    let of_hosts = hosts.values().map(of_host).fold(0, u32::saturating_add);
    vec![("default".into(), of_hosts.clamp(LEAST_SLOTS, MOST_SLOTS))]
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
            .field("databases", &self.databases)
            .field("slots", &self.slots)
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
    if !(1..=MOST_SLOTS).contains(&slots) {
        return Err(Error::new(format!(
            "queue {queue:?} has {slots} slots; it must have 1 to 10000"
        )));
    }
    Ok(())
}

/// It is part of paths of the endpoints.
fn check_database_name(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    match (1..=63).contains(&name.len()) && name.chars().all(is_plain) {
        true => Ok(()),
        false => Err(
            Error::new(format!("the database name {name:?} is not valid")).with_hint(
                "Use 1 to 63 letters, digits, underscores and hyphens. The name need not be that on the server.",
            ),
        ),
    }
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
