//! Overview: problems first, then how much is done and how fast.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use askama::Template;
use axum::extract::State;
use axum::response::Response;

use super::{answer, jobs_path, link, quoted};
use crate::read::{Bucket, Level};
use crate::web::actions::Action;
use crate::web::chart::{self, Line, chart};
use crate::web::live::{RANGES, Range, Snapshot};
use crate::web::site::{Asked, Frame, Shared, encoded, query_of};
use crate::web::text::{self, Html, escape, number, percent, seconds, span};

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview {
    frame: Frame,
    problems: Vec<Trouble>,
    figures: Vec<Figure>,
    ranges: Vec<(&'static str, &'static str, bool)>,
    attempts: Html,
    waits: Html,
    rows: Vec<[String; 5]>,
    queues: Vec<QueueRow>,
    more_queues: usize,
}

/// What is wrong, what that costs, and what fixes it.
struct Trouble {
    is_bad: bool,
    message: Html,
    detail: String,
    links: Vec<Html>,
    actions: Vec<Action>,
    sql: Option<String>,
}

struct Figure {
    label: &'static str,
    value: String,
    detail: String,
}

struct QueueRow {
    name: String,
    path: String,
    is_paused: bool,
    ready: String,
    running: String,
    later: String,
    oldest: String,
    done: String,
    failed: String,
}

pub async fn show(State(site): State<Shared>, request: Asked) -> Response {
    answer(&site, request, "", async |frame, request| {
        let name = query_of(request);
        let range = RANGES
            .into_iter()
            .find(|range| Some(range.name) == name.get("range"))
            .unwrap_or(RANGES[0]);
        let snapshot = site.snapshot().await?;
        let measured = site.chart(range).await?;
        let (total, buckets) = &*measured;
        let (attempts, waits, rows) = charts(range, snapshot.now, buckets);
        let mut queues: Vec<QueueRow> = snapshot.queues.iter().map(queue_row).collect();
        // the busiest first
        let mut order: Vec<usize> = (0..queues.len()).collect();
        order.sort_by_key(|place| {
            let queue = &snapshot.queues[*place];
            std::cmp::Reverse((
                queue.paused_since.is_some(),
                queue.ready,
                queue.running,
                queue.completed_last_minute,
            ))
        });
        let mut sorted: Vec<Option<QueueRow>> = queues.drain(..).map(Some).collect();
        let shown: Vec<QueueRow> = order
            .iter()
            .take(12)
            .filter_map(|place| sorted[*place].take())
            .collect();
        let mut problems = troubles(frame, &snapshot);
        if let Ok(findings) = site.findings().await {
            let serious = findings.iter().filter(|finding| finding.level >= Level::Warn);
            problems.extend(
                serious
                    .filter(|finding| finding.check != "queues")
                    .map(|finding| Trouble {
                        is_bad: finding.level == Level::Fail,
                        message: Html(escape(&capitalized(&finding.message))),
                        detail: String::new(),
                        links: vec![link(frame, "/database", "Database")],
                        actions: Vec::new(),
                        sql: finding.fix.clone(),
                    }),
            );
        }
        problems.sort_by_key(|problem| !problem.is_bad);
        problems.truncate(12);
        if !frame.can_change {
            problems.iter_mut().for_each(|problem| problem.actions.clear());
        }
        Ok(Overview {
            problems,
            figures: figures(range, &snapshot, total),
            ranges: RANGES
                .iter()
                .map(|one| (one.name, one.label, one.name == range.name))
                .collect(),
            attempts,
            waits,
            rows,
            more_queues: snapshot.queues.len().saturating_sub(shown.len()),
            queues: shown,
            frame: frame.clone(),
        })
    })
    .await
}

fn capitalized(message: &str) -> String {
    let mut chars = message.chars();
    match chars.next() {
        Some(first) => first.to_uppercase().chain(chars).collect(),
        None => String::new(),
    }
}

fn queue_row(queue: &crate::read::Queue) -> QueueRow {
    let about = if queue.is_estimate { "≈ " } else { "" };
    QueueRow {
        name: queue.queue.clone(),
        path: format!("/queues/{}", encoded(&queue.queue)),
        is_paused: queue.paused_since.is_some(),
        ready: format!("{about}{}", number(queue.ready)),
        running: format!("{} / {}", number(queue.running), number(queue.slots)),
        later: number(queue.scheduled + queue.retrying),
        oldest: seconds(queue.oldest_ready_seconds),
        done: number(queue.completed_last_minute),
        failed: number(queue.failed_last_minute),
    }
}

/// From the worst to the least.
fn troubles(frame: &Frame, snapshot: &Snapshot) -> Vec<Trouble> {
    let mut found = Vec::new();
    let age = |since: SystemTime| span(snapshot.now.duration_since(since).unwrap_or_default());
    for stats in snapshot
        .stats
        .iter()
        .filter(|stats| stats.failed >= 10 && stats.failure_rate > Some(0.5))
    {
        let error = (snapshot.errors.iter()).find(|group| group.command.as_deref() == Some(&stats.command));
        let line = error.and_then(|group| group.fingerprint.as_deref()).unwrap_or_default();
        let line: String = line.chars().take(160).collect();
        let waiting = snapshot.queues.iter().find(|queue| queue.queue == stats.queue);
        let detail = waiting.map(|queue| {
            format!(
                "{} jobs of queue {} wait for their next attempt, {} are ready.",
                number(queue.retrying),
                queue.queue,
                number(queue.ready)
            )
        });
        let is_paused = waiting.is_some_and(|queue| queue.paused_since.is_some());
        let pause = Action::new(
            "pause_queue",
            format!("Pause queue {}", stats.queue),
            &[("queue", stats.queue.clone())],
        );
        found.push(Trouble {
            is_bad: true,
            message: Html(format!(
                "<b>{}</b> fails: {} of {} attempts in the last hour. <code>{}</code>",
                escape(&stats.command),
                number(stats.failed),
                number(stats.failed + stats.completed),
                escape(&line)
            )),
            detail: detail.unwrap_or_default(),
            links: vec![link(frame, "/errors", "Errors")],
            actions: if is_paused { Vec::new() } else { vec![pause.main()] },
            sql: None,
        });
    }
    for unserved in &snapshot.unserved {
        let resume = unserved.paused_workers.first().map(|worker| {
            Action::new(
                "resume_worker",
                format!("Resume worker {worker}"),
                &[("worker", worker.to_string())],
            )
            .main()
        });
        found.push(Trouble {
            is_bad: age_is_long(snapshot.now, unserved.since),
            message: Html(format!("No live worker serves <b>{}</b>", escape(&unserved.command))),
            detail: format!(
                "Jobs in queue {} have been ready for {}.",
                unserved.queue,
                age(unserved.since)
            ),
            links: vec![link(frame, &format!("/jobs/{}", unserved.first_job), "Why?")],
            actions: resume.into_iter().collect(),
            sql: None,
        });
    }
    for queue in &snapshot.queues {
        if let Some(since) = queue.paused_since {
            let resume = Action::new(
                "resume_queue",
                format!("Resume queue {}", queue.queue),
                &[("queue", queue.queue.clone())],
            );
            found.push(Trouble {
                is_bad: false,
                message: Html(format!("Queue <b>{}</b> is paused", escape(&queue.queue))),
                detail: format!("Since {}; {} jobs are ready.", age(since), number(queue.ready)),
                links: vec![link(
                    frame,
                    &jobs_path(&format!("queue:{} state:ready", quoted(&queue.queue))),
                    "Jobs",
                )],
                actions: vec![resume],
                sql: None,
            });
        } else if queue.oldest_ready_seconds > Some(300.0) && queue.workers > 0 && queue.unserved_commands.is_empty() {
            found.push(Trouble {
                is_bad: queue.oldest_ready_seconds > Some(3600.0),
                message: Html(format!("Queue <b>{}</b> is behind", escape(&queue.queue))),
                detail: format!(
                    "{} jobs are ready, the oldest for {}; {} of {} slots are busy.",
                    number(queue.ready),
                    seconds(queue.oldest_ready_seconds),
                    number(queue.running),
                    number(queue.slots)
                ),
                links: vec![link(frame, &format!("/queues/{}", encoded(&queue.queue)), "Queue")],
                actions: Vec::new(),
                sql: None,
            });
        }
    }
    found
}

fn age_is_long(now: SystemTime, since: SystemTime) -> bool {
    now.duration_since(since).is_ok_and(|age| age > Duration::from_secs(60))
}

fn figures(range: Range, snapshot: &Snapshot, total: &Bucket) -> Vec<Figure> {
    let sum = |of: fn(&crate::read::Queue) -> i64| snapshot.queues.iter().map(of).sum::<i64>();
    let (ready, running) = (sum(|q| q.ready), sum(|q| q.running));
    let later = sum(|q| q.scheduled) + sum(|q| q.retrying);
    let idle = sum(|q| q.waiting) + sum(|q| q.paused);
    let about = if snapshot.queues.iter().any(|queue| queue.is_estimate) {
        "≈ "
    } else {
        ""
    };
    let minutes = f64::from(range.buckets) * range.bucket.as_secs_f64() / 60.0;
    let three = |times: [Option<f64>; 3]| times.map(seconds).join(" · ");
    vec![
        Figure {
            label: "Completed per minute",
            value: number(sum(|q| q.completed_last_minute)),
            detail: format!(
                "{:.1} on average, {} in all",
                total.completed as f64 / minutes,
                number(total.completed)
            ),
        },
        Figure {
            label: "Failed attempts",
            value: percent(total.failed, total.failed + total.completed),
            detail: format!("{} of {}", number(total.failed), number(total.failed + total.completed)),
        },
        Figure {
            label: "Wait, p50 · p95 · p99",
            value: three(total.wait),
            detail: format!("run: {}", three(total.run)),
        },
        Figure {
            label: "Live jobs",
            value: format!("{about}{}", number(ready + running + later + idle)),
            detail: format!(
                "{} ready · {} running · {} later",
                number(ready),
                number(running),
                number(later + idle)
            ),
        },
    ]
}

/// The charts, and the same as rows of a table.
fn charts(range: Range, now: SystemTime, buckets: &[Bucket]) -> (Html, Html, Vec<[String; 5]>) {
    let bucket = range.bucket.as_secs();
    let of = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / bucket;
    let last = of(now);
    let first = last + 1 - u64::from(range.buckets);
    let begin = UNIX_EPOCH + Duration::from_secs(first * bucket);
    let mut filled = vec![Bucket::default(); range.buckets as usize];
    for bucket in buckets {
        let place = bucket
            .at
            .and_then(|at| of(at).checked_sub(first))
            .and_then(|place| usize::try_from(place).ok());
        if let Some(slot) = place.and_then(|place| filled.get_mut(place)) {
            *slot = bucket.clone();
        }
    }
    let minutes = range.bucket.as_secs_f64() / 60.0;
    let values = |of: &dyn Fn(&Bucket) -> f64| filled.iter().map(of).collect::<Vec<f64>>();
    let line = |class, name, values, is_filled| Line {
        class,
        name,
        values,
        filled: is_filled,
    };
    let attempts = chart(
        &format!("Completed and failed attempts per minute, last {}", range.label),
        begin,
        range.bucket,
        &[
            line("accent", "completed", values(&|b| b.completed as f64 / minutes), true),
            line("bad", "failed", values(&|b| b.failed as f64 / minutes), false),
        ],
        chart::count,
    );
    let waits = chart(
        &format!("Wait before an attempt, median and p95, last {}", range.label),
        begin,
        range.bucket,
        &[
            line("wait", "p95", values(&|b| b.wait[1].unwrap_or_default()), true),
            line("accent", "median", values(&|b| b.wait[0].unwrap_or_default()), false),
        ],
        chart::length,
    );
    let rows = buckets
        .iter()
        .rev()
        .take(24)
        .map(|bucket| {
            [
                bucket.at.map(|at| text::clock(at).0).unwrap_or_default(),
                number(bucket.completed),
                number(bucket.failed),
                seconds(bucket.wait[0]),
                seconds(bucket.wait[1]),
            ]
        })
        .collect();
    (attempts, waits, rows)
}
