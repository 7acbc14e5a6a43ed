//! Connections to Postgres, as a worker needs them: pinned settings, notifications heard, death noticed.
//!
//! Where they go is said as to psql: [`Target`].

mod certificate;
mod dial;
mod explain;
mod origin;
mod parameters;
mod passfile;
mod pinned;
mod refusal;
mod server_address;
mod target;
mod tls;
mod unnamed;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use tokio::sync::{OnceCell, mpsc};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, CancelToken, Client, Notification, Row, Statement};

pub(crate) use pinned::{asked, is_lent, own_transaction, pin_session, transaction};
pub use target::Target;
pub(crate) use unnamed::{Parameter, Unnamed};

use crate::config::Environment;
use crate::error::{Error, Result};

/// Parse a connection string; what it leaves out is taken from the environment, as psql does.
///
/// # Errors
/// If it says something that is not understood, or names a file that cannot be read.
pub fn parse(url: &str) -> Result<Target> {
    Target::parse(url)
}

/// The same, for a string that a variable, a flag or a file gave: errors say so.
///
/// # Errors
/// As [`parse`].
pub fn parse_given_by(source: &str, url: &str) -> Result<Target> {
    Target::parse_given_by(source, url)
}

/// Whether the environment alone names a database: `PGHOST`, `PGDATABASE`, `PGSERVICE`.
pub fn is_named_by(environment: Environment) -> bool {
    parameters::named_by(environment)
}

/// One connection with its prepared statements.
pub struct Session {
    client: Client,
    prepared: Mutex<HashMap<&'static str, Statement>>,
}

/// What the server says unasked. Closed when the connection is gone.
pub type Notifications = mpsc::UnboundedReceiver<Notification>;

impl Session {
    /// Connect and pin the session's settings.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses.
    pub async fn open(target: &Target, application_name: &str) -> Result<(Arc<Session>, Notifications)> {
        let (client, mut connection) = target.connect(application_name).await?;
        let (sender, notifications) = mpsc::unbounded_channel();
        // Always drained: a session that listens and does not read holds back the whole cluster's notification queue.
        tokio::spawn(async move {
            while let Some(message) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
                match message {
                    Ok(AsyncMessage::Notification(notification)) => {
                        let _ = sender.send(notification);
                    }
                    Ok(AsyncMessage::Notice(notice)) => {
                        tracing::debug!(event = "notice", message = notice.message());
                    }
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
        });
        pin_session(&client).await?;
        let session = Session {
            client,
            prepared: Mutex::default(),
        };
        Ok((Arc::new(session), notifications))
    }

    /// Whether the connection is gone.
    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) async fn query(&self, sql: &'static str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        let statement = self.prepare(sql, &[]).await?;
        Ok(self.client.query(&statement, params).await?)
    }

    async fn prepare(&self, sql: &'static str, types: &[Type]) -> Result<Statement> {
        if let Some(statement) = self.prepared.lock().unwrap().get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare_typed(sql, types).await?;
        self.prepared.lock().unwrap().insert(sql, statement.clone());
        Ok(statement)
    }
}

/// A worker's proof of life is a lock of its session, so it needs one of its own.
///
/// # Errors
/// If a pooler lends sessions for one transaction at a time, or the server cannot be reached.
pub(crate) async fn refuse_pooler(target: &Target) -> Result<()> {
    if !is_lent(target).await? {
        return Ok(());
    }
    Err(
        Error::new("this connection goes through a pooler that lends a session for one transaction at a time").hint(
            "A worker proves that it is alive by a lock of its session: connect it to Postgres directly, or through a \
             pooler in session mode. Enqueueing and operating work through any pooler.",
        ),
    )
}

/// A connection that is opened again when it was lost. Callers repeat what failed; every call is safe to repeat.
pub struct Link {
    target: Target,
    application_name: String,
    current: tokio::sync::Mutex<Option<Arc<Session>>>,
}

impl Link {
    /// A link that connects when it is first used.
    pub fn new(target: Target, application_name: &str) -> Self {
        Link {
            target,
            application_name: application_name.to_string(),
            current: tokio::sync::Mutex::default(),
        }
    }

    /// The open session, or a new one.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses.
    pub async fn session(&self) -> Result<Arc<Session>> {
        let mut current = self.current.lock().await;
        if let Some(session) = current.as_ref().filter(|s| !s.is_closed()) {
            return Ok(session.clone());
        }
        let (session, _) = Session::open(&self.target, &self.application_name).await?;
        *current = Some(session.clone());
        Ok(session)
    }
}

/// A pool for clients: opened when needed. A pooler may be in between; settings are pinned only if there is none.
///
/// # Errors
/// If the pool cannot be built.
pub fn pool(target: &Target, name: &str, size: usize) -> Result<deadpool_postgres::Pool> {
    pool_of(target, name, size, OnceCell::new())
}

/// The same for a worker, whose sessions are its own.
///
/// # Errors
/// If the pool cannot be built.
pub fn own_pool(target: &Target, name: &str, size: usize) -> Result<deadpool_postgres::Pool> {
    pool_of(target, name, size, OnceCell::new_with(Some(false)))
}

fn pool_of(target: &Target, name: &str, size: usize, is_lent: OnceCell<bool>) -> Result<deadpool_postgres::Pool> {
    let connect = Dialer {
        target: target.clone(),
        application_name: format!("bugle {name} (pool)"),
        is_lent,
    };
    let manager = deadpool_postgres::Manager::from_connect(
        tokio_postgres::Config::new(),
        connect,
        deadpool_postgres::ManagerConfig {
            recycling_method: deadpool_postgres::RecyclingMethod::Fast,
        },
    );
    deadpool_postgres::Pool::builder(manager)
        .max_size(size)
        .runtime(deadpool_postgres::Runtime::Tokio1)
        .build()
        .map_err(|error| Error::new(format!("cannot make a connection pool: {error}")))
}

struct Dialer {
    target: Target,
    application_name: String,
    /// Whether a pooler lends the sessions; looked for once.
    is_lent: OnceCell<bool>,
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
            if !*self.is_lent.get_or_init(look).await {
                pinned::pin_shared_session(&client).await?;
            }
            Ok((client, driven))
        })
    }
}

/// The pool of a worker's executors, with the way to have a statement of theirs cancelled.
#[derive(Clone)]
pub struct Pool {
    connections: deadpool_postgres::Pool,
    tls: tls::Connector,
}

impl Pool {
    /// A pool that opens its connections when they are needed.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn new(target: &Target, name: &str, size: usize) -> Result<Pool> {
        Ok(Pool {
            connections: own_pool(target, name, size)?,
            tls: target.connector(),
        })
    }

    /// A connection, as soon as one is free.
    ///
    /// # Errors
    /// If none can be opened.
    pub async fn get(&self) -> Result<deadpool_postgres::Object, deadpool_postgres::PoolError> {
        self.connections.get().await
    }

    /// Ask the server to end what a connection of this pool is doing.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub async fn cancel(&self, statement: &CancelToken) -> Result<()> {
        Ok(statement.cancel_query(self.tls.afresh()).await?)
    }
}
