//! Add missing: paste jobs, see which are new and which exist, and add the new ones.

use std::collections::BTreeMap;

use askama::Template;
use axum::Form;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::Value;

use super::{answer, job_link};
use crate::admin::operations::{Operation, Values, perform};
use crate::read;
use crate::web::api;
use crate::web::site::{
    Asked, Fields, Frame, Problem, Shared, Site, asked, encoded, html, query_of, reading, redirect,
};
use crate::web::text::{Html, number};

/// How many jobs are shown.
const SHOWN: usize = 100;

#[derive(Template)]
#[template(path = "missing.html")]
struct Page {
    frame: Frame,
    command: String,
    lines: String,
    commands: Vec<String>,
    problem: Option<Problem>,
    rehearsed: Option<Rehearsed>,
}

/// What would happen.
struct Rehearsed {
    new: usize,
    existing: usize,
    rows: Vec<(String, Option<Html>)>,
    left_out: usize,
    sql: String,
}

impl Page {
    async fn new(site: &Site, frame: Frame, command: String, lines: String) -> Result<Page, Problem> {
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let commands = read::commands(&transaction).await?;
        Ok(Page {
            frame,
            command,
            lines,
            commands: commands.into_iter().map(|command| command.name).take(500).collect(),
            problem: None,
            rehearsed: None,
        })
    }
}

pub async fn show(State(site): State<Shared>, request: Asked) -> Response {
    answer(&site, request, "jobs", async |frame, request| {
        let command = query_of(request).get("command").unwrap_or_default().to_owned();
        Page::new(&site, frame.clone(), command, String::new()).await
    })
    .await
}

/// Rehearse it, or do it.
pub async fn add(State(site): State<Shared>, headers: HeaderMap, Form(form): Form<Fields>) -> Response {
    let mut frame = site.frame(&asked(headers), "jobs").await;
    frame.here = format!("{}/add-missing", frame.base);
    match add_or_rehearse(&site, &frame, &form).await {
        Ok(response) => response,
        Err(problem) => problem.page(frame),
    }
}

async fn add_or_rehearse(site: &Site, frame: &Frame, form: &Fields) -> Result<Response, Problem> {
    site.check(form).await?;
    let field = |name: &str| form.get(name).map(|text| text.trim().to_owned()).unwrap_or_default();
    let (command, lines) = (field("command"), field("lines"));
    let mut page = Page::new(site, frame.clone(), command.clone(), lines.clone()).await?;
    let jobs = match read_jobs(&lines) {
        Ok(jobs) => jobs,
        Err(problem) => {
            page.problem = Some(problem);
            return Ok(html(&page));
        }
    };
    let array = format!(
        "[{}]",
        jobs.iter().map(|(_, json)| json.as_str()).collect::<Vec<_>>().join(",")
    );
    let operation = Operation::named("add_missing").expect("an operation of the table");
    let values = Values::new()
        .with(operation, "command", &command)
        .with(operation, "jobs", &array);
    let keys: Vec<String> = jobs.iter().map(|(key, _)| key.clone()).collect();
    let mut client = site.pool.get_or_explain().await?;
    let transaction = client.transaction().await?;
    api::limit(&transaction).await?;
    let existing = read::jobs_with_keys(&transaction, &command, &keys).await?;
    let added = match perform(&transaction, operation, &values).await {
        Ok(added) => added.and_then(|answer| answer["added"].as_i64()).unwrap_or_default(),
        Err(error) => {
            page.problem = Some(error.into());
            return Ok(html(&page));
        }
    };
    if form.get("apply").is_some_and(|apply| apply == "true") {
        transaction.commit().await?;
        site.live.forget();
        let notice = format!(
            "add missing: {} jobs added, {} existed",
            number(added),
            jobs.len() as i64 - added
        );
        let query = encoded(&format!("command:{command}"));
        return Ok(redirect(&format!("{}/jobs?q={query}", frame.base), &notice));
    }
    transaction.rollback().await?;
    let rows = (keys.iter().zip(&existing))
        .take(SHOWN)
        .map(|(key, job)| (key.clone(), job.map(|job| job_link(frame, job))))
        .collect();
    let new = usize::try_from(added).unwrap_or_default();
    page.rehearsed = Some(Rehearsed {
        new,
        existing: jobs.len() - new,
        rows,
        left_out: jobs.len().saturating_sub(SHOWN),
        sql: operation.sql(&values).chars().take(4000).collect(),
    });
    Ok(html(&page))
}

/// One JSON object a line, or an array of them: the key of each, and its text as it was written.
fn read_jobs(lines: &str) -> Result<Vec<(String, String)>, Problem> {
    let wrong = |message: String| {
        Problem::new(StatusCode::BAD_REQUEST, message)
            .hint("One job a line, as a JSON object with a key: {\"key\": \"order-1\", \"payload\": {\"order\": 1}}")
    };
    if lines.is_empty() {
        return Err(wrong("There are no jobs to add.".to_owned()));
    }
    let texts: Vec<String> = match lines.starts_with('[') {
        true => serde_json::from_str::<Vec<Box<serde_json::value::RawValue>>>(lines)
            .map_err(|error| wrong(format!("This is not a JSON array: {error}.")))?
            .iter()
            .map(|raw| raw.get().to_owned())
            .collect(),
        false => lines
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .collect(),
    };
    let mut jobs = Vec::new();
    for (number, text) in texts.into_iter().enumerate() {
        let job: BTreeMap<String, Value> = serde_json::from_str(&text)
            .map_err(|error| wrong(format!("Job {} is not a JSON object: {error}.", number + 1)))?;
        let key = job.get("key").and_then(Value::as_str).filter(|key| !key.is_empty());
        let key = key.ok_or_else(|| wrong(format!("Job {} has no key.", number + 1)))?;
        jobs.push((key.to_owned(), text));
    }
    Ok(jobs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_lines_or_an_array_and_keep_their_digits() {
        let lines = "{\"key\": \"a\", \"payload\": 9007199254740993}\n\n{\"key\":\"b\"}";
        let jobs = read_jobs(lines).unwrap();

        assert_eq!(jobs.len(), 2);
        assert!(jobs[0].1.contains("9007199254740993"));
        assert_eq!(read_jobs("[{\"key\": \"a\"}, {\"key\": \"b\"}]").unwrap().len(), 2);
        for (bad, said) in [
            ("", "no jobs"),
            ("{\"key\": 1}", "Job 1 has no key"),
            ("{}\nx", "Job 1"),
            ("[1", "array"),
        ] {
            assert!(read_jobs(bad).unwrap_err().message.contains(said), "{bad}");
        }
    }
}
