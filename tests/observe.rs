//! A worker's endpoints: metrics, probes, and the API, as they are described.

mod common;

use std::os::unix::fs::PermissionsExt;

use bugle::Registry;
use bugle::observe::METRICS;
use common::http::{TOKEN, ask, commands, get, listening, until};
use common::{
    BUGLE, Database, Folder, RunningWorker, WorkerProcess, enqueue, execute, free_address, wait_for_state, wait_until,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::net::TcpStream;

#[tokio::test]
async fn metrics_count_what_happens_and_are_those_of_the_table() {
    let database = Database::new().await;
    let (worker, address) = listening(&database, None, commands()).await;
    let owner = database.owner().await;
    for _ in 0..3 {
        enqueue(&owner, "noop").await;
    }
    enqueue(&owner, "break").await;
    enqueue(&owner, "hang").await;
    enqueue(&owner, "nobody").await;
    execute(
        &owner,
        "insert into bugle.commands (name, step_retry_policy) values ('break', 'none');
         insert into bugle.jobs (command, steps, max_attempts) values ('chain', '{noop,break}', 1);
         insert into bugle.jobs (command, timeout, max_attempts) values ('hang', '10 ms', 1)",
    )
    .await;
    wait_until(&owner, "select count(*) = 2 from bugle.jobs where state = 'failed'").await;
    wait_until(&owner, "select count(*) = 3 from bugle.jobs where state = 'completed'").await;
    wait_until(&owner, "select count(*) = 1 from bugle.jobs where state = 'retrying'").await;
    wait_until(&owner, "select count(*) = 1 from bugle.jobs where state = 'running'").await;

    let page = until(address, "/metrics", |replied| {
        replied.body.contains("bugle_unserved_since_timestamp_seconds{")
    })
    .await;
    let name: String = common::query_value(&owner, "select current_database()::text").await;
    let body = &page.body;
    for line in body.lines().filter(|line| line.starts_with("bugle_")) {
        assert!(line.contains(&format!("{{database=\"{name}\"")), "{line}");
    }

    let labels = "queue=\"default\",command";
    for line in [
        format!("bugle_attempts_finished_total{{{labels}=\"noop\",outcome=\"completed\"}} 3\n"),
        format!("bugle_attempts_finished_total{{{labels}=\"break\",outcome=\"failed\"}} 1\n"),
        format!("bugle_attempts_finished_total{{{labels}=\"hang\",outcome=\"failed\"}} 0\n"),
        format!("bugle_attempts_finished_total{{{labels}=\"hang\",outcome=\"timed_out\"}} 1\n"),
        format!("bugle_jobs_running{{{labels}=\"hang\"}} 1\n"),
        format!("bugle_job_run_seconds_count{{{labels}=\"noop\"}} 3\n"),
        format!("bugle_job_run_seconds_bucket{{{labels}=\"noop\",le=\"+Inf\"}} 3\n"),
        format!("bugle_job_wait_seconds_bucket{{{labels}=\"noop\",le=\"3600\"}} 3\n"),
        "bugle_steps_finished_total{step=\"noop\",outcome=\"done\"} 1\n".to_owned(),
        "bugle_steps_finished_total{step=\"break\",outcome=\"failed\"} 1\n".to_owned(),
        "bugle_worker_slots{queue=\"default\"} 4\n".to_owned(),
        "bugle_worker_keeper 1\n".to_owned(),
        "bugle_dead_letters_total{queue=\"default\",reason=\"attempts_exhausted\"} 1\n".to_owned(),
        "bugle_dead_letters_total{queue=\"default\",reason=\"timeout\"} 1\n".to_owned(),
        "bugle_dead_letters_total{queue=\"default\",reason=\"crash_loop\"} 0\n".to_owned(),
        "bugle_dead_letters_total{queue=\"default\",reason=\"answer_overdue\"} 0\n".to_owned(),
        "bugle_steps_finished_total{step=\"noop\",outcome=\"failed\"} 0\n".to_owned(),
        "bugle_steps_finished_total{step=\"hang\",outcome=\"done\"} 0\n".to_owned(),
        "bugle_jobs_overdue 0\n".to_owned(),
        "bugle_queue_jobs{queue=\"default\",state=\"running\"} 1\n".to_owned(),
        "bugle_queue_jobs{queue=\"default\",state=\"ready\"} 1\n".to_owned(),
        "bugle_workers{state=\"alive\"} 1\n".to_owned(),
    ] {
        let with_database = match line.split_once('{') {
            Some((metric, labels)) => format!("{metric}{{database=\"{name}\",{labels}"),
            None => line.replacen(' ', &format!("{{database=\"{name}\"}} "), 1),
        };
        assert!(body.contains(&with_database), "{with_database} in {body}");
    }
    // each sample belongs to a metric that is announced, and each of the table is told or could be
    let mut announced = "";
    for line in page.body.lines() {
        if let Some(name) = line.strip_prefix("# HELP ") {
            announced = name.split(' ').next().unwrap();
            assert!(METRICS.iter().any(|metric| metric.name == announced), "{announced}");
        } else if !line.starts_with('#') {
            assert!(line.starts_with(announced), "{line} under {announced}");
        }
    }
    // nothing is paused, no transaction is open, and there are no hosts
    let absent = ["bugle_queue_paused", "bugle_oldest_snapshot_timestamp_seconds"];
    let is_absent = |name: &str| absent.contains(&name) || name.starts_with("bugle_host_");
    for metric in METRICS.iter().filter(|metric| !is_absent(metric.name)) {
        assert!(
            page.body.contains(&format!("# TYPE {} ", metric.name)),
            "{}",
            metric.name
        );
    }
    worker.shutdown.request();
    worker.stop().await;
}

#[tokio::test]
async fn only_the_keeper_tells_of_the_whole_database() {
    let database = Database::new().await;
    let (first, one) = listening(&database, None, commands()).await;
    let (second, other) = listening(&database, None, commands()).await;
    until(one, "/metrics", |replied| replied.body.contains("bugle_queue_jobs{")).await;

    let page = get(other, "/metrics").await.body;

    let keeper = page.lines().find(|line| line.starts_with("bugle_worker_keeper{"));
    assert!(keeper.is_some_and(|line| line.ends_with("} 0")), "{page}");
    for metric in METRICS.iter().filter(|metric| metric.of_keeper) {
        assert!(!page.contains(metric.name), "{}", metric.name);
    }
    first.stop().await;
    second.stop().await;
}

#[tokio::test]
async fn the_documented_metrics_are_those_of_the_table() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/metrics.md")).unwrap();
    for metric in METRICS {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let keeper = if metric.of_keeper { "keeper" } else { "" };
        let line = format!(
            "| `{}` | {} | {} | {keeper} | {} |",
            metric.name,
            metric.kind.as_str(),
            labels.join(", "),
            metric.help
        );

        assert!(text.contains(&line), "docs/reference/metrics.md lacks:\n{line}");
    }
    let documented = text
        .lines()
        .filter(|line| line.starts_with("| `bugle_") || line.starts_with("| `process_"))
        .count();
    assert_eq!(documented, METRICS.len());
}

#[tokio::test]
async fn a_worker_that_drains_says_so_before_it_ends() {
    let database = Database::new().await;
    let (worker, address) = listening(&database, None, commands()).await;
    let owner = database.owner().await;
    let job = enqueue(&owner, "hang").await;
    wait_for_state(&owner, job, "running").await;
    assert_eq!(get(address, "/livez").await.status, 200);

    worker.shutdown.request();
    let replied = until(address, "/readyz", |replied| replied.status == 503).await;

    assert!(
        replied.body.contains("draining: the worker was asked to stop"),
        "{}",
        replied.body
    );
    assert_eq!(get(address, "/livez").await.status, 200);
    worker.stop().await;
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn without_a_token_the_api_is_read_only_and_for_this_machine() {
    let database = Database::new().await;
    let (worker, address) = listening(&database, None, commands()).await;
    let job = enqueue(&database.owner().await, "nobody").await;

    let read = get(address, &format!("/api/v1/jobs/{job}")).await;
    let cancel = ask(address, "POST", &format!("/api/v1/jobs/{job}/cancel"), "", "").await;

    assert_eq!((read.status, read.json()["state"].clone()), (200, json!("ready")));
    assert_eq!(cancel.status, 403);
    assert!(cancel.body.contains("read-only"), "{}", cancel.body);
    assert_eq!(get(address, "/nowhere").await.status, 404);
    assert_eq!(ask(address, "POST", "/metrics", "", "").await.status, 405);
    worker.stop().await;
}

#[tokio::test]
async fn what_only_this_machine_can_reach_is_not_served_under_another_name() {
    let database = Database::new().await;
    let (open, without_token) = listening(&database, None, commands()).await;
    let (guarded, with_a_token) = listening(&database, Some(TOKEN), commands()).await;
    let status =
        async |address, path, host: &str| ask(address, "GET", path, &format!("Host: {host}\r\n"), "").await.status;

    for path in [
        "/metrics",
        "/livez",
        "/readyz",
        "/api/v1/queues",
        "/api/v1/openapi.json",
    ] {
        for name in [
            "evil.example.org",
            "evil.example.org:8421",
            "localhost.evil.org",
            "127.0.0.1.evil.org",
            "a b",
        ] {
            assert_eq!(status(without_token, path, name).await, 403, "{path} of {name}");
        }
        for name in [
            "localhost",
            "LOCALHOST:8421",
            "127.0.0.1",
            "127.0.0.1:8421",
            "[::1]",
            "[::1]:8421",
        ] {
            assert_eq!(status(without_token, path, name).await, 200, "{path} of {name}");
        }
    }
    // the token guards the API and nothing else
    assert_eq!(status(with_a_token, "/metrics", "evil.example.org").await, 403);
    assert_eq!(status(with_a_token, "/metrics", "localhost").await, 200);
    assert_eq!(status(with_a_token, "/api/v1/queues", "localhost").await, 401);
    open.stop().await;
    guarded.stop().await;
}

#[tokio::test]
async fn a_thousand_idle_connections_keep_neither_probes_nor_jobs_out() {
    let limits = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limits.maximum,
            ..limits
        },
    )
    .expect("descriptors for this test");
    let database = Database::new().await;
    let owner = database.owner().await;
    let (folder, address) = (Folder::new(), free_address());
    let config = format!("listen = '{address}'\n[commands.echo]\nprogram = ['cat']");
    // far fewer descriptors than connections
    let program = folder.write("bugle", &format!("#!/bin/sh\nulimit -n 256\nexec {BUGLE} \"$@\"\n"));
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    let worker = WorkerProcess::of(&program, &database, &folder, "worker", &config, &[]);
    until(address, "/readyz", |replied| replied.status == 200).await;

    let mut idle = Vec::new();
    for _ in 0..1000 {
        idle.push(TcpStream::connect(address).await.expect("it listens"));
    }

    assert_eq!(get(address, "/livez").await.status, 200);
    for _ in 0..20 {
        let id = enqueue(&owner, "echo").await;
        wait_for_state(&owner, id, "completed").await;
    }
    assert_eq!(get(address, "/readyz").await.status, 200);
    assert_eq!(idle.len(), 1000);
    worker.terminate();
    assert!(worker.ended().await.success());
}

#[tokio::test]
async fn a_login_without_the_role_is_told_which() {
    let database = Database::new().await;
    let address = free_address();
    let settings = database.settings(&[("default", 1)]).listen(address);
    let worker = RunningWorker::start(settings, commands());
    until(address, "/readyz", |replied| replied.status == 200).await;

    let replied = get(address, "/api/v1/jobs").await;

    assert_eq!(replied.status, 403);
    assert!(replied.body.contains("grant bugle_viewer"), "{}", replied.body);
    let page = until(address, "/metrics", |replied| replied.body.contains("bugle_queue_jobs")).await;
    assert!(
        page.body.contains("bugle_worker_keeper 1"),
        "the metrics need no role but its own"
    );
    worker.stop().await;
}

#[tokio::test]
async fn an_address_that_others_can_reach_is_refused_without_a_token() {
    let folder = common::Folder::new();
    let file = folder.write(
        "worker.toml",
        "listen = \"0.0.0.0:0\"\n[commands.x]\nprogram = ['true']",
    );
    let run = |token: Option<&str>| {
        let mut command = std::process::Command::new(BUGLE);
        command
            .args(["worker", "--database-url", "host=/nowhere", "--config"])
            .arg(&file);
        if let Some(token) = token {
            command.args(["--token", token]);
        }
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };

    assert!(run(None).contains("no token is set"), "{}", run(None));
    assert!(run(Some("short")).contains("fewer than 16 characters"));
    assert!(run(Some(TOKEN)).contains("no server listens on the socket"));
}

#[tokio::test]
async fn workers_report_their_minutes_and_the_views_tell_them() {
    let database = Database::new().await;
    let worker = database.worker(&[("default", 4)], commands());
    let owner = database.owner().await;
    for _ in 0..20 {
        enqueue(&owner, "noop").await;
    }
    enqueue(&owner, "break").await;
    wait_until(&owner, "select count(*) = 20 from bugle.jobs where state = 'completed'").await;
    wait_until(&owner, "select count(*) = 1 from bugle.jobs where state = 'retrying'").await;

    // with the heartbeat, or at the latest when it stops
    worker.stop().await;

    let viewer = database.connect("viewer").await;
    let row = viewer
        .query_one(
            "select sum(completed)::bigint, sum(failed)::bigint, bool_and(run_p95_seconds >= 0) from \
                bugle.command_stats",
            &[],
        )
        .await
        .unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (20, 1));
    let row = viewer
        .query_one("select fingerprint, attempts from bugle.error_groups", &[])
        .await
        .unwrap();
    assert_eq!((row.get::<_, &str>(0), row.get::<_, i64>(1)), ("order # is bad", 1));
}

#[tokio::test]
async fn the_trace_of_a_job_reaches_the_program_that_carries_it_out() {
    let database = Database::new().await;
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let file = r#"[commands.tell]
        program = ["sh", "-c", "printf '\"%s\"' \"$TRACEPARENT\""]"#;
    let commands = bugle::config::Config::from_toml(file).unwrap().commands;
    let settings = database.settings(&[("default", 2)]).commands(commands);
    let worker = RunningWorker::start(settings, Registry::new());
    let owner = database.owner().await;
    execute(
        &owner,
        &format!(
            "insert into bugle.jobs (command, headers) values
               ('tell', '{{\"traceparent\": \"{parent}\"}}'), ('tell', '{{\"traceparent\": \"nonsense; rm\"}}')"
        ),
    )
    .await;

    wait_until(
        &owner,
        &format!(
            "select count(*) = 2 and count(*) filter (where result = '\"{parent}\"') = 1 \
             and count(*) filter (where result = '\"\"') = 1 from bugle.jobs where state = 'completed'"
        ),
    )
    .await;
    worker.stop().await;
}

#[tokio::test]
async fn the_log_says_what_went_wrong_and_in_which_trace() {
    let database = Database::new().await;
    let (owner, folder) = (database.owner().await, Folder::new());
    let file = r#"[commands.send]
program = ["sh", "-c", "printf 'Traceback:\\n  File x\\nOSError: no route to host\\n' >&2; exit 1"]
[commands.read]
program = ["sh", "-c", "echo 'invalid value: \"a secret\" at line 1' >&2; exit 1"]
"#;
    let worker = WorkerProcess::start(&database, &folder, "one", file, &[]);
    execute(
        &owner,
        "insert into bugle.jobs (command, headers, max_attempts) values
           ('send', '{\"traceparent\": \"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\"}', 1),
           ('read', '{}', 1), ('send', '{}', 16)",
    )
    .await;
    wait_until(&owner, "select count(*) = 2 from bugle.jobs where state = 'failed'").await;

    let logged = async |event: &str, job: i64| {
        let of_job = || {
            let is_it = |line: &serde_json::Value| line["event"] == event && line["job"] == job;
            std::future::ready(worker.events().into_iter().find(is_it))
        };
        let found = common::poll::look_for(of_job).await;
        found.unwrap_or_else(|| panic!("no {event} of {job}: {}", worker.log()))
    };
    let (start, fail, other) = (
        logged("start", 1).await,
        logged("fail", 1).await,
        logged("fail", 2).await,
    );
    let retry = logged("retry", 3).await;
    assert_eq!(
        [&retry["attempt"], &retry["attempts"], &retry["code"], &retry["error"]],
        [
            &json!(1),
            &json!(16),
            &json!("exit_1"),
            &json!("OSError: no route to host")
        ]
    );
    assert!(
        retry["next_at"].as_str().unwrap().starts_with("20") && retry["level"] == "INFO",
        "{retry}"
    );
    assert_eq!(
        [&fail["attempt"], &fail["attempts"], &fail["reason"], &fail["level"]],
        [&json!(1), &json!(1), &json!("attempts_exhausted"), &json!("WARN")]
    );

    let line: String = common::query_value(
        &owner,
        "select bugle.error_line(last_error) from bugle.jobs where id = 1",
    )
    .await;
    assert_eq!(
        (fail["error"].as_str(), line.as_str()),
        (Some(line.as_str()), "OSError: no route to host")
    );
    assert_eq!(fail["code"], "exit_1");
    assert_eq!(fail["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(fail["span_id"].as_str().unwrap().len(), 16);
    assert_ne!(fail["span_id"], "00f067aa0ba902b7", "its own");
    assert_eq!(
        [&start["trace_id"], &start["span_id"]],
        [&fail["trace_id"], &fail["span_id"]]
    );
    assert_eq!(other["trace_id"].as_str().unwrap().len(), 32);
    assert_ne!(other["trace_id"], fail["trace_id"]);
    assert_eq!(other["error"], "invalid value: \"…\" at line 1");
    assert!(!worker.log().contains("a secret"), "{}", worker.log());
}

/// The result of an `sql` command is committed with what its conditions make of it.
#[tokio::test]
async fn a_condition_that_an_sql_command_meets_is_logged_and_counted_as_what_follows() {
    let database = Database::new().await;
    let (owner, folder) = (database.owner().await, Folder::new());
    execute(
        &owner,
        "create table public.asked (job text);
         grant insert on public.asked to public;
         insert into bugle.retry_policies (name, kind, retries, delay) values
           ('later', 'fixed', 9, '1 hour'), ('once more', 'fixed', 1, '10 milliseconds');
         insert into bugle.commands (name, retry_when, wait_when, retry_policy, step_retry_policy)
         values ('ask', '$.is == \"busy\"', '$.is == \"accepted\"', 'later', 'once more')",
    )
    .await;
    let file = r#"listen = "127.0.0.1:0"
[commands.ask]
sql = """
with asked as (insert into public.asked values ($1 ->> 'job'))
select jsonb_build_object('is', $1 ->> 'is')"""
"#;
    let worker = WorkerProcess::start(&database, &folder, "one", file, &[]);
    execute(
        &owner,
        r#"insert into bugle.jobs (command, steps, payload) values
             ('ask', null, '{"job": "retried", "is": "busy"}'), ('ask', null, '{"job": "waits", "is": "accepted"}'),
             ('chain', '{ask,ask}', '{"job": "chain retried", "is": "busy"}'),
             ('chain', '{ask,ask}', '{"job": "chain waits", "is": "accepted"}')"#,
    )
    .await;
    let states = "select string_agg(state, ' ' order by id) = 'retrying waiting failed waiting' from bugle.jobs";
    wait_until(&owner, states).await;

    let seen: String = common::query_value(
        &owner,
        "select string_agg(format('%s: %s %s %s', j.payload ->> 'job', j.attempt, j.last_error_code, a.times), ', ' \
         order by j.id) from bugle.jobs j, lateral (
           select count(*) as times from public.asked a where a.job = j.payload ->> 'job') a",
    )
    .await;
    assert_eq!(
        seen,
        "retried: 1 retry_when 1, waits: 1  1, chain retried: 1 retry_when 2, chain waits: 1  1"
    );
    let steps: String = common::query_value(
        &owner,
        "select string_agg(format('%s %s %s', s.job, s.state, s.attempts), ', ' order by s.job) from bugle.steps s \
         where s.position = 1",
    )
    .await;
    assert_eq!(steps, "3 failed 2, 4 waiting 1");

    let logged = async |event: &str, job: i64| {
        let of_job = || {
            let is_it = |line: &serde_json::Value| line["event"] == event && line["job"] == job;
            std::future::ready(worker.events().into_iter().find(is_it))
        };
        let found = common::poll::look_for(of_job).await;
        found.unwrap_or_else(|| panic!("no {event} of {job}: {}", worker.log()))
    };
    for (event, job) in [("fail", 1), ("wait", 2), ("step_retry", 3), ("fail", 3), ("wait", 4)] {
        let line = logged(event, job).await;
        let code = event.ends_with("wait").then_some("");
        assert_eq!(
            line["code"].as_str().unwrap_or(""),
            code.unwrap_or("retry_when"),
            "{line}"
        );
    }
    let is_complete = |line: &serde_json::Value| line["event"].as_str().is_some_and(|event| event.contains("complete"));
    assert!(!worker.events().iter().any(is_complete), "{}", worker.log());
    assert!(!worker.log().contains("fenced"), "{}", worker.log());

    let labels = "queue=\"default\",command";
    let lines = [
        format!("bugle_attempts_finished_total{{{labels}=\"ask\",outcome=\"failed\"}} 1\n"),
        format!("bugle_attempts_finished_total{{{labels}=\"ask\",outcome=\"waiting\"}} 1\n"),
        format!("bugle_attempts_finished_total{{{labels}=\"ask\",outcome=\"completed\"}} 0\n"),
        format!("bugle_attempts_finished_total{{{labels}=\"chain\",outcome=\"failed\"}} 1\n"),
        format!("bugle_attempts_finished_total{{{labels}=\"chain\",outcome=\"waiting\"}} 1\n"),
        "bugle_steps_finished_total{step=\"ask\",outcome=\"done\"} 0\n".to_owned(),
        "bugle_steps_finished_total{step=\"ask\",outcome=\"retried\"} 1\n".to_owned(),
        "bugle_steps_finished_total{step=\"ask\",outcome=\"failed\"} 1\n".to_owned(),
    ];
    let page = get(worker.address().await, "/metrics").await;
    let body = page
        .body
        .split(&format!("database=\"{}\",", database.name))
        .collect::<String>();
    for line in lines {
        assert!(body.contains(&line), "{line}{body}");
    }
    worker.terminate();
    assert!(worker.ended().await.success());
}
