//! The watch: a thread that looks after the jobs that run, where an executor cannot get in its way.
//!
//! An executor that blocks its thread cannot be stopped, and can hold up the whole runtime: while it is the only busy
//! thread, no other one reads sockets and timers, so not even heartbeats are sent. The watch wakes another thread once
//! a second, and reports executors that do not stop at their time limit. While no job runs, it sleeps.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::runtime::Handle;

use super::crew::{Hold, overdue};
use crate::job::HeldJob;
use crate::observe::Observed;

const EVERY: Duration = Duration::from_secs(1);

/// The thread; it ends when this is dropped.
pub struct Watch {
    thread: Thread,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    is_asleep: AtomicBool,
    has_ended: AtomicBool,
}

impl Watch {
    /// Watch over the jobs that are held. None if the thread cannot be started.
    pub fn start(held: Arc<Mutex<HashMap<HeldJob, Hold>>>, observed: Arc<Observed>) -> Option<Watch> {
        let state = Arc::<State>::default();
        let (its_state, runtime) = (state.clone(), Handle::current());
        let thread = thread::Builder::new()
            .name("bugle-watch".to_owned())
            .spawn(move || its_state.watch(&runtime, &held, &observed))
            .ok()?;
        Some(Watch {
            thread: thread.thread().clone(),
            state,
        })
    }

    /// Jobs were taken.
    pub fn wake(&self) {
        if self.state.is_asleep.load(Ordering::SeqCst) && self.state.is_asleep.swap(false, Ordering::SeqCst) {
            self.thread.unpark();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.state.has_ended.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

impl State {
    fn watch(&self, runtime: &Handle, held: &Mutex<HashMap<HeldJob, Hold>>, observed: &Observed) {
        let mut reported = HashSet::new();
        while !self.has_ended.load(Ordering::SeqCst) {
            self.is_asleep.store(true, Ordering::SeqCst);
            if held.lock().unwrap().is_empty() {
                observed.health.note_overdue(0);
                reported.clear();
                thread::park();
                continue;
            }
            self.is_asleep.store(false, Ordering::SeqCst);
            drop(runtime.spawn(async {}));
            let found = overdue(&held.lock().unwrap());
            observed.health.note_overdue(found.len());
            for (job, limit) in &found {
                if reported.insert(*job) {
                    tracing::warn!(
                        event = "overdue",
                        job = job.id,
                        claim = job.claim,
                        "not finished {} after its start, and its executor does not stop: it blocks its thread",
                        humantime::format_duration(*limit)
                    );
                }
            }
            reported.retain(|job| found.iter().any(|(other, _)| other == job));
            thread::park_timeout(EVERY);
        }
    }
}
