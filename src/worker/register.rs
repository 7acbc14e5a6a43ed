//! Registration: what a worker tells the database about itself each time it connects.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::config::Settings;
use crate::db::calls::{self, Registration};
use crate::db::connect::{self, Notifications, Session, Target};
use crate::error::Result;
use crate::execute::registry::Registry;
use crate::host::Hosts;
use crate::schema;
use crate::worker::Identity;

/// The name of a worker, its database and what it serves.
pub struct WorkerProfile {
    pub database: Target,
    pub name: String,
    pub host: String,
    /// Queues and their slots, sorted by name, so that every worker locks rows of queues in the same order.
    pub queues: Vec<(String, u32)>,
    /// The commands that this worker runs itself.
    pub commands: Vec<String>,
    /// Which run further commands.
    pub hosts: Option<Hosts>,
}

impl WorkerProfile {
    /// Build it from the settings and the registry.
    ///
    /// # Errors
    /// If the connection string is invalid.
    pub fn new(settings: &Settings, registry: &Registry) -> Result<WorkerProfile> {
        Ok(WorkerProfile {
            database: connect::parse_given_by(&settings.database_url_from, &settings.database_url)?,
            name: settings.name.clone(),
            host: host_name(),
            queues: settings.served_queues(),
            commands: registry.commands(),
            hosts: None,
        })
    }

    /// The commands that this worker serves now.
    pub fn served_commands(&self) -> Vec<String> {
        let of_hosts = self.hosts.as_ref().map(Hosts::commands).unwrap_or_default();
        let all: BTreeSet<String> = self.commands.iter().cloned().chain(of_hosts).collect();
        all.into_iter().collect()
    }

    /// The first connection: to a migrated database, and not through a pooler in transaction mode.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub async fn connect_and_verify(&self) -> Result<(Arc<Session>, Notifications)> {
        // before changing settings of a session that may be shared with other clients
        connect::refuse_pooler(&self.database).await?;
        let (session, notifications) = self.connect().await?;
        schema::verify(session.client()).await?;
        Ok((session, notifications))
    }

    pub async fn connect(&self) -> Result<(Arc<Session>, Notifications)> {
        Session::open(&self.database, &format!("bugle {}", self.name)).await
    }

    /// The name of a further connection in `pg_stat_activity`.
    pub fn connection_name(&self, use_of_it: &str) -> String {
        format!("bugle {} ({use_of_it})", self.name)
    }

    pub async fn register(&self, session: &Session) -> Result<Identity> {
        let queues: Vec<String> = self.queues.iter().map(|(queue, _)| queue.clone()).collect();
        let slots: Vec<i32> = self.queues.iter().map(|(_, slots)| *slots as i32).collect();
        let registration = Registration {
            name: &self.name,
            host: &self.host,
            queues: &queues,
            slots: &slots,
            commands: &self.served_commands(),
        };
        let identity = calls::register(session, &registration).await?;
        if let Some(hosts) = &self.hosts {
            hosts.changed();
        }
        Ok(identity)
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
