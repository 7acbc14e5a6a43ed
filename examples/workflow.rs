//! A workflow: two jobs start when the first is done, side by side, and a last one when both are.
//!
//! ```sh
//! bugle dev                        # in another terminal: a database; prints DATABASE_URL
//! cargo run --example workflow
//! ```

use anyhow::{Context as _, Result, ensure};
use bugle::{Bugle, Context, Failure, NewJob, Registry, Shutdown, State, Worker, Workflow};

fn commands() -> Registry {
    Registry::new()
        .on("fetch", async |_: Context, day: String| {
            println!("fetch: the pages of {day}");
            Ok(["a cup of tea", "two cups"])
        })
        .on("count", async |context: Context, (): ()| {
            // what it comes after, with what came of it
            let fetched = &context.dependencies().await?[0];
            let pages: Vec<String> = fetched.result()?;
            let words: usize = pages.iter().map(|page| page.split(' ').count()).sum();
            println!("count: {words} words");
            Ok(words)
        })
        .on("index", async |_: Context, (): ()| {
            println!("index: there is no room for it");
            Err::<(), _>(Failure::new("the disk is full").not_retryable())
        })
        .on("report", async |context: Context, (): ()| {
            let mut report = String::new();
            for needed in context.dependencies().await? {
                let name = needed.name.as_deref().unwrap_or("?");
                report += &match needed.is_completed() {
                    true => format!("{name}: {}. ", needed.result::<usize>()?),
                    false => format!("{name}: {}. ", needed.error.as_deref().unwrap_or("failed")),
                };
            }
            Ok(report.trim_end().to_string())
        })
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL").context("set DATABASE_URL: \"bugle dev\" prints one")?;
    let shutdown = Shutdown::on_signals()?;
    let worker = Worker::builder(&url).registry(commands()).run(shutdown.clone());
    let story = async {
        report(&Bugle::connect(&url)?).await?;
        shutdown.request();
        anyhow::Ok(())
    };
    tokio::try_join!(async { Ok(worker.await?) }, story)?;
    Ok(())
}

async fn report(bugle: &Bugle) -> Result<()> {
    let workflow = Workflow::new()
        .job("fetch", NewJob::new("fetch", "2026-11-16"))
        .job("count", NewJob::new("count", ()).after("fetch"))
        .job("index", NewJob::new("index", ()).after("fetch"))
        // if count fails, so does the report; if index does, it is written all the same
        .job("report", NewJob::new("report", ()).after("count").after_end_of("index"));
    let jobs = bugle.enqueue_workflow(&workflow).await?; // all of them, or none

    let report: String = jobs["report"].result().await?;
    println!("job {} is completed: {report}", jobs["report"].id());
    ensure!(
        report == "count: 6. index: the disk is full.",
        "the report says something else"
    );
    let index = jobs["index"].wait().await?;
    ensure!(index.state == Some(State::Failed), "index was to fail");
    Ok(())
}
