//! What must not grow in a long round: memory and open files of workers, locks, dead rows.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::enqueuers::connect;
use super::fleet::Place;

/// One look at all of it.
#[derive(Debug, Clone, Default)]
struct Sample {
    /// Of the largest of the workers that live through it all, in kilobytes.
    memory: u64,
    files: u64,
    locks: u64,
    dead_rows: u64,
    live_jobs: u64,
}

/// All looks, some seconds apart.
#[derive(Debug, Default)]
pub struct Samples(Vec<Sample>);

type Measure = (&'static str, fn(&Sample) -> u64, u64);

/// What it is called, how it is read, and by how much it may differ.
const MEASURES: [Measure; 4] = [
    ("memory of a worker, kB", |sample| sample.memory, 16_000),
    ("open files of a worker", |sample| sample.files, 30),
    ("advisory locks", |sample| sample.locks, 60),
    ("dead rows in jobs_live", |sample| sample.dead_rows, 60_000),
];

/// Look every now and then until it is done.
pub async fn take(url: String, places: Vec<Arc<Place>>, done: Arc<AtomicBool>) -> Samples {
    let mut samples = Vec::new();
    let mut next = Instant::now();
    while !done.load(Ordering::Acquire) {
        // why: the pace of a watch that goes on until the round is over
        tokio::time::sleep(Duration::from_millis(200)).await;
        if places.is_empty() || Instant::now() < next {
            continue;
        }
        next = Instant::now() + Duration::from_secs(5);
        let processes: Vec<u32> = places.iter().filter_map(|place| place.process()).collect();
        let Some(client) = connect(&url).await else { continue };
        let sql = "select (select count(*) from pg_locks where locktype = 'advisory'), \
            (select coalesce(max(n_dead_tup), 0) from pg_stat_user_tables where relname = 'jobs_live'), \
            (select count(*) from bugle.jobs_live)";
        let Ok(row) = client.query_one(sql, &[]).await else {
            continue;
        };
        samples.push(Sample {
            memory: processes.iter().map(|id| memory(*id)).max().unwrap_or_default(),
            files: processes.iter().map(|id| files(*id)).max().unwrap_or_default(),
            locks: row.get::<_, i64>(0) as u64,
            dead_rows: row.get::<_, i64>(1) as u64,
            live_jobs: row.get::<_, i64>(2) as u64,
        });
    }
    Samples(samples)
}

fn memory(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or_default()
}

fn files(process: u32) -> u64 {
    std::fs::read_dir(format!("/proc/{process}/fd")).map_or(0, |entries| entries.count() as u64)
}

impl Samples {
    /// The median of the second quarter and of the last one: the first is for warming up.
    fn quarters(&self, read: fn(&Sample) -> u64) -> Option<(u64, u64)> {
        let quarter = self.0.len() / 4;
        let median = |samples: &[Sample]| {
            let mut values: Vec<u64> = samples.iter().map(read).collect();
            values.sort_unstable();
            values.get(values.len() / 2).copied()
        };
        Some((median(&self.0[quarter..2 * quarter])?, median(&self.0[3 * quarter..])?))
    }

    /// What grew by more than it may.
    pub fn growing(&self) -> Vec<String> {
        let grew = |(name, read, slack): &Measure| {
            let (before, after) = self.quarters(*read)?;
            (after > before + slack).then(|| format!("{name} grew from {before} to {after}"))
        };
        MEASURES.iter().filter_map(grew).collect()
    }
}

impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} samples; medians of the second and of the last quarter:",
            self.0.len()
        )?;
        let backlog: Measure = ("live jobs", |sample| sample.live_jobs, 0);
        for (name, read, _) in MEASURES.iter().chain([&backlog]) {
            let (before, after) = self.quarters(*read).unwrap_or_default();
            write!(f, "\n  {name}: {before}, {after}")?;
        }
        Ok(())
    }
}
