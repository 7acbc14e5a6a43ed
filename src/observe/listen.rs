//! The endpoints of a worker, on request: `/metrics`, `/livez`, `/readyz`, and the JSON API.
//!
//! hyper alone, which the HTTP executor brings anyway: a dozen fixed paths need no framework.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderValue, WWW_AUTHENTICATE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;

use super::{Observed, api, render};
use crate::calls::{self, Gauge};
use crate::error::{Error, Result};

/// The gauges of the database are asked for at most this often, however many ask us.
const GAUGES_EVERY: Duration = Duration::from_secs(5);
/// Whoever sends no request within this is cut off, and so is whoever sends no body.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the database may take for the gauges; a scrape must not wait for it longer.
const GAUGES_TIMEOUT: Duration = Duration::from_secs(3);
/// The largest body of a request.
const LARGEST_BODY: usize = 64 * 1024;

/// What the endpoints tell about.
pub struct Worker {
    pub name: String,
    pub host: String,
    pub queues: Vec<(String, u32)>,
    pub observed: Arc<Observed>,
    /// How many ends were not delivered yet.
    pub undelivered: Box<dyn Fn() -> usize + Send + Sync>,
    /// Connections of their own: executors may use up theirs.
    pub pool: deadpool_postgres::Pool,
    /// Who knows it may change things.
    pub token: Option<String>,
    gauges: tokio::sync::Mutex<Option<(Instant, Vec<Gauge>)>>,
}

impl Worker {
    pub fn new(
        name: &str,
        host: &str,
        queues: &[(String, u32)],
        observed: Arc<Observed>,
        undelivered: impl Fn() -> usize + Send + Sync + 'static,
        pool: deadpool_postgres::Pool,
        token: Option<String>,
    ) -> Worker {
        Worker {
            name: name.to_owned(),
            host: host.to_owned(),
            queues: queues.to_vec(),
            observed,
            undelivered: Box::new(undelivered),
            pool,
            token,
            gauges: tokio::sync::Mutex::default(),
        }
    }

    /// Only the keeper tells what is about the whole database: told by each worker, a sum over workers would be wrong.
    async fn gauges(&self) -> Vec<Gauge> {
        if !self.observed.health.is_keeper() {
            return Vec::new();
        }
        let mut known = self.gauges.lock().await;
        if let Some((_, gauges)) = known.as_ref().filter(|(at, _)| at.elapsed() < GAUGES_EVERY) {
            return gauges.clone();
        }
        let asked = tokio::time::timeout(GAUGES_TIMEOUT, async {
            let client = self.pool.get().await?;
            calls::gauges(&**client).await
        });
        match asked.await {
            Ok(Ok(gauges)) => {
                *known = Some((Instant::now(), gauges.clone()));
                gauges
            }
            Ok(Err(error)) => {
                tracing::debug!(event = "gauges", %error);
                Vec::new()
            }
            Err(_) => Vec::new(),
        }
    }
}

/// Endpoints that are open. Closed when dropped.
pub struct Endpoints {
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Endpoints {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Refuse an address that others can reach without a token.
///
/// # Errors
/// If it is such an address.
pub fn check_address(address: SocketAddr, has_token: bool) -> Result<()> {
    if address.ip().is_loopback() || has_token {
        return Ok(());
    }
    Err(Error::new(format!(
        "listen is {address}, which other machines can reach, and no token is set"
    ))
    .hint("Set a token (--token, BUGLE_TOKEN, or token in the file), or listen on 127.0.0.1."))
}

/// Open the endpoints.
///
/// # Errors
/// If the address cannot be had.
pub async fn listen(address: SocketAddr, worker: Worker) -> Result<Endpoints> {
    check_address(address, worker.token.is_some())?;
    let listener = TcpListener::bind(address).await.map_err(|error| {
        Error::new(format!("cannot listen on {address}: {error}")).hint("Is another worker listening there?")
    })?;
    let address = listener.local_addr().unwrap_or(address);
    tracing::info!(event = "listen", %address);
    let worker = Arc::new(worker);
    let task = tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                // out of descriptors, most likely
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let worker = worker.clone();
            tokio::spawn(async move {
                let service = service_fn(|request| answer(worker.clone(), request));
                let _ = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEADER_TIMEOUT)
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    Ok(Endpoints { task })
}

/// What is answered: a status, and JSON or text.
pub struct Answer {
    status: StatusCode,
    content_type: &'static str,
    body: String,
}

impl Answer {
    pub fn json(value: &impl Serialize) -> Answer {
        Answer::with(StatusCode::OK, value)
    }

    pub fn raw_json(body: &str) -> Answer {
        Answer {
            status: StatusCode::OK,
            content_type: "application/json",
            body: body.to_owned(),
        }
    }

    pub fn error(status: StatusCode, error: &str, hint: Option<&str>) -> Answer {
        Answer::with(status, &json!({ "error": error, "hint": hint }))
    }

    fn with(status: StatusCode, value: &impl Serialize) -> Answer {
        Answer {
            status,
            content_type: "application/json",
            body: serde_json::to_string(value).expect("plain data"),
        }
    }

    fn text(status: StatusCode, body: String) -> Answer {
        Answer {
            status,
            content_type: "text/plain; version=0.0.4; charset=utf-8",
            body,
        }
    }
}

async fn answer(worker: Arc<Worker>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let answer = route(&worker, request).await;
    let mut response = Response::new(Full::new(Bytes::from(answer.body)));
    *response.status_mut() = answer.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(answer.content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    if answer.status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if answer.status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("GET, POST"));
    }
    Ok(response)
}

async fn route(worker: &Worker, request: Request<Incoming>) -> Answer {
    let path = request.uri().path().to_owned();
    let is_get = request.method() == Method::GET || request.method() == Method::HEAD;
    match path.as_str() {
        "/metrics" if is_get => Answer::text(StatusCode::OK, render::page(worker, &worker.gauges().await)),
        "/livez" if is_get => match worker.observed.health.is_alive() {
            true => Answer::text(StatusCode::OK, "alive\n".into()),
            false => Answer::text(
                StatusCode::SERVICE_UNAVAILABLE,
                "stuck: no heartbeat was even tried\n".into(),
            ),
        },
        "/readyz" if is_get => {
            let failing = worker.observed.health.failing();
            match failing.is_empty() {
                true => Answer::text(StatusCode::OK, "ready\n".into()),
                false => Answer::text(StatusCode::SERVICE_UNAVAILABLE, failing.join("\n") + "\n"),
            }
        }
        "/metrics" | "/livez" | "/readyz" => Answer::error(StatusCode::METHOD_NOT_ALLOWED, "it can only be read", None),
        path if path.starts_with("/api/") => match refused(worker, &request) {
            Some(refusal) => refusal,
            None => call_api(worker, request).await,
        },
        _ => Answer::error(
            StatusCode::NOT_FOUND,
            "there is nothing here",
            Some("Try /metrics, /livez, /readyz, or what /api/openapi.json describes."),
        ),
    }
}

/// Without a token the API can be read, from this machine, and not by a page that a browser there happens to show.
fn refused(worker: &Worker, request: &Request<Incoming>) -> Option<Answer> {
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let Some(token) = &worker.token else {
        let host = header(HOST).unwrap_or_default();
        let host = host.rsplit_once(':').map_or(host, |(name, _)| name);
        let is_local = host == "localhost" || host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
        return if !is_local {
            Some(Answer::error(
                StatusCode::FORBIDDEN,
                "this host name is not served without a token",
                None,
            ))
        } else if request.method() != Method::GET {
            Some(Answer::error(
                StatusCode::FORBIDDEN,
                "without a token the API can only be read",
                Some("Set a token (--token, BUGLE_TOKEN, or token in the worker's file), and send it."),
            ))
        } else {
            None
        };
    };
    let given = header(AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
    // hashes, so that the time of the comparison tells nothing about the token
    match given.is_some_and(|given| Sha256::digest(given.trim()) == Sha256::digest(token)) {
        true => None,
        false => Some(Answer::error(
            StatusCode::UNAUTHORIZED,
            "the token is missing or wrong",
            Some("Send the header Authorization: Bearer TOKEN."),
        )),
    }
}

async fn call_api(worker: &Worker, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    let body = tokio::time::timeout(HEADER_TIMEOUT, Limited::new(body, LARGEST_BODY).collect());
    let body = match body.await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) => return Answer::error(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large", None),
        Err(_) => return Answer::error(StatusCode::REQUEST_TIMEOUT, "the body did not come in time", None),
    };
    api::answer(
        &worker.pool,
        &head.method,
        head.uri.path(),
        head.uri.query().unwrap_or_default(),
        &body,
    )
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_others_can_reach_needs_a_token() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();

        assert!(check_address(at("127.0.0.1:9187"), false).is_ok());
        assert!(check_address(at("[::1]:9187"), false).is_ok());
        assert!(check_address(at("0.0.0.0:9187"), true).is_ok());
        let error = check_address(at("0.0.0.0:9187"), false).unwrap_err();
        assert!(error.to_string().contains("no token is set"), "{error}");
    }
}
