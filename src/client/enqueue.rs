//! Enqueueing from Rust: the same INSERT everyone else does, with a builder for its columns.

mod spec;

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use postgres_types::Json;
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio_postgres::GenericClient;

use crate::db::calls;
use crate::db::connect::Unnamed;
use crate::error::{Error, Result};
use crate::job::JobId;

use spec::After;
pub use spec::Needed;

/// A job to be enqueued. Only the command is required.
///
/// A type of job that is enqueued in more than one place is better described once: see [`Job`](crate::Job).
///
/// ```no_run
/// # async fn example(transaction: tokio_postgres::Transaction<'_>) -> bugle::Result<()> {
/// use bugle::NewJob;
/// use std::time::Duration;
///
/// let id = NewJob::new("send_mail", serde_json::json!({ "to": "ada@example.org" }))
///     .queue("mail")
///     .max_attempts(5)
///     .delay(Duration::from_secs(60))
///     .enqueue(&transaction)
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Serialize)]
pub struct NewJob {
    command: String,
    #[serde(serialize_with = "spec::payload")]
    payload: Result<Box<RawValue>, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "spec::time")]
    run_at: Option<SystemTime>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "spec::seconds")]
    delay: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "spec::time")]
    deadline: Option<SystemTime>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "spec::seconds")]
    timeout: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "spec::seconds")]
    retry_delay: Option<Duration>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_conflict: Option<OnConflict>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "spec::seconds")]
    idempotency_ttl: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    order_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fair_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_success: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_failure: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    after: Vec<After>,
}

/// What happens to a live job that has the [unique key](NewJob::unique_key) of a new one. A running job is never
/// changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
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

impl Serialize for OnConflict {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
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

/// What [`NewJob::enqueue_once`] returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Enqueued {
    /// The new job, or the existing one.
    pub id: JobId,
    /// Whether it is new. If not, it existed under the same key.
    pub created: bool,
}

impl NewJob {
    /// Run `command` with this payload.
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
            retry_delay: None,
            // a job that is enqueued by another continues its trace
            headers: crate::observe::trace::current()
                .map(|here| (crate::observe::trace::HEADER.to_string(), here.into()))
                .into_iter()
                .collect(),
            unique_key: None,
            on_conflict: None,
            idempotency_key: None,
            idempotency_ttl: None,
            order_key: None,
            limit_key: None,
            fair_key: None,
            steps: None,
            on_success: None,
            on_failure: None,
            after: Vec::new(),
        }
    }

    /// The queue, instead of `default`.
    pub fn queue(mut self, queue: &str) -> Self {
        self.queue = Some(queue.to_string());
        self
    }

    /// The priority; smaller values run first. The default is 0.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Do not start it before this time.
    pub fn run_at(mut self, at: SystemTime) -> Self {
        self.run_at = Some(at);
        self
    }

    /// Do not start it before this much time has passed, by the database's clock.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// Do not start it after this time: if it has not started by then, it fails.
    pub fn deadline(mut self, at: SystemTime) -> Self {
        self.deadline = Some(at);
        self
    }

    /// How long one attempt may take.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// The maximum number of attempts, instead of that of its retry policy.
    pub fn max_attempts(mut self, attempts: i32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// The retry policy: a row of `bugle.retry_policies`.
    pub fn retry_policy(mut self, policy: &str) -> Self {
        self.retry_policy = Some(policy.to_string());
        self
    }

    /// The delay before the first retry, instead of that of its retry policy. Later delays grow from it by the policy.
    pub fn retry_delay(mut self, delay: Duration) -> Self {
        self.retry_delay = Some(delay);
        self
    }

    /// Add a header: a name and a value that are stored with the job.
    pub fn header(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.headers.insert(name.to_string(), value.into());
        self
    }

    /// Allow at most one live job of the command with this key. If there is one, its id is returned; for a job that
    /// starts [after](NewJob::after) others, it is an error (SQLSTATE 23505).
    pub fn unique_key(mut self, key: &str) -> Self {
        self.unique_key = Some(key.to_string());
        self
    }

    /// What happens to the live job that has the unique key, instead of what its command says, or [`OnConflict::Keep`].
    pub fn on_conflict(mut self, mode: OnConflict) -> Self {
        self.on_conflict = Some(mode);
        self
    }

    /// Allow one job of the command with this key until the key expires, even if that job has ended. If there is one,
    /// its id is returned. The id of the message or request that causes the job is a good key.
    pub fn idempotency_key(mut self, key: &str) -> Self {
        self.idempotency_key = Some(key.to_string());
        self
    }

    /// How long the idempotency key is remembered, instead of 24 hours.
    pub fn idempotency_ttl(mut self, ttl: Duration) -> Self {
        self.idempotency_ttl = Some(ttl);
        self
    }

    /// Jobs of its queue with the same key run one after another, in order of their ids.
    pub fn order_key(mut self, key: &str) -> Self {
        self.order_key = Some(key.to_string());
        self
    }

    /// The key by which the per-key limits of its queue count it.
    pub fn limit_key(mut self, key: &str) -> Self {
        self.limit_key = Some(key.to_string());
        self
    }

    /// The key, such as a tenant, between which the queue alternates.
    pub fn fair_key(mut self, key: &str) -> Self {
        self.fair_key = Some(key.to_string());
        self
    }

    /// Make it a chain that runs these commands in order. Its own command is then only a name.
    pub fn steps<S: Into<String>>(mut self, steps: impl IntoIterator<Item = S>) -> Self {
        self.steps = Some(steps.into_iter().map(Into::into).collect());
        self
    }

    /// The command of a job that is enqueued when this one is completed.
    pub fn on_success(mut self, command: &str) -> Self {
        self.on_success = Some(command.to_string());
        self
    }

    /// The command of a job that is enqueued when this one has failed.
    pub fn on_failure(mut self, command: &str) -> Self {
        self.on_failure = Some(command.to_string());
        self
    }

    /// The job as JSON, as `bugle.enqueue_job` takes it: to enqueue with any driver, in a transaction of your own.
    ///
    /// With sqlx, for example:
    ///
    /// ```ignore
    /// let id: i64 = sqlx::query_scalar("select bugle.enqueue_job($1)")
    ///     .bind(SendMail { to }.to_job().to_json()?)
    ///     .fetch_one(&mut *transaction)
    ///     .await?;
    /// ```
    ///
    /// A job that repeats a [`unique_key`](NewJob::unique_key) or an [`idempotency_key`](NewJob::idempotency_key) is
    /// answered with the id of the existing job.
    ///
    /// ```
    /// let job = bugle::NewJob::new("ship", "tea").queue("parcels");
    /// let json = serde_json::json!({ "command": "ship", "payload": "tea", "queue": "parcels" });
    /// assert_eq!(job.to_json()?, json);
    /// # Ok::<(), bugle::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the payload cannot be written as JSON.
    pub fn to_json(&self) -> Result<Value> {
        self.payload()?;
        serde_json::to_value(self).map_err(|error| Error::new(format!("the job cannot be written as JSON: {error}")))
    }

    fn payload(&self) -> Result<&RawValue> {
        self.payload
            .as_deref()
            .map_err(|error| Error::new(format!("the payload cannot be written as JSON: {error}")))
    }

    /// Enqueue on this connection, as a part of the transaction that is open there.
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
    /// If the schema rejects the job ([`Error::is_refused`]): nothing is stored then.
    pub async fn enqueue(&self, client: &impl GenericClient) -> Result<JobId> {
        Ok(self.enqueue_once(client).await?.id)
    }

    /// The same, and whether the job is new or was there already under its [`unique_key`](NewJob::unique_key) or
    /// [`idempotency_key`](NewJob::idempotency_key).
    ///
    /// # Errors
    /// As [`enqueue`](NewJob::enqueue).
    pub async fn enqueue_once(&self, client: &impl GenericClient) -> Result<Enqueued> {
        let enqueued = self.store(client).await?;
        tracing::debug!(
            event = "enqueue",
            job = enqueued.id,
            created = enqueued.created,
            command = self.command,
            queue = self.queue
        );
        Ok(enqueued)
    }

    async fn store(&self, client: &impl GenericClient) -> Result<Enqueued> {
        if !self.after.is_empty() {
            let id = calls::enqueue_job(client, &self.spec()?).await?;
            return Ok(Enqueued { id, created: true });
        }
        let payload = self.payload()?;
        let headers = (!self.headers.is_empty()).then_some(Json(&self.headers));
        let row = client
            .ask_one(
                "select id, created from bugle.enqueue_once($1, $2, $3, $4, \
                 coalesce($5, now() + make_interval(secs => $6)), $7, make_interval(secs => $8), $9, $10, $11, \
                 $12, $13, $14, make_interval(secs => $15), $16, $17, $18, $19, $20, $21, \
                 p_retry_delay => make_interval(secs => $22))",
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
                    &self.order_key,
                    &self.limit_key,
                    &self.fair_key,
                    &self.steps,
                    &self.on_success,
                    &self.on_failure,
                    &self.retry_delay.map(|d| d.as_secs_f64()),
                ],
            )
            .await?;
        Ok(Enqueued {
            id: row.get(0),
            created: row.get(1),
        })
    }
}
