//! `bugle bench`: measure, and print a table or JSON lines.

use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::{Args, Subcommand};

use crate::bench::{
    Bench, backlog, drain, enqueue, floor, idle, limits, payload, peer, pickup, pinned, steady, worker,
};

/// Measure how fast Bugle is on this machine, next to the least Postgres itself can do
///
/// Runs on a private Postgres that waits for its disk as one in production does, and is gone afterwards; with
/// --database-url in databases of its own on that server, which are dropped afterwards. Workers are processes of their
/// own. What is compared is measured in the same run, turn by turn: trust the ratios more than the figures. Exit code 1
/// if a job is not accounted for.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,

    /// Measure on this server instead; the user must be allowed to create databases
    #[arg(long, global = true, value_name = "URL")]
    database_url: Option<String>,

    /// Take this major version of Postgres for the private server
    #[arg(long, global = true, value_name = "MAJOR")]
    pg: Option<u32>,

    /// Print one JSON line for each result
    #[arg(long, global = true)]
    json: bool,

    /// A second or so for each: proves that it works, measures little
    #[arg(long, global = true)]
    quick: bool,
}

#[derive(Debug, Clone, Subcommand)]
enum What {
    Drain(drain::Options),
    Limits(limits::Options),
    Pickup(pickup::Options),
    Enqueue(enqueue::Options),
    Steady(steady::Options),
    Pinned(pinned::Options),
    Backlog(backlog::Options),
    Idle(idle::Options),
    Payload(payload::Options),
    Floor(floor::Options),
    /// All of them, one after the other, each with its defaults
    All,

    /// A worker of a benchmark
    #[command(hide = true)]
    Worker(worker::Arguments),

    /// One job runner among others
    #[command(hide = true)]
    Peer {
        #[command(subcommand)]
        word: peer::Word,
    },
}

pub fn run(arguments: Arguments) -> Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new()?;
    let what = match arguments.what {
        What::Worker(arguments) => return runtime.block_on(worker::run(arguments)),
        What::Peer { word } => return runtime.block_on(peer::run(word)),
        what => what,
    };
    let settings = if matches!(what, What::Idle(_)) {
        &idle::SETTINGS[..]
    } else {
        &[]
    };
    let url = arguments.database_url.as_deref();
    let mut bench = Bench::new(url, arguments.pg, settings, arguments.json, arguments.quick)?;
    let measured = runtime.block_on(async {
        let measured = tokio::select! {
            measured = measure(&mut bench, what) => measured,
            _ = tokio::signal::ctrl_c() => Err(anyhow!("interrupted")),
        };
        bench.clean_up().await?;
        measured
    });
    measured.map(|()| ExitCode::SUCCESS)
}

async fn measure(bench: &mut Bench, what: What) -> Result<()> {
    let title = match what {
        What::Drain(options) => drain::run(bench, options).await.map(|()| "drain"),
        What::Limits(options) => limits::run(bench, options).await.map(|()| "limits"),
        What::Pickup(options) => pickup::run(bench, options).await.map(|()| "pickup"),
        What::Enqueue(options) => enqueue::run(bench, options).await.map(|()| "enqueue"),
        What::Steady(options) => steady::run(bench, options).await.map(|()| "steady"),
        What::Pinned(options) => pinned::run(bench, options).await.map(|()| "pinned"),
        What::Backlog(options) => backlog::run(bench, options).await.map(|()| "backlog"),
        What::Idle(options) => idle::run(bench, options).await.map(|()| "idle"),
        What::Payload(options) => payload::run(bench, options).await.map(|()| "payload"),
        What::Floor(options) => floor::run(bench, options).await.map(|()| "floor"),
        What::All => {
            for what in everything() {
                Box::pin(measure(bench, what)).await?;
            }
            return Ok(());
        }
        What::Worker(_) | What::Peer { .. } => unreachable!("no benchmark"),
    }?;
    bench.finish(title).await
}

fn everything() -> Vec<What> {
    let keep_none = drain::Options {
        keep_none: true,
        ..drain::Options::default()
    };
    vec![
        What::Floor(Default::default()),
        What::Drain(Default::default()),
        What::Drain(keep_none),
        What::Limits(Default::default()),
        What::Pickup(Default::default()),
        What::Enqueue(Default::default()),
        What::Steady(Default::default()),
        What::Pinned(Default::default()),
        What::Backlog(Default::default()),
        What::Idle(Default::default()),
        What::Payload(Default::default()),
    ]
}
