//! Run what is due in this process until nothing is left, and let time pass.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_postgres::GenericClient;

use crate::config::Settings;
use crate::db::connect::{self, Pool, Unnamed};
use crate::error::{Error, Result};
use crate::execute::context::{Context, Settled};
use crate::execute::executor::{Execution, Outcome};
use crate::execute::panics;
use crate::execute::registry::Registry;
use crate::execute::stage::{Next, Stage};
use crate::job::JobId;
use crate::worker::Worker;
use crate::worker::shutdown::Shutdown;

use super::run::describe;

/// The largest number of rounds of one [`drain`]: jobs that keep enqueueing jobs would keep it busy indefinitely.
const MOST_ROUNDS: usize = 1_000;

/// Run all jobs that are due with the executors of `registry`, and those that they enqueue, until there is none left.
/// A worker in this process does it, and is gone afterwards: what a test finds in the database then is final.
///
/// Jobs run one at a time, in their order, from all queues; with [`Settings::queue`], only from those, as many at once
/// as they have slots. Jobs that are due later are left: see [`advance`]. Jobs of other commands are left too.
///
/// ```no_run
/// # async fn example(url: &str, client: tokio_postgres::Client) -> bugle::Result<()> {
/// use bugle::{Context, Registry, testing};
/// use std::time::Duration;
///
/// let registry = Registry::new().on("send_mail", async |_: Context, to: String| Ok(to));
/// testing::drain(url, &registry).await?.assert_no_failures();
/// testing::advance(&client, Duration::from_secs(3600)).await?;
/// assert_eq!(testing::drain(url, &registry).await?.completed("send_mail"), 1);
/// # Ok(()) }
/// ```
///
/// # Errors
/// If the database cannot be reached or is not migrated, or the login may not run jobs and read them
/// (`bugle_worker` and `bugle_viewer`).
pub async fn drain<S>(settings: impl Into<Settings>, registry: &Registry<S>) -> Result<Drained> {
    let settings = settings
        .into()
        .name("testing")
        .until_empty(true)
        .safety_poll(Duration::ZERO);
    let target = connect::parse(&settings.database_url)?;
    let pool = Pool::for_client(&target, "testing", 1)?;
    let attempts: Arc<Mutex<Vec<Attempt>>> = Arc::default();
    let registry = Registry::new()
        .stage("*", Record(attempts.clone()))
        .merge(registry.clone());
    let commands = registry.commands();
    for _ in 0..MOST_ROUNDS {
        let queues = {
            let client = pool.get_or_explain().await?;
            make_due(&*client).await?;
            queues_with_work(&*client, &commands).await?
        };
        let mut round = settings.clone();
        match round.queues.is_empty() {
            true => round.queues = queues.into_iter().map(|queue| (queue, 1)).collect(),
            false => round.queues.retain(|(queue, _)| queues.contains(queue)),
        }
        let before = attempts.lock().unwrap().len();
        if !round.queues.is_empty() {
            Worker::new(round, registry.clone()).run(Shutdown::new()).await?;
        }
        // what is ready and was not started is held back: by a limit, a pause, or a job that is still to run
        if attempts.lock().unwrap().len() == before {
            let attempts = std::mem::take(&mut *attempts.lock().unwrap());
            return Ok(Drained { attempts });
        }
    }
    Err(
        Error::new(format!("there were still jobs to run after {MOST_ROUNDS} rounds"))
            .with_hint("Jobs that keep enqueueing jobs, or fail and are retried at once, are never drained."),
    )
}

/// What the keeper of a worker does all the time.
async fn make_due(client: &impl GenericClient) -> Result<()> {
    loop {
        let row = client.ask_one("select promoted from bugle.promote()", &[]).await?;
        if row.try_get::<_, Option<i32>>(0)?.unwrap_or_default() < 1_000 {
            break;
        }
    }
    client.ask_one("select bugle.expire()", &[]).await?;
    Ok(())
}

async fn queues_with_work(client: &impl GenericClient, commands: &Vec<String>) -> Result<Vec<String>> {
    let query = "select distinct j.queue from bugle.jobs j where j.state = 'ready' \
         and case when j.steps is null then j.command = any ($1) else j.steps <@ $1 end";
    let rows = client.ask(query, &[&commands]).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Let this much time pass for the jobs of a database: retries, snoozed and delayed jobs are due that much sooner, and
/// deadlines, answers that are overdue, rate limits, idempotency keys and schedules follow. The clock itself stays: all
/// stored times are moved back. Nothing is run before [`drain`] is called.
///
/// The login must own the schema, as the one that migrated it does. Only for databases of tests.
///
/// # Errors
/// If the database cannot be reached, or the login does not own the schema.
pub async fn advance(client: &impl GenericClient, by: Duration) -> Result<()> {
    let by = by.as_secs_f64();
    for statement in ADVANCE {
        let moved = client.change(statement, &[&by]).await;
        moved.map_err(|error| match error.sqlstate() {
            Some("42501") => Error::new(format!("this login may not change the times of jobs: {error}"))
                .with_hint("Connect as the login that migrated the database."),
            _ => error,
        })?;
    }
    Ok(())
}

const ADVANCE: &[&str] = &[
    "update bugle.jobs_live set created_at = created_at - make_interval(secs => $1), \
     run_at = run_at - make_interval(secs => $1), updated_at = updated_at - make_interval(secs => $1), \
     deadline = deadline - make_interval(secs => $1), answer_by = answer_by - make_interval(secs => $1), \
     first_started_at = first_started_at - make_interval(secs => $1), \
     started_at = started_at - make_interval(secs => $1)",
    "update bugle.idempotency_keys set expires_at = expires_at - make_interval(secs => $1)",
    "select bugle.move_starts(make_interval(secs => $1))",
    // the slots that have fired are deleted: the next ones may be the same
    "delete from bugle.schedule_runs where $1 > 0",
    "update bugle.schedules set next_at = next_at - make_interval(secs => $1), \
     starts_at = starts_at - make_interval(secs => $1), ends_at = ends_at - make_interval(secs => $1)",
];

/// What a [`drain`] ran.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Drained {
    /// Every run of an executor, in the order in which they started. The steps of a chain are runs of their own.
    pub attempts: Vec<Attempt>,
}

/// One run of an executor.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// The job.
    pub job: JobId,
    /// Its command, or the name of the step.
    pub command: String,
    /// The number of the attempt.
    pub attempt: i32,
    /// `completed`, `failed`, `snoozed`, `waiting`, `skipped`, `cancelled`; `stopped` if it exceeded its time limit.
    pub outcome: &'static str,
    /// The outcome in words, with the error if it failed.
    pub description: String,
}

impl Drained {
    /// How many runs of this command completed.
    pub fn completed(&self, command: &str) -> usize {
        self.count(command, "completed")
    }

    /// How many runs of this command failed, whether they will be retried or not.
    pub fn failed(&self, command: &str) -> usize {
        self.count(command, "failed")
    }

    fn count(&self, command: &str, outcome: &str) -> usize {
        let attempts = self.attempts.iter();
        attempts
            .filter(|a| a.command == command && a.outcome == outcome)
            .count()
    }

    /// Assert that no run failed or was stopped.
    ///
    /// # Panics
    /// If one was, with its error.
    #[track_caller]
    pub fn assert_no_failures(&self) -> &Self {
        let failed: Vec<String> = self
            .attempts
            .iter()
            .filter(|attempt| matches!(attempt.outcome, "failed" | "stopped"))
            .map(|a| {
                format!(
                    "  job {}, {:?}, attempt {}: {}",
                    a.job, a.command, a.attempt, a.description
                )
            })
            .collect();
        assert!(failed.is_empty(), "these runs failed:\n{}", failed.join("\n"));
        self
    }
}

/// Notes every run.
struct Record(Arc<Mutex<Vec<Attempt>>>);

impl Stage for Record {
    fn around(&self, context: Context, next: Next) -> Execution {
        let attempts = self.0.clone();
        let place = {
            let mut attempts = attempts.lock().unwrap();
            attempts.push(Attempt {
                job: context.id(),
                command: context.job().command.clone(),
                attempt: context.attempt(),
                outcome: "stopped",
                description: "it exceeded its time limit".into(),
            });
            attempts.len() - 1
        };
        Box::pin(async move {
            let outcome = panics::caught(next.run(context.clone()))
                .await
                .unwrap_or_else(Outcome::Fail);
            let attempt = &mut attempts.lock().unwrap()[place];
            attempt.outcome = word(&outcome, &context);
            attempt.description = describe(&outcome);
            outcome
        })
    }
}

fn word(outcome: &Outcome, context: &Context) -> &'static str {
    match outcome {
        Outcome::Settled if context.inner.attempt.settled() == Some(Settled::Waiting) => "waiting",
        Outcome::Complete(_) | Outcome::Settled => "completed",
        Outcome::Fail(_) => "failed",
        Outcome::Snooze(_) => "snoozed",
        Outcome::Wait { .. } => "waiting",
        Outcome::Skip(_) => "skipped",
        Outcome::Cancelled(_) => "cancelled",
    }
}
