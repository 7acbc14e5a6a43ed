//! What operators do to jobs, queues and workers, as SQL: thin functions over the verbs of the schema.

use std::time::Duration;

use postgres_types::Json;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio_postgres::GenericClient;

use crate::db::connect::{Parameter, Unnamed};
use crate::error::Result;
use crate::job::JobId;

/// A verb for jobs, with what it needs besides the jobs.
#[derive(Debug, Clone)]
pub enum Verb {
    /// Call it off; a running executor is stopped.
    Cancel,
    /// Hold it back.
    Pause,
    /// Let it go on.
    Resume,
    /// Run a failed or cancelled one again, from its first step if it has steps.
    Restart,
    /// Run a failed or cancelled one again, from the step that failed.
    RestartFromFailedStep,
    /// Delete it.
    Remove,
    /// Move the time at which it is due, as Postgres reads times.
    Reschedule(String),
    /// Smaller runs sooner.
    SetPriority(i32),
}

impl Verb {
    /// As the schema spells it.
    pub fn name(&self) -> &'static str {
        match self {
            Verb::Cancel => "cancel",
            Verb::Pause => "pause",
            Verb::Resume => "resume",
            Verb::Restart | Verb::RestartFromFailedStep => "restart",
            Verb::Remove => "remove",
            Verb::Reschedule(_) => "reschedule",
            Verb::SetPriority(_) => "set_priority",
        }
    }

    /// What goes between the jobs and the note, as SQL that takes parameter `$2`, and its value.
    fn argument(&self) -> (&'static str, Option<Box<dyn Parameter + Send>>) {
        match self {
            Verb::Reschedule(time) => ("$2::text::timestamptz, ", Some(Box::new(time.clone()))),
            Verb::SetPriority(priority) => ("$2::integer, ", Some(Box::new(*priority))),
            _ => ("", None),
        }
    }

    /// What goes behind the note.
    fn option(&self) -> &'static str {
        match self {
            Verb::RestartFromFailedStep => ", p_from_failed_step => true",
            _ => "",
        }
    }
}

/// What became of a verb for one job.
#[derive(Debug, Clone, Serialize)]
pub struct Operated {
    /// The job.
    pub id: JobId,
    /// Whether the verb was applied.
    pub done: bool,
    /// Its state now; none if there is no such job.
    pub state: Option<String>,
    /// Why it was refused.
    pub why: Option<String>,
}

/// Apply a verb to jobs. Answers for each; a refused one does not stop the others.
///
/// # Errors
/// If the database cannot be reached, or the role may not.
pub async fn apply(
    client: &impl GenericClient,
    verb: &Verb,
    ids: &[JobId],
    note: Option<&str>,
) -> Result<Vec<Operated>> {
    let (argument, value) = verb.argument();
    let last = if value.is_some() { "$3" } else { "$2" };
    let sql = format!(
        "select id, done, state, why from bugle.{}($1::bigint[], {argument}{last}::text{})",
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
            state: row.get(2),
            why: row.get(3),
        })
        .collect())
}

/// Overrule what became of a step, given by its position or its name: `done`, with its output, `skipped` or
/// `pending`.
///
/// # Errors
/// If there is no such job or step, or the job runs or is completed.
pub async fn set_step(
    client: &impl GenericClient,
    id: JobId,
    step: &str,
    state: &str,
    output: Option<&RawValue>,
    note: Option<&str>,
) -> Result<()> {
    let output = output.map(Json);
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
pub enum FleetVerb {
    /// Pause a queue: its jobs are not claimed.
    PauseQueue,
    /// Claim them again.
    ResumeQueue,
    /// Pause a worker: it claims nothing more.
    PauseWorker,
    /// Let it claim again.
    ResumeWorker,
    /// Drain a worker: it finishes the jobs it runs and ends.
    DrainWorker,
}

/// Hold a queue or a worker back, or let it go on.
///
/// # Errors
/// If there is no such queue or worker, or it is not paused.
pub async fn order(client: &impl GenericClient, verb: FleetVerb, whom: &str, note: Option<&str>) -> Result<()> {
    let sql = match verb {
        FleetVerb::PauseQueue => "select bugle.pause_queue($1::text, $2::text)",
        FleetVerb::ResumeQueue => "select bugle.resume_queue($1::text, $2::text)",
        FleetVerb::PauseWorker => "select bugle.pause_worker($1::text::bigint, $2::text)",
        FleetVerb::ResumeWorker => "select bugle.resume_worker($1::text::bigint, $2::text)",
        FleetVerb::DrainWorker => "select bugle.drain_worker($1::text::bigint, $2::text)",
    };
    client.ask(sql, &[&whom, &note]).await?;
    Ok(())
}

/// What a waiting job is told.
#[derive(Debug, Clone)]
pub enum Answer {
    /// Its result: it is completed.
    Resolve(Option<Value>),
    /// What went wrong: it has failed.
    Reject(String),
    /// What its executor goes on with.
    Resume(Value),
}

/// Answer a waiting job. With its token anyone may who may enqueue; without one, an operator.
///
/// # Errors
/// If it does not wait, or for another token.
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

/// Enqueue those of these jobs that are not there yet. Returns how many.
///
/// # Errors
/// If one of them is refused: then none is added.
pub async fn add_missing(client: &impl GenericClient, command: &str, jobs: &[Value]) -> Result<i64> {
    let row = client
        .ask_one("select bugle.add_missing($1, $2)", &[&command, &Json(jobs)])
        .await?;
    Ok(row.get(0))
}

/// Enqueue a workflow as it is written in JSON. Returns the name and id of each job.
///
/// # Errors
/// If it is refused: then nothing is stored.
pub async fn enqueue_workflow(client: &impl GenericClient, workflow: Value) -> Result<Vec<(String, JobId)>> {
    let rows = client
        .ask("select name, id from bugle.enqueue_workflow($1)", &[&workflow])
        .await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Limits to set for a queue: what is `None` stays as it is, 0 takes a limit away.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    /// How many may run at once.
    pub max_running: Option<i32>,
    /// How many may start in a period.
    pub max_starts: Option<(i32, Option<Duration>)>,
    /// How many of each limit key may run at once.
    pub max_running_per_key: Option<i32>,
    /// How many of each limit key may start in a period.
    pub max_starts_per_key: Option<(i32, Option<Duration>)>,
    /// Whether the others of an order key wait behind one that is retried (`block`) or go on (`pass`).
    pub order_on_retry: Option<String>,
}

/// Set limits of a queue. They hold at once. Returns those that hold now, in words.
///
/// # Errors
/// If they make no sense, or the role may not.
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
                &limits.order_on_retry,
                &note,
            ],
        )
        .await?;
    Ok(row.get(0))
}

/// How many jobs of a command may run at once, in all queues together; 0 takes the limit away.
///
/// # Errors
/// If it is negative, or the role may not.
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

/// Say whether claims from a queue wait for the disk. For the owner of the schema.
///
/// # Errors
/// If the role may not.
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

/// Why a job is not running, or what became of it.
#[derive(Debug, Clone, Serialize)]
pub struct Explanation {
    /// A short name.
    pub reason: String,
    /// A sentence.
    pub words: String,
    /// What would change it.
    pub cure: String,
    /// The facts.
    pub facts: serde_json::Value,
}

/// Ask why a job is not running, or what became of it. The most important reason comes first.
///
/// # Errors
/// If there is no such job.
pub async fn explain(client: &impl GenericClient, id: JobId) -> Result<Vec<Explanation>> {
    let rows = client
        .ask("select reason, words, cure, facts from bugle.explain($1)", &[&id])
        .await?;
    Ok(rows
        .iter()
        .map(|row| Explanation {
            reason: row.get(0),
            words: row.get(1),
            cure: row.get(2),
            facts: row.get(3),
        })
        .collect())
}
