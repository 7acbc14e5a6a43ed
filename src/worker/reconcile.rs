//! Reconciling: finds jobs that the database assigns to this worker but that the worker does not know, and gives them
//! back.
//!
//! There are few ways to get such a job: the server committed a claim after the worker had lost that connection and
//! reconnected; the outcome of a job was rejected because a crash had undone its claim, just before `bugle.attach`
//! restored that claim; the reply to a claim could not be read. The worker is alive, so the jobs would not be rescued.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::db::calls;
use crate::db::connect::Session;
use crate::error::Result;
use crate::job::HeldJob;
use crate::worker::completer::End;
use crate::worker::crew::Crew;

/// How often to compare if there were claims since the last comparison.
const AFTER_CLAIMS: Duration = Duration::from_secs(5);
/// How often to compare otherwise.
const WHEN_IDLE: Duration = Duration::from_secs(60);

/// How many claims were sent, and how many of them are settled: the crew knows their jobs, or never will.
#[derive(Default)]
pub struct ClaimCounter {
    asked: AtomicU64,
    settled: AtomicU64,
}

impl ClaimCounter {
    /// A claim is about to be sent. It is settled when this is dropped.
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

/// A claim that was sent and is not settled.
pub struct ClaimUnderWay(Arc<ClaimCounter>);

impl Drop for ClaimUnderWay {
    fn drop(&mut self) {
        self.0.settled.fetch_add(1, Ordering::AcqRel);
    }
}

/// Compares the jobs that the crew knows with those that the database assigns to this worker.
pub struct Reconciler {
    claims: Arc<ClaimCounter>,
    /// Jobs the crew did not know at the last comparison; the reply to their claim may have been in flight.
    suspects: Vec<HeldJob>,
    /// The number of claims sent by then.
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

    /// Compare if it is time, and give back jobs that are certain to be unknown. Called with every heartbeat.
    ///
    /// # Errors
    /// If a query fails. It is repeated the next time.
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

    /// If the crew does not know a suspect after all claims are settled that were sent when it was first seen, it never
    /// will.
    fn give_back(&mut self, crew: &Crew) {
        if self.suspects.is_empty() || self.claims.settled() < self.asked {
            return;
        }
        let held = crew.held_jobs();
        for job in self.suspects.drain(..).filter(|job| !held.contains(job)) {
            // this changes nothing if the job has ended meanwhile
            crew.deliver(End::given_back(job));
        }
    }
}
