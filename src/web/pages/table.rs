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

pub struct Row {
    pub cells: Vec<Html>,
    pub buttons: Vec<Button>,
}

impl Row {
    /// About how large it is on the page.
    fn bytes(&self) -> usize {
        let cells: usize = self.cells.iter().map(|cell| cell.0.len() + 22).sum();
        let buttons = self.buttons.iter().map(|button| escape(&button.value).len() + 150);
        cells + buttons.sum::<usize>()
    }
}

/// A button of a row, with one parameter.
pub struct Button {
    pub operation: &'static str,
    pub name: &'static str,
    pub value: String,
    pub label: &'static str,
}

impl Button {
    /// Whether it is posted: a rehearsal changes nothing.
    pub fn is_bulk(&self) -> bool {
        self.operation == BULK
    }

    /// The page that asks for a note and does it.
    pub fn path(&self, frame: &Frame) -> String {
        format!(
            "/act/{}?{}={}&back={}",
            self.operation,
            self.name,
            encoded(&self.value),
            encoded(&frame.here)
        )
    }
}

/// The operation of a button that rehearses a verb for everything that matches.
const BULK: &str = "bulk";

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
            next: None,
            left_out: 0,
            sections: Vec::new(),
        }
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
            self.rows.iter_mut().for_each(|row| row.buttons.clear());
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
    }
}

pub fn mono(value: &str) -> Html {
    Html(format!("<code>{}</code>", escape(value)))
}
