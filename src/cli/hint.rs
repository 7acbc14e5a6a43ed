//! What the database suggests is SQL; in a shell it is a command.

use crate::admin::operations::Operation;

/// How a call of a function begins.
const CALLS: [&str; 2] = ["select bugle.", "select * from bugle."];

/// The same text with the commands that do what its statements would. Statements without such a command stay.
pub fn in_shell(text: &str) -> String {
    let mut told = String::new();
    let mut rest = text;
    let next = |text: &str| {
        let found = CALLS.iter().filter_map(|call| Some((text.find(call)?, call.len())));
        found.min()
    };
    while let Some((begin, before)) = next(rest) {
        told.push_str(&rest[..begin]);
        let statement = &rest[begin..];
        let Some((call, length)) = Call::read(statement, before) else {
            told.push_str(&statement[..before]);
            rest = &statement[before..];
            continue;
        };
        told.push_str(&call.command().unwrap_or_else(|| statement[..length].to_owned()));
        rest = &statement[length..];
    }
    told + rest
}

/// A call of a function of the schema.
struct Call {
    name: String,
    /// Each with its name, if that is given.
    arguments: Vec<(Option<String>, String)>,
}

impl Call {
    /// Read `select bugle.name(…);` at the beginning of a text, where `before` bytes precede the name. Returns its
    /// length too.
    fn read(text: &str, before: usize) -> Option<(Call, usize)> {
        let open = text.find('(')?;
        let (mut depth, mut is_quoted, mut begin) = (0, false, open + 1);
        let mut arguments = Vec::new();
        for (at, c) in text.char_indices().skip_while(|(at, _)| *at <= open) {
            match c {
                '\'' => is_quoted = !is_quoted,
                _ if is_quoted => {}
                '(' => depth += 1,
                ')' if depth > 0 => depth -= 1,
                ',' | ')' if depth == 0 => {
                    arguments.push(text[begin..at].trim());
                    begin = at + 1;
                    if c == ')' {
                        let name = text.get(before..open)?.to_owned();
                        let arguments = arguments
                            .into_iter()
                            .filter(|argument| !argument.is_empty())
                            .map(named)
                            .collect();
                        let end = at + 1 + usize::from(text[at + 1..].starts_with(';'));
                        return Some((Call { name, arguments }, end));
                    }
                }
                _ => {}
            }
        }
        None
    }

    fn command(&self) -> Option<String> {
        let subcommand = match &*self.name {
            "explain" => &["jobs", "explain"],
            name => Operation::named(name)?.cli,
        };
        let mut words: Vec<String> = std::iter::once("bugle")
            .chain(subcommand.iter().copied())
            .map(String::from)
            .collect();
        for (position, (name, value)) in self.arguments.iter().enumerate() {
            let verb = *subcommand.last()?;
            let value = match (literal(value), verb) {
                (Some(value), _) => value,
                (None, "set-priority") => "N".to_owned(),
                _ => return None,
            };
            let flag = match (verb, position, name) {
                // part of the flag of its number
                (_, _, Some(name)) if name.ends_with("_period") => return None,
                (_, _, Some(name)) if value == "true" => {
                    words.push(format!("--{}", name.replace('_', "-")));
                    continue;
                }
                (_, _, Some(name)) => Some(format!("--{}", name.replace('_', "-"))),
                ("reschedule", 1, _) if value == "now" => continue,
                ("reschedule", 1, _) => Some("--at".to_owned()),
                ("set-priority", 1, _) => Some("--priority".to_owned()),
                ("set-state", 1, _) => Some("--to".to_owned()),
                ("answer", 1, _) if self.name == "resolve" => Some("--result".to_owned()),
                ("answer", 1, _) if self.name == "reject" => Some("--error".to_owned()),
                ("answer", 1, _) => return None,
                _ => None,
            };
            words.extend(flag);
            words.push(for_shell(&value));
        }
        Some(words.join(" "))
    }
}

fn named(argument: &str) -> (Option<String>, String) {
    match argument.split_once("=>") {
        Some((name, value)) => {
            let name = name.trim();
            (
                Some(name.strip_prefix("p_").unwrap_or(name).to_owned()),
                value.trim().to_owned(),
            )
        }
        None => (None, argument.to_owned()),
    }
}

/// The value of a literal; `None` for what is none, such as an ellipsis.
fn literal(text: &str) -> Option<String> {
    match text {
        "now()" => return Some("now".into()),
        "true" => return Some("true".into()),
        _ => {}
    }
    if text.parse::<i64>().is_ok() {
        return Some(text.to_owned());
    }
    let quoted = text.strip_prefix('\'')?.strip_suffix('\'')?;
    Some(quoted.replace("''", "'"))
}

/// A word as a shell reads it.
pub fn for_shell(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_become_the_commands_that_do_the_same() {
        for (sql, shell) in [
            (
                "select bugle.restart(7); runs it again.",
                "bugle jobs restart 7 runs it again.",
            ),
            (
                "select bugle.restart(7, p_from_failed_step => true); continues; select bugle.restart(7); begins.",
                "bugle jobs restart 7 --from-failed-step continues; bugle jobs restart 7 begins.",
            ),
            ("select bugle.reschedule(7, now());", "bugle jobs reschedule 7"),
            (
                "select bugle.resolve(7, '{}'); or select bugle.reject(7, 'no');",
                "bugle jobs answer 7 --result '{}' or bugle jobs answer 7 --error no",
            ),
            (
                "select bugle.resume_queue('it''s, a (queue)');",
                "bugle queues resume 'it'\\''s, a (queue)'",
            ),
            (
                "Time; or select bugle.set_limits('mail', p_max_running => 3);",
                "Time; or bugle queues set mail --max-running 3",
            ),
            (
                "select bugle.set_state(7, 'completed'); ends it.",
                "bugle jobs set-state 7 --to completed ends it.",
            ),
            ("select bugle.resume_worker(3);", "bugle workers resume 3"),
            (
                "select bugle.set_limits('mail', p_max_starts => 3);",
                "bugle queues set mail --max-starts 3",
            ),
            (
                "why: select * from bugle.explain(7); says",
                "why: bugle jobs explain 7 says",
            ),
            (
                "lower it: select bugle.set_priority(7, …);",
                "lower it: bugle jobs set-priority 7 --priority N",
            ),
            (
                "select * from bugle.pause(array[2, 3]);",
                "select * from bugle.pause(array[2, 3]);",
            ),
            ("select bugle.upkeep();  -- repeat", "select bugle.upkeep();  -- repeat"),
            ("select bugle.", "select bugle."),
        ] {
            assert_eq!(in_shell(sql), shell);
        }
    }

    /// The texts of `bugle.explain` are formats: an id or a number stands for %s, a name for %L.
    #[test]
    fn no_statement_of_an_explanation_is_left_in_the_shell() {
        let source = include_str!("../../sql/88_explain.sql").replace("''", "'");
        let source = source.replace("%s", "7").replace("%L", "'mail'");
        let limits = ["max_running", "max_running_per_key", "max_starts", "max_starts_per_key"];
        let mut statements: Vec<String> = limits
            .iter()
            .map(|limit| format!("select bugle.set_limits('mail', p_{limit} => 7);"))
            .collect();
        statements.push("select bugle.set_command_limit('mail', 7);".to_owned());
        for call in CALLS {
            statements.extend(source.match_indices(call).filter_map(|(at, _)| {
                let line = source[at..].lines().next()?;
                let end = line.find(");")? + 2;
                // those above are put together
                let is_whole = !line.contains("p_job.queue), ") && !line.contains("p_job.command), ");
                is_whole.then(|| line[..end].to_owned())
            }));
        }

        assert!(statements.len() > 15, "{statements:#?}");
        for statement in statements {
            let told = in_shell(&statement);
            assert!(
                told.starts_with("bugle ") && !told.contains("bugle."),
                "{statement}: {told}"
            );
        }
    }
}
