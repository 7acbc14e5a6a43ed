//! Filters that select jobs; the same for every subcommand.

use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::admin::read::Filter;
use crate::state::State;

/// Filters. If several are given, a job must match all of them.
#[derive(Debug, Clone, Default, Args)]
pub struct Filters {
    /// Only jobs of this queue
    #[arg(long)]
    queue: Option<String>,
    /// Only jobs of this command
    #[arg(long)]
    command: Option<String>,
    /// Only jobs in this state
    #[arg(long, value_parser = one_of::<State>(State::ALL.map(State::as_str)))]
    state: Option<State>,
    /// Only jobs enqueued within the last DURATION: 30m, 2h, 7d
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    since: Option<Duration>,
    /// Only jobs that have not changed for DURATION: 10m
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    older_than: Option<Duration>,
    /// Only jobs whose last error contains TEXT; with %, TEXT is a LIKE pattern
    #[arg(long, value_name = "TEXT")]
    error_like: Option<String>,
    /// Only jobs that this worker runs, or ran last
    #[arg(long, value_name = "ID")]
    worker: Option<i64>,
}

impl Filters {
    /// Whether no filter is set, so that all jobs match.
    pub fn is_empty(&self) -> bool {
        self.queue.is_none()
            && self.command.is_none()
            && self.state.is_none()
            && self.since.is_none()
            && self.older_than.is_none()
            && self.error_like.is_none()
            && self.worker.is_none()
    }

    /// The filter for a query.
    pub fn filter(&self) -> Filter {
        Filter {
            queue: self.queue.clone(),
            command: self.command.clone(),
            state: self.state,
            since: self.since.map(interval),
            older_than: self.older_than.map(interval),
            error_like: self.error_like.clone(),
            before: None,
            worker: self.worker,
        }
    }
}

/// One of these words, as the type that spells them so.
pub fn one_of<T>(words: impl Into<PossibleValuesParser>) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err = crate::Error> + Clone + Send + Sync + 'static,
{
    words.into().try_map(|word: String| word.parse())
}

/// A duration in a format Postgres accepts.
pub fn interval(length: Duration) -> String {
    format!("{} seconds", length.as_secs_f64())
}
