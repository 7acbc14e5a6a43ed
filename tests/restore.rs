//! A dump of the database, restored elsewhere, goes on where it was: docs/upgrading.md. Skipped where there is no pg_dump for
//! the server.

mod common;

use std::process::{Command, Stdio};

use common::{Database, enqueue, noop, wait_for_state, wait_until};

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

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_database_goes_on_where_the_dump_was_made() {
    let (before, after) = (Database::new().await, Database::empty().await);
    let owner = before.owner().await;
    let worker = before.worker(&[("default", 4)], noop());
    let done = enqueue(&owner, "noop").await;
    wait_for_state(&owner, done, "completed").await;
    worker.stop().await;
    // one runs on a worker that will never be heard of again
    owner
        .batch_execute(
            "insert into bugle.jobs (command, queue) values ('noop', 'lost');
             create temp table me as
             select * from bugle.register('gone', 'elsewhere', 1, '1', 1, array['lost'], array[1], array['noop']);
             select c.id from me, bugle.claim(me.worker, me.nonce, array[row('lost', 1, null, null, 'awake')]::bugle.queue_request[]) c;
             insert into bugle.jobs (command) values ('noop');
             insert into bugle.jobs (command, run_at) values ('noop', now() + interval '1 hour');
             insert into bugle.jobs (command, unique_key) values ('other', 'k');
             insert into bugle.schedules (name, every, command) values ('often', '1 hour', 'noop')",
        )
        .await
        .expect("jobs in all states");

    if !copied(&before, &after, &[]) {
        return;
    }
    let restored = after.owner().await;
    let states = "select string_agg(state, ' ' order by id) from bugle.jobs";
    let seen: String = restored.query_one(states, &[]).await.expect("asks").get(0);
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
    let code: String = restored
        .query_one("select code from bugle.attempts where job = 2", &[])
        .await
        .expect("its worker was missed")
        .get(0);
    assert_eq!(code, "worker_lost");
    let next = enqueue(&restored, "noop").await;
    assert_eq!(next, 6, "ids go on");
    wait_for_state(&restored, next, "completed").await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn history_can_be_left_out() {
    let (before, after) = (Database::new().await, Database::empty().await);
    let owner = before.owner().await;
    let worker = before.worker(&[("default", 4)], noop());
    let done = enqueue(&owner, "noop").await;
    wait_for_state(&owner, done, "completed").await;
    worker.stop().await;
    let waiting = enqueue(&owner, "noop").await;

    if !copied(&before, &after, &["--exclude-table-data=bugle.jobs_ended_*"]) {
        return;
    }
    let restored = after.owner().await;
    after.create_logins().await;
    let worker = after.worker(&[("default", 4)], noop());

    wait_for_state(&restored, waiting, "completed").await;
    let count: i64 = restored
        .query_one("select count(*) from bugle.jobs", &[])
        .await
        .expect("asks")
        .get(0);
    assert_eq!(count, 1);
    worker.stop().await;
}
