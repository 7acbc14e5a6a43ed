//! Unnamed statements, for sessions that may be shared: those of the caller, or of a pooler in transaction mode. A
//! named prepared statement would outlive the call and could collide with another client's statement of the same name.
//!
//! Each call is one message and one round trip. The types of parameters follow from their Rust types, and columns must
//! have built-in types, because the driver looks up all others with named prepared statements.

use std::time::SystemTime;

use postgres_types::Json;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{GenericClient, Row};
use uuid::Uuid;

use crate::error::Result;

/// A value whose Rust type determines the SQL type it is sent as.
pub(crate) trait Parameter: ToSql + Sync {
    fn sent_as(&self) -> Type;
}

impl<T: SentAs + ToSql + Sync> Parameter for T {
    fn sent_as(&self) -> Type {
        T::TYPE
    }
}

/// The SQL type of a Rust type.
pub(crate) trait SentAs {
    const TYPE: Type;
}

macro_rules! sent_as {
    ($($rust:ty => $postgres:ident),* $(,)?) => {
        $(impl SentAs for $rust { const TYPE: Type = Type::$postgres; })*
    };
}

sent_as! {
    bool => BOOL,
    i32 => INT4,
    i64 => INT8,
    f32 => FLOAT4,
    f64 => FLOAT8,
    str => TEXT,
    String => TEXT,
    [i64] => INT8_ARRAY,
    Vec<i64> => INT8_ARRAY,
    Vec<String> => TEXT_ARRAY,
    serde_json::Value => JSONB,
    SystemTime => TIMESTAMPTZ,
    Uuid => UUID,
}

impl<T> SentAs for Json<T> {
    const TYPE: Type = Type::JSONB;
}

impl<T: SentAs> SentAs for Option<T> {
    const TYPE: Type = T::TYPE;
}

impl<T: SentAs + ?Sized> SentAs for &T {
    const TYPE: Type = T::TYPE;
}

/// Unnamed statements on any client.
pub(crate) trait Unnamed: GenericClient {
    /// All rows.
    async fn ask(&self, sql: &str, parameters: &[&dyn Parameter]) -> Result<Vec<Row>> {
        Ok(self.query_typed(sql, &typed(parameters)).await?)
    }

    /// The only row.
    async fn ask_one(&self, sql: &str, parameters: &[&dyn Parameter]) -> Result<Row> {
        Ok(self.query_typed_one(sql, &typed(parameters)).await?)
    }

    /// The only row, if there is one.
    async fn ask_opt(&self, sql: &str, parameters: &[&dyn Parameter]) -> Result<Option<Row>> {
        Ok(self.query_typed_opt(sql, &typed(parameters)).await?)
    }

    /// The number of changed rows.
    async fn change(&self, sql: &str, parameters: &[&dyn Parameter]) -> Result<u64> {
        Ok(self.execute_typed(sql, &typed(parameters)).await?)
    }
}

impl<C: GenericClient> Unnamed for C {}

fn typed<'a>(parameters: &[&'a dyn Parameter]) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    parameters
        .iter()
        .map(|parameter| (*parameter as &(dyn ToSql + Sync), parameter.sent_as()))
        .collect()
}
