//! `bugle schedules`: recurring jobs.

use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Result, bail};
use clap::{ArgGroup, Args, Subcommand};
use serde_json::{Value, json};
use tokio_postgres::Client;

use super::connect::{Connect, ask};
use super::enqueue::name_and_value;
use super::output::{self, Shown, Table, age};
use super::spellings::spellings;
use crate::admin::operations::{Operation, Values, perform};
use crate::admin::read::{self, Misfire, NewSchedule, Overlap, rfc3339};

/// `bugle schedules`; without a subcommand, the schedules are listed.
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
    /// List all schedules (default).
    List,
    /// Add a schedule and print when it fires first.
    Add(Box<Add>),
    /// Print the next times of a cron expression.
    Preview {
        /// Cron expression: '0 9 * * MON-FRI', '@daily'
        cron: String,
        /// Time zone of the expression
        #[arg(long, value_name = "ZONE", default_value = "UTC")]
        timezone: String,
        /// Number of times to print
        #[arg(short = 'n', long, value_name = "N", default_value_t = 5)]
        count: i32,
    },
    /// Change columns of a schedule and print when it fires next: bugle schedules change nightly cron='0 3 * * *'
    Change {
        /// Name of the schedule
        name: String,
        /// Columns of bugle.schedules with their new values; an empty value removes it
        #[arg(value_name = "COLUMN=VALUE", required = true)]
        columns: Vec<String>,
    },
    /// Pause a schedule.
    Pause(Named),
    /// Resume a paused schedule and print when it fires next.
    Resume(Named),
    /// Delete a schedule. Jobs it has enqueued are kept.
    Remove {
        /// Name of the schedule
        name: String,
    },
    /// Enqueue a job now, in addition to the regular ones, and print its id.
    RunNow(Named),
}

#[derive(Debug, Args)]
struct Named {
    /// Name of the schedule
    name: String,
    /// Reason, recorded in bugle.changes
    #[arg(long)]
    note: Option<String>,
}

/// The schedule to add.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("when").required(true).args(["cron", "every"])))]
struct Add {
    /// Name of the schedule
    name: String,
    /// Payload of the jobs, as JSON
    #[arg(value_name = "JSON", default_value = "{}", allow_negative_numbers = true)]
    payload: String,
    /// Cron expression: '0 9 * * MON-FRI' or '@daily'; with six fields, the first is seconds
    #[arg(long)]
    cron: Option<String>,
    /// Interval between jobs: 30s, 10m, '1 day'
    #[arg(long, value_name = "INTERVAL")]
    every: Option<String>,
    /// Time zone for --cron [default: UTC]
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// Command of the jobs
    #[arg(long)]
    command: String,
    /// Queue of the jobs [default: default]
    #[arg(long)]
    queue: Option<String>,
    /// Priority of the jobs; smaller numbers run first [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i32>,
    /// Time limit for each attempt: 30s, 5m
    #[arg(long, value_name = "INTERVAL")]
    timeout: Option<String>,
    /// Maximum number of attempts; overrides the retry policy
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_attempts: Option<i32>,
    /// Retry policy of the jobs; see "bugle policies"
    #[arg(long, value_name = "POLICY")]
    retry_policy: Option<String>,
    /// Delay before the first retry, instead of the policy's: 30s, 5m
    #[arg(long, value_name = "INTERVAL")]
    retry_delay: Option<String>,
    /// Header of the jobs; may be repeated
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = name_and_value)]
    headers: Vec<(String, String)>,
    /// Step of a chain; repeat the flag for each step, in order
    #[arg(long = "step", value_name = "COMMAND")]
    steps: Vec<String>,
    /// What to do about missed runs [default: run_once]
    #[arg(long, value_parser = spellings(Misfire::ALL, Misfire::as_str))]
    misfire: Option<Misfire>,
    /// Maximum number of missed runs to catch up on, with --misfire catch_up [default: 10]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    catch_up_limit: Option<i32>,
    /// Whether to enqueue a job while an earlier one is unfinished [default: allow]
    #[arg(long, value_parser = spellings(Overlap::ALL, Overlap::as_str))]
    overlap: Option<Overlap>,
    /// Do not fire before this time, in any format Postgres accepts
    #[arg(long, value_name = "TIME")]
    starts_at: Option<String>,
    /// Do not fire after this time
    #[arg(long, value_name = "TIME")]
    ends_at: Option<String>,
}

impl What {
    /// What it changes; none for what only reads.
    fn change(&self) -> Option<String> {
        let (verb, name) = match self {
            What::List | What::Preview { .. } => return None,
            What::Add(add) => ("add", &add.name),
            What::Change { name, .. } => ("change", name),
            What::Pause(named) => ("pause", &named.name),
            What::Resume(named) => ("resume", &named.name),
            What::Remove { name } => ("remove", name),
            What::RunNow(named) => ("run", &named.name),
        };
        Some(format!("{verb} schedule {name}"))
    }
}

pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let connect = &arguments.connect;
    if let Some(change) = arguments.what.as_ref().and_then(What::change) {
        connect.confirm(&change)?;
    }
    let client = connect.client().await?;
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
        What::Change { name, columns } => {
            let next = change(&client, &name, &columns).await?;
            match json {
                true => output::print_json(&next)?,
                false => output::print(&format!("{}\n", next["next_at"].as_str().unwrap_or("never")))?,
            }
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

async fn change(client: &Client, name: &str, columns: &[String]) -> Result<Value> {
    let operation = Operation::named("change_schedule").expect("it is in the table");
    let settable = || {
        operation
            .parameters
            .iter()
            .map(|parameter| parameter.name)
            .filter(|name| *name != "name")
    };
    let mut values = Values::new().with(operation, "name", name);
    for column in columns {
        let Some((column, value)) = column.split_once('=') else {
            bail!("{column:?} is not COLUMN=VALUE\nhint: for example cron='0 3 * * *'");
        };
        if !settable().any(|name| name == column) {
            let known: Vec<&str> = settable().collect();
            bail!(
                "a schedule has no column {column:?} to change\nhint: {}",
                known.join(", ")
            );
        }
        values = values.with(operation, column, value);
    }
    match ask(client, perform(client, operation, &values)).await? {
        Some(answer) => Ok(answer),
        None => bail!("there is no schedule {name:?}\nhint: bugle schedules list"),
    }
}

impl Add {
    fn schedule(self) -> Result<NewSchedule> {
        let headers = self.headers.into_iter().map(|(name, value)| (name, value.into()));
        let headers: serde_json::Map<String, Value> = headers.collect();
        Ok(NewSchedule {
            headers: (!headers.is_empty()).then_some(headers),
            payload: output::read_json("the payload", &self.payload)?,
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
            retry_delay: self.retry_delay,
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
