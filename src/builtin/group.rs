//! A program and everything it starts: a process group, which ends as a whole.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use crate::descriptors;

/// A running program, first of its process group. What is left of the group when this is dropped is killed: an attempt
/// is dropped when its time is over, and nothing of it may go on.
pub struct Group {
    child: Child,
    /// None once there is nobody left to kill: the number may then belong to somebody else.
    id: Option<Pid>,
}

/// The worker's ends of its pipes.
pub struct Pipes {
    pub stdin: ChildStdin,
    pub stdout: ChildStdout,
    pub stderr: ChildStderr,
}

impl Group {
    pub fn spawn(command: &mut Command) -> io::Result<(Group, Pipes)> {
        let mut child = command
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
        id.into_iter().for_each(descriptors::restore);
        Ok((Group { child, id }, pipes))
    }

    /// Wait until the program has ended. What it has left running in its group is killed.
    pub async fn ended(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await;
        self.kill();
        status
    }

    /// Ask the group to end, and kill it if it has not within `grace`.
    pub async fn stop(&mut self, grace: Duration) -> io::Result<ExitStatus> {
        self.signal(Signal::TERM);
        if let Ok(status) = tokio::time::timeout(grace, self.ended()).await {
            return status;
        }
        self.signal(Signal::KILL);
        self.ended().await
    }

    fn signal(&self, signal: Signal) {
        if let Some(id) = self.id {
            let _ = kill_process_group(id, signal);
        }
    }

    fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.id = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}
