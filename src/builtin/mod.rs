//! Executors that need no code: a program, a request, or a SQL statement, as the worker's file sets them up.

mod group;
mod guardian;
mod http;
mod output;
mod program;
mod retry_after;
mod sql;
mod surroundings;
#[cfg(test)]
mod testing;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::config::{Action, CommandConfig, environment};
use crate::error::{Error, Result};
use crate::execute::executor::Executor;
use crate::execute::registry::Registry;
use crate::execute::step::stopped;

/// Results larger than this are refused: they belong elsewhere, and the job's result says where.
const MOST_RESULT: usize = 1024 * 1024;

/// Add an executor for each of these commands.
///
/// # Errors
/// If a command has an executor already, a variable it refers to is not set, or an address, a method or a header is
/// none. The error names the command.
///
/// ```
/// use bugle::Registry;
/// use bugle::config::Config;
///
/// let config = Config::from_toml("[commands.resize]\nprogram = ['resize', '--fast']")?;
/// let registry = bugle::builtin::register(Registry::new(), &config.commands)?;
/// assert_eq!(registry.commands(), ["resize"]);
/// # Ok::<(), bugle::Error>(())
/// ```
pub fn register(registry: Registry, commands: &BTreeMap<String, CommandConfig>) -> Result<Registry> {
    let mut clients = http::Clients::default();
    commands.iter().try_fold(registry, |registry, (command, config)| {
        let in_context = |error: Error| error.in_context(&format!("commands.{command}"));
        if registry.executor_for(command).is_some() {
            return Err(in_context(
                Error::new("an executor of this command is registered in the program too")
                    .hint("Remove one of the two, or give one of them another name."),
            ));
        }
        let executor = executor(config, &mut clients).map_err(in_context)?;
        Ok(registry.register_arc(command, executor))
    })
}

fn executor(config: &CommandConfig, clients: &mut http::Clients) -> Result<Arc<dyn Executor>> {
    let timeout = config.timeout;
    Ok(match &config.action {
        Action::Program(program) => Arc::new(program::Program::new(program, timeout, &environment)?),
        Action::Sql(sql) => Arc::new(sql::Sql::new(sql, timeout)),
        Action::Http(http) => Arc::new(http::Http::new(http, timeout, clients, &environment)?),
    })
}

/// What a program or a server answered, as a result. Nothing, and null, are no result.
///
/// Postgres cannot keep all that JSON allows: no NUL in a text, no half of a surrogate pair, no nesting without end.
/// The last two are already refused by the parser.
fn result_from(text: &[u8]) -> Result<Option<Box<RawValue>>, Error> {
    let text = text.trim_ascii();
    if text.is_empty() {
        return Ok(None);
    }
    // serde's message shows no data, only what it expected and where
    let value: Value = serde_json::from_slice(text).map_err(|error| Error::new(error.to_string()))?;
    if has_nul(&value) {
        return Err(Error::new(
            "a text in it contains a NUL (\\u0000), which Postgres cannot keep",
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

/// Bytes of others, as text that Postgres can keep.
fn readable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace('\0', "").trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let config = crate::config::Config::from_toml("[commands.hook]\nprogram = ['true']").unwrap();
        let registry = Registry::new().on("hook", async |_: crate::Context, _: Value| Ok(()));

        let error = register(registry, &config.commands).err().unwrap().to_string();

        assert!(
            error.contains("commands.hook") && error.contains("registered in the program too"),
            "{error}"
        );
    }

    #[test]
    fn a_variable_that_is_not_set_stops_the_worker_and_is_named() {
        let file =
            "[commands.hook]\nhttp = { url = 'https://example.org', headers = { a = 'env:BUGLE_TEST_MISSING' } }";
        let config = crate::config::Config::from_toml(file).unwrap();

        let error = register(Registry::new(), &config.commands).err().unwrap().to_string();

        assert!(error.contains("commands.hook"), "{error}");
        assert!(error.contains("BUGLE_TEST_MISSING"), "{error}");
    }
}
