//! What operators changed.

use std::collections::BTreeSet;

use axum::extract::State;
use axum::response::Response;

use super::table::{Row, Table};
use super::{answer, command_link, job_link, link, policy_link, queue_link, text, worker_link};
use crate::admin::operations::OPERATIONS;
use crate::read::{self, Change, ChangeFilter};
use crate::web::actions::Field;
use crate::web::site::{Asked, Query, Shared, encoded, query_of, reading};
use crate::web::text::{Html, limits, number, when, words};

pub async fn show(State(site): State<Shared>, request: Asked) -> Response {
    answer(&site, request, "changes", async |frame, request| {
        let asked = query_of(request);
        let given = |name: &str| asked.get(name).map(str::trim).filter(|text| !text.is_empty());
        let filter = ChangeFilter {
            job: given("job").and_then(|job| job.parse().ok()),
            who: given("who").map(str::to_owned),
            verb: given("verb").map(str::to_owned),
            queue: given("queue").map(str::to_owned),
            note: given("note").map(str::to_owned),
            since: given("since").map(str::to_owned),
            before: given("before").and_then(|before| before.parse().ok()),
        };
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let now = read::now(&transaction).await?;
        let changes = read::operations(&transaction, &filter, 101).await?;
        let lead = "What operators did, when, to what, and why. An operation on many jobs is one entry.";
        let mut table = Table::new(frame, "Changes", lead, filter.sql(100));
        table.columns = vec![
            ("When", ""),
            ("Who", ""),
            ("What", ""),
            ("To", ""),
            ("Before → after", "hide-s"),
            ("Note", ""),
        ];
        table.filters = filters(&asked);
        table.empty = match table.filters.iter().all(|field| field.value.is_empty()) {
            true => "No changes yet. Every action on these pages is recorded here.",
            false => "No change matches.",
        };
        for operation in changes.iter().take(100) {
            let change = &operation.newest;
            let others = match operation.jobs {
                1 => Html::default(),
                all => Html(format!(
                    "<small class=\"dim block\">and {} others, at once</small>",
                    number(all - 1)
                )),
            };
            let whom = match (&change.job, &change.queue, &change.schedule) {
                (Some(job), ..) => Html(format!("job {}", job_link(frame, *job))),
                (_, Some(queue), _) => Html(format!("queue {}", queue_link(frame, queue))),
                (.., Some(name)) => Html(format!(
                    "schedule {}",
                    link(frame, &format!("/schedules/{}", encoded(name)), name)
                )),
                _ => match (change.worker, &change.command, &change.policy) {
                    (Some(worker), ..) => Html(format!("worker {}", worker_link(frame, worker, None))),
                    (_, Some(command), _) => Html(format!("command {}", command_link(frame, command))),
                    (.., Some(policy)) => Html(format!("retry policy {}", policy_link(frame, policy))),
                    (None, None, None) => Html::default(),
                },
            };
            let states = before_and_after(change);
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
                ..Row::default()
            });
        }
        let names = ["job", "who", "verb", "queue", "note", "since"];
        let kept = names.map(|name| Some(format!("{name}={}&", encoded(given(name)?))));
        let kept: String = kept.into_iter().flatten().collect();
        if let Some(last) = changes.get(99).filter(|_| changes.len() > 100) {
            table.next = Some(format!("{}/changes?{kept}before={}", frame.base, last.oldest));
        }
        table.newest = filter.before.map(|_| format!("{}/changes?{kept}", frame.base));
        if !kept.is_empty() {
            table.links = vec![link(frame, "/changes", "All changes")];
        }
        Ok(table.finished())
    })
    .await
}

/// What it was, and what it became. Nothing, if the verb says it.
fn before_and_after(change: &Change) -> String {
    let (from, to) = (change.from_state.as_deref(), change.to_state.as_deref());
    let said = |text: &str| match change.verb.as_str() {
        "set_limits" | "set_command_limit" => limits(text),
        _ => words(text),
    };
    match (change.verb.as_str(), from, to) {
        (_, None, None) => String::new(),
        ("set_limits" | "set_command_limit", from, to) => {
            format!("{} → {}", said(from.unwrap_or_default()), said(to.unwrap_or_default()))
        }
        (verb, Some("paused"), None) if verb.starts_with("resume") => "paused → resumed".to_owned(),
        (_, Some(from), None) => format!("{} → –", said(from)),
        (_, None, Some(to)) => said(to),
        (_, Some(from), Some(to)) => format!("{} → {}", said(from), said(to)),
    }
}

/// What the list can be narrowed to.
fn filters(asked: &Query) -> Vec<Field> {
    let value = |name: &str| asked.get(name).unwrap_or_default().to_owned();
    let field = |name| Field::filter(name, value(name), Vec::new());
    // what can be recorded: the operations, and schedules that were changed by statements
    let verbs: BTreeSet<&str> = (OPERATIONS.iter())
        .map(|operation| operation.name.trim_end_matches("_where"))
        .filter(|name| !name.starts_with("enqueue"))
        .chain(["set_template"])
        .collect();
    vec![
        field("who"),
        Field::filter("verb", value("verb"), verbs.into_iter().map(str::to_owned).collect()),
        field("queue"),
        field("job"),
        field("note"),
        Field::filter(
            "since",
            value("since"),
            ["1 hour", "24 hours", "7 days"].map(str::to_owned).to_vec(),
        ),
    ]
}
