//! The worker processes, each behind a proxy of its own, each with as many lives as it needs.

use std::fs::File;
use std::future::ready;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::proxy::{Link, Proxy};
use super::worker::{HISTORY, LIFE};
use crate::judge::{Event, Fault, Recorder};
use crate::poll::look_for;

pub const SLOTS: usize = 6;
/// Besides, of the queue with limits and orders.
pub const EXACT_SLOTS: usize = 4;

/// One place for a worker.
pub struct Place {
    number: usize,
    /// Kept open as long as the place.
    proxy: Option<Proxy>,
    inner: Mutex<Inner>,
    folder: PathBuf,
    url: String,
    recorder: Recorder,
    /// A library that turns the wall clock of this worker.
    preload: Option<PathBuf>,
}

struct Inner {
    life: usize,
    process: Option<Child>,
    /// Somebody has a fault of its own for it at this moment.
    taken: bool,
}

impl Place {
    pub fn new(
        number: usize,
        proxy: Option<Proxy>,
        folder: PathBuf,
        url: String,
        recorder: Recorder,
        preload: Option<PathBuf>,
    ) -> Place {
        let inner = Mutex::new(Inner {
            life: 0,
            process: None,
            taken: false,
        });
        Place {
            number,
            proxy,
            inner,
            folder,
            url,
            recorder,
            preload,
        }
    }

    fn name(&self, life: usize) -> String {
        format!("w{}.{life}", self.number)
    }

    /// Its link to the server, where it has one of its own.
    pub fn link(&self) -> &Link {
        &self.proxy.as_ref().expect("a place behind a proxy").link
    }

    /// Who lives here now.
    pub fn life(&self) -> String {
        self.name(self.inner.lock().unwrap().life)
    }

    /// The id of the process.
    pub fn process(&self) -> Option<u32> {
        self.inner.lock().unwrap().process.as_ref().map(Child::id)
    }

    /// Have it for a fault, unless somebody else has.
    pub fn take(&self) -> bool {
        let mut inner = self.inner.lock().unwrap();
        !std::mem::replace(&mut inner.taken, true)
    }

    pub fn let_go(&self) {
        self.inner.lock().unwrap().taken = false;
    }

    pub fn start(&self) {
        let mut inner = self.inner.lock().unwrap();
        inner.life += 1;
        let name = self.name(inner.life);
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.folder.join(format!("{name}.log")));
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .args([
                "--name",
                &name,
                "--log",
                "debug",
                "--drain",
                "20s",
                "--safety-poll",
                "5s",
            ])
            .args([
                "--queue",
                &format!("default={SLOTS}"),
                "--queue",
                &format!("exact={EXACT_SLOTS}"),
            ])
            .args(["--pool-size", "4"])
            .arg("--config")
            .arg(self.folder.join("worker.toml"))
            .arg("--workdir")
            .arg(self.folder.join("work"))
            .env("BUGLE_DATABASE_URL", &self.url)
            .env_remove("DATABASE_URL")
            .env(HISTORY, self.folder.join("history"))
            .env(LIFE, &name)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.expect("a log"));
        if let Some(library) = &self.preload {
            command.env("LD_PRELOAD", library);
            self.recorder.record(Event::Fault {
                fault: Fault::ClockOff,
                whom: name,
            });
        }
        inner.process = Some(command.spawn().expect("a worker"));
    }

    fn signal(&self, signal: Signal) {
        let inner = self.inner.lock().unwrap();
        if let Some(process) = &inner.process {
            let _ = kill_process(Pid::from_child(process), signal);
        }
    }

    /// kill -9, and a new life after a moment.
    pub async fn kill(&self, pause: Duration) {
        let whom = self.life();
        self.record(Fault::Kill, &whom);
        self.signal(Signal::KILL);
        self.over(Fault::Kill, &whom);
        self.reap();
        // why: how long it stays dead is chosen by the round's seed
        tokio::time::sleep(pause).await;
        self.start();
    }

    pub async fn freeze(&self, time: Duration) {
        let whom = self.life();
        self.record(Fault::Freeze, &whom);
        self.signal(Signal::STOP);
        // why: how long it is frozen is chosen by the round's seed
        tokio::time::sleep(time).await;
        self.signal(Signal::CONT);
        self.over(Fault::Freeze, &whom);
    }

    /// Whether it has ever been started again.
    pub fn has_died(&self) -> bool {
        self.inner.lock().unwrap().life > 1
    }

    /// Whether it ended by itself, as one does whose job kills it. Then it gets a new life.
    pub fn revive_if_dead(&self) -> bool {
        let ended = {
            let mut inner = self.inner.lock().unwrap();
            let process = inner.process.as_mut();
            process.is_some_and(|process| process.try_wait().ok().flatten().is_some())
        };
        if ended {
            self.start();
        }
        ended
    }

    fn reap(&self) {
        let process = self.inner.lock().unwrap().process.take();
        if let Some(mut process) = process {
            let _ = process.wait();
        }
    }

    pub fn record(&self, fault: Fault, whom: &str) {
        let whom = whom.to_owned();
        self.recorder.record(Event::Fault { fault, whom });
    }

    pub fn over(&self, fault: Fault, whom: &str) {
        let whom = whom.to_owned();
        self.recorder.record(Event::Over { fault, whom });
    }

    /// Ask it to stop, and see to it. False if it had to be killed.
    pub async fn stop(&self) -> bool {
        self.signal(Signal::TERM);
        let ended = || match &mut self.inner.lock().unwrap().process {
            None => true,
            Some(process) => process.try_wait().ok().flatten().is_some(),
        };
        let ended = look_for(|| ready(ended().then_some(()))).await.is_some();
        if !ended {
            self.signal(Signal::KILL);
            self.reap();
        }
        ended
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        self.reap();
    }
}
