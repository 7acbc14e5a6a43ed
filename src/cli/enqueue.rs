//! `bugle enqueue COMMAND [JSON]`: enqueue a job from the command line, or many jobs from a file.

mod bulk;
mod statement;

use std::io::Read;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use serde_json::json;
use serde_json::value::RawValue;

use tokio_postgres::Client;

use super::connect::{Connect, ask};
use super::{nearest, output};
use crate::admin::read;
use crate::client::enqueue::{NewJob, OnConflict};
use crate::job::JobId;

/// The job to enqueue.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Command to run: a name that a worker has an executor for
    #[arg(required_unless_present = "jsonl")]
    command: Option<String>,

    /// Payload as JSON, or - to read it from standard input
    #[arg(value_name = "JSON|-", default_value = "{}", allow_negative_numbers = true)]
    payload: String,

    /// Queue [default: default]
    #[arg(long)]
    queue: Option<String>,

    /// Priority; smaller numbers run first [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i32>,

    /// Do not start before this time, in any format Postgres accepts: '2026-12-24 18:00+01', 'tomorrow 8:00'
    #[arg(long, value_name = "TIME")]
    run_at: Option<String>,

    /// Do not start before this delay has passed: 90s, 10m, 2h
    #[arg(long = "in", value_name = "DURATION", value_parser = humantime::parse_duration, conflicts_with = "run_at")]
    delay: Option<Duration>,

    /// Fail the job if it has not started by this time
    #[arg(long, value_name = "TIME")]
    deadline: Option<String>,

    /// Time limit for each attempt: 30s, 5m
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,

    /// Maximum number of attempts; overrides the retry policy
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_attempts: Option<i32>,

    /// Retry policy; see "bugle policies"
    #[arg(long, value_name = "POLICY")]
    retry_policy: Option<String>,

    /// Delay before the first retry: 10s, 5m; overrides the retry policy
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    retry_delay: Option<Duration>,

    /// Header that is passed along with the job; may be repeated
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = name_and_value)]
    headers: Vec<(String, String)>,

    /// Allow at most one live job of the command with this key; if there is one, print its id
    #[arg(long, value_name = "KEY")]
    unique_key: Option<String>,

    /// If a live job has the unique key: keep it, replace its payload, or move its time [default: keep]
    #[arg(long, value_name = "MODE")]
    on_conflict: Option<OnConflict>,

    /// Enqueue at most one job of the command with this key until the key expires, even after that job has finished
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,

    /// Lifetime of the idempotency key [default: 24h]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, requires = "idempotency_key")]
    idempotency_ttl: Option<Duration>,

    /// Start after this job has completed; may be repeated
    #[arg(long, value_name = "ID", conflicts_with = "on_conflict")]
    after: Vec<crate::JobId>,

    /// Start after this job has completed, failed or been cancelled; may be repeated
    #[arg(long, value_name = "ID", conflicts_with = "on_conflict")]
    after_end_of: Vec<crate::JobId>,

    /// Command to enqueue when this job completes
    #[arg(long, value_name = "COMMAND")]
    on_success: Option<String>,

    /// Command to enqueue when this job fails for good
    #[arg(long, value_name = "COMMAND")]
    on_failure: Option<String>,

    /// Step of a chain; repeat the flag for each step, in order. COMMAND is then only a name for the chain
    #[arg(long = "step", value_name = "COMMAND")]
    steps: Vec<String>,

    /// Run jobs of the queue that have the same key one at a time, in the order of their ids
    #[arg(long, value_name = "KEY")]
    order_key: Option<String>,

    /// Key for the per-key limits of the queue
    #[arg(long, value_name = "KEY")]
    limit_key: Option<String>,

    /// Share the queue fairly among these keys (tenants, for example)
    #[arg(long, value_name = "KEY")]
    fair_key: Option<String>,

    /// Print {"id": …, "created": …} instead of the id
    #[arg(long)]
    json: bool,

    /// Enqueue one job per line of a file, all or none; each line is a JSON object with columns of bugle.jobs
    #[arg(long, value_name = "FILE|-", conflicts_with_all = ["payload", "wait", "print_sql", "queue", "priority",
        "run_at", "delay", "deadline", "timeout", "max_attempts", "retry_policy", "retry_delay", "headers",
        "unique_key", "on_conflict", "idempotency_key", "idempotency_ttl", "after", "after_end_of", "on_success",
        "on_failure", "steps", "order_key", "limit_key", "fair_key"])]
    jsonl: Option<String>,

    /// Wait for the job to finish and print its result; exit code 1 if it did not complete
    #[arg(long)]
    wait: bool,

    /// With --wait: at most this long [default: no limit; 5s if no live worker serves the command]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, requires = "wait")]
    wait_timeout: Option<Duration>,

    /// Print the INSERT statement instead of running it
    #[arg(long, conflicts_with_all = ["wait", "on_conflict", "after", "after_end_of"])]
    print_sql: bool,

    #[command(flatten)]
    connect: Connect,
}

pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    if let Some(file) = &arguments.jsonl {
        let client = arguments.connect.client_to("enqueue jobs").await?;
        return bulk::run(client, file, arguments.command.as_deref(), arguments.json).await;
    }
    let payload = payload(&arguments.payload)?;
    let mut job = new_job(&arguments, &payload);
    if arguments.print_sql {
        let times = [("run_at", &arguments.run_at), ("deadline", &arguments.deadline)];
        output::print(&statement::statement(&job, payload.get(), times)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let client = arguments.connect.client_to("enqueue a job").await?;
    if let Some(text) = &arguments.run_at {
        job = job.run_at(ask(&client, read::time(&client, text)).await.context("--run-at")?);
    }
    if let Some(text) = &arguments.deadline {
        job = job.deadline(ask(&client, read::time(&client, text)).await.context("--deadline")?);
    }
    if let Some(parent) = std::env::var("TRACEPARENT")
        .ok()
        .as_deref()
        .and_then(crate::observe::trace::parent)
        && !arguments
            .headers
            .iter()
            .any(|(name, _)| name == crate::observe::trace::HEADER)
    {
        job = job.header(crate::observe::trace::HEADER, parent);
    }
    let job = ask(&client, job.enqueue_once(&client)).await?;
    let is_served = warn_if_not_served(&client, job.id).await?;
    if arguments.wait {
        let at_most = arguments.wait_timeout.or((!is_served).then_some(PATIENCE));
        return super::operate::wait(&arguments.connect.target()?, &client, job.id, at_most).await;
    }
    if arguments.json {
        output::print_json(&json!({ "id": job.id, "created": job.created }))?;
    } else {
        output::print(&format!("{}\n", job.id))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// How long to wait for a job that no live worker serves: one may be starting.
const PATIENCE: Duration = Duration::from_secs(5);

/// A command is only a name: a misspelled one would wait indefinitely. Logins that may not see workers are not warned.
async fn warn_if_not_served(client: &Client, id: JobId) -> Result<bool> {
    match ask(client, read::not_served(client, id)).await {
        Ok(Some(job)) => eprintln!("warning: {}", nearest::told(&job)),
        Ok(None) => return Ok(true),
        Err(error) if error.sqlstate() == Some("42501") => return Ok(true),
        Err(error) => return Err(error.into()),
    }
    Ok(false)
}

/// The job, but for the times, which the database reads.
fn new_job(arguments: &Arguments, payload: &RawValue) -> NewJob {
    let mut job = NewJob::new(arguments.command.as_deref().unwrap_or_default(), payload);
    if let Some(queue) = &arguments.queue {
        job = job.queue(queue);
    }
    if let Some(priority) = arguments.priority {
        job = job.priority(priority);
    }
    if let Some(delay) = arguments.delay {
        job = job.delay(delay);
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
    if let Some(delay) = arguments.retry_delay {
        job = job.retry_delay(delay);
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
    if let Some(key) = &arguments.order_key {
        job = job.order_key(key);
    }
    if let Some(key) = &arguments.limit_key {
        job = job.limit_key(key);
    }
    if let Some(key) = &arguments.fair_key {
        job = job.fair_key(key);
    }
    for id in &arguments.after {
        job = job.after(*id);
    }
    for id in &arguments.after_end_of {
        job = job.after_end_of(*id);
    }
    if let Some(command) = &arguments.on_success {
        job = job.on_success(command);
    }
    if let Some(command) = &arguments.on_failure {
        job = job.on_failure(command);
    }
    if !arguments.steps.is_empty() {
        job = job.steps(&arguments.steps);
    }
    job
}

/// Validated before connecting. Kept verbatim, so that a number with forty digits is not rounded.
fn payload(argument: &str) -> Result<Box<RawValue>> {
    let (source, text) = match argument {
        "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("standard input")?;
            ("standard input", text)
        }
        text => ("the payload", text.to_owned()),
    };
    output::read_json(source, &text)
        .map_err(|error| anyhow!("{error}\nhint: quote it for the shell, for example '{{\"name\": \"Ada\"}}'"))
}

/// NAME=VALUE of a header.
pub fn name_and_value(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;
    use clap::{Args, Command};

    use super::Arguments;
    use crate::client::bulk::COLUMNS;

    /// What is given for all lines would be ignored: the columns are in the lines.
    #[test]
    fn with_a_file_no_flag_for_a_column_is_taken() {
        let refusal = |given: &[&str]| {
            let words = ["enqueue", "x", "--jsonl", "jobs"]
                .into_iter()
                .chain(given.iter().copied());
            let read = Arguments::augment_args(Command::new("enqueue")).try_get_matches_from(words);
            read.err().map(|error| error.kind())
        };
        assert_eq!(refusal(&[]), None);
        for column in COLUMNS.iter().filter(|column| **column != "command") {
            let flag = match *column {
                "steps" => "--step".to_owned(),
                "headers" => "--header".to_owned(),
                other => format!("--{}", other.replace('_', "-")),
            };
            let is_refused = match *column {
                "payload" => refusal(&["{}"]) == Some(ErrorKind::ArgumentConflict),
                _ => ["1", "5m", "a=b"]
                    .iter()
                    .any(|value| refusal(&[&flag, value]) == Some(ErrorKind::ArgumentConflict)),
            };
            assert!(is_refused, "{flag}");
        }
    }
}
