//! `bugle worker`, and [`worker_main`] for programs with their own executors.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser};

use crate::builtin;
use crate::cli::log::{self, LogFlags};
use crate::config::{CommandConfig, Config, Flags, HostConfig, Settings};
use crate::execute::descriptors;
use crate::execute::registry::Registry;
use crate::worker::Worker;
use crate::worker::shutdown::Shutdown;

/// Run a worker: claim jobs from queues and execute them.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    flags: Flags,
    #[command(flatten)]
    log: LogFlags,
}

pub async fn run(arguments: Arguments, registry: Registry) -> Result<ExitCode> {
    let _logging = log::start(&arguments.log)?;
    let file = arguments.flags.config.as_deref().map(Config::from_file).transpose()?;
    let settings = Settings::resolve(arguments.flags, file)?;
    serve(settings, registry, Shutdown::on_signals()?).await
}

/// Run a worker with the commands of the settings and the registry until shutdown. Exit code 0 if every job finished.
pub async fn serve(settings: Settings, registry: Registry, shutdown: Shutdown) -> Result<ExitCode> {
    check_not_empty(&registry, &settings.commands, &settings.hosts)?;
    descriptors::raise();
    let drained = Worker::new(settings, registry).run(shutdown).await?;
    Ok(if drained.is_clean() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// # Errors
/// If there is nothing to run.
fn check_not_empty(
    registry: &Registry,
    commands: &BTreeMap<String, CommandConfig>,
    hosts: &BTreeMap<String, HostConfig>,
) -> Result<()> {
    if registry.is_empty() && commands.is_empty() && hosts.is_empty() {
        anyhow::bail!(
            "no commands are configured, so this worker has nothing to run\n\
             hint: add a [commands.NAME] section to the file given with --config, for example\n\n    \
             [commands.greet]\n    program = [\"cat\"]"
        );
    }
    Ok(())
}

/// Check the commands of a file as a worker does when it starts.
pub fn check(commands: &BTreeMap<String, CommandConfig>, hosts: &BTreeMap<String, HostConfig>) -> Result<()> {
    let registry = builtin::register(Registry::new(), commands)?;
    check_not_empty(&registry, commands, hosts)
}

/// The `main` of a program with its own executors: same flags, config file, signals and logs as `bugle worker`.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     let registry = bugle::Registry::new()
///         .on("greet", async |_: bugle::Context, name: String| Ok(format!("hello {name}")));
///     bugle::worker_main(registry)
/// }
/// ```
pub fn worker_main<S>(registry: Registry<S>) -> ExitCode {
    #[derive(Parser)]
    #[command(version, about = "Run a worker: claim jobs from queues and execute them.")]
    struct Standalone {
        #[command(flatten)]
        arguments: Arguments,
    }
    let arguments = Standalone::parse().arguments;
    let runtime = tokio::runtime::Runtime::new().expect("an async runtime");
    let registry = Registry::new().merge(registry);
    let code = runtime.block_on(run(arguments, registry)).unwrap_or_else(|error| {
        eprintln!("error: {}", super::message(&error));
        ExitCode::FAILURE
    });
    // executors that block a thread must not keep the process alive
    runtime.shutdown_background();
    code
}
