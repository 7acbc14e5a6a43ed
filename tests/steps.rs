//! Steps that survive: chains whose worker is killed in any of them, built-in executors as steps, and steps an executor
//! makes as it goes.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use bugle::{Context, Failure, NewJob, Registry};
use common::{Database, Folder, Shared, WorkerProcess, enqueue, eventually, execute, wait_for_state, wait_until};
use serde_json::{Value, json};

/// Each step notes that it ran. `hold_N` waits, in its first attempt, until it is killed.
fn config(folder: &Folder, held: usize) -> String {
    let folder = folder.path().display();
    let step = |n: usize| match n == held {
        true => format!(
            "echo {n} >> {folder}/ran; [ $BUGLE_ATTEMPT -gt 1 ] || while [ -d {folder} ] && [ ! -e {folder}/release ]; \
                do sleep 0.02; done; echo '{{\"s{n}\": true}}'"
        ),
        false => format!("echo {n} >> {folder}/ran; echo '{{\"s{n}\": true}}'"),
    };
    let mut config = String::from("[queues]\ndefault = 4\n");
    for n in 1..=3 {
        config.push_str(&format!("[commands.s{n}]\nprogram = ['sh', '-c', '''{}''']\n", step(n)));
    }
    config
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_whose_worker_is_killed_in_any_step_goes_on_with_that_step_elsewhere() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let folders = [Folder::new(), Folder::new(), Folder::new()];
    for (held, folder) in (1..).zip(&folders) {
        let victim = WorkerProcess::start(&database, folder, &format!("victim{held}"), &config(folder, held), &[]);
        let chain = NewJob::new("chain", json!({})).steps(["s1", "s2", "s3"]);
        let id = chain.enqueue(&owner).await.unwrap();
        eventually("the step is reached", || folder.lines("ran").len() == held).await;

        victim.kill();
        let heir = WorkerProcess::start(&database, folder, &format!("heir{held}"), &config(folder, held), &[]);
        wait_for_state(&owner, id, "completed").await;

        let mut expected: Vec<String> = (1..=3).map(|n: usize| n.to_string()).collect();
        expected.insert(held, held.to_string());
        assert_eq!(folder.lines("ran"), expected, "only the interrupted step ran twice");
        let row = owner
            .query_one(
                "select j.attempt, j.crashes, j.result::text, s.attempts, s.worker_name \
                 from bugle.job($1) j join bugle.steps s on s.job = j.id and s.position = $2",
                &[&id, &(held as i32)],
            )
            .await
            .unwrap();
        assert_eq!((row.get::<_, i32>(0), row.get::<_, i32>(1)), (2, 1));
        assert_eq!(row.get::<_, String>(2), r#"{"s1": true, "s2": true, "s3": true}"#);
        assert_eq!(
            (row.get::<_, i32>(3), row.get::<_, String>(4)),
            (2, format!("heir{held}"))
        );
        drop(heir);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_statements_and_requests_are_steps() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(
        &owner,
        &format!(
            "create table booked (item text); grant insert, select on booked to {}_worker",
            database.name
        ),
    )
    .await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || one_request(&listener, "", "{\"heard\": true}"));
    let folder = Folder::new();
    let config = format!(
        r#"
        [queues]
        default = 4
        [commands.fetch]
        program = ["sh", "-c", "echo tea > item; echo $BUGLE_CHAIN $BUGLE_STEP >&2"]
        cwd = "workdir"
        [commands.nothing_new]
        program = ["sh", "-c", "exit 3"]
        skip_exit_codes = [3]
        [commands.read]
        program = ["sh", "-c", "echo \"{{\\\"item\\\": \\\"$(cat item)\\\"}}\""]
        cwd = "workdir"
        [commands.book]
        sql = "insert into booked select $1 ->> 'item' returning 17 as booking, item"
        [commands.tell]
        http = {{ url = "http://127.0.0.1:{port}/hook" }}
        "#
    );
    let worker = WorkerProcess::start(&database, &folder, "builtin", &config, &[]);

    let chain = NewJob::new("order", json!({ "customer": 5 })).steps(["fetch", "nothing_new", "read", "book", "tell"]);
    let id = chain.enqueue(&owner).await.unwrap();

    wait_for_state(&owner, id, "completed").await;
    let row = owner
        .query_one(
            "select result::text, (select string_agg(item, ' ') from booked), \
             (select string_agg(state, ' ' order by position) from bugle.steps where job = $1) from bugle.job($1)",
            &[&id],
        )
        .await
        .unwrap();
    assert_eq!(
        row.get::<_, String>(0),
        r#"{"item": "tea", "heard": true, "booking": 17}"#
    );
    assert_eq!(row.get::<_, String>(1), "tea");
    assert_eq!(row.get::<_, String>(2), "done skipped done done done");
    let (head, body) = server.join().unwrap();
    assert!(head.contains(&format!("idempotency-key: bugle-{id}-5")), "{head}");
    assert_eq!(body, r#"{"booking":17,"customer":5,"item":"tea"}"#);
    drop(worker);
}

#[tokio::test]
async fn a_prepared_sql_command_runs_on_after_its_table_has_changed() {
    let database = Database::new().await;
    let (owner, folder) = (database.owner().await, Folder::new());
    execute(
        &owner,
        "create table public.stock as select 7 as tea; grant select on public.stock to public",
    )
    .await;
    let file = "pool_size = 1\n[commands.read]\nsql = \"select * from public.stock\"\n";
    let worker = WorkerProcess::start(&database, &folder, "one", file, &[]);
    let first = enqueue(&owner, "read").await;
    wait_for_state(&owner, first, "completed").await;

    execute(&owner, "alter table public.stock add column milk integer default 1").await;
    let second = NewJob::new("read", ()).max_attempts(1).enqueue(&owner).await.unwrap();

    let ended = "select not exists (select from bugle.jobs_live)";
    wait_until(&owner, ended).await;
    let results: String = common::query_value(
        &owner,
        "select string_agg(concat_ws(' ', j.state, j.result, j.last_error), ', ' order by j.id) from bugle.jobs j",
    )
    .await;
    assert_eq!(
        results, r#"completed 7, completed {"tea": 7, "milk": 1}"#,
        "job {second}"
    );
    drop(worker);
}

/// Answer one request, and return its head and body.
#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_says_how_far_it_is_with_its_answer() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let body = "{\"delay\": 3600, \"progress\": 40, \"note\": \"uploading\"}";
        one_request(&listener, "bugle-outcome: snooze\r\n", body)
    });
    let folder = Folder::new();
    let config = format!("[commands.tell]\nhttp = {{ url = \"http://127.0.0.1:{port}/hook\" }}\n");
    let worker = WorkerProcess::start(&database, &folder, "http", &config, &[]);

    let id = enqueue(&owner, "tell").await;

    wait_for_state(&owner, id, "scheduled").await;
    let told: String = common::query_value(
        &owner,
        &format!("select concat_ws(' ', progress, progress_note) from bugle.job({id})"),
    )
    .await;
    assert_eq!(told, "40 uploading");
    server.join().unwrap();
    drop(worker);
}

fn one_request(listener: &TcpListener, headers: &str, answer: &str) -> (String, String) {
    let (stream, _) = listener.accept().unwrap();
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while reader.read_line(&mut head).unwrap() > 2 {}
    let head = head.to_lowercase();
    let length = head
        .split("content-length: ")
        .nth(1)
        .and_then(|rest| rest.lines().next());
    let mut body = vec![0; length.expect("a length").parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    let mut stream = reader.into_inner();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n\
         {answer}",
        answer.len()
    )
    .unwrap();
    (head, String::from_utf8(body).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_an_executor_makes_is_done_once_and_remembered_when_the_job_is_retried() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let charged: Shared<u32> = Shared::default();
    let registry = Registry::new().on("order", {
        let charged = charged.clone();
        move |context: Context, _: Value| {
            let charged = charged.clone();
            async move {
                let receipt: String = context
                    .step("charge", async {
                        *charged.lock().unwrap() += 1;
                        Ok("receipt 1".to_owned())
                    })
                    .await?;
                let attempt = context.attempt();
                context
                    .step("mail", async {
                        match attempt {
                            1 => Err(Failure::new("no answer").code("smtp").retry_after(Duration::ZERO)),
                            _ => Ok(()),
                        }
                    })
                    .await?;
                Ok(receipt)
            }
        }
    });
    let worker = database.worker(&[("default", 4)], registry);

    let id = enqueue(&owner, "order").await;

    wait_for_state(&owner, id, "completed").await;
    assert_eq!(*charged.lock().unwrap(), 1);
    let row = owner
        .query_one(
            "select j.attempt, j.result::text, \
             (select string_agg(format('%s %s %s %s', s.name, s.state, s.attempts, s.code), ', ' order by s.position) \
              from bugle.steps s where s.job = j.id) from bugle.job($1) j",
            &[&id],
        )
        .await
        .unwrap();
    assert_eq!(row.get::<_, i32>(0), 2);
    assert_eq!(row.get::<_, String>(1), "\"receipt 1\"");
    assert_eq!(row.get::<_, String>(2), "charge done 1 , mail done 2 smtp");
    worker.stop().await;
}

/// Says which environment variable makes the test below a worker to be killed.
const VICTIM: &str = "BUGLE_TEST_VICTIM_OF";

/// A worker with an executor in Rust, for the test below: charges, then waits to be killed.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a worker for the next test, not a test"]
async fn the_worker_that_is_killed() {
    let Ok(url) = std::env::var(VICTIM) else { return };
    let registry = Registry::new().on("order", async |context: Context, _: Value| {
        context.step("charge", async { Ok(std::process::id()) }).await?;
        context
            .step("mail", async { std::future::pending::<Result<(), Failure>>().await })
            .await?;
        Ok(())
    });
    let settings = bugle::Settings::new(url).name("victim");
    let _ = bugle::Worker::new(settings, registry).run(bugle::Shutdown::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_an_executor_made_is_remembered_when_its_worker_was_killed() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_worker_that_is_killed", "--ignored"])
        .env(VICTIM, database.url("worker"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let id = enqueue(&owner, "order").await;
    let in_mail =
        format!("select exists (select from bugle.steps where job = {id} and name = 'mail' and state = 'running')");
    wait_until(&owner, &in_mail).await;

    let process = victim.id();
    victim.kill().unwrap();
    victim.wait().unwrap();
    let registry = Registry::new().on("order", async |context: Context, _: Value| {
        let charged: u32 = context.step("charge", async { Ok(0) }).await?;
        context.step("mail", async { Ok("sent".to_owned()) }).await?;
        Ok(charged)
    });
    let worker = database.worker(&[("default", 4)], registry);

    wait_for_state(&owner, id, "completed").await;
    let row = owner
        .query_one("select result::text, attempt, crashes from bugle.job($1)", &[&id])
        .await
        .unwrap();
    assert_eq!(
        row.get::<_, String>(0),
        process.to_string(),
        "what the killed one put out"
    );
    assert_eq!((row.get::<_, i32>(1), row.get::<_, i32>(2)), (2, 1));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_step_put_out_before_must_fit_and_a_fenced_one_is_not_begun() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let begun: Shared<Vec<&str>> = Shared::default();
    let registry = Registry::new()
        .on("changed", async |context: Context, _: Value| {
            match context.attempt() {
                1 => {
                    context.step("number", async { Ok(1) }).await?;
                    return Err(Failure::new("again").retry_after(Duration::ZERO));
                }
                _ => drop(context.step::<Vec<String>, _>("number", async { Ok(vec![]) }).await?),
            }
            Ok(())
        })
        .on("fenced", {
            let begun = begun.clone();
            move |context: Context, _: Value| {
                let begun = begun.clone();
                async move {
                    context.cancellation().cancelled().await;
                    let step = context.step("late", async {
                        begun.lock().unwrap().push("late");
                        Ok(())
                    });
                    let failure = step.await;
                    begun
                        .lock()
                        .unwrap()
                        .push(if failure.is_err() { "refused" } else { "done" });
                    Ok(())
                }
            }
        });
    let worker = database.worker(&[("default", 4)], registry);

    let changed = enqueue(&owner, "changed").await;
    let fenced = enqueue(&owner, "fenced").await;
    wait_for_state(&owner, changed, "failed").await;
    wait_for_state(&owner, fenced, "running").await;
    owner
        .query("select bugle.cancel($1::bigint)", &[&fenced])
        .await
        .unwrap();

    let row = owner
        .query_one("select reason, last_error_code from bugle.job($1)", &[&changed])
        .await
        .unwrap();
    assert_eq!(
        (row.get::<_, String>(0).as_str(), row.get::<_, String>(1).as_str()),
        ("not_retryable", "bad_step")
    );
    eventually("the step is refused", || *begun.lock().unwrap() == ["refused"]).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chains_are_enqueued_shown_and_repaired_from_the_shell() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let bugle = |arguments: &[&str]| {
        let output = Command::new(common::BUGLE)
            .args(arguments)
            .env("BUGLE_DATABASE_URL", database.url("owner"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    };
    let registry = Registry::new()
        .on("a", async |_: Context, _: Value| Ok(json!({ "a": 1 })))
        .on("b", async |_: Context, payload: Value| {
            payload["fixed"]
                .as_bool()
                .ok_or_else(|| Failure::new("it is broken").not_retryable())
        })
        .on("c", async |_: Context, _: Value| Ok(()));

    let (_, id) = bugle(&["enqueue", "chain", "--step", "a", "--step", "b", "--step", "c"]);
    // the warning that no worker serves it comes after
    let id = id.lines().next().unwrap().to_owned();
    let number: i64 = id.parse().unwrap();
    let (_, shown) = bugle(&["jobs", "show", &id]);
    assert!(
        shown.contains("no live worker serves all remaining steps in queue default"),
        "{shown}"
    );
    assert!(shown.contains("a: pending"), "{shown}");
    let worker = database.worker(&[("default", 4)], registry);
    wait_for_state(&owner, number, "failed").await;

    let (_, shown) = bugle(&["jobs", "show", &id]);
    assert!(shown.contains(r#"{"a": 1}"#), "the context: {shown}");
    assert!(
        shown.contains("a: done") && shown.contains("on worker: it is broken") && shown.contains("c: pending"),
        "{shown}"
    );
    let (_, json) = bugle(&["jobs", "show", &id, "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["steps"][1]["name"], &json["steps"][1]["state"]),
        (&"b".into(), &"failed".into())
    );

    let (done, said) = bugle(&[
        "jobs",
        "set-step",
        &id,
        "a",
        "done",
        "--output",
        r#"{"fixed": true}"#,
        "--note",
        "by hand",
    ]);
    assert!(done, "{said}");
    assert_eq!(said, format!("{id} step a done\n"));
    let (done, said) = bugle(&["jobs", "set-step", &id, "9", "skipped"]);
    assert!(!done && said.contains("has no step '9'"), "{said}");
    let (done, said) = bugle(&["jobs", "set-step", &id, "a", "done", "--output", "{"]);
    assert!(!done && said.contains("--output"), "{said}");
    assert!(bugle(&["jobs", "restart", &id, "--from-failed-step"]).0);

    wait_for_state(&owner, number, "completed").await;
    let result: String = owner
        .query_one("select result::text from bugle.job($1)", &[&number])
        .await
        .unwrap()
        .get(0);
    assert_eq!(result, r#"{"a": 1, "b": true, "fixed": true}"#);
    worker.stop().await;
}
