//! What changes all the time, asked for once for all browsers: every page that shows it shares the answer, and nobody
//! asks while nobody looks.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::json;

use super::site::{Problem, Shared, Site, reading};
use crate::read::{self, Bucket, CommandStats, ErrorGroup, Finding, Queue, Unserved, WorkerLine};

/// How old an answer may be.
const FRESH: Duration = Duration::from_millis(1500);
/// The same of what the doctor says.
const CHECKED: Duration = Duration::from_secs(30);
/// How often a browser is told.
const TICK: Duration = Duration::from_secs(2);

/// The state of everything at one moment.
#[derive(Debug)]
pub struct Snapshot {
    pub now: SystemTime,
    pub queues: Vec<Queue>,
    pub workers: Vec<WorkerLine>,
    pub unserved: Vec<Unserved>,
    pub stats: Vec<CommandStats>,
    pub errors: Vec<ErrorGroup>,
}

/// The total of a period, and its buckets.
type Measured = Arc<(Bucket, Vec<Bucket>)>;

/// Answers that are kept for a moment.
#[derive(Default)]
pub struct Live {
    snapshot: tokio::sync::Mutex<Option<(Instant, Arc<Snapshot>)>>,
    findings: tokio::sync::Mutex<Option<(Instant, Arc<Vec<Finding>>)>>,
    charts: tokio::sync::Mutex<BTreeMap<&'static str, (Instant, Measured)>>,
}

/// A period that charts can show.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    pub name: &'static str,
    pub label: &'static str,
    pub since: &'static str,
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
        bucket: Duration::from_secs(60),
        buckets: 60,
        fresh: Duration::from_secs(5),
    },
    Range {
        name: "6h",
        label: "6 h",
        since: "6 hours",
        bucket: Duration::from_secs(300),
        buckets: 72,
        fresh: Duration::from_secs(30),
    },
    Range {
        name: "24h",
        label: "24 h",
        since: "24 hours",
        bucket: Duration::from_secs(900),
        buckets: 96,
        fresh: Duration::from_secs(60),
    },
    Range {
        name: "7d",
        label: "7 d",
        since: "7 days",
        bucket: Duration::from_secs(7200),
        buckets: 84,
        fresh: Duration::from_secs(300),
    },
];

impl Live {
    /// After a change: the next page shows it.
    pub async fn forget(&self) {
        *self.snapshot.lock().await = None;
        *self.findings.lock().await = None;
    }
}

impl Site {
    pub async fn snapshot(&self) -> Result<Arc<Snapshot>, Problem> {
        // requests that arrive during the query wait for the same result
        let mut known = self.live.snapshot.lock().await;
        if let Some((_, snapshot)) = known.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return Ok(snapshot.clone());
        }
        let mut client = self.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let client = &transaction;
        let snapshot = Arc::new(Snapshot {
            now: read::now(client).await?,
            queues: read::queues(client).await?,
            workers: read::workers(client, false).await?,
            unserved: read::unserved(client, 20).await?,
            stats: read::command_stats(client).await?,
            errors: read::error_groups(client, "1 hour").await?,
        });
        *known = Some((Instant::now(), snapshot.clone()));
        Ok(snapshot)
    }

    /// What the doctor says. A pool has old sessions, so it cannot tell whether a pooler is in between.
    pub async fn findings(&self) -> Result<Arc<Vec<Finding>>, Problem> {
        let mut known = self.live.findings.lock().await;
        if let Some((_, findings)) = known.as_ref().filter(|(at, _)| at.elapsed() < CHECKED) {
            return Ok(findings.clone());
        }
        let client = self.pool.get_or_explain().await?;
        let mut findings = read::doctor(&client).await?;
        findings.retain(|finding| finding.check != "pooler");
        let findings = Arc::new(findings);
        *known = Some((Instant::now(), findings.clone()));
        Ok(findings)
    }

    pub async fn chart(&self, range: Range) -> Result<Measured, Problem> {
        let mut known = self.live.charts.lock().await;
        if let Some((_, chart)) = known.get(range.name).filter(|(at, _)| at.elapsed() < range.fresh) {
            return Ok(chart.clone());
        }
        let mut client = self.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let bucket = format!("{} seconds", range.bucket.as_secs());
        let chart = Arc::new(read::throughput(&transaction, range.since, &bucket, None, None).await?);
        known.insert(range.name, (Instant::now(), chart.clone()));
        Ok(chart)
    }
}

/// One stream for each browser: it says when there is something new to look at.
pub async fn stream(State(site): State<Shared>) -> Response {
    let ticks = stream::unfold((site, true), async |(site, is_first)| {
        if !is_first {
            tokio::time::sleep(TICK).await;
        }
        let event = match site.snapshot().await {
            Ok(snapshot) => {
                let sum = |of: fn(&Queue) -> i64| snapshot.queues.iter().map(of).sum::<i64>();
                let counts = json!({ "ready": sum(|queue| queue.ready), "running": sum(|queue| queue.running) });
                format!("event: tick\ndata: {counts}\n\n")
            }
            Err(problem) => format!("event: stale\ndata: {}\n\n", json!({ "message": problem.message })),
        };
        Some((Ok::<_, Infallible>(event), (site, false)))
    });
    ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(ticks)).into_response()
}
