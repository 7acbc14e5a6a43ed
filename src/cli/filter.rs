//! Filters that select jobs; the same for every subcommand.

use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::admin::read::Filter;
use crate::state::{Reason, State};

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
    /// Only jobs that completed, failed or were cancelled within the last DURATION
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    ended_since: Option<Duration>,
    /// Only jobs that have not changed for DURATION: 10m
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    older_than: Option<Duration>,
    /// Only jobs whose last error contains TEXT; with %, TEXT is a LIKE pattern
    #[arg(long, value_name = "TEXT")]
    error_like: Option<String>,
    /// Only jobs whose last error has this code: timeout, exit_1
    #[arg(long)]
    code: Option<String>,
    /// Only jobs whose last error is of this kind, as "bugle stats errors" groups them
    #[arg(long, value_name = "TEXT")]
    fingerprint: Option<String>,
    /// Only jobs that failed or were cancelled for this reason
    #[arg(long, hide_possible_values = true, value_parser = one_of::<Reason>(Reason::ALL.map(Reason::as_str)))]
    reason: Option<Reason>,
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
            && self.ended_since.is_none()
            && self.older_than.is_none()
            && self.error_like.is_none()
            && self.code.is_none()
            && self.fingerprint.is_none()
            && self.reason.is_none()
            && self.worker.is_none()
    }

    /// The filter for a query.
    pub fn filter(&self) -> Filter {
        Filter {
            queue: self.queue.clone(),
            command: self.command.clone(),
            state: self.state,
            since: self.since.map(interval),
            ended_since: self.ended_since.map(interval),
            older_than: self.older_than.map(interval),
            error_like: self.error_like.clone(),
            code: self.code.clone(),
            fingerprint: self.fingerprint.clone(),
            reason: self.reason,
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
