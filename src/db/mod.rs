//! The database layer: connections, and the calls of workers and clients.

pub mod calls;
pub mod connect;
pub(crate) mod versions;
