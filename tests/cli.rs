//! The command line: what it prints, and how it ends.

mod common;

use std::process::Command;

use common::cli::{CliRun, bugle, command, run};
use common::{BUGLE, Database, Folder, enqueue, execute, noop, query_value, wait_until};
use serde_json::{Value, json};

#[tokio::test]
async fn enqueue_prints_the_id_and_every_option_reaches_its_column() {
    let database = Database::new().await;
    let arguments = [
        "enqueue",
        "ship",
        r#"{"order": 12345678901234567890123}"#,
        "--queue=parcels",
        "--priority=-5",
        "--run-at=2999-01-01 00:00:00+00",
        "--deadline=2999-01-02 00:00:00+00",
        "--timeout=5m",
        "--max-attempts=3",
        "--retry-policy=fixed",
        "--header=trace=a=b",
        "--header=tenant=7",
    ];

    let id = bugle(&database, "enqueuer", &arguments).await.id();

    let row = database
        .owner()
        .await
        .query_one(
            "select to_jsonb(j) - array['id', 'created_at', 'updated_at', 'run_at', 'deadline', 'payload'], \
                payload::text, \
             run_at = '2999-01-01+00', deadline = '2999-01-02+00' from bugle.jobs j where id = $1",
            &[&id],
        )
        .await
        .unwrap();
    let mut job: Value = row.get(0);
    job.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    assert_eq!(
        job,
        json!({
            "command": "ship", "queue": "parcels", "priority": -5, "timeout": "00:05:00", "max_attempts": 3,
            "retry_policy": "fixed", "headers": {"trace": "a=b", "tenant": "7"}, "state": "scheduled",
            "attempt": 0, "crashes": 0, "claim": 0, "enqueued_by": database.login("enqueuer"), "enqueued_from": "bugle"
        })
    );
    assert_eq!(row.get::<_, String>(1), r#"{"order": 12345678901234567890123}"#);
    assert!(row.get::<_, bool>(2) && row.get::<_, bool>(3));
}

#[tokio::test]
async fn the_payload_comes_from_the_argument_or_from_standard_input_or_is_empty() {
    let database = Database::new().await;
    let url = database.url("enqueuer");

    let none = bugle(&database, "enqueuer", &["enqueue", "a"]).await.id();
    let piped = run(command(&["enqueue", "a", "-"]).env("DATABASE_URL", &url), "[1, 2]\n")
        .await
        .id();
    let flagged = run(&mut command(&["enqueue", "a", "-1", "--database-url", &url]), "")
        .await
        .id();
    let as_json = bugle(&database, "enqueuer", &["enqueue", "a", "null", "--json"])
        .await
        .json();

    let rows = database
        .owner()
        .await
        .query("select id, payload from bugle.jobs order by id", &[])
        .await
        .unwrap();
    let seen: Vec<(i64, Value)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let last = as_json["id"].as_i64().unwrap();
    assert_eq!(
        seen,
        [
            (none, json!({})),
            (piped, json!([1, 2])),
            (flagged, json!(-1)),
            (last, Value::Null)
        ]
    );
}

#[tokio::test]
async fn a_delay_is_counted_by_the_clock_of_the_database() {
    let database = Database::new().await;

    let id = bugle(&database, "enqueuer", &["enqueue", "a", "--in", "10m"])
        .await
        .id();

    let question =
        format!("select run_at - created_at = '10 minutes' and state = 'scheduled' from bugle.jobs where id = {id}");
    wait_until(&database.owner().await, &question).await;
}

#[tokio::test]
async fn what_the_schema_refuses_is_told_with_its_hint_and_exit_code_1() {
    let database = Database::new().await;
    let refused = [
        (
            &["enqueue", ""][..],
            r#"column "command" must have 1 to 200 characters"#,
            "hint: Give the name that an executor",
        ),
        (
            &["enqueue", "a", "--retry-policy=often"],
            "column \"retry_policy\" is not the name of a policy: 'often'",
            "hint: Policies: daily",
        ),
        (
            &["enqueue", "a", "--max-attempts=0"],
            "must be at least 1, not 0 (SQLSTATE JB001)",
            "hint: It is the number",
        ),
        (
            &["enqueue", "a", "--deadline=2001-01-01"],
            "this job could never start",
            "hint: The deadline is",
        ),
        (
            &["enqueue", "a", "--run-at=infinity"],
            "must be a finite time",
            "hint: Leave it out",
        ),
        (
            &["enqueue", "a", "--run-at=soonish"],
            "--run-at: \"soonish\" is not a time",
            "hint: For example 'tomorrow 8:00'",
        ),
    ];
    for (arguments, message, hint) in refused {
        let said = bugle(&database, "enqueuer", arguments).await;

        assert_eq!(said.code, 1, "{arguments:?}: {}", said.err);
        assert!(
            said.err.contains(message) && said.err.contains(hint),
            "{arguments:?}: {}",
            said.err
        );
        assert!(!said.err.contains("db error"), "told twice: {}", said.err);
        assert_eq!(said.out, "");
    }
}

#[tokio::test]
async fn wrong_usage_has_exit_code_2_and_bad_json_is_noticed_before_connecting() {
    let nowhere = "postgres://nobody@127.0.0.1:1/nothing";
    let on_nowhere = |arguments: &[&str]| {
        let mut command = command(arguments);
        command.env("DATABASE_URL", nowhere);
        command
    };
    for arguments in [
        &["enqueue"][..],
        &["enqueue", "a", "--in=soon"],
        &["enqueue", "a", "--in=1m", "--run-at=tomorrow"],
        &["enqueue", "a", "--header=nothing"],
        &["jobs", "list", "--state=done"],
        &["jobs", "show", "first"],
    ] {
        assert_eq!(run(&mut on_nowhere(arguments), "").await.code, 2, "{arguments:?}");
    }

    let argument = run(&mut on_nowhere(&["enqueue", "a", "{name: Ada}"]), "").await;
    let input = run(&mut on_nowhere(&["enqueue", "a", "-"]), "").await;

    assert_eq!((argument.code, input.code), (1, 1));
    assert!(
        argument
            .err
            .starts_with("bugle: the payload is not JSON: look at column 2"),
        "{}",
        argument.err
    );
    assert!(
        argument.err.contains("hint: quote it for the shell"),
        "{}",
        argument.err
    );
    assert!(
        input
            .err
            .starts_with("bugle: standard input is not JSON: it ends too early"),
        "{}",
        input.err
    );
}

#[tokio::test]
async fn without_a_database_it_says_how_to_name_one() {
    for arguments in [&["enqueue", "a"][..], &["jobs", "list"], &["queues"], &["workers"]] {
        let said = run(&mut command(arguments), "").await;

        assert_eq!(said.code, 1);
        for part in [
            "no database is configured",
            "--database-url",
            "DATABASE_URL",
            "bugle dev",
        ] {
            assert!(said.err.contains(part), "{part} is missing in: {}", said.err);
        }
    }
}

#[tokio::test]
async fn without_the_schema_or_the_right_it_says_what_to_do() {
    let empty = Database::empty().await;
    let database = Database::new().await;

    for arguments in [
        &["enqueue", "a"][..],
        &["jobs", "list"],
        &["jobs", "show", "1"],
        &["queues"],
        &["workers"],
    ] {
        let said = bugle(&empty, "owner", arguments).await;
        assert_eq!(said.code, 1);
        assert!(said.err.contains("Run: bugle migrate"), "{arguments:?}: {}", said.err);
    }
    let said = bugle(&database, "enqueuer", &["jobs", "list"]).await;
    assert_eq!(said.code, 1);
    assert!(said.err.contains("bugle_viewer"), "{}", said.err);
}

#[tokio::test]
async fn no_password_is_ever_printed() {
    let database = Database::new().await;
    let secret = "correct-horse-battery";
    let urls = [
        format!("postgres://somebody:{secret}@127.0.0.1:1/nothing"),
        format!("host=127.0.0.1 port=1 user=somebody password={secret} dbname=nothing"),
        format!("host=127.0.0.1 port=none password={secret}"),
        format!("postgres://somebody:{secret}@[::1/nothing"),
    ];
    for url in &urls {
        for arguments in [
            &["queues"][..],
            &["queues", "--help"],
            &["enqueue"],
            &["jobs", "list", "--state=x"],
        ] {
            let said = run(command(arguments).env("BUGLE_DATABASE_URL", url), "").await;
            assert!(!(said.out + &said.err).contains(secret), "{arguments:?} on {url}");
        }
    }

    let password = format!("{}_viewer", database.name);
    let client = database.owner().await;
    let id = enqueue(&client, "a").await.to_string();
    for arguments in [
        &["jobs", "show", &id][..],
        &["jobs", "list"],
        &["queues"],
        &["workers", "--all"],
    ] {
        let said = bugle(&database, "viewer", arguments).await;
        assert_eq!(said.code, 0, "{}", said.err);
        assert!(!(said.out + &said.err).contains(&password));
    }
}

#[tokio::test]
async fn jobs_are_listed_newest_first_and_filtered() {
    let database = Database::new().await;
    let client = database.owner().await;
    execute(
        &client,
        "insert into bugle.jobs (command, queue, run_at) values \
             ('a', 'default', now()), ('b', 'default', now()), ('b', 'mail', now()), ('c', 'mail', now() + interval '2 \
             hours')",
    )
    .await;
    let ids = async |arguments: &[&str]| {
        let said = bugle(&database, "viewer", &[&["jobs", "list", "--json"], arguments].concat()).await;
        let jobs = said.json();
        jobs.as_array()
            .unwrap()
            .iter()
            .map(|job| job["id"].as_i64().unwrap())
            .collect::<Vec<_>>()
    };

    assert_eq!(ids(&[]).await, [4, 3, 2, 1]);
    assert_eq!(ids(&["--limit", "2"]).await, [4, 3]);
    assert_eq!(ids(&["--queue", "mail"]).await, [4, 3]);
    assert_eq!(ids(&["--command", "b", "--queue", "default"]).await, [2]);
    assert_eq!(ids(&["--state", "scheduled"]).await, [4]);
    assert_eq!(ids(&["--state", "failed"]).await, [] as [i64; 0]);

    let plain = bugle(&database, "viewer", &["jobs", "list"]).await;
    let lines: Vec<Vec<&str>> = plain.out.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(lines.len(), 4, "no heading, no decoration: {}", plain.out);
    assert_eq!(lines[0][..5], ["4", "scheduled", "c", "mail", "0"]);
    assert!(lines[0][6].starts_with("due in 1h 59m"), "{}", lines[0][6]);
    assert!(lines[1][5].ends_with("ago"), "{}", lines[1][5]);
}

#[tokio::test]
async fn payloads_are_shown_of_one_job_only() {
    let database = Database::new().await;
    let id = bugle(&database, "owner", &["enqueue", "a", r#"{"name": "Ada"}"#])
        .await
        .id()
        .to_string();

    let list = bugle(&database, "viewer", &["jobs", "list"]).await.out;
    let list_json = bugle(&database, "viewer", &["jobs", "list", "--json"]).await.out;
    let shown = bugle(&database, "viewer", &["jobs", "show", &id]).await;
    let shown_json = bugle(&database, "viewer", &["jobs", "show", &id, "--json"])
        .await
        .json();

    assert!(!list.contains("Ada") && !list_json.contains("Ada"));
    assert!(shown.out.contains("payload\t{\"name\": \"Ada\"}\n"), "{}", shown.out);
    assert_eq!(shown_json["payload"], json!({"name": "Ada"}));
    assert_eq!(shown_json["state"], "ready");
    assert_eq!(shown_json["timeline"][0]["event"], "enqueued");
}

#[tokio::test]
async fn a_job_that_no_worker_serves_is_explained_until_one_does() {
    let database = Database::new().await;
    let client = database.owner().await;
    let id = bugle(&database, "owner", &["enqueue", "noop", "--queue=mail"])
        .await
        .id()
        .to_string();
    let words = "no live worker serves command noop in queue mail";
    let elsewhere = database.worker(&[("default", 1)], noop());
    wait_until(
        &client,
        "select exists (select from bugle.workers where state = 'alive')",
    )
    .await;

    let unserved = bugle(&database, "viewer", &["jobs", "show", &id]).await;
    let unserved_json = bugle(&database, "viewer", &["jobs", "show", &id, "--json"])
        .await
        .json();
    let queues = bugle(&database, "viewer", &["queues", "--json"]).await.json();
    elsewhere.stop().await;

    assert!(unserved.out.contains(words), "{}", unserved.out);
    assert_eq!(unserved_json["unserved"], true);
    assert_eq!(queues[0]["queue"], "default");
    assert_eq!((&queues[0]["workers"], &queues[0]["slots"]), (&json!(1), &json!(1)));
    assert_eq!(queues[1]["unserved_commands"], json!(["noop"]));

    let here = database.worker(&[("mail", 1)], noop());
    common::wait_for_state(&client, id.parse().unwrap(), "completed").await;
    let completed = bugle(&database, "viewer", &["jobs", "show", &id]).await;
    here.stop().await;

    assert!(!completed.out.contains("no live worker"), "{}", completed.out);
    assert!(completed.out.contains("state\tcompleted\n"), "{}", completed.out);
    let took = bugle(&database, "viewer", &["jobs", "list"]).await.out;
    assert!(took.contains("\ttook "), "{took}");
}

#[tokio::test]
async fn the_attempts_of_a_job_are_told_with_their_errors() {
    let database = Database::new().await;
    let client = database.owner().await;
    let failing = bugle::Registry::new().on("fail", async |_: bugle::Context, _: Value| {
        Err::<(), _>(
            bugle::Failure::new("the bank\ndoes not answer")
                .code("no_answer")
                .retry_after(std::time::Duration::ZERO),
        )
    });
    let id = bugle(&database, "owner", &["enqueue", "fail", "--max-attempts=2"])
        .await
        .id();
    let worker = database.worker(&[("default", 1)], failing);
    common::wait_for_state(&client, id, "failed").await;
    worker.stop().await;

    let shown = bugle(&database, "viewer", &["jobs", "show", &id.to_string()]).await;
    let shown_json = bugle(&database, "viewer", &["jobs", "show", &id.to_string(), "--json"])
        .await
        .json();

    assert!(shown.out.contains("reason\tattempts_exhausted\n"), "{}", shown.out);
    for attempt in 1..=2 {
        let failed = format!("attempt {attempt} failed on worker: no_answer: the bank does not answer");
        assert!(shown.out.lines().any(|line| line.ends_with(&failed)), "{}", shown.out);
    }
    let failures: Vec<&Value> = shown_json["timeline"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["event"] == "failed" && event["attempt"] == 2)
        .collect();
    assert_eq!(failures[0]["message"], "the bank\ndoes not answer", "{shown_json}");
}

#[tokio::test]
async fn an_unknown_job_is_an_error() {
    let database = Database::new().await;

    for verb in ["show", "explain"] {
        let said = bugle(&database, "viewer", &["jobs", verb, "4711"]).await;

        assert_eq!((said.code, said.out.as_str()), (1, ""));
        assert!(
            said.err.starts_with("bugle: there is no job 4711") && said.err.contains("\nhint: "),
            "{verb}: {}",
            said.err
        );
    }
}

#[tokio::test]
async fn a_job_that_was_answered_or_cancelled_says_so() {
    let database = Database::new().await;
    let owner = database.owner().await;
    for _ in 0..2 {
        enqueue(&owner, "ask").await;
    }
    let sql = "update bugle.jobs_live set state = 'waiting', first_started_at = now() where id = 1; \
        select bugle.resolve(1, '7'); select bugle.cancel(2)";
    execute(&owner, sql).await;
    let show = async |id: &str| bugle(&database, "viewer", &["jobs", "show", id]).await.out;

    let answered = show("1").await;
    assert!(answered.contains("reason\tresolved\n"), "{answered}");
    assert!(answered.contains("\tcompleted: it was answered\n"), "{answered}");
    let cancelled = show("2").await;
    assert!(
        cancelled.contains("\tcancelled: an operator cancelled it\n"),
        "{cancelled}"
    );
    let waited = bugle(&database, "viewer", &["jobs", "wait", "2"]).await;
    assert_eq!(
        (waited.code, waited.err.as_str()),
        (1, "job 2 is cancelled (operator)\n")
    );
    let gone = bugle(&database, "viewer", &["jobs", "wait", "4711"]).await;
    assert_eq!((gone.code, gone.err.as_str()), (1, "job 4711 is gone\n"));
}

#[tokio::test]
async fn workers_are_listed_and_those_that_stopped_if_asked_for() {
    let database = Database::new().await;
    let client = database.owner().await;
    let gone = database.worker(&[("default", 3)], noop());
    wait_until(
        &client,
        "select exists (select from bugle.workers where state = 'alive')",
    )
    .await;
    gone.stop().await;
    let alive = database.worker(&[("default", 3), ("mail", 1)], noop());
    wait_until(
        &client,
        "select exists (select from bugle.workers where state = 'alive')",
    )
    .await;

    let plain = bugle(&database, "viewer", &["workers"]).await.out;
    let some = bugle(&database, "viewer", &["workers", "--json"]).await.json();
    let all = bugle(&database, "viewer", &["workers", "--all", "--json"]).await.json();
    alive.stop().await;

    let cells: Vec<&str> = plain.trim_end().split('\t').collect();
    assert_eq!(plain.lines().count(), 1, "{plain}");
    assert!(
        cells[5].starts_with("alive") && cells[9] == "default=3 mail=1" && cells[10] == "noop",
        "{plain}"
    );
    let states = |workers: &Value| {
        workers
            .as_array()
            .unwrap()
            .iter()
            .map(|w| w["state"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(states(&some), ["alive"]);
    assert_eq!(states(&all), ["stopped", "alive"]);
}

#[tokio::test]
async fn queues_are_shown_with_what_is_in_them() {
    let database = Database::new().await;
    let client = database.owner().await;
    execute(
        &client,
        "insert into bugle.jobs (command, run_at) values ('a', now()), ('a', now() + interval '90 seconds')",
    )
    .await;

    let plain = bugle(&database, "viewer", &["queues"]).await.out;
    let queues = bugle(&database, "viewer", &["queues", "--json"]).await.json();

    let cells: Vec<&str> = plain.trim_end_matches('\n').split('\t').collect();
    assert_eq!(
        (cells[0], cells[1], cells[4], cells[11], cells[13]),
        ("default", "1", "1", "0", "a"),
        "{plain}"
    );
    assert!(cells[6].starts_with("in 1m"), "{plain}");
    assert_eq!((&queues[0]["ready"], &queues[0]["scheduled"]), (&json!(1), &json!(1)));
}

#[tokio::test]
async fn queues_are_shown_with_what_holds_them_back() {
    let database = Database::new().await;
    let client = database.owner().await;
    execute(
        &client,
        "insert into bugle.jobs (command) values ('a');
             select bugle.set_limits('mail', p_max_running => 10, p_max_starts => 100, p_starts_period => '1 minute');
             select bugle.pause_queue('mail')",
    )
    .await;

    let plain = bugle(&database, "viewer", &["queues"]).await.out;
    let queues = bugle(&database, "viewer", &["queues", "--json"]).await.json();

    let held: Vec<&str> = plain.lines().map(|line| line.split('\t').nth(14).unwrap()).collect();
    assert_eq!(held[0], "", "{plain}");
    assert!(
        held[1].starts_with("paused ") && held[1].ends_with("ago, max_running 10, max_starts 100 per 00:01:00"),
        "{plain}"
    );
    assert_eq!(queues[0]["limits"], json!(null));
    assert_eq!(queues[1]["queue"], "mail");
    assert_eq!(queues[1]["limits"], "max_running 10, max_starts 100 per 00:01:00");
    assert!(queues[1]["paused_since"].is_string(), "{queues}");
}

#[tokio::test]
async fn a_reader_that_has_seen_enough_is_no_error() {
    let database = Database::new().await;
    let fill = "insert into bugle.jobs (command) select 'a' from generate_series(1, 5000)";
    database.owner().await.batch_execute(fill).await.unwrap();

    let mut shell = Command::new("sh");
    shell
        .args(["-c", "\"$0\" jobs list --limit 5000 | head -n 1", BUGLE])
        .env("BUGLE_DATABASE_URL", database.url("viewer"));
    let said = run(&mut shell, "").await;

    assert_eq!(said.err, "");
    assert_eq!(said.out.lines().count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_can_do_everything_to_jobs_from_the_shell() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let bugle = |arguments: &[&str]| {
        let output = std::process::Command::new(common::BUGLE)
            .args(arguments)
            .env("BUGLE_DATABASE_URL", database.url("owner"))
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.code().unwrap(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    for _ in 0..4 {
        common::enqueue(&owner, "noop").await;
    }

    assert_eq!(
        bugle(&["jobs", "pause", "1", "2"]),
        (0, "1 paused\n2 paused\n".into(), String::new())
    );
    assert_eq!(bugle(&["jobs", "resume", "1"]).1, "1 ready\n");
    assert_eq!(
        bugle(&["jobs", "cancel", "1", "--note", "not needed"]).1,
        "1 cancelled\n"
    );
    assert_eq!(bugle(&["jobs", "restart", "1"]).1, "1 ready\n");
    assert_eq!(bugle(&["jobs", "set-priority", "1", "--priority", "-5"]).0, 0);
    assert_eq!(
        bugle(&["jobs", "reschedule", "3", "--at", "2100-01-01"]).1,
        "3 scheduled\n"
    );
    let (code, _, error) = bugle(&["jobs", "restart", "1", "99"]);
    assert_eq!(code, 1);
    assert!(error.contains("cannot restart job 1: it is ready"), "{error}");
    assert!(error.contains("there is no job 99"), "{error}");
    assert!(
        bugle(&["jobs", "explain", "4"])
            .1
            .contains("No live worker serves its queue 'default'.")
    );
    let (code, _, error) = bugle(&["jobs", "remove", "--command", "noop"]);
    assert_eq!(code, 1, "not without --yes");
    assert!(error.contains("--yes"), "{error}");
    assert!(
        bugle(&["jobs", "remove", "--command", "noop", "--dry-run"])
            .1
            .contains("would remove 4 jobs (1 paused, 2 ready, 1 scheduled): 1 2 3 4")
    );
    assert_eq!(
        bugle(&["jobs", "remove", "--command", "noop", "--yes"]),
        (0, "removed 4 jobs\n".into(), String::new())
    );
    assert_eq!(bugle(&["queues", "pause", "default", "--note", "night"]).0, 0);
    assert_eq!(bugle(&["queues", "resume", "default"]).0, 0);
    assert!(bugle(&["queues", "resume", "default"]).2.contains("is not paused"));
    assert!(
        bugle(&["workers", "drain", "7"])
            .2
            .contains("there is no live worker 7")
    );

    let row = owner
        .query_one(
            "select count(*), (select count(*) from bugle.jobs) from bugle.changes",
            &[],
        )
        .await
        .unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (13, 0));
}

#[tokio::test]
async fn limits_are_set_and_keys_given_from_the_shell() {
    let database = Database::new().await;

    let set = bugle(
        &database,
        "operator",
        &[
            "queues",
            "set",
            "mail",
            "--max-running",
            "3",
            "--max-starts",
            "100/1m",
            "--note",
            "launch",
        ],
    )
    .await;
    assert_eq!(set.out, "max_running 3, max_starts 100 per 00:01:00\n");
    let changed = [
        "queues",
        "set",
        "mail",
        "--max-running",
        "none",
        "--max-starts",
        "none",
        "--max-running-per-key",
        "2",
        "--max-starts-per-key",
        "5/1s",
        "--order-on-retry",
        "pass",
    ];
    assert_eq!(
        bugle(&database, "operator", &changed).await.out,
        "max_running_per_key 2, max_starts_per_key 5 per 00:00:01, order_on_retry pass\n"
    );
    let none = ["queues", "set", "other", "--max-running", "none"];
    assert_eq!(bugle(&database, "operator", &none).await.out, "no limits\n");
    let negative = bugle(&database, "operator", &["queues", "set", "mail", "--max-running", "-1"]).await;
    assert!(
        negative.err.contains("must be at least 1, not '-1'"),
        "{}",
        negative.err
    );
    let rate = bugle(&database, "operator", &["queues", "set", "mail", "--max-starts", "100"]).await;
    assert!(rate.err.contains("such as 100/1m"), "{}", rate.err);
    let viewer = bugle(&database, "viewer", &["queues", "set", "mail", "--max-running", "1"]).await;
    assert_ne!(viewer.code, 0);
    bugle(&database, "operator", &["queues", "limit-command", "heavy", "2"]).await;
    bugle(
        &database,
        "enqueuer",
        &[
            "enqueue",
            "heavy",
            "--queue",
            "mail",
            "--order-key",
            "o",
            "--limit-key",
            "l",
            "--fair-key",
            "f",
        ],
    )
    .await;

    let row = database
        .owner()
        .await
        .query_one(
            "select array[order_key, limit_key, fair_key], (select max_running from bugle.commands where name = \
                'heavy') from bugle.jobs",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(row.get::<_, Vec<String>>(0), ["o", "l", "f"]);
    assert_eq!(row.get::<_, i32>(1), 2);
}

/// The configuration folder of a user with two contexts of one database, one of them in production.
struct User {
    database: Database,
    folder: Folder,
}

impl User {
    async fn new() -> User {
        let user = User {
            database: Database::new().await,
            folder: Folder::new(),
        };
        std::fs::create_dir(user.folder.join("bugle")).expect("a folder");
        let file =
            "[contexts.shop]\nurl = \"env:SHOP_URL\"\nproduction = true\n\n[contexts.test]\nurl = \"env:SHOP_URL\"\n";
        std::fs::write(user.folder.join("bugle/config.toml"), file).expect("a file");
        user
    }

    async fn bugle(&self, arguments: &[&str]) -> CliRun {
        let mut command = command(arguments);
        command
            .env("XDG_CONFIG_HOME", self.folder.path())
            .env("SHOP_URL", self.database.url("owner"));
        run(&mut command, "").await
    }
}

#[tokio::test]
async fn a_context_names_the_database_and_every_change_in_production_needs_yes() {
    let user = User::new().await;
    let owner = user.database.owner().await;
    let id = user
        .bugle(&["enqueue", "noop", "--context", "test"])
        .await
        .id()
        .to_string();
    execute(
        &owner,
        "insert into bugle.schedules (name, every, command) values ('often', '1 hour', 'noop')",
    )
    .await;
    let worker = common::register(&owner).await;
    let worker = worker.split(',').next().expect("its id").to_owned();

    let changes: [&[&str]; 16] = [
        &["enqueue", "noop"],
        &["migrate"],
        &["jobs", "pause", &id],
        &["jobs", "resume", &id],
        &["jobs", "set-priority", &id, "--priority", "3"],
        &["jobs", "pause", "--command", "noop"],
        &["jobs", "resume", "--command", "noop"],
        &["queues", "pause", "default"],
        &["queues", "resume", "default"],
        &["queues", "set", "default", "--max-running", "3"],
        &["queues", "limit-command", "noop", "3"],
        &["workers", "pause", &worker],
        &["workers", "drain", &worker],
        &["schedules", "pause", "often"],
        &["schedules", "run-now", "often"],
        &["schedules", "remove", "often"],
    ];
    for change in changes {
        let before: i64 = query_value(&owner, "select coalesce(max(id), 0) from bugle.changes").await;
        let jobs: i64 = query_value(&owner, "select count(*) from bugle.jobs").await;
        let refused = user.bugle(&[change, &["--context", "shop"]].concat()).await;
        assert_eq!(refused.code, 1, "{change:?}: {}", refused.out);
        assert!(
            refused.err.contains("nothing was changed")
                && refused.err.contains("hint: add --yes to skip the confirmation"),
            "{change:?}: {}",
            refused.err
        );
        assert_eq!(
            query_value::<i64>(&owner, "select coalesce(max(id), 0) from bugle.changes").await,
            before
        );
        assert_eq!(
            query_value::<i64>(&owner, "select count(*) from bugle.jobs").await,
            jobs
        );
        user.bugle(&[&["--context", "shop"], change, &["--yes"]].concat())
            .await
            .text();
    }
    // what only reads does not ask
    for read in [
        &["jobs", "list"][..],
        &["queues"],
        &["workers"],
        &["jobs", "cancel", &id, "--dry-run"],
    ] {
        user.bugle(&[read, &["--context", "shop"]].concat()).await.text();
    }
}

#[tokio::test]
async fn contexts_are_listed_completed_and_named_in_errors() {
    let user = User::new().await;
    let owner = user.database.owner().await;
    common::register(&owner).await;

    let listed = user.bugle(&["contexts"]).await;
    assert_eq!(listed.text(), "shop\tenv:SHOP_URL\tyes\t\ntest\tenv:SHOP_URL");
    let listed = user.bugle(&["contexts", "--json"]).await.json();
    assert_eq!(
        listed[0],
        json!({"name": "shop", "url": "env:SHOP_URL", "production": true, "current": false})
    );
    let script = user.bugle(&["completions", "bash"]).await;
    assert!(script.text().contains("shop test"), "the script completes --context");

    let said = user.bugle(&["queues", "--context", "shopp"]).await;
    assert_eq!(
        said.err.trim_end(),
        "bugle: there is no context \"shopp\"\nhint: there are: shop, test"
    );
    let said = user
        .bugle(&["queues", "--context", "shop", "--database-url", "dbname=x"])
        .await;
    assert!(
        said.err.contains("both name a database\nhint: give one of them"),
        "{}",
        said.err
    );
    let nobody = Folder::new();
    let mut nameless = command(&["queues"]);
    let said = run(
        nameless
            .env("XDG_CONFIG_HOME", nobody.path())
            .env("BUGLE_CONTEXT", "shop"),
        "",
    )
    .await;
    assert!(
        said.err.contains("there is no context \"shop\", because"),
        "{}",
        said.err
    );
    let mut unset = command(&["queues", "--context", "shop"]);
    let said = run(unset.env("XDG_CONFIG_HOME", user.folder.path()), "").await;
    assert!(
        said.err
            .contains("context \"shop\": the environment variable \"SHOP_URL\" is not set\nhint: set it"),
        "{}",
        said.err
    );

    let said = user.bugle(&["--context", "shop", "config", "show"]).await;
    assert!(
        said.err.contains("this command does not use contexts\nhint: "),
        "{}",
        said.err
    );

    let said = user.bugle(&["--context", "shop", "config", "show"]).await;
    assert!(
        said.err.contains("this command does not use contexts\nhint: "),
        "{}",
        said.err
    );

    let workers = user.bugle(&["workers", "--all-contexts", "--json"]).await.json();
    let contexts: Vec<&str> = workers
        .as_array()
        .unwrap()
        .iter()
        .map(|w| w["context"].as_str().unwrap())
        .collect();
    assert_eq!(contexts, ["shop", "test"]);
    assert!(workers[0]["id"].is_i64(), "{workers}");
    let table = user.bugle(&["workers", "--all-contexts"]).await;
    assert!(table.text().starts_with("shop\t"), "{}", table.out);
}
