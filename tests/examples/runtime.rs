//! What it takes to run an example: its runtime, its driver. What is missing is said on stderr, past the capture of the
//! tests.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::common::Folder;

/// How long a package client may take to bring a driver. A slow registry is no reason to fail, or to wait.
pub const FETCH: Duration = Duration::from_secs(60);
/// How long a compiler may take, on a machine that does other things too.
pub const BUILD: Duration = Duration::from_secs(600);

pub fn example(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(path)
}

/// Python with psycopg.
pub async fn python(script: &Path) -> Option<Command> {
    static DRIVER: OnceCell<Option<PathBuf>> = OnceCell::const_new();
    let driver = DRIVER.get_or_init(async || {
        if !can_run("python3").await {
            return missing("python3", "apt-get install python3 python3-pip");
        }
        let can_import = async |folder: &Path| {
            let mut python = Command::new("python3");
            python.env("PYTHONPATH", folder).args(["-c", "import psycopg"]);
            succeeds(python, FETCH).await
        };
        let pip = |folder: &Path| {
            let mut pip = Command::new("python3");
            pip.args("-m pip install --quiet --disable-pip-version-check --retries 1 --timeout 15 --target".split(' '))
                .arg(folder)
                .arg("-r")
                .arg(example("python/requirements.txt"));
            pip
        };
        let driver = fetched("python", can_import, pip).await;
        driver.or_else(|| {
            missing(
                "psycopg, the driver for Python,",
                "pip install -r examples/python/requirements.txt",
            )
        })
    });
    let mut python = Command::new("python3");
    python
        .env("PYTHONPATH", driver.await.as_ref()?)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .arg(script);
    Some(python)
}

/// Node with pg. The script is run beside the packages, where Node looks for them.
pub async fn node(folder: &Folder) -> Option<Command> {
    if !can_run("node").await {
        return missing("node", "apt-get install nodejs npm");
    }
    let has_driver = |folder: &Path| folder.join("node_modules/pg/package.json").exists();
    let npm = |folder: &Path| {
        std::fs::copy(example("node/package.json"), folder.join("package.json")).expect("a copy");
        let mut npm = Command::new("npm");
        npm.args("install --silent --no-audit --no-fund --fetch-retries=0 --fetch-timeout=20000".split(' '))
            .current_dir(folder);
        npm
    };
    let place = match has_driver(&example("node")) {
        true => Some(example("node")),
        false => fetched("node", async |folder: &Path| has_driver(folder), npm).await,
    };
    let Some(place) = place else {
        return missing("pg, the driver for Node,", "cd examples/node && npm install");
    };
    std::os::unix::fs::symlink(place.join("node_modules"), folder.join("node_modules")).expect("a link");
    for file in ["package.json", "enqueue.js"] {
        std::fs::copy(example("node").join(file), folder.join(file)).expect("a copy");
    }
    let mut node = Command::new("node");
    node.arg(folder.join("enqueue.js"));
    Some(node)
}

/// The program in Go, built with the driver of the distribution, or with the one that its `go.mod` names.
pub async fn go(folder: &Folder) -> Option<Command> {
    const OF_DEBIAN: &str = "/usr/share/gocode";
    if !can_run("go").await {
        return missing("go", "apt-get install golang-go golang-github-lib-pq-dev");
    }
    let source = folder.join("src/enqueue");
    std::fs::create_dir_all(&source).expect("a folder");
    for file in ["go.mod", "go.sum", "main.go"] {
        std::fs::copy(example("go").join(file), source.join(file)).expect("a copy");
    }
    let cache = cache("go");
    let go = |arguments: &[&str]| {
        let mut go = Command::new("go");
        go.args(arguments)
            .current_dir(&source)
            .env("CGO_ENABLED", "0")
            .env("GOTOOLCHAIN", "local")
            .env("GOFLAGS", "-modcacherw")
            .env("GOCACHE", cache.join("build"))
            .env("GOMODCACHE", cache.join("modules"));
        go
    };
    let mut build = go(&["build", "-o", "enqueue", "."]);
    if Path::new(OF_DEBIAN).join("src/github.com/lib/pq").exists() {
        build
            .env("GO111MODULE", "off")
            .env("GOPATH", format!("{}:{OF_DEBIAN}", folder.path().display()));
    } else if !succeeds(go(&["mod", "download"]), FETCH).await {
        return missing("lib/pq, the driver for Go,", "apt-get install golang-github-lib-pq-dev");
    }
    assert!(succeeds(build, BUILD).await, "go build fails");
    Some(Command::new(source.join("enqueue")))
}

/// Java with the JDBC driver.
pub async fn java() -> Option<Command> {
    let driver = jdbc().await?;
    let mut java = Command::new("java");
    java.arg("-cp").arg(driver).arg(example("java/Enqueue.java"));
    Some(java)
}

/// The JDBC driver of the distribution, or of Maven's repository, if there is a JDK to use it.
pub async fn jdbc() -> Option<PathBuf> {
    if !can_run("java").await || !can_run("javac").await {
        return missing("a JDK", "apt-get install default-jdk-headless");
    }
    let version = Command::new("javac").arg("-version").output().await.ok()?.stdout;
    let version = String::from_utf8_lossy(&version).replace("javac ", "");
    if version
        .split('.')
        .next()?
        .trim()
        .parse()
        .is_ok_and(|major: u32| major < 17)
    {
        return missing("Java 17", "apt-get install openjdk-17-jdk-headless");
    }
    let of_maven = || {
        let versions = Path::new(&std::env::var_os("HOME")?).join(".m2/repository/org/postgresql/postgresql");
        let folders = std::fs::read_dir(versions).ok()?.flatten();
        let files = folders.filter_map(|folder| std::fs::read_dir(folder.path()).ok());
        let mut jars = files.flatten().flatten().map(|file| file.path());
        jars.find(|file| file.extension().is_some_and(|ending| ending == "jar"))
    };
    let of_debian = Some(PathBuf::from("/usr/share/java/postgresql.jar")).filter(|jar| jar.exists());
    of_debian
        .or_else(of_maven)
        .or_else(|| missing("the JDBC driver", "apt-get install libpostgresql-jdbc-java"))
}

pub async fn psql(of_the_server: &Path) -> Option<Command> {
    let psql = of_the_server.join("psql");
    let psql = if psql.exists() { psql } else { "psql".into() };
    if !can_run(&psql.to_string_lossy()).await {
        return missing("psql", "apt-get install postgresql-client");
    }
    Some(Command::new(psql))
}

/// An example of this crate, as `cargo test` has built it; built now if only this file is tested.
pub async fn cargo_example(name: &str) -> Command {
    static BUILT: OnceCell<String> = OnceCell::const_new();
    let built = BUILT.get_or_init(async || {
        let mut cargo = cargo();
        cargo
            .args("build --examples --quiet --locked --offline --message-format=json-render-diagnostics".split(' '))
            .current_dir(env!("CARGO_MANIFEST_DIR"));
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        let said = cargo.stderr(Stdio::inherit()).output().await.expect("cargo runs");
        assert!(said.status.success(), "the examples are not built");
        String::from_utf8(said.stdout).expect("UTF-8")
    });
    let artifacts = built
        .await
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let mut programs =
        artifacts.filter(|artifact| artifact["target"]["name"] == name && artifact["target"]["kind"][0] == "example");
    let program = programs.next().unwrap_or_else(|| panic!("there is no example {name}"));
    Command::new(program["executable"].as_str().expect("a program"))
}

/// An example that is a package of its own, built beside the dependencies of this one.
pub async fn cargo_package(name: &str) -> Option<Command> {
    if std::env::var_os("BUGLE_TEST_QUICK").is_some() {
        return missing(&format!("a build of examples/{name}"), "bin/test, without --quick");
    }
    // the folder that holds the programs of this build: target, or what CARGO_TARGET_DIR says
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a folder");
    let build = |arguments: &str| {
        let mut cargo = cargo();
        cargo.args(arguments.split(' ')).current_dir(example(name));
        cargo.env("CARGO_TARGET_DIR", target);
        cargo
    };
    // a lock file of its own would be outdated by each change of our dependencies
    let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.lock");
    std::fs::copy(lock, example(name).join("Cargo.lock")).expect("a copy");
    if !succeeds(build("fetch --quiet"), FETCH).await {
        return missing(
            &format!("what examples/{name} depends on"),
            "cargo fetch, with a network",
        );
    }
    let built = build("build --offline --quiet").stderr(Stdio::inherit()).status().await;
    assert!(built.expect("cargo runs").success(), "examples/{name} is not built");
    Some(Command::new(target.join("debug").join(name)))
}

/// Cargo without what the cargo that runs us has set: that would have build scripts run again, here and the next time.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (variable, _) in std::env::vars_os() {
        let text = variable.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_", "CARGO_BIN_", "OUT_DIR"]
            .iter()
            .any(|own| text.starts_with(own))
        {
            cargo.env_remove(&variable);
        }
    }
    cargo
}

/// Skip a test, with a sentence. CI must not pass without what its job is there to test.
pub fn missing<T>(what: &str, how: &str) -> Option<T> {
    let required = std::env::var_os("CI_REQUIRE_RUNTIMES").is_some();
    assert!(!required, "CI_REQUIRE_RUNTIMES is set, and {what} is not here: {how}");
    let _ = writeln!(
        std::io::stderr(),
        "skipped: {what} is not here. To run this test: {how}"
    );
    None
}

pub async fn can_run(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(if program == "go" { "version" } else { "--version" });
    succeeds(command, FETCH).await
}

pub fn cache(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("examples").join(name)
}

/// A folder beside the build in which a package client has put a driver, once. None if it cannot, or not in time.
pub async fn fetched(
    name: &str,
    is_there: impl AsyncFn(&Path) -> bool,
    fetch: impl Fn(&Path) -> Command,
) -> Option<PathBuf> {
    fetched_within(FETCH, name, is_there, fetch).await
}

/// The same, with more time for what is large.
pub async fn fetched_within(
    limit: Duration,
    name: &str,
    is_there: impl AsyncFn(&Path) -> bool,
    fetch: impl Fn(&Path) -> Command,
) -> Option<PathBuf> {
    let place = cache(name);
    if !is_there(&place).await {
        // renamed when it is complete: others may be at it, and we may be stopped
        let mine = cache(&format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&mine).expect("a folder");
        if succeeds(fetch(&mine), limit).await && std::fs::rename(&mine, &place).is_err() {
            let _ = std::fs::remove_dir_all(&place);
            let _ = std::fs::rename(&mine, &place);
        }
        let _ = std::fs::remove_dir_all(&mine);
    }
    is_there(&place).await.then_some(place)
}

/// Whether a command ends well in time. One that does not is ended.
pub async fn succeeds(mut command: Command, limit: Duration) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let ended = tokio::time::timeout(limit, command.kill_on_drop(true).status()).await;
    ended.is_ok_and(|status| status.is_ok_and(|status| status.success()))
}
