//! `bugle queues`: how each queue is doing.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Result, anyhow};
use clap::{Args, Subcommand};
use tokio_postgres::Client;

use super::connect::{Connect, ask};
use super::operate;
use super::output::{self, Shown, Table, age, span};
use crate::admin::operate::{FleetVerb, Limits, set_command_limit, set_limits, set_queue};
use crate::admin::read::{self, Queue};

/// What to do; without a word they are shown.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: Option<What>,

    #[command(flatten)]
    connect: Connect,

    #[command(flatten)]
    shown: Shown,
}

#[derive(Debug, Subcommand)]
enum What {
    /// How each of them is doing; the same as no word.
    List,
    /// Pause a queue: its jobs are not claimed; running jobs go on.
    Pause {
        /// Its name
        whom: String,
        /// Why, for the record
        #[arg(long)]
        note: Option<String>,
    },
    /// Claim from a paused queue again.
    Resume {
        /// Its name
        whom: String,
        /// Why, for the record
        #[arg(long)]
        note: Option<String>,
    },
    /// Limit a queue, while it runs; what is not named stays. Prints what holds now.
    Set(Set),
    /// Limit how many jobs of a command run at once, in all queues together.
    LimitCommand {
        /// The command
        command: String,
        /// The most jobs, or none for no limit
        #[arg(value_name = "N|none", value_parser = number, allow_negative_numbers = true)]
        max_running: i32,
        /// Why, for the record
        #[arg(long)]
        note: Option<String>,
    },
}

#[derive(Debug, Args)]
struct Set {
    /// Its name
    queue: String,
    /// How many of its jobs run at once
    #[arg(long, value_name = "N|none", value_parser = number, allow_negative_numbers = true)]
    max_running: Option<i32>,
    /// How many start in a period that slides: 100/1m
    #[arg(long, value_name = "N/PERIOD|none", value_parser = rate)]
    max_starts: Option<Rate>,
    /// How many jobs of each limit key run at once
    #[arg(long, value_name = "N|none", value_parser = number, allow_negative_numbers = true)]
    max_running_per_key: Option<i32>,
    /// How many jobs of each limit key start in a period that slides
    #[arg(long, value_name = "N/PERIOD|none", value_parser = rate)]
    max_starts_per_key: Option<Rate>,
    /// Behind a job that is retried, the others of its order key wait (block) or go on (pass)
    #[arg(long, value_name = "block|pass")]
    order_on_retry: Option<String>,
    /// Whether a claim waits for the disk: a crash of the server then loses none. For the owner of the schema
    #[arg(long, value_name = "BOOL")]
    synchronous_claims: Option<bool>,
    /// Why, for the record
    #[arg(long)]
    note: Option<String>,
}

/// A number of starts for each period; 0 is none at all.
type Rate = (i32, Option<Duration>);

fn number(text: &str) -> Result<i32> {
    if text == "none" { Ok(0) } else { Ok(text.parse()?) }
}

fn rate(text: &str) -> Result<Rate> {
    if text == "none" {
        return Ok((0, None));
    }
    let (count, period) = text
        .split_once('/')
        .ok_or_else(|| anyhow!("expected a number and a period, such as 100/1m, or none"))?;
    Ok((count.trim().parse()?, Some(humantime::parse_duration(period.trim())?)))
}

async fn set(client: &Client, set: Set) -> Result<ExitCode> {
    if let Some(synchronous) = set.synchronous_claims {
        ask(client, set_queue(client, &set.queue, synchronous)).await?;
    }
    let limits = Limits {
        max_running: set.max_running,
        max_starts: set.max_starts,
        max_running_per_key: set.max_running_per_key,
        max_starts_per_key: set.max_starts_per_key,
        order_on_retry: set.order_on_retry,
    };
    let now = ask(client, set_limits(client, &set.queue, &limits, set.note.as_deref())).await?;
    output::print(&format!("{}\n", now.as_deref().unwrap_or("no limits")))?;
    Ok(ExitCode::SUCCESS)
}

pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let client = arguments.connect.client().await?;
    let (post, whom, note) = match arguments.what {
        None | Some(What::List) => {
            let list = async || {
                let now = ask(&client, read::now(&client)).await?;
                let queues = ask(&client, read::queues(&client)).await?;
                arguments.shown.rows(&queues, |queues| list(queues, now))
            };
            return arguments.shown.repeat(list).await;
        }
        Some(What::Set(limits)) => return set(&client, limits).await,
        Some(What::LimitCommand {
            command,
            max_running,
            note,
        }) => {
            ask(
                &client,
                set_command_limit(&client, &command, max_running, note.as_deref()),
            )
            .await?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(What::Pause { whom, note }) => (FleetVerb::PauseQueue, whom, note),
        Some(What::Resume { whom, note }) => (FleetVerb::ResumeQueue, whom, note),
    };
    operate::order(&client, post, &whom, note.as_deref()).await
}

fn list(queues: &[Queue], now: SystemTime) -> Table {
    let for_people = std::io::stdout().is_terminal();
    let mut table = Table::new(&[
        "QUEUE",
        "READY",
        "OLDEST",
        "RUNNING",
        "SCHEDULED",
        "RETRYING",
        "DUE",
        "WAITING",
        "PAUSED",
        "DONE/MIN",
        "FAILED/MIN",
        "WORKERS",
        "SLOTS",
        "UNSERVED",
        "HELD BACK",
    ]);
    for queue in queues {
        let oldest = queue
            .oldest_ready_seconds
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        table.row(vec![
            queue.queue.clone(),
            // for programs a number; --json says whether it is an estimate
            format!(
                "{}{}",
                if queue.is_estimate && for_people { "~" } else { "" },
                queue.ready
            ),
            oldest.map(span).unwrap_or_default(),
            queue.running.to_string(),
            queue.scheduled.to_string(),
            queue.retrying.to_string(),
            queue.due_next.map(|due| age(now, due)).unwrap_or_default(),
            queue.waiting.to_string(),
            queue.paused.to_string(),
            queue.completed_last_minute.to_string(),
            queue.failed_last_minute.to_string(),
            queue.workers.to_string(),
            queue.slots.to_string(),
            queue.unserved_commands.join(", "),
            held_back(queue, now),
        ]);
    }
    table
}

/// What keeps its jobs from starting: a pause, and its limits.
fn held_back(queue: &Queue, now: SystemTime) -> String {
    let paused = queue.paused_since.map(|since| format!("paused {}", age(now, since)));
    let all: Vec<String> = paused.into_iter().chain(queue.limits.clone()).collect();
    all.join(", ")
}
