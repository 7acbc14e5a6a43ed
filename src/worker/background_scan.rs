//! Scans from the start of a queue, where they are expensive: on a connection of their own, so that no claim waits for
//! them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::db::calls::{self, Found};
use crate::db::connect::Link;
use crate::worker::Identity;

/// A scan that has ended.
pub struct BackgroundScan {
    pub queue: String,
    /// None: it failed, or a cursor is of no use in this queue.
    pub found: Option<Found>,
    pub took: Duration,
}

/// Starts scans, and tells when they have ended. The connection is opened for the first of them.
pub struct BackgroundScans {
    link: Arc<Link>,
    ends: mpsc::UnboundedSender<BackgroundScan>,
    ended: mpsc::UnboundedReceiver<BackgroundScan>,
}

impl BackgroundScans {
    pub fn new(link: Link) -> Self {
        let (ends, ended) = mpsc::unbounded_channel();
        BackgroundScans {
            link: Arc::new(link),
            ends,
            ended,
        }
    }

    /// Scan a queue for at most this many jobs.
    pub fn start(&self, me: Identity, queue: &str, most: i32) {
        let (link, ends, queue) = (self.link.clone(), self.ends.clone(), queue.to_string());
        tokio::spawn(async move {
            let mut started = Instant::now();
            let scan = async {
                let session = link.session().await?;
                started = Instant::now();
                calls::scan_ready(&session, me, &queue, most).await
            };
            let found = scan.await.unwrap_or_else(|error| {
                tracing::debug!(event = "background_scan", queue, %error);
                None
            });
            let took = started.elapsed();
            let _ = ends.send(BackgroundScan { queue, found, took });
        });
    }

    /// The next one that has ended.
    pub async fn ended(&mut self) -> Option<BackgroundScan> {
        self.ended.recv().await
    }
}
