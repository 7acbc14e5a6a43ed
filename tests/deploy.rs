//! What is in deploy/ fits the program: names of metrics, files of workers, times, and what systemd is told.

mod common;

use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bugle::Settings;
use bugle::config::Config;
use bugle::observe::METRICS;
use common::{BUGLE, Database, Folder};
use rustix::process::{Pid, Signal, kill_process};

fn deploy(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(file)
}

fn read(file: &str) -> String {
    std::fs::read_to_string(deploy(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The metrics a text names: words that begin with `bugle_`, without what histograms add.
fn metrics_in(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("bugle_"))
        .map(|word| {
            let bare = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| word.strip_suffix(end));
            bare.unwrap_or(word).to_owned()
        })
        .collect()
}

#[test]
fn alerts_and_dashboard_name_metrics_that_exist() {
    for file in [
        "prometheus/alerts.yml",
        "prometheus/alerts_test.yml",
        "grafana/dashboard.json",
    ] {
        let named = metrics_in(&read(file));

        assert!(named.len() >= 4, "{file} names {named:?}");
        for name in named {
            assert!(
                METRICS.iter().any(|metric| metric.name == name),
                "{file}: there is no metric {name}"
            );
        }
    }
    let dashboard: serde_json::Value = serde_json::from_str(&read("grafana/dashboard.json")).expect("JSON");
    assert!(dashboard["panels"].as_array().unwrap().len() > 10);
}

#[test]
fn the_alert_rules_do_what_their_tests_say() {
    let Ok(output) = Command::new("promtool")
        .args(["test", "rules"])
        .arg(deploy("prometheus/alerts_test.yml"))
        .output()
    else {
        eprintln!("skipped: promtool is not installed");
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

/// The number after a key.
fn number(text: &str, key: &str) -> u64 {
    let after = text.split(key).nth(1).unwrap_or_else(|| panic!("no {key}"));
    let digits: String = after
        .trim_start_matches([':', '=', ' '])
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().unwrap_or_else(|_| panic!("no number after {key}"))
}

#[test]
fn whoever_stops_a_worker_waits_longer_than_it_drains() {
    let drain = Settings::default().drain.as_secs();

    assert!(number(&read("systemd/bugle-worker@.service"), "TimeoutStopSec") > drain + 15);
    assert!(number(&read("kubernetes/bugle.yaml"), "terminationGracePeriodSeconds") > drain + 15);
}

#[test]
fn the_worker_file_of_the_manifests_is_read() {
    let manifest = read("kubernetes/bugle.yaml");
    let block = manifest.split("bugle.toml: |\n").nth(1).unwrap();
    let lines = block
        .lines()
        .take_while(|line| line.is_empty() || line.starts_with("    "));
    let file: String = lines.map(|line| line.trim_start().to_owned() + "\n").collect();

    let config = Config::from_toml(&file).unwrap_or_else(|error| panic!("{error}\n{file}"));

    assert_eq!(config.drain, Some(Settings::default().drain));
    assert!(config.listen.is_some() && config.token.is_some() && !config.commands.is_empty());
}

#[tokio::test]
async fn systemd_is_told_that_a_worker_is_ready_alive_and_stopping() {
    let database = Database::new().await;
    let folder = Folder::new();
    let file = folder.write("worker.toml", "[commands.x]\nprogram = ['true']");
    let address = folder.join("notify");
    let socket = UnixDatagram::bind(&address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut worker = Command::new(BUGLE)
        .args(["worker", "--config"])
        .arg(file)
        .args(["--workdir".as_ref(), folder.join("work").as_os_str()])
        .env("BUGLE_DATABASE_URL", database.url("worker"))
        .env("NOTIFY_SOCKET", &address)
        .env("WATCHDOG_USEC", "200000")
        .spawn()
        .unwrap();

    let heard = tokio::task::spawn_blocking(move || {
        let mut heard = Vec::new();
        while !heard.contains(&"STOPPING=1".to_owned()) {
            let mut buffer = [0; 64];
            let length = socket.recv(&mut buffer).expect("a word in time");
            heard.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
            if heard.iter().filter(|word| *word == "WATCHDOG=1").count() == 3 {
                kill_process(Pid::from_child(&worker), Signal::TERM).unwrap();
            }
        }
        assert!(worker.wait().unwrap().success());
        heard
    })
    .await
    .unwrap();

    assert_eq!(heard[0], "READY=1", "{heard:?}");
}
