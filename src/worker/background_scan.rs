//! Scans from the start of a queue when they are expensive: on a separate connection, so that no claim waits for them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::db::calls::{self, Found};
use crate::db::connect::Link;
use crate::worker::Identity;

/// A finished scan.
pub struct BackgroundScan {
    pub queue: String,
    /// `None` if it failed or this queue cannot use a cursor.
    pub found: Option<Found>,
    pub took: Duration,
}

/// Starts scans and returns their results. The connection is opened for the first scan, and
/// closed when there has been none for a while.
pub struct BackgroundScans {
    link: Arc<Link>,
    ends: mpsc::UnboundedSender<BackgroundScan>,
    ended: mpsc::UnboundedReceiver<BackgroundScan>,
}

impl BackgroundScans {
    pub fn new(link: Link) -> Self {
        let (ends, ended) = mpsc::unbounded_channel();
        let link = Arc::new(link);
        link.close_when_idle();
        BackgroundScans { link, ends, ended }
    }

    /// Scan a queue for at most this number of jobs.
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

    /// The next finished scan.
    pub async fn ended(&mut self) -> Option<BackgroundScan> {
        self.ended.recv().await
    }
}
