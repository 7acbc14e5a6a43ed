//! Stages: middleware around executors, A → B → executor → B → A, attached by a pattern of command names.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use tracing::Instrument;

use crate::execute::context::Context;
use crate::execute::executor::{Execution, Executor, Outcome};

/// Middleware around executors. It sees the job before and the outcome after, and may change both.
///
/// ```
/// use bugle::{Context, Execution, Failure, Next, Outcome, Registry, Stage};
///
/// /// The result "not yet" is a failure, so that the job is retried.
/// struct NotYet;
///
/// impl Stage for NotYet {
///     fn around(&self, context: Context, next: Next) -> Execution {
///         Box::pin(async move {
///             match next.run(context).await {
///                 Outcome::Complete(Some(result)) if result.get() == "\"not yet\"" => {
///                     Outcome::Fail(Failure::new("not yet").code("not_yet"))
///                 }
///                 outcome => outcome,
///             }
///         })
///     }
/// }
///
/// let registry = Registry::new()
///     .stage("report.*", NotYet)
///     .on("report.build", async |_: Context, _: serde_json::Value| Ok("not yet"));
/// ```
pub trait Stage: Send + Sync + 'static {
    /// Run the stage: call `next.run(context)` once, several times, or not at all.
    fn around(&self, context: Context, next: Next) -> Execution;
}

/// The stages that are left, and the executor. Cheap to clone, so that a stage can run it more than once.
#[derive(Clone)]
pub struct Next {
    stages: VecDeque<Arc<dyn Stage>>,
    executor: Arc<dyn Executor>,
}

impl Next {
    pub(crate) fn new(stages: VecDeque<Arc<dyn Stage>>, executor: Arc<dyn Executor>) -> Self {
        Next { stages, executor }
    }

    /// Run the next stage, or the executor.
    pub fn run(mut self, context: Context) -> Execution {
        match self.stages.pop_front() {
            Some(stage) => stage.around(context, self),
            None => self.executor.execute(context),
        }
    }
}

/// Whether a command's name fits a pattern: `*` stands for any characters, everything else for itself.
pub(crate) fn fits(pattern: &str, command: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = command.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.len() >= last.len() && rest.ends_with(last)
}

/// A tracing span around each attempt, with the job's id, claim, attempt, command and queue.
pub struct Span;

impl Stage for Span {
    fn around(&self, context: Context, next: Next) -> Execution {
        let job = context.job();
        let span = tracing::info_span!(
            "job",
            job = job.held.id,
            claim = job.held.claim,
            attempt = job.attempt,
            command = job.command,
            queue = job.queue
        );
        Box::pin(next.run(context).instrument(span))
    }
}

/// Logs when an attempt starts and ends, with its outcome and duration; never its payload or result.
pub struct Log;

impl Stage for Log {
    fn around(&self, context: Context, next: Next) -> Execution {
        Box::pin(async move {
            let (id, attempt, command) = (context.id(), context.attempt(), context.job().command.clone());
            tracing::info!(event = "attempt_start", job = id, attempt, command);
            let started = Instant::now();
            let outcome = next.run(context).await;
            let took_ms = started.elapsed().as_millis() as u64;
            tracing::info!(
                event = "attempt_end",
                job = id,
                attempt,
                command,
                outcome = name(&outcome),
                took_ms
            );
            outcome
        })
    }
}

/// Calls a function with the command and the duration of each attempt: for metrics of your own.
pub struct Time<F>(pub F);

impl<F: Fn(&str, std::time::Duration) + Send + Sync + Clone + 'static> Stage for Time<F> {
    fn around(&self, context: Context, next: Next) -> Execution {
        let tell = self.0.clone();
        Box::pin(async move {
            let (command, started) = (context.job().command.clone(), Instant::now());
            let outcome = next.run(context).await;
            tell(&command, started.elapsed());
            outcome
        })
    }
}

fn name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Complete(_) | Outcome::Settled => "complete",
        Outcome::Fail(_) => "fail",
        Outcome::Snooze(_) => "snooze",
        Outcome::Wait { .. } => "wait",
        Outcome::Skip(_) => "skip",
        Outcome::Cancelled(_) => "cancel",
    }
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn a_pattern_fits_whole_names_only() {
        for (pattern, command, expected) in [
            ("mail.*", "mail.send", true),
            ("mail.*", "mail.", true),
            ("mail.*", "email.send", false),
            ("mail", "mail", true),
            ("mail", "mails", false),
            ("*", "anything", true),
            ("*.send", "mail.send", true),
            ("*.send", "mail.send.now", false),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("a*a", "a", false),
            ("", "x", false),
        ] {
            assert_eq!(fits(pattern, command), expected, "{pattern} {command}");
        }
    }
}
