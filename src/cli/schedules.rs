//! `bugle schedules`: recurring jobs.

use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use serde_json::json;
use serde_json::value::RawValue;

use super::connect::{Connect, ask};
use super::output::{self, Shown, Table, age};
use crate::admin::read::{self, NewSchedule, rfc3339};

/// What to do; without a word they are shown.
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
    /// Show them all.
    List,
    /// Add one, and print when it fires first.
    Add(Box<Add>),
    /// Show what a cron expression means.
    Preview {
        /// '0 9 * * MON-FRI', '@daily'
        cron: String,
        /// Its time zone
        #[arg(long, value_name = "ZONE", default_value = "UTC")]
        timezone: String,
        /// How many
        #[arg(short = 'n', long, value_name = "N", default_value_t = 5)]
        count: i32,
    },
    /// Fire nothing until it is resumed.
    Pause(Named),
    /// Go on with the next slot.
    Resume(Named),
    /// Delete one; its jobs stay.
    Remove {
        /// Its name
        name: String,
    },
    /// Enqueue a job of it now, besides its slots, and print its id.
    RunNow(Named),
}

#[derive(Debug, Args)]
struct Named {
    /// Its name
    name: String,
    /// Why, for the record
    #[arg(long)]
    note: Option<String>,
}

/// The schedule to add.
#[derive(Debug, Args)]
#[group(id = "when", required = true, args = ["cron", "every"])]
struct Add {
    /// How it is called in every verb
    name: String,
    /// The payload of its jobs as JSON
    #[arg(value_name = "JSON", default_value = "{}", allow_negative_numbers = true)]
    payload: String,
    /// When: '0 9 * * MON-FRI', with seconds first if there are six fields, or '@daily'
    #[arg(long)]
    cron: Option<String>,
    /// Time between two jobs: 30s, 10m, '1 day'
    #[arg(long, value_name = "INTERVAL")]
    every: Option<String>,
    /// Time zone for --cron [default: UTC]
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// What its jobs do: the name an executor is registered for, or that of a chain
    #[arg(long)]
    command: String,
    /// The queue they wait in [default: default]
    #[arg(long)]
    queue: Option<String>,
    /// Smaller runs sooner [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i32>,
    /// How long one attempt may take: 30s, 5m
    #[arg(long, value_name = "INTERVAL")]
    timeout: Option<String>,
    /// How often a job is tried, whatever its policy says
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_attempts: Option<i32>,
    /// How retries are spaced: a row of bugle.retry_policies
    #[arg(long, value_name = "POLICY")]
    retry_policy: Option<String>,
    /// Make its jobs chains: a command of theirs, in order; give it once for each
    #[arg(long = "step", value_name = "COMMAND")]
    steps: Vec<String>,
    /// What becomes of slots that were missed [default: run_once]
    #[arg(long, value_parser = ["skip", "run_once", "catch_up"])]
    misfire: Option<String>,
    /// With catch_up: the most slots to catch up [default: 10]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    catch_up_limit: Option<i32>,
    /// While an earlier job has not ended [default: allow]
    #[arg(long, value_parser = ["allow", "skip"])]
    overlap: Option<String>,
    /// No slot before this time, as Postgres reads it
    #[arg(long, value_name = "TIME")]
    starts_at: Option<String>,
    /// No slot after this time
    #[arg(long, value_name = "TIME")]
    ends_at: Option<String>,
}

pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let client = arguments.connect.client().await?;
    let json = arguments.shown.as_json();
    match arguments.what.unwrap_or(What::List) {
        What::List => {
            let list = async || {
                let now = ask(&client, read::now(&client)).await?;
                let schedules = ask(&client, read::schedules(&client)).await?;
                arguments.shown.rows(&schedules, |schedules| list(now, schedules))
            };
            return arguments.shown.repeat(list).await;
        }
        What::Add(add) => {
            let name = add.name.clone();
            let next = ask(&client, read::add_schedule(&client, &add.schedule()?)).await?;
            tell_next(&name, next, json)?;
        }
        What::Preview { cron, timezone, count } => {
            let slots = ask(&client, read::preview(&client, &cron, &timezone, count)).await?;
            show(&slots, json)?;
        }
        What::Pause(Named { name, note }) => {
            ask(&client, read::pause_schedule(&client, &name, note.as_deref())).await?;
        }
        What::Resume(Named { name, note }) => {
            let next = ask(&client, read::resume_schedule(&client, &name, note.as_deref())).await?;
            tell_next(&name, next, json)?;
        }
        What::Remove { name } => {
            if !ask(&client, read::remove_schedule(&client, &name)).await? {
                bail!("there is no schedule {name:?}\nhint: bugle schedules list");
            }
        }
        What::RunNow(Named { name, note }) => {
            let id = ask(&client, read::run_schedule_now(&client, &name, note.as_deref())).await?;
            match json {
                true => output::print_json(&json!({ "id": id }))?,
                false => output::print(&format!("{id}\n"))?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Add {
    fn schedule(self) -> Result<NewSchedule> {
        Ok(NewSchedule {
            payload: RawValue::from_string(self.payload).context("the payload is not JSON")?,
            name: self.name,
            cron: self.cron,
            every: self.every,
            timezone: self.timezone,
            command: self.command,
            queue: self.queue,
            priority: self.priority,
            timeout: self.timeout,
            max_attempts: self.max_attempts,
            retry_policy: self.retry_policy,
            steps: (!self.steps.is_empty()).then_some(self.steps),
            misfire: self.misfire,
            catch_up_limit: self.catch_up_limit,
            overlap: self.overlap,
            starts_at: self.starts_at,
            ends_at: self.ends_at,
        })
    }
}

fn list(now: SystemTime, schedules: &[read::Schedule]) -> Table {
    let mut table = Table::new(&["NAME", "WHEN", "COMMAND", "QUEUE", "NEXT", "LAST", "JOB", "ERROR"]);
    for schedule in schedules {
        let when = match (&schedule.cron, &schedule.every) {
            (Some(cron), _) if schedule.timezone == "UTC" => cron.clone(),
            (Some(cron), _) => format!("{cron} ({})", schedule.timezone),
            (None, every) => format!("every {}", every.as_deref().unwrap_or_default()),
        };
        let next = match (schedule.paused_at, schedule.next_at) {
            (Some(since), _) => format!("paused {}", age(now, since)),
            (None, Some(next)) => age(now, next),
            (None, None) => "never".into(),
        };
        table.row(vec![
            schedule.name.clone(),
            when,
            schedule.command.clone(),
            schedule.queue.clone(),
            next,
            schedule.last_at.map(|last| age(now, last)).unwrap_or_default(),
            schedule.last_job.map(|job| job.to_string()).unwrap_or_default(),
            schedule.last_error.clone().unwrap_or_default(),
        ]);
    }
    table
}

fn show(slots: &[(SystemTime, String)], json: bool) -> Result<()> {
    if json {
        let times: Vec<String> = slots.iter().map(|(slot, _)| rfc3339(*slot)).collect();
        return output::print_json(&times);
    }
    let mut table = Table::new(&["CLOCK", "UTC"]);
    for (slot, clock) in slots {
        table.row(vec![clock.clone(), rfc3339(*slot)]);
    }
    table.print()
}

fn tell_next(name: &str, next: Option<SystemTime>, json: bool) -> Result<()> {
    let next = next.map(rfc3339);
    match json {
        true => output::print_json(&json!({ "name": name, "next_at": next })),
        false => output::print(&format!("{}\n", next.as_deref().unwrap_or("never"))),
    }
}
