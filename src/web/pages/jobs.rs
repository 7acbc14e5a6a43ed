//! Jobs: a query box, states, and a page of jobs to select from.

use std::time::SystemTime;

use askama::Template;
use axum::extract::State;
use axum::response::Response;

use super::{answer, between, text};
use crate::read::{self, JobSummary, KEYS, SEARCHED, Search};
use crate::state::{Reason, State as JobState};
use crate::web::site::{Asked, Frame, Problem, Shared, encoded, query_of, reading};
use crate::web::text::{Html, escape, number, seconds, state, when, words};

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
    /// The names a query knows, and the names of queues and commands, for completion.
    keys: Vec<&'static str>,
    queues: Vec<String>,
    commands: Vec<String>,
    workers: Vec<i64>,
    schedules: Vec<String>,
    reasons: Vec<Reason>,
    states: [JobState; 9],
    columns: Vec<Choice>,
    /// The columns that were chosen, for the next search.
    chosen: String,
    /// The first page.
    newest: String,
    is_first: bool,
}

impl Jobs {
    /// The columns that are shown, for the template.
    fn shown(&self) -> Vec<&Choice> {
        self.columns.iter().filter(|column| column.is_shown).collect()
    }
}

struct Tab {
    name: &'static str,
    count: String,
    path: String,
    is_current: bool,
}

struct Row {
    id: i64,
    state: Html,
    command: String,
    cells: Vec<Html>,
}

/// A column that can be shown: its name in the URL, its heading, its class, and whether it is shown by default.
struct Column {
    name: &'static str,
    label: &'static str,
    class: &'static str,
    is_usual: bool,
}

const fn column(name: &'static str, label: &'static str, class: &'static str, is_usual: bool) -> Column {
    Column {
        name,
        label,
        class,
        is_usual,
    }
}

const COLUMNS: [Column; 10] = [
    column("queue", "Queue", "dim hide-s clip", true),
    column("priority", "Priority", "num dim hide-s", false),
    column("attempt", "Attempt", "num dim hide-s", true),
    column("reason", "Reason", "dim hide-s", false),
    column("code", "Code", "dim hide-s", false),
    column("says", "Message", "clip dim says", true),
    column("created", "Enqueued", "num hide-s", false),
    column("due", "Due", "num hide-s", false),
    column("ran", "Ran for", "num hide-s", false),
    column("when", "When", "num", true),
];

/// A column as a box to tick.
struct Choice {
    name: &'static str,
    label: &'static str,
    class: &'static str,
    is_shown: bool,
}

pub async fn show(State(site): State<Shared>, request: Asked) -> Response {
    answer(&site, request, "jobs", async |frame, request| {
        let asked = query_of(request);
        let query = asked.get("q").unwrap_or_default().trim().to_owned();
        let before = asked.get("before").and_then(|before| before.parse().ok());
        let snapshot = site.snapshot().await?;
        // boxes are repeated parameters, links have a list
        let names = asked.all("columns").join(",");
        let chosen: Vec<&str> = names.split(',').filter(|name| !name.is_empty()).collect();
        let columns: Vec<Choice> = (COLUMNS.iter())
            .map(|column| Choice {
                name: column.name,
                label: column.label,
                class: column.class,
                is_shown: match chosen.is_empty() {
                    true => column.is_usual,
                    false => chosen.contains(&column.name),
                },
            })
            .collect();
        let mut commands: Vec<String> = snapshot.stats.iter().map(|stats| stats.command.clone()).collect();
        commands.extend(snapshot.workers.iter().flat_map(|worker| worker.commands.clone()));
        commands.sort();
        commands.dedup();
        commands.truncate(200);
        let mut page = Jobs {
            frame: frame.clone(),
            tabs: Vec::new(),
            jobs: Vec::new(),
            next: None,
            is_cut: false,
            searched: number(SEARCHED),
            sql: String::new(),
            keys: KEYS.iter().map(|(name, _)| *name).collect(),
            queues: snapshot
                .queues
                .iter()
                .map(|queue| queue.queue.clone())
                .take(200)
                .collect(),
            commands,
            workers: snapshot.workers.iter().map(|worker| worker.id).take(200).collect(),
            schedules: Vec::new(),
            reasons: Reason::ALL
                .into_iter()
                .filter(|reason| *reason != Reason::Unknown)
                .collect(),
            states: JobState::ALL,
            chosen: chosen.join(","),
            newest: String::new(),
            columns,
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
        page.tabs = tabs(frame, &page.query, &page.chosen, &search, &snapshot.queues);
        page.newest = page_path(frame, &page.query, &page.chosen, None);
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
        let now = read::now(&transaction).await?;
        let schedules = read::schedules(&transaction).await?;
        page.schedules = schedules.into_iter().map(|schedule| schedule.name).take(100).collect();
        page.jobs = found.jobs.iter().map(|job| row(job, &page.columns, now)).collect();
        page.is_cut = found.is_cut;
        page.next = (found.next).map(|next| page_path(frame, &page.query, &page.chosen, Some(next)));
        Ok(page)
    })
    .await
}

/// The page of a query, with the columns that were chosen.
fn page_path(frame: &Frame, query: &str, chosen: &str, before: Option<i64>) -> String {
    let parts = [("q", query.to_owned()), ("columns", chosen.to_owned())];
    let mut parts: Vec<String> = (parts.iter())
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("{name}={}", encoded(value)))
        .collect();
    parts.extend(before.map(|before| format!("before={before}")));
    let mark = if parts.is_empty() { "" } else { "?" };
    format!("{}/jobs{mark}{}", frame.base, parts.join("&"))
}

fn row(job: &JobSummary, columns: &[Choice], now: SystemTime) -> Row {
    let at = match job.state {
        JobState::Scheduled | JobState::Retrying => job.run_at,
        JobState::Running => job.started_at.unwrap_or(job.created_at),
        JobState::Completed | JobState::Failed | JobState::Cancelled => job.finished_at.unwrap_or(job.created_at),
        _ => job.created_at,
    };
    let or_none = |value: &Option<String>| text(value.as_deref().unwrap_or("–"));
    let reason = job.reason.map(|reason| words(reason.as_str()));
    let cell = |name: &str| match name {
        "queue" => text(&job.queue),
        "priority" => text(job.priority.to_string()),
        "attempt" => text(job.attempt.to_string()),
        "reason" => or_none(&reason),
        "code" => or_none(&job.last_error_code),
        "says" => {
            let says = job.error_line.clone().or_else(|| reason.clone()).unwrap_or_default();
            Html(format!("<span title=\"{0}\">{0}</span>", escape(&says)))
        }
        "created" => when(now, job.created_at),
        "due" => when(now, job.run_at),
        "ran" => {
            let end = job.finished_at.or((job.state == JobState::Running).then_some(now));
            text(seconds(
                job.started_at.zip(end).and_then(|(from, to)| between(from, to)),
            ))
        }
        _ => when(now, at),
    };
    Row {
        id: job.id,
        state: state(job.state),
        command: job.command.clone(),
        cells: columns
            .iter()
            .filter(|column| column.is_shown)
            .map(|column| cell(column.name))
            .collect(),
    }
}

/// The query with another state.
fn tabs(frame: &Frame, query: &str, chosen: &str, search: &Search, queues: &[read::Queue]) -> Vec<Tab> {
    let rest: Vec<String> = read::words(query)
        .into_iter()
        .filter(|term| !term.starts_with("state:") && !term.starts_with("-state:"))
        .collect();
    let path = |state: &str| {
        let mut terms: Vec<&str> = vec![state];
        terms.extend(rest.iter().map(String::as_str));
        terms.retain(|term| !term.is_empty());
        page_path(frame, &terms.join(" "), chosen, None)
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
        is_current: search.states().is_empty(),
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
            is_current: search.states().contains(&state),
        });
    }
    tabs
}
