//! `bugle bench host`: executors in other languages, next to a Rust executor.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::process::Command;
use tokio_postgres::Client;

use super::clients::{STAMP, sleep_until};
use super::clock::now;
use super::drain::account_for;
use super::server::{Database, fill};
use super::statistics::{Percentiles, median};
use super::workers::Workers;
use super::{Bench, Line};

/// Throughput and latency of hosts, next to a Rust executor and a program per job
///
/// One worker process, in turn with each of these: a Rust executor; a host with one process in Python and one in Node,
/// which only speak the protocol; the same with the package bugle-jobs, where python3 or node finds it (PYTHONPATH and
/// NODE_PATH are passed on); and a Python program that is started for each job. What is not installed is left out.
///
/// Drain: all jobs are enqueued while the queue is paused. Timed from when it is resumed until every completion is
/// committed and durable. "× floor" is the ratio to the Rust executor.
///
/// Pickup: all are idle, and each gets one job in turn. The time from sending the INSERT to the first line of the
/// function.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// Number of jobs to drain [default: 100000]
    #[arg(long, value_name = "N")]
    pub jobs: Option<u64>,
    /// Number of jobs for the program that is started for each [default: 300]
    #[arg(long, value_name = "N")]
    pub program_jobs: Option<u64>,
    /// Slots of the worker, and how many jobs the process of a host holds at once [default: 2000]
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,
    /// Programs that run at once [default: 4]
    #[arg(long, value_name = "N")]
    pub programs: Option<u32>,
    /// Number of jobs to pick up, for each [default: 300]
    #[arg(long, value_name = "N")]
    pub pickups: Option<u64>,
    /// Milliseconds between pickups [default: 10]
    #[arg(long, value_name = "MS")]
    pub every: Option<u64>,
    /// Number of rounds of the drain; the median is reported [default: 3]
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
}

/// A host drains at least this share of what a Rust executor drains.
const BAR_TO_RUST: f64 = 0.3;
/// A host drains at least this many times what a program per job drains.
const BAR_TO_PROGRAM: f64 = 100.0;
/// A host starts a job at most this many milliseconds after a Rust executor would, at the median.
const BAR_PICKUP_MS: f64 = 1.0;

const SLOTS: u32 = 2_000;

/// Who runs the jobs.
#[derive(Debug, Clone)]
struct Runner {
    name: &'static str,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Rust,
    /// The worker's file.
    Host(PathBuf),
    /// The worker's file.
    Program(PathBuf),
}

impl Runner {
    fn file(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Rust => None,
            Kind::Host(file) | Kind::Program(file) => Some(file),
        }
    }

    fn is_host(&self) -> bool {
        matches!(self.kind, Kind::Host(_))
    }

    fn is_program(&self) -> bool {
        matches!(self.kind, Kind::Program(_))
    }
}

/// # Errors
/// If a measurement fails or a job is unaccounted for.
pub async fn run(bench: &mut Bench, options: Options) -> Result<()> {
    let folder = Folder::new()?;
    let slots = options.slots.unwrap_or(SLOTS);
    let runners = runners(&folder.0, slots).await?;
    drain_all(bench, &options, &runners, slots).await?;
    pick_up_all(bench, &options, &runners).await
}

async fn drain_all(bench: &mut Bench, options: &Options, runners: &[Runner], slots: u32) -> Result<()> {
    let most = bench.choose(options.jobs, 100_000, 2_000);
    let few = bench.choose(options.program_jobs, 300, 10);
    let rounds = bench.choose(options.rounds, 3, 1);
    let programs = options.programs.unwrap_or(4);
    let size = |runner: &Runner| if runner.is_program() { few } else { most };
    let mut rates = vec![Vec::new(); runners.len()];
    for round in 1..=rounds {
        for (runner, rates) in runners.iter().zip(&mut rates) {
            bench.progress(&format!("host: round {round} of {rounds}: drain, {}", runner.name));
            let database = bench.server.database().await?;
            let slots = if runner.is_program() { programs } else { slots };
            let seconds = drain(&database, runner.file(), size(runner), slots).await?;
            rates.push(size(runner) as f64 / seconds);
            bench.server.remove(database).await?;
        }
    }
    let ratio = |these: &[f64], those: &[f64]| median(these.iter().zip(those).map(|(a, b)| a / b).collect());
    let of_programs = runners.iter().position(Runner::is_program).map(|index| &rates[index]);
    for (runner, of_runner) in runners.iter().zip(&rates) {
        let jobs = size(runner);
        let mut line = Line::new("host", format!("drain, {}", runner.name), jobs)
            .rate(jobs as f64 / median(of_runner.clone()))
            .ratio(ratio(of_runner, &rates[0]));
        if runner.is_host() {
            line = line.note("bar_to_rust", BAR_TO_RUST);
            if let Some(of_programs) = of_programs {
                line = line
                    .note("ratio_to_program", ratio(of_runner, of_programs))
                    .note("bar_to_program", BAR_TO_PROGRAM);
            }
        }
        let rounds: Vec<f64> = of_runner.iter().map(|rate| rate.round()).collect();
        bench.add(line.note("rounds", rounds));
    }
    Ok(())
}

/// Fill a new database and drain it. Returns the seconds it took.
pub(super) async fn drain(database: &Database, file: Option<&Path>, jobs: u64, slots: u32) -> Result<f64> {
    let client = database.connect().await?;
    let mut running = Workers::start_idle_with(database, file, slots).await?;
    client
        .execute("select bugle.pause_queue('default', 'enqueueing')", &[])
        .await?;
    fill(&client, jobs).await?;
    let last = "select max(j.id) from bugle.jobs_live j";
    let last: i64 = client.query_one(last, &[]).await?.get(0);

    let start = now();
    client.execute("select bugle.resume_queue('default')", &[]).await?;
    let end = running.emptied(&client, last).await?;
    running.stop().await?;

    account_for(&client, jobs).await?;
    ran_once(&client).await?;
    Ok((end - start) as f64 / 1e9)
}

/// A host reports no executions, but whatever ran again was claimed again.
async fn ran_once(client: &Client) -> Result<()> {
    let again = "select count(*) from bugle.jobs j where j.claim <> 1";
    let again: i64 = client.query_one(again, &[]).await?.get(0);
    ensure!(again == 0, "{again} jobs ran more than once");
    Ok(())
}

async fn pick_up_all(bench: &mut Bench, options: &Options, runners: &[Runner]) -> Result<()> {
    let jobs = bench.choose(options.pickups, 300, 20);
    let step = options.every.unwrap_or(10) as i64 * 1_000_000;
    let mut idle = Vec::new();
    for runner in runners.iter().filter(|runner| !runner.is_program()) {
        bench.progress(&format!("host: starting {}", runner.name));
        let database = bench.server.database().await?;
        let client = database.connect().await?;
        let workers = Workers::start_idle_with(&database, runner.file(), 10).await?;
        idle.push((runner, database, client, workers));
    }
    bench.progress("host: pickup");
    let start = now();
    let mut turn = 0;
    for _ in 0..jobs {
        for (_, _, client, _) in &idle {
            sleep_until(start + turn * step).await;
            client.execute(STAMP, &[&now()]).await?;
            turn += 1;
        }
    }
    let mut of_rust = None;
    for (runner, database, client, mut workers) in idle {
        let last: i64 = client
            .query_one("select max(j.id) from bugle.jobs j", &[])
            .await?
            .get(0);
        workers.emptied(&client, last).await?;
        let mut times = workers.stop().await?.times;
        account_for(&client, jobs).await?;
        ran_once(&client).await?;
        if runner.is_host() {
            let results = "select (j.result ->> 't0')::bigint, (j.result ->> 't')::bigint from bugle.jobs j";
            let rows = client.query(results, &[]).await?;
            times = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        }
        ensure!(times.len() as u64 == jobs, "{} executions of {jobs} jobs", times.len());
        bench.server.remove(database).await?;
        let times = Percentiles::of_nanoseconds(times.iter().map(|(t0, t)| t - t0)).context("no jobs")?;
        let rust: &Percentiles = of_rust.get_or_insert(times);
        let mut line = Line::new("host", format!("pickup, {}", runner.name), jobs)
            .times(Some(times))
            .ratio(times.p50 / rust.p50);
        if runner.is_host() {
            line = line
                .note("p50_above_rust_ms", times.p50 - rust.p50)
                .note("bar_ms", BAR_PICKUP_MS);
        }
        bench.add(line);
    }
    Ok(())
}

/// The programs of the hosts, and the files of their workers.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new() -> Result<Folder> {
        let path = std::env::temp_dir().join(format!("bugle-bench-{:016x}", fastrand::u64(..)));
        let mut builder = std::fs::DirBuilder::new();
        builder
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A Rust executor, and whatever this machine has.
async fn runners(folder: &Path, slots: u32) -> Result<Vec<Runner>> {
    // the interpreters themselves: what is on the path may be a script that looks for one, for each job
    let python = answer("python3", &["-c", "import sys; print(sys.executable)"]).await;
    let node = answer("node", &["-p", "process.execPath"]).await;
    let mut runners = vec![Runner {
        name: "Rust executor",
        kind: Kind::Rust,
    }];
    let mut host = |name: &'static str, interpreter: &str, script: &str, text: &str| -> Result<()> {
        let argv = write_program(folder, interpreter, script, text)?;
        let section = format!("[hosts.bench]\nprogram = {argv}\nconcurrency = {slots}\nenv = \"inherit\"\n");
        let kind = Kind::Host(write(folder, &format!("{script}.toml"), &section)?);
        runners.push(Runner { name, kind });
        Ok(())
    };
    if let Some(python) = &python {
        host("Python host", python, "plain.py", include_str!("hosts/plain.py"))?;
        if answer(python, &["-c", "import bugle_jobs"]).await.is_some() {
            let text = include_str!("hosts/package.py");
            host("Python host with bugle-jobs", python, "package.py", text)?;
        }
    }
    if let Some(node) = &node {
        host("Node host", node, "plain.js", include_str!("hosts/plain.js"))?;
        if answer(node, &["-e", "require('bugle-jobs')"]).await.is_some() {
            let text = include_str!("hosts/package.js");
            host("Node host with bugle-jobs", node, "package.js", text)?;
        }
    }
    if let Some(python) = &python {
        let argv = write_program(folder, python, "program.py", include_str!("hosts/program.py"))?;
        let section = format!("[commands.noop]\nprogram = {argv}\n");
        let kind = Kind::Program(write(folder, "program.py.toml", &section)?);
        let name = "Python program per job";
        runners.push(Runner { name, kind });
    }
    Ok(runners)
}

/// What a program prints, if there is such a program and it succeeds.
async fn answer(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await.ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

/// Write a script. Returns how to run it, as a list for the worker's file.
fn write_program(folder: &Path, interpreter: &str, name: &str, text: &str) -> Result<String> {
    let path = write(folder, name, text)?;
    Ok(json!([interpreter, path]).to_string())
}

pub(super) fn write(folder: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}
