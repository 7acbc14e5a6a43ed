//! The examples in the help of every command. A test reads each of them as the program would.

/// The words of a command, and its examples.
const EXAMPLES: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "bugle dev",
            "bugle enqueue hello '{\"name\": \"Ada\"}' --wait",
            "bugle jobs list --state failed",
            "bugle doctor",
        ],
    ),
    (
        "worker",
        &[
            "bugle worker --config bugle.toml",
            "bugle worker --queue mail=10 --listen 127.0.0.1:8421",
        ],
    ),
    ("migrate", &["bugle migrate", "bugle migrate status"]),
    ("migrate up", &["bugle migrate up"]),
    ("migrate status", &["bugle migrate status || bugle migrate"]),
    (
        "migrate sql",
        &["bugle migrate sql > bugle.sql", "bugle migrate sql --from 1"],
    ),
    (
        "enqueue",
        &[
            "bugle enqueue send_mail '{\"to\": \"ada@example.org\"}'",
            "bugle enqueue report --queue slow --in 10m --max-attempts 3",
            "bugle enqueue hello '{\"name\": \"Ada\"}' --wait --wait-timeout 1m",
            "bugle enqueue import --jsonl rows.jsonl",
        ],
    ),
    (
        "jobs",
        &[
            "bugle jobs list --state failed --ended-since 1d",
            "bugle jobs show 17",
            "bugle jobs explain 17",
        ],
    ),
    (
        "jobs list",
        &[
            "bugle jobs list --state failed --ended-since 1d --error-like refused",
            "bugle jobs list --queue mail --watch 2s",
        ],
    ),
    (
        "jobs show",
        &["bugle jobs show 17", "bugle jobs show 17 --json | jq .payload"],
    ),
    ("jobs wait", &["bugle jobs wait 17 --timeout 5m"]),
    ("contexts", &["bugle contexts"]),
    ("host", &["bugle host check -- python3 -m app.jobs"]),
    ("host check", &["bugle host check -- perl host.pl"]),
    (
        "job",
        &["bugle job progress 50 'half of the rows'", "bugle job snooze 10m"],
    ),
    ("job progress", &["bugle job progress 50 'half of the rows'"]),
    ("job log", &["bugle job log 'no rows today' --level warn"]),
    ("job done", &["bugle job done '{\"rows\": 7}'"]),
    (
        "job fail",
        &[
            "bugle job fail 'no such address' --code bad_address --no-retry",
            "bugle job fail 'the service is busy' --retry-after 2m",
        ],
    ),
    ("job snooze", &["bugle job snooze 10m"]),
    ("job wait", &["bugle job wait --token order-17 --at-most 1d"]),
    ("job skip", &["bugle job skip 'nothing to do'"]),
    ("job cancel", &["bugle job cancel 'the order was withdrawn'"]),
    ("jobs explain", &["bugle jobs explain 17"]),
    (
        "jobs answer",
        &[
            "bugle jobs answer 17 --result '{\"approved\": true}'",
            "bugle jobs answer 17 --error 'not approved'",
        ],
    ),
    ("jobs add-missing", &["bugle jobs add-missing ship orders.jsonl"]),
    (
        "jobs cancel",
        &[
            "bugle jobs cancel 17 18 --note 'not needed'",
            "bugle jobs cancel --queue mail --older-than 1d",
        ],
    ),
    (
        "jobs pause",
        &["bugle jobs pause 17", "bugle jobs pause --command send_mail --dry-run"],
    ),
    (
        "jobs resume",
        &["bugle jobs resume 17", "bugle jobs resume --command send_mail --yes"],
    ),
    (
        "jobs restart",
        &[
            "bugle jobs restart 17",
            "bugle jobs restart --state failed --command send_mail --ended-since 2h --dry-run",
            "bugle jobs restart --state failed --error-like 'connection refused' --yes --note 'it is back'",
        ],
    ),
    (
        "jobs set-step",
        &["bugle jobs set-step 17 charge done --output '{\"paid\": true}'"],
    ),
    (
        "jobs remove",
        &[
            "bugle jobs remove 17",
            "bugle jobs remove --state cancelled --older-than 1d --yes",
        ],
    ),
    (
        "jobs reschedule",
        &[
            "bugle jobs reschedule 17",
            "bugle jobs reschedule --state retrying --command send_mail --at '18:00' --yes",
        ],
    ),
    ("jobs set-priority", &["bugle jobs set-priority 17 --priority -5"]),
    (
        "jobs set-state",
        &["bugle jobs set-state 17 --to completed --note 'done by hand'"],
    ),
    (
        "queues",
        &[
            "bugle queues --watch 2s",
            "bugle queues pause mail",
            "bugle queues set mail --max-running 10",
        ],
    ),
    ("queues list", &["bugle queues list --json"]),
    (
        "queues pause",
        &["bugle queues pause mail --note 'the mail server is down'"],
    ),
    ("queues resume", &["bugle queues resume mail"]),
    (
        "queues set",
        &[
            "bugle queues set mail --max-running 10",
            "bugle queues set mail --max-starts 100/1m --max-running-per-key 2",
            "bugle queues set mail --max-starts none",
        ],
    ),
    (
        "queues limit-command",
        &[
            "bugle queues limit-command resize 4",
            "bugle queues limit-command resize none",
        ],
    ),
    ("queues remove", &["bugle queues remove mial"]),
    (
        "schedules",
        &[
            "bugle schedules",
            "bugle schedules add nightly --cron '0 3 * * *' --command report",
        ],
    ),
    ("schedules list", &["bugle schedules list"]),
    (
        "schedules add",
        &[
            "bugle schedules add daily-report --cron '0 9 * * MON-FRI' --timezone Europe/Berlin --command report",
            "bugle schedules add sync '{\"full\": false}' --every 10m --command sync --overlap skip",
        ],
    ),
    (
        "schedules preview",
        &["bugle schedules preview '0 9 * * MON-FRI' --timezone Europe/Berlin"],
    ),
    ("schedules change", &["bugle schedules change nightly cron='0 4 * * *'"]),
    ("schedules pause", &["bugle schedules pause nightly"]),
    ("schedules resume", &["bugle schedules resume nightly"]),
    ("schedules remove", &["bugle schedules remove nightly"]),
    ("schedules run-now", &["bugle schedules run-now nightly"]),
    ("workers", &["bugle workers", "bugle workers drain 3"]),
    ("workers list", &["bugle workers list --json"]),
    ("workers pause", &["bugle workers pause 3 --note 'its disk is full'"]),
    ("workers resume", &["bugle workers resume 3"]),
    ("workers drain", &["bugle workers drain 3"]),
    (
        "workflow",
        &["bugle workflow enqueue order.json", "bugle workflow show 17"],
    ),
    ("workflow enqueue", &["bugle workflow enqueue order.json"]),
    ("workflow show", &["bugle workflow show 17"]),
    ("commands", &["bugle commands"]),
    ("commands list", &["bugle commands list --json"]),
    ("policies", &["bugle policies", "bugle policies preview default"]),
    ("policies list", &["bugle policies list"]),
    ("policies preview", &["bugle policies preview default --count 5"]),
    (
        "policies set",
        &["bugle policies set partner --kind fixed --retries 60 --delay 1m --note 'the partner restarts at night'"],
    ),
    ("policies remove", &["bugle policies remove partner"]),
    ("stats", &["bugle stats", "bugle stats errors --since 2h"]),
    ("stats commands", &["bugle stats commands --watch 5s"]),
    ("stats errors", &["bugle stats errors --since 2h"]),
    ("top", &["bugle top", "bugle top --every 1s"]),
    ("web", &["bugle web", "bugle web --listen 127.0.0.1:8420 --read-only"]),
    ("doctor", &["bugle doctor", "bugle doctor --json"]),
    (
        "health",
        &[
            "bugle health --listen 127.0.0.1:8421",
            "bugle health --live --timeout 2s",
        ],
    ),
    ("config", &["bugle config show"]),
    ("config show", &["bugle config show --config bugle.toml"]),
    (
        "completions",
        &["bugle completions bash > /etc/bash_completion.d/bugle"],
    ),
    (
        "man",
        &["bugle man | man -l -", "bugle man --dir /usr/local/share/man/man1"],
    ),
    ("dev", &["bugle dev", "bugle dev --config shop.toml --keep .bugle"]),
    ("demo", &["bugle demo"]),
    ("bench", &["bugle bench drain --quick", "bugle bench all --json"]),
    ("bench drain", &["bugle bench drain --workers 2 --slots 50"]),
    ("bench limits", &["bugle bench limits --quick"]),
    ("bench host", &["bugle bench host --quick"]),
    ("bench pickup", &["bugle bench pickup --quick"]),
    ("bench enqueue", &["bugle bench enqueue --clients 4 --seconds 5"]),
    ("bench steady", &["bugle bench steady --quick"]),
    ("bench pinned", &["bugle bench pinned --quick"]),
    ("bench backlog", &["bugle bench backlog --quick"]),
    ("bench idle", &["bugle bench idle --quick"]),
    (
        "bench fleet",
        &[
            "bugle bench fleet --part drain",
            "bugle bench fleet --part outage --seconds 30",
        ],
    ),
    ("bench operate", &["bugle bench operate --quick"]),
    ("bench due", &["bugle bench due --quick"]),
    ("bench sql", &["bugle bench sql --quick"]),
    ("bench program", &["bugle bench program --quick"]),
    ("bench payload", &["bugle bench payload --quick"]),
    ("bench floor", &["bugle bench floor --quick"]),
    ("bench web", &["bugle bench web --finished 200000 --live 50000"]),
    ("bench all", &["bugle bench all --quick --json"]),
];

/// Add its examples to a command and to all below it.
pub fn add(command: clap::Command) -> clap::Command {
    with(command, "")
}

fn with(command: clap::Command, words: &str) -> clap::Command {
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let command = names.into_iter().fold(command, |command, name| {
        let below = format!("{words} {name}").trim_start().to_owned();
        command.mut_subcommand(name, |sub| with(sub, &below))
    });
    match EXAMPLES.iter().find(|(of, _)| *of == words) {
        Some((_, examples)) => command.after_help(format!("Examples:\n  {}", examples.join("\n  "))),
        None => command,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a shell splits it, up to what is not the program's own.
    fn words(line: &str) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        let (mut is_quoted, mut is_open) = (false, false);
        for c in line.chars() {
            match c {
                '\'' => {
                    (is_quoted, is_open) = (!is_quoted, {
                        if !is_open {
                            words.push(String::new())
                        };
                        true
                    })
                }
                ' ' if !is_quoted => is_open = false,
                c => {
                    if !is_open {
                        words.push(String::new());
                        is_open = true;
                    }
                    words.last_mut().expect("a word").push(c);
                }
            }
        }
        let own = words.iter().position(|word| matches!(&**word, "|" | "||" | ">"));
        words.truncate(own.unwrap_or(words.len()));
        words
    }

    fn check(command: &clap::Command, path: &str) {
        if command.is_hide_set() || command.get_name() == "help" {
            return;
        }
        let found = EXAMPLES.iter().find(|(of, _)| *of == path);
        let (_, examples) = found.unwrap_or_else(|| panic!("bugle {path}: its help has no examples"));
        for example in *examples {
            assert!(
                example.starts_with(format!("bugle {path}").trim_end()),
                "{example} is not of {path}"
            );
        }
        for sub in command.get_subcommands() {
            check(sub, format!("{path} {}", sub.get_name()).trim_start());
        }
    }

    #[test]
    fn every_help_text_has_examples() {
        check(&crate::cli::command(), "");
    }

    #[test]
    fn every_example_is_understood() {
        // what is built without has no help either
        let all = crate::cli::command();
        let is_there = |first: &str| all.get_subcommands().any(|sub| sub.get_name() == first);
        for example in EXAMPLES.iter().flat_map(|(_, examples)| *examples) {
            let words = words(example);
            if is_there(&words[1]) {
                let read = crate::cli::command().try_get_matches_from(&words);
                assert!(read.is_ok(), "{example}: {}", read.unwrap_err());
            }
        }
    }
}
