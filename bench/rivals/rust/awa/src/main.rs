//! awa, queue-storage engine. Worker env: AW_CLAIM (claim_batch_size), AW_CLAIMERS, AW_DEADLINE_S (0 = no per-claim
//! deadline), AW_POLLMS, AW_POOL; for every command: AW_PARTS (PartitionedQueue), AW_SHARDS (enqueue_shards, written by setup).
//! awa itself reads AWA_COMPLETION_BATCH_SIZE, AWA_COMPLETION_FLUSH_MS, AWA_COMPLETION_SHARDS.
use awa::{
    Client, InsertOpts, JobArgs, JobResult, PartitionedQueue, QueueConfig, QueueStorage, QueueStorageConfig, insert, insert_with, migrations,
};
use bench_common::*;
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPoolOptions;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Bench(Payload);

impl JobArgs for Bench {
    fn kind() -> &'static str { "bench" }
}

async fn pool(n: u32) -> sqlx::PgPool {
    PgPoolOptions::new().min_connections(n).max_connections(n).connect(&url()).await.unwrap()
}
fn store() -> QueueStorage { QueueStorage::new(QueueStorageConfig::default()).unwrap() }
fn queue() -> PartitionedQueue { PartitionedQueue::new("bench", env_usize("AW_PARTS", 1)).unwrap() }

/// The ordinary producer call: one autocommit statement per job.
struct Producer { pool: sqlx::PgPool, queue: PartitionedQueue, next: AtomicUsize }
impl Producer {
    async fn new(conns: usize) -> Arc<Self> {
        Arc::new(Producer { pool: pool(conns as u32).await, queue: queue(), next: AtomicUsize::new(0) })
    }
    async fn push(&self, p: Payload) {
        let o = self.queue.route_opts_by_index(InsertOpts::default(), self.next.fetch_add(1, Relaxed));
        insert_with(&self.pool, &Bench(p), o).await.unwrap();
    }
}

#[tokio::main]
async fn main() {
    match args() {
        Cmd::Setup => {
            let p = pool(2).await;
            migrations::run(&p).await.unwrap();
            // what the first worker of a new cluster does by itself; here before any job exists, so that all go to queue storage
            store().install(&p).await.unwrap();
            let shards = env_usize("AW_SHARDS", 1);
            if shards > 1 {
                for q in queue().physical_queues() {
                    sqlx::query("insert into awa.queue_meta (queue, enqueue_shards) values ($1, $2) on conflict (queue) do update set enqueue_shards = excluded.enqueue_shards")
                        .bind(q).bind(shards as i16).execute(&p).await.unwrap();
                }
            }
        }
        Cmd::Bulk { n, batch } => {
            let (p, s, q) = (pool(1).await, store(), queue());
            let t0 = now();
            let mut i = 0;
            while i < n {
                let jobs: Vec<_> = (i..(i + batch).min(n))
                    .map(|i| insert::params_with(&Bench(Payload::Noop { i }), q.route_opts_by_index(InsertOpts::default(), i)).unwrap())
                    .collect();
                s.enqueue_params_copy(&p, &jobs).await.unwrap();
                i += batch;
            }
            out(&format!("{{\"seconds\": {}}}", (now() - t0) as f64 / 1e9));
        }
        Cmd::Single { n, conns } => {
            let a = Producer::new(conns).await;
            single(n, conns, move |p, _| { let a = a.clone(); async move { a.push(p).await } }).await;
        }
        Cmd::Rate { per_s, secs, conns } => {
            let a = Producer::new(conns).await;
            rate(per_s, secs, conns, move |p, _| { let a = a.clone(); async move { a.push(p).await } }).await;
        }
        Cmd::SleepJob { ms } => {
            Producer::new(1).await.push(Payload::Sleep { ms }).await;
            out("{}");
        }
        Cmd::Worker { conc, expect } => {
            install(expect);
            let q = queue();
            let d = QueueConfig::default();
            let pl = PgPoolOptions::new().max_connections(env_usize("AW_POOL", 10) as u32).connect(&url()).await.unwrap();
            let c = Client::builder(pl)
                .partitioned_queue(&q, QueueConfig {
                    max_workers: conc.div_ceil(q.partitions()) as u32,
                    claim_batch_size: env_usize("AW_CLAIM", d.claim_batch_size),
                    claimers: env_usize("AW_CLAIMERS", d.claimers as usize) as u16,
                    poll_interval: Duration::from_millis(env_usize("AW_POLLMS", d.poll_interval.as_millis() as usize) as u64),
                    deadline_duration: Duration::from_secs(env_usize("AW_DEADLINE_S", d.deadline_duration.as_secs() as usize) as u64),
                    ..d
                })
                .register::<Bench, _, _>(|b, _ctx| async move {
                    handle(b.0).await;
                    Ok(JobResult::Completed)
                })
                .build()
                .unwrap();
            c.start().await.unwrap();
            tokio::time::sleep(Duration::from_millis(500)).await;
            out(&format!("READY {}", now()));
            std::future::pending::<()>().await;
        }
    }
}
