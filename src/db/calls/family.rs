//! Calls about related jobs: workflows, children, and clients that await an outcome.

use std::collections::BTreeMap;

use postgres_types::Json;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio_postgres::{Client, GenericClient, Row};

use crate::client::result::Ended;
use crate::db::connect::{Session, Unnamed};
use crate::error::{Error, Result};
use crate::execute::family::DependencyResult;
use crate::job::{HeldJob, JobId};
use crate::state;
use crate::worker::Identity;

#[derive(Debug, Serialize)]
struct Jobs<'a> {
    jobs: &'a BTreeMap<&'a str, Box<RawValue>>,
}

/// Names and ids, in the order of the ids.
pub async fn enqueue_workflow(
    client: &impl GenericClient,
    jobs: &BTreeMap<&str, Box<RawValue>>,
) -> Result<Vec<(String, JobId)>> {
    let rows = client
        .ask(
            "select name, id from bugle.enqueue_workflow($1)",
            &[&Json(Jobs { jobs })],
        )
        .await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

pub async fn enqueue_job(client: &impl GenericClient, job: &RawValue) -> Result<JobId> {
    let row = client.ask_one("select bugle.enqueue_job($1)", &[&Json(job)]).await?;
    Ok(row.get(0))
}

pub async fn spawn(client: &impl GenericClient, me: Identity, held: HeldJob, children: &RawValue) -> Result<()> {
    let rows = client
        .ask(
            "select verdict from bugle.spawn($1, $2, row($3, $4)::bugle.held_job, $5)",
            &[&me.worker, &me.nonce, &held.id, &held.claim, &Json(children)],
        )
        .await?;
    match rows.first() {
        None => Ok(()),
        Some(row) => Err(not_held(held, row.get(0))),
    }
}

fn not_held(held: HeldJob, verdict: &str) -> Error {
    Error::new(format!(
        "job {} is no longer held under claim {}: {verdict}",
        held.id, held.claim
    ))
    .with_hint("Another worker runs this job now.")
}

/// The children of a job, or its dependencies.
pub async fn dependency_results(
    client: &impl GenericClient,
    me: Identity,
    held: HeldJob,
    child: bool,
) -> Result<Vec<DependencyResult>> {
    let rows = client
        .ask(
            "select k.verdict, k.job, k.name, k.state, k.reason, k.result, k.error \
             from bugle.dependency_results($1, $2, row($3, $4)::bugle.held_job) k \
             where k.verdict is not null or k.child = $5",
            &[&me.worker, &me.nonce, &held.id, &held.claim, &child],
        )
        .await?;
    rows.iter()
        .map(|row| match row.try_get(0)? {
            Some(verdict) => Err(not_held(held, verdict)),
            None => Ok(DependencyResult {
                id: row.try_get(1)?,
                name: row.try_get(2)?,
                state: state::unless_gone(row, 3)?,
                reason: state::reason(row, 4)?,
                result: row.try_get::<_, Option<Json<Box<RawValue>>>>(5)?.map(|json| json.0),
                error: row.try_get(6)?,
            }),
        })
        .collect()
}

/// The jobs among these that have ended.
pub async fn endings(client: &Client, ids: &[JobId]) -> Result<Vec<(JobId, Ended)>> {
    let sql = "select id, state, reason, result, last_error from bugle.endings($1)";
    client.ask(sql, &[&ids]).await?.iter().map(ended).collect()
}

/// The same, and subscribe this session to the outcomes of jobs in their queues.
pub async fn attend(session: &Session, ids: &[JobId]) -> Result<Vec<(JobId, Ended)>> {
    let sql = "select id, state, reason, result, last_error from bugle.attend($1)";
    session.query(sql, &[&ids]).await?.iter().map(ended).collect()
}

fn ended(row: &Row) -> Result<(JobId, Ended)> {
    let ended = Ended {
        state: state::unless_gone(row, 1)?,
        reason: state::reason(row, 2)?,
        result: row.try_get::<_, Option<Json<Box<RawValue>>>>(3)?.map(|json| json.0),
        error: row.try_get(4)?,
    };
    Ok((row.try_get(0)?, ended))
}
