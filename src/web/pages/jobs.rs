//! Jobs: a query box, states, and a page of jobs to select from.

use std::collections::BTreeMap;
use std::time::SystemTime;

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use tokio_postgres::Transaction;

use super::{answer, between, command_link, link, queue_link, text, worker_link};
use crate::admin::operations::allowed_from;
use crate::read::{self, JobSummary, KEYS, SEARCHED, Search};
use crate::state::{Reason, State as JobState};
use crate::web::live::Snapshot;
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
    /// A part of the payload that is a column.
    path: String,
    verbs: Vec<(&'static str, &'static str, &'static str)>,
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
    command: Html,
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

const COLUMNS: [Column; 13] = [
    column("queue", "Queue", "dim hide-s clip", true),
    column("priority", "Priority", "num dim hide-s", false),
    column("attempt", "Attempt", "num dim hide-s", true),
    column("worker", "Worker", "dim hide-s clip", false),
    column("schedule", "Schedule", "dim hide-s clip", false),
    column("keys", "Keys", "dim hide-s clip", false),
    column("reason", "Reason", "dim hide-s", false),
    column("code", "Code", "dim hide-s", false),
    column("says", "Message", "clip dim says", true),
    column("created", "Enqueued", "num hide-s", false),
    column("due", "Due", "num hide-s", false),
    column("ran", "Ran for", "num hide-s", false),
    column("when", "When", "num", true),
];

/// How many parts of payloads can be columns.
const MOST_PATHS: usize = 3;

/// A column as a box to tick.
struct Choice {
    name: String,
    label: String,
    class: String,
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
        let mut columns: Vec<Choice> = (COLUMNS.iter())
            .map(|column| Choice {
                name: column.name.to_owned(),
                label: column.label.to_owned(),
                // what was chosen is shown on phones too
                class: match chosen.is_empty() {
                    true => column.class.to_owned(),
                    false => column.class.replace("hide-s", ""),
                },
                is_shown: match chosen.is_empty() {
                    true => column.is_usual,
                    false => chosen.contains(&column.name),
                },
            })
            .collect();
        let is_path = |name: &&&str| {
            name.strip_prefix("payload.")
                .is_some_and(|path| !path.trim().is_empty())
        };
        let paths: Vec<&str> = chosen.iter().filter(is_path).take(MOST_PATHS).copied().collect();
        // before the time
        let place = columns.len() - 1;
        columns.splice(
            place..place,
            paths.iter().map(|path| Choice {
                name: (*path).to_owned(),
                label: (*path).to_owned(),
                class: "clip".to_owned(),
                is_shown: true,
            }),
        );
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
            path: paths.first().map_or_else(String::new, |path| (*path).to_owned()),
            verbs: Vec::new(),
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
                page.tabs = tabs(frame, "", &page.chosen, &Search::default(), &snapshot);
                return Ok(page);
            }
        };
        page.tabs = tabs(frame, &page.query, &page.chosen, &search, &snapshot);
        page.verbs = verbs(&search);
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
        let more = More::read(&transaction, &found.jobs, &page.columns).await?;
        let rows = found.jobs.iter().map(|job| row(frame, job, &page.columns, &more, now));
        page.jobs = rows.collect();
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

/// What can be done with some of the jobs of a query: the verb, its button, and its class.
fn verbs(search: &Search) -> Vec<(&'static str, &'static str, &'static str)> {
    const VERBS: [(&str, &str, &str); 8] = [
        ("restart", "Restart…", ""),
        ("reschedule", "Run now…", ""),
        ("pause", "Pause…", ""),
        ("resume", "Resume…", ""),
        ("set_priority", "Priority…", ""),
        ("set_state", "Set state…", ""),
        ("cancel", "Cancel…", "danger"),
        ("remove", "Remove…", "danger"),
    ];
    let states = match search.states() {
        [] => &JobState::ALL[..],
        some => some,
    };
    let is_possible = |verb: &str| states.iter().any(|state| allowed_from(verb).contains(state));
    VERBS.into_iter().filter(|(verb, ..)| is_possible(verb)).collect()
}

/// What the columns need that were chosen.
#[derive(Default)]
struct More {
    further: BTreeMap<i64, read::Further>,
    /// The values of each path.
    values: BTreeMap<String, BTreeMap<i64, String>>,
}

impl More {
    async fn read(client: &Transaction<'_>, jobs: &[JobSummary], columns: &[Choice]) -> Result<More, Problem> {
        let is_chosen = |names: &[&str]| {
            columns
                .iter()
                .any(|column| column.is_shown && names.contains(&column.name.as_str()))
        };
        let mut more = More::default();
        let all = is_chosen(&["worker", "schedule", "keys"]);
        // how far those are that run
        let ids = jobs.iter().filter(|job| all || job.state == JobState::Running);
        let ids: Vec<i64> = ids.map(|job| job.id).collect();
        if !ids.is_empty() {
            let found = read::further(client, &ids).await?;
            more.further = found.into_iter().map(|job| (job.id, job)).collect();
        }
        let ids: Vec<i64> = jobs.iter().map(|job| job.id).collect();
        for column in columns {
            let Some(path) = column.name.strip_prefix("payload.") else {
                continue;
            };
            let path: Vec<String> = path.split('.').map(str::to_owned).collect();
            let values = read::payload_values(client, &ids, &path).await?;
            let values = values.into_iter().filter_map(|(id, value)| Some((id, value?)));
            more.values.insert(column.name.clone(), values.collect());
        }
        Ok(more)
    }
}

fn row(frame: &Frame, job: &JobSummary, columns: &[Choice], more: &More, now: SystemTime) -> Row {
    let further = more.further.get(&job.id);
    let at = match job.state {
        JobState::Scheduled | JobState::Retrying => job.run_at,
        JobState::Running => job.started_at.unwrap_or(job.created_at),
        JobState::Completed | JobState::Failed | JobState::Cancelled => job.finished_at.unwrap_or(job.created_at),
        _ => job.created_at,
    };
    let or_none = |value: &Option<String>| text(value.as_deref().unwrap_or("–"));
    let reason = job.reason.map(|reason| words(reason.as_str()));
    let cell = |name: &str| match name {
        "queue" => queue_link(frame, &job.queue),
        "worker" => match further.and_then(|job| Some((job.worker?, job.worker_name.as_deref()))) {
            Some((id, name)) => worker_link(frame, id, name),
            None => text("–"),
        },
        "schedule" => match further.and_then(|job| job.schedule.as_deref()) {
            Some(name) => link(frame, &format!("/schedules/{}", encoded(name)), name),
            None => text("–"),
        },
        "keys" => {
            let keys = further.map_or_else(String::new, |job| job.keys.join(", "));
            Html(format!("<span title=\"{0}\">{0}</span>", escape(&keys)))
        }
        path if path.starts_with("payload.") => {
            let value = more.values.get(path).and_then(|values| values.get(&job.id));
            let value = value.map_or("–", String::as_str);
            Html(format!("<span title=\"{0}\">{0}</span>", escape(value)))
        }
        "priority" => text(job.priority.to_string()),
        "attempt" => text(job.attempt.to_string()),
        "reason" => or_none(&reason),
        "code" => or_none(&job.last_error_code),
        "says" => {
            let progress = further.filter(|_| job.state == JobState::Running);
            if let Some((percent, job)) = progress.and_then(|job| Some((job.progress?, job))) {
                let percent = format!("{:.0}", percent.clamp(0.0, 100.0));
                return Html(format!(
                    "<progress max=\"100\" value=\"{percent}\" aria-label=\"Progress\"></progress> {percent} % {}",
                    escape(job.progress_note.as_deref().unwrap_or_default())
                ));
            }
            let says = job.error_line.clone().or_else(|| reason.clone()).unwrap_or_default();
            match says.as_str() {
                "" => Html::default(),
                says => Html(format!("<span title=\"{0}\">{0}</span>", escape(says))),
            }
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
        command: command_link(frame, &job.command),
        cells: columns
            .iter()
            .filter(|column| column.is_shown)
            .map(|column| cell(&column.name))
            .collect(),
    }
}

/// The query with another state.
fn tabs(frame: &Frame, query: &str, chosen: &str, search: &Search, snapshot: &Snapshot) -> Vec<Tab> {
    let queues = &snapshot.queues;
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
        match snapshot.is_counted {
            true => format!("{}{}", if is_estimate { "≈ " } else { "" }, number(sum)),
            false => String::new(),
        }
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
