//! One job instead of two, while many want it at once, and some of them change their mind.

mod common;

use std::process::Command;
use std::time::Duration;

use bugle::{Bugle, NewJob, OnConflict};
use common::{BUGLE, Database, execute, query_value};
use futures_util::future::join_all;
use tokio_postgres::Client;

const CLIENTS: usize = 16;
const ROUNDS: usize = 20;

/// What a client got in a round, and whether it committed.
struct Got {
    round: usize,
    id: i64,
    created: bool,
    committed: bool,
}

/// All clients call `enqueue` once a round, in a transaction. Every third rolls back, another third each round.
async fn race(clients: &[Client], enqueue: impl Fn(usize) -> String + Copy) -> Vec<Got> {
    let runs = clients.iter().enumerate().map(|(n, client)| async move {
        let mut all = vec![];
        for round in 0..ROUNDS {
            execute(client, "begin").await;
            let row = client.query_one(&enqueue(round), &[]).await.expect("an answer");
            let committed = (n + round) % 3 != 0;
            execute(client, if committed { "commit" } else { "rollback" }).await;
            all.push(Got {
                round,
                id: row.get(0),
                created: row.get(1),
                committed,
            });
        }
        all
    });
    join_all(runs).await.into_iter().flatten().collect()
}

async fn clients(database: &Database) -> Vec<Client> {
    join_all((0..CLIENTS).map(|_| database.connect("enqueuer"))).await
}

/// The ids of all jobs with a key like this, in the order of the rounds.
async fn ids(owner: &Client, key: &str) -> Vec<i64> {
    let query = format!("select id from bugle.jobs order by ({key})::integer, id");
    let rows = owner.query(&query, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

fn assert_one_job_a_round(all: &[Got], ids: &[i64]) {
    assert_eq!(ids.len(), ROUNDS, "one job for each key");
    for (round, id) in ids.iter().enumerate() {
        let committed: Vec<&Got> = all.iter().filter(|got| got.round == round && got.committed).collect();
        let creators = committed.iter().filter(|got| got.created).count();
        assert_eq!(creators, 1, "one of those who committed made the job of round {round}");
        assert!(
            committed.iter().all(|got| got.id == *id),
            "all who committed were told its id"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_clients_race_for_a_unique_key_and_one_job_is_there() {
    let database = Database::new().await;
    let clients = clients(&database).await;

    let all = race(&clients, |round| {
        format!("select id, created from bugle.enqueue_once('noop', p_unique_key => '{round}')")
    })
    .await;

    assert_one_job_a_round(&all, &ids(&database.owner().await, "unique_key").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_clients_race_for_an_idempotency_key_and_one_job_is_there_even_when_it_has_ended() {
    let database = Database::new().await;
    let (clients, owner) = (clients(&database).await, database.owner().await);
    let enqueue = |round| format!("select id, created from bugle.enqueue_once('noop', p_idempotency_key => '{round}')");

    let all = race(&clients, enqueue).await;
    let first = ids(&owner, "idempotency_key").await;
    assert_one_job_a_round(&all, &first);

    execute(&owner, "select bugle.cancel(array(select id from bugle.jobs_live))").await;
    let later = race(&clients, enqueue).await;

    assert!(later.iter().all(|got| !got.created), "the keys outlive their jobs");
    assert!(later.iter().all(|got| got.id == first[got.round]));
    assert_eq!(ids(&owner, "idempotency_key").await, first);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_sixteen_plain_inserts_one_succeeds_and_the_others_get_a_unique_violation() {
    let database = Database::new().await;
    let (clients, owner) = (clients(&database).await, database.owner().await);

    for column in ["unique_key", "idempotency_key"] {
        let inserts = clients.iter().enumerate().map(|(n, client)| async move {
            let mut succeeded = 0;
            for round in 0..ROUNDS {
                execute(client, "begin").await;
                let insert = format!("insert into bugle.jobs (command, {column}) values ('{column}', '{round}')");
                match client.batch_execute(&insert).await {
                    Ok(()) if (n + round) % 3 != 0 => {
                        execute(client, "commit").await;
                        succeeded += 1;
                    }
                    Ok(()) => execute(client, "rollback").await,
                    Err(error) => {
                        assert_eq!(error.code().expect("a SQLSTATE").code(), "23505", "{error}");
                        execute(client, "rollback").await;
                    }
                }
            }
            succeeded
        });
        let succeeded: usize = join_all(inserts).await.into_iter().sum();

        let query = "select count(*) from bugle.jobs where command = $1";
        let jobs: i64 = owner.query_one(query, &[&column]).await.unwrap().get(0);
        assert_eq!((succeeded, jobs as usize), (ROUNDS, ROUNDS), "{column}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_answered_for_while_its_jobs_come_and_go() {
    let database = Database::new().await;
    let (clients, operator) = (clients(&database).await, database.connect("operator").await);
    let enqueueing = clients.iter().map(|client| async move {
        let mut made = vec![];
        for _ in 0..ROUNDS {
            let job = NewJob::new("noop", ()).unique_key("k").on_conflict(OnConflict::Replace);
            let job = job.enqueue_once(client).await.expect("an answer");
            if job.created {
                made.push(job.id);
            }
        }
        made
    });
    let over = std::sync::atomic::AtomicBool::new(false);
    let cancelling = async {
        while !over.load(std::sync::atomic::Ordering::Relaxed) {
            execute(&operator, "select bugle.cancel_where(p_command => 'noop')").await;
        }
    };
    let enqueueing = async {
        let made = join_all(enqueueing).await;
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        made
    };

    let (made, ()) = tokio::join!(enqueueing, cancelling);

    let mut made: Vec<i64> = made.into_iter().flatten().collect();
    made.sort();
    assert_eq!(
        ids(&database.owner().await, "0").await,
        made,
        "each job was made by one call"
    );
    assert!(!made.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_clients_add_the_same_missing_jobs_in_any_order_and_each_is_added_once() {
    let database = Database::new().await;
    let (clients, owner) = (clients(&database).await, database.owner().await);

    let runs = clients.iter().enumerate().map(|(n, client)| async move {
        let mut keys: Vec<usize> = (0..200).collect();
        fastrand::shuffle(&mut keys);
        let jobs: Vec<_> = keys
            .iter()
            .map(|key| serde_json::json!({ "key": key.to_string() }))
            .collect();
        execute(client, "begin").await;
        let query = "select bugle.add_missing('noop', $1)";
        let added: i64 = client
            .query_one(query, &[&serde_json::Value::from(jobs)])
            .await
            .expect("added")
            .get(0);
        let committed = n % 3 != 0;
        execute(client, if committed { "commit" } else { "rollback" }).await;
        if committed { added } else { 0 }
    });
    let added: i64 = join_all(runs).await.into_iter().sum();

    assert_eq!(added, 200);
    assert_eq!(ids(&owner, "unique_key").await.len(), 200);
    let strays =
        "select count(*) from bugle.idempotency_keys k where not exists (select from bugle.jobs j where j.id = k.job)";
    assert_eq!(query_value::<i64>(&owner, strays).await, 0);
}

#[tokio::test]
async fn under_repeatable_read_a_key_that_came_meanwhile_is_a_serialization_failure() {
    let database = Database::new().await;
    let (one, two) = (database.connect("enqueuer").await, database.connect("enqueuer").await);

    for argument in ["p_unique_key", "p_idempotency_key"] {
        let enqueue = format!("select id from bugle.enqueue_once('noop', {argument} => 'k')");
        execute(&one, "begin isolation level repeatable read; select id from bugle.jobs").await;
        execute(&two, &enqueue).await;
        let refused = one.batch_execute(&enqueue).await.expect_err("it cannot see the job");
        execute(&one, "rollback").await;

        assert_eq!(refused.code().expect("a SQLSTATE").code(), "40001", "{refused}");
        execute(&one, &enqueue).await;
    }
}

#[tokio::test]
async fn the_library_and_the_command_line_know_the_keys() {
    let database = Database::new().await;
    let client = Bugle::connect(&database.url("enqueuer")).unwrap();
    let job = |n: i32| NewJob::new("noop", serde_json::json!({ "n": n })).unique_key("k");

    let first = client.enqueue_once(&job(1)).await.unwrap();
    let kept = client.enqueue(&job(2)).await.unwrap().id();
    let replaced = client
        .enqueue_once(&job(3).on_conflict(OnConflict::Replace))
        .await
        .unwrap();
    let message = NewJob::new("noop", ())
        .idempotency_key("m")
        .idempotency_ttl(Duration::from_secs(60));
    let message = (client.enqueue_once(&message).await, client.enqueue_once(&message).await);
    let said = on_the_command_line(
        &database,
        &["--unique-key=k", "--on-conflict=move", "--in=1h", "--json"],
    )
    .await;
    let answer_for_the_message =
        on_the_command_line(&database, &["--idempotency-key=m", "--idempotency-ttl=1h", "--json"]).await;

    assert!(first.created);
    assert_eq!(kept, first.id);
    assert_eq!((replaced.id, replaced.created), (first.id, false));
    let message = (message.0.unwrap(), message.1.unwrap());
    assert!(message.0.created && !message.1.created && message.0.id == message.1.id);
    assert_eq!(said, format!("{{\"id\":{},\"created\":false}}", first.id));
    assert_eq!(
        answer_for_the_message,
        format!("{{\"id\":{},\"created\":false}}", message.0.id)
    );
    let query = "select concat_ws(' ', state, payload) from bugle.jobs where id = $1";
    let row = database.owner().await.query_one(query, &[&first.id]).await.unwrap();
    assert_eq!(row.get::<_, String>(0), r#"scheduled {"n": 3}"#);
}

async fn on_the_command_line(database: &Database, arguments: &[&str]) -> String {
    let mut command = Command::new(BUGLE);
    command
        .args(["enqueue", "noop"])
        .args(arguments)
        .env("DATABASE_URL", database.url("enqueuer"));
    let output = tokio::task::spawn_blocking(move || command.output().expect("bugle runs"))
        .await
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    format!("{{\"id\":{},\"created\":{}}}", said["id"], said["created"])
}
