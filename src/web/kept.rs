//! Answers that are kept for all who ask, and how often each is read again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use tokio::sync::watch;

use super::site::Problem;

/// The longest pause for people who open a page.
const OPENED: Duration = Duration::from_secs(5);

/// How long an answer is kept: a number of times as long as reading it took.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// If it was cheap.
    least: Duration,
    times: f64,
    most: Duration,
}

impl Pace {
    /// For people, who open a page and wait for it.
    pub fn opened(least: Duration) -> Pace {
        Pace {
            least,
            times: 10.0,
            most: OPENED.max(least),
        }
    }

    /// For open pages that refresh themselves. Whatever a reading costs, all of them together take no more than this
    /// share of the time.
    pub fn watched(least: Duration, share: f64) -> Pace {
        Pace {
            least,
            times: 1.0 / share,
            most: Duration::MAX,
        }
    }

    /// For how long nothing is read after a reading that took this long.
    fn pause(self, cost: Duration) -> Duration {
        let pause = Duration::try_from_secs_f64(cost.as_secs_f64() * self.times).unwrap_or(Duration::MAX);
        pause.min(self.most).max(self.least)
    }
}

/// What came of a reading.
pub struct Reading<T> {
    pub result: Result<T, Problem>,
    /// How long the database took.
    pub cost: Duration,
}

impl<T> Reading<T> {
    pub fn new(result: Result<T, Problem>, cost: Duration) -> Reading<T> {
        Reading { result, cost }
    }

    /// One that the database has not worked for.
    pub fn free(result: Result<T, Problem>) -> Reading<T> {
        Reading::new(result, Duration::ZERO)
    }
}

/// An answer. One at a time reads it again, in a task of its own, since those who ask may leave.
pub struct Kept<T> {
    known: Mutex<Known<T>>,
    ended: watch::Sender<()>,
}

struct Known<T> {
    /// The last one that could be read, and when that began.
    value: Option<(Instant, Arc<T>)>,
    /// Why it could not be read again.
    problem: Option<Problem>,
    /// When the last reading ended, and what it cost.
    last: Option<(Instant, Duration)>,
    is_reading: bool,
    /// How often something was changed, and how many of these changes the last reading can have.
    changes: u64,
    seen: u64,
}

impl<T> Known<T> {
    /// Whether it is to be read again.
    fn is_due(&self, pace: Pace, now: Instant) -> bool {
        match self.last {
            Some((at, cost)) => self.seen < self.changes || now.saturating_duration_since(at) >= pace.pause(cost),
            None => true,
        }
    }

    fn answer(&self) -> Result<Option<(Instant, Arc<T>)>, Problem> {
        match &self.problem {
            Some(problem) => Err(problem.clone()),
            None => Ok(self.value.clone()),
        }
    }
}

impl<T> Default for Known<T> {
    fn default() -> Known<T> {
        Known {
            value: None,
            problem: None,
            last: None,
            is_reading: false,
            changes: 0,
            seen: 0,
        }
    }
}

impl<T> Default for Kept<T> {
    fn default() -> Kept<T> {
        Kept {
            known: Mutex::default(),
            ended: watch::Sender::new(()),
        }
    }
}

impl<T: Send + Sync + 'static> Kept<T> {
    /// The answer, and when it was read. If it is to be read again, wait this long for that: after it the last one is
    /// returned, if there is one. After a change there is no last one to fall back on.
    pub async fn ask<F>(
        self: &Arc<Self>,
        pace: Pace,
        patience: Duration,
        read: impl Fn() -> F,
    ) -> Result<Option<(Instant, Arc<T>)>, Problem>
    where
        F: Future<Output = Reading<T>> + Send + 'static,
    {
        let mut ended = self.ended.subscribe();
        let patience = tokio::time::sleep(patience);
        tokio::pin!(patience);
        loop {
            let is_outdated = {
                let mut known = self.known();
                if !known.is_due(pace, Instant::now()) {
                    return known.answer();
                }
                if !std::mem::replace(&mut known.is_reading, true) {
                    let under_way = UnderWay {
                        kept: self.clone(),
                        changes: known.changes,
                    };
                    tokio::spawn(under_way.finish(read()));
                }
                known.value.is_some() && known.seen < known.changes
            };
            tokio::select! {
                _ = ended.changed() => {}
                () = &mut patience, if !is_outdated => return Ok(self.known().value.clone()),
            }
        }
    }

    /// The last answer.
    pub fn latest(&self) -> Option<Arc<T>> {
        self.known().value.as_ref().map(|(_, value)| value.clone())
    }

    /// After a change: requests from now on get an answer that includes it.
    pub fn forget(&self) {
        self.known().changes += 1;
    }

    fn known(&self) -> MutexGuard<'_, Known<T>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reading. When it is dropped, another may begin.
struct UnderWay<T: Send + Sync + 'static> {
    kept: Arc<Kept<T>>,
    changes: u64,
}

impl<T: Send + Sync + 'static> UnderWay<T> {
    async fn finish(self, reading: impl Future<Output = Reading<T>>) {
        let began = Instant::now();
        let Reading { result, cost } = reading.await;
        let mut known = self.kept.known();
        known.seen = self.changes;
        match result {
            Ok(value) => {
                known.last = Some((Instant::now(), cost));
                known.value = Some((began, Arc::new(value)));
                known.problem = None;
            }
            Err(problem) => {
                // one that was cancelled has cost the time; a connection that was lost has not
                let is_slow = problem.status == StatusCode::GATEWAY_TIMEOUT;
                known.last = Some((Instant::now(), if is_slow { cost } else { Duration::ZERO }));
                known.problem = Some(problem);
            }
        }
    }
}

impl<T: Send + Sync + 'static> Drop for UnderWay<T> {
    fn drop(&mut self) {
        self.kept.known().is_reading = false;
        self.kept.ended.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const HOUR: Duration = Duration::from_secs(3600);

    /// Readings that wait until the test lets them end.
    struct Readings {
        begun: AtomicUsize,
        gate: Semaphore,
    }

    impl Readings {
        fn held() -> Arc<Readings> {
            Arc::new(Readings {
                begun: AtomicUsize::new(0),
                gate: Semaphore::new(0),
            })
        }

        fn end_one(&self) {
            self.gate.add_permits(1);
        }

        fn begun(&self) -> usize {
            self.begun.load(Ordering::SeqCst)
        }

        /// The number of the reading, which cost this long.
        async fn read(self: Arc<Self>, cost: Duration) -> Reading<usize> {
            let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
            self.gate.acquire().await.expect("it is never closed").forget();
            Reading {
                result: Ok(number),
                cost,
            }
        }
    }

    #[test]
    fn watching_costs_no_more_than_its_share_whatever_a_reading_costs() {
        let pace = Pace::watched(SECOND * 2, 0.0025);
        let mut known = Known::<()>::default();
        let costs = [5, 20, 600, 4000, 1, 90, 20_000].map(Duration::from_millis);
        let begin = Instant::now();
        let mut at = begin;
        let mut spent = Vec::new();
        // a page asks every second for a week
        while at < begin + HOUR * 24 * 7 {
            if known.is_due(pace, at) {
                let cost = costs[spent.len() % costs.len()];
                spent.push(cost);
                at += cost;
                known.last = Some((at, cost));
            }
            at += SECOND;
        }
        // the pause after the last one may not be over
        let last = spent.pop().expect("one at least");
        let share = spent.iter().sum::<Duration>().as_secs_f64() / (at - begin).as_secs_f64();
        assert!(share <= 0.0025 && last <= costs[6], "{share}");
        assert!(spent.len() > costs.len() * 5, "{}", spent.len());
    }

    #[tokio::test]
    async fn those_who_ask_at_once_share_one_reading_and_nobody_waits_longer_than_they_want() {
        let kept = Arc::new(Kept::default());
        let readings = Readings::held();
        let pace = Pace::watched(HOUR, 0.01);
        let ask = |patience| {
            let readings = readings.clone();
            let kept = kept.clone();
            async move { kept.ask(pace, patience, || readings.clone().read(SECOND)).await }
        };

        // nothing is known yet
        for _ in 0..3 {
            assert!(ask(Duration::ZERO).await.unwrap().is_none());
        }
        let waiting = [tokio::spawn(ask(HOUR)), tokio::spawn(ask(HOUR))];
        readings.end_one();
        for one in waiting {
            assert_eq!(*one.await.unwrap().unwrap().expect("an answer").1, 1);
        }
        assert_eq!(readings.begun(), 1);
        assert_eq!(*ask(Duration::ZERO).await.unwrap().expect("it is kept").1, 1);
        assert_eq!(readings.begun(), 1);
    }

    #[tokio::test]
    async fn after_a_change_nobody_gets_what_was_read_before() {
        let kept = Arc::new(Kept::default());
        let readings = Readings::held();
        let pace = Pace::watched(HOUR, 0.01);
        let ask = || {
            let readings = readings.clone();
            let kept = kept.clone();
            async move { kept.ask(pace, Duration::ZERO, || readings.clone().read(SECOND)).await }
        };
        assert!(ask().await.unwrap().is_none());
        readings.end_one();
        let mut ended = kept.ended.subscribe();
        while kept.latest().is_none() {
            ended.changed().await.unwrap();
        }

        kept.forget();
        readings.end_one();

        assert_eq!(*ask().await.unwrap().expect("an answer").1, 2);
    }

    #[tokio::test]
    async fn a_reading_that_was_cancelled_for_its_length_is_paid_for_and_one_that_broke_off_is_not() {
        for (status, paid) in [
            (StatusCode::GATEWAY_TIMEOUT, SECOND * 5),
            (StatusCode::SERVICE_UNAVAILABLE, Duration::ZERO),
        ] {
            let kept = Arc::new(Kept::<()>::default());
            let begun = AtomicUsize::new(0);
            let read = || {
                begun.fetch_add(1, Ordering::SeqCst);
                async move {
                    Reading {
                        result: Err(Problem::new(status, "")),
                        cost: SECOND * 5,
                    }
                }
            };
            for _ in 0..3 {
                let asked = kept.ask(Pace::watched(HOUR, 0.01), HOUR, read).await;
                assert_eq!(asked.expect_err("a problem").status, status);
            }
            assert_eq!(begun.load(Ordering::SeqCst), 1, "it is not repeated at once");
            assert_eq!(kept.known().last.map(|(_, cost)| cost), Some(paid));
        }
    }
}
