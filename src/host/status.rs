//! The status of the hosts: for `/readyz`, metrics and `bugle.workers`.

use serde::Serialize;

use super::Shared;

/// One host.
#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
pub struct HostStatus {
    /// Its name in the file.
    pub name: String,
    /// How many processes it should have.
    pub processes: u32,
    /// How many of them run jobs.
    pub ready: usize,
    /// The commands it announced.
    pub commands: Vec<String>,
    /// Its language, if it announced one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Its package, if it announced one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sdk: Option<String>,
    /// Why a process is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How many jobs its processes run at once.
    pub concurrency: usize,
    /// How many of its jobs one call takes at most, if it takes several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most: Option<u32>,
    /// How many of its processes have ended although the worker had not told them to.
    pub crashes: u64,
    /// When the last of these ended, in RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crashed_at: Option<String>,
    /// How many of its jobs have not been answered.
    #[serde(skip)]
    pub running: usize,
    /// How many processes were started.
    #[serde(skip)]
    pub started: u64,
    /// How many processes ended with unanswered jobs.
    #[serde(skip)]
    pub lost: u64,
    /// Whether one of its processes has said hello, or has failed to start.
    #[serde(skip)]
    pub known: bool,
}

impl HostStatus {
    /// Why it runs no jobs, if so.
    pub fn failing(&self) -> Option<String> {
        if self.ready > 0 {
            return None;
        }
        let name = &self.name;
        Some(match &self.error {
            None => format!("host {name:?}: no process has sent hello yet"),
            Some(error) => format!(
                "host {name:?}: no process is ready; the last one {}",
                error.replace('\n', " | ")
            ),
        })
    }
}

pub(super) fn of(shared: &Shared) -> Vec<HostStatus> {
    let pool = shared.pool();
    let status = |(index, host): (usize, &super::Host)| {
        let (state, load) = (&pool.hosts[index], pool.load(index));
        let hello = state.hello.as_ref();
        HostStatus {
            name: host.name.clone(),
            processes: host.config.processes,
            ready: load.ready,
            commands: hello
                .map(|hello| hello.commands.keys().cloned().collect())
                .unwrap_or_default(),
            language: hello.and_then(|hello| hello.language.clone()),
            sdk: hello.and_then(|hello| hello.sdk.clone()),
            error: state
                .error
                .clone()
                .filter(|_| load.ready < host.config.processes as usize),
            concurrency: hello.map_or(0, |hello| host.capacity(hello).0),
            most: hello.and_then(|hello| hello.commands.values().copied().flatten().max()),
            crashes: state.crashes,
            crashed_at: state
                .crashed_at
                .map(|at| humantime::format_rfc3339_seconds(at).to_string()),
            running: load.running,
            started: state.started,
            lost: state.lost,
            known: state.known,
        }
    };
    shared.hosts.iter().enumerate().map(status).collect()
}
