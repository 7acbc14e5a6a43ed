//! What a worker says when it goes to sleep, and what its scouts ask.

use crate::db::connect::Session;
use crate::error::Result;
use crate::worker::Identity;
use crate::worker::lane::Scouted;

/// What `bugle.arm` answered for a queue.
pub struct Armed {
    pub queue: String,
    pub mode: String,
    pub has_work: bool,
}

/// Go to sleep on these queues. Of each the last look goes only behind the cursor, if it has one.
pub async fn arm(
    session: &Session,
    me: Identity,
    queues: &[String],
    cursors: &[Option<(i32, i64)>],
) -> Result<Vec<Armed>> {
    let priorities: Vec<Option<i32>> = cursors.iter().map(|cursor| cursor.map(|c| c.0)).collect();
    let ids: Vec<Option<i64>> = cursors.iter().map(|cursor| cursor.map(|c| c.1)).collect();
    let rows = session
        .query(
            "select queue, mode, has_work from bugle.arm($1, $2, $3, $4)",
            &[&me.worker, &queues, &priorities, &ids],
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

/// Which jobs a look from the beginning of a queue would find. None where a cursor would be of no use.
pub async fn scout(session: &Session, me: Identity, queue: &str, most: i32) -> Result<Option<Scouted>> {
    let rows = session
        .query(
            "select found, priority, id from bugle.scout($1, $2, $3)",
            &[&me.worker, &queue, &most],
        )
        .await?;
    Ok(rows.first().map(|row| Scouted {
        found: row.get::<_, i32>(0) as usize,
        first: (
            row.get::<_, Option<i32>>(1).unwrap_or_default(),
            row.get::<_, Option<i64>>(2).unwrap_or_default(),
        ),
    }))
}
