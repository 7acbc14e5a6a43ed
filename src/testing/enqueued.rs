//! What was enqueued, as a test asks for it.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::time::{Duration, SystemTime};

use postgres_types::Json;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_postgres::GenericClient;

use crate::client::job::Job;
use crate::db::connect::Unnamed;
use crate::error::Result;
use crate::job::JobId;
use crate::state::State;

/// At most this many jobs are shown in the message of a failed test.
const MOST_SHOWN: usize = 10;

/// A delay is met if it is at most this much off: a default for the command and the clock of the test may differ.
const TOLERANCE: Duration = Duration::from_secs(1);

/// Which jobs a test asks for: everything that is set must be so. Only jobs that have not ended are found.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct JobFilter {
    command: Option<String>,
    queue: Option<String>,
    payload: Option<Value>,
    priority: Option<i32>,
    unique_key: Option<String>,
    state: Option<State>,
    delay: Option<Duration>,
}

impl JobFilter {
    /// Any job.
    pub fn any() -> JobFilter {
        JobFilter::default()
    }

    /// Jobs of this command.
    pub fn command(command: &str) -> JobFilter {
        JobFilter {
            command: Some(command.to_string()),
            ..JobFilter::default()
        }
    }

    /// Jobs of this type.
    pub fn job<J: Job>() -> JobFilter {
        JobFilter::command(J::COMMAND)
    }

    /// In this queue.
    pub fn queue(mut self, queue: &str) -> Self {
        self.queue = Some(queue.to_string());
        self
    }

    /// Whose payload contains this: of an object, the fields that are named here (`@>` of jsonb).
    ///
    /// # Panics
    /// If it cannot be written as JSON.
    pub fn payload(mut self, part: impl Serialize) -> Self {
        let part = serde_json::to_value(part);
        self.payload = Some(part.unwrap_or_else(|error| panic!("the payload cannot be written as JSON: {error}")));
        self
    }

    /// With this priority.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = Some(priority);
        self
    }

    /// With this unique key.
    pub fn unique_key(mut self, key: &str) -> Self {
        self.unique_key = Some(key.to_string());
        self
    }

    /// In this state.
    pub fn state(mut self, state: State) -> Self {
        self.state = Some(state);
        self
    }

    /// That run this long after they were enqueued, to the second.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    fn fits(&self, job: &EnqueuedJob) -> bool {
        fn is<T: PartialEq>(wanted: &Option<T>, found: &T) -> bool {
            wanted.as_ref().is_none_or(|wanted| wanted == found)
        }
        is(&self.command, &job.command)
            && is(&self.queue, &job.queue)
            && is(&self.priority, &job.priority)
            && is(&self.state, &job.state)
            && (self.unique_key.is_none() || self.unique_key == job.unique_key)
            && self.payload.as_ref().is_none_or(|part| contains(&job.payload, part))
            && self.delay.is_none_or(|delay| job.delay().abs_diff(delay) <= TOLERANCE)
    }
}

/// As `@>` of jsonb, with which a test in SQL would ask.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            let has = |(name, part)| whole.get(name).is_some_and(|whole| contains(whole, part));
            part.iter().all(has)
        }
        (Value::Array(whole), Value::Array(part)) => {
            part.iter().all(|part| whole.iter().any(|whole| contains(whole, part)))
        }
        (Value::Number(whole), Value::Number(part)) => whole.as_f64() == part.as_f64(),
        _ => whole == part,
    }
}

/// What is set, for the message of a failed test.
impl fmt::Display for JobFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(command) = &self.command {
            parts.push(format!("command {command:?}"));
        }
        if let Some(queue) = &self.queue {
            parts.push(format!("queue {queue:?}"));
        }
        if let Some(payload) = &self.payload {
            parts.push(format!("a payload with {payload}"));
        }
        if let Some(priority) = self.priority {
            parts.push(format!("priority {priority}"));
        }
        if let Some(key) = &self.unique_key {
            parts.push(format!("unique_key {key:?}"));
        }
        if let Some(state) = self.state {
            parts.push(format!("state {state}"));
        }
        if let Some(delay) = self.delay {
            parts.push(format!("delay {}", humantime::format_duration(delay)));
        }
        match parts.is_empty() {
            true => f.write_str("anything"),
            false => f.write_str(&parts.join(", ")),
        }
    }
}

/// A job that was enqueued and has not ended.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EnqueuedJob {
    /// Its id.
    pub id: JobId,
    /// Its command.
    pub command: String,
    /// Its queue.
    pub queue: String,
    /// Its state.
    pub state: State,
    /// Its priority.
    pub priority: i32,
    /// Its payload.
    pub payload: Value,
    /// Its headers.
    pub headers: Value,
    /// Its unique key.
    pub unique_key: Option<String>,
    /// When it was enqueued.
    pub created_at: SystemTime,
    /// When it is due.
    pub run_at: SystemTime,
}

impl EnqueuedJob {
    /// The payload as `T`.
    ///
    /// # Panics
    /// If it cannot be decoded as a `T`.
    #[track_caller]
    pub fn payload_as<T: DeserializeOwned>(&self) -> T {
        serde_json::from_value(self.payload.clone())
            .unwrap_or_else(|error| panic!("the payload of {self} cannot be decoded as the requested type: {error}"))
    }

    /// How long after it was enqueued it is due.
    pub fn delay(&self) -> Duration {
        self.run_at.duration_since(self.created_at).unwrap_or_default()
    }
}

impl fmt::Display for EnqueuedJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "job {}: {:?} in queue {:?}, {}, priority {}, payload {}",
            self.id, self.command, self.queue, self.state, self.priority, self.payload
        )?;
        if let Some(key) = &self.unique_key {
            write!(f, ", unique_key {key:?}")?;
        }
        if self.delay() > Duration::ZERO {
            let delay = Duration::from_millis(self.delay().as_millis() as u64);
            write!(f, ", delay {}", humantime::format_duration(delay))?;
        }
        Ok(())
    }
}

/// The jobs that were enqueued and have not ended, in the order of their ids. In a transaction, with those that it has
/// enqueued.
///
/// # Errors
/// If the database cannot be reached, or the login may not read jobs.
pub async fn enqueued(client: &impl GenericClient, wanted: &JobFilter) -> Result<Vec<EnqueuedJob>> {
    let jobs = all(client).await?;
    Ok(jobs.into_iter().filter(|job| wanted.fits(job)).collect())
}

async fn all(client: &impl GenericClient) -> Result<Vec<EnqueuedJob>> {
    let query = "select j.id, j.command, j.queue, j.state, j.priority, j.payload, j.headers, j.unique_key, \
         j.created_at, j.run_at from bugle.jobs j where j.finished_at is null order by j.id";
    let rows = client.ask(query, &[]).await?;
    rows.iter()
        .map(|row| {
            Ok(EnqueuedJob {
                id: row.try_get("id")?,
                command: row.try_get("command")?,
                queue: row.try_get("queue")?,
                state: row.try_get::<_, String>("state")?.parse()?,
                priority: row.try_get("priority")?,
                payload: row
                    .try_get::<_, Option<Json<Value>>>("payload")?
                    .map_or(Value::Null, |json| json.0),
                headers: row
                    .try_get::<_, Option<Json<Value>>>("headers")?
                    .map_or(Value::Null, |json| json.0),
                unique_key: row.try_get("unique_key")?,
                created_at: row.try_get("created_at")?,
                run_at: row.try_get("run_at")?,
            })
        })
        .collect()
}

/// Assert that there is exactly one such job, and return it. `client` is a connection, or a transaction that has
/// enqueued and was not committed.
///
/// ```no_run
/// # async fn example(transaction: tokio_postgres::Transaction<'_>) {
/// use bugle::testing::{JobFilter, assert_enqueued};
///
/// let mail = assert_enqueued(&transaction, JobFilter::command("send_mail").queue("mail")).await;
/// assert_eq!(mail.payload["to"], "ada@example.org");
/// # }
/// ```
///
/// # Panics
/// If there is none, or more than one.
#[track_caller]
pub fn assert_enqueued<'a>(
    client: &'a impl GenericClient,
    wanted: JobFilter,
) -> impl Future<Output = EnqueuedJob> + 'a {
    let place = Location::caller();
    async move {
        let (mut found, others) = look(client, &wanted, place).await;
        match found.len() {
            1 => found.remove(0),
            0 => panic!(
                "{place}: no job is enqueued with {wanted}\n{}",
                list("enqueued are", &others)
            ),
            more => panic!(
                "{place}: one job was to be enqueued with {wanted}, and there are {more}\n{}",
                list("they are", &found)
            ),
        }
    }
}

/// Assert that there is no such job.
///
/// # Panics
/// If there is one.
#[track_caller]
pub fn assert_not_enqueued<'a>(client: &'a impl GenericClient, wanted: JobFilter) -> impl Future<Output = ()> + 'a {
    let place = Location::caller();
    async move {
        let (found, _) = look(client, &wanted, place).await;
        let list = list("enqueued are", &found);
        assert!(
            found.is_empty(),
            "{place}: no job was to be enqueued with {wanted}\n{list}"
        );
    }
}

async fn look(
    client: &impl GenericClient,
    wanted: &JobFilter,
    place: &Location<'_>,
) -> (Vec<EnqueuedJob>, Vec<EnqueuedJob>) {
    let jobs = all(client).await;
    let jobs = jobs.unwrap_or_else(|error| panic!("{place}: cannot read the jobs: {error}"));
    let (found, mut others): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| wanted.fits(job));
    // those that are meant most likely come first
    others.sort_by_key(|job| wanted.command.as_ref() != Some(&job.command));
    (found, others)
}

fn list(title: &str, jobs: &[EnqueuedJob]) -> String {
    if jobs.is_empty() {
        return "nothing is enqueued".into();
    }
    let mut lines: Vec<String> = jobs.iter().take(MOST_SHOWN).map(|job| format!("  {job}")).collect();
    if jobs.len() > MOST_SHOWN {
        lines.push(format!("  and {} more", jobs.len() - MOST_SHOWN));
    }
    format!("{title}:\n{}", lines.join("\n"))
}
