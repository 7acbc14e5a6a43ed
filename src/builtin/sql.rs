//! Commands executed by the database: one statement, in the same transaction as the job's completion.
//!
//! Both happen or neither: if the worker dies in between, nothing of the attempt remains. A worker that has lost its
//! claim cannot complete the job, so its writes are rolled back. The statement takes effect exactly once.
//!
//! Many jobs of a command can share a transaction (`batch`). All of them are committed or none; then each runs by
//! itself.

mod batch;

use std::collections::BTreeMap;
use std::error::Error as _;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::TryStreamExt;
use futures_util::future::{MaybeDone, maybe_done};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio_postgres::types::{FromSql, Json, ToSql, Type};
use tokio_postgres::{Client, Column, IsolationLevel, Row, Statement};
use tokio_util::sync::CancellationToken;

pub use batch::Batched;

use super::stopped;
use crate::db::calls;
use crate::db::connect::Connection;
use crate::error::Error;
use crate::execute::context::Context;
use crate::execute::executor::{Execution, Executor, Failure, Outcome};

/// How long to try to cancel the statement on the server.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs an SQL statement.
#[derive(Clone)]
pub struct Sql {
    statement: Arc<str>,
    timeout: Duration,
}

impl Sql {
    pub fn new(statement: &str, timeout: Duration) -> Sql {
        Sql {
            statement: statement.into(),
            timeout,
        }
    }
}

impl Executor for Sql {
    /// The statement runs in a separate task: when this future is dropped at its time limit, the statement still has to
    /// be cancelled on the server, or it would keep running and hold its connection.
    fn execute(&self, context: Context) -> Execution {
        let statement = self.statement.clone();
        let stop = context.cancellation().child_token();
        Box::pin(async move {
            let _stop_when_dropped = stop.clone().drop_guard();
            match tokio::spawn(settle(statement, context, stop)).await {
                Ok(Ok(())) => Outcome::Settled,
                Ok(Err(failure)) => Outcome::Fail(failure),
                Err(panic) => Outcome::Fail(Failure::from(panic).code("panic")),
            }
        })
    }

    fn default_timeout(&self) -> Option<Duration> {
        Some(self.timeout)
    }
}

async fn settle(statement: Arc<str>, context: Context, stop: CancellationToken) -> Result<(), Failure> {
    let mut connection = tokio::select! {
        connection = context.database() => connection.map_err(refused)?,
        () = stop.cancelled() => return Err(stopped()),
    };
    let server = connection.cancel_token();
    let jobs = [&context];
    tokio::select! {
        ended = run(&statement, &jobs, &mut connection) => return ended,
        () = stop.cancelled() => {}
    }
    let _ = tokio::time::timeout(CANCEL_TIMEOUT, context.pool().cancel(&server)).await;
    // not returned to the pool: the cancellation could hit the next statement on this connection
    connection.discard();
    Err(stopped())
}

/// Run the statement for each of these jobs, and complete them, in one transaction.
async fn run(sql: &str, jobs: &[&Context], connection: &mut Connection) -> Result<(), Failure> {
    match attempt(sql, jobs, connection).await {
        // nothing of it is kept: prepare it again, once
        Err(failure) if is_outdated(&failure) => {
            connection.forget_prepared();
            jobs.iter().for_each(|job| job.note_shortage(None));
            attempt(sql, jobs, connection).await
        }
        ended => ended,
    }
}

/// Whether the statement that this connection prepared before cannot be used any more: a table has changed since, or
/// another statement has deallocated it.
fn is_outdated(failure: &Failure) -> bool {
    matches!(failure.code.as_deref(), Some("0A000" | "26000"))
}

/// The statement is prepared once for each connection.
async fn attempt(sql: &str, jobs: &[&Context], connection: &mut Connection) -> Result<(), Failure> {
    // $1 is always jsonb, so that the same text has the same meaning in every statement
    let statement = connection
        .prepare_typed_cached(sql, &[Type::JSONB])
        .await
        .map_err(failure)?;
    let readers = readers(&statement)?;
    if let [job] = jobs
        && !is_whole(job)
    {
        return step(&statement, &readers, job, connection).await;
    }
    let completion = calls::prepare_complete_all(connection).await.map_err(refused)?;
    let client: &Client = connection;
    // the statements are sent without waiting for each other, so they must not run outside of a transaction
    client
        .batch_execute("begin isolation level read committed")
        .await
        .map_err(failure)?;
    let mut outputs = Vec::with_capacity(jobs.len());
    for job in jobs {
        outputs.push(sent(first_row(client, &statement, &job.job().payload)).await);
    }
    match results(outputs, &readers).await {
        Ok(results) => finish(client, &completion, jobs, results).await,
        Err(failure) => {
            let _ = client.batch_execute("rollback").await;
            Err(failure)
        }
    }
}

/// Whether it is completed by itself: not a step of a chain, and not in a test without a database.
fn is_whole(job: &Context) -> bool {
    job.position().is_none() && job.rehearsal().is_none()
}

/// One step of a chain.
async fn step(
    statement: &Statement,
    readers: &[Reader],
    context: &Context,
    connection: &mut Connection,
) -> Result<(), Failure> {
    let builder = connection
        .build_transaction()
        .isolation_level(IsolationLevel::ReadCommitted);
    let transaction = builder.start().await.map_err(failure)?;
    let row = first_row(transaction.client(), statement, &context.job().payload).await?;
    let result = row.map(|row| result(&row, readers)).transpose()?.flatten();
    context.complete_in(&transaction, result).await.map_err(refused)?;
    transaction.commit().await.map_err(failure)?;
    context.note_committed();
    Ok(())
}

/// Complete the jobs and commit, in one round trip: if one of them is no longer held, COMMIT rolls back.
async fn finish(
    client: &Client,
    completion: &Statement,
    jobs: &[&Context],
    results: Vec<Option<Box<RawValue>>>,
) -> Result<(), Failure> {
    let completing = sent(Context::complete_all_in(jobs, &results, client, completion)).await;
    let committing = sent(client.batch_execute("commit")).await;
    reply(completing).await.map_err(refused)?;
    reply(committing).await.map_err(failure)
}

type Sent<F> = Pin<Box<MaybeDone<F>>>;

/// Let it send its request now; the [`reply`] is awaited later.
async fn sent<F: Future>(request: F) -> Sent<F> {
    let mut request = Box::pin(maybe_done(request));
    poll_fn(|task| {
        let _ = request.as_mut().poll(task);
        Poll::Ready(())
    })
    .await;
    request
}

async fn reply<F: Future>(mut request: Sent<F>) -> F::Output {
    request.as_mut().await;
    request.as_mut().take_output().expect("it is taken once")
}

/// The result of each statement.
async fn results<F: Future<Output = Result<Option<Row>, Failure>>>(
    outputs: Vec<Sent<F>>,
    readers: &[Reader],
) -> Result<Vec<Option<Box<RawValue>>>, Failure> {
    let mut results = Vec::with_capacity(outputs.len());
    for output in outputs {
        let row = reply(output).await?;
        results.push(row.map(|row| result(&row, readers)).transpose()?.flatten());
    }
    Ok(results)
}

/// Run the statement to completion. Only its first row is kept.
async fn first_row(client: &Client, statement: &Statement, payload: &RawValue) -> Result<Option<Row>, Failure> {
    let payload = Json(payload);
    let parameters: &[&(dyn ToSql + Sync)] = match statement.params().len() {
        0 => &[],
        1 => &[&payload],
        many => {
            let message = format!("the statement has {many} parameters; the only one allowed is $1, the payload");
            return Err(Failure::new(message).code("bad_statement").not_retryable());
        }
    };
    let rows = client
        .query_raw(statement, parameters.iter().copied())
        .await
        .map_err(failure)?;
    let mut rows = pin!(rows);
    let mut first = None;
    while let Some(row) = rows.try_next().await.map_err(failure)? {
        first.get_or_insert(row);
    }
    Ok(first)
}

type Reader = fn(&Row, usize) -> Result<Box<RawValue>, Failure>;

/// How to read each column as JSON. Determined before the statement runs, so that nothing has to be rolled back.
fn readers(statement: &Statement) -> Result<Vec<Reader>, Failure> {
    let reader_of = |column: &Column| {
        reader(column.type_()).ok_or_else(|| {
            Failure::new(format!(
                "column {:?} has type {}, which cannot be converted to a result\n\
                 hint: Cast it to jsonb or text, or return to_jsonb(…).",
                column.name(),
                column.type_().name()
            ))
            .code("bad_result")
            .not_retryable()
        })
    };
    statement.columns().iter().map(reader_of).collect()
}

fn reader(kind: &Type) -> Option<Reader> {
    Some(match *kind {
        Type::JSON | Type::JSONB => json,
        Type::VOID => |_, _| Ok(RawValue::NULL.to_owned()),
        Type::BOOL => plain::<bool>,
        Type::INT2 => plain::<i16>,
        Type::INT4 => plain::<i32>,
        Type::INT8 => plain::<i64>,
        Type::FLOAT4 => plain::<f32>,
        Type::FLOAT8 => plain::<f64>,
        Type::UUID => |row, column| raw(&row.try_get::<_, Option<uuid::Uuid>>(column)?.map(|id| id.to_string())),
        _ if <String as FromSql>::accepts(kind) => plain::<String>,
        _ => return None,
    })
}

fn json(row: &Row, column: usize) -> Result<Box<RawValue>, Failure> {
    let value: Option<Json<Box<RawValue>>> = row.try_get(column)?;
    Ok(value.map_or_else(|| RawValue::NULL.to_owned(), |json| json.0))
}

fn plain<T: for<'a> FromSql<'a> + Serialize>(row: &Row, column: usize) -> Result<Box<RawValue>, Failure> {
    raw(&row.try_get::<_, Option<T>>(column)?)
}

fn raw(value: &impl Serialize) -> Result<Box<RawValue>, Failure> {
    Ok(to_raw_value(value)?)
}

/// A single column is the result itself; several columns become an object.
fn result(row: &Row, readers: &[Reader]) -> Result<Option<Box<RawValue>>, Failure> {
    let mut values = readers.iter().enumerate().map(|(column, read)| read(row, column));
    match readers.len() {
        0 => Ok(None),
        1 => values.next().transpose(),
        _ => {
            let names = row.columns().iter().map(|column| column.name());
            let fields = names.zip(values).map(|(name, value)| Ok((name, value?)));
            let object: BTreeMap<&str, Box<RawValue>> = fields.collect::<Result<_, Failure>>()?;
            raw(&object).map(Some)
        }
    }
}

/// The failure for an error of this library: a lost claim, an exhausted pool, or an error from Postgres.
fn refused(error: Error) -> Failure {
    match error
        .source()
        .and_then(|source| source.downcast_ref::<tokio_postgres::Error>())
    {
        Some(source) => described(source),
        None => Failure::new(error.to_string()),
    }
}

fn failure(error: tokio_postgres::Error) -> Failure {
    described(&error)
}

/// The message and hint from Postgres, without the detail, which often contains a whole row.
fn described(error: &tokio_postgres::Error) -> Failure {
    let Some(said) = error.as_db_error() else {
        return Failure::caused_by(error).code("connection");
    };
    let sqlstate = said.code().code();
    let hint = said.hint().map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
    let failure = Failure::new(format!("{}{hint}", said.message())).code(sqlstate);
    // syntax errors, unknown names and missing privileges: retrying does not help
    match sqlstate.starts_with("42") {
        true => failure.not_retryable(),
        false => failure,
    }
}
