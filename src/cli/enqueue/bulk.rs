//! `bugle enqueue --jsonl FILE`: enqueue many jobs in one transaction, one JSON object per line.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use tokio_postgres::Client;

use crate::cli::connect::explained;
use crate::cli::output;
use crate::client::bulk;

/// Lines per statement.
const BATCH: usize = 1000;

/// Enqueue every line in one transaction. `command` applies to lines without a command.
pub async fn run(mut client: Client, file: &str, command: Option<&str>, json: bool) -> Result<ExitCode> {
    let input: Box<dyn BufRead> = match file {
        "-" => Box::new(io::stdin().lock()),
        path => Box::new(BufReader::new(File::open(path).with_context(|| path.to_owned())?)),
    };
    let mut transaction = crate::db::connect::transaction(&mut client).await?;
    let mut batch = Vec::new();
    let (mut lines, mut done) = (0, Enqueued::default());
    let progress = Progress::new();
    let mut input = input.lines().enumerate().peekable();
    while let Some((number, line)) = input.next() {
        let line = line.with_context(|| format!("line {}", number + 1))?;
        if !line.trim().is_empty() {
            batch.push((
                number + 1,
                job(&line, command).with_context(|| format!("line {}", number + 1))?,
            ));
            lines += 1;
        }
        if batch.len() == BATCH || input.peek().is_none() && !batch.is_empty() {
            done.add(&send(&mut transaction, &batch).await?);
            batch.clear();
            progress.show(lines);
        }
    }
    transaction.commit().await.map_err(crate::Error::from)?;
    progress.clear();
    let skipped = lines - done.ids;
    if json {
        let told = json!({ "enqueued": done.ids, "skipped": skipped, "first_id": done.first, "last_id": done.last });
        output::print_json(&told)?;
    } else {
        output::print(&format!("{}\n", done.ids))?;
        if skipped > 0 {
            eprintln!("{skipped} skipped: jobs with the same keys already exist");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Parse one line as a job. Validated here, so that the error can name the line.
fn job(line: &str, command: Option<&str>) -> Result<Value> {
    let mut job: Value = output::read_json("it", line)?;
    let Some(columns) = job.as_object_mut() else {
        bail!("not an object\nhint: expected {{\"command\": \"send_mail\", \"payload\": {{…}}}}");
    };
    if let Some(unknown) = columns.keys().find(|name| !bulk::COLUMNS.contains(&name.as_str())) {
        bail!(
            "{unknown:?} is not a column of a new job\nhint: the columns are {}",
            bulk::COLUMNS.join(", ")
        );
    }
    if !columns.contains_key("command") {
        let command = command
            .ok_or_else(|| anyhow!("no command\nhint: add \"command\" to the line, or give COMMAND before --jsonl"))?;
        columns.insert("command".into(), json!(command));
    }
    Ok(job)
}

#[derive(Default)]
struct Enqueued {
    ids: usize,
    first: Option<i64>,
    last: Option<i64>,
}

impl Enqueued {
    fn add(&mut self, ids: &[i64]) {
        self.ids += ids.len();
        self.first = self.first.or(ids.first().copied());
        self.last = ids.last().copied().or(self.last);
    }
}

/// Send a batch. If it is rejected, find the line that caused it; nothing is enqueued then.
async fn send(transaction: &mut tokio_postgres::Transaction<'_>, batch: &[(usize, Value)]) -> Result<Vec<i64>> {
    let jobs: Vec<&Value> = batch.iter().map(|(_, job)| job).collect();
    let savepoint = transaction.savepoint("batch").await.map_err(crate::Error::from)?;
    let refusal = match bulk::insert_many(&savepoint, &jobs).await {
        Ok(ids) => {
            savepoint.commit().await.map_err(crate::Error::from)?;
            return Ok(ids);
        }
        Err(error) => error,
    };
    savepoint.rollback().await.map_err(crate::Error::from)?;
    for (number, job) in batch {
        if let Err(error) = bulk::insert_many(transaction, &[job]).await {
            return Err(anyhow!("line {number}: {}\nNothing was enqueued.", explained(error)));
        }
    }
    Err(explained(refusal).into())
}

/// Show progress, on a terminal only.
struct Progress(bool);

impl Progress {
    fn new() -> Progress {
        Progress(io::stderr().is_terminal())
    }

    fn show(&self, lines: usize) {
        if self.0 {
            eprint!("\r{lines} jobs");
        }
    }

    fn clear(&self) {
        if self.0 {
            eprint!("\r\x1b[K");
        }
    }
}
