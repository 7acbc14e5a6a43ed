//! Enqueueing from Rust: the same INSERT everyone else does, with a builder for its columns.

mod spec;

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use postgres_types::Json;
use serde::Serialize;
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
/// Written as JSON, it is what `bugle.enqueue_job` and workflows take.
#[derive(Debug, Clone, Serialize)]
pub struct NewJob {
    command: String,
    #[serde(serialize_with = "spec::payload")]
    payload: Result<Box<RawValue>, String>,
    queue: Option<String>,
    priority: Option<i32>,
    #[serde(serialize_with = "spec::time")]
    run_at: Option<SystemTime>,
    #[serde(serialize_with = "spec::seconds")]
    delay: Option<Duration>,
    #[serde(serialize_with = "spec::time")]
    deadline: Option<SystemTime>,
    #[serde(serialize_with = "spec::seconds")]
    timeout: Option<Duration>,
    max_attempts: Option<i32>,
    retry_policy: Option<String>,
    #[serde(serialize_with = "spec::seconds")]
    retry_delay: Option<Duration>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, Value>,
    unique_key: Option<String>,
    #[serde(skip)]
    on_conflict: Option<OnConflict>,
    idempotency_key: Option<String>,
    #[serde(serialize_with = "spec::seconds")]
    idempotency_ttl: Option<Duration>,
    order_key: Option<String>,
    limit_key: Option<String>,
    fair_key: Option<String>,
    steps: Option<Vec<String>>,
    on_success: Option<String>,
    on_failure: Option<String>,
    after: Vec<After>,
}

/// The columns of a new job, as `bugle.settable_columns` names them.
pub(crate) const COLUMNS: [&str; 20] = [
    "command",
    "payload",
    "queue",
    "priority",
    "run_at",
    "deadline",
    "timeout",
    "max_attempts",
    "retry_policy",
    "retry_delay",
    "headers",
    "unique_key",
    "idempotency_key",
    "idempotency_ttl",
    "order_key",
    "limit_key",
    "fair_key",
    "steps",
    "on_success",
    "on_failure",
];

/// Insert jobs that are written as JSON objects with these columns. Returns the ids of those that are new.
pub(crate) async fn insert_many(client: &impl GenericClient, jobs: &[&Value]) -> Result<Vec<JobId>> {
    let value = |column: &&str| match *column {
        "payload" => "coalesce(r.payload, '{}')".to_owned(),
        "queue" => "coalesce(r.queue, 'default')".to_owned(),
        "priority" => "coalesce(r.priority, 0)".to_owned(),
        "run_at" => "coalesce(r.run_at, now())".to_owned(),
        column => format!("r.{column}"),
    };
    let sql = format!(
        "insert into bugle.jobs ({}) select {} \
         from jsonb_array_elements($1) with ordinality j (spec, place), \
           jsonb_populate_record(null::bugle.jobs, j.spec) r \
         order by j.place \
         on conflict do nothing \
         returning id",
        COLUMNS.join(", "),
        COLUMNS.iter().map(value).collect::<Vec<_>>().join(", ")
    );
    let rows = client.ask(&sql, &[&Json(jobs)]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// What becomes of a live job that has the [unique key](NewJob::unique_key) of a new one. A running job is always left
/// alone.
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
            retry_delay: None,
            // a job that is enqueued by another goes on with its trace
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

    /// How long the first retry waits, whatever its policy says; later ones grow from it as the policy has them grow.
    pub fn retry_delay(mut self, delay: Duration) -> Self {
        self.retry_delay = Some(delay);
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

    /// One job of the command has this key until it expires, even if that job has ended: if there is one, it is the
    /// answer. The id of the message or the request that causes the job is a good one.
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

    /// It counts for the limits its queue sets for each key.
    pub fn limit_key(mut self, key: &str) -> Self {
        self.limit_key = Some(key.to_string());
        self
    }

    /// Keys of one queue take turns.
    pub fn fair_key(mut self, key: &str) -> Self {
        self.fair_key = Some(key.to_string());
        self
    }

    /// Make it a chain of these commands; its own command is then only a name.
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

    fn payload(&self) -> Result<&RawValue> {
        self.payload
            .as_deref()
            .map_err(|error| Error::new(format!("the payload cannot be written as JSON: {error}")))
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
