//! The rules of this repository, where a rule can be a test.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "docs/words.rs"]
mod words;

/// Where SQL text may be written in Rust. Everything else calls these.
const SQL_TEXT: [&str; 9] = [
    "src/admin/",
    "src/client/bulk.rs",
    "src/client/enqueue.rs",
    "src/client/result.rs",
    "src/db/calls/",
    "src/db/connect/pinned.rs",
    "src/db/connect/replaced.rs",
    "src/schema.rs",
    "src/schema/",
];
/// The demo and the benchmark play an application, which writes its own SQL.
const APPLICATIONS: [&str; 10] = [
    // for the tests of applications, which ask about jobs and move time
    "src/testing/",
    // show statements for people to copy
    "src/web/actions.rs",
    "src/web/bulk.rs",
    "src/web/pages/",
    "src/cli/private_server/shop.rs",
    "src/cli/private_server/demo.rs",
    "src/cli/private_server/demo/",
    "src/bench/",
    // prints a statement for others to run
    "src/cli/enqueue/statement.rs",
    // reads the statements of hints
    "src/cli/hint.rs",
];

#[test]
fn every_sql_file_says_first_what_it_is_for() {
    for (name, text) in files("sql", "sql").into_iter().chain(files("migrations", "sql")) {
        assert!(text.starts_with("-- "), "{name} does not start with a comment");
    }
}

#[test]
fn no_literal_in_sql_depends_on_standard_conforming_strings() {
    let mut depends = Vec::new();
    for (name, text) in files("sql", "sql") {
        for (number, line) in text.lines().enumerate() {
            let code = line.split("--").next().unwrap_or_default();
            // every second part is inside quotes; one behind an E means the same under any setting
            let parts: Vec<&str> = code.split('\'').collect();
            let plain = |index: &usize| !parts[index - 1].ends_with(['e', 'E']);
            if (1..parts.len())
                .step_by(2)
                .filter(plain)
                .any(|index| parts[index].contains('\\'))
            {
                depends.push(format!("{name}:{}: {}", number + 1, line.trim()));
            }
        }
    }

    assert!(depends.is_empty(), "write [*] for \\*, or E'…': {depends:#?}");
}

#[test]
fn what_does_not_own_its_session_sends_statements_without_a_name() {
    let borrowed = [
        "src/admin/",
        "src/cli/",
        "src/client/bulk.rs",
        "src/client/enqueue.rs",
        "src/client/mod.rs",
        "src/schema.rs",
        "src/schema/",
    ];
    let named = [".query(", ".query_one(", ".query_opt(", ".execute(", ".prepare("];
    let mut found = Vec::new();
    for (name, text) in files("src", "rs") {
        if borrowed.iter().any(|place| name.starts_with(place)) {
            let lines = code(&text).filter(|(_, line)| named.iter().any(|call| line.contains(call)));
            found.extend(lines.map(|(number, line)| format!("{name}:{number}: {}", line.trim())));
        }
    }

    assert!(
        found.is_empty(),
        "call ask, ask_one, ask_opt or change, which work through any pooler: {found:#?}"
    );
}

#[test]
fn sql_text_is_written_in_few_places() {
    let begins = ["select ", "insert ", "update ", "delete "].map(|word| format!("\"{word}"));
    let mut elsewhere = Vec::new();
    for (name, text) in files("src", "rs") {
        if SQL_TEXT
            .iter()
            .chain(&APPLICATIONS)
            .any(|place| name.starts_with(place))
            || is_test(&name)
        {
            continue;
        }
        for (number, line) in code(&text) {
            if begins.iter().any(|begin| line.to_lowercase().contains(begin)) {
                elsewhere.push(format!("{name}:{number}: {}", line.trim()));
            }
        }
    }

    assert!(elsewhere.is_empty(), "SQL text belongs to {SQL_TEXT:?}: {elsewhere:#?}");
}

#[test]
fn every_function_and_view_says_in_its_file_what_it_does() {
    let mut silent = Vec::new();
    for (name, text) in files("sql", "sql") {
        for kind in ["function", "view", "procedure"] {
            let told: Vec<&str> = text
                .lines()
                .filter_map(|line| named(line, "comment on ", kind))
                .collect();
            let made: Vec<&str> = text
                .lines()
                .filter_map(|line| named(line, "create or replace ", kind))
                .collect();
            // One name can stand for several functions, which differ in their arguments. A name made by format() is
            // commented by the block that makes it: tests/sql/views/everything_has_a_comment.sql.
            let count = |all: &[&str], one: &str| all.iter().filter(|name| **name == one).count();
            let named = made.iter().filter(|one| !one.contains('%'));
            let missing = named.filter(|one| count(&told, one) < count(&made, one));
            silent.extend(missing.map(|one| format!("{name}: {kind} {one}")));
        }
    }

    assert!(silent.is_empty(), "without a comment: {silent:#?}");
}

#[test]
fn functions_with_the_owners_rights_pin_their_search_path() {
    let mut open = Vec::new();
    for (name, text) in files("sql", "sql") {
        let mut lines = text.lines().enumerate().peekable();
        while let Some((number, line)) = lines.next() {
            let pinned = |line: &str| line.ends_with("set search_path = pg_catalog, bugle, pg_temp");
            let is_definer = !line.trim().starts_with("--") && line.contains("security definer");
            if is_definer && !pinned(line) && !lines.peek().is_some_and(|(_, next)| pinned(next)) {
                open.push(format!("{name}:{}", number + 1));
            }
        }
    }

    assert!(open.is_empty(), "security definer without a search path: {open:#?}");
}

/// The pages of the documentation are read by tests/docs.rs, with the same list.
#[test]
fn comments_and_messages_are_plain_technical_english() {
    const FOLDERS: [(&str, &str); 21] = [
        ("sql", "sql"),
        ("migrations", "sql"),
        ("src", "rs"),
        ("src", "html"),
        ("src", "js"),
        ("bin", ""),
        ("bin", "rs"),
        ("examples", "rs"),
        ("examples", "py"),
        ("examples", "ts"),
        ("examples", "sql"),
        ("deploy", "yml"),
        ("deploy", "yaml"),
        ("sdk/python/src", "py"),
        ("sdk/python/tests", "py"),
        ("sdk/typescript/src", "ts"),
        ("sdk/typescript/src", "mts"),
        ("sdk/typescript/test", "mts"),
        (".github", "yml"),
        ("tests", "rs"),
        ("tests", "sql"),
    ];
    let list = "tests/docs/words.rs";
    let read = FOLDERS.map(|(folder, ending)| files(folder, ending)).concat();
    let read = read.iter().filter(|(name, _)| name != list);
    let found: Vec<String> = read.flat_map(|(name, text)| words::found(name, text)).collect();

    assert!(found.is_empty(), "{found:#?}");
}

/// The words in backquotes in the first column of a table of the documentation.
fn reasons_of_table(page: &str, begin: &str, end: &str) -> Vec<String> {
    let text = std::fs::read_to_string(format!("{}/{page}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let table = text.split(begin).nth(1).unwrap().split(end).next().unwrap();
    let first = |line: &str| {
        line.trim_start_matches('|')
            .split('|')
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let cells: String = table.lines().filter(|line| line.starts_with('|')).map(first).collect();
    cells.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn each_reason_of_explain_is_documented_and_has_a_behavior() {
    let explain = files("sql", "sql")
        .into_iter()
        .find(|(name, _)| name.ends_with("88_explain.sql"));
    let (_, explain) = explain.unwrap();
    let word = |text: &str| text.split('\'').next().unwrap().to_owned();
    let returned = explain
        .split("select '")
        .chain(explain.split("    ('"))
        .skip(1)
        .map(word)
        .filter(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '_') && !word.is_empty());
    let documented = reasons_of_table("docs/operations.md", "| reason | the job |", "Whole queues");
    let behaviors: String = files("tests/sql/explain", "sql")
        .into_iter()
        .map(|(_, text)| text)
        .collect();
    let in_rust: String = files("tests", "rs").into_iter().map(|(_, text)| text).collect();

    let mut reasons: Vec<String> = returned.collect();
    assert!(reasons.len() > 15, "{reasons:?}");
    for reason in &reasons {
        assert!(
            documented.contains(reason),
            "docs/operations.md does not document {reason:?}"
        );
    }
    let (_, constants) = files("sql", "sql")
        .into_iter()
        .find(|(name, _)| name.ends_with("00_constants.sql"))
        .unwrap();
    let failures = constants
        .split("function bugle.failure_reasons")
        .nth(1)
        .unwrap()
        .split(';')
        .next()
        .unwrap();
    let failures: Vec<String> = failures.split('\'').skip(1).step_by(2).map(str::to_owned).collect();
    assert!(failures.len() > 10, "{failures:?}");
    let explained = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/retries.md")).unwrap();
    for reason in &failures {
        assert!(
            explained.contains(&format!("| `{reason}` |")),
            "docs/retries.md does not document {reason:?}"
        );
    }
    reasons.extend(documented);
    reasons.extend(failures);
    for reason in reasons {
        let is_tested = [
            format!("'{reason}'"),
            format!("'{reason}: "),
            format!("{{{reason}"),
            format!(",{reason}"),
        ]
        .iter()
        .any(|form| behaviors.contains(form) || in_rust.contains(&format!("e.reason = {form}")));
        assert!(
            is_tested,
            "no behavior in tests/sql/explain expects the reason {reason:?}"
        );
    }
}

#[test]
fn no_line_is_wider_than_120_columns() {
    const FOLDERS: [(&str, &str); 8] = [
        ("sql", "sql"),
        ("migrations", "sql"),
        ("examples", "rs"),
        ("examples", "sql"),
        ("src", "rs"),
        ("src", "sql"),
        ("tests", "rs"),
        ("tests", "sql"),
    ];
    let mut wide = Vec::new();
    let build = ("build.rs".to_owned(), include_str!("../build.rs").to_owned());
    let all = FOLDERS.map(|(folder, ending)| files(folder, ending)).concat();
    for (name, text) in all.into_iter().chain([build]) {
        let lines = text.lines().enumerate().filter(|(_, line)| line.chars().count() > 120);
        wide.extend(lines.map(|(number, _)| format!("{name}:{}", number + 1)));
    }

    assert!(wide.is_empty(), "wider than 120 columns: {wide:#?}");
}

#[test]
fn comments_stand_next_to_what_they_describe() {
    let mut elsewhere = Vec::new();
    for (name, text) in files("sql", "sql").into_iter().chain(files("migrations", "sql")) {
        for line in text.lines().filter(|line| line.starts_with("comment on ")) {
            let mut words = line.split(|c: char| c.is_whitespace() || c == '(').skip(2);
            let (kind, what) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let what: Vec<&str> = what.split('.').take(2).collect();
            let made = format!("{}.{}", what[0], what.get(1).copied().unwrap_or_default());
            let is_made_here = text.lines().any(|line| {
                let mut words = line.split(|c: char| c.is_whitespace() || c == '(' || c == ')' || c == ';');
                line.contains("create ") && words.any(|word| word == made) || line.contains(&format!("name {made})"))
            });
            // made by bugle migrate itself, or with a table's identity column
            let is_made_with_another = ["schema", "sequence"].contains(&kind) || made == "bugle.migrations";
            if !is_made_here && !is_made_with_another {
                elsewhere.push(format!("{name}: {line}"));
            }
        }
    }

    assert!(elsewhere.is_empty(), "not made in that file: {elsewhere:#?}");
}

/// A state is waited for with `tests/common/poll.rs`, which sleeps between two looks. What cannot be waited for says
/// why.
#[test]
fn no_test_sleeps_unless_it_says_why_it_cannot_wait_for_a_state() {
    let mut sleeping = Vec::new();
    let of_units = files("src", "rs").into_iter().map(|(name, text)| match is_test(&name) {
        true => (name, text),
        // only the tests of the file, if it has some; its lines keep their numbers
        false => (name, tests_alone(&text)),
    });
    let others = ["rs", "sql", "py", "mts", "mjs"]
        .into_iter()
        .flat_map(|ending| files("tests", ending));
    let of_packages = files("sdk/python/tests", "py")
        .into_iter()
        .chain(files("sdk/typescript/test", "mts"));
    for (name, text) in of_units.chain(others).chain(of_packages) {
        let mark = match name.rsplit('.').next() {
            Some("sql") => "--",
            Some("py") => "#",
            _ => "//",
        };
        let why = format!("{mark} why: ");
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let above = lines[..number].iter().rev();
            let mut comments = above.take_while(|line| line.trim().starts_with(mark));
            let is_explained = line.contains(&why) || comments.any(|line| line.contains(&why));
            if sleeps(line.split(mark).next().unwrap_or_default()) && !is_explained {
                sleeping.push(format!("{name}:{}: {}", number + 1, line.trim()));
            }
        }
    }

    assert!(
        sleeping.is_empty(),
        "wait for a state with tests/common/poll.rs, or say why that is not possible, with a comment `why: …` above: \
            {sleeping:#?}"
    );
}

/// Whether code calls `thread::sleep`, `tokio::time::sleep`, `sleep_until`, `pg_sleep` or `setTimeout`, however it was
/// imported.
fn sleeps(code: &str) -> bool {
    ["sleep", "sleep_until", "sleep_for", "setTimeout"].iter().any(|kind| {
        code.match_indices(&format!("{kind}(")).any(|(at, _)| {
            let is_of_a_name = |c: char| c.is_alphanumeric() || c == '_';
            // another name that ends like this is not one of them
            code[..at].ends_with("pg_") || !code[..at].ends_with(is_of_a_name)
        })
    })
}

#[test]
fn every_kind_of_sleep_is_seen() {
    let called = |name: &str| sleeps(&format!("    {name}(5);"));
    let kinds = [
        "std::thread::sleep",
        "tokio::time::sleep",
        "tokio::time::sleep_until",
        "sleep",
        "() = sleep_until",
        "batch_execute(\"select pg_sleep",
        "perform pg_sleep_for",
        "await asyncio.sleep",
        "new Promise((done) => setTimeout",
    ];
    let others = ["asleep", "wants_to_sleep", "sleeps", "sleep_of", "listener.settimeout"];

    assert_eq!(kinds.map(called), [true; 9]);
    assert_eq!(others.map(called), [false; 5]);
}

#[test]
fn every_sql_file_every_module_and_every_folder_has_its_place_in_the_map() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let map = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let mut wanted: Vec<String> = Vec::new();
    for (name, _) in files("sql", "sql") {
        wanted.push(name.trim_start_matches("sql/").trim_end_matches(".sql").to_owned());
    }
    let folders = [
        "src",
        "src/client",
        "src/worker",
        "src/execute",
        "src/db",
        "src/admin",
        "src/host",
        "src/web",
        "src/web/pages",
    ];
    for folder in folders {
        for entry in fs::read_dir(root.join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            wanted.push(name.trim_end_matches(".rs").to_owned());
        }
    }
    wanted.retain(|name| name != "mod");
    for entry in fs::read_dir(root).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_dir() && !name.starts_with('.') && name != "target" {
            wanted.push(format!("{name}/"));
        }
    }

    let words: Vec<&str> = map
        .split(|c: char| !(c.is_alphanumeric() || "_/.".contains(c)))
        .collect();
    let is_named = |name: &str| {
        let spellings = [
            name.to_owned(),
            format!("{name}/"),
            format!("src/{name}.rs"),
            format!("src/{name}/"),
        ];
        words
            .iter()
            .any(|word| spellings.iter().any(|spelling| spelling == word))
    };
    let missing: Vec<&String> = wanted.iter().filter(|name| !is_named(name)).collect();
    assert!(missing.is_empty(), "not in ARCHITECTURE.md: {missing:?}");
}

/// What a program compiles that depends on the library and asks for no feature.
#[test]
fn the_core_depends_on_at_most_110_crates_and_on_nothing_that_only_the_program_needs() {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "--no-default-features"])
        .args(["--edges", "normal", "--prefix", "none", "--format", "{p}"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).unwrap();
    let of_the_core: BTreeSet<&str> = tree.lines().map(|line| line.trim_end_matches(" (*)")).collect();

    assert!(
        of_the_core.len() <= 110,
        "{} crates: {of_the_core:#?}",
        of_the_core.len()
    );
    let of_the_program = [
        "anyhow", "clap", "hyper", "mimalloc", "ratatui", "refinery", "reqwest", "toml",
    ];
    let names: BTreeSet<&str> = of_the_core.iter().filter_map(|line| line.split(' ').next()).collect();
    let astray: Vec<&&str> = of_the_program.iter().filter(|name| names.contains(*name)).collect();
    assert!(names.contains("tokio-postgres") && astray.is_empty(), "{astray:?}");
}

#[test]
fn every_feature_is_in_both_tables_of_the_documentation() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let section = manifest.split("\n[features]\n").nth(1).unwrap();
    let section = section.split("\n[").next().unwrap();
    let features = section
        .lines()
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, _)| name);
    let features: BTreeSet<&str> = features.filter(|name| *name != "default").collect();
    assert!(features.contains("cli") && features.contains("otlp"), "{features:?}");

    for (page, mark) in [("src/lib.rs", "//! | `"), ("docs/reference/cargo-features.md", "| `")] {
        let text = fs::read_to_string(root.join(page)).unwrap();
        let rows = text
            .lines()
            .filter_map(|line| line.strip_prefix(mark)?.split('`').next());
        assert_eq!(rows.collect::<BTreeSet<_>>(), features, "{page}");
    }
}

#[test]
fn every_file_that_the_library_includes_is_in_its_package() {
    let list = Command::new(env!("CARGO"))
        .args(["package", "--list", "--allow-dirty", "--offline", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(list.status.success(), "{}", String::from_utf8_lossy(&list.stderr));
    let list = String::from_utf8(list.stdout).unwrap();
    let packed: BTreeSet<&str> = list.lines().collect();

    let mut missing = Vec::new();
    for (name, text) in files("src", "rs") {
        let from_here = text
            .split("include_str!(\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next());
        let from_here = from_here.map(|path| Path::new(&name).parent().unwrap().join(path));
        let from_the_root = text.split("env!(\"CARGO_MANIFEST_DIR\"), \"/").skip(1);
        let from_the_root = from_the_root
            .filter_map(|rest| rest.split('"').next())
            .map(PathBuf::from);
        for path in from_here.chain(from_the_root) {
            let plain = plain(&path);
            if !packed.contains(plain.as_str()) {
                missing.push(format!("{name} includes {plain}"));
            }
        }
    }
    let of_the_schema = ["sql", "migrations"].map(|folder| files(folder, "sql")).concat();
    missing.extend(
        of_the_schema
            .into_iter()
            .map(|(name, _)| name)
            .filter(|name| !packed.contains(name.as_str())),
    );

    assert!(missing.is_empty(), "add them to `include` in Cargo.toml: {missing:#?}");
    assert!(
        !list.contains("tests/sql/"),
        "the package has tests that cannot run there"
    );
}

/// A path without `..`.
fn plain(path: &Path) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.iter().filter_map(|part| part.to_str()) {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[test]
fn every_test_that_runs_the_program_names_the_features_it_needs() {
    let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    let mut silent = Vec::new();
    for (name, text) in files("tests", "rs") {
        let Some(test) = name.strip_prefix("tests/").filter(|test| !test.contains('/')) else {
            continue;
        };
        let needs_features = text.contains("\nmod common;") || text.contains("CARGO_BIN_EXE");
        let section = manifest
            .split("\n[[")
            .find(|section| section.contains(&format!("path = \"tests/{test}\"")));
        if needs_features && test != "architecture.rs" && !section.is_some_and(|it| it.contains("required-features")) {
            silent.push(name);
        }
    }

    assert!(
        silent.is_empty(),
        "add a [[test]] with required-features to Cargo.toml: {silent:?}"
    );
}

#[test]
fn nothing_is_left_to_do_in_a_comment() {
    let mark = concat!("TO", "DO");
    let all = [
        files("src", "rs"),
        files("tests", "rs"),
        files("sql", "sql"),
        files("migrations", "sql"),
        files("docs", "md"),
    ];
    for (name, text) in all.concat() {
        assert!(!text.contains(mark), "{name} says {mark}");
    }
}

/// What package managers put beside the source of an example.
const INSTALLED: [&str; 5] = ["node_modules", ".venv", "target", "dist", "__pycache__"];

/// They need other queues and most of an hour, so they are only read here.
#[test]
fn the_programs_of_the_comparison_can_be_read_by_their_interpreters() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/rivals");
    let parse = "import ast, sys; [ast.parse(open(name).read(), name) for name in sys.argv[1:]]";
    let python = [
        "measure.py",
        "rivals.py",
        "backends.py",
        "table.py",
        "notify_rtt.py",
        "py/lib.py",
    ];
    let mut commands = vec![("python3", [&["-c", parse], &python[..]].concat())];
    for script in ["run", "setup", "server", "floor.sh"] {
        commands.push(("bash", vec!["-n", script]));
    }
    for (program, arguments) in commands {
        let output = Command::new(program).args(&arguments).current_dir(&folder).output();
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
    }
}

/// All files under `folder` with this ending, which can be empty: their names from the root of the repository, and
/// their texts.
fn files(folder: &str, ending: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found: Vec<PathBuf> = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.unwrap().path();
            let is_ours = |folder: &&str| !path.ends_with(folder);
            match path.is_dir() {
                true if INSTALLED.iter().all(is_ours) => folders.push(path),
                false if path.extension().unwrap_or_default() == ending => found.push(path),
                _ => {}
            }
        }
    }
    found.sort();
    let name = |path: &Path| path.strip_prefix(root).unwrap().display().to_string();
    found
        .iter()
        .map(|path| (name(path), fs::read_to_string(path).unwrap()))
        .collect()
}

fn is_test(name: &str) -> bool {
    name.ends_with("/tests.rs") || name.ends_with("/testing.rs")
}

/// The same text with nothing but empty lines up to where a file's tests begin.
fn tests_alone(text: &str) -> String {
    let begin = text.find("\nmod tests {").unwrap_or(text.len());
    "\n".repeat(text[..begin].matches('\n').count()) + &text[begin..]
}

/// The lines that are code, with their numbers: no comments, and nothing from where a file's tests begin.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .take_while(|(_, line)| line.trim() != "mod tests {")
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
        .map(|(number, line)| (number + 1, line))
}

/// `bugle.claim`, from `create or replace function bugle.claim(…`.
fn named<'a>(line: &'a str, what: &str, kind: &str) -> Option<&'a str> {
    let name = line.strip_prefix(what)?.strip_prefix(kind)?.strip_prefix(' ')?;
    name.split(|c: char| c == '(' || c.is_whitespace()).next()
}

/// What the library exports can grow without breaking the programs that use it. A field or a variant that is added to a
/// type without the attribute is a breaking change.
#[test]
fn public_types_that_can_grow_are_non_exhaustive() {
    const PUBLIC: [&str; 12] = [
        "src/admin/operat",
        "src/admin/read/",
        "src/client/",
        "src/config/",
        "src/error.rs",
        "src/execute/",
        "src/job.rs",
        "src/private_postgres/",
        "src/schema.rs",
        "src/state.rs",
        "src/testing/",
        "src/worker/service.rs",
    ];
    /// A pair of numbers that the protocol defines; the flags of the program; private modules.
    const CLOSED: [&str; 4] = ["HeldJob", "Flags", "Shortage", "State"];
    let mut open = Vec::new();
    let mut seen = 0;
    for (name, text) in files("src", "rs") {
        if !PUBLIC.iter().any(|start| name.starts_with(start)) || is_test(&name) {
            continue;
        }
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let Some(declared) = declared_with_parts(&lines[number..]) else {
                continue;
            };
            seen += 1;
            let mut attributes = lines[..number].iter().rev().map(|line| line.trim());
            let has_attribute = attributes
                .by_ref()
                .take_while(|line| line.starts_with("#[") || line.starts_with("///"))
                .any(|line| line == "#[non_exhaustive]");
            if !has_attribute && !CLOSED.contains(&declared) {
                open.push(format!("{name}:{}: {}", number + 1, line.trim()));
            }
        }
    }

    assert!(seen > 60, "only {seen} public types were found");
    assert!(open.is_empty(), "#[non_exhaustive] is missing: {open:#?}");
}

/// The name of the public type that begins in the first of these lines, if other programs can see its parts: an enum, a
/// struct with a public field, or an enum of `spelled!`.
fn declared_with_parts<'a>(lines: &[&'a str]) -> Option<&'a str> {
    let line = lines[0].trim_start();
    let name_of = |rest: &'a str| rest.split(|c: char| !c.is_alphanumeric()).next();
    if let Some(rest) = line.strip_prefix("pub enum ") {
        return name_of(rest);
    }
    if line.ends_with("\" {") && line.contains(", \"") && line.starts_with(char::is_uppercase) {
        return name_of(line);
    }
    let rest = line.strip_prefix("pub struct ")?;
    let mut parts = lines[1..].iter().take_while(|line| !line.starts_with('}'));
    match line.ends_with('{') && parts.any(|line| line.starts_with("    pub ") && line.contains(':')) {
        true => name_of(rest),
        false => None,
    }
}
