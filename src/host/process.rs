//! The life of one process of a host: start, hello, jobs, end; and its replacement.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use std::os::unix::process::ExitStatusExt;

use tokio::net::UnixListener;
use tokio::net::unix::OwnedReadHalf;
use tokio::process::Command;
use tokio::sync::Notify;

use super::Shared;
use super::message::{Hello, Line, LogLine, PROTOCOL, Rejected, ToHost};
use super::pool::{Kill, Order, ProcessId, Restart, not_held};
use super::socket::{self, Lines, Outbox};
use super::talk::{Ear, Jobs, Talk};
use crate::builtin::group::{Group, Pipes};
use crate::builtin::output::{Tail, each_line};
use crate::builtin::surroundings;
use crate::config::Cwd;
use crate::db::connect;
use crate::execute::executor::Outcome;

/// How long a process may take to say hello.
const HELLO: Duration = Duration::from_secs(60);
/// How long a process may take to exit after its connection was closed, and after SIGTERM.
const EXIT: Duration = Duration::from_secs(5);
const TERMINATE: Duration = Duration::from_secs(2);
/// How long to read on after a process has exited. Only a process that it has left behind can still write.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How often to measure the memory of a process.
const WEIGH: Duration = Duration::from_secs(2);
/// A host that is not started again before this much time has passed does not serve its commands meanwhile.
const SERVED_WITHOUT: Duration = Duration::from_secs(1);

/// How a process ended.
struct Ended {
    /// When it was started.
    began: Instant,
    said_hello: bool,
    /// The worker had told it to end.
    orderly: bool,
    why: String,
}

/// Keep one process of a host running until the worker stops.
pub async fn keep(shared: Arc<Shared>, host: usize, number: u32) {
    let name = &shared.hosts[host].name;
    let mut restart = Restart::default();
    while !shared.stopping.is_cancelled() {
        let retired = Arc::new(Notify::new());
        // a task of the tracker, so that a worker that stops waits for it
        let life = shared
            .processes
            .spawn(live(shared.clone(), host, number, retired.clone()));
        let ended = tokio::select! {
            ended = life => ended,
            // the old process finishes its jobs while its successor starts
            () = retired.notified() => continue,
        };
        let Ok(ended) = ended else { continue };
        let delay = match ended.orderly {
            true => Duration::ZERO,
            false => restart.after(ended.began, ended.said_hello),
        };
        if !ended.orderly && !shared.stopping.is_cancelled() {
            let (said_hello, delay_ms) = (ended.said_hello, delay.as_millis() as u64);
            tracing::warn!(
                event = "host_end",
                host = name,
                process = number,
                said_hello,
                delay_ms,
                "{}",
                ended.why
            );
            shared.pool().crashed(host);
        }
        if !ended.said_hello || delay > SERVED_WITHOUT {
            shared.pool().not_started(host, ended.why);
        }
        shared.changed();
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = shared.stopping.cancelled() => {}
        }
    }
}

/// Start a process and attend to it until it has ended.
async fn live(shared: Arc<Shared>, host: usize, number: u32, retired: Arc<Notify>) -> Ended {
    let began = Instant::now();
    let mut ended = Ended {
        began,
        said_hello: false,
        orderly: false,
        why: String::new(),
    };
    shared.pool().hosts[host].started += 1;
    let started = Started::start(&shared, host, number);
    let mut started = match started {
        Ok(started) => started,
        Err(error) => {
            ended.why = format!("could not be started: {error}");
            return ended;
        }
    };
    let name = &shared.hosts[host].name;
    match started.greet(&shared, host).await {
        Err(Greeting::Exited(status)) => ended.why = said(&status),
        Err(Greeting::Rejected(why)) => {
            started.group.stop(TERMINATE).await.ok();
            ended.why = why;
        }
        Err(Greeting::Stopping) => {
            started.group.stop(TERMINATE).await.ok();
            ended.orderly = true;
        }
        Ok((hello, lines, out)) => {
            ended.said_hello = true;
            shared.compare_slots(host, &hello);
            let connection = Connection::open(&shared, host, number, hello, out, retired);
            tracing::info!(event = "host_start", host = name, process = number, pid = started.pid);
            shared.changed();
            let (why, killed) = connection.attend(&mut started, lines).await;
            ended.orderly = killed.is_none() && why.is_none();
            ended.why = started.explained(why.unwrap_or_default()).await;
            connection.jobs.leave(killed.as_ref(), &ended.why);
            return ended;
        }
    }
    ended.why = started.explained(ended.why).await;
    ended
}

/// A process that was started.
struct Started {
    group: Group,
    pid: Option<u32>,
    listener: UnixListener,
    socket: PathBuf,
    /// The last lines of its stderr.
    tail: Arc<Mutex<Tail>>,
    readers: Vec<tokio::task::JoinHandle<()>>,
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

enum Greeting {
    Exited(ExitStatus),
    Rejected(String),
    Stopping,
}

impl Started {
    fn start(shared: &Arc<Shared>, host: usize, number: u32) -> io::Result<Started> {
        let unique = shared.pool().number();
        let socket = shared.workspaces.join(format!("host-{unique}.sock"));
        let listener = socket::listen(&socket)?;
        let of = &shared.hosts[host];
        let program = &of.config.argv[0];
        let mut command = Command::new(surroundings::find(program, &of.env)?);
        command
            .arg0(program)
            .args(&of.config.argv[1..])
            .env_clear()
            .envs(of.env.iter().map(|(name, value)| (name, value)))
            .env("BUGLE_HOST", &socket)
            .env("BUGLE_HOST_NAME", &of.name)
            .env("BUGLE_HOST_PROCESS", number.to_string());
        if let Cwd::Folder(folder) = &of.config.cwd {
            command.current_dir(folder);
        }
        let (group, pipes) = Group::spawn(&mut command, &shared.workspaces)?;
        let pid = group.process_id();
        let Pipes { stdin, stdout, stderr } = pipes;
        drop(stdin);
        let tail = Arc::new(Mutex::new(Tail::default()));
        let (name, lines) = (of.name.clone(), tail.clone());
        let told = {
            let name = name.clone();
            move |line: &str| {
                tracing::info!(
                    event = "output",
                    host = name,
                    process = number,
                    stream = "stdout",
                    "{line}"
                );
            }
        };
        let complained = move |line: &str| {
            lines.lock().unwrap().push_line(line);
            tracing::info!(
                event = "output",
                host = name,
                process = number,
                stream = "stderr",
                "{line}"
            );
        };
        let readers = vec![
            tokio::spawn(each_line(stdout, told)),
            tokio::spawn(each_line(stderr, complained)),
        ];
        Ok(Started {
            group,
            pid,
            listener,
            socket,
            tail,
            readers,
        })
    }

    /// Wait until the process has connected and said hello.
    async fn greet(
        &mut self,
        shared: &Arc<Shared>,
        host: usize,
    ) -> Result<(Hello, Lines<OwnedReadHalf>, Outbox), Greeting> {
        let Started { group, listener, .. } = self;
        let first = async {
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    continue;
                };
                let (from, to) = stream.into_split();
                let (mut lines, out) = (Lines::new(from), Outbox::open(to));
                match first_line(&mut lines).await {
                    // the connection was closed again without a message
                    Ok(None) | Err(None) => continue,
                    Ok(Some(hello)) => match shared.admit(host, &hello) {
                        Ok(()) => return Ok((hello, lines, out)),
                        Err(rejected) => return Err((rejected, out)),
                    },
                    Err(Some(rejected)) => return Err((rejected, out)),
                }
            }
        };
        tokio::select! {
            greeted = first => greeted.map_err(|(rejected, out)| {
                out.send(&ToHost::Error { error: &rejected.error, code: rejected.code, id: None });
                out.close();
                Greeting::Rejected(format!("was rejected: {} ({})", rejected.error, rejected.code))
            }),
            status = group.ended() => Err(match status {
                Ok(status) => Greeting::Exited(status),
                Err(error) => Greeting::Rejected(error.to_string()),
            }),
            () = tokio::time::sleep(HELLO) => {
                Err(Greeting::Rejected(format!("did not say hello within {} seconds", HELLO.as_secs())))
            }
            () = shared.stopping.cancelled() => Err(Greeting::Stopping),
        }
    }

    /// The reason for the end of the process, with the last lines of its stderr.
    async fn explained(&mut self, why: String) -> String {
        for reader in &mut self.readers {
            if tokio::time::timeout(LAST_WORDS, &mut *reader).await.is_err() {
                reader.abort();
            }
        }
        self.tail.lock().unwrap().below(why)
    }
}

/// The greeting; none if the connection ends before.
async fn first_line(lines: &mut Lines<OwnedReadHalf>) -> Result<Option<Hello>, Option<Rejected>> {
    loop {
        if let Some(text) = lines.next().map_err(Some)? {
            let line = Line::parse(text).map_err(Some)?;
            if line.kind() != "hello" {
                let why = format!("the first message must be hello, and it is {:?}", line.kind());
                return Err(Some(Rejected::new("bad_hello", why)));
            }
            return line.hello().map(Some).map_err(Some);
        }
        match lines.more().await {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(_) => return Err(None),
        }
    }
}

/// The connection of a process.
struct Connection {
    jobs: Arc<Ear<OfProcess>>,
    out: Outbox,
    changed: Arc<Notify>,
    retired: Arc<Notify>,
    max_memory: Option<u64>,
}

impl std::ops::Deref for Ear<OfProcess> {
    type Target = OfProcess;

    fn deref(&self) -> &OfProcess {
        &self.jobs
    }
}

impl Connection {
    /// Send `welcome`, and let the process have jobs.
    fn open(
        shared: &Arc<Shared>,
        host: usize,
        number: u32,
        hello: Hello,
        out: Outbox,
        retired: Arc<Notify>,
    ) -> Connection {
        let of = &shared.hosts[host];
        let concurrency = of.config.concurrency.unwrap_or(hello.concurrency) as usize;
        out.send(&ToHost::Welcome {
            protocol: PROTOCOL,
            host: &of.name,
            process: number,
            concurrency,
            worker: &shared.worker,
        });
        let changed = Arc::new(Notify::new());
        let max_jobs = of.config.max_jobs;
        let id = shared
            .pool()
            .join(host, hello, concurrency, max_jobs, out.clone(), changed.clone());
        let jobs = OfProcess {
            shared: shared.clone(),
            host,
            number,
            id,
        };
        // the worker may have begun to stop in the meantime
        if shared.stopping.is_cancelled() {
            shared.pool().retire(id);
        }
        Connection {
            jobs: Ear::new(jobs, out.clone()),
            out,
            changed,
            retired,
            max_memory: of.config.max_memory,
        }
    }

    /// Attend to the process until it has ended. Returns why it ended, unless it was told to, and why the worker killed
    /// it, if it did.
    async fn attend(&self, started: &mut Started, mut lines: Lines<OwnedReadHalf>) -> (Option<String>, Option<Kill>) {
        let pid = started.pid;
        let mut exited = None;
        let mut weigh = tokio::time::interval(WEIGH);
        // a single future, because bytes that it has read must not be lost
        let mut hearing = Box::pin(self.hear(&mut lines));
        let killed = loop {
            tokio::select! {
                biased;
                () = self.changed.notified() => match self.jobs.order() {
                    Order::Run => {}
                    Order::Retire => self.retired.notify_one(),
                    Order::Close => {
                        self.retired.notify_one();
                        break None;
                    }
                    Order::Kill(why) => break Some(why),
                },
                heard = &mut hearing => match heard {
                    Ok(()) => break None,
                    Err(rejected) => {
                        self.out.send(&ToHost::Error { error: &rejected.error, code: rejected.code, id: None });
                        break Some(Kill::Broken(rejected.error));
                    }
                },
                status = started.group.ended(), if exited.is_none() => {
                    exited = Some(status);
                    let _ = tokio::time::timeout(LAST_WORDS, &mut hearing).await;
                    break None;
                }
                _ = weigh.tick(), if self.max_memory.is_some() => {
                    // blocking, because it reads a small file for each process of the machine
                    let weighed = tokio::task::spawn_blocking(move || pid.map(resident)).await;
                    if weighed.ok().flatten() > self.max_memory {
                        self.jobs.retire();
                    }
                }
            }
        };
        let is_orderly = killed.is_none() && exited.is_none() && self.jobs.order() == Order::Close;
        self.out.close();
        drop(hearing);
        drop(lines);
        let status = match exited {
            Some(status) => status,
            // killed at once: the outcomes of its jobs can no longer be received
            None if killed.is_some() || self.jobs.is_busy() => started.group.kill_now().await,
            None => {
                let exit = tokio::time::timeout(EXIT, started.group.ended()).await;
                match exit {
                    Ok(status) => status,
                    Err(_) => started.group.stop(TERMINATE).await,
                }
            }
        };
        if is_orderly {
            return (None, None);
        }
        let why = match (&killed, status) {
            (Some(Kill::Silent), _) => "was killed: it did not answer ping".to_owned(),
            (Some(Kill::Stuck), _) => "was killed: it did not stop the jobs it was told to stop".to_owned(),
            (Some(Kill::Broken(why)), _) => format!("was killed: {why}"),
            (None, Ok(status)) => said(&status),
            (None, Err(error)) => error.to_string(),
        };
        (Some(why), killed)
    }

    /// Handle its messages until the connection ends.
    async fn hear(&self, lines: &mut Lines<OwnedReadHalf>) -> Result<(), Rejected> {
        loop {
            while let Some(text) = lines.next()? {
                self.jobs.hear(text).await?;
            }
            if !lines.more().await.unwrap_or(false) {
                return Ok(());
            }
        }
    }
}

/// The jobs of one process.
struct OfProcess {
    shared: Arc<Shared>,
    host: usize,
    number: u32,
    id: ProcessId,
}

impl OfProcess {
    fn order(&self) -> Order {
        self.shared.pool().order(self.id)
    }

    fn is_busy(&self) -> bool {
        self.shared.pool().is_busy(self.id)
    }

    fn retire(&self) {
        self.shared.pool().retire(self.id);
        self.shared.changed();
    }

    fn leave(&self, killed: Option<&Kill>, why: &str) {
        self.shared.pool().leave(self.id, killed, why);
        self.shared.changed();
    }
}

impl Jobs for OfProcess {
    fn find(&self, named: Option<(i64, Option<i64>)>) -> Result<Arc<Talk>, Rejected> {
        let Some((job, claim)) = named else {
            return Err(Rejected::new("bad_message", "id is missing"));
        };
        self.shared.pool().find(self.id, job, claim).ok_or_else(not_held)
    }

    fn ended(&self, talk: &Arc<Talk>, outcome: Outcome) -> bool {
        self.shared.pool().ended(self.id, talk.context.job().held, outcome)
    }

    fn pong(&self) {
        self.shared.pool().pong(self.id);
    }

    fn pool(&self) -> connect::Pool {
        self.shared
            .database
            .get()
            .expect("set before the first process")
            .clone()
    }

    fn log(&self, job: Option<i64>, line: &LogLine) {
        let (host, process, text) = (&self.shared.hosts[self.host].name, self.number, &line.message);
        match line.level {
            tracing::Level::ERROR => tracing::error!(event = "host_log", host, process, job, "{text}"),
            tracing::Level::WARN => tracing::warn!(event = "host_log", host, process, job, "{text}"),
            tracing::Level::DEBUG => tracing::debug!(event = "host_log", host, process, job, "{text}"),
            _ => tracing::info!(event = "host_log", host, process, job, "{text}"),
        }
    }
}

fn said(status: &ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

/// How much memory the process has and all that belong to its group, in bytes: the first is often only a wrapper, such
/// as `uv run` or `npx`.
fn resident(group: u32) -> u64 {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pages = processes.filter_map(|process| {
        let stat = std::fs::read_to_string(process.path().join("stat")).ok()?;
        pages_in_group(&stat, group)
    });
    pages.sum::<u64>() * rustix::param::page_size() as u64
}

/// The resident pages of a process by its `/proc/PID/stat`, if it belongs to this group.
fn pages_in_group(stat: &str, group: u32) -> Option<u64> {
    // after the name, which may contain anything: state, parent, group …
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let its_group: u32 = fields.nth(2)?.parse().ok()?;
    let pages = fields.nth(18)?.parse().ok()?;
    (its_group == group).then_some(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_that_of_the_whole_group() {
        let stat =
            "4711 (a) b) (c) S 1 17 17 0 -1 4194560 500 0 0 0 1 2 0 0 20 0 1 0 99 1000000 1234 18446744073709551615";

        assert_eq!(pages_in_group(stat, 17), Some(1234));
        assert_eq!(pages_in_group(stat, 18), None);
    }

    #[test]
    fn a_process_without_children_has_the_memory_that_the_system_says() {
        let me = rustix::process::getpgrp().as_raw_nonzero().get() as u32;

        assert!(resident(me) > 1024 * 1024);
    }
}
