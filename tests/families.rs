//! Jobs that have to do with each other, with real workers and many sessions: children, workflows, answers, events.

mod common;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bugle::{Bugle, Code, Context, Failure, IntoOutcome, NewJob, Outcome, Registry, State, Workflow};
use common::poll::look_for;
use common::{
    DEADLINE, Database, Folder, Shared, WorkerProcess, eventually, execute, query_value, register_for, wait_for_state,
    wait_until,
};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio_postgres::{AsyncMessage, Client, NoTls};

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_runs_in_the_order_of_its_arrows_and_hands_results_on() {
    let database = Database::new().await;
    let registry = Registry::new()
        .on("number", async |_: Context, number: i64| Ok(number))
        .on("sum", async |context: Context, _: Value| {
            let mut sum = 0;
            for needed in context.dependencies().await? {
                sum += needed.result::<i64>()?;
            }
            Ok(sum)
        })
        .on("fail", async |_: Context, _: Value| {
            Err::<(), _>(Failure::new("no").not_retryable())
        })
        .on("names", async |context: Context, _: Value| {
            let needed = context.dependencies().await?;
            let told = needed
                .iter()
                .map(|other| format!("{} {}", other.name.as_deref().unwrap(), other.state.unwrap()));
            Ok(told.collect::<Vec<_>>())
        });
    let worker = database.worker(&[("default", 8)], registry);
    let bugle = Bugle::connect(&database.url("owner")).unwrap();

    let workflow = Workflow::new()
        .job("one", NewJob::new("number", 1))
        .job("two", NewJob::new("number", 2))
        .job("three", NewJob::new("sum", ()).after("one").after("two"))
        .job("six", NewJob::new("sum", ()).after("three").after("two").after("one"))
        .job("broken", NewJob::new("fail", ()).after("one"))
        .job("doomed", NewJob::new("sum", ()).after("broken"))
        .job("told", NewJob::new("names", ()).after_end_of("doomed").after("six"));
    let jobs = bugle.enqueue_workflow(&workflow).await.unwrap();

    assert_eq!(jobs["six"].result::<i64>().await.unwrap(), 6);
    let told: Vec<String> = jobs["told"].result().await.unwrap();
    assert_eq!(
        BTreeMap::from_iter(told.iter().map(|t| t.split_once(' ').unwrap())),
        BTreeMap::from([("doomed", "failed"), ("six", "completed")])
    );
    let doomed = jobs["doomed"].wait().await.unwrap();
    assert_eq!(
        (doomed.state, doomed.reason.map(bugle::Reason::as_str)),
        (Some(State::Failed), Some("dependency_failed"))
    );
    let late = NewJob::new("sum", ()).after(jobs["six"].id()).after(jobs["one"].id());
    assert_eq!(bugle.enqueue(&late).await.unwrap().result::<i64>().await.unwrap(), 7);
    let circle = Workflow::new()
        .job("a", NewJob::new("sum", ()).after("b"))
        .job("b", NewJob::new("sum", ()).after("a"));
    let refused = bugle.enqueue_workflow(&circle).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::InvalidWorkflow));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_spawns_children_and_goes_on_with_their_results() {
    let database = Database::new().await;
    let runs: Shared<Vec<(i32, usize)>> = Shared::default();
    let registry = Registry::new()
        .on("square", async |_: Context, number: i64| Ok(number * number))
        .on("sum_of_squares", {
            let runs = runs.clone();
            move |context: Context, up_to: i64| {
                let runs = runs.clone();
                async move {
                    let children = context.children().await?;
                    runs.lock().unwrap().push((context.attempt(), children.len()));
                    if children.is_empty() {
                        let children = (1..=up_to).map(|number| NewJob::new("square", number));
                        return Ok(context.spawn(children).await?);
                    }
                    let squares: Result<Vec<i64>, _> = children.iter().map(|child| child.result()).collect();
                    Ok(squares?.iter().sum::<i64>().into_outcome())
                }
            }
        })
        .on("empty", async |context: Context, _: Value| {
            Ok(context.spawn(Vec::<NewJob>::new()).await?)
        });
    let worker = database.worker(&[("default", 8)], registry);
    let bugle = Bugle::connect(&database.url("owner")).unwrap();

    let parent = bugle
        .enqueue(&NewJob::new("sum_of_squares", 10).max_attempts(1))
        .await
        .unwrap();
    assert_eq!(parent.result::<i64>().await.unwrap(), 385);
    let empty = bugle.enqueue(&NewJob::new("empty", ()).max_attempts(1)).await.unwrap();
    let empty = empty.wait().await.unwrap();

    assert_eq!(
        *runs.lock().unwrap(),
        [(1, 0), (1, 10)],
        "the same attempt, with its children"
    );
    assert_eq!(empty.state, Some(State::Failed));
    assert!(empty.error.unwrap().contains("children must be"));
    let owner = database.owner().await;
    let children: i64 = owner
        .query_one("select count(*) from bugle.jobs where parent = $1", &[&parent.id()])
        .await
        .unwrap()
        .get(0);
    assert_eq!(children, 10);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_whose_claim_was_lost_is_shown_no_children() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let told: Shared<Vec<String>> = Shared::default();
    let registry = Registry::new().on("parent", {
        let told = told.clone();
        move |context: Context, _: Value| {
            let told = told.clone();
            async move {
                context.cancellation().cancelled().await;
                let error = context.children().await.expect_err("not held any more");
                told.lock().unwrap().push(error.to_string());
                Ok(())
            }
        }
    });
    let worker = database.worker(&[("default", 1)], registry);
    let bugle = Bugle::connect(&database.url("owner")).unwrap();

    let parent = bugle.enqueue(&NewJob::new("parent", ())).await.unwrap().id();
    wait_for_state(&owner, parent, "running").await;
    owner
        .query("select bugle.cancel($1::bigint)", &[&parent])
        .await
        .unwrap();

    eventually("it is told", || {
        told.lock()
            .unwrap()
            .first()
            .is_some_and(|told| told.contains("is no longer held under claim 1"))
    })
    .await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_asks_and_goes_on_with_the_answer() {
    let database = Database::new().await;
    let registry = Registry::new().on("buy", async |context: Context, item: String| {
        Ok(match context.answer::<bool>()? {
            None => Outcome::Wait {
                token: Some("secret".into()),
                at_most: Some(Duration::from_secs(3600)),
            },
            Some(true) => Outcome::complete(format!("bought {item} in attempt {}", context.attempt())),
            Some(false) => Outcome::Cancelled("not wanted".into()),
        })
    });
    let worker = database.worker(&[("default", 2)], registry);
    let (owner, enqueuer) = (database.owner().await, database.connect("enqueuer").await);
    let bugle = Bugle::connect(&database.url("owner")).unwrap();
    let tea = bugle.enqueue(&NewJob::new("buy", "tea").max_attempts(1)).await.unwrap();
    let bad = bugle
        .enqueue(&NewJob::new("buy", "a bridge").max_attempts(1))
        .await
        .unwrap();
    wait_for_state(&owner, tea.id(), "waiting").await;
    wait_for_state(&owner, bad.id(), "waiting").await;

    let answer = "select bugle.answer($1, 'secret', $2, p_resume => true)";
    enqueuer.query(answer, &[&tea.id(), &json!(true)]).await.unwrap();
    enqueuer.query(answer, &[&bad.id(), &json!("perhaps")]).await.unwrap();

    assert_eq!(tea.result::<String>().await.unwrap(), "bought tea in attempt 1");
    let bad = bad.wait().await.unwrap();
    assert_eq!(bad.reason, Some(bugle::Reason::NotRetryable));
    assert!(bad.error.unwrap().contains("the answer cannot be decoded"));
    worker.stop().await;
}

/// One parent, 10,000 children, 8 sessions that complete them in batches of all sizes.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_children_end_in_eight_sessions() {
    const CHILDREN: usize = 10_000;
    let database = Database::new().await;
    let owner = database.owner().await;
    let sessions = join_all((0..8).map(|_| database.connect("worker"))).await;
    let mut workers = Vec::new();
    for session in &sessions {
        workers.push(register_for(session, &[("default", 500)], &["parent", "child"]).await);
    }
    let parent: i64 = common::enqueue(&owner, "parent").await;
    let spawned = format!(
        "select * from bugle.spawn({0}, (select (c.id, c.claim)::bugle.held_job from bugle.claim({0}, \
         array[('default', 1, null, 'awake')::bugle.queue_request]) c), \
         (select jsonb_agg(jsonb_build_object('command', 'child', 'payload', n)) from generate_series(1, {CHILDREN}) \
         n))",
        workers[0]
    );
    sessions[0].batch_execute(&spawned).await.unwrap();

    join_all(
        sessions
            .iter()
            .zip(&workers)
            .enumerate()
            .map(async |(number, (session, worker))| {
                loop {
                    let batch = 1 + fastrand::usize(..400) / (number + 1);
                    let done = format!(
                        "with held as materialized (select c.id, c.claim from bugle.claim({worker}, \
                 array[('default', {batch}, null, 'awake')::bugle.queue_request]) c) \
                 select coalesce(array_agg((h.id, h.claim, to_jsonb(h.id))::bugle.finished_job order by random()), \
                 '{{}}')::text from held h"
                    );
                    let held: String = query_value(session, &done).await;
                    if held == "{}" {
                        return;
                    }
                    let complete = format!(
                        "select verdict from bugle.complete({worker}, \
                '{}'::bugle.finished_job[])",
                        held.replace('\'', "''")
                    );
                    assert!(
                        session.query(&complete, &[]).await.unwrap().is_empty(),
                        "nothing is fenced"
                    );
                }
            }),
    )
    .await;

    let told = owner
        .query_one(
            "select j.state, j.outstanding, (select count(*) from bugle.results_of(j.id) r where r.result = \
                to_jsonb(r.job)) \
             from bugle.jobs j where j.id = $1",
            &[&parent],
        )
        .await
        .unwrap();
    // the ninth claim may have been the parent's own
    assert!(["ready", "completed"].contains(&told.get::<_, &str>(0)), "{told:?}");
    assert_eq!(told.get::<_, Option<i32>>(1), None);
    assert_eq!(told.get::<_, i64>(2), CHILDREN as i64);
    assert_eq!(deadlocks(&owner, &database).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_processes_share_the_children_of_one_parent() {
    let database = Database::new().await;
    let folder = Folder::new();
    let owner = database.owner().await;
    let config = "[queues]\ndefault = 16\n[commands.child]\nsql = \"select $1::jsonb\"\n";
    let processes: Vec<_> = (0..4)
        .map(|n| WorkerProcess::start(&database, &folder, &format!("w{n}"), config, &[]))
        .collect();
    let registry = Registry::new().on("parent", async |context: Context, count: i64| {
        let children = context.children().await?;
        if children.is_empty() {
            return Ok(context.spawn((0..count).map(|n| NewJob::new("child", n))).await?);
        }
        let sum: i64 = children.iter().map(|child| child.result::<i64>().unwrap()).sum();
        Ok(sum.into_outcome())
    });
    let worker = database.worker(&[("default", 2)], registry);
    let bugle = Bugle::connect(&database.url("owner")).unwrap();

    let parent = bugle.enqueue(&NewJob::new("parent", 2000)).await.unwrap();
    let sum: i64 = tokio::time::timeout(DEADLINE * 2, parent.result())
        .await
        .expect("in time")
        .unwrap();

    assert_eq!(sum, 1999 * 1000);
    assert_eq!(deadlocks(&owner, &database).await, 0);
    worker.stop().await;
    drop(processes);
}

/// Endings of all kinds, operators with arrays of ids, and jobs attached to what is just ending: none waits for the
/// other, and no job is left waiting.
#[tokio::test(flavor = "multi_thread")]
async fn endings_operators_and_latecomers_do_not_deadlock() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let graph: Vec<String> = (0..60)
        .map(|n| {
            // each after a few of those before, some all the same
            let after: Vec<_> = (0..n)
                .filter(|m| (n * 7 + m * 13) % 11 == 0)
                .map(|m| {
                    format!(
                        r#"{{"job": "j{m:02}", "on_failure": "{}"}}"#,
                        if (n + m) % 3 == 0 { "run" } else { "fail" }
                    )
                })
                .collect();
            format!(
                r#""j{n:02}": {{"command": "noop", "max_attempts": 1, "after": [{}]}}"#,
                after.join(", ")
            )
        })
        .collect();
    let workflow = format!(
        "select bugle.enqueue_workflow('{{\"jobs\": {{{}}}}}')",
        graph.join(", ")
    );
    for _ in 0..10 {
        execute(&owner, &workflow).await;
    }

    let operators_are_done = AtomicBool::new(false);
    let finishers = join_all((0..5).map(async |_| {
        let session = database.connect("worker").await;
        let worker = register_for(&session, &[("default", 500)], &["noop"]).await;
        let claim = format!(
            "select coalesce(array_agg((c.id, c.claim)::bugle.held_job), '{{}}')::text \
             from bugle.claim({worker}, array[('default', 9, null, 'awake')::bugle.queue_request]) c"
        );
        loop {
            let held = look_for(|| async {
                let is_over = operators_are_done.load(Ordering::Acquire);
                let held: String = query_value(&session, &claim).await;
                (held != "{}" || is_over).then_some(held)
            });
            let held = held.await.expect("operators come to their end");
            if held == "{}" {
                return;
            }
            let fail = fastrand::u8(..4) == 0;
            let end = match fail {
                true => format!(
                    "select from bugle.fail({worker}, array(select (h.id, h.claim, 'no', null, false, \
                        null)::bugle.failed_job from unnest('{held}'::bugle.held_job[]) h))"
                ),
                false => format!(
                    "select from bugle.complete({worker}, array(select (h.id, h.claim, null)::bugle.finished_job from \
                        unnest('{held}'::bugle.held_job[]) h))"
                ),
            };
            session
                .batch_execute(&end)
                .await
                .unwrap_or_else(|error| panic!("{error:?}"));
        }
    }));
    let operators = join_all((0..2).map(async |_| {
        let session = database.connect("operator").await;
        let enqueuer = database.connect("enqueuer").await;
        for _ in 0..60 {
            let ids: Vec<i64> = (0..6).map(|_| fastrand::i64(1..=600)).collect();
            session
                .query("select bugle.cancel($1::bigint[])", &[&&ids[..2]])
                .await
                .unwrap();
            session
                .query("select bugle.pause($1::bigint[])", &[&ids])
                .await
                .unwrap();
            session
                .query("select bugle.resume($1::bigint[])", &[&ids])
                .await
                .unwrap();
            session
                .query("select bugle.restart($1::bigint[])", &[&&ids[..3]])
                .await
                .unwrap();
            enqueuer
                .query("select bugle.enqueue_after($1, 'noop', p_on_failure => 'run')", &[&ids])
                .await
                .unwrap();
        }
    }));
    let operators = async {
        operators.await;
        operators_are_done.store(true, Ordering::Release);
    };
    tokio::join!(finishers, operators);

    assert_eq!(deadlocks(&owner, &database).await, 0);
    // what an operator restarted last may still be ready; nobody waits for something that has ended
    let forgotten = owner
        .query(
            "select j.id, j.outstanding from bugle.jobs_live j where j.outstanding is distinct from nullif(( \
               select count(*) from bugle.dependencies d join bugle.jobs_live n on n.id = d.needs where d.job = j.id \
               and d.state is null), 0) \
             and j.state in ('waiting', 'paused')",
            &[],
        )
        .await
        .unwrap();
    assert!(forgotten.is_empty(), "{forgotten:?}");
    let left: i64 = query_value(
        &owner,
        "select count(*) from bugle.jobs_live where state = 'waiting' and outstanding is null",
    )
    .await;
    assert_eq!(left, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_attached_to_one_that_is_just_ending_never_waits_in_vain() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let worker = database.worker(&[("default", 8)], common::noop());
    let enqueuers = join_all((0..4).map(|_| database.connect("enqueuer"))).await;

    join_all(enqueuers.iter().map(async |enqueuer| {
        for _ in 0..50 {
            let id: i64 = query_value(enqueuer, "select bugle.enqueue('noop')").await;
            enqueuer
                .query("select bugle.enqueue_after(array[$1::bigint], 'noop')", &[&id])
                .await
                .unwrap();
        }
    }))
    .await;

    wait_until(
        &owner,
        "select count(*) = 400 from bugle.jobs where state = 'completed'",
    )
    .await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_are_told_to_who_listens_and_to_nobody_else() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let deaf = Listener::open(&database, "listen bugle_events").await;
    let end = "do $$ begin perform bugle.cancel(array(select bugle.enqueue('noop', p_queue => 'mail') from \
        generate_series(1, 450))); \
        perform bugle.cancel(bugle.enqueue('noop', p_queue => 'other')); end $$";
    execute(&owner, end).await;
    // a bell is heard after what came before it
    execute(&owner, "notify bugle_events, 'mark'").await;
    deaf.hears("mark").await;
    assert_eq!(deaf.heard(), ["mark"], "nobody asked to be told");

    let mail = Listener::open(&database, "listen bugle_events; select bugle.subscribe('mail')").await;
    execute(&owner, end).await;
    execute(&owner, "notify bugle_events, 'mark'").await;
    mail.hears("mark").await;

    let told: Vec<Value> = mail
        .heard()
        .iter()
        .filter_map(|text| serde_json::from_str(text).ok())
        .collect();
    let ids: Vec<i64> = told
        .iter()
        .flat_map(|event| event["jobs"].as_array().unwrap())
        .map(|id| id.as_i64().unwrap())
        .collect();
    assert!(
        told.iter()
            .all(|event| event["queue"] == "mail" && event["state"] == "cancelled"),
        "{told:?}"
    );
    assert_eq!(
        ids,
        (452..=901).collect::<Vec<i64>>(),
        "all of them, in messages that are short enough"
    );
    mail.client
        .batch_execute("select bugle.unsubscribe('mail')")
        .await
        .unwrap();
    execute(&owner, end).await;
    execute(&owner, "notify bugle_events, 'second mark'").await;
    mail.hears("second mark").await;
    assert_eq!(mail.heard().len(), told.len() + 2, "and no more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_subscriber_waits_for_completions_that_were_not_announced() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let ending = database.connect("operator").await;
    let viewer = Arc::new(database.connect("viewer").await);
    let pid: i32 = query_value(&viewer, "select pg_backend_pid()").await;
    // it waits for a second at most: a machine may be too busy for the commit to come in time
    let told = || async {
        let id: i64 = common::enqueue(&owner, "noop").await;
        execute(&ending, "begin").await;
        ending.query("select bugle.cancel($1::bigint)", &[&id]).await.unwrap();
        let subscribe = tokio::spawn({
            let viewer = viewer.clone();
            async move {
                let attend = "select state from bugle.attend(array[$1::bigint])";
                viewer.query(attend, &[&id]).await.unwrap()
            }
        });
        let waits = format!(
            "select exists (select from pg_locks l join pg_stat_activity a using (pid) where pid = {pid} \
             and l.locktype = 'advisory' and (l.classid::bigint << 32 | l.objid::bigint) = bugle.subscribers_key() \
             and a.wait_event = 'PgSleep')"
        );
        let is_seen = || async {
            let waits: bool = query_value(&owner, &waits).await;
            (waits || subscribe.is_finished()).then_some(waits)
        };
        let waited = look_for(is_seen).await.expect("it waits, or goes on");
        execute(&ending, "commit").await;
        let state: Option<String> = subscribe.await.unwrap().first().map(|row| row.get(0));
        execute(&viewer, "select bugle.unsubscribe('default')").await;
        state.filter(|_| waited)
    };

    let state = look_for(told).await;

    assert_eq!(state.as_deref(), Some("cancelled"));
}

/// Of two jobs that end one after the other, the first in silence, the second is told of first: the first one is found
/// by the slow poll. That may come between the two, but not each time.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_waits_is_notified_of_the_outcome_and_does_not_poll() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let bugle = Bugle::connect(&database.url("owner")).unwrap();
    let wait_for = |id: i64| {
        let job = bugle.job(id);
        tokio::spawn(async move { job.wait().await.unwrap() })
    };

    let told_first = || async {
        let (silent, told) = (common::enqueue(&owner, "x").await, common::enqueue(&owner, "x").await);
        let (of_silent, of_told) = (wait_for(silent), wait_for(told));
        let attended = format!(
            "select exists (select from pg_stat_activity where application_name = 'bugle client (listens)' and state = \
                'idle' \
             and datname = current_database() and query like '%bugle.attend%' \
             and query_start > (select created_at from bugle.jobs where id = {told}))"
        );
        wait_until(&owner, &attended).await;
        execute(
            &owner,
            &format!(
                "begin; set local bugle.silent = on; select bugle.cancel({silent}); commit; select bugle.cancel({told})"
            ),
        )
        .await;
        assert_eq!(of_told.await.unwrap().state, Some(State::Cancelled));
        let is_first = !of_silent.is_finished();
        assert_eq!(of_silent.await.unwrap().state, Some(State::Cancelled));
        is_first.then_some(())
    };
    look_for(told_first).await.expect("the one that is told of comes first");
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_wait_on_one_connection_and_are_woken_at_once() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let worker = database.worker(&[("default", 100)], common::noop());
    let bugle = Bugle::connect(&database.url("owner")).unwrap();
    execute(&owner, "select bugle.pause_queue('default')").await;
    execute(
        &owner,
        "insert into bugle.jobs (command) select 'noop' from generate_series(1, 2000)",
    )
    .await;
    let ids: Vec<i64> = owner
        .query("select id from bugle.jobs_live", &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    let waiting: Vec<_> = ids
        .iter()
        .map(|id| {
            tokio::spawn({
                let job = bugle.job(*id);
                async move { job.wait().await }
            })
        })
        .collect();
    wait_until(
        &owner,
        "select count(*) = 1 from pg_stat_activity where application_name = 'bugle client (listens)' \
        and datname = current_database()",
    )
    .await;
    execute(&owner, "select bugle.resume_queue('default')").await;
    let ended = tokio::time::timeout(DEADLINE, join_all(waiting))
        .await
        .expect("in time");

    assert!(
        ended
            .into_iter()
            .all(|ended| ended.unwrap().unwrap().state == Some(State::Completed))
    );
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_knows_families() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let folder = Folder::new();
    let file = folder.write(
        "workflow.json",
        r#"{"jobs": {"x": {"command": "ask"}, "y": {"command": "noop", "after": ["x"], "on_failure": "alert"}}}"#,
    );
    let circle = folder.write("circle.json", r#"{"jobs": {"x": {"command": "ask", "after": ["x"]}}}"#);

    let enqueued = said(
        &database,
        "enqueuer",
        &["workflow", "enqueue", file.to_str().unwrap()],
        "",
    );
    let refused = said(
        &database,
        "enqueuer",
        &["workflow", "enqueue", circle.to_str().unwrap()],
        "",
    );
    let shown = said(&database, "viewer", &["workflow", "show", "2"], "");
    let after = said(
        &database,
        "enqueuer",
        &["enqueue", "noop", "--after", "2", "--on-success", "thank"],
        "",
    );
    let job = said(&database, "viewer", &["jobs", "show", "2"], "");
    let whole: Value =
        serde_json::from_str(&said(&database, "viewer", &["jobs", "show", "1", "--json"], "").1).unwrap();
    let explained = said(&database, "viewer", &["jobs", "explain", "2"], "");

    assert_eq!(enqueued, (true, "x\t1\ny\t2\n".into(), String::new()));
    assert!(refused.2.contains("it depends on itself: x after x"), "{refused:?}");
    assert_eq!(shown.1, "x\t1\tready\task\t\t\ny\t2\twaiting\tnoop\tx\t\n");
    assert_eq!(after.1, "3\n");
    for line in [
        "after\t1 (x) ready",
        "waits for\t1 jobs",
        "needed by\t3",
        "on failure\talert",
    ] {
        assert!(job.1.contains(line), "{line} in {}", job.1);
    }
    assert_eq!(whole["dependants"], json!([2]));
    assert!(
        explained.1.contains("It waits for job 1 ('ask'), which is ready."),
        "{explained:?}"
    );

    let registry = Registry::new().on("ask", async |context: Context, _: Value| {
        Ok(match context.answer::<String>()? {
            None => Outcome::Wait {
                token: Some("t".into()),
                at_most: None,
            },
            Some(answer) => Outcome::complete(answer),
        })
    });
    let worker = database.worker(&[("default", 2)], registry);
    wait_for_state(&owner, 1, "waiting").await;
    let wrong = said(
        &database,
        "enqueuer",
        &["jobs", "answer", "1", "--resume", "\"yes\"", "--token", "guess"],
        "",
    );
    let right = said(
        &database,
        "enqueuer",
        &["jobs", "answer", "1", "--resume", "\"yes\"", "--token", "t"],
        "",
    );
    let result = said(&database, "viewer", &["jobs", "wait", "1"], "");
    worker.stop().await;

    assert!(
        !wrong.0 && wrong.2.contains("the token is not the one job 1 waits for"),
        "{wrong:?}"
    );
    assert!(right.0, "{right:?}");
    assert_eq!(result.1, "\"yes\"\n");

    let lines = "{\"key\": \"a\", \"payload\": 1}\n\n{\"key\": \"b\"}\n";
    let added = said(&database, "enqueuer", &["jobs", "add-missing", "noop"], lines);
    let again = said(&database, "enqueuer", &["jobs", "add-missing", "noop", "--json"], lines);
    let bad = said(
        &database,
        "enqueuer",
        &["jobs", "add-missing", "noop"],
        "{\"key\": \"c\"}\nnot json\n",
    );

    assert_eq!(added.1, "2 added, 0 already existed\n");
    assert_eq!(
        serde_json::from_str::<Value>(&again.1).unwrap(),
        json!({ "added": 0, "existing": 2 })
    );
    assert!(!bad.0 && bad.2.contains("line 2"), "{bad:?}");
    let unknown = said(&database, "viewer", &["workflow", "show", "3"], "");
    assert!(
        !unknown.0 && unknown.2.contains("does not belong to a workflow"),
        "{unknown:?}"
    );
}

/// Run the binary: whether it did what it was asked for, and what it said.
fn said(database: &Database, role: &str, arguments: &[&str], input: &str) -> (bool, String, String) {
    let mut child = Command::new(common::BUGLE)
        .args(arguments)
        .env("BUGLE_DATABASE_URL", database.url(role))
        .env_remove("DATABASE_URL")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.success(), text(output.stdout), text(output.stderr))
}

/// A session that only listens.
struct Listener {
    client: Client,
    heard: Shared<Vec<String>>,
}

impl Listener {
    async fn open(database: &Database, sql: &str) -> Listener {
        let (client, mut connection) = database.config("viewer").connect(NoTls).await.unwrap();
        let heard: Shared<Vec<String>> = Shared::default();
        tokio::spawn({
            let heard = heard.clone();
            async move {
                while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                    if let AsyncMessage::Notification(notification) = message {
                        heard.lock().unwrap().push(notification.payload().to_owned());
                    }
                }
            }
        });
        execute(&client, sql).await;
        Listener { client, heard }
    }

    async fn hears(&self, text: &str) {
        eventually(text, || self.heard.lock().unwrap().iter().any(|heard| heard == text)).await;
    }

    fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }
}

async fn deadlocks(owner: &Client, database: &Database) -> i64 {
    owner
        .query_one(
            "select deadlocks from pg_stat_database where datname = $1",
            &[&database.name],
        )
        .await
        .unwrap()
        .get(0)
}
