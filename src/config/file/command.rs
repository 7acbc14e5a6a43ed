//! One `[commands.X]` section of the file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error as _};

use super::duration;
use crate::config::command::TIMEOUT;
use crate::config::{Action, CommandConfig, Cwd, HttpConfig, ProgramConfig, ProgramEnv, Secret, SqlConfig};

impl<'de> Deserialize<'de> for CommandConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Written::deserialize(deserializer)?.try_into().map_err(D::Error::custom)
    }
}

/// The section as written, before its kind is known.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    program: Option<Vec<String>>,
    sql: Option<String>,
    batch: Option<usize>,
    http: Option<WrittenHttp>,
    #[serde(default, deserialize_with = "duration")]
    timeout: Option<Duration>,
    env: Option<toml::Value>,
    cwd: Option<PathBuf>,
    no_retry_exit_codes: Option<Vec<i32>>,
    skip_exit_codes: Option<Vec<i32>>,
    #[serde(default, deserialize_with = "duration")]
    kill_after: Option<Duration>,
}

/// The table `http` as written.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenHttp {
    url: Secret,
    #[serde(default = "post")]
    method: String,
    #[serde(default)]
    headers: BTreeMap<String, Secret>,
}

impl From<WrittenHttp> for HttpConfig {
    fn from(written: WrittenHttp) -> HttpConfig {
        let WrittenHttp { url, method, headers } = written;
        HttpConfig { url, method, headers }
    }
}

fn post() -> String {
    "POST".into()
}

impl TryFrom<Written> for CommandConfig {
    type Error = String;

    fn try_from(mut written: Written) -> Result<Self, String> {
        let timeout = written.timeout.unwrap_or(TIMEOUT);
        let has_batch = written.batch.is_some();
        let action = match (written.program.take(), written.sql.take(), written.http.take()) {
            (Some(argv), None, None) => Action::Program(program(argv, written)?),
            (None, Some(sql), None) => {
                nothing_of_a_program(&written)?;
                let mut sql = SqlConfig::new(sql);
                sql.batch = written.batch.take();
                Action::Sql(sql)
            }
            (None, None, Some(http)) => {
                nothing_of_a_program(&written)?;
                Action::Http(http.into())
            }
            (None, None, None) => return Err("a command needs one of program, sql or http".into()),
            _ => return Err("a command can have only one of program, sql or http".into()),
        };
        if has_batch && !matches!(action, Action::Sql(_)) {
            return Err("batch is only valid for a command with sql".into());
        }
        let command = CommandConfig { timeout, action };
        command.check()?;
        Ok(command)
    }
}

fn program(argv: Vec<String>, written: Written) -> Result<ProgramConfig, String> {
    let default = ProgramConfig::new(argv);
    Ok(ProgramConfig {
        env: written.env.map(environment).transpose()?.unwrap_or_default(),
        cwd: match written.cwd {
            None => Cwd::Worker,
            Some(folder) if folder.as_os_str() == "workdir" => Cwd::Workspace,
            Some(folder) => Cwd::Folder(folder),
        },
        no_retry_exit_codes: written.no_retry_exit_codes.unwrap_or(default.no_retry_exit_codes),
        skip_exit_codes: written.skip_exit_codes.unwrap_or(default.skip_exit_codes),
        kill_after: written.kill_after.unwrap_or(default.kill_after),
        argv: default.argv,
    })
}

/// `["NAME", …]`, `"inherit"`, or `{ NAME = "value" }`, where `"*" = "inherit"` includes all variables.
pub(super) fn environment(written: toml::Value) -> Result<ProgramEnv, String> {
    // a value may be secret, so errors do not show it
    const FORMS: &str = "write env as [\"NAME\", …], as \"inherit\", or as { NAME = \"value\" }";
    let mut env = ProgramEnv::default();
    match written {
        toml::Value::String(text) if text == INHERIT => env.inherit = true,
        toml::Value::Array(names) => {
            for name in names {
                match name {
                    toml::Value::String(name) if name.contains('=') => {
                        return Err(format!("the env list contains an entry with a value; {FORMS}"));
                    }
                    toml::Value::String(name) => env.pass.push(checked(name)?),
                    other => {
                        return Err(format!(
                            "the env list contains an entry of type {}; {FORMS}",
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
                            "env {name} must be a string or \"env:NAME\", but has type {kind}"
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
        Some((key, _)) => Err(format!("{key} is only valid for a command with a program")),
    }
}
