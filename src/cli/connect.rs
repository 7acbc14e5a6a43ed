//! Which database: the same flag and variables for every subcommand.

use anyhow::{Result, bail};
use clap::Args;
use tokio_postgres::Config;

/// Which database to speak to.
#[derive(Debug, Clone, Args)]
pub struct Connect {
    /// Where the jobs are: postgres://user@host/database [else: DATABASE_URL]
    #[arg(long, global = true, value_name = "URL", env = "BUGLE_DATABASE_URL", hide_env_values = true)]
    database_url: Option<String>,
}

impl Connect {
    /// The connection string, or what to do without one.
    pub fn url(&self) -> Result<String> {
        match self.database_url.clone().or_else(|| std::env::var("DATABASE_URL").ok()) {
            Some(url) => Ok(url),
            None => bail!(
                "no database is named\nhint: give --database-url postgres://user@host/database, or set DATABASE_URL; \
                 or run \"bugle dev\" for a database of your own"
            ),
        }
    }

    /// How to connect.
    pub fn config(&self) -> Result<Config> {
        Ok(crate::connect::parse(&self.url()?)?)
    }
}
