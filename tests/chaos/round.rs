//! One round: set everything up, let it run, break it, let it come to rest, judge.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bugle::private_postgres::{Options, PrivatePostgres};
use fastrand::Rng;
use tokio::sync::Mutex;
use tokio_postgres::Client;

use super::enqueuers::{Enqueuer, Load, connect, operate};
use super::faults::{Faults, LEASE, Plan};
use super::fleet::{EXACT_SLOTS, Place, SLOTS};
use super::host;
use super::proxy::Proxy;
use super::samples::{self, Samples};
use crate::judge::{AUDIT, Bars, Event, Evidence, Fault, History, Recorder, Report, judge, now};
use crate::poll::look_for;

const WORKERS: usize = 5;
const ENQUEUERS: usize = 4;
/// The jobs of a killed worker start elsewhere within this time, but for one in a hundred.
const RECOVERY: u64 = 3000;
/// On a machine that does other things as well it may take longer; but not so long.
const DEADLINE: u64 = 10 * RECOVERY;

/// What is passed between the parts.
struct Scene {
    folder: PathBuf,
    server: Arc<Mutex<PrivatePostgres>>,
    direct: String,
    upstream: SocketAddr,
    recorder: Recorder,
}

/// `bars`: figures are held against their bars too. They depend on the machine, so they are told only where it is not
/// ours alone.
pub fn play(plan: Plan, seed: u64, bars: bool) -> ExitCode {
    println!("chaos: seed {seed}, {} jobs, {plan:?}", plan.jobs);
    sweep();
    let folder = std::env::temp_dir().join(format!("{PREFIX}{}-{:08x}", std::process::id(), fastrand::u32(..)));
    std::fs::create_dir_all(folder.join("history")).expect("a folder");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let started = Instant::now();
    let (report, samples) = runtime.block_on(round(&folder, &plan, seed));
    runtime.shutdown_background();
    println!("{report}");
    println!("{}", counts(&report));
    println!("took {:.0} s", started.elapsed().as_secs_f64());

    let mut wrong = undone(&report, &plan);
    let mut missed = missed(&report, &plan);
    if plan.spared > 0 {
        println!("{samples}");
        missed.extend(samples.growing());
    }
    match bars {
        true => wrong.extend(missed),
        false => missed
            .iter()
            .for_each(|missed| println!("chaos: {missed} (bin/chaos would fail)")),
    }
    for wrong in &wrong {
        println!("chaos: {wrong}");
    }
    match std::env::var_os("BUGLE_CHAOS_KEEP") {
        Some(_) => {
            // under another name: the next round removes what rounds have left
            let kept = std::env::temp_dir().join(format!("kept-{}", folder.file_name().expect("a name").display()));
            std::fs::rename(&folder, &kept).expect("the folder can be renamed");
            println!("histories and logs are in {}", kept.display());
        }
        None => std::fs::remove_dir_all(&folder).expect("the folder can be removed"),
    }
    if wrong.is_empty() {
        println!("chaos: ok");
        return ExitCode::SUCCESS;
    }
    println!("chaos: again with `bin/chaos --seed {seed}`; BUGLE_CHAOS_KEEP=1 keeps histories and logs");
    ExitCode::FAILURE
}

/// The logins of the application and of the workers.
pub const APP: &str = "user=app password=app dbname=chaos sslmode=disable";
pub const APP_WORKER: &str = "user=app_worker password=app dbname=chaos sslmode=disable";

pub const PREFIX: &str = "bugle-chaos-";

/// Remove what rounds left behind that were killed.
pub fn sweep() {
    let entries = std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|owner| Path::new("/proc/self").exists() && !Path::new(&format!("/proc/{owner}")).exists())
        {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Promises that were not kept, and what the plan has and was not done.
fn undone(report: &Report, plan: &Plan) -> Vec<String> {
    let mut wrong = Vec::new();
    if !report.violations.is_empty() {
        wrong.push(format!("{} violations", report.violations.len()));
    }
    let count = |fault: Fault| report.faults.get(&fault).copied().unwrap_or_default();
    let crashes = count(Fault::ServerKill) + count(Fault::CommitReplyLost);
    for (what, found, wanted) in [
        ("kills", count(Fault::Kill), plan.kills),
        ("freezes", count(Fault::Freeze), plan.freezes),
        ("server kills", crashes, plan.server_kills),
        ("kills of hosts", count(Fault::HostKill), plan.host_kills),
        ("freezes of hosts", count(Fault::HostFreeze), plan.host_freezes),
    ] {
        if found < wanted {
            wrong.push(format!("only {found} {what} of {wanted}"));
        }
    }
    wrong
}

/// Figures that a machine that is busy with something else may miss, and what it takes some luck to meet.
fn missed(report: &Report, plan: &Plan) -> Vec<String> {
    let mut wrong = Vec::new();
    let kills = report.faults.get(&Fault::Kill).copied().unwrap_or_default();
    for (what, found, wanted) in [
        ("kills", kills, plan.kills + plan.calm_kills),
        ("acknowledged jobs", report.acknowledged, plan.jobs),
        (
            "kills in a calm whose jobs were seen again",
            report.calm_kills,
            plan.calm_kills / 2,
        ),
        ("jobs recovered in a calm", report.recovery.len(), plan.calm_kills),
    ] {
        if found < wanted {
            wrong.push(format!("only {found} {what} of {wanted}"));
        }
    }
    let p99 = Report::percentile(&report.recovery, 99);
    if p99 > DEADLINE {
        wrong.push(format!(
            "recovery in a calm takes {p99} ms: more than {DEADLINE} ms are never right"
        ));
    }
    for (what, count) in &report.judged {
        if *count == 0 {
            wrong.push(format!("there were no {what} to be judged"));
        }
    }
    wrong
}

/// What was done, in numbers, and how recovery stands to its bar.
fn counts(report: &Report) -> String {
    let count = |fault: Fault| report.faults.get(&fault).copied().unwrap_or_default();
    let p99 = Report::percentile(&report.recovery, 99);
    let bar = match p99 {
        0 => "not measured".to_owned(),
        1..=RECOVERY => format!("met: p99 {p99} ms"),
        _ => format!("MISSED: p99 {p99} ms"),
    };
    format!(
        "counts: {} kills, {} of them in a calm; {} freezes; {} server kills; {} kills and {} freezes of hosts; \
         {} jobs\n\
         bar of {RECOVERY} ms for recovery in a calm: {bar}; {} of {} times the machine was busy with something else",
        count(Fault::Kill),
        report.calm_kills,
        count(Fault::Freeze),
        count(Fault::ServerKill) + count(Fault::CommitReplyLost),
        count(Fault::HostKill),
        count(Fault::HostFreeze),
        report.acknowledged,
        report.starved,
        report.recovery.len(),
    )
}

async fn round(folder: &Path, plan: &Plan, seed: u64) -> (Report, Samples) {
    let mut rng = Rng::with_seed(seed);
    let scene = Scene::new(folder).await;
    let places = scene.places().await;
    let load = Arc::new(Load {
        enqueued: AtomicUsize::new(0),
        wanted: plan.jobs,
        rate: plan.jobs * 1250 / (plan.combined.as_millis() as usize + plan.calm_kills * 2500 + 40_000),
        calm: AtomicBool::new(true),
        stop: AtomicBool::new(false),
        suicides: AtomicUsize::new(0),
        most_suicides: if plan.spared > 0 { 0 } else { 3 },
    });
    let done = Arc::new(AtomicBool::new(false));
    let operator = tokio::spawn(operate(
        scene.direct.clone(),
        Recorder::new(&folder.join("history"), "operator"),
        rng.fork(),
        done.clone(),
    ));
    let mut links = Vec::new();
    let mut proxies = Vec::new();
    let mut enqueuers = Vec::new();
    for number in 0..ENQUEUERS {
        let proxy = Proxy::start(scene.upstream).await;
        links.push(proxy.link.clone());
        let name = format!("e{number}");
        let enqueuer = Enqueuer {
            recorder: Recorder::new(&folder.join("history"), &name),
            url: format!("host=127.0.0.1 port={} {APP}", proxy.port),
            load: load.clone(),
            rng: rng.fork(),
            share: ENQUEUERS,
            name,
        };
        enqueuers.push(tokio::spawn(enqueuer.run()));
        proxies.push(proxy);
    }
    let nurse = tokio::spawn(nurse(places.clone(), done.clone()));
    tokio::spawn(witness(scene.direct.clone(), scene.recorder.clone(), done.clone()));
    let spared = places[..plan.spared].to_vec();
    let samples = tokio::spawn(samples::take(scene.direct.clone(), spared, done.clone()));

    let faults = Faults {
        places: places.clone(),
        links: links.clone(),
        server: scene.server.clone(),
        direct: scene.direct.clone(),
        recorder: scene.recorder.clone(),
        hosts: host::folder(&folder.join("history")),
        spared: plan.spared,
    };
    faults.calm(plan, rng.fork()).await;
    println!(
        "chaos: kills in a calm are done, {} jobs enqueued",
        load.enqueued.load(Ordering::Acquire)
    );
    load.calm.store(false, Ordering::Release);
    scene.flood().await;
    faults.alone(rng.fork()).await;
    println!(
        "chaos: each alone is done, {} jobs enqueued",
        load.enqueued.load(Ordering::Acquire)
    );
    faults.combined(plan, rng.fork()).await;
    println!(
        "chaos: all at once is done, {} jobs enqueued",
        load.enqueued.load(Ordering::Acquire)
    );

    let links = places
        .iter()
        .map(|place| place.link())
        .chain(links.iter().map(|link| &**link));
    links.for_each(|link| link.restore());
    for enqueuer in enqueuers {
        enqueuer.await.expect("an enqueuer does not panic");
    }
    load.stop.store(true, Ordering::Release);
    come_to_rest(&scene.owner().await).await;
    drop(proxies);
    done.store(true, Ordering::Release);
    let _ = (operator.await, nurse.await);
    for place in &places {
        if !place.stop().await {
            let text = format!("{} did not end when it was asked to", place.life());
            scene.recorder.record(Event::Complaint { text });
        }
    }
    (
        report(&scene.owner().await, &scene.folder, &scene.recorder).await,
        samples.await.unwrap_or_default(),
    )
}

/// Notes when the machine has no time for us, or the server none for a new session: what takes long then does not take
/// long because of us.
async fn witness(url: String, recorder: Recorder, done: Arc<AtomicBool>) {
    let sessions = async {
        while !done.load(Ordering::Acquire) {
            let before = now();
            if let Some(client) = connect(&url).await {
                let _ = client.simple_query("select 1").await;
            }
            if now() - before > 1_000_000_000 {
                starved(&recorder, before);
            }
            // why: the pace of a watch that goes on until the round is over
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    tokio::join!(watch_time(recorder.clone(), done.clone()), sessions);
}

/// Only what is due to the machine.
pub async fn watch_time(recorder: Recorder, done: Arc<AtomicBool>) {
    while !done.load(Ordering::Acquire) {
        let before = now();
        // why: how late a timer is, is what tells that the machine has no time for us
        tokio::time::sleep(Duration::from_millis(20)).await;
        if now() - before > 250_000_000 {
            starved(&recorder, before);
        }
    }
}

pub fn starved(recorder: &Recorder, since: u64) {
    let whom = String::new;
    let fault = Fault::Starved;
    recorder.record_since(since, Event::Fault { fault, whom: whom() });
    recorder.record(Event::Over { fault, whom: whom() });
}

/// Replace workers that were killed by their own jobs.
pub async fn nurse(places: Vec<Arc<Place>>, done: Arc<AtomicBool>) {
    while !done.load(Ordering::Acquire) {
        for place in places.iter().filter(|place| place.take()) {
            place.revive_if_dead();
            place.let_go();
        }
        // why: the pace of a watch that goes on until the round is over
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

impl Scene {
    async fn new(folder: &Path) -> Scene {
        let options = Options::new()
            .tcp()
            .bugle_bin(env!("CARGO_BIN_EXE_bugle"))
            .setting("log_min_messages", "warning");
        let server = tokio::task::spawn_blocking(move || PrivatePostgres::start(&options));
        let server = server.await.expect("no panic").expect("a server of our own");
        let config: tokio_postgres::Config = server.tcp_url("chaos").expect("TCP").parse().expect("a URL");
        let password = String::from_utf8_lossy(config.get_password().expect("a password")).into_owned();
        let port = server.port();
        let direct =
            format!("host=127.0.0.1 port={port} user=postgres password={password} dbname=chaos sslmode=disable");
        let scene = Scene {
            folder: folder.to_owned(),
            upstream: SocketAddr::from(([127, 0, 0, 1], port)),
            recorder: Recorder::new(&folder.join("history"), "chaos"),
            server: Arc::new(Mutex::new(server)),
            direct,
        };
        prepare(&scene.direct, &scene.folder).await;
        scene
    }

    async fn owner(&self) -> Client {
        owner(&self.direct).await
    }

    async fn places(&self) -> Vec<Arc<Place>> {
        let preload = self.turned_clock();
        let mut places = Vec::new();
        for number in 0..WORKERS {
            let proxy = Proxy::start(self.upstream).await;
            let url = format!("host=127.0.0.1 port={} {APP_WORKER}", proxy.port);
            let place = Place::new(
                number,
                Some(proxy),
                self.folder.clone(),
                url,
                self.recorder.clone(),
                preload.clone().filter(|_| number == 0),
            );
            place.start();
            places.push(Arc::new(place));
        }
        places
    }

    /// A library that sets the wall clock of the process that loads it an hour ahead. None without a C compiler.
    fn turned_clock(&self) -> Option<PathBuf> {
        let (source, library) = (self.folder.join("clock.c"), self.folder.join("clock.so"));
        std::fs::write(&source, include_str!("clock.c")).expect("a file");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .arg(&library)
            .arg(&source)
            .output();
        match built {
            Ok(output) if output.status.success() => Some(library),
            _ => {
                println!("chaos: no C compiler, so no worker's clock is turned");
                None
            }
        }
    }

    /// Jobs that write forty megabytes to each of their outputs.
    async fn flood(&self) {
        self.recorder.record(Event::Fault {
            fault: Fault::Flood,
            whom: String::new(),
        });
        let sql = "insert into bugle.jobs (command, max_attempts) select 'flood', 1 from generate_series(1, 3)";
        self.owner().await.batch_execute(sql).await.expect("enqueues");
    }
}

/// A connection as the superuser.
pub async fn owner(direct: &str) -> Client {
    for _ in 0..200 {
        if let Some(client) = connect(direct).await {
            return client;
        }
    }
    panic!("the server does not answer")
}

/// The database, the logins, and what the load needs.
pub async fn prepare(direct: &str, folder: &Path) {
    let maintenance = direct.replace("dbname=chaos", "dbname=postgres");
    let client = connect(&maintenance).await.expect("connects");
    client.batch_execute("create database chaos").await.expect("a database");
    bugle::schema::migrate(&direct.parse::<tokio_postgres::Config>().expect("a connection string"))
        .await
        .expect("migrates");
    let owner = owner(direct).await;
    owner.batch_execute(AUDIT).await.expect("an audit");
    owner
        .batch_execute(&format!(
            "create role app login password 'app' in role bugle_enqueuer; \
                 grant select (payload) on bugle.jobs to app; \
                 create role app_worker login password 'app' in role bugle_worker; \
                 create schema app; create table app.effects (job bigint, claim bigint, step integer); \
                 grant usage on schema app to app_worker; grant insert on app.effects to app_worker; \
                 insert into bugle.retry_policies (name, kind, retries, delay, jitter) values ('quick', 'fixed', 20, \
                 '200 milliseconds', 0.5), \
                   ('once', 'fixed', 1, '100 milliseconds', 0); \
                 insert into bugle.commands (name, step_retry_policy) values ('step', 'once'); \
                 update bugle.settings set lease = '{} seconds'; \
                 select bugle.set_limits('exact', p_max_running => 3, p_max_running_per_key => 2, p_max_starts => 40, \
                 p_starts_period => '1 second', \
                   p_max_starts_per_key => 15, p_starts_per_key_period => '1 second'); \
                 insert into bugle.schedules (name, every, command, overlap) values ('often', '1 second', 'work', \
                 'allow'), \
                   ('seldom', '3 seconds', 'work', 'skip')",
            LEASE.as_secs()
        ))
        .await
        .expect("a stage");
    let flood = "head -c 40000000 /dev/zero | tr '\\\\0' x; head -c 40000000 /dev/zero | tr '\\\\0' y >&2; exit 1";
    let hosts = host::section();
    let config = format!("[commands.flood]\nprogram = [\"sh\", \"-c\", \"{flood}\"]\n{hosts}");
    std::fs::write(folder.join("worker.toml"), config).expect("a file");
}

/// Nothing is broken any more: everything must come to its end.
pub async fn come_to_rest(owner: &Client) {
    owner
        .batch_execute("delete from bugle.schedules")
        .await
        .expect("no more slots");
    let started = Instant::now();
    let left = async || -> i64 {
        let left = owner.query_one("select count(*) from bugle.jobs_live", &[]).await;
        left.expect("asks").get(0)
    };
    let mut before = left().await;
    while before > 0 {
        // something must come to its end before the deadline, until everything has
        let fewer = look_for(|| async { Some(left().await).filter(|left| *left < before) }).await;
        let Some(fewer) = fewer else {
            println!("chaos: {before} jobs are left");
            return;
        };
        before = fewer;
    }
    println!(
        "chaos: everything came to its end after {:.1} s",
        started.elapsed().as_secs_f64()
    );
}

/// What the judge says.
async fn report(owner: &Client, folder: &Path, recorder: &Recorder) -> Report {
    let evidence = evidence(owner, folder, recorder).await;
    judge(&History::read(&folder.join("history")), &evidence, &bars())
}

pub fn bars() -> Bars {
    Bars {
        slots: SLOTS + EXACT_SLOTS,
        most_calls: host::CONCURRENCY,
        max_running: vec![("exact".into(), 3, 2)],
        max_starts: vec![("exact".into(), 40, 15, 1.0)],
        drift: 0.25,
        ..Bars::default()
    }
}

/// What the database says. What only this load can tell is told to the judge as complaints.
pub async fn evidence(owner: &Client, folder: &Path, recorder: &Recorder) -> Evidence {
    let twice = "select count(*) from (select job from app.effects group by job, step having count(*) > 1) t";
    let twice: i64 = owner.query_one(twice, &[]).await.expect("asks").get(0);
    if twice > 0 {
        let text = format!("{twice} jobs wrote twice in the transaction that completes them");
        recorder.record(Event::Complaint { text });
    }
    let unsaid = "select count(*) from app.effects e where case when e.step is null \
            then not exists (select from bugle.jobs j where j.id = e.job and j.state = 'completed' and j.claim = \
            e.claim) \
            else not exists (select from bugle.step_records r where (r.job, r.position, r.state, r.claim) = (e.job, \
            e.step, 'done', e.claim)) end";
    let unsaid: i64 = owner.query_one(unsaid, &[]).await.expect("asks").get(0);
    if unsaid > 0 {
        let text = format!("{unsaid} jobs wrote in a transaction that did not complete them");
        recorder.record(Event::Complaint { text });
    }
    let incomplete = "select count(*) from bugle.jobs j where j.command = 'chain' and j.state = 'completed' \
            and j.result - 's2' is distinct from '{\"s1\": 1, \"s3\": 3}'";
    let incomplete: i64 = owner.query_one(incomplete, &[]).await.expect("asks").get(0);
    if incomplete > 0 {
        let text = format!("{incomplete} chains are completed without the outputs of their steps");
        recorder.record(Event::Complaint { text });
    }
    // sessions of workers that have just ended
    let others = "select count(*) from pg_stat_activity where datname = 'chaos' and usename = 'app_worker'";
    let gone = || async {
        let left: i64 = owner.query_one(others, &[]).await.expect("asks").get(0);
        (left == 0).then_some(())
    };
    let _ = look_for(gone).await;
    Evidence::gather(owner, Some(&folder.join("work"))).await
}
