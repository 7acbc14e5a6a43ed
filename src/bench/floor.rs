//! `bugle bench floor`: the same operations on a bare two-column table, as a lower bound for any job runner on
//! Postgres.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::sync::{Semaphore, mpsc};
use tokio_postgres::{Client, Statement};

use super::clients::{Commits, commit_for};
use super::clock::{now, seconds_since};
use super::server::{Database, settle};
use super::statistics::{Percentiles, median};
use super::{Bench, Line};
use crate::db::connect::{Notifications, Session};

/// Lower bounds: the same operations on a bare two-column table
///
/// Bulk insert: one INSERT … SELECT of all rows. Claim and delete: on a pair of connections, the first marks the next
/// rows as taken (FOR UPDATE SKIP LOCKED, starting where it left off, synchronous_commit = off) and the second deletes
/// them durably; overlapping or alternating. Timed from the first claim to the last committed delete. One-row commits:
/// each client inserts one row per transaction. NOTIFY round trip: from sending `select pg_notify` on one connection
/// until another has received the notification. NOTIFY and claim: the listener also marks one row as taken. Insert,
/// NOTIFY and claim: the notifying transaction also inserts a row, durably.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// Number of rows for bulk insert, claim and delete [default: 200000]
    #[arg(long, value_name = "N")]
    jobs: Option<u64>,
    /// Number of rows per claim; a list for several measurements [default: 100,500]
    #[arg(long, value_delimiter = ',', value_name = "N")]
    batch: Option<Vec<u32>>,
    /// Number of clients for one-row commits; a list for several measurements [default: 1,16,32]
    #[arg(long, value_delimiter = ',', value_name = "N")]
    clients: Option<Vec<usize>>,
    /// Duration of each rate measurement [default: 3]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Number of rounds; the median is reported [default: 3]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
}

/// # Errors
/// If a measurement fails.
pub async fn run(bench: &mut Bench, options: Options) -> Result<()> {
    let jobs = bench.choose(options.jobs, 200_000, 5_000);
    let seconds = bench.choose(options.seconds, 3.0, 0.2);
    let rounds = bench.choose(options.rounds, 3, 1);
    let database = bench.server.empty_database().await?;
    let client = database.connect().await?;

    bench.progress("floor: bulk insert");
    let mut times = Vec::new();
    for _ in 0..rounds {
        times.push(bulk_insert(&client, jobs).await?);
    }
    bench.add(Line::new("floor", "bulk insert", jobs).rate(median(times)));

    for batch in options.batch.unwrap_or(vec![100, 500]) {
        for order in [Order::SideBySide, Order::OneAfterTheOther] {
            bench.progress(&format!("floor: claim and delete {batch}"));
            let mut times = Vec::new();
            for _ in 0..rounds {
                bulk_insert(&client, jobs).await?;
                times.push(claim_and_delete(&database, jobs, batch, 1, order).await?);
            }
            bench.add(Line::new("floor", order.describe(batch), jobs).rate(median(times)));
        }
    }
    for clients in options.clients.unwrap_or(vec![1, 16, 32]) {
        bench.progress(&format!("floor: one-row commits, {clients} clients"));
        let commits = one_row_commits(&database, clients, seconds).await?;
        let what = format!("one-row commits, {clients} clients");
        bench.add(Line::new("floor", what, commits.commits).rate(commits.seconds));
    }
    bench.progress("floor: NOTIFY");
    let mut bell = BareBell::new(&database).await?;
    let calls = bench.choose(None, 300, 50);
    for (what, ring) in [
        ("NOTIFY round trip", Ring::Notify),
        ("NOTIFY and claim", Ring::NotifyAndClaim),
        ("insert, NOTIFY and claim", Ring::InsertNotifyAndClaim),
    ] {
        let mut times = Vec::new();
        for _ in 0..calls {
            times.push(bell.ring(ring).await?);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bench.add(Line::new("floor", what, calls as u64).times(Percentiles::of_nanoseconds(times)));
    }
    bench.server.remove(database).await
}

/// Fill the bare table. Returns the seconds it took.
pub async fn bulk_insert(client: &Client, jobs: u64) -> Result<f64> {
    client
        .batch_execute(
            "drop table if exists bare;
             create table bare (id bigint primary key, taken smallint not null default 0)",
        )
        .await?;
    let start = now();
    let insert = "insert into bare (id) select i from generate_series(1, $1::bigint) i";
    client.execute(insert, &[&(jobs as i64)]).await?;
    let seconds = seconds_since(start);
    settle(client).await?;
    Ok(seconds)
}

/// Whether claims and deletes of a pair overlap.
#[derive(Debug, Clone, Copy)]
pub enum Order {
    /// A batch is deleted while the next is claimed, as in a worker.
    SideBySide,
    /// The next batch is claimed after the last one is deleted.
    OneAfterTheOther,
}

impl Order {
    pub fn describe(self, batch: u32) -> String {
        match self {
            Order::SideBySide => format!("claim {batch}, delete {batch}"),
            Order::OneAfterTheOther => format!("claim {batch}, then delete {batch}"),
        }
    }
}

/// Empty the bare table with this number of connection pairs. Returns the seconds it took.
pub async fn claim_and_delete(database: &Database, jobs: u64, batch: u32, pairs: usize, order: Order) -> Result<f64> {
    let mut connected = Vec::new();
    for _ in 0..pairs {
        connected.push(Pair::connect(database).await?);
    }
    let start = now();
    let running: Vec<_> = connected
        .into_iter()
        .map(|pair| tokio::spawn(pair.run(batch, order)))
        .collect();
    let mut deleted = 0;
    for pair in running {
        deleted += pair.await??;
    }
    let seconds = seconds_since(start);
    ensure!(deleted == jobs, "{deleted} of {jobs} rows were deleted");
    Ok(seconds)
}

/// The two connections of a worker: one for claims and one for completions.
struct Pair {
    claims: (Client, Statement),
    deletes: (Client, Statement),
}

impl Pair {
    async fn connect(database: &Database) -> Result<Pair> {
        let claims = database.connect().await?;
        claims
            .batch_execute(
                "set synchronous_commit = off; set plan_cache_mode = force_generic_plan; set enable_seqscan = off",
            )
            .await?;
        let claim = claims
            .prepare(
                "update bare set taken = 1
                 where id = any (array(
                   select b.id from bare b
                   where b.taken = 0 and b.id > $1
                   order by b.id limit $2
                   for update skip locked))
                 returning id",
            )
            .await?;
        let deletes = database.connect().await?;
        deletes.batch_execute("set enable_seqscan = off").await?;
        let delete = deletes.prepare("delete from bare where id = any ($1)").await?;
        Ok(Pair {
            claims: (claims, claim),
            deletes: (deletes, delete),
        })
    }

    /// Claim and delete until no rows are left. Returns their number.
    async fn run(self, batch: u32, order: Order) -> Result<u64> {
        let (sender, mut claimed) = mpsc::channel::<Vec<i64>>(4);
        // returned by the deleter before the next claim
        let turns = Arc::new(Semaphore::new(match order {
            Order::SideBySide => Semaphore::MAX_PERMITS / 2,
            Order::OneAfterTheOther => 1,
        }));
        let claimer = tokio::spawn(claim_all(self.claims, batch, turns.clone(), sender));
        let (deletes, delete) = self.deletes;
        let mut deleted = 0;
        while let Some(ids) = claimed.recv().await {
            deleted += deletes.execute(&delete, &[&ids]).await?;
            if matches!(order, Order::OneAfterTheOther) {
                turns.add_permits(1);
            }
        }
        claimer.await??;
        Ok(deleted)
    }
}

async fn claim_all(
    (client, claim): (Client, Statement),
    batch: u32,
    turns: Arc<Semaphore>,
    claimed: mpsc::Sender<Vec<i64>>,
) -> Result<()> {
    let mut after = 0;
    loop {
        turns.acquire().await?.forget();
        let rows = client.query(&claim, &[&after, &i64::from(batch)]).await?;
        let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        match ids.iter().max() {
            Some(last) => after = *last,
            None if after == 0 => return Ok(()),
            None => after = 0,
        }
        if ids.is_empty() {
            turns.add_permits(1);
        } else if claimed.send(ids).await.is_err() {
            return Ok(());
        }
    }
}

/// Clients that insert one row per transaction into a bare table.
pub async fn one_row_commits(database: &Database, clients: usize, seconds: f64) -> Result<Commits> {
    let client = database.connect().await?;
    client
        .batch_execute(
            "drop table if exists bare_inserts;
             create table bare_inserts (id bigserial primary key, payload jsonb not null)",
        )
        .await?;
    settle(&client).await?;
    let insert = r#"insert into bare_inserts (payload) values ('{"k": "noop", "i": 1}')"#;
    commit_for(database, clients, seconds, insert).await
}

/// The operations between the two points in time.
#[derive(Debug, Clone, Copy)]
pub enum Ring {
    Notify,
    NotifyAndClaim,
    InsertNotifyAndClaim,
}

/// Two connections: one notifies, the other listens.
pub struct BareBell {
    sender: Client,
    notify: Statement,
    insert: Statement,
    listener: Arc<Session>,
    heard: Notifications,
    claim: Statement,
}

impl BareBell {
    pub async fn new(database: &Database) -> Result<BareBell> {
        let sender = database.connect().await?;
        sender
            .batch_execute(
                "drop table if exists public.bare_bell;
                 create table public.bare_bell (id bigserial primary key, taken smallint not null default 0);
                 insert into public.bare_bell (taken) select 0 from generate_series(1, 5000);
                 analyze public.bare_bell",
            )
            .await?;
        let notify = sender.prepare("select pg_notify('bare_bell', '')").await?;
        let insert = sender
            .prepare(
                "with i as (insert into public.bare_bell default values returning id) select \
                pg_notify('bare_bell', '') from i",
            )
            .await?;
        let (listener, heard) = Session::open(&database.config, "bugle bench").await?;
        let client = listener.client();
        client
            .batch_execute("listen bare_bell; set synchronous_commit = off; set enable_seqscan = off")
            .await?;
        let claim = client
            .prepare(
                "update public.bare_bell set taken = 1
                 where id = any (array(
                   select b.id from public.bare_bell b where b.taken = 0 order by b.id limit 1 for update skip locked))
                 returning id",
            )
            .await?;
        Ok(BareBell {
            sender,
            notify,
            insert,
            listener,
            heard,
            claim,
        })
    }

    /// Nanoseconds from sending the call on one connection until the other has received it and, if requested, claimed.
    pub async fn ring(&mut self, ring: Ring) -> Result<i64> {
        let call = match ring {
            Ring::Notify | Ring::NotifyAndClaim => &self.notify,
            Ring::InsertNotifyAndClaim => &self.insert,
        };
        let start = now();
        let (sent, heard) = tokio::join!(self.sender.query(call, &[]), async {
            self.heard.recv().await.context("the listener's connection is closed")?;
            if !matches!(ring, Ring::Notify) {
                let claimed = self.listener.client().query(&self.claim, &[]).await?;
                ensure!(claimed.len() == 1, "there was nothing to claim");
            }
            Ok(now())
        });
        sent?;
        Ok(heard? - start)
    }
}
