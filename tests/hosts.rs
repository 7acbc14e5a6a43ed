//! Hosts: long-lived processes that run jobs for a worker. The host of these tests is written in Python.

mod common;

use std::process::Command;

use common::{Database, Folder, WorkerProcess, enqueue, eventually, execute, query_value, wait_for_state, wait_until};
use serde_json::{Value, json};
use tokio_postgres::Client;

const HOST: &str = include_str!("hosts/host.py");

/// One database, and a worker with a host.
struct Scene {
    database: Database,
    owner: Client,
    folder: Folder,
}

impl Scene {
    /// None if there is no Python on this machine.
    async fn new() -> Option<Scene> {
        if !Command::new("python3")
            .arg("--version")
            .output()
            .is_ok_and(|told| told.status.success())
        {
            eprintln!("skipped: there is no python3 to write a host in");
            return None;
        }
        let database = Database::new().await;
        let owner = database.owner().await;
        let folder = Folder::new();
        folder.write("host.py", HOST);
        Some(Scene {
            database,
            owner,
            folder,
        })
    }

    /// A section of the worker's file, with further lines.
    fn host(&self, commands: &str, more: &str) -> String {
        let program = self.folder.join("host.py").display().to_string();
        let env = match more.contains("env =") {
            true => String::new(),
            false => format!("env = {{ ANNOUNCE = \"{commands}\" }}"),
        };
        format!("[hosts.app]\nprogram = [\"python3\", \"-u\", {program:?}]\n{env}\n{more}\n")
    }

    fn worker(&self, config: &str, arguments: &[&str]) -> WorkerProcess {
        WorkerProcess::start(&self.database, &self.folder, "worker", config, arguments)
    }

    async fn enqueue(&self, command: &str, payload: Value) -> i64 {
        let insert = "insert into bugle.jobs (command, payload) values ($1, $2) returning id";
        let row = self.owner.query_one(insert, &[&command, &payload]).await;
        row.expect("enqueued").get(0)
    }

    async fn ended(&self, id: i64, state: &str) -> Value {
        wait_for_state(&self.owner, id, state).await;
        let job = format!("select to_jsonb(j) from bugle.job({id}) j");
        query_value(&self.owner, &job).await
    }

    async fn result_of(&self, command: &str, payload: Value) -> Value {
        let id = self.enqueue(command, payload).await;
        self.ended(id, "completed").await["result"].clone()
    }

    /// Wait until a job has reported progress.
    async fn runs(&self, id: i64) {
        let question = format!("select exists (select from bugle.running_jobs where id = {id} and progress > 0)");
        wait_until(&self.owner, &question).await;
    }

    /// The processes that run jobs that `write` has told of, with the jobs.
    async fn told(&self, number: usize) -> Vec<(String, String)> {
        eventually("all have started", || self.folder.lines("pids").len() >= number).await;
        let lines = self.folder.lines("pids").into_iter();
        let pairs = lines.map(|line| {
            let (pid, job) = line.split_once(' ').expect("two words");
            (pid.to_owned(), job.to_owned())
        });
        pairs.collect()
    }

    fn place(&self) -> Value {
        json!({ "folder": self.folder.path().display().to_string() })
    }
}

async fn stop(worker: WorkerProcess) {
    worker.terminate();
    assert!(worker.ended().await.success());
}

fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

fn kill(pid: &str) {
    let pid = rustix::process::Pid::from_raw(pid.parse().expect("a number")).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_runs_the_commands_it_announces() {
    let Some(scene) = Scene::new().await else { return };
    let worker = scene.worker(&scene.host("echo tell", ""), &[]);

    let payload = json!({"a": [1, "ü\n", {"b": null}], "n": 1.25});
    assert_eq!(scene.result_of("echo", payload.clone()).await, payload);
    let told = scene.result_of("tell", json!({"x": 1})).await;

    assert_eq!(
        (&told["command"], &told["attempt"], &told["queue"]),
        (&json!("tell"), &json!(1), &json!("default"))
    );
    assert_eq!(told["timeout"], json!(300.0));
    assert!(
        told["id"].is_string() && told["claim"].is_string() && told["deadline"].is_string(),
        "{told}"
    );
    let environment: Vec<&str> = told["environment"]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    for name in ["BUGLE_HOST", "BUGLE_HOST_NAME", "BUGLE_HOST_PROCESS", "PATH"] {
        assert!(environment.contains(&name), "{environment:?}");
    }
    assert!(!environment.contains(&"BUGLE_DATABASE_URL"), "{environment:?}");
    let workers = "select to_jsonb(w) from bugle.workers w";
    let row: Value = query_value(&scene.owner, workers).await;
    assert_eq!(row["commands"], json!(["echo", "tell"]));
    assert_eq!(
        (&row["hosts"][0]["name"], &row["hosts"][0]["ready"]),
        (&json!("app"), &json!(1))
    );
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_outcome_has_its_effect() {
    let Some(scene) = Scene::new().await else { return };
    let worker = scene.worker(&scene.host("say", ""), &[]);
    let retrying = scene
        .enqueue(
            "say",
            json!({"type": "fail", "error": "e", "code": "c", "retry_after": 3600}),
        )
        .await;
    let failed = scene
        .enqueue("say", json!({"type": "fail", "error": "e", "retryable": false}))
        .await;
    let snoozed = scene.enqueue("say", json!({"type": "snooze", "delay": 3600})).await;
    let waiting = scene.enqueue("say", json!({"type": "wait", "token": "t"})).await;
    let skipped = scene.enqueue("say", json!({"type": "skip", "reason": "none"})).await;
    let cancelled = scene
        .enqueue("say", json!({"type": "cancelled", "reason": "done before"}))
        .await;
    let without = scene.enqueue("say", json!({"type": "done", "result": null})).await;

    let job = scene.ended(retrying, "retrying").await;
    assert_eq!(
        (&job["last_error"], &job["last_error_code"], &job["attempt"]),
        (&json!("e"), &json!("c"), &json!(1))
    );
    assert_eq!(scene.ended(failed, "failed").await["reason"], json!("not_retryable"));
    assert_eq!(scene.ended(snoozed, "scheduled").await["attempt"], json!(0));
    scene.ended(waiting, "waiting").await;
    scene.ended(skipped, "completed").await;
    assert_eq!(
        scene.ended(cancelled, "cancelled").await["last_error"],
        json!("done before")
    );
    assert_eq!(scene.ended(without, "completed").await["result"], json!(null));
    let bad = scene.enqueue("say", json!({"type": "snooze", "delay": -1})).await;
    let job = scene.ended(bad, "failed").await;
    assert_eq!(
        (&job["last_error_code"], &job["reason"]),
        (&json!("bad_result"), &json!("not_retryable"))
    );
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_answered() {
    let Some(scene) = Scene::new().await else { return };
    let grant = format!("grant bugle_enqueuer to {}_worker", scene.database.name);
    execute(&scene.owner, &grant).await;
    let worker = scene.worker(&scene.host("step parent enqueue echo", ""), &[]);

    let insert = "insert into bugle.jobs (command, retry_delay) values ('step', '10 ms') returning id";
    let step = scene.ended(query_value(&scene.owner, insert).await, "completed").await;
    assert_eq!(
        step["result"],
        json!({"receipt": 17}),
        "the second attempt gets the output of the first"
    );
    assert_eq!(scene.result_of("parent", json!([1, 2, 3])).await, json!([1, 2, 3]));
    let enqueued = scene
        .result_of("enqueue", json!([{"command": "echo"}, {"command": "echo"}]))
        .await;
    assert_eq!(enqueued["value"].as_array().map(Vec::len), Some(2), "{enqueued}");
    let refused = scene
        .result_of("enqueue", json!([{"command": "echo"}, {"command": ""}]))
        .await;
    assert_eq!(refused["code"], json!("bad_call"), "{refused}");
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_parsers_refuse_never_reaches_a_host_and_harms_no_other_job() {
    let Some(scene) = Scene::new().await else { return };
    let worker = scene.worker(&scene.host("echo batch", ""), &["--queue", "default=20"]);
    let fill = "insert into bugle.jobs (command, payload) \
        select c, p::jsonb from unnest(array['echo', 'batch']) c, \
        unnest(array['1', '1e1001', repeat('[', 2000) || repeat(']', 2000), '{\"a\": 1e5000}', '[[1e300]]', '2']) p";
    execute(&scene.owner, fill).await;

    let all = "select count(*) = 12 from bugle.jobs where state in ('completed', 'failed')";
    wait_until(&scene.owner, all).await;

    let ended = "select jsonb_object_agg(command, o) from (select command, \
        jsonb_agg(concat_ws(' ', state, last_error_code, attempt) order by id) o from bugle.jobs group by 1) x";
    let (good, bad) = ("completed 1", "failed bad_payload 1");
    let each = json!([good, bad, bad, bad, good, good]);
    assert_eq!(
        query_value::<Value>(&scene.owner, ended).await,
        json!({"echo": each, "batch": each})
    );
    let why = "select last_error from bugle.jobs where last_error like '%levels%' limit 1";
    let why: String = query_value(&scene.owner, why).await;
    assert_eq!(
        why,
        "payload is nested deeper than 500 levels, the most that a host is given"
    );
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_is_told_how_often_a_job_is_attempted() {
    let Some(scene) = Scene::new().await else { return };
    let worker = scene.worker(&scene.host("tell", ""), &[]);
    let insert = "insert into bugle.jobs (command, max_attempts) values ('tell', 7) returning id";
    let own: i64 = query_value(&scene.owner, insert).await;

    assert_eq!(scene.ended(own, "completed").await["result"]["max_attempts"], json!(7));
    assert_eq!(scene.result_of("tell", json!({})).await["max_attempts"], json!(16));
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_dies_is_replaced_and_its_jobs_are_retried() {
    let Some(scene) = Scene::new().await else { return };
    let worker = scene.worker(&scene.host("write", ""), &[]);
    let id = scene.enqueue("write", scene.place()).await;
    let (pid, _) = scene.told(1).await.remove(0);

    kill(&pid);

    let job = scene.ended(id, "retrying").await;
    assert_eq!(job["last_error_code"], json!("host_lost"));
    assert!(job["last_error"].as_str().unwrap().contains("signal 9"), "{job}");
    execute(
        &scene.owner,
        &format!("select bugle.restart(id) from bugle.jobs where id = {id} and state = 'failed'"),
    )
    .await;
    execute(
        &scene.owner,
        "update bugle.jobs_live set run_at = now() where state = 'retrying'",
    )
    .await;
    let told = scene.told(2).await;
    assert_ne!(told[1].0, pid, "another process has it");
    scene.folder.write("release", "");
    scene.ended(id, "completed").await;
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_kills_its_host_is_given_up_and_others_are_not_taken_along() {
    let Some(scene) = Scene::new().await else { return };
    let worker = scene.worker(&scene.host("die echo", ""), &[]);

    let insert = "insert into bugle.jobs (command, retry_delay) values ('die', '10 ms') returning id";
    let id: i64 = query_value(&scene.owner, insert).await;

    let job = scene.ended(id, "failed").await;
    assert_eq!(
        (&job["last_error_code"], &job["reason"]),
        (&json!("crash_loop"), &json!("not_retryable"))
    );
    assert_eq!(job["attempt"], json!(3));
    assert!(job["last_error"].as_str().unwrap().contains("code 7"), "{job}");
    assert!(job["last_error"].as_str().unwrap().contains("last words"), "{job}");
    assert_eq!(scene.result_of("echo", json!(1)).await, json!(1));
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_does_not_start_says_why_where_people_look() {
    let Some(scene) = Scene::new().await else { return };
    let program = r#"program = ["sh", "-c", "echo no module named jobs >&2; exit 3"]"#;
    let worker = scene.worker(&format!("[hosts.app]\n{program}\n"), &["--listen", "127.0.0.1:0"]);

    let said = "select hosts -> 0 ->> 'error' like '%exited with code 3%no module named jobs%' from bugle.workers";
    wait_until(&scene.owner, &format!("select coalesce(({said}), false)")).await;

    let address = worker.address().await;
    let ready = common::http::ask(address, "GET", "/readyz", "", "").await;
    assert!(
        ready.status == 503 && ready.body.contains("no module named jobs"),
        "{}",
        ready.body
    );
    let event = worker.event("host_end").await;
    assert_eq!((&event["host"], &event["said_hello"]), (&json!("app"), &json!(false)));
    stop(worker).await;
}

/// What the doctor finds about workers.
fn doctor(database: &Database) -> String {
    let told = Command::new(common::BUGLE)
        .arg("doctor")
        .env("BUGLE_DATABASE_URL", database.url("owner"))
        .output();
    String::from_utf8(told.expect("it runs").stdout).expect("text")
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_leave_a_host_idle_are_seen_in_the_log_and_by_the_doctor() {
    let Some(scene) = Scene::new().await else { return };
    let config = scene.host("echo batch", "processes = 2");
    let worker = scene.worker(&config, &["--queue", "default=7"]);

    let event = worker.event("host_slots").await;

    let message = event["message"].as_str().unwrap();
    assert!(
        message.contains("8 jobs at once, and 10 in one call, but the queues of this worker have 7"),
        "{message}"
    );
    scene.result_of("echo", json!(1)).await;
    let told = doctor(&scene.database);
    assert!(
        told.contains("can run 8 jobs at once, and 10 in one call, but the worker has 7 slots"),
        "{told}"
    );
    stop(worker).await;
    let worker = scene.worker(&config, &["--queue", "default=10"]);
    scene.result_of("echo", json!(1)).await;
    assert!(!doctor(&scene.database).contains("but the worker has"));
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_crashes_repeatedly_is_seen_by_the_doctor() {
    let Some(scene) = Scene::new().await else { return };
    let worker = scene.worker(&scene.host("die echo", ""), &[]);
    let insert = "insert into bugle.jobs (command, retry_delay) values ('die', '10 ms') returning id";
    let id: i64 = query_value(&scene.owner, insert).await;
    scene.ended(id, "failed").await;
    scene.result_of("echo", json!(1)).await;

    wait_until(
        &scene.owner,
        "select (hosts -> 0 ->> 'crashes')::integer = 3 from bugle.workers",
    )
    .await;

    let told = doctor(&scene.database);
    assert!(told.contains("3 processes of host app of worker"), "{told}");
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_announces_other_commands_changes_what_is_served() {
    let Some(scene) = Scene::new().await else { return };
    let file = scene.folder.write("commands", "tell");
    let env = format!("env = {{ ANNOUNCE_FILE = {:?} }}", file.display().to_string());
    let worker = scene.worker(&scene.host("", &env), &[]);
    let told = scene.result_of("tell", json!({})).await;
    let id = enqueue(&scene.owner, "echo").await;

    scene.folder.write("commands", "tell echo");
    kill(&told["pid"].to_string());

    scene.ended(id, "completed").await;
    let commands = "select commands = '{echo,tell}' from bugle.workers";
    wait_until(&scene.owner, commands).await;
    assert_eq!(
        worker.events().iter().filter(|line| line["event"] == "serve").count(),
        1,
        "the worker was not restarted"
    );
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_should_stop_is_told_and_what_it_answers_then_does_not_count() {
    let Some(scene) = Scene::new().await else { return };
    let worker = scene.worker(&scene.host("until_cancelled", ""), &[]);
    let cancelled = scene.enqueue("until_cancelled", json!({})).await;
    scene.runs(cancelled).await;
    execute(&scene.owner, &format!("select bugle.cancel({cancelled}::bigint)")).await;
    let insert = "insert into bugle.jobs (command, timeout) values ('until_cancelled', '1 second') returning id";
    let limited: i64 = query_value(&scene.owner, insert).await;

    let job = scene.ended(limited, "retrying").await;

    assert_eq!(job["last_error_code"], json!("timeout"));
    assert!(
        job["last_error"].as_str().unwrap().contains("stopped: timeout"),
        "{job}"
    );
    scene.ended(cancelled, "cancelled").await;
    let told = || {
        let lines = worker.events();
        let lines = lines.iter().filter(|line| line["event"] == "host_log");
        let mut told: Vec<String> = lines
            .map(|line| line["message"].as_str().unwrap_or_default().to_owned())
            .collect();
        told.sort();
        told
    };
    eventually("both were told", || {
        told() == ["cancelled: cancelled", "cancelled: timeout"]
    })
    .await;
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_does_not_answer_ping_is_killed_and_only_the_guilty_job_is_counted() {
    let Some(scene) = Scene::new().await else { return };
    let worker = scene.worker(&scene.host("freeze write", ""), &[]);
    let innocent = scene.enqueue("write", scene.place()).await;
    let (pid, _) = scene.told(1).await.remove(0);
    let insert = "insert into bugle.jobs (command, timeout) values ('freeze', '1 second') returning id";
    let guilty: i64 = query_value(&scene.owner, insert).await;

    let job = scene.ended(guilty, "retrying").await;

    assert_eq!(
        (&job["last_error_code"], &job["attempt"]),
        (&json!("timeout"), &json!(1))
    );
    eventually("the process is killed", || !is_alive(&pid)).await;
    let told = scene.told(2).await;
    assert_eq!(told[1].1, innocent.to_string());
    let attempt = format!("select attempt from bugle.job({innocent})");
    assert_eq!(
        query_value::<i32>(&scene.owner, &attempt).await,
        1,
        "its first attempt was not counted"
    );
    scene.folder.write("release", "");
    scene.ended(innocent, "completed").await;
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_is_replaced_after_its_last_job_and_running_jobs_finish_first() {
    let Some(scene) = Scene::new().await else { return };
    let worker = scene.worker(&scene.host("write", "max_jobs = 1"), &[]);
    let first = scene.enqueue("write", scene.place()).await;
    scene.told(1).await;
    let second = scene.enqueue("write", scene.place()).await;

    let told = scene.told(2).await;

    assert_ne!(
        told[0].0, told[1].0,
        "while the first still runs, the next process has the second"
    );
    scene.folder.write("release", "");
    scene.ended(first, "completed").await;
    scene.ended(second, "completed").await;
    eventually("both have exited", || !is_alive(&told[0].0) && !is_alive(&told[1].0)).await;
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stops_lets_jobs_finish_and_its_hosts_exit() {
    let Some(scene) = Scene::new().await else { return };
    let worker = scene.worker(&scene.host("write", "processes = 2"), &[]);
    let id = scene.enqueue("write", scene.place()).await;
    let (pid, _) = scene.told(1).await.remove(0);

    worker.terminate();
    worker.event("drain").await;
    scene.folder.write("release", "");

    scene.ended(id, "completed").await;
    let lines = worker.log();
    assert!(worker.ended().await.success(), "{lines}");
    assert!(!is_alive(&pid));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_host_outlives_a_worker_that_is_killed() {
    let Some(scene) = Scene::new().await else { return };
    let worker = scene.worker(&scene.host("write", ""), &[]);
    scene.enqueue("write", scene.place()).await;
    let (pid, _) = scene.told(1).await.remove(0);

    worker.kill();

    eventually("the host is gone", || !is_alive(&pid)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_host_prints_is_in_the_log_of_the_worker() {
    let Some(scene) = Scene::new().await else { return };
    let worker = scene.worker(&scene.host("echo", ""), &["--until-empty"]);
    let log = worker.log();

    assert!(worker.ended().await.success(), "{log}");

    let log = std::fs::read_to_string(scene.folder.join("worker.log")).expect("a log");
    let printed = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let printed: Vec<Value> = printed.filter(|line| line["event"] == "output").collect();
    assert_eq!(printed[0]["message"], json!("told to exit"), "{log}");
    assert_eq!(
        (&printed[0]["host"], &printed[0]["stream"]),
        (&json!("app"), &json!("stdout"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_the_worker_runs_itself_cannot_be_announced() {
    let Some(scene) = Scene::new().await else { return };
    let config = format!("{}\n[commands.echo]\nprogram = [\"cat\"]\n", scene.host("echo", ""));
    let worker = scene.worker(&config, &[]);

    let event = worker.event("host_end").await;

    let message = event["message"].as_str().unwrap();
    assert!(message.contains("\"echo\" cannot be announced"), "{message}");
    assert_eq!(scene.result_of("echo", json!(1)).await, json!(1), "the worker runs it");
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_host_in_perl_follows_the_protocol_and_a_bad_one_does_not() {
    if !Command::new("perl")
        .args(["-MJSON::PP", "-e", "1"])
        .status()
        .is_ok_and(|status| status.success())
    {
        eprintln!("skipped: there is no perl to run the host of the examples");
        return;
    }
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let check = |script: &std::path::Path| {
        let program = Command::new(common::BUGLE)
            .args(["host", "check", "--", "perl"])
            .arg(script)
            .output();
        let told = program.expect("it runs");
        (
            told.status.success(),
            String::from_utf8_lossy(&told.stdout).into_owned(),
        )
    };
    let folder = Folder::new();
    let script = std::fs::read_to_string(root.join("examples/perl/host.pl")).expect("the example");

    let (passed, told) = check(&root.join("examples/perl/host.pl"));

    assert!(
        passed && !told.contains("FAILED") && told.contains("ok       it makes a step once"),
        "{told}"
    );
    for (right, wrong, part) in [
        ("claim => $job->{claim}", "claim => '7'", "claim should be"),
        (
            "ping => sub { tell_worker(type => 'pong') }",
            "ping => sub { }",
            "it answers ping: no message",
        ),
        ("result => $job->{payload})", "result => 1)", "result should be"),
    ] {
        assert!(script.contains(right), "{right}");
        let script = folder.write("host.pl", &script.replace(right, wrong));
        let (passed, told) = check(&script);
        assert!(
            !passed && told.contains("FAILED") && told.contains(part),
            "{part}: {told}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_can_take_many_jobs_in_one_call() {
    let Some(scene) = Scene::new().await else { return };
    let fill = "select bugle.enqueue('batch', p_payload => to_jsonb(n)) from generate_series(1, 40) n";
    execute(&scene.owner, fill).await;
    let worker = scene.worker(&scene.host("batch", "concurrency = 1"), &["--queue", "default=20"]);

    let all = "select count(*) = 40 from bugle.jobs where state = 'completed'";
    wait_until(&scene.owner, all).await;

    let sizes = "select jsonb_agg(distinct result) from bugle.jobs";
    let sizes: Value = query_value(&scene.owner, sizes).await;
    let largest = sizes.as_array().unwrap().iter().filter_map(Value::as_u64).max();
    assert_eq!(largest, Some(10), "{sizes}");
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_fails_the_call_of_its_batch_does_not_fail_the_others_twice() {
    let Some(scene) = Scene::new().await else { return };
    let fill = "select bugle.enqueue('batch', p_payload => case n when 3 then '\"bad\"' else to_jsonb(n) end, \
        p_max_attempts => 2, p_retry_delay => '0') from generate_series(1, 5) n";
    execute(&scene.owner, fill).await;
    let worker = scene.worker(&scene.host("batch", "concurrency = 1"), &["--queue", "default=20"]);

    let all = "select count(*) = 5 from bugle.jobs where state in ('completed', 'failed')";
    wait_until(&scene.owner, all).await;

    let failed = "select jsonb_agg(jsonb_build_array(payload, attempt)) from bugle.jobs where state = 'failed'";
    assert_eq!(query_value::<Value>(&scene.owner, failed).await, json!([["bad", 2]]));
    let together = "select count(*) from bugle.jobs where state = 'completed' and attempt = 2 and result <> '1'";
    assert_eq!(query_value::<i64>(&scene.owner, together).await, 0);
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_does_everything_wrong_harms_only_its_own_jobs() {
    let Some(scene) = Scene::new().await else { return };
    let fuzz = scene.folder.write("fuzz.py", include_str!("hosts/fuzz.py"));
    let bad = format!("[hosts.bad]\nprogram = [\"python3\", {fuzz:?}]\nprocesses = 4\n");
    let fill = "select bugle.enqueue(c, p_payload => to_jsonb(n), p_max_attempts => case c when 'bad' then 1 end) \
        from generate_series(1, 40) n cross join unnest(array['bad', 'echo']) c order by n";
    execute(&scene.owner, fill).await;
    let config = format!("{}{bad}", scene.host("echo", ""));

    let worker = scene.worker(&config, &["--queue", "default=8"]);

    let all = "select count(*) = 80 from bugle.jobs where state in ('completed', 'failed')";
    wait_until(&scene.owner, all).await;
    let harmed = "select count(*) from bugle.jobs where command = 'echo' \
        and (state <> 'completed' or result <> payload or attempt <> 1)";
    assert_eq!(query_value::<i64>(&scene.owner, harmed).await, 0);
    let codes = "select jsonb_object_agg(payload #>> '{}', coalesce(last_error_code, state)) from bugle.jobs \
                 where command = 'bad'";
    let codes: Value = query_value(&scene.owner, codes).await;
    for (kind, expected) in [
        (0, "host_lost"),
        (1, "host_lost"),
        (2, "host_lost"),
        (3, "completed"),
        (4, "completed"),
        (5, "completed"),
        (6, "bad_result"),
        (7, "bad_result"),
        (8, "completed"),
        (9, "bad_result"),
        (10, "host_lost"),
        (11, "completed"),
        (12, "completed"),
        (13, "host_lost"),
        (14, "bad_result"),
        (15, "host_lost"),
        (16, "completed"),
        (17, "completed"),
        (18, "completed"),
        (19, "completed"),
    ] {
        // a job that was beside one that killed their process is lost with it
        let told = [20 + kind, if kind == 0 { 40 } else { kind }].map(|number| codes[number.to_string()].clone());
        let is_lost = |code: &Value| code == "host_lost";
        assert!(
            told.iter().all(|code| code == expected || is_lost(code)),
            "{kind}: {told:?} {codes}"
        );
    }
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_wrong_before_its_hello_is_started_again_and_harms_no_other() {
    let Some(scene) = Scene::new().await else { return };
    let late = scene.folder.write("late.py", include_str!("hosts/late.py"));
    let folder = scene.folder.path().display().to_string();
    let late =
        format!("[hosts.late]\nprogram = [\"python3\", {late:?}]\nprocesses = 6\nenv = {{ FOLDER = {folder:?} }}\n");
    let worker = scene.worker(&format!("{}{late}", scene.host("echo", "")), &["--queue", "default=8"]);
    let before = scene.result_of("echo", json!(1)).await;

    let ready = "select coalesce((select (h ->> 'ready')::integer = 6 \
        from bugle.workers, jsonb_array_elements(hosts) h where h ->> 'name' = 'late'), false)";
    wait_until(&scene.owner, ready).await;

    assert!(scene.result_of("late", json!(0)).await.is_number());
    assert_eq!((before, scene.result_of("echo", json!(2)).await), (json!(1), json!(2)));
    let ends = worker.events();
    let ends = ends.iter().filter(|line| line["event"] == "host_end");
    assert_eq!(
        ends.filter(|line| line["host"] == "late").count(),
        5,
        "all but the one with two connections"
    );
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_grows_is_replaced_even_behind_a_wrapper() {
    let Some(scene) = Scene::new().await else { return };
    let late = scene.folder.write("late.py", include_str!("hosts/late.py"));
    let folder = scene.folder.path().display().to_string();
    let shell = format!("python3 {}; exit $?", late.display());
    let config = format!(
        "[hosts.late]\nprogram = [\"sh\", \"-c\", {shell:?}]\nmax_memory = \"200MB\"\n\
         env = {{ FOLDER = {folder:?} }}\n"
    );
    let worker = scene.worker(&config, &[]);
    let small = scene.result_of("late", json!(1_000_000)).await;
    assert_eq!(scene.result_of("late", json!(0)).await, small, "it is small");

    assert_eq!(scene.result_of("late", json!(300_000_000)).await, small);

    eventually("it is replaced", || !is_alive(&small.to_string())).await;
    assert_ne!(scene.result_of("late", json!(0)).await, small);
    stop(worker).await;
}
