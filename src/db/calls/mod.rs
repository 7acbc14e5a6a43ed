//! All SQL that a worker sends: thin wrappers of the SQL functions of the schema.

mod complete;
mod family;
#[cfg(feature = "web")]
mod gauges;
mod keep;
mod stats;
mod steps;
mod wake;

use std::collections::BTreeMap;
use std::error::Error;
use std::time::{Duration, SystemTime};

use postgres_types::private::BytesMut;
use postgres_types::{FromSql, IsNull, Json, ToSql, Type, accepts, to_sql_checked};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio_postgres::{GenericClient, Row};
use uuid::Uuid;

use crate::db::connect::{Session, Unnamed};
use crate::error::Result;
use crate::job::{ClaimedJob, HeldJob, JobId};
use crate::worker::Identity;

pub use complete::{FinishedJob, complete, complete_all, complete_at, complete_in, prepare_complete_all, settled};
pub use family::{attend, dependency_results, endings, enqueue_job, enqueue_workflow, spawn};
#[cfg(feature = "web")]
pub use gauges::{Gauge, gauges};
pub use keep::{Condition, Pulse, heartbeat, not_held, note_condition, promote, should_drain, unnamed, upkeep};
pub use stats::{BellReport, MinuteReport, report_minutes};
pub use steps::{NextStep, Try, begin_step, end_step, finish_step, finish_step_in, retry_step, start_step};
pub use wake::{Found, arm, scan_ready};

/// The version of the worker protocol this library speaks: `bugle.protocol()`.
pub const PROTOCOL: i32 = 1;

/// The registration of a worker: its identity and what it serves.
pub struct Registration<'a> {
    pub name: &'a str,
    pub host: &'a str,
    pub queues: &'a [String],
    pub slots: &'a [i32],
    pub commands: &'a [String],
}

pub async fn register(session: &Session, worker: &Registration<'_>) -> Result<Identity> {
    let rows = session
        .query(
            "select worker, nonce from bugle.register($1, $2, $3, $4, $5, $6, $7, $8)",
            &[
                &worker.name,
                &worker.host,
                &(std::process::id() as i32),
                &env!("CARGO_PKG_VERSION"),
                &PROTOCOL,
                &worker.queues,
                &worker.slots,
                &worker.commands,
            ],
        )
        .await?;
    Ok(Identity {
        worker: rows[0].get(0),
        nonce: rows[0].get::<_, Uuid>(1),
    })
}

/// Announce the commands this worker serves from now on, and the state of its hosts.
pub async fn serve(session: &Session, me: Identity, commands: &[String], hosts: &Value) -> Result<()> {
    session
        .query(
            "select bugle.serve($1, $2, $3, $4)",
            &[&me.worker, &me.nonce, &commands, &Json(hosts)],
        )
        .await
        .map(drop)
}

/// The verdict on a call about a job: `repeated`, `gone` or `fenced`. Successful calls have none.
#[derive(Debug, Clone, FromSql)]
#[postgres(name = "verdict")]
pub struct Verdict {
    pub id: JobId,
    pub claim: i64,
    pub verdict: String,
}

impl Verdict {
    fn from_row(row: &Row) -> Verdict {
        Verdict {
            id: row.get(0),
            claim: row.get(1),
            verdict: row.get(2),
        }
    }

    pub fn held(&self) -> HeldJob {
        HeldJob {
            id: self.id,
            claim: self.claim,
        }
    }
}

fn verdicts(rows: Vec<Row>) -> Vec<Verdict> {
    rows.iter().map(Verdict::from_row).collect()
}

pub async fn attach(session: &Session, me: Identity, running: &[HeldJob]) -> Result<Vec<Verdict>> {
    session
        .query(
            "select id, claim, verdict from bugle.attach($1, $2, $3)",
            &[&me.worker, &me.nonce, &running],
        )
        .await
        .map(verdicts)
}

pub async fn detach(session: &Session, me: Identity) -> Result<()> {
    session
        .query("select bugle.detach($1, $2)", &[&me.worker, &me.nonce])
        .await
        .map(drop)
}

/// The notification channels of a worker's queues, in their order, and its own channel.
pub async fn channels(session: &Session, me: Identity, queues: &[String]) -> Result<(Vec<String>, String)> {
    let rows = session
        .query(
            "select bugle.bell_channel(q.queue), bugle.worker_channel($1) \
             from unnest($2::text[]) with ordinality q (queue, place) order by q.place",
            &[&me.worker, &queues],
        )
        .await?;
    Ok((rows.iter().map(|r| r.get(0)).collect(), rows[0].get(1)))
}

/// Channel names come from the schema and are plain identifiers.
pub async fn listen(session: &Session, channel: &str) -> Result<()> {
    Ok(session.client().batch_execute(&format!("listen {channel}")).await?)
}

pub async fn unlisten(session: &Session, channel: &str) -> Result<()> {
    Ok(session.client().batch_execute(&format!("unlisten {channel}")).await?)
}

/// The position of a job in its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ToSql, FromSql)]
#[postgres(name = "queue_position")]
pub struct Position {
    pub priority: i32,
    pub run_at: Moment,
    pub id: JobId,
}

/// A time as Postgres sends it, only to be compared and sent back. It may be infinite, which `SystemTime` cannot be.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(i64);

impl<'a> FromSql<'a> for Moment {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Moment, Box<dyn Error + Sync + Send>> {
        Ok(Moment(i64::from_be_bytes(raw.try_into()?)))
    }

    accepts!(TIMESTAMPTZ);
}

impl ToSql for Moment {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&self.0.to_be_bytes());
        Ok(IsNull::No)
    }

    accepts!(TIMESTAMPTZ);
    to_sql_checked!();
}

impl Position {
    /// The position directly before the job.
    pub fn just_before(self) -> Position {
        Position {
            id: self.id - 1,
            ..self
        }
    }
}

/// The number of jobs a worker requests from a queue, and the position after which to start.
#[derive(Debug, Clone, ToSql)]
#[postgres(name = "queue_request")]
pub struct QueueRequest {
    pub queue: String,
    pub slots: i32,
    pub after: Option<Position>,
    pub mode: &'static str,
}

/// A claimed job, and whether its payload must be fetched with [`payloads`].
pub struct Claimed {
    pub job: Result<ClaimedJob, Undecodable>,
    pub lacks_payload: bool,
    position: Position,
    /// Its place in the order given by the limits and keys of its queue.
    turn: Option<i32>,
}

/// A claimed job with a column that cannot be decoded. Any application can write jobs, so such a row must only fail
/// this job, and neither the whole claim nor the worker.
#[derive(Debug)]
pub struct Undecodable {
    pub held: HeldJob,
    pub queue: String,
    pub command: String,
    pub attempt: i32,
    /// The column and the error.
    pub reason: String,
}

impl Claimed {
    pub fn held(&self) -> HeldJob {
        match &self.job {
            Ok(job) => job.held,
            Err(undecodable) => undecodable.held,
        }
    }

    pub fn queue(&self) -> &str {
        match &self.job {
            Ok(job) => &job.queue,
            Err(undecodable) => &undecodable.queue,
        }
    }

    /// Add the payload that was fetched afterwards.
    pub fn add_payload(&mut self, payload: Result<Box<RawValue>, String>) {
        let Ok(job) = &mut self.job else { return };
        match payload {
            Ok(payload) => job.payload = payload,
            Err(reason) => {
                self.job = Err(Undecodable {
                    held: job.held,
                    queue: std::mem::take(&mut job.queue),
                    command: std::mem::take(&mut job.command),
                    attempt: job.attempt,
                    reason,
                });
            }
        }
    }
}

/// The result of a claim, not decoded yet, so that the next claim need not wait for the decoding.
pub struct ClaimedRows(Vec<Row>);

/// The claimed jobs of one queue.
#[derive(Debug, Clone, Copy, Default)]
pub struct Share {
    pub count: usize,
    /// The position of the last job.
    pub last: Option<Position>,
    /// Whether claims of this queue are serialized, because of limits or keys.
    pub is_serial: bool,
}

impl ClaimedRows {
    /// The result for a queue.
    pub fn of(&self, queue: &str) -> Result<Share> {
        let mut share = Share::default();
        let mut last: Option<(Option<i32>, Position)> = None;
        for row in &self.0 {
            if row.try_get::<_, &str>(3)? == queue {
                share.count += 1;
                last = last.max(Some((row.try_get(15)?, position(row)?)));
            }
        }
        share.last = last.map(|(_, position)| position);
        share.is_serial = last.is_some_and(|(turn, _)| turn.is_some());
        Ok(share)
    }

    /// The jobs, in the order in which to start them.
    pub fn read(self) -> Result<Vec<Claimed>> {
        let mut jobs = self.0.iter().map(claimed).collect::<Result<Vec<Claimed>>>()?;
        jobs.sort_by_key(|c| (c.turn, c.position));
        Ok(jobs)
    }
}

pub async fn claim(session: &Session, me: Identity, requests: &[QueueRequest]) -> Result<ClaimedRows> {
    session
        .query(
            "select id, claim, command, queue, priority, attempt, timeout_seconds, created_at, run_at, headers, \
             payload, answer, \
             steps, step, address, turn, default_timeout_seconds, max_attempts from bugle.claim($1, $2, $3)",
            &[&me.worker, &me.nonce, &requests],
        )
        .await
        .map(ClaimedRows)
}

/// Columns written by the engine must be valid: an error here means that worker and schema do not match. All other
/// columns are decoded for each job separately.
fn claimed(row: &Row) -> Result<Claimed> {
    let held = HeldJob {
        id: row.try_get(0)?,
        claim: row.try_get(1)?,
    };
    let (queue, priority): (String, i32) = (row.try_get(3)?, row.try_get(4)?);
    let (position, turn) = (position(row)?, row.try_get(15)?);
    match decode(row, held, &queue, priority) {
        Ok((job, lacks_payload)) => Ok(Claimed {
            job: Ok(job),
            lacks_payload,
            position,
            turn,
        }),
        Err(reason) => Ok(Claimed {
            job: Err(Undecodable {
                held,
                queue,
                command: row.try_get(2).unwrap_or_default(),
                attempt: row.try_get(5).unwrap_or_default(),
                reason,
            }),
            lacks_payload: false,
            position,
            turn,
        }),
    }
}

fn position(row: &Row) -> Result<Position> {
    Ok(Position {
        priority: row.try_get(4)?,
        run_at: row.try_get(8)?,
        id: row.try_get(0)?,
    })
}

fn decode(row: &Row, held: HeldJob, queue: &str, priority: i32) -> Result<(ClaimedJob, bool), String> {
    let payload: Option<Json<Box<RawValue>>> = column(row, 10)?;
    let headers: Option<Json<BTreeMap<String, Value>>> = column(row, 9)?;
    let answer: Option<Json<Box<RawValue>>> = column(row, 11)?;
    let lacks_payload = payload.is_none();
    let job = ClaimedJob {
        held,
        command: column(row, 2)?,
        queue: queue.to_owned(),
        priority,
        attempt: column(row, 5)?,
        // endless: the largest there is
        max_attempts: column::<Option<i32>>(row, 17)?.filter(|most| *most < i32::MAX),
        timeout: column::<Option<f64>>(row, 6)?.map(seconds),
        default_timeout: column::<Option<f64>>(row, 16)?.map(seconds),
        created_at: column(row, 7)?,
        run_at: column(row, 8)?,
        headers: headers.map(|h| h.0).unwrap_or_default(),
        payload: payload.map_or_else(|| RawValue::NULL.to_owned(), |p| p.0),
        answer: answer.map(|answer| answer.0),
        steps: column(row, 12)?,
        step: column::<Option<i32>>(row, 13)?.unwrap_or_default(),
        address: column(row, 14)?,
    };
    Ok((job, lacks_payload))
}

/// The value of a column, or an error.
fn column<'a, T: FromSql<'a>>(row: &'a Row, index: usize) -> Result<T, String> {
    row.try_get(index).map_err(|error| {
        let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        format!("column {:?} cannot be decoded: {cause}", row.columns()[index].name())
    })
}

pub async fn payloads(
    session: &Session,
    me: Identity,
    ids: &[JobId],
) -> Result<Vec<(HeldJob, Result<Box<RawValue>, String>)>> {
    let rows = session
        .query(
            "select id, claim, payload from bugle.payloads($1, $2, $3)",
            &[&me.worker, &me.nonce, &ids],
        )
        .await?;
    rows.iter()
        .map(|row| {
            let held = HeldJob {
                id: row.try_get(0)?,
                claim: row.try_get(1)?,
            };
            Ok((held, column::<Json<Box<RawValue>>>(row, 2).map(|json| json.0)))
        })
        .collect()
}

pub async fn stand_down(session: &Session, queues: &[String], modes: &[&str]) -> Result<()> {
    session
        .query("select bugle.stand_down($1, $2)", &[&queues, &modes])
        .await
        .map(drop)
}

/// A failed attempt.
#[derive(Debug, Clone, ToSql)]
#[postgres(name = "failed_job")]
pub struct FailedJob {
    pub id: JobId,
    pub claim: i64,
    pub error: String,
    pub code: Option<String>,
    pub retryable: bool,
    pub retry_after_seconds: Option<f64>,
}

pub async fn fail(session: &Session, me: Identity, jobs: &[FailedJob]) -> Result<Vec<Verdict>> {
    session
        .query(
            "select id, claim, verdict from bugle.fail($1, $2, $3)",
            &[&me.worker, &me.nonce, &jobs],
        )
        .await
        .map(verdicts)
}

/// What became of a job whose attempt failed.
#[derive(Debug)]
pub struct AfterFailure {
    pub id: JobId,
    pub has_failed: bool,
    pub retry_at: Option<SystemTime>,
    /// How many attempts it has; none if there is no limit.
    pub attempts: Option<i32>,
    pub reason: Option<String>,
}

pub async fn after_failure(session: &Session, me: Identity, jobs: &[JobId]) -> Result<Vec<AfterFailure>> {
    let rows = session
        .query(
            "select id, has_failed, retry_at, attempts, reason from bugle.after_failure($1, $2, $3)",
            &[&me.worker, &me.nonce, &jobs],
        )
        .await?;
    let told = |row: &Row| AfterFailure {
        id: row.get(0),
        has_failed: row.get(1),
        retry_at: row.get(2),
        attempts: row.get(3),
        reason: row.get(4),
    };
    Ok(rows.iter().map(told).collect())
}

pub async fn give_back(session: &Session, me: Identity, jobs: &[HeldJob]) -> Result<Vec<Verdict>> {
    session
        .query(
            "select id, claim, verdict from bugle.give_back($1, $2, $3)",
            &[&me.worker, &me.nonce, &jobs],
        )
        .await
        .map(verdicts)
}

pub async fn snooze(session: &Session, me: Identity, job: HeldJob, delay: Duration) -> Result<Vec<Verdict>> {
    session
        .query(
            "select id, claim, verdict from bugle.snooze($1, $2, $3, make_interval(secs => $4))",
            &[&me.worker, &me.nonce, &job, &delay.as_secs_f64()],
        )
        .await
        .map(verdicts)
}

pub async fn wait(
    session: &Session,
    me: Identity,
    job: HeldJob,
    token: Option<&str>,
    at_most: Option<Duration>,
) -> Result<Vec<Verdict>> {
    session
        .query(
            "select id, claim, verdict from bugle.wait($1, $2, $3, $4, make_interval(secs => $5))",
            &[
                &me.worker,
                &me.nonce,
                &job,
                &token,
                &at_most.map(|limit| limit.as_secs_f64()),
            ],
        )
        .await
        .map(verdicts)
}

pub async fn cancel_held(session: &Session, me: Identity, job: HeldJob, error: &str) -> Result<Vec<Verdict>> {
    session
        .query(
            "select id, claim, verdict from bugle.cancel_held($1, $2, $3, $4)",
            &[&me.worker, &me.nonce, &job, &error],
        )
        .await
        .map(verdicts)
}

pub async fn report_progress(
    client: &tokio_postgres::Client,
    me: Identity,
    job: HeldJob,
    percent: f32,
    note: &str,
) -> Result<()> {
    client
        .ask(
            "select bugle.report_progress($1, $2, row($3, $4)::bugle.held_job, $5, $6)",
            &[&me.worker, &me.nonce, &job.id, &job.claim, &percent, &note],
        )
        .await?;
    Ok(())
}

/// Revision, checksum and protocol of the schema, if there is one.
pub async fn schema_state(client: &impl GenericClient) -> Result<Option<(i32, String, i32)>> {
    let exists = client
        .ask_one("select to_regprocedure('bugle.schema_state()') is not null", &[])
        .await?;
    if !exists.get::<_, bool>(0) {
        return Ok(None);
    }
    let row = client
        .ask_opt("select revision, checksum, protocol from bugle.schema_state()", &[])
        .await?;
    Ok(row.map(|row| (row.get(0), row.get(1), row.get(2))))
}

fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value.max(0.0)).unwrap_or(Duration::from_secs(u32::MAX.into()))
}
