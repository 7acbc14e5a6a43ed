//! A process that kills all programs when the worker is gone, even if it was killed. See guardian.sh.
//!
//! It is a shell script, because any program that embeds a worker can start one. Running the program itself again
//! would run its `main` again.

use std::collections::HashSet;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{LazyLock, Mutex};

use crate::execute::leftovers::{MARK, this_process};

const SCRIPT: &str = include_str!("guardian.sh");

/// Announce that a program is about to start. From now on it is killed with this process: by its mark until [`begun`]
/// has reported its group.
pub fn ready() {
    WATCH.lock().unwrap().told("ready\n");
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
    groups: HashSet<i32>,
    guardian: Option<Guardian>,
    /// Whether the failure to start one was logged.
    complained: bool,
}

impl Watch {
    fn begun(&mut self, group: i32) {
        self.groups.insert(group);
        self.told(&format!("begun {group}\n"));
    }

    /// Send this line; a new guardian gets the full list.
    fn told(&mut self, lines: &str) {
        if self.tell(lines).is_ok() {
            return;
        }
        // the first guardian, or a replacement: it gets the full list
        self.guardian = None;
        let all: String = self.groups.iter().map(|group| format!("begun {group}\n")).collect();
        let started = Guardian::start().and_then(|guardian| {
            self.guardian = Some(guardian);
            self.tell(&all)
        });
        if let Err(error) = started
            && !self.complained
        {
            self.complained = true;
            tracing::warn!(event = "guardian", %error, "programs would outlive this worker if it were killed: /bin/sh \
                cannot be run");
        }
    }

    fn ended(&mut self, group: i32) {
        self.groups.remove(&group);
        if self.tell(&format!("ended {group}\n")).is_err() {
            self.guardian = None;
        }
    }

    fn tell(&mut self, lines: &str) -> io::Result<()> {
        let guardian = self.guardian.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        guardian.input.write_all(lines.as_bytes())
    }
}

struct Guardian {
    process: Child,
    /// Closed by the system when this process ends; the guardian waits for that.
    input: ChildStdin,
}

impl Guardian {
    fn start() -> io::Result<Guardian> {
        let mut process = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "bugle-guardian", &format!("{MARK}={}-", this_process())])
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .current_dir("/")
            // not affected by Ctrl-C in a terminal
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let input = process.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        // a guardian that does not read is replaced rather than waited for
        rustix::io::ioctl_fionbio(&input, true)?;
        Ok(Guardian { process, input })
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
