//! Directories whose abandonment can be detected: a process that uses one holds a lock on it, which the kernel releases
//! when the process dies. There are no process ids in files, because ids are reused.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A directory in use, until this is dropped or the process ends. Dropping it does not remove the directory.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    _in_use: File,
}

impl Folder {
    /// Create a new directory `<place>/<prefix>XXXXXXXX` with mode 0700.
    pub fn create(place: &Path, prefix: &str) -> Result<Folder> {
        for _ in 0..100 {
            let name: String = (0..8).map(|_| fastrand::alphanumeric().to_ascii_lowercase()).collect();
            let path = place.join(format!("{prefix}{name}"));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => {
                    return Err(error).with_context(|| format!("could not create {}", path.display()));
                }
            }
            // another process may have swept the directory before it was locked; then create another one
            if let Ok(folder) = Folder::join(&path) {
                return Ok(folder);
            }
        }
        bail!("could not create a directory {}/{prefix}…", place.display())
    }

    /// Use a directory together with the processes that already use it.
    pub fn join(path: &Path) -> Result<Folder> {
        let handle = File::open(path).with_context(|| format!("could not open {}", path.display()))?;
        handle
            .try_lock_shared()
            .with_context(|| format!("{} is being removed", path.display()))?;
        // the directory may have been removed just before it was locked
        if fs::metadata(path).map(|found| found.ino()).ok() != Some(handle.metadata()?.ino()) {
            bail!("{} has been removed", path.display());
        }
        Ok(Folder {
            path: path.to_owned(),
            _in_use: handle,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Remove the directories in `place` that start with `prefix` and are no longer in use.
///
/// Only directories owned by one of `owners` are touched, because anybody can create such names in a public place. What
/// cannot be removed is left for the next sweep. `before` is called for each while it is locked.
pub(super) fn sweep(place: &Path, prefix: &str, owners: &[u32], before: impl Fn(&Path)) {
    let Ok(entries) = fs::read_dir(place) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        let ours = |found: fs::Metadata| found.is_dir() && owners.contains(&found.uid());
        if !path.file_name().is_some_and(|name| starts_with(name, prefix))
            || !fs::symlink_metadata(&path).is_ok_and(ours)
        {
            continue;
        }
        let Ok(handle) = File::open(&path) else {
            continue;
        };
        if handle.try_lock().is_ok() {
            before(&path);
            let _ = fs::remove_dir_all(&path);
        }
    }
}

fn starts_with(name: &OsStr, prefix: &str) -> bool {
    name.as_encoded_bytes().starts_with(prefix.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_sweep_removes_what_nobody_uses_and_nothing_else() {
        let place = Folder::create(Path::new("/tmp"), "bugle-test-").unwrap();
        let owner = rustix::process::geteuid().as_raw();
        let used = Folder::create(place.path(), "x-").unwrap();
        let shared = Folder::create(place.path(), "x-").unwrap();
        let second_user = Folder::join(shared.path()).unwrap();
        let (shared_path, abandoned) = (shared.path().to_owned(), place.path().join("x-abandoned"));
        drop(shared);
        fs::create_dir_all(abandoned.join("deep/inside")).unwrap();
        fs::create_dir(place.path().join("other")).unwrap();

        sweep(place.path(), "x-", &[owner + 1], |_| panic!("not its owner"));
        sweep(place.path(), "x-", &[owner], |path| assert_eq!(path, abandoned));

        assert!(used.path().exists() && shared_path.exists() && place.path().join("other").exists());
        assert!(!abandoned.exists());

        drop(second_user);
        // a process that another test forks holds these handles and their locks until it calls exec
        let deadline = Instant::now() + Duration::from_secs(60);
        while shared_path.exists() && Instant::now() < deadline {
            sweep(place.path(), "x-", &[owner], |_| {});
        }
        assert!(!shared_path.exists() && used.path().exists());
        fs::remove_dir_all(place.path()).unwrap();
    }
}
