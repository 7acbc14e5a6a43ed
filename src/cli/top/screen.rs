//! What `bugle top` shows and what its keys mean. No I/O: it is given what the database returned, and says what to do.

mod draw;

use std::collections::BTreeSet;
use std::time::SystemTime;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::list::{self, Column, Line, Subject};
use crate::admin::operate::{Explanation, FleetVerb, Verb};
use crate::admin::read::{Job, JobSummary, Minute, Queue, WorkerLine};
use crate::job::JobId;
use crate::state::State;

/// What is shown below the tabs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum View {
    Queues,
    Workers,
    Jobs(Jobs),
    Job(JobId),
}

/// Which jobs are listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Jobs {
    pub state: Option<State>,
    pub queue: Option<String>,
    pub worker: Option<i64>,
}

/// The jobs that have a tab, in the order of their keys.
const TABS: [State; 9] = [
    State::Running,
    State::Ready,
    State::Retrying,
    State::Scheduled,
    State::Waiting,
    State::Paused,
    State::Failed,
    State::Completed,
    State::Cancelled,
];
/// The keys of the tabs of jobs.
const KEYS: [char; 9] = ['3', '4', '5', '6', '7', '8', '9', '0', '-'];

/// What the database returned.
pub struct Seen {
    pub now: SystemTime,
    pub queues: Vec<Queue>,
    /// The last hour, oldest minute first.
    pub minutes: Vec<Minute>,
    pub body: Body,
}

/// What belongs to the view.
pub enum Body {
    Queues,
    Workers(Vec<WorkerLine>),
    /// Jobs, and how many there are if these are not all: a count, and whether there are more.
    Jobs(Vec<JobSummary>, Option<(i64, bool)>),
    Job(Option<Box<Page>>),
}

/// Everything about one job.
pub struct Page {
    pub job: Job,
    pub explanations: Vec<Explanation>,
    /// Formatted JSON, each with its heading.
    pub documents: Vec<(&'static str, String)>,
}

/// What a key asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    Nothing,
    Quit,
    /// The view has changed: read what it shows.
    Read,
    Fleet(FleetVerb, String),
    Jobs(Verb, Vec<JobId>),
}

/// What the keyboard is used for at the moment.
enum Mode {
    List,
    /// A filter is being typed.
    Filter,
    /// A change is to be confirmed.
    Confirm(String, Act),
    Help,
}

pub struct Screen {
    database: String,
    view: View,
    /// Views to go back to.
    back: Vec<View>,
    seen: Seen,
    mode: Mode,
    selected: usize,
    /// Lines of a page above the screen.
    scrolled: usize,
    filter: String,
    sort: Option<(usize, bool)>,
    marked: BTreeSet<Subject>,
    message: String,
    /// Why the last refresh failed.
    trouble: Option<String>,
}

impl Screen {
    pub fn new(database: String, seen: Seen) -> Screen {
        Screen {
            database,
            view: View::Queues,
            back: Vec::new(),
            seen,
            mode: Mode::List,
            selected: 0,
            scrolled: 0,
            filter: String::new(),
            sort: None,
            marked: BTreeSet::new(),
            message: String::new(),
            trouble: None,
        }
    }

    /// What to read from the database.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Show what was read. The selection stays on its subject, wherever that is now.
    pub fn see(&mut self, seen: Seen) {
        let subject = self.subject();
        self.seen = seen;
        let lines = self.lines();
        let found = lines.iter().position(|line| Some(&line.subject) == subject.as_ref());
        self.selected = found.unwrap_or(self.selected).min(lines.len().saturating_sub(1));
        let there: BTreeSet<Subject> = lines.into_iter().map(|line| line.subject).collect();
        self.marked.retain(|subject| there.contains(subject));
    }

    /// A refresh failed: what was seen stays.
    pub fn fail(&mut self, why: String) {
        self.trouble = Some(why);
    }

    /// A refresh succeeded.
    pub fn answered(&mut self) {
        self.trouble = None;
    }

    pub fn say(&mut self, text: String) {
        self.message = text;
    }

    /// A key with its modifiers: in raw mode, Ctrl-C is a key like any other.
    pub fn press_with(&mut self, key: KeyEvent) -> Act {
        match key.modifiers.contains(KeyModifiers::CONTROL) {
            true if matches!(key.code, KeyCode::Char('c' | 'd')) => Act::Quit,
            true => Act::Nothing,
            false => self.press(key.code),
        }
    }

    pub fn press(&mut self, key: KeyCode) -> Act {
        match std::mem::replace(&mut self.mode, Mode::List) {
            Mode::Confirm(_, act) if key == KeyCode::Char('y') => {
                self.marked.clear();
                return act;
            }
            Mode::Confirm(..) | Mode::Help => return Act::Nothing,
            Mode::Filter => {
                self.type_filter(key);
                return Act::Nothing;
            }
            Mode::List => self.message.clear(),
        }
        match key {
            KeyCode::Char('q') => return Act::Quit,
            KeyCode::Char('?') => self.mode = Mode::Help,
            KeyCode::Char('/') if !self.is_page() => self.mode = Mode::Filter,
            KeyCode::Esc | KeyCode::Backspace => return self.leave(),
            KeyCode::Enter => return self.open(),
            KeyCode::Tab | KeyCode::Right => return self.show(self.tab_beside(1)),
            KeyCode::BackTab | KeyCode::Left => return self.show(self.tab_beside(TABS.len() + 1)),
            KeyCode::Char('1') => return self.show(View::Queues),
            KeyCode::Char('2') => return self.show(View::Workers),
            KeyCode::Char(key) if KEYS.contains(&key) => {
                let tab = KEYS.iter().position(|known| *known == key).unwrap_or(0);
                return self.show(of_state(TABS[tab]));
            }
            KeyCode::Char('s') if !self.is_page() => self.sort_by_next_column(),
            KeyCode::Char('S') => self.sort = self.sort.map(|(column, down)| (column, !down)),
            KeyCode::Char(' ') => self.mark(),
            KeyCode::Char('*') => self.mark_all(),
            KeyCode::Char(letter) => self.ask(letter),
            other => self.scroll(other),
        }
        Act::Nothing
    }

    fn type_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => return,
            KeyCode::Esc => {
                self.filter.clear();
                return;
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
        self.selected = 0;
        self.mode = Mode::Filter;
    }

    /// Clear the filter, else go back to where this view was opened from.
    fn leave(&mut self) -> Act {
        if !self.filter.is_empty() {
            self.filter.clear();
            return Act::Nothing;
        }
        match self.back.pop() {
            Some(view) => self.turn_to(view),
            None => Act::Nothing,
        }
    }

    fn open(&mut self) -> Act {
        let view = match self.subject() {
            None => return Act::Nothing,
            Some(Subject::Queue(name)) => View::Jobs(Jobs {
                queue: Some(name),
                ..Jobs::default()
            }),
            Some(Subject::Worker(id)) => View::Jobs(Jobs {
                worker: Some(id),
                state: Some(State::Running),
                ..Jobs::default()
            }),
            Some(Subject::Job(_)) if self.is_page() => return Act::Nothing,
            Some(Subject::Job(id)) => View::Job(id),
        };
        self.back.push(self.view.clone());
        self.turn_to(view)
    }

    fn show(&mut self, view: View) -> Act {
        self.back.clear();
        self.turn_to(view)
    }

    fn turn_to(&mut self, view: View) -> Act {
        if view != self.view {
            self.marked.clear();
            self.filter.clear();
            self.sort = None;
            self.selected = 0;
            self.scrolled = 0;
            self.view = view;
        }
        Act::Read
    }

    fn tab_beside(&self, by: usize) -> View {
        let tabs: Vec<View> = [View::Queues, View::Workers]
            .into_iter()
            .chain(TABS.map(of_state))
            .collect();
        let shown = self.back.first().unwrap_or(&self.view);
        let at = tabs.iter().position(|tab| tab == shown).unwrap_or(0);
        tabs[(at + by) % tabs.len()].clone()
    }

    fn scroll(&mut self, key: KeyCode) {
        let last = self.lines().len().saturating_sub(1);
        let at = if self.is_page() {
            &mut self.scrolled
        } else {
            &mut self.selected
        };
        let page = 15;
        *at = match key {
            KeyCode::Down => *at + 1,
            KeyCode::Up => at.saturating_sub(1),
            KeyCode::PageDown => *at + page,
            KeyCode::PageUp => at.saturating_sub(page),
            KeyCode::Home => 0,
            KeyCode::End => usize::MAX,
            _ => return,
        };
        if !matches!(self.view, View::Job(_)) {
            self.selected = self.selected.min(last);
        }
    }

    fn sort_by_next_column(&mut self) {
        let columns = self.columns().len();
        self.sort = match self.sort {
            None => Some((0, false)),
            Some((column, _)) if column + 1 < columns => Some((column + 1, false)),
            Some(_) => None,
        };
    }

    fn mark(&mut self) {
        if let Some(subject @ Subject::Job(_)) = self.subject().filter(|_| !self.is_page()) {
            if !self.marked.remove(&subject) {
                self.marked.insert(subject);
            }
            self.scroll(KeyCode::Down);
        }
    }

    fn mark_all(&mut self) {
        if matches!(self.view, View::Jobs(_)) {
            let all: BTreeSet<Subject> = self.lines().into_iter().map(|line| line.subject).collect();
            self.marked = if self.marked == all { BTreeSet::new() } else { all };
        }
    }

    /// Everything that changes something is confirmed. Letters that mean nothing here scroll like in vi.
    fn ask(&mut self, letter: char) {
        let fleet = |name: &str, verb, subject: String, whom: String| {
            Some((format!("{name} {subject}?"), Act::Fleet(verb, whom)))
        };
        let asked = match (self.subject(), letter) {
            (_, 'j') => return self.scroll(KeyCode::Down),
            (_, 'k') => return self.scroll(KeyCode::Up),
            (_, 'g') => return self.scroll(KeyCode::Home),
            (_, 'G') => return self.scroll(KeyCode::End),
            (Some(Subject::Queue(name)), 'p') => fleet("pause", FleetVerb::PauseQueue, format!("queue {name}"), name),
            (Some(Subject::Queue(name)), 'u') => fleet("resume", FleetVerb::ResumeQueue, format!("queue {name}"), name),
            (Some(Subject::Worker(id)), 'p' | 'u' | 'd') => {
                let (name, verb) = match letter {
                    'p' => ("pause", FleetVerb::PauseWorker),
                    'u' => ("resume", FleetVerb::ResumeWorker),
                    _ => ("drain", FleetVerb::DrainWorker),
                };
                fleet(name, verb, format!("worker {id}"), id.to_string())
            }
            (Some(Subject::Job(_)), letter) => self.ask_about_jobs(letter),
            _ => None,
        };
        if let Some((question, act)) = asked {
            self.mode = Mode::Confirm(question, act);
        }
    }

    fn ask_about_jobs(&self, letter: char) -> Option<(String, Act)> {
        let (name, verb) = match letter {
            'c' => ("cancel", Verb::Cancel),
            'p' => ("pause", Verb::Pause),
            'u' => ("resume", Verb::Resume),
            'r' => ("restart", Verb::Restart),
            'n' => ("run now", Verb::Reschedule("now".into())),
            'x' => ("remove", Verb::Remove),
            _ => return None,
        };
        let ids = self.chosen();
        let whom = match ids.as_slice() {
            [] => return None,
            [id] => format!("job {id}"),
            ids => format!("{} jobs{}", ids.len(), self.left_out(ids.len())),
        };
        Some((format!("{name} {whom}?"), Act::Jobs(verb, ids)))
    }

    /// If all that are listed are chosen, and more exist than the list has: that they are not touched.
    fn left_out(&self, chosen: usize) -> String {
        match &self.seen.body {
            Body::Jobs(jobs, Some((count, is_more))) if jobs.len() == chosen => {
                let more = if *is_more { "more than " } else { "" };
                let left = *count - jobs.len() as i64;
                format!(" (the newest; {more}{left} older ones stay: bugle jobs takes all)")
            }
            _ => String::new(),
        }
    }

    /// The marked jobs, else the selected one.
    fn chosen(&self) -> Vec<JobId> {
        let selected = self.subject();
        let subjects: Vec<&Subject> = match self.marked.is_empty() {
            true => selected.iter().collect(),
            false => self.marked.iter().collect(),
        };
        let id = |subject: &&Subject| match subject {
            Subject::Job(id) => Some(*id),
            _ => None,
        };
        subjects.iter().filter_map(id).collect()
    }

    fn is_page(&self) -> bool {
        matches!(self.view, View::Job(_))
    }

    /// What the selected line, or the page, is about.
    fn subject(&self) -> Option<Subject> {
        match self.view {
            View::Job(id) => Some(Subject::Job(id)),
            _ => self.lines().into_iter().nth(self.selected).map(|line| line.subject),
        }
    }

    fn columns(&self) -> &'static [Column] {
        match self.view {
            View::Queues => &list::QUEUES,
            View::Workers => &list::WORKERS,
            View::Jobs(_) | View::Job(_) => &list::JOBS,
        }
    }

    /// All lines of the list.
    fn all_lines(&self) -> Vec<Line> {
        let now = self.seen.now;
        match (&self.view, &self.seen.body) {
            (View::Queues, _) => self.seen.queues.iter().map(list::queue).collect(),
            (View::Workers, Body::Workers(workers)) => workers.iter().map(|worker| list::worker(now, worker)).collect(),
            (View::Jobs(_), Body::Jobs(jobs, _)) => jobs.iter().map(|job| list::job(now, job)).collect(),
            _ => Vec::new(),
        }
    }

    /// Those that match the filter, in order.
    fn lines(&self) -> Vec<Line> {
        let mut lines = self.all_lines();
        lines.retain(|line| line.matches(&self.filter));
        if let Some((column, down)) = self.sort {
            lines.sort_by(|a, b| match down {
                true => b.order(a, column),
                false => a.order(b, column),
            });
        }
        lines
    }
}

fn of_state(state: State) -> View {
    View::Jobs(Jobs {
        state: Some(state),
        ..Jobs::default()
    })
}

#[cfg(test)]
mod tests;
