//! For the tests of programs that enqueue jobs and run them. Needs the feature `testing`.
//!
//! | | needs a database |
//! |---|---|
//! | [`run`]: one executor on one payload, and what it did | no |
//! | [`assert_enqueued`], [`assert_not_enqueued`], [`enqueued`]: what was enqueued | yours |
//! | [`drain`]: run all jobs that are due, until there is none | yours |
//! | [`advance`]: let time pass, so that retries and scheduled jobs are due | yours |
//!
//! Their messages are for the reader of a failed test: what was wanted, and what was there.
//!
//! ```
//! use bugle::{Context, Failure, NewJob, Registry, testing};
//!
//! let registry = Registry::new().on("send_mail", async |context: Context, to: String| {
//!     context.progress(50.0, "connecting").await?;
//!     match to.contains('@') {
//!         true => Ok(format!("sent to {to}")),
//!         false => Err(Failure::new("no such address").code("bad_address").not_retryable()),
//!     }
//! });
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let sent = testing::run(&registry, NewJob::new("send_mail", "ada@example.org")).await;
//! assert_eq!(sent.result::<String>(), "sent to ada@example.org");
//! assert_eq!(sent.progress(), [(50.0, "connecting".to_string())]);
//!
//! let failure = testing::run(&registry, NewJob::new("send_mail", "ada")).await.failure();
//! assert_eq!(failure.code.as_deref(), Some("bad_address"));
//! assert!(!failure.retryable);
//! # });
//! ```

mod drain;
mod enqueued;
mod run;

pub use drain::{Attempt, Drained, advance, drain};
pub use enqueued::{EnqueuedJob, JobFilter, assert_enqueued, assert_not_enqueued, enqueued};
pub use run::{FailedAttempt, Run, RunResult, Waiting, run, run_many};
