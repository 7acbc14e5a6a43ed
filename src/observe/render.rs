//! Metrics in the Prometheus text format.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use super::listen::EndpointState;
use super::metrics::{METRICS, Metric, of_gauge};
use super::process;
use super::tally::{BOUNDS, Ending, Histogram, StepEnding};
use crate::db::calls::Gauge;

/// The page with all metrics of a worker, for each of its databases; with the gauges of a database, those too.
pub fn page<'a>(workers: impl Iterator<Item = (&'a EndpointState, &'a Vec<Gauge>)>) -> String {
    let mut page = Page::default();
    for (worker, gauges) in workers {
        page.database = Some(worker.label.clone());
        of_worker(&mut page, worker, gauges);
    }
    page.database = None;
    for (name, value) in process::metrics() {
        page.sample(name, &[], value);
    }
    page.text()
}

fn of_worker(page: &mut Page, worker: &EndpointState, gauges: &[Gauge]) {
    let health = &worker.observed.health;
    let tallies = &worker.observed.tallies;
    let info = [
        ("name", worker.name.as_str()),
        ("host", &worker.host),
        ("version", env!("CARGO_PKG_VERSION")),
    ];
    page.sample("bugle_worker_info", &info, 1.0);
    page.sample("bugle_worker_ready", &[], f64::from(health.failing().is_empty()));
    page.sample("bugle_worker_connected", &[], f64::from(health.is_connected()));
    page.sample("bugle_worker_keeper", &[], f64::from(health.is_keeper()));
    page.sample("bugle_worker_reconnects_total", &[], health.reconnects() as f64);
    if let Some(silence) = health.silence() {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at = since_epoch.saturating_sub(silence).as_secs_f64();
        page.sample("bugle_worker_last_heartbeat_timestamp_seconds", &[], at);
    }
    for (queue, slots) in &worker.queues {
        page.sample("bugle_worker_slots", &[("queue", queue)], f64::from(*slots));
    }
    page.sample("bugle_worker_undelivered_outcomes", &[], (worker.undelivered)() as f64);
    page.sample("bugle_jobs_overdue", &[], health.overdue() as f64);
    for ((queue, command), tally) in tallies.snapshot() {
        let labels = [("queue", queue.as_str()), ("command", command.as_str())];
        page.sample("bugle_jobs_running", &labels, tally.running() as f64);
        page.sample("bugle_attempts_started_total", &labels, tally.started as f64);
        for how in Ending::ALL {
            let labels = [labels[0], labels[1], ("outcome", how.as_str())];
            page.sample(
                "bugle_attempts_finished_total",
                &labels,
                tally.ended[how as usize] as f64,
            );
        }
        // forty series each, so not of commands that never ran here
        if tally.started > 0 {
            page.histogram("bugle_job_run_seconds", &labels, &tally.run);
            page.histogram("bugle_job_wait_seconds", &labels, &tally.wait);
        }
    }
    for (step, tally) in tallies.steps() {
        for how in StepEnding::ALL {
            let labels = [("step", step.as_str()), ("outcome", how.as_str())];
            page.sample("bugle_steps_finished_total", &labels, tally.ended[how as usize] as f64);
        }
        if tally.ended.iter().any(|ended| *ended > 0) {
            page.histogram("bugle_step_run_seconds", &[("step", &step)], &tally.run);
        }
    }
    page.histogram("bugle_claim_seconds", &[], &tallies.claims.lock().unwrap());
    page.histogram("bugle_completion_seconds", &[], &tallies.flushes.lock().unwrap());
    for host in health.hosts() {
        let labels = [("host", host.name.as_str())];
        page.sample("bugle_host_processes", &labels, host.ready as f64);
        page.sample("bugle_host_jobs_running", &labels, host.running as f64);
        page.sample("bugle_host_processes_started_total", &labels, host.started as f64);
        page.sample("bugle_host_processes_lost_total", &labels, host.lost as f64);
    }
    for gauge in gauges {
        if let Some((name, label)) = of_gauge(&gauge.name) {
            let queue = gauge.queue.as_deref().map(|queue| ("queue", queue));
            let label = label.zip(gauge.label.as_deref());
            let labels: Vec<_> = queue.into_iter().chain(label).collect();
            page.sample(name, &labels, gauge.value);
        }
    }
}

/// Samples by metric, in the order of the table, because the format requires samples of a metric to be adjacent.
#[derive(Default)]
struct Page {
    samples: Vec<(usize, String)>,
    /// The name of the database: a label of all samples about it.
    database: Option<String>,
}

impl Page {
    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let place = place(name);
        debug_assert!(
            labels.iter().all(|(label, _)| METRICS[place].labels.contains(label)),
            "{name}"
        );
        self.add(place, name, labels, value);
    }

    fn histogram(&mut self, name: &str, labels: &[(&str, &str)], histogram: &Histogram) {
        let place = place(name);
        let mut sum = 0;
        let bounds = BOUNDS.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(histogram.counts) {
            sum += count;
            let labels: Vec<_> = labels.iter().copied().chain([("le", bound.as_str())]).collect();
            self.add(place, &format!("{name}_bucket"), &labels, sum as f64);
        }
        self.add(place, &format!("{name}_sum"), labels, histogram.seconds);
        self.add(place, &format!("{name}_count"), labels, sum as f64);
    }

    fn add(&mut self, place: usize, name: &str, labels: &[(&str, &str)], value: f64) {
        let database = self.database.as_deref().map(|name| ("database", name));
        let labels: Vec<_> = database.into_iter().chain(labels.iter().copied()).collect();
        self.samples.push((place, line(name, &labels, value)));
    }

    fn text(mut self) -> String {
        // a stable sort keeps the samples of a metric in order
        self.samples.sort_by_key(|(place, _)| *place);
        let mut text = String::new();
        let mut told = None;
        for (place, line) in self.samples {
            if told != Some(place) {
                let Metric { name, kind, help, .. } = METRICS[place];
                let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {}", kind.as_str());
                told = Some(place);
            }
            text.push_str(&line);
        }
        text
    }
}

fn place(name: &str) -> usize {
    METRICS
        .iter()
        .position(|metric| metric.name == name)
        .unwrap_or_else(|| panic!("{name} is not in the table of metrics"))
}

fn line(name: &str, labels: &[(&str, &str)], value: f64) -> String {
    let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let labels: Vec<String> = labels
        .iter()
        .map(|(label, value)| format!("{label}=\"{}\"", escaped(value)))
        .collect();
    match labels.is_empty() {
        true => format!("{name} {value}\n"),
        false => format!("{name}{{{}}} {value}\n", labels.join(",")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::metrics::Kind;
    use super::*;

    #[test]
    fn labels_are_escaped() {
        assert_eq!(line("x", &[("a", "q\"\\\n")], 1.5), "x{a=\"q\\\"\\\\\\n\"} 1.5\n");
    }

    #[test]
    fn every_metric_has_a_name_of_its_own_and_only_histograms_are_in_spans() {
        for metric in METRICS {
            let begins = ["bugle_", "process_"]
                .iter()
                .any(|begin| metric.name.starts_with(begin));
            assert!(begins, "{}", metric.name);
            assert_eq!(
                place(metric.name),
                METRICS.iter().rposition(|m| m.name == metric.name).unwrap()
            );
            assert_eq!(
                metric.kind == Kind::Counter,
                metric.name.ends_with("_total"),
                "{}",
                metric.name
            );
        }
    }
}
