//! A job from a plain INSERT to its place in history.

mod common;

use common::{Database, enqueue, noop, wait_for_state};

#[tokio::test(flavor = "multi_thread")]
async fn a_job_inserted_by_plain_sql_is_run_and_completed() {
    let database = Database::new().await;
    let enqueuer = database.connect("enqueuer").await;
    let worker = database.worker(&[("default", 4)], noop());

    let id = enqueue(&enqueuer, "noop").await;

    wait_for_state(&database.owner().await, id, "completed").await;
    assert!(worker.stop().await.is_clean());
}
