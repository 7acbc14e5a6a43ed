//! `bugle workflow`: enqueue and inspect workflows.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use serde_json::json;

use super::connect::{Connect, ask};
use super::output::{self, Table};
use crate::admin::{operate, read};
use crate::job::JobId;
use crate::state::{Reason, or_gone};

/// `bugle workflow`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,

    #[command(flatten)]
    connect: Connect,

    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Enqueue a workflow in one transaction and print the name and id of each job.
    Enqueue {
        /// File with {"jobs": {"x": {"command": …}, "y": {"command": …, "after": ["x"]}}}, or - for standard input
        #[arg(value_name = "FILE|-")]
        file: String,
    },
    /// Show the jobs of a workflow and their states.
    Show {
        /// Id of any job of the workflow
        id: JobId,
    },
}

pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    match arguments.what {
        What::Enqueue { file } => {
            let text = text(&file)?;
            let workflow = output::read_json(&file, &text)?;
            let client = arguments.connect.client_to("enqueue a workflow").await?;
            let jobs = ask(&client, operate::enqueue_workflow(&client, workflow)).await?;
            if arguments.json {
                let jobs: Vec<_> = jobs
                    .iter()
                    .map(|(name, id)| json!({ "name": name, "id": id }))
                    .collect();
                output::print_json(&jobs)?;
            } else {
                let mut table = Table::new(&["NAME", "ID"]);
                for (name, id) in jobs {
                    table.row(vec![name, id.to_string()]);
                }
                table.print()?;
            }
        }
        What::Show { id } => {
            let client = arguments.connect.client().await?;
            let jobs = ask(&client, read::workflow(&client, id)).await?;
            if jobs.is_empty() {
                bail!("job {id} does not belong to a workflow\nhint: bugle jobs show {id} shows what it waits for");
            }
            if arguments.json {
                output::print_json(&jobs)?;
            } else {
                let mut table = Table::new(&["NAME", "ID", "STATE", "COMMAND", "AFTER", "NOTE"]);
                for job in jobs {
                    table.row(vec![
                        job.name,
                        job.id.to_string(),
                        or_gone(job.state).to_owned(),
                        job.command.unwrap_or_default(),
                        job.after.join(", "),
                        job.reason.map_or("", Reason::as_str).to_owned(),
                    ]);
                }
                table.print()?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Read a file, or standard input.
pub fn text(file: &str) -> Result<String> {
    match file {
        "-" => std::io::read_to_string(std::io::stdin()).context("standard input"),
        file => std::fs::read_to_string(file).with_context(|| format!("cannot read {file}")),
    }
}
