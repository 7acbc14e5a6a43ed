//! Scouts: where a look from the beginning of a queue is dear, it is made on a connection of its own, and nobody waits for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::db::calls;
use crate::db::connect::Link;
use crate::worker::Identity;
use crate::worker::lane::Scouted;

/// What a scout has to say about a queue.
pub struct Report {
    pub queue: String,
    /// None: it could not look, or a look from there would be of no use.
    pub scouted: Option<Scouted>,
    pub took: Duration,
}

/// Sends scouts, and hears from them. The connection is opened for the first of them.
pub struct Scouts {
    link: Arc<Link>,
    reports: mpsc::UnboundedSender<Report>,
    back: mpsc::UnboundedReceiver<Report>,
}

impl Scouts {
    pub fn new(link: Link) -> Self {
        let (reports, back) = mpsc::unbounded_channel();
        Scouts {
            link: Arc::new(link),
            reports,
            back,
        }
    }

    /// Look into a queue for up to so many jobs.
    pub fn send(&self, me: Identity, queue: &str, most: i32) {
        let (link, reports, queue) = (self.link.clone(), self.reports.clone(), queue.to_string());
        tokio::spawn(async move {
            let mut started = Instant::now();
            let scouted = async {
                let session = link.session().await?;
                started = Instant::now();
                calls::scout(&session, me, &queue, most).await
            };
            let scouted = scouted.await.unwrap_or_else(|error| {
                tracing::debug!(event = "scout", queue, %error);
                None
            });
            let took = started.elapsed();
            let _ = reports.send(Report { queue, scouted, took });
        });
    }

    /// The next one that is back.
    pub async fn back(&mut self) -> Option<Report> {
        self.back.recv().await
    }
}
