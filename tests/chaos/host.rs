//! A host of the worker processes: this program once more, which speaks the protocol of hosts and writes down what it
//! sees. It is killed and frozen while it runs jobs.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::worker::{HISTORY, LIFE, Task};
use crate::judge::{Event, Recorder};

/// Set for hosts by the worker: its socket.
pub const SOCKET: &str = "BUGLE_HOST";
/// How many jobs a process runs at once.
pub const CONCURRENCY: usize = 3;

/// The section of the worker's file.
pub fn section() -> String {
    let program = std::env::current_exe().expect("this program").display().to_string();
    format!(
        "[hosts.chaos]\nprogram = [{program:?}]\nprocesses = 2\nconcurrency = {CONCURRENCY}\nmax_jobs = 2000\n\
         env = [\"{HISTORY}\", \"{LIFE}\"]\n"
    )
}

/// Where the hosts that run are written down, each as a file named by its process.
pub fn folder(history: &Path) -> PathBuf {
    history.with_file_name("hosts")
}

/// What all jobs of this process share.
struct Here {
    recorder: Recorder,
    worker: Mutex<UnixStream>,
    /// Jobs that should stop.
    cancelled: Mutex<HashSet<(i64, i64)>>,
}

pub fn run(socket: &Path) -> ExitCode {
    let history = PathBuf::from(std::env::var_os(HISTORY).expect("a folder"));
    // the judge takes it for a part of this life of its worker
    let name = format!("{}@{}", std::env::var(LIFE).expect("a name"), std::process::id());
    let folder = folder(&history);
    std::fs::create_dir_all(&folder).expect("a folder");
    let worker = UnixStream::connect(socket).expect("the worker listens");
    let here = Arc::new(Here {
        recorder: Recorder::new(&history, &name),
        worker: Mutex::new(worker.try_clone().expect("a handle")),
        cancelled: Mutex::default(),
    });
    here.send(json!({
        "type": "hello", "protocol": 1, "commands": ["hosted", {"name": "hosted_many", "most": 20}],
        "concurrency": CONCURRENCY,
    }));
    std::fs::write(folder.join(std::process::id().to_string()), name).expect("a file");
    for line in BufReader::new(worker).lines() {
        let Ok(line) = line else { break };
        let message: Value = serde_json::from_str(&line).expect("a line of the protocol");
        match message["type"].as_str() {
            Some("job") => here.begin(vec![message]),
            Some("jobs") => here.begin(message["jobs"].as_array().cloned().unwrap_or_default()),
            Some("cancel") => drop(here.cancelled.lock().unwrap().insert(held(&message))),
            Some("ping") => here.send(json!({"type": "pong"})),
            _ => {}
        }
    }
    ExitCode::SUCCESS
}

fn held(message: &Value) -> (i64, i64) {
    let number = |name: &str| message[name].as_str().and_then(|text| text.parse().ok());
    (number("id").expect("an id"), number("claim").expect("a claim"))
}

impl Here {
    fn send(&self, message: Value) {
        let line = format!("{message}\n");
        // the worker is gone, and this process is about to be
        let _ = self.worker.lock().unwrap().write_all(line.as_bytes());
    }

    /// Run the jobs of one call, in a thread of their own.
    fn begin(self: &Arc<Self>, jobs: Vec<Value>) {
        let here = self.clone();
        std::thread::spawn(move || {
            for (job, claim) in jobs.iter().map(held) {
                here.recorder.record(Event::Started { job, claim });
            }
            let tasks = jobs.iter().map(|job| serde_json::from_value(job["payload"].clone()));
            let tasks: Vec<Task> = tasks.map(|task| task.expect("a task")).collect();
            let until = Instant::now() + Duration::from_millis(tasks.iter().map(|task| task.ms).max().unwrap_or(0));
            for (message, task) in jobs.iter().zip(&tasks) {
                here.finish(message, task, until);
            }
        });
    }

    /// Do what the job asks for, and say how it ended.
    fn finish(&self, message: &Value, task: &Task, until: Instant) {
        let (job, claim) = held(message);
        while Instant::now() < until {
            if self.cancelled.lock().unwrap().remove(&(job, claim)) {
                self.recorder.record(Event::Stopped { job, claim });
                return self.answer(message, json!({"type": "cancelled"}));
            }
            // why: the work that a job asks for is to take this long
            std::thread::sleep(Duration::from_millis(5));
        }
        let is_first = message["attempt"] == 1;
        let (outcome, answer) = match task.act.as_str() {
            "fail" if is_first => ("fail", json!({"type": "fail", "error": "once", "retry_after": 0.3})),
            "fail_for_good" => ("fail", json!({"type": "fail", "error": "no", "retryable": false})),
            "snooze" if claim == 1 => ("snooze", json!({"type": "snooze", "delay": 0.3})),
            _ => ("complete", json!({"type": "done", "result": {"by": "host"}})),
        };
        let outcome = outcome.to_owned();
        self.recorder.record(Event::Finished { job, claim, outcome });
        self.answer(message, answer);
    }

    fn answer(&self, message: &Value, mut answer: Value) {
        (answer["id"], answer["claim"]) = (message["id"].clone(), message["claim"].clone());
        self.send(answer);
    }
}
