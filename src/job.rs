//! Plain types about jobs: what the database hands to a worker.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::{Duration, SystemTime};

use postgres_types::private::BytesMut;
use postgres_types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};
use serde_json::Value;
use serde_json::value::RawValue;

/// The id of a job: `bugle.jobs.id`.
pub type JobId = i64;

/// The number of a claim. It increases with each claim of a job; calls that name an older one are rejected.
pub type Claim = i64;

/// A job and the claim under which a worker holds it. Every call about a running job names both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ToSql, FromSql)]
#[postgres(name = "held_job")]
#[non_exhaustive]
pub struct HeldJob {
    /// The job.
    pub id: JobId,
    /// The claim it is held under.
    pub claim: Claim,
}

/// The address of the row of a claimed job until it is changed: its `ctid`.
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

/// A job as received by its worker.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClaimedJob {
    /// The job and its claim.
    pub held: HeldJob,
    /// The command: the name an executor is registered for.
    pub command: String,
    /// Its queue.
    pub queue: String,
    /// The priority; smaller numbers run first.
    pub priority: i32,
    /// The number of the attempt, from 1.
    pub attempt: i32,
    /// How often it is attempted: its own number, its command's, or its retry policy's. None if that is not limited,
    /// and for chains that are not retried as a whole.
    pub max_attempts: Option<i32>,
    /// The time limit of this attempt, if the job or its command has one.
    pub timeout: Option<Duration>,
    /// The time limit of the database for executors that have none.
    pub default_timeout: Option<Duration>,
    /// When it was enqueued.
    pub created_at: SystemTime,
    /// When it was due.
    pub run_at: SystemTime,
    /// Names and values that are passed along with the job, for tracing for example.
    pub headers: BTreeMap<String, Value>,
    /// The payload, as it was enqueued. For a step of a chain, the outputs of the steps before it are merged into it.
    pub payload: Box<RawValue>,
    /// The answer its executor waited for, if it was resumed with one.
    pub answer: Option<Box<RawValue>>,
    /// The steps of a chain. Its command is then only a name; in a step, it is the step's.
    pub steps: Option<Vec<String>>,
    /// How many of them were done when it was claimed.
    pub step: i32,
    /// The address of its row, if the job can be completed by it.
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
#[non_exhaustive]
pub struct ChainPosition {
    /// The name of the chain: the job's command.
    pub chain: String,
    /// The number of this step, from 1.
    pub step: i32,
    /// The number of steps.
    pub steps: usize,
    /// The number of the attempt of the step in this attempt of the job, from 1.
    pub attempt: i32,
}
