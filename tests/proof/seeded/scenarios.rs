//! Short scenarios that the judge looks at afterwards, each about one part of the engine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::types::Json;

use super::super::manual::{Enqueuer, ManualWorker};
use crate::common::poll::{DEADLINE, look_for, look_for_up_to};
use crate::common::{Database, Folder, RunningWorker, execute, wait_until};
use crate::judge::{AUDIT, Bars, Event, Evidence, Fault, History, Recorder, Report, judge};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Everything ends as it should: completions, failures, snoozes, jobs given back.
    Calm,
    /// A worker is given up and comes back with things to say.
    Zombie,
    /// A worker dies and never comes back.
    Dead,
    /// A worker loses its connection for a moment.
    Blip,
    /// The claim of a worker was lost in a crash of the server, or so it says.
    FalseMemory,
    /// An operator cancels what runs.
    Cancel,
    /// An operator restarts what has ended.
    Restart,
    /// Keys that must be there once.
    Keys,
    Schedule,
    /// Two claims at the same moment.
    RacingClaims,
    /// A completion and a cancellation of the same jobs, stopped at a lock.
    CrossingLocks,
    /// Deadlines that have passed.
    Deadlines,
    /// A sleeping worker without a safety poll, and everything that should wake it.
    Wake,
    /// A chain whose worker dies in its second step.
    Steps,
    /// Jobs after others, of which one fails, and children.
    Dependencies,
    /// Jobs of one order key, of which the first is retried.
    Ordered,
    /// A queue with every kind of limit.
    Limited,
}

/// The queue with limits, in the scenario about them.
const LIMITED: &str = "default";

/// Where a scenario is played.
struct Stage {
    database: Database,
    history: Folder,
    owner: Client,
    enqueuer: Enqueuer,
    recorder: Recorder,
    /// How long to wait for a wake-up that may not come: with a bug it need not be long.
    patience: Duration,
}

/// Play a scenario with these statements run before it, which may have put a bug into the schema.
pub async fn play(scenario: Scenario, seeded: &[String]) -> Report {
    use Scenario::*;
    let stage = Stage::new(seeded).await;
    let bars = Bars {
        in_order: scenario == Calm,
        drift: 0.002,
        max_running: [(LIMITED.into(), 5, 2)]
            .into_iter()
            .filter(|_| scenario == Limited)
            .collect(),
        max_starts: [(LIMITED.into(), 6, 3, 3600.0)]
            .into_iter()
            .filter(|_| scenario == Limited)
            .collect(),
        ..Bars::default()
    };
    match scenario {
        Calm => stage.calm().await,
        Zombie => stage.zombie().await,
        Dead => stage.dead().await,
        Blip => stage.blip().await,
        FalseMemory => stage.false_memory().await,
        Cancel => stage.cancel().await,
        Restart => stage.restart().await,
        Keys => stage.keys().await,
        Schedule => stage.schedule().await,
        RacingClaims => stage.racing_claims().await,
        CrossingLocks => stage.crossing_locks().await,
        Deadlines => stage.deadlines().await,
        Wake => stage.wake().await,
        Steps => stage.steps().await,
        Dependencies => stage.dependencies().await,
        Ordered => stage.ordered().await,
        Limited => stage.limited().await,
    }
    stage.settle().await;
    stage.judge(&bars).await
}

impl Stage {
    async fn new(seeded: &[String]) -> Stage {
        let database = Database::new().await;
        let owner = database.owner().await;
        execute(&owner, AUDIT).await;
        for statements in seeded {
            let in_schema = format!("set search_path = bugle, pg_catalog; {statements}; set search_path = public;");
            let outcome = owner.batch_execute(&in_schema).await;
            outcome.unwrap_or_else(|error| panic!("{error:?}\n{statements}"));
        }
        let history = Folder::new();
        Stage {
            enqueuer: Enqueuer::new(&database, history.path()).await,
            recorder: Recorder::new(history.path(), "stage"),
            patience: if seeded.is_empty() {
                DEADLINE
            } else {
                Duration::from_secs(3)
            },
            database,
            owner,
            history,
        }
    }

    async fn worker(&self, name: &str) -> ManualWorker {
        ManualWorker::new(&self.database, self.history.path(), name).await
    }

    async fn run(&self, sql: &str) {
        if let Err(error) = self.owner.batch_execute(sql).await {
            let text = format!("{sql}: {:?}", error.as_db_error().map(|error| error.message()));
            self.recorder.record(Event::Complaint { text });
        }
    }

    /// This worker is gone, for all the others can tell.
    async fn give_up(&self, worker: &ManualWorker, fault: Fault, since: &str) {
        self.recorder.record(Event::Fault {
            fault,
            whom: worker.name.clone(),
        });
        let sql = format!(
            "update bugle.registrations set lost_at = now() - interval '{since}' where id = {}",
            worker.id
        );
        self.run(&sql).await;
        self.run("select bugle.rescue()").await;
    }

    async fn calm(&self) {
        let jobs = self.enqueuer.many(12).await;
        let (a, b) = (self.worker("a").await, self.worker("b").await);
        let first = a.claim(4).await;
        let second = b.claim(4).await;
        let third = a.claim(9).await;

        a.complete(&first[..first.len().min(2)]).await;
        a.fail(&first[first.len().min(2)..]).await;
        b.give_back(&second[..second.len().min(2)]).await;
        for held in &second[second.len().min(2)..] {
            b.snooze(*held).await;
        }
        a.complete(&third).await;
        assert_eq!(jobs.len(), 12);
    }

    async fn zombie(&self) {
        self.enqueuer.many(5).await;
        let (a, b) = (self.worker("a").await, self.worker("b").await);
        let old = a.claim(5).await;
        self.give_up(&a, Fault::Freeze, "1 hour").await;
        self.recorder.record(Event::Over {
            fault: Fault::Freeze,
            whom: "a".into(),
        });
        let new = b.claim(5).await;

        // it wakes, and its executors come to their ends
        if let [one, two, three, four, five] = old[..] {
            a.finished(&[one, two, five], "complete");
            a.say_complete(&[one]).await;
            a.say_fail(&[two]).await;
            a.say_snooze(three).await;
            a.give_back(&[four]).await;
            a.say_complete(&[five]).await;
            a.attach(&[three]).await;
        }
        // a worker that can claim a job now runs it at the same time as b
        let c = self.worker("c").await;
        self.run("select bugle.promote()").await;
        let stolen = c.claim(5).await;
        b.complete(&new).await;
        c.complete(&stolen).await;
    }

    async fn dead(&self) {
        self.enqueuer.many(3).await;
        let a = self.worker("a").await;
        a.claim(2).await;
        self.give_up(&a, Fault::Kill, "1 hour").await;
    }

    async fn blip(&self) {
        self.enqueuer.many(3).await;
        let (a, b) = (self.worker("a").await, self.worker("b").await);
        let held = a.claim(3).await;
        self.give_up(&a, Fault::Blip, "0").await;
        let other = b.claim(3).await;

        a.attach(&held).await;
        b.complete(&other).await;
        a.complete(&held).await;
    }

    async fn false_memory(&self) {
        let jobs = self.enqueuer.many(2).await;
        let (a, b) = (self.worker("a").await, self.worker("b").await);
        // the first was claimed in a transaction that a crash undid, the second never
        a.recorder.record(Event::Started { job: jobs[0], claim: 1 });
        a.attach(&[(jobs[0], 1), (jobs[1], 7)]).await;
        a.complete(&[(jobs[0], 1)]).await;
        let rest = b.claim(2).await;
        b.complete(&rest).await;
    }

    async fn cancel(&self) {
        let jobs = self.enqueuer.many(3).await;
        let a = self.worker("a").await;
        let held = a.claim(2).await;
        let operator = self.database.connect("operator").await;
        for job in [jobs[0], jobs[2]] {
            operator
                .query_one("select bugle.cancel($1::bigint)", &[&job])
                .await
                .expect("cancelled");
            self.recorder.record(Event::Cancelled { job });
        }
        a.complete(&held).await;
    }

    async fn restart(&self) {
        self.enqueuer.many(2).await;
        let a = self.worker("a").await;
        let held = a.claim(2).await;
        a.complete(&held[..1]).await;
        a.finished(&held[1..], "cancelled");
        let operator = self.database.connect("operator").await;
        let _ = operator.execute("select bugle.cancel($1::bigint)", &[&held[1].0]).await;
        for (job, _) in &held {
            let _ = operator.execute("select bugle.restart($1::bigint)", &[job]).await;
        }
    }

    async fn keys(&self) {
        for _ in 0..2 {
            self.enqueuer
                .enqueue_token("same", ", p_idempotency_key => 'once'")
                .await;
        }
        // a plain INSERT does not look first
        for token in ["one", "two"] {
            self.recorder.record(Event::Asked { token: token.into() });
            let sql = "insert into bugle.jobs (command, payload, unique_key) values ('noop', $1, 'k')";
            let _ = self
                .enqueuer
                .client
                .execute(sql, &[&Json(serde_json::json!({ "token": token }))])
                .await;
        }
        let a = self.worker("a").await;
        let held = a.claim(9).await;
        a.complete(&held).await;
        self.enqueuer
            .enqueue_token("same", ", p_idempotency_key => 'once'")
            .await;
    }

    async fn schedule(&self) {
        self.run("insert into bugle.schedules (name, every, command) values ('often', '1 hour', 'noop')")
            .await;
        self.run("update bugle.schedules set next_at = date_trunc('hour', now())")
            .await;
        for _ in 0..2 {
            self.run("select bugle.fire_schedules()").await;
        }
        let a = self.worker("a").await;
        let held = a.claim(9).await;
        a.complete(&held).await;
    }

    async fn racing_claims(&self) {
        self.enqueuer.many(4).await;
        let (a, b) = (self.worker("a").await, self.worker("b").await);
        a.client.batch_execute("begin").await.expect("a transaction");
        let first = a.claim(2).await;
        // whether it waits for the other, or not, it must get others
        let claimed = AtomicBool::new(false);
        let second = async {
            let second = b.claim(2).await;
            claimed.store(true, Ordering::Release);
            second
        };
        let (second, ()) = tokio::join!(second, async {
            let waits =
                "select true from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()";
            let look = || async {
                let is_over =
                    claimed.load(Ordering::Acquire) || !self.owner.query(waits, &[]).await.expect("asks").is_empty();
                is_over.then_some(())
            };
            look_for(look).await.expect("it claims, or waits");
            a.client.batch_execute("commit").await.expect("commits");
        });
        b.complete(&second).await;
        a.complete(&first).await;
    }

    async fn crossing_locks(&self) {
        let jobs = self.enqueuer.many(3).await;
        let a = self.worker("a").await;
        let held = a.claim(3).await;
        let (gate, operator) = (self.database.owner().await, self.database.connect("operator").await);
        let middle = format!("begin; select from bugle.jobs_live where id = {} for update", jobs[1]);
        execute(&gate, &middle).await;
        a.finished(&held, "complete");
        let complete = a.complete_sql(&held);
        let word = a.client.query(&complete, &[]);
        let all: [&(dyn tokio_postgres::types::ToSql + Sync); 1] = [&jobs];
        let cancel = operator.query("select id, done from bugle.cancel($1::bigint[])", &all);
        let (word, cancel, ()) = tokio::join!(word, cancel, async {
            let both = "select count(*) = 2 from pg_stat_activity where wait_event_type = 'Lock' and datname = \
                current_database()";
            wait_until(&self.owner, both).await;
            execute(&gate, "commit").await;
        });
        match word {
            Ok(rows) => a.answered(&held, "complete", rows),
            Err(error) => a.complain(&error),
        }
        match cancel {
            Ok(rows) => {
                for row in rows.iter().filter(|row| row.get::<_, bool>(1)) {
                    self.recorder.record(Event::Cancelled { job: row.get(0) });
                }
            }
            Err(error) => a.complain(&error),
        }
    }

    async fn deadlines(&self) {
        let jobs = self.enqueuer.many(2).await;
        let a = self.worker("a").await;
        let pass = "update bugle.jobs_live set deadline = now() - interval '10 seconds' where id = ";
        let held = a.claim(1).await;
        self.run(&format!("{pass}{}", jobs[0])).await;
        self.run(&format!("{pass}{}", jobs[1])).await;
        let late = a.claim(1).await;
        self.run("select bugle.expire()").await;
        a.complete(&held).await;
        a.complete(&late).await;
    }

    /// One worker that sleeps, for good unless it is woken.
    async fn wake(&self) {
        let a = self.worker("a").await;
        let lost = [self.enqueuer.enqueue("").await];
        a.claim(1).await;
        let worker = self.sleeper().await;
        let next = self.enqueuer.enqueue("").await;
        self.comes_to_its_end("enqueued", next).await;
        worker.stop().await;
        let worker = self.sleeper().await;
        let due = self
            .enqueuer
            .enqueue(", p_run_at => now() + interval '300 milliseconds'")
            .await;
        self.comes_to_its_end("due", due).await;
        worker.stop().await;
        let worker = self.sleeper().await;
        // while somebody enqueues and has not committed yet, nobody can fall asleep without seeing it
        self.enqueuer.client.batch_execute("begin").await.expect("begins");
        let open = self.enqueuer.enqueue("").await;
        self.run("select bugle.ring('default')").await;
        self.run("select pg_notify(bugle.bell_channel('default'), 'default')")
            .await;
        self.enqueuer.client.batch_execute("commit").await.expect("commits");
        self.comes_to_its_end("committed late", open).await;
        worker.stop().await;
        let worker = self.sleeper().await;
        self.look_once_more().await;
        self.asleep().await;
        self.recorder.record(Event::Fault {
            fault: Fault::Kill,
            whom: "a".into(),
        });
        drop(a);
        self.comes_to_its_end("rescued", lost[0]).await;
        worker.stop().await;
    }

    /// A worker that is idle and has not claimed anything: one that has may start background scans, and find jobs that
    /// it was not notified of.
    async fn sleeper(&self) -> RunningWorker {
        let recorder = Recorder::new(self.history.path(), "sleeper");
        let registry = bugle::Registry::new().on("noop", move |context: bugle::Context, _: serde_json::Value| {
            let recorder = recorder.clone();
            async move {
                let (job, claim) = (context.job().held.id, context.job().held.claim);
                recorder.record(Event::Started { job, claim });
                recorder.record(Event::Finished {
                    job,
                    claim,
                    outcome: "complete".into(),
                });
                Ok(())
            }
        });
        let mut settings = self.database.settings(&[("default", 4)]);
        settings.name = "sleeper".into();
        settings.safety_poll = Duration::ZERO;
        let worker = RunningWorker::start(settings, registry);
        self.asleep().await;
        worker
    }

    /// What was committed before the bell was taken is seen by the worker that takes it.
    async fn look_once_more(&self) {
        let late = self.worker("late").await;
        let job = self
            .enqueuer
            .enqueue_token("late", ", p_queue => 'mail'")
            .await
            .expect("enqueues");
        let sql = format!("select has_work from bugle.arm({}, array['mail'])", late.id);
        let seen: bool = late.client.query_one(&sql, &[]).await.expect("arms").get(0);
        if !seen {
            let text = format!("job {job} was there before the bell was taken, and nobody saw it");
            self.recorder.record(Event::Complaint { text });
        }
        let claim = late
            .claim_sql(1)
            .replace("'default'", "'mail'")
            .replace("'awake'", "'sentinel'");
        let held = late.started(late.client.query(&claim, &[]).await.expect("claims"));
        late.complete(&held).await;
    }

    /// The one worker of the queue holds its bell.
    async fn asleep(&self) {
        let held = "select not pg_try_advisory_xact_lock_shared(bugle.bell_key('default'))";
        wait_until(&self.owner, held).await;
    }

    async fn comes_to_its_end(&self, how: &str, job: i64) {
        let question = format!("select exists (select from bugle.jobs where id = {job} and state = 'completed')");
        let look = || async {
            let answer = self.owner.query_one(&question, &[]).await.expect("asks");
            answer.get::<_, bool>(0).then_some(())
        };
        if look_for_up_to(self.patience, look).await.is_none() {
            let text = format!("nobody was woken for job {job} ({how})");
            self.recorder.record(Event::Complaint { text });
        }
    }

    async fn steps(&self) {
        self.enqueuer.enqueue(", p_steps => '{noop,other,noop}'").await;
        let (a, b) = (self.worker("a").await, self.worker("b").await);
        for held in a.claim(1).await {
            a.run_steps(held, 3, 1).await;
        }
        self.give_up(&a, Fault::Kill, "1 hour").await;
        // why: what is closer together than two clocks can be compared has no order
        self.run("select pg_sleep(0.02)").await;
        for held in b.claim(1).await {
            b.run_steps(held, 3, 9).await;
        }
    }

    async fn dependencies(&self) {
        let edges = [("b", "a", false), ("c", "a", true), ("d", "b", false), ("d", "c", true)];
        for name in ["a", "b", "c", "d", "p", "p-1", "p-2"] {
            self.recorder.record(Event::Asked { token: name.into() });
        }
        for (token, after, however) in edges {
            let (token, after) = (token.into(), after.into());
            self.recorder.record(Event::After { token, after, however });
        }
        self.run(
            r#"select bugle.enqueue_workflow('{"jobs": {
                "a": {"command": "noop", "payload": {"token": "a"}, "max_attempts": 1},
                "b": {"command": "noop", "payload": {"token": "b"}, "after": ["a"]},
                "c": {"command": "noop", "payload": {"token": "c"}, "after": [{"job": "a", "on_failure": "run"}]},
                "d": {"command": "noop", "payload": {"token": "d"},
                    "after": ["b", {"job": "c", "on_failure": "run"}]}}}')"#,
        )
        .await;
        let a = self.worker("a").await;
        let held = a.claim(1).await;
        let early = a.claim(9).await;
        a.fail(&held).await;
        a.complete(&early).await;

        let parent = self.enqueuer.enqueue("").await;
        let spawner = a.claim(9).await;
        if let Some(held) = spawner.iter().find(|(job, _)| *job == parent) {
            for token in ["p-1", "p-2"] {
                let (job, token) = (parent, token.to_owned());
                self.recorder.record(Event::Spawns { job, token });
            }
            a.finished(&[*held], "wait");
            let children = r#"[{"command": "noop", "payload": {"token": "p-1"}},
                {"command": "noop", "payload": {"token": "p-2"}}]"#;
            let spawn = format!(
                "select bugle.spawn({}, ({}, {})::bugle.held_job, '{children}')",
                a.me, held.0, held.1
            );
            if let Err(error) = a.client.batch_execute(&spawn).await {
                a.complain(&error);
            }
        }
        let others: Vec<_> = spawner.into_iter().filter(|(job, _)| *job != parent).collect();
        a.complete(&others).await;
        let children = a.claim(9).await;
        a.complete(&children[..children.len().min(1)]).await;
        let too_early = a.claim(9).await;
        a.complete(&children[children.len().min(1)..]).await;
        a.complete(&too_early).await;
    }

    async fn ordered(&self) {
        for _ in 0..3 {
            self.enqueuer
                .enqueue(", p_order_key => 'k', p_retry_policy => 'fixed'")
                .await;
        }
        let a = self.worker("a").await;
        // why: what is closer together than two clocks can be compared has no order
        self.run("select pg_sleep(0.02)").await;
        let first = a.claim(1).await;
        a.finished(&first, "fail");
        for (job, claim) in &first {
            let failed = format!("array[({job}, {claim}, 'boom', null, true, 60)]::bugle.failed_job[]");
            self.run_as(&a, &format!("select bugle.fail({}, {failed})", a.me)).await;
        }
        let second = a.claim(9).await;
        a.complete(&second).await;
        self.run("update bugle.jobs_live set run_at = now() where state = 'retrying'")
            .await;
    }

    async fn limited(&self) {
        let limits = "p_max_running => 5, p_max_running_per_key => 2, p_max_starts => 6, p_starts_period => '1 hour', \
                      p_max_starts_per_key => 3, p_starts_per_key_period => '1 hour'";
        self.run(&format!("select bugle.set_limits('{LIMITED}', {limits})"))
            .await;
        for key in [", p_limit_key => 'l'", ", p_limit_key => 'm'", ""] {
            for _ in 0..4 {
                self.enqueuer.enqueue(key).await;
            }
        }
        let (a, b) = (self.worker("a").await, self.worker("b").await);
        let first = a.claim(9).await;
        let beside = b.claim(9).await;
        a.complete(&first).await;
        b.complete(&beside).await;
        let second = a.claim(9).await;
        a.complete(&second).await;
        let third = a.claim(9).await;
        a.complete(&third).await;
        // the rest would have to wait for an hour
        let left = self
            .owner
            .query("select id, bugle.cancel(id) from bugle.jobs_live", &[])
            .await;
        for row in left.expect("cancelled") {
            self.recorder.record(Event::Cancelled { job: row.get(0) });
        }
    }

    async fn run_as(&self, worker: &ManualWorker, sql: &str) {
        if let Err(error) = worker.client.batch_execute(sql).await {
            worker.complain(&error);
        }
    }

    /// Whatever is left is run to its end, if the engine lets it.
    async fn settle(&self) {
        let last = self.worker("last").await;
        for _ in 0..10 {
            self.run("select bugle.promote()").await;
            let held = last.claim(100).await;
            if held.is_empty() {
                break;
            }
            last.complete(&held).await;
        }
    }

    async fn judge(self, bars: &Bars) -> Report {
        let gone =
            "select count(*) = 0 from pg_stat_activity where datname = current_database() and usename like '%_worker'";
        wait_until(&self.owner, gone).await;
        let evidence = Evidence::gather(&self.owner, None).await;
        judge(&History::read(self.history.path()), &evidence, bars)
    }
}
