//! Steps that an executor makes as it goes, `context.step("charge", …)`: done once, remembered, and not done again.
//!
//! Also what both kinds of steps need: calls about a step are repeated until the database has answered, or the job is
//! to stop.

use std::future::Future;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::db::calls;
use crate::db::connect::Connection;
use crate::error::{Backoff, Error, Result};
use crate::execute::context::Context;
use crate::execute::executor::Failure;
use crate::execute::shortage::Shortage;

/// Why a call about a step did not succeed.
#[derive(Debug)]
pub(crate) enum Unheard {
    /// This worker no longer holds the job.
    Fenced(String),
    /// The database cannot be reached, and the job should stop.
    Stopped,
    /// The database does not take it.
    Refused(Error),
}

impl From<Unheard> for Failure {
    fn from(unheard: Unheard) -> Failure {
        match unheard {
            Unheard::Fenced(verdict) => {
                Failure::new(format!("this worker no longer holds the job: {verdict}")).code("fenced")
            }
            Unheard::Stopped => stopped(),
            Unheard::Refused(error) => Failure::new(error.to_string()).code("bad_result").not_retryable(),
        }
    }
}

/// How a chain or a step ends that was told to stop. The worker knows why, and what becomes of the job.
pub(crate) fn stopped() -> Failure {
    Failure::new("stopped before it was done").code("stopped")
}

/// Make a call on a connection of its own, and repeat it while the database is away. Every call about a step is
/// safe to repeat. Executors may hold all connections of their pool, so these have one of their own.
pub(crate) async fn said<'a, S, T>(
    context: &Context<S>,
    word: impl Fn(Connection) -> BoxFuture<'a, Result<T>>,
) -> Result<T, Unheard> {
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
    loop {
        let heard = match context.inner.steps.get().await {
            Ok(connection) => word(connection).await,
            Err(error) => Err(error),
        };
        let error = match heard {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        if error.is_fenced() {
            return Err(Unheard::Fenced(error.to_string()));
        }
        if error.is_caused_by_data() {
            return Err(Unheard::Refused(error));
        }
        tracing::debug!(event = "undelivered", job = context.id(), %error, "cannot reach the database; retrying");
        tokio::select! {
            () = tokio::time::sleep(backoff.next()) => {}
            () = context.cancellation().cancelled() => {
                context.note_shortage(match error.is_transient() {
                    true => Shortage::of_connection(&error),
                    false => Some(Shortage::History),
                });
                return Err(Unheard::Stopped);
            }
        }
    }
}

impl<S: Send + Sync> Context<S> {
    /// Do something once in the life of this job. When the job runs again, after a failure, a crash or a restart that
    /// continues from the failed step, it is not done again: its stored output is returned. Its state, times and error
    /// can be read in `bugle.steps`.
    ///
    /// The name is what it is remembered by: give each step of a job its own. A step that fails is done again in the
    /// next attempt. A worker can die after the work and before it is recorded: the work should still be safe
    /// to repeat.
    ///
    /// ```
    /// use bugle::{Context, Failure, Registry};
    /// # async fn charge(order: i64) -> std::io::Result<String> { Ok("receipt".into()) }
    /// # async fn mail(receipt: &str) -> std::io::Result<()> { Ok(()) }
    ///
    /// let registry = Registry::new().on("order", async |context: Context, order: i64| {
    ///     let receipt = context.step("charge", async { Ok(charge(order).await?) }).await?;
    ///     context.step("mail", async { Ok(mail(&receipt).await?) }).await?;
    ///     Ok(receipt)
    /// });
    /// ```
    ///
    /// # Errors
    /// What the work failed with; or if its output cannot be kept, or read again as `T`; or if the claim was lost.
    pub async fn step<T, F>(&self, name: &str, work: F) -> Result<T, Failure>
    where
        T: Serialize + DeserializeOwned,
        F: Future<Output = Result<T, Failure>>,
    {
        if let Some(known) = self.begin_step(name).await? {
            tracing::debug!(event = "step_replay", job = self.id(), step = name);
            return serde_json::from_str(known.get()).map_err(|error| {
                Failure::new(format!(
                    "the stored output of step {name:?} cannot be decoded as the requested type: {error}"
                ))
                .code("bad_step")
                .not_retryable()
            });
        }
        tracing::debug!(event = "step_start", job = self.id(), step = name);
        match work.await {
            Ok(value) => {
                let output = serde_json::value::to_raw_value(&value)?;
                self.end_step(name, Ok(&output)).await?;
                tracing::debug!(event = "step_complete", job = self.id(), step = name);
                Ok(value)
            }
            Err(failure) => {
                tracing::warn!(
                    event = "step_fail",
                    job = self.id(),
                    step = name,
                    code = failure.code.as_deref()
                );
                // what matters is why it failed, not whether that could be noted
                let _ = self.end_step(name, Err(&failure)).await;
                Err(failure)
            }
        }
    }

    pub(crate) async fn begin_step(&self, name: &str) -> Result<Option<Box<RawValue>>, Failure> {
        if let Some(rehearsal) = self.rehearsal() {
            return Ok(rehearsal.output_of(name));
        }
        let (me, held, within) = (self.inner.identity, self.job().held, self.within());
        let begun = said(self, |connection| {
            async move { calls::begin_step(&connection, me, held, name, within).await }.boxed()
        })
        .await?;
        match begun.verdict {
            None => Ok(begun.done),
            Some(verdict) => Err(Unheard::Fenced(verdict).into()),
        }
    }

    pub(crate) async fn end_step(&self, name: &str, outcome: Result<&RawValue, &Failure>) -> Result<(), Failure> {
        if let Some(rehearsal) = self.rehearsal() {
            if let Ok(output) = outcome {
                let mut noted = rehearsal.noted.lock().unwrap();
                noted.steps.push((name.to_string(), output.to_owned()));
            }
            return Ok(());
        }
        let (me, held, within) = (self.inner.identity, self.job().held, self.within());
        let verdict = said(self, |connection| {
            async move { calls::end_step(&connection, me, held, name, within, outcome).await }.boxed()
        })
        .await?;
        match verdict.as_deref() {
            None | Some("repeated") => Ok(()),
            Some(verdict) => Err(Unheard::Fenced(verdict.to_owned()).into()),
        }
    }

    /// In which step of the chain: 0 if the job is no chain.
    fn within(&self) -> i32 {
        self.position().map_or(0, |at| at.step)
    }
}
