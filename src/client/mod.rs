//! A client: enqueue jobs, and await their outcomes.

pub mod enqueue;
pub mod result;
pub mod workflow;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use self::enqueue::{Enqueued, NewJob};
use self::result::{Ended, Waiters};
use self::workflow::Workflow;
use crate::db::connect::{self, Target};
use crate::error::{Error, Result};
use crate::job::JobId;

/// A client: a pool of connections to enqueue with. Cheap to clone.
#[derive(Clone)]
pub struct Bugle {
    pool: deadpool_postgres::Pool,
    waiters: Arc<Waiters>,
    /// Where the pool connects to, if it is ours.
    target: Option<Target>,
}

impl Bugle {
    /// A client for this database. Connects when first used.
    ///
    /// # Errors
    /// If the connection string cannot be read.
    pub fn connect(url: &str) -> Result<Bugle> {
        Bugle::at(&connect::parse(url)?)
    }

    pub(crate) fn at(target: &Target) -> Result<Bugle> {
        Ok(Bugle {
            pool: connect::pool(target, "client", 8)?,
            waiters: Arc::new(Waiters::listening(target.clone())),
            target: Some(target.clone()),
        })
    }

    /// A client over a pool that is there already. It has no connection to listen on, so it asks for results every 10
    /// to 250 ms.
    ///
    /// # Errors
    /// None at present.
    pub fn from_pool(pool: deadpool_postgres::Pool) -> Result<Bugle> {
        Ok(Bugle {
            pool,
            waiters: Arc::default(),
            target: None,
        })
    }

    async fn connection(&self) -> Result<deadpool_postgres::Object> {
        let explained = |error| match &self.target {
            Some(target) => target.explained_of_pool(error),
            None => Error::from(error),
        };
        self.pool.get().await.map_err(explained)
    }

    /// Enqueue one job in a transaction of its own.
    ///
    /// ```no_run
    /// # async fn example(bugle: bugle::Bugle) -> bugle::Result<()> {
    /// let sum: i64 = bugle.enqueue(&bugle::NewJob::new("add", [1, 2])).await?.result().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// If the database cannot be reached, or refuses the job.
    pub async fn enqueue(&self, job: &NewJob) -> Result<Handle> {
        let id = job.enqueue(&**self.connection().await?).await?;
        Ok(self.job(id))
    }

    /// The same, and whether it is new.
    ///
    /// # Errors
    /// As [`enqueue`](Bugle::enqueue).
    pub async fn enqueue_once(&self, job: &NewJob) -> Result<Enqueued> {
        job.enqueue_once(&**self.connection().await?).await
    }

    /// Enqueue jobs that start when others are done, all or none. Returns a handle of each, by its name.
    ///
    /// # Errors
    /// As [`enqueue`](Bugle::enqueue); also if the workflow waits for itself.
    pub async fn enqueue_workflow(&self, workflow: &Workflow) -> Result<BTreeMap<String, Handle>> {
        let jobs = workflow.enqueue(&**self.connection().await?).await?;
        Ok(jobs.into_iter().map(|(name, id)| (name, self.job(id))).collect())
    }

    /// A job that was enqueued by whomever.
    pub fn job(&self, id: JobId) -> Handle {
        Handle {
            id,
            bugle: self.clone(),
        }
    }

    /// Wait until a job has ended, however. Any number may wait at once: they share one connection.
    ///
    /// # Errors
    /// If the client goes away meanwhile. A job that failed is not an error here, but in
    /// [`Ended::into_result`](crate::Ended::into_result).
    pub async fn ended(&self, id: JobId) -> Result<Ended> {
        self.waiters.wait(&self.pool, id).await
    }
}

/// A job that was enqueued, and a way to await its outcome. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    id: JobId,
    bugle: Bugle,
}

impl Handle {
    /// Its id.
    pub fn id(&self) -> JobId {
        self.id
    }

    /// Wait until it has ended, and take its result.
    ///
    /// # Errors
    /// If it did not complete, or its result is not a `T`.
    pub async fn result<T: DeserializeOwned>(&self) -> Result<T> {
        self.ended().await?.into_result()
    }

    /// Wait until it has ended, however.
    ///
    /// # Errors
    /// If the client goes away meanwhile.
    pub async fn ended(&self) -> Result<Ended> {
        self.bugle.ended(self.id).await
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("id", &self.id).finish_non_exhaustive()
    }
}
