//! A dump of the database, restored elsewhere, goes on where it was: docs/upgrading.md. Skipped where there is no
//! pg_dump for the server.

mod common;

use std::process::{Command, Stdio};

use bugle::schema::{self, Migrated, Status};
use common::{Database, enqueue, execute, noop, query_value, wait_for_state, wait_until};
use tokio_postgres::Client;

/// Copy one database into another; false if that cannot be done here.
fn copied(from: &Database, to: &Database, options: &[&str]) -> bool {
    let tool = |name: &str| {
        Command::new(name)
            .arg("--version")
            .stdout(Stdio::null())
            .status()
            .is_ok()
    };
    if !tool("pg_dump") || !tool("psql") {
        eprintln!("skipped: there is no pg_dump and psql here");
        return false;
    }
    let dump = Command::new("pg_dump")
        .args(options)
        .arg(from.url("owner"))
        .output()
        .expect("pg_dump runs");
    let errors = String::from_utf8_lossy(&dump.stderr);
    if errors.contains("server version mismatch") {
        eprintln!("skipped: {errors}");
        return false;
    }
    assert!(dump.status.success(), "{errors}");
    let script = String::from_utf8(dump.stdout).expect("text");
    let mut psql = Command::new("psql")
        .args(["--quiet", "--set", "ON_ERROR_STOP=1", &to.url("owner")])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("psql runs");
    std::io::Write::write_all(&mut psql.stdin.take().expect("a pipe"), script.as_bytes()).expect("read");
    let said = psql.wait_with_output().expect("it ends");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    true
}

async fn complete_one(database: &Database, owner: &Client) {
    let worker = database.worker(&[("default", 4)], noop());
    let done = enqueue(owner, "noop").await;
    wait_for_state(owner, done, "completed").await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_database_goes_on_where_the_dump_was_made() {
    let (before, after) = (Database::new().await, Database::empty().await);
    let owner = before.owner().await;
    complete_one(&before, &owner).await;
    // one runs on a worker that will never be heard of again
    execute(
        &owner,
        "insert into bugle.jobs (command, queue) values ('noop', 'lost');
             create temp table me as
             select * from bugle.register('gone', 'elsewhere', 1, '1', 1, array['lost'], array[1], array['noop']);
             select c.id from me, bugle.claim(me.worker, me.nonce, array[row('lost', 1, null, \
             'awake')]::bugle.queue_request[]) c;
             insert into bugle.jobs (command) values ('noop');
             insert into bugle.jobs (command, run_at) values ('noop', now() + interval '1 hour');
             insert into bugle.jobs (command, unique_key) values ('other', 'k');
             insert into bugle.schedules (name, every, command) values ('often', '1 hour', 'noop')",
    )
    .await;

    if !copied(&before, &after, &[]) {
        return;
    }
    let restored = after.owner().await;
    let states = "select string_agg(state, ' ' order by id) from bugle.jobs";
    let seen: String = query_value(&restored, states).await;
    assert_eq!(seen, "completed running ready scheduled ready");
    let status = bugle::schema::check(&after.config("owner")).await.expect("asks");
    assert_eq!(status, bugle::schema::Status::UpToDate);
    after.create_logins().await;
    let worker = after.worker(&[("default", 4), ("lost", 1)], noop());

    wait_until(
        &restored,
        "select string_agg(state, ' ' order by id) = 'completed completed completed scheduled ready' from bugle.jobs",
    )
    .await;
    let code: String = query_value(&restored, "select code from bugle.attempts where job = 2").await;
    assert_eq!(code, "worker_lost");
    let next = enqueue(&restored, "noop").await;
    assert_eq!(next, 6, "ids go on");
    wait_for_state(&restored, next, "completed").await;
    worker.stop().await;
}

/// What a fresh database has in its tables, but for what every one has differently.
const ROWS: &str = "
    select coalesce((select to_jsonb(s) from bugle.settings s), '{}')
      || jsonb_build_object(
        'policies', (select jsonb_agg(p order by p.name) from bugle.retry_policies p),
        'keeping', (select count(*) from bugle.keeping),
        'migrations', (select jsonb_agg(to_jsonb(m) - 'applied_on' order by m.version) from bugle.migrations m),
        'days', (select jsonb_agg(d order by d.day, d.kind) from bugle.history_days d),
        'version', (select to_jsonb(v) - 'migrated_at' from bugle.schema_version v))";

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_of_the_schema_alone_can_be_migrated_and_serves() {
    for options in [
        vec!["--schema-only"],
        vec!["--schema-only", "--no-privileges", "--no-owner", "--no-comments"],
    ] {
        let (before, after) = (Database::new().await, Database::empty().await);
        let owner = before.owner().await;
        // a leaf of a day that nobody needs any more
        let old = "select bugle.add_day('ended', '2020-02-02')";
        execute(&owner, old).await;
        enqueue(&owner, "noop").await;
        if !copied(&before, &after, &options) {
            return;
        }
        let (restored, config) = (after.owner().await, after.config("owner"));
        assert_eq!(schema::check(&config).await.expect("asks"), Status::Behind);
        let refused = schema::verify(&restored).await.expect_err("a worker does not start");
        assert!(refused.to_string().contains("a dump without data"), "{refused}");

        assert_eq!(schema::migrate(&config).await.expect("migrates"), Migrated::Upgraded);

        assert_eq!(schema::check(&config).await.expect("asks"), Status::UpToDate);
        let days = "select bugle.retire_day(kind, day), bugle.drop_day(kind, day) from bugle.history_days where day = \
            '2020-02-02'";
        execute(&owner, days).await;
        let rows = async |client: &Client| -> serde_json::Value { query_value(client, ROWS).await };
        assert_eq!(rows(&restored).await, rows(&owner).await);
        after.create_logins().await;
        let worker = after.worker(&[("default", 1)], noop());
        let id = enqueue(&after.connect("enqueuer").await, "noop").await;
        wait_for_state(&restored, id, "completed").await;
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_can_be_restored_into_a_dump_of_the_schema_before_it_is_migrated() {
    let (before, after) = (Database::new().await, Database::empty().await);
    let owner = before.owner().await;
    complete_one(&before, &owner).await;
    execute(
        &owner,
        "insert into bugle.jobs (command, run_at) values ('noop', now() + interval '1 hour');
             insert into bugle.jobs (command, unique_key, idempotency_key) values ('other', 'k', 'i');
             insert into bugle.commands (name, priority) values ('other', 3);
             insert into bugle.schedules (name, every, command) values ('often', '1 hour', 'noop')",
    )
    .await;

    if !copied(&before, &after, &["--schema-only"]) || !copied(&before, &after, &["--data-only", "--disable-triggers"])
    {
        return;
    }

    let (restored, config) = (after.owner().await, after.config("owner"));
    assert_eq!(schema::migrate(&config).await.expect("migrates"), Migrated::Unchanged);
    let all = "select jsonb_agg(j order by j.id) || (select jsonb_agg(s) from bugle.schedules s) from bugle.jobs j";
    let all = async |client: &Client| -> serde_json::Value { query_value(client, all).await };
    assert_eq!(all(&restored).await, all(&owner).await);
    assert_eq!(enqueue(&restored, "noop").await, 4, "ids go on");
}

#[tokio::test(flavor = "multi_thread")]
async fn history_can_be_left_out() {
    let (before, after) = (Database::new().await, Database::empty().await);
    let owner = before.owner().await;
    complete_one(&before, &owner).await;
    let waiting = enqueue(&owner, "noop").await;

    if !copied(&before, &after, &["--exclude-table-data=bugle.jobs_ended_*"]) {
        return;
    }
    let restored = after.owner().await;
    after.create_logins().await;
    let worker = after.worker(&[("default", 4)], noop());

    wait_for_state(&restored, waiting, "completed").await;
    let count: i64 = query_value(&restored, "select count(*) from bugle.jobs").await;
    assert_eq!(count, 1);
    worker.stop().await;
}
