//! What one `[commands.X]` of the file says.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::value::{Secret, duration};

/// A command that needs no code: what carries it out, and how long that may take.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "Written")]
pub struct CommandConfig {
    /// How long an attempt may take, unless the job says so itself.
    pub timeout: Duration,
    /// What carries it out.
    pub action: Action,
}

/// What carries out a command.
#[derive(Debug, Clone)]
pub enum Action {
    /// Run a program.
    Program(ProgramConfig),
    /// Run one SQL statement, in one transaction with the job's end. `$1` is the payload, as jsonb.
    Sql(String),
    /// Send a request.
    Http(HttpConfig),
}

/// A program: the payload goes to its stdin, its stdout is the result.
#[derive(Debug, Clone)]
pub struct ProgramConfig {
    /// The program and its arguments. There is no shell in between.
    pub argv: Vec<String>,
    /// Its environment.
    pub env: ProgramEnv,
    /// Where it starts.
    pub cwd: Cwd,
    /// Exit codes that mean: do not try again.
    pub no_retry_exit_codes: Vec<i32>,
    /// Exit codes that mean: this step of a chain need not be done.
    pub skip_exit_codes: Vec<i32>,
    /// How long it has to end by itself when it is asked to stop.
    pub kill_after: Duration,
}

/// What a program gets besides `PATH`, `HOME`, `LANG`, `TZ`, `TMPDIR`, `USER` and what tells it about its job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProgramEnv {
    /// All variables of the worker, except those it logs in with: `DATABASE_URL`, `PG…`, `BUGLE_…`.
    pub inherit: bool,
    /// Variables of the worker with these names.
    pub pass: Vec<String>,
    /// Variables with these values.
    pub set: BTreeMap<String, Secret>,
    /// Further variables of the worker that are not inherited: those its settings refer to.
    pub withheld: Vec<String>,
}

/// Where a program starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cwd {
    /// Where the worker was started.
    Worker,
    /// In the working folder of the attempt.
    Workspace,
    /// In this folder.
    Folder(PathBuf),
}

/// A request: the payload is its body.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpConfig {
    /// Where to send it; http or https.
    pub url: Secret,
    /// How to send it.
    #[serde(default = "post")]
    pub method: String,
    /// What to send along.
    #[serde(default)]
    pub headers: BTreeMap<String, Secret>,
}

fn post() -> String {
    "POST".into()
}

const TIMEOUT: Duration = Duration::from_secs(5 * 60);
const KILL_AFTER: Duration = Duration::from_secs(2);
/// `EX_DATAERR` of sysexits.h: the input was bad, and will be the next time.
const NO_RETRY: i32 = 65;

/// The table as it is written, before it is known of which kind it is.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    program: Option<Vec<String>>,
    sql: Option<String>,
    http: Option<HttpConfig>,
    #[serde(default, deserialize_with = "duration")]
    timeout: Option<Duration>,
    env: Option<toml::Value>,
    cwd: Option<PathBuf>,
    no_retry_exit_codes: Option<Vec<i32>>,
    skip_exit_codes: Option<Vec<i32>>,
    #[serde(default, deserialize_with = "duration")]
    kill_after: Option<Duration>,
}

impl TryFrom<Written> for CommandConfig {
    type Error = String;

    fn try_from(mut written: Written) -> Result<Self, String> {
        let timeout = written.timeout.unwrap_or(TIMEOUT);
        if timeout.is_zero() {
            return Err("timeout must be longer than nothing".into());
        }
        let action = match (written.program.take(), written.sql.take(), written.http.take()) {
            (Some(argv), None, None) => Action::Program(program(argv, written)?),
            (None, Some(sql), None) => {
                nothing_of_a_program(&written)?;
                if sql.trim().is_empty() {
                    return Err("sql is empty".into());
                }
                Action::Sql(sql)
            }
            (None, None, Some(http)) => {
                nothing_of_a_program(&written)?;
                Action::Http(http)
            }
            (None, None, None) => return Err("a command needs one of program, sql and http".into()),
            _ => return Err("a command has only one of program, sql and http".into()),
        };
        Ok(CommandConfig { timeout, action })
    }
}

fn program(argv: Vec<String>, written: Written) -> Result<ProgramConfig, String> {
    if argv.first().is_none_or(String::is_empty) {
        return Err("program is empty; write it as [\"name\", \"argument\"]".into());
    }
    if argv.iter().any(|argument| argument.contains('\0')) {
        return Err("an argument of a program cannot contain a NUL".into());
    }
    Ok(ProgramConfig {
        argv,
        env: written.env.map(environment).transpose()?.unwrap_or_default(),
        cwd: match written.cwd {
            None => Cwd::Worker,
            Some(folder) if folder.as_os_str() == "workdir" => Cwd::Workspace,
            Some(folder) => Cwd::Folder(folder),
        },
        no_retry_exit_codes: written.no_retry_exit_codes.unwrap_or_else(|| vec![NO_RETRY]),
        skip_exit_codes: written.skip_exit_codes.unwrap_or_default(),
        kill_after: written.kill_after.unwrap_or(KILL_AFTER),
    })
}

/// `["NAME", …]`, `"inherit"`, or `{ NAME = "value" }`, in which `"*" = "inherit"` stands for the second.
fn environment(written: toml::Value) -> Result<ProgramEnv, String> {
    // a value may be a secret, so no error shows one
    const FORMS: &str = "write env as [\"NAME\", …], as \"inherit\", or as { NAME = \"value\" }";
    let mut env = ProgramEnv::default();
    match written {
        toml::Value::String(text) if text == INHERIT => env.inherit = true,
        toml::Value::Array(names) => {
            for name in names {
                match name {
                    toml::Value::String(name) if name.contains('=') => {
                        return Err(format!("env has an entry with a value in its list; {FORMS}"));
                    }
                    toml::Value::String(name) => env.pass.push(checked(name)?),
                    other => {
                        return Err(format!(
                            "env has an entry of type {} in its list; {FORMS}",
                            other.type_str()
                        ));
                    }
                }
            }
        }
        toml::Value::Table(values) => {
            for (name, value) in values {
                match value {
                    toml::Value::String(value) if name == "*" => match value == INHERIT {
                        true => env.inherit = true,
                        false => return Err("\"*\" in env can only be \"inherit\"".into()),
                    },
                    toml::Value::String(value) => drop(env.set.insert(checked(name)?, Secret::new(value))),
                    other => {
                        let kind = other.type_str();
                        return Err(format!(
                            "env {name} must be a string, or \"env:NAME\", but is of type {kind}"
                        ));
                    }
                }
            }
        }
        _ => return Err(FORMS.into()),
    }
    Ok(env)
}

const INHERIT: &str = "inherit";

fn checked(name: String) -> Result<String, String> {
    match name.is_empty() || name.contains(['=', '\0']) {
        true => Err(format!("a variable of a program cannot be named {name:?}")),
        false => Ok(name),
    }
}

fn nothing_of_a_program(written: &Written) -> Result<(), String> {
    let given = [
        ("env", written.env.is_some()),
        ("cwd", written.cwd.is_some()),
        ("no_retry_exit_codes", written.no_retry_exit_codes.is_some()),
        ("skip_exit_codes", written.skip_exit_codes.is_some()),
        ("kill_after", written.kill_after.is_some()),
    ];
    match given.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((key, _)) => Err(format!("{key} is only for a command that has a program")),
    }
}
