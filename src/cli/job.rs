//! `bugle job`: what a program tells the worker about the job it runs.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::output::read_json;
use crate::config::parse_duration;

/// `bugle job`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Report progress, which is shown in bugle.running_jobs.
    Progress {
        /// Percent, from 0 to 100
        percent: f64,
        /// What is being done
        note: Option<String>,
    },
    /// Write a line to the log of the worker.
    Log {
        /// Text of the line
        message: String,
        /// debug, info, warn or error
        #[arg(long, default_value = "info")]
        level: String,
    },
    /// Complete the job with this result, whatever the program prints.
    Done {
        /// Result (JSON)
        result: Option<String>,
    },
    /// Fail the attempt: it is retried by the retry policy of the job.
    Fail {
        /// Error message
        error: String,
        /// Short name of this kind of failure
        #[arg(long)]
        code: Option<String>,
        /// Do not retry
        #[arg(long, conflicts_with = "retry_after")]
        no_retry: bool,
        /// Retry after this time, whatever the policy says
        #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
        retry_after: Option<Duration>,
    },
    /// Run the job again later; the attempt is not counted.
    Snooze {
        /// How long to wait, such as 5m
        #[arg(value_parser = parse_duration)]
        delay: Duration,
    },
    /// Wait for an answer from outside: bugle jobs answer.
    Wait {
        /// Token that the answer must name
        #[arg(long)]
        token: Option<String>,
        /// How long to wait at most
        #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
        at_most: Option<Duration>,
    },
    /// Skip this step of a chain.
    Skip {
        /// Reason
        reason: Option<String>,
    },
    /// Cancel the job.
    Cancel {
        /// Reason
        reason: Option<String>,
    },
}

pub fn run(arguments: Arguments) -> Result<ExitCode> {
    let mut message = message(arguments.what)?;
    message["call"] = json!("1");
    let Some(socket) = std::env::var_os("BUGLE_JOB") else {
        bail!(
            "BUGLE_JOB is not set: this is for programs that a worker runs\n\
             hint: Call it from the program of a [commands.NAME] section of the worker's file."
        );
    };
    let mut stream = UnixStream::connect(&socket)
        .with_context(|| format!("cannot reach the worker at {}", socket.to_string_lossy()))?;
    stream.write_all(format!("{message}\n").as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let answer: Value = serde_json::from_str(&line).map_err(|_| anyhow!("the worker does not answer"))?;
    match answer["error"].as_str() {
        None => Ok(ExitCode::SUCCESS),
        Some(error) => Err(anyhow!("{error}")),
    }
}

fn message(what: What) -> Result<Value> {
    let seconds = |duration: Option<Duration>| duration.map(|duration| duration.as_secs_f64());
    Ok(match what {
        What::Progress { percent, note } => json!({"type": "progress", "percent": percent, "note": note}),
        What::Log { message, level } => json!({"type": "log", "message": message, "level": level}),
        What::Done { result } => {
            let result = result.map(|text| read_json::<Value>("the result", &text)).transpose();
            let result =
                result.map_err(|error| anyhow!("{error}\nhint: quote it for the shell, for example '\"yes\"'"))?;
            json!({"type": "done", "result": result})
        }
        What::Fail {
            error,
            code,
            no_retry,
            retry_after,
        } => json!({
            "type": "fail", "error": error, "code": code, "retryable": !no_retry, "retry_after": seconds(retry_after),
        }),
        What::Snooze { delay } => json!({"type": "snooze", "delay": delay.as_secs_f64()}),
        What::Wait { token, at_most } => json!({"type": "wait", "token": token, "at_most": seconds(at_most)}),
        What::Skip { reason } => json!({"type": "skip", "reason": reason}),
        What::Cancel { reason } => json!({"type": "cancelled", "reason": reason}),
    })
}
