//! What the schema takes on disk, and what keeps VACUUM from making room.

use tokio_postgres::GenericClient;

use crate::db::connect::Unnamed;
use crate::error::Result;

/// A table, with its indexes and large values.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Size {
    /// Its name.
    pub name: String,
    /// For a part of history: `ended` or `failed`, and its day.
    pub day: Option<(String, String)>,
    /// Rows, as the statistics of the server estimate them.
    pub rows: Option<i64>,
    /// Bytes on disk.
    pub bytes: i64,
}

/// The tables of the schema that take the most, and the days of history, the newest first.
///
/// # Errors
/// If the query fails.
pub async fn sizes(client: &impl GenericClient) -> Result<Vec<Size>> {
    let rows = client
        .ask(
            "select c.relname::text, \
               case p.relname when 'jobs_ended' then 'ended' when 'jobs_failed' then 'failed' end, \
               substring(pg_get_expr(c.relpartbound, c.oid) from '''(\\d{4}-\\d\\d-\\d\\d)'''), \
               coalesce(nullif(c.reltuples, -1), pg_stat_get_live_tuples(c.oid))::bigint, \
               pg_total_relation_size(c.oid) \
             from pg_class c \
               join pg_namespace n on n.oid = c.relnamespace \
               left join pg_inherits i on i.inhrelid = c.oid \
               left join pg_class p on p.oid = i.inhparent \
             where n.nspname = 'bugle' and c.relkind = 'r' \
             order by 3 desc nulls last, 2, 5 desc \
             limit 500",
            &[],
        )
        .await?;
    rows.iter()
        .map(|row| {
            let (kind, day): (Option<String>, Option<String>) = (row.try_get(1)?, row.try_get(2)?);
            Ok(Size {
                name: row.try_get(0)?,
                day: kind.zip(day),
                rows: row.try_get(3)?,
                bytes: row.try_get(4)?,
            })
        })
        .collect()
}

/// A session whose snapshot VACUUM has to respect.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Snapshot {
    /// Its process.
    pub pid: i32,
    /// Its login.
    pub login: String,
    /// What it calls itself.
    pub application: String,
    /// Where it is.
    pub client: String,
    /// What it does.
    pub state: String,
    /// How long its transaction has been open.
    pub open_seconds: Option<f64>,
    /// How many transactions have begun since its snapshot.
    pub behind: i64,
}

/// The sessions with the oldest snapshots of this database, the oldest first.
///
/// # Errors
/// If the query fails.
pub async fn snapshots(client: &impl GenericClient, limit: i64) -> Result<Vec<Snapshot>> {
    let rows = client
        .ask(
            "select a.pid, coalesce(a.usename::text, '?'), coalesce(nullif(a.application_name, ''), '?'), \
               coalesce(host(a.client_addr), 'this machine'), coalesce(a.state, '?'), \
               extract(epoch from clock_timestamp() - a.xact_start)::float8, age(a.backend_xmin)::bigint \
             from pg_stat_activity a \
             where a.backend_xmin is not null and a.datname = current_database() and a.pid <> pg_backend_pid() \
             order by age(a.backend_xmin) desc, a.xact_start \
             limit $1",
            &[&limit],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Snapshot {
                pid: row.try_get(0)?,
                login: row.try_get(1)?,
                application: row.try_get(2)?,
                client: row.try_get(3)?,
                state: row.try_get(4)?,
                open_seconds: row.try_get(5)?,
                behind: row.try_get(6)?,
            })
        })
        .collect()
}
