//! A page that is one table.

use askama::Template;

use crate::web::actions::{Action, Field};
use crate::web::site::{Frame, encoded};
use crate::web::text::{Html, escape};

/// How many rows a table has at most.
const MOST: usize = 200;
/// As many rows as that a table always has: pages that go on with *Older* have no more.
const LEAST: usize = 50;
/// How many bytes its rows may have beyond that, so that a page stays below 100 kB.
const BYTES: usize = 88_000;

#[derive(Template)]
#[template(path = "table.html")]
pub struct Table {
    pub frame: Frame,
    pub title: &'static str,
    pub lead: String,
    /// Label and class.
    pub columns: Vec<(&'static str, &'static str)>,
    pub rows: Vec<Row>,
    /// What to do if there are none.
    pub empty: &'static str,
    /// A statement that shows the same.
    pub sql: String,
    pub actions: Vec<Action>,
    /// What the rows can be narrowed to.
    pub filters: Vec<Field>,
    /// The jobs of the rows, if they can be selected, and what can be done with them.
    pub ids: Vec<i64>,
    pub verbs: Vec<(&'static str, &'static str)>,
    pub links: Vec<Html>,
    /// Periods to choose from: path, label, and whether it is the current one.
    pub tabs: Vec<(String, &'static str, bool)>,
    /// Groups that the rows can be narrowed to: path, label, count, and whether it is the current one.
    pub chips: Vec<(String, String, String, bool)>,
    pub chips_label: &'static str,
    /// The first page, on later ones.
    pub newest: Option<String>,
    pub next: Option<String>,
    pub left_out: usize,
    pub sections: Vec<Section>,
}

/// A further table of a page, to read only.
pub struct Section {
    /// Names it for live updates.
    pub id: &'static str,
    pub title: String,
    pub lead: String,
    /// Label and class.
    pub columns: Vec<(&'static str, &'static str)>,
    pub rows: Vec<Vec<Html>>,
    /// What to say if there are none.
    pub empty: &'static str,
}

impl Section {
    pub fn new(id: &'static str, title: impl Into<String>, lead: impl Into<String>) -> Section {
        Section {
            id,
            title: title.into(),
            lead: lead.into(),
            columns: Vec::new(),
            rows: Vec::new(),
            empty: "",
        }
    }
}

#[derive(Default)]
pub struct Row {
    pub cells: Vec<Html>,
    pub buttons: Vec<Button>,
    /// Forms behind buttons. A table with these has no buttons that are posted: forms cannot be nested.
    pub actions: Vec<Action>,
}

impl Row {
    /// About how large it is on the page.
    fn bytes(&self) -> usize {
        let cells: usize = self.cells.iter().map(|cell| cell.0.len() + 40).sum();
        let buttons = self.buttons.iter().map(|button| escape(&button.value).len() + 150);
        cells + buttons.sum::<usize>()
    }
}

/// A button of a row, with its parameters.
pub struct Button {
    pub operation: &'static str,
    pub name: &'static str,
    pub value: String,
    pub label: &'static str,
    /// Further parameters.
    pub more: Vec<(&'static str, &'static str)>,
}

impl Button {
    /// Whether it is posted: a rehearsal changes nothing.
    pub fn is_bulk(&self) -> bool {
        self.operation == BULK
    }

    /// The page that asks for a note and does it.
    pub fn path(&self, frame: &Frame) -> String {
        if self.operation == AGAIN {
            return format!("/enqueue?from={}", self.value);
        }
        let more = self
            .more
            .iter()
            .map(|(name, value)| format!("&{name}={}", encoded(value)));
        format!(
            "/act/{}?{}={}{}&back={}",
            self.operation,
            self.name,
            encoded(&self.value),
            more.collect::<String>(),
            encoded(&frame.here)
        )
    }

    /// With a further parameter.
    pub fn with(mut self, name: &'static str, value: &'static str) -> Button {
        self.more.push((name, value));
        self
    }
}

/// The operation of a button that rehearses a verb for everything that matches.
const BULK: &str = "bulk";

/// The operation of a button that leads to the form of a new job.
const AGAIN: &str = "again";

/// Run a job again with another payload.
pub fn again(id: i64) -> Button {
    button(AGAIN, "Edit and send", "from", &id.to_string())
}

/// Rehearse a verb for everything that matches.
pub fn bulk(label: &'static str, verb: &str, query: &str) -> Button {
    button(BULK, label, "everything", &format!("{verb} {query}"))
}

impl Table {
    pub fn new(frame: &Frame, title: &'static str, lead: impl Into<String>, sql: impl Into<String>) -> Table {
        Table {
            frame: frame.clone(),
            title,
            lead: lead.into(),
            columns: Vec::new(),
            rows: Vec::new(),
            empty: "",
            sql: sql.into(),
            actions: Vec::new(),
            filters: Vec::new(),
            ids: Vec::new(),
            verbs: Vec::new(),
            links: Vec::new(),
            tabs: Vec::new(),
            chips: Vec::new(),
            chips_label: "",
            newest: None,
            next: None,
            left_out: 0,
            sections: Vec::new(),
        }
    }

    /// Whether rows can be selected, or have buttons that are posted.
    pub fn is_form(&self) -> bool {
        let is_posted = |row: &Row| row.buttons.iter().any(Button::is_bulk);
        !self.verbs.is_empty() || self.rows.iter().any(is_posted)
    }

    /// Whether rows have something to do.
    pub fn has_buttons(&self) -> bool {
        self.rows
            .iter()
            .any(|row| !row.buttons.is_empty() || !row.actions.is_empty())
    }

    /// Where the filters are sent to.
    pub fn path(&self) -> &str {
        self.frame.here.split('?').next().unwrap_or_default()
    }

    pub fn finished(mut self) -> Table {
        let mut bytes = 0;
        let fit = self.rows.iter().take_while(|row| {
            bytes += row.bytes();
            bytes <= BYTES
        });
        let most = fit.count().clamp(LEAST, MOST);
        self.left_out = self.rows.len().saturating_sub(most);
        self.rows.truncate(most);
        if !self.frame.can_change || self.rows.is_empty() {
            self.ids.clear();
            self.verbs.clear();
        }
        if !self.frame.can_change {
            for row in &mut self.rows {
                row.buttons.clear();
                row.actions.clear();
            }
        }
        self
    }
}

pub fn button(operation: &'static str, label: &'static str, name: &'static str, value: &str) -> Button {
    Button {
        operation,
        name,
        value: value.to_owned(),
        label,
        more: Vec::new(),
    }
}

pub fn mono(value: &str) -> Html {
    Html(format!("<code>{}</code>", escape(value)))
}
