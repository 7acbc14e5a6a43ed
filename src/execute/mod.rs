//! Executing one job: what executors are, what they are given, and what surrounds them.

pub mod batch;
pub mod chain;
pub mod context;
pub mod descriptors;
pub mod executor;
pub mod family;
pub mod leftovers;
pub(crate) mod panics;
pub mod registry;
pub mod rehearsal;
pub mod shortage;
pub mod stage;
pub mod step;
pub mod workspace;
