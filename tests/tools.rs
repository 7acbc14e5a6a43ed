//! What an operator has on the shell besides jobs, queues and workers: statistics, a doctor, many jobs at once.

mod common;

use std::process::{Command, Stdio};

use common::cli::{CliRun, bugle, command, run};
use common::{BUGLE, Database, Folder, enqueue, execute, query_value, wait_until};
use serde_json::{Value, json};

async fn with_input(database: &Database, role: &str, arguments: &[&str], input: &str) -> CliRun {
    run(command(arguments).env("BUGLE_DATABASE_URL", database.url(role)), input).await
}

#[tokio::test]
async fn many_jobs_are_enqueued_from_lines_of_json_all_or_none() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let many: String = (0..2500)
        .map(|n| format!("{{\"payload\": {{\"n\": {n}}}, \"priority\": {}}}\n", n % 3))
        .collect();

    let done = with_input(
        &database,
        "enqueuer",
        &["enqueue", "noop", "--jsonl", "-", "--json"],
        &many,
    )
    .await;
    assert_eq!(done.code, 0, "{}", done.err);
    assert_eq!(done.json()["enqueued"], 2500);
    let row = owner
        .query_one(
            "select count(*), count(*) filter (where priority = (payload->>'n')::int % 3), bool_and(command = 'noop') \
                from bugle.jobs",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(
        (row.get::<_, i64>(0), row.get::<_, i64>(1), row.get::<_, bool>(2)),
        (2500, 2500, true)
    );

    for (lines, says) in [
        (
            "{\"command\": \"a\"}\n{\"command\": \"b\", \"color\": 1}",
            "line 2: \"color\" is not a column",
        ),
        (
            "{\"command\": \"a\"}\n\nnot json",
            "line 3: it is not JSON: look at column",
        ),
        ("{\"command\": \"a\"}\n{\"payload\": 1}", "line 2: no command"),
        ("{\"command\": \"a\"}\n[1]", "line 2: not an object"),
        (
            "{\"command\": \"a\"}\n{\"command\": \"b\", \"max_attempts\": -1}",
            "line 2: ",
        ),
    ] {
        let refused = with_input(&database, "enqueuer", &["enqueue", "--jsonl", "-"], lines).await;

        assert_eq!(refused.code, 1, "{lines}");
        assert!(refused.err.contains(says), "{lines}: {}", refused.err);
    }
    let count = owner.query_one("select count(*) from bugle.jobs", &[]).await.unwrap();
    assert_eq!(count.get::<_, i64>(0), 2500, "nothing of what was refused is there");
}

#[tokio::test]
async fn jobs_whose_keys_are_taken_are_left_out_of_many_and_counted() {
    let database = Database::new().await;
    let lines = "{\"command\": \"a\", \"unique_key\": \"k\"}\n{\"command\": \"a\", \"unique_key\": \"l\", \"timeout\": \
        \"5 minutes\", \"headers\": {\"h\": 1}}\n";
    let first = with_input(&database, "enqueuer", &["enqueue", "--jsonl", "-", "--json"], lines).await;
    let again = with_input(&database, "enqueuer", &["enqueue", "--jsonl", "-", "--json"], lines).await;

    assert_eq!(first.json()["enqueued"], 2, "{}", first.err);
    assert_eq!(
        (again.json()["enqueued"].clone(), again.json()["skipped"].clone()),
        (json!(0), json!(2))
    );
}

#[tokio::test]
async fn many_jobs_can_set_the_columns_that_the_schema_names() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let settable = "select array_to_string(bugle.settable_columns(), ', ')";
    let settable: String = owner.query_one(settable, &[]).await.unwrap().get(0);

    let refused = with_input(&database, "enqueuer", &["enqueue", "--jsonl", "-"], "{\"color\": 1}\n").await;

    assert!(refused.err.contains(&settable), "{}\nnot: {settable}", refused.err);
}

#[tokio::test]
async fn the_printed_statement_does_what_the_command_would() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let arguments = [
        "enqueue",
        "say",
        "{\"text\": \"it's \\\\ ok\"}",
        "--queue",
        "o'clock",
        "--in",
        "10m",
        "--timeout",
        "30s",
        "--header",
        "a=b",
        "--max-attempts",
        "3",
        "--order-key",
        "o",
        "--limit-key",
        "l",
        "--fair-key",
        "f",
        "--step",
        "one",
        "--step",
        "two",
    ];
    let printed = bugle(&database, "enqueuer", &[&arguments[..], &["--print-sql"]].concat()).await;
    assert_eq!(printed.code, 0, "{}", printed.err);
    let before = owner.query_one("select count(*) from bugle.jobs", &[]).await.unwrap();
    assert_eq!(before.get::<_, i64>(0), 0, "it was not run");

    owner
        .batch_execute(&printed.out)
        .await
        .unwrap_or_else(|error| panic!("{}: {error}", printed.out));
    bugle(&database, "enqueuer", &arguments).await;

    let rows = owner
        .query(
            "select distinct command, payload->>'text', queue, timeout::text, headers::text, max_attempts, state, \
               order_key, limit_key, fair_key, steps \
             from bugle.jobs",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(rows.len(), 1, "both jobs are alike: {rows:?}");
    assert_eq!(rows[0].get::<_, &str>(1), "it's \\ ok");
    assert_eq!(rows[0].get::<_, Vec<String>>(10), ["one", "two"]);
}

#[tokio::test]
async fn enqueue_can_wait_for_the_result() {
    let database = Database::new().await;
    let registry = bugle::Registry::new()
        .on("add", async |_: bugle::Context, numbers: Vec<i64>| {
            Ok(numbers.iter().sum::<i64>())
        })
        .on("fail", async |_: bugle::Context, _: Value| {
            Err::<(), _>(bugle::Failure::new("never").not_retryable())
        });
    let worker = database.worker(&[("default", 2)], registry);

    let sum = bugle(&database, "owner", &["enqueue", "add", "[1, 2, 39]", "--wait"]).await;
    let failed = bugle(&database, "owner", &["enqueue", "fail", "--wait"]).await;

    assert_eq!((sum.code, sum.out.trim()), (0, "42"), "{}", sum.err);
    assert_eq!(failed.code, 1);
    assert!(failed.err.contains("is failed"), "{}", failed.err);
    worker.stop().await;
}

#[tokio::test]
async fn statistics_and_errors_are_shown_as_tables_and_as_json() {
    let database = Database::new().await;
    let registry = bugle::Registry::new()
        .on("noop", async |_: bugle::Context, _: Value| Ok(()))
        .on("break", async |context: bugle::Context, _: Value| {
            Err::<(), _>(bugle::Failure::new(format!("order {} is bad", context.id())).code("bad_order"))
        });
    let worker = database.worker(&[("default", 4)], registry);
    let owner = database.owner().await;
    for _ in 0..3 {
        enqueue(&owner, "noop").await;
        enqueue(&owner, "break").await;
    }
    wait_until(&owner, "select count(*) = 3 from bugle.jobs where state = 'completed'").await;
    wait_until(&owner, "select count(*) = 3 from bugle.jobs where state = 'retrying'").await;
    worker.stop().await;

    let stats = bugle(&database, "viewer", &["stats", "--json"]).await.json();
    let lines = bugle(&database, "viewer", &["stats", "--jsonl"]).await.out;
    let errors = bugle(&database, "viewer", &["stats", "errors", "--since", "10m"]).await;
    let commands = bugle(&database, "viewer", &["commands", "--json"]).await.json();

    assert_eq!(stats[0]["command"], "break");
    assert_eq!(
        (stats[0]["failed"].clone(), stats[1]["completed"].clone()),
        (json!(3), json!(3))
    );
    assert_eq!(lines.lines().count(), 2);
    assert!(
        errors.out.contains("order # is bad") && errors.out.contains("bad_order"),
        "{}",
        errors.out
    );
    assert_eq!(commands[1]["completed_last_hour"], 3, "{commands}");
    assert!(
        errors.err.contains(
            "bugle jobs restart --state failed --command break --code bad_order --fingerprint 'order # is bad' \
             --ended-since 10m"
        ),
        "{}",
        errors.err
    );
    execute(&owner, "select bugle.set_state_where('failed', p_command => 'break')").await;
    let group = [
        "--command",
        "break",
        "--code",
        "bad_order",
        "--fingerprint",
        "order # is bad",
    ];
    let restarted = [
        &["jobs", "restart", "--state", "failed", "--ended-since", "10m", "--yes"],
        &group[..],
    ]
    .concat();
    assert_eq!(bugle(&database, "owner", &restarted).await.text(), "restarted 3 jobs");
}

#[tokio::test]
async fn policies_are_shown_with_what_they_mean() {
    let database = Database::new().await;

    let all = bugle(&database, "viewer", &["policies", "--json"]).await.json();
    let preview = bugle(
        &database,
        "viewer",
        &["policies", "preview", "default", "-n", "4", "--json"],
    )
    .await
    .json();
    let nothing = bugle(&database, "viewer", &["policies", "preview", "none"]).await;
    let set = [
        "policies",
        "set",
        "hasty",
        "--kind",
        "fixed",
        "--retries",
        "3",
        "--delay",
        "2s",
        "--jitter",
        "0",
    ];
    let set = bugle(&database, "operator", &set).await;
    let changed = bugle(
        &database,
        "operator",
        &["policies", "set", "hasty", "--retries", "5", "--json"],
    )
    .await;
    let wrong = bugle(&database, "operator", &["policies", "set", "hasty", "--jitter", "5"]).await;
    let removed = bugle(
        &database,
        "operator",
        &["policies", "remove", "hasty", "--note", "over"],
    )
    .await;
    let gone = bugle(&database, "operator", &["policies", "delete", "hasty"]).await;

    let default = all
        .as_array()
        .unwrap()
        .iter()
        .find(|policy| policy["name"] == "default")
        .unwrap();
    assert_eq!(default["attempts"], 16);
    let delays: Vec<f64> = preview
        .as_array()
        .unwrap()
        .iter()
        .map(|delay| delay["seconds"].as_f64().unwrap())
        .collect();
    assert_eq!(delays, [5.0, 10.0, 20.0, 40.0]);
    assert_eq!((nothing.code, nothing.err.contains("does not retry")), (1, true));
    assert_eq!(set.text(), "fixed, 3 retries, delay 00:00:02, jitter 0");
    assert_eq!(changed.json()["policy"], "fixed, 5 retries, delay 00:00:02, jitter 0");
    assert!(
        wrong.code == 1 && wrong.err.contains("\"jitter\" must be between 0 and 1, not '5'"),
        "{}",
        wrong.err
    );
    assert_eq!((removed.code, gone.code), (0, 1), "{}", removed.err);
    assert!(gone.err.contains("there is no retry policy 'hasty'"), "{}", gone.err);
}

#[tokio::test]
async fn filters_choose_jobs_for_lists_and_for_verbs() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(
        &owner,
        "insert into bugle.jobs (command, queue) values ('a', 'x'), ('a', 'y'), ('b', 'x');
             update bugle.jobs_live set created_at = now() - interval '3 hours' where command = 'b';
             update bugle.jobs_live set last_error = 'disk FULL at 3' where queue = 'y'",
    )
    .await;
    let ids = async |arguments: &[&str]| {
        let said = bugle(&database, "viewer", &[&["jobs", "list", "--json"], arguments].concat()).await;
        said.json().as_array().unwrap().len()
    };

    assert_eq!(ids(&["--since", "1h"]).await, 2);
    assert_eq!(ids(&["--error-like", "disk full"]).await, 1);
    assert_eq!(ids(&["--ended-since", "1h"]).await, 0);
    execute(&owner, "select bugle.set_state(3, 'failed')").await;
    assert_eq!(ids(&["--ended-since", "1h"]).await, 1, "it was enqueued 3 hours ago");
    assert_eq!(ids(&["--reason", "operator"]).await, 1);
    assert_eq!(ids(&["--code", "e1"]).await, 0);
    assert_eq!(ids(&["--fingerprint", "disk FULL at #"]).await, 1);
    assert_eq!(ids(&["--error-like", "disk % 4"]).await, 0);
    assert_eq!(ids(&["--queue", "x", "--command", "a", "--state", "ready"]).await, 1);
    let asked = bugle(
        &database,
        "owner",
        &["jobs", "cancel", "--error-like", "disk", "--dry-run"],
    )
    .await;
    assert!(asked.out.contains("would cancel 1 job "), "{}", asked.out);
    let unconfirmed = bugle(&database, "owner", &["jobs", "cancel", "--since", "1d"]).await;
    assert_eq!(unconfirmed.code, 1);
    assert!(unconfirmed.err.contains("nothing was changed"), "{}", unconfirmed.err);
    let both = bugle(&database, "owner", &["jobs", "cancel", "1", "--queue", "x"]).await;
    assert_eq!((both.code, both.err.contains("not both")), (1, true));
    let done = bugle(&database, "owner", &["jobs", "cancel", "--error-like", "disk", "--yes"]).await;
    assert_eq!(done.code, 0, "{}", done.err);
    assert_eq!(ids(&["--state", "cancelled"]).await, 1);
}

#[tokio::test]
async fn a_filter_changes_all_that_match_step_by_step_and_tells_what_it_left() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(
        &owner,
        "insert into bugle.jobs (command) select 'send' from generate_series(1, 1502);
         insert into bugle.jobs (command, unique_key) values ('send', 'one');
         select bugle.set_state_where('failed', p_command => 'send', p_limit => null);
         insert into bugle.jobs (command, unique_key) values ('send', 'one')",
    )
    .await;
    let restart = async |more: &[&str]| {
        let arguments = [&["jobs", "restart", "--command", "send", "--state", "failed"], more].concat();
        bugle(&database, "owner", &arguments).await
    };
    let failed = "select count(*) from bugle.jobs where state = 'failed'";

    let dry = restart(&["--dry-run"]).await;
    let asked = restart(&["--limit", "2"]).await;
    let some = restart(&["--limit", "2", "--yes"]).await;
    let oldest: Vec<i64> = query_value(
        &owner,
        "select array_agg(id order by id) from bugle.jobs where state = 'ready' and unique_key is null",
    )
    .await;
    let rest = restart(&["--yes"]).await;
    let left: i64 = query_value(&owner, failed).await;
    let again = restart(&["--yes", "--json"]).await;
    let plan = restart(&["--dry-run", "--json"]).await;
    let nothing = bugle(&database, "owner", &["jobs", "restart", "--queue", "no", "--json"]).await;
    let wrong = bugle(&database, "owner", &["jobs", "restart", "--state", "running", "--yes"]).await;
    let none = bugle(&database, "owner", &["jobs", "restart", "--queue", "no", "--yes"]).await;

    assert!(
        dry.out.starts_with("would restart 1503 jobs (1503 failed): 1 2 3 "),
        "{}",
        dry.out
    );
    assert!(
        asked.code == 1
            && asked
                .err
                .contains("would restart the oldest 2 of 1503 jobs (1503 failed), leaving 1501"),
        "{}",
        asked.err
    );
    assert_eq!((some.text(), oldest), ("restarted 2 jobs; 1501 left", vec![1, 2]));
    assert_eq!((rest.code, again.code), (1, 1), "as by ids");
    assert_eq!(
        rest.out.trim(),
        "restarted 1500 jobs; 1 refused (cannot restart job 1503: job 1504 with the same unique_key is live)"
    );
    assert_eq!(left, 1);
    let again = again.json();
    let (plan, nothing) = ((plan.code, plan.json()), (nothing.code, nothing.json()));
    assert_eq!(
        (plan.0, &plan.1["dry_run"], &plan.1["matched"], &plan.1["done"]),
        (0, &json!(true), &json!(1), &json!(0))
    );
    assert_eq!(
        (nothing.0, &nothing.1["matched"], &nothing.1["done"]),
        (0, &json!(0), &json!(0))
    );
    assert_eq!(
        [&again["matched"], &again["done"], &again["refused"], &again["left"]],
        [&json!(1), &json!(0), &json!(1), &json!(0)]
    );
    assert!(
        wrong.err.contains("restart is not allowed from \"p_state\" 'running'")
            && wrong.err.contains("failed, cancelled"),
        "{}",
        wrong.err
    );
    assert_eq!(
        none.text(),
        "no job matches; restart is allowed from: failed, cancelled"
    );
}

#[tokio::test]
async fn the_doctor_tells_that_the_clock_of_the_database_was_set_back() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let step = "update bugle.keeping set ticked_at = clock_timestamp() + interval '1 hour'";
    execute(&owner, step).await;

    let unnoticed = bugle(&database, "viewer", &["doctor"]).await;
    execute(&owner, "select bugle.run_maintenance(0, false)").await;
    let noticed = bugle(&database, "viewer", &["doctor"]).await;

    assert_eq!(unnoticed.code, 1, "{}", unnoticed.out);
    assert!(
        unnoticed.out.contains("no worker has handled it yet"),
        "{}",
        unnoticed.out
    );
    assert!(
        noticed.out.contains("the database's clock was set back by 59m"),
        "{}",
        noticed.out
    );
    assert_eq!(noticed.code, 0, "{}", noticed.out);
}

#[tokio::test]
async fn the_doctor_reports_a_detached_history_partition_and_how_to_repair_it() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let detach = "do $$ begin
        execute format('alter table bugle.jobs_failed detach partition bugle.%I', (select min(leaf) from \
        bugle.history_days where kind = 'failed'));
        end $$";
    execute(&owner, detach).await;

    let before = bugle(&database, "viewer", &["doctor"]).await;
    while query_value(&owner, "select bugle.upkeep() is not null").await {}
    let after = bugle(&database, "viewer", &["doctor"]).await;

    assert_eq!(before.code, 1, "{}", before.out);
    assert!(before.out.contains("was detached manually"), "{}", before.out);
    assert!(before.out.contains("select bugle.upkeep();"), "{}", before.out);
    assert_eq!(after.code, 0, "{}", after.out);
}

#[tokio::test]
async fn the_doctor_reports_a_part_of_all_jobs_that_was_detached_and_how_to_repair_it() {
    let database = Database::new().await;
    let owner = database.owner().await;
    for part in ["jobs_failed", "jobs_ended", "jobs_live"] {
        execute(&owner, &format!("alter table bugle.jobs detach partition bugle.{part}")).await;

        let before = bugle(&database, "viewer", &["doctor"]).await;
        while query_value(&owner, "select bugle.upkeep() is not null").await {}
        let after = bugle(&database, "viewer", &["doctor"]).await;

        assert_eq!(before.code, 1, "{}", before.out);
        let told = format!("the table bugle.{part} was detached from bugle.jobs manually");
        assert!(before.out.contains(&told), "{}", before.out);
        assert!(before.out.contains("select bugle.upkeep();"), "{}", before.out);
        assert_eq!(after.code, 0, "{}", after.out);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_names_a_worker_whose_executors_hang_or_that_is_short_of_something() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let worker = database.worker(&[("default", 1)], common::noop());
    common::wait_until(&owner, "select count(*) = 1 from bugle.workers where state = 'alive'").await;
    let note = "select bugle.note_condition(r.id, r.nonce, 'too many open files', false, '{7,8}') \
                from bugle.registrations r";
    execute(&owner, note).await;

    let report = bugle(&database, "viewer", &["doctor"]).await;

    assert!(
        report
            .out
            .contains("the executors of 2 jobs do not stop at their time limit; the first is that of job 7"),
        "{}",
        report.out
    );
    assert!(report.out.contains("bugle jobs explain 7"), "{}", report.out);
    assert!(
        report.out.contains("starts fewer jobs: too many open files"),
        "{}",
        report.out
    );
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_names_a_paused_worker_and_what_resumes_it() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let worker = database.worker(&[("default", 1)], common::noop());
    common::wait_until(&owner, "select count(*) = 1 from bugle.workers where state = 'alive'").await;
    let pause = "select bugle.pause_worker(id) from bugle.workers";
    execute(&owner, pause).await;
    let id = enqueue(&owner, "noop").await;

    let report = bugle(&database, "viewer", &["doctor", "--json"]).await.json();

    let findings = report.as_array().expect("findings");
    let paused = findings
        .iter()
        .find(|finding| finding["message"].as_str().unwrap().contains("paused"));
    let paused = paused.unwrap_or_else(|| panic!("{report:#}"));
    assert!(!report.to_string().contains("no live worker serves"), "{report:#}");
    let fix = paused["fix"].as_str().expect("what resumes it");
    database
        .connect("operator")
        .await
        .batch_execute(fix)
        .await
        .expect("it runs");
    common::wait_for_state(&owner, id, "completed").await;
    worker.stop().await;
}

#[tokio::test]
async fn the_doctor_finds_what_is_wrong_and_says_what_fixes_it() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let find = |report: &Value, check: &str, level: &str| {
        let findings = report.as_array().unwrap().clone();
        findings
            .into_iter()
            .find(|finding| finding["check"] == check && finding["level"] == level)
    };

    let healthy = bugle(&database, "owner", &["doctor", "--json"]).await;
    let report = healthy.json();
    assert_eq!(healthy.code, 0, "{report:#}");
    for check in [
        "server",
        "schema",
        "pooler",
        "clocks",
        "autovacuum",
        "notifications",
        "connections",
        "roles",
        "history",
        "queues",
    ] {
        assert!(find(&report, check, "ok").is_some(), "{check}: {report:#}");
    }
    assert!(find(&report, "workers", "warn").is_some(), "there is none");

    enqueue(&owner, "nobody").await;
    execute(
        &owner,
        "insert into bugle.queues (name) values ('mail');
             select bugle.pause_queue('mail');
             alter table bugle.jobs_live set (autovacuum_enabled = false)",
    )
    .await;
    let unhealthy = bugle(&database, "owner", &["doctor", "--json"]).await;
    let report = unhealthy.json();
    assert_eq!(unhealthy.code, 1);
    let autovacuum = find(&report, "autovacuum", "fail").expect("it is off");
    let fix = autovacuum["fix"].as_str().unwrap();
    execute(&owner, fix).await;
    let paused = report
        .as_array()
        .unwrap()
        .iter()
        .find(|f| f["message"].as_str().unwrap().contains("\"mail\""))
        .unwrap();
    execute(&owner, paused["fix"].as_str().unwrap()).await;
    assert!(unhealthy.out.contains("no live worker serves command"), "{report:#}");
    let nobody = find(&report, "workers", "fail").unwrap_or_else(|| panic!("{report:#}"));
    assert_eq!(nobody["message"], "no worker is alive, and 1 job wait: no jobs run");
    execute(&owner, "select bugle.cancel_where(p_command => 'nobody')").await;

    let fixed = bugle(&database, "owner", &["doctor"]).await;
    assert_eq!(fixed.code, 0, "{}", fixed.out);
    let seen_by_viewer = bugle(&database, "viewer", &["doctor"]).await;
    assert_eq!(seen_by_viewer.code, 0, "{} {}", seen_by_viewer.out, seen_by_viewer.err);
}

#[tokio::test]
async fn the_doctor_reports_a_command_that_always_fails_and_dead_letters_that_grow() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let send = || async { Err::<(), _>(bugle::Failure::new("connection refused on port 587").not_retryable()) };
    let registry = common::noop().on("send", move |_: bugle::Context, _: Value| send());
    let worker = database.worker(&[("default", 4)], registry);
    execute(
        &owner,
        "insert into bugle.jobs (command) select c from unnest(array['send', 'noop']) c, generate_series(1, 12)",
    )
    .await;
    wait_until(&owner, "select count(*) = 0 from bugle.jobs_live").await;
    worker.stop().await;
    // it worked until it began to fail, and a few still do
    let worked = async |minutes: i32, completed: i32| {
        let sql = format!(
            "insert into bugle.minutes \
             select minute - interval '{minutes} minutes', queue, command, -1, {completed}, 0, others, run_seconds, \
               wait_seconds, run, wait \
             from bugle.minutes where command = 'send' and failed > 0 limit 1"
        );
        execute(&owner, &sql).await;
    };
    worked(30, 5000).await;
    let found = async |check: &str| {
        let report = bugle(&database, "viewer", &["doctor", "--json"]).await;
        assert_eq!(report.code, 1, "{}", report.out);
        let findings = report.json().as_array().unwrap().clone();
        findings
            .into_iter()
            .find(|finding| finding["check"] == check)
            .expect("a finding")
    };

    let always = found("commands").await;
    let grow = found("dead letters").await;

    assert_eq!(always["level"], "fail", "{always}");
    assert_eq!(
        always["message"],
        "command \"send\" always fails: all 12 attempts of the last 10 minutes; mostly: connection refused on port #"
    );
    assert_eq!(grow["level"], "warn", "{grow}");
    assert_eq!(
        grow["message"],
        "12 jobs failed for good in the last hour, 0 in the hour before; mostly command \"send\", not retryable"
    );
    let fix = grow["fix"].as_str().unwrap();
    assert!(
        fix.contains("bugle stats errors") && fix.contains("--ended-since 1h"),
        "{grow}"
    );
    execute(
        &owner,
        "update bugle.minutes set failed = 10 * failed where command = 'send'",
    )
    .await;
    worked(5, 5).await;
    let nearly = found("commands").await["message"].to_string();
    assert!(
        nearly.contains("nearly always fails: 120 of 125 attempts of the last 10 minutes"),
        "{nearly}"
    );
}

#[tokio::test]
async fn a_misspelled_name_is_told_and_never_waited_for_without_end() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let worker = database.worker(&[("mail", 2)], common::noop());
    wait_until(&owner, "select count(*) = 1 from bugle.workers where state = 'alive'").await;
    let bugle = async |arguments: &[&str]| bugle(&database, "owner", arguments).await;

    let right = bugle(&["enqueue", "noop", "--queue", "mail", "--wait"]).await;
    let waited = bugle(&["enqueue", "nop", "--queue", "mail", "--wait"]).await;
    let elsewhere = bugle(&["enqueue", "noop", "--queue", "mial", "--wait", "--wait-timeout", "1ms"]).await;
    let unwarned = enqueued_by_an_enqueuer(&database).await;
    let limited = bugle(&["queues", "set", "mial", "--max-running", "1"]).await;
    let command = bugle(&["queues", "limit-command", "nopo", "4"]).await;
    let with_jobs = bugle(&["queues", "remove", "mial"]).await;
    bugle(&["jobs", "cancel", "--queue", "mial", "--yes"]).await.text();
    let removed = bugle(&["queues", "delete", "mial"]).await;
    let paused = bugle(&["queues", "pause", "nosuch"]).await;
    worker.stop().await;
    let nobody = bugle(&["jobs", "wait", "2", "--timeout", "1ms"]).await;

    assert_eq!((right.text(), &*right.err), ("null", ""));
    assert_eq!(waited.code, 1);
    for part in [
        "warning: no live worker serves command \"nop\" in queue \"mail\"; did you mean \"noop\"?",
        "job 2 is still ready after 5s",
        "hint: bugle jobs explain 2",
    ] {
        assert!(waited.err.contains(part), "{part} in {}", waited.err);
    }
    assert!(
        elsewhere
            .err
            .contains("no live worker serves queue \"mial\"; did you mean \"mail\"?"),
        "{}",
        elsewhere.err
    );
    assert_eq!(
        (unwarned.code, &*unwarned.err),
        (0, ""),
        "an enqueuer may not see workers"
    );
    assert_eq!(limited.text(), "max_running 1");
    assert!(limited.err.contains("did you mean \"mail\"?"), "{}", limited.err);
    assert!(
        command.code == 0 && command.err.contains("serves command \"nopo\"; did you mean \"noop\"?"),
        "{}",
        command.err
    );
    assert!(
        with_jobs.code == 1 && with_jobs.err.contains("queue 'mial' has live jobs"),
        "{}",
        with_jobs.err
    );
    assert_eq!(removed.code, 0, "{}", removed.err);
    assert!(paused.err.contains("there is no queue 'nosuch'"), "{}", paused.err);
    assert!(
        nobody.code == 1 && nobody.err.contains("no worker is running"),
        "{}",
        nobody.err
    );
}

async fn enqueued_by_an_enqueuer(database: &Database) -> CliRun {
    bugle(database, "enqueuer", &["enqueue", "nop"]).await
}

#[tokio::test]
async fn the_doctor_says_when_there_is_no_schema() {
    let database = Database::empty().await;

    let said = bugle(&database, "owner", &["doctor"]).await;

    assert_eq!(said.code, 1);
    assert!(
        said.out.contains("this database has no Bugle schema") && said.out.contains("bugle migrate"),
        "{}",
        said.out
    );
}

#[tokio::test]
async fn config_show_tells_what_is_in_effect_and_no_secret() {
    let folder = Folder::new();
    let file = folder.write(
        "worker.toml",
        "drain = \"5s\"\ntoken = \"env:THE_TOKEN\"\n[queues]\nmail = 3\n[commands.x]\nprogram = ['true']",
    );
    let output = Command::new(BUGLE)
        .args(["config", "show", "--json", "--name", "by flag", "--config"])
        .arg(file)
        .env("BUGLE_DATABASE_URL", "postgres://ada:s3cret@db/shop")
        .env("THE_TOKEN", "t0k3n-t0k3n-t0k3n-t0k3n")
        .env("BUGLE_POOL_SIZE", "3")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));

    assert_eq!(all["drain"], "5s");
    assert_eq!(all["queues.mail"], 3);
    assert_eq!(all["pool_size"], 3);
    assert_eq!(all["name"], "by flag");
    assert_eq!(
        (all["database.host"].clone(), all["database.password"].clone()),
        (json!("db"), json!("…"))
    );
    assert!(!text.contains("s3cret") && !text.contains("t0k3n"), "{text}");
}

#[tokio::test]
async fn watch_prints_repeatedly() {
    let database = Database::new().await;
    enqueue(&database.owner().await, "noop").await;
    let mut child = Command::new(BUGLE)
        .args(["queues", "--jsonl", "--watch", "100ms"])
        .env("BUGLE_DATABASE_URL", database.url("viewer"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();

    let lines = tokio::task::spawn_blocking(move || {
        use std::io::{BufRead, BufReader};
        let lines: Vec<String> = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .take(3)
            .flatten()
            .collect();
        child.kill().unwrap();
        child.wait().unwrap();
        lines
    })
    .await
    .unwrap();

    assert_eq!(lines.len(), 3);
    assert!(lines.iter().all(|line| line.contains("\"ready\":1")), "{lines:?}");
}

#[tokio::test]
async fn queues_can_be_set_by_the_owner_and_completions_are_printed() {
    let database = Database::new().await;

    let set = bugle(
        &database,
        "owner",
        &["queues", "set", "pay", "--synchronous-claims", "true"],
    )
    .await;
    let refused = bugle(
        &database,
        "viewer",
        &["queues", "set", "pay", "--synchronous-claims", "true"],
    )
    .await;
    let bash = bugle(&database, "viewer", &["completions", "bash"]).await;
    let top = bugle(&database, "viewer", &["top"]).await;

    assert_eq!(set.code, 0, "{}", set.err);
    let row = database
        .owner()
        .await
        .query_one("select synchronous_claims from bugle.queues where name = 'pay'", &[])
        .await
        .unwrap();
    assert!(row.get::<_, bool>(0));
    assert_eq!(refused.code, 1);
    assert!(
        bash.out.contains("complete -F _bugle"),
        "{}",
        &bash.out[..200.min(bash.out.len())]
    );
    assert!(top.err.contains("top needs a terminal"), "{}", top.err);
}
