//! The worker's file: which queues it serves, and which commands it can carry out without any code.
//!
//! ```toml
//! database_url = "env:APP_DATABASE"
//!
//! [queues]
//! default = 32
//! mail = 4
//!
//! [commands.resize]
//! program = ["resize", "--fast"]
//!
//! [commands.refresh]
//! sql = "select app.refresh($1)"
//! timeout = "1m"
//!
//! [commands.hook]
//! http = { url = "https://example.org/hook", headers = { authorization = "env:HOOK_TOKEN" } }
//! ```
//!
//! What may run is said here and never by a job: a job only names a command, and brings its data.

mod command;
mod settings;
mod value;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

pub use command::{Action, CommandConfig, Cwd, HttpConfig, ProgramConfig, ProgramEnv};
pub(crate) use settings::flag_or_variable;
pub use settings::{Flags, Settings};
pub(crate) use value::environment;
pub use value::{Environment, Secret};

use crate::error::{Error, Result};

/// The worker's file as it is written. What it leaves out is decided by [`Settings::resolve`].
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where the jobs are.
    pub database_url: Option<Secret>,
    /// What this worker calls itself.
    pub name: Option<String>,
    /// The queues it serves, and how many jobs of each it runs at once.
    #[serde(default)]
    pub queues: BTreeMap<String, u32>,
    /// The commands it can carry out.
    #[serde(default)]
    pub commands: BTreeMap<String, CommandConfig>,
    /// How long running jobs may go on after the worker was asked to stop.
    #[serde(default, deserialize_with = "value::duration")]
    pub drain: Option<Duration>,
    /// How often to look for jobs even if no bell rang; zero for never.
    #[serde(default, deserialize_with = "value::duration")]
    pub safety_poll: Option<Duration>,
    /// Where working folders are made.
    pub workdir: Option<PathBuf>,
    /// Whether to bring the schema up to date at the start.
    pub migrate: Option<bool>,
    /// How many connections executors share.
    pub pool_size: Option<usize>,
    /// Where to answer questions about this worker.
    pub listen: Option<SocketAddr>,
    /// Bearer token required for writes.
    pub token: Option<Secret>,
    /// A file that holds the token.
    pub token_file: Option<PathBuf>,
}

impl Config {
    /// Read the file at `path`.
    ///
    /// # Errors
    /// If it cannot be read, or says something it should not; the error names the line and the key.
    pub fn from_file(path: &Path) -> Result<Config> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::new(format!("cannot read {}: {error}", path.display())))?;
        Config::from_toml(&text).map_err(|error| error.in_context(&path.display().to_string()))
    }

    /// Read the file's text.
    ///
    /// # Errors
    /// If it says something it should not; the error names the line and the key.
    pub fn from_toml(text: &str) -> Result<Config> {
        // never the whole line, as the parser would show it: there may be a password in it
        let refused = |error: &toml::de::Error, path: Option<String>| {
            let line = error.span().map(|span| 1 + text[..span.start].matches('\n').count());
            let place = [line.map(|line| format!("line {line}")), path].into_iter().flatten();
            Error::new(format!("{}: {}", place.collect::<Vec<_>>().join(", "), error.message()))
        };
        let document = toml::Deserializer::parse(text).map_err(|error| refused(&error, None))?;
        let config: Config = serde_path_to_error::deserialize(document).map_err(|error| {
            let path = error.path().to_string();
            refused(error.inner(), (path != ".").then_some(path))
        })?;
        for (queue, slots) in &config.queues {
            check_queue(queue, *slots)?;
        }
        for command in config.commands.keys() {
            check_name("command", command, 200)?;
        }
        Ok(config)
    }
}

fn check_queue(queue: &str, slots: u32) -> Result<()> {
    check_name("queue", queue, 100)?;
    if !(1..=10_000).contains(&slots) {
        return Err(Error::new(format!(
            "queue {queue:?} has {slots} slots; it must have 1 to 10000"
        )));
    }
    Ok(())
}

fn check_name(kind: &str, name: &str, most: usize) -> Result<()> {
    let length = name.chars().count();
    if name.trim().is_empty() || length > most {
        return Err(Error::new(format!(
            "the {kind} name {name:?} has {length} characters; it must have 1 to {most}, and not only blanks"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
