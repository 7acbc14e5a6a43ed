//! What can be said to the engine, and how it is said in SQL.

use fastrand::Rng;

pub const WORKERS: usize = 3;
/// The number of hours in which a limit of starts counts.
pub const PERIOD: i64 = 2;
/// From this number on one of those is meant that run, if there is one.
pub const AMONG_RUNNING: usize = 64;
pub const QUEUES: [&str; 2] = ["default", "mail"];
pub const STATES: [&str; 7] = [
    "scheduled",
    "ready",
    "retrying",
    "paused",
    "completed",
    "failed",
    "cancelled",
];

/// Times are in hours. A job is named by its place among those that were made; whatever number it is, it means one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Enqueue(New),
    /// A job that comes after one or two others.
    After {
        needs: [usize; 2],
        however: bool,
    },
    /// The limit of a queue; 0 for no limit.
    SetLimit {
        queue: usize,
        limit: Limit,
        most: usize,
    },
    Claim {
        worker: usize,
        queue: usize,
        slots: usize,
    },
    Word {
        word: Word,
        job: usize,
        claim: Whose,
    },
    Answer {
        job: usize,
        resolve: bool,
        token: Option<&'static str>,
    },
    Operate {
        verb: Verb,
        job: usize,
    },
    Promote,
    Expire,
    /// The worker is found dead, and its jobs are put back.
    Lose {
        worker: usize,
    },
    /// It comes back, naming some jobs as its own.
    Attach {
        worker: usize,
        named: Vec<(usize, i64)>,
    },
    Detach {
        worker: usize,
    },
    Heartbeat {
        worker: usize,
    },
    PauseQueue {
        queue: usize,
    },
    ResumeQueue {
        queue: usize,
    },
    PauseWorker {
        worker: usize,
    },
    ResumeWorker {
        worker: usize,
    },
    FireSchedules,
    /// Time passes.
    Step {
        hours: i64,
    },
    /// In a transaction that is rolled back.
    RolledBack(Box<Op>),
}

/// At once, or in two hours; of the queue, or of each key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    Running,
    RunningPerKey,
    Starts,
    StartsPerKey,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct New {
    pub by_insert: bool,
    pub queue: usize,
    pub priority: i32,
    pub delay: Option<i64>,
    pub deadline: Option<i64>,
    pub max_attempts: Option<i32>,
    pub unique: Option<u8>,
    pub conflict: Option<&'static str>,
    pub idempotent: Option<u8>,
    pub order: Option<u8>,
    pub limit: Option<u8>,
    /// A chain of three steps.
    pub chain: bool,
}

/// What workers say about jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    Complete,
    Fail,
    FailSoon,
    FailForGood,
    Snooze,
    Wait,
    WaitWithToken,
    CancelHeld,
    GiveBack,
    Progress,
    /// The next step of a chain is done.
    StepDone,
    /// Two children, for which it waits.
    Spawn,
}

/// Under which claim, and who says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    Current,
    Stale,
    /// The current claim, in the mouth of another worker.
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Cancel,
    Pause,
    Resume,
    Restart,
    Remove,
    Reschedule(i64),
    SetPriority(i32),
    SetState(&'static str),
}

const WORDS: [Word; 14] = [
    Word::Complete,
    Word::Fail,
    Word::FailSoon,
    Word::FailForGood,
    Word::Snooze,
    Word::Wait,
    Word::WaitWithToken,
    Word::CancelHeld,
    Word::GiveBack,
    Word::Progress,
    Word::StepDone,
    Word::StepDone,
    Word::StepDone,
    Word::Spawn,
];

const LIMITS: [Limit; 4] = [Limit::Running, Limit::RunningPerKey, Limit::Starts, Limit::StartsPerKey];

fn maybe<T>(rng: &mut Rng, one_in: u8, value: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    (rng.u8(..one_in) == 0).then(|| value(rng))
}

impl Op {
    pub fn random(rng: &mut Rng) -> Op {
        let worker = rng.usize(..WORKERS);
        let queue = rng.usize(..QUEUES.len());
        let job = rng.usize(..64);
        match rng.u8(..100) {
            0..12 => Op::Enqueue(New::random(rng)),
            12..15 => Op::After {
                needs: [job, rng.usize(..64)],
                however: rng.u8(..3) == 0,
            },
            15..17 => Op::SetLimit {
                queue: 1,
                limit: *rng.choice(&LIMITS).expect("one"),
                most: rng.usize(..3),
            },
            17..38 => Op::Claim {
                worker,
                queue: usize::from(rng.bool()),
                slots: rng.usize(1..4),
            },
            38..60 => Op::Word {
                word: *rng.choice(&WORDS).expect("one"),
                job: job + if rng.u8(..4) > 0 { AMONG_RUNNING } else { 0 },
                claim: match rng.u8(..10) {
                    0 => Whose::Stale,
                    1 => Whose::Other,
                    _ => Whose::Current,
                },
            },
            60..65 => Op::Answer {
                job,
                resolve: rng.bool(),
                token: rng.choice([None, Some("secret"), Some("guess")]).expect("one"),
            },
            65..81 => Op::Operate {
                verb: Verb::random(rng),
                job,
            },
            81..84 => Op::Promote,
            84..86 => Op::Expire,
            86..88 => Op::Lose { worker },
            88..90 => Op::Attach {
                worker,
                named: (0..rng.usize(..3)).map(|_| (rng.usize(..64), rng.i64(0..2))).collect(),
            },
            90 => maybe(rng, 4, |_| Op::Detach { worker }).unwrap_or(Op::Heartbeat { worker }),
            91 => Op::Heartbeat { worker },
            92 => maybe(rng, 3, |_| Op::PauseQueue { queue }).unwrap_or(Op::ResumeQueue { queue }),
            93 => maybe(rng, 3, |_| Op::PauseWorker { worker }).unwrap_or(Op::ResumeWorker { worker }),
            94 => Op::FireSchedules,
            95..98 => Op::Step { hours: rng.i64(1..4) },
            _ => loop {
                let op = Op::random(rng);
                if !matches!(op, Op::RolledBack(_) | Op::Step { .. }) {
                    break Op::RolledBack(Box::new(op));
                }
            },
        }
    }
}

impl New {
    fn random(rng: &mut Rng) -> New {
        let delay = maybe(rng, 4, |rng| rng.i64(0..3));
        New {
            by_insert: rng.bool(),
            queue: usize::from(rng.bool()),
            priority: rng.i32(-1..2),
            deadline: maybe(rng, 6, |rng| delay.unwrap_or(0) + rng.i64(0..4)),
            delay,
            max_attempts: maybe(rng, 4, |rng| rng.i32(1..4)),
            unique: maybe(rng, 4, |rng| rng.u8(..2)),
            conflict: rng
                .choice([None, Some("keep"), Some("replace"), Some("move")])
                .expect("one"),
            idempotent: maybe(rng, 6, |rng| rng.u8(..2)),
            order: maybe(rng, 3, |rng| rng.u8(..2)),
            limit: maybe(rng, 3, |rng| rng.u8(..2)),
            chain: rng.u8(..3) == 0,
        }
    }
}

impl Verb {
    fn random(rng: &mut Rng) -> Verb {
        match rng.u8(..16) {
            0..3 => Verb::Cancel,
            3..5 => Verb::Pause,
            5..7 => Verb::Resume,
            7..10 => Verb::Restart,
            10 => Verb::Remove,
            11..13 => Verb::Reschedule(rng.i64(-1..3)),
            13 => Verb::SetPriority(rng.i32(-2..3)),
            _ => Verb::SetState(rng.choice(STATES).expect("one")),
        }
    }
}

/// Who a worker is, as SQL spells it in two arguments.
pub type Identity = (i64, String);

/// The call. Its rows are read by [`super::said`]. `job`: id, current claim, current worker and steps done of the job
/// that is meant.
pub fn sql(op: &Op, job: impl Fn(usize) -> (i64, i64, Option<usize>, i32), workers: &[Identity], clock: i64) -> String {
    let me = |worker: usize| format!("{}, '{}'::uuid", workers[worker].0, workers[worker].1);
    match op {
        Op::Enqueue(new) => new.sql(),
        Op::After { needs, however } => {
            let [(one, ..), (two, ..)] = needs.map(&job);
            let policy = if *however { "run" } else { "fail" };
            format!(
                "select bugle.enqueue_after(array[{one}, {two}], 'noop', '{{}}', '{policy}', '{{\"retry_policy\": \
                    \"modelled\"}}')"
            )
        }
        Op::SetLimit { queue, limit, most } => {
            let period = |name: &str| match most {
                0 => String::new(),
                _ => format!(", {name} => '{PERIOD} hours'"),
            };
            let limit = match limit {
                Limit::Running => format!("p_max_running => {most}"),
                Limit::RunningPerKey => format!("p_max_running_per_key => {most}"),
                Limit::Starts => format!("p_max_starts => {most}{}", period("p_starts_period")),
                Limit::StartsPerKey => format!("p_max_starts_per_key => {most}{}", period("p_starts_per_key_period")),
            };
            format!("select bugle.set_limits('{}', {limit})", QUEUES[*queue])
        }
        Op::Claim { worker, queue, slots } => format!(
            "select id, claim from bugle.claim({}, array[('{}', {slots}, null, 'awake')::bugle.queue_request]) \
                order by turn, priority, run_at, id",
            me(*worker),
            QUEUES[*queue]
        ),
        Op::Word {
            word,
            job: place,
            claim,
        } => {
            let (id, current, holder, steps) = job(*place);
            let holder = holder.unwrap_or(0);
            let (who, claim) = match claim {
                Whose::Current => (holder, current),
                Whose::Stale => (holder, current - 1),
                Whose::Other => ((holder + 1) % WORKERS, current),
            };
            let (me, held) = (me(who), format!("({id}, {claim})::bugle.held_job"));
            let fail = |retryable: bool, after: &str| {
                format!(
                    "select verdict from bugle.fail({me}, array[({id}, {claim}, 'boom', 'bad', {retryable}, \
                        {after})::bugle.failed_job])"
                )
            };
            match word {
                Word::Complete => {
                    format!(
                        "select verdict from bugle.complete({me}, array[({id}, {claim}, \
                            '{claim}')::bugle.finished_job])"
                    )
                }
                Word::Fail => fail(true, "null"),
                Word::FailSoon => fail(true, "3600"),
                Word::FailForGood => fail(false, "null"),
                Word::Snooze => format!("select verdict from bugle.snooze({me}, {held}, '1 hour')"),
                Word::Wait => format!("select verdict from bugle.wait({me}, {held}, null, '2 hours')"),
                Word::WaitWithToken => format!("select verdict from bugle.wait({me}, {held}, 'secret', null)"),
                Word::CancelHeld => format!("select verdict from bugle.cancel_held({me}, {held}, 'no need')"),
                Word::GiveBack => format!("select verdict from bugle.give_back({me}, array[{held}])"),
                Word::Progress => format!("select bugle.report_progress({me}, {held}, 50, 'half')::text"),
                Word::StepDone => {
                    format!(
                        "select verdict from bugle.finish_step({me}, {held}, {}, 1, null)",
                        steps + 1
                    )
                }
                Word::Spawn => {
                    let child = r#"{"command": "noop", "retry_policy": "modelled"}"#;
                    format!("select verdict from bugle.spawn({me}, {held}, '[{child}, {child}]')")
                }
            }
        }
        Op::Answer {
            job: place,
            resolve,
            token,
        } => {
            let (id, ..) = job(*place);
            let token = token.map_or("null".to_owned(), |token| format!("'{token}'"));
            match resolve {
                true => format!("select bugle.resolve({id}, '7', {token})"),
                false => format!("select bugle.reject({id}, 'no', {token})"),
            }
        }
        Op::Operate { verb, job: place } => {
            let (id, ..) = job(*place);
            match verb {
                Verb::Cancel => format!("select bugle.cancel({id}::bigint)"),
                Verb::Pause => format!("select bugle.pause({id}::bigint)"),
                Verb::Resume => format!("select bugle.resume({id}::bigint)"),
                Verb::Restart => format!("select bugle.restart({id}::bigint)"),
                Verb::Remove => format!("select bugle.remove({id}::bigint)"),
                Verb::Reschedule(hours) => {
                    format!("select bugle.reschedule({id}::bigint, now() + interval '{hours} hours')")
                }
                Verb::SetPriority(priority) => format!("select bugle.set_priority({id}::bigint, {priority})"),
                Verb::SetState(state) => format!("select bugle.set_state({id}::bigint, '{state}')"),
            }
        }
        Op::Promote => "select promoted::text from bugle.promote()".into(),
        Op::Expire => "select bugle.expire()::text".into(),
        Op::Lose { worker } => format!(
            "with lost as (update bugle.registrations set lost_at = now() - interval '1 hour' where id = {} and \
                stopped_at is null) \
             select null::text; select bugle.rescue()::text",
            workers[*worker].0
        ),
        Op::Attach { worker, named } => {
            let held: Vec<String> = named
                .iter()
                .map(|(place, more)| {
                    let (id, claim, ..) = job(*place);
                    format!("({id}, {})", claim + more)
                })
                .collect();
            format!(
                "select id, claim from bugle.attach({}, array[{}]::bugle.held_job[]) order by 1, 2",
                me(*worker),
                held.join(", ")
            )
        }
        Op::Detach { worker } => format!("select bugle.detach({})", me(*worker)),
        Op::Heartbeat { worker } => {
            format!(
                "select array_to_string(troubles, ',') from bugle.heartbeat({}, '{{}}', false)",
                me(*worker)
            )
        }
        Op::PauseQueue { queue } => format!("select bugle.pause_queue('{}')", QUEUES[*queue]),
        Op::ResumeQueue { queue } => format!("select bugle.resume_queue('{}')", QUEUES[*queue]),
        Op::PauseWorker { worker } => format!("select bugle.pause_worker({})", workers[*worker].0),
        Op::ResumeWorker { worker } => format!("select bugle.resume_worker({})", workers[*worker].0),
        Op::FireSchedules => format!("select bugle.fire_schedules(now() + interval '{clock} hours')::text"),
        Op::Step { hours } => format!(
            "update bugle.jobs_live set run_at = run_at - interval '{hours} hours', deadline = deadline - interval \
                '{hours} hours', \
             answer_by = answer_by - interval '{hours} hours'; \
             update bugle.starts set started_at = started_at - interval '{hours} hours'; \
             update bugle.idempotency_keys set expires_at = expires_at - interval '{hours} hours'"
        ),
        Op::RolledBack(op) => sql(op, job, workers, clock),
    }
}

impl New {
    fn sql(&self) -> String {
        let text = |value: Option<String>| value.map_or("null".to_owned(), |value| format!("'{value}'"));
        let hours =
            |value: Option<i64>| value.map_or("null".to_owned(), |value| format!("now() + interval '{value} hours'"));
        let unique = text(self.unique.map(|key| format!("u{key}")));
        let idempotent = text(self.idempotent.map(|key| format!("i{key}")));
        let ttl = if self.idempotent.is_some() {
            "interval '3 hours'"
        } else {
            "null"
        };
        let attempts = self
            .max_attempts
            .map_or("null".to_owned(), |attempts| attempts.to_string());
        let (queue, priority, deadline) = (QUEUES[self.queue], self.priority, hours(self.deadline));
        let order = text(self.order.map(|key| format!("o{key}")));
        let limit = text(self.limit.map(|key| format!("l{key}")));
        let steps = if self.chain { "'{noop,noop,noop}'" } else { "null" };
        match self.by_insert {
            true => format!(
                "insert into bugle.jobs (command, queue, priority, run_at, deadline, max_attempts, retry_policy, \
                    unique_key, idempotency_key, idempotency_ttl, order_key, limit_key, steps) \
                 values ('noop', '{queue}', {priority}, {}, {deadline}, {attempts}, 'modelled', {unique}, \
                 {idempotent}, {ttl}, {order}, {limit}, {steps}) returning id, true",
                hours(self.delay.or(Some(0)))
            ),
            false => format!(
                "select id, created from bugle.enqueue_once('noop', p_queue => '{queue}', p_priority => {priority}, \
                    p_run_at => {}, \
                 p_deadline => {deadline}, p_max_attempts => {attempts}, p_retry_policy => 'modelled', p_unique_key => \
                 {unique}, \
                 p_on_conflict => {}, p_idempotency_key => {idempotent}, p_idempotency_ttl => {ttl}, p_order_key => \
                 {order}, p_limit_key => {limit}, p_steps => {steps})",
                hours(self.delay),
                text(self.conflict.map(str::to_owned))
            ),
        }
    }
}
