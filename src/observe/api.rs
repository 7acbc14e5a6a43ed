//! The JSON API: the same questions and verbs as the command line's. Described by docs/openapi.json.
//!
//! It asks as the worker's own login, so that login needs the roles `bugle_viewer` and `bugle_operator` for it.

use std::time::Duration;

use deadpool_postgres::{Pool, Transaction};
use hyper::{Method, StatusCode};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::json;

use super::listen::Reply;
use crate::admin::operate::{self, FleetVerb, Verb};
use crate::admin::read::{self, Filter};
use crate::error::{Code, Error};

/// The description, as it is served.
const OPENAPI: &str = include_str!("../../docs/openapi.json");
/// How long one question may take.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);
const MOST_JOBS: i64 = 1000;

/// What may be asked of jobs, in the query of the URL.
#[derive(Debug)]
struct Query(Vec<(String, String)>);

/// What may be said with a change.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    /// Why, for the record.
    note: Option<String>,
}

pub async fn answer(pool: &Pool, method: &Method, path: &str, query: &str, body: &[u8]) -> Reply {
    let path: Vec<String> = path.trim_matches('/').split('/').skip(1).map(decoded).collect();
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let asked = match (method.as_str(), &path[..]) {
        ("GET", ["openapi.json"]) => return Reply::raw_json(OPENAPI),
        ("GET", path) => get(pool, path, &Query::read(query)).await,
        ("POST", path) => match read_change(body) {
            Ok(change) => post(pool, path, change.note.as_deref()).await,
            Err(why) => {
                return Reply::error(
                    StatusCode::BAD_REQUEST,
                    &why,
                    Some("Send {\"note\": \"why\"}, or nothing."),
                );
            }
        },
        _ => return Reply::error(StatusCode::METHOD_NOT_ALLOWED, "only GET and POST are served", None),
    };
    asked.unwrap_or_else(|error| failed(&error))
}

async fn get(pool: &Pool, path: &[&str], query: &Query) -> Result<Reply, Error> {
    let mut client = pool.get().await?;
    let transaction = client.build_transaction().read_only(true).start().await?;
    limit(&transaction).await?;
    let client = &*transaction;
    Ok(match path {
        ["queues"] => Reply::json(&read::queues(client).await?),
        ["workers"] => Reply::json(&read::workers(client, query.get("all") == Some("true")).await?),
        ["stats"] => Reply::json(&read::command_stats(client).await?),
        ["errors"] => Reply::json(&read::error_groups(client, query.get("since").unwrap_or("1 hour")).await?),
        ["jobs"] => {
            let (filter, most) = match query.filter() {
                Ok(filter) => filter,
                Err(why) => return Ok(Reply::error(StatusCode::BAD_REQUEST, &why, None)),
            };
            Reply::json(&read::jobs(client, &filter, most).await?)
        }
        ["jobs", id] => match read::job(client, number(id)?).await? {
            Some(job) => Reply::json(&job),
            None => no_such("job", id),
        },
        ["jobs", id, "explain"] => Reply::json(&operate::explain(client, number(id)?).await?),
        _ => nothing_here(),
    })
}

async fn post(pool: &Pool, path: &[&str], note: Option<&str>) -> Result<Reply, Error> {
    let post = match path {
        ["jobs", id, verb] => {
            let verb = match *verb {
                "cancel" => Verb::Cancel,
                "pause" => Verb::Pause,
                "resume" => Verb::Resume,
                "restart" => Verb::Restart,
                _ => return Ok(nothing_here()),
            };
            let operated = in_transaction(pool, async |client| {
                operate::apply(client, &verb, &[number(id)?], note).await
            })
            .await?;
            return Ok(match operated.first() {
                Some(job) if job.done => Reply::json(job),
                Some(job) if job.state.is_none() => no_such("job", id),
                Some(job) => Reply::error(
                    StatusCode::CONFLICT,
                    job.why.as_deref().unwrap_or("it was refused"),
                    None,
                ),
                None => no_such("job", id),
            });
        }
        ["queues", _, "pause"] => FleetVerb::PauseQueue,
        ["queues", _, "resume"] => FleetVerb::ResumeQueue,
        ["workers", _, "pause"] => FleetVerb::PauseWorker,
        ["workers", _, "resume"] => FleetVerb::ResumeWorker,
        ["workers", _, "drain"] => FleetVerb::DrainWorker,
        _ => return Ok(nothing_here()),
    };
    if path[0] == "workers" {
        number(path[1])?;
    }
    in_transaction(pool, async |client| operate::order(client, post, path[1], note).await).await?;
    Ok(Reply::json(&json!({ "done": true })))
}

async fn in_transaction<T>(
    pool: &Pool,
    work: impl AsyncFnOnce(&tokio_postgres::Transaction<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut client = pool.get().await?;
    let transaction = client.transaction().await?;
    limit(&transaction).await?;
    let done = work(&transaction).await?;
    transaction.commit().await?;
    Ok(done)
}

async fn limit(transaction: &Transaction<'_>) -> Result<(), Error> {
    let millis = STATEMENT_TIMEOUT.as_millis();
    Ok(transaction
        .batch_execute(&format!("set local statement_timeout = {millis}; set local jit = off"))
        .await?)
}

fn read_change(body: &[u8]) -> Result<Change, String> {
    match body.iter().all(u8::is_ascii_whitespace) {
        true => Ok(Change::default()),
        false => serde_json::from_slice(body).map_err(|error| format!("the body cannot be read: {error}")),
    }
}

/// A non-numeric id matches no job.
fn number(text: &str) -> Result<i64, Error> {
    text.parse().map_err(|_| Error::new(NO_NUMBER))
}

const NO_NUMBER: &str = "an id is a number";

fn no_such(what: &str, id: &str) -> Reply {
    Reply::error(StatusCode::NOT_FOUND, &format!("there is no {what} {id}"), None)
}

fn nothing_here() -> Reply {
    Reply::error(
        StatusCode::NOT_FOUND,
        "there is nothing here",
        Some("/api/openapi.json describes what there is."),
    )
}

fn failed(error: &Error) -> Reply {
    let status = match (error.code(), error.sqlstate()) {
        (Some(Code::UnknownJob | Code::UnknownWorker), _) => StatusCode::NOT_FOUND,
        (Some(Code::RefusedTransition), _) => StatusCode::CONFLICT,
        (Some(_), _) => StatusCode::BAD_REQUEST,
        (_, Some("42501")) => {
            let hint = "The worker's login asks. As the owner: grant bugle_viewer, bugle_operator to LOGIN;";
            return Reply::error(StatusCode::FORBIDDEN, &error.message(), Some(hint));
        }
        (_, Some("57014")) => StatusCode::GATEWAY_TIMEOUT,
        // not what was asked, but how: a date or an interval that is none
        (_, Some(code)) if code.starts_with("22") => StatusCode::BAD_REQUEST,
        _ if error.message() == NO_NUMBER => StatusCode::BAD_REQUEST,
        _ if error.is_transient() => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    Reply::error(status, &error.message(), error.what_to_do())
}

impl Query {
    fn read(text: &str) -> Query {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        Query(
            pairs
                .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
                .map(|(name, value)| (decoded(name), decoded(&value.replace('+', " "))))
                .collect(),
        )
    }

    fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(given, _)| given == name);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    fn filter(&self) -> Result<(Filter, i64), String> {
        const KNOWN: [&str; 6] = ["queue", "command", "state", "since", "error_like", "limit"];
        if let Some((unknown, _)) = self.0.iter().find(|(name, _)| !KNOWN.contains(&name.as_str())) {
            return Err(format!("{unknown:?} is no filter; there are {}", KNOWN.join(", ")));
        }
        let most = self.get("limit").map_or(Ok(20), str::parse::<i64>);
        let most = most.ok().filter(|most| (1..=MOST_JOBS).contains(most));
        let owned = |name| self.get(name).map(str::to_owned);
        let filter = Filter {
            queue: owned("queue"),
            command: owned("command"),
            state: owned("state"),
            since: owned("since"),
            error_like: owned("error_like"),
        };
        Ok((
            filter,
            most.ok_or_else(|| format!("limit is a number from 1 to {MOST_JOBS}"))?,
        ))
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
        let (filter, most) = query.filter().unwrap();

        assert_eq!(filter.queue.as_deref(), Some("mail out"));
        assert_eq!(filter.error_like.as_deref(), Some("no such"));
        assert_eq!((filter.state, most), (None, 5));
        assert!(Query::read("colour=red").filter().unwrap_err().contains("colour"));
        assert!(Query::read("limit=0").filter().is_err() && Query::read("limit=x").filter().is_err());
        assert_eq!(decoded("100%"), "100%");
    }
}
