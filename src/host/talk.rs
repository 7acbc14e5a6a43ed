//! Messages of a host, or of a program, about its jobs.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::message::{Call, Line, LogLine, Rejected, ToHost};
use super::readable::unreadable;
use super::socket::Outbox;
use crate::db::calls;
use crate::db::connect::Pool;
use crate::error::{Error, Result};
use crate::execute::context::{Context, Settled};
use crate::execute::executor::{Failure, Outcome};
use crate::execute::family::DependencyResult;
use crate::state::{self, Reason};

/// How much of one connection may be unfinished, in kilobytes: calls that the database has not answered, messages that
/// wait for them, answers that were not read. Beyond that, the worker does not read on.
const MOST_UNFINISHED: usize = 16 * 1024;
/// The least weight of a message, which limits their number to about a thousand.
const LEAST_WEIGHT: usize = 16;
/// How many calls of one connection may enqueue at once. They share the pool of the executors.
const MOST_ENQUEUEING: usize = 2;

/// One job that a host or a program runs, and its messages about it.
pub struct Talk {
    pub context: Context,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// A call about the job is under way: later messages about it have to wait, because order matters.
    busy: bool,
    waiting: VecDeque<(Vec<u8>, OwnedSemaphorePermit)>,
    /// The newest progress that was not stored yet.
    progress: Option<(f32, String)>,
    storing: bool,
}

impl Talk {
    pub fn new(context: Context) -> Arc<Talk> {
        Arc::new(Talk {
            context,
            inner: Mutex::default(),
        })
    }

    /// Store the newest progress when the one before it is stored. A failure is ignored: the next one may succeed.
    fn note_progress(self: &Arc<Self>, progress: (f32, String)) {
        let mut inner = self.inner.lock().unwrap();
        inner.progress = Some(progress);
        if std::mem::replace(&mut inner.storing, true) {
            return;
        }
        let talk = self.clone();
        tokio::spawn(async move {
            while let Some((percent, note)) = talk.next_progress() {
                if let Err(error) = report(&talk.context, percent, &note).await {
                    tracing::debug!(event = "progress", job = talk.context.id(), %error);
                }
            }
        });
    }

    /// A call about the job begins. False if another is under way.
    fn begin_call(&self) -> bool {
        !std::mem::replace(&mut self.inner.lock().unwrap().busy, true)
    }

    /// The next message that had to wait for a call. If there is none, no call is under way any more.
    fn next_message(&self) -> Option<(Vec<u8>, OwnedSemaphorePermit)> {
        let mut inner = self.inner.lock().unwrap();
        let next = inner.waiting.pop_front();
        inner.busy = next.is_some();
        next
    }

    fn next_progress(&self) -> Option<(f32, String)> {
        let mut inner = self.inner.lock().unwrap();
        let progress = inner.progress.take();
        inner.storing = progress.is_some();
        progress
    }
}

/// On a connection for steps: an executor that uses all others must not be held up by its progress.
async fn report(context: &Context, percent: f32, note: &str) -> Result<()> {
    let connection = context.inner.steps.get().await?;
    context.inner.attempt.moved.store(true, Ordering::Release);
    let (me, held) = (context.inner.identity, context.job().held);
    calls::report_progress(&connection, me, held, percent, note).await
}

/// The jobs of one connection.
pub trait Jobs: Send + Sync + 'static {
    /// The job that a message names by its id and claim. A program has only one, which it need not name.
    fn find(&self, named: Option<(i64, Option<i64>)>) -> Result<Arc<Talk>, Rejected>;

    /// Deliver the outcome of a job. False if the job was answered before.
    fn ended(&self, talk: &Arc<Talk>, outcome: Outcome) -> bool;

    /// The host has answered a ping.
    fn pong(&self);

    /// For calls that are not about a job.
    fn pool(&self) -> Pool;

    /// Write a log line of the host or program.
    fn log(&self, job: Option<i64>, line: &LogLine);
}

/// Handles the messages of one connection, and answers them.
pub struct Ear<J> {
    pub jobs: J,
    out: Outbox,
    unfinished: Arc<Semaphore>,
    enqueueing: Arc<Semaphore>,
}

impl<J: Jobs> Ear<J> {
    pub fn new(jobs: J, out: Outbox) -> Arc<Ear<J>> {
        Arc::new(Ear {
            jobs,
            out,
            unfinished: Arc::new(Semaphore::new(MOST_UNFINISHED)),
            enqueueing: Arc::new(Semaphore::new(MOST_ENQUEUEING)),
        })
    }

    /// Handle a message. Waits while too much is unfinished.
    ///
    /// # Errors
    /// If the connection has to be closed.
    pub async fn hear(self: &Arc<Self>, text: &[u8]) -> Result<(), Rejected> {
        let line = Line::parse(text)?;
        match self.heard(&line, false) {
            Ok(Done::Yes) => {}
            Ok(Done::Answer) => {
                let permit = self.permit(text).await;
                self.answer(&line, Ok(None), Some(permit));
            }
            Ok(Done::Later(talk)) => {
                let permit = self.permit(text).await;
                // the call may have ended meanwhile
                let is_busy = {
                    let mut inner = talk.inner.lock().unwrap();
                    match inner.busy {
                        true => inner.waiting.push_back((text.to_vec(), permit)),
                        false => drop(permit),
                    }
                    inner.busy
                };
                if !is_busy {
                    return Box::pin(self.hear(text)).await;
                }
            }
            Ok(Done::Ask(talk, call)) => {
                let permit = self.permit(text).await;
                self.ask(&line, talk, call, permit);
            }
            Err(rejected) if line.kind() == "hello" => return Err(rejected),
            Err(rejected) => {
                let permit = self.permit(text).await;
                self.answer(&line, Err(rejected), Some(permit));
            }
        }
        Ok(())
    }

    /// By the size of the message: a thousand of the longest would be gigabytes.
    async fn permit(&self, text: &[u8]) -> OwnedSemaphorePermit {
        let weight = text.len().div_ceil(1024).clamp(LEAST_WEIGHT, MOST_UNFINISHED);
        self.unfinished
            .clone()
            .acquire_many_owned(weight as u32)
            .await
            .expect("it is never closed")
    }

    /// `is_turn`: all earlier messages about the job have been handled.
    fn heard(&self, line: &Line, is_turn: bool) -> Result<Done, Rejected> {
        let has_call = line.call()?.is_some();
        let done = match has_call {
            true => Done::Answer,
            false => Done::Yes,
        };
        match line.kind() {
            "hello" => return Err(Rejected::new("bad_hello", "hello comes twice")),
            "pong" => {
                self.jobs.pong();
                return Ok(done);
            }
            "error" => {
                let rejected = LogLine {
                    level: tracing::Level::WARN,
                    message: format!("reported an error: {}", line.error()),
                };
                self.jobs.log(None, &rejected);
                return Ok(Done::Yes);
            }
            "log" => {
                let job = line.job()?;
                let talk = job.map(|job| self.jobs.find(Some(job))).transpose()?;
                self.jobs.log(talk.map(|talk| talk.context.id()), &line.log()?);
                return Ok(done);
            }
            _ => {}
        }
        if let Some(call) = line.question() {
            if !has_call {
                let why = format!("{:?} needs call, a string that its reply names", line.kind());
                return Err(Rejected::new("bad_call", why));
            }
            if let Ok(Call::Enqueue(_)) = call {
                return Ok(Done::Ask(None, call?));
            }
            let talk = self.jobs.find(line.job()?)?;
            let call = call?;
            return Ok(match is_turn || talk.begin_call() {
                true => Done::Ask(Some(talk), call),
                false => Done::Later(talk),
            });
        }
        if line.kind() == "progress" {
            self.jobs.find(line.job()?)?.note_progress(line.progress()?);
            return Ok(done);
        }
        let Some(outcome) = line.outcome() else {
            let why = format!("this worker does not know messages of the type {:?}", cut(line.kind()));
            return Err(Rejected::new("unknown_type", why));
        };
        let talk = self.jobs.find(line.job()?)?;
        if !is_turn && talk.inner.lock().unwrap().busy {
            return Ok(Done::Later(talk));
        }
        if let Outcome::Settled = outcome {
            let context = &talk.context;
            if context.inner.attempt.settled().is_none() {
                context.note_promised(Settled::Completed);
            }
        }
        match self.jobs.ended(&talk, outcome) {
            true => Ok(done),
            false => Err(Rejected::new("not_held", "the job was answered before")),
        }
    }

    /// Make a call, and then handle the messages about its job that arrived meanwhile, in their order.
    fn ask(self: &Arc<Self>, line: &Line, talk: Option<Arc<Talk>>, call: Call, permit: OwnedSemaphorePermit) {
        let (ear, name) = (self.clone(), line.call().ok().flatten().unwrap_or_default());
        tokio::spawn(async move {
            let Some(talk) = talk else {
                let _turn = ear.enqueueing.acquire().await.expect("it is never closed");
                let answer = enqueue(ear.jobs.pool(), call).await;
                return ear.reply(&name, answer, Some(permit));
            };
            let answer = about(&talk.context, call).await;
            ear.reply(&name, answer, Some(permit));
            while let Some((text, permit)) = talk.next_message() {
                let Ok(line) = Line::parse(&text) else { continue };
                match ear.heard(&line, true) {
                    Ok(Done::Yes | Done::Later(_)) => {}
                    Ok(Done::Answer) => ear.answer(&line, Ok(None), Some(permit)),
                    Ok(Done::Ask(_, call)) => {
                        let answer = about(&talk.context, call).await;
                        ear.answer(&line, answer, Some(permit));
                    }
                    Err(rejected) => ear.answer(&line, Err(rejected), Some(permit)),
                }
            }
        });
    }

    fn answer(
        &self,
        line: &Line,
        answer: Result<Option<Box<RawValue>>, Rejected>,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        if let Ok(Some(call)) = line.call() {
            return self.reply(&call, answer, permit);
        }
        if let Err(rejected) = answer {
            let message = ToHost::Error {
                error: &rejected.error,
                code: rejected.code,
                id: line.written_id(),
            };
            self.out.send_counted(&message, permit);
        }
    }

    fn reply(&self, call: &str, answer: Result<Option<Box<RawValue>>, Rejected>, permit: Option<OwnedSemaphorePermit>) {
        let answer = answer.and_then(|value| match value.as_deref().and_then(unreadable) {
            Some(why) => Err(Rejected::new("bad_call", format!("the value {why}"))),
            None => Ok(value),
        });
        let rejected = answer.as_ref().err();
        let message = ToHost::Reply {
            call,
            value: answer.as_ref().ok().and_then(Option::as_deref),
            error: rejected.map(|rejected| rejected.error.as_str()),
            code: rejected.map(|rejected| rejected.code),
        };
        self.out.send_counted(&message, permit);
    }
}

/// What is to be done about a message.
enum Done {
    Yes,
    /// Nothing more, except to confirm it.
    Answer,
    /// Wait for a call about the same job.
    Later(Arc<Talk>),
    /// Make this call.
    Ask(Option<Arc<Talk>>, Call),
}

fn cut(text: &str) -> String {
    text.chars().take(100).collect()
}

type Answer = Result<Option<Box<RawValue>>, Rejected>;

/// A call about a job.
async fn about(context: &Context, call: Call) -> Answer {
    match call {
        Call::GetStep(name) => {
            let known = context.begin_step(&name).await.map_err(refused)?;
            #[derive(Serialize)]
            struct Step {
                done: bool,
                #[serde(skip_serializing_if = "Option::is_none")]
                output: Option<Box<RawValue>>,
            }
            json(&Step {
                done: known.is_some(),
                output: known.filter(|output| output.get() != "null"),
            })
        }
        Call::PutStep(name, Ok(output)) => {
            let output = output.unwrap_or_else(|| RawValue::NULL.to_owned());
            context.end_step(&name, Ok(&output)).await.map_err(refused)?;
            Ok(None)
        }
        Call::PutStep(name, Err(failure)) => {
            context.end_step(&name, Err(&failure)).await.map_err(refused)?;
            Ok(None)
        }
        Call::Spawn(jobs) => match context.spawn_as_json(&jobs).await {
            Ok(_) => Ok(None),
            Err(error) => {
                context.note_settled(None);
                Err(rejected(error))
            }
        },
        Call::Children => related(context.children().await),
        Call::Dependencies => related(context.dependencies().await),
        Call::Enqueue(_) => Err(Rejected::new("bad_call", "enqueue is not about a job")),
    }
}

fn related(found: Result<Vec<DependencyResult>>) -> Answer {
    #[derive(Serialize)]
    struct Related {
        id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        state: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<Reason>,
        #[serde(skip_serializing_if = "Option::is_none")]
        result: Option<Box<RawValue>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    }
    let found = found.map_err(rejected)?;
    let all: Vec<Related> = found
        .into_iter()
        .map(|job| Related {
            id: job.id.to_string(),
            name: job.name,
            state: state::or_gone(job.state).to_string(),
            reason: job.reason,
            result: job.result,
            error: job.error,
        })
        .collect();
    json(&all)
}

/// Enqueue jobs, all or none. Their ids, in their order.
async fn enqueue(pool: Pool, call: Call) -> Answer {
    let Call::Enqueue(jobs) = call else {
        return Err(Rejected::new("bad_call", "the call needs the id of a job"));
    };
    let enqueue = async || -> Result<Vec<String>> {
        let mut connection = pool.get().await?;
        let transaction = connection.transaction().await?;
        let mut ids = Vec::with_capacity(jobs.len());
        for job in &jobs {
            ids.push(calls::enqueue_job(&transaction, job).await?.to_string());
        }
        transaction.commit().await?;
        Ok(ids)
    };
    json(&enqueue().await.map_err(rejected)?)
}

fn json(value: &impl Serialize) -> Answer {
    to_raw_value(value)
        .map(Some)
        .map_err(|error| Rejected::new("bad_call", error.to_string()))
}

/// Why a call about a step did not succeed.
fn refused(failure: Failure) -> Rejected {
    let code = match failure.code.as_deref() {
        Some("fenced") => "fenced",
        Some("stopped") => "unavailable",
        _ => "bad_call",
    };
    Rejected::new(code, failure.message)
}

fn rejected(error: Error) -> Rejected {
    let code = match error.sqlstate() {
        _ if error.is_transient() => "unavailable",
        // our own error: the job is not held any more
        None => "fenced",
        Some(_) if error.is_fenced() => "fenced",
        Some(_) => "bad_call",
    };
    Rejected::new(code, error.to_string())
}
