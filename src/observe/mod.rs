//! What a worker can be asked while it runs: what it did (tallies), whether it is well (health), and the endpoints that
//! say so.

mod api;
mod health;
mod listen;
pub mod log;
mod metrics;
mod render;
mod tally;
pub mod trace;

use std::time::Duration;

pub use health::Health;
pub use listen::{EndpointState, bind, check_address, listen};
pub use metrics::{Kind, METRICS, Metric};
pub use tally::{Ending, Tallies, time};

use crate::db::calls;
use crate::db::connect::Session;
use crate::worker::Identity;

/// How often a worker tells the database what it did, at most.
pub const REPORT_EVERY: Duration = Duration::from_secs(5);

/// All that is known about this worker from inside.
#[derive(Default)]
pub struct Observed {
    /// What it did.
    pub tallies: Tallies,
    /// How it is.
    pub health: Health,
}

impl Observed {
    /// Tell the database what was done since the last time: `bugle.minutes`. What cannot be told now is told later.
    pub async fn report(&self, session: &Session, me: Identity) {
        let reports = self.tallies.take_reports();
        if reports.is_empty() {
            return;
        }
        match calls::report_minutes(session, me, &reports).await {
            Ok(now) => self.tallies.set_clock(now),
            Err(error) => {
                tracing::debug!(event = "report", %error);
                self.tallies.put_back(reports);
            }
        }
    }
}
