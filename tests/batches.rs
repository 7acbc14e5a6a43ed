//! Executors of many jobs: one call for up to n jobs of a command, and everything else per job.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bugle::config::SqlConfig;
use bugle::{Batch, Bugle, Context, Execution, Failure, Job, NewJob, Next, Outcome, Registry, Stage, State, Worker};
use common::{Database, RunningWorker, Shared, execute, query_value, wait_for_state, wait_until};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio_postgres::Client;

/// The sizes of the calls, in the order in which they were started.
type Calls = Shared<Vec<usize>>;

fn note(calls: &Calls, jobs: usize) {
    calls.lock().unwrap().push(jobs);
}

/// An executor that completes every job, and notes how many it was given.
fn counting(most: usize) -> (Registry, Calls) {
    let calls = Calls::default();
    let seen = calls.clone();
    let registry = Registry::new().on_many("index", most, move |batch: Batch<serde_json::Value>| {
        note(&seen, batch.len());
        async move {
            for job in batch {
                let payload = job.payload().clone();
                job.complete(payload);
            }
            Ok(())
        }
    });
    (registry, calls)
}

async fn enqueue_many(client: &Client, count: usize) {
    let insert = format!(
        "insert into bugle.jobs (command, payload) select 'index', to_jsonb(n) from generate_series(1, {count}) n"
    );
    execute(client, &insert).await;
}

/// Enqueue one with this payload and these options, written as SQL.
async fn enqueue(client: &Client, payload: serde_json::Value, columns: &str, values: &str) -> i64 {
    let insert = format!(
        "insert into bugle.jobs (command, payload{columns}) values ('index', '{payload}'{values}) returning id"
    );
    query_value(client, &insert).await
}

async fn all_in(client: &Client, state: &str) {
    wait_until(client, &format!("select bool_and(state = '{state}') from bugle.jobs")).await;
}

async fn described(client: &Client, id: i64) -> String {
    let query = format!(
        "select concat_ws(' ', state, attempt, last_error_code, reason, result) from bugle.jobs where id = {id}"
    );
    query_value(client, &query).await
}

async fn error_of(client: &Client, id: i64) -> String {
    query_value(client, &format!("select last_error from bugle.jobs where id = {id}")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_were_claimed_together_are_one_call() {
    let database = Database::new().await;
    let owner = database.owner().await;
    enqueue_many(&owner, 50).await;
    let (registry, calls) = counting(100);

    let worker = database.worker(&[("default", 100)], registry);
    all_in(&owner, "completed").await;

    assert_eq!(*calls.lock().unwrap(), [50]);
    let own: bool = query_value(&owner, "select bool_and(result = payload) from bugle.jobs").await;
    assert!(own, "each job has its own result");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_takes_no_more_than_it_is_registered_for() {
    let database = Database::new().await;
    let owner = database.owner().await;
    enqueue_many(&owner, 50).await;
    let (registry, calls) = counting(20);

    let worker = database.worker(&[("default", 100)], registry);
    all_in(&owner, "completed").await;

    let mut calls = calls.lock().unwrap().clone();
    calls.sort_unstable();
    assert_eq!(calls, [10, 20, 20]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_job_is_a_call_of_its_own_and_so_is_a_step_of_a_chain() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let (registry, calls) = counting(100);
    let worker = database.worker(&[("default", 100)], registry);

    let single = NewJob::new("index", 1).enqueue(&owner).await.unwrap();
    wait_for_state(&owner, single, "completed").await;
    let chain = NewJob::new("index_twice", json!({ "page": 1 })).steps(["index", "index"]);
    let chain = chain.enqueue(&owner).await.unwrap();
    wait_for_state(&owner, chain, "completed").await;

    assert_eq!(*calls.lock().unwrap(), [1, 1, 1]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_job_of_a_call_has_its_own_outcome() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let registry = Registry::new().on_many("index", 100, async |batch: Batch<String>| {
        for job in batch {
            match job.payload().as_str() {
                "retried" => job.fail(Failure::new("not now").code("busy")),
                "dead" => job.fail(Failure::new("never").not_retryable()),
                "later" => job.end(Outcome::Snooze(Duration::from_secs(600))),
                "cancelled" => job.end(Outcome::Cancelled("nothing to do".into())),
                "waits" => job.end(Outcome::Wait {
                    token: None,
                    at_most: None,
                }),
                _ => job.complete("indexed"),
            }
        }
        Ok(())
    });
    let mut ids = Vec::new();
    for payload in ["done", "retried", "dead", "later", "cancelled", "waits"] {
        ids.push(enqueue(&owner, json!(payload), "", "").await);
    }
    ids.push(enqueue(&owner, json!({ "not": "a string" }), "", "").await);

    let worker = database.worker(&[("default", 100)], registry);
    wait_until(
        &owner,
        "select count(*) = 0 from bugle.jobs where state in ('ready', 'running')",
    )
    .await;

    let mut found = Vec::new();
    for id in &ids {
        found.push(described(&owner, *id).await);
    }
    assert_eq!(
        found,
        [
            "completed 1 \"indexed\"",
            "retrying 1 busy",
            "failed 1 not_retryable",
            "scheduled 0",
            "cancelled 1 executor",
            "waiting 1",
            "failed 1 bad_payload not_retryable",
        ]
    );
    worker.stop().await;
}

/// Calls that end when they are let go, after they have reported on every job but those whose payload is "held".
fn held_calls() -> (Registry, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let pass = gate.clone();
    let registry = Registry::new().on_many("index", 100, move |batch: Batch<String>| {
        let pass = pass.clone();
        async move {
            let mut held = Vec::new();
            for job in batch {
                match job.payload().as_str() {
                    "held" => held.push(job),
                    _ => job.complete("early"),
                }
            }
            pass.acquire().await.unwrap().forget();
            held.into_iter().for_each(|job| job.complete("late"));
            Ok(())
        }
    });
    (registry, gate)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_is_delivered_while_the_call_goes_on() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let held = enqueue(&owner, json!("held"), "", "").await;
    let early = enqueue(&owner, json!("early"), "", "").await;
    let (registry, gate) = held_calls();

    let worker = database.worker(&[("default", 100)], registry);
    wait_for_state(&owner, early, "completed").await;
    assert!(described(&owner, held).await.starts_with("running"));

    gate.add_permits(1);
    wait_for_state(&owner, held, "completed").await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_limit_or_a_cancellation_ends_one_job_of_a_call_and_not_the_others() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let slow = enqueue(&owner, json!("held"), ", timeout", ", '100 ms'").await;
    let unwanted = enqueue(&owner, json!("held"), "", "").await;
    let patient = enqueue(&owner, json!("held"), "", "").await;
    let (registry, gate) = held_calls();

    let worker = database.worker(&[("default", 100)], registry);
    wait_for_state(&owner, unwanted, "running").await;
    execute(&owner, &format!("select bugle.cancel({unwanted})")).await;
    wait_until(
        &owner,
        &format!("select last_error_code is not distinct from 'timeout' from bugle.jobs where id = {slow}"),
    )
    .await;
    wait_for_state(&owner, unwanted, "cancelled").await;
    assert!(described(&owner, patient).await.starts_with("running"));

    gate.add_permits(1);
    wait_for_state(&owner, patient, "completed").await;
    assert!(described(&owner, unwanted).await.starts_with("cancelled"));
    worker.shutdown.request();
    gate.add_permits(10); // the retry of the slow one
    worker.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_a_job_that_needs_it_is_dropped() {
    /// Says when it is dropped.
    struct Told(Shared<bool>);
    impl Drop for Told {
        fn drop(&mut self) {
            *self.0.lock().unwrap() = true;
        }
    }
    let database = Database::new().await;
    let owner = database.owner().await;
    let (dropped, told) = (Shared::<bool>::default(), Shared::<bool>::default());
    let (drops, tells) = (dropped.clone(), told.clone());
    let registry = Registry::new().on_many("index", 100, move |batch: Batch<String>| {
        let (told, tells) = (Told(drops.clone()), tells.clone());
        async move {
            let _told = told;
            batch.cancellation().cancelled().await;
            *tells.lock().unwrap() = true;
            std::future::pending().await
        }
    });
    for _ in 0..2 {
        enqueue(&owner, json!("x"), ", timeout, max_attempts", ", '50 ms', 1").await;
    }

    let worker = database.worker(&[("default", 100)], registry);
    all_in(&owner, "failed").await;

    assert!(*told.lock().unwrap(), "it was told to stop");
    common::eventually("the call is dropped", || *dropped.lock().unwrap()).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_fails_the_jobs_without_an_outcome_and_each_is_retried_alone() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(&owner, "update bugle.retry_policies set delay = '0 s'").await;
    let calls = Calls::default();
    let seen = calls.clone();
    let registry = Registry::new().on_many("index", 100, move |batch: Batch<String>| {
        note(&seen, batch.len());
        async move {
            for job in batch {
                assert_ne!(job.payload(), "poison", "this is poison");
                if job.payload() != "after" || job.context().attempt() > 1 {
                    job.complete("indexed");
                } else {
                    // it is behind the poison in the call, and never reached
                    drop(job);
                }
            }
            Ok(())
        }
    });
    let before = enqueue(&owner, json!("before"), "", "").await;
    let poison = enqueue(&owner, json!("poison"), ", max_attempts", ", 2").await;
    let after = enqueue(&owner, json!("after"), "", "").await;

    let worker = database.worker(&[("default", 100)], registry);
    wait_for_state(&owner, poison, "failed").await;
    wait_for_state(&owner, after, "completed").await;

    assert_eq!(described(&owner, before).await, "completed 1 \"indexed\"");
    assert!(described(&owner, poison).await.starts_with("failed 2 panic"));
    assert!(error_of(&owner, poison).await.contains("this is poison"));
    assert!(described(&owner, after).await.starts_with("completed 2 panic"));
    assert_eq!(*calls.lock().unwrap(), [3, 1, 1]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_outcome_fails_the_job_and_says_so() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let registry = Registry::new().on_many("index", 100, async |batch: Batch<String>| {
        let mut jobs = batch.into_iter();
        jobs.next().expect("the first").complete("indexed");
        Ok(())
    });
    let first = enqueue(&owner, json!("a"), ", max_attempts", ", 1").await;
    let second = enqueue(&owner, json!("b"), ", max_attempts", ", 1").await;

    let worker = database.worker(&[("default", 100)], registry);
    wait_for_state(&owner, second, "failed").await;
    wait_for_state(&owner, first, "completed").await;

    assert!(described(&owner, second).await.starts_with("failed 1 no_outcome"));
    let error = error_of(&owner, second).await;
    assert!(
        error.starts_with("the executor of \"index\" reported no outcome for this job\nhint: Call complete"),
        "{error}"
    );
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_the_call_is_the_failure_of_the_jobs_without_an_outcome() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let registry = Registry::new().on_many("index", 100, async |batch: Batch<String>| {
        let mut jobs = batch.into_iter();
        jobs.next().expect("the first").complete("indexed");
        Err(Failure::new("the index is closed").code("closed").not_retryable())
    });
    let first = enqueue(&owner, json!("a"), "", "").await;
    let rest = [
        enqueue(&owner, json!("b"), "", "").await,
        enqueue(&owner, json!("c"), "", "").await,
    ];

    let worker = database.worker(&[("default", 100)], registry);
    wait_for_state(&owner, first, "completed").await;
    for job in rest {
        wait_for_state(&owner, job, "failed").await;
        assert_eq!(described(&owner, job).await, "failed 1 closed not_retryable");
        assert_eq!(error_of(&owner, job).await, "the index is closed");
    }
    worker.stop().await;
}

#[derive(Debug, Serialize, Deserialize)]
struct Document {
    title: String,
}

impl Job for Document {
    const COMMAND: &'static str = "index";
}

/// What the executors share.
#[derive(Default)]
struct Index(Mutex<Vec<String>>);

async fn index(batch: Batch<Document, Index>) -> Result<(), Failure> {
    let mut titles = batch.payloads().map(|document| document.title.clone()).collect();
    batch.state().0.lock().unwrap().append(&mut titles);
    for job in batch {
        let known = job.context().state().0.lock().unwrap().len();
        job.complete(known);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn typed_jobs_and_shared_state_reach_an_executor_of_many() {
    let database = Database::new().await;
    let bugle = Bugle::connect(&database.url("owner")).unwrap();
    let shutdown = bugle::Shutdown::new();
    let worker = Worker::builder(database.settings(&[("default", 100)]))
        .state(Index::default())
        .job_many(100, index)
        .build();
    let worker = tokio::spawn(worker.run(shutdown.clone()));

    let first = bugle.enqueue(&Document { title: "tea".into() }).await.unwrap();
    assert_eq!(first.result::<usize>().await.unwrap(), 1);
    let second = bugle.enqueue(&Document { title: "milk".into() }).await.unwrap();
    assert_eq!(second.result::<usize>().await.unwrap(), 2);

    shutdown.request();
    worker.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn stages_are_around_each_job_of_a_call() {
    /// Completes every second job by itself.
    struct EverySecond;
    impl Stage for EverySecond {
        fn around(&self, context: Context, next: Next) -> Execution {
            Box::pin(async move {
                match context.id() % 2 {
                    0 => Outcome::complete("by the stage"),
                    _ => next.run(context).await,
                }
            })
        }
    }
    let database = Database::new().await;
    let owner = database.owner().await;
    enqueue_many(&owner, 10).await;
    let (registry, calls) = counting(100);

    let worker = database.worker(&[("default", 100)], registry.stage("index", EverySecond));
    all_in(&owner, "completed").await;

    assert_eq!(*calls.lock().unwrap(), [5]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_counts_the_jobs_of_a_call_one_by_one() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(
        &owner,
        "insert into bugle.queues (name, max_running) values ('default', 3)",
    )
    .await;
    enqueue_many(&owner, 10).await;
    let (registry, calls) = counting(100);

    let worker = database.worker(&[("default", 100)], registry);
    all_in(&owner, "completed").await;

    let calls = calls.lock().unwrap().clone();
    assert!(calls.iter().all(|jobs| *jobs <= 3), "{calls:?}");
    assert_eq!(calls.iter().sum::<usize>(), 10);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_jobs_of_a_call_are_completed_with_its_writes_in_one_transaction() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(
        &owner,
        "create table pages (page int, by text default session_user); grant insert on pages to public",
    )
    .await;
    enqueue_many(&owner, 20).await;
    let registry = Registry::new().on_many("index", 100, async |batch: Batch<i32>| {
        let first = batch.iter().next().expect("a job").context().clone();
        let mut connection = first.database().await?;
        let transaction = connection.transaction().await?;
        let pages: Vec<i32> = batch.payloads().copied().collect();
        transaction
            .execute("insert into pages select unnest($1::int[])", &[&pages])
            .await?;
        for job in &batch {
            job.context().complete_in(&transaction, "indexed").await?;
        }
        transaction.commit().await?;
        batch.into_iter().for_each(|job| job.end(Outcome::Settled));
        Ok(())
    });

    let worker = database.worker(&[("default", 100)], registry);
    all_in(&owner, "completed").await;

    assert_eq!(
        query_value::<i64>(&owner, "select count(distinct page) from pages").await,
        20
    );
    assert!(worker.stop().await.is_clean());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stops_gives_back_the_jobs_of_a_call() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let early = enqueue(&owner, json!("early"), "", "").await;
    let held = enqueue(&owner, json!("held"), "", "").await;
    let (registry, _gate) = held_calls();
    let settings = database.settings(&[("default", 100)]).drain(Duration::ZERO);
    let worker = common::RunningWorker::start(settings, registry);
    wait_for_state(&owner, early, "completed").await;

    let drained = worker.stop().await;

    assert_eq!((drained.given_back, drained.undelivered), (1, 0));
    assert_eq!(described(&owner, held).await, "ready 0");
    let job = bugle::read::job(&owner, held).await.unwrap().unwrap();
    assert_eq!(job.summary.state, State::Ready);
}

/// The table that the SQL command `index` writes to.
async fn create_rows(owner: &Client) {
    execute(
        owner,
        "create table public.rows (i int primary key, transaction xid8 default pg_current_xact_id());
         grant all on public.rows to public",
    )
    .await;
}

/// A worker with the SQL command `index`, in batches of up to 50 jobs.
fn running(database: &Database, statement: &str) -> RunningWorker {
    let settings = database
        .settings(&[("default", 100)])
        .command("index", SqlConfig::new(statement).batch(50));
    RunningWorker::start(settings, Registry::new())
}

const INSERT: &str = "insert into public.rows (i) select ($1)::int";
/// It cannot be done for 13.
const INSERT_BUT_13: &str = "insert into public.rows (i) select ($1)::int + 0 / (($1)::int - 13)";

async fn rows(client: &Client) -> String {
    let query = "select concat(count(*), ' rows of ', count(distinct transaction), ' transactions') from public.rows";
    query_value(client, query).await
}

/// Everyone who inserts this row waits, until the session is rolled back.
async fn hold_row(database: &Database, i: i32) -> Client {
    let client = database.owner().await;
    execute(&client, &format!("begin; insert into public.rows (i) values ({i})")).await;
    client
}

/// Wait until a statement of the worker waits for that row.
async fn held_up(client: &Client) {
    let waits = "select exists (
        select from pg_stat_activity a
        where a.datname = current_database() and a.wait_event_type = 'Lock' and a.query like 'insert%')";
    wait_until(client, waits).await;
}

async fn numbers(client: &Client) -> Vec<i32> {
    query_value(client, "select array_agg(i order by i) from public.rows").await
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_jobs_of_a_batch_are_committed_together_each_with_its_result() {
    for (returning, results) in [("returning i", 20), ("", 0)] {
        let database = Database::new().await;
        let owner = database.owner().await;
        create_rows(&owner).await;
        enqueue_many(&owner, 20).await;

        let worker = running(&database, &format!("{INSERT} {returning}"));
        all_in(&owner, "completed").await;

        assert_eq!(rows(&owner).await, "20 rows of 1 transactions");
        let with_result = "select count(*) from bugle.jobs where result = payload";
        assert_eq!(query_value::<i64>(&owner, with_result).await, results);
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_sql_job_that_fails_in_a_batch_fails_alone() {
    for returning in ["returning i", ""] {
        let database = Database::new().await;
        let owner = database.owner().await;
        create_rows(&owner).await;
        enqueue_many(&owner, 20).await;

        let worker = running(&database, &format!("{INSERT_BUT_13} {returning}"));
        wait_for_state(&owner, 13, "retrying").await;
        wait_until(&owner, "select count(*) = 19 from bugle.jobs where state = 'completed'").await;

        assert_eq!(described(&owner, 13).await, "retrying 1 22012");
        assert_eq!(rows(&owner).await, "19 rows of 19 transactions");
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_sql_job_that_has_failed_before_runs_beside_the_batch() {
    let database = Database::new().await;
    let owner = database.owner().await;
    create_rows(&owner).await;
    let worker = running(&database, INSERT_BUT_13);
    let bad = enqueue(&owner, json!(13), "", "").await;
    wait_for_state(&owner, bad, "retrying").await;

    execute(&owner, "select bugle.pause_queue('default', 'together')").await;
    enqueue_many(&owner, 5).await;
    execute(&owner, &format!("select bugle.reschedule({bad}, now())")).await;
    all_in(&owner, "ready").await;
    execute(&owner, "select bugle.resume_queue('default')").await;
    wait_until(&owner, "select count(*) = 5 from bugle.jobs where state = 'completed'").await;
    wait_for_state(&owner, bad, "retrying").await;

    assert_eq!(rows(&owner).await, "5 rows of 1 transactions");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_sql_job_that_is_cancelled_in_a_batch_keeps_nothing() {
    let database = Database::new().await;
    let owner = database.owner().await;
    create_rows(&owner).await;
    let holder = hold_row(&database, 3).await;
    enqueue_many(&owner, 5).await;
    let worker = running(&database, INSERT);
    held_up(&owner).await;

    execute(&owner, "select bugle.cancel(2::bigint)").await;
    wait_for_state(&owner, 2, "cancelled").await;
    wait_until(&owner, "select count(*) = 3 from bugle.jobs where state = 'completed'").await;
    execute(&holder, "rollback").await;
    wait_for_state(&owner, 3, "completed").await;

    assert_eq!(numbers(&owner).await, [1, 3, 4, 5]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_sql_job_that_is_no_longer_held_in_a_batch_keeps_nothing() {
    for returning in ["returning i", ""] {
        let database = Database::new().await;
        let owner = database.owner().await;
        create_rows(&owner).await;
        let holder = hold_row(&database, 3).await;
        enqueue_many(&owner, 5).await;
        let worker = running(&database, &format!("{INSERT} {returning}"));
        held_up(&owner).await;

        // as if it had been rescued, and claimed again
        execute(&owner, "update bugle.jobs_live set claim = claim + 1 where id = 2").await;
        execute(&holder, "rollback").await;
        wait_until(&owner, "select count(*) = 4 from bugle.jobs where state = 'completed'").await;

        assert_eq!(numbers(&owner).await, [1, 3, 4, 5]);
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_sql_job_that_takes_too_long_in_a_batch_is_timed_out_alone() {
    let database = Database::new().await;
    let owner = database.owner().await;
    create_rows(&owner).await;
    let holder = hold_row(&database, 3).await;
    for i in 1..=5 {
        let limit = if i == 3 { ", interval '1 second'" } else { ", null" };
        enqueue(&owner, json!(i), ", timeout", limit).await;
    }

    let worker = running(&database, INSERT);
    wait_for_state(&owner, 3, "retrying").await;
    wait_until(&owner, "select count(*) = 4 from bugle.jobs where state = 'completed'").await;

    assert_eq!(described(&owner, 3).await, "retrying 1 timeout");
    execute(&holder, "rollback").await;
    assert_eq!(numbers(&owner).await, [1, 2, 4, 5]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_condition_decides_about_each_sql_job_of_a_batch() {
    let database = Database::new().await;
    let owner = database.owner().await;
    create_rows(&owner).await;
    execute(
        &owner,
        "insert into bugle.commands (name, retry_when) values ('index', '$ == 2')",
    )
    .await;
    enqueue_many(&owner, 3).await;

    let worker = running(&database, &format!("{INSERT} returning i"));
    wait_for_state(&owner, 2, "retrying").await;
    wait_until(&owner, "select count(*) = 2 from bugle.jobs where state = 'completed'").await;

    assert_eq!(rows(&owner).await, "3 rows of 1 transactions");
    worker.stop().await;
}

#[test]
#[should_panic(expected = "a call of \"index\" must take at least one job")]
fn an_executor_of_no_jobs_is_rejected() {
    let _ = Registry::new().on_many("index", 0, async |_: Batch| Ok(()));
}

#[tokio::test]
async fn a_command_is_registered_for_one_or_for_many() {
    let registry = counting(10).0.on("index", async |_: Context, (): ()| Ok(()));
    let error = Worker::new(bugle::Settings::new("postgres://localhost/none"), registry)
        .run(bugle::Shutdown::new())
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("more than one executor is registered for \"index\""),
        "{error}"
    );
}
