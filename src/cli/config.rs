//! `bugle config show`: the configuration that results from these flags, the environment and the file.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::output::{self, Table};
use crate::config::{Action, Config, Flags, Settings};
use crate::db::connect::parse_given_by;

/// `bugle config`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Print the effective configuration with secrets hidden, without connecting to the database.
    Show {
        #[command(flatten)]
        flags: Flags,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub fn run(arguments: Arguments) -> Result<ExitCode> {
    let What::Show { flags, json } = arguments.what;
    let file = flags.config.as_deref().map(Config::from_file).transpose()?;
    let settings = Settings::resolve(flags, file)?;
    let all = in_effect(&settings)?;
    if json {
        output::print_json(&all)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["KEY", "VALUE"]);
    for (key, value) in &all {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        table.row(vec![key.clone(), text]);
    }
    table.print()?;
    Ok(ExitCode::SUCCESS)
}

/// Settings have their names from the configuration file, connection parameters their libpq names.
fn in_effect(settings: &Settings) -> Result<Map<String, Value>> {
    let duration = |length| json!(humantime::format_duration(length).to_string());
    let mut all = Map::new();
    if settings.databases.is_empty() {
        for (name, value) in parse_given_by(&settings.database_url_from, &settings.database_url)?.shown() {
            all.insert(format!("database.{name}"), json!(value));
        }
    }
    for database in &settings.databases {
        let key = format!("databases.{}", database.name);
        for (name, value) in parse_given_by(&database.url_from, &database.url)?.shown() {
            all.insert(format!("{key}.{name}"), json!(value));
        }
        for (queue, slots) in &database.queues {
            all.insert(format!("{key}.queues.{queue}"), json!(slots));
        }
    }
    if let Some(slots) = settings.slots {
        all.insert("slots".into(), json!(slots));
    }
    all.insert("name".into(), json!(settings.name));
    for (queue, slots) in &settings.queues {
        all.insert(format!("queues.{queue}"), json!(slots));
    }
    for (name, command) in &settings.commands {
        let kind = match &command.action {
            Action::Program(_) => "program",
            Action::Sql(_) => "sql",
            Action::Http(_) => "http",
        };
        all.insert(format!("commands.{name}"), json!(kind));
    }
    for (name, host) in &settings.hosts {
        all.insert(format!("hosts.{name}"), json!(host.argv[0]));
    }
    all.insert("drain".into(), duration(settings.drain));
    all.insert("safety_poll".into(), duration(settings.safety_poll));
    all.insert("workdir".into(), json!(settings.workdir.display().to_string()));
    all.insert("migrate".into(), json!(settings.migrate));
    all.insert("pool_size".into(), json!(settings.pool_size));
    all.insert("until_empty".into(), json!(settings.until_empty));
    all.insert(
        "listen".into(),
        json!(settings.listen.map(|address| address.to_string())),
    );
    all.insert("token".into(), json!(settings.token.as_ref().map(|_| "…")));
    Ok(all)
}
