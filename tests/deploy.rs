//! What is in deploy/ fits the program: names of metrics, files of workers, times, and what systemd is told.

mod common;
#[path = "deploy/image.rs"]
mod image;

use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

use bugle::Settings;
use bugle::config::Config;
use bugle::observe::METRICS;
use common::poll::look_for;
use common::{BUGLE, Database, Folder, WorkerProcess, debian, eventually};
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
fn each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() {
    let (rules, tests) = (read("prometheus/alerts.yml"), read("prometheus/alerts_test.yml"));
    let alerts: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    let cases: Vec<&str> = tests.split("  - name: ").skip(1).collect();
    let is_about = |case: &str, alert: &str| case.split([' ', '\n']).next() == Some(alert);

    assert!(alerts.len() > 10, "{alerts:?}");
    for alert in &alerts {
        let own: Vec<_> = cases.iter().filter(|case| is_about(case, alert)).collect();
        let names_it = |case: &&&&str| case.contains(&format!("alertname: {alert}"));
        let fires = own.iter().filter(names_it).any(|case| case.contains("- exp_labels:"));
        let stays = own.iter().filter(names_it).any(|case| case.contains("exp_alerts: []"));
        assert!(
            fires && stays,
            "alerts_test.yml: {alert} fires: {fires}, does not fire: {stays}"
        );
    }
    for case in cases {
        assert!(
            alerts.iter().any(|alert| is_about(case, alert)),
            "there is no such alert: {case}"
        );
    }
}

#[test]
fn each_alert_links_to_what_to_do_about_it() {
    let rules = read("prometheus/alerts.yml");
    let links: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("runbook_url: "))
        .collect();

    assert_eq!(links.len(), rules.matches("- alert: ").count());
    for link in links {
        let (page, anchor) = link.split_once('#').unwrap_or_else(|| panic!("{link} has no anchor"));
        let text = read(&format!("../{page}"));
        let mut headings = text.lines().filter_map(|line| line.strip_prefix("### "));
        assert!(
            headings.any(|heading| heading.to_lowercase() == anchor),
            "{page} has no section {anchor}"
        );
    }
}

#[test]
fn the_alert_rules_do_what_their_tests_say() {
    let Some(promtool) = debian::program(&["promtool"], "prometheus") else {
        return;
    };
    let rules = deploy("prometheus/alerts_test.yml");
    let output = Command::new(promtool).args(["test", "rules"]).arg(rules).output();
    let output = output.expect("promtool starts");
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
fn a_service_manager_waits_longer_than_a_worker_drains() {
    let drain = Settings::default().drain.as_secs();

    assert!(number(&read("systemd/bugle-worker@.service"), "TimeoutStopSec") > drain + 15);
    assert!(number(&read("kubernetes/bugle.yaml"), "terminationGracePeriodSeconds") > drain + 15);
    assert!(number(&read("../docker-compose.yml"), "stop_grace_period") > drain + 15);
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
    socket.set_read_timeout(Some(common::DEADLINE)).unwrap();
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

#[test]
fn the_container_image_can_be_built_from_what_the_dockerfile_copies() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let ignored = image::Ignored::parse(&read("../.dockerignore"));
    let stages = image::stages(&read("../Dockerfile"));
    let stage = &stages[0];
    // always the same place: cargo goes by it, and need not check what it has checked before
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("image");
    let _ = std::fs::remove_dir_all(&place);
    let workdir = place.join(stage.workdir.trim_start_matches('/'));
    let is_whole = std::env::var_os("BUGLE_TEST_IMAGE").is_some();

    let mut builds = 0;
    for step in &stage.steps {
        match step {
            image::Step::Copy(sources, target) => image::replay(sources, target, root, &ignored, &place),
            image::Step::Run(command) => {
                assert!(command.contains("cargo build --release --locked "), "{command}");
                run_in_image(command, stage, &workdir, is_whole);
                builds += 1;
            }
        }
    }

    assert_eq!(builds, 2, "the dependencies, then the program");
    let (from, program) = &stages[1].taken[0];
    assert_eq!(
        (from, program),
        (&stage.name, &format!("{}/target/release/bugle", stage.workdir))
    );
    if is_whole {
        let version = Command::new(place.join(program.trim_start_matches('/')))
            .arg("--version")
            .output()
            .expect("the program runs");
        // and not the empty one of the layer before
        assert_eq!(
            version.stdout,
            format!("bugle {}\n", env!("CARGO_PKG_VERSION")).as_bytes()
        );
    }
    std::fs::remove_dir_all(&place).expect("nothing is left");
}

/// As the build does, offline. Unless the whole image is wanted, cargo only checks: that proves the same but for the
/// linker, in seconds.
fn run_in_image(command: &str, stage: &image::Stage, workdir: &Path, is_whole: bool) {
    let command = match is_whole {
        true => command.to_owned(),
        false => command.replace("cargo build --release", "cargo check"),
    };
    let mut shell = Command::new("sh");
    // what cargo has set for us would have build scripts run again
    for (variable, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_")) {
        if !["CARGO_HOME", "CARGO_BUILD_JOBS"].iter().any(|kept| variable == *kept) {
            shell.env_remove(&variable);
        }
    }
    if !is_whole {
        shell.env("CARGO_TARGET_DIR", target());
    }
    let ran = shell
        .args(["-ec", &command])
        .envs(&stage.arguments)
        .env("CARGO_NET_OFFLINE", "true")
        .current_dir(workdir)
        .output()
        .expect("a shell");
    assert!(
        ran.status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&ran.stderr)
    );
}

#[test]
fn the_container_image_says_what_it_is() {
    let stages = image::stages(&read("../Dockerfile"));
    let image = stages.last().expect("a stage");

    let label = |name: &str| image.labels[&format!("org.opencontainers.image.{name}")].clone();
    assert_eq!(label("title"), "Bugle");
    assert_eq!(label("licenses"), env!("CARGO_PKG_LICENSE"));
    assert_eq!(
        (label("version"), label("revision")),
        ("$VERSION".into(), "$REVISION".into())
    );
    assert_eq!(image.arguments["VERSION"], env!("CARGO_PKG_VERSION"));
    assert_eq!(image.user.as_deref(), Some("10001:10001"), "not root, by number");
}

/// The address a worker says in its log that it listens on.
async fn listens_at(worker: &WorkerProcess) -> String {
    let mut found = None;
    eventually("it listens", || {
        let log = worker.log();
        let events = log
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        found = events
            .filter(|event| event["event"] == "listen")
            .find_map(|event| event["address"].as_str().map(String::from));
        found.is_some()
    })
    .await;
    found.expect("an address")
}

/// Where cargo has put what these tests were built from.
fn target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .expect("target")
        .to_owned()
}

#[test]
fn the_last_pattern_of_a_dockerignore_that_matches_decides() {
    let lacks = |patterns: &str, path: &str| image::Ignored::parse(patterns).lacks(path);

    assert!(lacks("*", "docs/openapi.json"));
    assert!(!lacks("*\n!docs/openapi.json", "docs/openapi.json"));
    assert!(lacks("*\n!docs/openapi.json", "docs/other.md"));
    assert!(!lacks("*\n!src", "src/cli/mod.rs"));
    assert!(lacks("*\n!src\nsrc/cli", "src/cli/mod.rs"));
    assert!(lacks("**/*.md", "README.md") && lacks("**/*.md", "a/b/c.md") && !lacks("**/*.md", "a/b.rs"));
    assert!(lacks("a/**", "a/b/c") && !lacks("a/**", "b/a") && lacks("a/**/c", "a/c"));
    assert!(lacks("/te?t/", "test/x") && !lacks("te?t", "tempt") && !lacks("# test\n", "test"));
    assert!(!lacks("*.md", "docs/a.md"), "a star stays in its folder");
}

#[tokio::test]
async fn the_health_checks_of_image_and_compose_file_tell_how_a_worker_is() {
    let database = Database::new().await;
    let folder = Folder::new();
    let worker = WorkerProcess::start(
        &database,
        &folder,
        "asked",
        "listen = '127.0.0.1:0'\n[commands.x]\nprogram = ['true']",
        &[],
    );
    let address = listens_at(&worker).await;
    let stages = image::stages(&read("../Dockerfile"));
    let of_the_image = stages[1].healthcheck.clone().expect("a health check");
    assert_eq!(stages[1].entrypoint, Some(vec!["bugle".to_owned()]));
    let compose = read("../docker-compose.yml");
    assert!(compose.contains(r#"test: ["CMD", "bugle", "health"]"#));
    let of_compose: Vec<String> = ["bugle", "health"].map(String::from).to_vec();
    let health = async |check: &[String], listen: &str| {
        assert_eq!(check[0], "bugle");
        let mut command = tokio::process::Command::new(BUGLE);
        command.args(&check[1..]).env("BUGLE_LISTEN", listen);
        // a proxy is for other machines
        command
            .env("http_proxy", "http://127.0.0.1:9")
            .output()
            .await
            .expect("it runs")
    };
    // as a container listens: on all interfaces
    let everywhere = address.replace("127.0.0.1", "0.0.0.0");

    let ready = || async { Some(health(&of_compose, &everywhere).await).filter(|said| said.status.success()) };
    let ready = look_for(ready).await.expect("it is ready");
    assert_eq!(ready.stdout, b"ready\n");
    let alive = health(&of_the_image, &everywhere).await;
    assert_eq!((alive.status.code(), &alive.stdout[..]), (Some(0), &b"alive\n"[..]));

    worker.terminate();
    assert!(worker.ended().await.success());
    for check in [&of_compose, &of_the_image] {
        let gone = health(check, &everywhere).await;
        let said = String::from_utf8_lossy(&gone.stderr).into_owned();
        assert_eq!(gone.status.code(), Some(1), "{said}");
        assert!(
            said.starts_with(&format!("bugle: no worker responds at {address}")) && said.lines().count() == 1,
            "{said}"
        );
    }
}

#[test]
fn supervisors_start_a_worker_again_however_it_ended() {
    assert!(read("systemd/bugle-worker@.service").contains("\nRestart=always\n"));
    assert!(read("../docker-compose.yml").contains("\n    restart: unless-stopped\n"));
    // a deployment's pods are always restarted: there is nothing to choose
    assert!(read("kubernetes/bugle.yaml").contains("kind: Deployment"));
}

#[test]
fn nothing_is_run_as_root_or_with_rights_it_does_not_need() {
    let unit = read("systemd/bugle-worker@.service");
    for line in [
        "DynamicUser=yes",
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=",
        "ProtectSystem=strict",
    ] {
        assert!(unit.lines().any(|found| found == line), "{line}");
    }
    let image = read("../Dockerfile");
    assert!(
        image.rfind("\nUSER 10001:10001\n") > image.rfind("\nRUN "),
        "the image's last user"
    );

    // what runs our image: the migration and the worker
    let compose = read("../docker-compose.yml");
    let ours: Vec<&str> = compose
        .split("\n\n")
        .filter(|service| service.contains("image: bugle"))
        .collect();
    assert_eq!(ours.len(), 2);
    for service in ours {
        assert!(
            service.contains("cap_drop: [ALL]") && service.contains("no-new-privileges:true"),
            "{service}"
        );
        assert!(
            !service.contains("--token"),
            "arguments are visible to everyone: {service}"
        );
    }

    let manifests = read("kubernetes/bugle.yaml");
    let ours: Vec<&str> = manifests
        .split("\n---\n")
        .filter(|part| part.contains("image: bugle"))
        .collect();
    assert_eq!(ours.len(), 2);
    for part in ours {
        for line in [
            "automountServiceAccountToken: false",
            // the level `restricted` of the pod security standards
            "runAsNonRoot: true",
            "seccompProfile: {type: RuntimeDefault}",
            "allowPrivilegeEscalation: false",
            "readOnlyRootFilesystem: true",
            "capabilities: {drop: [\"ALL\"]}",
            "secretKeyRef",
        ] {
            assert!(part.contains(line), "{line}: {part}");
        }
    }
}

/// The manifests of a folder, without its kustomization.
fn manifests(folder: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(deploy(folder)).expect("a folder").flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names
        .filter(|name| name.ends_with(".yaml") && name != "kustomization.yaml")
        .collect()
}

#[test]
fn the_kustomization_has_every_manifest_and_all_of_them_mean_the_same_pods() {
    let kustomization = read("kubernetes/kustomization.yaml");
    let listed = kustomization.lines().filter_map(|line| line.strip_prefix("  - "));
    assert_eq!(
        listed.map(str::to_owned).collect::<BTreeSet<_>>(),
        manifests("kubernetes")
    );

    let pods = read("kubernetes/bugle.yaml");
    for name in manifests("kubernetes") {
        for selected in read(&format!("kubernetes/{name}")).split("matchLabels: {app: ").skip(1) {
            let app = selected.split('}').next().unwrap();
            assert!(
                pods.contains(&format!("      labels: {{app: {app}}}")),
                "{name} selects {app}"
            );
        }
    }
    for name in manifests("kubernetes/autoscaling") {
        let text = read(&format!("kubernetes/autoscaling/{name}"));
        assert!(
            text.contains("    name: bugle-worker\n") && pods.contains("  name: bugle-worker\n"),
            "{name}"
        );
        for metric in metrics_in(&text) {
            assert!(METRICS.iter().any(|known| known.name == metric), "{name}: {metric}");
        }
    }
}

/// The validator: on the path, or where `tests/deploy/requirements.txt` says to install it.
fn validator() -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/kubernetes-validate/bin/kubernetes-validate");
    let runs = |program: &PathBuf| Command::new(program).arg("--version").output().is_ok();
    [PathBuf::from("kubernetes-validate"), own].into_iter().find(runs)
}

/// Kinds that are not part of Kubernetes: the validator has no schemas of them.
const CUSTOM_KINDS: [&str; 2] = ["PodMonitor", "ScaledObject"];

#[test]
fn the_schemas_of_kubernetes_accept_the_manifests() {
    let Some(validator) = validator() else {
        // CI must not pass without it
        assert!(
            std::env::var_os("CI_REQUIRE_KUBERNETES_VALIDATE").is_none(),
            "kubernetes-validate is not installed"
        );
        return eprintln!("skipped: kubernetes-validate is not installed; tests/deploy/requirements.txt says how");
    };
    let mut accepted = 0;
    for folder in ["kubernetes", "kubernetes/autoscaling"] {
        for name in manifests(folder) {
            let file = deploy(folder).join(&name);
            let resources = read(&format!("{folder}/{name}"));
            let kinds: Vec<&str> = resources
                .lines()
                .filter_map(|line| line.strip_prefix("kind: "))
                .collect();
            let judged = Command::new(&validator).arg("--strict").arg(&file).output();
            let judged = judged.expect("it runs");
            let said = String::from_utf8_lossy(&[judged.stdout, judged.stderr].concat()).into_owned();
            assert!(judged.status.success(), "{said}");
            let passed = said
                .lines()
                .filter(|line| line.contains(" passed for resource "))
                .count();
            let custom = kinds.iter().filter(|kind| CUSTOM_KINDS.contains(kind)).count();
            assert_eq!(passed, kinds.len() - custom, "{name}: {said}");
            accepted += passed;
        }
    }
    assert!(accepted >= 7, "{accepted} resources");

    let folder = Folder::new();
    let wrong = read("kubernetes/disruption.yaml").replace("maxUnavailable", "maxUnavailible");
    let wrong = folder.write("wrong.yaml", &wrong);
    let judged = Command::new(&validator)
        .arg("--strict")
        .arg(wrong)
        .output()
        .expect("it runs");
    assert!(!judged.status.success(), "a misspelled field is found");
}

/// `kustomize build`, or the same in kubectl; none if neither is installed.
fn kustomized(folder: &Path) -> Option<String> {
    let build = |program: &str, word: &str| Command::new(program).arg(word).arg(folder).output().ok();
    let built = build("kustomize", "build").or_else(|| build("kubectl", "kustomize"))?;
    let said = String::from_utf8_lossy(&built.stderr).into_owned();
    assert!(built.status.success(), "{said}");
    Some(String::from_utf8(built.stdout).expect("text"))
}

#[test]
fn kustomize_builds_every_resource_of_the_manifests() {
    let Some(built) = kustomized(&deploy("kubernetes")) else {
        return eprintln!("skipped: neither kustomize nor kubectl is installed");
    };
    let kinds = |text: &str| {
        let kinds = text.lines().filter_map(|line| line.strip_prefix("kind: "));
        let mut kinds: Vec<String> = kinds.map(String::from).collect();
        kinds.sort();
        kinds
    };
    let files = manifests("kubernetes").into_iter();
    let texts: String = files.map(|name| read(&format!("kubernetes/{name}")) + "\n").collect();
    assert_eq!(kinds(&built), kinds(&texts), "{built}");
}

#[test]
fn systemd_understands_the_unit() {
    // it checks that the program is there too
    let folder = Folder::new();
    let unit = read("systemd/bugle-worker@.service").replace("/usr/local/bin/bugle", BUGLE);
    let unit = folder.write("bugle-worker@mail.service", &unit);
    let Ok(output) = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(&unit)
        .output()
    else {
        eprintln!("skipped: systemd-analyze is not installed");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let about_it: Vec<&str> = said.lines().filter(|line| line.contains("bugle-worker")).collect();
    assert!(about_it.is_empty(), "{said}");
}
