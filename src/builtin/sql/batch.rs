//! Many jobs in one transaction: their statements, the completion of all of them, one commit.
//!
//! If anything fails, nothing is kept, and each of the jobs runs in a transaction of its own, as without a batch. So
//! none of them needs a savepoint, and a job that cannot succeed fails alone. The time limits of the jobs begin then;
//! the transaction of all has the shortest of them.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use tokio_util::sync::CancellationToken;

use super::{CANCEL_TIMEOUT, Sql, is_whole, refused, run, stopped};
use crate::db::connect::Connection;
use crate::execute::batch::{Batch, BatchExecution, BatchExecutor, BatchJob};
use crate::execute::context::Context;
use crate::execute::executor::{Executor, Failure, Outcome};
use crate::execute::shortage::Shortage;

/// Runs an SQL statement for many jobs in one transaction.
pub struct Batched {
    pub sql: Sql,
    pub most: usize,
}

impl BatchExecutor for Batched {
    fn most(&self) -> usize {
        self.most
    }

    fn execute(&self, batch: Batch) -> BatchExecution {
        let sql = self.sql.clone();
        Box::pin(async move {
            // a job that has failed before may be the one that made others fail
            let (jobs, alone): (Vec<BatchJob>, Vec<BatchJob>) = batch
                .into_iter()
                .partition(|job| is_whole(job.context()) && job.context().attempt() == 1);
            let together = async {
                match jobs.len() {
                    0 | 1 => each(&sql, jobs).await,
                    _ => together(&sql, jobs).await,
                }
            };
            tokio::join!(together, each(&sql, alone));
            Ok(())
        })
    }

    fn default_timeout(&self) -> Option<Duration> {
        Some(self.sql.timeout)
    }
}

/// Each in a transaction of its own.
async fn each(sql: &Sql, jobs: Vec<BatchJob>) {
    let runs = jobs.into_iter().map(|job| async move {
        let outcome = sql.execute(job.context().clone()).await;
        job.end(outcome);
    });
    join_all(runs).await;
}

async fn together(sql: &Sql, jobs: Vec<BatchJob>) {
    let contexts: Vec<Context> = jobs.iter().map(|job| job.context().clone()).collect();
    let paused = Paused::new(&contexts);
    let limit = contexts
        .iter()
        .filter_map(|context| context.inner.attempt.limit())
        .min()
        .unwrap_or(sql.timeout);
    let stop = CancellationToken::new();
    // in a separate task, because it has to be cancelled on the server if this future is dropped
    let _stop_when_dropped = stop.clone().drop_guard();
    let mut ended = tokio::spawn(transaction(sql.statement.clone(), contexts.clone(), stop.clone()));
    let signs = contexts
        .iter()
        .map(|context| Box::pin(context.cancellation().cancelled()));
    // no time limit of theirs runs meanwhile
    let signs = tokio::time::timeout(limit, select_all(signs));
    let ended = tokio::select! {
        ended = &mut ended => ended,
        _ = signs => {
            stop.cancel();
            ended.await
        }
    };
    drop(paused);
    match ended {
        Ok(End::Committed) => jobs.into_iter().for_each(|job| job.end(Outcome::Settled)),
        Ok(End::Undone(failure)) => {
            tracing::debug!(event = "batch_undone", jobs = jobs.len(), error = failure.message);
            // the next transaction finds out again
            contexts.iter().for_each(|context| context.note_shortage(None));
            each(sql, jobs).await;
        }
        Ok(End::Unknown(failure)) => jobs.into_iter().for_each(|job| job.fail(failure.clone())),
        Err(panic) => {
            let failure = Failure::from(panic).code("panic");
            jobs.into_iter().for_each(|job| job.fail(failure.clone()));
        }
    }
}

enum End {
    Committed,
    /// It was rolled back, or never begun.
    Undone(Failure),
    /// The connection was lost. If it was committed, the jobs are completed, and a report that they failed is refused.
    Unknown(Failure),
}

async fn transaction(statement: Arc<str>, contexts: Vec<Context>, stop: CancellationToken) -> End {
    let jobs: Vec<&Context> = contexts.iter().collect();
    let mut connection = tokio::select! {
        connection = connection(&jobs) => match connection {
            Ok(connection) => connection,
            Err(failure) => return End::Unknown(failure),
        },
        () = stop.cancelled() => return End::Undone(stopped()),
    };
    let server = connection.cancel_token();
    let ended = {
        let mut running = pin!(run(&statement, &jobs, &mut connection));
        tokio::select! {
            ended = &mut running => Some(ended),
            () = stop.cancelled() => {
                let cancelling = async {
                    let _ = jobs[0].pool().cancel(&server).await;
                    running.await
                };
                // it may have been committed before it could be cancelled
                tokio::time::timeout(CANCEL_TIMEOUT, cancelling).await.ok()
            }
        }
    };
    if stop.is_cancelled() {
        // the cancellation could hit the next statement on this connection
        connection.discard();
    }
    match ended {
        None => End::Unknown(stopped()),
        Some(Ok(())) => End::Committed,
        Some(Err(failure)) if is_cut_off(&failure) => End::Unknown(failure),
        Some(Err(failure)) => End::Undone(failure),
    }
}

/// Whether the server may have committed, although it did not say so: the connection was lost or closed.
fn is_cut_off(failure: &Failure) -> bool {
    let code = failure.code.as_deref().unwrap_or_default();
    code == "connection" || code.starts_with("08") || code.starts_with("57P")
}

/// A connection for all of these jobs. If it is refused for lack of connections, all of them are given back.
async fn connection(jobs: &[&Context]) -> Result<Connection, Failure> {
    let connection = jobs[0].pool().get().await;
    let shortage = connection.as_ref().err().and_then(Shortage::of_connection);
    if shortage.is_some() {
        jobs.iter().for_each(|job| job.note_shortage(shortage));
    }
    connection.map_err(refused)
}

/// The time limits of these jobs do not run until this is dropped.
struct Paused<'a>(&'a [Context]);

impl<'a> Paused<'a> {
    fn new(jobs: &'a [Context]) -> Paused<'a> {
        jobs.iter().for_each(|job| job.inner.attempt.pause_clock());
        Paused(jobs)
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|job| job.inner.attempt.resume_clock());
    }
}
