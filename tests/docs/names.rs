//! What the documentation names is in the database, and what is in the database has its place in the documentation.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use tokio_postgres::Client;

use crate::common::{BUGLE, Database};
use crate::page::{pages, root};
use crate::run::rows;

pub async fn every_name_exists_in_the_database() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let functions = names(
        &owner,
        "select proname from pg_proc where pronamespace = 'bugle'::regnamespace",
    )
    .await;
    let relations = names(
        &owner,
        "select relname from pg_class where relnamespace = 'bugle'::regnamespace",
    )
    .await;
    let types = names(
        &owner,
        "select typname from pg_type where typnamespace = 'bugle'::regnamespace",
    )
    .await;
    let columns = names(
        &owner,
        "select c.relname || '.' || a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid \
         where c.relnamespace = 'bugle'::regnamespace and a.attnum > 0",
    )
    .await;
    // a file, a session's setting
    let others = ["toml", "rs", "silent"];

    let mut wrong = BTreeSet::new();
    for page in pages() {
        for name in names_in(&page.text) {
            let known = match &name {
                Name::Function(name) => functions.contains(name),
                Name::Column(relation, column) => columns.contains(&format!("{relation}.{column}")),
                Name::Other(name) => {
                    [&functions, &relations, &types]
                        .iter()
                        .any(|known| known.contains(name))
                        || others.contains(&name.as_str())
                }
            };
            if !known {
                wrong.insert(format!("{}: {name:?}", page.name()));
            }
        }
    }

    assert!(wrong.is_empty(), "{wrong:#?}");
}

pub async fn every_column_setting_and_error_is_described() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let insertable = names(
        &owner,
        "select column_name::text from information_schema.column_privileges \
         where table_schema = 'bugle' and table_name = 'jobs' and grantee = 'bugle_enqueuer' and privilege_type = \
         'INSERT'",
    )
    .await;
    let settings = "select attname from pg_attribute where attnum > 0 and attname <> 'only_row' and attrelid =";
    let settings = names(&owner, &format!("{settings} 'bugle.settings'::regclass")).await;
    let says = |page: &str, what: &str| {
        fs::read_to_string(root().join(page))
            .unwrap()
            .contains(&format!("`{what}`"))
    };

    assert!(!insertable.is_empty());
    for column in insertable {
        assert!(says("docs/enqueue.md", &column), "the column {column} is not described");
    }
    for setting in settings {
        assert!(
            says("docs/reference/configuration.md", &setting),
            "the setting {setting} is not described"
        );
    }
    for code in bugle::Code::ALL {
        assert!(
            says("docs/reference/errors.md", code.sqlstate()),
            "{} is not described",
            code.sqlstate()
        );
    }
}

/// docs/reference/sql.md has what people and applications use, and the arguments it shows are there.
pub async fn every_function_and_view_for_people_is_in_the_reference() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let wanted = names(
        &owner,
        "select proname from pg_proc where pronamespace = 'bugle'::regnamespace \
           and (has_function_privilege('bugle_operator', oid, 'execute') \
             or has_function_privilege('bugle_enqueuer', oid, 'execute') and proname like 'enqueue%') \
           and prorettype <> 'trigger'::regtype \
         union select relname from pg_class where relnamespace = 'bugle'::regnamespace and relkind in ('r', 'p', 'v') \
           and not relispartition and has_table_privilege('bugle_viewer', oid, 'select')",
    )
    .await;
    let arguments = names(
        &owner,
        "select proname || '.' || argument from pg_proc, unnest(proargnames) argument \
         where pronamespace = 'bugle'::regnamespace and argument like 'p\\_%'",
    )
    .await;
    let page = fs::read_to_string(root().join("docs/reference/sql.md")).unwrap();
    let named: BTreeSet<String> = names_in(&page)
        .into_iter()
        .map(|name| match name {
            Name::Function(name) | Name::Other(name) | Name::Column(name, _) => name,
        })
        .collect();

    let missing: Vec<&String> = wanted.difference(&named).collect();
    assert!(missing.is_empty(), "docs/reference/sql.md does not name {missing:?}");
    let calls = page.split("`bugle.").skip(1).filter_map(|rest| rest.split('`').next());
    let calls = calls.filter_map(|call| call.split_once('('));
    // one that is shown with an ellipsis is described elsewhere
    let whole: Vec<(&str, &str)> = calls.filter(|(_, given)| !given.contains('…')).collect();
    let shown: BTreeSet<String> = whole
        .iter()
        .flat_map(|(name, given)| {
            let words = given.split(|c: char| !c.is_alphanumeric() && c != '_');
            let arguments = words.filter(|word| word.starts_with("p_"));
            arguments.map(move |argument| format!("{name}.{argument}"))
        })
        .collect();
    let is_shown = |argument: &&String| whole.iter().any(|(name, _)| argument.starts_with(&format!("{name}.")));
    // the form for many jobs is told once for all
    let wanted = arguments
        .iter()
        .filter(is_shown)
        .filter(|name| !name.ends_with(".p_ids"));
    let missing: Vec<&String> = wanted.filter(|name| !shown.contains(*name)).collect();
    let unknown: Vec<&String> = shown.difference(&arguments).collect();
    assert!(
        missing.is_empty(),
        "arguments that docs/reference/sql.md does not show: {missing:?}"
    );
    assert!(
        unknown.is_empty(),
        "docs/reference/sql.md shows arguments that do not exist: {unknown:?}"
    );
}

/// Every subcommand is in docs/reference/cli.md, and every option there or on the page of its subject.
pub fn every_command_and_option_is_in_the_reference() {
    let read = |page: &str| fs::read_to_string(root().join("docs").join(page)).unwrap();
    let page = read("reference/cli.md");
    let pages = ["reference/configuration.md", "schedules.md", "performance.md"];
    let options = pages.iter().fold(page.clone(), |text, page| text + &read(page));
    let words = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '-' && c != '_');
        words.map(str::to_owned).collect()
    };
    let (commands, options) = (words(&page), words(&options));

    let mut missing = BTreeSet::new();
    let mut next = vec![Vec::new()];
    while let Some(path) = next.pop() {
        let (below, offered) = help(&path);
        // what bench measures is on the page about performance, and changes with what is measured
        if path.first().is_some_and(|word: &String| word == "bench") {
            continue;
        }
        for word in below {
            if !commands.contains(&word) {
                missing.insert(format!("bugle {} {word}", path.join(" ")));
            }
            next.push([path.clone(), vec![word]].concat());
        }
        for option in offered.into_iter().filter(|option| !options.contains(option)) {
            missing.insert(format!("bugle {} {option}", path.join(" ")));
        }
    }
    assert!(missing.is_empty(), "not in docs/reference/cli.md: {missing:#?}");
}

/// docs/reference/cargo-features.md has every feature, and says which are on by default.
pub fn every_cargo_feature_is_in_the_reference() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().expect("a manifest");
    let features = manifest["features"].as_table().expect("features");
    let page = fs::read_to_string(root().join("docs/reference/cargo-features.md")).unwrap();
    let defaults = features["default"].as_array().expect("a list");
    for name in features.keys().filter(|name| *name != "default") {
        let is_default = defaults.iter().any(|default| default.as_str() == Some(name));
        let line = page.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        let line = line.unwrap_or_else(|| panic!("the feature {name} is not described"));
        assert_eq!(line.starts_with(&format!("| `{name}` | yes |")), is_default, "{line}");
    }
}

/// Every `bugle …` that a page shows is a command that exists, with options that it has.
pub fn every_command_that_is_shown_exists() {
    let mut helps: BTreeMap<Vec<String>, (Vec<String>, Vec<String>)> = BTreeMap::new();
    let mut wrong = BTreeSet::new();
    for page in pages() {
        for command in commands_in(&page.text) {
            let mut path: Vec<String> = Vec::new();
            let mut is_named = true;
            for word in command.split_whitespace().take_while(|word| *word != "--") {
                let help = helps.entry(path.clone()).or_insert_with(|| help(&path));
                if word.starts_with("--") {
                    is_named = false;
                    let option = word.split('=').next().unwrap_or_default();
                    let option = option.trim_end_matches(|c: char| !c.is_alphanumeric());
                    if !help.1.iter().any(|known| known == option) && !["--help", "--version"].contains(&option) {
                        wrong.insert(format!("{}: bugle {} has no {option}", page.name(), path.join(" ")));
                    }
                } else if is_named && word.starts_with(|c: char| c.is_ascii_lowercase()) && !help.0.is_empty() {
                    // alternatives, as in pause|resume
                    let word = word.trim_end_matches(|c: char| !c.is_alphanumeric());
                    let unknown = word.split('|').find(|word| !help.0.iter().any(|known| known == word));
                    if let Some(unknown) = unknown.filter(|word| !HIDDEN.contains(word)) {
                        wrong.insert(format!("{}: bugle {} {unknown}", page.name(), path.join(" ")));
                    }
                    path.extend(word.split('|').next().map(str::to_owned));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Commands that the help does not list.
const HIDDEN: [&str; 3] = ["with-postgres", "peer", "help"];

/// What follows `bugle` in inline code and at the beginning of lines, up to the end of the command.
fn commands_in(text: &str) -> Vec<&str> {
    let ends = |rest: &'static str| move |c: char| rest.contains(c);
    let inline = text
        .split("`bugle ")
        .skip(1)
        .filter_map(move |rest| rest.split(ends("`\n")).next());
    let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix("bugle "));
    // prose that happens to begin with the name has no subcommand there
    let lines = lines.filter(|line| !line.contains('`') && !line.starts_with('='));
    let is_sentence = |command: &&str| command.ends_with(['.', ',']) || command.contains(". ");
    inline
        .chain(lines.filter(move |line| !is_sentence(line)))
        .filter_map(|command| command.split([';', '#', '>', '(']).next())
        .map(|command| command.split(" | ").next().unwrap_or(command).trim())
        .collect()
}

/// The subcommands and the options that a command's help lists.
fn help(path: &[String]) -> (Vec<String>, Vec<String>) {
    let output = Command::new(BUGLE)
        .args(path)
        .arg("--help")
        .output()
        .expect("bugle runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (mut commands, mut options) = (Vec::new(), Vec::new());
    let mut section = "";
    for line in text.lines().filter(|line| !line.is_empty()) {
        if !line.starts_with(' ') {
            section = line;
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        let first = line.split_whitespace().next().unwrap_or_default();
        if section == "Commands:" && indent == 2 && first != "help" {
            commands.push(first.to_owned());
        }
        if section == "Options:" && line.trim_start().starts_with('-') {
            let option = line
                .split_whitespace()
                .find(|word| word.starts_with("--"))
                .unwrap_or_default();
            let option = option
                .trim_end_matches(',')
                .split(['[', '='])
                .next()
                .unwrap_or_default();
            if !["--help", "--version", ""].contains(&option) {
                options.push(option.to_owned());
            }
        }
    }
    (commands, options)
}

async fn names(client: &Client, sql: &str) -> BTreeSet<String> {
    rows(&client.simple_query(sql).await.unwrap())
        .into_iter()
        .flatten()
        .collect()
}

#[derive(Debug)]
enum Name {
    Function(String),
    Column(String, String),
    Other(String),
}

/// Everything that is written as `bugle.…`.
fn names_in(text: &str) -> Vec<Name> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let word = |text: &str| text.chars().take_while(|c| is_part(*c)).collect::<String>();
    let begins = |place: usize| !text[..place].ends_with(|c: char| is_part(c) || "/.-'".contains(c));
    text.match_indices("bugle.")
        .filter(|(place, _)| begins(*place))
        .filter_map(|(place, found)| {
            let rest = &text[place + found.len()..];
            let name = word(rest);
            let behind = &rest[name.len()..];
            let column = word(behind.strip_prefix('.').unwrap_or_default());
            match () {
                () if name.is_empty() => None,
                () if behind.starts_with('(') && !text[..place].ends_with("into ") => Some(Name::Function(name)),
                () if !column.is_empty() => Some(Name::Column(name, column)),
                () => Some(Name::Other(name)),
            }
        })
        .collect()
}

/// What the files of the library match, outside of tests and comments: the text between `before` and the next quote.
fn literals(before: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![root().join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            // the demo's shop has codes of its own
            if path.extension().is_none_or(|ending| ending != "rs") || path.ends_with("shop.rs") {
                continue;
            }
            let text = fs::read_to_string(path).unwrap();
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            for line in code.filter_map(|line| line.split_once(before)) {
                found.extend(line.1.split('"').next().map(str::to_owned));
            }
        }
    }
    found
}

/// The names in backquotes in the first column of the tables of a page.
fn first_column(file: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join(file)).unwrap();
    let cells = text
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    names.map(str::to_owned).collect()
}

pub fn every_code_of_a_failed_attempt_is_in_the_reference() {
    let codes = literals(".code(\"");
    let missing: Vec<String> = codes
        .difference(&first_column("docs/reference/errors.md"))
        .cloned()
        .collect();

    assert!(codes.contains("host_lost"), "{codes:?}");
    assert!(missing.is_empty(), "not in docs/reference/errors.md: {missing:?}");
}

pub fn every_event_of_the_log_is_on_the_page_about_monitoring() {
    let events = literals("event = \"");
    let missing: Vec<String> = events
        .difference(&first_column("docs/monitoring.md"))
        .cloned()
        .collect();

    assert!(events.contains("shortage"), "{events:?}");
    assert!(missing.is_empty(), "not in docs/monitoring.md: {missing:?}");
}
