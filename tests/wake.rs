//! The doorbell: nobody is woken in vain, and nothing is left lying.

mod common;

use std::time::{Duration, SystemTime};

use common::poll::look_for;
use common::{Database, RunningWorker, enqueue, execute, noop, query_value, wait_for_state, wait_until};
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
const SENTINEL: &str = "select exists (select from pg_locks l where l.locktype = 'advisory' and l.mode = \
    'ExclusiveLock' \
    and l.database = (select d.oid from pg_database d where d.datname = current_database()) and l.granted and \
    (l.classid::bigint << 32 | l.objid::bigint) = bugle.bell_key('default'))";

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
                    // why: stays open for a while, so that workers want to sleep meanwhile; whether they do decides
                    // nothing
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
                    // why: enqueuers come at any moment of a worker's falling asleep; no state is waited for
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
    let mut heard = everything_said(&database).await;
    heard.listen("select bugle.bell_channel('default')").await;

    let silent = enqueue(&owner, "noop").await;
    let worker = start_without_safety_poll(&database, 4);
    wait_for_state(&owner, silent, "completed").await;
    wait_until(&owner, SENTINEL).await;
    let rung = enqueue(&owner, "noop").await;
    wait_for_state(&owner, rung, "completed").await;
    worker.stop().await;

    assert_eq!(heard.until_the_end(&owner).await, ["default"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rings_are_counted_and_so_are_jobs_that_only_the_safety_poll_found() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let worker = database.worker(&[("default", 4)], noop());
    wait_until(&owner, SENTINEL).await;

    enqueue(&owner, "noop").await;
    let counts = |rings: &str, found: i64| {
        format!(
            "select coalesce(sum(d.rings) {rings} and sum(d.found_by_poll) = {found}, false) \
             from bugle.doorbell_minutes d where d.queue = 'default'"
        )
    };
    wait_until(&owner, &counts(">= 1", 0)).await;
    wait_until(&owner, SENTINEL).await;
    execute(&owner, "set bugle.silent = 'on'").await;
    enqueue(&owner, "noop").await;

    wait_until(&owner, &counts(">= 1", 1)).await;
    worker.stop().await;
}

/// How many claims that takes is measured by `bugle bench pickup`.
#[tokio::test(flavor = "multi_thread")]
async fn many_idle_workers_do_not_all_start_for_one_job() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let mut heard = everything_said(&database).await;
    let mut idle = Vec::new();
    for _ in 0..6 {
        let client = database.connect("worker").await;
        let me = client
            .query_one(
                "select format('%s, %L::uuid', worker, nonce), worker \
                 from bugle.register('w', 'h', 1, '0', bugle.protocol(), array['default'], array[1], array['noop'])",
                &[],
            )
            .await
            .unwrap();
        let (me, worker): (String, i64) = (me.get(0), me.get(1));
        heard.listen(&format!("select bugle.worker_channel({worker})")).await;
        let arm = format!("select mode from bugle.arm({worker}, array['default'])");
        let mode: String = query_value(&client, &arm).await;
        idle.push((client, me, mode));
    }
    heard.listen("select bugle.bell_channel('default')").await;
    let modes: Vec<&str> = idle.iter().map(|(_, _, mode)| mode.as_str()).collect();
    assert_eq!(modes[..2], ["sentinel", "follower"]);
    assert!(modes[1..].iter().all(|mode| *mode == "follower"), "{modes:?}");

    enqueue(&owner, "noop").await;
    assert_eq!(
        heard.until_the_end(&owner).await,
        ["default"],
        "the sentinel is rung for"
    );

    let (sentinel, me, _) = &idle[0];
    let claim =
        format!("select id from bugle.claim({me}, array[('default', 1, null, 'sentinel')::bugle.queue_request])");
    assert_eq!(sentinel.query(&claim, &[]).await.unwrap().len(), 1);
    assert_eq!(
        heard.until_the_end(&owner).await,
        ["scan default"],
        "it is full, and calls one of those that follow it"
    );
}

async fn register(client: &Client, commands: &str) -> (i64, String) {
    let sql = format!(
        "select worker, format('%s, %L::uuid', worker, nonce) \
         from bugle.register('w', 'h', 1, '0', bugle.protocol(), array['default'], array[2], '{{{commands}}}')"
    );
    let row = client.query_one(&sql, &[]).await.unwrap();
    (row.get(0), row.get(1))
}

async fn arm(client: &Client, worker: i64) -> (String, bool) {
    let sql = format!("select mode, has_work from bugle.arm({worker}, array['default'])");
    let row = client.query_one(&sql, &[]).await.unwrap();
    (row.get(0), row.get(1))
}

/// While a deployment is rolled out, the worker that is rung for may not serve what there is.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_the_sentinel_does_not_serve_is_handed_on() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let mut heard = everything_said(&database).await;
    let (old, alike, new) = (
        database.connect("worker").await,
        database.connect("worker").await,
        database.connect("worker").await,
    );
    let (sentinel, me) = register(&old, "known").await;
    let (same, _) = register(&alike, "known").await;
    let (other, _) = register(&new, "known,added").await;
    assert_eq!(arm(&old, sentinel).await, ("sentinel".to_string(), false));
    assert_eq!(arm(&alike, same).await, ("follower".to_string(), false));
    assert_eq!(arm(&new, other).await, ("follower".to_string(), false));
    heard.listen("select bugle.bell_channel('default')").await;
    heard.listen(&format!("select bugle.worker_channel({same})")).await;
    heard.listen(&format!("select bugle.worker_channel({other})")).await;

    enqueue(&owner, "added").await;
    assert_eq!(heard.until_the_end(&owner).await, ["default"]);
    let claim =
        format!("select id from bugle.claim({me}, array[('default', 2, null, 'sentinel')::bugle.queue_request])");
    assert_eq!(old.query(&claim, &[]).await.unwrap().len(), 0);
    assert_eq!(arm(&old, sentinel).await, ("sentinel".to_string(), false));

    assert_eq!(
        heard.until_the_end(&owner).await,
        ["scan default"],
        "one that serves it is called"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn while_an_enqueuing_transaction_stays_open_one_worker_watches_and_the_others_follow() {
    let database = Database::new().await;
    let open = database.connect("enqueuer").await;
    execute(&open, "begin; insert into bugle.jobs (command) values ('noop')").await;
    let mut idle = Vec::new();
    for _ in 0..4 {
        let client = database.connect("worker").await;
        let (worker, _) = register(&client, "noop").await;
        let (mode, _) = arm(&client, worker).await;
        idle.push((client, worker, mode));
    }
    let modes: Vec<&str> = idle.iter().map(|(_, _, mode)| mode.as_str()).collect();
    assert_eq!(modes, ["awake", "follower", "follower", "follower"]);
    let (watching, watcher, _) = &idle[0];
    assert_eq!(
        arm(watching, *watcher).await,
        ("awake".to_string(), false),
        "it goes on"
    );

    execute(&open, "commit").await;
    assert_eq!(
        arm(watching, *watcher).await,
        ("sentinel".to_string(), true),
        "there is nothing left to watch for"
    );
}

/// The watcher's place is taken by the next that asks, once its session is gone.
#[tokio::test(flavor = "multi_thread")]
async fn another_worker_watches_once_the_first_is_gone() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let open = database.connect("enqueuer").await;
    execute(&open, "begin; insert into bugle.jobs (command) values ('noop')").await;
    let (first, second) = (database.connect("worker").await, database.connect("worker").await);
    let (watcher, _) = register(&first, "noop").await;
    let (other, _) = register(&second, "noop").await;
    assert_eq!(arm(&first, watcher).await.0, "awake");

    drop(first);
    let gone = format!(
        "select not exists (select from pg_stat_activity a join bugle.registrations r on r.backend_pid = a.pid where \
            r.id = {watcher})"
    );
    wait_until(&owner, &gone).await;

    assert_eq!(arm(&second, other).await.0, "awake");
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_follow_sleep_on_while_the_sentinel_is_rung_for() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let workers: Vec<_> = (0..8).map(|_| start_without_safety_poll(&database, 4)).collect();
    // the sessions that hold a lock of this kind
    let holders = async |key: &str, mode: &str| -> Vec<i32> {
        let sql = format!(
            "select l.pid from pg_locks l join pg_stat_activity a using (pid) \
             where l.locktype = 'advisory' and a.datname = current_database() and l.mode = '{mode}' and l.granted \
               and (l.classid::bigint << 32 | l.objid::bigint) = bugle.{key}('default') order by l.pid"
        );
        let rows = owner.query(&sql, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    };
    // heartbeats are none of it
    let have_looked = "select count(*) from pg_stat_activity a where a.pid = any ($1) and a.query_start > $2 \
        and a.query ~ 'bugle.(arm|claim|scan_ready)|listen '";

    // who is new calls somebody, and roles are still given: it comes to rest
    let mut quiet = 0;
    let ring = || async {
        let sentinel = holders("bell_key", "ExclusiveLock").await;
        let followers = holders("follower_key", "ShareLock").await;
        if sentinel.len() != 1 || followers.len() != 7 {
            return None;
        }
        let ringing = "select clock_timestamp(), pg_notify(bugle.bell_channel('default'), 'default')";
        let rung_at: SystemTime = query_value(&owner, ringing).await;
        let looked_since = async |sessions: &[i32]| -> i64 {
            let row = owner.query_one(have_looked, &[&sessions, &rung_at]).await;
            row.unwrap().get(0)
        };
        let looked = || async {
            let is_asleep = holders("bell_key", "ExclusiveLock").await.len() == 1;
            (is_asleep && looked_since(&sentinel).await > 0).then_some(())
        };
        look_for(looked)
            .await
            .expect("the sentinel looks and falls asleep again");
        Some(looked_since(&followers).await == 0)
    };
    let ten_in_a_row = async {
        while quiet < 10 {
            match ring().await {
                Some(true) => quiet += 1,
                Some(false) => quiet = 0,
                None => tokio::task::yield_now().await,
            }
        }
    };
    let came_to_rest = tokio::time::timeout(common::DEADLINE, ten_in_a_row).await;
    assert!(
        came_to_rest.is_ok(),
        "some who follow wake up whenever the bell is rung"
    );

    for worker in workers {
        worker.stop().await;
    }
}

/// Hears what is said on channels.
struct Heard {
    client: Client,
    messages: tokio::sync::mpsc::UnboundedReceiver<String>,
}

async fn everything_said(database: &Database) -> Heard {
    let (client, mut connection) = database.config("owner").connect(tokio_postgres::NoTls).await.unwrap();
    let (sender, messages) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let tokio_postgres::AsyncMessage::Notification(notification) = message {
                let _ = sender.send(notification.payload().to_string());
            }
        }
    });
    Heard { client, messages }
}

impl Heard {
    /// Listen to the channel that this query names.
    async fn listen(&self, channel: &str) {
        let channel: String = query_value(&self.client, channel).await;
        execute(&self.client, &format!("listen {channel}")).await;
    }

    /// All that was said since it was asked last.
    async fn until_the_end(&mut self, owner: &Client) -> Vec<String> {
        execute(&self.client, "listen the_end").await;
        execute(owner, "notify the_end, 'the end'").await;
        let mut said = Vec::new();
        loop {
            let message = tokio::time::timeout(common::DEADLINE, self.messages.recv()).await;
            match message.expect("it hears the end").unwrap() {
                end if end == "the end" => return said,
                message => said.push(message),
            }
        }
    }
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
    let early: bool = query_value(&owner, "select bool_or(started_at < run_at) from bugle.jobs").await;
    assert!(!early, "started before its time");
    worker.stop().await;
}

/// With an old snapshot held open, a scan from the start reads all dead rows. It is left to background scans.
#[tokio::test(flavor = "multi_thread")]
async fn what_lies_before_the_cursor_is_found_while_an_old_snapshot_is_held_open() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let old = database.owner().await;
    execute(
        &old,
        "begin isolation level repeatable read; select count(*) from bugle.jobs",
    )
    .await;
    execute(
        &owner,
        "insert into bugle.jobs (command) select 'noop' from generate_series(1, 200000); delete from bugle.jobs_live",
    )
    .await;
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
    assert!(worker.stop().await.is_clean());
    execute(&old, "rollback").await;
}
