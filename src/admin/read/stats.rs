//! How much, how fast, how well.

use std::time::SystemTime;

use serde::Serialize;
use tokio_postgres::GenericClient;

use super::time::as_text;
use crate::db::connect::Unnamed;
use crate::error::Result;
use crate::job::JobId;

/// The last hour of a queue and command: a row of `bugle.command_stats`.
#[derive(Debug, Clone, Serialize)]
pub struct CommandStats {
    /// The queue.
    pub queue: String,
    /// The command.
    pub command: String,
    /// Attempts that completed.
    pub completed: i64,
    /// Attempts that failed.
    pub failed: i64,
    /// The share of those that failed, from 0 to 1.
    pub failure_rate: Option<f64>,
    /// Completed attempts in a minute, on average.
    pub completed_per_minute: f64,
    /// Half of them waited less.
    pub wait_p50_seconds: Option<f64>,
    /// 95 of 100 waited less.
    pub wait_p95_seconds: Option<f64>,
    /// Half of them ran for less.
    pub run_p50_seconds: Option<f64>,
    /// 95 of 100 ran for less.
    pub run_p95_seconds: Option<f64>,
}

/// The last hour, by queue and command.
///
/// # Errors
/// If the database cannot be asked.
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

/// Failures of a kind: a row of `bugle.error_groups`.
#[derive(Debug, Clone, Serialize)]
pub struct ErrorGroup {
    /// The command of the latest.
    pub command: Option<String>,
    /// What the executors called it.
    pub code: Option<String>,
    /// What the errors have in common.
    pub fingerprint: Option<String>,
    /// How many attempts failed like this.
    pub attempts: i64,
    /// Of how many jobs.
    pub jobs: i64,
    /// The first of them.
    #[serde(serialize_with = "as_text")]
    pub first_at: SystemTime,
    /// The latest of them.
    #[serde(serialize_with = "as_text")]
    pub last_at: SystemTime,
    /// The job of the latest.
    pub last_job: JobId,
    /// What the latest said.
    pub last_error: Option<String>,
    /// Whether all were looked at, and not only the newest.
    pub is_complete: bool,
}

/// The failed attempts of the last so long, an interval as Postgres reads it, grouped by what their errors have in
/// common.
///
/// # Errors
/// If that is no interval, or the database cannot be asked.
pub async fn error_groups(client: &impl GenericClient, since: &str) -> Result<Vec<ErrorGroup>> {
    let rows = client
        .ask(
            "select g.command, g.code, g.fingerprint, g.attempts, g.jobs, g.first_at, g.last_at, g.last_job, \
             g.last_error, \
             g.is_complete \
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
            })
        })
        .collect()
}
