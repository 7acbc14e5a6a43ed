//! Whether a program that was run left anything behind: a process, or the folder of a private server.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::poll::eventually_blocking;

/// A run of the binary that can be told from all others: whatever it starts inherits a variable of its own.
pub struct Marked {
    pub process: Child,
    marker: String,
    known: Mutex<Vec<(u32, String)>>,
}

impl Marked {
    pub fn start(command: &mut Command) -> Marked {
        let marker = format!("MARKER_{:016x}", fastrand::u64(..));
        let process = command
            .env(&marker, "yes")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        Marked {
            process,
            marker,
            known: Mutex::default(),
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it is running");
    }

    /// The command lines of all that it started and that still runs, with their ids. Programs of a worker do not
    /// inherit the variable: they are known by their parents, and remembered. Empty on systems without /proc.
    pub fn processes(&self) -> Vec<(u32, String)> {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let all: Vec<(u32, u32, String)> = ids.filter_map(|id| Some((id, parent(id)?, command_line(id)))).collect();
        let mut known = self.known.lock().unwrap();
        known.retain(|process| all.iter().any(|(id, _, line)| *process == (*id, line.clone())));
        loop {
            let is_ours = |(id, parent, _): &&(u32, u32, String)| {
                !known.iter().any(|(known, _)| known == id)
                    && (self.is_marked(*id) || known.iter().any(|(known, _)| known == parent))
            };
            let found: Vec<_> = all.iter().filter(is_ours).collect();
            if found.is_empty() {
                return known.clone();
            }
            known.extend(found.into_iter().map(|(id, _, line)| (*id, line.clone())));
        }
    }

    fn is_marked(&self, id: u32) -> bool {
        let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(&self.marker)
    }

    /// Wait until it has started a process like this, and return the command line.
    pub fn wait_for(&self, like: &str) -> String {
        let mut found = None;
        eventually_blocking(like, || {
            found = self.processes().into_iter().find(|(_, line)| line.contains(like));
            found.is_some()
        });
        found.expect("found").1
    }

    /// The folder of its private server, once it has one.
    pub fn folder(&self) -> PathBuf {
        let line = self.wait_for("guard-postgres /");
        let folder = line
            .split(' ')
            .find(|word| word.contains("/bugle-pg-"))
            .expect("a folder");
        PathBuf::from(folder)
    }

    /// Wait for its end: exit code (none if it was killed), output, errors.
    pub fn end(&mut self) -> (Option<i32>, String, String) {
        use std::io::Read;
        let (mut out, mut err) = (String::new(), String::new());
        // what it says does not fill a pipe
        eventually_blocking("the end", || self.process.try_wait().expect("a status").is_some());
        let status = self.process.wait().expect("a status");
        self.process.stdout.take().map(|mut pipe| pipe.read_to_string(&mut out));
        self.process.stderr.take().map(|mut pipe| pipe.read_to_string(&mut err));
        (status.code(), out, err)
    }

    pub fn nothing_is_left(&self, folder: Option<&Path>) {
        eventually_blocking("every process to end", || self.processes().is_empty());
        if let Some(folder) = folder {
            eventually_blocking("the folder to be removed", || !folder.exists());
        }
    }
}

impl Drop for Marked {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// None for one that has ended and was not waited for.
fn parent(id: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    fields.next()?.parse().ok().filter(|_| state != "Z")
}

fn command_line(id: u32) -> String {
    let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ")
}
