//! What keeps the ready jobs of a queue from starting, and who will be woken for them.

use std::time::SystemTime;

use serde::Serialize;
use tokio_postgres::GenericClient;

use super::time::{as_text, as_text_if_any};
use crate::db::connect::Unnamed;
use crate::error::Result;
use crate::job::JobId;
use crate::state::State;

/// A limit that holds for a queue: a row of `bugle.limits_left`.
#[derive(Debug, Clone, Serialize)]
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
    #[serde(serialize_with = "as_text_if_any")]
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

/// The limits that are set for a queue: names of parameters of `bugle.set_limits`, and values as texts.
///
/// # Errors
/// If the query fails.
pub async fn limits(client: &impl GenericClient, queue: &str) -> Result<Vec<(String, String)>> {
    let sql = "select v.key, v.value #>> '{}' from bugle.queues q \
        cross join lateral jsonb_each(jsonb_strip_nulls(to_jsonb(q))) v where q.name = $1";
    let rows = client.ask(sql, &[&queue]).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// A fair key that waits for its turn: a row of `bugle.next_turns`.
#[derive(Debug, Clone, Serialize)]
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
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct BlockedKey {
    /// The key.
    pub order_key: String,
    /// The job that the others wait for.
    pub job: JobId,
    /// Its state.
    pub state: State,
    /// When it is due.
    #[serde(serialize_with = "as_text")]
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
#[derive(Debug, Clone, Serialize)]
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
#[derive(Debug, Clone, Serialize)]
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
    #[serde(serialize_with = "as_text_if_any")]
    pub lost_at: Option<SystemTime>,
    /// When the job was put back.
    #[serde(serialize_with = "as_text")]
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

/// How often the workers of a queue were notified.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Rings {
    /// The queue.
    pub queue: String,
    /// Notifications per minute, over the last five.
    pub rings_per_minute: f64,
    /// Jobs of the last 24 hours that only the safety poll found.
    pub found_by_poll: i64,
}

/// The queues whose workers were notified in the last minutes, or had to find a job by themselves in the last 24 hours.
///
/// # Errors
/// If the query fails.
pub async fn rings(client: &impl GenericClient) -> Result<Vec<Rings>> {
    let rows = client
        .ask(
            "select queue, sum(rings)::float8 / 5, sum(found)::bigint \
             from ( \
               select d.queue, d.rings, 0 as found from bugle.doorbell_minutes d \
               where d.minute >= date_trunc('minute', now()) - interval '5 minutes' \
                 and d.minute < date_trunc('minute', now()) \
               union all \
               select d.queue, 0, d.found_by_poll from bugle.doorbell_minutes d \
               where d.minute > now() - interval '24 hours' and d.found_by_poll > 0) d \
             group by queue order by 3 desc, 2 desc, 1",
            &[],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Rings {
                queue: row.try_get(0)?,
                rings_per_minute: row.try_get(1)?,
                found_by_poll: row.try_get(2)?,
            })
        })
        .collect()
}

/// An outcome that was rejected because its worker no longer held the job: a row of `bugle.late_updates`.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct LateUpdate {
    /// When it was rejected.
    #[serde(serialize_with = "as_text")]
    pub refused_at: SystemTime,
    /// The worker.
    pub worker: i64,
    /// Its name.
    pub worker_name: Option<String>,
    /// The job.
    pub job: JobId,
    /// `fenced`, or `gone` if there is no such job.
    pub verdict: String,
    /// How long after the worker had lost the job.
    pub late_seconds: Option<f64>,
}

/// The latest outcomes that were rejected.
///
/// # Errors
/// If the query fails.
pub async fn late_updates(client: &impl GenericClient, limit: i64) -> Result<Vec<LateUpdate>> {
    let rows = client
        .ask(
            "select u.refused_at, u.worker, w.name, u.job, u.verdict, extract(epoch from u.late_by)::float8 \
             from (select l.* from bugle.late_updates l order by l.refused_at desc limit $1) u \
               left join bugle.workers w on w.id = u.worker \
             order by u.refused_at desc, u.id desc",
            &[&limit],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(LateUpdate {
                refused_at: row.try_get(0)?,
                worker: row.try_get(1)?,
                worker_name: row.try_get(2)?,
                job: row.try_get(3)?,
                verdict: row.try_get(4)?,
                late_seconds: row.try_get(5)?,
            })
        })
        .collect()
}

/// What kept jobs safe in the last 24 hours.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Safety {
    /// Notifications per minute, over the last five, of all queues.
    pub rings_per_minute: f64,
    /// Jobs that only the safety poll found.
    pub found_by_poll: i64,
    /// Outcomes that were rejected because they came too late: counted up to 10,000.
    pub late_updates: i64,
    /// The worker that sent the last of them.
    pub late_worker: Option<String>,
    /// Jobs whose worker was lost: counted among the newest 20,000 attempts that did not complete.
    pub rescued: i64,
    /// 99 of 100 of these were ready again within this time after the worker was missed.
    pub rescue_p99_seconds: Option<f64>,
}

/// The doorbell, late updates and rescues of the last 24 hours.
///
/// # Errors
/// If the query fails.
pub async fn safety(client: &impl GenericClient) -> Result<Safety> {
    let rings = rings(client).await?;
    let row = client
        .ask_one(
            "select l.updates, w.name, r.jobs, r.p99 \
             from ( \
               select count(*) as updates, (array_agg(u.worker order by u.id desc))[1] as worker \
               from (select * from bugle.late_updates a where a.refused_at > now() - interval '24 hours' \
                 order by a.refused_at desc limit 10000) u) l \
               left join bugle.workers w on w.id = l.worker \
               cross join ( \
                 select count(*) as jobs, \
                   (percentile_cont(0.99) within group (order by extract(epoch from a.ended_at - v.lost_at)))::float8 \
                     as p99 \
                 from (select t.* from bugle.attempts t order by t.ended_at desc limit 20000) a \
                   left join bugle.workers v on v.id = a.worker and v.lost_at <= a.ended_at \
                 where a.outcome = 'rescued' and a.ended_at > now() - interval '24 hours') r",
            &[],
        )
        .await?;
    Ok(Safety {
        rings_per_minute: rings.iter().map(|rings| rings.rings_per_minute).sum(),
        found_by_poll: rings.iter().map(|rings| rings.found_by_poll).sum(),
        late_updates: row.try_get(0)?,
        late_worker: row.try_get(1)?,
        rescued: row.try_get(2)?,
        rescue_p99_seconds: row.try_get(3)?,
    })
}
