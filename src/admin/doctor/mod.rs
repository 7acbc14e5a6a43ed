//! What could be wrong with a database that runs jobs, asked one check at a time: each says how it is, and the SQL that
//! fixes it.

mod fleet;
mod server;

use std::time::{Duration, SystemTime};

use serde::Serialize;
use tokio_postgres::Client;

use crate::admin::read;
use crate::db::connect::Unnamed;
use crate::error::Result;
use crate::schema::{self, Status};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// It could not be seen by this login.
    Skipped,
    /// It works, and will not for ever.
    Warn,
    /// It does not work.
    Fail,
}

/// What a check found.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub check: &'static str,
    /// How bad it is.
    pub level: Level,
    /// In words.
    pub words: String,
    /// What fixes it: SQL, or a command of the shell.
    pub fix: Option<String>,
}

impl Finding {
    fn new(check: &'static str, level: Level, words: impl Into<String>) -> Finding {
        Finding {
            check,
            level,
            words: words.into(),
            fix: None,
        }
    }

    fn ok(check: &'static str, words: impl Into<String>) -> Vec<Finding> {
        vec![Finding::new(check, Level::Ok, words)]
    }

    fn fix(mut self, how: impl Into<String>) -> Finding {
        self.fix = Some(how.into());
        self
    }
}

/// All checks, in the order in which they matter. What this login may not see is skipped.
///
/// # Errors
/// If the database cannot be asked at all.
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
    }
    Ok(found)
}

/// A right that is missing is no reason to stop looking.
fn or_skipped(check: &'static str, found: Result<Vec<Finding>>) -> Result<Vec<Finding>> {
    match found {
        Err(error) if error.sqlstate() == Some("42501") => {
            let words = format!("this login may not see it: {}", error.message());
            Ok(vec![Finding::new(check, Level::Skipped, words)])
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
    let mut found = Finding::ok("server", format!("PostgreSQL {}", row.get::<_, String>(0)));
    if row.get::<_, bool>(1) {
        found.push(
            Finding::new("server", Level::Fail, "this is a standby: workers cannot claim here")
                .fix("Name the primary, or several hosts with target_session_attrs=read-write."),
        );
    } else if row.get::<_, bool>(3) {
        found.push(
            Finding::new("server", Level::Fail, "transactions are read-only by default")
                .fix("alter system set default_transaction_read_only = off; select pg_reload_conf();"),
        );
    }
    let age: i32 = row.get(2);
    if age > 1_500_000_000 {
        let words = format!("the oldest transaction id is {age} old; at 2,100,000,000 the server takes no more writes");
        found.push(Finding::new("server", Level::Fail, words).fix("vacuum (freeze, verbose);"));
    }
    Ok(found)
}

async fn schema_revision(client: &Client) -> Result<Vec<Finding>> {
    let fail = |words: &str, fix: &str| vec![Finding::new("schema", Level::Fail, words).fix(fix)];
    Ok(match schema::status(client).await {
        Ok(Status::UpToDate) => Finding::ok("schema", format!("revision {}, as this program's", schema::REVISION)),
        Ok(Status::Missing) => fail("there is no Bugle schema here", "bugle migrate"),
        Ok(Status::Behind) => fail("the schema is older than this program", "bugle migrate"),
        Ok(Status::Ahead) => fail("the schema is newer than this program", "Upgrade this program."),
        Err(error) if error.sqlstate() == Some("42501") => fail(
            "this login may not use the schema",
            "grant bugle_viewer to LOGIN;  -- as the owner",
        ),
        Err(error) => return Err(error),
    })
}

/// Behind a pooler a session is not ours alone: it was there before us, or changes from one transaction to the next.
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
        return Ok(Finding::ok("pooler", "none that could be seen in between"));
    }
    let words = match processes.len() {
        1 => "this session was there before us: a pooler seems to be in between",
        _ => "the session changes from one transaction to the next: a pooler in transaction mode is in between",
    };
    Ok(vec![Finding::new("pooler", Level::Warn, words).fix(
        "Workers need a session of their own: name the server itself, or use session mode. Enqueueing works \
             either way.",
    )])
}

async fn clocks(client: &Client) -> Result<Vec<Finding>> {
    let before = SystemTime::now();
    let theirs = read::now(client).await?;
    let ours = before + before.elapsed().unwrap_or_default() / 2;
    let apart = theirs.duration_since(ours).unwrap_or_else(|error| error.duration());
    let words = format!("this machine and the database are {} ms apart", apart.as_millis());
    Ok(match apart > Duration::from_secs(2) {
        true => {
            vec![Finding::new("clocks", Level::Warn, words).fix(
                "Synchronise them with NTP. Workers and schedules go by the database's clock alone; a run_at or \
                 deadline \
                 that an application computes from the clock of this machine is off by that much.",
            )]
        }
        false => Finding::ok("clocks", words),
    })
}

fn length(seconds: f64) -> String {
    let seconds = Duration::from_secs(seconds.max(0.0) as u64);
    humantime::format_duration(seconds).to_string()
}
