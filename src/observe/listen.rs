//! The optional HTTP endpoints of a worker: `/metrics`, `/livez`, `/readyz` and the JSON API.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Router, middleware};
use tokio::net::TcpListener;

use super::{Observed, render};
use crate::db::calls::{self, Gauge};
use crate::db::connect::Pool;
use crate::error::Result;
use crate::web::api::{self, Access};
use crate::web::server::{self, Limits};

/// The gauges of the database are queried at most this often, regardless of the number of scrapes.
const GAUGES_EVERY: Duration = Duration::from_secs(5);
/// The time limit for querying the gauges; a scrape must not wait longer.
const GAUGES_TIMEOUT: Duration = Duration::from_secs(3);
/// One request for each connection, so that every open connection is in use.
const LIMITS: Limits = Limits {
    connections: 64,
    request: Duration::from_secs(10),
    connection: Duration::from_secs(30),
    keep_alive: false,
};

/// The worker that the endpoints report on.
pub struct EndpointState {
    /// The name of the database, if the worker serves several.
    pub database: Option<String>,
    /// The name of the database in metrics.
    pub label: String,
    pub name: String,
    pub host: String,
    pub queues: Vec<(String, u32)>,
    pub observed: Arc<Observed>,
    /// The number of outcomes that were not delivered yet.
    pub undelivered: Box<dyn Fn() -> usize + Send + Sync>,
    /// A separate pool, because executors may exhaust theirs.
    pub pool: Pool,
    /// Bearer token required for writes.
    pub token: Option<String>,
    gauges: tokio::sync::Mutex<Option<(Instant, Vec<Gauge>)>>,
}

impl EndpointState {
    pub fn new(
        name: &str,
        host: &str,
        queues: &[(String, u32)],
        observed: Arc<Observed>,
        undelivered: impl Fn() -> usize + Send + Sync + 'static,
        pool: Pool,
        token: Option<String>,
    ) -> EndpointState {
        EndpointState {
            database: None,
            label: String::new(),
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

    /// One of several databases.
    pub fn of_database(mut self, name: &str) -> EndpointState {
        self.database = Some(name.to_owned());
        self.label = name.to_owned();
        self
    }

    /// The only database of the worker.
    pub fn labelled(mut self, name: &str) -> EndpointState {
        self.label = name.to_owned();
        self
    }

    /// Only the keeper reports metrics of the whole database. If every worker did, sums over workers would be wrong.
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
            calls::gauges(&*client).await
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

/// The running endpoints. Closed when dropped.
pub struct Endpoints {
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Endpoints {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Bind the address, before anything is started that would have to be undone.
///
/// # Errors
/// If it cannot be bound.
pub async fn bind(address: SocketAddr) -> Result<TcpListener> {
    server::bind(address).await
}

/// Start serving the endpoints. Each worker is that of one database.
pub fn listen(listener: TcpListener, workers: Vec<EndpointState>) -> Endpoints {
    let mut is_local = true;
    if let Ok(address) = listener.local_addr() {
        is_local = address.ip().is_loopback();
        tracing::info!(event = "listen", %address);
    }
    let task = tokio::spawn(server::serve(listener, router(workers, is_local), LIMITS));
    Endpoints { task }
}

fn router(workers: Vec<EndpointState>, is_local: bool) -> Router {
    let access = Access {
        token: workers.iter().find_map(|worker| worker.token.clone()),
        is_local,
        hosts: Vec::new(),
    };
    let mut router = Router::new();
    for worker in &workers {
        let base = match &worker.database {
            None => api::BASE.to_owned(),
            Some(name) => format!("/databases/{name}{}", api::BASE),
        };
        router = router.nest(&base, api::router(worker.pool.clone()));
    }
    let own = Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .with_state(Arc::new(workers));
    let router = router
        .merge(own)
        .fallback(async || api::nothing_here().hint("See /metrics, /livez, /readyz or /api/v1/openapi.json."))
        .method_not_allowed_fallback(async || api::only_get_and_post());
    let router = router.layer(middleware::from_fn_with_state(Arc::new(access), api::guard));
    server::with_common_headers(router)
}

type Workers = State<Arc<Vec<EndpointState>>>;

async fn metrics(State(workers): Workers) -> Response {
    let gauges = workers.iter().map(EndpointState::gauges);
    let gauges = futures_util::future::join_all(gauges).await;
    text(StatusCode::OK, render::page(workers.iter().zip(&gauges)))
}

async fn livez(State(workers): Workers) -> Response {
    match workers.iter().all(|worker| worker.observed.health.is_alive()) {
        true => text(StatusCode::OK, "alive\n".into()),
        false => text(
            StatusCode::SERVICE_UNAVAILABLE,
            "stuck: the worker makes no progress\n".into(),
        ),
    }
}

/// A worker of several databases is ready if it can claim jobs from one of them: the others are named.
async fn readyz(State(workers): Workers) -> Response {
    let mut lines = Vec::new();
    let mut ready = 0;
    for worker in workers.iter() {
        let failing = worker.observed.health.failing();
        ready += usize::from(failing.is_empty());
        let named = |line: String| match &worker.database {
            None => line,
            Some(name) => format!("database {name}: {line}"),
        };
        lines.extend(failing.into_iter().map(named));
    }
    match ready > 0 {
        true => text(
            StatusCode::OK,
            ["ready".to_owned()]
                .into_iter()
                .chain(lines)
                .collect::<Vec<_>>()
                .join("\n")
                + "\n",
        ),
        false => text(StatusCode::SERVICE_UNAVAILABLE, lines.join("\n") + "\n"),
    }
}

fn text(status: StatusCode, body: String) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    (status, [(CONTENT_TYPE, kind)], body).into_response()
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::db::connect::Target;

    fn worker() -> EndpointState {
        let nowhere = Target::parse("host=/nowhere user=nobody").unwrap();
        let pool = Pool::for_client(&nowhere, "test", 1).unwrap();
        EndpointState::new("test", "here", &[], Arc::default(), || 0, pool, None)
    }

    #[tokio::test]
    async fn a_client_that_keeps_us_waiting_is_cut_off() {
        let (soon, never) = (Duration::from_millis(50), Duration::from_secs(3600));
        for (request, (head, in_all)) in [
            ("", (soon, never)),
            ("GET /livez HTTP/1.1\r\nHost:", (soon, never)),
            ("GET /api/v1/openapi.json HTTP/1.1\r\n\r\n", (never, soon)),
        ] {
            // small buffers, so that an unread response blocks
            let (mut client, server) = tokio::io::duplex(64);
            client.write_all(request.as_bytes()).await.unwrap();

            let limits = Limits {
                request: head,
                connection: in_all,
                ..LIMITS
            };
            let served = server::converse(server, router(vec![worker()], true), Arc::default(), limits);

            let served = tokio::time::timeout(Duration::from_secs(60), served).await;
            assert!(served.is_ok(), "{request:?}");
        }
    }
}
