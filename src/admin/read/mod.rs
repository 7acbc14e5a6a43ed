//! Queries: thin functions that read the views of the schema and return plain structs.
//!
//! Members of `bugle_viewer` may run all of them. Payloads and results are only returned for one job at a time.

mod changes;
mod families;
mod fleet;
mod held_back;
mod jobs;
mod missing;
mod rules;
mod schedules;
mod search;
mod stats;
mod steps;
mod storage;
mod throughput;
mod time;

use std::time::SystemTime;

use tokio_postgres::GenericClient;

use crate::db::connect::Unnamed;
use crate::error::Result;

pub use crate::admin::doctor::{Finding, Level, doctor};
pub use changes::{Change, ChangeFilter, Changes, changes, operations};
pub use families::{
    Relative, Relatives, Run, WORKFLOW_JOBS, WorkflowJob, WorkflowLine, relatives, runs, tolerant_edges, workflow,
    workflow_of, workflows,
};
pub use fleet::{NotServed, Queue, WorkerLine, not_served, queues, workers};
pub use held_back::{
    BlockedKey, LateUpdate, LimitLeft, Rescue, Rings, Safety, Turn, Waits, blocked_keys, doorbell, late_updates,
    limits, limits_left, next_turns, rescues, rings, safety,
};
pub use jobs::{
    Event, Filter, Further, Job, JobSummary, count_jobs, documents, further, job, jobs, payload_values, timeline,
};
pub use missing::jobs_with_keys;
pub use rules::{
    CommandLine, Delay, Policy, PolicyKind, TEMPLATE, commands, is_known_command, may_set_templates, policies,
    policy_delays, set_template, template, template_sql,
};
pub use schedules::{
    Misfire, NewSchedule, Overlap, Schedule, ScheduleRun, add_schedule, next_times, pause_schedule, preview,
    remove_schedule, resume_schedule, run_schedule_now, schedule_columns, schedule_runs, schedules, set_schedule,
};
pub(crate) use search::quoted;
#[cfg(all(feature = "cli", feature = "web"))]
pub(crate) use search::words;
pub use search::{
    Found, KEYS, SEARCHED, Search, count_found, failed_where, oldest_searched, reasons_of_dead_letters, search,
};
pub use stats::{CommandStats, ErrorGroup, Minute, command_stats, error_groups, last_hour};
pub use steps::{Step, steps};
pub use storage::{Size, Snapshot, sizes, snapshots};
pub use throughput::{Bucket, Rights, Unserved, outcomes, rights, throughput, unserved};
pub use time::rfc3339;

/// The database's clock. Ages are computed from it, because all times in the schema are.
///
/// # Errors
/// If the query fails.
pub async fn now(client: &impl GenericClient) -> Result<SystemTime> {
    Ok(client.ask_one("select clock_timestamp()", &[]).await?.try_get(0)?)
}

/// The name of the database, and of the role that asks.
///
/// # Errors
/// If the database cannot be asked.
pub async fn database(client: &impl GenericClient) -> Result<String> {
    let sql = "select format('%s as %s', current_database(), current_user)";
    Ok(client.ask_one(sql, &[]).await?.try_get(0)?)
}

/// Parse a time in any format Postgres accepts: `2026-11-16 10:00+01`, `tomorrow 8:00`. Without a time zone, the
/// session's is used.
///
/// # Errors
/// If it is not a valid time.
pub async fn time(client: &impl GenericClient, text: &str) -> Result<SystemTime> {
    let row = client.ask_one("select $1::text::timestamptz", &[&text]).await?;
    Ok(row.try_get(0)?)
}
