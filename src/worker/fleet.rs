//! One process that serves several databases: a worker for each, which shares nothing with the others but the slots and
//! the endpoints. A database that is down, slow or not migrated does not touch the others, neither later nor at the
//! start: its worker is started again until it succeeds.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::task::JoinSet;
use tracing::Instrument;

use crate::config::Settings;
use crate::error::{Backoff, Result};
use crate::execute::registry::Registry;
use crate::observe::Observed;
use crate::worker::crew::Crew;
use crate::worker::endpoints;
use crate::worker::register::WorkerProfile;
use crate::worker::run::Worker;
use crate::worker::service::Drained;
use crate::worker::shutdown::Shutdown;
use crate::worker::slots::{Share, Slots};
use crate::worker::systemd;

/// The longest delay between two attempts to start the worker of a database.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What the worker of one of several databases has of its process.
#[derive(Clone)]
pub struct Part {
    /// The name of the database in the settings.
    pub database: Arc<str>,
    /// Its share of the slots.
    pub share: Share,
    /// Its metrics and health, which outlive a worker that has to be started again.
    pub observed: Arc<Observed>,
    /// What runs its jobs, while there is one.
    pub crew: Arc<Mutex<Weak<Crew>>>,
}

impl Part {
    /// The number of outcomes that were not delivered yet.
    #[cfg(feature = "web")]
    pub fn undelivered(&self) -> usize {
        let crew = self.crew.lock().unwrap().upgrade();
        crew.map_or(0, |crew| crew.undelivered())
    }
}

/// Serve all databases of the settings until shutdown.
///
/// # Errors
/// If a setting is wrong. What is wrong with a database is logged and reported by `/readyz`.
pub async fn run(settings: Settings, registry: Registry, shutdown: Shutdown) -> Result<Drained> {
    let workers: Vec<Settings> = settings.for_each_database();
    let most: Vec<usize> = workers.iter().map(Settings::all_slots).collect();
    let slots = Slots::new(settings.slots.unwrap_or_else(|| most.iter().sum()), &most);
    let mut parts = Vec::new();
    for (place, (worker, database)) in workers.into_iter().zip(&settings.databases).enumerate() {
        let part = Part {
            database: database.name.as_str().into(),
            share: slots.share(place),
            observed: Arc::default(),
            crew: Arc::default(),
        };
        // a connection string that cannot be read will never be right
        let profile = WorkerProfile::new(&worker, &registry)
            .map_err(|error| error.in_context(&format!("databases.{}", database.name)))?;
        parts.push((profile, worker, part));
    }
    let _endpoints = endpoints::open_for_all(&parts, &settings).await?;

    let mut watchdog = JoinSet::new();
    watchdog.spawn(systemd::feed_watchdog(
        parts.iter().map(|(_, _, part)| part.observed.clone()).collect(),
    ));
    let mut running = JoinSet::new();
    for (_, worker, part) in parts {
        let span = tracing::info_span!("database", database = %part.database);
        running.spawn(serve(worker, registry.clone(), part, shutdown.of_a_part()).instrument(span));
    }
    let mut all = Drained {
        given_back: 0,
        undelivered: 0,
    };
    while let Some(ended) = running.join_next().await {
        let drained = ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        all.given_back += drained.given_back;
        all.undelivered += drained.undelivered;
    }
    Ok(all)
}

/// Serve one of them, and start again after an error.
async fn serve(settings: Settings, registry: Registry, part: Part, shutdown: Shutdown) -> Drained {
    let patience = || Backoff::new(Duration::from_millis(100), LONGEST_PAUSE);
    let (mut backoff, mut known) = (patience(), String::new());
    let health = &part.observed.health;
    health.stuck_after(settings.stuck_after);
    loop {
        let worker = Worker::new(settings.clone(), registry.clone());
        let error = match worker.run_as(Some(part.clone()), shutdown.clone()).await {
            Ok(drained) => {
                health.ended();
                return drained;
            }
            Err(error) => error,
        };
        health.disconnected(&error.to_string());
        let message = error.to_string();
        if message != known {
            tracing::error!(event = "not_served", %error, "this database is not served; retrying");
            (known, backoff) = (message, patience());
        }
        tokio::select! {
            () = health.while_waiting(tokio::time::sleep(backoff.next())) => {}
            () = shutdown.requested() => return Drained { given_back: 0, undelivered: 0 },
        }
    }
}
