//! apalis-postgres. env AP_BATCH (fetch batch_size), AP_LOCK=0|1 (lock_tasks), AP_POLLMS, AP_PARALLEL=0|1
use apalis::prelude::*;
use apalis_postgres::{Config, PostgresStorage};
use bench_common::*;
use sqlx::postgres::PgPoolOptions;
use std::time::Duration;

const QUEUE: &str = "bench";

async fn pool(n: u32) -> sqlx::PgPool {
    PgPoolOptions::new().min_connections(n).max_connections(n).connect(&url()).await.unwrap()
}

async fn push(pool: &sqlx::PgPool, p: &Payload) {
    // own enqueue API, one autocommit statement per job
    let t = TaskBuilder::new(serde_json::to_vec(p).unwrap()).build();
    let mut c = pool.acquire().await.unwrap();
    apalis_postgres::queries::push_tasks(&mut *c, QUEUE, vec![t]).await.unwrap();
}

async fn run_job(p: Payload) -> Result<(), BoxDynError> {
    handle(p).await;
    Ok(())
}

#[tokio::main]
async fn main() {
    match args() {
        Cmd::Setup => PostgresStorage::setup(&pool(1).await).await.unwrap(),
        Cmd::Bulk { n, batch } => {
            let pool = pool(1).await;
            let t0 = now();
            let mut i = 0;
            while i < n {
                let tasks: Vec<_> = (i..(i + batch).min(n))
                    .map(|j| TaskBuilder::new(serde_json::to_vec(&Payload::Noop { i: j }).unwrap()).build())
                    .collect();
                let mut c = pool.acquire().await.unwrap();
                apalis_postgres::queries::push_tasks(&mut *c, QUEUE, tasks).await.unwrap();
                i += batch;
            }
            out(&format!("{{\"seconds\": {}}}", (now() - t0) as f64 / 1e9));
        }
        Cmd::Single { n, conns } => {
            let pl = pool(conns as u32).await;
            single(n, conns, move |p, _| { let pl = pl.clone(); async move { push(&pl, &p).await } }).await;
        }
        Cmd::Rate { per_s, secs, conns } => {
            let pl = pool(conns as u32).await;
            rate(per_s, secs, conns, move |p, _| { let pl = pl.clone(); async move { push(&pl, &p).await } }).await;
        }
        Cmd::SleepJob { ms } => {
            push(&pool(1).await, &Payload::Sleep { ms }).await;
            out("{}");
        }
        Cmd::Worker { conc, expect } => {
            install(expect);
            let pl = PgPoolOptions::new().max_connections(8).connect(&url()).await.unwrap();
            let cfg = Config::default()
                .queue(QUEUE)
                .batch_size(env_usize("AP_BATCH", 10))
                .lock_tasks(env_usize("AP_LOCK", 1) == 1);
            let backend = PostgresStorage::<Payload>::new(&pl)
                .with_config(cfg)
                .with_pubsub()
                .poll_with_interval(Duration::from_millis(env_usize("AP_POLLMS", 100) as u64));
            tokio::spawn(async { tokio::time::sleep(Duration::from_millis(500)).await; out(&format!("READY {}", now())); });
            let name = format!("worker-{}", std::process::id());
            WorkerBuilder::new(name)
                .backend(backend)
                .concurrency(conc)
                .parallelize(tokio::spawn)
                .build(run_job)
                .run()
                .await
                .unwrap();
        }
    }
}
