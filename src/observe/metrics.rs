//! Every metric there is, in one table. docs/observe.md shows the same; a test compares them.

/// What a metric is to Prometheus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only rises.
    Counter,
    /// It rises and falls.
    Gauge,
    /// Times, in seconds, from 1 ms to 1 h.
    Histogram,
}

impl Kind {
    /// As Prometheus spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// One metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// What it is told by.
    pub labels: &'static [&'static str],
    /// Whether only the keeper tells it, because it is about the whole database.
    pub of_keeper: bool,
    /// What it means.
    pub help: &'static str,
}

const fn metric(name: &'static str, kind: Kind, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric {
        name,
        kind,
        labels,
        of_keeper: false,
        help,
    }
}

const fn of_keeper(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric {
        name,
        kind: Kind::Gauge,
        labels,
        of_keeper: true,
        help,
    }
}

/// All of them.
pub const METRICS: [Metric; 25] = [
    metric(
        "bugle_worker_info",
        Kind::Gauge,
        &["name", "host", "version"],
        "Always 1; the labels say who this worker is.",
    ),
    metric("bugle_worker_ready", Kind::Gauge, &[], "1 if /readyz says so."),
    metric(
        "bugle_worker_connected",
        Kind::Gauge,
        &[],
        "1 while the session it claims by is there.",
    ),
    metric(
        "bugle_worker_keeper",
        Kind::Gauge,
        &[],
        "1 if this worker runs maintenance.",
    ),
    metric(
        "bugle_worker_reconnects_total",
        Kind::Counter,
        &[],
        "How often it had to connect again.",
    ),
    metric(
        "bugle_worker_heartbeat_age_seconds",
        Kind::Gauge,
        &[],
        "How long ago a heartbeat was answered.",
    ),
    metric(
        "bugle_worker_slots",
        Kind::Gauge,
        &["queue"],
        "How many jobs of a queue it runs at once.",
    ),
    metric(
        "bugle_worker_undelivered",
        Kind::Gauge,
        &[],
        "Ends of jobs that the database was not told yet.",
    ),
    metric(
        "bugle_jobs_running",
        Kind::Gauge,
        &["queue", "command"],
        "Jobs that run here.",
    ),
    metric(
        "bugle_jobs_started_total",
        Kind::Counter,
        &["queue", "command"],
        "Attempts that were started here.",
    ),
    metric(
        "bugle_jobs_ended_total",
        Kind::Counter,
        &["queue", "command", "outcome"],
        "Attempts that ended here, by how: completed, failed, snoozed, cancelled, waiting, given_back, fenced.",
    ),
    metric(
        "bugle_job_run_seconds",
        Kind::Histogram,
        &["queue", "command"],
        "How long attempts ran.",
    ),
    metric(
        "bugle_job_wait_seconds",
        Kind::Histogram,
        &["queue", "command"],
        "How long they waited, from when they were due until they were started.",
    ),
    metric(
        "bugle_claim_seconds",
        Kind::Histogram,
        &[],
        "How long the database took to answer a claim.",
    ),
    metric(
        "bugle_flush_seconds",
        Kind::Histogram,
        &[],
        "How long the database took to take the ends of a batch of jobs.",
    ),
    of_keeper(
        "bugle_queue_jobs",
        &["queue", "state"],
        "Live jobs of a queue. Beyond 10,000 ready ones of a command an estimate.",
    ),
    of_keeper(
        "bugle_queue_oldest_ready_seconds",
        &["queue"],
        "How long the oldest ready job has been due.",
    ),
    of_keeper("bugle_queue_paused", &["queue"], "1 if nobody claims from the queue."),
    of_keeper(
        "bugle_queue_failed_last_minute",
        &["queue"],
        "Jobs that failed for good in the last minute.",
    ),
    of_keeper(
        "bugle_unserved_seconds",
        &["queue", "command"],
        "For how long ready jobs have been there that no live worker serves.",
    ),
    of_keeper(
        "bugle_workers",
        &["state"],
        "Worker processes that are alive, paused or lost.",
    ),
    of_keeper(
        "bugle_history_days_ahead",
        &["kind"],
        "Days ahead for which history partitions exist: ended, failed.",
    ),
    of_keeper("bugle_dead_rows", &[], "Rows of the live table that wait for VACUUM."),
    of_keeper(
        "bugle_oldest_snapshot_seconds",
        &[],
        "The oldest transaction that keeps VACUUM from removing rows.",
    ),
    of_keeper(
        "bugle_notification_queue_ratio",
        &[],
        "How full the server's queue of notifications is, from 0 to 1.",
    ),
];

/// Where a gauge of `bugle.gauges()` is told: its metric, and which label takes its label.
pub fn of_gauge(name: &str) -> Option<(&'static str, Option<&'static str>)> {
    Some(match name {
        "queue_jobs" => ("bugle_queue_jobs", Some("state")),
        "queue_oldest_ready_seconds" => ("bugle_queue_oldest_ready_seconds", None),
        "queue_paused" => ("bugle_queue_paused", None),
        "failed_last_minute" => ("bugle_queue_failed_last_minute", None),
        "unserved_seconds" => ("bugle_unserved_seconds", Some("command")),
        "workers" => ("bugle_workers", Some("state")),
        "history_days_ahead" => ("bugle_history_days_ahead", Some("kind")),
        "dead_rows" => ("bugle_dead_rows", None),
        "oldest_snapshot_seconds" => ("bugle_oldest_snapshot_seconds", None),
        "notification_queue_ratio" => ("bugle_notification_queue_ratio", None),
        _ => return None,
    })
}
