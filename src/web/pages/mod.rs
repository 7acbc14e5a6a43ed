//! The pages. Each gathers what it shows with functions of `read`, and renders a template.

mod changes;
mod command;
mod database;
mod detail;
mod errors;
mod job;
mod jobs;
mod missing;
mod overview;
mod policies;
mod queues;
mod schedules;
mod table;
mod workers;
mod workflows;

pub use job::enqueue_again;
use policies::policy_link;

use std::time::SystemTime;

use askama::Template;
use axum::Router;
use axum::response::Response;
use axum::routing::{get, post};

use super::live::without_waiting;
use super::site::{Asked, Frame, Problem, Shared, encoded, html};
use super::text::{Html, escape};
use crate::read::quoted;

pub fn router() -> Router<Shared> {
    Router::new()
        .route("/", get(overview::show))
        .route("/jobs", get(jobs::show))
        .route("/jobs/{id}", get(job::show))
        .route("/jobs/{id}/raw/{name}", get(job::raw))
        .route("/enqueue", get(job::enqueue))
        .route("/add-missing", get(missing::show).post(missing::add))
        .route("/workflows", get(workflows::list))
        .route("/workflows/{id}", get(workflows::show))
        .route("/queues", get(queues::list))
        .route("/queues/{name}", get(queues::show))
        .route("/commands", get(command::list))
        .route("/commands/{name}", get(command::show))
        .route("/commands/{name}/template", post(command::save))
        .route("/commands/{name}/template/sql", post(command::template_sql))
        .route("/policies", get(policies::list))
        .route("/policies/{name}", get(policies::show))
        .route("/schedules", get(schedules::list))
        .route("/schedules/{name}", get(schedules::show))
        .route("/cron-in-words", get(schedules::in_words))
        .route("/workers", get(workers::show))
        .route("/workers/{id}", get(workers::one))
        .route("/errors", get(errors::show))
        .route("/dead-letters", get(errors::dead_letters))
        .route("/changes", get(changes::show))
        .route("/database", get(database::show))
        .route("/database/end-session", post(database::end_session))
        .route("/database/upkeep", post(database::run_upkeep))
}

/// A page, or what went wrong.
async fn answer<T: Template>(
    site: &Shared,
    request: Asked,
    page: &'static str,
    make: impl AsyncFnOnce(&Frame, &Asked) -> Result<T, Problem>,
) -> Response {
    let made = async {
        let frame = site.frame(&request, page).await;
        match make(&frame, &request).await {
            Ok(page) => html(&page),
            Err(problem) => problem.page(frame),
        }
    };
    without_waiting(made).await
}

/// A link inside the site.
fn link(frame: &Frame, path: &str, text: &str) -> Html {
    Html(format!("<a href=\"{}{path}\">{}</a>", frame.base, escape(text)))
}

/// A text in which statements can be copied.
fn with_statements(text: &str) -> Html {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(begin) = rest.find("select ") {
        let Some(end) = rest[begin..].find(';').map(|end| begin + end + 1) else {
            break;
        };
        let sql = escape(&rest[begin..end]);
        shown.push_str(&format!("{}<code data-copy>{sql}</code>", escape(&rest[..begin])));
        rest = &rest[end..];
    }
    shown.push_str(&escape(rest));
    Html(shown)
}

fn text(text: impl AsRef<str>) -> Html {
    Html(escape(text.as_ref()))
}

/// The link to a queue.
fn queue_link(frame: &Frame, name: &str) -> Html {
    link(frame, &format!("/queues/{}", encoded(name)), name)
}

/// The link to a command.
fn command_link(frame: &Frame, name: &str) -> Html {
    link(frame, &format!("/commands/{}", encoded(name)), name)
}

/// The link to a worker, with its name if that is known.
fn worker_link(frame: &Frame, id: i64, name: Option<&str>) -> Html {
    let id_text = id.to_string();
    link(frame, &format!("/workers/{id}"), name.unwrap_or(&id_text))
}

/// The first letter is a capital.
fn capitalized(message: &str) -> String {
    let mut chars = message.chars();
    match chars.next() {
        Some(first) => first.to_uppercase().chain(chars).collect(),
        None => String::new(),
    }
}

fn job_link(frame: &Frame, id: i64) -> Html {
    Html(format!("<a class=\"mono\" href=\"{}/jobs/{id}\">{id}</a>", frame.base))
}

/// Seconds between two times, or none if the second comes first.
fn between(from: SystemTime, to: SystemTime) -> Option<f64> {
    to.duration_since(from).ok().map(|length| length.as_secs_f64())
}

/// A page of jobs for a query.
fn jobs_path(query: &str) -> String {
    format!("/jobs?q={}", encoded(query))
}
