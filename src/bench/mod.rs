//! `bugle bench`: how fast it is on this machine, next to the least that Postgres itself can do for the same.
//!
//! Everything is real: a Postgres that waits for its disk, worker processes, jobs that are accounted for one by one.
//! What is compared is measured in the same run, turn by turn, because a machine is never the same for long.

pub mod backlog;
mod clients;
mod clock;
pub mod drain;
pub mod enqueue;
pub mod floor;
pub mod idle;
pub mod limits;
pub mod payload;
pub mod peer;
pub mod pickup;
pub mod pinned;
mod report;
mod server;
mod statistics;
pub mod steady;
pub mod worker;
mod workers;

use anyhow::Result;
use report::{Line, Report};
use server::Server;

/// What all benchmarks share.
pub struct Bench {
    server: Server,
    report: Report,
    quick: bool,
}

impl Bench {
    /// On the server of this URL, or on a private one with these settings besides those it always has.
    ///
    /// # Errors
    /// When there is no server to be had.
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

    /// Print the table of the results so far.
    ///
    /// # Errors
    /// When the server cannot be asked what it is.
    pub async fn finish(&mut self, title: &str) -> Result<()> {
        let machine = self.server.describe().await?;
        self.report.finish(title, &machine);
        Ok(())
    }

    /// Leave nothing behind on a server that is not ours.
    ///
    /// # Errors
    /// When a database cannot be dropped.
    pub async fn clean_up(&self) -> Result<()> {
        self.server.clean_up().await
    }

    /// What was asked for, or the default: a smaller one if it shall be quick.
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
