//! `bugle bench pinned`: performance while an old snapshot is held open, so that dead rows cannot be removed.

use anyhow::{Result, ensure};
use tokio_postgres::{Client, Statement};

use super::clients::{STAMP, sleep_until};
use super::clock::now;
use super::drain::account_for;
use super::server::{Database, settle};
use super::statistics::{Percentiles, median};
use super::workers::Workers;
use super::{Bench, Line};

/// Throughput and latency while an old snapshot is held open
///
/// A repeatable read transaction is held open from before the first job to the end, so that VACUUM cannot remove dead
/// rows; this makes many queues in Postgres slower over time. Jobs are inserted in chunks of one statement each. A
/// chunk is timed from its commit until all of its jobs are finished. The first and the last tenth are compared. Before
/// and after, pickup is measured as in "bugle bench pickup", from the INSERT call.
///
/// The same is measured in turns in another database without the snapshot.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// Number of jobs per database [default: 200000]
    #[arg(long, value_name = "N")]
    pub jobs: Option<u64>,
    /// Number of jobs per chunk [default: 1/20 of the jobs]
    #[arg(long, value_name = "N")]
    pub chunk: Option<u64>,
    /// Number of jobs for each pickup measurement [default: 500]
    #[arg(long, value_name = "N")]
    pub pickups: Option<u64>,
    /// Slots of the worker [default: 500]
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,
}

/// # Errors
/// If a measurement fails or a job is unaccounted for.
pub async fn run(bench: &mut Bench, options: Options) -> Result<()> {
    let jobs = bench.choose(options.jobs, 200_000, 4_000);
    let chunk = options.chunk.unwrap_or(jobs / 20).max(1);
    let pickups = bench.choose(options.pickups, 500, 10);
    let slots = options.slots.unwrap_or(500);
    let chunks = jobs.div_ceil(chunk);

    let (pinned, free) = (bench.server.database().await?, bench.server.database().await?);
    let snapshot = pinned.connect().await?;
    snapshot
        .batch_execute("begin isolation level repeatable read; select count(*) from bugle.jobs")
        .await?;
    let mut sites = [Site::open(&pinned, slots).await?, Site::open(&free, slots).await?];
    for site in &mut sites {
        bench.progress("pinned: pickup before");
        site.pick_up(pickups).await?;
    }
    for number in 1..=chunks {
        bench.progress(&format!("pinned: chunk {number} of {chunks}"));
        for site in &mut sites {
            site.through(chunk).await?;
        }
    }
    for site in &mut sites {
        bench.progress("pinned: pickup after");
        site.pick_up(pickups).await?;
    }
    let [pinned_site, free_site] = sites;
    let held = pinned_site
        .close(bench, "snapshot held", chunk, pickups as usize)
        .await?;
    let none = free_site.close(bench, "no snapshot", chunk, pickups as usize).await?;
    bench.add(
        Line::new("pinned", "snapshot held: last to first, to that without", jobs)
            .ratio(held.last_to_first / none.last_to_first),
    );
    for (slowdown, what) in [(held, "snapshot held"), (none, "no snapshot")] {
        if let Some(factor) = slowdown.pickup_p99 {
            bench.add(Line::new("pinned", format!("{what}: pickup p99, after to before"), pickups).ratio(factor));
        }
    }
    snapshot.batch_execute("rollback").await?;
    bench.server.remove(pinned).await?;
    bench.server.remove(free).await
}

/// How much slower it has become.
struct Slowdown {
    /// Throughput of the last tenth, as a multiple of the first.
    last_to_first: f64,
    /// p99 of pickup afterwards, as a multiple of that before.
    pickup_p99: Option<f64>,
}

/// A database with a worker.
struct Site {
    client: Client,
    stamp: Statement,
    workers: Workers,
    jobs: u64,
    /// Duration of each chunk in seconds.
    chunks: Vec<f64>,
}

impl Site {
    async fn open(database: &Database, slots: u32) -> Result<Site> {
        let client = database.connect().await?;
        // the query whether a chunk is done must not scan all dead rows
        client
            .batch_execute("set enable_seqscan = off; set enable_bitmapscan = off")
            .await?;
        settle(&client).await?;
        let stamp = client.prepare(STAMP).await?;
        Ok(Site {
            client,
            stamp,
            workers: Workers::start_idle(database, 1, slots).await?,
            jobs: 0,
            chunks: Vec::new(),
        })
    }

    async fn pick_up(&mut self, jobs: u64) -> Result<()> {
        let before = self.last_id().await?;
        let start = now();
        for job in 0..jobs as i64 {
            sleep_until(start + job * 20_000_000).await;
            self.client.execute(&self.stamp, &[&now()]).await?;
        }
        self.jobs += jobs;
        self.drained(before).await.map(drop)
    }

    async fn through(&mut self, jobs: u64) -> Result<()> {
        let before = self.last_id().await?;
        let insert = "insert into bugle.jobs (command, payload)
            select 'noop', jsonb_build_object('k', 'noop', 'i', i) from generate_series(1, $1::bigint) i";
        self.client.execute(insert, &[&(jobs as i64)]).await?;
        let start = now();
        self.jobs += jobs;
        let end = self.drained(before).await?;
        self.chunks.push((end - start) as f64 / 1e9);
        Ok(())
    }

    async fn last_id(&self) -> Result<i64> {
        let last = "select case when is_called then last_value else 0 end from bugle.job_ids";
        Ok(self.client.query_one(last, &[]).await?.get(0))
    }

    /// Wait until all jobs after this id are finished. Returns that time.
    async fn drained(&mut self, behind: i64) -> Result<i64> {
        self.workers.executed(self.jobs).await?;
        let done = "select not exists (select from bugle.jobs_live where id > $1)";
        while !self.client.query_one(done, &[&behind]).await?.get::<_, bool>(0) {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        Ok(now())
    }

    async fn close(self, bench: &mut Bench, what: &str, chunk: u64, pickups: usize) -> Result<Slowdown> {
        let dead = "select pg_stat_get_dead_tuples('bugle.jobs_live'::regclass)";
        let dead: i64 = self.client.query_one(dead, &[]).await?.get(0);
        let tally = self.workers.stop().await?;
        ensure!(
            tally.total() == self.jobs,
            "{} executions of {} jobs",
            tally.total(),
            self.jobs
        );
        account_for(&self.client, self.jobs).await?;

        let tenth = self.chunks.len().div_ceil(10);
        let last = self.chunks.len() - tenth;
        let rate = |chunks: &[f64]| chunk as f64 * chunks.len() as f64 / chunks.iter().sum::<f64>();
        let (start, end) = (rate(&self.chunks[..tenth]), rate(&self.chunks[last..]));
        let rates: Vec<f64> = self
            .chunks
            .iter()
            .map(|seconds| (chunk as f64 / seconds).round())
            .collect();
        bench.add(
            Line::new(
                "pinned",
                format!("{what}: throughput"),
                chunk * self.chunks.len() as u64,
            )
            .rate(self.chunks.iter().sum())
            .note("first_tenth", start.round())
            .note("last_tenth", end.round())
            .note("last_to_first", end / start)
            .note("median_chunk", median(rates.clone()))
            .note("chunks", rates)
            .note("dead_tuples", dead),
        );
        let times: Vec<i64> = tally.times.iter().map(|(t0, t)| t - t0).collect();
        let [before, after] =
            [&times[..pickups], &times[pickups..]].map(|times| Percentiles::of_nanoseconds(times.iter().copied()));
        for (when, times) in [("before", before), ("after", after)] {
            bench.add(Line::new("pinned", format!("{what}: pickup {when}"), pickups as u64).times(times));
        }
        Ok(Slowdown {
            last_to_first: end / start,
            pickup_p99: before.zip(after).map(|(before, after)| after.p99 / before.p99),
        })
    }
}
