//! `bugle bench peer`: Bugle as one of several job runners in a harness that drives all of them in the same way.
//!
//! The harness calls the subcommands below and reads lines from stdout. Times are nanoseconds of the machine's
//! monotonic clock, which is the same for all languages. `PGURL` is the URL of the database. With `KEEP_NONE`, `setup`
//! configures that completed jobs are not kept, as in some of the other job runners.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context as _, Result};
use postgres_types::Json;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio_postgres::Client;

use super::clients::sleep_until;
use super::clock::{now, seconds_since};
use crate::cli::log::{self, LogFlags};
use crate::db::connect;
use crate::{Context, Registry, Settings, Shutdown, Worker, schema};

/// A call of the harness
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Word {
    /// Install the schema
    Setup,
    /// Enqueue n jobs in batches
    Bulk { n: u64, rows: u64 },
    /// Enqueue n jobs one by one over several connections
    Single { n: u64, connections: usize },
    /// Enqueue jobs at a fixed rate for a number of seconds
    Rate {
        per_s: f64,
        seconds: f64,
        connections: usize,
    },
    /// Enqueue one job that takes a number of milliseconds
    Sleepjob { ms: u64 },
    /// Run jobs until SIGTERM; report when a number of different jobs were handled
    Worker { concurrency: u32, expect: usize },
}

/// The payload of the harness' jobs.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "k", rename_all = "lowercase")]
enum Payload {
    Noop { i: u64 },
    Lat { t0: i64 },
    Sleep { ms: u64 },
}

const INSERT: &str = "insert into bugle.jobs (command, payload) values ('bench', $1)";

/// # Errors
/// If the call fails.
pub async fn run(word: Word) -> Result<ExitCode> {
    let url = through_socket(&std::env::var("PGURL").context("PGURL is not set")?);
    match word {
        Word::Setup => setup(&url).await?,
        Word::Bulk { n, rows } => bulk(&url, n, rows.max(1)).await?,
        Word::Single { n, connections } => single(&url, n, connections).await?,
        Word::Rate {
            per_s,
            seconds,
            connections,
        } => rate(&url, per_s, seconds, connections).await?,
        Word::Sleepjob { ms } => {
            enqueue(&open(&url).await?, Payload::Sleep { ms }).await?;
            say("{}");
        }
        Word::Worker { concurrency, expect } => return work(url, concurrency, expect).await,
    }
    Ok(ExitCode::SUCCESS)
}

/// In the URL of the harness, a parameter names the socket directory and overrides the host, as in libpq.
fn through_socket(url: &str) -> String {
    match url.split_once("?host=") {
        Some((rest, folder)) => rest.replacen("@localhost", &format!("@{}", folder.replace('/', "%2F")), 1),
        None => url.to_string(),
    }
}

async fn setup(url: &str) -> Result<()> {
    schema::migrate(&connect::parse(url)?).await?;
    if std::env::var_os("KEEP_NONE").is_some() {
        let keep_none = "update bugle.settings set keep_completed = false";
        open(url).await?.batch_execute(keep_none).await?;
    }
    Ok(())
}

async fn bulk(url: &str, n: u64, rows: u64) -> Result<()> {
    let client = open(url).await?;
    let insert = "insert into bugle.jobs (command, payload) select 'bench', p from unnest($1::jsonb[]) p";
    let insert = client.prepare(insert).await?;
    let start = now();
    for first in (0..n).step_by(rows as usize) {
        let batch: Vec<_> = (first..n.min(first + rows))
            .map(|i| Json(Payload::Noop { i }))
            .collect();
        client.execute(&insert, &[&batch]).await?;
    }
    say(&format!("{{\"seconds\": {}}}", seconds_since(start)));
    Ok(())
}

async fn single(url: &str, n: u64, connections: usize) -> Result<()> {
    let next = Arc::new(AtomicU64::new(0));
    let mut clients = Vec::new();
    for _ in 0..connections {
        clients.push(open(url).await?);
    }
    let start = now();
    let mut tasks = JoinSet::new();
    for client in clients {
        let next = next.clone();
        tasks.spawn(async move {
            let insert = client.prepare(INSERT).await?;
            loop {
                let i = next.fetch_add(1, Relaxed);
                if i >= n {
                    return Ok::<_, tokio_postgres::Error>(());
                }
                client.execute(&insert, &[&Json(Payload::Noop { i })]).await?;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    say(&format!("{{\"seconds\": {}}}", seconds_since(start)));
    Ok(())
}

async fn rate(url: &str, per_s: f64, seconds: f64, connections: usize) -> Result<()> {
    let jobs = (per_s * seconds).round() as usize;
    let made = Arc::new(AtomicI64::new(0));
    let mut clients = Vec::new();
    for _ in 0..connections {
        clients.push(open(url).await?);
    }
    let start = now() + 50_000_000;
    let end = start + (seconds * 1e9) as i64;
    let mut tasks = JoinSet::new();
    for (number, client) in clients.into_iter().enumerate() {
        let made = made.clone();
        tasks.spawn(async move {
            let insert = client.prepare(INSERT).await?;
            for job in (number..jobs).step_by(connections) {
                sleep_until(start + (job as f64 * 1e9 / per_s) as i64).await;
                let t0 = now();
                if t0 > end + 1_000_000_000 {
                    break;
                }
                client.execute(&insert, &[&Json(Payload::Lat { t0 })]).await?;
                made.fetch_add(1, Relaxed);
            }
            Ok::<_, tokio_postgres::Error>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let produced = made.load(Relaxed);
    say(&format!(
        "{{\"produced\": {produced}, \"seconds\": {}}}",
        seconds_since(start)
    ));
    Ok(())
}

async fn work(url: String, concurrency: u32, expect: usize) -> Result<ExitCode> {
    let _logging = log::start(&LogFlags {
        level: "warn".into(),
        log_format: None,
    })?;
    let handled = Arc::new(Handled::new(expect));
    let handler = handled.clone();
    let registry = Registry::new().on("bench", move |_: Context, payload: Payload| {
        let handled = handler.clone();
        async move {
            handled.one(payload).await;
            Ok(())
        }
    });
    let settings = Settings::new(url).queue("default", concurrency.max(1));
    let shutdown = Shutdown::on_signals()?;
    let stopping = shutdown.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(500)).await;
        say(&format!("READY {}", now()));
        stopping.drain.cancelled().await;
        handled.say_stats();
        // like the others, do not wait for running jobs
        stopping.now.cancel();
    });
    Worker::new(settings, registry).run(shutdown).await?;
    Ok(ExitCode::SUCCESS)
}

/// The jobs that were handled, and how often.
struct Handled {
    total: AtomicU64,
    different: AtomicU64,
    again: AtomicU64,
    seen: Vec<AtomicBool>,
}

impl Handled {
    fn new(expect: usize) -> Handled {
        Handled {
            total: AtomicU64::new(0),
            different: AtomicU64::new(0),
            again: AtomicU64::new(0),
            seen: (0..expect).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    async fn one(&self, payload: Payload) {
        let t = now();
        match payload {
            Payload::Lat { t0 } => say(&format!("LAT {t0} {t}")),
            Payload::Sleep { ms } => {
                say(&format!("START {t} {}", std::process::id()));
                tokio::time::sleep(Duration::from_millis(ms)).await;
                say(&format!("END {}", now()));
            }
            Payload::Noop { i } => self.count(i as usize, t),
        }
    }

    fn count(&self, i: usize, t: i64) {
        let total = self.total.fetch_add(1, Relaxed) + 1;
        if total == 1 {
            say(&format!("FIRST {t}"));
        }
        if total.is_multiple_of(1000) {
            say(&format!("PROG {total} {t}"));
        }
        match self.seen.get(i).map(|seen| seen.swap(true, Relaxed)) {
            Some(true) => drop(self.again.fetch_add(1, Relaxed)),
            Some(false) if self.different.fetch_add(1, Relaxed) + 1 == self.seen.len() as u64 => {
                say(&format!("HANDLED {} {t}", self.seen.len()));
            }
            _ => {}
        }
    }

    fn say_stats(&self) {
        let (total, different) = (self.total.load(Relaxed), self.different.load(Relaxed));
        say(&format!("STATS {total} {different} {}", self.again.load(Relaxed)));
    }
}

async fn open(url: &str) -> Result<Client> {
    Ok(connect::parse(url)?.client("bugle bench").await?)
}

async fn enqueue(client: &Client, payload: Payload) -> Result<()> {
    client.execute(INSERT, &[&Json(payload)]).await?;
    Ok(())
}

fn say(line: &str) {
    let _ = std::io::stdout().write_all(format!("{line}\n").as_bytes());
}
