//! What keeps the ready jobs of a queue from starting, and who will be woken for them.

use std::time::SystemTime;

use tokio_postgres::GenericClient;

use crate::db::connect::Unnamed;
use crate::error::Result;
use crate::job::JobId;
use crate::state::State;

/// A limit that holds for a queue: a row of `bugle.limits_left`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LimitLeft {
    /// The column of `bugle.queues`, or `command`.
    pub limited_by: String,
    /// The limit key, or the command.
    pub key: Option<String>,
    /// The limit.
    pub most: i32,
    /// How much of it is used.
    pub used: i32,
    /// How much of it is left.
    pub room: i32,
    /// If nothing is left of a limit of starts: when the next start is possible.
    pub free_at: Option<SystemTime>,
}

/// The limits of a queue, live.
///
/// # Errors
/// If the query fails.
pub async fn limits_left(client: &impl GenericClient, queue: &str) -> Result<Vec<LimitLeft>> {
    let sql = "select l.limited_by, l.key, l.most, l.used, l.room, l.free_at from bugle.limits_left($1) l";
    let rows = client.ask(sql, &[&queue]).await?;
    rows.iter()
        .map(|row| {
            Ok(LimitLeft {
                limited_by: row.try_get(0)?,
                key: row.try_get(1)?,
                most: row.try_get(2)?,
                used: row.try_get(3)?,
                room: row.try_get(4)?,
                free_at: row.try_get(5)?,
            })
        })
        .collect()
}

/// A fair key that waits for its turn: a row of `bugle.next_turns`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Turn {
    /// Its place, from 1.
    pub turn: i64,
    /// The key.
    pub fair_key: String,
    /// Its first job.
    pub job: JobId,
    /// How many of its jobs are ready, up to 1,000.
    pub ready: i64,
}

/// The fair keys of a queue, in the order of their turns.
///
/// # Errors
/// If the query fails.
pub async fn next_turns(client: &impl GenericClient, queue: &str) -> Result<Vec<Turn>> {
    let sql = "select t.turn, t.fair_key, t.job, t.ready from bugle.next_turns($1) t order by t.turn";
    let rows = client.ask(sql, &[&queue]).await?;
    rows.iter()
        .map(|row| {
            Ok(Turn {
                turn: row.try_get(0)?,
                fair_key: row.try_get(1)?,
                job: row.try_get(2)?,
                ready: row.try_get(3)?,
            })
        })
        .collect()
}

/// An order key with jobs that wait for another of its jobs: a row of `bugle.blocked_keys`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BlockedKey {
    /// The key.
    pub order_key: String,
    /// The job that the others wait for.
    pub job: JobId,
    /// Its state.
    pub state: State,
    /// When it is due.
    pub run_at: SystemTime,
    /// How many wait, up to 1,000.
    pub waiting: i64,
}

/// The blocked order keys of a queue.
///
/// # Errors
/// If the query fails.
pub async fn blocked_keys(client: &impl GenericClient, queue: &str) -> Result<Vec<BlockedKey>> {
    let sql = "select k.order_key, k.job, k.state, k.run_at, k.waiting from bugle.blocked_keys($1) k";
    let rows = client.ask(sql, &[&queue]).await?;
    rows.iter()
        .map(|row| {
            Ok(BlockedKey {
                order_key: row.try_get(0)?,
                job: row.try_get(1)?,
                state: row.try_get(2)?,
                run_at: row.try_get(3)?,
                waiting: row.try_get(4)?,
            })
        })
        .collect()
}

/// How a worker waits for jobs of a queue: a row of `bugle.doorbell`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Waits {
    /// The queue.
    pub queue: String,
    /// The worker.
    pub worker: i64,
    /// Its name.
    pub worker_name: String,
    /// `sentinel`, `follower`, `watcher`, `awake` or `paused`.
    pub mode: String,
}

/// How all workers wait for jobs.
///
/// # Errors
/// If the query fails.
pub async fn doorbell(client: &impl GenericClient) -> Result<Vec<Waits>> {
    let sql = "select d.queue, d.worker, d.worker_name, d.mode from bugle.doorbell() d";
    let rows = client.ask(sql, &[]).await?;
    rows.iter()
        .map(|row| {
            Ok(Waits {
                queue: row.try_get(0)?,
                worker: row.try_get(1)?,
                worker_name: row.try_get(2)?,
                mode: row.try_get(3)?,
            })
        })
        .collect()
}

/// A job whose worker was lost, and that was put back.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Rescue {
    /// The job.
    pub job: JobId,
    /// Its command.
    pub command: Option<String>,
    /// The worker that was lost.
    pub worker: Option<i64>,
    /// Its name.
    pub worker_name: Option<String>,
    /// When it was missed.
    pub lost_at: Option<SystemTime>,
    /// When the job was put back.
    pub rescued_at: SystemTime,
    /// How long it had run, in seconds.
    pub ran_seconds: Option<f64>,
}

/// The latest rescues, among the newest 20,000 attempts that did not complete.
///
/// # Errors
/// If the query fails.
pub async fn rescues(client: &impl GenericClient, limit: i64) -> Result<Vec<Rescue>> {
    let rows = client
        .ask(
            "select a.job, a.command, a.worker, w.name, w.lost_at, a.ended_at, \
               extract(epoch from coalesce(w.lost_at, a.ended_at) - a.started_at)::float8 \
             from (select t.* from bugle.attempts t order by t.ended_at desc limit 20000) a \
               left join bugle.workers w on w.id = a.worker \
             where a.outcome = 'rescued' \
             order by a.ended_at desc \
             limit $1",
            &[&limit],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Rescue {
                job: row.try_get(0)?,
                command: row.try_get(1)?,
                worker: row.try_get(2)?,
                worker_name: row.try_get(3)?,
                lost_at: row.try_get(4)?,
                rescued_at: row.try_get(5)?,
                ran_seconds: row.try_get(6)?,
            })
        })
        .collect()
}
