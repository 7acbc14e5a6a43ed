//! `bugle jobs`: list jobs, show one job, and the operator's verbs on jobs.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Result, bail};
use clap::{Args, Subcommand};

use super::answer::{self, AddMissing, AnswerArguments};
use super::connect::{Connect, ask};
use super::filter::{Filters, one_of};
use super::operate;
use super::output::{Shown, Table, age, span};
use crate::admin::operate::Verb;
use crate::admin::read::{self, Event, Job, JobSummary, Relative, Step};
use crate::job::JobId;
use crate::state::{Reason, State, StepState, or_gone};

/// `bugle jobs`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,

    #[command(flatten)]
    connect: Connect,

    #[command(flatten)]
    shown: Shown,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List jobs, newest first.
    List {
        #[command(flatten)]
        filters: Filters,
        /// Maximum number of jobs to show
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
    },
    /// Show the details of a job.
    Show {
        /// Job id
        id: JobId,
    },
    /// Wait for a job to finish and print its result; exit code 1 if it did not complete.
    Wait {
        /// Job id
        id: JobId,
        /// Wait at most this long: 30s, 5m
        #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
        timeout: Option<Duration>,
    },
    /// Explain why a job is not running, or how it ended, and what to do about it.
    Explain {
        /// Job id
        id: JobId,
    },
    /// Answer a waiting job: complete it with a result, fail it with an error, or resume it.
    Answer(AnswerArguments),
    /// Enqueue the jobs of a file whose keys are not in the database yet.
    AddMissing(AddMissing),
    /// Cancel jobs; running executors are stopped.
    Cancel(operate::Jobs),
    /// Pause jobs that are not running.
    Pause(operate::Jobs),
    /// Resume paused jobs.
    Resume(operate::Jobs),
    /// Restart failed or cancelled jobs.
    #[command(visible_alias = "retry")]
    Restart {
        /// Continue a chain at the step that failed instead of the first step
        #[arg(long)]
        from_failed_step: bool,
        #[command(flatten)]
        jobs: operate::Jobs,
    },
    /// Override the state of a step of a job that is not running.
    SetStep {
        /// Job id
        id: JobId,
        /// Position or name of the step
        step: String,
        /// New state of the step
        #[arg(value_parser = one_of::<StepState>(["done", "skipped", "pending"]))]
        state: StepState,
        /// Output of the step as JSON, for the state "done"
        #[arg(long, value_name = "JSON")]
        output: Option<String>,
        /// Reason, recorded in bugle.changes
        #[arg(long)]
        note: Option<String>,
    },
    /// Delete jobs that are not running.
    #[command(visible_alias = "delete")]
    Remove(operate::Jobs),
    /// Change the time at which jobs are due.
    Reschedule {
        /// New time, in any format Postgres accepts
        #[arg(long = "at", value_name = "TIME", default_value = "now")]
        at: String,
        #[command(flatten)]
        jobs: operate::Jobs,
    },
    /// Change the priority of jobs; smaller numbers run first.
    SetPriority {
        /// New priority
        #[arg(long, value_name = "N", allow_negative_numbers = true)]
        priority: i32,
        #[command(flatten)]
        jobs: operate::Jobs,
    },
    /// Override the state of jobs that are not running or completed.
    SetState {
        /// New state
        #[arg(long = "to", value_name = "STATE", value_parser = one_of::<State>(
            ["scheduled", "ready", "retrying", "paused", "completed", "failed", "cancelled"]))]
        to: State,
        #[command(flatten)]
        jobs: operate::Jobs,
    },
}

pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let connect = &arguments.connect;
    let client = connect.client().await?;
    let shown = &arguments.shown;
    let json = shown.as_json();
    match arguments.what {
        What::Wait { id, timeout } => {
            if let Some(job) = ask(&client, read::not_served(&client, id)).await? {
                eprintln!("warning: {}", super::nearest::told(&job));
            }
            operate::wait(&connect.target()?, &client, id, timeout).await
        }
        What::Explain { id } => operate::explain(&client, id, json).await,
        What::Answer(arguments) => {
            connect.confirm(&format!("answer job {}", arguments.id))?;
            answer::answer(&client, arguments).await
        }
        What::AddMissing(arguments) => {
            connect.confirm("enqueue jobs that are missing")?;
            answer::add_missing(&client, arguments, json).await
        }
        What::Cancel(jobs) => operate::jobs(connect, &client, Verb::Cancel, jobs, json).await,
        What::Pause(jobs) => operate::jobs(connect, &client, Verb::Pause, jobs, json).await,
        What::Resume(jobs) => operate::jobs(connect, &client, Verb::Resume, jobs, json).await,
        What::Restart { from_failed_step, jobs } => {
            let verb = match from_failed_step {
                true => Verb::RestartFromFailedStep,
                false => Verb::Restart,
            };
            operate::jobs(connect, &client, verb, jobs, json).await
        }
        What::SetStep {
            id,
            step,
            state,
            output,
            note,
        } => {
            connect.confirm(&format!("make step {step} of job {id} {state}"))?;
            operate::set_step(&client, id, &step, state, output.as_deref(), note.as_deref()).await
        }
        What::Remove(jobs) => operate::jobs(connect, &client, Verb::Remove, jobs, json).await,
        What::Reschedule { at, jobs } => operate::jobs(connect, &client, Verb::Reschedule(at), jobs, json).await,
        What::SetPriority { priority, jobs } => {
            operate::jobs(connect, &client, Verb::SetPriority(priority), jobs, json).await
        }
        What::SetState { to, jobs } => operate::jobs(connect, &client, Verb::SetState(to), jobs, json).await,
        What::List { filters, limit } => {
            let list = async || {
                let now = ask(&client, read::now(&client)).await?;
                let jobs = ask(&client, read::jobs(&client, &filters.filter(), limit.into())).await?;
                shown.rows(&jobs, |jobs| list(jobs, now))
            };
            shown.repeat(list).await
        }
        What::Show { id } => {
            let show = async || {
                let now = ask(&client, read::now(&client)).await?;
                let Some(job) = ask(&client, read::job(&client, id)).await? else {
                    bail!("there is no job {id}\nhint: it never existed, or it was deleted by retention");
                };
                shown.one(&job, |job| show(job, now))
            };
            shown.repeat(show).await
        }
    }
}

fn list(jobs: &[JobSummary], now: SystemTime) -> Table {
    let mut table = Table::new(&["ID", "STATE", "COMMAND", "QUEUE", "ATTEMPT", "CREATED", "NOTE"]);
    for job in jobs {
        table.row(vec![
            job.id.to_string(),
            job.state.to_string(),
            job.command.clone(),
            job.queue.clone(),
            job.attempt.to_string(),
            age(now, job.created_at),
            note(job, now),
        ]);
    }
    table
}

/// The most relevant detail for the state of the job.
fn note(job: &JobSummary, now: SystemTime) -> String {
    let ran_until = |end: SystemTime| {
        let ran = job.started_at.and_then(|started| end.duration_since(started).ok());
        ran.map(span).unwrap_or_default()
    };
    // the code first, because the end may be cut; that of a program says no more than that it failed
    let code = job.last_error_code.as_deref().filter(|code| !code.starts_with("exit_"));
    let error = job.error_line.as_ref().map(|line| match code {
        Some(code) => format!("{code}: {line}"),
        None => line.clone(),
    });
    let with_error = |text: String| match &error {
        Some(error) => format!("{text}: {error}"),
        None => text,
    };
    let reason = job.reason.map_or_else(String::new, |reason| reason.to_string());
    match (job.state, job.finished_at) {
        (State::Scheduled, _) => format!("due {}", age(now, job.run_at)),
        (State::Retrying, _) => with_error(age(now, job.run_at)),
        // these two only say that the error was the last
        (State::Failed, _) if matches!(job.reason, Some(Reason::AttemptsExhausted | Reason::NotRetryable)) => {
            error.unwrap_or(reason)
        }
        (State::Failed, _) => with_error(reason),
        (State::Running, _) => format!("for {}", ran_until(now)),
        (State::Completed, Some(finished)) if job.started_at.is_some() => format!("took {}", ran_until(finished)),
        _ => reason,
    }
}

/// One line per field; fields that are not set are left out.
fn show(job: &Job, now: SystemTime) -> Table {
    let line = &job.summary;
    let time = |time: SystemTime| format!("{} ({})", read::rfc3339(time), age(now, time));
    let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).map_or_else(|_| format!("{seconds}s"), span);
    let worker = job.worker.map(|id| match (&job.worker_name, &job.worker_host) {
        (Some(name), Some(host)) => format!("{id} ({name} on {host})"),
        (Some(name), None) => format!("{id} ({name})"),
        _ => id.to_string(),
    });
    let unserved = job
        .unserved
        .then(|| match job.steps.iter().filter(|step| step.within.is_none()).count() {
            0 => format!("no live worker serves command {} in queue {}", line.command, line.queue),
            _ => format!("no live worker serves all remaining steps in queue {}", line.queue),
        });
    let progress = job.progress.map(|percent| {
        let note = job.progress_note.as_deref().unwrap_or_default();
        format!("{percent}% {note}").trim_end().to_owned()
    });
    let fields = [
        ("id", Some(line.id.to_string())),
        ("state", Some(line.state.to_string())),
        ("reason", line.reason.map(|reason| reason.to_string())),
        ("unserved", unserved),
        ("command", Some(line.command.clone())),
        ("queue", Some(line.queue.clone())),
        ("priority", Some(line.priority.to_string())),
        ("payload", Some(job.payload.get().to_owned())),
        ("headers", job.headers.as_ref().map(|json| json.get().to_owned())),
        ("context", job.context.as_ref().map(|json| json.get().to_owned())),
        ("result", job.result.as_ref().map(|json| json.get().to_owned())),
        ("created", Some(time(line.created_at))),
        ("run at", Some(time(line.run_at))),
        ("deadline", job.deadline.map(time)),
        ("first started", job.first_started_at.map(time)),
        ("started", line.started_at.map(time)),
        ("finished", line.finished_at.map(time)),
        ("answer by", job.answer_by.map(time)),
        ("answer", job.answer.as_ref().map(|json| json.get().to_owned())),
        ("waits for", job.outstanding.map(|count| format!("{count} jobs"))),
        ("after", relatives(&job.relatives.dependencies)),
        ("parent", job.parent.map(|id| id.to_string())),
        ("children", relatives(&job.relatives.children)),
        (
            "needed by",
            some_of(job.relatives.dependants.iter().map(JobId::to_string).collect()),
        ),
        ("on success", job.on_success.clone()),
        ("on failure", job.on_failure.clone()),
        ("unique key", job.unique_key.clone()),
        ("idempotency key", job.idempotency_key.clone()),
        ("attempt", Some(job.attempt_in_words.clone())),
        (
            "crashes",
            Some(job.crashes)
                .filter(|count| *count > 0)
                .map(|count| count.to_string()),
        ),
        ("retry policy", Some(job.policy_in_force.clone())),
        ("retry delay", job.retry_delay_seconds.map(seconds)),
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
    for step in &job.steps {
        table.row(vec![format!("step {}", step.position), progress_of(step, now)]);
    }
    for event in &job.timeline {
        table.row(vec![age(now, event.at), happened(event)]);
    }
    table
}

fn relatives(relatives: &[Relative]) -> Option<String> {
    some_of(
        relatives
            .iter()
            .map(|job| match &job.name {
                Some(name) => format!("{} ({name}) {}", job.id, or_gone(job.state)),
                None => format!("{} {}", job.id, or_gone(job.state)),
            })
            .collect(),
    )
}

/// Lists the first few and counts the rest.
fn some_of(mut all: Vec<String>) -> Option<String> {
    const NAMED: usize = 10;
    let count = all.len();
    all.truncate(NAMED);
    match count {
        0 => None,
        count if count > NAMED => Some(format!("{} and {} more", all.join(", "), count - NAMED)),
        _ => Some(all.join(", ")),
    }
}

/// `fetch: done 3s ago, 2 tries, on mailer`.
fn progress_of(step: &Step, now: SystemTime) -> String {
    let when = step.last_ended_at.or(step.last_started_at).map(|time| age(now, time));
    let tries = match step.attempts {
        0 | 1 => None,
        many => Some(format!("{many} tries")),
    };
    let by = step.worker_name.as_ref().map(|name| format!("on {name}"));
    let state = [Some(step.state.to_string()), when]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" ");
    let mut text = [Some(state), tries, by]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(", ");
    if matches!(step.state, StepState::Failed | StepState::Retrying) {
        let said = [&step.code, &step.error].into_iter().flatten().map(String::as_str);
        text = format!("{text}: {}", said.collect::<Vec<_>>().join(": "));
    }
    format!("{}: {text}", step.name)
}

/// `attempt 2 failed on mailer: e1: connection refused`, `cancel by ada (psql): ready -> cancelled`.
pub(super) fn happened(event: &Event) -> String {
    let what = match (event.attempt, &event.step) {
        (Some(attempt), _) => format!("attempt {attempt} {}", event.event),
        (None, Some(step)) => format!("{} {step}", event.event),
        (None, None) => event.event.clone(),
    };
    let by = match (&event.worker_name, event.worker, &event.who, &event.application) {
        (Some(name), ..) => format!(" on {name}"),
        (None, Some(id), ..) => format!(" on worker {id}"),
        (_, _, Some(who), Some(application)) if !application.is_empty() => format!(" by {who} ({application})"),
        (_, _, Some(who), _) => format!(" by {who}"),
        _ => String::new(),
    };
    let details = [&event.code, &event.message].into_iter().flatten();
    let details: String = details.map(|text| format!(": {text}")).collect();
    what.replace('_', " ") + &by + &details
}
