//! `bugle with-postgres -- COMMAND`: run a command with a temporary Postgres server.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::signal::unix::{SignalKind, signal};

use crate::private_postgres::{GUARDED_BY, Options, PrivatePostgres};

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Major version of Postgres to use.
    #[arg(long, value_name = "MAJOR")]
    pub(super) pg: Option<u32>,

    /// Make commits durable (fsync on), as on a production server.
    #[arg(long)]
    pub(super) durable: bool,

    /// The command; it gets the server's URL in BUGLE_SERVER_URL.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub(super) command: Vec<OsString>,
}

pub(super) fn run(arguments: Arguments) -> Result<ExitCode> {
    let mut command = Command::new(&arguments.command[0]);
    command.args(&arguments.command[1..]);
    let mut server = match std::env::var_os("DATABASE_URL") {
        Some(url) => {
            if let Some(version) = arguments.pg {
                eprintln!("DATABASE_URL is set, so that server is used and --pg {version} is ignored.");
            }
            command.env("BUGLE_SERVER_URL", url);
            None
        }
        None => {
            let options = Options {
                version: arguments.pg,
                durable: arguments.durable,
                ..Options::of_bugle()?
            };
            let server = PrivatePostgres::start(&options)?;
            command.env("BUGLE_SERVER_URL", server.url("postgres"));
            command.env(GUARDED_BY, server.host());
            // servers started by the command use the same version
            command.env("BUGLE_PG_BIN", &server.binaries().dir);
            Some(server)
        }
    };
    let status = run_guarded(command, server.as_mut())?;
    drop(server);
    Ok(exit_code(status))
}

/// Run the command in its own process group, so that it and its descendants can be terminated: by the signals that
/// are passed on, by the guardian if this process is killed, and at the end if the command left processes behind.
fn run_guarded(mut command: Command, mut server: Option<&mut PrivatePostgres>) -> Result<ExitStatus> {
    command.process_group(0);
    if std::io::stdin().is_terminal() {
        // the terminal stops a background process that reads from it
        command.stdin(Stdio::null());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = tokio::process::Command::from(command)
            .spawn()
            .with_context(|| format!("could not run {name}"))?;
        let group = child
            .id()
            .and_then(|id| Pid::from_raw(id.cast_signed()))
            .context("the command has no id")?;
        if let Some(server) = &mut server {
            server.end_with_owner(Some(group.as_raw_nonzero().get()))?;
        }
        let status = loop {
            let passed_on = tokio::select! {
                status = child.wait() => break status?,
                _ = interrupt.recv() => Signal::INT,
                _ = terminate.recv() => Signal::TERM,
                _ = hangup.recv() => Signal::HUP,
            };
            let _ = kill_process_group(group, passed_on);
        };
        let _ = kill_process_group(group, Signal::KILL);
        if let Some(server) = &mut server {
            server.end_with_owner(None)?;
        }
        Ok(status)
    })
}

/// The exit code as a shell reports it: 128 plus the signal for a command that was killed.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
