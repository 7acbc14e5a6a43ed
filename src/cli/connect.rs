//! Which database: the same flag and variables for every subcommand.

use anyhow::{Result, bail};
use clap::Args;
use tokio_postgres::Client;

use crate::config::{environment, flag_or_variable};
use crate::db::connect::{Target, is_named_by, parse, parse_given_by};
use crate::error::Error;

/// Which database to speak to.
#[derive(Debug, Clone, Args)]
pub struct Connect {
    /// Where the jobs are: postgres://user@host/database [else: DATABASE_URL]
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
    /// How to connect, or what to do if no database is named.
    pub fn target(&self) -> Result<Target> {
        let given = self.database_url.clone().filter(|url| !url.is_empty());
        let general = environment("DATABASE_URL").filter(|url| !url.is_empty());
        match (given, general) {
            (Some(url), _) => Ok(parse_given_by(flag_or_variable(&url, &environment), &url)?),
            (None, Some(url)) => Ok(parse_given_by("DATABASE_URL", &url)?),
            (None, None) if is_named_by(&environment) => Ok(parse("")?),
            (None, None) => bail!(
                "no database is named\nhint: give --database-url postgres://user@host/database, or set DATABASE_URL \
                 or PGHOST; \
                 or run \"bugle dev\" for a database of your own"
            ),
        }
    }

    /// A connection for one question.
    pub async fn client(&self) -> Result<Client> {
        Ok(self.target()?.client("bugle").await?)
    }
}

/// Ask one question, in a transaction of its own: a pooler may be in between, and a role's own settings may not matter.
/// An answer is only printed afterwards: who reads it page by page must not hold the transaction open.
pub async fn ask<T>(client: &Client, question: impl Future<Output = crate::Result<T>>) -> crate::Result<T> {
    crate::db::connect::asked(client, question).await.map_err(explained)
}

/// An error of a question, with what to do about those that the database cannot know the cure for.
pub fn explained(error: Error) -> Error {
    match error.sqlstate() {
        // no such schema, table, function
        Some("3F000" | "42P01" | "42883") => {
            error.hint("This database has no Bugle schema, or an old one. Run: bugle migrate")
        }
        Some("42501") => error.hint(
            "Connect as a member of bugle_viewer to read, of bugle_enqueuer to enqueue, of bugle_operator to change, \
             or as the owner of the schema.",
        ),
        _ => error,
    }
}
