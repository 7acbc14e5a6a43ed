//! Statistics: throughput, latency and failures.

use std::time::SystemTime;

use serde::Serialize;
use tokio_postgres::GenericClient;

use super::time::as_text;
use crate::db::connect::Unnamed;
use crate::error::Result;
use crate::job::JobId;

/// Statistics of a queue and command for the last hour: a row of `bugle.command_stats`.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct CommandStats {
    /// The queue.
    pub queue: String,
    /// The command.
    pub command: String,
    /// Completed attempts.
    pub completed: i64,
    /// Failed attempts.
    pub failed: i64,
    /// The fraction of attempts that failed, from 0 to 1.
    pub failure_rate: Option<f64>,
    /// Completed attempts per minute, on average.
    pub completed_per_minute: f64,
    /// Median wait time.
    pub wait_p50_seconds: Option<f64>,
    /// 95th percentile of the wait time.
    pub wait_p95_seconds: Option<f64>,
    /// Median run time.
    pub run_p50_seconds: Option<f64>,
    /// 95th percentile of the run time.
    pub run_p95_seconds: Option<f64>,
}

/// The last hour, by queue and command.
///
/// # Errors
/// If the query fails.
pub async fn command_stats(client: &impl GenericClient) -> Result<Vec<CommandStats>> {
    let rows = client
        .ask(
            "select s.queue, s.command, s.completed, s.failed, s.failure_rate, \
             s.completed_per_minute::float8 as completed_per_minute, \
             s.wait_p50_seconds, s.wait_p95_seconds, s.run_p50_seconds, s.run_p95_seconds \
             from bugle.command_stats s \
             order by s.queue, s.command",
            &[],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(CommandStats {
                queue: row.try_get("queue")?,
                command: row.try_get("command")?,
                completed: row.try_get("completed")?,
                failed: row.try_get("failed")?,
                failure_rate: row.try_get("failure_rate")?,
                completed_per_minute: row.try_get("completed_per_minute")?,
                wait_p50_seconds: row.try_get("wait_p50_seconds")?,
                wait_p95_seconds: row.try_get("wait_p95_seconds")?,
                run_p50_seconds: row.try_get("run_p50_seconds")?,
                run_p95_seconds: row.try_get("run_p95_seconds")?,
            })
        })
        .collect()
}

/// A minute of all queues and commands together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Minute {
    /// Attempts that completed.
    pub completed: i64,
    /// Attempts that failed.
    pub failed: i64,
}

/// The minutes of the last hour, oldest first; those without attempts are there too.
///
/// # Errors
/// If the database cannot be asked.
pub async fn last_hour(client: &impl GenericClient) -> Result<Vec<Minute>> {
    let rows = client
        .ask(
            "select coalesce(sum(n.completed), 0)::bigint, coalesce(sum(n.failed), 0)::bigint \
             from generate_series(date_trunc('minute', now()) - interval '59 minutes', now(), '1 minute') m (minute) \
             left join bugle.minutes n on n.minute = m.minute \
             group by m.minute \
             order by m.minute",
            &[],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Minute {
                completed: row.try_get(0)?,
                failed: row.try_get(1)?,
            })
        })
        .collect()
}

/// A group of similar failures: a row of `bugle.error_groups`.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ErrorGroup {
    /// The command of the latest failure.
    pub command: Option<String>,
    /// The error code.
    pub code: Option<String>,
    /// The text that the error messages have in common.
    pub fingerprint: Option<String>,
    /// The number of failed attempts.
    pub attempts: i64,
    /// The number of jobs.
    pub jobs: i64,
    /// The time of the first failure.
    #[serde(serialize_with = "as_text")]
    pub first_at: SystemTime,
    /// The time of the latest failure.
    #[serde(serialize_with = "as_text")]
    pub last_at: SystemTime,
    /// The job of the latest failure.
    pub last_job: JobId,
    /// The error message of the latest failure.
    pub last_error: Option<String>,
    /// Whether all failures were considered, and not only the newest.
    pub is_complete: bool,
    /// The line of the latest error message that says what went wrong.
    pub error_line: Option<String>,
    /// The hosts on which they failed, at most 20.
    pub hosts: Vec<String>,
}

/// The failed attempts within this interval, in any format Postgres accepts, grouped by similar errors.
///
/// # Errors
/// If the interval is invalid or the query fails.
pub async fn error_groups(client: &impl GenericClient, since: &str) -> Result<Vec<ErrorGroup>> {
    let rows = client
        .ask(
            "select g.command, g.code, g.fingerprint, g.attempts, g.jobs, g.first_at, g.last_at, g.last_job, \
             g.last_error, g.is_complete, g.error_line, g.hosts \
             from bugle.group_errors($1::text::interval) g",
            &[&since],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(ErrorGroup {
                command: row.try_get("command")?,
                code: row.try_get("code")?,
                fingerprint: row.try_get("fingerprint")?,
                attempts: row.try_get("attempts")?,
                jobs: row.try_get("jobs")?,
                first_at: row.try_get("first_at")?,
                last_at: row.try_get("last_at")?,
                last_job: row.try_get("last_job")?,
                last_error: row.try_get("last_error")?,
                is_complete: row.try_get("is_complete")?,
                error_line: row.try_get("error_line")?,
                hosts: row.try_get("hosts")?,
            })
        })
        .collect()
}
