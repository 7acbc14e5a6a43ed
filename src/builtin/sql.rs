//! Commands executed by the database: one statement, in the same transaction as the job's completion.
//!
//! Both happen or neither: if the worker dies in between, nothing of the attempt remains. A worker that has lost its
//! claim cannot complete the job, so its writes are rolled back. The statement takes effect exactly once.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio_postgres::types::{FromSql, Json, ToSql, Type};
use tokio_postgres::{Column, IsolationLevel, Row, Statement, Transaction};
use tokio_util::sync::CancellationToken;

use super::stopped;
use crate::db::connect::Connection;
use crate::error::Error;
use crate::execute::context::Context;
use crate::execute::executor::{Execution, Executor, Failure, Outcome};

/// How long to try to cancel the statement on the server.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs an SQL statement.
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
    tokio::select! {
        ended = run(&statement, &context, &mut connection) => return ended,
        () = stop.cancelled() => {}
    }
    let _ = tokio::time::timeout(CANCEL_TIMEOUT, context.pool().cancel(&server)).await;
    // not returned to the pool: the cancellation could hit the next statement on this connection
    connection.discard();
    Err(stopped())
}

async fn run(sql: &str, context: &Context, connection: &mut Connection) -> Result<(), Failure> {
    match attempt(sql, context, connection).await {
        // nothing of it was executed: prepare it again, once
        Err(failure) if is_outdated(&failure) => {
            connection.forget_prepared();
            attempt(sql, context, connection).await
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
async fn attempt(sql: &str, context: &Context, connection: &mut Connection) -> Result<(), Failure> {
    // $1 is always jsonb, so that the same text has the same meaning in every statement
    let statement = connection
        .prepare_typed_cached(sql, &[Type::JSONB])
        .await
        .map_err(failure)?;
    let readers = readers(&statement)?;
    let builder = connection
        .build_transaction()
        .isolation_level(IsolationLevel::ReadCommitted);
    let transaction = builder.start().await.map_err(failure)?;
    let row = first_row(&transaction, &statement, &context.job().payload).await?;
    let result = row.map(|row| result(&row, &readers)).transpose()?.flatten();
    context.complete_in(&transaction, result).await.map_err(refused)?;
    transaction.commit().await.map_err(failure)
}

/// Run the statement to completion. Only its first row is kept.
async fn first_row(
    transaction: &Transaction<'_>,
    statement: &Statement,
    payload: &RawValue,
) -> Result<Option<Row>, Failure> {
    let payload = Json(payload);
    let parameters: &[&(dyn ToSql + Sync)] = match statement.params().len() {
        0 => &[],
        1 => &[&payload],
        many => {
            let message = format!("the statement has {many} parameters; the only one allowed is $1, the payload");
            return Err(Failure::new(message).code("bad_statement").not_retryable());
        }
    };
    let rows = transaction
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
