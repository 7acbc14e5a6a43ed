//! One worker that serves several databases: each by itself, with slots that are shared fairly.

mod common;

use std::sync::Arc;

use bugle::{Context, Registry, Settings, Shutdown, Worker};
use common::http::get;
use common::{Database, RunningWorker, execute, free_address, noop, query_value, wait_until};
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
        said.starts_with("slots is set, and there are no databases to share them"),
        "{said}"
    );
    let said = refused(two().database("c", "host=x nonsense", [])).await;
    assert!(said.starts_with("databases.c: "), "{said}");
}
