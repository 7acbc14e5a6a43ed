//! Programs that some tests need and few machines have: those of the machine, or from a package of Debian, as bin/test
//! gets Postgres.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

/// Nothing is started: a service that a package contains is not wanted, and no cluster either. What is installed is not
/// upgraded.
const INSTALL: &str = "
    set -e
    export DEBIAN_FRONTEND=noninteractive
    conf=/etc/postgresql-common/createcluster.d/bugle.conf policy=/usr/sbin/policy-rc.d ours=
    mkdir -p ${conf%/*}
    [ -e $policy ] || { ours=$policy; printf '#!/bin/sh\\nexit 101\\n' > $policy; chmod 755 $policy; }
    trap 'rm -f $conf $ours; rmdir ${conf%/*} 2>/dev/null || true' EXIT
    echo 'create_main_cluster = false' > $conf
    install() {
        apt-get install -q -y --no-upgrade --no-install-recommends -o DPkg::Lock::Timeout=300 \"$@\"
    }
    install \"$@\" || { apt-get update -q || true; install \"$@\"; }
";

/// The first of these programs that there is. If there is none, the package is installed where that is allowed. If it
/// still is missing, it says so, and returns None, for the test to be skipped, unless CI requires the program:
/// `CI_REQUIRE_PGBOUNCER`.
pub fn program(names: &[&str], package: &str) -> Option<PathBuf> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let found = find(names).or_else(|| {
        let obtain = std::env::var("BUGLE_PG_OBTAIN").ok();
        if !may_install(obtain.as_deref()) || !install(&[package]) {
            return None;
        }
        find(names)
    });
    let required = format!("CI_REQUIRE_{}", names[0].to_uppercase());
    if found.is_none() {
        assert!(
            std::env::var_os(&required).is_none(),
            "{required} is set, and there is no {}",
            names[0]
        );
        eprintln!(
            "skipped: there is no {} on this machine (BUGLE_PG_OBTAIN=yes installs {package} on Debian, as root)",
            names[0]
        );
    }
    found
}

/// bin/test says `yes`, unless the user has said something else.
pub fn may_install(obtain: Option<&str>) -> bool {
    obtain == Some("yes")
}

/// Whether these packages of Debian are installed now.
pub fn install(packages: &[&str]) -> bool {
    let Some(mut root) = root() else {
        return false;
    };
    eprintln!("installing {} with apt (no service is started)", packages.join(", "));
    let installing = root.args(["-c", INSTALL, "sh"]).args(packages);
    let installed = installing.stdin(Stdio::null()).output();
    installed.is_ok_and(|output| output.status.success())
}

/// A shell that may install packages, if this is Debian or one of its descendants.
fn root() -> Option<Command> {
    if !Path::new("/etc/debian_version").exists() {
        return None;
    }
    if rustix::process::geteuid().is_root() {
        return Some(Command::new("sh"));
    }
    let may = Command::new("sudo").args(["-n", "true"]).output();
    may.is_ok_and(|output| output.status.success()).then(|| {
        let mut sudo = Command::new("sudo");
        sudo.args(["-n", "sh"]);
        sudo
    })
}

/// Services are not in everybody's PATH.
fn find(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.extend(["/usr/sbin", "/usr/bin", "/usr/local/bin"].map(PathBuf::from));
    names
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
        .find(|path| path.is_file())
}
