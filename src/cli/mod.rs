//! The `bugle` command line. Each subcommand has its own file; the binary parses the arguments and calls [`run`].

mod answer;
#[cfg(feature = "bench")]
mod bench;
mod config;
mod connect;
mod contexts;
mod doctor;
mod enqueue;
mod examples;
mod filter;
#[cfg(feature = "web")]
mod health;
mod hint;
mod host;
mod job;
mod jobs;
pub(crate) mod log;
mod man;
mod migrate;
mod nearest;
mod operate;
mod output;
#[cfg(feature = "dev")]
mod private_server;
mod queues;
mod rules;
mod schedules;
mod spellings;
mod stats;
#[cfg(feature = "tui")]
mod top;
#[cfg(feature = "web")]
mod web;
pub mod worker;
mod workers;
mod workflow;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::execute::registry::Registry;

/// Bugle: a Postgres-native job runner.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Cli {
    /// Context that names the database: see "bugle contexts"
    // commands that use a database have this flag too, and get the value
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a worker: claim jobs from queues and execute them.
    Worker(worker::Arguments),

    /// Install or upgrade the schema in a database.
    Migrate(migrate::Arguments),

    /// Enqueue a job and print its id.
    Enqueue(Box<enqueue::Arguments>),

    /// List and inspect jobs; cancel, pause, restart or delete them.
    Jobs(jobs::Arguments),

    /// Check that a host follows the protocol.
    Host(host::Arguments),

    /// Tell the worker about the job that this program runs: progress, snooze, wait, fail and other outcomes.
    Job(job::Arguments),

    /// Show queues; pause them or set their limits.
    Queues(queues::Arguments),

    /// Manage recurring jobs (cron expressions and intervals).
    Schedules(schedules::Arguments),

    /// Show workers; pause or drain them.
    Workers(workers::Arguments),

    /// Enqueue and inspect workflows: jobs that depend on other jobs.
    Workflow(workflow::Arguments),

    /// Show commands, the workers that serve them and the defaults of their jobs.
    Commands(rules::Commands),

    /// Show retry policies and preview their delays.
    Policies(rules::Policies),

    /// Show throughput, latency and failure rates.
    Stats(stats::Arguments),

    #[cfg(feature = "tui")]
    /// Monitor queues, workers and jobs on one screen; pause, cancel and restart them.
    Top(top::Arguments),

    /// Serve the web UI: inspect and operate everything in a browser.
    #[cfg(feature = "web")]
    Web(web::Arguments),

    /// Check the database and its workers for problems and print how to fix them.
    Doctor(doctor::Arguments),

    #[cfg(feature = "web")]
    /// Check whether a worker is healthy (exit code 0 or 1), for container health checks.
    Health(health::Arguments),

    /// List contexts: names for databases, for --context.
    Contexts(contexts::Arguments),

    /// Show the effective configuration of a worker.
    Config(config::Arguments),

    /// Print a shell completion script.
    Completions {
        /// Shell to generate the script for
        shell: clap_complete::Shell,
    },

    /// Print the manual page, or write the pages of all commands into a directory.
    Man(man::Arguments),

    #[cfg(feature = "dev")]
    #[command(flatten)]
    PrivateServer(private_server::Command),

    #[cfg(feature = "bench")]
    /// Benchmark Bugle on this machine and compare it with plain Postgres tables.
    Bench(bench::Arguments),
}

impl Command {
    /// Whether it takes `--context`.
    fn uses_contexts(&self) -> bool {
        let no = matches!(
            self,
            Command::Worker(_)
                | Command::Host(_)
                | Command::Job(_)
                | Command::Contexts(_)
                | Command::Config(_)
                | Command::Completions { .. }
                | Command::Man(_)
        );
        #[cfg(feature = "web")]
        let no = no || matches!(self, Command::Health(_));
        #[cfg(feature = "dev")]
        let no = no || matches!(self, Command::PrivateServer(_));
        #[cfg(feature = "bench")]
        let no = no || matches!(self, Command::Bench(_));
        !no
    }
}

/// All commands, each with examples.
fn command() -> clap::Command {
    examples::add(Cli::command())
}

/// For completions: the values of `--context` are those of the user's file.
fn with_contexts(command: clap::Command, names: &[&'static str]) -> clap::Command {
    let values = |argument: clap::Arg| match argument.get_id() == "context" && !names.is_empty() {
        true => argument.value_parser(clap::builder::PossibleValuesParser::new(names.to_vec())),
        false => argument,
    };
    command
        .mut_args(values)
        .mut_subcommands(|subcommand| with_contexts(subcommand, names))
}

/// Read the arguments of this process. Exits if they ask for help, or are wrong.
pub fn parse() -> Cli {
    Cli::from_arg_matches(&command().get_matches()).unwrap_or_else(|error| error.exit())
}

/// Run a subcommand. Returns its exit code, or the exit code of the program it ran.
///
/// # Errors
/// When the subcommand fails. The message is meant to be shown to the user; see [`message`].
pub fn run(cli: Cli) -> Result<ExitCode> {
    if cli.context.is_some() && !cli.command.uses_contexts() {
        bail!("this command does not use contexts\nhint: leave out --context; a worker's databases are in its file");
    }
    match cli.command {
        Command::Worker(arguments) => serve(worker::run(arguments, Registry::new())),
        Command::Migrate(arguments) => wait_for(migrate::run(arguments)),
        Command::Enqueue(arguments) => wait_for(enqueue::run(*arguments)),
        Command::Jobs(arguments) => wait_for(jobs::run(arguments)),
        Command::Host(arguments) => wait_for(host::run(arguments)),
        Command::Job(arguments) => job::run(arguments),
        Command::Queues(arguments) => wait_for(queues::run(arguments)),
        Command::Schedules(arguments) => wait_for(schedules::run(arguments)),
        Command::Workers(arguments) => wait_for(workers::run(arguments)),
        Command::Workflow(arguments) => wait_for(workflow::run(arguments)),
        Command::Commands(arguments) => wait_for(rules::commands(arguments)),
        Command::Policies(arguments) => wait_for(rules::policies(arguments)),
        Command::Stats(arguments) => wait_for(stats::run(arguments)),
        #[cfg(feature = "tui")]
        Command::Top(arguments) => wait_for(top::run(arguments)),
        #[cfg(feature = "web")]
        Command::Web(arguments) => serve(web::run(arguments)),
        Command::Doctor(arguments) => wait_for(doctor::run(arguments)),
        #[cfg(feature = "web")]
        Command::Health(arguments) => wait_for(health::run(arguments)),
        Command::Contexts(arguments) => contexts::run(&arguments),
        Command::Config(arguments) => config::run(arguments),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            let mut command = with_contexts(command(), &contexts::names());
            clap_complete::generate(shell, &mut command, "bugle", &mut script);
            output::print(&String::from_utf8_lossy(&script))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Man(arguments) => man::run(arguments, command()),
        #[cfg(feature = "dev")]
        Command::PrivateServer(command) => private_server::run(command),
        #[cfg(feature = "bench")]
        Command::Bench(arguments) => bench::run(arguments),
    }
}

/// The error message for the terminal: the error, its causes and its hint, if there is one.
pub fn message(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause.to_string());
        // its message already includes its causes
        if cause.is::<crate::Error>() {
            break;
        }
    }
    // messages from the server may quote untrusted text
    output::harmless(&hint::in_shell(&text))
}

/// Run a command that serves until it receives a signal, on all cores.
fn serve(work: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new()?;
    let code = runtime.block_on(work);
    // executors that block a thread must not keep the process alive
    runtime.shutdown_background();
    code
}

/// Run a short command on a single-threaded runtime.
fn wait_for(work: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(work)
}
