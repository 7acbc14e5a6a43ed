//! What a database holds under the name `bugle`: nothing, our schema with or without its rows, or something of another
//! program.

use tokio_postgres::GenericClient;

use super::{CHECKSUM, REVISION, Status};
use crate::db::calls;
use crate::db::connect::Unnamed;
use crate::error::{Error, Result};

/// Compare a database with this binary.
///
/// # Errors
/// If it cannot be asked, or if the schema is not ours or cannot be recognized.
pub(super) async fn compare(client: &impl GenericClient) -> Result<Status> {
    if let Some((revision, checksum, _)) = calls::schema_state(client).await? {
        return Ok(match revision {
            REVISION if checksum == CHECKSUM => Status::UpToDate,
            newer if newer > REVISION => Status::Ahead,
            _ => Status::Behind,
        });
    }
    if has_no_rows(client).await? {
        return Ok(match installed(client).await?.0 {
            newer if newer > REVISION => Status::Ahead,
            _ => Status::Behind,
        });
    }
    refuse_others(client).await?;
    Ok(Status::Missing)
}

/// Whether the schema came here without the rows that say what it is, as a dump of the schema alone does.
pub(super) async fn has_no_rows(client: &impl GenericClient) -> Result<bool> {
    let sql = "select pg_catalog.to_regprocedure('bugle.installed()') is not null";
    Ok(client.ask_one(sql, &[]).await?.get(0) && calls::schema_state(client).await?.is_none())
}

/// What the schema itself says: its revision, and its last migration.
pub(super) async fn installed(client: &impl GenericClient) -> Result<(i32, i32)> {
    let sql = "select revision, migration from bugle.installed()";
    let row = client.ask_one(sql, &[]).await?;
    Ok((row.get(0), row.get(1)))
}

/// All that is there by name, and whether it has the history of a migration: then it is ours.
const CONTENT: &str = "
    select
      (select count(*) from pg_catalog.pg_attribute a
        where a.attrelid = h.oid and a.attname in ('version', 'name', 'applied_on', 'checksum')) = 4,
      array(
        select c.relname::pg_catalog.text from pg_catalog.pg_class c
        where c.relnamespace = n.oid and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S', 'c')
        union all
        select p.proname || '()' from pg_catalog.pg_proc p where p.pronamespace = n.oid
        union all
        select t.typname from pg_catalog.pg_type t where t.typnamespace = n.oid and t.typtype in ('e', 'd', 'r'))
    from pg_catalog.pg_namespace n
      left join pg_catalog.pg_class h on h.relnamespace = n.oid and h.relname = 'migrations'
    where n.nspname = 'bugle'";

async fn refuse_others(client: &impl GenericClient) -> Result<()> {
    let Some(row) = client.ask_opt(CONTENT, &[]).await? else {
        return Ok(());
    };
    let (has_history, mut content): (bool, Vec<String>) = (row.get(0), row.get(1));
    if content.is_empty() || has_history && content.len() == 1 {
        return Ok(());
    }
    if !has_history {
        content.sort();
        let more = match content.len() {
            0..6 => String::new(),
            many => format!(" and {} more", many - 5),
        };
        content.truncate(5);
        return Err(Error::new(format!(
            "the schema \"bugle\" of this database belongs to something else: it has {}{more}",
            content.join(", ")
        ))
        .with_hint(
            "Bugle needs this schema for itself, and has changed nothing. Rename the other one (alter schema bugle \
            rename to …), or use another database.",
        ));
    }
    let has_begun = "select exists (select from bugle.migrations)";
    if client.ask_one(has_begun, &[]).await?.get(0) {
        return Ok(());
    }
    Err(
        Error::new("the schema \"bugle\" is incomplete: it has no rows and no revision").with_hint(
            "Restore it completely. If nothing in it is needed, run: drop schema bugle cascade; \
             then: bugle migrate",
        ),
    )
}
