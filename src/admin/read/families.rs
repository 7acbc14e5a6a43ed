//! Relations between jobs: dependencies, dependants, children and workflows.

use std::time::SystemTime;

use serde::{Serialize, Serializer};
use tokio_postgres::GenericClient;

use super::time::{as_text, as_text_if_any};
use crate::db::connect::Unnamed;
use crate::error::Result;
use crate::job::JobId;
use crate::state::{self, Reason, State};

/// A job that another depends on, without its result.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Relative {
    /// `bugle.jobs.id`.
    pub id: JobId,
    /// Its name in the workflow, if it has one.
    pub name: Option<String>,
    /// Its state; none if it was deleted.
    #[serde(serialize_with = "state::serialize_or_gone")]
    pub state: Option<State>,
    /// Why it failed or was cancelled.
    pub reason: Option<Reason>,
}

/// The dependencies, children and dependants of a job.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct Relatives {
    /// The jobs it depends on.
    pub dependencies: Vec<Relative>,
    /// The jobs its executor spawned.
    pub children: Vec<Relative>,
    /// The ids of the jobs that depend on it.
    pub dependants: Vec<JobId>,
}

/// The relatives of a job.
///
/// # Errors
/// If the query fails.
pub async fn relatives(client: &impl GenericClient, id: JobId) -> Result<Relatives> {
    let mut relatives = Relatives::default();
    // it has the results, which an observer may not read
    let right = "select has_function_privilege('bugle.results_of(bigint)', 'execute')";
    let sql = match client.ask_one(right, &[]).await?.try_get(0)? {
        true => "select r.job, r.name, r.state, r.reason, r.child from bugle.results_of($1) r",
        false => {
            "select d.needs, d.name, coalesce(d.state, j.state, 'gone'), d.reason, d.child \
             from bugle.dependencies d \
             left join bugle.jobs_live j on j.id = d.needs and d.state is null \
             where d.job = $1 \
             order by d.needs"
        }
    };
    for row in client.ask(sql, &[&id]).await? {
        let relative = Relative {
            id: row.try_get(0)?,
            name: row.try_get(1)?,
            state: state::unless_gone(&row, 2)?,
            reason: state::reason(&row, 3)?,
        };
        match row.try_get(4)? {
            true => relatives.children.push(relative),
            false => relatives.dependencies.push(relative),
        }
    }
    let rows = client
        .ask(
            "select d.job from bugle.dependencies d where d.needs = $1 and not d.child order by d.job",
            &[&id],
        )
        .await?;
    for row in rows {
        relatives.dependants.push(row.try_get(0)?);
    }
    Ok(relatives)
}

/// A job of a workflow.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct WorkflowJob {
    /// Its name in the workflow.
    pub name: String,
    /// `bugle.jobs.id`.
    pub id: JobId,
    /// Its command; `None` if it was deleted by retention.
    pub command: Option<String>,
    /// Its state; none if it was deleted.
    #[serde(serialize_with = "state::serialize_or_gone")]
    pub state: Option<State>,
    /// Why it failed or was cancelled.
    pub reason: Option<Reason>,
    /// What it depends on: names, or ids of jobs outside the workflow.
    pub after: Vec<String>,
}

/// All jobs of the workflow that a job belongs to. Empty if it does not belong to one.
///
/// # Errors
/// If the query fails.
pub async fn workflow(client: &impl GenericClient, id: JobId) -> Result<Vec<WorkflowJob>> {
    let rows = client
        .ask(
            "select w.name, w.id, w.command, w.state, w.reason, w.after from bugle.workflow($1) w",
            &[&id],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(WorkflowJob {
                name: row.try_get(0)?,
                id: row.try_get(1)?,
                command: row.try_get(2)?,
                state: state::unless_gone(row, 3)?,
                reason: state::reason(row, 4)?,
                after: row.try_get(5)?,
            })
        })
        .collect()
}

/// When a job ran, and how it went: for graphs and waterfalls.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Run {
    /// `bugle.jobs.id`.
    pub id: JobId,
    /// Its command; none if the job was deleted.
    pub command: Option<String>,
    /// Its state; none if it was deleted.
    pub state: Option<State>,
    /// Why it failed or was cancelled.
    pub reason: Option<Reason>,
    /// When it was enqueued.
    pub created_at: Option<SystemTime>,
    /// When its latest attempt started.
    pub started_at: Option<SystemTime>,
    /// When it ended.
    pub finished_at: Option<SystemTime>,
    /// The line of its latest error that says what went wrong.
    pub error_line: Option<String>,
}

/// How these jobs ran, in their order.
///
/// # Errors
/// If the query fails.
pub async fn runs(client: &impl GenericClient, ids: &[JobId]) -> Result<Vec<Run>> {
    let rows = client
        .ask(
            "select i.id, j.command, coalesce(j.state, 'gone'), j.reason, j.created_at, \
               case when j.state in ('running', 'completed', 'failed', 'cancelled') then j.started_at end, \
               j.finished_at, bugle.error_line(j.last_error) \
             from unnest($1::bigint[]) with ordinality i (id, place) \
               left join lateral ( \
                 select j.command, j.state, j.reason, j.created_at, j.started_at, j.finished_at, j.last_error \
                 from bugle.jobs j where j.id = i.id limit 1) j on true \
             order by i.place",
            &[&ids],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Run {
                id: row.try_get(0)?,
                command: row.try_get(1)?,
                state: state::unless_gone(row, 2)?,
                reason: state::reason(row, 3)?,
                created_at: row.try_get(4)?,
                started_at: row.try_get(5)?,
                finished_at: row.try_get(6)?,
                error_line: row.try_get(7)?,
            })
        })
        .collect()
}

/// The jobs of a workflow that start even if this one, which they need, fails: (needed, started).
///
/// # Errors
/// If the query fails.
pub async fn tolerant_edges(client: &impl GenericClient, ids: &[JobId]) -> Result<Vec<(JobId, JobId)>> {
    let rows = client
        .ask(
            "select d.needs, d.job from bugle.dependencies d \
             where d.job = any ($1) and not d.child and d.on_failure = 'run'",
            &[&ids],
        )
        .await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// A workflow in a list.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct WorkflowLine {
    /// The smallest id of its jobs.
    pub id: JobId,
    /// When it was enqueued.
    #[serde(serialize_with = "as_text")]
    pub created_at: SystemTime,
    /// When its last job ended so far.
    #[serde(serialize_with = "as_text_if_any")]
    pub ended_at: Option<SystemTime>,
    /// How many jobs it has; at most [`WORKFLOW_JOBS`] are counted.
    pub jobs: i64,
    /// The names of its first jobs.
    pub names: Vec<String>,
    /// How many jobs are in each state; `gone` for those that were deleted.
    #[serde(serialize_with = "as_object")]
    pub states: Vec<(String, i64)>,
}

fn as_object<S: Serializer>(states: &[(String, i64)], to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_map(states.iter().map(|(state, jobs)| (state, jobs)))
}

/// How many jobs of each workflow are looked at for a list.
pub const WORKFLOW_JOBS: i64 = 60;

/// Workflows, the newest first.
///
/// # Errors
/// If the query fails.
pub async fn workflows(client: &impl GenericClient, before: Option<JobId>, limit: i64) -> Result<Vec<WorkflowLine>> {
    let rows = client
        .ask(
            "with recursive newest (id, place) as ( \
               select (select max(w.workflow) from bugle.workflow_jobs w where w.workflow < $1), 1 \
               union all \
               select (select max(w.workflow) from bugle.workflow_jobs w where w.workflow < n.id), n.place + 1 \
               from newest n \
               where n.id is not null and n.place < $2), \
             members as materialized ( \
               select n.id, m.job, m.name, m.created_at, coalesce(j.state, 'gone') as state, j.finished_at \
               from newest n \
                 cross join lateral ( \
                   select w.job, w.name, w.created_at from bugle.workflow_jobs w where w.workflow = n.id \
                   order by w.job limit $3) m \
                 left join lateral ( \
                   select j.state, j.finished_at from bugle.jobs j where j.id = m.job limit 1) j on true \
               where n.id is not null), \
             counted as (select m.id, m.state, count(*) as jobs from members m group by m.id, m.state) \
             select m.id, min(m.created_at), max(m.finished_at), count(*), \
               (array_agg(m.name order by m.job))[1:12], \
               (select array_agg(c.state order by c.state) from counted c where c.id = m.id), \
               (select array_agg(c.jobs order by c.state) from counted c where c.id = m.id) \
             from members m \
             group by m.id \
             order by m.id desc",
            &[&before.unwrap_or(i64::MAX), &limit, &WORKFLOW_JOBS],
        )
        .await?;
    rows.iter()
        .map(|row| {
            let states: Vec<String> = row.try_get(5)?;
            let counts: Vec<i64> = row.try_get(6)?;
            Ok(WorkflowLine {
                id: row.try_get(0)?,
                created_at: row.try_get(1)?,
                ended_at: row.try_get(2)?,
                jobs: row.try_get(3)?,
                names: row.try_get(4)?,
                states: states.into_iter().zip(counts).collect(),
            })
        })
        .collect()
}

/// The workflow that a job belongs to, and its name there.
///
/// # Errors
/// If the query fails.
pub async fn workflow_of(client: &impl GenericClient, id: JobId) -> Result<Option<(JobId, String)>> {
    let sql = "select w.workflow, w.name from bugle.workflow_jobs w where w.job = $1";
    let row = client.ask_opt(sql, &[&id]).await?;
    row.map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).transpose()
}
