//! The schema, embedded: `migrations/` (the past) and `sql/` (the present, re-applied when it changed).

mod found;
#[cfg(feature = "migrate")]
mod migrate;

use tokio_postgres::Client;

use crate::db::calls;
use crate::db::connect::{self, Target};
use crate::error::{Error, Result};

#[cfg(feature = "migrate")]
pub use migrate::{migrate, missing_roles, script};

include!(concat!(env!("OUT_DIR"), "/sql.rs"));

/// Rises with every release that changes `sql/` or `migrations/`. An older `migrate` refuses a newer schema by it.
pub const REVISION: i32 = 1;

/// As whom the server's `pg_stat_activity` shows us.
const NAME: &str = "bugle migrate";

/// What a database has, compared with what this binary brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// The same.
    UpToDate,
    /// No schema at all.
    Missing,
    /// An older one: run `bugle migrate`.
    Behind,
    /// A newer one: this binary must not touch it.
    Ahead,
}

/// What a migration did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Migrated {
    /// The schema was up to date already.
    Unchanged,
    /// There was no schema, and it was created.
    Created,
    /// The schema was older, and it was upgraded.
    Upgraded,
}

/// Compare a database with this binary.
///
/// # Errors
/// If it cannot be asked.
pub async fn check(target: impl Into<Target>) -> Result<Status> {
    let client = target.into().client(NAME).await?;
    connect::asked(&client, status(&client)).await
}

/// What a worker asks before it serves: is there a schema that speaks its protocol? An older worker runs on a newer
/// schema as long as that is so.
///
/// # Errors
/// With what to run, if not.
pub async fn verify(client: &Client) -> Result<()> {
    match calls::schema_state(client).await.map_err(no_right)? {
        None if found::has_no_rows(client).await? => Err(Error::new(
            "the Bugle schema of this database has no settings: it comes from a dump without data",
        )
        .with_hint("Run: bugle migrate")),
        None => Err(Error::new("this database has no Bugle schema").with_hint("Run: bugle migrate")),
        Some((revision, _, protocol)) if protocol < calls::PROTOCOL => Err(Error::new(format!(
            "the schema (revision {revision}) speaks protocol {protocol}, this worker {}",
            calls::PROTOCOL
        ))
        .with_hint("Run: bugle migrate")),
        Some((revision, _, protocol)) if protocol > calls::PROTOCOL => Err(Error::new(format!(
            "the schema (revision {revision}) speaks protocol {protocol}, this worker only {}",
            calls::PROTOCOL
        ))
        .with_hint("Upgrade this worker.")),
        Some((revision, _, _)) if revision < REVISION => Err(Error::new(format!(
            "the schema is at revision {revision}, this worker needs {REVISION}"
        ))
        .with_hint("Run: bugle migrate")),
        Some(_) => Ok(()),
    }
}

/// What the setting `migrate` of a worker asks for.
pub(crate) async fn migrate_at_start(target: &Target) -> Result<()> {
    #[cfg(feature = "migrate")]
    return migrate(target).await.map(drop);
    #[cfg(not(feature = "migrate"))]
    {
        let _ = target;
        Err(Error::without_feature("the setting migrate", "migrate"))
    }
}

pub(crate) async fn status(client: &Client) -> Result<Status> {
    found::compare(client).await
}

fn no_right(error: Error) -> Error {
    match error.sqlstate() {
        Some("42501") => error.reworded(
            "this user may not use the schema bugle of this database".into(),
            "A worker's login is a member of the role bugle_worker. As the owner: grant bugle_worker to LOGIN;".into(),
        ),
        _ => error,
    }
}
