//! `bugle::testing`, as the tests of an application use it. The messages of its failures are tested too: they are for
//! people.

mod common;

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use bugle::testing::{self, JobFilter, assert_enqueued, assert_not_enqueued};
use bugle::{Batch, Context, Failure, Job, NewJob, Outcome, Registry, Settings, State};
use common::{Database, execute, query_value};
use futures_util::FutureExt;
use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct SendMail {
    to: String,
}

impl Job for SendMail {
    const COMMAND: &'static str = "send_mail";

    fn defaults(&self, job: NewJob) -> NewJob {
        job.queue("mail").priority(5)
    }
}

fn mail(to: &str) -> SendMail {
    SendMail { to: to.into() }
}

/// The message with which this panics.
async fn complaint<T>(work: impl Future<Output = T>) -> String {
    let panic = AssertUnwindSafe(work).catch_unwind().await.err().expect("it panics");
    let text = panic.downcast_ref::<String>().cloned();
    text.unwrap_or_else(|| panic.downcast_ref::<&str>().expect("a text").to_string())
}

fn registry() -> Registry {
    Registry::new()
        .on("add", async |_: Context, (a, b): (i64, i64)| Ok(a + b))
        .on("look", async |context: Context, (): ()| {
            let job = context.job();
            Ok(json!([
                job.held.id,
                context.attempt(),
                job.queue,
                job.priority,
                context.header("tenant")
            ]))
        })
        .on("order", async |context: Context, order: i64| {
            let receipt: String = context.step("charge", async { Ok(format!("receipt {order}")) }).await?;
            context.progress(50.0, "charged").await?;
            context.step("mail", async { Ok(json!({ "mailed": receipt })) }).await?;
            Ok(receipt)
        })
        .on("sum", async |context: Context, pages: Vec<i64>| {
            let children = context.children().await?;
            if children.is_empty() {
                return Ok(context
                    .spawn(pages.iter().map(|page| NewJob::new("count", page)))
                    .await?);
            }
            let counts: Result<Vec<i64>, _> = children.iter().map(|child| child.result::<i64>()).collect();
            Ok(Outcome::complete(counts?.iter().sum::<i64>()))
        })
        .on("ask", async |context: Context, (): ()| {
            match context.answer::<bool>()? {
                None => Ok(Outcome::Wait {
                    token: Some("t".into()),
                    at_most: None,
                }),
                Some(answer) => Ok(Outcome::complete(answer)),
            }
        })
        .on("panics", async |_: Context, (): ()| -> Result<(), Failure> {
            panic!("out of paper")
        })
        .on("stops", async |context: Context, (): ()| {
            context.cancellation().cancelled().await;
            Err::<(), _>(Failure::new("stopped"))
        })
        .on("query", async |context: Context, (): ()| {
            let row = context.database().await?.query_one("select 6 * 7", &[]).await?;
            Ok(row.get::<_, i32>(0))
        })
        .on("folder", async |context: Context, (): ()| {
            std::fs::write(context.workspace()?.join("file"), "text")?;
            Ok(())
        })
}

#[tokio::test]
async fn one_executor_runs_on_one_payload_without_a_database() {
    let registry = registry();

    assert_eq!(
        testing::run(&registry, NewJob::new("add", (2, 3)))
            .await
            .result::<i64>(),
        5
    );
    testing::run(&registry, NewJob::new("folder", ())).await.result::<()>();

    let job = NewJob::new("look", ())
        .queue("eyes")
        .priority(-3)
        .header("tenant", "acme");
    let seen = testing::run(&registry, job).id(17).attempt(2).await;
    assert_eq!(seen.result::<serde_json::Value>(), json!([17, 2, "eyes", -3, "acme"]));

    let failure = testing::run(&registry, NewJob::new("add", "text")).await.failure();
    assert_eq!(
        (failure.code.as_deref(), failure.retryable),
        (Some("bad_payload"), false)
    );
    let failure = testing::run(&registry, NewJob::new("panics", ())).await.failure();
    assert_eq!(failure.code.as_deref(), Some("panic"));
    let place = failure
        .message
        .strip_prefix("the executor panicked: out of paper\n    at tests/testing.rs:");
    assert!(place.is_some(), "{}", failure.message);
    let limited = NewJob::new("stops", ()).timeout(Duration::from_millis(20));
    let failure = testing::run(&registry, limited).await.failure();
    assert_eq!(failure.code.as_deref(), Some("timeout"));
}

#[tokio::test]
async fn steps_progress_children_and_answers_are_noted_and_given() {
    let registry = registry();

    let ran = testing::run(&registry, NewJob::new("order", 7)).await;
    assert_eq!(ran.result::<String>(), "receipt 7");
    assert_eq!(ran.progress(), [(50.0, "charged".to_string())]);
    assert_eq!(ran.steps()["mail"], json!({ "mailed": "receipt 7" }));
    let ran = testing::run(&registry, NewJob::new("order", 7))
        .step_done("charge", "receipt 1")
        .await;
    assert_eq!(
        ran.result::<String>(),
        "receipt 1",
        "a step that was done is not done again"
    );

    let ran = testing::run(&registry, NewJob::new("sum", [1, 2])).await;
    let commands: Vec<_> = ran.spawned().iter().map(|child| child["command"].clone()).collect();
    assert_eq!(commands, ["count", "count"]);
    let ran = testing::run(&registry, NewJob::new("sum", [1, 2]))
        .child(20)
        .child(22)
        .await;
    assert_eq!(ran.result::<i64>(), 42);
    let failed = testing::run(&registry, NewJob::new("sum", [1, 2]))
        .child(20)
        .failed_child("lost")
        .await;
    assert!(failed.failure().message.contains("lost"));

    let asked = testing::run(&registry, NewJob::new("ask", ())).await.waiting();
    assert_eq!(asked.token.as_deref(), Some("t"));
    assert!(
        testing::run(&registry, NewJob::new("ask", ()))
            .answer(true)
            .await
            .result::<bool>()
    );

    let stop = bugle::tokio_util::sync::CancellationToken::new();
    stop.cancel();
    let stopped = testing::run(&registry, NewJob::new("stops", ()))
        .cancellation(stop)
        .await;
    assert_eq!(stopped.failure().message, "stopped");
}

#[tokio::test]
async fn what_was_wanted_and_what_was_there_is_in_the_message() {
    let registry = registry();

    let ran = testing::run(&registry, NewJob::new("add", "text")).await;
    let said = complaint(async { ran.result::<i64>() }).await;
    assert!(
        said.starts_with("\"add\" was to complete: it failed, code bad_payload, not retryable: the payload"),
        "{said}"
    );
    let ran = testing::run(&registry, NewJob::new("add", (1, 2))).await;
    assert_eq!(
        complaint(async { ran.failure() }).await,
        "\"add\" was to fail: it completed with 3"
    );
    assert_eq!(
        complaint(async { ran.snoozed() }).await,
        "\"add\" was to be snoozed: it completed with 3"
    );
    let said = complaint(async { ran.result::<String>() }).await;
    assert!(
        said.starts_with("the result of \"add\" cannot be decoded as the requested type: invalid type: integer `3`"),
        "{said}"
    );
    let said = complaint(async { testing::run(&registry, NewJob::new("ad", ())).await }).await;
    assert!(
        said.starts_with("no executor is registered for \"ad\"; there are add, ask,"),
        "{said}"
    );
    let failure = testing::run(&registry, NewJob::new("query", ())).await.failure();
    assert!(
        failure
            .message
            .starts_with("this job runs in a test without a database\nhint: Give it one"),
        "{failure:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_has_the_database_it_is_given_and_completes_in_its_transaction() {
    let database = Database::new().await;
    execute(&database.owner().await, "create table done (id bigint)").await;
    let registry = registry().on("book", async |context: Context, (): ()| {
        let mut connection = context.database().await?;
        let transaction = connection.transaction().await?;
        transaction
            .execute("insert into done values ($1)", &[&context.id()])
            .await?;
        context.complete_in(&transaction, "booked").await?;
        transaction.commit().await?;
        Ok(Outcome::Settled)
    });

    let run = |command: &str| testing::run(&registry, NewJob::new(command, ())).database(database.url("owner"));
    assert_eq!(run("query").await.result::<i32>(), 42);
    assert_eq!(run("book").id(9).await.result::<String>(), "booked");

    assert_eq!(
        query_value::<i64>(&database.owner().await, "select id from done").await,
        9
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_an_executor_of_many_run_together() {
    let registry = Registry::new().on_many("index", 10, async |batch: Batch<i64>| {
        let count = batch.len();
        for job in batch {
            match *job.payload() {
                13 => job.fail(Failure::new("unlucky")),
                number => job.complete((number, count)),
            }
        }
        Ok(())
    });

    let ran = testing::run_many(&registry, [7, 13, 21].map(|number| NewJob::new("index", number))).await;

    assert_eq!(ran[0].result::<(i64, usize)>(), (7, 3));
    assert_eq!(ran[1].failure().message, "unlucky");
    assert_eq!(ran[2].result::<(i64, usize)>(), (21, 3));
    let alone = testing::run(&registry, NewJob::new("index", 1)).await;
    assert_eq!(alone.result::<(i64, usize)>(), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_enqueued_is_found_in_the_open_transaction() {
    let database = Database::new().await;
    let mut owner = database.owner().await;
    let transaction = owner.transaction().await.unwrap();
    mail("ada")
        .to_job()
        .delay(Duration::from_secs(60))
        .enqueue(&transaction)
        .await
        .unwrap();
    mail("bob")
        .to_job()
        .unique_key("bob")
        .enqueue(&transaction)
        .await
        .unwrap();
    let nested = json!({ "page": { "url": "/a", "words": 3 }, "tags": ["x", "y"] });
    NewJob::new("index", nested).enqueue(&transaction).await.unwrap();

    let ada = assert_enqueued(
        &transaction,
        JobFilter::job::<SendMail>().payload(json!({ "to": "ada" })),
    )
    .await;
    assert_eq!(
        (ada.queue.as_str(), ada.priority, ada.state),
        ("mail", 5, State::Scheduled)
    );
    assert_eq!(ada.payload_as::<SendMail>(), mail("ada"));
    assert_enqueued(&transaction, JobFilter::any().delay(Duration::from_secs(60))).await;
    assert_enqueued(&transaction, JobFilter::any().unique_key("bob").state(State::Ready)).await;
    let part = json!({ "page": { "url": "/a" }, "tags": ["y"] });
    assert_enqueued(&transaction, JobFilter::command("index").payload(part).priority(0)).await;
    assert_not_enqueued(&transaction, JobFilter::command("index").queue("mail")).await;
    assert_eq!(
        testing::enqueued(&transaction, &JobFilter::job::<SendMail>())
            .await
            .unwrap()
            .len(),
        2
    );

    let said = complaint(assert_enqueued(
        &transaction,
        JobFilter::job::<SendMail>().payload(json!({ "to": "eve" })),
    ))
    .await;
    assert!(said.starts_with("tests/testing.rs:"), "{said}");
    let (first, rest) = said.split_once('\n').unwrap();
    assert!(
        first.ends_with(": no job is enqueued with command \"send_mail\", a payload with {\"to\":\"eve\"}"),
        "{first}"
    );
    let ada = "  job 1: \"send_mail\" in queue \"mail\", scheduled, priority 5, payload {\"to\":\"ada\"}, delay 1m\n";
    let bob =
        "  job 2: \"send_mail\" in queue \"mail\", ready, priority 5, payload {\"to\":\"bob\"}, unique_key \"bob\"";
    assert!(
        rest.starts_with(&format!("enqueued are:\n{ada}{bob}\n  job 3: \"index\"")),
        "{rest}"
    );
    let said = complaint(assert_enqueued(&transaction, JobFilter::job::<SendMail>())).await;
    assert!(
        said.contains("one job was to be enqueued with command \"send_mail\", and there are 2\nthey are:\n"),
        "{said}"
    );
    let said = complaint(assert_not_enqueued(&transaction, JobFilter::any().unique_key("bob"))).await;
    assert!(
        said.contains("no job was to be enqueued with unique_key \"bob\"\nenqueued are:\n  job 2"),
        "{said}"
    );

    transaction.rollback().await.unwrap();
    let said = complaint(assert_enqueued(&owner, JobFilter::any())).await;
    assert!(
        said.ends_with("no job is enqueued with anything\nnothing is enqueued"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_runs_what_is_due_and_what_that_enqueues_in_order() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let registry = registry()
        .on("first", async |context: Context, (): ()| {
            let next = NewJob::new("add", (1, 1)).queue("another");
            next.enqueue(&*context.database().await?).await?;
            Ok(())
        })
        .on("count", async |_: Context, page: i64| Ok(page * 10));
    NewJob::new("first", ()).enqueue(&owner).await.unwrap();
    NewJob::new("sum", [1, 2]).enqueue(&owner).await.unwrap();
    NewJob::new("panics", ())
        .priority(9)
        .max_attempts(1)
        .enqueue(&owner)
        .await
        .unwrap();
    NewJob::new("not_ours", ()).enqueue(&owner).await.unwrap();
    NewJob::new("add", (2, 2))
        .delay(Duration::from_secs(60))
        .enqueue(&owner)
        .await
        .unwrap();

    let drained = testing::drain(database.url("owner"), &registry).await.unwrap();

    assert_eq!(
        (
            drained.completed("first"),
            drained.completed("count"),
            drained.completed("add")
        ),
        (1, 2, 1)
    );
    assert_eq!(drained.failed("panics"), 1);
    let first: Vec<_> = drained
        .attempts
        .iter()
        .take(2)
        .map(|a| (a.command.as_str(), a.outcome))
        .collect();
    assert_eq!(first, [("first", "completed"), ("sum", "waiting")]);
    assert_eq!(
        query_value::<String>(&owner, "select result::text from bugle.jobs where command = 'sum'").await,
        "30"
    );
    let left = testing::enqueued(&owner, &JobFilter::any()).await.unwrap();
    let left: Vec<_> = left.iter().map(|job| (job.command.as_str(), job.state)).collect();
    assert_eq!(left, [("not_ours", State::Ready), ("add", State::Scheduled)]);
    let said = complaint(async {
        drained.assert_no_failures();
    })
    .await;
    assert!(
        said.contains("job 3, \"panics\", attempt 1: it failed, code panic: the executor panicked: out of paper"),
        "{said}"
    );
    assert_eq!(
        query_value::<i64>(&owner, "select count(*) from bugle.workers where state = 'alive'").await,
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn time_passes_as_the_test_says() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let url = database.url("owner");
    let registry = registry().on("flaky", async |context: Context, (): ()| match context.attempt() {
        1 => Err(Failure::new("busy").retry_after(Duration::from_secs(600))),
        _ => Ok(()),
    });
    let hour = Duration::from_secs(3600);
    NewJob::new("flaky", ()).enqueue(&owner).await.unwrap();
    NewJob::new("add", (1, 2)).delay(hour).enqueue(&owner).await.unwrap();
    let late = NewJob::new("not_ours", ()).deadline(std::time::SystemTime::now() + hour);
    let late = late.enqueue(&owner).await.unwrap();
    execute(
        &owner,
        "insert into bugle.schedules (name, cron, command, payload) values ('nightly', '0 3 * * *', 'look', 'null')",
    )
    .await;

    let drained = testing::drain(&url, &registry).await.unwrap();
    assert_eq!(drained.failed("flaky"), 1);
    testing::advance(&owner, Duration::from_secs(601)).await.unwrap();
    let drained = testing::drain(&url, &registry).await.unwrap();
    assert_eq!((drained.attempts.len(), drained.completed("flaky")), (1, 1));
    testing::advance(&owner, hour).await.unwrap();
    let drained = testing::drain(&url, &registry).await.unwrap();
    assert_eq!(drained.completed("add"), 1);
    let state: String = query_value(&owner, &format!("select state from bugle.jobs where id = {late}")).await;
    assert_eq!(state, "failed", "its deadline has passed");

    let mut nights = drained.completed("look");
    for _ in 0..2 {
        testing::advance(&owner, 24 * hour).await.unwrap();
        nights += testing::drain(&url, &registry).await.unwrap().completed("look");
    }
    assert!((2..=3).contains(&nights), "{nights} nights in two days and an hour");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_of_one_queue_leaves_the_others_and_reports_what_it_cannot_do() {
    let database = Database::new().await;
    let owner = database.owner().await;
    NewJob::new("add", (1, 2)).queue("a").enqueue(&owner).await.unwrap();
    NewJob::new("add", (1, 2)).queue("b").enqueue(&owner).await.unwrap();
    let settings = Settings::new(database.url("owner")).queue("b", 10);

    let drained = testing::drain(settings, &registry()).await.unwrap();

    assert_eq!(drained.completed("add"), 1);
    assert_enqueued(&owner, JobFilter::any().queue("a")).await;
    let viewer = database.connect("viewer").await;
    let error = testing::advance(&viewer, Duration::from_secs(1)).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("hint: Connect as the login that migrated the database."),
        "{error}"
    );
}
