//! Bugle: a Postgres-native job runner.
//!
//! A job is a row of the table `bugle.jobs`, inserted by an application, in the transaction that needs
//! it. Workers claim such rows, carry them out and record how they ended. The rules are SQL functions in the database;
//! this library is what a worker needs besides, and a client for those who enqueue from Rust. The `bugle` program is
//! made of it, and so can yours be.
//!
//! This page is a tour, from the first worker to the last screw. The tests compile every example, and run all but the
//! first. What the database does is told in `docs/`: columns, retries, limits, operations.
//!
//! # A worker
//!
//! A [`Registry`] has an executor for each command: an async closure that gets the job's [`Context`] and its payload,
//! as any type that can be deserialised. [`worker_main`] makes a program of it, with the flags, the file, the signals
//! and the logs of `bugle worker`.
//!
//! ```no_run
//! use bugle::{Context, Failure, Registry};
//!
//! #[derive(serde::Deserialize)]
//! struct Mail {
//!     to: String,
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     let registry = Registry::new().on("send_mail", async |_: Context, mail: Mail| {
//!         if !mail.to.contains('@') {
//!             return Err(Failure::new("no such address").code("bad_address").not_retryable());
//!         }
//!         Ok(serde_json::json!({ "sent_to": mail.to }))
//!     });
//!     bugle::worker_main(registry)
//! }
//! ```
//!
//! What is returned becomes the job's result; an error is a [`Failure`], and the job is tried again by its retry
//! policy. Any error becomes one with `?`. For all other ends (not now, wait for an answer, nothing to do any more)
//! there is [`Outcome`].
//!
//! # Enqueue
//!
//! [`NewJob`] says what an `INSERT` would say. On a connection that has a transaction open it is part of that: the
//! order and the job are committed together, or neither is.
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
//! let job = bugle::read::job(&client, id).await?.expect("it is there");
//! assert_eq!((job.line.state.as_str(), job.line.queue.as_str()), ("scheduled", "parcels"));
//! # Ok(())
//! # });
//! ```
//!
//! A second job of the same key can be left out, for as long as the first lives or for a day: [`NewJob::unique_key`],
//! [`NewJob::idempotency_key`].
//!
//! # A worker inside a larger program, and the result
//!
//! [`Worker::run`] serves until its [`Shutdown`] says so. [`Bugle`] is a client with connections of its own, which can
//! wait for what comes of a job; any number of callers share one connection that listens.
//!
//! ```
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/example.rs")); }
//! # example::on_a_database(async |url, _client| {
//! use bugle::{Bugle, Context, NewJob, Registry, Settings, Shutdown, Worker};
//!
//! let registry = Registry::new().on("add", async |_: Context, (a, b): (i64, i64)| Ok(a + b));
//! let settings = Settings {
//!     database_url: url.clone(),
//!     queues: vec![("default".into(), 8)],
//!     ..Settings::default()
//! };
//! let shutdown = Shutdown::new();
//! let worker = tokio::spawn(Worker::new(settings, registry).run(shutdown.clone()));
//!
//! let client = Bugle::connect(&url)?;
//! let sum: i64 = client.enqueue(&NewJob::new("add", (2, 3))).await?.result().await?;
//! assert_eq!(sum, 5);
//!
//! shutdown.request();
//! assert!(worker.await??.is_clean());
//! # Ok(())
//! # });
//! ```
//!
//! [`Shutdown::on_signals`] asks at SIGTERM and SIGINT; the first request lets running jobs finish, the second does not
//! wait.
//!
//! # Once and for all
//!
//! A job can be run more than once: its worker may die after the work and before reporting the result. What an executor
//! writes to the same database can be committed together with the job's end, and then happens once. If the job was
//! given to another worker meanwhile, [`Context::complete_in`] is an error, and all of it is rolled back.
//!
//! ```
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/example.rs")); }
//! # example::on_a_database(async |url, client| {
//! # use bugle::{Bugle, NewJob, Settings, Shutdown, Worker};
//! use bugle::{Context, Outcome, Registry};
//!
//! # client.batch_execute("create table stock as select 'tea' as item, 7 as pieces").await?;
//! let registry = Registry::new().on("book", async |context: Context, item: String| {
//!     let mut connection = context.database().await?;
//!     let transaction = connection.transaction().await?;
//!     transaction.execute("update stock set pieces = pieces - 1 where item = $1", &[&item]).await?;
//!     context.complete_in(&transaction, "booked").await?;
//!     transaction.commit().await?;
//!     Ok(Outcome::Settled)
//! });
//! # let settings = Settings { database_url: url.clone(), ..Settings::default() };
//! # let shutdown = Shutdown::new();
//! # let worker = tokio::spawn(Worker::new(settings, registry).run(shutdown.clone()));
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
//! [`Context::step`] does a part of the work once in the life of the job, and remembers what came of it.
//!
//! # Jobs that belong together
//!
//! A chain is one job of several steps, carried out in order in one worker and stored step by step: [`NewJob::steps`].
//! A [`Workflow`] is several jobs, some of which start when others are done. A running job can spawn children, and go
//! on when they have ended: [`Context::spawn`].
//!
//! ```
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/example.rs")); }
//! # example::on_a_database(async |url, _client| {
//! use bugle::{Bugle, NewJob, Workflow};
//!
//! let client = Bugle::connect(&url)?;
//! let import = NewJob::new("import_prices", serde_json::json!({ "shop": 7 })).steps(["fetch", "convert", "upload"]);
//! client.enqueue(&import).await?;
//!
//! let workflow = Workflow::new()
//!     .job("fetch", NewJob::new("fetch", "2026-11-16"))
//!     .job("count", NewJob::new("count", ()).after("fetch"))
//!     .job("report", NewJob::new("report", ()).after("count"));
//! let jobs = client.enqueue_workflow(&workflow).await?;
//! assert_eq!(jobs.keys().collect::<Vec<_>>(), ["count", "fetch", "report"]);
//! # Ok(())
//! # });
//! ```
//!
//! # Around executors
//!
//! A [`Stage`] is code around executors, by a pattern of their names: it sees the payload before and the outcome after,
//! and may change both. [`stage`] has some to take.
//!
//! ```
//! use bugle::{Context, Execution, Next, Outcome, Registry, Stage};
//! use std::time::Duration;
//!
//! /// At night nothing is sent: the job comes back in an hour, and the attempt does not count.
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
//! # Looking and intervening
//!
//! All that people see and do is SQL; [`read`] and [`operate`] are the same as functions, over any client of
//! `tokio_postgres`.
//!
//! ```
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/example.rs")); }
//! # example::on_a_database(async |_url, client| {
//! use bugle::operate::{self, Verb};
//!
//! let id = bugle::NewJob::new("send_mail", ()).enqueue(&client).await?;
//!
//! let why = operate::explain(&client, id).await?;
//! assert_eq!(why[0].reason, "unserved");
//! let cancelled = operate::apply(&client, &Verb::Cancel, &[id], Some("not wanted any more")).await?;
//! assert!(cancelled[0].done);
//! assert_eq!(bugle::read::job(&client, id).await?.expect("kept").line.state, "cancelled");
//! # Ok(())
//! # });
//! ```
//!
//! # Errors
//!
//! There is one [`Error`], with questions instead of variants: [`Error::is_refused`] (the schema says no, and
//! [`Error::code`] why), [`Error::is_fenced`] (another worker has the job now), [`Error::is_transient`] (try again).
//!
//! ```
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/example.rs")); }
//! # example::on_a_database(async |_url, client| {
//! let error = bugle::NewJob::new("", ()).enqueue(&client).await.unwrap_err();
//! assert!(error.is_refused() && !error.is_transient());
//! assert_eq!(error.code(), Some(bugle::Code::InvalidColumn));
//! assert!(error.what_to_do().expect("a hint").starts_with("Name what is to be done"));
//! # Ok(())
//! # });
//! ```
//!
//! # The schema
//!
//! [`schema::migrate`] brings a database up to date, as `bugle migrate` does; [`private_postgres`] starts a server that
//! is gone afterwards, for your own tests.
//!
//! # Features
//!
//! - `otlp`, off by default: a worker exports a span for each attempt, by OTLP over HTTP, as the `OTEL_*` variables
//!   say.
#![forbid(unsafe_code)]

/// The pages with Rust: it is compiled with the tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/getting-started.md")]
    struct GettingStarted;
    #[doc = include_str!("../docs/enqueue.md")]
    struct Enqueue;
    #[doc = include_str!("../docs/executors.md")]
    struct Executors;
    #[doc = include_str!("../docs/chains.md")]
    struct Chains;
    #[doc = include_str!("../docs/workflows.md")]
    struct Workflows;
}

mod admin;
mod bench;
pub mod builtin;
#[doc(hidden)]
pub mod cli;
mod client;
pub mod config;
mod db;
mod error;
mod execute;
mod job;
#[doc(hidden)]
pub mod observe;
pub mod private_postgres;
pub mod schema;
mod worker;

pub use admin::{operate, read};
pub use cli::worker::worker_main;
pub use client::enqueue::{Enqueued, Needed, NewJob, OnConflict};
pub use client::result::Ended;
pub use client::workflow::Workflow;
pub use client::{Bugle, Handle};
pub use config::Settings;
pub use db::connect;
pub use error::{Code, Error, Result};
pub use execute::context::Context;
pub use execute::executor::{Execution, Executor, Failure, IntoOutcome, Outcome};
pub use execute::family::DependencyResult;
pub use execute::registry::Registry;
pub use execute::stage::{self, Next, Stage};
pub use job::{Claim, ClaimedJob, HeldJob, JobId, Place, State};
pub use worker::shutdown::Shutdown;
pub use worker::{Drained, Worker};
