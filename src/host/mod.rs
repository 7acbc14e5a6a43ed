//! Hosts: long-lived processes that run jobs for this worker, in any language. docs/hosts.md is their protocol.
//!
//! ```text
//!  crew ── HostExecutor ──▶ Pool (which job in which process) ──▶ Outbox ── socket ──▶ process
//!                             ▲                                                          │
//!                             └────────── Ear (its messages) ◀───────── Lines ◀──────────┘
//! ```

#[cfg(feature = "cli")]
pub(crate) mod check;
mod executor;
pub(crate) mod mailbox;
pub(crate) mod message;
mod pool;
mod process;
mod readable;
pub(crate) mod socket;
mod status;
pub(crate) mod talk;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::builtin::surroundings;
use crate::config::{Environment, HostConfig};
use crate::db::connect;
use crate::error::Result;
use crate::execute::executor::Executor;
use executor::HostExecutor;
use message::{Hello, Rejected};
use pool::Pool;
pub use status::HostStatus;

/// How long all hosts together may take to end.
const LAST_WORDS: Duration = Duration::from_secs(9);

/// The hosts of a worker. Cheap to clone.
#[derive(Clone)]
pub struct Hosts(Arc<Shared>);

/// The state that the hosts of a worker share.
pub struct Shared {
    hosts: Vec<Host>,
    /// The commands that the worker runs itself: a host cannot announce them.
    own: Vec<String>,
    worker: String,
    /// How many jobs the worker holds at most.
    slots: usize,
    workspaces: PathBuf,
    pool: Mutex<Pool>,
    /// The executor of each command that was ever announced.
    executors: RwLock<BTreeMap<String, Arc<dyn Executor>>>,
    /// For calls that are not about a job.
    database: OnceLock<connect::Pool>,
    /// Counts the changes of announced commands and of the status of hosts.
    changes: watch::Sender<u64>,
    stopping: CancellationToken,
    processes: TaskTracker,
}

/// One section of the file.
struct Host {
    name: String,
    config: HostConfig,
    /// The variables of its processes.
    env: Vec<(OsString, OsString)>,
    /// Whether the log has said that the worker holds fewer jobs than this host could run.
    is_told: AtomicBool,
}

impl Host {
    /// How many jobs its processes could run at once, and how many one of them takes in one call.
    fn capacity(&self, hello: &Hello) -> (usize, usize) {
        let concurrency = self.config.concurrency.unwrap_or(hello.concurrency);
        let most = hello.commands.values().copied().flatten().max().unwrap_or(1);
        (concurrency as usize * self.config.processes as usize, most as usize)
    }
}

impl Hosts {
    /// The hosts of the file.
    ///
    /// # Errors
    /// If an environment variable that one of them refers to is not set.
    pub fn new(
        configs: &BTreeMap<String, HostConfig>,
        own: Vec<String>,
        worker: &str,
        slots: usize,
        workspaces: &Path,
        environment: Environment,
    ) -> Result<Hosts> {
        let host = |(name, config): (&String, &HostConfig)| {
            let env = surroundings::variables(&config.env, environment)
                .map_err(|error| error.in_context(&format!("hosts.{name}")))?;
            Ok(Host {
                name: name.clone(),
                config: config.clone(),
                env,
                is_told: AtomicBool::new(false),
            })
        };
        let hosts = configs.iter().map(host).collect::<Result<Vec<Host>>>()?;
        let shared = Shared {
            pool: Mutex::new(Pool::new(hosts.len())),
            hosts,
            own,
            worker: worker.to_owned(),
            slots,
            workspaces: workspaces.to_owned(),
            executors: RwLock::default(),
            database: OnceLock::new(),
            changes: watch::channel(0).0,
            stopping: CancellationToken::new(),
            processes: TaskTracker::new(),
        };
        Ok(Hosts(Arc::new(shared)))
    }

    /// Start their processes, which are replaced until [`stop`](Hosts::stop).
    pub fn start(&self, database: connect::Pool) {
        let _ = self.0.database.set(database);
        for (index, host) in self.0.hosts.iter().enumerate() {
            for number in 1..=host.config.processes {
                self.0.processes.spawn(process::keep(self.0.clone(), index, number));
            }
        }
    }

    /// Let their processes finish, and kill those that do not exit.
    pub async fn stop(&self) {
        self.0.stopping.cancel();
        self.0.pool().retire_all();
        self.0.processes.close();
        let _ = tokio::time::timeout(LAST_WORDS, self.0.processes.wait()).await;
    }

    /// The executor of a command that a host runs or has run.
    pub fn executor_for(&self, command: &str) -> Option<Arc<dyn Executor>> {
        self.0.executors.read().unwrap().get(command).cloned()
    }

    /// The commands that hosts run now.
    pub fn commands(&self) -> Vec<String> {
        self.0.pool().commands()
    }

    /// Whether each host has said what it runs, or could not be started.
    pub fn are_known(&self) -> bool {
        self.0.pool().hosts.iter().all(|host| host.known)
    }

    /// Changes whenever the commands or the state of a host may have changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Report everything again: the database has lost it.
    pub fn changed(&self) {
        self.0.changed();
    }

    /// The status of each host.
    pub fn status(&self) -> Vec<HostStatus> {
        status::of(&self.0)
    }
}

impl Shared {
    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap()
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Log, once for each host, that the slots of the worker leave it idle.
    fn compare_slots(&self, host: usize, hello: &Hello) {
        let host = &self.hosts[host];
        let (jobs, most) = host.capacity(hello);
        let slots = self.slots;
        if slots < jobs.max(most) && !host.is_told.swap(true, Ordering::Relaxed) {
            let in_one_call = if most > 1 {
                format!(", and {most} in one call")
            } else {
                String::new()
            };
            tracing::warn!(
                event = "host_slots",
                host = host.name,
                slots,
                "host {:?} can run {jobs} jobs at once{in_one_call}, but the queues of this worker have {slots} slots: \
                 set them in [queues]",
                host.name
            );
        }
    }

    /// Accept the commands that a host announces, or reject them with the reason.
    fn admit(self: &Arc<Self>, host: usize, hello: &Hello) -> Result<(), Rejected> {
        if let Some(taken) = hello.commands.keys().find(|command| self.own.contains(command)) {
            let why = format!(
                "the command {taken:?} cannot be announced: the worker has an executor of its own for it, \
                 in its file or its program"
            );
            return Err(Rejected::new("bad_hello", why));
        }
        let timeout = self.hosts[host].config.timeout;
        let mut executors = self.executors.write().unwrap();
        for command in hello.commands.keys() {
            // of two hosts with the same command, the more patient one decides
            let known = executors.get(command).and_then(|executor| executor.default_timeout());
            if known.is_none_or(|known| known < timeout) {
                let shared = self.clone();
                executors.insert(command.clone(), Arc::new(HostExecutor { shared, timeout }));
            }
        }
        Ok(())
    }
}
