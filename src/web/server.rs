//! The HTTP server: connections, their number and their time. What is served is a router of axum.
//!
//! The connections are counted here and not by axum, because idle connections must not keep a probe out: when there are
//! too many, the one that has been waiting for its request the longest is closed.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::header::{CACHE_CONTROL, HOST, HeaderName};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue};
use axum::{Extension, Router};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tower_http::set_header::SetResponseHeaderLayer;

use crate::error::{Error, Result};

/// What connections may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How many may be open at once: executors need descriptors too.
    pub connections: usize,
    /// How long a client may take to send the head of its request.
    pub request: Duration,
    /// How long a connection may last in all; a client that does not read its response is cut off.
    pub connection: Duration,
    /// Whether a connection carries several requests.
    pub keep_alive: bool,
}

/// Which address a request comes from.
#[derive(Debug, Clone, Copy)]
pub struct Peer(
    #[cfg_attr(
        not(feature = "cli"),
        expect(dead_code, reason = "only the pages of `bugle web` ask for it")
    )]
    pub IpAddr,
);

/// Bind the address.
///
/// # Errors
/// If it cannot be bound.
pub async fn bind(address: std::net::SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        Error::new(format!("cannot listen on {address}: {error}"))
            .with_hint("Another process may be listening there; choose another port with --listen.")
    })
}

/// Headers of every response, unless it set them itself.
pub fn with_common_headers(router: Router) -> Router {
    let header = |name, value| SetResponseHeaderLayer::if_not_present(name, HeaderValue::from_static(value));
    router
        .layer(header(CACHE_CONTROL, "no-store"))
        .layer(header(HeaderName::from_static("x-content-type-options"), "nosniff"))
}

/// Serve until the future is dropped.
pub async fn serve(listener: TcpListener, router: Router, limits: Limits) {
    let mut connections = Connections {
        limits,
        tasks: JoinSet::new(),
        open: VecDeque::new(),
    };
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => connections.open(stream, from.ip(), &router),
                // most likely out of file descriptors
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            },
            Some(closed) = connections.tasks.join_next_with_id() => connections.forget(closed),
        }
    }
}

/// All connections, oldest first. They end with the server.
struct Connections {
    limits: Limits,
    tasks: JoinSet<()>,
    open: VecDeque<Connection>,
}

struct Connection {
    task: AbortHandle,
    /// Whether a request of it is being answered.
    is_busy: Arc<AtomicBool>,
}

impl Connections {
    /// Serve one more. If there are too many, the oldest idle one is closed; if all are being answered, the new one.
    fn open(&mut self, stream: TcpStream, from: IpAddr, router: &Router) {
        if self.open.len() >= self.limits.connections {
            let is_idle = |connection: &Connection| !connection.is_busy.load(Ordering::Acquire);
            match self.open.iter().position(is_idle) {
                Some(oldest) => self.open.remove(oldest).expect("it was found").task.abort(),
                None => return,
            }
        }
        let is_busy = Arc::new(AtomicBool::new(false));
        let router = router.clone().layer(Extension(Peer(from)));
        let task = self.tasks.spawn(converse(stream, router, is_busy.clone(), self.limits));
        self.open.push_back(Connection { task, is_busy });
    }

    fn forget(&mut self, closed: Result<(Id, ()), JoinError>) {
        let id = closed.map_or_else(|error| error.id(), |(id, ())| id);
        self.open.retain(|connection| connection.task.id() != id);
    }
}

/// The requests of a connection and their answers.
pub async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    is_busy: Arc<AtomicBool>,
    limits: Limits,
) {
    let service = service_fn(|request: hyper::Request<Incoming>| {
        is_busy.store(true, Ordering::Release);
        let answer = tower_service::Service::call(&mut router.clone(), request);
        let (is_busy, keep_alive) = (is_busy.clone(), limits.keep_alive);
        async move {
            let answer = answer.await;
            if keep_alive {
                is_busy.store(false, Ordering::Release);
            }
            answer
        }
    });
    let conversation = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.request)
        .keep_alive(limits.keep_alive)
        .serve_connection(TokioIo::new(stream), service);
    let _ = tokio::time::timeout(limits.connection, conversation).await;
}

/// Whether a request names this machine, or one of the other names it is reached by.
///
/// Protects servers on loopback from DNS rebinding: the server of a web page may resolve its name to this machine, but
/// the browser still sends that name. Requests without a Host header do not come from a browser.
pub fn is_addressed_to(headers: &HeaderMap, names: &[String]) -> bool {
    let Some(host) = headers.get(HOST) else {
        return true;
    };
    let Ok(authority) = Authority::try_from(host.as_bytes()) else {
        return false;
    };
    let host = authority.host();
    host.eq_ignore_ascii_case("localhost")
        || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
        || names.iter().any(|name| name.eq_ignore_ascii_case(host))
}
