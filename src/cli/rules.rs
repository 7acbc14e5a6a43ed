//! `bugle commands` and `bugle policies`: the defaults of jobs.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::Value;
use tokio_postgres::Client;

use super::connect::{Connect, ask};
use super::output::{self, Shown, Table, span};
use super::spellings::spellings;
use crate::admin::operations::{Operation, Values, perform};
use crate::admin::read::{self, CommandLine, Policy, PolicyKind};

/// `bugle commands`.
#[derive(Debug, Args)]
pub struct Commands {
    #[command(subcommand)]
    what: Option<CommandsWhat>,

    #[command(flatten)]
    connect: Connect,

    #[command(flatten)]
    shown: Shown,
}

#[derive(Debug, Subcommand)]
enum CommandsWhat {
    /// List the commands that are configured or served by a live worker (default).
    List,
}

/// `bugle policies`.
#[derive(Debug, Args)]
pub struct Policies {
    #[command(subcommand)]
    what: Option<PoliciesWhat>,

    #[command(flatten)]
    connect: Connect,

    #[command(flatten)]
    shown: Shown,
}

#[derive(Debug, Subcommand)]
enum PoliciesWhat {
    /// List all retry policies (default).
    List,
    /// Print the retry delays of a policy, without jitter.
    Preview {
        /// Name of the policy
        name: String,
        /// Number of retries to print
        #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
        count: i32,
    },
    /// Add a retry policy, or change one, and print it. What is not given stays, or has its default.
    Set(Box<Set>),
    /// Remove a retry policy that nothing uses.
    #[command(visible_alias = "delete")]
    Remove {
        /// Name of the policy
        name: String,
        /// Reason, recorded in bugle.changes
        #[arg(long)]
        note: Option<String>,
    },
}

#[derive(Debug, Args)]
struct Set {
    /// Name of the policy
    name: String,
    /// How the delays grow [default: exponential]
    #[arg(long, value_parser = spellings(PolicyKind::ALL, PolicyKind::as_str))]
    kind: Option<PolicyKind>,
    /// Attempts after the first [default: 15]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    retries: Option<i32>,
    /// First delay; with fixed and daily, each delay [default: 5s]
    #[arg(long, value_name = "INTERVAL")]
    delay: Option<String>,
    /// By how much an exponential delay grows each time [default: 2]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    factor: Option<f64>,
    /// Where an exponential delay stops growing [default: 1h]
    #[arg(long, value_name = "INTERVAL")]
    max_delay: Option<String>,
    /// Share by which each delay varies in both directions; 0.1 is ten percent [default: 0.1]
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    jitter: Option<f64>,
    /// With daily: retries per day [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    per_day: Option<i32>,
    /// With daily: on how many days, counted from the first attempt [default: 2]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    days: Option<i32>,
    /// Reason, recorded in bugle.changes
    #[arg(long)]
    note: Option<String>,
}

impl Set {
    /// What is given, as the operation names it.
    fn values(&self, operation: &Operation) -> Values {
        let number = |number: Option<i32>| number.map(|number| number.to_string());
        let fraction = |number: Option<f64>| number.map(|number| number.to_string());
        let given = [
            ("name", Some(self.name.clone())),
            ("kind", self.kind.map(|kind| kind.as_str().to_owned())),
            ("retries", number(self.retries)),
            ("delay", self.delay.clone()),
            ("factor", fraction(self.factor)),
            ("max_delay", self.max_delay.clone()),
            ("jitter", fraction(self.jitter)),
            ("per_day", number(self.per_day)),
            ("days", number(self.days)),
            ("note", self.note.clone()),
        ];
        let given = given.into_iter().filter_map(|(name, value)| Some((name, value?)));
        given.fold(Values::new(), |values, (name, value)| {
            values.with(operation, name, &value)
        })
    }
}

/// Set or remove a policy.
async fn change(client: &Client, verb: &str, values: impl FnOnce(&Operation) -> Values) -> Result<Value> {
    let operation = Operation::named(verb).expect("it is in the table");
    let answer = ask(client, perform(client, operation, &values(operation))).await?;
    Ok(answer.unwrap_or_default())
}

pub async fn commands(arguments: Commands) -> Result<ExitCode> {
    let client = arguments.connect.client().await?;
    let (None | Some(CommandsWhat::List)) = arguments.what;
    let shown = &arguments.shown;
    let list = async || {
        let commands = ask(&client, read::commands(&client)).await?;
        shown.rows(&commands, list_commands)
    };
    shown.repeat(list).await
}

fn list_commands(commands: &[CommandLine]) -> Table {
    let mut table = Table::new(&[
        "COMMAND", "WORKERS", "TIMEOUT", "ATTEMPTS", "POLICY", "DONE/H", "FAILED/H",
    ]);
    let seconds = |seconds: f64| std::time::Duration::try_from_secs_f64(seconds).map_or_else(|_| "∞".into(), span);
    for command in commands {
        table.row(vec![
            command.name.clone(),
            command.workers.to_string(),
            command.timeout_seconds.map(seconds).unwrap_or_default(),
            command.max_attempts.map(|most| most.to_string()).unwrap_or_default(),
            command.retry_policy.clone().unwrap_or_default(),
            command.completed_last_hour.to_string(),
            command.failed_last_hour.to_string(),
        ]);
    }
    table
}

pub async fn policies(arguments: Policies) -> Result<ExitCode> {
    let client = arguments.connect.client().await?;
    let shown = &arguments.shown;
    if let Some(PoliciesWhat::Preview { name, count }) = &arguments.what {
        let delays = ask(&client, read::policy_delays(&client, name, *count)).await?;
        if delays.is_empty() {
            anyhow::bail!("policy {name:?} does not exist or does not retry\nhint: bugle policies lists all policies");
        }
        shown.rows(&delays, |delays| {
            let mut table = Table::new(&["RETRY", "AFTER", "TOTAL"]);
            for delay in delays {
                let length =
                    |seconds: f64| std::time::Duration::try_from_secs_f64(seconds).map_or_else(|_| "∞".into(), span);
                table.row(vec![
                    delay.retry.to_string(),
                    length(delay.seconds),
                    length(delay.total_seconds),
                ]);
            }
            table
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    match &arguments.what {
        Some(PoliciesWhat::Set(set)) => {
            arguments.connect.confirm(&format!("set policy {}", set.name))?;
            let answer = change(&client, "set_policy", |operation| set.values(operation)).await?;
            match shown.as_json() {
                true => output::print_json(&answer)?,
                false => output::print(&format!("{}\n", answer["policy"].as_str().unwrap_or_default()))?,
            }
            return Ok(ExitCode::SUCCESS);
        }
        Some(PoliciesWhat::Remove { name, note }) => {
            arguments.connect.confirm(&format!("remove policy {name}"))?;
            let values = |operation: &Operation| {
                let values = Values::new().with(operation, "name", name);
                match note {
                    Some(note) => values.with(operation, "note", note),
                    None => values,
                }
            };
            change(&client, "remove_policy", values).await?;
            return Ok(ExitCode::SUCCESS);
        }
        _ => {}
    }
    let list = async || {
        let policies = ask(&client, read::policies(&client)).await?;
        shown.rows(&policies, list_policies)
    };
    shown.repeat(list).await
}

fn list_policies(policies: &[Policy]) -> Table {
    let mut table = Table::new(&[
        "POLICY", "KIND", "ATTEMPTS", "DELAY", "FACTOR", "CAP", "JITTER", "USED BY",
    ]);
    for policy in policies {
        table.row(vec![
            policy.name.clone(),
            policy.kind.to_string(),
            policy
                .attempts
                .map_or_else(|| "unlimited".into(), |most| most.to_string()),
            policy.delay.clone(),
            policy.factor.to_string(),
            policy.max_delay.clone(),
            policy.jitter.to_string(),
            [&policy.commands[..], &policy.schedules].concat().join(" "),
        ]);
    }
    table
}
