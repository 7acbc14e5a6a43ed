//! Every file `tests/sql/<step>/<behavior>.sql` is a test, named `<step>::<behavior>`: `cargo test --test sql
//! claim::` runs a step, `cargo test --test sql a_stale_claim_is_fenced` one behavior.
//!
//! A file begins a transaction and rolls it back, and therefore several files can use one database in turn. Two at a
//! time could not: one that sets a limit makes the claims of the other leave the queue out. So there is a database for
//! each test thread.

mod common;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use common::{DEADLINE, Database};
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;
use tokio_postgres::Client;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let runtime = Runtime::new().expect("a runtime");
    let databases = Arc::new(Databases::default());
    let trials: Vec<Trial> = behaviors()
        .into_iter()
        .map(|file| {
            let (runtime, databases) = (runtime.handle().clone(), databases.clone());
            Trial::test(name(&file), move || runtime.block_on(databases.run(&file)))
        })
        .collect();
    assert!(!trials.is_empty(), "there are no files in {}", folder().display());

    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Databases with the schema and the helpers that no test is using at the moment.
#[derive(Default)]
struct Databases(Mutex<Vec<(Database, Client)>>);

impl Databases {
    async fn run(&self, file: &Path) -> Result<(), Failed> {
        let idle = self.0.lock().unwrap().pop();
        let (database, owner) = match idle {
            Some(idle) => idle,
            None => create().await,
        };
        let outcome = run(&owner, &read(file)).await;
        // Session locks (proofs of life, bells) and settings outlive a rollback. A database that cannot be reset is
        // dropped.
        let reset = "rollback; select pg_advisory_unlock_all(); reset all";
        if !owner.is_closed() && owner.batch_execute(reset).await.is_ok() {
            self.0.lock().unwrap().push((database, owner));
        }
        outcome
    }
}

async fn create() -> (Database, Client) {
    let database = Database::new().await;
    let owner = database.owner().await;
    let helpers = read(&folder().join("helpers.sql"));
    owner.batch_execute(&helpers).await.expect("the helpers load");
    (database, owner)
}

async fn run(owner: &Client, text: &str) -> Result<(), Failed> {
    if !text.starts_with("begin;\n") || !text.ends_with("\nrollback;\n") {
        return Err("a file begins with \"begin;\" and ends with \"rollback;\"".into());
    }
    let cancel = owner.cancel_token();
    match tokio::time::timeout(DEADLINE, owner.batch_execute(text)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(describe(&error).into()),
        Err(_) => {
            let _ = cancel.cancel_query(tokio_postgres::NoTls).await;
            Err(format!("it takes longer than {} s", DEADLINE.as_secs()).into())
        }
    }
}

fn describe(error: &tokio_postgres::Error) -> String {
    let Some(error) = error.as_db_error() else {
        return error.to_string();
    };
    let context = error.where_().map(|context| format!("\n{context}")).unwrap_or_default();
    format!("{} (SQLSTATE {}){context}", error.message(), error.code().code())
}

/// All files, in order. Each is in the folder of a step, and no step is empty.
fn behaviors() -> Vec<PathBuf> {
    let mut files = vec![];
    for step in entries(&folder()).into_iter().filter(|path| path.is_dir()) {
        let of_step = entries(&step);
        assert!(!of_step.is_empty(), "{} is empty", step.display());
        for file in of_step {
            assert!(
                file.extension().is_some_and(|ending| ending == "sql"),
                "{} is no SQL file",
                file.display()
            );
            files.push(file);
        }
    }
    files.sort();
    files
}

fn name(file: &Path) -> String {
    let file = file
        .strip_prefix(folder())
        .expect("a file of this folder")
        .with_extension("");
    let parts: Vec<_> = file.iter().map(|part| part.to_string_lossy()).collect();
    parts.join("::")
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sql")
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
