//! Connections to Postgres, as a worker needs them: pinned settings, notifications heard, death noticed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Notification, Row, Statement};

use crate::error::{Error, Result};

/// What nobody else's defaults may change under a worker: a role can carry a statement timeout or an isolation level that
/// would break a claim.
const PINNED: &str = "set default_transaction_isolation = 'read committed'; \
    set statement_timeout = 0; set lock_timeout = 0; set idle_in_transaction_session_timeout = 0; set jit = off; \
    set default_transaction_read_only = off; set tcp_keepalives_idle = 5; set tcp_keepalives_interval = 2; \
    set tcp_keepalives_count = 3; set tcp_user_timeout = 10000; set client_min_messages = warning";

/// Parse a connection string, with the limits that let a dead link be noticed in seconds.
pub fn parse(url: &str) -> Result<Config> {
    let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
        Error::from(error).hint("Expected postgres://user@host/database, or host=… user=… dbname=….")
    })?;
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(Duration::from_secs(10));
    }
    config
        .keepalives_idle(Duration::from_secs(5))
        .keepalives_interval(Duration::from_secs(2))
        .keepalives_retries(3)
        .tcp_user_timeout(Duration::from_secs(10));
    if config.get_user().is_none() {
        let user = std::env::var("PGUSER")
            .or_else(|_| std::env::var("USER"))
            .unwrap_or_else(|_| "postgres".into());
        config.user(user);
    }
    Ok(config)
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
    pub async fn open(config: &Config, application_name: &str) -> Result<(Arc<Session>, Notifications)> {
        let mut config = config.clone();
        config.application_name(application_name);
        let (client, mut connection) = config.connect(NoTls).await?;
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
        client.batch_execute(PINNED).await?;
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

/// A connection that is opened again when it was lost. Callers repeat what failed; every call is safe to repeat.
pub struct Link {
    config: Config,
    application_name: String,
    current: tokio::sync::Mutex<Option<Arc<Session>>>,
}

impl Link {
    /// A link that connects when it is first used.
    pub fn new(config: Config, application_name: &str) -> Self {
        Link {
            config,
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
        let (session, _) = Session::open(&self.config, &self.application_name).await?;
        *current = Some(session.clone());
        Ok(session)
    }
}

/// A pool for executors and clients: the same settings, opened when needed.
///
/// # Errors
/// If the pool cannot be built.
pub fn pool(config: &Config, name: &str, size: usize) -> Result<deadpool_postgres::Pool> {
    let mut config = config.clone();
    config.application_name(format!("bugle {name} (pool)"));
    let manager = deadpool_postgres::Manager::from_config(
        config,
        NoTls,
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
