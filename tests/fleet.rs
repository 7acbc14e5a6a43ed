//! One worker that serves several databases: each by itself, with slots that are shared fairly.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bugle::private_postgres::{Options, PrivatePostgres};
use bugle::{Context, Registry, Settings, Shutdown, Worker};
use common::http::get;
use common::{Database, FrozenServer, RunningWorker, connect, execute, free_address, noop, query_value, wait_until};
use tokio::sync::Semaphore;
use tokio_postgres::Client;

fn settings(databases: &[(&str, &Database)], slots: u32) -> Settings {
    let empty = Settings::default().workdir(std::env::temp_dir().join("bugle-test-work"));
    databases.iter().fold(empty, |settings, (name, database)| {
        settings.database(name, database.url("worker"), [("default", slots)])
    })
}

async fn enqueue_many(client: &Client, command: &str, count: usize) {
    let insert = format!("insert into bugle.jobs (command) select '{command}' from generate_series(1, {count})");
    execute(client, &insert).await;
}

async fn all_completed(client: &Client) {
    wait_until(
        client,
        "select count(*) > 0 and bool_and(state = 'completed') from bugle.jobs",
    )
    .await;
}

async fn running(client: &Client, count: usize) {
    wait_until(
        client,
        &format!("select count(*) = {count} from bugle.jobs where state = 'running'"),
    )
    .await;
}

/// A command whose jobs end when they are let go: one for each permit.
fn held(registry: Registry, command: &str) -> (Registry, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let pass = gate.clone();
    let registry = registry.on(command, move |_: Context, _: serde_json::Value| {
        let pass = pass.clone();
        async move {
            pass.acquire().await.unwrap().forget();
            Ok(())
        }
    });
    (registry, gate)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_worker_runs_the_jobs_of_several_databases_and_knows_whose_they_are() {
    let (shop, billing) = (Database::new().await, Database::new().await);
    let registry = Registry::new().on("where", async |context: Context, _: serde_json::Value| {
        let row = context
            .database()
            .await?
            .query_one("select current_database()::text", &[])
            .await?;
        let name = context.database_name().unwrap_or("none").to_string();
        Ok((name, row.get::<_, String>(0)))
    });
    let worker = RunningWorker::start(
        settings(&[("shop", &shop), ("billing", &billing)], 4).slots(4),
        registry,
    );

    for (name, database) in [("shop", &shop), ("billing", &billing)] {
        let owner = database.owner().await;
        enqueue_many(&owner, "where", 20).await;
        all_completed(&owner).await;
        let results = format!(
            "select bool_and(result = jsonb_build_array('{name}', '{}')) from bugle.jobs",
            database.name
        );
        assert!(query_value::<bool>(&owner, &results).await, "{name}");
        let registered = "select count(*) from bugle.workers where state = 'alive'";
        assert_eq!(query_value::<i64>(&owner, registered).await, 1);
    }
    assert!(worker.stop().await.is_clean());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_cannot_be_served_is_tried_again_and_the_others_are_served() {
    let (shop, later) = (Database::new().await, Database::empty().await);
    let address = free_address();
    let settings = settings(&[("shop", &shop)], 4)
        .database("later", later.url("owner"), [("default", 4)])
        .database("down", "host=/nowhere dbname=none user=nobody", [("default", 4)])
        .listen(address);
    let worker = RunningWorker::start(settings, noop());
    let owner = shop.owner().await;

    enqueue_many(&owner, "noop", 5).await;
    all_completed(&owner).await;
    common::poll::look_for(async || {
        let ready = get(address, "/readyz").await;
        let names_all = ready.body.contains("database later: ") && ready.body.contains("database down: ");
        (ready.status == 200 && names_all && !ready.body.contains("shop")).then_some(())
    })
    .await
    .expect("/readyz names those that are not served");

    bugle::schema::migrate(&later.config("owner")).await.expect("migrates");
    let owner = later.owner().await;
    enqueue_many(&owner, "noop", 5).await;
    all_completed(&owner).await;
    let metrics = get(address, "/metrics").await.body;
    for line in [
        "bugle_worker_ready{database=\"shop\"} 1",
        "bugle_worker_ready{database=\"down\"} 0",
        "bugle_worker_slots{database=\"later\",queue=\"default\"} 4",
        "bugle_attempts_finished_total{database=\"shop\",queue=\"default\",command=\"noop\",outcome=\"completed\"} 5",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    assert_eq!(get(address, "/livez").await.status, 200);
    let queues = get(address, "/databases/later/api/v1/queues").await;
    assert!(
        queues.status == 200 && queues.body.contains("default"),
        "{}",
        queues.body
    );
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_goes_away_and_comes_back_is_served_again() {
    let (shop, billing) = (Database::new().await, Database::new().await);
    let worker = RunningWorker::start(settings(&[("shop", &shop), ("billing", &billing)], 4).slots(6), noop());
    let (shop, other) = (shop.owner().await, billing.owner().await);
    for client in [&shop, &other] {
        enqueue_many(client, "noop", 10).await;
        all_completed(client).await;
    }

    let gone = format!(
        "alter database {0} allow_connections false;
         select pg_terminate_backend(pid) from pg_stat_activity where datname = '{0}'",
        billing.name
    );
    execute(&shop, &gone).await;
    let left = format!(
        "select not exists (select from pg_stat_activity where datname = '{}')",
        billing.name
    );
    wait_until(&shop, &left).await;
    enqueue_many(&shop, "noop", 100).await;
    all_completed(&shop).await;

    execute(
        &shop,
        &format!("alter database {} allow_connections true", billing.name),
    )
    .await;
    let other = billing.owner().await;
    enqueue_many(&other, "noop", 10).await;
    all_completed(&other).await;
    assert!(worker.stop().await.is_clean());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_in_one_database_leaves_the_others_their_share_of_the_slots() {
    let (flood, other) = (Database::new().await, Database::new().await);
    let (registry, many) = held(Registry::new(), "many");
    let (registry, few) = held(registry, "few");
    let settings = settings(&[("flood", &flood), ("other", &other)], 100).slots(6);
    let worker = RunningWorker::start(settings, registry);
    let (flood, other) = (flood.owner().await, other.owner().await);

    enqueue_many(&flood, "many", 50).await;
    running(&flood, 5).await;
    enqueue_many(&other, "few", 50).await;
    running(&other, 1).await;
    for has in [2, 3] {
        many.add_permits(1);
        running(&other, has).await;
    }
    // each has its share: what ends in one database makes room there
    many.add_permits(1);
    wait_until(&flood, "select count(*) = 3 from bugle.jobs where state = 'completed'").await;
    running(&flood, 3).await;
    running(&other, 3).await;

    // without the flood, the other uses all but one
    many.add_permits(1000);
    all_completed(&flood).await;
    running(&other, 5).await;
    few.add_permits(1000);
    all_completed(&other).await;
    assert!(worker.stop().await.is_clean());
}

/// A database on a server of its own, which can be killed and frozen.
async fn database_alone() -> (PrivatePostgres, Database) {
    let options = Options::new().bugle_bin(common::BUGLE);
    let server = tokio::task::spawn_blocking(move || PrivatePostgres::start(&options));
    let server = server.await.unwrap().expect("a server of our own");
    let database = Database::empty_on(server.url("postgres").parse().unwrap()).await;
    bugle::schema::migrate(&database.config("owner")).await.unwrap();
    database.create_logins().await;
    (server, database)
}

/// A worker with six slots for two databases that both want all of them, while executors of the first hold five.
struct Contest {
    flood: Client,
    other: Client,
    /// What lets a job of the flood end.
    many: Arc<Semaphore>,
    /// The same for the other.
    few: Arc<Semaphore>,
    worker: RunningWorker,
    address: SocketAddr,
}

impl Contest {
    async fn begin(flooded: &Database, other: &Database) -> Contest {
        let (registry, many) = held(Registry::new(), "many");
        let (registry, few) = held(registry, "few");
        let address = free_address();
        let settings = settings(&[("flood", flooded), ("other", other)], 100).slots(6);
        let worker = RunningWorker::start(settings.listen(address), registry);
        let (flood, other) = (flooded.owner().await, other.owner().await);
        enqueue_many(&flood, "many", 50).await;
        running(&flood, 5).await;
        enqueue_many(&other, "few", 50).await;
        running(&other, 1).await;
        Contest {
            flood,
            other,
            many,
            few,
            worker,
            address,
        }
    }

    async fn end(self) {
        self.few.add_permits(1000);
        all_completed(&self.other).await;
        assert!(self.worker.stop().await.is_clean());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_dies_in_a_flood_leaves_all_slots_but_one_to_the_other() {
    let (mut server, flooded) = database_alone().await;
    let other = Database::new().await;
    let contest = Contest::begin(&flooded, &other).await;

    server.kill().expect("it dies");
    contest.many.add_permits(1000);
    running(&contest.other, 5).await;

    server.start_again().expect("it comes back");
    let flood = connect(&flooded.config("owner")).await;
    all_completed(&flood).await;
    contest.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_whose_worker_was_drained_in_a_flood_leaves_all_slots_but_one_to_the_other() {
    let (flooded, other) = (Database::new().await, Database::new().await);
    let contest = Contest::begin(&flooded, &other).await;

    execute(&contest.flood, "select bugle.drain_worker(id) from bugle.workers").await;
    common::poll::look_for(async || {
        let ready = get(contest.address, "/readyz").await.body;
        ready.contains("database flood: draining").then_some(())
    })
    .await
    .expect("it drains");
    contest.many.add_permits(1000);
    running(&contest.other, 5).await;

    let left = "select count(*) > 0 from bugle.jobs where state = 'ready'";
    assert!(
        query_value::<bool>(&contest.flood, left).await,
        "what is left is for other workers"
    );
    contest.end().await;
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_freezes_in_a_flood_leaves_all_slots_but_one_to_the_other_and_claims_no_more_than_there_are() {
    let (server, flooded) = database_alone().await;
    let other = Database::new().await;
    let contest = Contest::begin(&flooded, &other).await;

    let frozen = FrozenServer::freeze(&server);
    contest.many.add_permits(5);
    running(&contest.other, 5).await;
    drop(frozen);

    // the claim is answered now: what it took is given back, except for one job
    wait_until(
        &contest.flood,
        "select count(*) = 5 from bugle.jobs where state = 'completed'",
    )
    .await;
    running(&contest.flood, 1).await;
    running(&contest.other, 5).await;
    contest.many.add_permits(1000);
    all_completed(&contest.flood).await;
    contest.end().await;
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_does_not_answer_is_no_reason_to_restart_the_worker() {
    let (server, frozen) = database_alone().await;
    let other = Database::new().await;
    let address = free_address();
    let mut settings = settings(&[("frozen", &frozen), ("other", &other)], 4).listen(address);
    settings.stuck_after = Duration::from_secs(15);
    let worker = RunningWorker::start(settings, noop());
    let owner = other.owner().await;
    enqueue_many(&owner, "noop", 5).await;
    all_completed(&owner).await;
    let silence = async || {
        let metrics = get(address, "/metrics").await.body;
        metrics.lines().find_map(|line| {
            let value = line.strip_prefix("bugle_worker_last_heartbeat_timestamp_seconds{database=\"frozen\"} ")?;
            let at = UNIX_EPOCH + Duration::from_secs_f64(value.parse().ok()?);
            SystemTime::now().duration_since(at).ok()
        })
    };
    common::poll::look_for(silence).await.expect("a first heartbeat");

    let freeze = FrozenServer::freeze(&server);
    let alive = common::poll::look_for(async || {
        let age = silence().await;
        let is_alive = get(address, "/livez").await.status == 200;
        (age.is_some_and(|age| age > Duration::from_secs(20)) && is_alive).then_some(())
    });
    alive
        .await
        .expect("it is alive, although a database has been silent for long");
    enqueue_many(&owner, "noop", 5).await;
    all_completed(&owner).await;

    drop(freeze);
    assert!(worker.stop().await.is_clean());
}

#[tokio::test]
async fn what_does_not_go_together_is_rejected() {
    let refused = async |settings: Settings| {
        let error = Worker::new(settings, noop()).run(Shutdown::new()).await.unwrap_err();
        error.to_string()
    };
    let two = || {
        Settings::default()
            .database("a", "dbname=a", [("default", 1)])
            .database("b", "dbname=b", [])
    };

    let said = refused(two().database("a", "dbname=c", [])).await;
    assert!(said.starts_with("database \"a\" is named twice"), "{said}");
    let said = refused(two().database("a/b", "dbname=c", [])).await;
    assert!(
        said.starts_with("the database name \"a/b\" is not valid\nhint: Use 1 to 63"),
        "{said}"
    );
    let said = refused(two().queue("mail", 1)).await;
    assert!(
        said.contains("hint: Give each database its URL and its queues."),
        "{said}"
    );
    let said = refused(two().slots(1)).await;
    assert!(
        said.starts_with("slots is 1, and there are 2 databases; each needs at least one"),
        "{said}"
    );
    let said = refused(Settings::new("dbname=a").slots(4)).await;
    assert!(
        said.starts_with("slots is set, but no named databases that could share them"),
        "{said}"
    );
    let said = refused(two().database("c", "host=x nonsense", [])).await;
    assert!(said.starts_with("databases.c: "), "{said}");
}
