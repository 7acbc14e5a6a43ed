//! Worker processes and their reports.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio_postgres::Client;

use super::clock::now;
use super::server::Database;
use super::worker;

/// The deadline of a benchmark: long enough for ten million jobs.
const PATIENCE: Duration = Duration::from_secs(1200);

/// One of the workers holds the bell.
const ASLEEP: &str = "not pg_try_advisory_xact_lock_shared(bugle.bell_key('default'))";

/// The worker processes of a database.
pub struct Workers {
    children: Vec<Child>,
    /// Closing these makes the workers drain.
    inputs: Vec<ChildStdin>,
    reports: mpsc::UnboundedReceiver<Report>,
    tally: Tally,
}

/// The reports of the workers so far.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// The number of jobs each has started.
    pub executions: Vec<u64>,
    /// When the first job was started.
    pub first: Option<i64>,
    /// For jobs that carry their enqueue time: that time and the start time.
    pub times: Vec<(i64, i64)>,
}

impl Tally {
    pub fn total(&self) -> u64 {
        self.executions.iter().sum()
    }
}

/// The commands of a worker process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Serving {
    All,
    /// An older version that does not serve the measured command.
    Outdated,
}

impl Serving {
    fn name(self, number: usize) -> String {
        match self {
            Serving::All => format!("bench-{number}"),
            Serving::Outdated => format!("bench-outdated-{number}"),
        }
    }
}

enum Report {
    First(i64),
    Count(usize, u64),
    Time(i64, i64),
    Ended(usize),
}

impl Workers {
    /// Start worker processes without waiting for them.
    pub fn start(database: &Database, count: usize, slots: u32) -> Result<Workers> {
        Workers::start_serving(Serving::All, None, database, count, slots)
    }

    /// The same for one process that serves several databases, with this number of slots for each.
    pub fn start_for_all<'a>(databases: impl IntoIterator<Item = &'a Database>, slots: u32) -> Result<Workers> {
        let urls: Vec<String> = databases.into_iter().map(Database::url).collect();
        let variable = (worker::DATABASES, urls.join("\n"));
        Workers::start_with(Serving::All, None, &variable, 1, slots)
    }

    fn start_serving(
        serving: Serving,
        file: Option<&Path>,
        database: &Database,
        count: usize,
        slots: u32,
    ) -> Result<Workers> {
        let variable = ("BUGLE_DATABASE_URL", database.url());
        Workers::start_with(serving, file, &variable, count, slots)
    }

    fn start_with(
        serving: Serving,
        file: Option<&Path>,
        (variable, urls): &(&str, String),
        count: usize,
        slots: u32,
    ) -> Result<Workers> {
        let program = std::env::current_exe().context("cannot determine the path of this program")?;
        let (sender, reports) = mpsc::unbounded_channel();
        let mut workers = Workers {
            children: Vec::new(),
            inputs: Vec::new(),
            reports,
            tally: Tally {
                executions: vec![0; count],
                ..Tally::default()
            },
        };
        for number in 0..count {
            let mut child = Command::new(&program)
                .args(["bench", "worker", "--name", &serving.name(number)])
                .args(["--slots", &slots.to_string()])
                .args((serving == Serving::Outdated).then_some("--outdated"))
                .args(
                    file.into_iter()
                        .flat_map(|file| [OsStr::new("--file"), file.as_os_str()]),
                )
                .env(variable, urls)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .with_context(|| format!("cannot run {}", program.display()))?;
            workers.inputs.extend(child.stdin.take());
            let output = child.stdout.take().context("a worker has no stdout")?;
            let mut lines = BufReader::new(output).lines();
            let sender = sender.clone();
            tokio::spawn(async move {
                while let Ok(Some(line)) = lines.next_line().await {
                    if let Some(report) = parse(number, &line) {
                        let _ = sender.send(report);
                    }
                }
                let _ = sender.send(Report::Ended(number));
            });
            workers.children.push(child);
        }
        Ok(workers)
    }

    /// Start worker processes and wait until all are registered and one holds the bell.
    pub async fn start_idle(database: &Database, count: usize, slots: u32) -> Result<Workers> {
        Workers::start_idle_serving(Serving::All, database, count, slots).await
    }

    /// The same for workers that do not serve the measured command.
    pub async fn start_idle_outdated(database: &Database, count: usize, slots: u32) -> Result<Workers> {
        Workers::start_idle_serving(Serving::Outdated, database, count, slots).await
    }

    async fn start_idle_serving(serving: Serving, database: &Database, count: usize, slots: u32) -> Result<Workers> {
        let mut workers = Workers::start_serving(serving, None, database, count, slots)?;
        workers.wait_until_signed_on(serving, database, ASLEEP).await?;
        Ok(workers)
    }

    /// The same for one worker process that serves what is in this file, if there is one. Waits in addition until it
    /// serves the no-op jobs: the process of a host has to start first.
    pub async fn start_idle_with(database: &Database, file: Option<&Path>, slots: u32) -> Result<Workers> {
        let mut workers = Workers::start_serving(Serving::All, file, database, 1, slots)?;
        let serves = "select from bugle.registrations r where r.stopped_at is null and 'noop' = any (r.commands)";
        let and = format!("exists ({serves}) and {ASLEEP}");
        workers.wait_until_signed_on(Serving::All, database, &and).await?;
        Ok(workers)
    }

    /// The same while a transaction that has enqueued stays open, so that none can hold the bell.
    pub async fn start_beside_open_transaction(database: &Database, count: usize, slots: u32) -> Result<Workers> {
        let mut workers = Workers::start(database, count, slots)?;
        workers.wait_until_signed_on(Serving::All, database, "true").await?;
        Ok(workers)
    }

    async fn wait_until_signed_on(&mut self, serving: Serving, database: &Database, and: &str) -> Result<()> {
        let client = database.connect().await?;
        let names: Vec<String> = (0..self.children.len()).map(|number| serving.name(number)).collect();
        let ready = format!(
            "select (select count(*) from bugle.registrations r where r.stopped_at is null and r.name = any ($1)) = \
             cardinality($1) and {and}"
        );
        let deadline = Instant::now() + Duration::from_secs(180);
        while !client.query_one(&ready, &[&names]).await?.get::<_, bool>(0) {
            ensure!(
                Instant::now() < deadline,
                "{} workers were not ready within three minutes",
                names.len()
            );
            self.take_reports()?;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // let the last of them become idle as well
        tokio::time::sleep(Duration::from_millis(200)).await;
        Ok(())
    }

    /// The process ids.
    pub fn process_ids(&self) -> Vec<u32> {
        self.children.iter().filter_map(Child::id).collect()
    }

    /// Wait until this number of jobs were started in total.
    pub async fn executed(&mut self, jobs: u64) -> Result<()> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while self.tally.total() < jobs {
            match tokio::time::timeout_at(deadline, self.reports.recv()).await {
                Ok(Some(report)) => self.take(report)?,
                Ok(None) => bail!("the workers have exited"),
                Err(_) => bail!("{} of {jobs} jobs ran in {PATIENCE:?}", self.tally.total()),
            }
        }
        Ok(())
    }

    /// Wait until this number of jobs were started and all are finished. Returns that time.
    pub async fn drained(&mut self, client: &Client, jobs: u64) -> Result<i64> {
        self.executed(jobs).await?;
        let deadline = Instant::now() + Duration::from_secs(60);
        while !client
            .query_one("select not exists (select from bugle.jobs_live)", &[])
            .await?
            .get::<_, bool>(0)
        {
            ensure!(
                Instant::now() < deadline,
                "jobs are unfinished a minute after the last one was started"
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(now())
    }

    /// Wait until all jobs are finished, of workers that do not report them. Returns that time.
    ///
    /// While there are others, only the job that is claimed last is asked for: a search for any unfinished job would
    /// read over all that is left of the finished ones.
    pub async fn emptied(&mut self, client: &Client, last: i64) -> Result<i64> {
        let question = client
            .prepare("select exists (select from bugle.jobs_live j where j.id = $1)")
            .await?;
        let deadline = Instant::now() + PATIENCE;
        while client.query_one(&question, &[&last]).await?.get::<_, bool>(0) {
            ensure!(
                Instant::now() < deadline,
                "the last job was not finished in {PATIENCE:?}"
            );
            self.take_reports()?;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        self.drained(client, 0).await
    }

    /// Drain the workers and wait until they have exited.
    pub async fn stop(mut self) -> Result<Tally> {
        self.inputs.clear();
        for child in &mut self.children {
            let ended = tokio::time::timeout(Duration::from_secs(60), child.wait()).await;
            let status = ended.context("a worker did not stop")??;
            ensure!(status.success(), "a worker exited with {status}");
        }
        while let Some(report) = self.reports.recv().await {
            match report {
                Report::Ended(_) => {}
                report => self.take(report)?,
            }
        }
        Ok(self.tally)
    }

    fn take_reports(&mut self) -> Result<()> {
        while let Ok(report) = self.reports.try_recv() {
            self.take(report)?;
        }
        Ok(())
    }

    fn take(&mut self, report: Report) -> Result<()> {
        match report {
            Report::First(t) => self.tally.first = Some(self.tally.first.map_or(t, |first| first.min(t))),
            Report::Count(worker, count) => self.tally.executions[worker] = count,
            Report::Time(t0, t) => self.tally.times.push((t0, t)),
            Report::Ended(worker) => bail!("worker {worker} exited early"),
        }
        Ok(())
    }
}

fn parse(worker: usize, line: &str) -> Option<Report> {
    let mut words = line.split(' ');
    let word = words.next()?;
    let mut number = || words.next()?.parse::<i64>().ok();
    Some(match word {
        "FIRST" => Report::First(number()?),
        "COUNT" => Report::Count(worker, number()? as u64),
        "LAT" => Report::Time(number()?, number()?),
        _ => return None,
    })
}
