//! A notification queue that is really full: somebody listens inside of a transaction that stays open, so that nothing
//! in the queue can be thrown away, and others notify until Postgres refuses.
//!
//! From PostgreSQL 17 on the size of the queue is a setting, and this takes a moment. Before, it is eight gigabytes:
//! then it is done only if `BUGLE_FULL_QUEUE` is set, and `edges.rs` has a stand-in.

use std::time::Duration;

use bugle::Settings;
use bugle::private_postgres::{Options, PrivatePostgres};
use tokio_postgres::{Client, Config};

use crate::common::{BUGLE, RunningWorker, connect, enqueue, execute, noop, query_value, wait_for_state, wait_until};

#[tokio::test(flavor = "multi_thread")]
async fn a_notification_queue_that_is_really_full_fails_no_enqueue_and_loses_no_job() {
    let Some(server) = server_with_a_small_queue().await else {
        println!("skipped: before PostgreSQL 17 the queue has eight gigabytes, and BUGLE_FULL_QUEUE is not set");
        return;
    };
    let shop: Config = server.url("shop").parse().expect("a URL");
    bugle::schema::migrate(&shop).await.expect("migrates");
    let owner = connect(&shop).await;
    let worker = |queue: &str, safety_poll: Duration| {
        let settings = Settings::new(server.url("shop"))
            .queue(queue, 4)
            .safety_poll(safety_poll);
        RunningWorker::start(settings, noop())
    };
    let polling = worker("default", Duration::from_millis(300));
    let sleeping = worker("deaf", Duration::ZERO);
    for queue in ["default", "deaf"] {
        asleep(&owner, queue).await;
    }

    let deaf = connect(&shop).await;
    // a LISTEN counts from its commit on
    execute(&deaf, "listen anything").await;
    execute(&deaf, "begin; select 1").await;
    fill(&owner).await;

    // one by one, many, with a time, and by the other ways to be told of
    for _ in 0..3 {
        let id = enqueue(&owner, "noop").await;
        wait_for_state(&owner, id, "completed").await;
    }
    let many = "insert into bugle.jobs (command, run_at) select 'noop', now() + n * interval '1 millisecond' from \
        generate_series(1, 300) n";
    execute(&owner, many).await;
    let others = "select bugle.enqueue('noop'); select bugle.enqueue_workflow('{\"jobs\": {\"a\": {\"command\": \
        \"noop\"}, \"b\": {\"command\": \"noop\", \"after\": [\"a\"]}}}')";
    execute(&owner, others).await;
    let late = worker("default", Duration::from_millis(300));
    wait_until(
        &owner,
        "select count(*) = 306 and bool_and(state = 'completed') from bugle.jobs",
    )
    .await;
    let lying: i64 = query_value(
        &owner,
        "insert into bugle.jobs (command, queue) values ('noop', 'deaf') returning id",
    )
    .await;
    let again = owner.batch_execute("select pg_notify('anything', 'one more')").await;
    assert_eq!(
        again.expect_err("it is still full").code().map(|code| code.code()),
        Some("54000")
    );

    // a worker that finds the queue full only when it commits
    let checked = "pg_catalog.pg_notification_queue_usage() operator(pg_catalog.<) 0.9";
    let sql = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/20_wake.sql")).expect("the SQL");
    assert_eq!(sql.matches(checked).count(), 1);
    let racing = sql.replace(
        checked,
        &format!("({checked} or pg_catalog.nextval('public.races') <= 5)"),
    );
    execute(
        &owner,
        "create sequence public.races; grant usage on public.races to public",
    )
    .await;
    execute(&owner, &racing).await;
    // somebody is told of every completion
    let told = connect(&shop).await;
    execute(&told, "listen bugle_events; select bugle.subscribe()").await;
    let silent = "begin; set local bugle.silent = on; insert into bugle.jobs (command) \
        select 'noop' from generate_series(1, 2); commit";
    execute(&owner, silent).await;
    wait_until(
        &owner,
        "select count(*) = 308 and bool_and(state = 'completed' and attempt = 1) from bugle.jobs \
         where queue = 'default' and last_error is null",
    )
    .await;
    let races: i64 = query_value(&owner, "select last_value from public.races").await;
    assert!(races > 5, "nothing was refused: {races}");
    execute(&owner, &sql).await;

    // there is room again: the next enqueuer wakes even workers that never poll
    // it would have to read all of it first
    let deaf: i32 = query_value(&deaf, "select pg_backend_pid()").await;
    owner
        .execute("select pg_terminate_backend($1)", &[&deaf])
        .await
        .expect("ends it");
    wait_until(&owner, "select pg_notification_queue_usage() < 0.5").await;
    let next = owner
        .batch_execute("insert into bugle.jobs (command, queue) values ('noop', 'deaf')")
        .await;
    next.expect("enqueues");
    wait_until(&owner, "select bool_and(state = 'completed') from bugle.jobs").await;
    wait_for_state(&owner, lying, "completed").await;
    for worker in [polling, sleeping, late] {
        assert!(worker.stop().await.is_clean());
    }
}

async fn server_with_a_small_queue() -> Option<PrivatePostgres> {
    let options = Options::new().bugle_bin(BUGLE);
    let server = tokio::task::spawn_blocking(move || PrivatePostgres::start(&options));
    let mut server = server.await.expect("no panic").expect("a server of our own");
    let config: Config = server.url("postgres").parse().expect("a URL");
    let client = connect(&config).await;
    let version = "select current_setting('server_version_num')::integer";
    let version: i32 = query_value(&client, version).await;
    if version < 170_000 && std::env::var_os("BUGLE_FULL_QUEUE").is_none() {
        return None;
    }
    if version >= 170_000 {
        let small = client
            .batch_execute("alter system set max_notify_queue_pages = 64")
            .await;
        small.expect("a smaller queue");
        server = tokio::task::spawn_blocking(move || {
            server.kill().expect("stops");
            server.start_again().expect("comes back");
            server
        })
        .await
        .expect("no panic");
    }
    let client = connect(&config).await;
    execute(&client, "create database shop").await;
    Some(server)
}

/// Until Postgres refuses even one more. What a refused transaction had in the queue already stays there, and nobody is
/// told of it: so in the end one by one.
async fn fill(owner: &Client) {
    let small = "select count(*) = 1 from pg_settings where name = 'max_notify_queue_pages'";
    let is_small: bool = query_value(owner, small).await;
    let sizes = if is_small { &[1][..] } else { &[20_000, 1000, 1] };
    for size in sizes {
        let sql =
            format!("select count(pg_notify('anything', repeat('x', 7900) || n)) from generate_series(1, {size}) n");
        while owner.batch_execute(&sql).await.is_ok() {}
    }
    let usage = "select pg_notification_queue_usage()";
    let usage: f64 = query_value(owner, usage).await;
    println!("notify: the queue is full by {:.1} %", usage * 100.0);
    assert!(usage > 0.9, "{usage}");
}

/// The one worker of the queue holds its bell.
async fn asleep(owner: &Client, queue: &str) {
    let held = format!("select not pg_try_advisory_xact_lock_shared(bugle.bell_key('{queue}'))");
    wait_until(owner, &held).await;
}
