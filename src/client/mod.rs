//! A client: enqueue jobs, and await their outcomes.

#[cfg(feature = "cli")]
pub(crate) mod bulk;
pub mod enqueue;
pub mod job;
pub mod result;
pub mod workflow;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use self::enqueue::{Enqueued, NewJob};
use self::result::{Ended, Waiters};
use self::workflow::Workflow;
use crate::admin::operate::{self, Operated, Verb};
use crate::db::connect::{self, Connection, Pool, Target};
use crate::error::{Error, Result};
use crate::job::JobId;

/// How many connections a client opens at most, besides the one it listens on while results are awaited.
const CONNECTIONS: usize = 8;

/// A client with a pool of connections: enqueue jobs, and await their results. Cheap to clone.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use bugle::{Bugle, NewJob};
///
/// let bugle = Bugle::connect(&std::env::var("DATABASE_URL")?)?;
/// let job = bugle.enqueue(&NewJob::new("add", [1, 2])).await?;
/// let sum: i64 = job.result().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Bugle {
    pool: Pool,
    waiters: Arc<Waiters>,
}

impl Bugle {
    /// A client for the database at `url`, a connection string as psql takes it. It connects when it is first used.
    ///
    /// # Errors
    /// If the connection string cannot be read.
    pub fn connect(url: &str) -> Result<Bugle> {
        Bugle::at(&connect::parse(url)?)
    }

    pub(crate) fn at(target: &Target) -> Result<Bugle> {
        Ok(Bugle {
            pool: Pool::for_client(target, "client", CONNECTIONS)?,
            waiters: Arc::new(Waiters::new(target.clone())),
        })
    }

    /// A connection of this client's pool: for the functions of [`read`](crate::read) and
    /// [`operate`](crate::operate), for [`NewJob::enqueue`] in a transaction, and for statements of your own.
    ///
    /// ```no_run
    /// # async fn example(bugle: bugle::Bugle) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut connection = bugle.connection().await?;
    /// let transaction = connection.transaction().await?;
    /// transaction.execute("insert into orders (item) values ('tea')", &[]).await?;
    /// bugle::NewJob::new("ship", "tea").enqueue(&transaction).await?;
    /// transaction.commit().await?; // the order and the job, or neither
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// If the database cannot be reached.
    pub async fn connection(&self) -> Result<Connection> {
        self.pool.get_or_explain().await
    }

    /// Enqueue a job in a transaction of its own: a [`NewJob`], or a reference to a type that implements
    /// [`Job`](crate::Job).
    ///
    /// ```no_run
    /// # async fn example(bugle: bugle::Bugle) -> bugle::Result<()> {
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct SendMail { to: String }
    /// # impl bugle::Job for SendMail { const COMMAND: &'static str = "send_mail"; }
    /// bugle.enqueue(&SendMail { to: "ada@example.org".into() }).await?;
    /// let sum: i64 = bugle.enqueue(&bugle::NewJob::new("add", [1, 2])).await?.result().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// If the database cannot be reached, or rejects the job.
    pub async fn enqueue(&self, job: impl Into<NewJob>) -> Result<Handle> {
        Ok(self.job(self.enqueue_once(job).await?.id))
    }

    /// The same, and whether the job is new or existed already under its key.
    ///
    /// # Errors
    /// As [`enqueue`](Bugle::enqueue).
    pub async fn enqueue_once(&self, job: impl Into<NewJob>) -> Result<Enqueued> {
        let job = job.into();
        job.enqueue_once(&*self.connection().await?).await
    }

    /// Enqueue jobs that start when others are done, all or none. Returns a handle for each, by its name.
    ///
    /// # Errors
    /// As [`enqueue`](Bugle::enqueue); also if a job of the workflow depends on itself.
    pub async fn enqueue_workflow(&self, workflow: &Workflow) -> Result<BTreeMap<String, Handle>> {
        let jobs = workflow.enqueue(&*self.connection().await?).await?;
        Ok(jobs.into_iter().map(|(name, id)| (name, self.job(id))).collect())
    }

    /// A handle for an existing job. Nothing is sent to the database.
    pub fn job(&self, id: JobId) -> Handle {
        Handle {
            id,
            bugle: self.clone(),
        }
    }

    /// Wait until a job has ended. Any number of callers may wait at once: they share one connection.
    ///
    /// # Errors
    /// If the client is dropped meanwhile. A job that failed is not an error here, but in
    /// [`Ended::into_result`](crate::Ended::into_result).
    pub async fn wait(&self, id: JobId) -> Result<Ended> {
        self.waiters.wait(&self.pool, id).await
    }
}

impl std::fmt::Debug for Bugle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bugle").finish_non_exhaustive()
    }
}

/// A job that was enqueued: await its outcome, or cancel it. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    id: JobId,
    bugle: Bugle,
}

impl Handle {
    /// The job's id.
    pub fn id(&self) -> JobId {
        self.id
    }

    /// Wait until the job has ended, and return its result.
    ///
    /// # Errors
    /// If the job did not complete, or its result is not a `T`.
    pub async fn result<T: DeserializeOwned>(&self) -> Result<T> {
        self.wait().await?.into_result()
    }

    /// Wait until the job has ended.
    ///
    /// # Errors
    /// If the client is dropped meanwhile.
    pub async fn wait(&self) -> Result<Ended> {
        self.bugle.wait(self.id).await
    }

    /// Cancel the job. If it is running, its executor is asked to stop. For members of `bugle_operator`.
    ///
    /// # Errors
    /// If the job has ended or does not exist, the database cannot be reached, or the role may not cancel jobs.
    pub async fn cancel(&self) -> Result<()> {
        let client = self.bugle.connection().await?;
        let operated = operate::apply(&*client, &Verb::Cancel, &[self.id], None).await?;
        match operated.into_iter().next() {
            Some(Operated { done: true, .. }) => Ok(()),
            refused => {
                let reason = refused
                    .and_then(|job| job.reason)
                    .unwrap_or_else(|| "there is no such job".into());
                Err(Error::new(format!("job {} cannot be cancelled: {reason}", self.id)))
            }
        }
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("id", &self.id).finish_non_exhaustive()
    }
}
