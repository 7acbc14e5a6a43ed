//! A worker: one process that serves queues. Each part is a file; [`run`] puts them together and takes them apart
//! again.

pub mod background_scan;
pub mod claimer;
pub mod completer;
pub mod crew;
pub mod keeper;
pub mod lane;
mod orders;
pub mod reconcile;
mod register;
mod run;
pub mod scan;
mod service;
pub mod shutdown;
mod systemd;

use uuid::Uuid;

pub use run::Worker;
pub use service::Drained;

/// Who a worker is to the database: the number everyone sees, and the nonce only it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// `bugle.workers.id`.
    pub worker: i64,
    /// Sent with every call about a job.
    pub nonce: Uuid,
}
