//! The database goes away and comes back: nothing that was acknowledged is lost, and everything ends.

mod common;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bugle::private_postgres::{Options, PrivatePostgres};
use bugle::{Context, Registry};
use common::{Database, Shared, query_value, wait_until};
use serde_json::Value;
use tokio_postgres::NoTls;

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_crashes_under_load_loses_nothing_that_was_acknowledged() {
    let options = Options::new().durable().bugle_bin(common::BUGLE);
    let mut server = PrivatePostgres::start(&options).expect("a server of our own");
    let database = Database::empty_on(server.url("postgres").parse().unwrap()).await;
    bugle::schema::migrate(&database.config("owner")).await.unwrap();
    database.create_logins().await;
    let ran: Shared<HashSet<i64>> = Shared::default();
    let registry = Registry::new().on("work", {
        let ran = ran.clone();
        move |context: Context, _: Value| {
            let ran = ran.clone();
            async move {
                // why: work takes a while, so that some of it is under way when the server dies
                tokio::time::sleep(Duration::from_millis(fastrand::u64(..30))).await;
                ran.lock().unwrap().insert(context.id());
                Ok(())
            }
        }
    });
    let workers: Vec<_> = (0..2)
        .map(|_| database.worker(&[("default", 8)], registry.clone()))
        .collect();

    static STOP: AtomicBool = AtomicBool::new(false);
    let enqueuers: Vec<_> = (0..3)
        .map(|_| tokio::spawn(enqueue_until_told(database.config("enqueuer"))))
        .collect();
    for round in 0..3 {
        {
            let owner = database.owner().await;
            let before: i64 = query_value(&owner, "select count(*) from bugle.jobs_ended").await;
            wait_until(
                &owner,
                &format!("select count(*) > {before} + 100 from bugle.jobs_ended"),
            )
            .await;
        }
        if round == 1 {
            server.stop().expect("it stops");
        } else {
            server.kill().expect("it dies");
        }
        server.start_again().expect("it comes back");
    }
    STOP.store(true, Ordering::Release);
    let mut acknowledged = HashSet::new();
    for enqueuer in enqueuers {
        acknowledged.extend(enqueuer.await.unwrap());
    }
    let owner = database.owner().await;
    wait_until(&owner, "select count(*) = 0 from bugle.jobs_live").await;

    let completed: HashSet<i64> = owner
        .query("select id from bugle.jobs where state = 'completed'", &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert!(!acknowledged.is_empty());
    assert!(
        acknowledged.is_subset(&completed),
        "lost: {:?}",
        acknowledged.difference(&completed)
    );
    assert!(
        completed.is_subset(&ran.lock().unwrap()),
        "completed without having run"
    );
    for worker in workers {
        assert!(worker.stop().await.is_clean());
    }

    /// Enqueue one by one, over however many connections it takes. Returns what was acknowledged.
    async fn enqueue_until_told(config: tokio_postgres::Config) -> Vec<i64> {
        let mut acknowledged = Vec::new();
        while !STOP.load(Ordering::Acquire) {
            let Ok((client, connection)) = config.connect(NoTls).await else {
                // why: the pace of attempts while the server is away; the test waits for what comes of them
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            tokio::spawn(connection);
            while !STOP.load(Ordering::Acquire) {
                match client
                    .query_one("insert into bugle.jobs (command) values ('work') returning id", &[])
                    .await
                {
                    Ok(row) => acknowledged.push(row.get(0)),
                    Err(_) => break,
                }
                // why: the pace of the load; nothing is waited for
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        acknowledged
    }
}
