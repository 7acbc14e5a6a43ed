//! The guardian: a small process that owns the server and removes it when its owner exits.
//!
//! It reads requests from standard input, one JSON line each, and replies to each with one line. End of file means that
//! the owner is done or dead; then everything is stopped and removed. It runs in its own process group, so that a
//! Ctrl-C in the terminal does not stop it before the owner.

use std::io::{BufRead, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::folder::Folder;
use super::processes::{end_commands_guarded_by, end_group};
use super::server::{Server, Shutdown, Spec};
use super::told;

/// A request of the owner.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    Prepare(Spec),
    Start,
    Stop,
    Crash,
    /// Terminate this process group when the owner exits, before the server is stopped.
    EndWithOwner(i32),
    /// That process group has already ended.
    Ended,
}

/// The port, or an error.
pub(super) type Reply = Result<u16, String>;

/// Run as the guardian of the server in `folder` until the owner closes standard input.
///
/// # Errors
/// If something cannot be stopped or removed.
pub fn guard(folder: &Path) -> crate::Result<()> {
    guard_until_owner_ends(folder).map_err(told)
}

fn guard_until_owner_ends(folder: &Path) -> Result<()> {
    let folder = Folder::join(folder)?;
    let mut guarded = Guarded::default();
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(serve(&mut guarded))?;

    if let Some(group) = guarded.group {
        end_group(group);
    }
    let stopped = match &mut guarded.server {
        Some(server) => server.stop(server.last_shutdown()),
        None => Ok(()),
    };
    // last, because the owner may have been killed while it was starting one
    if !guarded.was_told {
        end_commands_guarded_by(folder.path());
    }
    std::fs::remove_dir_all(folder.path())
        .with_context(|| format!("could not remove {}", folder.path().display()))
        .and(stopped)
}

#[derive(Default)]
struct Guarded {
    server: Option<Server>,
    group: Option<i32>,
    /// Whether the owner has ever reported a group.
    was_told: bool,
    port: u16,
}

/// Serve the owner until it closes its end or this process is terminated.
async fn serve(guarded: &mut Guarded) -> Result<()> {
    let mut requests = lines_of_stdin();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    loop {
        let line = tokio::select! {
            line = requests.recv() => line,
            _ = terminate.recv() => None,
            _ = interrupt.recv() => None,
            _ = hangup.recv() => None,
        };
        let Some(line) = line else { return Ok(()) };
        let reply: Reply = guarded.fulfil(&line).map_err(|error| format!("{error:#}"));
        // the owner is gone; end of file follows
        let _ = writeln!(std::io::stdout(), "{}", serde_json::to_string(&reply)?);
    }
}

impl Guarded {
    /// Blocking is fine: there is nothing else to do, and each step has its own time limit.
    fn fulfil(&mut self, line: &str) -> Result<u16> {
        match serde_json::from_str(line)? {
            Request::Prepare(spec) => self.server = Some(Server::prepare(spec)?),
            Request::Start => self.port = self.server()?.start()?,
            Request::Stop => self.server()?.stop(Shutdown::Fast)?,
            Request::Crash => self.server()?.stop(Shutdown::Immediate)?,
            Request::EndWithOwner(group) => (self.group, self.was_told) = (Some(group), true),
            Request::Ended => self.group = None,
        }
        Ok(self.port)
    }

    fn server(&mut self) -> Result<&mut Server> {
        self.server.as_mut().context("no server was prepared")
    }
}

fn lines_of_stdin() -> mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}
