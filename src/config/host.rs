//! Hosts: long-lived processes that run jobs for the worker. One `[hosts.NAME]` section of the file.

use std::path::PathBuf;
use std::time::Duration;

use super::command::{TIMEOUT, check_argv};
use super::{Cwd, ProgramEnv, Secret};

/// A host: a program that connects to the worker and runs the jobs of the commands it announces.
///
/// ```
/// use bugle::Settings;
/// use bugle::config::HostConfig;
///
/// let settings = Settings::new("postgres://localhost/shop")
///     .host("app", HostConfig::program(["python3", "jobs.py"]).processes(2).max_memory(512 << 20));
/// assert_eq!(settings.hosts["app"].processes, 2);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HostConfig {
    /// The program and its arguments. It is not run by a shell.
    pub argv: Vec<String>,
    /// How many processes of it to run.
    pub processes: u32,
    /// How many jobs a process runs at once; if not set, what it announces.
    pub concurrency: Option<u32>,
    /// Replace a process after this many jobs.
    pub max_jobs: Option<u64>,
    /// Replace a process whose resident memory exceeds this many bytes.
    pub max_memory: Option<u64>,
    /// Its environment.
    pub env: ProgramEnv,
    /// Its working directory.
    pub cwd: Cwd,
    /// Time limit of an attempt, unless the job has its own.
    pub timeout: Duration,
}

impl HostConfig {
    /// One process of this program, with these arguments. It is not run by a shell.
    pub fn program(argv: impl IntoIterator<Item = impl Into<String>>) -> Self {
        HostConfig {
            argv: argv.into_iter().map(Into::into).collect(),
            processes: 1,
            concurrency: None,
            max_jobs: None,
            max_memory: None,
            env: ProgramEnv::default(),
            cwd: Cwd::Worker,
            timeout: TIMEOUT,
        }
    }

    /// How many processes of it to run.
    pub fn processes(mut self, processes: u32) -> Self {
        self.processes = processes;
        self
    }

    /// How many jobs a process runs at once, instead of the number that it announces.
    pub fn concurrency(mut self, jobs: u32) -> Self {
        self.concurrency = Some(jobs);
        self
    }

    /// Replace a process after this many jobs.
    pub fn max_jobs(mut self, jobs: u64) -> Self {
        self.max_jobs = Some(jobs);
        self
    }

    /// Replace a process whose resident memory exceeds this many bytes.
    pub fn max_memory(mut self, bytes: u64) -> Self {
        self.max_memory = Some(bytes);
        self
    }

    /// Set an environment variable. The value `env:NAME` stands for the worker's variable NAME.
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.set.insert(name.to_owned(), Secret::new(value));
        self
    }

    /// Pass on the worker's environment variable with this name.
    pub fn pass_env(mut self, name: &str) -> Self {
        self.env.pass.push(name.to_owned());
        self
    }

    /// Run it in this directory, instead of the worker's.
    pub fn cwd(mut self, directory: impl Into<PathBuf>) -> Self {
        self.cwd = Cwd::Folder(directory.into());
        self
    }

    /// Time limit of an attempt, unless the job has its own: 5 minutes by default.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Reject what no host can be.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.timeout.is_zero() {
            return Err("timeout must be longer than zero".into());
        }
        if !(1..=100).contains(&self.processes) {
            return Err(format!("processes is {}; it must be between 1 and 100", self.processes));
        }
        if let Some(concurrency) = self.concurrency.filter(|number| !(1..=10_000).contains(number)) {
            return Err(format!("concurrency is {concurrency}; it must be between 1 and 10000"));
        }
        if self.max_jobs == Some(0) {
            return Err("max_jobs must be at least 1".into());
        }
        check_argv(&self.argv)
    }
}
