//! Awaiting the result of a job. Thousands of waiters share one question: nothing is told by completions, so that nobody
//! who does not wait pays for those who do.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use deadpool_postgres::Pool;
use postgres_types::Json;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::watch;

use crate::error::{Error, Result};
use crate::job::JobId;

/// The pause between two questions: short at first, longer while nothing ends.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(250);

/// How a job ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// `completed`, `failed` or `cancelled`; `gone` if it was removed, or its history is not kept.
    pub state: String,
    /// Why, if it did not complete.
    pub reason: Option<String>,
    /// What its executor returned.
    pub result: Option<Box<RawValue>>,
    /// The last error, if there was one.
    pub error: Option<String>,
}

impl Ended {
    /// The result as `T`, or the failure as an error.
    ///
    /// # Errors
    /// If the job did not complete, or its result is not a `T`.
    pub fn into_result<T: DeserializeOwned>(self) -> Result<T> {
        if self.state != "completed" {
            let reason = self.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            let error = self.error.map(|error| format!(": {error}")).unwrap_or_default();
            return Err(Error::new(format!("the job is {}{reason}{error}", self.state)));
        }
        let result = self.result.as_deref().map_or("null", RawValue::get);
        serde_json::from_str(result).map_err(|error| Error::new(format!("the result does not fit: {error}")))
    }
}

/// Everyone in this process who waits for jobs of one database.
#[derive(Default)]
pub(crate) struct Waiters {
    waiting: Mutex<HashMap<JobId, watch::Sender<Option<Ended>>>>,
}

impl Waiters {
    /// Wait for the end of a job.
    pub(crate) async fn wait(self: &Arc<Self>, pool: &Pool, id: JobId) -> Result<Ended> {
        let mut ended = {
            let mut waiting = self.waiting.lock().unwrap();
            // the first to wait asks for all
            if waiting.is_empty() {
                tokio::spawn(ask(Arc::downgrade(self), pool.clone()));
            }
            waiting.entry(id).or_insert_with(|| watch::channel(None).0).subscribe()
        };
        match ended.wait_for(Option::is_some).await {
            Ok(ended) => Ok(ended.clone().expect("just seen")),
            Err(_) => Err(Error::new("the client was dropped while somebody waited")),
        }
    }

    /// The ids somebody still waits for.
    fn ids(&self) -> Vec<JobId> {
        let mut waiting = self.waiting.lock().unwrap();
        waiting.retain(|_, sender| sender.receiver_count() > 0);
        waiting.keys().copied().collect()
    }

    fn tell(&self, id: JobId, ended: Ended) {
        if let Some(sender) = self.waiting.lock().unwrap().remove(&id) {
            let _ = sender.send(Some(ended));
        }
    }
}

/// Ask for all until nobody waits any more. An outage of the database only makes them wait longer.
async fn ask(waiters: Weak<Waiters>, pool: Pool) {
    let mut pause = SHORTEST;
    loop {
        let Some(waiters) = waiters.upgrade() else { return };
        let ids = waiters.ids();
        if ids.is_empty() {
            return;
        }
        match endings(&pool, &ids).await {
            Ok(endings) if !endings.is_empty() => {
                pause = SHORTEST;
                endings.into_iter().for_each(|(id, ended)| waiters.tell(id, ended));
            }
            _ => pause = (pause * 2).min(LONGEST),
        }
        drop(waiters);
        tokio::time::sleep(pause).await;
    }
}

async fn endings(pool: &Pool, ids: &[JobId]) -> Result<Vec<(JobId, Ended)>> {
    let rows = pool
        .get()
        .await?
        .query(
            "select id, state, reason, result, last_error from bugle.endings($1)",
            &[&ids],
        )
        .await?;
    rows.iter()
        .map(|row| {
            let ended = Ended {
                state: row.try_get(1)?,
                reason: row.try_get(2)?,
                result: row.try_get::<_, Option<Json<Box<RawValue>>>>(3)?.map(|json| json.0),
                error: row.try_get(4)?,
            };
            Ok((row.try_get(0)?, ended))
        })
        .collect()
}
