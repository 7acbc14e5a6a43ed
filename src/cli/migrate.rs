//! `bugle migrate`: install or upgrade the schema, check its status, or print it.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

use super::connect::Connect;
use super::output;
use crate::schema::{self, Migrated, Status};

/// `bugle migrate`; without a subcommand, the schema is installed or upgraded.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: Option<What>,

    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Install or upgrade the schema (default). Safe to run in several processes at once.
    Up,
    /// Check whether the schema is up to date (exit code 0) or not (exit code 1).
    Status,
    /// Print the SQL that brings a database up to date, for psql or another migration tool.
    ///
    /// It is one statement and happens as a whole or not at all. It checks that the database has REVISION, and records
    /// what it did: bugle migrate then finds nothing to do.
    Sql {
        /// The revision that the database has: select revision from bugle.schema_version; 0 without the schema
        #[arg(long, value_name = "REVISION", default_value_t = 0, allow_negative_numbers = true)]
        from: i32,
    },
}

pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    match arguments.what.unwrap_or(What::Up) {
        What::Up => {
            arguments.connect.confirm("migrate the schema")?;
            let done = schema::migrate(&arguments.connect.target()?).await?;
            println!(
                "{}",
                if done == Migrated::Unchanged {
                    "already up to date"
                } else {
                    "migrated"
                }
            );
            let missing = schema::missing_roles(&arguments.connect.target()?).await?;
            if !missing.is_empty() {
                eprintln!(
                    "note: this user cannot create roles, so these are missing: {}\n\
                     hint: have them created and run bugle migrate again, or connect as the owner of the schema",
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
        What::Sql { from } => {
            output::print(&schema::script(from)?)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
