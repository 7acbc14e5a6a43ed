//! One error for the library. What it is made of stays inside; ask it with predicates.

use std::fmt;
use std::time::Duration;

/// The private SQLSTATEs of the schema, one for each kind of rejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// A column of a new job, or of a row of settings, has a value it may not have.
    InvalidColumn,
    /// A new job sets a column that belongs to the engine.
    ForbiddenColumn,
    /// A payload or headers over the limit.
    TooLarge,
    /// A retry policy that does not exist.
    UnknownPolicy,
    /// An invalid schedule.
    InvalidSchedule,
    /// The job names a command that has no row in `bugle.commands`, and `known_commands_only` is set.
    UnknownCommand,
    /// A job with this unique key was enqueued by another login (`JB007`).
    OthersJob,
    /// A worker that is not registered, or not under this nonce.
    UnknownWorker,
    /// A claim from another session than the one that attached.
    WrongSession,
    /// A claim under another isolation level than read committed.
    WrongIsolation,
    /// A worker that speaks another protocol than the schema.
    WrongProtocol,
    /// A worker that serves nothing.
    NothingServed,
    /// A job that does not exist.
    UnknownJob,
    /// A transition that the job's state does not allow.
    RefusedTransition,
    /// An answer with a wrong token.
    WrongToken,
    /// A workflow that is invalid, or depends on itself.
    InvalidWorkflow,
}

impl Code {
    /// All of them, in the order of their SQLSTATEs.
    pub const ALL: [Code; 16] = [
        Code::InvalidColumn,
        Code::ForbiddenColumn,
        Code::TooLarge,
        Code::UnknownPolicy,
        Code::InvalidSchedule,
        Code::UnknownCommand,
        Code::OthersJob,
        Code::UnknownWorker,
        Code::WrongSession,
        Code::WrongIsolation,
        Code::WrongProtocol,
        Code::NothingServed,
        Code::UnknownJob,
        Code::RefusedTransition,
        Code::WrongToken,
        Code::InvalidWorkflow,
    ];

    /// The SQLSTATE the schema raises.
    pub fn sqlstate(self) -> &'static str {
        match self {
            Code::InvalidColumn => "JB001",
            Code::ForbiddenColumn => "JB002",
            Code::TooLarge => "JB003",
            Code::UnknownPolicy => "JB004",
            Code::InvalidSchedule => "JB005",
            Code::UnknownCommand => "JB006",
            Code::OthersJob => "JB007",
            Code::UnknownWorker => "JB010",
            Code::WrongSession => "JB011",
            Code::WrongIsolation => "JB012",
            Code::WrongProtocol => "JB013",
            Code::NothingServed => "JB014",
            Code::UnknownJob => "JB030",
            Code::RefusedTransition => "JB031",
            Code::WrongToken => "JB032",
            Code::InvalidWorkflow => "JB040",
        }
    }
}

/// What went wrong, with a hint where one can be given.
#[derive(Debug)]
pub struct Error {
    message: String,
    hint: Option<String>,
    source: Option<tokio_postgres::Error>,
}

/// Shorthand for results of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Error {
            message: message.into(),
            hint: None,
            source: None,
        }
    }

    /// What was asked for needs a feature of this crate that the program was built without.
    // with all features on nothing is without one
    #[allow(dead_code)]
    pub(crate) fn without_feature(what: &str, feature: &str) -> Self {
        Error::new(format!(
            "{what} needs the feature {feature} of the crate bugle, and this program was built without it"
        ))
        .with_hint(format!(
            "Add it where Cargo.toml names bugle: features = [\"{feature}\"]"
        ))
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same error with an additional hint.
    pub(crate) fn also(mut self, sentence: &str) -> Self {
        self.hint = Some(match self.hint {
            Some(hint) => format!("{hint} {sentence}"),
            None => sentence.to_owned(),
        });
        self
    }

    /// The same error with another message.
    pub(crate) fn reworded(self, message: String, hint: String) -> Self {
        Error {
            message,
            hint: Some(hint),
            ..self
        }
    }

    /// The same error with its location.
    pub(crate) fn in_context(mut self, place: &str) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// The private SQLSTATE, if the schema rejected the call.
    pub fn code(&self) -> Option<Code> {
        let sqlstate = self.source.as_ref()?.code()?.code();
        Code::ALL.into_iter().find(|c| c.sqlstate() == sqlstate)
    }

    /// The SQLSTATE, raised by the schema or by the server.
    pub(crate) fn sqlstate(&self) -> Option<&str> {
        Some(self.source.as_ref()?.code()?.code())
    }

    /// Whether the schema refused this because of what it was given.
    pub fn is_refused(&self) -> bool {
        self.code().is_some()
    }

    /// Whether the worker is not, or no longer, registered under this id.
    pub fn is_fenced(&self) -> bool {
        matches!(self.code(), Some(Code::UnknownWorker | Code::WrongSession))
    }

    /// Whether the same call may succeed later: the connection was lost, the server restarts, a lock was not available,
    /// the notification queue was full.
    pub fn is_transient(&self) -> bool {
        let Some(source) = &self.source else {
            return false;
        };
        match source.code() {
            Some(code) => {
                let code = code.code();
                // connection, resources, operator intervention, rollback (deadlock, serialization), lock, read-only
                // standby
                ["08", "53", "57", "40"].contains(&&code[..2])
                    || code == "55P03"
                    || code == "25006"
                    || is_of_a_full_queue(code, self.source_file())
                    || self.was_replaced(code)
            }
            // no answer of the server: the link is gone or was never there. What we sent wrongly ourselves stays wrong.
            None => {
                let cause = std::error::Error::source(source);
                source.is_closed()
                    || cause.is_some_and(|cause| cause.is::<std::io::Error>())
                    || source.to_string().contains("timeout")
            }
        }
    }

    /// Whether what was sent caused it: it can never be accepted as it is. Everything else is the engine's trouble, or
    /// an operator's: a partition that was dropped by hand, a missing right, a foreign trigger.
    pub(crate) fn is_caused_by_data(&self) -> bool {
        match (self.sqlstate(), self.code()) {
            (None, _) => !self.is_transient(),
            // the engine's own inserts set no column that is forbidden, unless history has no day at all
            (_, Some(code)) => !self.is_fenced() && code != Code::ForbiddenColumn,
            (Some(sqlstate), None) => is_of_a_value(sqlstate, self.source_file()),
        }
    }

    /// The source file of the server that raised this. Unlike the message, it is in no language.
    fn source_file(&self) -> Option<&str> {
        self.source.as_ref()?.as_db_error()?.file()
    }

    /// Whether there was no partition for a row: a history partition was detached or dropped manually. Maintenance
    /// repairs that.
    pub(crate) fn lacks_partition(&self) -> bool {
        self.sqlstate() == Some("23514")
    }

    /// A migration replaced a function while it was called; the next call finds the new one.
    fn was_replaced(&self, code: &str) -> bool {
        let source = self.source.as_ref().and_then(|source| source.as_db_error());
        code == "XX000" && source.is_some_and(|said| said.message().starts_with("cache lookup failed for function"))
    }

    /// The message without the hint.
    pub(crate) fn message(&self) -> String {
        self.message.clone()
    }

    /// A hint that says what to do, if there is one.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, "\nhint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e as _)
    }
}

impl From<tokio_postgres::Error> for Error {
    fn from(source: tokio_postgres::Error) -> Self {
        let (message, hint) = match source.as_db_error() {
            Some(db) => (
                format!("{} (SQLSTATE {})", db.message(), db.code().code()),
                db.hint().map(String::from),
            ),
            None => (chain(&source), None),
        };
        Error {
            message,
            hint,
            source: Some(source),
        }
    }
}

/// Whether a value caused this: a data exception, or JSON that is nested too deeply or is too large. Other limits of
/// the server have the same SQLSTATE as the last: a full notification queue, transaction ids that run out.
fn is_of_a_value(sqlstate: &str, file: Option<&str>) -> bool {
    sqlstate.starts_with("22")
        || sqlstate == "54001"
        || sqlstate == "54000" && file.is_some_and(|file| file.starts_with("json"))
}

/// Whether a commit failed because there was no room for its notifications.
fn is_of_a_full_queue(sqlstate: &str, file: Option<&str>) -> bool {
    sqlstate == "54000" && file == Some("async.c")
}

/// An error and its causes on one line: the outermost alone often says only "error connecting to server".
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

/// Waits between tries: doubling from `first` to `most`, each spread by a half so that a fleet does not come back at
/// once.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    most: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, most: Duration) -> Self {
        Backoff { next: first, most }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let wait = self.next.mul_f64(0.5 + fastrand::f64());
        self.next = (self.next * 2).min(self.most);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_limits_that_a_value_exceeds_are_the_fault_of_the_data() {
        let raised = [
            ("22P05", "jsonfuncs.c"),
            ("54001", "postgres.c"),
            ("54000", "jsonb.c"),
            ("54000", "jsonb_util.c"),
            ("54000", "async.c"),
            ("54000", "varsup.c"),
            ("42501", "aclchk.c"),
        ];

        let of_a_value = raised.map(|(sqlstate, file)| is_of_a_value(sqlstate, Some(file)));
        let of_a_full_queue = raised.map(|(sqlstate, file)| is_of_a_full_queue(sqlstate, Some(file)));

        assert_eq!(of_a_value, [true, true, true, true, false, false, false]);
        assert_eq!(of_a_full_queue, [false, false, false, false, true, false, false]);
    }
}
