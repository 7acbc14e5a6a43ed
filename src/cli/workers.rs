//! `bugle workers`: the worker processes.

use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Result;
use clap::{Args, Subcommand};

use super::connect::{Connect, ask};
use super::operate;
use super::output::{Shown, Table, age};
use crate::admin::operate::FleetVerb;
use crate::admin::read::{self, WorkerLine};

/// `bugle workers`; without a subcommand, the workers are listed.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: Option<What>,

    /// Include stopped workers
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    connect: Connect,

    #[command(flatten)]
    shown: Shown,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List workers (default).
    List,
    /// Pause a worker: it claims no more jobs; running jobs finish.
    Pause {
        /// Worker id
        #[arg(value_name = "ID")]
        whom: String,
        /// Reason, recorded in bugle.changes
        #[arg(long)]
        note: Option<String>,
    },
    /// Resume a paused worker.
    Resume {
        /// Worker id
        #[arg(value_name = "ID")]
        whom: String,
        /// Reason, recorded in bugle.changes
        #[arg(long)]
        note: Option<String>,
    },
    /// Drain a worker: it finishes its running jobs and exits.
    Drain {
        /// Worker id
        #[arg(value_name = "ID")]
        whom: String,
        /// Reason, recorded in bugle.changes
        #[arg(long)]
        note: Option<String>,
    },
}

pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let client = arguments.connect.client().await?;
    let (post, whom, note) = match arguments.what {
        None | Some(What::List) => {
            let list = async || {
                let now = ask(&client, read::now(&client)).await?;
                let workers = ask(&client, read::workers(&client, arguments.all)).await?;
                arguments.shown.rows(&workers, |workers| list(workers, now))
            };
            return arguments.shown.repeat(list).await;
        }
        Some(What::Pause { whom, note }) => (FleetVerb::PauseWorker, whom, note),
        Some(What::Resume { whom, note }) => (FleetVerb::ResumeWorker, whom, note),
        Some(What::Drain { whom, note }) => (FleetVerb::DrainWorker, whom, note),
    };
    operate::order(&client, post, &whom, note.as_deref()).await
}

fn list(workers: &[WorkerLine], now: SystemTime) -> Table {
    let has_hosts = workers.iter().any(|worker| !hosts(worker).is_empty());
    let mut headings = vec![
        "ID",
        "NAME",
        "HOST",
        "PROCESS",
        "VERSION",
        "STATE",
        "RUNNING",
        "COMPLETED",
        "FAILED",
        "QUEUES",
        "COMMANDS",
        "STARTED",
        "SEEN",
    ];
    headings.extend(has_hosts.then_some("HOSTS"));
    let mut table = Table::new(&headings);
    for worker in workers {
        let queues = worker
            .queues
            .iter()
            .zip(&worker.slots)
            .map(|(queue, slots)| format!("{queue}={slots}"));
        let keeper = if worker.is_keeper { " (keeper)" } else { "" };
        let mut row = vec![
            worker.id.to_string(),
            worker.name.clone(),
            worker.host.clone().unwrap_or_default(),
            worker.process_id.map(|id| id.to_string()).unwrap_or_default(),
            worker.version.clone().unwrap_or_default(),
            format!("{}{keeper}", worker.state),
            worker.running.to_string(),
            worker.completed.to_string(),
            worker.failed.to_string(),
            queues.collect::<Vec<_>>().join(" "),
            worker.commands.join(" "),
            age(now, worker.started_at),
            age(now, worker.seen_at),
        ];
        row.extend(has_hosts.then(|| hosts(worker)));
        table.row(row);
    }
    table
}

/// Each host with the number of its processes that are ready, and that it should have.
fn hosts(worker: &WorkerLine) -> String {
    let all = worker.hosts.as_array().map(Vec::as_slice).unwrap_or_default();
    let shown = all.iter().filter_map(|host| {
        let (ready, processes) = (host["ready"].as_u64()?, host["processes"].as_u64()?);
        Some(format!("{}={ready}/{processes}", host["name"].as_str()?))
    });
    shown.collect::<Vec<_>>().join(" ")
}
