//! Jobs: a query box, states, and a page of jobs to select from.

use askama::Template;
use axum::extract::State;
use axum::response::Response;

use super::answer;
use crate::read::{self, JobLine, KEYS, SEARCHED, Search};
use crate::state::State as JobState;
use crate::web::site::{Asked, Frame, Problem, Shared, encoded, query_of, reading};
use crate::web::text::{Html, number, state, when};

/// How many jobs a page has.
pub const PAGE: i64 = 50;

#[derive(Template)]
#[template(path = "jobs.html")]
struct Jobs {
    frame: Frame,
    query: String,
    problem: Option<Problem>,
    tabs: Vec<Tab>,
    jobs: Vec<Row>,
    next: Option<String>,
    is_cut: bool,
    searched: String,
    sql: String,
    examples: Vec<&'static str>,
    is_first: bool,
}

struct Tab {
    name: &'static str,
    count: String,
    path: String,
    is_current: bool,
}

pub struct Row {
    pub id: i64,
    pub state: Html,
    pub command: String,
    pub queue: String,
    pub attempt: i32,
    pub says: String,
    pub when: Html,
}

pub async fn show(State(site): State<Shared>, request: Asked) -> Response {
    answer(&site, request, "jobs", async |frame, request| {
        let asked = query_of(request);
        let query = asked.get("q").unwrap_or_default().trim().to_owned();
        let before = asked.get("before").and_then(|before| before.parse().ok());
        let snapshot = site.snapshot().await?;
        let mut page = Jobs {
            frame: frame.clone(),
            tabs: Vec::new(),
            jobs: Vec::new(),
            next: None,
            is_cut: false,
            searched: number(SEARCHED),
            sql: String::new(),
            examples: KEYS.iter().map(|(_, example)| *example).collect(),
            problem: None,
            is_first: before.is_none(),
            query,
        };
        let search = match Search::parse(&page.query) {
            Ok(search) => search,
            Err(error) => {
                page.problem = Some(error.into());
                return Ok(page);
            }
        };
        page.tabs = tabs(frame, &page.query, &search, &snapshot.queues);
        page.sql = search.sql(before, PAGE);
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let found = match read::search(&transaction, &search, before, PAGE).await {
            Ok(found) => found,
            Err(error) => {
                page.problem = Some(error.into());
                return Ok(page);
            }
        };
        page.jobs = found.jobs.iter().map(|job| row(job, snapshot.now)).collect();
        page.is_cut = found.is_cut;
        page.next = found
            .next
            .map(|next| format!("{}/jobs?q={}&before={next}", frame.base, encoded(&page.query)));
        Ok(page)
    })
    .await
}

pub fn row(job: &JobLine, now: std::time::SystemTime) -> Row {
    let at = match job.state {
        JobState::Scheduled | JobState::Retrying => job.run_at,
        JobState::Running => job.started_at.unwrap_or(job.created_at),
        JobState::Completed | JobState::Failed | JobState::Cancelled => job.finished_at.unwrap_or(job.created_at),
        _ => job.created_at,
    };
    Row {
        id: job.id,
        state: state(job.state),
        command: job.command.clone(),
        queue: job.queue.clone(),
        attempt: job.attempt,
        says: job
            .error_line
            .clone()
            .or_else(|| job.reason.clone())
            .unwrap_or_default(),
        when: when(now, at),
    }
}

/// The query with another state.
fn tabs(frame: &Frame, query: &str, search: &Search, queues: &[read::Queue]) -> Vec<Tab> {
    let rest: Vec<&str> = query
        .split_whitespace()
        .filter(|term| !term.starts_with("state:") && !term.starts_with("-state:"))
        .collect();
    let rest = rest.join(" ");
    let path = |state: &str| {
        let query = [state, &rest]
            .iter()
            .filter(|part| !part.is_empty())
            .copied()
            .collect::<Vec<_>>()
            .join(" ");
        match query.is_empty() {
            true => format!("{}/jobs", frame.base),
            false => format!("{}/jobs?q={}", frame.base, encoded(&query)),
        }
    };
    let is_estimate = queues.iter().any(|queue| queue.is_estimate);
    let counted = |of: fn(&read::Queue) -> i64| {
        let sum: i64 = queues.iter().map(of).sum();
        format!("{}{}", if is_estimate { "≈ " } else { "" }, number(sum))
    };
    let mut tabs = vec![Tab {
        name: "all",
        count: String::new(),
        path: path(""),
        is_current: search.state().is_none(),
    }];
    for state in JobState::ALL {
        let count = match state {
            JobState::Scheduled => counted(|queue| queue.scheduled),
            JobState::Ready => counted(|queue| queue.ready),
            JobState::Running => counted(|queue| queue.running),
            JobState::Retrying => counted(|queue| queue.retrying),
            JobState::Paused => counted(|queue| queue.paused),
            JobState::Waiting => counted(|queue| queue.waiting),
            _ => String::new(),
        };
        tabs.push(Tab {
            name: state.as_str(),
            // counts are those of all jobs
            count: if search.is_filtered() { String::new() } else { count },
            path: path(&format!("state:{state}")),
            is_current: search.state() == Some(state),
        });
    }
    tabs
}
