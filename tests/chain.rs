//! Chains: steps in order in one worker, persisted as they end, tried again where they failed, taken up where they
//! stopped.

mod common;

use std::time::Duration;

use bugle::{Context, Execution, Failure, NewJob, Next, Outcome, Registry, Stage};
use common::{Database, Shared, answered_or_blocked, eventually, execute, query_value, wait_for_state, wait_until};
use serde_json::{Value, json};
use tokio_postgres::Client;

/// Enqueue a chain of these steps and return its id.
async fn enqueue_chain(client: &Client, steps: &[&str]) -> i64 {
    let job = NewJob::new("chain", json!({ "n": 1 })).steps(steps.iter().copied());
    job.enqueue(client).await.expect("enqueues")
}

/// The steps of a job with their states and attempts: `a done 1, b pending 0`.
async fn steps(client: &Client, id: i64) -> String {
    let sql = "select string_agg(format('%s %s %s', name, state, attempts), ', ' order by position) from bugle.steps \
        where job = $1";
    client.query_one(sql, &[&id]).await.unwrap().get(0)
}

/// One value of a job, as text.
async fn of_job(client: &Client, id: i64, what: &str) -> String {
    let sql = format!("select concat({what}) from bugle.job($1)");
    client.query_one(&sql, &[&id]).await.unwrap().get(0)
}

/// Local retries at once.
async fn make_retries_quick(client: &Client) {
    let sql = "update bugle.retry_policies set delay = '20 milliseconds', jitter = 0 where name = 'step'";
    execute(client, sql).await;
}

/// A registry whose commands note their names; each puts out its own name with what it was given.
fn noting(names: &[&'static str], seen: &Shared<Vec<String>>) -> Registry {
    names.iter().copied().fold(Registry::new(), |registry, name| {
        let seen = seen.clone();
        registry.on(name, move |context: Context, payload: Value| {
            seen.lock().unwrap().push(format!("{name} {payload}"));
            let output = json!({ name: context.position().map(|at| at.step), "last": name });
            async move { Ok(output) }
        })
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_run_in_order_and_each_gets_the_payload_under_what_was_put_out_before() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let seen: Shared<Vec<String>> = Shared::default();
    let worker = database.worker(&[("default", 4)], noting(&["a", "b", "c"], &seen));

    let id = enqueue_chain(&owner, &["a", "b", "c"]).await;

    wait_for_state(&owner, id, "completed").await;
    assert_eq!(
        *seen.lock().unwrap(),
        [
            r#"a {"n":1}"#,
            r#"b {"a":1,"last":"a","n":1}"#,
            r#"c {"a":1,"b":2,"last":"b","n":1}"#
        ]
    );
    assert_eq!(
        of_job(&owner, id, "result").await,
        r#"{"a": 1, "b": 2, "c": 3, "last": "c"}"#
    );
    assert_eq!(steps(&owner, id).await, "a done 1, b done 1, c done 1");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_waits_for_a_worker_that_serves_all_that_is_left() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let seen: Shared<Vec<String>> = Shared::default();
    let lacking = database.worker(&[("default", 4)], noting(&["b", "c", "chain"], &seen));
    wait_until(&owner, "select count(*) = 1 from bugle.workers where state = 'alive'").await;
    let whole = enqueue_chain(&owner, &["a", "b", "c"]).await;
    let rest = enqueue_chain(&owner, &["b", "c"]).await;

    wait_for_state(&owner, rest, "completed").await;
    assert_eq!(of_job(&owner, whole, "state").await, "ready");
    assert_eq!(seen.lock().unwrap().len(), 2, "only the chain it can run");
    let all = database.worker(&[("default", 4)], noting(&["a", "b", "c"], &seen));

    wait_for_state(&owner, whole, "completed").await;
    all.stop().await;
    lacking.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_step_is_tried_again_in_the_same_worker_and_the_attempt_is_one() {
    let database = Database::new().await;
    let owner = database.owner().await;
    make_retries_quick(&owner).await;
    let seen: Shared<Vec<String>> = Shared::default();
    let registry = noting(&["a"], &seen).on("b", async |context: Context, _: Value| {
        match context.position().map(|at| at.attempt) {
            Some(3) => Ok(json!({ "tries": 3 })),
            Some(2) => panic!("at the disco"),
            _ => Err(Failure::new("not yet").code("not_yet")),
        }
    });
    let worker = database.worker(&[("default", 4)], registry);

    let id = enqueue_chain(&owner, &["a", "b"]).await;

    wait_for_state(&owner, id, "completed").await;
    assert_eq!(steps(&owner, id).await, "a done 1, b done 3");
    assert_eq!(of_job(&owner, id, "attempt, ' ', result->'tries'").await, "1 3");
    assert_eq!(seen.lock().unwrap().len(), 1, "the step before it is not run again");
    let row = owner
        .query_one(
            "select code, error, (select count(*) from bugle.attempts) from bugle.steps where job = $1 and name = 'b'",
            &[&id],
        )
        .await
        .unwrap();
    assert_eq!(row.get::<_, String>(0), "panic", "the latest failure is kept");
    let error = row.get::<_, String>(1);
    assert!(
        error.starts_with("the executor panicked: at the disco\n    at tests/chain.rs:"),
        "{error}"
    );
    assert_eq!(row.get::<_, i64>(2), 0, "no attempt of the job failed");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_out_of_tries_fails_the_job_and_the_dead_letter_names_step_and_node() {
    let database = Database::new().await;
    let owner = database.owner().await;
    make_retries_quick(&owner).await;
    let tries: Shared<u32> = Shared::default();
    let registry = noting(&["a", "c"], &Shared::default())
        .on("broken", {
            let tries = tries.clone();
            move |_: Context, _: Value| {
                *tries.lock().unwrap() += 1;
                async { Err::<(), _>(Failure::new("it is broken").code("broken")) }
            }
        })
        .on("hopeless", async |_: Context, _: Value| {
            Err::<(), _>(Failure::new("never").not_retryable())
        });
    let worker = database.worker(&[("default", 4)], registry);

    let broken = enqueue_chain(&owner, &["a", "broken", "c"]).await;
    let hopeless = enqueue_chain(&owner, &["hopeless", "c"]).await;

    wait_for_state(&owner, broken, "failed").await;
    wait_for_state(&owner, hopeless, "failed").await;
    assert_eq!(*tries.lock().unwrap(), 4, "three retries");
    assert_eq!(steps(&owner, broken).await, "a done 1, broken failed 4, c pending 0");
    assert_eq!(steps(&owner, hopeless).await, "hopeless failed 1, c pending 0");
    assert_eq!(of_job(&owner, hopeless, "reason").await, "not_retryable");
    let row = owner
        .query_one(
            "select reason, failed_step, worker_name, host is not null, last_error from bugle.dead_letters where id = \
                $1",
            &[&broken],
        )
        .await
        .unwrap();
    assert_eq!(row.get::<_, String>(0), "step_failed");
    assert_eq!(row.get::<_, String>(1), "broken");
    assert_eq!(row.get::<_, String>(2), "worker");
    assert!(row.get::<_, bool>(3));
    assert_eq!(row.get::<_, String>(4), "it is broken");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_with_a_policy_of_its_own_is_retried_and_a_dead_letter_goes_on_where_an_operator_says() {
    let database = Database::new().await;
    let (owner, operator) = (database.owner().await, database.connect("operator").await);
    make_retries_quick(&owner).await;
    let seen: Shared<Vec<String>> = Shared::default();
    let fixed: Shared<bool> = Shared::default();
    let registry = noting(&["a"], &seen).on("b", {
        let fixed = fixed.clone();
        move |context: Context, _: Value| {
            let fails = !*fixed.lock().unwrap() && context.attempt() < 3;
            async move {
                match fails {
                    true => Err(Failure::new("not yet").retry_after(Duration::from_secs(3600))),
                    false => Ok(context.attempt()),
                }
            }
        }
    });
    let worker = database.worker(&[("default", 4)], registry);

    // longer than the step's policy would wait: left to the job's own
    let patient = NewJob::new("chain", json!({})).steps(["a", "b"]).retry_policy("fixed");
    let patient = patient.enqueue(&owner).await.unwrap();
    wait_for_state(&owner, patient, "retrying").await;
    assert_eq!(steps(&owner, patient).await, "a done 1, b failed 1");
    operator
        .query("select bugle.reschedule($1::bigint, now())", &[&patient])
        .await
        .unwrap();
    wait_until(
        &owner,
        &format!("select attempt = 2 and state = 'retrying' from bugle.job({patient})"),
    )
    .await;
    operator
        .query("select bugle.reschedule($1::bigint, now())", &[&patient])
        .await
        .unwrap();
    wait_for_state(&owner, patient, "completed").await;
    assert_eq!(seen.lock().unwrap().len(), 1, "the first step ran once");

    let ids = [
        enqueue_chain(&owner, &["a", "b"]).await,
        enqueue_chain(&owner, &["a", "b"]).await,
    ];
    for id in ids {
        wait_for_state(&owner, id, "failed").await;
    }
    assert_eq!(seen.lock().unwrap().len(), 3);
    *fixed.lock().unwrap() = true;
    operator
        .query(
            "select bugle.restart($1::bigint, 'fixed', p_from_failed_step => true)",
            &[&ids[0]],
        )
        .await
        .unwrap();
    wait_for_state(&owner, ids[0], "completed").await;
    assert_eq!(seen.lock().unwrap().len(), 3, "it went on from the failed step");
    operator
        .query("select bugle.restart($1::bigint)", &[&ids[1]])
        .await
        .unwrap();
    wait_for_state(&owner, ids[1], "completed").await;
    assert_eq!(seen.lock().unwrap().len(), 4, "it began with the first step");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_can_be_skipped_put_off_answered_and_called_off() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let snoozed: Shared<bool> = Shared::default();
    let registry = noting(&["a", "last"], &Shared::default())
        .on("skip", async |_: Context, _: Value| {
            Ok(Outcome::Skip("nothing new".into()))
        })
        .on("snooze", move |_: Context, _: Value| {
            let outcome = match std::mem::replace(&mut *snoozed.lock().unwrap(), true) {
                false => Outcome::Snooze(Duration::from_millis(50)),
                true => Outcome::complete(json!({ "slept": true })),
            };
            async move { Ok(outcome) }
        })
        .on("ask", async |_: Context, _: Value| {
            Ok(Outcome::Wait {
                token: None,
                at_most: None,
            })
        })
        .on("needless", async |_: Context, _: Value| {
            Ok(Outcome::Cancelled("nothing to do".into()))
        });
    let worker = database.worker(&[("default", 4)], registry);

    let id = enqueue_chain(&owner, &["a", "skip", "snooze", "ask", "last"]).await;
    let needless = enqueue_chain(&owner, &["a", "needless", "last"]).await;

    wait_for_state(&owner, id, "waiting").await;
    assert_eq!(
        steps(&owner, id).await,
        "a done 1, skip skipped 1, snooze done 2, ask waiting 1, last pending 0"
    );
    owner
        .query("select bugle.resolve($1, '\"yes\"')", &[&id])
        .await
        .unwrap();
    wait_for_state(&owner, id, "completed").await;
    let result = of_job(&owner, id, "result").await;
    assert_eq!(result, r#"{"a": 1, "ask": "yes", "last": "last", "slept": true}"#);
    assert_eq!(
        of_job(&owner, id, "attempt").await,
        "1",
        "neither the snooze nor the answer was an attempt"
    );
    wait_for_state(&owner, needless, "cancelled").await;
    assert_eq!(
        steps(&owner, needless).await,
        "a done 1, needless interrupted 1, last pending 0"
    );

    // a job that is no chain
    let plain = common::enqueue(&owner, "skip").await;
    wait_for_state(&owner, plain, "completed").await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_and_a_chain_that_take_too_long_are_stopped() {
    let database = Database::new().await;
    let owner = database.owner().await;
    make_retries_quick(&owner).await;
    execute(
        &owner,
        "insert into bugle.commands (name, timeout) values ('slow', '50 milliseconds')",
    )
    .await;
    let stopped: Shared<u32> = Shared::default();
    let registry = noting(&["a"], &Shared::default())
        .on("slow", {
            let stopped = stopped.clone();
            move |context: Context, _: Value| {
                let stopped = stopped.clone();
                async move {
                    context.cancellation().cancelled().await;
                    *stopped.lock().unwrap() += 1;
                    Ok(())
                }
            }
        })
        .on("endless", async |context: Context, _: Value| {
            context.cancellation().cancelled().await;
            Ok(())
        });
    let worker = database.worker(&[("default", 4)], registry);

    let by_step = enqueue_chain(&owner, &["a", "slow", "a"]).await;
    let by_chain = NewJob::new("chain", json!({})).steps(["a", "endless", "a"]);
    let by_chain = by_chain
        .timeout(Duration::from_millis(300))
        .enqueue(&owner)
        .await
        .unwrap();

    wait_for_state(&owner, by_step, "failed").await;
    assert_eq!(of_job(&owner, by_step, "reason").await, "timeout");
    assert_eq!(
        *stopped.lock().unwrap(),
        4,
        "a timeout is tried again, and each try was told to stop"
    );
    assert_eq!(steps(&owner, by_step).await, "a done 1, slow failed 4, a pending 0");
    wait_until(
        &owner,
        &format!("select state in ('failed', 'completed') from bugle.job({by_chain})"),
    )
    .await;
    assert_eq!(of_job(&owner, by_chain, "state, ' ', reason").await, "failed timeout");
    assert!(
        of_job(&owner, by_chain, "last_error")
            .await
            .starts_with("not finished within 300ms")
    );
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stops_gives_the_chain_back_and_another_goes_on_with_the_step() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let seen: Shared<Vec<String>> = Shared::default();
    let holds = noting(&["a"], &seen).on("b", async |context: Context, _: Value| {
        context.cancellation().cancelled().await;
        Err::<(), _>(Failure::new("stopped"))
    });
    let mut settings = database.settings(&[("default", 4)]);
    settings.drain = Duration::ZERO;
    let first = common::RunningWorker::start(settings, holds);
    let id = enqueue_chain(&owner, &["a", "b"]).await;
    wait_until(
        &owner,
        &format!("select exists (select from bugle.steps where job = {id} and name = 'b' and state = 'running')"),
    )
    .await;

    let drained = first.stop().await;
    assert_eq!(drained.given_back, 1);
    assert_eq!(of_job(&owner, id, "state, ' ', step, ' ', attempt").await, "ready 1 0");
    let second = database.worker(&[("default", 4)], noting(&["b"], &seen));

    wait_for_state(&owner, id, "completed").await;
    assert_eq!(
        *seen.lock().unwrap(),
        [r#"a {"n":1}"#, r#"b {"a":1,"last":"a","n":1}"#],
        "the second serves only what is left"
    );
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_outlives_its_connections() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let seen: Shared<Vec<String>> = Shared::default();
    let gate = std::sync::Arc::new(tokio::sync::Notify::new());
    let registry = noting(&["a", "c"], &seen).on("b", {
        let gate = gate.clone();
        move |_: Context, _: Value| {
            let gate = gate.clone();
            async move {
                gate.notified().await;
                Ok(json!({ "b": true }))
            }
        }
    });
    let worker = database.worker(&[("default", 4)], registry);
    let id = enqueue_chain(&owner, &["a", "b", "c"]).await;
    wait_until(
        &owner,
        &format!("select exists (select from bugle.steps where job = {id} and name = 'b' and state = 'running')"),
    )
    .await;

    // chosen first: a condition with an effect may be tried before the others, on the sessions of other tests
    let cut = "with mine as materialized (select a.pid from pg_stat_activity a \
        where a.datname = current_database() and a.application_name like 'bugle %') \
        select count(*) from mine where pg_terminate_backend(mine.pid)";
    assert_ne!(
        query_value::<i64>(&owner, cut).await,
        0,
        "the worker's session at least"
    );
    gate.notify_one();

    wait_for_state(&owner, id, "completed").await;
    assert_eq!(seen.lock().unwrap().len(), 2, "nothing ran twice");
    assert_eq!(of_job(&owner, id, "attempt").await, "1");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_that_was_cancelled_is_stopped_in_its_step() {
    let database = Database::new().await;
    let (owner, operator) = (database.owner().await, database.connect("operator").await);
    let seen: Shared<Vec<String>> = Shared::default();
    let registry = noting(&["a", "c"], &seen).on("b", async |context: Context, _: Value| {
        context.cancellation().cancelled().await;
        Ok(())
    });
    let worker = database.worker(&[("default", 4)], registry);
    let id = enqueue_chain(&owner, &["a", "b", "c"]).await;
    wait_until(
        &owner,
        &format!("select exists (select from bugle.steps where job = {id} and name = 'b' and state = 'running')"),
    )
    .await;

    operator.query("select bugle.cancel($1::bigint)", &[&id]).await.unwrap();
    let drained = worker.stop().await;

    assert!(drained.is_clean());
    assert_eq!(of_job(&owner, id, "state, ' ', step").await, "cancelled 1");
    assert_eq!(seen.lock().unwrap().len(), 1, "the next step is not run");
}

/// Notes which commands it is around.
struct Around(Shared<Vec<String>>);

impl Stage for Around {
    fn around(&self, context: Context, next: Next) -> Execution {
        self.0.lock().unwrap().push(context.job().command.clone());
        next.run(context)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stages_are_around_steps_and_one_folder_is_for_all_of_them() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let around: Shared<Vec<String>> = Shared::default();
    let registry = Registry::new()
        .stage("file.*", Around(around.clone()))
        .on("file.fetch", async |context: Context, _: Value| {
            std::fs::write(context.workspace()?.join("data"), "fetched")?;
            Ok(json!({ "folder": context.workspace()? }))
        })
        .on("file.read", async |context: Context, _: Value| {
            Ok(json!({ "data": std::fs::read_to_string(context.workspace()?.join("data"))? }))
        });
    let worker = database.worker(&[("default", 4)], registry);

    let id = enqueue_chain(&owner, &["file.fetch", "file.read"]).await;

    wait_for_state(&owner, id, "completed").await;
    assert_eq!(*around.lock().unwrap(), ["file.fetch", "file.read"]);
    assert_eq!(of_job(&owner, id, "result->>'data'").await, "fetched");
    let folder = of_job(&owner, id, "result->>'folder'").await;
    eventually("the folder is gone", || !std::path::Path::new(&folder).exists()).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_that_cannot_be_kept_fails_the_step() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(&owner, "update bugle.settings set max_payload_bytes = 8192").await;
    let registry = Registry::new()
        .on("large", async |_: Context, _: Value| Ok("x".repeat(10_000)))
        .on("nul", async |_: Context, _: Value| Ok("\0"))
        .on("liar", async |_: Context, _: Value| Ok(Outcome::Settled));
    let worker = database.worker(&[("default", 4)], registry);

    for (step, said) in [
        ("large", "the limit is 8192"),
        ("nul", "SQLSTATE 22P05"),
        ("liar", "reported that its completion was committed, but it was not"),
    ] {
        let id = enqueue_chain(&owner, &[step, "large"]).await;
        wait_for_state(&owner, id, "failed").await;
        assert_eq!(
            of_job(&owner, id, "reason, ' ', last_error_code").await,
            "not_retryable bad_result"
        );
        let error = of_job(&owner, id, "last_error").await;
        assert!(error.contains(said), "{error}");
        assert_eq!(steps(&owner, id).await, format!("{step} failed 1, large pending 0"));
    }
    worker.stop().await;
}

/// In both orders, however the first of the two ends, and however many of the kind were there before.
#[tokio::test(flavor = "multi_thread")]
async fn a_chain_that_is_enqueued_while_old_ones_are_deleted_is_found() {
    const ENQUEUE: &str = "insert into bugle.jobs (command, steps) values ('chain', '{a,b}')";
    const FORGET: &str = "select bugle.prune_chains(0)";
    let database = Database::new().await;
    let owner = database.owner().await;
    let (mut enqueued, mut forgotten) = (0, 0);

    for was_there in [false, true] {
        for (first, second) in [(ENQUEUE, FORGET), (FORGET, ENQUEUE)] {
            for end in ["commit", "rollback"] {
                if was_there {
                    let old = enqueue_chain(&owner, &["a", "b"]).await;
                    owner.query("select bugle.remove($1::bigint)", &[&old]).await.unwrap();
                }
                let (one, two) = (database.owner().await, database.owner().await);
                let pid: i32 = query_value(&two, "select pg_backend_pid()").await;
                execute(&one, &format!("begin; {first}")).await;
                let late = tokio::spawn(async move { two.batch_execute(second).await });
                answered_or_blocked(&late, pid, &owner).await;
                execute(&one, end).await;
                late.await.unwrap().unwrap();

                enqueued += i64::from(first == FORGET || end == "commit");
                let unknown = "select count(*) from bugle.jobs_live j where not exists ( \
                    select from bugle.chains c where c.command = j.command and c.steps = j.steps)";
                let unknown: i64 = query_value(&owner, unknown).await;
                assert_eq!(unknown, 0, "{first}, then {second}, {end}: nobody would look for it");
                // a worker that looks for it finds it, and it is the last of its kind again
                let worker = database.worker(&[("default", 4)], noting(&["a", "b"], &Shared::default()));
                let all = format!("select count(*) = {enqueued} from bugle.jobs where state = 'completed'");
                wait_until(&owner, &all).await;
                worker.stop().await;
                forgotten += query_value::<i32>(&owner, FORGET).await;
            }
        }
    }
    assert!(forgotten > 0, "they are forgotten when nobody enqueues");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_can_be_resumed_with_an_answer_and_can_spawn_children() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let seen: Shared<Vec<String>> = Shared::default();
    let registry = noting(&["a"], &seen)
        .on("ask", async |context: Context, _: Value| {
            Ok(match context.answer::<String>()? {
                None => Outcome::Wait {
                    token: None,
                    at_most: None,
                },
                Some(answer) => Outcome::complete(json!({ "answer": answer })),
            })
        })
        .on("count", async |_: Context, n: i64| Ok(n))
        .on("sum", async |context: Context, _: Value| {
            if context.answer::<String>()?.is_some() {
                return Err(Failure::new("this is not my answer").not_retryable());
            }
            let children = context.children().await?;
            if children.is_empty() {
                return Ok(context.spawn((1..=3).map(|n| NewJob::new("count", n))).await?);
            }
            let mut sum = 0;
            for child in children {
                sum += child.result::<i64>()?;
            }
            Ok(Outcome::complete(json!({ "sum": sum })))
        });
    let worker = database.worker(&[("default", 4)], registry);

    let id = enqueue_chain(&owner, &["a", "ask", "sum"]).await;
    wait_for_state(&owner, id, "waiting").await;
    owner
        .query("select bugle.resume_with($1, '\"yes\"')", &[&id])
        .await
        .unwrap();

    wait_for_state(&owner, id, "completed").await;
    let result = of_job(&owner, id, "result").await;
    assert_eq!(result, r#"{"a": 1, "sum": 6, "last": "a", "answer": "yes"}"#);
    assert_eq!(seen.lock().unwrap().len(), 1, "what was done is not done again");
    assert_eq!(of_job(&owner, id, "attempt").await, "1");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_is_a_job_of_a_workflow() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let seen: Shared<Vec<String>> = Shared::default();
    let worker = database.worker(&[("default", 4)], noting(&["a", "b", "c"], &seen));

    execute(
        &owner,
        r#"select bugle.enqueue_workflow('{"jobs": {"x": {"command": "chain", "steps": ["a", "b"]},
                "y": {"command": "c", "after": ["x"]}}}')"#,
    )
    .await;

    wait_until(&owner, "select count(*) = 2 from bugle.jobs where state = 'completed'").await;
    let order: Vec<String> = seen.lock().unwrap().iter().map(|name| name[..1].to_owned()).collect();
    assert_eq!(order, ["a", "b", "c"]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_on_results_hold_for_jobs_and_for_steps() {
    let database = Database::new().await;
    let owner = database.owner().await;
    make_retries_quick(&owner).await;
    execute(
        &owner,
        "insert into bugle.retry_policies (name, kind, retries, delay) values ('quick', 'fixed', 9, '10 ms'); \
         insert into bugle.commands (name, retry_when, wait_when, retry_policy, max_attempts) \
         values ('poll', '$.tries < 3', '$.tries == 3', 'quick', 9)",
    )
    .await;
    let tries: Shared<i32> = Shared::default();
    let registry = Registry::new()
        .on("first", |_: Context, _: Value| async { Ok(json!({})) })
        .on("poll", {
            let tries = tries.clone();
            move |_: Context, _: Value| {
                let tries = {
                    let mut tries = tries.lock().unwrap();
                    *tries += 1;
                    *tries
                };
                async move { Ok(json!({ "tries": tries })) }
            }
        });
    let worker = database.worker(&[("default", 1)], registry);

    let job = NewJob::new("poll", json!({})).enqueue(&owner).await.unwrap();
    wait_for_state(&owner, job, "waiting").await;
    assert_eq!(of_job(&owner, job, "attempt, ' ', result").await, r#"3 {"tries": 3}"#);
    execute(&owner, &format!("select bugle.resolve({job}, '7')")).await;
    wait_for_state(&owner, job, "completed").await;

    *tries.lock().unwrap() = 0;
    let chain = enqueue_chain(&owner, &["first", "poll"]).await;
    wait_for_state(&owner, chain, "waiting").await;
    assert_eq!(
        *tries.lock().unwrap(),
        3,
        "two failed tries of the step, in the same attempt"
    );
    assert_eq!(of_job(&owner, chain, "attempt, ' ', last_error_code").await, "1 ");
    execute(&owner, &format!("select bugle.resolve({chain}, '7')")).await;
    wait_for_state(&owner, chain, "completed").await;
    assert_eq!(of_job(&owner, chain, "result").await, r#"{"poll": 7}"#);
    worker.stop().await;
}
