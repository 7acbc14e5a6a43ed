//! Workflows: jobs that start when others are done, enqueued in one call.

use std::collections::BTreeMap;

use tokio_postgres::GenericClient;

use crate::client::enqueue::NewJob;
use crate::db::calls;
use crate::error::Result;
use crate::job::JobId;

/// Jobs by name, some [after](NewJob::after) others.
///
/// ```no_run
/// # async fn example(bugle: bugle::Bugle) -> bugle::Result<()> {
/// use bugle::{NewJob, Workflow};
///
/// let workflow = Workflow::new()
///     .job("fetch", NewJob::new("fetch", "https://example.org/orders"))
///     .job("count", NewJob::new("count", ()).after("fetch"))
///     .job("index", NewJob::new("index", ()).after("fetch"))
///     .job("report", NewJob::new("report", ()).after("count").after_end_of("index"));
/// let jobs = bugle.enqueue_workflow(&workflow).await?;
/// let report: String = jobs["report"].result().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Workflow {
    jobs: BTreeMap<String, NewJob>,
}

impl Workflow {
    /// An empty workflow.
    pub fn new() -> Self {
        Workflow::default()
    }

    /// Add a job, or replace the one of this name.
    pub fn job(mut self, name: &str, job: impl Into<NewJob>) -> Self {
        self.jobs.insert(name.to_string(), job.into());
        self
    }

    /// Enqueue on this connection, as a part of whatever transaction is open there: all jobs, or none.
    ///
    /// # Errors
    /// If the schema refuses it ([`Error::is_refused`](crate::Error::is_refused)): the message names the job.
    pub async fn enqueue(&self, client: &impl GenericClient) -> Result<BTreeMap<String, JobId>> {
        Ok(calls::enqueue_workflow(client, &self.specs()?)
            .await?
            .into_iter()
            .collect())
    }

    /// Its jobs as the schema reads them.
    pub(crate) fn specs(&self) -> Result<BTreeMap<&str, Box<serde_json::value::RawValue>>> {
        self.jobs
            .iter()
            .map(|(name, job)| Ok((name.as_str(), job.spec()?)))
            .collect()
    }
}
