//! What is on the screen, and what keys mean there. No I/O: it is given what was seen and drawn onto a frame.

use std::time::{Duration, SystemTime};

use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table, TableState};

use crate::admin::operate::FleetVerb;
use crate::admin::read::{JobLine, Queue, WorkerLine};
use crate::cli::output::{age, one_line, span};
use crate::job::JobId;

/// What the database said.
#[derive(Debug, Clone)]
pub struct Seen {
    pub now: SystemTime,
    pub queues: Vec<Queue>,
    pub workers: Vec<WorkerLine>,
    pub running: Vec<JobLine>,
    pub failed: Vec<JobLine>,
}

/// What a key asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    Nothing,
    Quit,
    Order(FleetVerb, String),
    Cancel(JobId),
    Restart(JobId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pane {
    Queues,
    Workers,
    Running,
    Failed,
}

const PANES: [Pane; 4] = [Pane::Queues, Pane::Workers, Pane::Running, Pane::Failed];

pub struct Screen {
    seen: Seen,
    pane: Pane,
    selected: [usize; 4],
    /// What is to be confirmed.
    asked: Option<(String, Act)>,
    said: String,
}

impl Screen {
    pub fn new(seen: Seen) -> Screen {
        Screen {
            seen,
            pane: Pane::Queues,
            selected: [0; 4],
            asked: None,
            said: String::new(),
        }
    }

    pub fn see(&mut self, seen: Seen) {
        self.seen = seen;
        for pane in PANES {
            let last = self.lines(pane).saturating_sub(1);
            let selected = &mut self.selected[pane as usize];
            *selected = (*selected).min(last);
        }
    }

    pub fn say(&mut self, text: String) {
        self.said = one_line(&text);
    }

    pub fn press(&mut self, key: KeyCode) -> Act {
        if let Some((_, act)) = self.asked.take() {
            return match key {
                KeyCode::Char('y') => act,
                _ => Act::Nothing,
            };
        }
        self.said.clear();
        let at = self.selected[self.pane as usize];
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return Act::Quit,
            KeyCode::Tab | KeyCode::Right => self.pane = PANES[(self.pane as usize + 1) % PANES.len()],
            KeyCode::BackTab | KeyCode::Left => self.pane = PANES[(self.pane as usize + PANES.len() - 1) % PANES.len()],
            KeyCode::Down | KeyCode::Char('j') => {
                self.selected[self.pane as usize] = (at + 1).min(self.lines(self.pane).saturating_sub(1));
            }
            KeyCode::Up | KeyCode::Char('k') => self.selected[self.pane as usize] = at.saturating_sub(1),
            KeyCode::Char(letter) => self.asked = self.ask(letter, at),
            _ => {}
        }
        Act::Nothing
    }

    /// Everything that changes something is confirmed.
    fn ask(&self, letter: char, at: usize) -> Option<(String, Act)> {
        let seen = &self.seen;
        match (self.pane, letter) {
            (Pane::Queues, 'p' | 'r') => {
                let name = &seen.queues.get(at)?.queue;
                let (word, post) = match letter {
                    'p' => ("pause", FleetVerb::PauseQueue),
                    _ => ("resume", FleetVerb::ResumeQueue),
                };
                Some((format!("{word} queue {name}?"), Act::Order(post, name.clone())))
            }
            (Pane::Workers, 'p' | 'r' | 'd') => {
                let worker = seen.workers.get(at)?;
                let (word, post) = match letter {
                    'p' => ("pause", FleetVerb::PauseWorker),
                    'r' => ("resume", FleetVerb::ResumeWorker),
                    _ => ("drain", FleetVerb::DrainWorker),
                };
                let question = format!("{word} worker {} ({})?", worker.id, worker.name);
                Some((question, Act::Order(post, worker.id.to_string())))
            }
            (Pane::Running, 'c') => {
                let job = seen.running.get(at)?;
                Some((format!("cancel job {} ({})?", job.id, job.command), Act::Cancel(job.id)))
            }
            (Pane::Failed, 'r') => {
                let job = seen.failed.get(at)?;
                Some((
                    format!("restart job {} ({})?", job.id, job.command),
                    Act::Restart(job.id),
                ))
            }
            _ => None,
        }
    }

    fn lines(&self, pane: Pane) -> usize {
        match pane {
            Pane::Queues => self.seen.queues.len(),
            Pane::Workers => self.seen.workers.len(),
            Pane::Running => self.seen.running.len(),
            Pane::Failed => self.seen.failed.len(),
        }
    }

    pub fn draw(&self, frame: &mut Frame) {
        let [queues, workers, running, failed, bottom] = Layout::vertical([
            Constraint::Percentage(30),
            Constraint::Percentage(20),
            Constraint::Percentage(25),
            Constraint::Percentage(25),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        self.draw_queues(frame, queues);
        self.draw_workers(frame, workers);
        self.draw_jobs(frame, running, Pane::Running, "running · c cancel", &self.seen.running);
        self.draw_jobs(frame, failed, Pane::Failed, "failed · r restart", &self.seen.failed);
        let words = match &self.asked {
            Some((question, _)) => format!("{question} y/n"),
            None if !self.said.is_empty() => self.said.clone(),
            None => "tab next list · ↑↓ select · q quit".to_owned(),
        };
        frame.render_widget(Paragraph::new(words), bottom);
    }

    fn draw_queues(&self, frame: &mut Frame, area: Rect) {
        let rows = self.seen.queues.iter().map(|queue| {
            let oldest = queue
                .oldest_ready_seconds
                .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            let unserved = !queue.unserved_commands.is_empty();
            let row = Row::new([
                one_line(&queue.queue),
                format!("{}{}", if queue.is_estimate { "~" } else { "" }, queue.ready),
                oldest.map(span).unwrap_or_default(),
                format!("{}/{}", queue.running, queue.slots),
                (queue.scheduled + queue.retrying).to_string(),
                queue.completed_last_minute.to_string(),
                queue.failed_last_minute.to_string(),
                one_line(&queue.unserved_commands.join(", ")),
            ]);
            row.style(tint(unserved, queue.failed_last_minute > 0))
        });
        let headings = [
            "QUEUE",
            "READY",
            "OLDEST",
            "RUNNING",
            "LATER",
            "DONE/MIN",
            "FAILED/MIN",
            "UNSERVED",
        ];
        let widths = [
            Constraint::Fill(2),
            Constraint::Length(9),
            Constraint::Length(9),
            Constraint::Length(9),
            Constraint::Length(8),
            Constraint::Length(9),
            Constraint::Length(10),
            Constraint::Fill(2),
        ];
        self.table(
            frame,
            area,
            Pane::Queues,
            "queues · p pause · r resume",
            &headings,
            &widths,
            rows.collect(),
        );
    }

    fn draw_workers(&self, frame: &mut Frame, area: Rect) {
        let rows = self.seen.workers.iter().map(|worker| {
            let slots: i32 = worker.slots.iter().sum();
            let keeper = if worker.is_keeper { " (keeper)" } else { "" };
            let row = Row::new([
                worker.id.to_string(),
                one_line(&worker.name),
                one_line(worker.host.as_deref().unwrap_or_default()),
                format!("{}{keeper}", worker.state),
                format!("{}/{slots}", worker.running),
                one_line(&worker.queues.join(" ")),
                age(self.seen.now, worker.seen_at),
            ]);
            row.style(tint(worker.state == "lost", worker.state == "paused"))
        });
        let headings = ["ID", "NAME", "HOST", "STATE", "RUNNING", "QUEUES", "SEEN"];
        let widths = [
            Constraint::Length(7),
            Constraint::Fill(1),
            Constraint::Fill(1),
            Constraint::Length(15),
            Constraint::Length(9),
            Constraint::Fill(2),
            Constraint::Length(12),
        ];
        self.table(
            frame,
            area,
            Pane::Workers,
            "workers · p pause · r resume · d drain",
            &headings,
            &widths,
            rows.collect(),
        );
    }

    fn draw_jobs(&self, frame: &mut Frame, area: Rect, pane: Pane, title: &str, jobs: &[JobLine]) {
        let rows = jobs.iter().map(|job| {
            let since = job.finished_at.or(job.started_at).unwrap_or(job.created_at);
            Row::new([
                job.id.to_string(),
                one_line(&job.command),
                one_line(&job.queue),
                job.attempt.to_string(),
                age(self.seen.now, since),
                one_line(
                    job.reason
                        .as_deref()
                        .or(job.last_error_code.as_deref())
                        .unwrap_or_default(),
                ),
            ])
        });
        let headings = ["ID", "COMMAND", "QUEUE", "ATTEMPT", "SINCE", "WHY"];
        let widths = [
            Constraint::Length(12),
            Constraint::Fill(2),
            Constraint::Fill(1),
            Constraint::Length(8),
            Constraint::Length(14),
            Constraint::Fill(2),
        ];
        self.table(frame, area, pane, title, &headings, &widths, rows.collect());
    }

    #[allow(clippy::too_many_arguments)]
    fn table(
        &self,
        frame: &mut Frame,
        area: Rect,
        pane: Pane,
        title: &str,
        headings: &[&str],
        widths: &[Constraint],
        rows: Vec<Row>,
    ) {
        let is_here = self.pane == pane;
        let border = if is_here {
            Style::new().fg(Color::Cyan)
        } else {
            Style::new()
        };
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let table = Table::new(rows, widths)
            .header(Row::new(headings.iter().map(|heading| Cell::from(heading.to_string()))).style(bold))
            .block(Block::bordered().title(format!(" {title} ")).border_style(border))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        let selected = (is_here && self.lines(pane) > 0).then_some(self.selected[pane as usize]);
        let mut state = TableState::new().with_selected(selected);
        frame.render_stateful_widget(table, area, &mut state);
    }
}

/// Colours only where they are welcome.
fn tint(bad: bool, doubtful: bool) -> Style {
    let colour = match (bad, doubtful) {
        _ if std::env::var_os("NO_COLOR").is_some_and(|no| !no.is_empty()) => return Style::new(),
        (true, _) => Color::Red,
        (false, true) => Color::Yellow,
        (false, false) => return Style::new(),
    };
    Style::new().fg(colour)
}

#[cfg(test)]
mod tests;
