//! `bugle web`: the site, who may reach it, and what every page has.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use askama::Template;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE, HeaderName, LOCATION, ORIGIN, REFERRER_POLICY,
    SET_COOKIE,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Form, Router};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio_postgres::Transaction;
use tower_http::compression::CompressionLayer;
use tower_http::set_header::SetResponseHeaderLayer;

use super::access::{Door, Mode, OwnCookies, own_cookies};
use super::actions::{Action, label, values_of};
pub use super::api::Query;
use super::api::{self, Access};
use super::live::{self, FRESH, IS_REFRESH, Live};
use super::server::{self, Limits};
use super::several::{Named, Several};
use super::text::{self, Html};
use super::{bulk, pages};
use crate::admin::operations::{Answer, Operation, perform};
use crate::db::connect::{Pool, Target};
use crate::error::Result;
use crate::read::{self, Rights};

/// How `bugle web` is set up.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The name of the instance, in the header and the title.
    pub name: Option<String>,
    /// Its color: one of [`COLORS`].
    pub color: Option<String>,
    /// The path the site is below, for example `/bugle`.
    pub base_path: String,
    /// Whether nothing can be changed.
    pub read_only: bool,
    /// Further names it is reached by.
    pub hosts: Vec<String>,
    /// The token with which the JSON API accepts changes.
    pub token: Option<String>,
    /// The URL of a trace elsewhere, with `{trace_id}`.
    pub trace_url: Option<String>,
    /// The URL of the logs of a job elsewhere, with `{job}`, `{worker}` or `{trace_id}`.
    pub log_url: Option<String>,
    /// Who may use it.
    pub mode: Mode,
}

/// The colors an instance can have.
pub const COLORS: [&str; 6] = ["blue", "green", "orange", "red", "purple", "gray"];

const LIMITS: Limits = Limits {
    connections: 256,
    request: Duration::from_secs(10),
    connection: Duration::from_secs(3600),
    keep_alive: true,
};
/// The largest form, and how long a browser may take to send it.
pub const LARGEST_FORM: usize = 4 * 1024 * 1024;
const FORM_TIMEOUT: Duration = Duration::from_secs(10);
/// What the login may do is asked for at most this often.
const RIGHTS_EVERY: Duration = Duration::from_secs(5);
/// No code or style but our own files, no frames, no forms to elsewhere.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// A file that is part of the program. Its name has a hash, so that browsers may cache it indefinitely.
pub struct Asset {
    pub url: String,
    content_type: &'static str,
    text: &'static str,
}

impl Asset {
    fn new(name: &str, content_type: &'static str, text: &'static str) -> Asset {
        let hash = Sha256::digest(text);
        let hash: String = hash.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        let (stem, ending) = name.split_once('.').expect("a name with an ending");
        Asset {
            url: format!("/assets/{stem}.{hash}.{ending}"),
            content_type,
            text,
        }
    }
}

pub static STYLE: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("style.css", "text/css; charset=utf-8", include_str!("assets/style.css")));
pub static SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new(
        "app.js",
        "text/javascript; charset=utf-8",
        include_str!("assets/app.js"),
    )
});
pub static ICON: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("icon.svg", "image/svg+xml", include_str!("assets/icon.svg")));

/// The site.
///
/// Of one login: with `--login`, each session has one of its own.
pub struct Site {
    pub options: Arc<Options>,
    pub pool: Pool,
    pub live: Arc<Live>,
    /// In every form: a page of another site cannot read it. It changes when the process is started again.
    csrf: String,
    rights: tokio::sync::Mutex<Option<(Instant, Rights)>>,
    /// The pages that were refreshed a moment ago.
    refreshed: tokio::sync::Mutex<BTreeMap<String, Refreshed>>,
    /// Whether a person has signed in.
    can_sign_out: bool,
    is_over: AtomicBool,
}

pub type Shared = Arc<Site>;

/// A request without its body.
pub type Asked = axum::http::request::Parts;

/// A request with these headers, for the page that answers a form.
pub fn asked(headers: HeaderMap) -> Asked {
    let mut request = axum::http::Request::new(());
    *request.headers_mut() = headers;
    request.into_parts().0
}

/// Serve the site until the future is dropped.
///
/// # Errors
/// If the database cannot be reached, or has no schema.
pub async fn serve(listener: TcpListener, target: &Target, options: Options) -> Result<()> {
    let guarded = (
        options.hosts.clone(),
        vec![format!("{}{}/", options.base_path, api::BASE)],
    );
    let port = listener.local_addr().map_or(0, |address| address.port());
    let cookies = Arc::new(OwnCookies::new(options.clone(), target, port));
    let door = Door::new(options.mode.clone(), target, options).await?;
    let router = door.clone().router();
    let router = router.layer(middleware::from_fn_with_state(cookies, own_cookies));
    serve_guarded(listener, router, guarded, door.tidy()).await;
    Ok(())
}

/// Serve a list of databases, and the pages of each, until the future is dropped.
///
/// # Errors
/// If a connection string is not valid. A database that cannot be reached is an entry of the list.
pub async fn serve_several(listener: TcpListener, databases: Vec<Named>, options: Options) -> Result<()> {
    let api = |named: &Named| format!("{}/db/{}{}/", options.base_path, named.name, api::BASE);
    let guarded = (options.hosts.clone(), databases.iter().map(api).collect());
    let several = Several::new(databases, options)?;
    serve_guarded(listener, several.clone().router(), guarded, several.tidy()).await;
    Ok(())
}

async fn serve_guarded(listener: TcpListener, router: Router, guarded: Guarded, tidy: impl Future<Output = ()>) {
    let guarded = Arc::new(guarded);
    let router = router
        .layer(middleware::from_fn_with_state(guarded, guard))
        .layer(CompressionLayer::new());
    let header =
        |name: HeaderName, value| SetResponseHeaderLayer::if_not_present(name, HeaderValue::from_static(value));
    let router = router
        .layer(header(CONTENT_SECURITY_POLICY, POLICY))
        .layer(header(REFERRER_POLICY, "same-origin"))
        .layer(header(
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ));
    tokio::select! {
        () = server::serve(listener, server::with_common_headers(router), LIMITS) => {}
        () = tidy => {}
    }
}

/// The names that the site is reached by, and where its APIs begin.
type Guarded = (Vec<String>, Vec<String>);

/// What one login sees. A token opens the API to changes.
pub fn router(site: Shared, token: Option<String>, options: &Options) -> Router {
    let access = Access {
        token,
        is_local: true,
        hosts: options.hosts.clone(),
    };
    let api = api::router(site.pool.clone()).layer(middleware::from_fn_with_state(Arc::new(access), api::guard_api));
    let pages = pages::router()
        .route("/act/{operation}", get(confirm).post(act))
        .route("/act/{operation}/sql", post(sql_of))
        .route("/act/{operation}/preview", post(next_times))
        .route("/jobs/bulk", post(bulk::preview))
        .route("/jobs/bulk/apply", post(bulk::apply))
        .route("/live", get(super::live::stream))
        .fallback(async |State(site): State<Shared>, request: Asked| {
            let frame = site.frame(&request, ELSEWHERE).await;
            Problem::new(StatusCode::NOT_FOUND, "There is no such page.").page(frame)
        })
        .layer(middleware::from_fn_with_state(site.clone(), sparing))
        .layer(middleware::from_fn_with_state(site.clone(), whole))
        .layer(DefaultBodyLimit::max(LARGEST_FORM))
        .with_state(site);
    let router = Router::new().nest(api::BASE, api).merge(pages);
    match options.base_path.as_str() {
        "" => router,
        base => Router::new().nest(base, router),
    }
}

/// A form is read as a whole before anything is done, and within a time limit.
async fn whole(State(site): State<Shared>, request: Request, next: Next) -> Response {
    if request.method() == Method::GET || request.method() == Method::HEAD {
        return next.run(request).await;
    }
    let (head, body) = request.into_parts();
    let problem = match tokio::time::timeout(FORM_TIMEOUT, to_bytes(body, LARGEST_FORM)).await {
        Ok(Ok(body)) => return next.run(Request::from_parts(head, Body::from(body))).await,
        Ok(Err(_)) => {
            let message = format!("The form is larger than {LARGEST_FORM} bytes, or was cut off.");
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, message)
        }
        Err(_) => Problem::new(StatusCode::REQUEST_TIMEOUT, "The form was sent too slowly."),
    };
    let frame = site.frame(&head, ELSEWHERE).await;
    problem.hint("Nothing was changed.").page(frame)
}

/// Pages that only refresh themselves are answered while there is time for it: watching is to cost next to nothing.
/// Those who watch the same page get the same answer.
async fn sparing(State(site): State<Shared>, request: Request, next: Next) -> Response {
    if !request.headers().contains_key(REFRESH) {
        return next.run(request).await;
    }
    let page = format!("{} {}", site.base(request.headers()), request.uri());
    // one at a time: the others wait for the same answer
    let mut refreshed = site.refreshed.lock().await;
    refreshed.retain(|_, known| known.at.elapsed() < FRESH);
    if let Some(known) = refreshed.get(&page) {
        return known.response();
    }
    if !site.live.has_time() {
        return StatusCode::NO_CONTENT.into_response();
    }
    let began = Instant::now();
    let (response, age) = live::with_age(IS_REFRESH.scope((), next.run(request))).await;
    site.live.spend(began.elapsed());
    if response.status() != StatusCode::OK {
        return response;
    }
    let Ok(body) = to_bytes(response.into_body(), LARGEST_FORM).await else {
        return StatusCode::NO_CONTENT.into_response();
    };
    let known = Refreshed {
        at: Instant::now(),
        age,
        body,
    };
    let response = known.response();
    refreshed.insert(page, known);
    response
}

/// A page as it was sent to one of those who watch it.
struct Refreshed {
    at: Instant,
    /// How old its counts were.
    age: Duration,
    body: Bytes,
}

impl Refreshed {
    fn response(&self) -> Response {
        let age = (self.age + self.at.elapsed()).as_secs().to_string();
        let headers = [(CONTENT_TYPE, "text/html; charset=utf-8".to_owned()), (AGE, age)];
        (headers, self.body.clone()).into_response()
    }
}

/// Requests to another name, and changes that do not come from a page of this site.
async fn guard(State(guarded): State<Arc<Guarded>>, request: Request, next: Next) -> Response {
    let (hosts, apis) = &*guarded;
    if apis.iter().any(|api| request.uri().path().starts_with(api)) {
        // it has its own guard: what it changes needs a token that no browser sends by itself
        return next.run(request).await;
    }
    let headers = request.headers();
    if !server::is_addressed_to(headers, hosts) {
        let text = "unknown host name\nhint: Use localhost or 127.0.0.1, or name it with --allow-host.\n";
        return (StatusCode::FORBIDDEN, text).into_response();
    }
    let is_change = request.method() != Method::GET && request.method() != Method::HEAD;
    if is_change && !is_from_here(headers) {
        let text = "this request comes from another site\n";
        return (StatusCode::FORBIDDEN, text).into_response();
    }
    next.run(request).await
}

/// Whether a browser says that one of our own pages sent it. What no browser sent has neither header.
fn is_from_here(headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return site == "same-origin" || site == "none";
    }
    let Some(origin) = headers.get(ORIGIN).map(|origin| origin.to_str().unwrap_or_default()) else {
        return true;
    };
    let host = headers
        .get("host")
        .and_then(|host| host.to_str().ok())
        .unwrap_or_default();
    origin
        .split_once("://")
        .is_some_and(|(_, name)| !host.is_empty() && name == host)
}

/// A file of the program, by the name in its URL.
pub fn asset_named(name: &str) -> Response {
    let assets = [&*STYLE, &*SCRIPT, &*ICON];
    match assets.iter().find(|asset| asset.url.ends_with(&format!("/{name}"))) {
        Some(asset) => (
            [
                (CONTENT_TYPE, asset.content_type),
                (CACHE_CONTROL, "public, max-age=31536000, immutable"),
            ],
            asset.text,
        )
            .into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// What every page has.
#[derive(Debug, Clone, Default)]
pub struct Frame {
    pub base: String,
    pub page: &'static str,
    pub name: String,
    pub color: String,
    pub rights: Rights,
    /// Whether this login may change something here.
    pub can_change: bool,
    pub can_enqueue: bool,
    /// Whether a person has signed in.
    pub can_sign_out: bool,
    pub csrf: String,
    pub style: String,
    pub script: String,
    pub icon: String,
    /// What was just done.
    pub notice: Option<String>,
    /// The path and query of this page, to come back to.
    pub here: String,
    /// What needs attention on other pages: the page, how much, and what that is.
    pub counts: Vec<(&'static str, usize, &'static str)>,
}

/// The pages in the navigation.
pub const PAGES: [(&str, &str); 11] = [
    ("", "Overview"),
    ("jobs", "Jobs"),
    ("workflows", "Workflows"),
    ("queues", "Queues"),
    ("commands", "Commands"),
    ("schedules", "Schedules"),
    ("workers", "Workers"),
    ("errors", "Errors"),
    ("dead-letters", "Dead letters"),
    ("changes", "Changes"),
    ("database", "Database"),
];

/// The page of what is on none of them.
const ELSEWHERE: &str = "-";

/// The page that an operation belongs to.
fn page_of(operation: &str) -> &'static str {
    match operation {
        "set_limits" => "queues",
        "set_command_limit" | "set_policy" | "remove_policy" => "commands",
        name if name.ends_with("_queue") => "queues",
        name if name.ends_with("_worker") => "workers",
        name if name.contains("schedule") && name != "reschedule" => "schedules",
        _ => "jobs",
    }
}

impl Frame {
    /// Whether something is left out of this page, since it was not known in time.
    pub fn is_counting(&self) -> bool {
        live::is_counting()
    }

    /// For templates.
    pub fn pages(&self) -> &'static [(&'static str, &'static str)] {
        &PAGES
    }

    /// The number next to the link to a page.
    pub fn count(&self, page: &str) -> Option<(usize, &'static str)> {
        let (_, count, about) = self.counts.iter().find(|(name, ..)| *name == page)?;
        Some((*count, about))
    }
}

impl Site {
    pub fn new(pool: Pool, options: Arc<Options>, live: Arc<Live>, can_sign_out: bool) -> Site {
        Site {
            options,
            pool,
            live,
            csrf: uuid::Uuid::new_v4().simple().to_string(),
            rights: tokio::sync::Mutex::default(),
            refreshed: tokio::sync::Mutex::default(),
            can_sign_out,
            is_over: AtomicBool::new(false),
        }
    }

    /// End it: no request may use it from now on.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Whether a form of this site has sent this.
    pub fn is_token(&self, given: Option<&str>) -> bool {
        given == Some(&self.csrf)
    }

    /// The name of the login, if it is known.
    pub async fn login(&self) -> Option<String> {
        self.rights
            .lock()
            .await
            .as_ref()
            .map(|(_, rights)| rights.login.clone())
    }

    /// What went wrong before a page could be made.
    pub async fn explain(&self, request: Request, problem: Problem) -> Response {
        let (request, _) = request.into_parts();
        problem.page(self.frame(&request, ELSEWHERE).await)
    }

    /// What the login may do. If the database cannot be asked, nothing.
    pub async fn rights(&self) -> Result<Rights> {
        let mut known = self.rights.lock().await;
        if let Some((_, rights)) = known.as_ref().filter(|(at, _)| at.elapsed() < RIGHTS_EVERY) {
            return Ok(rights.clone());
        }
        let client = self.pool.get_or_explain().await?;
        let rights = read::rights(&*client).await?;
        *known = Some((Instant::now(), rights.clone()));
        Ok(rights)
    }

    pub async fn frame(&self, request: &Asked, page: &'static str) -> Frame {
        let rights = self.rights().await.unwrap_or_default();
        let can_write = !self.options.read_only && !rights.is_read_only;
        let base = self.base(&request.headers);
        Frame {
            style: format!("{base}{}", STYLE.url),
            script: format!("{base}{}", SCRIPT.url),
            icon: format!("{base}{}", ICON.url),
            page,
            name: self.options.name.clone().unwrap_or_default(),
            color: self.options.color.clone().unwrap_or_else(|| "blue".to_owned()),
            can_change: can_write && rights.can_operate,
            can_enqueue: can_write && rights.can_enqueue,
            counts: if rights.can_read {
                self.live.counts()
            } else {
                Vec::new()
            },
            rights,
            can_sign_out: self.can_sign_out,
            csrf: self.csrf.clone(),
            notice: cookie(&request.headers, NOTICE).filter(|notice| !notice.is_empty()),
            // as the browser knows it
            here: format!(
                "{base}{}",
                request.uri.path_and_query().map_or("/", |path| path.as_str())
            ),
            base,
        }
    }

    /// The path before ours.
    pub fn base(&self, headers: &HeaderMap) -> String {
        base_of(&self.options, headers)
    }

    /// Whether a form may be applied.
    pub async fn check(&self, form: &BTreeMap<String, String>) -> Result<(), Problem> {
        if !self.is_token(form.get("csrf").map(String::as_str)) {
            return Err(Problem::new(StatusCode::FORBIDDEN, "This form is from an older page.")
                .hint("bugle web was started again since, or the form is not one of its own. Reload the page."));
        }
        let rights = self.rights().await?;
        if self.options.read_only || rights.is_read_only {
            return Err(Problem::new(StatusCode::FORBIDDEN, "This site is read-only.")
                .hint("It was started with --read-only, or the database is a standby."));
        }
        Ok(())
    }
}

/// The path before ours: of the options, or what a proxy says it removed.
pub fn base_of(options: &Options, headers: &HeaderMap) -> String {
    if !options.base_path.is_empty() {
        return options.base_path.clone();
    }
    let prefix = headers
        .get("x-forwarded-prefix")
        .and_then(|prefix| prefix.to_str().ok());
    let is_path = |path: &&str| {
        path.starts_with('/')
            && !path.starts_with("//")
            && path.chars().all(|c| c.is_ascii_alphanumeric() || "/-_.~".contains(c))
    };
    prefix
        .filter(is_path)
        .unwrap_or_default()
        .trim_end_matches('/')
        .to_owned()
}

/// Something went wrong, for a person.
#[derive(Debug, Clone)]
pub struct Problem {
    pub status: StatusCode,
    pub message: String,
    pub hint: Option<String>,
}

impl Problem {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Problem {
        Problem {
            status,
            message: message.into(),
            hint: None,
        }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Problem {
        self.hint = Some(hint.into());
        self
    }

    pub fn page(self, frame: Frame) -> Response {
        let status = self.status;
        let page = ErrorPage { frame, problem: self };
        (status, html(&page)).into_response()
    }
}

impl From<crate::Error> for Problem {
    fn from(error: crate::Error) -> Problem {
        let refusal = api::Refusal::from(error);
        let mut problem = Problem::new(refusal.status, refusal.message);
        problem.hint = refusal.hint;
        if problem.status == StatusCode::GATEWAY_TIMEOUT {
            problem.message = "The database took longer than 5 seconds for this, so it was cancelled.".to_owned();
            problem.hint = Some("Narrow the search: a state, a queue or a command makes it cheaper.".to_owned());
        }
        problem
    }
}

impl From<tokio_postgres::Error> for Problem {
    fn from(error: tokio_postgres::Error) -> Problem {
        crate::Error::from(error).into()
    }
}

#[derive(Template)]
#[template(path = "error.html")]
struct ErrorPage {
    frame: Frame,
    problem: Problem,
}

/// A page.
pub fn html(page: &impl Template) -> Response {
    match page.render() {
        Ok(text) => {
            let mut response = ([(CONTENT_TYPE, "text/html; charset=utf-8")], text).into_response();
            // a notice is shown once
            let gone = HeaderValue::from_static("bugle_notice=; Max-Age=0; HttpOnly; SameSite=Strict");
            response.headers_mut().append(SET_COOKIE, gone);
            response
        }
        Err(error) => {
            tracing::error!(event = "page", %error);
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

const NOTICE: &str = "bugle_notice";

/// How many seconds old the counts of a page are.
const AGE: HeaderName = HeaderName::from_static("bugle-age");

/// The header of a page that refreshes itself.
const REFRESH: HeaderName = HeaderName::from_static("bugle-refresh");

pub fn cookie(headers: &HeaderMap, name: &str) -> Option<String> {
    let cookies = headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|cookies| cookies.to_str().ok());
    let mut pairs = cookies
        .flat_map(|cookies| cookies.split("; "))
        .filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(given, _)| *given == name)?;
    Some(percent_decode_str(value).decode_utf8_lossy().into_owned())
}

/// Only paths of our own.
fn own_path(to: &str) -> &str {
    if to.starts_with('/') && !to.starts_with("//") && !to.contains('\\') {
        to
    } else {
        "/"
    }
}

/// Go to a page of this site, which shows the notice.
pub fn redirect(to: &str, notice: &str) -> Response {
    let to = own_path(to);
    let notice: String = notice.chars().take(500).collect();
    let notice = utf8_percent_encode(&notice, NON_ALPHANUMERIC).to_string();
    let cookie = format!("{NOTICE}={notice}; Max-Age=30; HttpOnly; SameSite=Strict");
    let mut response = StatusCode::SEE_OTHER.into_response();
    let headers = response.headers_mut();
    let place = HeaderValue::from_str(to).unwrap_or(HeaderValue::from_static("/"));
    headers.insert(LOCATION, place);
    if let Some(cookie) = HeaderValue::from_str(&cookie).ok().filter(|_| !notice.is_empty()) {
        headers.insert(SET_COOKIE, cookie);
    }
    response
}

pub type Fields = BTreeMap<String, String>;

/// Apply an operation that a form names.
async fn act(
    State(site): State<Shared>,
    Path(name): Path<String>,
    headers: HeaderMap,
    Form(form): Form<Fields>,
) -> Response {
    match act_once(&site, &name, &form).await {
        Ok((notice, job)) => {
            let back = form.get("back").map_or("/", String::as_str);
            match job {
                Some(job) => redirect(&format!("{}/jobs/{job}", site.base(&headers)), &notice),
                // its own page is gone
                None if name == "remove" => redirect(&format!("{}/jobs", site.base(&headers)), &notice),
                None if name == "remove_policy" => redirect(&format!("{}/policies", site.base(&headers)), &notice),
                None if name == "remove_schedule" => redirect(&format!("{}/schedules", site.base(&headers)), &notice),
                None => redirect(back, &notice),
            }
        }
        Err(problem) => {
            let mut frame = site.frame(&asked(headers), page_of(&name)).await;
            frame.here = form.get("back").map_or("/", |back| own_path(back)).to_owned();
            match Operation::named(&name) {
                // what was typed is not lost
                Some(_) if name == "enqueue_job" => pages::enqueue_again(&site, frame, &form, problem).await,
                Some(operation) if problem.status != StatusCode::FORBIDDEN => {
                    let a = Action::filled(operation, &form);
                    Confirm {
                        lists: Lists::of(&site, &a).await,
                        frame,
                        a,
                        problem: Some(problem),
                        times: Vec::new(),
                    }
                    .page()
                }
                _ => problem.page(frame),
            }
        }
    }
}

/// A page with the form of an operation: before it is done, and again if that failed.
#[derive(Template)]
#[template(path = "confirm.html")]
pub struct Confirm {
    pub frame: Frame,
    pub a: Action,
    pub lists: Lists,
    pub problem: Option<Problem>,
    /// The next times of a schedule, if they were asked for.
    pub times: Vec<Html>,
}

/// What completes the fields of a form.
#[derive(Debug, Clone, Default)]
pub struct Lists {
    pub commands: Vec<String>,
    pub queues: Vec<String>,
    pub policies: Vec<String>,
}

impl Lists {
    /// For an operation that has such fields. If it is not to be had, they are not completed.
    pub async fn of(site: &Shared, action: &Action) -> Lists {
        if action.fields.iter().all(|field| field.list().is_empty()) {
            return Lists::default();
        }
        Lists::read(site).await.unwrap_or_default()
    }

    async fn read(site: &Shared) -> Result<Lists, Problem> {
        const MOST: usize = 500;
        let snapshot = site.snapshot().await?;
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let commands = read::commands(&transaction).await?;
        let policies = read::policies(&transaction).await?;
        Ok(Lists {
            commands: commands.into_iter().map(|command| command.name).take(MOST).collect(),
            queues: (snapshot.queues.iter())
                .map(|queue| queue.queue.clone())
                .take(MOST)
                .collect(),
            policies: policies.into_iter().map(|policy| policy.name).take(MOST).collect(),
        })
    }
}

impl Confirm {
    pub fn page(self) -> Response {
        let status = self.problem.as_ref().map_or(StatusCode::OK, |problem| problem.status);
        (status, html(&self)).into_response()
    }
}

/// The form of an operation, with what is in the query.
async fn confirm(State(site): State<Shared>, Path(name): Path<String>, request: Asked) -> Response {
    let mut frame = site.frame(&request, page_of(&name)).await;
    let query = query_of(&request);
    let Some(operation) = Operation::named(&name) else {
        return unknown_operation(&name).page(frame);
    };
    if !frame.can_change {
        let hint = format!(
            "As the owner of the schema: grant bugle_operator to {};",
            frame.rights.login
        );
        let problem = Problem::new(StatusCode::FORBIDDEN, "This login may not change anything here.");
        return problem.hint(hint).page(frame);
    }
    let known: Vec<(&'static str, String)> = (operation.parameters.iter())
        .filter_map(|parameter| Some((parameter.name, query.get(parameter.name)?.to_owned())))
        .collect();
    frame.here = query.get("back").map(own_path).unwrap_or_default().to_owned();
    let action = Action::new(operation.name, label(operation.name), &known);
    let a = match operation.name {
        "drain_worker" | "cancel" | "remove" | "remove_queue" | "remove_schedule" | "remove_policy" => action.danger(),
        _ => action,
    };
    Confirm {
        lists: Lists::of(&site, &a).await,
        frame,
        a,
        problem: None,
        times: Vec::new(),
    }
    .page()
}

/// The form of a schedule again, with its next times. It is stored in a transaction that is rolled back.
async fn next_times(
    State(site): State<Shared>,
    Path(name): Path<String>,
    headers: HeaderMap,
    Form(form): Form<Fields>,
) -> Response {
    let mut frame = site.frame(&asked(headers), "schedules").await;
    frame.here = form.get("back").map_or("/", |back| own_path(back)).to_owned();
    let is_schedule = ["add_schedule", "change_schedule"].contains(&name.as_str());
    let Some(operation) = Operation::named(&name).filter(|_| is_schedule) else {
        return unknown_operation(&name).page(frame);
    };
    let times = async {
        site.check(&form).await?;
        let mut client = site.pool.get_or_explain().await?;
        let transaction = client.transaction().await?;
        api::limit(&transaction).await?;
        perform(&transaction, operation, &values_of(operation, &form)).await?;
        let schedule = form.get("name").map_or("", String::as_str);
        let times = read::next_times(&transaction, schedule, 5).await?;
        transaction.rollback().await?;
        Ok::<_, Problem>(times)
    };
    let (times, problem) = match times.await {
        Ok(times) => (times, None),
        Err(problem) => (Vec::new(), Some(problem)),
    };
    let zone = form.get("timezone").filter(|zone| !zone.trim().is_empty());
    let zone = zone.map_or("UTC", String::as_str);
    let a = Action::filled(operation, &form);
    Confirm {
        lists: Lists::of(&site, &a).await,
        frame,
        a,
        problem,
        times: (times.iter().take(5))
            .map(|(at, clock)| {
                Html(format!(
                    "{} <small class=\"dim\">{} {}</small>",
                    text::at(*at, text::Form::Moment),
                    text::escape(clock),
                    text::escape(zone)
                ))
            })
            .collect(),
    }
    .page()
}

/// The statement of a form, as it is filled in. Nothing is done.
async fn sql_of(State(site): State<Shared>, Path(name): Path<String>, Form(form): Form<Fields>) -> Response {
    let Some(operation) = Operation::named(&name).filter(|_| site.is_token(form.get("csrf").map(String::as_str)))
    else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let mut values = values_of(operation, &form);
    if name == "enqueue_job"
        && let Ok(job) = new_job(&form)
    {
        values = values.with(operation, "job", &job);
    }
    operation.sql(&values).into_response()
}

fn unknown_operation(name: &str) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, format!("There is no operation {name:?}."))
}

/// What was done, in words, and the job it enqueued.
async fn act_once(site: &Site, name: &str, form: &Fields) -> Result<(String, Option<i64>), Problem> {
    site.check(form).await?;
    let operation = Operation::named(name).ok_or_else(|| unknown_operation(name))?;
    let mut values = values_of(operation, form);
    if name == "enqueue_job" {
        values = values.with(operation, "job", &new_job(form)?);
    }
    let is_redacted = |name: &str| values.get(name).is_some_and(|value| value.contains("\"[redacted]\""));
    if operation.parameters.iter().any(|parameter| is_redacted(parameter.name)) {
        return Err(
            Problem::new(StatusCode::BAD_REQUEST, "There is a [redacted] value in it.")
                .hint("The page does not show such values. Write each of them, or leave its key out."),
        );
    }
    let mut client = site.pool.get_or_explain().await?;
    let transaction = client.transaction().await?;
    api::limit(&transaction).await?;
    let answer = perform(&transaction, operation, &values).await?;
    let Some(answer) = answer else {
        return Err(Problem::new(StatusCode::NOT_FOUND, "There is no such schedule."));
    };
    transaction.commit().await?;
    site.live.forget();
    let whom = ["id", "queue", "worker", "name", "command"]
        .iter()
        .find_map(|name| values.get(name));
    let whom = whom.map(|whom| format!(" {whom}")).unwrap_or_default();
    let said = label(operation.name);
    let (notice, job) = match operation.answer {
        Answer::Value("id", _) => {
            let job = answer["id"].as_i64();
            (format!("{said}: job {}", answer["id"]), job)
        }
        Answer::Value(name, _) => (format!("{said}{whom}: {name} {}", plain(&answer[name])), None),
        _ => (format!("{said}{whom}: done"), None),
    };
    Ok((notice, job))
}

fn plain(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The job of the form, as JSON. The payload stays as it was written, with all its digits.
fn new_job(form: &Fields) -> Result<String, Problem> {
    let field = |name: &str| form.get(name).map(|text| text.trim()).filter(|text| !text.is_empty());
    let payload = field("payload").unwrap_or("{}");
    if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(payload) {
        return Err(
            Problem::new(StatusCode::BAD_REQUEST, format!("The payload is not JSON: {error}."))
                .hint("Nothing was enqueued."),
        );
    }
    let mut parts = vec![format!("\"payload\": {payload}")];
    for name in ["command", "queue", "run_at", "unique_key"] {
        if let Some(text) = field(name) {
            parts.push(format!("\"{name}\": {}", serde_json::Value::from(text)));
        }
    }
    if let Some(priority) = field("priority") {
        let wrong = |_| Problem::new(StatusCode::BAD_REQUEST, "The priority is not a number.");
        parts.push(format!("\"priority\": {}", priority.parse::<i32>().map_err(wrong)?));
    }
    Ok(format!("{{{}}}", parts.join(", ")))
}

/// A transaction for a page: it can only read, and not for long.
pub async fn reading(client: &mut tokio_postgres::Client) -> Result<Transaction<'_>> {
    let transaction = client.build_transaction().read_only(true).start().await?;
    api::limit(&transaction).await?;
    Ok(transaction)
}

/// The query of a request.
pub fn query_of(request: &Asked) -> Query {
    Query::read(request.uri.query().unwrap_or_default())
}

/// A part of a URL.
pub fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Buttons, if this login may press them.
pub fn allowed(frame: &Frame, actions: Vec<Action>) -> Vec<Action> {
    if frame.can_change { actions } else { Vec::new() }
}
