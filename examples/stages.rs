//! Stages: code around executors, attached by a pattern of command names. A → B → executor → B → A.
//!
//! ```sh
//! bugle dev                        # in another terminal: a database; prints DATABASE_URL
//! cargo run --example stages
//! ```

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bugle::{Bugle, Context, Execution, Failure, NewJob, Next, Outcome, Registry, Shutdown, Stage, Worker};
use serde_json::{Value, json};

/// Says when a job begins and ends. `bugle::stage::Log` and `bugle::stage::Time` are such, ready to use.
struct Say(&'static str);

impl Stage for Say {
    fn around(&self, context: Context, next: Next) -> Execution {
        let name = self.0;
        Box::pin(async move {
            println!("→ {name}, attempt {}", context.attempt());
            let outcome = next.run(context).await;
            println!("← {name}");
            outcome
        })
    }
}

/// Changes what the executor is given: a name in the payload is looked up, and replaced by an address.
struct LookUp;

impl Stage for LookUp {
    fn around(&self, context: Context, next: Next) -> Execution {
        Box::pin(async move {
            let given = context.payload_as::<Value>();
            let changed = given.and_then(|given| {
                let name = given["to"].as_str().unwrap_or("nobody").to_lowercase();
                context.with_payload(json!({ "to": format!("{name}@example.org") }))
            });
            match changed {
                Ok(context) => next.run(context).await,
                Err(failure) => Outcome::Fail(failure), // the executor is not run at all
            }
        })
    }
}

/// Decides by the result: "later" is a failure, so that it is tried again.
struct NotYet;

impl Stage for NotYet {
    fn around(&self, context: Context, next: Next) -> Execution {
        Box::pin(async move {
            match next.run(context).await {
                Outcome::Complete(Some(result)) if result.get().contains("later") => {
                    Outcome::Fail(Failure::new("not yet").retry_after(Duration::from_millis(50)))
                }
                outcome => outcome,
            }
        })
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL").context("set DATABASE_URL: \"bugle dev\" prints one")?;
    let shutdown = Shutdown::on_signals()?;
    let registry = Registry::new()
        .stage("*", Say("everything"))
        .stage("mail.*", Say("mail"))
        .stage("mail.*", LookUp)
        .stage("mail.send", NotYet)
        .on("mail.send", async |context: Context, mail: Value| {
            println!("  send to {}", mail["to"]);
            Ok(json!({ "to": mail["to"], "answer": if context.attempt() == 1 { "later" } else { "taken" } }))
        });
    let worker = Worker::builder(&url).registry(registry).run(shutdown.clone());
    let story = async {
        let bugle = Bugle::connect(&url)?;
        let job = bugle.enqueue(&NewJob::new("mail.send", json!({ "to": "Ada" }))).await?;
        let result: Value = job.result().await?;
        println!("job {} is completed: {result}", job.id());
        ensure!(
            result == json!({ "to": "ada@example.org", "answer": "taken" }),
            "the stages did not do their part"
        );
        shutdown.request();
        anyhow::Ok(())
    };
    tokio::try_join!(async { Ok(worker.await?) }, story)?;
    Ok(())
}
