//! The schema, embedded: `migrations/` (the past, by refinery) and `sql/` (the present, re-applied when it changed).

use std::time::Duration;

use refinery::Runner;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::calls;
use crate::connect::{self, Target, Unnamed};
use crate::error::{Backoff, Error, Result};

mod embedded {
    refinery::embed_migrations!("migrations");
}

include!(concat!(env!("OUT_DIR"), "/sql.rs"));

/// Rises with every release that changes `sql/` or `migrations/`. An older `migrate` refuses a newer schema by it.
pub const REVISION: i32 = 5;

/// Where refinery notes what it applied.
const HISTORY: &str = "bugle.migrations";

/// As whom the server's `pg_stat_activity` shows us.
const NAME: &str = "bugle migrate";

/// One lock around everything `migrate` does.
const MIGRATE_KEY: i64 = 7_126_490_980;

/// What may be removed only once the transaction that made it useless has been committed.
const AFTERWARDS: &str = "drop sequence if exists bugle.job_ids_before;";

/// What a database has, compared with what this binary brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// Bring the schema up to date. Any number of processes may do so at once.
///
/// # Errors
/// If the schema is newer than this binary, or the user may not do what is needed.
pub async fn migrate(target: impl Into<Target>) -> Result<Status> {
    let target = target.into();
    if connect::is_lent(&target).await? {
        return Err(pooled());
    }
    let mut client = target.client(NAME).await?;
    // A role's own timeouts must not cut a migration short. What is made here keeps the functions and operators it finds for good:
    // none of somebody else's may be a better match.
    connect::pin_session(&client).await?;
    refuse_encoding(&client).await?;
    client.ask_one("select pg_advisory_lock($1)", &[&MIGRATE_KEY]).await?;
    // the lock goes with the connection
    let before = status(&client).await?;
    match before {
        Status::UpToDate => return Ok(before),
        Status::Ahead => return Err(too_old()),
        Status::Missing | Status::Behind => {}
    }
    client
        .batch_execute("create schema if not exists bugle; set lock_timeout = '500ms'")
        .await?;
    let migrated = insist(&mut client, is_lock_timeout, async |client| {
        runner().run_async(client).await.map(drop)
    });
    migrated.await.map_err(migration_error)?;
    insist(&mut client, Error::is_transient, apply).await?;
    insist(&mut client, Error::is_transient, async |client| {
        Ok(client.batch_execute(AFTERWARDS).await?)
    })
    .await?;
    while let Some(done) = client
        .ask_one("select bugle.upkeep()", &[])
        .await?
        .get::<_, Option<String>>(0)
    {
        tracing::debug!(event = "upkeep", done);
    }
    Ok(before)
}

/// Compare a database with this binary.
///
/// # Errors
/// If it cannot be asked.
pub async fn check(target: impl Into<Target>) -> Result<Status> {
    let client = target.into().client(NAME).await?;
    connect::asked(&client, status(&client)).await
}

/// Roles the migrating user could not make.
///
/// # Errors
/// If the database cannot be asked.
pub async fn missing_roles(target: impl Into<Target>) -> Result<Vec<String>> {
    let client = target.into().client(NAME).await?;
    let rows = client
        .ask(
            "select n.name from unnest(array['bugle_enqueuer', 'bugle_worker', 'bugle_viewer', 'bugle_operator']) n (name) \
             where not exists (select from pg_roles r where r.rolname = n.name)",
            &[],
        )
        .await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// What a worker asks before it serves: is there a schema that speaks its protocol? An older worker runs on a newer schema
/// as long as that is so.
///
/// # Errors
/// With what to run, if not.
pub async fn verify(client: &Client) -> Result<()> {
    match calls::schema_state(client).await.map_err(no_right)? {
        None => Err(Error::new("this database has no Bugle schema").hint("Run: bugle migrate")),
        Some((revision, _, protocol)) if protocol < calls::PROTOCOL => Err(Error::new(format!(
            "the schema (revision {revision}) speaks protocol {protocol}, this worker {}",
            calls::PROTOCOL
        ))
        .hint("Run: bugle migrate")),
        Some((revision, _, protocol)) if protocol > calls::PROTOCOL => Err(Error::new(format!(
            "the schema (revision {revision}) speaks protocol {protocol}, this worker only {}",
            calls::PROTOCOL
        ))
        .hint("Upgrade this worker.")),
        Some((revision, _, _)) if revision < REVISION => Err(Error::new(format!(
            "the schema is at revision {revision}, this worker needs {REVISION}"
        ))
        .hint("Run: bugle migrate")),
        Some(_) => Ok(()),
    }
}

/// The whole schema as one script, for psql or another migration tool. `bugle migrate` recognises what it made.
pub fn script() -> String {
    let runner = runner();
    let mut script = String::from("begin;\nset local search_path = pg_catalog, pg_temp;\ncreate schema bugle;\n");
    script.push_str(&format!(
        "create table {HISTORY} (version integer primary key, name varchar(255), applied_on varchar(255), checksum varchar(255));\n"
    ));
    for migration in runner.get_migrations() {
        script.push_str(&format!(
            "\n-- migrations/{migration}.sql\n{}",
            migration.sql().unwrap_or_default()
        ));
        script.push_str(&format!(
            "insert into {HISTORY} values ({}, '{}', to_char(now() at time zone 'utc', 'YYYY-MM-DD\"T\"HH24:MI:SS.US000\"Z\"'), '{}');\n",
            migration.version(),
            migration.name(),
            migration.checksum()
        ));
    }
    for (name, sql) in SQL {
        script.push_str(&format!("\n-- sql/{name}\n{sql}"));
    }
    script.push_str(&format!(
        "\n{}\ncommit;\n{AFTERWARDS}\nselect bugle.upkeep() from generate_series(1, 6);\n",
        note_version()
    ));
    script
}

fn runner() -> Runner {
    let mut runner = embedded::migrations::runner();
    runner.set_migration_table_name(HISTORY);
    runner
}

pub(crate) async fn status(client: &Client) -> Result<Status> {
    Ok(match calls::schema_state(client).await? {
        None => Status::Missing,
        Some((revision, _, _)) if revision > REVISION => Status::Ahead,
        Some((revision, checksum, _)) if revision < REVISION || checksum != CHECKSUM => Status::Behind,
        Some(_) => Status::UpToDate,
    })
}

/// Work that waits for no lock longer than a moment, tried again until it gets them: whoever waits for a lock on the jobs makes
/// everyone else wait behind it.
async fn insist<E: std::fmt::Display>(
    client: &mut Client,
    is_worth_another_try: impl Fn(&E) -> bool,
    mut work: impl AsyncFnMut(&mut Client) -> Result<(), E>,
) -> Result<(), E> {
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
    for attempt in 1.. {
        match work(client).await {
            Err(error) if is_worth_another_try(&error) && attempt < 60 && !client.is_closed() => {
                tracing::debug!(event = "migrate", %error, "will try again");
                tokio::time::sleep(backoff.next()).await;
            }
            done => return done,
        }
    }
    unreachable!("the loop ends by returning")
}

/// `sql/` as a whole, in one transaction.
async fn apply(client: &mut Client) -> Result<()> {
    let transaction = client.transaction().await?;
    for (_, sql) in SQL {
        transaction.batch_execute(sql).await?;
    }
    transaction.batch_execute(&note_version()).await?;
    Ok(transaction.commit().await?)
}

fn note_version() -> String {
    format!(
        "insert into bugle.schema_version (revision, checksum) values ({REVISION}, '{CHECKSUM}') \
         on conflict (only_row) do update set revision = excluded.revision, checksum = excluded.checksum, migrated_at = now();"
    )
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
    .hint("The encoding of a database cannot be changed. Make another: create database … encoding 'UTF8' template template0;"))
}

fn pooled() -> Error {
    Error::new("this connection goes through a pooler that lends a session for one transaction at a time").hint(
        "Migrating holds a lock of its session: connect to Postgres directly, or through a pooler in session mode. Or pipe \
         \"bugle migrate sql\" into psql. Workers need the same; all other commands work through any pooler.",
    )
}

fn too_old() -> Error {
    Error::new("the schema of this database is newer than this bugle")
        .hint("Use the version that migrated it, or a newer one.")
}

fn is_lock_timeout(error: &refinery::Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if let Some(said) = error.downcast_ref::<tokio_postgres::Error>() {
            return said.code() == Some(&SqlState::LOCK_NOT_AVAILABLE);
        }
        cause = error.source();
    }
    false
}

fn migration_error(error: refinery::Error) -> Error {
    use refinery::error::Kind;
    match error.kind() {
        Kind::MissingVersion(_) | Kind::DivergentVersion(..) => too_old(),
        _ => {
            let mut text = error.to_string();
            let mut cause = std::error::Error::source(&error);
            while let Some(error) = cause {
                text.push_str(": ");
                text.push_str(&error.to_string());
                cause = error.source();
            }
            if is_lock_timeout(&error) {
                return Error::new(text)
                    .hint("Somebody holds a lock on the tables for long. Run it again when that is over.");
            }
            Error::new(text).hint("The migrating user needs the right to create a schema in this database.")
        }
    }
}
