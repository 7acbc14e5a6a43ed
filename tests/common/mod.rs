//! What the tests share: a database of its own for each, workers in it, and waiting for a state instead of sleeping.
#![allow(dead_code)]

pub mod cli;
pub mod debian;
pub mod http;
pub mod poll;
mod process;
pub mod web;

use std::path::Path;
use std::sync::Arc;

#[allow(unused_imports)]
pub use poll::{DEADLINE, eventually};
#[allow(unused_imports)]
pub use process::{Folder, FrozenServer, WorkerProcess};

use bugle::{Drained, Registry, Settings, Shutdown, Worker};
use tokio::task::JoinHandle;
use tokio_postgres::config::Host;
use tokio_postgres::types::FromSql;
use tokio_postgres::{Client, Config, NoTls, Row};

/// The binary under test.
pub const BUGLE: &str = env!("CARGO_BIN_EXE_bugle");

/// A stranger can connect to the database, and has none of Bugle's roles.
const LOGINS: [&str; 6] = ["worker", "enqueuer", "observer", "viewer", "operator", "stranger"];

/// One database with the schema, dropped at the end, and a login for each role.
pub struct Database {
    server: Config,
    pub name: String,
}

impl Database {
    /// A fresh database with the schema in it.
    pub async fn new() -> Database {
        let url = bugle::private_postgres::shared(Path::new(BUGLE));
        let server: Config = url.parse().expect("a connection string");
        // a server of somebody else keeps nothing of us, not even a template
        let is_ours = std::env::var_os("BUGLE_SERVER_URL").is_none() || std::env::var_os("BUGLE_PG_BIN").is_some();
        let database = match is_ours {
            true => Database::copy_of(&template(&server).await, server).await,
            false => {
                let database = Database::empty_on(server).await;
                migrate_with_sentences(&database.config("owner")).await;
                database
            }
        };
        database.create_logins().await;
        database
    }

    /// A fresh database with nothing in it.
    pub async fn empty() -> Database {
        let url = bugle::private_postgres::shared(Path::new(BUGLE));
        Database::empty_on(url.parse().expect("a connection string")).await
    }

    /// The same on a certain server.
    pub async fn empty_on(server: Config) -> Database {
        Database::copy_of("template1", server).await
    }

    async fn copy_of(template: &str, server: Config) -> Database {
        let name = format!("bugle_test_{:016x}", fastrand::u64(..));
        let database = Database { server, name };
        let client = connect(&database.server).await;
        client
            .batch_execute(&format!("create database {} template {template}", database.name))
            .await
            .expect("a database");
        database
    }

    pub async fn create_logins(&self) {
        let client = connect(&self.config("owner")).await;
        for role in LOGINS {
            let login = self.login(role);
            let member = match role {
                "stranger" => String::new(),
                _ => format!("in role bugle_{role}"),
            };
            let create = format!("create role {login} login password '{login}' {member}");
            client.batch_execute(&create).await.expect("a login");
        }
    }

    pub fn login(&self, role: &str) -> String {
        format!("{}_{role}", self.name)
    }

    /// How to connect as `owner`, or as one of `LOGINS`.
    pub fn config(&self, role: &str) -> Config {
        let mut config = self.server.clone();
        config.dbname(&self.name);
        if role != "owner" {
            config.user(self.login(role)).password(self.login(role));
        }
        config
    }

    /// The same as a connection string.
    pub fn url(&self, role: &str) -> String {
        let config = self.config(role);
        let host = match &config.get_hosts()[0] {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        };
        let mut url = format!(
            "host='{host}' user='{}' dbname='{}'",
            config.get_user().unwrap_or("postgres"),
            self.name
        );
        if let Some(port) = config.get_ports().first() {
            url.push_str(&format!(" port={port}"));
        }
        if let Some(password) = config.get_password() {
            url.push_str(&format!(" password='{}'", String::from_utf8_lossy(password)));
        }
        url
    }

    pub async fn connect(&self, role: &str) -> Client {
        connect(&self.config(role)).await
    }

    pub async fn owner(&self) -> Client {
        self.connect("owner").await
    }

    /// Settings of a worker of this database, logged in as a member of `bugle_worker`.
    pub fn settings(&self, queues: &[(&str, u32)]) -> Settings {
        let settings = Settings::new(self.url("worker")).workdir(std::env::temp_dir().join("bugle-test-work"));
        queues
            .iter()
            .fold(settings, |settings, (queue, slots)| settings.queue(queue, *slots))
    }

    /// A worker in this process.
    pub fn worker<S>(&self, queues: &[(&str, u32)], registry: Registry<S>) -> RunningWorker {
        RunningWorker::start(self.settings(queues), registry)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let mut statements = vec![format!("drop database if exists {} with (force)", self.name)];
        for role in LOGINS {
            statements.push(format!("drop role if exists {}", self.login(role)));
        }
        let server = self.server.clone();
        // a runtime of its own: the test's may be gone
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let Ok((client, connection)) = server.connect(NoTls).await else {
                    return;
                };
                tokio::spawn(connection);
                for statement in statements {
                    let _ = client.batch_execute(&statement).await;
                }
            });
        });
        // Dropping a database waits until every session of the server has taken note, and one in the midst of a COPY
        // does not before its client goes on: other tasks of this runtime must be able to run.
        let _ = match tokio::runtime::Handle::try_current().map(|handle| handle.runtime_flavor()) {
            Ok(tokio::runtime::RuntimeFlavor::MultiThread) => tokio::task::block_in_place(|| dropping.join()),
            _ => dropping.join(),
        };
    }
}

/// A database that was migrated once, to be copied: that takes a tenth of the time. One for all test programs of a
/// build.
async fn template(server: &Config) -> String {
    let build = std::fs::metadata(BUGLE)
        .and_then(|file| file.modified())
        .expect("the program");
    let build = build.duration_since(std::time::UNIX_EPOCH).expect("a time").as_nanos();
    let name = format!("bugle_template_{build:x}");
    let client = connect(server).await;
    client
        .batch_execute("select pg_advisory_lock(7126490980)")
        .await
        .expect("one at a time");
    let known = "select exists (select from pg_database where datname = $1)";
    if !client.query_one(known, &[&name]).await.expect("asks").get::<_, bool>(0) {
        let mut config = server.clone();
        config.dbname(format!("{name}_unfinished"));
        // of one who was killed while making it
        let drop = format!("drop database if exists {name}_unfinished");
        client.batch_execute(&drop).await.expect("nothing is left");
        let create = format!("create database {name}_unfinished");
        client.batch_execute(&create).await.expect("a database");
        migrate_with_sentences(&config).await;
        // the last sessions are just leaving
        let leave = format!("select not exists (select from pg_stat_activity where datname = '{name}_unfinished')");
        wait_until(&client, &leave).await;
        let rename = format!("alter database {name}_unfinished rename to {name}");
        client.batch_execute(&rename).await.expect("a template");
    }
    name
}

/// Install the schema, with checks that are only for tests.
async fn migrate_with_sentences(config: &Config) {
    bugle::schema::migrate(config).await.expect("migrates");
    let client = connect(config).await;
    client
        .batch_execute(include_str!("sentences.sql"))
        .await
        .expect("true of no job");
}

/// A worker that runs in this process, as the library runs it.
pub struct RunningWorker {
    pub shutdown: Shutdown,
    task: JoinHandle<bugle::Result<Drained>>,
}

impl RunningWorker {
    pub fn start<S>(settings: Settings, registry: Registry<S>) -> RunningWorker {
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_env("BUGLE_LOG"))
            .with_test_writer()
            .try_init();
        let shutdown = Shutdown::new();
        let run = Worker::new(settings, registry).run(shutdown.clone());
        let task = tokio::spawn(async move { run.await.inspect_err(|error| eprintln!("worker: {error}")) });
        RunningWorker { shutdown, task }
    }

    /// Ask it to drain and wait for its end.
    pub async fn stop(self) -> Drained {
        self.shutdown.request();
        self.ended().await
    }

    /// Wait for its end.
    pub async fn ended(self) -> Drained {
        tokio::time::timeout(DEADLINE, self.task)
            .await
            .expect("the worker ends in time")
            .expect("it does not panic")
            .expect("it runs without error")
    }
}

/// A registry with one command that does nothing.
pub fn noop() -> Registry {
    Registry::new().on("noop", async |_: bugle::Context, _: serde_json::Value| Ok(()))
}

/// Run all of these, a few at a time, each as a task of its own: dropping a database holds up everything that shares
/// its task, and may have to wait for one of those (see `Database::drop`).
pub async fn side_by_side<T: Send + 'static>(
    works: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
    at_once: usize,
) -> Vec<T> {
    use futures_util::StreamExt;
    futures_util::stream::iter(works)
        .map(|work| tokio::spawn(Box::pin(work)))
        .map(|task| async { task.await.expect("it came to its end") })
        .buffer_unordered(at_once)
        .collect()
        .await
}

pub async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.expect("connects");
    tokio::spawn(connection);
    client
}

/// Run statements.
pub async fn execute(client: &Client, statements: &str) {
    let outcome = client.batch_execute(statements).await;
    outcome.unwrap_or_else(|error| panic!("{statements}: {error:?}"));
}

/// The value of a query that returns one.
pub async fn query_value<T: for<'a> FromSql<'a>>(client: &Client, query: &str) -> T {
    let row = client.query_one(query, &[]).await;
    row.unwrap_or_else(|error| panic!("{query}: {error:?}")).get(0)
}

/// Ask until the answer is true.
pub async fn wait_until(client: &Client, question: &str) {
    let ask = || async { query_value::<bool>(client, question).await.then_some(()) };
    if poll::look_for(ask).await.is_some() {
        return;
    }
    let jobs = "select id, state, command, attempt, reason, last_error from bugle.jobs order by finished_at is not \
        null, id limit 20";
    let jobs = client.query(jobs, &[]).await.unwrap_or_default();
    let jobs: Vec<String> = jobs.iter().map(show).collect();
    panic!("not true in time: {question}\njobs: {jobs:#?}");
}

/// Wait until a session has its answer, or waits for a lock that another holds. Whether it did wait.
pub async fn answered_or_blocked<T>(call: &JoinHandle<T>, pid: i32, eye: &Client) -> bool {
    let waits = "select exists (select from pg_stat_activity where pid = $1 and wait_event_type = 'Lock')";
    let look = || async {
        if call.is_finished() {
            return Some(false);
        }
        let row = eye.query_one(waits, &[&pid]).await.expect("asks");
        row.get::<_, bool>(0).then_some(true)
    };
    poll::look_for(look).await.expect("it ends, or waits for a lock")
}

/// Wait until a job is in a state.
pub async fn wait_for_state(client: &Client, id: i64, state: &str) {
    wait_until(
        client,
        &format!("select exists (select from bugle.jobs where id = {id} and state = '{state}')"),
    )
    .await;
}

fn show(row: &Row) -> String {
    let text = |i| row.get::<_, Option<String>>(i).unwrap_or_default();
    format!(
        "{} {} {} attempt {} {} {}",
        row.get::<_, i64>(0),
        text(1),
        text(2),
        row.get::<_, i32>(3),
        text(4),
        text(5)
    )
}

/// Enqueue one job of a command and return its id.
pub async fn enqueue(client: &Client, command: &str) -> i64 {
    client
        .query_one("insert into bugle.jobs (command) values ($1) returning id", &[&command])
        .await
        .expect("enqueues")
        .get(0)
}

/// Register this session as a worker of the queue `default` for the command `noop`. Its id and nonce, written as SQL.
pub async fn register(client: &Client) -> String {
    register_for(client, &[("default", 10)], &["noop"]).await
}

/// The same for these queues, with their slots, and these commands.
pub async fn register_for(client: &Client, queues: &[(&str, i32)], commands: &[&str]) -> String {
    let (queues, slots): (Vec<&str>, Vec<i32>) = queues.iter().copied().unzip();
    client
        .query_one(
            "select format('%s, %L::uuid', worker, nonce) \
             from bugle.register('tester', 'here', 1, '0', bugle.protocol(), $1, $2, $3)",
            &[&queues, &slots, &commands],
        )
        .await
        .expect("registers")
        .get(0)
}

/// An address to listen at that nobody else takes before we do: where all of 127.0.0.0/8 is the machine itself, one out
/// of the many that nobody uses.
pub fn free_address() -> std::net::SocketAddr {
    let ip = match cfg!(target_os = "linux") {
        true => [127, fastrand::u8(1..), fastrand::u8(..), fastrand::u8(1..255)],
        false => [127, 0, 0, 1],
    };
    let listener = std::net::TcpListener::bind(std::net::SocketAddr::from((ip, 0))).expect("a port");
    listener.local_addr().expect("its address")
}

/// Something several executors write to.
pub type Shared<T> = Arc<std::sync::Mutex<T>>;
