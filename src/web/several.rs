//! One site for several databases: a list of them, and the pages of each below `/db/NAME`.
//!
//! Each has its own [`Door`], which is opened at the first request, so that a database that is down is an entry of the
//! list and no reason not to start.

use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::Router;
use axum::extract::{Extension, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tokio::sync::OnceCell;

use super::access::{Door, Mode};
use super::server::Peer;
use super::site::{ICON, Options, STYLE, asset_named, base_of, html};
use super::text::span;
use crate::db::connect::{Pool, Target, asked};
use crate::error::Result;
use crate::read;
use crate::state::WorkerState;

/// A database that does not answer within this time is shown as unreachable.
const PATIENCE: Duration = Duration::from_secs(3);

/// A database of the site.
pub struct Named {
    /// Its name, in the list and in the path of its pages.
    pub name: String,
    /// How to connect.
    pub target: Target,
}

/// The site.
pub struct Several {
    options: Options,
    databases: Vec<Entry>,
}

struct Entry {
    name: String,
    target: Target,
    options: Options,
    pool: Pool,
    door: OnceCell<Arc<Door>>,
}

impl Entry {
    async fn door(&self) -> Result<&Arc<Door>> {
        let open = || Door::new(self.options.mode.clone(), &self.target, self.options.clone());
        self.door.get_or_try_init(open).await
    }
}

/// What the list says about a database.
struct Line {
    name: String,
    figures: Option<Figures>,
    trouble: Option<String>,
}

struct Figures {
    ready: i64,
    running: i64,
    /// The time since the oldest ready job was due.
    oldest: String,
    failed: i64,
    workers: usize,
}

#[derive(Template)]
#[template(path = "databases.html")]
struct Databases {
    base: String,
    style: String,
    icon: String,
    name: String,
    color: String,
    /// Whether everyone may see the figures.
    is_open: bool,
    lines: Vec<Line>,
}

impl Several {
    /// # Errors
    /// If a connection string is not valid.
    pub fn new(databases: Vec<Named>, options: Options) -> Result<Arc<Several>> {
        let entry = |Named { name, target }: Named| {
            Ok(Entry {
                options: Options {
                    base_path: format!("{}/db/{name}", options.base_path),
                    name: Some(match &options.name {
                        Some(instance) => format!("{instance}: {name}"),
                        None => name.clone(),
                    }),
                    ..options.clone()
                },
                pool: Pool::for_client(&target, "web", 1)?,
                door: OnceCell::new(),
                target,
                name,
            })
        };
        let databases = databases.into_iter().map(entry).collect::<Result<_>>()?;
        Ok(Arc::new(Several { options, databases }))
    }

    /// The router that stands before all others.
    pub fn router(self: Arc<Several>) -> Router {
        let enter = move |Extension(Peer(peer)): Extension<Peer>, request: Request| {
            let several = self.clone();
            async move { several.enter(peer, request).await }
        };
        Router::new().fallback(enter)
    }

    /// See [`Door::tidy`].
    pub async fn tidy(self: Arc<Several>) {
        loop {
            tokio::time::sleep(Duration::from_secs(2)).await;
            for door in self.databases.iter().filter_map(|entry| entry.door.get()) {
                door.tidy_once();
            }
        }
    }

    async fn enter(&self, peer: std::net::IpAddr, request: Request) -> Response {
        let Some(path) = request.uri().path().strip_prefix(self.options.base_path.as_str()) else {
            return StatusCode::NOT_FOUND.into_response();
        };
        if let Some(name) = path.strip_prefix("/assets/") {
            return asset_named(name);
        }
        let base = base_of(&self.options, request.headers());
        if let Some(rest) = path.strip_prefix("/db/") {
            let name = rest.split('/').next().unwrap_or_default();
            let Some(entry) = self.databases.iter().find(|entry| entry.name == name) else {
                return self.list(base, StatusCode::NOT_FOUND).await;
            };
            if rest == name {
                return super::site::redirect(&format!("{base}/db/{name}/"), "");
            }
            let opened = tokio::time::timeout(PATIENCE, entry.door()).await;
            return match opened {
                Ok(Ok(door)) => door.enter(peer, request).await,
                Ok(Err(_)) | Err(_) => self.list(base, StatusCode::SERVICE_UNAVAILABLE).await,
            };
        }
        match path {
            "" | "/" => self.list(base, StatusCode::OK).await,
            _ => self.list(base, StatusCode::NOT_FOUND).await,
        }
    }

    async fn list(&self, base: String, status: StatusCode) -> Response {
        let is_open = self.options.mode == Mode::Open;
        let lines = self.databases.iter().map(|entry| async move {
            let mut line = Line {
                name: entry.name.clone(),
                figures: None,
                trouble: None,
            };
            if is_open {
                match tokio::time::timeout(PATIENCE, figures(&entry.pool)).await {
                    Ok(Ok(figures)) => line.figures = Some(figures),
                    Ok(Err(error)) => line.trouble = error.to_string().lines().next().map(String::from),
                    Err(_) => line.trouble = Some(format!("no reply within {} s", PATIENCE.as_secs())),
                }
            }
            line
        });
        let page = Databases {
            style: format!("{base}{}", STYLE.url),
            icon: format!("{base}{}", ICON.url),
            base,
            name: self.options.name.clone().unwrap_or_default(),
            color: self.options.color.clone().unwrap_or_default(),
            is_open,
            lines: futures_util::future::join_all(lines).await,
        };
        (status, html(&page)).into_response()
    }
}

async fn figures(pool: &Pool) -> Result<Figures> {
    let client = pool.get().await?;
    let queues = asked(&client, read::queues(&*client)).await?;
    let workers = asked(&client, read::workers(&*client, false)).await?;
    let oldest = queues
        .iter()
        .filter_map(|queue| queue.oldest_ready_seconds)
        .reduce(f64::max);
    let oldest = oldest.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    Ok(Figures {
        ready: queues.iter().map(|queue| queue.ready).sum(),
        running: queues.iter().map(|queue| queue.running).sum(),
        oldest: oldest.map(span).unwrap_or_default(),
        failed: queues.iter().map(|queue| queue.failed_last_minute).sum(),
        workers: workers
            .iter()
            .filter(|worker| worker.state == WorkerState::Alive)
            .count(),
    })
}
