//! Which values a host can be expected to read: parsers of many languages recurse, or bound the length of numbers, and
//! one payload must not end a process that runs other jobs.

use serde_json::value::RawValue;

use crate::execute::context::Context;

/// The most levels of lists and objects in a value.
pub const MOST_LEVELS: usize = 500;
/// The most characters of a number.
pub const MOST_DIGITS: usize = 1_000;

/// Why the job cannot be given to a host, if it cannot.
pub fn unreadable_job(context: &Context) -> Option<String> {
    let job = context.job();
    let fields = [
        ("payload", Some(&*job.payload)),
        ("context", context.inner.outputs.as_deref()),
        ("answer", job.answer.as_deref()),
    ];
    fields
        .into_iter()
        .find_map(|(name, value)| Some(format!("{name} {}", unreadable(value?)?)))
}

/// Why a host might not be able to read this value.
pub fn unreadable(value: &RawValue) -> Option<String> {
    let text = value.get().as_bytes();
    if text.len() <= MOST_LEVELS.min(MOST_DIGITS) {
        return None;
    }
    let (mut levels, mut digits, mut at) = (0_usize, 0_usize, 0);
    while let Some(byte) = text.get(at) {
        at += 1;
        match byte {
            b'"' => at = end_of_string(text, at),
            b'[' | b'{' => levels += 1,
            b']' | b'}' => levels = levels.saturating_sub(1),
            _ => {}
        }
        digits = match byte {
            b'0'..=b'9' | b'.' | b'-' | b'+' | b'e' | b'E' => digits + 1,
            _ => 0,
        };
        if levels > MOST_LEVELS {
            return Some(format!(
                "is nested deeper than {MOST_LEVELS} levels, the most that a host is given"
            ));
        }
        if digits > MOST_DIGITS {
            let why = format!("has a number of more than {MOST_DIGITS} characters, the most that a host is given");
            return Some(why);
        }
    }
    None
}

/// Behind the quote that ends the string which begins here.
fn end_of_string(text: &[u8], begin: usize) -> usize {
    let mut at = begin;
    while let Some(byte) = text.get(at) {
        at += match byte {
            b'"' => return at + 1,
            b'\\' => 2,
            _ => 1,
        };
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(json: &str) -> Option<String> {
        unreadable(&RawValue::from_string(json.to_owned()).expect("JSON"))
    }

    #[test]
    fn a_value_is_given_to_a_host_up_to_these_levels_and_digits() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        let number = |digits: usize| format!(r#"{{"a": [1, {}]}}"#, "9".repeat(digits));

        assert_eq!(why(&nested(500)), None);
        assert!(why(&nested(501)).is_some_and(|why| why.contains("500 levels")));
        assert_eq!(why(&number(1_000)), None);
        assert!(why(&number(1_001)).is_some_and(|why| why.contains("1000 characters")));
    }

    #[test]
    fn brackets_and_digits_in_a_string_are_text() {
        let text = format!(r#""{}\"{}""#, "[".repeat(2_000), "9".repeat(2_000));

        assert_eq!(why(&text), None);
        assert_eq!(why(&format!("[{}]", vec!["[]"; 2_000].join(","))), None);
    }
}
