//! The database: what doctor finds, snapshots, history, sizes.

use std::collections::BTreeMap;

use axum::Form;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;

use super::overview::ways_out;
use super::table::{Row, Section, Table, mono};
use super::{answer, text};
use crate::operate;
use crate::read::{self, Level};
use crate::web::site::{Asked, Fields, Problem, Shared, asked, reading, redirect};
use crate::web::text::{Html, badge, escape, fix, number, seconds};

pub async fn show(State(site): State<Shared>, request: Asked) -> Response {
    answer(&site, request, "database", async |frame, _| {
        let findings = site.findings().await?;
        let lead = "What bugle doctor checks, with the statement that fixes it.";
        let mut table = Table::new(frame, "Database", lead, "bugle doctor");
        table.columns = vec![("Check", ""), ("State", ""), ("Finding, and what fixes it", "grow")];
        let mut findings: Vec<_> = findings.iter().collect();
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
        for finding in findings {
            let level = match finding.level {
                Level::Ok => "ok",
                Level::Skipped => "skipped",
                Level::Warn => "warning",
                _ => "failed",
            };
            let state = match finding.level {
                // those that are in order stay in the background
                Level::Ok | Level::Skipped => Html(format!("<span class=\"quiet\">{}</span>", badge(level))),
                _ => badge(level),
            };
            let fix = finding
                .fix
                .as_deref()
                .map(|text| format!("<div class=\"fixed\">{}</div>", fix(text)))
                .unwrap_or_default();
            let (links, actions) = match finding.level {
                Level::Ok | Level::Skipped => (Vec::new(), Vec::new()),
                _ => ways_out(frame, finding),
            };
            let links: String = links.iter().map(|link| format!(" {link}")).collect();
            table.rows.push(Row {
                cells: vec![
                    text(finding.check),
                    state,
                    Html(format!(
                        "<span class=\"wrap\">{}</span>{links}{fix}",
                        escape(&finding.message)
                    )),
                ],
                actions,
                ..Row::default()
            });
        }
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let sizes = read::sizes(&transaction).await?;
        table.sections = vec![
            snapshots(&read::snapshots(&transaction, 8).await?),
            history(&sizes),
            largest(sizes),
        ];
        Ok(table.finished())
    })
    .await
}

/// End the session that a form names.
pub async fn end_session(State(site): State<Shared>, headers: HeaderMap, Form(form): Form<Fields>) -> Response {
    let done = async {
        site.check(&form).await?;
        let pid = form.get("pid").and_then(|pid| pid.parse().ok());
        let pid: i32 = pid.ok_or_else(|| Problem::new(StatusCode::BAD_REQUEST, "There is no such session."))?;
        let client = site.pool.get_or_explain().await?;
        Ok(match operate::end_session(&*client, pid).await? {
            true => format!("End session {pid}: done"),
            false => format!("End session {pid}: there was none"),
        })
    };
    finish(&site, headers, &form, done.await).await
}

/// How often upkeep is called at most for one click.
const MOST_UPKEEP: usize = 50;

/// Do what is left of the maintenance of history. Each step is a transaction.
pub async fn run_upkeep(State(site): State<Shared>, headers: HeaderMap, Form(form): Form<Fields>) -> Response {
    let done = async {
        site.check(&form).await?;
        let client = site.pool.get_or_explain().await?;
        let mut steps = 0;
        while steps < MOST_UPKEEP && operate::upkeep(&*client).await?.is_some() {
            steps += 1;
        }
        Ok(format!("Run upkeep: {steps} steps done"))
    };
    finish(&site, headers, &form, done.await).await
}

async fn finish(site: &Shared, headers: HeaderMap, form: &Fields, done: Result<String, Problem>) -> Response {
    site.live.forget();
    match done {
        Ok(notice) => redirect(form.get("back").map_or("/database", String::as_str), &notice),
        Err(problem) => problem.page(site.frame(&asked(headers), "database").await),
    }
}

/// Which session pins the oldest snapshot, and what that costs.
fn snapshots(snapshots: &[read::Snapshot]) -> Section {
    let lead = "VACUUM cannot remove rows that the oldest snapshot may still need.";
    let mut section = Section::new("snapshots", "Oldest snapshots", lead);
    section.columns = vec![
        ("Session", ""),
        ("Program", ""),
        ("From", "hide-s"),
        ("State", "hide-s"),
        ("Open for", "num"),
        ("Behind", "num"),
        ("End it", ""),
    ];
    section.empty = "No other session holds a snapshot, so VACUUM can remove every dead row.";
    section.rows = snapshots
        .iter()
        .map(|session| {
            vec![
                Html(format!("{} {}", mono(&session.pid.to_string()), escape(&session.login))),
                text(&session.application),
                text(&session.client),
                text(&session.state),
                text(seconds(session.open_seconds)),
                text(format!("{} transactions", number(session.behind))),
                Html(format!(
                    "<code data-copy>select pg_terminate_backend({});</code>",
                    session.pid
                )),
            ]
        })
        .collect();
    section
}

/// History by day.
fn history(sizes: &[read::Size]) -> Section {
    let mut section = Section::new(
        "history",
        "History by day",
        "History is dropped by the day; bugle.settings sets after how many days.",
    );
    section.columns = vec![
        ("Day (UTC)", ""),
        ("Completed and cancelled", "num"),
        ("Size", "num"),
        ("Failed", "num"),
        ("Size", "num"),
    ];
    section.empty = "There are no history partitions. A worker creates them: start one.";
    let mut days: BTreeMap<&str, [Option<&read::Size>; 2]> = BTreeMap::new();
    for size in sizes {
        if let Some((kind, day)) = &size.day {
            days.entry(day).or_default()[usize::from(kind == "failed")] = Some(size);
        }
    }
    let rows = |size: Option<&read::Size>| {
        size.and_then(|size| size.rows)
            .map_or_else(|| text("–"), |rows| text(format!("≈ {}", number(rows))))
    };
    let bytes = |size: Option<&read::Size>| text(size.map_or_else(|| "–".to_owned(), |size| bytes(size.bytes)));
    section.rows = (days.iter().rev())
        .take(60)
        .map(|(day, [ended, failed])| vec![text(day), rows(*ended), bytes(*ended), rows(*failed), bytes(*failed)])
        .collect();
    section
}

/// The other tables.
fn largest(mut sizes: Vec<read::Size>) -> Section {
    sizes.retain(|size| size.day.is_none());
    sizes.sort_by_key(|size| std::cmp::Reverse(size.bytes));
    let mut section = Section::new("sizes", "Tables", "With their indexes.");
    section.columns = vec![("Table", ""), ("Rows", "num"), ("Size", "num")];
    section.rows = (sizes.iter().take(10))
        .map(|size| {
            vec![
                mono(&format!("bugle.{}", size.name)),
                size.rows
                    .map_or_else(|| text("–"), |rows| text(format!("≈ {}", number(rows)))),
                text(bytes(size.bytes)),
            ]
        })
        .collect();
    section
}

fn bytes(bytes: i64) -> String {
    match bytes {
        b if b < 1 << 20 => format!("{} kB", b >> 10),
        b if b < 10 << 20 => format!("{:.1} MB", b as f64 / f64::from(1 << 20)),
        b if b < 1 << 30 => format!("{} MB", b >> 20),
        b => format!("{:.1} GB", b as f64 / f64::from(1 << 30)),
    }
}
