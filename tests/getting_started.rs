//! The steps of docs/getting-started.md work: its files, its statements and its script are taken from the
//! page.
#![cfg(target_os = "linux")] // what is left is looked for in /proc

mod common;
#[path = "common/leftovers.rs"]
mod leftovers;
#[allow(dead_code)] // only one of the languages is tried here
#[path = "examples/runtime.rs"]
mod runtime;

use std::io::{BufRead, BufReader};
use std::process::Command;

use common::{BUGLE, Folder, connect, execute, query_value, wait_until};
use leftovers::Marked;
use rustix::process::Signal;

/// What stands between the fences of the page that begin with this word.
fn blocks(kind: &str) -> Vec<String> {
    let page = include_str!("../docs/getting-started.md");
    let begin = format!("```{kind}\n");
    page.split(&begin)
        .skip(1)
        .map(|rest| rest.split("```").next().expect("an end").to_owned())
        .collect()
}

#[tokio::test]
async fn the_first_job_runs_from_psql_and_from_another_language() {
    let folder = Folder::new();
    folder.write("bugle.toml", &blocks("toml,worker")[0]);
    let scripts = blocks("python");
    folder.write("greet.py", &scripts[0]);
    let Some(mut enqueue) = runtime::python(&folder.write("enqueue.py", &scripts[1])).await else {
        return;
    };
    let mut dev = Marked::start(
        Command::new(BUGLE)
            .arg("dev")
            .current_dir(folder.path())
            .env_remove("DATABASE_URL")
            .env_remove("BUGLE_DATABASE_URL"),
    );
    let server = dev.folder();
    let lines = BufReader::new(dev.process.stdout.take().expect("a pipe")).lines();
    let url = lines
        .map(|line| line.expect("text"))
        .find_map(|line| Some(line.trim().strip_prefix("psql '")?.trim_end_matches('\'').to_owned()))
        .expect("a line for psql");
    let client = connect(&url.parse().expect("a connection string")).await;

    let (first, rest) = blocks("sql")
        .split_first()
        .map(|(a, b)| (a.clone(), b.to_vec()))
        .unwrap();
    execute(&client, &first).await;
    wait_until(
        &client,
        "select exists (select from bugle.jobs where state = 'completed' and result->>'greeting' = 'Hello, Ada!')",
    )
    .await;
    // the last one calls off what fails: when it has failed
    let (last, between) = rest.split_last().unwrap();
    for statement in between {
        execute(&client, statement).await;
    }
    wait_until(
        &client,
        "select exists (select from bugle.jobs where state = 'retrying' and last_error_code = 'exit_1')",
    )
    .await;
    execute(&client, last).await;
    let enqueued = enqueue.env("DATABASE_URL", &url).output().await.expect("python runs");
    assert!(
        enqueued.status.success(),
        "{}",
        String::from_utf8_lossy(&enqueued.stderr)
    );
    wait_until(
        &client,
        "select exists (select from bugle.jobs where state = 'completed' and result->>'greeting' = 'Hello, Eve!')",
    )
    .await;
    let sum = Command::new(BUGLE)
        .args(["enqueue", "add", r#"{"a": 2, "b": 3}"#, "--wait"])
        .env("DATABASE_URL", &url)
        .output()
        .expect("runs");

    assert_eq!(String::from_utf8_lossy(&sum.stdout), "5\n");
    let left: i64 = query_value(
        &client,
        "select count(*) from bugle.jobs where state not in ('completed', 'cancelled')",
    )
    .await;
    assert_eq!(left, 0);
    drop(client);
    dev.signal(Signal::INT);
    let (code, _, errors) = dev.end();
    assert_eq!(code, Some(0), "{errors}");
    dev.nothing_is_left(Some(&server));
}
