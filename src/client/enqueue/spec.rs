//! A new job as JSON, as workflows spell it, and the jobs it comes after.

use std::time::{Duration, SystemTime};

use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::NewJob;
use crate::admin::read::rfc3339;
use crate::error::{Error, Result};
use crate::job::JobId;

/// A job that another waits for: by its id, or by its name in a [`Workflow`](crate::Workflow).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Needed {
    /// A job of the same workflow.
    Named(String),
    /// An existing job.
    Job(JobId),
}

impl From<&str> for Needed {
    fn from(name: &str) -> Self {
        Needed::Named(name.to_string())
    }
}

impl From<JobId> for Needed {
    fn from(id: JobId) -> Self {
        Needed::Job(id)
    }
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct After {
    job: Needed,
    on_failure: &'static str,
}

impl NewJob {
    /// Start it when the given job is completed. If that one fails or is cancelled, this one fails too.
    pub fn after(mut self, needed: impl Into<Needed>) -> Self {
        self.after.push(After {
            job: needed.into(),
            on_failure: "fail",
        });
        self
    }

    /// Start it when the given job has ended, in any final state.
    pub fn after_end_of(mut self, needed: impl Into<Needed>) -> Self {
        self.after.push(After {
            job: needed.into(),
            on_failure: "run",
        });
        self
    }

    /// The job as a workflow spells it.
    pub(crate) fn spec(&self) -> Result<Box<RawValue>> {
        if self.on_conflict.is_some() {
            return Err(Error::new("a job of a workflow cannot set on_conflict"));
        }
        self.payload()?;
        serde_json::value::to_raw_value(self)
            .map_err(|error| Error::new(format!("the job cannot be written as JSON: {error}")))
    }
}

pub(super) fn payload<S: Serializer>(
    payload: &Result<Box<RawValue>, String>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match payload {
        Ok(payload) => payload.serialize(serializer),
        Err(error) => Err(S::Error::custom(error)),
    }
}

pub(super) fn time<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(rfc3339).serialize(serializer)
}

/// As an interval of Postgres.
pub(super) fn seconds<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    span.map(|span| format!("{} seconds", span.as_secs_f64()))
        .serialize(serializer)
}
