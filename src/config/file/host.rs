//! One `[hosts.X]` section of the file.

use std::path::PathBuf;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error as _};

use super::command::environment;
use super::duration;
use crate::config::command::TIMEOUT;
use crate::config::{Cwd, HostConfig};

impl<'de> Deserialize<'de> for HostConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Written::deserialize(deserializer)?.try_into().map_err(D::Error::custom)
    }
}

/// The section as written.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    program: Vec<String>,
    processes: Option<u32>,
    concurrency: Option<u32>,
    max_jobs: Option<u64>,
    max_memory: Option<String>,
    env: Option<toml::Value>,
    cwd: Option<PathBuf>,
    #[serde(default, deserialize_with = "duration")]
    timeout: Option<Duration>,
}

impl TryFrom<Written> for HostConfig {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let host = HostConfig {
            processes: written.processes.unwrap_or(1),
            concurrency: written.concurrency,
            max_jobs: written.max_jobs,
            max_memory: written.max_memory.as_deref().map(size).transpose()?,
            env: written.env.map(environment).transpose()?.unwrap_or_default(),
            cwd: match written.cwd {
                None => Cwd::Worker,
                Some(folder) => Cwd::Folder(folder),
            },
            timeout: written.timeout.unwrap_or(TIMEOUT),
            ..HostConfig::program(written.program)
        };
        host.check()?;
        Ok(host)
    }
}

/// A size such as "512MB", in bytes. Units are powers of 1,024, as those of PostgreSQL.
fn size(text: &str) -> Result<u64, String> {
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let shift = match unit.trim() {
        "kB" | "KB" => 10,
        "MB" => 20,
        "GB" => 30,
        _ => {
            return Err(format!(
                "max_memory {text:?} is not a size; write it as \"512MB\" or \"2GB\""
            ));
        }
    };
    let bytes = number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift));
    bytes
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| format!("max_memory {text:?} is out of range"))
}
