//! The documentation is true: its SQL runs, its configuration is read, its links and names lead somewhere.
//!
//! What the word after a fence means:
//!
//! | fence | |
//! |---|---|
//! | `sql` | runs, in the order of the file, in one database per file; as the owner, or as said first: `-- as viewer` |
//! | `sql,refused` | must fail; a `text` block below it, if there is one, must contain what the database says |
//! | `sql,rollback` | runs in a transaction that is rolled back: roles belong to the whole server |
//! | `sql,ignore` | does not run; a comment above it says why |
//! | `text,output` | the rows that the block above it returns |
//! | `toml,worker` | a worker's file |

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use common::{DEADLINE, Database, execute};
use futures_util::SinkExt;
use tokio_postgres::{Client, SimpleQueryMessage};

const ROLES: [&str; 4] = ["enqueuer", "viewer", "operator", "worker"];

#[tokio::test(flavor = "multi_thread")]
async fn every_statement_in_the_documentation_does_what_it_says() {
    let pages = pages().into_iter().filter(|page| page.has_sql());
    let runs: Vec<_> = pages
        .map(|page| {
            let name = page.name();
            let run = tokio::time::timeout(4 * DEADLINE, async move { page.run().await });
            (name, tokio::spawn(run))
        })
        .collect();

    // all of them, before the first failure ends the test: nobody is left in the middle of a statement
    let mut failures = Vec::new();
    for (name, run) in runs {
        match run.await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => failures.push(format!("{name}: a statement does not come to its end")),
            Err(panic) => failures.push(format!("{name}: {panic}")),
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn every_worker_file_in_the_documentation_is_read() {
    let mut read = 0;
    for page in pages() {
        for block in page.blocks.iter().filter(|block| block.info == "toml,worker") {
            bugle::config::Config::from_toml(&block.text).unwrap_or_else(|error| panic!("{}: {error}", block.place));
            read += 1;
        }
    }

    assert!(read >= 3, "only {read} worker files are shown");
}

#[test]
fn the_worker_file_of_the_containers_is_read() {
    bugle::config::Config::from_file(&root().join("deploy/bugle.toml")).unwrap();
}

#[test]
fn every_relative_link_leads_to_a_file() {
    for page in pages() {
        for target in links(&page.text) {
            let path = target.split('#').next().unwrap();
            if path.is_empty() || path.contains("://") {
                continue;
            }
            let file = page.file.parent().unwrap().join(path);
            assert!(file.exists(), "{}: {target} leads nowhere", page.name());
        }
    }
}

#[test]
fn every_link_to_a_heading_leads_to_one() {
    let all = pages();
    for page in &all {
        for target in links(&page.text).filter(|target| !target.contains("://")) {
            let Some((path, heading)) = target.split_once('#') else {
                continue;
            };
            let file = match path {
                "" => page.file.clone(),
                path => page.file.parent().unwrap().join(path).canonicalize().unwrap(),
            };
            let to = all.iter().find(|page| page.file == file);
            let headings = to.map(Page::headings).unwrap_or_default();
            assert!(
                headings.iter().any(|known| known == heading),
                "{}: there is no heading {target}; there are {headings:?}",
                page.name()
            );
        }
    }
}

#[test]
fn the_readme_names_both_commands_and_they_can_be_run() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();

    for command in ["bin/demo", "bin/test"] {
        assert!(readme.contains(command), "{command} is not named");
        let mode = fs::metadata(root().join(command)).expect(command).permissions().mode();
        assert!(mode & 0o111 == 0o111, "{command} cannot be run by everyone");
    }
}

/// `cargo test --test <program> <name>`: the parts of a name stand in the program, or are a file or folder below it.
#[test]
fn every_test_that_is_named_to_be_run_exists() {
    let guide = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let mut missing = Vec::new();
    for command in guide.split("cargo test --test ").skip(1) {
        let mut words = command.lines().next().unwrap_or_default().split([' ', '`']);
        let program = words.next().unwrap_or_default();
        let name = words
            .next()
            .filter(|word| !word.starts_with(['-', '#']))
            .unwrap_or_default();
        let text =
            text_of(&root().join(format!("tests/{program}.rs"))) + &text_of(&root().join(format!("tests/{program}")));
        if text.trim().is_empty() || !name.split("::").all(|part| text.contains(part)) {
            missing.push(format!("{program} {name}"));
        }
    }

    assert!(missing.is_empty(), "{missing:#?}");
}

/// The names of a file, or of a folder and all below it, and what is in them.
fn text_of(path: &Path) -> String {
    let below = fs::read_dir(path).into_iter().flatten();
    let below: String = below.map(|entry| text_of(&entry.unwrap().path())).collect();
    let name = path.file_stem().filter(|_| path.exists()).unwrap_or_default();
    name.to_string_lossy().into_owned() + " " + &fs::read_to_string(path).unwrap_or_default() + &below
}

#[tokio::test(flavor = "multi_thread")]
async fn every_name_in_the_documentation_exists_in_the_database() {
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

#[tokio::test(flavor = "multi_thread")]
async fn every_column_a_job_can_be_given_and_every_error_has_its_place_in_the_documentation() {
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
            says("docs/configuration.md", &setting),
            "the setting {setting} is not described"
        );
    }
    for code in bugle::Code::ALL {
        assert!(
            says("docs/errors.md", code.sqlstate()),
            "{} is not described",
            code.sqlstate()
        );
    }
}

/// One page of the documentation.
struct Page {
    file: PathBuf,
    text: String,
    blocks: Vec<Block>,
}

/// What stands between two fences.
struct Block {
    /// File and line, for whoever has to mend it.
    place: String,
    info: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().unwrap()
}

fn pages() -> Vec<Page> {
    let mut files: Vec<PathBuf> = [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
    ]
    .map(PathBuf::from)
    .into();
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        files.push(Path::new("docs").join(entry.unwrap().file_name()));
    }
    files.push("examples/README.md".into());
    for entry in fs::read_dir(root().join("examples")).unwrap() {
        let readme = Path::new("examples").join(entry.unwrap().file_name()).join("README.md");
        files.extend(Some(readme).filter(|readme| root().join(readme).exists()));
    }
    files.retain(|file: &PathBuf| file.extension().is_some_and(|ending| ending == "md"));
    files.sort();
    files.iter().map(|file| Page::read(&root().join(file))).collect()
}

impl Page {
    fn read(file: &Path) -> Page {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mut page = Page {
            file: file.to_owned(),
            text,
            blocks: Vec::new(),
        };
        page.blocks = page.parse();
        page
    }

    fn name(&self) -> String {
        self.file.strip_prefix(root()).unwrap().display().to_string()
    }

    fn parse(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut open: Option<Block> = None;
        for (number, line) in self.text.lines().enumerate() {
            match (&mut open, line.strip_prefix("```")) {
                (Some(_), Some("")) => blocks.extend(open.take()),
                (Some(block), _) => block.text.push_str(&format!("{line}\n")),
                (None, Some(info)) => {
                    open = Some(Block {
                        place: format!("{}:{}", self.name(), number + 1),
                        info: info.trim().to_owned(),
                        text: String::new(),
                    });
                }
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: a fence is not closed", self.name());
        blocks
    }

    fn headings(&self) -> Vec<String> {
        let in_blocks: BTreeSet<&str> = self.blocks.iter().flat_map(|block| block.text.lines()).collect();
        self.text
            .lines()
            .filter(|line| line.starts_with('#') && !in_blocks.contains(line))
            .map(|line| anchor(line.trim_start_matches('#').trim()))
            .collect()
    }

    fn has_sql(&self) -> bool {
        self.blocks.iter().any(|block| block.info.starts_with("sql"))
    }

    /// Run all statements of this page, in order, in a database of its own.
    async fn run(&self) {
        let database = Database::new().await;
        let mut sessions = BTreeMap::new();
        for (number, block) in self.blocks.iter().enumerate() {
            if !block.info.starts_with("sql") || block.info == "sql,ignore" {
                continue;
            }
            let role = block.role();
            if !sessions.contains_key(role) {
                let session = database.connect(role).await;
                // one that waits for another session of the page, which waits for us, must fail
                let limit = format!("set statement_timeout = '{}s'", DEADLINE.as_secs());
                execute(&session, &limit).await;
                sessions.insert(role, session);
            }
            let below = self.blocks.get(number + 1);
            block.run(&sessions[role], below).await;
        }
    }
}

impl Block {
    fn role(&self) -> &str {
        let first = self.text.lines().next().unwrap_or_default();
        match first.strip_prefix("-- as ") {
            Some(role) if ROLES.contains(&role) => role,
            Some(role) => panic!("{}: there is no role {role}", self.place),
            None => "owner",
        }
    }

    async fn run(&self, client: &Client, below: Option<&Block>) {
        let place = &self.place;
        match self.info.as_str() {
            "sql" if self.text.contains("from stdin") => self.copy(client).await,
            "sql" => {
                let answer = client.simple_query(&self.text).await;
                let rows = rows(&answer.unwrap_or_else(|error| panic!("{place}: {}", told(&error))));
                if let Some(expected) = below.filter(|below| below.info == "text,output") {
                    assert_eq!(rows, expected.cells(), "{place} answers otherwise");
                }
            }
            "sql,rollback" => {
                let all = format!("begin; {} ; rollback", self.text);
                let answer = client.batch_execute(&all).await;
                answer.unwrap_or_else(|error| panic!("{place}: {}", told(&error)));
            }
            "sql,refused" => {
                let answer = client.batch_execute(&self.text).await;
                let said = told(&answer.expect_err(&format!("{place} is not refused")));
                execute(client, "rollback").await;
                if let Some(expected) = below.filter(|below| below.info == "text") {
                    for line in expected.text.lines().map(str::trim).filter(|line| !line.is_empty()) {
                        assert!(
                            said.contains(line),
                            "{place}: expected\n{line}\nbut the database says\n{said}"
                        );
                    }
                }
            }
            other => panic!("{place}: a block of SQL cannot be {other:?}"),
        }
    }

    async fn copy(&self, client: &Client) {
        let (statement, data) = self.text.split_once(";\n").expect("COPY … FROM STDIN; and its data");
        let data = data.strip_suffix("\\.\n").expect("the data ends with \\.");
        let sink = client.copy_in(statement).await;
        let mut sink = Box::pin(sink.unwrap_or_else(|error| panic!("{}: {}", self.place, told(&error))));
        sink.send(bytes_of(data)).await.unwrap();
        sink.as_mut()
            .finish()
            .await
            .unwrap_or_else(|error| panic!("{}: {}", self.place, told(&error)));
    }

    /// The values of a table as psql prints it.
    fn cells(&self) -> Vec<Vec<String>> {
        let lines = self
            .text
            .lines()
            .skip(2)
            .filter(|line| !line.is_empty() && !line.starts_with('('));
        lines
            .map(|line| line.split('|').map(|cell| cell.trim().to_owned()).collect())
            .collect()
    }
}

fn bytes_of(data: &str) -> std::io::Cursor<Vec<u8>> {
    std::io::Cursor::new(data.as_bytes().to_vec())
}

fn rows(answer: &[SimpleQueryMessage]) -> Vec<Vec<String>> {
    let row = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => Some(
            (0..row.len())
                .map(|column| row.get(column).unwrap_or_default().trim().to_owned())
                .collect(),
        ),
        _ => None,
    };
    answer.iter().filter_map(row).collect()
}

/// An error as psql tells it.
fn told(error: &tokio_postgres::Error) -> String {
    let Some(said) = error.as_db_error() else {
        return error.to_string();
    };
    let mut text = format!("ERROR:  {}: {}", said.code().code(), said.message());
    if let Some(hint) = said.hint() {
        text.push_str(&format!("\nHINT:  {hint}"));
    }
    text
}

async fn names(client: &Client, sql: &str) -> BTreeSet<String> {
    rows(&client.simple_query(sql).await.unwrap())
        .into_iter()
        .flatten()
        .collect()
}

/// The targets of `[text](target)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// A heading as a link spells it.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
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
