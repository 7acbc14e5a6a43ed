//! The packages below sdk/, with what their tests need from the registries. Fetched once, and built once for each state
//! of their sources; what cannot be had here is said on stderr.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::runtime::{BUILD, cache, can_run, fetched, fetched_within, missing};

pub fn sdk(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk").join(path)
}

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk").join(path)
}

/// Where Python finds our package and the drivers that people use it with.
pub async fn python() -> Option<String> {
    static PACKAGES: OnceCell<Option<PathBuf>> = OnceCell::const_new();
    let packages = PACKAGES.get_or_init(async || {
        if !can_run("python3").await {
            return missing("python3", "apt-get install python3 python3-pip");
        }
        let pip = |folder: &Path| {
            std::fs::copy(source("requirements.txt"), folder.join("requirements.txt")).expect("a copy");
            let mut pip = Command::new("python3");
            pip.args(
                "-m pip install --quiet --disable-pip-version-check --no-compile --retries 1 --timeout 15 -r \
                requirements.txt --target ."
                    .split(' '),
            )
            .current_dir(folder);
            pip
        };
        let packages = fetched(
            "sdk-python",
            async |folder: &Path| is_pinned(folder, "requirements.txt"),
            pip,
        )
        .await;
        packages.or_else(|| missing("a driver for Python", "pip install -r tests/sdk/requirements.txt"))
    });
    let packages = packages.await.as_ref()?.display().to_string();
    Some(format!("{}:{packages}", sdk("python/src").display()))
}

/// What `python3 -m venv .venv` and pip would make in this folder, without copying anything.
pub fn virtual_environment(folder: &Path, path: &str) {
    use std::os::unix::fs::PermissionsExt;
    let programs = folder.join(".venv/bin");
    std::fs::create_dir_all(&programs).expect("a folder");
    let python = programs.join("python");
    let script = format!("#!/bin/sh\nPYTHONPATH='{path}' PYTHONDONTWRITEBYTECODE=1 exec python3 \"$@\"\n");
    std::fs::write(&python, script).expect("a file");
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).expect("a program");
}

/// A folder whose node_modules have the drivers and the compiler.
pub async fn node() -> Option<PathBuf> {
    static MODULES: OnceCell<Option<PathBuf>> = OnceCell::const_new();
    let modules = MODULES.get_or_init(async || {
        if !can_run("node").await || !can_run("npm").await {
            return missing("node", "apt-get install nodejs npm");
        }
        let npm = |folder: &Path| {
            std::fs::copy(source("package.json"), folder.join("package.json")).expect("a copy");
            let mut npm = Command::new("npm");
            npm.args(
                "install --silent --no-audit --no-fund --ignore-scripts --fetch-retries=0 --fetch-timeout=20000"
                    .split(' '),
            )
            .current_dir(folder);
            npm
        };
        let modules = fetched("sdk-node", async |folder: &Path| is_pinned(folder, "package.json"), npm).await;
        modules.or_else(|| missing("the compiler for TypeScript", "cd tests/sdk && npm install"))
    });
    modules.await.clone()
}

/// The package for TypeScript, built. Beside it are the drivers: `node_modules` of this folder has both.
pub async fn typescript() -> Option<PathBuf> {
    static BUILT: OnceCell<Option<PathBuf>> = OnceCell::const_new();
    let built = BUILT.get_or_init(async || {
        let modules = node().await?;
        let mut hasher = DefaultHasher::new();
        for file in files(&sdk("typescript")) {
            (&file, std::fs::read(&file).expect("a file")).hash(&mut hasher);
        }
        let name = format!("sdk-typescript-{:016x}", hasher.finish());
        let is_there = async |folder: &Path| folder.join("complete").exists();
        let build = |folder: &Path| {
            let package = folder.join("package");
            copy(&sdk("typescript"), &package);
            let script = r#"
                ln -s "$1/node_modules" package/node_modules
                (cd package && node_modules/.bin/tsc && node_modules/.bin/tsc --project test) >&2
                mkdir node_modules && ln -s "$1"/node_modules/* "$1"/node_modules/.bin node_modules
                ln -s ../package node_modules/bugle-jobs
                touch complete"#;
            let mut shell = Command::new("sh");
            shell.args(["-ec", script, "sh"]).arg(&modules).current_dir(folder);
            shell
        };
        let built = fetched_within(BUILD, &name, is_there, build).await;
        Some(built.expect("sdk/typescript is not built: see tsc there"))
    });
    built.await.clone()
}

/// Prisma, where tests/orm.rs has fetched it: 300 MB.
pub fn prisma() -> Option<PathBuf> {
    let place = cache("orm-prisma");
    let is_there = place.join("node_modules/prisma/package.json").exists();
    let place = Some(place).filter(|_| is_there);
    place.or_else(|| {
        missing(
            "Prisma",
            "BUGLE_TEST_ORMS=all cargo test --test orm prisma, and then this test",
        )
    })
}

fn is_pinned(folder: &Path, file: &str) -> bool {
    let theirs = std::fs::read(folder.join(file));
    theirs.is_ok_and(|theirs| theirs == std::fs::read(source(file)).unwrap())
}

/// All files that belong to the package: not what was built or installed beside them.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if ["node_modules", "dist", "build", "__pycache__", ".mypy_cache"].contains(&&*name) {
            continue;
        }
        match path.is_dir() {
            true => all.extend(files(&path)),
            false => all.push(path),
        }
    }
    all.sort();
    all
}

pub fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).expect("a file in it"));
        std::fs::create_dir_all(target.parent().expect("a folder")).expect("a folder");
        std::fs::copy(&file, target).expect("a copy");
    }
}
