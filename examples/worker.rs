//! A worker of your own: a type of job, what its executors share, and the result.
//!
//! ```sh
//! bugle dev                        # in another terminal: a database; prints DATABASE_URL
//! cargo run --example worker
//! ```

use anyhow::{Context as _, Result, ensure};
use bugle::{Bugle, Failure, Job, NewJob, Shutdown, Worker};
use serde::{Deserialize, Serialize};

/// The payload, the command and the defaults of such jobs.
#[derive(Serialize, Deserialize)]
struct SendMail {
    to: String,
}

impl Job for SendMail {
    const COMMAND: &'static str = "send_mail";

    fn defaults(&self, job: NewJob) -> NewJob {
        job.queue("mail").max_attempts(5)
    }
}

/// What all executors share.
struct Shop {
    address: String,
}

async fn send_mail(context: bugle::Context<Shop>, mail: SendMail) -> Result<String, Failure> {
    if !mail.to.contains('@') {
        return Err(Failure::new("no such address").code("bad_address").not_retryable());
    }
    Ok(format!("from {} to {}", context.state().address, mail.to))
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL").context("set DATABASE_URL: \"bugle dev\" prints one")?;
    let shutdown = Shutdown::on_signals()?;
    let shop = Shop {
        address: "shop@example.org".into(),
    };
    let worker = Worker::builder(&url)
        .queue("mail", 4)
        .state(shop)
        .job(send_mail)
        .run(shutdown.clone());
    let story = async {
        let bugle = Bugle::connect(&url)?;
        let mail = bugle
            .enqueue(&SendMail {
                to: "ada@example.org".into(),
            })
            .await?;
        let sent: String = mail.result().await?;
        println!("job {} is completed: {sent}", mail.id());

        let urgent = SendMail { to: "nobody".into() }.to_job().priority(-10);
        let error = bugle.enqueue(urgent).await?.result::<String>().await.unwrap_err();
        println!("the other one failed: {error}");
        ensure!(
            error.to_string().contains("no such address"),
            "it failed for another reason"
        );
        shutdown.request();
        anyhow::Ok(())
    };
    tokio::try_join!(async { Ok(worker.await?) }, story)?;
    Ok(())
}
