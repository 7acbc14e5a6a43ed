//! What the `bugle` command understands. Each subcommand is a file; the binary parses, calls and prints.

mod answer;
mod bench;
mod config;
mod connect;
mod demo;
mod dev;
mod doctor;
mod enqueue;
mod filter;
mod health;
mod jobs;
mod migrate;
mod operate;
mod output;
mod queues;
mod rules;
mod schedules;
mod stats;
mod top;
mod with_postgres;
pub mod worker;
mod workers;
mod workflow;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};

use crate::execute::registry::Registry;

/// Bugle: a Postgres-native job runner.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve queues: claim jobs and run them.
    Worker(worker::Arguments),

    /// Bring the schema of a database up to date.
    Migrate(migrate::Arguments),

    /// Enqueue a job and print its id.
    Enqueue(Box<enqueue::Arguments>),

    /// Look at jobs.
    Jobs(jobs::Arguments),

    /// Show how each queue is doing.
    Queues(queues::Arguments),

    /// Manage recurring jobs: cron expressions and intervals.
    Schedules(schedules::Arguments),

    /// Show the worker processes.
    Workers(workers::Arguments),

    /// Enqueue jobs that start when others are done.
    Workflow(workflow::Arguments),

    /// Show the commands there are: who serves them, and what holds for their jobs.
    Commands(rules::Commands),

    /// Show how retries are spaced.
    Policies(rules::Policies),

    /// Show how much is done, how fast, and what fails.
    Stats(stats::Arguments),

    /// Watch queues, workers, what runs and what failed on one screen; pause, cancel and restart from there.
    Top(top::Arguments),

    /// Check the database and its workers for problems, and say how to fix them.
    Doctor(doctor::Arguments),

    /// Ask a worker whether it is well: exit code 0 or 1, for health checks.
    Health(health::Arguments),

    /// Look at what a worker would go by.
    Config(config::Arguments),

    /// Print what makes a shell complete these commands: bash, zsh, fish, elvish, powershell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },

    /// Start a database to play with and a worker beside it, until Ctrl-C.
    Dev(dev::Arguments),

    /// Watch it all happen: enqueue, retry, a killed worker, on a private Postgres that is gone afterwards.
    Demo(demo::Arguments),

    /// The story of the demo, on the server it started.
    #[command(hide = true)]
    DemoStory,

    /// Measure how fast it is on this machine, next to the least Postgres itself can do.
    Bench(bench::Arguments),

    /// Run a command with a private Postgres server, which is gone afterwards.
    #[command(hide = true)]
    WithPostgres(with_postgres::Arguments),

    /// Own a private server for another process: stop and remove it when that process is gone.
    #[command(hide = true)]
    GuardPostgres { folder: PathBuf },
}

/// Do what was asked for. The exit code is the command's own, or that of the program it ran.
///
/// # Errors
/// When it could not be done. The message is for the person at the terminal.
pub fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Command::Worker(arguments) => {
            let runtime = tokio::runtime::Runtime::new()?;
            let code = runtime.block_on(worker::run(arguments, Registry::new()));
            // executors that block a thread must not keep the process
            runtime.shutdown_background();
            code
        }
        Command::Migrate(arguments) => wait_for(migrate::run(arguments)),
        Command::Enqueue(arguments) => wait_for(enqueue::run(*arguments)),
        Command::Jobs(arguments) => wait_for(jobs::run(arguments)),
        Command::Queues(arguments) => wait_for(queues::run(arguments)),
        Command::Schedules(arguments) => wait_for(schedules::run(arguments)),
        Command::Workers(arguments) => wait_for(workers::run(arguments)),
        Command::Workflow(arguments) => wait_for(workflow::run(arguments)),
        Command::Commands(arguments) => wait_for(rules::commands(arguments)),
        Command::Policies(arguments) => wait_for(rules::policies(arguments)),
        Command::Stats(arguments) => wait_for(stats::run(arguments)),
        Command::Top(arguments) => wait_for(top::run(arguments)),
        Command::Doctor(arguments) => wait_for(doctor::run(arguments)),
        Command::Health(arguments) => wait_for(health::run(arguments)),
        Command::Config(arguments) => config::run(arguments),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "bugle", &mut script);
            output::print(&String::from_utf8_lossy(&script))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Dev(arguments) => dev::run(arguments),
        Command::Demo(arguments) => demo::run(arguments),
        Command::DemoStory => wait_for(demo::story()),
        Command::Bench(arguments) => bench::run(arguments),
        Command::WithPostgres(arguments) => with_postgres::run(arguments),
        Command::GuardPostgres { folder } => {
            crate::private_postgres::guard(&folder)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// What went wrong, for the person at the terminal: with its causes, and with a hint if there is one.
pub fn message(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause.to_string());
        // it has told its own causes already
        if cause.is::<crate::Error>() {
            break;
        }
    }
    // the server quotes what others wrote
    output::harmless(&text)
}

/// One thread is enough for a question or two.
fn wait_for(work: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(work)
}
