//! `bugle bench web`: how fast the pages are on a large database, and what browsers that watch cost it.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_postgres::Client;

use super::clock::{now, seconds_since};
use super::server::{Database, settle};
use super::statistics::Percentiles;
use super::{Bench, Line};
use crate::web::server;
use crate::web::site::{self, Options as Site};

/// First byte and size of each page on a large database, and what watching costs
///
/// A database is filled with finished and live jobs, failed attempts and the minutes of a day. Each page is then opened
/// several times, one at a time; its size is without compression. At last browsers watch the overview, and the
/// processor time of all processes of the Postgres server is compared with the same time without them (on this machine
/// only).
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// Number of finished jobs, of which one in a hundred has failed [default: 10000000]
    #[arg(long, value_name = "N")]
    pub finished: Option<u64>,
    /// Number of live jobs [default: 1000000]
    #[arg(long, value_name = "N")]
    pub live: Option<u64>,
    /// Number of queues [default: 200]
    #[arg(long, value_name = "N")]
    pub queues: Option<u64>,
    /// Number of commands [default: 1000]
    #[arg(long, value_name = "N")]
    pub commands: Option<u64>,
    /// Number of watching browsers [default: 10]
    #[arg(long, value_name = "N")]
    pub watchers: Option<usize>,
    /// How long they watch [default: 150]
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<f64>,
}

/// How often each page is opened.
const TIMES: usize = 5;
/// How many rows a statement inserts.
const BATCH: u64 = 500_000;

/// What every page should stay within: milliseconds to the first byte (the median), and kilobytes.
const BARS: (f64, f64) = (300.0, 100.0);
/// What ten browsers should stay within: percent of a core of the database.
const WATCHING_BAR: f64 = 1.0;

const PAGES: [&str; 28] = [
    "/",
    "/?range=24h",
    "/?range=7d",
    "/jobs",
    "/jobs?q=state:completed",
    "/jobs?q=state:failed",
    "/jobs?q=state:ready+queue:queue_7",
    "/jobs?q=command:command_17+error:refused",
    "/jobs?q=payload.user:4711",
    "/jobs?q=key:nowhere",
    "/jobs/1",
    "/workflows",
    "/queues",
    "/queues/queue_7",
    "/commands",
    "/commands/command_17",
    "/policies",
    "/policies/default",
    "/schedules",
    "/schedules/schedule_17",
    "/workers",
    "/errors",
    "/dead-letters",
    "/changes",
    "/database",
    "/enqueue",
    "/add-missing",
    BULK,
];

/// The rehearsal of a verb for everything that matches, which is posted.
const BULK: &str = "/jobs/bulk";

/// # Errors
/// If the database cannot be filled, or a page cannot be opened.
pub async fn run(bench: &mut Bench, options: Options) -> Result<()> {
    let sizes = Sizes {
        finished: bench.choose(options.finished, 10_000_000, 2_000),
        live: bench.choose(options.live, 1_000_000, 1_000),
        queues: bench.choose(options.queues, 200, 20),
        commands: bench.choose(options.commands, 1_000, 50),
    };
    let watchers = bench.choose(options.watchers, 10, 2);
    let seconds = bench.choose(options.seconds, 150.0, 1.0);
    let database = bench.server.database().await?;
    let client = database.connect().await?;
    fill(bench, &client, &sizes).await?;

    let listener = server::bind(([127, 0, 0, 1], 0).into()).await?;
    let address = listener.local_addr()?;
    let target = database.config.clone();
    let serving = tokio::spawn(async move { site::serve(listener, &target, Site::default()).await });
    let what = format!("{} finished, {} live", sizes.finished, sizes.live);
    let workflow: i64 = client
        .query_one("select min(w.workflow) from bugle.workflow_jobs w", &[])
        .await?
        .get(0);
    let workflow = format!("/workflows/{workflow}");
    let mut missed = 0;
    for path in PAGES.into_iter().chain([workflow.as_str()]) {
        bench.progress(&format!("web: {path}"));
        let mut firsts = Vec::new();
        let mut size = 0;
        for _ in 0..TIMES {
            let page = open(address, path).await?;
            firsts.push(page.first);
            size = page.size;
        }
        let name = if path == workflow { "/workflows/{id}" } else { path };
        let line = Line::new("web", format!("first byte of {name}, {what}"), TIMES as u64);
        let times = Percentiles::of_nanoseconds(firsts);
        let kilobytes = size as f64 / 1000.0;
        let is_reached = times.is_some_and(|times| times.p50 <= BARS.0) && kilobytes <= BARS.1;
        missed += usize::from(!is_reached);
        bench.add(
            line.times(times)
                .note("kilobytes", kilobytes)
                .note("bar", verdict(is_reached)),
        );
    }
    bench.progress("web: VACUUM, since rehearsals leave dead rows behind");
    vacuum(&client).await?;
    bench.progress(&format!("web: {watchers} browsers watch"));
    let cost = watch(&client, address, watchers, seconds).await?;
    let line = Line::new("web", format!("{watchers} browsers watch, {what}"), watchers as u64);
    let more = cost.map(|cost| (cost.watched - cost.idle) * 100.0);
    let is_reached = more.is_some_and(|more| more <= WATCHING_BAR);
    missed += usize::from(!is_reached);
    bench.add(
        line.note("percent_of_a_core", json!(cost.map(|cost| cost.watched * 100.0)))
            .note("percent_without_them", json!(cost.map(|cost| cost.idle * 100.0)))
            .note("autovacuums", json!(cost.map(|cost| cost.autovacuums)))
            .note("bar", verdict(is_reached)),
    );
    let (first, kilobytes) = BARS;
    let line = Line::new(
        "web",
        format!("all bars: {first} ms, {kilobytes} kB, {WATCHING_BAR} % of a core"),
        // the pages, the page of a workflow, and those who watch
        PAGES.len() as u64 + 2,
    );
    bench.add(line.note("missed", missed).note("bar", verdict(missed == 0)));
    serving.abort();
    drop(client);
    remove(bench, database).await
}

fn verdict(is_reached: bool) -> &'static str {
    if is_reached { "PASS" } else { "MISSED" }
}

async fn remove(bench: &Bench, database: Database) -> Result<()> {
    bench.server.remove(database).await
}

struct Sizes {
    finished: u64,
    live: u64,
    queues: u64,
    commands: u64,
}

/// By statements over many rows. History is written into the leaf of today, as if all had ended today.
async fn fill(bench: &Bench, client: &Client, sizes: &Sizes) -> Result<()> {
    let Sizes {
        finished,
        live,
        queues,
        commands,
    } = sizes;
    client.batch_execute("set synchronous_commit = off").await?;
    let names = format!("'command_' || n % {commands}, 'queue_' || n % {queues}");
    for (state, table, from, to) in [
        ("completed", "ended", 1, finished - finished / 100),
        ("failed", "failed", finished - finished / 100 + 1, *finished),
    ] {
        let more = match state {
            "failed" => ", 'attempts_exhausted', 'connection to 10.0.0.' || n % 250 || ' refused', 'refused'",
            _ => ", null, null, null",
        };
        for begin in (from..=to).step_by(BATCH as usize) {
            bench.progress(&format!("web: {begin} of {finished} finished jobs"));
            let end = to.min(begin + BATCH - 1);
            let sql = format!(
                "insert into bugle.jobs_{table} (id, command, queue, state, payload, created_at, run_at, started_at, \
                 first_started_at, finished_at, attempt, claim, day, reason, last_error, last_error_code) \
                 overriding system value \
                 select nextval('bugle.job_ids'), {names}, '{state}', jsonb_build_object('user', n % 10000), \
                 t.at, t.at, t.at, t.at, t.at + interval '1 second', 1, 1, d.day{more} \
                 from generate_series({begin}, {end}) n \
                 cross join lateral (select now() - n % 80000 * interval '1 second' as at) t \
                 cross join (select max(day) as day from bugle.history_days \
                 where kind = '{table}' and day <= (now() at time zone 'utc')::date) d"
            );
            client.batch_execute(&sql).await?;
        }
    }
    for begin in (1..=*live).step_by(BATCH as usize) {
        bench.progress(&format!("web: {begin} of {live} live jobs"));
        let end = (*live).min(begin + BATCH - 1);
        let sql = format!(
            "insert into bugle.jobs (command, queue, payload, run_at, priority) \
             select {names}, jsonb_build_object('user', n % 10000), \
             now() + case when n % 4 = 0 then n % 1000 * interval '1 minute' else '0' end, n % 5 \
             from generate_series({begin}, {end}) n"
        );
        client.batch_execute(&sql).await?;
    }
    bench.progress("web: attempts, minutes, changes");
    client
        .batch_execute(&format!(
            "insert into bugle.attempts (job, claim, attempt, command, outcome, code, error, started_at, ended_at) \
             select n, 9, 1, 'command_' || n % {commands}, 'failed', 'refused', \
             'connection to 10.0.0.' || n % 250 || ' refused', t.at, t.at \
             from generate_series(1, least({finished}, 100000)) n \
             cross join lateral (select now() - n % 7200 * interval '1 second' as at) t; \
             insert into bugle.minutes (minute, worker, queue, command, completed, failed, others, \
             run_seconds, wait_seconds, run, wait) \
             select date_trunc('minute', now()) - m * interval '1 minute', 0, 'queue_' || c % {queues}, \
             'command_' || c % {commands}, 100, 1, 0, 10, 20, array_fill(5::bigint, array[20]), \
             array_fill(5::bigint, array[20]) \
             from generate_series(0, 1440) m cross join generate_series(0, least({commands}, 100) - 1) c; \
             insert into bugle.changes (verb, job, note) select 'cancel', n, 'note' from generate_series(1, 100000) n; \
             insert into bugle.schedules (name, cron, command) \
             select 'schedule_' || n, '0 3 * * *', 'command_' || n from generate_series(1, 100) n"
        ))
        .await?;
    // each a graph of ten jobs
    let workflows = "select bugle.enqueue_workflow(jsonb_build_object('jobs', (select jsonb_object_agg('job_' || n, \
        jsonb_build_object('command', 'command_' || n) || case when n > 1 then \
        jsonb_build_object('after', jsonb_build_array('job_' || n / 2)) else '{}' end) \
        from generate_series(1, 10) n))) from generate_series(1, 50)";
    client.batch_execute(workflows).await?;
    vacuum(client).await?;
    settle(client).await
}

/// What autovacuum would do of its own accord, at any time in the next minutes: with ten million new rows that takes
/// seconds of processor time, which would be taken for what pages cost.
async fn vacuum(client: &Client) -> Result<()> {
    client.batch_execute("vacuum").await?;
    Ok(())
}

/// How often autovacuum has worked on a table since the database exists.
async fn autovacuums(client: &Client) -> Result<i64> {
    let sql = "select coalesce(sum(autovacuum_count + autoanalyze_count), 0)::bigint from pg_stat_all_tables";
    Ok(client.query_one(sql, &[]).await?.get(0))
}

struct Opened {
    /// Nanoseconds to the first byte.
    first: i64,
    size: usize,
    text: String,
}

async fn open(address: SocketAddr, path: &str) -> Result<Opened> {
    let request = match path {
        BULK => {
            let page = fetch(
                address,
                "GET /enqueue HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            )
            .await?;
            let token = page.text.split("name=\"csrf\" value=\"").nth(1);
            let token = token.and_then(|rest| rest.split('"').next()).context("no token")?;
            let form = format!("csrf={token}&verb=cancel&all=true&q=state%3Aready&back=%2Fjobs");
            format!(
                "POST {path} HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\nConnection: close\r\n\
                 Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
                form.len()
            )
        }
        _ => format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
    };
    fetch(address, &request).await.with_context(|| path.to_owned())
}

async fn fetch(address: SocketAddr, request: &str) -> Result<Opened> {
    let mut stream = TcpStream::connect(address).await?;
    let start = now();
    stream.write_all(request.as_bytes()).await?;
    let mut body = vec![0; 1];
    stream.read_exact(&mut body).await.context("no answer")?;
    let first = now() - start;
    stream.read_to_end(&mut body).await?;
    let text = String::from_utf8_lossy(&body);
    let (head, body) = text.split_once("\r\n\r\n").context("an answer without a head")?;
    ensure!(head.contains(" 200 "), "{}", head.lines().next().unwrap_or_default());
    Ok(Opened {
        first,
        size: body.len(),
        text: body.to_owned(),
    })
}

#[derive(Debug, Clone, Copy)]
struct Cost {
    /// Seconds of processor time for each second.
    watched: f64,
    idle: f64,
    /// How many tables autovacuum worked on in the meantime, which is in the first.
    autovacuums: i64,
}

/// Browsers that do what the script of the pages does: listen, and fetch the page again when they are told to.
async fn watch(client: &Client, address: SocketAddr, watchers: usize, seconds: f64) -> Result<Option<Cost>> {
    let measure = async || {
        let before = processor_time(client).await?;
        let start = now();
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        let passed = seconds_since(start);
        let after = processor_time(client).await?;
        Ok::<_, anyhow::Error>(before.zip(after).map(|(before, after)| (after - before) / passed))
    };
    let before = measure().await?;
    let watching: Vec<_> = (0..watchers).map(|_| tokio::spawn(watch_once(address))).collect();
    // the first look of all of them is not what watching costs
    tokio::time::sleep(Duration::from_secs_f64(seconds / 4.0)).await;
    let vacuumed = autovacuums(client).await?;
    let watched = measure().await?;
    let autovacuums = autovacuums(client).await? - vacuumed;
    for one in watching {
        ensure!(!one.is_finished(), "a browser was disconnected");
        one.abort();
    }
    // the less of the two: autovacuum may work in one of them
    let idle = before.zip(measure().await?).map(|(before, after)| before.min(after));
    Ok(watched.zip(idle).map(|(watched, idle)| Cost {
        watched,
        idle,
        autovacuums,
    }))
}

async fn watch_once(address: SocketAddr) -> Result<()> {
    let mut live = TcpStream::connect(address).await?;
    live.write_all(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
    let mut buffer = [0; 4096];
    loop {
        let read = live.read(&mut buffer).await?;
        ensure!(read > 0, "the stream has ended");
        if String::from_utf8_lossy(&buffer[..read]).contains("event: tick") {
            let mut page = TcpStream::connect(address).await?;
            let request = "GET / HTTP/1.1\r\nHost: localhost\r\nBugle-Refresh: 1\r\nConnection: close\r\n\r\n";
            page.write_all(request.as_bytes()).await?;
            page.read_to_end(&mut Vec::new()).await?;
        }
    }
}

/// Seconds of processor time of the server and all its processes, also of those that have ended. None if it is on
/// another machine.
async fn processor_time(client: &Client) -> Result<Option<f64>> {
    let own: i32 = client.query_one("select pg_backend_pid()", &[]).await?.get(0);
    let Some(own) = fields(u32::try_from(own)?) else {
        return Ok(None);
    };
    let server = own[1] as u32;
    let Some(mut all) = fields(server).map(|all| all[11..15].iter().sum::<f64>()) else {
        return Ok(None);
    };
    for process in std::fs::read_dir("/proc")?.flatten() {
        let Ok(process) = process.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        if let Some(fields) = fields(process).filter(|fields| fields[1] as u32 == server) {
            all += fields[11] + fields[12];
        }
    }
    // USER_HZ is 100 on Linux
    Ok(Some(all / 100.0))
}

/// What /proc says about a process, after its name: its state, its parent, …
fn fields(process: u32) -> Option<Vec<f64>> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    Some(
        rest.split_whitespace()
            .map(|field| field.parse().unwrap_or_default())
            .collect(),
    )
}
