//! Many jobs at once: a selection, or everything that matches a query. First it is rehearsed, in a transaction that is
//! rolled back, and the result is shown; then it is applied.

use askama::Template;
use axum::Form;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;

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

/// The verbs that need no value.
const VERBS: [(&str, Verb); 5] = [
    ("cancel", Verb::Cancel),
    ("pause", Verb::Pause),
    ("resume", Verb::Resume),
    ("restart", Verb::Restart),
    ("remove", Verb::Remove),
];

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
}

/// One step of several was taken.
#[derive(Template)]
#[template(path = "bulk_step.html")]
struct Progress {
    frame: Frame,
    verb: &'static str,
    query: String,
    note: String,
    /// Jobs with smaller ids are left.
    before: i64,
    done: usize,
    seen: usize,
    matching: String,
    percent: usize,
    bar: Html,
}

/// What a form means.
struct Chosen {
    verb: &'static str,
    action: Verb,
    ids: Vec<i64>,
    query: String,
    is_all: bool,
    note: Option<String>,
    /// The page to go back to.
    back: String,
    /// Of earlier steps: how many were changed, and looked at.
    done: usize,
    seen: usize,
    matching: Option<String>,
    /// Where the next step begins, if there may be one.
    next: Option<i64>,
}

pub async fn preview(
    State(site): State<Shared>,
    headers: HeaderMap,
    Form(form): Form<Vec<(String, String)>>,
) -> Response {
    let mut frame = frame(&site, headers).await;
    let made = async {
        let chosen = choose(&site, &frame, &form).await?;
        let operated = operate(&site, &chosen, false).await?;
        Ok::<_, Problem>((chosen, operated))
    };
    match made.await {
        Ok((chosen, operated)) => {
            let mut refused: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
            for job in operated.iter().filter(|job| !job.done) {
                *refused.entry(job.why.clone().unwrap_or_default()).or_default() += 1;
            }
            frame.here = chosen.back.clone();
            html(&Preview {
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
        let operated = operate(&site, &chosen, true).await?;
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
                    before,
                    done,
                    seen,
                    percent: 100 * seen / all.max(1),
                    bar: shares(&[("completed".into(), seen as i64), ("rest".into(), (all - seen) as i64)]),
                    matching,
                    frame,
                });
            }
            let notice = format!("{}: {done} jobs", chosen.verb);
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
    let wrong = |message: &str| Problem::new(axum::http::StatusCode::BAD_REQUEST, message);
    let verb = single.get("verb").map(String::as_str).unwrap_or_default();
    let (verb, action) = VERBS
        .into_iter()
        .find(|(name, _)| *name == verb)
        .ok_or_else(|| wrong("Choose what to do with the jobs."))?;
    let query = single.get("q").cloned().unwrap_or_default();
    let is_all = single.get("all").is_some_and(|all| all == "true");
    let mut ids: Vec<i64> = (form.iter())
        .filter(|(name, _)| name == "id")
        .filter_map(|(_, id)| id.parse().ok())
        .take(usize::try_from(STEP).unwrap_or_default())
        .collect();
    let number_of = |name: &str| single.get(name).and_then(|number| number.parse::<i64>().ok());
    let (mut next, mut matching) = (None, single.get("matching").cloned());
    if is_all {
        let states: Vec<&str> = allowed_from(verb).iter().map(|state| state.as_str()).collect();
        // only jobs that the verb can change: the others would be found repeatedly
        let search = Search::parse(&format!("{query} state:{}", states.join(",")))?;
        let mut client = site.pool.get_or_explain().await?;
        let transaction = super::site::reading(&mut client).await?;
        let found = read::search(&transaction, &search, number_of("before"), STEP).await?;
        next = found.next;
        if matching.is_none() {
            let count = read::count_found(&transaction, &search, MOST_COUNTED + 1).await?;
            let more = if count > MOST_COUNTED { "+" } else { "" };
            matching = Some(format!("{}{more}", number(count.min(MOST_COUNTED))));
        }
        ids = found.jobs.iter().map(|job| job.id).collect();
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
        next,
        verb,
        action,
        ids,
        query,
        is_all,
        note: single.get("note").filter(|note| !note.trim().is_empty()).cloned(),
    })
}

async fn operate(site: &Site, chosen: &Chosen, is_meant: bool) -> Result<Vec<Operated>, Problem> {
    let mut client = site.pool.get_or_explain().await?;
    let transaction = client.transaction().await?;
    api::limit(&transaction).await?;
    let operated = operate::apply(&transaction, &chosen.action, &chosen.ids, chosen.note.as_deref()).await?;
    if is_meant {
        transaction.commit().await?;
        site.live.forget().await;
    } else {
        transaction.rollback().await?;
    }
    Ok(operated)
}
