//! `bugle queues`: statistics, pausing and limits of queues.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Result, anyhow, bail};
use clap::{Args, Subcommand};
use tokio_postgres::Client;

use super::connect::{Connect, ask};
use super::output::{self, Shown, Table, age, span};
use super::spellings::spellings;
use super::{nearest, operate};
use crate::admin::operate::{FleetVerb, Limits, OrderOnRetry, set_command_limit, set_limits, set_queue};
use crate::admin::read::{self, Queue};

/// `bugle queues`; without a subcommand, the queues are listed.
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
    /// List queues with their statistics (default).
    List,
    /// Pause a queue: no more of its jobs are started; running jobs finish.
    Pause {
        /// Name of the queue
        #[arg(value_name = "QUEUE")]
        whom: String,
        /// Reason, recorded in bugle.changes
        #[arg(long)]
        note: Option<String>,
    },
    /// Resume a paused queue.
    Resume {
        /// Name of the queue
        #[arg(value_name = "QUEUE")]
        whom: String,
        /// Reason, recorded in bugle.changes
        #[arg(long)]
        note: Option<String>,
    },
    /// Set limits of a queue and print the limits now in force. Limits that are not given stay as they are.
    Set(Set),
    /// Remove a queue: its pause and its limits. It must have no jobs left.
    #[command(visible_alias = "delete")]
    Remove {
        /// Name of the queue
        #[arg(value_name = "QUEUE")]
        whom: String,
        /// Reason, recorded in bugle.changes
        #[arg(long)]
        note: Option<String>,
    },
    /// Limit the number of running jobs of a command, across all queues.
    LimitCommand {
        /// Name of the command
        command: String,
        /// Maximum number of running jobs, or none
        #[arg(value_name = "N|none", value_parser = number, allow_negative_numbers = true)]
        max_running: i32,
        /// Reason, recorded in bugle.changes
        #[arg(long)]
        note: Option<String>,
    },
}

impl What {
    /// What it changes; none for a list.
    fn change(&self) -> Option<String> {
        Some(match self {
            What::List => return None,
            What::Pause { whom, .. } => format!("pause queue {whom}"),
            What::Resume { whom, .. } => format!("resume queue {whom}"),
            What::Set(set) => format!("set limits of queue {}", set.queue),
            What::Remove { whom, .. } => format!("remove queue {whom}"),
            What::LimitCommand { command, .. } => format!("limit command {command}"),
        })
    }
}

#[derive(Debug, Args)]
struct Set {
    /// Name of the queue
    queue: String,
    /// Maximum number of running jobs
    #[arg(long, value_name = "N|none", value_parser = number, allow_negative_numbers = true)]
    max_running: Option<i32>,
    /// Maximum number of starts in a sliding period: 100/1m; without a period, the present one stays
    #[arg(long, value_name = "N[/PERIOD]|none", value_parser = rate)]
    max_starts: Option<Rate>,
    /// Maximum number of running jobs per limit key
    #[arg(long, value_name = "N|none", value_parser = number, allow_negative_numbers = true)]
    max_running_per_key: Option<i32>,
    /// Maximum number of starts per limit key in a sliding period
    #[arg(long, value_name = "N[/PERIOD]|none", value_parser = rate)]
    max_starts_per_key: Option<Rate>,
    /// Whether jobs wait for an earlier job of their order key that is being retried (block) or overtake it (pass)
    #[arg(long, value_parser = spellings(OrderOnRetry::ALL, OrderOnRetry::as_str))]
    order_on_retry: Option<OrderOnRetry>,
    /// Whether claims are committed durably, so that a server crash loses none. Requires the owner of the schema
    #[arg(long, value_name = "BOOL")]
    synchronous_claims: Option<bool>,
    /// Reason, recorded in bugle.changes
    #[arg(long)]
    note: Option<String>,
}

/// A number of starts per period; 0 for no limit.
type Rate = (i32, Option<Duration>);

fn number(text: &str) -> Result<i32> {
    if text == "none" {
        return Ok(0);
    }
    text.parse().map_err(|_| anyhow!("expected a number, or none"))
}

fn rate(text: &str) -> Result<Rate> {
    if text == "none" {
        return Ok((0, None));
    }
    let wrong = || anyhow!("expected a number and a period, such as 100/1m, or none");
    let (count, period) = match text.split_once('/') {
        Some((count, period)) => (
            count,
            Some(humantime::parse_duration(period.trim()).map_err(|_| wrong())?),
        ),
        None => (text, None),
    };
    Ok((count.trim().parse().map_err(|_| wrong())?, period))
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
    let now = match ask(client, set_limits(client, &set.queue, &limits, set.note.as_deref())).await {
        Err(error) if error.to_string().contains("_period\" (null) must be set together") => {
            bail!("a number of starts needs its period\nhint: give both, such as 100/1m")
        }
        now => now?,
    };
    output::print(&format!("{}\n", now.as_deref().unwrap_or("no limits")))?;
    warn_if_mistyped(client, &set.queue).await?;
    Ok(ExitCode::SUCCESS)
}

/// A queue may be set up before it has jobs or workers; it may also be a typing error.
async fn warn_if_mistyped(client: &Client, queue: &str) -> Result<()> {
    let queues = match ask(client, read::queues(client)).await {
        Err(error) if error.sqlstate() == Some("42501") => return Ok(()),
        queues => queues?,
    };
    let served: Vec<String> = queues
        .into_iter()
        .filter(|one| one.workers > 0)
        .map(|one| one.queue)
        .collect();
    if !served.iter().any(|name| name == queue)
        && let Some(meant) = nearest::of(queue, &served)
    {
        eprintln!(
            "warning: no live worker serves queue {queue:?}; did you mean {meant:?}?\nhint: bugle queues remove {queue}"
        );
    }
    Ok(())
}

/// As for a queue: a command may be limited before a worker serves it.
async fn warn_of_command(client: &Client, command: &str) -> Result<()> {
    let commands = match ask(client, read::commands(client)).await {
        Err(error) if error.sqlstate() == Some("42501") => return Ok(()),
        commands => commands?,
    };
    let served: Vec<String> = commands
        .into_iter()
        .filter(|one| one.workers > 0)
        .map(|one| one.name)
        .collect();
    if !served.iter().any(|name| name == command)
        && let Some(meant) = nearest::of(command, &served)
    {
        eprintln!(
            "warning: no live worker serves command {command:?}; did you mean {meant:?}?\n\
             hint: bugle queues limit-command {command} none"
        );
    }
    Ok(())
}

pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let connect = &arguments.connect;
    if let Some(change) = arguments.what.as_ref().and_then(What::change) {
        connect.confirm(&change)?;
    }
    let client = connect.client().await?;
    let (verb, whom, note) = match arguments.what {
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
            warn_of_command(&client, &command).await?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(What::Pause { whom, note }) => (FleetVerb::PauseQueue, whom, note),
        Some(What::Resume { whom, note }) => (FleetVerb::ResumeQueue, whom, note),
        Some(What::Remove { whom, note }) => (FleetVerb::RemoveQueue, whom, note),
    };
    operate::order(&client, verb, &whom, note.as_deref()).await
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
            // a plain number for programs; --json has is_estimate
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

/// What keeps jobs of the queue from starting: a pause and limits.
fn held_back(queue: &Queue, now: SystemTime) -> String {
    let paused = queue.paused_since.map(|since| format!("paused {}", age(now, since)));
    let all: Vec<String> = paused.into_iter().chain(queue.limits.clone()).collect();
    all.join(", ")
}
