//! Announces to the database which commands the hosts of this worker run, and how they are.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::mpsc;

use crate::db::calls;
use crate::db::connect::Link;
use crate::error::{Backoff, Result};
use crate::host::Hosts;
use crate::worker::claimer::Hint;
use crate::worker::crew::Crew;

/// The minimum interval between two announcements: a host that dies repeatedly must not keep the database busy.
const PAUSE: Duration = Duration::from_millis(200);

/// What it needs.
pub struct Announcer {
    pub hosts: Hosts,
    /// The commands that the worker runs itself.
    pub own: Vec<String>,
    pub crew: Arc<Crew>,
    pub link: Arc<Link>,
    pub hints: mpsc::UnboundedSender<Hint>,
}

impl Announcer {
    /// Announce each change until dropped.
    pub async fn run(self) {
        let mut changes = self.hosts.changes();
        let mut backoff = Backoff::new(PAUSE, Duration::from_secs(2));
        loop {
            changes.mark_unchanged();
            let are_known = self.hosts.are_known();
            if let Err(error) = self.announce().await {
                tracing::debug!(event = "announce", %error);
                tokio::time::sleep(backoff.next()).await;
                continue;
            }
            // jobs of new commands may have waited for a long time, and no notification announces them
            let _ = self.hints.send(Hint::Announced { are_known });
            tokio::time::sleep(PAUSE).await;
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    async fn announce(&self) -> Result<()> {
        let mut commands: Vec<String> = self.own.iter().cloned().chain(self.hosts.commands()).collect();
        commands.sort();
        commands.dedup();
        let hosts = json!(self.hosts.status());
        let session = self.link.session().await?;
        calls::serve(&session, self.crew.identity(), &commands, &hosts).await
    }
}
