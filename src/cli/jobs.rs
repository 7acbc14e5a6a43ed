//! `bugle jobs`: list them, show one, and do something to them.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Result, bail};
use clap::{Args, Subcommand};

use super::connect::{Connect, explained};
use super::operate;
use super::output::{self, Table, age, span};
use crate::job::{JobId, State};
use crate::operate::Verb;
use crate::read::{self, Attempt, Filter, Job, JobLine};

/// What to look at.
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
    /// The newest jobs, in all states.
    List {
        /// Only of this queue
        #[arg(long)]
        queue: Option<String>,
        /// Only of this command
        #[arg(long)]
        command: Option<String>,
        /// Only in this state
        #[arg(long, value_parser = State::ALL.map(State::as_str))]
        state: Option<String>,
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: u32,
    },
    /// Everything about one job.
    Show {
        /// Its id
        id: JobId,
    },
    /// Wait until a job has ended, and print its result. Exit code 1 if it did not complete.
    Wait {
        /// Its id
        id: JobId,
    },
    /// Why a job is not running, or what became of it, and what would change that.
    Explain {
        /// Its id
        id: JobId,
    },
    /// Call jobs off; running executors are stopped.
    Cancel(operate::Jobs),
    /// Hold jobs back.
    Pause(operate::Jobs),
    /// Let paused jobs go on.
    Resume(operate::Jobs),
    /// Run failed or cancelled jobs again.
    Restart(operate::Jobs),
    /// Delete jobs that are not running.
    Remove(operate::Jobs),
    /// Move the time at which jobs are due.
    Reschedule {
        /// When: a time as Postgres reads it
        #[arg(long = "at", value_name = "TIME", default_value = "now")]
        at: String,
        #[command(flatten)]
        jobs: operate::Jobs,
    },
    /// Change the priority of jobs; smaller runs sooner.
    SetPriority {
        /// The new priority
        #[arg(long, value_name = "N", allow_negative_numbers = true)]
        priority: i32,
        #[command(flatten)]
        jobs: operate::Jobs,
    },
}

pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let client = arguments.connect.client().await?;
    let now = read::now(&client).await?;
    let json = arguments.json;
    match arguments.what {
        What::Wait { id } => return operate::wait(&arguments.connect.url()?, id).await,
        What::Explain { id } => return operate::explain(&client, id, json).await,
        What::Cancel(jobs) => return operate::jobs(&client, Verb::Cancel, jobs, json).await,
        What::Pause(jobs) => return operate::jobs(&client, Verb::Pause, jobs, json).await,
        What::Resume(jobs) => return operate::jobs(&client, Verb::Resume, jobs, json).await,
        What::Restart(jobs) => return operate::jobs(&client, Verb::Restart, jobs, json).await,
        What::Remove(jobs) => return operate::jobs(&client, Verb::Remove, jobs, json).await,
        What::Reschedule { at, jobs } => return operate::jobs(&client, Verb::Reschedule(at), jobs, json).await,
        What::SetPriority { priority, jobs } => {
            return operate::jobs(&client, Verb::SetPriority(priority), jobs, json).await;
        }
        What::List {
            queue,
            command,
            state,
            limit,
        } => {
            let filter = Filter { queue, command, state };
            let jobs = read::jobs(&client, &filter, limit.into()).await.map_err(explained)?;
            if arguments.json {
                output::print_json(&jobs)?;
            } else {
                list(&jobs, now).print()?;
            }
        }
        What::Show { id } => {
            let Some(job) = read::job(&client, id).await.map_err(explained)? else {
                bail!("there is no job {id}\nhint: it never existed, or its day of history is past the days kept");
            };
            if arguments.json {
                output::print_json(&job)?;
            } else {
                show(&job, now).print()?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(jobs: &[JobLine], now: SystemTime) -> Table {
    let mut table = Table::new(&["ID", "STATE", "COMMAND", "QUEUE", "ATTEMPT", "CREATED", "NOTE"]);
    for job in jobs {
        table.row(vec![
            job.id.to_string(),
            job.state.clone(),
            job.command.clone(),
            job.queue.clone(),
            job.attempt.to_string(),
            age(now, job.created_at),
            note(job, now),
        ]);
    }
    table
}

/// What matters most about a job in its state.
fn note(job: &JobLine, now: SystemTime) -> String {
    let ran_until = |end: SystemTime| {
        let ran = job.started_at.and_then(|started| end.duration_since(started).ok());
        ran.map(span).unwrap_or_default()
    };
    match (job.state.as_str(), job.finished_at) {
        ("scheduled" | "retrying", _) => format!("due {}", age(now, job.run_at)),
        ("running", _) => format!("for {}", ran_until(now)),
        ("completed", Some(finished)) if job.started_at.is_some() => format!("took {}", ran_until(finished)),
        _ => job.reason.clone().unwrap_or_default(),
    }
}

/// One line a field, without those that are not set.
fn show(job: &Job, now: SystemTime) -> Table {
    let line = &job.line;
    let time = |time: SystemTime| format!("{} ({})", read::rfc3339(time), age(now, time));
    let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).map_or_else(|_| format!("{seconds}s"), span);
    let worker = job.worker.map(|id| match (&job.worker_name, &job.worker_host) {
        (Some(name), Some(host)) => format!("{id} ({name} on {host})"),
        (Some(name), None) => format!("{id} ({name})"),
        _ => id.to_string(),
    });
    let unserved = job
        .unserved
        .then(|| format!("no live worker serves command {} in queue {}", line.command, line.queue));
    let progress = job.progress.map(|percent| {
        let note = job.progress_note.as_deref().unwrap_or_default();
        format!("{percent}% {note}").trim_end().to_owned()
    });
    let fields = [
        ("id", Some(line.id.to_string())),
        ("state", Some(line.state.clone())),
        ("reason", line.reason.clone()),
        ("unserved", unserved),
        ("command", Some(line.command.clone())),
        ("queue", Some(line.queue.clone())),
        ("priority", Some(line.priority.to_string())),
        ("payload", Some(job.payload.get().to_owned())),
        ("headers", job.headers.as_ref().map(|json| json.get().to_owned())),
        ("result", job.result.as_ref().map(|json| json.get().to_owned())),
        ("created", Some(time(line.created_at))),
        ("run at", Some(time(line.run_at))),
        ("deadline", job.deadline.map(time)),
        ("first started", job.first_started_at.map(time)),
        ("started", line.started_at.map(time)),
        ("finished", line.finished_at.map(time)),
        ("answer by", job.answer_by.map(time)),
        ("attempt", Some(line.attempt.to_string())),
        (
            "crashes",
            Some(job.crashes)
                .filter(|count| *count > 0)
                .map(|count| count.to_string()),
        ),
        ("max attempts", job.max_attempts.map(|count| count.to_string())),
        ("retry policy", job.retry_policy.clone()),
        ("timeout", job.timeout_seconds.map(seconds)),
        ("progress", progress),
        ("worker", worker),
        ("last error code", line.last_error_code.clone()),
        ("last error", job.last_error.clone()),
    ];
    let mut table = Table::default();
    for (name, value) in fields {
        if let Some(value) = value {
            table.row(vec![name.to_owned(), value]);
        }
    }
    for attempt in &job.attempts {
        table.row(vec![format!("attempt {}", attempt.attempt), failure(attempt, now)]);
    }
    table
}

fn failure(attempt: &Attempt, now: SystemTime) -> String {
    let took = attempt
        .started_at
        .and_then(|started| attempt.ended_at.duration_since(started).ok());
    let after = took.map(|took| format!(" after {}", span(took))).unwrap_or_default();
    let by = match (&attempt.worker_name, attempt.worker) {
        (Some(name), _) => format!(" on {name}"),
        (None, Some(id)) => format!(" on worker {id}"),
        (None, None) => String::new(),
    };
    let said = [&attempt.code, &attempt.error]
        .into_iter()
        .flatten()
        .map(String::as_str);
    format!(
        "failed {}{after}{by}: {}",
        age(now, attempt.ended_at),
        said.collect::<Vec<_>>().join(": ")
    )
}
