//! The judge is judged: each bug here is sewn into a copy of the SQL, and a short scenario must get it caught, by the right
//! name. Without a bug the same scenarios must pass.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::types::Json;

use super::hand::{Asker, Hand};
use crate::common::poll::{DEADLINE, look_for, look_for_up_to};
use crate::common::{Database, Folder, RunningWorker, side_by_side, wait_until};
use crate::judge::{AUDIT, Bars, Evidence, Fault, History, Kind, Pen, Report, What, judge};

/// A mistake somebody could make.
struct Bug {
    name: &'static str,
    /// The file, what is there exactly once, what it is replaced by.
    patches: &'static [(&'static str, &'static str, &'static str)],
    scenario: Scenario,
    caught_as: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scenario {
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
    Kin,
    /// Jobs of one order key, of which the first is retried.
    Ordered,
    /// A queue with every kind of limit.
    Limited,
}

use Scenario::*;

const SCENARIOS: [Scenario; 17] = [
    Calm,
    Zombie,
    Dead,
    Blip,
    FalseMemory,
    Cancel,
    Restart,
    Keys,
    Schedule,
    RacingClaims,
    CrossingLocks,
    Deadlines,
    Wake,
    Steps,
    Kin,
    Ordered,
    Limited,
];

static BUGS: [Bug; 39] = [
    Bug {
        name: "completion does not look at the claim",
        patches: &[(
            "40_end",
            "      where j.id = f.id\n        and j.claim = f.claim\n        and j.worker = p_worker\n",
            "      where j.id = f.id\n",
        )],
        scenario: Zombie,
        caught_as: Kind::StaleCompletion,
    },
    Bug {
        name: "failure does not look at the claim",
        patches: &[(
            "50_retry",
            "      and j.claim = v_failed.claim\n      and j.worker = p_worker\n",
            "",
        )],
        scenario: Zombie,
        caught_as: Kind::Duplicated,
    },
    Bug {
        name: "snooze and give back do not look at the claim",
        patches: &[(
            "40_end",
            "    where j.claim = h.claim\n      and j.worker = p_worker\n      and j.state = 'running'\n    order by j.id",
            "    where j.state = 'running'\n    order by j.id",
        )],
        scenario: Zombie,
        caught_as: Kind::Duplicated,
    },
    Bug {
        name: "a stale word is answered as if it had been taken",
        patches: &[("40_end", "  where h.id <> all (p_done);", "  where false;")],
        scenario: Zombie,
        caught_as: Kind::Undone,
    },
    Bug {
        name: "no grace in rescue",
        patches: &[(
            "60_rescue",
            "and (r.lost_at is null or r.lost_at > clock_timestamp() - s.lost_grace))",
            "and r.lost_at is null)",
        )],
        scenario: Blip,
        caught_as: Kind::Duplicated,
    },
    Bug {
        name: "rescue does not count the crash",
        patches: &[("60_rescue", "      crashes = j.crashes + 1,\n", "")],
        scenario: Zombie,
        caught_as: Kind::IllegalTransition,
    },
    Bug {
        name: "rescue counts what it finds and does nothing",
        patches: &[(
            "60_rescue",
            "    v_rescued := v_rescued + 1;\n",
            "    v_rescued := v_rescued + 1;\n    continue;\n",
        )],
        scenario: Dead,
        caught_as: Kind::Stuck,
    },
    Bug {
        name: "attempts are not counted when claimed",
        patches: &[(
            "30_claim",
            "      attempt = j.attempt + 1,\n",
            "      attempt = greatest(j.attempt, 1),\n",
        )],
        scenario: Calm,
        caught_as: Kind::IllegalTransition,
    },
    Bug {
        name: "a claim number is used again",
        patches: &[("30_claim", "      claim = j.claim + 1,\n", "      claim = 1,\n")],
        scenario: Calm,
        caught_as: Kind::IllegalTransition,
    },
    Bug {
        name: "a job given back has lost an attempt",
        patches: &[(
            "40_end",
            "  set state = 'ready',\n    attempt = j.attempt - 1,\n",
            "  set state = 'ready',\n",
        )],
        scenario: Calm,
        caught_as: Kind::IllegalTransition,
    },
    Bug {
        name: "a completed job is not kept",
        patches: &[(
            "40_end",
            "  if (select s.keep_completed from bugle.settings s) then",
            "  if (select not s.keep_completed from bugle.settings s) then",
        )],
        scenario: Calm,
        caught_as: Kind::Lost,
    },
    Bug {
        name: "a cancelled job is not kept",
        patches: &[(
            "40_end",
            "    where g.final_state <> 'completed'\n      or (select s.keep_completed from bugle.settings s)\n",
            "    where g.final_state <> 'cancelled'\n",
        )],
        scenario: Cancel,
        caught_as: Kind::Lost,
    },
    Bug {
        name: "the last are claimed first",
        patches: &[(
            "30_claim",
            "        order by i.priority, i.id\n        limit w.share\n",
            "        order by i.priority desc, i.id desc\n        limit w.share\n",
        )],
        scenario: Calm,
        caught_as: Kind::OrderBroken,
    },
    Bug {
        name: "a retried job is never made ready",
        patches: &[(
            "50_retry",
            "      where i.state in ('scheduled', 'retrying')\n",
            "      where i.state in ('scheduled')\n",
        )],
        scenario: Calm,
        caught_as: Kind::Stuck,
    },
    Bug {
        name: "a failed attempt leaves no trace",
        patches: &[(
            "50_retry",
            "  on conflict (job, claim) do nothing\n",
            "  on conflict (job, claim) do nothing;\n  delete from bugle.attempts a where a.job = p_job.id\n",
        )],
        scenario: Calm,
        caught_as: Kind::Undone,
    },
    Bug {
        name: "whoever comes back takes up what it never had",
        patches: &[("25_register", "    and j.claim = h.claim - 1\n", "")],
        scenario: FalseMemory,
        caught_as: Kind::IllegalTransition,
    },
    Bug {
        name: "cancel says yes and does nothing to a running job",
        patches: &[(
            "85_operate",
            "        v_endings := v_endings || (v_id, v_to, case when v_to <> 'completed' then 'operator' end, null, null, null)::bugle.ending;\n        if v_job.state = 'running' then\n",
            "        if v_job.state <> 'running' then\n          v_endings := v_endings || (v_id, v_to, 'operator', null, null, null)::bugle.ending;\n        else\n",
        )],
        scenario: Cancel,
        caught_as: Kind::CancelOverwritten,
    },
    Bug {
        name: "completed work can be restarted",
        patches: &[
            (
                "85_operate",
                "  when 'restart' then array['failed', 'cancelled']",
                "  when 'restart' then array['failed', 'cancelled', 'completed']",
            ),
            (
                "85_operate",
                "      and j.state in ('failed', 'cancelled')\n    returning",
                "    returning",
            ),
        ],
        scenario: Restart,
        caught_as: Kind::IllegalTransition,
    },
    Bug {
        name: "an idempotency key can be taken twice",
        patches: &[(
            "15_once",
            "    expires_at = excluded.expires_at\n  where k.expires_at <= now();\n",
            "    expires_at = excluded.expires_at;\n",
        )],
        scenario: Keys,
        caught_as: Kind::Unexpected,
    },
    Bug {
        name: "the key that must be unique is not",
        patches: &[(
            "../migrations/V01__jobs",
            "create unique index jobs_live_unique_key",
            "drop index bugle.jobs_live_unique_key;\ncreate index jobs_live_unique_key",
        )],
        scenario: Keys,
        caught_as: Kind::UniquenessBroken,
    },
    Bug {
        name: "a slot is fired by everyone who finds it due",
        patches: &[
            (
                "70_schedule",
                "  set next_at = bugle.free_slot_after(p_schedule, p_now),\n    last_at",
                "  set next_at = s.next_at,\n    last_at",
            ),
            (
                "70_schedule",
                "  on conflict (schedule, slot) do nothing;\n  if not found or v_job is null then",
                "  on conflict (schedule, slot) do nothing;\n  if v_job is null then",
            ),
        ],
        scenario: Schedule,
        caught_as: Kind::SlotFiredTwice,
    },
    Bug {
        name: "claims do not lock what they take",
        patches: &[
            (
                "30_claim",
                "        limit w.share\n        for update skip locked) locked",
                "        limit w.share) locked",
            ),
            (
                "30_claim",
                "    where j.ctid = any (v_places)\n",
                "    where j.id = any (array(select x.id from bugle.jobs_live x where x.ctid = any (v_places)))\n",
            ),
        ],
        scenario: RacingClaims,
        caught_as: Kind::IllegalTransition,
    },
    Bug {
        name: "a batch is locked out of order",
        patches: &[(
            "40_end",
            "unnest(p_jobs) d order by d.id, d.claim desc) f\n    cross join lateral (\n      select j.ctid, j.watched",
            "unnest(p_jobs) d order by d.id desc, d.claim desc) f\n    cross join lateral (\n      select j.ctid, j.watched",
        )],
        scenario: CrossingLocks,
        caught_as: Kind::Complaint,
    },
    Bug {
        name: "a job is started after its deadline",
        patches: &[
            (
                "30_claim",
                "              and (i.deadline is null or i.deadline > now())\n",
                "",
            ),
            (
                "30_claim",
                "\n          and (i.deadline is null or i.deadline > now())\n",
                "\n",
            ),
        ],
        scenario: Deadlines,
        caught_as: Kind::IllegalTransition,
    },
    Bug {
        name: "a deadline ends a running job",
        patches: &[(
            "50_retry",
            "'deadline')::bugle.ending\n    from bugle.jobs_live j\n    where j.deadline is not null\n      and j.state <> 'running'\n",
            "'deadline')::bugle.ending\n    from bugle.jobs_live j\n    where j.deadline is not null\n",
        )],
        scenario: Deadlines,
        caught_as: Kind::IllegalTransition,
    },
    Bug {
        name: "an enqueuer believes that nobody sleeps",
        patches: &[(
            "20_wake",
            "    and pg_try_advisory_xact_lock_shared(hashtextextended(p_queue, 7126490981))\n",
            "",
        )],
        scenario: Wake,
        caught_as: Kind::Complaint,
    },
    Bug {
        name: "nobody is woken for a job that has become due",
        patches: &[(
            "50_retry",
            "  perform bugle.ring(q.queue) from unnest(v_queues) q (queue);\n",
            "",
        )],
        scenario: Wake,
        caught_as: Kind::Complaint,
    },
    Bug {
        name: "nobody is woken for a job that was rescued",
        patches: &[(
            "60_rescue",
            "  perform bugle.ring(q.queue) from (select distinct unnest(v_queues) as queue) q;\n",
            "",
        )],
        scenario: Wake,
        caught_as: Kind::Complaint,
    },
    Bug {
        name: "a sleeper takes the bell and does not look once more",
        patches: &[(
            "20_wake",
            "  v_work := array(select l.queue from bugle.look(p_worker, p_queues, p_after_priorities, p_after_ids) l (queue));",
            "  v_work := '{}';",
        )],
        scenario: Wake,
        caught_as: Kind::Complaint,
    },
    Bug {
        name: "the bell is kept by whoever enqueued",
        patches: &[
            (
                "20_wake",
                "    and pg_try_advisory_xact_lock_shared(",
                "    and pg_try_advisory_lock_shared(",
            ),
            (
                "10_enqueue",
                "    and pg_catalog.pg_try_advisory_xact_lock_shared(",
                "    and pg_catalog.pg_try_advisory_lock_shared(",
            ),
        ],
        scenario: Calm,
        caught_as: Kind::LeftOver,
    },
    Bug {
        name: "rescue forgets which steps were done",
        patches: &[
            (
                "60_rescue",
                "      last_error_code = 'worker_lost',\n      updated_at",
                "      last_error_code = 'worker_lost',\n      step = 0,\n      updated_at",
            ),
            (
                "35_steps",
                "      and r.state in ('done', 'skipped'))\n",
                "      and r.state = 'skipped')\n",
            ),
        ],
        scenario: Steps,
        caught_as: Kind::StepBroken,
    },
    Bug {
        name: "a step is passed over",
        patches: &[(
            "35_steps",
            "  set step = p_position,\n",
            "  set step = least(p_position + 1, cardinality(j.steps)),\n",
        )],
        scenario: Steps,
        caught_as: Kind::StepBroken,
    },
    Bug {
        name: "what comes after others does not wait",
        patches: &[("17_workflow", "        v_job.state := 'waiting';\n", "")],
        scenario: Kin,
        caught_as: Kind::TooEarly,
    },
    Bug {
        name: "what has failed counts as done",
        patches: &[(
            "42_dependants",
            "unnest(p_ended) e where e.state <> 'completed');",
            "unnest(p_ended) e where false);",
        )],
        scenario: Kin,
        caught_as: Kind::TooEarly,
    },
    Bug {
        name: "the first end of many is taken for the last",
        patches: &[(
            "42_dependants",
            "    set outstanding = nullif(j.outstanding - s.count, 0),\n      state = case\n        when j.outstanding > s.count or j.state = 'paused'",
            "    set outstanding = null,\n      state = case\n        when j.state = 'paused'",
        )],
        scenario: Kin,
        caught_as: Kind::TooEarly,
    },
    Bug {
        name: "a job that is retried is passed by others of its order",
        patches: &[(
            "33_pick",
            "v_blocks := v_limits.order_on_retry is distinct from 'pass';",
            "v_blocks := false;",
        )],
        scenario: Ordered,
        caught_as: Kind::OrderBroken,
    },
    Bug {
        name: "what runs is not counted in a queue with a limit",
        patches: &[(
            "31_limits",
            "room := least(room, p_limits.max_running - v_running);",
            "room := least(room, p_limits.max_running);",
        )],
        scenario: Limited,
        caught_as: Kind::LimitBroken,
    },
    Bug {
        name: "what runs is not counted for its key",
        patches: &[(
            "31_limits",
            "      least(n.room, p_limits.max_running_per_key - coalesce((p_busy ->> k.key)::integer, 0))::integer as room",
            "      n.room::integer as room",
        )],
        scenario: Limited,
        caught_as: Kind::LimitBroken,
    },
    Bug {
        name: "starts are not noted",
        patches: &[(
            "31_limits",
            "  if cardinality(p_keys) = 0 or num_nonnulls(",
            "  if true or num_nonnulls(",
        )],
        scenario: Limited,
        caught_as: Kind::LimitBroken,
    },
];

#[test]
fn every_bug_can_be_sewn_in() {
    let misfits: Vec<String> = BUGS
        .iter()
        .flat_map(|bug| bug.patches.iter().map(|(file, find, _)| (bug.name, *file, *find)))
        .filter(|(_, file, find)| sql(file).matches(find).count() != 1)
        .map(|(name, file, find)| format!("{name}: {file} has this not once: {find}"))
        .collect();

    assert!(misfits.is_empty(), "the SQL has changed: {misfits:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_bug_every_scenario_passes() {
    for scenario in SCENARIOS {
        let report = play(scenario, &[]).await;

        assert!(report.violations.is_empty(), "{scenario:?}\n{report}");
        assert!(
            report.transitions > 2 && report.started > 0,
            "{scenario:?}: nothing happened\n{report}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_seeded_bug_is_caught_by_its_name() {
    let plays = BUGS.iter().map(|bug| async move {
        let report = play(bug.scenario, bug.patches).await;
        let caught = report.kinds().contains(&bug.caught_as);
        (!caught).then(|| format!("“{}” was not caught as {:?}:\n{report}", bug.name, bug.caught_as))
    });

    let missed: Vec<Option<String>> = side_by_side(plays, 3).await;

    let missed: Vec<String> = missed.into_iter().flatten().collect();
    assert!(missed.is_empty(), "{}", missed.join("\n\n"));
}

/// The queue with limits, in the scenario about them.
const LIMITED: &str = "default";

/// Where a scenario is played.
struct Stage {
    database: Database,
    history: Folder,
    owner: Client,
    asker: Asker,
    pen: Pen,
    /// How long to wait for a wake-up that may not come: with a bug sewn in it need not be long.
    patience: Duration,
}

async fn play(scenario: Scenario, patches: &[(&str, &str, &str)]) -> Report {
    let stage = Stage::new(patches).await;
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
        Kin => stage.kin().await,
        Ordered => stage.ordered().await,
        Limited => stage.limited().await,
    }
    stage.settle().await;
    stage.judge(&bars).await
}

impl Stage {
    async fn new(patches: &[(&str, &str, &str)]) -> Stage {
        let database = Database::new().await;
        let owner = database.owner().await;
        owner.batch_execute(AUDIT).await.expect("an audit");
        let mut files: Vec<(&str, String)> = Vec::new();
        for (file, find, replace) in patches {
            if files.iter().all(|(name, _)| name != file) {
                files.push((file, sql(file)));
            }
            let (_, text) = files.iter_mut().find(|(name, _)| name == file).expect("read");
            assert_eq!(text.matches(find).count(), 1, "{file} has this not once: {find}");
            *text = text.replacen(find, replace, 1);
        }
        for (file, text) in &files {
            // of a migration only the statement that is patched
            let text = match file.starts_with("../migrations") {
                true => {
                    let from = text.find("drop index").expect("the patch");
                    let to = text[from..].find("\n\n").map_or(text.len(), |end| from + end);
                    &text[from..to]
                }
                false => text,
            };
            let in_schema = format!("set search_path = bugle, pg_catalog; {text}; set search_path = public;");
            owner
                .batch_execute(&in_schema)
                .await
                .unwrap_or_else(|error| panic!("{file}: {error:?}"));
        }
        let history = Folder::new();
        Stage {
            asker: Asker::new(&database, history.path()).await,
            pen: Pen::new(history.path(), "stage"),
            patience: if patches.is_empty() {
                DEADLINE
            } else {
                Duration::from_secs(3)
            },
            database,
            owner,
            history,
        }
    }

    async fn hand(&self, name: &str) -> Hand {
        Hand::new(&self.database, self.history.path(), name).await
    }

    async fn run(&self, sql: &str) {
        if let Err(error) = self.owner.batch_execute(sql).await {
            let text = format!("{sql}: {:?}", error.as_db_error().map(|error| error.message()));
            self.pen.note(What::Complaint { text });
        }
    }

    /// This worker is gone, for all the others can tell.
    async fn give_up(&self, hand: &Hand, fault: Fault, since: &str) {
        self.pen.note(What::Fault {
            fault,
            whom: hand.name.clone(),
        });
        let sql = format!(
            "update bugle.registrations set lost_at = now() - interval '{since}' where id = {}",
            hand.worker
        );
        self.run(&sql).await;
        self.run("select bugle.rescue()").await;
    }

    async fn calm(&self) {
        let jobs = self.asker.many(12).await;
        let (a, b) = (self.hand("a").await, self.hand("b").await);
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
        self.asker.many(5).await;
        let (a, b) = (self.hand("a").await, self.hand("b").await);
        let old = a.claim(5).await;
        self.give_up(&a, Fault::Freeze, "1 hour").await;
        self.pen.note(What::Over {
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
        // whoever can claim a job now runs it while b does
        let c = self.hand("c").await;
        self.run("select bugle.promote()").await;
        let stolen = c.claim(5).await;
        b.complete(&new).await;
        c.complete(&stolen).await;
    }

    async fn dead(&self) {
        self.asker.many(3).await;
        let a = self.hand("a").await;
        a.claim(2).await;
        self.give_up(&a, Fault::Kill, "1 hour").await;
    }

    async fn blip(&self) {
        self.asker.many(3).await;
        let (a, b) = (self.hand("a").await, self.hand("b").await);
        let held = a.claim(3).await;
        self.give_up(&a, Fault::Blip, "0").await;
        let other = b.claim(3).await;

        a.attach(&held).await;
        b.complete(&other).await;
        a.complete(&held).await;
    }

    async fn false_memory(&self) {
        let jobs = self.asker.many(2).await;
        let (a, b) = (self.hand("a").await, self.hand("b").await);
        // the first was claimed in a transaction that a crash undid, the second never
        a.pen.note(What::Started { job: jobs[0], claim: 1 });
        a.attach(&[(jobs[0], 1), (jobs[1], 7)]).await;
        a.complete(&[(jobs[0], 1)]).await;
        let rest = b.claim(2).await;
        b.complete(&rest).await;
    }

    async fn cancel(&self) {
        let jobs = self.asker.many(3).await;
        let a = self.hand("a").await;
        let held = a.claim(2).await;
        let operator = self.database.connect("operator").await;
        for job in [jobs[0], jobs[2]] {
            operator
                .query_one("select bugle.cancel($1::bigint)", &[&job])
                .await
                .expect("cancelled");
            self.pen.note(What::Cancelled { job });
        }
        a.complete(&held).await;
    }

    async fn restart(&self) {
        self.asker.many(2).await;
        let a = self.hand("a").await;
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
            self.asker.enqueue_token("same", ", p_idempotency_key => 'once'").await;
        }
        // a plain INSERT does not look first
        for token in ["one", "two"] {
            self.pen.note(What::Asked { token: token.into() });
            let sql = "insert into bugle.jobs (command, payload, unique_key) values ('noop', $1, 'k')";
            let _ = self
                .asker
                .client
                .execute(sql, &[&Json(serde_json::json!({ "token": token }))])
                .await;
        }
        let a = self.hand("a").await;
        let held = a.claim(9).await;
        a.complete(&held).await;
        self.asker.enqueue_token("same", ", p_idempotency_key => 'once'").await;
    }

    async fn schedule(&self) {
        self.run("insert into bugle.schedules (name, every, command) values ('often', '1 hour', 'noop')")
            .await;
        self.run("update bugle.schedules set next_at = date_trunc('hour', now())")
            .await;
        for _ in 0..2 {
            self.run("select bugle.fire_schedules()").await;
        }
        let a = self.hand("a").await;
        let held = a.claim(9).await;
        a.complete(&held).await;
    }

    async fn racing_claims(&self) {
        self.asker.many(4).await;
        let (a, b) = (self.hand("a").await, self.hand("b").await);
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
        let jobs = self.asker.many(3).await;
        let a = self.hand("a").await;
        let held = a.claim(3).await;
        let (gate, operator) = (self.database.owner().await, self.database.connect("operator").await);
        let middle = format!("begin; select from bugle.jobs_live where id = {} for update", jobs[1]);
        gate.batch_execute(&middle).await.expect("locks");
        a.finished(&held, "complete");
        let complete = a.complete_sql(&held);
        let word = a.client.query(&complete, &[]);
        let all: [&(dyn tokio_postgres::types::ToSql + Sync); 1] = [&jobs];
        let cancel = operator.query("select id, done from bugle.cancel($1::bigint[])", &all);
        let (word, cancel, ()) = tokio::join!(word, cancel, async {
            let both = "select count(*) = 2 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()";
            wait_until(&self.owner, both).await;
            gate.batch_execute("commit").await.expect("unlocks");
        });
        match word {
            Ok(rows) => a.answered(&held, "complete", rows),
            Err(error) => a.complain(&error),
        }
        match cancel {
            Ok(rows) => {
                for row in rows.iter().filter(|row| row.get::<_, bool>(1)) {
                    self.pen.note(What::Cancelled { job: row.get(0) });
                }
            }
            Err(error) => a.complain(&error),
        }
    }

    async fn deadlines(&self) {
        let jobs = self.asker.many(2).await;
        let a = self.hand("a").await;
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
        let a = self.hand("a").await;
        let lost = [self.asker.enqueue("").await];
        a.claim(1).await;
        let worker = self.sleeper().await;
        let next = self.asker.enqueue("").await;
        self.comes_to_its_end("enqueued", next).await;
        worker.stop().await;
        let worker = self.sleeper().await;
        let due = self
            .asker
            .enqueue(", p_run_at => now() + interval '300 milliseconds'")
            .await;
        self.comes_to_its_end("due", due).await;
        worker.stop().await;
        let worker = self.sleeper().await;
        // while somebody enqueues and has not committed yet, nobody can fall asleep without seeing it
        self.asker.client.batch_execute("begin").await.expect("begins");
        let open = self.asker.enqueue("").await;
        self.run("select bugle.ring('default')").await;
        self.run("select pg_notify(bugle.bell_channel('default'), 'default')")
            .await;
        self.asker.client.batch_execute("commit").await.expect("commits");
        self.comes_to_its_end("committed late", open).await;
        worker.stop().await;
        let worker = self.sleeper().await;
        self.look_once_more().await;
        self.asleep().await;
        self.pen.note(What::Fault {
            fault: Fault::Kill,
            whom: "a".into(),
        });
        drop(a);
        self.comes_to_its_end("rescued", lost[0]).await;
        worker.stop().await;
    }

    /// A worker that has claimed nothing yet and sleeps: one that has may send scouts where a look seems dear, and find what nobody
    /// woke it for.
    async fn sleeper(&self) -> RunningWorker {
        let pen = Pen::new(self.history.path(), "sleeper");
        let registry = bugle::Registry::new().on("noop", move |context: bugle::Context, _: serde_json::Value| {
            let pen = pen.clone();
            async move {
                let (job, claim) = (context.job().held.id, context.job().held.claim);
                pen.note(What::Started { job, claim });
                pen.note(What::Finished {
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

    /// What was committed before the bell was taken is seen by whoever takes it.
    async fn look_once_more(&self) {
        let late = self.hand("late").await;
        let job = self
            .asker
            .enqueue_token("late", ", p_queue => 'mail'")
            .await
            .expect("enqueues");
        let sql = format!("select has_work from bugle.arm({}, array['mail'])", late.worker);
        let seen: bool = late.client.query_one(&sql, &[]).await.expect("arms").get(0);
        if !seen {
            let text = format!("job {job} was there before the bell was taken, and nobody saw it");
            self.pen.note(What::Complaint { text });
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
            self.pen.note(What::Complaint { text });
        }
    }

    async fn steps(&self) {
        self.asker.enqueue(", p_steps => '{noop,other,noop}'").await;
        let (a, b) = (self.hand("a").await, self.hand("b").await);
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

    async fn kin(&self) {
        let edges = [("b", "a", false), ("c", "a", true), ("d", "b", false), ("d", "c", true)];
        for name in ["a", "b", "c", "d", "p", "p-1", "p-2"] {
            self.pen.note(What::Asked { token: name.into() });
        }
        for (token, after, however) in edges {
            let (token, after) = (token.into(), after.into());
            self.pen.note(What::After { token, after, however });
        }
        self.run(
            r#"select bugle.enqueue_workflow('{"jobs": {
                "a": {"command": "noop", "payload": {"token": "a"}, "max_attempts": 1},
                "b": {"command": "noop", "payload": {"token": "b"}, "after": ["a"]},
                "c": {"command": "noop", "payload": {"token": "c"}, "after": [{"job": "a", "on_failure": "run"}]},
                "d": {"command": "noop", "payload": {"token": "d"}, "after": ["b", {"job": "c", "on_failure": "run"}]}}}')"#,
        )
        .await;
        let a = self.hand("a").await;
        let held = a.claim(1).await;
        let early = a.claim(9).await;
        a.fail(&held).await;
        a.complete(&early).await;

        let parent = self.asker.enqueue("").await;
        let spawner = a.claim(9).await;
        if let Some(held) = spawner.iter().find(|(job, _)| *job == parent) {
            for token in ["p-1", "p-2"] {
                let (job, token) = (parent, token.to_owned());
                self.pen.note(What::Spawns { job, token });
            }
            a.finished(&[*held], "wait");
            let children = r#"[{"command": "noop", "payload": {"token": "p-1"}}, {"command": "noop", "payload": {"token": "p-2"}}]"#;
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
            self.asker
                .enqueue(", p_order_key => 'k', p_retry_policy => 'fixed'")
                .await;
        }
        let a = self.hand("a").await;
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
                self.asker.enqueue(key).await;
            }
        }
        let (a, b) = (self.hand("a").await, self.hand("b").await);
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
            self.pen.note(What::Cancelled { job: row.get(0) });
        }
    }

    async fn run_as(&self, hand: &Hand, sql: &str) {
        if let Err(error) = hand.client.batch_execute(sql).await {
            hand.complain(&error);
        }
    }

    /// Whatever is left is run to its end, if the engine lets it.
    async fn settle(&self) {
        let last = self.hand("last").await;
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

fn sql(file: &str) -> String {
    let path = format!("{}/sql/{file}.sql", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}
