//! `bugle bench enqueue`: throughput of enqueueing.

use std::io::Cursor;

use anyhow::{Result, ensure};
use futures_util::SinkExt;
use tokio_postgres::Client;

use super::clients::{Commits, INSERT, commit_for};
use super::clock::{now, seconds_since};
use super::server::{Database, settle};
use super::statistics::median;
use super::workers::Workers;
use super::{Bench, Line};

/// Throughput of enqueueing
///
/// Clients commit one-row INSERTs, each on its own connection. Commits per second are measured in turns: "with worker"
/// has one worker process that runs the jobs as they arrive; "no worker" has none; "no triggers" inserts into the same
/// table, indexes and checks without triggers, and is the floor; "NOTIFY per job" is like "with worker", with a trigger
/// that notifies for every job.
///
/// Bulk: one INSERT … SELECT and one COPY of all rows, into bugle.jobs and into the table without triggers (the floor),
/// in turns. Timed from the first byte to the commit.
///
/// Every commit is accounted for by a row, and by an execution if there is a worker.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// Number of clients; a list for several measurements [default: 4,16,32]
    #[arg(long, value_delimiter = ',', value_name = "N")]
    pub clients: Option<Vec<usize>>,
    /// Duration of each turn [default: 2]
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<f64>,
    /// Number of rounds; the median is reported [default: 3]
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
    /// Number of rows for the bulk measurements [default: 100000]
    #[arg(long, value_name = "N")]
    pub bulk: Option<u64>,
    /// Slots of the worker [default: 500]
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,
}

/// The same table without its triggers. Built from the catalog, so that it follows changes of the schema.
const WITHOUT_TRIGGERS: &str = "
    create schema plain;
    create table plain.jobs (like bugle.jobs including all) partition by list (state);
    do $$
    declare
      v_leaf record;
    begin
      for v_leaf in
        select c.relname, c.reloptions, pg_get_expr(c.relpartbound, c.oid) as bound
        from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'bugle.jobs'::regclass
      loop
        execute format('create table plain.%I (like bugle.%I including all)', v_leaf.relname, v_leaf.relname);
        if v_leaf.reloptions is not null then
          execute format('alter table plain.%I set (%s)', v_leaf.relname, array_to_string(v_leaf.reloptions, ', '));
        end if;
        execute format('alter table plain.jobs attach partition plain.%I %s', v_leaf.relname, v_leaf.bound);
      end loop;
    end
    $$";

/// A trigger that notifies for every job, as simpler job runners do.
const ALWAYS_RINGS: &str = "
    drop trigger if exists ring on bugle.jobs_live;
    create function public.always_ring() returns trigger language plpgsql as $$
    begin
      perform pg_notify(bugle.bell_channel(new.queue), new.queue);
      return null;
    end $$;
    create trigger always_ring after insert on bugle.jobs_live for each row execute function public.always_ring()";

/// # Errors
/// If a measurement fails or a job is unaccounted for.
pub async fn run(bench: &mut Bench, options: Options) -> Result<()> {
    let counts = bench.choose(options.clients, vec![4, 16, 32], vec![4]);
    let seconds = bench.choose(options.seconds, 2.0, 0.2);
    let rounds = bench.choose(options.rounds, 3, 1);
    let slots = options.slots.unwrap_or(500);
    let bulk = bench.choose(options.bulk, 100_000, 3_000);

    let normal = bench.server.database().await?;
    normal.connect().await?.batch_execute(WITHOUT_TRIGGERS).await?;
    let ringing = bench.server.database().await?;
    ringing.connect().await?.batch_execute(ALWAYS_RINGS).await?;
    for clients in counts {
        let mut turns = Turns::default();
        for round in 1..=rounds {
            bench.progress(&format!("enqueue: {clients} clients, round {round} of {rounds}"));
            turns
                .with_worker
                .push(beside_a_worker(&normal, clients, seconds, slots).await?);
            turns.no_worker.push(into(&normal, "bugle", clients, seconds).await?);
            turns.no_triggers.push(into(&normal, "plain", clients, seconds).await?);
            turns
                .notify_per_job
                .push(beside_a_worker(&ringing, clients, seconds, slots).await?);
        }
        turns.report(bench, clients);
    }
    bulk_forms(bench, &normal, bulk, rounds.max(bench.choose(None, 5, 1))).await?;
    bench.server.remove(normal).await?;
    bench.server.remove(ringing).await
}

#[derive(Default)]
struct Turns {
    with_worker: Vec<Commits>,
    no_worker: Vec<Commits>,
    no_triggers: Vec<Commits>,
    notify_per_job: Vec<Commits>,
}

impl Turns {
    fn report(&self, bench: &mut Bench, clients: usize) {
        let ratio =
            |to: &[Commits], of: &[Commits]| median(of.iter().zip(to).map(|(a, b)| a.per_s() / b.per_s()).collect());
        for (what, turns) in [
            ("with worker", &self.with_worker),
            ("no worker", &self.no_worker),
            ("no triggers", &self.no_triggers),
            ("NOTIFY per job", &self.notify_per_job),
        ] {
            let commits = turns.iter().map(|turn| turn.commits).sum();
            let mut line = Line::new("enqueue", format!("{clients} clients, {what}"), commits)
                .rate(turns.iter().map(|turn| turn.seconds).sum())
                .ratio(ratio(&self.no_triggers, turns));
            line.per_s = Some(median(turns.iter().map(Commits::per_s).collect()).round());
            if what == "with worker" {
                line = line.note("ratio_to_notify_per_job", ratio(&self.notify_per_job, turns));
            }
            bench.add(line);
        }
    }
}

/// One worker, idle at first, runs the jobs that the clients commit.
async fn beside_a_worker(database: &Database, clients: usize, seconds: f64, slots: u32) -> Result<Commits> {
    let client = database.connect().await?;
    client.batch_execute("truncate bugle.jobs").await?;
    settle(&client).await?;
    let mut workers = Workers::start_idle(database, 1, slots).await?;
    let commits = commit_for(database, clients, seconds, INSERT).await?;
    workers.drained(&client, commits.commits).await?;
    let tally = workers.stop().await?;
    ensure!(
        tally.total() == commits.commits,
        "{} executions of {} jobs",
        tally.total(),
        commits.commits
    );
    super::drain::account_for(&client, commits.commits).await?;
    Ok(commits)
}

/// There are only the clients.
async fn into(database: &Database, schema: &str, clients: usize, seconds: f64) -> Result<Commits> {
    let client = database.connect().await?;
    client.batch_execute("truncate bugle.jobs, plain.jobs").await?;
    settle(&client).await?;
    let commits = commit_for(
        database,
        clients,
        seconds,
        &INSERT.replace("bugle.", &format!("{schema}.")),
    )
    .await?;
    let rows: i64 = client
        .query_one(&format!("select count(*) from {schema}.jobs"), &[])
        .await?
        .get(0);
    ensure!(
        rows as u64 == commits.commits,
        "{rows} rows of {} commits",
        commits.commits
    );
    Ok(commits)
}

async fn bulk_forms(bench: &mut Bench, database: &Database, rows: u64, rounds: usize) -> Result<()> {
    let client = database.connect().await?;
    let lines: Vec<String> = (0..rows)
        .map(|i| format!("noop\t{{\"k\": \"noop\", \"i\": {i}}}\n"))
        .collect();
    let data: Vec<String> = lines.chunks(1000).map(<[String]>::concat).collect();
    for form in ["INSERT … SELECT", "COPY"] {
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..rounds {
            bench.progress(&format!("enqueue: bulk {form}, round {} of {rounds}", round + 1));
            for which in [round % 2, 1 - round % 2] {
                let schema = ["bugle", "plain"][which];
                client.batch_execute("truncate bugle.jobs, plain.jobs").await?;
                settle(&client).await?;
                let data = data.clone();
                let start = now();
                match form {
                    "COPY" => copy(&client, schema, data, rows).await?,
                    _ => insert_select(&client, schema, rows).await?,
                };
                times[which].push(seconds_since(start));
            }
        }
        let [with, without] = times;
        let ratio = median(
            without
                .iter()
                .zip(&with)
                .map(|(without, with)| without / with)
                .collect(),
        );
        bench.add(
            Line::new("enqueue", format!("bulk {form}"), rows)
                .rate(median(with))
                .ratio(ratio),
        );
        bench.add(Line::new("enqueue", format!("bulk {form}, no triggers"), rows).rate(median(without)));
    }
    Ok(())
}

async fn insert_select(client: &Client, schema: &str, rows: u64) -> Result<()> {
    let insert = format!(
        "insert into {schema}.jobs (command, payload)
         select 'noop', jsonb_build_object('k', 'noop', 'i', i) from generate_series(1, $1::bigint) i"
    );
    let stored = client.execute(&insert, &[&(rows as i64)]).await?;
    ensure!(stored == rows, "{stored} of {rows} rows");
    Ok(())
}

async fn copy(client: &Client, schema: &str, data: Vec<String>, rows: u64) -> Result<()> {
    let sink = client
        .copy_in(&format!("copy {schema}.jobs (command, payload) from stdin"))
        .await?;
    let mut sink = std::pin::pin!(sink);
    for part in data {
        sink.feed(Cursor::new(part)).await?;
    }
    let stored = sink.finish().await?;
    ensure!(stored == rows, "{stored} of {rows} rows");
    Ok(())
}
