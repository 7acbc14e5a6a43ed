//! Working directories: one per worker, and in it one for each attempt that needs it. All of them are removed.
//!
//! ```text
//! <workdir>/bugle-work-1000/worker-4711-k3v9x2qa81mc-1/job-17-claim-42/
//! ```
//!
//! Everything is in one directory owned by the user: `bugle-work-` and the user id. A worker holds a lock on its own
//! directory in it as long as it lives. The system releases the lock however the worker ends, so a marked directory
//! whose lock is free is abandoned, and the next worker removes it. Nothing else is ever removed. The directory itself
//! is locked rather than a file in it, because cleaners of temporary directories (systemd-tmpfiles) skip locked
//! directories.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::execute::leftovers;
use crate::job::HeldJob;

/// The directory of this process, which contains the directories of its jobs. Removed when dropped.
#[derive(Debug)]
pub struct Workspaces {
    path: PathBuf,
    _lock: File,
}

impl Workspaces {
    /// The default parent directory.
    pub fn default_base() -> PathBuf {
        std::env::temp_dir()
    }

    /// Create this worker's directory under `base`, and remove those of dead workers.
    ///
    /// # Errors
    /// If the directory cannot be created, or if `base` or the directory in it is owned by another user, who could then
    /// replace its contents.
    pub fn open(base: &Path) -> io::Result<Workspaces> {
        static OPENED: AtomicU64 = AtomicU64::new(1);
        make_folder(base)?;
        let us = rustix::process::geteuid().as_raw();
        let found = fs::metadata(base)?;
        // in a sticky directory, only the owner of a file can replace it
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
        // it is not removed before it has its mark, but a sweeper may be trying the lock
        let lock = open_folder(&path)?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        File::create_new(path.join(MARK))?;
        Ok(Workspaces { path, _lock: lock })
    }

    /// The directory of this process.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Workspaces {
    fn drop(&mut self) {
        remove_logged(&self.path);
    }
}

/// The directory of one attempt. Removed when dropped.
#[derive(Debug)]
pub struct Workspace {
    path: PathBuf,
}

impl Workspace {
    /// Create the directory of this attempt under `root`. If it exists, it is the same one.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn prepare(root: &Path, held: HeldJob) -> io::Result<Workspace> {
        let path = root.join(format!("job-{}-claim-{}", held.id, held.claim));
        make_folder(&path)?;
        Ok(Workspace { path })
    }

    /// The directory of this attempt, which its executor creates if it needs one.
    pub fn announce(root: &Path, held: HeldJob) -> Workspace {
        let path = root.join(format!("job-{}-claim-{}", held.id, held.claim));
        Workspace { path }
    }

    /// Create it if it does not exist.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn make(&self) -> io::Result<()> {
        make_folder(&self.path)
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Release the directory without removing it.
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

/// Marks a directory as created by a worker.
const MARK: &str = ".bugle-worker";

/// Remove the directories of dead workers, and kill the processes their programs left running. What cannot be removed
/// is left for the next sweep.
fn sweep(ours: &Path, us: u32) {
    let Ok(entries) = fs::read_dir(ours) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        // the lock is held until the directory is removed, so that two sweepers do not interfere
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

/// The lock of a directory; `None` if another process holds it or has just removed the directory.
fn lock(folder: &Path) -> io::Result<Option<File>> {
    let file = open_folder(folder)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) if folder.exists() => Ok(Some(file)),
        Ok(()) | Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Does not follow links, which may point anywhere.
fn open_folder(folder: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(folder, flags, Mode::empty())?))
}

fn remove_logged(folder: &Path) {
    if let Err(error) = remove(folder) {
        let folder = folder.display();
        tracing::warn!(event = "workspace", %folder, %error, "a working directory could not be removed");
    }
}

/// Remove a directory with its contents. Processes that were just killed may still write to it, hence the retries.
fn remove(folder: &Path) -> io::Result<()> {
    // most are empty, and those of hosts mostly were never made
    match fs::remove_dir(folder) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(_) => {}
    }
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

/// Removing the contents of a directory requires write permission for it.
fn make_writable(folder: &Path) {
    let _ = fs::set_permissions(folder, Permissions::from_mode(0o700));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        // does not follow links, which may point anywhere
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            make_writable(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests;
