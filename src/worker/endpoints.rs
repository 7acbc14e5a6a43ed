//! The endpoints of a worker with a listen address.

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

/// For how many queues and commands series begin at 0 before the first job.
const EXPECTED: usize = 500;

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
        expect(profile, &crew.observed);
        let state = EndpointState::new(
            &profile.name,
            &profile.host,
            &profile.queues,
            crew.observed.clone(),
            move || undelivered.undelivered(),
            self.pool,
            settings.token.clone(),
        );
        let state = state.labelled(profile.database.database());
        observe::listen(self.listener, vec![state])
    }
}

/// Series begin at 0, before the first job.
fn expect(profile: &WorkerProfile, observed: &observe::Observed) {
    let served = profile
        .queues
        .iter()
        .flat_map(|(queue, _)| profile.commands.iter().map(move |c| (queue, c)));
    for (queue, command) in served.take(EXPECTED) {
        observed.tallies.expect(queue, command);
    }
    for command in profile.commands.iter().take(EXPECTED) {
        observed.tallies.expect_step(command);
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
        expect(profile, &part.observed);
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
