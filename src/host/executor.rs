//! The executor of the commands that hosts announce.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::Shared;
use super::pool::{Answer, Waiting};
use super::readable::unreadable_job;
use super::talk::Talk;
use crate::execute::context::Context;
use crate::execute::executor::{Execution, Executor, Failure, Outcome};
use crate::execute::step::stopped;
use crate::job::HeldJob;
use crate::observe::trace;

/// How long a host may take to answer a job after it was told to stop it.
const GRACE: Duration = Duration::from_secs(3);
/// The delay before a job that no host runs is given back. Without it, the worker would claim the job again at once,
/// before the database knows that the command is no longer served.
const PAUSE: Duration = Duration::from_millis(100);

/// How long jobs of a command with batches are collected, so that those that were claimed together come together.
const LINGER: Duration = Duration::from_millis(2);

/// Hands jobs to hosts.
pub struct HostExecutor {
    pub shared: Arc<Shared>,
    pub timeout: Duration,
}

impl Executor for HostExecutor {
    fn execute(&self, context: Context) -> Execution {
        let shared = self.shared.clone();
        Box::pin(run(shared, context))
    }

    fn default_timeout(&self) -> Option<Duration> {
        Some(self.timeout)
    }
}

async fn run(shared: Arc<Shared>, context: Context) -> Outcome {
    if let Some(why) = unreadable_job(&context) {
        return Outcome::Fail(Failure::new(why).code("bad_payload").not_retryable());
    }
    context.inner.attempt.pause_clock();
    let cancellation = context.cancellation().clone();
    let mut ticket = Ticket::submit(&shared, &context);
    let answer = tokio::select! {
        biased;
        answer = &mut ticket.answer => answer,
        () = cancellation.cancelled() => {
            if !ticket.cancel() {
                return Outcome::Fail(stopped());
            }
            match tokio::time::timeout(GRACE, &mut ticket.answer).await {
                Ok(answer) => answer,
                Err(_) => {
                    let message = "the host did not answer when it was told to stop the job";
                    return Outcome::Fail(Failure::new(message).code("stopped"));
                }
            }
        }
    };
    match answer {
        Ok(Answer::Outcome(outcome)) => outcome,
        Ok(Answer::GivenBack) | Err(_) => {
            tokio::time::sleep(PAUSE).await;
            context.inner.attempt.note_blameless();
            Outcome::Fail(Failure::new("no host runs this command").code("unknown_command"))
        }
    }
}

/// A job that a host is to run. When the ticket is dropped, the job is abandoned.
struct Ticket<'a> {
    shared: &'a Shared,
    context: &'a Context,
    number: u64,
    answer: oneshot::Receiver<Answer>,
}

impl<'a> Ticket<'a> {
    fn submit(shared: &'a Arc<Shared>, context: &'a Context) -> Ticket<'a> {
        let (answer, receiver) = oneshot::channel();
        let traceparent = trace::onward(context);
        let talk = Talk::new(context.clone());
        let mut pool = shared.pool();
        let number = pool.number();
        let is_to_be_gathered = pool.submit(Waiting {
            number,
            command: context.job().command.clone(),
            talk,
            traceparent,
            answer,
        });
        drop(pool);
        if is_to_be_gathered {
            let (shared, command) = (shared.clone(), context.job().command.clone());
            tokio::spawn(async move {
                tokio::time::sleep(LINGER).await;
                shared.pool().gather(&command);
            });
        }
        Ticket {
            shared,
            context,
            number,
            answer: receiver,
        }
    }

    fn held(&self) -> HeldJob {
        self.context.job().held
    }

    /// Tell the process that runs the job to stop it. False if none has the job.
    fn cancel(&self) -> bool {
        let reason = self.context.inner.attempt.stop();
        self.shared.pool().cancel(self.held(), self.number, reason)
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.context.inner.attempt.resume_clock();
        // otherwise there was an answer, or there will be none
        if matches!(self.answer.try_recv(), Err(oneshot::error::TryRecvError::Empty)) {
            self.shared.pool().give_up(self.held(), self.number);
        }
    }
}
