//! `bugle bench steady`: latency at a constant load.

use anyhow::{Result, ensure};
use serde_json::json;
use tokio_postgres::Client;

use super::clients::enqueue_at;
use super::clock::now;
use super::drain::account_for;
use super::statistics::Percentiles;
use super::workers::Workers;
use super::{Bench, Line};

/// Latency at a constant load
///
/// Jobs are inserted one by one at a fixed rate over several connections, regardless of the progress of earlier jobs,
/// while workers run them. Latency is the time from sending the INSERT to the first line of the executor. There is one
/// result per time window, by the time of enqueueing, and one for the whole run.
///
/// Dead tuples are the server's estimate for bugle.jobs_live at the end of each window. WAL (of the whole server) and
/// commits (of the whole database) are counted from the first job to the last completion and divided by the number of
/// jobs.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// Jobs per second [default: 1000]
    #[arg(long, value_name = "N")]
    pub rate: Option<f64>,
    /// Duration of the run [default: 30]
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<f64>,
    /// Length of a time window in seconds [default: 5]
    #[arg(long, value_name = "SECONDS")]
    pub window: Option<f64>,
    /// Number of enqueueing connections [default: 16]
    #[arg(long, value_name = "N")]
    pub clients: Option<usize>,
    /// Number of worker processes [default: 1]
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,
    /// Slots per process [default: 100]
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,
}

/// # Errors
/// If a measurement fails or a job is unaccounted for.
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
