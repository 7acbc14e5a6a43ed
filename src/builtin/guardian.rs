//! A process that kills all programs when the worker is gone, even if it was killed. See guardian.sh.
//!
//! It is a shell script, because any program that embeds a worker can start one. Running the program itself again
//! would run its `main` again.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{LazyLock, Mutex};

use crate::execute::leftovers::{MARK, this_process};

const SCRIPT: &str = include_str!("guardian.sh");

/// Announce that a program of the worker with this directory is about to start. From now on it is killed with this
/// process: by its mark until [`begun`] has reported its group.
pub fn ready(worker: &Path) {
    WATCH.lock().unwrap().ready(worker);
}

/// Report a process group that has started and must be killed with this process.
pub fn begun(group: i32) {
    WATCH.lock().unwrap().begun(group);
}

/// Report that a process group has ended.
pub fn ended(group: i32) {
    WATCH.lock().unwrap().ended(group);
}

static WATCH: LazyLock<Mutex<Watch>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Watch {
    /// Shared with the guardian, which reads it when this process is gone: it is never waited for.
    list: Option<File>,
    /// The line of each group.
    lines: HashMap<i32, u64>,
    /// Lines that are free.
    free: Vec<u64>,
    guardian: Option<Guardian>,
    /// Whether the failure to start one was logged.
    complained: bool,
}

impl Watch {
    /// There is a guardian: the first, or another if it was killed.
    fn ready(&mut self, worker: &Path) {
        if self.guardian.as_mut().is_some_and(Guardian::is_alive) {
            return;
        }
        if let Err(error) = self.start(worker) {
            self.complain(&error);
        }
    }

    fn start(&mut self, worker: &Path) -> io::Result<()> {
        self.guardian = None;
        let list = match &self.list {
            Some(list) => list,
            None => self.list.insert(nameless_file(worker)?),
        };
        self.guardian = Some(Guardian::start(list)?);
        Ok(())
    }

    fn begun(&mut self, group: i32) {
        let line = self.free.pop().unwrap_or(self.lines.len() as u64);
        self.lines.insert(group, line);
        self.write(line, &group.to_string());
    }

    fn ended(&mut self, group: i32) {
        if let Some(line) = self.lines.remove(&group) {
            self.free.push(line);
            self.write(line, "");
        }
    }

    fn write(&mut self, line: u64, text: &str) {
        let Some(list) = &self.list else { return };
        let text = format!("{text:<WIDTH$}\n");
        if let Err(error) = list.write_all_at(text.as_bytes(), line * text.len() as u64) {
            self.complain(&error);
        }
    }

    fn complain(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.complained, true) {
            tracing::warn!(event = "guardian", %error, "programs would outlive this worker if it were killed: /bin/sh \
                cannot be run");
        }
    }
}

/// As long as the longest process id.
const WIDTH: usize = 10;

#[cfg(target_os = "linux")]
fn nameless_file(_: &Path) -> io::Result<File> {
    use rustix::fs::{MemfdFlags, memfd_create};
    Ok(memfd_create("bugle-groups", MemfdFlags::CLOEXEC)?.into())
}

#[cfg(not(target_os = "linux"))]
fn nameless_file(worker: &Path) -> io::Result<File> {
    let path = worker.join("groups");
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

struct Guardian {
    process: Child,
    /// Closed by the system when this process ends; the guardian waits for that.
    _input: ChildStdin,
}

impl Guardian {
    fn start(list: &File) -> io::Result<Guardian> {
        let mut process = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "bugle-guardian", &format!("{MARK}={}-", this_process())])
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .current_dir("/")
            // not affected by Ctrl-C in a terminal
            .process_group(0)
            .stdin(Stdio::piped())
            // it reads from it: no other descriptor can be passed on without unsafe code
            .stdout(list.try_clone()?)
            .stderr(Stdio::null())
            .spawn()?;
        let input = process.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Guardian { process, _input: input })
    }

    fn is_alive(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
