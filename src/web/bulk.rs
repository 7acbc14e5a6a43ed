//! Many jobs at once: a selection, or everything that matches a query. First it is rehearsed, in a transaction that is
//! rolled back, and the result is shown; then it is applied.

use askama::Template;
use axum::Form;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;

use super::actions::{NEW_STATES, label};
use super::api;
use super::site::{Fields, Frame, Problem, Shared, Site, asked, encoded, html, redirect};
use crate::admin::operations::allowed_from;
use crate::operate::{self, Operated, Verb};
use crate::read::{self, Search};
use crate::web::text::{Html, number};
use crate::web::waterfall::shares;

/// How many jobs one step takes.
const STEP: i64 = 1000;

/// Matches are counted up to here.
const MOST_COUNTED: i64 = 10_000;

/// What can be done with many jobs.
const VERBS: [&str; 8] = [
    "cancel",
    "pause",
    "resume",
    "restart",
    "remove",
    "reschedule",
    "set_priority",
    "set_state",
];

/// The verb of a form, with its value. Without a value that it needs, it has to be asked for.
fn verb_of(name: &str, value: &str) -> Result<Option<Verb>, Problem> {
    Ok(match (name, value.trim()) {
        ("cancel", _) => Some(Verb::Cancel),
        ("pause", _) => Some(Verb::Pause),
        ("resume", _) => Some(Verb::Resume),
        ("restart", _) => Some(Verb::Restart),
        ("remove", _) => Some(Verb::Remove),
        ("reschedule", "") => Some(Verb::Reschedule("now".to_owned())),
        ("reschedule", at) => Some(Verb::Reschedule(at.to_owned())),
        (_, "") => None,
        ("set_priority", value) => {
            Some(Verb::SetPriority((value.parse()).map_err(|_| {
                wrong(format!("The priority {value:?} is not a number."))
            })?))
        }
        (_, value) => Some(Verb::SetState(value.parse()?)),
    })
}

fn wrong(message: impl Into<String>) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, message)
}

#[derive(Template)]
#[template(path = "bulk.html")]
struct Preview {
    frame: Frame,
    verb: &'static str,
    ids: Vec<i64>,
    query: String,
    is_all: bool,
    done: usize,
    /// How many were refused, for each reason.
    refused: Vec<(String, usize)>,
    /// How many match, if it is about everything that does.
    matching: Option<String>,
    step: i64,
    bounds: Bounds,
    /// What the verb needs to know, and what it can be.
    value: Option<Value>,
    /// Whether the value has to be given before anything can be rehearsed.
    is_question: bool,
    sql: String,
}

impl Preview {
    /// The verb in words, for the template.
    fn title(&self) -> String {
        label(self.verb)
    }
}

impl Progress {
    fn title(&self) -> String {
        label(self.verb)
    }
}

/// The value of a verb, as a field.
struct Value {
    value: String,
    label: &'static str,
    about: &'static str,
    choices: &'static [&'static str],
}

/// What a preview has counted: jobs that came later, and those that were not searched, stay as they are.
#[derive(Debug, Clone, Copy, Default)]
struct Bounds {
    /// Jobs with smaller ids are left.
    before: Option<i64>,
    /// The oldest job that was searched, if there are older ones.
    oldest: Option<i64>,
}

/// One step of several was taken.
#[derive(Template)]
#[template(path = "bulk_step.html")]
struct Progress {
    frame: Frame,
    verb: &'static str,
    query: String,
    note: String,
    value: String,
    bounds: Bounds,
    done: usize,
    seen: usize,
    matching: String,
    percent: usize,
    bar: Html,
}

/// What a form means.
struct Chosen {
    verb: &'static str,
    /// What it is to do, unless its value is missing.
    action: Option<Verb>,
    value: String,
    ids: Vec<i64>,
    query: String,
    search: Option<Search>,
    is_all: bool,
    note: Option<String>,
    /// The page to go back to.
    back: String,
    /// Of earlier steps: how many were changed, and looked at.
    done: usize,
    seen: usize,
    matching: Option<String>,
    bounds: Bounds,
    /// Where the next step begins, if there may be one.
    next: Option<i64>,
}

impl Chosen {
    /// The same as a statement to copy.
    fn sql(&self) -> String {
        let literal = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let jobs = match &self.search {
            Some(search) => format!("array({})", search.ids_sql(STEP)),
            None => {
                let ids: Vec<String> = self.ids.iter().map(i64::to_string).collect();
                format!("array[{}]", ids.join(", "))
            }
        };
        let value = match &self.action {
            Some(Verb::Reschedule(at)) => format!(", {}", literal(at)),
            Some(Verb::SetPriority(priority)) => format!(", {priority}"),
            Some(Verb::SetState(state)) => format!(", {}", literal(state.as_str())),
            _ => String::new(),
        };
        let note = self.note.as_ref().map(|note| format!(", p_note => {}", literal(note)));
        format!(
            "select * from bugle.{}({jobs}{value}{});",
            self.verb,
            note.unwrap_or_default()
        )
    }

    /// The field for its value.
    fn field(&self) -> Option<Value> {
        let value = self.value.clone();
        match self.verb {
            "reschedule" => Some(Value {
                value: if value.is_empty() { "now".to_owned() } else { value },
                label: "Due",
                about: "now, or a time such as 2030-01-01 08:00+00.",
                choices: &[],
            }),
            "set_priority" => Some(Value {
                value,
                label: "Priority",
                about: "Smaller values run first; 0 is the default.",
                choices: &[],
            }),
            "set_state" => Some(Value {
                value,
                label: "State",
                about: "The state they get, whatever they are in now.",
                choices: NEW_STATES,
            }),
            _ => None,
        }
    }
}

pub async fn preview(
    State(site): State<Shared>,
    headers: HeaderMap,
    Form(form): Form<Vec<(String, String)>>,
) -> Response {
    let mut frame = frame(&site, headers).await;
    let made = async {
        let chosen = choose(&site, &frame, &form).await?;
        let operated = match &chosen.action {
            Some(action) => operate(&site, action, &chosen, false).await?,
            None => Vec::new(),
        };
        Ok::<_, Problem>((chosen, operated))
    };
    match made.await {
        Ok((chosen, operated)) => {
            let mut refused: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
            for job in operated.iter().filter(|job| !job.done) {
                *refused.entry(job.reason.clone().unwrap_or_default()).or_default() += 1;
            }
            frame.here = chosen.back.clone();
            html(&Preview {
                sql: chosen.sql(),
                value: chosen.field(),
                is_question: chosen.action.is_none(),
                bounds: Bounds {
                    before: chosen.ids.first().filter(|_| chosen.is_all).map(|newest| newest + 1),
                    ..chosen.bounds
                },
                verb: chosen.verb,
                matching: chosen.matching,
                query: chosen.query,
                is_all: chosen.is_all,
                done: operated.iter().filter(|job| job.done).count(),
                refused: refused.into_iter().take(20).collect(),
                ids: if chosen.is_all { Vec::new() } else { chosen.ids },
                step: STEP,
                frame,
            })
        }
        Err(problem) => problem.page(frame),
    }
}

pub async fn apply(
    State(site): State<Shared>,
    headers: HeaderMap,
    Form(form): Form<Vec<(String, String)>>,
) -> Response {
    let mut frame = frame(&site, headers).await;
    let made = async {
        let chosen = choose(&site, &frame, &form).await?;
        let Some(action) = &chosen.action else {
            return Err(wrong("The value is missing."));
        };
        let operated = operate(&site, action, &chosen, true).await?;
        Ok::<_, Problem>((chosen, operated))
    };
    match made.await {
        Ok((chosen, operated)) => {
            let done = chosen.done + operated.iter().filter(|job| job.done).count();
            let seen = chosen.seen + operated.len();
            if let Some(before) = chosen.next {
                let matching = chosen.matching.unwrap_or_default();
                let all: usize = matching.replace([',', '+'], "").parse().unwrap_or(seen).max(seen);
                frame.here = chosen.back;
                return html(&Progress {
                    verb: chosen.verb,
                    query: chosen.query,
                    note: chosen.note.unwrap_or_default(),
                    value: chosen.value,
                    bounds: Bounds {
                        before: Some(before),
                        ..chosen.bounds
                    },
                    done,
                    seen,
                    percent: 100 * seen / all.max(1),
                    bar: shares(&[("completed".into(), seen as i64), ("rest".into(), (all - seen) as i64)]),
                    matching,
                    frame,
                });
            }
            let ending = if done == 1 { "" } else { "s" };
            let notice = format!("{}: {} job{ending}", label(chosen.verb), number(done as i64));
            redirect(&chosen.back, &notice)
        }
        Err(problem) => problem.page(frame),
    }
}

async fn frame(site: &Site, headers: HeaderMap) -> Frame {
    site.frame(&asked(headers), "jobs").await
}

async fn choose(site: &Site, frame: &Frame, form: &[(String, String)]) -> Result<Chosen, Problem> {
    let mut single: Fields = form.iter().cloned().collect();
    site.check(&single).await?;
    // a button of a row says everything at once
    if let Some((verb, query)) = single.get("everything").and_then(|text| text.split_once(' ')) {
        let given = [("verb", verb), ("q", query), ("all", "true")].map(|(name, text)| (name.into(), text.into()));
        single.extend(given);
    }
    let verb = single.get("verb").map(String::as_str).unwrap_or_default();
    let verb =
        (VERBS.into_iter().find(|name| *name == verb)).ok_or_else(|| wrong("Choose what to do with the jobs."))?;
    let value = single.get("value").cloned().unwrap_or_default();
    let action = verb_of(verb, &value)?;
    let query = single.get("q").cloned().unwrap_or_default();
    let is_all = single.get("all").is_some_and(|all| all == "true");
    let mut ids: Vec<i64> = (form.iter())
        .filter(|(name, _)| name == "id")
        .filter_map(|(_, id)| id.parse().ok())
        .take(usize::try_from(STEP).unwrap_or_default())
        .collect();
    let number_of = |name: &str| single.get(name).and_then(|number| number.parse::<i64>().ok());
    let (mut next, mut matching) = (None, single.get("matching").cloned());
    let mut bounds = Bounds {
        before: number_of("before"),
        oldest: number_of("oldest"),
    };
    let mut searched = None;
    if is_all {
        let states: Vec<&str> = allowed_from(verb).iter().map(|state| state.as_str()).collect();
        // only jobs that the verb can change: the others would be found repeatedly
        let search = Search::parse(&format!("{query} state:{}", states.join(",")))?;
        let mut client = site.pool.get_or_explain().await?;
        let transaction = super::site::reading(&mut client).await?;
        if bounds.before.is_none() {
            bounds.oldest = read::oldest_searched(&transaction, &search).await?;
        }
        let oldest = bounds.oldest.unwrap_or(i64::MIN);
        let found = read::search(&transaction, &search, bounds.before, STEP).await?;
        next = found.next.filter(|next| *next > oldest && !found.is_cut);
        if matching.is_none() {
            let count = read::count_found(&transaction, &search, MOST_COUNTED + 1).await?;
            let more = if count > MOST_COUNTED { "+" } else { "" };
            matching = Some(format!("{}{more}", number(count.min(MOST_COUNTED))));
        }
        ids = found.jobs.iter().map(|job| job.id).filter(|id| *id >= oldest).collect();
        searched = Some(search);
    }
    let seen = number_of("seen")
        .and_then(|seen| usize::try_from(seen).ok())
        .unwrap_or_default();
    // a later step may find nothing more
    if ids.is_empty() && seen == 0 {
        return Err(wrong("No job is selected, or none that this can change.")
            .hint("Tick the boxes before the jobs, or choose everything that matches."));
    }
    let back = single.get("back").filter(|back| back.starts_with('/')).cloned();
    Ok(Chosen {
        back: back.unwrap_or_else(|| format!("{}/jobs?q={}", frame.base, encoded(&query))),
        done: number_of("done")
            .and_then(|done| usize::try_from(done).ok())
            .unwrap_or_default(),
        seen,
        matching,
        bounds,
        next,
        verb,
        action,
        value,
        ids,
        query,
        search: searched,
        is_all,
        note: single.get("note").filter(|note| !note.trim().is_empty()).cloned(),
    })
}

async fn operate(site: &Site, action: &Verb, chosen: &Chosen, is_meant: bool) -> Result<Vec<Operated>, Problem> {
    let mut client = site.pool.get_or_explain().await?;
    let transaction = client.transaction().await?;
    api::limit(&transaction).await?;
    let operated = operate::apply(&transaction, action, &chosen.ids, chosen.note.as_deref()).await?;
    if is_meant {
        transaction.commit().await?;
        site.live.forget();
    } else {
        transaction.rollback().await?;
    }
    Ok(operated)
}
