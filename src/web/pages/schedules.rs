//! Schedules: all of them, and one with its next times and last runs.

use std::time::SystemTime;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::detail::Detail;
use super::table::{Row, Section, Table, button, mono};
use super::{answer, between, command_link, job_link, jobs_path, link, queue_link, quoted, text};
use crate::read;
use crate::web::actions::Action;
use crate::web::cron;
use crate::web::site::{Asked, Frame, Lists, Problem, Shared, allowed, encoded, query_of, reading};
use crate::web::text::{Html, badge, escape, seconds, when, words};

pub async fn list(State(site): State<Shared>, request: Asked) -> Response {
    answer(&site, request, "schedules", async |frame, _| {
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let (now, schedules) = (read::now(&transaction).await?, read::schedules(&transaction).await?);
        let lead = "Recurring jobs: cron expressions and intervals.";
        let mut table = Table::new(frame, "Schedules", lead, "select * from bugle.schedules order by name;");
        table.columns = vec![
            ("Schedule", ""),
            ("When", ""),
            ("Command", ""),
            ("Queue", "hide-s"),
            ("Next", "num"),
            ("Last", "num hide-s"),
            ("Last job", "num hide-s"),
        ];
        table.empty = "No schedules yet. Add one with a cron expression (0 9 * * MON-FRI) or an interval.";
        for schedule in &schedules {
            let name = link(
                frame,
                &format!("/schedules/{}", encoded(&schedule.name)),
                &schedule.name,
            );
            let paused = schedule
                .paused_at
                .map(|_| format!(" {}", badge("paused")))
                .unwrap_or_default();
            let error = schedule
                .last_error
                .as_ref()
                .map(|error| format!("<small class=\"warn\">{}</small>", escape(error)));
            let toggle = match schedule.paused_at {
                Some(_) => button("resume_schedule", "Resume", "name", &schedule.name),
                None => button("pause_schedule", "Pause", "name", &schedule.name),
            };
            let next = match (schedule.paused_at, schedule.next_at) {
                (None, Some(at)) => when(now, at),
                _ => text("–"),
            };
            table.rows.push(Row {
                cells: vec![
                    Html(format!("{name}{paused}{}", error.unwrap_or_default())),
                    describe_fully(schedule),
                    command_link(frame, &schedule.command),
                    queue_link(frame, &schedule.queue),
                    next,
                    schedule.last_at.map_or_else(|| text("–"), |at| when(now, at)),
                    schedule.last_job.map_or_else(|| text("–"), |job| job_link(frame, job)),
                ],
                buttons: vec![toggle, button("run_schedule_now", "Run now", "name", &schedule.name)],
                actions: Vec::new(),
            });
        }
        if frame.can_change {
            let path = format!("{}/act/add_schedule?back={}", frame.base, encoded(&frame.here));
            table.links = vec![Html(format!("<a class=\"btn main\" href=\"{path}\">Add…</a>"))];
        }
        Ok(table.finished())
    })
    .await
}

/// The words for a cron expression, for the form of a schedule. Empty if there are none.
pub async fn in_words(request: Asked) -> Response {
    let query = query_of(&request);
    let cron = query.get("cron").unwrap_or_default().trim();
    cron::in_words(cron).unwrap_or_default().into_response()
}

fn describe(schedule: &read::Schedule) -> String {
    match (&schedule.cron, &schedule.every) {
        (Some(cron), _) if schedule.timezone == "UTC" => cron.clone(),
        (Some(cron), _) => format!("{cron} ({})", schedule.timezone),
        (None, every) => {
            let every = every.as_deref().unwrap_or_default();
            format!(
                "every {}",
                cron::interval_in_words(every).unwrap_or_else(|| every.to_owned())
            )
        }
    }
}

/// In words, and as it was written.
fn describe_fully(schedule: &read::Schedule) -> Html {
    let words = schedule.cron.as_deref().and_then(cron::in_words);
    match words {
        Some(words) => Html(format!(
            "{}<small class=\"dim block\"><code>{}</code></small>",
            escape(&words),
            escape(&describe(schedule))
        )),
        None => mono(&describe(schedule)),
    }
}

pub async fn show(State(site): State<Shared>, Path(name): Path<String>, request: Asked) -> Response {
    answer(&site, request, "schedules", async |frame, _| {
        let mut client = site.pool.get_or_explain().await?;
        let transaction = reading(&mut client).await?;
        let (now, schedules) = (read::now(&transaction).await?, read::schedules(&transaction).await?);
        let unknown = || Problem::new(StatusCode::NOT_FOUND, format!("There is no schedule {name}."));
        let schedule = schedules
            .iter()
            .find(|schedule| schedule.name == name)
            .ok_or_else(unknown)?;
        let slots = read::next_times(&transaction, &name, 5).await?;
        let runs = read::schedule_runs(&transaction, &name, 20).await?;
        let known = vec![("name", name.clone())];
        let mut change = Action::new("change_schedule", "Change", &known);
        let columns = read::schedule_columns(&transaction, &name).await?;
        let names: Vec<&'static str> = change.fields.iter().map(|field| field.name).collect();
        for name in names {
            let column = columns.iter().find(|(column, _)| column == name);
            change = change.stored(name, column.map(|(_, value)| value.as_str()));
        }
        let lists = match frame.can_change {
            true => Lists::of(&site, &change).await,
            false => Lists::default(),
        };
        let actions = vec![
            Action::new("run_schedule_now", "Run now", &known).main(),
            match schedule.paused_at {
                Some(_) => Action::new("resume_schedule", "Resume", &known),
                None => Action::new("pause_schedule", "Pause", &known),
            },
            change,
            Action::new("remove_schedule", "Remove", &known).danger(),
        ];
        Ok(Detail {
            title: name.clone(),
            state: badge(if schedule.paused_at.is_some() {
                "paused"
            } else {
                "active"
            }),
            facts: vec![
                ("When", describe_fully(schedule)),
                ("Command", command_link(frame, &schedule.command)),
                ("Queue", queue_link(frame, &schedule.queue)),
                ("Missed slots", text(words(schedule.misfire.as_str()))),
                ("Overlap", text(words(schedule.overlap.as_str()))),
                ("Next", schedule.next_at.map_or_else(|| text("–"), |at| when(now, at))),
                ("Last", schedule.last_at.map_or_else(|| text("–"), |at| when(now, at))),
                (
                    "Last job",
                    schedule.last_job.map_or_else(|| text("–"), |job| job_link(frame, job)),
                ),
                ("Last error", text(schedule.last_error.as_deref().unwrap_or("–"))),
                (
                    "Its jobs",
                    link(frame, &jobs_path(&format!("schedule:{}", quoted(&name))), "show"),
                ),
            ],
            actions: allowed(frame, actions),
            lists,
            chart: Html::default(),
            chart_title: "",
            list_title: "",
            list: Vec::new(),
            sections: vec![next_times(schedule, &slots, now), last_runs(frame, &runs, now)],
            sql: match &schedule.cron {
                Some(cron) => format!(
                    "select slot from bugle.schedule_preview('{}', '{}', 5) slot;",
                    cron.replace('\'', "''"),
                    schedule.timezone.replace('\'', "''")
                ),
                None => String::new(),
            },
            frame: frame.clone(),
        })
    })
    .await
}

fn next_times(schedule: &read::Schedule, slots: &[(SystemTime, String)], now: SystemTime) -> Section {
    let lead = match schedule.paused_at {
        Some(_) => "The schedule is paused: none of these fires until it is resumed.",
        None => "In the schedule's time zone and in yours.",
    };
    let mut section = Section::new("next", "Next five times", lead);
    section.columns = vec![("When", "num"), ("Its time zone", ""), ("Yours", "")];
    section.empty = "The schedule has ended, or never fires.";
    section.rows = slots
        .iter()
        .take(5)
        .map(|(at, clock)| {
            let iso = read::rfc3339(*at);
            let day = iso.get(..19).unwrap_or(&iso).replace('T', " ");
            vec![
                when(now, *at),
                text(format!("{clock} {}", schedule.timezone)),
                Html(format!("<time datetime=\"{iso}\" data-full>{day} UTC</time>")),
            ]
        })
        .collect();
    section
}

fn last_runs(frame: &Frame, runs: &[read::ScheduleRun], now: SystemTime) -> Section {
    let mut section = Section::new("runs", "Last runs", "");
    section.columns = vec![
        ("Slot", ""),
        ("Fired", "num"),
        ("Late by", "num"),
        ("Job", ""),
        ("State", ""),
    ];
    section.empty = "It has not fired yet.";
    section.rows = runs
        .iter()
        .map(|run| {
            let state = match (&run.skipped, run.state) {
                (Some(why), _) => Html(format!("{} {}", badge("skipped"), escape(why))),
                (None, Some(state)) => badge(state.as_str()),
                (None, None) => badge("gone"),
            };
            vec![
                when(now, run.slot),
                when(now, run.enqueued_at),
                text(seconds(between(run.slot, run.enqueued_at))),
                run.job.map_or_else(|| text("–"), |job| job_link(frame, job)),
                state,
            ]
        })
        .collect();
    section
}
