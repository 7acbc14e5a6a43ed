//! One job: why it is not running, what happened to it, what it carries, and what can be done. And a new one.

use std::time::SystemTime;

use askama::Template;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use serde_json::value::RawValue;

use super::queues::holder_actions;
use super::{
    answer, between, command_link, job_link, jobs_path, link, policy_link, queue_link, quoted, text, with_statements,
    worker_link,
};
use crate::admin::operations::allowed_from;
use crate::operate::{self, Explanation};
use crate::read::{self, Job, Relative, Run};
use crate::state::{self, State as JobState};
use crate::web::actions::Action;
use crate::web::site::{
    Asked, Fields, Frame, Options, Problem, Shared, Site, allowed, encoded, html, query_of, reading,
};
use crate::web::text::{
    Form, Html, at, badge, escape, json, seconds, span, state as state_badge, when, words as words_of,
};
use crate::web::waterfall::{Bar, Drawn, waterfall};

#[derive(Template)]
#[template(path = "job.html")]
struct JobPage {
    frame: Frame,
    id: i64,
    command: String,
    state: Html,
    about: Html,
    is_live: bool,
    is_completed: bool,
    /// What colors the box that explains.
    tone: &'static str,
    actions: Vec<Action>,
    more: Vec<Action>,
    reasons: Vec<Reason>,
    timeline: Vec<Moment>,
    documents: Vec<Document>,
    facts: Vec<(&'static str, Html)>,
    /// Steps and children over time.
    waterfall: Vec<Drawn>,
    /// Its scale.
    axis: Html,
    /// How many moments are earlier than those that are shown, and how many later ones are left out.
    earlier: usize,
    later: usize,
    page: usize,
    /// What the waterfall and the table of steps leave out.
    bars_left_out: usize,
    steps_left_out: usize,
    steps: Vec<StepRow>,
    relatives: Vec<(&'static str, Vec<Html>)>,
    progress: Option<Progress>,
}

/// How far a job is.
struct Progress {
    percent: String,
    note: String,
}

struct Reason {
    message: String,
    fix: Html,
    links: Vec<Html>,
    actions: Vec<Action>,
}

struct Moment {
    at: Html,
    class: &'static str,
    what: Html,
    detail: String,
    error: Option<String>,
    lines: usize,
}

struct Document {
    name: &'static str,
    shown: Html,
    is_open: bool,
    /// Where the whole of it is, if it is cut.
    whole: String,
}

struct StepRow {
    position: i32,
    name: String,
    state: Html,
    attempts: i32,
    took: String,
    error: String,
    output: Html,
    actions: Vec<Action>,
}

fn unknown(id: &str) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, format!("There is no job {id}."))
        .hint("It may have been removed, or deleted by retention.")
}

pub async fn show(State(site): State<Shared>, Path(id): Path<String>, request: Asked) -> Response {
    answer(&site, request, "jobs", async |frame, request| {
        let number: i64 = id.parse().map_err(|_| unknown(&id))?;
        let skipped = query_of(request).get("later").and_then(|later| later.parse().ok());
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let now = read::now(&transaction).await?;
        let job = read::job(&transaction, number).await?.ok_or_else(|| unknown(&id))?;
        let reasons = operate::explain(&transaction, number).await?;
        let children: Vec<i64> = job
            .relatives
            .children
            .iter()
            .take(MOST_BARS)
            .map(|child| child.id)
            .collect();
        let children = read::runs(&transaction, &children).await?;
        let workflow = read::workflow_of(&transaction, number).await?;
        let line = &job.summary;
        let (actions, more) = actions(&job);
        let bars = bars(frame, &job, &children);
        // the last ones: the others are in the timeline
        let bars_left_out = bars.len().saturating_sub(MOST_BARS);
        let has_bars = bars.len() > 1;
        let (waterfall, axis) = waterfall(bars.into_iter().skip(bars_left_out).collect(), now);
        let later = skipped.unwrap_or(0).min(job.timeline.len());
        let until = job.timeline.len() - later;
        let from = until.saturating_sub(MOMENTS);
        let bars_left_out = bars_left_out + job.relatives.children.len().saturating_sub(MOST_BARS);
        let queue = queue_link(frame, &line.queue);
        Ok(JobPage {
            id: number,
            command: line.command.clone(),
            state: state_badge(line.state),
            about: Html(format!(
                "{}queue {queue} · priority {} · attempt {} · policy {}",
                workflow.map_or_else(String::new, |(workflow, name)| format!(
                    "<b>{}</b> of <a href=\"{}/workflows/{workflow}\">workflow {workflow}</a> · ",
                    escape(&name),
                    frame.base
                )),
                line.priority,
                escape(&job.attempt_in_words),
                policy_link(frame, &job.policy_in_force)
            )),
            is_live: !line.state.is_final(),
            is_completed: line.state == JobState::Completed,
            tone: match line.state {
                JobState::Completed => "fine",
                JobState::Failed => "grave",
                JobState::Running | JobState::Cancelled | JobState::Scheduled => "calmly",
                _ => "",
            },
            actions: allowed(frame, actions),
            more: allowed(frame, more),
            reasons: reasons.iter().map(|reason| explain(frame, &job, reason)).collect(),
            timeline: timeline(frame, &job, from, until),
            earlier: from,
            later,
            page: MOMENTS,
            documents: documents(frame, &job),
            facts: facts(frame, &job, now, &site.options),
            waterfall: if has_bars { waterfall } else { Vec::new() },
            axis,
            bars_left_out: if has_bars { bars_left_out } else { 0 },
            steps_left_out: job.steps.len().saturating_sub(MOST_STEPS),
            steps: steps(frame, &job),
            relatives: relatives(frame, &job, has_bars),
            progress: job.progress.map(|progress| Progress {
                percent: format!("{:.0}", progress.clamp(0.0, 100.0)),
                note: job.progress_note.clone().unwrap_or_default(),
            }),
            frame: frame.clone(),
        })
    })
    .await
}

/// What the state allows: the first few as buttons, the rest behind one.
fn actions(job: &Job) -> (Vec<Action>, Vec<Action>) {
    let id = || vec![("id", job.summary.id.to_string())];
    let may = |verb: &str| allowed_from(verb).contains(&job.summary.state);
    let mut first = Vec::new();
    let mut rest = Vec::new();
    if job.summary.state == JobState::Waiting && job.outstanding.is_none() {
        first.push(Action::new("resolve", "Resolve", &id()).main().preset("result", "{}"));
        first.push(Action::new("reject", "Reject", &id()).danger());
        rest.push(Action::new("resume_with", "Continue with an answer", &id()).preset("answer", "{}"));
    }
    if may("restart") {
        first.push(Action::new("restart", "Restart", &id()).main());
    }
    if may("resume") {
        first.push(Action::new("resume", "Resume", &id()).main());
    }
    if matches!(job.summary.state, JobState::Scheduled | JobState::Retrying) {
        first.push(Action::new("reschedule", "Run now", &id()).preset("run_at", "now"));
    } else if may("reschedule") {
        rest.push(Action::new("reschedule", "Reschedule", &id()).preset("run_at", "now"));
    }
    if may("pause") {
        first.push(Action::new("pause", "Pause", &id()));
    }
    if may("cancel") {
        first.push(Action::new("cancel", "Cancel", &id()).danger());
    }
    if may("set_priority") {
        rest.push(Action::new("set_priority", "Priority", &id()).preset("priority", job.summary.priority.to_string()));
    }
    if may("set_state") {
        rest.push(Action::new("set_state", "Set state", &id()));
    }
    if may("remove") {
        rest.push(Action::new("remove", "Remove", &id()).danger());
    }
    (first, rest)
}

/// A reason with its fix as a button, where an operation fixes it.
fn explain(frame: &Frame, job: &Job, reason: &Explanation) -> Reason {
    let fact = |name: &str| reason.facts.get(name);
    let text = |name: &str| fact(name).and_then(Value::as_str).map(str::to_owned);
    let number = |name: &str| fact(name).and_then(Value::as_i64);
    let id = || vec![("id", job.summary.id.to_string())];
    let queue = || vec![("queue", job.summary.queue.clone())];
    let mut actions = Vec::new();
    let mut links = Vec::new();
    let limit = number("limit").unwrap_or_default();
    let raised =
        |name: &str, value: i64| Action::new("set_limits", "Raise the limit", &queue()).preset(name, value.to_string());
    match reason.reason.as_str() {
        "queue_paused" => {
            let queue = text("queue").unwrap_or_default();
            actions.push(Action::new("resume_queue", format!("Resume queue {queue}"), &[("queue", queue)]).main());
        }
        "worker_paused" => {
            let workers = fact("paused_workers")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default();
            for worker in workers.iter().filter_map(Value::as_i64).take(3) {
                let resume = [("worker", worker.to_string())];
                actions.push(Action::new("resume_worker", format!("Resume worker {worker}"), &resume).main());
            }
        }
        "unserved" => links.push(link(frame, "/workers", "Workers")),
        "busy" | "fair_turn" => {
            actions.push(Action::new("set_priority", "Raise its priority", &id()).preset("priority", "-10"))
        }
        "queue_limit" => actions.push(raised("max_running", limit + 1)),
        "key_limit" => actions.push(raised("max_running_per_key", limit + 1)),
        "queue_rate" => actions.push(raised("max_starts", limit * 2)),
        "key_rate" => actions.push(raised("max_starts_per_key", limit * 2)),
        "command_limit" => {
            let command = [("command", job.summary.command.clone())];
            let raise = Action::new("set_command_limit", "Raise the limit", &command);
            actions.push(raise.preset("max_running", (limit + 1).to_string()));
        }
        "scheduled" | "retrying" => {
            let now = [("id", job.summary.id.to_string()), ("run_at", "now".to_owned())];
            actions.push(Action::new("reschedule", "Run it now", &now).main());
        }
        "locked" => actions.extend(Action::of_fix(&frame.rights, &reason.fix)),
        "deadline" if frame.can_enqueue => links.push(link(
            frame,
            &format!("/enqueue?from={}", job.summary.id),
            "Enqueue it again…",
        )),
        // what a job waits for can be overruled
        "children" | "dependencies" if allowed_from("set_state").contains(&job.summary.state) => {
            let start = [("id", job.summary.id.to_string()), ("to", "ready".to_owned())];
            actions.push(Action::new("set_state", "Start it without them", &start).danger());
        }
        "paused" => actions.push(Action::new("resume", "Resume it", &id()).main()),
        // others stand on top of the page
        _ => {}
    }
    // a job that holds the order key: what lets it go on depends on its state
    if reason.reason == "order_key"
        && let Some(holder) = number("held_by")
    {
        let state = text("state").unwrap_or_default();
        actions.extend(holder_actions(&job.summary.queue, holder, &state));
        if state == "ready" {
            let path = format!("/jobs/{holder}");
            links.push(link(frame, &path, "Why is that one not running?"));
        }
    }
    if let Some(holder) = number("held_by") {
        links.push(job_link(frame, holder));
    }
    let others = fact("jobs").and_then(Value::as_array).cloned().unwrap_or_default();
    links.extend(
        others
            .iter()
            .filter_map(Value::as_i64)
            .take(5)
            .map(|id| job_link(frame, id)),
    );
    Reason {
        message: reason.message.clone(),
        fix: with_statements(&reason.fix),
        links,
        actions: allowed(frame, actions),
    }
}

/// How many moments the timeline shows at once.
const MOMENTS: usize = 40;
/// How many bytes of long messages it shows.
const MESSAGES: usize = 6_000;

fn timeline(frame: &Frame, job: &Job, first: usize, until: usize) -> Vec<Moment> {
    let mut started: Option<(SystemTime, Option<i32>)> = None;
    let mut moments = Vec::new();
    let mut left = MESSAGES;
    // a clock is enough if all of it happened within a few hours
    let ends = job.timeline.first().zip(job.timeline.last());
    let is_short = ends
        .and_then(|(first, last)| between(first.at, last.at))
        .is_none_or(|length| length < 12.0 * 3600.0);
    let form = if is_short { Form::Clock } else { Form::Moment };
    for (place, event) in job.timeline.iter().enumerate() {
        let is_end = job.summary.state.is_final() && place + 1 == job.timeline.len();
        if event.event == "started" {
            started = Some((event.at, event.attempt));
        }
        if !(first..until).contains(&place) {
            continue;
        }
        let mut detail = Vec::new();
        if event.event != "started"
            && event.attempt.is_some()
            && let Some((from, _)) = started.filter(|(_, attempt)| *attempt == event.attempt)
            && let Some(took) = between(from, event.at)
        {
            detail.push(format!("after {}", seconds(Some(took))));
        }
        let words = event.event.replace('_', " ");
        let mut what = match event.attempt {
            _ if is_end && event.event == "failed" => "failed for good".to_owned(),
            Some(attempt) if event.event == "started" => format!("Attempt {attempt} started"),
            Some(attempt) if !["completed", "cancelled"].contains(&event.event.as_str()) => {
                format!("Attempt {attempt}: {}", escape(&words))
            }
            _ => escape(&words),
        };
        if let Some(first) = what.chars().next() {
            what = first.to_uppercase().chain(what.chars().skip(1)).collect();
        }
        if let Some(step) = &event.step {
            what = format!("{what} <b>{}</b>", escape(step));
        }
        if let Some(worker) = event.worker {
            what = format!("{what} on {}", worker_link(frame, worker, event.worker_name.as_deref()));
        }
        if let Some(who) = &event.who {
            what = format!("{what} by <b>{}</b>", escape(who));
        }
        detail.extend(event.code.iter().map(|code| format!("code {code}")));
        detail.extend(event.application.clone());
        let message = event.message.clone().filter(|message| !message.is_empty());
        let is_short = message
            .as_ref()
            .is_some_and(|message| message.len() < 120 && !message.contains('\n'));
        let lines = message.as_ref().map_or(0, |message| message.lines().count());
        let message = message.map(|message| {
            let cut = cut(&message, left.max(120));
            left = left.saturating_sub(cut.len());
            cut
        });
        if is_short {
            detail.extend(message.clone());
        }
        let is_bad = ["failed", "lost", "crash", "timeout", "rejected", "rescued"];
        let class = match event.event.as_str() {
            "completed" | "step_done" => "ok",
            bad if is_bad.iter().any(|word| bad.contains(word)) => "bad",
            _ => "",
        };
        moments.push(Moment {
            at: at(event.at, form),
            class,
            what: Html(what),
            detail: detail.join(" · "),
            lines,
            error: message.filter(|_| !is_short),
        });
    }
    moments
}

/// At most as many bytes of a text, and what is missing.
fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}\n… {end} of {} bytes are shown", &text[..end], text.len())
}

/// How many bytes of HTML the payload and the other documents take.
const PAYLOAD: usize = 20_000;
const OTHERS: usize = 6_000;

fn documents(frame: &Frame, job: &Job) -> Vec<Document> {
    let document = |name: &'static str, value: &RawValue, most, is_open| {
        let (shown, is_cut) = json(value.get(), most);
        let whole = format!("{}/jobs/{}/raw/{}", frame.base, job.summary.id, name.to_lowercase());
        Document {
            name,
            shown,
            is_open,
            whole: if is_cut { whole } else { String::new() },
        }
    };
    let mut documents = vec![document("Payload", &job.payload, PAYLOAD, true)];
    let mut add = |name, value: &Option<Box<RawValue>>, is_open| {
        if let Some(value) = value {
            documents.push(document(name, value, OTHERS, is_open));
        }
    };
    add("Result", &job.result, true);
    add("Answer", &job.answer, true);
    add("Context", &job.context, false);
    add("Headers", &job.headers, false);
    documents
}

/// One document of a job, as it is stored: for copying what the page cuts.
pub async fn raw(State(site): State<Shared>, Path((id, name)): Path<(String, String)>, request: Asked) -> Response {
    match raw_of(&site, &id, &name).await {
        Ok(text) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
        Err(problem) => problem.page(site.frame(&request, "jobs").await),
    }
}

async fn raw_of(site: &Shared, id: &str, name: &str) -> Result<String, Problem> {
    let number: i64 = id.parse().map_err(|_| unknown(id))?;
    let mut client = site.pool.get_or_explain().await?;
    let transaction = reading(&mut client).await?;
    let job = read::job(&transaction, number).await?.ok_or_else(|| unknown(id))?;
    let value = match name {
        "payload" => Some(job.payload),
        "result" => job.result,
        "answer" => job.answer,
        "context" => job.context,
        "headers" => job.headers,
        _ => None,
    };
    let none = || Problem::new(StatusCode::NOT_FOUND, format!("Job {id} has no {name}."));
    Ok(value.ok_or_else(none)?.get().to_owned())
}

fn facts(frame: &Frame, job: &Job, now: SystemTime, options: &Options) -> Vec<(&'static str, Html)> {
    let line = &job.summary;
    let mut facts = vec![
        ("Enqueued", when(now, line.created_at)),
        ("Due", when(now, line.run_at)),
    ];
    let mut add = |name, value: Option<Html>| facts.extend(value.map(|value| (name, value)));
    add("First started", job.first_started_at.map(|at| when(now, at)));
    add("Finished", line.finished_at.map(|at| when(now, at)));
    let ran = line
        .started_at
        .zip(line.finished_at)
        .and_then(|(from, to)| between(from, to));
    add("Ran for", ran.map(|ran| text(seconds(Some(ran)))));
    add("Reason", line.reason.map(|reason| text(words_of(reason.as_str()))));
    let worker = job.worker.map(|id| {
        let name = job.worker_name.clone().unwrap_or_else(|| id.to_string());
        let host = job
            .worker_host
            .as_ref()
            .map(|host| format!(" on {host}"))
            .unwrap_or_default();
        Html(format!("{}{}", worker_link(frame, id, Some(&name)), escape(&host)))
    });
    add("Worker", worker);
    add("Crashes", (job.crashes > 0).then(|| text(job.crashes.to_string())));
    add(
        "Timeout",
        job.timeout_seconds.map(|timeout| text(seconds(Some(timeout)))),
    );
    add("Deadline", job.deadline.map(|at| when(now, at)));
    add("Answer by", job.answer_by.map(|at| when(now, at)));
    let key = |key: &String| Html(format!("<span class=\"mono\">{}</span>", escape(key)));
    add(
        "Retry delay",
        job.retry_delay_seconds.map(|delay| text(seconds(Some(delay)))),
    );
    add("Enqueued by", job.enqueued_by.as_ref().map(text));
    let keyed = |key: &String| link(frame, &jobs_path(&format!("key:{}", quoted(key))), key);
    add("Order key", job.order_key.as_ref().map(keyed));
    add("Limit key", job.limit_key.as_ref().map(keyed));
    add("Fair key", job.fair_key.as_ref().map(keyed));
    let elsewhere = |template: &Option<String>| elsewhere(template.as_deref()?, job);
    add("Trace", elsewhere(&options.trace_url));
    add("Logs", elsewhere(&options.log_url));
    add("Unique key", job.unique_key.as_ref().map(key));
    add("Idempotency key", job.idempotency_key.as_ref().map(key));
    add("Parent", job.parent.map(|id| job_link(frame, id)));
    let command = |name: &String| command_link(frame, name);
    add("On success", job.on_success.as_ref().map(command));
    add("On failure", job.on_failure.as_ref().map(command));
    let alike = jobs_path(&format!("command:{}", quoted(&line.command)));
    let all = link(frame, &alike, "its jobs");
    add(
        "Command",
        Some(Html(format!("{} · {all}", command_link(frame, &line.command)))),
    );
    facts
}

/// A link to another site, if the job has all that its URL names. Only ids are in it.
fn elsewhere(template: &str, job: &Job) -> Option<Html> {
    let mut url = template.to_owned();
    let values = [
        ("{job}", Some(job.summary.id.to_string())),
        (
            "{worker}",
            job.worker_name.clone().or(job.worker.map(|id| id.to_string())),
        ),
        ("{trace_id}", trace_id(job)),
    ];
    for (name, value) in values {
        if url.contains(name) {
            url = url.replace(name, &encoded(&value?));
        }
    }
    Some(Html(format!(
        "<a href=\"{}\" rel=\"noreferrer\" target=\"_blank\">open</a>",
        escape(&url)
    )))
}

/// The id of the trace that the job was enqueued in: 00-TRACE-SPAN-FLAGS.
fn trace_id(job: &Job) -> Option<String> {
    let headers: Value = serde_json::from_str(job.headers.as_ref()?.get()).ok()?;
    let trace = headers["traceparent"].as_str()?.split('-').nth(1)?;
    let is_hex = trace.len() == 32 && trace.chars().all(|c| c.is_ascii_hexdigit());
    is_hex.then(|| trace.to_owned())
}

/// How much of the output of a step is shown.
const MOST_OUTPUT: usize = 200;

/// How many children the waterfall has.
const MOST_BARS: usize = 40;
/// How many steps the table has.
const MOST_STEPS: usize = 100;

/// The attempts of the job, its steps and its children. One bar alone says nothing.
fn bars(frame: &Frame, job: &Job, children: &[Run]) -> Vec<Bar> {
    let length =
        |from: Option<SystemTime>, to: Option<SystemTime>| seconds(from.zip(to).and_then(|(a, b)| between(a, b)));
    let mut bars = Vec::new();
    let mut started = None;
    let mut waits: Option<SystemTime> = None;
    let wait = |begin: SystemTime, end: Option<SystemTime>| Bar {
        label: Html("<span class=\"dim\">in between</span>".to_owned()),
        state: badge("waiting"),
        class: "waiting".to_owned(),
        begin: Some(begin),
        end,
        took: length(Some(begin), end),
        about: String::new(),
        depth: 0,
    };
    for event in &job.timeline {
        match event.event.as_str() {
            "started" => {
                bars.extend(waits.take().map(|begin| wait(begin, Some(event.at))));
                started = Some((event.at, event.attempt));
            }
            _ if event.attempt.is_some() || job.summary.state.is_final() => {
                if let Some((begin, attempt)) = started.take() {
                    let is_wait = ["waiting", "snoozed"].contains(&event.event.as_str());
                    waits = is_wait.then_some(event.at);
                    bars.push(Bar {
                        label: text(format!("attempt {}", attempt.unwrap_or_default())),
                        state: badge(if is_wait { "done" } else { &event.event }),
                        // it ran; that it waits now is a bar of its own
                        class: if is_wait {
                            "done".to_owned()
                        } else {
                            event.event.clone()
                        },
                        begin: Some(begin),
                        end: Some(event.at),
                        took: length(Some(begin), Some(event.at)),
                        about: event.worker_name.clone().unwrap_or_default(),
                        depth: 0,
                    });
                }
            }
            _ => {}
        }
    }
    if let Some((begin, attempt)) = started {
        bars.push(Bar {
            label: text(format!("attempt {}", attempt.unwrap_or_default())),
            state: badge(job.summary.state.as_str()),
            class: job.summary.state.as_str().to_owned(),
            begin: Some(begin),
            end: job.summary.finished_at,
            took: length(Some(begin), job.summary.finished_at),
            about: job.worker_name.clone().unwrap_or_default(),
            depth: 0,
        });
    }
    if job.summary.state == JobState::Waiting {
        bars.extend(waits.take().map(|begin| wait(begin, None)));
    }
    bars.extend(job.steps.iter().map(|step| Bar {
        label: text(&step.name),
        state: badge(step.state.as_str()),
        class: step.state.as_str().to_owned(),
        begin: step.first_started_at,
        end: step.last_ended_at,
        took: length(step.first_started_at, step.last_ended_at),
        about: step.worker_name.clone().unwrap_or_default(),
        depth: 1 + usize::from(step.within.is_some_and(|within| within > 0)),
    }));
    bars.extend(children.iter().map(|child| Bar {
        label: Html(format!(
            "{} {}",
            job_link(frame, child.id),
            escape(child.command.as_deref().unwrap_or_default())
        )),
        state: badge(state::or_gone(child.state)),
        class: state::or_gone(child.state).to_owned(),
        begin: child.started_at,
        end: child.finished_at,
        took: length(child.started_at, child.finished_at),
        about: child.error_line.clone().unwrap_or_default(),
        depth: 1,
    }));
    bars
}

fn steps(frame: &Frame, job: &Job) -> Vec<StepRow> {
    let may_set = !matches!(job.summary.state, JobState::Running | JobState::Completed);
    let row = |step: &read::Step| {
        let took = step.last_started_at.zip(step.last_ended_at);
        let took = took.and_then(|(from, to)| to.duration_since(from).ok());
        let known = [("id", job.summary.id.to_string()), ("step", step.position.to_string())];
        let set = Action::new("set_step", "Set", &known).preset("state", "done");
        StepRow {
            position: step.position,
            name: step.name.clone(),
            state: badge(step.state.as_str()),
            attempts: step.attempts,
            took: took.map(span).unwrap_or_default(),
            error: step.error.clone().unwrap_or_default(),
            output: match step.output.as_ref().map(|output| output.get()) {
                None => Html::default(),
                Some(output) if output.len() <= MOST_OUTPUT => Html(format!("<code>{}</code> ", escape(output))),
                Some(output) => Html(format!(
                    "<a href=\"{}/api/v1/jobs/{}\">output, {} bytes</a> ",
                    frame.base,
                    job.summary.id,
                    output.len()
                )),
            },
            actions: if may_set { allowed(frame, vec![set]) } else { Vec::new() },
        }
    };
    // the last ones: those that are under way, or went wrong
    let first = job.steps.len().saturating_sub(MOST_STEPS);
    job.steps.iter().skip(first).map(row).collect()
}

fn relatives(frame: &Frame, job: &Job, has_bars: bool) -> Vec<(&'static str, Vec<Html>)> {
    let shown = |relative: &Relative| {
        let name = relative
            .name
            .as_ref()
            .map(|name| format!(" {}", escape(name)))
            .unwrap_or_default();
        let state = relative.state.map_or_else(|| badge("gone"), state_badge);
        Html(format!("{}{name} {state}", job_link(frame, relative.id)))
    };
    let dependants = job.relatives.dependants.iter().map(|id| job_link(frame, *id));
    [
        (
            "Depends on",
            job.relatives
                .dependencies
                .iter()
                .take(50)
                .map(shown)
                .collect::<Vec<_>>(),
        ),
        (
            "Children",
            // the waterfall has them
            job.relatives
                .children
                .iter()
                .take(if has_bars { 0 } else { 50 })
                .map(shown)
                .collect(),
        ),
        ("Needed by", dependants.take(50).collect()),
    ]
    .into_iter()
    .filter(|(_, all)| !all.is_empty())
    .collect()
}

#[derive(Template)]
#[template(path = "enqueue.html")]
struct Enqueue {
    frame: Frame,
    command: String,
    queue: String,
    priority: String,
    payload: String,
    from: Option<i64>,
    /// Whether the payload is too large for a form.
    is_large: bool,
    run_at: String,
    unique_key: String,
    commands: Vec<String>,
    /// What was wrong with the form that was sent.
    problem: Option<Problem>,
}

/// How much JSON a form shows.
const MOST_IN_A_FORM: usize = 40_000;

/// The form again, as it was filled in, with what was wrong.
pub async fn enqueue_again(site: &Site, frame: Frame, form: &Fields, problem: Problem) -> Response {
    let given = |name: &str| form.get(name).cloned().unwrap_or_default();
    let commands = async {
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        read::commands(&transaction).await
    };
    let commands = commands.await.unwrap_or_default();
    let status = problem.status;
    let page = Enqueue {
        command: given("command"),
        queue: given("queue"),
        priority: given("priority"),
        payload: given("payload"),
        run_at: given("run_at"),
        unique_key: given("unique_key"),
        from: form.get("from").and_then(|id| id.parse().ok()),
        is_large: false,
        commands: commands.into_iter().map(|command| command.name).take(500).collect(),
        problem: Some(problem),
        frame,
    };
    (status, html(&page)).into_response()
}

pub async fn enqueue(State(site): State<Shared>, request: Asked) -> Response {
    answer(&site, request, "jobs", async |frame, request| {
        let asked = query_of(request);
        let from: Option<i64> = asked.get("from").and_then(|id| id.parse().ok());
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let job = match from {
            Some(id) => Some(
                read::job(&transaction, id)
                    .await?
                    .ok_or_else(|| unknown(&id.to_string()))?,
            ),
            None => None,
        };
        let commands = read::commands(&transaction).await?;
        let given = |name: &str, default: &str| asked.get(name).unwrap_or(default).to_owned();
        Ok(Enqueue {
            command: job
                .as_ref()
                .map_or_else(|| given("command", ""), |job| job.summary.command.clone()),
            queue: job
                .as_ref()
                .map_or_else(|| given("queue", ""), |job| job.summary.queue.clone()),
            priority: job
                .as_ref()
                .map_or_else(String::new, |job| job.summary.priority.to_string()),
            payload: job
                .as_ref()
                .map_or_else(|| "{}".to_owned(), |job| job.payload.get().to_owned()),
            from,
            run_at: given("run_at", ""),
            unique_key: String::new(),
            problem: None,
            is_large: job.as_ref().is_some_and(|job| job.payload.get().len() > MOST_IN_A_FORM),
            commands: commands.into_iter().map(|command| command.name).take(500).collect(),
            frame: frame.clone(),
        })
    })
    .await
}
