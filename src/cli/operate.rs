//! The operator's verbs on the command line: `bugle jobs cancel …`, `bugle queues pause …`, `bugle workers drain …`.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio_postgres::Client;

use super::connect::{Connect, ask, confirmed};
use super::filter::Filters;
use super::hint::in_shell;
use super::output;
use crate::admin::operate::{self, FleetVerb, Verb};
use crate::admin::operations::allowed_from;
use crate::admin::read;
use crate::db::connect::Target;
use crate::job::JobId;
use crate::state::{State, StepState, or_gone};

/// Which jobs: by their ids, or by a filter.
#[derive(Debug, Args)]
pub struct Jobs {
    /// Job ids
    ids: Vec<JobId>,
    /// With ids: include the rest of their workflows and all children; jobs in other states are skipped
    #[arg(long, requires = "ids")]
    family: bool,
    #[command(flatten)]
    filters: Filters,
    /// With a filter: at most N jobs, the oldest first [default: all that match]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Show which jobs would change, without changing them
    #[arg(long)]
    dry_run: bool,
    /// Reason, recorded in bugle.changes
    #[arg(long)]
    note: Option<String>,
}

/// How many jobs one transaction changes. Locks are held for as long as one takes.
const STEP: usize = 5000;

/// Apply a verb to the jobs with these ids, or to all that match the filters.
pub async fn jobs(connect: &Connect, client: &Client, verb: Verb, jobs: Jobs, json: bool) -> Result<ExitCode> {
    match (jobs.ids.is_empty(), jobs.filters.is_empty()) {
        (false, true) => by_ids(connect, client, &verb, &jobs, json).await,
        (true, false) => by_filter(connect, client, &verb, &jobs, json).await,
        (false, false) => bail!("give ids or filters, not both\nhint: ids alone select the jobs"),
        (true, true) => bail!(
            "no jobs are selected\nhint: give their ids, or at least one of --queue, --command, --state, --since, \
             --ended-since, --older-than, --error-like, --code, --fingerprint, --reason, --worker"
        ),
    }
}

/// Says what became of each job. Exit code 1 if one was refused.
async fn by_ids(connect: &Connect, client: &Client, verb: &Verb, jobs: &Jobs, json: bool) -> Result<ExitCode> {
    let mut all = jobs.ids.clone();
    if jobs.family {
        for id in &jobs.ids {
            all.extend(ask(client, operate::family(client, *id)).await?);
        }
        all.sort_unstable();
        all.dedup();
    }
    if jobs.dry_run {
        let (name, count) = (verb.name(), all.len());
        let summary = Summary {
            verb: name,
            matched: count,
            dry_run: true,
            ..Summary::default()
        };
        return summary.tell(json, &format!("would {name} {}: {}", counted(count), list(&all)));
    }
    connect.confirm(&format!("{} {}: {}", verb.name(), counted(all.len()), list(&all)))?;
    let mut operated = Vec::new();
    if jobs.family {
        // as one: a part of a workflow must not start in between
        operated = ask(client, operate::apply(client, verb, &all, jobs.note.as_deref())).await?;
        if operated.iter().any(|job| job.done) {
            operated.retain(|job| job.done);
        }
    } else {
        for ids in all.chunks(STEP) {
            operated.extend(ask(client, operate::apply(client, verb, ids, jobs.note.as_deref())).await?);
        }
    }
    if json {
        output::print_json(&operated)?;
    } else {
        for job in &operated {
            match &job.reason {
                None => output::print(&format!("{} {}\n", job.id, job.state.map_or("removed", State::as_str)))?,
                Some(reason) => eprintln!("{}", output::one_line(reason)),
            }
        }
    }
    Ok(match operated.iter().all(|job| job.done) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// What became of the jobs that matched.
#[derive(Debug, Default, Serialize)]
struct Summary {
    verb: &'static str,
    /// How many matched at the beginning.
    matched: usize,
    done: usize,
    refused: usize,
    /// How many match and were left, because of --limit.
    left: usize,
    /// Why the first that was refused was.
    reason: Option<String>,
    /// Whether nothing was to be changed.
    dry_run: bool,
}

impl Summary {
    /// Print it as JSON, or say it in a line. Exit code 1 if a job was refused, as by ids.
    fn tell(&self, json: bool, line: &str) -> Result<ExitCode> {
        match json {
            true => output::print_json(self)?,
            false => output::print(&format!("{line}\n"))?,
        }
        Ok(match self.refused {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        })
    }
}

/// The oldest first, in steps, each committed before the next. Jobs that begin to match meanwhile are left alone.
async fn by_filter(connect: &Connect, client: &Client, verb: &Verb, jobs: &Jobs, json: bool) -> Result<ExitCode> {
    let filter = jobs.filters.filter();
    let matching = ask(client, operate::count_matching(client, verb, &filter)).await?;
    let matched: usize = matching.iter().map(|of| usize::try_from(of.jobs).unwrap_or(0)).sum();
    let most = jobs.limit.map_or(matched, |limit| matched.min(limit as usize));
    let mut summary = Summary {
        verb: verb.name(),
        matched,
        left: matched - most,
        dry_run: jobs.dry_run,
        ..Summary::default()
    };
    if most == 0 {
        let allowed: Vec<&str> = allowed_from(verb.name()).iter().map(|state| state.as_str()).collect();
        let (name, allowed) = (verb.name(), allowed.join(", "));
        return summary.tell(json, &format!("no job matches; {name} is allowed from: {allowed}"));
    }
    let states: Vec<String> = matching.iter().map(|of| format!("{} {}", of.jobs, of.state)).collect();
    let whom = match summary.left {
        0 => format!("{} ({})", counted(most), states.join(", ")),
        left => format!(
            "the oldest {most} of {} ({}), leaving {left}",
            counted(matched),
            states.join(", ")
        ),
    };
    if jobs.dry_run {
        let first = i32::try_from(most.min(20)).unwrap_or(20);
        let mut ids = ask(client, operate::jobs_matching(client, verb, &filter, 0, first)).await?;
        let more = if most > ids.len() { " …" } else { "" };
        ids.truncate(most);
        return summary.tell(json, &format!("would {} {whom}: {}{more}", verb.name(), list(&ids)));
    }
    let place = connect.label()?.map(|context| format!(" in context {context}"));
    if !connect.yes() && !confirmed(&format!("{} {whom}{}?", verb.name(), place.unwrap_or_default()))? {
        bail!(
            "nothing was changed: this would {} {whom}\nhint: add --yes to skip the confirmation",
            verb.name()
        );
    }
    let last = matching.iter().map(|of| of.last_id).max().unwrap_or_default();
    let (mut after, mut taken) = (0, 0);
    let is_watched = std::io::stderr().is_terminal();
    while taken < most {
        let step = i32::try_from(STEP.min(most - taken)).unwrap_or(1);
        let mut ids = ask(client, operate::jobs_matching(client, verb, &filter, after, step)).await?;
        ids.retain(|id| *id <= last);
        let Some(newest) = ids.last() else { break };
        after = *newest;
        taken += ids.len();
        let operated = ask(client, operate::apply(client, verb, &ids, jobs.note.as_deref())).await?;
        summary.done += operated.iter().filter(|job| job.done).count();
        summary.refused += operated.iter().filter(|job| !job.done).count();
        let reason = operated.into_iter().find_map(|job| job.reason);
        summary.reason = summary.reason.or(reason);
        if is_watched && most > STEP {
            eprint!("\r{} {} of {most}", verb.past(), summary.done);
        }
    }
    if is_watched && most > STEP {
        eprint!("\r\x1b[K");
    }
    let mut told = format!("{} {}", verb.past(), counted(summary.done));
    if let Some(reason) = &summary.reason {
        told += &format!("; {} refused ({})", summary.refused, output::one_line(reason));
    }
    if summary.left > 0 {
        told += &format!("; {} left", summary.left);
    }
    summary.tell(json, &told)
}

fn counted(jobs: usize) -> String {
    match jobs {
        1 => "1 job".into(),
        jobs => format!("{jobs} jobs"),
    }
}

fn list(ids: &[JobId]) -> String {
    let mut text = ids.iter().take(20).map(JobId::to_string).collect::<Vec<_>>().join(" ");
    if ids.len() > 20 {
        text.push_str(" …");
    }
    text
}

/// `bugle jobs set-step ID STEP STATE`.
pub async fn set_step(
    client: &Client,
    id: JobId,
    step: &str,
    state: StepState,
    output_json: Option<&str>,
    note: Option<&str>,
) -> Result<ExitCode> {
    let output: Option<Box<RawValue>> = output_json
        .map(|text| output::read_json("--output", text))
        .transpose()?;
    ask(
        client,
        operate::set_step(client, id, step, state, output.as_deref(), note),
    )
    .await?;
    println!("{id} step {step} {state}");
    Ok(ExitCode::SUCCESS)
}

/// `bugle jobs explain ID`.
pub async fn explain(client: &Client, id: JobId, json: bool) -> Result<ExitCode> {
    let reasons = ask(client, operate::explain(client, id)).await?;
    if json {
        output::print_json(&reasons)?;
    } else {
        for reason in reasons {
            let (message, fix) = (
                output::one_line(&reason.message),
                output::one_line(&in_shell(&reason.fix)),
            );
            output::print(&format!("{message}\n  {fix}\n"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `bugle jobs wait ID`: print the result of a job as soon as it has ended.
pub async fn wait(target: &Target, client: &Client, id: JobId, at_most: Option<Duration>) -> Result<ExitCode> {
    let jobs = crate::Bugle::at(target)?;
    let ended = match at_most {
        None => jobs.wait(id).await?,
        Some(limit) => match tokio::time::timeout(limit, jobs.wait(id)).await {
            Ok(ended) => ended?,
            Err(_) => {
                let state = ask(client, read::job(client, id)).await?.map(|job| job.summary.state);
                bail!(
                    "job {id} is still {} after {}\nhint: bugle jobs explain {id} says why; bugle jobs cancel {id}",
                    or_gone(state),
                    output::span(limit)
                );
            }
        },
    };
    if ended.state == Some(State::Completed) {
        output::print_json(&ended.result)?;
        return Ok(ExitCode::SUCCESS);
    }
    let reason = ended.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    let error = ended.error.map(|error| format!(": {error}")).unwrap_or_default();
    let state = or_gone(ended.state);
    eprintln!("job {id} is {state}{reason}{}", output::harmless(&error));
    Ok(ExitCode::FAILURE)
}

/// Give an order about a queue or a worker.
pub async fn order(client: &Client, verb: FleetVerb, whom: &str, note: Option<&str>) -> Result<ExitCode> {
    ask(client, operate::order(client, verb, whom, note)).await?;
    Ok(ExitCode::SUCCESS)
}
