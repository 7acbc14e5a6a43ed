//! `bugle bench idle`: resource usage of idle workers.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use tokio_postgres::Client;

use super::clock::{now, seconds_since};
use super::statistics::median;
use super::workers::Workers;
use super::{Bench, Line};

/// Resource usage of idle workers
///
/// Workers are started on an empty queue, all at once; the time until all are registered is noted. After a settling
/// time they are measured. Statements are those of the whole
/// database from pg_stat_statements or, if that is not loaded, its transactions from pg_stat_database. Memory is the
/// resident memory of each process at the end. Wake-ups are voluntary context switches of all threads of a process.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// Number of worker processes; a list for several measurements [default: 1,50]
    #[arg(long, value_delimiter = ',', value_name = "N")]
    pub workers: Option<Vec<usize>>,
    /// Duration of the measurement [default: 20]
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<f64>,
    /// Settling time before the measurement [default: 12]
    #[arg(long, value_name = "SECONDS")]
    pub settle: Option<f64>,
    /// Keep a transaction open that has enqueued a job, so that no worker can hold the bell
    #[arg(long)]
    pub open_transaction: bool,
}

/// For a private server: every statement is counted, and hundreds of workers can connect.
pub const SETTINGS: [(&str, &str); 2] = [
    ("shared_preload_libraries", "pg_stat_statements"),
    ("max_connections", "1000"),
];

/// # Errors
/// If a measurement fails.
pub async fn run(bench: &mut Bench, options: Options) -> Result<()> {
    let counts = bench.choose(options.workers, vec![1, 50], vec![2]);
    let seconds = bench.choose(options.seconds, 20.0, 1.0);
    let settle = bench.choose(options.settle, 12.0, 0.2);
    for count in counts {
        let database = bench.server.database().await?;
        let client = database.connect().await?;
        let extension = "create extension if not exists pg_stat_statements; select from pg_stat_statements limit 1";
        let by_statement = client.batch_execute(extension).await.is_ok();
        let open = database.connect().await?;
        let starting = now();
        let workers = if options.open_transaction {
            let enqueue = "begin; insert into bugle.jobs (command) values ('noop')";
            open.batch_execute(enqueue).await?;
            Workers::start_beside_open_transaction(&database, count, 10).await?
        } else {
            Workers::start_idle(&database, count, 10).await?
        };
        let started = seconds_since(starting);
        bench.progress(&format!("idle: {count} workers"));
        tokio::time::sleep(Duration::from_secs_f64(settle)).await;

        let processes = workers.process_ids();
        let statements = statements(&client, by_statement).await?;
        let wake_ups = wake_ups(&processes)?;
        let start = now();
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        let passed = seconds_since(start);
        let memory: Vec<f64> = processes.iter().map(|pid| resident(*pid)).collect::<Result<_>>()?;
        // one of them was the previous query
        let asked = self::statements(&client, by_statement).await? - statements - 1.0;
        let woken = self::wake_ups(&processes)? - wake_ups;
        let connections = "select count(*)::double precision from pg_stat_activity \
            where datname = current_database() and application_name like 'bugle %' and pid <> pg_backend_pid()";
        let connections: f64 = client.query_one(connections, &[]).await?.get(0);

        let mut line = Line::new(
            "idle",
            format!(
                "{count} idle worker{}{}",
                if count == 1 { "" } else { "s" },
                if options.open_transaction {
                    ", open transaction"
                } else {
                    ""
                }
            ),
            count as u64,
        );
        line.seconds = Some(passed.round());
        bench.add(
            line.note(
                if by_statement {
                    "statements_per_s"
                } else {
                    "transactions_per_s"
                },
                (asked / passed).max(0.0),
            )
            .note("wake_ups_per_s_and_worker", woken / passed / count as f64)
            .note("start_s", started)
            .note("connections_per_worker", connections / count as f64)
            .note("resident_mb", median(memory.clone()))
            .note("resident_mb_max", json!(memory.iter().copied().fold(0.0, f64::max))),
        );
        workers.stop().await?;
        drop(open);
        bench.server.remove(database).await?;
    }
    Ok(())
}

pub(super) async fn statements(client: &Client, by_statement: bool) -> Result<f64> {
    let count = if by_statement {
        "select sum(s.calls)::double precision from pg_stat_statements s
         join pg_database d on d.oid = s.dbid where d.datname = current_database()"
    } else {
        "select (xact_commit + xact_rollback)::double precision from pg_stat_database where datname = \
         current_database()"
    };
    Ok(client.query_one(count, &[]).await?.get(0))
}

/// In megabytes.
pub(super) fn resident(process: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).context("/proc is not available")?;
    Ok(field(&status, "VmRSS:").unwrap_or(0.0) / 1024.0)
}

fn wake_ups(processes: &[u32]) -> Result<f64> {
    let mut sum = 0.0;
    for process in processes {
        let threads = std::fs::read_dir(format!("/proc/{process}/task")).context("/proc is not available")?;
        for thread in threads {
            let status = std::fs::read_to_string(thread?.path().join("status")).unwrap_or_default();
            sum += field(&status, "voluntary_ctxt_switches:").unwrap_or(0.0);
        }
    }
    Ok(sum)
}

fn field(status: &str, name: &str) -> Option<f64> {
    let line = status.lines().find(|line| line.starts_with(name))?;
    line[name.len()..].split_whitespace().next()?.parse().ok()
}
