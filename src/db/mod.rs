//! The database, as the rest of the library sees it: connections, and the calls that workers and clients make.

pub mod calls;
pub mod connect;
