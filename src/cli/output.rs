//! How answers are printed: aligned on a terminal, tab-separated in a pipe, JSON if asked for.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use unicode_width::UnicodeWidthStr;

/// How to print an answer, and whether to ask again.
#[derive(Debug, Clone, Default, Args)]
pub struct Shown {
    /// Print JSON
    #[arg(long, global = true, conflicts_with = "jsonl")]
    json: bool,
    /// Print JSON, one line for each
    #[arg(long, global = true)]
    jsonl: bool,
    /// Refresh every DURATION, for example 2s
    #[arg(long, global = true, value_name = "DURATION", value_parser = humantime::parse_duration)]
    watch: Option<Duration>,
}

impl Shown {
    /// Whether a program reads it.
    pub fn as_json(&self) -> bool {
        self.json || self.jsonl
    }

    /// Print what was asked for.
    pub fn rows<T: Serialize>(&self, rows: &[T], table: impl FnOnce(&[T]) -> Table) -> Result<()> {
        if self.jsonl {
            return rows.iter().try_for_each(print_json);
        }
        match self.json {
            true => print_json(&rows),
            false => table(rows).print(),
        }
    }

    /// Print one thing.
    pub fn one<T: Serialize>(&self, value: &T, table: impl FnOnce(&T) -> Table) -> Result<()> {
        match self.as_json() {
            true => print_json(value),
            false => table(value).print(),
        }
    }

    /// Ask once, or with --watch until interrupted.
    pub async fn repeat(&self, mut once: impl AsyncFnMut() -> Result<()>) -> Result<ExitCode> {
        let Some(pause) = self.watch else {
            once().await?;
            return Ok(ExitCode::SUCCESS);
        };
        loop {
            if io::stdout().is_terminal() && !self.as_json() {
                print("\x1b[2J\x1b[H")?;
            }
            once().await?;
            io::stdout().flush()?;
            tokio::time::sleep(pause.max(Duration::from_millis(100))).await;
        }
    }
}

/// Lines and columns of text.
#[derive(Debug, Default)]
pub struct Table {
    headings: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(headings: &[&str]) -> Table {
        Table {
            headings: headings.iter().map(|heading| heading.to_string()).collect(),
            rows: Vec::new(),
        }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|cell| one_line(cell)).collect());
    }

    /// For people: headings, and columns below each other.
    pub fn aligned(&self) -> String {
        self.aligned_in(false)
    }

    fn aligned_in(&self, colour: bool) -> String {
        let lines: Vec<&Vec<String>> = Some(&self.headings)
            .filter(|headings| !headings.is_empty())
            .into_iter()
            .chain(&self.rows)
            .collect();
        let columns = lines.iter().map(|line| line.len()).max().unwrap_or(0);
        let width = |column: usize| {
            lines
                .iter()
                .map(|line| line.get(column).map_or(0, |cell| cell.width()))
                .max()
        };
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        lines.iter().fold(String::new(), |text, line| {
            let cells: Vec<String> = line
                .iter()
                .zip(&widths)
                .map(|(cell, width)| painted(cell, &padded(cell, *width), colour))
                .collect();
            text + cells.join("  ").trim_end() + "\n"
        })
    }

    /// For programs: the values alone.
    pub fn tab_separated(&self) -> String {
        self.rows.iter().map(|row| row.join("\t") + "\n").collect()
    }

    /// Aligned on a terminal, tab-separated otherwise.
    pub fn print(&self) -> Result<()> {
        print(&if io::stdout().is_terminal() {
            self.aligned_in(may_paint())
        } else {
            self.tab_separated()
        })
    }
}

/// `format!` would count characters; a terminal counts columns, and 東 takes two of them.
fn padded(cell: &str, width: usize) -> String {
    cell.to_owned() + &" ".repeat(width.saturating_sub(cell.width()))
}

/// Colours are for people who look at a terminal and do not mind them.
pub fn may_paint() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty())
}

/// Words that mean something good, bad or pending stand out.
fn painted(word: &str, text: &str, colour: bool) -> String {
    let code = match word {
        "failed" | "lost" | "FAIL" => "31",
        "retrying" | "paused" | "cancelled" | "WARN" => "33",
        "running" | "alive" | "completed" | "ok" => "32",
        _ => return text.to_owned(),
    };
    match colour {
        true => format!("\x1b[{code}m{text}\x1b[0m"),
        false => text.to_owned(),
    }
}

/// Print as JSON, on one line.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    print(&(escaped(&serde_json::to_string(value)?) + "\n"))
}

/// JSON leaves DEL and the controls above it as they are; terminals do not. Only strings can contain them.
fn escaped(json: &str) -> String {
    let escape = |c: char| match c.is_control() {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.to_string(),
    };
    match json.contains(char::is_control) {
        true => json.chars().map(escape).collect(),
        false => json.to_owned(),
    }
}

/// Print, and do not mind a reader that has seen enough, such as `head`.
pub fn print(text: &str) -> Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => Ok(printed?),
    }
}

/// Text of others must neither break the table nor steer the terminal.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The same for text of several lines, such as an error with its hint.
pub fn harmless(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(one_line).collect();
    lines.join("\n")
}

/// "3m 20s ago", "in 5s", "now".
pub fn age(now: SystemTime, then: SystemTime) -> String {
    match now.duration_since(then) {
        Ok(ago) if ago < Duration::from_millis(1) => "now".into(),
        Ok(ago) => format!("{} ago", span(ago)),
        Err(ahead) => format!("in {}", span(ahead.duration())),
    }
}

/// A length of time in its two largest units: "3m 20s", "2d 4h", "120ms".
pub fn span(length: Duration) -> String {
    let seconds = length.as_secs();
    let units = [
        ("y", seconds / 31_536_000),
        ("d", seconds / 86_400 % 365),
        ("h", seconds / 3600 % 24),
        ("m", seconds / 60 % 60),
        ("s", seconds % 60),
    ];
    match units.iter().position(|(_, count)| *count > 0) {
        None => format!("{}ms", length.as_millis()),
        Some(first) => {
            let parts = units.iter().skip(first).take(2).filter(|(_, count)| *count > 0);
            parts
                .map(|(unit, count)| format!("{count}{unit}"))
                .collect::<Vec<_>>()
                .join(" ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_told_in_their_two_largest_units() {
        let told = |seconds| span(Duration::from_secs(seconds));

        assert_eq!(span(Duration::from_millis(120)), "120ms");
        assert_eq!(
            [told(5), told(200), told(7_200), told(187_000)],
            ["5s", "3m 20s", "2h", "2d 3h"]
        );
        assert_eq!(told(400 * 86_400), "1y 35d");
        let now = SystemTime::now();
        assert_eq!(age(now, now - Duration::from_secs(200)), "3m 20s ago");
        assert_eq!(age(now, now + Duration::from_secs(5)), "in 5s");
        assert_eq!(age(now, now), "now");
    }

    #[test]
    fn colours_do_not_shift_columns() {
        let mut table = Table::new(&["STATE", "ID"]);
        table.row(vec!["failed".into(), "1".into()]);

        assert_eq!(table.aligned_in(true), "STATE   ID\n\x1b[31mfailed\x1b[0m  1\n");
    }

    #[test]
    fn wide_characters_do_not_shift_columns() {
        let mut table = Table::new(&["NAME", "ID"]);
        table.row(vec!["東京".into(), "1".into()]);
        table.row(vec!["e\u{301}te".into(), "2".into()]);

        assert_eq!(table.aligned(), "NAME  ID\n東京  1\ne\u{301}te   2\n");
    }

    #[test]
    fn columns_are_aligned_and_control_characters_are_harmless() {
        let mut table = Table::new(&["ID", "NAME"]);
        table.row(vec!["1".into(), "a\tb\x1b[31m".into()]);
        table.row(vec!["1000".into(), "ü".into()]);

        assert_eq!(table.aligned(), "ID    NAME\n1     a b [31m\n1000  ü\n");
        assert_eq!(table.tab_separated(), "1\ta b [31m\n1000\tü\n");
        assert_eq!(harmless("a\u{9b}31m\r\nb"), "a 31m \nb");
        assert_eq!(escaped("{\"a\":\"ü\u{9b}\u{7f}\"}"), "{\"a\":\"ü\\u009b\\u007f\"}");
    }
}
