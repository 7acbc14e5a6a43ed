//! A model of the engine against the engine: random sequences of everything that can be said, and after each word every
//! job is compared in every column that counts. A sequence that fails is made as short as it can be.

mod op;
mod world;

use std::collections::BTreeMap;

use fastrand::Rng;
use tokio_postgres::{Client, SimpleQueryMessage, Statement};

use crate::common::{Database, execute, side_by_side};
use op::{Identity, Op, QUEUES, WORKERS, Word};
use world::{Job, Said, World};

/// Checked words in all sequences of `bin/test`. `BUGLE_MODEL_WORDS` asks for more, `BUGLE_MODEL_SEED` for others.
const WORDS: usize = 44_000;
const SESSIONS: usize = 2;
const LONGEST: usize = 160;

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_does_what_the_model_does() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = super::random_seed::seed("BUGLE_MODEL_SEED");
    let words = number("BUGLE_MODEL_WORDS").map_or(WORDS, |words| words as usize);

    let sessions = (0..SESSIONS).map(|session| async move {
        let mut engine = Engine::new().await;
        let mut rng = Rng::with_seed(seed + session as u64);
        let mut checked = 0;
        while checked < words / SESSIONS {
            let ops: Vec<Op> = (0..rng.usize(20..LONGEST)).map(|_| Op::random(&mut rng)).collect();
            checked += ops.len();
            if engine.play(&ops).await.is_err() {
                let shortest = shrink(&mut engine, ops).await;
                let why = engine.play(&shortest).await.expect_err("it fails still");
                panic!("BUGLE_MODEL_SEED={seed}\nthe shortest sequence that shows it:\n{shortest:#?}\n{why}");
            }
        }
        (checked, engine.taken)
    });
    let sessions = side_by_side(sessions, SESSIONS).await;
    let checked: usize = sessions.iter().map(|(checked, _)| checked).sum();
    let mut taken: BTreeMap<&str, usize> = BTreeMap::new();
    for (what, count) in sessions.iter().flat_map(|(_, taken)| taken) {
        *taken.entry(what).or_default() += count;
    }

    println!("model: {checked} words checked; taken were {taken:?}");
    assert!(checked >= words.min(40_000));
    for what in [
        "claim",
        "claim in an order",
        "claim of a limited key",
        "held back by a limit",
        "step",
        "spawn",
        "after",
        "follow",
    ] {
        assert!(taken.contains_key(what), "nothing of this was taken: {what}");
    }
}

/// What was taken, for those words that are mostly refused.
fn name_of(op: &Op, told: &Said, world: &World) -> Option<&'static str> {
    match (op, told) {
        (Op::Claim { .. }, Said::Held(held)) if held.iter().any(|(id, _)| world.jobs[id].order.is_some()) => {
            Some("claim in an order")
        }
        (Op::Claim { .. }, Said::Held(held)) if held.iter().any(|(id, _)| world.jobs[id].limit.is_some()) => {
            Some("claim of a limited key")
        }
        (Op::Claim { .. }, Said::Held(held)) if !held.is_empty() => Some("claim"),
        (Op::Word { word, .. }, Said::Text(None)) => match word {
            Word::StepDone => Some("step"),
            Word::Spawn => Some("spawn"),
            _ => Some("word"),
        },
        (Op::After { .. }, Said::Job(..)) => Some("after"),
        _ => None,
    }
}

/// Leave out whatever can be left out.
async fn shrink(engine: &mut Engine, mut ops: Vec<Op>) -> Vec<Op> {
    let mut size = ops.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < ops.len() {
            let mut fewer = ops.clone();
            fewer.drain(at..(at + size).min(ops.len()));
            match engine.play(&fewer).await {
                Err(_) => ops = fewer,
                Ok(()) => at += size,
            }
        }
        size /= 2;
    }
    ops
}

/// A database, and one session that is all its workers.
struct Engine {
    _database: Database,
    client: Client,
    workers: Vec<Identity>,
    snapshot: Statement,
    played: usize,
    taken: BTreeMap<&'static str, usize>,
}

const SNAPSHOT: &str = "select j.id, j.state, j.attempt, j.crashes, j.claim, j.worker, j.reason, j.last_error_code, \
    j.result::text, \
        j.priority, j.paused_from, j.unique_key, round(extract(epoch from j.run_at - now()) / 3600)::bigint, \
        round(extract(epoch from j.deadline - now()) / 3600)::bigint, j.queue, j.outstanding, coalesce(j.step, 0) \
    from bugle.jobs j";

/// Dead rows are left behind by this; now and then they are got rid of, which takes longer.
const RESET: &str = "delete from bugle.jobs; delete from bugle.idempotency_keys; delete from bugle.attempts; \
    delete from bugle.schedule_runs; delete from bugle.schedules; delete from bugle.queues; \
    delete from bugle.dependencies; delete from bugle.step_records; delete from bugle.claim_positions; delete from \
    bugle.starts; \
    update bugle.registrations set lost_at = null, stopped_at = null, paused_at = null; \
    insert into bugle.schedules (name, every, command, misfire, catch_up_limit, retry_policy) \
    values ('hourly', '1 hour', 'noop', 'catch_up', 3, 'modelled')";
const CLEAN: &str = "truncate bugle.jobs, bugle.idempotency_keys, bugle.attempts, bugle.changes, bugle.schedule_runs, \
    bugle.schedules, bugle.dependencies, bugle.step_records, bugle.chains";
const CLEAN_EVERY: usize = 40;

impl Engine {
    async fn new() -> Engine {
        let database = Database::new().await;
        let client = database.owner().await;
        execute(
            &client,
            &format!(
                "insert into bugle.retry_policies (name, kind, retries, delay, jitter) \
                 values ('modelled', 'fixed', {}, '{} hours', 0)",
                world::ATTEMPTS - 1,
                world::DELAY
            ),
        )
        .await;
        let mut workers = Vec::new();
        for worker in 0..WORKERS {
            let row = client
                .query_one(
                    "select worker, nonce::text from bugle.register($1, 'here', 1, '0', bugle.protocol(), \
                        '{default,mail}', '{9,9}', '{noop}')",
                    &[&format!("w{worker}")],
                )
                .await
                .expect("registers");
            workers.push((row.get(0), row.get(1)));
        }
        let snapshot = client.prepare(SNAPSHOT).await.expect("a question");
        Engine {
            _database: database,
            client,
            workers,
            snapshot,
            played: 0,
            taken: BTreeMap::new(),
        }
    }

    /// Play a sequence from the beginning. The first difference is the error.
    async fn play(&mut self, ops: &[Op]) -> Result<(), String> {
        self.played += 1;
        if self.played.is_multiple_of(CLEAN_EVERY) {
            self.client
                .batch_execute(CLEAN)
                .await
                .map_err(|error| format!("{error:?}"))?;
        }
        self.client
            .batch_execute(RESET)
            .await
            .map_err(|error| format!("{error:?}"))?;
        let mut world = World::new();
        for (number, op) in ops.iter().enumerate() {
            let before = world.clone();
            let sql = op::sql(op, |place| world.meant(place), &self.workers, world.clock);
            // the look is sent with the word, and comes after it
            let (told, rows) = match op {
                Op::RolledBack(_) => {
                    self.client
                        .batch_execute("begin")
                        .await
                        .map_err(|error| format!("{error:?}"))?;
                    let told = self.say(op, &sql).await;
                    self.client
                        .batch_execute("rollback")
                        .await
                        .map_err(|error| format!("{error:?}"))?;
                    (told?, self.look(world.clock).await?)
                }
                _ => {
                    let (told, rows) = tokio::join!(self.say(op, &sql), self.look(world.clock));
                    (told?, rows?)
                }
            };
            let new: Vec<i64> = rows.keys().filter(|id| !before.made.contains(id)).copied().collect();
            let expected = match op {
                // what it was told is not true any more; that nothing has changed is what counts
                Op::RolledBack(_) => told.clone(),
                op => world.apply(op, &told, &new),
            };
            if let Some(name) = name_of(op, &told, &world) {
                *self.taken.entry(name).or_default() += 1;
            }
            if world.held_back > before.held_back {
                *self.taken.entry("held back by a limit").or_default() += 1;
            }
            let waited = |world: &World| world.jobs.values().filter(|job| job.outstanding.is_some()).count();
            if waited(&world) < waited(&before) {
                *self.taken.entry("follow").or_default() += 1;
            }
            // time has passed since the last observation
            let rows = if matches!(op, Op::Step { .. }) {
                self.look(world.clock).await?
            } else {
                rows
            };
            if told != expected {
                return Err(format!(
                    "{number}: {op:?}\n  {sql}\n  said {told:?}\n  instead of {expected:?}"
                ));
            }
            if let Some(difference) = difference(&rows, &world.jobs) {
                return Err(format!("{number}: {op:?}\n  {sql}\n  {difference}"));
            }
        }
        Ok(())
    }

    async fn say(&self, op: &Op, sql: &str) -> Result<Said, String> {
        let messages = match self.client.simple_query(sql).await {
            Ok(messages) => messages,
            Err(error) => {
                let code = error.code().map(|code| code.code().to_owned()).unwrap_or_default();
                let known = ["JB001", "JB010", "JB011", "JB030", "JB031", "JB032", "JB040", "23505"];
                return match known.into_iter().find(|known| *known == code) {
                    Some(code) => Ok(Said::Refused(code)),
                    None => Err(format!("{sql}\n  {error:?}")),
                };
            }
        };
        let rows: Vec<_> = messages
            .iter()
            .filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => Some(row),
                _ => None,
            })
            .collect();
        let id = |text: Option<&str>| text.and_then(|text| text.parse::<i64>().ok()).unwrap_or(-1);
        let op = if let Op::RolledBack(op) = op { op } else { op };
        Ok(match op {
            Op::After { .. } => Said::Job(id(rows[0].get(0)), true),
            Op::Enqueue(_) => Said::Job(id(rows[0].get(0)), rows[0].get(1) == Some("t")),
            Op::Claim { .. } | Op::Attach { .. } => {
                Said::Held(rows.iter().map(|row| (id(row.get(0)), id(row.get(1)))).collect())
            }
            // a function that returns nothing returns an empty text
            Op::Answer { .. }
            | Op::Detach { .. }
            | Op::SetLimit { .. }
            | Op::PauseQueue { .. }
            | Op::ResumeQueue { .. }
            | Op::PauseWorker { .. }
            | Op::ResumeWorker { .. }
            | Op::Step { .. } => Said::Text(None),
            _ => Said::Text(rows.last().and_then(|row| row.get(0)).map(str::to_owned)),
        })
    }

    async fn look(&self, clock: i64) -> Result<BTreeMap<i64, Job>, String> {
        let rows = self
            .client
            .query(&self.snapshot, &[])
            .await
            .map_err(|error| format!("{error:?}"))?;
        let job = |row: &tokio_postgres::Row| Job {
            state: row.get(1),
            attempt: row.get(2),
            crashes: row.get(3),
            claim: row.get(4),
            worker: row
                .get::<_, Option<i64>>(5)
                .and_then(|id| self.workers.iter().position(|(worker, _)| *worker == id)),
            reason: row.get(6),
            code: row.get(7),
            result: row.get(8),
            priority: row.get(9),
            paused_from: row.get(10),
            unique: row.get::<_, Option<&str>>(11).and_then(|key| key[1..].parse().ok()),
            run_at: row.get::<_, i64>(12) + clock,
            due: 0,
            deadline: row.get::<_, Option<i64>>(13).map(|hours| hours + clock),
            queue: QUEUES
                .iter()
                .position(|queue| *queue == row.get::<_, &str>(14))
                .expect("one of them"),
            outstanding: row.get(15),
            step: row.get(16),
            max_attempts: None,
            answer_by: None,
            token: None,
            order: None,
            limit: None,
            is_chain: false,
            has_output: false,
            started: false,
        };
        Ok(rows.iter().map(|row| (row.get(0), job(row))).collect())
    }
}

/// The first job that is not as it should be.
fn difference(found: &BTreeMap<i64, Job>, expected: &BTreeMap<i64, Job>) -> Option<String> {
    if !found.keys().eq(expected.keys()) {
        return Some(format!(
            "there are jobs {:?} instead of {:?}",
            found.keys(),
            expected.keys()
        ));
    }
    found.iter().zip(expected.values()).find_map(|((id, found), expected)| {
        // what is not read, and what does not count any more
        let expected = Job {
            due: 0,
            max_attempts: None,
            answer_by: None,
            token: None,
            order: None,
            limit: None,
            is_chain: false,
            has_output: false,
            started: false,
            outstanding: if found.is_live() {
                expected.outstanding
            } else {
                found.outstanding
            },
            step: if found.is_live() { expected.step } else { found.step },
            run_at: if found.is_live() { expected.run_at } else { found.run_at },
            deadline: if found.is_live() {
                expected.deadline
            } else {
                found.deadline
            },
            ..expected.clone()
        };
        (*found != expected).then(|| format!("job {id} is\n    {found:?}\n  instead of\n    {expected:?}"))
    })
}
