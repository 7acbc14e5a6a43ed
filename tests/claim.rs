//! Claiming: each job by one worker at a time, in order, none skipped.

mod common;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bugle::{Context, Registry};
use common::{
    Database, RunningWorker, Shared, enqueue, eventually, execute, query_value, register, wait_for_state, wait_until,
};
use serde_json::Value;
use tokio_postgres::Client;

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_never_hold_one_job() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(
        &owner,
        "insert into bugle.jobs (command) select 'count' from generate_series(1, 3000)",
    )
    .await;
    let runs: Shared<HashMap<i64, u32>> = Shared::default();
    let registry = Registry::new().on("count", {
        let runs = runs.clone();
        move |context: Context, _: Value| {
            let runs = runs.clone();
            async move {
                *runs.lock().unwrap().entry(context.id()).or_default() += 1;
                // nine at once are more than one worker can run
                eventually("nine have started", || runs.lock().unwrap().len() >= 9).await;
                Ok(())
            }
        }
    });

    let workers: Vec<_> = (0..4)
        .map(|_| database.worker(&[("default", 8)], registry.clone()))
        .collect();
    wait_until(
        &owner,
        "select count(*) = 3000 from bugle.jobs where state = 'completed'",
    )
    .await;
    for worker in workers {
        assert!(worker.stop().await.is_clean());
    }

    let runs = runs.lock().unwrap().clone();
    assert_eq!(runs.len(), 3000);
    assert!(runs.values().all(|times| *times == 1), "no job ran twice");
    let row = owner
        .query_one(
            "select count(distinct worker), max(attempt), max(claim) from bugle.jobs",
            &[],
        )
        .await
        .unwrap();
    assert!(row.get::<_, i64>(0) > 1, "several workers took part");
    assert_eq!((row.get::<_, i32>(1), row.get::<_, i64>(2)), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_start_by_priority_and_then_in_the_order_they_came() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(
        &owner,
        "insert into bugle.jobs (command, priority) select 'note', p from unnest(array[5, 0, -3, 5, 0, -3]) p",
    )
    .await;
    let order: Shared<Vec<i64>> = Shared::default();
    let registry = Registry::new().on("note", {
        let order = order.clone();
        move |context: Context, _: Value| {
            let order = order.clone();
            async move {
                order.lock().unwrap().push(context.id());
                Ok(())
            }
        }
    });

    let worker = database.worker(&[("default", 1)], registry);
    wait_until(&owner, "select count(*) = 6 from bugle.jobs where state = 'completed'").await;
    worker.stop().await;

    assert_eq!(*order.lock().unwrap(), [3, 6, 2, 5, 1, 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_skipped_when_commits_arrive_out_of_order() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let mut settings = database.settings(&[("default", 4)]);
    settings.safety_poll = Duration::ZERO;
    let worker = RunningWorker::start(settings, common::noop());

    // Transactions take their ids first and commit late, in no order, while a stream of others goes by.
    let mut enqueuers = Vec::new();
    for lane in 0..6 {
        let mut client = database.connect("enqueuer").await;
        enqueuers.push(tokio::spawn(async move {
            for _ in 0..60 {
                let transaction = client.transaction().await.unwrap();
                transaction
                    .execute(
                        "insert into bugle.jobs (command, priority) select 'noop', (random() * 3)::int from \
                            generate_series(1, 5)",
                        &[],
                    )
                    .await
                    .unwrap();
                if lane < 3 {
                    // why: transactions stay open for a while and commit in no order; no state is waited for
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(1..20))).await;
                }
                transaction.commit().await.unwrap();
            }
        }));
    }
    for enqueuer in enqueuers {
        enqueuer.await.unwrap();
    }

    wait_until(
        &owner,
        "select count(*) = 1800 from bugle.jobs where state = 'completed'",
    )
    .await;
    worker.stop().await;
}

/// If it were given up now, all that it has run and cannot tell of would be run again.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_cannot_tell_how_jobs_ended_claims_no_more_until_it_can() {
    let database = Database::new().await;
    let (owner, lock) = (database.owner().await, database.owner().await);
    let worker = database.worker(&[("default", 4)], common::noop());
    let other = database.worker(&[("other", 4)], common::noop());
    execute(&lock, "begin; lock table bugle.jobs_ended in share mode").await;
    let first = common::enqueue(&owner, "noop").await;
    // for longer than any flush takes that is not stuck
    wait_until(
        &owner,
        "select exists (select from pg_stat_activity a where a.datname = current_database() and a.wait_event_type = \
            'Lock' \
         and a.query_start < clock_timestamp() - interval '2 seconds')",
    )
    .await;

    let second = common::enqueue(&owner, "noop").await;
    let elsewhere: i64 = query_value(&owner, "select bugle.enqueue('noop', p_queue => 'other')").await;
    wait_for_state(&owner, elsewhere, "running").await;
    let unlocked = "select clock_timestamp()::text";
    let unlocked: String = query_value(&lock, unlocked).await;
    execute(&lock, "commit").await;

    for id in [first, second, elsewhere] {
        wait_for_state(&owner, id, "completed").await;
    }
    let started_afterwards = format!("select started_at > '{unlocked}' from bugle.job($1)");
    let row = owner.query_one(&started_afterwards, &[&second]).await.unwrap();
    assert!(
        row.get::<_, bool>(0),
        "it was claimed while the first could not be completed"
    );
    for worker in [worker, other] {
        assert!(worker.stop().await.is_clean());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_claims_only_commands_it_has_an_executor_for() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(
        &owner,
        "insert into bugle.jobs (command) select 'unknown' from generate_series(1, 2000);
             insert into bugle.jobs (command) values ('noop')",
    )
    .await;

    let worker = database.worker(&[("default", 4)], common::noop());
    wait_until(&owner, "select count(*) = 1 from bugle.jobs where state = 'completed'").await;
    let unserved = owner
        .query("select queue, command from bugle.unserved", &[])
        .await
        .unwrap();
    assert_eq!(unserved.len(), 1);
    assert_eq!(unserved[0].get::<_, String>(1), "unknown");
    let untouched: i64 = query_value(
        &owner,
        "select count(*) from bugle.jobs where state = 'ready' and attempt = 0",
    )
    .await;
    assert_eq!(untouched, 2000);

    let registry = Registry::new().on("unknown", async |_: Context, _: Value| Ok(()));
    let newcomer = database.worker(&[("default", 100)], registry);
    wait_until(
        &owner,
        "select count(*) = 2001 from bugle.jobs where state = 'completed'",
    )
    .await;
    worker.stop().await;
    newcomer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zombie_cannot_complete_a_job_that_was_given_to_another() {
    let database = Database::new().await;
    let (owner, zombie, other) = (
        database.owner().await,
        database.connect("worker").await,
        database.connect("worker").await,
    );
    let id = common::enqueue(&owner, "noop").await;
    let register = "select worker, nonce::text from bugle.register('w', 'h', 1, '0', bugle.protocol(), \
        array['default'], array[1], array['noop'])";
    let (a, b) = (
        zombie.query_one(register, &[]).await.unwrap(),
        other.query_one(register, &[]).await.unwrap(),
    );
    let claim = "select claim from bugle.claim($1, $2::text::uuid, array[('default', 1, null, \
        'awake')::bugle.queue_request])";
    let first: i64 = zombie
        .query_one(claim, &[&a.get::<_, i64>(0), &a.get::<_, String>(1)])
        .await
        .unwrap()
        .get(0);

    // its connection breaks, the keeper takes the job away, another worker claims it
    execute(
        &owner,
        "update bugle.registrations set life_key = 1, backend_pid = 0, lost_at = now() - interval '1 \
        minute' where id = 1; select bugle.rescue()",
    )
    .await;
    let second: i64 = other
        .query_one(claim, &[&b.get::<_, i64>(0), &b.get::<_, String>(1)])
        .await
        .unwrap()
        .get(0);
    assert_eq!((first, second), (1, 2));

    let complete = "select verdict from bugle.complete($1, $2::text::uuid, array[($3::bigint, $4::bigint, \
        '1')::bugle.finished_job])";
    let say = async |client: &tokio_postgres::Client, who: &tokio_postgres::Row, claim: i64| {
        let rows = client
            .query(
                complete,
                &[&who.get::<_, i64>(0), &who.get::<_, String>(1), &id, &claim],
            )
            .await
            .unwrap();
        rows.first().map(|row| row.get::<_, String>(0))
    };
    assert_eq!(say(&zombie, &a, first).await.as_deref(), Some("fenced"));
    assert_eq!(
        say(&zombie, &a, second).await.as_deref(),
        Some("fenced"),
        "not under the other's claim either"
    );
    assert_eq!(say(&other, &b, second).await, None);
    assert_eq!(say(&other, &b, second).await.as_deref(), Some("repeated"));
    assert_eq!(
        say(&zombie, &a, first).await.as_deref(),
        Some("fenced"),
        "nor after it is done"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_payload_reaches_its_executor_whole() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let lengths: Shared<Vec<usize>> = Arc::new(Mutex::new(Vec::new()));
    let registry = Registry::new().on("measure", {
        let lengths = lengths.clone();
        move |_: Context, payload: Vec<String>| {
            let lengths = lengths.clone();
            async move {
                lengths.lock().unwrap().push(payload.iter().map(String::len).sum());
                Ok(())
            }
        }
    });
    execute(
        &owner,
        "insert into bugle.jobs (command, payload) select 'measure', jsonb_build_array(repeat('x', n)) \
        from unnest(array[10, 100000, 900000, 20, 700000]) n",
    )
    .await;

    let worker = database.worker(&[("default", 5)], registry);
    wait_until(&owner, "select count(*) = 5 from bugle.jobs where state = 'completed'").await;
    worker.stop().await;

    let mut lengths = lengths.lock().unwrap().clone();
    lengths.sort_unstable();
    assert_eq!(lengths, [10, 20, 100_000, 700_000, 900_000]);
}

#[tokio::test]
async fn a_claim_under_another_isolation_level_is_refused() {
    let database = Database::new().await;
    let worker = database.connect("worker").await;
    enqueue(&database.owner().await, "noop").await;
    let claim = claim(&register(&worker).await, 1);

    for level in ["repeatable read", "serializable"] {
        let error = worker
            .batch_execute(&format!("begin isolation level {level}; {claim}"))
            .await
            .expect_err("it is refused");
        assert_eq!(error.code().expect("by the schema").code(), "JB012");
        execute(&worker, "rollback").await;
    }

    assert_eq!(ids(&worker, &claim).await.len(), 1);
}

#[tokio::test]
async fn two_sessions_never_claim_the_same_job() {
    let database = Database::new().await;
    let (one, two) = (database.connect("worker").await, database.connect("worker").await);
    let (claim_one, claim_two) = (claim(&register(&one).await, 3), claim(&register(&two).await, 3));
    let owner = database.owner().await;
    let mut enqueued = vec![];
    for _ in 0..5 {
        enqueued.push(enqueue(&owner, "noop").await);
    }

    execute(&one, "begin").await;
    let first = ids(&one, &claim_one).await;
    let second = ids(&two, &claim_two).await;
    execute(&one, "rollback").await;
    let third = ids(&two, &claim_two).await;

    assert_eq!(first, enqueued[..3], "one takes the first three");
    assert_eq!(
        second,
        enqueued[3..],
        "the other skips what is locked and does not wait"
    );
    assert_eq!(third, enqueued[..3], "what was rolled back can be claimed again");
}

/// A call that claims from the queue `default`, for a worker as `register` returns it.
fn claim(worker: &str, slots: u32) -> String {
    format!(
        "select id from bugle.claim({worker}, array[('default', {slots}, null, 'awake')::bugle.queue_request]) \
            order by id"
    )
}

async fn ids(client: &Client, query: &str) -> Vec<i64> {
    let rows = client.query(query, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}
