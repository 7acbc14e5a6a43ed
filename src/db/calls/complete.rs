//! Calls that complete jobs.

use postgres_types::{Json, ToSql};
use serde_json::value::RawValue;
use tokio_postgres::{Client, GenericClient, Statement};

use super::{Verdict, verdicts};
use crate::db::connect::{Connection, Session, Unnamed};
use crate::error::{Error, Result};
use crate::execute::context::Settled;
use crate::job::{Address, HeldJob, JobId};
use crate::worker::Identity;

/// A completed job with its result.
#[derive(Debug, Clone, ToSql)]
#[postgres(name = "finished_job")]
pub struct FinishedJob<'a> {
    pub id: JobId,
    pub claim: i64,
    pub result: Option<Json<&'a RawValue>>,
}

const COMPLETE: &str = "select id, claim, verdict from bugle.complete($1, $2, $3)";

pub async fn complete(session: &Session, me: Identity, jobs: &[FinishedJob<'_>]) -> Result<Vec<Verdict>> {
    session
        .query(COMPLETE, &[&me.worker, &me.nonce, &jobs])
        .await
        .map(verdicts)
}

/// The same for jobs whose row addresses are known, in the order of their ids.
pub async fn complete_at(session: &Session, me: Identity, jobs: &[(FinishedJob<'_>, Address)]) -> Result<Vec<Verdict>> {
    let ids: Vec<JobId> = jobs.iter().map(|(job, _)| job.id).collect();
    let claims: Vec<i64> = jobs.iter().map(|(job, _)| job.claim).collect();
    let results: Vec<&Option<Json<&RawValue>>> = jobs.iter().map(|(job, _)| &job.result).collect();
    let addresses: Vec<Address> = jobs.iter().map(|(_, address)| *address).collect();
    session
        .query(
            "select id, claim, verdict from bugle.complete_at($1, $2, $3, $4, $5, $6)",
            &[&me.worker, &me.nonce, &ids, &claims, &results, &addresses],
        )
        .await
        .map(verdicts)
}

/// The statement of [`complete_all`], prepared once in the life of this connection.
pub async fn prepare_complete_all(connection: &Connection) -> Result<Statement> {
    let call = "select id, claim, verdict from bugle.complete_all($1, $2, $3, $4, $5, $6)";
    connection.prepare_cached(call).await
}

/// Complete all of these jobs, or fail, in a transaction of their executor. In the order of their ids.
pub async fn complete_all(
    client: &Client,
    prepared: &Statement,
    me: Identity,
    jobs: &[(FinishedJob<'_>, Option<Address>)],
) -> Result<Vec<Verdict>> {
    let ids: Vec<JobId> = jobs.iter().map(|(job, _)| job.id).collect();
    let claims: Vec<i64> = jobs.iter().map(|(job, _)| job.claim).collect();
    let results: Vec<&Option<Json<&RawValue>>> = jobs.iter().map(|(job, _)| &job.result).collect();
    let addresses: Vec<Option<Address>> = jobs.iter().map(|(_, address)| *address).collect();
    let rows = client
        .query(prepared, &[&me.worker, &me.nonce, &ids, &claims, &results, &addresses])
        .await?;
    Ok(verdicts(rows))
}

pub async fn complete_in(
    transaction: &impl GenericClient,
    me: Identity,
    held: HeldJob,
    result: Option<&RawValue>,
) -> Result<Settled> {
    let rows = transaction
        .ask(
            "select id, claim, verdict from bugle.complete($1, $2, array[row($3, $4, $5)::bugle.finished_job])",
            &[&me.worker, &me.nonce, &held.id, &held.claim, &result.map(Json)],
        )
        .await?;
    let verdicts = verdicts(rows);
    let verdict = verdicts.first();
    settled(verdict).ok_or_else(|| {
        let verdict = verdict.map(|verdict| &*verdict.verdict).unwrap_or_default();
        Error::new(format!(
            "job {} is no longer held under claim {}: {verdict}",
            held.id, held.claim
        ))
        .with_hint("Roll back: another worker runs this job now.")
    })
}

/// What this verdict on a completion says that became of the job; none if it was not accepted.
pub fn settled(verdict: Option<&Verdict>) -> Option<Settled> {
    match verdict.map(|verdict| &*verdict.verdict) {
        None => Some(Settled::Completed),
        // accepted: the condition decides what becomes of the job
        Some("retry_when") => Some(Settled::Retried(None)),
        Some("wait_when") => Some(Settled::Waiting),
        Some(_) => None,
    }
}
