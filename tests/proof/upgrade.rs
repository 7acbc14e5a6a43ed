//! `migrate` replaces every function of the schema while workers and enqueuers use them. What a worker of an earlier
//! release meets is brought about by telling the database that it is older, or newer, than it is; `bin/upgrade` really
//! builds one.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bugle::schema;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::common::{
    Database, Folder, Shared, WorkerProcess, enqueue, execute, noop, query_value, wait_for_state, wait_until,
};

/// What one enqueues, and the other: claims of queues with keys are another path through the functions.
const JOBS: [&str; 2] = [
    "insert into bugle.jobs (command) values ('noop')",
    "insert into bugle.jobs (command, order_key, limit_key, fair_key)
     values ('noop', 'o' || (random() * 20)::integer, 'l' || (random() * 5)::integer, 'f' || (random() * 3)::integer)",
];

/// Two who enqueue without pause.
struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Shared<usize>,
    enqueuers: Vec<JoinHandle<()>>,
}

impl Load {
    async fn start(database: &Database) -> Load {
        let limits = "select bugle.set_limits('default', p_max_running_per_key => 2)";
        database.owner().await.batch_execute(limits).await.expect("limits");
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged: Shared<usize> = Shared::default();
        let enqueuers = JOBS.into_iter().map(|insert| {
            let configs = ["enqueuer", "owner"].map(|login| database.config(login));
            let (stop, acknowledged) = (stop.clone(), acknowledged.clone());
            tokio::spawn(async move {
                let client = crate::common::connect(&configs[0]).await;
                let owner = crate::common::connect(&configs[1]).await;
                while !stop.load(Ordering::Acquire) {
                    for _ in 0..20 {
                        client.execute(insert, &[]).await.expect("enqueues");
                        *acknowledged.lock().unwrap() += 1;
                        // why: the pace of the load; nothing is waited for
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                    // never further ahead than a busy machine can follow
                    wait_until(&owner, "select count(*) < 500 from bugle.jobs_live").await;
                }
            })
        });
        let enqueuers = enqueuers.collect();
        Load {
            stop,
            acknowledged,
            enqueuers,
        }
    }

    fn acknowledged(&self) -> usize {
        *self.acknowledged.lock().unwrap()
    }

    /// How many jobs it enqueued.
    async fn stop(self) -> usize {
        self.stop.store(true, Ordering::Release);
        for enqueuer in self.enqueuers {
            enqueuer.await.expect("nobody was refused");
        }
        *self.acknowledged.lock().unwrap()
    }
}

async fn completed_when_all_ended(owner: &Client) -> usize {
    wait_until(owner, "select count(*) = 0 from bugle.jobs_live").await;
    let completed = "select count(*) from bugle.jobs where state = 'completed'";
    query_value::<i64>(owner, completed).await as usize
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an earlier build, which bin/upgrade makes"]
async fn workers_of_an_earlier_release_go_on_under_the_new_schema_and_beside_new_workers() {
    let previous = std::env::var_os("BUGLE_PREVIOUS").expect("BUGLE_PREVIOUS: the bugle of an earlier release");
    let previous = Path::new(&previous);
    let database = Database::empty().await;
    let migrate = || {
        let mut migrate = Command::new(previous);
        migrate.arg("migrate").env("BUGLE_DATABASE_URL", database.url("owner"));
        migrate.output().expect("it runs")
    };
    assert!(migrate().status.success());
    database.create_logins().await;
    let owner = database.owner().await;
    let folder = Folder::new();
    let config = "[commands.noop]\nsql = \"select 1\"\n";
    let old = ["old_1", "old_2"].map(|name| WorkerProcess::of(previous, &database, &folder, name, config, &[]));
    let load = Load::start(&database).await;
    let revision = "select revision from bugle.schema_version";
    let before: i32 = query_value(&owner, revision).await;
    // each of them runs what was enqueued after the moment
    let all_run = async |workers: i64| {
        let now: SystemTime = query_value(&owner, "select now()").await;
        let now = humantime::format_rfc3339_micros(now);
        let ran = format!("select count(distinct worker) = {workers} from bugle.jobs_ended where started_at > '{now}'");
        wait_until(&owner, &ran).await;
    };
    all_run(2).await;

    schema::migrate(&database.config("owner")).await.expect("migrates");
    all_run(2).await;
    let new = WorkerProcess::start(&database, &folder, "new", config, &[]);
    all_run(3).await;
    let refused = migrate();

    // one of them dies, regardless of which worker is the keeper
    let [killed, old] = old;
    killed.kill();
    all_run(2).await;
    let wanted = load.stop().await;
    assert_eq!(completed_when_all_ended(&owner).await, wanted);
    for worker in [old, new] {
        worker.terminate();
        assert!(worker.ended().await.success());
    }
    let after: i32 = query_value(&owner, revision).await;
    println!("upgraded from revision {before} to {after} under {wanted} jobs");
    assert!(after > before);
    assert!(!refused.status.success());
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("newer"),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_and_enqueuers_go_on_while_the_schema_is_migrated_under_them() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let workers = [
        database.worker(&[("default", 4)], noop()),
        database.worker(&[("default", 4)], noop()),
    ];
    wait_until(&owner, "select count(*) = 2 from bugle.workers where state = 'alive'").await;
    let load = Load::start(&database).await;

    for _ in 0..3 {
        let before = load.acknowledged();
        execute(
            &owner,
            "update bugle.schema_version set checksum = 'of an earlier release', revision = revision - 1",
        )
        .await;
        // one view that claims use differs, and is replaced under them
        execute(
            &owner,
            "create or replace view bugle.limited_ready as
             select r.* from bugle.ready r where r.limit_key is not null and true",
        )
        .await;
        schema::migrate(&database.config("owner")).await.expect("migrates");
        wait_until(&owner, &format!("select count(*) > {before} from bugle.jobs_ended")).await;
    }
    // a worker of this release beside one that was there before
    let late = database.worker(&[("default", 4)], noop());
    let last = enqueue(&owner, "noop").await;
    wait_for_state(&owner, last, "completed").await;
    let wanted = load.stop().await + 1;
    assert_eq!(completed_when_all_ended(&owner).await, wanted);
    for worker in workers.into_iter().chain([late]) {
        assert!(worker.stop().await.is_clean());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_does_not_wait_for_the_users_of_views_that_it_does_not_change() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let views = "select array_agg(format('bugle.%I', viewname)) from pg_views where schemaname = 'bugle'";
    let views: Vec<String> = query_value(&owner, views).await;
    assert!(views.len() > 10, "{views:?}");
    execute(
        &owner,
        "create or replace view bugle.limited_ready as
         select r.* from bugle.ready r where r.limit_key is not null and true;
         update bugle.schema_version set checksum = 'of an earlier release'",
    )
    .await;
    let reader = database.owner().await;
    let mut reading = "begin".to_owned();
    for view in views.iter().filter(|view| *view != "bugle.limited_ready") {
        reading += &format!("; select from {view} limit 0");
    }
    execute(&reader, &reading).await;

    schema::migrate(&database.config("owner")).await.expect("migrates");
    let changed = "select pg_get_viewdef('bugle.limited_ready'::regclass) !~* 'and true'";
    assert!(query_value::<bool>(&owner, changed).await);
    execute(&reader, "commit").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_serves_a_newer_schema_while_the_protocol_is_the_same_and_refuses_clearly_otherwise() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(
        &owner,
        "update bugle.schema_version set revision = revision + 1, checksum = 'of a later release'",
    )
    .await;
    let error = schema::migrate(&database.config("owner"))
        .await
        .expect_err("an older migrate refuses");
    assert!(error.to_string().contains("newer"), "{error}");
    let worker = database.worker(&[("default", 1)], noop());
    let id = enqueue(&owner, "noop").await;
    wait_for_state(&owner, id, "completed").await;
    worker.stop().await;

    execute(
        &owner,
        "create or replace function bugle.protocol() returns integer language sql immutable parallel safe return 99",
    )
    .await;
    let settings = database.settings(&[("default", 1)]);
    let error = bugle::Worker::new(settings, noop())
        .run(bugle::Shutdown::new())
        .await
        .expect_err("it refuses");
    assert!(error.to_string().contains("protocol"), "{error}");
}
