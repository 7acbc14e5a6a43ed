//! Failovers: workers and enqueuers on a Patroni cluster, of which one primary after the other is lost.
//!
//! The judge is that of all chaos. In synchronous mode nothing that was acknowledged may be lost. In asynchronous mode
//! PostgreSQL may lose the newest commits with a primary; then it is checked that exactly these are gone, by the audit
//! that was written in the same transactions.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::process::Signal;
use tokio_postgres::Client;

use super::enqueuers::{Enqueuer, Load, connect, operate};
use super::fleet::Place;
use super::patroni::{Cluster, Node, Programs, TTL};
use super::round::{self, APP, APP_WORKER, PREFIX, owner};
use crate::judge::{Entry, Event, Evidence, Fault, History, Kind, Recorder, Report, Violation, judge, now};
use crate::poll::{look_for, look_for_up_to};

const WORKERS: usize = 4;
const ENQUEUERS: usize = 4;
/// Jobs a second.
const RATE: usize = 60;
/// From the moment at which only the new primary takes writes until a worker has claimed a job there, but for one in a
/// hundred.
const FIRST_CLAIM: u64 = 3000;

/// In the order in which they come.
const KINDS: [Fault; 9] = [
    Fault::Switchover,
    Fault::PrimaryKill,
    Fault::PatroniKill,
    Fault::NodeKill,
    Fault::FrozenPrimary,
    Fault::CutOffPrimary,
    Fault::LaggingReplica,
    Fault::TwoFailovers,
    Fault::NoEtcd,
];

/// What to play.
#[derive(Debug, Clone)]
pub struct Plan {
    pub synchronous: bool,
    /// How many of each kind.
    pub each: usize,
    pub kinds: Vec<Fault>,
    /// No fault begins after this time.
    pub at_most: Option<Duration>,
    /// Whether the time to the first claim is held against its bar.
    pub has_bars: bool,
}

impl Plan {
    /// The round of `bin/test`, which runs on machines that are busy.
    pub fn short() -> Plan {
        Plan {
            synchronous: true,
            each: 1,
            kinds: vec![Fault::Switchover, Fault::NodeKill, Fault::FrozenPrimary],
            at_most: None,
            has_bars: false,
        }
    }

    /// From the arguments of `bin/chaos --patroni`.
    pub fn from(arguments: &[String]) -> Plan {
        let after = |flag: &str| {
            let at = arguments.iter().position(|argument| argument == flag)?;
            arguments.get(at + 1)
        };
        let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
        let only = after("--only").map(|names| names.split(',').collect::<Vec<_>>());
        let is_wanted = |kind: &&Fault| {
            only.as_ref()
                .is_none_or(|only| only.contains(&format!("{kind:?}").as_str()))
        };
        Plan {
            synchronous: !has("--async"),
            each: if has("--long") { 20 } else { 1 },
            kinds: KINDS.iter().filter(is_wanted).copied().collect(),
            at_most: after("--minutes")
                .and_then(|minutes| Some(Duration::from_secs(minutes.parse::<u64>().ok()? * 60))),
            has_bars: true,
        }
    }
}

/// What was measured of one, in milliseconds.
#[derive(Debug, Clone)]
struct Failover {
    kind: Fault,
    /// From the fault until the new primary takes writes and no other does.
    without_primary: u64,
    /// From then until a worker has claimed a job there.
    first_claim: u64,
}

/// Play it with the programs of this machine, which are installed if they are missing and may be.
pub fn play(plan: &Plan, seed: u64) -> ExitCode {
    match Programs::obtain() {
        Ok(programs) => play_with(programs, plan, seed),
        Err(why) => {
            println!("chaos: there is no Patroni to be tested: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The short round, where the programs are installed.
pub fn play_short(seed: u64) -> ExitCode {
    match Programs::find() {
        Ok(programs) => play_with(programs, &Plan::short(), seed),
        Err(why) => {
            println!("chaos: the round on Patroni is skipped: {why}");
            ExitCode::SUCCESS
        }
    }
}

fn play_with(programs: Programs, plan: &Plan, seed: u64) -> ExitCode {
    println!("chaos: seed {seed}, {plan:?}");
    round::sweep();
    let name = format!("{PREFIX}{}-{:08x}", std::process::id(), fastrand::u32(..));
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(folder.join("history")).expect("a folder");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let played = runtime.block_on(round(programs, &folder, plan, seed));
    runtime.shutdown_background();
    let wrong = match played {
        Ok((report, failovers, lost)) => {
            println!("{report}");
            println!("lost by PostgreSQL with a primary: {lost}");
            print!("{}", table(&failovers));
            missed(&report, &failovers, plan)
        }
        Err(trouble) => vec![trouble],
    };
    // what was found can be explained only with what everybody wrote at that time
    match std::env::var_os("BUGLE_CHAOS_KEEP").is_some() || !wrong.is_empty() {
        true => {
            let kept = std::env::temp_dir().join(format!("kept-{}", folder.file_name().expect("a name").display()));
            std::fs::rename(&folder, &kept).expect("the folder can be renamed");
            println!("histories and logs are in {}", kept.display());
        }
        false => drop(std::fs::remove_dir_all(&folder)),
    }
    for wrong in &wrong {
        println!("chaos: {wrong}");
    }
    match wrong.is_empty() {
        true => {
            println!("chaos: ok");
            ExitCode::SUCCESS
        }
        false => ExitCode::FAILURE,
    }
}

fn missed(report: &Report, failovers: &[Failover], plan: &Plan) -> Vec<String> {
    let mut wrong = Vec::new();
    if !report.violations.is_empty() {
        wrong.push(format!("{} violations", report.violations.len()));
    }
    let p99 = Report::percentile(&sorted(failovers, |failover| failover.first_claim), 99);
    if plan.has_bars && p99 > FIRST_CLAIM {
        wrong.push(format!("the first claim takes {p99} ms: the bar is {FIRST_CLAIM} ms"));
    }
    let done = |kind: &Fault| failovers.iter().filter(|failover| failover.kind == *kind).count();
    let rare = plan.kinds.iter().filter(|kind| done(kind) < plan.each);
    if plan.at_most.is_none() {
        wrong.extend(rare.map(|kind| format!("only {} of {} {kind:?}", done(kind), plan.each)));
    }
    wrong
}

fn sorted(failovers: &[Failover], read: fn(&Failover) -> u64) -> Vec<u64> {
    let mut values: Vec<u64> = failovers.iter().map(read).collect();
    values.sort_unstable();
    values
}

/// A line for each kind, and one for all.
fn table(failovers: &[Failover]) -> String {
    let line = |name: &str, of: &[Failover]| {
        let (without, first) = (
            sorted(of, |failover| failover.without_primary),
            sorted(of, |failover| failover.first_claim),
        );
        let of = of.len();
        let [a, b] = [50, 100].map(|percent| Report::percentile(&without, percent) as f64 / 1000.0);
        let [c, d, e] = [50, 99, 100].map(|percent| Report::percentile(&first, percent) as f64 / 1000.0);
        format!("{name:16} {of:4}   {a:6.1} {b:6.1}   {c:6.2} {d:6.2} {e:6.2}\n")
    };
    let mut text = "                          no primary, s    to the first claim, s\n\
                    kind             times    p50    max      p50    p99    max\n"
        .to_owned();
    for kind in KINDS {
        let of: Vec<Failover> = failovers
            .iter()
            .filter(|failover| failover.kind == kind)
            .cloned()
            .collect();
        if !of.is_empty() {
            text += &line(&format!("{kind:?}"), &of);
        }
    }
    text + &line("all", failovers)
}

struct Stage<'a> {
    cluster: &'a Cluster,
    recorder: Recorder,
    synchronous: bool,
    probes: AtomicUsize,
}

async fn round(
    programs: Programs,
    folder: &Path,
    plan: &Plan,
    seed: u64,
) -> Result<(Report, Vec<Failover>, Lost), String> {
    let mut rng = Rng::with_seed(seed);
    let cluster = Cluster::start(programs, &folder.join("cluster"), plan.synchronous).await?;
    let direct = cluster.direct("chaos");
    round::prepare(&direct, folder).await;
    let all_slots = "update bugle.schedules set misfire = 'catch_up', catch_up_limit = 1000 where name = 'often'";
    owner(&direct).await.batch_execute(all_slots).await.expect("a schedule");
    let recorder = Recorder::new(&folder.join("history"), "chaos");
    // one half knows all nodes, the other half is behind HAProxy
    let url = |number: usize, login: &str| match number % 2 {
        0 => cluster.url(login),
        _ => cluster.balanced_url(login),
    };
    let places: Vec<Arc<Place>> = (0..WORKERS)
        .map(|number| {
            let url = url(number, APP_WORKER);
            Arc::new(Place::new(number, None, folder.to_owned(), url, recorder.clone(), None))
        })
        .collect();
    places.iter().for_each(|place| place.start());
    let load = Arc::new(Load {
        enqueued: AtomicUsize::new(0),
        wanted: usize::MAX,
        rate: RATE,
        calm: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        suicides: AtomicUsize::new(0),
        most_suicides: 0,
    });
    let enqueuers: Vec<_> = (0..ENQUEUERS)
        .map(|number| {
            let name = format!("e{number}");
            let enqueuer = Enqueuer {
                recorder: Recorder::new(&folder.join("history"), &name),
                url: format!("{} load_balance_hosts=random", url(number, APP)),
                load: load.clone(),
                rng: rng.fork(),
                share: ENQUEUERS,
                name,
            };
            tokio::spawn(enqueuer.run())
        })
        .collect();
    let done = Arc::new(AtomicBool::new(false));
    let operator = tokio::spawn(operate(
        direct.clone(),
        Recorder::new(&folder.join("history"), "operator"),
        rng.fork(),
        done.clone(),
    ));
    let nurse = tokio::spawn(round::nurse(places.clone(), done.clone()));
    let timer = tokio::spawn(round::watch_time(recorder.clone(), done.clone()));
    let observer = tokio::spawn(cluster.observer(folder.join("cluster.log")).observe(done.clone()));

    let stage = Stage {
        cluster: &cluster,
        recorder: recorder.clone(),
        synchronous: plan.synchronous,
        probes: AtomicUsize::new(0),
    };
    let (started, mut failovers) = (Instant::now(), Vec::new());
    'all: for count in 0..plan.each {
        for kind in &plan.kinds {
            if plan.at_most.is_some_and(|most| started.elapsed() > most) {
                break 'all;
            }
            let found = stage.failover(*kind, &mut rng).await?;
            for failover in &found {
                println!(
                    "chaos: {:?} {}: {} ms without a primary, {} ms to the first claim",
                    kind,
                    count + 1,
                    failover.without_primary,
                    failover.first_claim
                );
            }
            failovers.extend(found);
        }
    }
    if cluster
        .healthy(plan.synchronous, Duration::from_secs(180))
        .await
        .is_none()
    {
        return Err("the cluster is not whole again".into());
    }
    load.stop.store(true, Ordering::Release);
    for enqueuer in enqueuers {
        enqueuer.await.expect("an enqueuer does not panic");
    }
    let owner = owner(&direct).await;
    round::come_to_rest(&owner).await;
    done.store(true, Ordering::Release);
    let _ = (operator.await, nurse.await, timer.await, observer.await);
    for place in &places {
        let complain = |what: &str| {
            let text = format!("{} {what}", place.life());
            recorder.record(Event::Complaint { text });
        };
        if place.has_died() {
            complain("is not the first one in its place: the one before ended by itself");
        }
        if !place.stop().await {
            complain("did not end when it was asked to");
        }
    }
    let evidence = round::evidence(&owner, folder, &recorder).await;
    let mut history = History::read(&folder.join("history"));
    history.entries.extend(completions(folder, &evidence));
    let mut lost = match plan.synchronous {
        true => Lost::default(),
        false => Lost::take(&mut history, &evidence),
    };
    let mut report = judge(&history, &evidence, &round::bars());
    if !plan.synchronous {
        // the record of a step may be lost although its claim is not; then the step is run again
        let all = report.violations.len();
        report.violations.retain(|violation| violation.kind != Kind::StepBroken);
        lost.steps = all - report.violations.len();
    }
    for what in missing_slots(&owner).await {
        let kind = Kind::Lost;
        report.violations.push(Violation { kind, what });
    }
    Ok((report, failovers, lost))
}

impl<'a> Stage<'a> {
    /// Break it, wait for the next primary and for a claim there, and put everything in order again.
    async fn failover(&self, kind: Fault, rng: &mut Rng) -> Result<Vec<Failover>, String> {
        let cluster = self.cluster;
        let healthy = cluster.healthy(self.synchronous, Duration::from_secs(180)).await;
        let old = healthy.ok_or_else(|| format!("the cluster is not in order before {kind:?}"))?;
        let started = |node: &'a Node| async move {
            let since = look_for_up_to(Duration::from_secs(30), || async {
                cluster.writable_since(node).await?
            });
            since.await.unwrap_or_default()
        };
        let lost = started(old).await;
        // why: the load goes on for a moment that the round's seed chooses
        tokio::time::sleep(Duration::from_millis(rng.u64(500..2000))).await;
        let whom = String::new;
        self.recorder.record(Event::Fault {
            fault: kind,
            whom: whom(),
        });
        let forever = Duration::from_secs(600);
        let mut from = now();
        let mut found = Vec::new();
        match kind {
            Fault::Switchover => {}
            Fault::PrimaryKill => old.kill_server(),
            Fault::PatroniKill => {
                old.kill_patroni();
                // why: its server goes on meanwhile, beside the next primary, until something starts it again
                tokio::time::sleep(TTL + Duration::from_millis(rng.u64(1000..5000))).await;
                // A Patroni that finds its server running writes its configuration anew, without synchronous replicas,
                // before it sees that another node leads: commits that wait are acknowledged, and lost (3.0.2). So the
                // server is stopped first, as docs/high-availability.md tells service managers to.
                old.kill_server();
                cluster.start_patroni(old);
            }
            Fault::NodeKill => {
                old.kill_patroni();
                old.kill_server();
            }
            Fault::FrozenPrimary => cluster.signal(old, Signal::STOP),
            Fault::CutOffPrimary => cluster.cut_off(old, forever),
            Fault::LaggingReplica => {
                cluster.stop_replication(old, forever);
                // why: for this time the replicas fall behind
                tokio::time::sleep(Duration::from_millis(rng.u64(1000..3000))).await;
                from = now();
                old.kill_patroni();
                old.kill_server();
            }
            Fault::TwoFailovers => {
                old.kill_patroni();
                old.kill_server();
                let (next, failover) = self.next_primary(kind, (old, &lost), from).await?;
                found.push(failover);
                cluster.start_patroni(old);
                let lost_next = started(next).await;
                from = now();
                next.kill_patroni();
                next.kill_server();
                // why: for this time two of three are gone, or one that is not complete yet is there
                tokio::time::sleep(Duration::from_millis(rng.u64(500..2000))).await;
                cluster.start_patroni(next);
                found.push(self.next_primary(kind, (next, &lost_next), from).await?.1);
            }
            _ => cluster.signal_etcd(Signal::STOP),
        }
        match kind {
            Fault::Switchover => {
                let body = format!("{{\"leader\": \"{}\"}}", old.name());
                let ask = cluster.ask(old, "POST", "/switchover", &body);
                let (said, next) = tokio::join!(ask, self.next_primary(kind, (old, &lost), from));
                let said = said.unwrap_or_default();
                if !said.starts_with("HTTP/1.0 200") {
                    return Err(format!("Patroni does not switch over: {said}"));
                }
                found.push(next?.1);
            }
            Fault::NoEtcd => {
                let back = async {
                    // why: the lock of the primary expires
                    tokio::time::sleep(TTL + Duration::from_millis(rng.u64(2000..6000))).await;
                    cluster.signal_etcd(Signal::CONT);
                };
                let ((), next) = tokio::join!(back, self.next_primary(kind, (old, &lost), from));
                found.push(next?.1);
            }
            Fault::TwoFailovers => {}
            _ => found.push(self.next_primary(kind, (old, &lost), from).await?.1),
        }
        // why: the old one stays away for a moment that the round's seed chooses
        tokio::time::sleep(Duration::from_millis(rng.u64(500..4000))).await;
        match kind {
            Fault::NodeKill | Fault::LaggingReplica => cluster.start_patroni(old),
            Fault::FrozenPrimary if self.synchronous => {
                // When it is thawed, Patroni 3.0.2 takes the lock of the leader back without a look at who has it, and
                // what the next primary has acknowledged is lost. A watchdog would have reset the node: its Patroni is
                // killed, and its server goes on for a moment, for clients to come back to.
                old.kill_patroni();
                cluster.signal(old, Signal::CONT);
                // why: for this time the former primary is there again beside the next one
                tokio::time::sleep(Duration::from_millis(rng.u64(2000..5000))).await;
                old.kill_server();
                cluster.start_patroni(old);
            }
            Fault::FrozenPrimary => cluster.signal(old, Signal::CONT),
            _ => {}
        }
        cluster.cut_off(old, Duration::ZERO);
        let healthy = cluster.healthy(self.synchronous, Duration::from_secs(180)).await;
        self.recorder.record(Event::Over {
            fault: kind,
            whom: whom(),
        });
        match healthy {
            Some(_) => Ok(found),
            None => Err(format!("the cluster is not in order after {kind:?}")),
        }
    }

    /// Wait until one node takes writes, and the old primary, if it is another one, does not, and until a worker has
    /// claimed a job there. What is still broken is no excuse for the worker.
    async fn next_primary(
        &self,
        kind: Fault,
        (old, lost): (&'a Node, &str),
        from: u64,
    ) -> Result<(&'a Node, Failover), String> {
        let cluster = self.cluster;
        let next = look_for_up_to(Duration::from_secs(300), || async {
            for node in cluster.nodes.iter().filter(|node| node.number != old.number) {
                let ready = now();
                if cluster.takes_writes(node).await == Some(true) {
                    // workers may be on either, while there are two
                    return (cluster.takes_writes(old).await != Some(true)).then_some((node, ready));
                }
            }
            let ready = now();
            let since = cluster.writable_since(old).await??;
            // the same one again is right only if it was down meanwhile
            (since != lost).then_some((old, ready))
        });
        let (next, ready) = next.await.ok_or_else(|| format!("no primary after {kind:?}"))?;
        let claimed = look_for_up_to(Duration::from_secs(120), || self.claimed_on(next)).await;
        let claimed = claimed.ok_or_else(|| format!("nothing is claimed after {kind:?}"))?;
        let failover = Failover {
            kind,
            without_primary: (ready - from) / 1_000_000,
            first_claim: claimed.saturating_sub(ready) / 1_000_000,
        };
        Ok((next, failover))
    }

    /// Enqueue a job there that comes before all others, and wait until a worker has it. `None` if it is lost with this
    /// primary, too, or has been taken by nobody for long.
    async fn claimed_on(&self, node: &Node) -> Option<u64> {
        let client = connect(&self.cluster.url_of(node, "chaos")).await?;
        let token = format!("probe-{}", self.probes.fetch_add(1, Ordering::AcqRel));
        self.recorder.record(Event::Asked { token: token.clone() });
        let insert = "insert into bugle.jobs (command, payload, priority, retry_policy) \
            values ('work', jsonb_build_object('token', $1::text), -1, 'quick') returning id";
        let job: i64 = client.query_one(insert, &[&token]).await.ok()?.get(0);
        self.recorder.record(Event::Acknowledged { token, job });
        let asked = now();
        let taken = "select claim > 0 from bugle.jobs where id = $1";
        loop {
            let row = client.query_opt(taken, &[&job]).await.ok()??;
            if row.get(0) {
                return Some(now());
            }
            if now() - asked > 30_000_000_000 {
                return None;
            }
            // why: the pace of looking
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// What the workers were told: they log that a job is complete when the database has accepted it.
fn completions(folder: &Path, evidence: &Evidence) -> Vec<Entry> {
    let names: HashSet<&String> = evidence.workers.values().collect();
    let mut entries = Vec::new();
    for name in names {
        let text = std::fs::read_to_string(folder.join(format!("{name}.log"))).unwrap_or_default();
        for line in text.lines().filter(|line| line.contains("\"complete\"")) {
            let Ok(line) = serde_json::from_str::<serde_json::Value>(line) else {
                continue;
            };
            let fields = if line["fields"].is_object() {
                &line["fields"]
            } else {
                &line
            };
            let number = |name: &str| fields[name].as_i64();
            if let (Some(job), Some(claim), Some("complete")) =
                (number("job"), number("claim"), fields["event"].as_str())
            {
                let outcome = "complete".to_owned();
                let event = Event::Accepted { job, claim, outcome };
                entries.push(Entry {
                    at: u64::MAX,
                    who: name.clone(),
                    event,
                });
            }
        }
    }
    entries
}

/// What was acknowledged by a primary and is unknown to the one after it.
#[derive(Debug, Default)]
struct Lost {
    enqueues: usize,
    completions: usize,
    cancels: usize,
    executions: usize,
    steps: usize,
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} enqueues, {} completions, {} cancels; {} events of executions, {} steps",
            self.enqueues, self.completions, self.cancels, self.executions, self.steps
        )
    }
}

impl Lost {
    /// Take out of the history what the audit does not know: it was written in the same transactions, so PostgreSQL
    /// lost them. What it knows must be there: the judge sees to that.
    fn take(history: &mut History, evidence: &Evidence) -> Lost {
        let mut lost = Lost::default();
        let (mut claimed, mut ended) = (HashSet::new(), HashMap::<i64, HashSet<&str>>::new());
        let mut completed = HashSet::new();
        for step in &evidence.steps {
            let Some(new) = &step.new else { continue };
            let worker = new.worker.and_then(|worker| evidence.workers.get(&worker));
            match new.state.as_str() {
                "running" => drop(claimed.insert((step.job, new.claim, worker))),
                "completed" => drop(completed.insert((step.job, new.claim))),
                _ => {}
            }
            ended.entry(step.job).or_default().insert(&new.state);
        }
        let tokens: BTreeMap<&str, i64> = evidence
            .jobs
            .values()
            .filter_map(|job| Some((job.token.as_deref()?, job.id)))
            .collect();
        let is_known = |entry: &Entry, lost: &mut Lost| {
            let (known, count) = match &entry.event {
                Event::Acknowledged { token, job } => {
                    let known = match evidence.jobs.get(job).and_then(|job| job.token.as_deref()) {
                        // another one has this id now
                        Some(other) if other != token => tokens.contains_key(token.as_str()),
                        _ => ended.contains_key(job),
                    };
                    (known, &mut lost.enqueues)
                }
                Event::Accepted { job, claim, .. } => (completed.contains(&(*job, *claim)), &mut lost.completions),
                Event::Cancelled { job } => {
                    let known = ended.get(job).is_some_and(|states| states.contains("cancelled"));
                    (known, &mut lost.cancels)
                }
                Event::Started { job, claim }
                | Event::Finished { job, claim, .. }
                | Event::Stopped { job, claim }
                | Event::StepStarted { job, claim, .. }
                | Event::StepFinished { job, claim, .. }
                | Event::StepStopped { job, claim, .. } => {
                    let known = claimed.contains(&(*job, *claim, Some(&entry.who)));
                    (known, &mut lost.executions)
                }
                _ => return true,
            };
            *count += usize::from(!known);
            known
        };
        history.entries.retain(|entry| is_known(entry, &mut lost));
        lost
    }
}

/// The schedule `often` has a slot every second, and those of a time without a primary are caught up.
async fn missing_slots(owner: &Client) -> Vec<String> {
    let sql = "select extract(epoch from (headers ->> 'slot')::timestamptz)::double precision from bugle.jobs \
        where headers ->> 'schedule' = 'often' order by 1";
    let slots: Vec<f64> = look_for(|| async { owner.query(sql, &[]).await.ok() })
        .await
        .expect("an answer")
        .iter()
        .map(|row| row.get(0))
        .collect();
    let mut missing = Vec::new();
    for pair in slots.windows(2).filter(|pair| pair[1] - pair[0] > 1.5) {
        missing.push(format!(
            "no slot of the schedule often was fired between {} and {}",
            pair[0], pair[1]
        ));
    }
    missing
}
