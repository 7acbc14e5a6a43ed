//! The chapters of the demo.

use anyhow::{Context, Result};
use tokio_postgres::Client;

use super::checks::{Narrator, value};
use super::stage::{Stage, run};

const WORKERS: [&str; 2] = ["anna", "bert"];

/// Run all chapters and return the number of checks that passed.
///
/// # Errors
/// At the first check that fails, with the expected and the actual value.
pub async fn tell(stage: &mut Stage) -> Result<usize> {
    let owner = stage.set_up().await?;
    open_the_shop(stage, &owner).await?;
    let mut narrator = Narrator {
        viewer: stage.connect("viewer").await?,
        kept: 0,
    };
    introduce(stage, &narrator, &owner).await?;

    let app = stage.connect("app").await?;
    jobs_are_rows(&mut narrator, &app).await?;
    they_run_at_once(&mut narrator, &owner).await?;
    failures_are_retried(&mut narrator, &app).await?;
    some_fail_for_good(&mut narrator, &app).await?;
    some_wait_for_their_time(&mut narrator, &app).await?;
    let survivor = a_worker_is_killed(stage, &mut narrator, &app).await?;
    everything_can_be_read_back(&mut narrator).await?;

    let code = stage.stop_worker(survivor).await?;
    narrator.check("the remaining worker shuts down cleanly", Some(0), code)?;
    Ok(narrator.kept)
}

/// The tables of an application, in the same database.
async fn open_the_shop(stage: &Stage, owner: &Client) -> Result<()> {
    let (app, worker) = (stage.login("app"), stage.login("worker"));
    run(
        owner,
        &format!(
            "create schema shop;
             create table shop.orders (id bigint generated always as identity, item text not null);
             create table shop.stock (item text primary key, pieces integer not null);
             insert into shop.stock values ('tea', 10);
             create function shop.book(p_order jsonb) returns jsonb language sql as $$
               update shop.stock set pieces = pieces - 1 where item = p_order ->> 'item'
               returning jsonb_build_object('left', pieces)
             $$;
             grant usage on schema shop to {app}, {worker};
             grant insert on shop.orders to {app};
             grant select, update on shop.stock to {worker};
             insert into bugle.retry_policies (name, kind, retries, delay, jitter)
             values ('quick', 'fixed', 5, '300 milliseconds', 0)"
        ),
    )
    .await
}

fn worker_config(stage: &Stage) -> String {
    let workdir = toml::Value::from(stage.workdir().to_string_lossy().into_owned());
    format!(
        r#"workdir = {workdir}

[queues]
default = 4

[commands.send_receipt]
program = ["cat"]

[commands.book_stock]
sql = "select shop.book($1)"

[commands.charge_card]
program = [
    "sh",
    "-c",
    '[ "$BUGLE_ATTEMPT" -ge 2 ] || {{ echo "the bank does not respond" >&2; exit 1; }}; echo \"paid\"',
]

[commands.print_label]
program = ["sh", "-c", 'echo "no such address" >&2; exit 65']

[commands.bake]
program = ["sleep", "2"]
"#
    )
}

async fn introduce(stage: &mut Stage, narrator: &Narrator, owner: &Client) -> Result<()> {
    let version = value(owner, "select split_part(current_setting('server_version'), ' ', 1)").await?;
    let place = match std::env::var_os("DATABASE_URL") {
        Some(_) => "a temporary database on the server of DATABASE_URL",
        None => "a private server",
    };
    narrator.say(&format!(
        "Bugle on PostgreSQL {version} ({place}, removed when the demo ends)."
    ));
    let config = worker_config(stage);
    for name in WORKERS {
        stage.start_worker(name, &config)?;
    }
    narrator
        .wait("select count(*) from bugle.workers where state = 'alive'", "2")
        .await?;
    narrator.say("Two worker processes, anna and bert, serve the queue \"default\". Each runs up to 4 jobs at once.");
    Ok(())
}

async fn jobs_are_rows(narrator: &mut Narrator, app: &Client) -> Result<()> {
    narrator.chapter("A job is a row, enqueued in the application's transaction");
    let committed = r#"
begin;
insert into shop.orders (item) values ('tea');
insert into bugle.jobs (command, payload) values
  ('book_stock', '{"item": "tea"}'),
  ('send_receipt', '{"item": "tea", "to": "ada@example.org"}');
commit;"#;
    narrator.show_sql(committed);
    run(app, committed).await?;
    narrator.say("\n  A transaction that is rolled back, with its job:\n");
    let rolled_back = r#"
begin;
insert into shop.orders (item) values ('vase');
insert into bugle.jobs (command, payload) values ('send_receipt', '{"item": "vase"}');
rollback;"#;
    narrator.show_sql(rolled_back);
    run(app, rolled_back).await?;
    narrator.say("");
    let jobs = "select count(*) from bugle.jobs where payload ->> 'item' =";
    let (tea, vase) = (
        narrator.ask(&format!("{jobs} 'tea'")).await?,
        narrator.ask(&format!("{jobs} 'vase'")).await?,
    );
    narrator.check("each committed job is enqueued exactly once", "2", &tea)?;
    narrator.check("the job of the rolled-back order does not exist", "0", &vase)
}

async fn they_run_at_once(narrator: &mut Narrator, owner: &Client) -> Result<()> {
    narrator.chapter("Jobs start within milliseconds: the commit wakes an idle worker");
    narrator
        .wait("select count(*) from bugle.jobs where state = 'completed'", "2")
        .await?;
    narrator
        .show(
            "select id, command, state, result,\n  \
             round(extract(epoch from started_at - created_at) * 1000, 1) as pickup_ms,\n  \
             round(extract(epoch from finished_at - started_at) * 1000, 1) as run_ms\n\
             from bugle.jobs\norder by id;",
        )
        .await?;
    narrator.say("");
    let slowest = "select round(extract(epoch from max(started_at - created_at)) * 1000, 1) from bugle.jobs";
    let slowest: f64 = narrator.ask(slowest).await?.parse()?;
    narrator.check(
        &format!("every job was picked up in less than a second, the slowest after {slowest} ms"),
        true,
        slowest < 1000.0,
    )?;
    let pieces = value(owner, "select pieces from shop.stock where item = 'tea'").await?;
    narrator.check(
        "book_stock ran in the same transaction as the job's completion: 9 of 10 pieces are left",
        "9",
        &pieces,
    )
}

async fn failures_are_retried(narrator: &mut Narrator, app: &Client) -> Result<()> {
    narrator.chapter("A failed attempt is retried");
    let sql =
        r#"insert into bugle.jobs (command, payload, retry_policy) values ('charge_card', '{"cents": 420}', 'quick');"#;
    let id = enqueue(narrator, app, sql).await?;
    narrator
        .wait(&format!("select state from bugle.jobs where id = {id}"), "completed")
        .await?;
    narrator
        .show(&format!(
            "select attempt, code, error from bugle.attempts where job = {id};"
        ))
        .await?;
    narrator.say("");
    narrator
        .show(&format!(
            "select id, command, state, attempt, result from bugle.jobs where id = {id};"
        ))
        .await?;
    narrator.say("");
    let attempt = narrator
        .ask(&format!("select attempt from bugle.jobs where id = {id}"))
        .await?;
    narrator.check("the second attempt completed the job", "2", &attempt)?;
    let error = narrator
        .ask(&format!("select error from bugle.attempts where job = {id}"))
        .await?;
    let said = error.contains("the bank does not respond");
    narrator.check("the error of the first attempt is kept", true, said)
}

async fn some_fail_for_good(narrator: &mut Narrator, app: &Client) -> Result<()> {
    narrator.chapter("A job that fails for good becomes a dead letter, with its reason");
    let refused = "insert into bugle.jobs (command) values ('print_label');";
    let refused = enqueue(narrator, app, refused).await?;
    let exhausted = "insert into bugle.jobs (command, max_attempts) values ('charge_card', 1);";
    let exhausted = enqueue(narrator, app, exhausted).await?;
    narrator.wait("select count(*) from bugle.dead_letters", "2").await?;
    narrator
        .show("select id, command, reason, attempt, last_error, worker_name from bugle.dead_letters order by id;")
        .await?;
    narrator.say("");
    let reason = narrator
        .ask(&format!("select reason from bugle.dead_letters where id = {refused}"))
        .await?;
    narrator.check("exit code 65 means \"do not retry\"", "not_retryable", &reason)?;
    let reason = narrator
        .ask(&format!("select reason from bugle.dead_letters where id = {exhausted}"))
        .await?;
    narrator.check(
        "a job is not retried after its last attempt",
        "attempts_exhausted",
        &reason,
    )
}

async fn some_wait_for_their_time(narrator: &mut Narrator, app: &Client) -> Result<()> {
    narrator.chapter("A job can be scheduled for later");
    let sql = "insert into bugle.jobs (command, run_at) values ('send_receipt', now() + interval '1 second');";
    let id = enqueue(narrator, app, sql).await?;
    let state = narrator
        .ask(&format!("select state from bugle.jobs where id = {id}"))
        .await?;
    narrator.check("until it is due, the job is scheduled", "scheduled", &state)?;
    narrator
        .wait(&format!("select state from bugle.jobs where id = {id}"), "completed")
        .await?;
    narrator
        .show(&format!(
            "select id, state, started_at - created_at as waited, started_at - run_at as late\n\
             from bugle.jobs where id = {id};"
        ))
        .await?;
    narrator.say("");
    let in_time = format!("select started_at - run_at between '0' and '1 second' from bugle.jobs where id = {id}");
    let in_time = narrator.ask(&in_time).await?;
    narrator.check(
        "it did not start before it was due, and less than a second after",
        "t",
        &in_time,
    )
}

/// Returns the surviving worker.
async fn a_worker_is_killed(stage: &mut Stage, narrator: &mut Narrator, app: &Client) -> Result<&'static str> {
    narrator.chapter("A worker is killed; its jobs are rescued");
    let sql = "insert into bugle.jobs (command) select 'bake' from generate_series(1, 8);";
    narrator.show_sql(sql);
    run(app, sql).await?;
    narrator.say("");
    narrator
        .wait(
            "select count(*) > 4 from bugle.running_jobs where command = 'bake'",
            "t",
        )
        .await?;
    narrator
        .show("select worker_name, count(*) as running from bugle.running_jobs group by worker_name order by 1;")
        .await?;
    let [victim, survivor] = WORKERS;

    let process = stage.kill_worker(victim)?;
    let killed = std::time::Instant::now();
    narrator.say(&format!(
        "\n  kill -9 {process}  (worker {victim}, while its jobs are running)\n"
    ));

    narrator
        .wait(
            "select count(*) from bugle.jobs where command = 'bake' and state = 'completed'",
            "8",
        )
        .await?;
    let took = killed.elapsed().as_secs_f64();
    narrator
        .show(
            "select j.id, j.state, j.attempt, j.crashes, w.name as finished_by, a.error as first_attempt\n\
             from bugle.jobs j\n  join bugle.workers w on w.id = j.worker\n  \
             left join bugle.attempts a on a.job = j.id\n\
             where j.command = 'bake'\norder by j.id;",
        )
        .await?;
    narrator.say("");
    narrator.check(
        &format!("all 8 are completed, {took:.1} s after the kill"),
        true,
        took < 10.0,
    )?;
    let rescued = "select count(*) > 0 from bugle.attempts where code = 'worker_lost'";
    let rescued = narrator.ask(rescued).await?;
    narrator.check("some were running on the killed worker", "t", &rescued)?;
    let by = format!(
        "select bool_and(w.name = '{survivor}' and j.attempt = 2) from bugle.jobs j \
         join bugle.workers w on w.id = j.worker where j.crashes > 0"
    );
    let by = narrator.ask(&by).await?;
    narrator.check(&format!("{survivor} ran each of them again"), "t", &by)?;
    Ok(survivor)
}

async fn everything_can_be_read_back(narrator: &mut Narrator) -> Result<()> {
    narrator.chapter("Everything is visible with SELECT");
    narrator
        .show(
            "select j.id, j.command, j.state, j.attempt, j.reason, w.name as worker\n\
             from bugle.jobs j\n  left join bugle.workers w on w.id = j.worker\norder by j.id;",
        )
        .await?;
    narrator.say("");
    narrator
        .show("select job, attempt, code, error from bugle.attempts order by job, attempt;")
        .await?;
    narrator.say("");
    let states = "select string_agg(n || ' ' || state, ', ' order by state) \
                  from (select state, count(*) as n from bugle.jobs group by state) s";
    let states = narrator.ask(states).await?;
    narrator.check(
        "12 jobs are completed, 2 have failed, none are lost",
        "12 completed, 2 failed",
        &states,
    )?;
    let queues = "select ready + running + scheduled + retrying from bugle.queue_stats where queue = 'default'";
    let open = narrator.ask(queues).await?;
    narrator.check("the queue is empty", "0", &open)
}

/// Print an INSERT of one job, run it, and return the job's id.
async fn enqueue(narrator: &Narrator, app: &Client, sql: &str) -> Result<i64> {
    narrator.show_sql(sql);
    narrator.say("");
    let returning = format!("{} returning id", sql.trim_end_matches(';'));
    value(app, &returning).await?.parse().context("an id is a number")
}
