//! Jobs by a query: `state:failed queue:mail,default -command:metrics age:<1h error:"timeout" payload.user.id:42`.

use std::time::Duration;

use tokio_postgres::GenericClient;

use super::jobs::{JobSummary, LINE, job_summary};
use crate::admin::operations::array;
use crate::db::connect::{Parameter, Unnamed};
use crate::error::{Error, Result};
use crate::job::JobId;
use crate::state::State;

/// How many of the newest jobs are searched for one page.
pub const SEARCHED: i64 = 100_000;

/// The names a query knows, each with an example.
pub const KEYS: [(&str, &str); 18] = [
    ("state", "state:failed,retrying"),
    ("command", "command:send_mail"),
    ("queue", "queue:mail"),
    ("worker", "worker:17"),
    ("step", "step:resize"),
    ("schedule", "schedule:nightly"),
    ("workflow", "workflow:17"),
    ("key", "key:order-17"),
    ("parent", "parent:17"),
    ("age", "age:>5m"),
    ("ended", "ended:<1h"),
    ("error", "error:\"connection refused\""),
    ("code", "code:timeout"),
    ("fingerprint", "fingerprint:\"no route to host #\""),
    ("reason", "reason:attempts_exhausted"),
    ("attempt", "attempt:>3"),
    ("priority", "priority:<0"),
    ("payload", "payload.user.id:42"),
];

/// The columns that are shown or searched, besides the payload.
const SEARCHABLE: &str = "j.id, j.state, j.command, j.queue, j.priority, j.attempt, j.reason, j.last_error, \
    j.last_error_code, j.created_at, j.run_at, j.started_at, j.finished_at, j.worker, j.parent, j.unique_key, \
    j.idempotency_key, j.order_key, j.limit_key, j.fair_key";

/// A query that was read.
#[derive(Debug, Clone, Default)]
pub struct Search {
    /// The states it can match; none for all.
    states: Vec<State>,
    conditions: Vec<Condition>,
    /// The paths of the payload it asks about.
    paths: Vec<Vec<String>>,
}

/// A condition on the row `j`. `{}` in its SQL stands for the parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Condition {
    sql: String,
    value: String,
}

/// A page of what was found.
#[derive(Debug)]
#[non_exhaustive]
pub struct Found {
    /// The jobs, the newest first.
    pub jobs: Vec<JobSummary>,
    /// Where the next page begins, if there may be one.
    pub next: Option<JobId>,
    /// Whether the search stopped after [`SEARCHED`] jobs, before it had examined all of them.
    pub is_cut: bool,
}

impl Search {
    /// Read a query. Terms are separated by spaces; all must hold. Several values, separated by commas, are
    /// alternatives; a minus before a term negates it. What is between quotes is taken literally; in it, `\"` is a
    /// quote and `\\` a backslash.
    ///
    /// # Errors
    /// If a name or a value is unknown.
    pub fn parse(text: &str) -> Result<Search> {
        let mut search = Search::default();
        for word in words(text) {
            search.add(&word)?;
        }
        Ok(search)
    }

    /// The only state it asks for.
    pub fn state(&self) -> Option<State> {
        match self.states[..] {
            [one] => Some(one),
            _ => None,
        }
    }

    /// The states it asks for; none if it asks for all.
    pub fn states(&self) -> &[State] {
        &self.states
    }

    /// Whether it has conditions besides states.
    pub fn is_filtered(&self) -> bool {
        !self.conditions.is_empty()
    }

    fn add(&mut self, word: &str) -> Result<()> {
        let (negated, term) = match word.strip_prefix('-') {
            Some(rest) if !rest.is_empty() => (true, rest),
            _ => (false, word),
        };
        let Some((key, value)) = term.split_once(':').filter(|_| !term.starts_with('"')) else {
            return self.add_bare(term, negated);
        };
        let values = alternatives(value);
        if values.iter().all(String::is_empty) {
            return Err(Error::new(format!("{key}: needs a value")).with_hint(hint()));
        }
        if key == "state" {
            return self.add_states(&values, negated);
        }
        let condition = condition(key, &values)?;
        if let Some(path) = key.strip_prefix("payload.") {
            self.paths.push(path.split('.').map(str::to_owned).collect());
        }
        self.push(condition, negated);
        Ok(())
    }

    /// A number is an id; any other word is part of a command's name.
    fn add_bare(&mut self, term: &str, negated: bool) -> Result<()> {
        let condition = match term.parse::<i64>() {
            Ok(_) => ("j.id = {}::text::bigint", term.to_owned()),
            Err(_) => ("strpos(lower(j.command), lower({})) > 0", alternatives(term).join(",")),
        };
        self.push((condition.0.to_owned(), condition.1), negated);
        Ok(())
    }

    fn add_states(&mut self, values: &[String], negated: bool) -> Result<()> {
        let given = values
            .iter()
            .map(|value| value.parse())
            .collect::<Result<Vec<State>>>()?;
        let known = match self.states.is_empty() {
            true => State::ALL.to_vec(),
            false => self.states.clone(),
        };
        self.states = known
            .into_iter()
            .filter(|state| given.contains(state) != negated)
            .collect();
        if self.states.is_empty() {
            return Err(Error::new("no state is left that could match").with_hint(hint()));
        }
        Ok(())
    }

    fn push(&mut self, (sql, value): (String, String), negated: bool) {
        let sql = match negated {
            true => format!("({sql}) is not true"),
            false => sql,
        };
        self.conditions.push(Condition { sql, value });
    }

    /// The statement for a page, with what it takes.
    fn statement(&self, before: Option<JobId>, limit: i64) -> (String, Vec<String>) {
        let mut values = Vec::new();
        let mut filters = Vec::new();
        for condition in &self.conditions {
            values.push(condition.value.clone());
            filters.push(condition.sql.replace("{}", &format!("${}", values.len())));
        }
        let filters = match filters.is_empty() {
            true => String::new(),
            false => format!(" where {}", filters.join(" and ")),
        };
        let newest = self.newest(before);
        // an observer may not read the others
        let columns = match self.paths.is_empty() {
            true => SEARCHABLE.to_owned(),
            false => format!("{SEARCHABLE}, j.payload"),
        };
        let sql = format!(
            "select {LINE} from (select {columns} from {newest} order by j.id desc limit {SEARCHED}) j{filters} \
             order by j.id desc limit {limit}"
        );
        (sql, values)
    }

    /// Which rows are looked at. States are spelled out, so that only their partitions are read.
    fn newest(&self, before: Option<JobId>) -> String {
        let states: Vec<String> = self.states.iter().map(|state| format!("'{state}'")).collect();
        let mut conditions = Vec::new();
        if !states.is_empty() {
            conditions.push(format!("j.state in ({})", states.join(", ")));
        }
        if let Some(before) = before {
            conditions.push(format!("j.id < {before}"));
        }
        match conditions.is_empty() {
            true => "bugle.jobs j".to_owned(),
            false => format!("bugle.jobs j where {}", conditions.join(" and ")),
        }
    }

    /// The ids of what it finds, as a subquery.
    #[cfg(all(feature = "cli", feature = "web"))]
    pub(crate) fn ids_sql(&self, limit: i64) -> String {
        let sql = self.sql(None, limit);
        sql.trim_end_matches(';').replacen("select *", "select j.id", 1)
    }

    /// The same as a statement to copy.
    pub fn sql(&self, before: Option<JobId>, limit: i64) -> String {
        let mut filters: Vec<String> = Vec::new();
        let newest = self.newest(before);
        for condition in &self.conditions {
            let literal = format!("'{}'", condition.value.replace('\'', "''"));
            filters.push(condition.sql.replace("{}::text", &literal).replace("{}", &literal));
        }
        if filters.is_empty() {
            let from = newest.replace(" where ", "\nwhere ").replace(" and ", "\n  and ");
            return format!("select *\nfrom {from}\norder by j.id desc\nlimit {limit};");
        }
        let filters = filters.join("\n  and ");
        format!(
            "select *\nfrom (select * from {newest} order by j.id desc limit {SEARCHED}) j\n\
             where {filters}\norder by j.id desc\nlimit {limit};"
        )
    }
}

/// A page of jobs. At most [`SEARCHED`] of the newest are looked at.
///
/// # Errors
/// If the query fails.
pub async fn search(client: &impl GenericClient, search: &Search, before: Option<JobId>, limit: i64) -> Result<Found> {
    for path in &search.paths {
        if client
            .ask_one("select bugle.is_redacted($1)", &[path])
            .await?
            .try_get(0)?
        {
            return Err(Error::new(format!("payload.{} is redacted", path.join("."))).with_hint(
                "bugle.settings.redacted_paths lists what is never shown, and cannot be searched for either.",
            ));
        }
    }
    let (sql, values) = search.statement(before, limit + 1);
    let parameters: Vec<&dyn Parameter> = values.iter().map(|value| value as &dyn Parameter).collect();
    let rows = client.ask(&sql, &parameters).await?;
    let mut jobs = rows.iter().map(job_summary).collect::<Result<Vec<_>>>()?;
    let has_more = jobs.len() > usize::try_from(limit).unwrap_or(usize::MAX);
    if has_more {
        jobs.pop();
        let next = jobs.last().map(|job| job.id);
        return Ok(Found {
            jobs,
            next,
            is_cut: false,
        });
    }
    if !search.is_filtered() {
        return Ok(Found {
            jobs,
            next: None,
            is_cut: false,
        });
    }
    let newest = search.newest(before);
    let sql = format!(
        "select j.id from {newest} order by j.id desc offset {} limit 1",
        SEARCHED - 1
    );
    let last = client.ask_opt(&sql, &[]).await?;
    let next = last.map(|row| row.try_get(0)).transpose()?;
    Ok(Found {
        jobs,
        is_cut: next.is_some(),
        next,
    })
}

/// The oldest of the newest [`SEARCHED`] jobs, if a query looks at no others: older ones are not searched.
///
/// # Errors
/// If the query fails.
pub async fn oldest_searched(client: &impl GenericClient, search: &Search) -> Result<Option<JobId>> {
    if !search.is_filtered() {
        return Ok(None);
    }
    let sql = format!(
        "select j.id from {} order by j.id desc offset {SEARCHED} - 1 limit 1",
        search.newest(None)
    );
    let row = client.ask_opt(&sql, &[]).await?;
    row.map(|row| Ok(row.try_get(0)?)).transpose()
}

/// Where dead letters failed: the step, the worker and its host, for each of these jobs.
///
/// # Errors
/// If the query fails.
pub async fn failed_where(client: &impl GenericClient, ids: &[JobId]) -> Result<Vec<(JobId, Option<String>, String)>> {
    let rows = client
        .ask(
            "select d.id, d.failed_step, concat_ws(' on ', d.worker_name, d.host) \
             from unnest($1::bigint[]) i (id) \
               cross join lateral ( \
                 select l.id, l.failed_step, l.worker_name, l.host \
                 from bugle.dead_letters l where l.id = i.id limit 1) d",
            &[&ids],
        )
        .await?;
    rows.iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)))
        .collect()
}

/// The reasons of dead letters, with how many jobs and which commands, among the newest 10,000.
///
/// # Errors
/// If the query fails.
pub async fn reasons_of_dead_letters(client: &impl GenericClient) -> Result<Vec<(String, i64, Vec<String>)>> {
    let rows = client
        .ask(
            "select coalesce(j.reason, 'unknown'), count(*), (array_agg(distinct j.command))[1:4] \
             from (select f.reason, f.command from bugle.jobs f where f.state = 'failed' \
               order by f.id desc limit 10000) j \
             group by 1 order by 2 desc limit 20",
            &[],
        )
        .await?;
    rows.iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)))
        .collect()
}

/// How many jobs a query matches, counted up to a limit, among the newest [`SEARCHED`].
///
/// # Errors
/// If the query fails.
pub async fn count_found(client: &impl GenericClient, search: &Search, most: i64) -> Result<i64> {
    let (sql, values) = search.statement(None, most);
    let parameters: Vec<&dyn Parameter> = values.iter().map(|value| value as &dyn Parameter).collect();
    let sql = format!("select count(*) from ({sql}) found");
    Ok(client.ask_one(&sql, &parameters).await?.try_get(0)?)
}

/// The step in which a job failed, among the newest dead letters.
const FAILED_STEP: &str = "j.id in (select d.id from (select l.id, l.failed_step from bugle.dead_letters l \
    order by l.id desc limit 100000) d where d.failed_step = {}::text)";

fn hint() -> String {
    let examples: Vec<&str> = KEYS.iter().map(|(_, example)| *example).collect();
    format!("For example: {}.", examples.join("  "))
}

fn condition(key: &str, values: &[String]) -> Result<(String, String)> {
    // where alternatives make no sense, a comma is part of the value
    let joined = values.join(",");
    let value = joined.as_str();
    let any = |column: &str| Ok((format!("{column} = any ({{}}::text::text[])"), array(values)));
    let number = |column: &str| -> Result<(String, String)> {
        let (operator, rest) = comparison(value);
        let rest = rest.trim();
        match rest.parse::<i64>() {
            Ok(_) => Ok((format!("{column} {operator} {{}}::text::bigint"), rest.to_owned())),
            Err(_) => Err(Error::new(format!("{key}:{value} is not a number")).with_hint(hint())),
        }
    };
    let own = |sql: String| Ok((sql, value.to_owned()));
    match key {
        "id" => number("j.id"),
        // its number, or the name of it or of its host
        "worker" if value.parse::<i64>().is_err() && comparison(value).0 == "=" => {
            own("j.worker in (select w.id from bugle.workers w where {}::text in (w.name, w.host))".to_owned())
        }
        "worker" => number("j.worker"),
        "step" => own(FAILED_STEP.to_owned()),
        "parent" => number("j.parent"),
        "attempt" => number("j.attempt"),
        "priority" => number("j.priority"),
        "command" => any("j.command"),
        "queue" => any("j.queue"),
        "reason" => any("j.reason"),
        "code" => any("j.last_error_code"),
        "error" => own("strpos(lower(j.last_error), lower({})) > 0".to_owned()),
        "fingerprint" => own("bugle.fingerprint(j.last_error) = {}".to_owned()),
        "schedule" => {
            own("exists (select from bugle.schedule_runs r where r.job = j.id and r.schedule = {})".to_owned())
        }
        "workflow" => match value.parse::<i64>() {
            Ok(_) => own(
                "exists (select from bugle.workflow_jobs w where w.job = j.id and w.workflow = {}::text::bigint)"
                    .to_owned(),
            ),
            Err(_) => Err(Error::new(format!("workflow:{value} is not a number")).with_hint(hint())),
        },
        "key" => own("{} in (j.unique_key, j.idempotency_key, j.order_key, j.limit_key, j.fair_key)".to_owned()),
        "age" | "ended" => {
            let (operator, rest) = comparison(value);
            let (column, usual) = match key {
                "age" => ("created_at", ">"),
                _ => ("finished_at", "<"),
            };
            let operator = if operator == "=" { usual } else { operator };
            let length = humantime::parse_duration(rest.trim()).map_err(|_| {
                let hint = format!("For example {key}:{usual}5m.");
                Error::new(format!("{key}:{value} is not a length of time")).with_hint(hint)
            })?;
            Ok((
                format!("now() - j.{column} {operator} {{}}::text::interval"),
                seconds(length),
            ))
        }
        _ => match key.strip_prefix("payload.") {
            Some(path) if !path.is_empty() => {
                let quoted: Vec<String> = path
                    .split('.')
                    .map(|part| format!("\"{}\"", part.replace('\\', "\\\\").replace('"', "\\\"")))
                    .collect();
                // the path is part of the statement, as a literal
                let path = format!("{{{}}}", quoted.join(","))
                    .replace('\'', "''")
                    .replace("{}", "{ }");
                // of a document, not even whether it is this one: there may be something redacted in it
                own(format!(
                    "(j.payload #>> '{path}' = {{}} and jsonb_typeof(j.payload #> '{path}') not in ('object', 'array'))"
                ))
            }
            _ => Err(Error::new(format!("{key:?} is not a name of the query")).with_hint(hint())),
        },
    }
}

fn seconds(length: Duration) -> String {
    format!("{} seconds", length.as_secs_f64())
}

fn comparison(value: &str) -> (&'static str, &str) {
    for operator in [">=", "<=", ">", "<"] {
        if let Some(rest) = value.strip_prefix(operator) {
            return (operator, rest);
        }
    }
    ("=", value)
}

/// The terms of a query, as they were written.
pub(crate) fn words(text: &str) -> Vec<String> {
    let mut words = split(text, char::is_whitespace);
    words.retain(|word| !word.is_empty());
    words
}

/// The values of a term, without their quotes.
fn alternatives(value: &str) -> Vec<String> {
    split(value, |c| c == ',').iter().map(|value| unquoted(value)).collect()
}

/// Separators inside quotes do not separate.
fn split(text: &str, is_separator: impl Fn(char) -> bool) -> Vec<String> {
    let mut parts = vec![String::new()];
    let (mut is_quoted, mut is_escaped) = (false, false);
    for c in text.chars() {
        let is_taken = is_escaped;
        is_escaped = is_quoted && c == '\\' && !is_taken;
        if c == '"' && !is_taken {
            is_quoted = !is_quoted;
        }
        match parts.last_mut() {
            Some(part) if is_quoted || !is_separator(c) => part.push(c),
            _ => parts.push(String::new()),
        }
    }
    parts
}

fn unquoted(text: &str) -> String {
    let mut value = String::new();
    let mut is_quoted = false;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => is_quoted = !is_quoted,
            '\\' if is_quoted => value.extend(chars.next()),
            c => value.push(c),
        }
    }
    value
}

/// A value as a term of a query has it: in quotes, if it needs them.
pub(crate) fn quoted(value: &str) -> String {
    let is_plain = |c: char| !c.is_whitespace() && !",\"\\".contains(c);
    match !value.is_empty() && value.chars().all(is_plain) {
        true => value.to_owned(),
        false => format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_becomes_conditions() {
        let text = "state:failed,retrying -queue:mail error:\"no route\" payload.user.id:42 17";
        let search = Search::parse(text).unwrap();
        let (sql, values) = search.statement(Some(100), 51);

        assert!(
            sql.contains("j.state in ('retrying', 'failed') and j.id < 100"),
            "{sql}"
        );
        assert!(sql.contains("(j.queue = any ($1::text::text[])) is not true"), "{sql}");
        assert!(sql.contains("j.payload #>> '{\"user\",\"id\"}' = $3"), "{sql}");
        assert_eq!(values, ["{\"mail\"}", "no route", "42", "17"]);
        assert_eq!(Search::parse("state:failed").unwrap().state(), Some(State::Failed));
    }

    #[test]
    fn any_name_can_be_quoted() {
        for name in [
            "mail",
            "a b",
            "a,b",
            "say \"hi\"",
            "back\\slash",
            "\\\"",
            ">5",
            "é , \"",
            "\"",
            "",
        ] {
            let query = format!("command:{} queue:x", quoted(name));
            assert_eq!(words(&query).len(), 2, "{query}");
            let value = words(&query)[0].strip_prefix("command:").unwrap().to_owned();
            assert_eq!(alternatives(&value), [name], "{query}");
        }
        let search = Search::parse("command:\"a,\\\"b\",c").unwrap();
        assert_eq!(search.statement(None, 1).1, ["{\"a,\\\"b\",\"c\"}"]);
    }

    #[test]
    fn a_query_that_makes_no_sense_is_rejected_with_examples() {
        for text in [
            "color:red",
            "state:happy",
            "age:soon",
            "attempt:x",
            "queue:",
            "state:ready -state:ready",
        ] {
            let error = Search::parse(text).unwrap_err();
            assert!(error.hint().is_some(), "{text}: {error}");
        }
    }

    #[test]
    fn a_path_in_the_payload_cannot_leave_its_literal() {
        let search = Search::parse("payload.a'b\"{}:x").unwrap();
        let (sql, values) = search.statement(None, 1);

        assert!(sql.contains("'{\"a''b\\\"{ }\"}' = $1"), "{sql}");
        assert_eq!(values, ["x"]);
    }
}
