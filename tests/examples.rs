//! The examples in other languages do what they say. One whose runtime or driver cannot be had here is skipped, and says so.

mod common;
#[path = "common/python.rs"]
mod python;

use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use common::{DEADLINE, Database, noop, wait_until};

fn python(script: &str) -> Option<Command> {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/python");
    python::script(&examples.join(script))
}

/// Ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_in_python_runs_jobs_beside_one_in_rust() {
    let Some(mut python) = python("worker.py") else {
        return;
    };
    let database = Database::new().await;
    let owner = database.owner().await;
    let rust = database.worker(&[("default", 4)], noop());
    let mut process = Running(
        python
            .env("DATABASE_URL", database.url("worker"))
            .spawn()
            .expect("python starts"),
    );
    wait_until(&owner, "select count(*) = 2 from bugle.workers where state = 'alive'").await;

    owner
        .batch_execute(
            "insert into bugle.jobs (command, payload)
             select c, '{\"name\": \"Ada\"}' from unnest(array['greet', 'noop']) c, generate_series(1, 20);
             insert into bugle.jobs (command, payload, steps) values ('welcome', '{\"name\": \"Eve\"}', '{greet,shout}');
             insert into bugle.jobs (command, max_attempts) values ('greet', 1)",
        )
        .await
        .unwrap();

    wait_until(&owner, "select count(*) = 41 from bugle.jobs where state = 'completed'").await;
    wait_until(
        &owner,
        "select result->>'loud' = 'HELLO, EVE!' from bugle.jobs where command = 'welcome'",
    )
    .await;
    wait_until(
        &owner,
        "select exists (select from bugle.jobs where state = 'failed' and last_error_code = 'KeyError')",
    )
    .await;
    wait_until(
        &owner,
        "select count(*) = 20 from bugle.jobs j join bugle.workers w on w.id = j.worker \
         where j.command = 'greet' and j.state = 'completed' and w.name = 'python'",
    )
    .await;

    owner
        .batch_execute("select bugle.drain_worker(id) from bugle.workers where name = 'python'")
        .await
        .unwrap();
    let started = Instant::now();
    while process.0.try_wait().expect("a child").is_none() {
        assert!(started.elapsed() < DEADLINE, "it does not leave");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    wait_until(
        &owner,
        "select state = 'stopped' from bugle.workers where name = 'python'",
    )
    .await;
    rust.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_enqueues_in_its_own_transaction() {
    let Some(mut python) = python("enqueue.py") else {
        return;
    };
    let database = Database::new().await;
    let owner = database.owner().await;
    owner
        .batch_execute(
            "do $$ begin execute format('grant temporary on database %I to public', current_database()); end $$",
        )
        .await
        .unwrap();

    let said = python
        .env("DATABASE_URL", database.url("enqueuer"))
        .output()
        .expect("python runs");

    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let id: i64 = String::from_utf8_lossy(&said.stdout).trim().parse().expect("an id");
    let row = owner
        .query_one("select min(id), count(*), min(payload->>'name') from bugle.jobs", &[])
        .await
        .unwrap();
    assert_eq!((row.get(0), row.get(1), row.get(2)), (id, 1_i64, "Ada".to_string()));
}
