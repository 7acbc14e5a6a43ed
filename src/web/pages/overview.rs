//! Overview: problems first, then how much is done and how fast.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use askama::Template;
use axum::extract::State;
use axum::response::Response;

use super::queues::holder_actions;
use super::{answer, capitalized, command_link, job_link, jobs_path, link, queue_link, quoted, text as text_of};
use crate::read::{Bucket, Finding, Level, Safety, Waits};
use crate::web::actions::Action;
use crate::web::chart::{self, Line, chart};
use crate::web::live::{Measured, RANGES, Range, Snapshot};
use crate::web::site::{Asked, Frame, Shared, encoded, query_of};
use crate::web::text::{self, Html, escape, number, percent, seconds, span};

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview {
    frame: Frame,
    problems: Vec<Trouble>,
    figures: Vec<Figure>,
    ranges: Vec<(&'static str, &'static str, bool)>,
    more_problems: Vec<Trouble>,
    charts: Vec<Chart>,
    rows: Vec<[String; 10]>,
    queues: Vec<QueueRow>,
    more_queues: usize,
    /// Whether the jobs of the queues are counted.
    is_counted: bool,
    /// Facts about the doorbell, late updates and rescues.
    safety: Vec<(&'static str, Html)>,
    sql: String,
}

/// What is wrong, what that costs, and what fixes it.
struct Trouble {
    is_bad: bool,
    message: Html,
    detail: String,
    links: Vec<Html>,
    actions: Vec<Action>,
    /// What fixes it, if no button does.
    sql: Option<Html>,
}

struct Figure {
    label: &'static str,
    value: String,
    detail: String,
    /// How it has changed, and whether that is bad.
    change: Option<(String, bool)>,
    spark: Html,
}

struct Chart {
    id: &'static str,
    title: &'static str,
    /// Class and name.
    legend: Vec<(&'static str, &'static str)>,
    drawn: Html,
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
        // the counts last: they may take long, and one is read after the other
        let (measured, safe, findings, snapshot) =
            tokio::join!(site.chart(range), site.safety(), site.findings_soon(), site.snapshot());
        let (measured, safe, snapshot) = (measured?, safe?, snapshot?);
        let buckets = measured
            .as_ref()
            .map_or(&[][..], |measured| measured.buckets.as_slice());
        let filled = filled(range, snapshot.now, buckets);
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
        let serious = findings
            .iter()
            .flat_map(|findings| findings.iter())
            .filter(|finding| finding.level >= Level::Warn && finding.check != "queues");
        problems.extend(serious.map(|finding| trouble_of(frame, finding)));
        problems.sort_by_key(|problem| !problem.is_bad);
        if !frame.can_change {
            problems.iter_mut().for_each(|problem| problem.actions.clear());
        }
        let more_problems = problems.split_off(problems.len().min(MOST_PROBLEMS));
        Ok(Overview {
            problems,
            // a page stays small
            more_problems: more_problems.into_iter().take(50).collect(),
            figures: figures(range, &snapshot, measured.as_deref(), &filled),
            ranges: RANGES
                .iter()
                .map(|one| (one.name, one.label, one.name == range.name))
                .collect(),
            charts: charts(range, snapshot.now, &filled, measured.is_some()),
            rows: rows(range, buckets),
            safety: safe.map_or_else(Vec::new, |safe| safety(frame, &safe.0, &safe.1)),
            sql: sql(range),
            more_queues: snapshot.queues.len().saturating_sub(shown.len()),
            queues: shown,
            is_counted: snapshot.is_counted,
            frame: frame.clone(),
        })
    })
    .await
}

/// How many problems are shown at once; the others are folded.
const MOST_PROBLEMS: usize = 8;

/// What the doctor found, with a button if a statement fixes it.
fn trouble_of(frame: &Frame, finding: &Finding) -> Trouble {
    let (mut links, actions) = ways_out(frame, finding);
    match finding.check {
        _ if !links.is_empty() => {}
        "workers" => links.push(link(frame, "/workers", "Workers")),
        _ => links.push(link(frame, "/database", "Database")),
    }
    Trouble {
        is_bad: finding.level == Level::Fail,
        message: Html(format!(
            "<b>{}</b>: {}",
            escape(&capitalized(finding.check)),
            escape(&finding.message)
        )),
        detail: String::new(),
        links,
        actions,
        sql: finding.fix.as_deref().map(text::fix),
    }
}

/// The jobs that a finding is about, and buttons that fix it.
pub fn ways_out(frame: &Frame, finding: &Finding) -> (Vec<Html>, Vec<Action>) {
    let mut actions: Vec<Action> = (finding.fix.as_deref())
        .and_then(|fix| Action::of_fix(&frame.rights, fix))
        .into_iter()
        .collect();
    let mut links = Vec::new();
    match (&finding.query, finding.check) {
        (Some(query), "dead letters") => {
            links.push(link(frame, &jobs_path(query), "Show them"));
            actions.push(Action::bulk("restart", "Restart them", query));
        }
        (Some(query), _) => links.push(link(frame, &jobs_path(query), "Its jobs")),
        (None, _) => {}
    }
    (links, actions)
}

/// The doorbell, late updates and rescues.
fn safety(frame: &Frame, waits: &[Waits], safety: &Safety) -> Vec<(&'static str, Html)> {
    // a worker waits for each of its queues
    let workers = |modes: &[&str]| {
        let found = waits
            .iter()
            .filter(|waits| modes.is_empty() || modes.contains(&waits.mode.as_str()));
        found.map(|waits| waits.worker).collect::<BTreeSet<i64>>().len() as i64
    };
    let plural = |count: i64, one: &str| format!("{} {one}{}", number(count), if count == 1 { "" } else { "s" });
    let idle = match (workers(&["sentinel", "follower"]), workers(&[])) {
        (_, 0) => "no worker is alive".to_owned(),
        (0, _) => "no worker is idle: an INSERT sends no notification".to_owned(),
        (idle, all) => format!("{} of {} idle in a queue", number(idle), plural(all, "worker")),
    };
    let rings = safety.rings_per_minute;
    let rings = if rings < 10.0 && rings > 0.0 {
        format!("{rings:.1}")
    } else {
        number(rings.round() as i64)
    };
    let from = safety.late_worker.as_ref().map(|name| format!(", the last by {name}"));
    let more = if safety.late_updates >= 10_000 { "+" } else { "" };
    let p99 = safety
        .rescue_p99_seconds
        .map(|p99| format!(", p99 {}", seconds(Some(p99))));
    vec![
        (
            "Doorbell",
            link(frame, "/queues", &format!("{idle} · {rings} rings/min")),
        ),
        (
            "Safety poll",
            text_of(format!(
                "{} found only by it in 24 h",
                plural(safety.found_by_poll, "job")
            )),
        ),
        (
            "Late updates",
            link(
                frame,
                "/workers",
                &format!(
                    "{}{more} rejected in 24 h{}",
                    number(safety.late_updates),
                    from.unwrap_or_default()
                ),
            ),
        ),
        (
            "Rescued",
            text_of(format!(
                "{} in 24 h{}",
                plural(safety.rescued, "job"),
                p99.unwrap_or_default()
            )),
        ),
    ]
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
        let line = error.and_then(|group| group.error_line.as_deref()).unwrap_or_default();
        let line: String = line.chars().take(160).collect();
        let waiting = snapshot.queues.iter().find(|queue| queue.queue == stats.queue);
        let detail = waiting.map(|queue| {
            let ready = match queue.ready {
                0 => String::new(),
                ready => format!(
                    ", and {} more {} ready",
                    number(ready),
                    if ready == 1 { "is" } else { "are" }
                ),
            };
            format!(
                "In queue {}, {} {} for the next attempt{ready}.",
                queue.queue,
                jobs_in_words(queue.retrying),
                if queue.retrying == 1 { "waits" } else { "wait" },
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
                command_link(frame, &stats.command),
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
            message: Html(format!(
                "No live worker serves <b>{}</b>",
                command_link(frame, &unserved.command)
            )),
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
    for (queue, key) in &snapshot.blocked {
        let holder = job_link(frame, key.job);
        let jobs = match key.waiting {
            1 => "1 job waits".to_owned(),
            jobs => format!("{}{} jobs wait", number(jobs), if jobs >= 1000 { "+" } else { "" }),
        };
        found.push(Trouble {
            is_bad: false,
            message: Html(format!(
                "Queue <b>{}</b>: {jobs} for job {holder}, which has the same order key <code>{}</code>",
                queue_link(frame, queue),
                escape(&key.order_key)
            )),
            detail: format!("That job is {}. Slots of the queue are free.", key.state),
            links: vec![link(frame, &format!("/jobs/{}", key.job), "Why?")],
            actions: holder_actions(queue, key.job, key.state.as_str()),
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
                message: Html(format!("Queue <b>{}</b> is paused", queue_link(frame, &queue.queue))),
                detail: format!(
                    "For {}, while {} are ready in it.",
                    age(since),
                    jobs_in_words(queue.ready)
                ),
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
                message: Html(format!("Queue <b>{}</b> is behind", queue_link(frame, &queue.queue))),
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

fn jobs_in_words(jobs: i64) -> String {
    match jobs {
        0 => "no jobs".to_owned(),
        1 => "1 job".to_owned(),
        jobs => format!("{} jobs", number(jobs)),
    }
}

/// The statements behind this page.
fn sql(range: Range) -> String {
    format!(
        "select * from bugle.queue_stats;\nselect * from bugle.unserved;\nselect * from bugle.command_stats;\n\
         select * from bugle.throughput('{}', '{} seconds');\nselect * from bugle.doorbell();\n\
         select * from bugle.doorbell_minutes where minute > now() - interval '24 hours';\n\
         select * from bugle.late_updates where refused_at > now() - interval '24 hours';\n\
         select * from bugle.attempts where outcome = 'rescued' and ended_at > now() - interval '24 hours';",
        range.since,
        range.bucket.as_secs()
    )
}

fn age_is_long(now: SystemTime, since: SystemTime) -> bool {
    now.duration_since(since).is_ok_and(|age| age > Duration::from_secs(60))
}

/// What is still being counted or added up.
const NOT_YET: &str = "…";

fn figures(range: Range, snapshot: &Snapshot, measured: Option<&Measured>, filled: &[Bucket]) -> Vec<Figure> {
    let nothing = Measured::default();
    let counted = |value: String| if snapshot.is_counted { value } else { NOT_YET.to_owned() };
    let added_up = |value: String| if measured.is_some() { value } else { NOT_YET.to_owned() };
    let measured = measured.unwrap_or(&nothing);
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
    let total = &measured.total;
    // buckets that are over
    let over = &filled[..filled.len().saturating_sub(1)];
    let (completed_before, failed_before) = (measured.before.0 as f64, measured.before.1 as f64);
    let share = |completed: f64, failed: f64| Some(failed / (failed + completed)).filter(|share| share.is_finite());
    let compared = range.compared;
    let more = (completed_before > 0.0).then(|| 100.0 * (total.completed as f64 / completed_before - 1.0));
    let more = more.map(|more| {
        let sign = if more < 0.0 { "▼" } else { "▲" };
        (format!("{sign} {:.0} % on {compared}", more.abs()), more < -50.0)
    });
    let shares = share(completed_before, failed_before).zip(share(total.completed as f64, total.failed as f64));
    let worse = shares.map(|(before, after)| {
        let points = 100.0 * (after - before);
        let sign = if points < 0.0 { "▼" } else { "▲" };
        (format!("{sign} {:.1} points on {compared}", points.abs()), points > 0.5)
    });
    let values = |of: &dyn Fn(&Bucket) -> Option<f64>| over.iter().map(of).collect::<Vec<_>>();
    vec![
        Figure {
            label: "Completed in the last minute",
            value: counted(number(sum(|q| q.completed_last_minute))),
            detail: added_up(format!("{:.1} a minute on average", total.completed as f64 / minutes)),
            change: more,
            spark: chart::spark(&values(&|b| Some(b.completed as f64)), "accent"),
        },
        Figure {
            label: "Failed attempts",
            value: added_up(percent(total.failed, total.failed + total.completed)),
            detail: added_up(format!(
                "{} of {}",
                number(total.failed),
                number(total.failed + total.completed)
            )),
            change: worse,
            spark: chart::spark(&values(&rate), "bad"),
        },
        Figure {
            label: "Wait, p50 · p95 · p99",
            value: added_up(three(total.wait)),
            detail: added_up(format!("run: {}", three(total.run))),
            change: None,
            spark: Html::default(),
        },
        Figure {
            label: "Live jobs",
            value: counted(format!("{about}{}", number(ready + running + later + idle))),
            detail: counted(format!(
                "{} ready · {} running · {} later",
                number(ready),
                number(running),
                number(later + idle)
            )),
            change: None,
            spark: Html::default(),
        },
    ]
}

/// The share of attempts that failed.
fn rate(bucket: &Bucket) -> Option<f64> {
    let all = bucket.failed + bucket.completed;
    (all > 0).then(|| bucket.failed as f64 / all as f64)
}

/// A bucket for each part of the period, also for those without attempts.
fn filled(range: Range, now: SystemTime, buckets: &[Bucket]) -> Vec<Bucket> {
    let first = first(range, now);
    let mut filled = vec![Bucket::default(); range.buckets as usize];
    for bucket in buckets {
        let at = bucket.at.map(|at| seconds_of(at) / range.bucket.as_secs());
        let place = at
            .and_then(|at| at.checked_sub(first))
            .and_then(|place| usize::try_from(place).ok());
        if let Some(slot) = place.and_then(|place| filled.get_mut(place)) {
            *slot = bucket.clone();
        }
    }
    filled
}

fn seconds_of(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The number of the first bucket.
fn first(range: Range, now: SystemTime) -> u64 {
    seconds_of(now) / range.bucket.as_secs() + 1 - u64::from(range.buckets)
}

/// The charts, or where they will be.
fn charts(range: Range, now: SystemTime, filled: &[Bucket], is_known: bool) -> Vec<Chart> {
    let bucket = range.bucket.as_secs();
    let begin = UNIX_EPOCH + Duration::from_secs(first(range, now) * bucket);
    // the last bucket is not over: its rate is that of the time that has passed, if that says something
    let passed = (seconds_of(now) % bucket) as f64;
    let minutes = |place: usize| match place + 1 == filled.len() {
        true if passed * 5.0 < bucket as f64 => None,
        true => Some(passed / 60.0),
        false => Some(bucket as f64 / 60.0),
    };
    let per_minute = |of: &dyn Fn(&Bucket) -> i64| -> Vec<Option<f64>> {
        (filled.iter().enumerate())
            .map(|(place, bucket)| Some(of(bucket) as f64 / minutes(place)?))
            .collect()
    };
    let values = |of: &dyn Fn(&Bucket) -> Option<f64>| filled.iter().map(of).collect::<Vec<_>>();
    let line = |class, name, values, filled| Line {
        class,
        name,
        values,
        filled,
    };
    let label = range.label;
    let times = |name: &str, of: fn(&Bucket) -> [Option<f64>; 3]| {
        chart(
            &format!("{name}, median, p95 and p99, last {label}"),
            begin,
            range.bucket,
            &[
                line("wait", "p99", values(&|b| of(b)[2]), false),
                line("late", "p95", values(&|b| of(b)[1]), false),
                line("accent", "median", values(&|b| of(b)[0]), true),
            ],
            chart::length,
        )
    };
    let of_times = || vec![("accent", "median"), ("late", "p95"), ("wait", "p99")];
    let mut charts = vec![
        Chart {
            id: "attempts",
            title: "Attempts per minute",
            legend: vec![("accent", "completed"), ("bad", "failed")],
            drawn: chart(
                &format!("Completed and failed attempts per minute, last {label}"),
                begin,
                range.bucket,
                &[
                    line("accent", "completed", per_minute(&|b| b.completed), true),
                    line("bad", "failed", per_minute(&|b| b.failed), false),
                ],
                chart::count,
            ),
        },
        Chart {
            id: "failures",
            title: "Failed attempts, share of all",
            legend: vec![("bad", "failed")],
            drawn: chart(
                &format!("Share of attempts that failed, last {label}"),
                begin,
                range.bucket,
                &[line("bad", "failed", values(&rate), true)],
                chart::share,
            ),
        },
        Chart {
            id: "waits",
            title: "Wait before an attempt",
            legend: of_times(),
            drawn: times("Wait before an attempt", |b| b.wait),
        },
        Chart {
            id: "runs",
            title: "Run time of an attempt",
            legend: of_times(),
            drawn: times("Run time of an attempt", |b| b.run),
        },
    ];
    if !is_known {
        let not_yet = Html("<p class=\"empty\">The minutes are still being added up.</p>".to_owned());
        charts.iter_mut().for_each(|chart| chart.drawn = not_yet.clone());
    }
    charts
}

/// The charts as rows of a table.
fn rows(range: Range, buckets: &[Bucket]) -> Vec<[String; 10]> {
    let form = match range.bucket.as_secs() {
        ..=300 => text::Form::Minute,
        301..=900 => text::Form::Weekday,
        _ => text::Form::Moment,
    };
    let row = |bucket: &Bucket| {
        let [wait, run] = [bucket.wait, bucket.run].map(|times| times.map(seconds));
        let [wait_p50, wait_p95, wait_p99] = wait;
        let [run_p50, run_p95, run_p99] = run;
        [
            bucket.at.map(|at| text::at(at, form).0).unwrap_or_default(),
            number(bucket.completed),
            number(bucket.failed),
            percent(bucket.failed, bucket.failed + bucket.completed),
            wait_p50,
            wait_p95,
            wait_p99,
            run_p50,
            run_p95,
            run_p99,
        ]
    };
    buckets.iter().rev().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_waits_in_several_queues_is_counted_once() {
        let waits = |queue: &str, worker, mode: &str| Waits {
            queue: queue.to_owned(),
            worker,
            worker_name: format!("w{worker}"),
            mode: mode.to_owned(),
        };
        let waits = [
            waits("a", 1, "sentinel"),
            waits("a", 2, "follower"),
            waits("b", 2, "sentinel"),
            waits("b", 1, "awake"),
            waits("b", 3, "awake"),
        ];
        let nothing = Safety {
            rings_per_minute: 0.0,
            found_by_poll: 0,
            late_updates: 0,
            late_worker: None,
            rescued: 0,
            rescue_p99_seconds: None,
        };

        let facts = safety(&Frame::default(), &waits, &nothing);

        assert!(
            facts[0].1.0.contains("2 of 3 workers idle in a queue"),
            "{}",
            facts[0].1
        );
    }
}
