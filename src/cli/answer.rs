//! What people tell jobs on the command line: `bugle jobs answer`, and `bugle jobs add-missing`.

use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::Args;
use serde_json::Value;
use tokio_postgres::Client;

use super::connect::ask;
use super::output;
use super::workflow;
use crate::admin::operate::{self, Answer};
use crate::job::JobId;

/// What to answer to whom.
#[derive(Debug, Args)]
pub struct AnswerArguments {
    /// The waiting job
    id: JobId,
    /// Its result, as JSON: the job is completed
    #[arg(long, value_name = "JSON", conflicts_with_all = ["error", "resume"])]
    result: Option<String>,
    /// What went wrong: the job has failed
    #[arg(long, value_name = "TEXT", conflicts_with = "resume")]
    error: Option<String>,
    /// An answer, as JSON, with which its executor goes on
    #[arg(long, value_name = "JSON")]
    resume: Option<String>,
    /// The token its executor handed out
    #[arg(long)]
    token: Option<String>,
}

/// `bugle jobs answer ID`.
pub async fn answer(client: &Client, arguments: AnswerArguments) -> Result<ExitCode> {
    let json = |text: &str| {
        serde_json::from_str::<Value>(text).map_err(|error| {
            anyhow!("the answer is not JSON: {error}\nhint: quote it for the shell, for example '\"yes\"'")
        })
    };
    let answer = match (&arguments.result, &arguments.error, &arguments.resume) {
        (_, Some(error), _) => Answer::Reject(error.clone()),
        (_, _, Some(text)) => Answer::Resume(json(text)?),
        (Some(text), ..) => Answer::Resolve(Some(json(text)?)),
        (None, None, None) => Answer::Resolve(None),
    };
    ask(
        client,
        operate::answer(client, arguments.id, &answer, arguments.token.as_deref()),
    )
    .await?;
    Ok(ExitCode::SUCCESS)
}

/// Which jobs to add.
#[derive(Debug, Args)]
pub struct AddMissing {
    /// What to do: the command of all of them
    command: String,
    /// A file with one JSON object on each line, or - for standard input: {"key": "order-1", "payload": {"order": 1}}
    #[arg(value_name = "FILE|-", default_value = "-")]
    file: String,
}

/// The lines that are added in one transaction.
const LINES: usize = 1000;

/// `bugle jobs add-missing COMMAND < file.jsonl`. Every line is read before anything is added.
pub async fn add_missing(client: &Client, arguments: AddMissing, json: bool) -> Result<ExitCode> {
    let text = workflow::text(&arguments.file)?;
    let mut jobs: Vec<Value> = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let job = serde_json::from_str(line).map_err(|error| anyhow!("line {}: {error}", number + 1))?;
        jobs.push(job);
    }
    let mut added = 0;
    for jobs in jobs.chunks(LINES) {
        added += ask(client, operate::add_missing(client, &arguments.command, jobs)).await?;
    }
    let there = jobs.len() as i64 - added;
    if json {
        output::print_json(&serde_json::json!({ "added": added, "there": there }))?;
    } else {
        output::print(&format!("{added} added, {there} were there\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}
