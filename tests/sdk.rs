//! The packages for Python and TypeScript: their own tests, their types, what is installed into an empty environment,
//! enqueueing with the drivers that people use, and jobs that a real worker runs in a real host.

mod common;
#[allow(dead_code)] // each test program needs a part of it
#[path = "sdk/packages.rs"]
mod packages;
#[allow(dead_code)] // one that only the examples need
#[path = "examples/runtime.rs"]
mod runtime;

use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::OnceLock;

use bugle::private_postgres::{Options, PrivatePostgres};
use common::{BUGLE, DEADLINE, Database, Folder, WorkerProcess, execute, query_value, wait_until};
use packages::sdk;
use runtime::{can_run, missing};
use tokio::process::Command;

/// A server over TCP, because not every driver knows another way.
fn server() -> &'static PrivatePostgres {
    static SERVER: OnceLock<PrivatePostgres> = OnceLock::new();
    SERVER.get_or_init(|| {
        let options = Options::new().tcp().bugle_bin(BUGLE);
        PrivatePostgres::start(&options).expect("a server")
    })
}

async fn database() -> Database {
    let database = Database::empty_on(server().tcp_url("postgres").unwrap().parse().unwrap()).await;
    bugle::schema::migrate(&database.config("owner"))
        .await
        .expect("migrates");
    database.create_logins().await;
    database
}

/// How a program of an application connects.
fn url(database: &Database, role: &str) -> String {
    let (name, port) = (&database.name, server().port());
    match role {
        "owner" => server().tcp_url(name).unwrap(),
        _ => format!("postgresql://{name}_{role}:{name}_{role}@127.0.0.1:{port}/{name}?sslmode=disable"),
    }
}

/// What a program prints, if it ends well and in time.
async fn run(program: &mut Command) -> String {
    let output = tokio::time::timeout(4 * DEADLINE, program.kill_on_drop(true).output()).await;
    let Output { status, stdout, stderr } = output.expect("it ends").expect("it runs");
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{status}\n{stdout}\n{stderr}");
    stdout.into_owned()
}

fn python(path: &str) -> Command {
    let mut python = Command::new("python3");
    python
        .env("PYTHONPATH", path)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env_remove("BUGLE_HOST");
    python
}

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk").join(path)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tests_of_the_python_package_pass_without_a_single_dependency() {
    if !can_run("python3").await {
        return missing("python3", "apt-get install python3").unwrap_or_default();
    }
    let mut tests = python(&sdk("python/src").display().to_string());
    tests
        .args(["-m", "unittest", "--quiet"])
        .current_dir(sdk("python/tests"));
    run(&mut tests).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_package_is_typed_strictly() {
    let Some(path) = packages::python().await else { return };
    let folder = Folder::new();
    let mut mypy = python(&path);
    mypy.args(["-m", "mypy", "--cache-dir"])
        .arg(folder.path())
        .current_dir(sdk("python"));
    run(&mut mypy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wheel_works_in_an_empty_environment() {
    let Some(path) = packages::python().await else { return };
    let folder = Folder::new();
    packages::copy(&sdk("python"), &folder.join("source"));
    let mut pip = python(&path);
    pip.args("-m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps --no-index".split(' '))
        .args(["--wheel-dir", ".", "./source"])
        .current_dir(folder.path());
    run(&mut pip).await;
    let version = env!("CARGO_PKG_VERSION");
    let mut pip = python("");
    pip.args("-m pip install --quiet --disable-pip-version-check --no-index --target installed".split(' '))
        .arg(format!("bugle_jobs-{version}-py3-none-any.whl"))
        .current_dir(folder.path());
    run(&mut pip).await;

    let program = "import bugle_jobs, bugle_jobs.testing as t\nhost = bugle_jobs.Host()\n\
        host.on('add')(lambda a, b: a + b)\n\
        print(bugle_jobs.__version__, t.run(host, 'add', {'a': 1, 'b': 2}).result)";
    let mut empty = python(&folder.join("installed").display().to_string());
    let said = run(empty.args(["-c", program]).current_dir(folder.path())).await;

    assert_eq!(said, format!("{version} 3\n"));
    assert!(folder.join("installed/bugle_jobs/py.typed").exists());
    let about = folder.join(&format!("installed/bugle_jobs-{version}.dist-info"));
    has_licences(&about.join("licenses"));
}

/// The licences of the repository, as they are at its root.
fn has_licences(folder: &Path) {
    for name in ["LICENSE-MIT", "LICENSE-APACHE"] {
        let ours = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).expect("a licence");
        assert_eq!(std::fs::read_to_string(folder.join(name)).ok(), Some(ours), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn python_enqueues_with_every_driver_in_its_own_transaction() {
    let Some(path) = packages::python().await else { return };
    let database = database().await;
    let mut story = python(&path);
    story
        .arg(source("enqueue.py"))
        .env("DATABASE_URL", url(&database, "enqueuer"))
        .env("OWNER_URL", url(&database, "owner"));
    let said = run(&mut story).await;
    assert_eq!(said.lines().count(), 10, "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tests_of_the_typescript_package_pass() {
    let Some(built) = packages::typescript().await else {
        return;
    };
    let mut tests = Command::new("node");
    tests
        .args(["--test", "test/build/"])
        .env_remove("BUGLE_HOST")
        .current_dir(built.join("package"));
    run(&mut tests).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tarball_works_in_an_empty_folder_with_import_and_with_require() {
    let Some(built) = packages::typescript().await else {
        return;
    };
    let folder = Folder::new();
    // as in a fresh clone after `npm install`: nothing is built yet
    packages::copy(&sdk("typescript"), &folder.join("source"));
    std::os::unix::fs::symlink(built.join("package/node_modules"), folder.join("source/node_modules")).expect("a link");
    let mut npm = Command::new("npm");
    npm.args(["pack", "--silent", "--pack-destination"])
        .arg(folder.path())
        .current_dir(folder.join("source"));
    run(&mut npm).await;
    let version = env!("CARGO_PKG_VERSION");
    folder.write("package.json", r#"{ "private": true }"#);
    let mut npm = Command::new("npm");
    npm.args("install --silent --offline --no-audit --no-fund".split(' '))
        .arg(format!("./bugle-jobs-{version}.tgz"))
        .current_dir(folder.path());
    run(&mut npm).await;

    folder.write(
        "add.mjs",
        "import { Host } from 'bugle-jobs';\nimport { run } from 'bugle-jobs/testing';\n\
         const host = new Host().on('add', (job) => job.payload.a + job.payload.b);\n\
         console.log((await run(host, 'add', { a: 1, b: 2 })).result);",
    );
    folder.write(
        "add.cjs",
        "const { Host } = require('bugle-jobs');\nconst { run } = require('bugle-jobs/testing');\n\
         const host = new Host().on('add', (job) => job.payload.a + job.payload.b);\n\
         run(host, 'add', { a: 1, b: 2 }).then((ran) => console.log(ran.result));",
    );
    for program in ["add.mjs", "add.cjs"] {
        let said = run(Command::new("node").arg(program).current_dir(folder.path())).await;
        assert_eq!(said, "3\n", "{program}");
    }
    has_licences(&folder.join("node_modules/bugle-jobs"));
    // an older way to look for types, which knows no exports
    folder.write(
        "old.ts",
        "import { Host } from 'bugle-jobs';\nimport { Sandbox } from 'bugle-jobs/testing';\n\
        export const sandbox: Sandbox = new Sandbox(new Host());",
    );
    let classic = "--noEmit --strict --module preserve --moduleResolution bundler --resolvePackageJsonExports false \
        --target es2022 --types node old.ts";
    let mut tsc = Command::new(built.join("package/node_modules/.bin/tsc"));
    tsc.args(classic.split_ascii_whitespace())
        .args([
            "--typeRoots".as_ref(),
            built.join("package/node_modules/@types").as_os_str(),
        ])
        .current_dir(folder.path());
    run(&mut tsc).await;
    let manifest = std::fs::read_to_string(folder.join("node_modules/bugle-jobs/package.json")).unwrap();
    assert!(!manifest.contains("\"dependencies\""), "{manifest}");
}

/// A program of tests/sdk, compiled beside the packages that it imports.
async fn compiled(name: &str, folder: &Folder) -> Option<PathBuf> {
    let built = packages::typescript().await?;
    std::os::unix::fs::symlink(built.join("node_modules"), folder.join("node_modules")).expect("a link");
    std::fs::copy(source(&format!("{name}.mts")), folder.join(&format!("{name}.mts"))).expect("a copy");
    let mut tsc = Command::new("node_modules/.bin/tsc");
    tsc.args("--strict --module nodenext --target es2022 --types node --skipLibCheck".split(' '))
        .arg(format!("{name}.mts"))
        .current_dir(folder.path());
    run(&mut tsc).await;
    Some(folder.join(&format!("{name}.mjs")))
}

#[tokio::test(flavor = "multi_thread")]
async fn typescript_enqueues_with_every_driver_in_its_own_transaction() {
    let folder = Folder::new();
    let Some(story) = compiled("enqueue", &folder).await else {
        return;
    };
    let database = database().await;
    let mut node = Command::new("node");
    node.arg(story)
        .env("DATABASE_URL", url(&database, "enqueuer"))
        .env("OWNER_URL", url(&database, "owner"));
    let said = run(&mut node).await;
    assert_eq!(said.lines().count(), 6, "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn prisma_enqueues_in_its_own_transaction() {
    let (Some(built), Some(modules)) = (packages::typescript().await, packages::prisma()) else {
        return;
    };
    let folder = Folder::new();
    for file in ["schema.prisma", "prisma.mjs"] {
        std::fs::copy(source(file), folder.join(file)).expect("a copy");
    }
    std::os::unix::fs::symlink(modules.join("node_modules"), folder.join("node_modules")).expect("a link");
    let mut generate = Command::new("node");
    generate
        .args("node_modules/prisma/build/index.js generate --schema schema.prisma".split(' '))
        // it would fetch one, and does not need it for this
        .env("PRISMA_SCHEMA_ENGINE_BINARY", "/bin/true")
        .env("CHECKPOINT_DISABLE", "1")
        .current_dir(folder.path());
    run(&mut generate).await;
    let database = database().await;
    let mut story = Command::new("node");
    story
        .arg("prisma.mjs")
        .arg(built.join("package/dist/index.mjs"))
        .env("DATABASE_URL", url(&database, "enqueuer"))
        .current_dir(folder.path());
    assert_eq!(run(&mut story).await, "Prisma\n");
    let jobs = "select count(*) from bugle.jobs where command = 'ship'";
    assert_eq!(query_value::<i64>(&database.owner().await, jobs).await, 3);
}

/// What `bugle host check` says: every check passes, and none is skipped.
async fn passes_every_check(program: &mut Command) {
    let said = run(program).await;
    let passed = said.lines().filter(|line| line.starts_with("ok ")).count();
    assert!(passed >= 25 && passed == said.lines().count(), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_in_python_passes_every_check_of_the_protocol() {
    let Some(path) = packages::python().await else { return };
    let mut check = Command::new(BUGLE);
    check
        .args(["host", "check", "--", "python3"])
        .arg(source("check.py"))
        .env("PYTHONPATH", path)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    passes_every_check(&mut check).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_in_typescript_passes_every_check_of_the_protocol() {
    let folder = Folder::new();
    let Some(host) = compiled("check", &folder).await else {
        return;
    };
    let mut check = Command::new(BUGLE);
    passes_every_check(check.args(["host", "check", "--", "node"]).arg(host)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_runs_jobs_in_a_host_in_python() {
    let Some(path) = packages::python().await else { return };
    let program = format!("\"python3\", \"{}\"", source("app.py").display());
    runs_jobs(&program, &format!("PYTHONPATH = \"{path}\""), "ConnectionError").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_runs_jobs_in_a_host_in_typescript() {
    let folder = Folder::new();
    let Some(app) = compiled("app", &folder).await else {
        return;
    };
    let program = format!("\"node\", \"{}\"", app.display());
    runs_jobs(&program, "LANGUAGE = \"typescript\"", "Error").await;
}

/// What the apps of both languages do, seen from the database.
async fn runs_jobs(program: &str, environment: &str, error: &str) {
    let (database, folder) = (database().await, Folder::new());
    let owner = database.owner().await;
    let worker_login = format!("{}_worker", database.name);
    execute(
        &owner,
        &format!(
            "create table bookings (item text); grant insert on bookings to {worker_login};
             grant bugle_enqueuer to {worker_login}"
        ),
    )
    .await;
    let host_url = url(&database, "worker");
    let file = format!(
        "[queues]\ndefault = 16\n[hosts.app]\nprogram = [{program}]\nenv = {{ {environment}, \
         DATABASE_URL = \"{host_url}\" }}\n"
    );
    let worker = WorkerProcess::start(&database, &folder, "app", &file, &[]);
    let later = folder.join("later");
    let jobs = format!(
        r#"insert into bugle.jobs (command, payload, max_attempts, retry_delay, timeout, steps) values
          ('send_mail', '{{"to": "ada@example.org"}}', null, null, null, null),
          ('send_mail', '{{"to": "nobody"}}', null, null, null, null),
          ('send_mail', '{{"subject": "no address"}}', null, null, null, null),
          ('charge', '{{}}', 3, '0', null, null),
          ('report', '{{}}', null, null, null, null),
          ('passes_on', '{{}}', null, null, null, null),
          ('ask', '{{}}', null, null, null, null),
          ('later', '{{"file": "{}"}}', null, null, null, null),
          ('files', '{{}}', null, null, null, null),
          ('forever', '{{}}', 1, null, '1 second', null),
          ('book', '{{"item": "tea"}}', null, null, null, null),
          ('order', '{{"page": 3}}', null, null, null, '{{count,files}}');
        insert into bugle.jobs (command, payload)
        select 'index', jsonb_build_object('n', n) from generate_series(1, 20) n"#,
        later.display()
    );
    execute(&owner, &jobs).await;

    wait_until(
        &owner,
        "select exists (select from bugle.jobs where command = 'ask' and state = 'waiting')",
    )
    .await;
    execute(
        &owner,
        "select bugle.answer(id, 'token', '\"yes\"', p_resume => true) from bugle.jobs where command = 'ask'",
    )
    .await;
    wait_until(
        &owner,
        "select bool_and(state in ('completed', 'failed')) and count(*) = 35 from bugle.jobs",
    )
    .await;

    let told = "select string_agg(format('%s %s %s', command, state, coalesce(result::text, last_error_code)), E'\\n' \
                order by id) from bugle.jobs where id <= 12";
    let told: String = query_value(&owner, told).await;
    let expected = [
        r#"send_mail completed {"sent_to": "ada@example.org", "subject": "hello"}"#,
        "send_mail failed bad_address",
        "send_mail failed bad_payload",
        r#"charge completed "paid in attempt 1""#,
        "report completed [10, 20]",
        "passes_on completed true",
        r#"ask completed {"answer": "yes"}"#,
        "later completed 1",
        r#"files completed "text""#,
        "forever failed timeout",
        r#"book completed {"booked": "tea"}"#,
        r#"order completed {"files": "text", "words": 30}"#,
    ];
    assert_eq!(told.lines().collect::<Vec<_>>(), expected, "{}", worker.log());
    let odd = "select count(*) from bugle.jobs where command = 'index' and state = 'failed' and last_error = 'odd' \
               and (payload->>'n')::int % 2 = 1";
    assert_eq!(query_value::<i64>(&owner, odd).await, 10);
    let retried: String = query_value(&owner, "select code from bugle.attempts where job = 4").await;
    assert_eq!(retried, error);
    assert_eq!(query_value::<i64>(&owner, "select count(*) from bookings").await, 1);
    assert!(worker.log().contains("a line"), "{}", worker.log());
    worker.terminate();
    worker.ended().await;

    // as a test of an application does it: hosts start one after the other, and every job is run before the worker ends
    let two = file.replace(
        "[hosts.app]",
        "[hosts.first]\nprogram = [\"sh\", \"-c\", \"exit 1\"]\n[hosts.app]",
    );
    execute(
        &owner,
        "insert into bugle.jobs (command, payload) values ('count', '{\"page\": 9}')",
    )
    .await;
    let worker = WorkerProcess::start(&database, &folder, "app", &two, &["--until-empty"]);
    worker.ended().await;
    let state = "select string_agg(state, ', ') from bugle.jobs where payload->>'page' = '9'";
    assert_eq!(query_value::<String>(&owner, state).await, "completed");
}
