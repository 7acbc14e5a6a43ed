//! Private Postgres servers: found or obtained, started within a second, removed completely.
//!
//! `bugle dev`, the demo, the tests and the benchmarks use them. They need no setup and leave nothing behind, however
//! the owner exits:
//!
//! ```text
//! owner ──pipe──▶ guardian (`bugle guard-postgres`) ──child──▶ postgres
//! ```
//!
//! The guardian does the work (initdb, start, stop) and outlives the owner briefly: when the pipe is closed, because
//! the owner dropped it or was killed with SIGKILL, it stops the server and removes the directory. If the guardian is
//! killed as well, the next start on this machine cleans up.
//!
//! All calls block (a start takes about a second), which suits tests; elsewhere use `spawn_blocking`.

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

pub use find::Binaries;
pub use guard::guard;
pub use owner::PrivatePostgres;
#[cfg(feature = "cli")]
pub(crate) use processes::GUARDED_BY;

/// Inside, errors have causes and contexts; outside, they are those of the library.
fn told(error: anyhow::Error) -> crate::Error {
    crate::Error::new(format!("{error:#}"))
}

/// Options of a private server. The default is the fastest one available.
///
/// ```
/// use bugle::private_postgres::Options;
///
/// let options = Options::new().tcp().setting("work_mem", "64MB");
/// assert!(options.tcp && !options.durable);
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Options {
    /// The major version; by default the first one found.
    pub version: Option<u32>,
    /// Settings for `postgresql.conf`, such as `("work_mem", "64MB")`. They override the built-in ones.
    pub settings: Vec<(String, String)>,
    /// Make commits durable (`fsync = on`). A crash of the server alone loses nothing in either case.
    pub durable: bool,
    /// Also listen on 127.0.0.1, for tests with a proxy.
    pub tcp: bool,
    /// If no Postgres is installed, install or download one without asking. The same as `BUGLE_PG_OBTAIN=yes`.
    pub obtain: bool,
    /// Keep the data in this directory and reuse it. By default the data is removed with the server.
    pub keep: Option<PathBuf>,
    /// The `bugle` program that acts as the guardian; by default `BUGLE_BIN`.
    pub bugle_bin: Option<PathBuf>,
}

impl Options {
    /// A server that is removed afterwards, reached by a Unix socket, and not durable.
    pub fn new() -> Self {
        Options::default()
    }

    /// This major version.
    pub fn version(mut self, major: u32) -> Self {
        self.version = Some(major);
        self
    }

    /// Set a parameter of `postgresql.conf`.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Make commits durable.
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Also listen on 127.0.0.1.
    pub fn tcp(mut self) -> Self {
        self.tcp = true;
        self
    }

    /// Install or download Postgres without asking, if there is none.
    pub fn obtain(mut self) -> Self {
        self.obtain = true;
        self
    }

    /// Keep the data in this directory and reuse it.
    pub fn keep(mut self, directory: impl Into<PathBuf>) -> Self {
        self.keep = Some(directory.into());
        self
    }

    /// The `bugle` program that acts as the guardian.
    pub fn bugle_bin(mut self, program: impl Into<PathBuf>) -> Self {
        self.bugle_bin = Some(program.into());
        self
    }

    /// For the `bugle` program itself, which acts as its own guardian, whatever the name of its file.
    #[cfg(feature = "cli")]
    pub(crate) fn of_bugle() -> anyhow::Result<Options> {
        use anyhow::Context;
        let running = std::env::current_exe().context("cannot determine the path of this program")?;
        Ok(Options {
            bugle_bin: Some(running),
            ..Options::default()
        })
    }
}

/// The server shared by all tests: `BUGLE_SERVER_URL` if `bin/test` started one, otherwise one for this process.
///
/// The URL is that of the maintenance database `postgres`; each test creates its own database.
///
/// # Panics
/// If there is no server. A test cannot run without one.
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
        PrivatePostgres::start(&options).unwrap_or_else(|error| panic!("no Postgres for the tests: {error}"))
    });
    server.url("postgres")
}
