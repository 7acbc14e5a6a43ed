//! Commands, and one of them: its template, its limits, who serves it, and how it went.

use std::time::SystemTime;

use askama::Template;
use axum::Form;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};

use super::detail::last_hour;
use super::table::{Row, Section, Table};
use super::workers::numbered;
use super::{answer, command_link, job_link, jobs_path, link, policy_link, queue_link, quoted, text};
use crate::read::{self, TEMPLATE};
use crate::web::actions::Action;
use crate::web::api;
use crate::web::live::Snapshot;
use crate::web::site::{Asked, Fields, Frame, Problem, Shared, Site, allowed, asked, encoded, html, reading, redirect};
use crate::web::text::{Html, badge, escape, number, percent, seconds, when};

pub async fn list(State(site): State<Shared>, request: Asked) -> Response {
    answer(&site, request, "commands", async |frame, _| {
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let mut commands = read::commands(&transaction).await?;
        let snapshot = site.snapshot().await?;
        for unserved in &snapshot.unserved {
            if !commands.iter().any(|command| command.name == unserved.command) {
                commands.push(unknown_to_workers(&unserved.command));
            }
        }
        // those that need attention first
        commands.sort_by_key(|command| !is_unserved(&snapshot, &command.name));
        let lead = "Workers, defaults, and results of the last hour.";
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
            let unserved = (snapshot
                .unserved
                .iter()
                .find(|unserved| unserved.command == command.name))
            .map(|unserved| {
                let why = link(frame, &format!("/jobs/{}", unserved.first_job), "Why?");
                format!(" {} {why}", badge("unserved"))
            });
            let stats = snapshot.stats.iter().find(|stats| stats.command == command.name);
            let stats = stats.filter(|stats| stats.completed + stats.failed > 0);
            let run = stats.map_or_else(
                || "–".to_owned(),
                |stats| {
                    format!(
                        "{} · {}",
                        seconds(stats.run_p50_seconds),
                        seconds(stats.run_p95_seconds)
                    )
                },
            );
            let workers = match command.workers {
                0 => Html("<span class=\"warn\">none</span>".to_owned()),
                workers => text(number(workers)),
            };
            let all = command.failed_last_hour + command.completed_last_hour;
            let enqueue = format!("/enqueue?command={}", encoded(&command.name));
            table.rows.push(Row {
                cells: vec![
                    Html(format!(
                        "{}{}",
                        command_link(frame, &command.name),
                        unserved.unwrap_or_default()
                    )),
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
                    match &command.retry_policy {
                        Some(policy) => policy_link(frame, policy),
                        None => text("–"),
                    },
                    if frame.can_enqueue {
                        link(frame, &enqueue, "Enqueue…")
                    } else {
                        text("")
                    },
                ],
                ..Row::default()
            });
        }
        let policies = format!("<a class=\"btn\" href=\"{}/policies\">Retry policies</a>", frame.base);
        table.links = vec![Html(policies)];
        table.actions = allowed(frame, vec![Action::new("set_command_limit", "Limit a command", &[])]);
        Ok(table.finished())
    })
    .await
}

#[derive(Template)]
#[template(path = "command.html")]
struct Command {
    frame: Frame,
    name: String,
    path: String,
    state: Html,
    /// Why its jobs wait.
    reasons: Vec<Html>,
    facts: Vec<(&'static str, Html)>,
    actions: Vec<Action>,
    chart: Html,
    sections: Vec<Section>,
    may_edit: bool,
    /// Name, value, what it is.
    columns: Vec<(&'static str, String, &'static str)>,
    problem: Option<Problem>,
    sql: String,
}

pub async fn show(State(site): State<Shared>, Path(name): Path<String>, request: Asked) -> Response {
    let make = async |frame: &Frame, _: &Asked| page(&site, frame, &name, None).await;
    answer(&site, request, "commands", make).await
}

/// The page of a command. A template that was rejected is shown as it was written, with what is wrong with it.
async fn page(
    site: &Shared,
    frame: &Frame,
    name: &str,
    rejected: Option<(&Fields, Problem)>,
) -> Result<Command, Problem> {
    let snapshot = site.snapshot().await?;
    let mut client = site.pool.get_or_explain().await?;
    let transaction = reading(&mut client).await?;
    let commands = read::commands(&transaction).await?;
    let command = match commands.into_iter().find(|command| command.name == name) {
        Some(command) => command,
        None if is_unserved(&snapshot, name) || read::is_known_command(&transaction, name).await? => {
            unknown_to_workers(name)
        }
        None => {
            return Err(
                Problem::new(StatusCode::NOT_FOUND, format!("There is no command {name}."))
                    .hint("A command appears when a worker serves it, a setting names it, or there is a job of it."),
            );
        }
    };
    let template = read::template(&transaction, name).await?;
    let may_edit = frame.can_change && read::may_set_templates(&transaction).await?;
    let (_, buckets) = read::throughput(&transaction, "1 hour", "1 minute", None, Some(name)).await?;
    let value_of = |column: &str| {
        template
            .iter()
            .find(|(name, _)| name == column)
            .map(|(_, value)| value.clone())
    };
    let all = command.completed_last_hour + command.failed_last_hour;
    let unserved: Vec<&read::Unserved> = (snapshot.unserved.iter())
        .filter(|unserved| unserved.command == name)
        .collect();
    let known = vec![("command", name.to_owned())];
    let limit = Action::new("set_command_limit", "Limit", &known)
        .preset("max_running", value_of("max_running").unwrap_or_default());
    Ok(Command {
        state: match unserved.is_empty() {
            true => Html::default(),
            false => badge("unserved"),
        },
        reasons: unserved
            .iter()
            .map(|unserved| {
                Html(format!(
                    "No live worker serves it in queue {}. Job {} has been ready since {}.",
                    queue_link(frame, &unserved.queue),
                    job_link(frame, unserved.first_job),
                    when(snapshot.now, unserved.since)
                ))
            })
            .collect(),
        facts: vec![
            ("Workers", text(number(command.workers))),
            ("Completed, last hour", text(number(command.completed_last_hour))),
            ("Failed, last hour", text(number(command.failed_last_hour))),
            ("Failure rate", text(percent(command.failed_last_hour, all))),
            (
                "At once, at most",
                text(value_of("max_running").as_deref().unwrap_or("no limit")),
            ),
            (
                "Its jobs",
                link(frame, &jobs_path(&format!("command:{}", quoted(name))), "show"),
            ),
        ],
        actions: allowed(frame, vec![limit]),
        chart: last_hour(
            &buckets,
            snapshot.now,
            "Completed and failed attempts of this command per minute",
        ),
        sections: vec![
            queues(frame, &snapshot.stats, name),
            served_by(frame, &snapshot.workers, name, snapshot.now),
        ],
        may_edit,
        columns: TEMPLATE
            .iter()
            .map(|(column, about)| {
                let given = rejected.as_ref().and_then(|(form, _)| form.get(*column).cloned());
                let value = given.or_else(|| value_of(column)).unwrap_or_default();
                (*column, value, *about)
            })
            .collect(),
        problem: rejected.map(|(_, problem)| problem),
        sql: format!(
            "select * from bugle.commands where name = '{}';",
            name.replace('\'', "''")
        ),
        path: encoded(name),
        name: name.to_owned(),
        frame: frame.clone(),
    })
}

/// Whether ready jobs of it wait for a worker.
fn is_unserved(snapshot: &Snapshot, name: &str) -> bool {
    snapshot.unserved.iter().any(|unserved| unserved.command == name)
}

/// A command that only jobs name.
fn unknown_to_workers(name: &str) -> read::CommandLine {
    read::CommandLine {
        name: name.to_owned(),
        ..read::CommandLine::default()
    }
}

/// The workers that serve a command.
fn served_by(frame: &Frame, workers: &[read::WorkerLine], name: &str, now: SystemTime) -> Section {
    let mut section = Section::new("served", "Served by", "");
    section.columns = vec![
        ("Worker", ""),
        ("State", ""),
        ("Host", "hide-s"),
        ("Queues", ""),
        ("Heartbeat", "num"),
    ];
    section.empty = "No live worker serves it: its jobs wait.";
    section.rows = (workers.iter())
        .filter(|worker| worker.commands.iter().any(|command| command == name))
        .take(100)
        .map(|worker| {
            vec![
                Html(format!("{} {}", numbered(frame, worker.id), escape(&worker.name))),
                badge(worker.state.as_str()),
                text(worker.host.as_deref().unwrap_or("–")),
                Html(
                    (worker.queues.iter())
                        .map(|queue| queue_link(frame, queue).0)
                        .collect::<Vec<_>>()
                        .join(", "),
                ),
                when(now, worker.seen_at),
            ]
        })
        .collect();
    section
}

fn queues(frame: &Frame, stats: &[read::CommandStats], name: &str) -> Section {
    let mut section = Section::new("stats", "Last hour, by queue", "");
    section.columns = vec![
        ("Queue", ""),
        ("Completed", "num"),
        ("Failed", "num"),
        ("Failure rate", "num hide-s"),
        ("Wait, p50 · p95", "num hide-s"),
        ("Run, p50 · p95", "num"),
    ];
    section.empty = "No attempt of it ended in the last hour.";
    section.rows = stats
        .iter()
        .filter(|stats| stats.command == name)
        .map(|stats| {
            let two = |a, b| text(format!("{} · {}", seconds(a), seconds(b)));
            vec![
                queue_link(frame, &stats.queue),
                text(number(stats.completed)),
                text(number(stats.failed)),
                text(percent(stats.failed, stats.failed + stats.completed)),
                two(stats.wait_p50_seconds, stats.wait_p95_seconds),
                two(stats.run_p50_seconds, stats.run_p95_seconds),
            ]
        })
        .collect();
    section
}

/// Store the template that a form has. An empty field removes a value.
pub async fn save(
    State(site): State<Shared>,
    Path(name): Path<String>,
    headers: HeaderMap,
    Form(form): Form<Fields>,
) -> Response {
    let mut frame = site.frame(&asked(headers), "commands").await;
    let path = format!("{}/commands/{}", frame.base, encoded(&name));
    match store(&site, &name, &form).await {
        Ok(()) => redirect(&path, &format!("template of {name}: stored")),
        Err(problem) => {
            frame.here = path;
            let status = problem.status;
            match page(&site, &frame, &name, Some((&form, problem))).await {
                Ok(page) => (status, html(&page)).into_response(),
                Err(problem) => problem.page(frame),
            }
        }
    }
}

async fn store(site: &Site, name: &str, form: &Fields) -> Result<(), Problem> {
    site.check(form).await?;
    let columns = columns_of(form);
    if columns.is_empty() {
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "The form has no column of a template.",
        ));
    }
    let mut client = site.pool.get_or_explain().await?;
    let transaction = client.transaction().await?;
    api::limit(&transaction).await?;
    let note = form.get("note").map(|note| note.trim()).filter(|note| !note.is_empty());
    read::set_template(&transaction, name, &columns, note).await?;
    transaction.commit().await?;
    site.live.forget();
    Ok(())
}

/// The statement of the form, as it is filled in: what differs from what is stored. Nothing is done.
pub async fn template_sql(
    State(site): State<Shared>,
    Path(name): Path<String>,
    headers: HeaderMap,
    Form(form): Form<Fields>,
) -> Response {
    let made = async {
        if !site.is_token(form.get("csrf").map(String::as_str)) {
            return Err(Problem::new(StatusCode::FORBIDDEN, "This form is from an older page."));
        }
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let stored = read::template(&transaction, &name).await?;
        let mut columns = columns_of(&form);
        columns.retain(|column, _| {
            let was = stored
                .iter()
                .find(|(name, _)| name == column)
                .map(|(_, value)| value.as_str());
            form.get(column.as_str()).map(|text| text.trim()) != Some(was.unwrap_or_default())
        });
        Ok(read::template_sql(&name, &columns))
    };
    match made.await {
        Ok(sql) => sql.into_response(),
        Err(problem) => problem.page(site.frame(&asked(headers), "commands").await),
    }
}

/// The columns that a form has, as JSON. An empty field is null.
fn columns_of(form: &Fields) -> Map<String, Value> {
    let mut columns = Map::new();
    for (column, _) in TEMPLATE {
        let Some(given) = form.get(column).map(|text| text.trim()) else {
            continue;
        };
        let value = match (column, given) {
            (_, "") => Value::Null,
            ("steps" | "required_keys", list) => list.split(',').map(str::trim).map(Value::from).collect(),
            (_, given) => Value::from(given),
        };
        columns.insert(column.to_owned(), value);
    }
    columns
}
