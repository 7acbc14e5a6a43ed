//! Printing and checking: every claim of the demo is verified against the database.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::cli::output::{self, Table};
use crate::error::Error;

/// Far longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(15);

/// Prints the demo, queries as a member of `bugle_viewer`, and counts the checks that passed.
pub struct Narrator {
    pub viewer: Client,
    pub kept: usize,
}

impl Narrator {
    pub fn chapter(&self, title: &str) {
        self.say(&format!("\n== {title}"));
    }

    pub fn say(&self, text: &str) {
        // a closed pipe is no reason to stop early
        let _ = output::print(&format!("{text}\n"));
    }

    /// Print statements as a user would type them.
    pub fn show_sql(&self, sql: &str) {
        for line in sql.trim().lines() {
            self.say(&format!("    {line}"));
        }
    }

    /// Print a query and its result.
    pub async fn show(&self, sql: &str) -> Result<()> {
        self.show_sql(sql);
        let table = query(&self.viewer, sql).await?;
        self.say("");
        for line in table.aligned(false, 120).lines() {
            self.say(&format!("      {line}"));
        }
        Ok(())
    }

    /// Compare the expected value with the actual one.
    pub fn check<T: PartialEq + Debug>(&mut self, promise: &str, expected: T, seen: T) -> Result<()> {
        if expected != seen {
            bail!("promised: {promise}\n  expected: {expected:?}\n  seen:     {seen:?}");
        }
        self.kept += 1;
        self.say(&format!("  ok: {promise}"));
        Ok(())
    }

    /// One value, as text.
    pub async fn ask(&self, sql: &str) -> Result<String> {
        value(&self.viewer, sql).await
    }

    /// Repeat a query until it returns the expected value. Fails after a deadline.
    pub async fn wait(&self, sql: &str, expected: &str) -> Result<Duration> {
        let started = Instant::now();
        loop {
            let seen = self.ask(sql).await?;
            if seen == expected {
                return Ok(started.elapsed());
            }
            if started.elapsed() > PATIENCE {
                self.say("\nThe current jobs:");
                self.show("select id, command, state, attempt, reason, last_error from bugle.jobs order by id")
                    .await?;
                bail!("not within {PATIENCE:?}: {sql}\n  expected: {expected}\n  seen:     {seen}");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// The first column of the first row, as text.
pub async fn value(client: &Client, sql: &str) -> Result<String> {
    let messages = client.simple_query(sql).await.map_err(Error::from)?;
    let mut rows = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_owned()),
        _ => None,
    });
    rows.next().ok_or_else(|| anyhow!("no row: {sql}"))
}

async fn query(client: &Client, sql: &str) -> Result<Table> {
    let messages = client.simple_query(sql).await.map_err(Error::from)?;
    let mut table = Table::default();
    for message in &messages {
        match message {
            SimpleQueryMessage::RowDescription(columns) => {
                table = Table::new(&columns.iter().map(|column| column.name()).collect::<Vec<_>>());
            }
            SimpleQueryMessage::Row(row) => {
                table.row(
                    (0..row.len())
                        .map(|column| row.get(column).unwrap_or("").to_owned())
                        .collect(),
                );
            }
            _ => {}
        }
    }
    Ok(table)
}
