//! The endpoints of a worker that is told to listen.

use std::sync::Arc;

use tokio::net::TcpListener;

use crate::config::Settings;
use crate::db::connect::Pool;
use crate::error::Result;
use crate::observe::{self, EndpointState, Endpoints};
use crate::worker::crew::Crew;
use crate::worker::fleet::Part;
use crate::worker::register::WorkerProfile;

/// How many connections to the database they may use.
const CONNECTIONS: usize = 2;

/// An address that is taken, and nothing answers there yet.
pub struct Bound {
    listener: TcpListener,
    pool: Pool,
}

/// Take the address of the settings, if they name one.
///
/// # Errors
/// If it cannot be had.
pub async fn bind(profile: &WorkerProfile, settings: &Settings) -> Result<Option<Bound>> {
    let Some(address) = settings.listen else {
        return Ok(None);
    };
    let name = format!("{} (endpoints)", profile.name);
    Ok(Some(Bound {
        listener: observe::bind(address).await?,
        pool: Pool::for_worker(&profile.database, &name, CONNECTIONS)?,
    }))
}

impl Bound {
    /// Answer there, until what is returned is dropped.
    pub fn open(self, profile: &WorkerProfile, settings: &Settings, crew: &Arc<Crew>) -> Endpoints {
        let undelivered = crew.clone();
        let state = EndpointState::new(
            &profile.name,
            &profile.host,
            &profile.queues,
            crew.observed.clone(),
            move || undelivered.undelivered(),
            self.pool,
            settings.token.clone(),
        );
        observe::listen(self.listener, vec![state])
    }
}

/// The same for a worker of several databases.
///
/// # Errors
/// If the address cannot be had.
pub async fn open_for_all(parts: &[(WorkerProfile, Settings, Part)], settings: &Settings) -> Result<Option<Endpoints>> {
    let Some(address) = settings.listen else {
        return Ok(None);
    };
    let listener = observe::bind(address).await?;
    let mut states = Vec::new();
    for (profile, _, part) in parts {
        let name = format!("{} (endpoints)", profile.name);
        let pool = Pool::for_worker(&profile.database, &name, CONNECTIONS)?;
        let undelivered = part.clone();
        let state = EndpointState::new(
            &profile.name,
            &profile.host,
            &profile.queues,
            part.observed.clone(),
            move || undelivered.undelivered(),
            pool,
            settings.token.clone(),
        );
        states.push(state.of_database(&part.database));
    }
    Ok(Some(observe::listen(listener, states)))
}
