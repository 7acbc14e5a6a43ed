//! Where bugs are applied to the SQL: `-- seed: <bug>` in `sql/` stands above the line that the bug changes.

use std::path::Path;

/// What is replaced by what. The text that is replaced begins in the line below a marker of the bug. How it is broken
/// into lines and indented, and comments in it, make no difference.
pub type Edit = (&'static str, &'static str);

const MARKER: &str = "-- seed:";

/// A file of `sql/`: its name and its text.
pub type File = (String, String);

pub fn files() -> Vec<File> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("sql");
    let entries = std::fs::read_dir(folder).expect("sql/ can be read");
    let mut files: Vec<File> = entries
        .map(|entry| entry.expect("an entry"))
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, std::fs::read_to_string(entry.path()).expect("an SQL file"))
        })
        .collect();
    files.sort();
    files
}

/// The bugs that a file has markers for.
pub fn bugs_in(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(bugs_at).flatten()
}

/// The files that a bug changes, as it changes them.
///
/// # Errors
/// When it has no marker, none or several of its edits fit at a marker, or an edit fits nowhere.
pub fn apply(bug: &str, edits: &[Edit], files: &[File]) -> Result<Vec<File>, String> {
    let mut is_used = vec![false; edits.len()];
    let mut changed = vec![];
    for (file, text) in files {
        let mut result = String::new();
        let mut from = 0;
        for line in marked_lines(text, bug) {
            let fitting: Vec<(usize, (usize, usize))> = (0..edits.len())
                .filter_map(|edit| Some((edit, find(text, line, edits[edit].0)?)))
                .collect();
            let [(edit, (start, end))] = fitting[..] else {
                let line = &text[line.0..line.1];
                return Err(format!(
                    "{bug}: {} of its edits fit here, in {file}: {line}",
                    fitting.len()
                ));
            };
            is_used[edit] = true;
            result += &text[from..start];
            result += edits[edit].1;
            from = end;
        }
        if from > 0 {
            result += &text[from..];
            changed.push((file.clone(), result));
        }
    }
    match is_used.iter().position(|is_used| !is_used) {
        Some(edit) => Err(format!(
            "{bug}: there is no marker `{MARKER} {bug}` with {:?} below it",
            edits[edit].0
        )),
        None => Ok(changed),
    }
}

fn bugs_at(line: &str) -> Option<impl Iterator<Item = &str>> {
    let bugs = line.trim().strip_prefix(MARKER)?;
    Some(bugs.split(',').map(str::trim))
}

/// The first line after each marker of a bug that is not a comment: where it starts and ends.
fn marked_lines(text: &str, bug: &str) -> Vec<(usize, usize)> {
    let mut marked = vec![];
    let mut is_marked = false;
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let end = start + line.len();
        if bugs_at(line).is_some_and(|mut bugs| bugs.any(|name| name == bug)) {
            is_marked = true;
        } else if is_marked && !line.trim_start().starts_with("--") {
            marked.push((start, end));
            is_marked = false;
        }
        start = end;
    }
    marked
}

/// Where a wanted text that begins in a line stands.
fn find(text: &str, line: (usize, usize), wanted: &str) -> Option<(usize, usize)> {
    (line.0..line.1)
        .filter(|start| text.is_char_boundary(*start))
        .find_map(|start| Some((start, end_of(text, start, wanted)?)))
}

/// Where a wanted text that starts here ends.
fn end_of(text: &str, start: usize, wanted: &str) -> Option<usize> {
    let mut rest = &text[start..];
    for (position, word) in wanted.split_whitespace().enumerate() {
        if position > 0 {
            let space = rest.len();
            rest = skip_space(rest);
            if rest.len() == space {
                return None;
            }
        }
        rest = rest.strip_prefix(word)?;
    }
    Some(text.len() - rest.len())
}

fn skip_space(text: &str) -> &str {
    let text = text.trim_start();
    match text.starts_with("--") {
        true => skip_space(text.split_once('\n').map_or("", |(_, rest)| rest)),
        false => text,
    }
}

#[test]
fn an_edit_fits_however_the_lines_are_broken() {
    let edits: [Edit; 1] = [("where a = 1 and b = 2", "where true")];
    for text in [
        "select\n-- seed: bug\nwhere a = 1 and b = 2;",
        "select\n  -- seed: other, bug\n  -- why\n  where a = 1\n    -- seed: third\n    and b = 2;",
    ] {
        let applied = apply("bug", &edits, &[("f".into(), text.into())]).unwrap();

        assert!(applied[0].1.ends_with("where true;"), "{applied:?}");
    }
}

#[test]
fn a_marker_that_is_missing_or_does_not_fit_is_named() {
    let edits: [Edit; 1] = [("a = 1", "true")];
    for (text, complaint) in [
        (
            "where a = 1;",
            "bug: there is no marker `-- seed: bug` with \"a = 1\" below it",
        ),
        (
            "-- seed: bug\nwhere b = 1;",
            "bug: 0 of its edits fit here, in f: where b = 1;",
        ),
    ] {
        assert_eq!(
            apply("bug", &edits, &[("f".into(), text.into())]),
            Err(complaint.into())
        );
    }
}
