//! `bugle bench operate`: operators' verbs on many jobs that match a filter.

use std::time::Instant;

use anyhow::{Result, ensure};
use tokio_postgres::Client;

use super::server::{fill, settle};
use super::statistics::median;
use super::{Bar, Bench, Line};

/// Operators' verbs on many jobs that match a filter
///
/// One call of each verb for all jobs at once: pause, resume, set_priority, reschedule, set_state, cancel, restart,
/// remove. Each call locks the jobs, changes them and records each change.
///
/// The floor, on the same number of rows in the same round: one UPDATE that locks the rows of a bare table of two
/// columns, in order, and changes one of them, and one INSERT into a second table.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// Number of jobs [default: 200000]
    #[arg(long, value_name = "N")]
    pub jobs: Option<u64>,
    /// Number of rounds; the median is reported [default: 3]
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
}

/// In this order, each finds the jobs in a state from which it is allowed.
const CALLS: [(&str, &str); 8] = [
    ("pause", ""),
    ("resume", ""),
    ("set_priority", "7, "),
    ("reschedule", "now() + interval '1 hour', "),
    ("set_state", "'ready', "),
    ("cancel", ""),
    ("restart", ""),
    ("remove", ""),
];

/// Jobs per second.
const BAR: Bar = Bar::AtLeast(50_000.0);

const FLOOR: &str = "with changed as (
    update bare set state = state || '.'
    where id = any (array(select id from bare order by id for update))
    returning id)
  insert into bare_changes (id) select id from changed";

/// # Errors
/// If a measurement fails, or a verb does not change every job.
pub async fn run(bench: &mut Bench, options: Options) -> Result<()> {
    let jobs = bench.choose(options.jobs, 200_000, 2_000);
    let rounds = bench.choose(options.rounds, 3, 1);
    let mut times = vec![Vec::new(); CALLS.len()];
    let mut floors = Vec::new();
    for round in 1..=rounds {
        let database = bench.server.database().await?;
        let client = database.connect().await?;
        bench.progress(&format!("operate: round {round} of {rounds}: floor"));
        floors.push(floor(&client, jobs).await?);
        fill(&client, jobs).await?;
        for ((verb, argument), times) in CALLS.iter().zip(&mut times) {
            bench.progress(&format!("operate: round {round} of {rounds}: {verb}"));
            let call = format!("select bugle.{verb}_where({argument}p_queue => 'default', p_limit => null)");
            let start = Instant::now();
            let changed: i64 = client.query_one(&call, &[]).await?.get(0);
            times.push(start.elapsed().as_secs_f64());
            ensure!(changed == jobs as i64, "{verb} changed {changed} of {jobs} jobs");
        }
        bench.server.remove(database).await?;
    }
    for ((verb, _), times) in CALLS.iter().zip(times) {
        let ratio = median(floors.iter().zip(&times).map(|(floor, time)| floor / time).collect());
        let rates: Vec<f64> = times.iter().map(|time| (jobs as f64 / time).round()).collect();
        let rate = median(rates.clone());
        let line = Line::new("operate", *verb, jobs)
            .rate(median(times))
            .ratio(ratio)
            .bar(rate, BAR);
        bench.add(line.note("rounds", rates));
    }
    let line = Line::new("operate", "floor: lock, update, record", jobs);
    bench.add(line.rate(median(floors)));
    Ok(())
}

async fn floor(client: &Client, jobs: u64) -> Result<f64> {
    let fill = format!(
        "create table bare (id bigint primary key, state text);
         create table bare_changes (id bigint primary key);
         insert into bare select i, 'ready' from generate_series(1, {jobs}) i"
    );
    client.batch_execute(&fill).await?;
    settle(client).await?;
    let start = Instant::now();
    client.batch_execute(FLOOR).await?;
    Ok(start.elapsed().as_secs_f64())
}
