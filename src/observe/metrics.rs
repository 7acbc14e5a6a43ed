//! All metrics in one table. docs/reference/metrics.md shows the same; a test compares them.

/// The Prometheus type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only increases.
    Counter,
    /// Increases and decreases.
    Gauge,
    /// Durations in seconds, with buckets from 1 ms to 1 h.
    Histogram,
}

impl Kind {
    /// The name that Prometheus uses.
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
    /// Its type.
    pub kind: Kind,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// Whether only the keeper reports it, because it describes the whole database.
    pub of_keeper: bool,
    /// Its description.
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

/// All metrics. Those that begin with `bugle_` have the label `database` too.
pub const METRICS: [Metric; 38] = [
    metric(
        "bugle_worker_info",
        Kind::Gauge,
        &["name", "host", "version"],
        "Always 1; the labels identify the worker.",
    ),
    metric(
        "bugle_worker_ready",
        Kind::Gauge,
        &[],
        "1 if the worker is ready (/readyz).",
    ),
    metric(
        "bugle_worker_connected",
        Kind::Gauge,
        &[],
        "1 while the claim session is connected.",
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
        "Number of reconnects to the database.",
    ),
    metric(
        "bugle_worker_last_heartbeat_timestamp_seconds",
        Kind::Gauge,
        &[],
        "Time of the last successful heartbeat.",
    ),
    metric(
        "bugle_worker_slots",
        Kind::Gauge,
        &["queue"],
        "Maximum number of jobs of a queue that run at once.",
    ),
    metric(
        "bugle_worker_undelivered_outcomes",
        Kind::Gauge,
        &[],
        "Outcomes that were not delivered to the database yet.",
    ),
    metric(
        "bugle_jobs_running",
        Kind::Gauge,
        &["queue", "command"],
        "Jobs running in this worker.",
    ),
    metric(
        "bugle_jobs_overdue",
        Kind::Gauge,
        &[],
        "Jobs whose time limit has passed and whose executors do not stop.",
    ),
    metric(
        "bugle_attempts_started_total",
        Kind::Counter,
        &["queue", "command"],
        "Attempts started by this worker.",
    ),
    metric(
        "bugle_attempts_finished_total",
        Kind::Counter,
        &["queue", "command", "outcome"],
        "Finished attempts by outcome: completed, failed, timed_out, snoozed, cancelled, waiting, given_back, fenced.",
    ),
    metric(
        "bugle_job_run_seconds",
        Kind::Histogram,
        &["queue", "command"],
        "Run time of attempts.",
    ),
    metric(
        "bugle_job_wait_seconds",
        Kind::Histogram,
        &["queue", "command"],
        "Time from when a job was due until its attempt started.",
    ),
    metric(
        "bugle_steps_finished_total",
        Kind::Counter,
        &["step", "outcome"],
        "Finished attempts of steps of chains by outcome: done, skipped, retried, failed.",
    ),
    metric(
        "bugle_step_run_seconds",
        Kind::Histogram,
        &["step"],
        "Run time of attempts of steps of chains.",
    ),
    metric("bugle_claim_seconds", Kind::Histogram, &[], "Duration of claim calls."),
    metric(
        "bugle_completion_seconds",
        Kind::Histogram,
        &[],
        "Duration of calls that deliver a batch of outcomes.",
    ),
    metric(
        "bugle_host_processes",
        Kind::Gauge,
        &["host"],
        "Processes of a host that are ready for jobs.",
    ),
    metric(
        "bugle_host_jobs_running",
        Kind::Gauge,
        &["host"],
        "Jobs that the processes of a host have not answered.",
    ),
    metric(
        "bugle_host_processes_started_total",
        Kind::Counter,
        &["host"],
        "Processes of a host that were started.",
    ),
    metric(
        "bugle_host_processes_lost_total",
        Kind::Counter,
        &["host"],
        "Processes of a host that ended with jobs that they had not answered.",
    ),
    of_keeper(
        "bugle_queue_jobs",
        &["queue", "state"],
        "Live jobs of a queue by state. An estimate above 10,000 ready jobs of a command.",
    ),
    of_keeper(
        "bugle_queue_oldest_ready_timestamp_seconds",
        &["queue"],
        "Time from which the oldest ready job could have started. Absent if no job is ready.",
    ),
    of_keeper("bugle_queue_paused", &["queue"], "1 if the queue is paused."),
    Metric {
        kind: Kind::Counter,
        ..of_keeper(
            "bugle_dead_letters_total",
            &["queue", "reason"],
            "Jobs that failed for good, by reason, since the schema was installed.",
        )
    },
    of_keeper(
        "bugle_unserved_since_timestamp_seconds",
        &["queue", "command"],
        "Time at which the oldest unserved ready job became ready. Absent if there is none.",
    ),
    of_keeper("bugle_workers", &["state"], "Workers by state: alive, paused, lost."),
    of_keeper(
        "bugle_history_days_ahead",
        &["kind"],
        "Number of days ahead for which history partitions exist, by kind: ended, failed.",
    ),
    of_keeper(
        "bugle_dead_rows",
        &[],
        "Dead rows in bugle.jobs_live that VACUUM has not removed yet.",
    ),
    of_keeper(
        "bugle_oldest_snapshot_timestamp_seconds",
        &[],
        "Start time of the oldest transaction that prevents VACUUM from removing rows. Absent if there is none.",
    ),
    of_keeper(
        "bugle_notification_queue_ratio",
        &[],
        "Usage of the server's notification queue, from 0 to 1.",
    ),
    metric(
        "process_cpu_seconds_total",
        Kind::Counter,
        &[],
        "CPU time of this process.",
    ),
    metric(
        "process_resident_memory_bytes",
        Kind::Gauge,
        &[],
        "Resident memory of this process.",
    ),
    metric(
        "process_virtual_memory_bytes",
        Kind::Gauge,
        &[],
        "Virtual memory of this process.",
    ),
    metric(
        "process_start_time_seconds",
        Kind::Gauge,
        &[],
        "Start time of this process.",
    ),
    metric("process_open_fds", Kind::Gauge, &[], "Open file descriptors."),
    metric(
        "process_max_fds",
        Kind::Gauge,
        &[],
        "Maximum number of open file descriptors.",
    ),
];

/// The metric of a gauge of `bugle.gauges()`, and the name of its label.
#[cfg(feature = "web")]
pub fn of_gauge(name: &str) -> Option<(&'static str, Option<&'static str>)> {
    Some(match name {
        "queue_jobs" => ("bugle_queue_jobs", Some("state")),
        "queue_oldest_ready_timestamp" => ("bugle_queue_oldest_ready_timestamp_seconds", None),
        "queue_paused" => ("bugle_queue_paused", None),
        "dead_letters" => ("bugle_dead_letters_total", Some("reason")),
        "unserved_since_timestamp" => ("bugle_unserved_since_timestamp_seconds", Some("command")),
        "workers" => ("bugle_workers", Some("state")),
        "history_days_ahead" => ("bugle_history_days_ahead", Some("kind")),
        "dead_rows" => ("bugle_dead_rows", None),
        "oldest_snapshot_timestamp" => ("bugle_oldest_snapshot_timestamp_seconds", None),
        "notification_queue_ratio" => ("bugle_notification_queue_ratio", None),
        _ => return None,
    })
}
