//! The states of jobs, steps and workers, as the database spells them.

use std::error::Error as StdError;
use std::fmt;
use std::str::FromStr;

use postgres_types::private::BytesMut;
use postgres_types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio_postgres::Row;
use tokio_postgres::row::RowIndex;

use crate::error::{Error, Result};

/// Defines an enum whose values are text columns in the database and strings in JSON.
macro_rules! spelled {
    (
        $(#[$about:meta])*
        $name:ident, $what:literal {
            $($(#[$meaning:meta])* $variant:ident = $text:literal,)+
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$meaning])* $variant,)+
        }

        impl $name {
            /// All of them.
            pub const ALL: [$name; [$($text),+].len()] = [$($name::$variant),+];

            /// As the database spells it.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<$name> {
                $name::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(|| {
                    Error::new(format!(concat!("{:?} is not the state of a ", $what), text))
                        .hint(concat!("Use one of ", $($text, " ",)+).trim_end())
                })
            }
        }

        impl<'a> FromSql<'a> for $name {
            fn from_sql(column: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
                Ok(<&str>::from_sql(column, raw)?.parse()?)
            }

            fn accepts(column: &Type) -> bool {
                <&str as FromSql>::accepts(column)
            }
        }

        impl ToSql for $name {
            fn to_sql(&self, column: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
                self.as_str().to_sql(column, out)
            }

            fn accepts(column: &Type) -> bool {
                <&str as ToSql>::accepts(column)
            }

            to_sql_checked!();
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'_, str>::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

spelled! {
    /// The state of a job: `bugle.jobs.state`.
    ///
    /// The set is closed: a new state would be a new major version, because every program that reads jobs would have to
    /// handle it. So it can be matched without a wildcard.
    ///
    /// ```
    /// use bugle::State;
    ///
    /// assert_eq!("retrying".parse::<State>()?, State::Retrying);
    /// assert_eq!(State::Retrying.to_string(), "retrying");
    /// assert!(!State::Retrying.is_final());
    /// # Ok::<(), bugle::Error>(())
    /// ```
    State, "job" {
        /// Its `run_at` is in the future.
        Scheduled = "scheduled",
        /// Ready to be claimed by the next free worker.
        Ready = "ready",
        /// Claimed by a worker.
        Running = "running",
        /// Failed, and waiting for its next attempt.
        Retrying = "retrying",
        /// Paused by an operator.
        Paused = "paused",
        /// Waiting for other jobs, or for an answer.
        Waiting = "waiting",
        /// Done.
        Completed = "completed",
        /// Failed for good: a dead letter. `reason` says why.
        Failed = "failed",
        /// Cancelled by an operator or by its executor.
        Cancelled = "cancelled",
    }
}

impl State {
    /// Whether a job in this state has ended. Only an operator can change it now.
    pub const fn is_final(self) -> bool {
        matches!(self, State::Completed | State::Failed | State::Cancelled)
    }
}

spelled! {
    /// The state of a step: `bugle.steps.state`.
    #[non_exhaustive]
    StepState, "step" {
        /// Not started yet.
        Pending = "pending",
        /// Running now.
        Running = "running",
        /// Failed, and about to be tried again by the same worker.
        Retrying = "retrying",
        /// Its job waits for other jobs, or for an answer.
        Waiting = "waiting",
        /// Its job stopped running before the step ended.
        Interrupted = "interrupted",
        /// Done, with its output stored.
        Done = "done",
        /// Skipped, by its executor or by an operator.
        Skipped = "skipped",
        /// Failed.
        Failed = "failed",
    }
}

spelled! {
    /// The state of a worker: `bugle.workers.state`.
    #[non_exhaustive]
    WorkerState, "worker" {
        /// It serves its queues.
        Alive = "alive",
        /// It runs what it has claimed, and claims nothing more.
        Paused = "paused",
        /// Its connection or its heartbeat is gone.
        Lost = "lost",
        /// It signed off.
        Stopped = "stopped",
    }
}

/// How the database spells the state of a job that no longer exists.
const GONE: &str = "gone";

/// The state of a job that may have been deleted, from a column in which `gone` stands for none.
pub(crate) fn unless_gone(row: &Row, column: impl RowIndex + fmt::Display) -> Result<Option<State>> {
    match row.try_get::<_, &str>(column)? {
        GONE => Ok(None),
        state => state.parse().map(Some),
    }
}

/// The reverse, for people.
pub(crate) fn or_gone(state: Option<State>) -> &'static str {
    state.map_or(GONE, State::as_str)
}

/// The reverse, in JSON.
pub(crate) fn serialize_or_gone<S: Serializer>(state: &Option<State>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(or_gone(*state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_as_it_is_written() {
        for state in State::ALL {
            let json = serde_json::to_string(&state).unwrap();

            assert_eq!(json, format!("\"{state}\""));
            assert_eq!(serde_json::from_str::<State>(&json).unwrap(), state);
        }
        let error = "done".parse::<State>().unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("\"done\" is not the state of a job\nhint: Use one of scheduled ready ")
        );
    }
}
