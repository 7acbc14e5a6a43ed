//! What a worker tells of itself, and what the keeper's metrics ask.

use std::time::SystemTime;

use postgres_types::ToSql;
use tokio_postgres::GenericClient;

use crate::db::connect::{Session, Unnamed};
use crate::error::Result;
use crate::worker::Identity;

/// What a worker did since its last report, of one queue and command.
#[derive(Debug, Clone, ToSql)]
#[postgres(name = "minute_report")]
pub struct MinuteReport {
    pub queue: String,
    pub command: String,
    pub completed: i64,
    pub failed: i64,
    pub others: i64,
    pub run_seconds: f64,
    pub wait_seconds: f64,
    pub run: Vec<i64>,
    pub wait: Vec<i64>,
}

impl MinuteReport {
    /// Nothing yet.
    pub fn of(queue: &str, command: &str, spans: usize) -> MinuteReport {
        MinuteReport {
            queue: queue.to_owned(),
            command: command.to_owned(),
            completed: 0,
            failed: 0,
            others: 0,
            run_seconds: 0.0,
            wait_seconds: 0.0,
            run: vec![0; spans],
            wait: vec![0; spans],
        }
    }

    /// Both together.
    pub fn add(&mut self, more: &MinuteReport) {
        self.completed += more.completed;
        self.failed += more.failed;
        self.others += more.others;
        self.run_seconds += more.run_seconds;
        self.wait_seconds += more.wait_seconds;
        let add = |(count, more): (&mut i64, &i64)| *count += more;
        self.run.iter_mut().zip(&more.run).for_each(add);
        self.wait.iter_mut().zip(&more.wait).for_each(add);
    }
}

/// Report what was done. Returns the database's time.
pub async fn report_minutes(session: &Session, me: Identity, reports: &[MinuteReport]) -> Result<SystemTime> {
    let rows = session
        .query(
            "select bugle.report_minutes($1, $2, $3)",
            &[&me.worker, &me.nonce, &reports],
        )
        .await?;
    Ok(rows[0].get(0))
}

/// One number about the whole database.
#[derive(Debug, Clone)]
pub struct Gauge {
    pub name: String,
    pub queue: Option<String>,
    pub label: Option<String>,
    pub value: f64,
}

pub async fn gauges(client: &impl GenericClient) -> Result<Vec<Gauge>> {
    let rows = client
        .ask("select name, queue, label, value from bugle.gauges()", &[])
        .await?;
    let gauge = |row: &tokio_postgres::Row| Gauge {
        name: row.get(0),
        queue: row.get(1),
        label: row.get(2),
        value: row.get(3),
    };
    Ok(rows.iter().map(gauge).collect())
}
