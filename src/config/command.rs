//! Commands that need no code: one `[commands.X]` section of the file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::value::Secret;

/// A command that needs no code: its action and its time limit.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CommandConfig {
    /// Time limit of an attempt, unless the job has its own.
    pub timeout: Duration,
    /// How the command is executed.
    pub action: Action,
}

/// How a command is executed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Action {
    /// Run a program.
    Program(ProgramConfig),
    /// Run one SQL statement in the same transaction as the job's completion. `$1` is the payload, as jsonb.
    Sql(String),
    /// Send an HTTP request.
    Http(HttpConfig),
}

/// A program: the payload is its stdin, its stdout is the result.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ProgramConfig {
    /// The program and its arguments. It is not run by a shell.
    pub argv: Vec<String>,
    /// Its environment.
    pub env: ProgramEnv,
    /// Its working directory.
    pub cwd: Cwd,
    /// Exit codes that mean "do not retry".
    pub no_retry_exit_codes: Vec<i32>,
    /// Exit codes that mean "skip this step of the chain".
    pub skip_exit_codes: Vec<i32>,
    /// How long it may take to exit after it was asked to stop.
    pub kill_after: Duration,
}

/// The environment of a program, in addition to `PATH`, `HOME`, `LANG`, `TZ`, `TMPDIR`, `USER` and the variables that
/// describe its job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProgramEnv {
    /// All variables of the worker, except its credentials: `DATABASE_URL`, `PG…`, `BUGLE_…`.
    pub inherit: bool,
    /// The worker's variables with these names.
    pub pass: Vec<String>,
    /// Variables with these values.
    pub set: BTreeMap<String, Secret>,
    /// Further variables that are not inherited, because the worker's settings refer to them.
    pub withheld: Vec<String>,
}

/// The working directory of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cwd {
    /// The working directory of the worker.
    Worker,
    /// The working directory of the attempt.
    Workspace,
    /// This directory.
    Folder(PathBuf),
}

/// An HTTP request: the payload is its body.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HttpConfig {
    /// The URL, http or https.
    pub url: Secret,
    /// The method.
    pub method: String,
    /// The headers.
    pub headers: BTreeMap<String, Secret>,
}
