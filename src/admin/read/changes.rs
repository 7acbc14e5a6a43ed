//! What operators did.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use tokio_postgres::{GenericClient, Row};

use super::time::as_text;
use crate::db::connect::Unnamed;
use crate::error::Result;
use crate::job::JobId;

/// A row of `bugle.changes`.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Change {
    /// Rises with time.
    pub id: i64,
    /// When.
    #[serde(serialize_with = "as_text")]
    pub changed_at: SystemTime,
    /// What was done.
    pub verb: String,
    /// The job that was changed, if any.
    pub job: Option<JobId>,
    /// The position of the step that was changed, if any.
    pub step: Option<i32>,
    /// The queue that was changed, if any.
    pub queue: Option<String>,
    /// The command that was changed, if any.
    pub command: Option<String>,
    /// The worker that was changed, if any.
    pub worker: Option<i64>,
    /// The schedule that was changed, if any.
    pub schedule: Option<String>,
    /// The retry policy that was changed, if any.
    pub policy: Option<String>,
    /// What it was before.
    pub from_state: Option<String>,
    /// What it is after.
    pub to_state: Option<String>,
    /// The login that did it.
    pub who: String,
    /// The `application_name` of its session.
    pub application: Option<String>,
    /// Why.
    pub note: Option<String>,
}

/// Which changes to list. Nothing set: all.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ChangeFilter {
    /// Only those of this job.
    pub job: Option<JobId>,
    /// Only those of this login.
    pub who: Option<String>,
    /// Only this verb.
    pub verb: Option<String>,
    /// Only those of this queue.
    pub queue: Option<String>,
    /// Only those whose note contains this text.
    pub note: Option<String>,
    /// Only those within this time, an interval as Postgres reads it.
    pub since: Option<String>,
    /// Only those with a smaller id.
    pub before: Option<i64>,
}

impl ChangeFilter {
    /// All changes.
    pub fn new() -> Self {
        ChangeFilter::default()
    }

    /// Only those of this job.
    pub fn job(mut self, job: JobId) -> Self {
        self.job = Some(job);
        self
    }

    /// Only those of this login.
    pub fn who(mut self, login: &str) -> Self {
        self.who = Some(login.to_owned());
        self
    }

    /// Only this verb.
    pub fn verb(mut self, verb: &str) -> Self {
        self.verb = Some(verb.to_owned());
        self
    }

    /// Only those of this queue.
    pub fn queue(mut self, queue: &str) -> Self {
        self.queue = Some(queue.to_owned());
        self
    }

    /// Only those whose note contains this text.
    pub fn note(mut self, text: &str) -> Self {
        self.note = Some(text.to_owned());
        self
    }

    /// Only those within this time, in any format Postgres accepts: `1 hour`.
    pub fn since(mut self, interval: &str) -> Self {
        self.since = Some(interval.to_owned());
        self
    }

    /// The same as a statement to copy.
    #[cfg(all(feature = "cli", feature = "web"))]
    pub(crate) fn sql(&self, limit: i64) -> String {
        let literal = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let terms = [
            self.job.map(|job| format!("job = {job}")),
            self.who.as_ref().map(|who| format!("who = {}", literal(who))),
            self.verb.as_ref().map(|verb| format!("verb = {}", literal(verb))),
            self.queue.as_ref().map(|queue| format!("queue = {}", literal(queue))),
            (self.note.as_ref()).map(|note| format!("strpos(lower(note), lower({})) > 0", literal(note))),
            (self.since.as_ref()).map(|since| format!("changed_at > now() - interval {}", literal(since))),
            self.before.map(|before| format!("id < {before}")),
        ];
        let terms: Vec<String> = terms.into_iter().flatten().collect();
        let conditions = match terms.is_empty() {
            true => String::new(),
            false => format!("where {} ", terms.join(" and ")),
        };
        format!("select * from bugle.changes {conditions}order by id desc limit {limit};")
    }

    /// Only those with a smaller id: the next page.
    pub fn before(mut self, id: i64) -> Self {
        self.before = Some(id);
        self
    }
}

/// The newest changes, the newest first.
///
/// # Errors
/// If the database cannot be asked.
pub async fn changes(client: &impl GenericClient, filter: &ChangeFilter, limit: i64) -> Result<Vec<Change>> {
    let sql = format!("{MATCHING} order by c.id desc limit $8");
    let rows = ask(client, &sql, filter, limit).await?;
    rows.iter().map(change).collect()
}

/// Changes made by one call, of which the newest stands for all.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Changes {
    /// The newest of them.
    pub newest: Change,
    /// How many jobs were changed.
    pub jobs: i64,
    /// The oldest of them: those before it come next.
    pub oldest: i64,
}

/// The newest 20,000 changes, the newest first. An operation on many jobs is one entry.
///
/// # Errors
/// If the database cannot be asked.
pub async fn operations(client: &impl GenericClient, filter: &ChangeFilter, limit: i64) -> Result<Vec<Changes>> {
    let sql = format!(
        "select * \
         from ( \
           select m.*, count(*) over one as jobs, min(m.id) over one as oldest, \
             m.id = max(m.id) over one as is_newest \
           from ({MATCHING} order by c.id desc limit 20000) m \
           window one as (partition by m.changed_at, m.verb, m.who, m.note, m.application, \
             case when m.job is null then m.id end)) o \
         where o.is_newest order by o.id desc limit $8"
    );
    let rows = ask(client, &sql, filter, limit).await?;
    let mut found: Vec<Changes> = Vec::new();
    for row in &rows {
        let next = Changes {
            newest: change(row)?,
            jobs: row.try_get("jobs")?,
            oldest: row.try_get("oldest")?,
        };
        match found.last_mut().filter(|last| last.goes_on_with(&next)) {
            Some(last) => {
                last.jobs += next.jobs;
                last.oldest = next.oldest;
            }
            None => found.push(next),
        }
    }
    Ok(found)
}

impl Changes {
    /// Whether these are steps of one operation on many jobs: each is a transaction of its own.
    fn goes_on_with(&self, earlier: &Changes) -> bool {
        let of = |changes: &Changes| {
            let change = changes.newest.clone();
            (change.verb, change.who, change.note, change.application)
        };
        let apart = self.newest.changed_at.duration_since(earlier.newest.changed_at);
        self.jobs > 1 && earlier.jobs > 1 && of(self) == of(earlier) && apart.is_ok_and(|apart| apart < STEPS_APART)
    }
}

/// The longest time between two steps of one operation.
const STEPS_APART: Duration = Duration::from_secs(60);

const MATCHING: &str = "select c.id, c.changed_at, c.verb, c.job, c.step, c.queue, c.command, c.worker, c.schedule, \
    c.policy, c.from_state, c.to_state, c.who::text as who, c.application, c.note \
    from bugle.changes c \
    where ($1::bigint is null or c.job = $1) \
    and ($2::text is null or c.who = $2) \
    and ($3::text is null or c.verb = $3) \
    and ($4::bigint is null or c.id < $4) \
    and ($5::text is null or c.queue = $5) \
    and ($6::text is null or strpos(lower(c.note), lower($6)) > 0) \
    and ($7::text is null or c.changed_at > now() - $7::text::interval)";

async fn ask(client: &impl GenericClient, sql: &str, filter: &ChangeFilter, limit: i64) -> Result<Vec<Row>> {
    let ChangeFilter {
        job,
        who,
        verb,
        before,
        queue,
        note,
        since,
    } = filter;
    client
        .ask(sql, &[job, who, verb, before, queue, note, since, &limit])
        .await
}

fn change(row: &Row) -> Result<Change> {
    Ok(Change {
        id: row.try_get("id")?,
        changed_at: row.try_get("changed_at")?,
        verb: row.try_get("verb")?,
        job: row.try_get("job")?,
        step: row.try_get("step")?,
        queue: row.try_get("queue")?,
        command: row.try_get("command")?,
        worker: row.try_get("worker")?,
        schedule: row.try_get("schedule")?,
        policy: row.try_get("policy")?,
        from_state: row.try_get("from_state")?,
        to_state: row.try_get("to_state")?,
        who: row.try_get("who")?,
        application: row.try_get("application")?,
        note: row.try_get("note")?,
    })
}
