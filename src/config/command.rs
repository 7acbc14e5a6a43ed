//! Commands that need no code: one `[commands.X]` section of the file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::value::Secret;

/// The time limit of commands and hosts that set none.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5 * 60);
const KILL_AFTER: Duration = Duration::from_secs(2);
/// As many as one claim takes.
const MOST_IN_BATCH: usize = 1_000;
/// `EX_DATAERR` of sysexits.h: the input is invalid, and will be on a retry.
const NO_RETRY: i32 = 65;

/// A command that needs no code: its action and its time limit.
///
/// ```
/// use bugle::Settings;
/// use bugle::config::{CommandConfig, HttpConfig, ProgramConfig, SqlConfig};
/// use std::time::Duration;
///
/// let settings = Settings::new("postgres://localhost/shop")
///     .command("purge", CommandConfig::sql("delete from carts where expires_at < now()"))
///     .command("count", SqlConfig::new("insert into visits select $1 ->> 'page'").batch(100))
///     .command("resize", CommandConfig::program(["resize", "--fast"]).timeout(Duration::from_secs(30)))
///     .command("hook", HttpConfig::new("https://example.org/hook").header("authorization", "env:HOOK_KEY"))
///     .command("report", ProgramConfig::new(["report"]).in_workspace().pass_env("LANG"));
/// assert_eq!(settings.commands.len(), 5);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CommandConfig {
    /// Time limit of an attempt, unless the job has its own.
    pub timeout: Duration,
    /// How the command is executed.
    pub action: Action,
}

impl CommandConfig {
    /// Run a program with these arguments. [`ProgramConfig`] has more settings.
    pub fn program(argv: impl IntoIterator<Item = impl Into<String>>) -> Self {
        ProgramConfig::new(argv).into()
    }

    /// Run one SQL statement in the same transaction as the job's completion. `$1` is the payload, as jsonb.
    /// [`SqlConfig`] has more settings.
    pub fn sql(statement: impl Into<String>) -> Self {
        SqlConfig::new(statement).into()
    }

    /// Send the payload to this URL with POST. [`HttpConfig`] has more settings. It needs the feature `http`.
    pub fn http(url: impl Into<String>) -> Self {
        HttpConfig::new(url).into()
    }

    /// Time limit of an attempt, unless the job has its own: 5 minutes by default.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Reject what no command can be.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.timeout.is_zero() {
            return Err("timeout must be longer than zero".into());
        }
        match &self.action {
            Action::Program(program) => check_argv(&program.argv),
            Action::Sql(sql) => sql.check(),
            Action::Http(_) => Ok(()),
        }
    }
}

pub(super) fn check_argv(argv: &[String]) -> Result<(), String> {
    if argv.first().is_none_or(String::is_empty) {
        return Err("program is empty; write [\"name\", \"argument\"]".into());
    }
    if argv.iter().any(|argument| argument.contains('\0')) {
        return Err("an argument of a program cannot contain a NUL".into());
    }
    Ok(())
}

impl From<ProgramConfig> for CommandConfig {
    fn from(program: ProgramConfig) -> Self {
        CommandConfig {
            timeout: TIMEOUT,
            action: Action::Program(program),
        }
    }
}

impl From<SqlConfig> for CommandConfig {
    fn from(sql: SqlConfig) -> Self {
        CommandConfig {
            timeout: TIMEOUT,
            action: Action::Sql(sql),
        }
    }
}

impl From<HttpConfig> for CommandConfig {
    fn from(http: HttpConfig) -> Self {
        CommandConfig {
            timeout: TIMEOUT,
            action: Action::Http(http),
        }
    }
}

/// How a command is executed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Action {
    /// Run a program.
    Program(ProgramConfig),
    /// Run an SQL statement.
    Sql(SqlConfig),
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

impl ProgramConfig {
    /// This program, with these arguments. It is not run by a shell.
    pub fn new(argv: impl IntoIterator<Item = impl Into<String>>) -> Self {
        ProgramConfig {
            argv: argv.into_iter().map(Into::into).collect(),
            env: ProgramEnv::default(),
            cwd: Cwd::Worker,
            no_retry_exit_codes: vec![NO_RETRY],
            skip_exit_codes: Vec::new(),
            kill_after: KILL_AFTER,
        }
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

    /// Run it in the working directory of the attempt, which is removed afterwards.
    pub fn in_workspace(mut self) -> Self {
        self.cwd = Cwd::Workspace;
        self
    }

    /// Exit codes that mean "do not retry": 65 by default.
    pub fn no_retry_exit_codes(mut self, codes: impl IntoIterator<Item = i32>) -> Self {
        self.no_retry_exit_codes = codes.into_iter().collect();
        self
    }

    /// Exit codes that mean "skip this step of the chain": none by default.
    pub fn skip_exit_codes(mut self, codes: impl IntoIterator<Item = i32>) -> Self {
        self.skip_exit_codes = codes.into_iter().collect();
        self
    }

    /// How long it may take to exit after it was asked to stop: 2 seconds by default.
    pub fn kill_after(mut self, limit: Duration) -> Self {
        self.kill_after = limit;
        self
    }
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

/// An SQL statement, run in the same transaction as the job's completion: its first row is the result.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SqlConfig {
    /// The statement. `$1` is the payload, as jsonb.
    pub statement: String,
    /// How many jobs at most share a transaction.
    pub batch: Option<usize>,
}

impl SqlConfig {
    /// This statement, in a transaction for each job. `$1` is the payload, as jsonb.
    pub fn new(statement: impl Into<String>) -> Self {
        SqlConfig {
            statement: statement.into(),
            batch: None,
        }
    }

    /// Run up to this many jobs that are ready in one transaction, from 1 to 1,000. If one of them fails, it is rolled
    /// back, and each runs in a transaction of its own.
    pub fn batch(mut self, most: usize) -> Self {
        self.batch = Some(most);
        self
    }

    fn check(&self) -> Result<(), String> {
        if self.statement.trim().is_empty() {
            return Err("sql is empty".into());
        }
        match self.batch {
            Some(most) if !(1..=MOST_IN_BATCH).contains(&most) => {
                Err(format!("batch is {most}; it must be between 1 and {MOST_IN_BATCH}"))
            }
            _ => Ok(()),
        }
    }
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

impl HttpConfig {
    /// POST to this URL. `env:NAME` stands for the worker's variable NAME.
    pub fn new(url: impl Into<String>) -> Self {
        HttpConfig {
            url: Secret::new(url),
            method: "POST".into(),
            headers: BTreeMap::new(),
        }
    }

    /// Use this method.
    pub fn method(mut self, method: &str) -> Self {
        self.method = method.to_owned();
        self
    }

    /// Send this header. The value `env:NAME` stands for the worker's variable NAME.
    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.insert(name.to_owned(), Secret::new(value));
        self
    }
}
