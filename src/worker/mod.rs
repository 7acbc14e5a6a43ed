//! A worker: a process that serves queues. Each part has its own file; [`run`] assembles them and shuts them down.

mod announcer;
pub mod background_scan;
mod builder;
pub mod claimer;
pub mod completer;
pub mod crew;
#[cfg_attr(not(feature = "web"), path = "no_endpoints.rs")]
mod endpoints;
pub mod fleet;
pub mod keeper;
pub mod lane;
mod orders;
pub mod reconcile;
mod register;
mod run;
pub mod scan;
mod service;
pub mod shutdown;
pub mod slots;
mod systemd;
mod watch;

use uuid::Uuid;

pub use builder::WorkerBuilder;
pub use run::Worker;
pub use service::Drained;

/// The identity of a worker: its public id, and the nonce that only it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// `bugle.workers.id`.
    pub worker: i64,
    /// Sent with every call about a job.
    pub nonce: Uuid,
}
