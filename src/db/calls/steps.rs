//! What is said about the steps of a job while it runs.

use std::time::Duration;

use deadpool_postgres::Object;
use postgres_types::{Json, ToSql};
use serde_json::value::RawValue;
use tokio_postgres::{GenericClient, Row};

use super::seconds;
use crate::db::connect::Unnamed;
use crate::error::{Error, Result};
use crate::execute::executor::Failure;
use crate::job::HeldJob;
use crate::worker::Identity;

/// What a worker is told when it starts or ends a step.
#[derive(Debug)]
pub struct NextStep {
    /// `repeated`, `gone` or `fenced`, if it was not simply done.
    pub verdict: Option<String>,
    /// The step that runs now; none if the job is not this worker's any more, or has ended.
    pub position: Option<i32>,
    /// What the steps before it have put out.
    pub context: Option<Box<RawValue>>,
    /// How long it may take, if its command says so.
    pub timeout: Option<Duration>,
    /// How long it may take if nothing else says so.
    pub default_timeout: Option<Duration>,
}

impl NextStep {
    fn from_row(row: &Row) -> Result<NextStep> {
        Ok(NextStep {
            verdict: row.try_get(0)?,
            position: row.try_get(1)?,
            context: row.try_get::<_, Option<Json<Box<RawValue>>>>(2)?.map(|json| json.0),
            timeout: row.try_get::<_, Option<f64>>(3)?.map(seconds),
            default_timeout: row.try_get::<_, Option<f64>>(4)?.map(seconds),
        })
    }
}

/// Which try of which step is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Try {
    pub position: i32,
    /// 1 for the first in this attempt of the job.
    pub number: i32,
}

pub async fn start_step(connection: &Object, me: Identity, job: HeldJob, number: i32) -> Result<NextStep> {
    let sql = "select s.verdict, s.position, s.context, s.timeout_seconds, s.default_timeout_seconds \
        from bugle.start_step($1, $2, $3, $4) s";
    NextStep::from_row(&query_one(connection, sql, &[&me.worker, &me.nonce, &job, &number]).await?)
}

const FINISH: &str = "select s.verdict, s.position, s.context, s.timeout_seconds, s.default_timeout_seconds \
    from bugle.finish_step($1, $2, $3, $4, $5, $6, $7) s";

pub async fn finish_step(
    connection: &Object,
    me: Identity,
    job: HeldJob,
    step: Try,
    output: Option<&RawValue>,
    skipped: bool,
) -> Result<NextStep> {
    let output = output.map(Json);
    let parameters: [&(dyn ToSql + Sync); 7] = [
        &me.worker,
        &me.nonce,
        &job,
        &step.position,
        &step.number,
        &output,
        &skipped,
    ];
    NextStep::from_row(&query_one(connection, FINISH, &parameters).await?)
}

/// The same inside a transaction of the executor's own.
pub async fn finish_step_in(
    transaction: &impl GenericClient,
    me: Identity,
    job: HeldJob,
    step: Try,
    output: Option<&RawValue>,
) -> Result<()> {
    let row = transaction
        .ask_one(
            "select s.verdict, s.position, s.context, s.timeout_seconds, s.default_timeout_seconds \
             from bugle.finish_step($1, $2, row($3, $4)::bugle.held_job, $5, $6, $7, $8) s",
            &[
                &me.worker,
                &me.nonce,
                &job.id,
                &job.claim,
                &step.position,
                &step.number,
                &output.map(Json),
                &false,
            ],
        )
        .await?;
    let next = NextStep::from_row(&row)?;
    match next.verdict {
        None => Ok(()),
        Some(verdict) => Err(Error::new(format!(
            "step {} of job {} is not held under claim {} any more: {verdict}",
            step.position, job.id, job.claim
        ))
        .hint("Roll back: another worker runs this job now.")),
    }
}

/// A verdict, or how long to wait before the next try; none if there is none.
pub async fn retry_step(
    connection: &Object,
    me: Identity,
    job: HeldJob,
    step: Try,
    failure: &Failure,
) -> Result<(Option<String>, Option<Duration>)> {
    let row = query_one(
        connection,
        "select s.verdict, s.delay_seconds from bugle.retry_step($1, $2, $3, $4, $5, $6, $7, $8, $9) s",
        &[
            &me.worker,
            &me.nonce,
            &job,
            &step.position,
            &step.number,
            &failure.clean_message(),
            &failure.clean_code(),
            &failure.retryable,
            &failure.retry_after.map(|delay| delay.as_secs_f64()),
        ],
    )
    .await?;
    Ok((row.try_get(0)?, row.try_get::<_, Option<f64>>(1)?.map(seconds)))
}

/// What is known about a step that an executor makes.
pub struct Begun {
    /// If it was not begun: why.
    pub verdict: Option<String>,
    /// What it put out, if it was done before.
    pub done: Option<Box<RawValue>>,
}

pub async fn begin_step(connection: &Object, me: Identity, job: HeldJob, name: &str, within: i32) -> Result<Begun> {
    let row = query_one(
        connection,
        "select s.verdict, s.is_done, s.output from bugle.begin_step($1, $2, $3, $4, $5) s",
        &[&me.worker, &me.nonce, &job, &name, &within],
    )
    .await?;
    let output = row.try_get::<_, Option<Json<Box<RawValue>>>>(2)?;
    let output = output.map_or_else(|| RawValue::NULL.to_owned(), |json| json.0);
    Ok(Begun {
        verdict: row.try_get(0)?,
        done: row.try_get::<_, bool>(1)?.then_some(output),
    })
}

/// Done, with what it put out; or failed.
pub async fn end_step(
    connection: &Object,
    me: Identity,
    job: HeldJob,
    name: &str,
    within: i32,
    outcome: Result<&RawValue, &Failure>,
) -> Result<Option<String>> {
    let row = query_one(
        connection,
        "select bugle.end_step($1, $2, $3, $4, $5, $6, $7, $8)",
        &[
            &me.worker,
            &me.nonce,
            &job,
            &name,
            &within,
            &outcome.ok().map(Json),
            &outcome.err().map(Failure::clean_message),
            &outcome.err().and_then(Failure::clean_code),
        ],
    )
    .await?;
    Ok(row.try_get(0)?)
}

async fn query_one(connection: &Object, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Row> {
    let statement = connection.prepare_cached(sql).await?;
    Ok(connection.query_one(&statement, parameters).await?)
}
