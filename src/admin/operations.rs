//! Everything an operator can do, as one table. The JSON API's routes, its OpenAPI document and the pages of
//! `bugle web` derive from it, and a test compares it with the functions operators may call and with the command line.

use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use tokio_postgres::GenericClient;

use crate::db::connect::{Parameter as SqlParameter, Unnamed};
use crate::error::{Error, Result};
use crate::state::State;

/// One thing an operator can do: a function of the schema, or a change of `bugle.schedules`.
#[derive(Debug)]
#[non_exhaustive]
pub struct Operation {
    /// The function of the schema, and the name the operation has everywhere.
    pub name: &'static str,
    /// The path below `/api/v1`; parameters in braces are parts of it.
    pub path: &'static str,
    /// The subcommand of `bugle` that does the same.
    pub cli: &'static [&'static str],
    /// What it does, in one sentence.
    pub summary: &'static str,
    /// What it needs to know.
    pub parameters: &'static [Parameter],
    /// The statement behind it.
    pub statement: Statement,
    /// What it answers with.
    pub answer: Answer,
}

/// A value that an operation takes.
#[derive(Debug)]
#[non_exhaustive]
pub struct Parameter {
    /// The name in JSON and in forms; the parameter of the function has `p_` before it.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Whether it must be given.
    pub required: bool,
    /// What it is.
    pub about: &'static str,
}

/// The type of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A 64-bit number: the id of a job or a worker.
    Id,
    /// A 32-bit number.
    Integer,
    /// A number that may have a fraction.
    Number,
    /// Yes or no.
    Boolean,
    /// A text.
    Text,
    /// Several texts.
    Texts,
    /// A time as Postgres reads it.
    Time,
    /// An interval as Postgres reads it.
    Interval,
    /// Any JSON.
    Json,
    /// Any JSON, and the whole body of a request.
    Body,
    /// A step, by its position or its name.
    Step,
}

/// How an operation is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Statement {
    /// The function of the same name.
    Function,
    /// A new row of `bugle.schedules`.
    AddSchedule,
    /// Columns of a row of `bugle.schedules`.
    ChangeSchedule,
    /// A row of `bugle.schedules` less.
    RemoveSchedule,
}

/// What an operation answers with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// `{"done": true}`
    Done,
    /// One value under this name, and its JSON type.
    Value(&'static str, &'static str),
    /// Rows, under this name.
    Rows(&'static str),
}

const fn must(name: &'static str, kind: Kind, about: &'static str) -> Parameter {
    Parameter {
        name,
        kind,
        required: true,
        about,
    }
}

const fn may(name: &'static str, kind: Kind, about: &'static str) -> Parameter {
    Parameter {
        name,
        kind,
        required: false,
        about,
    }
}

const fn function(
    name: &'static str,
    path: &'static str,
    cli: &'static [&'static str],
    summary: &'static str,
    parameters: &'static [Parameter],
    answer: Answer,
) -> Operation {
    Operation {
        name,
        path,
        cli,
        summary,
        parameters,
        statement: Statement::Function,
        answer,
    }
}

const NOTE: Parameter = may("note", Kind::Text, "Reason, recorded in bugle.changes.");
const JOB: Parameter = must("id", Kind::Id, "The job.");
const QUEUE: Parameter = must("queue", Kind::Text, "The queue.");
const WORKER: Parameter = must("worker", Kind::Id, "The worker.");
const POLICY: Parameter = must("name", Kind::Text, "The retry policy.");
const SCHEDULE: Parameter = must("name", Kind::Text, "The schedule.");
const TOKEN: Parameter = may(
    "token",
    Kind::Text,
    "The token that its executor was given, if the answer needs one.",
);
const STATE: Answer = Answer::Value("state", "string");
const COUNT: Answer = Answer::Value("count", "integer");

const FAMILY: Parameter = may(
    "family",
    Kind::Boolean,
    "Also the other jobs of its workflow and all children, where they allow it.",
);
const FROM_FAILED_STEP: Parameter = may(
    "from_failed_step",
    Kind::Boolean,
    "Continue with the step that failed instead of the first.",
);
const RUN_AT: Parameter = must(
    "run_at",
    Kind::Time,
    "When it is due, for example 2030-01-01 08:00+00 or now.",
);
const PRIORITY: Parameter = must("priority", Kind::Integer, "Smaller values run first; 0 is the default.");
const NEW_STATE: Parameter = must(
    "to",
    Kind::Text,
    "scheduled, ready, retrying, paused, completed, failed or cancelled.",
);
const OF_QUEUE: Parameter = may("queue", Kind::Text, "Only jobs of this queue.");
const OF_COMMAND: Parameter = may("command", Kind::Text, "Only jobs of this command.");
const IN_STATE: Parameter = may("state", Kind::Text, "Only jobs in this state.");
const SINCE: Parameter = may("since", Kind::Interval, "Only jobs enqueued within this time.");
const ENDED_SINCE: Parameter = may(
    "ended_since",
    Kind::Interval,
    "Only jobs that completed, failed or were cancelled within this time.",
);
const OLDER_THAN: Parameter = may(
    "older_than",
    Kind::Interval,
    "Only jobs that have not changed for this long.",
);
const ERROR_LIKE: Parameter = may(
    "error_like",
    Kind::Text,
    "Only jobs whose last error contains this text; with %, it is a LIKE pattern.",
);
const OF_CODE: Parameter = may("code", Kind::Text, "Only jobs whose last error has this code.");
const OF_FINGERPRINT: Parameter = may(
    "fingerprint",
    Kind::Text,
    "Only jobs whose last error belongs to this group of bugle.error_groups.",
);
const OF_REASON: Parameter = may(
    "reason",
    Kind::Text,
    "Only jobs that failed or were cancelled for this reason.",
);
const OF_WORKER: Parameter = may("worker", Kind::Id, "Only jobs that this worker runs, or ran last.");
const LIMIT: Parameter = may(
    "limit",
    Kind::Integer,
    "At most this many, the oldest first; 1000 if left out.",
);

/// All operations.
pub const OPERATIONS: &[Operation] = &[
    function(
        "cancel",
        "/jobs/{id}/cancel",
        &["jobs", "cancel"],
        "Cancel a job. If it runs, its executor is stopped.",
        &[JOB, FAMILY, NOTE],
        STATE,
    ),
    function(
        "pause",
        "/jobs/{id}/pause",
        &["jobs", "pause"],
        "Pause a job.",
        &[JOB, FAMILY, NOTE],
        STATE,
    ),
    function(
        "resume",
        "/jobs/{id}/resume",
        &["jobs", "resume"],
        "Let a paused job continue.",
        &[JOB, FAMILY, NOTE],
        STATE,
    ),
    function(
        "restart",
        "/jobs/{id}/restart",
        &["jobs", "restart"],
        "Run a failed or cancelled job again.",
        &[JOB, FROM_FAILED_STEP, FAMILY, NOTE],
        STATE,
    ),
    function(
        "remove",
        "/jobs/{id}/remove",
        &["jobs", "remove"],
        "Delete a job that is not running.",
        &[JOB, FAMILY, NOTE],
        STATE,
    ),
    function(
        "reschedule",
        "/jobs/{id}/reschedule",
        &["jobs", "reschedule"],
        "Change the time at which a job is due.",
        &[JOB, RUN_AT, FAMILY, NOTE],
        STATE,
    ),
    function(
        "set_priority",
        "/jobs/{id}/set_priority",
        &["jobs", "set-priority"],
        "Change the priority of a job.",
        &[JOB, PRIORITY, FAMILY, NOTE],
        STATE,
    ),
    function(
        "set_state",
        "/jobs/{id}/set_state",
        &["jobs", "set-state"],
        "Override the state of a job that is not running or completed.",
        &[JOB, NEW_STATE, FAMILY, NOTE],
        STATE,
    ),
    function(
        "set_step",
        "/jobs/{id}/set_step",
        &["jobs", "set-step"],
        "Override the state of a step of a job that is not running or completed.",
        &[
            JOB,
            must("step", Kind::Step, "Its position (a number) or its name."),
            must("state", Kind::Text, "done, skipped or pending."),
            may("output", Kind::Json, "What it returned, if it is done."),
            NOTE,
        ],
        STATE,
    ),
    function(
        "resolve",
        "/jobs/{id}/resolve",
        &["jobs", "answer"],
        "Answer a waiting job with its result: it is completed.",
        &[JOB, may("result", Kind::Json, "Its result."), TOKEN],
        Answer::Done,
    ),
    function(
        "reject",
        "/jobs/{id}/reject",
        &["jobs", "answer"],
        "Answer a waiting job with an error: it has failed.",
        &[JOB, must("error", Kind::Text, "What went wrong."), TOKEN],
        Answer::Done,
    ),
    function(
        "resume_with",
        "/jobs/{id}/resume_with",
        &["jobs", "answer"],
        "Answer a waiting job so that its executor continues with the answer.",
        &[JOB, must("answer", Kind::Json, "The answer."), TOKEN],
        Answer::Done,
    ),
    function(
        "answer",
        "/jobs/{id}/answer",
        &["jobs", "answer"],
        "Answer a waiting job with the token it handed out: with a result, with an error, or so that it continues.",
        &[
            JOB,
            must("token", Kind::Text, "The token that its executor was given."),
            may("result", Kind::Json, "Its result, or the answer it continues with."),
            may("error", Kind::Text, "What went wrong."),
            may("resume", Kind::Boolean, "Whether its executor continues."),
        ],
        Answer::Done,
    ),
    function(
        "cancel_where",
        "/jobs/cancel",
        &["jobs", "cancel"],
        "Cancel all jobs that match.",
        &[
            OF_QUEUE,
            OF_COMMAND,
            IN_STATE,
            SINCE,
            ENDED_SINCE,
            OLDER_THAN,
            ERROR_LIKE,
            OF_CODE,
            OF_FINGERPRINT,
            OF_REASON,
            OF_WORKER,
            LIMIT,
            NOTE,
        ],
        COUNT,
    ),
    function(
        "pause_where",
        "/jobs/pause",
        &["jobs", "pause"],
        "Pause all matching jobs.",
        &[
            OF_QUEUE,
            OF_COMMAND,
            IN_STATE,
            SINCE,
            ENDED_SINCE,
            OLDER_THAN,
            ERROR_LIKE,
            OF_CODE,
            OF_FINGERPRINT,
            OF_REASON,
            OF_WORKER,
            LIMIT,
            NOTE,
        ],
        COUNT,
    ),
    function(
        "resume_where",
        "/jobs/resume",
        &["jobs", "resume"],
        "Resume all paused jobs that match.",
        &[
            OF_QUEUE,
            OF_COMMAND,
            IN_STATE,
            SINCE,
            ENDED_SINCE,
            OLDER_THAN,
            ERROR_LIKE,
            OF_CODE,
            OF_FINGERPRINT,
            OF_REASON,
            OF_WORKER,
            LIMIT,
            NOTE,
        ],
        COUNT,
    ),
    function(
        "restart_where",
        "/jobs/restart",
        &["jobs", "restart"],
        "Restart all failed or cancelled jobs that match.",
        &[
            OF_QUEUE,
            OF_COMMAND,
            IN_STATE,
            SINCE,
            ENDED_SINCE,
            OLDER_THAN,
            ERROR_LIKE,
            OF_CODE,
            OF_FINGERPRINT,
            OF_REASON,
            OF_WORKER,
            LIMIT,
            NOTE,
            FROM_FAILED_STEP,
        ],
        COUNT,
    ),
    function(
        "remove_where",
        "/jobs/remove",
        &["jobs", "remove"],
        "Delete all jobs that match and are not running.",
        &[
            OF_QUEUE,
            OF_COMMAND,
            IN_STATE,
            SINCE,
            ENDED_SINCE,
            OLDER_THAN,
            ERROR_LIKE,
            OF_CODE,
            OF_FINGERPRINT,
            OF_REASON,
            OF_WORKER,
            LIMIT,
            NOTE,
        ],
        COUNT,
    ),
    function(
        "reschedule_where",
        "/jobs/reschedule",
        &["jobs", "reschedule"],
        "Change the time at which all jobs that match are due.",
        &[
            RUN_AT,
            OF_QUEUE,
            OF_COMMAND,
            IN_STATE,
            SINCE,
            ENDED_SINCE,
            OLDER_THAN,
            ERROR_LIKE,
            OF_CODE,
            OF_FINGERPRINT,
            OF_REASON,
            OF_WORKER,
            LIMIT,
            NOTE,
        ],
        COUNT,
    ),
    function(
        "set_priority_where",
        "/jobs/set_priority",
        &["jobs", "set-priority"],
        "Change the priority of all jobs that match.",
        &[
            PRIORITY,
            OF_QUEUE,
            OF_COMMAND,
            IN_STATE,
            SINCE,
            ENDED_SINCE,
            OLDER_THAN,
            ERROR_LIKE,
            OF_CODE,
            OF_FINGERPRINT,
            OF_REASON,
            OF_WORKER,
            LIMIT,
            NOTE,
        ],
        COUNT,
    ),
    function(
        "set_state_where",
        "/jobs/set_state",
        &["jobs", "set-state"],
        "Override the state of all jobs that match and are not running or completed.",
        &[
            NEW_STATE,
            OF_QUEUE,
            OF_COMMAND,
            IN_STATE,
            SINCE,
            ENDED_SINCE,
            OLDER_THAN,
            ERROR_LIKE,
            OF_CODE,
            OF_FINGERPRINT,
            OF_REASON,
            OF_WORKER,
            LIMIT,
            NOTE,
        ],
        COUNT,
    ),
    function(
        "add_missing",
        "/jobs/add_missing",
        &["jobs", "add-missing"],
        "Enqueue those of these jobs whose keys do not exist yet.",
        &[
            must("command", Kind::Text, "The command of all of them."),
            must(
                "jobs",
                Kind::Json,
                "An array of jobs: the settable columns of bugle.jobs, each with a key.",
            ),
        ],
        Answer::Value("added", "integer"),
    ),
    function(
        "enqueue_job",
        "/jobs",
        &["enqueue"],
        "Enqueue a job: an object with the settable columns of bugle.jobs.",
        &[must(
            "job",
            Kind::Body,
            "The job, for example {\"command\": \"greet\"}.",
        )],
        Answer::Value("id", "integer"),
    ),
    function(
        "enqueue_workflow",
        "/workflows",
        &["workflow", "enqueue"],
        "Enqueue jobs that start when others have ended.",
        &[must("workflow", Kind::Body, "{\"jobs\": {NAME: JOB, …}}.")],
        Answer::Rows("jobs"),
    ),
    function(
        "pause_queue",
        "/queues/{queue}/pause",
        &["queues", "pause"],
        "Stop claiming from a queue; running jobs are not affected.",
        &[QUEUE, NOTE],
        Answer::Done,
    ),
    function(
        "resume_queue",
        "/queues/{queue}/resume",
        &["queues", "resume"],
        "Claim from a paused queue again.",
        &[QUEUE, NOTE],
        Answer::Done,
    ),
    function(
        "remove_queue",
        "/queues/{queue}/remove",
        &["queues", "remove"],
        "Remove a queue that has no live jobs: its pause and its limits.",
        &[QUEUE, NOTE],
        Answer::Done,
    ),
    function(
        "set_limits",
        "/queues/{queue}/set_limits",
        &["queues", "set"],
        "Set limits of a queue. What is left out stays; 0 removes a limit.",
        &[
            QUEUE,
            may("max_running", Kind::Integer, "How many of its jobs run at once."),
            may("max_starts", Kind::Integer, "How many start in a period that slides."),
            may("starts_period", Kind::Interval, "That period, for example 1 minute."),
            may(
                "max_running_per_key",
                Kind::Integer,
                "How many jobs of each limit key run at once.",
            ),
            may(
                "max_starts_per_key",
                Kind::Integer,
                "How many jobs of each limit key start in a period.",
            ),
            may("starts_per_key_period", Kind::Interval, "That period."),
            may(
                "order_on_retry",
                Kind::Text,
                "block or pass: whether others of an order key wait behind a retry.",
            ),
            NOTE,
        ],
        Answer::Value("limits", "string"),
    ),
    function(
        "set_command_limit",
        "/commands/{command}/set_limit",
        &["queues", "limit-command"],
        "Limit how many jobs of a command run at once, in all queues together.",
        &[
            must("command", Kind::Text, "The command."),
            must(
                "max_running",
                Kind::Integer,
                "How many run at once; 0 removes the limit.",
            ),
            NOTE,
        ],
        Answer::Done,
    ),
    function(
        "set_policy",
        "/policies/{name}/set",
        &["policies", "set"],
        "Add a retry policy, or change one. What is left out stays, or has its default.",
        &[
            POLICY,
            may(
                "kind",
                Kind::Text,
                "fixed, exponential, fixed_then_exponential, endless or daily.",
            ),
            may("retries", Kind::Integer, "Attempts after the first."),
            may("delay", Kind::Interval, "The first delay, or each."),
            may(
                "factor",
                Kind::Number,
                "By how much an exponential delay grows each time.",
            ),
            may("max_delay", Kind::Interval, "Where it stops growing."),
            may(
                "jitter",
                Kind::Number,
                "By what share each delay varies in both directions: 0.1 is ten percent.",
            ),
            may("per_day", Kind::Integer, "For daily: retries per day."),
            may(
                "days",
                Kind::Integer,
                "For daily: on how many days, counted from the first attempt.",
            ),
            NOTE,
        ],
        Answer::Value("policy", "string"),
    ),
    function(
        "remove_policy",
        "/policies/{name}/remove",
        &["policies", "remove"],
        "Remove a retry policy that nothing uses.",
        &[POLICY, NOTE],
        Answer::Done,
    ),
    function(
        "pause_worker",
        "/workers/{worker}/pause",
        &["workers", "pause"],
        "Stop a worker from claiming; the jobs it runs are not affected.",
        &[WORKER, NOTE],
        Answer::Done,
    ),
    function(
        "resume_worker",
        "/workers/{worker}/resume",
        &["workers", "resume"],
        "Let a paused worker claim again.",
        &[WORKER, NOTE],
        Answer::Done,
    ),
    function(
        "drain_worker",
        "/workers/{worker}/drain",
        &["workers", "drain"],
        "Let a worker finish its jobs and stop, as after SIGTERM.",
        &[WORKER, NOTE],
        Answer::Done,
    ),
    function(
        "pause_schedule",
        "/schedules/{name}/pause",
        &["schedules", "pause"],
        "Stop a schedule from firing until it is resumed.",
        &[SCHEDULE, NOTE],
        Answer::Done,
    ),
    function(
        "resume_schedule",
        "/schedules/{name}/resume",
        &["schedules", "resume"],
        "Fire a paused schedule again, from its next slot on.",
        &[SCHEDULE, NOTE],
        Answer::Value("next_at", "string"),
    ),
    function(
        "run_schedule_now",
        "/schedules/{name}/run_now",
        &["schedules", "run-now"],
        "Enqueue a job of a schedule now, in addition to its scheduled times.",
        &[SCHEDULE, NOTE],
        Answer::Value("id", "integer"),
    ),
    Operation {
        name: "add_schedule",
        path: "/schedules",
        cli: &["schedules", "add"],
        summary: "Add a schedule, with cron or every.",
        parameters: &[
            must("name", Kind::Text, "The name of the schedule."),
            must("command", Kind::Text, "The command of its jobs."),
            CRON,
            EVERY,
            TIMEZONE,
            PAYLOAD,
            SCHEDULE_QUEUE,
            SCHEDULE_PRIORITY,
            TIMEOUT,
            MAX_ATTEMPTS,
            RETRY_POLICY,
            RETRY_DELAY,
            HEADERS,
            STEPS,
            MISFIRE,
            CATCH_UP_LIMIT,
            OVERLAP,
            STARTS_AT,
            ENDS_AT,
        ],
        statement: Statement::AddSchedule,
        answer: Answer::Value("next_at", "string"),
    },
    Operation {
        name: "change_schedule",
        path: "/schedules/{name}/change",
        cli: &["schedules", "change"],
        summary: "Change columns of a schedule. What is left out stays.",
        parameters: &[
            SCHEDULE,
            may("command", Kind::Text, "The command of its jobs."),
            CRON,
            EVERY,
            TIMEZONE,
            PAYLOAD,
            SCHEDULE_QUEUE,
            SCHEDULE_PRIORITY,
            TIMEOUT,
            MAX_ATTEMPTS,
            RETRY_POLICY,
            RETRY_DELAY,
            HEADERS,
            STEPS,
            MISFIRE,
            CATCH_UP_LIMIT,
            OVERLAP,
            STARTS_AT,
            ENDS_AT,
        ],
        statement: Statement::ChangeSchedule,
        answer: Answer::Value("next_at", "string"),
    },
    Operation {
        name: "remove_schedule",
        path: "/schedules/{name}/remove",
        cli: &["schedules", "remove"],
        summary: "Delete a schedule; its jobs stay.",
        parameters: &[SCHEDULE],
        statement: Statement::RemoveSchedule,
        answer: Answer::Done,
    },
];

const CRON: Parameter = may(
    "cron",
    Kind::Text,
    "When: a cron expression, for example 0 9 * * MON-FRI.",
);
const EVERY: Parameter = may(
    "every",
    Kind::Interval,
    "When: an interval instead, for example 10 minutes.",
);
const TIMEZONE: Parameter = may("timezone", Kind::Text, "The time zone of the cron expression.");
const PAYLOAD: Parameter = may("payload", Kind::Json, "The payload of its jobs.");
const SCHEDULE_QUEUE: Parameter = may("queue", Kind::Text, "The queue of its jobs.");
const SCHEDULE_PRIORITY: Parameter = may("priority", Kind::Integer, "Their priority; smaller values run first.");
const TIMEOUT: Parameter = may("timeout", Kind::Interval, "How long one attempt may take.");
const MAX_ATTEMPTS: Parameter = may("max_attempts", Kind::Integer, "Maximum number of attempts.");
const RETRY_POLICY: Parameter = may("retry_policy", Kind::Text, "How retries are spaced.");
const RETRY_DELAY: Parameter = may("retry_delay", Kind::Interval, "The delay before their first retry.");
const HEADERS: Parameter = may("headers", Kind::Json, "The headers of its jobs.");
const STEPS: Parameter = may("steps", Kind::Texts, "Makes its jobs chains of these commands.");
const MISFIRE: Parameter = may(
    "misfire",
    Kind::Text,
    "How missed runs are handled: run_once, catch_up or skip.",
);
const CATCH_UP_LIMIT: Parameter = may(
    "catch_up_limit",
    Kind::Integer,
    "At most this many missed slots are run.",
);
const OVERLAP: Parameter = may(
    "overlap",
    Kind::Text,
    "allow or skip, while an earlier job has not ended.",
);
const STARTS_AT: Parameter = may("starts_at", Kind::Time, "No slot lies before this.");
const ENDS_AT: Parameter = may("ends_at", Kind::Time, "No slot lies after this.");

impl Kind {
    /// As SQL names it.
    pub fn sql_type(self) -> &'static str {
        match self {
            Kind::Id => "bigint",
            Kind::Integer => "integer",
            Kind::Number => "double precision",
            Kind::Boolean => "boolean",
            Kind::Text | Kind::Step => "text",
            Kind::Texts => "text[]",
            Kind::Time => "timestamptz",
            Kind::Interval => "interval",
            Kind::Json | Kind::Body => "jsonb",
        }
    }
}

/// The values of an operation's parameters, as texts that Postgres casts. What is left out has its default.
#[derive(Debug, Clone, Default)]
pub struct Values(BTreeMap<&'static str, String>);

impl Values {
    /// Nothing to show.
    pub fn new() -> Values {
        Values::default()
    }

    /// The same with one more; the text is what Postgres would read. Names that the operation does not have are left
    /// out.
    #[must_use]
    pub fn with(mut self, operation: &Operation, name: &str, text: &str) -> Values {
        if let Some(parameter) = operation.parameters.iter().find(|parameter| parameter.name == name) {
            self.0.insert(parameter.name, text.to_owned());
        }
        self
    }

    /// One of them, given as JSON.
    ///
    /// # Errors
    /// If there is no such parameter, or it has another type.
    pub fn set_json(&mut self, operation: &Operation, name: &str, value: &RawValue) -> Result<()> {
        let Some(parameter) = operation.parameters.iter().find(|parameter| parameter.name == name) else {
            let known: Vec<&str> = operation.parameters.iter().map(|parameter| parameter.name).collect();
            return Err(Error::new(format!("{} has no parameter {name:?}", operation.name))
                .with_hint(format!("Parameters: {}.", known.join(", "))));
        };
        if let Some(text) = read_json(parameter, value)? {
            self.0.insert(parameter.name, text);
        }
        Ok(())
    }

    /// The text of one.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    fn check(&self, operation: &Operation) -> Result<()> {
        let is_missing = |parameter: &&Parameter| parameter.required && !self.0.contains_key(parameter.name);
        match operation.parameters.iter().find(is_missing) {
            Some(missing) => Err(
                Error::new(format!("{} needs the parameter {:?}", operation.name, missing.name))
                    .with_hint(missing.about),
            ),
            None => Ok(()),
        }
    }
}

/// A JSON value as the text that Postgres reads; null is like leaving it out.
fn read_json(parameter: &Parameter, raw: &RawValue) -> Result<Option<String>> {
    let text = raw.get();
    if text == "null" && parameter.kind != Kind::Body && !(parameter.kind == Kind::Json && parameter.required) {
        return Ok(None);
    }
    let wrong = |what: &str| {
        let shown: String = text.chars().take(60).collect();
        Error::new(format!("{:?} must be {what}, not {shown}", parameter.name)).with_hint(parameter.about)
    };
    let string = || serde_json::from_str::<String>(text).ok();
    // numbers stay texts, so that no digit is lost
    let number = || serde_json::from_str::<i64>(text).ok().map(|number| number.to_string());
    let read = match parameter.kind {
        Kind::Json | Kind::Body => Some(text.to_owned()),
        Kind::Boolean => serde_json::from_str::<bool>(text).ok().map(|yes| yes.to_string()),
        Kind::Id | Kind::Integer => number().or_else(|| string().filter(|text| text.trim().parse::<i64>().is_ok())),
        Kind::Number => serde_json::from_str::<f64>(text)
            .ok()
            .map(|_| text.to_owned())
            .or_else(|| string().filter(|text| text.trim().parse::<f64>().is_ok())),
        Kind::Step => number().or_else(string),
        Kind::Text | Kind::Time | Kind::Interval => string(),
        Kind::Texts => serde_json::from_str::<Vec<String>>(text)
            .ok()
            .map(|texts| array(&texts)),
    };
    let what = match parameter.kind {
        Kind::Boolean => "true or false",
        Kind::Id | Kind::Integer | Kind::Number => "a number",
        Kind::Texts => "an array of strings",
        _ => "a string",
    };
    read.map(Some).ok_or_else(|| wrong(what))
}

/// As Postgres reads an array of texts.
pub(crate) fn array(texts: &[impl AsRef<str>]) -> String {
    let quoted: Vec<String> = texts
        .iter()
        .map(|text| format!("\"{}\"", text.as_ref().replace('\\', "\\\\").replace('"', "\\\"")))
        .collect();
    format!("{{{}}}", quoted.join(","))
}

impl Operation {
    /// The operation of this name.
    pub fn named(name: &str) -> Option<&'static Operation> {
        OPERATIONS.iter().find(|operation| operation.name == name)
    }

    /// The same as a statement to copy, with the values as literals.
    pub fn sql(&self, values: &Values) -> String {
        let literal = |parameter: &Parameter, text: &str| match parameter.kind {
            Kind::Id | Kind::Integer | Kind::Boolean if text.parse::<i64>().is_ok() || text == "true" => {
                text.to_owned()
            }
            Kind::Step if text.parse::<i32>().is_ok() => text.to_owned(),
            _ => format!("'{}'", text.replace('\'', "''")),
        };
        let given = || {
            self.parameters
                .iter()
                .filter_map(|parameter| Some((parameter, literal(parameter, values.get(parameter.name)?))))
        };
        let column_list = |of: &str| given().map(|(p, _)| p.name).collect::<Vec<_>>().join(of);
        let name = values.get("name").unwrap_or_default().replace('\'', "''");
        match self.statement {
            Statement::Function => {
                // the required ones come first in every function, in this order
                let arguments: Vec<String> = given()
                    .map(|(parameter, literal)| match parameter.required {
                        true => literal,
                        false => format!("p_{} => {literal}", parameter.name),
                    })
                    .collect();
                format!("select bugle.{}({});", self.name, arguments.join(", "))
            }
            Statement::AddSchedule => {
                let literals: Vec<String> = given().map(|(_, literal)| literal).collect();
                format!(
                    "insert into bugle.schedules ({}) values ({});",
                    column_list(", "),
                    literals.join(", ")
                )
            }
            Statement::ChangeSchedule => {
                let sets: Vec<String> = given()
                    .filter(|(parameter, _)| parameter.name != "name")
                    // nothing removes the value
                    .map(|(parameter, literal)| match literal.as_str() {
                        "''" => format!("{} = null", parameter.name),
                        literal => format!("{} = {literal}", parameter.name),
                    })
                    .collect();
                format!("update bugle.schedules set {} where name = '{name}';", sets.join(", "))
            }
            Statement::RemoveSchedule => format!("delete from bugle.schedules where name = '{name}';"),
        }
    }
}

/// The states from which an operation on a job is allowed: `bugle.allowed_from`.
pub fn allowed_from(verb: &str) -> &'static [State] {
    use State::{Cancelled, Completed, Failed, Paused, Ready, Retrying, Running, Scheduled, Waiting};
    match verb {
        "cancel" => &[Scheduled, Ready, Running, Retrying, Paused, Waiting],
        "pause" => &[Scheduled, Ready, Retrying, Waiting],
        "resume" => &[Paused],
        "restart" => &[Failed, Cancelled],
        "remove" => &[
            Scheduled, Ready, Retrying, Paused, Waiting, Completed, Failed, Cancelled,
        ],
        "reschedule" => &[Scheduled, Ready, Retrying, Paused],
        "set_priority" => &[Scheduled, Ready, Retrying, Paused, Waiting],
        "set_state" => &[Scheduled, Ready, Retrying, Paused, Waiting, Failed, Cancelled],
        _ => &[],
    }
}

/// Carry an operation out. Answers with a JSON object: what [`Operation::answer`] names, or `{"done": true}`; with
/// nothing if there is no schedule of that name.
///
/// # Errors
/// If a value is missing or wrong, the schema rejects it, or the role may not.
pub async fn perform(client: &impl GenericClient, operation: &Operation, values: &Values) -> Result<Option<Value>> {
    values.check(operation)?;
    let given: Vec<(&Parameter, &str)> = operation
        .parameters
        .iter()
        .filter_map(|parameter| Some((parameter, values.get(parameter.name)?)))
        .collect();
    let cast = |index: usize, parameter: &Parameter, text: &str| {
        let kind = match parameter.kind {
            Kind::Step if text.parse::<i32>().is_ok() => "integer",
            kind => kind.sql_type(),
        };
        format!("${}::text::{kind}", index + 1)
    };
    let sql = match operation.statement {
        Statement::Function => {
            let arguments: Vec<String> = (given.iter().enumerate())
                .map(|(index, (parameter, text))| format!("p_{} => {}", parameter.name, cast(index, parameter, text)))
                .collect();
            let call = format!("bugle.{}({})", operation.name, arguments.join(", "));
            match operation.answer {
                Answer::Done => format!("select '{{\"done\": true}}' from {call}"),
                Answer::Value(name, _) => format!("select jsonb_build_object('{name}', r.v)::text from {call} r (v)"),
                Answer::Rows(name) => format!(
                    "select jsonb_build_object('{name}', coalesce(jsonb_agg(to_jsonb(r)), '[]'))::text from {call} r"
                ),
            }
        }
        Statement::AddSchedule => {
            let columns: Vec<&str> = given.iter().map(|(parameter, _)| parameter.name).collect();
            let casts: Vec<String> = (given.iter().enumerate())
                .map(|(index, (parameter, text))| cast(index, parameter, text))
                .collect();
            format!(
                "insert into bugle.schedules ({}) values ({}) \
                 returning jsonb_build_object('next_at', next_at)::text",
                columns.join(", "),
                casts.join(", ")
            )
        }
        Statement::ChangeSchedule => {
            let sets: Vec<String> = (given.iter().enumerate())
                .map(|(index, (parameter, text))| {
                    // nothing removes the value: a schedule has cron or every, not both
                    let value = cast(index, parameter, text).replacen("::text", "::text, '')", 1);
                    format!("{} = nullif({value}", parameter.name)
                })
                .collect();
            format!(
                "update bugle.schedules set {} where name = $1::text \
                 returning jsonb_build_object('next_at', next_at)::text",
                sets.join(", ")
            )
        }
        Statement::RemoveSchedule => {
            "delete from bugle.schedules where name = $1::text returning '{\"done\": true}'".to_owned()
        }
    };
    let parameters: Vec<&dyn SqlParameter> = given.iter().map(|(_, text)| text as &dyn SqlParameter).collect();
    let row = client.ask_opt(&sql, &parameters).await?;
    row.map(|row| Ok(serde_json::from_str(row.try_get(0)?).expect("JSON of the database")))
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_can_be_copied_as_sql() {
        let cancel = Operation::named("cancel").unwrap();
        let values = Values::new().with(cancel, "id", "17").with(cancel, "note", "it's late");

        assert_eq!(cancel.sql(&values), "select bugle.cancel(17, p_note => 'it''s late');");
        let change = Operation::named("change_schedule").unwrap();
        let values = Values::new().with(change, "name", "n").with(change, "cron", "@daily");
        assert_eq!(
            change.sql(&values),
            "update bugle.schedules set cron = '@daily' where name = 'n';"
        );
    }

    #[test]
    fn required_parameters_come_first_and_names_are_unique() {
        for operation in OPERATIONS {
            let required = operation.parameters.iter().map(|parameter| parameter.required);
            assert!(required.is_sorted_by(|a, b| a >= b), "{}", operation.name);
            let same = OPERATIONS
                .iter()
                .filter(|other| other.name == operation.name || other.path == operation.path);
            assert_eq!(same.count(), 1, "{}", operation.name);
        }
    }

    #[test]
    fn no_digit_of_a_number_in_json_is_lost() {
        let resolve = Operation::named("resolve").unwrap();
        let mut values = Values::new();
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        values.set_json(resolve, "id", &raw("9007199254740993")).unwrap();
        values
            .set_json(resolve, "result", &raw("{\"n\": 12345678901234567890123}"))
            .unwrap();

        assert_eq!(values.get("id"), Some("9007199254740993"));
        assert_eq!(values.get("result"), Some("{\"n\": 12345678901234567890123}"));
        assert!(values.set_json(resolve, "id", &raw("[1]")).is_err());
        let error = values.set_json(resolve, "color", &raw("1")).unwrap_err();
        assert!(error.to_string().contains("color"), "{error}");
    }
}
