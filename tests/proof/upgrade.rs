//! `migrate` replaces every function of the schema while workers and enqueuers use them. There is no earlier release yet: what a
//! worker of one would meet is brought about by telling the database that it is older, or newer, than it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bugle::schema;

use crate::common::{Database, Shared, enqueue, noop, wait_for_state, wait_until};

#[tokio::test(flavor = "multi_thread")]
async fn workers_and_enqueuers_go_on_while_the_schema_is_migrated_under_them() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let workers = [
        database.worker(&[("default", 4)], noop()),
        database.worker(&[("default", 4)], noop()),
    ];
    wait_until(&owner, "select count(*) = 2 from bugle.workers where state = 'alive'").await;
    let stop = Arc::new(AtomicBool::new(false));
    let acknowledged: Shared<Vec<i64>> = Shared::default();
    let enqueuers: Vec<_> = (0..2)
        .map(|_| {
            let (config, stop, acknowledged) = (database.config("enqueuer"), stop.clone(), acknowledged.clone());
            tokio::spawn(async move {
                let client = crate::common::connect(&config).await;
                while !stop.load(Ordering::Acquire) {
                    let id = enqueue(&client, "noop").await;
                    acknowledged.lock().unwrap().push(id);
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            })
        })
        .collect();

    for _ in 0..3 {
        let before = acknowledged.lock().unwrap().len();
        owner
            .batch_execute(
                "update bugle.schema_version set checksum = 'of an earlier release', revision = revision - 1",
            )
            .await
            .expect("an older schema");
        schema::migrate(&database.config("owner")).await.expect("migrates");
        wait_until(&owner, &format!("select count(*) > {before} from bugle.jobs_ended")).await;
    }
    // a worker of this release beside one that was there before
    let late = database.worker(&[("default", 4)], noop());
    let last = enqueue(&owner, "noop").await;
    wait_for_state(&owner, last, "completed").await;
    stop.store(true, Ordering::Release);
    for enqueuer in enqueuers {
        enqueuer.await.expect("nobody was refused");
    }
    wait_until(&owner, "select count(*) = 0 from bugle.jobs_live").await;

    let wanted = acknowledged.lock().unwrap().len() as i64 + 1;
    let completed: i64 = owner
        .query_one("select count(*) from bugle.jobs where state = 'completed'", &[])
        .await
        .expect("asks")
        .get(0);
    assert_eq!(completed, wanted);
    for worker in workers.into_iter().chain([late]) {
        assert!(worker.stop().await.is_clean());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_serves_a_newer_schema_while_the_protocol_is_the_same_and_refuses_clearly_otherwise() {
    let database = Database::new().await;
    let owner = database.owner().await;
    owner
        .batch_execute("update bugle.schema_version set revision = revision + 1, checksum = 'of a later release'")
        .await
        .expect("a newer schema");
    let error = schema::migrate(&database.config("owner"))
        .await
        .expect_err("an older migrate refuses");
    assert!(error.to_string().contains("newer"), "{error}");
    let worker = database.worker(&[("default", 1)], noop());
    let id = enqueue(&owner, "noop").await;
    wait_for_state(&owner, id, "completed").await;
    worker.stop().await;

    owner
        .batch_execute("create or replace function bugle.protocol() returns integer language sql immutable parallel safe return 99")
        .await
        .expect("another protocol");
    let settings = database.settings(&[("default", 1)]);
    let error = bugle::Worker::new(settings, noop())
        .run(bugle::Shutdown::new())
        .await
        .expect_err("it refuses");
    assert!(error.to_string().contains("protocol"), "{error}");
}
