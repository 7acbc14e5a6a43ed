//! The environment of a program: as little as it needs. The variables of the worker contain passwords and tokens, so
//! they are passed on only if the worker's file says so.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::config::{Environment, ProgramEnv};
use crate::error::Result;

/// Passed on to every program if they are set for the worker.
pub const ALWAYS: [&str; 6] = ["PATH", "HOME", "LANG", "TZ", "TMPDIR", "USER"];

/// The search path if `PATH` is not set, as in the C library.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The variables of a program that are the same for all its jobs.
pub fn variables(wanted: &ProgramEnv, environment: Environment) -> Result<Vec<(OsString, OsString)>> {
    let is_named = |name: &OsStr| {
        let named = ALWAYS.iter().copied().chain(wanted.pass.iter().map(String::as_str));
        named.into_iter().any(|known| name == known)
    };
    let mut variables: Vec<(OsString, OsString)> = env::vars_os()
        .filter(|(name, _)| is_named(name) || wanted.inherit && !is_credential(name, &wanted.withheld))
        .collect();
    for (name, value) in &wanted.set {
        let value = value
            .resolve(environment)
            .map_err(|error| error.in_context(&format!("env {name}")))?;
        variables.retain(|(known, _)| known != name.as_str());
        variables.push((name.into(), value.into()));
    }
    Ok(variables)
}

/// Variables with the worker's own credentials. Passed on only if they are listed by name.
fn is_credential(name: &OsStr, withheld: &[String]) -> bool {
    let name = name.to_string_lossy();
    name == "DATABASE_URL"
        || name.starts_with("PG")
        || name.starts_with("BUGLE_")
        || withheld.iter().any(|known| *known == name)
}

/// The path of a program, found in the `PATH` that the program is given. For a name without a slash the standard
/// library would have to fork this process to search for it, which takes several times as long.
pub fn find(program: &str, variables: &[(OsString, OsString)]) -> io::Result<PathBuf> {
    if program.contains('/') {
        return Ok(program.into());
    }
    let path = variables.iter().find(|(name, _)| name == "PATH");
    let path = path.map_or(OsStr::new(DEFAULT_PATH), |(_, path)| path);
    let mut reason = ErrorKind::NotFound;
    for folder in env::split_paths(path) {
        // an empty entry means the current directory
        let file = Path::new(".").join(folder).join(program);
        match fs::metadata(&file) {
            Ok(found) if found.is_file() && found.permissions().mode() & 0o111 != 0 => return Ok(file),
            Ok(found) if found.is_file() => reason = ErrorKind::PermissionDenied,
            Err(error) if error.kind() == ErrorKind::PermissionDenied => reason = ErrorKind::PermissionDenied,
            _ => {}
        }
    }
    Err(reason.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_in_the_path_it_is_given() {
        let find_in = |path: &str| find("sh", &[("PATH".into(), path.into())]);

        assert_eq!(find_in("/nowhere:/bin").unwrap(), Path::new("/bin/sh"));
        assert_eq!(find_in("/nowhere").unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(find("sh", &[]).unwrap(), Path::new("/bin/sh"));
        assert_eq!(find("./sh", &[]).unwrap(), Path::new("./sh"));
        // a directory is not a program
        let error = find("bin", &[("PATH".into(), "/".into())]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn what_the_worker_logs_in_with_is_known_by_name() {
        let withheld = ["APP_DATABASE".to_string()];
        for name in [
            "DATABASE_URL",
            "PGPASSWORD",
            "PGHOST",
            "BUGLE_TOKEN",
            "BUGLE_DATABASE_URL",
            "APP_DATABASE",
        ] {
            assert!(is_credential(OsStr::new(name), &withheld), "{name}");
        }
        assert!(!is_credential(OsStr::new("APP_DATABASE_2"), &withheld));
    }
}
