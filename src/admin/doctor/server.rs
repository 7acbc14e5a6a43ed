//! Checks of the server: VACUUM, old transactions, notifications, connections, clock.

use tokio_postgres::{Client, Row};

use super::{Finding, Level, length};
use crate::db::connect::Unnamed;
use crate::error::Result;

/// Transactions that have been open for longer hold back VACUUM.
const LONG_TRANSACTION: &str = "5 minutes";
/// With more dead rows than this, VACUUM is not keeping up.
const MANY_DEAD_ROWS: f64 = 200_000.0;

pub async fn autovacuum(client: &Client) -> Result<Vec<Finding>> {
    let row = client
        .ask_one(
            "select current_setting('autovacuum') = 'on' and current_setting('track_counts') = 'on', \
             coalesce('autovacuum_enabled=false' = any (c.reloptions), false), \
             s.n_dead_tup::float8, extract(epoch from now() - s.last_autovacuum)::float8 \
             from (select to_regclass('bugle.jobs_live') as oid) t \
               left join pg_class c on c.oid = t.oid \
               left join pg_stat_all_tables s on s.relid = t.oid",
            &[],
        )
        .await?;
    let mut found = Vec::new();
    if !row.get::<_, bool>(0) {
        found.push(
            Finding::new(
                "autovacuum",
                Level::Fail,
                "autovacuum or track_counts is off: the jobs table will keep growing",
            )
            .fix("alter system set autovacuum = on; alter system set track_counts = on; select pg_reload_conf();"),
        );
    }
    if row.get::<_, bool>(1) {
        found.push(
            Finding::new("autovacuum", Level::Fail, "autovacuum is off for bugle.jobs_live")
                .fix("alter table bugle.jobs_live reset (autovacuum_enabled);"),
        );
    }
    let dead = row.get::<_, Option<f64>>(2).unwrap_or_default();
    if dead > MANY_DEAD_ROWS {
        let message = format!("{dead:.0} dead rows in bugle.jobs_live: autovacuum is not keeping up or is held back");
        found.push(Finding::new("autovacuum", Level::Warn, message).fix("vacuum (analyze) bugle.jobs_live;"));
    }
    if found.is_empty() {
        return Ok(Finding::ok(
            "autovacuum",
            format!("on; {dead:.0} dead rows in bugle.jobs_live"),
        ));
    }
    Ok(found)
}

/// An old snapshot prevents VACUUM from removing the dead rows that every job leaves behind.
pub async fn transactions(client: &Client) -> Result<Vec<Finding>> {
    let sessions = client
        .ask(
            "select a.pid, coalesce(a.usename::text, '?'), coalesce(nullif(a.application_name, ''), '?'), \
               coalesce(a.client_addr::text, 'local'), coalesce(a.state, '?'), \
               extract(epoch from now() - a.xact_start)::float8 \
             from pg_stat_activity a \
             where a.xact_start < now() - $1::text::interval \
               and (a.backend_xmin is not null or a.backend_xid is not null) \
               and a.pid <> pg_backend_pid() \
               and a.backend_type = 'client backend' \
             order by a.xact_start \
             limit 10",
            &[&LONG_TRANSACTION],
        )
        .await?;
    let mut found: Vec<Finding> = sessions.iter().map(long_transaction).collect();
    let prepared = client
        .ask(
            "select p.gid, extract(epoch from now() - p.prepared)::float8 from pg_prepared_xacts p \
             where p.prepared < now() - $1::text::interval order by p.prepared limit 10",
            &[&LONG_TRANSACTION],
        )
        .await?;
    for row in &prepared {
        let gid: String = row.get(0);
        let message = format!("prepared transaction {gid:?} has been open for {}", length(row.get(1)));
        found.push(
            Finding::new("transactions", Level::Warn, message)
                .fix(format!("rollback prepared '{}';", gid.replace('\'', "''"))),
        );
    }
    let slots = client
        .ask(
            "select s.slot_name::text, s.active, greatest(age(s.xmin), age(s.catalog_xmin)) from pg_replication_slots \
             s \
             where greatest(age(s.xmin), age(s.catalog_xmin)) > 1000000 and not s.active",
            &[],
        )
        .await?;
    for row in &slots {
        let name: String = row.get(0);
        let message = format!(
            "replication slot {name:?} is inactive and holds back VACUUM by {} transactions",
            row.get::<_, i32>(2)
        );
        found.push(
            Finding::new("transactions", Level::Warn, message)
                .fix(format!("select pg_drop_replication_slot('{name}');")),
        );
    }
    let hidden = client
        .ask_one(
            "select count(*) from pg_stat_activity a where a.query = '<insufficient privilege>'",
            &[],
        )
        .await?;
    if hidden.get::<_, i64>(0) > 0 {
        let message = format!(
            "this login cannot see {} sessions of other users",
            hidden.get::<_, i64>(0)
        );
        found.push(
            Finding::new("transactions", Level::Skipped, message)
                .fix("grant pg_read_all_stats to LOGIN;  -- as a superuser"),
        );
    }
    if found.is_empty() {
        return Ok(Finding::ok(
            "transactions",
            format!("none has been open for more than {LONG_TRANSACTION}"),
        ));
    }
    Ok(found)
}

fn long_transaction(row: &Row) -> Finding {
    let pid: i32 = row.get(0);
    let [user, program, place, state]: [String; 4] = [row.get(1), row.get(2), row.get(3), row.get(4)];
    let message = format!(
        "a transaction has been open for {}: process {pid}, user {user}, program {program}, from {place}, {state}. \
         VACUUM cannot remove rows that died since then",
        length(row.get(5))
    );
    Finding::new("transactions", Level::Warn, message).fix(format!("select pg_terminate_backend({pid});"))
}

pub async fn notifications(client: &Client) -> Result<Vec<Finding>> {
    let row = client.ask_one("select pg_notification_queue_usage()", &[]).await?;
    let percent = row.get::<_, f64>(0) * 100.0;
    let message = format!("the server's notification queue is {percent:.1}% full");
    let level = match percent {
        0.0..10.0 => return Ok(Finding::ok("notifications", message)),
        10.0..50.0 => Level::Warn,
        _ => Level::Fail,
    };
    Ok(vec![Finding::new("notifications", level, message).fix(
        "A listening session does not read its notifications, or has an open transaction: \
         select pid, xact_start, state, query from pg_stat_activity where query ilike 'listen%' order by xact_start;",
    )])
}

pub async fn connections(client: &Client) -> Result<Vec<Finding>> {
    let row = client
        .ask_one(
            "select count(*), current_setting('max_connections')::bigint from pg_stat_activity a \
             where a.backend_type = 'client backend'",
            &[],
        )
        .await?;
    let (used, most): (i64, i64) = (row.get(0), row.get(1));
    let message = format!("{used} of {most} are in use");
    Ok(match used * 10 > most * 8 {
        true => {
            vec![Finding::new("connections", Level::Warn, message).fix(
                "alter system set max_connections = …;  -- and restart; or run fewer workers, or reduce pool_size",
            )]
        }
        false => Finding::ok("connections", message),
    })
}

/// Whether the database's clock was set back within the last day. Reports nothing otherwise.
pub async fn clock_steps(client: &Client) -> Result<Vec<Finding>> {
    let row = client
        .ask_one(
            "select extract(epoch from c.ahead)::float8, extract(epoch from c.stepped_by)::float8, \
               extract(epoch from clock_timestamp() - c.stepped_at)::float8 \
             from bugle.clock() c",
            &[],
        )
        .await?;
    let [ahead, stepped_by, ago] = [0, 1, 2].map(|column| row.get::<_, Option<f64>>(column));
    if let Some(ahead) = ahead.filter(|ahead| *ahead > 2.0) {
        let message = format!(
            "the database's clock was set back by {}, and no worker has handled it yet",
            length(ahead)
        );
        return Ok(vec![Finding::new("clocks", Level::Fail, message).fix(
            "A running worker handles it within seconds: it adjusts retries, limits and schedules. Start one: bugle \
             worker --config …",
        )]);
    }
    match (stepped_by, ago) {
        (Some(by), Some(ago)) if ago < 24.0 * 3600.0 => {
            let message = format!(
                "the database's clock was set back by {} {} ago; retries, snoozes, limits and intervals were adjusted",
                length(by),
                length(ago.max(0.0))
            );
            Ok(vec![Finding::new("clocks", Level::Warn, message).fix(
                "Jobs with an explicit run_at start when the clock reaches it; cron times that have already fired do \
                 not fire again. Let NTP slew the clock of the database server instead of stepping it.",
            )])
        }
        _ => Ok(Vec::new()),
    }
}
