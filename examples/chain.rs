//! A chain: one job of three steps. Each is stored as it ends; one that fails is tried again by itself.
//!
//! ```sh
//! bugle dev                        # in another terminal: a database; prints DATABASE_URL
//! cargo run --example chain
//! ```

use anyhow::{Context as _, Result, ensure};
use bugle::{Bugle, Context, Failure, NewJob, Registry, Shutdown, Worker};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// What `fetch` is given: the payload of the job.
#[derive(Deserialize)]
struct Import {
    shop: i64,
}

/// What `convert` is given: the payload, and the output of `fetch`.
#[derive(Deserialize)]
struct Fetched {
    shop: i64,
    prices: Vec<f64>,
}

/// What `upload` is given: the outputs of all steps before it.
#[derive(Deserialize)]
struct Converted {
    shop: i64,
    cents: Vec<i64>,
}

fn steps() -> Registry {
    Registry::new()
        .on("fetch", async |_: Context, import: Import| {
            println!("fetch: the prices of shop {}", import.shop);
            Ok(json!({ "prices": [1.5, 2.25] }))
        })
        .on("convert", async |context: Context, fetched: Fetched| {
            let attempt = context.position().map_or(1, |at| at.attempt);
            println!(
                "convert: {} prices of shop {}, attempt {attempt}",
                fetched.prices.len(),
                fetched.shop
            );
            if attempt == 1 {
                // without retry_after: after 1 second, then 2, then 4, then the job has failed
                return Err(Failure::new("the rates are not there yet").retry_after(Duration::from_millis(100)));
            }
            let cents: Vec<i64> = fetched
                .prices
                .iter()
                .map(|price| (price * 100.0).round() as i64)
                .collect();
            Ok(json!({ "cents": cents }))
        })
        .on("upload", async |_: Context, converted: Converted| {
            println!("upload: {:?} to shop {}", converted.cents, converted.shop);
            Ok(json!({ "uploaded": converted.cents.len() }))
        })
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL").context("set DATABASE_URL: \"bugle dev\" prints one")?;
    let shutdown = Shutdown::on_signals()?;
    let worker = Worker::builder(&url).registry(steps()).run(shutdown.clone());
    let story = async {
        import(&url).await?;
        shutdown.request();
        anyhow::Ok(())
    };
    tokio::try_join!(async { Ok(worker.await?) }, story)?;
    Ok(())
}

async fn import(url: &str) -> Result<()> {
    let bugle = Bugle::connect(url)?;
    let job = NewJob::new("import_prices", json!({ "shop": 7 })).steps(["fetch", "convert", "upload"]);
    let job = bugle.enqueue(&job).await?;
    let result: Value = job.result().await?;
    println!("job {} is completed: {result}", job.id());
    ensure!(result["uploaded"] == 2, "two prices were to be uploaded");

    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    let steps = client
        .query(
            "select name, state, attempts from bugle.steps where job = $1 order by position",
            &[&job.id()],
        )
        .await?;
    let steps: Vec<(String, String, i32)> = steps.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    println!("{steps:?}");
    let done = |name: &str, attempts| (name.to_string(), "done".to_string(), attempts);
    ensure!(
        steps == [done("fetch", 1), done("convert", 2), done("upload", 1)],
        "only convert was to be tried again"
    );
    Ok(())
}
