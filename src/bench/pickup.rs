//! `bugle bench pickup`: latency from enqueue to start with idle workers.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio_postgres::Client;

use super::clients::{STAMP, sleep_until};
use super::clock::now;
use super::drain::account_for;
use super::floor::{BareBell, Ring};
use super::statistics::Percentiles;
use super::workers::Workers;
use super::{Bar, Bench, Line};

/// Latency from enqueue to start with idle workers
///
/// The workers are idle. Another process inserts one job every 20 ms, each in its own transaction. "INSERT call →
/// start" is the time from sending the INSERT to the first line of the executor; "commit → start" is the time from the
/// client's confirmation of the commit. The latter can be negative, because the worker may be notified before the
/// client.
///
/// The floor, measured in turns with it: for the first, insert a row and NOTIFY in one transaction, receive it on
/// another connection, and mark one row as taken there. For the second, the same without the row, so that the commit
/// does not wait for the disk.
///
/// Claim calls are counted by the server (track_functions), without the first claim of each worker.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// Number of jobs [default: 500]
    #[arg(long, value_name = "N")]
    pub jobs: Option<u64>,
    /// Number of idle worker processes; a list for several measurements [default: 1,50]
    #[arg(long, value_delimiter = ',', value_name = "N")]
    pub workers: Option<Vec<usize>>,
    /// Slots per process [default: 10]
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,
    /// Milliseconds between jobs [default: 20]
    #[arg(long, value_name = "MS")]
    pub every: Option<u64>,
    /// Start the same number of workers first that do not serve the command, so that one of them holds the bell
    #[arg(long)]
    pub mixed: bool,
}

/// # Errors
/// If a measurement fails or a job is unaccounted for.
pub async fn run(bench: &mut Bench, options: Options) -> Result<()> {
    let jobs = bench.choose(options.jobs, 500, 40);
    let counts = bench.choose(options.workers, vec![1, 50], vec![1, 3]);
    for workers in counts {
        bench.progress(&format!("pickup: {workers} idle workers"));
        let database = bench.server.database().await?;
        let client = database.connect().await?;
        // requires a superuser
        let track = format!("alter database {} set track_functions = 'all'", database.name);
        let tracked = client.batch_execute(&track).await.is_ok();
        let mut bell = BareBell::new(&database).await?;
        let slots = options.slots.unwrap_or(10);
        let outdated = match options.mixed {
            true => Some(Workers::start_idle_outdated(&database, workers, slots).await?),
            false => None,
        };
        let mut running = Workers::start_idle(&database, workers, slots).await?;

        let step = options.every.unwrap_or(20) as i64 * 1_000_000;
        let (committed, floor) = enqueue_and_ring(&client, &mut bell, jobs, step).await?;
        running.drained(&client, jobs).await?;
        let tally = running.stop().await?;
        if let Some(outdated) = outdated {
            outdated.stop().await?;
        }

        ensure!(
            tally.times.len() as u64 == jobs,
            "{} executions of {jobs} jobs",
            tally.times.len()
        );
        account_for(&client, jobs).await?;
        let from_call = Percentiles::of_nanoseconds(tally.times.iter().map(|(t0, t)| t - t0));
        let from_commit = Percentiles::of_nanoseconds(tally.times.iter().map(|(t0, t)| t - committed[t0]));
        let started = if options.mixed { 2 * workers } else { workers };
        let calls = claim_calls(&client).await? as f64 - started as f64;
        let who = format!(
            "{workers} idle worker{}{}",
            if workers == 1 { "" } else { "s" },
            if options.mixed {
                ", as many with an older version"
            } else {
                ""
            }
        );
        let line = |what: &str, times: Option<Percentiles>, floor: Option<Percentiles>| {
            let line = Line::new("pickup", format!("{who}: {what}"), jobs).times(times);
            let Some((times, floor)) = times.zip(floor) else {
                return line;
            };
            let line = line.note("floor_p50_ms", floor.p50);
            // no ratio if the worker was faster than the response to the client
            if times.p50 > 0.0 {
                line.ratio(times.p50 / floor.p50)
            } else {
                line
            }
        };
        let mut first = line(
            "INSERT call → start",
            from_call,
            Percentiles::of_nanoseconds(floor.with_insert),
        );
        if tracked {
            first = first.note("claim_calls_per_job", calls / jobs as f64);
        }
        if let Some(ratio) = first.ratio_to_floor {
            first = first.bar(ratio, BAR);
        }
        first = first.note("histogram", histogram(tally.times.iter().map(|(t0, t)| t - t0)));
        bench.add(first);
        bench.add(line(
            "commit → start",
            from_commit,
            Percentiles::of_nanoseconds(floor.without),
        ));
        bench.server.remove(database).await?;
    }
    Ok(())
}

/// The median, in times of the floor.
const BAR: Bar = Bar::AtMost(1.5);

struct Floor {
    with_insert: Vec<i64>,
    without: Vec<i64>,
}

/// Inserts one job at a time, with a turn of the floor between jobs. Returns when each job was committed.
async fn enqueue_and_ring(
    client: &Client,
    bell: &mut BareBell,
    jobs: u64,
    step: i64,
) -> Result<(HashMap<i64, i64>, Floor)> {
    let insert = client.prepare(STAMP).await?;
    let mut committed = HashMap::new();
    let mut floor = Floor {
        with_insert: Vec::new(),
        without: Vec::new(),
    };
    let start = now();
    for job in 0..jobs as i64 {
        sleep_until(start + job * step).await;
        let t0 = now();
        client.execute(&insert, &[&t0]).await?;
        committed.insert(t0, now());
        sleep_until(start + job * step + step * 2 / 5).await;
        floor.with_insert.push(bell.ring(Ring::InsertNotifyAndClaim).await?);
        sleep_until(start + job * step + step * 7 / 10).await;
        floor.without.push(bell.ring(Ring::NotifyAndClaim).await?);
    }
    Ok((committed, floor))
}

/// A histogram with buckets of 1 ms; the last bucket contains everything from 100 ms.
fn histogram(nanoseconds: impl Iterator<Item = i64>) -> Vec<u64> {
    let mut counts = vec![0; 101];
    for time in nanoseconds {
        counts[(time / 1_000_000).clamp(0, 100) as usize] += 1;
    }
    let filled = counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    counts.truncate(filled);
    counts
}

/// The calls of a session are counted when it ends, and the server may still be ending the sessions of the workers.
async fn claim_calls(client: &Client) -> Result<i64> {
    let others = "select exists (
        select from pg_stat_activity a
        where a.datname = current_database()
          and a.backend_type = 'client backend'
          and a.application_name <> 'bugle bench')";
    let deadline = Instant::now() + Duration::from_secs(60);
    while client.query_one(others, &[]).await?.get::<_, bool>(0) {
        ensure!(
            Instant::now() < deadline,
            "sessions of the workers are still open a minute after the workers exited"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let calls = "select coalesce(sum(f.calls), 0)::bigint from pg_stat_user_functions f where f.schemaname = 'bugle' \
        and f.funcname = 'claim'";
    Ok(client.query_one(calls, &[]).await?.get(0))
}
