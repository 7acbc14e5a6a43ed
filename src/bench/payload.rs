//! `bugle bench payload`: throughput by payload size.

use anyhow::{Result, ensure};
use tokio_postgres::Client;

use super::drain::account_for;
use super::server::settle;
use super::workers::Workers;
use super::{Bench, Line};

/// Throughput by payload size
///
/// Like "bugle bench drain" for each size, with one worker process and history kept. Payloads are incompressible JSON
/// text. Large payloads use fewer jobs, but at least as many as there are slots. Also printed: what a job writes to the
/// log (WAL) when it is enqueued, and from then until its completion is stored, in bytes.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// Payload sizes in bytes [default: 100,1000,10000,100000]
    #[arg(long, value_delimiter = ',', value_name = "BYTES")]
    pub sizes: Option<Vec<u64>>,
    /// Number of jobs of the smallest size; each size is limited to 100 MB in total [default: 50000]
    #[arg(long, value_name = "N")]
    pub jobs: Option<u64>,
    /// Slots of the worker [default: 500]
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,
}

const MOST_BYTES: u64 = 100_000_000;

/// # Errors
/// If a measurement fails or a job is unaccounted for.
pub async fn run(bench: &mut Bench, options: Options) -> Result<()> {
    let sizes = options.sizes.unwrap_or(vec![100, 1_000, 10_000, 100_000]);
    let most = bench.choose(options.jobs, 50_000, 500);
    let bytes = bench.choose(None, MOST_BYTES, 2_000_000);
    let slots = options.slots.unwrap_or(500);
    for size in sizes {
        let jobs = most.min(bytes / size).max(1);
        bench.progress(&format!("payload: {jobs} jobs of {size} bytes"));
        let database = bench.server.database().await?;
        let client = database.connect().await?;
        // 32 characters each, different in every job
        let parts = (size.saturating_sub(20) / 32).max(1) as i64;
        let empty = position(&client).await?;
        client
            .execute(
                "insert into bugle.jobs (command, payload)
                 select 'noop', jsonb_build_object('i', i, 'data', (
                   select string_agg(md5(i::text || '.' || part), '') from generate_series(1, $2::bigint) part))
                 from generate_series(1, $1::bigint) i",
                &[&(jobs as i64), &parts],
            )
            .await?;
        let enqueued = position(&client).await?;
        settle(&client).await?;

        let before = position(&client).await?;
        let mut workers = Workers::start(&database, 1, slots)?;
        let end = workers.drained(&client, jobs).await?;
        let completed = position(&client).await?;
        let tally = workers.stop().await?;

        ensure!(tally.total() == jobs, "{} executions of {jobs} jobs", tally.total());
        account_for(&client, jobs).await?;
        let seconds = (end - tally.first.unwrap_or(end)) as f64 / 1e9;
        let megabytes = (size * jobs) as f64 / 1e6;
        bench.add(
            Line::new("payload", format!("{size} bytes"), jobs)
                .rate(seconds)
                .note("mb_per_s", megabytes / seconds)
                .note("wal_enqueue", ((enqueued - empty) / jobs as f64).round())
                .note("wal_run", ((completed - before) / jobs as f64).round()),
        );
        bench.server.remove(database).await?;
    }
    Ok(())
}

/// Where the server's log ends, in bytes.
async fn position(client: &Client) -> Result<f64> {
    let end = "select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::double precision";
    Ok(client.query_one(end, &[]).await?.get(0))
}
