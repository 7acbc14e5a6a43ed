//! Pages that are a table: queues, commands, schedules, workers, errors, dead letters, changes, the database.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use askama::Template;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;

use super::table::{Row, Section, Table, bulk, button, mono};
use super::{answer, between, job_link, jobs_path, link, quoted, text};
use crate::read::{self, ChangeFilter, Level};
use crate::state::WorkerState;
use crate::web::actions::Action;
use crate::web::chart::{self, Line, chart};
use crate::web::cron;
use crate::web::site::{Asked, Frame, Problem, Shared, allowed, encoded, query_of, reading};
use crate::web::text::{Html, badge, escape, number, percent, seconds, when};
use crate::web::waterfall::shares;

pub async fn queues(State(site): State<Shared>, request: Asked) -> Response {
    answer(&site, request, "queues", async |frame, _| {
        let snapshot = site.snapshot().await?;
        let lead = "Jobs by state, the oldest that is ready, what was done in the last minute, and what holds it back.";
        let mut table = Table::new(frame, "Queues", lead, "select * from bugle.queue_stats order by queue;");
        table.columns = vec![
            ("Queue", ""),
            ("Ready", "num"),
            ("Running", "num"),
            ("Later", "num hide-s"),
            ("Waiting", "num hide-s"),
            ("Oldest", "num"),
            ("Done/min", "num"),
            ("Failed/min", "num hide-s"),
            ("Limits", "hide-s"),
        ];
        table.empty = "A queue appears when a job, a worker or a setting names it. Enqueue a job, or start a worker.";
        for queue in &snapshot.queues {
            let about = if queue.is_estimate { "≈ " } else { "" };
            let paused = queue
                .paused_since
                .map(|_| format!(" {}", badge("paused")))
                .unwrap_or_default();
            let unserved = match queue.unserved_commands.as_slice() {
                [] => String::new(),
                [one] => format!("<small class=\"warn\">nobody serves {}</small>", escape(one)),
                many => format!("<small class=\"warn\">nobody serves {} commands</small>", many.len()),
            };
            let name = link(frame, &format!("/queues/{}", encoded(&queue.queue)), &queue.queue);
            let buttons = match queue.paused_since {
                Some(_) => button("resume_queue", "Resume", "queue", &queue.queue),
                None => button("pause_queue", "Pause", "queue", &queue.queue),
            };
            table.rows.push(Row {
                cells: vec![
                    Html(format!("{name}{paused}{unserved}")),
                    text(format!("{about}{}", number(queue.ready))),
                    text(format!("{} / {}", number(queue.running), number(queue.slots))),
                    text(number(queue.scheduled + queue.retrying)),
                    text(number(queue.waiting + queue.paused)),
                    text(seconds(queue.oldest_ready_seconds)),
                    text(number(queue.completed_last_minute)),
                    text(number(queue.failed_last_minute)),
                    text(queue.limits.as_deref().unwrap_or("–")),
                ],
                buttons: vec![buttons],
            });
        }
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let waits = read::doorbell(&transaction).await?;
        table.sections = vec![doorbells(frame, &waits)];
        Ok(table.finished())
    })
    .await
}

#[derive(Template)]
#[template(path = "detail.html")]
struct Detail {
    frame: Frame,
    title: String,
    state: Html,
    facts: Vec<(&'static str, Html)>,
    actions: Vec<Action>,
    chart: Html,
    chart_title: &'static str,
    list_title: &'static str,
    list: Vec<Html>,
    sections: Vec<Section>,
    /// Statements that show the same.
    sql: String,
}

pub async fn queue(State(site): State<Shared>, Path(name): Path<String>, request: Asked) -> Response {
    answer(&site, request, "queues", async |frame, _| {
        let snapshot = site.snapshot().await?;
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
        let sections = vec![
            limits_left(frame, &limits, snapshot.now),
            doorbell(frame, &waits),
            next_turns(frame, &turns),
            blocked_keys(frame, &blocked, snapshot.now),
        ];
        let known = vec![("queue", name.clone())];
        let mut actions = vec![match queue.paused_since {
            Some(_) => Action::new("resume_queue", "Resume", &known).main(),
            None => Action::new("pause_queue", "Pause", &known),
        }];
        actions.push(Action::new("set_limits", "Set limits", &known));
        let by = |state: &str, count: i64| {
            link(
                frame,
                &jobs_path(&format!("queue:{} state:{state}", quoted(&name))),
                &number(count),
            )
        };
        let serving = (snapshot.workers.iter())
            .filter(|worker| worker.queues.contains(&name))
            .map(|worker| {
                link(
                    frame,
                    &jobs_path(&format!("worker:{} state:running", worker.id)),
                    &worker.name,
                )
            });
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
                ("Limits", text(queue.limits.as_deref().unwrap_or("none"))),
                (
                    "Paused since",
                    queue
                        .paused_since
                        .map_or_else(|| text("–"), |at| when(snapshot.now, at)),
                ),
            ],
            actions: allowed(frame, actions),
            chart: last_hour(
                &buckets,
                snapshot.now,
                "Completed and failed attempts of this queue per minute",
            ),
            chart_title: "Attempts per minute, last hour",
            list_title: "Served by",
            list: serving.collect(),
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

/// A chart of the minutes of the last hour.
pub fn last_hour(buckets: &[read::Bucket], now: SystemTime, label: &str) -> Html {
    let minute = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 60;
    let last = minute(now);
    let mut done = [vec![0.0; 60], vec![0.0; 60]];
    for bucket in buckets {
        let place = bucket
            .at
            .and_then(|at| usize::try_from((minute(at) + 60).checked_sub(last + 1)?).ok());
        if let Some(place) = place.filter(|place| *place < 60) {
            done[0][place] = bucket.completed as f64;
            done[1][place] = bucket.failed as f64;
        }
    }
    let [completed, failed] = done;
    let line = |class, name, values, filled| Line {
        class,
        name,
        values,
        filled,
    };
    chart(
        &format!("{label}, last hour"),
        UNIX_EPOCH + Duration::from_secs((last - 59) * 60),
        Duration::from_secs(60),
        &[
            line("accent", "completed", completed, true),
            line("bad", "failed", failed, false),
        ],
        chart::count,
    )
}

/// What is left of each limit, as a bar.
fn limits_left(frame: &Frame, limits: &[read::LimitLeft], now: SystemTime) -> Section {
    let mut section = Section::new(
        "limits",
        "Limits, live",
        "What is used, what is left, and when there is room again.",
    );
    section.columns = vec![
        ("Limit", ""),
        ("Of", ""),
        ("", "wide"),
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
                ("command", Some(command)) => link(frame, &jobs_path(&format!("command:{}", quoted(command))), command),
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

/// Who sleeps, who follows. The doorbell is rung only for the sentinel.
fn doorbell(frame: &Frame, waits: &[read::Waits]) -> Section {
    let mut section = Section::new("doorbell", "Doorbell", DOORBELL);
    section.columns = vec![("Worker", ""), ("Mode", ""), ("What that means", "")];
    section.empty = "No worker serves it.";
    section.rows = waits
        .iter()
        .take(MOST)
        .map(|waits| {
            let means = match waits.mode.as_str() {
                "sentinel" => "It sleeps. The next INSERT wakes it.",
                "follower" => "It sleeps. The worker that is awake, or woken, calls it.",
                "watcher" => "It polls for all, while a transaction that has enqueued is open.",
                "paused" => "It claims nothing.",
                _ => "It is working, and scans for more by itself.",
            };
            let running = jobs_path(&format!("worker:{} state:running", waits.worker));
            vec![
                link(frame, &running, &waits.worker_name),
                badge(&waits.mode),
                text(means),
            ]
        })
        .collect();
    section
}

const DOORBELL: &str = "An INSERT notifies only if a worker sleeps. Busy workers scan by themselves.";
/// How many rows a further table has.
const MOST: usize = 200;
/// How many names a cell has.
const NAMES: usize = 4;

/// The same for all queues, a row each.
fn doorbells(frame: &Frame, waits: &[read::Waits]) -> Section {
    let mut section = Section::new("doorbell", "Doorbell", DOORBELL);
    section.columns = vec![
        ("Queue", ""),
        ("Sleeps, is rung", ""),
        ("Follow", "hide-s"),
        ("Awake", ""),
        ("Polls for all", "hide-s"),
    ];
    section.empty = "No worker is alive.";
    let mut queues: BTreeMap<&str, [Vec<&str>; 4]> = BTreeMap::new();
    for waits in waits {
        let place = match waits.mode.as_str() {
            "sentinel" => 0,
            "follower" => 1,
            "watcher" => 3,
            "paused" => continue,
            _ => 2,
        };
        queues.entry(&waits.queue).or_default()[place].push(&waits.worker_name);
    }
    let names = |names: &Vec<&str>| {
        let first: Vec<&str> = names.iter().take(NAMES).copied().collect();
        text(match names.len() {
            0 => "–".to_owned(),
            all if all > NAMES => format!("{}, {} more", first.join(", "), all - NAMES),
            _ => first.join(", "),
        })
    };
    section.rows = (queues.iter().take(MOST))
        .map(|(queue, modes)| {
            let path = format!("/queues/{}", encoded(queue));
            let mut row = vec![link(frame, &path, queue)];
            row.extend(modes.iter().map(names));
            row
        })
        .collect();
    section
}

fn next_turns(frame: &Frame, turns: &[read::Turn]) -> Section {
    let mut section = Section::new("turns", "Whose turn is next", "Fair keys take turns, one start each.");
    section.columns = vec![("Turn", "num"), ("Key", ""), ("Next job", ""), ("Ready", "num")];
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

fn blocked_keys(frame: &Frame, keys: &[read::BlockedKey], now: SystemTime) -> Section {
    let lead = "Jobs of one order key run one after another. These wait for the job named here.";
    let mut section = Section::new("blocked", "Order keys that are held", lead);
    section.columns = vec![
        ("Key", ""),
        ("Held by", ""),
        ("", ""),
        ("Due", "num"),
        ("Waiting", "num"),
    ];
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
                badge(&key.state),
                match key.state.as_str() {
                    "retrying" | "scheduled" => when(now, key.run_at),
                    _ => text("–"),
                },
                text(capped(key.waiting)),
            ]
        })
        .collect();
    section
}

/// A count that stops at 1,000.
fn capped(count: i64) -> String {
    format!("{}{}", number(count), if count >= 1000 { "+" } else { "" })
}

pub async fn commands(State(site): State<Shared>, request: Asked) -> Response {
    answer(&site, request, "commands", async |frame, _| {
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let commands = read::commands(&transaction).await?;
        let snapshot = site.snapshot().await?;
        let lead = "Who serves them, what holds for their jobs, and how the last hour went.";
        let mut table = Table::new(
            frame,
            "Commands",
            lead,
            "select * from bugle.command_stats order by command;",
        );
        table.columns = vec![
            ("Command", ""),
            ("Workers", "num"),
            ("Completed", "num"),
            ("Failed", "num"),
            ("Failure rate", "num hide-s"),
            ("Run, p50 · p95", "num hide-s"),
            ("Timeout", "num hide-s"),
            ("Attempts", "num hide-s"),
            ("Policy", "hide-s"),
            ("", "acts"),
        ];
        table.empty = "A command appears when a worker serves it, a setting names it, or a job of it has run.";
        for command in &commands {
            let path = format!("/commands/{}", encoded(&command.name));
            let stats = snapshot.stats.iter().find(|stats| stats.command == command.name);
            let run = stats.map_or_else(String::new, |stats| {
                format!(
                    "{} · {}",
                    seconds(stats.run_p50_seconds),
                    seconds(stats.run_p95_seconds)
                )
            });
            let workers = match command.workers {
                0 => Html("<small class=\"warn\">nobody</small>".to_owned()),
                workers => text(number(workers)),
            };
            let all = command.failed_last_hour + command.completed_last_hour;
            let enqueue = format!("/enqueue?command={}", encoded(&command.name));
            table.rows.push(Row {
                cells: vec![
                    link(frame, &path, &command.name),
                    workers,
                    text(number(command.completed_last_hour)),
                    text(number(command.failed_last_hour)),
                    text(percent(command.failed_last_hour, all)),
                    text(run),
                    text(seconds(command.timeout_seconds)),
                    text(
                        command
                            .max_attempts
                            .map_or_else(|| "–".to_owned(), |most| most.to_string()),
                    ),
                    text(command.retry_policy.as_deref().unwrap_or("–")),
                    if frame.can_enqueue {
                        link(frame, &enqueue, "Enqueue…")
                    } else {
                        text("")
                    },
                ],
                buttons: Vec::new(),
            });
        }
        table.actions = allowed(frame, vec![Action::new("set_command_limit", "Limit a command", &[])]);
        Ok(table.finished())
    })
    .await
}

pub async fn schedules(State(site): State<Shared>, request: Asked) -> Response {
    answer(&site, request, "schedules", async |frame, _| {
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let (now, schedules) = (read::now(&transaction).await?, read::schedules(&transaction).await?);
        let lead = "Recurring jobs: cron expressions and intervals.";
        let mut table = Table::new(frame, "Schedules", lead, "select * from bugle.schedules order by name;");
        table.columns = vec![
            ("Schedule", ""),
            ("When", ""),
            ("Command", ""),
            ("Queue", "hide-s"),
            ("Next", "num"),
            ("Last", "num hide-s"),
            ("Last job", "num hide-s"),
        ];
        table.empty = "Nothing recurs yet. Add a schedule with a cron expression (0 9 * * MON-FRI) or an interval.";
        for schedule in &schedules {
            let name = link(
                frame,
                &format!("/schedules/{}", encoded(&schedule.name)),
                &schedule.name,
            );
            let paused = schedule
                .paused_at
                .map(|_| format!(" {}", badge("paused")))
                .unwrap_or_default();
            let error = schedule
                .last_error
                .as_ref()
                .map(|error| format!("<small class=\"warn\">{}</small>", escape(error)));
            let toggle = match schedule.paused_at {
                Some(_) => button("resume_schedule", "Resume", "name", &schedule.name),
                None => button("pause_schedule", "Pause", "name", &schedule.name),
            };
            let next = match (schedule.paused_at, schedule.next_at) {
                (None, Some(at)) => when(now, at),
                _ => text("–"),
            };
            table.rows.push(Row {
                cells: vec![
                    Html(format!("{name}{paused}{}", error.unwrap_or_default())),
                    describe_fully(schedule),
                    text(&schedule.command),
                    text(&schedule.queue),
                    next,
                    schedule.last_at.map_or_else(|| text("–"), |at| when(now, at)),
                    schedule.last_job.map_or_else(|| text("–"), |job| job_link(frame, job)),
                ],
                buttons: vec![toggle, button("run_schedule_now", "Run now", "name", &schedule.name)],
            });
        }
        table.actions = allowed(frame, vec![Action::new("add_schedule", "Add", &[]).main()]);
        Ok(table.finished())
    })
    .await
}

fn describe(schedule: &read::Schedule) -> String {
    match (&schedule.cron, &schedule.every) {
        (Some(cron), _) if schedule.timezone == "UTC" => cron.clone(),
        (Some(cron), _) => format!("{cron} ({})", schedule.timezone),
        (None, every) => {
            let every = every.as_deref().unwrap_or_default();
            format!(
                "every {}",
                cron::interval_in_words(every).unwrap_or_else(|| every.to_owned())
            )
        }
    }
}

/// In words, and as it was written.
fn describe_fully(schedule: &read::Schedule) -> Html {
    let words = schedule.cron.as_deref().and_then(cron::in_words);
    match words {
        Some(words) => Html(format!(
            "{}<small class=\"dim block\"><code>{}</code></small>",
            escape(&words),
            escape(&describe(schedule))
        )),
        None => mono(&describe(schedule)),
    }
}

pub async fn schedule(State(site): State<Shared>, Path(name): Path<String>, request: Asked) -> Response {
    answer(&site, request, "schedules", async |frame, _| {
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let (now, schedules) = (read::now(&transaction).await?, read::schedules(&transaction).await?);
        let unknown = || Problem::new(StatusCode::NOT_FOUND, format!("There is no schedule {name}."));
        let schedule = schedules
            .iter()
            .find(|schedule| schedule.name == name)
            .ok_or_else(unknown)?;
        let slots = read::next_times(&transaction, &name, 5).await?;
        let runs = read::schedule_runs(&transaction, &name, 20).await?;
        let known = vec![("name", name.clone())];
        let change = Action::new("change_schedule", "Change", &known)
            .preset("cron", schedule.cron.clone().unwrap_or_default())
            .preset("every", schedule.every.clone().unwrap_or_default())
            .preset("timezone", schedule.timezone.clone());
        let actions = vec![
            Action::new("run_schedule_now", "Run now", &known).main(),
            match schedule.paused_at {
                Some(_) => Action::new("resume_schedule", "Resume", &known),
                None => Action::new("pause_schedule", "Pause", &known),
            },
            change,
            Action::new("remove_schedule", "Remove", &known).danger(),
        ];
        Ok(Detail {
            title: name.clone(),
            state: badge(if schedule.paused_at.is_some() {
                "paused"
            } else {
                "active"
            }),
            facts: vec![
                ("When", describe_fully(schedule)),
                ("Command", text(&schedule.command)),
                ("Queue", text(&schedule.queue)),
                ("Missed slots", text(&schedule.misfire)),
                ("Overlap", text(&schedule.overlap)),
                ("Next", schedule.next_at.map_or_else(|| text("–"), |at| when(now, at))),
                ("Last", schedule.last_at.map_or_else(|| text("–"), |at| when(now, at))),
                (
                    "Last job",
                    schedule.last_job.map_or_else(|| text("–"), |job| job_link(frame, job)),
                ),
                ("Last error", text(schedule.last_error.as_deref().unwrap_or("–"))),
                (
                    "Its jobs",
                    link(frame, &jobs_path(&format!("schedule:{}", quoted(&name))), "show"),
                ),
            ],
            actions: allowed(frame, actions),
            chart: Html::default(),
            chart_title: "",
            list_title: "",
            list: Vec::new(),
            sections: vec![next_times(schedule, &slots, now), last_runs(frame, &runs, now)],
            sql: match &schedule.cron {
                Some(cron) => format!(
                    "select slot from bugle.schedule_preview('{}', '{}', 5) slot;",
                    cron.replace('\'', "''"),
                    schedule.timezone.replace('\'', "''")
                ),
                None => String::new(),
            },
            frame: frame.clone(),
        })
    })
    .await
}

fn next_times(schedule: &read::Schedule, slots: &[(SystemTime, String)], now: SystemTime) -> Section {
    let lead = match schedule.paused_at {
        Some(_) => "It is paused: none of these will fire until it is resumed.",
        None => "In its own time zone, and in yours.",
    };
    let mut section = Section::new("next", "Next five times", lead);
    section.columns = vec![("In", "num"), ("Its time zone", ""), ("Yours", "")];
    section.empty = "It has ended, or never fires.";
    section.rows = slots
        .iter()
        .take(5)
        .map(|(at, clock)| {
            let iso = read::rfc3339(*at);
            let day = iso.get(..19).unwrap_or(&iso).replace('T', " ");
            vec![
                when(now, *at),
                text(format!("{clock} {}", schedule.timezone)),
                Html(format!("<time datetime=\"{iso}\" data-full>{day} UTC</time>")),
            ]
        })
        .collect();
    section
}

fn last_runs(frame: &Frame, runs: &[read::ScheduleRun], now: SystemTime) -> Section {
    let mut section = Section::new("runs", "Last runs", "");
    section.columns = vec![
        ("Slot", ""),
        ("Fired", "num"),
        ("Late by", "num"),
        ("Job", ""),
        ("State", ""),
    ];
    section.empty = "It has not fired yet.";
    section.rows = runs
        .iter()
        .map(|run| {
            let state = match (&run.skipped, run.state) {
                (Some(why), _) => Html(format!("{} {}", badge("skipped"), escape(why))),
                (None, Some(state)) => badge(state.as_str()),
                (None, None) => badge("gone"),
            };
            vec![
                when(now, run.slot),
                when(now, run.enqueued_at),
                text(seconds(between(run.slot, run.enqueued_at))),
                run.job.map_or_else(|| text("–"), |job| job_link(frame, job)),
                state,
            ]
        })
        .collect();
    section
}

pub async fn workers(State(site): State<Shared>, request: Asked) -> Response {
    answer(&site, request, "workers", async |frame, _| {
        let snapshot = site.snapshot().await?;
        let lead = "Processes that serve queues. One of them, the keeper, runs maintenance.";
        let mut table = Table::new(frame, "Workers", lead, "select * from bugle.workers order by id;");
        table.columns = vec![
            ("Worker", ""),
            ("State", ""),
            ("Host", "hide-s"),
            ("Queues and slots", ""),
            ("Running", "num"),
            ("Completed", "num hide-s"),
            ("Failed", "num hide-s"),
            ("Commands", "num hide-s"),
            ("Version", "hide-s"),
            ("Started", "num hide-s"),
            ("Heartbeat", "num"),
        ];
        table.empty = "No worker is alive, so nothing runs. Start one: bugle worker --config bugle.toml";
        for worker in &snapshot.workers {
            let queues: Vec<String> = (worker.queues.iter().zip(&worker.slots))
                .take(6)
                .map(|(queue, slots)| format!("{queue} {slots}"))
                .collect();
            let more = if worker.queues.len() > 6 { " …" } else { "" };
            let keeper = if worker.is_keeper { " <small>keeper</small>" } else { "" };
            let id = worker.id.to_string();
            let buttons = match worker.state {
                WorkerState::Alive => vec![
                    button("pause_worker", "Pause", "worker", &id),
                    button("drain_worker", "Drain", "worker", &id),
                ],
                WorkerState::Paused => vec![
                    button("resume_worker", "Resume", "worker", &id),
                    button("drain_worker", "Drain", "worker", &id),
                ],
                _ => Vec::new(),
            };
            let running = jobs_path(&format!("state:running worker:{id}"));
            let process = worker.process_id.map(|pid| format!(" · {pid}")).unwrap_or_default();
            table.rows.push(Row {
                cells: vec![
                    Html(format!("{} {}{keeper}", mono(&id), escape(&worker.name))),
                    badge(worker.state.as_str()),
                    text(format!("{}{process}", worker.host.as_deref().unwrap_or("–"))),
                    text(format!("{}{more}", queues.join(", "))),
                    link(frame, &running, &number(i64::from(worker.running))),
                    text(number(worker.completed)),
                    text(number(worker.failed)),
                    text(worker.commands.len().to_string()),
                    text(worker.version.as_deref().unwrap_or("–")),
                    when(snapshot.now, worker.started_at),
                    when(snapshot.now, worker.seen_at),
                ],
                buttons,
            });
        }
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        table.sections = vec![rescues(frame, &read::rescues(&transaction, 20).await?, snapshot.now)];
        Ok(table.finished())
    })
    .await
}

/// Jobs that outlived their workers.
fn rescues(frame: &Frame, rescues: &[read::Rescue], now: SystemTime) -> Section {
    let lead = "Their worker was lost, so they were put back. What it reports afterwards is rejected.";
    let mut section = Section::new("rescues", "Rescued jobs", lead);
    section.columns = vec![
        ("Job", ""),
        ("Command", ""),
        ("Lost worker", ""),
        ("Had run for", "num hide-s"),
        ("Back after", "num"),
        ("Rescued", "num"),
    ];
    section.empty = "No worker was lost while it ran a job. If one is, its jobs start elsewhere within seconds.";
    section.rows = rescues
        .iter()
        .map(|rescue| {
            let after = rescue.lost_at.and_then(|lost| between(lost, rescue.rescued_at));
            let worker = rescue.worker.map(|id| id.to_string()).unwrap_or_default();
            vec![
                job_link(frame, rescue.job),
                text(rescue.command.as_deref().unwrap_or("–")),
                text(format!(
                    "{worker} {}",
                    rescue.worker_name.as_deref().unwrap_or_default()
                )),
                text(seconds(rescue.ran_seconds)),
                text(seconds(after)),
                when(now, rescue.rescued_at),
            ]
        })
        .collect();
    section
}

pub async fn errors(State(site): State<Shared>, request: Asked) -> Response {
    answer(&site, request, "errors", async |frame, request| {
        let asked = query_of(request);
        let hours = match asked.get("since") {
            Some("24h") => "24 hours",
            Some("7d") => "7 days",
            _ => "1 hour",
        };
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let now = read::now(&transaction).await?;
        let groups = read::error_groups(&transaction, hours).await?;
        let cut = if groups.iter().any(|group| !group.is_complete) {
            " Counts are those of the newest 10,000 failed attempts."
        } else {
            ""
        };
        let lead = format!("Failed attempts of the last {hours}, grouped by what their errors have in common.{cut}");
        let mut table = Table::new(frame, "Errors", lead, "select * from bugle.group_errors('1 hour');");
        table.columns = vec![
            ("Error", ""),
            ("Command", ""),
            ("Code", "hide-s"),
            ("Attempts", "num"),
            ("Jobs", "num"),
            ("First", "num hide-s"),
            ("Last", "num"),
            ("Latest job", "num"),
        ];
        table.empty = "No attempt failed in this period.";
        for group in &groups {
            let line = group.fingerprint.as_deref().unwrap_or("without a message");
            let command = group.command.as_deref().unwrap_or_default();
            // of the latest error of a job: it may have failed differently since
            let fingerprint = format!("fingerprint:\"{}\"", line.replace('"', ""));
            let group_is = format!("command:{} {fingerprint}", quoted(command));
            let alike = jobs_path(&format!("{group_is} state:failed,retrying"));
            let shown: String = line.chars().take(200).collect();
            table.rows.push(Row {
                cells: vec![
                    Html(format!("<span class=\"wrap\">{}</span>", escape(&shown))),
                    text(command),
                    text(group.code.as_deref().unwrap_or("–")),
                    text(number(group.attempts)),
                    link(frame, &alike, &number(group.jobs)),
                    when(now, group.first_at),
                    when(now, group.last_at),
                    job_link(frame, group.last_job),
                ],
                buttons: vec![bulk("Restart…", "restart", &format!("{group_is} state:failed"))],
            });
        }
        let period = |name: &str, label: &str| link(frame, &format!("/errors?since={name}"), label);
        table.links = vec![period("1h", "1 h"), period("24h", "24 h"), period("7d", "7 d")];
        table.actions = allowed(
            frame,
            vec![Action::new("restart_where", "Restart jobs", &[]).preset("state", "failed")],
        );
        Ok(table.finished())
    })
    .await
}

pub async fn dead_letters(State(site): State<Shared>, request: Asked) -> Response {
    answer(&site, request, "dead-letters", async |frame, request| {
        let before = query_of(request).get("before").and_then(|before| before.parse().ok());
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let now = read::now(&transaction).await?;
        let search = read::Search::parse("state:failed").map_err(Problem::from)?;
        let found = read::search(&transaction, &search, before, 50).await?;
        let lead = "Jobs that failed for good, the newest first. Restarting one runs it again from attempt 0.";
        let sql = "select * from bugle.dead_letters order by id desc limit 50;";
        let mut table = Table::new(frame, "Dead letters", lead, sql);
        table.columns = vec![
            ("Job", ""),
            ("Command", ""),
            ("Queue", "hide-s"),
            ("Reason", ""),
            ("Error", ""),
            ("Attempts", "num hide-s"),
            ("Failed", "num"),
            ("", "acts"),
        ];
        table.empty = "No job has failed for good. Jobs come here when their attempts are used up.";
        for job in &found.jobs {
            table.rows.push(Row {
                cells: vec![
                    job_link(frame, job.id),
                    text(&job.command),
                    text(&job.queue),
                    text(job.reason.as_deref().unwrap_or("–")),
                    Html(format!(
                        "<span class=\"wrap\">{}</span>",
                        escape(job.error_line.as_deref().unwrap_or_default())
                    )),
                    text(job.attempt.to_string()),
                    job.finished_at.map_or_else(|| text("–"), |at| when(now, at)),
                    match frame.can_enqueue {
                        true => link(frame, &format!("/enqueue?from={}", job.id), "Edit and send…"),
                        false => text(""),
                    },
                ],
                buttons: vec![button("restart", "Restart", "id", &job.id.to_string())],
            });
        }
        table.next = found
            .next
            .map(|next| format!("{}/dead-letters?before={next}", frame.base));
        table.links = vec![link(frame, &jobs_path("state:failed"), "Filter and select")];
        table.actions = allowed(
            frame,
            vec![Action::new("restart_where", "Restart matching", &[]).preset("state", "failed")],
        );
        Ok(table.finished())
    })
    .await
}

pub async fn changes(State(site): State<Shared>, request: Asked) -> Response {
    answer(&site, request, "changes", async |frame, request| {
        let asked = query_of(request);
        let filter = ChangeFilter {
            job: asked.get("job").and_then(|job| job.parse().ok()),
            who: asked.get("who").map(str::to_owned),
            verb: asked.get("verb").map(str::to_owned),
            before: asked.get("before").and_then(|before| before.parse().ok()),
        };
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let now = read::now(&transaction).await?;
        let changes = read::changes(&transaction, &filter, 500).await?;
        let lead = "What operators did: when, to what, and why. Names and verbs are filters.";
        let mut table = Table::new(
            frame,
            "Changes",
            lead,
            "select * from bugle.changes order by id desc limit 100;",
        );
        table.columns = vec![
            ("When", ""),
            ("Who", ""),
            ("What", ""),
            ("To", ""),
            ("Before → after", "hide-s"),
            ("Note", ""),
        ];
        let mut shown = 0;
        table.empty = "Nobody has changed anything by hand yet. Every button of these pages leaves a line here.";
        for alike in changes.chunk_by(is_of_one_operation).take(100) {
            let change = &alike[0];
            shown += alike.len();
            let others = match alike.len() {
                1 => Html::default(),
                all => Html(format!(
                    "<small class=\"dim block\">and {} others, at once</small>",
                    number(all as i64 - 1)
                )),
            };
            let whom = match (&change.job, &change.queue, &change.schedule) {
                (Some(job), ..) => Html(format!("job {}", job_link(frame, *job))),
                (_, Some(queue), _) => Html(format!(
                    "queue {}",
                    link(frame, &format!("/queues/{}", encoded(queue)), queue)
                )),
                (.., Some(name)) => Html(format!(
                    "schedule {}",
                    link(frame, &format!("/schedules/{}", encoded(name)), name)
                )),
                _ => text(
                    change
                        .worker
                        .map(|worker| format!("worker {worker}"))
                        .or_else(|| change.command.as_ref().map(|command| format!("command {command}")))
                        .unwrap_or_default(),
                ),
            };
            let states = match (&change.from_state, &change.to_state) {
                (None, None) => String::new(),
                (from, to) => format!(
                    "{} → {}",
                    from.as_deref().unwrap_or_default(),
                    to.as_deref().unwrap_or_default()
                ),
            };
            table.rows.push(Row {
                cells: vec![
                    when(now, change.changed_at),
                    link(frame, &format!("/changes?who={}", encoded(&change.who)), &change.who),
                    link(
                        frame,
                        &format!("/changes?verb={}", encoded(&change.verb)),
                        &change.verb.replace('_', " "),
                    ),
                    Html(format!("{whom}{others}")),
                    text(states.trim()),
                    text(change.note.as_deref().unwrap_or_default()),
                ],
                buttons: Vec::new(),
            });
        }
        if shown < changes.len() || changes.len() == 500 {
            let last = changes[..shown].last().map_or(0, |change| change.id);
            let filters = ["job", "who", "verb"]
                .iter()
                .filter_map(|name| Some(format!("{name}={}&", encoded(asked.get(name)?))));
            table.next = Some(format!(
                "{}/changes?{}before={last}",
                frame.base,
                filters.collect::<String>()
            ));
        }
        if filter.job.is_some() || filter.who.is_some() || filter.verb.is_some() {
            table.links = vec![link(frame, "/changes", "All changes")];
        }
        Ok(table.finished())
    })
    .await
}

/// Whether two changes were made by one call: an operation on many jobs is one line.
fn is_of_one_operation(one: &read::Change, other: &read::Change) -> bool {
    let of = |change: &read::Change| {
        (
            change.changed_at,
            change.verb.clone(),
            change.who.clone(),
            change.note.clone(),
        )
    };
    one.job.is_some() && other.job.is_some() && of(one) == of(other)
}

pub async fn database(State(site): State<Shared>, request: Asked) -> Response {
    answer(&site, request, "database", async |frame, _| {
        let findings = site.findings().await?;
        let lead = "What bugle doctor checks, with the statement that fixes it.";
        let mut table = Table::new(frame, "Database", lead, "bugle doctor");
        table.columns = vec![("Check", ""), ("", ""), ("Finding", ""), ("Fix", "")];
        for finding in findings.iter() {
            let level = match finding.level {
                Level::Ok => "ok",
                Level::Skipped => "skipped",
                Level::Warn => "warning",
                _ => "failed",
            };
            let fix = finding
                .fix
                .as_deref()
                .map(|fix| Html(format!("<code class=\"wrap\" data-copy>{}</code>", escape(fix))));
            table.rows.push(Row {
                cells: vec![
                    text(finding.check),
                    badge(level),
                    Html(format!("<span class=\"wrap\">{}</span>", escape(&finding.message))),
                    fix.unwrap_or_default(),
                ],
                buttons: Vec::new(),
            });
        }
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let dead = read::dead_rows(&transaction).await?;
        let sizes = read::sizes(&transaction).await?;
        table.sections = vec![
            snapshots(&read::snapshots(&transaction, 8).await?, dead),
            history(&sizes),
            largest(sizes),
        ];
        Ok(table.finished())
    })
    .await
}

/// Which session pins the oldest snapshot, and what that costs.
fn snapshots(snapshots: &[read::Snapshot], dead: i64) -> Section {
    let lead = format!(
        "VACUUM cannot remove what the oldest of them may still see: {} dead rows are in bugle.jobs_live now.",
        number(dead)
    );
    let mut section = Section::new("snapshots", "Oldest snapshots", lead);
    section.columns = vec![
        ("Session", ""),
        ("Program", ""),
        ("From", "hide-s"),
        ("State", "hide-s"),
        ("Open for", "num"),
        ("Behind", "num"),
        ("To end it", ""),
    ];
    section.empty = "No other session holds a snapshot, so VACUUM can remove every dead row.";
    section.rows = snapshots
        .iter()
        .map(|session| {
            vec![
                Html(format!("{} {}", mono(&session.pid.to_string()), escape(&session.login))),
                text(&session.application),
                text(&session.client),
                text(&session.state),
                text(seconds(session.open_seconds)),
                text(format!("{} transactions", number(session.behind))),
                Html(format!(
                    "<code data-copy>select pg_terminate_backend({});</code>",
                    session.pid
                )),
            ]
        })
        .collect();
    section
}

/// History by day.
fn history(sizes: &[read::Size]) -> Section {
    let mut section = Section::new(
        "history",
        "History by day",
        "Finished jobs leave by the day: bugle.settings says after how many.",
    );
    section.columns = vec![
        ("Day (UTC)", ""),
        ("Completed and cancelled", "num"),
        ("Size", "num"),
        ("Failed", "num"),
        ("Size", "num"),
    ];
    section.empty = "There is no day of history. A keeper creates them: start a worker.";
    let mut days: BTreeMap<&str, [Option<&read::Size>; 2]> = BTreeMap::new();
    for size in sizes {
        if let Some((kind, day)) = &size.day {
            days.entry(day).or_default()[usize::from(kind == "failed")] = Some(size);
        }
    }
    let rows = |size: Option<&read::Size>| {
        size.and_then(|size| size.rows)
            .map_or_else(|| text("–"), |rows| text(format!("≈ {}", number(rows))))
    };
    let bytes = |size: Option<&read::Size>| text(size.map_or_else(|| "–".to_owned(), |size| bytes(size.bytes)));
    section.rows = (days.iter().rev())
        .take(60)
        .map(|(day, [ended, failed])| vec![text(day), rows(*ended), bytes(*ended), rows(*failed), bytes(*failed)])
        .collect();
    section
}

/// The other tables.
fn largest(mut sizes: Vec<read::Size>) -> Section {
    sizes.retain(|size| size.day.is_none());
    sizes.sort_by_key(|size| std::cmp::Reverse(size.bytes));
    let mut section = Section::new("sizes", "Tables", "With their indexes.");
    section.columns = vec![("Table", ""), ("Rows", "num"), ("Size", "num")];
    section.rows = (sizes.iter().take(10))
        .map(|size| {
            vec![
                mono(&format!("bugle.{}", size.name)),
                size.rows
                    .map_or_else(|| text("–"), |rows| text(format!("≈ {}", number(rows)))),
                text(bytes(size.bytes)),
            ]
        })
        .collect();
    section
}

fn bytes(bytes: i64) -> String {
    match bytes {
        b if b < 1 << 20 => format!("{} kB", b >> 10),
        b if b < 10 << 20 => format!("{:.1} MB", b as f64 / f64::from(1 << 20)),
        b if b < 1 << 30 => format!("{} MB", b >> 20),
        b => format!("{:.1} GB", b as f64 / f64::from(1 << 30)),
    }
}
