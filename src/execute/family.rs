//! What a job has to do with others, as its executor sees it: children it spawns, jobs it came after, an answer it got.

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio_postgres::{GenericClient, Transaction};

use crate::client::enqueue::NewJob;
use crate::client::workflow::Workflow;
use crate::db::calls;
use crate::error::{Error, Result};
use crate::execute::context::{Context, Settled};
use crate::execute::executor::{Failure, Outcome};
use crate::job::JobId;

/// A job that another has waited for: a child, or one it came after.
#[derive(Debug, Clone)]
pub struct DependencyResult {
    /// Its id.
    pub id: JobId,
    /// What the workflow calls it, if it has a name.
    pub name: Option<String>,
    /// `completed`, `failed` or `cancelled`.
    pub state: String,
    /// Why, if it did not complete.
    pub reason: Option<String>,
    /// What its executor returned.
    pub result: Option<Box<RawValue>>,
    /// What went wrong, if it did not complete.
    pub error: Option<String>,
}

impl DependencyResult {
    /// Whether it completed.
    pub fn is_completed(&self) -> bool {
        self.state == "completed"
    }

    /// Its result as `T`, or its failure as an error.
    ///
    /// # Errors
    /// If it did not complete, or its result is not a `T`.
    pub fn result<T: DeserializeOwned>(&self) -> Result<T> {
        if !self.is_completed() {
            let error = self.error.as_deref().unwrap_or("no error was told");
            return Err(Error::new(format!("job {} is {}: {error}", self.id, self.state)));
        }
        let result = self.result.as_deref().map_or("null", RawValue::get);
        serde_json::from_str(result)
            .map_err(|error| Error::new(format!("the result of job {} does not fit: {error}", self.id)))
    }
}

impl Context {
    /// Enqueue children of this job and have it wait until all of them have ended. Return what this returns: the
    /// executor is run again then, as the same attempt, and finds them with [`children`](Context::children).
    ///
    /// The children and the waiting are one transaction, under the job's claim: a worker that dies before leaves no
    /// children, and one that was given up cannot spawn any.
    ///
    /// ```
    /// use bugle::{Context, IntoOutcome, NewJob, Registry};
    ///
    /// let registry = Registry::new().on("sum_pages", async |context: Context, pages: Vec<String>| {
    ///     let children = context.children().await?;
    ///     if children.is_empty() {
    ///         return Ok(context.spawn(pages.iter().map(|page| NewJob::new("count_page", page))).await?);
    ///     }
    ///     let mut sum = 0;
    ///     for child in children {
    ///         sum += child.result::<i64>()?;
    ///     }
    ///     Ok(sum.into_outcome())
    /// });
    /// ```
    ///
    /// # Errors
    /// If a child is refused, there is none, or the claim is no longer current. Nothing is stored then.
    pub async fn spawn(&self, children: impl IntoIterator<Item = NewJob>) -> Result<Outcome> {
        let children: Vec<_> = children.into_iter().collect();
        self.spawn_all(&**self.database().await?, &children).await
    }

    /// The same inside a transaction of the executor's own: its writes, the children and the waiting commit together.
    ///
    /// # Errors
    /// As [`spawn`](Context::spawn): roll back then.
    pub async fn spawn_in(
        &self,
        transaction: &Transaction<'_>,
        children: impl IntoIterator<Item = NewJob>,
    ) -> Result<Outcome> {
        let children: Vec<_> = children.into_iter().collect();
        self.spawn_all(transaction, &children).await
    }

    /// The same with children that come after one another.
    ///
    /// # Errors
    /// As [`spawn`](Context::spawn).
    pub async fn spawn_workflow(&self, children: &Workflow) -> Result<Outcome> {
        let jobs = serde_json::json!({ "jobs": children.specs()? });
        self.spawn_json(
            &**self.database().await?,
            &serde_json::value::to_raw_value(&jobs).expect("is JSON"),
        )
        .await
    }

    async fn spawn_all(&self, client: &impl GenericClient, children: &[NewJob]) -> Result<Outcome> {
        let specs = children.iter().map(NewJob::spec).collect::<Result<Vec<_>>>()?;
        self.spawn_json(client, &serde_json::value::to_raw_value(&specs).expect("is JSON"))
            .await
    }

    async fn spawn_json(&self, client: &impl GenericClient, children: &RawValue) -> Result<Outcome> {
        self.note_settled(Some(Settled::Waiting));
        calls::spawn(client, self.inner.identity, self.inner.job.held, children).await?;
        Ok(Outcome::Settled)
    }

    /// The children of this job that its executor has spawned, in the order in which it did. None in the first run.
    ///
    /// # Errors
    /// If the database cannot be reached, or the claim is no longer current.
    pub async fn children(&self) -> Result<Vec<DependencyResult>> {
        self.dependency_results(true).await
    }

    /// The jobs this one came after, in the order of their ids.
    ///
    /// # Errors
    /// If the database cannot be reached, or the claim is no longer current.
    pub async fn dependencies(&self) -> Result<Vec<DependencyResult>> {
        self.dependency_results(false).await
    }

    async fn dependency_results(&self, child: bool) -> Result<Vec<DependencyResult>> {
        calls::dependency_results(
            &**self.database().await?,
            self.inner.identity,
            self.inner.job.held,
            child,
        )
        .await
    }

    /// The answer this job was resumed with (`bugle.resume_with`) after its executor returned
    /// [`Outcome::Wait`](crate::Outcome::Wait). None in the first run.
    ///
    /// # Errors
    /// A failure that is not retried, if the answer is not a `T`.
    pub fn answer<T: DeserializeOwned>(&self) -> Result<Option<T>, Failure> {
        let Some(answer) = &self.inner.job.answer else {
            return Ok(None);
        };
        serde_json::from_str(answer.get()).map(Some).map_err(|error| {
            Failure::new(format!("the answer does not fit: {error}"))
                .code("bad_answer")
                .not_retryable()
        })
    }
}
