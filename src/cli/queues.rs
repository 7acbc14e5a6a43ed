//! `bugle queues`: how each queue is doing.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};

use super::connect::{Connect, explained};
use super::operate;
use super::output::{self, Table, age, span};
use crate::operate::Post;
use crate::read;

/// What to do; without a word they are shown.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: Option<What>,

    #[command(flatten)]
    connect: Connect,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Nobody claims from a queue any more; running jobs go on.
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
}

pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let client = arguments.connect.client().await?;
    if let Some(what) = arguments.what {
        let (post, whom, note) = match what {
            What::Pause { whom, note } => (Post::PauseQueue, whom, note),
            What::Resume { whom, note } => (Post::ResumeQueue, whom, note),
        };
        return operate::order(&client, post, &whom, note.as_deref()).await;
    }
    let now = read::now(&client).await?;
    let queues = read::queues(&client).await.map_err(explained)?;
    if arguments.json {
        output::print_json(&queues)?;
        return Ok(ExitCode::SUCCESS);
    }
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
    ]);
    for queue in queues {
        let oldest = queue
            .oldest_ready_seconds
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        table.row(vec![
            queue.queue,
            queue.ready.to_string(),
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
        ]);
    }
    table.print()?;
    Ok(ExitCode::SUCCESS)
}
