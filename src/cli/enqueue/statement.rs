//! `bugle enqueue … --print-sql`: the INSERT that would do the same, for a program or a migration.

use std::time::Duration;

use serde_json::{Map, Value};

use super::Arguments;

/// The statement. Nothing is connected to.
pub fn statement(arguments: &Arguments, command: &str, payload: &str) -> String {
    let interval = |length: Duration| format!("interval {}", quoted(&format!("{} seconds", length.as_secs_f64())));
    let text = |text: &Option<String>| text.as_deref().map(quoted);
    let headers = (!arguments.headers.is_empty()).then(|| {
        let pairs = arguments.headers.iter();
        let object: Map<_, _> = pairs
            .map(|(name, value)| (name.clone(), Value::from(value.as_str())))
            .collect();
        quoted(&Value::Object(object).to_string())
    });
    let delay = arguments.delay.map(|delay| format!("now() + {}", interval(delay)));
    let columns = [
        ("command", Some(quoted(command))),
        ("payload", Some(quoted(payload))),
        ("queue", text(&arguments.queue)),
        ("priority", arguments.priority.map(|priority| priority.to_string())),
        ("run_at", text(&arguments.run_at).or(delay)),
        ("deadline", text(&arguments.deadline)),
        ("timeout", arguments.timeout.map(interval)),
        ("max_attempts", arguments.max_attempts.map(|most| most.to_string())),
        ("retry_policy", text(&arguments.retry_policy)),
        ("headers", headers),
        ("unique_key", text(&arguments.unique_key)),
        ("idempotency_key", text(&arguments.idempotency_key)),
        ("idempotency_ttl", arguments.idempotency_ttl.map(interval)),
        ("on_success", text(&arguments.on_success)),
        ("on_failure", text(&arguments.on_failure)),
    ];
    let set: Vec<_> = columns
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect();
    let names: Vec<&str> = set.iter().map(|(name, _)| *name).collect();
    let values: Vec<&str> = set.iter().map(|(_, value)| value.as_str()).collect();
    format!(
        "insert into bugle.jobs ({}) values ({}) returning id;\n",
        names.join(", "),
        values.join(", ")
    )
}

/// A literal that is read the same whatever `standard_conforming_strings` says.
fn quoted(text: &str) -> String {
    let literal = text.replace('\'', "''");
    match literal.contains('\\') {
        true => format!("E'{}'", literal.replace('\\', r"\\")),
        false => format!("'{literal}'"),
    }
}
