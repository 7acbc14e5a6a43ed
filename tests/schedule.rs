//! Recurring jobs: on time, once per slot regardless of which worker fires it, and the same calendar as a mature cron
//! library.

mod common;
#[path = "proof/random_seed.rs"]
mod random_seed;

use std::process::Command;
use std::str::FromStr;

use common::{BUGLE, Database, execute, noop, query_value, wait_until};
use croner::Cron;
use futures_util::future::join_all;
use jiff::civil::{Time, time};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, ToSpan, Zoned};

#[tokio::test(flavor = "multi_thread")]
async fn each_slot_is_one_job_and_none_is_early_with_two_workers() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let workers = [0, 1].map(|_| database.worker(&[("default", 4)], noop()));
    wait_until(
        &owner,
        "select count(*) = 2 and coalesce(bool_or(is_keeper), false) from bugle.workers where state = 'alive'",
    )
    .await;

    execute(
        &owner,
        "insert into bugle.schedules (name, cron, command) values ('tick', '* * * * * *', 'noop')",
    )
    .await;
    wait_until(&owner, "select count(*) >= 5 from bugle.jobs where state = 'completed'").await;
    execute(&owner, "select bugle.pause_schedule('tick')").await;
    for worker in workers {
        worker.stop().await;
    }

    let row = owner
        .query_one(
            "select count(*), count(distinct r.job), (select count(*) from bugle.jobs), bool_or(r.enqueued_at < \
                r.slot) \
             from bugle.schedule_runs r",
            &[],
        )
        .await
        .unwrap();
    let (runs, distinct, jobs): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    assert_eq!((runs, runs), (distinct, jobs), "one job for each slot");
    assert!(!row.get::<_, bool>(3), "one was fired before its time");
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_sessions_that_fire_at_once_enqueue_one_job_for_each_slot() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(
        &owner,
        "insert into bugle.schedules (name, every, command, misfire, catch_up_limit) \
             select 's' || n, '1 minute', 'noop', 'catch_up', 20 from generate_series(1, 10) n; \
             update bugle.schedules set next_at = created_at - interval '19 minutes', starts_at = created_at - \
             interval '1 day'; \
             update bugle.schedules set next_at = created_at - interval '19 minutes'",
    )
    .await;
    let sessions = join_all((0..8).map(|_| database.owner())).await;

    let fired = join_all(
        sessions
            .iter()
            .map(|session| session.query_one("select bugle.fire_schedules()", &[])),
    )
    .await;

    let fired: i32 = fired.into_iter().map(|row| row.unwrap().get::<_, i32>(0)).sum();
    assert_eq!(fired, 200);
    assert_eq!(count(&owner, "bugle.jobs").await, 200);
    assert_eq!(count(&owner, "bugle.schedule_runs").await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_primary_key_alone_decides_who_fires() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(
        &owner,
        "insert into bugle.schedules (name, cron, command) values ('s', '@daily', 'noop')",
    )
    .await;
    let sessions = join_all((0..8).map(|_| database.owner())).await;

    // past the lock on the schedule's row, as if eight keepers believed in themselves
    let fire = "select bugle.fire_slot(s, '2026-01-01 00:00Z') from bugle.schedules s";
    let fired = join_all(sessions.iter().map(|session| session.query_one(fire, &[]))).await;

    let jobs = fired
        .into_iter()
        .filter_map(|row| row.unwrap().get::<_, Option<i64>>(0));
    assert_eq!(jobs.count(), 1);
    assert_eq!(count(&owner, "bugle.jobs").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_whose_session_is_killed_is_fired_by_another() {
    let database = Database::new().await;
    let (owner, doomed) = (database.owner().await, database.owner().await);
    execute(
        &owner,
        "insert into bugle.schedules (name, cron, command) values ('s', '@daily', 'noop'); \
             update bugle.schedules set next_at = date_trunc('day', now(), 'UTC')",
    )
    .await;
    let fire = "select bugle.fire_schedules(), pg_backend_pid()";

    execute(&doomed, "begin").await;
    let row = doomed.query_one(fire, &[]).await.unwrap();
    let (fired, pid): (i32, i32) = (row.get(0), row.get(1));
    let meanwhile: i32 = query_value(&owner, fire).await;
    owner
        .query_one("select pg_terminate_backend($1, 120000)", &[&pid])
        .await
        .unwrap();
    let afterwards: i32 = query_value(&owner, fire).await;

    assert_eq!((fired, meanwhile, afterwards), (1, 0, 1));
    assert_eq!(count(&owner, "bugle.jobs").await, 1);
}

async fn count(client: &tokio_postgres::Client, table: &str) -> i64 {
    let query = format!("select count(*) from {table}");
    query_value(client, &query).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_adds_shows_and_removes_schedules() {
    let database = Database::new().await;
    let bugle = async |arguments: &[&str]| {
        let output = Command::new(BUGLE)
            .arg("schedules")
            .args(arguments)
            .env("BUGLE_DATABASE_URL", database.url("operator"))
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout) + &text(output.stderr))
    };

    let added = [
        "add",
        "report",
        r#"{"to": "all"}"#,
        "--cron",
        "0 9 1 1 *",
        "--command",
        "send",
        "--timezone",
        "Europe/Berlin",
    ];
    let (done, said) = bugle(&added).await;
    assert!(done && said.contains("-01-01T08:00:00"), "{said}");
    assert!(bugle(&["add", "poll", "--every", "10m", "--command", "poll"]).await.0);
    let (_, said) = bugle(&["list"]).await;
    assert!(
        said.contains("0 9 1 1 * (Europe/Berlin)\tsend") && said.contains("every 00:10:00\tpoll"),
        "{said}"
    );
    let (_, said) = bugle(&["preview", "@yearly", "-n", "2", "--json"]).await;
    assert_eq!(serde_json::from_str::<Vec<String>>(&said).unwrap().len(), 2, "{said}");
    assert!(bugle(&["pause", "poll", "--note", "noisy"]).await.0);
    assert!(bugle(&["list"]).await.1.contains("paused"));
    assert!(bugle(&["resume", "poll"]).await.0);
    let (done, said) = bugle(&["run-now", "report"]).await;
    assert!(done && said.trim().parse::<i64>().is_ok(), "{said}");
    assert!(bugle(&["remove", "poll"]).await.0);
    let chain = "add import --every 1h --command import --step fetch --step upload";
    assert!(bugle(&chain.split(' ').collect::<Vec<_>>()).await.0);
    let (_, id) = bugle(&["run-now", "import"]).await;
    let steps = "select steps::text from bugle.jobs where id = $1";
    let row = database.owner().await;
    let row = row
        .query_one(steps, &[&id.trim().parse::<i64>().unwrap()])
        .await
        .unwrap();
    assert_eq!(row.get::<_, String>(0), "{fetch,upload}");

    for refused in [
        &["remove", "poll"][..],
        &["add", "x", "--command", "c"],
        &["add", "x", "--command", "c", "--cron", "0 25 * * *"],
        &["run-now", "nobody"],
    ] {
        let (done, said) = bugle(refused).await;
        assert!(!done, "{refused:?}: {said}");
    }
    assert!(
        bugle(&["preview", "0 25 * * *"])
            .await
            .1
            .contains("field \"hour\" ('25')")
    );
}

const ZONES: [&str; 10] = [
    "UTC",
    "Europe/Berlin",
    "Europe/London",
    "America/New_York",
    "America/St_Johns",
    "America/Santiago",
    "America/Havana",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Pacific/Auckland",
];
const COMPARISONS: usize = 4000;

/// Half of the questions are asked within hours of a change of the clocks.
///
/// Croner's rules for those are ours in two cases: one second, minute and hour (it moves to the end of the gap, and
/// runs at the first of two), and all 24 hours (it runs in each real hour). For everything between, such as `0 1-3 * *
/// *`, croner counts as for all hours: it drops what falls into a gap and repeats what comes twice, where we do
/// neither. Those are compared where no change is near.
#[tokio::test(flavor = "multi_thread")]
async fn the_calendar_is_that_of_a_mature_library() {
    let seed = random_seed::seed("BUGLE_CALENDAR_SEED");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut crons, mut zones, mut afters, mut expected) = (vec![], vec![], vec![], vec![]);
    while crons.len() < COMPARISONS {
        let (cron, rules) = expression(&mut random);
        let zone = ZONES[random.usize(..ZONES.len())];
        let timezone = TimeZone::get(zone).unwrap();
        let mut after = Timestamp::from_second(random.i64(631_152_000..2_114_380_800)).unwrap();
        if random.bool()
            && let Some(change) = timezone.following(after).next()
        {
            after = change.timestamp() + random.i64(-10_000..10_000).seconds();
        }
        let next = Cron::from_str(&cron)
            .unwrap_or_else(|error| panic!("{cron}: {error}"))
            .find_next_occurrence(&after.to_zoned(timezone.clone()), false)
            .ok();
        let at = next.as_ref().map(Zoned::timestamp);
        let change = timezone
            .following(after - 48.hours())
            .next()
            .map(|change| change.timestamp());
        let change_is_near = change.is_some_and(|change| at.is_none_or(|at| change < at + 48.hours()));
        if change_is_near && (rules == Rules::Differ || rules.are_broken_by(next.as_ref())) {
            continue;
        }
        crons.push(cron);
        zones.push(zone);
        afters.push(after.as_second());
        expected.push(at.map(Timestamp::as_second));
    }

    let database = Database::new().await;
    let rows = database
        .owner()
        .await
        .query(
            "select extract(epoch from bugle.next_slot(q.cron, q.zone, to_timestamp(q.after)))::bigint \
             from unnest($1::text[], $2::text[], $3::bigint[]) with ordinality q (cron, zone, after, number) order by \
             q.number",
            &[&crons, &zones, &afters],
        )
        .await
        .unwrap();

    let shown = |time: Option<i64>| time.map(|time| Timestamp::from_second(time).unwrap().to_string());
    let different: Vec<String> = rows
        .iter()
        .enumerate()
        .filter(|(number, row)| row.get::<_, Option<i64>>(0) != expected[*number])
        .map(|(number, row)| {
            format!(
                "{:?} in {} after {}: {:?}, the library says {:?}",
                crons[number],
                zones[number],
                Timestamp::from_second(afters[number]).unwrap(),
                shown(row.get(0)),
                shown(expected[number]),
            )
        })
        .collect();
    assert_eq!(rows.len(), COMPARISONS);
    assert!(
        different.is_empty(),
        "BUGLE_CALENDAR_SEED={seed}: {} differ\n{}",
        different.len(),
        different.join("\n")
    );
}

/// What both do when the clocks change.
#[derive(PartialEq)]
enum Rules {
    /// The same: one time of the day.
    OneTime(Time),
    /// The same: every hour.
    AllHours,
    Differ,
}

impl Rules {
    /// Croner steps from hour to hour, and takes an hour it only steps over for one that was asked for if that lies in
    /// a gap: `8 1 * * *`, asked at 01:09 before clocks go from 02:00 to 03:00, is 03:00 on that day although 01:08 was
    /// there.
    fn are_broken_by(&self, next: Option<&Zoned>) -> bool {
        match (self, next) {
            (Rules::OneTime(time), Some(next)) => {
                let asked_for = next.time_zone().to_ambiguous_timestamp(next.date().to_datetime(*time));
                next.time() != *time && !matches!(asked_for.offset(), AmbiguousOffset::Gap { .. })
            }
            _ => false,
        }
    }
}

/// A random expression, and by which rules it can be compared.
fn expression(random: &mut fastrand::Rng) -> (String, Rules) {
    let exact = time(random.i8(0..24), random.i8(0..60), random.i8(0..60), 0);
    let (rules, second, minute, hour) = match random.u8(..4) {
        0 => (
            Rules::OneTime(exact),
            Some(exact.second().to_string()),
            exact.minute().to_string(),
            exact.hour().to_string(),
        ),
        1 => (
            Rules::OneTime(exact.with().second(0).build().unwrap()),
            None,
            exact.minute().to_string(),
            exact.hour().to_string(),
        ),
        2 => {
            let second = random.bool().then(|| field(random, 0, 59));
            (Rules::AllHours, second, field(random, 0, 59), "*".into())
        }
        _ => {
            let second = random.bool().then(|| field(random, 0, 59));
            (Rules::Differ, second, field(random, 0, 59), field(random, 0, 23))
        }
    };
    let month = match random.u8(..4) {
        0 => ["JAN", "feb", "MAR-MAY", "OCT,NOV"][random.usize(..4)].into(),
        1 => field(random, 1, 12),
        _ => "*".into(),
    };
    // with a step of * in one day field and a value in the other the two disagree on what is restricted
    let (day, weekday) = match random.u8(..4) {
        0 => (listed(random, 1, 31), listed(random, 0, 7)),
        1 => (field(random, 1, 31), "*".into()),
        2 => (
            "*".into(),
            ["MON-FRI", "sun", "0", "7", "5-7", "TUE,THU"][random.usize(..6)].into(),
        ),
        _ => ("*".into(), "*".into()),
    };
    let rest = format!("{minute} {hour} {day} {month} {weekday}");
    let all = second.map_or(rest.clone(), |second| format!("{second} {rest}"));
    (all, rules)
}

fn field(random: &mut fastrand::Rng, least: u32, most: u32) -> String {
    match random.u8(..4) {
        0 => "*".into(),
        1 => format!("*/{}", random.u32(1..=most)),
        _ => listed(random, least, most),
    }
}

fn listed(random: &mut fastrand::Rng, least: u32, most: u32) -> String {
    let part = |random: &mut fastrand::Rng| {
        let (one, other) = (random.u32(least..=most), random.u32(least..=most));
        let (from, to) = (one.min(other), one.max(other));
        match random.u8(..4) {
            0 if from < to => format!("{from}-{to}"),
            1 if from < to => format!("{from}-{to}/{}", random.u32(1..=to - from)),
            _ => one.to_string(),
        }
    };
    let parts: Vec<String> = (0..random.u8(1..=3)).map(|_| part(random)).collect();
    parts.join(",")
}
