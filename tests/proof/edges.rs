//! Numbers at their ends, and a notification queue that is full.

use std::time::Duration;

use crate::common::{Database, RunningWorker, enqueue, execute, noop, wait_for_state, wait_until};

#[tokio::test(flavor = "multi_thread")]
async fn ids_beyond_every_smaller_integer_and_every_double_work() {
    for start in [2_147_483_647_i64, 9_007_199_254_740_992, i64::MAX - 20] {
        let database = Database::new().await;
        let owner = database.owner().await;
        execute(
            &owner,
            &format!(
                "alter sequence bugle.job_ids restart with {start}; \
                 select setval(pg_get_serial_sequence('bugle.registrations', 'id'), {start}); \
                 insert into bugle.jobs (command) select 'noop' from generate_series(1, 5)"
            ),
        )
        .await;
        let registry = noop().on("hold", async |context: bugle::Context, _: serde_json::Value| {
            context.cancellation().cancelled().await;
            Ok(())
        });
        let worker = database.worker(&[("default", 4)], registry);
        wait_until(&owner, "select count(*) = 5 from bugle.jobs where state = 'completed'").await;
        let held = enqueue(&owner, "hold").await;
        wait_for_state(&owner, held, "running").await;
        owner
            .execute("select bugle.cancel($1::bigint)", &[&held])
            .await
            .expect("cancels");
        wait_for_state(&owner, held, "cancelled").await;
        assert!(held > start);
        assert!(worker.stop().await.is_clean());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_attempt_there_can_be_is_the_last() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let registry = bugle::Registry::new().on("fail", async |_: bugle::Context, _: serde_json::Value| {
        Err::<(), _>(bugle::Failure::new("again").retry_after(Duration::ZERO))
    });
    execute(
        &owner,
        "insert into bugle.jobs (command, retry_policy, priority) values ('fail', 'endless', -2147483648), \
        ('fail', 'endless', 2147483647)",
    )
    .await;
    execute(
        &owner,
        &format!(
            "update bugle.jobs_live set attempt = {}, claim = {}",
            i32::MAX - 2,
            i64::MAX - 20
        ),
    )
    .await;
    let worker = database.worker(&[("default", 4)], registry);

    wait_until(
        &owner,
        "select count(*) = 2 from bugle.jobs where state = 'failed' and reason = 'attempts_exhausted'",
    )
    .await;
    let row = owner
        .query_one("select min(attempt), count(*) from bugle.jobs", &[])
        .await
        .expect("asks");
    assert_eq!(row.get::<_, i32>(0), i32::MAX);
    assert!(worker.stop().await.is_clean());
}

/// Filling the real queue takes eight gigabytes; the one place that looks at it is told that it is full.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_notification_queue_fails_no_enqueue_and_delays_the_job_by_the_safety_poll_at_most() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let path = format!("{}/sql/20_wake.sql", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the SQL");
    assert_eq!(
        text.matches("pg_notification_queue_usage() operator(pg_catalog.<) 0.9")
            .count(),
        1
    );
    let full = text.replace(
        "pg_notification_queue_usage() operator(pg_catalog.<) 0.9",
        "pg_notification_queue_usage() operator(pg_catalog.<) -1",
    );
    execute(&owner, &full).await;
    let mut settings = database.settings(&[("default", 4)]);
    settings.safety_poll = Duration::from_millis(300);
    let worker = RunningWorker::start(settings, noop());
    wait_until(
        &owner,
        "select not pg_try_advisory_xact_lock_shared(bugle.bell_key('default'))",
    )
    .await;

    for _ in 0..3 {
        let id = enqueue(&owner, "noop").await;
        wait_for_state(&owner, id, "completed").await;
    }
    assert!(worker.stop().await.is_clean());
}
