//! A worker's life, from its settings to the last job it gave back.

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use crate::config::{Settings, environment};
use crate::db::connect::{self, Link, Pool};
use crate::error::{Error, Result};
use crate::execute::leftovers;
use crate::execute::registry::Registry;
use crate::execute::workspace::Workspaces;
use crate::observe::{self, EndpointState};
use crate::schema;
use crate::worker::background_scan::BackgroundScans;
use crate::worker::claimer::{Claimer, Hint};
use crate::worker::completer;
use crate::worker::crew::Crew;
use crate::worker::keeper::Keeper;
use crate::worker::reconcile::ClaimCounter;
use crate::worker::register::WorkerProfile;
use crate::worker::service::{Drained, Service};
use crate::worker::shutdown::Shutdown;
use crate::worker::systemd;

/// How many connections step updates share. They are opened when there are steps.
const STEP_CONNECTIONS: usize = 4;
/// How many connections the endpoints may use, if they are open.
const ENDPOINT_CONNECTIONS: usize = 2;

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
        let Worker { settings, registry } = self;
        registry.check()?;
        let profile = WorkerProfile::new(&settings, &registry)?;
        let workspaces = open_workspaces(&settings)?;
        if settings.migrate {
            schema::migrate(&profile.database).await?;
        }
        // what can fail comes before registering: a worker that was registered and never served would be taken for lost
        let listener = bind_endpoints(&settings).await?;
        let pools = Pools::new(&profile, &settings)?;
        let (session, notifications) = profile.connect_and_verify().await?;
        let identity = profile.register(&session).await?;

        let (outcomes, delivered) = mpsc::unbounded_channel();
        let folders = workspaces.path().to_path_buf();
        let crew = Crew::new(registry, pools.executors, pools.steps, folders, identity, outcomes);
        let crew = Arc::new(crew);
        crew.observed.health.connected(false);
        let _endpoints = listener.map(|listener| {
            let state = endpoint_state(&profile, &settings, &crew, pools.endpoints);
            observe::listen(listener, state)
        });
        let link = Arc::new(Link::new(profile.database.clone(), &profile.connection_name("2")));
        let signals = Signals::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(completer::deliver(crew.clone(), link.clone(), delivered));
        tasks.spawn(keeper(&settings, &crew, link, &signals).run());
        let claimer = claimer(&profile, &settings, &crew, signals);
        let (queues, commands) = (&profile.queues, &profile.commands);
        tracing::info!(event = "serve", worker = identity.worker, ?queues, ?commands);

        let mut service = Service::new(profile, crew.clone(), session, notifications);
        systemd::tell(&environment, "READY=1");
        tasks.spawn(systemd::feed_watchdog(crew.observed.clone()));
        let served = service.serve(claimer, &shutdown.drain).await;
        systemd::tell(&environment, "STOPPING=1");
        let drained = service.drain(settings.drain, &shutdown).await;
        tasks.abort_all();
        leftovers::sweep().await;
        tracing::info!(
            event = "stopped",
            given_back = drained.given_back,
            undelivered = drained.undelivered
        );
        served.map(|()| drained)
    }
}

fn open_workspaces(settings: &Settings) -> Result<Workspaces> {
    let folder = &settings.workdir;
    Workspaces::open(folder)
        .map_err(|error| Error::new(format!("cannot make working folders in {}: {error}", folder.display())))
}

async fn bind_endpoints(settings: &Settings) -> Result<Option<TcpListener>> {
    match settings.listen {
        None => Ok(None),
        Some(address) => observe::bind(address, settings.token.is_some()).await.map(Some),
    }
}

/// The connections of a worker that are not its own two. Each use has a pool, so that executors cannot starve the
/// others.
struct Pools {
    executors: Pool,
    steps: Pool,
    endpoints: deadpool_postgres::Pool,
}

impl Pools {
    fn new(profile: &WorkerProfile, settings: &Settings) -> Result<Pools> {
        let (database, name) = (&profile.database, &profile.name);
        Ok(Pools {
            executors: Pool::new(database, name, settings.pool_size)?,
            steps: Pool::new(database, name, STEP_CONNECTIONS)?,
            endpoints: connect::own_pool(database, &format!("{name} (endpoints)"), ENDPOINT_CONNECTIONS)?,
        })
    }
}

fn endpoint_state(
    profile: &WorkerProfile,
    settings: &Settings,
    crew: &Arc<Crew>,
    pool: deadpool_postgres::Pool,
) -> EndpointState {
    let undelivered = crew.clone();
    EndpointState::new(
        &profile.name,
        &profile.host,
        &profile.queues,
        crew.observed.clone(),
        move || undelivered.undelivered(),
        pool,
        settings.token.clone(),
    )
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
