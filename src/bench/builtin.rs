//! `bugle bench sql` and `bugle bench program`: commands that the worker runs without code of its user.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::host::{Folder, drain, write};
use super::statistics::median;
use super::{Bar, Bench, Line};

/// Throughput of sql commands: in one transaction with the completion
///
/// One worker process. Each job inserts one row into a table of two columns: in a transaction for each job, and in
/// batches.
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
    /// How many jobs of a batch share a transaction [default: 50]
    #[arg(long, value_name = "N")]
    pub batch: Option<u32>,
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
    let batch = options.batch.unwrap_or(50);
    let folder = Folder::new()?;
    let command = format!("[commands.noop]\nsql = \"{STATEMENT}\"\n");
    let single = write(&folder.0, "single.toml", &command)?;
    let batched = write(&folder.0, "batched.toml", &format!("{command}batch = {batch}\n"))?;
    let (mut singles, mut batches, mut floors) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=rounds {
        bench.progress(&format!("sql: round {round} of {rounds}: Rust executor"));
        let database = bench.server.database().await?;
        floors.push(drain(&database, None, jobs, slots).await?);
        bench.server.remove(database).await?;
        bench.progress(&format!("sql: round {round} of {rounds}: one at a time"));
        singles.push(insert(bench, &single, jobs, slots).await?);
        bench.progress(&format!("sql: round {round} of {rounds}: batches"));
        batches.push(insert(bench, &batched, jobs, slots).await?);
    }
    let batches = (format!("sql command, batch = {batch}"), batches);
    let commands = [(("sql command".to_owned(), singles), None), (batches, Some(BAR_SQL))];
    report(bench, "sql", jobs, slots, commands, ("floor: Rust executor", floors));
    Ok(())
}

/// Five times what one transaction for each job reached at first.
const BAR_SQL: Bar = Bar::AtLeast(0.15);
const BAR_PROGRAM: Bar = Bar::AtLeast(0.8);

/// Run as many jobs that insert a row. Returns the seconds it took.
async fn insert(bench: &Bench, file: &Path, jobs: u64, slots: u32) -> Result<f64> {
    let database = bench.server.database().await?;
    let client = database.connect().await?;
    let table = "create table bench_rows (id bigint primary key, payload jsonb)";
    client.batch_execute(table).await?;
    let seconds = drain(&database, Some(file), jobs, slots).await?;
    let rows: i64 = client.query_one("select count(*) from bench_rows", &[]).await?.get(0);
    ensure!(rows == jobs as i64, "{jobs} jobs inserted {rows} rows");
    bench.server.remove(database).await?;
    Ok(seconds)
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
    let commands = [(("program command".to_owned(), times), Some(BAR_PROGRAM))];
    report(bench, "program", jobs, slots, commands, ("floor: bare loop", floors));
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

/// A row with its seconds in each round.
type Measured<S> = (S, Vec<f64>);

fn report(
    bench: &mut Bench,
    name: &'static str,
    jobs: u64,
    slots: u32,
    commands: impl IntoIterator<Item = (Measured<String>, Option<Bar>)>,
    (floor, floors): Measured<&str>,
) {
    let rates = |times: &[f64]| -> Vec<f64> { times.iter().map(|time| (jobs as f64 / time).round()).collect() };
    for ((what, times), bar) in commands {
        let ratio = median(floors.iter().zip(&times).map(|(floor, time)| floor / time).collect());
        let rounds = rates(&times);
        let mut line = Line::new(name, what, jobs).rate(median(times)).ratio(ratio);
        if let Some(bar) = bar {
            line = line.bar(ratio, bar);
        }
        bench.add(line.note("slots", slots).note("rounds", rounds));
    }
    let rounds = rates(&floors);
    bench.add(Line::new(name, floor, jobs).rate(median(floors)).note("rounds", rounds));
}
