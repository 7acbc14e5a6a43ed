//! A worker: one process that serves queues. This file only puts the parts together, and takes them apart again.

pub mod background_scan;
pub mod claimer;
pub mod completer;
pub mod crew;
pub mod keeper;
pub mod lane;
pub mod reconcile;
pub mod scan;
pub mod shutdown;
mod systemd;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::background_scan::BackgroundScans;
use self::claimer::{Claimer, Orders, Stopped};
use self::crew::Crew;
use self::keeper::Keeper;
use self::lane::Lane;
use self::reconcile::Claims;
use self::shutdown::Shutdown;
use crate::config::{Settings, environment};
use crate::db::calls::{self, Registration};
use crate::db::connect::{self, Link, Notifications, Pool, Session, Target};
use crate::error::{Backoff, Error, Result};
use crate::execute::executor::Registry;
use crate::execute::leftovers;
use crate::execute::workspace::Workspaces;
use crate::observe::{self, Told};
use crate::schema;

/// How long executors may take to stop by themselves once they are told that the worker stops.
const STOP_GRACE: Duration = Duration::from_secs(3);
/// The longest wait between two tries to connect. Spread by a half, it is still well below the grace time after which
/// the jobs of a worker that did not come back are given to others (`bugle.settings.lost_grace`).
const LONGEST_RECONNECT: Duration = Duration::from_millis(400);
/// How many connections words about steps share. They are opened when there are steps.
const STEP_CONNECTIONS: usize = 4;
/// How many connections the endpoints may use, if they are open.
const ENDPOINT_CONNECTIONS: usize = 2;
/// How long to try to tell the database about the last jobs before leaving them to be rescued.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Who a worker is to the database: the number everyone sees, and the nonce only it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// `bugle.workers.id`.
    pub worker: i64,
    /// Goes with every word about a job.
    pub nonce: Uuid,
}

/// How a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Jobs that were interrupted and given back.
    pub given_back: usize,
    /// Jobs whose end the database was never told: they will be rescued.
    pub undelivered: usize,
}

impl Drained {
    /// Whether every job that was running could finish.
    pub fn is_clean(&self) -> bool {
        self.given_back == 0 && self.undelivered == 0
    }
}

/// A process that serves queues with the executors of a registry.
pub struct Worker {
    settings: Settings,
    registry: Registry,
}

impl Worker {
    /// A worker that has not started yet.
    pub fn new(settings: Settings, registry: Registry) -> Self {
        Worker { settings, registry }
    }

    /// Serve until `shutdown`.
    ///
    /// # Errors
    /// If a command was registered twice, or if the database cannot be reached at the start, is not migrated, or
    /// refuses this worker. Once it runs, a worker outlives its database: it keeps its executors running and comes
    /// back.
    pub async fn run(self, shutdown: Shutdown) -> Result<Drained> {
        self.registry.check()?;
        let database = connect::parse_given_by(&self.settings.database_url_from, &self.settings.database_url)?;
        let workspaces = Workspaces::open(&self.settings.workdir).map_err(|error| {
            Error::new(format!(
                "cannot make working folders in {}: {error}",
                self.settings.workdir.display()
            ))
        })?;
        if self.settings.migrate {
            schema::migrate(&database).await?;
        }
        // in the order of their names: rows that belong to queues are locked in the same order by every worker
        let mut queues = self.settings.queues.clone();
        queues.sort();
        let post = Post {
            database,
            name: self.settings.name.clone(),
            host: host_name(),
            queues,
            commands: self.registry.commands(),
        };
        // what can fail comes before registering: a worker that was registered and never served would be given up as
        // lost
        let listener = match self.settings.listen {
            None => None,
            Some(address) => Some(observe::bind(address, self.settings.token.is_some()).await?),
        };
        let pool = Pool::new(&post.database, &post.name, self.settings.pool_size)?;
        let steps = Pool::new(&post.database, &post.name, STEP_CONNECTIONS)?;
        let endpoints_name = format!("{} (endpoints)", post.name);
        let endpoints_pool = connect::own_pool(&post.database, &endpoints_name, ENDPOINT_CONNECTIONS)?;
        // before anything is set in a session that may be somebody else's
        connect::refuse_pooler(&post.database).await?;
        let (session, notifications) = post.connect().await?;
        schema::verify(session.client()).await?;
        let identity = post.register(&session).await?;

        let (ends, ended) = mpsc::unbounded_channel();
        let (hints, hinted) = mpsc::unbounded_channel();
        let crew = Arc::new(Crew::new(
            self.registry,
            pool,
            steps,
            workspaces.path().to_path_buf(),
            identity,
            ends,
        ));
        crew.observed.health.connected(false);
        let _endpoints = listener.map(|listener| {
            let undelivered = crew.clone();
            let told = Told::new(
                &post.name,
                &post.host,
                &post.queues,
                crew.observed.clone(),
                move || undelivered.undelivered(),
                endpoints_pool,
                self.settings.token.clone(),
            );
            observe::listen(listener, told)
        });
        let link = Arc::new(Link::new(post.database.clone(), &format!("bugle {} (2)", post.name)));
        let keeper_called = Arc::new(Notify::new());
        let claims = Arc::new(Claims::default());
        let completer = tokio::spawn(completer::deliver(crew.clone(), link.clone(), ended));
        let keeper = tokio::spawn(
            Keeper {
                crew: crew.clone(),
                link,
                hints,
                called: keeper_called.clone(),
                claims: claims.clone(),
                safety_poll: self.settings.safety_poll,
            }
            .run(),
        );
        let now = Instant::now();
        let claimer = Claimer {
            lanes: post
                .queues
                .iter()
                .map(|(queue, slots)| Lane::new(queue, *slots, now))
                .collect(),
            crew: crew.clone(),
            hints: hinted,
            keeper_called,
            claims,
            background_scans: BackgroundScans::new(Link::new(
                post.database.clone(),
                &format!("bugle {} (scan)", post.name),
            )),
            hears_due: false,
            until_empty: self.settings.until_empty,
            ahead: None,
            first_lane: 0,
            orders: Orders::default(),
        };
        tracing::info!(event = "serve", worker = identity.worker, queues = ?post.queues, commands = ?post.commands);

        let mut shift = Shift {
            post,
            crew,
            session,
            notifications,
        };
        systemd::tell(&environment, "READY=1");
        let watched = tokio::spawn(feed_watchdog(shift.crew.clone()));
        let served = shift.serve(claimer, &shutdown.drain).await;
        systemd::tell(&environment, "STOPPING=1");
        shift.crew.observed.health.draining();
        tracing::info!(event = "drain", running = shift.crew.held_jobs().len());
        let drained = shift.drain(self.settings.drain, &shutdown).await;
        watched.abort();
        keeper.abort();
        completer.abort();
        leftovers::sweep().await;
        tracing::info!(
            event = "stopped",
            given_back = drained.given_back,
            undelivered = drained.undelivered
        );
        served.map(|()| drained)
    }
}

/// What a worker says of itself each time it connects.
struct Post {
    database: Target,
    name: String,
    host: String,
    queues: Vec<(String, u32)>,
    commands: Vec<String>,
}

impl Post {
    async fn connect(&self) -> Result<(Arc<Session>, Notifications)> {
        Session::open(&self.database, &format!("bugle {}", self.name)).await
    }

    async fn register(&self, session: &Session) -> Result<Identity> {
        let queues: Vec<String> = self.queues.iter().map(|(queue, _)| queue.clone()).collect();
        let slots: Vec<i32> = self.queues.iter().map(|(_, slots)| *slots as i32).collect();
        let registration = Registration {
            name: &self.name,
            host: &self.host,
            queues: &queues,
            slots: &slots,
            commands: &self.commands,
        };
        calls::register(session, &registration).await
    }
}

/// From signing on to signing off, over however many connections it takes.
struct Shift {
    post: Post,
    crew: Arc<Crew>,
    session: Arc<Session>,
    notifications: Notifications,
}

impl Shift {
    async fn serve(&mut self, mut claimer: Claimer, shutdown: &CancellationToken) -> Result<()> {
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
                came_back = self.come_back() => came_back?,
                () = shutdown.cancelled() => return Ok(()),
            }
        }
    }

    /// Connect again and take up the identity, naming what still runs. What was lost meanwhile is stopped.
    async fn come_back(&mut self) -> Result<()> {
        let mut backoff = Backoff::new(Duration::from_millis(20), LONGEST_RECONNECT);
        loop {
            match self.try_to_come_back().await {
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

    async fn try_to_come_back(&mut self) -> Result<()> {
        let (session, notifications) = self.post.connect().await?;
        let running = self.crew.held_jobs();
        let lost = match calls::attach(&session, self.crew.identity(), &running).await {
            Ok(verdicts) => verdicts
                .iter()
                .map(|v| v.held())
                .filter(|h| self.crew.is_running(*h))
                .collect(),
            // This database never heard of us: a failover to a replica that lagged. Nothing we run is ours.
            Err(error) if error.is_fenced() => {
                self.crew.rename(self.post.register(&session).await?);
                running
            }
            Err(error) => return Err(error),
        };
        for held in lost {
            self.crew.fence(held, STOP_GRACE);
        }
        (self.session, self.notifications) = (session, notifications);
        Ok(())
    }

    /// Let running jobs finish, then tell them to stop, then give them back.
    async fn drain(&mut self, patience: Duration, shutdown: &Shutdown) -> Drained {
        let crew = self.crew.clone();
        tokio::select! {
            () = crew.idle() => {}
            () = tokio::time::sleep(patience) => {}
            () = shutdown.now.cancelled() => {}
            () = self.stay_alive() => {}
        }
        let mut given_back = 0;
        if !crew.is_idle() {
            crew.cancel_all();
            tokio::select! {
                () = crew.idle() => {}
                () = tokio::time::sleep(STOP_GRACE) => {}
                () = shutdown.now.cancelled() => {}
                () = self.stay_alive() => {}
            }
            given_back = crew.abort_all();
            let _ = tokio::time::timeout(LAST_WORDS, crew.idle()).await;
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

    /// While jobs drain the proof of life must hold, or they would be rescued from under us.
    async fn stay_alive(&mut self) {
        loop {
            while self.notifications.recv().await.is_some() {}
            if let Err(error) = self.come_back().await {
                tracing::warn!(event = "disconnected", %error);
                return std::future::pending().await;
            }
        }
    }
}

/// As long as its parts move: a worker that is stuck is better started again.
async fn feed_watchdog(crew: Arc<Crew>) {
    let Some(every) = systemd::watchdog(&environment) else {
        return;
    };
    loop {
        if crew.observed.health.is_alive() {
            systemd::tell(&environment, "WATCHDOG=1");
        }
        tokio::time::sleep(every).await;
    }
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .map(|name| name.trim().to_string())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "unknown".into())
}
