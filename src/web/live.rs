//! Data that changes all the time, queried once for all browsers: all pages that show it share the answer, and there is
//! no query while no page is open.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use serde_json::json;
use tokio::sync::watch;
use tokio_postgres::Transaction;

use super::kept::{Kept, Pace, Reading};
use super::site::{Problem, Shared, Site, reading};
use crate::db::connect::Connection;
use crate::read::{
    self, BlockedKey, Bucket, CommandStats, ErrorGroup, Finding, Queue, Safety, Unserved, Waits, WorkerLine,
};
use crate::state::WorkerState;

/// How old an answer may be, if it was cheap.
pub const FRESH: Duration = Duration::from_millis(1500);
/// The same for the findings of the doctor, and for the figures of the doorbell, late updates and rescues. Charts are
/// kept for as long as their range says.
const CHECKED: Duration = Duration::from_secs(30);
const SAFE: Duration = Duration::from_secs(10);
/// How long a page waits for an answer if it can do without. If that takes longer, a later page shows it.
const PATIENCE: Duration = Duration::from_millis(120);
/// How long it waits if it cannot.
const PATIENT: Duration = Duration::from_secs(9);
/// How often browsers are told.
const TICK: Duration = Duration::from_secs(2);

/// What watching may cost the database, in shares of a core: whatever is read for pages that refresh themselves has
/// one of these, so that no number of browsers and no size of the database makes it cost more. A reading that took a
/// second is repeated after 400, 1,000 or 2,000 seconds; people who open a page do not wait for that.
const COUNTS: f64 = 0.0025;
/// Of all periods that are watched.
const CHARTS: f64 = 0.001;
const FINDINGS: f64 = 0.0005;
const SAFETY: f64 = 0.0005;
/// What the pages themselves query.
const PAGES: f64 = 0.002;
/// Of which this much can be saved up.
const MOST: Duration = Duration::from_millis(100);
/// For how long a period counts as watched.
const WATCHED: Duration = Duration::from_secs(15);

tokio::task_local! {
    /// Set while a page is answered that only refreshes itself: nobody waits for it.
    pub static IS_REFRESH: ();
}

fn is_refresh() -> bool {
    IS_REFRESH.try_with(|()| ()).is_ok()
}

/// How often an answer is read again for the page under way.
fn pace(least: Duration, share: f64) -> Pace {
    match is_refresh() {
        true => Pace::watched(least, share),
        false => Pace::opened(least),
    }
}

/// The state of everything at one moment.
#[derive(Debug)]
pub struct Snapshot {
    pub now: SystemTime,
    /// Whether the jobs of the queues are counted. If not, there are no queues in it.
    pub is_counted: bool,
    pub queues: Vec<Queue>,
    pub workers: Vec<WorkerLine>,
    pub unserved: Vec<Unserved>,
    pub stats: Vec<CommandStats>,
    pub errors: Vec<ErrorGroup>,
    /// Order keys that block jobs of queues with free slots.
    pub blocked: Vec<(String, BlockedKey)>,
}

tokio::task_local! {
    /// How old the oldest counts and charts are that the page under way shows.
    static AGE: Cell<Duration>;
    /// When it was begun, and whether something is left out of it since it was not known in time.
    static PAGE: (Instant, Cell<bool>);
}

/// Make a page, and say how old its counts are.
pub async fn with_age<T>(page: impl Future<Output = T>) -> (T, Duration) {
    let made = async { (page.await, AGE.with(Cell::get)) };
    AGE.scope(Cell::new(Duration::ZERO), made).await
}

/// Make a page, which waits only so long for what it can do without.
pub async fn without_waiting<T>(page: impl Future<Output = T>) -> T {
    PAGE.scope((Instant::now(), Cell::new(false)), page).await
}

/// How long the page under way still waits.
fn patience() -> Duration {
    let waited = PAGE.try_with(|(began, _)| began.elapsed());
    PATIENCE.saturating_sub(waited.unwrap_or_default())
}

/// Whether something is left out of the page under way, since it was not known in time.
pub fn is_counting() -> bool {
    PAGE.try_with(|(_, is_counting)| is_counting.get()).unwrap_or(false)
}

fn leave_out() {
    let _ = PAGE.try_with(|(_, is_counting)| is_counting.set(true));
}

/// The page under way shows what was read then.
fn shows(read_at: Instant) {
    // a page that nobody watches has no age
    let _ = AGE.try_with(|age| age.set(age.get().max(read_at.elapsed())));
}

/// How workers wait, and what kept jobs safe.
type Safe = (Vec<Waits>, Safety);

/// A period.
#[derive(Debug, Default)]
pub struct Measured {
    pub total: Bucket,
    pub buckets: Vec<Bucket>,
    /// How many attempts completed and failed in the same hours before.
    pub before: (i64, i64),
}

/// Answers that are kept for a moment.
#[derive(Default)]
pub struct Live {
    snapshot: Arc<Kept<Snapshot>>,
    findings: Arc<Kept<Vec<Finding>>>,
    safety: Arc<Kept<Safe>>,
    charts: [Chart; RANGES.len()],
    /// Locked while one of them is read.
    turn: tokio::sync::Mutex<()>,
    watchers: Mutex<Watchers>,
    news: watch::Sender<String>,
    refreshing: Mutex<Refreshing>,
}

/// A period, and when a page watched it last.
#[derive(Default)]
struct Chart {
    measured: Arc<Kept<Measured>>,
    watched: Mutex<Option<Instant>>,
}

impl Chart {
    fn watched(&self) -> MutexGuard<'_, Option<Instant>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What refreshing pages may still take.
struct Refreshing {
    left: f64,
    since: Instant,
}

impl Default for Refreshing {
    fn default() -> Refreshing {
        Refreshing {
            left: MOST.as_secs_f64(),
            since: Instant::now(),
        }
    }
}

impl Refreshing {
    fn has_time(&mut self, now: Instant) -> bool {
        let gained = now.saturating_duration_since(self.since).as_secs_f64() * PAGES;
        self.left = (self.left + gained).min(MOST.as_secs_f64());
        self.since = now;
        self.left > 0.0
    }
}

/// The sites with open pages. One task queries for all of them.
#[derive(Default)]
struct Watchers {
    next: u64,
    sites: BTreeMap<u64, Shared>,
    is_asking: bool,
}

/// A period that charts can show.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    pub name: &'static str,
    pub label: &'static str,
    pub since: &'static str,
    /// What it is compared with: the same length of time that ended this long ago, and how that is called.
    pub before: &'static str,
    pub compared: &'static str,
    pub bucket: Duration,
    pub buckets: u32,
    /// How old its chart may be.
    pub fresh: Duration,
}

pub const RANGES: [Range; 4] = [
    Range {
        name: "1h",
        label: "1 h",
        since: "1 hour",
        before: "1 day",
        compared: "the same hour yesterday",
        bucket: Duration::from_secs(60),
        buckets: 60,
        fresh: Duration::from_secs(5),
    },
    Range {
        name: "6h",
        label: "6 h",
        since: "6 hours",
        before: "1 day",
        compared: "the same hours yesterday",
        bucket: Duration::from_secs(300),
        buckets: 72,
        fresh: Duration::from_secs(30),
    },
    Range {
        name: "24h",
        label: "24 h",
        since: "24 hours",
        before: "1 day",
        compared: "the day before",
        bucket: Duration::from_secs(900),
        buckets: 96,
        fresh: Duration::from_secs(60),
    },
    Range {
        name: "7d",
        label: "7 d",
        since: "7 days",
        before: "7 days",
        compared: "the week before",
        bucket: Duration::from_secs(7200),
        buckets: 84,
        fresh: Duration::from_secs(300),
    },
];

impl Live {
    /// After a change: the next page shows it.
    pub fn forget(&self) {
        self.snapshot.forget();
        self.findings.forget();
    }

    /// What needs attention, of the latest answer: no page waits for it.
    pub fn counts(&self) -> Vec<(&'static str, usize, &'static str)> {
        let Some(snapshot) = self.snapshot.latest() else {
            return Vec::new();
        };
        let paused = snapshot
            .queues
            .iter()
            .filter(|queue| queue.paused_since.is_some())
            .count();
        let workers = snapshot
            .workers
            .iter()
            .filter(|worker| worker.state == WorkerState::Lost)
            .count();
        [
            ("queues", paused, "queues are paused"),
            (
                "commands",
                snapshot.unserved.len(),
                "commands with ready jobs that no worker serves",
            ),
            ("workers", workers, "workers are lost"),
            ("errors", snapshot.errors.len(), "groups of errors in the last hour"),
        ]
        .into_iter()
        .filter(|(_, count, _)| *count > 0)
        .collect()
    }

    /// Whether a page may be refreshed now.
    pub fn has_time(&self) -> bool {
        self.refreshing().has_time(Instant::now())
    }

    /// A page was refreshed, in this time.
    pub fn spend(&self, time: Duration) {
        self.refreshing().left -= time.as_secs_f64();
    }

    fn refreshing(&self) -> MutexGuard<'_, Refreshing> {
        self.refreshing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The share of one of the periods that are watched now. This one is, if its page is only refreshed.
    fn share_of_chart(&self, chart: &Chart) -> f64 {
        if is_refresh() {
            *chart.watched() = Some(Instant::now());
        }
        let is_watched = |chart: &&Chart| chart.watched().is_some_and(|at| at.elapsed() < WATCHED);
        CHARTS / self.charts.iter().filter(is_watched).count().max(1) as f64
    }

    fn watchers(&self) -> MutexGuard<'_, Watchers> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Query for all open pages, and update them, until none is left.
    async fn ask(self: Arc<Live>) {
        loop {
            let site = {
                let mut watchers = self.watchers();
                watchers.sites.retain(|_, site| !site.is_over());
                match watchers.sites.values().next() {
                    Some(site) => site.clone(),
                    None => {
                        watchers.is_asking = false;
                        // those whose session has ended find out
                        self.news.send_replace(String::new());
                        return;
                    }
                }
            };
            self.news.send_replace(site.news().await);
            drop(site);
            tokio::time::sleep(TICK).await;
        }
    }
}

/// A browser that watches. It stops when dropped.
struct Watcher {
    number: u64,
    site: Shared,
}

impl Watcher {
    fn new(site: Shared) -> Watcher {
        let mut watchers = site.live.watchers();
        watchers.next += 1;
        let number = watchers.next;
        watchers.sites.insert(number, site.clone());
        if !std::mem::replace(&mut watchers.is_asking, true) {
            tokio::spawn(site.live.clone().ask());
        }
        drop(watchers);
        Watcher { number, site }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.site.live.watchers().sites.remove(&self.number);
    }
}

impl Site {
    /// The answer to a question, which is kept for all who ask it and may. None if the page can do without, and does
    /// not know it in time.
    async fn ask<T, F>(
        &self,
        kept: &Arc<Kept<T>>,
        pace: Pace,
        patience: Duration,
        read: impl Fn(Connection) -> F + Clone + Send + 'static,
    ) -> Result<Option<Arc<T>>, Problem>
    where
        T: Send + Sync + 'static,
        F: Future<Output = Result<T, Problem>> + Send + 'static,
    {
        if !self.rights().await?.can_read {
            return Ok(Some(Arc::new(read(self.pool.get_or_explain().await?).await?)));
        }
        let timed = || {
            let (pool, live, read) = (self.pool.clone(), self.live.clone(), read.clone());
            async move {
                // beside one another, they would take the connections of the pages, and each the time of the others
                let _turn = live.turn.lock().await;
                let connection = match pool.get_or_explain().await {
                    Ok(connection) => connection,
                    Err(error) => return Reading::free(Err(error.into())),
                };
                let began = Instant::now();
                let result = read(connection).await;
                Reading::new(result, began.elapsed())
            }
        };
        // who only watches does not wait: a later page has it
        let patience = if is_refresh() { Duration::ZERO } else { patience };
        let answer = kept.ask(pace, patience, timed).await?;
        Ok(answer.map(|(read_at, value)| {
            shows(read_at);
            value
        }))
    }

    /// What all pages share. If it is not known in time, all of it but the counts.
    pub async fn snapshot(&self) -> Result<Arc<Snapshot>, Problem> {
        let kept = &self.live.snapshot;
        let known = self.ask(kept, pace(FRESH, COUNTS), patience(), Snapshot::read).await?;
        match known {
            Some(snapshot) => Ok(snapshot),
            None => {
                leave_out();
                let connection = self.pool.get_or_explain().await?;
                Ok(Arc::new(Snapshot::without_counts(connection).await?))
            }
        }
    }

    /// The same, for a page that cannot do without the counts.
    pub async fn snapshot_with_counts(&self) -> Result<Arc<Snapshot>, Problem> {
        let kept = &self.live.snapshot;
        let known = self.ask(kept, pace(FRESH, COUNTS), PATIENT, Snapshot::read).await?;
        known.ok_or_else(not_yet)
    }

    /// What browsers are told.
    async fn news(&self) -> String {
        let kept = &self.live.snapshot;
        match self
            .ask(kept, Pace::watched(FRESH, COUNTS), PATIENT, Snapshot::read)
            .await
        {
            Ok(snapshot) => {
                let queues = || snapshot.iter().flat_map(|snapshot| &snapshot.queues);
                let sum = |of: fn(&Queue) -> i64| queues().map(of).sum::<i64>();
                let news = json!({ "ready": sum(|queue| queue.ready), "running": sum(|queue| queue.running) });
                format!("event: tick\ndata: {news}\n\n")
            }
            Err(problem) => format!("event: stale\ndata: {}\n\n", json!({ "message": problem.message })),
        }
    }

    /// What the doctor says, if that is known in time.
    pub async fn findings_soon(&self) -> Option<Arc<Vec<Finding>>> {
        let kept = &self.live.findings;
        let known = self.ask(kept, pace(CHECKED, FINDINGS), patience(), findings).await;
        let known = known.ok().flatten();
        if known.is_none() {
            leave_out();
        }
        known
    }

    pub async fn findings(&self) -> Result<Arc<Vec<Finding>>, Problem> {
        let kept = &self.live.findings;
        let known = self.ask(kept, pace(CHECKED, FINDINGS), PATIENT, findings).await?;
        known.ok_or_else(not_yet)
    }

    /// How workers wait, and what kept jobs safe in the last 24 hours, if that is known in time.
    pub async fn safety(&self) -> Result<Option<Arc<Safe>>, Problem> {
        let kept = &self.live.safety;
        let known = self.ask(kept, pace(SAFE, SAFETY), patience(), safety).await?;
        if known.is_none() {
            leave_out();
        }
        Ok(known)
    }

    /// A period, if it is known in time.
    pub async fn chart(&self, range: Range) -> Result<Option<Arc<Measured>>, Problem> {
        let place = RANGES.iter().position(|known| known.name == range.name);
        let chart = &self.live.charts[place.unwrap_or_default()];
        let pace = pace(range.fresh, self.live.share_of_chart(chart));
        let measure = move |connection| measure(connection, range);
        let known = self.ask(&chart.measured, pace, patience(), measure).await?;
        if known.is_none() {
            leave_out();
        }
        Ok(known)
    }
}

fn not_yet() -> Problem {
    Problem::new(
        StatusCode::GATEWAY_TIMEOUT,
        "The database has not counted the jobs yet.",
    )
    .hint("Reload the page in a moment.")
}

/// A pool has old sessions, so it cannot tell whether a pooler is in between.
async fn findings(connection: Connection) -> Result<Vec<Finding>, Problem> {
    let mut findings = read::doctor(&connection).await?;
    findings.retain(|finding| finding.check != "pooler");
    Ok(findings)
}

async fn safety(mut connection: Connection) -> Result<Safe, Problem> {
    let transaction = reading(&mut connection).await?;
    Ok((read::doorbell(&transaction).await?, read::safety(&transaction).await?))
}

async fn measure(mut connection: Connection, range: Range) -> Result<Measured, Problem> {
    let transaction = reading(&mut connection).await?;
    let bucket = format!("{} seconds", range.bucket.as_secs());
    let (total, buckets) = read::throughput(&transaction, range.since, &bucket, None, None).await?;
    Ok(Measured {
        total,
        buckets,
        before: read::outcomes(&transaction, range.since, range.before).await?,
    })
}

impl Snapshot {
    async fn read(mut connection: Connection) -> Result<Snapshot, Problem> {
        let transaction = reading(&mut connection).await?;
        let queues = read::queues(&transaction).await?;
        Snapshot::of(&transaction, Some(queues)).await
    }

    async fn without_counts(mut connection: Connection) -> Result<Snapshot, Problem> {
        let transaction = reading(&mut connection).await?;
        Snapshot::of(&transaction, None).await
    }

    async fn of(client: &Transaction<'_>, counted: Option<Vec<Queue>>) -> Result<Snapshot, Problem> {
        let is_counted = counted.is_some();
        let queues = counted.unwrap_or_default();
        Ok(Snapshot {
            now: read::now(client).await?,
            is_counted,
            blocked: blocked(client, &queues).await?,
            queues,
            workers: read::workers(client, false).await?,
            unserved: read::unserved(client, 20).await?,
            stats: read::command_stats(client).await?,
            errors: read::error_groups(client, "1 hour").await?,
        })
    }
}

/// How many queues are searched for blocked order keys, and how many keys of each.
const SEARCHED: (usize, usize) = (5, 3);

/// Why jobs are ready in queues whose workers have free slots: their order keys are blocked.
async fn blocked(client: &Transaction<'_>, queues: &[Queue]) -> Result<Vec<(String, BlockedKey)>, Problem> {
    let has_time = |queue: &&Queue| queue.paused_since.is_none() && queue.ready > 0 && queue.running < queue.slots;
    let mut found = Vec::new();
    for queue in queues.iter().filter(has_time).take(SEARCHED.0) {
        let keys = read::blocked_keys(client, &queue.queue).await?;
        found.extend(keys.into_iter().take(SEARCHED.1).map(|key| (queue.queue.clone(), key)));
    }
    Ok(found)
}

/// One stream for each browser: it says when there is something new to look at.
pub async fn stream(State(site): State<Shared>) -> Response {
    let news = site.live.news.subscribe();
    let told = stream::unfold((Watcher::new(site), news), async |(watcher, mut news)| {
        loop {
            news.changed().await.ok()?;
            if watcher.site.is_over() {
                return None;
            }
            let text = news.borrow_and_update().clone();
            if !text.is_empty() {
                return Some((Ok::<_, Infallible>(text), (watcher, news)));
            }
        }
    });
    // a first line at once: the browser knows that it is connected
    let told = stream::once(async { Ok(": watching\n\n".to_owned()) }).chain(told);
    ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(told)).into_response()
}
