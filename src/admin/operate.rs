//! The operator's verbs for jobs, queues and workers: thin functions over the SQL functions of the schema.

use std::time::Duration;

use postgres_types::Json;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio_postgres::GenericClient;

use crate::admin::read::Filter;
use crate::db::connect::{Parameter, Unnamed};
use crate::error::Result;
use crate::job::JobId;
use crate::spelled::spelled;
use crate::state::{State, StepState};

/// A verb for jobs, with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verb {
    /// Cancel the job; a running executor is stopped.
    Cancel,
    /// Pause the job.
    Pause,
    /// Resume a paused job.
    Resume,
    /// Restart a failed or cancelled job, from its first step if it has steps.
    Restart,
    /// Restart a failed or cancelled job from the step that failed.
    RestartFromFailedStep,
    /// Delete the job.
    Remove,
    /// Change the time at which the job is due, in any format Postgres accepts.
    Reschedule(String),
    /// Change the priority; smaller numbers run first.
    SetPriority(i32),
    /// Overrule its state.
    SetState(State),
}

impl Verb {
    /// The name of the SQL function without its suffix.
    pub fn name(&self) -> &'static str {
        match self {
            Verb::Cancel => "cancel",
            Verb::Pause => "pause",
            Verb::Resume => "resume",
            Verb::Restart | Verb::RestartFromFailedStep => "restart",
            Verb::Remove => "remove",
            Verb::Reschedule(_) => "reschedule",
            Verb::SetPriority(_) => "set_priority",
            Verb::SetState(_) => "set_state",
        }
    }

    /// What was done, for a person: "restarted", to be followed by a number of jobs.
    pub fn past(&self) -> &'static str {
        match self {
            Verb::Cancel => "cancelled",
            Verb::Pause => "paused",
            Verb::Resume => "resumed",
            Verb::Restart | Verb::RestartFromFailedStep => "restarted",
            Verb::Remove => "removed",
            Verb::Reschedule(_) => "rescheduled",
            Verb::SetPriority(_) => "changed the priority of",
            Verb::SetState(_) => "changed the state of",
        }
    }

    /// The SQL argument between the jobs and the note, which takes parameter `$2`, and its value.
    fn argument(&self) -> (&'static str, Option<Box<dyn Parameter + Send>>) {
        match self {
            Verb::Reschedule(time) => ("$2::text::timestamptz, ", Some(Box::new(time.clone()))),
            Verb::SetPriority(priority) => ("$2::integer, ", Some(Box::new(*priority))),
            Verb::SetState(state) => ("$2::text, ", Some(Box::new(state.as_str()))),
            _ => ("", None),
        }
    }

    /// The SQL arguments after the note.
    fn option(&self) -> &'static str {
        match self {
            Verb::RestartFromFailedStep => ", p_from_failed_step => true",
            _ => "",
        }
    }
}

/// The result of a verb for one job.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Operated {
    /// The job.
    pub id: JobId,
    /// Whether the verb was applied.
    pub done: bool,
    /// Its current state; `None` if there is no such job, or it was removed.
    pub state: Option<State>,
    /// Why the verb was rejected.
    pub reason: Option<String>,
}

/// Apply a verb to jobs. Returns a result for each; a rejected job does not affect the others.
///
/// # Errors
/// If the database cannot be reached or the role lacks the privilege.
pub async fn apply(
    client: &impl GenericClient,
    verb: &Verb,
    ids: &[JobId],
    note: Option<&str>,
) -> Result<Vec<Operated>> {
    let (argument, value) = verb.argument();
    let last = if value.is_some() { "$3" } else { "$2" };
    let sql = format!(
        "select id, done, state, reason from bugle.{}($1::bigint[], {argument}{last}::text{})",
        verb.name(),
        verb.option()
    );
    let mut parameters: Vec<&dyn Parameter> = vec![&ids];
    if let Some(value) = &value {
        parameters.push(&**value);
    }
    parameters.push(&note);
    let rows = client.ask(&sql, &parameters).await?;
    Ok(rows
        .iter()
        .map(|row| Operated {
            id: row.get(0),
            done: row.get(1),
            // a job that was removed has no state any more
            state: row.get::<_, Option<&str>>(2).and_then(|state| state.parse().ok()),
            reason: row.get(3),
        })
        .collect())
}

/// End a session of the server. False if there is none.
///
/// # Errors
/// If the login may not.
pub async fn end_session(client: &impl GenericClient, pid: i32) -> Result<bool> {
    Ok(client.ask_one("select pg_terminate_backend($1)", &[&pid]).await?.get(0))
}

/// Do one thing of the maintenance of history. Returns what was done; nothing if nothing is left to do.
///
/// # Errors
/// If the login may not.
pub async fn upkeep(client: &impl GenericClient) -> Result<Option<String>> {
    Ok(client.ask_one("select bugle.upkeep()::text", &[]).await?.get(0))
}

/// A job, all jobs of the workflow it belongs to, and their children, and theirs.
///
/// # Errors
/// If the database cannot be reached or the role lacks the privilege.
pub async fn family(client: &impl GenericClient, id: JobId) -> Result<Vec<JobId>> {
    Ok(client.ask_one("select bugle.family($1::bigint)", &[&id]).await?.get(0))
}

/// How many jobs of one state a verb would change.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Matching {
    /// The state they are in.
    pub state: State,
    /// How many they are.
    pub jobs: i64,
    /// The last of their ids.
    pub last_id: JobId,
}

/// How many jobs match a filter and are in a state from which the verb is allowed, by state.
///
/// # Errors
/// If the filter is for a state from which the verb is not allowed, or the role lacks the privilege.
pub async fn count_matching(client: &impl GenericClient, verb: &Verb, filter: &Filter) -> Result<Vec<Matching>> {
    let sql = format!(
        "select state, jobs, last_id from bugle.count_matching($1::text, {})",
        Filter::arguments(2)
    );
    let name = verb.name();
    let state = filter.state_and_reason();
    let mut parameters: Vec<&dyn Parameter> = vec![&name];
    parameters.extend(filter.parameters(&state));
    let rows = client.ask(&sql, &parameters).await?;
    rows.iter()
        .map(|row| {
            Ok(Matching {
                state: row.try_get::<_, &str>("state")?.parse()?,
                jobs: row.try_get("jobs")?,
                last_id: row.try_get("last_id")?,
            })
        })
        .collect()
}

/// The oldest of these jobs, at most `limit`, with ids above `after`: what one step of a long operation takes.
///
/// # Errors
/// As [`count_matching`].
pub async fn jobs_matching(
    client: &impl GenericClient,
    verb: &Verb,
    filter: &Filter,
    after: JobId,
    limit: i32,
) -> Result<Vec<JobId>> {
    let sql = format!(
        "select id from bugle.jobs_matching($1::text, {}, $13::bigint, $14::integer) m (id)",
        Filter::arguments(2)
    );
    let name = verb.name();
    let state = filter.state_and_reason();
    let mut parameters: Vec<&dyn Parameter> = vec![&name];
    parameters.extend(filter.parameters(&state));
    parameters.extend([&after as &dyn Parameter, &limit]);
    let rows = client.ask(&sql, &parameters).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Override the state of a step, given by its position or name: `done` (with its output), `skipped` or `pending`.
///
/// # Errors
/// If there is no such job or step, or the job is running or completed.
pub async fn set_step(
    client: &impl GenericClient,
    id: JobId,
    step: &str,
    state: StepState,
    output: Option<&RawValue>,
    note: Option<&str>,
) -> Result<()> {
    let (state, output) = (state.as_str(), output.map(Json));
    match step.parse::<i32>() {
        Ok(position) => {
            let sql = "select bugle.set_step($1::bigint, $2::integer, $3::text, $4::jsonb, $5::text)";
            client.ask(sql, &[&id, &position, &state, &output, &note]).await?;
        }
        Err(_) => {
            let sql = "select bugle.set_step($1::bigint, $2::text, $3::text, $4::jsonb, $5::text)";
            client.ask(sql, &[&id, &step, &state, &output, &note]).await?;
        }
    }
    Ok(())
}

/// A verb for a queue or a worker: its name in the schema, for example `pause_queue`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FleetVerb {
    /// Pause a queue: its jobs are not claimed.
    PauseQueue,
    /// Resume a paused queue.
    ResumeQueue,
    /// Remove a queue that has no jobs: its pause and its limits.
    RemoveQueue,
    /// Pause a worker: it claims no more jobs.
    PauseWorker,
    /// Resume a paused worker.
    ResumeWorker,
    /// Drain a worker: it finishes its running jobs and exits.
    DrainWorker,
}

/// Pause, resume or drain a queue or a worker.
///
/// # Errors
/// If there is no such queue or worker, or it is not paused.
pub async fn order(client: &impl GenericClient, verb: FleetVerb, whom: &str, note: Option<&str>) -> Result<()> {
    let sql = match verb {
        FleetVerb::PauseQueue => "select bugle.pause_queue($1::text, $2::text)",
        FleetVerb::ResumeQueue => "select bugle.resume_queue($1::text, $2::text)",
        FleetVerb::RemoveQueue => "select bugle.remove_queue($1::text, $2::text)",
        FleetVerb::PauseWorker => "select bugle.pause_worker($1::text::bigint, $2::text)",
        FleetVerb::ResumeWorker => "select bugle.resume_worker($1::text::bigint, $2::text)",
        FleetVerb::DrainWorker => "select bugle.drain_worker($1::text::bigint, $2::text)",
    };
    client.ask(sql, &[&whom, &note]).await?;
    Ok(())
}

/// The answer for a waiting job.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Answer {
    /// Complete the job with this result.
    Resolve(Option<Value>),
    /// Fail the job with this error.
    Reject(String),
    /// Resume the job with this answer.
    Resume(Value),
}

/// Answer a waiting job. With its token, enqueuers may do so; without it, only operators.
///
/// # Errors
/// If the job is not waiting, or the token is wrong.
pub async fn answer(client: &impl GenericClient, id: JobId, answer: &Answer, token: Option<&str>) -> Result<()> {
    let (result, error, resume) = match answer {
        Answer::Resolve(result) => (result.as_ref(), None, false),
        Answer::Reject(error) => (None, Some(error), false),
        Answer::Resume(answer) => (Some(answer), None, true),
    };
    match (token, error) {
        (Some(token), _) => {
            let sql = "select bugle.answer($1, $2, $3, $4, $5)";
            client.ask(sql, &[&id, &token, &result, &error, &resume]).await?
        }
        (None, Some(error)) => client.ask("select bugle.reject($1, $2)", &[&id, error]).await?,
        (None, None) if resume => client.ask("select bugle.resume_with($1, $2)", &[&id, &result]).await?,
        (None, None) => client.ask("select bugle.resolve($1, $2)", &[&id, &result]).await?,
    };
    Ok(())
}

/// Enqueue the jobs whose keys do not exist yet. Returns their number.
///
/// # Errors
/// If one of them is rejected; then none is added.
pub async fn add_missing(client: &impl GenericClient, command: &str, jobs: &[Value]) -> Result<i64> {
    let row = client
        .ask_one("select bugle.add_missing($1, $2)", &[&command, &Json(jobs)])
        .await?;
    Ok(row.get(0))
}

/// Enqueue a workflow given as JSON. Returns the name and id of each job.
///
/// # Errors
/// If it is rejected; then nothing is stored.
pub async fn enqueue_workflow(client: &impl GenericClient, workflow: Value) -> Result<Vec<(String, JobId)>> {
    let rows = client
        .ask("select name, id from bugle.enqueue_workflow($1)", &[&workflow])
        .await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

spelled! {
    /// What the jobs behind one that is being retried do, if they have the same order key:
    /// `bugle.queues.order_on_retry`.
    #[non_exhaustive]
    OrderOnRetry, "block or pass" {
        /// They wait for it.
        Block = "block",
        /// They overtake it.
        Pass = "pass",
    }
}

/// Limits to set for a queue: `None` keeps a limit, 0 removes it.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum number of running jobs.
    pub max_running: Option<i32>,
    /// Maximum number of starts in a period.
    pub max_starts: Option<(i32, Option<Duration>)>,
    /// Maximum number of running jobs per limit key.
    pub max_running_per_key: Option<i32>,
    /// Maximum number of starts per limit key in a period.
    pub max_starts_per_key: Option<(i32, Option<Duration>)>,
    /// Whether jobs wait for an earlier job of their order key that is being retried, or overtake it.
    pub order_on_retry: Option<OrderOnRetry>,
}

impl Limits {
    /// No change.
    pub fn new() -> Self {
        Limits::default()
    }

    /// At most this many jobs of the queue run at once.
    pub fn max_running(mut self, jobs: i32) -> Self {
        self.max_running = Some(jobs);
        self
    }

    /// At most this many jobs of the queue start in a period.
    pub fn max_starts(mut self, jobs: i32, period: Duration) -> Self {
        self.max_starts = Some((jobs, Some(period)));
        self
    }

    /// At most this many jobs of each limit key run at once.
    pub fn max_running_per_key(mut self, jobs: i32) -> Self {
        self.max_running_per_key = Some(jobs);
        self
    }

    /// At most this many jobs of each limit key start in a period.
    pub fn max_starts_per_key(mut self, jobs: i32, period: Duration) -> Self {
        self.max_starts_per_key = Some((jobs, Some(period)));
        self
    }

    /// What jobs do behind one of the same order key that is being retried.
    pub fn order_on_retry(mut self, order: OrderOnRetry) -> Self {
        self.order_on_retry = Some(order);
        self
    }
}

/// Set limits of a queue, effective immediately. Returns a description of the limits now in force.
///
/// # Errors
/// If a limit is invalid or the role lacks the privilege.
pub async fn set_limits(
    client: &impl GenericClient,
    queue: &str,
    limits: &Limits,
    note: Option<&str>,
) -> Result<Option<String>> {
    let (starts, period) = limits.max_starts.unzip();
    let (starts_per_key, key_period) = limits.max_starts_per_key.unzip();
    let seconds = |period: Option<Option<Duration>>| period.flatten().map(|p| p.as_secs_f64());
    let row = client
        .ask_one(
            "select bugle.set_limits($1, $2, $3, make_interval(secs => $4), $5, $6, make_interval(secs => $7), $8, $9)",
            &[
                &queue,
                &limits.max_running,
                &starts,
                &seconds(period),
                &limits.max_running_per_key,
                &starts_per_key,
                &seconds(key_period),
                &limits.order_on_retry.map(OrderOnRetry::as_str),
                &note,
            ],
        )
        .await?;
    Ok(row.get(0))
}

/// Limit the number of running jobs of a command across all queues; 0 removes the limit.
///
/// # Errors
/// If the limit is negative or the role lacks the privilege.
pub async fn set_command_limit(
    client: &impl GenericClient,
    command: &str,
    max_running: i32,
    note: Option<&str>,
) -> Result<()> {
    client
        .ask(
            "select bugle.set_command_limit($1, $2, $3)",
            &[&command, &max_running, &note],
        )
        .await?;
    Ok(())
}

/// Set whether claims from a queue are committed durably. Requires the owner of the schema.
///
/// # Errors
/// If the role lacks the privilege.
pub async fn set_queue(client: &impl GenericClient, name: &str, synchronous_claims: bool) -> Result<()> {
    client
        .change(
            "insert into bugle.queues (name, synchronous_claims) values ($1, $2) \
             on conflict (name) do update set synchronous_claims = excluded.synchronous_claims",
            &[&name, &synchronous_claims],
        )
        .await?;
    Ok(())
}

/// Why a job is not running, or how it ended.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// A short name of the reason.
    pub reason: String,
    /// A sentence.
    pub message: String,
    /// What would change it.
    pub fix: String,
    /// The facts.
    pub facts: serde_json::Value,
}

/// Explain why a job is not running, or how it ended. The most important reason comes first.
///
/// # Errors
/// If there is no such job.
pub async fn explain(client: &impl GenericClient, id: JobId) -> Result<Vec<Explanation>> {
    let rows = client
        .ask("select reason, message, fix, facts from bugle.explain($1)", &[&id])
        .await?;
    Ok(rows
        .iter()
        .map(|row| Explanation {
            reason: row.get(0),
            message: row.get(1),
            fix: row.get(2),
            facts: row.get(3),
        })
        .collect())
}
