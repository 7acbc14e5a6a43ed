//! What a worker tells of itself.

use std::time::SystemTime;

use postgres_types::ToSql;

use crate::db::connect::Session;
use crate::error::Result;
use crate::worker::Identity;

/// The counts of a worker for one queue and command since its last report.
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
    /// An empty report.
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

    /// The sum of both.
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

/// How often a worker was notified for one queue since its last report.
#[derive(Debug, Clone, ToSql)]
#[postgres(name = "bell_report")]
pub struct BellReport {
    pub queue: String,
    pub rings: i64,
    /// Jobs that only the safety poll found.
    pub found_by_poll: i64,
}

/// Send a report. Returns the database's time.
pub async fn report_minutes(
    session: &Session,
    me: Identity,
    reports: &[MinuteReport],
    bells: &[BellReport],
) -> Result<SystemTime> {
    let rows = session
        .query(
            "select bugle.report_minutes($1, $2, $3, $4)",
            &[&me.worker, &me.nonce, &reports, &bells],
        )
        .await?;
    Ok(rows[0].get(0))
}
