//! `bugle enqueue COMMAND [JSON]`: one job from the command line.

use std::io::Read;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use serde_json::json;
use serde_json::value::RawValue;

use super::connect::{Connect, explained};
use super::output;
use crate::enqueue::{NewJob, OnConflict};
use crate::read;

/// The job to enqueue.
#[derive(Debug, Args)]
pub struct Arguments {
    /// What to do: the name an executor is registered for
    command: String,

    /// The payload as JSON, or - to read it from standard input
    #[arg(value_name = "JSON|-", default_value = "{}", allow_negative_numbers = true)]
    payload: String,

    /// The lane to wait in [default: default]
    #[arg(long)]
    queue: Option<String>,

    /// Smaller runs sooner [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i32>,

    /// Not before this time, as Postgres reads it: '2026-12-24 18:00+01', 'tomorrow 8:00'
    #[arg(long, value_name = "TIME")]
    run_at: Option<String>,

    /// Not before this much later: 90s, 10m, 2h
    #[arg(long = "in", value_name = "DURATION", value_parser = humantime::parse_duration, conflicts_with = "run_at")]
    delay: Option<Duration>,

    /// Fail it if it has not started by this time
    #[arg(long, value_name = "TIME")]
    deadline: Option<String>,

    /// How long one attempt may take: 30s, 5m
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,

    /// How often it is tried, whatever its policy says
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_attempts: Option<i32>,

    /// How retries are spaced: a row of bugle.retry_policies
    #[arg(long, value_name = "POLICY")]
    retry_policy: Option<String>,

    /// A name and a value that travel with the job; may be repeated
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = name_and_value)]
    headers: Vec<(String, String)>,

    /// At most one live job of the command has this key: if there is one, its id is printed
    #[arg(long, value_name = "KEY")]
    unique_key: Option<String>,

    /// What becomes of a live job with the unique key: keep, replace (its payload) or move (its time) [default: keep]
    #[arg(long, value_name = "MODE")]
    on_conflict: Option<OnConflict>,

    /// One job of the command has this key until it expires, even if that job has ended
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,

    /// How long the idempotency key is remembered [default: 24h]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, requires = "idempotency_key")]
    idempotency_ttl: Option<Duration>,

    /// Print {"id": …, "created": …} instead of the id
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connect: Connect,
}

pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let payload = payload(&arguments.payload)?;
    let client = arguments.connect.client().await?;
    let mut job = NewJob::new(&arguments.command, payload);
    if let Some(queue) = &arguments.queue {
        job = job.queue(queue);
    }
    if let Some(priority) = arguments.priority {
        job = job.priority(priority);
    }
    if let Some(text) = &arguments.run_at {
        job = job.run_at(read::time(&client, text).await.context("--run-at")?);
    }
    if let Some(delay) = arguments.delay {
        job = job.delay(delay);
    }
    if let Some(text) = &arguments.deadline {
        job = job.deadline(read::time(&client, text).await.context("--deadline")?);
    }
    if let Some(limit) = arguments.timeout {
        job = job.timeout(limit);
    }
    if let Some(attempts) = arguments.max_attempts {
        job = job.max_attempts(attempts);
    }
    if let Some(policy) = &arguments.retry_policy {
        job = job.retry_policy(policy);
    }
    for (name, value) in &arguments.headers {
        job = job.header(name, value.as_str());
    }
    if let Some(key) = &arguments.unique_key {
        job = job.unique_key(key);
    }
    if let Some(mode) = arguments.on_conflict {
        job = job.on_conflict(mode);
    }
    if let Some(key) = &arguments.idempotency_key {
        job = job.idempotency_key(key);
    }
    if let Some(ttl) = arguments.idempotency_ttl {
        job = job.idempotency_ttl(ttl);
    }

    let job = job.enqueue_once(&client).await.map_err(explained)?;
    if arguments.json {
        output::print_json(&json!({ "id": job.id, "created": job.created }))?;
    } else {
        output::print(&format!("{}\n", job.id))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Looked at before anything is connected to. Kept as it was written: a number with forty digits stays one.
fn payload(argument: &str) -> Result<Box<RawValue>> {
    let (source, text) = match argument {
        "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("standard input")?;
            ("standard input", text)
        }
        text => ("the payload", text.to_owned()),
    };
    serde_json::from_str(&text).map_err(|error| {
        anyhow!("{source} is not JSON: {error}\nhint: quote it for the shell, for example '{{\"name\": \"Ada\"}}'")
    })
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}
