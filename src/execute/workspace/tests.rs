use std::process::{Command, Stdio};

use super::*;

const JOB: HeldJob = HeldJob { id: 17, claim: 42 };

/// A folder for one test, removed with it.
struct Base(PathBuf);

impl Base {
    fn new() -> Base {
        let path = std::env::temp_dir().join(format!("bugle-test-{:016x}", fastrand::u64(..)));
        DirBuilder::new().mode(0o700).create(&path).unwrap();
        Base(path)
    }
}

impl Base {
    /// The folder that is ours.
    fn ours(&self) -> PathBuf {
        self.0
            .join(format!("bugle-work-{}", rustix::process::geteuid().as_raw()))
    }

    fn left(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.ours()).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        remove_logged(&self.0);
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

#[test]
fn a_folder_is_private_and_says_which_attempt_it_belongs_to() {
    let base = Base::new();

    let workspace = Workspace::prepare(&base.0, JOB).unwrap();

    assert_eq!(workspace.path(), base.0.join("job-17-claim-42"));
    assert_eq!(mode(workspace.path()), 0o700);
}

#[test]
fn a_folder_is_removed_with_all_that_is_in_it() {
    let base = Base::new();
    let workspace = Workspace::prepare(&base.0, JOB).unwrap();
    let path = workspace.path().to_path_buf();
    let inner = path.join("a/b");
    fs::create_dir_all(&inner).unwrap();
    fs::write(inner.join("file"), "x").unwrap();
    fs::set_permissions(&inner, Permissions::from_mode(0o500)).unwrap();
    fs::set_permissions(path.join("a"), Permissions::from_mode(0o000)).unwrap();

    drop(workspace);

    assert!(!path.exists());
}

#[test]
fn links_in_a_folder_are_removed_and_what_they_point_to_is_not() {
    let base = Base::new();
    let precious = base.0.join("precious");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("file"), "x").unwrap();
    let workspace = Workspace::prepare(&base.0, JOB).unwrap();
    std::os::unix::fs::symlink(&precious, workspace.path().join("link")).unwrap();

    drop(workspace);

    assert!(precious.join("file").exists());
}

#[test]
fn a_folder_that_is_kept_stays() {
    let base = Base::new();
    let workspace = Workspace::prepare(&base.0, JOB).unwrap();
    let path = workspace.path().to_path_buf();

    workspace.keep();

    assert!(path.exists());
}

#[test]
fn the_folder_of_a_live_worker_survives_the_start_of_another() {
    let base = Base::new();
    let first = Workspaces::open(&base.0).unwrap();
    let job = Workspace::prepare(first.path(), JOB).unwrap();

    let second = Workspaces::open(&base.0).unwrap();

    assert_ne!(first.path(), second.path());
    assert!(job.path().exists());
    assert_eq!(mode(first.path()), 0o700);
}

#[test]
fn a_worker_that_ends_takes_its_folder_along() {
    let base = Base::new();
    let workspaces = Workspaces::open(&base.0).unwrap();
    Workspace::prepare(workspaces.path(), JOB).unwrap().keep();
    let path = workspaces.path().to_path_buf();

    drop(workspaces);

    assert!(!path.exists());
}

/// The other worker is this very test, run again in a process of its own and killed there.
#[test]
fn the_folder_of_a_killed_worker_is_removed_by_the_next() {
    if let Some(base) = std::env::var_os("BUGLE_TEST_DIE_IN") {
        let workspaces = Workspaces::open(Path::new(&base)).unwrap();
        Workspace::prepare(workspaces.path(), JOB).unwrap().keep();
        std::process::abort();
    }
    let base = Base::new();
    let name = "execute::workspace::tests::the_folder_of_a_killed_worker_is_removed_by_the_next";
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env("BUGLE_TEST_DIE_IN", &base.0)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(!ended.success());
    let killed = base.left();
    assert_eq!(killed.len(), 1, "the killed worker left its folder");
    // a program of it that is still there, and has left its process group
    let mark = format!("{}.1", killed[0].file_name().unwrap().to_string_lossy());
    let program = Command::new("setsid")
        .args(["sleep", "600"])
        .env(leftovers::MARK, mark)
        .spawn();
    let mut program = program.unwrap();

    let next = Workspaces::open(&base.0).unwrap();

    assert_eq!(base.left(), [next.path()]);
    #[cfg(target_os = "linux")]
    assert!(!program.wait().unwrap().success(), "it was killed");
    let _ = program.kill();
}

#[test]
fn nothing_is_swept_but_marked_folders_in_our_own() {
    let base = Base::new();
    drop(Workspaces::open(&base.0).unwrap());
    let precious = base.0.join("precious");
    // as a dead worker's folder looks, wherever it is
    let make = |folder: &Path| {
        fs::create_dir_all(folder.join("job-1-claim-1")).unwrap();
        fs::write(folder.join(MARK), "").unwrap();
        folder.to_path_buf()
    };
    make(&precious);
    let unmarked = base.ours().join("worker-1-unmarked-1");
    fs::create_dir(&unmarked).unwrap();
    let marked_by_a_folder = base.ours().join("worker-1-folder-1");
    fs::create_dir_all(marked_by_a_folder.join(MARK)).unwrap();
    let marked_by_a_link = base.ours().join("worker-1-link-1");
    fs::create_dir(&marked_by_a_link).unwrap();
    std::os::unix::fs::symlink(precious.join(MARK), marked_by_a_link.join(MARK)).unwrap();
    let link = base.ours().join("worker-2-link-1");
    std::os::unix::fs::symlink(&precious, &link).unwrap();
    let file = base.ours().join("worker-3-file-1");
    fs::write(&file, "x").unwrap();
    let kept = [
        unmarked,
        marked_by_a_folder,
        marked_by_a_link,
        link,
        file,
        precious.join("job-1-claim-1"),
        make(&base.0.join("worker-4-outside-1")),
        make(&base.ours().join("another-name")),
    ];
    let dead = make(&base.ours().join("worker-5-dead-1"));

    let _workspaces = Workspaces::open(&base.0).unwrap();

    for path in kept {
        assert!(path.symlink_metadata().is_ok(), "{} is gone", path.display());
    }
    assert!(!dead.exists());
}

#[test]
fn a_link_is_not_taken_for_our_own_folder() {
    let base = Base::new();
    let elsewhere = base.0.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, base.ours()).unwrap();

    Workspaces::open(&base.0).unwrap_err();

    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
}

#[test]
fn a_folder_of_another_user_is_refused() {
    let base = Base::new();
    fs::create_dir(base.ours()).unwrap();
    // only root can give a folder away
    if std::os::unix::fs::chown(base.ours(), Some(12345), None).is_err() {
        return;
    }

    let error = Workspaces::open(&base.0).unwrap_err().to_string();

    assert!(error.contains("belongs to another user (uid 12345)"), "{error}");
}
