//! The server of a benchmark, configured like one in production, with a new database for each run.

use std::sync::Mutex;

use anyhow::{Context, Result};
use tokio_postgres::Client;

use crate::db::connect;
use crate::db::connect::Target;
use crate::private_postgres::{Options, PrivatePostgres};
use crate::schema;

/// Settings that differ from the defaults of Postgres. fsync, full_page_writes and synchronous_commit are on, as by
/// default.
const SETTINGS: [(&str, &str); 3] = [
    ("shared_buffers", "512MB"),
    ("max_wal_size", "4GB"),
    ("synchronous_commit", "on"),
];

/// The server of a benchmark.
pub struct Server {
    config: Target,
    private: Option<PrivatePostgres>,
    /// What a temporary server was asked to be.
    version: Option<u32>,
    settings: Vec<(String, String)>,
    databases: Mutex<Vec<String>>,
}

impl Server {
    /// The server of this URL, or a temporary one. `settings` apply only to a temporary one.
    pub fn start(url: Option<&str>, version: Option<u32>, settings: &[(&str, &str)]) -> Result<Server> {
        let settings = SETTINGS.iter().chain(settings);
        let settings = settings
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect();
        Server::start_as(url, version, settings)
    }

    fn start_as(url: Option<&str>, version: Option<u32>, settings: Vec<(String, String)>) -> Result<Server> {
        let (config, private) = match url {
            Some(url) => (connect::parse(url)?, None),
            None => {
                let private = PrivatePostgres::start(&Options {
                    version,
                    durable: true,
                    settings: settings.clone(),
                    ..Options::of_bugle()?
                })?;
                (connect::parse(&private.url("postgres"))?, Some(private))
            }
        };
        Ok(Server {
            config,
            private,
            version,
            settings,
            databases: Mutex::default(),
        })
    }

    /// Whether it is a temporary one.
    pub fn is_private(&self) -> bool {
        self.private.is_some()
    }

    /// A second temporary server with the same settings.
    pub fn another(&self) -> Result<Server> {
        Server::start_as(None, self.version, self.settings.clone())
    }

    /// Kill a temporary server, as in a crash.
    pub fn kill(&mut self) -> Result<()> {
        let server = self.private.as_mut().context("this server is not ours")?;
        Ok(server.kill()?)
    }

    /// Start it again after that.
    pub fn start_again(&mut self) -> Result<()> {
        let server = self.private.as_mut().context("this server is not ours")?;
        Ok(server.start_again()?)
    }

    /// What a temporary server has logged.
    pub fn log(&self) -> String {
        self.private.as_ref().map(PrivatePostgres::log).unwrap_or_default()
    }

    /// A one-line description of the server.
    pub async fn describe(&self) -> Result<String> {
        let client = open(&self.config).await?;
        let row = client
            .query_one(
                "select current_setting('server_version'), \
                   string_agg(s.name || ' ' || current_setting(s.name), ', ' order by s.name) \
                 from pg_settings s \
                 where s.name in ('fsync', 'synchronous_commit', 'shared_buffers', 'max_wal_size', 'full_page_writes')",
                &[],
            )
            .await?;
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        Ok(format!(
            "PostgreSQL {} ({}), {}; {cores} cores, load {}",
            row.get::<_, &str>(0),
            if self.private.is_some() { "private" } else { "given" },
            row.get::<_, &str>(1),
            load().map_or("unknown".into(), |load| load.to_string()),
        ))
    }

    /// A new database with the schema in it.
    pub async fn database(&self) -> Result<Database> {
        let database = self.empty_database().await?;
        schema::migrate(&database.config).await?;
        Ok(database)
    }

    /// A new empty database.
    pub async fn empty_database(&self) -> Result<Database> {
        let name = format!("bugle_bench_{}_{:08x}", std::process::id(), fastrand::u32(..));
        open(&self.config)
            .await?
            .batch_execute(&format!("create database {name}"))
            .await?;
        self.databases.lock().unwrap().push(name.clone());
        let config = self.config.with_database(&name);
        Ok(Database { config, name })
    }

    /// Drop a database that is no longer needed, because its autovacuum would disturb the next measurement.
    pub async fn remove(&self, database: Database) -> Result<()> {
        self.databases.lock().unwrap().retain(|name| *name != database.name);
        self.remove_by_name(&database.name).await
    }

    /// Drop the remaining databases, after an error or Ctrl-C.
    pub async fn clean_up(&self) -> Result<()> {
        let left = std::mem::take(&mut *self.databases.lock().unwrap());
        for name in left {
            self.remove_by_name(&name).await?;
        }
        Ok(())
    }

    async fn remove_by_name(&self, name: &str) -> Result<()> {
        let client = open(&self.config).await?;
        client
            .batch_execute(&format!("drop database if exists {name} with (force)"))
            .await?;
        Ok(())
    }
}

/// A database of a benchmark.
pub struct Database {
    pub config: Target,
    pub name: String,
}

impl Database {
    /// A connection as the owner.
    pub async fn connect(&self) -> Result<Client> {
        open(&self.config).await
    }

    /// A connection string for another process.
    pub fn url(&self) -> String {
        self.config.connection_string()
    }
}

/// The load average of the last minute, if available.
pub fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg")
        .ok()?
        .split(' ')
        .next()?
        .parse()
        .ok()
}

/// Fill the queue with this number of no-op jobs in one statement, then run ANALYZE and CHECKPOINT, so that neither
/// happens during the measurement.
pub async fn fill(client: &Client, jobs: u64) -> Result<()> {
    client
        .execute(
            "insert into bugle.jobs (command, payload)
             select 'noop', jsonb_build_object('k', 'noop', 'i', i) from generate_series(1, $1::bigint) i",
            &[&(jobs as i64)],
        )
        .await?;
    settle(client).await
}

/// Run ANALYZE and CHECKPOINT now rather than during the measurement.
pub async fn settle(client: &Client) -> Result<()> {
    client.batch_execute("analyze").await?;
    // requires privileges that not every user has
    let _ = client.batch_execute("checkpoint").await;
    Ok(())
}

async fn open(config: &Target) -> Result<Client> {
    config.client("bugle bench").await.context("cannot connect to Postgres")
}
