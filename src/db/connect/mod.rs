//! Connections to Postgres for workers: pinned settings, notifications, detection of lost connections.
//!
//! They are specified as for psql: [`Target`].

mod certificate;
mod dial;
mod explain;
mod origin;
mod parameters;
mod passfile;
mod pinned;
mod pool;
mod refusal;
mod replaced;
mod server_address;
mod target;
mod tls;
mod unnamed;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Notification, Row, Statement};

#[cfg(feature = "migrate")]
pub(crate) use pinned::own_transaction;
use pinned::pin_session;
#[cfg(feature = "cli")]
pub(crate) use pinned::transaction;
pub(crate) use pinned::{asked, is_lent};
pub use pool::Connection;
pub(crate) use pool::Pool;
pub use target::Target;
pub(crate) use unnamed::{Parameter, Unnamed};

use crate::config::Environment;
use crate::error::{Error, Result};

/// A worker closes a connection that was opened on demand and has not been used for this time. It checks as often.
const IDLE: Duration = Duration::from_secs(30);
const IDLE_CHECK: Duration = Duration::from_secs(10);

/// Parse a connection string. Missing parameters are taken from the environment, as in psql.
///
/// # Errors
/// If it is invalid, or names a file that cannot be read.
pub fn parse(url: &str) -> Result<Target> {
    Target::parse(url)
}

/// The same for a string from a variable, a flag or a file, which errors mention.
///
/// # Errors
/// As [`parse`].
pub fn parse_given_by(source: &str, url: &str) -> Result<Target> {
    Target::parse_given_by(source, url)
}

/// Whether the environment alone specifies a database: `PGHOST`, `PGDATABASE`, `PGSERVICE`.
pub fn is_named_by(environment: Environment) -> bool {
    parameters::named_by(environment)
}

/// One connection with its prepared statements.
#[doc(hidden)]
pub struct Session {
    client: Client,
    prepared: Mutex<HashMap<&'static str, Statement>>,
}

/// Notifications from the server. Closed when the connection is lost.
#[doc(hidden)]
pub type Notifications = mpsc::UnboundedReceiver<Notification>;

impl Session {
    /// Connect and pin the session's settings.
    ///
    /// # Errors
    /// If the server cannot be reached or rejects the connection.
    pub async fn open(target: &Target, application_name: &str) -> Result<(Arc<Session>, Notifications)> {
        let (client, mut connection) = target.connect(application_name).await?;
        let (sender, notifications) = mpsc::unbounded_channel();
        // always drained: a listening session that does not read blocks the notification queue of the whole cluster
        let driver = tokio::spawn(async move {
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
        let server = pin_session(target, &client).await?;
        target.opened.add(server, driver.abort_handle());
        let session = Session {
            client,
            prepared: Mutex::default(),
        };
        Ok((Arc::new(session), notifications))
    }

    /// Whether the connection is lost.
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

/// Check that the session is not shared: the proof of life of a worker is a lock of its session.
///
/// # Errors
/// If there is a pooler in transaction mode in between, or the server cannot be reached.
pub(crate) async fn refuse_pooler(target: &Target) -> Result<()> {
    if !is_lent(target).await? {
        return Ok(());
    }
    Err(
        Error::new("this connection goes through a connection pooler in transaction mode").with_hint(
            "The proof of life of a worker is a lock of its session: connect it to Postgres directly, or through a \
             pooler in session mode. Clients and operators can use any pooler.",
        ),
    )
}

/// A connection that is reopened when it is lost. Callers repeat failed calls; every call is safe to repeat.
#[doc(hidden)]
pub struct Link {
    target: Target,
    application_name: String,
    /// And when it was last asked for.
    current: tokio::sync::Mutex<Option<(Arc<Session>, Instant)>>,
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

    /// Wait for a call on this link, but not for a server that was replaced and answers no more.
    pub async fn watched<T>(&self, call: impl Future<Output = T>) -> T {
        let name = format!("{} (look)", self.application_name);
        self.target.watched(&name, call).await
    }

    /// The open session, or a new one.
    ///
    /// # Errors
    /// If the server cannot be reached or rejects the connection.
    pub async fn session(&self) -> Result<Arc<Session>> {
        let mut current = self.current.lock().await;
        if let Some((session, used)) = current.as_mut().filter(|(session, _)| !session.is_closed()) {
            *used = Instant::now();
            return Ok(session.clone());
        }
        let (session, _) = Session::open(&self.target, &self.application_name).await?;
        *current = Some((session.clone(), Instant::now()));
        Ok(session)
    }

    /// From now on its connection is closed when it is idle.
    pub fn close_when_idle(self: &Arc<Self>) {
        let link = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(IDLE_CHECK).await;
                let Some(link) = link.upgrade() else { return };
                let is_idle = |(session, used): &mut (Arc<Session>, Instant)| {
                    Arc::strong_count(session) == 1 && used.elapsed() >= IDLE
                };
                drop(link.current.lock().await.take_if(is_idle));
            }
        });
    }
}
