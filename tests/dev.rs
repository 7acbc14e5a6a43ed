//! `bugle dev`: a database and a worker, until Ctrl-C.
#![cfg(target_os = "linux")] // what is left is looked for in /proc

mod common;
#[path = "common/leftovers.rs"]
mod leftovers;

use std::io::{BufRead, BufReader};
use std::process::Command;

use common::{BUGLE, Database, Folder, connect, execute, wait_until};
use leftovers::Marked;
use rustix::process::Signal;

fn dev(folder: &Folder) -> Command {
    let mut command = Command::new(BUGLE);
    command
        .arg("dev")
        .current_dir(folder.path())
        .env_remove("DATABASE_URL")
        .env_remove("BUGLE_DATABASE_URL");
    command
}

/// What it prints until it serves, and in it the URL for psql and the INSERT to try.
fn greeting(dev: &mut Marked) -> (String, String, String) {
    let lines = BufReader::new(dev.process.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let mut said = String::new();
    let (mut url, mut insert) = (String::new(), String::new());
    for line in lines {
        if let Some(shown) = line.trim().strip_prefix("psql '") {
            url = shown.trim_end_matches('\'').to_owned();
        }
        if line.trim().starts_with("insert into") {
            insert = line.trim().to_owned();
        }
        said += &(line.clone() + "\n");
        if line.trim().starts_with("select") {
            break;
        }
    }
    (said, url, insert)
}

#[tokio::test]
async fn the_lines_for_psql_and_for_programs_and_the_insert_it_prints_work_and_nothing_is_left_after_ctrl_c() {
    let folder = Folder::new();
    let mut dev = Marked::start(&mut dev(&folder));
    let server = dev.folder();

    let (said, url, insert) = greeting(&mut dev);
    let client = connect(&url.parse().unwrap_or_else(|_| panic!("{said}"))).await;
    client
        .batch_execute(&insert)
        .await
        .unwrap_or_else(|error| panic!("{insert}: {error:?}"));
    wait_until(
        &client,
        "select exists (select from bugle.jobs where state = 'completed' and result->>'name' = 'Ada')",
    )
    .await;
    let for_programs = said
        .lines()
        .find_map(|line| line.trim().strip_prefix("export DATABASE_URL='"));
    let for_programs = for_programs.unwrap_or_else(|| panic!("{said}")).trim_end_matches('\'');
    let pages = said.lines().find_map(|line| line.trim().strip_prefix("open http://"));
    let pages = pages.unwrap_or_else(|| panic!("{said}")).trim_end_matches('/');
    let page = common::http::ask(pages.parse().expect("an address"), "GET", "/jobs", "", "").await;
    assert!(page.body.contains(">hello</a></td>"), "{}", page.body);
    let seen = connect(&for_programs.parse().expect("a URL"))
        .await
        .query_one("select count(*) from bugle.jobs", &[])
        .await;
    assert_eq!(seen.unwrap().get::<_, i64>(0), 1);
    dev.signal(Signal::INT);
    let (code, _, errors) = dev.end();

    assert_eq!(code, Some(0), "{errors}");
    dev.nothing_is_left(Some(&server));
}

#[tokio::test]
async fn killed_it_leaves_nothing_behind_either() {
    let folder = Folder::new();
    let mut dev = Marked::start(&mut dev(&folder));
    let server = dev.folder();
    greeting(&mut dev);

    dev.signal(Signal::KILL);
    dev.end();

    dev.nothing_is_left(Some(&server));
}

#[tokio::test]
async fn data_asked_to_be_kept_is_there_the_next_time() {
    let folder = Folder::new();
    let mut urls = Vec::new();
    for (round, jobs) in [(1, 0), (2, 1)] {
        let mut dev = Marked::start(dev(&folder).arg("--keep").arg(folder.join("data")));
        let (said, url, insert) = greeting(&mut dev);
        let client = connect(&url.parse().unwrap_or_else(|_| panic!("round {round}: {said}"))).await;
        wait_until(&client, &format!("select count(*) = {jobs} from bugle.jobs")).await;
        execute(&client, &insert).await;
        wait_until(&client, "select bool_and(state = 'completed') from bugle.jobs").await;
        dev.signal(Signal::INT);
        assert_eq!(dev.end().0, Some(0));
        dev.nothing_is_left(None);
        let for_programs = said.lines().find(|line| line.contains("export DATABASE_URL"));
        urls.push(for_programs.expect("a URL").to_owned());
    }
    assert_eq!(urls[0], urls[1], "the port and the password are kept too");
    assert!(folder.join("data/PG_VERSION").exists());
}

#[tokio::test]
async fn a_database_that_a_flag_names_is_used_with_the_commands_of_the_file() {
    let folder = Folder::new();
    let file = "[queues]\nmail = 1\n[commands.shout]\nsql = \"select upper($1->>'name')\"\n";
    folder.write("bugle.toml", file);
    let database = Database::empty().await;
    let mut command = dev(&folder);
    command
        .args(["--database-url", "env:DATABASE_URL"])
        .env("DATABASE_URL", database.url("owner"));
    let mut dev = Marked::start(&mut command);

    let (said, _, insert) = greeting(&mut dev);
    let client = database.owner().await;
    execute(&client, &insert).await;
    wait_until(
        &client,
        "select exists (select from bugle.jobs where state = 'completed' and result = '\"ADA\"')",
    )
    .await;
    dev.signal(Signal::TERM);
    let (code, _, errors) = dev.end();

    assert_eq!(code, Some(0), "{errors}");
    assert!(insert.contains("'shout'") && insert.contains("'mail'"), "{insert}");
    assert!(!said.contains("password") && !said.contains("dbname"), "{said}");
    dev.nothing_is_left(None);
}

#[tokio::test]
async fn no_variable_leads_it_to_another_server_than_its_own() {
    let folder = Folder::new();
    folder.write("services.conf", "[production]\nhost=nowhere.invalid\n");
    let database = Database::empty().await;
    let mut command = dev(&folder);
    command
        .env("DATABASE_URL", database.url("owner"))
        .env("BUGLE_DATABASE_URL", database.url("owner"))
        .env("PGHOST", "nowhere.invalid")
        .env("PGHOSTADDR", "127.0.0.1,127.0.0.2")
        .env("PGPORT", "1")
        .env("PGUSER", "nobody")
        .env("PGDATABASE", "nothing")
        .env("PGSERVICE", "production")
        .env("PGSERVICEFILE", folder.join("services.conf"))
        .env("PGOPTIONS", "-c no.such=thing -c nonsense")
        .env("PGTARGETSESSIONATTRS", "standby")
        .env("PGSSLMODE", "verify-full");
    let mut dev = Marked::start(&mut command);

    let (said, url, insert) = greeting(&mut dev);
    let client = connect(&url.parse().unwrap_or_else(|_| panic!("{said}"))).await;
    execute(&client, &insert).await;
    wait_until(&client, "select bool_and(state = 'completed') from bugle.jobs").await;
    dev.signal(Signal::INT);
    let (code, _, errors) = dev.end();

    assert_eq!(code, Some(0), "{errors}");
    for name in ["BUGLE_DATABASE_URL", "DATABASE_URL"] {
        let note = format!("{name} is set but not used");
        assert!(errors.lines().any(|line| line.starts_with(&note)), "{errors}");
    }
    let touched = "select count(*) from pg_namespace where nspname = 'bugle'";
    let touched = database.owner().await.query_one(touched, &[]).await.unwrap();
    assert_eq!(
        touched.get::<_, i64>(0),
        0,
        "the database of the variables is as it was"
    );
}

#[tokio::test]
async fn the_file_of_the_readme_works_as_it_is() {
    let readme = include_str!("../README.md");
    let (_, file) = readme.split_once("```toml,worker\n").expect("a file");
    let folder = Folder::new();
    folder.write("bugle.toml", file.split("```").next().unwrap());
    let mut dev = Marked::start(&mut dev(&folder));

    let (said, url, _) = greeting(&mut dev);
    let client = connect(&url.parse().unwrap_or_else(|_| panic!("{said}"))).await;
    execute(
        &client,
        "insert into bugle.jobs (command, payload) values
               ('send_mail', '{\"to\": \"ada@example.org\"}'), ('book_stock', '{\"item\": \"tea\"}')",
    )
    .await;
    wait_until(
        &client,
        "select array_agg(result order by id) = array['{\"to\": \"ada@example.org\"}', '\"booked: tea\"']::jsonb[] \
            from bugle.jobs \
         having count(*) filter (where state = 'completed') = 2 union all select false limit 1",
    )
    .await;
    dev.signal(Signal::INT);
    assert_eq!(dev.end().0, Some(0));
}

#[tokio::test]
async fn a_file_that_does_not_work_out_is_told_before_there_is_a_server() {
    let folder = Folder::new();
    folder.write(
        "bugle.toml",
        "[commands.x]\nhttp = { url = \"env:NO_SUCH_VARIABLE\" }\n",
    );

    let output = dev(&folder).output().expect("it runs");

    assert!(!output.status.success());
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("commands.x") && said.contains("NO_SUCH_VARIABLE"),
        "{said}"
    );
}

#[tokio::test]
async fn an_edited_file_is_used_at_once_and_a_broken_one_is_told() {
    let folder = Folder::new();
    let add = "[commands.add]\nsql = \"select ($1->>'a')::int + ($1->>'b')::int\"\n";
    let wrong = "[commands.lost]\nprogram = [\"no-such-program\"]\n[commands.wrong]\nsql = \"select * from nowhere\"\n";
    folder.write("bugle.toml", &format!("{add}{wrong}"));
    let mut dev = Marked::start(&mut dev(&folder));
    let mut errors = BufReader::new(dev.process.stderr.take().unwrap()).lines();
    let mut told = |part: &str| {
        let line = errors.by_ref().map(Result::unwrap).find(|line| line.contains(part));
        line.unwrap_or_else(|| panic!("it does not say {part}"))
    };

    let (_, url, insert) = greeting(&mut dev);
    let client = connect(&url.parse().expect("a URL")).await;
    let first = [told("no-such-program"), told("nowhere")];
    execute(&client, &insert).await;
    wait_until(&client, "select exists (select from bugle.jobs where result = '34')").await;
    let finished = told("complete");
    folder.write("bugle.toml", "[commands.add\n");
    let broken = told("has changed, but cannot be used");
    folder.write(
        "bugle.toml",
        &format!("{add}[commands.two]\nsql = \"select 'second'\"\n"),
    );
    execute(&client, "insert into bugle.jobs (command) values ('two')").await;
    wait_until(
        &client,
        "select exists (select from bugle.jobs where result = '\"second\"')",
    )
    .await;
    dev.signal(Signal::INT);
    let (code, ..) = dev.end();

    assert_eq!(first[0], "warning: command lost: there is no program no-such-program");
    assert!(
        first[1].starts_with("warning: command wrong: relation \"nowhere\" does not exist"),
        "{}",
        first[1]
    );
    assert!(insert.contains(r#"{"a":17,"b":17}"#), "{insert}");
    assert!(finished.contains("\"command\":\"add\""), "{finished}");
    assert!(broken.starts_with("bugle.toml "), "{broken}");
    assert_eq!(code, Some(0));
}

#[tokio::test]
async fn an_edit_that_no_worker_can_use_costs_neither_the_server_nor_its_data() {
    let folder = Folder::new();
    let add = "[commands.add]\nsql = \"select 'added'\"\n";
    folder.write("bugle.toml", add);
    let mut dev = Marked::start(&mut dev(&folder));
    let mut errors = BufReader::new(dev.process.stderr.take().unwrap()).lines();
    let mut told = |part: &str| {
        let line = errors.by_ref().map(Result::unwrap).find(|line| line.contains(part));
        line.unwrap_or_else(|| panic!("it does not say {part}"))
    };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();

    let (_, url, insert) = greeting(&mut dev);
    let client = connect(&url.parse().expect("a URL")).await;
    for (wrong, why) in [
        ("pool_size = 0\n", "pool_size is 0"),
        ("safety_poll = \"10ms\"\n", "safety_poll must be"),
        ("listen = \"0.0.0.0:7070\"\n", "token"),
    ] {
        folder.write("bugle.toml", &format!("{wrong}{add}"));
        // a file that is read while it is being written may be refused for another reason first
        told(why);
    }
    execute(&client, &insert).await;
    wait_until(&client, "select count(*) = 1 from bugle.jobs where state = 'completed'").await;
    folder.write("bugle.toml", &format!("listen = \"127.0.0.1:{port}\"\n{add}"));
    let busy = told("no worker runs");
    drop(taken);
    folder.write(
        "bugle.toml",
        &format!("[commands.two]\nsql = \"select 'second'\"\n{add}"),
    );
    execute(&client, "insert into bugle.jobs (command) values ('two')").await;
    wait_until(&client, "select count(*) = 2 from bugle.jobs where state = 'completed'").await;
    dev.signal(Signal::INT);
    let (code, ..) = dev.end();

    assert!(busy.contains(&port.to_string()), "{busy}");
    assert_eq!(code, Some(0));
}

#[tokio::test]
async fn a_saved_program_of_a_host_restarts_its_processes() {
    let folder = Folder::new();
    let host = |answer: &str| {
        r#"
import json, os, socket

worker = socket.socket(socket.AF_UNIX)
worker.connect(os.environ["BUGLE_HOST"])
lines = worker.makefile("rw")
def send(**message):
    print(json.dumps(message), file=lines, flush=True)
send(type="hello", protocol=1, commands=["say"])
for line in lines:
    told = json.loads(line)
    if told["type"] == "job":
        send(type="done", id=told["id"], result="{answer}")
    elif told["type"] == "ping":
        send(type="pong")
"#
        .replace("{answer}", answer)
    };
    folder.write("jobs.py", &host("first"));
    folder.write("bugle.toml", "[hosts.app]\nprogram = [\"python3\", \"jobs.py\"]\n");
    let mut dev = Marked::start(&mut dev(&folder));
    let client = {
        let stdout = BufReader::new(dev.process.stdout.take().unwrap()).lines();
        let shown = stdout.map(Result::unwrap).find_map(|line| {
            line.trim()
                .strip_prefix("psql '")
                .map(|url| url.trim_end_matches('\'').to_owned())
        });
        connect(&shown.unwrap().parse().expect("a URL")).await
    };
    let said = async |answer: &str| {
        let sql = format!("select exists (select from bugle.jobs where result = '\"{answer}\"')");
        wait_until(&client, &sql).await;
    };

    execute(&client, "insert into bugle.jobs (command) values ('say')").await;
    said("first").await;
    folder.write("jobs.py", &host("another"));
    wait_until(
        &client,
        "select count(*) = 1 from bugle.workers where state = 'stopped'",
    )
    .await;
    execute(&client, "insert into bugle.jobs (command) values ('say')").await;
    said("another").await;
    dev.signal(Signal::INT);
    assert_eq!(dev.end().0, Some(0));
}
