//! The `Retry-After` header: seconds or a date.

use std::time::{Duration, SystemTime};

/// The longest delay that is respected; longer ones are shortened to it.
const MOST: Duration = Duration::from_secs(24 * 60 * 60);

/// The delay, or `None` if the header is invalid.
pub fn parse(header: &str, now: SystemTime) -> Option<Duration> {
    let header = header.trim();
    let wait = match header.bytes().all(|byte| byte.is_ascii_digit()) {
        true if header.is_empty() => return None,
        true => header.parse().map_or(MOST, Duration::from_secs),
        false => httpdate::parse_http_date(header)
            .ok()?
            .duration_since(now)
            .unwrap_or_default(),
    };
    Some(wait.min(MOST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_dates_are_understood_and_nothing_is_longer_than_a_day() {
        let now = humantime::parse_rfc3339("1994-11-06T08:49:00Z").unwrap();
        let table = [
            ("120", Some(120)),
            (" 0 ", Some(0)),
            ("99999999", Some(86_400)),
            ("99999999999999999999999999", Some(86_400)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(37)),
            ("Sun, 06 Nov 1994 08:48:37 GMT", Some(0)),
            ("Sat, 06 Nov 2094 08:48:37 GMT", Some(86_400)),
            ("Sun, 06 Nov 1994 08:49:37 CET", None),
            ("Sun, 99 Nov 1994 08:49:37 GMT", None),
            // the two obsolete formats, which some servers still send
            ("Sunday, 06-Nov-94 08:49:37 GMT", Some(37)),
            ("Sun Nov  6 08:49:37 1994", Some(37)),
            ("soon", None),
            ("-5", None),
            ("", None),
        ];

        for (header, seconds) in table {
            assert_eq!(parse(header, now), seconds.map(Duration::from_secs), "{header}");
        }
    }
}
