//! Drawing a screen of `bugle top`.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line as Text, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Row, Sparkline, Table, TableState};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::{Body, Jobs, KEYS, Mode, Page, Screen, TABS, View, of_state};
use crate::admin::read::rfc3339;
use crate::cli::hint::in_shell;
use crate::cli::jobs::happened;
use crate::cli::output::{age, harmless, one_line};
use crate::cli::top::list::{Column, Tone};
use crate::state::State;

const HELP: &str = "\
 1 queues   2 workers   3 … 9, 0, - jobs by state  Tab, ← → next list
 ↑ ↓ j k PgUp PgDn g G   move                      Enter   open: jobs of a queue or worker, one job
 /         filter the list                         Esc     clear the filter, go back
 s  S      sort by the next column, reverse        Space   mark a job      *  mark all that are shown

 queues    p pause   u resume
 workers   p pause   u resume   d drain
 jobs      c cancel  p pause    u resume   r restart   n run now   x remove
           the marked ones, or the selected one

 ?         this help                               q, Ctrl-C  quit";

impl Screen {
    pub fn draw(&mut self, frame: &mut Frame) {
        let [head, tabs, body, bottom] = Layout::vertical([
            Constraint::Length(3),
            Constraint::Length(1),
            Constraint::Fill(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        self.draw_head(frame, head);
        self.draw_tabs(frame, tabs);
        match self.view {
            View::Job(_) => self.draw_page(frame, body),
            _ => self.draw_list(frame, body),
        }
        frame.render_widget(Paragraph::new(self.bottom_line()), bottom);
        if matches!(self.mode, Mode::Help) {
            draw_help(frame);
        }
    }

    fn draw_head(&self, frame: &mut Frame, area: Rect) {
        let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Length(62)]).areas(area);
        let queues = &self.seen.queues;
        let paused = queues.iter().filter(|queue| queue.paused_since.is_some()).count();
        let sum = |of: fn(&crate::admin::read::Queue) -> i64| queues.iter().map(of).sum::<i64>();
        let lines = vec![
            Text::from(Span::styled(
                format!("{} · queues: {}", one_line(&self.database), queues.len()),
                Style::new().add_modifier(Modifier::BOLD),
            )),
            Text::from(format!(
                "last minute: {} completed, {} failed",
                sum(|queue| queue.completed_last_minute),
                sum(|queue| queue.failed_last_minute)
            )),
            Text::from(match paused {
                0 => Span::raw(""),
                count => Span::styled(format!("{count} paused"), style(Tone::Warning)),
            }),
        ];
        frame.render_widget(Paragraph::new(lines), left);
        let completed: Vec<u64> = self
            .seen
            .minutes
            .iter()
            .map(|minute| minute.completed.max(0) as u64)
            .collect();
        let title = format!(
            "completed per minute, last hour; most {}",
            completed.iter().max().unwrap_or(&0)
        );
        let chart = Sparkline::default()
            .block(Block::new().title(title))
            .data(completed)
            .style(Style::new().fg(color(Color::Green)));
        frame.render_widget(chart, right);
    }

    fn draw_tabs(&self, frame: &mut Frame, area: Rect) {
        let count = |state: State| {
            let of = |queue: &crate::admin::read::Queue| match state {
                State::Running => queue.running,
                State::Ready => queue.ready,
                State::Retrying => queue.retrying,
                State::Scheduled => queue.scheduled,
                State::Waiting => queue.waiting,
                State::Paused => queue.paused,
                _ => 0,
            };
            self.seen.queues.iter().map(of).sum::<i64>()
        };
        let shown = self.back.first().unwrap_or(&self.view);
        let name = |key: char, name: &str, view: View| {
            let style = match view == *shown {
                true => Style::new().add_modifier(Modifier::REVERSED),
                false => Style::new(),
            };
            [Span::styled(format!("{key} {name}"), style), Span::raw("  ")]
        };
        let mut spans = Vec::new();
        spans.extend(name('1', "queues", View::Queues));
        spans.extend(name('2', "workers", View::Workers));
        for (tab, state) in TABS.into_iter().enumerate() {
            let text = match count(state) {
                0 => state.to_string(),
                count => format!("{state} {count}"),
            };
            spans.extend(name(KEYS[tab], &text, of_state(state)));
        }
        frame.render_widget(Paragraph::new(Text::from(spans)), area);
    }

    fn draw_list(&self, frame: &mut Frame, area: Rect) {
        let columns = self.columns();
        let is_shown = |column: &&Column| frame.area().width >= column.from;
        let lines = self.lines();
        let rows = lines.iter().map(|line| {
            let mark = if self.marked.contains(&line.subject) {
                "●"
            } else {
                " "
            };
            let cells = columns.iter().zip(&line.cells).filter(|(column, _)| is_shown(column));
            let texts = cells.map(|(_, cell)| cell.text.clone());
            Row::new(std::iter::once(mark.to_owned()).chain(texts)).style(style(line.tone))
        });
        let heading = |(at, column): (usize, &Column)| match self.sort {
            Some((sorted, down)) if sorted == at => format!("{}{}", column.heading, if down { "▼" } else { "▲" }),
            _ => column.heading.to_owned(),
        };
        let shown = columns.iter().enumerate().filter(|(_, column)| is_shown(column));
        let headings = std::iter::once(String::new()).chain(shown.map(heading));
        let widths = columns.iter().filter(is_shown).map(|column| column.width);
        let table = Table::new(rows, std::iter::once(Constraint::Length(1)).chain(widths))
            .header(Row::new(headings).style(Style::new().add_modifier(Modifier::BOLD)))
            .block(Block::bordered().title(format!(" {} ", self.title(lines.len()))))
            .row_highlight_style(highlight());
        let selected = (!lines.is_empty()).then_some(self.selected);
        let mut state = TableState::new().with_selected(selected);
        frame.render_stateful_widget(table, area, &mut state);
    }

    fn title(&self, shown: usize) -> String {
        let what = match &self.view {
            View::Queues => "queues".to_owned(),
            View::Workers => "workers".to_owned(),
            View::Job(id) => format!("job {id}"),
            View::Jobs(Jobs { state, queue, worker }) => {
                let of = match (queue, worker) {
                    (Some(queue), _) => format!(" of queue {}", one_line(queue)),
                    (None, Some(worker)) => format!(" of worker {worker}"),
                    (None, None) => String::new(),
                };
                let state = state.map(|state| format!("{state} ")).unwrap_or_default();
                format!("{state}jobs{of}, newest first")
            }
        };
        let marked = match self.marked.len() {
            0 => String::new(),
            count => format!(" · {count} marked"),
        };
        let all = match &self.seen.body {
            Body::Jobs(_, Some((count, true))) => format!(" of more than {count}"),
            Body::Jobs(_, Some((count, false))) => format!(" of {count}"),
            _ => String::new(),
        };
        match self.filter.is_empty() {
            true => format!("{what} ({shown}{all}){marked}"),
            false => format!(
                "{what} matching \"{}\" ({shown} of {}){marked}",
                one_line(&self.filter),
                self.all_lines().len()
            ),
        }
    }

    fn draw_page(&mut self, frame: &mut Frame, area: Rect) {
        let width = usize::from(area.width.saturating_sub(2));
        let text = match &self.seen.body {
            Body::Job(Some(page)) => page_text(page, self.seen.now, width),
            Body::Job(None) => vec![Text::from("This job is gone: it was removed, or deleted by retention.")],
            _ => Vec::new(),
        };
        let block = Block::bordered().title(format!(" {} ", self.title(0).trim_end_matches(" (0)")));
        let height = usize::from(area.height.saturating_sub(2));
        self.scrolled = self.scrolled.min(text.len().saturating_sub(height));
        let rest: Vec<Text> = text.into_iter().skip(self.scrolled).collect();
        frame.render_widget(Paragraph::new(rest).block(block), area);
    }

    fn bottom_line(&self) -> String {
        let keys = match (&self.mode, &self.view) {
            (Mode::Confirm(question, _), _) => return format!("{} y/n", one_line(question)),
            (Mode::Filter, _) => return format!("/{}▏  Enter keep · Esc clear", one_line(&self.filter)),
            _ if self.trouble.is_some() => {
                let trouble = self.trouble.as_deref().unwrap_or_default();
                return format!("not refreshed: {}", one_line(trouble));
            }
            _ if !self.message.is_empty() => return one_line(&self.message),
            (_, View::Queues) => "Enter jobs · p pause · u resume",
            (_, View::Workers) => "Enter jobs · p pause · u resume · d drain",
            (_, View::Jobs(_)) => "Enter details · Space mark · c cancel · r restart · p pause · u resume",
            (_, View::Job(_)) => {
                return "Esc back · c cancel · r restart · n run now · x remove · ? help · q quit".to_owned();
            }
        };
        format!("{keys} · / filter · s sort · ? help · q quit")
    }
}

/// The rows that a line fills on a terminal of this width, broken between words where that is possible.
pub(super) fn wrapped(line: &str, width: usize) -> Vec<String> {
    let mut rows = vec![String::new()];
    let mut filled = 0;
    for word in line.split_inclusive(' ') {
        if filled > 0 && filled + word.trim_end().width() > width {
            rows.push(String::new());
            filled = 0;
        }
        for letter in word.chars() {
            let wide = letter.width().unwrap_or(0);
            if filled + wide > width.max(1) {
                if letter == ' ' {
                    continue;
                }
                rows.push(String::new());
                filled = 0;
            }
            rows.last_mut().expect("there is one").push(letter);
            filled += wide;
        }
    }
    rows
}

/// The rows of a page: each is one row of the terminal, so that the last one can be scrolled to.
fn page_text(page: &Page, now: std::time::SystemTime, width: usize) -> Vec<Text<'static>> {
    let job = &page.job;
    let line = &job.summary;
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let head = |text: &str, style: Style| {
        let rows = wrapped(text, width).into_iter();
        rows.map(move |row| Text::from(Span::styled(row, style)))
            .collect::<Vec<_>>()
    };
    let what = format!("{} in queue {}", one_line(&line.command), one_line(&line.queue));
    let mut text = head(&what, bold);
    let age = age(now, line.created_at);
    let about = format!("{} · attempt {} · created {age}", line.state, job.attempt_in_words);
    text.extend(head(&about, style(tone(line.state))));
    let mut section = |heading: &str, body: Vec<String>| {
        text.push(Text::from(""));
        text.push(Text::from(Span::styled(heading.to_owned(), bold)));
        for line in body
            .iter()
            .map(|part| harmless(part))
            .collect::<Vec<_>>()
            .join("\n")
            .lines()
        {
            let rows = wrapped(line, width.saturating_sub(2)).into_iter();
            text.extend(rows.map(|row| Text::from(format!("  {row}"))));
        }
    };
    let why = page.explanations.iter();
    section(
        "Why it is not running, or how it ended",
        why.map(|why| format!("{}\n  {}", why.message, in_shell(&why.fix)))
            .collect(),
    );
    if let Some(error) = &job.last_error {
        section("Last error", vec![error.clone()]);
    }
    for (heading, document) in &page.documents {
        section(heading, vec![document.clone()]);
    }
    let events = job.timeline.iter();
    section(
        "Timeline",
        events
            .map(|event| format!("{}  {}", rfc3339(event.at), happened(event)))
            .collect(),
    );
    text
}

fn draw_help(frame: &mut Frame) {
    let area = frame.area();
    let (width, height) = (104.min(area.width), 14.min(area.height));
    let place = Rect::new((area.width - width) / 2, (area.height - height) / 2, width, height);
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(HELP).block(Block::bordered().title(" keys ")), place);
}

fn tone(state: State) -> Tone {
    match state {
        State::Failed => Tone::Bad,
        State::Retrying | State::Paused | State::Cancelled => Tone::Warning,
        _ => Tone::Plain,
    }
}

fn style(tone: Tone) -> Style {
    match tone {
        Tone::Plain => Style::new(),
        Tone::Warning => Style::new().fg(color(Color::Yellow)),
        Tone::Bad => Style::new().fg(color(Color::Red)),
    }
}

/// Both colors are given: the color of a row on a background of the terminal's choice can be unreadable.
fn highlight() -> Style {
    match color(Color::Cyan) {
        Color::Reset => Style::new().add_modifier(Modifier::REVERSED),
        background => Style::new().fg(Color::Black).bg(background),
    }
}

fn color(color: Color) -> Color {
    match std::env::var_os("NO_COLOR").is_some_and(|no| !no.is_empty()) {
        true => Color::Reset,
        false => color,
    }
}
