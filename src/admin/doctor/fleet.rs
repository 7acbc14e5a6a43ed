//! Roles, history, workers and queues.

use std::time::{Duration, SystemTime};

use tokio_postgres::{Client, GenericClient, Row};

use super::{Finding, Level, length};
use crate::admin::read;
use crate::db::connect::Unnamed;
use crate::error::Result;
use crate::state::WorkerState;

pub async fn roles(client: &Client) -> Result<Vec<Finding>> {
    let rows = client
        .ask(
            "select n.name, r.rolname is not null from unnest(array['bugle_enqueuer', 'bugle_worker', 'bugle_viewer', \
             'bugle_operator']) n (name) \
             left join pg_roles r on r.rolname = n.name",
            &[],
        )
        .await?;
    let missing: Vec<String> = rows
        .iter()
        .filter(|row| !row.get::<_, bool>(1))
        .map(|row| row.get(0))
        .collect();
    if missing.is_empty() {
        return Ok(Finding::ok("roles", "all four exist"));
    }
    let create: Vec<String> = missing
        .iter()
        .map(|role| format!("create role {role} nologin;"))
        .collect();
    Ok(vec![
        Finding::new("roles", Level::Warn, format!("missing: {}", missing.join(", ")))
            .fix(format!("{}  -- then: bugle migrate", create.join(" "))),
    ])
}

/// History days whose table was detached or dropped manually.
async fn missing_leaves(client: &impl GenericClient) -> Result<Vec<Finding>> {
    let sql = "select day::text, leaf::text, is_there, day >= (now() at time zone 'utc')::date \
        from bugle.missing_leaves() order by day desc, kind";
    let finding = |row: &tokio_postgres::Row| {
        let (day, leaf): (String, String) = (row.get(0), row.get(1));
        let what = if row.get(2) { "detached" } else { "dropped" };
        let message = format!("the table bugle.{leaf} was {what} manually: jobs that finish on {day} cannot be stored");
        match row.get(3) {
            true => Finding::new("history", Level::Fail, message),
            false => Finding::new(
                "history",
                Level::Warn,
                format!("the table bugle.{leaf} was {what} manually"),
            ),
        }
        .fix("select bugle.upkeep();  -- repeat until it returns null; a worker does so within a minute")
    };
    Ok(client.ask(sql, &[]).await?.iter().map(finding).collect())
}

pub async fn history(client: &impl GenericClient) -> Result<Vec<Finding>> {
    let rows = client
        .ask(
            "select g.label, g.value from bugle.gauges() g where g.name = 'history_days_ahead'",
            &[],
        )
        .await?;
    let ahead = rows
        .iter()
        .map(|row| row.get::<_, f64>(1))
        .fold(f64::INFINITY, f64::min);
    let missing = missing_leaves(client).await?;
    if !missing.is_empty() {
        return Ok(missing);
    }
    Ok(match ahead {
        1.0.. if ahead.is_finite() => Finding::ok("history", format!("history partitions exist {ahead} days ahead")),
        _ => vec![
            Finding::new(
                "history",
                Level::Fail,
                "no history partitions exist for the coming days: maintenance is not running",
            )
            .fix("select bugle.upkeep();  -- repeat until it returns null; then find out why no worker is the keeper"),
        ],
    })
}

/// Any login can take advisory locks. They only slow down pickup, so this is a warning.
pub async fn foreign_locks(client: &Client) -> Result<Vec<Finding>> {
    let rows = client
        .ask(
            "select s.pid, s.login::text, s.program, extract(epoch from clock_timestamp() - min(s.since))::float8, \
               string_agg(distinct s.lock || coalesce(' of queue ' || quote_ident(s.queue), ''), ', ') \
             from bugle.foreign_locks() s group by 1, 2, 3 order by 1 limit 20",
            &[],
        )
        .await?;
    if rows.is_empty() {
        return Ok(Finding::ok("locks", "no other session holds advisory locks of workers"));
    }
    let finding = |row: &Row| {
        let pid: i32 = row.get(0);
        let message = format!(
            "process {pid} (user {}, program {:?}) is not a worker, but has held advisory locks of Bugle for {}: {}. \
             Jobs are picked up more slowly while it does",
            row.get::<_, &str>(1),
            row.get::<_, &str>(2),
            length(row.get::<_, f64>(3).max(0.0)),
            row.get::<_, &str>(4),
        );
        Finding::new("locks", Level::Warn, message).fix(format!("select pg_terminate_backend({pid});"))
    };
    Ok(rows.iter().map(finding).collect())
}

pub async fn workers(client: &Client) -> Result<Vec<Finding>> {
    let workers = read::workers(client, false).await?;
    let now = read::now(client).await?;
    let silence = |seen: SystemTime| now.duration_since(seen).unwrap_or_default();
    let alive: Vec<_> = workers
        .iter()
        .filter(|worker| worker.state != WorkerState::Lost)
        .collect();
    if alive.is_empty() {
        return Ok(vec![
            Finding::new(
                "workers",
                Level::Warn,
                "no worker is alive: no jobs run and there is no maintenance",
            )
            .fix("bugle worker --config …"),
        ]);
    }
    let mut found = Vec::new();
    for worker in workers.iter().filter(|worker| worker.state == WorkerState::Lost) {
        let message = format!(
            "worker {} ({}) was lost; its jobs are given to other workers",
            worker.id, worker.name
        );
        found.push(Finding::new("workers", Level::Warn, message));
    }
    for worker in alive
        .iter()
        .filter(|worker| silence(worker.seen_at) > Duration::from_secs(20))
    {
        let message = format!(
            "worker {} ({}) sent its last heartbeat {} s ago",
            worker.id,
            worker.name,
            silence(worker.seen_at).as_secs()
        );
        found.push(Finding::new("workers", Level::Warn, message));
    }
    if !alive
        .iter()
        .any(|worker| worker.is_keeper && silence(worker.seen_at) < Duration::from_secs(15))
    {
        let message = "no worker is running maintenance: no jobs are promoted, rescued or scheduled";
        found.push(
            Finding::new("workers", Level::Fail, message)
                .fix("A worker takes over within seconds. If not, search the workers' logs for event=heartbeat."),
        );
    }
    if found.is_empty() {
        return Ok(Finding::ok(
            "workers",
            format!("{} alive, one of them is the keeper", alive.len()),
        ));
    }
    Ok(found)
}

pub async fn queues(client: &Client) -> Result<Vec<Finding>> {
    let mut found = Vec::new();
    let paused = client
        .ask(
            "select q.name, extract(epoch from now() - q.paused_at)::float8 from bugle.queues q \
             where q.paused_at is not null",
            &[],
        )
        .await?;
    for row in &paused {
        let name: String = row.get(0);
        let message = format!("queue {name:?} has been paused for {}", length(row.get(1)));
        found.push(
            Finding::new("queues", Level::Warn, message)
                .fix(format!("select bugle.resume_queue('{}');", name.replace('\'', "''"))),
        );
    }
    let unserved = client
        .ask(
            "select u.queue, u.command, extract(epoch from now() - u.since)::float8, u.paused_workers \
             from bugle.unserved u limit 20",
            &[],
        )
        .await?;
    for row in &unserved {
        let (queue, command): (String, String) = (row.get(0), row.get(1));
        let paused: Option<Vec<i64>> = row.get(3);
        let what = format!("command {command:?} in queue {queue:?}");
        let (problem, fix) = match paused.as_deref() {
            None | Some([]) => (
                format!("no live worker serves {what}"),
                "Start a worker with that command and queue.".into(),
            ),
            Some([worker]) => (
                format!("the only live worker that serves {what} is paused"),
                format!("select bugle.resume_worker({worker});"),
            ),
            Some([worker, ..]) => (
                format!("all live workers that serve {what} are paused"),
                format!("select bugle.resume_worker({worker});"),
            ),
        };
        let message = format!("{problem}; the oldest job has waited for {}", length(row.get(2)));
        found.push(Finding::new("queues", Level::Warn, message).fix(fix));
    }
    if found.is_empty() {
        return Ok(Finding::ok("queues", "every ready job has a worker that serves it"));
    }
    Ok(found)
}
