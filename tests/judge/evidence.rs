//! What the database says: where every job is, all it went through, and what is still held.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use serde::Deserialize;
use tokio_postgres::Client;

use super::history::now;

/// Installs the audit of every step. Once, after the migration.
pub const AUDIT: &str = include_str!("audit.sql");

/// A job as it is in the end.
#[derive(Debug, Clone)]
pub struct Job {
    pub id: i64,
    pub state: String,
    pub claim: i64,
    pub attempt: i32,
    pub reason: Option<String>,
    pub worker: Option<i64>,
    /// What its enqueuer told it by: `payload.token`.
    pub token: Option<String>,
    /// Schedule and slot, if one made it.
    pub slot: Option<String>,
    /// `payload.later`: it is meant to be still there in the end.
    pub later: bool,
    /// How many steps it has, if it is a chain.
    pub steps: Option<i32>,
    /// It may have to wait for other jobs, even if a worker could run it.
    pub has_keys: bool,
}

/// What one side of a step was.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Side {
    pub state: String,
    pub claim: i64,
    pub attempt: i32,
    pub crashes: i32,
    pub worker: Option<i64>,
    pub reason: Option<String>,
    pub command: String,
    pub unique_key: Option<String>,
    pub queue: String,
    pub order_key: Option<String>,
    pub limit_key: Option<String>,
    pub step: Option<i32>,
    pub deadline: Option<f64>,
    /// When its newest claim was made; told of what it became.
    pub started: Option<f64>,
}

/// One change of one row.
#[derive(Debug, Clone)]
pub struct Step {
    pub seq: i64,
    pub at: f64,
    pub xid: i64,
    pub op: String,
    pub job: i64,
    pub old: Option<Side>,
    pub new: Option<Side>,
}

/// A step that was done: of a chain by its place, of an executor by its name.
#[derive(Debug, Clone)]
pub struct StepDone {
    pub at: f64,
    pub job: i64,
    pub step: String,
}

/// All of it.
#[derive(Debug, Default)]
pub struct Evidence {
    pub jobs: BTreeMap<i64, Job>,
    pub steps: Vec<Step>,
    pub steps_done: Vec<StepDone>,
    /// (job, claim) of attempts that are recorded as failed.
    pub attempts: HashSet<(i64, i64)>,
    /// The codes of these, by (job, claim).
    pub codes: HashMap<(i64, i64), String>,
    /// (job, verb) of what operators did.
    pub changes: HashSet<(i64, String)>,
    /// The names of workers by their ids.
    pub workers: BTreeMap<i64, String>,
    /// What should be gone, in words.
    pub left_over: Vec<String>,
    /// What the clock of the server says when the machine's monotonic clock says zero.
    pub epoch: f64,
}

impl Evidence {
    /// Read it. Nobody works any more: what is still held is left over.
    pub async fn gather(owner: &Client, workdir: Option<&Path>) -> Evidence {
        let mut evidence = Evidence {
            jobs: jobs(owner).await,
            steps: steps(owner).await,
            left_over: left_over(owner).await,
            epoch: epoch(owner).await,
            ..Evidence::default()
        };
        let failed = "select job, claim, coalesce(code, outcome) from bugle.attempts \
            where outcome in ('failed', 'timed_out', 'rescued')";
        for row in query(owner, failed).await {
            let key = (row.get(0), row.get(1));
            evidence.attempts.insert(key);
            evidence.codes.insert(key, row.get(2));
        }
        for row in query(owner, "select job, verb from bugle.changes where job is not null").await {
            evidence.changes.insert((row.get(0), row.get(1)));
        }
        let done = "select extract(epoch from at)::double precision, job, step from audit.steps_done order by at";
        for row in query(owner, done).await {
            evidence.steps_done.push(StepDone {
                at: row.get(0),
                job: row.get(1),
                step: row.get(2),
            });
        }
        for row in query(owner, "select id, name from bugle.registrations").await {
            evidence.workers.insert(row.get(0), row.get(1));
        }
        if let Some(workdir) = workdir {
            evidence.left_over.extend(folders(workdir));
        }
        evidence
    }

    /// A moment of the server's clock by the machine's own.
    pub fn monotonic(&self, at: f64) -> f64 {
        at - self.epoch
    }

    pub fn is_removed(&self, job: i64) -> bool {
        self.changes.contains(&(job, "remove".to_owned()))
    }
}

/// The best of a few comparisons, the one whose answer was the quickest: it is wrong by half of that at most, a
/// millisecond. On a busy machine it takes more of them to be answered that soon.
async fn epoch(owner: &Client) -> f64 {
    const SOON: u64 = 2_000_000;
    let mut best = (u64::MAX, 0.0);
    for comparisons in 1.. {
        if comparisons > 20 && best.0 < SOON || comparisons > 20_000 {
            break;
        }
        let before = now();
        let rows = query(owner, "select extract(epoch from clock_timestamp())::double precision").await;
        let after = now();
        let middle = (before + after) as f64 / 2e9;
        if after - before < best.0 {
            best = (after - before, rows[0].get::<_, f64>(0) - middle);
        }
    }
    best.1
}

async fn jobs(owner: &Client) -> BTreeMap<i64, Job> {
    let sql = "select id, state, claim, attempt, reason, worker, payload ->> 'token', \
            headers ->> 'schedule' || ' ' || (headers ->> 'slot'), coalesce((payload ->> 'later')::boolean, false), \
            cardinality(steps), coalesce(order_key, limit_key, fair_key) is not null \
        from bugle.jobs";
    let job = |row: tokio_postgres::Row| Job {
        id: row.get(0),
        state: row.get(1),
        claim: row.get(2),
        attempt: row.get(3),
        reason: row.get(4),
        worker: row.get(5),
        token: row.get(6),
        slot: row.get(7),
        later: row.get(8),
        steps: row.get(9),
        has_keys: row.get(10),
    };
    query(owner, sql)
        .await
        .into_iter()
        .map(job)
        .map(|job| (job.id, job))
        .collect()
}

async fn steps(owner: &Client) -> Vec<Step> {
    let sql =
        "select seq, extract(epoch from at)::double precision, xid, job, old, new, op from audit.steps order by seq";
    let side =
        |value: Option<serde_json::Value>| value.map(|json| serde_json::from_value(json).expect("a side of a step"));
    let step = |row: tokio_postgres::Row| Step {
        seq: row.get(0),
        at: row.get(1),
        xid: row.get(2),
        job: row.get(3),
        old: side(row.get(4)),
        new: side(row.get(5)),
        op: row.get(6),
    };
    query(owner, sql).await.into_iter().map(step).collect()
}

/// Locks and transactions of others in this database, and rows that say that something runs.
async fn left_over(owner: &Client) -> Vec<String> {
    let sql = "select format('%s of process %s (%s) is held', l.mode, l.pid, a.application_name) \
        from pg_locks l left join pg_stat_activity a using (pid) \
        where l.locktype = 'advisory' and l.pid <> pg_backend_pid() \
          and l.database = (select oid from pg_database where datname = current_database()) \
        union all \
        select format('process %s (%s) is idle in a transaction', a.pid, a.application_name) from pg_stat_activity a \
        where a.datname = current_database() and a.state like 'idle in transaction%' \
        union all \
        select format('transaction %s is prepared', p.gid) from pg_prepared_xacts p where p.database = \
        current_database() \
        union all \
        select format('job %s is still running on worker %s', j.id, j.worker) from bugle.jobs_live j where j.state = \
        'running'";
    query(owner, sql).await.iter().map(|row| row.get(0)).collect()
}

fn folders(workdir: &Path) -> Vec<String> {
    // the folders of workers are in one for each user, which stays
    let list = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let users: Vec<_> = list(workdir).collect();
    users
        .iter()
        .flat_map(|user| list(&user.path()))
        .map(|entry| format!("{} is still there", entry.path().display()))
        .collect()
}

async fn query(owner: &Client, sql: &str) -> Vec<tokio_postgres::Row> {
    owner
        .query(sql, &[])
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error:?}"))
}
