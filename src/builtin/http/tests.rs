use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::super::testing::{TestJob, completed, failed};
use super::*;
use crate::config::{Action, Config};

/// A server that sends one response, and the request it received.
async fn server(answer: impl Into<Vec<u8>>) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let answer = answer.into();
    let request = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !is_whole(&request) {
            assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0);
        }
        let _ = stream.write_all(&answer).await;
        String::from_utf8(request).unwrap()
    });
    (address, request)
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head
        .split("content-length: ")
        .nth(1)
        .and_then(|rest| rest.lines().next());
    body.len() >= length.map_or(0, |length| length.parse().unwrap())
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n{body}",
        body.len()
    )
}

fn http(toml: &str) -> Result<Http> {
    let config = Config::from_toml(&format!("[commands.x]\nhttp = {{ {toml} }}")).unwrap();
    let Action::Http(http) = &config.commands["x"].action else {
        panic!("no http")
    };
    let environment = |name: &str| (name == "TOKEN").then(|| "Bearer hunter2".into());
    Http::new(http, Duration::from_secs(60), &mut Clients::default(), &environment)
}

async fn run(http: Http, payload: &str) -> Outcome {
    http.execute(TestJob::new(payload).context.clone()).await
}

async fn answered(answer: String) -> Outcome {
    let (address, _request) = server(answer).await;
    run(http(&format!("url = 'http://{address}/hook'")).unwrap(), "{}").await
}

#[tokio::test]
async fn the_payload_is_the_body_and_the_answer_is_the_result() {
    let (address, request) = server(answer(
        "200 OK",
        "content-type: application/json; charset=utf-8\r\n",
        "{\"b\":1}",
    ))
    .await;
    let hook = format!("url = 'http://{address}/hook?a=b', headers = {{ authorization = 'env:TOKEN' }}");

    let outcome = run(http(&hook).unwrap(), r#"{"a":"ü"}"#).await;

    assert_eq!(completed(outcome).unwrap(), "{\"b\":1}");
    let request = request.await.unwrap();
    assert!(request.starts_with("POST /hook?a=b HTTP/1.1\r\n"), "{request}");
    assert!(request.ends_with("\r\n\r\n{\"a\":\"ü\"}"), "{request}");
    for header in [
        "content-type: application/json",
        "authorization: Bearer hunter2",
        "bugle-job-id: 17",
        "bugle-attempt: 3",
        "idempotency-key: bugle-17",
        "user-agent: bugle/",
    ] {
        assert!(request.contains(&format!("\r\n{header}")), "{header} in {request}");
    }
}

#[tokio::test]
async fn the_file_has_the_last_word_on_headers_and_method() {
    let (address, request) = server(answer("200 OK", "", "")).await;
    let hook = format!(
        "url = 'http://{address}/', method = 'put', headers = {{ content-type = 'text/plain', idempotency-key = \
         'mine' }}"
    );

    completed(run(http(&hook).unwrap(), "{}").await);

    let request = request.await.unwrap();
    assert!(request.starts_with("PUT / "), "{request}");
    assert_eq!(request.matches("content-type: ").count(), 1, "{request}");
    assert!(
        request.contains("content-type: text/plain") && request.contains("idempotency-key: mine"),
        "{request}"
    );
}

/// What the server reports with the header and this body.
async fn reported(status: &str, kind: &str, body: &str) -> Outcome {
    answered(answer(status, &format!("bugle-outcome: {kind}\r\n"), body)).await
}

#[tokio::test]
async fn a_server_can_report_every_outcome() {
    let snoozed = reported("200 OK", "snooze", r#"{"delay": 90}"#).await;
    let waiting = reported("202 Accepted", "wait", r#"{"token": "t-1", "at_most": 3600}"#).await;
    let skipped = reported("200 OK", "skip", r#"{"reason": "nothing to do"}"#).await;
    let cancelled = reported("200 OK", "cancelled", r#"{"reason": "no such order"}"#).await;
    let details = r#"{"error": "rate limited", "code": "busy", "retry_after": 30}"#;
    let busy = failed(reported("200 OK", "fail", details).await);
    let final_one = failed(
        reported(
            "503 Service Unavailable",
            "fail",
            r#"{"error": "no", "retryable": false}"#,
        )
        .await,
    );
    let done = reported("200 OK", "done", r#"{"result": {"sent": true}}"#).await;
    let bare = reported("204 No Content", "done", "").await;

    assert!(
        matches!(snoozed, Outcome::Snooze(delay) if delay == Duration::from_secs(90)),
        "{snoozed:?}"
    );
    let Outcome::Wait { token, at_most } = waiting else {
        panic!("{waiting:?}")
    };
    assert_eq!(
        (token.as_deref(), at_most),
        (Some("t-1"), Some(Duration::from_secs(3600)))
    );
    assert!(
        matches!(&skipped, Outcome::Skip(reason) if reason == "nothing to do"),
        "{skipped:?}"
    );
    assert!(
        matches!(&cancelled, Outcome::Cancelled(reason) if reason == "no such order"),
        "{cancelled:?}"
    );
    assert_eq!(
        (busy.message.as_str(), busy.code.as_deref()),
        ("rate limited", Some("busy"))
    );
    assert_eq!(
        (busy.retryable, busy.retry_after),
        (true, Some(Duration::from_secs(30)))
    );
    assert!(!final_one.retryable, "the header counts, not the status");
    assert_eq!(completed(done).as_deref(), Some(r#"{"sent": true}"#));
    assert_eq!(completed(bare), None);
}

#[tokio::test]
async fn an_outcome_that_is_not_valid_fails_the_job_and_says_what_is_wrong() {
    for (kind, body, why) in [
        ("settled", "{}", "there is no such outcome"),
        ("snoozed", "{}", "there is no such outcome"),
        ("snooze", "", "delay is missing"),
        ("snooze", r#"{"delay": "soon"}"#, "delay must be a number of seconds"),
        ("fail", "{}", "error is missing"),
        ("wait", "[1]", "its body is not a JSON object"),
        ("done", r#"{"result": "#, "its body is not a JSON object"),
        ("skip", r#"{"type": "done"}"#, "its body is not a JSON object"),
    ] {
        let failure = failed(reported("200 OK", kind, body).await);

        assert!(failure.message.contains(why), "{kind} {body}: {}", failure.message);
        assert_eq!(
            (failure.code.as_deref(), failure.retryable),
            (Some("bad_result"), false)
        );
    }
}

#[tokio::test]
async fn an_answer_that_cannot_be_a_result_is_success_without_one() {
    let json = "content-type: application/json\r\n";
    let large = format!("\"{}\"", "x".repeat(MOST_RESULT));
    for answer in [
        answer("204 No Content", "", ""),
        answer("200 OK", "content-type: text/html\r\n", "<html></html>"),
        answer("200 OK", "", "thanks"),
        answer("200 OK", json, "not json"),
        answer("200 OK", json, "\"a\\u0000\""),
        answer("200 OK", json, "null"),
        answer("200 OK", json, &large),
    ] {
        assert_eq!(completed(answered(answer).await), None);
    }
}

#[tokio::test]
async fn an_answer_that_is_json_is_the_result_whatever_its_content_type() {
    for kind in [
        "",
        "content-type: text/plain\r\n",
        "content-type: application/octet-stream\r\n",
    ] {
        let outcome = answered(answer("200 OK", kind, " {\"a\": 1} ")).await;

        assert_eq!(completed(outcome).as_deref(), Some("{\"a\": 1}"), "{kind:?}");
    }
}

#[tokio::test]
async fn a_stream_that_is_not_json_is_not_read_to_its_end() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hook = http(&format!("url = 'http://{}/'", listener.local_addr().unwrap())).unwrap();
    let attempt = tokio::spawn(async move { run(hook, "{}").await });
    let (mut stream, _) = listener.accept().await.unwrap();

    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: and so on\n";
    stream.write_all(head.as_bytes()).await.unwrap();

    // the connection stays open all the time
    let outcome = tokio::time::timeout(Duration::from_secs(60), attempt).await;
    assert_eq!(completed(outcome.expect("it ends").unwrap()), None);
}

#[tokio::test]
async fn the_status_says_whether_to_try_again() {
    for (status, retryable) in [
        (400, false),
        (401, false),
        (404, false),
        (409, false),
        (410, false),
        (422, false),
        (408, true),
        (425, true),
        (429, true),
        (500, true),
        (502, true),
        (503, true),
        (504, true),
    ] {
        let failure = failed(answered(answer(&format!("{status} Reason"), "", "because")).await);

        assert_eq!(failure.retryable, retryable, "{status}");
        assert_eq!(failure.code.unwrap(), format!("http_{status}"));
        assert!(
            failure
                .message
                .starts_with(&format!("the server responded with {status}")),
            "{}",
            failure.message
        );
        assert!(failure.message.ends_with("\nbecause"), "{}", failure.message);
        assert_eq!(failure.retry_after, None);
    }
}

#[tokio::test]
async fn a_server_may_say_when_to_come_back() {
    let wait = async |status: &str, header: &str| {
        let headers = format!("retry-after: {header}\r\n");
        failed(answered(answer(status, &headers, "")).await).retry_after
    };

    assert_eq!(wait("503 Busy", "120").await, Some(Duration::from_secs(120)));
    assert_eq!(wait("429 Slow", "999999999").await, Some(Duration::from_secs(86_400)));
    assert_eq!(
        wait("429 Slow", "Sun, 06 Nov 1994 08:49:37 GMT").await,
        Some(Duration::ZERO)
    );
    assert_eq!(wait("429 Slow", "whenever").await, None);
    assert_eq!(wait("404 Never", "120").await, None);
}

#[tokio::test]
async fn a_redirection_is_not_followed_but_told() {
    let headers = "location: https://user:pass@example.org/new?token=hunter2#x\r\n";

    let failure = failed(answered(answer("307 Temporary Redirect", headers, "")).await);

    assert_eq!(failure.code.as_deref(), Some("http_307"));
    assert!(!failure.retryable);
    assert!(
        failure.message.contains("location is https://example.org/new\n"),
        "{}",
        failure.message
    );
    assert!(!failure.message.contains("hunter2"));
}

#[tokio::test]
async fn of_a_long_refusal_the_beginning_is_kept_as_text() {
    let message = failed(answered(answer("500 Oops", "", &"\0x".repeat(1_000_000))).await).message;

    assert!(
        message.len() < 1100 && message.ends_with("xxx") && !message.contains('\0'),
        "{message}"
    );
}

#[tokio::test]
async fn no_answer_may_pass() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);

    let failure = failed(run(http(&format!("url = 'http://{address}/?token=hunter2'")).unwrap(), "{}").await);

    assert_eq!(failure.code.as_deref(), Some("connect"));
    assert!(failure.retryable);
    assert!(!failure.message.contains("hunter2"), "{}", failure.message);
    let cut = failed(
        answered("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{".into()).await,
    );
    assert_eq!((cut.code.as_deref(), cut.retryable), (Some("network"), true));
}

#[tokio::test]
async fn a_request_under_way_is_given_up_when_told_to_stop() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hook = http(&format!("url = 'http://{}/'", listener.local_addr().unwrap())).unwrap();
    let job = TestJob::new("{}");
    let attempt = tokio::spawn(hook.execute(job.context.clone()));
    let _never_answered = listener.accept().await.unwrap();

    job.context.cancellation().cancel();

    assert_eq!(failed(attempt.await.unwrap()).code.as_deref(), Some("stopped"));
}

#[tokio::test]
async fn what_cannot_be_sent_is_refused_at_the_start_without_showing_it() {
    for (toml, part) in [
        ("url = 'ftp://example.org/'", "http:// or https://"),
        ("url = 'hunter2'", "url is invalid"),
        ("url = 'env:MISSING'", "\"MISSING\" is not set"),
        (
            "url = 'http://example.org', headers = { a = 'env:MISSING' }",
            "header \"a\": the environment variable \"MISSING\"",
        ),
        (
            "url = 'http://example.org', headers = { 'a b' = 'c' }",
            "invalid header name",
        ),
        (
            "url = 'http://example.org', headers = { a = \"hunter2\\n\\u0001\" }",
            "invalid characters",
        ),
        (
            "url = 'http://example.org', method = 'a b'",
            "\"a b\" is not an HTTP method",
        ),
    ] {
        let error = http(toml).err().expect(toml).to_string();
        assert!(
            error.contains(part) && !error.contains("hunter2"),
            "{toml} gave {error}"
        );
    }
}

#[test]
fn https_works_with_the_certificates_of_the_system() {
    http("url = 'https://example.org/hook'").unwrap();
}
