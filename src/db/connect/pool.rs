//! Pools: connections that are opened when they are needed, and kept for the next use.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::Arc;
#[cfg(feature = "web")]
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio_postgres::types::Type;
use tokio_postgres::{CancelToken, Client, Statement};

use super::refusal::refusal;
use super::{IDLE, IDLE_CHECK, Target, is_lent, pinned};
use crate::error::{Error, Result};

/// A connection from a pool: a [`tokio_postgres::Client`], returned to its pool when it is dropped.
pub struct Connection(deadpool_postgres::Object);

impl Deref for Connection {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0
    }
}

impl DerefMut for Connection {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.0
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connection {
    /// Prepare a statement once in the life of this connection.
    pub(crate) async fn prepare_cached(&self, sql: &str) -> Result<Statement> {
        Ok(self.0.prepare_cached(sql).await?)
    }

    /// The same, with the types of parameters.
    pub(crate) async fn prepare_typed_cached(
        &self,
        sql: &str,
        types: &[Type],
    ) -> std::result::Result<Statement, tokio_postgres::Error> {
        self.0.prepare_typed_cached(sql, types).await
    }

    /// Forget the statements that were prepared on this connection.
    pub(crate) fn forget_prepared(&self) {
        self.0.statement_cache.clear();
    }

    /// Close it instead of returning it to its pool.
    pub(crate) fn discard(self) {
        drop(deadpool_postgres::Object::take(self.0));
    }
}

/// Connections to one database.
#[derive(Clone)]
pub struct Pool {
    connections: deadpool_postgres::Pool,
    /// Shared: each job has a clone of its worker's pool.
    target: Arc<Target>,
}

impl Pool {
    /// A pool for a client. A pooler may be in between; session settings are pinned only if there is none.
    ///
    /// # Errors
    /// If the pool cannot be built.
    pub fn for_client(target: &Target, name: &str, size: usize) -> Result<Pool> {
        Pool::new(target, name, size, OnceCell::new(), None)
    }

    /// A pool for a client whose statements run as another role (`SET ROLE`).
    ///
    /// # Errors
    /// If the pool cannot be built.
    #[cfg(feature = "web")]
    pub fn for_role(target: &Target, name: &str, size: usize, role: &str) -> Result<Pool> {
        Pool::new(target, name, size, OnceCell::new(), Some(role.to_owned()))
    }

    /// A pool for a worker, whose sessions are its own.
    ///
    /// # Errors
    /// If the pool cannot be built.
    pub fn for_worker(target: &Target, name: &str, size: usize) -> Result<Pool> {
        let pool = Pool::new(target, name, size, OnceCell::new_with(Some(false)), None)?;
        pool.close_when_idle();
        Ok(pool)
    }

    /// In a large fleet connections run out first, and most workers use theirs rarely.
    fn close_when_idle(&self) {
        let pool = self.connections.weak();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(IDLE_CHECK).await;
                let Some(pool) = pool.upgrade() else { return };
                pool.retain(|_, connection| connection.last_used() < IDLE);
            }
        });
    }

    fn new(target: &Target, name: &str, size: usize, is_lent: OnceCell<bool>, role: Option<String>) -> Result<Pool> {
        let connect = Dialer {
            target: target.clone(),
            application_name: format!("bugle {name} (pool)"),
            is_lent,
            role,
        };
        let manager = deadpool_postgres::Manager::from_connect(
            tokio_postgres::Config::new(),
            connect,
            deadpool_postgres::ManagerConfig {
                recycling_method: deadpool_postgres::RecyclingMethod::Fast,
            },
        );
        let connections = deadpool_postgres::Pool::builder(manager)
            .max_size(size)
            .runtime(deadpool_postgres::Runtime::Tokio1)
            .build()
            .map_err(|error| Error::new(format!("cannot make a connection pool: {error}")))?;
        Ok(Pool {
            connections,
            target: Arc::new(target.clone()),
        })
    }

    /// A connection, as soon as one is free.
    ///
    /// # Errors
    /// If none can be opened.
    pub async fn get(&self) -> Result<Connection> {
        match self.connections.get().await {
            Ok(connection) => Ok(Connection(connection)),
            Err(deadpool_postgres::PoolError::Backend(error)) => Err(error.into()),
            Err(other) => Err(Error::new(other.to_string())),
        }
    }

    /// The same; an error says which server could not be reached, and what to do.
    ///
    /// # Errors
    /// If none can be opened.
    pub async fn get_or_explain(&self) -> Result<Connection> {
        match self.connections.get().await {
            Ok(connection) => Ok(Connection(connection)),
            Err(deadpool_postgres::PoolError::Backend(error)) => Err(self.target.explained_of_pool(error)),
            Err(other) => Err(Error::new(other.to_string())),
        }
    }

    /// Close the connections that were idle for this long, and those that are older than that: what was changed about a
    /// login takes effect when it logs in again.
    #[cfg(feature = "web")]
    pub fn close_unused(&self, idle: Duration, oldest: Duration) {
        self.connections
            .retain(|_, metrics| metrics.last_used() < idle && metrics.age() < oldest);
    }

    /// Ask the server to cancel the statement that a connection of this pool is running.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub async fn cancel(&self, statement: &CancelToken) -> Result<()> {
        Ok(statement.cancel_query(self.target.connector().afresh()).await?)
    }
}

struct Dialer {
    target: Target,
    application_name: String,
    /// Whether a pooler lends the sessions; looked for once.
    is_lent: OnceCell<bool>,
    /// Another role that statements run as.
    role: Option<String>,
}

type Opened = std::result::Result<(Client, tokio::task::JoinHandle<()>), tokio_postgres::Error>;

impl deadpool_postgres::Connect for Dialer {
    fn connect(&self, _: &tokio_postgres::Config) -> Pin<Box<dyn Future<Output = Opened> + Send + '_>> {
        Box::pin(async {
            let dialled = self.target.dial(&self.application_name).await;
            let (client, connection) = dialled.map_err(|(error, _)| error)?;
            let driven = tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(event = "disconnected", %error, "a connection of the pool");
                }
            });
            // if it cannot be told, they are left as they are
            let look = || async { is_lent(&self.target).await.unwrap_or(true) };
            let is_lent = *self.is_lent.get_or_init(look).await;
            if !is_lent {
                let server = pinned::pin_shared_session(&self.target, &client).await?;
                self.target.opened.add(server, driven.abort_handle());
            }
            if let Some(role) = &self.role {
                if is_lent {
                    let why = "a session of a connection pooler in transaction mode has no role of its own";
                    return Err(refusal(io::ErrorKind::Unsupported, why).await);
                }
                let role = role.replace('"', "\"\"");
                client.batch_execute(&format!("set role \"{role}\"")).await?;
            }
            Ok((client, driven))
        })
    }
}
