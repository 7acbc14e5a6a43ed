//! The primary dies and a replica takes over, under load: nothing that was acknowledged is lost if the replica is
//! synchronous; if it lags, what Postgres lost is lost, and nothing else, and nothing is stuck.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bugle::private_postgres::{Options, PrivatePostgres};
use bugle::{Context, Registry, Settings};
use tokio_postgres::{Client, NoTls};

use crate::common::{BUGLE, Folder, FrozenServer, RunningWorker, Shared, connect, execute, wait_until};

/// A primary and its streaming replica.
struct Pair {
    primary: PrivatePostgres,
    replica: PrivatePostgres,
    _folder: Folder,
}

impl Pair {
    async fn start() -> Pair {
        let folder = Folder::new();
        // the account of the servers must be able to reach it
        Command::new("chmod")
            .arg("755")
            .arg(folder.path())
            .status()
            .expect("opened");
        let (one, two) = (folder.join("one"), folder.join("two"));
        let mut primary = server(&one, vec![]);
        let config: tokio_postgres::Config = primary.url("postgres").parse().expect("a URL");
        connect(&config)
            .await
            .batch_execute("create database shop")
            .await
            .expect("a database");
        bugle::schema::migrate(&primary.url("shop").parse::<tokio_postgres::Config>().expect("a URL"))
            .await
            .expect("migrates");

        // the base backup: a copy of a server that is stopped
        primary.stop().expect("it stops");
        let copied = Command::new("cp")
            .arg("-a")
            .arg(&one)
            .arg(&two)
            .status()
            .expect("copied");
        assert!(copied.success());
        std::fs::copy(two.join("PG_VERSION"), two.join("standby.signal")).expect("a replica");
        let give = Command::new("chown")
            .arg("--reference")
            .arg(two.join("PG_VERSION"))
            .arg(two.join("standby.signal"))
            .status();
        assert!(give.expect("given").success());
        primary.start_again().expect("it starts again");
        let source = format!(
            "host={} port={} user=postgres",
            primary.host().display(),
            primary.port()
        );
        let replica = server(&two, vec![("primary_conninfo".into(), source)]);
        let pair = Pair {
            primary,
            replica,
            _folder: folder,
        };
        wait_until(
            &pair.on_primary().await,
            "select exists (select from pg_stat_replication where state = 'streaming')",
        )
        .await;
        pair
    }

    async fn on_primary(&self) -> Client {
        connect(&self.primary.url("shop").parse().expect("a URL")).await
    }

    async fn on_replica(&self) -> Client {
        connect(&self.replica.url("shop").parse().expect("a URL")).await
    }

    /// Both, whichever takes writes.
    fn url(&self) -> String {
        format!(
            "host={},{} port={},{} user=postgres dbname=shop target_session_attrs=read-write",
            self.primary.host().display(),
            self.replica.host().display(),
            self.primary.port(),
            self.replica.port()
        )
    }

    async fn fail_over(&mut self) -> Client {
        self.primary.kill().expect("it dies");
        let replica = self.on_replica().await;
        execute(&replica, "select pg_promote()").await;
        wait_until(&replica, "select not pg_is_in_recovery()").await;
        replica
    }
}

fn server(data: &Path, settings: Vec<(String, String)>) -> PrivatePostgres {
    let mut options = Options::new().keep(data).bugle_bin(BUGLE);
    options.settings = settings;
    PrivatePostgres::start(&options).expect("a server of our own")
}

/// Enqueues one after the other, wherever writes are taken, until it is told to stop. Returns what was acknowledged.
async fn enqueue_until(url: String, stop: Arc<AtomicBool>, acknowledged: Shared<Vec<i64>>) {
    let config: tokio_postgres::Config = url.parse().expect("a connection string");
    while !stop.load(Ordering::Acquire) {
        let Ok((client, connection)) = config.connect(NoTls).await else {
            // why: the pace of attempts while no server takes writes; the test waits for what comes of them
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        tokio::spawn(connection);
        while !stop.load(Ordering::Acquire) {
            let said = client.query_one("insert into bugle.jobs (command) values ('work') returning id", &[]);
            match said.await {
                Ok(row) => acknowledged.lock().unwrap().push(row.get(0)),
                Err(_) => break,
            }
            // why: the pace of the load; nothing is waited for
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }
}

fn worker(url: &str, name: &str, ran: &Shared<Vec<(i64, i64, String)>>) -> RunningWorker {
    let (ran, who) = (ran.clone(), name.to_owned());
    let registry = Registry::new().on("work", move |context: Context, _: serde_json::Value| {
        let (ran, who) = (ran.clone(), who.clone());
        async move {
            // why: work takes a while, so that some of it is under way when the server dies
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..20))).await;
            let held = context.job().held;
            ran.lock().unwrap().push((held.id, held.claim, who));
            Ok(())
        }
    });
    let settings = Settings::new(url).name(name).queue("default", 8);
    RunningWorker::start(settings, registry)
}

async fn ids(client: &Client, state: &str) -> HashSet<i64> {
    let sql = format!("select id from bugle.jobs where {state}");
    client
        .query(&sql, &[])
        .await
        .expect("asks")
        .iter()
        .map(|row| row.get(0))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_to_a_synchronous_replica_loses_nothing_that_was_acknowledged() {
    let mut pair = Pair::start().await;
    let primary = pair.on_primary().await;
    execute(&primary, "alter system set synchronous_standby_names = '*'").await;
    execute(&primary, "select pg_reload_conf()").await;
    wait_until(
        &primary,
        "select exists (select from pg_stat_replication where sync_state in ('sync', 'quorum'))",
    )
    .await;
    let (stop, acknowledged, ran) = (Arc::new(AtomicBool::new(false)), Shared::default(), Shared::default());
    let workers = [worker(&pair.url(), "one", &ran), worker(&pair.url(), "two", &ran)];
    let enqueuers: Vec<_> = (0..2)
        .map(|_| tokio::spawn(enqueue_until(pair.url(), stop.clone(), acknowledged.clone())))
        .collect();
    wait_until(&primary, "select count(*) > 150 from bugle.jobs_ended").await;

    let replica = pair.fail_over().await;
    let before = acknowledged.lock().unwrap().len();
    wait_until(
        &replica,
        &format!("select count(*) > {before} + 100 from bugle.jobs_ended"),
    )
    .await;
    stop.store(true, Ordering::Release);
    for enqueuer in enqueuers {
        enqueuer.await.expect("no panic");
    }
    wait_until(&replica, "select count(*) = 0 from bugle.jobs_live").await;

    let completed = ids(&replica, "state = 'completed'").await;
    let acknowledged: HashSet<i64> = acknowledged.lock().unwrap().iter().copied().collect();
    let lost: Vec<_> = acknowledged.difference(&completed).collect();
    assert!(lost.is_empty(), "lost of {}: {lost:?}", acknowledged.len());
    for worker in workers {
        assert!(worker.stop().await.is_clean());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_to_a_replica_that_lags_loses_what_postgres_lost_and_nothing_is_stuck() {
    let mut pair = Pair::start().await;
    let primary = pair.on_primary().await;
    let (stop, acknowledged, ran) = (Arc::new(AtomicBool::new(false)), Shared::default(), Shared::default());
    let first = worker(&pair.url(), "first", &ran);
    let enqueuer = tokio::spawn(enqueue_until(pair.url(), stop.clone(), acknowledged.clone()));
    wait_until(&primary, "select count(*) > 60 from bugle.jobs_ended").await;

    // from here on the replica hears nothing: neither of jobs, nor of claims, nor of a worker that signs on
    let replica = pair.on_replica().await;
    execute(&replica, "alter system set primary_conninfo = ''").await;
    execute(&replica, "select pg_reload_conf()").await;
    wait_until(&primary, "select not exists (select from pg_stat_replication)").await;
    let known = ids(&replica, "true").await;
    let second = worker(&pair.url(), "second", &ran);
    wait_until(
        &primary,
        "select exists (select from bugle.jobs j join bugle.registrations r on r.id = j.worker where \
        r.name = 'second')",
    )
    .await;
    let more = acknowledged.lock().unwrap().len() + 40;
    wait_until(&primary, &format!("select count(*) > {more} from bugle.jobs_ended")).await;
    let replica = pair.fail_over().await;
    let survived = ids(&replica, "true").await;
    wait_until(
        &replica,
        "select count(*) filter (where state = 'alive') = 2 from bugle.workers",
    )
    .await;
    wait_until(
        &replica,
        &format!("select count(*) > {} from bugle.jobs_ended", survived.len() + 40),
    )
    .await;
    stop.store(true, Ordering::Release);
    enqueuer.await.expect("no panic");
    wait_until(&replica, "select count(*) = 0 from bugle.jobs_live").await;

    assert!(known.is_subset(&survived), "what the replica knew is gone");
    assert!(
        survived.len() < more,
        "the replica lagged: {} of {more}",
        survived.len()
    );
    let completed = ids(&replica, "state = 'completed'").await;
    let stuck: Vec<_> = survived.difference(&completed).collect();
    assert!(stuck.is_empty(), "not completed: {stuck:?}");
    // each was completed by a worker that ran it under that very claim
    let rows = replica
        .query(
            "select j.id, j.claim, r.name from bugle.jobs j join bugle.registrations r on r.id = j.worker",
            &[],
        )
        .await
        .expect("asks");
    let ran: HashSet<(i64, i64, String)> = ran.lock().unwrap().iter().cloned().collect();
    for row in rows {
        let how = (row.get(0), row.get(1), row.get(2));
        assert!(ran.contains(&how), "completed and not run: {how:?}");
    }
    first.stop().await;
    second.stop().await;
}

/// Its connections stay open, and the system takes what is sent to it: only a look elsewhere tells that it is replaced.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn workers_leave_a_primary_that_is_frozen_when_a_replica_has_taken_over() {
    let pair = Pair::start().await;
    let primary = pair.on_primary().await;
    let ran = Shared::default();
    let workers = [worker(&pair.url(), "one", &ran), worker(&pair.url(), "two", &ran)];
    execute(
        &primary,
        "insert into bugle.jobs (command) select 'work' from generate_series(1, 20)",
    )
    .await;
    wait_until(&primary, "select count(*) = 20 from bugle.jobs_ended").await;
    let replica = pair.on_replica().await;
    wait_until(&replica, "select count(*) = 20 from bugle.jobs_ended").await;

    let frozen = FrozenServer::freeze(&pair.primary);
    execute(&replica, "select pg_promote()").await;
    wait_until(&replica, "select not pg_is_in_recovery()").await;
    execute(
        &replica,
        "insert into bugle.jobs (command) select 'work' from generate_series(1, 20)",
    )
    .await;

    wait_until(
        &replica,
        "select count(*) = 40 from bugle.jobs_ended where state = 'completed'",
    )
    .await;
    wait_until(
        &replica,
        "select count(*) filter (where state = 'alive') = 2 from bugle.workers",
    )
    .await;
    for worker in workers {
        assert!(worker.stop().await.is_clean());
    }
    drop(frozen);
}

#[tokio::test(flavor = "multi_thread")]
async fn people_read_on_a_replica_what_they_read_on_the_primary() {
    let pair = Pair::start().await;
    let primary = pair.on_primary().await;
    let worker = worker(&pair.url(), "reader", &Shared::default());
    execute(
        &primary,
        "insert into bugle.jobs (command) values ('work'), ('work'), ('unknown');
             insert into bugle.jobs (command, run_at) values ('work', now() + interval '1 hour')",
    )
    .await;
    wait_until(
        &primary,
        "select count(*) = 2 from bugle.jobs where state = 'completed'",
    )
    .await;

    let replica = pair.on_replica().await;
    wait_until(
        &replica,
        "select count(*) = 2 from bugle.jobs where state = 'completed'",
    )
    .await;
    for question in [
        "select * from bugle.queue_stats",
        "select * from bugle.command_stats",
        "select * from bugle.minute_stats",
        "select * from bugle.error_groups",
        "select * from bugle.running_jobs",
        "select * from bugle.dead_letters",
        "select * from bugle.unserved",
        "select * from bugle.workers",
        "select * from bugle.steps",
        "select * from bugle.attempts",
        "select * from bugle.changes",
        "select * from bugle.job(1)",
        "select * from bugle.explain(3)",
        "select * from bugle.explain(4)",
        "select * from bugle.gauges()",
    ] {
        let told = replica.batch_execute(question).await;
        told.unwrap_or_else(|error| panic!("{question}: {error:?}"));
    }
    for arguments in [
        &["jobs", "list"][..],
        &["jobs", "show", "1"],
        &["jobs", "explain", "3"],
        &["queues"],
        &["workers"],
        &["stats"],
        &["schedules", "list"],
    ] {
        let said = Command::new(BUGLE)
            .args(arguments)
            .env("DATABASE_URL", pair.replica.url("shop"))
            .output()
            .expect("runs");
        assert!(
            said.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&said.stderr)
        );
    }
    let refused = replica
        .batch_execute("insert into bugle.jobs (command) values ('work')")
        .await
        .expect_err("nothing is enqueued there");
    assert_eq!(refused.code().map(|code| code.code()), Some("25006"));
    worker.stop().await;
}
