//! The worker's configuration file: the queues it serves, commands that need no code, and hosts.
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
//!
//! [hosts.app]
//! program = ["python3", "-m", "app.jobs"]
//! ```
//!
//! The programs, statements and URLs are defined here and never by a job: a job only names a command and carries data.

mod command;
mod host;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error as _, Visitor};

use super::flags::parse_duration;
use super::settings::{check_name, check_queue};
use super::{CommandConfig, HostConfig, Secret};
use crate::error::{Error, Result};

/// The configuration file as written. [`Settings::resolve`](super::Settings::resolve) fills in what it leaves out.
#[derive(Debug, Clone, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Config {
    /// The database.
    pub database_url: Option<Secret>,
    /// The name of the worker.
    pub name: Option<String>,
    /// The queues to serve, each with its number of slots (jobs that run at once).
    #[serde(default)]
    pub queues: BTreeMap<String, u32>,
    /// Several databases, instead of `database_url` and `queues`.
    #[serde(default)]
    pub databases: BTreeMap<String, DatabaseConfig>,
    /// How many jobs of all these databases run at once.
    pub slots: Option<usize>,
    /// The commands that need no code.
    #[serde(default)]
    pub commands: BTreeMap<String, CommandConfig>,
    /// The hosts: long-lived processes that run jobs.
    #[serde(default)]
    pub hosts: BTreeMap<String, HostConfig>,
    /// How long running jobs may continue after the worker was asked to stop.
    #[serde(default, deserialize_with = "duration")]
    pub drain: Option<Duration>,
    /// How often to poll for jobs without a notification; zero for never.
    #[serde(default, deserialize_with = "duration")]
    pub safety_poll: Option<Duration>,
    /// The parent directory of the working directories of jobs.
    pub workdir: Option<PathBuf>,
    /// Whether to install or upgrade the schema at startup.
    pub migrate: Option<bool>,
    /// The size of the connection pool for executors.
    pub pool_size: Option<usize>,
    /// The address for metrics, health checks and the JSON API.
    pub listen: Option<SocketAddr>,
    /// Bearer token required for writes.
    pub token: Option<Secret>,
    /// A file that contains the token.
    pub token_file: Option<PathBuf>,
}

/// The table `[databases.NAME]` of the file.
#[derive(Debug, Clone, serde::Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct DatabaseConfig {
    /// How to connect.
    pub url: Secret,
    /// The queues to serve there, each with its number of slots.
    #[serde(default)]
    pub queues: BTreeMap<String, u32>,
}

impl Config {
    /// Read the file at `path`.
    ///
    /// # Errors
    /// If the file cannot be read or is invalid; the error names the line and the key.
    pub fn from_file(path: &Path) -> Result<Config> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::new(format!("cannot read {}: {error}", path.display())))?;
        Config::from_toml(&text).map_err(|error| error.in_context(&path.display().to_string()))
    }

    /// Parse the text of a configuration file.
    ///
    /// # Errors
    /// If it is invalid; the error names the line and the key.
    pub fn from_toml(text: &str) -> Result<Config> {
        // not the whole line, as the parser would show it, because it may contain a password
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
        for host in config.hosts.keys() {
            check_name("host", host, 100)?;
        }
        Ok(config)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // serde's own message would show the unexpected value
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) => Ok(Secret::new(text)),
            other => Err(D::Error::custom(format!(
                "expected a string or \"env:NAME\", but found a value of type {}",
                other.type_str()
            ))),
        }
    }
}

/// For the file: a duration such as "5m".
fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    struct Written;

    impl Visitor<'_> for Written {
        type Value = Duration;

        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            f.write_str("a duration such as \"30s\" or \"5m\"")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Duration, E> {
            parse_duration(text).map_err(E::custom)
        }
    }

    deserializer.deserialize_str(Written).map(Some)
}
