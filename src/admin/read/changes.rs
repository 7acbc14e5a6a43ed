//! What operators did.

use std::time::SystemTime;

use serde::Serialize;
use tokio_postgres::GenericClient;

use super::time::as_text;
use crate::db::connect::Unnamed;
use crate::error::Result;
use crate::job::JobId;

/// A row of `bugle.changes`.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Change {
    /// Rises with time.
    pub id: i64,
    /// When.
    #[serde(serialize_with = "as_text")]
    pub changed_at: SystemTime,
    /// What was done.
    pub verb: String,
    /// The job that was changed, if any.
    pub job: Option<JobId>,
    /// The position of the step that was changed, if any.
    pub step: Option<i32>,
    /// The queue that was changed, if any.
    pub queue: Option<String>,
    /// The command that was changed, if any.
    pub command: Option<String>,
    /// The worker that was changed, if any.
    pub worker: Option<i64>,
    /// The schedule that was changed, if any.
    pub schedule: Option<String>,
    /// What it was before.
    pub from_state: Option<String>,
    /// What it is after.
    pub to_state: Option<String>,
    /// The login that did it.
    pub who: String,
    /// The `application_name` of its session.
    pub application: Option<String>,
    /// Why.
    pub note: Option<String>,
}

/// Which changes to list. Nothing set: all.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ChangeFilter {
    /// Only those of this job.
    pub job: Option<JobId>,
    /// Only those of this login.
    pub who: Option<String>,
    /// Only this verb.
    pub verb: Option<String>,
    /// Only those with a smaller id.
    pub before: Option<i64>,
}

impl ChangeFilter {
    /// All changes.
    pub fn new() -> Self {
        ChangeFilter::default()
    }

    /// Only those of this job.
    pub fn job(mut self, job: JobId) -> Self {
        self.job = Some(job);
        self
    }

    /// Only those of this login.
    pub fn who(mut self, login: &str) -> Self {
        self.who = Some(login.to_owned());
        self
    }

    /// Only this verb.
    pub fn verb(mut self, verb: &str) -> Self {
        self.verb = Some(verb.to_owned());
        self
    }

    /// Only those with a smaller id: the next page.
    pub fn before(mut self, id: i64) -> Self {
        self.before = Some(id);
        self
    }
}

/// The newest changes, the newest first.
///
/// # Errors
/// If the database cannot be asked.
pub async fn changes(client: &impl GenericClient, filter: &ChangeFilter, limit: i64) -> Result<Vec<Change>> {
    let rows = client
        .ask(
            "select c.id, c.changed_at, c.verb, c.job, c.step, c.queue, c.command, c.worker, c.schedule, \
             c.from_state, c.to_state, c.who::text as who, c.application, c.note \
             from bugle.changes c \
             where ($1::bigint is null or c.job = $1) \
             and ($2::text is null or c.who = $2) \
             and ($3::text is null or c.verb = $3) \
             and ($4::bigint is null or c.id < $4) \
             order by c.id desc \
             limit $5",
            &[&filter.job, &filter.who, &filter.verb, &filter.before, &limit],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Change {
                id: row.try_get("id")?,
                changed_at: row.try_get("changed_at")?,
                verb: row.try_get("verb")?,
                job: row.try_get("job")?,
                step: row.try_get("step")?,
                queue: row.try_get("queue")?,
                command: row.try_get("command")?,
                worker: row.try_get("worker")?,
                schedule: row.try_get("schedule")?,
                from_state: row.try_get("from_state")?,
                to_state: row.try_get("to_state")?,
                who: row.try_get("who")?,
                application: row.try_get("application")?,
                note: row.try_get("note")?,
            })
        })
        .collect()
}
