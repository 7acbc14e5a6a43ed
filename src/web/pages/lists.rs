//! Pages that are a table: queues, commands, schedules, workers, errors, dead letters, changes, the database.

use std::time::{Duration, UNIX_EPOCH};

use askama::Template;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;

use super::table::{Row, Table, button, mono};
use super::{answer, job_link, jobs_path, link, quoted, text};
use crate::read::{self, ChangeFilter, Level};
use crate::state::WorkerState;
use crate::web::actions::Action;
use crate::web::chart::{self, Line, chart};
use crate::web::site::{Asked, Frame, Problem, Shared, allowed, encoded, query_of, reading};
use crate::web::text::{Html, badge, escape, number, percent, seconds, when};

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
        let last = snapshot.now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 60;
        let mut done = [vec![0.0; 60], vec![0.0; 60]];
        for bucket in &buckets {
            let at = bucket
                .at
                .and_then(|at| at.duration_since(UNIX_EPOCH).ok())
                .map(|at| at.as_secs() / 60);
            let place = at.and_then(|at| usize::try_from((at + 60).checked_sub(last + 1)?).ok());
            if let Some(place) = place.filter(|place| *place < 60) {
                done[0][place] = bucket.completed as f64;
                done[1][place] = bucket.failed as f64;
            }
        }
        let [completed, failed] = done;
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
            chart: chart(
                "Completed and failed attempts of this queue per minute, last hour",
                UNIX_EPOCH + Duration::from_secs((last - 59) * 60),
                Duration::from_secs(60),
                &[
                    Line {
                        class: "accent",
                        name: "completed",
                        values: completed,
                        filled: true,
                    },
                    Line {
                        class: "bad",
                        name: "failed",
                        values: failed,
                        filled: false,
                    },
                ],
                chart::count,
            ),
            chart_title: "Attempts per minute, last hour",
            list_title: "Served by",
            list: serving.collect(),
            frame: frame.clone(),
        })
    })
    .await
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
            ("", ""),
        ];
        table.empty = "A command appears when a worker serves it, a setting names it, or a job of it has run.";
        for command in &commands {
            let alike = jobs_path(&format!("command:{}", quoted(&command.name)));
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
                    link(frame, &alike, &command.name),
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
                    mono(&describe(schedule)),
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
        (None, every) => format!("every {}", every.as_deref().unwrap_or_default()),
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
        let slots = match &schedule.cron {
            Some(cron) => read::preview(&transaction, cron, &schedule.timezone, 5).await?,
            None => Vec::new(),
        };
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
                ("When", mono(&describe(schedule))),
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
            list_title: "Next five times",
            list: slots
                .iter()
                .map(|(at, clock)| {
                    Html(format!(
                        "{} {} <small>({})</small>",
                        escape(clock),
                        escape(&schedule.timezone),
                        when(now, *at)
                    ))
                })
                .collect(),
            frame: frame.clone(),
        })
    })
    .await
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
                    text(worker.commands.len().to_string()),
                    text(worker.version.as_deref().unwrap_or("–")),
                    when(snapshot.now, worker.started_at),
                    when(snapshot.now, worker.seen_at),
                ],
                buttons,
            });
        }
        Ok(table.finished())
    })
    .await
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
            let alike = jobs_path(&format!("command:{} state:failed,retrying", quoted(command)));
            let shown: String = line.chars().take(200).collect();
            table.rows.push(Row {
                cells: vec![
                    Html(format!("<span class=\"wrap\">{}</span>", escape(&shown))),
                    link(frame, &alike, command),
                    text(group.code.as_deref().unwrap_or("–")),
                    text(number(group.attempts)),
                    text(number(group.jobs)),
                    when(now, group.first_at),
                    when(now, group.last_at),
                    job_link(frame, group.last_job),
                ],
                buttons: Vec::new(),
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
        let changes = read::changes(&transaction, &filter, 100).await?;
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
        table.empty = "Nobody has changed anything by hand yet. Every button of these pages leaves a line here.";
        for change in &changes {
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
            let states: Vec<&str> = [&change.from_state, &change.to_state]
                .into_iter()
                .flatten()
                .map(String::as_str)
                .collect();
            table.rows.push(Row {
                cells: vec![
                    when(now, change.changed_at),
                    link(frame, &format!("/changes?who={}", encoded(&change.who)), &change.who),
                    link(
                        frame,
                        &format!("/changes?verb={}", encoded(&change.verb)),
                        &change.verb.replace('_', " "),
                    ),
                    whom,
                    text(states.join(" → ")),
                    text(change.note.as_deref().unwrap_or_default()),
                ],
                buttons: Vec::new(),
            });
        }
        if changes.len() == 100 {
            let last = changes.last().map_or(0, |change| change.id);
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
        Ok(table.finished())
    })
    .await
}
