//! One site for several databases: a list of them, and the pages of each below `/db/NAME`.
//!
//! Each has its own [`Door`], which is opened at the first request, so that a database that is down is an entry of the
//! list and no reason not to start. In production, each change is asked about once more.

use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::body::{Body, to_bytes};
use axum::extract::{Extension, Form, FromRequest, Request};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Router, http};
use tokio::sync::OnceCell;

use super::access::{Door, Mode};
use super::server::Peer;
use super::site::{ICON, LARGEST_FORM, Options, STYLE, asset_named, base_of, html};
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
    /// How to connect, or why that is not known.
    pub target: std::result::Result<Target, String>,
    /// Whether every change must be confirmed.
    pub production: bool,
}

/// The site.
pub struct Several {
    options: Options,
    databases: Vec<Entry>,
}

struct Entry {
    name: String,
    production: bool,
    options: Options,
    way: std::result::Result<Way, String>,
}

struct Way {
    target: Target,
    pool: Pool,
    door: OnceCell<Arc<Door>>,
}

impl Way {
    async fn door(&self, options: &Options) -> Result<&Arc<Door>> {
        let open = || Door::new(options.mode.clone(), &self.target, options.clone());
        self.door.get_or_try_init(open).await
    }
}

/// What the list says about a database.
struct Line {
    name: String,
    production: bool,
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

/// The question before a change in production.
#[derive(Template)]
#[template(path = "production.html")]
struct Production {
    base: String,
    style: String,
    icon: String,
    name: String,
    color: String,
    /// Where the form goes.
    action: String,
    fields: Vec<(String, String)>,
}

/// What is added to the address of a change that was confirmed.
const CONFIRMED: &str = "production=confirmed";

/// Whether a form that is sent there changes something. The steps of a long operation were confirmed with the first.
fn is_change(path: &str, fields: &[(String, String)]) -> bool {
    let has = |name: &str| fields.iter().any(|(field, _)| field == name);
    let only_asks = ["/sql", "/preview", "/jobs/bulk", "/logout", "/login"];
    let is_first_step = path.ends_with("/add-missing") && !has("apply");
    !only_asks.iter().any(|end| path.ends_with(end)) && !is_first_step && !has("done")
}

impl Several {
    /// # Errors
    /// If a connection string is not valid.
    pub fn new(databases: Vec<Named>, options: Options) -> Result<Arc<Several>> {
        let entry = |named: Named| {
            let Named {
                name,
                target,
                production,
            } = named;
            let shown = if production {
                format!("{name} (production)")
            } else {
                name.clone()
            };
            let way = |target: Target| -> Result<Way> {
                Ok(Way {
                    pool: Pool::for_client(&target, "web", 1)?,
                    door: OnceCell::new(),
                    target,
                })
            };
            Ok(Entry {
                options: Options {
                    base_path: format!("{}/db/{name}", options.base_path),
                    color: options.color.clone().or_else(|| production.then(|| "red".to_owned())),
                    name: Some(match &options.name {
                        Some(instance) => format!("{instance}: {shown}"),
                        None => shown,
                    }),
                    ..options.clone()
                },
                way: match target {
                    Ok(target) => Ok(way(target)?),
                    Err(why) => Err(why),
                },
                production,
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
            let ways = self.databases.iter().filter_map(|entry| entry.way.as_ref().ok());
            for door in ways.filter_map(|way| way.door.get()) {
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
            let Ok(way) = &entry.way else {
                return self.list(base, StatusCode::SERVICE_UNAVAILABLE).await;
            };
            let request = match entry.production && request.method() == Method::POST && !rest.contains("/api/") {
                true => match self.ask_first(entry, &base, request).await {
                    Ok(request) => request,
                    Err(question) => return question,
                },
                false => request,
            };
            let opened = tokio::time::timeout(PATIENCE, way.door(&entry.options)).await;
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

    /// The same request, if it changes nothing or was confirmed; a page that asks for that otherwise. It sends the same
    /// form again, with the same protection against other sites.
    async fn ask_first(&self, entry: &Entry, base: &str, request: Request) -> std::result::Result<Request, Response> {
        if request.uri().query() == Some(CONFIRMED) {
            return Ok(request);
        }
        let (parts, body) = request.into_parts();
        let body = to_bytes(body, LARGEST_FORM).await;
        let body = body.map_err(|_| StatusCode::PAYLOAD_TOO_LARGE.into_response())?;
        let again = |parts: http::request::Parts| Request::from_parts(parts, Body::from(body.clone()));
        let fields = Form::<Vec<(String, String)>>::from_request(again(parts.clone()), &()).await;
        let Form(fields) = fields.map_err(IntoResponse::into_response)?;
        let path = parts.uri.path().to_owned();
        if !is_change(&path, &fields) {
            return Ok(again(parts));
        }
        let below = path.strip_prefix(self.options.base_path.as_str()).unwrap_or(&path);
        let page = Production {
            style: format!("{base}{}", STYLE.url),
            icon: format!("{base}{}", ICON.url),
            action: format!("{base}{below}?{CONFIRMED}"),
            base: format!("{base}/db/{}", entry.name),
            name: entry.options.name.clone().unwrap_or_default(),
            color: entry.options.color.clone().unwrap_or_default(),
            fields,
        };
        Err(html(&page))
    }

    async fn list(&self, base: String, status: StatusCode) -> Response {
        let is_open = self.options.mode == Mode::Open;
        let lines = self.databases.iter().map(|entry| async move {
            let mut line = Line {
                name: entry.name.clone(),
                production: entry.production,
                figures: None,
                trouble: None,
            };
            let first = |said: &str| said.lines().next().unwrap_or_default().to_owned();
            match &entry.way {
                Err(why) => line.trouble = Some(first(why)),
                Ok(way) if is_open => match tokio::time::timeout(PATIENCE, figures(&way.pool)).await {
                    Ok(Ok(figures)) => line.figures = Some(figures),
                    Ok(Err(error)) => line.trouble = Some(format!("unreachable: {}", first(&error.to_string()))),
                    Err(_) => line.trouble = Some(format!("unreachable: no reply within {} s", PATIENCE.as_secs())),
                },
                Ok(_) => {}
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
