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

/// A name, which a narrow window breaks between its parts rather than inside a word.
pub fn parted(name: &str) -> Html {
    let parts = name.split_inclusive(['_', '-', '.', ':', '/', '@']).map(escape);
    Html(parts.collect::<Vec<_>>().join("<wbr>"))
}

/// A length of time in one or two figures: `0.4 s`, `5 min`, `3 h`.
pub fn span(length: Duration) -> String {
    let seconds = length.as_secs_f64();
    match seconds {
        s if s < 0.001 => "<1 ms".to_owned(),
        s if s < 1.0 => format!("{:.0} ms", s * 1000.0),
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 99.5 => format!("{s:.0} s"),
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
        Ok(ago) if ago < Duration::from_secs(1) => "now".to_owned(),
        Ok(ago) => format!("{} ago", span(ago)),
        Err(ahead) if ahead.duration() < Duration::from_secs(1) => "now".to_owned(),
        Err(ahead) => format!("in {}", span(ahead.duration())),
    };
    exact(time, &text)
}

/// How much of a time is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// 21:39
    Minute,
    /// Thu 21:39
    Weekday,
    /// Nov 19
    Day,
    /// 21:39:27.500
    Clock,
    /// Nov 19, 21:39:27
    Moment,
}

/// A time in UTC. The script of the pages shows it in the zone that the viewer has chosen, in the same form.
pub fn at(time: SystemTime, form: Form) -> Html {
    let iso = rfc3339(time);
    let part = |from: usize, to: usize| iso.get(from..to).unwrap_or_default();
    let day = || {
        let month = part(5, 7).parse::<usize>().unwrap_or_default();
        let name = MONTHS.get(month.saturating_sub(1)).copied().unwrap_or_default();
        format!("{name} {}", part(8, 10).trim_start_matches('0'))
    };
    let (name, text) = match form {
        Form::Minute => ("minute", part(11, 16).to_owned()),
        Form::Weekday => {
            let days = time
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs()
                / 86_400;
            let name = WEEKDAYS.get((days % 7) as usize).copied().unwrap_or_default();
            ("weekday", format!("{name} {}", part(11, 16)))
        }
        Form::Day => ("day", day()),
        Form::Clock => ("clock", part(11, 23).trim_end_matches('Z').to_owned()),
        Form::Moment => ("moment", format!("{}, {}", day(), part(11, 19))),
    };
    Html(format!(
        "<time datetime=\"{iso}\" data-form=\"{name}\" title=\"{} UTC\">{text}</time>",
        iso.get(..19).unwrap_or(&iso).replace('T', " ")
    ))
}

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];
/// From the day of the epoch.
const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];

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

/// A name of a program in words: `not_retryable` is "not retryable".
pub fn words(name: &str) -> String {
    name.replace('_', " ")
}

/// The limits of a queue, which the database describes by the names of its settings.
pub fn limits(described: &str) -> String {
    let one = |limit: &str| {
        if limit.is_empty() {
            return "none".to_owned();
        }
        let (name, value) = limit.split_once(' ').unwrap_or((limit, ""));
        let (most, period) = value.split_once(" per ").unwrap_or((value, ""));
        let period = match period {
            "00:00:01" => "second",
            "00:01:00" => "minute",
            "01:00:00" => "hour",
            "1 day" | "24:00:00" => "day",
            other => other,
        };
        match name {
            "max_running" => format!("{most} at once"),
            "max_running_per_key" => format!("{most} at once per key"),
            "max_starts" => format!("{most} starts per {period}"),
            "max_starts_per_key" => format!("{most} starts per {period} and key"),
            "order_on_retry" => "others pass a retry".to_owned(),
            _ => words(limit),
        }
    };
    described.split(", ").map(one).collect::<Vec<_>>().join(", ")
}

/// What fixes something: a statement or command to copy, with what is said about it; or a sentence.
pub fn fix(text: &str) -> Html {
    let (code, about) = text.split_once("  -- ").unwrap_or((text, ""));
    let first = code.split([' ', ';']).next().unwrap_or_default();
    let is_code = ["select", "alter", "grant", "vacuum", "rollback", "create", "analyze"].contains(&first)
        || first == "bugle" && !code.contains(';');
    match is_code {
        true => Html(format!(
            "<code class=\"wrap fix\" data-copy>{}</code>{}",
            escape(code),
            match about {
                "" => String::new(),
                about => format!("<small class=\"block dim\">{}</small>", escape(about)),
            }
        )),
        false => Html(format!("<span class=\"wrap\">{}</span>", escape(text))),
    }
}

/// The attribute that names the column of a cell, where a narrow window shows a row as a card. Cells that are left out
/// there have none.
pub fn labelled((label, class): &(&'static str, &'static str)) -> Html {
    match label.is_empty() || class.contains("hide-s") {
        true => Html::default(),
        false => Html(format!(" data-label=\"{}\"", escape(label))),
    }
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
        "awake" => "<path d=\"M1 5h1.8L4.2 1.5l1.8 7L7.4 5H9\" class=\"stroke\"/>",
        "ready" => "<circle cx=\"5\" cy=\"5\" r=\"3\"/>",
        "open" | "active" => "<circle cx=\"5\" cy=\"5\" r=\"3.2\" class=\"stroke\"/>",
        "scheduled" => "<path d=\"M5 1a4 4 0 1 0 0 8 4 4 0 0 0 0-8zm0 1.6V5l1.8 1.2\" class=\"stroke\"/>",
        "waiting" | "pending" => "<path d=\"M2.5 1h5L2.5 9h5zM2 1h6M2 9h6\" class=\"stroke\"/>",
        "snoozed" => "<path d=\"M2 2h3.4L2 6h3.4M6 5h2.4L6 8.5h2.4\" class=\"stroke\"/>",
        "retrying" | "given_back" => "<path d=\"M8.5 5a3.5 3.5 0 1 1-1-2.5M8 .8v2H6\" class=\"stroke\"/>",
        "paused" => "<path d=\"M2.5 1.5h2v7h-2zM5.5 1.5h2v7h-2z\"/>",
        "draining" => "<path d=\"M5 1v6M2.5 5 5 7.5 7.5 5M1.5 9h7\" class=\"stroke\"/>",
        "stopped" => "<path d=\"M2 2h6v6H2z\"/>",
        "warning" | "unserved" => "<path d=\"M5 1.2 9.2 8.8H.8zM5 4v2M5 7.4v.2\" class=\"stroke\"/>",
        "failed" | "lost" | "timed_out" => "<path d=\"M2 2l6 6M8 2L2 8\" class=\"stroke\"/>",
        "rescued" | "interrupted" => "<path d=\"M5.8.8 2.5 5.4h2.6L4.2 9.2 7.5 4.6H4.9z\"/>",
        // a bell: the next INSERT rings it
        "sentinel" => "<path d=\"M2 7h6L7.2 5.8V4a2.2 2.2 0 0 0-4.4 0v1.8zM4.4 8.8h1.2\" class=\"stroke\"/>",
        "follower" => "<path d=\"M1.5 5h5M4.5 2.5 7 5 4.5 7.5M9 2v6\" class=\"stroke\"/>",
        "watcher" => "<path d=\"M.8 5Q5 .6 9.2 5 5 9.4.8 5zM5 4v2\" class=\"stroke\"/>",
        "skipped" => "<path d=\"M1.5 2v6l3.5-3zM5.5 2v6L9 5z\" class=\"stroke\"/>",
        "gone" => "<path d=\"M2 5h.1M5 5h.1M8 5h.1\" class=\"stroke\"/>",
        _ => "<path d=\"M2 5h6\" class=\"stroke\"/>",
    }
}

/// A state by color, word and shape.
pub fn badge(state: &str) -> Html {
    badge_as(state, &words(state))
}

/// A state by the color and shape of one name, and another word.
pub fn badge_as(state: &str, word: &str) -> Html {
    Html(format!(
        "<span class=\"state {}\"><svg viewBox=\"0 0 10 10\" aria-hidden=\"true\">{}</svg>{}</span>",
        escape(state),
        shape(state),
        escape(word)
    ))
}

/// The badge of a job.
pub fn state(state: State) -> Html {
    badge(state.as_str())
}

/// JSON, indented and colored, in about as many bytes of HTML at most; and whether some of it is left out. No number is
/// read, so no digit is lost.
pub fn json(raw: &str, most: usize) -> (Html, bool) {
    let mut out = String::new();
    let mut depth = 0_usize;
    let mut chars = raw.char_indices().peekable();
    let newline = |out: &mut String, depth: usize| {
        out.push('\n');
        for _ in 0..depth.min(40) {
            out.push_str("  ");
        }
    };
    let mut is_cut = false;
    while let Some((start, c)) = chars.next() {
        if out.len() > most {
            let _ = write!(out, "\n… {} of {} bytes are shown", start, raw.len());
            is_cut = true;
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
                let mut left = most.saturating_sub(out.len());
                let fits = |c: &char| {
                    // as HTML
                    let bytes = if "&<>\"'".contains(*c) { 5 } else { c.len_utf8() };
                    let fits = left >= bytes;
                    left = left.saturating_sub(bytes);
                    fits
                };
                let shown: String = raw[start..end].chars().take_while(fits).collect();
                if shown.len() < end - start {
                    is_cut = true;
                    let _ = write!(out, "<span class=\"{class}\">{}…</span>", escape(&shown));
                    let _ = write!(out, "\n… {} of {} bytes are shown", start + shown.len(), raw.len());
                    break;
                }
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
    (Html(out), is_cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_be_broken_after_each_of_its_parts() {
        assert_eq!(parted("hourly_until-<b>").0, "hourly_<wbr>until-<wbr>&lt;b&gt;");
        assert_eq!(parted("plain").0, "plain");
    }

    #[test]
    fn json_is_indented_escaped_and_keeps_every_digit() {
        let shown = json(
            "{\"a\": [1, 9007199254740993123], \"<b>\": \"x\\\"</pre>\", \"e\": {}}",
            30_000,
        )
        .0
        .0;

        assert!(
            shown.contains("<span class=\"n\">9007199254740993123</span>"),
            "{shown}"
        );
        assert!(
            shown.contains("<span class=\"p\">&#34;&lt;b&gt;&#34;</span>: "),
            "{shown}"
        );
        assert!(!shown.contains("</pre>") && shown.contains(": {}"), "{shown}");
        for hostile in [
            "\"".to_owned() + &"é<".repeat(1_000_000) + "\"",
            "[1,".repeat(100_000),
            "{\"a\":".repeat(9000),
        ] {
            let (shown, is_cut) = json(&hostile, 20_000);
            assert!(is_cut && shown.0.len() < 21_000, "{}", shown.0.len());
        }
    }

    #[test]
    fn what_fixes_something_is_to_be_copied_only_if_it_is_code() {
        assert!(fix("Start a worker.").0.starts_with("<span"));
        assert!(fix("bugle stats errors says why; then restart").0.starts_with("<span"));
        let code = fix("select 1;  -- as the owner").0;
        assert!(
            code.contains("data-copy>select 1;</code>") && code.contains("as the owner"),
            "{code}"
        );
    }

    #[test]
    fn limits_and_times_of_day_are_in_words() {
        assert_eq!(
            limits("max_running 6, max_starts 90 per 00:01:00, order_on_retry pass"),
            "6 at once, 90 starts per minute, others pass a retry"
        );
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_124_367_500);
        for (form, text) in [
            (Form::Minute, ">21:39<"),
            (Form::Weekday, ">Thu 21:39<"),
            (Form::Day, ">Nov 19<"),
            (Form::Clock, ">21:39:27.500<"),
            (Form::Moment, ">Nov 19, 21:39:27<"),
        ] {
            assert!(at(time, form).0.contains(text), "{}", at(time, form));
        }
    }

    #[test]
    fn times_and_numbers_are_short() {
        assert_eq!(span(Duration::from_millis(412)), "412 ms");
        assert_eq!(span(Duration::from_secs(330)), "6 min");
        assert_eq!(span(Duration::from_secs(102)), "2 min");
        let now = SystemTime::now();
        for soon in [now - Duration::from_millis(900), now + Duration::from_millis(600)] {
            assert!(when(now, soon).0.ends_with(">now</time>"));
        }
        assert!(when(now, now - Duration::from_secs(3)).0.ends_with(">3.0 s ago</time>"));
        assert_eq!(
            (number(1_234_567), number(-1000), number(12)),
            ("1,234,567".into(), "-1,000".into(), "12".into())
        );
        assert_eq!(escape("<a>\u{1b}[31m"), "&lt;a&gt;␛[31m");
    }
}
