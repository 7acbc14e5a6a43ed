//! Workflows: which there are, and one as a graph with what failed and what that blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use askama::Template;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;

use super::table::{Row, Table};
use super::{answer, between, command_link, job_link, text};
use crate::read::{self, Run, WORKFLOW_JOBS, WorkflowJob};
use crate::state::{self, Reason, State as JobState};
use crate::web::graph::{Edge, Node, graph};
use crate::web::site::{Asked, Frame, Problem, Shared, query_of, reading};
use crate::web::text::{Html, badge, escape, number, seconds, when, words};
use crate::web::waterfall::shares;

/// How many workflows a page has.
const PAGE: i64 = 20;
/// A picture of more jobs says nothing to anyone, and makes the page large.
const MOST_IN_A_GRAPH: usize = 90;
/// How many jobs the table has at once.
const MEMBERS: usize = 100;

pub async fn list(State(site): State<Shared>, request: Asked) -> Response {
    answer(&site, request, "workflows", async |frame, request| {
        let before = query_of(request).get("before").and_then(|before| before.parse().ok());
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let now = read::now(&transaction).await?;
        let workflows = read::workflows(&transaction, before, PAGE).await?;
        let lead = "Jobs that start when others are done, enqueued together.";
        let sql =
            "select workflow, count(*) from bugle.workflow_jobs group by workflow order by workflow desc limit 20;";
        let mut table = Table::new(frame, "Workflows", lead, sql);
        table.columns = vec![
            ("Workflow", ""),
            ("Jobs", "names"),
            ("Progress", "wide hide-s"),
            ("States", ""),
            ("Enqueued", "num hide-s"),
            ("Took", "num hide-s"),
        ];
        table.empty = "No workflow has been enqueued in the days that are kept. One call enqueues a graph: \
            select * from bugle.enqueue_workflow('{\"jobs\": {\"a\": {\"command\": \"x\"}, \"b\": {\"command\": \"y\", \
            \"after\": [\"a\"]}}}');";
        for workflow in &workflows {
            let is_over = workflow.states.iter().all(|(state, _)| is_final(state));
            let took = workflow
                .ended_at
                .filter(|_| is_over)
                .and_then(|end| between(workflow.created_at, end));
            let states: Vec<String> = (workflow.states.iter())
                .map(|(state, count)| format!("<span class=\"pair\">{} {}</span>", badge(state), number(*count)))
                .collect();
            let more = if workflow.jobs == WORKFLOW_JOBS { " or more" } else { "" };
            table.rows.push(Row {
                cells: vec![
                    Html(format!(
                        "<a class=\"mono\" href=\"{}/workflows/{id}\">{id}</a>",
                        frame.base,
                        id = workflow.id
                    )),
                    Html(format!(
                        "<span class=\"clip2\" title=\"{0}\">{0}</span><small class=\"dim\">{1}{more} jobs</small>",
                        escape(&workflow.names.join(", ")),
                        number(workflow.jobs)
                    )),
                    shares(&workflow.states),
                    Html(format!("<span class=\"counts\">{}</span>", states.join(" "))),
                    when(now, workflow.created_at),
                    text(seconds(took)),
                ],
                ..Row::default()
            });
        }
        if workflows.len() as i64 == PAGE {
            let last = workflows.last().map_or(0, |workflow| workflow.id);
            table.next = Some(format!("{}/workflows?before={last}", frame.base));
        }
        table.newest = before.map(|_: i64| format!("{}/workflows", frame.base));
        Ok(table.finished())
    })
    .await
}

fn is_final(state: &str) -> bool {
    ["completed", "failed", "cancelled", "gone"].contains(&state)
}

#[derive(Template)]
#[template(path = "workflow.html")]
struct Workflow {
    frame: Frame,
    id: i64,
    about: String,
    shares: Html,
    counts: Vec<Html>,
    graph: Option<Html>,
    failures: Vec<Failure>,
    jobs: Vec<Member>,
    left_out: String,
    /// Where the next jobs begin.
    next: Option<usize>,
    is_first: bool,
    /// Which verbs some of its jobs allow: the verb, the button, its class.
    verbs: Vec<(&'static str, &'static str, &'static str)>,
}

struct Failure {
    name: String,
    link: Html,
    error: String,
    /// What fails, or waits, because of it.
    blocks: Vec<String>,
}

struct Member {
    name: String,
    link: Html,
    command: Html,
    state: Html,
    after: String,
    started: Html,
    took: String,
    says: String,
}

pub async fn show(State(site): State<Shared>, Path(id): Path<String>, request: Asked) -> Response {
    answer(&site, request, "workflows", async |frame, request| {
        let from = query_of(request)
            .get("from")
            .and_then(|from| from.parse().ok())
            .unwrap_or(0);
        let unknown = || {
            Problem::new(StatusCode::NOT_FOUND, format!("There is no workflow {id}."))
                .hint("A workflow has the id of its first job. It may have been deleted by retention.")
        };
        let given: i64 = id.parse().map_err(|_| unknown())?;
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let now = read::now(&transaction).await?;
        let (id, _) = read::workflow_of(&transaction, given).await?.ok_or_else(unknown)?;
        let members = read::workflow(&transaction, id).await?;
        let ids: Vec<i64> = members.iter().take(1000).map(|member| member.id).collect();
        let runs = read::runs(&transaction, &ids).await?;
        let tolerant: BTreeSet<(i64, i64)> = read::tolerant_edges(&transaction, &ids).await?.into_iter().collect();
        let members = &members[..ids.len()];
        let edges = edges(members, &tolerant);
        let mut states: BTreeMap<&str, i64> = BTreeMap::new();
        for member in members {
            *states.entry(state::or_gone(member.state)).or_default() += 1;
        }
        let mut states: Vec<(String, i64)> = states.into_iter().map(|(state, n)| (state.to_owned(), n)).collect();
        states.sort_by_key(|(state, _)| std::cmp::Reverse(weight(state)));
        let begin = runs.iter().filter_map(|run| run.created_at).min();
        let is_over = states.iter().all(|(state, _)| is_final(state));
        let end = match is_over {
            true => runs.iter().filter_map(|run| run.finished_at).max(),
            false => Some(now),
        };
        let took = begin.zip(end).and_then(|(begin, end)| between(begin, end));
        let may = |allowed: &[JobState]| {
            members
                .iter()
                .any(|member| member.state.is_some_and(|state| allowed.contains(&state)))
        };
        let verbs = [
            ("restart", "Restart failed parts…", "main"),
            ("resume", "Resume…", ""),
            ("pause", "Pause…", ""),
            ("cancel", "Cancel…", "danger"),
        ];
        Ok(Workflow {
            about: format!(
                "{} jobs · {} {}",
                number(members.len() as i64),
                if is_over { "took" } else { "running for" },
                seconds(took)
            ),
            shares: shares(&states),
            counts: states
                .iter()
                .map(|(state, count)| Html(format!("{} {}", badge(state), number(*count))))
                .collect(),
            graph: (members.len() <= MOST_IN_A_GRAPH).then(|| {
                let nodes: Vec<Node> = (members.iter().zip(&runs))
                    .map(|(member, run)| Node {
                        name: member.name.clone(),
                        about: about(member, members, run, now),
                        state: state::or_gone(member.state).to_owned(),
                        path: format!("{}/jobs/{}", frame.base, member.id),
                    })
                    .collect();
                graph(
                    &format!("The jobs of workflow {id}; the same as a table below"),
                    &nodes,
                    &edges,
                )
            }),
            failures: failures(frame, members, &runs, &edges),
            left_out: number(members.len().saturating_sub(from + MEMBERS) as i64),
            next: (members.len() > from + MEMBERS).then_some(from + MEMBERS),
            is_first: from == 0,
            jobs: (members.iter().zip(&runs))
                .skip(from)
                .take(MEMBERS)
                .map(|(member, run)| Member {
                    name: member.name.clone(),
                    link: job_link(frame, member.id),
                    command: (member.command.as_deref())
                        .map_or_else(Html::default, |command| command_link(frame, command)),
                    state: badge(state::or_gone(member.state)),
                    after: member.after.join(", "),
                    started: match (run.started_at, run.finished_at) {
                        (Some(at), _) => when(now, at),
                        (None, Some(at)) => Html(format!("<span class=\"dim\">ended {}</span>", when(now, at))),
                        (None, None) => Html("<span class=\"dim\">not started</span>".to_owned()),
                    },
                    took: seconds(took_of(run, now)),
                    says: match not_run(member, members) {
                        Some(why) => why,
                        None => run
                            .error_line
                            .clone()
                            .or_else(|| run.reason.map(|reason| words(reason.as_str())))
                            .unwrap_or_default(),
                    },
                })
                .collect(),
            verbs: match frame.can_change {
                true => verbs
                    .into_iter()
                    .filter(|(verb, ..)| may(crate::admin::operations::allowed_from(verb)))
                    .collect(),
                false => Vec::new(),
            },
            id,
            frame: frame.clone(),
        })
    })
    .await
}

/// What is on top of a list of states.
fn weight(state: &str) -> usize {
    [
        "completed",
        "running",
        "ready",
        "retrying",
        "scheduled",
        "waiting",
        "paused",
        "cancelled",
        "failed",
    ]
    .iter()
    .rev()
    .position(|known| *known == state)
    .unwrap_or_default()
}

fn took_of(run: &Run, now: SystemTime) -> Option<f64> {
    between(run.started_at?, run.finished_at.unwrap_or(now))
}

/// The second line of a job in the graph.
fn about(member: &WorkflowJob, members: &[WorkflowJob], run: &Run, now: SystemTime) -> String {
    if let Some(why) = not_run(member, members) {
        return why;
    }
    let took = seconds(took_of(run, now));
    match member.state {
        Some(JobState::Completed) => format!("completed in {took}"),
        Some(JobState::Running) => format!("running for {took}"),
        Some(JobState::Failed) if run.started_at.is_some() => format!("failed after {took}"),
        Some(JobState::Waiting) => match member.after.len() {
            0 => "waiting for an answer".into(),
            1 => "waiting for 1 job".into(),
            jobs => format!("waiting for {jobs} jobs"),
        },
        other => state::or_gone(other).to_owned(),
    }
}

/// Why a job was not run at all: one that it needs did not complete.
fn not_run(member: &WorkflowJob, members: &[WorkflowJob]) -> Option<String> {
    if member.reason != Some(Reason::DependencyFailed) {
        return None;
    }
    let needed = members
        .iter()
        .filter(|one| member.after.contains(&one.name))
        .find(|one| matches!(one.state, Some(JobState::Failed | JobState::Cancelled)));
    Some(match needed {
        Some(one) => format!("not run: {} {}", one.name, state::or_gone(one.state)),
        None => "not run: a job it needs failed".to_owned(),
    })
}

fn edges(members: &[WorkflowJob], tolerant: &BTreeSet<(i64, i64)>) -> Vec<Edge> {
    let places: BTreeMap<&str, usize> = members
        .iter()
        .enumerate()
        .map(|(place, member)| (member.name.as_str(), place))
        .collect();
    let mut edges = Vec::new();
    for (to, member) in members.iter().enumerate() {
        for from in member
            .after
            .iter()
            .filter_map(|name| places.get(name.as_str()).copied())
        {
            edges.push(Edge {
                from,
                to,
                is_tolerant: tolerant.contains(&(members[from].id, member.id)),
            });
        }
    }
    edges
}

/// The jobs that failed by themselves, with all that fails or waits because of them.
fn failures(frame: &Frame, members: &[WorkflowJob], runs: &[Run], edges: &[Edge]) -> Vec<Failure> {
    let has_failed = |member: &WorkflowJob| matches!(member.state, Some(JobState::Failed | JobState::Cancelled));
    let by_itself = |member: &WorkflowJob| member.reason != Some(Reason::DependencyFailed);
    (members.iter().zip(runs).enumerate())
        .filter(|(_, (member, _))| has_failed(member) && by_itself(member))
        .take(20)
        .map(|(place, (member, run))| {
            let mut reached = vec![place];
            let mut blocks = Vec::new();
            while let Some(from) = reached.pop() {
                for edge in edges.iter().filter(|edge| edge.from == from && !edge.is_tolerant) {
                    let is_blocked = members[edge.to].state != Some(JobState::Completed);
                    if is_blocked && !blocks.contains(&members[edge.to].name) {
                        blocks.push(members[edge.to].name.clone());
                        reached.push(edge.to);
                    }
                }
            }
            Failure {
                name: member.name.clone(),
                link: job_link(frame, member.id),
                error: (run.error_line.clone())
                    .or_else(|| run.reason.map(|reason| words(reason.as_str())))
                    .unwrap_or_else(|| state::or_gone(member.state).to_owned()),
                blocks,
            }
        })
        .collect()
}
