//! Many jobs at once, written as JSON: what `bugle enqueue` reads from a file.

use serde_json::Value;
use tokio_postgres::GenericClient;
use tokio_postgres::types::Json;

use crate::db::connect::Unnamed;
use crate::error::Result;
use crate::job::JobId;

/// The columns of a new job, as `bugle.settable_columns` names them.
pub(crate) const COLUMNS: [&str; 20] = [
    "command",
    "payload",
    "queue",
    "priority",
    "run_at",
    "deadline",
    "timeout",
    "max_attempts",
    "retry_policy",
    "retry_delay",
    "headers",
    "unique_key",
    "idempotency_key",
    "idempotency_ttl",
    "order_key",
    "limit_key",
    "fair_key",
    "steps",
    "on_success",
    "on_failure",
];

/// Insert jobs that are written as JSON objects with these columns. Returns the ids of those that are new.
pub(crate) async fn insert_many(client: &impl GenericClient, jobs: &[&Value]) -> Result<Vec<JobId>> {
    let value = |column: &&str| match *column {
        "payload" => "coalesce(r.payload, '{}')".to_owned(),
        "queue" => "coalesce(r.queue, 'default')".to_owned(),
        "priority" => "coalesce(r.priority, 0)".to_owned(),
        "run_at" => "coalesce(r.run_at, now())".to_owned(),
        column => format!("r.{column}"),
    };
    let sql = format!(
        "insert into bugle.jobs ({}) select {} \
         from jsonb_array_elements($1) with ordinality j (spec, place), \
           jsonb_populate_record(null::bugle.jobs, j.spec) r \
         order by j.place \
         on conflict do nothing \
         returning id",
        COLUMNS.join(", "),
        COLUMNS.iter().map(value).collect::<Vec<_>>().join(", ")
    );
    let rows = client.ask(&sql, &[&Json(jobs)]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}
