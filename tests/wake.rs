//! The doorbell: nobody is woken in vain, and nothing is left lying.

mod common;

use std::time::Duration;

use common::{Database, RunningWorker, enqueue, noop, wait_for_state, wait_until};
use tokio_postgres::Client;

/// Workers that rely on the bell alone: the safety poll is switched off.
fn start_without_safety_poll(database: &Database, slots: u32) -> RunningWorker {
    let mut settings = database.settings(&[("default", slots)]);
    settings.safety_poll = std::time::Duration::ZERO;
    RunningWorker::start(settings, noop())
}

async fn wait_for_workers(owner: &Client, count: i64) {
    wait_until(
        owner,
        &format!("select count(*) = {count} from bugle.workers where state = 'alive'"),
    )
    .await;
}

/// Somebody sleeps for the queue: its bell is held exclusively.
const SENTINEL: &str = "select exists (select from pg_locks l where l.locktype = 'advisory' and l.mode = 'ExclusiveLock' \
    and l.database = (select d.oid from pg_database d where d.datname = current_database()) and l.granted and (l.classid::bigint << 32 | l.objid::bigint) = bugle.bell_key('default'))";

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_lying_whatever_enqueuers_do_and_without_the_safety_poll() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let workers: Vec<_> = (0..3).map(|_| start_without_safety_poll(&database, 2)).collect();
    wait_for_workers(&owner, 3).await;

    let mut enqueuers = Vec::new();
    for _ in 0..8 {
        let mut client = database.connect("enqueuer").await;
        enqueuers.push(tokio::spawn(async move {
            let mut committed = 0;
            for _ in 0..300 {
                let mut transaction = client.transaction().await.unwrap();
                enqueue_one(&transaction).await;
                if fastrand::bool() {
                    let savepoint = transaction.transaction().await.unwrap();
                    enqueue_one(&savepoint).await;
                    savepoint.rollback().await.unwrap();
                }
                if fastrand::u8(..4) == 0 {
                    // stays open long enough for workers to want to sleep meanwhile
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(1..8))).await;
                }
                match fastrand::u8(..5) {
                    0 => transaction.rollback().await.unwrap(),
                    _ => {
                        transaction.commit().await.unwrap();
                        committed += 1;
                    }
                }
                if fastrand::u8(..4) == 0 {
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(1..15))).await;
                }
            }
            committed
        }));
    }
    let mut committed: i64 = 0;
    for enqueuer in enqueuers {
        committed += enqueuer.await.unwrap();
    }

    wait_until(
        &owner,
        &format!("select count(*) = {committed} from bugle.jobs where state = 'completed'"),
    )
    .await;
    wait_until(&owner, "select count(*) = 0 from bugle.jobs_live").await;
    for worker in workers {
        worker.stop().await;
    }
}

async fn enqueue_one(transaction: &tokio_postgres::Transaction<'_>) {
    transaction
        .execute("insert into bugle.jobs (command) values ('noop')", &[])
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enqueue_rings_only_when_somebody_sleeps() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let mut heard = bell_of_default(&database).await;

    let silent = enqueue(&owner, "noop").await;
    let worker = start_without_safety_poll(&database, 4);
    wait_for_state(&owner, silent, "completed").await;
    wait_until(&owner, SENTINEL).await;
    let rung = enqueue(&owner, "noop").await;
    wait_for_state(&owner, rung, "completed").await;
    worker.stop().await;
    owner
        .batch_execute("select pg_notify(bugle.bell_channel('default'), 'the end')")
        .await
        .unwrap();

    assert_eq!(heard.recv().await.unwrap(), "default");
    assert_eq!(heard.recv().await.unwrap(), "the end");
}

/// Everything said on the bell's channel.
async fn bell_of_default(database: &Database) -> tokio::sync::mpsc::UnboundedReceiver<String> {
    let (client, mut connection) = database.config("owner").connect(tokio_postgres::NoTls).await.unwrap();
    let (sender, heard) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let tokio_postgres::AsyncMessage::Notification(notification) = message {
                let _ = sender.send(notification.payload().to_string());
            }
        }
    });
    let channel: String = client
        .query_one("select bugle.bell_channel('default')", &[])
        .await
        .unwrap()
        .get(0);
    client.batch_execute(&format!("listen {channel}")).await.unwrap();
    // keeps the connection open
    tokio::spawn(async move {
        let _client = client;
        std::future::pending::<()>().await;
    });
    heard
}

#[tokio::test(flavor = "multi_thread")]
async fn many_idle_workers_do_not_all_start_for_one_job() {
    let database = Database::new().await;
    let owner = database.owner().await;
    owner
        .batch_execute(&format!("alter database {} set track_functions = 'all'", database.name))
        .await
        .unwrap();
    let workers: Vec<_> = (0..12).map(|_| start_without_safety_poll(&database, 1)).collect();
    wait_for_workers(&owner, 12).await;
    wait_until(&owner, SENTINEL).await;

    for _ in 0..40 {
        let id = enqueue(&owner, "noop").await;
        wait_for_state(&owner, id, "completed").await;
        wait_until(&owner, SENTINEL).await;
    }
    for worker in workers {
        worker.stop().await;
    }
    wait_until(
        &owner,
        "select count(*) = 1 from pg_stat_activity where datname = current_database()",
    )
    .await;

    let calls = claim_calls(&owner).await;
    let to_start = 12 * 3;
    // three or four for each with one slot a worker, some more on a busy machine; all of them would be twelve
    assert!(calls <= 40 * 6 + to_start, "{calls} claim calls for 40 jobs");
}

/// Backends report their counts when they end: to be asked when the workers are gone.
async fn claim_calls(owner: &Client) -> i64 {
    owner.batch_execute("select pg_stat_clear_snapshot()").await.unwrap();
    let row = owner
        .query_one(
            "select coalesce(sum(calls), 0)::bigint from pg_stat_user_functions where schemaname = 'bugle' and funcname = 'claim'",
            &[],
        )
        .await
        .unwrap();
    row.get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_worker_calls_another_that_sleeps() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
    let release = tokio_util::sync::CancellationToken::new();
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (started, release) = (started.clone(), release.clone());
            let registry = bugle::Registry::new().on("hold", move |context: bugle::Context, _: serde_json::Value| {
                let (started, release) = (started.clone(), release.clone());
                async move {
                    started.send(context.id()).unwrap();
                    release.cancelled().await;
                    Ok(())
                }
            });
            let mut settings = database.settings(&[("default", 1)]);
            settings.safety_poll = std::time::Duration::ZERO;
            RunningWorker::start(settings, registry)
        })
        .collect();
    wait_for_workers(&owner, 4).await;
    wait_until(&owner, SENTINEL).await;

    for _ in 0..4 {
        enqueue(&owner, "hold").await;
    }
    for _ in 0..4 {
        tokio::time::timeout(common::DEADLINE, starts.recv())
            .await
            .expect("another worker starts")
            .unwrap();
    }

    release.cancel();
    wait_until(&owner, "select count(*) = 4 from bugle.jobs where state = 'completed'").await;
    for worker in workers {
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_job_starts_at_its_time_without_the_safety_poll() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let worker = start_without_safety_poll(&database, 2);
    wait_for_workers(&owner, 1).await;
    wait_until(&owner, SENTINEL).await;

    for delay in ["300 milliseconds", "1500 milliseconds", "2500 milliseconds"] {
        owner
            .execute(
                &format!("insert into bugle.jobs (command, run_at) values ('noop', now() + interval '{delay}')"),
                &[],
            )
            .await
            .unwrap();
    }

    wait_until(&owner, "select count(*) = 3 from bugle.jobs where state = 'completed'").await;
    let late: Vec<f64> = owner
        .query(
            "select extract(epoch from started_at - run_at)::float8 from bugle.jobs order by id",
            &[],
        )
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert!(
        late.iter().all(|late| *late >= 0.0),
        "started before its time: {late:?}"
    );
    assert!(late.iter().all(|late| *late < 0.5), "started too late: {late:?}");
    worker.stop().await;
}

/// With an old snapshot held open a look from the beginning walks over everything that is dead. It is left to scouts.
#[tokio::test(flavor = "multi_thread")]
async fn what_lies_before_the_cursor_is_found_while_an_old_snapshot_is_held_open() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let old = database.owner().await;
    old.batch_execute("begin isolation level repeatable read; select count(*) from bugle.jobs")
        .await
        .unwrap();
    owner
        .batch_execute(
            "insert into bugle.jobs (command) select 'noop' from generate_series(1, 200000); delete from bugle.jobs_live",
        )
        .await
        .unwrap();
    let worker = start_without_safety_poll(&database, 10);
    for round in 0..6 {
        let id = enqueue(&owner, "noop").await;
        wait_for_state(&owner, id, "completed").await;
        if round > 0 {
            let urgent: i64 = owner
                .query_one(
                    "insert into bugle.jobs (command, priority) values ('noop', $1) returning id",
                    &[&-round],
                )
                .await
                .unwrap()
                .get(0);
            wait_for_state(&owner, urgent, "completed").await;
        }
    }
    let scouts: i64 = owner
        .query_one(
            "select count(*) from pg_stat_activity where datname = current_database() and application_name like '% (scout)'",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    assert_eq!(scouts, 1, "somebody looked before the cursor");
    assert!(worker.stop().await.is_clean());
    old.batch_execute("rollback").await.unwrap();
}
