//! Enqueueing from Rust: the same INSERT everyone else does, with a builder for its columns.

use std::collections::BTreeMap;
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
        let payload = self
            .payload
            .as_ref()
            .map_err(|error| Error::new(format!("the payload cannot be written as JSON: {error}")))?;
        let headers = (!self.headers.is_empty()).then_some(Json(&self.headers));
        let row = client
            .query_one(
                "select bugle.enqueue($1, $2, $3, $4, coalesce($5, now() + make_interval(secs => $6)), $7, \
                 make_interval(secs => $8), $9, $10, $11)",
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
                ],
            )
            .await?;
        Ok(row.get(0))
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
}
