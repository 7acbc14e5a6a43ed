//! The line of an error that says what went wrong, for logs. Lists and groups of errors use `bugle.error_line`, which
//! chooses the same line.

/// As long as `bugle.error_line` returns.
const LONGEST: usize = 300;

/// The last line that is not indented: tracebacks indent the frames, in every language, and end with what went wrong.
fn of(error: &str) -> String {
    let error = error.replace('\r', "");
    let is_noise = |line: &&str| {
        let is_told = |c: char| !c.is_whitespace() && c != '{' && c != '}';
        !line.starts_with(is_told) || line.starts_with("Node.js v")
    };
    let line = error.split('\n').rev().find(|line| !is_noise(line));
    let line = line.map_or_else(|| error.trim_matches([' ', '\t', '\n']), str::trim_end);
    line.chars().take(LONGEST).collect()
}

/// The same without quoted texts, which are often data: logs contain none.
pub fn for_log(error: &str) -> String {
    let mut told = String::new();
    let (mut closing, mut before) = (None, ' ');
    for c in of(error).chars() {
        let is_opening = match c {
            '"' | '`' => true,
            // not the one in "can't"
            '\'' => !before.is_alphanumeric(),
            _ => false,
        };
        before = c;
        match closing {
            Some(quote) if c == quote => closing = None,
            Some(_) => continue,
            None if is_opening => {
                closing = Some(c);
                told.extend([c, '…']);
                continue;
            }
            None => {}
        }
        told.push(c);
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_that_is_not_indented_says_what_went_wrong() {
        for (error, line) in [
            ("disk full", "disk full"),
            (
                "exit 1\r\nTraceback:\r\n  File\r\nOSError: refused  \r\n\r\n",
                "OSError: refused",
            ),
            (
                "Error: gone\n    at TCP {\n  errno: 1\n}\n\nNode.js v18.1",
                "Error: gone",
            ),
            ("  \n  indented only \n", "indented only"),
            ("", ""),
        ] {
            assert_eq!(of(error), line);
        }
        assert_eq!(of(&"ü".repeat(400)).chars().count(), LONGEST);
    }

    #[test]
    fn quoted_texts_are_left_out_of_logs() {
        assert_eq!(
            for_log("can't read \"a b\", 'c' or `d`: invalid type: string \"secret, e"),
            "can't read \"…\", '…' or `…`: invalid type: string \"…"
        );
    }
}
