//! `bugle bench`: performance on this machine, compared with the same operations on bare tables.
//!
//! Everything is real: a Postgres server with durable commits, worker processes, and jobs that are all accounted for.
//! Alternatives are measured in turns within the same run, because the speed of a machine varies over time.

pub mod backlog;
pub mod builtin;
mod clients;
mod clock;
pub mod drain;
pub mod due;
pub mod enqueue;
pub mod fleet;
pub mod floor;
pub mod host;
pub mod idle;
pub mod limits;
pub mod operate;
pub mod payload;
pub mod peer;
pub mod pickup;
pub mod pinned;
mod report;
mod server;
mod statistics;
pub mod steady;
#[cfg(feature = "web")]
pub mod web;
pub mod worker;
mod workers;

use anyhow::Result;
use report::{Bar, Line, Report};
use server::Server;

/// State shared by all benchmarks.
pub struct Bench {
    server: Server,
    report: Report,
    quick: bool,
}

impl Bench {
    /// Run on the server of this URL, or on a temporary one with these additional settings.
    ///
    /// # Errors
    /// If there is no server.
    pub fn new(
        url: Option<&str>,
        pg: Option<u32>,
        settings: &[(&str, &str)],
        json: bool,
        quick: bool,
    ) -> Result<Bench> {
        Ok(Bench {
            server: Server::start(url, pg, settings)?,
            report: Report::new(json),
            quick,
        })
    }

    /// Print the table of results.
    ///
    /// # Errors
    /// If the server cannot be queried for its version.
    pub async fn finish(&mut self, title: &str) -> Result<()> {
        let machine = self.server.describe().await?;
        self.report.finish(title, &machine);
        Ok(())
    }

    /// Remove all databases of the benchmark from the server.
    ///
    /// # Errors
    /// If a database cannot be dropped.
    pub async fn clean_up(&self) -> Result<()> {
        self.server.clean_up().await
    }

    /// The given value or the default, which is smaller with --quick.
    fn choose<T>(&self, asked: Option<T>, default: T, quick: T) -> T {
        asked.unwrap_or(if self.quick { quick } else { default })
    }

    fn progress(&self, what: &str) {
        self.report.progress(what);
    }

    fn add(&mut self, line: Line) {
        self.report.add(match server::load() {
            Some(load) => line.note("load", load),
            None => line,
        });
    }
}
