//! Commands executed by an HTTP request: the payload is the request body, the response is the result.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION, RETRY_AFTER};
use reqwest::{Client, Method, Response, StatusCode, Url};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{MOST_RESULT, readable, result_from, retry_after, stopped};
use crate::config::{Environment, HttpConfig};
use crate::error::{Error, Result};
use crate::execute::context::Context;
use crate::execute::executor::{Execution, Executor, Failure, Outcome};
use crate::execute::shortage::Shortage;
use crate::host::message::Line;

/// The response header with which a server reports an outcome, and those it can report.
const OUTCOME: &str = "bugle-outcome";
const OUTCOMES: [&str; 6] = ["done", "fail", "snooze", "wait", "skip", "cancelled"];
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How much of the body of an error response is kept.
const MOST_REASON: usize = 1024;
/// How long to wait for the body of an error response; its status is already known.
const REASON_TIMEOUT: Duration = Duration::from_secs(5);

/// What sends the request of a command.
///
/// # Errors
/// If a variable it refers to is not set, or an address, a method or a header is none.
pub fn executor(
    config: &HttpConfig,
    timeout: Duration,
    clients: &mut Clients,
    environment: Environment,
) -> Result<Arc<dyn Executor>> {
    Ok(Arc::new(Http::new(config, timeout, clients, environment)?))
}

/// Sends a request.
pub struct Http {
    setup: Arc<Setup>,
    timeout: Duration,
}

struct Setup {
    client: Client,
    method: Method,
    url: Url,
    headers: HeaderMap,
}

impl Http {
    pub fn new(
        config: &HttpConfig,
        timeout: Duration,
        clients: &mut Clients,
        environment: Environment,
    ) -> Result<Http> {
        let url = url(config, environment)?;
        let setup = Setup {
            client: clients.client_for(&url)?,
            method: method(&config.method)?,
            headers: headers(config, environment)?,
            url,
        };
        Ok(Http {
            setup: Arc::new(setup),
            timeout,
        })
    }
}

impl Executor for Http {
    fn execute(&self, context: Context) -> Execution {
        let setup = self.setup.clone();
        Box::pin(async move {
            let sent = tokio::select! {
                sent = setup.send(&context) => sent,
                () = context.cancellation().cancelled() => Err(stopped()),
            };
            sent.unwrap_or_else(Outcome::Fail)
        })
    }

    fn default_timeout(&self) -> Option<Duration> {
        Some(self.timeout)
    }
}

/// Clients keep connections open, so all commands share them. The client for plain HTTP needs no certificates, which
/// small images do not have.
#[derive(Default)]
pub struct Clients {
    plain: Option<Client>,
    secure: Option<Client>,
}

impl Clients {
    fn client_for(&mut self, url: &Url) -> Result<Client> {
        let secure = url.scheme() == "https";
        let client = if secure { &mut self.secure } else { &mut self.plain };
        match client {
            Some(client) => Ok(client.clone()),
            None => Ok(client.insert(new_client(secure)?).clone()),
        }
    }
}

fn new_client(secure: bool) -> Result<Client> {
    // another part of the program may have installed a provider already
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder()
        .user_agent(concat!("bugle/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none());
    if !secure {
        builder = builder.tls_certs_only([]);
    }
    if cfg!(test) {
        builder = builder.no_proxy();
    }
    builder.build().map_err(|error| {
        Error::new(Failure::from(error).message)
            .with_hint("Check that CA certificates are installed (Debian: ca-certificates).")
    })
}

/// The URL may contain a token, so errors do not show it.
fn url(config: &HttpConfig, environment: Environment) -> Result<Url> {
    let text = config
        .url
        .resolve(environment)
        .map_err(|error| error.in_context("url"))?;
    let url = Url::parse(&text).map_err(|error| Error::new(format!("url is invalid: {error}")))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        _ => Err(Error::new("url must begin with http:// or https://")),
    }
}

fn method(name: &str) -> Result<Method> {
    Method::from_bytes(name.to_uppercase().as_bytes())
        .map_err(|_| Error::new(format!("{name:?} is not an HTTP method")))
}

fn headers(config: &HttpConfig, environment: Environment) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for (name, value) in &config.headers {
        let refused = |what: &str| Error::new(format!("header {name:?}: {what}"));
        let value = value
            .resolve(environment)
            .map_err(|error| error.in_context(&format!("header {name:?}")))?;
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| refused("invalid header name"))?;
        let mut value =
            HeaderValue::from_str(value.trim()).map_err(|_| refused("its value contains invalid characters"))?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

/// Pass the trace context on to the receiver.
fn trace(context: &Context) -> HeaderMap {
    let parent = crate::observe::trace::onward(context).and_then(|text| text.parse().ok());
    parent
        .map(|value| (HeaderName::from_static(crate::observe::trace::HEADER), value))
        .into_iter()
        .collect()
}

/// The same for every attempt and different for each step of a chain, so that the server can recognize repetitions.
fn idempotency_key(context: &Context) -> String {
    match context.position() {
        None => format!("bugle-{}", context.id()),
        Some(at) => format!("bugle-{}-{}", context.id(), at.step),
    }
}

impl Setup {
    async fn send(&self, context: &Context) -> Result<Outcome, Failure> {
        let job = context.job();
        let response = self
            .client
            .request(self.method.clone(), self.url.clone())
            .header("bugle-job-id", job.held.id)
            .header("bugle-attempt", job.attempt)
            .header("idempotency-key", idempotency_key(context))
            .headers(trace(context))
            // headers of the file replace those with the same name
            .headers(self.headers.clone())
            .body(job.payload.get().to_string())
            .send()
            .await
            .map_err(|error| {
                context.note_shortage(Shortage::in_causes(&error));
                broken(error)
            })?;
        if let Some(kind) = response.headers().get(OUTCOME) {
            let kind = String::from_utf8_lossy(kind.as_bytes()).trim().to_owned();
            return reported(&kind, response, context).await;
        }
        if response.status().is_success() {
            return result(response, context).await.map(Outcome::complete);
        }
        Err(refusal(response).await)
    }
}

/// How far the server is: in the body of any outcome. It is shown while the job waits or is snoozed.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Progress {
    progress: Option<f32>,
    note: Option<String>,
}

/// The outcome that the server reports itself: the header names it, the body has its details, as the messages of hosts.
async fn reported(kind: &str, mut response: Response, context: &Context) -> Result<Outcome, Failure> {
    let wrong = |why: String| {
        let message = format!(
            "the server responded with {OUTCOME}: {kind}, which is not valid: {why}\n\
             hint: It is one of {}; the body is a JSON object with its details, or empty.",
            OUTCOMES.join(", ")
        );
        Failure::new(message).code("bad_result").not_retryable()
    };
    if !OUTCOMES.contains(&kind) {
        return Err(wrong("there is no such outcome".to_owned()));
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(broken)? {
        body.extend_from_slice(&chunk);
        if body.len() > MOST_RESULT {
            return Err(wrong("its body is too large".to_owned()));
        }
    }
    let mut line = format!("{{\"type\":\"{kind}\"").into_bytes();
    match body.trim_ascii() {
        b"" | b"{}" => line.push(b'}'),
        [b'{', fields @ ..] => {
            line.push(b',');
            line.extend_from_slice(fields);
        }
        _ => return Err(wrong("its body is not a JSON object".to_owned())),
    }
    let line = Line::parse(&line).map_err(|_| wrong("its body is not a JSON object".to_owned()))?;
    let outcome = line.outcome().unwrap_or(Outcome::Complete(None));
    let Progress { progress, note } = serde_json::from_slice(&body).unwrap_or_default();
    if let Some(percent) = progress
        && let Err(error) = context.progress(percent, note.as_deref().unwrap_or_default()).await
    {
        tracing::warn!(event = "result", job = context.id(), %error, "its progress was not stored");
    }
    Ok(outcome)
}

/// No response, or only part of one.
fn broken(error: reqwest::Error) -> Failure {
    let code = match (error.is_timeout(), error.is_connect()) {
        (true, _) => "timeout",
        (_, true) => "connect",
        _ => "network",
    };
    Failure::from(error.without_url()).code(code)
}

/// The response body, if it is JSON and not too large, whatever its content type. Otherwise there is no result, but the
/// server has done its work: only a truncated response that is declared as JSON is a failure.
async fn result(mut response: Response, context: &Context) -> Result<Option<Box<RawValue>>, Failure> {
    let declared = is_json(&response);
    let mut body = Vec::new();
    loop {
        let chunk = match response.chunk().await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break,
            Err(error) if declared => return Err(broken(error)),
            Err(_) => return Ok(None),
        };
        if body.len() + chunk.len() > MOST_RESULT {
            tracing::warn!(
                event = "result",
                job = context.id(),
                "the response is too large to be stored as a result"
            );
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
        // a page or a stream of text is not read to the end
        if !may_begin_json(&body) {
            break;
        }
    }
    Ok(result_from(&body).unwrap_or_else(|error| {
        if declared {
            tracing::warn!(event = "result", job = context.id(), %error, "the response cannot be stored as a result");
        }
        None
    }))
}

/// Whether this could be the first part of a JSON value.
fn may_begin_json(body: &[u8]) -> bool {
    let first = body.trim_ascii_start().first();
    first.is_none_or(|byte| matches!(byte, b'{' | b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n'))
}

fn is_json(response: &Response) -> bool {
    let kind = response
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || kind.ends_with("+json")
}

/// The failure for a response that is not a success.
async fn refusal(response: Response) -> Failure {
    let status = response.status();
    let code = format!("http_{}", status.as_u16());
    if status.is_redirection() {
        let message = format!(
            "the server responded with {status}; redirects are not followed; its location is {}\n\
             hint: Use this location as the url if it is correct.",
            destination(&response)
        );
        return Failure::new(message).code(code).not_retryable();
    }
    let wait = response
        .headers()
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok());
    let wait = wait.and_then(|value| retry_after::parse(value, SystemTime::now()));
    let reason = tokio::time::timeout(REASON_TIMEOUT, reason(response))
        .await
        .unwrap_or_default();
    let message = format!("the server responded with {status}\n{reason}");
    let failure = Failure::new(message.trim_end()).code(code);
    match wait {
        _ if !may_pass(status) => failure.not_retryable(),
        Some(wait) => failure.retry_after(wait),
        None => failure,
    }
}

fn may_pass(status: StatusCode) -> bool {
    let passing = [
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::TOO_EARLY,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    status.is_server_error() || passing.contains(&status)
}

/// The location of a redirect, without the parts that could be secret.
fn destination(response: &Response) -> String {
    let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
    match location.and_then(|location| response.url().join(location).ok()) {
        None => "nowhere".to_string(),
        Some(mut url) => {
            url.set_query(None);
            url.set_fragment(None);
            let _ = url.set_username("");
            let _ = url.set_password(None);
            url.to_string()
        }
    }
}

/// The first part of the response body.
async fn reason(mut response: Response) -> String {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        body.extend_from_slice(&chunk);
        if body.len() >= MOST_REASON {
            body.truncate(MOST_REASON);
            break;
        }
    }
    readable(&body)
}

#[cfg(all(test, feature = "cli"))]
mod tests;
