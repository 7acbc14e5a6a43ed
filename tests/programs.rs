//! Programs that a worker runs: what they are given, and what becomes of all they start.

mod common;

use std::os::unix::fs::PermissionsExt;

use common::{BUGLE, Database, Folder, WorkerProcess, enqueue, wait_for_state};
use serde_json::Value;
use tokio_postgres::Client;

/// `bugle worker`, started by a shell that has done this first.
fn worker_after(preparation: &str, database: &Database, folder: &Folder, config: &str) -> WorkerProcess {
    let program = folder.write("bugle", &format!("#!/bin/sh\n{preparation}\nexec {BUGLE} \"$@\"\n"));
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).expect("a script");
    WorkerProcess::of(&program, database, folder, "worker", config, &[])
}

/// Run one job of this command to its end.
async fn result_of(owner: &Client, command: &str) -> Value {
    let id = enqueue(owner, command).await;
    wait_for_state(owner, id, "completed").await;
    let row = owner.query_one("select result from bugle.job($1)", &[&id]).await;
    row.expect("the job").get::<_, Option<Value>>(0).unwrap_or_default()
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_raises_its_limit_of_open_files_and_its_programs_get_theirs_back() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let folder = Folder::new();
    let config = r#"
        [commands.limits]
        program = ["sh", "-c", "read -r _; echo [$(ulimit -S -n), $(ulimit -H -n), $(awk '/open files/ {print $4}' /proc/$PPID/limits)]"]"#;
    let worker = worker_after("ulimit -S -n 100; ulimit -H -n 500", &database, &folder, config);

    let limits = result_of(&owner, "limits").await;

    assert_eq!(
        limits,
        serde_json::json!([100, 500, 500]),
        "soft, hard, the worker's own"
    );
    worker.terminate();
    assert!(worker.ended().await.success());
}
