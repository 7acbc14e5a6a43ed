//! `bugle bench drain`: throughput of draining a backlog of no-op jobs.

use anyhow::{Result, ensure};

use super::floor::{self, Order};
use super::server::{Database, fill};
use super::statistics::median;
use super::workers::Workers;
use super::{Bar, Bench, Line};
use crate::worker::lane::largest_claim;

/// Throughput of draining a backlog of no-op jobs
///
/// All jobs are enqueued first, then the workers are started. Timed from the start of the first executor until every
/// completion is committed and durable. Starting the processes is not counted.
///
/// The floor, measured in turns with it: a bare table of two columns, whose rows are claimed and deleted in batches of
/// the same size over the same number of connections, without executing anything. Claims and deletes overlap, as in a
/// worker, or alternate.
///
/// Every job is accounted for: there are as many executions as jobs, and as many completed rows in history (none
/// with --keep-none).
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// Number of jobs [default: 200000]
    #[arg(long, value_name = "N")]
    pub jobs: Option<u64>,
    /// Number of worker processes; a list for several measurements [default: 1]
    #[arg(long, value_delimiter = ',', value_name = "N")]
    pub workers: Option<Vec<usize>>,
    /// Slots per process; a claim takes at most half of them, and at most 1,000 jobs [default: 2000]
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,
    /// Do not keep completed jobs (bugle.settings.keep_completed)
    #[arg(long)]
    pub keep_none: bool,
    /// Number of rounds; the median is reported [default: 3]
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
}

/// Of the floor whose claims and deletes alternate.
const BAR: Bar = Bar::AtLeast(0.7);

/// Enough for two claims of the maximum size, one in flight while the other is being started.
const SLOTS: u32 = 2_000;

const ORDERS: [Order; 2] = [Order::SideBySide, Order::OneAfterTheOther];

/// # Errors
/// If a measurement fails or a job is unaccounted for.
pub async fn run(bench: &mut Bench, options: Options) -> Result<()> {
    let jobs = bench.choose(options.jobs, 200_000, 3_000);
    let slots = options.slots.unwrap_or(SLOTS);
    let rounds = bench.choose(options.rounds, 3, 1);
    let history = if options.keep_none { "none kept" } else { "history kept" };
    let batch = largest_claim(slots as usize) as u32;
    for workers in options.workers.unwrap_or(vec![1]) {
        let (mut drains, mut floors) = (Vec::new(), [Vec::new(), Vec::new()]);
        for round in 1..=rounds {
            for (floor, order) in floors.iter_mut().zip(ORDERS) {
                bench.progress(&format!("drain: {workers} workers, round {round} of {rounds}: floor"));
                floor.push(drain_bare(bench, jobs, batch, workers, order).await?);
            }
            bench.progress(&format!(
                "drain: {workers} workers, round {round} of {rounds}: {jobs} jobs"
            ));
            let database = bench.server.database().await?;
            drains.push(drain(&database, jobs, workers, slots, !options.keep_none).await?);
            bench.server.remove(database).await?;
        }
        let ratio = |floor: &[f64]| median(floor.iter().zip(&drains).map(|(floor, drain)| floor / drain).collect());
        let rates = |times: &[f64]| -> Vec<f64> { times.iter().map(|time| (jobs as f64 / time).round()).collect() };
        let what = format!("{workers} worker{}, {history}", if workers == 1 { "" } else { "s" });
        bench.add(
            Line::new("drain", what, jobs)
                .rate(median(drains.clone()))
                .ratio(ratio(&floors[0]))
                .bar(ratio(&floors[1]), BAR)
                .note("ratio_to_one_after_the_other", ratio(&floors[1]))
                .note("slots", slots)
                .note("rounds", rates(&drains)),
        );
        for (floor, order) in floors.into_iter().zip(ORDERS) {
            let rounds = rates(&floor);
            let line = Line::new("drain", format!("floor: {}", order.describe(batch)), jobs);
            bench.add(line.rate(median(floor)).note("rounds", rounds));
        }
    }
    Ok(())
}

async fn drain_bare(bench: &Bench, jobs: u64, batch: u32, pairs: usize, order: Order) -> Result<f64> {
    let database = bench.server.empty_database().await?;
    floor::bulk_insert(&database.connect().await?, jobs).await?;
    let seconds = floor::claim_and_delete(&database, jobs, batch, pairs, order).await?;
    bench.server.remove(database).await?;
    Ok(seconds)
}

/// Fill a new database and drain it. Returns the seconds it took.
async fn drain(database: &Database, jobs: u64, workers: usize, slots: u32, keep: bool) -> Result<f64> {
    let client = database.connect().await?;
    client
        .execute("update bugle.settings set keep_completed = $1", &[&keep])
        .await?;
    fill(&client, jobs).await?;

    let mut running = Workers::start(database, workers, slots)?;
    let end = running.drained(&client, jobs).await?;
    let tally = running.stop().await?;

    ensure!(tally.total() == jobs, "{} executions of {jobs} jobs", tally.total());
    account_for(&client, if keep { jobs } else { 0 }).await?;
    let first = tally.first.unwrap_or(end);
    Ok((end - first) as f64 / 1e9)
}

/// Check that all jobs are completed and that this is their number.
pub async fn account_for(client: &tokio_postgres::Client, completed: u64) -> Result<()> {
    let row = client
        .query_one(
            "select count(*) filter (where state = 'completed'), count(*) from bugle.jobs",
            &[],
        )
        .await?;
    let (done, all): (i64, i64) = (row.get(0), row.get(1));
    ensure!(
        done == completed as i64 && all == done,
        "{done} jobs are completed and {} are not; expected {completed}",
        all - done
    );
    Ok(())
}
