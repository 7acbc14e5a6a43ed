//! What jobs have to do with each other: what one waits for, who waits for it, and the workflow it belongs to.

use serde::Serialize;
use tokio_postgres::GenericClient;

use crate::db::connect::Unnamed;
use crate::error::Result;
use crate::job::JobId;

/// A job that another depends on, without its result.
#[derive(Debug, Clone, Serialize)]
pub struct Relative {
    /// `bugle.jobs.id`.
    pub id: JobId,
    /// What the workflow calls it, if it has a name.
    pub name: Option<String>,
    /// Its state.
    pub state: String,
    /// Why it ended so.
    pub reason: Option<String>,
}

/// Those a job waits or waited for, and those that wait for it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Relatives {
    /// What it came after.
    pub dependencies: Vec<Relative>,
    /// What its executor spawned.
    pub children: Vec<Relative>,
    /// The ids of those that came after it.
    pub dependants: Vec<JobId>,
}

/// The relatives of a job.
///
/// # Errors
/// If the database cannot be asked.
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
            state: row.try_get(2)?,
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
pub struct WorkflowJob {
    /// What the workflow calls it.
    pub name: String,
    /// `bugle.jobs.id`.
    pub id: JobId,
    /// What to do; none if its history is gone.
    pub command: Option<String>,
    /// Its state; `gone` if its history is.
    pub state: String,
    /// Why it ended so.
    pub reason: Option<String>,
    /// What it comes after: names, or ids of jobs outside of the workflow.
    pub after: Vec<String>,
}

/// All jobs of the workflow that a job belongs to. Empty if it belongs to none.
///
/// # Errors
/// If the database cannot be asked.
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
                state: row.try_get(3)?,
                reason: row.try_get(4)?,
                after: row.try_get(5)?,
            })
        })
        .collect()
}
