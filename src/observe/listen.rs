//! The endpoints of a worker, on request: `/metrics`, `/livez`, `/readyz`, and the JSON API.
//!
//! hyper alone, which the HTTP executor brings anyway: a dozen fixed paths need no framework.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderValue, WWW_AUTHENTICATE};
use hyper::http::uri::Authority;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};

use super::{Observed, api, render};
use crate::db::calls::{self, Gauge};
use crate::error::{Error, Result};

/// The gauges of the database are asked for at most this often, however many ask us.
const GAUGES_EVERY: Duration = Duration::from_secs(5);
/// How long a client may take to send its request, and then its body.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may last in all. It carries one request; a client that does not read its answer is cut off.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// How many connections may be open at once: executors need descriptors too.
const MOST_CONNECTIONS: usize = 64;
/// How long the database may take for the gauges; a scrape must not wait for it longer.
const GAUGES_TIMEOUT: Duration = Duration::from_secs(3);
/// The largest body of a request.
const LARGEST_BODY: usize = 64 * 1024;

/// What the endpoints tell about.
pub struct EndpointState {
    pub name: String,
    pub host: String,
    pub queues: Vec<(String, u32)>,
    pub observed: Arc<Observed>,
    /// How many ends were not delivered yet.
    pub undelivered: Box<dyn Fn() -> usize + Send + Sync>,
    /// Connections of their own: executors may use up theirs.
    pub pool: deadpool_postgres::Pool,
    /// Bearer token required for writes.
    pub token: Option<String>,
    /// Whether only this machine can reach the endpoints.
    is_local: bool,
    gauges: tokio::sync::Mutex<Option<(Instant, Vec<Gauge>)>>,
}

impl EndpointState {
    pub fn new(
        name: &str,
        host: &str,
        queues: &[(String, u32)],
        observed: Arc<Observed>,
        undelivered: impl Fn() -> usize + Send + Sync + 'static,
        pool: deadpool_postgres::Pool,
        token: Option<String>,
    ) -> EndpointState {
        EndpointState {
            name: name.to_owned(),
            host: host.to_owned(),
            queues: queues.to_vec(),
            observed,
            undelivered: Box::new(undelivered),
            pool,
            token,
            is_local: true,
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

/// Take the address, before anything else is begun that would have to be undone.
///
/// # Errors
/// If it cannot be had, or others can reach it and there is no token.
pub async fn bind(address: SocketAddr, has_token: bool) -> Result<TcpListener> {
    check_address(address, has_token)?;
    TcpListener::bind(address).await.map_err(|error| {
        Error::new(format!("cannot listen on {address}: {error}")).hint("Is another worker listening there?")
    })
}

/// Open the endpoints.
pub fn listen(listener: TcpListener, mut worker: EndpointState) -> Endpoints {
    if let Ok(address) = listener.local_addr() {
        worker.is_local = address.ip().is_loopback();
        tracing::info!(event = "listen", %address);
    }
    let task = tokio::spawn(serve(listener, Arc::new(worker)));
    Endpoints { task }
}

async fn serve(listener: TcpListener, worker: Arc<EndpointState>) {
    let mut connections = Connections::default();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => connections.open(stream, &worker),
                // out of descriptors, most likely
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            },
            Some(closed) = connections.tasks.join_next_with_id() => connections.forget(closed),
        }
    }
}

/// All connections, oldest first. They end with the endpoints.
#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    open: VecDeque<Connection>,
}

struct Connection {
    task: AbortHandle,
    /// Whether its request has been read.
    is_busy: Arc<AtomicBool>,
}

impl Connections {
    /// Serve one more. If there are too many, the one that has kept us waiting for its request the longest is closed:
    /// idle connections, however many, must not keep a probe out. If all others are being answered the new one is
    /// closed.
    fn open(&mut self, stream: TcpStream, worker: &Arc<EndpointState>) {
        if self.open.len() >= MOST_CONNECTIONS {
            let is_idle = |connection: &Connection| !connection.is_busy.load(Ordering::Acquire);
            match self.open.iter().position(is_idle) {
                Some(oldest) => self.open.remove(oldest).expect("it was found").task.abort(),
                None => return,
            }
        }
        let is_busy = Arc::new(AtomicBool::new(false));
        let timeouts = (REQUEST_TIMEOUT, CONNECTION_TIMEOUT);
        let task = self
            .tasks
            .spawn(converse(stream, worker.clone(), is_busy.clone(), timeouts));
        self.open.push_back(Connection { task, is_busy });
    }

    fn forget(&mut self, closed: Result<(Id, ()), JoinError>) {
        let id = closed.map_or_else(|error| error.id(), |(id, ())| id);
        self.open.retain(|connection| connection.task.id() != id);
    }
}

/// One request and its answer: without keep-alive, what is open is in use.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    worker: Arc<EndpointState>,
    is_busy: Arc<AtomicBool>,
    (request, in_all): (Duration, Duration),
) {
    let service = service_fn(|request| {
        is_busy.store(true, Ordering::Release);
        answer(worker.clone(), request)
    });
    let conversation = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(request)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let _ = tokio::time::timeout(in_all, conversation).await;
}

/// What is answered: a status, and JSON or text.
pub struct Reply {
    status: StatusCode,
    content_type: &'static str,
    body: String,
}

impl Reply {
    pub fn json(value: &impl Serialize) -> Reply {
        Reply::with(StatusCode::OK, value)
    }

    pub fn raw_json(body: &str) -> Reply {
        Reply {
            status: StatusCode::OK,
            content_type: "application/json",
            body: body.to_owned(),
        }
    }

    pub fn error(status: StatusCode, error: &str, hint: Option<&str>) -> Reply {
        Reply::with(status, &json!({ "error": error, "hint": hint }))
    }

    fn with(status: StatusCode, value: &impl Serialize) -> Reply {
        Reply {
            status,
            content_type: "application/json",
            body: serde_json::to_string(value).expect("plain data"),
        }
    }

    fn text(status: StatusCode, body: String) -> Reply {
        Reply {
            status,
            content_type: "text/plain; version=0.0.4; charset=utf-8",
            body,
        }
    }
}

async fn answer(worker: Arc<EndpointState>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
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

async fn route(worker: &EndpointState, request: Request<Incoming>) -> Reply {
    let path = request.uri().path().to_owned();
    let is_get = request.method() == Method::GET || request.method() == Method::HEAD;
    let needs_local_name = worker.is_local && (worker.token.is_none() || !path.starts_with("/api/"));
    if needs_local_name && !is_addressed_locally(&request) {
        return Reply::error(
            StatusCode::FORBIDDEN,
            "this host name is not served",
            Some("Ask for localhost or 127.0.0.1."),
        );
    }
    match path.as_str() {
        "/metrics" if is_get => Reply::text(StatusCode::OK, render::page(worker, &worker.gauges().await)),
        "/livez" if is_get => match worker.observed.health.is_alive() {
            true => Reply::text(StatusCode::OK, "alive\n".into()),
            false => Reply::text(
                StatusCode::SERVICE_UNAVAILABLE,
                "stuck: no heartbeat was even tried\n".into(),
            ),
        },
        "/readyz" if is_get => {
            let failing = worker.observed.health.failing();
            match failing.is_empty() {
                true => Reply::text(StatusCode::OK, "ready\n".into()),
                false => Reply::text(StatusCode::SERVICE_UNAVAILABLE, failing.join("\n") + "\n"),
            }
        }
        "/metrics" | "/livez" | "/readyz" => Reply::error(StatusCode::METHOD_NOT_ALLOWED, "it can only be read", None),
        path if path.starts_with("/api/") => match refused(worker, &request) {
            Some(refusal) => refusal,
            None => call_api(worker, request).await,
        },
        _ => Reply::error(
            StatusCode::NOT_FOUND,
            "there is nothing here",
            Some("Try /metrics, /livez, /readyz, or what /api/openapi.json describes."),
        ),
    }
}

/// What only this machine can reach is not for pages that a browser here happens to show: their server may give its own
/// name the address of this machine, but the browser still sends that name. A request without one is not a browser's.
fn is_addressed_locally(request: &Request<Incoming>) -> bool {
    let Some(host) = request.headers().get(HOST) else {
        return true;
    };
    let Ok(host) = Authority::try_from(host.as_bytes()) else {
        return false;
    };
    let host = host.host();
    host.eq_ignore_ascii_case("localhost") || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
}

/// Without a token the API can only be read.
fn refused(worker: &EndpointState, request: &Request<Incoming>) -> Option<Reply> {
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let Some(token) = &worker.token else {
        return (request.method() != Method::GET).then(|| {
            Reply::error(
                StatusCode::FORBIDDEN,
                "without a token the API can only be read",
                Some("Set a token (--token, BUGLE_TOKEN, or token in the worker's file), and send it."),
            )
        });
    };
    let given = header(AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
    // hashes, so that the time of the comparison tells nothing about the token
    match given.is_some_and(|given| Sha256::digest(given.trim()) == Sha256::digest(token)) {
        true => None,
        false => Some(Reply::error(
            StatusCode::UNAUTHORIZED,
            "the token is missing or wrong",
            Some("Send the header Authorization: Bearer TOKEN."),
        )),
    }
}

async fn call_api(worker: &EndpointState, request: Request<Incoming>) -> Reply {
    let (head, body) = request.into_parts();
    let body = tokio::time::timeout(REQUEST_TIMEOUT, Limited::new(body, LARGEST_BODY).collect());
    let body = match body.await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) => return Reply::error(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large", None),
        Err(_) => return Reply::error(StatusCode::REQUEST_TIMEOUT, "the body did not come in time", None),
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
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::db::connect::{self, Target};

    #[test]
    fn an_address_that_others_can_reach_needs_a_token() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();

        assert!(check_address(at("127.0.0.1:9187"), false).is_ok());
        assert!(check_address(at("[::1]:9187"), false).is_ok());
        assert!(check_address(at("0.0.0.0:9187"), true).is_ok());
        let error = check_address(at("0.0.0.0:9187"), false).unwrap_err();
        assert!(error.to_string().contains("no token is set"), "{error}");
    }
    fn worker() -> Arc<EndpointState> {
        let nowhere = Target::parse("host=/nowhere user=nobody").unwrap();
        let pool = connect::pool(&nowhere, "test", 1).unwrap();
        Arc::new(EndpointState::new(
            "test",
            "here",
            &[],
            Arc::default(),
            || 0,
            pool,
            None,
        ))
    }

    #[tokio::test]
    async fn a_client_that_keeps_us_waiting_is_cut_off() {
        let (soon, never) = (Duration::from_millis(50), Duration::from_secs(3600));
        for (request, timeouts) in [
            ("", (soon, never)),
            ("GET /livez HTTP/1.1\r\nHost:", (soon, never)),
            ("GET /api/openapi.json HTTP/1.1\r\n\r\n", (never, soon)),
        ] {
            // too little room for an answer that is not read
            let (mut client, server) = tokio::io::duplex(64);
            client.write_all(request.as_bytes()).await.unwrap();

            let served = converse(server, worker(), Arc::default(), timeouts);

            let served = tokio::time::timeout(Duration::from_secs(60), served).await;
            assert!(served.is_ok(), "{request:?}");
        }
    }
}
