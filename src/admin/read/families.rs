//! Relations between jobs: dependencies, dependants, children and workflows.

use serde::Serialize;
use tokio_postgres::GenericClient;

use crate::db::connect::Unnamed;
use crate::error::Result;
use crate::job::JobId;
use crate::state::{self, State};

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
    pub reason: Option<String>,
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
    let rows = client
        .ask(
            "select r.job, r.name, r.state, r.reason, r.child from bugle.results_of($1) r",
            &[&id],
        )
        .await?;
    for row in rows {
        let relative = Relative {
            id: row.try_get(0)?,
            name: row.try_get(1)?,
            state: state::unless_gone(&row, 2)?,
            reason: row.try_get(3)?,
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
    pub reason: Option<String>,
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
                reason: row.try_get(4)?,
                after: row.try_get(5)?,
            })
        })
        .collect()
}
