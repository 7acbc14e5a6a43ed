//! Rows that somebody wrote with odd values: they end their own job at most, never a batch, a worker or a reader.

mod common;

use std::process::Command;

use bugle::{Bugle, Context, Failure, NewJob, Outcome, Registry};
use common::{BUGLE, Database, Folder, RunningWorker, WorkerProcess, execute, wait_until};
use fastrand::Rng;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_postgres::Client;

/// Headers that Postgres stores and serde does not read as values.
const HUGE: &str = r#"{"a": 1e400}"#;

fn nested(levels: usize) -> String {
    format!(r#"{{"a": {}{}}}"#, "[".repeat(levels), "]".repeat(levels))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_cannot_be_decoded_ends_that_job_alone() {
    let database = Database::new().await;
    let (owner, mut enqueuer) = (database.owner().await, database.connect("enqueuer").await);
    let transaction = enqueuer.transaction().await.unwrap();
    for headers in ["{}", HUGE, r#"{"b": 1}"#, &nested(200), r#"{"c": []}"#] {
        transaction
            .execute(
                "insert into bugle.jobs (command, headers) values ('noop', $1::text::jsonb)",
                &[&headers],
            )
            .await
            .unwrap();
    }
    transaction.commit().await.unwrap();

    let worker = database.worker(&[("default", 10)], common::noop());
    let ended = Bugle::connect(&database.url("owner"))
        .unwrap()
        .job(2)
        .wait()
        .await
        .unwrap();
    wait_until(
        &owner,
        "select count(*) = 5 from bugle.jobs where finished_at is not null",
    )
    .await;

    let rows = owner
        .query(
            "select state, attempt, coalesce(last_error_code, ''), coalesce(reason, ''), coalesce(last_error, '') \
             from bugle.jobs order by id",
            &[],
        )
        .await
        .unwrap();
    let seen: Vec<(String, i32, String, String)> =
        rows.iter().map(|r| (r.get(0), r.get(1), r.get(2), r.get(3))).collect();
    let good = ("completed".into(), 1, String::new(), String::new());
    let bad = ("failed".into(), 1, "undecodable".into(), "not_retryable".into());
    assert_eq!(seen, [good.clone(), bad.clone(), good.clone(), bad, good]);
    assert_eq!(ended.state, Some(bugle::State::Failed));
    let said: String = rows[1].get(4);
    assert!(
        said.starts_with("column \"headers\" cannot be decoded: number out of range"),
        "{said}"
    );
    assert!(said.contains("\nhint: "), "{said}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_cannot_be_decoded_can_be_read() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let rights = format!("grant bugle_viewer, bugle_operator to {}_worker", database.name);
    execute(&owner, &rights).await;
    let folder = Folder::new();
    let config = "[commands.noop]\nprogram = ['true']";
    let worker = WorkerProcess::start(&database, &folder, "reader", config, &["--listen", "127.0.0.1:0"]);
    owner
        .execute(
            "insert into bugle.jobs (command, payload, headers) values ('noop', $1::text::jsonb, $2::text::jsonb)",
            &[&nested(1_000), &HUGE],
        )
        .await
        .unwrap();
    common::wait_for_state(&owner, 1, "failed").await;

    let digits = format!("1{}", "0".repeat(400));
    for arguments in [vec!["jobs", "show", "1"], vec!["jobs", "show", "1", "--json"]] {
        let shown = Command::new(BUGLE)
            .args(&arguments)
            .env("BUGLE_DATABASE_URL", database.url("owner"))
            .output()
            .unwrap();
        let text = String::from_utf8(shown.stdout).unwrap();
        assert!(
            shown.status.success(),
            "{arguments:?} {}",
            String::from_utf8_lossy(&shown.stderr)
        );
        assert!(
            text.contains(&digits) && text.contains("undecodable"),
            "{arguments:?} {text}"
        );
    }
    let address = worker.address().await;
    let answer = get(address, "/api/v1/jobs/1").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains(&digits) && answer.contains("undecodable"), "{answer}");
    worker.terminate();
    assert!(worker.ended().await.success());
}

async fn get(address: std::net::SocketAddr, path: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Names as an application may choose them; executors are registered for all of them.
const NAMES: [&str; 6] = [
    "plain",
    "emoji 😀\u{200d}👩",
    "\u{202e}right to left",
    "quote'\"\\$1{}%s",
    "lines\nand\ttabs\u{1b}[31m",
    "\u{feff}\u{fffd}\u{10ffff}e\u{301}",
];

/// A JSON text that Postgres stores, the odder the better.
fn odd_json(random: &mut Rng, levels: usize) -> String {
    match random.usize(..if levels > 3 { 9 } else { 12 }) {
        0 => "1e400".into(),
        1 => "-1e-400".into(),
        2 => format!("{}.{}", random.u64(..), "9".repeat(random.usize(1..500))),
        3 => "123456789012345678901234567890123456789012345678901234567890".into(),
        4 => Value::from(NAMES[random.usize(..NAMES.len())]).to_string(),
        5 => format!(
            "\"{}\"",
            "\\ud83d\\ude00\\u0001\\u2028\\\\".repeat(random.usize(1..300))
        ),
        6 => [
            "null",
            "true",
            "{}",
            "[]",
            "\"\"",
            "-0",
            "0.0000000000000000000000000000001",
        ][random.usize(..7)]
        .into(),
        7 => {
            let levels = [100, 127, 128, 129, 500, 2_000][random.usize(..6)];
            format!("{}{}", "[".repeat(levels), "]".repeat(levels))
        }
        8 => {
            let levels = [100, 127, 128, 500][random.usize(..4)];
            format!("{}1e400{}", r#"{"": "#.repeat(levels), "}".repeat(levels))
        }
        9 => {
            let items: Vec<String> = (0..random.usize(..5)).map(|_| odd_json(random, levels + 1)).collect();
            format!("[{}]", items.join(","))
        }
        _ => odd_object(random, levels + 1),
    }
}

fn odd_object(random: &mut Rng, levels: usize) -> String {
    let names = ["a", "", "traceparent", "out", "\u{feff}", "1e400", "😀", "to", "a b"];
    let fields: Vec<String> = (0..random.usize(1..6))
        .map(|_| {
            format!(
                "{}: {}",
                Value::from(names[random.usize(..names.len())]),
                odd_json(random, levels)
            )
        })
        .collect();
    format!("{{{}}}", fields.join(","))
}

/// Every kind of executor, under every name: `rust`, `program`, `sql`, `http`, and steps of chains. And hosts, below.
fn executors(port: u16) -> (Registry, String) {
    let mut registry = Registry::new()
        .on("innocent", async |_: Context, number: i64| Ok(number))
        // resumed with whatever was answered
        .on("ask", async |context: Context, _: Box<RawValue>| {
            Ok(match context.answer::<Value>()? {
                None => Outcome::Wait {
                    token: None,
                    at_most: None,
                },
                Some(answer) => Outcome::complete(answer),
            })
        })
        .on("remember", async |context: Context, payload: Box<RawValue>| {
            let kept: Box<RawValue> = context.step("odd\u{202e} step", async { Ok(payload) }).await?;
            if context.attempt() == 1 {
                return Err(Failure::new("once more"));
            }
            Ok(kept)
        });
    let mut file = String::new();
    for (n, name) in NAMES.iter().enumerate() {
        registry = registry
            .on(name, async |_: Context, payload: Box<RawValue>| Ok(payload))
            .on(&format!("value {n}"), async |_: Context, payload: Value| Ok(payload));
        let quoted = |kind: &str| toml::Value::from(format!("{kind} {name}")).to_string();
        file += &format!(
            "[commands.{}]\nprogram = ['cat']\n[commands.{}]\nsql = 'select $1'\n[commands.{}]\nhttp = {{ url = \
                'http://127.0.0.1:{port}/' }}\n",
            key(&quoted("program")),
            key(&quoted("sql")),
            key(&quoted("http")),
        );
    }
    (registry, file)
}

/// Jobs that nothing is wrong with, in Rust and in a host.
const INNOCENT: [&str; 3] = ["innocent", "host innocent", "batch innocent"];

/// A host in Python, with the package, that returns every payload: one by one, and many in one call.
const HOST: &str = r#"
import json, os
from bugle_jobs import Host

host = Host(concurrency=4)
for name in json.loads(os.environ["NAMES"]):
    host.on(f"host {name}")(lambda payload: payload)
    host.on_many(f"batch {name}", most=50)(lambda jobs: [job.payload for job in jobs])
host.run()
"#;

/// None if there is no Python on this machine.
fn host(folder: &Folder) -> Option<String> {
    let told = Command::new("python3").arg("--version").output();
    if !told.is_ok_and(|told| told.status.success()) {
        eprintln!("there is no python3: hosts are left out");
        return None;
    }
    let program = folder.write("host.py", HOST).display().to_string();
    let package = concat!(env!("CARGO_MANIFEST_DIR"), "/sdk/python/src");
    let names = [&NAMES[..], &["innocent"]].concat();
    let names = toml::Value::from(serde_json::to_string(&names).unwrap());
    let env = format!("env = {{ PYTHONPATH = {package:?}, NAMES = {names} }}");
    Some(format!("[hosts.odd]\nprogram = ['python3', {program:?}]\n{env}\n"))
}

/// A TOML string that may stand as a key: toml writes some as multi-line strings, which keys cannot be.
fn key(quoted: &str) -> String {
    let text: String = quoted
        .parse::<toml::Value>()
        .ok()
        .and_then(|value| value.as_str().map(String::from))
        .unwrap_or_default();
    let escaped: String = text.chars().map(|c| format!("\\U{:08X}", c as u32)).collect();
    format!("\"{escaped}\"")
}

#[tokio::test(flavor = "multi_thread")]
async fn no_column_of_a_job_stops_a_worker_whatever_executes_it() {
    let database = Database::new().await;
    let (owner, enqueuer) = (database.owner().await, database.connect("enqueuer").await);
    execute(
        &owner,
        "insert into bugle.retry_policies (name, kind, retries, delay) values ('soon', 'fixed', 1, '0')",
    )
    .await;
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (registry, file) = executors(server.local_addr().unwrap().port());
    tokio::spawn(echo(server));
    let folder = Folder::new();
    let hosts = host(&folder);
    let innocent = if hosts.is_some() { &INNOCENT[..] } else { &INNOCENT[..1] };
    let config = bugle::config::Config::from_toml(&(file + &hosts.clone().unwrap_or_default())).unwrap();
    let queues: Vec<(&str, u32)> = NAMES.iter().map(|name| (*name, 20)).collect();
    let settings = database.settings(&queues).commands(config.commands).hosts(config.hosts);
    let mut random = Rng::with_seed(1_400);
    for _ in 0..300 {
        insert_odd(&enqueuer, &mut random, hosts.is_some()).await;
        enqueuer
            .execute(
                "insert into bugle.jobs (command, payload, queue) values ($1, '1', $2)",
                &[
                    &innocent[random.usize(..innocent.len())],
                    &NAMES[random.usize(..NAMES.len())],
                ],
            )
            .await
            .unwrap();
    }
    // what no enqueuer can write, should it ever be there
    execute(
        &owner,
        "update bugle.jobs_live set headers = '[1]' where id % 50 = 1;
             update bugle.jobs_live set created_at = 'infinity' where id % 50 = 3;
             update bugle.jobs_live set run_at = '-infinity' where id % 50 = 5;
             update bugle.jobs_live set context = '1e400' where id % 50 = 7 and steps is null;
             update bugle.jobs_live set answer = '[[1e400]]' where id % 50 = 9;
             update bugle.jobs_live set step = -5 where id % 50 = 11 and steps is null",
    )
    .await;

    let worker = RunningWorker::start(settings, registry);
    let live = "select count(*) = 0 from bugle.jobs_live where state <> 'waiting'";
    wait_until(&owner, live).await;
    // every job that waits is answered with something odd
    for row in owner
        .query("select id from bugle.jobs_live order by id", &[])
        .await
        .unwrap()
    {
        owner
            .execute(
                "select bugle.resume_with($1, $2::text::jsonb)",
                &[&row.get::<_, i64>(0), &odd_json(&mut random, 0)],
            )
            .await
            .unwrap();
    }
    wait_until(&owner, "select count(*) = 0 from bugle.jobs_live").await;

    let innocent = owner
        .query_one(
            "select count(*) filter (where state = 'completed' and attempt = 1), count(*) from bugle.jobs where \
                command like '%innocent'",
            &[],
        )
        .await
        .unwrap();
    assert_eq!((innocent.get::<_, i64>(0), innocent.get::<_, i64>(1)), (300, 300));
    let endings = owner
        .query(
            "select state, coalesce(last_error_code, ''), count(*), min(last_error) from bugle.jobs \
             where command not like '%innocent' group by 1, 2 order by 1, 2",
            &[],
        )
        .await
        .unwrap();
    let endings: Vec<(String, String, i64, Option<String>)> = endings
        .iter()
        .map(|r| (r.get(0), r.get(1), r.get(2), r.get(3)))
        .collect();
    let known = ["", "undecodable", "bad_payload", "bad_answer", "bad_result"];
    assert!(
        endings.iter().all(|(_, code, ..)| known.contains(&code.as_str())),
        "{endings:#?}"
    );
    for code in ["undecodable", "bad_payload", "bad_answer", "bad_result"] {
        assert!(
            endings.iter().any(|(_, seen, ..)| seen == code),
            "no {code}: {endings:#?}"
        );
    }
    worker.stop().await;
}

async fn insert_odd(enqueuer: &Client, random: &mut Rng, has_hosts: bool) {
    let name = |random: &mut Rng| NAMES[random.usize(..NAMES.len())];
    let executor = |random: &mut Rng| match random.usize(..if has_hosts { 11 } else { 7 }) {
        7 | 8 => format!("host {}", name(random)),
        9 | 10 => format!("batch {}", name(random)),
        0 => format!("program {}", name(random)),
        1 | 2 => format!("sql {}", name(random)),
        3 => format!("http {}", name(random)),
        4 => format!("value {}", random.usize(..NAMES.len())),
        _ => name(random).to_owned(),
    };
    let is_chain = random.usize(..4) == 0;
    let steps: Option<Vec<String>> = is_chain.then(|| (0..random.usize(1..4)).map(|_| executor(random)).collect());
    let command = match random.usize(..6) {
        0 => "ask".to_owned(),
        1 => "remember".to_owned(),
        _ => executor(random),
    };
    let payload = if is_chain {
        odd_object(random, 0)
    } else {
        odd_json(random, 0)
    };
    let headers = (random.usize(..3) > 0).then(|| odd_object(random, 0));
    let key = |random: &mut Rng| (random.usize(..4) == 0).then(|| format!("{}{}", name(random), random.u8(..)));
    let timeout = ["10 years", "9 years 11 months 29 days 23:59:59.999999", "1 hour"][random.usize(..3)];
    enqueuer
        .execute(
            "insert into bugle.jobs (command, payload, queue, priority, headers, steps, order_key, limit_key, \
                fair_key, \
             timeout, max_attempts, retry_policy, on_success, idempotency_key) \
             values ($1, $2::text::jsonb, $3, $4, $5::text::jsonb, $6, $7, $8, $9, $10::text::interval, 2, 'soon', \
             $11, $12)",
            &[
                &command,
                &payload,
                &name(random),
                &[i32::MIN, -1, 0, 0, 0, i32::MAX][random.usize(..6)],
                &headers,
                &steps,
                &key(random),
                &key(random),
                &key(random),
                &timeout,
                &(random.usize(..10) == 0).then(|| name(random)),
                &(random.usize(..4) == 0).then(|| format!("{}{}", name(random), random.u64(..))),
            ],
        )
        .await
        .unwrap_or_else(|error| panic!("{error:?} {payload} {headers:?}"));
}

/// Answers every request with its own body.
async fn echo(server: TcpListener) {
    loop {
        let Ok((mut stream, _)) = server.accept().await else {
            return;
        };
        tokio::spawn(async move {
            let mut received = Vec::new();
            loop {
                let head = received.windows(4).position(|window| window == b"\r\n\r\n");
                if let Some(end) = head {
                    let text = String::from_utf8_lossy(&received[..end]).to_lowercase();
                    let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
                    let whole = end + 4 + length.and_then(|length| length.parse().ok()).unwrap_or(0);
                    if received.len() >= whole {
                        let body: Vec<u8> = received.drain(..whole).skip(end + 4).collect();
                        let head = format!(
                            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                            body.len()
                        );
                        let _ = stream.write_all(&[head.as_bytes(), &body].concat()).await;
                        continue;
                    }
                }
                match stream.read_buf(&mut received).await {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                }
            }
        });
    }
}

#[tokio::test]
async fn what_the_engine_itself_writes_is_read_whatever_it_holds() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let job = NewJob::new("noop", ()).enqueue(&owner).await.unwrap();
    execute(
        &owner,
        &format!(
            "update bugle.jobs_live set timeout = '10 years', created_at = '-infinity', run_at = 'infinity' where id = \
                {job}"
        ),
    )
    .await;

    let shown = Command::new(BUGLE)
        .args(["jobs", "show", &job.to_string()])
        .env("BUGLE_DATABASE_URL", database.url("owner"))
        .output()
        .unwrap();

    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
}
