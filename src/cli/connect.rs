//! How subcommands find the database: one flag and two variables.

use anyhow::{Result, bail};
use clap::Args;
use tokio_postgres::Client;

use crate::config::{environment, flag_or_variable};
use crate::db::connect::{Target, is_named_by, parse, parse_given_by};
use crate::error::Error;

/// The database to connect to.
#[derive(Debug, Clone, Args)]
pub struct Connect {
    /// Database that holds the jobs: postgres://user@host/database [fallback: DATABASE_URL]
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "BUGLE_DATABASE_URL",
        hide_env_values = true
    )]
    database_url: Option<String>,
}

impl Connect {
    /// The connection target. Without one, the error says how to set it.
    pub fn target(&self) -> Result<Target> {
        let given = self.database_url.clone().filter(|url| !url.is_empty());
        let general = environment("DATABASE_URL").filter(|url| !url.is_empty());
        match (given, general) {
            (Some(url), _) => Ok(parse_given_by(flag_or_variable(&url, &environment), &url)?),
            (None, Some(url)) => Ok(parse_given_by("DATABASE_URL", &url)?),
            (None, None) if is_named_by(&environment) => Ok(parse("")?),
            (None, None) => bail!(
                "no database is configured\nhint: give --database-url postgres://user@host/database, set DATABASE_URL \
                 or PGHOST, or run \"bugle dev\" to start a private database"
            ),
        }
    }

    /// A connection for one command.
    pub async fn client(&self) -> Result<Client> {
        Ok(self.target()?.client("bugle").await?)
    }
}

/// Run one query in its own transaction, because there may be a pooler in between and settings of the role must not
/// matter. The result is printed after the transaction, so that a pager does not keep it open.
pub async fn ask<T>(client: &Client, question: impl Future<Output = crate::Result<T>>) -> crate::Result<T> {
    crate::db::connect::asked(client, question).await.map_err(explained)
}

/// Add a hint to errors for which the database cannot give one.
pub fn explained(error: Error) -> Error {
    match error.sqlstate() {
        // undefined schema, table or function
        Some("3F000" | "42P01" | "42883") => {
            error.with_hint("This database has no Bugle schema, or an old one. Run: bugle migrate")
        }
        Some("42501") => error.with_hint(
            "Connect as a member of bugle_viewer to read, of bugle_enqueuer to enqueue, of bugle_operator to change, \
             or as the owner of the schema.",
        ),
        // what a person typed is not what the parameter is; the message names types of Postgres
        Some("22007" | "22008" | "22P02") => match misread(&error.message()) {
            Some((message, hint)) => error.reworded(message, hint),
            None => error,
        },
        _ => error,
    }
}

/// `invalid input syntax for type interval: "x"` in other words.
fn misread(message: &str) -> Option<(String, String)> {
    let (about, value) = message.split_once(": ")?;
    let value = value.split(" (SQLSTATE").next().unwrap_or(value);
    let (what, hint) = if about.contains("interval") {
        ("a duration", "For example 90s, 10m or '2 hours'.")
    } else if about.contains("time") || about.contains("date") {
        ("a time", "For example 'tomorrow 8:00' or '2030-01-31 18:00+01'.")
    } else if about.contains("json") {
        ("JSON", "Quote it for the shell, for example '{\"name\": \"Ada\"}'.")
    } else if about.contains("integer") || about.contains("bigint") || about.contains("numeric") {
        ("a number", "Write it in digits.")
    } else {
        return None;
    };
    Some((format!("{value} is not {what}"), hint.to_owned()))
}
