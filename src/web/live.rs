//! Data that changes all the time, queried once for all browsers: all pages that show it share the answer, and there is
//! no query while no page is open.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use serde_json::json;
use tokio::sync::watch;
use tokio_postgres::{Client, Transaction};

use super::site::{Problem, Shared, Site, reading};
use crate::read::{
    self, BlockedKey, Bucket, CommandStats, ErrorGroup, Finding, Queue, Safety, Unserved, Waits, WorkerLine,
};
use crate::state::WorkerState;

/// How old an answer may be, if it was cheap.
pub const FRESH: Duration = Duration::from_millis(1500);
/// For people who open a page, one that took long is kept for ten times as long, and never longer than this.
const OPENED: (u32, Duration) = (10, Duration::from_secs(5));
/// The same for open pages that refresh themselves: the queries take 0.5 % of a core.
const WATCHED: (u32, Duration) = (200, Duration::from_secs(120));
/// The findings of the doctor are kept for this time, charts for as long as their range says. Both are kept longer if
/// they take long: [`REPEATED`] times as long, up to its limit.
const CHECKED: Duration = Duration::from_secs(30);
const REPEATED: (u32, Duration) = (400, Duration::from_secs(300));
/// How long a page waits for fresh counts if it can show older ones, and the overview for the doctor. If they take
/// longer, a later page shows them.
const PATIENCE: Duration = Duration::from_millis(150);
/// How long the figures of the doorbell, late updates and rescues are kept.
const SAFE: Duration = Duration::from_secs(10);
/// How often browsers are told.
const TICK: Duration = Duration::from_secs(2);
/// The time that refreshes may take: the share of each second, and the most that can be saved up.
const SHARE: f64 = 0.005;
const MOST: Duration = Duration::from_millis(500);
/// After this time one page is refreshed even if no time is left.
const ANYWAY: Duration = Duration::from_secs(3);

tokio::task_local! {
    /// Set while a page is answered that only refreshes itself: nobody waits for it.
    pub static IS_REFRESH: ();
}

/// The state of everything at one moment.
#[derive(Debug)]
pub struct Snapshot {
    read_at: Instant,
    pub now: SystemTime,
    pub queues: Vec<Queue>,
    pub workers: Vec<WorkerLine>,
    pub unserved: Vec<Unserved>,
    pub stats: Vec<CommandStats>,
    pub errors: Vec<ErrorGroup>,
    /// Order keys that block jobs of queues with free slots.
    pub blocked: Vec<(String, BlockedKey)>,
}

tokio::task_local! {
    /// How old the counts are that the page under way shows.
    static AGE: Cell<Duration>;
}

/// Make a page, and say how old its counts are.
pub async fn with_age<T>(page: impl Future<Output = T>) -> (T, Duration) {
    let made = async { (page.await, AGE.with(Cell::get)) };
    AGE.scope(Cell::new(Duration::ZERO), made).await
}

/// How workers wait, and what kept jobs safe.
type Safe = (Vec<Waits>, Safety);

/// A period.
#[derive(Debug)]
pub struct Measured {
    pub total: Bucket,
    pub buckets: Vec<Bucket>,
    /// How many attempts completed and failed in the same hours before.
    pub before: (i64, i64),
}

/// Answers that are kept for a moment.
pub struct Live {
    snapshot: Mutex<Option<Kept>>,
    /// Locked while a snapshot is read.
    reading: tokio::sync::Mutex<()>,
    findings: tokio::sync::Mutex<Option<Aged<Arc<Vec<Finding>>>>>,
    charts: tokio::sync::Mutex<BTreeMap<&'static str, Aged<Arc<Measured>>>>,
    safety: tokio::sync::Mutex<Option<Aged<Arc<Safe>>>>,
    watchers: Mutex<Watchers>,
    news: watch::Sender<String>,
    refreshing: Mutex<Refreshing>,
}

/// What is kept for a time that depends on how long it took.
struct Aged<T> {
    at: Instant,
    cost: Duration,
    value: T,
}

impl<T> Aged<T> {
    fn new(began: Instant, value: T) -> Aged<T> {
        Aged {
            at: Instant::now(),
            cost: began.elapsed(),
            value,
        }
    }

    fn is_fresh(&self, least: Duration) -> bool {
        self.at.elapsed() < (self.cost * REPEATED.0).clamp(least, REPEATED.1.max(least))
    }
}

struct Kept {
    at: Instant,
    /// How long it took. The least of the last ones: on a busy machine others take longer, and cost no more.
    cost: Duration,
    snapshot: Arc<Snapshot>,
}

impl Kept {
    fn is_fresh(&self, (times, oldest): (u32, Duration)) -> bool {
        self.at.elapsed() < (self.cost * times).clamp(FRESH, oldest)
    }
}

/// What refreshing pages may still take.
struct Refreshing {
    left: f64,
    since: Instant,
    last: Instant,
    /// How long each page takes: the least of the last ones.
    costs: BTreeMap<String, f64>,
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

impl Default for Live {
    fn default() -> Live {
        Live {
            snapshot: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
            findings: tokio::sync::Mutex::default(),
            safety: tokio::sync::Mutex::default(),
            charts: tokio::sync::Mutex::default(),
            watchers: Mutex::default(),
            news: watch::Sender::new(String::new()),
            refreshing: Mutex::new(Refreshing {
                left: MOST.as_secs_f64(),
                since: Instant::now(),
                last: Instant::now(),
                costs: BTreeMap::new(),
            }),
        }
    }
}

impl Live {
    /// After a change: the next page shows it.
    pub async fn forget(&self) {
        // one that is being read now may not have the change
        let _reading = self.reading.lock().await;
        *self.kept() = None;
        *self.findings.lock().await = None;
    }

    /// What needs attention, of the latest answer: no page waits for it.
    pub fn counts(&self) -> Vec<(&'static str, usize, &'static str)> {
        let Some(snapshot) = self.latest() else {
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

    fn kept(&self) -> MutexGuard<'_, Option<Kept>> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last snapshot, unless it is too old to be shown.
    fn latest(&self) -> Option<Arc<Snapshot>> {
        let kept = self.kept();
        let kept = kept.as_ref().filter(|kept| kept.at.elapsed() < WATCHED.1)?;
        Some(kept.snapshot.clone())
    }

    /// The last snapshot, if it is still fresh.
    fn fresh(&self, freshness: (u32, Duration)) -> Option<Arc<Snapshot>> {
        let kept = self.kept();
        let kept = kept.as_ref().filter(|kept| kept.is_fresh(freshness))?;
        Some(kept.snapshot.clone())
    }

    /// Whether a page may be refreshed now.
    pub fn has_time(&self) -> bool {
        let mut refreshing = self.refreshing.lock().unwrap_or_else(PoisonError::into_inner);
        let gained = refreshing.since.elapsed().as_secs_f64() * SHARE;
        refreshing.left = (refreshing.left + gained).min(MOST.as_secs_f64());
        refreshing.since = Instant::now();
        let has_time = refreshing.left > 0.0 || refreshing.last.elapsed() > ANYWAY;
        if has_time {
            refreshing.last = Instant::now();
        }
        has_time
    }

    /// A page was refreshed, in this time.
    pub fn spend(&self, page: &str, time: Duration) {
        let mut refreshing = self.refreshing.lock().unwrap_or_else(PoisonError::into_inner);
        if refreshing.costs.len() > 1000 {
            refreshing.costs.clear();
        }
        let time = time.as_secs_f64();
        let cost = refreshing.costs.entry(page.to_owned()).or_insert(time);
        *cost = time.min(*cost * 1.2);
        let cost = *cost;
        refreshing.left -= cost;
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
    pub async fn snapshot(self: &Arc<Self>) -> Result<Arc<Snapshot>, Problem> {
        let is_refresh = IS_REFRESH.try_with(|()| ()).is_ok();
        let snapshot = match is_refresh || !self.rights().await?.can_read {
            true => self.snapshot_for(WATCHED).await?,
            false => self.snapshot_soon().await?,
        };
        // a page that nobody watches has no age
        let _ = AGE.try_with(|age| age.set(snapshot.read_at.elapsed()));
        Ok(snapshot)
    }

    /// A fresh one, if it is there soon. If not, the last one; a later page has the fresh one.
    async fn snapshot_soon(self: &Arc<Self>) -> Result<Arc<Snapshot>, Problem> {
        let site = self.clone();
        let asking = tokio::spawn(async move { site.snapshot_for(OPENED).await });
        if let Ok(Ok(done)) = tokio::time::timeout(PATIENCE, asking).await {
            return done;
        }
        match self.live.latest() {
            Some(latest) => Ok(latest),
            None => self.snapshot_for(OPENED).await,
        }
    }

    async fn snapshot_for(&self, freshness: (u32, Duration)) -> Result<Arc<Snapshot>, Problem> {
        // what others have asked for is only for those who may read it
        if !self.rights().await?.can_read {
            let mut client = self.pool.get_or_explain().await?;
            return Ok(Arc::new(Snapshot::read(&mut client).await?));
        }
        if let Some(fresh) = self.live.fresh(freshness) {
            return Ok(fresh);
        }
        // requests that arrive during the query wait for the same result
        let _reading = self.live.reading.lock().await;
        if let Some(fresh) = self.live.fresh(freshness) {
            return Ok(fresh);
        }
        let mut client = self.pool.get_or_explain().await?;
        let began = Instant::now();
        let snapshot = Arc::new(Snapshot::read(&mut client).await?);
        let mut kept = self.live.kept();
        let before = kept.as_ref().map_or(Duration::MAX, |kept| kept.cost.mul_f64(1.2));
        *kept = Some(Kept {
            at: Instant::now(),
            cost: began.elapsed().min(before),
            snapshot: snapshot.clone(),
        });
        Ok(snapshot)
    }

    /// What browsers are told.
    async fn news(&self) -> String {
        match self.snapshot_for(WATCHED).await {
            Ok(snapshot) => {
                let sum = |of: fn(&Queue) -> i64| snapshot.queues.iter().map(of).sum::<i64>();
                let news = json!({ "ready": sum(|queue| queue.ready), "running": sum(|queue| queue.running) });
                format!("event: tick\ndata: {news}\n\n")
            }
            Err(problem) => format!("event: stale\ndata: {}\n\n", json!({ "message": problem.message })),
        }
    }

    /// What the doctor says. A pool has old sessions, so it cannot tell whether a pooler is in between.
    pub async fn findings(&self) -> Result<Arc<Vec<Finding>>, Problem> {
        let mut known = self.live.findings.lock().await;
        if let Some(kept) = known.as_ref().filter(|kept| kept.is_fresh(CHECKED)) {
            return Ok(kept.value.clone());
        }
        let began = Instant::now();
        let client = self.pool.get_or_explain().await?;
        let mut findings = read::doctor(&client).await?;
        findings.retain(|finding| finding.check != "pooler");
        let findings = Arc::new(findings);
        *known = Some(Aged::new(began, findings.clone()));
        Ok(findings)
    }

    /// The same, if it is known soon. If not, it is found out, and a later page has it.
    pub async fn findings_soon(self: &Arc<Self>) -> Arc<Vec<Finding>> {
        let site = self.clone();
        let asking = tokio::spawn(async move { site.findings().await });
        match tokio::time::timeout(PATIENCE, asking).await {
            Ok(Ok(Ok(findings))) => findings,
            _ => Arc::default(),
        }
    }

    /// How workers wait, and what kept jobs safe in the last 24 hours.
    pub async fn safety(&self) -> Result<Arc<Safe>, Problem> {
        let mut known = self.live.safety.lock().await;
        if let Some(kept) = known.as_ref().filter(|kept| kept.is_fresh(SAFE)) {
            return Ok(kept.value.clone());
        }
        let began = Instant::now();
        let mut client = self.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let safe = Arc::new((read::doorbell(&transaction).await?, read::safety(&transaction).await?));
        *known = Some(Aged::new(began, safe.clone()));
        Ok(safe)
    }

    pub async fn chart(&self, range: Range) -> Result<Arc<Measured>, Problem> {
        let mut known = self.live.charts.lock().await;
        if let Some(kept) = known.get(range.name).filter(|kept| kept.is_fresh(range.fresh)) {
            return Ok(kept.value.clone());
        }
        let began = Instant::now();
        let mut client = self.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let bucket = format!("{} seconds", range.bucket.as_secs());
        let (total, buckets) = read::throughput(&transaction, range.since, &bucket, None, None).await?;
        let chart = Arc::new(Measured {
            total,
            buckets,
            before: read::outcomes(&transaction, range.since, range.before).await?,
        });
        known.insert(range.name, Aged::new(began, chart.clone()));
        Ok(chart)
    }
}

impl Snapshot {
    async fn read(client: &mut Client) -> Result<Snapshot, Problem> {
        let transaction = reading(client).await?;
        let client = &transaction;
        let queues = read::queues(client).await?;
        Ok(Snapshot {
            read_at: Instant::now(),
            now: read::now(client).await?,
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
