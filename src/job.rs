//! Plain types about jobs: what the engine hands to a worker, and the states a job can be in.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::{Duration, SystemTime};

use postgres_types::private::BytesMut;
use postgres_types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};
use serde_json::Value;
use serde_json::value::RawValue;

/// The id of a job: `bugle.jobs.id`.
pub type JobId = i64;

/// The number of a claim. It only rises for one job; whatever is said under an older one is refused.
pub type Claim = i64;

/// Every state a job can be in, as `bugle.jobs.state` spells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// Its `run_at` lies ahead.
    Scheduled,
    /// To be claimed by the next free worker.
    Ready,
    /// Held by a worker.
    Running,
    /// Failed, and waiting for its next try.
    Retrying,
    /// Held back by an operator.
    Paused,
    /// Waiting for other jobs, or for an answer from outside.
    Waiting,
    /// Done.
    Completed,
    /// Given up: a dead letter. `reason` says why.
    Failed,
    /// Called off.
    Cancelled,
}

impl State {
    /// All of them, live ones first.
    pub const ALL: [State; 9] = [
        State::Scheduled,
        State::Ready,
        State::Running,
        State::Retrying,
        State::Paused,
        State::Waiting,
        State::Completed,
        State::Failed,
        State::Cancelled,
    ];

    /// The state as the database spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Scheduled => "scheduled",
            State::Ready => "ready",
            State::Running => "running",
            State::Retrying => "retrying",
            State::Paused => "paused",
            State::Waiting => "waiting",
            State::Completed => "completed",
            State::Failed => "failed",
            State::Cancelled => "cancelled",
        }
    }

    /// Whether a job in this state will never change by itself again.
    pub fn is_final(self) -> bool {
        matches!(self, State::Completed | State::Failed | State::Cancelled)
    }
}

/// A job and the claim under which it is held: what every call about it carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ToSql, FromSql)]
#[postgres(name = "held_job")]
pub struct HeldJob {
    /// The job.
    pub id: JobId,
    /// The claim it is held under.
    pub claim: Claim,
}

/// Where the row of a claimed job lies until it is changed: its `ctid`, as Postgres sends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address([u8; 6]);

impl<'a> FromSql<'a> for Address {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Address(raw.try_into()?))
    }

    accepts!(TID);
}

impl ToSql for Address {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    accepts!(TID);
    to_sql_checked!();
}

/// A job as its worker received it.
#[derive(Debug, Clone)]
pub struct ClaimedJob {
    /// The job and its claim.
    pub held: HeldJob,
    /// What to do: the name an executor is registered for.
    pub command: String,
    /// The lane it waited in.
    pub queue: String,
    /// Smaller runs sooner.
    pub priority: i32,
    /// 1 for the first attempt.
    pub attempt: i32,
    /// How long this attempt may take, if the job or its command says so.
    pub timeout: Option<Duration>,
    /// When it was enqueued.
    pub created_at: SystemTime,
    /// When it was due.
    pub run_at: SystemTime,
    /// Names and values that travel with the job, for tracing and the like.
    pub headers: BTreeMap<String, Value>,
    /// The data, as it was enqueued; for a step of a chain, with what the steps before it have put out laid over it.
    pub payload: Box<RawValue>,
    /// The answer its executor waited for, if it was resumed with one.
    pub answer: Option<Box<RawValue>>,
    /// The steps of a chain. Its command is then only a name; in a step, it is the step's.
    pub steps: Option<Vec<String>>,
    /// How many of them were done when it was claimed.
    pub step: i32,
    /// Where its row lies, if it can be completed there.
    pub(crate) address: Option<Address>,
}

impl ClaimedJob {
    /// The trace it was enqueued in: the header `traceparent`, if it is well formed.
    pub fn traceparent(&self) -> Option<&str> {
        crate::observe::trace::parent(self.headers.get(crate::observe::trace::HEADER)?.as_str()?)
    }
}

/// Where in a chain an executor runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The name of the chain: the job's command.
    pub chain: String,
    /// Which of its steps this is, from 1.
    pub position: i32,
    /// How many it has.
    pub steps: usize,
    /// Which try of the step in this attempt of the job, from 1.
    pub attempt: i32,
}
