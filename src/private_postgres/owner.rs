//! The owner's side: a handle of a running server.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::{Access, access, statvfs};

use super::account::{self, Account};
use super::find::{Binaries, find};
use super::folder::{self, Folder};
use super::guard::{Reply, Request};
use super::processes::end_orphaned_postmaster;
use super::server::{PASSWORD, Spec};
use super::{Options, told};

/// A running private server. Dropping it stops the server and removes everything except data that is to be kept.
///
/// ```no_run
/// use bugle::private_postgres::{Options, PrivatePostgres};
///
/// let server = PrivatePostgres::start(&Options::default())?;
/// println!("psql '{}'", server.url("postgres"));
/// # Ok::<(), bugle::Error>(())
/// ```
#[derive(Debug)]
pub struct PrivatePostgres {
    binaries: Binaries,
    data: PathBuf,
    password: String,
    tcp: bool,
    port: u16,
    guardian: Child,
    /// Closing it makes the guardian stop.
    requests: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
    /// Locked until the end, so that no other process sweeps it.
    folder: Folder,
}

/// The path of the socket is limited to 104 bytes; the temporary directory of some systems is too long for that.
const ON_DISK: &str = "/tmp";
/// A file system in memory. `CREATE DATABASE` makes hundreds of files, and takes 120 to 270 ms on a disk of which tests
/// create and drop many, 31 ms here.
const IN_MEMORY: &str = "/dev/shm";
/// What is free in memory at least, in bytes, for a server to be put there.
const ROOM: u64 = 4 << 30;
const PREFIX: &str = "bugle-pg-";

impl PrivatePostgres {
    /// Find or obtain Postgres, start a server and wait until it is ready.
    ///
    /// # Errors
    /// If no Postgres is found, or it does not start; the error contains its output.
    pub fn start(options: &Options) -> crate::Result<PrivatePostgres> {
        PrivatePostgres::begin(options).map_err(told)
    }

    fn begin(options: &Options) -> Result<PrivatePostgres> {
        let binaries = find(version_wanted(options)?, options.obtain)?;
        let account = Account::for_servers()?;
        let bugle = guardian_program(options)?;
        sweep(account.as_ref());

        let folder = match fits_in_memory(options) {
            true => Folder::create(Path::new(IN_MEMORY), PREFIX),
            false => Folder::create(Path::new(ON_DISK), PREFIX),
        }?;
        account::give(folder.path(), account.as_ref())?;
        let data = match &options.keep {
            None => folder.path().join("data"),
            Some(place) => kept_at(place, account.as_ref())?,
        };
        let password =
            std::fs::read_to_string(data.join(PASSWORD)).unwrap_or_else(|_| uuid::Uuid::new_v4().simple().to_string());
        let mut guardian = Command::new(&bugle)
            .arg("guard-postgres")
            .arg(folder.path())
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("could not run {}", bugle.display()))?;
        let (requests, replies) = (guardian.stdin.take(), guardian.stdout.take());
        let mut server = PrivatePostgres {
            replies: BufReader::new(replies.context("the guardian has no output")?),
            requests,
            guardian,
            tcp: options.tcp,
            port: 0,
            binaries,
            data,
            password,
            folder,
        };
        server.ask(&Request::Prepare(server.spec(options, account)))?;
        server.port = server.ask(&Request::Start)?;
        Ok(server)
    }

    /// The URL of a database as the superuser `postgres`, through the Unix socket.
    pub fn url(&self, database: &str) -> String {
        let host = percent_encoded(&self.folder.path().to_string_lossy());
        format!(
            "postgresql://postgres@{host}:{}/{}",
            self.port,
            percent_encoded(database)
        )
    }

    /// The same through 127.0.0.1, if [`Options::tcp`] is set.
    pub fn tcp_url(&self, database: &str) -> Option<String> {
        let (port, password) = (self.port, &self.password);
        self.tcp.then(|| {
            format!(
                "postgresql://postgres:{password}@127.0.0.1:{port}/{}",
                percent_encoded(database)
            )
        })
    }

    /// The directory of the Unix socket, which clients use as the host.
    pub fn host(&self) -> &Path {
        self.folder.path()
    }

    /// The port: part of the socket's name, and the TCP port with [`Options::tcp`]. Restarts keep it.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The installation this server runs from.
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// The data directory.
    pub fn data_dir(&self) -> &Path {
        &self.data
    }

    /// The server's log.
    pub fn log(&self) -> String {
        let log = std::fs::read(self.folder.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Stop cleanly: clients are disconnected and data is flushed. The server can be started again.
    ///
    /// # Errors
    /// If it cannot be stopped.
    pub fn stop(&mut self) -> crate::Result<()> {
        self.ask(&Request::Stop).map(drop).map_err(told)
    }

    /// Crash: all processes end immediately and nothing is flushed. The server can be started again and then recovers.
    ///
    /// # Errors
    /// If it cannot be stopped.
    pub fn kill(&mut self) -> crate::Result<()> {
        self.ask(&Request::Crash).map(drop).map_err(told)
    }

    /// Start the stopped or crashed server again, with the same data and address.
    ///
    /// # Errors
    /// If it is running, or does not start; the error contains its output.
    pub fn start_again(&mut self) -> crate::Result<()> {
        self.port = self.ask(&Request::Start).map_err(told)?;
        Ok(())
    }

    /// Terminate a process group when this process ends, before the server is stopped. `None` undoes this.
    ///
    /// # Errors
    /// If the guardian is gone.
    pub fn end_with_owner(&mut self, group: Option<i32>) -> crate::Result<()> {
        let ended_with_us = group.map_or(Request::Ended, Request::EndWithOwner);
        self.ask(&ended_with_us).map(drop).map_err(told)
    }

    fn spec(&self, options: &Options, account: Option<Account>) -> Spec {
        let on_off = |on: bool| if on { "on" } else { "off" };
        let chosen = [
            ("max_connections", "300"),
            ("fsync", on_off(options.durable)),
            ("full_page_writes", on_off(options.durable)),
        ];
        let chosen = chosen.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Spec {
            folder: self.folder.path().to_owned(),
            data: self.data.clone(),
            bin_dir: self.binaries.dir.clone(),
            account,
            settings: chosen.into_iter().chain(options.settings.iter().cloned()).collect(),
            tcp: options.tcp,
            password: self.password.clone(),
            keep: options.keep.is_some(),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<u16> {
        let gone = "the server's guardian (bugle guard-postgres) is gone";
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        self.requests
            .as_mut()
            .context(gone)?
            .write_all(line.as_bytes())
            .context(gone)?;
        let mut answer = String::new();
        if self.replies.read_line(&mut answer)? == 0 {
            bail!(gone);
        }
        serde_json::from_str::<Reply>(&answer)?.map_err(|error| anyhow!(error))
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        drop(self.requests.take());
        let _ = self.guardian.wait();
        // only happens if the guardian was killed
        if self.folder.path().exists() {
            end_orphaned_postmaster(self.folder.path());
            let _ = std::fs::remove_dir_all(self.folder.path());
        }
    }
}

/// Existing data can only be read by the version that wrote it.
fn version_wanted(options: &Options) -> Result<Option<u32>> {
    let Some(place) = &options.keep else {
        return Ok(options.version);
    };
    let Ok(text) = std::fs::read_to_string(place.join("PG_VERSION")) else {
        return Ok(options.version);
    };
    let kept: u32 = text
        .trim()
        .parse()
        .with_context(|| format!("{}/PG_VERSION is not a version", place.display()))?;
    match options.version {
        Some(version) if version != kept => bail!(
            "{} was created by PostgreSQL {kept}, but {version} was requested\n\
             hint: use version {kept}, or delete that directory to start over",
            place.display()
        ),
        _ => Ok(Some(kept)),
    }
}

fn guardian_program(options: &Options) -> Result<PathBuf> {
    let named = options.bugle_bin.clone();
    named
        .or_else(|| std::env::var_os("BUGLE_BIN").map(PathBuf::from))
        .context("a private server needs the `bugle` program\nhint: set Options::bugle_bin or BUGLE_BIN to its path")
}

fn fits_in_memory(options: &Options) -> bool {
    let is_volatile = !options.durable && options.keep.is_none();
    let has_room = || statvfs(IN_MEMORY).is_ok_and(|memory| memory.f_bavail * memory.f_frsize >= ROOM);
    let may_write = || access(IN_MEMORY, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    cfg!(target_os = "linux") && is_volatile && has_room() && may_write()
}

/// Remove what owners left behind whose guardians were killed, too.
fn sweep(account: Option<&Account>) {
    let ours = rustix::process::geteuid().as_raw();
    let owners = [ours, account.map_or(ours, |account| account.uid)];
    for place in [ON_DISK, IN_MEMORY] {
        folder::sweep(Path::new(place), PREFIX, &owners, end_orphaned_postmaster);
    }
}

fn kept_at(place: &Path, account: Option<&Account>) -> Result<PathBuf> {
    std::fs::create_dir_all(place).with_context(|| format!("could not create {}", place.display()))?;
    let place = place.canonicalize()?;
    // Postgres must own it; a directory with contents is owned by the user, or was changed before
    if std::fs::read_dir(&place)?.next().is_none() {
        account::give(&place, account)?;
    }
    Ok(place)
}

fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |encoded, byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => encoded + &char::from(byte).to_string(),
        _ => encoded + &format!("%{byte:02X}"),
    })
}
