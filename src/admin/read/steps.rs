//! The steps of a job: of its chain, or created by its executor.

use std::time::SystemTime;

use postgres_types::Json;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio_postgres::GenericClient;

use super::time::as_text_if_any;
use crate::db::connect::Unnamed;
use crate::error::Result;
use crate::job::JobId;
use crate::state::StepState;

/// A step and its state.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Step {
    /// Its position, from 1.
    pub position: i32,
    /// The command, or the name its executor gave it.
    pub name: String,
    /// How far it got.
    pub state: StepState,
    /// The number of attempts.
    pub attempts: i32,
    /// When its first attempt started.
    #[serde(serialize_with = "as_text_if_any")]
    pub first_started_at: Option<SystemTime>,
    /// When its latest attempt started.
    #[serde(serialize_with = "as_text_if_any")]
    pub last_started_at: Option<SystemTime>,
    /// When its latest attempt ended.
    #[serde(serialize_with = "as_text_if_any")]
    pub last_ended_at: Option<SystemTime>,
    /// The error code of its latest failure.
    pub code: Option<String>,
    /// The error message of its latest failure.
    pub error: Option<String>,
    /// Its output.
    pub output: Option<Box<RawValue>>,
    /// The worker of its latest attempt.
    pub worker: Option<i64>,
    /// That worker's name.
    pub worker_name: Option<String>,
    /// For a step created by an executor: the step of the chain it belongs to; 0 if the job is not a chain.
    pub within: Option<i32>,
}

/// The steps of a job, in order.
///
/// # Errors
/// If the query fails.
pub async fn steps(client: &impl GenericClient, id: JobId) -> Result<Vec<Step>> {
    let right = "select has_column_privilege('bugle.steps', 'output', 'select')";
    let output = match client.ask_one(right, &[]).await?.try_get(0)? {
        true => "bugle.redacted(s.output)",
        false => "null::jsonb",
    };
    let sql = format!(
        "select s.position, s.name, s.state, s.attempts, s.first_started_at, s.last_started_at, s.last_ended_at, \
         s.code, s.error, {output} as output, s.worker, s.worker_name, s.within \
         from bugle.steps s \
         where s.job = $1 \
         order by s.position"
    );
    let rows = client.ask(&sql, &[&id]).await?;
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
