//! Orders of operators that notifications announce. They are looked up before they are followed, at a bounded rate.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::job::HeldJob;

/// The pause after an order that the database did not confirm. It doubles each time.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Orders that have not been looked up yet.
#[derive(Debug)]
pub struct Orders {
    cancelled: HashSet<HeldJob>,
    drain: bool,
    not_before: Instant,
    pause: Duration,
}

impl Default for Orders {
    fn default() -> Orders {
        Orders {
            cancelled: HashSet::new(),
            drain: false,
            not_before: Instant::now(),
            pause: Duration::ZERO,
        }
    }
}

impl Orders {
    /// A notification says that a running job was cancelled.
    pub fn cancel(&mut self, held: HeldJob) {
        self.cancelled.insert(held);
    }

    /// A notification says that this worker is to drain.
    pub fn drain(&mut self) {
        self.drain = true;
    }

    /// When to look up pending orders, if there are any.
    pub fn next_check(&self) -> Option<Instant> {
        let is_due = self.drain || !self.cancelled.is_empty();
        is_due.then_some(self.not_before)
    }

    /// The orders to look up now: cancelled jobs, and whether to drain.
    pub fn take(&mut self, now: Instant) -> Option<(Vec<HeldJob>, bool)> {
        if self.next_check()? > now {
            return None;
        }
        Some((self.cancelled.drain().collect(), std::mem::take(&mut self.drain)))
    }

    /// Record whether the database confirmed any of the orders.
    pub fn checked(&mut self, is_confirmed: bool, now: Instant) {
        if is_confirmed {
            (self.not_before, self.pause) = (now, Duration::ZERO);
            return;
        }
        if self.pause.is_zero() {
            tracing::warn!(
                event = "notify",
                "a notification announced an order that the database does not confirm; it was ignored"
            );
        }
        self.pause = (self.pause * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        self.not_before = now + self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: HeldJob = HeldJob { id: 7, claim: 1 };

    #[test]
    fn an_order_is_looked_up_at_once() {
        let mut orders = Orders::default();
        assert_eq!(orders.next_check(), None);

        orders.cancel(JOB);
        orders.drain();

        assert_eq!(orders.take(Instant::now()), Some((vec![JOB], true)));
        assert_eq!(orders.next_check(), None);
    }

    #[test]
    fn after_forged_orders_the_next_ones_wait_longer_and_longer_until_one_is_true() {
        let mut orders = Orders::default();
        let now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..9 {
            orders.checked(false, now);
            orders.drain();
            pauses.push(orders.next_check().unwrap() - now);
        }

        assert_eq!(pauses[..3], [10, 20, 40].map(Duration::from_millis));
        assert_eq!(pauses[8], LONGEST_PAUSE);
        assert_eq!(orders.take(now), None);
        assert_eq!(orders.take(now + LONGEST_PAUSE), Some((Vec::new(), true)));

        orders.checked(true, now);
        orders.cancel(JOB);
        assert_eq!(orders.take(Instant::now()), Some((vec![JOB], false)));
    }
}
