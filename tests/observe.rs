//! A worker's endpoints: metrics, probes, and the API, as they are described.

mod common;

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;

use bugle::observe::METRICS;
use bugle::{Context, Registry, Settings};
use common::poll::look_for;
use common::{
    BUGLE, Database, Folder, RunningWorker, WorkerProcess, enqueue, execute, free_address, query_value, wait_for_state,
    wait_until,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const TOKEN: &str = "0123456789abcdef";

struct Replied {
    status: u16,
    body: String,
}

impl Replied {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// One request. `more` are further lines of its head.
async fn ask(address: SocketAddr, method: &str, path: &str, more: &str, body: &str) -> Replied {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let host = if more.contains("Host:") {
        ""
    } else {
        "Host: localhost\r\n"
    };
    let request = format!(
        "{method} {path} HTTP/1.1\r\n{host}{more}Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    Replied {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        body: body.to_owned(),
    }
}

async fn get(address: SocketAddr, path: &str) -> Replied {
    ask(address, "GET", path, "", "").await
}

async fn with_token(address: SocketAddr, method: &str, path: &str, body: &str) -> Replied {
    ask(
        address,
        method,
        path,
        &format!("Authorization: Bearer {TOKEN}\r\n"),
        body,
    )
    .await
}

/// A worker that listens, with the rights its API needs.
async fn listening(database: &Database, token: Option<&str>, registry: Registry) -> (RunningWorker, SocketAddr) {
    let owner = database.owner().await;
    execute(
        &owner,
        &format!("grant bugle_viewer, bugle_operator to {}_worker", database.name),
    )
    .await;
    let address = free_address();
    let settings = Settings {
        listen: Some(address),
        token: token.map(str::to_owned),
        ..database.settings(&[("default", 4)])
    };
    let worker = RunningWorker::start(settings, registry);
    until(address, "/readyz", |replied| replied.status == 200).await;
    (worker, address)
}

/// Ask until the answer is as expected.
async fn until(address: SocketAddr, path: &str, fits: impl FnMut(&Replied) -> bool) -> Replied {
    let state = std::sync::Mutex::new(("nobody listens".to_owned(), fits));
    let ask = || async {
        TcpStream::connect(address).await.ok()?;
        let replied = get(address, path).await;
        let (last, fits) = &mut *state.lock().unwrap();
        last.clone_from(&replied.body);
        fits(&replied).then_some(replied)
    };
    let found = look_for(ask).await;
    found.unwrap_or_else(|| panic!("{path}: {}", state.lock().unwrap().0))
}

fn commands() -> Registry {
    Registry::new()
        .on("noop", async |_: Context, _: Value| Ok(()))
        .on("break", async |_: Context, _: Value| {
            Err::<(), _>(bugle::Failure::new("order 17 is bad"))
        })
        .on("hang", async |context: Context, _: Value| {
            context.cancellation().cancelled().await;
            Ok(())
        })
}

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
    wait_until(&owner, "select count(*) = 3 from bugle.jobs where state = 'completed'").await;
    wait_until(&owner, "select count(*) = 1 from bugle.jobs where state = 'retrying'").await;
    wait_until(&owner, "select count(*) = 1 from bugle.jobs where state = 'running'").await;

    let page = until(address, "/metrics", |replied| {
        replied.body.contains("bugle_unserved_seconds{")
    })
    .await;

    let labels = "queue=\"default\",command";
    for line in [
        format!("bugle_jobs_ended_total{{{labels}=\"noop\",outcome=\"completed\"}} 3\n"),
        format!("bugle_jobs_ended_total{{{labels}=\"break\",outcome=\"failed\"}} 1\n"),
        format!("bugle_jobs_running{{{labels}=\"hang\"}} 1\n"),
        format!("bugle_job_run_seconds_count{{{labels}=\"noop\"}} 3\n"),
        format!("bugle_job_run_seconds_bucket{{{labels}=\"noop\",le=\"+Inf\"}} 3\n"),
        format!("bugle_job_wait_seconds_bucket{{{labels}=\"noop\",le=\"3600\"}} 3\n"),
        "bugle_worker_slots{queue=\"default\"} 4\n".to_owned(),
        "bugle_worker_keeper 1\n".to_owned(),
        "bugle_queue_jobs{queue=\"default\",state=\"running\"} 1\n".to_owned(),
        "bugle_queue_jobs{queue=\"default\",state=\"ready\"} 1\n".to_owned(),
        "bugle_workers{state=\"alive\"} 1\n".to_owned(),
    ] {
        assert!(page.body.contains(&line), "{line} in {}", page.body);
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
    for metric in METRICS.iter().filter(|metric| metric.name != "bugle_queue_paused") {
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

    assert!(page.contains("bugle_worker_keeper 0\n"), "{page}");
    for metric in METRICS.iter().filter(|metric| metric.of_keeper) {
        assert!(!page.contains(metric.name), "{}", metric.name);
    }
    first.stop().await;
    second.stop().await;
}

#[tokio::test]
async fn the_documented_metrics_are_those_of_the_table() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/observe.md")).unwrap();
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

        assert!(text.contains(&line), "docs/observe.md lacks:\n{line}");
    }
    let documented = text.lines().filter(|line| line.starts_with("| `bugle_")).count();
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
        replied.body.contains("draining: it was asked to stop"),
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

    let read = get(address, &format!("/api/jobs/{job}")).await;
    let cancel = ask(address, "POST", &format!("/api/jobs/{job}/cancel"), "", "").await;

    assert_eq!((read.status, read.json()["state"].clone()), (200, json!("ready")));
    assert_eq!(cancel.status, 403);
    assert!(cancel.body.contains("only be read"), "{}", cancel.body);
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

    for path in ["/metrics", "/livez", "/readyz", "/api/queues", "/api/openapi.json"] {
        for name in [
            "evil.example.org",
            "evil.example.org:9187",
            "localhost.evil.org",
            "127.0.0.1.evil.org",
            "a b",
        ] {
            assert_eq!(status(without_token, path, name).await, 403, "{path} of {name}");
        }
        for name in [
            "localhost",
            "LOCALHOST:9187",
            "127.0.0.1",
            "127.0.0.1:9187",
            "[::1]",
            "[::1]:9187",
        ] {
            assert_eq!(status(without_token, path, name).await, 200, "{path} of {name}");
        }
    }
    // the token guards the API and nothing else
    assert_eq!(status(with_a_token, "/metrics", "evil.example.org").await, 403);
    assert_eq!(status(with_a_token, "/metrics", "localhost").await, 200);
    assert_eq!(status(with_a_token, "/api/queues", "localhost").await, 401);
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
async fn with_a_token_the_api_changes_what_it_is_asked_to() {
    let database = Database::new().await;
    let (worker, address) = listening(&database, Some(TOKEN), commands()).await;
    let owner = database.owner().await;
    let job = enqueue(&owner, "hang").await;
    wait_for_state(&owner, job, "running").await;
    let path = |verb: &str| format!("/api/jobs/{job}/{verb}");

    assert_eq!(get(address, "/api/queues").await.status, 401);
    let wrong = ask(address, "POST", &path("cancel"), "Authorization: Bearer wrong\r\n", "").await;
    assert_eq!(wrong.status, 401);
    let cancelled = with_token(address, "POST", &path("cancel"), "{\"note\": \"by the test\"}").await;
    assert_eq!(
        (cancelled.status, cancelled.json()["state"].clone()),
        (200, json!("cancelled"))
    );
    let again = with_token(address, "POST", &path("cancel"), "").await;
    assert_eq!(again.status, 409, "{}", again.body);
    let nobody = with_token(address, "POST", "/api/jobs/999999/cancel", "").await;
    assert_eq!(nobody.status, 404, "{}", nobody.body);
    let garbled = with_token(address, "POST", &path("restart"), "{\"colour\": 1}").await;
    assert_eq!(garbled.status, 400, "{}", garbled.body);
    let paused = with_token(address, "POST", "/api/queues/default/pause", "").await;
    assert_eq!(paused.status, 200, "{}", paused.body);

    wait_until(
        &owner,
        "select paused_at is not null from bugle.queues where name = 'default'",
    )
    .await;
    let noted = owner
        .query_one("select count(*) from bugle.changes where note = 'by the test'", &[])
        .await
        .unwrap();
    assert_eq!(noted.get::<_, i64>(0), 1);
    worker.stop().await;
}

#[tokio::test]
async fn a_login_without_the_role_is_told_which() {
    let database = Database::new().await;
    let address = free_address();
    let settings = Settings {
        listen: Some(address),
        ..database.settings(&[("default", 1)])
    };
    let worker = RunningWorker::start(settings, commands());
    until(address, "/readyz", |replied| replied.status == 200).await;

    let replied = get(address, "/api/jobs").await;

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
    assert!(run(Some(TOKEN)).contains("no server behind the socket"));
}

/// Every path and method of the description is there, and answers as described.
#[tokio::test]
async fn the_api_is_as_it_is_described() {
    let database = Database::new().await;
    let (worker, address) = listening(&database, Some(TOKEN), commands()).await;
    let owner = database.owner().await;
    let failing = enqueue(&owner, "break").await;
    wait_for_state(&owner, failing, "retrying").await;
    let hanging = enqueue(&owner, "hang").await;
    wait_for_state(&owner, hanging, "running").await;
    let done = enqueue(&owner, "noop").await;
    wait_for_state(&owner, done, "completed").await;
    let description: Value =
        serde_json::from_str(include_str!("../docs/openapi.json")).expect("docs/openapi.json is JSON");
    let id = query_value::<i64>(&owner, "select id from bugle.workers").await;
    let mut answered = Vec::new();

    // changes come in an order that allows each: restart after cancel, resume after pause; the worker drains last
    let mut paths: Vec<&String> = description["paths"].as_object().unwrap().keys().collect();
    let order = ["get", "pause", "resume", "cancel", "restart", "drain"];
    paths.sort_by_key(|path| order.iter().rposition(|verb| path.ends_with(verb)).unwrap_or(0));
    for path in paths {
        for (method, operation) in description["paths"][path].as_object().unwrap() {
            let ids: &[i64] = match path.starts_with("/api/workers") {
                true => &[id],
                false if method == "post" => &[failing],
                false => &[failing, hanging, done],
            };
            for id in ids {
                let place = path.replace("{id}", &id.to_string()).replace("{name}", "default");
                let replied = with_token(address, &method.to_uppercase(), &place, "").await;

                assert_eq!(replied.status, 200, "{method} {place}: {}", replied.body);
                let schema = &operation["responses"]["200"]["content"]["application/json"]["schema"];
                assert_fits(&description, schema, &replied.json(), &place);
                answered.push(place);
            }
        }
    }
    let error = with_token(address, "GET", "/api/jobs/999999", "").await;
    assert_eq!(error.status, 404);
    assert_fits(
        &description,
        &json!({"$ref": "#/components/schemas/Error"}),
        &error.json(),
        "an error",
    );
    for (place, status) in [
        ("/api/jobs/x", 400),
        ("/api/jobs?limit=0", 400),
        ("/api/errors?since=soon", 400),
        ("/api/x", 404),
    ] {
        assert_eq!(with_token(address, "GET", place, "").await.status, status, "{place}");
    }
    let filtered = with_token(
        address,
        "GET",
        "/api/jobs?command=break&error_like=order&since=1+hour",
        "",
    )
    .await;
    assert_eq!(filtered.json().as_array().unwrap().len(), 1, "{}", filtered.body);
    assert!(answered.len() > 15);
    // it drains already; the job that hangs need not be waited for
    worker.shutdown.request();
    worker.shutdown.request();
    worker.ended().await;
}

/// The little of JSON Schema that the description uses.
fn assert_fits(all: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let schema = all
            .pointer(name.strip_prefix('#').unwrap())
            .expect("a schema of that name");
        return assert_fits(all, schema, value, at);
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(many) => many.iter().filter_map(Value::as_str).collect(),
        _ => return,
    };
    let fits = types.iter().any(|kind| match *kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("{at}: a type {other}"),
    });
    assert!(fits, "{at}: {value} is not {types:?}");
    if let Some(known) = schema["enum"].as_array() {
        assert!(known.contains(value), "{at}: {value} is none of {known:?}");
    }
    if let (Some(properties), Some(object)) = (schema["properties"].as_object(), value.as_object()) {
        for name in schema["required"].as_array().into_iter().flatten() {
            assert!(object.contains_key(name.as_str().unwrap()), "{at}: {name} is missing");
        }
        for (name, value) in object {
            match properties.get(name) {
                Some(schema) => assert_fits(all, schema, value, &format!("{at}.{name}")),
                None => assert!(schema["additionalProperties"] == true, "{at}: {name} is not described"),
            }
        }
    }
    for value in value.as_array().into_iter().flatten() {
        assert_fits(all, &schema["items"], value, at);
    }
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
    let settings = Settings {
        commands: bugle::config::Config::from_toml(file).unwrap().commands,
        ..database.settings(&[("default", 2)])
    };
    let registry = bugle::builtin::register(Registry::new(), &settings.commands).unwrap();
    let worker = RunningWorker::start(settings, registry);
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
