//! Protocol 1 of hosts, as messages: one JSON object per line. docs/hosts.md is its specification.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::builtin::{MOST_RESULT, result_from};
use crate::execute::executor::{Failure, Outcome};
use crate::job::HeldJob;

/// The number of this protocol.
pub const PROTOCOL: u64 = 1;

/// The longest line that is accepted.
pub const LONGEST_LINE: usize = 8 * 1024 * 1024;

/// How much of a log message is kept.
const LONGEST_LOG: usize = 8 * 1024;

/// The most jobs that a process may be given at once.
const MOST_CONCURRENCY: u64 = 10_000;

/// Why a message was rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    pub code: &'static str,
    pub error: String,
}

impl Rejected {
    pub fn new(code: &'static str, error: impl Into<String>) -> Rejected {
        Rejected {
            code,
            error: error.into(),
        }
    }
}

/// A message from a host. All fields of all messages: a message has some of them, and others are ignored.
#[derive(Deserialize)]
pub struct Line<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    id: Raw<'a>,
    #[serde(borrow)]
    claim: Raw<'a>,
    #[serde(borrow)]
    call: Raw<'a>,
    #[serde(borrow)]
    result: Raw<'a>,
    #[serde(borrow)]
    error: Raw<'a>,
    #[serde(borrow)]
    code: Raw<'a>,
    #[serde(borrow)]
    retryable: Raw<'a>,
    #[serde(borrow)]
    retry_after: Raw<'a>,
    #[serde(borrow)]
    alone: Raw<'a>,
    #[serde(borrow)]
    delay: Raw<'a>,
    #[serde(borrow)]
    token: Raw<'a>,
    #[serde(borrow)]
    at_most: Raw<'a>,
    #[serde(borrow)]
    reason: Raw<'a>,
    #[serde(borrow)]
    percent: Raw<'a>,
    #[serde(borrow)]
    note: Raw<'a>,
    #[serde(borrow)]
    message: Raw<'a>,
    #[serde(borrow)]
    level: Raw<'a>,
    #[serde(borrow)]
    name: Raw<'a>,
    #[serde(borrow)]
    output: Raw<'a>,
    #[serde(borrow)]
    jobs: Raw<'a>,
    #[serde(borrow)]
    protocol: Raw<'a>,
    #[serde(borrow)]
    commands: Raw<'a>,
    #[serde(borrow)]
    concurrency: Raw<'a>,
    #[serde(borrow)]
    language: Raw<'a>,
    #[serde(borrow)]
    sdk: Raw<'a>,
}

/// A field as it was written. Null is the same as a missing field.
type Raw<'a> = Option<&'a RawValue>;

/// The first message of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The commands it runs, each with the largest number of jobs in one call; none for one job in each call.
    pub commands: BTreeMap<String, Option<u32>>,
    pub concurrency: u32,
    pub language: Option<String>,
    pub sdk: Option<String>,
}

/// A call of a host, which is answered with `reply`.
#[derive(Debug)]
pub enum Call {
    GetStep(String),
    PutStep(String, Result<Option<Box<RawValue>>, Failure>),
    Spawn(Box<RawValue>),
    Children,
    Dependencies,
    Enqueue(Vec<Box<RawValue>>),
}

/// A log line of a host.
#[derive(Debug)]
pub struct LogLine {
    pub level: tracing::Level,
    pub message: String,
}

impl<'a> Line<'a> {
    /// Read a line, without its end.
    pub fn parse(text: &'a [u8]) -> Result<Line<'a>, Rejected> {
        let bad = |why: String| Rejected::new("bad_line", why);
        let text = std::str::from_utf8(text).map_err(|_| bad("the line is not UTF-8".into()))?;
        // serde would accept a list of the fields, too
        if !text.trim_ascii_start().starts_with('{') {
            return Err(bad("the line is not a JSON object".into()));
        }
        let line: Line = serde_json::from_str(text).map_err(|error| {
            let (column, error) = (error.column(), error.classify());
            bad(format!("the line is not valid JSON at byte {column} ({error:?})"))
        })?;
        match &line.kind {
            Some(_) => Ok(line),
            None => Err(bad("the line has no type".into())),
        }
    }

    /// The name of the message.
    pub fn kind(&self) -> &str {
        self.kind.as_deref().unwrap_or_default()
    }

    /// The name of the call, if the message is to be answered.
    pub fn call(&self) -> Result<Option<String>, Rejected> {
        text("call", self.call).map_err(bad_message)
    }

    /// The job that the message names, and the claim, if it names one.
    pub fn job(&self) -> Result<Option<(i64, Option<i64>)>, Rejected> {
        let number = |name: &str, raw: Raw| -> Result<Option<i64>, Rejected> {
            let Some(text) = text(name, raw).map_err(bad_message)? else {
                return Ok(None);
            };
            let number = text.parse().map_err(|_| {
                Rejected::new(
                    "not_held",
                    format!("{text:?} is not the {name} of a job of this process"),
                )
            })?;
            Ok(Some(number))
        };
        let claim = number("claim", self.claim)?;
        Ok(number("id", self.id)?.map(|id| (id, claim)))
    }

    /// The greeting.
    pub fn hello(&self) -> Result<Hello, Rejected> {
        let bad = |why: String| Rejected::new("bad_hello", why);
        let protocol: Option<u64> = field("protocol", "a number", self.protocol).map_err(bad)?;
        if protocol != Some(PROTOCOL) {
            let theirs = protocol.map_or_else(|| "none".to_owned(), |number| number.to_string());
            let why = format!("this worker speaks host protocol {PROTOCOL}, but the host announced {theirs}");
            return Err(Rejected::new("protocol", why));
        }
        let commands: Option<Vec<Value>> = field("commands", "a list", self.commands).map_err(bad)?;
        let mut announced = BTreeMap::new();
        for command in commands.unwrap_or_default() {
            let (name, most) = announcement(&command).map_err(bad)?;
            if announced.insert(name.clone(), most).is_some() {
                return Err(bad(format!("the command {name:?} is announced twice")));
            }
        }
        if announced.is_empty() {
            return Err(bad("commands is empty: the host has nothing to run".into()));
        }
        let concurrency: Option<u64> = field("concurrency", "a whole number", self.concurrency).map_err(bad)?;
        let concurrency = concurrency.unwrap_or(1);
        if !(1..=MOST_CONCURRENCY).contains(&concurrency) {
            let why = format!("concurrency is {concurrency}; it must be between 1 and {MOST_CONCURRENCY}");
            return Err(bad(why));
        }
        Ok(Hello {
            commands: announced,
            concurrency: concurrency as u32,
            language: text("language", self.language).map_err(bad)?.map(short),
            sdk: text("sdk", self.sdk).map_err(bad)?.map(short),
        })
    }

    /// The outcome, if the message is one. An outcome that cannot be stored fails the job.
    pub fn outcome(&self) -> Option<Outcome> {
        Some(self.outcome_or_why_not()?.unwrap_or_else(|why| {
            let message = format!("the outcome {:?} is not valid: {why}", self.kind());
            Outcome::Fail(Failure::new(message).code("bad_result").not_retryable())
        }))
    }

    fn outcome_or_why_not(&self) -> Option<Result<Outcome, String>> {
        Some(match self.kind() {
            "done" => stored("result", self.result).map(Outcome::Complete),
            "fail" => self.failure().map(Outcome::Fail),
            "snooze" => seconds("delay", self.delay)
                .and_then(|delay| delay.ok_or_else(|| "delay is missing".into()))
                .map(Outcome::Snooze),
            "wait" => self.wait(),
            "skip" => text("reason", self.reason).map(|reason| Outcome::Skip(reason.unwrap_or_default())),
            "cancelled" => text("reason", self.reason).map(|reason| Outcome::Cancelled(reason.unwrap_or_default())),
            "settled" => Ok(Outcome::Settled),
            _ => return None,
        })
    }

    fn failure(&self) -> Result<Failure, String> {
        let message = text("error", self.error)?.ok_or("error is missing")?;
        let mut failure = Failure::new(message);
        failure.code = text("code", self.code)?;
        failure.retryable = field("retryable", "true or false", self.retryable)?.unwrap_or(true);
        failure.retry_after = seconds("retry_after", self.retry_after)?;
        failure.alone = field("alone", "true or false", self.alone)?.unwrap_or(false);
        Ok(failure)
    }

    fn wait(&self) -> Result<Outcome, String> {
        Ok(Outcome::Wait {
            token: text("token", self.token)?,
            at_most: seconds("at_most", self.at_most)?,
        })
    }

    /// How far a job is.
    pub fn progress(&self) -> Result<(f32, String), Rejected> {
        let percent: Option<f32> = field("percent", "a number", self.percent).map_err(bad_message)?;
        let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
        let percent = percent.ok_or_else(|| bad_message("percent must be a number from 0 to 100".into()))?;
        let note = text("note", self.note).map_err(bad_message)?.unwrap_or_default();
        if note.contains('\0') {
            return Err(bad_message("note contains NUL, which Postgres cannot store".into()));
        }
        Ok((percent, note))
    }

    /// A line for the log of the worker.
    pub fn log(&self) -> Result<LogLine, Rejected> {
        let message = text("message", self.message).map_err(bad_message)?;
        let level = text("level", self.level).map_err(bad_message)?;
        Ok(LogLine {
            level: match level.as_deref() {
                Some("debug") => tracing::Level::DEBUG,
                None | Some("info") => tracing::Level::INFO,
                Some("warn") => tracing::Level::WARN,
                Some("error") => tracing::Level::ERROR,
                Some(other) => {
                    let why = format!("level is {other:?}; it must be debug, info, warn or error");
                    return Err(bad_message(why));
                }
            },
            message: message
                .map(cut)
                .ok_or_else(|| bad_message("message is missing".into()))?,
        })
    }

    /// The text of an `error` message.
    pub fn error(&self) -> String {
        text("error", self.error).ok().flatten().map(short).unwrap_or_default()
    }

    /// The call, if the message is one.
    pub fn question(&self) -> Option<Result<Call, Rejected>> {
        let bad = |why: String| Rejected::new("bad_call", why);
        let name = || text("name", self.name)?.ok_or_else(|| "name is missing".to_owned());
        let call = match self.kind() {
            "step.get" => name().map(Call::GetStep),
            "step.put" => name().and_then(|name| Ok(Call::PutStep(name, self.step_outcome()?))),
            "spawn" => match self.jobs {
                Some(jobs) => Ok(Call::Spawn(jobs.to_owned())),
                None => Err("jobs is missing".into()),
            },
            "children" => Ok(Call::Children),
            "dependencies" => Ok(Call::Dependencies),
            "enqueue" => field("jobs", "a list of jobs", self.jobs)
                .and_then(|jobs| jobs.map(Call::Enqueue).ok_or_else(|| "jobs is missing".to_owned())),
            _ => return None,
        };
        Some(call.map_err(bad))
    }

    fn step_outcome(&self) -> Result<Result<Option<Box<RawValue>>, Failure>, String> {
        let Some(error) = text("error", self.error)? else {
            return Ok(Ok(stored("output", self.output)?));
        };
        let mut failure = Failure::new(error);
        failure.code = text("code", self.code)?;
        Ok(Err(failure))
    }
}

fn bad_message(why: String) -> Rejected {
    Rejected::new("bad_message", why)
}

/// A field of this type. The error says what the field should be, and does not repeat its value.
fn field<T: DeserializeOwned>(name: &str, what: &str, raw: Raw) -> Result<Option<T>, String> {
    let Some(raw) = raw else { return Ok(None) };
    serde_json::from_str(raw.get())
        .map(Some)
        .map_err(|_| format!("{name} must be {what}"))
}

fn text(name: &str, raw: Raw) -> Result<Option<String>, String> {
    field(name, "a string", raw)
}

fn seconds(name: &str, raw: Raw) -> Result<Option<Duration>, String> {
    let seconds: Option<f64> = field(name, "a number of seconds", raw)?;
    let Some(seconds) = seconds else { return Ok(None) };
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) => Ok(Some(duration)),
        Err(_) => Err(format!("{name} must be a number of seconds, and not negative")),
    }
}

/// JSON that Postgres can store.
fn stored(name: &str, raw: Raw) -> Result<Option<Box<RawValue>>, String> {
    let Some(raw) = raw else { return Ok(None) };
    if raw.get().len() > MOST_RESULT {
        return Err(format!("{name} is larger than {MOST_RESULT} bytes"));
    }
    result_from(raw.get().as_bytes()).map_err(|error| format!("{name}: {error}"))
}

/// `"index"`, or `{"name": "index", "most": 500}`.
fn announcement(command: &Value) -> Result<(String, Option<u32>), String> {
    let (name, most) = match command {
        Value::String(name) => (name.clone(), None),
        Value::Object(fields) => {
            let name = fields.get("name").and_then(Value::as_str);
            let name = name.ok_or("a command must be a string, or an object with a name")?;
            let most = match fields.get("most") {
                None | Some(Value::Null) => None,
                Some(most) => match most.as_u64() {
                    Some(most @ 1..=MOST_CONCURRENCY) => Some(most as u32),
                    _ => return Err(format!("most must be a whole number from 1 to {MOST_CONCURRENCY}")),
                },
            };
            (name.to_owned(), most)
        }
        _ => return Err("a command must be a string, or an object with a name".into()),
    };
    if name.trim().is_empty() || name.len() > 200 || name.contains('\0') {
        return Err("the name of a command must have 1 to 200 bytes, and must not be blank".into());
    }
    Ok((name, most))
}

/// The beginning of a log message, as much as is kept of a line of output.
fn cut(mut text: String) -> String {
    if text.len() > LONGEST_LOG {
        text.truncate(text.floor_char_boundary(LONGEST_LOG));
        text.push('…');
    }
    text
}

fn short(text: String) -> String {
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

/// A message to a host.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToHost<'a> {
    Welcome {
        protocol: u64,
        host: &'a str,
        process: u32,
        concurrency: usize,
        worker: &'a str,
    },
    Job(&'a JobMessage<'a>),
    Jobs {
        command: &'a str,
        jobs: Vec<JobMessage<'a>>,
    },
    Cancel {
        id: String,
        claim: String,
        reason: &'static str,
    },
    Drain,
    Ping,
    Reply {
        call: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        value: Option<&'a RawValue>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        code: Option<&'a str>,
    },
    Error {
        error: &'a str,
        code: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<&'a RawValue>,
    },
}

/// A job, as a host receives it.
#[derive(Serialize)]
pub struct JobMessage<'a> {
    pub id: String,
    pub claim: String,
    pub command: &'a str,
    pub queue: &'a str,
    pub attempt: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i32>,
    pub payload: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<&'a BTreeMap<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    pub workdir: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<StepMessage<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<&'a RawValue>,
    pub worker_id: String,
    pub nonce: String,
}

/// Where in a chain a job is.
#[derive(Serialize)]
pub struct StepMessage<'a> {
    pub chain: &'a str,
    pub position: i32,
    pub steps: usize,
    pub attempt: i32,
}

impl ToHost<'_> {
    /// The line, with its end.
    pub fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).expect("it is JSON");
        // a stage may have written a payload with line feeds between its tokens; strings contain none
        for byte in &mut line {
            if matches!(*byte, b'\n' | b'\r') {
                *byte = b' ';
            }
        }
        line.push(b'\n');
        line
    }
}

/// The claim of a job, as a host names it.
pub fn names(held: HeldJob) -> (String, String) {
    (held.id.to_string(), held.claim.to_string())
}

impl<'a> Line<'a> {
    /// The id as it was written, to be repeated in an error.
    pub fn written_id(&self) -> Option<&'a RawValue> {
        // an id of any length could be sent; a long one is not repeated in the error
        self.id.filter(|id| id.get().len() <= 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(line: &str) -> Rejected {
        match Line::parse(line.as_bytes()) {
            Err(rejected) => rejected,
            Ok(line) => line.hello().expect_err("it is rejected"),
        }
    }

    #[test]
    fn what_is_no_message_is_rejected() {
        for line in [
            "",
            "x",
            "[]",
            "[\"hello\"]",
            "{",
            "{}",
            "{\"type\": 7}",
            "{\"type\": null}",
            "{} {}",
        ] {
            assert_eq!(rejected(line).code, "bad_line", "{line}");
        }
        assert_eq!(Line::parse(b"{\"type\": \"\xff\"}").err().unwrap().code, "bad_line");
    }

    #[test]
    fn a_greeting_names_commands_and_says_what_is_wrong_with_it() {
        let line = r#"{"type": "hello", "protocol": 1, "commands": ["a", {"name": "b", "most": 5}], "concurrency": 3,
            "language": null, "sdk": "x 1", "unknown": [1]}"#
            .replace('\n', " ");

        let hello = Line::parse(line.as_bytes()).ok().unwrap().hello().unwrap();

        assert_eq!(
            hello.commands,
            BTreeMap::from([("a".into(), None), ("b".into(), Some(5))])
        );
        assert_eq!(
            (hello.concurrency, hello.language, hello.sdk),
            (3, None, Some("x 1".into()))
        );
        for (fields, code, part) in [
            (r#""commands": ["a"]"#, "protocol", "none"),
            (r#""protocol": 2, "commands": ["a"]"#, "protocol", "announced 2"),
            (r#""protocol": 1"#, "bad_hello", "nothing to run"),
            (
                r#""protocol": 1, "commands": "a""#,
                "bad_hello",
                "commands must be a list",
            ),
            (r#""protocol": 1, "commands": [7]"#, "bad_hello", "must be a string"),
            (r#""protocol": 1, "commands": [" "]"#, "bad_hello", "1 to 200 bytes"),
            (r#""protocol": 1, "commands": ["a", "a"]"#, "bad_hello", "twice"),
            (
                r#""protocol": 1, "commands": ["a"], "concurrency": 0"#,
                "bad_hello",
                "between 1",
            ),
            (
                r#""protocol": 1, "commands": ["a"], "concurrency": 1.5"#,
                "bad_hello",
                "whole number",
            ),
            (
                r#""protocol": 1, "commands": [{"name": "a", "most": 0}]"#,
                "bad_hello",
                "most",
            ),
        ] {
            let rejected = rejected(&format!("{{\"type\": \"hello\", {fields}}}"));
            assert!(
                rejected.code == code && rejected.error.contains(part),
                "{fields}: {rejected:?}"
            );
        }
    }

    fn outcome(fields: &str) -> Outcome {
        let line = format!("{{{fields}}}");
        let line = Line::parse(line.as_bytes()).ok().unwrap();
        line.outcome().expect("an outcome")
    }

    #[test]
    fn every_outcome_is_read() {
        assert!(matches!(outcome(r#""type": "done""#), Outcome::Complete(None)));
        assert!(matches!(
            outcome(r#""type": "done", "result": null"#),
            Outcome::Complete(None)
        ));
        let Outcome::Complete(Some(result)) = outcome(r#""type": "done", "result": {"a": 1.10}"#) else {
            panic!("no result")
        };
        assert_eq!(result.get(), r#"{"a": 1.10}"#, "to the digit");
        let Outcome::Fail(failure) = outcome(r#""type": "fail", "error": "e", "code": "c", "retry_after": 1.5"#) else {
            panic!("no failure")
        };
        assert_eq!((failure.message.as_str(), failure.code.as_deref()), ("e", Some("c")));
        assert_eq!(
            (failure.retryable, failure.retry_after),
            (true, Some(Duration::from_millis(1500)))
        );
        assert!(!failure.alone);
        let shared = outcome(r#""type": "fail", "error": "e", "alone": true"#);
        assert!(matches!(shared, Outcome::Fail(failure) if failure.alone));
        let snooze = outcome(r#""type": "snooze", "delay": 60"#);
        assert!(matches!(snooze, Outcome::Snooze(delay) if delay.as_secs() == 60));
        let wait = outcome(r#""type": "wait", "token": "t""#);
        assert!(matches!(
            wait,
            Outcome::Wait {
                token: Some(_),
                at_most: None
            }
        ));
        assert!(matches!(outcome(r#""type": "skip""#), Outcome::Skip(why) if why.is_empty()));
        assert!(
            matches!(outcome(r#""type": "cancelled", "reason": "r""#), Outcome::Cancelled(reason) if reason == "r")
        );
        assert!(matches!(outcome(r#""type": "settled""#), Outcome::Settled));
    }

    #[test]
    fn an_outcome_that_cannot_be_stored_fails_its_job_and_shows_none_of_its_data() {
        let large = format!(r#""type": "done", "result": "{}""#, "x".repeat(MOST_RESULT));
        for (fields, part) in [
            (r#""type": "done", "result": "secret\u0000""#, "NUL"),
            (large.as_str(), "larger than"),
            (r#""type": "fail""#, "error is missing"),
            (r#""type": "fail", "error": {"secret": 1}"#, "error must be a string"),
            (
                r#""type": "fail", "error": "e", "retryable": "secret""#,
                "retryable must be",
            ),
            (r#""type": "fail", "error": "e", "alone": "secret""#, "alone must be"),
            (r#""type": "snooze""#, "delay is missing"),
            (r#""type": "snooze", "delay": -1"#, "delay must be"),
            (r#""type": "snooze", "delay": "secret""#, "delay must be"),
            (r#""type": "snooze", "delay": 1e300"#, "delay must be"),
            (r#""type": "wait", "at_most": true"#, "at_most must be"),
        ] {
            let Outcome::Fail(failure) = outcome(fields) else {
                panic!("{part}")
            };
            assert_eq!(failure.code.as_deref(), Some("bad_result"), "{part}");
            assert!(!failure.retryable && failure.message.contains(part), "{failure:?}");
            assert!(!failure.message.contains("secret"), "{failure:?}");
        }
    }

    #[test]
    fn a_line_to_a_host_is_one_line() {
        let payload = RawValue::from_string("{\n\"a\":\r\n1}".into()).unwrap();
        let value = RawValue::from_string(r#"{"text": "two\nlines"}"#.into()).unwrap();
        let reply = ToHost::Reply {
            call: "1",
            value: Some(&value),
            error: None,
            code: None,
        };
        let error = ToHost::Error {
            error: "e",
            code: "c",
            id: Some(&payload),
        };

        for line in [reply.line(), error.line(), ToHost::Drain.line()] {
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            assert!(Line::parse(line.trim_ascii_end()).is_ok());
        }
        assert_eq!(ToHost::Ping.line(), b"{\"type\":\"ping\"}\n");
    }
}
