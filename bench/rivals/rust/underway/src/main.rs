//! underway. env UW_POLLMS: period of Worker::run_every (default 60000, the library's run()); UW_POOL
use bench_common::*;
use jiff::Span;
use sqlx::{Postgres, Transaction, postgres::PgPoolOptions};
use std::sync::Arc;
use std::time::Duration;
use underway::{Queue, Task, Worker, task::Result as TaskResult};

#[derive(Clone)]
struct Bench;

impl Task for Bench {
    type Input = Payload;
    type Output = ();
    async fn execute(&self, _tx: Transaction<'_, Postgres>, p: Payload) -> TaskResult<()> {
        handle(p).await;
        Ok(())
    }
}

async fn pool(n: u32) -> sqlx::PgPool {
    PgPoolOptions::new().min_connections(n).max_connections(n).connect(&url()).await.unwrap()
}
async fn queue(pool: &sqlx::PgPool) -> Queue<Bench> {
    Queue::builder().name("bench").pool(pool.clone()).build().await.unwrap()
}

#[tokio::main]
async fn main() {
    match args() {
        Cmd::Setup => {
            let p = pool(1).await;
            underway::run_migrations(&p).await.unwrap();
            queue(&p).await;
        }
        Cmd::Bulk { n, batch } => {
            let p = pool(1).await;
            let q = queue(&p).await;
            let t0 = now();
            let mut i = 0;
            while i < n {
                let v: Vec<Payload> = (i..(i + batch).min(n)).map(|i| Payload::Noop { i }).collect();
                q.enqueue_multi(&p, &Bench, &v).await.unwrap();
                i += batch;
            }
            out(&format!("{{\"seconds\": {}}}", (now() - t0) as f64 / 1e9));
        }
        Cmd::Single { n, conns } => {
            let pl = pool(conns as u32).await;
            let q = Arc::new(queue(&pl).await);
            single(n, conns, move |p, _| { let (pl, q) = (pl.clone(), q.clone()); async move { q.enqueue(&pl, &Bench, &p).await.unwrap(); } }).await;
        }
        Cmd::Rate { per_s, secs, conns } => {
            let pl = pool(conns as u32).await;
            let q = Arc::new(queue(&pl).await);
            rate(per_s, secs, conns, move |p, _| { let (pl, q) = (pl.clone(), q.clone()); async move { q.enqueue(&pl, &Bench, &p).await.unwrap(); } }).await;
        }
        Cmd::SleepJob { ms } => {
            let pl = pool(1).await;
            queue(&pl).await.enqueue(&pl, &Bench, &Payload::Sleep { ms }).await.unwrap();
            out("{}");
        }
        Cmd::Worker { conc, expect } => {
            install(expect);
            let pl = PgPoolOptions::new().max_connections(env_usize("UW_POOL", conc * 2 + 4) as u32).connect(&url()).await.unwrap();
            let q = Arc::new(queue(&pl).await);
            let mut w = Worker::new(q, Bench);
            w.set_concurrency_limit(conc);
            tokio::spawn(async { tokio::time::sleep(Duration::from_millis(500)).await; out(&format!("READY {}", now())); });
            w.run_every(Span::new().milliseconds(env_usize("UW_POLLMS", 60000) as i64)).await.unwrap();
        }
    }
}
