//! Processes that a program leaves behind. Its process group is killed with it, but a process can leave the group
//! (`setsid`).
//!
//! Every program has a unique mark in its environment, `BUGLE_RUN`, which all its descendants inherit. Processes with
//! the mark of a finished run are killed with all their descendants. This needs `/proc`: on systems other than Linux,
//! only process groups are killed. A process that clears its environment is found as long as its parent lives.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Condvar, LazyLock, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

/// The variable that contains the mark.
pub const MARK: &str = "BUGLE_RUN";

/// The minimum interval between two background sweeps.
const PAUSE: Duration = Duration::from_millis(100);
/// The fraction of one core that background sweeps may use.
const SHARE: u32 = 30;
/// How often to check killed processes that are still alive.
const TRIES: usize = 200;

/// The name of this process in all its marks, unique among all processes, now and later.
pub fn this_process() -> &'static str {
    static NAME: LazyLock<String> = LazyLock::new(|| {
        let random: String = std::iter::repeat_with(fastrand::alphanumeric).take(12).collect();
        format!("worker-{}-{random}", std::process::id())
    });
    &NAME
}

/// The runs of this process, and which of them are not finished.
#[derive(Clone)]
struct Runs {
    begun: u64,
    running: BTreeSet<u64>,
}

static RUNS: Mutex<Runs> = Mutex::new(Runs {
    begun: 0,
    running: BTreeSet::new(),
});

impl Runs {
    /// Whether this is the mark of a run of this process that had finished when this snapshot was taken. Runs that
    /// started later have not.
    fn is_over(&self, mark: &str) -> bool {
        let run = mark.strip_prefix(this_process()).and_then(|rest| rest.rsplit_once('.'));
        let run = run.and_then(|(_, run)| run.parse::<u64>().ok());
        run.is_some_and(|run| run <= self.begun && !self.running.contains(&run))
    }
}

/// One run of a program. It is finished at the latest when this is dropped.
pub struct Run {
    number: u64,
    mark: String,
}

impl Run {
    /// A run for the worker with this working directory.
    pub fn begin(worker: &Path) -> Run {
        let worker = worker.file_name().unwrap_or_default().to_string_lossy();
        let mut runs = RUNS.lock().unwrap();
        runs.begun += 1;
        let number = runs.begun;
        runs.running.insert(number);
        Run {
            number,
            mark: format!("{worker}.{number}"),
        }
    }

    /// The value of [`MARK`] for its processes.
    pub fn mark(&self) -> &str {
        &self.mark
    }

    /// Finish the run: its remaining processes are killed soon.
    pub fn end(&self) {
        if RUNS.lock().unwrap().running.remove(&self.number) {
            sweep_soon();
        }
    }

    /// The processes that left the process group of the first process.
    pub async fn strays(&self, first: i32) -> Vec<Process> {
        let mark = self.mark.clone();
        let looking = tokio::task::spawn_blocking(move || {
            let is_meant = |process: &Process| process.id == first || process.mark.as_ref() == Some(&mark);
            let all_of_it = with_descendants(&processes(), is_meant).into_iter();
            all_of_it.filter(|process| process.group != first).collect()
        });
        looking.await.unwrap_or_default()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.end();
    }
}

/// Kill the remaining processes of finished runs of this process, and return when they are gone.
pub async fn sweep() {
    if RUNS.lock().unwrap().begun > 0 {
        let _ = tokio::task::spawn_blocking(sweep_now).await;
    }
}

fn sweep_now() {
    // before scanning: processes of runs that finish meanwhile may be about to exit by themselves
    let runs = RUNS.lock().unwrap().clone();
    kill(|mark| runs.is_over(mark));
}

/// Kill the remaining processes of all runs of a dead worker with a directory of this name.
pub fn end_all_of(worker: &str) {
    let prefix = format!("{worker}.");
    kill(|mark| mark.starts_with(&prefix));
}

fn kill(is_over: impl Fn(&str) -> bool) {
    for _ in 0..TRIES {
        if !ids().any(|id| may_be_left(id, &is_over)) {
            return;
        }
        for process in with_descendants(&processes(), |process| process.mark.as_deref().is_some_and(&is_over)) {
            tracing::debug!(event = "leftover", pid = process.id, run = process.mark);
            process.signal(Signal::KILL);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Sweep in a separate thread, so that no job waits for it, and all jobs that end meanwhile share one sweep.
fn sweep_soon() {
    static ASKED: Mutex<bool> = Mutex::new(false);
    static ASKING: Condvar = Condvar::new();
    static SWEEPER: LazyLock<bool> = LazyLock::new(|| {
        let sweeps = || {
            loop {
                let mut asked = ASKED.lock().unwrap();
                while !*asked {
                    asked = ASKING.wait(asked).unwrap();
                }
                *asked = false;
                drop(asked);
                let begun = Instant::now();
                sweep_now();
                thread::sleep(PAUSE.max(begun.elapsed() * SHARE));
            }
        };
        thread::Builder::new()
            .name("bugle-sweeper".into())
            .spawn(sweeps)
            .is_ok()
    });
    if Path::new("/proc/self/environ").exists() && *SWEEPER {
        *ASKED.lock().unwrap() = true;
        ASKING.notify_one();
    }
}

/// A process as described by `/proc`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    id: i32,
    parent: i32,
    group: i32,
    /// Together with the id, it identifies a process uniquely.
    started: u64,
    mark: Option<String>,
}

impl Process {
    /// Send it a signal, unless it has exited.
    #[cfg(target_os = "linux")]
    pub fn signal(&self, signal: Signal) {
        use rustix::process::{Pid, PidfdFlags, kill_process, pidfd_open, pidfd_send_signal};
        let Some(pid) = Pid::from_raw(self.id) else { return };
        // the open handle refers to the same process even if its id is reused
        let open = pidfd_open(pid, PidfdFlags::empty());
        if read(self.id).is_some_and(|now| now.started == self.started) {
            let _ = match open {
                Ok(process) => pidfd_send_signal(process, signal),
                Err(_) => kill_process(pid, signal),
            };
        }
    }

    #[cfg(not(target_os = "linux"))]
    pub fn signal(&self, _: Signal) {}
}

/// The given processes and all their descendants.
fn with_descendants(all: &[Process], is_meant: impl Fn(&Process) -> bool) -> Vec<Process> {
    let mut children: HashMap<i32, Vec<&Process>> = HashMap::new();
    for process in all {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found: Vec<&Process> = all.iter().filter(|process| is_meant(process)).collect();
    let mut known: HashSet<i32> = found.iter().map(|process| process.id).collect();
    let mut at = 0;
    while let Some(process) = found.get(at) {
        for child in children.get(&process.id).into_iter().flatten() {
            if known.insert(child.id) {
                found.push(child);
            }
        }
        at += 1;
    }
    found.into_iter().cloned().collect()
}

/// All processes except zombies.
fn processes() -> Vec<Process> {
    ids().filter_map(read).collect()
}

fn ids() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn read(id: i32) -> Option<Process> {
    let fields = stat(id)?;
    if ["Z", "X"].contains(&fields.first()?.as_str()) {
        return None;
    }
    Some(Process {
        id,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        mark: environment(id).and_then(|environment| mark_in(&environment)),
    })
}

/// The fields of `/proc/ID/stat` from the state on, which is the third.
fn stat(id: i32) -> Option<Vec<String>> {
    let stat = std::fs::read(format!("/proc/{id}/stat")).ok()?;
    // the program name, in parentheses, can contain any characters
    let after = stat.iter().rposition(|byte| *byte == b')')?;
    let fields = String::from_utf8_lossy(&stat[after + 1..]).into_owned();
    Some(fields.split_ascii_whitespace().map(str::to_owned).collect())
}

/// Read at once: of a process that replaces its program between two reads, the second finds nothing.
fn environment(id: i32) -> Option<Vec<u8>> {
    let mut file = File::open(format!("/proc/{id}/environ")).ok()?;
    let mut environment = vec![0; 1 << 17];
    let length = file.read(&mut environment).ok()?;
    if length < environment.len() {
        environment.truncate(length);
    } else {
        file.read_to_end(&mut environment).ok()?;
    }
    Some(environment)
}

/// Whether a process has the mark of a finished run, or may have. While a process replaces its program, `/proc` shows
/// no environment, nor where the code of the program ends. A kernel thread and a zombie have no program.
fn may_be_left(id: i32, is_over: impl Fn(&str) -> bool) -> bool {
    for _ in 0..5 {
        match environment(id) {
            Some(environment) if environment.is_empty() => (),
            environment => {
                return environment
                    .and_then(|it| mark_in(&it))
                    .is_some_and(|mark| is_over(&mark));
            }
        }
        let Some(fields) = stat(id) else { return false };
        if fields.get(24).is_some_and(|end_of_code| end_of_code == "0") {
            return std::fs::read_link(format!("/proc/{id}/exe")).is_ok();
        }
        // its new program has started since, unless its environment was cleared
    }
    false
}

fn mark_in(environment: &[u8]) -> Option<String> {
    let value = |entry: &[u8]| {
        entry
            .strip_prefix(MARK.as_bytes())?
            .strip_prefix(b"=")
            .map(<[u8]>::to_vec)
    };
    let mark = environment.split(|byte| *byte == 0).find_map(value)?;
    Some(String::from_utf8_lossy(&mark).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_over_when_it_has_begun_and_runs_no_more() {
        let runs = Runs {
            begun: 7,
            running: BTreeSet::from([5]),
        };
        let is_over = |mark: String| runs.is_over(&mark);
        let us = this_process();

        assert!(is_over(format!("{us}-1.4")) && is_over(format!("{us}-2.7")));
        assert!(!is_over(format!("{us}-1.5")), "it runs");
        assert!(!is_over(format!("{us}-1.8")), "it has begun since");
        assert!(!is_over("worker-1-other-1.4".into()), "it is another process' one");
        assert!(!is_over(format!("{us}-1")) && !is_over(String::new()));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_is_found_while_it_replaces_its_program() {
        let script = std::env::temp_dir().join(format!("{}-exec.sh", this_process()));
        std::fs::write(&script, "exec sh \"$0\"").unwrap();
        let mut command = std::process::Command::new("sh");
        let mut process = command.arg(&script).env(MARK, "mark").spawn().unwrap();
        let id = i32::try_from(process.id()).unwrap();

        let missed = (0..50_000).filter(|_| !may_be_left(id, |mark| mark == "mark")).count();

        process.kill().unwrap();
        process.wait().unwrap();
        std::fs::remove_file(script).unwrap();
        assert_eq!(missed, 0);
        assert!(!may_be_left(id, |_| true), "it has exited");
    }
}
