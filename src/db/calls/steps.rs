//! Calls about the steps of a running job.

use std::time::Duration;

use postgres_types::{Json, ToSql};
use serde_json::value::RawValue;
use tokio_postgres::{GenericClient, Row};

use super::seconds;
use crate::db::connect::{Connection, Unnamed};
use crate::error::{Error, Result};
use crate::execute::context::Settled;
use crate::execute::executor::{Failure, Outcome, outcome_of_condition};
use crate::job::HeldJob;
use crate::worker::Identity;

/// The reply when a worker starts or ends a step.
#[derive(Debug)]
pub struct NextStep {
    /// `repeated`, `gone` or `fenced`; `None` on success.
    pub verdict: Option<String>,
    /// The current step; `None` if the job has ended or this worker no longer holds it.
    pub position: Option<i32>,
    /// The merged outputs of the previous steps.
    pub context: Option<Box<RawValue>>,
    /// The time limit of its command, if any.
    pub timeout: Option<Duration>,
    /// The default time limit.
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

/// A step and its attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Try {
    pub position: i32,
    /// The number of the attempt of the step in this attempt of the job, from 1.
    pub number: i32,
}

pub async fn start_step(connection: &Connection, me: Identity, job: HeldJob, number: i32) -> Result<NextStep> {
    let sql = "select s.verdict, s.position, s.context, s.timeout_seconds, s.default_timeout_seconds \
        from bugle.start_step($1, $2, $3, $4) s";
    NextStep::from_row(&query_one(connection, sql, &[&me.worker, &me.nonce, &job, &number]).await?)
}

const FINISH: &str = "select s.verdict, s.position, s.context, s.timeout_seconds, s.default_timeout_seconds \
    from bugle.finish_step($1, $2, $3, $4, $5, $6, $7) s";

pub async fn finish_step(
    connection: &Connection,
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

/// The same inside a transaction of the executor. If the output matches a condition of the step's command, the failed
/// try or the waiting is committed with it.
pub async fn finish_step_in(
    transaction: &impl GenericClient,
    me: Identity,
    job: HeldJob,
    step: Try,
    output: Option<&RawValue>,
) -> Result<Settled> {
    let row = transaction
        .ask_one(
            "select s.verdict from bugle.finish_step($1, $2, row($3, $4)::bugle.held_job, $5, $6, $7, $8) s",
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
    let Some(verdict) = row.try_get::<_, Option<String>>(0)? else {
        return Ok(Settled::Completed);
    };
    match outcome_of_condition(&verdict) {
        Some(Outcome::Fail(failure)) => retry_step_in(transaction, me, job, step, &failure).await,
        Some(_) => {
            let sql = "select from bugle.wait($1, $2, row($3, $4)::bugle.held_job, null, null)";
            transaction
                .ask(sql, &[&me.worker, &me.nonce, &job.id, &job.claim])
                .await?;
            Ok(Settled::Waiting)
        }
        None => Err(Error::new(format!(
            "step {} of job {} is no longer held under claim {}: {verdict}",
            step.position, job.id, job.claim
        ))
        .with_hint("Roll back: another worker runs this job now.")),
    }
}

async fn retry_step_in(
    transaction: &impl GenericClient,
    me: Identity,
    job: HeldJob,
    step: Try,
    failure: &Failure,
) -> Result<Settled> {
    let sql = "select s.delay_seconds \
        from bugle.retry_step($1, $2, row($3, $4)::bugle.held_job, $5, $6, $7, $8, $9, null) s";
    let row = transaction
        .ask_one(
            sql,
            &[
                &me.worker,
                &me.nonce,
                &job.id,
                &job.claim,
                &step.position,
                &step.number,
                &failure.clean_message(),
                &failure.clean_code(),
                &failure.retryable,
            ],
        )
        .await?;
    Ok(Settled::Retried(row.try_get::<_, Option<f64>>(0)?.map(seconds)))
}

/// A verdict, or the delay before the next attempt; `None` if there is no next attempt.
pub async fn retry_step(
    connection: &Connection,
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

/// The state of a step created by an executor.
pub struct Begun {
    /// The verdict, if it was not started.
    pub verdict: Option<String>,
    /// Its stored output, if it was done before.
    pub done: Option<Box<RawValue>>,
}

pub async fn begin_step(connection: &Connection, me: Identity, job: HeldJob, name: &str, within: i32) -> Result<Begun> {
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

/// Done with this output, or failed.
pub async fn end_step(
    connection: &Connection,
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

async fn query_one(connection: &Connection, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Row> {
    let statement = connection.prepare_cached(sql).await?;
    Ok(connection.query_one(&statement, parameters).await?)
}
