//! Bugle: a Postgres-native job runner.
#![forbid(unsafe_code)]

/// The page about chains: its Rust is compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/chains.md")]
struct ChainsPage;

mod answer;
mod bench;
pub mod builtin;
mod calls;
mod chain;
mod claim;
#[doc(hidden)]
pub mod cli;
mod client;
mod complete;
pub mod config;
pub mod connect;
mod context;
mod enqueue;
mod error;
mod execute;
mod executor;
mod family;
mod job;
mod keeper;
mod log;
mod notify;
#[doc(hidden)]
pub mod observe;
pub mod operate;
pub mod private_postgres;
pub mod read;
pub mod schema;
mod shutdown;
pub mod stage;
mod step;
mod trace;
mod wake;
mod worker;
mod workflow;
mod workspace;

pub use answer::Ended;
pub use cli::worker::worker_main;
pub use client::{Bugle, Handle};
pub use config::Settings;
pub use context::Context;
pub use enqueue::{Enqueued, Needed, NewJob, OnConflict};
pub use error::{Code, Error, Result};
pub use executor::{Execution, Executor, Failure, IntoOutcome, Outcome, Registry};
pub use family::Kin;
pub use job::{Claim, ClaimedJob, HeldJob, JobId, Place, State};
pub use shutdown::Shutdown;
pub use stage::{Next, Stage};
pub use worker::{Drained, Worker};
pub use workflow::Workflow;
