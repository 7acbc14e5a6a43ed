//! Output formats: aligned columns on a terminal, tab-separated in a pipe, JSON on request.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Result, anyhow};
use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;
use unicode_width::UnicodeWidthStr;

/// Output format and refresh interval.
#[derive(Debug, Clone, Default, Args)]
pub struct Shown {
    /// Print JSON
    #[arg(long, global = true, conflicts_with = "jsonl")]
    json: bool,
    /// Print JSON, one line per row
    #[arg(long, global = true)]
    jsonl: bool,
    /// Refresh every DURATION, for example 2s
    #[arg(long, global = true, value_name = "DURATION", value_parser = humantime::parse_duration)]
    watch: Option<Duration>,
}

impl Shown {
    /// Whether the output is JSON.
    pub fn as_json(&self) -> bool {
        self.json || self.jsonl
    }

    /// Print rows.
    pub fn rows<T: Serialize>(&self, rows: &[T], table: impl FnOnce(&[T]) -> Table) -> Result<()> {
        if self.jsonl {
            return rows.iter().try_for_each(print_json);
        }
        match self.json {
            true => print_json(&rows),
            false => table(rows).print(),
        }
    }

    /// Print a single value.
    pub fn one<T: Serialize>(&self, value: &T, table: impl FnOnce(&T) -> Table) -> Result<()> {
        match self.as_json() {
            true => print_json(value),
            false => table(value).print(),
        }
    }

    /// Run once, or until interrupted with --watch.
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

/// A table of text.
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
        self.rows.push(cells);
    }

    /// The lines of a row for people: a list has one, a field of one thing keeps the line breaks of its value.
    fn lines(&self, row: &[String]) -> Vec<Vec<String>> {
        match row {
            [name, value] if self.headings.is_empty() && value.contains('\n') => {
                let names = std::iter::once(one_line(name)).chain(std::iter::repeat(String::new()));
                names
                    .zip(value.trim_end().lines())
                    .map(|(name, line)| vec![name, one_line(line)])
                    .collect()
            }
            cells => vec![cells.iter().map(|cell| one_line(cell)).collect()],
        }
    }

    /// For people: headings and aligned columns, in lines of at most `most` columns of the terminal.
    pub fn aligned(&self, color: bool, most: usize) -> String {
        let headings = (!self.headings.is_empty()).then(|| self.headings.clone());
        let rows = self.rows.iter().flat_map(|row| self.lines(row));
        let mut lines: Vec<Vec<String>> = headings.into_iter().chain(rows).collect();
        if !self.headings.is_empty() {
            fit(&mut lines, most);
        }
        let widths = widths(&lines);
        lines.iter().fold(String::new(), |text, line| {
            let cells: Vec<String> = line
                .iter()
                .zip(&widths)
                .map(|(cell, width)| painted(cell, &padded(cell, *width), color))
                .collect();
            text + cells.join("  ").trim_end() + "\n"
        })
    }

    /// For programs: the values only.
    pub fn tab_separated(&self) -> String {
        let line = |row: &Vec<String>| row.iter().map(|cell| one_line(cell)).collect::<Vec<_>>().join("\t");
        self.rows.iter().map(|row| line(row) + "\n").collect()
    }

    /// Aligned on a terminal, tab-separated otherwise.
    pub fn print(&self) -> Result<()> {
        print(&if io::stdout().is_terminal() {
            self.aligned(may_paint(), terminal_width())
        } else {
            self.tab_separated()
        })
    }
}

/// The widths of the columns.
fn widths(lines: &[Vec<String>]) -> Vec<usize> {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.width()).max().unwrap_or(0)
    };
    (0..columns).map(width).collect()
}

/// Columns are not cut below this.
const NARROWEST: usize = 8;

/// Make lines fit, the first of which has the headings: leave out columns that are empty or 0 in all rows, then cut the
/// widest. Pipes and JSON get everything.
fn fit(lines: &mut [Vec<String>], most: usize) {
    let excess =
        |widths: &[usize]| (widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1)).checked_sub(most);
    let mut wide = widths(lines);
    for column in (1..wide.len()).rev() {
        let says_nothing = |line: &Vec<String>| line.get(column).is_none_or(|cell| cell.is_empty() || cell == "0");
        if excess(&wide).is_some_and(|excess| excess > 0) && lines.iter().skip(1).all(says_nothing) {
            lines.iter_mut().filter(|line| line.len() > column).for_each(|line| {
                line.remove(column);
            });
            wide.remove(column);
        }
    }
    while excess(&wide).is_some_and(|excess| excess > 0) {
        let Some(widest) = wide.iter_mut().max().filter(|width| **width > NARROWEST) else {
            break;
        };
        *widest -= 1;
    }
    for line in lines {
        for (cell, width) in line.iter_mut().zip(&wide) {
            cut(cell, *width);
        }
    }
}

/// Cut a text to this many columns of the terminal.
fn cut(text: &mut String, most: usize) {
    if text.width() > most {
        while text.width() >= most {
            text.pop();
        }
        text.push('…');
    }
}

/// The columns of the terminal: at least 40, 80 if it does not say.
fn terminal_width() -> usize {
    let told = rustix::termios::tcgetwinsize(io::stdout())
        .ok()
        .map(|size| usize::from(size.ws_col));
    let set = || std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    told.filter(|columns| *columns > 0).or_else(set).unwrap_or(80).max(40)
}

/// Pads by terminal columns: `format!` counts characters, but 東 is two columns wide.
fn padded(cell: &str, width: usize) -> String {
    cell.to_owned() + &" ".repeat(width.saturating_sub(cell.width()))
}

/// Colors are used on a terminal, unless NO_COLOR is set.
pub fn may_paint() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty())
}

/// Highlight states by whether they are good, bad or pending.
fn painted(word: &str, text: &str, color: bool) -> String {
    let code = match word {
        "failed" | "lost" | "FAIL" => "31",
        "retrying" | "paused" | "cancelled" | "WARN" => "33",
        "running" | "alive" | "completed" | "ok" => "32",
        _ => return text.to_owned(),
    };
    match color {
        true => format!("\x1b[{code}m{text}\x1b[0m"),
        false => text.to_owned(),
    }
}

/// Read JSON that a person wrote. The error says where it goes wrong.
pub fn read_json<T: DeserializeOwned>(what: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| {
        let place = match (error.is_eof(), text.lines().count()) {
            (true, _) => "it ends too early".to_owned(),
            (false, ..=1) => format!("look at column {}", error.column()),
            (false, _) => format!("look at line {}, column {}", error.line(), error.column()),
        };
        anyhow!("{what} is not JSON: {place}")
    })
}

/// Print as JSON, on one line.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    print(&(escaped(&serde_json::to_string(value)?) + "\n"))
}

/// JSON does not escape DEL and the C1 control characters, but terminals interpret them. Only strings can contain them.
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

/// Print; a closed pipe (as with `head`) is not an error.
pub fn print(text: &str) -> Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => Ok(printed?),
    }
}

/// Make untrusted text safe to print: it must neither break the table nor control the terminal.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The same for multi-line text, such as an error with its hint.
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

/// A duration in its two largest units: "3m 20s", "2d 4h", "120ms".
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
    fn a_table_fits_the_terminal_and_loses_only_what_says_nothing() {
        let mut table = Table::new(&["QUEUE", "READY", "PAUSED", "NOTE", "LIMITS"]);
        let error = "the mail server does not answer on port 587";
        table.row(["mail", "0", "0", error, ""].map(String::from).to_vec());
        table.row(["news", "12", "0", "", ""].map(String::from).to_vec());

        assert_eq!(
            table.aligned(false, 40),
            "QUEUE  READY  NOTE\nmail   0      the mail server does not …\nnews   12\n"
        );
        assert!(
            table.aligned(false, 100).contains("PAUSED  NOTE"),
            "there is room for all"
        );
        assert!(
            table
                .aligned(false, 10)
                .lines()
                .all(|line| line.width() <= 3 * NARROWEST + 4)
        );
    }

    #[test]
    fn colors_do_not_shift_columns() {
        let mut table = Table::new(&["STATE", "ID"]);
        table.row(vec!["failed".into(), "1".into()]);

        assert_eq!(table.aligned(true, 80), "STATE   ID\n\x1b[31mfailed\x1b[0m  1\n");
    }

    #[test]
    fn wide_characters_do_not_shift_columns() {
        let mut table = Table::new(&["NAME", "ID"]);
        table.row(vec!["東京".into(), "1".into()]);
        table.row(vec!["e\u{301}te".into(), "2".into()]);

        assert_eq!(table.aligned(false, 80), "NAME  ID\n東京  1\ne\u{301}te   2\n");
    }

    #[test]
    fn a_field_keeps_the_line_breaks_of_its_value() {
        let mut table = Table::default();
        table.row(vec!["id".into(), "1".into()]);
        table.row(vec!["last error".into(), "exit 1\nno such host\x1b[0m\n".into()]);

        assert_eq!(
            table.aligned(false, 80),
            "id          1\nlast error  exit 1\n            no such host [0m\n"
        );
        assert_eq!(table.tab_separated(), "id\t1\nlast error\texit 1 no such host [0m \n");
    }

    #[test]
    fn columns_are_aligned_and_control_characters_are_harmless() {
        let mut table = Table::new(&["ID", "NAME"]);
        table.row(vec!["1".into(), "a\tb\x1b[31m".into()]);
        table.row(vec!["1000".into(), "ü".into()]);

        assert_eq!(table.aligned(false, 80), "ID    NAME\n1     a b [31m\n1000  ü\n");
        assert_eq!(table.tab_separated(), "1\ta b [31m\n1000\tü\n");
        assert_eq!(harmless("a\u{9b}31m\r\nb"), "a 31m \nb");
        assert_eq!(escaped("{\"a\":\"ü\u{9b}\u{7f}\"}"), "{\"a\":\"ü\\u009b\\u007f\"}");
    }
}
