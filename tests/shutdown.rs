//! SIGTERM: running jobs may finish, then they are told to stop, then they are given back.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bugle::{Context, Registry};
use common::{Database, Folder, WorkerProcess, enqueue, eventually, execute, wait_for_state};
use serde_json::Value;
use tokio_postgres::Client;

fn config(folder: &Folder) -> String {
    let folder = folder.path().display();
    format!(
        r#"
        [commands.hold]
        program = ["sh", "-c", """
          trap 'echo $BUGLE_JOB_ID >> {folder}/stopped; exit 1' TERM
          echo $BUGLE_JOB_ID >> {folder}/started
          while [ -d {folder} ] && [ ! -e {folder}/release ]; do sleep 0.02; done
          """]

        [commands.stubborn]
        program = ["sh", "-c", """
          trap '' TERM
          echo $BUGLE_JOB_ID >> {folder}/started
          while [ -d {folder} ] && [ ! -e {folder}/release ]; do sleep 0.02; done
          """]
        "#
    )
}

async fn assert_given_back(owner: &Client, id: i64) {
    let row = owner
        .query_one("select state, attempt from bugle.job($1)", &[&id])
        .await
        .unwrap();
    assert_eq!((row.get::<_, String>(0).as_str(), row.get::<_, i32>(1)), ("ready", 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn running_jobs_finish_before_the_worker_ends() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let folder = Folder::new();
    let worker = WorkerProcess::start(&database, &folder, "worker", &config(&folder), &[]);
    let id = enqueue(&owner, "hold").await;
    eventually("it starts", || folder.lines("started").len() == 1).await;

    worker.terminate();
    eventually("it claims no more", || worker.log().contains("\"drain\"")).await;
    let left = enqueue(&owner, "hold").await;
    folder.write("release", "");

    assert_eq!(worker.ended().await.code(), Some(0));
    wait_for_state(&owner, id, "completed").await;
    wait_for_state(&owner, left, "ready").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_finish_in_time_is_stopped_and_given_back_uncounted() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let folder = Folder::new();
    let worker = WorkerProcess::start(&database, &folder, "worker", &config(&folder), &["--drain", "100ms"]);
    let polite = enqueue(&owner, "hold").await;
    let stubborn = enqueue(&owner, "stubborn").await;
    eventually("both start", || folder.lines("started").len() == 2).await;

    worker.terminate();

    assert_eq!(worker.ended().await.code(), Some(1));
    assert_eq!(
        folder.lines("stopped"),
        [polite.to_string()],
        "the polite one was asked to stop"
    );
    for id in [polite, stubborn] {
        assert_given_back(&owner, id).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_gives_back_at_once() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let folder = Folder::new();
    let worker = WorkerProcess::start(&database, &folder, "worker", &config(&folder), &["--drain", "1h"]);
    let id = enqueue(&owner, "stubborn").await;
    eventually("it starts", || folder.lines("started").len() == 1).await;

    worker.terminate();
    eventually("it heard", || worker.log().contains("\"shutdown\"")).await;
    worker.terminate();

    assert_eq!(worker.ended().await.code(), Some(1));
    assert_given_back(&owner, id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn until_empty_runs_what_is_there_and_ends() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let folder = Folder::new();
    execute(
        &owner,
        "insert into bugle.jobs (command) select 'quick' from generate_series(1, 50)",
    )
    .await;
    execute(
        &owner,
        "insert into bugle.jobs (command, run_at) values ('quick', now() + interval '1 hour')",
    )
    .await;
    let config = "[commands.quick]\nprogram = ['true']";

    let worker = WorkerProcess::start(&database, &folder, "worker", config, &["--until-empty"]);

    assert_eq!(worker.ended().await.code(), Some(0));
    let row = owner
        .query_one(
            "select count(*) filter (where state = 'completed'), count(*) filter (where state = 'scheduled') \
            from bugle.jobs",
            &[],
        )
        .await
        .unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (50, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stops_under_load_leaves_nothing_claimed() {
    let database = Database::new().await;
    let owner = database.owner().await;
    owner
        .execute(
            "insert into bugle.jobs (command) select 'noop' from generate_series(1, 20000)",
            &[],
        )
        .await
        .unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let registry = Registry::new().on("noop", {
        let ran = ran.clone();
        move |_: Context, _: Value| {
            ran.fetch_add(1, Ordering::AcqRel);
            async { Ok(()) }
        }
    });
    // room for a claim that is under way while the one before is started
    let worker = database.worker(&[("default", 2000)], registry);
    eventually("it is under way", || ran.load(Ordering::Acquire) > 1000).await;

    worker.stop().await;

    let row = owner
        .query_one(
            "select count(*) filter (where state = 'completed'), count(*) filter (where state = 'ready' and attempt = \
                0 and crashes = 0), \
             count(*) filter (where state = 'running') from bugle.jobs",
            &[],
        )
        .await
        .unwrap();
    let [completed, ready, running]: [i64; 3] = [row.get(0), row.get(1), row.get(2)];
    assert_eq!(running, 0, "what it had claimed and not started is given back");
    assert_eq!(completed, ran.load(Ordering::Acquire) as i64);
    assert_eq!(completed + ready, 20_000);
}
