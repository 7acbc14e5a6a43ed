//! The heartbeat of every worker, and the calls of the keeper.

use std::time::Duration;

use super::{Verdict, seconds};
use crate::db::connect::Session;
use crate::error::Result;
use crate::job::HeldJob;
use crate::worker::Identity;

/// The reply to a heartbeat.
pub struct Pulse {
    /// `keeper`, `deputy` or `none`.
    pub role: String,
    /// When to send the next one.
    pub again: Duration,
    /// When the next job is due; for the keeper and the deputy.
    pub next_due: Option<Duration>,
    /// Jobs that this worker runs but no longer holds.
    pub fenced: Vec<Verdict>,
    /// Queues that have a job for this worker.
    pub has_work: Vec<String>,
    /// Whether history partitions need maintenance.
    pub upkeep: bool,
    /// Errors of maintenance.
    pub troubles: Vec<String>,
}

pub async fn heartbeat(session: &Session, me: Identity, running: &[HeldJob], scan: bool) -> Result<Pulse> {
    let rows = session
        .query(
            "select role, again_seconds, next_due_seconds, fenced, has_work, upkeep, troubles \
             from bugle.heartbeat($1, $2, $3, $4)",
            &[&me.worker, &me.nonce, &running, &scan],
        )
        .await?;
    let row = &rows[0];
    Ok(Pulse {
        role: row.get(0),
        again: seconds(row.get(1)),
        next_due: row.get::<_, Option<f64>>(2).map(seconds),
        fenced: row.get(3),
        has_work: row.get(4),
        upkeep: row.get(5),
        troubles: row.get(6),
    })
}

/// What keeps a worker from starting jobs, and which of its jobs run beyond their time limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Condition {
    /// What it is short of.
    pub short_of: Option<&'static str>,
    /// Other databases of the process have taken the slots it would use.
    pub lacks_slots: bool,
    /// The ids of jobs that are overdue.
    pub overdue: Vec<i64>,
}

/// Report the condition of this worker.
pub async fn note_condition(session: &Session, me: Identity, condition: &Condition) -> Result<()> {
    session
        .query(
            "select bugle.note_condition($1, $2, $3, $4, $5)",
            &[
                &me.worker,
                &me.nonce,
                &condition.short_of,
                &condition.lacks_slots,
                &condition.overdue,
            ],
        )
        .await?;
    Ok(())
}

/// The jobs that this worker holds but does not list as running.
pub async fn unnamed(session: &Session, me: Identity, running: &[HeldJob]) -> Result<Vec<HeldJob>> {
    let rows = session
        .query(
            "select id, claim from bugle.unnamed($1, $2, $3)",
            &[&me.worker, &me.nonce, &running],
        )
        .await?;
    let held = |row: &tokio_postgres::Row| HeldJob {
        id: row.get(0),
        claim: row.get(1),
    };
    Ok(rows.iter().map(held).collect())
}

/// Make at most `limit` due jobs ready and fail expired ones. Returns how many became ready, and when the next is due.
pub async fn promote(session: &Session, limit: i32) -> Result<(i32, Option<Duration>)> {
    session.query("select bugle.expire()", &[]).await?;
    let rows = session
        .query("select promoted, next_due_seconds from bugle.promote($1)", &[&limit])
        .await?;
    Ok((rows[0].get(0), rows[0].get::<_, Option<f64>>(1).map(seconds)))
}

/// Whether an operator has ordered this worker to drain.
pub async fn should_drain(session: &Session, me: Identity) -> Result<bool> {
    let rows = session
        .query("select bugle.should_drain($1, $2)", &[&me.worker, &me.nonce])
        .await?;
    Ok(rows[0].get(0))
}

/// The jobs among these that this worker no longer holds.
pub async fn not_held(session: &Session, me: Identity, jobs: &[HeldJob]) -> Result<Vec<Verdict>> {
    let rows = session
        .query(
            "select h from bugle.not_held($1, $2, $3) h",
            &[&me.worker, &me.nonce, &jobs],
        )
        .await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// One step of history maintenance. Returns its description.
pub async fn upkeep(session: &Session) -> Result<Option<String>> {
    let rows = session.query("select bugle.upkeep()", &[]).await?;
    Ok(rows[0].get(0))
}
