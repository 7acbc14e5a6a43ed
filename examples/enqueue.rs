//! Enqueue in the transaction of the business, and await the result, with Bugle's own client.
//!
//! ```sh
//! bugle dev                        # in another terminal: a database with a worker; prints DATABASE_URL
//! cargo run --example enqueue
//! ```

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bugle::{Bugle, JobId, NewJob};
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
    let found = client.query("select from bugle.job($1)", &[&undone]).await?;
    ensure!(found.is_empty(), "job {undone} was not rolled back");
    println!("order {order} was rolled back, and job {undone} with it");

    // A job that did not complete is an error here.
    let job = Bugle::connect(&url)?.job(kept);
    let result = tokio::time::timeout(Duration::from_secs(30), job.result::<Value>()).await;
    let result = result.context("it has not ended after 30 seconds: does a worker serve the command hello?")??;
    println!("job {kept} is completed: {result}");
    Ok(())
}

/// The order and the job that follows from it, in one transaction.
async fn place_order(client: &mut Client, item: &str, name: &str, stock: i32) -> Result<(i64, JobId)> {
    let transaction = client.transaction().await?;
    let order: i64 = transaction
        .query_one("insert into orders (item) values ($1) returning id", &[&item])
        .await?
        .get(0);
    let job = NewJob::new("hello", json!({ "name": name, "order": order }))
        .timeout(Duration::from_secs(10))
        .enqueue(&transaction)
        .await?;
    if stock > 0 {
        transaction.commit().await?;
    } else {
        transaction.rollback().await?;
    }
    Ok((order, job))
}
