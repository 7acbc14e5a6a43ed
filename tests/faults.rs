//! Faults that no job is to blame for: they cost it neither its result nor an attempt, and are reported once.

mod common;

use bugle::{Context, Failure, Outcome, Registry, Settings};
use common::{Database, RunningWorker, wait_until};
use serde_json::{Value, json};
use tokio_postgres::Client;

async fn query<T: for<'a> tokio_postgres::types::FromSql<'a>>(client: &Client, sql: &str) -> T {
    client.query_one(sql, &[]).await.expect(sql).get(0)
}

/// Every leaf of history that takes jobs which end today or later is dropped or detached.
const BREAK_HISTORY: &str = "
    do $$
    declare
      v_day record;
    begin
      for v_day in select d.kind, d.leaf from bugle.history_days d loop
        if v_day.kind = 'ended' then
          execute format('drop table bugle.%I', v_day.leaf);
        else
          execute format('alter table bugle.jobs_failed detach partition bugle.%I', v_day.leaf);
        end if;
      end loop;
    end
    $$";

/// A registry with an executor of each kind.
fn all_kinds(settings: &Settings) -> Registry {
    let registry = Registry::new()
        .on("plain", async |_: Context, _: Value| Ok(json!("done")))
        .on("first", async |_: Context, _: Value| Ok(json!({"first": 1})))
        .on("hopeless", async |_: Context, _: Value| {
            Err::<(), _>(Failure::new("no").not_retryable())
        })
        .on("own", async |context: Context, _: Value| -> Result<Outcome, Failure> {
            let mut connection = context.database().await?;
            let transaction = connection.transaction().await?;
            context.complete_in(&transaction, json!("done")).await?;
            transaction.commit().await?;
            Ok(Outcome::Settled)
        });
    bugle::builtin::register(registry, &settings.commands).unwrap()
}

fn with_sql(database: &Database) -> Settings {
    let file = "[queues]\ndefault = 10\n[commands.in_sql]\nsql = \"select 'done'::text\"\n";
    Settings {
        commands: bugle::config::Config::from_toml(file).unwrap().commands,
        ..database.settings(&[("default", 10)])
    }
}

const ONE_OF_EACH: &str = "
    insert into bugle.jobs (command) select 'plain' from generate_series(1, 20);
    insert into bugle.jobs (command) values ('hopeless'), ('own'), ('in_sql');
    insert into bugle.jobs (command, steps) values ('chain', array['first', 'plain'])";

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_of_history_that_was_dropped_or_detached_by_hand_costs_no_job_its_result() {
    let database = Database::new().await;
    let owner = database.owner().await;
    owner.batch_execute(BREAK_HISTORY).await.unwrap();
    owner.batch_execute(ONE_OF_EACH).await.unwrap();

    let settings = with_sql(&database);
    let registry = all_kinds(&settings);
    let worker = RunningWorker::start(settings, registry);
    wait_until(&owner, "select count(*) = 0 from bugle.jobs_live").await;

    let ended = "select string_agg(what, ', ' order by what) from (
        select format('%s %s %s%s', count(*), command, state, ' ' || last_error_code) as what
        from bugle.jobs where attempt = 1 group by command, state, last_error_code) ended";
    assert_eq!(
        query::<String>(&owner, ended).await,
        "1 chain completed, 1 hopeless failed, 1 in_sql completed, 1 own completed, 20 plain completed"
    );
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_the_database_refuses_is_repeated_beside_the_others_until_it_is_accepted() {
    let database = Database::new().await;
    let owner = database.owner().await;
    owner
        .batch_execute(
            "create function public.refuse() returns trigger language plpgsql as $$
             begin raise exception 'not today'; end $$;
             create trigger not_today before insert on bugle.jobs_ended for each row
             when (new.payload = '{\"refused\": 1}') execute function public.refuse()",
        )
        .await
        .unwrap();
    owner
        .batch_execute(
            "insert into bugle.jobs (command, payload) select 'plain', case n % 5 when 0 then '{\"refused\": 1}'::jsonb else '1' end
             from generate_series(1, 50) n;
             insert into bugle.jobs (command, payload) values ('own', '{\"refused\": 1}'), ('in_sql', '{\"refused\": 1}');
             insert into bugle.jobs (command, steps, payload) values ('chain', array['first', 'plain'], '{\"refused\": 1}')",
        )
        .await
        .unwrap();

    let settings = with_sql(&database);
    let registry = all_kinds(&settings);
    let worker = RunningWorker::start(settings, registry);
    wait_until(&owner, "select count(*) = 40 from bugle.jobs where state = 'completed'").await;
    assert_eq!(query::<i64>(&owner, "select count(*) from bugle.jobs_live").await, 13);
    owner
        .batch_execute("drop trigger not_today on bugle.jobs_ended")
        .await
        .unwrap();
    wait_until(&owner, "select count(*) = 0 from bugle.jobs_live").await;

    let ended = "select count(*) from bugle.jobs where state = 'completed' and attempt = 1 and last_error is null";
    assert_eq!(query::<i64>(&owner, ended).await, 53);
    assert_eq!(query::<i64>(&owner, "select count(*) from bugle.attempts").await, 0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_result_that_can_never_be_stored_is_a_bad_one() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let registry = Registry::new()
        .on("echo", async |_: Context, result: Value| Ok(result))
        .on("bad", async |_: Context, text: String| {
            // each is JSON to us; only the last can be stored: it has a backslash, and no NUL
            Ok(match text.as_str() {
                "nul" => json!("a\0b"),
                _ => json!("a\\u0000b"),
            })
        });
    owner
        .batch_execute(
            "insert into bugle.jobs (command, payload) select 'echo', '1' from generate_series(1, 30);
             insert into bugle.jobs (command, payload) values ('bad', '\"nul\"'), ('bad', '\"backslash\"');
             insert into bugle.jobs (command, payload) select 'echo', '1' from generate_series(1, 30)",
        )
        .await
        .unwrap();

    let worker = database.worker(&[("default", 100)], registry);
    wait_until(&owner, "select count(*) = 0 from bugle.jobs_live").await;

    let failed = "select string_agg(format('%s %s %s', payload, last_error_code, reason), ', ') from bugle.jobs where state = 'failed'";
    assert_eq!(
        query::<String>(&owner, failed).await,
        "\"nul\" bad_result not_retryable"
    );
    let completed = "select count(*) from bugle.jobs where state = 'completed'";
    assert_eq!(query::<i64>(&owner, completed).await, 61);
    worker.stop().await;
}
