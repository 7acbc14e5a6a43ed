//! Bugle: a Postgres-native job runner.
//!
//! A job is a row of the table `bugle.jobs`. An application inserts it, in the transaction that needs it. Workers claim
//! such rows, run them and record their outcomes. The rules are SQL functions in the database; this crate is the
//! worker, and a client for Rust. Applications in other languages enqueue with their own drivers.
//!
//! This page is a tour. The tests compile every example, and run all but the first.
//!
//! # A worker
//!
//! A type of job implements [`Job`]: it names its command, and its fields are the payload. An executor is an async
//! function that takes a [`Context`] and the payload. A [`Worker`] serves queues with such executors.
//!
//! ```no_run
//! use bugle::{Bugle, Context, Failure, Job, NewJob, Shutdown, Worker};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct SendMail {
//!     to: String,
//! }
//!
//! impl Job for SendMail {
//!     const COMMAND: &'static str = "send_mail";
//!
//!     fn defaults(&self, job: NewJob) -> NewJob {
//!         job.queue("mail").max_attempts(5)
//!     }
//! }
//!
//! async fn send_mail(_: Context, mail: SendMail) -> Result<String, Failure> {
//!     if !mail.to.contains('@') {
//!         return Err(Failure::new("no such address").code("bad_address").not_retryable());
//!     }
//!     Ok(format!("sent to {}", mail.to))
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let url = std::env::var("DATABASE_URL")?;
//!     bugle::migrate(&url).await?;
//!     Bugle::connect(&url)?.enqueue(&SendMail { to: "ada@example.org".into() }).await?;
//!
//!     Worker::builder(&url).queue("mail", 4).job(send_mail).run(Shutdown::on_signals()?).await?;
//!     Ok(())
//! }
//! ```
//!
//! What an executor returns becomes the job's result. An error is a [`Failure`], and the job is retried by its retry
//! policy; any error becomes one with `?`. For other outcomes (run it later, wait for an answer, cancel) there is
//! [`Outcome`]. Shared state is passed once, to [`Registry::with_state`], and read with [`Context::state`].
//!
//! # Enqueue
//!
//! [`NewJob`] has a method for each column that a job may set. Enqueued on a connection with an open transaction, the
//! job is part of that transaction: the order and the job are committed together, or neither is.
//!
//! ```
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/example.rs")); }
//! # example::on_a_database(async |_url, mut client| {
//! client.batch_execute("create table orders (item text not null)").await?;
//!
//! let transaction = client.transaction().await?;
//! transaction.execute("insert into orders values ('tea')", &[]).await?;
//! let id = bugle::NewJob::new("ship", serde_json::json!({ "item": "tea" }))
//!     .queue("parcels")
//!     .priority(-10)
//!     .delay(std::time::Duration::from_secs(60))
//!     .max_attempts(5)
//!     .enqueue(&transaction)
//!     .await?;
//! transaction.commit().await?;
//!
//! let job = bugle::read::job(&client, id).await?.expect("it exists");
//! assert_eq!((job.summary.state, job.summary.queue.as_str()), (bugle::State::Scheduled, "parcels"));
//! # Ok(())
//! # });
//! ```
//!
//! With sqlx, diesel or sea-orm, bind [`NewJob::to_json`] to `select bugle.enqueue_job($1)`, in a transaction of yours.
//! Duplicates are left out by a key, while the first job lives or for a day: [`NewJob::unique_key`],
//! [`NewJob::idempotency_key`].
//!
//! # A worker inside a larger program, and results
//!
//! [`Worker::run`] serves until its [`Shutdown`] is requested. [`Bugle`] is a client with its own connections, which
//! can wait for the result of a job; any number of callers share one connection that listens.
//!
//! ```
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/example.rs")); }
//! # example::on_a_database(async |url, _client| {
//! use bugle::{Bugle, Context, NewJob, Shutdown, Worker};
//!
//! let shutdown = Shutdown::new();
//! let worker = Worker::builder(&url)
//!     .queue("default", 8)
//!     .on("add", async |_: Context, (a, b): (i64, i64)| Ok(a + b))
//!     .build();
//! let worker = tokio::spawn(worker.run(shutdown.clone()));
//!
//! let bugle = Bugle::connect(&url)?;
//! let sum: i64 = bugle.enqueue(&NewJob::new("add", (2, 3))).await?.result().await?;
//! assert_eq!(sum, 5);
//!
//! shutdown.request();
//! assert!(worker.await??.is_clean());
//! # Ok(())
//! # });
//! ```
//!
//! [`Shutdown::on_signals`] requests it at SIGTERM and SIGINT. The first request lets running jobs finish, the second
//! does not wait.
//!
//! # Exactly once
//!
//! A job can run more than once: its worker may die after the work and before it reports the result. What an executor
//! writes to the same database can be committed together with the completion of the job, and then happens once. If the
//! job was given to another worker meanwhile, [`Context::complete_in`] fails, and all of it is rolled back.
//!
//! ```
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/example.rs")); }
//! # example::on_a_database(async |url, client| {
//! # use bugle::{Bugle, NewJob, Shutdown, Worker};
//! use bugle::{Context, Failure, Outcome};
//!
//! # client.batch_execute("create table stock as select 'tea' as item, 7 as pieces").await?;
//! async fn book(context: Context, item: String) -> Result<Outcome, Failure> {
//!     let mut connection = context.database().await?;
//!     let transaction = connection.transaction().await?;
//!     transaction.execute("update stock set pieces = pieces - 1 where item = $1", &[&item]).await?;
//!     context.complete_in(&transaction, "booked").await?;
//!     transaction.commit().await?;
//!     Ok(Outcome::Settled)
//! }
//! # let shutdown = Shutdown::new();
//! # let worker = tokio::spawn(Worker::builder(&url).on("book", book).run(shutdown.clone()));
//! # let said: String = Bugle::connect(&url)?.enqueue(&NewJob::new("book", "tea")).await?.result().await?;
//! # assert_eq!(said, "booked");
//! # let pieces: i32 = client.query_one("select pieces from stock", &[]).await?.get(0);
//! # assert_eq!(pieces, 6);
//! # shutdown.request();
//! # worker.await??;
//! # Ok(())
//! # });
//! ```
//!
//! [`Context::step`] does a part of the work once in the life of the job, and stores its output.
//!
//! # Chains, workflows, children
//!
//! A chain is one job of several steps, run in order by one worker and stored step by step: [`NewJob::steps`]. A
//! [`Workflow`] is several jobs, some of which start when others are done. A running job can spawn children, and
//! continue when they have ended: [`Context::spawn`].
//!
//! ```
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/example.rs")); }
//! # example::on_a_database(async |url, _client| {
//! use bugle::{Bugle, NewJob, Workflow};
//!
//! let bugle = Bugle::connect(&url)?;
//! let import = NewJob::new("import_prices", serde_json::json!({ "shop": 7 })).steps(["fetch", "convert", "upload"]);
//! bugle.enqueue(&import).await?;
//!
//! let workflow = Workflow::new()
//!     .job("fetch", NewJob::new("fetch", "2026-11-16"))
//!     .job("count", NewJob::new("count", ()).after("fetch"))
//!     .job("report", NewJob::new("report", ()).after("count"));
//! let jobs = bugle.enqueue_workflow(&workflow).await?;
//! assert_eq!(jobs.keys().collect::<Vec<_>>(), ["count", "fetch", "report"]);
//! # Ok(())
//! # });
//! ```
//!
//! # Middleware
//!
//! A [`Stage`] is code around executors, attached by a pattern of command names. It sees the payload before and the
//! outcome after, and may change both. The module [`stage`] has some ready to use.
//!
//! ```
//! use bugle::{Context, Execution, Next, Outcome, Registry, Stage};
//! use std::time::Duration;
//!
//! /// Nothing is sent at night: the job comes back in an hour, and the attempt does not count.
//! struct NotAtNight(fn() -> bool);
//!
//! impl Stage for NotAtNight {
//!     fn around(&self, context: Context, next: Next) -> Execution {
//!         let night = self.0();
//!         Box::pin(async move {
//!             if night {
//!                 return Outcome::Snooze(Duration::from_secs(3600));
//!             }
//!             next.run(context).await
//!         })
//!     }
//! }
//!
//! let registry = Registry::new()
//!     .stage("*", bugle::stage::Log)
//!     .stage("send_*", NotAtNight(|| false))
//!     .on("send_mail", async |_: Context, to: String| Ok(format!("sent to {to}")));
//! assert_eq!(registry.commands(), ["send_mail"]);
//! ```
//!
//! # Inspect and operate
//!
//! Everything that people see and do is SQL; [`read`] and [`operate`] are the same as functions, over any client of
//! `tokio_postgres`, such as [`Bugle::connection`].
//!
//! ```
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/example.rs")); }
//! # example::on_a_database(async |url, client| {
//! use bugle::operate::{self, Verb};
//! use bugle::{Bugle, NewJob, State};
//!
//! let job = Bugle::connect(&url)?.enqueue(&NewJob::new("send_mail", ())).await?;
//!
//! let why = operate::explain(&client, job.id()).await?;
//! assert_eq!(why[0].reason, "unserved");
//! job.cancel().await?;
//! assert_eq!(job.wait().await?.state, Some(State::Cancelled));
//! let restarted = operate::apply(&client, &Verb::Restart, &[job.id()], Some("wanted after all")).await?;
//! assert!(restarted[0].done);
//! # Ok(())
//! # });
//! ```
//!
//! # Errors
//!
//! There is one [`Error`], with predicates instead of variants: [`Error::is_refused`] (the schema rejects it, and
//! [`Error::code`] says why), [`Error::is_fenced`] (another worker has the job now), [`Error::is_transient`] (try it
//! again).
//!
//! ```
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/example.rs")); }
//! # example::on_a_database(async |_url, client| {
//! let error = bugle::NewJob::new("", ()).enqueue(&client).await.unwrap_err();
//! assert!(error.is_refused() && !error.is_transient());
//! assert_eq!(error.code(), Some(bugle::Code::InvalidColumn));
//! assert!(error.hint().is_some_and(|hint| !hint.is_empty()));
//! # Ok(())
//! # });
//! ```
//!
//! # The schema, and tests
//!
//! [`migrate`] creates or upgrades the schema, as `bugle migrate` does. For your own tests, [`private_postgres`] starts
//! a server that is gone afterwards. The module [`testing`] runs one executor without a database, or
//! everything that is due, and asserts what was enqueued. [`Settings::until_empty`] makes a worker stop when no job is
//! left that could run.
//!
//! # Features
//!
//! The default features are those of the `bugle` program, with about 250 crates. A library user starts without them,
//! and compiles about 100; the feature `migrate` adds 50:
//!
//! ```toml
//! [dependencies]
//! bugle = { path = "../bugle", default-features = false, features = ["migrate"] }
//! ```
//!
//! The core, without any feature, has the client, workers, executors, built-in commands that run a program or a SQL
//! statement, and TLS.
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `migrate` | yes, by `cli` | `migrate`: create or upgrade the schema; [`Settings::migrate`] |
//! | `http` | yes | built-in commands that send HTTP requests |
//! | `web` | yes | the pages of `bugle web`; metrics, health checks and JSON API of a worker ([`Settings::listen`]) |
//! | `cli` | yes | `worker_main`, the configuration file, the `bugle` program; implies `migrate` |
//! | `dev` | yes | `private_postgres`: a temporary server, for tests; with `cli`, `bugle dev` and `bugle demo` |
//! | `tui` | yes | `bugle top`; implies `cli` |
//! | `bench` | yes | `bugle bench`; implies `cli` and `dev` |
//! | `testing` | yes | [`testing`]: run executors, drain queues, inspect what was enqueued |
//! | `otlp` | no | a span for each attempt, exported by OTLP over HTTP as the `OTEL_*` variables configure |
//!
//! A setting or a command that needs a missing feature is rejected when the worker starts, with an error that names the
//! feature.
#![cfg_attr(docsrs, feature(doc_cfg))]
// this page links to what some features bring
#![cfg_attr(not(all(feature = "cli", feature = "dev")), allow(rustdoc::broken_intra_doc_links))]
#![forbid(unsafe_code)]

/// The pages with Rust: it is compiled with the tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/getting-started.md")]
    struct GettingStarted;
    #[doc = include_str!("../docs/zh/quickstart.md")]
    struct GettingStartedInChinese;
    #[doc = include_str!("../docs/tutorial.md")]
    struct Tutorial;
    #[doc = include_str!("../docs/enqueue.md")]
    struct Enqueue;
    #[doc = include_str!("../docs/executors.md")]
    struct Executors;
    #[cfg(feature = "testing")]
    #[doc = include_str!("../docs/how-to/test-your-jobs.md")]
    struct TestYourJobs;
    #[doc = include_str!("../docs/chains.md")]
    struct Chains;
    #[doc = include_str!("../docs/workflows.md")]
    struct Workflows;
}

mod admin;
#[cfg(feature = "bench")]
mod bench;
pub mod builtin;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
mod client;
pub mod config;
mod db;
mod error;
mod execute;
mod host;
mod job;
#[doc(hidden)]
pub mod observe;
#[cfg(feature = "dev")]
pub mod private_postgres;
pub mod schema;
mod spelled;
mod state;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "web")]
mod web;
mod worker;

pub use admin::{operate, operations, read};
#[cfg(feature = "cli")]
pub use cli::worker::worker_main;
pub use client::enqueue::{Enqueued, Needed, NewJob, OnConflict};
pub use client::job::Job;
pub use client::result::Ended;
pub use client::workflow::Workflow;
pub use client::{Bugle, Handle};
pub use config::Settings;
pub use db::connect;
pub use error::{Code, Error, Result};
pub use execute::batch::{Batch, BatchExecution, BatchExecutor, BatchJob};
pub use execute::context::Context;
pub use execute::executor::{Execution, Executor, Failure, IntoOutcome, Outcome};
pub use execute::family::DependencyResult;
pub use execute::registry::Registry;
pub use execute::stage::{self, Next, Stage};
pub use job::{ChainPosition, Claim, ClaimedJob, HeldJob, JobId};
pub use state::{Reason, State, StepState, WorkerState};
pub use worker::shutdown::Shutdown;
pub use worker::{Drained, Worker, WorkerBuilder};

// The crates whose types are in the signatures of this one, so that both sides mean the same version.
pub use {serde, serde_json, tokio_postgres, tokio_util};

/// Create the schema in the database at `url`, or bring it up to date, as `bugle migrate` does: all of it, or nothing.
/// `url` is a connection string as psql takes it. Any number of processes may call this at once.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// bugle::migrate(&std::env::var("DATABASE_URL")?).await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// If the database cannot be reached, its schema is newer than this crate, or the user lacks the rights.
#[cfg(feature = "migrate")]
pub async fn migrate(url: &str) -> Result<schema::Migrated> {
    schema::migrate(connect::parse(url)?).await
}
