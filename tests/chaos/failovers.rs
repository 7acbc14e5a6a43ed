//! Failovers: workers and enqueuers on a Patroni cluster, of which one primary after the other is lost.
//!
//! The judge is that of all chaos. In synchronous mode nothing that was acknowledged may be lost. In asynchronous mode
//! PostgreSQL may lose the newest commits with a primary; then it is checked that exactly these are gone, by the audit
//! that was written in the same transactions. The short round is judged in the same way: on a machine that is busy,
//! Patroni loses commits in synchronous mode, too.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use fastrand::Rng;
use rustix::process::Signal;
use tokio_postgres::Client;

use super::enqueuers::{Enqueuer, Load, connect, operate};
use super::fleet::Place;
use super::patroni::{Cluster, LOOP_WAIT, Node, Programs, TTL};
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
/// Longer than the cluster needs to be in order again, unless the machine has no time for it.
const PATIENCE: Duration = Duration::from_secs(180);
const FOREVER: Duration = Duration::from_secs(3600);

/// In the order in which they come.
const KINDS: [Fault; 12] = [
    Fault::Switchover,
    Fault::PrimaryKill,
    Fault::PatroniKill,
    Fault::NodeKill,
    Fault::FrozenPrimary,
    Fault::CutOffPrimary,
    Fault::NoEtcdForPrimary,
    Fault::CutOffFromOthers,
    Fault::LaggingReplica,
    Fault::TwoFailovers,
    Fault::NoEtcd,
    Fault::NoEtcdFailsafe,
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
    /// Whether what takes time is held against its bar, and each failover has to come to its end. If not, as on a
    /// machine that is busy, the commits that Patroni loses are no violation either.
    pub has_bars: bool,
}

impl Plan {
    /// The round of `bin/test`, which runs on machines that are busy.
    pub fn short() -> Plan {
        Plan {
            synchronous: true,
            each: 1,
            kinds: vec![Fault::Switchover, Fault::NodeKill, Fault::FrozenPrimary],
            at_most: Some(Duration::from_secs(120)),
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
    /// From the fault until the new primary takes writes and no other does, or until the same one does again.
    without_primary: u64,
    /// From then until a worker has claimed a job there.
    first_claim: u64,
    /// Of a primary that cannot reach etcd.
    demotion: Option<Demotion>,
}

/// A primary that cannot renew its lock has to demote itself.
#[derive(Debug, Clone)]
struct Demotion {
    /// From the fault until it takes no writes any more, in milliseconds.
    took: u64,
    /// Whether it took writes when another one did so already.
    was_late: bool,
}

/// What came of a round.
#[derive(Default)]
struct Played {
    /// None if there was no primary in the end to ask.
    report: Option<Report>,
    failovers: Vec<Failover>,
    /// When each fault began, also one that did not come to its end.
    begun: Vec<(u64, Fault)>,
    lost: Lost,
    missing_slots: usize,
    /// What did not come to its end.
    stalls: Vec<String>,
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

/// The short round, where the programs are installed, if it is asked for: on a machine that is busy with something else
/// etcd and Patroni do not come to an end in any time that a test may take.
pub fn play_short(seed: u64) -> ExitCode {
    if std::env::var_os("BUGLE_TEST_PATRONI").is_none() {
        println!("chaos: the round on Patroni is skipped: BUGLE_TEST_PATRONI=1 asks for it");
        return ExitCode::SUCCESS;
    }
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
        Ok(played) => {
            if let Some(report) = &played.report {
                println!("{report}");
                println!("{}", summary(&played, report));
            }
            print!("{}", table(&played));
            missed(&played, plan)
        }
        Err(trouble) if plan.has_bars => vec![trouble],
        Err(trouble) => {
            println!("chaos: the round on Patroni is skipped: {trouble}");
            Vec::new()
        }
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

fn missed(played: &Played, plan: &Plan) -> Vec<String> {
    let mut wrong = Vec::new();
    let violations = played.report.as_ref().map_or(0, |report| report.violations.len());
    if violations > 0 {
        wrong.push(format!("{violations} violations"));
    }
    if !plan.has_bars {
        let stalls = played.stalls.iter();
        stalls.for_each(|stall| println!("chaos: {stall} (bin/chaos --patroni would fail)"));
        return wrong;
    }
    wrong.extend(played.stalls.iter().cloned());
    let failovers = &played.failovers;
    let p99 = Report::percentile(&sorted(failovers, |failover| failover.first_claim), 99);
    if p99 > FIRST_CLAIM {
        wrong.push(format!("the first claim takes {p99} ms: the bar is {FIRST_CLAIM} ms"));
    }
    let most = (TTL + LOOP_WAIT).as_millis() as u64;
    let demotions = || failovers.iter().filter_map(|failover| failover.demotion.as_ref());
    for late in demotions().filter(|demotion| demotion.took > most) {
        wrong.push(format!("a primary without etcd takes writes for {} ms", late.took));
    }
    let beside = demotions().filter(|demotion| demotion.was_late).count();
    if beside > 0 {
        wrong.push(format!(
            "{beside} primaries without etcd took writes beside the next one"
        ));
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

/// What must not be, in numbers.
fn summary(played: &Played, report: &Report) -> String {
    let count = |kinds: &[Kind]| {
        let of_kinds = report
            .violations
            .iter()
            .filter(|violation| kinds.contains(&violation.kind));
        of_kinds.count()
    };
    format!(
        "stuck: {}; two live claims: {}; slots of schedules doubled: {}, missing: {}\n\
         commits that were acknowledged and that the last primary does not know: {}",
        count(&[Kind::Stuck]),
        count(&[Kind::FinishedTwice, Kind::StaleCompletion, Kind::Duplicated]),
        count(&[Kind::SlotFiredTwice]),
        played.missing_slots,
        played.lost
    )
}

/// A line for each kind, and one for all. A commit is lost in the fault that began before it last.
fn table(played: &Played) -> String {
    let Played {
        failovers, begun, lost, ..
    } = played;
    let line = |name: &str, of: &[Failover], lost: [usize; 3]| {
        let (without, first) = (
            sorted(of, |failover| failover.without_primary),
            sorted(of, |failover| failover.first_claim),
        );
        let of = of.len();
        let [a, b] = [50, 100].map(|percent| Report::percentile(&without, percent) as f64 / 1000.0);
        let [c, d, e] = [50, 99, 100].map(|percent| Report::percentile(&first, percent) as f64 / 1000.0);
        let [f, g, h] = lost;
        format!("{name:16} {of:4}   {a:6.1} {b:6.1}   {c:6.2} {d:6.2} {e:6.2}   {f:8} {g:8} {h:8}\n")
    };
    let mut text =
        "                          no primary, s    to the first claim, s    lost, by PostgreSQL and Patroni\n\
                    kind             times    p50    max      p50    p99    max   enqueues completions cancels\n"
            .to_owned();
    let during = |at: u64| {
        let before = begun.iter().take_while(|(from, _)| *from <= at);
        before.last().or(begun.first()).map(|(_, kind)| *kind)
    };
    let count = |kind: Option<Fault>| {
        [What::Enqueue, What::Completion, What::Cancel].map(|what| {
            let lost = lost.events.iter().filter(|(_, lost)| *lost == what);
            lost.filter(|(at, _)| kind.is_none() || during(*at) == kind).count()
        })
    };
    for kind in KINDS {
        let of: Vec<Failover> = failovers
            .iter()
            .filter(|failover| failover.kind == kind)
            .cloned()
            .collect();
        if begun.iter().any(|(_, begun)| *begun == kind) {
            text += &line(&format!("{kind:?}"), &of, count(Some(kind)));
        }
    }
    text += &line("all", failovers, count(None));
    let demotions: Vec<&Demotion> = failovers
        .iter()
        .filter_map(|failover| failover.demotion.as_ref())
        .collect();
    if let Some(longest) = demotions.iter().map(|demotion| demotion.took).max() {
        text += &format!(
            "primaries without etcd: {}, which took writes for {:.1} s at most; {} of them beside the next one\n",
            demotions.len(),
            longest as f64 / 1000.0,
            demotions.iter().filter(|demotion| demotion.was_late).count()
        );
    }
    text
}

struct Stage<'a> {
    cluster: &'a Cluster,
    recorder: Recorder,
    synchronous: bool,
    probes: AtomicUsize,
}

/// An error means that the cluster did not come up.
async fn round(programs: Programs, folder: &Path, plan: &Plan, seed: u64) -> Result<Played, String> {
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
    // a worker that starts while there is no primary ends with an error, and a service manager starts it again
    let client = owner(&direct).await;
    let serve = || async {
        let alive = "select count(*) from bugle.workers where state = 'alive'";
        let alive: i64 = client.query_one(alive, &[]).await.ok()?.get(0);
        (alive == WORKERS as i64).then_some(())
    };
    look_for(serve).await.ok_or("the workers do not start")?;
    drop(client);
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
    let observer = tokio::spawn(
        cluster
            .observer(folder.join("cluster.log"), recorder.clone())
            .observe(done.clone()),
    );

    let stage = Stage {
        cluster: &cluster,
        recorder: recorder.clone(),
        synchronous: plan.synchronous,
        probes: AtomicUsize::new(0),
    };
    let (started, mut played) = (Instant::now(), Played::default());
    'all: for count in 0..plan.each {
        for kind in &plan.kinds {
            if plan.at_most.is_some_and(|most| started.elapsed() > most) {
                break 'all;
            }
            let before = played.failovers.len();
            let met = stage.failover(*kind, &mut rng, &mut played).await;
            for failover in &played.failovers[before..] {
                println!(
                    "chaos: {:?} {}: {} ms without a primary, {} ms to the first claim",
                    kind,
                    count + 1,
                    failover.without_primary,
                    failover.first_claim
                );
            }
            if let Err(stall) = met {
                println!("chaos: {stall}");
                played.stalls.push(stall);
                // what has been seen until then is judged
                if cluster.healthy(plan.synchronous, PATIENCE).await.is_none() {
                    break 'all;
                }
            }
        }
    }
    load.stop.store(true, Ordering::Release);
    for enqueuer in enqueuers {
        enqueuer.await.expect("an enqueuer does not panic");
    }
    let is_whole = cluster.healthy(plan.synchronous, PATIENCE).await.is_some();
    if !is_whole {
        played.stalls.push(cluster.trouble("the cluster is not whole again"));
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
    let (lost, unknown) = Lost::of(&history, &evidence);
    played.lost = lost;
    let forgives = !plan.synchronous || !plan.has_bars;
    if forgives {
        let mut unknown = unknown.into_iter();
        history.entries.retain(|_| !unknown.next().unwrap_or_default());
    }
    let mut report = judge(&history, &evidence, &round::bars());
    if forgives {
        // the record of a step may be lost although its claim is not; then the step is run again
        let all = report.violations.len();
        report.violations.retain(|violation| violation.kind != Kind::StepBroken);
        played.lost.steps = all - report.violations.len();
    }
    let enqueues = played.lost.count(What::Enqueue);
    let gone = report
        .violations
        .iter()
        .filter(|violation| violation.kind == Kind::Lost);
    if !forgives && enqueues > gone.count() {
        let what = format!("{enqueues} jobs were acknowledged, and some of their ids have other jobs now");
        let kind = Kind::Lost;
        report.violations.push(Violation { kind, what });
    }
    let missing = missing_slots(&owner).await;
    played.missing_slots = missing.len();
    for what in missing {
        let kind = Kind::Lost;
        report.violations.push(Violation { kind, what });
    }
    played.report = Some(report);
    Ok(played)
}

impl<'a> Stage<'a> {
    /// Break it, wait for the next primary and for a claim there, and put everything in order again, however that ends.
    async fn failover(&self, kind: Fault, rng: &mut Rng, played: &mut Played) -> Result<(), String> {
        let cluster = self.cluster;
        let healthy = cluster.healthy(self.synchronous, PATIENCE).await;
        let old = healthy.ok_or_else(|| format!("the cluster is not in order before {kind:?}"))?;
        played.begun.push((now(), kind));
        if kind == Fault::NoEtcdFailsafe && !cluster.set_failsafe(old, true).await {
            return Err("Patroni does not change failsafe_mode".into());
        }
        let lost = self.started(old).await;
        // why: the load goes on for a moment that the round's seed chooses
        tokio::time::sleep(Duration::from_millis(rng.u64(500..2000))).await;
        let whom = String::new;
        self.recorder.record(Event::Fault {
            fault: kind,
            whom: whom(),
        });
        let met = self.strike(kind, (old, &lost), rng, &mut played.failovers).await;
        // why: the old one stays away for a moment that the round's seed chooses
        tokio::time::sleep(Duration::from_millis(rng.u64(500..4000))).await;
        self.repair(kind, old, rng).await;
        let healthy = cluster.healthy(self.synchronous, PATIENCE).await;
        self.recorder.record(Event::Over {
            fault: kind,
            whom: whom(),
        });
        met?;
        let next = healthy.ok_or_else(|| format!("the cluster is not in order after {kind:?}"))?;
        match kind == Fault::NoEtcdFailsafe && !cluster.set_failsafe(next, false).await {
            true => Err("Patroni does not change failsafe_mode back".into()),
            false => Ok(()),
        }
    }

    /// When its server was started, if it takes writes.
    async fn started(&self, node: &Node) -> String {
        let since = look_for_up_to(Duration::from_secs(30), || async {
            self.cluster.writable_since(node).await?
        });
        since.await.unwrap_or_default()
    }

    async fn strike(
        &self,
        kind: Fault,
        (old, lost): (&'a Node, &str),
        rng: &mut Rng,
        found: &mut Vec<Failover>,
    ) -> Result<(), String> {
        let cluster = self.cluster;
        let mut from = now();
        match kind {
            Fault::Switchover => {
                let body = format!("{{\"leader\": \"{}\"}}", old.name());
                let ask = cluster.ask(old, "POST", "/switchover", &body);
                let (said, next) = tokio::join!(ask, self.next_primary(kind, (old, lost), from));
                let said = said.unwrap_or_default();
                found.push(next?.1);
                return match said.starts_with("HTTP/1.0 200") {
                    true => Ok(()),
                    false => Err(format!("Patroni does not switch over: {said}")),
                };
            }
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
            Fault::CutOffPrimary | Fault::NoEtcdForPrimary => {
                cluster.cut_off_from_etcd(old, FOREVER);
                if kind == Fault::CutOffPrimary {
                    cluster.cut_off_from_others(old, FOREVER);
                }
                let next = self.next_primary(kind, (old, lost), from);
                let (demotion, next) = tokio::join!(self.demotion(old, from), next);
                found.push(Failover {
                    demotion: Some(demotion),
                    ..next?.1
                });
                return Ok(());
            }
            Fault::CutOffFromOthers => {
                cluster.cut_off_from_others(old, FOREVER);
                // why: the replicas are away for longer than the lock lasts that the primary keeps
                let away = tokio::time::sleep(TTL + Duration::from_millis(rng.u64(2000..6000)));
                let (same, ()) = tokio::join!(self.same_primary(kind, (old, lost), from), away);
                found.push(same?);
                return self.still_leads(kind, (old, lost)).await;
            }
            Fault::NoEtcdFailsafe => {
                cluster.signal_etcd(Signal::STOP);
                // why: the lock of the primary expires
                tokio::time::sleep(TTL + Duration::from_millis(rng.u64(2000..6000))).await;
                found.push(self.same_primary(kind, (old, lost), from).await?);
                return self.still_leads(kind, (old, lost)).await;
            }
            Fault::LaggingReplica => {
                cluster.stop_replication(old, FOREVER);
                // why: for this time the replicas fall behind
                tokio::time::sleep(Duration::from_millis(rng.u64(1000..3000))).await;
                from = now();
                old.kill_patroni();
                old.kill_server();
            }
            Fault::TwoFailovers => {
                old.kill_patroni();
                old.kill_server();
                let (next, failover) = self.next_primary(kind, (old, lost), from).await?;
                found.push(failover);
                cluster.start_patroni(old);
                let lost_next = self.started(next).await;
                from = now();
                next.kill_patroni();
                next.kill_server();
                // why: for this time two of three are gone, or one that is not complete yet is there
                tokio::time::sleep(Duration::from_millis(rng.u64(500..2000))).await;
                cluster.start_patroni(next);
                found.push(self.next_primary(kind, (next, &lost_next), from).await?.1);
                return Ok(());
            }
            _ => {
                cluster.signal_etcd(Signal::STOP);
                let back = async {
                    // why: the lock of the primary expires
                    tokio::time::sleep(TTL + Duration::from_millis(rng.u64(2000..6000))).await;
                    cluster.signal_etcd(Signal::CONT);
                };
                let ((), next) = tokio::join!(back, self.next_primary(kind, (old, lost), from));
                found.push(next?.1);
                return Ok(());
            }
        }
        found.push(self.next_primary(kind, (old, lost), from).await?.1);
        Ok(())
    }

    /// Nothing is broken any more.
    async fn repair(&self, kind: Fault, old: &Node, rng: &mut Rng) {
        let cluster = self.cluster;
        match kind {
            Fault::FrozenPrimary if self.synchronous => {
                // When it is thawed, Patroni 3.0.2 takes the lock of the leader back without a look at who has it, and
                // what the next primary has acknowledged is lost. A watchdog would have reset the node: its Patroni is
                // killed, and its server goes on for a moment, for clients to come back to.
                old.kill_patroni();
                cluster.signal(old, Signal::CONT);
                // why: for this time the former primary is there again beside the next one
                tokio::time::sleep(Duration::from_millis(rng.u64(2000..5000))).await;
                old.kill_server();
            }
            Fault::FrozenPrimary => cluster.signal(old, Signal::CONT),
            _ => cluster.signal_etcd(Signal::CONT),
        }
        for node in &cluster.nodes {
            cluster.cut_off_from_etcd(node, Duration::ZERO);
            cluster.cut_off_from_others(node, Duration::ZERO);
            if !node.has_patroni() {
                cluster.start_patroni(node);
            }
        }
    }

    /// How a primary that does not reach etcd ceases to be one.
    async fn demotion(&self, old: &Node, from: u64) -> Demotion {
        let cluster = self.cluster;
        let (mut is_replaced, mut was_late, mut ended) = (false, false, None);
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            for node in cluster.nodes.iter().filter(|node| node.number != old.number) {
                is_replaced |= cluster.takes_writes(node).await == Some(true);
            }
            // asked after the other one has answered: both take writes at the time of this question
            let takes_writes = cluster.takes_writes(old).await;
            match takes_writes {
                Some(true) => {
                    was_late |= is_replaced;
                    ended = None;
                }
                _ => drop(ended.get_or_insert_with(now)),
            }
            if is_replaced && takes_writes == Some(false) {
                break;
            }
            // why: the pace of looking
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Demotion {
            took: (ended.unwrap_or_else(now) - from) / 1_000_000,
            was_late,
        }
    }

    /// A job is claimed on the primary that stays.
    async fn same_primary(&self, kind: Fault, (old, lost): (&Node, &str), from: u64) -> Result<Failover, String> {
        let claimed = look_for_up_to(Duration::from_secs(120), || self.claimed_on(old)).await;
        let (acknowledged, claimed) = claimed.ok_or_else(|| format!("nothing is claimed during {kind:?}"))?;
        self.still_leads(kind, (old, lost)).await?;
        // without etcd, it was never away
        let waited = if kind == Fault::NoEtcdFailsafe {
            0
        } else {
            acknowledged - from
        };
        Ok(Failover {
            kind,
            without_primary: waited / 1_000_000,
            first_claim: claimed.saturating_sub(acknowledged) / 1_000_000,
            demotion: None,
        })
    }

    /// It is still the only one, and was never away.
    async fn still_leads(&self, kind: Fault, (old, lost): (&Node, &str)) -> Result<(), String> {
        for node in self.cluster.nodes.iter().filter(|node| node.number != old.number) {
            if self.cluster.takes_writes(node).await == Some(true) {
                return Err(format!("there is another primary during {kind:?}"));
            }
        }
        match self.started(old).await == lost {
            true => Ok(()),
            false => Err(format!("the primary did not go on during {kind:?}")),
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
        let (_, claimed) = claimed.ok_or_else(|| format!("nothing is claimed after {kind:?}"))?;
        let failover = Failover {
            kind,
            without_primary: (ready - from) / 1_000_000,
            first_claim: claimed.saturating_sub(ready) / 1_000_000,
            demotion: None,
        };
        Ok((next, failover))
    }

    /// Enqueue a job there that comes before all others, and wait until a worker has it: when it was acknowledged, and
    /// when it was claimed. `None` if it is lost with this primary, too, or has been taken by nobody for long.
    async fn claimed_on(&self, node: &Node) -> Option<(u64, u64)> {
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
                return Some((asked, now()));
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
    let (time, clock) = (now(), SystemTime::now());
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
                let said = line["timestamp"]
                    .as_str()
                    .and_then(|at| humantime::parse_rfc3339(at).ok());
                let ago = said.and_then(|said| clock.duration_since(said).ok());
                entries.push(Entry {
                    at: ago.map_or(u64::MAX, |ago| time.saturating_sub(ago.as_nanos() as u64)),
                    who: name.clone(),
                    event,
                });
            }
        }
    }
    entries
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Enqueue,
    Completion,
    Cancel,
    Execution,
}

/// What was acknowledged by a primary and is unknown to the one after it.
#[derive(Debug, Default)]
struct Lost {
    /// With the time at which somebody was told.
    events: Vec<(u64, What)>,
    steps: usize,
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [enqueues, completions, cancels, executions] =
            [What::Enqueue, What::Completion, What::Cancel, What::Execution].map(|what| self.count(what));
        let steps = self.steps;
        write!(
            f,
            "{enqueues} enqueues, {completions} completions, {cancels} cancels; {executions} events of executions, \
             {steps} steps"
        )
    }
}

impl Lost {
    fn count(&self, what: What) -> usize {
        self.events.iter().filter(|(_, lost)| *lost == what).count()
    }

    /// What the audit does not know: it was written in the same transactions, so PostgreSQL lost them. What it knows
    /// must be there: the judge sees to that. Also, for each entry of the history, whether it is one of these.
    fn of(history: &History, evidence: &Evidence) -> (Lost, Vec<bool>) {
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
        let mut asked = HashMap::<&str, u64>::new();
        for entry in &history.entries {
            if let Event::Asked { token } = &entry.event {
                asked.entry(token).or_insert(entry.at);
            }
        }
        let tokens: BTreeMap<&str, i64> = evidence
            .jobs
            .values()
            .filter_map(|job| Some((job.token.as_deref()?, job.id)))
            .collect();
        let is_unknown = |entry: &Entry, lost: &mut Lost| {
            let (known, what) = match &entry.event {
                Event::Acknowledged { token, job } => {
                    let known = match evidence.jobs.get(job).and_then(|job| job.token.as_deref()) {
                        // Another one has this id now. If somebody had asked for that one before, this token was
                        // about the same job: it has a unique key.
                        Some(other) if other != token => {
                            tokens.contains_key(token.as_str()) || asked.get(other).is_some_and(|at| *at < entry.at)
                        }
                        _ => ended.contains_key(job),
                    };
                    (known, What::Enqueue)
                }
                Event::Accepted { job, claim, .. } => (completed.contains(&(*job, *claim)), What::Completion),
                Event::Cancelled { job } => {
                    let known = ended.get(job).is_some_and(|states| states.contains("cancelled"));
                    (known, What::Cancel)
                }
                Event::Started { job, claim }
                | Event::Finished { job, claim, .. }
                | Event::Stopped { job, claim }
                | Event::StepStarted { job, claim, .. }
                | Event::StepFinished { job, claim, .. }
                | Event::StepStopped { job, claim, .. } => {
                    // a host runs the jobs of its worker
                    let who = entry.who.split('@').next().unwrap_or_default().to_owned();
                    let known = claimed.contains(&(*job, *claim, Some(&who)));
                    (known, What::Execution)
                }
                _ => return false,
            };
            if !known {
                lost.events.push((entry.at, what));
            }
            !known
        };
        let unknown = history
            .entries
            .iter()
            .map(|entry| is_unknown(entry, &mut lost))
            .collect();
        (lost, unknown)
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
