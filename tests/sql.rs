//! Runs every `tests/sql/<step>/<behaviour>.sql` in one migrated database, and below them what needs a transaction or
//! sessions of its own.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use common::{DEADLINE, Database, enqueue};
use tokio_postgres::Client;

/// All of them. A folder that is empty, or was not found, must not pass.
const STEPS: [&str; 19] = [
    "enqueue", "workflow", "wake", "claim", "limits", "chain", "complete", "follow", "spawn", "wait", "retry",
    "rescue", "schedule", "archive", "operate", "explain", "views", "stats", "grants",
];
const AT_LEAST: usize = 167;

/// Sessions that run files side by side.
const SESSIONS: usize = 3;

#[tokio::test(flavor = "multi_thread")]
async fn every_behaviour_holds() {
    let files = files();
    let database = Database::new().await;
    database
        .owner()
        .await
        .batch_execute(&read(&folder().join("helpers.sql")))
        .await
        .expect("the helpers load");

    // Days of history are made and dropped under locks that others give up on soon: they come last, alone.
    let (alone, together): (Vec<_>, Vec<_>) = files.into_iter().partition(|file| step(file) == "archive");
    let mut failures = run_all(&database, together, SESSIONS).await;
    failures.extend(run_all(&database, alone, 1).await);

    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[test]
fn every_step_has_files() {
    let files = files();
    let mut count = BTreeMap::new();
    for file in &files {
        *count.entry(step(file)).or_insert(0) += 1;
    }

    for step in STEPS {
        assert!(count.contains_key(step), "tests/sql/{step} has no files");
    }
    assert_eq!(count.len(), STEPS.len(), "a folder that is no step: {count:?}");
    assert!(files.len() >= AT_LEAST, "only {} files, of {AT_LEAST}", files.len());
}

#[tokio::test]
async fn a_claim_under_another_isolation_level_is_refused() {
    let database = Database::new().await;
    let worker = database.connect("worker").await;
    enqueue(&database.owner().await, "noop").await;
    let claim = format!(
        "select * from bugle.claim({}, array[('default', 1, null, null, 'awake')::bugle.queue_request])",
        register(&worker).await
    );

    for level in ["repeatable read", "serializable"] {
        let error = worker
            .batch_execute(&format!("begin isolation level {level}; {claim}"))
            .await
            .expect_err("it is refused");
        assert_eq!(error.code().expect("by the schema").code(), "JB012");
        worker.batch_execute("rollback").await.unwrap();
    }

    assert_eq!(worker.query(&claim, &[]).await.unwrap().len(), 1);
}

#[tokio::test]
async fn two_sessions_never_claim_the_same_job() {
    let database = Database::new().await;
    let (one, two) = (database.connect("worker").await, database.connect("worker").await);
    let (me, you) = (register(&one).await, register(&two).await);
    let claim = |who: &str| {
        format!(
            "select id from bugle.claim({who}, array[('default', 3, null, null, 'awake')::bugle.queue_request]) order by id"
        )
    };
    let owner = database.owner().await;
    let mut ids = vec![];
    for _ in 0..5 {
        ids.push(enqueue(&owner, "noop").await);
    }

    one.batch_execute("begin").await.unwrap();
    let first = ids_of(&one, &claim(&me)).await;
    let second = ids_of(&two, &claim(&you)).await;
    one.batch_execute("rollback").await.unwrap();
    let third = ids_of(&two, &claim(&you)).await;

    assert_eq!(first, ids[..3], "one takes the first three");
    assert_eq!(second, ids[3..], "the other skips what is locked and does not wait");
    assert_eq!(third, ids[..3], "what was rolled back can be claimed again");
}

async fn ids_of(client: &Client, query: &str) -> Vec<i64> {
    client
        .query(query, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect()
}

/// Sign on for the command `noop`; returns id and nonce as they are written in SQL.
async fn register(client: &Client) -> String {
    client
        .query_one(
            "select format('%s, %L', worker, nonce) \
             from bugle.register('tester', 'here', 1, '0', bugle.protocol(), '{default}', '{10}', '{noop}')",
            &[],
        )
        .await
        .expect("registers")
        .get(0)
}

/// Returns a line for each that failed.
async fn run_all(database: &Database, files: Vec<PathBuf>, sessions: usize) -> Vec<String> {
    let queue = Mutex::new(files);
    let session = async || {
        let client = database.owner().await;
        let mut failures = vec![];
        loop {
            let Some(file) = queue.lock().unwrap().pop() else {
                return failures;
            };
            if let Err(why) = run(&client, &file).await {
                let name = file.strip_prefix(folder()).unwrap_or(&file);
                failures.push(format!("{}: {why}", name.display()));
            }
        }
    };
    let all = futures_util::future::join_all((0..sessions).map(|_| session())).await;
    all.into_iter().flatten().collect()
}

async fn run(client: &Client, file: &Path) -> Result<(), String> {
    let text = read(file);
    if !text.starts_with("begin;\n") || !text.ends_with("\nrollback;\n") {
        return Err("a file begins with \"begin;\" and ends with \"rollback;\"".into());
    }
    let outcome = match tokio::time::timeout(DEADLINE, client.batch_execute(&text)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(match error.as_db_error() {
            Some(error) => format!(
                "{} (SQLSTATE {}){}",
                error.message(),
                error.code().code(),
                error.where_().map(|place| format!("\n{place}")).unwrap_or_default()
            ),
            None => error.to_string(),
        }),
        Err(_) => panic!("{} does not end", file.display()),
    };
    // session locks (proofs of life, bells) and settings outlive a rollback
    client
        .batch_execute("rollback; select pg_advisory_unlock_all(); reset all")
        .await
        .map_err(|error| error.to_string())?;
    outcome
}

fn files() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = entries(&folder())
        .into_iter()
        .filter(|path| path.is_dir())
        .flat_map(|step| entries(&step))
        .filter(|path| path.extension().is_some_and(|ending| ending == "sql"))
        .collect();
    files.sort();
    files
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sql")
}

fn step(file: &Path) -> String {
    let folder = file.parent().expect("a file is in a folder");
    folder
        .file_name()
        .expect("it has a name")
        .to_string_lossy()
        .into_owned()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("it can be read").path())
        .collect()
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}
