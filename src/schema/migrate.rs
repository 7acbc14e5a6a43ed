//! Bringing a database up to date. Only with the feature `migrate`.

mod apply;
mod script;

use std::collections::BTreeMap;
use std::time::Duration;

use refinery::{Migration, Runner};
use tokio_postgres::{Client, Transaction};

use super::{CHECKSUM, Migrated, NAME, REVISION, SQL, Status, found, status};
use crate::db::connect::{self, Target, Unnamed};
use crate::error::{Backoff, Error, Result};

pub use script::script;

mod embedded {
    refinery::embed_migrations!("migrations");
}

/// Which migrations were applied, as refinery notes it.
const HISTORY: &str = "bugle.migrations";
const HISTORY_COLUMNS: &str =
    "(version integer primary key, name varchar(255), applied_on varchar(255), checksum varchar(255))";

/// A migration that waits for a lock on the jobs makes all other sessions wait behind it: not for long.
const SOON: &str = "set local lock_timeout = '500ms'";

/// Bring the schema up to date: all of it, or nothing. Any number of processes may do so at once.
///
/// # Errors
/// If the schema is newer than this binary or belongs to another program, or the user may not do what is needed.
pub async fn migrate(target: impl Into<Target>) -> Result<Migrated> {
    let mut client = target.into().client(NAME).await?;
    connect::asked(&client, refuse_encoding(&client)).await?;
    // without a lock: mostly nothing is to be done
    let found = insist(&mut client, async |client| {
        connect::asked(client, status(client)).await.map_err(Stopped::by_a_race)
    });
    if found.await? == Status::UpToDate {
        return Ok(Migrated::Unchanged);
    }
    let before = insist(&mut client, bring_up_to_date).await.map_err(explain)?;
    let done = match before {
        // another session was faster
        Status::UpToDate => return Ok(Migrated::Unchanged),
        Status::Missing => Migrated::Created,
        Status::Behind | Status::Ahead => Migrated::Upgraded,
    };
    while let Some(done) = upkeep(&client).await? {
        tracing::debug!(event = "upkeep", done);
    }
    Ok(done)
}

/// Roles that the migrating user could not create.
///
/// # Errors
/// If the database cannot be asked.
pub async fn missing_roles(target: impl Into<Target>) -> Result<Vec<String>> {
    let client = target.into().client(NAME).await?;
    let rows = client
        .ask(
            "select n.name from unnest(array['bugle_enqueuer', 'bugle_worker', 'bugle_observer', 'bugle_viewer', \
             'bugle_operator']) n (name) \
             where not exists (select from pg_roles r where r.rolname = n.name)",
            &[],
        )
        .await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

fn runner() -> Runner {
    embedded::migrations::runner()
}

/// Why an attempt to migrate failed.
struct Stopped {
    error: Error,
    is_worth_another_try: bool,
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Stopped {
        Stopped {
            is_worth_another_try: error.is_transient(),
            error,
        }
    }
}

impl From<tokio_postgres::Error> for Stopped {
    fn from(error: tokio_postgres::Error) -> Stopped {
        Error::from(error).into()
    }
}

impl Stopped {
    /// Where two sessions create the schema at once, one of them fails because it is there already, or has heard of
    /// only a part.
    fn by_a_race(error: Error) -> Stopped {
        const RACE: [&str; 5] = ["23505", "42P06", "42P07", "3F000", "42P01"];
        let is_race = error.sqlstate().is_some_and(|code| RACE.contains(&code));
        Stopped {
            is_worth_another_try: is_race || error.is_transient(),
            error,
        }
    }
}

/// Work that waits for no lock longer than a moment, tried again until it gets them.
async fn insist<T>(client: &mut Client, mut work: impl AsyncFnMut(&mut Client) -> Result<T, Stopped>) -> Result<T> {
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
    for attempt in 1.. {
        match work(client).await {
            Err(Stopped {
                error,
                is_worth_another_try: true,
            }) if attempt < 60 && !client.is_closed() => {
                tracing::debug!(event = "migrate", %error, "retrying");
                tokio::time::sleep(backoff.next()).await;
            }
            done => return done.map_err(|stopped| stopped.error),
        }
    }
    unreachable!("the loop ends by returning")
}

/// `migrations/` as far as they are missing, and `sql/` as a whole, in one transaction. What was there before.
async fn bring_up_to_date(client: &mut Client) -> Result<Status, Stopped> {
    let transaction = connect::own_transaction(client).await?;
    let before = take_turn(&transaction).await.map_err(Stopped::by_a_race)?;
    match before {
        Status::UpToDate => return Ok(before),
        Status::Ahead => return Err(too_old().into()),
        Status::Missing | Status::Behind => {}
    }
    apply_migrations(&transaction).await?;
    for (name, sql) in SQL {
        let applied = apply::apply(&transaction, sql).await;
        applied.map_err(|error| error.in_context(&format!("sql/{name}")))?;
    }
    transaction.batch_execute(&note_version()).await?;
    transaction.commit().await?;
    Ok(before)
}

/// One at a time, by a lock that no other login can take. Those who waited for it find nothing left to do.
async fn take_turn(transaction: &Transaction<'_>) -> Result<Status> {
    transaction.batch_execute(SOON).await?;
    // before anything is created beside what another program has
    if found::compare(transaction).await? == Status::Ahead {
        return Ok(Status::Ahead);
    }
    let is_there = "select exists (select from pg_namespace n where n.nspname = 'bugle')";
    if !transaction.ask_one(is_there, &[]).await?.get::<_, bool>(0) {
        transaction.batch_execute("create schema bugle").await?;
    }
    transaction
        .batch_execute(&format!(
            "create table if not exists {HISTORY} {HISTORY_COLUMNS}; lock table {HISTORY} in share row exclusive mode"
        ))
        .await?;
    found::compare(transaction).await
}

async fn apply_migrations(transaction: &Transaction<'_>) -> Result<()> {
    let runner = runner();
    let applied = format!("select version, checksum::text from {HISTORY}");
    let mut applied: BTreeMap<i32, String> = transaction
        .ask(&applied, &[])
        .await?
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    // a dump without rows: the schema itself says how far it is
    let last = match applied.is_empty() && found::has_no_rows(transaction).await? {
        true => found::installed(transaction).await?.1,
        false => 0,
    };
    for migration in runner.get_migrations() {
        match applied.remove(&migration.version()) {
            Some(checksum) if checksum == migration.checksum().to_string() => continue,
            Some(_) => return Err(too_old()),
            None if migration.version() <= last => {}
            None => {
                let sql = migration.sql().unwrap_or_default();
                let applied = transaction.batch_execute(sql).await;
                applied.map_err(|error| Error::from(error).in_context(&format!("migrations/{migration}.sql")))?;
            }
        }
        transaction.batch_execute(&note_migration(migration)).await?;
    }
    match applied.is_empty() {
        true => Ok(()),
        false => Err(too_old()),
    }
}

async fn upkeep(client: &Client) -> Result<Option<String>> {
    let step = connect::asked(client, client.ask_one("select bugle.upkeep()", &[]));
    Ok(step.await?.get(0))
}

fn note_migration(migration: &Migration) -> String {
    format!(
        "insert into {HISTORY} values ({}, '{}', to_char(now() at time zone 'utc', \
         'YYYY-MM-DD\"T\"HH24:MI:SS.US000\"Z\"'), '{}');\n",
        migration.version(),
        migration.name(),
        migration.checksum()
    )
}

/// Twice: as a row, and as a part of the schema, because a dump may leave the rows out.
fn note_version() -> String {
    let last = runner().get_migrations().iter().map(Migration::version).max();
    let last = last.unwrap_or_default();
    format!(
        "insert into bugle.schema_version (revision, checksum) values ({REVISION}, '{CHECKSUM}') \
         on conflict (only_row) do update set revision = excluded.revision, checksum = excluded.checksum, \
         migrated_at = now();\n\
         create or replace function bugle.installed() returns table (revision integer, migration integer) \
         language sql immutable parallel safe as 'values ({REVISION}, {last})';\n\
         comment on function bugle.installed is 'Revision and last migration of this schema, also in a dump without \
         rows.';\n\
         revoke execute on function bugle.installed from public;"
    )
}

/// JSON can hold any character, and only one encoding can store them all.
async fn refuse_encoding(client: &Client) -> Result<()> {
    let row = client
        .ask_one(
            "select current_setting('server_encoding'), current_database()::text",
            &[],
        )
        .await?;
    let (encoding, database): (&str, &str) = (row.get(0), row.get(1));
    if encoding == "UTF8" {
        return Ok(());
    }
    Err(Error::new(format!(
        "the database {database:?} has the encoding {encoding}, and Bugle needs UTF8"
    ))
    .with_hint(
        "The encoding of a database cannot be changed. Make another: create database … encoding 'UTF8' template \
        template0;",
    ))
}

fn too_old() -> Error {
    Error::new("the schema of this database is newer than this bugle")
        .with_hint("Use the version that migrated it, or a newer one.")
}

fn explain(error: Error) -> Error {
    let hint = match error.sqlstate() {
        Some("55P03") => {
            "Another session holds a lock on the tables for long. Nothing was changed: run it again when that is over."
        }
        Some("42501") => {
            "The migrating user must own the schema bugle or, if it does not exist, have the privilege to create it."
        }
        _ => return error,
    };
    let message = error.message();
    error.reworded(message, hint.into())
}
