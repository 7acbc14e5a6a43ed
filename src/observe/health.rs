//! Whether a worker is well: for `/livez`, `/readyz`, and the watchdog.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::execute::shortage::Throttle;

/// A heartbeat that was not answered for this long makes a worker unready.
const SILENCE: Duration = Duration::from_secs(30);
/// A worker that does not even try a heartbeat for this long is stuck.
const STUCK: Duration = Duration::from_secs(60);

/// The state of a worker, kept up by its parts.
pub struct Health {
    connected: AtomicBool,
    draining: AtomicBool,
    reconnects: AtomicU64,
    /// When a heartbeat was last tried, and when one was last answered.
    tried: Mutex<Instant>,
    answered: Mutex<Option<Instant>>,
    role: Mutex<String>,
    /// Why the latest heartbeat or connection failed.
    trouble: Mutex<Option<String>>,
    /// What the worker is short of, and how many jobs it runs meanwhile.
    pub throttle: Throttle,
}

impl Default for Health {
    fn default() -> Self {
        Health {
            connected: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            reconnects: AtomicU64::new(0),
            tried: Mutex::new(Instant::now()),
            answered: Mutex::default(),
            role: Mutex::default(),
            trouble: Mutex::default(),
            throttle: Throttle::default(),
        }
    }
}

impl Health {
    /// The first session is there, or there again.
    pub fn connected(&self, again: bool) {
        self.connected.store(true, Ordering::Relaxed);
        self.reconnects.fetch_add(u64::from(again), Ordering::Relaxed);
    }

    /// It is gone.
    pub fn disconnected(&self, why: &str) {
        self.connected.store(false, Ordering::Relaxed);
        self.note(why);
    }

    /// The worker was asked to stop.
    pub fn draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// A heartbeat is tried.
    pub fn tried(&self) {
        *self.tried.lock().unwrap() = Instant::now();
    }

    /// A heartbeat was answered.
    pub fn answered(&self, role: &str) {
        *self.answered.lock().unwrap() = Some(Instant::now());
        let mut known = self.role.lock().unwrap();
        if *known != role {
            *known = role.to_owned();
        }
        *self.trouble.lock().unwrap() = None;
    }

    /// A heartbeat failed.
    pub fn note(&self, why: &str) {
        *self.trouble.lock().unwrap() = Some(why.to_owned());
    }

    /// Whether this worker runs maintenance.
    pub fn is_keeper(&self) -> bool {
        *self.role.lock().unwrap() == "keeper"
    }

    /// Whether the session it claims by is there.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// How often it had to connect again.
    pub fn reconnects(&self) -> u64 {
        self.reconnects.load(Ordering::Relaxed)
    }

    /// How long ago a heartbeat was answered.
    pub fn silence(&self) -> Option<Duration> {
        self.answered.lock().unwrap().map(|answered| answered.elapsed())
    }

    /// Whether its parts move at all. A database that cannot be reached is no reason to be killed.
    pub fn is_alive(&self) -> bool {
        self.tried.lock().unwrap().elapsed() < STUCK
    }

    /// What keeps it from taking jobs, in words. Nothing, if it is ready.
    pub fn failing(&self) -> Vec<String> {
        let mut failing = Vec::new();
        if self.draining.load(Ordering::Relaxed) {
            failing.push("draining: it was asked to stop".to_owned());
        }
        if !self.is_connected() {
            failing.push("disconnected: the session it claims by is gone".to_owned());
        }
        match self.silence() {
            Some(silence) if silence < SILENCE => {}
            Some(silence) => failing.push(format!("silent: no heartbeat was answered for {} s", silence.as_secs())),
            None => failing.push("starting: no heartbeat was answered yet".to_owned()),
        }
        if let Some(shortage) = self.throttle.words() {
            failing.push(format!("shortage: {shortage}"));
        }
        if !failing.is_empty()
            && let Some(trouble) = &*self.trouble.lock().unwrap()
        {
            failing.push(format!(
                "latest trouble: {}",
                trouble.lines().next().unwrap_or_default()
            ));
        }
        failing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_ready_when_nothing_fails_and_says_what_does() {
        let health = Health::default();
        assert!(health.failing()[0].starts_with("disconnected") && health.is_alive());

        health.connected(false);
        health.answered("keeper");
        assert_eq!(health.failing(), Vec::<String>::new());
        assert!(health.is_keeper());

        health.disconnected("connection refused");
        assert!(health.failing().last().unwrap().contains("connection refused"));

        health.connected(true);
        health.draining();
        assert!(health.failing()[0].starts_with("draining"));
        assert_eq!(health.reconnects(), 1);
    }
}
