//! `bugle enqueue … --print-sql`: print the equivalent INSERT, for use in a program or a migration.

use anyhow::Result;
use serde_json::Value;

use crate::client::bulk::COLUMNS;
use crate::client::enqueue::NewJob;

/// Build the statement without connecting: payload and times are kept as they were given.
pub fn statement(job: &NewJob, payload: &str, times: [(&str, &Option<String>); 2]) -> Result<String> {
    let job = serde_json::to_value(job)?;
    let written = |column: &str| match (column, &job["delay"]) {
        ("payload", _) => Some(quoted(payload)),
        ("run_at", Value::String(delay)) => Some(format!("now() + interval {}", quoted(delay))),
        _ => match times.iter().find(|(name, _)| *name == column) {
            Some((_, time)) => time.as_deref().map(quoted),
            None => literal(&job[column]),
        },
    };
    let set: Vec<_> = COLUMNS
        .into_iter()
        .filter_map(|column| Some((column, written(column)?)))
        .collect();
    let names: Vec<&str> = set.iter().map(|(name, _)| *name).collect();
    let values: Vec<&str> = set.iter().map(|(_, value)| value.as_str()).collect();
    Ok(format!(
        "insert into bugle.jobs ({}) values ({}) returning id;\n",
        names.join(", "),
        values.join(", ")
    ))
}

/// A value as an SQL literal; `None` for null.
fn literal(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(quoted(text)),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().filter_map(literal).collect();
            Some(format!("array[{}]", items.join(", ")))
        }
        Value::Object(_) => Some(quoted(&value.to_string())),
        number => Some(number.to_string()),
    }
}

/// A literal that does not depend on `standard_conforming_strings`.
fn quoted(text: &str) -> String {
    let literal = text.replace('\'', "''");
    match literal.contains('\\') {
        true => format!("E'{}'", literal.replace('\\', r"\\")),
        false => format!("'{literal}'"),
    }
}
