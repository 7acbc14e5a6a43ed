//! A schedule: a row of `bugle.schedules` enqueues a job at an interval or by a cron expression.
//!
//! ```sh
//! bugle dev                        # in another terminal: a database; prints DATABASE_URL
//! cargo run --example schedule
//! ```

use anyhow::{Context as _, Result, ensure};
use bugle::read::{self, NewSchedule};
use bugle::{Bugle, Context, NewJob, Registry, Shutdown, Worker};
use serde_json::Value;
use std::time::Duration;
use tokio_postgres::Client;

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL").context("set DATABASE_URL: \"bugle dev\" prints one")?;
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    let shutdown = Shutdown::on_signals()?;
    let registry = Registry::new().on("tick", async |context: Context, (): ()| {
        // the moment it stands for, whenever it runs
        Ok(context.header("slot").cloned())
    });
    let worker = Worker::builder(&url).registry(registry).run(shutdown.clone());
    let story = async {
        tick_twice(&client, &Bugle::connect(&url)?).await?;
        shutdown.request();
        anyhow::Ok(())
    };
    tokio::try_join!(async { Ok(worker.await?) }, story)?;
    Ok(())
}

async fn tick_twice(client: &Client, bugle: &Bugle) -> Result<()> {
    let ticks = NewSchedule::every("example", Duration::from_secs(1), NewJob::new("tick", ()))?;
    read::set_schedule(client, &ticks).await?; // or in SQL: insert into bugle.schedules …
    println!("scheduled: a tick every second. With cron it would be '* * * * * *'");

    let mut slots = Vec::new();
    while slots.len() < 2 {
        let fired = client
            .query(
                "select slot, job from bugle.schedule_runs where schedule = 'example' and job is not null \
                 order by slot",
                &[],
            )
            .await?;
        for row in fired.iter().skip(slots.len()) {
            let slot: Value = bugle.job(row.get("job")).result().await?;
            println!("job {} has ticked for {slot}", row.get::<_, i64>("job"));
            slots.push(slot.to_string());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    read::remove_schedule(client, "example").await?;

    slots.dedup();
    ensure!(slots.len() >= 2, "a slot fired twice");
    println!("each slot fired once");
    Ok(())
}
