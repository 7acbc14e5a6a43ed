//! Runs a page: its statements, its commands, and its worker.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use futures_util::SinkExt;
use rustix::process::{Pid, Signal, kill_process};
use tokio_postgres::config::Host;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::common::poll::look_for;
use crate::common::{BUGLE, DEADLINE, Database, Folder, execute};
use crate::packages;
use crate::page::{Block, Page, pages, root};
use crate::runtime;

const ROLES: [&str; 4] = ["enqueuer", "viewer", "operator", "worker"];

pub fn has_something_to_run(page: &Page) -> bool {
    let runs = |block: &Block| block.info.starts_with("sql") || block.info == "sh,run";
    page.blocks.iter().any(runs)
}

pub fn every_worker_file_is_read() {
    let mut read = 0;
    for page in pages() {
        for block in page.blocks.iter().filter(|block| block.info.starts_with("toml,worker")) {
            bugle::config::Config::from_toml(&block.text).unwrap_or_else(|error| panic!("{}: {error}", block.place));
            read += 1;
        }
    }

    assert!(read >= 3, "only {read} worker files are shown");
    bugle::config::Config::from_file(&root().join("deploy/bugle.toml")).unwrap();
}

/// Everything a page says, in order, in a database of its own.
pub async fn run(page: &Page) {
    if page.blocks.iter().any(|block| block.info == "python,file") && !can_run("python3") {
        eprintln!("{}: skipped, there is no python3", page.name());
        return;
    }
    if page.blocks.iter().any(|block| block.info == "perl,file") && !can_run("perl") {
        eprintln!("{}: skipped, there is no perl", page.name());
        return;
    }
    // one that calls a script itself needs the driver, too
    let calls_python = |block: &Block| block.info == "sh,run" && block.text.contains("python3");
    let python = match page.blocks.iter().any(calls_python) {
        false => None,
        true => match runtime::python(Path::new("-")).await {
            Some(python) => Some(python),
            None => return,
        },
    };
    let place = Place {
        database: Database::new().await,
        folder: Folder::new(),
        python,
    };
    if !place.install_packages(page).await {
        return;
    }
    let mut sessions = BTreeMap::new();
    let mut worker = None;
    for (number, block) in page.blocks.iter().enumerate() {
        let below = page.blocks.get(number + 1);
        match block.info.as_str() {
            "sql,ignore" => {}
            info if info.starts_with("sql") => {
                let role = block.role();
                if !sessions.contains_key(role) {
                    let session = place.database.connect(role).await;
                    // one that waits for another session of the page, which waits for us, must fail
                    let limit = format!("set statement_timeout = '{}s'", DEADLINE.as_secs());
                    execute(&session, &limit).await;
                    sessions.insert(role, session);
                }
                block.query(&sessions[role], below).await;
            }
            "toml,worker,run" => {
                if let Some(before) = worker.take() {
                    Worker::stop(before);
                }
                worker = Some(Worker::start(&place, &block.text));
            }
            "python,file" | "sh,file" | "js,file" | "ts,file" | "perl,file" => place.keep(block),
            "sh,run" => place.shell(block, below).await,
            _ => {}
        }
    }
}

fn can_run(program: &str) -> bool {
    let asked = Command::new(program).arg("--version").stdout(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}

/// Where a page runs.
struct Place {
    database: Database,
    folder: Folder,
    /// Python as it finds its driver, if the page needs it.
    python: Option<tokio::process::Command>,
}

impl Place {
    /// Of the owner, as every driver understands it.
    fn url(&self) -> String {
        let config = self.database.config("owner");
        let host = match &config.get_hosts()[0] {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string().replace('/', "%2F"),
        };
        let user = config.get_user().unwrap_or("postgres");
        let password = config.get_password().map(String::from_utf8_lossy).unwrap_or_default();
        let port = config.get_ports().first().copied().unwrap_or(5432);
        format!("postgresql://{user}:{password}@{host}:{port}/{}", self.database.name)
    }

    /// A command that finds `bugle` and the database, as in a terminal beside `bugle dev`.
    fn command(&self, program: &str) -> Command {
        let programs = Path::new(BUGLE).parent().expect("a folder").display();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(program);
        command
            .current_dir(self.folder.path())
            .env("PATH", format!("{programs}:{path}"))
            .env("DATABASE_URL", self.url())
            .env_remove("BUGLE_DATABASE_URL")
            .stdin(Stdio::null());
        command
    }

    /// A file, under the name that its first line has.
    fn keep(&self, block: &Block) {
        let first = block.text.lines().next().unwrap_or_default();
        let name = first.strip_prefix("# ").or(first.strip_prefix("// "));
        let name = name.unwrap_or_else(|| panic!("{}: the first line names the file: # name", block.place));
        self.folder.write(name, &block.text);
    }

    /// What the page has its reader install: the packages of sdk/ and drivers. False if that cannot be had here.
    async fn install_packages(&self, page: &Page) -> bool {
        if page.text.contains(".venv/bin/python") {
            let Some(path) = packages::python().await else {
                return false;
            };
            packages::virtual_environment(self.folder.path(), &path);
        }
        if page.text.contains("/sdk/typescript/bugle-jobs-") {
            let Some(built) = packages::typescript().await else {
                return false;
            };
            let modules = built.join("node_modules");
            std::os::unix::fs::symlink(modules, self.folder.join("node_modules")).expect("a link");
        }
        true
    }

    async fn shell(&self, block: &Block, below: Option<&Block>) {
        let place = &block.place;
        let mut shell = self.command("bash");
        shell.args(["-euo", "pipefail", "-c", &block.text]);
        if let Some(python) = &self.python {
            let set = python.as_std().get_envs();
            shell.envs(set.filter_map(|(name, value)| Some((name, value?))));
        }
        let output = tokio::task::spawn_blocking(move || shell.output())
            .await
            .expect("no panic");
        let output = output.expect("bash runs");
        let said = String::from_utf8_lossy(&output.stdout);
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{place}: {}\n{said}{complaints}",
            output.status
        );
        if let Some(expected) = below.filter(|below| below.info == "text,output") {
            assert_eq!(
                said.trim_end(),
                expected.text.trim_end(),
                "{place} prints something else"
            );
        }
    }
}

/// The worker of a page, until the page ends or starts another.
struct Worker {
    child: Child,
    log: std::path::PathBuf,
}

impl Worker {
    fn start(place: &Place, file: &str) -> Worker {
        place.folder.write("bugle.toml", file);
        let log = place.folder.join("worker.log");
        let child = place
            .command(BUGLE)
            .args(["worker", "--config", "bugle.toml"])
            .args(["--workdir".as_ref(), place.folder.join("work").as_os_str()])
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).expect("a log"))
            .spawn()
            .expect("bugle starts");
        Worker { child, log }
    }

    /// As Ctrl-C would: it finishes what it runs.
    fn stop(mut self) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a pid");
        let _ = kill_process(pid, Signal::TERM);
        let _ = self.child.wait();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- worker\n{}", std::fs::read_to_string(&self.log).unwrap_or_default());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
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

    async fn query(&self, client: &Client, below: Option<&Block>) {
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
            "sql,wait" => {
                let expected = below.filter(|below| below.info == "text,output");
                let expected = expected
                    .unwrap_or_else(|| panic!("{place}: what is waited for?"))
                    .cells();
                let last = RefCell::new(Vec::new());
                let ask = || async {
                    let answer = client.simple_query(&self.text).await;
                    let found = rows(&answer.unwrap_or_else(|error| panic!("{place}: {}", told(&error))));
                    last.replace(found);
                    (*last.borrow() == expected).then_some(())
                };
                if look_for(ask).await.is_none() {
                    assert_eq!(last.take(), expected, "{place} still answers otherwise");
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

    /// The values of a table as psql prints it: a cell that ends with `+` goes on in the line below.
    fn cells(&self) -> Vec<Vec<String>> {
        let is_row = |line: &&str| !line.is_empty() && !line.starts_with('(');
        let mut rows: Vec<Vec<String>> = Vec::new();
        for line in self.text.lines().skip(2).filter(is_row) {
            let cells = line.split('|').map(|cell| cell.trim().to_owned());
            match rows.last_mut().filter(|row| row.iter().any(|cell| cell.ends_with('+'))) {
                None => rows.push(cells.collect()),
                Some(row) => {
                    for (cell, more) in row.iter_mut().zip(cells) {
                        if let Some(begin) = cell.strip_suffix('+') {
                            *cell = format!("{}\n{more}", begin.trim_end());
                        }
                    }
                }
            }
        }
        rows
    }
}

fn bytes_of(data: &str) -> std::io::Cursor<Vec<u8>> {
    std::io::Cursor::new(data.as_bytes().to_vec())
}

pub fn rows(answer: &[SimpleQueryMessage]) -> Vec<Vec<String>> {
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
