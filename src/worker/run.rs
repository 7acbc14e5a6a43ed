//! The life of a worker, from its settings to the last job it gives back.

use std::sync::Arc;

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use crate::builtin;
use crate::config::{Settings, environment};
use crate::db::connect::{Link, Notifications, Pool, Session};
use crate::error::{Error, Result};
use crate::execute::leftovers;
use crate::execute::registry::Registry;
use crate::execute::workspace::Workspaces;
use crate::host::Hosts;
use crate::schema;
use crate::worker::Identity;
use crate::worker::announcer::Announcer;
use crate::worker::background_scan::BackgroundScans;
use crate::worker::builder::WorkerBuilder;
use crate::worker::claimer::{Claimer, Hint};
use crate::worker::completer;
use crate::worker::crew::Crew;
use crate::worker::endpoints;
use crate::worker::fleet::{self, Part};
use crate::worker::keeper::Keeper;
use crate::worker::reconcile::ClaimCounter;
use crate::worker::register::WorkerProfile;
use crate::worker::service::{Drained, Service};
use crate::worker::shutdown::Shutdown;
use crate::worker::systemd;

/// The size of the pool for step updates. Connections are opened when there are steps.
const STEP_CONNECTIONS: usize = 4;

/// Serves queues with the executors of a registry.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use bugle::{Context, Shutdown, Worker};
///
/// Worker::builder(&std::env::var("DATABASE_URL")?)
///     .queue("default", 8)
///     .on("add", async |_: Context, (a, b): (i64, i64)| Ok(a + b))
///     .run(Shutdown::on_signals()?)
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Worker {
    settings: Settings,
    registry: Registry,
}

impl Worker {
    /// A worker with these settings and executors. It starts with [`run`](Worker::run).
    pub fn new<S>(settings: Settings, registry: Registry<S>) -> Self {
        let registry = Registry::new().merge(registry);
        Worker { settings, registry }
    }

    /// Build a worker for the database at a connection string (as psql takes it), or from [`Settings`].
    pub fn builder(settings: impl Into<Settings>) -> WorkerBuilder {
        WorkerBuilder::new(settings.into())
    }

    /// Serve until `shutdown` is requested. Running jobs then have [`Settings::drain`] to finish, and are given back
    /// if they do not.
    ///
    /// # Errors
    /// If a setting is out of range or a command was registered twice; if at the start the database cannot be reached,
    /// is not migrated, or rejects this worker. Once it runs, a worker survives an outage of its database: it keeps its
    /// executors running and reconnects.
    pub async fn run(mut self, shutdown: Shutdown) -> Result<Drained> {
        self.settings.check()?;
        self.registry = builtin::register(self.registry, &self.settings.commands)?;
        self.registry.check()?;
        if self.registry.is_empty() && self.settings.hosts.is_empty() {
            return Err(Error::new("this worker has no commands to run")
                .with_hint("Register an executor, or set up a command or a host in the worker's file."));
        }
        if self.settings.databases.is_empty() {
            return self.run_as(None, shutdown).await;
        }
        systemd::tell(&environment, "READY=1");
        let stopping = shutdown.clone();
        let told = tokio::spawn(async move {
            stopping.requested().await;
            systemd::tell(&environment, "STOPPING=1");
        });
        let drained = fleet::run(self.settings, self.registry, shutdown).await;
        told.abort();
        drained
    }

    /// Serve one database: the only one, or one of several.
    pub(super) async fn run_as(self, part: Option<Part>, shutdown: Shutdown) -> Result<Drained> {
        let Worker { settings, registry } = self;
        let is_part = part.is_some();
        let mut profile = WorkerProfile::new(&settings, &registry)?;
        let workspaces = open_workspaces(&settings)?;
        let hosts = hosts(&settings, &registry, &workspaces)?;
        profile.hosts = hosts.clone();
        let observed = part.as_ref().map(|part| part.observed.clone()).unwrap_or_default();
        if settings.migrate {
            let migrated = schema::migrate_at_start(&profile.database);
            observed.health.while_waiting(migrated).await?;
        }
        // what can fail comes before registering: a worker that was registered and never served would be taken for lost
        let endpoints = endpoints::bind(&profile, &settings).await?;
        let pools = Pools::new(&profile, &settings)?;
        let (session, notifications, identity) = observed.health.while_waiting(register(&profile)).await?;

        let (outcomes, to_deliver) = mpsc::unbounded_channel();
        let registry = registry.with_hosts(hosts.clone());
        let crew = Crew::new(registry, pools, workspaces.path(), identity, outcomes, part);
        crew.observed.health.stuck_after(settings.stuck_after);
        crew.observed.health.connected(false);
        crew.watch();
        let link = Arc::new(Link::new(profile.database.clone(), &profile.connection_name("2")));
        let signals = Signals::new();
        let mut tasks = JoinSet::new();
        if let Some(hosts) = &hosts {
            crew.observed.health.watch_hosts(hosts.clone());
            hosts.start(crew.pools.executors.clone());
            tasks.spawn(announcer(&profile, hosts, &crew, &link, &signals).run());
        }
        let _endpoints = endpoints.map(|bound| bound.open(&profile, &settings, &crew));
        tasks.spawn(completer::deliver(crew.clone(), link.clone(), to_deliver));
        tasks.spawn(keeper(&settings, &crew, link, &signals).run());
        let claimer = claimer(&profile, &settings, &crew, signals);
        let (queues, commands) = (&profile.queues, &profile.commands);
        tracing::info!(event = "serve", worker = identity.worker, ?queues, ?commands);

        // the process of several databases does not depend on one of them
        let tell_systemd = |state| (!is_part).then(|| systemd::tell(&environment, state));
        if tell_systemd("READY=1").is_some() {
            tasks.spawn(systemd::feed_watchdog(vec![crew.observed.clone()]));
        }
        let mut service = Service::new(profile, crew, session, notifications);
        let served = service.serve(claimer, &shutdown.drain).await;
        tell_systemd("STOPPING=1");
        let drained = service.drain(settings.drain, &shutdown).await;
        if let Some(hosts) = hosts {
            hosts.stop().await;
        }
        tasks.abort_all();
        leftovers::sweep().await;
        let (given_back, undelivered) = (drained.given_back, drained.undelivered);
        tracing::info!(event = "stopped", given_back, undelivered);
        served.map(|()| drained)
    }
}

async fn register(profile: &WorkerProfile) -> Result<(Arc<Session>, Notifications, Identity)> {
    let (session, notifications) = profile.connect_and_verify().await?;
    let identity = profile.register(&session).await?;
    Ok((session, notifications, identity))
}

fn open_workspaces(settings: &Settings) -> Result<Workspaces> {
    let folder = &settings.workdir;
    Workspaces::open(folder).map_err(|error| {
        Error::new(format!(
            "cannot create working directories in {}: {error}",
            folder.display()
        ))
    })
}

/// The connections of a worker that are not its own two. Step updates use their own pool, so that executors cannot
/// starve them.
pub struct Pools {
    pub executors: Pool,
    pub steps: Pool,
}

impl Pools {
    fn new(profile: &WorkerProfile, settings: &Settings) -> Result<Pools> {
        let (database, name) = (&profile.database, &profile.name);
        Ok(Pools {
            executors: Pool::for_worker(database, name, settings.pool_size)?,
            steps: Pool::for_worker(database, name, STEP_CONNECTIONS)?,
        })
    }
}

/// What the keeper and the claimer tell each other.
struct Signals {
    hints: mpsc::UnboundedSender<Hint>,
    hinted: mpsc::UnboundedReceiver<Hint>,
    keeper_called: Arc<Notify>,
    claims: Arc<ClaimCounter>,
}

impl Signals {
    fn new() -> Signals {
        let (hints, hinted) = mpsc::unbounded_channel();
        Signals {
            hints,
            hinted,
            keeper_called: Arc::default(),
            claims: Arc::default(),
        }
    }
}

fn hosts(settings: &Settings, registry: &Registry, workspaces: &Workspaces) -> Result<Option<Hosts>> {
    if settings.hosts.is_empty() {
        return Ok(None);
    }
    let (own, folder) = (registry.commands(), workspaces.path());
    let slots = settings.all_slots();
    Hosts::new(&settings.hosts, own, &settings.name, slots, folder, &environment).map(Some)
}

fn announcer(
    profile: &WorkerProfile,
    hosts: &Hosts,
    crew: &Arc<Crew>,
    link: &Arc<Link>,
    signals: &Signals,
) -> Announcer {
    Announcer {
        hosts: hosts.clone(),
        own: profile.commands.clone(),
        crew: crew.clone(),
        link: link.clone(),
        hints: signals.hints.clone(),
    }
}

fn keeper(settings: &Settings, crew: &Arc<Crew>, link: Arc<Link>, signals: &Signals) -> Keeper {
    Keeper {
        crew: crew.clone(),
        link,
        hints: signals.hints.clone(),
        called: signals.keeper_called.clone(),
        claims: signals.claims.clone(),
        safety_poll: settings.safety_poll,
    }
}

fn claimer(profile: &WorkerProfile, settings: &Settings, crew: &Arc<Crew>, signals: Signals) -> Claimer {
    let scans = Link::new(profile.database.clone(), &profile.connection_name("scan"));
    Claimer::new(
        &profile.queues,
        crew.clone(),
        BackgroundScans::new(scans),
        signals.hinted,
        signals.keeper_called,
        signals.claims,
        settings.until_empty,
    )
}
