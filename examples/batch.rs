//! A batch executor: one call for up to 500 jobs of a command, and an outcome for each.
//!
//! ```sh
//! bugle dev                        # in another terminal: a database; prints DATABASE_URL
//! cargo run --example batch
//! ```

use std::collections::BTreeMap;
use std::sync::Mutex;

use anyhow::{Context as _, Result, ensure};
use bugle::{Batch, Bugle, Failure, Job, NewJob, Settings, Shutdown, Worker};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct IndexPage {
    url: String,
    words: usize,
}

impl Job for IndexPage {
    const COMMAND: &'static str = "index_page";

    fn defaults(&self, job: NewJob) -> NewJob {
        job.queue("index").max_attempts(3)
    }
}

/// A search index that takes many pages in one request, and says of each whether it took it.
#[derive(Default)]
struct Index {
    pages: Mutex<BTreeMap<String, usize>>,
    requests: Mutex<usize>,
}

impl Index {
    async fn add(&self, pages: &[&IndexPage]) -> std::io::Result<Vec<Result<usize, String>>> {
        *self.requests.lock().unwrap() += 1;
        let mut known = self.pages.lock().unwrap();
        let add = |page: &&IndexPage| match page.words {
            0 => Err(format!("{} is empty", page.url)),
            words => {
                known.insert(page.url.clone(), words);
                Ok(known.len())
            }
        };
        Ok(pages.iter().map(add).collect())
    }
}

async fn index_pages(batch: Batch<IndexPage, Index>) -> Result<(), Failure> {
    let pages: Vec<&IndexPage> = batch.payloads().collect();
    // an error here is the failure of all of them, and each is retried
    let answers = batch.state().add(&pages).await?;
    println!("one request for {} pages", batch.len());
    for (job, answer) in batch.into_iter().zip(answers) {
        match answer {
            Ok(place) => job.complete(place),
            Err(why) => job.fail(Failure::new(why).code("empty").not_retryable()),
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL").context("set DATABASE_URL: \"bugle dev\" prints one")?;
    let bugle = Bugle::connect(&url)?;
    let mut jobs = Vec::new();
    for number in 0..20 {
        let page = IndexPage {
            url: format!("/page/{number}"),
            words: number * 100,
        };
        jobs.push(bugle.enqueue(&page).await?);
    }

    let shutdown = Shutdown::on_signals()?;
    let worker = Worker::builder(Settings::new(&url).queue("index", 1000))
        .state(Index::default())
        .job_many(500, index_pages)
        .run(shutdown.clone());
    let story = async {
        let (mut indexed, mut rejected) = (0, 0);
        for job in jobs {
            match job.result::<usize>().await {
                Ok(_) => indexed += 1,
                Err(error) => {
                    println!("{error}");
                    rejected += 1;
                }
            }
        }
        println!("{indexed} pages are indexed, {rejected} was rejected");
        ensure!((indexed, rejected) == (19, 1), "page 0 is empty, and the only one");
        shutdown.request();
        anyhow::Ok(())
    };
    tokio::try_join!(async { Ok(worker.await?) }, story)?;
    Ok(())
}
