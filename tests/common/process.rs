//! Real worker processes, to be killed, frozen and asked to stop.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use bugle::private_postgres::PrivatePostgres;
use rustix::process::{Pid, Signal, kill_process};

use super::poll::look_for;
use super::{BUGLE, Database};

const PREFIX: &str = "bugle-test-";

/// Remove what test programs left behind that were killed: no folder of theirs was dropped.
fn sweep() {
    let entries = std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    for entry in entries.filter(|_| Path::new("/proc/self").exists()) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split_once('-')?.0.parse::<u32>().ok());
        if owner.is_some_and(|owner| !Path::new(&format!("/proc/{owner}")).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// A folder that is gone with the test.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static SWEPT: std::sync::Once = std::sync::Once::new();
        SWEPT.call_once(sweep);
        Folder::within(&std::env::temp_dir())
    }

    /// In a place that is gone itself: for what is never dropped.
    pub fn within(place: &Path) -> Folder {
        let path = place.join(format!("{PREFIX}{}-{:016x}", std::process::id(), fastrand::u64(..)));
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.join(name);
        std::fs::write(&path, text).expect("a file");
        path
    }

    /// The lines programs appended to a file so far.
    pub fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.join(name)).unwrap_or_default();
        text.lines().map(String::from).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // lets go of every program that still waits for it
        let _ = std::fs::write(self.join("release"), "");
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `bugle worker` as a process of its own.
pub struct WorkerProcess {
    child: Child,
    log: PathBuf,
}

impl WorkerProcess {
    /// Start one with this file, logged in as a member of `bugle_worker`.
    pub fn start(database: &Database, folder: &Folder, name: &str, config: &str, arguments: &[&str]) -> WorkerProcess {
        WorkerProcess::of(BUGLE.as_ref(), database, folder, name, config, arguments)
    }

    /// The same of another build.
    pub fn of(
        program: &Path,
        database: &Database,
        folder: &Folder,
        name: &str,
        config: &str,
        arguments: &[&str],
    ) -> WorkerProcess {
        let file = folder.write(&format!("{name}.toml"), config);
        let log = folder.join(&format!("{name}.log"));
        let child = Command::new(program)
            .args(["worker", "--name", name, "--log", "debug", "--config"])
            .arg(file)
            .args(["--workdir".as_ref(), folder.join("work").as_os_str()])
            .args(arguments)
            .env("BUGLE_DATABASE_URL", database.url("worker"))
            .env_remove("DATABASE_URL")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::options().create(true).append(true).open(&log).expect("a log"))
            .spawn()
            .expect("bugle starts");
        WorkerProcess { child, log }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a pid");
        kill_process(pid, signal).expect("a living process");
    }

    /// kill -9.
    pub fn kill(mut self) {
        self.signal(Signal::KILL);
        self.child.wait().expect("it is gone");
    }

    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// What it logged, line by line.
    pub fn events(&self) -> Vec<serde_json::Value> {
        self.log()
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// Wait until it has logged this event, and return the first of them.
    pub async fn event(&self, event: &str) -> serde_json::Value {
        let found = || self.events().into_iter().find(|line| line["event"] == event);
        let found = look_for(|| std::future::ready(found())).await;
        found.unwrap_or_else(|| panic!("the worker logs no {event:?}\n{}", self.log()))
    }

    /// Where it listens, once it does: start it with `--listen 127.0.0.1:0`.
    pub async fn address(&self) -> std::net::SocketAddr {
        let listens = self.event("listen").await;
        listens["address"]
            .as_str()
            .and_then(|text| text.parse().ok())
            .expect("an address")
    }

    /// Wait for its end.
    pub async fn ended(mut self) -> ExitStatus {
        let ended = look_for(|| std::future::ready(self.child.try_wait().expect("a child"))).await;
        ended.unwrap_or_else(|| panic!("the worker does not end\n{}", self.log()))
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.log.display(), self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server whose processes are stopped until this is dropped. Its connections stay open, and it does not answer.
#[must_use]
pub struct FrozenServer(Vec<Pid>);

impl FrozenServer {
    pub fn freeze(server: &PrivatePostgres) -> FrozenServer {
        // the postmaster first: afterwards there are no new ones
        let mut frozen = FrozenServer(Vec::new());
        for _ in 0..2 {
            frozen.0 = server_processes(server);
            frozen.signal(Signal::STOP);
        }
        frozen
    }

    fn signal(&self, signal: Signal) {
        for process in &self.0 {
            let _ = kill_process(*process, signal);
        }
    }
}

impl Drop for FrozenServer {
    fn drop(&mut self) {
        self.signal(Signal::CONT);
    }
}

/// Its postmaster, and the processes that this has started.
fn server_processes(server: &PrivatePostgres) -> Vec<Pid> {
    let lock = std::fs::read_to_string(server.data_dir().join("postmaster.pid")).expect("it runs");
    let postmaster: i32 = lock.lines().next().and_then(|id| id.parse().ok()).expect("an id");
    let parent = |id: i32| -> Option<i32> {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let entries = std::fs::read_dir("/proc").expect("a list").flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let of_server = ids.filter(|id| *id == postmaster || parent(*id) == Some(postmaster));
    of_server.filter_map(Pid::from_raw).collect()
}
