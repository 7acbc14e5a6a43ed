//! `bugle bench backlog`: the duration of a claim and an enqueue by the size of the backlog.

use std::sync::Arc;

use anyhow::{Result, ensure};
use tokio_postgres::{Client, Statement};

use super::clients::INSERT;
use super::clock::now;
use super::server::{Database, fill};
use super::statistics::Percentiles;
use super::{Bench, Line};
use crate::db::calls::{self, FinishedJob, QueueRequest, Registration};
use crate::db::connect::Session;
use crate::worker::Identity;

/// Duration of a claim and an enqueue by the size of the backlog
///
/// There is one database for each size. In turns, each runs one call of bugle.claim for 100 jobs from the front of the
/// queue and ten one-row INSERTs. The claimed jobs are then completed and replaced, which is not timed. Commits do not
/// wait for the disk (synchronous_commit = off). Durations are from sending a call to its response.
///
/// The floor of each size is the smallest size.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// Number of waiting jobs; a list for several measurements [default: 1000,100000,1000000]
    #[arg(long, value_delimiter = ',', value_name = "N")]
    pub sizes: Option<Vec<u64>>,
    /// Also measure ten million jobs; loading them takes minutes
    #[arg(long)]
    pub full: bool,
    /// Number of claims per size [default: 100]
    #[arg(long, value_name = "N")]
    pub claims: Option<u64>,
}

const BATCH: i32 = 100;

/// # Errors
/// If a measurement fails, or a claim returns fewer jobs than requested.
pub async fn run(bench: &mut Bench, options: Options) -> Result<()> {
    let mut sizes = bench.choose(options.sizes, vec![1_000, 100_000, 1_000_000], vec![500, 5_000]);
    if options.full {
        sizes.push(10_000_000);
    }
    let claims = bench.choose(options.claims, 100, 5);
    let mut databases = Vec::new();
    let mut queues = Vec::new();
    for size in sizes {
        bench.progress(&format!("backlog: loading {size} jobs"));
        let database = bench.server.database().await?;
        queues.push(Queue::fill(&database, size).await?);
        databases.push(database);
    }
    for turn in 1..=claims {
        bench.progress(&format!("backlog: turn {turn} of {claims}"));
        for queue in &mut queues {
            queue.turn().await?;
        }
    }
    let mut smallest = None;
    for queue in &queues {
        queue.account_for().await?;
        let claims = Percentiles::of_nanoseconds(queue.claims.iter().copied());
        let inserts = Percentiles::of_nanoseconds(queue.inserts.iter().copied());
        let (Some(claims), Some(inserts)) = (claims, inserts) else {
            continue;
        };
        let (claim_floor, insert_floor) = *smallest.get_or_insert((claims.p50, inserts.p50));
        let what = |call: &str| format!("{call}, {} waiting", queue.size);
        let line = Line::new("backlog", what("claim of 100"), queue.claims.len() as u64);
        bench.add(line.times(Some(claims)).ratio(claims.p50 / claim_floor));
        let line = Line::new("backlog", what("enqueue"), queue.inserts.len() as u64);
        bench.add(line.times(Some(inserts)).ratio(inserts.p50 / insert_floor));
    }
    drop(queues);
    for database in databases {
        bench.server.remove(database).await?;
    }
    Ok(())
}

/// A backlog, and a worker that claims from its front.
struct Queue {
    size: u64,
    client: Client,
    insert: Statement,
    session: Arc<Session>,
    me: Identity,
    claims: Vec<i64>,
    inserts: Vec<i64>,
    claimed: u64,
}

impl Queue {
    async fn fill(database: &Database, size: u64) -> Result<Queue> {
        let client = database.connect().await?;
        fill(&client, size).await?;
        client.batch_execute("vacuum bugle.jobs_live").await?;
        client.batch_execute("set synchronous_commit = off").await?;
        let insert = client.prepare(INSERT).await?;
        let (session, _) = Session::open(&database.config, "bugle bench").await?;
        session.client().batch_execute("set synchronous_commit = off").await?;
        let registration = Registration {
            name: "bench",
            host: "bench",
            queues: &["default".to_string()],
            slots: &[BATCH],
            commands: &["noop".to_string()],
        };
        let me = calls::register(&session, &registration).await?;
        Ok(Queue {
            size,
            client,
            insert,
            session,
            me,
            claims: Vec::new(),
            inserts: Vec::new(),
            claimed: 0,
        })
    }

    async fn turn(&mut self) -> Result<()> {
        let request = QueueRequest {
            queue: "default".into(),
            slots: BATCH,
            after: None,
            mode: "awake",
        };
        let start = now();
        let claimed = calls::claim(&self.session, self.me, &[request]).await?.read()?;
        self.claims.push(now() - start);
        ensure!(
            claimed.len() == BATCH as usize,
            "a claim returned {} jobs",
            claimed.len()
        );
        self.claimed += claimed.len() as u64;
        let finished: Vec<FinishedJob> = claimed
            .iter()
            .map(|claimed| FinishedJob {
                id: claimed.held().id,
                claim: claimed.held().claim,
                result: None,
            })
            .collect();
        calls::complete(&self.session, self.me, &finished).await?;
        for _ in 0..10 {
            let start = now();
            self.client.execute(&self.insert, &[]).await?;
            self.inserts.push(now() - start);
        }
        let again = "insert into bugle.jobs (command) select 'noop' from generate_series(1, 90)";
        self.client.batch_execute(again).await?;
        Ok(())
    }

    async fn account_for(&self) -> Result<()> {
        let count = "select count(*) filter (where state = 'ready'), count(*) filter (where state = 'completed') from \
            bugle.jobs";
        let row = self.client.query_one(count, &[]).await?;
        let (ready, completed): (i64, i64) = (row.get(0), row.get(1));
        ensure!(
            (ready as u64, completed as u64) == (self.size, self.claimed),
            "{ready} jobs are ready and {completed} are completed; expected {} and {}",
            self.size,
            self.claimed
        );
        Ok(())
    }
}
