//! Working folders: one for each worker, in it one for each attempt that asks, and all of them gone in the end.
//!
//! ```text
//! <base>/worker-4711-k3v9x2qa/job-17-claim-42/
//! ```
//!
//! A worker holds a lock on its folder for as long as it lives. The system drops the lock however the worker ends, so a
//! folder whose lock can be had belongs to nobody, and the next worker removes it. The folder itself is locked and not a
//! file in it: cleaners of temporary folders (systemd-tmpfiles) leave a locked folder alone.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind};
use std::iter::repeat_with;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::job::HeldJob;

/// The folder of this process, in which the folders of its jobs are made. Removed when dropped.
#[derive(Debug)]
pub struct Workspaces {
    path: PathBuf,
    _lock: File,
}

impl Workspaces {
    /// Where folders are made if nobody says otherwise: apart for each user, since nobody else can write there.
    pub fn default_base() -> PathBuf {
        std::env::temp_dir().join(format!("bugle-work-{}", rustix::process::geteuid().as_raw()))
    }

    /// Make this process' folder under `base`, and remove those of workers that are no more.
    ///
    /// # Errors
    /// If the folder cannot be made, or if `base` belongs to another user, who could then exchange what is in it.
    pub fn open(base: &Path) -> io::Result<Workspaces> {
        make_folder(base)?;
        let owner = fs::metadata(base)?.uid();
        if owner != 0 && owner != rustix::process::geteuid().as_raw() {
            let message = format!("{} belongs to another user (uid {owner})", base.display());
            return Err(io::Error::new(ErrorKind::PermissionDenied, message));
        }
        sweep(base);
        loop {
            let random: String = repeat_with(fastrand::alphanumeric).take(8).collect();
            let path = base.join(format!("worker-{}-{random}", std::process::id()));
            DirBuilder::new().mode(0o700).create(&path)?;
            // Another worker may sweep between these two lines, and take the new folder for a dead one's.
            match lock(&path) {
                Ok(Some(lock)) => return Ok(Workspaces { path, _lock: lock }),
                Ok(None) => continue,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            }
        }
    }

    /// The folder of this process.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Workspaces {
    fn drop(&mut self) {
        remove_logged(&self.path);
    }
}

/// The folder of one attempt. Removed when dropped.
#[derive(Debug)]
pub struct Workspace {
    path: PathBuf,
}

impl Workspace {
    /// Make the folder of this attempt under `root`. If it is there already, it is the same one.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn prepare(root: &Path, held: HeldJob) -> io::Result<Workspace> {
        let path = root.join(format!("job-{}-claim-{}", held.id, held.claim));
        make_folder(&path)?;
        Ok(Workspace { path })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Forget about the folder without removing it.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        remove_logged(&self.path);
    }
}

fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(path)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot make {}: {error}", path.display())))
}

/// Remove the folders of dead workers. What cannot be removed is left for the next one to try.
fn sweep(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with("worker-") {
            continue;
        }
        // the lock is held until the folder is gone, so that two sweepers do not meet in it
        if let Ok(Some(_lock)) = lock(&entry.path()) {
            remove_logged(&entry.path());
        }
    }
}

/// The lock of a folder, or none if somebody holds it or has just removed the folder.
fn lock(folder: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(folder, flags, Mode::empty())?);
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) if folder.exists() => Ok(Some(file)),
        Ok(()) | Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn remove_logged(folder: &Path) {
    if let Err(error) = remove(folder) {
        tracing::warn!(event = "workspace", folder = %folder.display(), %error, "a working folder is left behind");
    }
}

/// Remove a folder with all that is in it. Processes that were just killed may still write there, hence the tries.
fn remove(folder: &Path) -> io::Result<()> {
    for _ in 0..5 {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => make_writable(folder),
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => std::thread::yield_now(),
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => return Ok(()),
        }
    }
    fs::remove_dir_all(folder)
}

/// Only who may write to a folder can remove what is in it.
fn make_writable(folder: &Path) {
    let _ = fs::set_permissions(folder, Permissions::from_mode(0o700));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        // not through links: they may point anywhere
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            make_writable(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests;
