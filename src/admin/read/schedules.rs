//! Schedules: what there is, what they mean, and the operator's words for them.

use std::time::SystemTime;

use postgres_types::Json;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio_postgres::GenericClient;

use super::time::as_text_if_any;
use crate::db::connect::Unnamed;
use crate::error::Result;
use crate::job::JobId;

/// A row of `bugle.schedules`, as a list shows it.
#[derive(Debug, Clone, Serialize)]
pub struct Schedule {
    /// Its name.
    pub name: String,
    /// Its cron expression, if it has one.
    pub cron: Option<String>,
    /// Its interval otherwise, as Postgres writes it.
    pub every: Option<String>,
    /// The time zone of the expression.
    pub timezone: String,
    /// What its jobs do.
    pub command: String,
    /// The queue they wait in.
    pub queue: String,
    /// What becomes of missed slots.
    pub misfire: String,
    /// Whether a slot fires while an earlier job has not ended.
    pub overlap: String,
    /// Since when it is held back.
    #[serde(serialize_with = "as_text_if_any")]
    pub paused_at: Option<SystemTime>,
    /// When it fires next.
    #[serde(serialize_with = "as_text_if_any")]
    pub next_at: Option<SystemTime>,
    /// The slot that fired last.
    #[serde(serialize_with = "as_text_if_any")]
    pub last_at: Option<SystemTime>,
    /// The job that was enqueued last.
    pub last_job: Option<JobId>,
    /// Why its last slot could not be fired.
    pub last_error: Option<String>,
}

/// All schedules, by name.
///
/// # Errors
/// If the database cannot be asked.
pub async fn schedules(client: &impl GenericClient) -> Result<Vec<Schedule>> {
    let rows = client
        .ask(
            "select s.name, s.cron, s.every::text as every, s.timezone, s.command, s.queue, s.misfire, s.overlap, \
             s.paused_at, s.next_at, s.last_at, s.last_job, s.last_error \
             from bugle.schedules s \
             order by s.name",
            &[],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Schedule {
                name: row.try_get("name")?,
                cron: row.try_get("cron")?,
                every: row.try_get("every")?,
                timezone: row.try_get("timezone")?,
                command: row.try_get("command")?,
                queue: row.try_get("queue")?,
                misfire: row.try_get("misfire")?,
                overlap: row.try_get("overlap")?,
                paused_at: row.try_get("paused_at")?,
                next_at: row.try_get("next_at")?,
                last_at: row.try_get("last_at")?,
                last_job: row.try_get("last_job")?,
                last_error: row.try_get("last_error")?,
            })
        })
        .collect()
}

/// A new schedule. What is left out is the schema's default; times and intervals are texts as Postgres reads them.
#[derive(Debug, Clone)]
pub struct NewSchedule {
    /// Names it in every verb.
    pub name: String,
    /// When: a cron expression.
    pub cron: Option<String>,
    /// When: an interval instead.
    pub every: Option<String>,
    /// The time zone of the expression.
    pub timezone: Option<String>,
    /// What its jobs do.
    pub command: String,
    /// Their data.
    pub payload: Box<RawValue>,
    /// The queue they wait in.
    pub queue: Option<String>,
    /// Smaller runs sooner.
    pub priority: Option<i32>,
    /// How long one attempt may take.
    pub timeout: Option<String>,
    /// How often a job is tried.
    pub max_attempts: Option<i32>,
    /// How it is retried.
    pub retry_policy: Option<String>,
    /// Makes it a chain of these commands.
    pub steps: Option<Vec<String>>,
    /// What becomes of missed slots.
    pub misfire: Option<String>,
    /// The most slots that are caught up.
    pub catch_up_limit: Option<i32>,
    /// Whether a slot fires while an earlier job has not ended.
    pub overlap: Option<String>,
    /// No slot lies before this.
    pub starts_at: Option<String>,
    /// No slot lies after this.
    pub ends_at: Option<String>,
}

/// Add a schedule. Returns when it fires first.
///
/// # Errors
/// If it makes no sense, or there is one of this name.
pub async fn add_schedule(client: &impl GenericClient, new: &NewSchedule) -> Result<Option<SystemTime>> {
    let row = client
        .ask_one(
            "insert into bugle.schedules (name, cron, every, timezone, command, payload, queue, priority, timeout, \
             max_attempts, retry_policy, misfire, catch_up_limit, overlap, starts_at, ends_at, steps) \
             values ($1, $2, $3::text::interval, coalesce($4, 'UTC'), $5, $6, coalesce($7, 'default'), coalesce($8, \
             0), \
             $9::text::interval, $10, $11, coalesce($12, 'run_once'), coalesce($13, 10), coalesce($14, 'allow'), \
             $15::text::timestamptz, $16::text::timestamptz, $17) \
             returning next_at",
            &[
                &new.name,
                &new.cron,
                &new.every,
                &new.timezone,
                &new.command,
                &Json(&*new.payload),
                &new.queue,
                &new.priority,
                &new.timeout,
                &new.max_attempts,
                &new.retry_policy,
                &new.misfire,
                &new.catch_up_limit,
                &new.overlap,
                &new.starts_at,
                &new.ends_at,
                &new.steps,
            ],
        )
        .await?;
    Ok(row.try_get(0)?)
}

/// The next moments a cron expression means: each as time, and as the clocks of the zone show it.
///
/// # Errors
/// If it is no cron expression, or no time zone.
pub async fn preview(
    client: &impl GenericClient,
    cron: &str,
    timezone: &str,
    count: i32,
) -> Result<Vec<(SystemTime, String)>> {
    let rows = client
        .ask(
            "select p.slot, to_char(p.slot at time zone $2, 'Dy YYYY-MM-DD HH24:MI:SS') \
             from bugle.schedule_preview($1, $2, $3) p (slot)",
            &[&cron, &timezone, &count],
        )
        .await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// Delete a schedule; its jobs stay. Returns whether there was one.
///
/// # Errors
/// If the role may not.
pub async fn remove_schedule(client: &impl GenericClient, name: &str) -> Result<bool> {
    let removed = client
        .change("delete from bugle.schedules s where s.name = $1", &[&name])
        .await?;
    Ok(removed > 0)
}

/// Hold a schedule back.
///
/// # Errors
/// If there is none of this name.
pub async fn pause_schedule(client: &impl GenericClient, name: &str, note: Option<&str>) -> Result<()> {
    client
        .change("select bugle.pause_schedule($1, $2)", &[&name, &note])
        .await?;
    Ok(())
}

/// Let a paused schedule go on. Returns when it fires next.
///
/// # Errors
/// If there is none of this name, or it is not paused.
pub async fn resume_schedule(
    client: &impl GenericClient,
    name: &str,
    note: Option<&str>,
) -> Result<Option<SystemTime>> {
    let row = client
        .ask_one("select bugle.resume_schedule($1, $2)", &[&name, &note])
        .await?;
    Ok(row.try_get(0)?)
}

/// Enqueue a job of a schedule now, besides its slots.
///
/// # Errors
/// If there is none of this name.
pub async fn run_schedule_now(client: &impl GenericClient, name: &str, note: Option<&str>) -> Result<JobId> {
    let row = client
        .ask_one("select bugle.run_schedule_now($1, $2)", &[&name, &note])
        .await?;
    Ok(row.try_get(0)?)
}
