//! How subcommands find the database, by a context or a connection string, and ask before they change it in
//! production.

use std::io::{IsTerminal, Write};

use anyhow::{Result, bail};
use clap::Args;
use tokio_postgres::Client;

use super::contexts::{self, Context};
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
    /// Context that names the database: see "bugle contexts" [env: BUGLE_CONTEXT]
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    /// Do not ask before changing anything
    #[arg(long, global = true)]
    yes: bool,
}

impl Connect {
    /// The database of a context.
    pub fn of(context: &Context) -> Connect {
        Connect {
            database_url: None,
            context: Some(context.name.clone()),
            yes: false,
        }
    }

    /// The context that a flag names, else that of the variable, unless a flag gives a connection string.
    pub fn context(&self) -> Result<Option<Context>> {
        let url = self.database_url.as_ref().filter(|url| !url.is_empty());
        let is_flag = url.is_some_and(|url| flag_or_variable(url, &environment) == "--database-url");
        let name = match (&self.context, is_flag) {
            (Some(name), true) => bail!(
                "--context {name} and --database-url both name a database\nhint: give one of them; bugle contexts \
                 lists the contexts"
            ),
            (None, true) => None,
            (Some(name), false) => Some(name.clone()),
            (None, false) => environment(contexts::VARIABLE).filter(|name| !name.is_empty()),
        };
        name.map(|name| contexts::named(&name)).transpose()
    }

    /// Whether nobody is to be asked.
    pub fn yes(&self) -> bool {
        self.yes
    }

    /// The name of the context, with a warning if it is one in production; none without a context.
    pub fn label(&self) -> Result<Option<String>> {
        let context = self.context()?;
        Ok(context.map(|context| match context.production {
            true => format!("{} (production)", context.name),
            false => context.name,
        }))
    }

    /// Ask before a change in production. `what` is a question without its question mark, such as "pause queue mail".
    ///
    /// # Errors
    /// If the answer is no, or nobody can be asked.
    pub fn confirm(&self, what: &str) -> Result<()> {
        let Some(context) = self.context()?.filter(|context| context.production && !self.yes) else {
            return Ok(());
        };
        match confirmed(&format!("{what} in context {}, which is in production?", context.name))? {
            true => Ok(()),
            false => bail!(
                "nothing was changed: context {:?} is in production, and this would {what}\nhint: add --yes to skip \
                 the confirmation",
                context.name
            ),
        }
    }

    /// A connection for a command that changes something: see [`Connect::confirm`].
    pub async fn client_to(&self, what: &str) -> Result<Client> {
        self.confirm(what)?;
        self.client().await
    }

    /// The connection target. Without one, the error says how to set it.
    pub fn target(&self) -> Result<Target> {
        if let Some(context) = self.context()? {
            return context.target();
        }
        let given = self.database_url.clone().filter(|url| !url.is_empty());
        let general = environment("DATABASE_URL").filter(|url| !url.is_empty());
        match (given, general) {
            (Some(url), _) => Ok(parse_given_by(flag_or_variable(&url, &environment), &url)?),
            (None, Some(url)) => Ok(parse_given_by("DATABASE_URL", &url)?),
            (None, None) if is_named_by(&environment) => Ok(parse("")?),
            (None, None) => bail!(
                "no database is configured\nhint: give --database-url postgres://user@host/database or --context, set \
                 DATABASE_URL or PGHOST, or run \"bugle dev\" to start a private database"
            ),
        }
    }

    /// A connection for one command.
    pub async fn client(&self) -> Result<Client> {
        Ok(self.target()?.client("bugle").await?)
    }
}

/// Only a person at a terminal can be asked; a script must say --yes.
pub fn confirmed(question: &str) -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        return Ok(false);
    }
    eprint!("{question} [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
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
