//! Formatting of times.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};

/// A time in RFC 3339 format, in UTC, with microseconds.
///
/// Does not use `humantime`, which panics before 1970 and after 9999; columns can contain such times.
pub fn rfc3339(time: SystemTime) -> String {
    let micros = match time.duration_since(UNIX_EPOCH) {
        Ok(since) => signed(since.as_micros()),
        Err(before) => -signed(before.duration().as_micros()),
    };
    let (days, micros) = (micros.div_euclid(DAY), micros.rem_euclid(DAY));
    let (year, month, day) = civil(days);
    let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

const DAY: i128 = 24 * 60 * 60 * 1_000_000;

fn signed(micros: u128) -> i128 {
    i128::try_from(micros).unwrap_or(i128::MAX)
}

/// Converts days since 1970 to year, month and day. Years start in March, so that the leap day comes last, in eras of
/// 400 years.
fn civil(days: i128) -> (i128, i128, i128) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, years) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year_of_era + years, month, day)
}

pub(super) fn as_text<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&rfc3339(*time))
}

pub(super) fn as_text_if_any<S: Serializer>(time: &Option<SystemTime>, to: S) -> Result<S::Ok, S::Error> {
    time.map(rfc3339).serialize(to)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_written_right_also_before_1970_and_in_leap_years() {
        let at = |seconds: i64| match u64::try_from(seconds) {
            Ok(seconds) => rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)),
            Err(_) => rfc3339(UNIX_EPOCH - Duration::from_secs(seconds.unsigned_abs())),
        };

        assert_eq!(at(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000000Z");
        assert_eq!(at(1_794_798_184), "2026-11-16T03:03:04.000000Z");
        assert_eq!(at(-1), "1969-12-31T23:59:59.000000Z");
        assert_eq!(at(253_402_300_800), "10000-01-01T00:00:00.000000Z");
    }
}
