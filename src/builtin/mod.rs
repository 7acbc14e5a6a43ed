//! Executors that need no code: a program, an HTTP request or an SQL statement, configured in the worker's file or
//! by [`Settings::command`](crate::Settings::command).

pub(crate) mod group;
mod guardian;
#[cfg_attr(not(feature = "http"), path = "no_http.rs")]
mod http;
pub(crate) mod output;
mod program;
#[cfg(feature = "http")]
mod retry_after;
mod sql;
pub(crate) mod surroundings;
#[cfg(all(test, feature = "cli"))]
pub(crate) mod testing;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::config::{Action, CommandConfig, environment};
use crate::error::{Error, Result};
use crate::execute::executor::Executor;
use crate::execute::registry::Registry;
use crate::execute::step::stopped;

/// Larger results are rejected. Store large data elsewhere and return a reference to it.
pub(crate) const MOST_RESULT: usize = 1024 * 1024;

/// Add an executor for each of these commands. A worker does so with those of its settings
/// ([`Settings::command`](crate::Settings::command)).
///
/// # Errors
/// If a command already has an executor, an environment variable it refers to is not set, or a URL, method or header
/// is invalid. The error names the command.
///
/// ```
/// use bugle::Registry;
/// use bugle::config::CommandConfig;
///
/// let commands = [("resize".to_string(), CommandConfig::program(["resize", "--fast"]))].into();
/// let registry = bugle::builtin::register(Registry::new(), &commands)?;
/// assert_eq!(registry.commands(), ["resize"]);
/// # Ok::<(), bugle::Error>(())
/// ```
pub fn register(registry: Registry, commands: &BTreeMap<String, CommandConfig>) -> Result<Registry> {
    let mut clients = http::Clients::default();
    commands.iter().try_fold(registry, |registry, (command, config)| {
        let in_context = |error: Error| error.in_context(&format!("commands.{command}"));
        if registry.executor_for(command).is_some() {
            return Err(in_context(
                Error::new("the program also registers an executor for this command")
                    .with_hint("Remove or rename one of the two."),
            ));
        }
        config.check().map_err(|error| in_context(Error::new(error)))?;
        if let Action::Sql(sql) = &config.action
            && let Some(most) = sql.batch
        {
            let sql = sql::Sql::new(&sql.statement, config.timeout);
            return Ok(registry.register_many(command, sql::Batched { sql, most }));
        }
        let executor = executor(config, &mut clients).map_err(in_context)?;
        Ok(registry.register_arc(command, executor))
    })
}

fn executor(config: &CommandConfig, clients: &mut http::Clients) -> Result<Arc<dyn Executor>> {
    let timeout = config.timeout;
    Ok(match &config.action {
        Action::Program(program) => Arc::new(program::Program::new(program, timeout, &environment)?),
        Action::Sql(sql) => Arc::new(sql::Sql::new(&sql.statement, timeout)),
        Action::Http(http) => http::executor(http, timeout, clients, &environment)?,
    })
}

/// The output of a program or server as a result. Empty output and null mean no result.
///
/// Postgres cannot store everything that JSON allows: NUL in strings, lone surrogates, unlimited nesting. The parser
/// already rejects the last two.
pub(crate) fn result_from(text: &[u8]) -> Result<Option<Box<RawValue>>, Error> {
    let text = text.trim_ascii();
    if text.is_empty() {
        return Ok(None);
    }
    // serde's message contains no data, only what was expected and where
    let value: Value = serde_json::from_slice(text).map_err(|error| Error::new(error.to_string()))?;
    if has_nul(&value) {
        return Err(Error::new(
            "a string contains NUL (\\u0000), which Postgres cannot store",
        ));
    }
    match value {
        Value::Null => Ok(None),
        _ => serde_json::from_slice(text).map_err(|error| Error::new(error.to_string())),
    }
}

fn has_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(values) => values.iter().any(has_nul),
        Value::Object(fields) => fields.iter().any(|(name, value)| name.contains('\0') || has_nul(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Untrusted bytes as text that Postgres can store.
fn readable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace('\0', "").trim().to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::{HttpConfig, Secret};

    fn commands(action: Action) -> BTreeMap<String, CommandConfig> {
        let timeout = Duration::from_secs(1);
        BTreeMap::from([("hook".to_owned(), CommandConfig { timeout, action })])
    }

    #[test]
    fn a_result_is_kept_to_the_digit() {
        let kept = |text: &str| result_from(text.as_bytes()).unwrap().map(|json| json.get().to_string());

        assert_eq!(
            kept("\n {\"a\": 12345678901234567890.123456789} \n").unwrap(),
            "{\"a\": 12345678901234567890.123456789}"
        );
        assert_eq!(kept(""), None);
        assert_eq!(kept(" \n"), None);
        assert_eq!(kept("null"), None);
    }

    #[test]
    fn what_postgres_could_not_keep_is_no_result() {
        let deep = "[".repeat(500) + &"]".repeat(500);
        for text in [
            r#""a\u0000b""#,
            r#"{"a\u0000": 1}"#,
            r#"["\ud800"]"#,
            &deep,
            "1e999",
            "{",
            "hello",
            "\u{feff}1",
            "1 2",
        ] {
            assert!(result_from(text.as_bytes()).is_err(), "{text}");
        }
        assert!(result_from(b"\"\xff\"").is_err());
    }

    #[test]
    fn a_command_of_the_file_that_the_program_registers_too_is_refused_by_name() {
        let of_the_file = commands(CommandConfig::sql("select 1").action);
        let registry = Registry::new().on("hook", async |_: crate::Context, _: Value| Ok(()));

        let error = register(registry, &of_the_file).err().unwrap().to_string();

        assert!(
            error.contains("commands.hook") && error.contains("also registers an executor"),
            "{error}"
        );
    }

    #[test]
    fn a_variable_or_a_feature_that_is_missing_stops_the_worker_and_is_named() {
        let http = HttpConfig {
            url: Secret::new("https://example.org"),
            method: "POST".into(),
            headers: [("a".to_owned(), Secret::new("env:BUGLE_TEST_MISSING"))].into(),
        };

        let error = register(Registry::new(), &commands(Action::Http(http)))
            .err()
            .unwrap()
            .to_string();

        let part = match cfg!(feature = "http") {
            true => "BUGLE_TEST_MISSING",
            false => "needs the feature http",
        };
        assert!(error.contains("commands.hook") && error.contains(part), "{error}");
    }
}
