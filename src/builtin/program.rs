//! Commands executed by a program: the payload is its stdin, the result its stdout, the error message its stderr, and
//! the exit code decides about success and retries.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::pin::pin;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tokio::io::AsyncWriteExt;
use tokio::process::{ChildStdin, Command};

use super::group::{Group, Pipes};
use super::output::{self, Tail, TooLarge};
use super::{MOST_RESULT, result_from, stopped, surroundings};
use crate::config::{Cwd, Environment, ProgramConfig};
use crate::error::Result;
use crate::execute::context::Context;
use crate::execute::executor::{Execution, Executor, Failure, Outcome};
use crate::execute::shortage::Shortage;
use crate::host::mailbox::Mailbox;
use crate::observe::trace;

/// How long to keep reading after the program has exited. Only a process that left its group can still hold the pipes.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Runs a program.
pub struct Program {
    setup: Arc<Setup>,
    timeout: Duration,
}

struct Setup {
    config: ProgramConfig,
    /// The variables that are the same for all jobs.
    env: Vec<(OsString, OsString)>,
}

impl Program {
    pub fn new(config: &ProgramConfig, timeout: Duration, environment: Environment) -> Result<Program> {
        let setup = Setup {
            config: config.clone(),
            env: surroundings::variables(&config.env, environment)?,
        };
        Ok(Program {
            setup: Arc::new(setup),
            timeout,
        })
    }
}

impl Executor for Program {
    fn execute(&self, context: Context) -> Execution {
        let setup = self.setup.clone();
        Box::pin(async move {
            match setup.run(&context).await {
                Ok(outcome) => outcome,
                Err(failure) => Outcome::Fail(failure),
            }
        })
    }

    fn default_timeout(&self) -> Option<Duration> {
        Some(self.timeout)
    }
}

impl Setup {
    async fn run(&self, context: &Context) -> Result<Outcome, Failure> {
        let folder = context.workspace()?.to_path_buf();
        let not_started = |error: io::Error| {
            context.note_shortage(Shortage::at_start(&error));
            self.not_started(&error)
        };
        let mailbox = match Mailbox::open(context) {
            Ok(mailbox) => Some(mailbox),
            Err(error) if Shortage::at_start(&error).is_some() => return Err(not_started(error)),
            // a program that has none can still run: most say nothing
            Err(error) => {
                tracing::debug!(event = "mailbox", job = context.id(), %error);
                None
            }
        };
        let started = self
            .command(context, &folder, mailbox.as_ref())
            .and_then(|mut command| Group::spawn(&mut command, &context.inner.workspaces));
        let (mut group, pipes) = started.map_err(not_started)?;
        let (mut stdout, mut stderr) = (Vec::new(), Tail::default());
        let ended = self
            .attend(context, &mut group, pipes, &mut stdout, &mut stderr)
            .await?;
        if let Some(mailbox) = mailbox
            && let Some(outcome) = mailbox.outcome().await
        {
            return Ok(outcome);
        }
        match ended {
            Ended::ByItself(status) => self.verdict(status, &stdout, &stderr),
            // it was asked to stop, but had just finished
            Ended::Stopped(status) if status.success() => self.verdict(status, &stdout, &stderr),
            Ended::Stopped(_) => {
                let stopped = stopped();
                Err(Failure {
                    message: stderr.below(stopped.message),
                    ..stopped
                })
            }
            Ended::Flooded => {
                let message = format!(
                    "the program wrote more than {MOST_RESULT} bytes to stdout and was killed\n\
                     hint: Stdout is for the result. Write logs to stderr and large results elsewhere."
                );
                Err(Failure::new(stderr.below(message))
                    .code("output_too_large")
                    .not_retryable())
            }
        }
    }

    fn command(&self, context: &Context, folder: &Path, mailbox: Option<&Mailbox>) -> io::Result<Command> {
        let job = context.job();
        let program = &self.config.argv[0];
        let mut command = Command::new(surroundings::find(program, &self.env)?);
        command
            .arg0(program)
            .args(&self.config.argv[1..])
            .env_clear()
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .env("BUGLE_JOB_ID", job.held.id.to_string())
            .env("BUGLE_ATTEMPT", job.attempt.to_string())
            .env("BUGLE_COMMAND", &job.command)
            .env("BUGLE_QUEUE", &job.queue)
            .env("BUGLE_WORKDIR", folder)
            .envs(mailbox.map(|mailbox| ("BUGLE_JOB", mailbox.path())))
            .envs(trace::onward(context).map(|parent| ("TRACEPARENT", parent)));
        if let Some(at) = context.position() {
            command
                .env("BUGLE_CHAIN", &at.chain)
                .env("BUGLE_STEP", at.step.to_string());
        }
        match &self.config.cwd {
            Cwd::Worker => {}
            Cwd::Workspace => drop(command.current_dir(folder)),
            Cwd::Folder(folder) => drop(command.current_dir(folder)),
        }
        Ok(command)
    }

    /// Wait until the program has exited, by itself or because it was stopped.
    async fn attend(
        &self,
        context: &Context,
        group: &mut Group,
        pipes: Pipes,
        stdout: &mut Vec<u8>,
        stderr: &mut Tail,
    ) -> io::Result<Ended> {
        let mut life = pin!(async {
            tokio::select! {
                status = group.ended() => status.map(Ended::ByItself),
                () = context.cancellation().cancelled() => group.stop(self.config.kill_after).await.map(Ended::Stopped),
            }
        });
        let mut feeding = pin!(feed(pipes.stdin, context.job().payload.get().as_bytes()));
        // too much output ends the reading at once, even if stderr stays open
        let mut reading = pin!(async {
            let tail = async {
                output::read_tail(pipes.stderr, stderr).await;
                Ok(())
            };
            tokio::try_join!(output::read_result(pipes.stdout, stdout), tail).map(drop)
        });
        let (mut fed, mut read) = (false, false);
        let ended = loop {
            tokio::select! {
                ended = &mut life => break ended?,
                () = &mut feeding, if !fed => fed = true,
                result = &mut reading, if !read => match result {
                    Ok(()) => read = true,
                    Err(TooLarge) => return Ok(Ended::Flooded),
                },
            }
        };
        if !read && let Ok(Err(TooLarge)) = tokio::time::timeout(LAST_WORDS, reading).await {
            return Ok(Ended::Flooded);
        }
        Ok(ended)
    }

    fn verdict(&self, status: ExitStatus, stdout: &[u8], stderr: &Tail) -> Result<Outcome, Failure> {
        if status.success() {
            return result_from(stdout).map(Outcome::Complete).map_err(|error| {
                let message = format!(
                    "the program succeeded, but its stdout is not a valid result: {error}\n\
                     hint: Write one JSON value to stdout, or nothing. Write logs to stderr."
                );
                Failure::new(stderr.below(message)).code("bad_result").not_retryable()
            });
        }
        let Some(code) = status.code() else {
            let signal = status.signal().unwrap_or_default();
            let message = stderr.below(format!("the program was killed by signal {signal}"));
            return Err(Failure::new(message).code(format!("signal_{signal}")));
        };
        let message = stderr.below(format!("the program exited with code {code}"));
        if self.config.skip_exit_codes.contains(&code) {
            return Ok(Outcome::Skip(message));
        }
        let failure = Failure::new(message).code(format!("exit_{code}"));
        match self.config.no_retry_exit_codes.contains(&code) {
            true => Err(failure.not_retryable()),
            false => Err(failure),
        }
    }

    fn not_started(&self, error: &io::Error) -> Failure {
        let program = &self.config.argv[0];
        match (&self.config.cwd, error.kind()) {
            (Cwd::Folder(folder), _) if !folder.is_dir() => Failure::new(format!(
                "the working directory {} of the program does not exist",
                folder.display()
            ))
            .code("not_found"),
            (_, ErrorKind::PermissionDenied) if program.contains('/') => Failure::new(format!(
                "the program {program:?} is not executable: {error}\n\
                 hint: Make it executable for the worker's user: chmod +x {program}"
            ))
            .code("not_started"),
            _ if error.raw_os_error() == Some(Errno::NOEXEC.raw_os_error()) => Failure::new(format!(
                "the program {program:?} cannot be started: {error}\n\
                 hint: A script must start with an interpreter line, such as #!/bin/sh."
            ))
            .code("not_started"),
            // the system also reports "permission denied" if a directory of PATH cannot be searched
            (_, ErrorKind::NotFound | ErrorKind::PermissionDenied) => Failure::new(format!(
                "the program {program:?} was not found or is not executable: {error}\n\
                 hint: Install it where the worker runs, or give its full path in the worker's configuration file."
            ))
            .code("not_found"),
            _ => Failure::new(format!("the program {program:?} cannot be started: {error}")).code("not_started"),
        }
    }
}

enum Ended {
    ByItself(ExitStatus),
    Stopped(ExitStatus),
    Flooded,
}

/// A program need not read its stdin.
async fn feed(mut stdin: ChildStdin, payload: &[u8]) {
    let _ = stdin.write_all(payload).await;
}

#[cfg(all(test, feature = "cli"))]
mod tests;
