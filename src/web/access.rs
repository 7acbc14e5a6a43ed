//! Who uses the browser: the login of the process, a Postgres login that signs in, or the one a proxy names.
//!
//! There is no second table of users. Each login has a [`Site`] of its own, with its own connections, and Postgres
//! decides what they may do. The server keeps sessions in memory: a browser only has a random number.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use askama::Template;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, COOKIE, HOST, RETRY_AFTER, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::api::Refusal;
use super::live::Live;
use super::server::Peer;
use super::site::{
    ICON, Options, Problem, Query, STYLE, Shared, Site, asset_named, base_of, cookie, html, redirect, router,
};
use crate::db::connect::{Pool, Target};
use crate::error::{Error, Result};

/// Who may use the site, and as which login.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Mode {
    /// Everyone who can reach it, as the login of the process.
    #[default]
    Open,
    /// Those who sign in with a Postgres login.
    Login,
    /// Those whom a proxy has authenticated: the header names a role that the login of the process may take on.
    Proxy {
        /// The name of the header.
        header: String,
        /// Only requests from these addresses are believed.
        from: Vec<IpAddr>,
    },
}

/// How many connections a person has at most.
const CONNECTIONS: usize = 2;
/// How many people can be signed in at once.
const MOST_SEATS: usize = 200;
/// A session without requests for this long is signed out.
const IDLE: Duration = Duration::from_secs(3600);
/// A password is asked for again after this time.
const LONGEST: Duration = Duration::from_secs(12 * 3600);
/// The longest name and the longest password.
const LONGEST_NAME: usize = 256;
/// The body of the form that signs in.
const LARGEST_FORM: usize = 4096;
const FORM_TIMEOUT: Duration = Duration::from_secs(10);
/// How many people can be signing in at once.
const AT_ONCE: usize = 4;
/// How long an idle connection is kept, and how long any.
const UNUSED: Duration = Duration::from_secs(5);
const OLDEST: Duration = Duration::from_secs(300);

const SESSION: &str = "bugle_session";
/// In the form that signs in and in a cookie: only a page of ours can send both.
const FORM: &str = "bugle_form";

/// What answers the requests of one login.
struct Seat {
    site: Shared,
    router: Router,
    since: Instant,
    used: Mutex<Instant>,
}

impl Seat {
    fn new(site: Shared, options: &Options) -> Arc<Seat> {
        Arc::new(Seat {
            router: router(site.clone(), None, options),
            site,
            since: Instant::now(),
            used: Mutex::new(Instant::now()),
        })
    }

    fn is_over(&self) -> bool {
        let used = *locked(&self.used);
        self.site.is_over() || used.elapsed() > IDLE || self.since.elapsed() > LONGEST
    }

    async fn answer(&self, request: Request) -> Response {
        *locked(&self.used) = Instant::now();
        call(&self.router, request).await
    }
}

/// The door: it finds out who asks, and hands the request to the site of that login.
pub struct Door {
    mode: Mode,
    target: Target,
    options: Arc<Options>,
    live: Arc<Live>,
    /// By the hash of the number in the cookie, or by the name that the proxy sent.
    seats: Mutex<HashMap<Vec<u8>, Arc<Seat>>>,
    /// For requests with the token of the API, and if everyone may enter.
    own: Option<Arc<Seat>>,
    attempts: Mutex<Attempts>,
    signing_in: Semaphore,
}

impl Door {
    /// # Errors
    /// If the database cannot be reached by the login of the process, where that is needed.
    pub async fn new(mode: Mode, target: &Target, options: Options) -> Result<Arc<Door>> {
        let options = Arc::new(options);
        let live = Arc::new(Live::default());
        if let Mode::Proxy { .. } = mode {
            target.client("bugle web").await?;
        }
        let own = match mode {
            Mode::Login | Mode::Proxy { .. } if options.token.is_none() => None,
            _ => {
                let pool = Pool::for_client(target, "web", 4)?;
                let site = Arc::new(Site::new(pool, options.clone(), live.clone(), false));
                site.rights().await?;
                let api = options.token.clone();
                let router = router(site.clone(), api, &options);
                Some(Arc::new(Seat {
                    site,
                    router,
                    since: Instant::now(),
                    used: Mutex::new(Instant::now()),
                }))
            }
        };
        Ok(Arc::new(Door {
            mode,
            target: target.clone(),
            options,
            live,
            seats: Mutex::default(),
            own,
            attempts: Mutex::default(),
            signing_in: Semaphore::new(AT_ONCE),
        }))
    }

    /// The router that stands before all others.
    pub fn router(self: Arc<Door>) -> Router {
        let enter = move |Extension(Peer(peer)): Extension<Peer>, request: Request| {
            let door = self.clone();
            async move { door.enter(peer, request).await }
        };
        Router::new().fallback(enter)
    }

    /// End idle sessions and close idle connections, until dropped.
    pub async fn tidy(self: Arc<Door>) {
        loop {
            tokio::time::sleep(Duration::from_secs(2)).await;
            self.tidy_once();
        }
    }

    /// What [`tidy`](Door::tidy) does every two seconds.
    pub fn tidy_once(&self) {
        let mut seats = locked(&self.seats);
        seats.retain(|_, seat| {
            if seat.is_over() {
                seat.site.end();
            }
            !seat.site.is_over()
        });
        for seat in seats.values().chain(&self.own) {
            seat.site.pool.close_unused(UNUSED, OLDEST);
        }
    }

    /// Find out who asks, and answer.
    pub async fn enter(&self, peer: IpAddr, request: Request) -> Response {
        let (path, is_api) = {
            let path = request.uri().path();
            let Some(path) = path.strip_prefix(self.options.base_path.as_str()) else {
                return StatusCode::NOT_FOUND.into_response();
            };
            (path.to_owned(), path.starts_with("/api/"))
        };
        if let Some(name) = path.strip_prefix("/assets/") {
            return asset_named(name);
        }
        let has_token = is_api && request.headers().contains_key(AUTHORIZATION);
        match (&self.mode, &self.own) {
            (Mode::Open, Some(own)) => return own.answer(request).await,
            (_, Some(own)) if has_token && self.options.token.is_some() => return own.answer(request).await,
            _ => {}
        }
        match &self.mode {
            Mode::Proxy { header, from } => match self.named_by_proxy(peer, request.headers(), header, from) {
                Ok(seat) => match self.admit(&seat).await {
                    Ok(()) => seat.answer(request).await,
                    Err(problem) if seat.site.is_over() => {
                        let hint = format!(
                            "{}. As an owner: grant ROLE to {}; grant bugle_viewer to ROLE; and it must be a login.",
                            problem.message,
                            quoted(self.target.user())
                        );
                        let message = "The database does not let this site act as the role that the proxy names.";
                        let problem = Problem::new(StatusCode::FORBIDDEN, message).hint(hint);
                        self.refuse(is_api, request.headers(), problem)
                    }
                    Err(problem) => self.refuse(is_api, request.headers(), problem),
                },
                Err(problem) => self.refuse(is_api, request.headers(), problem),
            },
            _ => match (path.as_str(), request.method()) {
                ("/login", &Method::POST) => self.sign_in(peer, request).await,
                ("/login", _) => self.form(request.headers(), &request, None),
                ("/logout", &Method::POST) => self.sign_out(request).await,
                _ => self.seated(request, is_api).await,
            },
        }
    }

    /// A request with a session; without one, the form.
    async fn seated(&self, request: Request, is_api: bool) -> Response {
        let seat = self.seat_of(request.headers());
        if let Some(seat) = seat {
            match self.admit(&seat).await {
                Ok(()) => return seat.answer(request).await,
                // the database is down: that does not end a session
                Err(problem) if !seat.site.is_over() => return seat.site.explain(request, problem).await,
                Err(_) => {}
            }
        }
        let wants_page = request.method() == Method::GET && !request.uri().path().ends_with("/live");
        if is_api || !wants_page {
            let hint = "Sign in first: the session has ended, or there was none.";
            let refusal = Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", "you are not signed in").hint(hint);
            return if is_api {
                refusal.into_response()
            } else {
                self.refuse(
                    false,
                    request.headers(),
                    Problem::new(StatusCode::UNAUTHORIZED, "Your session has ended.")
                        .hint("Nothing was changed. Sign in again, then go back and repeat it."),
                )
            };
        }
        let base = base_of(&self.options, request.headers());
        let here = request.uri().path_and_query().map_or("/", |path| path.as_str());
        redirect(&format!("{base}/login?to={}", super::site::encoded(here)), "")
    }

    fn seat_of(&self, headers: &HeaderMap) -> Option<Arc<Seat>> {
        let key = hashed(&cookie(headers, SESSION)?);
        let seat = locked(&self.seats).get(&key).cloned()?;
        if seat.is_over() {
            seat.site.end();
            locked(&self.seats).remove(&key);
            return None;
        }
        Some(seat)
    }

    /// Whether the login still exists and may log in: it is asked again every few seconds.
    async fn admit(&self, seat: &Seat) -> std::result::Result<(), Problem> {
        let ended = match seat.site.rights().await {
            Ok(rights) if rights.can_log_in => return Ok(()),
            Ok(_) => Problem::new(StatusCode::FORBIDDEN, "This login may no longer log in."),
            Err(error) if !is_about_login(&error) => return Err(error.into()),
            Err(error) => Problem::from(error),
        };
        seat.site.end();
        Err(ended)
    }

    fn named_by_proxy(
        &self,
        peer: IpAddr,
        headers: &HeaderMap,
        header: &str,
        from: &[IpAddr],
    ) -> std::result::Result<Arc<Seat>, Problem> {
        if !from.contains(&peer.to_canonical()) {
            return Err(
                Problem::new(StatusCode::FORBIDDEN, "This address may not use the site.")
                    .hint("Only the proxy may: --trust-from lists its address."),
            );
        }
        let mut names = headers.get_all(header).iter();
        let name = names.next().and_then(|name| name.to_str().ok()).unwrap_or_default();
        if name.is_empty() || name.len() > LONGEST_NAME || names.next().is_some() {
            return Err(Problem::new(
                StatusCode::UNAUTHORIZED,
                "The proxy did not send the header with your role.",
            )
            .hint(format!(
                "It has to send the header {header} once, with the name of a Postgres role."
            )));
        }
        let key = name.as_bytes().to_vec();
        let mut seats = locked(&self.seats);
        if let Some(seat) = seats.get(&key).filter(|seat| !seat.is_over()) {
            return Ok(seat.clone());
        }
        self.make_room(&mut seats);
        let pool = Pool::for_role(&self.target, "web", CONNECTIONS, name)?;
        let site = Site::new(pool, self.options.clone(), self.live.clone(), false);
        let seat = Seat::new(Arc::new(site), &self.options);
        seats.insert(key, seat.clone());
        Ok(seat)
    }

    /// The one that was used the longest time ago goes.
    fn make_room(&self, seats: &mut HashMap<Vec<u8>, Arc<Seat>>) {
        while seats.len() >= MOST_SEATS {
            let oldest = seats.iter().min_by_key(|(_, seat)| *locked(&seat.used));
            let Some(key) = oldest.map(|(key, _)| key.clone()) else {
                return;
            };
            if let Some(seat) = seats.remove(&key) {
                seat.site.end();
            }
        }
    }

    async fn sign_in(&self, peer: IpAddr, request: Request) -> Response {
        let headers = request.headers().clone();
        let body = tokio::time::timeout(FORM_TIMEOUT, to_bytes(request.into_body(), LARGEST_FORM)).await;
        let Ok(Ok(body)) = body else {
            let problem = Problem::new(
                StatusCode::BAD_REQUEST,
                "The form is too large, or was sent too slowly.",
            );
            return self.refuse(false, &headers, problem);
        };
        let form = Query::read(&String::from_utf8_lossy(&body));
        let to = form.get("to").unwrap_or_default().to_owned();
        match self.try_to_sign_in(peer, &headers, &form).await {
            Ok(token) => {
                let base = base_of(&self.options, &headers);
                let to = if to.starts_with(&format!("{base}/")) {
                    to
                } else {
                    format!("{base}/")
                };
                let mut response = redirect(&to, "");
                add_cookie(&mut response, SESSION, &token, "");
                add_cookie(&mut response, FORM, "", "; Max-Age=0");
                response
            }
            Err(problem) => {
                tracing::info!(event = "sign_in", %peer, status = problem.status.as_u16(), "refused");
                self.form_again(&headers, &to, Some(problem))
            }
        }
    }

    async fn try_to_sign_in(
        &self,
        peer: IpAddr,
        headers: &HeaderMap,
        form: &Query,
    ) -> std::result::Result<String, Problem> {
        let given = cookie(headers, FORM).filter(|given| !given.is_empty());
        if given.is_none() || given.as_deref() != form.get("form") {
            return Err(Problem::new(StatusCode::FORBIDDEN, "This form is from an older page.")
                .hint("Try again. If that does not help, allow cookies of this site."));
        }
        let (Some(login), Some(password)) = (form.get("login"), form.get("password")) else {
            return Err(Problem::new(StatusCode::BAD_REQUEST, "Give a login and its password."));
        };
        if login.len() > LONGEST_NAME || password.len() > LONGEST_NAME || form.get("login").is_some_and(has_nul) {
            return Err(Problem::new(StatusCode::BAD_REQUEST, "There is no such login."));
        }
        locked(&self.attempts).count(login, peer)?;
        let _one_of_few = self.signing_in.acquire().await.expect("it is never closed");
        let is_asked = self.target.with_login_and_no_password(login).client("bugle web").await;
        if is_asked.is_ok() {
            return Err(Problem::new(
                StatusCode::FORBIDDEN,
                "The database does not ask this login for a password.",
            )
            .hint("Anyone could sign in with its name. Set scram-sha-256 for it in pg_hba.conf (SHOW hba_file)."));
        }
        let target = self.target.with_login(login, password);
        let pool = Pool::for_client(&target, "web", CONNECTIONS)?;
        let site = Arc::new(Site::new(pool, self.options.clone(), self.live.clone(), true));
        let rights = site.rights().await.map_err(|error| match error.sqlstate() {
            Some("42501" | "3F000" | "42P01" | "42883") => {
                Problem::new(StatusCode::FORBIDDEN, format!("The login {login} has no Bugle role.")).hint(format!(
                    "As the owner of the schema: grant bugle_viewer to {};",
                    quoted(login)
                ))
            }
            _ if is_about_login(&error) => Problem::new(
                StatusCode::FORBIDDEN,
                "The login or the password is wrong, or it may not connect.",
            ),
            _ => Problem::from(error),
        })?;
        if !rights.can_log_in {
            return Err(Problem::new(StatusCode::FORBIDDEN, "This login may not log in."));
        }
        locked(&self.attempts).succeeded(login, peer);
        let token = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
        let seat = Seat::new(site, &self.options);
        let mut seats = locked(&self.seats);
        if let Some(old) = cookie(headers, SESSION).and_then(|old| seats.remove(&hashed(&old))) {
            old.site.end();
        }
        self.make_room(&mut seats);
        seats.insert(hashed(&token), seat);
        tracing::info!(event = "sign_in", %peer, login, "signed in");
        Ok(token)
    }

    /// End this session, or all of this login.
    async fn sign_out(&self, request: Request) -> Response {
        let headers = request.headers().clone();
        let body = tokio::time::timeout(FORM_TIMEOUT, to_bytes(request.into_body(), LARGEST_FORM)).await;
        let body = body.ok().and_then(std::result::Result::ok).unwrap_or_default();
        let form = Query::read(&String::from_utf8_lossy(&body));
        if let Some(seat) = self.seat_of(&headers) {
            if !seat.site.is_token(form.get("csrf")) {
                let problem = Problem::new(StatusCode::FORBIDDEN, "This form is from an older page.");
                return self.refuse(false, &headers, problem);
            }
            let login = seat.site.login().await;
            seat.site.end();
            if form.get("everywhere").is_some() {
                let seats: Vec<Arc<Seat>> = locked(&self.seats).values().cloned().collect();
                for other in seats {
                    if other.site.login().await == login {
                        other.site.end();
                    }
                }
            }
            locked(&self.seats).retain(|_, seat| !seat.site.is_over());
        }
        let base = base_of(&self.options, &headers);
        let mut response = redirect(&format!("{base}/login"), "");
        add_cookie(&mut response, SESSION, "", "; Max-Age=0");
        response
    }

    fn form(&self, headers: &HeaderMap, request: &Request, problem: Option<Problem>) -> Response {
        let to = Query::read(request.uri().query().unwrap_or_default());
        self.form_again(headers, to.get("to").unwrap_or_default(), problem)
    }

    fn form_again(&self, headers: &HeaderMap, to: &str, problem: Option<Problem>) -> Response {
        let base = base_of(&self.options, headers);
        let form = uuid::Uuid::new_v4().simple().to_string();
        let is_https = headers.get("x-forwarded-proto").is_some_and(|proto| proto == "https");
        let page = Entrance {
            style: format!("{base}{}", STYLE.url),
            icon: format!("{base}{}", ICON.url),
            name: self.options.name.clone().unwrap_or_default(),
            color: self.options.color.clone().unwrap_or_else(|| "blue".to_owned()),
            database: self.target.database().to_owned(),
            needs_https: is_secure(headers) && !is_https,
            can_sign_in: true,
            to: to.to_owned(),
            form: form.clone(),
            base,
            problem,
        };
        let status = page.problem.as_ref().map_or(StatusCode::OK, |problem| problem.status);
        let mut response = (status, html(&page)).into_response();
        add_cookie(&mut response, FORM, &form, "; Max-Age=3600");
        if status == StatusCode::TOO_MANY_REQUESTS {
            response
                .headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from_static("60"));
        }
        response
    }

    /// Without a login there is no frame to show the problem in.
    fn refuse(&self, is_api: bool, headers: &HeaderMap, problem: Problem) -> Response {
        if is_api {
            let mut refusal = Refusal::new(problem.status, "unauthorized", problem.message);
            refusal.hint = problem.hint;
            return refusal.into_response();
        }
        let base = base_of(&self.options, headers);
        let page = Entrance {
            style: format!("{base}{}", STYLE.url),
            icon: format!("{base}{}", ICON.url),
            name: self.options.name.clone().unwrap_or_default(),
            color: self.options.color.clone().unwrap_or_else(|| "blue".to_owned()),
            database: self.target.database().to_owned(),
            needs_https: false,
            can_sign_in: false,
            to: String::new(),
            form: String::new(),
            problem: Some(problem),
            base,
        };
        let status = page.problem.as_ref().map_or(StatusCode::OK, |problem| problem.status);
        (status, html(&page)).into_response()
    }
}

#[derive(Template)]
#[template(path = "login.html")]
struct Entrance {
    base: String,
    style: String,
    icon: String,
    name: String,
    color: String,
    database: String,
    /// Whether the browser would not keep the cookie.
    needs_https: bool,
    can_sign_in: bool,
    to: String,
    form: String,
    problem: Option<Problem>,
}

/// Wrong passwords of the last minutes. Counted before a password is tried, so that many at once gain nothing.
#[derive(Debug, Default)]
struct Attempts {
    by_both: HashMap<(String, IpAddr), Vec<Instant>>,
    by_login: HashMap<String, Vec<Instant>>,
    by_address: HashMap<IpAddr, Vec<Instant>>,
}

impl Attempts {
    /// For how long an attempt counts.
    const PERIOD: Duration = Duration::from_secs(300);
    const MOST_BY_BOTH: usize = 5;
    const MOST_BY_LOGIN: usize = 50;
    const MOST_BY_ADDRESS: usize = 30;
    /// Beyond this, new ones are refused until old ones have expired.
    const MOST_KEYS: usize = 10_000;

    fn count(&mut self, login: &str, peer: IpAddr) -> std::result::Result<(), Problem> {
        let now = Instant::now();
        let both = (login.to_owned(), peer);
        let is_free = counted(&mut self.by_both, &both, now) < Self::MOST_BY_BOTH
            && counted(&mut self.by_login, &both.0, now) < Self::MOST_BY_LOGIN
            && counted(&mut self.by_address, &peer, now) < Self::MOST_BY_ADDRESS
            && self.by_both.len() < Self::MOST_KEYS;
        if !is_free {
            if self.by_both.len() >= Self::MOST_KEYS {
                self.forget_old(now);
            }
            return Err(
                Problem::new(StatusCode::TOO_MANY_REQUESTS, "There were too many attempts.")
                    .hint("Wait five minutes, then try again."),
            );
        }
        self.by_login.entry(both.0.clone()).or_default().push(now);
        self.by_both.entry(both).or_default().push(now);
        self.by_address.entry(peer).or_default().push(now);
        Ok(())
    }

    fn succeeded(&mut self, login: &str, peer: IpAddr) {
        self.by_both.remove(&(login.to_owned(), peer));
        for attempts in [self.by_login.get_mut(login), self.by_address.get_mut(&peer)] {
            attempts.and_then(Vec::pop);
        }
    }

    fn forget_old(&mut self, now: Instant) {
        let is_new = |attempts: &Vec<Instant>| attempts.iter().any(|at| now.duration_since(*at) < Self::PERIOD);
        self.by_both.retain(|_, attempts| is_new(attempts));
        self.by_login.retain(|_, attempts| is_new(attempts));
        self.by_address.retain(|_, attempts| is_new(attempts));
    }
}

fn counted<K: std::hash::Hash + Eq>(known: &mut HashMap<K, Vec<Instant>>, key: &K, now: Instant) -> usize {
    let Some(attempts) = known.get_mut(key) else {
        return 0;
    };
    attempts.retain(|at| now.duration_since(*at) < Attempts::PERIOD);
    let count = attempts.len();
    if count == 0 {
        known.remove(key);
    }
    count
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hashed(token: &str) -> Vec<u8> {
    Sha256::digest(token).to_vec()
}

fn has_nul(text: &str) -> bool {
    text.contains('\0')
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Whether the server refused the login itself: its password, `pg_hba.conf`, `NOLOGIN`, a role that is gone or may not
/// be taken on.
fn is_about_login(error: &Error) -> bool {
    error
        .sqlstate()
        .is_some_and(|code| code.starts_with("28") || ["22023", "42501", "42704"].contains(&code))
}

/// Cookies are sent over HTTPS only, except on this machine.
fn is_secure(headers: &HeaderMap) -> bool {
    let host = headers
        .get(HOST)
        .and_then(|host| host.to_str().ok())
        .unwrap_or_default();
    let name = host
        .rsplit_once(':')
        .map_or(host, |(name, port)| match port.parse::<u16>() {
            Ok(_) => name,
            Err(_) => host,
        });
    let name = name.trim_matches(['[', ']']);
    let is_loopback = name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    !is_loopback
}

fn add_cookie(response: &mut Response, name: &str, value: &str, more: &str) {
    let text = format!("{name}={value}; HttpOnly; SameSite=Strict{more}");
    if let Ok(value) = HeaderValue::from_str(&text) {
        response.headers_mut().append(SET_COOKIE, value);
    }
}

/// The cookies of one site. A browser sends cookies to every port of a host, so each site has names of its own.
pub struct OwnCookies {
    options: Options,
    suffix: String,
}

impl OwnCookies {
    /// For the site of this database on this port.
    pub fn new(options: Options, target: &Target, port: u16) -> OwnCookies {
        let name = options.name.as_deref().unwrap_or_default();
        let instance = format!("{port} {} {} {name}", options.base_path, target.database());
        let hash = hashed(&instance);
        OwnCookies {
            suffix: hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect(),
            options,
        }
    }
}

/// Inside, cookies have short names. Browsers know them under the names of this site, and for its path only.
pub async fn own_cookies(State(own): State<Arc<OwnCookies>>, mut request: Request, next: Next) -> Response {
    let suffix = format!("_{}", own.suffix);
    let given: Vec<String> = (request.headers().get_all(COOKIE).iter())
        .filter_map(|cookies| cookies.to_str().ok())
        .flat_map(|cookies| cookies.split("; "))
        .filter_map(|cookie| {
            let (name, value) = cookie.split_once('=')?;
            Some(format!("{}={value}", name.strip_suffix(suffix.as_str())?))
        })
        .collect();
    let path = base_of(&own.options, request.headers());
    let path = if path.is_empty() { "/" } else { &path };
    let secure = if is_secure(request.headers()) { "; Secure" } else { "" };
    request.headers_mut().remove(COOKIE);
    if let Ok(given) = HeaderValue::from_str(&given.join("; ")) {
        request.headers_mut().insert(COOKIE, given);
    }
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    let cookies: Vec<HeaderValue> = headers.get_all(SET_COOKIE).iter().cloned().collect();
    headers.remove(SET_COOKIE);
    for cookie in cookies.iter().filter_map(|cookie| cookie.to_str().ok()) {
        if let Some((name, value)) = cookie.split_once('=')
            && let Ok(cookie) = HeaderValue::from_str(&format!("{name}{suffix}={value}; Path={path}{secure}"))
        {
            headers.append(SET_COOKIE, cookie);
        }
    }
    response
}

async fn call(router: &Router, request: Request<Body>) -> Response {
    match tower_service::Service::call(&mut router.clone(), request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_are_counted_by_login_and_by_address() {
        let mut attempts = Attempts::default();
        let (here, there) = ([127, 0, 0, 1].into(), [127, 0, 0, 2].into());
        for _ in 0..Attempts::MOST_BY_BOTH {
            attempts.count("ada", here).unwrap();
        }

        assert_eq!(
            attempts.count("ada", here).unwrap_err().status,
            StatusCode::TOO_MANY_REQUESTS
        );
        attempts.count("ada", there).unwrap();
        attempts.succeeded("ada", here);
        attempts.count("ada", here).unwrap();
        for login in 0..Attempts::MOST_BY_ADDRESS {
            let _ = attempts.count(&format!("login {login}"), here);
        }
        assert!(attempts.count("bob", here).is_err() && attempts.count("bob", there).is_ok());
    }

    #[test]
    fn cookies_are_for_https_unless_on_this_machine() {
        let secure = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, host.parse().unwrap());
            is_secure(&headers)
        };

        assert!(!secure("localhost:8420") && !secure("127.0.0.1:8420") && !secure("[::1]:8420") && !secure("[::1]"));
        assert!(secure("jobs.example.org") && secure("10.0.0.7:8420") && secure("127.0.0.1.example.org"));
    }
}
