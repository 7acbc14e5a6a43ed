//! `bugle bench sql` and `bugle bench program`: commands that the worker runs without code of its user.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::host::{Folder, drain, write};
use super::statistics::median;
use super::{Bench, Line};

/// Throughput of sql commands: one transaction with the completion for each job
///
/// One worker process. Each job inserts one row into a table of two columns.
///
/// The floor, in turns with it: a Rust executor that does nothing, on as many slots.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct SqlOptions {
    /// Number of jobs [default: 20000]
    #[arg(long, value_name = "N")]
    pub jobs: Option<u64>,
    /// Slots of the worker [default: 64]
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,
    /// Number of rounds; the median is reported [default: 3]
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
}

/// Throughput of program commands: a process for each job
///
/// One worker process runs the program "true" for each job.
///
/// The floor, in turns with it: as many threads as there are slots, each of which starts the same program
/// repeatedly and waits for its end.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ProgramOptions {
    /// Number of jobs [default: 5000]
    #[arg(long, value_name = "N")]
    pub jobs: Option<u64>,
    /// Slots of the worker [default: 8]
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,
    /// Number of rounds; the median is reported [default: 3]
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
}

const STATEMENT: &str = "insert into bench_rows (id, payload) values (($1 ->> 'i')::bigint, $1)";

/// # Errors
/// If a measurement fails, a job is unaccounted for, or a row is missing.
pub async fn sql(bench: &mut Bench, options: SqlOptions) -> Result<()> {
    let jobs = bench.choose(options.jobs, 20_000, 200);
    let slots = options.slots.unwrap_or(64);
    let rounds = bench.choose(options.rounds, 3, 1);
    let folder = Folder::new()?;
    let file = format!("[commands.noop]\nsql = \"{STATEMENT}\"\n");
    let file = write(&folder.0, "sql.toml", &file)?;
    let (mut times, mut floors) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        bench.progress(&format!("sql: round {round} of {rounds}: Rust executor"));
        let database = bench.server.database().await?;
        floors.push(drain(&database, None, jobs, slots).await?);
        bench.server.remove(database).await?;

        bench.progress(&format!("sql: round {round} of {rounds}: sql command"));
        let database = bench.server.database().await?;
        let client = database.connect().await?;
        let table = "create table bench_rows (id bigint primary key, payload jsonb)";
        client.batch_execute(table).await?;
        times.push(drain(&database, Some(&file), jobs, slots).await?);
        let rows: i64 = client.query_one("select count(*) from bench_rows", &[]).await?.get(0);
        ensure!(rows == jobs as i64, "{jobs} jobs inserted {rows} rows");
        bench.server.remove(database).await?;
    }
    report(
        bench,
        "sql",
        jobs,
        slots,
        ("sql command", times),
        ("floor: Rust executor", floors),
    );
    Ok(())
}

/// # Errors
/// If a measurement fails, a job is unaccounted for, or there is no program "true".
pub async fn program(bench: &mut Bench, options: ProgramOptions) -> Result<()> {
    let jobs = bench.choose(options.jobs, 5_000, 40);
    let slots = options.slots.unwrap_or(8);
    let rounds = bench.choose(options.rounds, 3, 1);
    let folder = Folder::new()?;
    let file = write(&folder.0, "program.toml", "[commands.noop]\nprogram = [\"true\"]\n")?;
    let (mut times, mut floors) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        bench.progress(&format!("program: round {round} of {rounds}: bare loop"));
        floors.push(tokio::task::spawn_blocking(move || bare_loop(jobs, slots)).await??);
        bench.progress(&format!("program: round {round} of {rounds}: program command"));
        let database = bench.server.database().await?;
        times.push(drain(&database, Some(&file), jobs, slots).await?);
        bench.server.remove(database).await?;
    }
    report(
        bench,
        "program",
        jobs,
        slots,
        ("program command", times),
        ("floor: bare loop", floors),
    );
    Ok(())
}

/// Start "true" for each job, in this number of threads. Returns the seconds it took.
fn bare_loop(jobs: u64, threads: u32) -> Result<f64> {
    let start = Instant::now();
    std::thread::scope(|scope| {
        let threads = u64::from(threads.max(1));
        let running: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || run_true(jobs / threads + u64::from(thread < jobs % threads))))
            .collect();
        running
            .into_iter()
            .try_for_each(|thread| thread.join().expect("a thread that does not panic"))
    })?;
    Ok(start.elapsed().as_secs_f64())
}

fn run_true(times: u64) -> Result<()> {
    for _ in 0..times {
        let status = Command::new("true")
            .stdin(Stdio::null())
            .status()
            .context("cannot run the program true")?;
        ensure!(status.success(), "the program true exited with {status}");
    }
    Ok(())
}

type Measured = (&'static str, Vec<f64>);

fn report(bench: &mut Bench, name: &'static str, jobs: u64, slots: u32, measured: Measured, floor: Measured) {
    let rates = |times: &[f64]| -> Vec<f64> { times.iter().map(|time| (jobs as f64 / time).round()).collect() };
    let ratio = median(
        floor
            .1
            .iter()
            .zip(&measured.1)
            .map(|(floor, time)| floor / time)
            .collect(),
    );
    let rounds = rates(&measured.1);
    let line = Line::new(name, measured.0, jobs).rate(median(measured.1)).ratio(ratio);
    bench.add(line.note("slots", slots).note("rounds", rounds));
    let rounds = rates(&floor.1);
    bench.add(
        Line::new(name, floor.0, jobs)
            .rate(median(floor.1))
            .note("rounds", rounds),
    );
}
