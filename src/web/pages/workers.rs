//! Workers, and the jobs that outlived theirs.

use std::time::SystemTime;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;

use super::detail::Detail;
use super::table::{Row, Section, Table, button};
use super::{answer, between, command_link, job_link, jobs_path, link, queue_link, text, worker_link};
use crate::read;
use crate::state::WorkerState;
use crate::web::actions::Action;
use crate::web::site::{Asked, Frame, Lists, Problem, Shared, allowed, reading};
use crate::web::text::{Html, badge, escape, number, seconds, when};

pub async fn show(State(site): State<Shared>, request: Asked) -> Response {
    answer(&site, request, "workers", async |frame, _| {
        let snapshot = site.snapshot().await?;
        let lead = "Processes that serve queues. The keeper runs maintenance; its deputy takes over if it is lost.";
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
        let (lost, here): (Vec<_>, Vec<_>) =
            (snapshot.workers.iter()).partition(|worker| worker.state == WorkerState::Lost);
        for worker in here {
            let queues: Vec<String> = (worker.queues.iter().zip(&worker.slots))
                .take(6)
                .map(|(queue, slots)| format!("<span class=\"pair\">{} {slots}</span>", queue_link(frame, queue)))
                .collect();
            let more = if worker.queues.len() > 6 { " …" } else { "" };
            let keeper = match (worker.is_keeper, worker.is_deputy) {
                (true, _) => " <small class=\"dim\">keeper</small>",
                (_, true) => " <small class=\"dim\">deputy</small>",
                _ => "",
            };
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
                    Html(format!(
                        "{} {}{keeper}",
                        numbered(frame, worker.id),
                        escape(&worker.name)
                    )),
                    badge(worker.state.as_str()),
                    text(format!("{}{process}", worker.host.as_deref().unwrap_or("–"))),
                    Html(format!("{}{more}", queues.join(", "))),
                    link(frame, &running, &number(i64::from(worker.running))),
                    text(number(worker.completed)),
                    text(number(worker.failed)),
                    text(worker.commands.len().to_string()),
                    text(worker.version.as_deref().unwrap_or("–")),
                    when(snapshot.now, worker.started_at),
                    when(snapshot.now, worker.seen_at),
                ],
                buttons,
                actions: Vec::new(),
            });
        }
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        table.sections = vec![
            lost_workers(frame, &lost, snapshot.now),
            rescues(frame, &read::rescues(&transaction, 20).await?, snapshot.now),
            late_updates(frame, &read::late_updates(&transaction, 20).await?, snapshot.now),
        ];
        table
            .sections
            .retain(|section| section.id != "lost" || !section.rows.is_empty());
        table.sql.push_str(
            "\nselect * from bugle.attempts where outcome = 'rescued' order by ended_at desc limit 20;\
             \nselect * from bugle.late_updates order by refused_at desc limit 20;",
        );
        Ok(table.finished())
    })
    .await
}

/// The number of a worker, as a link to its page.
pub fn numbered(frame: &Frame, id: i64) -> Html {
    Html(format!(
        "<a class=\"mono\" href=\"{}/workers/{id}\">{id}</a>",
        frame.base
    ))
}

/// How many running jobs the page of a worker has.
const MOST_RUNNING: i64 = 200;

/// One worker: what it is, what it runs and for how long.
pub async fn one(State(site): State<Shared>, Path(id): Path<String>, request: Asked) -> Response {
    answer(&site, request, "workers", async |frame, _| {
        let unknown = || {
            Problem::new(StatusCode::NOT_FOUND, format!("There is no worker {id}."))
                .hint("Workers that stopped are removed after some days.")
        };
        let number_of: i64 = id.parse().map_err(|_| unknown())?;
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let now = read::now(&transaction).await?;
        let workers = read::workers(&transaction, true).await?;
        let worker = (workers.iter().find(|worker| worker.id == number_of)).ok_or_else(unknown)?;
        let search = read::Search::parse(&format!("state:running worker:{number_of}"))?;
        let running = read::search(&transaction, &search, None, MOST_RUNNING).await?.jobs;
        let known = vec![("worker", id.clone())];
        let drain = || Action::new("drain_worker", "Drain", &known).danger();
        let actions = match worker.state {
            WorkerState::Alive => vec![Action::new("pause_worker", "Pause", &known), drain()],
            WorkerState::Paused => vec![Action::new("resume_worker", "Resume", &known).main(), drain()],
            _ => Vec::new(),
        };
        let queues: Vec<String> = (worker.queues.iter().zip(&worker.slots))
            .map(|(queue, slots)| format!("{} {slots}", queue_link(frame, queue)))
            .collect();
        let commands: Vec<String> = (worker.commands.iter().take(100))
            .map(|command| command_link(frame, command).0)
            .collect();
        Ok(Detail {
            title: format!("Worker {id} {}", worker.name),
            state: badge(worker.state.as_str()),
            facts: vec![
                ("Host", text(worker.host.as_deref().unwrap_or("–"))),
                (
                    "Process",
                    text(worker.process_id.map_or_else(|| "–".to_owned(), |pid| pid.to_string())),
                ),
                ("Version", text(worker.version.as_deref().unwrap_or("–"))),
                (
                    "Maintenance",
                    text(match (worker.is_keeper, worker.is_deputy) {
                        (true, _) => "this worker, the keeper",
                        (_, true) => "deputy: takes over if the keeper is lost",
                        _ => "run by another worker",
                    }),
                ),
                ("Running", text(number(i64::from(worker.running)))),
                ("Completed", text(number(worker.completed))),
                ("Failed", text(number(worker.failed))),
                ("Started", when(now, worker.started_at)),
                ("Heartbeat", when(now, worker.seen_at)),
                ("Queues and slots", Html(queues.join(", "))),
                ("Commands", Html(commands.join(", "))),
                ("Its jobs", link(frame, &jobs_path(&format!("worker:{id}")), "show")),
            ],
            actions: allowed(frame, actions),
            lists: Lists::default(),
            chart: Html::default(),
            chart_title: "",
            list_title: "",
            list: Vec::new(),
            sections: vec![running_jobs(frame, &running, now)],
            sql: format!(
                "select * from bugle.workers where id = {number_of};\n\
                 select * from bugle.running_jobs where worker = {number_of};"
            ),
            frame: frame.clone(),
        })
    })
    .await
}

fn running_jobs(frame: &Frame, running: &[read::JobSummary], now: SystemTime) -> Section {
    let mut section = Section::new("running", "Runs now", "The newest 200.");
    section.columns = vec![
        ("Job", ""),
        ("Command", ""),
        ("Queue", "hide-s"),
        ("Attempt", "num"),
        ("For", "num"),
    ];
    section.empty = "It runs no job.";
    section.rows = (running.iter())
        .map(|job| {
            vec![
                job_link(frame, job.id),
                command_link(frame, &job.command),
                queue_link(frame, &job.queue),
                text(job.attempt.to_string()),
                text(seconds(job.started_at.and_then(|from| between(from, now)))),
            ]
        })
        .collect();
    section
}

/// Those whose jobs are, or will be, rescued.
fn lost_workers(frame: &Frame, lost: &[&read::WorkerLine], now: SystemTime) -> Section {
    let mut section = Section::new(
        "lost",
        "Lost workers",
        "Their sessions are gone: other workers get their jobs.",
    );
    section.columns = vec![("Worker", ""), ("Host", ""), ("Had", "num"), ("Heartbeat", "num")];
    section.rows = (lost.iter())
        .map(|worker| {
            vec![
                Html(format!("{} {}", numbered(frame, worker.id), escape(&worker.name))),
                text(worker.host.as_deref().unwrap_or("–")),
                text(number(i64::from(worker.running))),
                when(now, worker.seen_at),
            ]
        })
        .collect();
    section
}

/// Outcomes that came too late.
fn late_updates(frame: &Frame, updates: &[read::LateUpdate], now: SystemTime) -> Section {
    let lead = "A worker reported the outcome of a job that it no longer held. It was rejected: nothing changed.";
    let mut section = Section::new("late", "Late updates", lead);
    section.columns = vec![
        ("Job", ""),
        ("Worker", ""),
        ("Verdict", ""),
        ("Late by", "num"),
        ("Rejected", "num"),
    ];
    section.empty = "None was rejected. A worker that was frozen, and wakes up after its jobs were rescued, sends one.";
    section.rows = updates
        .iter()
        .map(|update| {
            vec![
                job_link(frame, update.job),
                worker_link(frame, update.worker, update.worker_name.as_deref()),
                badge(&update.verdict),
                text(seconds(update.late_seconds)),
                when(now, update.refused_at),
            ]
        })
        .collect();
    section
}

/// Jobs that outlived their workers.
fn rescues(frame: &Frame, rescues: &[read::Rescue], now: SystemTime) -> Section {
    let lead = "Their worker was lost, so they are ready again. Late reports of that worker are rejected.";
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
            let worker = rescue
                .worker
                .map(|id| worker_link(frame, id, rescue.worker_name.as_deref()));
            vec![
                job_link(frame, rescue.job),
                (rescue.command.as_deref()).map_or_else(|| text("–"), |command| command_link(frame, command)),
                worker.unwrap_or_else(|| text("–")),
                text(seconds(rescue.ran_seconds)),
                text(seconds(after)),
                when(now, rescue.rescued_at),
            ]
        })
        .collect();
    section
}
