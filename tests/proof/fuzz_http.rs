//! The endpoints of a worker with everything a socket can carry: requests that are broken, huge, half, aimed at
//! nothing. No answer says that the server failed, nothing is changed without the token, and it serves on.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use fastrand::Rng;
use futures_util::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::random_seed::seed;
use crate::common::poll::look_for;
use crate::common::{DEADLINE, Database, Folder, WorkerProcess, enqueue, execute, query_value, wait_for_state};

const REQUESTS: usize = 3000;
const AT_ONCE: usize = 100;
/// A client that has sent only part of a request and gets no response gives up after this time.
const PATIENCE: Duration = Duration::from_secs(1);
const TOKEN: &str = "0123456789abcdef";

#[tokio::test(flavor = "multi_thread")]
async fn no_request_makes_a_worker_panic_or_fail_or_change_what_it_may_not() {
    let seed = seed("BUGLE_FUZZ_SEED");
    let mut rng = Rng::with_seed(seed);
    let database = Database::new().await;
    let owner = database.owner().await;
    let rights = format!("grant bugle_viewer, bugle_operator to {}_worker", database.name);
    execute(&owner, &rights).await;
    let folder = Folder::new();
    let config = format!(
        "listen = \"127.0.0.1:0\"\ntoken = \"{TOKEN}\"\n[queues]\ndefault = 2\n[commands.noop]\nprogram = [\"true\"]\n"
    );
    let worker = WorkerProcess::start(&database, &folder, "fuzzed", &config, &[]);
    let address = worker.address().await;
    let ready = b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    look_for(|| async {
        say(address, ready, DEADLINE)
            .await
            .starts_with("HTTP/1.1 200")
            .then_some(())
    })
    .await
    .expect("it is ready");
    execute(
        &owner,
        "insert into bugle.jobs (command, run_at) select 'held', now() + interval '1 day' from generate_series(1, 20)",
    )
    .await;
    let sum = "select md5(string_agg(t::text, '' order by t::text)) from ( \
        select to_jsonb(j)::text from bugle.jobs j union all select to_jsonb(q)::text from bugle.queues q \
        union all select to_jsonb(c)::text from bugle.changes c \
        union all select paused_at::text || stopped_at::text from bugle.registrations) t";
    let before: String = query_value(&owner, sum).await;

    let head = "POST /api/v1/jobs/1/cancel HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 9\r\n";
    let half = format!("{head}authorization: Bearer {TOKEN}\r\n\r\n");
    let half = tokio::spawn(async move { say(address, half.as_bytes(), DEADLINE).await });

    let mut statuses = BTreeMap::new();
    let strangers: Vec<Vec<u8>> = (0..REQUESTS / 2).map(|_| request(&mut rng, false)).collect();
    let mut strange = all(address, strangers, &mut statuses).await;
    let after: String = query_value(&owner, sum).await;
    let friends: Vec<Vec<u8>> = (0..REQUESTS / 2).map(|_| request(&mut rng, true)).collect();
    strange.extend(all(address, friends, &mut statuses).await);
    println!("fuzz: {REQUESTS} requests, answered with {statuses:?}");

    assert!(strange.is_empty(), "BUGLE_FUZZ_SEED={seed}\n{}", strange.join("\n"));
    for status in [200, 400, 401, 404, 405, 413, 431] {
        assert!(
            statuses.contains_key(&status),
            "nothing was answered with {status}: {statuses:?}"
        );
    }
    let half = half.await.expect("no panic");
    assert!(
        half.starts_with("HTTP/1.1 408"),
        "waiting for a body has a time limit: {half}"
    );
    assert_eq!(
        before, after,
        "BUGLE_FUZZ_SEED={seed}: something was changed without the token"
    );
    let alive = say(
        address,
        b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        DEADLINE,
    )
    .await;
    assert!(alive.starts_with("HTTP/1.1 200 OK"), "{alive}");
    let log = worker.log();
    assert!(!log.contains("panicked"), "BUGLE_FUZZ_SEED={seed}\n{log}");
    assert!(!log.contains(TOKEN), "the log has the token");
    execute(
        &owner,
        "update bugle.queues set paused_at = null; update bugle.registrations set paused_at = null",
    )
    .await;
    let resume = format!(
        "POST /api/v1/workers/1/resume HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\nconnection: \
            close\r\ncontent-length: 0\r\n\r\n"
    );
    say(address, resume.as_bytes(), DEADLINE).await;
    let id = enqueue(&owner, "noop").await;
    wait_for_state(&owner, id, "completed").await;
    drop(worker);
}

/// Send them all, some at once. What was answered as it should not be.
async fn all(address: SocketAddr, requests: Vec<Vec<u8>>, statuses: &mut BTreeMap<u16, usize>) -> Vec<String> {
    let answered = futures_util::stream::iter(requests).map(async |request| {
        let answer = say(address, &request, PATIENCE).await;
        let status: u16 = answer
            .split(' ')
            .nth(1)
            .and_then(|word| word.parse().ok())
            .unwrap_or_default();
        let short = |text: &str| text.chars().take(300).collect::<String>();
        let is_probe = request.starts_with(b"GET /readyz") || request.starts_with(b"GET /livez");
        let wrong = status >= 500 && !(is_probe && status == 503) || answer == HANGS;
        let what = format!("{:?}\n  {}", short(&String::from_utf8_lossy(&request)), short(&answer));
        (status, wrong.then_some(what))
    });
    let mut wrong = Vec::new();
    for (status, what) in answered.buffer_unordered(AT_ONCE).collect::<Vec<_>>().await {
        *statuses.entry(status).or_default() += 1;
        wrong.extend(what);
    }
    wrong
}

const HANGS: &str = "it does not answer, and does not close";

/// What comes back, if anything does. It must come to an end: at the latest when we say that nothing more will come.
async fn say(address: SocketAddr, request: &[u8], patience: Duration) -> String {
    let mut stream = TcpStream::connect(address).await.expect("it still listens");
    let talk = async {
        // it may have heard enough before we have said everything
        let _ = stream.write_all(request).await;
        let mut answer = Vec::new();
        let mut piece = [0; 4096];
        loop {
            match tokio::time::timeout(patience, stream.read(&mut piece)).await {
                Ok(Ok(length @ 1..)) => answer.extend_from_slice(&piece[..length]),
                Ok(_) => break String::from_utf8_lossy(&answer).into_owned(),
                Err(_) => drop(stream.shutdown().await),
            }
        }
    };
    tokio::time::timeout(DEADLINE, talk)
        .await
        .unwrap_or_else(|_| HANGS.to_owned())
}

/// Half of them are well-formed and ask for nonsense; the others have one flaw each, or are none at all.
fn request(rng: &mut Rng, with_token: bool) -> Vec<u8> {
    let flaw = rng.u8(..20);
    if flaw == 0 {
        return (0..rng.usize(1..400)).map(|_| rng.u8(..)).collect();
    }
    let (mut method, mut version, mut host) = (if rng.bool() { "GET" } else { "POST" }, "HTTP/1.1", "localhost");
    let methods = [
        "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "get", "", "G\0T", "CONNECT",
    ];
    let hosts = ["127.0.0.1", "[::1]:80", "evil.example", "", "\u{1F980}", "a b"];
    let body = body(rng);
    let mut length = format!("content-length: {}\r\n", body.len());
    let (mut more, mut path) = (String::new(), path(rng));
    match flaw {
        1 => method = rng.choice(methods).expect("one"),
        2 => version = rng.choice(["HTTP/1.0", "HTTP/2.0", "HTTP/9", "", "http"]).expect("one"),
        3 => host = rng.choice(hosts).expect("one"),
        4 => more = format!("x: {}\r\n", "h".repeat(rng.usize(1000..600_000))),
        5 => more = (0..rng.usize(50..300)).map(|n| format!("x-{n}: y\r\n")).collect(),
        6 => more = "no colon here\r\n : \r\n".into(),
        7 => {
            length = rng
                .choice(["99999999999999999999", "-1", "3\r\ncontent-length: 4", "x"])
                .map(|n| format!("content-length: {n}\r\n"))
                .expect("one")
        }
        8 => length = "transfer-encoding: chunked\r\n".into(),
        9 => path.push('\u{1F980}'),
        _ => {}
    }
    let authorization = match with_token {
        true => format!("authorization: Bearer {TOKEN}\r\n"),
        false => {
            let guesses = [
                "Bearer 0123456789abcdeX",
                "Bearer ",
                "Basic MTIz",
                "Bearer 0123456789abcdef0",
                "\u{1}",
            ];
            rng.choice(guesses)
                .map(|guess| format!("authorization: {guess}\r\n"))
                .filter(|_| rng.bool())
                .unwrap_or_default()
        }
    };
    let head =
        format!("{method} {path} {version}\r\nhost: {host}\r\n{authorization}{more}{length}connection: close\r\n\r\n");
    let mut bytes = [head.into_bytes(), body].concat();
    let at = rng.usize(..bytes.len());
    match flaw {
        10 => bytes.truncate(at),
        11 => bytes[at] = rng.u8(..),
        _ => {}
    }
    bytes
}

fn path(rng: &mut Rng) -> String {
    let piece = |rng: &mut Rng| -> String {
        match rng.u8(..16) {
            0..4 => rng.u8(1..25).to_string(),
            4 => "9223372036854775808".into(),
            5 => "-1".into(),
            6 => "%00".into(),
            7 => "%ff%fe".into(),
            8 => "%ED%A0%80".into(),
            9 => "%zz%".into(),
            10 => "..%2f..%2fetc".into(),
            11 => "a".repeat(rng.usize(1..3000)),
            12 => "default".into(),
            13 => "%27%3b%20drop%20schema%20bugle%20cascade".into(),
            14 => String::new(),
            _ => "%F0%9F%A6%80".into(),
        }
    };
    let one = piece(rng);
    let form = rng.choice([
        "/metrics",
        "/livez",
        "/readyz",
        "/",
        "*",
        "/api",
        "/api/v1/",
        "/api/v1/openapi.json",
        "/api/v1/queues",
        "/api/v1/workers?all=X",
        "/api/v1/stats",
        "/api/v1/errors?since=X",
        "/api/v1/jobs?limit=X",
        "/api/v1/jobs?since=X&state=X",
        "/api/v1/jobs?error_like=X&queue=X",
        "/api/v1/jobs?X=X",
        "/api/v1/jobs/X",
        "/api/v1/jobs/X/explain",
        "/api/v1/jobs/X/cancel",
        "/api/v1/jobs/X/pause",
        "/api/v1/jobs/X/restart",
        "/api/v1/jobs/X/X",
        "/api/v1/queues/X/pause",
        "/api/v1/queues/X/resume",
        "/api/v1/workers/X/pause",
        "/api/v1/X/X/X/X",
        "http://localhost/api/v1/jobs/X",
        "/X",
    ]);
    form.expect("one").replace('X', &one)
}

fn body(rng: &mut Rng) -> Vec<u8> {
    match rng.u8(..30) {
        0 => b"{".to_vec(),
        1 => br#"{"note": 3}"#.to_vec(),
        2 => br#"{"note": "\u0000"}"#.to_vec(),
        3 => br#"{"note": "\ud800"}"#.to_vec(),
        4 => br#"{"other": 1}"#.to_vec(),
        5 => b"\xff\xfe".to_vec(),
        6 => [
            br#"{"note": ""#.to_vec(),
            b"n".repeat(rng.usize(1000..200_000)),
            b"\"}".to_vec(),
        ]
        .concat(),
        7 => b"5\r\nhello\r\n0\r\n\r\n".to_vec(),
        8 => b"[".repeat(2000),
        9..12 => br#"{"note": "why"}"#.to_vec(),
        _ => Vec::new(),
    }
}
