//! `bugle commands` and `bugle policies`: the defaults of jobs.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

use super::connect::{Connect, ask};
use super::output::{Shown, Table, span};
use crate::admin::read::{self, CommandLine, Policy};

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
            policy.commands.join(" "),
        ]);
    }
    table
}
