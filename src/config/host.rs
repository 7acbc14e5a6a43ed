//! Hosts: long-lived processes that run jobs for the worker. One `[hosts.NAME]` section of the file.

use std::time::Duration;

use super::{Cwd, ProgramEnv};

/// A host: a program that connects to the worker and runs the jobs of the commands it announces.
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
