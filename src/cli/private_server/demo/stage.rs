//! What the demo runs on: a database with the schema, logins with minimal privileges, and worker
//! processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio_postgres::Client;

use super::checks::value;
use crate::db::connect;
use crate::db::connect::Target;
use crate::error::Error;
use crate::schema;

const ROLES: [&str; 4] = ["bugle_enqueuer", "bugle_worker", "bugle_viewer", "bugle_operator"];

/// Everything that has to be removed at the end.
pub struct Stage {
    server: Target,
    /// The name of the database and prefix of its logins.
    name: String,
    password: String,
    folder: PathBuf,
    workers: Vec<WorkerProcess>,
    /// Roles of the schema that did not exist before; they belong to the whole server and are dropped at the end.
    new_roles: Vec<&'static str>,
}

pub struct WorkerProcess {
    pub name: &'static str,
    process: Child,
}

impl WorkerProcess {
    fn signal(&self, signal: Signal) -> Result<()> {
        let id = self.process.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Ok(kill_process(id.context("the worker has already exited")?, signal)?)
    }

    /// A second signal stops a worker and its programs at once. A worker that does not stop is killed.
    async fn end(&mut self) {
        // two different signals: a second one of the same kind is lost while the first is pending
        let _ = self.signal(Signal::INT).and_then(|()| self.signal(Signal::TERM));
        if tokio::time::timeout(Duration::from_secs(2), self.process.wait())
            .await
            .is_err()
        {
            let _ = self.process.kill().await;
        }
    }
}

impl Stage {
    pub fn new(server: &str) -> Result<Stage> {
        let server = connect::parse(server)?;
        let name = format!("bugle_demo_{:08x}", fastrand::u32(..));
        // next to the socket of a private server, so that it is removed with that server in any case
        let place = match server.socket_folder() {
            Some(path) if is_private(path) => path.clone(),
            _ => std::env::temp_dir(),
        };
        let folder = place.join(&name);
        fs::create_dir(&folder).with_context(|| format!("could not create {}", folder.display()))?;
        Ok(Stage {
            server,
            name,
            password: uuid::Uuid::new_v4().simple().to_string(),
            folder,
            workers: Vec::new(),
            new_roles: Vec::new(),
        })
    }

    /// Create the database, its schema and its logins. Returns a connection as the owner.
    pub async fn set_up(&mut self) -> Result<Client> {
        let server = open(&self.server).await?;
        for role in ROLES {
            let there = format!("select exists (select from pg_roles where rolname = '{role}')");
            if value(&server, &there).await? == "f" {
                self.new_roles.push(role);
            }
        }
        let name = &self.name;
        run(&server, &format!("create database {name}")).await?;
        schema::migrate(&self.config(None)).await?;
        let owner = open(&self.config(None)).await?;
        for (login, role) in [
            ("app", "bugle_enqueuer"),
            ("worker", "bugle_worker"),
            ("viewer", "bugle_viewer"),
        ] {
            let password = &self.password;
            run(
                &owner,
                &format!("create role {name}_{login} login password '{password}' in role {role}"),
            )
            .await?;
        }
        Ok(owner)
    }

    /// The role name of a login: `app`, `worker` or `viewer`.
    pub fn login(&self, login: &str) -> String {
        format!("{}_{login}", self.name)
    }

    pub async fn connect(&self, login: &str) -> Result<Client> {
        open(&self.config(Some(login))).await
    }

    /// Start a worker process with `bugle worker`.
    pub fn start_worker(&mut self, name: &'static str, config: &str) -> Result<()> {
        let (file, log) = (self.folder.join(format!("{name}.toml")), self.log(name));
        fs::write(&file, config)?;
        let log = fs::File::create(log)?;
        let mut command = Command::new(std::env::current_exe()?);
        // settings for other workers on this machine must not apply
        for (variable, _) in std::env::vars_os() {
            if variable.as_encoded_bytes().starts_with(b"BUGLE_") {
                command.env_remove(variable);
            }
        }
        let process = command
            .arg("worker")
            .arg("--config")
            .arg(&file)
            .args(["--name", name])
            // not as an argument, because arguments are visible to all users
            .env("BUGLE_DATABASE_URL", self.config(Some("worker")).connection_string())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("could not start a worker")?;
        self.workers.push(WorkerProcess { name, process });
        Ok(())
    }

    /// The working directory of all workers.
    pub fn workdir(&self) -> PathBuf {
        self.folder.join("work")
    }

    /// Kill a worker with SIGKILL and return its process id.
    pub fn kill_worker(&mut self, name: &str) -> Result<u32> {
        let worker = self
            .workers
            .iter_mut()
            .find(|worker| worker.name == name)
            .context("no such worker")?;
        let id = worker.process.id().context("the worker has already exited")?;
        worker.process.start_kill()?;
        Ok(id)
    }

    /// Stop a worker gracefully and return its exit code.
    pub async fn stop_worker(&mut self, name: &str) -> Result<Option<i32>> {
        let worker = self
            .workers
            .iter_mut()
            .find(|worker| worker.name == name)
            .context("no such worker")?;
        worker.signal(Signal::TERM)?;
        let status = tokio::time::timeout(Duration::from_secs(10), worker.process.wait()).await;
        Ok(status.context("the worker did not stop")??.code())
    }

    /// The last lines of each worker's log.
    pub fn worker_logs(&self) -> String {
        let logs = self.workers.iter().map(|worker| {
            let log = fs::read(self.log(worker.name)).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let lines: Vec<&str> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(20)..].join("\n");
            format!("-- the log of worker {}:\n{last}\n", worker.name)
        });
        logs.collect()
    }

    /// Remove everything. Errors are ignored: a private server is removed anyway.
    pub async fn strike(&mut self) {
        for worker in &mut self.workers {
            worker.end().await;
        }
        let _ = fs::remove_dir_all(&self.folder);
        let Ok(server) = open(&self.server).await else { return };
        let _ = server
            .batch_execute(&format!("drop database if exists {} with (force)", self.name))
            .await;
        let logins = ["app", "worker", "viewer"].map(|login| self.login(login));
        for role in logins.iter().map(String::as_str).chain(self.new_roles.iter().copied()) {
            // fails for a role that another database has started to use
            let _ = server.batch_execute(&format!("drop role if exists {role}")).await;
        }
    }

    fn log(&self, worker: &str) -> PathBuf {
        self.folder.join(format!("{worker}.log"))
    }

    fn config(&self, login: Option<&str>) -> Target {
        let database = self.server.with_database(&self.name);
        match login {
            Some(login) => database.with_login(&self.login(login), &self.password),
            None => database,
        }
    }
}

pub fn is_private(folder: &Path) -> bool {
    folder
        .file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b"bugle-pg-"))
}

async fn open(target: &Target) -> Result<Client> {
    let client = target.client("bugle demo").await?;
    run(&client, "set client_min_messages = warning").await?;
    Ok(client)
}

/// Run statements.
pub async fn run(client: &Client, sql: &str) -> Result<()> {
    Ok(client.batch_execute(sql).await.map_err(Error::from)?)
}
