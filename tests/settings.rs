//! Settings that come with a role or a database reach every session. None of them may change what Bugle does.

mod common;

use bugle::{Context, Failure, Registry};
use common::{Database, RunningWorker, connect, enqueue, execute, query_value, side_by_side, wait_until};
use serde_json::Value;
use tokio_postgres::Client;

/// What a role or a database may carry, each line at once. What a version of Postgres does not know is left out there.
const SETTINGS: &[&[(&str, &str)]] = &[
    &[("default_transaction_read_only", "on")],
    &[("default_transaction_isolation", "serializable")],
    &[
        ("default_transaction_isolation", "repeatable read"),
        ("default_transaction_deferrable", "on"),
    ],
    // long enough to connect and to pin them on a busy machine
    &[("statement_timeout", "20s"), ("idle_session_timeout", "20s")],
    &[
        ("lock_timeout", "20s"),
        ("idle_in_transaction_session_timeout", "20s"),
        ("transaction_timeout", "20s"),
    ],
    &[("exit_on_error", "on"), ("row_security", "off")],
    &[("search_path", "")],
    &[("search_path", "traps, pg_catalog")],
    &[
        ("DateStyle", "German, DMY"),
        ("IntervalStyle", "sql_standard"),
        ("TimeZone", "Pacific/Kiritimati"),
    ],
    &[
        ("DateStyle", "SQL, DMY"),
        ("IntervalStyle", "iso_8601"),
        ("TimeZone", "America/St_Johns"),
    ],
    &[
        ("bytea_output", "escape"),
        ("extra_float_digits", "-15"),
        ("array_nulls", "off"),
        ("xmloption", "document"),
    ],
    &[("client_encoding", "LATIN1"), ("client_min_messages", "debug5")],
    &[
        ("standard_conforming_strings", "off"),
        ("backslash_quote", "on"),
        ("quote_all_identifiers", "on"),
    ],
    &[("transform_null_equals", "on"), ("check_function_bodies", "off")],
    &[("restrict_nonsystem_relation_kind", "view, foreign-table")],
    &[
        ("default_table_access_method", "heap"),
        ("default_toast_compression", "pglz"),
        ("synchronous_commit", "off"),
        ("work_mem", "64kB"),
        ("temp_buffers", "800kB"),
        ("maintenance_work_mem", "1MB"),
        ("lc_numeric", "C"),
        ("log_statement", "all"),
        ("track_functions", "all"),
        ("stats_fetch_consistency", "snapshot"),
    ],
    &[
        ("jit_above_cost", "0"),
        ("plan_cache_mode", "force_generic_plan"),
        ("constraint_exclusion", "on"),
    ],
    &[
        ("plan_cache_mode", "force_custom_plan"),
        ("enable_partition_pruning", "off"),
        ("cursor_tuple_fraction", "1"),
    ],
    &[
        ("enable_indexscan", "off"),
        ("enable_nestloop", "off"),
        ("geqo_threshold", "2"),
    ],
    &[
        ("enable_seqscan", "off"),
        ("enable_hashjoin", "off"),
        ("from_collapse_limit", "1"),
        ("join_collapse_limit", "1"),
    ],
    &[("debug_parallel_query", "regress"), ("force_parallel_mode", "regress")],
    &[
        ("max_parallel_workers_per_gather", "0"),
        ("client_connection_check_interval", "10ms"),
        ("tcp_user_timeout", "1"),
    ],
];

#[tokio::test(flavor = "multi_thread")]
async fn no_setting_of_a_role_or_a_database_changes_what_becomes_of_jobs() {
    let lives = SETTINGS.iter().map(|settings| life_under(settings));
    let known: usize = side_by_side(lives, 4).await.into_iter().sum();
    assert!(known >= 40, "this server knows only {known} of them");
}

/// The life of a few jobs under settings. How many of them this version of Postgres knows.
async fn life_under(settings: &'static [(&'static str, &'static str)]) -> usize {
    let database = Database::new().await;
    let owner = database.owner().await;
    // functions that would be found before the built-in ones
    let traps = "create schema traps; grant usage on schema traps to public; \
        create function traps.now() returns timestamptz language plpgsql as $$ begin raise 'a trap'; end $$; \
        create function traps.clock_timestamp() returns timestamptz language plpgsql as $$ begin raise 'a trap'; end \
        $$; \
        create function traps.coalesce_(text) returns text language sql as 'select null::text'; \
        update bugle.retry_policies set delay = '20 milliseconds', jitter = 0 where name = 'fixed'";
    execute(&owner, traps).await;
    // what the worker's sessions have, as they register, claim and complete
    let seen = "create table public.seen (name text, setting text); \
        create function public.see() returns trigger language plpgsql security definer as $$ begin \
          insert into public.seen select s.name, s.setting from pg_catalog.pg_settings s where s.name like '%timeout'; \
          return null; end $$; \
        create trigger see after insert or update on bugle.registrations execute function public.see(); \
        create trigger see after update or delete on bugle.jobs_live execute function public.see()";
    execute(&owner, seen).await;
    let logins = ["worker", "enqueuer", "viewer", "operator"];
    let logins = logins.map(|role| format!("role {}", database.config(role).get_user().unwrap()));
    let mut known = 0;
    for whose in logins.into_iter().chain([format!("database {}", database.name)]) {
        known = set(&owner, &whose, settings).await;
    }

    let worker = RunningWorker::start(database.settings(&[("default", 4)]), registry());
    // by commands of ours, and by the application's own session, whose timeouts are its own
    bugle(
        &database,
        "operator",
        &["schedules", "add", "often", "--every=1 second", "--command=noop"],
    )
    .await;
    let retried: i64 = bugle(&database, "enqueuer", &["enqueue", "flaky", "--retry-policy=fixed"])
        .await
        .parse()
        .unwrap();
    let application = connect(&database.config("enqueuer")).await;
    let own = "set statement_timeout = 0; set lock_timeout = 0; set idle_session_timeout = 0; \
        set idle_in_transaction_session_timeout = 0; set default_transaction_read_only = off; set exit_on_error = off; \
        set search_path = public";
    application
        .batch_execute(own)
        .await
        .unwrap_or_else(|error| panic!("{settings:?}: {error:?}"));
    enqueue(&application, "noop").await;
    bugle(
        &database,
        "enqueuer",
        &["enqueue", "in_transaction", "--run-at=2026-01-01 00:00:00+00"],
    )
    .await;
    bugle(
        &database,
        "enqueuer",
        &["enqueue", "chain", "--step=noop", "--step=noop"],
    )
    .await;

    let done = format!(
        "select count(distinct command) filter (where state = 'completed') >= 4 \
           and bool_or(id = {retried} and attempt = 2 and state = 'completed') \
           and bool_or(headers ? 'schedule' or command = 'noop') \
           and exists (select from bugle.schedules s where s.last_job is not null and s.last_error is null) \
         from bugle.jobs where state <> 'failed'"
    );
    wait_until(&owner, &done).await;
    for arguments in [
        &["jobs", "list"][..],
        &["jobs", "show", &retried.to_string()],
        &["jobs", "explain", &retried.to_string()],
        &["queues"],
        &["workers"],
        &["stats"],
        &["policies"],
        &["migrate", "status"],
    ] {
        bugle(&database, "viewer", arguments).await;
    }
    bugle(&database, "operator", &["schedules", "pause", "often"]).await;
    let failed = "select coalesce(string_agg(concat_ws(' ', id, command, reason, last_error), '; '), '') from \
        bugle.jobs where state = 'failed'";
    let failed: String = query_value(&owner, failed).await;
    assert_eq!(failed, "", "{settings:?}");
    worker.stop().await;
    let timeouts = "select count(*), coalesce(string_agg(distinct concat_ws(' = ', s.name, s.setting), ', ') \
          filter (where s.name in ('statement_timeout', 'lock_timeout', 'transaction_timeout', 'idle_session_timeout', \
            'idle_in_transaction_session_timeout') and s.setting <> '0'), '') \
        from public.seen s";
    let timeouts = owner.query_one(timeouts, &[]).await.unwrap();
    assert!(timeouts.get::<_, i64>(0) > 0, "its sessions were seen");
    assert_eq!(timeouts.get::<_, &str>(1), "", "{settings:?}");
    known
}

/// Give a role or a database these settings. How many of them the server knows.
async fn set(owner: &Client, whose: &str, settings: &[(&str, &str)]) -> usize {
    let mut known = 0;
    for (name, value) in settings {
        let exists = "select exists (select from pg_settings where name = $1)";
        if !owner.query_one(exists, &[name]).await.unwrap().get::<_, bool>(0) {
            continue;
        }
        // several schemas are a list, and not one with a comma in its name
        let value = match *name {
            "search_path" if !value.is_empty() => (*value).to_owned(),
            _ => format!("'{value}'"),
        };
        let set = format!("alter {whose} set {name} = {value}");
        let done = owner.batch_execute(&set).await;
        done.unwrap_or_else(|error| panic!("{set}: {error:?}"));
        known += 1;
    }
    known
}

fn registry() -> Registry {
    common::noop()
        .on("flaky", async |context: Context, _: Value| match context.attempt() {
            1 => Err(Failure::new("the first time")),
            _ => Ok(()),
        })
        .on("in_transaction", async |context: Context, _: Value| {
            let mut connection = context.database().await?;
            let transaction = connection.transaction().await?;
            let timeouts = "select string_agg(s.name, ', ') from pg_catalog.pg_settings s \
                where s.name in ('statement_timeout', 'lock_timeout', 'transaction_timeout', 'idle_session_timeout', \
                  'idle_in_transaction_session_timeout') and s.setting <> '0'";
            if let Some(left) = transaction.query_one(timeouts, &[]).await?.get::<_, Option<String>>(0) {
                return Err(Failure::new(format!("not pinned: {left}")).not_retryable());
            }
            context.complete_in(&transaction, ()).await?;
            transaction.commit().await?;
            Ok::<_, Failure>(bugle::Outcome::Settled)
        })
}

/// What a command of ours printed; it must go well.
async fn bugle(database: &Database, role: &str, arguments: &[&str]) -> String {
    common::cli::bugle(database, role, arguments).await.text().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_login_has_triggers_switched_off_refuses_and_says_why() {
    let database = Database::new().await;
    let login = database.config("worker").get_user().unwrap().to_owned();
    let set = format!("alter role {login} set session_replication_role = replica");
    database.owner().await.batch_execute(&set).await.unwrap();

    let run = bugle::Worker::new(database.settings(&[("default", 1)]), common::noop()).run(bugle::Shutdown::new());
    let error = tokio::time::timeout(common::DEADLINE, run)
        .await
        .expect("at once")
        .expect_err("it refuses");

    assert!(
        error.to_string().contains("session_replication_role = replica"),
        "{error}"
    );
    assert!(error.hint().is_some_and(|hint| hint.contains("reset")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn migrate_works_under_all_of_these_settings_at_once() {
    let database = Database::empty().await;
    let owner = database.owner().await;
    for settings in SETTINGS {
        set(&owner, &format!("database {}", database.name), settings).await;
    }

    for _ in 0..2 {
        bugle(&database, "owner", &["migrate"]).await;
    }

    assert_eq!(bugle(&database, "owner", &["migrate", "status"]).await, "up to date");
}

#[tokio::test(flavor = "multi_thread")]
async fn migrate_refuses_a_database_that_is_not_utf8_and_says_what_to_do() {
    let database = Database::empty().await;
    let owner = database.owner().await;
    for encoding in ["SQL_ASCII", "LATIN1"] {
        let name = format!("{}_{}", database.name, encoding.to_lowercase());
        let create =
            format!("create database {name} encoding '{encoding}' lc_collate 'C' lc_ctype 'C' template template0");
        execute(&owner, &create).await;
        let mut config = database.config("owner");
        config.dbname(&name);

        let error = bugle::schema::migrate(&config).await.expect_err("it refuses");

        let left = connect(&config).await;
        let schemas = "select count(*) from pg_namespace where nspname = 'bugle'";
        let left: i64 = query_value(&left, schemas).await;
        execute(&owner, &format!("drop database {name} with (force)")).await;
        assert!(error.to_string().contains(encoding), "{error}");
        assert!(
            error.hint().is_some_and(|hint| hint.contains("encoding 'UTF8'")),
            "{error}"
        );
        assert_eq!(left, 0, "nothing was left behind");
    }
}
