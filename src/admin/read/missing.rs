//! Which jobs of a list exist already, before `bugle.add_missing` adds the others.

use tokio_postgres::GenericClient;

use crate::db::connect::Unnamed;
use crate::error::Result;
use crate::job::JobId;

/// The jobs that have these keys of a command: for each key in order, the job, if there is one.
///
/// # Errors
/// If the query fails.
pub async fn jobs_with_keys(client: &impl GenericClient, command: &str, keys: &[String]) -> Result<Vec<Option<JobId>>> {
    let keys = keys.to_vec();
    let rows = client
        .ask(
            "select coalesce( \
               (select l.id from bugle.jobs_live l where l.command = $1 and l.unique_key = k.key limit 1), \
               (select i.job from bugle.idempotency_keys i \
                where i.command = $1 and i.key = k.key and i.expires_at > now())) \
             from unnest($2::text[]) with ordinality k (key, place) \
             order by k.place",
            &[&command, &keys],
        )
        .await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}
