//! `bugle bench fleet`: one worker for several databases, and many workers for one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::clock::{now, seconds_since};
use super::drain::account_for;
use super::idle::{resident, statements};
use super::server::{Database, Server, fill};
use super::statistics::{Percentiles, median};
use super::workers::Workers;
use super::{Bench, Line};

/// One worker for several databases, and many workers for one
///
/// drain: a backlog of no-op jobs in each of several databases, on a private server each, is drained by one worker
/// process that serves all of them, and, in turns with it, by a worker process for each. Both have the same number of
/// slots in total. Timed from the start of the first executor until all completions are durable.
///
/// outage: one worker process serves these databases, in which jobs are enqueued at a constant rate. One server is
/// killed, and later started again. The completions of the others are counted for each second: their median, and how it
/// compares with the seconds before, say whether they stay flat.
///
/// flood: one worker process serves these databases. Jobs of twenty milliseconds are enqueued at a constant rate in all
/// but the last, first alone, then while a flood of them waits in the last one. The time from each enqueueing to its
/// start says whether the flood disturbs the others.
///
/// workers: many worker processes of one database are started at once; then they are idle, get one job after the other,
/// and a burst; then their server is restarted. Locks are those in the shared lock table.
///
/// With --database-url all databases are on that server, which is neither killed nor restarted.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// What to measure [default: drain,outage,flood,workers]
    #[arg(long = "part", value_delimiter = ',', value_name = "PART")]
    pub parts: Option<Vec<Part>>,
    /// Number of databases [default: 4]
    #[arg(long, value_name = "N")]
    pub databases: Option<usize>,
    /// drain: number of jobs in each database [default: 50000]
    #[arg(long, value_name = "N")]
    pub jobs: Option<u64>,
    /// drain: number of rounds; the median is reported [default: 3]
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
    /// Slots for each database [default: 500; flood: 16]
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,
    /// outage, flood: jobs per second in each database [default: 200]
    #[arg(long, value_name = "N")]
    pub rate: Option<u64>,
    /// outage, flood: length of each phase [default: 10]
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<u64>,
    /// flood: number of jobs in the last database [default: 50000]
    #[arg(long, value_name = "N")]
    pub flood: Option<u64>,
    /// workers: number of processes [default: 200]
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,
    /// workers: number of jobs in the burst [default: 20000]
    #[arg(long, value_name = "N")]
    pub burst: Option<u64>,
}

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// One process for all databases against one for each
    Drain,
    /// One of the servers is killed under load
    Outage,
    /// A backlog in one of the databases
    Flood,
    /// Many workers of one database
    Workers,
}

/// # Errors
/// If a measurement fails or a job is unaccounted for.
pub async fn run(bench: &mut Bench, options: Options) -> Result<()> {
    let has = |part: Part| options.parts.as_ref().is_none_or(|parts| parts.contains(&part));
    if has(Part::Drain) || has(Part::Outage) || has(Part::Flood) {
        let count = bench.choose(options.databases, 4, 2);
        let others = match bench.server.is_private() {
            true => (1..count).map(|_| bench.server.another()).collect::<Result<Vec<_>>>()?,
            false => Vec::new(),
        };
        if has(Part::Drain) {
            drain(bench, &others, count, &options).await?;
        }
        if has(Part::Flood) {
            flood(bench, &others, count, &options).await?;
        }
        if has(Part::Outage) && !others.is_empty() {
            outage(bench, others, &options).await?;
        }
    }
    if has(Part::Workers) {
        workers(bench, &options).await?;
    }
    Ok(())
}

/// A new database on each of the servers, or all on the only one.
async fn databases(bench: &Bench, others: &[Server], count: usize) -> Result<Vec<Database>> {
    let mut databases = vec![bench.server.database().await?];
    for server in others {
        databases.push(server.database().await?);
    }
    while databases.len() < count {
        databases.push(bench.server.database().await?);
    }
    Ok(databases)
}

async fn remove(bench: &Bench, others: &[Server], databases: Vec<Database>) -> Result<()> {
    for (place, database) in databases.into_iter().enumerate() {
        let server = place.checked_sub(1).and_then(|place| others.get(place));
        server.unwrap_or(&bench.server).remove(database).await?;
    }
    Ok(())
}

async fn drain(bench: &mut Bench, others: &[Server], count: usize, options: &Options) -> Result<()> {
    let jobs = bench.choose(options.jobs, 50_000, 500);
    let rounds = bench.choose(options.rounds, 3, 1);
    let slots = options.slots.unwrap_or(500);
    let (mut together, mut apart) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        for (is_one, seconds) in [(true, &mut together), (false, &mut apart)] {
            bench.progress(&format!("fleet: drain, round {round} of {rounds}"));
            let databases = databases(bench, others, count).await?;
            seconds.push(drain_once(&databases, is_one, jobs, slots).await?);
            remove(bench, others, databases).await?;
        }
    }
    let all = jobs * count as u64;
    let rates = |times: &[f64]| -> Vec<f64> { times.iter().map(|time| (all as f64 / time).round()).collect() };
    let ratio = together.iter().zip(&apart).map(|(one, each)| each / one);
    let line = Line::new("fleet", format!("{count} databases, one worker for all"), all);
    let line = line.note("ratio_to_one_for_each", median(ratio.collect()));
    let line = line.note("rounds", rates(&together)).rate(median(together));
    bench.add(line.note("slots", slots * count as u32));
    let line = Line::new("fleet", format!("{count} databases, one worker for each"), all);
    let line = line.note("rounds", rates(&apart)).rate(median(apart));
    bench.add(line.note("slots", slots * count as u32));
    Ok(())
}

/// Seconds from the first execution to the last completion.
async fn drain_once(databases: &[Database], is_one: bool, jobs: u64, slots: u32) -> Result<f64> {
    let mut clients = Vec::new();
    for database in databases {
        let client = database.connect().await?;
        fill(&client, jobs).await?;
        clients.push(client);
    }
    let mut running: Vec<(Workers, u64)> = match is_one {
        true => vec![(Workers::start_for_all(databases, slots)?, jobs * databases.len() as u64)],
        false => databases
            .iter()
            .map(|database| Ok((Workers::start(database, 1, slots)?, jobs)))
            .collect::<Result<_>>()?,
    };
    let mut end = 0;
    for (workers, jobs) in &mut running {
        workers.executed(*jobs).await?;
    }
    for client in &clients {
        end = end.max(running[0].0.drained(client, 0).await?);
    }
    let mut first = end;
    for (workers, jobs) in running {
        let tally = workers.stop().await?;
        ensure!(tally.total() == jobs, "{} executions of {jobs} jobs", tally.total());
        first = first.min(tally.first.unwrap_or(end));
    }
    for client in &clients {
        account_for(client, jobs).await?;
    }
    Ok((end - first) as f64 / 1e9)
}

/// Enqueues jobs at a constant rate until it is asked to stop, also after an outage. Returns how many were
/// acknowledged.
async fn enqueue(database: Arc<Database>, command: &str, rate: u64, stop: Arc<AtomicBool>) -> u64 {
    let mut acknowledged = 0;
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    let insert = "insert into bugle.jobs (command) select $2 from generate_series(1, $1::bigint)";
    while !stop.load(Ordering::Acquire) {
        let Ok(client) = database.connect().await else {
            ticks.tick().await;
            continue;
        };
        while !stop.load(Ordering::Acquire) {
            ticks.tick().await;
            let count = (rate / 10).max(1);
            match client.execute(insert, &[&(count as i64), &command]).await {
                Ok(_) => acknowledged += count,
                Err(_) => break,
            }
        }
    }
    acknowledged
}

const PHASES: [&str; 3] = ["before", "while one is down", "after its restart"];

async fn outage(bench: &mut Bench, mut others: Vec<Server>, options: &Options) -> Result<()> {
    let rate = bench.choose(options.rate, 200, 50);
    let seconds = bench.choose(options.seconds, 10, 2);
    let slots = options.slots.unwrap_or(500);
    let count = others.len() + 1;
    let all = databases(bench, &others, count).await?;
    let all: Vec<Arc<Database>> = all.into_iter().map(Arc::new).collect();
    let worker = Workers::start_for_all(all.iter().map(|database| &**database), slots)?;
    let stop = Arc::new(AtomicBool::new(false));
    let enqueuers: Vec<_> = all
        .iter()
        .map(|database| tokio::spawn(enqueue(database.clone(), "noop", rate, stop.clone())))
        .collect();
    // until all of them are served
    for database in &all {
        completed_after(database, 0.0).await?;
    }

    let pause = Duration::from_secs(seconds);
    let mut begins = Vec::new();
    let (victim, last) = (others.last_mut().context("one of several")?, all.last().context("one")?);
    bench.progress("fleet: outage");
    begins.push(of_day());
    tokio::time::sleep(pause).await;
    begins.push(of_day());
    tokio::task::block_in_place(|| victim.kill())?;
    tokio::time::sleep(pause).await;
    begins.push(of_day());
    tokio::task::block_in_place(|| victim.start_again())?;
    let back = now();
    completed_after(last, of_day()).await?;
    let until_completed = seconds_since(back);
    tokio::time::sleep(pause).await;
    begins.push(of_day());
    stop.store(true, Ordering::Release);
    let mut acknowledged = Vec::new();
    for enqueuer in enqueuers {
        acknowledged.push(enqueuer.await?);
    }
    for (database, acknowledged) in all.iter().zip(acknowledged) {
        let client = database.connect().await?;
        empty(&client).await?;
        // an insert whose reply was lost may have been committed
        let done: i64 = client
            .query_one("select count(*) from bugle.jobs where state = 'completed'", &[])
            .await?
            .get(0);
        ensure!(
            done as u64 >= acknowledged,
            "{done} jobs are completed, and {acknowledged} were acknowledged"
        );
    }
    worker.stop().await?;

    let mut usual = None;
    for (phase, begin) in PHASES.iter().zip(begins.windows(2)) {
        let mut times = Vec::new();
        let (mut windows, mut jobs) = (Vec::new(), 0);
        for database in &all[..count - 1] {
            let client = database.connect().await?;
            let (begin, end) = (begin[0], begin[1]);
            let rows = client
                .query(
                    "select extract(epoch from j.finished_at)::double precision - $1, \
                       extract(epoch from j.finished_at - j.created_at)::double precision * 1000 \
                     from bugle.jobs j where j.state = 'completed' \
                       and j.finished_at between to_timestamp($1) and to_timestamp($2)",
                    &[&begin, &end],
                )
                .await?;
            let mut counts = vec![0; (end - begin) as usize];
            for row in &rows {
                let at: f64 = row.get(0);
                if let Some(count) = counts.get_mut(at as usize) {
                    *count += 1;
                }
                times.push(row.get(1));
            }
            jobs += rows.len() as u64;
            windows.extend(counts);
        }
        let in_a_second = median(windows.iter().map(|count| f64::from(*count)).collect());
        let usual = *usual.get_or_insert(in_a_second);
        let line = Line::new("fleet", format!("{} of {count} databases, {phase}", count - 1), jobs);
        let mut line = line
            .rate(begin[1] - begin[0])
            .times(Percentiles::of(times))
            .note("least_in_a_second", windows.iter().min().copied())
            .note("most_in_a_second", windows.iter().max().copied())
            .note("median_in_a_second", in_a_second)
            .note("median_to_before", in_a_second / usual);
        if *phase == PHASES[2] {
            line = line.note("s_until_the_other_completes_jobs", until_completed);
        }
        bench.add(line);
    }
    Ok(())
}

async fn flood(bench: &mut Bench, others: &[Server], count: usize, options: &Options) -> Result<()> {
    let rate = bench.choose(options.rate, 200, 50);
    let pause = Duration::from_secs(bench.choose(options.seconds, 10, 2));
    let jobs = bench.choose(options.flood, 50_000, 500);
    let slots = options.slots.unwrap_or(16);
    let databases = databases(bench, others, count).await?;
    let databases: Vec<Arc<Database>> = databases.into_iter().map(Arc::new).collect();
    let worker = Workers::start_for_all(databases.iter().map(|database| &**database), slots)?;
    let (flooded, calm) = databases.split_last().context("one of several")?;
    let client = flooded.connect().await?;
    for is_flooded in [false, true] {
        bench.progress("fleet: flood");
        if is_flooded {
            let insert = "insert into bugle.jobs (command) select 'nap' from generate_series(1, $1::bigint)";
            client.execute(insert, &[&(jobs as i64)]).await?;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let enqueuers: Vec<_> = calm
            .iter()
            .map(|database| tokio::spawn(enqueue(database.clone(), "nap", rate, stop.clone())))
            .collect();
        // until all of them are served
        let begin = of_day();
        for database in calm {
            completed_after(database, begin).await?;
        }
        let left = async || -> Result<i64> {
            let left = "select count(*) from bugle.jobs_live";
            Ok(client.query_one(left, &[]).await?.get(0))
        };
        let (begin, waiting) = (of_day(), left().await?);
        tokio::time::sleep(pause).await;
        let (end, left) = (of_day(), left().await?);
        stop.store(true, Ordering::Release);
        for enqueuer in enqueuers {
            enqueuer.await?;
        }
        let mut times = Vec::new();
        for database in calm {
            let client = database.connect().await?;
            empty(&client).await?;
            times.extend(starts(&client, begin, end).await?);
        }
        empty(&client).await?;
        let phase = match is_flooded {
            true => format!("{jobs} jobs in the other"),
            false => "no jobs in the other".into(),
        };
        let what = format!("{} of {count} databases, {phase}", calm.len());
        let line = Line::new("fleet", what, times.len() as u64).rate(end - begin);
        let mut line = line.times(Percentiles::of(times)).note("slots", slots * count as u32);
        if is_flooded {
            line = line
                .note("per_s_in_the_other", (waiting - left) as f64 / (end - begin))
                .note("left_in_the_other", left);
        }
        bench.add(line);
    }
    worker.stop().await?;
    drop(client);
    let databases = databases.into_iter().filter_map(Arc::into_inner).collect();
    remove(bench, others, databases).await
}

/// From enqueueing to start, in milliseconds, of the jobs that were enqueued in this time.
async fn starts(client: &tokio_postgres::Client, begin: f64, end: f64) -> Result<Vec<f64>> {
    let sql = "select extract(epoch from j.first_started_at - j.created_at)::double precision * 1000 from bugle.jobs j \
        where j.state = 'completed' and j.created_at between to_timestamp($1) and to_timestamp($2)";
    let rows = client.query(sql, &[&begin, &end]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Wait until there is no unfinished job.
async fn empty(client: &tokio_postgres::Client) -> Result<()> {
    let is_empty = "select not exists (select from bugle.jobs_live)";
    while !client.query_one(is_empty, &[]).await?.get::<_, bool>(0) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// The time of day of this machine, which is that of its servers, in seconds.
fn of_day() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

/// Wait until a job was completed after this time of day.
async fn completed_after(database: &Database, time: f64) -> Result<()> {
    let client = database.connect().await?;
    let question = "select exists (select from bugle.jobs_ended where finished_at > to_timestamp($1))";
    while !client.query_one(question, &[&time]).await?.get::<_, bool>(0) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

async fn workers(bench: &mut Bench, options: &Options) -> Result<()> {
    let count = bench.choose(options.workers, 200, 3);
    let burst = bench.choose(options.burst, 20_000, 300);
    let (settle, seconds) = if bench.quick { (0.2, 1.0) } else { (12.0, 20.0) };
    // idle sessions of PostgreSQL publish their counts after ten seconds
    let published = Duration::from_secs_f64(settle);
    let database = bench.server.database().await?;
    let client = database.connect().await?;
    let track = format!("alter database {} set track_functions = 'all'", database.name);
    let is_tracked = client.batch_execute(&track).await.is_ok();
    let extension = "create extension if not exists pg_stat_statements; select from pg_stat_statements limit 1";
    let by_statement = client.batch_execute(extension).await.is_ok();
    let named = |what: &str| format!("{count} workers: {what}");

    bench.progress(&named("start"));
    let starting = now();
    let mut running = Workers::start_idle(&database, count, 10).await?;
    bench.add(Line::new("fleet", named("started"), count as u64).rate(seconds_since(starting)));

    bench.progress(&named("idle"));
    tokio::time::sleep(Duration::from_secs_f64(settle)).await;
    let (begin, before) = (now(), statements(&client, by_statement).await?);
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    let asked = statements(&client, by_statement).await? - before - 1.0;
    let passed = seconds_since(begin);
    let memory: Vec<f64> = running
        .process_ids()
        .iter()
        .map(|process| resident(*process))
        .collect::<Result<_>>()?;
    let mut line = Line::new("fleet", named("idle"), count as u64)
        .note("connections_per_worker", sessions(&client).await? as f64 / count as f64)
        .note(
            if by_statement {
                "statements_per_s"
            } else {
                "transactions_per_s"
            },
            (asked / passed).max(0.0),
        )
        .note("locks", locks(&client).await?)
        .note("lock_table", lock_table(&client).await?)
        .note("resident_mb", median(memory));
    line.seconds = Some(passed.round());
    bench.add(line);

    bench.progress(&named("one job after the other"));
    let singles = 20;
    let calls = claims(&client).await?;
    let mut times = Vec::new();
    for done in 0..singles {
        let begin = now();
        client
            .execute("insert into bugle.jobs (command) values ('noop')", &[])
            .await?;
        running.executed(done + 1).await?;
        times.push(seconds_since(begin) * 1000.0);
        running.drained(&client, 0).await?;
    }
    let mut line = Line::new("fleet", named("one job"), singles).times(Percentiles::of(times));
    if is_tracked {
        tokio::time::sleep(published).await;
        line = line.note(
            "claims_per_job",
            (claims(&client).await? - calls) as f64 / singles as f64,
        );
    }
    bench.add(line);

    bench.progress(&named("a burst"));
    let calls = claims(&client).await?;
    let begin = now();
    let insert = "insert into bugle.jobs (command) select 'noop' from generate_series(1, $1::bigint)";
    client.execute(insert, &[&(burst as i64)]).await?;
    let watch = database.connect().await?;
    let (end, most) = {
        let mut most = 0;
        let watching = async {
            loop {
                most = most.max(locks(&watch).await?);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let end = tokio::select! {
            end = running.drained(&client, singles + burst) => end?,
            failed = watching => return failed,
        };
        (end, most)
    };
    let mut line = Line::new("fleet", named("a burst"), burst).rate((end - begin) as f64 / 1e9);
    line = line.note("locks_at_most", most);
    if is_tracked {
        tokio::time::sleep(published).await;
        line = line.note(
            "jobs_per_claim",
            burst as f64 / (claims(&client).await? - calls).max(1) as f64,
        );
    }
    bench.add(line.note("sessions_after_it", sessions(&client).await?));
    account_for(&client, singles + burst).await?;

    if bench.server.is_private() {
        bench.progress(&named("restart of the server"));
        drop(client);
        let begin = now();
        tokio::task::block_in_place(|| bench.server.kill().and_then(|()| bench.server.start_again()))?;
        let back = now();
        let client = database.connect().await?;
        // all of them have named themselves to the new server
        let alive = "select count(*) from bugle.workers where state = 'alive'";
        while client.query_one(alive, &[]).await?.get::<_, i64>(0) < count as i64 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let all = seconds_since(back);
        let one = now();
        client
            .execute("insert into bugle.jobs (command) values ('noop')", &[])
            .await?;
        running.executed(singles + burst + 1).await?;
        let line = Line::new("fleet", named("restart of the server"), count as u64).rate(all);
        let refused = bench.server.log().matches("too many clients").count();
        bench.add(
            line.note("s_without_a_server", (back - begin) as f64 / 1e9)
                .note("ms_to_start_a_job_then", seconds_since(one) * 1000.0)
                .note("refused_connections", json!(refused)),
        );
    }
    running.stop().await?;
    bench.server.remove(database).await
}

/// How often claims were called.
async fn claims(client: &tokio_postgres::Client) -> Result<i64> {
    let sql = "select coalesce(sum(f.calls), 0)::bigint from pg_stat_user_functions f \
        where f.schemaname = 'bugle' and f.funcname = 'claim'";
    Ok(client.query_one(sql, &[]).await?.get(0))
}

/// The locks in the shared lock table of the server: advisory ones, and those that found no room in their session.
async fn locks(client: &tokio_postgres::Client) -> Result<i64> {
    let sql = "select count(*) from pg_locks where not fastpath and locktype <> 'virtualxid'";
    Ok(client.query_one(sql, &[]).await?.get(0))
}

/// For how many the table was made.
async fn lock_table(client: &tokio_postgres::Client) -> Result<i64> {
    let sql = "select current_setting('max_locks_per_transaction')::bigint \
        * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint)";
    Ok(client.query_one(sql, &[]).await?.get(0))
}

/// The sessions of workers in this database.
async fn sessions(client: &tokio_postgres::Client) -> Result<i64> {
    let sql = "select count(*) from pg_stat_activity where datname = current_database() \
        and application_name like 'bugle %' and pid <> pg_backend_pid()";
    Ok(client.query_one(sql, &[]).await?.get(0))
}
