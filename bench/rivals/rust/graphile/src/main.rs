//! graphile_worker. PROFILE=default|fast; env GW_LOCALQ, GW_QUEUES, GW_BATCHMS, GW_POOL tune the fast profile.
use bench_common::*;
use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, RawJobSpec, TaskHandler, WorkerContext, WorkerOptions, WorkerUtils,
};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPoolOptions;
use std::time::Duration;

#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
struct Bench(Payload);

impl TaskHandler for Bench {
    const IDENTIFIER: &'static str = "bench";
    async fn run(self, _ctx: WorkerContext) -> impl IntoTaskHandlerResult {
        handle(self.0).await;
        Ok::<(), String>(())
    }
}

async fn pool(n: u32) -> sqlx::PgPool {
    PgPoolOptions::new().min_connections(n).max_connections(n).connect(&url()).await.unwrap()
}
async fn utils(n: u32) -> WorkerUtils {
    WorkerUtils::new(pool(n).await, "graphile_worker")
}

#[tokio::main]
async fn main() {
    match args() {
        Cmd::Setup => utils(1).await.migrate().await.unwrap(),
        Cmd::Bulk { n, batch } => {
            let u = utils(1).await;
            let t0 = now();
            let mut i = 0;
            while i < n {
                let jobs: Vec<RawJobSpec> = (i..(i + batch).min(n))
                    .map(|j| RawJobSpec {
                        identifier: "bench".into(),
                        payload: serde_json::json!({"k": "noop", "i": j}),
                        spec: JobSpec::default(),
                    })
                    .collect();
                u.add_raw_jobs(&jobs).await.unwrap();
                i += batch;
            }
            out(&format!("{{\"seconds\": {}}}", (now() - t0) as f64 / 1e9));
        }
        Cmd::Single { n, conns } => {
            let u = utils(conns as u32).await;
            single(n, conns, move |p, _| {
                let u = u.clone();
                async move { u.add_job(Bench(p), JobSpec::default()).await.unwrap(); }
            }).await;
        }
        Cmd::Rate { per_s, secs, conns } => {
            let u = utils(conns as u32).await;
            rate(per_s, secs, conns, move |p, _| {
                let u = u.clone();
                async move { u.add_job(Bench(p), JobSpec::default()).await.unwrap(); }
            }).await;
        }
        Cmd::SleepJob { ms } => {
            utils(1).await.add_job(Bench(Payload::Sleep { ms }), JobSpec::default()).await.unwrap();
            out("{}");
        }
        Cmd::Worker { conc, expect } => {
            install(expect);
            let fast = env_str("PROFILE", "default") == "fast";
            let p = env_usize("GW_POOL", conc.min(20) + 2) as u32;
            let mut o = WorkerOptions::default()
                .concurrency(conc)
                .pg_pool(PgPoolOptions::new().max_connections(p).connect(&url()).await.unwrap())
                .define_job::<Bench>();
            if fast {
                o = o
                    .complete_job_batch_delay(Duration::from_millis(env_usize("GW_BATCHMS", 5) as u64))
                    .fail_job_batch_delay(Duration::from_millis(env_usize("GW_BATCHMS", 5) as u64))
                    .local_queue(
                        LocalQueueConfig::default()
                            .with_size(env_usize("GW_LOCALQ", 5000))
                            .with_queue_count(env_usize("GW_QUEUES", 1)),
                    );
            }
            let w = o.init().await.unwrap();
            tokio::spawn(async { tokio::time::sleep(Duration::from_millis(500)).await; out(&format!("READY {}", now())); });
            w.run().await.unwrap();
        }
    }
}
