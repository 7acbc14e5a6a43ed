//! `bugle demo`: a guided demonstration on a temporary server, with real worker processes, one of which is killed.
//!
//! There are two processes: this one owns the server and receives signals; the demo itself runs in another process, in
//! a process group with its workers. If either exits, the other cleans up.

mod checks;
mod stage;
mod story;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::getppid;
use tokio::signal::unix::{SignalKind, signal};

use super::with_postgres;
use crate::cli::output;
use stage::Stage;

/// `bugle demo`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Major version of Postgres to use. If DATABASE_URL is set, the demo runs in a temporary database on that server
    #[arg(long, value_name = "MAJOR")]
    pg: Option<u32>,
}

pub(super) fn run(arguments: Arguments) -> Result<ExitCode> {
    let bugle = std::env::current_exe().context("cannot determine the path of this program")?;
    with_postgres::run(with_postgres::Arguments {
        pg: arguments.pg,
        durable: false,
        command: vec![bugle.into_os_string(), OsString::from("demo-story")],
    })
}

/// The demo itself, on the server that `run` provides.
pub(super) async fn story() -> Result<ExitCode> {
    let started = Instant::now();
    let server =
        std::env::var("BUGLE_SERVER_URL").context("BUGLE_SERVER_URL is not set; run \"bugle demo\" instead")?;
    // before anything is created that would have to be removed
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
                "\nAll {checks} promises were kept, in {took:.1} s. Nothing is left behind.\n{}",
                how_to_open()
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

/// The same to look at and to press buttons.
fn how_to_open() -> String {
    let program = std::env::args_os().next().unwrap_or_else(|| "bugle".into());
    match cfg!(feature = "web") {
        true => format!(
            "\nTo see a shop at work in a browser:\n\n  {} web --demo\n",
            output::one_line(&program.to_string_lossy())
        ),
        false => String::new(),
    }
}

/// Resolves on a termination signal, or when the process that owns the server has exited.
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
