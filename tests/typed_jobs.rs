//! The API as a Rust application uses it: typed jobs, shared state, builders, and what they do in the database.

mod common;

use std::sync::Mutex;
use std::time::Duration;

use bugle::read::{NewSchedule, set_schedule};
use bugle::{Bugle, Failure, Job, NewJob, OnConflict, Registry, Settings, Shutdown, State, Worker, Workflow};
use common::{Database, RunningWorker, execute, query_value, wait_for_state, wait_until};
use serde::{Deserialize, Serialize};

/// What the executors of a test share.
#[derive(Default)]
struct Post {
    sent: Mutex<Vec<String>>,
}
type Context = bugle::Context<Post>;

#[derive(Debug, Serialize, Deserialize)]
struct SendMail {
    to: String,
}

impl Job for SendMail {
    const COMMAND: &'static str = "send_mail";

    fn defaults(&self, job: NewJob) -> NewJob {
        job.queue("mail")
            .priority(5)
            .max_attempts(3)
            .timeout(Duration::from_secs(20))
    }
}

#[derive(Serialize, Deserialize)]
struct Add(i64, i64);

impl Job for Add {
    const COMMAND: &'static str = "add";
}

async fn send_mail(context: Context, mail: SendMail) -> Result<usize, Failure> {
    let mut sent = context.state().sent.lock().unwrap();
    sent.push(mail.to);
    Ok(sent.len())
}

async fn add(_: bugle::Context, Add(a, b): Add) -> Result<i64, Failure> {
    Ok(a + b)
}

fn settings(database: &Database) -> Settings {
    database.settings(&[("default", 4), ("mail", 1)])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_typed_job_reaches_the_executor_of_its_type_and_its_result_comes_back() {
    let database = Database::new().await;
    let registry = Registry::with_state(Post::default())
        .job(send_mail)
        .merge(Registry::new().job(add));
    let worker = RunningWorker::start(settings(&database), registry);
    let bugle = Bugle::connect(&database.url("owner")).unwrap();

    let ada = bugle.enqueue(&SendMail { to: "ada".into() }).await.unwrap();
    let first: usize = ada.result().await.unwrap();
    let bob = bugle.enqueue(&SendMail { to: "bob".into() }).await.unwrap();
    let second: usize = bob.result().await.unwrap();
    let sum: i64 = bugle.enqueue(&Add(2, 3)).await.unwrap().result().await.unwrap();

    assert_eq!((first, second, sum), (1, 2, 5), "both mails were sent with one state");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_defaults_of_a_type_hold_unless_the_caller_overrides_them() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let mail = SendMail { to: "ada".into() };

    let plain = mail.to_job().enqueue(&owner).await.unwrap();
    let urgent = mail.to_job().priority(-1).enqueue(&owner).await.unwrap();

    let columns = async |id: i64| -> String {
        let query = format!(
            "select concat_ws(' ', command, queue, priority, max_attempts, timeout, payload) from bugle.jobs \
             where id = {id}"
        );
        query_value(&owner, &query).await
    };
    assert_eq!(columns(plain).await, "send_mail mail 5 3 00:00:20 {\"to\": \"ada\"}");
    assert_eq!(columns(urgent).await, "send_mail mail -1 3 00:00:20 {\"to\": \"ada\"}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_is_not_of_the_type_is_a_dead_letter_that_names_the_field() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let worker = database.worker(&[("mail", 1)], Registry::with_state(Post::default()).job(send_mail));

    let id = NewJob::new("send_mail", serde_json::json!({ "to": 7 }))
        .queue("mail")
        .enqueue(&owner)
        .await;
    let id = id.unwrap();
    wait_for_state(&owner, id, "failed").await;

    let job = bugle::read::job(&owner, id).await.unwrap().unwrap();
    assert_eq!(job.summary.state, State::Failed);
    assert_eq!(
        (job.summary.attempt, job.summary.reason.map(bugle::Reason::as_str)),
        (1, Some("not_retryable"))
    );
    assert_eq!(job.summary.last_error_code.as_deref(), Some("bad_payload"));
    let error = job.last_error.unwrap();
    assert!(
        error.contains("invalid type: integer `7`") && error.ends_with("at to"),
        "{error}"
    );
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn typed_jobs_are_parts_of_workflows_and_children() {
    let database = Database::new().await;
    let registry = Registry::new()
        .job(add)
        .on("sum", async |context: bugle::Context, (): ()| {
            let children = context.children().await?;
            if children.is_empty() {
                return Ok(context.spawn([&Add(1, 2), &Add(3, 4)]).await?);
            }
            let sums: Result<Vec<i64>, _> = children.iter().map(|child| child.result::<i64>()).collect();
            Ok(bugle::Outcome::complete(sums?.iter().sum::<i64>()))
        });
    let worker = database.worker(&[("default", 4)], registry);
    let bugle = Bugle::connect(&database.url("owner")).unwrap();

    let workflow = Workflow::new()
        .job("add", &Add(20, 22))
        .job("sum", NewJob::new("sum", ()).after("add"));
    let jobs = bugle.enqueue_workflow(&workflow).await.unwrap();

    assert_eq!(jobs["add"].result::<i64>().await.unwrap(), 42);
    assert_eq!(jobs["sum"].result::<i64>().await.unwrap(), 10);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_built_in_one_expression_and_ends_when_its_queues_are_empty() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let ids = [
        SendMail { to: "ada".into() }.to_job().enqueue(&owner).await.unwrap(),
        Add(1, 1).to_job().enqueue(&owner).await.unwrap(),
        NewJob::new("double", 4).enqueue(&owner).await.unwrap(),
    ];

    let settings = Settings::new(database.url("worker")).name("builder").until_empty(true);
    let drained = Worker::builder(settings)
        .queue("default", 2)
        .queue("mail", 1)
        .job(add)
        .state(Post::default())
        .job(send_mail)
        .on("double", async |_: Context, number: i64| Ok(2 * number))
        .run(Shutdown::new())
        .await
        .unwrap();

    assert!(drained.is_clean());
    for id in ids {
        wait_for_state(&owner, id, "completed").await;
    }
    let served = "select array_to_string(queues, ',') || ' ' || array_to_string(commands, ',') from bugle.workers";
    assert_eq!(
        query_value::<String>(&owner, served).await,
        "default,mail add,double,send_mail"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_does_not_start_with_a_setting_that_is_out_of_range() {
    let database = Database::new().await;
    let refused = async |settings: Settings| {
        let worker = Worker::new(settings, Registry::new().job(add));
        worker.run(Shutdown::new()).await.unwrap_err().to_string()
    };
    let settings = || Settings::new(database.url("worker"));

    let twice = refused(settings().queue("default", 1).queue("default", 2)).await;
    assert!(twice.starts_with("queue \"default\" is named twice\nhint: "), "{twice}");
    let none = refused(settings().queue("default", 0)).await;
    assert!(none.contains("has 0 slots"), "{none}");
    let name = refused(settings().name(" ")).await;
    assert!(name.contains("worker name"), "{name}");
    let workers: i64 = query_value(&database.owner().await, "select count(*) from bugle.workers").await;
    assert_eq!(workers, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_is_migrated_by_its_url() {
    let database = Database::empty().await;

    let first = bugle::migrate(&database.url("owner")).await.unwrap();
    let again = bugle::migrate(&database.url("owner")).await.unwrap();

    assert_eq!(first, bugle::schema::Migrated::Created);
    assert_eq!(again, bugle::schema::Migrated::Unchanged);
    NewJob::new("noop", ()).enqueue(&database.owner().await).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_cancelled_by_its_handle() {
    let database = Database::new().await;
    let bugle = Bugle::connect(&database.url("owner")).unwrap();
    let job = bugle.enqueue(&Add(1, 2)).await.unwrap();

    job.cancel().await.unwrap();

    assert_eq!(job.wait().await.unwrap().state, Some(State::Cancelled));
    let again = job.cancel().await.unwrap_err().to_string();
    assert!(again.contains("cancelled"), "{again}");
    let unknown = bugle.job(job.id() + 1).cancel().await.unwrap_err().to_string();
    assert!(unknown.contains(&(job.id() + 1).to_string()), "{unknown}");
}

/// As a program with another driver enqueues: it has the job as JSON, and a transaction of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_written_as_json_is_the_job_that_the_client_enqueues() {
    let database = Database::new().await;
    let (mut enqueuer, owner) = (database.owner().await, database.owner().await);
    let jobs = [
        SendMail { to: "ada".into() }.to_job(),
        NewJob::new("noop", ()),
        NewJob::new("noop", serde_json::json!({ "a": [1, null] }))
            .queue("other")
            .priority(-3)
            .delay(Duration::from_secs(3600))
            .timeout(Duration::from_millis(1500))
            .max_attempts(2)
            .retry_policy("fixed")
            .retry_delay(Duration::from_secs(5))
            .header("tenant", "acme")
            .unique_key("u")
            .on_conflict(OnConflict::Replace)
            .idempotency_key("i")
            .idempotency_ttl(Duration::from_secs(60))
            .order_key("o")
            .limit_key("l")
            .fair_key("f")
            .steps(["noop", "noop2"])
            .on_success("yes")
            .on_failure("no"),
    ];
    for job in jobs {
        // one after the other in transactions that are rolled back, so that their keys do not meet
        let by_client = {
            let transaction = enqueuer.transaction().await.unwrap();
            let id = job.enqueue(&transaction).await.unwrap();
            stored(&transaction, id).await
        };
        let by_json = {
            let transaction = enqueuer.transaction().await.unwrap();
            let row = transaction
                .query_one("select bugle.enqueue_job($1)", &[&job.to_json().unwrap()])
                .await;
            stored(&transaction, row.unwrap().get(0)).await
        };
        assert_eq!(by_json, by_client);
    }
    let left: i64 = query_value(&owner, "select count(*) from bugle.jobs").await;
    assert_eq!(left, 0, "what is rolled back was never enqueued");
}

/// All but what differs between any two jobs.
async fn stored(transaction: &tokio_postgres::Transaction<'_>, id: i64) -> serde_json::Value {
    let row = "select to_jsonb(j) - '{id,created_at,updated_at,run_at,deadline}'::text[] \
               || jsonb_build_object('in', j.run_at - j.created_at) from bugle.jobs j where j.id = $1";
    transaction.query_one(row, &[&id]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_written_as_json_that_repeats_a_key_is_answered_with_the_existing_job() {
    let database = Database::new().await;
    let enqueuer = database.connect("enqueuer").await;
    let enqueue = async |job: NewJob| -> Result<i64, tokio_postgres::Error> {
        let row = enqueuer
            .query_one("select bugle.enqueue_job($1)", &[&job.to_json().unwrap()])
            .await?;
        Ok(row.get(0))
    };
    let unique = || NewJob::new("noop", 1).unique_key("k");

    let first = enqueue(unique()).await.unwrap();
    let kept = enqueue(unique()).await.unwrap();
    let replaced = enqueue(NewJob::new("noop", 2).unique_key("k").on_conflict(OnConflict::Replace))
        .await
        .unwrap();
    let message = enqueue(NewJob::new("noop", 3).idempotency_key("m")).await.unwrap();
    let repeated = enqueue(NewJob::new("noop", 3).idempotency_key("m")).await.unwrap();

    assert_eq!((kept, replaced, repeated), (first, first, message));
    let payload = format!("select payload = '2' from bugle.jobs where id = {first}");
    wait_until(&database.owner().await, &payload).await;
    let refused = enqueue(NewJob::new("", ())).await.unwrap_err();
    assert_eq!(refused.code().unwrap().code(), bugle::Code::InvalidColumn.sqlstate());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_of_a_typed_job_is_set_at_each_start_and_written_only_if_it_changed() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let mail = SendMail { to: "ada".into() };
    let nightly = |cron: &str| {
        NewSchedule::cron("nightly", cron, &mail)
            .unwrap()
            .timezone("Europe/Berlin")
    };
    let job = bugle::NewJob::new("sync", ()).header("tenant", "acme");
    set_schedule(
        &owner,
        &NewSchedule::every("sync", Duration::from_secs(3600), job).unwrap(),
    )
    .await
    .unwrap();
    let headers = "delete from bugle.schedules where name = 'sync' returning headers::text";
    assert_eq!(query_value::<String>(&owner, headers).await, "{\"tenant\": \"acme\"}");

    let first = set_schedule(&owner, &nightly("30 2 * * *")).await.unwrap();
    execute(&owner, "select bugle.pause_schedule('nightly')").await;
    let before: i64 = query_value(&owner, "select count(*) from bugle.changes").await;
    let again = set_schedule(&owner, &nightly("30 2 * * *")).await.unwrap();

    assert!(first.is_some());
    assert_eq!(again, first, "nothing was written");
    assert_eq!(
        query_value::<i64>(&owner, "select count(*) from bugle.changes").await,
        before
    );
    let row = "select concat_ws(' ', cron, timezone, command, queue, priority, max_attempts, timeout, payload, \
               paused_at is not null) from bugle.schedules";
    let expected = "30 2 * * * Europe/Berlin send_mail mail 5 3 00:00:20 {\"to\": \"ada\"} t";
    assert_eq!(query_value::<String>(&owner, row).await, expected);

    set_schedule(&owner, &nightly("45 2 * * *")).await.unwrap();
    assert_eq!(
        query_value::<String>(&owner, "select cron from bugle.schedules").await,
        "45 2 * * *"
    );
    let key = NewSchedule::every("hourly", Duration::from_secs(3600), mail.to_job().unique_key("k")).unwrap_err();
    assert!(key.to_string().contains("unknown field `unique_key`"), "{key}");
}
