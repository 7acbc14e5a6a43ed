//! The examples do what they say. One whose runtime or driver cannot be had here is skipped, and says so.

mod common;
#[allow(dead_code)] // each test program needs a part of it
#[path = "sdk/packages.rs"]
mod packages;
#[path = "examples/runtime.rs"]
mod runtime;

use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::OnceLock;

use bugle::private_postgres::{Options, PrivatePostgres};
use common::{BUGLE, DEADLINE, Database, Folder, WorkerProcess, execute, noop, query_value, wait_until};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;

/// A server as `bugle dev` starts it: over TCP, because not every driver knows another way.
fn server() -> &'static PrivatePostgres {
    static SERVER: OnceLock<PrivatePostgres> = OnceLock::new();
    SERVER.get_or_init(|| {
        let options = Options::new().tcp().bugle_bin(BUGLE);
        PrivatePostgres::start(&options).expect("a server")
    })
}

/// A program of an application, with a login that has the rights which the README gives it, and no others. Beside it is
/// a worker. The order of tea and its job must be there in the end, and nothing of the order of coffee.
async fn tells_the_story(mut program: Command, folder: &Folder) {
    let database = Database::empty_on(server().tcp_url("postgres").unwrap().parse().unwrap()).await;
    bugle::schema::migrate(&database.config("owner"))
        .await
        .expect("migrates");
    database.create_logins().await;
    let (owner, name) = (database.owner().await, &database.name);
    let readme = include_str!("../examples/README.md");
    let rights = readme
        .split("```sql,rollback\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let rights = rights.expect("what the login needs");
    let rights = rights
        .replace("role app ", &format!("role {name}_app "))
        .replace("to app;", &format!("to {name}_app;"));
    execute(&owner, &rights).await;
    let worker = "[commands.hello]\nprogram = [\"cat\"]\n";
    let _worker = WorkerProcess::start(&database, folder, "cat", worker, &[]);

    let url = format!(
        "postgresql://{name}_app:secret@127.0.0.1:{}/{name}?sslmode=disable",
        server().port()
    );
    let said = run(program.env("DATABASE_URL", url)).await;
    let said: Vec<&str> = said.lines().collect();

    assert_eq!(said[0], "order 1 and job 1 are committed");
    assert_eq!(said[1], "order 2 was rolled back, and job 2 with it");
    assert!(said[2].starts_with("job 1 is completed: {"), "{said:?}");
    let row = owner
        .query_one(
            "select (select string_agg(item, ',') from orders), string_agg(payload->>'name', ','), string_agg(state, \
                ',') \
             from bugle.jobs",
            &[],
        )
        .await
        .unwrap();
    let found: [Option<String>; 3] = [row.get(0), row.get(1), row.get(2)];
    assert_eq!(found, ["tea", "Ada", "completed"].map(|text| Some(text.to_string())));
    execute(&owner, &format!("drop owned by {name}_app; drop role {name}_app")).await;
}

/// What a program says, if it ends well and in time.
async fn run(program: &mut Command) -> String {
    let output = tokio::time::timeout(2 * DEADLINE, program.kill_on_drop(true).output()).await;
    let Output { status, stdout, stderr } = output.expect("it ends").expect("it runs");
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{status}\n{stdout}\n{stderr}");
    stdout.into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn psql_enqueues_in_its_own_transaction() {
    let Some(psql) = runtime::psql(&server().binaries().dir).await else {
        return;
    };
    // psql takes the database as an argument
    let mut shell = Command::new("sh");
    let story = r#""$0" "$DATABASE_URL" --no-psqlrc -f "$1""#;
    shell.args(["-c", story]).arg(psql.as_std().get_program());
    shell.arg(runtime::example("psql/enqueue.sql"));
    tells_the_story(shell, &Folder::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_enqueues_in_its_own_transaction() {
    let Some(python) = runtime::python(&runtime::example("python/enqueue.py")).await else {
        return;
    };
    tells_the_story(python, &Folder::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_enqueues_in_its_own_transaction() {
    let folder = Folder::new();
    let Some(node) = runtime::node(&folder).await else {
        return;
    };
    tells_the_story(node, &folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn go_enqueues_in_its_own_transaction() {
    let folder = Folder::new();
    let Some(go) = runtime::go(&folder).await else {
        return;
    };
    tells_the_story(go, &folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn java_enqueues_in_its_own_transaction() {
    let Some(java) = runtime::java().await else {
        return;
    };
    tells_the_story(java, &Folder::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rust_enqueues_in_its_own_transaction() {
    for name in ["enqueue", "enqueue_plain"] {
        tells_the_story(runtime::cargo_example(name).await, &Folder::new()).await;
    }
}

/// An example that brings its own worker.
async fn runs_by_itself(name: &str) -> String {
    let database = Database::new().await;
    let mut program = runtime::cargo_example(name).await;
    let said = run(program.env("DATABASE_URL", database.url("owner"))).await;
    let owner = database.owner().await;
    wait_until(
        &owner,
        "select bool_and(state in ('completed', 'failed')) from bugle.jobs",
    )
    .await;
    wait_until(&owner, "select bool_and(state = 'stopped') from bugle.workers").await;
    said
}

/// axum-sqlx: a program that goes on until it is told to stop.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_of_axum_enqueues_in_its_sqlx_transaction_and_a_rollback_leaves_no_job() {
    let Some(mut program) = runtime::cargo_package("axum-sqlx").await else {
        return;
    };
    let database = Database::empty_on(server().tcp_url("postgres").unwrap().parse().unwrap()).await;
    bugle::schema::migrate(&database.config("owner")).await.unwrap();
    let owner = database.owner().await;
    let url = server().tcp_url(&database.name).unwrap();
    let mut shop = program
        .env("DATABASE_URL", url)
        .env("ADDRESS", "127.0.0.1:0")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    let mut said = BufReader::new(shop.stdout.take().unwrap()).lines();
    let said = tokio::time::timeout(DEADLINE, said.next_line())
        .await
        .expect("in time")
        .unwrap()
        .unwrap();
    let address = said
        .strip_prefix("listening on http://")
        .expect("an address")
        .to_owned();

    let tea = post(&address, r#"{"item": "tea"}"#).await;
    let coffee = post(&address, r#"{"item": "coffee"}"#).await;

    assert!(
        tea.starts_with("HTTP/1.1 202 ") && tea.ends_with(r#"{"order":1,"job":1}"#),
        "{tea}"
    );
    assert!(
        coffee.starts_with("HTTP/1.1 409 ") && coffee.ends_with("we are out of coffee\n"),
        "{coffee}"
    );
    wait_until(&owner, "select state = 'completed' from bugle.jobs where id = 1").await;
    let row = "select concat_ws(' ', count(*), max(command), max(queue), max(max_attempts), max(result::text)) \
               from bugle.jobs";
    let jobs: String = query_value(&owner, row).await;
    assert_eq!(jobs, "1 send_receipt mail 5 \"Thank you for the tea!\"");
    let orders: String = query_value(&owner, "select string_agg(item, ',') from shop_orders").await;
    assert_eq!(orders, "tea", "what was rolled back left neither an order nor a job");

    let pid = rustix::process::Pid::from_raw(shop.id().unwrap() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let ended = tokio::time::timeout(DEADLINE, shop.wait()).await;
    assert!(ended.expect("it stops").unwrap().success());
    wait_until(&owner, "select bool_and(state = 'stopped') from bugle.workers").await;
}

/// The whole answer to a request.
async fn post(address: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let request = format!(
        "POST /orders HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = tokio::time::timeout(DEADLINE, stream.read_to_string(&mut answer)).await;
    read.expect("an answer").unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_a_typed_job_sends_and_fails() {
    let said = runs_by_itself("worker").await;
    assert!(
        said.contains("is completed: from shop@example.org to ada@example.org"),
        "{said}"
    );
    assert!(said.contains("(not_retryable): no such address"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_chain_goes_through() {
    let said = runs_by_itself("chain").await;
    assert!(said.contains("convert: 2 prices of shop 7, attempt 2"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_workflow_ends_in_its_report() {
    let said = runs_by_itself("workflow").await;
    assert!(said.contains("count: 6. index: the disk is full."), "{said}");
}

/// The example names no feature, and bin/features compiles it without any.
#[tokio::test(flavor = "multi_thread")]
async fn commands_that_need_no_code_are_set_in_rust() {
    let said = runs_by_itself("no_code").await;
    assert_eq!(said, "double: 42\necho: {\"to\":\"ada\"}\nreport: \"good\"\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_schedule_fires() {
    let said = runs_by_itself("schedule").await;
    assert!(said.contains("each slot fired once"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stages_are_entered_and_left_in_order() {
    let said = runs_by_itself("stages").await;
    let first = "→ everything, attempt 1\n→ mail, attempt 1\n  send to \"ada@example.org\"\n← mail\n← everything\n";
    assert!(said.starts_with(first), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_rolled_back_is_done_once() {
    let said = runs_by_itself("transaction").await;
    assert!(said.contains("it ran twice, and one piece was taken"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_has_an_outcome_for_each_job() {
    let said = runs_by_itself("batch").await;
    assert!(said.contains("(not_retryable): /page/0 is empty"), "{said}");
    assert!(said.contains("19 pages are indexed, 1 was rejected"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tests_of_the_tested_application_pass() {
    let mut cargo = runtime::cargo();
    cargo
        .args("test --example tested --quiet --locked --offline".split(' '))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("BUGLE_SERVER_URL", bugle::private_postgres::shared(Path::new(BUGLE)));
    let said = run(&mut cargo).await;
    assert!(said.contains("3 passed; 0 failed"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_database_an_example_says_where_to_get_one() {
    let mut program = runtime::cargo_example("chain").await;
    let output = program.env_remove("DATABASE_URL").output().await.expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(said.contains("DATABASE_URL") && said.contains("bugle dev"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_app_of_python_host_passes_its_tests_and_its_jobs_run() {
    let Some(path) = packages::python().await else { return };
    let folder = Folder::new();
    packages::copy(&runtime::example("python-host"), folder.path());
    packages::virtual_environment(folder.path(), &path);
    runs_its_jobs(&folder, &["test_jobs.py"], &["shop.py"], ".venv/bin/python").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_app_of_typescript_host_passes_its_tests_and_its_jobs_run() {
    let Some(built) = packages::typescript().await else {
        return;
    };
    let folder = Folder::new();
    packages::copy(&runtime::example("typescript-host"), folder.path());
    std::os::unix::fs::symlink(built.join("node_modules"), folder.join("node_modules")).expect("a link");
    run(Command::new("node_modules/.bin/tsc").current_dir(folder.path())).await;
    runs_its_jobs(&folder, &["--test", "dist/"], &["dist/placeOrder.js"], "node").await;
}

/// An app with a host: its tests pass, and a worker with its file runs the jobs of an order.
async fn runs_its_jobs(folder: &Folder, tests: &[&str], order: &[&str], runtime: &str) {
    run(Command::new(runtime).args(tests).current_dir(folder.path())).await;
    let database = Database::empty_on(server().tcp_url("postgres").unwrap().parse().unwrap()).await;
    bugle::schema::migrate(&database.config("owner"))
        .await
        .expect("migrates");
    let owner = database.owner().await;
    let url = server().tcp_url(&database.name).unwrap();
    let mut worker = Command::new(BUGLE)
        .args(["worker", "--config", "bugle.toml"])
        .args(["--workdir".as_ref(), folder.join("work").as_os_str()])
        .env("DATABASE_URL", &url)
        .env_remove("BUGLE_DATABASE_URL")
        .current_dir(folder.path())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("a worker");

    let mut program = Command::new(runtime);
    let said = run(program.args(order).env("DATABASE_URL", url).current_dir(folder.path())).await;

    assert_eq!(said, "order 1 is placed\n");
    wait_until(&owner, "select count(*) = 2 from bugle.jobs where state = 'completed'").await;
    let results = "select string_agg(format('%s in attempt %s', result, attempt), '; ' order by id) from bugle.jobs";
    assert_eq!(
        query_value::<String>(&owner, results).await,
        r#"{"booked": "tea"} in attempt 1; {"receipt": "R-00001", "sent_to": "ada@example.org"} in attempt 2"#
    );
    let booked = "select count(*) from shop_orders where booked_at is not null";
    assert_eq!(query_value::<i64>(&owner, booked).await, 1);
    worker.kill().await.expect("it ends");
}

#[test]
fn every_example_is_in_the_index_and_in_a_test() {
    let tests = concat!(include_str!("examples.rs"), include_str!("hosts.rs"));
    let index = std::fs::read_to_string(runtime::example("README.md")).unwrap();
    for entry in std::fs::read_dir(runtime::example("")).unwrap() {
        let path = entry.unwrap().path();
        let name = Path::new(path.file_name().unwrap());
        if name == "README.md" {
            continue;
        }
        assert!(
            index.contains(&*name.to_string_lossy()),
            "{} is not in the index",
            name.display()
        );
        let stem = name.file_stem().unwrap().to_string_lossy();
        assert!(tests.contains(&*stem), "{} is not run", name.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_in_python_runs_jobs_beside_one_in_rust() {
    let Some(mut python) = runtime::python(&runtime::example("python/worker.py")).await else {
        return;
    };
    let database = Database::new().await;
    let owner = database.owner().await;
    let rust = database.worker(&[("default", 4)], noop());
    let mut process = python
        .env("DATABASE_URL", database.url("worker"))
        .kill_on_drop(true)
        .spawn()
        .expect("python starts");
    wait_until(&owner, "select count(*) = 2 from bugle.workers where state = 'alive'").await;

    execute(
        &owner,
        "insert into bugle.jobs (command, payload)
             select c, '{\"name\": \"Ada\"}' from unnest(array['greet', 'noop']) c, generate_series(1, 20);
             insert into bugle.jobs (command, payload, steps) values ('welcome', '{\"name\": \"Eve\"}', \
             '{greet,shout}');
             insert into bugle.jobs (command, max_attempts) values ('greet', 1)",
    )
    .await;

    wait_until(&owner, "select count(*) = 41 from bugle.jobs where state = 'completed'").await;
    wait_until(
        &owner,
        "select result->>'loud' = 'HELLO, EVE!' from bugle.jobs where command = 'welcome'",
    )
    .await;
    wait_until(
        &owner,
        "select exists (select from bugle.jobs where state = 'failed' and last_error_code = 'KeyError')",
    )
    .await;
    wait_until(
        &owner,
        "select count(*) = 20 from bugle.jobs j join bugle.workers w on w.id = j.worker \
         where j.command = 'greet' and j.state = 'completed' and w.name = 'python'",
    )
    .await;

    execute(
        &owner,
        "select bugle.drain_worker(id) from bugle.workers where name = 'python'",
    )
    .await;
    let left = tokio::time::timeout(DEADLINE, process.wait()).await;
    assert!(left.expect("it leaves").expect("a child").success());
    wait_until(
        &owner,
        "select state = 'stopped' from bugle.workers where name = 'python'",
    )
    .await;
    rust.stop().await;
}
