//! Executors of steps: of chains, and of steps that an executor makes itself. They write down what they see, and look
//! whether what the steps before have put out is there.

use std::time::Duration;

use bugle::{Context, Failure, Outcome};
use serde_json::{Value, json};

use super::worker::Task;
use crate::judge::{Event, Recorder};

/// One step of a chain.
pub async fn of_a_chain(recorder: Recorder, context: Context, task: Task) -> Outcome {
    let at = context.position().expect("a step of a chain");
    let (position, tries) = (at.step, at.attempt);
    let mut execution = Step::new(&recorder, &context, &position.to_string(), at.steps);
    let payload: Value = context.payload_as().unwrap_or_default();
    for before in (1..position).filter(|before| task.act != "skip" || *before != 2) {
        if payload[format!("s{before}")] != json!(before) {
            let text = format!(
                "job {}: step {position} does not get the output of step {before}",
                context.id()
            );
            recorder.record(Event::Complaint { text });
        }
    }
    // why: the work that a step asks for is to take this long
    tokio::time::sleep(Duration::from_millis(task.ms)).await;
    let output = json!({ format!("s{position}"): position });
    let outcome = match (task.act.as_str(), position) {
        // tried again here
        ("fail", 2) if tries == 1 => Outcome::Fail(Failure::new("once")),
        // and then as a whole, from this step on
        ("fail_all", 2) if context.attempt() == 1 => Outcome::Fail(Failure::new("until the next attempt")),
        ("snooze", 2) if context.job().held.claim == 1 => Outcome::Snooze(Duration::from_millis(300)),
        ("skip", 2) => Outcome::Skip("need not be".into()),
        ("settle", 2) => return settle(&context, execution, output).await,
        _ => Outcome::complete(output),
    };
    execution.finish(match &outcome {
        Outcome::Fail(_) => "fail",
        Outcome::Snooze(_) => "snooze",
        _ => "complete",
    });
    outcome
}

/// Writes in the transaction that ends the step: exactly once.
async fn settle(context: &Context, mut execution: Step, output: Value) -> Outcome {
    let Ok(mut client) = context.database().await else {
        execution.finish("fail");
        return Outcome::Fail(Failure::new("no connection"));
    };
    let done = async {
        let transaction = client.transaction().await?;
        let (job, claim) = (execution.job, execution.claim);
        let sql = "insert into app.effects (job, claim, step) values ($1, $2, 2)";
        transaction.execute(sql, &[&job, &claim]).await?;
        execution.finish("complete");
        if context.complete_in(&transaction, output).await.is_err() {
            return transaction.rollback().await.map(|()| false);
        }
        transaction.commit().await.map(|()| true)
    };
    match done.await {
        Ok(true) => Outcome::Settled,
        // fenced, or it is not known whether it was committed: if it was not, the step is tried again
        Ok(false) | Err(_) => Outcome::Fail(Failure::new("not settled")),
    }
}

/// Two parts that are done once, with a failure of the job between them.
pub async fn of_an_executor(recorder: &Recorder, context: &Context, task: &Task) -> Outcome {
    for name in ["a", "b"] {
        if name == "b" && context.attempt() == 1 {
            return Outcome::Fail(Failure::new("once").retry_after(Duration::from_millis(200)));
        }
        let work = async {
            let mut execution = Step::new(recorder, context, name, 0);
            // why: the work that a step asks for is to take this long
            tokio::time::sleep(Duration::from_millis(task.ms)).await;
            execution.finish("complete");
            Ok(name.to_owned())
        };
        if let Err(failure) = context.step(name, work).await {
            return Outcome::Fail(failure.retry_after(Duration::from_millis(200)));
        }
    }
    Outcome::Complete(None)
}

/// Says that the executor of a step was stopped, unless it came to its end.
struct Step {
    recorder: Recorder,
    job: i64,
    claim: i64,
    step: String,
    of: usize,
    ended: bool,
}

impl Step {
    fn new(recorder: &Recorder, context: &Context, step: &str, of: usize) -> Step {
        let held = context.job().held;
        let (job, claim, step) = (held.id, held.claim, step.to_owned());
        recorder.record(Event::StepStarted {
            job,
            claim,
            step: step.clone(),
            of,
        });
        Step {
            recorder: recorder.clone(),
            job,
            claim,
            step,
            of,
            ended: false,
        }
    }

    fn finish(&mut self, outcome: &str) {
        self.ended = true;
        self.recorder.record(Event::StepFinished {
            job: self.job,
            claim: self.claim,
            step: self.step.clone(),
            of: self.of,
            outcome: outcome.to_owned(),
        });
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if !self.ended {
            self.recorder.record(Event::StepStopped {
                job: self.job,
                claim: self.claim,
                step: self.step.clone(),
                of: self.of,
            });
        }
    }
}
