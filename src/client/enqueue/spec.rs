//! A new job as JSON, as workflows spell it, and the jobs it comes after.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::NewJob;
use crate::admin::read::rfc3339;
use crate::error::{Error, Result};
use crate::job::JobId;

/// A job that another comes after: by its id, or by its name in a [`Workflow`](crate::Workflow).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Needed {
    /// A job of the same workflow.
    Named(String),
    /// A job that is there already.
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
    /// Start it when this job is completed; if that fails or is cancelled, this one has failed too.
    pub fn after(mut self, needed: impl Into<Needed>) -> Self {
        self.after.push(After {
            job: needed.into(),
            on_failure: "fail",
        });
        self
    }

    /// Start it when this job has ended, however.
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
            return Err(Error::new(
                "a job of a workflow cannot say what becomes of another (on_conflict)",
            ));
        }
        let seconds = |span: Option<Duration>| span.map(|span| format!("{} seconds", span.as_secs_f64()));
        let spec = Spec {
            command: &self.command,
            payload: self.payload()?,
            queue: &self.queue,
            priority: self.priority,
            run_at: self.run_at.map(rfc3339),
            delay: seconds(self.delay),
            deadline: self.deadline.map(rfc3339),
            timeout: seconds(self.timeout),
            max_attempts: self.max_attempts,
            retry_policy: &self.retry_policy,
            headers: (!self.headers.is_empty()).then_some(&self.headers),
            unique_key: &self.unique_key,
            idempotency_key: &self.idempotency_key,
            idempotency_ttl: seconds(self.idempotency_ttl),
            order_key: &self.order_key,
            limit_key: &self.limit_key,
            fair_key: &self.fair_key,
            steps: &self.steps,
            on_success: &self.on_success,
            on_failure: &self.on_failure,
            after: &self.after,
        };
        serde_json::value::to_raw_value(&spec)
            .map_err(|error| Error::new(format!("the job cannot be written as JSON: {error}")))
    }
}

#[derive(Serialize)]
struct Spec<'a> {
    command: &'a str,
    payload: &'a RawValue,
    queue: &'a Option<String>,
    priority: Option<i32>,
    run_at: Option<String>,
    delay: Option<String>,
    deadline: Option<String>,
    timeout: Option<String>,
    max_attempts: Option<i32>,
    retry_policy: &'a Option<String>,
    headers: Option<&'a BTreeMap<String, Value>>,
    unique_key: &'a Option<String>,
    idempotency_key: &'a Option<String>,
    idempotency_ttl: Option<String>,
    order_key: &'a Option<String>,
    limit_key: &'a Option<String>,
    fair_key: &'a Option<String>,
    steps: &'a Option<Vec<String>>,
    on_success: &'a Option<String>,
    on_failure: &'a Option<String>,
    after: &'a [After],
}
