//! Spans of jobs reach a collector. Runs with the feature: `bin/test --quick -- --features otlp --test otlp`.
#![cfg(feature = "otlp")]

mod common;

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};

use common::poll::eventually_blocking;
use common::{BUGLE, DEADLINE, Database, Folder, query_value, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

const WORKER: &str = r#"
[queues]
mail = 2

[commands.tell]
program = ["sh", "-c", "printf '\"%s\"' \"$TRACEPARENT\""]

[commands.break]
program = ["sh", "-c", "echo a secret >&2; exit 7"]
"#;

#[tokio::test(flavor = "multi_thread")]
async fn each_attempt_is_a_span_that_is_linked_to_the_one_that_enqueued_it() {
    let mut collector = Collector::start().await;
    let database = Database::new().await;
    let folder = Folder::new();
    let owner = database.owner().await;
    let worker = Worker::start(&database, &folder, &collector, &[("OTEL_SERVICE_NAME", "shop-worker")]);

    enqueue(&owner, "tell").await;
    enqueue(&owner, "break").await;
    let told = collector.span("tell").await;
    let broken = collector.span("break").await;

    assert_eq!(told.name, "process mail");
    assert_eq!(told.kind, 5, "a consumer");
    assert_eq!(told.service, "shop-worker");
    for (name, value) in [
        ("messaging.system", "bugle"),
        ("messaging.operation.type", "process"),
        ("messaging.operation.name", "process"),
        ("messaging.destination.name", "mail"),
        ("messaging.message.id", "1"),
        ("messaging.client.id", "1"),
        ("messaging.bugle.attempt", "1"),
        ("messaging.bugle.claim", "1"),
        ("messaging.bugle.outcome", "completed"),
    ] {
        assert_eq!(
            told.attributes.get(name).map(String::as_str),
            Some(value),
            "{name}: {told:?}"
        );
    }
    assert!(!told.attributes.contains_key("traceparent"), "{told:?}");
    assert_eq!(told.links, [(TRACE.to_string(), SPAN.to_string())]);
    assert!(told.trace != TRACE && told.parent.is_empty(), "{told:?}");
    assert_eq!(told.status, 0);
    // the program goes on from this span
    wait_until(
        &owner,
        "select exists (select from bugle.jobs where command = 'tell' and state = 'completed')",
    )
    .await;
    let passed_on: String = query_value(&owner, "select result#>>'{}' from bugle.jobs where command = 'tell'").await;
    assert_eq!(passed_on, format!("00-{}-{}-01", told.trace, told.span));
    // a failure is told by its code; what the program said stays here
    assert_eq!(broken.status, 2, "an error");
    assert_eq!(broken.attributes["error.type"], "exit_7");
    assert_eq!(broken.attributes["messaging.bugle.outcome"], "failed");
    assert!(!format!("{broken:?}").contains("secret"));
    worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn by_choice_it_is_part_of_the_trace_it_was_enqueued_in_whatever_is_logged() {
    let mut collector = Collector::start().await;
    let database = Database::new().await;
    let folder = Folder::new();
    let owner = database.owner().await;
    let choice = [
        ("BUGLE_TRACE", "parent"),
        ("BUGLE_LOG", "error"),
        ("OTEL_BSP_SCHEDULE_DELAY", "3600000"),
    ];
    let worker = Worker::start(&database, &folder, &collector, &choice);

    enqueue(&owner, "tell").await;
    wait_until(
        &owner,
        "select exists (select from bugle.jobs where state = 'completed')",
    )
    .await;
    // what was not sent yet is sent at the end
    worker.stop();
    let told = collector.span("tell").await;

    assert_eq!((told.trace.as_str(), told.parent.as_str()), (TRACE, SPAN));
    assert!(told.links.is_empty());
    assert_eq!(told.service, "bugle");
}

#[test]
fn what_cannot_be_done_is_refused_at_the_start() {
    for (name, value, said) in [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "otlp or none"),
        ("BUGLE_TRACE", "child", "link or parent"),
    ] {
        let worker = Command::new(BUGLE)
            .arg("worker")
            .env("DATABASE_URL", "host=/nowhere")
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
            .env(name, value)
            .output()
            .expect("runs");

        let errors = String::from_utf8_lossy(&worker.stderr);
        assert_eq!(worker.status.code(), Some(1), "{errors}");
        assert!(errors.contains(said), "{name}={value}: {errors}");
    }
}

async fn enqueue(owner: &tokio_postgres::Client, command: &str) {
    let headers = serde_json::json!({ "traceparent": format!("00-{TRACE}-{SPAN}-01") });
    owner
        .execute(
            "insert into bugle.jobs (command, queue, headers, max_attempts) values ($1, 'mail', $2, 1)",
            &[&command, &headers],
        )
        .await
        .expect("enqueued");
}

/// `bugle worker`, built with the feature.
struct Worker(Child);

impl Worker {
    fn start(database: &Database, folder: &Folder, collector: &Collector, environment: &[(&str, &str)]) -> Worker {
        let mut command = Command::new(BUGLE);
        command
            .args(["worker", "--config"])
            .arg(folder.write("worker.toml", WORKER))
            .arg("--workdir")
            .arg(folder.join("work"))
            .env("BUGLE_DATABASE_URL", database.url("worker"))
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.address)
            .env("OTEL_BSP_SCHEDULE_DELAY", "20")
            .envs(environment.iter().copied())
            .stdin(Stdio::null());
        Worker(command.spawn().expect("it starts"))
    }

    fn stop(mut self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).expect("it runs");
        eventually_blocking("its end", || self.0.try_wait().expect("a status").is_some());
        assert_eq!(self.0.wait().expect("a status").code(), Some(0));
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Takes what exporters send: HTTP on a port of this machine, spans as protobuf.
struct Collector {
    address: String,
    requests: mpsc::UnboundedReceiver<Vec<u8>>,
    spans: Vec<Span>,
}

impl Collector {
    async fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let (sender, requests) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("a client");
                tokio::spawn(answer(stream, sender.clone()));
            }
        });
        Collector {
            address,
            requests,
            spans: Vec::new(),
        }
    }

    /// The span of the attempt of a command.
    async fn span(&mut self, command: &str) -> Span {
        loop {
            let mut known = self.spans.iter();
            if let Some(span) = known.find(|span| {
                span.attributes
                    .get("messaging.bugle.command")
                    .is_some_and(|name| name == command)
            }) {
                return span.clone();
            }
            let request = tokio::time::timeout(DEADLINE, self.requests.recv()).await;
            let request = request.unwrap_or_else(|_| panic!("no span of {command}: {:?}", self.spans));
            self.spans.extend(spans(&request.expect("a request")));
        }
    }
}

async fn answer(mut stream: tokio::net::TcpStream, requests: mpsc::UnboundedSender<Vec<u8>>) {
    let mut read = Vec::new();
    loop {
        let head = loop {
            if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
                break end;
            }
            if stream.read_buf(&mut read).await.unwrap_or(0) == 0 {
                return;
            }
        };
        let text = String::from_utf8_lossy(&read[..head]).to_lowercase();
        assert!(text.starts_with("post /v1/traces http/1.1"), "{text}");
        assert!(text.contains("content-type: application/x-protobuf"), "{text}");
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.expect("a length").parse().expect("a number");
        while read.len() < head + 4 + length {
            assert!(stream.read_buf(&mut read).await.unwrap_or(0) > 0, "it hung up");
        }
        let _ = requests.send(read[head + 4..head + 4 + length].to_vec());
        read.drain(..head + 4 + length);
        let said = "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(said.as_bytes()).await.expect("answered");
    }
}

/// What of a span is looked at.
#[derive(Debug, Clone, Default)]
struct Span {
    service: String,
    trace: String,
    span: String,
    parent: String,
    name: String,
    kind: u64,
    attributes: BTreeMap<String, String>,
    links: Vec<(String, String)>,
    status: u64,
}

/// The spans of an ExportTraceServiceRequest. The numbers are those of opentelemetry/proto/trace/v1/trace.proto.
fn spans(request: &[u8]) -> Vec<Span> {
    let mut found = Vec::new();
    for resource_spans in inside(request, 1) {
        let resource = inside(resource_spans, 1).next().unwrap_or_default();
        let service = attributes(resource, 1).remove("service.name").unwrap_or_default();
        for scope_spans in inside(resource_spans, 2) {
            found.extend(inside(scope_spans, 2).map(|span| {
                Span {
                    service: service.clone(),
                    trace: hex(inside(span, 1).next().unwrap_or_default()),
                    span: hex(inside(span, 2).next().unwrap_or_default()),
                    parent: hex(inside(span, 4).next().unwrap_or_default()),
                    name: text(inside(span, 5).next().unwrap_or_default()),
                    kind: number(span, 6),
                    attributes: attributes(span, 9),
                    links: inside(span, 13)
                        .map(|link| {
                            (
                                hex(inside(link, 1).next().unwrap()),
                                hex(inside(link, 2).next().unwrap()),
                            )
                        })
                        .collect(),
                    status: number(inside(span, 15).next().unwrap_or_default(), 3),
                }
            }));
        }
    }
    found
}

fn attributes(message: &[u8], field: u64) -> BTreeMap<String, String> {
    let one = |pair: &[u8]| {
        let key = text(inside(pair, 1).next().unwrap_or_default());
        let value = inside(pair, 2).next().unwrap_or_default();
        let value = match inside(value, 1).next() {
            Some(string) => text(string),
            None => number(value, 3).to_string(),
        };
        (key, value)
    };
    inside(message, field).map(one).collect()
}

/// The messages, texts or bytes that a message has under this number.
fn inside(message: &[u8], field: u64) -> impl Iterator<Item = &[u8]> {
    fields(message).filter_map(move |(number, value)| match value {
        Value::Bytes(bytes) if number == field => Some(bytes),
        _ => None,
    })
}

fn number(message: &[u8], field: u64) -> u64 {
    let found = fields(message).find_map(|(number, value)| match value {
        Value::Number(value) if number == field => Some(value),
        _ => None,
    });
    found.unwrap_or_default()
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a protobuf message, one by one.
fn fields(mut rest: &[u8]) -> impl Iterator<Item = (u64, Value<'_>)> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let tag = varint(&mut rest);
        let value = match tag & 7 {
            0 => Value::Number(varint(&mut rest)),
            2 => {
                let length = varint(&mut rest) as usize;
                Value::Bytes(rest.split_off(..length).expect("as long as it says"))
            }
            fixed @ (1 | 5) => Value::Bytes(rest.split_off(..if fixed == 1 { 8 } else { 4 }).expect("complete")),
            other => panic!("wire type {other}"),
        };
        Some((tag >> 3, value))
    })
}

fn varint(rest: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = *rest.split_off_first().expect("more");
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
