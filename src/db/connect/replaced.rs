//! Connections to a server that was replaced and does not say so: a primary that is frozen keeps its connections open
//! and answers nothing, while another one has taken over.
//!
//! A call that is not answered soon may also be waiting for a lock, or its server may be busy. So it is never given up
//! for the time it takes. A new connection tells whether the server is still the one that new connections reach.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::AbortHandle;

use super::target::Target;

/// A call that takes longer is a reason to look; and to look again.
const SILENCE: Duration = Duration::from_secs(2);
/// The longest time to wait for a new connection.
const LOOK: Duration = Duration::from_secs(3);

/// The connections that are open, each with its server.
#[derive(Clone, Default)]
pub(super) struct Opened(Arc<Mutex<Vec<(ServerId, AbortHandle)>>>);

/// When the server was started: no two servers have that in common.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct ServerId(String);

impl ServerId {
    /// The statement that returns it.
    pub const QUESTION: &str = "select extract(epoch from pg_catalog.pg_postmaster_start_time())";

    pub fn new(answer: &str) -> ServerId {
        ServerId(answer.to_owned())
    }
}

impl Opened {
    /// Remember a connection until the task that drives it ends.
    pub fn add(&self, server: ServerId, driver: AbortHandle) {
        let mut opened = self.0.lock().unwrap();
        opened.retain(|(_, driver)| !driver.is_finished());
        opened.push((server, driver));
    }

    /// Close those of other servers, so that calls on them end with an error. Returns how many these were.
    fn close_others(&self, server: &ServerId) -> usize {
        let mut opened = self.0.lock().unwrap();
        opened.retain(|(_, driver)| !driver.is_finished());
        let others = opened.iter().filter(|(of, _)| of != server);
        others.map(|(_, driver)| driver.abort()).count()
    }
}

impl Target {
    /// Wait for a call to the database; `name` is that of the connections that look after it.
    pub(crate) async fn watched<T>(&self, name: &str, call: impl Future<Output = T>) -> T {
        let mut call = std::pin::pin!(call);
        loop {
            tokio::select! {
                answer = &mut call => return answer,
                () = tokio::time::sleep(SILENCE) => {}
            }
            tokio::select! {
                answer = &mut call => return answer,
                () = self.close_replaced(name) => {}
            }
        }
    }

    /// Close all connections to servers other than the one that is reached now. Without an answer, nothing is known.
    async fn close_replaced(&self, name: &str) {
        let reached = async {
            let (client, connection) = self.connect(name).await.ok()?;
            let driven = tokio::spawn(connection);
            let answer = client.simple_query(ServerId::QUESTION).await;
            driven.abort();
            super::pinned::first_value(&answer.ok()?).map(ServerId::new)
        };
        if let Ok(Some(server)) = tokio::time::timeout(LOOK, reached).await {
            let closed = self.opened.close_others(&server);
            if closed > 0 {
                let why = "their server no longer responds, and another one has taken its place";
                tracing::warn!(event = "disconnected", connections = closed, error = why);
            }
        }
    }
}
