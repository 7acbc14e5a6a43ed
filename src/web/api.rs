//! The JSON API, `/api/v1`: everything people read, and every operation of the table in `admin::operations`.
//!
//! Statements run as the login of the process, which needs the roles `bugle_viewer`, `bugle_operator` and, to enqueue,
//! `bugle_enqueuer`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use tokio_postgres::Transaction;

use super::{openapi, server};
use crate::admin::operate;
use crate::admin::operations::{Kind, OPERATIONS, Operation, Values, perform};
use crate::admin::read::{self, ChangeFilter, Filter, Search, doctor};
use crate::db::connect::Pool;
use crate::error::{Code, Error};

/// Where the API is.
pub const BASE: &str = "/api/v1";
/// The largest body of a request with JSON of its own: a job with a payload, or many of them.
const LARGEST_JSON: usize = 4 * 1024 * 1024;
/// The largest body of any other request.
const LARGEST_BODY: usize = 64 * 1024;
/// How long a client may take to send its body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one statement may take.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);
const MOST_ROWS: i64 = 1000;

/// Who may do what.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// Bearer token: required for everything if there is one. Without one the API can only be read.
    pub token: Option<String>,
    /// Whether only this machine can reach the server.
    pub is_local: bool,
    /// Further names it is reached by.
    pub hosts: Vec<String>,
}

/// What can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    Queues,
    Workers,
    Jobs,
    Job,
    Explain,
    Stats,
    Errors,
    Schedules,
    Commands,
    Policies,
    Changes,
    Search,
    DeadLetters,
    LimitsLeft,
    NextTurns,
    BlockedKeys,
    Doorbell,
    Rings,
    LateUpdates,
    Rescues,
    Safety,
    Workflows,
    Workflow,
    ScheduleRuns,
    NextTimes,
    Throughput,
    Doctor,
}

/// A path that can be read.
pub struct ReadPath {
    pub path: &'static str,
    pub read: Read,
    pub summary: &'static str,
    /// The schema of the answer, or of its items.
    pub schema: &'static str,
    pub is_list: bool,
    /// Name, JSON type and meaning of what may be in the query.
    pub query: &'static [(&'static str, &'static str, &'static str)],
}

const LIMIT: (&str, &str, &str) = ("limit", "integer", "At most this many, 1 to 1000; 20 if left out.");

/// All paths that can be read, besides the description itself.
pub const READS: &[ReadPath] = &[
    ReadPath {
        path: "/queues",
        read: Read::Queues,
        summary: "Each queue: live jobs by state, the oldest ready one, who serves it, what holds it back.",
        schema: "Queue",
        is_list: true,
        query: &[],
    },
    ReadPath {
        path: "/workers",
        read: Read::Workers,
        summary: "Worker processes.",
        schema: "Worker",
        is_list: true,
        query: &[("all", "boolean", "true: stopped workers, too.")],
    },
    ReadPath {
        path: "/jobs",
        read: Read::Jobs,
        summary: "Jobs, the newest first.",
        schema: "JobSummary",
        is_list: true,
        query: &[
            ("queue", "string", "Only jobs of this queue."),
            ("command", "string", "Only jobs of this command."),
            ("state", "string", "Only jobs in this state."),
            ("since", "string", "Only jobs enqueued within this interval."),
            (
                "ended_since",
                "string",
                "Only jobs that completed, failed or were cancelled within this interval.",
            ),
            (
                "older_than",
                "string",
                "Only jobs that have not changed for this interval.",
            ),
            (
                "error_like",
                "string",
                "Only jobs whose last error contains this text, or matches this pattern with %.",
            ),
            ("code", "string", "Only jobs whose last error has this code."),
            (
                "fingerprint",
                "string",
                "Only jobs whose last error belongs to this group of bugle.error_groups.",
            ),
            (
                "reason",
                "string",
                "Only jobs that failed or were cancelled for this reason.",
            ),
            ("worker", "integer", "Only jobs that this worker runs, or ran last."),
            ("before", "integer", "Only jobs with a smaller id: the next page."),
            LIMIT,
        ],
    },
    ReadPath {
        path: "/jobs/{id}",
        read: Read::Job,
        summary: "All details of one job.",
        schema: "Job",
        is_list: false,
        query: &[],
    },
    ReadPath {
        path: "/jobs/{id}/explain",
        read: Read::Explain,
        summary: "Explain why a job is not running, or how it ended.",
        schema: "Explanation",
        is_list: true,
        query: &[],
    },
    ReadPath {
        path: "/stats",
        read: Read::Stats,
        summary: "The last hour by queue and command.",
        schema: "CommandStats",
        is_list: true,
        query: &[],
    },
    ReadPath {
        path: "/errors",
        read: Read::Errors,
        summary: "Failed attempts, grouped by similar errors.",
        schema: "ErrorGroup",
        is_list: true,
        query: &[("since", "string", "Of this period; 1 hour if left out.")],
    },
    ReadPath {
        path: "/schedules",
        read: Read::Schedules,
        summary: "All schedules.",
        schema: "Schedule",
        is_list: true,
        query: &[],
    },
    ReadPath {
        path: "/commands",
        read: Read::Commands,
        summary: "Commands that are set up, served, or were run in the last hour.",
        schema: "Command",
        is_list: true,
        query: &[],
    },
    ReadPath {
        path: "/policies",
        read: Read::Policies,
        summary: "Retry policies.",
        schema: "Policy",
        is_list: true,
        query: &[],
    },
    ReadPath {
        path: "/changes",
        read: Read::Changes,
        summary: "Changes made by operators, newest first.",
        schema: "Change",
        is_list: true,
        query: &[
            ("job", "integer", "Only changes of this job."),
            ("who", "string", "Only changes by this login."),
            ("verb", "string", "Only this verb."),
            ("queue", "string", "Only changes of this queue."),
            ("note", "string", "Only changes whose note contains this text."),
            ("since", "string", "Only changes within this interval."),
            ("before", "integer", "Only changes with a smaller id: the next page."),
            LIMIT,
        ],
    },
    ReadPath {
        path: "/search",
        read: Read::Search,
        summary: "Jobs that match a query, the newest first, among the newest 100,000 in its states.",
        schema: "JobSummary",
        is_list: true,
        query: &[
            (
                "q",
                "string",
                "The query, as on the page of jobs: state:failed queue:mail age:<1h.",
            ),
            ("before", "integer", "Only jobs with a smaller id: the next page."),
            LIMIT,
        ],
    },
    ReadPath {
        path: "/dead_letters",
        read: Read::DeadLetters,
        summary: "Jobs that failed for good, the newest first.",
        schema: "JobSummary",
        is_list: true,
        query: &[
            ("before", "integer", "Only jobs with a smaller id: the next page."),
            LIMIT,
        ],
    },
    ReadPath {
        path: "/queues/{queue}/limits",
        read: Read::LimitsLeft,
        summary: "The limits that hold for a queue, and what is left of each.",
        schema: "LimitLeft",
        is_list: true,
        query: &[],
    },
    ReadPath {
        path: "/queues/{queue}/turns",
        read: Read::NextTurns,
        summary: "The next turns of the fair keys of a queue.",
        schema: "Turn",
        is_list: true,
        query: &[],
    },
    ReadPath {
        path: "/queues/{queue}/blocked",
        read: Read::BlockedKeys,
        summary: "The order keys of a queue that are blocked, and by which job.",
        schema: "BlockedKey",
        is_list: true,
        query: &[],
    },
    ReadPath {
        path: "/doorbell",
        read: Read::Doorbell,
        summary: "How each worker waits for jobs of its queues.",
        schema: "Waits",
        is_list: true,
        query: &[],
    },
    ReadPath {
        path: "/doorbell/rings",
        read: Read::Rings,
        summary: "How often the workers of a queue are notified, and jobs that only the safety poll found.",
        schema: "Rings",
        is_list: true,
        query: &[],
    },
    ReadPath {
        path: "/late_updates",
        read: Read::LateUpdates,
        summary: "Outcomes that were rejected because their worker no longer held the job, newest first.",
        schema: "LateUpdate",
        is_list: true,
        query: &[LIMIT],
    },
    ReadPath {
        path: "/rescues",
        read: Read::Rescues,
        summary: "Jobs whose worker was lost, newest first.",
        schema: "Rescue",
        is_list: true,
        query: &[LIMIT],
    },
    ReadPath {
        path: "/safety",
        read: Read::Safety,
        summary: "The doorbell, late updates and rescues of the last 24 hours.",
        schema: "Safety",
        is_list: false,
        query: &[],
    },
    ReadPath {
        path: "/workflows",
        read: Read::Workflows,
        summary: "Workflows, the newest first.",
        schema: "WorkflowLine",
        is_list: true,
        query: &[
            ("before", "integer", "Only workflows with a smaller id: the next page."),
            LIMIT,
        ],
    },
    ReadPath {
        path: "/workflows/{id}",
        read: Read::Workflow,
        summary: "The jobs of one workflow.",
        schema: "WorkflowJob",
        is_list: true,
        query: &[],
    },
    ReadPath {
        path: "/schedules/{name}/runs",
        read: Read::ScheduleRuns,
        summary: "The last slots of a schedule, newest first.",
        schema: "ScheduleRun",
        is_list: true,
        query: &[LIMIT],
    },
    ReadPath {
        path: "/schedules/{name}/next",
        read: Read::NextTimes,
        summary: "The next times of a schedule.",
        schema: "NextTime",
        is_list: true,
        query: &[LIMIT],
    },
    ReadPath {
        path: "/throughput",
        read: Read::Throughput,
        summary: "Attempts over time: the total, which has no time, and then the buckets that have attempts.",
        schema: "Bucket",
        is_list: true,
        query: &[
            ("since", "string", "Of this period; 1 hour if left out."),
            ("bucket", "string", "The length of a bucket; 1 minute if left out."),
            ("queue", "string", "Only attempts of this queue."),
            ("command", "string", "Only attempts of this command."),
        ],
    },
    ReadPath {
        path: "/doctor",
        read: Read::Doctor,
        summary: "What bugle doctor checks, and how to fix what it finds.",
        schema: "Finding",
        is_list: true,
        query: &[],
    },
];

/// The API as a router, to be nested under [`BASE`].
pub fn router(pool: Pool) -> Router {
    let mut router = Router::new().route("/openapi.json", get(async || json_text(openapi::text())));
    for place in READS {
        let handler = async move |State(pool): State<Pool>, Path(parts): Path<Parts>, RawQuery(query): RawQuery| {
            let query = Query::read(query.as_deref().unwrap_or_default());
            read_one(&pool, place, &parts, &query).await
        };
        router = router.route(place.path, get(handler));
    }
    for operation in OPERATIONS {
        let handler = async move |State(pool): State<Pool>, Path(parts): Path<Parts>, request: Request| {
            operate_once(&pool, operation, &parts, request.into_body()).await
        };
        router = router.route(operation.path, post(handler));
    }
    router.with_state(pool).fallback(async || nothing_here())
}

type Parts = BTreeMap<String, String>;

/// Requests that may not pass: those to another name, and those without the token. For every path of a server.
pub async fn guard(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    let is_api = request.uri().path().starts_with("/api/");
    check(&access, request, next, is_api).await
}

/// The same for the API alone, wherever it is nested: its paths are without what they are nested in.
#[cfg(feature = "cli")]
pub async fn guard_api(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    check(&access, request, next, true).await
}

async fn check(access: &Access, request: Request, next: Next, is_api: bool) -> Response {
    let needs_known_name = access.is_local && (access.token.is_none() || !is_api);
    if needs_known_name && !server::is_addressed_to(request.headers(), &access.hosts) {
        return Refusal::new(StatusCode::FORBIDDEN, "wrong_host", "unknown host name")
            .hint("Use localhost or 127.0.0.1.")
            .into_response();
    }
    if is_api && let Some(refusal) = access.refuse(&request) {
        return refusal.into_response();
    }
    next.run(request).await
}

impl Access {
    fn refuse(&self, request: &Request) -> Option<Refusal> {
        let is_read = request.method() == Method::GET || request.method() == Method::HEAD;
        let Some(token) = &self.token else {
            return (!is_read).then(|| {
                Refusal::new(
                    StatusCode::FORBIDDEN,
                    "read_only",
                    "the API is read-only without a token",
                )
                .hint("Set a token (--token, BUGLE_TOKEN, or token in the worker's file) and send it.")
            });
        };
        let given = request
            .headers()
            .get(AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        let given = given.and_then(|value| value.strip_prefix("Bearer "));
        // compare hashes, so that the timing reveals nothing about the token
        let is_right = given.is_some_and(|given| Sha256::digest(given.trim()) == Sha256::digest(token));
        if !is_right {
            return Some(
                Refusal::new(
                    StatusCode::UNAUTHORIZED,
                    "unauthorized",
                    "the token is missing or wrong",
                )
                .hint("Send the header Authorization: Bearer TOKEN."),
            );
        }
        (!is_read && request.method() != Method::POST).then(only_get_and_post)
    }
}

/// An error as the API tells it.
#[derive(Debug)]
pub struct Refusal {
    pub status: StatusCode,
    pub code: String,
    pub message: String,
    pub hint: Option<String>,
}

impl Refusal {
    pub fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Refusal {
        Refusal {
            status,
            code: code.to_owned(),
            message: message.into(),
            hint: None,
        }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Refusal {
        self.hint = Some(hint.into());
        self
    }

    fn bad_request(message: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = json!({ "code": self.code, "message": self.message, "hint": self.hint });
        let mut response = (self.status, json_text(&body.to_string())).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::UNAUTHORIZED => drop(headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            StatusCode::METHOD_NOT_ALLOWED => drop(headers.insert(ALLOW, HeaderValue::from_static("GET, POST"))),
            _ => {}
        }
        response
    }
}

/// What an error of the database means over HTTP.
impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        let (status, word) = match (error.code(), error.sqlstate()) {
            (Some(Code::UnknownJob | Code::UnknownWorker), _) => (StatusCode::NOT_FOUND, "not_found"),
            (Some(Code::RefusedTransition), _) => (StatusCode::CONFLICT, "conflict"),
            (Some(Code::TooLarge), _) => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
            (Some(_), _) => (StatusCode::BAD_REQUEST, "bad_request"),
            (_, Some("42501")) => {
                return Refusal::new(StatusCode::FORBIDDEN, "not_allowed", error.message()).hint(
                    "Statements run as the login of this process. As the owner: grant bugle_viewer, bugle_operator, \
                     bugle_enqueuer to LOGIN;",
                );
            }
            (_, Some("25006")) => (StatusCode::FORBIDDEN, "read_only"),
            (_, Some("57014")) => (StatusCode::GATEWAY_TIMEOUT, "statement_timeout"),
            // not what was asked, but how: a date or an interval that is invalid; a schedule that exists
            (_, Some(state)) if state.starts_with("22") => (StatusCode::BAD_REQUEST, "bad_request"),
            (_, Some(state)) if state.starts_with("23") => (StatusCode::CONFLICT, "conflict"),
            _ if error.is_transient() => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
            (_, None) => (StatusCode::BAD_REQUEST, "bad_request"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        };
        let code = error.code().map_or(word, |code| code.sqlstate());
        Refusal {
            status,
            code: code.to_owned(),
            message: without_sqlstate(&error),
            hint: error.hint().map(str::to_owned),
        }
    }
}

/// The code has a field of its own.
fn without_sqlstate(error: &Error) -> String {
    let message = error.message();
    let end = format!(" (SQLSTATE {})", error.sqlstate().unwrap_or_default());
    message.strip_suffix(&end).unwrap_or(&message).to_owned()
}

/// For methods that no path has.
pub fn only_get_and_post() -> Refusal {
    Refusal::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        "this path is not served with this method",
    )
    .hint("Paths are read with GET and changed with POST.")
}

/// For paths that do not exist.
pub fn nothing_here() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "not_found", "no such endpoint").hint("See /api/v1/openapi.json.")
}

fn json_text(text: &str) -> Response {
    ([(CONTENT_TYPE, "application/json")], text.to_owned()).into_response()
}

fn json_of(value: &impl Serialize) -> Response {
    json_text(&serde_json::to_string(value).expect("plain data"))
}

async fn read_one(pool: &Pool, place: &ReadPath, parts: &Parts, query: &Query) -> Result<Response, Refusal> {
    query.check(place)?;
    let id = || number(parts.get("id").map_or("", String::as_str));
    let part = |name: &str| parts.get(name).map_or("", String::as_str);
    let mut client = pool.get().await?;
    if place.read == Read::Doctor {
        let mut findings = doctor(&client).await?;
        // a pool has old sessions, so it cannot tell whether a pooler is in between
        findings.retain(|finding| finding.check != "pooler");
        return Ok(json_of(&findings));
    }
    let transaction = client
        .build_transaction()
        .read_only(true)
        .start()
        .await
        .map_err(Error::from)?;
    limit(&transaction).await?;
    let client = &transaction;
    Ok(match place.read {
        Read::Queues => json_of(&read::queues(client).await?),
        Read::Workers => json_of(&read::workers(client, query.get("all") == Some("true")).await?),
        Read::Stats => json_of(&read::command_stats(client).await?),
        Read::Errors => json_of(&read::error_groups(client, query.get("since").unwrap_or("1 hour")).await?),
        Read::Jobs => json_of(&read::jobs(client, &query.filter()?, query.limit()?).await?),
        Read::Job => match read::job(client, id()?).await? {
            Some(job) => json_of(&job),
            None => no_such_job(id()?).into_response(),
        },
        Read::Explain => json_of(&operate::explain(client, id()?).await?),
        Read::Schedules => json_of(&read::schedules(client).await?),
        Read::Commands => json_of(&read::commands(client).await?),
        Read::Policies => json_of(&read::policies(client).await?),
        Read::Search | Read::DeadLetters => {
            let search = match place.read {
                Read::Search => Search::parse(query.get("q").unwrap_or_default())?,
                _ => Search::parse("state:failed")?,
            };
            json_of(
                &read::search(client, &search, query.number("before")?, query.limit()?)
                    .await?
                    .jobs,
            )
        }
        Read::LimitsLeft => json_of(&read::limits_left(client, part("queue")).await?),
        Read::NextTurns => json_of(&read::next_turns(client, part("queue")).await?),
        Read::BlockedKeys => json_of(&read::blocked_keys(client, part("queue")).await?),
        Read::Doorbell => json_of(&read::doorbell(client).await?),
        Read::Rings => json_of(&read::rings(client).await?),
        Read::LateUpdates => json_of(&read::late_updates(client, query.limit()?).await?),
        Read::Rescues => json_of(&read::rescues(client, query.limit()?).await?),
        Read::Safety => json_of(&read::safety(client).await?),
        Read::Workflows => json_of(&read::workflows(client, query.number("before")?, query.limit()?).await?),
        Read::Workflow => json_of(&read::workflow(client, id()?).await?),
        Read::ScheduleRuns => json_of(&read::schedule_runs(client, part("name"), query.limit()?).await?),
        Read::NextTimes => {
            let most = i32::try_from(query.limit()?).unwrap_or(i32::MAX);
            let times = read::next_times(client, part("name"), most).await?;
            let times = times
                .iter()
                .map(|(at, local)| json!({ "at": read::rfc3339(*at), "local": local }));
            json_of(&times.collect::<Vec<_>>())
        }
        Read::Throughput => {
            let (since, bucket) = (
                query.get("since").unwrap_or("1 hour"),
                query.get("bucket").unwrap_or("1 minute"),
            );
            let (queue, command) = (query.get("queue"), query.get("command"));
            let (total, buckets) = read::throughput(client, since, bucket, queue, command).await?;
            let mut all = vec![total];
            all.extend(buckets);
            json_of(&all)
        }
        Read::Doctor => unreachable!("answered above"),
        Read::Changes => {
            let filter = ChangeFilter {
                job: query.number("job")?,
                who: query.owned("who"),
                verb: query.owned("verb"),
                queue: query.owned("queue"),
                note: query.owned("note"),
                since: query.owned("since"),
                before: query.number("before")?,
            };
            json_of(&read::changes(client, &filter, query.limit()?).await?)
        }
    })
}

async fn operate_once(pool: &Pool, operation: &Operation, parts: &Parts, body: Body) -> Result<Response, Refusal> {
    let has_json = (operation.parameters.iter()).any(|p| matches!(p.kind, Kind::Json | Kind::Body));
    let body = read_body(body, if has_json { LARGEST_JSON } else { LARGEST_BODY }).await?;
    let values = values(operation, parts, &body)?;
    let mut client = pool.get().await?;
    let transaction = client.transaction().await.map_err(Error::from)?;
    limit(&transaction).await?;
    let Some(answer) = perform(&transaction, operation, &values).await? else {
        let name = values.get("name").unwrap_or_default();
        let message = format!("there is no schedule {name:?}");
        return Err(Refusal::new(StatusCode::NOT_FOUND, "not_found", message));
    };
    transaction.commit().await.map_err(Error::from)?;
    Ok(json_of(&answer))
}

async fn read_body(body: Body, most: usize) -> Result<axum::body::Bytes, Refusal> {
    match tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, most)).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(_)) => Err(Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_large",
            format!("the body is larger than {most} bytes, or was cut off"),
        )),
        Err(_) => Err(Refusal::new(
            StatusCode::REQUEST_TIMEOUT,
            "timeout",
            "timeout while reading the body",
        )),
    }
}

/// From the path and the body.
fn values(operation: &Operation, parts: &Parts, body: &[u8]) -> Result<Values, Refusal> {
    let mut values = Values::new();
    for parameter in operation.parameters {
        if let Some(part) = parts.get(parameter.name) {
            if parameter.kind == Kind::Id {
                number(part)?;
            }
            values = values.with(operation, parameter.name, part);
        }
    }
    let unreadable = |error: serde_json::Error| {
        Refusal::bad_request(format!("the body is not JSON: {error}")).hint("Send an object, or nothing.")
    };
    if let Some(whole) = operation
        .parameters
        .iter()
        .find(|parameter| parameter.kind == Kind::Body)
    {
        let value: &RawValue = serde_json::from_slice(body).map_err(unreadable)?;
        values.set_json(operation, whole.name, value)?;
    } else if !body.iter().all(u8::is_ascii_whitespace) {
        let given: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(body).map_err(unreadable)?;
        for (name, value) in &given {
            if parts.contains_key(name) {
                return Err(Refusal::bad_request(format!("{name:?} is in the path and in the body")));
            }
            values.set_json(operation, name, value)?;
        }
    }
    Ok(values)
}

/// A statement has a time limit, and no other process of the server works for it: what it takes is what it costs.
pub async fn limit(transaction: &Transaction<'_>) -> Result<(), Error> {
    let millis = STATEMENT_TIMEOUT.as_millis();
    Ok(transaction
        .batch_execute(&format!(
            "set local statement_timeout = {millis}; set local jit = off; \
             set local max_parallel_workers_per_gather = 0"
        ))
        .await?)
}

fn number(text: &str) -> Result<i64, Refusal> {
    let refusal = || Refusal::bad_request(format!("an id is a number, not {text:?}"));
    text.parse().map_err(|_| refusal())
}

fn no_such_job(id: i64) -> Refusal {
    Refusal::new(
        StatusCode::NOT_FOUND,
        Code::UnknownJob.sqlstate(),
        format!("there is no job {id}"),
    )
    .hint("It may have been removed, or deleted by retention.")
}

/// The query of a URL.
#[derive(Debug)]
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn read(text: &str) -> Query {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        Query(
            pairs
                .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
                .map(|(name, value)| (decoded(name), decoded(&value.replace('+', " "))))
                .collect(),
        )
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(given, _)| given == name);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// All values of a parameter that may be repeated.
    #[cfg(feature = "cli")]
    pub fn all(&self, name: &str) -> Vec<&str> {
        let found = self.0.iter().filter(|(given, _)| given == name);
        found.map(|(_, value)| value.as_str()).collect()
    }

    fn owned(&self, name: &str) -> Option<String> {
        self.get(name).map(str::to_owned)
    }

    fn number(&self, name: &str) -> Result<Option<i64>, Refusal> {
        let read = |text: &str| {
            text.parse()
                .map_err(|_| Refusal::bad_request(format!("{name} is a number, not {text:?}")))
        };
        self.get(name).map(read).transpose()
    }

    fn check(&self, place: &ReadPath) -> Result<(), Refusal> {
        let is_known = |name: &str| place.query.iter().any(|(known, ..)| *known == name);
        match self.0.iter().find(|(name, _)| !is_known(name)) {
            None => Ok(()),
            Some((unknown, _)) => {
                let known: Vec<&str> = place.query.iter().map(|(name, ..)| *name).collect();
                let known = match known.is_empty() {
                    true => "It has no parameters.".to_owned(),
                    false => format!("Parameters: {}.", known.join(", ")),
                };
                Err(Refusal::bad_request(format!("{} has no parameter {unknown:?}", place.path)).hint(known))
            }
        }
    }

    fn limit(&self) -> Result<i64, Refusal> {
        match self.number("limit")?.unwrap_or(20) {
            limit @ 1..=MOST_ROWS => Ok(limit),
            other => Err(Refusal::bad_request(format!(
                "limit is a number from 1 to {MOST_ROWS}, not {other}"
            ))),
        }
    }

    fn state(&self) -> Result<Option<crate::State>, Refusal> {
        Ok(self.get("state").map(str::parse).transpose()?)
    }

    fn filter(&self) -> Result<Filter, Refusal> {
        Ok(Filter {
            queue: self.owned("queue"),
            command: self.owned("command"),
            state: self.state()?,
            since: self.owned("since"),
            ended_since: self.owned("ended_since"),
            older_than: self.owned("older_than"),
            error_like: self.owned("error_like"),
            code: self.owned("code"),
            fingerprint: self.owned("fingerprint"),
            reason: self.get("reason").map(str::parse).transpose()?,
            before: self.number("before")?,
            worker: self.number("worker")?,
        })
    }
}

/// What %-escapes stand for; those that stand for nothing are left as they are.
fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_of_a_url_is_a_filter() {
        let query = Query::read("queue=mail%20out&error_like=no+such&limit=5&state=");
        let filter = query.filter().unwrap();

        assert_eq!(filter.queue.as_deref(), Some("mail out"));
        assert_eq!(filter.error_like.as_deref(), Some("no such"));
        assert_eq!((filter.state, query.limit().unwrap()), (None, 5));
        assert!(Query::read("limit=0").limit().is_err() && Query::read("limit=x").limit().is_err());
        assert_eq!(decoded("100%"), "100%");
    }
}
