//! Bugle: a Postgres-native job runner.
#![forbid(unsafe_code)]

mod answer;
mod bench;
pub mod builtin;
mod calls;
mod claim;
#[doc(hidden)]
pub mod cli;
mod complete;
pub mod config;
pub mod connect;
mod context;
mod enqueue;
mod error;
mod execute;
mod executor;
mod job;
mod keeper;
mod log;
pub mod operate;
pub mod private_postgres;
pub mod read;
pub mod schema;
mod shutdown;
pub mod stage;
mod wake;
mod worker;
mod workspace;

pub use answer::Ended;
pub use cli::worker::worker_main;
pub use config::Settings;
pub use context::Context;
pub use enqueue::{Bugle, Enqueued, NewJob, OnConflict};
pub use error::{Code, Error, Result};
pub use executor::{Execution, Executor, Failure, IntoOutcome, Outcome, Registry};
pub use job::{Claim, ClaimedJob, HeldJob, JobId, State};
pub use shutdown::Shutdown;
pub use stage::{Next, Stage};
pub use worker::{Drained, Worker};
