//! Errors, grouped by what they have in common, and dead letters.

use axum::extract::State;
use axum::response::Response;

use super::table::{Row, Table, bulk, button};
use super::{answer, job_link, jobs_path, link, quoted, text};
use crate::read;
use crate::web::actions::Action;
use crate::web::site::{Asked, Problem, Shared, allowed, query_of, reading};
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
        let mut table = Table::new(frame, "Errors", lead, "select * from bugle.group_errors('1 hour');");
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
            ("Error", "grow"),
            ("Attempts", "num hide-s"),
            ("Failed", "num"),
            ("", "acts"),
        ];
        table.empty = "No job has failed for good. Jobs appear here when their attempts are used up.";
        for job in &found.jobs {
            table.rows.push(Row {
                cells: vec![
                    job_link(frame, job.id),
                    text(&job.command),
                    text(&job.queue),
                    text(
                        job.reason
                            .map_or_else(|| "–".to_owned(), |reason| words(reason.as_str())),
                    ),
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
        table.actions = allowed(frame, vec![Action::bulk("restart", "Restart matching", "state:failed")]);
        Ok(table.finished())
    })
    .await
}
