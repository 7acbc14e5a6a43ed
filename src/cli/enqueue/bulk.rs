//! `bugle enqueue --jsonl FILE`: many jobs, one JSON object a line, all of them or none.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use tokio_postgres::Client;

use crate::cli::connect::explained;
use crate::cli::output;
use crate::client::enqueue;

/// Lines that are sent at once.
const BATCH: usize = 1000;

/// Enqueue every line in one transaction. `command` is for lines that name none.
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
    let left_out = lines - done.ids;
    if json {
        let told = json!({ "enqueued": done.ids, "left_out": left_out, "first_id": done.first, "last_id": done.last });
        output::print_json(&told)?;
    } else {
        output::print(&format!("{}\n", done.ids))?;
        if left_out > 0 {
            eprintln!("{left_out} were left out: jobs with their keys are there already");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// One line as a job. Checked here, so that the error can name the line.
fn job(line: &str, command: Option<&str>) -> Result<Value> {
    let mut job: Value = serde_json::from_str(line).map_err(|error| anyhow!("not JSON: {error}"))?;
    let Some(columns) = job.as_object_mut() else {
        bail!("not an object\nhint: expected {{\"command\": \"send_mail\", \"payload\": {{…}}}}");
    };
    if let Some(unknown) = columns.keys().find(|name| !enqueue::COLUMNS.contains(&name.as_str())) {
        bail!(
            "{unknown:?} is no column of a new job\nhint: there are {}",
            enqueue::COLUMNS.join(", ")
        );
    }
    if !columns.contains_key("command") {
        let command = command.ok_or_else(|| anyhow!("no command\nhint: name it in the line, or before --jsonl"))?;
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

/// Send a batch. If it is refused, find out by which line: the whole input is refused with it.
async fn send(transaction: &mut tokio_postgres::Transaction<'_>, batch: &[(usize, Value)]) -> Result<Vec<i64>> {
    let jobs: Vec<&Value> = batch.iter().map(|(_, job)| job).collect();
    let savepoint = transaction.savepoint("batch").await.map_err(crate::Error::from)?;
    let refusal = match enqueue::insert_many(&savepoint, &jobs).await {
        Ok(ids) => {
            savepoint.commit().await.map_err(crate::Error::from)?;
            return Ok(ids);
        }
        Err(error) => error,
    };
    savepoint.rollback().await.map_err(crate::Error::from)?;
    for (number, job) in batch {
        if let Err(error) = enqueue::insert_many(transaction, &[job]).await {
            return Err(anyhow!("line {number}: {}\nNothing was enqueued.", explained(error)));
        }
    }
    Err(explained(refusal).into())
}

/// How far it is, on a terminal only.
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
