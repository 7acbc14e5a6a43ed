//! The demo keeps its promises, and leaves nothing behind, however it ends.
#![cfg(target_os = "linux")] // what is left is looked for in /proc

mod common;
#[path = "common/leftovers.rs"]
mod leftovers;

use std::path::Path;
use std::process::Command;

use common::{BUGLE, Database, Folder, query_value};
use leftovers::Marked;
use rustix::process::Signal;

fn demo() -> Command {
    demo_of(Path::new(BUGLE))
}

fn demo_of(program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .arg("demo")
        .env_remove("DATABASE_URL")
        .env_remove("BUGLE_SERVER_URL");
    command
}

#[test]
fn it_keeps_every_promise_and_leaves_nothing_behind() {
    let mut demo = Marked::start(&mut demo());
    let folder = demo.folder();

    let (code, said, errors) = demo.end();

    assert_eq!(code, Some(0), "{said}\n{errors}");
    assert_eq!(errors, "");
    for part in [
        "insert into bugle.jobs",
        "rollback;",
        "pickup_ms",
        "not_retryable",
        "attempts_exhausted",
        "until it is due, the job is scheduled",
        "kill -9",
        "worker_lost",
        "12 jobs are completed, 2 have failed",
        "Nothing is left behind.",
        "bugle web --demo",
    ] {
        assert!(said.contains(part), "{part} is missing in: {said}");
    }
    demo.nothing_is_left(Some(&folder));
}

/// As a release is downloaded and installed. A name or a path must not matter to a program that starts itself again.
#[test]
fn a_renamed_program_in_a_folder_with_a_space_tells_it_through_a_link_too() {
    let folder = Folder::new();
    let place = folder.join("my programs");
    std::fs::create_dir(&place).unwrap();
    let (renamed, link) = (place.join("bugle-0.1.0-linux"), folder.join("jobs"));
    // not with fs::copy: a child that another test starts meanwhile would inherit the open file, and make it "busy"
    assert!(Command::new("cp").arg(BUGLE).arg(&renamed).status().unwrap().success());
    std::os::unix::fs::symlink(&renamed, &link).unwrap();

    let mut demo = Marked::start(&mut demo_of(&link));
    let server = demo.folder();
    let (code, said, errors) = demo.end();

    assert_eq!((code, errors.as_str()), (Some(0), ""), "{said}");
    demo.nothing_is_left(Some(&server));
}

#[test]
fn interrupted_or_killed_it_leaves_nothing_behind_either() {
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let mut demo = Marked::start(&mut demo());
        let folder = demo.folder();
        demo.wait_for("sleep 2"); // in the middle of jobs

        demo.signal(signal);
        let (code, said, errors) = demo.end();

        let expected = if signal == Signal::KILL { None } else { Some(130) };
        assert_eq!(code, expected, "{said}\n{errors}");
        demo.nothing_is_left(Some(&folder));
    }
}

#[tokio::test]
async fn on_a_server_of_ones_own_it_plays_in_a_database_of_its_own() {
    // keeps the schema's roles in use: those that were there before stay
    let database = Database::new().await;
    let client = database.owner().await;
    let left = "select (select count(*) from pg_database where datname like 'bugle\\_demo\\_%') \
                + (select count(*) from pg_roles where rolname like 'bugle\\_demo\\_%')";
    let url = database.url("owner");

    for signal in [None, Some(Signal::INT), Some(Signal::KILL)] {
        let mut demo = Marked::start(demo().env("DATABASE_URL", &url));
        let (code, said, errors) = tokio::task::spawn_blocking(move || {
            if let Some(signal) = signal {
                demo.wait_for("sleep 2");
                demo.signal(signal);
            }
            let ended = demo.end();
            demo.nothing_is_left(None);
            ended
        })
        .await
        .unwrap();

        match signal {
            None => assert_eq!((code, errors.as_str()), (Some(0), ""), "{said}"),
            Some(Signal::INT) => assert_eq!(code, Some(130), "{said}\n{errors}"),
            _ => assert_eq!(code, None, "{said}\n{errors}"),
        }
        assert_eq!(query_value::<i64>(&client, left).await, 0, "{said}");
    }
}

#[tokio::test]
async fn one_command_shows_a_shop_at_work_in_a_browser_and_leaves_nothing_behind() {
    use std::io::{BufRead, BufReader};
    let mut command = Command::new(BUGLE);
    command
        .args(["web", "--demo", "--listen", "127.0.0.1:0"])
        .env_remove("DATABASE_URL")
        .env_remove("BUGLE_DATABASE_URL");
    let mut shop = Marked::start(&mut command);
    let folder = shop.folder();
    let mut line = String::new();
    BufReader::new(shop.process.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    let address: std::net::SocketAddr = address.unwrap_or_else(|| panic!("{line:?}")).parse().unwrap();
    let page = async |path: &str| common::http::ask(address, "GET", path, "", "").await;

    let overview = page("/").await;
    assert_eq!(overview.status, 200);
    assert!(
        overview
            .body
            .contains("No live worker serves <b><a href=\"/commands/translate%5Fproduct\">translate_product</a></b>"),
        "{}",
        overview.body
    );
    for (path, part) in [
        ("/jobs?q=state:failed", "503 Service Unavailable"),
        ("/schedules", "weekly-newsletter"),
        ("/changes", "INC-4312"),
        ("/queues/payments", "90 starts per minute"),
        ("/jobs?q=state:waiting", "refund"),
    ] {
        let found = page(path).await.body;
        assert!(found.contains(part), "{path} has no {part}: {found}");
    }
    // the story so far has none of these
    let query = "/jobs?q=state:completed%20command:import_page%20age:%3C1m";
    let done = common::poll::look_for(async || {
        let found = page(query).await.body;
        found.contains("completed</span></td>").then_some(())
    });
    done.await.expect("a job that a worker of the shop completed");
    shop.signal(Signal::INT);
    let (code, _, errors) = shop.end();

    assert_eq!(code, Some(0), "{errors}");
    shop.nothing_is_left(Some(&folder));
}
