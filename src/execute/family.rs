//! What a job has to do with others, for its executor: its children, the jobs it waited for, and its answer.

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
use crate::state::{self, Reason, State};

/// A job that another waited for: a child, or a dependency.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DependencyResult {
    /// Its id.
    pub id: JobId,
    /// Its name in the workflow, if it has one.
    pub name: Option<String>,
    /// How it ended; none if it was deleted.
    pub state: Option<State>,
    /// Why, if it did not complete.
    pub reason: Option<Reason>,
    /// Its result.
    pub result: Option<Box<RawValue>>,
    /// Its error, if it did not complete.
    pub error: Option<String>,
}

impl DependencyResult {
    /// Whether it completed.
    pub fn is_completed(&self) -> bool {
        self.state == Some(State::Completed)
    }

    /// Its result as `T`, or its failure as an error.
    ///
    /// # Errors
    /// If it did not complete, or its result is not a `T`.
    pub fn result<T: DeserializeOwned>(&self) -> Result<T> {
        if !self.is_completed() {
            let error = self.error.as_deref().unwrap_or("no error was stored");
            let state = state::or_gone(self.state);
            return Err(Error::new(format!("job {} is {state}: {error}", self.id)));
        }
        let result = self.result.as_deref().map_or("null", RawValue::get);
        serde_json::from_str(result).map_err(|error| {
            Error::new(format!(
                "the result of job {} cannot be decoded as the requested type: {error}",
                self.id
            ))
        })
    }
}

impl<S: Send + Sync> Context<S> {
    /// Enqueue children of this job, which then waits until all of them have ended. Return the outcome that this
    /// returns. The executor runs again, as the same attempt, and reads them with [`children`](Context::children).
    ///
    /// Children and waiting are one transaction, under the job's claim: a worker that dies before it leaves no
    /// children, and one that has lost its claim cannot spawn any.
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
    /// If a child is rejected, there is none, or the claim is no longer current. Nothing is stored then.
    pub async fn spawn(&self, children: impl IntoIterator<Item = impl Into<NewJob>>) -> Result<Outcome> {
        let children: Vec<_> = children.into_iter().map(Into::into).collect();
        let specs = as_list(&children)?;
        if let Some(outcome) = self.rehearse_spawn(&specs) {
            return Ok(outcome);
        }
        self.spawn_json(&*self.database().await?, &specs).await
    }

    /// The same inside a transaction of the executor's own: its writes, the children and the waiting commit together.
    ///
    /// # Errors
    /// As [`spawn`](Context::spawn): roll back then.
    pub async fn spawn_in(
        &self,
        transaction: &Transaction<'_>,
        children: impl IntoIterator<Item = impl Into<NewJob>>,
    ) -> Result<Outcome> {
        let children: Vec<_> = children.into_iter().map(Into::into).collect();
        self.spawn_json(transaction, &as_list(&children)?).await
    }

    /// The same with children that depend on each other.
    ///
    /// # Errors
    /// As [`spawn`](Context::spawn).
    pub async fn spawn_workflow(&self, children: &Workflow) -> Result<Outcome> {
        let jobs = serde_json::json!({ "jobs": children.specs()? });
        let specs = serde_json::value::to_raw_value(&jobs).expect("is JSON");
        if let Some(outcome) = self.rehearse_spawn(&specs) {
            return Ok(outcome);
        }
        self.spawn_json(&*self.database().await?, &specs).await
    }

    fn rehearse_spawn(&self, specs: &RawValue) -> Option<Outcome> {
        self.rehearsal()?.noted.lock().unwrap().spawned = Some(specs.to_owned());
        self.note_settled(Some(Settled::Waiting));
        Some(Outcome::Settled)
    }

    async fn spawn_json(&self, client: &impl GenericClient, children: &RawValue) -> Result<Outcome> {
        if let Some(outcome) = self.rehearse_spawn(children) {
            return Ok(outcome);
        }
        self.note_settled(Some(Settled::Waiting));
        calls::spawn(client, self.inner.identity, self.inner.job.held, children).await?;
        Ok(Outcome::Settled)
    }

    /// The same with jobs as JSON, as `bugle.spawn` takes them.
    pub(crate) async fn spawn_as_json(&self, children: &RawValue) -> Result<Outcome> {
        self.spawn_json(&*self.database().await?, children).await
    }

    /// The children that the executor has spawned, in that order. None in the first run.
    ///
    /// # Errors
    /// If the database cannot be reached, or the claim is no longer current.
    pub async fn children(&self) -> Result<Vec<DependencyResult>> {
        self.dependency_results(true).await
    }

    /// The jobs that this one waited for, in the order of their ids.
    ///
    /// # Errors
    /// If the database cannot be reached, or the claim is no longer current.
    pub async fn dependencies(&self) -> Result<Vec<DependencyResult>> {
        self.dependency_results(false).await
    }

    async fn dependency_results(&self, child: bool) -> Result<Vec<DependencyResult>> {
        if let Some(rehearsal) = self.rehearsal() {
            let given = if child {
                &rehearsal.children
            } else {
                &rehearsal.dependencies
            };
            return Ok(given.clone());
        }
        calls::dependency_results(
            &*self.database().await?,
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
    /// If the answer is not a `T`: a failure that is not retried.
    pub fn answer<T: DeserializeOwned>(&self) -> Result<Option<T>, Failure> {
        let Some(answer) = &self.inner.job.answer else {
            return Ok(None);
        };
        serde_json::from_str(answer.get()).map(Some).map_err(|error| {
            Failure::new(format!("the answer cannot be decoded as the requested type: {error}"))
                .code("bad_answer")
                .not_retryable()
        })
    }
}

fn as_list(children: &[NewJob]) -> Result<Box<RawValue>> {
    let specs = children.iter().map(NewJob::spec).collect::<Result<Vec<_>>>()?;
    Ok(serde_json::value::to_raw_value(&specs).expect("is JSON"))
}
