//! A program and its descendants: a process group, which is terminated as a whole, and processes that left the group.

use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use super::guardian;
use crate::execute::descriptors;
use crate::execute::leftovers::{self, MARK, Run};

/// A running program, the leader of its process group. Dropping it kills what is left of the group: an attempt is
/// dropped when its time limit is over, and none of its processes may continue.
pub struct Group {
    child: Child,
    /// `None` once no process is left to kill, because the id may then be reused.
    id: Option<Pid>,
    run: Run,
}

/// The worker's ends of the program's pipes.
pub struct Pipes {
    pub stdin: ChildStdin,
    pub stdout: ChildStdout,
    pub stderr: ChildStderr,
}

impl Group {
    /// Start the program for the worker with this working directory.
    pub fn spawn(command: &mut Command, worker: &Path) -> io::Result<(Group, Pipes)> {
        let run = Run::begin(worker);
        guardian::ready(worker);
        let mut child = command
            .env(MARK, run.mark())
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let pipes = Pipes {
            stdin: child.stdin.take().expect("piped"),
            stdout: child.stdout.take().expect("piped"),
            stderr: child.stderr.take().expect("piped"),
        };
        let id = child.id().and_then(|id| Pid::from_raw(id as i32));
        if let Some(id) = id {
            guardian::begun(id.as_raw_nonzero().get());
            descriptors::restore(id);
        }
        Ok((Group { child, id, run }, pipes))
    }

    /// The id of its first process.
    pub fn process_id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Kill the group, and wait until its first process is gone.
    pub async fn kill_now(&mut self) -> io::Result<ExitStatus> {
        self.signal(Signal::KILL);
        self.ended().await
    }

    /// Wait for the program to exit. Processes left in its group are killed at once, other descendants soon after.
    pub async fn ended(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await;
        self.kill();
        status
    }

    /// Terminate the group and the descendants that left it; kill all of them if the program has not exited within
    /// `grace`. None of them is left when this returns.
    pub async fn stop(&mut self, grace: Duration) -> io::Result<ExitStatus> {
        let strays = match self.id {
            Some(id) => self.run.strays(id.as_raw_nonzero().get()).await,
            None => Vec::new(),
        };
        self.signal(Signal::TERM);
        strays.iter().for_each(|process| process.signal(Signal::TERM));
        let status = match tokio::time::timeout(grace, self.ended()).await {
            Ok(status) => status,
            Err(_) => {
                self.signal(Signal::KILL);
                self.ended().await
            }
        };
        strays.iter().for_each(|process| process.signal(Signal::KILL));
        leftovers::sweep().await;
        status
    }

    fn signal(&self, signal: Signal) {
        if let Some(id) = self.id {
            let _ = kill_process_group(id, signal);
        }
    }

    fn kill(&mut self) {
        self.signal(Signal::KILL);
        if let Some(id) = self.id.take() {
            guardian::ended(id.as_raw_nonzero().get());
            self.run.end();
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}
