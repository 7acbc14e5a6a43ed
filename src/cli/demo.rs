//! `bugle demo`: the main story, told on a server of its own, with real workers that are really killed.
//!
//! Two processes: this one owns the server and is what gets killed; the story runs beside it, in a process group with
//! its workers. Whichever of them ends, the other cleans up.

mod checks;
mod stage;
mod story;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::getppid;
use tokio::signal::unix::{SignalKind, signal};

use super::{output, with_postgres};
use stage::Stage;

/// Where to play it.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Take this major version of Postgres; with DATABASE_URL set, that server is used, and a database of its own there
    #[arg(long, value_name = "MAJOR")]
    pg: Option<u32>,
}

pub(super) fn run(arguments: Arguments) -> Result<ExitCode> {
    let bugle = std::env::current_exe().context("could not tell which program is running")?;
    with_postgres::run(with_postgres::Arguments {
        pg: arguments.pg,
        durable: false,
        command: vec![bugle.into_os_string(), OsString::from("demo-story")],
    })
}

/// The story itself, on the server that `run` provides.
pub(super) async fn story() -> Result<ExitCode> {
    let started = Instant::now();
    let server = std::env::var("BUGLE_SERVER_URL").context("run it as: bugle demo")?;
    // before anything is set up that would have to be taken down
    let interrupted = interruption()?;
    let mut stage = Stage::new(&server)?;
    let told = tokio::select! {
        told = story::tell(&mut stage) => Some(told),
        () = interrupted => None,
    };
    if let Some(Err(_)) = told {
        eprintln!("\n{}", stage.worker_logs());
    }
    stage.strike().await;
    match told {
        Some(Ok(checks)) => {
            let took = started.elapsed().as_secs_f64();
            output::print(&format!(
                "\nAll {checks} promises were kept, in {took:.1} s. Nothing is left behind.\n"
            ))?;
            Ok(ExitCode::SUCCESS)
        }
        Some(Err(error)) => Err(error),
        None => {
            eprintln!("\nInterrupted. Nothing is left behind.");
            Ok(ExitCode::from(130))
        }
    }
}

/// Resolves when this is asked to end, or when the process that owns the server is gone.
fn interruption() -> Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let owner = getppid();
    let orphaned = async move {
        while getppid() == owner {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
            () = orphaned => {}
        }
    })
}
