//! What pages show: times, lengths, numbers, JSON and states, as text or as safe HTML.

use std::fmt::{self, Write};
use std::time::{Duration, SystemTime};

use askama::filters::HtmlSafe;

use crate::read::rfc3339;
use crate::state::State;

/// Text that is HTML already.
#[derive(Debug, Clone, Default)]
pub struct Html(pub String);

impl fmt::Display for Html {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl HtmlSafe for Html {}

/// Text as HTML shows it literally.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&#34;"),
            '\'' => escaped.push_str("&#39;"),
            // escape sequences and the like are shown as pictures of themselves
            c if c < ' ' && !"\n\t\r".contains(c) => {
                escaped.push(char::from_u32(0x2400 + c as u32).unwrap_or('\u{fffd}'));
            }
            c => escaped.push(c),
        }
    }
    escaped
}

/// A length of time in one or two figures: `0.4 s`, `5 min`, `3 h`.
pub fn span(length: Duration) -> String {
    let seconds = length.as_secs_f64();
    match seconds {
        s if s < 0.001 => "<1 ms".to_owned(),
        s if s < 1.0 => format!("{:.0} ms", s * 1000.0),
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3600.0),
        s => format!("{:.0} days", s / 86_400.0),
    }
}

/// The same of seconds, if there are any.
pub fn seconds(seconds: Option<f64>) -> String {
    match seconds {
        Some(seconds) if seconds >= 0.0 => span(Duration::from_secs_f64(seconds.min(1e12))),
        _ => "–".to_owned(),
    }
}

/// A time relative to now, with the exact one behind it.
pub fn when(now: SystemTime, time: SystemTime) -> Html {
    let text = match now.duration_since(time) {
        Ok(ago) if ago < Duration::from_millis(500) => "now".to_owned(),
        Ok(ago) => format!("{} ago", span(ago)),
        Err(ahead) => format!("in {}", span(ahead.duration())),
    };
    exact(time, &text)
}

/// A time of day, with the exact time behind it.
pub fn clock(time: SystemTime) -> Html {
    let iso = rfc3339(time);
    let text = iso.get(11..23).unwrap_or(&iso).to_owned();
    exact(time, &text)
}

fn exact(time: SystemTime, text: &str) -> Html {
    let iso = rfc3339(time);
    let day = iso.get(..19).unwrap_or(&iso).replace('T', " ");
    Html(format!("<time datetime=\"{iso}\" title=\"{day} UTC\">{text}</time>"))
}

/// A number with separators.
pub fn number(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if number < 0 { format!("-{text}") } else { text }
}

/// A share of all, in percent.
pub fn percent(part: i64, all: i64) -> String {
    match all {
        0 => "–".to_owned(),
        all => format!("{:.1} %", 100.0 * part as f64 / all as f64),
    }
}

/// The shape of a state, 10 by 10.
pub fn shape(state: &str) -> &'static str {
    match state {
        "completed" | "done" | "alive" | "ok" => "<path d=\"M1.5 5.5 4 8l4.5-6\" class=\"stroke\"/>",
        "running" => "<path d=\"M2.5 1v8L9 5z\"/>",
        "ready" => "<circle cx=\"5\" cy=\"5\" r=\"3\"/>",
        "scheduled" | "waiting" | "pending" => {
            "<path d=\"M5 1a4 4 0 1 0 0 8 4 4 0 0 0 0-8zm0 1.6V5l1.8 1.2\" class=\"stroke\"/>"
        }
        "retrying" => "<path d=\"M8.5 5a3.5 3.5 0 1 1-1-2.5M8 .8v2H6\" class=\"stroke\"/>",
        "paused" => "<path d=\"M2.5 1.5h2v7h-2zM5.5 1.5h2v7h-2z\"/>",
        "warning" => "<path d=\"M5 1.2 9.2 8.8H.8zM5 4v2M5 7.4v.2\" class=\"stroke\"/>",
        "failed" | "lost" => "<path d=\"M2 2l6 6M8 2L2 8\" class=\"stroke\"/>",
        _ => "<path d=\"M2 5h6\" class=\"stroke\"/>",
    }
}

/// A state by color, word and shape.
pub fn badge(state: &str) -> Html {
    let shape = shape(state);
    let word = escape(state);
    Html(format!(
        "<span class=\"state {word}\"><svg viewBox=\"0 0 10 10\" aria-hidden=\"true\">{shape}</svg>{word}</span>"
    ))
}

/// The badge of a job.
pub fn state(state: State) -> Html {
    badge(state.as_str())
}

/// How much of a JSON text is shown.
const MOST_JSON: usize = 30_000;

/// JSON, indented and colored. No number is read, so no digit is lost.
pub fn json(raw: &str) -> Html {
    let mut out = String::new();
    let mut depth = 0_usize;
    let mut chars = raw.char_indices().peekable();
    let newline = |out: &mut String, depth: usize| {
        out.push('\n');
        for _ in 0..depth.min(40) {
            out.push_str("  ");
        }
    };
    while let Some((start, c)) = chars.next() {
        if start > MOST_JSON {
            let _ = write!(out, "\n… {} of {} bytes are shown", start, raw.len());
            break;
        }
        match c {
            '"' => {
                let mut end = raw.len();
                let mut is_escaped = false;
                for (place, c) in chars.by_ref() {
                    match c {
                        _ if is_escaped => is_escaped = false,
                        '\\' => is_escaped = true,
                        '"' => {
                            end = place + 1;
                            break;
                        }
                        _ => {}
                    }
                }
                while chars.next_if(|(_, c)| c.is_whitespace()).is_some() {}
                let class = match chars.peek() {
                    Some((_, ':')) => 'p',
                    _ => 's',
                };
                let shown: String = raw[start..end].chars().take(MOST_JSON).collect();
                let _ = write!(out, "<span class=\"{class}\">{}</span>", escape(&shown));
            }
            '{' | '[' => {
                out.push(c);
                while chars.next_if(|(_, c)| c.is_whitespace()).is_some() {}
                if let Some((_, close)) = chars.next_if(|(_, c)| "}]".contains(*c)) {
                    out.push(close);
                } else {
                    depth += 1;
                    newline(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                newline(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(',');
                newline(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_whitespace() => {}
            c => {
                let mut word = c.to_string();
                while let Some((_, c)) = chars.next_if(|(_, c)| !",]} \n\t\r".contains(*c)) {
                    word.push(c);
                }
                let _ = write!(out, "<span class=\"n\">{}</span>", escape(&word));
            }
        }
    }
    Html(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_indented_escaped_and_keeps_every_digit() {
        let shown = json("{\"a\": [1, 9007199254740993123], \"<b>\": \"x\\\"</pre>\", \"e\": {}}").0;

        assert!(
            shown.contains("<span class=\"n\">9007199254740993123</span>"),
            "{shown}"
        );
        assert!(
            shown.contains("<span class=\"p\">&#34;&lt;b&gt;&#34;</span>: "),
            "{shown}"
        );
        assert!(!shown.contains("</pre>") && shown.contains(": {}"), "{shown}");
        assert!(json(&format!("\"{}\"", "é".repeat(1_000_000))).0.len() < 100_000);
    }

    #[test]
    fn times_and_numbers_are_short() {
        assert_eq!(span(Duration::from_millis(412)), "412 ms");
        assert_eq!(span(Duration::from_secs(330)), "6 min");
        assert_eq!(
            (number(1_234_567), number(-1000), number(12)),
            ("1,234,567".into(), "-1,000".into(), "12".into())
        );
        assert_eq!(escape("<a>\u{1b}[31m"), "&lt;a&gt;␛[31m");
    }
}
