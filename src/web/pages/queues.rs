//! Queues: all of them, and one with its limits, turns and doorbell.

use std::collections::BTreeMap;
use std::time::SystemTime;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;

use super::detail::{Detail, last_hour};
use super::table::{Button, Row, Section, Table, button};
use super::{answer, command_link, job_link, jobs_path, link, queue_link, quoted, text, worker_link};
use crate::read;
use crate::state::State as JobState;
use crate::web::actions::Action;
use crate::web::site::{Asked, Frame, Lists, Problem, Shared, allowed, reading};
use crate::web::text::{Html, badge, badge_as, escape, limits as in_words, number, seconds, when};
use crate::web::waterfall::shares;

pub async fn list(State(site): State<Shared>, request: Asked) -> Response {
    answer(&site, request, "queues", async |frame, _| {
        let snapshot = site.snapshot().await?;
        let lead = "Jobs by state, the oldest ready job, completions of the last minute, and limits.";
        let mut table = Table::new(frame, "Queues", lead, "select * from bugle.queue_stats order by queue;");
        table.columns = vec![
            ("Queue", ""),
            ("Ready", "num"),
            ("Running", "num"),
            ("Later", "num hide-s"),
            ("Waiting", "num hide-s"),
            ("Oldest", "num"),
            ("Completed/min", "num"),
            ("Failed/min", "num hide-s"),
            ("Limits", "hide-s"),
        ];
        table.empty = match snapshot.is_counted {
            true => "A queue appears when a job, a worker or a setting names it. Enqueue a job, or start a worker.",
            false => "The jobs are still being counted.",
        };
        for queue in &snapshot.queues {
            let about = if queue.is_estimate { "≈ " } else { "" };
            let paused = queue
                .paused_since
                .map(|_| format!(" {}", badge("paused")))
                .unwrap_or_default();
            let unserved = match queue.unserved_commands.as_slice() {
                [] => String::new(),
                [one] => format!("<small class=\"warn\">no worker serves {}</small>", escape(one)),
                many => format!("<small class=\"warn\">no worker serves {} commands</small>", many.len()),
            };
            let blocked: i64 = (snapshot.blocked.iter())
                .filter(|(name, _)| *name == queue.queue)
                .map(|(_, key)| key.waiting)
                .sum();
            let blocked = match blocked {
                0 => String::new(),
                jobs => format!(
                    "<small class=\"warn\">{} blocked by their order keys</small>",
                    capped(jobs)
                ),
            };
            let name = queue_link(frame, &queue.queue);
            let buttons = match queue.paused_since {
                Some(_) => button("resume_queue", "Resume", "queue", &queue.queue),
                None => button("pause_queue", "Pause", "queue", &queue.queue),
            };
            table.rows.push(Row {
                cells: vec![
                    Html(format!("{name}{paused}{unserved}{blocked}")),
                    text(format!("{about}{}", number(queue.ready))),
                    text(format!("{} / {}", number(queue.running), number(queue.slots))),
                    text(number(queue.scheduled + queue.retrying)),
                    text(number(queue.waiting + queue.paused)),
                    text(seconds(queue.oldest_ready_seconds)),
                    text(number(queue.completed_last_minute)),
                    text(number(queue.failed_last_minute)),
                    text(queue.limits.as_deref().map(in_words).unwrap_or_else(|| "–".to_owned())),
                ],
                buttons: vec![buttons],
                actions: Vec::new(),
            });
        }
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let waits = read::doorbell(&transaction).await?;
        let rings = read::rings(&transaction).await?;
        table.sections = vec![doorbells(frame, &waits, &rings)];
        table
            .sql
            .push_str("\nselect * from bugle.doorbell();\nselect * from bugle.doorbell_minutes order by minute desc;");
        Ok(table.finished())
    })
    .await
}

pub async fn show(State(site): State<Shared>, Path(name): Path<String>, request: Asked) -> Response {
    answer(&site, request, "queues", async |frame, _| {
        let snapshot = site.snapshot_with_counts().await?;
        let queue = snapshot
            .queues
            .iter()
            .find(|queue| queue.queue == name)
            .ok_or_else(|| {
                Problem::new(StatusCode::NOT_FOUND, format!("There is no queue {name}."))
                    .hint("A queue appears when a job, a worker or a setting names it.")
            })?;
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let (_, buckets) = read::throughput(&transaction, "1 hour", "1 minute", Some(&name), None).await?;
        let limits = read::limits_left(&transaction, &name).await?;
        let turns = read::next_turns(&transaction, &name).await?;
        let blocked = read::blocked_keys(&transaction, &name).await?;
        let mut waits = read::doorbell(&transaction).await?;
        waits.retain(|waits| waits.queue == name);
        let rings = read::rings(&transaction).await?;
        let rings = rings.iter().find(|rings| rings.queue == name);
        let sections = vec![
            limits_left(frame, &limits, snapshot.now),
            doorbell(frame, &waits, &name, &snapshot.workers),
            next_turns(frame, &turns),
            blocked_keys(frame, &name, &blocked, snapshot.now),
        ];
        let known = vec![("queue", name.clone())];
        let mut actions = vec![match queue.paused_since {
            Some(_) => Action::new("resume_queue", "Resume", &known).main(),
            None => Action::new("pause_queue", "Pause", &known),
        }];
        let mut set_limits = Action::new("set_limits", "Set limits", &known);
        for (name, value) in read::limits(&transaction, &name).await? {
            set_limits = set_limits.stored(&name, Some(value));
        }
        actions.push(set_limits);
        let by = |state: &str, count: i64| match count {
            0 => Html("<span class=\"dim\">0</span>".to_owned()),
            _ => link(
                frame,
                &jobs_path(&format!("queue:{} state:{state}", quoted(&name))),
                &number(count),
            ),
        };
        Ok(Detail {
            title: name.clone(),
            state: badge(if queue.paused_since.is_some() { "paused" } else { "open" }),
            facts: vec![
                ("Ready", by("ready", queue.ready)),
                (
                    "Running",
                    Html(format!(
                        "{} of {} slots",
                        by("running", queue.running),
                        number(queue.slots)
                    )),
                ),
                ("Scheduled", by("scheduled", queue.scheduled)),
                ("Retrying", by("retrying", queue.retrying)),
                ("Waiting", by("waiting", queue.waiting)),
                ("Paused", by("paused", queue.paused)),
                ("Oldest ready", text(seconds(queue.oldest_ready_seconds))),
                (
                    "Next due",
                    queue.due_next.map_or_else(|| text("–"), |at| when(snapshot.now, at)),
                ),
                ("Rings per minute", text(rings_per_minute(rings))),
                (
                    "Found only by the safety poll, 24 h",
                    text(number(rings.map_or(0, |rings| rings.found_by_poll))),
                ),
                (
                    "Limits",
                    text(
                        queue
                            .limits
                            .as_deref()
                            .map(in_words)
                            .unwrap_or_else(|| "none".to_owned()),
                    ),
                ),
            ]
            .into_iter()
            .chain(queue.paused_since.map(|at| ("Paused", when(snapshot.now, at))))
            .collect(),
            actions: allowed(frame, actions),
            lists: Lists::default(),
            chart: last_hour(
                &buckets,
                snapshot.now,
                "Completed and failed attempts of this queue per minute",
            ),
            chart_title: "Attempts per minute, last hour",
            list_title: "",
            list: Vec::new(),
            // an empty one would only say that the queue does not use it
            sections: sections
                .into_iter()
                .filter(|section| section.id == "doorbell" || !section.rows.is_empty())
                .collect(),
            sql: ["limits_left", "next_turns", "blocked_keys"]
                .map(|name_of| format!("select * from bugle.{name_of}('{}');", name.replace('\'', "''")))
                .join("\n"),
            frame: frame.clone(),
        })
    })
    .await
}

/// What is left of each limit, as a bar.
fn limits_left(frame: &Frame, limits: &[read::LimitLeft], now: SystemTime) -> Section {
    let mut section = Section::new(
        "limits",
        "Limits, live",
        "How much is used, how much is left, and when capacity is free again.",
    );
    section.columns = vec![
        ("Limit", ""),
        ("Of", ""),
        ("Use", "wide"),
        ("Used", "num"),
        ("Left", "num"),
        ("Free", "num"),
    ];
    section.rows = limits
        .iter()
        .map(|limit| {
            let what = match limit.limited_by.as_str() {
                "max_running" => "running at once",
                "max_starts" => "starts in a period",
                "max_running_per_key" => "running at once, per key",
                "max_starts_per_key" => "starts in a period, per key",
                _ => "running at once, in all queues",
            };
            let of = match (limit.limited_by.as_str(), &limit.key) {
                ("command", Some(command)) => command_link(frame, command),
                (_, Some(key)) => link(frame, &jobs_path(&format!("key:{}", quoted(key))), key),
                _ => text("the queue"),
            };
            let used = if limit.room == 0 { "retrying" } else { "running" };
            vec![
                text(what),
                of,
                shares(&[(used.into(), limit.used.into()), ("rest".into(), limit.room.into())]),
                text(format!(
                    "{} of {}",
                    number(limit.used.into()),
                    number(limit.most.into())
                )),
                text(number(limit.room.into())),
                match (limit.room, limit.free_at) {
                    (0, Some(at)) => when(now, at),
                    (0, None) => text("when one ends"),
                    _ => text("now"),
                },
            ]
        })
        .collect();
    section
}

/// The workers of a queue: who is idle, and who is woken first.
fn doorbell(frame: &Frame, waits: &[read::Waits], queue: &str, workers: &[read::WorkerLine]) -> Section {
    let mut section = Section::new("doorbell", "Workers and doorbell", DOORBELL);
    section.columns = vec![
        ("Worker", ""),
        ("Mode", ""),
        ("Slots", "num"),
        ("Running in all queues", "num hide-s"),
        ("Meaning", "grow"),
    ];
    section.empty = "No worker serves it.";
    section.rows = waits
        .iter()
        .take(MOST)
        .map(|waits| {
            let means = match waits.mode.as_str() {
                "sentinel" => "Idle; the next INSERT wakes it.",
                "follower" => "Idle; another worker wakes it when there is more work.",
                "watcher" => "Polls while a transaction that enqueued is open; the others are idle.",
                "paused" => "Paused; it claims nothing.",
                _ => "Busy; it polls by itself.",
            };
            let word = match waits.mode.as_str() {
                "sentinel" => "woken first",
                "follower" => "idle",
                "watcher" => "polling",
                "paused" => "paused",
                _ => "busy",
            };
            let worker = workers.iter().find(|worker| worker.id == waits.worker);
            let slots = worker.and_then(|worker| {
                let place = worker.queues.iter().position(|name| name == queue)?;
                worker.slots.get(place).copied()
            });
            vec![
                worker_link(frame, waits.worker, Some(&waits.worker_name)),
                badge_as(&waits.mode, word),
                text(slots.map_or_else(|| "–".to_owned(), |slots| slots.to_string())),
                match worker {
                    Some(worker) => link(
                        frame,
                        &jobs_path(&format!("worker:{} state:running", waits.worker)),
                        &number(worker.running.into()),
                    ),
                    None => text("–"),
                },
                text(means),
            ]
        })
        .collect();
    section
}

const DOORBELL: &str = "An INSERT sends a notification only if a worker is idle. Busy workers poll by themselves.";
/// How many rows a further table has.
const MOST: usize = 200;
/// How many names a cell has.
const NAMES: usize = 4;

/// The same for all queues, a row each.
fn doorbells(frame: &Frame, waits: &[read::Waits], rings: &[read::Rings]) -> Section {
    let mut section = Section::new("doorbell", "Doorbell", DOORBELL);
    section.columns = vec![
        ("Queue", ""),
        ("Woken first", ""),
        ("Idle", "hide-s"),
        ("Busy", ""),
        ("Polls for others", "hide-s"),
        ("Rings/min", "num"),
        ("Found only by the safety poll, 24 h", "num hide-s"),
    ];
    section.empty = "No worker is alive.";
    let mut queues: BTreeMap<&str, [Vec<String>; 4]> = BTreeMap::new();
    for waits in waits {
        let place = match waits.mode.as_str() {
            "sentinel" => 0,
            "follower" => 1,
            "watcher" => 3,
            "paused" => continue,
            _ => 2,
        };
        let worker = worker_link(frame, waits.worker, Some(&waits.worker_name)).0;
        queues.entry(&waits.queue).or_default()[place].push(worker);
    }
    let names = |names: &Vec<String>| {
        let first: Vec<&str> = names.iter().take(NAMES).map(String::as_str).collect();
        Html(match names.len() {
            0 => "–".to_owned(),
            all if all > NAMES => format!("{}, {} more", first.join(", "), all - NAMES),
            _ => first.join(", "),
        })
    };
    section.rows = (queues.iter().take(MOST))
        .map(|(queue, modes)| {
            let mut row = vec![queue_link(frame, queue)];
            row.extend(modes.iter().map(names));
            let rings = rings.iter().find(|rings| rings.queue == *queue);
            row.push(text(rings_per_minute(rings)));
            row.push(text(number(rings.map_or(0, |rings| rings.found_by_poll))));
            row
        })
        .collect();
    section
}

/// Over the last five minutes.
fn rings_per_minute(rings: Option<&read::Rings>) -> String {
    match rings.map_or(0.0, |rings| rings.rings_per_minute) {
        few if few > 0.0 && few < 10.0 => format!("{few:.1}"),
        many => number(many.round() as i64),
    }
}

fn next_turns(frame: &Frame, turns: &[read::Turn]) -> Section {
    let mut section = Section::new("turns", "Next turns", "Fair keys take turns, one start each.");
    section.columns = vec![("Turn", "tight"), ("Key", ""), ("Next job", ""), ("Ready", "num")];
    section.rows = turns
        .iter()
        .map(|turn| {
            vec![
                text(number(turn.turn)),
                link(
                    frame,
                    &jobs_path(&format!("key:{}", quoted(&turn.fair_key))),
                    &turn.fair_key,
                ),
                job_link(frame, turn.job),
                text(capped(turn.ready)),
            ]
        })
        .collect();
    section
}

/// What lets the jobs continue that wait for a job with the same order key.
pub fn holder_actions(queue: &str, holder: i64, state: &str) -> Vec<Action> {
    let id = || [("id", holder.to_string())];
    match state {
        "paused" => vec![Action::new("resume", "Resume that job", &id()).main()],
        "retrying" | "scheduled" => {
            let now = [("id", holder.to_string()), ("run_at", "now".to_owned())];
            let pass = [("queue", queue.to_owned()), ("order_on_retry", "pass".to_owned())];
            let mut actions = vec![Action::new("reschedule", "Run that job now", &now).main()];
            if state == "retrying" {
                actions.push(Action::new("set_limits", "Let others pass", &pass));
            }
            actions
        }
        "waiting" => vec![
            Action::new("resolve", "Answer that job", &id()).preset("result", "{}"),
            Action::new("cancel", "Cancel that job", &id()).danger(),
        ],
        "ready" | "running" => vec![Action::new("cancel", "Cancel that job", &id()).danger()],
        _ => Vec::new(),
    }
}

fn blocked_keys(frame: &Frame, queue: &str, keys: &[read::BlockedKey], now: SystemTime) -> Section {
    let lead = "Jobs with the same order key run one after another. \
                The jobs counted here wait for the one that holds the key.";
    let mut section = Section::new("blocked", "Blocked order keys", lead);
    section.columns = vec![
        ("Key", ""),
        ("Held by", ""),
        ("State", ""),
        ("Due", "num"),
        ("Waiting", "num"),
        ("", "acts"),
    ];
    let act = |button: Button| {
        let path = format!("{}{}", frame.base, button.path(frame));
        format!(
            "<a class=\"btn small\" href=\"{}\">{}…</a>",
            escape(&path),
            button.label
        )
    };
    section.rows = keys
        .iter()
        .map(|key| {
            vec![
                link(
                    frame,
                    &jobs_path(&format!("key:{}", quoted(&key.order_key))),
                    &key.order_key,
                ),
                job_link(frame, key.job),
                badge(key.state.as_str()),
                match key.state {
                    JobState::Retrying | JobState::Scheduled => when(now, key.run_at),
                    _ => text("–"),
                },
                text(capped(key.waiting)),
                Html(match key.state {
                    _ if !frame.can_change => String::new(),
                    JobState::Retrying => {
                        let now = button("reschedule", "Run that job now", "id", &key.job.to_string());
                        let pass = button("set_limits", "Let others pass", "queue", queue);
                        format!(
                            "{}{}",
                            act(now.with("run_at", "now")),
                            act(pass.with("order_on_retry", "pass"))
                        )
                    }
                    JobState::Scheduled => {
                        let now = button("reschedule", "Run that job now", "id", &key.job.to_string());
                        act(now.with("run_at", "now"))
                    }
                    JobState::Paused => act(button("resume", "Resume that job", "id", &key.job.to_string())),
                    _ => String::new(),
                }),
            ]
        })
        .collect();
    section
}

/// A count that stops at 1,000.
fn capped(count: i64) -> String {
    format!("{}{}", number(count), if count >= 1000 { "+" } else { "" })
}
