//! Roles, history, workers and queues.

use std::time::{Duration, SystemTime};

use serde_json::Value;
use tokio_postgres::{Client, GenericClient, Row};

use super::{Finding, Level, length};
use crate::admin::read;
use crate::admin::read::WorkerLine;
use crate::db::connect::Unnamed;
use crate::error::Result;
use crate::state::WorkerState;

/// This many processes of a host that crashed are worth a look, if the last one did not long ago.
const FLAPPING: u64 = 3;
const LATELY: Duration = Duration::from_secs(600);

pub async fn roles(client: &Client) -> Result<Vec<Finding>> {
    let rows = client
        .ask(
            "select n.name, r.rolname is not null from unnest(array['bugle_enqueuer', 'bugle_worker', \
             'bugle_observer', 'bugle_viewer', 'bugle_operator']) n (name) \
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
        return Ok(Finding::ok("roles", "all five exist"));
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

/// Parts of `bugle.jobs` that were detached or dropped manually.
async fn missing_parts(client: &impl GenericClient) -> Result<Vec<Finding>> {
    let sql = "select part, array_to_string(states, ', '), is_there from bugle.missing_parts() order by part";
    let finding = |row: &tokio_postgres::Row| {
        let (part, states, is_there): (String, String, bool) = (row.get(0), row.get(1), row.get(2));
        let what = if is_there {
            "detached from bugle.jobs"
        } else {
            "dropped"
        };
        let message = format!("the table bugle.{part} was {what} manually: jobs cannot become {states}");
        Finding::new("history", Level::Fail, message).fix(match is_there {
            true => "select bugle.upkeep();  -- repeat until it returns null; a worker does so within a minute",
            false => "restore the table from a backup",
        })
    };
    Ok(client.ask(sql, &[]).await?.iter().map(finding).collect())
}

pub async fn history(client: &impl GenericClient) -> Result<Vec<Finding>> {
    let rows = client
        .ask("select h.kind, h.days::float8 from bugle.history_ahead() h", &[])
        .await?;
    let ahead = rows
        .iter()
        .map(|row| row.get::<_, f64>(1))
        .fold(f64::INFINITY, f64::min);
    let mut missing = missing_parts(client).await?;
    missing.extend(missing_leaves(client).await?);
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
        let sql = "select count(*) from (select from bugle.jobs_live j where j.state <> 'paused' limit 10000) j";
        let (level, message) = match client.ask_one(sql, &[]).await?.get::<_, i64>(0) {
            0 => (Level::Warn, "no worker is alive: there is no maintenance".to_owned()),
            jobs => (
                Level::Fail,
                format!(
                    "no worker is alive, and {} wait: no jobs run",
                    some(jobs, "job", 10_000)
                ),
            ),
        };
        return Ok(vec![
            Finding::new("workers", level, message).fix("bugle worker --config …"),
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
    for worker in &alive {
        if let Some(short_of) = &worker.short_of {
            let message = format!("worker {} ({}) starts fewer jobs: {short_of}", worker.id, worker.name);
            found.push(Finding::new("workers", Level::Warn, message));
        }
        if let Some(first) = worker.overdue.first() {
            let message = format!(
                "worker {} ({}): the executors of {} do not stop at their time limit; the first is that of job {first}",
                worker.id,
                worker.name,
                some(worker.overdue.len() as i64, "job", 1_000),
            );
            let finding = Finding::new("workers", Level::Warn, message);
            found.push(finding.fix(format!(
                "bugle jobs explain {first}  -- an executor that blocks its thread: restart the worker"
            )));
        }
        for host in worker.hosts.as_array().into_iter().flatten() {
            if let (Some(name), Some(error), Some(0)) =
                (host["name"].as_str(), host["error"].as_str(), host["ready"].as_u64())
            {
                let message = format!(
                    "no process of host {name} of worker {} ({}) runs; the last one {}",
                    worker.id,
                    worker.name,
                    error.replace('\n', " | ")
                );
                let finding = Finding::new("workers", Level::Warn, message);
                found.push(finding.fix("bugle host check -- PROGRAM …  -- as in the worker's file, to see it start"));
            }
        }
    }
    for worker in &alive {
        found.extend(
            worker
                .hosts
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|host| idle_host(worker, host)),
        );
        found.extend(
            worker
                .hosts
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|host| flapping_host(worker, host, now)),
        );
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

/// A host that could run more jobs than its worker holds.
fn idle_host(worker: &WorkerLine, host: &Value) -> Option<Finding> {
    let slots: i64 = worker.slots.iter().map(|slots| i64::from(*slots)).sum();
    let (name, jobs, most) = (
        host["name"].as_str()?,
        host["concurrency"].as_i64()?,
        host["most"].as_i64(),
    );
    if slots >= jobs.max(most.unwrap_or(1)) {
        return None;
    }
    let in_one_call = most.map(|most| format!(", and {most} in one call")).unwrap_or_default();
    let message = format!(
        "host {name} of worker {} ({}) can run {jobs} jobs at once{in_one_call}, but the worker has {slots} slots",
        worker.id, worker.name
    );
    let finding = Finding::new("workers", Level::Warn, message);
    Some(finding.fix("[queues] in the worker's file, such as  default = 64"))
}

/// A host whose processes end repeatedly, although others take their place.
fn flapping_host(worker: &WorkerLine, host: &Value, now: SystemTime) -> Option<Finding> {
    let (name, crashes) = (host["name"].as_str()?, host["crashes"].as_u64()?);
    let last = humantime::parse_rfc3339(host["crashed_at"].as_str()?).ok()?;
    let since = now.duration_since(last).unwrap_or_default();
    if crashes < FLAPPING || since > LATELY {
        return None;
    }
    let message = format!(
        "{crashes} processes of host {name} of worker {} ({}) have crashed, the last one {} s ago",
        worker.id,
        worker.name,
        since.as_secs()
    );
    let finding = Finding::new("workers", Level::Warn, message);
    Some(finding.fix("Search the worker's log for event=host_end: it has their last words."))
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
        let (level, problem, fix) = match paused.as_deref() {
            None | Some([]) => (
                Level::Fail,
                format!("no live worker serves {what}"),
                "Start a worker with that command and queue.".into(),
            ),
            Some([worker]) => (
                Level::Warn,
                format!("the only live worker that serves {what} is paused"),
                format!("select bugle.resume_worker({worker});"),
            ),
            Some([worker, ..]) => (
                Level::Warn,
                format!("all live workers that serve {what} are paused"),
                format!("select bugle.resume_worker({worker});"),
            ),
        };
        let message = format!("{problem}; the oldest job has waited for {}", length(row.get(2)));
        found.push(Finding::new("queues", level, message).fix(fix));
    }
    if found.is_empty() {
        return Ok(Finding::ok("queues", "every ready job has a worker that serves it"));
    }
    Ok(found)
}

/// How many attempts of a command must have failed, with none that completed, to say that it always fails.
const ALWAYS: i64 = 10;

/// Commands that only failed in the last hour, or nearly so in the last ten minutes: one that began to fail has many
/// attempts of the hour that completed.
pub async fn commands(client: &Client) -> Result<Vec<Finding>> {
    let rows = client
        .ask(
            "select s.command, s.failed, s.completed, s.is_recent, \
               (select g.fingerprint from bugle.error_groups g where g.command = s.command \
                order by g.attempts desc limit 1) \
             from ( \
               select distinct on (m.command) m.command, sum(m.failed)::bigint as failed, \
                 sum(m.completed)::bigint as completed, r.is_recent \
               from bugle.minutes m \
                 join (values (true, interval '10 minutes', 0.05), (false, interval '1 hour', 0)) \
                   r (is_recent, period, share) on m.minute > now() - r.period \
               where m.minute > now() - interval '1 hour' \
               group by m.command, r.is_recent, r.share \
               having sum(m.failed) >= $1 and sum(m.completed) <= r.share * sum(m.completed + m.failed) \
               order by m.command, r.is_recent desc) s \
             order by s.failed desc limit 20",
            &[&ALWAYS],
        )
        .await?;
    if rows.is_empty() {
        return Ok(Finding::ok(
            "commands",
            "none has failed in every attempt of the last hour, or in 95 of 100 of the last 10 minutes",
        ));
    }
    let finding = |row: &Row| {
        let (command, failed, completed): (String, i64, i64) = (row.get(0), row.get(1), row.get(2));
        let period = if row.get(3) { "10 minutes" } else { "hour" };
        let error = row.get::<_, Option<String>>(4);
        let error = error.map(|error| format!("; mostly: {error}")).unwrap_or_default();
        let message = match completed {
            0 => format!("command {command:?} always fails: all {failed} attempts of the last {period}{error}"),
            _ => {
                let all = failed + completed;
                let share = format!("{failed} of {all} attempts of the last {period}");
                format!("command {command:?} nearly always fails: {share}{error}")
            }
        };
        let about = format!("command:{} state:retrying,failed", read::quoted(&command));
        Finding::new("commands", Level::Fail, message).about(about).fix(
            "bugle stats errors; if a service is down, bugle queues pause QUEUE saves the attempts until it is back",
        )
    };
    Ok(rows.iter().map(finding).collect())
}

/// Jobs that failed for good: more in the last hour than in the hour before?
pub async fn dead_letters(client: &impl GenericClient) -> Result<Vec<Finding>> {
    let most = 100_000;
    let row = client
        .ask_one(
            "select count(*) filter (where f.is_new), count(*) filter (where not f.is_new), \
               mode() within group (order by f.command) filter (where f.is_new), \
               mode() within group (order by f.reason) filter (where f.is_new) \
             from ( \
               select j.finished_at > now() - interval '1 hour' as is_new, j.command, j.reason \
               from bugle.jobs j \
               where j.state = 'failed' and j.finished_at > now() - interval '2 hours' \
                 and j.day >= (now() at time zone 'utc')::date - 1 \
               limit $1::bigint) f",
            &[&most],
        )
        .await?;
    let (new, before): (i64, i64) = (row.get(0), row.get(1));
    if new == 0 {
        return Ok(Finding::ok("dead letters", "no job failed for good in the last hour"));
    }
    let jobs = some(new, "job", most);
    if new <= before {
        return Ok(Finding::ok(
            "dead letters",
            format!("{jobs} failed for good in the last hour, not more than the {before} of the hour before"),
        ));
    }
    let (command, reason): (Option<String>, Option<String>) = (row.get(2), row.get(3));
    let terms = [("command", &command), ("reason", &reason)]
        .map(|(name, value)| value.as_ref().map(|value| format!(" {name}:{}", read::quoted(value))));
    let about = format!(
        "state:failed ended:<1h{}",
        terms.into_iter().flatten().collect::<String>()
    );
    let message = format!(
        "{jobs} failed for good in the last hour, {before} in the hour before; mostly command {:?}, {}",
        command.unwrap_or_default(),
        reason.unwrap_or_default().replace('_', " ")
    );
    let fix =
        "bugle stats errors says why; when the cause is fixed: bugle jobs restart --state failed --ended-since 1h";
    Ok(vec![
        Finding::new("dead letters", Level::Warn, message).about(about).fix(fix),
    ])
}

/// "3 jobs", or "at least 10000 jobs" if no more were counted.
fn some(count: i64, what: &str, most: i64) -> String {
    let least = if count >= most { "at least " } else { "" };
    let ending = if count == 1 { "" } else { "s" };
    format!("{least}{count} {what}{ending}")
}
