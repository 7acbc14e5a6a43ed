//! The benchmark measures what it says and accounts for every job. No time is judged here.

mod common;

use std::io::{BufRead, BufReader};
use std::process::Command;

use common::BUGLE;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Run the tiny version of a benchmark on the tests' server and return its lines.
async fn bench(arguments: &[&str]) -> Vec<Value> {
    let server = bugle::private_postgres::shared(BUGLE.as_ref());
    let mut command = Command::new(BUGLE);
    command
        .args(["bench", "--quick", "--json", "--database-url", &server])
        .args(arguments);
    let child = command
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("bugle starts");
    let process = child.id();

    let output = tokio::task::spawn_blocking(move || child.wait_with_output())
        .await
        .expect("a thread")
        .expect("it ends");

    assert!(output.status.success(), "{arguments:?}: {}", output.status);
    assert_eq!(databases_of(&server, process).await, 0, "nothing is left behind");
    let lines = String::from_utf8(output.stdout).expect("text");
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .inspect(|line| check(arguments[0], line))
        .collect()
}

async fn databases_of(server: &str, process: u32) -> i64 {
    let client = common::connect(&server.parse().expect("a connection string")).await;
    let question = "select count(*) from pg_database where datname like 'bugle\\_bench\\_' || $1 || '\\_%'";
    client
        .query_one(question, &[&process.to_string()])
        .await
        .expect("an answer")
        .get(0)
}

/// Every line has these, and whatever is measured is more than nothing.
fn check(name: &str, line: &Value) {
    assert_eq!(line["bench"], name, "{line}");
    assert!(line["what"].as_str().is_some_and(|what| !what.is_empty()), "{line}");
    assert!(line["n"].as_u64().is_some_and(|n| n > 0), "{line}");
    assert!(line["notes"].is_object(), "{line}");
    for field in ["seconds", "per_s", "ratio_to_floor"] {
        if let Some(value) = line.get(field) {
            assert!(value.as_f64().is_some_and(|value| value > 0.0), "{field} of {line}");
        }
    }
    if line.get("p50_ms").is_some() {
        let ranks = ["p50_ms", "p95_ms", "p99_ms", "max_ms"].map(|rank| line[rank].as_f64().expect("a time"));
        assert!(ranks.is_sorted(), "{line}");
    }
}

fn named<'a>(lines: &'a [Value], what: &str) -> &'a Value {
    lines
        .iter()
        .find(|line| line["what"] == what)
        .unwrap_or_else(|| panic!("no {what:?} in {lines:#?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_says_what_each_kind_of_limit_and_key_costs() {
    let lines = bench(&[
        "limits",
        "--jobs",
        "300",
        "--keys",
        "20",
        "--workers",
        "2",
        "--slots",
        "20",
    ])
    .await;

    assert_eq!(lines.len(), 9);
    assert_eq!(named(&lines, "no limits, 2 workers")["ratio_to_floor"], 1.0);
    assert_eq!(named(&lines, "order keys in blocks, 2 workers")["n"], 300);
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_says_how_fast_a_backlog_goes_next_to_the_floor() {
    let lines = bench(&["drain", "--jobs", "700", "--workers", "1,2"]).await;

    for what in ["1 worker, history kept", "2 workers, history kept"] {
        let line = named(&lines, what);
        assert_eq!(line["n"], 700);
        assert!(
            line["per_s"].is_number() && line["ratio_to_floor"].is_number(),
            "{line}"
        );
    }
    named(&lines, "floor: claim 1000, delete 1000");
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_can_keep_no_history() {
    let lines = bench(&["drain", "--jobs", "700", "--keep-none"]).await;

    assert_eq!(named(&lines, "1 worker, none kept")["n"], 700);
}

#[tokio::test(flavor = "multi_thread")]
async fn host_compares_executors_in_other_languages_with_one_in_rust() {
    let lines = bench(&["host", "--jobs", "300", "--program-jobs", "3", "--pickups", "5"]).await;

    assert_eq!(named(&lines, "drain, Rust executor")["ratio_to_floor"], 1.0);
    assert_eq!(named(&lines, "pickup, Rust executor")["n"], 5);
    let measured = |what: &str| lines.iter().any(|line| line["what"] == what);
    for (interpreter, name) in [("python3", "Python host"), ("node", "Node host")] {
        let is_here = Command::new(interpreter).arg("--version").output();
        let is_here = is_here.is_ok_and(|output| output.status.success());
        assert_eq!(measured(&format!("drain, {name}")), is_here, "{interpreter}");
        if is_here {
            let drained = named(&lines, &format!("drain, {name}"));
            assert_eq!(
                (&drained["n"], &drained["notes"]["bar_to_rust"]),
                (&300.into(), &0.3.into())
            );
            assert!(named(&lines, &format!("pickup, {name}"))["p50_ms"].is_number());
        }
    }
    if measured("drain, Python host") {
        assert_eq!(named(&lines, "drain, Python program per job")["n"], 3);
        assert!(named(&lines, "drain, Python host")["notes"]["ratio_to_program"].is_number());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operate_says_how_fast_each_verb_changes_what_matches_a_filter() {
    let lines = bench(&["operate", "--jobs", "300"]).await;

    for verb in ["pause", "set_priority", "cancel", "restart", "remove"] {
        let line = named(&lines, verb);
        assert_eq!(line["n"], 300);
        assert!(
            line["per_s"].is_number() && line["ratio_to_floor"].is_number(),
            "{line}"
        );
    }
    named(&lines, "floor: lock, update, record");
}

#[tokio::test(flavor = "multi_thread")]
async fn due_compares_jobs_that_become_due_at_once_with_ready_ones() {
    let lines = bench(&["due", "--jobs", "1500"]).await;

    let line = named(&lines, "due in the same second");
    assert_eq!(line["n"], 1500);
    assert!(
        line["per_s"].is_number() && line["ratio_to_floor"].is_number(),
        "{line}"
    );
    named(&lines, "floor: ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_and_program_compare_commands_without_code_with_a_floor() {
    let lines = bench(&["sql", "--jobs", "50"]).await;
    assert_eq!(named(&lines, "sql command")["n"], 50);
    assert!(named(&lines, "sql command")["ratio_to_floor"].is_number());
    let batched = named(&lines, "sql command, batch = 50");
    assert!(batched["reached"].is_boolean(), "{batched}");
    named(&lines, "floor: Rust executor");

    let lines = bench(&["program", "--jobs", "10"]).await;
    assert_eq!(named(&lines, "program command")["n"], 10);
    assert!(named(&lines, "program command")["ratio_to_floor"].is_number());
    named(&lines, "floor: bare loop");
}

#[tokio::test(flavor = "multi_thread")]
async fn pickup_counts_from_the_call_and_from_the_commit() {
    let lines = bench(&["pickup", "--jobs", "20", "--workers", "2"]).await;

    for what in ["2 idle workers: INSERT call → start", "2 idle workers: commit → start"] {
        let line = named(&lines, what);
        assert_eq!(line["n"], 20);
        assert!(line["p99_ms"].is_number(), "{line}");
    }
    // none from the commit: a worker may start before the client has heard of its own commit
    assert!(named(&lines, "2 idle workers: INSERT call → start")["ratio_to_floor"].is_number());
    let calls = &named(&lines, "2 idle workers: INSERT call → start")["notes"]["claim_calls_per_job"];
    assert!(calls.as_f64().is_some_and(|calls| calls > 0.0), "{calls}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pickup_is_also_measured_while_workers_of_an_older_version_hold_the_bell() {
    let lines = bench(&["pickup", "--mixed", "--jobs", "20", "--workers", "2"]).await;

    for what in ["INSERT call → start", "commit → start"] {
        let what = format!("2 idle workers, as many with an older version: {what}");
        assert_eq!(named(&lines, &what)["n"], 20);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn enqueue_compares_with_a_table_without_triggers_and_with_a_notify_per_job() {
    let lines = bench(&["enqueue", "--clients", "3", "--bulk", "500"]).await;

    for what in ["with worker", "no worker", "no triggers", "NOTIFY per job"] {
        let line = named(&lines, &format!("3 clients, {what}"));
        assert!(
            line["per_s"].is_number() && line["ratio_to_floor"].is_number(),
            "{line}"
        );
    }
    for what in ["bulk INSERT … SELECT", "bulk COPY"] {
        assert_eq!(named(&lines, what)["n"], 500);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn steady_accounts_for_every_job_of_every_window() {
    let lines = bench(&["steady", "--rate", "100", "--seconds", "1"]).await;

    let (all, windows) = lines.split_last().expect("lines");
    assert_eq!(all["n"], 100);
    assert_eq!(windows.iter().map(|line| line["n"].as_u64().unwrap()).sum::<u64>(), 100);
    assert!(
        all["notes"]["wal_bytes_per_job"]
            .as_f64()
            .is_some_and(|bytes| bytes > 0.0),
        "{all}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn pinned_compares_the_start_with_the_end() {
    let lines = bench(&["pinned", "--jobs", "600", "--pickups", "5"]).await;

    for site in ["snapshot held", "no snapshot"] {
        let throughput = named(&lines, &format!("{site}: throughput"));
        assert_eq!(throughput["n"], 600);
        assert!(
            throughput["notes"]["last_to_first"]
                .as_f64()
                .is_some_and(|ratio| ratio > 0.0),
            "{throughput}"
        );
        for when in ["before", "after"] {
            assert_eq!(named(&lines, &format!("{site}: pickup {when}"))["n"], 5);
        }
        let slower = named(&lines, &format!("{site}: pickup p99, after to before"));
        assert!(slower["ratio_to_floor"].is_number(), "{slower}");
    }
    let kept = named(&lines, "snapshot held: last to first, to that without");
    assert!(kept["ratio_to_floor"].is_number(), "{kept}");
}

#[tokio::test(flavor = "multi_thread")]
async fn backlog_compares_the_sizes_with_the_smallest() {
    let lines = bench(&["backlog", "--sizes", "300,1000", "--claims", "2"]).await;

    assert_eq!(lines.len(), 4);
    assert_eq!(named(&lines, "claim of 100, 300 waiting")["ratio_to_floor"], 1.0);
    assert!(named(&lines, "enqueue, 1000 waiting")["ratio_to_floor"].is_number());
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn idle_tells_what_a_worker_costs() {
    let lines = bench(&["idle", "--workers", "1"]).await;

    let notes = &named(&lines, "1 idle worker")["notes"];
    assert!(notes["resident_mb"].as_f64().is_some_and(|size| size > 1.0), "{notes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn payload_goes_through_every_size() {
    let lines = bench(&["payload", "--jobs", "20"]).await;

    let sizes: Vec<&str> = lines.iter().filter_map(|line| line["what"].as_str()).collect();
    assert_eq!(sizes, ["100 bytes", "1000 bytes", "10000 bytes", "100000 bytes"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn floor_measures_every_shape() {
    let lines = bench(&["floor", "--jobs", "1000", "--batch", "100", "--clients", "2"]).await;

    for what in ["bulk insert", "claim 100, delete 100", "one-row commits, 2 clients"] {
        assert!(named(&lines, what)["per_s"].is_number());
    }
    for what in ["NOTIFY round trip", "NOTIFY and claim", "insert, NOTIFY and claim"] {
        assert!(named(&lines, what)["p50_ms"].is_number());
    }
}

#[cfg(feature = "web")]
#[tokio::test(flavor = "multi_thread")]
async fn web_opens_every_page_and_counts_what_watching_costs() {
    let lines = bench(&["web", "--finished", "500", "--live", "300"]).await;

    let (bars, lines) = lines.split_last().expect("lines");
    let (watching, pages) = lines.split_last().expect("lines");
    assert!(
        bars["notes"]["bar"] == "PASS" || bars["notes"]["bar"] == "MISSED",
        "{bars}"
    );
    for name in ["/jobs/bulk", "/workflows/{id}", "/commands/command_17"] {
        named(pages, &format!("first byte of {name}, 500 finished, 300 live"));
    }
    for page in pages {
        assert!(page["notes"]["bar"].is_string(), "{page}");
        assert!(page["p50_ms"].is_number(), "{page}");
        // whatever the size of the database
        let size = page["notes"]["kilobytes"].as_f64().expect("a size");
        assert!(size > 1.0 && size <= 100.0, "{page}");
    }
    named(pages, "first byte of /errors, 500 finished, 300 live");
    assert_eq!(watching["what"], "2 browsers watch, 500 finished, 300 live");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_harness_can_drive_it_by_terms_common_to_all_job_runners() {
    let database = common::Database::empty().await;
    let peer = |words: &[&str]| {
        let mut command = Command::new(BUGLE);
        command
            .args(["bench", "peer"])
            .args(words)
            .env("PGURL", database.url("owner"));
        command
    };
    let said = |mut command: Command| {
        let output = command.output().expect("bugle runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    said(peer(&["setup"]));
    assert!(said(peer(&["bulk", "50", "20"])).starts_with("{\"seconds\": "));
    assert!(said(peer(&["single", "10", "2"])).starts_with("{\"seconds\": "));
    assert!(said(peer(&["rate", "100", "0.1", "2"])).starts_with("{\"produced\": 10, "));
    assert_eq!(said(peer(&["sleepjob", "1"])), "{}\n");

    let mut worker = peer(&["worker", "5", "50"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("bugle starts");
    let output = BufReader::new(worker.stdout.take().expect("its output"));
    let lines = common::Shared::<Vec<String>>::default();
    let heard = lines.clone();
    let listener = std::thread::spawn(move || {
        for line in output.lines() {
            heard.lock().unwrap().push(line.expect("text"));
        }
    });
    let count = |word: &str| lines.lock().unwrap().iter().filter(|l| l.starts_with(word)).count();
    let all_is_said = || ["READY ", "HANDLED 50 ", "LAT ", "END "].map(count) == [1, 1, 10, 1];
    common::eventually("every job was handled", all_is_said).await;
    let client = database.owner().await;
    common::wait_until(
        &client,
        "select count(*) = 71 from bugle.jobs where state = 'completed'",
    )
    .await;
    kill_process(Pid::from_child(&worker), Signal::TERM).expect("it runs");
    worker.wait().expect("it ends");
    listener.join().expect("its last line");

    assert_eq!(["FIRST ", "START "].map(count), [1, 1]);
    assert_eq!(lines.lock().unwrap().last().unwrap(), "STATS 60 50 10");
}

#[tokio::test(flavor = "multi_thread")]
async fn fleet_compares_one_worker_with_one_for_each_database_and_measures_many_workers() {
    let lines = bench(&["fleet"]).await;

    let one = named(&lines, "2 databases, one worker for all");
    assert!(
        one["notes"]["ratio_to_one_for_each"]
            .as_f64()
            .is_some_and(|ratio| ratio > 0.0),
        "{one}"
    );
    named(&lines, "2 databases, one worker for each");
    for flood in ["no jobs", "500 jobs"] {
        let others = named(&lines, &format!("1 of 2 databases, {flood} in the other"));
        assert!(others["p99_ms"].as_f64().is_some_and(|time| time > 0.0), "{others}");
    }
    let idle = named(&lines, "3 workers: idle");
    assert_eq!(idle["notes"]["connections_per_worker"], 2.0, "{idle}");
    // each worker holds at least the lock that proves its life
    assert!(
        idle["notes"]["locks"].as_i64().is_some_and(|locks| locks >= 3),
        "{idle}"
    );
    for what in ["started", "one job", "a burst"] {
        named(&lines, &format!("3 workers: {what}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fleet_kills_and_restarts_only_servers_of_its_own() {
    let run = Command::new(BUGLE)
        .args([
            "bench",
            "--quick",
            "--json",
            "fleet",
            "--databases",
            "2",
            "--jobs",
            "50",
            "--workers",
            "2",
        ])
        .output()
        .expect("bugle runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let lines = String::from_utf8(run.stdout).expect("text");
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();

    for phase in ["before", "while one is down", "after its restart"] {
        let line = named(&lines, &format!("1 of 2 databases, {phase}"));
        assert!(line["per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{line}");
        assert!(line["notes"].get("median_to_before").is_some(), "{line}");
    }
    named(&lines, "2 workers: restart of the server");
}
