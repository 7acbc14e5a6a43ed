//! The guardian: a small process that owns the server, so that it goes when its owner goes.
//!
//! It reads requests from its standard input, one JSON line each, and answers each with one. The end of the input means
//! that the owner is done or dead: then everything is stopped and removed. It runs in a process group of its own, where
//! a Ctrl-C in the terminal does not reach it before the owner is through with the server.

use std::io::{BufRead, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::folder::Folder;
use super::processes::{end_commands_guarded_by, end_group};
use super::server::{Server, Shutdown, Spec};

/// What the owner asks for.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    Prepare(Spec),
    Start,
    Stop,
    Crash,
    /// This process group shall end with the owner, before the server does.
    EndWithOwner(i32),
    /// That process group has ended by itself.
    Ended,
}

/// The port, or why not.
pub(super) type Reply = Result<u16, String>;

/// Be the guardian of the server in `folder`, until the owner at the other end of standard input is gone.
///
/// # Errors
/// When something could not be stopped or removed.
pub fn guard(folder: &Path) -> Result<()> {
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
    // last: by now it has begun, if the owner was killed while it started it
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
    /// Whether the owner has ever named a group.
    was_told: bool,
    port: u16,
}

/// Serve the owner until it closes its end, or this process is asked to end.
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
        // Nobody there to read it: the end of the input follows.
        let _ = writeln!(std::io::stdout(), "{}", serde_json::to_string(&reply)?);
    }
}

impl Guarded {
    /// Blocks: there is nothing else to do meanwhile, and each step has a limit of its own.
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
