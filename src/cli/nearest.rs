//! The name that was probably meant.

use super::output::one_line;
use crate::admin::read::NotServed;

/// The message that no worker serves a job: which command or queue it is, and the name that was probably meant.
pub fn told(job: &NotServed) -> String {
    let (command, queue) = (&job.command, &job.queue);
    let (what, meant) = match (job.is_served_elsewhere, job.workers) {
        (_, 0) => return "no worker is running\nhint: bugle worker --config bugle.toml starts one".into(),
        (true, _) => (format!("no live worker serves queue {queue:?}"), of(queue, &job.queues)),
        (false, _) => (
            format!("no live worker serves command {command:?} in queue {queue:?}"),
            of(command, &job.commands),
        ),
    };
    let meant = meant
        .map(|name| format!("; did you mean {name:?}?"))
        .unwrap_or_default();
    one_line(&(what + &meant))
}

/// The name that differs least, if it differs little.
pub fn of<'a>(word: &str, names: &'a [String]) -> Option<&'a str> {
    let most = (word.chars().count() / 3).max(1);
    let near = names.iter().map(|name| (distance(word, name), name));
    let (distance, name) = near.min_by_key(|(distance, _)| *distance)?;
    (1..=most).contains(&distance).then_some(name)
}

/// How many letters have to be inserted, removed or replaced, or swapped with the next.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    let mut previous = None;
    for (i, letter) in a.chars().enumerate() {
        let above = &rows[i];
        let mut row = vec![i + 1];
        for (j, other) in b.iter().enumerate() {
            let replaced = above[j] + usize::from(letter != *other);
            let mut least = replaced.min(above[j + 1] + 1).min(row[j] + 1);
            if j > 0 && previous == Some(*other) && b[j - 1] == letter {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
        previous = Some(letter);
    }
    rows.last().and_then(|row| row.last()).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_the_one_that_differs_least_and_little() {
        let names = ["hello", "send_mail", "resize"].map(String::from);

        assert_eq!(of("helo", &names), Some("hello"));
        assert_eq!(of("send_amil", &names), Some("send_mail"));
        assert_eq!(of("send-mail", &names), Some("send_mail"));
        assert_eq!(of("charge", &names), None);
        assert_eq!(of("hello", &names), None, "it is that name itself");
        assert_eq!(of("x", &[]), None);
        assert_eq!(
            [distance("", "ab"), distance("ab", "ba"), distance("aü", "aü")],
            [2, 1, 0]
        );
    }
}
