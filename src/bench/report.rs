//! Output: a progress line during the run, and a table at the end or one JSON line per result.

use std::io::{IsTerminal, Write};

use serde::Serialize;
use serde_json::{Map, Value};

use super::statistics::Percentiles;

/// One result.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Line {
    /// The subcommand.
    pub bench: &'static str,
    /// The measurement.
    pub what: String,
    /// The number of jobs, commits or calls.
    pub n: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p95_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ms: Option<f64>,
    /// For rates, above 1 is better than the floor; for times, how many times as long as the floor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_floor: Option<f64>,
    /// What it is to reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bar: Option<Bar>,
    /// Whether it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reached: Option<bool>,
    pub notes: Map<String, Value>,
}

/// What a result is compared with.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

impl Bar {
    fn is_reached_by(self, value: f64) -> bool {
        match self {
            Bar::AtLeast(bar) => value >= bar,
            Bar::AtMost(bar) => value <= bar,
        }
    }
}

impl std::fmt::Display for Bar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bar::AtLeast(bar) => write!(f, "≥ {}", number(*bar)),
            Bar::AtMost(bar) => write!(f, "≤ {}", number(*bar)),
        }
    }
}

impl Line {
    pub fn new(bench: &'static str, what: impl Into<String>, n: u64) -> Line {
        Line {
            bench,
            what: what.into(),
            n,
            ..Line::default()
        }
    }

    /// `n` in this number of seconds.
    pub fn rate(mut self, seconds: f64) -> Line {
        self.seconds = Some(rounded(seconds));
        self.per_s = Some(rounded(self.n as f64 / seconds));
        self
    }

    pub fn times(mut self, times: Option<Percentiles>) -> Line {
        self.p50_ms = times.map(|t| rounded(t.p50));
        self.p95_ms = times.map(|t| rounded(t.p95));
        self.p99_ms = times.map(|t| rounded(t.p99));
        self.max_ms = times.map(|t| rounded(t.max));
        self
    }

    pub fn ratio(mut self, ratio: f64) -> Line {
        self.ratio_to_floor = Some(rounded(ratio));
        self
    }

    /// This value is to reach this bar.
    pub fn bar(mut self, value: f64, bar: Bar) -> Line {
        self.bar = Some(bar);
        self.reached = Some(bar.is_reached_by(value));
        self
    }

    pub fn note(mut self, name: &str, value: impl Into<Value>) -> Line {
        let value = match value.into() {
            Value::Number(number) if number.is_f64() => number.as_f64().map(rounded).into(),
            value => value,
        };
        self.notes.insert(name.to_string(), value);
        self
    }
}

/// Collects results and prints them.
#[derive(Debug, Default)]
pub struct Report {
    json: bool,
    lines: Vec<Line>,
    has_named_machine: bool,
}

impl Report {
    pub fn new(json: bool) -> Report {
        Report {
            json,
            ..Report::default()
        }
    }

    /// Show progress, on a terminal only.
    pub fn progress(&self, what: &str) {
        let mut terminal = std::io::stderr();
        if terminal.is_terminal() {
            let _ = write!(terminal, "\r\x1b[2K{what}");
            let _ = terminal.flush();
        }
    }

    pub fn add(&mut self, line: Line) {
        if self.json {
            self.progress("");
            println!("{}", serde_json::to_string(&line).expect("numbers and text"));
        }
        self.lines.push(line);
    }

    /// Print the results since the last call as a table with a heading. Before the first table, print a description of
    /// the server.
    pub fn finish(&mut self, heading: &str, machine: &str) {
        self.progress("");
        let lines = std::mem::take(&mut self.lines);
        if self.json {
            return;
        }
        if !std::mem::replace(&mut self.has_named_machine, true) {
            println!("{machine}");
        }
        println!("\n{heading}\n\n{}", table(&lines));
    }
}

type Column = (&'static str, fn(&Line) -> String);

/// Columns without any value are left out.
fn table(lines: &[Line]) -> String {
    let columns: [Column; 11] = [
        ("what", |l| l.what.clone()),
        ("n", |l| number(l.n as f64)),
        ("seconds", |l| optional(l.seconds)),
        ("per s", |l| optional(l.per_s)),
        ("p50 ms", |l| optional(l.p50_ms)),
        ("p95 ms", |l| optional(l.p95_ms)),
        ("p99 ms", |l| optional(l.p99_ms)),
        ("max ms", |l| optional(l.max_ms)),
        ("× floor", |l| optional(l.ratio_to_floor)),
        ("bar", bar),
        ("notes", |l| notes(&l.notes)),
    ];
    let mut columns: Vec<Vec<String>> = columns
        .iter()
        .map(|(name, cell)| {
            std::iter::once(name.to_string())
                .chain(lines.iter().map(cell))
                .collect()
        })
        .filter(|column: &Vec<String>| column[1..].iter().any(|cell| !cell.is_empty()))
        .collect();
    for column in &mut columns {
        let width = column.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
        let text = matches!(column[0].as_str(), "what" | "bar" | "notes");
        for cell in column.iter_mut() {
            *cell = if text {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            };
        }
        column.insert(1, "-".repeat(width));
    }
    let mut table = String::new();
    for row in 0..lines.len() + 2 {
        let cells: Vec<&str> = columns.iter().map(|column| column[row].as_str()).collect();
        table.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    table
}

fn bar(line: &Line) -> String {
    match line.bar.zip(line.reached) {
        None => String::new(),
        Some((bar, true)) => format!("{bar}: reached"),
        Some((bar, false)) => format!("{bar}: missed"),
    }
}

/// Long lists are only in the JSON output.
fn notes(notes: &Map<String, Value>) -> String {
    let show = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Number(value) => value.as_f64().map(number).unwrap_or_default(),
        Value::Array(values) => values
            .iter()
            .map(|value| value.as_f64().map_or(value.to_string(), number))
            .collect::<Vec<_>>()
            .join(" "),
        value => value.to_string(),
    };
    let notes: Vec<String> = notes
        .iter()
        .filter(|(_, value)| value.as_array().is_none_or(|values| values.len() <= 5))
        .map(|(name, value)| format!("{} {}", name.replace('_', " "), show(value)))
        .collect();
    notes.join("; ")
}

fn optional(value: Option<f64>) -> String {
    value.map_or(String::new(), number)
}

/// Three significant digits, thousands grouped; the measurements are not more precise.
fn number(value: f64) -> String {
    let size = value.abs();
    if size < 100.0 && value.fract() != 0.0 {
        return format!(
            "{value:.*}",
            if size < 1.0 {
                3
            } else if size < 10.0 {
                2
            } else {
                1
            }
        );
    }
    let digits = format!("{:.0}", size);
    let mut grouped = String::from(if value < 0.0 { "-" } else { "" });
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_the_columns_that_are_filled() {
        let lines = [Line::new("drain", "history kept", 200_000)
            .rate(8.0)
            .note("best", 26_000.0)];

        let table = table(&lines);

        assert_eq!(
            table,
            "| what         |       n | seconds |  per s | notes       |\n\
             | ------------ | ------- | ------- | ------ | ----------- |\n\
             | history kept | 200,000 |       8 | 25,000 | best 26,000 |\n"
        );
    }

    #[test]
    fn a_table_says_which_bars_are_reached() {
        let lines = [
            Line::new("due", "ratio", 1).bar(0.7, Bar::AtLeast(0.7)),
            Line::new("due", "time", 1).bar(2.0, Bar::AtMost(1.5)),
        ];

        let table = table(&lines);

        assert_eq!(
            table,
            "| what  | n | bar              |\n\
             | ----- | - | ---------------- |\n\
             | ratio | 1 | ≥ 0.700: reached |\n\
             | time  | 1 | ≤ 1.50: missed   |\n"
        );
    }
}
