//! Processes that a program leaves behind. Its process group ends with it, but a process can leave the group (`setsid`).
//!
//! Every program has a mark in its environment, `BUGLE_RUN`, that is its own and inherited by all it starts. Whatever carries the mark
//! of a run that is over is killed, with all its descendants. That needs `/proc`: on other systems than Linux only process
//! groups are ended. A process that clears its environment is found as long as its parent lives.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, LazyLock, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

/// The variable that holds the mark.
pub const MARK: &str = "BUGLE_RUN";

/// The shortest time between two sweeps that nobody waits for.
const PAUSE: Duration = Duration::from_millis(100);
/// The share of one core that they may take.
const SHARE: u32 = 30;
/// How often to look again at what was killed and is still there.
const TRIES: usize = 200;

/// The name of this process in all its marks: no other process has it, now or later.
pub fn this_process() -> &'static str {
    static NAME: LazyLock<String> = LazyLock::new(|| {
        let random: String = std::iter::repeat_with(fastrand::alphanumeric).take(12).collect();
        format!("worker-{}-{random}", std::process::id())
    });
    &NAME
}

/// The marks of runs that are not over.
static RUNNING: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);

static RUNS: AtomicU64 = AtomicU64::new(0);

/// One run of a program. It is over when this is dropped, if not before.
pub struct Run {
    mark: String,
}

impl Run {
    /// A run for the worker whose folder this is.
    pub fn begin(worker: &Path) -> Run {
        let worker = worker.file_name().unwrap_or_default().to_string_lossy();
        let mark = format!("{worker}.{}", RUNS.fetch_add(1, Ordering::Relaxed));
        RUNNING.lock().unwrap().insert(mark.clone());
        Run { mark }
    }

    /// What its processes carry in [`MARK`].
    pub fn mark(&self) -> &str {
        &self.mark
    }

    /// It is over: what it has left behind is killed soon.
    pub fn end(&self) {
        if RUNNING.lock().unwrap().remove(&self.mark) {
            sweep_soon();
        }
    }

    /// What has left the process group of its first process.
    pub async fn strays(&self, first: i32) -> Vec<Process> {
        let mark = self.mark.clone();
        let looking = tokio::task::spawn_blocking(move || {
            let all = processes();
            let doomed = with_descendants(&all, |process| {
                process.id == first || process.mark.as_ref() == Some(&mark)
            });
            doomed.into_iter().filter(|process| process.group != first).collect()
        });
        looking.await.unwrap_or_default()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.end();
    }
}

/// Kill what is left of the runs of this process that are over, and return when it is gone.
pub async fn sweep() {
    if RUNS.load(Ordering::Relaxed) == 0 {
        return;
    }
    let _ = tokio::task::spawn_blocking(sweep_now).await;
}

fn sweep_now() {
    let prefix = format!("{}-", this_process());
    kill(|mark| mark.starts_with(&prefix) && !RUNNING.lock().unwrap().contains(mark));
}

/// Kill what is left of all runs of the worker with a folder of this name, which is dead.
pub fn end_all_of(worker: &str) {
    let prefix = format!("{worker}.");
    kill(|mark| mark.starts_with(&prefix));
}

fn kill(is_over: impl Fn(&str) -> bool) {
    for _ in 0..TRIES {
        let all = processes();
        let doomed = with_descendants(&all, |process| process.mark.as_deref().is_some_and(&is_over));
        if doomed.is_empty() {
            return;
        }
        for process in doomed {
            tracing::debug!(event = "leftover", pid = process.id, run = process.mark);
            process.signal(Signal::KILL);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Have what is left swept by a thread of its own, so that no job waits for it, and all jobs that have ended meanwhile share
/// one sweep.
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

/// A process, as `/proc` tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    id: i32,
    parent: i32,
    group: i32,
    /// With the id it names one process and never another.
    started: u64,
    mark: Option<String>,
}

impl Process {
    /// Send it a signal, unless it has ended.
    #[cfg(target_os = "linux")]
    pub fn signal(&self, signal: Signal) {
        use rustix::process::{Pid, PidfdFlags, kill_process, pidfd_open, pidfd_send_signal};
        let Some(pid) = Pid::from_raw(self.id) else { return };
        // what is open stays the same process, whatever becomes of the number
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

/// Those that are meant, and all that descend from them, except what belongs to another run that is not over.
fn with_descendants(all: &[Process], is_meant: impl Fn(&Process) -> bool) -> Vec<Process> {
    let running = RUNNING.lock().unwrap().clone();
    let mut children: HashMap<i32, Vec<&Process>> = HashMap::new();
    for process in all {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found: Vec<&Process> = all.iter().filter(|process| is_meant(process)).collect();
    let mut known: HashSet<i32> = found.iter().map(|process| process.id).collect();
    let mut at = 0;
    while let Some(process) = found.get(at) {
        let of_others = |child: &Process| child.mark.as_ref().is_some_and(|mark| running.contains(mark));
        for child in children.get(&process.id).into_iter().flatten() {
            if !of_others(child) && known.insert(child.id) {
                found.push(child);
            }
        }
        at += 1;
    }
    found.into_iter().cloned().collect()
}

/// All processes, except those that have ended and were not waited for.
fn processes() -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter_map(read).collect()
}

fn read(id: i32) -> Option<Process> {
    let stat = std::fs::read(format!("/proc/{id}/stat")).ok()?;
    // the name of the program, in parentheses, can hold anything
    let after = stat.iter().rposition(|byte| *byte == b')')?;
    let fields = String::from_utf8_lossy(&stat[after + 1..]).into_owned();
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    if ["Z", "X"].contains(fields.first()?) {
        return None;
    }
    let environ = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
    let value = |entry: &[u8]| {
        entry
            .strip_prefix(MARK.as_bytes())?
            .strip_prefix(b"=")
            .map(<[u8]>::to_vec)
    };
    let mark = environ.split(|byte| *byte == 0).find_map(value);
    Some(Process {
        id,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        mark: mark.map(|mark| String::from_utf8_lossy(&mark).into_owned()),
    })
}
