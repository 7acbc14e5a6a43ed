//! The account of the server. Postgres refuses to run as root, so root runs it as an unprivileged account.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Another account to run the server as; only root needs one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Account {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
}

impl Account {
    /// The account that servers run as; `None` for the current one.
    pub fn for_servers() -> Result<Option<Account>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let passwd = std::fs::read_to_string("/etc/passwd").context("could not read /etc/passwd")?;
        ["postgres", "nobody"]
            .iter()
            .find_map(|name| account_in(&passwd, name))
            .map(Some)
            .context("Postgres refuses to run as root, and there is no `postgres` or `nobody` account to run it as")
    }
}

/// A command that runs as the given account, in a directory that account can access, without the `PG…` variables.
pub(super) fn command(program: &Path, account: Option<&Account>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"PG") {
            command.env_remove(name);
        }
    }
    // a locale that is not installed would prevent postgres from starting
    command.env("LC_ALL", "C").current_dir("/");
    if let Some(account) = account {
        // as root, std also drops the supplementary groups
        command.uid(account.uid).gid(account.gid);
    }
    command
}

/// Change the owner of a file or directory to the account.
pub(super) fn give(path: &Path, account: Option<&Account>) -> Result<()> {
    match account {
        None => Ok(()),
        Some(account) => std::os::unix::fs::chown(path, Some(account.uid), Some(account.gid))
            .with_context(|| format!("could not change the owner of {} to {}", path.display(), account.name)),
    }
}

fn account_in(passwd: &str, name: &str) -> Option<Account> {
    let fields: Vec<&str> = passwd
        .lines()
        .map(|line| line.split(':').collect())
        .find(|f: &Vec<_>| f[0] == name)?;
    // some systems write the id of nobody as -2, which has the same 32 bits
    let id = |field: usize| fields.get(field)?.parse::<i64>().ok().map(|id| id as u32);
    Some(Account {
        name: name.to_owned(),
        uid: id(2)?,
        gid: id(3)?,
    })
}
