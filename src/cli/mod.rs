//! What the `bugle` command understands. Each subcommand is a file; the binary parses, calls and prints.

mod with_postgres;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Bugle: a Postgres-native job runner.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
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
        Command::WithPostgres(arguments) => with_postgres::run(arguments),
        Command::GuardPostgres { folder } => {
            crate::private_postgres::guard(&folder)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
