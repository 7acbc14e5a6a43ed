//! Enqueueing from Rust: the same INSERT everyone else does, with a builder for its columns.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use postgres_types::Json;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio_postgres::GenericClient;

use crate::answer::{Ended, Waiters};
use crate::connect;
use crate::error::{Error, Result};
use crate::job::JobId;

/// A job to be enqueued. Only the command is required.
#[derive(Debug, Clone)]
pub struct NewJob {
    command: String,
    payload: Result<Box<RawValue>, String>,
    queue: Option<String>,
    priority: Option<i32>,
    run_at: Option<SystemTime>,
    delay: Option<Duration>,
    deadline: Option<SystemTime>,
    timeout: Option<Duration>,
    max_attempts: Option<i32>,
    retry_policy: Option<String>,
    headers: BTreeMap<String, Value>,
    unique_key: Option<String>,
    on_conflict: Option<OnConflict>,
    idempotency_key: Option<String>,
    idempotency_ttl: Option<Duration>,
}

/// What becomes of a live job that has the [unique key](NewJob::unique_key) of a new one. A running job is always left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnConflict {
    /// It stays as it is.
    Keep,
    /// It gets the payload of the new one.
    Replace,
    /// It gets the time of the new one.
    Move,
}

impl OnConflict {
    /// The word for it in SQL.
    pub fn as_str(self) -> &'static str {
        match self {
            OnConflict::Keep => "keep",
            OnConflict::Replace => "replace",
            OnConflict::Move => "move",
        }
    }
}

impl FromStr for OnConflict {
    type Err = Error;

    fn from_str(text: &str) -> Result<OnConflict> {
        [OnConflict::Keep, OnConflict::Replace, OnConflict::Move]
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or_else(|| Error::new("expected keep, replace or move"))
    }
}

/// The answer to [`NewJob::enqueue_once`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enqueued {
    /// The job that is there now.
    pub id: JobId,
    /// Whether it is new; if not, it was there under the same key.
    pub created: bool,
}

impl NewJob {
    /// Carry out `command` with this payload.
    pub fn new(command: &str, payload: impl Serialize) -> Self {
        NewJob {
            command: command.to_string(),
            payload: serde_json::value::to_raw_value(&payload).map_err(|error| error.to_string()),
            queue: None,
            priority: None,
            run_at: None,
            delay: None,
            deadline: None,
            timeout: None,
            max_attempts: None,
            retry_policy: None,
            headers: BTreeMap::new(),
            unique_key: None,
            on_conflict: None,
            idempotency_key: None,
            idempotency_ttl: None,
        }
    }

    /// The lane to wait in, instead of `default`.
    pub fn queue(mut self, queue: &str) -> Self {
        self.queue = Some(queue.to_string());
        self
    }

    /// Smaller runs sooner; 0 if not set.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Not before this time.
    pub fn run_at(mut self, at: SystemTime) -> Self {
        self.run_at = Some(at);
        self
    }

    /// Not before this much later, by the database's clock.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// Not after this time: if it has not started by then it has failed.
    pub fn deadline(mut self, at: SystemTime) -> Self {
        self.deadline = Some(at);
        self
    }

    /// How long one attempt may take.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// How often it is tried, whatever its policy says.
    pub fn max_attempts(mut self, attempts: i32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// A row of `bugle.retry_policies`.
    pub fn retry_policy(mut self, policy: &str) -> Self {
        self.retry_policy = Some(policy.to_string());
        self
    }

    /// A name and a value that travel with the job.
    pub fn header(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.headers.insert(name.to_string(), value.into());
        self
    }

    /// At most one live job of the command has this key: if there is one, it is the answer.
    pub fn unique_key(mut self, key: &str) -> Self {
        self.unique_key = Some(key.to_string());
        self
    }

    /// What becomes of the live job that has the unique key, instead of what its command says, or [`OnConflict::Keep`].
    pub fn on_conflict(mut self, mode: OnConflict) -> Self {
        self.on_conflict = Some(mode);
        self
    }

    /// One job of the command has this key until it expires, even if that job has ended: if there is one, it is the answer.
    /// The id of the message or the request that causes the job is a good one.
    pub fn idempotency_key(mut self, key: &str) -> Self {
        self.idempotency_key = Some(key.to_string());
        self
    }

    /// How long the idempotency key is remembered, instead of 24 hours.
    pub fn idempotency_ttl(mut self, ttl: Duration) -> Self {
        self.idempotency_ttl = Some(ttl);
        self
    }

    /// Enqueue on this connection, as a part of whatever transaction is open there.
    ///
    /// ```no_run
    /// # async fn example(mut client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let transaction = client.transaction().await?;
    /// transaction.execute("insert into orders (item) values ('tea')", &[]).await?;
    /// let id = bugle::NewJob::new("ship", serde_json::json!({ "item": "tea" }))
    ///     .queue("shipping")
    ///     .enqueue(&transaction)
    ///     .await?;
    /// transaction.commit().await?; // the order and the job, or neither
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// If the schema refuses the job ([`Error::is_refused`]): nothing is stored then.
    pub async fn enqueue(&self, client: &impl GenericClient) -> Result<JobId> {
        Ok(self.enqueue_once(client).await?.id)
    }

    /// The same, and whether the job is new or was there already under its [`unique_key`](NewJob::unique_key) or
    /// [`idempotency_key`](NewJob::idempotency_key).
    ///
    /// # Errors
    /// As [`enqueue`](NewJob::enqueue).
    pub async fn enqueue_once(&self, client: &impl GenericClient) -> Result<Enqueued> {
        let payload = self
            .payload
            .as_ref()
            .map_err(|error| Error::new(format!("the payload cannot be written as JSON: {error}")))?;
        let headers = (!self.headers.is_empty()).then_some(Json(&self.headers));
        let row = client
            .query_one(
                "select id, created from bugle.enqueue_once($1, $2, $3, $4, \
                 coalesce($5, now() + make_interval(secs => $6)), $7, make_interval(secs => $8), $9, $10, $11, \
                 $12, $13, $14, make_interval(secs => $15))",
                &[
                    &self.command,
                    &Json(payload),
                    &self.queue,
                    &self.priority,
                    &self.run_at,
                    &self.delay.map(|d| d.as_secs_f64()),
                    &self.deadline,
                    &self.timeout.map(|d| d.as_secs_f64()),
                    &self.max_attempts,
                    &self.retry_policy,
                    &headers,
                    &self.unique_key,
                    &self.on_conflict.map(OnConflict::as_str),
                    &self.idempotency_key,
                    &self.idempotency_ttl.map(|d| d.as_secs_f64()),
                ],
            )
            .await?;
        Ok(Enqueued {
            id: row.get(0),
            created: row.get(1),
        })
    }
}

/// A client: a pool of connections to enqueue with. Cheap to clone.
#[derive(Clone)]
pub struct Bugle {
    pool: deadpool_postgres::Pool,
    waiters: Arc<Waiters>,
}

impl Bugle {
    /// A client for this database. Connects when first used.
    ///
    /// # Errors
    /// If the connection string cannot be read.
    pub fn connect(url: &str) -> Result<Bugle> {
        Bugle::from_pool(connect::pool(&connect::parse(url)?, "client", 8)?)
    }

    /// A client over a pool that is there already.
    ///
    /// # Errors
    /// None at present.
    pub fn from_pool(pool: deadpool_postgres::Pool) -> Result<Bugle> {
        Ok(Bugle {
            pool,
            waiters: Arc::default(),
        })
    }

    /// Wait until a job has ended, however. Any number may wait at once: they share one question to the database.
    ///
    /// ```no_run
    /// # async fn example(bugle: bugle::Bugle) -> bugle::Result<()> {
    /// let id = bugle.enqueue(&bugle::NewJob::new("add", [1, 2])).await?;
    /// let sum: i64 = bugle.ended(id).await?.into_result()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// If the client goes away meanwhile. A job that failed is not an error here, but in
    /// [`Ended::into_result`](crate::Ended::into_result).
    pub async fn ended(&self, id: JobId) -> Result<Ended> {
        self.waiters.wait(&self.pool, id).await
    }

    /// Enqueue one job in a transaction of its own.
    ///
    /// # Errors
    /// If the database cannot be reached, or refuses the job.
    pub async fn enqueue(&self, job: &NewJob) -> Result<JobId> {
        job.enqueue(&**self.pool.get().await?).await
    }

    /// The same, and whether it is new.
    ///
    /// # Errors
    /// As [`enqueue`](Bugle::enqueue).
    pub async fn enqueue_once(&self, job: &NewJob) -> Result<Enqueued> {
        job.enqueue_once(&**self.pool.get().await?).await
    }
}
