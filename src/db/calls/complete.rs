//! Calls that complete jobs.

use postgres_types::{Json, ToSql};
use serde_json::value::RawValue;
use tokio_postgres::GenericClient;

use super::{Verdict, verdicts};
use crate::db::connect::{Session, Unnamed};
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
    match verdicts(rows).first() {
        None => Ok(Settled::Completed),
        // accepted: the condition decides what becomes of the job
        Some(verdict) if verdict.verdict == "retry_when" => Ok(Settled::Retried(None)),
        Some(verdict) if verdict.verdict == "wait_when" => Ok(Settled::Waiting),
        Some(verdict) => Err(Error::new(format!(
            "job {} is no longer held under claim {}: {}",
            held.id, held.claim, verdict.verdict
        ))
        .with_hint("Roll back: another worker runs this job now.")),
    }
}
