//! Enqueueing as applications do it: with a login that may enqueue and nothing else, by whatever way SQL offers.

mod common;
mod pgbouncer;

use std::io::Cursor;

use bugle::{Bugle, Code, NewJob};
use common::{BUGLE, Database, enqueue, execute, query_value};
use futures_util::SinkExt;
use tokio_postgres::Client;

#[tokio::test]
async fn rows_come_in_by_every_kind_of_insert() {
    let database = Database::new().await;
    let (enqueuer, owner) = (database.connect("enqueuer").await, database.owner().await);

    enqueuer
        .execute("insert into bugle.jobs (command) values ('one')", &[])
        .await
        .unwrap();
    enqueuer
        .execute(
            "insert into bugle.jobs (command) values ('many'), ('many'), ('many')",
            &[],
        )
        .await
        .unwrap();
    enqueuer
        .execute(
            "insert into bugle.jobs (command, payload) select 'select', to_jsonb(n) from generate_series(1, 1000) n",
            &[],
        )
        .await
        .unwrap();
    let prepared = enqueuer
        .prepare("insert into bugle.jobs (command, payload) values ('prepared', $1) returning id")
        .await
        .unwrap();
    let mut ids: Vec<i64> = vec![];
    for n in 0..20 {
        let row = enqueuer.query_one(&prepared, &[&serde_json::json!({ "n": n })]).await;
        ids.push(row.unwrap().get(0));
    }

    assert_eq!(
        counts(&owner).await,
        "many ready 3, one ready 1, prepared ready 20, select ready 1000"
    );
    assert!(ids.is_sorted(), "ids rise");
}

#[tokio::test]
async fn a_hundred_thousand_rows_are_copied_in() {
    let database = Database::new().await;
    let (enqueuer, owner) = (database.connect("enqueuer").await, database.owner().await);

    copy(
        &enqueuer,
        (0..100_000).map(|n| format!("bulk\t{{\"n\": {n}}}\n")).collect(),
    )
    .await
    .expect("copied");
    let refused = copy(&enqueuer, "bulk\t{}\n\t{}\nbulk\t{}\n".into()).await;

    assert_eq!(counts(&owner).await, "bulk ready 100000");
    assert_eq!(sqlstate(&refused.unwrap_err()), Code::InvalidColumn.sqlstate());
}

async fn copy(client: &Client, lines: String) -> Result<u64, tokio_postgres::Error> {
    let sink = client.copy_in("copy bugle.jobs (command, payload) from stdin").await?;
    let mut sink = std::pin::pin!(sink);
    sink.send(Cursor::new(lines.into_bytes())).await?;
    sink.finish().await
}

#[tokio::test]
async fn a_job_is_there_when_its_transaction_commits_and_not_before() {
    let database = Database::new().await;
    let (mut enqueuer, owner) = (database.connect("enqueuer").await, database.owner().await);

    let transaction = enqueuer.transaction().await.unwrap();
    insert(&transaction, "rolled back").await;
    transaction.rollback().await.unwrap();

    let mut transaction = enqueuer.transaction().await.unwrap();
    insert(&transaction, "kept").await;
    let savepoint = transaction.transaction().await.unwrap();
    insert(&savepoint, "rolled back to the savepoint").await;
    savepoint.rollback().await.unwrap();
    let savepoint = transaction.transaction().await.unwrap();
    insert(&savepoint, "kept").await;
    savepoint.commit().await.unwrap();
    assert_eq!(counts(&owner).await, "", "nothing before the commit");
    transaction.commit().await.unwrap();

    assert_eq!(counts(&owner).await, "kept ready 2");
}

#[tokio::test]
async fn a_refused_row_in_a_savepoint_leaves_the_rest_of_the_transaction() {
    let database = Database::new().await;
    let (mut enqueuer, owner) = (database.connect("enqueuer").await, database.owner().await);

    let mut transaction = enqueuer.transaction().await.unwrap();
    insert(&transaction, "kept").await;
    let savepoint = transaction.transaction().await.unwrap();
    let refused = savepoint
        .execute("insert into bugle.jobs (command) values ('')", &[])
        .await;
    assert_eq!(sqlstate(&refused.unwrap_err()), Code::InvalidColumn.sqlstate());
    savepoint.rollback().await.unwrap();
    transaction.commit().await.unwrap();

    assert_eq!(counts(&owner).await, "kept ready 1");
}

#[tokio::test]
async fn jobs_are_enqueued_at_every_isolation_level() {
    let database = Database::new().await;
    let (one, two) = (database.connect("enqueuer").await, database.connect("enqueuer").await);
    let insert = "insert into bugle.jobs (command, retry_policy) values ('due', 'fixed'); \
        insert into bugle.jobs (command, run_at) values ('later', now() + interval '1 hour')";

    for level in ["read uncommitted", "read committed", "repeatable read", "serializable"] {
        // side by side, so that one would have to give way if they saw each other
        for client in [&one, &two] {
            let begin = format!("begin isolation level {level}; {insert}");
            client.batch_execute(&begin).await.expect(level);
        }
        for client in [&one, &two] {
            client.batch_execute("commit").await.expect(level);
        }
    }

    assert_eq!(counts(&database.owner().await).await, "due ready 8, later scheduled 8");
}

#[tokio::test]
async fn the_right_to_enqueue_is_the_right_to_nothing_else() {
    let database = Database::new().await;
    let enqueuer = database.connect("enqueuer").await;
    enqueue(&enqueuer, "noop").await;

    for statement in [
        "insert into bugle.jobs (command, state) values ('noop', 'ready')",
        "insert into bugle.jobs (command, attempt) values ('noop', 1)",
        "insert into bugle.jobs (command, claim) values ('noop', 1)",
        "insert into bugle.jobs (id, command) values (default, 'noop')",
        "insert into bugle.jobs (id, command) overriding system value values (1, 'noop')",
        "copy bugle.jobs (id, command) from stdin",
        "insert into bugle.jobs_live (command) values ('noop')",
        "insert into bugle.jobs (command) values ('noop') returning payload",
        "select payload from bugle.jobs",
        "update bugle.jobs set payload = '{}'",
        "delete from bugle.jobs",
        "truncate bugle.jobs",
        "copy bugle.jobs to stdout",
        "select * from bugle.claim(1, gen_random_uuid(), '{}')",
        "select bugle.resolve(1)",
        "create table bugle.mine ()",
    ] {
        let refused = enqueuer.batch_execute(statement).await.expect_err(statement);
        assert_eq!(sqlstate(&refused), "42501", "{statement}: {refused}");
    }
    let seen = enqueuer.query("select id from bugle.jobs", &[]).await.unwrap();
    assert_eq!(seen.len(), 1);
}

#[tokio::test]
async fn five_thousand_queues_in_one_transaction_take_few_locks() {
    let database = Database::new().await;
    let enqueuer = database.connect("enqueuer").await;

    execute(
        &enqueuer,
        "begin; insert into bugle.jobs (command, queue) select 'at once', 'q' || n from generate_series(1, 5000) n",
    )
    .await;
    let in_one_statement = advisory_locks(&enqueuer).await;
    execute(&enqueuer, "commit; begin").await;
    let insert = enqueuer
        .prepare("insert into bugle.jobs (command, queue) values ('one by one', $1)")
        .await
        .unwrap();
    let queues: Vec<String> = (1..=5000).map(|n| format!("q{n}")).collect();
    // sent without waiting for each answer
    let inserts = queues.iter().map(|queue| async {
        let parameters: &[&(dyn postgres_types::ToSql + Sync)] = &[queue];
        enqueuer.execute(&insert, parameters).await.expect("one by one");
    });
    futures_util::future::join_all(inserts).await;
    let one_by_one = advisory_locks(&enqueuer).await;
    execute(&enqueuer, "commit").await;

    assert!((1..=20).contains(&in_one_statement), "{in_one_statement} locks");
    assert!((1..=20).contains(&one_by_one), "{one_by_one} locks");
    assert_eq!(advisory_locks(&enqueuer).await, 0, "none are left");
    let counts = counts(&database.owner().await).await;
    assert_eq!(counts, "at once ready 5000, one by one ready 5000");
}

async fn advisory_locks(client: &Client) -> i64 {
    let query = "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()";
    query_value(client, query).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_transaction_can_be_prepared() {
    let options = bugle::private_postgres::Options::new()
        .setting("max_prepared_transactions", "4")
        .bugle_bin(BUGLE);
    let server = tokio::task::spawn_blocking(move || bugle::private_postgres::PrivatePostgres::start(&options))
        .await
        .unwrap()
        .expect("a server");
    let database = Database::empty_on(server.url("postgres").parse().unwrap()).await;
    bugle::schema::migrate(&database.config("owner"))
        .await
        .expect("migrates");
    database.create_logins().await;
    let (enqueuer, owner) = (database.connect("enqueuer").await, database.owner().await);
    // somebody sleeps, so that there is a reason to ring
    let sleeper = database.owner().await;
    execute(&sleeper, "select pg_advisory_lock(bugle.bell_key('default'))").await;

    let rings = "begin; insert into bugle.jobs (command) values ('rings'); prepare transaction 'rings'";
    let refused = enqueuer.batch_execute(rings).await.unwrap_err();
    execute(
        &enqueuer,
        "set bugle.silent = 'on'; begin; insert into bugle.jobs (command) values ('silent'); prepare \
        transaction 'silent'",
    )
    .await;
    assert_eq!(counts(&owner).await, "", "nothing before the commit");
    execute(&enqueuer, "commit prepared 'silent'").await;

    assert_eq!(
        sqlstate(&refused),
        "0A000",
        "a notification cannot be prepared: {refused}"
    );
    assert_eq!(counts(&owner).await, "silent ready 1");
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_come_in_through_a_pooler_in_transaction_mode() {
    let database = Database::new().await;
    let Some(pooler) = pgbouncer::start(&database.config("enqueuer")) else {
        return;
    };
    let mut clients = vec![];
    for _ in 0..4 {
        clients.push(pooler.connect().await);
    }

    // two server connections for four clients: each statement may meet another one
    for round in 0..25 {
        let inserts = clients.iter().enumerate().map(|(n, client)| async move {
            let insert = format!(
                "insert into bugle.jobs (command, queue) values ('pooled', 'q{}') returning id",
                (n + round) % 3
            );
            client.simple_query(&insert).await.expect("inserted");
            execute(
                client,
                &format!("begin; {insert}; select bugle.enqueue('pooled'); commit"),
            )
            .await;
        });
        futures_util::future::join_all(inserts).await;
    }

    let owner = database.owner().await;
    assert_eq!(counts(&owner).await, "pooled ready 300");
    let locks = "select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database \
        where datname = current_database())";
    assert_eq!(query_value::<i64>(&owner, locks).await, 0, "locks left behind");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_behind_a_pooler_in_transaction_mode_refuses_and_says_why() {
    let database = Database::new().await;
    let Some(pooler) = pgbouncer::start(&database.config("worker")) else {
        return;
    };
    drop(pooler.connect().await);
    let mut settings = database.settings(&[("default", 1)]);
    settings.database_url = pooler.url();

    let run = bugle::Worker::new(settings, common::noop()).run(bugle::Shutdown::new());
    let error = tokio::time::timeout(common::DEADLINE, run)
        .await
        .expect("at once")
        .expect_err("it refuses");

    assert!(error.to_string().contains("pooler"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("directly")), "{error}");
}

#[tokio::test]
async fn the_library_enqueues_with_every_column() {
    let database = Database::new().await;
    let client = Bugle::connect(&database.url("enqueuer")).unwrap();
    let job = NewJob::new("send_mail", serde_json::json!({ "to": "a" }))
        .queue("mail")
        .priority(-3)
        .delay(std::time::Duration::from_secs(3600))
        .timeout(std::time::Duration::from_millis(1500))
        .max_attempts(4)
        .retry_policy("fixed")
        .header("trace", "1");

    let id = client.enqueue(&job).await.unwrap().id();
    let refused = client.enqueue(&NewJob::new(" ", ())).await.unwrap_err();

    let query = "select concat_ws(' ', state, command, payload, queue, priority, run_at - created_at, timeout, \
        max_attempts, retry_policy, headers) \
        from bugle.jobs where id = $1";
    let row: String = database.owner().await.query_one(query, &[&id]).await.unwrap().get(0);
    assert_eq!(
        row,
        r#"scheduled send_mail {"to": "a"} mail -3 01:00:00 00:00:01.5 4 fixed {"trace": "1"}"#
    );
    assert_eq!(refused.code(), Some(Code::InvalidColumn));
    assert!(refused.hint().is_some(), "{refused}");
}

async fn insert(transaction: &tokio_postgres::Transaction<'_>, command: &str) {
    transaction
        .execute("insert into bugle.jobs (command) values ($1)", &[&command])
        .await
        .unwrap();
}

/// Jobs by command and state, on one line.
async fn counts(owner: &Client) -> String {
    let query = "select coalesce(string_agg(concat_ws(' ', command, state, jobs), ', ' order by command, state), '') \
        from (select command, state, count(*) as jobs from bugle.jobs group by command, state) j";
    query_value(owner, query).await
}

fn sqlstate(error: &tokio_postgres::Error) -> &str {
    error.code().map_or("no SQLSTATE", |code| code.code())
}
