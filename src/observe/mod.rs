//! Observability of a running worker: counters (tallies), health, and the endpoints that expose them.

pub(crate) mod error_line;
mod health;
#[cfg(feature = "web")]
mod listen;
mod metrics;
#[cfg(feature = "web")]
mod process;
#[cfg(feature = "web")]
mod render;
mod tally;
pub mod trace;

use std::net::SocketAddr;
use std::time::Duration;

pub use health::Health;
#[cfg(feature = "web")]
pub use listen::{EndpointState, Endpoints, bind, listen};
pub use metrics::{Kind, METRICS, Metric};
pub use tally::{Ending, Run, StepEnding, Tallies, time};

use crate::db::calls;
use crate::db::connect::Session;
use crate::error::{Error, Result};
use crate::worker::Identity;

/// The minimum interval between two reports of a worker to the database.
pub const REPORT_EVERY: Duration = Duration::from_secs(5);

/// The internal state of this worker that is observable.
#[derive(Default)]
pub struct Observed {
    /// Its counters.
    pub tallies: Tallies,
    /// Its health.
    pub health: Health,
}

impl Observed {
    /// Report the counts since the last report to the database (`bugle.minutes`). A failed report is repeated later.
    pub async fn report(&self, session: &Session, me: Identity) {
        let (reports, bells) = (self.tallies.take_reports(), self.tallies.take_bells());
        if reports.is_empty() && bells.is_empty() {
            return;
        }
        match calls::report_minutes(session, me, &reports, &bells).await {
            Ok(now) => self.tallies.set_clock(now),
            Err(error) => {
                tracing::debug!(event = "report", %error);
                self.tallies.put_back(reports);
                bells
                    .iter()
                    .for_each(|bell| self.tallies.bell(&bell.queue, bell.rings, bell.found_by_poll));
            }
        }
    }
}

/// Reject an address that other machines can reach if there is no token.
///
/// # Errors
/// If other machines can reach the address and there is no token.
pub fn check_address(address: SocketAddr, has_token: bool) -> Result<()> {
    if address.ip().is_loopback() || has_token {
        return Ok(());
    }
    Err(Error::new(format!(
        "listen address {address} is reachable from other machines, but no token is set"
    ))
    .with_hint("Set a token (--token, BUGLE_TOKEN, or token in the file), or listen on 127.0.0.1."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_others_can_reach_needs_a_token() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();

        assert!(check_address(at("127.0.0.1:8421"), false).is_ok());
        assert!(check_address(at("[::1]:8421"), false).is_ok());
        assert!(check_address(at("0.0.0.0:8421"), true).is_ok());
        let error = check_address(at("0.0.0.0:8421"), false).unwrap_err();
        assert!(error.to_string().contains("no token is set"), "{error}");
    }
}
