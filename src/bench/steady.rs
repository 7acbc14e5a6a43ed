//! `bugle bench steady`: a given rate for a given time, enqueueing and execution side by side.

use anyhow::{Result, ensure};
use serde_json::json;
use tokio_postgres::Client;

use super::clients::enqueue_at;
use super::clock::now;
use super::drain::account_for;
use super::statistics::Percentiles;
use super::workers::Workers;
use super::{Bench, Line};

/// A given rate for a given time, enqueueing and execution side by side
///
/// Jobs fall due at fixed moments and are inserted one by one over several connections, whatever became of the ones
/// before. The clock of each starts just before its INSERT is sent and stops at its executor's first line. One line for
/// each window of time, by when a job was enqueued, and one for all.
///
/// Dead tuples are those of the live table, as the server estimates them at the end of each window. WAL and commits are
/// the whole server's and the whole database's from the first job to the last completion, divided by the jobs.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// Jobs per second [default: 1000]
    #[arg(long, value_name = "N")]
    pub rate: Option<f64>,
    /// For so long [default: 30]
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Seconds in one window [default: 5]
    #[arg(long)]
    pub window: Option<f64>,
    /// Connections that enqueue [default: 16]
    #[arg(long, value_name = "N")]
    pub clients: Option<usize>,
    /// Worker processes [default: 1]
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,
    /// How many jobs one process runs at once [default: 100]
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,
}

/// # Errors
/// When something could not be measured, or a job is not accounted for.
pub async fn run(bench: &mut Bench, options: Options) -> Result<()> {
    let rate = bench.choose(options.rate, 1000.0, 200.0);
    let seconds = bench.choose(options.seconds, 30.0, 1.0);
    let window = bench.choose(options.window, 5.0, 0.5);
    let (clients, workers) = (options.clients.unwrap_or(16), options.workers.unwrap_or(1));
    let database = bench.server.database().await?;
    let client = database.connect().await?;
    let mut running = Workers::start_idle(&database, workers, options.slots.unwrap_or(100)).await?;
    let (wal, commits) = (wal_bytes(&client).await?, committed(&client).await?);

    let start = now();
    let producer = {
        let config = database.config.clone();
        tokio::spawn(async move { enqueue_at(&config, clients, rate, seconds).await })
    };
    let mut dead = Vec::new();
    while !producer.is_finished() {
        let passed = (now() - start) as f64 / 1e9;
        bench.progress(&format!("steady: {rate} jobs/s, {passed:.0} of {seconds} s"));
        tokio::time::sleep(std::time::Duration::from_secs_f64(window)).await;
        dead.push(dead_tuples(&client).await?);
    }
    let jobs = producer.await??;
    running.drained(&client, jobs).await?;
    let tally = running.stop().await?;

    ensure!(
        tally.times.len() as u64 == jobs,
        "{} executions of {jobs} jobs",
        tally.times.len()
    );
    account_for(&client, jobs).await?;
    let begin = tally.times.iter().map(|(t0, _)| *t0).min().unwrap_or(start);
    let end = tally.times.iter().map(|(_, t)| *t).max().unwrap_or(start);
    let length = (window * 1e9) as i64;
    for number in 0..((end - begin) / length + 1) {
        let in_window = |t0: i64| (t0 - begin) / length == number;
        let times: Vec<i64> = tally
            .times
            .iter()
            .filter(|(t0, _)| in_window(*t0))
            .map(|(t0, t)| t - t0)
            .collect();
        if !times.is_empty() {
            let from = number as f64 * window;
            let line = Line::new("steady", format!("{from} to {} s", from + window), times.len() as u64);
            let line = line.times(Percentiles::of_nanoseconds(times));
            bench.add(match dead.get(number as usize) {
                Some(dead) => line.note("dead_tuples", *dead),
                None => line,
            });
        }
    }
    let times = Percentiles::of_nanoseconds(tally.times.iter().map(|(t0, t)| t - t0));
    let per_job = |value: f64| value / jobs as f64;
    bench.add(
        Line::new("steady", format!("{rate} jobs/s for {seconds} s"), jobs)
            .rate((end - begin) as f64 / 1e9)
            .times(times)
            .note("dead_tuples_at_most", json!(dead.iter().max()))
            .note("wal_bytes_per_job", per_job(wal_bytes(&client).await? - wal).round())
            .note("commits_per_job", per_job(committed(&client).await? - commits)),
    );
    bench.server.remove(database).await
}

async fn dead_tuples(client: &Client) -> Result<i64> {
    let dead = "select pg_stat_get_dead_tuples('bugle.jobs_live'::regclass)";
    Ok(client.query_one(dead, &[]).await?.get(0))
}

async fn wal_bytes(client: &Client) -> Result<f64> {
    let bytes = "select (pg_current_wal_insert_lsn() - '0/0')::double precision";
    Ok(client.query_one(bytes, &[]).await?.get(0))
}

async fn committed(client: &Client) -> Result<f64> {
    let commits = "select xact_commit::double precision from pg_stat_database where datname = current_database()";
    Ok(client.query_one(commits, &[]).await?.get(0))
}
