//! Jobs: lists, and the details of one job.

use std::time::SystemTime;

use postgres_types::Json;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio_postgres::{GenericClient, Row};

use super::families::{Relatives, relatives};
use super::steps::{Step, steps};
use super::time::{as_text, as_text_if_any};
use crate::db::connect::{Parameter, Unnamed};
use crate::error::Result;
use crate::job::JobId;
use crate::state::{self, Reason, State};

/// Which jobs to list. All of them, if nothing is set.
///
/// ```no_run
/// # async fn example(client: tokio_postgres::Client) -> bugle::Result<()> {
/// use bugle::State;
/// use bugle::read::{self, Filter};
///
/// let dead_letters = Filter::new().command("send_mail").state(State::Failed).ended_since("2 hours");
/// for job in read::jobs(&client, &dead_letters, 100).await? {
///     println!("{} {}", job.id, job.last_error_code.unwrap_or_default());
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Filter {
    /// Only jobs of this queue.
    pub queue: Option<String>,
    /// Only jobs of this command.
    pub command: Option<String>,
    /// Only jobs in this state.
    pub state: Option<State>,
    /// Only jobs enqueued within this interval, in any format Postgres accepts: `2 hours`.
    pub since: Option<String>,
    /// Only jobs that completed, failed or were cancelled within this interval.
    pub ended_since: Option<String>,
    /// Only jobs that have not changed for this interval.
    pub older_than: Option<String>,
    /// Only jobs whose last error contains this text, ignoring case; with `%` it is a LIKE pattern.
    pub error_like: Option<String>,
    /// Only jobs whose last error has this code.
    pub code: Option<String>,
    /// Only jobs whose last error belongs to this group of `bugle.error_groups`.
    pub fingerprint: Option<String>,
    /// Only jobs that failed or were cancelled for this reason.
    pub reason: Option<Reason>,
    /// Only with a smaller id.
    pub before: Option<JobId>,
    /// Only jobs that this worker runs, or ran last.
    pub worker: Option<i64>,
}

impl Filter {
    /// All jobs.
    pub fn new() -> Self {
        Filter::default()
    }

    /// Only jobs of this queue.
    pub fn queue(mut self, queue: &str) -> Self {
        self.queue = Some(queue.to_string());
        self
    }

    /// Only jobs of this command.
    pub fn command(mut self, command: &str) -> Self {
        self.command = Some(command.to_string());
        self
    }

    /// Only jobs in this state.
    pub fn state(mut self, state: State) -> Self {
        self.state = Some(state);
        self
    }

    /// Only jobs enqueued within this interval, as Postgres reads it: `2 hours`.
    pub fn since(mut self, interval: &str) -> Self {
        self.since = Some(interval.to_string());
        self
    }

    /// Only jobs that completed, failed or were cancelled within this interval, as Postgres reads it: `2 hours`.
    pub fn ended_since(mut self, interval: &str) -> Self {
        self.ended_since = Some(interval.to_string());
        self
    }

    /// Only jobs that have not changed for this interval, as Postgres reads it: `10 minutes`.
    pub fn older_than(mut self, interval: &str) -> Self {
        self.older_than = Some(interval.to_string());
        self
    }

    /// Only jobs that this worker runs, or ran last: `bugle.workers.id`.
    pub fn worker(mut self, worker: i64) -> Self {
        self.worker = Some(worker);
        self
    }

    /// Only jobs whose latest error contains this text, in any case, or matches it as a pattern with `%`.
    pub fn error_like(mut self, text: &str) -> Self {
        self.error_like = Some(text.to_string());
        self
    }

    /// Only jobs whose latest error has this code.
    pub fn code(mut self, code: &str) -> Self {
        self.code = Some(code.to_string());
        self
    }

    /// Only jobs whose latest error belongs to this group: [`fingerprint`](super::ErrorGroup::fingerprint).
    pub fn fingerprint(mut self, fingerprint: &str) -> Self {
        self.fingerprint = Some(fingerprint.to_string());
        self
    }

    /// Only jobs that failed or were cancelled for this reason.
    pub fn reason(mut self, reason: Reason) -> Self {
        self.reason = Some(reason);
        self
    }

    /// Only jobs with a smaller id: the next page.
    pub fn before(mut self, id: JobId) -> Self {
        self.before = Some(id);
        self
    }

    /// The arguments of `bugle.matches` after the job, from `$first` on.
    pub(crate) fn arguments(first: usize) -> String {
        let types = [
            "text", "text", "text", "interval", "interval", "interval", "text", "text", "text", "text", "bigint",
        ];
        let arguments: Vec<String> = (types.iter().enumerate())
            .map(|(index, kind)| match *kind {
                "interval" => format!("${}::text::interval", first + index),
                kind => format!("${}::{kind}", first + index),
            })
            .collect();
        arguments.join(", ")
    }

    /// The state and the reason as the database spells them.
    pub(crate) fn state_and_reason(&self) -> (Option<&'static str>, Option<&'static str>) {
        (self.state.map(State::as_str), self.reason.map(Reason::as_str))
    }

    /// The values of [`arguments`](Filter::arguments).
    pub(crate) fn parameters<'a>(
        &'a self,
        (state, reason): &'a (Option<&'static str>, Option<&'static str>),
    ) -> [&'a dyn Parameter; 11] {
        [
            &self.queue,
            &self.command,
            state,
            &self.since,
            &self.ended_since,
            &self.older_than,
            &self.error_like,
            &self.code,
            &self.fingerprint,
            reason,
            &self.worker,
        ]
    }
}

/// A job in a list.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct JobSummary {
    /// `bugle.jobs.id`.
    pub id: JobId,
    /// Its state.
    pub state: State,
    /// Its command.
    pub command: String,
    /// Its queue.
    pub queue: String,
    /// Its priority; smaller numbers run first.
    pub priority: i32,
    /// The number of its latest attempt.
    pub attempt: i32,
    /// Why it failed or was cancelled.
    pub reason: Option<Reason>,
    /// The error code of its latest failure.
    pub last_error_code: Option<String>,
    /// The line of its latest error that says what went wrong.
    pub error_line: Option<String>,
    /// When it was enqueued.
    #[serde(serialize_with = "as_text")]
    pub created_at: SystemTime,
    /// When it is due.
    #[serde(serialize_with = "as_text")]
    pub run_at: SystemTime,
    /// When its latest attempt started.
    #[serde(serialize_with = "as_text_if_any")]
    pub started_at: Option<SystemTime>,
    /// When it reached its final state.
    #[serde(serialize_with = "as_text_if_any")]
    pub finished_at: Option<SystemTime>,
}

/// The columns of a job in a list.
pub(super) const LINE: &str = "j.id, j.state, j.command, j.queue, j.priority, j.attempt, j.reason, \
    j.last_error_code, bugle.error_line(j.last_error) as error_line, j.created_at, j.run_at, j.started_at, \
    j.finished_at";

/// The newest jobs. Scans backwards by id and stops at the limit.
///
/// # Errors
/// If the query fails.
pub async fn jobs(client: &impl GenericClient, filter: &Filter, limit: i64) -> Result<Vec<JobSummary>> {
    // an observer may not read whole rows
    let right = "select has_table_privilege('bugle.jobs', 'select')";
    let row = match client.ask_one(right, &[]).await?.try_get(0)? {
        true => "j",
        false => {
            "jsonb_populate_record(null::bugle.jobs, jsonb_build_object('queue', j.queue, 'command', j.command, \
             'state', j.state, 'created_at', j.created_at, 'finished_at', j.finished_at, 'updated_at', j.updated_at, \
             'last_error', j.last_error, 'last_error_code', j.last_error_code, 'reason', j.reason, \
             'worker', j.worker))"
        }
    };
    let sql = format!(
        "select {LINE} \
         from bugle.jobs j \
         where bugle.matches({row}, {}) \
         and ($12::bigint is null or j.id < $12) \
         order by j.id desc \
         limit $13::bigint",
        Filter::arguments(1)
    );
    let state = filter.state_and_reason();
    let mut values = filter.parameters(&state).to_vec();
    values.extend([&filter.before as &dyn Parameter, &limit]);
    let rows = client.ask(&sql, &values).await?;
    rows.iter().map(job_summary).collect()
}

/// How many jobs have the state, queue and worker of a filter, counted up to `most`. Its other conditions do not count.
///
/// # Errors
/// If the query fails.
pub async fn count_jobs(client: &impl GenericClient, filter: &Filter, most: i64) -> Result<i64> {
    let sql = "select count(*) \
               from (select from bugle.jobs j \
                 where ($1::text is null or j.state = $1) and ($2::text is null or j.queue = $2) \
                 and ($3::bigint is null or j.worker = $3) limit $4::bigint) j";
    let values: [&dyn Parameter; 4] = [&filter.state.map(State::as_str), &filter.queue, &filter.worker, &most];
    Ok(client.ask_one(sql, &values).await?.try_get(0)?)
}

/// What lists of jobs show only if it is asked for.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Further {
    /// The job.
    pub id: JobId,
    /// The worker that runs it, or ran it last.
    pub worker: Option<i64>,
    /// That worker's name.
    pub worker_name: Option<String>,
    /// Progress reported by its executor, in percent.
    pub progress: Option<f32>,
    /// Progress note of its executor.
    pub progress_note: Option<String>,
    /// The schedule that enqueued it.
    pub schedule: Option<String>,
    /// Its keys, each with its kind: `order acme`.
    pub keys: Vec<String>,
}

/// More about these jobs.
///
/// # Errors
/// If the query fails.
pub async fn further(client: &impl GenericClient, ids: &[JobId]) -> Result<Vec<Further>> {
    let rows = client
        .ask(
            "select j.id, j.worker, w.name, j.progress, j.progress_note, \
             (select r.schedule from bugle.schedule_runs r where r.job = j.id limit 1), \
             array_remove(array['unique ' || j.unique_key, 'idempotency ' || j.idempotency_key, \
               'order ' || j.order_key, 'limit ' || j.limit_key, 'fair ' || j.fair_key], null) \
             from bugle.jobs j left join bugle.workers w on w.id = j.worker \
             where j.id = any ($1)",
            &[&ids],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Further {
                id: row.try_get(0)?,
                worker: row.try_get(1)?,
                worker_name: row.try_get(2)?,
                progress: row.try_get(3)?,
                progress_note: row.try_get(4)?,
                schedule: row.try_get(5)?,
                keys: row.try_get(6)?,
            })
        })
        .collect()
}

/// The value at this path of the payload of each of these jobs, redacted, at most 200 characters of it. Empty if the
/// login may not read payloads.
///
/// # Errors
/// If the query fails.
pub async fn payload_values(
    client: &impl GenericClient,
    ids: &[JobId],
    path: &[String],
) -> Result<Vec<(JobId, Option<String>)>> {
    let right = "select has_column_privilege('bugle.jobs', 'payload', 'select')";
    if !client.ask_one(right, &[]).await?.try_get::<_, bool>(0)? {
        return Ok(Vec::new());
    }
    let sql = "select j.id, left(bugle.redacted(j.payload) #>> $2, 200) from bugle.jobs j where j.id = any ($1)";
    let rows = client.ask(sql, &[&ids, &path.to_vec()]).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

pub(super) fn job_summary(row: &Row) -> Result<JobSummary> {
    Ok(JobSummary {
        id: row.try_get("id")?,
        state: row.try_get("state")?,
        command: row.try_get("command")?,
        queue: row.try_get("queue")?,
        priority: row.try_get("priority")?,
        attempt: row.try_get("attempt")?,
        reason: state::reason(row, "reason")?,
        last_error_code: row.try_get("last_error_code")?,
        error_line: row.try_get("error_line")?,
        created_at: row.try_get("created_at")?,
        run_at: row.try_get("run_at")?,
        started_at: row.try_get("started_at")?,
        finished_at: row.try_get("finished_at")?,
    })
}

/// The details of a job, except the token for its answer.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Job {
    /// The columns of a list.
    #[serde(flatten)]
    pub summary: JobSummary,
    /// Its payload.
    pub payload: Box<RawValue>,
    /// Its headers.
    pub headers: Option<Box<RawValue>>,
    /// Its result.
    pub result: Option<Box<RawValue>>,
    /// The error message of its latest failure.
    pub last_error: Option<String>,
    /// How many times its worker was lost while it was running.
    pub crashes: i32,
    /// Its own maximum number of attempts, if set.
    pub max_attempts: Option<i32>,
    /// Its own retry policy, if set.
    pub retry_policy: Option<String>,
    /// Its attempt and the maximum: "1 of 16".
    #[serde(rename = "attempts")]
    pub attempt_in_words: String,
    /// The retry policy in force: its own, its command's, or the default.
    #[serde(rename = "policy")]
    pub policy_in_force: String,
    /// The login that enqueued it.
    pub enqueued_by: Option<String>,
    /// The application it was enqueued from.
    pub enqueued_from: Option<String>,
    /// Its own delay before the first retry, if set.
    pub retry_delay_seconds: Option<f64>,
    /// Its own time limit for each attempt, if set.
    pub timeout_seconds: Option<f64>,
    /// The time by which it must have started.
    #[serde(serialize_with = "as_text_if_any")]
    pub deadline: Option<SystemTime>,
    /// The time until which it waits for an answer.
    #[serde(serialize_with = "as_text_if_any")]
    pub answer_by: Option<SystemTime>,
    /// Progress reported by its executor, in percent.
    pub progress: Option<f32>,
    /// Progress note of its executor.
    pub progress_note: Option<String>,
    /// The worker of its latest attempt.
    pub worker: Option<i64>,
    /// That worker's name.
    pub worker_name: Option<String>,
    /// That worker's host.
    pub worker_host: Option<String>,
    /// When its first attempt started.
    #[serde(serialize_with = "as_text_if_any")]
    pub first_started_at: Option<SystemTime>,
    /// The job whose executor spawned it.
    pub parent: Option<JobId>,
    /// The number of jobs it still waits for.
    pub outstanding: Option<i32>,
    /// The command to enqueue when it completes.
    pub on_success: Option<String>,
    /// The command to enqueue when it fails for good.
    pub on_failure: Option<String>,
    /// Unique among the live jobs of its command.
    pub unique_key: Option<String>,
    /// Unique among the jobs of its command until the key expires.
    pub idempotency_key: Option<String>,
    /// Of the jobs of its queue with this key, one runs at a time, in order.
    pub order_key: Option<String>,
    /// The limits per key of its queue count the jobs with this key.
    pub limit_key: Option<String>,
    /// The keys of its queue take turns.
    pub fair_key: Option<String>,
    /// The answer it was resumed with.
    pub answer: Option<Box<RawValue>>,
    /// Its dependencies, children and dependants.
    #[serde(flatten)]
    pub relatives: Relatives,
    /// Whether it is ready and no live worker serves its command in its queue.
    pub unserved: bool,
    /// The merged outputs of the finished steps of a chain.
    pub context: Option<Box<RawValue>>,
    /// Its steps, in order.
    pub steps: Vec<Step>,
    /// What happened to it, in order.
    pub timeline: Vec<Event>,
}

/// Something that happened to a job: a row of `bugle.timeline`.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Event {
    /// When it happened.
    #[serde(serialize_with = "as_text")]
    pub at: SystemTime,
    /// What happened: `enqueued`, `started`, the outcome of an attempt, `step_` with the state of a step, the verb of
    /// an operator, or a final state.
    pub event: String,
    /// The number of the attempt, if the event belongs to one.
    pub attempt: Option<i32>,
    /// The step, if the event belongs to one.
    pub step: Option<String>,
    /// The worker.
    pub worker: Option<i64>,
    /// That worker's name.
    pub worker_name: Option<String>,
    /// The error code.
    pub code: Option<String>,
    /// The error message, the states before and after a change, or the reason for the final state.
    pub message: Option<String>,
    /// The login that made a change.
    pub who: Option<String>,
    /// The application the change was made with.
    pub application: Option<String>,
}

/// The details of a job, live or in history.
///
/// For `unserved`, paused workers count as serving: `bugle.unserved` does the same for all queues and commands at once,
/// and `bugle.explain` names a paused worker.
///
/// # Errors
/// If the query fails.
pub async fn job(client: &impl GenericClient, id: JobId) -> Result<Option<Job>> {
    // a login that may not call it sees everything but documents
    let right = "select has_function_privilege('bugle.job(bigint)', 'execute')";
    let sees_documents: bool = client.ask_one(right, &[]).await?.try_get(0)?;
    let (source, documents) = match sees_documents {
        true => (
            "bugle.job($1) j",
            "bugle.redacted(j.payload) as payload, bugle.redacted(j.headers) as headers, bugle.redacted(j.result) as \
             result, bugle.redacted(j.context) as context, bugle.redacted(j.answer) as answer",
        ),
        false => (
            "(select $1::bigint as id) i join bugle.jobs j on j.id = i.id",
            "'\"[withheld]\"'::jsonb as payload, null::jsonb as headers, null::jsonb as result, \
             null::jsonb as context, null::jsonb as answer",
        ),
    };
    let sql = format!(
        "select j.id, j.state, j.command, j.queue, j.priority, j.attempt, j.reason, j.last_error_code, \
         bugle.error_line(j.last_error) as error_line, j.created_at, j.run_at, j.started_at, j.finished_at, \
         {documents}, j.last_error, j.crashes, j.max_attempts, j.retry_policy, \
         r.attempt as attempt_in_words, r.policy as policy_in_force, \
         j.enqueued_by, nullif(j.enqueued_from, '') as enqueued_from, \
         extract(epoch from j.retry_delay)::float8 as retry_delay_seconds, \
         extract(epoch from j.timeout)::float8 as timeout_seconds, j.deadline, j.answer_by, \
         j.progress, j.progress_note, j.worker, w.name as worker_name, w.host as worker_host, \
         j.first_started_at, \
         j.parent, j.outstanding, j.on_success, j.on_failure, j.unique_key, j.idempotency_key, \
         j.order_key, j.limit_key, j.fair_key, \
         j.state = 'ready' and not exists ( \
           select from bugle.workers s \
           where s.state in ('alive', 'paused') and j.queue = any (s.queues) \
           and coalesce(j.steps[coalesce(j.step, 0) + 1:], array[j.command]) <@ s.commands) as unserved \
         from {source} cross join bugle.retries_of(j.id) r \
         left join bugle.workers w on w.id = j.worker"
    );
    let row = client.ask_opt(&sql, &[&id]).await?;
    let Some(row) = row else { return Ok(None) };
    let json = |value: Json<Box<RawValue>>| value.0;
    Ok(Some(Job {
        summary: job_summary(&row)?,
        payload: json(row.try_get("payload")?),
        headers: row.try_get::<_, Option<_>>("headers")?.map(json),
        result: row.try_get::<_, Option<_>>("result")?.map(json),
        last_error: row.try_get("last_error")?,
        crashes: row.try_get("crashes")?,
        max_attempts: row.try_get("max_attempts")?,
        retry_policy: row.try_get("retry_policy")?,
        attempt_in_words: row.try_get("attempt_in_words")?,
        policy_in_force: row.try_get("policy_in_force")?,
        enqueued_by: row.try_get("enqueued_by")?,
        enqueued_from: row.try_get("enqueued_from")?,
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
        order_key: row.try_get("order_key")?,
        limit_key: row.try_get("limit_key")?,
        fair_key: row.try_get("fair_key")?,
        answer: row.try_get::<_, Option<_>>("answer")?.map(json),
        relatives: relatives(client, id).await?,
        unserved: row.try_get("unserved")?,
        context: row.try_get::<_, Option<_>>("context")?.map(json),
        steps: steps(client, id).await?,
        timeline: timeline(client, id).await?,
    }))
}

/// The JSON of a job as people read it, each with its heading: payload, headers, context, answer, result.
///
/// # Errors
/// If the database cannot be asked.
pub async fn documents(client: &impl GenericClient, id: JobId) -> Result<Vec<(&'static str, String)>> {
    const HEADINGS: [&str; 5] = ["Payload", "Headers", "Context", "Answer", "Result"];
    let row = client
        .ask_opt(
            "select jsonb_pretty(bugle.redacted(j.payload)), jsonb_pretty(bugle.redacted(j.headers)), \
             jsonb_pretty(bugle.redacted(j.context)), jsonb_pretty(bugle.redacted(j.answer)), \
             jsonb_pretty(bugle.redacted(j.result)) \
             from bugle.job($1) j",
            &[&id],
        )
        .await?;
    let Some(row) = row else { return Ok(Vec::new()) };
    let mut documents = Vec::new();
    for (at, heading) in HEADINGS.into_iter().enumerate() {
        if let Some(text) = row.try_get(at)? {
            documents.push((heading, text));
        }
    }
    Ok(documents)
}

/// What happened to a job, in order; nothing if there is no such job.
///
/// # Errors
/// If the query fails.
pub async fn timeline(client: &impl GenericClient, id: JobId) -> Result<Vec<Event>> {
    let rows = client
        .ask(
            "select t.at, t.event, t.attempt, t.step, t.worker, t.worker_name, t.code, t.message, t.who, t.application \
             from bugle.timeline($1) t",
            &[&id],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Event {
                at: row.try_get("at")?,
                event: row.try_get("event")?,
                attempt: row.try_get("attempt")?,
                step: row.try_get("step")?,
                worker: row.try_get("worker")?,
                worker_name: row.try_get("worker_name")?,
                code: row.try_get("code")?,
                message: row.try_get("message")?,
                who: row.try_get("who")?,
                application: row.try_get("application")?,
            })
        })
        .collect()
}
