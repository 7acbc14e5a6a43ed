//! The lists of `bugle top`: their columns, and the rows of what the database returned.

use std::cmp::Ordering;
use std::time::{Duration, SystemTime};

use ratatui::layout::Constraint;

use crate::admin::read::{JobSummary, Queue, WorkerLine};
use crate::cli::output::{age, one_line, span};
use crate::job::JobId;
use crate::state::{Reason, State, WorkerState};

/// A column, shown if the terminal has at least `from` columns.
pub struct Column {
    pub heading: &'static str,
    pub width: Constraint,
    pub from: u16,
}

const fn column(heading: &'static str, width: Constraint, from: u16) -> Column {
    Column { heading, width, from }
}

pub const QUEUES: [Column; 10] = [
    column("QUEUE", Constraint::Fill(2), 0),
    column("STATE", Constraint::Length(8), 0),
    column("READY", Constraint::Length(9), 0),
    column("OLDEST", Constraint::Length(8), 0),
    column("RUNNING", Constraint::Length(9), 0),
    column("RETRYING", Constraint::Length(8), 0),
    column("LATER", Constraint::Length(7), 100),
    column("DONE/MIN", Constraint::Length(8), 90),
    column("FAILED/MIN", Constraint::Length(10), 0),
    column("UNSERVED", Constraint::Fill(2), 110),
];

pub const WORKERS: [Column; 7] = [
    column("ID", Constraint::Length(6), 0),
    column("NAME", Constraint::Fill(1), 0),
    column("HOST", Constraint::Fill(1), 100),
    column("STATE", Constraint::Length(15), 0),
    column("RUNNING", Constraint::Length(9), 0),
    column("QUEUES", Constraint::Fill(2), 0),
    column("SEEN", Constraint::Length(12), 0),
];

pub const JOBS: [Column; 7] = [
    column("ID", Constraint::Length(10), 0),
    column("STATE", Constraint::Length(9), 0),
    column("COMMAND", Constraint::Fill(2), 0),
    column("QUEUE", Constraint::Fill(1), 90),
    column("ATTEMPT", Constraint::Length(7), 0),
    column("SINCE", Constraint::Length(13), 0),
    column("ERROR", Constraint::Fill(4), 0),
];

/// What a row is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Queue(String),
    Worker(i64),
    Job(JobId),
}

/// How a row stands out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Warning,
    Bad,
}

/// A value with the number it is sorted by, if it is one.
#[derive(Debug, Clone)]
pub struct Cell {
    pub text: String,
    number: Option<f64>,
}

impl Cell {
    fn text(text: &str) -> Cell {
        Cell {
            text: one_line(text),
            number: None,
        }
    }

    fn number(text: String, number: f64) -> Cell {
        Cell {
            text,
            number: Some(number),
        }
    }

    fn count(count: i64) -> Cell {
        Cell::number(count.to_string(), count as f64)
    }

    fn since(now: SystemTime, then: SystemTime) -> Cell {
        let seconds = now
            .duration_since(then)
            .map_or_else(|ahead| -ahead.duration().as_secs_f64(), |ago| ago.as_secs_f64());
        Cell::number(age(now, then), seconds)
    }
}

/// A row of a list.
#[derive(Debug, Clone)]
pub struct Line {
    pub subject: Subject,
    pub cells: Vec<Cell>,
    pub tone: Tone,
}

impl Line {
    /// Whether any of its values contains the text, in any case.
    pub fn matches(&self, text: &str) -> bool {
        let text = text.to_lowercase();
        self.cells.iter().any(|cell| cell.text.to_lowercase().contains(&text))
    }

    /// By a column; numbers by their size.
    pub fn order(&self, other: &Line, column: usize) -> Ordering {
        let (a, b) = (&self.cells[column], &other.cells[column]);
        match (a.number, b.number) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            (a_number, b_number) => a_number
                .is_some()
                .cmp(&b_number.is_some())
                .then_with(|| a.text.cmp(&b.text)),
        }
    }
}

pub fn queue(queue: &Queue) -> Line {
    let oldest = queue
        .oldest_ready_seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let is_paused = queue.paused_since.is_some();
    let about = if queue.is_estimate { "~" } else { "" };
    Line {
        subject: Subject::Queue(queue.queue.clone()),
        tone: match () {
            () if !queue.unserved_commands.is_empty() => Tone::Bad,
            () if is_paused || queue.failed_last_minute > 0 => Tone::Warning,
            () => Tone::Plain,
        },
        cells: vec![
            Cell::text(&queue.queue),
            Cell::text(if is_paused { "PAUSED" } else { "" }),
            Cell::number(format!("{about}{}", queue.ready), queue.ready as f64),
            Cell::number(
                oldest.map(span).unwrap_or_default(),
                oldest.unwrap_or_default().as_secs_f64(),
            ),
            Cell::number(format!("{}/{}", queue.running, queue.slots), queue.running as f64),
            Cell::count(queue.retrying),
            Cell::count(queue.scheduled),
            Cell::count(queue.completed_last_minute),
            Cell::count(queue.failed_last_minute),
            Cell::text(&queue.unserved_commands.join(", ")),
        ],
    }
}

pub fn worker(now: SystemTime, worker: &WorkerLine) -> Line {
    let slots: i32 = worker.slots.iter().sum();
    let keeper = if worker.is_keeper { " (keeper)" } else { "" };
    Line {
        subject: Subject::Worker(worker.id),
        tone: match worker.state {
            WorkerState::Lost => Tone::Bad,
            WorkerState::Paused => Tone::Warning,
            _ => Tone::Plain,
        },
        cells: vec![
            Cell::count(worker.id),
            Cell::text(&worker.name),
            Cell::text(worker.host.as_deref().unwrap_or_default()),
            Cell::text(&format!("{}{keeper}", worker.state)),
            Cell::number(format!("{}/{slots}", worker.running), worker.running.into()),
            Cell::text(&worker.queues.join(" ")),
            Cell::since(now, worker.seen_at),
        ],
    }
}

pub fn job(now: SystemTime, job: &JobSummary) -> Line {
    let since = match job.state {
        State::Scheduled | State::Retrying => job.run_at,
        _ => job.finished_at.or(job.started_at).unwrap_or(job.created_at),
    };
    let error = job
        .error_line
        .as_deref()
        .or(job.reason.map(Reason::as_str))
        .unwrap_or_default();
    Line {
        subject: Subject::Job(job.id),
        tone: match job.state {
            State::Failed => Tone::Bad,
            State::Retrying | State::Paused => Tone::Warning,
            _ => Tone::Plain,
        },
        cells: vec![
            Cell::count(job.id),
            Cell::text(job.state.as_str()),
            Cell::text(&job.command),
            Cell::text(&job.queue),
            Cell::count(job.attempt.into()),
            Cell::since(now, since),
            Cell::text(error),
        ],
    }
}
