//! The socket of a program that runs one job: on it, the program may say what a host says about a job.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::message::{LogLine, Rejected, ToHost};
use super::pool::not_held;
use super::socket::{self, Lines, Outbox};
use super::talk::{Ear, Jobs, Talk};
use crate::db::connect;
use crate::execute::context::Context;
use crate::execute::executor::Outcome;

/// How long to read on after the program has exited. Only a process that it has left behind can still write.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The socket of one attempt. Removed when dropped.
pub struct Mailbox {
    path: PathBuf,
    said: Arc<Mutex<Option<Outcome>>>,
    over: CancellationToken,
    connections: TaskTracker,
}

impl Mailbox {
    /// Open a socket for the program that runs this job.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn open(context: &Context) -> io::Result<Mailbox> {
        static OPENED: AtomicU64 = AtomicU64::new(1);
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        let path = context.inner.workspaces.join(format!("job-{number}.sock"));
        let listener = socket::listen(&path)?;
        let mailbox = Mailbox {
            path,
            said: Arc::default(),
            over: CancellationToken::new(),
            connections: TaskTracker::new(),
        };
        let jobs = OfProgram {
            talk: Talk::new(context.clone()),
            said: mailbox.said.clone(),
        };
        let (over, connections) = (mailbox.over.clone(), mailbox.connections.clone());
        mailbox
            .connections
            .spawn(accept(listener, Arc::new(jobs), over, connections));
        Ok(mailbox)
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The last outcome that the program has sent, after it has exited.
    pub async fn outcome(self) -> Option<Outcome> {
        self.over.cancel();
        self.connections.close();
        let _ = tokio::time::timeout(LAST_WORDS, self.connections.wait()).await;
        self.said.lock().unwrap().take()
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.over.cancel();
        let _ = std::fs::remove_file(&self.path);
    }
}

async fn accept(listener: UnixListener, jobs: Arc<OfProgram>, over: CancellationToken, connections: TaskTracker) {
    let attend = |stream: UnixStream| drop(connections.spawn(attend(stream, jobs.clone())));
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                attend(stream);
            },
            () = over.cancelled() => break,
        }
    }
    // those that connected just before the program exited
    while let Some(Ok((stream, _))) = listener.accept().now_or_never() {
        attend(stream);
    }
}

async fn attend(stream: UnixStream, jobs: Arc<OfProgram>) {
    let (from, to) = stream.into_split();
    let (mut lines, out) = (Lines::new(from), Outbox::open(to));
    let ear = Ear::new(jobs, out.clone());
    let rejected = loop {
        match lines.next() {
            Ok(Some(text)) => match ear.hear(text).await {
                Ok(()) => continue,
                Err(rejected) => break rejected,
            },
            Ok(None) => {}
            Err(rejected) => break rejected,
        }
        if !lines.more().await.unwrap_or(false) {
            return;
        }
    };
    out.send(&ToHost::Error {
        error: &rejected.error,
        code: rejected.code,
        id: None,
    });
    out.close();
}

/// The one job of a program.
struct OfProgram {
    talk: Arc<Talk>,
    said: Arc<Mutex<Option<Outcome>>>,
}

impl Jobs for Arc<OfProgram> {
    fn find(&self, named: Option<(i64, Option<i64>)>) -> Result<Arc<Talk>, Rejected> {
        let held = self.talk.context.job().held;
        match named {
            Some((id, claim)) if id != held.id || claim.is_some_and(|claim| claim != held.claim) => Err(not_held()),
            _ => Ok(self.talk.clone()),
        }
    }

    /// Of several outcomes, the last one decides.
    fn ended(&self, _: &Arc<Talk>, outcome: Outcome) -> bool {
        *self.said.lock().unwrap() = Some(outcome);
        true
    }

    fn pong(&self) {}

    fn pool(&self) -> connect::Pool {
        self.talk.context.pool().clone()
    }

    fn log(&self, _: Option<i64>, line: &LogLine) {
        let context = &self.talk.context;
        let (job, command, text) = (context.id(), &context.job().command, &line.message);
        match line.level {
            tracing::Level::ERROR => tracing::error!(event = "program_log", job, command, "{text}"),
            tracing::Level::WARN => tracing::warn!(event = "program_log", job, command, "{text}"),
            tracing::Level::DEBUG => tracing::debug!(event = "program_log", job, command, "{text}"),
            _ => tracing::info!(event = "program_log", job, command, "{text}"),
        }
    }
}
