//! Reconciling: jobs that the database says this worker runs, and that it does not know of, are found and given back.
//!
//! There are few ways to such a job. A claim was committed by the server after the worker had lost that connection and
//! come back by another; the outcome of a job was refused, because its claim had been undone by a crash, just before
//! that claim was taken up again by `bugle.attach`; the reply to a claim could not be read. The worker is alive, so no
//! rescue would find them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::db::calls;
use crate::db::connect::Session;
use crate::error::Result;
use crate::job::HeldJob;
use crate::worker::completer::End;
use crate::worker::crew::Crew;

/// How often to compare, if there were claims since the last time.
const AFTER_CLAIMS: Duration = Duration::from_secs(5);
/// How often to compare anyway.
const WHEN_IDLE: Duration = Duration::from_secs(60);

/// How many claims were asked for, and how many of those are settled: the crew knows the jobs they brought, or never
/// will.
#[derive(Default)]
pub struct ClaimCounter {
    asked: AtomicU64,
    settled: AtomicU64,
}

impl ClaimCounter {
    /// A claim is about to be asked for. It is settled when this is dropped.
    pub fn ask(self: &Arc<Self>) -> ClaimUnderWay {
        self.asked.fetch_add(1, Ordering::AcqRel);
        ClaimUnderWay(self.clone())
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Acquire)
    }

    fn settled(&self) -> u64 {
        self.settled.load(Ordering::Acquire)
    }
}

/// A claim that was asked for and is not settled.
pub struct ClaimUnderWay(Arc<ClaimCounter>);

impl Drop for ClaimUnderWay {
    fn drop(&mut self) {
        self.0.settled.fetch_add(1, Ordering::AcqRel);
    }
}

/// Compares the jobs that the crew knows with those that the database says this worker runs.
pub struct Reconciler {
    claims: Arc<ClaimCounter>,
    /// Jobs the crew did not know when they were last compared: the reply to a claim may have been on its way.
    suspects: Vec<HeldJob>,
    /// Claims that had been asked for by then.
    asked: u64,
    compared: Instant,
}

impl Reconciler {
    pub fn new(claims: Arc<ClaimCounter>) -> Self {
        Reconciler {
            claims,
            suspects: Vec::new(),
            asked: 0,
            compared: Instant::now(),
        }
    }

    /// Compare if it is time to, and give back jobs that are certain to be unknown. Called with every heartbeat.
    ///
    /// # Errors
    /// If the database cannot be asked. It is asked again the next time.
    pub async fn reconcile(&mut self, session: &Session, crew: &Crew) -> Result<()> {
        self.give_back(crew);
        let every = if self.claims.asked() == self.asked {
            WHEN_IDLE
        } else {
            AFTER_CLAIMS
        };
        if !self.suspects.is_empty() || self.compared.elapsed() < every {
            return Ok(());
        }
        self.suspects = calls::unnamed(session, crew.identity(), &crew.held_jobs()).await?;
        self.asked = self.claims.asked();
        self.compared = Instant::now();
        Ok(())
    }

    /// A suspect that the crew does not know once every claim is settled that had been asked for when it was seen will
    /// never be known.
    fn give_back(&mut self, crew: &Crew) {
        if self.suspects.is_empty() || self.claims.settled() < self.asked {
            return;
        }
        let held = crew.held_jobs();
        for job in self.suspects.drain(..).filter(|job| !held.contains(job)) {
            // if it has ended meanwhile, this changes nothing
            crew.deliver(End::given_back(job));
        }
    }
}
