//! The steps of a job, of a chain or made by its executor.

use std::time::SystemTime;

use postgres_types::Json;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio_postgres::GenericClient;

use super::time::as_text_if_any;
use crate::db::connect::Unnamed;
use crate::error::Result;
use crate::job::JobId;

/// A step, and what became of it.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    /// Its place, from 1.
    pub position: i32,
    /// The command, or the name its executor gave it.
    pub name: String,
    /// `pending`, `running`, `retrying`, `waiting`, `interrupted`, `done`, `skipped` or `failed`.
    pub state: String,
    /// How often it was tried.
    pub attempts: i32,
    /// When it was first begun.
    #[serde(serialize_with = "as_text_if_any")]
    pub first_started_at: Option<SystemTime>,
    /// When it was last begun.
    #[serde(serialize_with = "as_text_if_any")]
    pub last_started_at: Option<SystemTime>,
    /// When its last try ended.
    #[serde(serialize_with = "as_text_if_any")]
    pub last_ended_at: Option<SystemTime>,
    /// The kind of its latest failure.
    pub code: Option<String>,
    /// What its latest failure said.
    pub error: Option<String>,
    /// Its output.
    pub output: Option<Box<RawValue>>,
    /// The worker that last began it.
    pub worker: Option<i64>,
    /// That worker's name.
    pub worker_name: Option<String>,
    /// Of a step that an executor made: in which step of the chain; 0 if the job is no chain.
    pub within: Option<i32>,
}

/// The steps of a job, in order.
///
/// # Errors
/// If the database cannot be asked.
pub async fn steps(client: &impl GenericClient, id: JobId) -> Result<Vec<Step>> {
    let rows = client
        .ask(
            "select s.position, s.name, s.state, s.attempts, s.first_started_at, s.last_started_at, s.last_ended_at, \
             s.code, s.error, s.output, s.worker, s.worker_name, s.within \
             from bugle.steps s \
             where s.job = $1 \
             order by s.position",
            &[&id],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Step {
                position: row.try_get("position")?,
                name: row.try_get("name")?,
                state: row.try_get("state")?,
                attempts: row.try_get("attempts")?,
                first_started_at: row.try_get("first_started_at")?,
                last_started_at: row.try_get("last_started_at")?,
                last_ended_at: row.try_get("last_ended_at")?,
                code: row.try_get("code")?,
                error: row.try_get("error")?,
                output: row
                    .try_get::<_, Option<Json<Box<RawValue>>>>("output")?
                    .map(|json| json.0),
                worker: row.try_get("worker")?,
                worker_name: row.try_get("worker_name")?,
                within: row.try_get("within")?,
            })
        })
        .collect()
}
