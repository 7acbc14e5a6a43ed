//! Defaults of jobs: commands and retry policies.

use serde::Serialize;
use tokio_postgres::GenericClient;

use crate::admin::operations::array;
use crate::db::connect::Unnamed;
use crate::error::Result;
use crate::spelled::spelled;

/// A command: its settings, its workers and its counts of the last hour.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct CommandLine {
    /// Its name.
    pub name: String,
    /// Live workers that serve it.
    pub workers: i64,
    /// Time limit for each attempt.
    pub timeout_seconds: Option<f64>,
    /// Maximum number of attempts.
    pub max_attempts: Option<i32>,
    /// Retry policy.
    pub retry_policy: Option<String>,
    /// Attempts that completed in the last hour.
    pub completed_last_hour: i64,
    /// Attempts that failed in the last hour.
    pub failed_last_hour: i64,
}

/// Commands that are configured, served, or were run in the last hour.
///
/// # Errors
/// If the query fails.
pub async fn commands(client: &impl GenericClient) -> Result<Vec<CommandLine>> {
    let rows = client
        .ask(
            "with served as ( \
               select c.name, count(*) as workers \
               from bugle.workers w cross join lateral unnest(w.commands) c (name) \
               where w.state in ('alive', 'paused') \
               group by c.name), \
             done as ( \
               select s.command as name, sum(s.completed)::bigint as completed, sum(s.failed)::bigint as failed \
               from bugle.command_stats s \
               group by s.command) \
             select name, coalesce(case when c.steps is null then s.workers else ( \
                 select count(*) from bugle.workers w where w.state in ('alive', 'paused') and c.steps <@ w.commands) \
               end, 0) as workers, extract(epoch from c.timeout)::float8 as timeout_seconds, \
               c.max_attempts, c.retry_policy, coalesce(d.completed, 0) as completed, coalesce(d.failed, 0) as failed \
             from bugle.commands c \
               full join served s using (name) \
               full join done d using (name) \
             order by name",
            &[],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(CommandLine {
                name: row.try_get("name")?,
                workers: row.try_get("workers")?,
                timeout_seconds: row.try_get("timeout_seconds")?,
                max_attempts: row.try_get("max_attempts")?,
                retry_policy: row.try_get("retry_policy")?,
                completed_last_hour: row.try_get("completed")?,
                failed_last_hour: row.try_get("failed")?,
            })
        })
        .collect()
}

spelled! {
    /// How the delays of a retry policy grow: `bugle.retry_policies.kind`.
    #[non_exhaustive]
    PolicyKind, "the kind of a retry policy" {
        /// Always the same delay.
        Fixed = "fixed",
        /// Each delay is longer than the one before, by the same factor.
        Exponential = "exponential",
        /// The same delay for some retries, then exponential.
        FixedThenExponential = "fixed_then_exponential",
        /// Exponential, without a limit on the number of attempts.
        Endless = "endless",
        /// Some retries per day.
        Daily = "daily",
    }
}

/// A retry policy: a row of `bugle.retry_policies`.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Policy {
    /// Its name.
    pub name: String,
    /// How delays grow from one retry to the next.
    pub kind: PolicyKind,
    /// Maximum number of attempts; `None` for unlimited.
    pub attempts: Option<i32>,
    /// Number of retries; `None` for endless and daily policies.
    pub retries: Option<i32>,
    /// Of a daily policy: retries per day.
    pub per_day: Option<i32>,
    /// Of a daily policy: on how many days; `None` for two.
    pub days: Option<i32>,
    /// The first delay, as an interval of Postgres.
    pub delay: String,
    /// Growth factor of the delays.
    pub factor: f64,
    /// The longest delay, as an interval of Postgres.
    pub max_delay: String,
    /// The relative jitter of the delays.
    pub jitter: f64,
    /// Commands that use it, for their jobs or their steps.
    pub commands: Vec<String>,
    /// Schedules whose jobs use it.
    pub schedules: Vec<String>,
}

/// All policies.
///
/// # Errors
/// If the query fails.
pub async fn policies(client: &impl GenericClient) -> Result<Vec<Policy>> {
    let rows = client
        .ask(
            "select p.name, p.kind, nullif(bugle.attempts_allowed(p), 2147483647) as attempts, \
               p.retries, p.per_day, p.days, p.delay::text as delay, \
               p.factor::float8 as factor, p.max_delay::text as max_delay, p.jitter::float8 as jitter, \
               array(select c.name from bugle.commands c where p.name in (c.retry_policy, c.step_retry_policy) \
                 order by c.name) as commands, \
               array(select s.name from bugle.schedules s where s.retry_policy = p.name \
                 order by s.name) as schedules \
             from bugle.retry_policies p \
             order by p.name",
            &[],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Policy {
                name: row.try_get("name")?,
                kind: row.try_get("kind")?,
                attempts: row.try_get("attempts")?,
                retries: row.try_get("retries")?,
                per_day: row.try_get("per_day")?,
                days: row.try_get("days")?,
                delay: row.try_get("delay")?,
                factor: row.try_get("factor")?,
                max_delay: row.try_get("max_delay")?,
                jitter: row.try_get("jitter")?,
                commands: row.try_get("commands")?,
                schedules: row.try_get("schedules")?,
            })
        })
        .collect()
}

/// One delay of a policy.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Delay {
    /// The number of the retry, from 1.
    pub retry: i32,
    /// Seconds after the previous failure.
    pub seconds: f64,
    /// Seconds after the first failure.
    pub total_seconds: f64,
}

/// The delays of a policy without jitter, for a job that fails immediately each time.
///
/// # Errors
/// If the query fails.
pub async fn policy_delays(client: &impl GenericClient, name: &str, count: i32) -> Result<Vec<Delay>> {
    let rows = client
        .ask(
            "with recursive step (retry, at, seconds) as ( \
               select 0, timestamptz '2000-01-01', 0::float8 \
               union all \
               select s.retry + 1, n.at, extract(epoch from n.at - s.at)::float8 \
               from step s \
                 join bugle.retry_policies p on p.name = $1 \
                 cross join lateral bugle.backoff(p, s.retry + 1, timestamptz '2000-01-01', s.at, 0.5) n (at) \
               where s.retry < least($2, bugle.attempts_allowed(p) - 1)) \
             select s.retry, s.seconds, extract(epoch from s.at - timestamptz '2000-01-01')::float8 as total \
             from step s where s.retry > 0 order by s.retry",
            &[&name, &count],
        )
        .await?;
    let delay = |row: &tokio_postgres::Row| {
        Ok(Delay {
            retry: row.try_get(0)?,
            seconds: row.try_get(1)?,
            total_seconds: row.try_get(2)?,
        })
    };
    rows.iter().map(delay).collect()
}

/// What a command's jobs get unless they set it: the columns of its row of `bugle.commands`, as texts. Empty if it has
/// none.
///
/// # Errors
/// If the query fails.
pub async fn template(client: &impl GenericClient, command: &str) -> Result<Vec<(String, String)>> {
    let rows = client
        .ask(
            "select v.key, case jsonb_typeof(v.value) \
               when 'array' then (select string_agg(e, ', ') from jsonb_array_elements_text(v.value) e) \
               else v.value #>> '{}' end \
             from bugle.commands c cross join lateral jsonb_each(jsonb_strip_nulls(to_jsonb(c))) v \
             where c.name = $1",
            &[&command],
        )
        .await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// Whether one of the newest 100,000 jobs has this command. Others are known by `commands`.
///
/// # Errors
/// If the query fails.
pub async fn is_known_command(client: &impl GenericClient, command: &str) -> Result<bool> {
    let sql = "select exists (select from (select j.command from bugle.jobs j order by j.id desc limit 100000) n \
        where n.command = $1)";
    Ok(client.ask_one(sql, &[&command]).await?.try_get(0)?)
}

/// Whether this login may change templates: it acts as the owner of the schema.
///
/// # Errors
/// If the query fails.
pub async fn may_set_templates(client: &impl GenericClient) -> Result<bool> {
    let sql = "select pg_has_role(c.relowner, 'usage') from pg_class c where c.oid = to_regclass('bugle.commands')";
    Ok(client.ask_one(sql, &[]).await?.try_get(0)?)
}

/// Set these columns of a command's row of `bugle.commands`, from JSON; null removes a value. What has changed is
/// recorded in `bugle.changes`, with the note: call it in a transaction.
///
/// # Errors
/// If a value is invalid, or the login lacks the privilege.
pub async fn set_template(
    client: &impl GenericClient,
    command: &str,
    columns: &serde_json::Map<String, serde_json::Value>,
    note: Option<&str>,
) -> Result<()> {
    let before = template(client, command).await?;
    let names: Vec<&str> = TEMPLATE
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| columns.contains_key(*name))
        .collect();
    let names = names.join(", ");
    let excluded = names
        .split(", ")
        .map(|name| format!("excluded.{name}"))
        .collect::<Vec<_>>()
        .join(", ");
    let sql = format!(
        "insert into bugle.commands (name, {names}) \
         select $1, {names} from jsonb_populate_record(null::bugle.commands, $2) \
         on conflict (name) do update set ({names}) = row({excluded})"
    );
    client.change(&sql, &[&command, &postgres_types::Json(columns)]).await?;
    let after = template(client, command).await?;
    let only_in = |some: &[(String, String)], others: &[(String, String)]| {
        let changed = some.iter().filter(|column| !others.contains(column));
        let changed: Vec<String> = changed.map(|(name, value)| format!("{name} {value}")).collect();
        Some(changed.join(", ")).filter(|text| !text.is_empty())
    };
    let (from, to) = (only_in(&before, &after), only_in(&after, &before));
    if from.is_some() || to.is_some() {
        let sql = "select bugle.record_change('set_template', null, $1, $2, $3, p_command => $4)";
        client.change(sql, &[&from, &to, &note, &command]).await?;
    }
    Ok(())
}

/// A statement that sets these columns of a command's template.
pub fn template_sql(command: &str, columns: &serde_json::Map<String, serde_json::Value>) -> String {
    use serde_json::Value;

    let literal = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let value = |value: &Value| match value {
        Value::Null => "null".to_owned(),
        Value::Array(list) => {
            let list: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
            literal(&array(&list))
        }
        Value::String(text) => literal(text),
        other => other.to_string(),
    };
    if columns.is_empty() {
        return format!("select * from bugle.commands where name = {};", literal(command));
    }
    let names: Vec<&str> = columns.keys().map(String::as_str).collect();
    let values: Vec<String> = columns.values().map(value).collect();
    let new: Vec<String> = names.iter().map(|name| format!("{name} = excluded.{name}")).collect();
    format!(
        "insert into bugle.commands (name, {})\nvalues ({}, {})\non conflict (name) do update\nset {};",
        names.join(", "),
        literal(command),
        values.join(", "),
        new.join(", ")
    )
}

/// The columns of a template, and what they are.
pub const TEMPLATE: [(&str, &str); 17] = [
    ("queue", "The queue of its jobs."),
    ("priority", "Smaller values run first."),
    (
        "delay",
        "How long after the INSERT they are due, for example 5 minutes.",
    ),
    ("timeout", "How long one attempt may take."),
    ("deadline", "How long after the INSERT they may still start."),
    ("max_attempts", "Maximum number of attempts."),
    ("retry_policy", "How retries are spaced: a row of bugle.retry_policies."),
    ("step_retry_policy", "The same within a step of a chain."),
    ("steps", "Makes them chains of these commands, separated by commas."),
    ("on_success", "The command that follows a job that completed."),
    ("on_failure", "The command that follows a job that failed for good."),
    (
        "required_keys",
        "Keys that each payload must have, separated by commas.",
    ),
    (
        "unique_mode",
        "keep, replace or move: what a second job with the same key does.",
    ),
    ("order_key", "Where in the payload the order key is: $.customer"),
    ("limit_key", "Where in the payload the limit key is: $.tenant"),
    ("fair_key", "Where in the payload the fair key is: $.tenant"),
    ("idempotency_ttl", "How long idempotency keys are remembered."),
];
