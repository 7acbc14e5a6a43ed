//! Chains: the steps of one job, run in order in this worker, each persisted before the next one starts.
//!
//! The database decides which step is next, with the outputs of the previous ones, its time limit and its retry delay.
//! Whatever happens here, the next worker gets the same answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use serde_json::value::{RawValue, to_raw_value};

use crate::db::calls::{self, NextStep, Try};
use crate::execute::context::{Context, Inner, Settled};
use crate::execute::executor::{Failure, Outcome, outcome_of_condition};
use crate::execute::registry::Registry;
use crate::execute::step::{Unheard, said};
use crate::job::ChainPosition;
use crate::observe::{StepEnding, Tallies};
use crate::worker::crew::limited;

/// Run the remaining steps of a chain.
pub(crate) async fn run(registry: &Registry, tallies: &Tallies, context: Context) -> Outcome {
    match go_through(registry, tallies, &context).await {
        Ok(outcome) => outcome,
        Err(Unheard::Fenced(verdict)) => {
            let held = context.job().held;
            tracing::warn!(
                event = "fenced",
                job = held.id,
                claim = held.claim,
                verdict,
                "another worker continues the chain"
            );
            context.note_settled(Some(Settled::Lost));
            Outcome::Settled
        }
        Err(unheard) => Outcome::Fail(unheard.into()),
    }
}

async fn go_through(registry: &Registry, tallies: &Tallies, chain: &Context) -> Result<Outcome, Unheard> {
    let mut tries = 1;
    let mut next = start(chain, tries).await?;
    while let Some(position) = next.position {
        let step = Step::new(chain, &next, position, tries);
        chain.note_shortage(None);
        let started = Instant::now();
        let outcome = step.run(registry, &next).await;
        let took = started.elapsed();
        let count = |how| tallies.step(&step.name, how, took);
        // what the database has replied to a failed try that the executor has committed itself
        let mut reply = None;
        let ended = match outcome {
            Outcome::Complete(output) => {
                let ended = step.finish(output.as_deref(), false).await?;
                if ended.is_ok() {
                    count(StepEnding::Done);
                }
                ended
            }
            Outcome::Skip(why) => {
                let ended = step.finish(to_raw_value(&why).ok().as_deref(), true).await?;
                count(StepEnding::Skipped);
                ended
            }
            Outcome::Settled => match chain.inner.attempt.settled() {
                // the job is no longer held
                Some(Settled::Waiting) => return Ok(Outcome::Settled),
                Some(Settled::Retried(delay)) => {
                    chain.note_settled(None);
                    reply = Some(delay);
                    Err(Outcome::Fail(Failure::of_condition()))
                }
                _ => {
                    let next = step.settled().await?;
                    count(StepEnding::Done);
                    Ok(next)
                }
            },
            outcome => Err(outcome),
        };
        let (new_next, new_tries) = match ended {
            Ok(next) => (next, 1),
            // not the step's fault: the job is given back and continues with this step
            Err(Outcome::Fail(failure)) if chain.inner.attempt.is_blameless() || failure.shortage.is_some() => {
                return Ok(Outcome::Fail(failure));
            }
            Err(Outcome::Fail(failure)) => {
                if !step.is_tried_again(&failure, reply).await? {
                    count(StepEnding::Failed);
                    return Ok(Outcome::Fail(failure));
                }
                count(StepEnding::Retried);
                tries += 1;
                (start(chain, tries).await?, tries)
            }
            // the whole job is snoozed, waits or is cancelled: it continues with this step
            Err(outcome) => return Ok(outcome),
        };
        (next, tries) = (new_next, new_tries);
        if next.position.is_some() {
            chain.note_settled(None);
            if chain.cancellation().is_cancelled() {
                return Err(Unheard::Stopped);
            }
        }
    }
    // the last step has completed the job
    chain.note_settled(Some(Settled::Completed));
    Ok(Outcome::Settled)
}

async fn start(chain: &Context, tries: i32) -> Result<NextStep, Unheard> {
    let (me, held) = (chain.inner.identity, chain.job().held);
    let next = said(chain, |connection| {
        async move { calls::start_step(&connection, me, held, tries).await }.boxed()
    });
    heard(next.await?)
}

/// A repeated call counts as a success; any other verdict means that another worker has the job.
fn heard(next: NextStep) -> Result<NextStep, Unheard> {
    match next.verdict.as_deref() {
        None | Some("repeated") => Ok(next),
        Some(verdict) => Err(Unheard::Fenced(verdict.to_owned())),
    }
}

/// One attempt of one step.
struct Step<'a> {
    chain: &'a Context,
    /// The job as the step sees it.
    context: Context,
    name: String,
    which: Try,
}

impl<'a> Step<'a> {
    fn new(chain: &'a Context, next: &NextStep, position: i32, number: i32) -> Step<'a> {
        let job = chain.job();
        let steps = job.steps.as_deref().unwrap_or_default();
        let name = usize::try_from(position - 1).ok().and_then(|index| steps.get(index));
        let name = name.cloned().unwrap_or_default();
        let mut inner = Inner::clone(&chain.inner);
        inner.position = Some(ChainPosition {
            chain: job.command.clone(),
            step: position,
            steps: steps.len(),
            attempt: number,
        });
        inner.job.command = name.clone();
        inner.job.payload = overlaid(&job.payload, next.context.as_deref());
        inner.outputs = next.context.clone().map(Arc::from);
        // the answer the job was resumed with is for the step that waited for it
        if position != job.step + 1 {
            inner.job.answer = None;
        }
        // its time limit can end before that of the chain
        inner.cancellation = chain.cancellation().child_token();
        Step {
            chain,
            context: Context::new(inner),
            name,
            which: Try { position, number },
        }
    }

    async fn run(&self, registry: &Registry, next: &NextStep) -> Outcome {
        let (Some(way), Some(executor)) = (registry.way_to(&self.name), registry.executor_for(&self.name)) else {
            let failure = Failure::new(format!("no executor is registered for the step {:?}", self.name));
            return Outcome::Fail(failure.code("unknown_command"));
        };
        let limit = next
            .timeout
            .or_else(|| executor.default_timeout())
            .or(next.default_timeout);
        let (id, position) = (self.chain.id(), self.which.position);
        tracing::debug!(
            event = "step_start",
            job = id,
            step = self.name,
            position,
            attempt = self.which.number
        );
        limited(way.run(self.context.clone()), limit, &self.context).await
    }

    /// The next step, or what became of this one: its output can match a condition of its command.
    async fn finish(&self, output: Option<&RawValue>, skipped: bool) -> Result<Result<NextStep, Outcome>, Unheard> {
        let (me, held, which) = (self.chain.inner.identity, self.chain.job().held, self.which);
        // if this is the last step, its completion is committed before this worker knows
        self.chain.note_settled(Some(Settled::Completed));
        let next = said(self.chain, |connection| {
            async move { calls::finish_step(&connection, me, held, which, output, skipped).await }.boxed()
        })
        .await?;
        if let Some(outcome) = next.verdict.as_deref().and_then(outcome_of_condition) {
            self.chain.note_settled(None);
            return Ok(Err(outcome));
        }
        let event = if skipped { "step_skip" } else { "step_complete" };
        tracing::debug!(event, job = held.id, step = self.name, position = self.which.position);
        heard(next).map(Ok)
    }

    /// The executor says that the completion of the step is already committed, with its own writes.
    async fn settled(&self) -> Result<NextStep, Unheard> {
        let next = start(self.chain, 1).await?;
        if next.position == Some(self.which.position) {
            let message = format!(
                "step {:?} reported that its completion was committed, but it was not",
                self.name
            );
            return Err(Unheard::Refused(crate::error::Error::new(message)));
        }
        tracing::debug!(
            event = "step_complete",
            job = self.chain.id(),
            step = self.name,
            position = self.which.position
        );
        Ok(next)
    }

    /// Whether this worker retries the step; waits for the delay. The failure is reported, unless there is a reply.
    async fn is_tried_again(&self, failure: &Failure, reply: Option<Option<Duration>>) -> Result<bool, Unheard> {
        // not a failure of the step if the whole chain was told to stop
        if self.chain.cancellation().is_cancelled() {
            return Ok(false);
        }
        let (me, held, which) = (self.chain.inner.identity, self.chain.job().held, self.which);
        let (verdict, delay) = match reply {
            Some(delay) => (None, delay),
            None => {
                said(self.chain, |connection| {
                    async move { calls::retry_step(&connection, me, held, which, failure).await }.boxed()
                })
                .await?
            }
        };
        if let Some(verdict) = verdict {
            return Err(Unheard::Fenced(verdict));
        }
        let (step, position, attempt) = (&self.name, self.which.position, self.which.number);
        let Some(delay) = delay else {
            tracing::warn!(
                event = "step_fail",
                job = held.id,
                step,
                position,
                attempt,
                code = failure.code.as_deref()
            );
            return Ok(false);
        };
        let delay_ms = delay.as_millis() as u64;
        tracing::info!(
            event = "step_retry",
            job = held.id,
            step,
            position,
            attempt,
            delay_ms,
            code = failure.code.as_deref()
        );
        tokio::select! {
            () = tokio::time::sleep(delay) => Ok(true),
            () = self.chain.cancellation().cancelled() => Err(Unheard::Stopped),
        }
    }
}

/// The payload merged with the context, key by key. Values are kept verbatim, so that large numbers are not rounded.
fn overlaid(payload: &RawValue, context: Option<&RawValue>) -> Box<RawValue> {
    type Fields = BTreeMap<String, Box<RawValue>>;
    let fields = |json: &RawValue| serde_json::from_str::<Fields>(json.get()).ok();
    let Some(context) = context.and_then(fields).filter(|fields| !fields.is_empty()) else {
        return payload.to_owned();
    };
    let mut both = fields(payload).unwrap_or_default();
    both.extend(context);
    to_raw_value(&both).unwrap_or_else(|_| payload.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_is_laid_over_the_payload_to_the_digit() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let payload = raw(r#"{"a": 12345678901234567890.123, "b": {"x": 1}}"#);

        let both = overlaid(&payload, Some(&raw(r#"{"b": {"y": 2}, "c": 1.0}"#)));

        assert_eq!(both.get(), r#"{"a":12345678901234567890.123,"b":{"y": 2},"c":1.0}"#);
        assert_eq!(overlaid(&payload, None).get(), payload.get());
        assert_eq!(overlaid(&payload, Some(&raw("{}"))).get(), payload.get());
        assert_eq!(overlaid(&raw("[1]"), Some(&raw(r#"{"a": 1}"#))).get(), r#"{"a":1}"#);
    }
}
