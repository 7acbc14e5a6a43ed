//! `bugle bench`: run benchmarks and print a table or JSON lines.

use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::{Args, Subcommand};

#[cfg(feature = "web")]
use crate::bench::web;
use crate::bench::{
    Bench, backlog, builtin, drain, due, enqueue, fleet, floor, host, idle, limits, operate, payload, peer, pickup,
    pinned, steady, worker,
};

/// Benchmark Bugle on this machine and compare it with plain Postgres tables
///
/// Runs on a temporary Postgres server with durable commits (fsync on), or with --database-url in temporary databases
/// on that server. Workers are separate processes. Alternatives are measured in turns within the same run, so ratios
/// are more reliable than absolute figures. The exit code is 1 if any job is unaccounted for.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,

    /// Measure on this server instead; the user must be allowed to create databases
    #[arg(long, global = true, value_name = "URL")]
    database_url: Option<String>,

    /// Major version of Postgres for the temporary server
    #[arg(long, global = true, value_name = "MAJOR")]
    pg: Option<u32>,

    /// Print JSON, one line per result
    #[arg(long, global = true)]
    json: bool,

    /// Run each benchmark for about a second, to check that it works; the figures mean little
    #[arg(long, global = true)]
    quick: bool,
}

#[derive(Debug, Clone, Subcommand)]
enum What {
    Drain(drain::Options),
    Limits(limits::Options),
    Host(host::Options),
    Pickup(pickup::Options),
    Enqueue(enqueue::Options),
    Steady(steady::Options),
    Pinned(pinned::Options),
    Backlog(backlog::Options),
    Idle(idle::Options),
    Fleet(fleet::Options),
    Payload(payload::Options),
    Operate(operate::Options),
    Due(due::Options),
    Sql(builtin::SqlOptions),
    Program(builtin::ProgramOptions),
    Floor(floor::Options),
    #[cfg(feature = "web")]
    Web(web::Options),
    /// Run all benchmarks with their defaults
    All,

    /// A worker process of a benchmark
    #[command(hide = true)]
    Worker(worker::Arguments),

    /// Measure another job runner for comparison
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
    let settings = if matches!(what, What::Idle(_) | What::Fleet(_)) {
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
        What::Host(options) => host::run(bench, options).await.map(|()| "host"),
        What::Pickup(options) => pickup::run(bench, options).await.map(|()| "pickup"),
        What::Enqueue(options) => enqueue::run(bench, options).await.map(|()| "enqueue"),
        What::Steady(options) => steady::run(bench, options).await.map(|()| "steady"),
        What::Pinned(options) => pinned::run(bench, options).await.map(|()| "pinned"),
        What::Backlog(options) => backlog::run(bench, options).await.map(|()| "backlog"),
        What::Idle(options) => idle::run(bench, options).await.map(|()| "idle"),
        What::Fleet(options) => fleet::run(bench, options).await.map(|()| "fleet"),
        What::Payload(options) => payload::run(bench, options).await.map(|()| "payload"),
        What::Operate(options) => operate::run(bench, options).await.map(|()| "operate"),
        What::Due(options) => due::run(bench, options).await.map(|()| "due"),
        What::Sql(options) => builtin::sql(bench, options).await.map(|()| "sql"),
        What::Program(options) => builtin::program(bench, options).await.map(|()| "program"),
        What::Floor(options) => floor::run(bench, options).await.map(|()| "floor"),
        #[cfg(feature = "web")]
        What::Web(options) => web::run(bench, options).await.map(|()| "web"),
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
        What::Host(Default::default()),
        What::Pickup(Default::default()),
        What::Enqueue(Default::default()),
        What::Steady(Default::default()),
        What::Pinned(Default::default()),
        What::Backlog(Default::default()),
        What::Idle(Default::default()),
        What::Payload(Default::default()),
        What::Operate(Default::default()),
        What::Due(Default::default()),
        What::Sql(Default::default()),
        What::Program(Default::default()),
    ]
}
