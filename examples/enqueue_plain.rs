//! Enqueue in the transaction of the business, with tokio-postgres alone: both are there, or neither.
//!
//! ```sh
//! bugle dev                              # in another terminal: a database with a worker; prints DATABASE_URL
//! cargo run --example enqueue_plain
//! ```

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio_postgres::{Client, NoTls};

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL").context("set DATABASE_URL: \"bugle dev\" prints one")?;
    let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    client
        .batch_execute("create table if not exists orders (id bigint generated always as identity, item text not null)")
        .await?;

    let (order, kept) = place_order(&mut client, "tea", "Ada", 1).await?;
    println!("order {order} and job {kept} are committed");

    let (order, undone) = place_order(&mut client, "coffee", "Bob", 0).await?;
    ensure!(
        job(&client, undone).await?.is_none(),
        "job {undone} was not rolled back"
    );
    println!("order {order} was rolled back, and job {undone} with it");

    let (state, result) = end(&client, kept).await?;
    println!("job {kept} is {state}: {result}");
    ensure!(state == "completed", "job {kept} is not completed");
    Ok(())
}

/// The order and the job that follows from it, in one transaction.
async fn place_order(client: &mut Client, item: &str, name: &str, stock: i32) -> Result<(i64, i64)> {
    let transaction = client.transaction().await?;
    let order: i64 = transaction
        .query_one("insert into orders (item) values ($1) returning id", &[&item])
        .await?
        .get(0);
    let job = transaction
        .query_one(
            "insert into bugle.jobs (command, payload) values ('hello', $1) returning id",
            &[&json!({ "name": name, "order": order })],
        )
        .await?
        .get(0);
    if stock > 0 {
        transaction.commit().await?;
    } else {
        transaction.rollback().await?;
    }
    Ok((order, job))
}

async fn job(client: &Client, id: i64) -> Result<Option<(String, Value)>> {
    let row = client
        .query_opt("select state, coalesce(result, 'null') from bugle.job($1)", &[&id])
        .await?;
    Ok(row.map(|row| (row.get(0), row.get(1))))
}

/// Waits until a job has ended. It takes a worker that serves the command hello, such as that of `bugle dev`.
async fn end(client: &Client, id: i64) -> Result<(String, Value)> {
    for _ in 0..600 {
        let found = job(client, id).await?.context("the job is gone")?;
        if ["completed", "failed", "cancelled"].contains(&found.0.as_str()) {
            return Ok(found);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    anyhow::bail!("job {id} has not ended after 30 seconds: does a worker serve the command hello?")
}
