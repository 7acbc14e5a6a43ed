//! Errors, grouped by what they have in common, and dead letters.

use axum::extract::State;
use axum::response::Response;

use super::table::{Row, Section, Table, bulk, button};
use super::{answer, job_link, jobs_path, link, quoted, text};
use crate::read;
use crate::web::actions::{Action, Field};
use crate::web::site::{Asked, Frame, Problem, Shared, allowed, encoded, query_of, reading};
use crate::web::text::{Html, escape, number, when, words};

pub async fn show(State(site): State<Shared>, request: Asked) -> Response {
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
        let mut table = Table::new(
            frame,
            "Errors",
            lead,
            format!("select * from bugle.group_errors('{hours}');"),
        );
        table.columns = vec![
            ("Error", "grow"),
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
            let command = group.command.as_deref();
            // of the latest error of a job: it may have failed differently since
            let terms = [("command", command), ("fingerprint", group.fingerprint.as_deref())];
            let terms = terms.map(|(name, value)| Some(format!("{name}:{}", quoted(value?))));
            let group_is: Vec<String> = terms.into_iter().flatten().collect();
            let group_is = group_is.join(" ");
            let alike = jobs_path(&format!("{group_is} state:failed,retrying"));
            let shown: String = line.chars().take(200).collect();
            table.rows.push(Row {
                cells: vec![
                    Html(format!("<span class=\"wrap\">{}</span>", escape(&shown))),
                    text(command.unwrap_or("–")),
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
        table.actions = allowed(frame, vec![Action::bulk("restart", "Restart jobs", "state:failed")]);
        Ok(table.finished())
    })
    .await
}

pub async fn dead_letters(State(site): State<Shared>, request: Asked) -> Response {
    answer(&site, request, "dead-letters", async |frame, request| {
        let asked = query_of(request);
        let before = asked.get("before").and_then(|before| before.parse().ok());
        let filters = ["reason", "command", "queue", "error"];
        let given = |name: &str| asked.get(name).map(str::trim).filter(|text| !text.is_empty());
        let terms = filters.map(|name| given(name).map(|value| format!(" {name}:{}", quoted(value))));
        let query = format!("state:failed{}", terms.into_iter().flatten().collect::<String>());
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let now = read::now(&transaction).await?;
        let search = read::Search::parse(&query).map_err(Problem::from)?;
        let found = read::search(&transaction, &search, before, 50).await?;
        let ids: Vec<i64> = found.jobs.iter().map(|job| job.id).collect();
        let places = read::failed_where(&transaction, &ids).await?;
        let reasons = read::reasons_of_dead_letters(&transaction).await?;
        let lead = "Jobs that failed for good, the newest first. Restarting one runs it again from attempt 0.";
        let mut table = Table::new(frame, "Dead letters", lead, search.sql(before, 50));
        table.columns = vec![
            ("Job", ""),
            ("Command", ""),
            ("Queue", "hide-s"),
            ("Reason", ""),
            ("Step", "hide-s"),
            ("Error", "grow"),
            ("Worker", "hide-s"),
            ("Attempts", "num hide-s"),
            ("Failed", "num"),
            ("", "acts"),
        ];
        table.filters = filters
            .into_iter()
            .map(|name| {
                let choices = match name {
                    "reason" => reasons.iter().map(|(reason, ..)| reason.clone()).collect(),
                    _ => Vec::new(),
                };
                Field::filter(name, given(name).unwrap_or_default().to_owned(), choices)
            })
            .collect();
        table.empty = match query.as_str() {
            "state:failed" => "No job has failed for good. Jobs appear here when their attempts are used up.",
            _ => "No dead letter matches.",
        };
        for job in &found.jobs {
            let place = places.iter().find(|(id, ..)| *id == job.id);
            table.rows.push(Row {
                cells: vec![
                    job_link(frame, job.id),
                    text(&job.command),
                    text(&job.queue),
                    text(
                        job.reason
                            .map_or_else(|| "–".to_owned(), |reason| words(reason.as_str())),
                    ),
                    text(place.and_then(|(_, step, _)| step.as_deref()).unwrap_or("–")),
                    Html(format!(
                        "<span class=\"wrap\">{}</span>",
                        escape(job.error_line.as_deref().unwrap_or_default())
                    )),
                    text(place.map_or("–", |(.., worker)| worker.as_str())),
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
        table.ids = ids;
        table.verbs = vec![("restart", "Restart…"), ("remove", "Remove…")];
        let kept = filters.map(|name| given(name).map(|value| format!("{name}={}&", encoded(value))));
        let kept: String = kept.into_iter().flatten().collect();
        table.next = found
            .next
            .map(|next| format!("{}/dead-letters?{kept}before={next}", frame.base));
        table.links = vec![link(frame, &jobs_path(&query), "As jobs")];
        table.actions = allowed(frame, vec![Action::bulk("restart", "Restart matching", query)]);
        table.sections = vec![by_reason(frame, &reasons)];
        Ok(table.finished())
    })
    .await
}

/// Dead letters, grouped.
fn by_reason(frame: &Frame, reasons: &[(String, i64, Vec<String>)]) -> Section {
    let mut section = Section::new("reasons", "By reason", "Of the newest 10,000.");
    section.columns = vec![("Reason", ""), ("Jobs", "num"), ("Commands", "")];
    section.empty = "There are none.";
    section.rows = (reasons.iter())
        .map(|(reason, jobs, commands)| {
            let path = format!("/dead-letters?reason={}", encoded(reason));
            let more = if commands.len() > 3 { " …" } else { "" };
            let first: Vec<&str> = commands.iter().take(3).map(String::as_str).collect();
            vec![
                link(frame, &path, &words(reason)),
                text(number(*jobs)),
                text(format!("{}{more}", first.join(", "))),
            ]
        })
        .collect();
    section
}
