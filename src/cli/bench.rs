//! `bugle bench`: measure, and print a table or JSON lines.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::bench::{Bench, drain, enqueue, floor, pickup, worker};

/// Measure how fast Bugle is on this machine, next to the least Postgres itself can do
///
/// Runs on a private Postgres that waits for its disk as one in production does, and is gone afterwards; with --database-url
/// in databases of its own on that server, which are dropped afterwards. Workers are processes of their own. What is compared
/// is measured in the same run, turn by turn: trust the ratios more than the figures. Exit code 1 if a job is not accounted for.
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

#[derive(Debug, Subcommand)]
enum What {
    Drain(drain::Options),
    Pickup(pickup::Options),
    Enqueue(enqueue::Options),
    Floor(floor::Options),

    #[command(hide = true)]
    Worker(worker::Arguments),
}

pub fn run(arguments: Arguments) -> Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new()?;
    let what = match arguments.what {
        What::Worker(arguments) => return runtime.block_on(worker::run(arguments)),
        what => what,
    };
    let url = arguments.database_url.as_deref();
    let mut bench = Bench::new(url, arguments.pg, &[], arguments.json, arguments.quick)?;
    let measured = runtime.block_on(async {
        let measured = tokio::select! {
            measured = measure(&mut bench, what) => measured,
            _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
        };
        bench.clean_up().await?;
        measured
    });
    measured.map(|()| ExitCode::SUCCESS)
}

async fn measure(bench: &mut Bench, what: What) -> Result<()> {
    match what {
        What::Drain(options) => {
            drain::run(bench, options).await?;
            bench.finish("drain").await
        }
        What::Pickup(options) => {
            pickup::run(bench, options).await?;
            bench.finish("pickup").await
        }
        What::Enqueue(options) => {
            enqueue::run(bench, options).await?;
            bench.finish("enqueue").await
        }
        What::Floor(options) => {
            floor::run(bench, options).await?;
            bench.finish("floor").await
        }
        What::Worker(_) => unreachable!("runs no benchmark"),
    }
}
