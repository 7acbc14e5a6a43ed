//! The health of a worker, for `/livez`, `/readyz` and the watchdog.

use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::execute::shortage::Throttle;
use crate::host::{HostStatus, Hosts};

/// A worker without a successful heartbeat for this long is not ready.
const SILENCE: Duration = Duration::from_secs(30);
/// How often the parts of a worker note that they make progress, also while they wait for the database.
const TICK: Duration = Duration::from_secs(1);

/// The state of a worker, updated by its parts.
pub struct Health {
    connected: AtomicBool,
    draining: AtomicBool,
    reconnects: AtomicU64,
    /// It serves no more, because it was asked to stop.
    ended: AtomicBool,
    /// When it last made progress, and after how long without it is stuck.
    progress: Mutex<(Instant, Duration)>,
    /// The time of the last successful heartbeat.
    answered: Mutex<Option<Instant>>,
    role: Mutex<String>,
    /// The error of the last failed heartbeat or connection.
    trouble: Mutex<Option<String>>,
    /// The resource the worker is short of, and its reduced number of slots.
    pub throttle: Throttle,
    /// How many jobs run beyond their time limit.
    overdue: AtomicUsize,
    /// Its hosts, if it has some.
    hosts: Mutex<Option<Hosts>>,
}

impl Default for Health {
    fn default() -> Self {
        Health {
            connected: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            reconnects: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            progress: Mutex::new((Instant::now(), Duration::from_secs(60))),
            answered: Mutex::default(),
            role: Mutex::default(),
            trouble: Mutex::default(),
            throttle: Throttle::default(),
            overdue: AtomicUsize::new(0),
            hosts: Mutex::default(),
        }
    }
}

impl Health {
    /// The claim session is connected or reconnected.
    pub fn connected(&self, again: bool) {
        self.connected.store(true, Ordering::Relaxed);
        self.reconnects.fetch_add(u64::from(again), Ordering::Relaxed);
    }

    /// This number of jobs runs beyond their time limit.
    pub fn note_overdue(&self, jobs: usize) {
        self.overdue.store(jobs, Ordering::Relaxed);
    }

    /// How many jobs run beyond their time limit, and their executors do not stop.
    pub fn overdue(&self) -> usize {
        self.overdue.load(Ordering::Relaxed)
    }

    /// The claim session is lost.
    pub fn disconnected(&self, why: &str) {
        self.connected.store(false, Ordering::Relaxed);
        self.note(why);
    }

    /// It has these hosts.
    pub fn watch_hosts(&self, hosts: Hosts) {
        *self.hosts.lock().unwrap() = Some(hosts);
    }

    /// How its hosts are.
    pub fn hosts(&self) -> Vec<HostStatus> {
        self.hosts
            .lock()
            .unwrap()
            .as_ref()
            .map(Hosts::status)
            .unwrap_or_default()
    }

    /// The worker was asked to stop.
    pub fn draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// It serves no more, and needs to make no progress.
    pub fn ended(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// It is stuck after this long without progress.
    pub fn stuck_after(&self, limit: Duration) {
        self.progress.lock().unwrap().1 = limit;
    }

    /// Wait for calls to the database. That they are waited for is progress: a restart would not make them faster.
    pub async fn while_waiting<T>(&self, calls: impl Future<Output = T>) -> T {
        let mut calls = pin!(calls);
        loop {
            self.progress.lock().unwrap().0 = Instant::now();
            tokio::select! {
                result = &mut calls => return result,
                () = tokio::time::sleep(TICK) => {}
            }
        }
    }

    /// A heartbeat succeeded.
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

    /// Whether the claim session is connected.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// The number of reconnects.
    pub fn reconnects(&self) -> u64 {
        self.reconnects.load(Ordering::Relaxed)
    }

    /// The age of the last successful heartbeat.
    pub fn silence(&self) -> Option<Duration> {
        self.answered.lock().unwrap().map(|answered| answered.elapsed())
    }

    /// Whether the process makes progress at all. A database that cannot be reached, or does not answer, is no reason
    /// to restart it.
    pub fn is_alive(&self) -> bool {
        let (last, limit) = *self.progress.lock().unwrap();
        self.ended.load(Ordering::Relaxed) || last.elapsed() < limit
    }

    /// Descriptions of what keeps it from claiming jobs; empty if it is ready.
    pub fn failing(&self) -> Vec<String> {
        let mut failing = Vec::new();
        if self.draining.load(Ordering::Relaxed) {
            failing.push("draining: the worker was asked to stop".to_owned());
        }
        if !self.is_connected() {
            failing.push("disconnected: the claim session is lost".to_owned());
        }
        match self.silence() {
            Some(silence) if silence < SILENCE => {}
            Some(silence) => failing.push(format!("silent: no successful heartbeat for {} s", silence.as_secs())),
            None => failing.push("starting: no heartbeat has succeeded yet".to_owned()),
        }
        if let Some(shortage) = self.throttle.words() {
            failing.push(format!("shortage: {shortage}"));
        }
        if !self.draining.load(Ordering::Relaxed) {
            failing.extend(self.hosts().iter().filter_map(HostStatus::failing));
        }
        if !failing.is_empty()
            && let Some(trouble) = &*self.trouble.lock().unwrap()
        {
            failing.push(format!("last error: {}", trouble.lines().next().unwrap_or_default()));
        }
        failing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_worker_makes_progress_while_it_waits_for_the_database_and_is_alive_after_it_has_ended() {
        let health = Health::default();
        let noted = || health.progress.lock().unwrap().0;
        let before = Instant::now();
        health
            .while_waiting(async {
                while noted() < before + TICK {
                    tokio::task::yield_now().await;
                }
            })
            .await;
        assert!(health.is_alive());

        health.stuck_after(Duration::ZERO);
        assert!(!health.is_alive());
        health.ended();
        assert!(health.is_alive());
    }

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
