//! Every pair of verbs that can touch the same rows, in two sessions, in both orders, stopped at every lock: no
//! deadlock, no illegal step, and in the end every job is as if one had come after the other.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio_postgres::{Client, Error};

use crate::common::{DEADLINE, Database, connect, execute, side_by_side};
use crate::judge::{AUDIT, Evidence, illegal_steps};

/// Where three jobs are when two sessions come for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Held by the first session's worker.
    Running,
    /// The same, and that worker has been given up.
    Orphaned,
    Ready,
    /// Scheduled, and the time has come.
    Due,
    Waiting,
    Failed,
    /// There are none, but keys and a schedule that several want to use.
    Nowhere,
    /// Two workers with heartbeats that both do the chores, and believe each other dead.
    Fleet,
}

/// A verb: its name, and its call. `{me}` is the worker of the session that says it, `{holder}` the one that holds the
/// jobs,
/// `{1}` to `{3}` are the jobs, `{ids}` all of them, `{held}` with their claims.
type Verb = (&'static str, &'static str);

const COMPLETE: Verb = (
    "complete",
    "select * from bugle.complete({holder}, array[{finished}]::bugle.finished_job[])",
);
const COMPLETE_BACKWARDS: Verb = (
    "complete backwards",
    "select * from bugle.complete({holder}, array[{backwards}]::bugle.finished_job[])",
);
const FAIL: Verb = (
    "fail",
    "select * from bugle.fail({holder}, array[{failed}]::bugle.failed_job[])",
);
const GIVE_BACK: Verb = (
    "give back",
    "select * from bugle.give_back({holder}, array[{held}]::bugle.held_job[])",
);
const SNOOZE: Verb = (
    "snooze",
    "select * from bugle.snooze({holder}, ({2}, 1)::bugle.held_job, '1 hour')",
);
const WAIT: Verb = (
    "wait",
    "select * from bugle.wait({holder}, ({2}, 1)::bugle.held_job, null, '1 hour')",
);
const GIVE_UP: Verb = (
    "give up",
    "select * from bugle.cancel_held({holder}, ({2}, 1)::bugle.held_job, 'no')",
);
const PROGRESS: Verb = (
    "progress",
    "select bugle.report_progress({holder}, ({2}, 1)::bugle.held_job, 1, 'x')",
);
const ATTACH: Verb = (
    "attach",
    "select * from bugle.attach({holder}, array[({2}, 1), ({1}, 1)]::bugle.held_job[])",
);
const ATTACH_LOST_CLAIMS: Verb = (
    "attach to lost claims",
    "select * from bugle.attach({holder}, array[({3}, 1), ({1}, 1), ({2}, 1)]::bugle.held_job[])",
);
const CLAIM: Verb = (
    "claim",
    "select id from bugle.claim({me}, array[('default', 9, null, 'awake')::bugle.queue_request])",
);
const CANCEL: Verb = ("cancel", "select * from bugle.cancel(array[{ids}]::bigint[])");
const CANCEL_WHERE: Verb = ("cancel where", "select bugle.cancel_where(p_queue => 'default')");
const PAUSE: Verb = ("pause", "select * from bugle.pause(array[{ids}]::bigint[])");
const RESTART: Verb = ("restart", "select * from bugle.restart(array[{ids}]::bigint[])");
const REMOVE: Verb = ("remove", "select * from bugle.remove(array[{ids}]::bigint[])");
const RESCHEDULE: Verb = (
    "reschedule",
    "select * from bugle.reschedule(array[{ids}]::bigint[], now() + interval '1 hour')",
);
const SET_PRIORITY: Verb = (
    "set priority",
    "select * from bugle.set_priority(array[{ids}]::bigint[], 7)",
);
const SET_READY: Verb = (
    "set state",
    "select * from bugle.set_state(array[{ids}]::bigint[], 'ready')",
);
const SET_FAILED: Verb = (
    "set failed",
    "select * from bugle.set_state(array[{ids}]::bigint[], 'failed')",
);
const MOVE: Verb = (
    "move",
    "select bugle.enqueue('noop', p_run_at => now() + interval '2 hours', p_unique_key => 'k2', p_on_conflict => \
        'move')",
);
const ENQUEUE_KEY: Verb = (
    "enqueue under the key",
    "select bugle.enqueue('noop', p_unique_key => 'k2')",
);
const RESOLVE: Verb = ("resolve", "select bugle.resolve({2}, '1')");
const REJECT: Verb = ("reject", "select bugle.reject({2}, 'no')");
const PROMOTE: Verb = ("promote", "select * from bugle.promote()");
const EXPIRE: Verb = ("expire", "select bugle.expire()");
const RESCUE: Verb = ("rescue", "select bugle.rescue()");
const HEARTBEAT: Verb = ("heartbeat", "select troubles from bugle.heartbeat({me}, '{}', false)");
const DETACH: Verb = ("detach", "select bugle.detach({me})");
const REATTACH: Verb = ("attach", "select * from bugle.attach({me}, '{}')");
const INSERT_KEY: Verb = (
    "insert",
    "insert into bugle.jobs (command, unique_key) values ('noop', 'k2')",
);
const IDEMPOTENT: Verb = ("idempotent", "select bugle.enqueue('noop', p_idempotency_key => 'k2')");
const ADD_MISSING: Verb = (
    "add missing",
    "select bugle.add_missing('noop', '[{\"key\": \"k3\"}, {\"key\": \"k2\"}, {\"key\": \"k1\"}]')",
);
const ADD_OTHERS: Verb = (
    "add missing, backwards",
    "select bugle.add_missing('noop', '[{\"key\": \"k1\"}, {\"key\": \"k2\"}, {\"key\": \"k3\"}]')",
);
const FIRE: Verb = (
    "fire schedules",
    "select bugle.fire_schedules(now() + interval '1 hour')",
);
const RUN_NOW: Verb = ("run a schedule now", "select bugle.run_schedule_now('hourly')");
const PAUSE_SCHEDULE: Verb = ("pause a schedule", "select bugle.pause_schedule('hourly')");

const VERBS: [(Place, &[Verb]); 8] = [
    (
        Place::Running,
        &[
            COMPLETE,
            COMPLETE_BACKWARDS,
            FAIL,
            GIVE_BACK,
            SNOOZE,
            WAIT,
            GIVE_UP,
            PROGRESS,
            ATTACH,
            CANCEL,
            CANCEL_WHERE,
            REMOVE,
            MOVE,
        ],
    ),
    (
        Place::Orphaned,
        &[RESCUE, HEARTBEAT, ATTACH, COMPLETE, FAIL, GIVE_BACK, CANCEL, CLAIM],
    ),
    (
        Place::Ready,
        &[
            CLAIM,
            CANCEL,
            PAUSE,
            REMOVE,
            RESCHEDULE,
            SET_PRIORITY,
            SET_READY,
            SET_FAILED,
            MOVE,
            ENQUEUE_KEY,
            ATTACH_LOST_CLAIMS,
        ],
    ),
    (
        Place::Due,
        &[
            PROMOTE, HEARTBEAT, EXPIRE, CANCEL, PAUSE, RESCHEDULE, REMOVE, SET_READY, MOVE,
        ],
    ),
    (
        Place::Waiting,
        &[RESOLVE, REJECT, CANCEL, PAUSE, EXPIRE, REMOVE, SET_READY, SET_FAILED],
    ),
    (
        Place::Failed,
        &[RESTART, SET_READY, SET_FAILED, REMOVE, ENQUEUE_KEY, INSERT_KEY],
    ),
    (
        Place::Nowhere,
        &[
            ENQUEUE_KEY,
            INSERT_KEY,
            IDEMPOTENT,
            ADD_MISSING,
            ADD_OTHERS,
            FIRE,
            RUN_NOW,
            PAUSE_SCHEDULE,
        ],
    ),
    (Place::Fleet, &[HEARTBEAT, DETACH, REATTACH]),
];

/// These pass over what another has locked, and find it the next time: then it is as if they had not been there.
const PASSING: [&str; 7] = [
    "claim",
    "promote",
    "expire",
    "rescue",
    "heartbeat",
    "fire schedules",
    "cancel where",
];

/// How the two are brought together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meeting {
    /// The first has done its part and not committed when the second begins.
    Committed,
    RolledBack,
    /// Both are stopped at the lock of this job.
    At(usize),
    /// As the first, with the second under a stricter isolation.
    RepeatableRead,
    Serializable,
}

const MEETINGS: [Meeting; 6] = [
    Meeting::Committed,
    Meeting::RolledBack,
    Meeting::At(1),
    Meeting::At(2),
    Meeting::RepeatableRead,
    Meeting::Serializable,
];

/// What may be answered, whatever the isolation.
const DECLARED: [&str; 7] = ["JB001", "JB010", "JB011", "JB030", "JB031", "JB012", "23505"];

#[tokio::test(flavor = "multi_thread")]
async fn every_pair_of_verbs_ends_as_if_one_had_come_after_the_other() {
    let places = VERBS.into_iter().map(|(place, verbs)| async move {
        let mut arena = Arena::new().await;
        let mut wrong = Vec::new();
        let mut runs = 0;
        for first in verbs {
            for second in verbs {
                let serial = arena.serial(place, first, second).await;
                for meeting in MEETINGS {
                    runs += 1;
                    if let Err(why) = arena.meet(place, first, second, meeting, &serial).await {
                        wrong.push(format!("{place:?}: {}, then {}, {meeting:?}: {why}", first.0, second.0));
                    }
                }
            }
        }
        let evidence = Evidence::gather(&arena.gate, None).await;
        wrong.extend(illegal_steps(&evidence));
        (runs, wrong)
    });
    // each waits mostly for locks
    let done: Vec<(usize, Vec<String>)> = side_by_side(places, 3).await;

    let runs: usize = done.iter().map(|(runs, _)| runs).sum();
    let wrong: Vec<&String> = done.iter().flat_map(|(_, wrong)| wrong).collect();
    println!("interleavings: {runs} meetings");
    assert!(wrong.is_empty(), "{} of {runs}:\n{wrong:#?}", wrong.len());
}

/// Two sessions with a worker each, one that holds locks, one that looks.
struct Arena {
    _database: Database,
    one: Session,
    two: Session,
    gate: Client,
    eye: Client,
    /// What came of it when only one came, or nobody.
    alone: HashMap<Option<(bool, &'static str)>, Outcome>,
}

struct Session {
    client: Client,
    pid: i32,
    /// Worker and nonce as SQL spells them.
    me: String,
    worker: i64,
}

/// What counts of a job in the end.
type Signature = (String, i32, i64, i32, Option<String>, Option<String>, i32);
/// How jobs may be in the end: by their place, or, for new ones, as they are.
type Outcome = BTreeMap<i64, Signature>;

struct Serial {
    both: [Outcome; 2],
    first_only: Outcome,
    second_only: Outcome,
    nobody: Outcome,
}

impl Session {
    async fn new(database: &Database, name: &str) -> Session {
        let client = connect(&database.config("owner")).await;
        let row = client
            .query_one(
                "select pg_backend_pid(), worker, format('%s, %L::uuid', worker, nonce) from bugle.register($1, \
                    'here', 1, '0', bugle.protocol(), \
                 '{default}', '{9}', '{noop}')",
                &[&name],
            )
            .await
            .expect("registers");
        Session {
            client,
            pid: row.get(0),
            worker: row.get(1),
            me: row.get(2),
        }
    }
}

impl Arena {
    async fn new() -> Arena {
        let database = Database::new().await;
        let gate = database.owner().await;
        execute(&gate, AUDIT).await;
        execute(&gate, "set audit.op = 'cleanup'").await;
        Arena {
            one: Session::new(&database, "one").await,
            two: Session::new(&database, "two").await,
            eye: database.owner().await,
            gate,
            alone: HashMap::new(),
            _database: database,
        }
    }

    /// Put three jobs into their place. Returns their ids.
    async fn prepare(&mut self, place: Place) -> Vec<i64> {
        let me = &self.one.me;
        let clean = format!(
            "delete from bugle.jobs; \
             delete from bugle.idempotency_keys; delete from bugle.attempts; delete from bugle.schedules; delete from \
             bugle.schedule_runs; \
             update bugle.registrations r set stopped_at = null, lost_at = null, seen_at = now() - interval '1 \
             minute', \
               backend_pid = case r.id when {} then {} else {} end; \
             update bugle.keeping set ticked_at = now() - interval '1 hour', watching_since = now()",
            self.one.worker, self.one.pid, self.two.pid
        );
        execute(&self.gate, &clean).await;
        let enqueue = |more: &str| {
            (1..=3)
                .map(|n| format!("select bugle.enqueue('noop', p_unique_key => 'k{n}'{more});"))
                .collect::<String>()
        };
        let claim =
            format!("select from bugle.claim({me}, array[('default', 3, null, 'awake')::bugle.queue_request]);");
        let each = |word: &str| format!("select {word} from bugle.jobs_live j order by j.id;");
        let sql = match place {
            Place::Running => enqueue("") + &claim,
            Place::Orphaned => {
                let lost = format!(
                    "update bugle.registrations set lost_at = now() - interval '1 hour' where id = {};",
                    self.one.worker
                );
                enqueue("") + &claim + &lost
            }
            Place::Ready => enqueue(""),
            Place::Due => {
                enqueue(", p_run_at => now() + interval '1 hour', p_deadline => now() + interval '9 hours'")
                    + "update bugle.jobs_live set run_at = now(), deadline = now();"
            }
            Place::Waiting => {
                let wait = format!("bugle.wait({me}, (j.id, 1)::bugle.held_job, null, '0')");
                enqueue("") + &claim + &each(&wait)
            }
            Place::Failed => {
                let fail = format!("bugle.fail({me}, array[(j.id, 1, 'no', null, false, null)::bugle.failed_job])");
                enqueue("") + &claim + &each(&fail)
            }
            Place::Nowhere => {
                "insert into bugle.schedules (name, every, command) values ('hourly', '1 hour', 'noop');".into()
            }
            // their proofs of life are gone, but they go on beating
            Place::Fleet => "update bugle.registrations set life_key = id, backend_pid = 0;".into(),
        };
        self.one
            .client
            .batch_execute(&sql)
            .await
            .unwrap_or_else(|error| panic!("{place:?}: {error:?}"));
        let rows = self
            .eye
            .query("select id from bugle.jobs order by id", &[])
            .await
            .expect("asks");
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// What comes of it if one comes after the other, and if only one comes at all, or nobody.
    async fn serial(&mut self, place: Place, first: &Verb, second: &Verb) -> Serial {
        Serial {
            both: [
                self.one_by_one(place, &[(true, first), (false, second)]).await,
                self.one_by_one(place, &[(false, second), (true, first)]).await,
            ],
            first_only: self.alone(place, Some((true, first))).await,
            second_only: self.alone(place, Some((false, second))).await,
            nobody: self.alone(place, None).await,
        }
    }

    async fn alone(&mut self, place: Place, who: Option<(bool, &Verb)>) -> Outcome {
        let key = who.map(|(first, verb)| (first, verb.0));
        if let Some(known) = self.alone.get(&key) {
            return known.clone();
        }
        let outcome = self.one_by_one(place, who.as_slice()).await;
        self.alone.insert(key, outcome.clone());
        outcome
    }

    async fn one_by_one(&mut self, place: Place, order: &[(bool, &Verb)]) -> Outcome {
        let ids = self.prepare(place).await;
        for (first, verb) in order {
            let sql = self.call(*first, verb, &ids);
            let client = if *first { &self.one.client } else { &self.two.client };
            let _ = client.batch_execute(&sql).await;
        }
        self.outcome(&ids).await
    }

    async fn meet(
        &mut self,
        place: Place,
        first: &Verb,
        second: &Verb,
        meeting: Meeting,
        serial: &Serial,
    ) -> Result<(), String> {
        let ids = self.prepare(place).await;
        let (one, two) = (self.call(true, first, &ids), self.call(false, second, &ids));
        let said = match meeting {
            Meeting::At(number) => self.stopped_at(place, &ids, number, &one, &two).await,
            _ => self.while_open(meeting, &one, &two).await,
        };
        let strict = matches!(meeting, Meeting::RepeatableRead | Meeting::Serializable);
        let mut refused = false;
        for said in &said {
            let Err(error) = said else { continue };
            let code = error.code().map(|code| code.code()).unwrap_or("no code");
            let given_way = strict && code == "40001";
            refused |= given_way || code == "JB012";
            if !DECLARED.contains(&code) && !given_way {
                return Err(format!("{error:?}"));
            }
        }
        let found = self.outcome(&ids).await;
        let rolled_back = meeting == Meeting::RolledBack;
        let mut allowed: Vec<&Outcome> = Vec::new();
        if rolled_back {
            allowed.push(&serial.second_only);
        } else {
            allowed.extend(&serial.both);
        }
        if refused || PASSING.contains(&second.0) {
            allowed.push(&serial.first_only);
        }
        if PASSING.contains(&first.0) {
            allowed.push(&serial.second_only);
        }
        // what somebody else had locked is passed over by both
        let both_may_pass = PASSING.contains(&first.0) || rolled_back;
        if both_may_pass && PASSING.contains(&second.0) {
            allowed.push(&serial.nobody);
        }
        // each job for itself: a batch that meets another may win one and lose the next
        for (job, signature) in &found {
            let allowed: BTreeSet<&Signature> = allowed.iter().filter_map(|outcome| outcome.get(job)).collect();
            // a beat passes over what is locked while it looks at deadlines, and may find it free when it looks at
            // times: the next beat looks at its deadline again, and nobody claims it meanwhile
            let promoted = place == Place::Due && signature.0 == "ready" && [first.0, second.0].contains(&HEARTBEAT.0);
            if !allowed.contains(signature) && !promoted {
                return Err(format!("job {job} is {signature:?}, not one of {allowed:?}"));
            }
        }
        let counts: BTreeSet<usize> = allowed.iter().map(|outcome| outcome.len()).collect();
        let least = counts.first().copied().unwrap_or_default();
        let most = counts.last().copied().unwrap_or_default();
        match (least..=most).contains(&found.len()) {
            true => Ok(()),
            false => Err(format!("there are {} jobs, not one of {counts:?}", found.len())),
        }
    }

    /// The first is still open when the second comes.
    async fn while_open(&self, meeting: Meeting, one: &str, two: &str) -> Vec<Result<(), Error>> {
        let begin = match meeting {
            Meeting::RepeatableRead => "begin isolation level repeatable read; select count(*) from bugle.jobs;",
            Meeting::Serializable => "begin isolation level serializable; select count(*) from bugle.jobs;",
            _ => "begin;",
        };
        let end = if meeting == Meeting::RolledBack {
            "rollback"
        } else {
            "commit"
        };
        let mut said = vec![self.two.client.batch_execute(begin).await];
        said.push(self.one.client.batch_execute(&format!("begin; {one}")).await);
        let mut second: Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> =
            Box::pin(self.two.client.batch_execute(two));
        let early = self.until_it_waits(&mut second, self.two.pid).await;
        said.push(self.one.client.batch_execute(end).await);
        said.push(match early {
            Some(said) => said,
            None => within(second).await,
        });
        said.push(self.two.client.batch_execute("commit").await);
        said
    }

    /// Both come while somebody else holds the lock of one job, or of what they all need.
    async fn stopped_at(
        &self,
        place: Place,
        ids: &[i64],
        number: usize,
        one: &str,
        two: &str,
    ) -> Vec<Result<(), Error>> {
        let lock = match (place, ids.get(number)) {
            (Place::Fleet, _) => "begin; select from bugle.keeping for update".to_owned(),
            (Place::Nowhere, _) => "begin; select from bugle.schedules for update".to_owned(),
            (Place::Failed, Some(id)) => format!("begin; select from bugle.jobs_failed where id = {id} for update"),
            (_, Some(id)) => format!("begin; select from bugle.jobs_live where id = {id} for update"),
            (_, None) => "begin".to_owned(),
        };
        execute(&self.gate, &lock).await;
        let mut first: Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> =
            Box::pin(self.one.client.batch_execute(one));
        let first_said = self.until_it_waits(&mut first, self.one.pid).await;
        let mut second: Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> =
            Box::pin(self.two.client.batch_execute(two));
        let second_said = self.until_it_waits(&mut second, self.two.pid).await;
        execute(&self.gate, "commit").await;
        let (first, second) = tokio::join!(
            async {
                match first_said {
                    Some(said) => said,
                    None => within(first).await,
                }
            },
            async {
                match second_said {
                    Some(said) => said,
                    None => within(second).await,
                }
            }
        );
        vec![first, second]
    }

    /// Its answer, or none if it waits for a lock.
    async fn until_it_waits(
        &self,
        call: &mut Pin<Box<dyn Future<Output = Result<(), Error>> + Send + '_>>,
        pid: i32,
    ) -> Option<Result<(), Error>> {
        let question = "select wait_event_type = 'Lock' from pg_stat_activity where pid = $1";
        for _ in 0..10_000 {
            if let Ok(said) = tokio::time::timeout(Duration::from_millis(2), &mut *call).await {
                return Some(said);
            }
            let row = self.eye.query_one(question, &[&pid]).await.expect("asks");
            if row.get::<_, Option<bool>>(0) == Some(true) {
                return None;
            }
        }
        panic!("it neither ends nor waits for a lock")
    }

    fn call(&self, first: bool, verb: &Verb, ids: &[i64]) -> String {
        let me = if first { &self.one.me } else { &self.two.me };
        let list = |format: &dyn Fn(&i64) -> String| ids.iter().map(format).collect::<Vec<_>>().join(", ");
        let finished = list(&|id| format!("({id}, 1, null)"));
        let mut backwards: Vec<String> = ids.iter().map(|id| format!("({id}, 1, null)")).collect();
        backwards.reverse();
        let mut sql = verb.1.replace("{me}", me).replace("{holder}", &self.one.me);
        sql = sql
            .replace("{finished}", &finished)
            .replace("{backwards}", &backwards.join(", "));
        sql = sql.replace("{failed}", &list(&|id| format!("({id}, 1, 'no', null, true, 3600)")));
        sql = sql
            .replace("{held}", &list(&|id| format!("({id}, 1)")))
            .replace("{ids}", &list(&|id| id.to_string()));
        for (number, id) in ids.iter().enumerate() {
            sql = sql.replace(&format!("{{{}}}", number + 1), &id.to_string());
        }
        sql
    }

    /// How all jobs are now, named by their places; new ones are counted from 100.
    async fn outcome(&self, ids: &[i64]) -> Outcome {
        let sql =
            "select id, state, attempt, claim, crashes, reason, paused_from, priority from bugle.jobs order by id";
        let mut next = 100;
        let rows = self.eye.query(sql, &[]).await.expect("asks");
        rows.iter()
            .map(|row| {
                let id: i64 = row.get(0);
                let place = ids.iter().position(|known| *known == id).map_or_else(
                    || {
                        next += 1;
                        next
                    },
                    |place| place as i64,
                );
                (
                    place,
                    (
                        row.get(1),
                        row.get(2),
                        row.get(3),
                        row.get(4),
                        row.get(5),
                        row.get(6),
                        row.get(7),
                    ),
                )
            })
            .collect()
    }
}

async fn within<T>(call: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, call)
        .await
        .expect("it ends once the lock is free")
}
