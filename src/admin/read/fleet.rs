//! Queues and the workers that serve them.

use std::time::SystemTime;

use serde::Serialize;
use serde_json::Value;
use tokio_postgres::GenericClient;

use super::time::{as_text, as_text_if_any};
use crate::db::connect::Unnamed;
use crate::error::Result;
use crate::job::JobId;
use crate::state::WorkerState;

/// Statistics of a queue: a row of `bugle.queue_stats`.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Queue {
    /// Its name.
    pub queue: String,
    /// Ready jobs.
    pub ready: i64,
    /// Running jobs.
    pub running: i64,
    /// Jobs that are not due yet.
    pub scheduled: i64,
    /// Jobs that wait for their next attempt.
    pub retrying: i64,
    /// Jobs that wait for an answer or for other jobs.
    pub waiting: i64,
    /// Paused jobs.
    pub paused: i64,
    /// Time since the oldest ready job was due.
    pub oldest_ready_seconds: Option<f64>,
    /// When the next scheduled or retrying job is due.
    #[serde(serialize_with = "as_text_if_any")]
    pub due_next: Option<SystemTime>,
    /// Jobs completed in the last minute.
    pub completed_last_minute: i64,
    /// Attempts that failed in the last minute, whether they are retried or not.
    pub failed_last_minute: i64,
    /// Live workers that serve it.
    pub workers: i64,
    /// Jobs that these workers can run at once.
    pub slots: i64,
    /// Commands with ready jobs that no live worker serves.
    pub unserved_commands: Vec<String>,
    /// Whether some of the counts are estimates, because there are many jobs.
    pub is_estimate: bool,
    /// When it was paused, if it is.
    #[serde(serialize_with = "as_text_if_any")]
    pub paused_since: Option<SystemTime>,
    /// A description of its limits.
    pub limits: Option<String>,
}

/// Every queue that has jobs, workers or limits, or is paused, by name.
///
/// # Errors
/// If the query fails.
pub async fn queues(client: &impl GenericClient) -> Result<Vec<Queue>> {
    let rows = client
        .ask(
            "select q.queue, q.ready, q.running, q.scheduled, q.retrying, q.waiting, q.paused, \
             extract(epoch from q.oldest_ready_age)::float8 as oldest_ready_seconds, q.due_next, \
             q.completed_last_minute, q.failed_last_minute, q.workers, q.slots::bigint as slots, \
             coalesce(q.unserved_commands, '{}') as unserved_commands, q.is_estimate, \
             q.paused_since, q.limits \
             from bugle.queue_stats q \
             order by q.queue",
            &[],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Queue {
                queue: row.try_get("queue")?,
                ready: row.try_get("ready")?,
                running: row.try_get("running")?,
                scheduled: row.try_get("scheduled")?,
                retrying: row.try_get("retrying")?,
                waiting: row.try_get("waiting")?,
                paused: row.try_get("paused")?,
                oldest_ready_seconds: row.try_get("oldest_ready_seconds")?,
                due_next: row.try_get("due_next")?,
                completed_last_minute: row.try_get("completed_last_minute")?,
                failed_last_minute: row.try_get("failed_last_minute")?,
                workers: row.try_get("workers")?,
                slots: row.try_get("slots")?,
                unserved_commands: row.try_get("unserved_commands")?,
                is_estimate: row.try_get("is_estimate")?,
                paused_since: row.try_get("paused_since")?,
                limits: row.try_get("limits")?,
            })
        })
        .collect()
}

/// A worker process: a row of `bugle.workers`.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct WorkerLine {
    /// Its id.
    pub id: i64,
    /// The name it was started with.
    pub name: String,
    /// Its host.
    pub host: Option<String>,
    /// Its process id on that host.
    pub process_id: Option<i32>,
    /// The version of Bugle it runs.
    pub version: Option<String>,
    /// Whether it serves its queues.
    pub state: WorkerState,
    /// The queues it serves.
    pub queues: Vec<String>,
    /// The number of slots for each queue.
    pub slots: Vec<i32>,
    /// The commands it can execute.
    pub commands: Vec<String>,
    /// Its hosts: an object for each, with its name, how many processes it should have and how many are ready, what it
    /// announced, and the last error if one is missing.
    pub hosts: Value,
    /// What it is short of, so that it starts fewer jobs: open files, memory, connections …
    pub short_of: Option<String>,
    /// Jobs it runs whose time limit has passed and whose executors do not stop.
    pub overdue: Vec<JobId>,
    /// The number of running jobs at its last heartbeat.
    pub running: i32,
    /// Attempts that completed since it started.
    pub completed: i64,
    /// Attempts that failed since it started, whether they are retried or not.
    pub failed: i64,
    /// Whether it runs maintenance.
    pub is_keeper: bool,
    /// Whether it takes over maintenance if the keeper is lost.
    pub is_deputy: bool,
    /// When it started.
    #[serde(serialize_with = "as_text")]
    pub started_at: SystemTime,
    /// The time of its last heartbeat.
    #[serde(serialize_with = "as_text")]
    pub seen_at: SystemTime,
}

/// The workers that have not stopped, or all known workers.
///
/// # Errors
/// If the query fails.
pub async fn workers(client: &impl GenericClient, all: bool) -> Result<Vec<WorkerLine>> {
    let rows = client
        .ask(
            "select w.id, w.name, w.host, w.process_id, w.version, w.state, w.queues, w.slots, w.commands, w.hosts, \
             w.short_of, w.overdue, w.running, w.completed, w.failed, \
             coalesce(w.is_keeper, false) as is_keeper, \
             coalesce(w.is_deputy, false) as is_deputy, w.started_at, w.seen_at \
             from bugle.workers w \
             where $1 or w.state <> 'stopped' \
             order by w.id",
            &[&all],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(WorkerLine {
                id: row.try_get("id")?,
                name: row.try_get("name")?,
                host: row.try_get("host")?,
                process_id: row.try_get("process_id")?,
                version: row.try_get("version")?,
                state: row.try_get("state")?,
                queues: row.try_get("queues")?,
                slots: row.try_get("slots")?,
                commands: row.try_get("commands")?,
                hosts: row.try_get("hosts")?,
                short_of: row.try_get("short_of")?,
                overdue: row.try_get("overdue")?,
                running: row.try_get("running")?,
                completed: row.try_get("completed")?,
                failed: row.try_get("failed")?,
                is_keeper: row.try_get("is_keeper")?,
                is_deputy: row.try_get("is_deputy")?,
                started_at: row.try_get("started_at")?,
                seen_at: row.try_get("seen_at")?,
            })
        })
        .collect()
}

/// A job that no live worker serves, and the names that are served.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct NotServed {
    /// Its command, or the first of its steps that is not served.
    pub command: String,
    /// Its queue.
    pub queue: String,
    /// Whether a live worker serves the command, in another queue.
    pub is_served_elsewhere: bool,
    /// The number of live workers.
    pub workers: i64,
    /// The commands that live workers serve, and those that have a row in `bugle.commands`.
    pub commands: Vec<String>,
    /// The queues that live workers serve, and those that have a row in `bugle.queues`.
    pub queues: Vec<String>,
}

/// Why a live job would wait indefinitely: `None` if a worker, paused or not, serves all that is left of it, or if it
/// has ended.
///
/// # Errors
/// If the query fails.
pub async fn not_served(client: &impl GenericClient, id: JobId) -> Result<Option<NotServed>> {
    let row = client
        .ask_opt(
            "with live as (select w.queues, w.commands from bugle.workers w where w.state in ('alive', 'paused')) \
             select c.name as command, j.queue, \
             exists (select from live w where c.name = any (w.commands)) as elsewhere, \
             (select count(*) from live) as workers, \
             array(select unnest(w.commands) from live w union select k.name from bugle.commands k order by 1) as \
             commands, \
             array(select unnest(w.queues) from live w union select q.name from bugle.queues q order by 1) as queues \
             from bugle.job($1) j \
             cross join unnest(coalesce(j.steps[coalesce(j.step, 0) + 1:], array[j.command])) \
             with ordinality c (name, position) \
             where j.state not in ('running', 'completed', 'failed', 'cancelled') \
             and not exists (select from live w where j.queue = any (w.queues) and c.name = any (w.commands)) \
             order by c.position limit 1",
            &[&id],
        )
        .await?;
    row.map(|row| {
        Ok(NotServed {
            command: row.try_get("command")?,
            queue: row.try_get("queue")?,
            is_served_elsewhere: row.try_get("elsewhere")?,
            workers: row.try_get("workers")?,
            commands: row.try_get("commands")?,
            queues: row.try_get("queues")?,
        })
    })
    .transpose()
}
