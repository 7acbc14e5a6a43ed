//! `bugle stats`: throughput, latency and failures.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use clap::{Args, Subcommand};

use super::connect::{Connect, ask};
use super::filter::interval;
use super::hint::for_shell;
use super::output::{self, Shown, Table, age, span};
use crate::admin::read::{self, CommandStats, ErrorGroup};

/// `bugle stats`; without a subcommand, statistics by queue and command.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: Option<What>,

    #[command(flatten)]
    connect: Connect,

    #[command(flatten)]
    shown: Shown,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Statistics of the last hour by queue and command (default).
    Commands,
    /// Failed attempts, grouped by similar errors.
    Errors {
        /// Time range
        #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "1h")]
        since: Duration,
    },
}

pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let client = arguments.connect.client().await?;
    let shown = &arguments.shown;
    let once = async || match &arguments.what {
        None | Some(What::Commands) => {
            let stats = ask(&client, read::command_stats(&client)).await?;
            shown.rows(&stats, commands)
        }
        Some(What::Errors { since }) => {
            let groups = ask(&client, read::error_groups(&client, &interval(*since))).await?;
            // afterwards, so that none of them lies ahead
            let now = ask(&client, read::now(&client)).await?;
            shown.rows(&groups, |groups| errors(groups, now))?;
            if !shown.as_json() {
                tell_restart(&groups, *since);
            }
            Ok(())
        }
    };
    shown.repeat(once).await
}

fn commands(stats: &[CommandStats]) -> Table {
    let mut table = Table::new(&[
        "QUEUE", "COMMAND", "DONE/H", "DONE/MIN", "FAILED", "RATE", "WAIT P50", "WAIT P95", "RUN P50", "RUN P95",
    ]);
    for one in stats {
        table.row(vec![
            one.queue.clone(),
            one.command.clone(),
            one.completed.to_string(),
            format!("{:.1}", one.completed_per_minute),
            one.failed.to_string(),
            one.failure_rate
                .map(|rate| format!("{:.1}%", rate * 100.0))
                .unwrap_or_default(),
            length(one.wait_p50_seconds),
            length(one.wait_p95_seconds),
            length(one.run_p50_seconds),
            length(one.run_p95_seconds),
        ]);
    }
    table
}

fn errors(groups: &[ErrorGroup], now: SystemTime) -> Table {
    let mut table = Table::new(&["ATTEMPTS", "JOBS", "COMMAND", "CODE", "LATEST", "JOB", "ERROR"]);
    for group in groups {
        let least = if group.is_complete { "" } else { "≥" };
        table.row(vec![
            format!("{least}{}", group.attempts),
            format!("{least}{}", group.jobs),
            group.command.clone().unwrap_or_default(),
            group.code.clone().unwrap_or_default(),
            age(now, group.last_at),
            group.last_job.to_string(),
            group.fingerprint.clone().unwrap_or_default(),
        ]);
    }
    table
}

/// How many groups are told how to restart them.
const TOLD: usize = 3;

/// On standard error: a pipe gets the rows.
fn tell_restart(groups: &[ErrorGroup], since: Duration) {
    if groups.is_empty() {
        return;
    }
    eprintln!("\nTo restart the jobs of a group that have failed, once the cause is fixed:");
    for group in groups.iter().take(TOLD) {
        eprintln!("  {}", output::one_line(&restart(group, since)));
    }
}

/// The command that restarts the jobs of a group.
fn restart(group: &ErrorGroup, since: Duration) -> String {
    let filters = [
        ("command", &group.command),
        ("code", &group.code),
        ("fingerprint", &group.fingerprint),
    ];
    let filters: String = filters
        .into_iter()
        .filter_map(|(name, value)| Some(format!(" --{name} {}", for_shell(value.as_ref()?))))
        .collect();
    let since = humantime::format_duration(since).to_string().replace(' ', "");
    format!("bugle jobs restart --state failed{filters} --ended-since {since}")
}

fn length(seconds: Option<f64>) -> String {
    let length = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    match length {
        Some(short) if short < Duration::from_millis(10) => format!("{:.1}ms", short.as_secs_f64() * 1000.0),
        Some(length) => span(length),
        None => String::new(),
    }
}
