//! Cron expressions in words, where there are simple words for them.

const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// `every day at 02:30`. None if it would take more than a line.
pub fn in_words(cron: &str) -> Option<String> {
    match cron {
        "@hourly" => return in_words("0 * * * *"),
        "@daily" | "@midnight" => return in_words("0 0 * * *"),
        "@weekly" => return in_words("0 0 * * 0"),
        "@monthly" => return in_words("0 0 1 * *"),
        "@yearly" => return in_words("0 0 1 1 *"),
        _ => {}
    }
    let fields: Vec<&str> = cron.split_whitespace().collect();
    let &[minute, hour, day, month, weekday] = fields.as_slice() else {
        return None;
    };
    // a day that matches either is enough, which words would not make clear
    if !day.starts_with('*') && !weekday.starts_with('*') {
        return None;
    }
    let days = match (day, weekday) {
        ("*", "*") => String::new(),
        ("*", weekday) => {
            let names = list(weekday, &DAYS, 0)?;
            match names.contains(" to ") {
                true => names,
                false => format!("every {names}"),
            }
        }
        (day, "*") => format!("on day {}", list(day, &[], 1)?),
        _ => return None,
    };
    let months = match month {
        "*" => String::new(),
        month => format!("in {}", list(month, &MONTHS, 1)?),
    };
    let time = match (step(minute), minute.parse::<u32>(), step(hour), hour) {
        (Some(1), _, _, "*") => "every minute".to_owned(),
        (Some(minutes), _, _, "*") => format!("every {minutes} minutes"),
        (_, Ok(0), Some(1), _) => "every hour".to_owned(),
        (_, Ok(0), Some(hours), _) => format!("every {hours} hours"),
        (_, Ok(minute), Some(1), _) => format!("every hour at minute {minute}"),
        (_, Ok(minute), None, hour) => {
            let hours: Option<Vec<String>> = (hour.split(','))
                .map(|hour| Some(format!("{:02}:{minute:02}", hour.parse::<u32>().ok()?)))
                .collect();
            format!("at {}", hours?.join(", "))
        }
        _ => return None,
    };
    let every_day = days.is_empty() && months.is_empty() && time.starts_with("at ");
    let days = match (days.as_str(), month) {
        _ if every_day => "every day".to_owned(),
        (days, "*") if days.starts_with("on day") => format!("{days} of each month"),
        _ => days,
    };
    let parts = match time.starts_with("every") {
        true => [time, on_these(&days), months],
        false => [days, months, time],
    };
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    Some(parts.join(" "))
}

/// Days after what happens on them: `every Sunday` is `on Sunday`.
fn on_these(days: &str) -> String {
    match days.strip_prefix("every ") {
        Some(names) => format!("on {names}"),
        None if days.is_empty() || days.starts_with("on ") => days.to_owned(),
        None => format!("on {days}"),
    }
}

/// `20 s` for `00:00:20`: intervals of less than a day, as Postgres writes them. None for others.
pub fn interval_in_words(interval: &str) -> Option<String> {
    let parts: Option<Vec<u64>> = interval.split(':').map(|part| part.parse().ok()).collect();
    let &[hours, minutes, seconds] = parts?.as_slice() else {
        return None;
    };
    let units = [(hours, "h"), (minutes, "min"), (seconds, "s")];
    let words: Vec<String> = (units.iter())
        .filter(|(count, _)| *count > 0)
        .map(|(count, unit)| format!("{count} {unit}"))
        .collect();
    Some(words.join(" "))
}

/// The step of `*/5`; 1 for `*`.
fn step(field: &str) -> Option<u32> {
    match field {
        "*" => Some(1),
        field => field.strip_prefix("*/")?.parse().ok(),
    }
}

/// `1,3` or `MON-FRI`, by names if there are any.
fn list(field: &str, names: &[&str], first: usize) -> Option<String> {
    let name = |text: &str| -> Option<String> {
        if names.is_empty() {
            return text.parse::<u32>().ok().map(|number| number.to_string());
        }
        let by_name = names
            .iter()
            .find(|name| text.len() == 3 && name[..3].eq_ignore_ascii_case(text));
        let by_number = || names.get((text.parse::<usize>().ok()?.checked_sub(first)?) % names.len());
        by_name.or_else(by_number).map(|name| (*name).to_owned())
    };
    let parts: Option<Vec<String>> = field
        .split(',')
        .map(|part| match part.split_once('-') {
            Some((from, to)) => Some(format!("{} to {}", name(from)?, name(to)?)),
            None => name(part),
        })
        .collect();
    let parts = parts?;
    match parts.split_last() {
        Some((last, rest)) if !rest.is_empty() => Some(format!("{} and {last}", rest.join(", "))),
        _ => parts.first().cloned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_of_less_than_a_day_have_words() {
        assert_eq!(interval_in_words("00:00:20").as_deref(), Some("20 s"));
        assert_eq!(interval_in_words("02:30:00").as_deref(), Some("2 h 30 min"));
        assert_eq!(interval_in_words("3 days"), None);
    }

    #[test]
    fn usual_expressions_have_words_and_others_have_none() {
        for (cron, words) in [
            ("* * * * *", "every minute"),
            ("*/5 * * * *", "every 5 minutes"),
            ("0 */2 * * *", "every 2 hours"),
            ("15 * * * *", "every hour at minute 15"),
            ("30 2 * * *", "every day at 02:30"),
            ("0 9,17 * * MON-FRI", "Monday to Friday at 09:00, 17:00"),
            ("0 9 * * 2", "every Tuesday at 09:00"),
            ("0 0 * * 7", "every Sunday at 00:00"),
            ("0 6 1 * *", "on day 1 of each month at 06:00"),
            ("0 6 1,15 JAN,JUL *", "on day 1 and 15 in January and July at 06:00"),
            ("*/10 * * * SAT", "every 10 minutes on Saturday"),
            ("*/5 * * * MON-FRI", "every 5 minutes on Monday to Friday"),
            ("@daily", "every day at 00:00"),
        ] {
            assert_eq!(in_words(cron).as_deref(), Some(words), "{cron}");
        }
        for cron in [
            "0 0 13 * FRI",
            "0-30/7 3 * * *",
            "0 0 1 * * *",
            "x",
            "0 0 * * XYZ",
            "0 9-17 * * *",
        ] {
            assert_eq!(in_words(cron), None, "{cron}");
        }
    }
}
