//! `bugle jobs answer` and `bugle jobs add-missing`.

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

/// `bugle jobs answer ID`.
#[derive(Debug, Args)]
pub struct AnswerArguments {
    /// Id of the waiting job
    pub id: JobId,
    /// Complete the job with this result (JSON)
    #[arg(long, value_name = "JSON", conflicts_with_all = ["error", "resume"])]
    result: Option<String>,
    /// Fail the job with this error
    #[arg(long, value_name = "TEXT", conflicts_with = "resume")]
    error: Option<String>,
    /// Resume the job with this answer (JSON)
    #[arg(long, value_name = "JSON")]
    resume: Option<String>,
    /// Token issued by the executor
    #[arg(long)]
    token: Option<String>,
}

/// `bugle jobs answer ID`.
pub async fn answer(client: &Client, arguments: AnswerArguments) -> Result<ExitCode> {
    let json = |text: &str| {
        output::read_json::<Value>("the answer", text)
            .map_err(|error| anyhow!("{error}\nhint: quote it for the shell, for example '\"yes\"'"))
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

/// `bugle jobs add-missing COMMAND`.
#[derive(Debug, Args)]
pub struct AddMissing {
    /// Command of all jobs
    command: String,
    /// File with one JSON object per line, or - for standard input: {"key": "order-1", "payload": {"order": 1}}
    #[arg(value_name = "FILE|-", default_value = "-")]
    file: String,
}

/// Lines per transaction.
const LINES: usize = 1000;

/// `bugle jobs add-missing COMMAND < file.jsonl`. All lines are parsed before the first job is added.
pub async fn add_missing(client: &Client, arguments: AddMissing, json: bool) -> Result<ExitCode> {
    let text = workflow::text(&arguments.file)?;
    let mut jobs: Vec<Value> = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let job = output::read_json(&format!("line {}", number + 1), line)?;
        jobs.push(job);
    }
    let mut added = 0;
    for jobs in jobs.chunks(LINES) {
        added += ask(client, operate::add_missing(client, &arguments.command, jobs)).await?;
    }
    let existing = jobs.len() as i64 - added;
    if json {
        output::print_json(&serde_json::json!({ "added": added, "existing": existing }))?;
    } else {
        output::print(&format!("{added} added, {existing} already existed\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}
