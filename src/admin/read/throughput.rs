//! Attempts over time, for charts; and commands that no worker serves.

use std::time::SystemTime;

use serde::Serialize;
use tokio_postgres::GenericClient;

use super::time::as_text_if_any;
use crate::db::connect::Unnamed;
use crate::error::Result;
use crate::job::JobId;

/// A row of `bugle.throughput`.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct Bucket {
    /// When it begins; none for the total.
    #[serde(serialize_with = "as_text_if_any")]
    pub at: Option<SystemTime>,
    /// Attempts that completed.
    pub completed: i64,
    /// Attempts that failed.
    pub failed: i64,
    /// The median, p95 and p99 of waiting, in seconds.
    pub wait: [Option<f64>; 3],
    /// The median, p95 and p99 of running, in seconds.
    pub run: [Option<f64>; 3],
}

/// The total of a period, and its buckets that have attempts; period and bucket are intervals as Postgres reads them.
///
/// # Errors
/// If the query fails.
pub async fn throughput(
    client: &impl GenericClient,
    since: &str,
    bucket: &str,
    queue: Option<&str>,
    command: Option<&str>,
) -> Result<(Bucket, Vec<Bucket>)> {
    let rows = client
        .ask(
            "select t.at, t.completed, t.failed, t.wait_p50_seconds, t.wait_p95_seconds, t.wait_p99_seconds, \
             t.run_p50_seconds, t.run_p95_seconds, t.run_p99_seconds \
             from bugle.throughput($1::text::interval, $2::text::interval, $3, $4) t",
            &[&since, &bucket, &queue, &command],
        )
        .await?;
    let read = |row: &tokio_postgres::Row| -> Result<Bucket> {
        Ok(Bucket {
            at: row.try_get(0)?,
            completed: row.try_get(1)?,
            failed: row.try_get(2)?,
            wait: [row.try_get(3)?, row.try_get(4)?, row.try_get(5)?],
            run: [row.try_get(6)?, row.try_get(7)?, row.try_get(8)?],
        })
    };
    let mut buckets = rows.iter().map(read).collect::<Result<Vec<_>>>()?;
    let total = match buckets.iter().position(|bucket| bucket.at.is_none()) {
        Some(place) => buckets.remove(place),
        None => Bucket::default(),
    };
    Ok((total, buckets))
}

/// How many attempts completed, and how many failed, in a period of this length that ended this long ago; both are
/// intervals as Postgres reads them.
///
/// # Errors
/// If the query fails.
pub async fn outcomes(client: &impl GenericClient, length: &str, ended: &str) -> Result<(i64, i64)> {
    let row = client
        .ask_one(
            "select coalesce(sum(m.completed), 0)::bigint, coalesce(sum(m.failed), 0)::bigint from bugle.minutes m \
             where m.minute > now() - $2::text::interval - $1::text::interval \
             and m.minute <= now() - $2::text::interval",
            &[&length, &ended],
        )
        .await?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}

/// A row of `bugle.unserved`: ready jobs that no live worker would claim.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Unserved {
    /// The queue.
    pub queue: String,
    /// The command.
    pub command: String,
    /// The first of the jobs.
    pub first_job: JobId,
    /// Since when it has been ready.
    pub since: SystemTime,
    /// Paused workers that would serve it.
    pub paused_workers: Vec<i64>,
}

/// Commands with ready jobs that no live worker serves, at most `limit` of them.
///
/// # Errors
/// If the query fails.
pub async fn unserved(client: &impl GenericClient, limit: i64) -> Result<Vec<Unserved>> {
    let rows = client
        .ask(
            "select u.queue, u.command, u.first_job, u.since, coalesce(u.paused_workers, '{}') \
             from bugle.unserved u order by u.since limit $1",
            &[&limit],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Unserved {
                queue: row.try_get(0)?,
                command: row.try_get(1)?,
                first_job: row.try_get(2)?,
                since: row.try_get(3)?,
                paused_workers: row.try_get(4)?,
            })
        })
        .collect()
}

/// What a login may do here.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Rights {
    /// Its name.
    pub login: String,
    /// Whether it may call the operators' functions.
    pub can_operate: bool,
    /// Whether it may enqueue.
    pub can_enqueue: bool,
    /// Whether it may read what viewers read.
    pub can_read: bool,
    /// Whether nothing can be changed here: a standby, or a session that is read-only.
    pub is_read_only: bool,
    /// Whether it may end sessions of other logins.
    pub can_end_sessions: bool,
    /// Whether it may run maintenance.
    pub can_maintain: bool,
    /// Whether it could log in now: it was not locked, and its password has not expired.
    pub can_log_in: bool,
}

/// What this login may do here.
///
/// # Errors
/// If the query fails.
pub async fn rights(client: &impl GenericClient) -> Result<Rights> {
    let row = client
        .ask_one(
            "select current_user::text, has_function_privilege('bugle.cancel(bigint[], text)', 'execute'), \
             has_function_privilege('bugle.enqueue_job(jsonb)', 'execute'), \
             has_table_privilege('bugle.queue_stats', 'select'), \
             pg_is_in_recovery() or current_setting('default_transaction_read_only') = 'on', \
             r.rolcanlogin and coalesce(r.rolvaliduntil > now(), true), \
             r.rolsuper or pg_has_role('pg_signal_backend', 'usage'), \
             has_function_privilege('bugle.upkeep()', 'execute') \
             from pg_catalog.pg_roles r where r.rolname = current_user",
            &[],
        )
        .await?;
    Ok(Rights {
        login: row.try_get(0)?,
        can_operate: row.try_get(1)?,
        can_enqueue: row.try_get(2)?,
        can_read: row.try_get(3)?,
        is_read_only: row.try_get(4)?,
        can_log_in: row.try_get(5)?,
        can_end_sessions: row.try_get(6)?,
        can_maintain: row.try_get(7)?,
    })
}
