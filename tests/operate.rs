//! What operators do to running things: jobs are stopped, workers held back or sent home.

mod common;

use std::time::Duration;

use bugle::{Context, Failure, Registry};
use common::{
    Database, RunningWorker, Shared, answered_or_blocked, enqueue, eventually, execute, noop, query_value, register,
    wait_for_state, wait_until,
};
use serde_json::Value;

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_a_running_job_stops_its_executor() {
    let database = Database::new().await;
    let (owner, operator) = (database.owner().await, database.connect("operator").await);
    let stopped: Shared<Vec<i64>> = Shared::default();
    let registry = Registry::new().on("endless", {
        let stopped = stopped.clone();
        move |context: Context, _: Value| {
            let stopped = stopped.clone();
            async move {
                context.cancellation().cancelled().await;
                stopped.lock().unwrap().push(context.id());
                Err::<(), _>(Failure::new("told to stop"))
            }
        }
    });
    let worker = database.worker(&[("default", 2)], registry);
    let id = enqueue(&owner, "endless").await;
    wait_for_state(&owner, id, "running").await;

    let state: String = operator
        .query_one("select bugle.cancel($1::bigint)", &[&id])
        .await
        .unwrap()
        .get(0);
    eventually("the executor is told", || stopped.lock().unwrap().len() == 1).await;

    assert_eq!(state, "cancelled");
    assert!(worker.stop().await.is_clean());
    wait_for_state(&owner, id, "cancelled").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_worker_leaves_its_queue_to_another() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let start = || {
        let mut settings = database.settings(&[("default", 2)]);
        settings.safety_poll = Duration::ZERO;
        RunningWorker::start(settings, noop())
    };
    let first = start();
    wait_until(&owner, "select count(*) = 1 from bugle.workers where state = 'alive'").await;
    let armed = "select exists (select from pg_locks l join bugle.registrations r on r.backend_pid = l.pid and r.id = \
        1 \
        where l.mode = 'ExclusiveLock' and (l.classid::bigint << 32 | l.objid::bigint) = bugle.bell_key('default'))";
    wait_until(&owner, armed).await;
    let second = start();
    wait_until(&owner, "select count(*) = 2 from bugle.workers where state = 'alive'").await;

    execute(&owner, "select bugle.pause_worker(1)").await;
    wait_until(&owner, &armed.replace("select exists", "select not exists")).await;
    for _ in 0..20 {
        let id = enqueue(&owner, "noop").await;
        wait_for_state(&owner, id, "completed").await;
    }
    let by: i64 = query_value(&owner, "select count(*) from bugle.jobs where worker = 2").await;
    assert_eq!(by, 20, "the other worker did all of it");

    execute(&owner, "select bugle.resume_worker(1); select bugle.pause_worker(2)").await;
    let id = enqueue(&owner, "noop").await;
    wait_for_state(&owner, id, "completed").await;
    wait_until(
        &owner,
        "select exists (select from bugle.workers where id = 2 and state = 'paused')",
    )
    .await;
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_can_be_drained_by_sql() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let worker = database.worker(&[("default", 2)], noop());
    wait_until(&owner, "select count(*) = 1 from bugle.workers where state = 'alive'").await;

    execute(&owner, "select bugle.drain_worker(1, 'maintenance')").await;

    assert!(worker.ended().await.is_clean());
    wait_until(&owner, "select state = 'stopped' from bugle.workers").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_queue_keeps_its_jobs_until_it_is_resumed() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let mut settings = database.settings(&[("default", 2), ("other", 2)]);
    settings.safety_poll = Duration::ZERO;
    let worker = RunningWorker::start(settings, noop());
    execute(&owner, "select bugle.pause_queue('default')").await;

    let held = enqueue(&owner, "noop").await;
    let free: i64 = query_value(&owner, "select bugle.enqueue('noop', p_queue => 'other')").await;
    wait_for_state(&owner, free, "completed").await;
    wait_for_state(&owner, held, "ready").await;
    execute(&owner, "select bugle.resume_queue('default')").await;

    wait_for_state(&owner, held, "completed").await;
    worker.stop().await;
}

/// The claim has read that nothing is paused, and waits before it picks jobs.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_under_way_takes_nothing_that_was_enqueued_after_a_pause() {
    for pause in ["select bugle.pause_queue('default')", "select bugle.pause_worker(1)"] {
        let database = Database::new().await;
        let (owner, blocker) = (database.owner().await, database.owner().await);
        let worker = database.connect("worker").await;
        let me = register(&worker).await;
        let pid = query_value(&worker, "select pg_backend_pid()").await;
        execute(&blocker, "begin; lock table bugle.chains in access exclusive mode").await;
        let claim =
            format!("select id from bugle.claim({me}, array[('default', 1, null, 'awake')::bugle.queue_request])");
        let claim = tokio::spawn(async move { worker.query(&claim, &[]).await.unwrap().len() });
        assert!(answered_or_blocked(&claim, pid, &owner).await, "the claim waits");

        execute(&owner, pause).await;
        let held = enqueue(&owner, "noop").await;
        execute(&blocker, "commit").await;

        assert_eq!(claim.await.unwrap(), 0, "{pause}");
        wait_for_state(&owner, held, "ready").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_row_a_stranger_has_locked_is_explained_with_the_statement_that_ends_it() {
    let database = Database::new().await;
    let (owner, stranger) = (database.owner().await, database.owner().await);
    let id = enqueue(&owner, "noop").await;
    let explained = "select e.message, e.fix from bugle.explain($1) e where e.reason = 'locked'";
    assert!(owner.query(explained, &[&id]).await.unwrap().is_empty());

    stranger
        .batch_execute(&format!(
            "set application_name = 'report'; begin; select from bugle.jobs_live where id = {id} for update"
        ))
        .await
        .unwrap();
    let process: i32 = query_value(&stranger, "select pg_backend_pid()").await;

    let row = owner.query_one(explained, &[&id]).await.unwrap();
    let (message, fix): (&str, &str) = (row.get(0), row.get(1));
    assert!(
        message.contains(&format!("locked by process {process} (user")) && message.contains("program 'report')"),
        "{message}"
    );
    assert!(
        stranger.query_one(explained, &[&id]).await.is_err(),
        "its own lock is none"
    );
    owner.batch_execute(fix).await.unwrap();
    let worker = database.worker(&[("default", 1)], common::noop());
    wait_for_state(&owner, id, "completed").await;
    worker.stop().await;
}
