//! Executors in Rust: what they are given, how they end, and what is around them.

mod common;

use std::time::Duration;

use bugle::{Bugle, Context, Execution, Failure, NewJob, Next, Outcome, Registry, Stage};
use common::{Database, Shared, enqueue, execute, wait_for_state, wait_until};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_gets_the_result_and_a_failure_as_an_error() {
    let database = Database::new().await;
    let registry = Registry::new()
        .on("add", async |_: Context, numbers: Vec<i64>| {
            Ok(numbers.iter().sum::<i64>())
        })
        .on("break", async |_: Context, _: Value| {
            Err::<(), _>(Failure::new("it is broken").not_retryable())
        });
    let worker = database.worker(&[("default", 8)], registry);
    let bugle = Bugle::connect(&database.url("owner")).unwrap();

    let waiting: Vec<_> = (0..50)
        .map(|n| {
            let bugle = bugle.clone();
            tokio::spawn(async move {
                let job = bugle.enqueue(&NewJob::new("add", [n, 1])).await?;
                job.result::<i64>().await
            })
        })
        .collect();
    for (n, sum) in waiting.into_iter().enumerate() {
        assert_eq!(sum.await.unwrap().unwrap(), n as i64 + 1);
    }
    let broken = bugle.enqueue(&NewJob::new("break", ())).await.unwrap();
    let error = broken.result::<()>().await.unwrap_err().to_string();
    assert_eq!(error, "the job is failed (not_retryable): it is broken");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_does_not_fit_fails_at_once_and_says_where() {
    #[derive(serde::Deserialize)]
    struct Mail {
        #[allow(dead_code)]
        to: Vec<String>,
    }
    let database = Database::new().await;
    let owner = database.owner().await;
    let worker = database.worker(
        &[("default", 1)],
        Registry::new().on("mail", async |_: Context, _: Mail| Ok(())),
    );

    execute(
        &owner,
        r#"insert into bugle.jobs (command, payload) values ('mail', '{"to": ["a", 7]}')"#,
    )
    .await;

    wait_for_state(&owner, 1, "failed").await;
    let row = owner
        .query_one("select reason, last_error_code, last_error from bugle.jobs", &[])
        .await
        .unwrap();
    assert_eq!(
        (row.get::<_, String>(0).as_str(), row.get::<_, String>(1).as_str()),
        ("not_retryable", "bad_payload")
    );
    assert!(
        row.get::<_, String>(2).contains("at to[1]"),
        "{}",
        row.get::<_, String>(2)
    );
    worker.stop().await;
}

#[inline(never)]
fn stumble() {
    panic!("at the disco");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_is_a_failure_and_not_the_end_of_the_worker() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let registry = common::noop().on("panic", async |_: Context, explode: Value| {
        if explode != Value::Null {
            stumble();
        }
        Ok(())
    });
    let worker = database.worker(&[("default", 2)], registry);

    let id = enqueue(&owner, "panic").await;
    wait_for_state(&owner, id, "retrying").await;
    let next = enqueue(&owner, "noop").await;
    wait_for_state(&owner, next, "completed").await;

    let row = owner
        .query_one("select last_error, last_error_code from bugle.job($1)", &[&id])
        .await
        .unwrap();
    let error = row.get::<_, String>(0);
    let mut lines = error.lines();
    assert_eq!(lines.next(), Some("the executor panicked: at the disco"));
    let (place, stack): (_, Vec<_>) = (lines.next().unwrap(), lines.collect());
    assert!(place.starts_with("    at tests/executors.rs:"), "where it was: {error}");
    assert!(stack[0].contains("executors::stumble"), "how it came there: {error}");
    assert!(
        stack.len() <= 16 && !error.contains("tokio::runtime"),
        "and no more: {error}"
    );
    assert_eq!(row.get::<_, String>(1), "panic");
    let row = owner.query_one("select bugle.error_line($1)", &[&error]).await.unwrap();
    assert_eq!(row.get::<_, String>(0), "the executor panicked: at the disco");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_executor_that_blocks_its_thread_beyond_its_time_limit_is_reported() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Arc::new(std::sync::Mutex::new(held));
    let registry = Registry::new().on("stuck", move |_: Context, _: Value| {
        let held = held.clone();
        async move {
            // an executor must not wait like this
            let _ = held.lock().unwrap().recv();
            Ok::<_, Failure>(())
        }
    });
    let worker = database.worker(&[("default", 1)], registry);

    execute(
        &owner,
        "insert into bugle.jobs (command, timeout) values ('stuck', '100 milliseconds')",
    )
    .await;

    wait_until(
        &owner,
        "select exists (select from bugle.workers where overdue = '{1}')",
    )
    .await;
    let row = owner
        .query_one("select reason, message from bugle.explain(1) limit 1", &[])
        .await
        .unwrap();
    assert_eq!(row.get::<_, &str>(0), "overdue");
    assert!(
        row.get::<_, &str>(1).ends_with("and its executor does not stop."),
        "{row:?}"
    );
    release.send(()).unwrap();
    wait_for_state(&owner, 1, "completed").await;
    wait_until(&owner, "select exists (select from bugle.workers where overdue = '{}')").await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_takes_too_long_is_stopped_and_tried_again() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let registry = Registry::new().on("slow", async |context: Context, _: Value| {
        if context.attempt() == 1 {
            context.cancellation().cancelled().await;
        }
        Ok(context.attempt())
    });
    let worker = database.worker(&[("default", 1)], registry);

    execute(
        &owner,
        "insert into bugle.retry_policies (name, kind, retries, delay) values ('soon', 'fixed', 3, '0');
            insert into bugle.jobs (command, timeout, retry_policy) values ('slow', '100 milliseconds', 'soon')",
    )
    .await;

    wait_for_state(&owner, 1, "completed").await;
    let row = owner
        .query_one("select attempt, code, error from bugle.attempts", &[])
        .await
        .unwrap();
    assert_eq!((row.get::<_, i32>(0), row.get::<_, String>(1).as_str()), (1, "timeout"));
    assert!(row.get::<_, String>(2).starts_with("not finished within 100ms"));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_and_completion_commit_together() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(
        &owner,
        &format!(
            "create table paid (job bigint); grant insert on paid to {}_worker",
            database.name
        ),
    )
    .await;
    let registry = Registry::new().on("pay", async |context: Context, fail: bool| {
        let mut connection = context.database().await?;
        let transaction = connection.transaction().await?;
        transaction
            .execute("insert into paid values ($1)", &[&context.id()])
            .await?;
        context.complete_in(&transaction, json!({"paid": true})).await?;
        if fail && context.attempt() == 1 {
            return Err(Failure::new("changed my mind").retry_after(Duration::ZERO));
        }
        transaction.commit().await?;
        Ok(Outcome::Settled)
    });
    let worker = database.worker(&[("default", 2)], registry);

    execute(
        &owner,
        "insert into bugle.jobs (command, payload) values ('pay', 'false'), ('pay', 'true')",
    )
    .await;

    wait_until(&owner, "select count(*) = 2 from bugle.jobs where state = 'completed'").await;
    let row = owner
        .query_one(
            "select array_agg(job order by job), (select sum(attempt) from bugle.jobs), (select count(*) from \
            bugle.jobs where result = '{\"paid\": true}') from paid",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(row.get::<_, Vec<i64>>(0), [1, 2], "a rolled back payment left nothing");
    assert_eq!((row.get::<_, i64>(1), row.get::<_, i64>(2)), (3, 2));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_at_rest_has_two_connections() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let registry = Registry::new().on("look", async |context: Context, _: Value| {
        let connection = context.database().await?;
        let row = connection.query_one("select pg_backend_pid()", &[]).await?;
        Ok(Outcome::complete(row.get::<_, i32>(0)))
    });
    let worker = database.worker(&[("default", 2)], registry);
    execute(&owner, "insert into bugle.jobs (command) values ('look')").await;
    wait_until(&owner, "select count(*) = 1 from bugle.jobs where state = 'completed'").await;

    let of_worker = "select count(*) from pg_stat_activity where datname = current_database() and application_name \
        like 'bugle %'";
    let of_executor = "select pid from pg_stat_activity where application_name like '% (pool)'";
    wait_until(
        &owner,
        &format!(
            "select ({of_worker}) = 2 and (select result from bugle.jobs) not in (select to_jsonb(pid) from \
             ({of_executor}) a)"
        ),
    )
    .await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snooze_wait_cancel_progress_and_workspace_do_what_they_say() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let folders: Shared<Vec<std::path::PathBuf>> = Shared::default();
    let seen: Shared<u32> = Shared::default();
    let registry = Registry::new()
        .on("snooze", {
            let seen = seen.clone();
            move |context: Context, _: Value| {
                *seen.lock().unwrap() += 1;
                let outcome = match *seen.lock().unwrap() {
                    1 => Outcome::Snooze(Duration::from_millis(50)),
                    _ => Outcome::complete(context.attempt()),
                };
                async move { Ok(outcome) }
            }
        })
        .on("ask", async |_: Context, _: Value| {
            Ok(Outcome::Wait {
                token: Some("secret".into()),
                at_most: None,
            })
        })
        .on("needless", async |_: Context, _: Value| {
            Ok(Outcome::Cancelled("nothing to do".into()))
        })
        .on("work", {
            let folders = folders.clone();
            move |context: Context, _: Value| {
                let folders = folders.clone();
                async move {
                    let folder = context.workspace()?.to_path_buf();
                    std::fs::write(folder.join("file"), "data")?;
                    folders.lock().unwrap().push(folder);
                    context.progress(40.0, "nearly half").await?;
                    context.cancellation().cancelled().await;
                    Ok(())
                }
            }
        });
    let worker = database.worker(&[("default", 8)], registry);
    let [snooze, ask, needless, work] = [
        enqueue(&owner, "snooze").await,
        enqueue(&owner, "ask").await,
        enqueue(&owner, "needless").await,
        enqueue(&owner, "work").await,
    ];

    wait_for_state(&owner, snooze, "completed").await;
    wait_for_state(&owner, needless, "cancelled").await;
    wait_for_state(&owner, ask, "waiting").await;
    wait_until(
        &owner,
        "select exists (select from bugle.running_jobs where progress = 40 and progress_note = 'nearly half')",
    )
    .await;
    assert!(
        owner
            .query("select bugle.resolve($1, '1', 'wrong')", &[&ask])
            .await
            .is_err()
    );
    owner
        .query("select bugle.resolve($1, '{\"answer\": 42}', 'secret')", &[&ask])
        .await
        .unwrap();
    owner.query("select bugle.cancel($1::bigint)", &[&work]).await.unwrap();

    wait_for_state(&owner, ask, "completed").await;
    let attempt: Value = owner
        .query_one("select result from bugle.job($1)", &[&snooze])
        .await
        .unwrap()
        .get(0);
    assert_eq!(attempt, 1, "a snooze is not an attempt");
    worker.stop().await;
    assert!(
        folders.lock().unwrap().iter().all(|folder| !folder.exists()),
        "the folder is gone"
    );
}

struct Mark(&'static str, Shared<Vec<String>>);

impl Stage for Mark {
    fn around(&self, context: Context, next: Next) -> Execution {
        let (name, marks) = (self.0, self.1.clone());
        Box::pin(async move {
            marks.lock().unwrap().push(format!("{name} in"));
            let outcome = next.run(context).await;
            marks.lock().unwrap().push(format!("{name} out"));
            outcome
        })
    }
}

/// Adds one to the payload, and doubles the result.
struct Change;

impl Stage for Change {
    fn around(&self, context: Context, next: Next) -> Execution {
        Box::pin(async move {
            let number: i64 = match context.payload_as() {
                Ok(number) => number,
                Err(failure) => return Outcome::Fail(failure),
            };
            let context = context.with_payload(number + 1).expect("a number is JSON");
            match next.run(context).await {
                Outcome::Complete(Some(result)) => Outcome::complete(result.get().parse::<i64>().unwrap() * 2),
                outcome => outcome,
            }
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stages_are_entered_in_order_and_left_in_reverse_and_may_change_everything() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let marks: Shared<Vec<String>> = Shared::default();
    let registry = Registry::new()
        .stage("math.*", Mark("A", marks.clone()))
        .stage("*", Mark("B", marks.clone()))
        .stage("math.square", Change)
        .stage("other.*", Mark("never", marks.clone()))
        .on("math.square", async |_: Context, number: i64| Ok(number * number));
    let worker = database.worker(&[("default", 1)], registry);

    execute(
        &owner,
        "insert into bugle.jobs (command, payload) values ('math.square', '2')",
    )
    .await;

    wait_for_state(&owner, 1, "completed").await;
    let row = owner
        .query_one("select result, payload from bugle.jobs", &[])
        .await
        .unwrap();
    assert_eq!(row.get::<_, Value>(0), 18, "((2 + 1) squared) doubled");
    assert_eq!(row.get::<_, Value>(1), 2, "the stored payload stays");
    assert_eq!(*marks.lock().unwrap(), ["A in", "B in", "B out", "A out"]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_does_not_start_with_two_executors_of_one_command() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let registry = common::noop()
        .on("mail", async |_: Context, _: Value| Ok(1))
        .on("mail", async |_: Context, _: Value| Ok(2));

    let worker = bugle::Worker::new(database.settings(&[("default", 1)]), registry);
    let error = worker.run(bugle::Shutdown::new()).await.unwrap_err().to_string();

    assert!(
        error.contains("more than one executor is registered for \"mail\""),
        "{error}"
    );
    let known = owner
        .query_one("select count(*) from bugle.workers", &[])
        .await
        .unwrap();
    assert_eq!(known.get::<_, i64>(0), 0, "it did not register");
}
