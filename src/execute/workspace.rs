//! Working folders: one for each worker, in it one for each attempt that asks, and all of them gone in the end.
//!
//! ```text
//! <workdir>/bugle-work-1000/worker-4711-k3v9x2qa81mc-1/job-17-claim-42/
//! ```
//!
//! Everything is in one folder that belongs to us: `bugle-work-` and the number of the user. A worker holds a lock on
//! its own folder in there for as long as it lives. The system drops the lock however the worker ends, so a folder that
//! we have marked and whose lock can be had belongs to nobody, and the next worker removes it. Nothing else is ever
//! removed. The folder itself is locked and not a file in it: cleaners of temporary folders (systemd-tmpfiles) leave a
//! locked folder alone.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::execute::leftovers;
use crate::job::HeldJob;

/// The folder of this process, in which the folders of its jobs are made. Removed when dropped.
#[derive(Debug)]
pub struct Workspaces {
    path: PathBuf,
    _lock: File,
}

impl Workspaces {
    /// Where folders are made by default.
    pub fn default_base() -> PathBuf {
        std::env::temp_dir()
    }

    /// Make this worker's folder under `base`, and remove those of workers that are no more.
    ///
    /// # Errors
    /// If the folder cannot be made, or if `base` or our folder in it belongs to another user, who could then exchange
    /// what is in it.
    pub fn open(base: &Path) -> io::Result<Workspaces> {
        static OPENED: AtomicU64 = AtomicU64::new(1);
        make_folder(base)?;
        let us = rustix::process::geteuid().as_raw();
        let found = fs::metadata(base)?;
        // in a folder for everybody's files only their owners can exchange them
        if found.mode() & 0o1000 == 0 {
            check_owner(base, found.uid(), &[0, us])?;
        }
        let ours = base.join(format!("bugle-work-{us}"));
        make_folder(&ours)?;
        check_owner(&ours, open_folder(&ours)?.metadata()?.uid(), &[us])?;
        sweep(&ours, us);

        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        let path = ours.join(format!("{}-{number}", leftovers::this_process()));
        DirBuilder::new().mode(0o700).create(&path)?;
        // nobody removes it before it has its mark, but a sweeper may just be trying the lock
        let lock = open_folder(&path)?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        File::create_new(path.join(MARK))?;
        Ok(Workspaces { path, _lock: lock })
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

fn check_owner(folder: &Path, owner: u32, allowed: &[u32]) -> io::Result<()> {
    if allowed.contains(&owner) {
        return Ok(());
    }
    let message = format!("{} belongs to another user (uid {owner})", folder.display());
    Err(io::Error::new(ErrorKind::PermissionDenied, message))
}

/// Says that a worker made this folder.
const MARK: &str = ".bugle-worker";

/// Remove the folders of dead workers, and end what their programs left running. What cannot be removed is left for the
/// next one to try.
fn sweep(ours: &Path, us: u32) {
    let Ok(entries) = fs::read_dir(ours) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        // the lock is held until the folder is gone, so that two sweepers do not meet in it
        let Ok(Some(lock)) = lock(&path) else { continue };
        let belongs_to_us = |found: io::Result<fs::Metadata>| found.is_ok_and(|found| found.uid() == us);
        let mark = fs::symlink_metadata(path.join(MARK));
        let is_marked = mark.as_ref().is_ok_and(fs::Metadata::is_file) && belongs_to_us(mark);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if is_marked && belongs_to_us(lock.metadata()) && name.starts_with("worker-") {
            leftovers::end_all_of(&name);
            remove_logged(&path);
        }
    }
}

/// The lock of a folder, or none if another process holds it or has just removed the folder.
fn lock(folder: &Path) -> io::Result<Option<File>> {
    let file = open_folder(folder)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) if folder.exists() => Ok(Some(file)),
        Ok(()) | Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Not through a link: it may point anywhere.
fn open_folder(folder: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(folder, flags, Mode::empty())?))
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
