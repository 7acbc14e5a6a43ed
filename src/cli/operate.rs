//! The operator's verbs on the command line: `bugle jobs cancel …`, `bugle queues pause …`, `bugle workers drain …`.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::value::RawValue;
use tokio_postgres::Client;

use super::connect::ask;
use super::filter::Filters;
use super::output;
use crate::admin::operate::{self, FleetVerb, Verb};
use crate::admin::read;
use crate::db::connect::Target;
use crate::job::JobId;
use crate::state::{State, StepState, or_gone};

/// Which jobs: by their ids, or by a filter.
#[derive(Debug, Args)]
pub struct Jobs {
    /// Their ids
    ids: Vec<JobId>,
    #[command(flatten)]
    filters: Filters,
    /// With a filter: the most jobs, the newest first
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: u32,
    /// Say which jobs it would be, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask before changing many
    #[arg(long)]
    yes: bool,
    /// Why, for the record
    #[arg(long)]
    note: Option<String>,
}

impl Jobs {
    async fn chosen(&self, client: &Client) -> Result<Vec<JobId>> {
        match (self.ids.is_empty(), self.filters.is_empty()) {
            (false, true) => return Ok(self.ids.clone()),
            (false, false) => bail!("ids or filters, not both\nhint: ids alone say which jobs"),
            (true, true) => bail!(
                "which jobs?\nhint: give their ids, or at least one of --queue, --command, --state, --since, \
                 --error-like"
            ),
            (true, false) => {}
        }
        let jobs = ask(client, read::jobs(client, &self.filters.filter(), self.limit.into())).await?;
        Ok(jobs.iter().map(|job| job.id).collect())
    }

    fn by_filter(&self) -> bool {
        self.ids.is_empty()
    }
}

/// Apply a verb and say what became of each job. Exit code 1 if one that was named by its id was refused.
pub async fn jobs(client: &Client, verb: Verb, jobs: Jobs, json: bool) -> Result<ExitCode> {
    let ids = jobs.chosen(client).await?;
    if jobs.dry_run {
        println!("would {} {} jobs: {}", verb.name(), ids.len(), list(&ids));
        return Ok(ExitCode::SUCCESS);
    }
    if jobs.by_filter() && !jobs.yes && !confirmed(&format!("{} {} jobs?", verb.name(), ids.len()))? {
        bail!("nothing was changed\nhint: --yes answers yes");
    }
    let operated = ask(client, operate::apply(client, &verb, &ids, jobs.note.as_deref())).await?;
    let refused = operated.iter().filter(|job| !job.done).count();
    if json {
        output::print_json(&operated)?;
    } else {
        for job in operated.iter().filter(|job| !jobs.by_filter() || job.done) {
            match &job.why {
                None => println!("{} {}", job.id, job.state.map_or("removed", State::as_str)),
                Some(why) => eprintln!("{}", output::one_line(why)),
            }
        }
    }
    Ok(match refused > 0 && !jobs.by_filter() {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

/// Only a person at a terminal can be asked; a script must say --yes.
fn confirmed(question: &str) -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        return Ok(false);
    }
    eprint!("{question} [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
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
    output: Option<&str>,
    note: Option<&str>,
) -> Result<ExitCode> {
    let output: Option<Box<RawValue>> = output.map(serde_json::from_str).transpose().context("--output")?;
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
            let (message, fix) = (output::one_line(&reason.message), output::one_line(&reason.fix));
            output::print(&format!("{message}\n  {fix}\n"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `bugle jobs wait ID`: print the result of a job as soon as it has ended.
pub async fn wait(target: &Target, id: JobId) -> Result<ExitCode> {
    let ended = crate::Bugle::at(target)?.ended(id).await?;
    if ended.state == Some(State::Completed) {
        output::print_json(&ended.result)?;
        return Ok(ExitCode::SUCCESS);
    }
    let why = [ended.reason, ended.error]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(": ");
    eprintln!("job {id} is {} {}", or_gone(ended.state), output::harmless(&why));
    Ok(ExitCode::FAILURE)
}

/// Give an order about a queue or a worker.
pub async fn order(client: &Client, verb: FleetVerb, whom: &str, note: Option<&str>) -> Result<ExitCode> {
    ask(client, operate::order(client, verb, whom, note)).await?;
    Ok(ExitCode::SUCCESS)
}
