//! Inspecting and terminating processes by id.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpgid, kill_process, kill_process_group, test_kill_process_group};

/// Poll every few milliseconds until `done`, for at most `limit`. Returns whether it happened.
pub(super) fn wait_until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while !done() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Terminate a process group, then kill it.
pub(super) fn end_group(group: i32) {
    let Some(group) = Pid::from_raw(group) else {
        return;
    };
    let gone = || test_kill_process_group(group).is_err();
    for signal in [Signal::TERM, Signal::KILL] {
        // an error means that it is already gone
        let _ = kill_process_group(group, signal);
        if wait_until(Duration::from_secs(3), gone) {
            return;
        }
    }
}

/// An environment variable that tells which guardian must terminate a command: that of this directory.
pub(crate) const GUARDED_BY: &str = "BUGLE_GUARDED_BY";

/// Terminate the commands with this variable, for an owner that was killed between starting a command and reporting its
/// group. Needs `/proc`.
pub(super) fn end_commands_guarded_by(folder: &Path) {
    let mark = format!("{GUARDED_BY}={}", folder.display());
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for id in processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
        let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        if environment
            .split(|byte| *byte == 0)
            .any(|entry| entry == mark.as_bytes())
            && let Ok(group) = getpgid(Pid::from_raw(id))
        {
            end_group(group.as_raw_nonzero().get());
        }
    }
}

/// Terminate an orphaned postmaster, if there is one. Its id is in the lock file next to its socket.
///
/// That id may have been reused, so the command line must contain the same directory.
pub(super) fn end_orphaned_postmaster(folder: &Path) {
    let Some(id) = socket_owner(folder) else {
        return;
    };
    let Some(pid) = Pid::from_raw(id) else { return };
    let folder = folder.to_string_lossy();
    let gone = || !command_line(id).is_some_and(|line| line.contains(&*folder));
    for signal in [Signal::QUIT, Signal::KILL] {
        if gone() {
            return;
        }
        let _ = kill_process(pid, signal);
        if wait_until(Duration::from_secs(10), gone) {
            return;
        }
    }
}

fn socket_owner(folder: &Path) -> Option<i32> {
    let lock = std::fs::read_dir(folder)
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(".s.PGSQL.") && name.ends_with(".lock")
        })?;
    std::fs::read_to_string(lock).ok()?.lines().next()?.trim().parse().ok()
}

/// Empty for a zombie, `None` for no process.
fn command_line(id: i32) -> Option<String> {
    if Path::new("/proc/self/cmdline").exists() {
        let line = std::fs::read(format!("/proc/{id}/cmdline")).ok()?;
        return Some(String::from_utf8_lossy(&line).into_owned());
    }
    let output = Command::new("ps")
        .args(["-o", "command=", "-p", &id.to_string()])
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;

    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_command_that_says_who_guards_it_is_ended_and_no_other() {
        let start = |folder: &str| {
            let mut command = Command::new("sleep");
            command.arg("600").env(GUARDED_BY, folder).process_group(0);
            command.spawn().unwrap()
        };
        let folder = format!("/nowhere/{}", std::process::id());
        let (mut ours, mut other) = (start(&folder), start(&format!("{folder}0")));

        std::thread::scope(|scope| {
            let ended = scope.spawn(|| ours.wait().unwrap());
            end_commands_guarded_by(Path::new(&folder));
            assert!(!ended.join().unwrap().success());
        });

        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
