//! Faults that no job is to blame for: they cost it neither its result nor an attempt, and are reported once.

mod common;

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bugle::{Context, Failure, Outcome, Registry, Settings};
use common::poll::look_for;
use common::{
    BUGLE, Database, Folder, RunningWorker, WorkerProcess, enqueue, execute, free_address, wait_for_state, wait_until,
};
use rustix::io::Errno;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_postgres::Client;

async fn query<T: for<'a> tokio_postgres::types::FromSql<'a>>(client: &Client, sql: &str) -> T {
    client.query_one(sql, &[]).await.expect(sql).get(0)
}

/// Every leaf of history that takes jobs which end today or later is dropped or detached.
const BREAK_HISTORY: &str = "
    do $$
    declare
      v_day record;
    begin
      for v_day in select d.kind, d.leaf from bugle.history_days d loop
        if v_day.kind = 'ended' then
          execute format('drop table bugle.%I', v_day.leaf);
        else
          execute format('alter table bugle.jobs_failed detach partition bugle.%I', v_day.leaf);
        end if;
      end loop;
    end
    $$";

/// A registry with an executor of each kind.
fn all_kinds() -> Registry {
    Registry::new()
        .on("plain", async |_: Context, _: Value| Ok(json!("done")))
        .on("first", async |_: Context, _: Value| Ok(json!({"first": 1})))
        .on("hopeless", async |_: Context, _: Value| {
            Err::<(), _>(Failure::new("no").not_retryable())
        })
        .on("own", async |context: Context, _: Value| -> Result<Outcome, Failure> {
            let mut connection = context.database().await?;
            let transaction = connection.transaction().await?;
            context.complete_in(&transaction, json!("done")).await?;
            transaction.commit().await?;
            Ok(Outcome::Settled)
        })
}

fn with_sql(database: &Database) -> Settings {
    let file = "[queues]\ndefault = 10\n[commands.in_sql]\nsql = \"select 'done'::text\"\n";
    let commands = bugle::config::Config::from_toml(file).unwrap().commands;
    database.settings(&[("default", 10)]).commands(commands)
}

/// What failures cost jobs: a job that is given back keeps its attempt.
const ATTEMPTS_LOST: &str = "select count(*) from bugle.attempts where outcome <> 'given_back'";

const ONE_OF_EACH: &str = "
    insert into bugle.jobs (command) select 'plain' from generate_series(1, 20);
    insert into bugle.jobs (command) values ('hopeless'), ('own'), ('in_sql');
    insert into bugle.jobs (command, steps) values ('chain', array['first', 'plain'])";

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_of_history_that_was_dropped_or_detached_by_hand_costs_no_job_its_result() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(&owner, BREAK_HISTORY).await;
    execute(&owner, ONE_OF_EACH).await;

    let settings = with_sql(&database);
    let registry = all_kinds();
    let worker = RunningWorker::start(settings, registry);
    wait_until(&owner, "select count(*) = 0 from bugle.jobs_live").await;

    let ended = "select string_agg(what, ', ' order by what) from (
        select format('%s %s %s%s', count(*), command, state, ' ' || last_error_code) as what
        from bugle.jobs where attempt = 1 group by command, state, last_error_code) ended";
    assert_eq!(
        query::<String>(&owner, ended).await,
        "1 chain completed, 1 hopeless failed, 1 in_sql completed, 1 own completed, 20 plain completed"
    );
    worker.stop().await;
}

/// What the trigger `not_today` does from now on. To drop it would take locks that the worker's calls can deadlock
/// with.
const ACCEPT: &str =
    "create or replace function public.refuse() returns trigger language plpgsql as 'begin return new; end'";

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_the_database_refuses_is_repeated_beside_the_others_until_it_is_accepted() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(
        &owner,
        "create function public.refuse() returns trigger language plpgsql as $$
             begin raise exception 'not today'; end $$;
             create trigger not_today before insert on bugle.jobs_ended for each row
             when (new.payload = '{\"refused\": 1}') execute function public.refuse()",
    )
    .await;
    execute(
        &owner,
        "insert into bugle.jobs (command, payload) select 'plain', case n % 5 when 0 then '{\"refused\": \
        1}'::jsonb else '1' end
             from generate_series(1, 50) n;
             insert into bugle.jobs (command, payload) values ('own', '{\"refused\": 1}'), ('in_sql', '{\"refused\": \
             1}');
             insert into bugle.jobs (command, steps, payload) values ('chain', array['first', 'plain'], '{\"refused\": \
             1}')",
    )
    .await;

    let settings = with_sql(&database);
    let registry = all_kinds();
    let worker = RunningWorker::start(settings, registry);
    wait_until(&owner, "select count(*) = 40 from bugle.jobs where state = 'completed'").await;
    assert_eq!(query::<i64>(&owner, "select count(*) from bugle.jobs_live").await, 13);
    execute(&owner, ACCEPT).await;
    wait_until(&owner, "select count(*) = 0 from bugle.jobs_live").await;

    let ended = "select count(*) from bugle.jobs where state = 'completed' and attempt = 1 and last_error is null";
    assert_eq!(query::<i64>(&owner, ended).await, 53);
    assert_eq!(query::<i64>(&owner, ATTEMPTS_LOST).await, 0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_result_that_can_never_be_stored_is_a_bad_one() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let registry = Registry::new()
        .on("echo", async |_: Context, result: Value| Ok(result))
        .on("bad", async |_: Context, text: String| {
            // each is JSON to us; only the last can be stored: it has a backslash, and no NUL
            Ok(match text.as_str() {
                "nul" => json!("a\0b"),
                _ => json!("a\\u0000b"),
            })
        });
    execute(
        &owner,
        "insert into bugle.jobs (command, payload) select 'echo', '1' from generate_series(1, 30);
             insert into bugle.jobs (command, payload) values ('bad', '\"nul\"'), ('bad', '\"backslash\"');
             insert into bugle.jobs (command, payload) select 'echo', '1' from generate_series(1, 30)",
    )
    .await;

    let worker = database.worker(&[("default", 100)], registry);
    wait_until(&owner, "select count(*) = 0 from bugle.jobs_live").await;

    let failed = "select string_agg(format('%s %s %s', payload, last_error_code, reason), ', ') from bugle.jobs where \
        state = 'failed'";
    assert_eq!(
        query::<String>(&owner, failed).await,
        "\"nul\" bad_result not_retryable"
    );
    let completed = "select count(*) from bugle.jobs where state = 'completed'";
    assert_eq!(query::<i64>(&owner, completed).await, 61);
    worker.stop().await;
}

/// Postgres has one SQLSTATE for both.
#[tokio::test(flavor = "multi_thread")]
async fn only_a_limit_that_the_result_itself_exceeds_makes_it_a_bad_one() {
    let database = Database::new().await;
    let owner = database.owner().await;
    // a string of JSON has at most 2^28 - 1 bytes
    execute(
        &owner,
        "create sequence public.tries;
             create function public.limits() returns trigger language plpgsql security definer as $$
             begin
               if new.command = 'large' then
                 new.result := to_jsonb(repeat('x', 268435456));
               elsif nextval('public.tries') <= 3 then
                 raise exception 'another limit of the server' using errcode = '54000';
               end if;
               return new;
             end $$;
             create trigger limits before insert on bugle.jobs_ended for each row when (new.state = 'completed')
             execute function public.limits()",
    )
    .await;
    let (large, unlucky) = (enqueue(&owner, "large").await, enqueue(&owner, "unlucky").await);
    let registry = ["large", "unlucky"]
        .into_iter()
        .fold(Registry::new(), |registry, command| {
            registry.on(command, async |_: Context, _: Value| Ok("done"))
        });
    let worker = database.worker(&[("default", 2)], registry);

    wait_for_state(&owner, large, "failed").await;
    wait_for_state(&owner, unlucky, "completed").await;

    let told = "select format('%s %s: %s', last_error_code, reason, last_error) from bugle.jobs where state = 'failed'";
    let told = query::<String>(&owner, told).await;
    assert!(
        told.starts_with("bad_result not_retryable: the result cannot be stored: "),
        "{told}"
    );
    assert!(told.contains("(SQLSTATE 54000)"), "{told}");
    let done = "select format('%s %s, %s', attempt, result, nextval('public.tries') > 4) from bugle.jobs \
        where state = 'completed'";
    assert_eq!(query::<String>(&owner, done).await, "1 \"done\", t");
    worker.stop().await;
}

/// What a worker that is not ready says, once it says this.
async fn wait_for_readiness(address: SocketAddr, expected: &str) {
    let ask = || async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        let request = format!("GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.ok()?;
        reply.contains(expected).then_some(())
    };
    look_for(ask).await.unwrap_or_else(|| panic!("{expected:?} in time"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_finds_no_free_connection_of_its_worker_is_given_back_and_readyz_says_why() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let release = Arc::new(Notify::new());
    let registry = Registry::new()
        .on("hoard", {
            let release = release.clone();
            move |context: Context, _: Value| {
                let release = release.clone();
                async move {
                    let _connection = context.database().await?;
                    release.notified().await;
                    Ok(())
                }
            }
        })
        .on("brief", async |context: Context, _: Value| {
            let _connection = context.database().await?;
            Ok(())
        });
    let settings = database
        .settings(&[("default", 10)])
        .pool_size(1)
        .listen(free_address());
    let address = settings.listen.unwrap();
    let hoard = enqueue(&owner, "hoard").await;
    let worker = RunningWorker::start(settings, registry);
    common::wait_for_state(&owner, hoard, "running").await;

    execute(
        &owner,
        "insert into bugle.jobs (command, timeout) select 'brief', '2 s' from generate_series(1, 20)",
    )
    .await;
    wait_for_readiness(address, "shortage: no free connection to the database").await;
    release.notify_one();
    wait_until(&owner, "select count(*) = 0 from bugle.jobs_live").await;
    wait_for_readiness(address, "200 OK").await;

    let completed = "select count(*) from bugle.jobs where state = 'completed' and attempt = 1";
    assert_eq!(query::<i64>(&owner, completed).await, 21);
    assert_eq!(query::<i64>(&owner, ATTEMPTS_LOST).await, 0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_gets_no_connection_from_the_server_is_given_back() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let settings = with_sql(&database).listen(free_address());
    let address = settings.listen.unwrap();
    let registry = all_kinds();
    let worker = RunningWorker::start(settings, registry);
    wait_for_readiness(address, "200 OK").await;

    let limit = |most: i32| format!("alter role {}_worker connection limit {most}", database.name);
    execute(&owner, &limit(1)).await;
    execute(
        &owner,
        "insert into bugle.jobs (command) select unnest(array['own', 'in_sql']) from generate_series(1, 20)",
    )
    .await;
    wait_for_readiness(address, "shortage: no free connection to the database").await;
    execute(&owner, &limit(-1)).await;
    wait_until(&owner, "select count(*) = 0 from bugle.jobs_live").await;

    let completed = "select count(*) from bugle.jobs where state = 'completed' and attempt = 1";
    assert_eq!(query::<i64>(&owner, completed).await, 40);
    assert_eq!(query::<i64>(&owner, ATTEMPTS_LOST).await, 0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_few_open_files_runs_fewer_jobs_and_burns_no_attempt() {
    let database = Database::new().await;
    let (owner, folder) = (database.owner().await, Folder::new());
    // the hard limit too: a worker raises the soft one
    let few_files = folder.write(
        "few_files",
        &format!("#!/bin/sh\nulimit -n 40 && exec {BUGLE} \"$@\"\n"),
    );
    std::fs::set_permissions(&few_files, std::fs::Permissions::from_mode(0o700)).unwrap();
    execute(
        &owner,
        "insert into bugle.jobs (command) select 'wait' from generate_series(1, 60)",
    )
    .await;

    let release = folder.join("release");
    let file = format!(
        "[queues]\ndefault = 50\n[commands.wait]\nprogram = [\"/bin/sh\", \"-c\", \"while ! test -e {}; do sleep 0.1; \
            done\"]\n",
        release.display()
    );
    let worker = WorkerProcess::of(&few_files, &database, &folder, "short", &file, &[]);
    worker.event("shortage").await;
    std::fs::write(&release, "").unwrap();
    wait_until(&owner, "select count(*) = 0 from bugle.jobs_live").await;

    let completed = "select count(*) from bugle.jobs where state = 'completed' and attempt = 1";
    assert_eq!(query::<i64>(&owner, completed).await, 60);
    assert_eq!(query::<i64>(&owner, ATTEMPTS_LOST).await, 0);
    let count = |event: &str| worker.events().iter().filter(|line| line["event"] == event).count();
    assert!(count("shortage") <= 1 + count("shortage_over"), "{}", worker.log());
    let of_a_job = |line: &&Value| !line["job"].is_null() && line["level"] != "DEBUG";
    assert_eq!(worker.events().iter().find(of_a_job), None, "no line for each job");
}

/// Whatever an executor opens, and however deep the cause is.
#[tokio::test(flavor = "multi_thread")]
async fn a_rust_executor_that_gets_no_file_or_memory_burns_no_attempt() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let calls = Arc::new(AtomicUsize::new(0));
    let registry = Registry::new().on("open", {
        let calls = calls.clone();
        move |_: Context, _: Value| {
            let call = calls.fetch_add(1, Ordering::Relaxed);
            async move {
                let system = |code: Errno| std::io::Error::from_raw_os_error(code.raw_os_error());
                match call {
                    0 => Err(system(Errno::MFILE))?,
                    1 => Err(system(Errno::NOMEM))?,
                    2 => Err(std::io::Error::other(system(Errno::NFILE)))?,
                    _ => Ok(call),
                }
            }
        }
    });
    let job = enqueue(&owner, "open").await;
    let worker = database.worker(&[("default", 1)], registry);

    wait_for_state(&owner, job, "completed").await;
    let told: String = query(
        &owner,
        "select format('%s %s %s', j.attempt, j.result, (select count(*) from bugle.attempts a where a.outcome <> \
         'given_back')) from bugle.jobs j",
    )
    .await;
    assert_eq!(told, "1 3 0");
    worker.stop().await;
}

/// Each job needs a folder and a socket, and there is no room for all of them.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_workdir_is_full_runs_fewer_jobs_and_burns_no_attempt() {
    let database = Database::new().await;
    let (owner, folder) = (database.owner().await, Folder::new());
    let work = folder.join("work");
    std::fs::create_dir(&work).unwrap();
    // seen by this process alone, and gone with it
    let mount = format!("mount -t tmpfs -o size=1m,nr_inodes=16 tmpfs {}", work.display());
    // a user with the rights to mount; root, mapped to itself, would lose those to the server's socket
    let unshare = match rustix::process::geteuid().is_root() {
        true => "unshare --mount",
        false => "unshare --map-root-user --mount",
    };
    let attempt = format!("{unshare} {mount}");
    let attempt = std::process::Command::new("sh").args(["-c", &attempt]).status();
    if !attempt.is_ok_and(|status| status.success()) {
        eprintln!("skipped: a small file system cannot be mounted here");
        return;
    }
    let small = folder.write(
        "small",
        &format!("#!/bin/sh\nexec {unshare} sh -c '{mount} && exec {BUGLE} \"$@\"' sh \"$@\"\n"),
    );
    std::fs::set_permissions(&small, std::fs::Permissions::from_mode(0o700)).unwrap();
    execute(
        &owner,
        "insert into bugle.jobs (command) select 'wait' from generate_series(1, 40)",
    )
    .await;

    let release = folder.join("release");
    let file = format!(
        "[queues]\ndefault = 30\n[commands.wait]\nprogram = [\"/bin/sh\", \"-c\", \"while ! test -e {}; do sleep 0.1; \
            done\"]\n",
        release.display()
    );
    let worker = WorkerProcess::of(&small, &database, &folder, "full", &file, &[]);
    let shortage = worker.event("shortage").await;
    assert_eq!(shortage["short_of"], "Disk", "{shortage}");
    std::fs::write(&release, "").unwrap();
    wait_until(&owner, "select count(*) = 0 from bugle.jobs_live").await;

    let completed = "select count(*) from bugle.jobs where state = 'completed' and attempt = 1";
    assert_eq!(query::<i64>(&owner, completed).await, 40);
    assert_eq!(query::<i64>(&owner, ATTEMPTS_LOST).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_logged_is_what_the_database_has_accepted() {
    let database = Database::new().await;
    let (owner, folder) = (database.owner().await, Folder::new());
    execute(
        &owner,
        "create function public.refuse() returns trigger language plpgsql as $$
             begin raise exception 'not today'; end $$;
             create trigger not_today before insert on bugle.jobs_ended for each row execute function public.refuse()",
    )
    .await;
    let program = enqueue(&owner, "program").await;
    let file =
        "[queues]\ndefault = 5\n[commands.program]\nprogram = [\"true\"]\n[commands.in_sql]\nsql = \"select 1\"\n";

    let worker = WorkerProcess::start(&database, &folder, "one", file, &[]);
    worker.event("undelivered").await;
    assert!(!worker.events().iter().any(|line| line["event"] == "complete"));
    execute(&owner, ACCEPT).await;
    let in_sql = enqueue(&owner, "in_sql").await;
    let chain = "insert into bugle.jobs (command, steps) values ('chain', array['in_sql', 'program']) returning id";
    let chain = query::<i64>(&owner, chain).await;
    wait_until(&owner, "select count(*) = 0 from bugle.jobs_live").await;

    for job in [program, in_sql, chain] {
        let look = || {
            std::future::ready(
                worker
                    .events()
                    .into_iter()
                    .find(|line| line["event"] == "complete" && line["job"] == job),
            )
        };
        let line = look_for(look)
            .await
            .unwrap_or_else(|| panic!("no complete of job {job}\n{}", worker.log()));
        assert!(line["took_ms"].is_number() && line["command"].is_string(), "{line}");
    }
}

/// What is logged on this thread.
#[derive(Clone, Default)]
struct Log(common::Shared<Vec<u8>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        std::io::Write::write(&mut *self.0.lock().unwrap(), bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A transaction that is dropped is rolled back. All of it is on one thread, for the log.
#[tokio::test]
async fn a_job_whose_executor_did_not_commit_its_completion_fails_and_is_not_logged_as_complete() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .with_max_level(tracing::Level::DEBUG)
        .with_writer({
            let log = log.clone();
            move || log.clone()
        });
    let _logged = tracing::subscriber::set_default(subscriber.finish());
    let registry = Registry::new()
        .on(
            "own",
            async |context: Context, commits: bool| -> Result<Outcome, Failure> {
                let mut connection = context.database().await?;
                let transaction = connection.transaction().await?;
                context.complete_in(&transaction, json!("done")).await?;
                if commits {
                    transaction.commit().await?;
                }
                Ok(Outcome::Settled)
            },
        )
        .on("claims", async |_: Context, _: Value| Ok(Outcome::Settled));
    execute(
        &owner,
        "insert into bugle.jobs (command, payload)
             values ('own', 'true'), ('own', 'false'), ('own', 'true'), ('claims', 'null')",
    )
    .await;

    let worker = database.worker(&[("default", 4)], registry);
    wait_until(&owner, "select count(*) = 0 from bugle.jobs_live").await;

    let ended = "select string_agg(concat_ws(' ', command, payload, state, result, reason, last_error_code), ', ' \
        order by id) from bugle.jobs where attempt = 1";
    assert_eq!(
        query::<String>(&owner, ended).await,
        "own true completed \"done\", own false failed not_retryable bad_result, own true completed \"done\", \
         claims null failed not_retryable bad_result"
    );
    let told = "select string_agg(distinct last_error, '') from bugle.jobs";
    assert_eq!(
        query::<String>(&owner, told).await,
        "the executor reported that its completion was committed, but it was not"
    );
    worker.stop().await;
    let text = String::from_utf8(std::mem::take(&mut *log.0.lock().unwrap())).unwrap();
    let mut logged: Vec<String> = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .map(|line| line["fields"].clone())
        .filter(|fields| ["complete", "fail"].iter().any(|event| fields["event"] == *event))
        .map(|fields| format!("{} {}", fields["job"], fields["event"].as_str().unwrap()))
        .collect();
    logged.sort();
    assert_eq!(logged, ["1 complete", "2 fail", "3 complete", "4 fail"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_that_has_just_completed_its_job_itself_is_not_told_that_its_claim_was_lost() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let (release, stopped) = (Arc::new(Notify::new()), common::Shared::<Vec<bool>>::default());
    let registry = Registry::new().on("linger", {
        let (release, stopped) = (release.clone(), stopped.clone());
        move |context: Context, _: Value| {
            let (release, stopped) = (release.clone(), stopped.clone());
            async move {
                let mut connection = context.database().await?;
                let transaction = connection.transaction().await.map_err(bugle::Error::from)?;
                context.complete_in(&transaction, json!("done")).await?;
                transaction.commit().await.map_err(bugle::Error::from)?;
                tokio::select! {
                    () = release.notified() => stopped.lock().unwrap().push(false),
                    () = context.cancellation().cancelled() => stopped.lock().unwrap().push(true),
                }
                Ok(Outcome::Settled)
            }
        }
    });
    let id = enqueue(&owner, "linger").await;
    let worker = database.worker(&[("default", 1)], registry);
    common::wait_for_state(&owner, id, "completed").await;

    // two heartbeats: the answer to the first has arrived when the second is sent
    for _ in 0..2 {
        let tick = query::<String>(&owner, "select clock_timestamp()::text").await;
        wait_until(&owner, &format!("select ticked_at > '{tick}' from bugle.keeping")).await;
    }
    release.notify_one();
    worker.stop().await;

    assert_eq!(*stopped.lock().unwrap(), [false]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_address_is_taken_ends_before_it_registers() {
    let database = Database::new().await;
    let (owner, folder) = (database.owner().await, Folder::new());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();

    let file = "[queues]\ndefault = 1\n[commands.program]\nprogram = [\"true\"]\n";
    let worker = WorkerProcess::start(&database, &folder, "late", file, &["--listen", &address]);
    assert!(!worker.ended().await.success());
    assert_eq!(
        query::<i64>(&owner, "select count(*) from bugle.registrations").await,
        0
    );
}
