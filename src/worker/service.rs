//! The service loop: from registration to shutdown, with reconnects.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::db::calls;
use crate::db::connect::{Notifications, Session};
use crate::error::{Backoff, Result};
use crate::execute::context::Stop;
use crate::worker::claimer::{Claimer, Stopped};
use crate::worker::crew::Crew;
use crate::worker::register::WorkerProfile;
use crate::worker::shutdown::Shutdown;

/// How long executors may take to stop after they are told that the worker is stopping.
const STOP_GRACE: Duration = Duration::from_secs(3);
/// The longest delay between two attempts to connect. Even with a jitter of 50 %, it is well below the grace time after
/// which the jobs of a lost worker are rescued (`bugle.settings.lost_grace`).
const LONGEST_RECONNECT: Duration = Duration::from_millis(400);
/// How long to try to deliver the last outcomes before leaving their jobs to a rescue.
const LAST_DELIVERY: Duration = Duration::from_secs(10);

/// How a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// Jobs that were interrupted and given back.
    pub given_back: usize,
    /// Jobs whose outcome could not be delivered; they will be rescued.
    pub undelivered: usize,
}

impl Drained {
    /// Whether every running job finished.
    pub fn is_clean(&self) -> bool {
        self.given_back == 0 && self.undelivered == 0
    }
}

/// A registered worker and its first connection, which claims jobs and holds its proof of life.
pub struct Service {
    profile: WorkerProfile,
    crew: Arc<Crew>,
    session: Arc<Session>,
    notifications: Notifications,
}

impl Service {
    pub fn new(profile: WorkerProfile, crew: Arc<Crew>, session: Arc<Session>, notifications: Notifications) -> Self {
        Service {
            profile,
            crew,
            session,
            notifications,
        }
    }

    /// Claim until shutdown; reconnect when the connection is lost.
    ///
    /// # Errors
    /// If the database rejects this worker.
    pub async fn serve(&mut self, mut claimer: Claimer, shutdown: &CancellationToken) -> Result<()> {
        loop {
            let me = self.crew.identity();
            let stopped = claimer.run(&self.session, me, &mut self.notifications, shutdown).await;
            match stopped {
                Ok(Stopped::ByShutdown | Stopped::Empty) => return Ok(()),
                Ok(Stopped::Disconnected) => self.crew.observed.health.disconnected("the connection was lost"),
                Err(error) if error.is_transient() || error.is_fenced() => {
                    self.crew.observed.health.disconnected(&error.to_string());
                    tracing::warn!(event = "disconnected", %error);
                }
                Err(error) => return Err(error),
            }
            tokio::select! {
                reconnected = self.reconnect() => reconnected?,
                () = shutdown.cancelled() => return Ok(()),
            }
        }
    }

    /// Reconnect with the same identity and the list of running jobs. Jobs that were lost meanwhile are stopped.
    async fn reconnect(&mut self) -> Result<()> {
        let mut backoff = Backoff::new(Duration::from_millis(20), LONGEST_RECONNECT);
        loop {
            let database = self.profile.database.clone();
            let name = self.profile.connection_name("reconnect");
            match database.watched(&name, self.try_to_reconnect()).await {
                Ok(()) => {
                    self.crew.observed.health.connected(true);
                    tracing::info!(event = "attach", worker = self.crew.identity().worker);
                    return Ok(());
                }
                Err(error) if error.is_transient() => {
                    tracing::debug!(event = "reconnect", %error);
                    tokio::time::sleep(backoff.next()).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn try_to_reconnect(&mut self) -> Result<()> {
        let (session, notifications) = self.profile.connect().await?;
        let running = self.crew.held_jobs();
        let lost = match calls::attach(&session, self.crew.identity(), &running).await {
            Ok(verdicts) => verdicts
                .iter()
                .map(|verdict| verdict.held())
                .filter(|held| self.crew.is_running(*held))
                .collect(),
            // this database does not know the worker (a failover to a lagging replica): none of its jobs are valid
            Err(error) if error.is_fenced() => {
                self.crew.rename(self.profile.register(&session).await?);
                running
            }
            Err(error) => return Err(error),
        };
        for held in lost {
            self.crew.fence(held, Stop::Lost, STOP_GRACE);
        }
        (self.session, self.notifications) = (session, notifications);
        Ok(())
    }

    /// Let running jobs finish, then tell them to stop, then give them back. Deregisters at the end.
    pub async fn drain(&mut self, patience: Duration, shutdown: &Shutdown) -> Drained {
        let crew = self.crew.clone();
        crew.observed.health.draining();
        tracing::info!(event = "drain", running = crew.held_jobs().len());
        self.wait_for_idle(patience, shutdown).await;
        let mut given_back = 0;
        if !crew.is_idle() {
            crew.cancel_all();
            self.wait_for_idle(STOP_GRACE, shutdown).await;
            given_back = crew.abort_all();
            let _ = tokio::time::timeout(LAST_DELIVERY, crew.idle()).await;
        }
        let undelivered = crew.held_jobs().len();
        crew.observed.report(&self.session, crew.identity()).await;
        if let Err(error) = calls::detach(&self.session, crew.identity()).await {
            tracing::debug!(event = "detach", %error);
        }
        Drained {
            given_back,
            undelivered,
        }
    }

    /// Wait until no job is left, for at most this time, or until the second request to stop.
    async fn wait_for_idle(&mut self, patience: Duration, shutdown: &Shutdown) {
        let crew = self.crew.clone();
        tokio::select! {
            () = crew.idle() => {}
            () = tokio::time::sleep(patience) => {}
            () = shutdown.now.cancelled() => {}
            () = self.stay_alive() => {}
        }
    }

    /// Keep the proof of life while draining, or the running jobs would be rescued.
    async fn stay_alive(&mut self) {
        loop {
            while self.notifications.recv().await.is_some() {}
            if let Err(error) = self.reconnect().await {
                tracing::warn!(event = "disconnected", %error);
                return std::future::pending().await;
            }
        }
    }
}
