//! Which jobs are meant: the same filters for every subcommand.

use std::time::Duration;

use clap::Args;

use crate::admin::read::Filter;
use crate::job::State;

/// Filters; together, if several are given.
#[derive(Debug, Clone, Default, Args)]
pub struct Filters {
    /// Only of this queue
    #[arg(long)]
    queue: Option<String>,
    /// Only of this command
    #[arg(long)]
    command: Option<String>,
    /// Only in this state
    #[arg(long, value_parser = State::ALL.map(State::as_str))]
    state: Option<String>,
    /// Only enqueued within this long: 30m, 2h, 7d
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    since: Option<Duration>,
    /// Only with a latest error that contains this, or is like this pattern with %
    #[arg(long, value_name = "TEXT")]
    error_like: Option<String>,
}

impl Filters {
    /// Whether none is given, so that all jobs are meant.
    pub fn is_empty(&self) -> bool {
        self.queue.is_none()
            && self.command.is_none()
            && self.state.is_none()
            && self.since.is_none()
            && self.error_like.is_none()
    }

    /// Their question.
    pub fn filter(&self) -> Filter {
        Filter {
            queue: self.queue.clone(),
            command: self.command.clone(),
            state: self.state.clone(),
            since: self.since.map(interval),
            error_like: self.error_like.clone(),
        }
    }
}

/// A length of time as Postgres reads it.
pub fn interval(length: Duration) -> String {
    format!("{} seconds", length.as_secs_f64())
}
