//! Commands without executors: a SQL statement, a program, and a host that runs what it announces. They are set in Rust
//! here, and in a worker's file by `[commands.NAME]` and `[hosts.NAME]`.
//!
//! ```sh
//! bugle dev                        # in another terminal: a database; prints DATABASE_URL
//! cargo run --example no_code
//! ```

use anyhow::{Context as _, Result, ensure};
use bugle::config::{CommandConfig, HostConfig, ProgramConfig};
use bugle::{Bugle, NewJob, Shutdown, Worker};
use serde_json::{Value, json};

/// A host in Perl: 60 lines, without any dependency.
const HOST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/perl/host.pl");

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL").context("set DATABASE_URL: \"bugle dev\" prints one")?;
    let shutdown = Shutdown::on_signals()?;
    let worker = Worker::builder(&url)
        .queue("no_code", 2)
        .command("double", CommandConfig::sql("select $1::int * 2"))
        .command("echo", CommandConfig::program(["cat"]))
        .command(
            "report",
            ProgramConfig::new(["sh", "-c", "printf '\"%s\"' \"$MOOD\""]).env("MOOD", "good"),
        )
        .host("perl", HostConfig::program(["perl", HOST]))
        .run(shutdown.clone());
    let story = async {
        let bugle = Bugle::connect(&url)?;
        for (command, payload, expected) in [
            ("double", json!(21), json!(42)),
            ("echo", json!({ "to": "ada" }), json!({ "to": "ada" })),
            ("report", json!(null), json!("good")),
        ] {
            let job = bugle.enqueue(&NewJob::new(command, payload).queue("no_code")).await?;
            let result: Value = job.result().await?;
            println!("{command}: {result}");
            ensure!(result == expected, "{command} returned {result}");
        }
        shutdown.request();
        anyhow::Ok(())
    };
    tokio::try_join!(async { Ok(worker.await?) }, story)?;
    Ok(())
}
