//! Everything people ask, as SQL: thin functions that read the schema's views and return plain structs.
//!
//! A member of `bugle_viewer` may ask all of it. Payloads and results are only told of one job at a time.

mod families;
mod fleet;
mod jobs;
mod rules;
mod schedules;
mod stats;
mod steps;
mod time;

use std::time::SystemTime;

use tokio_postgres::GenericClient;

use crate::db::connect::Unnamed;
use crate::error::Result;

pub use crate::admin::doctor::{Finding, Level, doctor};
pub use families::{Relative, Relatives, WorkflowJob, relatives, workflow};
pub use fleet::{Queue, WorkerLine, queues, workers};
pub use jobs::{Attempt, Filter, Job, JobLine, attempts, job, jobs};
pub use rules::{CommandLine, Delay, Policy, commands, policies, policy_delays};
pub use schedules::{
    NewSchedule, Schedule, add_schedule, pause_schedule, preview, remove_schedule, resume_schedule, run_schedule_now,
    schedules,
};
pub use stats::{CommandStats, ErrorGroup, command_stats, error_groups};
pub use steps::{Step, steps};
pub use time::rfc3339;

/// The database's clock. Ages are measured by it: every time in the schema was written by it.
///
/// # Errors
/// If the database cannot be asked.
pub async fn now(client: &impl GenericClient) -> Result<SystemTime> {
    Ok(client.ask_one("select clock_timestamp()", &[]).await?.try_get(0)?)
}

/// A time as Postgres understands it: `2026-11-16 10:00+01`, `tomorrow 8:00`. Without a zone it is in the session's.
///
/// # Errors
/// If it is not a time.
pub async fn time(client: &impl GenericClient, text: &str) -> Result<SystemTime> {
    let row = client.ask_one("select $1::text::timestamptz", &[&text]).await?;
    Ok(row.try_get(0)?)
}
