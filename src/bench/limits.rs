//! `bugle bench limits`: throughput of a queue with limits, order keys and fair keys.

use anyhow::{Result, ensure};

use super::drain::account_for;
use super::server::{Database, settle};
use super::statistics::median;
use super::workers::Workers;
use super::{Bar, Bench, Line};

/// Throughput of a queue with limits, order keys and fair keys
///
/// The same backlog of no-op jobs is drained in turns: without limits, and with one kind of limit or key at a time.
/// Limits equal the number of slots, so that the cost of counting is measured and not the waiting. Keys alternate (job
/// i has key i modulo keys) or come in blocks (all jobs of a key are adjacent, the worst case for a claim that must
/// find the first job of each key).
///
/// The floor is the queue without limits in the same round.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// Number of jobs [default: 50000]
    #[arg(long, value_name = "N")]
    pub jobs: Option<u64>,
    /// Number of worker processes [default: 1]
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,
    /// Slots per process [default: 500]
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,
    /// Number of different keys [default: 1000]
    #[arg(long, value_name = "N")]
    pub keys: Option<u64>,
    /// Number of rounds; the median is reported [default: 3]
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
}

/// The settings of a queue, and the keys of its jobs as SQL over their number `i`; `{n}` is the number of keys.
struct Kind {
    what: &'static str,
    limits: &'static str,
    keys: &'static str,
}

const KINDS: [Kind; 9] = [
    Kind {
        what: "no limits",
        limits: "",
        keys: "null, null, null",
    },
    Kind {
        what: "max_running",
        limits: "max_running = {slots}",
        keys: "null, null, null",
    },
    Kind {
        what: "max_starts",
        limits: "max_starts = 100000000, starts_period = '1 hour'",
        keys: "null, null, null",
    },
    Kind {
        what: "max_running_per_key, keys in turn",
        limits: "max_running_per_key = {slots}",
        keys: "null, 'key ' || i % {n}, null",
    },
    Kind {
        what: "max_starts_per_key, keys in turn",
        limits: "max_starts_per_key = 100000000, starts_per_key_period = '1 hour'",
        keys: "null, 'key ' || i % {n}, null",
    },
    Kind {
        what: "max_running_per_key 1, keys in blocks",
        limits: "max_running_per_key = 1",
        keys: "null, 'key ' || i * {n} / {jobs}, null",
    },
    Kind {
        what: "order keys in turn",
        limits: "",
        keys: "'key ' || i % {n}, null, null",
    },
    Kind {
        what: "order keys in blocks",
        limits: "",
        keys: "'key ' || i * {n} / {jobs}, null, null",
    },
    Kind {
        what: "fair keys in blocks",
        limits: "",
        keys: "null, null, 'key ' || i * {n} / {jobs}",
    },
];

/// Of the queue without limits and keys.
const BAR: Bar = Bar::AtLeast(0.6);
const WITH_BAR: [&str; 2] = ["max_running_per_key 1, keys in blocks", "order keys in blocks"];

/// # Errors
/// If a measurement fails or a job is unaccounted for.
pub async fn run(bench: &mut Bench, options: Options) -> Result<()> {
    let jobs = bench.choose(options.jobs, 50_000, 1_000);
    let keys = bench.choose(options.keys, 1_000, 50);
    let rounds = bench.choose(options.rounds, 3, 1);
    let (workers, slots) = (options.workers.unwrap_or(1), options.slots.unwrap_or(500));
    let mut times: Vec<Vec<f64>> = KINDS.iter().map(|_| Vec::new()).collect();
    for round in 1..=rounds {
        for (kind, times) in KINDS.iter().zip(&mut times) {
            bench.progress(&format!("limits: round {round} of {rounds}: {}", kind.what));
            let database = bench.server.database().await?;
            let seconds = kind.drain(&database, jobs, keys, workers, slots).await?;
            times.push(seconds);
            bench.server.remove(database).await?;
        }
    }
    for (kind, seconds) in KINDS.iter().zip(&times) {
        let ratio = median(times[0].iter().zip(seconds).map(|(plain, this)| plain / this).collect());
        let rates: Vec<f64> = seconds.iter().map(|time| (jobs as f64 / time).round()).collect();
        let plural = if workers == 1 { "" } else { "s" };
        let line = Line::new("limits", format!("{}, {workers} worker{plural}", kind.what), jobs);
        let mut line = line.rate(median(seconds.clone())).ratio(ratio);
        if WITH_BAR.contains(&kind.what) {
            line = line.bar(ratio, BAR);
        }
        bench.add(line.note("keys", keys).note("slots", slots).note("rounds", rates));
    }
    Ok(())
}

impl Kind {
    /// Fill a new database and drain it. Returns the seconds it took.
    async fn drain(&self, database: &Database, jobs: u64, keys: u64, workers: usize, slots: u32) -> Result<f64> {
        let client = database.connect().await?;
        client
            .batch_execute("insert into bugle.queues (name) values ('default')")
            .await?;
        if !self.limits.is_empty() {
            let limits = self.limits.replace("{slots}", &(workers as u32 * slots).to_string());
            client
                .batch_execute(&format!("update bugle.queues set {limits} where name = 'default'"))
                .await?;
        }
        let columns = self
            .keys
            .replace("{n}", &keys.to_string())
            .replace("{jobs}", &jobs.to_string());
        let fill = format!(
            "insert into bugle.jobs (command, payload, order_key, limit_key, fair_key)
             select 'noop', jsonb_build_object('k', 'noop', 'i', i), {columns} from generate_series(0, {jobs} - 1) i"
        );
        client.batch_execute(&fill).await?;
        settle(&client).await?;

        let mut running = Workers::start(database, workers, slots)?;
        let end = running.drained(&client, jobs).await?;
        let tally = running.stop().await?;

        ensure!(tally.total() == jobs, "{} executions of {jobs} jobs", tally.total());
        account_for(&client, jobs).await?;
        Ok((end - tally.first.unwrap_or(end)) as f64 / 1e9)
    }
}
