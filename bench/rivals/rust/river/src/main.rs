//! riverqueue, River for Rust. env RV_COOLDOWN (ms), RV_POLL (ms), RV_POOL tune the worker; PROFILE=default keeps River's own.
use bench_common::*;
use riverqueue::migrate::PostgresMigrator;
use riverqueue::sqlx::PgPool;
use riverqueue::sqlx::postgres::PgPoolOptions;
use riverqueue::{BoxError, Client, Job, JobArgs, QueueConfig, WorkContext, WorkOutcome, Workers};
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Clone, Debug, Deserialize, JobArgs, Serialize)]
#[river(kind = "bench")]
struct Bench {
    p: Payload,
}

async fn work(_: WorkContext, job: Job<Bench>) -> Result<WorkOutcome, BoxError> {
    handle(job.args.p).await;
    Ok(WorkOutcome::Complete)
}

async fn pool(n: u32) -> PgPool {
    PgPoolOptions::new().max_connections(n).connect(&url()).await.unwrap()
}

async fn client(n: u32) -> Client {
    Client::builder(pool(n).await).build().unwrap()
}

#[tokio::main]
async fn main() {
    match args() {
        Cmd::Setup => {
            PostgresMigrator::new(pool(2).await).migrate_up().await.unwrap();
        }
        Cmd::Bulk { n, batch } => {
            let c = client(2).await;
            let t0 = now();
            let mut i = 0;
            while i < n {
                c.insert_many((i..(i + batch).min(n)).map(|i| Bench { p: Payload::Noop { i } })).await.unwrap();
                i += batch;
            }
            out(&format!("{{\"seconds\": {}}}", (now() - t0) as f64 / 1e9));
        }
        Cmd::Single { n, conns } => {
            let c = client(conns as u32).await;
            single(n, conns, move |p, _| {
                let c = c.clone();
                async move { c.insert(Bench { p }).await.unwrap(); }
            }).await;
        }
        Cmd::Rate { per_s, secs, conns } => {
            let c = client(conns as u32).await;
            rate(per_s, secs, conns, move |p, _| {
                let c = c.clone();
                async move { c.insert(Bench { p }).await.unwrap(); }
            }).await;
        }
        Cmd::SleepJob { ms } => {
            client(1).await.insert(Bench { p: Payload::Sleep { ms } }).await.unwrap();
            out("{}");
        }
        Cmd::Worker { conc, expect } => {
            install(expect);
            let mut workers = Workers::new();
            workers.add_fn(work).unwrap();
            let mut b = Client::builder(pool(env_usize("RV_POOL", 12) as u32).await)
                .workers(workers)
                .without_job_timeout()
                .queue("default", QueueConfig::new(conc));
            if env_str("PROFILE", "default") == "fast" {
                b = b.fetch_cooldown(Duration::from_millis(env_usize("RV_COOLDOWN", 1) as u64));
            }
            let c = b.build().unwrap();
            let mut run = c.start().unwrap();
            tokio::spawn(async { tokio::time::sleep(Duration::from_millis(1500)).await; out(&format!("READY {}", now())); });
            run.wait().await.unwrap();
        }
    }
}
