//! `bugle host check`: runs a host as a worker does, without a database, and checks that it follows the protocol.
//!
//! The host has to announce three commands that only do what their payload says: see docs/hosts.md.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitStatus;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::Command;

use super::message::{Hello, Line};
use super::readable::{MOST_DIGITS, MOST_LEVELS};
use super::socket::{self, Lines};
use crate::builtin::group::{Group, Pipes};
use crate::builtin::output::each_line;
use crate::builtin::surroundings;
use crate::config::ProgramEnv;
use crate::execute::workspace::Workspaces;

/// How long to wait for each message.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a host may take to exit after its connection was closed.
const EXIT: Duration = Duration::from_secs(5);

/// The commands that every host to be checked announces.
const REQUIRED: [&str; 3] = ["check.echo", "check.fail", "check.stop"];

/// The result of one check.
pub struct Checked {
    pub name: &'static str,
    pub verdict: Verdict,
}

/// How a check ended.
pub enum Verdict {
    Passed,
    Failed(String),
    /// The host does not announce this command.
    Skipped(&'static str),
}

type Check = for<'a> fn(&'a mut Peer) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

/// The checks in order, each with the command it needs. The last one ends the host.
const CHECKS: [(&str, &str, Check); 24] = [
    ("it answers ping", "", |peer| Box::pin(answers_ping(peer))),
    ("it runs a job and returns its result", "", |peer| {
        Box::pin(echoes(peer))
    }),
    ("it returns text and numbers unchanged", "", |peer| {
        Box::pin(keeps_values(peer))
    }),
    ("it reads lines that arrive in pieces, and many at once", "", |peer| {
        Box::pin(reads_pieces(peer))
    }),
    ("it ignores fields and messages it does not know", "", |peer| {
        Box::pin(ignores_news(peer))
    }),
    ("it continues after an error", "", |peer| Box::pin(survives_error(peer))),
    ("it reads a payload of 1 MB", "", |peer| Box::pin(reads_large(peer))),
    (
        "it reads a value of 500 levels, and a number of 1000 digits",
        "",
        |peer| Box::pin(reads_extremes(peer)),
    ),
    ("it writes a result of 1 MB", "", |peer| Box::pin(writes_large(peer))),
    ("it reports a failure with all its fields", "", |peer| {
        Box::pin(fails(peer))
    }),
    ("it runs as many jobs at once as it announces", "", |peer| {
        Box::pin(runs_many(peer))
    }),
    ("it stops a job that is cancelled", "", |peer| Box::pin(stops(peer))),
    ("it ignores the cancellation of a job it does not have", "", |peer| {
        Box::pin(ignores_cancel(peer))
    }),
    ("it runs the same job again under another claim", "", |peer| {
        Box::pin(runs_again(peer))
    }),
    ("it snoozes a job", "check.snooze", |peer| {
        Box::pin(repeats(peer, "snooze", json!({"delay": 1.5})))
    }),
    ("it waits for an answer", "check.wait", |peer| {
        Box::pin(repeats(peer, "wait", json!({"token": "t", "at_most": 60})))
    }),
    ("it skips a step", "check.skip", |peer| {
        Box::pin(repeats(peer, "skip", json!({"reason": "not needed"})))
    }),
    ("it reports progress", "check.progress", |peer| {
        Box::pin(reports_progress(peer))
    }),
    ("it makes a step once", "check.step", |peer| Box::pin(makes_step(peer))),
    ("it spawns children and reads their results", "check.spawn", |peer| {
        Box::pin(spawns(peer))
    }),
    ("it enqueues jobs", "check.enqueue", |peer| Box::pin(enqueues(peer))),
    ("it answers each job of a batch", "check.batch", |peer| {
        Box::pin(answers_batch(peer))
    }),
    (
        "it asks for calls of one for the jobs of a batch that failed as a whole",
        "check.batch_fail",
        |peer| Box::pin(fails_batch(peer)),
    ),
    (LAST, "", |peer| Box::pin(drains(peer))),
];

/// The check after which the host exits.
const LAST: &str = "it finishes its jobs when it is drained";

/// Check the host that this program starts. `tell` gets each verdict.
///
/// # Errors
/// If it cannot be started, or does not say hello: nothing can be checked then.
pub async fn check(argv: &[String], tell: impl FnMut(&Checked)) -> Result<bool, String> {
    let workspaces = Workspaces::open(&Workspaces::default_base()).map_err(|error| error.to_string())?;
    let (mut host, mut peer) = Host::start(argv, &workspaces).await?;
    let passed = run(&mut peer, &mut host, tell).await;
    host.group.stop(Duration::from_secs(2)).await.ok();
    let _ = std::fs::remove_file(&host.socket);
    Ok(passed)
}

async fn run(peer: &mut Peer, host: &mut Host, mut tell: impl FnMut(&Checked)) -> bool {
    let mut passed = true;
    let mut report = |name: &'static str, verdict: Verdict| {
        passed &= !matches!(verdict, Verdict::Failed(_));
        tell(&Checked { name, verdict });
    };
    report("it connects and says hello", Verdict::Passed);
    for (name, command, check) in CHECKS {
        if !command.is_empty() && !peer.hello.commands.contains_key(command) {
            report(name, Verdict::Skipped(command));
            continue;
        }
        let verdict = tokio::select! {
            verdict = check(peer) => verdict,
            status = host.ended(), if name != LAST => Err(format!("the host has exited: {status}")),
        };
        match verdict {
            Ok(()) => report(name, Verdict::Passed),
            Err(why) => {
                report(name, Verdict::Failed(why));
                // the messages of this check would be taken for those of the next
                return false;
            }
        }
    }
    let exited = tokio::time::timeout(EXIT, host.ended()).await;
    let verdict = match exited {
        Ok(_) => Verdict::Passed,
        Err(_) => Verdict::Failed(format!("it was still running {} seconds later", EXIT.as_secs())),
    };
    report("it exits when the connection is closed", verdict);
    passed
}

/// The process of the host.
struct Host {
    group: Group,
    socket: PathBuf,
}

impl Host {
    async fn start(argv: &[String], workspaces: &Workspaces) -> Result<(Host, Peer), String> {
        let socket = workspaces.path().join("host-1.sock");
        let listener = socket::listen(&socket).map_err(|error| error.to_string())?;
        let env = ProgramEnv {
            inherit: true,
            ..ProgramEnv::default()
        };
        let env = surroundings::variables(&env, &|_| None).map_err(|error| error.to_string())?;
        let started = surroundings::find(&argv[0], &env).and_then(|program| {
            let mut command = Command::new(program);
            command
                .args(&argv[1..])
                .env_clear()
                .envs(env)
                .env("BUGLE_HOST", &socket)
                .env("BUGLE_HOST_NAME", "check")
                .env("BUGLE_HOST_PROCESS", "1");
            Group::spawn(&mut command, workspaces.path())
        });
        let (mut group, pipes) = started.map_err(|error| format!("{:?} cannot be started: {error}", argv[0]))?;
        let Pipes { stdin, stdout, stderr } = pipes;
        drop(stdin);
        tokio::spawn(show(stdout));
        tokio::spawn(show(stderr));
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted.map_err(|error| error.to_string()),
            status = group.ended() => Err(format!("exited before it connected to BUGLE_HOST: {}", words(status))),
            () = tokio::time::sleep(PATIENCE) => Err("did not connect to BUGLE_HOST in time".to_owned()),
        };
        let (from, to) = accepted?.0.into_split();
        let mut lines = Lines::new(from);
        let first = next(&mut lines).await?;
        let text = first.to_string();
        let line = Line::parse(text.as_bytes()).ok();
        let line = line.as_ref().map(|line| line.hello());
        let hello = match line {
            Some(Ok(hello)) if first["type"] == "hello" => hello,
            Some(Err(rejected)) if first["type"] == "hello" => return Err(rejected.error),
            _ => return Err(format!("the first message of the host is not hello: {first}")),
        };
        let missing: Vec<&str> = REQUIRED
            .into_iter()
            .filter(|command| !hello.commands.contains_key(*command))
            .collect();
        if !missing.is_empty() {
            return Err(format!("the host does not announce {}", missing.join(", ")));
        }
        let mut peer = Peer {
            lines,
            to,
            hello,
            jobs: 0,
        };
        let concurrency = peer.hello.concurrency;
        peer.send(json!({
            "type": "welcome", "protocol": 1, "host": "check", "process": 1, "worker": "check",
            "concurrency": concurrency,
        }))
        .await?;
        Ok((Host { group, socket }, peer))
    }

    async fn ended(&mut self) -> String {
        words(self.group.ended().await)
    }
}

fn words(status: io::Result<ExitStatus>) -> String {
    status.map_or_else(|error| error.to_string(), |status| status.to_string())
}

/// Print the output of the host, for its author.
async fn show(from: impl AsyncRead + Unpin) {
    each_line(from, |line| eprintln!("{line}")).await;
}

/// The connection to the host.
struct Peer {
    lines: Lines<OwnedReadHalf>,
    to: OwnedWriteHalf,
    hello: Hello,
    jobs: u64,
}

async fn next(lines: &mut Lines<OwnedReadHalf>) -> Result<Value, String> {
    let read = async {
        loop {
            if let Some(line) = lines.next().map_err(|rejected| rejected.error)? {
                let text = String::from_utf8_lossy(line).into_owned();
                Line::parse(line).map_err(|rejected| format!("{}: {}", rejected.error, cut(&text)))?;
                return serde_json::from_str(&text).map_err(|error| error.to_string());
            }
            match lines.more().await {
                Ok(true) => {}
                Ok(false) => return Err("the host has closed the connection".to_owned()),
                Err(error) => return Err(error.to_string()),
            }
        }
    };
    let seconds = PATIENCE.as_secs();
    tokio::time::timeout(PATIENCE, read)
        .await
        .unwrap_or_else(|_| Err(format!("no message for {seconds} seconds")))
}

impl Peer {
    async fn send(&mut self, message: Value) -> Result<(), String> {
        self.write(format!("{message}\n").as_bytes()).await
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        let written = tokio::time::timeout(PATIENCE, self.to.write_all(bytes)).await;
        match written {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(format!("the host cannot be written to: {error}")),
            Err(_) => Err("the host does not read".to_owned()),
        }
    }

    /// The next message that is not a log line, an unexpected progress report or an answer to a ping.
    async fn next(&mut self) -> Result<Value, String> {
        loop {
            let message = next(&mut self.lines).await?;
            if let Some(call) = message.get("call").filter(|call| call.is_string())
                && ["log", "progress"].contains(&message["type"].as_str().unwrap_or_default())
            {
                self.send(json!({"type": "reply", "call": call})).await?;
            }
            if message["type"] != "log" {
                return Ok(message);
            }
        }
    }

    fn job(&mut self, command: &str, payload: Value) -> Value {
        self.jobs += 1;
        json!({
            "type": "job", "id": self.jobs.to_string(), "claim": "1", "command": command, "payload": payload,
            "queue": "default", "attempt": 1, "max_attempts": 16, "timeout": 300.0,
            "deadline": "2100-01-01T00:00:00.000Z", "workdir": "/nonexistent",
            "worker_id": "1", "nonce": "00000000-0000-0000-0000-000000000000",
        })
    }

    async fn give(&mut self, command: &str, payload: Value) -> Result<Value, String> {
        let job = self.job(command, payload);
        self.send(job.clone()).await?;
        Ok(job)
    }

    /// The next message must have this type, be about this job and have these fields. It may have others.
    async fn expect(&mut self, kind: &str, job: &Value, fields: Value) -> Result<Value, String> {
        let message = self.next().await?;
        expect(&message, kind, job, &fields)?;
        Ok(message)
    }

    async fn reply(&mut self, to: &Value, value: Value) -> Result<(), String> {
        if !to["call"].is_string() {
            return Err(format!("a {} needs call, a string: {}", to["type"], show_value(to)));
        }
        self.send(json!({"type": "reply", "call": to["call"], "value": value}))
            .await
    }
}

fn expect(message: &Value, kind: &str, job: &Value, fields: &Value) -> Result<(), String> {
    let mut wanted = Map::from_iter([("type".to_owned(), json!(kind))]);
    if job.is_object() {
        wanted.insert("id".into(), job["id"].clone());
    }
    wanted.extend(fields.as_object().cloned().unwrap_or_default());
    let wrong = wanted
        .iter()
        .find(|(name, value)| !same(&message[name.as_str()], value));
    match wrong {
        Some((name, value)) => Err(format!(
            "{name} should be {} in {}",
            show_value(value),
            show_value(message)
        )),
        None if message["claim"].is_string() && job.is_object() && message["claim"] != job["claim"] => {
            Err(format!("claim should be {} in {}", job["claim"], show_value(message)))
        }
        None => Ok(()),
    }
}

/// Whether two values are equal, numbers by their value. Null is the same as a missing field.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(name, value)| b.get(name).is_some_and(|other| same(value, other)))
        }
        _ => a == b,
    }
}

fn show_value(value: &Value) -> String {
    cut(&value.to_string())
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(300) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

async fn answers_ping(peer: &mut Peer) -> Result<(), String> {
    peer.send(json!({"type": "ping"})).await?;
    peer.expect("pong", &Value::Null, json!({})).await.map(drop)
}

async fn echo(peer: &mut Peer, payload: Value) -> Result<(), String> {
    let job = peer.give("check.echo", payload.clone()).await?;
    peer.expect("done", &job, json!({"result": payload})).await.map(drop)
}

async fn echoes(peer: &mut Peer) -> Result<(), String> {
    echo(peer, json!({"to": "ann@example.org", "n": 1})).await
}

async fn keeps_values(peer: &mut Peer) -> Result<(), String> {
    for payload in [
        json!("plain"),
        json!("two\nlines\tand \"quotes\" \\ / \u{1}"),
        json!("Grüße, 日本語, \u{1f600}, \u{2028}"),
        json!([1, -1, 0.5, 1e10, 9_007_199_254_740_991_i64, true, false]),
        json!({"": {"a": [[], {}, [null]]}}),
        json!(0),
        json!(false),
        json!(""),
        json!([]),
        json!({}),
    ] {
        echo(peer, payload).await?;
    }
    let job = peer.job("check.echo", json!("😀"));
    let escaped = job.to_string().replace('😀', "\\ud83d\\ude00");
    peer.write(format!("{escaped}\n").as_bytes()).await?;
    peer.expect("done", &job, json!({"result": "😀"})).await.map(drop)
}

async fn reads_pieces(peer: &mut Peer) -> Result<(), String> {
    let job = peer.job("check.echo", json!("ü in pieces"));
    for piece in format!("{job}\n").as_bytes().chunks(7) {
        peer.write(piece).await?;
        tokio::task::yield_now().await;
    }
    peer.expect("done", &job, json!({"result": "ü in pieces"})).await?;
    let concurrency = peer.hello.concurrency.min(50);
    let jobs: Vec<Value> = (0..concurrency)
        .map(|number| peer.job("check.echo", json!(number)))
        .collect();
    let text: String = jobs.iter().map(|job| format!("{job}\n")).collect();
    peer.write(format!("{text}{{\"type\":\"ping\"}}\n").as_bytes()).await?;
    let mut missing: Vec<&Value> = jobs.iter().collect();
    let mut has_pong = false;
    while !missing.is_empty() || !has_pong {
        let message = peer.next().await?;
        if message["type"] == "pong" {
            has_pong = true;
            continue;
        }
        let Some(at) = missing.iter().position(|job| job["id"] == message["id"]) else {
            return Err(format!(
                "this is not about a job that the host has: {}",
                show_value(&message)
            ));
        };
        let job = missing.remove(at);
        expect(&message, "done", job, &json!({"result": job["payload"]}))?;
    }
    Ok(())
}

async fn ignores_news(peer: &mut Peer) -> Result<(), String> {
    peer.send(json!({"type": "check.news", "id": "x", "call": 7, "more": {"a": []}}))
        .await?;
    let mut job = peer.job("check.echo", json!(1));
    job["news"] = json!({"a": [1, null]});
    job["headers"] = Value::Null;
    peer.send(job.clone()).await?;
    // the host may reject the message as unknown
    let mut message = peer.next().await?;
    if message["type"] == "error" {
        message = peer.next().await?;
    }
    expect(&message, "done", &job, &json!({"result": 1}))
}

async fn survives_error(peer: &mut Peer) -> Result<(), String> {
    peer.send(json!({"type": "error", "code": "unknown_type", "error": "this is only a check"}))
        .await?;
    peer.send(json!({"type": "error", "code": "not_held", "error": "this is only a check", "id": "0"}))
        .await?;
    echo(peer, json!("after the error")).await
}

async fn reads_large(peer: &mut Peer) -> Result<(), String> {
    let payload = json!({"error": "large", "filler": "x".repeat(1024 * 1024)});
    let job = peer.give("check.fail", payload).await?;
    peer.expect("fail", &job, json!({"error": "large"})).await.map(drop)
}

/// The largest values that a worker sends. Some of them serde_json itself would reject.
async fn reads_extremes(peer: &mut Peer) -> Result<(), String> {
    let nested = |open: &str, close: &str, levels: usize| format!("{}1{}", open.repeat(levels), close.repeat(levels));
    // the payload itself counts as a level
    let levels = MOST_LEVELS - 1;
    for extreme in [
        nested("[", "]", levels),
        nested(r#"{"a":"#, "}", levels),
        "9".repeat(MOST_DIGITS),
    ] {
        let job = peer.job("check.fail", json!({"error": "extreme", "filler": "@extreme"}));
        let text = job.to_string().replace(r#""@extreme""#, &extreme);
        peer.write(format!("{text}\n").as_bytes()).await?;
        peer.expect("fail", &job, json!({"error": "extreme"})).await?;
    }
    Ok(())
}

async fn writes_large(peer: &mut Peer) -> Result<(), String> {
    echo(peer, json!("x".repeat(1_000_000))).await
}

async fn fails(peer: &mut Peer) -> Result<(), String> {
    for payload in [
        json!({"error": "no such address"}),
        json!({"error": "e", "code": "bad_address", "retryable": false}),
        json!({"error": "e", "retry_after": 2.5}),
    ] {
        let job = peer.give("check.fail", payload.clone()).await?;
        let message = peer.expect("fail", &job, payload).await?;
        let may_retry = message["retryable"] != json!(false);
        if may_retry != (job["payload"]["retryable"] != json!(false)) {
            return Err(format!("retryable is wrong in {}", show_value(&message)));
        }
    }
    Ok(())
}

async fn runs_many(peer: &mut Peer) -> Result<(), String> {
    let mut running = Vec::new();
    for _ in 0..peer.hello.concurrency.min(100) {
        running.push(peer.give("check.stop", json!({})).await?);
    }
    // the host is full, and still answers
    answers_ping(peer).await?;
    while let Some(job) = running.pop() {
        cancel(peer, &job, "cancelled").await?;
        if !running.is_empty() {
            echo(peer, json!("beside the others")).await?;
        }
    }
    Ok(())
}

async fn cancel(peer: &mut Peer, job: &Value, reason: &str) -> Result<(), String> {
    peer.send(json!({"type": "cancel", "id": job["id"], "claim": job["claim"], "reason": reason}))
        .await?;
    peer.send(json!({"type": "ping"})).await?;
    let (mut has_outcome, mut has_pong) = (false, false);
    while !has_outcome || !has_pong {
        let message = peer.next().await?;
        match message["type"].as_str().unwrap_or_default() {
            "pong" => has_pong = true,
            "done" | "fail" | "cancelled" | "snooze" if message["id"] == job["id"] => has_outcome = true,
            _ => {
                return Err(format!(
                    "expected the outcome of job {}, got {}",
                    job["id"],
                    show_value(&message)
                ));
            }
        }
    }
    Ok(())
}

async fn stops(peer: &mut Peer) -> Result<(), String> {
    for reason in ["timeout", "cancelled", "lost", "shutdown", "check.news"] {
        let job = peer.give("check.stop", json!({})).await?;
        cancel(peer, &job, reason).await?;
    }
    echo(peer, json!("afterwards")).await
}

async fn ignores_cancel(peer: &mut Peer) -> Result<(), String> {
    peer.send(json!({"type": "cancel", "id": "999999", "claim": "1", "reason": "cancelled"}))
        .await?;
    echo(peer, json!("afterwards")).await
}

async fn runs_again(peer: &mut Peer) -> Result<(), String> {
    let mut job = peer.give("check.echo", json!("first")).await?;
    peer.expect("done", &job, json!({"result": "first"})).await?;
    (job["claim"], job["attempt"], job["payload"]) = (json!("2"), json!(2), json!("second"));
    peer.send(job.clone()).await?;
    let message = peer.expect("done", &job, json!({"result": "second"})).await?;
    match message["claim"].is_string() {
        true => Ok(()),
        false => Err("an outcome should have claim, that of the job".into()),
    }
}

async fn repeats(peer: &mut Peer, kind: &str, payload: Value) -> Result<(), String> {
    let job = peer.give(&format!("check.{kind}"), payload.clone()).await?;
    peer.expect(kind, &job, payload).await.map(drop)
}

async fn reports_progress(peer: &mut Peer) -> Result<(), String> {
    let payload = json!({"percent": 50, "note": "half"});
    let job = peer.give("check.progress", payload.clone()).await?;
    peer.expect("progress", &job, payload).await?;
    peer.expect("done", &job, json!({})).await.map(drop)
}

async fn makes_step(peer: &mut Peer) -> Result<(), String> {
    for known in [false, true] {
        let job = peer.give("check.step", json!({"output": 17})).await?;
        let get = peer.expect("step.get", &job, json!({"name": "check"})).await?;
        if known {
            peer.reply(&get, json!({"done": true, "output": "stored"})).await?;
            peer.expect("done", &job, json!({"result": "stored"})).await?;
        } else {
            peer.reply(&get, json!({"done": false})).await?;
            let put = peer
                .expect("step.put", &job, json!({"name": "check", "output": 17}))
                .await?;
            peer.reply(&put, Value::Null).await?;
            peer.expect("done", &job, json!({"result": 17})).await?;
        }
    }
    Ok(())
}

async fn spawns(peer: &mut Peer) -> Result<(), String> {
    let jobs = json!([{"command": "check.echo", "payload": 1}, {"command": "check.echo", "payload": 2}]);
    let job = peer.give("check.spawn", jobs.clone()).await?;
    let children = peer.expect("children", &job, json!({})).await?;
    peer.reply(&children, json!([])).await?;
    let spawn = peer.expect("spawn", &job, json!({"jobs": jobs})).await?;
    peer.reply(&spawn, Value::Null).await?;
    peer.expect("settled", &job, json!({})).await?;
    let job = peer.give("check.spawn", jobs).await?;
    let children = peer.expect("children", &job, json!({})).await?;
    let child = |id: &str, result: i32| json!({"id": id, "state": "completed", "result": result});
    peer.reply(&children, json!([child("11", 1), child("12", 2)])).await?;
    peer.expect("done", &job, json!({"result": [1, 2]})).await.map(drop)
}

async fn enqueues(peer: &mut Peer) -> Result<(), String> {
    let jobs = json!([{"command": "check.echo", "payload": {"a": 1}, "queue": "mail", "priority": -10}]);
    let job = peer.give("check.enqueue", jobs.clone()).await?;
    let call = peer.expect("enqueue", &Value::Null, json!({"jobs": jobs})).await?;
    peer.reply(&call, json!(["4711"])).await?;
    peer.expect("done", &job, json!({"result": ["4711"]})).await?;
    let job = peer.give("check.enqueue", jobs).await?;
    let call = peer.next().await?;
    peer.send(json!({"type": "reply", "call": call["call"], "error": "rejected", "code": "bad_call"}))
        .await?;
    peer.expect("fail", &job, json!({})).await.map(drop)
}

async fn answers_batch(peer: &mut Peer) -> Result<(), String> {
    gives_batch(peer, "check.batch", 3, |message, job| {
        expect(message, "done", job, &json!({"result": job["payload"]}))
    })
    .await
}

async fn fails_batch(peer: &mut Peer) -> Result<(), String> {
    for count in [3, 1] {
        gives_batch(peer, "check.batch_fail", count, |message, job| {
            expect(message, "fail", job, &json!({"alone": true}))
        })
        .await?;
    }
    Ok(())
}

/// Send this number of jobs in one call, and check the outcome of each.
async fn gives_batch(
    peer: &mut Peer,
    command: &str,
    count: usize,
    check: impl Fn(&Value, &Value) -> Result<(), String>,
) -> Result<(), String> {
    let jobs: Vec<Value> = (0..count)
        .map(|number| {
            let mut job = peer.job(command, json!(number));
            job.as_object_mut().expect("an object").remove("type");
            job
        })
        .collect();
    peer.send(json!({"type": "jobs", "command": command, "jobs": jobs}))
        .await?;
    let mut missing: Vec<&Value> = jobs.iter().collect();
    while !missing.is_empty() {
        let message = peer.next().await?;
        let Some(at) = missing.iter().position(|job| job["id"] == message["id"]) else {
            return Err(format!(
                "this is not about a job of the batch: {}",
                show_value(&message)
            ));
        };
        check(&message, missing.remove(at))?;
    }
    Ok(())
}

async fn drains(peer: &mut Peer) -> Result<(), String> {
    let job = peer.give("check.stop", json!({})).await?;
    peer.send(json!({"type": "drain"})).await?;
    answers_ping(peer).await?;
    cancel(peer, &job, "shutdown").await?;
    peer.to.shutdown().await.map_err(|error| error.to_string())
}
