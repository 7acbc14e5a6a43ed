//! What operators changed.

use axum::extract::State;
use axum::response::Response;

use super::table::{Row, Table};
use super::{answer, job_link, link, text};
use crate::read::{self, ChangeFilter};
use crate::web::site::{Asked, Shared, encoded, query_of, reading};
use crate::web::text::{Html, number, when};

pub async fn show(State(site): State<Shared>, request: Asked) -> Response {
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
        let lead = "What operators did, when, to what, and why. Click a name or a verb to filter.";
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
        table.empty = "No changes yet. Every action on these pages is recorded here.";
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
