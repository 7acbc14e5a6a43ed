//! The clock of the server moves: back an hour, and forth again. A library that the server preloads turns it, so that
//! all of the server sees it, as on a machine whose clock is set.

mod common;

use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;

use bugle::private_postgres::{Options, PrivatePostgres};
use common::{BUGLE, Database, Folder, WorkerProcess, eventually, execute, query_value, wait_for_state, wait_until};
use tokio_postgres::Client;

/// A server with a clock of its own.
struct TurnedServer {
    server: PrivatePostgres,
    offset: File,
}

impl TurnedServer {
    /// None without a C compiler.
    fn start(folder: &Folder) -> Option<TurnedServer> {
        let library = build(folder)?;
        let path = folder.join("offset");
        std::fs::write(&path, 0_i64.to_ne_bytes()).unwrap();
        // passes the library on to the server
        let guardian = folder.write(
            "guardian",
            &format!(
                "#!/bin/sh\nexport LD_PRELOAD={} BUGLE_CLOCK={}\nexec {BUGLE} \"$@\"\n",
                library.display(),
                path.display()
            ),
        );
        std::fs::set_permissions(&guardian, std::fs::Permissions::from_mode(0o755)).unwrap();
        let options = Options::new().bugle_bin(guardian);
        Some(TurnedServer {
            server: PrivatePostgres::start(&options).expect("a server of our own"),
            offset: File::options().write(true).open(&path).unwrap(),
        })
    }

    fn set_ahead_by(&self, seconds: i64) {
        // in place: every process of the server has mapped the file
        self.offset.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }
}

fn build(folder: &Folder) -> Option<PathBuf> {
    let source = folder.write("clock.c", include_str!("chaos/clock.c"));
    let library = folder.join("clock.so");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source)
        .output();
    built.is_ok_and(|output| output.status.success()).then_some(library)
}

/// `hold` notes its start and lasts until its release; `flaky` fails the first time. Each worker has a queue of its own
/// and one that all of them serve.
fn config(folder: &Folder, queues: &[&str]) -> String {
    let folder = folder.path().display();
    let queues: String = queues.iter().map(|queue| format!("{queue} = 4\n")).collect();
    format!(
        r#"
        [queues]
        {queues}
        [commands.hold]
        program = ["sh", "-c", """
          echo $BUGLE_JOB_ID >> {folder}/started
          while [ -d {folder} ] && [ ! -e {folder}/release-$BUGLE_JOB_ID ]; do sleep 0.05; done
          """]
        [commands.flaky]
        program = ["sh", "-c", "test $BUGLE_ATTEMPT -gt 1"]
        [commands.tick]
        sql = "select 1"
        "#
    )
}

async fn hold(owner: &Client, folder: &Folder, queue: &str) -> i64 {
    let insert = format!("insert into bugle.jobs (command, queue) values ('hold', '{queue}') returning id");
    let id = query_value(owner, &insert).await;
    eventually("it starts", || starts_of(folder, id) == 1).await;
    id
}

fn starts_of(folder: &Folder, id: i64) -> usize {
    folder
        .lines("started")
        .iter()
        .filter(|line| **line == id.to_string())
        .count()
}

/// Jobs of the schedule are enqueued and executed as before.
async fn schedule_goes_on(owner: &Client) {
    let done = "select count(*) from bugle.jobs where command = 'tick' and state = 'completed'";
    let before: i64 = query_value(owner, done).await;
    wait_until(owner, &format!("select ({done}) > {before} + 2")).await;
    let twice = "select count(*) - count(distinct headers ->> 'slot') from bugle.jobs where command = 'tick'";
    assert_eq!(query_value::<i64>(owner, twice).await, 0, "a slot fired twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_moves_back_and_forth_stops_neither_schedules_nor_retries_nor_the_detection_of_frozen_workers() {
    let folder = Folder::new();
    let Some(server) = TurnedServer::start(&folder) else {
        eprintln!("skipped: there is no C compiler, so the clock of the server cannot be turned");
        return;
    };
    let database = Database::empty_on(server.server.url("postgres").parse().unwrap()).await;
    bugle::schema::migrate(&database.config("owner")).await.unwrap();
    database.create_logins().await;
    let owner = database.owner().await;
    execute(
        &owner,
        "update bugle.settings set lease = '10 seconds';
         insert into bugle.retry_policies (name, kind, retries, delay) values ('soon', 'fixed', 5, '3 seconds');
         insert into bugle.commands (name, retry_policy) values ('flaky', 'soon')",
    )
    .await;
    let retried = async || -> i64 {
        let id = query_value(&owner, "insert into bugle.jobs (command) values ('flaky') returning id").await;
        // not for its state, which changes again soon
        wait_until(
            &owner,
            &format!("select exists (select from bugle.attempts where job = {id})"),
        )
        .await;
        id
    };
    let start = |name: &str| WorkerProcess::start(&database, &folder, name, &config(&folder, &["default", name]), &[]);
    let (first, third) = (start("first"), start("third"));
    let (of_first, of_third) = (
        hold(&owner, &folder, "first").await,
        hold(&owner, &folder, "third").await,
    );
    // the one that stays serves the queues of both
    let queues = ["default", "first", "second", "third"];
    let second = WorkerProcess::start(&database, &folder, "second", &config(&folder, &queues), &[]);
    let of_second = hold(&owner, &folder, "second").await;
    execute(
        &owner,
        "insert into bugle.schedules (name, every, command) values ('ticks', '1 second', 'tick')",
    )
    .await;
    schedule_goes_on(&owner).await;

    let retrying = retried().await;
    first.freeze();
    server.set_ahead_by(-3600);
    assert!(
        query_value::<bool>(
            &owner,
            "select max(created_at) > clock_timestamp() + interval '50 minutes' from bugle.jobs"
        )
        .await,
        "the clock was set back"
    );
    eventually("another worker starts its job", || starts_of(&folder, of_first) == 2).await;
    wait_for_state(&owner, retrying, "completed").await;
    schedule_goes_on(&owner).await;

    let retrying = retried().await;
    third.freeze();
    server.set_ahead_by(0);
    eventually("another worker starts its job", || starts_of(&folder, of_third) == 2).await;
    wait_for_state(&owner, retrying, "completed").await;
    schedule_goes_on(&owner).await;

    for id in [of_first, of_second, of_third] {
        folder.write(&format!("release-{id}"), "");
        wait_for_state(&owner, id, "completed").await;
    }
    let states = "select string_agg(format('%s %s', w.name, w.state), ', ' order by w.name) from bugle.workers w";
    assert_eq!(
        query_value::<String>(&owner, states).await,
        "first lost, second alive, third lost"
    );
    let attempts = format!("select attempt from bugle.jobs where id = {of_second}");
    assert_eq!(
        query_value::<i32>(&owner, &attempts).await,
        1,
        "the healthy worker was never given up"
    );
    drop((first, second, third));
}
