//! Schedules: list, add, preview, pause, resume and remove.

use std::time::{Duration, SystemTime};

use postgres_types::Json;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio_postgres::GenericClient;

use super::time::{as_text, as_text_if_any};
use crate::client::enqueue::NewJob;
use crate::db::connect::Unnamed;
use crate::error::{Error, Result};
use crate::job::JobId;
use crate::observe::trace;
use crate::spelled::spelled;

spelled! {
    /// How missed runs of a schedule are handled: `bugle.schedules.misfire`.
    #[non_exhaustive]
    Misfire, "a way to handle missed runs" {
        /// They are left out.
        Skip = "skip",
        /// One job stands for all of them.
        RunOnce = "run_once",
        /// Each is run, up to `catch_up_limit`.
        CatchUp = "catch_up",
    }
}

spelled! {
    /// Whether a schedule fires while an earlier job of it has not ended: `bugle.schedules.overlap`.
    #[non_exhaustive]
    Overlap, "allow or skip" {
        /// It fires.
        Allow = "allow",
        /// It does not.
        Skip = "skip",
    }
}

/// A schedule in a list: a row of `bugle.schedules`.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Schedule {
    /// Its name.
    pub name: String,
    /// Its cron expression, if it has one.
    pub cron: Option<String>,
    /// Otherwise its interval, as an interval of Postgres.
    pub every: Option<String>,
    /// The time zone of the expression.
    pub timezone: String,
    /// The command of its jobs.
    pub command: String,
    /// The queue of its jobs.
    pub queue: String,
    /// How missed runs are handled.
    pub misfire: Misfire,
    /// Whether it fires while an earlier job is unfinished.
    pub overlap: Overlap,
    /// When it was paused.
    #[serde(serialize_with = "as_text_if_any")]
    pub paused_at: Option<SystemTime>,
    /// When it fires next.
    #[serde(serialize_with = "as_text_if_any")]
    pub next_at: Option<SystemTime>,
    /// The time for which it fired last.
    #[serde(serialize_with = "as_text_if_any")]
    pub last_at: Option<SystemTime>,
    /// The job that was enqueued last.
    pub last_job: Option<JobId>,
    /// The error if it could not fire the last time.
    pub last_error: Option<String>,
}

/// All schedules, by name.
///
/// # Errors
/// If the query fails.
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

/// What a schedule has: its columns that are not null, as texts. Documents are among them if the login may read them,
/// without redacted values.
///
/// # Errors
/// If the query fails.
pub async fn schedule_columns(client: &impl GenericClient, name: &str) -> Result<Vec<(String, String)>> {
    let may_read = "select has_column_privilege('bugle.schedules', 'payload', 'select')";
    let documents = match client.ask_one(may_read, &[]).await?.try_get(0)? {
        true => "bugle.redacted(s.payload) as payload, bugle.redacted(s.headers) as headers, ",
        false => "",
    };
    let sql = format!(
        "select v.key, case when v.key = 'steps' \
           then (select string_agg(e, ', ') from jsonb_array_elements_text(v.value) e) \
           else v.value #>> '{{}}' end \
         from ( \
           select {documents}s.command, s.cron, s.every, s.timezone, s.queue, s.priority, s.timeout, s.max_attempts, \
             s.retry_policy, s.retry_delay, s.steps, s.misfire, s.catch_up_limit, s.overlap, s.starts_at, s.ends_at \
           from bugle.schedules s where s.name = $1) c \
         cross join lateral jsonb_each(jsonb_strip_nulls(to_jsonb(c))) v"
    );
    let rows = client.ask(&sql, &[&name]).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// A new schedule. `None` means the default of the schema; times and intervals are in any format Postgres accepts.
///
/// ```no_run
/// # async fn example(client: tokio_postgres::Client) -> bugle::Result<()> {
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct NightlyReport {}
/// # impl bugle::Job for NightlyReport { const COMMAND: &'static str = "nightly_report"; }
/// use bugle::read::{NewSchedule, set_schedule};
///
/// let nightly = NewSchedule::cron("nightly", "30 2 * * *", &NightlyReport {})?.timezone("Europe/Berlin");
/// set_schedule(&client, &nightly).await?; // at each start of the application
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NewSchedule {
    /// Its name.
    pub name: String,
    /// A cron expression.
    pub cron: Option<String>,
    /// An interval instead.
    pub every: Option<String>,
    /// The time zone of the expression.
    pub timezone: Option<String>,
    /// The command of its jobs.
    pub command: String,
    /// The payload of its jobs.
    pub payload: Box<RawValue>,
    /// The queue of its jobs.
    pub queue: Option<String>,
    /// The priority of its jobs; smaller numbers run first.
    pub priority: Option<i32>,
    /// Time limit for each attempt.
    pub timeout: Option<String>,
    /// Maximum number of attempts.
    pub max_attempts: Option<i32>,
    /// Retry policy.
    pub retry_policy: Option<String>,
    /// Delay before the first retry, instead of the policy's.
    pub retry_delay: Option<String>,
    /// The headers of its jobs.
    pub headers: Option<Map<String, Value>>,
    /// The steps, if its jobs are chains.
    pub steps: Option<Vec<String>>,
    /// How missed runs are handled.
    pub misfire: Option<Misfire>,
    /// Maximum number of missed runs to catch up on.
    pub catch_up_limit: Option<i32>,
    /// Whether it fires while an earlier job is unfinished.
    pub overlap: Option<Overlap>,
    /// It does not fire before this time.
    pub starts_at: Option<String>,
    /// It does not fire after this time.
    pub ends_at: Option<String>,
}

impl NewSchedule {
    /// Enqueue this job at the times of a cron expression.
    ///
    /// # Errors
    /// If the payload cannot be written as JSON, or the job sets something that a schedule cannot, such as a key.
    pub fn cron(name: &str, cron: &str, job: impl Into<NewJob>) -> Result<NewSchedule> {
        let mut schedule = NewSchedule::of(name, &job.into())?;
        schedule.cron = Some(cron.to_string());
        Ok(schedule)
    }

    /// Enqueue this job at an interval.
    ///
    /// # Errors
    /// As [`cron`](NewSchedule::cron).
    pub fn every(name: &str, interval: Duration, job: impl Into<NewJob>) -> Result<NewSchedule> {
        let mut schedule = NewSchedule::of(name, &job.into())?;
        schedule.every = Some(format!("{} seconds", interval.as_secs_f64()));
        Ok(schedule)
    }

    /// The time zone of the cron expression, instead of UTC.
    pub fn timezone(mut self, timezone: &str) -> Self {
        self.timezone = Some(timezone.to_string());
        self
    }

    /// How missed runs are handled, instead of [`Misfire::RunOnce`].
    pub fn misfire(mut self, misfire: Misfire) -> Self {
        self.misfire = Some(misfire);
        self
    }

    /// Whether it fires while an earlier job of it has not ended, instead of [`Overlap::Allow`].
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = Some(overlap);
        self
    }

    fn of(name: &str, job: &NewJob) -> Result<NewSchedule> {
        /// What a job and a schedule have in common.
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Columns {
            command: String,
            payload: Value,
            queue: Option<String>,
            priority: Option<i32>,
            timeout: Option<String>,
            max_attempts: Option<i32>,
            retry_policy: Option<String>,
            retry_delay: Option<String>,
            headers: Option<Map<String, Value>>,
            steps: Option<Vec<String>>,
        }
        let columns: Columns = serde_json::from_value(job.to_json()?)
            .map_err(|error| Error::new(format!("the job of schedule {name:?} cannot be scheduled: {error}")))?;
        // its jobs do not belong to the trace in which it is set up
        let headers = columns.headers.map(|mut headers| {
            headers.remove(trace::HEADER);
            headers
        });
        Ok(NewSchedule {
            headers: headers.filter(|headers| !headers.is_empty()),
            name: name.to_string(),
            cron: None,
            every: None,
            timezone: None,
            command: columns.command,
            payload: serde_json::value::to_raw_value(&columns.payload).expect("it is JSON"),
            queue: columns.queue,
            priority: columns.priority,
            timeout: columns.timeout,
            max_attempts: columns.max_attempts,
            retry_policy: columns.retry_policy,
            retry_delay: columns.retry_delay,
            steps: columns.steps,
            misfire: None,
            catch_up_limit: None,
            overlap: None,
            starts_at: None,
            ends_at: None,
        })
    }
}

const INSERT: &str = "\
    insert into bugle.schedules as s (name, cron, every, timezone, command, payload, queue, priority, timeout, \
      max_attempts, retry_policy, misfire, catch_up_limit, overlap, starts_at, ends_at, steps, retry_delay, headers) \
    values ($1, $2, $3::text::interval, coalesce($4, 'UTC'), $5, $6, coalesce($7, 'default'), coalesce($8, 0), \
      $9::text::interval, $10, $11, coalesce($12, 'run_once'), coalesce($13, 10), coalesce($14, 'allow'), \
      $15::text::timestamptz, $16::text::timestamptz, $17, $18::text::interval, $19)";

/// Only a schedule that differs is written: its times and its history stay as they are otherwise.
const OR_UPDATE: &str = " \
    on conflict (name) do update \
    set (cron, every, timezone, command, payload, queue, priority, timeout, max_attempts, retry_policy, misfire, \
        catch_up_limit, overlap, starts_at, ends_at, steps, retry_delay, headers) \
      = (excluded.cron, excluded.every, excluded.timezone, excluded.command, excluded.payload, excluded.queue, \
        excluded.priority, excluded.timeout, excluded.max_attempts, excluded.retry_policy, excluded.misfire, \
        excluded.catch_up_limit, excluded.overlap, excluded.starts_at, excluded.ends_at, excluded.steps, \
        excluded.retry_delay, excluded.headers) \
    where (s.cron, s.every, s.timezone, s.command, s.payload, s.queue, s.priority, s.timeout, s.max_attempts, \
        s.retry_policy, s.misfire, s.catch_up_limit, s.overlap, s.starts_at, s.ends_at, s.steps, s.retry_delay, \
        s.headers) \
      is distinct from (excluded.cron, excluded.every, excluded.timezone, excluded.command, excluded.payload, \
        excluded.queue, excluded.priority, excluded.timeout, excluded.max_attempts, excluded.retry_policy, \
        excluded.misfire, excluded.catch_up_limit, excluded.overlap, excluded.starts_at, excluded.ends_at, \
        excluded.steps, excluded.retry_delay, excluded.headers)";

/// Add a schedule. Returns when it fires first.
///
/// # Errors
/// If it is invalid, or the name is taken.
pub async fn add_schedule(client: &impl GenericClient, new: &NewSchedule) -> Result<Option<SystemTime>> {
    write(client, INSERT, new).await
}

/// Add a schedule, or change the one of this name so that it is the same. Returns when it fires next. It can be called
/// at each start of an application: a schedule that does not change is left alone, also if it is paused.
///
/// # Errors
/// If it is invalid.
pub async fn set_schedule(client: &impl GenericClient, new: &NewSchedule) -> Result<Option<SystemTime>> {
    write(client, &format!("{INSERT}{OR_UPDATE}"), new).await
}

async fn write(client: &impl GenericClient, sql: &str, new: &NewSchedule) -> Result<Option<SystemTime>> {
    client
        .change(
            sql,
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
                &new.misfire.map(Misfire::as_str),
                &new.catch_up_limit,
                &new.overlap.map(Overlap::as_str),
                &new.starts_at,
                &new.ends_at,
                &new.steps,
                &new.retry_delay,
                &new.headers.as_ref().map(Json),
            ],
        )
        .await?;
    let next = "select s.next_at from bugle.schedules s where s.name = $1";
    Ok(client.ask_one(next, &[&new.name]).await?.try_get(0)?)
}

/// The next times of a cron expression, each as a timestamp and as local time of the time zone.
///
/// # Errors
/// If the cron expression or the time zone is invalid.
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

/// Delete a schedule; its jobs are kept. Returns whether it existed.
///
/// # Errors
/// If the role lacks the privilege.
pub async fn remove_schedule(client: &impl GenericClient, name: &str) -> Result<bool> {
    let removed = client
        .change("delete from bugle.schedules s where s.name = $1", &[&name])
        .await?;
    Ok(removed > 0)
}

/// Pause a schedule.
///
/// # Errors
/// If there is no schedule with this name.
pub async fn pause_schedule(client: &impl GenericClient, name: &str, note: Option<&str>) -> Result<()> {
    client
        .change("select bugle.pause_schedule($1, $2)", &[&name, &note])
        .await?;
    Ok(())
}

/// Resume a paused schedule. Returns when it fires next.
///
/// # Errors
/// If there is no schedule with this name, or it is not paused.
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

/// Enqueue a job of a schedule now, in addition to the regular ones.
///
/// # Errors
/// If there is no schedule with this name.
pub async fn run_schedule_now(client: &impl GenericClient, name: &str, note: Option<&str>) -> Result<JobId> {
    let row = client
        .ask_one("select bugle.run_schedule_now($1, $2)", &[&name, &note])
        .await?;
    Ok(row.try_get(0)?)
}

/// The next times of a schedule, with cron or an interval: each as a timestamp, and as local time of its time zone.
///
/// # Errors
/// If the query fails.
pub async fn next_times(client: &impl GenericClient, name: &str, count: i32) -> Result<Vec<(SystemTime, String)>> {
    let rows = client
        .ask(
            "select t.slot, to_char(t.slot at time zone s.timezone, 'Dy YYYY-MM-DD HH24:MI:SS') \
             from bugle.schedules s \
               cross join lateral ( \
                 select p.slot \
                 from bugle.schedule_preview(s.cron, s.timezone, $2, greatest(now(), s.starts_at)) p (slot) \
                 where s.cron is not null \
                 union all \
                 select s.next_at + n.number * s.every from generate_series(0, $2 - 1) n (number) \
                 where s.every is not null) t \
             where s.name = $1 and (s.ends_at is null or t.slot <= s.ends_at) and t.slot is not null \
             order by t.slot",
            &[&name, &count],
        )
        .await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// A slot of a schedule that has passed.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ScheduleRun {
    /// When it was due.
    #[serde(serialize_with = "as_text")]
    pub slot: SystemTime,
    /// When it fired.
    #[serde(serialize_with = "as_text")]
    pub enqueued_at: SystemTime,
    /// Its job.
    pub job: Option<JobId>,
    /// Why there is no job.
    pub skipped: Option<String>,
    /// The state of the job; none if it was deleted.
    pub state: Option<crate::state::State>,
}

/// The last slots of a schedule, the newest first.
///
/// # Errors
/// If the query fails.
pub async fn schedule_runs(client: &impl GenericClient, name: &str, limit: i64) -> Result<Vec<ScheduleRun>> {
    let rows = client
        .ask(
            "select r.slot, r.enqueued_at, r.job, r.skipped, coalesce(j.state, 'gone') \
             from (select s.* from bugle.schedule_runs s where s.schedule = $1 order by s.slot desc limit $2) r \
               left join lateral (select j.state from bugle.jobs j where j.id = r.job limit 1) j on true \
             order by r.slot desc",
            &[&name, &limit],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(ScheduleRun {
                slot: row.try_get(0)?,
                enqueued_at: row.try_get(1)?,
                job: row.try_get(2)?,
                skipped: row.try_get(3)?,
                state: crate::state::unless_gone(row, 4)?,
            })
        })
        .collect()
}
