//! Commands that start a Postgres server of their own.

mod demo;
mod dev;
#[cfg(feature = "web")]
pub(super) mod shop;
mod with_postgres;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

/// Overrides variables such as PGSERVICE and PGOPTIONS, which are meant for another server, with empty values.
const NOTHING_ELSE: &str = "?service=&hostaddr=&options=&target_session_attrs=&sslmode=disable";

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Start a private Postgres server and a worker for development; Ctrl-C stops both.
    Dev(dev::Arguments),

    /// Run a guided demo (transactional enqueue, retries, a killed worker) on a temporary Postgres server.
    Demo(demo::Arguments),

    /// The demo itself, run on the server that `bugle demo` started.
    #[command(hide = true)]
    DemoStory,

    /// Run a command with a temporary Postgres server.
    #[command(hide = true)]
    WithPostgres(with_postgres::Arguments),

    /// Guard a private server for another process: stop and remove the server when that process exits.
    #[command(hide = true)]
    GuardPostgres { folder: PathBuf },
}

pub(super) fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Dev(arguments) => dev::run(arguments),
        Command::Demo(arguments) => demo::run(arguments),
        Command::DemoStory => super::wait_for(demo::story()),
        Command::WithPostgres(arguments) => with_postgres::run(arguments),
        Command::GuardPostgres { folder } => {
            crate::private_postgres::guard(&folder)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
