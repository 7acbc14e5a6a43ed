//! `bugle bench due`: many jobs that become due in the same second.

use anyhow::{Result, ensure};

use super::drain::account_for;
use super::server::{Database, fill, settle};
use super::statistics::median;
use super::workers::Workers;
use super::{Bar, Bench, Line};

/// Throughput of jobs that become due in the same second
///
/// Scheduled jobs of one due time, and an idle worker process that waits for it. Timed from the start of the first
/// executor until every completion is committed.
///
/// The floor, in turns with it: the same number of jobs that are ready, drained by such a worker.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// Number of jobs [default: 300000]
    #[arg(long, value_name = "N")]
    pub jobs: Option<u64>,
    /// Slots of the worker [default: 2000]
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,
    /// Number of rounds; the median is reported [default: 3]
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
}

/// # Errors
/// If a measurement fails or a job is unaccounted for.
pub async fn run(bench: &mut Bench, options: Options) -> Result<()> {
    let jobs = bench.choose(options.jobs, 300_000, 2_000);
    let slots = options.slots.unwrap_or(2_000);
    let rounds = bench.choose(options.rounds, 3, 1);
    // long enough to insert them and to start a worker
    let ahead = bench.choose(None, 10.0, 2.0) + jobs as f64 / 20_000.0;
    let (mut due, mut ready) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        bench.progress(&format!("due: round {round} of {rounds}: {jobs} ready jobs"));
        ready.push(drain(bench, jobs, slots, None).await?);
        bench.progress(&format!("due: round {round} of {rounds}: {jobs} jobs due at once"));
        due.push(drain(bench, jobs, slots, Some(ahead)).await?);
    }
    let ratio = median(ready.iter().zip(&due).map(|(ready, due)| ready / due).collect());
    let rates = |times: &[f64]| -> Vec<f64> { times.iter().map(|time| (jobs as f64 / time).round()).collect() };
    let rounds = rates(&due);
    let line = Line::new("due", "due in the same second", jobs)
        .rate(median(due))
        .ratio(ratio)
        .bar(ratio, Bar::AtLeast(0.7));
    bench.add(line.note("slots", slots).note("rounds", rounds));
    let rounds = rates(&ready);
    let line = Line::new("due", "floor: ready", jobs).rate(median(ready));
    bench.add(line.note("rounds", rounds));
    Ok(())
}

/// Drain jobs that are ready, or due this number of seconds from now. Returns the seconds it took.
async fn drain(bench: &Bench, jobs: u64, slots: u32, ahead: Option<f64>) -> Result<f64> {
    let database = bench.server.database().await?;
    let client = database.connect().await?;
    let mut running = match ahead {
        None => {
            fill(&client, jobs).await?;
            Workers::start(&database, 1, slots)?
        }
        Some(ahead) => {
            schedule(&database, jobs, ahead).await?;
            Workers::start_idle(&database, 1, slots).await?
        }
    };
    let end = running.drained(&client, jobs).await?;
    let tally = running.stop().await?;
    ensure!(tally.total() == jobs, "{} executions of {jobs} jobs", tally.total());
    account_for(&client, jobs).await?;
    bench.server.remove(database).await?;
    Ok((end - tally.first.unwrap_or(end)) as f64 / 1e9)
}

async fn schedule(database: &Database, jobs: u64, ahead: f64) -> Result<()> {
    let client = database.connect().await?;
    client
        .execute(
            "insert into bugle.jobs (command, payload, run_at)
             select 'noop', jsonb_build_object('k', 'noop', 'i', i), now() + make_interval(secs => $2)
             from generate_series(1, $1::bigint) i",
            &[&(jobs as i64), &ahead],
        )
        .await?;
    settle(&client).await
}
