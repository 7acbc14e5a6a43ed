use std::process::{Command, Stdio};

use super::*;

const JOB: HeldJob = HeldJob { id: 17, claim: 42 };

/// A folder for one test, removed with it.
struct Base(PathBuf);

impl Base {
    fn new() -> Base {
        let random: String = repeat_with(fastrand::alphanumeric).take(12).collect();
        let path = std::env::temp_dir().join(format!("bugle-test-{random}"));
        DirBuilder::new().mode(0o700).create(&path).unwrap();
        Base(path)
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
    let name = "workspace::tests::the_folder_of_a_killed_worker_is_removed_by_the_next";
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env("BUGLE_TEST_DIE_IN", &base.0)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(!ended.success());
    assert_eq!(
        fs::read_dir(&base.0).unwrap().count(),
        1,
        "the killed worker left its folder"
    );

    let next = Workspaces::open(&base.0).unwrap();

    let left: Vec<_> = fs::read_dir(&base.0).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(left, [next.path()]);
}

#[test]
fn what_is_not_a_workers_folder_is_not_swept() {
    let base = Base::new();
    fs::create_dir(base.0.join("something")).unwrap();
    fs::write(base.0.join("worker-1-file"), "x").unwrap();

    let _workspaces = Workspaces::open(&base.0).unwrap();

    assert!(base.0.join("something").exists());
    assert!(base.0.join("worker-1-file").exists());
}
