//! A Postgres server of one's own: found or obtained, started in a second, gone without a trace.
//!
//! `bugle dev`, the demo, the tests and the benchmark all run on this. Nothing needs to be set up before, and nothing
//! is left after, however the owner ends:
//!
//! ```text
//! owner ──pipe──▶ guardian (`bugle guard-postgres`) ──child──▶ postgres
//! ```
//!
//! The guardian does the work (initdb, start, stop) and outlives the owner by a moment: when the pipe closes, because
//! the owner dropped it or was killed with -9, it stops the server and removes the folder. Should the guardian be
//! killed as well, the next start on this machine sweeps up what it left.
//!
//! All calls block (a start takes about a second). That is what tests want; elsewhere use `spawn_blocking`.

mod account;
mod find;
mod folder;
mod guard;
mod obtain;
mod owner;
mod pinned;
mod processes;
mod server;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub use find::{Binaries, find};
pub use guard::guard;
pub use owner::PrivatePostgres;
pub(crate) use processes::GUARDED_BY;

/// How a private server should be. The default is the fastest one that can be had.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Exactly this major version; otherwise whichever is at hand.
    pub version: Option<u32>,
    /// Settings for `postgresql.conf`, such as `("work_mem", "64MB")`. They win over the ones chosen here.
    pub settings: Vec<(String, String)>,
    /// Survive a power cut (`fsync = on`). A crash of the server alone loses nothing either way.
    pub durable: bool,
    /// Listen on 127.0.0.1 as well, for tests that put a proxy in between.
    pub tcp: bool,
    /// If no Postgres is installed, install or fetch one without asking. `BUGLE_PG_OBTAIN=yes` says the same.
    pub obtain: bool,
    /// Keep the data at this place, and continue with what is there. Otherwise it goes when the server goes.
    pub keep: Option<PathBuf>,
    /// The `bugle` program that acts as the guardian; otherwise `BUGLE_BIN`, or the running program if that is `bugle`.
    pub bugle_bin: Option<PathBuf>,
}

/// The server all tests share: `BUGLE_SERVER_URL` if `bin/test` started one, else one for this process.
///
/// The URL names the maintenance database `postgres`; each test makes a database of its own next to it.
///
/// # Panics
/// When there is no server to be had. A test cannot go on without one.
pub fn shared(bugle_bin: &Path) -> String {
    static SERVER: OnceLock<PrivatePostgres> = OnceLock::new();

    if let Ok(url) = std::env::var("BUGLE_SERVER_URL") {
        return url;
    }
    let server = SERVER.get_or_init(|| {
        let options = Options {
            bugle_bin: Some(bugle_bin.to_owned()),
            ..Options::default()
        };
        PrivatePostgres::start(&options).unwrap_or_else(|error| panic!("no Postgres for the tests: {error:#}"))
    });
    server.url("postgres")
}
