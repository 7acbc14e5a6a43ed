//! Calls for sleeping and for background scans.

use super::Position;
use crate::db::connect::Session;
use crate::error::Result;
use crate::worker::Identity;

/// The reply of `bugle.arm` for a queue.
pub struct Armed {
    pub queue: String,
    pub mode: String,
    pub has_work: bool,
}

/// Try to take the bells of these queues. The last scan of each starts after its cursor, if it has one.
pub async fn arm(
    session: &Session,
    me: Identity,
    queues: &[String],
    cursors: &[Option<Position>],
) -> Result<Vec<Armed>> {
    let rows = session
        .query(
            "select queue, mode, has_work from bugle.arm($1, $2, $3)",
            &[&me.worker, &queues, &cursors],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|row| Armed {
            queue: row.get(0),
            mode: row.get(1),
            has_work: row.get(2),
        })
        .collect())
}

/// The result of a scan from the start of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    pub count: usize,
    pub first: Option<Position>,
}

/// The jobs a claim from the start of a queue would find. `None` if a cursor cannot be used in this queue.
pub async fn scan_ready(session: &Session, me: Identity, queue: &str, most: i32) -> Result<Option<Found>> {
    let rows = session
        .query(
            "select found, first from bugle.scan_ready($1, $2, $3)",
            &[&me.worker, &queue, &most],
        )
        .await?;
    Ok(rows.first().map(|row| Found {
        count: row.get::<_, i32>(0) as usize,
        first: row.get(1),
    }))
}
