//! What was seen outside of the database, one line each, appended by the process that saw it.
//!
//! A line is written with one `write` to a file opened for appending: it survives a `kill -9` of its writer. The time
//! is the machine's monotonic clock, which is one for all processes, whatever their wall clocks say.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Nanoseconds of the machine's monotonic clock.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// One line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Entry {
    pub at: u64,
    /// Which enqueuer, which life of which worker. Behind an @, which of its hosts.
    pub who: String,
    #[serde(flatten)]
    pub event: Event,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A job that carries this token is going to be enqueued.
    Asked { token: String },
    /// The database said that it is committed.
    Acknowledged { token: String, job: i64 },
    /// The database said that it is not.
    Refused { token: String },
    /// An executor began.
    Started { job: i64, claim: i64 },
    /// An executor came to its end, with this outcome.
    Finished { job: i64, claim: i64, outcome: String },
    /// An executor was stopped before its end.
    Stopped { job: i64, claim: i64 },
    /// The executor of a step began: of a chain of `of` steps, or, if `of` is 0, one that an executor makes itself.
    StepStarted {
        job: i64,
        claim: i64,
        step: String,
        of: usize,
    },
    /// It came to its end, with this outcome.
    StepFinished {
        job: i64,
        claim: i64,
        step: String,
        of: usize,
        outcome: String,
    },
    /// It was stopped before.
    StepStopped {
        job: i64,
        claim: i64,
        step: String,
        of: usize,
    },
    /// A job that carries this token is going to be enqueued with the order to come after that one; however that ends,
    /// if so.
    After {
        token: String,
        after: String,
        however: bool,
    },
    /// This job is about to spawn a child that carries this token.
    Spawns { job: i64, token: String },
    /// The database took the word about an end.
    Accepted { job: i64, claim: i64, outcome: String },
    /// The database answered it with `repeated`, `gone` or `fenced`.
    Fenced { job: i64, claim: i64, verdict: String },
    /// The database said that the job is cancelled now.
    Cancelled { job: i64 },
    /// Something was done to a process, to a link or to the server.
    Fault { fault: Fault, whom: String },
    /// It is over.
    Over { fault: Fault, whom: String },
    /// Anything else that breaks a promise, seen by the process that wrote it.
    Complaint { text: String },
}

/// What is done to them. `whom` is the life of a worker, or empty for everyone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// A connection is lost and comes back within the grace time: this explains nothing.
    Blip,
    /// kill -9.
    Kill,
    /// SIGSTOP for longer than the lease.
    Freeze,
    /// The server is killed and restarted.
    ServerKill,
    /// Replies are swallowed, then the server is killed.
    CommitReplyLost,
    /// Its session is ended by the server.
    BackendKill,
    /// All sessions are.
    TerminateAll,
    /// The link is cut after some bytes.
    Cut,
    /// The link stays open and nothing comes through.
    HalfOpen,
    /// The link is slow, in small pieces, and stalls.
    Slow,
    /// Notifications do not come through.
    Muted,
    /// A lock on the live table held for a while.
    LockHeld,
    /// A snapshot, or a transaction that enqueued, held open for seconds.
    LongTransaction,
    /// Its wall clock is an hour off.
    ClockOff,
    /// A job that floods memory or output.
    Flood,
    /// A job that kills its own worker.
    Suicide,
    /// kill -9 of a host, a process that runs jobs for a worker. `whom` is the host.
    HostKill,
    /// SIGSTOP of a host, until its worker has killed it.
    HostFreeze,
    /// The machine itself had no time for us.
    Starved,
    /// A planned change of the primary.
    Switchover,
    /// kill -9 of the postmaster of the primary.
    PrimaryKill,
    /// kill -9 of its Patroni; the server goes on.
    PatroniKill,
    /// kill -9 of both.
    NodeKill,
    /// SIGSTOP of all processes of the primary's node, and SIGCONT when there is another one.
    FrozenPrimary,
    /// The primary reaches neither etcd nor the other nodes; clients reach it.
    CutOffPrimary,
    /// The primary does not reach etcd; all others, and clients, reach it.
    NoEtcdForPrimary,
    /// The other nodes do not reach the primary; it reaches etcd, and clients reach it.
    CutOffFromOthers,
    /// The primary is killed when no replica has received its newest commits.
    LaggingReplica,
    /// The next primary is killed as soon as it is one.
    TwoFailovers,
    /// etcd does not answer for longer than the lock of the primary lasts.
    NoEtcd,
    /// The same in `failsafe_mode`: the primary goes on.
    NoEtcdFailsafe,
}

impl Fault {
    /// Whether a job may have been run twice because of it.
    pub fn explains_a_second_run(self) -> bool {
        use Fault::*;
        match self {
            Kill | Freeze | ServerKill | CommitReplyLost | BackendKill | TerminateAll | Cut | HalfOpen | Slow
            | Suicide | HostKill | HostFreeze | Starved | Switchover | PrimaryKill | PatroniKill | NodeKill
            | FrozenPrimary | CutOffPrimary | NoEtcdForPrimary | CutOffFromOthers | LaggingReplica | TwoFailovers
            | NoEtcd | NoEtcdFailsafe => true,
            Blip | Muted | LockHeld | LongTransaction | ClockOff | Flood => false,
        }
    }
}

/// Writes one file of a history.
#[derive(Clone)]
pub struct Recorder {
    who: String,
    file: Arc<File>,
}

impl Recorder {
    /// Append to the file of `who` in this folder.
    pub fn new(folder: &Path, who: &str) -> Recorder {
        let path = folder.join(format!("{who}.history"));
        let file = File::options().create(true).append(true).open(&path);
        Recorder {
            who: who.to_owned(),
            file: Arc::new(file.unwrap_or_else(|error| panic!("{}: {error}", path.display()))),
        }
    }

    pub fn record(&self, event: Event) {
        self.record_since(now(), event);
    }

    /// Something that is known only now, and began then.
    pub fn record_since(&self, at: u64, event: Event) {
        let entry = Entry {
            at,
            who: self.who.clone(),
            event,
        };
        let mut line = serde_json::to_string(&entry).expect("a line");
        line.push('\n');
        (&*self.file)
            .write_all(line.as_bytes())
            .expect("the history can be written");
    }
}

/// All that was seen, in the order of time.
#[derive(Debug, Default)]
pub struct History {
    pub entries: Vec<Entry>,
}

impl History {
    /// Read all files of a folder. A line that its writer was killed in is left out.
    pub fn read(folder: &Path) -> History {
        let files = std::fs::read_dir(folder)
            .expect("a folder")
            .flatten()
            .map(|entry| entry.path());
        let files: Vec<PathBuf> = files
            .filter(|path| path.extension().is_some_and(|e| e == "history"))
            .collect();
        let mut entries: Vec<Entry> = files
            .iter()
            .flat_map(|path| {
                let text = std::fs::read(path).expect("a history");
                let text = String::from_utf8_lossy(&text).into_owned();
                text.lines()
                    .filter_map(|line| serde_json::from_str(line).ok())
                    .collect::<Vec<_>>()
            })
            .collect();
        entries.sort_by_key(|entry| entry.at);
        History { entries }
    }
}
