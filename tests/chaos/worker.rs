//! The worker process: `bugle worker` with an executor that writes down what it sees.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use bugle::{Context, Failure, Outcome, Registry, State};
use serde::Deserialize;

use super::steps;
use crate::judge::{Event, Fault, Recorder};

/// Set for worker processes: the folder of the history.
pub const HISTORY: &str = "BUGLE_CHAOS_HISTORY";
/// The name of this life.
pub const LIFE: &str = "BUGLE_CHAOS_LIFE";

/// What a job asks of its executor.
#[derive(Debug, Deserialize)]
pub struct Task {
    #[serde(default)]
    token: String,
    #[serde(default)]
    pub act: String,
    #[serde(default)]
    pub ms: u64,
}

pub fn run(history: &Path) -> ExitCode {
    // exit when the parent process is gone
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let recorder = Recorder::new(history, &std::env::var(LIFE).expect("a name"));
    let of_steps = recorder.clone();
    let registry = Registry::new()
        .on("work", move |context: Context, task: Task| {
            let recorder = recorder.clone();
            async move { Ok(work(recorder, context, task).await) }
        })
        .on("step", move |context: Context, task: Task| {
            let recorder = of_steps.clone();
            async move { Ok(steps::of_a_chain(recorder, context, task).await) }
        });
    bugle::worker_main(registry)
}

async fn work(recorder: Recorder, context: Context, task: Task) -> Outcome {
    let (job, claim) = (context.job().held.id, context.job().held.claim);
    recorder.record(Event::Started { job, claim });
    let mut execution = Running {
        recorder: recorder.clone(),
        job,
        claim,
        ended: false,
    };
    // why: the work that a job asks for is to take this long
    tokio::time::sleep(Duration::from_millis(task.ms)).await;
    let fresh = claim == 1;
    let outcome = match task.act.as_str() {
        "fail" if context.attempt() == 1 => Outcome::Fail(Failure::new("once").retry_after(Duration::from_millis(300))),
        "fail_for_good" => Outcome::Fail(Failure::new("no").not_retryable()),
        "snooze" if fresh => Outcome::Snooze(Duration::from_millis(300)),
        "wait" => Outcome::Wait {
            token: None,
            at_most: None,
        },
        "give_up" => Outcome::Cancelled("nothing to do".into()),
        "panic" if fresh => panic!("as it was told"),
        "block" => {
            let until = std::time::Instant::now() + Duration::from_millis(150);
            while std::time::Instant::now() < until {
                std::hint::spin_loop();
            }
            Outcome::Complete(None)
        }
        "memory" => {
            let flood = vec![1_u8; 100 << 20];
            Outcome::complete(std::hint::black_box(flood).len())
        }
        "folder" => match context
            .workspace()
            .and_then(|folder| std::fs::write(folder.join("file"), "x"))
        {
            Ok(()) => Outcome::Complete(None),
            Err(error) => Outcome::Fail(Failure::from(error)),
        },
        "settle" => return settle(&context, execution).await,
        "steps" => steps::of_an_executor(&recorder, &context, &task).await,
        "spawn" => return spawn(&context, execution, &task).await,
        "suicide" if claim <= 2 => {
            recorder.record(Event::Fault {
                fault: Fault::Suicide,
                whom: std::env::var(LIFE).expect("a name"),
            });
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            std::future::pending().await
        }
        _ => Outcome::Complete(None),
    };
    execution.finish(&outcome);
    outcome
}

/// Goes on when its children have ended.
async fn spawn(context: &Context, mut execution: Running, task: &Task) -> Outcome {
    let again = |error: bugle::Error| Outcome::Fail(Failure::from(error).retry_after(Duration::from_millis(200)));
    let outcome = match context.children().await {
        Err(error) => again(error),
        Ok(children) if children.is_empty() => {
            let tokens: Vec<String> = (0..3).map(|n| format!("{}-c{n}", task.token)).collect();
            let job = execution.job;
            for token in tokens.iter().cloned() {
                execution.recorder.record(Event::Asked { token: token.clone() });
                execution.recorder.record(Event::Spawns { job, token });
            }
            let child = |token: &String| {
                let task = serde_json::json!({ "token": token, "ms": 20 });
                bugle::NewJob::new("work", task).retry_policy("quick")
            };
            let wait = Outcome::Wait {
                token: None,
                at_most: None,
            };
            execution.finish(&wait);
            match context.spawn(tokens.iter().map(child)).await {
                Ok(outcome) => return outcome,
                Err(error) => again(error),
            }
        }
        Ok(children) => {
            let is_ended = |state: Option<State>| state.is_some_and(State::is_final);
            if let Some(child) = children.iter().find(|child| !is_ended(child.state)) {
                let text = format!(
                    "job {} goes on while its child {} is {:?}",
                    execution.job, child.id, child.state
                );
                execution.recorder.record(Event::Complaint { text });
            }
            Outcome::complete(children.len())
        }
    };
    execution.finish(&outcome);
    outcome
}

/// Writes to a table of the application in the transaction that completes the job: exactly once, whatever happens.
async fn settle(context: &Context, mut execution: Running) -> Outcome {
    let outcome = Outcome::Settled;
    let Ok(mut client) = context.database().await else {
        return Outcome::Fail(Failure::new("no connection").retry_after(Duration::from_millis(200)));
    };
    let done = async {
        let transaction = client.transaction().await?;
        transaction
            .execute(
                "insert into app.effects (job, claim) values ($1, $2)",
                &[&execution.job, &execution.claim],
            )
            .await?;
        execution.finish(&Outcome::Complete(None));
        if context
            .complete_in(&transaction, serde_json::Value::Null)
            .await
            .is_err()
        {
            return transaction.rollback().await.map(|()| false);
        }
        transaction.commit().await.map(|()| true)
    };
    match done.await {
        Ok(true) => outcome,
        // fenced, or it is not known whether it was committed: if it was not, the job is tried again
        Ok(false) | Err(_) => Outcome::Fail(Failure::new("not settled").retry_after(Duration::from_millis(200))),
    }
}

/// Says that an executor was stopped, unless it came to its end.
struct Running {
    recorder: Recorder,
    job: i64,
    claim: i64,
    ended: bool,
}

impl Running {
    fn finish(&mut self, outcome: &Outcome) {
        self.ended = true;
        let outcome = match outcome {
            Outcome::Complete(_) | Outcome::Settled | Outcome::Skip(_) => "complete",
            Outcome::Fail(_) => "fail",
            Outcome::Snooze(_) => "snooze",
            Outcome::Wait { .. } => "wait",
            Outcome::Cancelled(_) => "cancelled",
            _ => "unknown",
        };
        self.recorder.record(Event::Finished {
            job: self.job,
            claim: self.claim,
            outcome: outcome.into(),
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            self.recorder.record(Event::Stopped {
                job: self.job,
                claim: self.claim,
            });
        }
    }
}
