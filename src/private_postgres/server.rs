//! The server itself: creating its data directory, starting and stopping the postmaster. Only used by the guardian.

use std::fs::{self, File};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::account::{self, Account};
use super::processes::wait_until;

/// The specification of a server.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Spec {
    /// The directory with the socket, the log and usually the data.
    pub folder: PathBuf,
    pub data: PathBuf,
    pub bin_dir: PathBuf,
    pub account: Option<Account>,
    pub settings: Vec<(String, String)>,
    pub tcp: bool,
    /// Only needed for TCP: other users cannot access the socket directory, but they can connect to 127.0.0.1.
    pub password: String,
    /// Whether the data is kept, so that the server must be stopped cleanly.
    pub keep: bool,
}

/// The file with the password, next to the data, because the catalog of kept data contains it.
pub(super) const PASSWORD: &str = "bugle.password";

/// The file with the last port, next to kept data.
const PORT: &str = "bugle.port";

#[derive(Debug)]
pub(super) struct Server {
    spec: Spec,
    port: Option<u16>,
    postmaster: Option<Child>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shutdown {
    /// Clients are disconnected and data is flushed.
    Fast,
    /// Like a crash: the next start recovers from the WAL.
    Immediate,
}

impl Server {
    /// Create the data directory, unless it exists, and write the settings.
    pub fn prepare(spec: Spec) -> Result<Server> {
        if !spec.data.join("PG_VERSION").exists() {
            initdb(&spec)?;
        }
        write_settings(&spec)?;
        Ok(Server {
            spec,
            port: None,
            postmaster: None,
        })
    }

    /// Start, wait until it is ready, and return the port.
    pub fn start(&mut self) -> Result<u16> {
        if self
            .postmaster
            .as_mut()
            .is_some_and(|postmaster| matches!(postmaster.try_wait(), Ok(None)))
        {
            bail!("the server is already running");
        }
        let remembered = self.remembered_port();
        // restarts keep the port; before the first start, another process may take the port that was found free
        for attempt in 0.. {
            let port = match self.port {
                Some(port) => port,
                None if attempt == 0 && remembered.is_some() => remembered.unwrap_or_default(),
                None if self.spec.tcp => TcpListener::bind("127.0.0.1:0")?.local_addr()?.port(),
                None => 5432,
            };
            match self.start_on(port) {
                Ok(()) => {
                    self.port = Some(port);
                    if self.spec.keep && self.spec.tcp {
                        fs::write(self.spec.data.join(PORT), port.to_string())?;
                    }
                    return Ok(port);
                }
                Err(error) if is_port_taken(&error) && self.port.is_none() && attempt < 5 => {}
                Err(error) => return Err(error),
            }
        }
        unreachable!("the last attempt returns its error")
    }

    /// The port of kept data, unless it is taken: connection strings stay the same.
    fn remembered_port(&self) -> Option<u16> {
        let port = fs::read_to_string(self.spec.data.join(PORT))
            .ok()?
            .trim()
            .parse()
            .ok()?;
        TcpListener::bind(("127.0.0.1", port)).is_ok().then_some(port)
    }

    /// Stop the server and wait. If it does not stop, escalate.
    pub fn stop(&mut self, how: Shutdown) -> Result<()> {
        let Some(mut postmaster) = self.postmaster.take() else {
            return Ok(());
        };
        let steps = match how {
            Shutdown::Fast => &[Signal::INT, Signal::QUIT, Signal::KILL][..],
            Shutdown::Immediate => &[Signal::QUIT, Signal::KILL],
        };
        for &signal in steps {
            if postmaster.try_wait()?.is_some() {
                return Ok(());
            }
            kill_process(Pid::from_child(&postmaster), signal)?;
            if wait_until(Duration::from_secs(15), || matches!(postmaster.try_wait(), Ok(Some(_)))) {
                return Ok(());
            }
        }
        bail!("postgres (process {}) cannot be stopped", postmaster.id())
    }

    /// How to stop it when it is no longer needed.
    pub fn last_shutdown(&self) -> Shutdown {
        if self.spec.keep {
            Shutdown::Fast
        } else {
            Shutdown::Immediate
        }
    }

    fn start_on(&mut self, port: u16) -> Result<()> {
        let spec = &self.spec;
        let log_path = spec.folder.join("log");
        let log = File::options().create(true).append(true).open(&log_path)?;
        let before = log.metadata()?.len();
        let mut postmaster = account::command(&spec.bin_dir.join("postgres"), spec.account.as_ref())
            .arg("-D")
            .arg(&spec.data)
            .arg("-k")
            .arg(&spec.folder)
            .args(["-h", if spec.tcp { "127.0.0.1" } else { "" }])
            .args(["-p", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("could not run {}/postgres", spec.bin_dir.display()))?;

        let mut ended = None;
        let answers = wait_until(Duration::from_secs(120), || {
            ended = postmaster.try_wait().ok().flatten();
            ended.is_some() || is_ready(&spec.data, postmaster.id())
        });
        if answers && ended.is_none() {
            self.postmaster = Some(postmaster);
            return Ok(());
        }
        let log = fs::read(&log_path).unwrap_or_default();
        let said = String::from_utf8_lossy(&log[log.len().min(before as usize)..])
            .trim()
            .to_owned();
        if ended.is_none() {
            self.postmaster = Some(postmaster);
            self.stop(Shutdown::Immediate)?;
            bail!("postgres did not become ready within two minutes:\n{said}");
        }
        bail!("postgres did not start:\n{said}")
    }
}

fn initdb(spec: &Spec) -> Result<()> {
    let password = spec.folder.join(PASSWORD);
    write_private(&password, &spec.password, spec.account.as_ref())?;
    let output = account::command(&spec.bin_dir.join("initdb"), spec.account.as_ref())
        .args([
            "--username=postgres",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            "--no-instructions",
        ])
        .args(["--auth-local=trust", "--auth-host=scram-sha-256"])
        .arg("--pwfile")
        .arg(&password)
        .arg("--pgdata")
        .arg(&spec.data)
        .output()
        .with_context(|| format!("could not run {}/initdb", spec.bin_dir.display()))?;
    fs::remove_file(&password)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let hint = spec.account.as_ref().map_or(String::new(), |account| {
            format!(
                "\nhint: it ran as user {0}, because Postgres refuses to run as root; {0} must be able to access it",
                account.name
            )
        });
        bail!(
            "initdb could not create {}:\n{}{hint}",
            spec.data.display(),
            said.trim()
        );
    }
    let mut conf = File::options().append(true).open(spec.data.join("postgresql.conf"))?;
    writeln!(conf, "include_if_exists = 'bugle.conf'")?;
    write_private(&spec.data.join(PASSWORD), &spec.password, spec.account.as_ref())
}

/// In a file rather than on the command line, so that `alter system` can change them.
fn write_settings(spec: &Spec) -> Result<()> {
    let mut conf = String::from("# Written at each start.\n");
    for (name, value) in &spec.settings {
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c)) {
            bail!("`{name}` is not the name of a setting");
        }
        conf += &format!("{name} = '{}'\n", value.replace('\'', "''"));
    }
    let path = spec.data.join("bugle.conf");
    write_private(&path, &conf, spec.account.as_ref())
}

fn write_private(path: &Path, text: &str, account: Option<&Account>) -> Result<()> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    options
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("could not write {}", path.display()))?;
    account::give(path, account)
}

/// The postmaster writes its state to the eighth line of its lock file; `pg_ctl --wait` reads it, too.
fn is_ready(data: &Path, postmaster: u32) -> bool {
    let Ok(text) = fs::read_to_string(data.join("postmaster.pid")) else {
        return false;
    };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let answers = lines.get(7).is_some_and(|state| ["ready", "standby"].contains(state));
    lines.first() == Some(&postmaster.to_string().as_str()) && answers
}

fn is_port_taken(error: &anyhow::Error) -> bool {
    error.to_string().contains("could not create any TCP/IP sockets")
}
