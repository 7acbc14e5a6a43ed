//! Retry policies: all of them, and one with the delays it leads to and what uses it.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;

use super::detail::Detail;
use super::table::{Row, Section, Table, button};
use super::{answer, command_link, link, text};
use crate::read::{self, Policy, PolicyKind};
use crate::web::actions::Action;
use crate::web::cron::interval_in_words;
use crate::web::site::{Asked, Frame, Lists, Problem, Shared, allowed, encoded, reading};
use crate::web::text::{Html, number, seconds, words};

/// How many of those that use a policy are named.
const NAMED: usize = 20;
/// How many delays of a policy are shown.
const DELAYS: i32 = 20;

pub async fn list(State(site): State<Shared>, request: Asked) -> Response {
    answer(&site, request, "commands", async |frame, _| {
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let policies = read::policies(&transaction).await?;
        let lead = "How often and when a failed job is retried.";
        let sql = "select * from bugle.retry_policies order by name;";
        let mut table = Table::new(frame, "Retry policies", lead, sql);
        table.columns = vec![
            ("Policy", ""),
            ("Kind", ""),
            ("Retries", ""),
            ("Delay", ""),
            ("Jitter", "num hide-s"),
            ("Used by", "hide-s"),
        ];
        table.empty = "No retry policies: jobs are retried by the one that is built in.";
        for policy in &policies {
            let mut users = users(frame, policy);
            let count = users.len();
            users.truncate(3);
            let mut used_by = users.into_iter().map(|user| user.0).collect::<Vec<_>>().join(", ");
            if count > 3 {
                used_by += &format!(" and {} more", number(count as i64 - 3));
            }
            table.rows.push(Row {
                cells: vec![
                    policy_link(frame, &policy.name),
                    text(words(policy.kind.as_str())),
                    Html(format!("<span class=\"pair\">{}</span>", text(retries(policy)))),
                    text(delay(policy)),
                    text(jitter(policy)),
                    if used_by.is_empty() { text("–") } else { Html(used_by) },
                ],
                buttons: match is_default(policy) {
                    true => Vec::new(),
                    false => vec![button("remove_policy", "Remove", "name", &policy.name)],
                },
                actions: Vec::new(),
            });
        }
        if frame.can_change {
            let path = format!("{}/act/set_policy?back={}", frame.base, encoded(&frame.here));
            table.links = vec![Html(format!("<a class=\"btn main\" href=\"{path}\">Add…</a>"))];
        }
        Ok(table.finished())
    })
    .await
}

pub async fn show(State(site): State<Shared>, Path(name): Path<String>, request: Asked) -> Response {
    answer(&site, request, "commands", async |frame, _| {
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let policies = read::policies(&transaction).await?;
        let unknown = || Problem::new(StatusCode::NOT_FOUND, format!("There is no retry policy {name}."));
        let policy = policies.iter().find(|policy| policy.name == name).ok_or_else(unknown)?;
        let delays = read::policy_delays(&transaction, &name, DELAYS).await?;
        let known = vec![("name", name.clone())];
        let mut actions = vec![change(policy)];
        if !is_default(policy) {
            actions.push(Action::new("remove_policy", "Remove", &known).danger());
        }
        let mut list = users(frame, policy);
        let left_out = list.len().saturating_sub(NAMED);
        list.truncate(NAMED);
        if left_out > 0 {
            list.push(text(format!("and {} more", number(left_out as i64))));
        }
        Ok(Detail {
            title: name.clone(),
            state: Html("<span class=\"dim\">retry policy</span>".to_owned()),
            facts: vec![
                ("Kind", text(words(policy.kind.as_str()))),
                ("Retries", text(retries(policy))),
                ("Delay", text(delay(policy))),
                ("Jitter", text(jitter(policy))),
            ],
            actions: allowed(frame, actions),
            lists: Lists::default(),
            chart: Html::default(),
            chart_title: "",
            list_title: "Used by",
            list,
            sections: vec![delays_of(policy, &delays)],
            sql: format!(
                "select * from bugle.retry_policies where name = '{}';",
                name.replace('\'', "''")
            ),
            frame: frame.clone(),
        })
    })
    .await
}

/// The link to a retry policy.
pub fn policy_link(frame: &Frame, name: &str) -> Html {
    link(frame, &format!("/policies/{}", encoded(name)), name)
}

/// The form that changes a policy, with what is stored. What is left out stays.
fn change(policy: &Policy) -> Action {
    let whole = |number: Option<i32>| number.map(|number| number.to_string());
    let mut change = Action::new("set_policy", "Change", &[("name", policy.name.clone())])
        .stored("kind", Some(policy.kind.as_str()))
        .stored("retries", whole(policy.retries))
        .stored("delay", Some(policy.delay.as_str()))
        .stored("factor", Some(policy.factor.to_string()))
        .stored("max_delay", Some(policy.max_delay.as_str()))
        .stored("jitter", Some(policy.jitter.to_string()))
        .stored("per_day", whole(policy.per_day))
        .stored("days", whole(policy.days));
    for field in &mut change.fields {
        field.default = "";
        field.choices.retain(|choice| !choice.is_empty());
    }
    change
}

/// Whether it applies to what names no policy, so that it cannot be removed.
fn is_default(policy: &Policy) -> bool {
    ["default", "step"].contains(&policy.name.as_str())
}

/// What uses a policy, apart from single jobs.
fn users(frame: &Frame, policy: &Policy) -> Vec<Html> {
    let by_default = match policy.name.as_str() {
        "default" => Some(text("jobs and commands that name none")),
        "step" => Some(text("steps of commands that name none")),
        _ => None,
    };
    let commands = policy
        .commands
        .iter()
        .map(|name| ("command", command_link(frame, name)));
    let schedules = policy.schedules.iter().map(|name| {
        let path = format!("/schedules/{}", encoded(name));
        ("schedule", link(frame, &path, name))
    });
    let named = commands
        .chain(schedules)
        .map(|(kind, link)| Html(format!("{kind} {link}")));
    by_default.into_iter().chain(named).collect()
}

fn counted(count: i32, one: &str, many: &str) -> String {
    format!("{} {}", number(count.into()), if count == 1 { one } else { many })
}

/// How many retries there are, in words.
fn retries(policy: &Policy) -> String {
    match (policy.retries, policy.per_day) {
        (Some(retries), _) => counted(retries, "retry", "retries"),
        (None, Some(per_day)) => {
            let days = counted(policy.days.unwrap_or(2), "day", "days");
            format!("{} a day, on {days}", number(per_day.into()))
        }
        (None, None) => "without end".to_owned(),
    }
}

/// How long the delays are, in words.
fn delay(policy: &Policy) -> String {
    let first = length(&policy.delay);
    let growth = || match policy.factor {
        1.0 => String::new(),
        factor => format!(", then ×{factor} each time, at most {}", length(&policy.max_delay)),
    };
    match policy.kind {
        PolicyKind::Fixed => first,
        PolicyKind::Daily => format!("{first} within a day"),
        PolicyKind::FixedThenExponential => format!("{first} three times{}", growth()),
        PolicyKind::Exponential | PolicyKind::Endless => format!("{first}{}", growth()),
    }
}

fn jitter(policy: &Policy) -> String {
    match policy.jitter {
        0.0 => "none".to_owned(),
        jitter => format!("±{} %", (jitter * 1000.0).round() / 10.0),
    }
}

/// An interval of Postgres in words, if it is a short one. It is not broken between lines.
fn length(interval: &str) -> String {
    match interval_in_words(interval) {
        Some(words) if words.is_empty() => "no delay".to_owned(),
        Some(words) => words.replace(' ', "\u{a0}"),
        None => interval.to_owned(),
    }
}

/// When a job would be retried that fails at once each time.
fn delays_of(policy: &Policy, delays: &[read::Delay]) -> Section {
    let lead = "Of a job that fails at once each time, without jitter.";
    let title = match policy.attempts {
        Some(attempts) if attempts <= DELAYS + 1 => "Retries".to_owned(),
        _ => format!("First {DELAYS} retries"),
    };
    let mut section = Section::new("delays", title, lead);
    section.columns = vec![("Retry", ""), ("After", "num"), ("In all", "num")];
    section.empty = "A job is not retried.";
    section.rows = (delays.iter())
        .map(|delay| {
            vec![
                text(delay.retry.to_string()),
                text(seconds(Some(delay.seconds))),
                text(seconds(Some(delay.total_seconds))),
            ]
        })
        .collect();
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(kind: PolicyKind, retries: Option<i32>, per_day: Option<i32>, days: Option<i32>) -> Policy {
        Policy {
            name: "x".into(),
            kind,
            attempts: retries.map(|retries| retries + 1),
            retries,
            per_day,
            days,
            delay: "00:00:05".into(),
            factor: 2.0,
            max_delay: "01:00:00".into(),
            jitter: 0.1,
            commands: Vec::new(),
            schedules: Vec::new(),
        }
    }

    #[test]
    fn a_policy_is_told_in_words() {
        let told = |policy: &Policy| format!("{}: {}", retries(policy), delay(policy)).replace('\u{a0}', " ");

        let mut fixed = policy(PolicyKind::Fixed, Some(1), None, None);
        assert_eq!(told(&fixed), "1 retry: 5 s");
        (fixed.retries, fixed.delay, fixed.jitter) = (Some(0), "00:00:00".into(), 0.0);
        assert_eq!(told(&fixed), "0 retries: no delay");
        assert_eq!(jitter(&fixed), "none");
        let growing = policy(PolicyKind::Exponential, Some(1500), None, None);
        assert_eq!(told(&growing), "1,500 retries: 5 s, then ×2 each time, at most 1 h");
        assert_eq!(jitter(&growing), "±10 %");
        let endless = policy(PolicyKind::Endless, None, None, None);
        assert!(told(&endless).starts_with("without end: 5 s"));
        let daily = policy(PolicyKind::Daily, None, Some(3), None);
        assert_eq!(told(&daily), "3 a day, on 2 days: 5 s within a day");
        let daily = policy(PolicyKind::Daily, None, Some(3), Some(1));
        assert_eq!(told(&daily), "3 a day, on 1 day: 5 s within a day");
    }
}
