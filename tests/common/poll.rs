//! Waiting for a state: the one place where a test sleeps, between two looks at what it waits for.
#![allow(dead_code)]

use std::fmt::Display;
use std::time::{Duration, Instant};

/// Generous, so that a busy machine fails nothing: a test fails by this only when something hangs.
pub const DEADLINE: Duration = Duration::from_secs(120);

const PAUSE: Duration = Duration::from_millis(5);

/// Look until there is something, and return it; none if there was nothing by the deadline.
pub async fn look_for<T, F>(look: impl FnMut() -> F) -> Option<T>
where
    F: Future<Output = Option<T>>,
{
    look_for_up_to(DEADLINE, look).await
}

/// The same with a patience of one's own.
pub async fn look_for_up_to<T, F>(patience: Duration, mut look: impl FnMut() -> F) -> Option<T>
where
    F: Future<Output = Option<T>>,
{
    let started = Instant::now();
    loop {
        if let Some(found) = look().await {
            return Some(found);
        }
        if started.elapsed() > patience {
            return None;
        }
        tokio::time::sleep(PAUSE).await; // why: this is the pause between two looks
    }
}

/// Wait for a condition in this process.
pub async fn eventually(what: impl Display, mut condition: impl FnMut() -> bool) {
    let found = look_for(|| std::future::ready(condition().then_some(()))).await;
    assert!(found.is_some(), "not in time: {what}");
}

/// The same where nothing is asynchronous.
pub fn eventually_blocking(what: impl Display, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < DEADLINE, "not in time: {what}");
        std::thread::sleep(PAUSE); // why: this is the pause between two looks
    }
}
