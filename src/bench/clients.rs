//! Clients that commit one row at a time, as fast as possible or at a fixed rate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinSet;

use super::clock::{now, seconds_since};
use super::server::Database;
use crate::db::connect::Target;

/// The one-row insert that rates are measured with.
pub const INSERT: &str = r#"insert into bugle.jobs (command, payload) values ('noop', '{"k": "noop", "i": 1}')"#;

/// The same for a job that carries its enqueue time.
pub const STAMP: &str =
    "insert into bugle.jobs (command, payload) values ('stamp', jsonb_build_object('t0', $1::bigint))";

/// A number of commits and their duration.
#[derive(Debug, Clone, Copy)]
pub struct Commits {
    pub commits: u64,
    pub seconds: f64,
}

impl Commits {
    pub fn per_s(&self) -> f64 {
        self.commits as f64 / self.seconds
    }
}

/// Each client commits this statement repeatedly on its own connection. Timed from the first statement to the last
/// response, without connecting and preparing.
pub async fn commit_for(database: &Database, clients: usize, seconds: f64, statement: &str) -> Result<Commits> {
    let mut ready = Vec::new();
    for _ in 0..clients {
        let client = database.connect().await?;
        let statement = client.prepare(statement).await?;
        ready.push((client, statement));
    }
    let commits = Arc::new(AtomicU64::new(0));
    let start = now();
    let end = start + (seconds * 1e9) as i64;
    let mut tasks = JoinSet::new();
    for (client, statement) in ready {
        let commits = commits.clone();
        tasks.spawn(async move {
            while now() < end {
                client.execute(&statement, &[]).await?;
                commits.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, tokio_postgres::Error>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(Commits {
        commits: commits.load(Ordering::Relaxed),
        seconds: seconds_since(start),
    })
}

/// Sleep until a time of the shared clock.
pub async fn sleep_until(moment: i64) {
    let ahead = moment - now();
    if ahead > 0 {
        tokio::time::sleep(Duration::from_nanos(ahead as u64)).await;
    }
}

/// Insert jobs that carry their enqueue time at a fixed rate, regardless of the progress of earlier jobs: job i at
/// start + i / rate, the clients in turn. Returns their number.
pub async fn enqueue_at(config: &Target, clients: usize, rate: f64, seconds: f64) -> Result<u64> {
    let jobs = (rate * seconds).round() as usize;
    let mut ready = Vec::new();
    for _ in 0..clients {
        let client = config.client("bugle bench").await?;
        let statement = client.prepare(STAMP).await?;
        ready.push((client, statement));
    }
    let start = now() + 10_000_000;
    let mut tasks = JoinSet::new();
    for (number, (client, statement)) in ready.into_iter().enumerate() {
        tasks.spawn(async move {
            for job in (number..jobs).step_by(clients) {
                sleep_until(start + (job as f64 * 1e9 / rate) as i64).await;
                client.execute(&statement, &[&now()]).await?;
            }
            Ok::<_, tokio_postgres::Error>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(jobs as u64)
}
