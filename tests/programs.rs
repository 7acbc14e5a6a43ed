//! Programs that a worker runs: what they are given, and what becomes of all they start.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;

use common::{BUGLE, Database, Folder, WorkerProcess, enqueue, eventually, execute, wait_for_state, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio_postgres::Client;

/// `bugle worker`, started by a shell that has done this first.
fn worker_after(preparation: &str, database: &Database, folder: &Folder, config: &str) -> WorkerProcess {
    let program = folder.write("bugle", &format!("#!/bin/sh\n{preparation}\nexec {BUGLE} \"$@\"\n"));
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).expect("a script");
    WorkerProcess::of(&program, database, folder, "worker", config, &[])
}

/// Run one job of this command to its end.
async fn result_of(owner: &Client, command: &str) -> Value {
    let id = enqueue(owner, command).await;
    wait_for_state(owner, id, "completed").await;
    let row = owner.query_one("select result from bugle.job($1)", &[&id]).await;
    row.expect("the job").get::<_, Option<Value>>(0).unwrap_or_default()
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_raises_its_limit_of_open_files_and_its_programs_get_theirs_back() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let folder = Folder::new();
    let config = r#"
        [commands.limits]
        program = ["sh", "-c", """
          read -r _
          of_worker=$(awk '/open files/ {print $4}' /proc/$PPID/limits)
          echo [$(ulimit -S -n), $(ulimit -H -n), $of_worker]
          """]"#;
    let worker = worker_after("ulimit -S -n 100; ulimit -H -n 500", &database, &folder, config);

    let limits = result_of(&owner, "limits").await;

    assert_eq!(
        limits,
        serde_json::json!([100, 500, 500]),
        "soft, hard, the worker's own"
    );
    worker.terminate();
    assert!(worker.ended().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_tells_the_worker_what_becomes_of_its_job() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let folder = Folder::new();
    let config: String = [
        ("done", r#""$@" done '{"n": 1}'; echo ignored; exit 3"#),
        ("fail", r#""$@" fail "no such address" --code bad_address --no-retry"#),
        ("later", r#""$@" fail busy --retry-after 1h; exit 0"#),
        ("snooze", r#""$@" snooze 5m"#),
        ("wait", r#""$@" wait --token t --at-most 1h"#),
        ("cancel", r#""$@" cancel "nothing to do""#),
        ("last", r#""$@" snooze 5m && "$@" done 2"#),
        ("nothing", r#""$@" progress 200; test $? = 1 && echo 7"#),
    ]
    .iter()
    .map(|(name, script)| {
        let script = folder.write(&format!("{name}.sh"), script);
        format!("[commands.{name}]\nprogram = [\"sh\", {script:?}, \"{BUGLE}\", \"job\"]\n")
    })
    .collect();
    let release = folder.join("release");
    let script = format!("\"$@\" progress 50 half; until test -e {release:?}; do sleep 0.02; done");
    let script = folder.write("progress.sh", &script);
    let config = format!("{config}[commands.progress]\nprogram = [\"sh\", {script:?}, \"{BUGLE}\", \"job\"]\n");
    let worker = WorkerProcess::start(&database, &folder, "worker", &config, &[]);

    let running = enqueue(&owner, "progress").await;
    let half = "select exists (select from bugle.running_jobs where progress = 50 and progress_note = 'half')";
    wait_until(&owner, half).await;
    folder.write("release", "");
    wait_for_state(&owner, running, "completed").await;
    assert_eq!(result_of(&owner, "done").await, serde_json::json!({"n": 1}));
    assert_eq!(
        result_of(&owner, "last").await,
        serde_json::json!(2),
        "the last outcome decides"
    );
    assert_eq!(
        result_of(&owner, "nothing").await,
        serde_json::json!(7),
        "what was rejected changes nothing"
    );
    for (command, state, counted, code) in [
        ("fail", "failed", 1, Some("bad_address")),
        ("later", "retrying", 1, None),
        ("snooze", "scheduled", 0, None),
        ("wait", "waiting", 1, None),
        ("cancel", "cancelled", 1, None),
    ] {
        let id = enqueue(&owner, command).await;
        wait_for_state(&owner, id, state).await;
        let row = owner
            .query_one("select attempt, last_error_code from bugle.job($1)", &[&id])
            .await
            .expect("the job");
        let found: (i32, Option<&str>) = (row.get(0), row.get(1));
        assert_eq!(found, (counted, code), "{command}");
    }
    worker.terminate();
    assert!(worker.ended().await.success());
}

/// The variables of a program, by name.
async fn variables(owner: &Client, command: &str) -> BTreeMap<String, String> {
    let found: Vec<String> = serde_json::from_value(result_of(owner, command).await).expect("lines");
    let pairs = found.iter().filter_map(|line| line.split_once('='));
    // the shell's own
    let pairs = pairs.filter(|(name, _)| !["PWD", "OLDPWD", "SHLVL", "_"].contains(name));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_gets_a_clean_environment_and_what_its_command_asks_for() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let folder = Folder::new();
    // the lines of `env`, as a list of JSON strings
    let tell = r#"program = ["sh", "-c", 'env | sed "s/.*/\"&\"/" | paste -sd, | sed "s/.*/[&]/"']"#;
    let config = format!(
        r#"
        token = "env:OUR_TOKEN"
        [commands.clean]
        {tell}
        [commands.named]
        {tell}
        env = ["APP_MODE", "PGPASSWORD", "NOT_SET_ANYWHERE"]
        [commands.all]
        {tell}
        env = "inherit"
        [commands.mixed]
        {tell}
        env = {{ "*" = "inherit", HOME = "/elsewhere", APP_KEY = "env:APP_MODE", DATABASE_URL = "env:DATABASE_URL" }}
        "#
    );
    let preparation = "
        for name in $(env | sed 's/=.*//'); do
            case $name in PATH|BUGLE_DATABASE_URL) ;; *) unset \"$name\" ;; esac
        done
        export HOME=/home/app LANG=C.UTF-8 TZ=UTC TMPDIR=/tmp USER=app
        export DATABASE_URL=postgres://secret PGPASSWORD=secret PGHOST=secret BUGLE_TOKEN_OF_OTHERS=secret
        export OUR_TOKEN=0123456789abcdef APP_MODE=fast OTHER=thing";
    let worker = worker_after(preparation, &database, &folder, &config);

    let always = ["HOME", "LANG", "PATH", "TMPDIR", "TZ", "USER"];
    let of_the_job = [
        "BUGLE_ATTEMPT",
        "BUGLE_COMMAND",
        "BUGLE_JOB",
        "BUGLE_JOB_ID",
        "BUGLE_QUEUE",
        "BUGLE_RUN",
        "BUGLE_WORKDIR",
    ];
    let expect = |more: &[&'static str]| -> BTreeSet<String> {
        let names = always.iter().chain(&of_the_job).chain(more);
        names.map(|name| name.to_string()).collect()
    };
    let names = |found: &BTreeMap<String, String>| found.keys().cloned().collect::<BTreeSet<_>>();

    let clean = variables(&owner, "clean").await;
    assert_eq!(names(&clean), expect(&[]));
    assert_eq!(clean["HOME"], "/home/app");
    let named = variables(&owner, "named").await;
    assert_eq!(
        names(&named),
        expect(&["APP_MODE", "PGPASSWORD"]),
        "by name even a password is passed on"
    );
    let all = variables(&owner, "all").await;
    assert_eq!(
        names(&all),
        expect(&["APP_MODE", "OTHER"]),
        "all but what the worker logs in with"
    );
    let mixed = variables(&owner, "mixed").await;
    assert_eq!(names(&mixed), expect(&["APP_KEY", "APP_MODE", "DATABASE_URL", "OTHER"]));
    assert_eq!(
        (
            mixed["HOME"].as_str(),
            mixed["APP_KEY"].as_str(),
            mixed["DATABASE_URL"].as_str()
        ),
        ("/elsewhere", "fast", "postgres://secret")
    );
    worker.terminate();
    assert!(worker.ended().await.success());
}

/// Commands that start processes which tell their numbers and stay: in the group of the program, outside of it, and
/// with no environment. `linger` stays with them, `leave` ends at once. They read their input first: when that has
/// come, the guardian knows of the program too.
#[cfg(target_os = "linux")]
fn families(folder: &Folder) -> String {
    let folder = folder.path().display();
    let stay = format!("sh -c 'echo $$ >> {folder}/pids; exec sleep 600' < /dev/null > /dev/null 2>&1");
    format!(
        r#"
        [commands.linger]
        program = ["sh", "-c", """
            cat > /dev/null
            {stay} &
            setsid {stay} &
            setsid setsid {stay} &
            env -i setsid {stay} &
            exec env -i {stay}"""]
        [commands.leave]
        program = ["sh", "-c", """
            cat > /dev/null
            {stay} &
            setsid {stay} &
            setsid setsid {stay} &
            until [ "$(wc -l < {folder}/pids)" -ge 3 ]; do sleep 0.02; done"""]
        [commands.bare]
        program = ["env", "-i", "/bin/sh", "-c", "cat > /dev/null; echo $$ >> {folder}/pids; exec sleep 600"]
        "#
    )
}

/// What the processes told so far, once there are as many as this.
#[cfg(target_os = "linux")]
async fn told(folder: &Folder, number: usize) -> Vec<String> {
    eventually("all have started", || folder.lines("pids").len() >= number).await;
    folder.lines("pids")
}

#[cfg(target_os = "linux")]
fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[cfg(target_os = "linux")]
async fn all_end(pids: &[String]) {
    for pid in pids {
        eventually(format!("process {pid} ends"), || !is_alive(pid)).await;
    }
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_program_outlives_a_worker_that_is_killed() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let folder = Folder::new();
    let worker = WorkerProcess::start(&database, &folder, "worker", &families(&folder), &[]);
    enqueue(&owner, "linger").await;
    enqueue(&owner, "bare").await;
    let pids = told(&folder, 6).await;
    assert!(pids.iter().all(|pid| is_alive(pid)));

    worker.kill();

    all_end(&pids).await;
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_program_outlives_a_worker_that_ends() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let folder = Folder::new();
    let arguments = ["--drain", "1ms"];
    let worker = WorkerProcess::start(&database, &folder, "worker", &families(&folder), &arguments);
    enqueue(&owner, "linger").await;
    let pids = told(&folder, 5).await;

    worker.terminate();

    assert_eq!(worker.ended().await.code(), Some(1), "the job was given back");
    let left: Vec<&String> = pids.iter().filter(|pid| is_alive(pid)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_program_outlives_its_attempt() {
    let database = Database::new().await;
    let owner = database.owner().await;
    for (command, end) in [("leave", "completed"), ("linger", "cancelled"), ("linger", "retrying")] {
        let folder = Folder::new();
        let worker = WorkerProcess::start(&database, &folder, "worker", &families(&folder), &[]);
        let insert = "insert into bugle.jobs (command, timeout) values ($1, case when $2 then interval '3 seconds' \
            end) \
                      returning id";
        let job = owner.query_one(insert, &[&command, &(end == "retrying")]).await;
        let id: i64 = job.expect("enqueued").get(0);
        let pids = told(&folder, if command == "leave" { 3 } else { 5 }).await;

        if end == "cancelled" {
            let cancelled = owner.query("select bugle.cancel($1::bigint)", &[&id]).await;
            cancelled.expect("it is cancelled");
        }

        wait_for_state(&owner, id, end).await;
        all_end(&pids).await;
        // the worker has nothing to do with it any more
        worker.terminate();
        assert_eq!(worker.ended().await.code(), Some(0), "{end}");
        execute(
            &owner,
            "select bugle.cancel(id) from bugle.jobs where state = 'retrying'",
        )
        .await;
    }
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_guardian_that_was_killed_is_replaced() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let folder = Folder::new();
    let worker = WorkerProcess::start(&database, &folder, "worker", &families(&folder), &[]);
    enqueue(&owner, "linger").await;
    told(&folder, 5).await;
    let guardian = guardian_of(worker.id()).expect("a guardian");
    kill_process(Pid::from_raw(guardian).unwrap(), Signal::KILL).expect("it is there");
    eventually("it is gone", || !is_alive(&guardian.to_string())).await;

    enqueue(&owner, "bare").await;
    let pids = told(&folder, 6).await;
    assert_ne!(guardian_of(worker.id()).expect("another"), guardian);
    worker.kill();

    all_end(&pids).await;
}

#[cfg(target_os = "linux")]
fn guardian_of(worker: u32) -> Option<i32> {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let mut ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    ids.find(|id| {
        let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains("bugle-guardian") && line.contains(&format!("BUGLE_RUN=worker-{worker}-"))
    })
}
