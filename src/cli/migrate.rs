//! `bugle migrate`: bring the schema of a database up to date, compare it, or print it.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

use super::connect::Connect;
use crate::schema::{self, Status};

/// What to do with the schema.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: Option<What>,

    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Bring the schema up to date (the default). Any number of processes may do so at once.
    Up,
    /// Say whether it is up to date: exit code 0 if so, 1 if not.
    Status,
    /// Print the whole schema as one script, to pipe into psql or another migration tool.
    Sql,
}

pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    match arguments.what.unwrap_or(What::Up) {
        What::Up => {
            let before = schema::migrate(&arguments.connect.target()?).await?;
            println!(
                "{}",
                if before == Status::UpToDate {
                    "already up to date"
                } else {
                    "migrated"
                }
            );
            let missing = schema::missing_roles(&arguments.connect.target()?).await?;
            if !missing.is_empty() {
                eprintln!(
                    "note: this user may not create roles, so there is no {}\n\
                     hint: have them created and run bugle migrate again, or let everyone connect as the owner",
                    missing.join(", ")
                );
            }
            Ok(ExitCode::SUCCESS)
        }
        What::Status => {
            let status = schema::check(&arguments.connect.target()?).await?;
            println!(
                "{}",
                match status {
                    Status::UpToDate => "up to date",
                    Status::Missing => "no schema: run bugle migrate",
                    Status::Behind => "behind: run bugle migrate",
                    Status::Ahead => "ahead: this bugle is older than the schema",
                }
            );
            Ok(if status == Status::UpToDate {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
        What::Sql => {
            print!("{}", schema::script());
            Ok(ExitCode::SUCCESS)
        }
    }
}
