//! Checks of the database and its workers. Each reports a status and how to fix a problem.

mod fleet;
mod server;

use std::time::{Duration, SystemTime};

use serde::Serialize;
use tokio_postgres::Client;

use crate::admin::read;
use crate::db::connect::Unnamed;
use crate::db::versions::{self, Support};
use crate::error::Result;
use crate::schema::{self, Status};

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Level {
    /// No problem.
    Ok,
    /// This login lacks the privileges for the check.
    Skipped,
    /// It works, but may cause a problem.
    Warn,
    /// It does not work.
    Fail,
}

/// The result of a check.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// The name of the check.
    pub check: &'static str,
    /// The severity of a finding.
    pub level: Level,
    /// A sentence for people.
    pub message: String,
    /// How to fix it: SQL or a shell command.
    pub fix: Option<String>,
    /// The query of the jobs it is about, for the page of jobs.
    #[serde(skip)]
    pub(crate) query: Option<String>,
}

impl Finding {
    fn new(check: &'static str, level: Level, message: impl Into<String>) -> Finding {
        Finding {
            check,
            level,
            message: message.into(),
            fix: None,
            query: None,
        }
    }

    fn ok(check: &'static str, message: impl Into<String>) -> Vec<Finding> {
        vec![Finding::new(check, Level::Ok, message)]
    }

    fn about(mut self, query: impl Into<String>) -> Finding {
        self.query = Some(query.into());
        self
    }

    fn fix(mut self, how: impl Into<String>) -> Finding {
        self.fix = Some(how.into());
        self
    }
}

/// Run all checks, the most important first. Checks that this login lacks privileges for are skipped.
///
/// # Errors
/// If the database cannot be queried.
pub async fn doctor(client: &Client) -> Result<Vec<Finding>> {
    let mut found = the_server(client).await?;
    let schema = schema_revision(client).await?;
    let has_schema = schema.iter().all(|finding| finding.level == Level::Ok);
    found.extend(schema);
    found.extend(pooler(client).await?);
    found.extend(clocks(client).await?);
    found.extend(or_skipped("autovacuum", server::autovacuum(client).await)?);
    found.extend(or_skipped("transactions", server::transactions(client).await)?);
    found.extend(or_skipped("notifications", server::notifications(client).await)?);
    found.extend(or_skipped("connections", server::connections(client).await)?);
    if has_schema {
        found.extend(or_skipped("clocks", server::clock_steps(client).await)?);
        found.extend(or_skipped("locks", fleet::foreign_locks(client).await)?);
        found.extend(or_skipped("roles", fleet::roles(client).await)?);
        found.extend(or_skipped("history", fleet::history(client).await)?);
        found.extend(or_skipped("workers", fleet::workers(client).await)?);
        found.extend(or_skipped("queues", fleet::queues(client).await)?);
        found.extend(or_skipped("commands", fleet::commands(client).await)?);
        found.extend(or_skipped("dead letters", fleet::dead_letters(client).await)?);
    }
    Ok(found)
}

/// A missing privilege does not stop the other checks.
fn or_skipped(check: &'static str, found: Result<Vec<Finding>>) -> Result<Vec<Finding>> {
    match found {
        Err(error) if error.sqlstate() == Some("42501") => {
            let message = format!("this login lacks the privileges: {}", error.message());
            Ok(vec![Finding::new(check, Level::Skipped, message)])
        }
        found => found,
    }
}

async fn the_server(client: &Client) -> Result<Vec<Finding>> {
    let row = client
        .ask_one(
            "select current_setting('server_version'), pg_is_in_recovery(), \
             (select age(d.datfrozenxid) from pg_database d where d.datname = current_database()), \
             current_setting('default_transaction_read_only') = 'on'",
            &[],
        )
        .await?;
    let version: String = row.get(0);
    let mut found = Finding::ok("server", format!("PostgreSQL {version}"));
    found.extend(versions::major_of(&version).and_then(about_version));
    if row.get::<_, bool>(1) {
        found.push(
            Finding::new(
                "server",
                Level::Fail,
                "this server is a standby: workers cannot claim jobs on it",
            )
            .fix("Connect to the primary, or list several hosts with target_session_attrs=read-write."),
        );
    } else if row.get::<_, bool>(3) {
        found.push(
            Finding::new("server", Level::Fail, "transactions are read-only by default")
                .fix("alter system set default_transaction_read_only = off; select pg_reload_conf();"),
        );
    }
    let age: i32 = row.get(2);
    if age > 1_500_000_000 {
        let message =
            format!("the oldest transaction ID has age {age}; at 2,100,000,000 the server stops accepting writes");
        found.push(Finding::new("server", Level::Fail, message).fix("vacuum (freeze, verbose);"));
    }
    Ok(found)
}

/// A warning about a major version that connections accept.
fn about_version(major: u32) -> Option<Finding> {
    match versions::support(major) {
        Support::Ending => {
            let message = format!(
                "PostgreSQL {major} reached its end of life in {}: it gets no security fixes any more",
                versions::END_OF_LIFE
            );
            Some(Finding::new("server", Level::Warn, message).fix("Upgrade the server, with pg_upgrade for example."))
        }
        Support::Untested => {
            let message = format!("PostgreSQL {major} is untested: this version of Bugle is older than it");
            Some(Finding::new("server", Level::Warn, message).fix("Upgrade Bugle, if there is a newer version."))
        }
        Support::Tested | Support::TooOld => None,
    }
}

async fn schema_revision(client: &Client) -> Result<Vec<Finding>> {
    let fail = |message: &str, fix: &str| vec![Finding::new("schema", Level::Fail, message).fix(fix)];
    Ok(match schema::status(client).await {
        Ok(Status::UpToDate) => Finding::ok("schema", format!("up to date (revision {})", schema::REVISION)),
        Ok(Status::Missing) => fail("this database has no Bugle schema", "bugle migrate"),
        Ok(Status::Behind) => fail("the schema is older than this program", "bugle migrate"),
        Ok(Status::Ahead) => fail("the schema is newer than this program", "Upgrade this program."),
        Err(error) if error.sqlstate() == Some("42501") => fail(
            "this login has no access to the schema",
            "grant bugle_viewer to LOGIN;  -- as the owner",
        ),
        Err(error) => return Err(error),
    })
}

/// Behind a pooler, a session is older than its connection, or changes from one transaction to the next.
async fn pooler(client: &Client) -> Result<Vec<Finding>> {
    let sql = "select a.pid, extract(epoch from clock_timestamp() - a.backend_start)::float8, a.application_name \
        from pg_stat_activity a where a.pid = pg_backend_pid()";
    let mut processes = Vec::new();
    let mut oldest = 0.0;
    for _ in 0..4 {
        let row = client.ask_one(sql, &[]).await?;
        processes.push(row.get::<_, i32>(0));
        oldest = f64::max(oldest, row.get::<_, Option<f64>>(1).unwrap_or_default());
    }
    processes.dedup();
    if processes.len() == 1 && oldest < 30.0 {
        return Ok(Finding::ok("pooler", "none detected"));
    }
    let message = match processes.len() {
        1 => "the session is older than this connection: there seems to be a connection pooler in between",
        _ => "the session changes between transactions: there is a connection pooler in transaction mode in between",
    };
    Ok(vec![Finding::new("pooler", Level::Warn, message).fix(
        "Workers need their own session: connect to the server directly, or use session mode. Enqueueing works \
             either way.",
    )])
}

async fn clocks(client: &Client) -> Result<Vec<Finding>> {
    let before = SystemTime::now();
    let theirs = read::now(client).await?;
    let ours = before + before.elapsed().unwrap_or_default() / 2;
    let apart = theirs.duration_since(ours).unwrap_or_else(|error| error.duration());
    let message = format!(
        "the clocks of this machine and the database differ by {} ms",
        apart.as_millis()
    );
    Ok(match apart > Duration::from_secs(2) {
        true => {
            vec![Finding::new("clocks", Level::Warn, message).fix(
                "Synchronize them with NTP. Workers and schedules only use the database's clock; a run_at or \
                 deadline \
                 that an application computes from the clock of this machine is off by this difference.",
            )]
        }
        false => Finding::ok("clocks", message),
    })
}

fn length(seconds: f64) -> String {
    let seconds = Duration::from_secs(seconds.max(0.0) as u64);
    humantime::format_duration(seconds).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ending_and_an_untested_version_of_postgresql_are_warned_about_and_no_other() {
        let said = |major| about_version(major).map(|finding| (finding.level, finding.message));

        let (level, message) = said(14).expect("a warning");
        assert_eq!(level, Level::Warn);
        assert!(
            message.contains("PostgreSQL 14") && message.contains("November 2026"),
            "{message}"
        );
        let (level, message) = said(19).expect("a warning");
        assert_eq!(level, Level::Warn);
        assert!(message.contains("PostgreSQL 19 is untested"), "{message}");
        assert!((15..=18).all(|major| said(major).is_none()));
    }
}
