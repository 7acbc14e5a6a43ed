//! Workers, and the jobs that outlived theirs.

use std::time::SystemTime;

use axum::extract::State;
use axum::response::Response;

use super::table::{Row, Section, Table, button, mono};
use super::{answer, between, job_link, jobs_path, link, text};
use crate::read;
use crate::state::WorkerState;
use crate::web::site::{Asked, Frame, Shared, reading};
use crate::web::text::{Html, badge, escape, number, seconds, when};

pub async fn show(State(site): State<Shared>, request: Asked) -> Response {
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
