//! `bugle workers`: the worker processes.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Result, anyhow, bail};
use clap::{Args, Subcommand};
use serde::Serialize;
use tokio_postgres::Client;

use super::connect::{Connect, ask};
use super::output::{Shown, Table, age};
use super::{contexts, operate};
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

    /// List the workers of the databases of all contexts
    #[arg(long)]
    all_contexts: bool,

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
    let shown = &arguments.shown;
    let (verb, order, whom, note) = match arguments.what {
        None | Some(What::List) if arguments.all_contexts => {
            return shown.repeat(async || of_all_contexts(arguments.all, shown).await).await;
        }
        None | Some(What::List) => {
            let client = arguments.connect.client().await?;
            let list = async || {
                let seen = Seen::read(&client, arguments.all).await?;
                shown.rows(&seen.workers, |workers| list(&[(None, workers, seen.now)]))
            };
            return shown.repeat(list).await;
        }
        Some(What::Pause { whom, note }) => ("pause", FleetVerb::PauseWorker, whom, note),
        Some(What::Resume { whom, note }) => ("resume", FleetVerb::ResumeWorker, whom, note),
        Some(What::Drain { whom, note }) => ("drain", FleetVerb::DrainWorker, whom, note),
    };
    let client = arguments.connect.client_to(&format!("{verb} worker {whom}")).await?;
    operate::order(&client, order, &whom, note.as_deref()).await
}

/// What one database says.
struct Seen {
    workers: Vec<WorkerLine>,
    now: SystemTime,
}

impl Seen {
    async fn read(client: &Client, all: bool) -> Result<Seen> {
        Ok(Seen {
            now: ask(client, read::now(client)).await?,
            workers: ask(client, read::workers(client, all)).await?,
        })
    }
}

/// A worker and the context that it is in.
#[derive(Serialize)]
struct InContext<'a> {
    context: &'a str,
    #[serde(flatten)]
    worker: &'a WorkerLine,
}

/// A database that does not answer within this time is left out, with a warning.
const PATIENCE: Duration = Duration::from_secs(5);

/// The workers of all databases that answer.
async fn of_all_contexts(all: bool, shown: &Shown) -> Result<()> {
    let contexts = contexts::all()?;
    if contexts.is_empty() {
        bail!("there are no contexts\nhint: bugle contexts says where to write them");
    }
    let seen = contexts.iter().map(async |context| {
        let seen = async {
            let client = Connect::of(context).client().await?;
            Seen::read(&client, all).await
        };
        let late = |_| anyhow!("no reply within {} s", PATIENCE.as_secs());
        let seen = tokio::time::timeout(PATIENCE, seen).await.map_err(late).flatten();
        if let Err(error) = &seen {
            eprintln!("warning: context {}: {}", context.name, super::message(error));
        }
        Some((context.name.as_str(), seen.ok()?))
    });
    let seen = futures_util::future::join_all(seen).await;
    let seen: Vec<(&str, Seen)> = seen.into_iter().flatten().collect();
    let rows = seen.iter().flat_map(|(context, seen)| {
        let in_context = |worker| InContext { context, worker };
        seen.workers.iter().map(in_context)
    });
    let rows: Vec<InContext> = rows.collect();
    let groups = seen
        .iter()
        .map(|(context, seen)| (Some(*context), &*seen.workers, seen.now));
    let groups: Vec<_> = groups.collect();
    shown.rows(&rows, |_| list(&groups))
}

/// The workers of each database, with the name of its context if there are several.
fn list(groups: &[(Option<&str>, &[WorkerLine], SystemTime)]) -> Table {
    let mut all = groups.iter().flat_map(|(_, workers, _)| *workers);
    let has_hosts = all.any(|worker| !hosts(worker).is_empty());
    let has_contexts = groups.iter().any(|(context, ..)| context.is_some());
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
    if has_contexts {
        headings.insert(0, "CONTEXT");
    }
    let mut table = Table::new(&headings);
    let workers = groups
        .iter()
        .flat_map(|(context, workers, now)| workers.iter().map(move |worker| (context, worker, *now)));
    for (context, worker, now) in workers {
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
        if has_contexts {
            row.insert(0, context.unwrap_or_default().to_owned());
        }
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
