//! What operators do to jobs, queues and workers, as SQL: thin functions over the verbs of the schema.

use serde::Serialize;
use tokio_postgres::GenericClient;
use tokio_postgres::types::ToSql;

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
    /// Run a failed or cancelled one again.
    Restart,
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
            Verb::Restart => "restart",
            Verb::Remove => "remove",
            Verb::Reschedule(_) => "reschedule",
            Verb::SetPriority(_) => "set_priority",
        }
    }

    /// What goes between the jobs and the note, as SQL that takes parameter `$2`, and its value.
    fn argument(&self) -> (&'static str, Option<Box<dyn ToSql + Sync + Send>>) {
        match self {
            Verb::Reschedule(time) => ("$2::text::timestamptz, ", Some(Box::new(time.clone()))),
            Verb::SetPriority(priority) => ("$2::integer, ", Some(Box::new(*priority))),
            _ => ("", None),
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
        "select id, done, state, why from bugle.{}($1::bigint[], {argument}{last}::text)",
        verb.name()
    );
    let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&ids];
    if let Some(value) = &value {
        parameters.push(&**value);
    }
    parameters.push(&note);
    let rows = client.query(&sql, &parameters).await?;
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

/// A verb for a queue or a worker: its name in the schema, for example `pause_queue`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Post {
    /// Nobody claims from the queue any more.
    PauseQueue,
    /// They do again.
    ResumeQueue,
    /// The worker claims nothing more.
    PauseWorker,
    /// It does again.
    ResumeWorker,
    /// It finishes what it runs and ends.
    DrainWorker,
}

/// Hold a queue or a worker back, or let it go on.
///
/// # Errors
/// If there is no such queue or worker, or it is not paused.
pub async fn order(client: &impl GenericClient, post: Post, whom: &str, note: Option<&str>) -> Result<()> {
    let sql = match post {
        Post::PauseQueue => "select bugle.pause_queue($1::text, $2::text)",
        Post::ResumeQueue => "select bugle.resume_queue($1::text, $2::text)",
        Post::PauseWorker => "select bugle.pause_worker($1::text::bigint, $2::text)",
        Post::ResumeWorker => "select bugle.resume_worker($1::text::bigint, $2::text)",
        Post::DrainWorker => "select bugle.drain_worker($1::text::bigint, $2::text)",
    };
    client.query(sql, &[&whom, &note]).await?;
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
        .query("select reason, words, cure, facts from bugle.explain($1)", &[&id])
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
