//! Which job runs in which process: all decisions about the jobs of hosts. No I/O: messages go to outboxes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{Notify, oneshot};

use super::message::{Hello, JobMessage, Rejected, StepMessage, ToHost, names};
use super::socket::Outbox;
use super::talk::Talk;
use crate::execute::context::Stop;
use crate::execute::executor::{Failure, Outcome};
use crate::job::{HeldJob, JobId};

/// A job that was alone in this many processes that died is not retried.
const MOST_DEATHS: u32 = 3;
/// How many suspects are remembered, and how many jobs that are to be alone in their call.
const MOST_SUSPECTS: usize = 10_000;

/// The number of a process, unique in this worker.
pub type ProcessId = u64;

/// The answer to a job that waits for a host.
pub enum Answer {
    /// Its outcome.
    Outcome(Outcome),
    /// The job could not be run here, and its attempt does not count.
    GivenBack,
}

/// A job that waits for a process.
pub struct Waiting {
    pub number: u64,
    pub command: String,
    pub talk: Arc<Talk>,
    pub traceparent: Option<String>,
    pub answer: oneshot::Sender<Answer>,
}

impl Waiting {
    fn held(&self) -> HeldJob {
        self.talk.context.job().held
    }
}

/// A job that was sent to a process and is unanswered.
struct Flight {
    talk: Arc<Talk>,
    /// None if the job was abandoned.
    answer: Option<oneshot::Sender<Answer>>,
    /// The ping that was sent with its cancellation.
    ping: Option<u64>,
    /// The call it is part of: jobs of a batch share one.
    call: u64,
}

/// A process that has said hello.
struct Process {
    host: usize,
    commands: BTreeMap<String, Option<u32>>,
    concurrency: usize,
    flights: HashMap<HeldJob, Flight>,
    /// The calls that are under way, with the numbers of their unanswered jobs. Each counts as one of `concurrency`.
    calls: HashMap<u64, usize>,
    /// How many jobs were sent to it.
    given: u64,
    max_jobs: Option<u64>,
    /// The process gets no more jobs, and ends when it has answered those it has.
    draining: bool,
    /// The process gets no more jobs until it has none and can take a suspect.
    reserved: bool,
    /// The process runs a suspect, alone.
    suspect: bool,
    pings: u64,
    pongs: u64,
    /// Why the process is to be killed.
    kill: Option<Kill>,
    out: Outbox,
    changed: Arc<Notify>,
}

/// Why the worker kills a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kill {
    /// The process did not answer `ping`.
    Silent,
    /// All its jobs were abandoned, and it can take no more.
    Stuck,
    /// The process broke the protocol.
    Broken(String),
}

/// What the worker should do with a process now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    Run,
    /// Replace it: it gets no more jobs.
    Retire,
    /// Close its connection: it was retired and has answered all its jobs.
    Close,
    Kill(Kill),
}

/// What a host has announced, and its status.
#[derive(Default)]
pub struct HostState {
    /// The latest announcement.
    pub hello: Option<Hello>,
    /// False after the host could not be started again: its jobs would not run.
    pub serving: bool,
    /// Whether one of its processes has said hello or has failed to start.
    pub known: bool,
    /// Why the last process that ended did.
    pub error: Option<String>,
    /// How many processes were started.
    pub started: u64,
    /// How many processes ended with unanswered jobs.
    pub lost: u64,
    /// How many processes ended although they were not told to, and when the last of them did.
    pub crashes: u64,
    pub crashed_at: Option<SystemTime>,
}

/// How busy a host is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    pub ready: usize,
    pub running: usize,
    pub concurrency: usize,
}

#[derive(Default)]
pub struct Pool {
    numbers: u64,
    waiting: BTreeMap<String, VecDeque<Waiting>>,
    waiting_jobs: usize,
    waiting_suspects: VecDeque<Waiting>,
    /// Commands with batches whose jobs are just coming in.
    gathering: BTreeSet<String>,
    processes: BTreeMap<ProcessId, Process>,
    /// Jobs that were in a process that died, with the number of such processes in which they were alone.
    suspects: HashMap<JobId, u32>,
    /// Jobs of calls that failed as a whole. Each is given in a call of its own, so that one of them cannot fail the
    /// others again.
    alone: HashSet<JobId>,
    pub hosts: Vec<HostState>,
}

impl Pool {
    pub fn new(hosts: usize) -> Pool {
        Pool {
            hosts: std::iter::repeat_with(HostState::default).take(hosts).collect(),
            ..Pool::default()
        }
    }

    pub fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// The commands that are served now.
    pub fn commands(&self) -> Vec<String> {
        let mut all = BTreeSet::new();
        for (index, host) in self.hosts.iter().enumerate() {
            let open = self
                .processes
                .values()
                .filter(|process| process.host == index && !process.draining);
            let mut open = open.peekable();
            match &host.hello {
                // between two processes
                Some(hello) if open.peek().is_none() && host.serving => all.extend(hello.commands.keys().cloned()),
                _ => open.for_each(|process| all.extend(process.commands.keys().cloned())),
            }
        }
        all.into_iter().collect()
    }

    fn serves(&self, command: &str) -> bool {
        let has = |process: &Process| process.commands.contains_key(command) && !process.draining;
        self.processes.values().any(has)
            || self.hosts.iter().enumerate().any(|(index, host)| {
                host.serving
                    && host
                        .hello
                        .as_ref()
                        .is_some_and(|hello| hello.commands.contains_key(command))
                    && !self
                        .processes
                        .values()
                        .any(|process| process.host == index && !process.draining)
            })
    }

    /// How busy the host is.
    pub fn load(&self, host: usize) -> Load {
        let mut load = Load::default();
        for process in self.processes.values().filter(|process| process.host == host) {
            load.ready += usize::from(!process.draining);
            load.running += process.flights.len();
            load.concurrency += process.concurrency;
        }
        load
    }

    /// A process has said hello.
    pub fn join(
        &mut self,
        host: usize,
        hello: Hello,
        concurrency: usize,
        max_jobs: Option<u64>,
        out: Outbox,
        changed: Arc<Notify>,
    ) -> ProcessId {
        let id = self.number();
        let process = Process {
            host,
            commands: hello.commands.clone(),
            concurrency,
            flights: HashMap::new(),
            calls: HashMap::new(),
            given: 0,
            max_jobs,
            draining: false,
            reserved: false,
            suspect: false,
            pings: 0,
            pongs: 0,
            kill: None,
            out,
            changed,
        };
        self.processes.insert(id, process);
        let state = &mut self.hosts[host];
        (state.hello, state.serving, state.known) = (Some(hello), true, true);
        self.fill(id);
        self.withdraw();
        id
    }

    /// A process could not be started, or did not say hello.
    pub fn not_started(&mut self, host: usize, error: String) {
        let state = &mut self.hosts[host];
        (state.error, state.known) = (Some(error), true);
        state.serving = false;
        self.withdraw();
    }

    /// A process has ended although it was not told to.
    pub fn crashed(&mut self, host: usize) {
        let state = &mut self.hosts[host];
        state.crashes += 1;
        state.crashed_at = Some(SystemTime::now());
    }

    /// Jobs of commands that are no longer served are given back.
    fn withdraw(&mut self) {
        let gone: Vec<String> = self
            .waiting
            .keys()
            .filter(|command| !self.serves(command))
            .cloned()
            .collect();
        for command in gone {
            let jobs = self.waiting.remove(&command).unwrap_or_default();
            self.waiting_jobs -= jobs.len();
            jobs.into_iter().for_each(give_back);
        }
        let (stay, go): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.waiting_suspects)
            .into_iter()
            .partition(|job| self.serves(&job.command));
        self.waiting_suspects = stay;
        go.into_iter().for_each(give_back);
    }

    /// Run a job. True if its command takes batches: then call [`gather`](Pool::gather) in a moment, when the jobs that
    /// were claimed with it have arrived.
    pub fn submit(&mut self, job: Waiting) -> bool {
        if !self.serves(&job.command) {
            give_back(job);
        } else if self.suspects.contains_key(&job.held().id) {
            self.submit_suspect(job);
        } else if self.takes_batches(&job.command) {
            let is_first = self.gathering.insert(job.command.clone());
            self.line_up(job);
            return is_first;
        } else {
            self.submit_single(job);
        }
        false
    }

    fn takes_batches(&self, command: &str) -> bool {
        let of_host = |host: &HostState| {
            host.hello
                .as_ref()
                .and_then(|hello| hello.commands.get(command).copied())
        };
        self.hosts.iter().filter_map(of_host).any(|most| most.is_some())
    }

    /// Send the jobs of a command that takes batches: those that were claimed together have arrived.
    pub fn gather(&mut self, command: &str) {
        self.gathering.remove(command);
        let fits = |(_, process): &(&ProcessId, &Process)| process.commands.contains_key(command);
        let all: Vec<ProcessId> = self.processes.iter().filter(fits).map(|(id, _)| *id).collect();
        all.into_iter().for_each(|id| self.fill(id));
    }

    fn line_up(&mut self, job: Waiting) {
        self.waiting_jobs += 1;
        self.waiting.entry(job.command.clone()).or_default().push_back(job);
    }

    fn submit_single(&mut self, job: Waiting) {
        let command = &job.command;
        let fits = |process: &&mut Process| process.has_room() && process.commands.contains_key(command);
        // the one with the fewest jobs: they share the cores
        let best = self
            .processes
            .values_mut()
            .filter(fits)
            .min_by_key(|process| process.flights.len());
        match best {
            // those that wait came first
            Some(process) if self.waiting.get(command).is_none_or(VecDeque::is_empty) => {
                process.give(vec![job], false);
            }
            _ => self.line_up(job),
        }
    }

    /// Run a suspect alone: in a process that has no jobs, or in one that gets none until it has answered those it has.
    fn submit_suspect(&mut self, job: Waiting) {
        let command = &job.command;
        let fits = |process: &&mut Process| process.is_open() && process.commands.contains_key(command);
        let best = self
            .processes
            .values_mut()
            .filter(fits)
            .min_by_key(|process| process.flights.len());
        match best {
            Some(process) if process.flights.is_empty() => process.give(vec![job], true),
            best => {
                if let Some(process) = best {
                    process.reserved = true;
                    process.check_stuck();
                }
                self.waiting_suspects.push_back(job);
            }
        }
    }

    /// Give a process the jobs it has room for.
    fn fill(&mut self, id: ProcessId) {
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        if !process.is_open() {
            return;
        }
        let suspect = self
            .waiting_suspects
            .iter()
            .position(|job| process.commands.contains_key(&job.command));
        match suspect {
            Some(at) if process.flights.is_empty() => {
                let job = self.waiting_suspects.remove(at).expect("it is there");
                return process.give(vec![job], true);
            }
            None => process.reserved = false,
            Some(_) => {}
        }
        while process.has_room() && self.waiting_jobs > 0 {
            let oldest = process.commands.keys().filter_map(|command| {
                let first = self.waiting.get(command)?.front()?;
                Some((first.number, command.as_str()))
            });
            // commands whose jobs are still being gathered are served a moment later
            let oldest = oldest.filter(|(_, command)| !self.gathering.contains(*command));
            let Some((_, command)) = oldest.min() else { return };
            let queue = self.waiting.get_mut(command).expect("it has a first job");
            let most = process.commands[command].map_or(1, |most| most as usize);
            let is_alone = |job: &Waiting| self.alone.contains(&job.held().id);
            let together = queue.iter().take(most).take_while(|job| !is_alone(job)).count();
            let jobs: Vec<Waiting> = queue.drain(..together.max(1)).collect();
            if queue.is_empty() {
                self.waiting.remove(command);
            }
            self.waiting_jobs -= jobs.len();
            process.give(jobs, false);
        }
    }

    /// The job that a message of this process names. Without a claim, the one that was sent to it last.
    pub fn find(&self, id: ProcessId, job: JobId, claim: Option<i64>) -> Option<Arc<Talk>> {
        let process = self.processes.get(&id)?;
        if let Some(claim) = claim {
            return Some(process.flights.get(&HeldJob { id: job, claim })?.talk.clone());
        }
        let all = process.flights.iter().filter(|(held, _)| held.id == job);
        all.max_by_key(|(held, _)| held.claim)
            .map(|(_, flight)| flight.talk.clone())
    }

    /// A process has answered a job. False if the job was answered before.
    pub fn ended(&mut self, id: ProcessId, held: HeldJob, outcome: Outcome) -> bool {
        let Some(process) = self.processes.get_mut(&id) else {
            return false;
        };
        let Some(flight) = process.flights.remove(&held) else {
            return false;
        };
        process.answered(flight.call);
        match &outcome {
            Outcome::Fail(failure) if failure.alone => remember(&mut self.alone, held.id),
            _ => _ = self.alone.remove(&held.id),
        }
        if let Some(answer) = flight.answer {
            let _ = answer.send(Answer::Outcome(outcome));
        }
        if !self.suspects.is_empty() {
            self.suspects.remove(&held.id);
        }
        process.check_end();
        process.check_stuck();
        self.fill(id);
        true
    }

    /// Tell the process that runs a job to stop it. False if none has the job, which then no longer waits for one.
    pub fn cancel(&mut self, held: HeldJob, number: u64, reason: Option<Stop>) -> bool {
        let flying = self.processes.values_mut().find(|process| {
            let flight = process.flights.get(&held);
            flight.is_some_and(|flight| flight.answer.is_some())
        });
        let Some(process) = flying else {
            self.forget(number);
            return false;
        };
        process.pings += 1;
        let ping = process.pings;
        process.flights.get_mut(&held).expect("it has it").ping = Some(ping);
        let (id, claim) = names(held);
        let reason = match reason {
            Some(Stop::Timeout) => "timeout",
            Some(Stop::Cancelled) => "cancelled",
            Some(Stop::Lost) => "lost",
            Some(Stop::Shutdown) | None => "shutdown",
        };
        process.out.send(&ToHost::Cancel { id, claim, reason });
        process.out.send(&ToHost::Ping);
        true
    }

    /// Remove a job from those that wait.
    fn forget(&mut self, number: u64) {
        self.waiting_suspects.retain(|job| job.number != number);
        for jobs in self.waiting.values_mut() {
            if let Some(at) = jobs.iter().position(|job| job.number == number) {
                jobs.remove(at);
                self.waiting_jobs -= 1;
            }
        }
        self.waiting.retain(|_, jobs| !jobs.is_empty());
    }

    /// A process has answered a ping.
    pub fn pong(&mut self, id: ProcessId) {
        if let Some(process) = self.processes.get_mut(&id) {
            process.pongs += 1;
        }
    }

    /// Abandon a job: its outcome is no longer awaited, whether it was cancelled before or not.
    pub fn give_up(&mut self, held: HeldJob, number: u64) {
        self.forget(number);
        for process in self.processes.values_mut() {
            let Some(flight) = process.flights.get_mut(&held) else {
                continue;
            };
            if flight.answer.take().is_none() {
                continue;
            }
            match flight.ping {
                Some(ping) if process.pongs < ping => process.kill(Kill::Silent),
                _ => process.check_stuck(),
            }
        }
    }

    /// Give a process no more jobs.
    pub fn retire(&mut self, id: ProcessId) {
        if let Some(process) = self.processes.get_mut(&id) {
            process.retire();
        }
        self.withdraw();
    }

    /// Give no process any more jobs.
    pub fn retire_all(&mut self) {
        self.processes.values_mut().for_each(Process::retire);
    }

    /// What the worker should do with a process.
    pub fn order(&self, id: ProcessId) -> Order {
        match self.processes.get(&id) {
            None => Order::Close,
            Some(Process { kill: Some(why), .. }) => Order::Kill(why.clone()),
            Some(process) if process.draining && process.flights.is_empty() => Order::Close,
            Some(process) if process.draining => Order::Retire,
            Some(_) => Order::Run,
        }
    }

    /// Whether a process has unanswered jobs.
    pub fn is_busy(&self, id: ProcessId) -> bool {
        self.processes
            .get(&id)
            .is_some_and(|process| !process.flights.is_empty())
    }

    /// A process has ended, for this reason. If the worker killed it because of abandoned jobs, the others are given
    /// back. Otherwise it is unknown which of its jobs was the cause.
    pub fn leave(&mut self, id: ProcessId, killed: Option<&Kill>, why: &str) {
        let Some(process) = self.processes.remove(&id) else {
            return;
        };
        let is_theirs = !matches!(killed, Some(Kill::Silent | Kill::Stuck));
        let state = &mut self.hosts[process.host];
        state.error = Some(why.to_owned());
        state.lost += u64::from(!process.flights.is_empty() && is_theirs);
        let alone = process.flights.len() == 1;
        for (held, flight) in process.flights {
            if !is_theirs {
                if let Some(answer) = flight.answer {
                    let _ = answer.send(Answer::GivenBack);
                }
                continue;
            }
            let deaths = self.suspect(held.id, alone);
            if let Some(answer) = flight.answer {
                let _ = answer.send(Answer::Outcome(Outcome::Fail(lost(why, deaths))));
            }
        }
        self.withdraw();
        // a process may have been reserved for a suspect that this one had
        let others: Vec<ProcessId> = self.processes.keys().copied().collect();
        others.into_iter().for_each(|id| self.fill(id));
    }

    /// Note that a job was in a process that died. Returns in how many such processes it was alone.
    fn suspect(&mut self, job: JobId, alone: bool) -> u32 {
        if self.suspects.len() >= MOST_SUSPECTS && !self.suspects.contains_key(&job) {
            // in place of any other, which is suspected again if it kills another process
            let other = self.suspects.keys().next().copied();
            other.map(|other| self.suspects.remove(&other));
        }
        let deaths = self.suspects.entry(job).or_default();
        *deaths += u32::from(alone);
        let deaths = *deaths;
        if deaths >= MOST_DEATHS {
            self.suspects.remove(&job);
        }
        deaths
    }
}

impl Process {
    /// Whether the process gets jobs.
    fn is_open(&self) -> bool {
        !self.draining && !self.suspect && self.kill.is_none()
    }

    fn has_room(&self) -> bool {
        self.is_open() && !self.reserved && self.calls.len() < self.concurrency
    }

    /// Send it these jobs of one command in one call.
    fn give(&mut self, jobs: Vec<Waiting>, suspect: bool) {
        let Some(first) = jobs.first() else { return };
        (self.suspect, self.reserved) = (suspect, false);
        self.given += jobs.len() as u64;
        jobs.iter()
            .for_each(|job| job.talk.context.inner.attempt.resume_clock());
        match self.commands.get(&first.command) {
            Some(Some(_)) => self.out.send(&ToHost::Jobs {
                command: &first.command,
                jobs: jobs.iter().map(message).collect(),
            }),
            _ => self.out.send(&ToHost::Job(&message(first))),
        }
        let call = first.number;
        self.calls.insert(call, jobs.len());
        for job in jobs {
            let held = job.held();
            let flight = Flight {
                talk: job.talk,
                answer: Some(job.answer),
                ping: None,
                call,
            };
            self.flights.insert(held, flight);
        }
        if self.max_jobs.is_some_and(|most| self.given >= most) {
            self.retire();
        }
    }

    /// One of the jobs of a call was answered.
    fn answered(&mut self, call: u64) {
        self.suspect = false;
        if let Some(left) = self.calls.get_mut(&call) {
            *left -= 1;
            if *left == 0 {
                self.calls.remove(&call);
            }
        }
    }

    fn retire(&mut self) {
        if !std::mem::replace(&mut self.draining, true) {
            self.out.send(&ToHost::Drain);
            self.check_stuck();
            self.changed.notify_one();
        }
    }

    /// A process that was retired ends with its last job.
    fn check_end(&self) {
        if self.draining && self.flights.is_empty() {
            self.changed.notify_one();
        }
    }

    /// Kill a process all of whose jobs were abandoned, if it has no room for others: it would never take another job.
    fn check_stuck(&mut self) {
        let is_full = self.calls.len() >= self.concurrency || self.reserved || self.draining || self.suspect;
        if is_full && !self.flights.is_empty() && self.flights.values().all(|flight| flight.answer.is_none()) {
            self.kill(Kill::Stuck);
        }
    }

    fn kill(&mut self, why: Kill) {
        self.kill.get_or_insert(why);
        self.changed.notify_one();
    }
}

/// Add a job that is to be alone in its call, in place of any other if there are too many.
fn remember(alone: &mut HashSet<JobId>, job: JobId) {
    if alone.len() >= MOST_SUSPECTS {
        let other = alone.iter().next().copied();
        other.map(|other| alone.remove(&other));
    }
    alone.insert(job);
}

fn give_back(job: Waiting) {
    let _ = job.answer.send(Answer::GivenBack);
}

fn lost(why: &str, deaths: u32) -> Failure {
    if deaths >= MOST_DEATHS {
        let message =
            format!("the job was alone in {deaths} processes of its host that ended without answering it\n{why}");
        return Failure::new(message).code("crash_loop").not_retryable();
    }
    Failure::new(format!(
        "the process of its host ended without answering the job\n{why}"
    ))
    .code("host_lost")
}

fn message(job: &Waiting) -> JobMessage<'_> {
    let context = &job.talk.context;
    let claimed = context.job();
    let inner = &context.inner;
    let (id, claim) = names(claimed.held);
    let timeout = inner.attempt.limit();
    let deadline = timeout.and_then(|limit| SystemTime::now().checked_add(limit));
    JobMessage {
        id,
        claim,
        command: &claimed.command,
        queue: &claimed.queue,
        attempt: claimed.attempt,
        max_attempts: claimed.max_attempts,
        payload: &claimed.payload,
        headers: (!claimed.headers.is_empty()).then_some(&claimed.headers),
        traceparent: job.traceparent.clone(),
        timeout: timeout.map(|limit| limit.as_secs_f64()),
        deadline: deadline
            .filter(is_writable)
            .map(|at| humantime::format_rfc3339_millis(at).to_string()),
        workdir: context.future_workspace().to_string_lossy(),
        step: context.position().map(|at| StepMessage {
            chain: &at.chain,
            position: at.step,
            steps: at.steps,
            attempt: at.attempt,
        }),
        context: inner.outputs.as_deref(),
        answer: claimed.answer.as_deref(),
        worker_id: inner.identity.worker.to_string(),
        nonce: inner.identity.nonce.to_string(),
    }
}

/// Times after the year 9999 cannot be written.
fn is_writable(at: &SystemTime) -> bool {
    at.duration_since(SystemTime::UNIX_EPOCH)
        .is_ok_and(|since| since.as_secs() < 253_402_300_800)
}

/// The rejection of a message about a job that the process does not have.
pub fn not_held() -> Rejected {
    Rejected::new(
        "not_held",
        "this process does not have this job under this claim, or has answered it",
    )
}

/// How long a process may live and still count as one that could not start.
pub const SHORT_LIFE: Duration = Duration::from_secs(5);

/// The delay before a process is started again: none, unless it could not start or lived only briefly.
#[derive(Default)]
pub struct Restart {
    failures: u32,
}

impl Restart {
    /// The delay after a process that began then and has ended. `said_hello`: it was ready.
    pub fn after(&mut self, began: Instant, said_hello: bool) -> Duration {
        if said_hello && began.elapsed() >= SHORT_LIFE {
            self.failures = 0;
            return Duration::ZERO;
        }
        self.failures += 1;
        Duration::from_secs((1 << (self.failures - 1).min(6)).min(60))
    }
}

#[cfg(all(test, feature = "cli"))]
mod tests;
