//! Errors, grouped by what they have in common, and dead letters.

use axum::extract::State;
use axum::response::Response;

use super::table::{Row, Table, again, bulk, button};
use super::{answer, command_link, job_link, jobs_path, link, queue_link, quoted, text};
use crate::read;
use crate::web::actions::{Action, Field};
use crate::web::site::{Asked, Problem, Shared, allowed, encoded, query_of, reading};
use crate::web::text::{Html, escape, number, when, words};

pub async fn show(State(site): State<Shared>, request: Asked) -> Response {
    answer(&site, request, "errors", async |frame, request| {
        let asked = query_of(request);
        let (chosen, hours, said) = match asked.get("since") {
            Some("24h") => ("24h", "24 hours", "24 hours"),
            Some("7d") => ("7d", "7 days", "7 days"),
            _ => ("1h", "1 hour", "hour"),
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
        let lead = format!("Failed attempts of the last {said}, grouped by what their errors have in common.{cut}");
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
            ("Hosts", "hide-s"),
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
            let shown = group
                .error_line
                .as_deref()
                .filter(|line| !line.is_empty())
                .unwrap_or(line);
            let shown: String = shown.chars().take(200).collect();
            let hosts = match group.hosts.as_slice() {
                [] => "–".to_owned(),
                [one] => one.clone(),
                [first, rest @ ..] => format!("{first} and {} more", rest.len()),
            };
            table.rows.push(Row {
                cells: vec![
                    Html(format!(
                        "<span class=\"wrap\" title=\"Fingerprint: {}\">{}</span>",
                        escape(line),
                        escape(&shown)
                    )),
                    command.map_or_else(|| text("–"), |command| command_link(frame, command)),
                    text(group.code.as_deref().unwrap_or("–")),
                    Html(format!(
                        "<span title=\"{}\">{}</span>",
                        escape(&group.hosts.join(", ")),
                        escape(&hosts)
                    )),
                    text(number(group.attempts)),
                    link(frame, &alike, &number(group.jobs)),
                    when(now, group.first_at),
                    when(now, group.last_at),
                    job_link(frame, group.last_job),
                ],
                buttons: vec![bulk("Restart…", "restart", &format!("{group_is} state:failed"))],
                actions: Vec::new(),
            });
        }
        let period = |name, label| (format!("/errors?since={name}"), label, name == chosen);
        table.tabs = vec![period("1h", "1 h"), period("24h", "24 h"), period("7d", "7 d")];
        table.actions = allowed(frame, vec![Action::bulk("restart", "Restart jobs", "state:failed")]);
        Ok(table.finished())
    })
    .await
}

pub async fn dead_letters(State(site): State<Shared>, request: Asked) -> Response {
    answer(&site, request, "dead-letters", async |frame, request| {
        let asked = query_of(request);
        let before = asked.get("before").and_then(|before| before.parse().ok());
        let filters = ["reason", "command", "queue", "step", "worker", "error", "within"];
        let given = |name: &str| asked.get(name).map(str::trim).filter(|text| !text.is_empty());
        let term = |name: &str| match (name, given(name)?) {
            ("within", period) => {
                let (_, length) = PERIODS.iter().find(|(known, _)| *known == period)?;
                Some(format!(" ended:<{length}"))
            }
            (_, value) => Some(format!(" {name}:{}", quoted(value))),
        };
        let terms = filters.map(term);
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
            ("Reason", ""),
            ("Error", "grow"),
            ("Where", "hide-s"),
            ("Attempts", "num hide-s"),
            ("Failed", "num"),
        ];
        table.filters = filters
            .into_iter()
            .map(|name| {
                let choices = match name {
                    "reason" => reasons.iter().map(|(reason, ..)| reason.clone()).collect(),
                    "within" => PERIODS.iter().map(|(name, _)| (*name).to_owned()).collect(),
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
            let step = place.and_then(|(_, step, _)| step.as_deref());
            let step = step.map_or_else(String::new, |step| format!("{}<br>", escape(step)));
            let worker = place.map_or("", |(.., worker)| worker.as_str());
            let mut buttons = vec![button("restart", "Restart", "id", &job.id.to_string())];
            if frame.can_enqueue {
                buttons.push(again(job.id));
            }
            table.rows.push(Row {
                cells: vec![
                    job_link(frame, job.id),
                    Html(format!(
                        "{}<small class=\"dim block\">{}</small>",
                        command_link(frame, &job.command),
                        queue_link(frame, &job.queue)
                    )),
                    text(
                        job.reason
                            .map_or_else(|| "–".to_owned(), |reason| words(reason.as_str())),
                    ),
                    Html(format!(
                        "<span class=\"wrap\">{}</span>",
                        escape(job.error_line.as_deref().unwrap_or_default())
                    )),
                    Html(format!("{step}<small class=\"dim\">{}</small>", escape(worker))),
                    text(job.attempt.to_string()),
                    job.finished_at.map_or_else(|| text("–"), |at| when(now, at)),
                ],
                buttons,
                actions: Vec::new(),
            });
        }
        table.ids = ids;
        table.verbs = vec![("restart", "Restart…"), ("remove", "Remove…")];
        let kept = filters.map(|name| given(name).map(|value| format!("{name}={}&", encoded(value))));
        let kept: String = kept.into_iter().flatten().collect();
        table.next = found
            .next
            .map(|next| format!("{}/dead-letters?{kept}before={next}", frame.base));
        table.newest = before.map(|_: i64| format!("{}/dead-letters?{kept}", frame.base));
        table.links = vec![link(frame, &jobs_path(&query), "As jobs")];
        table.actions = allowed(frame, vec![Action::bulk("restart", "Restart matching", query)]);
        let current = given("reason");
        table.chips_label = "By reason, of the newest 10,000";
        table.chips = (reasons.iter())
            .map(|(reason, jobs, _)| {
                let is_current = current == Some(reason);
                let path = match is_current {
                    true => "/dead-letters".to_owned(),
                    false => format!("/dead-letters?reason={}", encoded(reason)),
                };
                (path, words(reason), number(*jobs), is_current)
            })
            .collect();
        Ok(table.finished())
    })
    .await
}

/// Periods to choose from, and how a query has them.
const PERIODS: [(&str, &str); 3] = [("1 hour", "1h"), ("24 hours", "24h"), ("7 days", "7d")];
