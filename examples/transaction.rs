//! Transactional completion: what an executor writes and the end of its job are one transaction, so it takes effect
//! once, however often it is run.
//!
//! ```sh
//! bugle dev                        # in another terminal: a database; prints DATABASE_URL
//! cargo run --example transaction
//! ```

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bugle::{Bugle, Context, Failure, NewJob, Outcome, Shutdown, Worker};
use serde_json::{Value, json};

/// Takes one piece from the shelf. The first attempt breaks off when it has done so, the second goes through.
async fn take(context: Context, item: String) -> Result<Outcome, Failure> {
    let mut connection = context.database().await?;
    let transaction = connection.transaction().await?;
    let left: i32 = transaction
        .query_one(
            "update shelf set pieces = pieces - 1 where item = $1 returning pieces",
            &[&item],
        )
        .await?
        .get(0);
    println!("attempt {}: {left} left", context.attempt());
    if context.attempt() == 1 {
        let failure = Failure::new("the power is gone"); // and with it the transaction
        return Err(failure.retry_after(Duration::from_millis(50)));
    }
    // Refused if another worker has this job by now: then all of it is rolled back.
    context.complete_in(&transaction, json!({ "left": left })).await?;
    transaction.commit().await?;
    Ok(Outcome::Settled)
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL").context("set DATABASE_URL: \"bugle dev\" prints one")?;
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    client
        .batch_execute(
            "create table if not exists shelf (item text primary key, pieces int not null);
             insert into shelf values ('tea', 10) on conflict (item) do update set pieces = 10",
        )
        .await?;

    let shutdown = Shutdown::on_signals()?;
    let worker = Worker::builder(&url).on("take", take).run(shutdown.clone());
    let story = async {
        let bugle = Bugle::connect(&url)?;
        let job = bugle.enqueue(&NewJob::new("take", "tea")).await?;
        let result: Value = job.result().await?;
        println!("job {} is completed: {result}", job.id());
        let left: i32 = client
            .query_one("select pieces from shelf where item = 'tea'", &[])
            .await?
            .get(0);
        ensure!(
            left == 9 && result["left"] == 9,
            "one piece was to be taken, {left} of 10 are left"
        );
        println!("it ran twice, and one piece was taken");
        shutdown.request();
        anyhow::Ok(())
    };
    tokio::try_join!(async { Ok(worker.await?) }, story)?;
    Ok(())
}
