//! Jobs: the newest, or all there is to know about one.

use std::time::SystemTime;

use postgres_types::Json;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio_postgres::{GenericClient, Row};

use super::families::{Relatives, relatives};
use super::steps::{Step, steps};
use super::time::{as_text, as_text_if_any};
use crate::db::connect::Unnamed;
use crate::error::Result;
use crate::job::JobId;

/// Which jobs to list. Nothing set: all.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only of this queue.
    pub queue: Option<String>,
    /// Only of this command.
    pub command: Option<String>,
    /// Only in this state.
    pub state: Option<String>,
    /// Only enqueued within this long, an interval as Postgres reads it: `2 hours`.
    pub since: Option<String>,
    /// Only with a latest error like this, in any case: a part of it, or a pattern with `%`.
    pub error_like: Option<String>,
}

/// A job as a line of a list.
#[derive(Debug, Clone, Serialize)]
pub struct JobLine {
    /// `bugle.jobs.id`.
    pub id: JobId,
    /// Its state.
    pub state: String,
    /// What to do.
    pub command: String,
    /// The queue it waits in.
    pub queue: String,
    /// Smaller runs sooner.
    pub priority: i32,
    /// How often it was started.
    pub attempt: i32,
    /// Why it failed for good.
    pub reason: Option<String>,
    /// The kind of its latest failure.
    pub last_error_code: Option<String>,
    /// When it was enqueued.
    #[serde(serialize_with = "as_text")]
    pub created_at: SystemTime,
    /// When it is or was due.
    #[serde(serialize_with = "as_text")]
    pub run_at: SystemTime,
    /// When its latest attempt started.
    #[serde(serialize_with = "as_text_if_any")]
    pub started_at: Option<SystemTime>,
    /// When it got to its final state.
    #[serde(serialize_with = "as_text_if_any")]
    pub finished_at: Option<SystemTime>,
}

/// The newest jobs. Walks down the ids, and stops when it has enough.
///
/// # Errors
/// If the database cannot be asked.
pub async fn jobs(client: &impl GenericClient, filter: &Filter, limit: i64) -> Result<Vec<JobLine>> {
    let rows = client
        .ask(
            "select j.id, j.state, j.command, j.queue, j.priority, j.attempt, j.reason, j.last_error_code, \
             j.created_at, j.run_at, j.started_at, j.finished_at \
             from bugle.jobs j \
             where ($1::text is null or j.queue = $1) \
             and ($2::text is null or j.command = $2) \
             and ($3::text is null or j.state = $3) \
             and ($5::text is null or j.created_at > now() - $5::text::interval) \
             and ($6::text is null or j.last_error ilike case when $6 like '%\\%%' then $6 else '%' || $6 || '%' end) \
             order by j.id desc \
             limit $4",
            &[
                &filter.queue,
                &filter.command,
                &filter.state,
                &limit,
                &filter.since,
                &filter.error_like,
            ],
        )
        .await?;
    rows.iter().map(job_line).collect()
}

fn job_line(row: &Row) -> Result<JobLine> {
    Ok(JobLine {
        id: row.try_get("id")?,
        state: row.try_get("state")?,
        command: row.try_get("command")?,
        queue: row.try_get("queue")?,
        priority: row.try_get("priority")?,
        attempt: row.try_get("attempt")?,
        reason: row.try_get("reason")?,
        last_error_code: row.try_get("last_error_code")?,
        created_at: row.try_get("created_at")?,
        run_at: row.try_get("run_at")?,
        started_at: row.try_get("started_at")?,
        finished_at: row.try_get("finished_at")?,
    })
}

/// All there is to know about one job, except the token its answer needs.
#[derive(Debug, Clone, Serialize)]
pub struct Job {
    /// What a list says about it.
    #[serde(flatten)]
    pub line: JobLine,
    /// The data it was enqueued with.
    pub payload: Box<RawValue>,
    /// Names and values that travel with it.
    pub headers: Option<Box<RawValue>>,
    /// What its executor returned.
    pub result: Option<Box<RawValue>>,
    /// What its latest failure said.
    pub last_error: Option<String>,
    /// How often a worker was lost while it ran.
    pub crashes: i32,
    /// How often it is tried, if the job says so.
    pub max_attempts: Option<i32>,
    /// How its retries are spaced, if the job says so.
    pub retry_policy: Option<String>,
    /// Its attempt and how many it has: "1 of 16".
    #[serde(skip)]
    pub attempt_in_words: String,
    /// The retry policy in force: its own, its command's, or the default.
    #[serde(skip)]
    pub policy_in_force: String,
    /// Its own delay before the first retry.
    #[serde(skip)]
    pub retry_delay_seconds: Option<f64>,
    /// How long one attempt may take, if the job says so.
    pub timeout_seconds: Option<f64>,
    /// When it must have started.
    #[serde(serialize_with = "as_text_if_any")]
    pub deadline: Option<SystemTime>,
    /// Until when it waits for an answer.
    #[serde(serialize_with = "as_text_if_any")]
    pub answer_by: Option<SystemTime>,
    /// How far its executor says it is, in percent.
    pub progress: Option<f32>,
    /// What its executor says about that.
    pub progress_note: Option<String>,
    /// The worker that has or had it last.
    pub worker: Option<i64>,
    /// That worker's name.
    pub worker_name: Option<String>,
    /// Where that worker runs.
    pub worker_host: Option<String>,
    /// When its first attempt started.
    #[serde(serialize_with = "as_text_if_any")]
    pub first_started_at: Option<SystemTime>,
    /// The job whose executor made it.
    pub parent: Option<JobId>,
    /// For how many jobs it still waits.
    pub outstanding: Option<i32>,
    /// The command that follows its completion.
    pub on_success: Option<String>,
    /// The command that follows its failure.
    pub on_failure: Option<String>,
    /// At most one live job of its command has this key.
    pub unique_key: Option<String>,
    /// One job of its command has this key until it expires.
    pub idempotency_key: Option<String>,
    /// What it was answered with, to go on.
    pub answer: Option<Box<RawValue>>,
    /// Whom it waits or waited for, and who for it.
    #[serde(flatten)]
    pub relatives: Relatives,
    /// Whether it is ready and no live worker serves its command in its queue.
    pub unserved: bool,
    /// The outputs of the steps of a chain so far.
    pub context: Option<Box<RawValue>>,
    /// Its steps, in order.
    pub steps: Vec<Step>,
    /// Its failed attempts, in order.
    pub attempts: Vec<Attempt>,
}

/// An attempt that failed.
#[derive(Debug, Clone, Serialize)]
pub struct Attempt {
    /// 1 for the first.
    pub attempt: i32,
    /// The worker that made it.
    pub worker: Option<i64>,
    /// That worker's name.
    pub worker_name: Option<String>,
    /// When it started.
    #[serde(serialize_with = "as_text_if_any")]
    pub started_at: Option<SystemTime>,
    /// When it ended.
    #[serde(serialize_with = "as_text")]
    pub ended_at: SystemTime,
    /// What kind of failure it was.
    pub code: Option<String>,
    /// What was said.
    pub error: Option<String>,
}

/// One job, wherever it is now.
///
/// Whether it is served is asked of the workers, paused ones included: `bugle.unserved` says the same of all queues and
/// commands at once, and `bugle.explain` names a worker that is paused.
///
/// # Errors
/// If the database cannot be asked.
pub async fn job(client: &impl GenericClient, id: JobId) -> Result<Option<Job>> {
    let row = client
        .ask_opt(
            "select j.id, j.state, j.command, j.queue, j.priority, j.attempt, j.reason, j.last_error_code, \
             j.created_at, j.run_at, j.started_at, j.finished_at, \
             j.payload, j.headers, j.result, j.last_error, j.crashes, j.max_attempts, j.retry_policy, \
             r.attempt as attempt_in_words, r.policy as policy_in_force, \
             extract(epoch from j.retry_delay)::float8 as retry_delay_seconds, \
             extract(epoch from j.timeout)::float8 as timeout_seconds, j.deadline, j.answer_by, \
             j.context, j.progress, j.progress_note, j.worker, w.name as worker_name, w.host as worker_host, \
             j.first_started_at, \
             j.parent, j.outstanding, j.on_success, j.on_failure, j.unique_key, j.idempotency_key, j.answer, \
             j.state = 'ready' and not exists ( \
               select from bugle.workers s \
               where s.state in ('alive', 'paused') and j.queue = any (s.queues) \
               and coalesce(j.steps[coalesce(j.step, 0) + 1:], array[j.command]) <@ s.commands) as unserved \
             from bugle.job($1) j cross join bugle.retries_of(j.id) r \
             left join bugle.workers w on w.id = j.worker",
            &[&id],
        )
        .await?;
    let Some(row) = row else { return Ok(None) };
    let json = |value: Json<Box<RawValue>>| value.0;
    Ok(Some(Job {
        line: job_line(&row)?,
        payload: json(row.try_get("payload")?),
        headers: row.try_get::<_, Option<_>>("headers")?.map(json),
        result: row.try_get::<_, Option<_>>("result")?.map(json),
        last_error: row.try_get("last_error")?,
        crashes: row.try_get("crashes")?,
        max_attempts: row.try_get("max_attempts")?,
        retry_policy: row.try_get("retry_policy")?,
        attempt_in_words: row.try_get("attempt_in_words")?,
        policy_in_force: row.try_get("policy_in_force")?,
        retry_delay_seconds: row.try_get("retry_delay_seconds")?,
        timeout_seconds: row.try_get("timeout_seconds")?,
        deadline: row.try_get("deadline")?,
        answer_by: row.try_get("answer_by")?,
        progress: row.try_get("progress")?,
        progress_note: row.try_get("progress_note")?,
        worker: row.try_get("worker")?,
        worker_name: row.try_get("worker_name")?,
        worker_host: row.try_get("worker_host")?,
        first_started_at: row.try_get("first_started_at")?,
        parent: row.try_get("parent")?,
        outstanding: row.try_get("outstanding")?,
        on_success: row.try_get("on_success")?,
        on_failure: row.try_get("on_failure")?,
        unique_key: row.try_get("unique_key")?,
        idempotency_key: row.try_get("idempotency_key")?,
        answer: row.try_get::<_, Option<_>>("answer")?.map(json),
        relatives: relatives(client, id).await?,
        unserved: row.try_get("unserved")?,
        context: row.try_get::<_, Option<_>>("context")?.map(json),
        steps: steps(client, id).await?,
        attempts: attempts(client, id).await?,
    }))
}

/// The failed attempts of a job, in order.
///
/// # Errors
/// If the database cannot be asked.
pub async fn attempts(client: &impl GenericClient, id: JobId) -> Result<Vec<Attempt>> {
    let rows = client
        .ask(
            "select a.attempt, a.worker, w.name as worker_name, a.started_at, a.ended_at, a.code, a.error \
             from bugle.attempts a \
             left join bugle.workers w on w.id = a.worker \
             where a.job = $1 \
             order by a.claim",
            &[&id],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Attempt {
                attempt: row.try_get("attempt")?,
                worker: row.try_get("worker")?,
                worker_name: row.try_get("worker_name")?,
                started_at: row.try_get("started_at")?,
                ended_at: row.try_get("ended_at")?,
                code: row.try_get("code")?,
                error: row.try_get("error")?,
            })
        })
        .collect()
}
