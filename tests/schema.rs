//! Migrating: at once, again, by a newer or a weaker hand; and the rules that hold for the schema as a whole.

mod common;

use std::collections::BTreeSet;
use std::process::Command;

use bugle::private_postgres::{Options, PrivatePostgres};
use bugle::schema::{self, Migrated, Status};
use bugle::{Code, State};
use common::{BUGLE, Database, connect, execute, query_value, wait_until};
use futures_util::future::join_all;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls};

#[tokio::test(flavor = "multi_thread")]
async fn ten_sessions_migrate_an_empty_database_at_once() {
    let database = Database::empty().await;
    let config = database.config("owner");

    let found = join_all((0..10).map(|_| schema::migrate(&config))).await;

    let found: Vec<Migrated> = found.into_iter().map(|status| status.expect("migrates")).collect();
    assert_eq!(found.iter().filter(|status| **status == Migrated::Created).count(), 1);
    assert_eq!(found.iter().filter(|status| **status == Migrated::Unchanged).count(), 9);
    assert_eq!(schema::check(&config).await.unwrap(), Status::UpToDate);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_processes_migrate_an_empty_database_at_once() {
    let database = Database::empty().await;

    let processes: Vec<_> = (0..10)
        .map(|_| {
            Command::new(BUGLE)
                .args(["migrate", "--database-url", &database.url("owner")])
                .spawn()
                .expect("bugle runs")
        })
        .collect();

    for mut process in processes {
        assert!(process.wait().unwrap().success());
    }
    let status = schema::check(&database.config("owner")).await.unwrap();
    assert_eq!(status, Status::UpToDate);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_advisory_lock_of_a_stranger_holds_up_a_migration() {
    let database = Database::empty().await;
    let (owner, stranger) = (database.owner().await, database.owner().await);
    let login = format!("{}_viewer", database.name);
    let create = format!("create role {login} login; grant {login} to current_user; set role {login}");
    execute(&stranger, &create).await;
    // a stranger holds every advisory lock near those of the schema
    let hold = "select count(pg_advisory_lock(7126490900 + n)) from generate_series(0, 200) n";
    execute(&stranger, hold).await;

    let found = tokio::time::timeout(common::DEADLINE, schema::migrate(&database.config("owner"))).await;

    assert_eq!(found.expect("it ends").expect("migrates"), Migrated::Created);
    common::enqueue(&owner, "noop").await;
}

#[tokio::test]
async fn a_migration_that_fails_leaves_nothing() {
    let database = Database::empty().await;
    let (owner, config) = (database.owner().await, database.config("owner"));
    execute(
        &owner,
        "create function public.fail() returns event_trigger language plpgsql as 'begin raise ''no views \
        today''; end'; \
             create event trigger fail on ddl_command_end when tag in ('CREATE VIEW') execute function \
             public.fail()",
    )
    .await;

    let failed = schema::migrate(&config).await.expect_err("it fails");

    assert!(
        failed.to_string().contains("sql/") && failed.to_string().contains("no views today"),
        "{failed}"
    );
    let left = "select count(*) from pg_namespace where nspname = 'bugle'";
    let left: i64 = query_value(&owner, left).await;
    assert_eq!(left, 0);
    execute(&owner, "drop event trigger fail").await;
    assert_eq!(schema::migrate(&config).await.expect("migrates"), Migrated::Created);
}

#[tokio::test]
async fn a_schema_of_another_program_is_left_alone() {
    for content in [
        "create table bugle.jobs (id integer)",
        "create table bugle.migrations (id integer)",
        "create function bugle.play() returns text language sql as 'select null::text'",
        "create type bugle.mood as enum ('sad')",
        "create table bugle.a (); create table bugle.b (); create table bugle.c (); create table bugle.d (); \
         create table bugle.e (); create table bugle.jobs (id integer)",
    ] {
        let database = Database::empty().await;
        let (owner, config) = (database.owner().await, database.config("owner"));
        let create = format!("create schema bugle; {content}");
        execute(&owner, &create).await;
        let things = "select count(*) from pg_depend where refobjid = 'bugle'::regnamespace";
        let before: i64 = query_value(&owner, things).await;

        let refused = schema::migrate(&config).await.expect_err("it is refused");
        let checked = schema::check(&config).await.expect_err("it is refused");

        assert!(refused.to_string().contains("belongs to something else"), "{refused}");
        assert!(refused.hint().expect("a hint").contains("rename"), "{refused}");
        assert_eq!(checked.to_string(), refused.to_string());
        let after: i64 = query_value(&owner, things).await;
        assert_eq!(after, before, "{content}");
    }
}

#[tokio::test]
async fn an_empty_schema_of_ones_own_is_enough_to_migrate() {
    let database = Database::empty().await;
    let owner = database.owner().await;
    let login = format!("{}_operator", database.name);
    let create = format!("create role {login} login; create schema bugle authorization {login}");
    execute(&owner, &create).await;
    let mut config = database.config("owner");
    config.user(&login);

    assert_eq!(schema::migrate(&config).await.expect("migrates"), Migrated::Created);

    assert_eq!(schema::check(&config).await.expect("asks"), Status::UpToDate);
}

#[tokio::test]
async fn migrating_again_changes_nothing() {
    let database = Database::new().await;
    let before = catalog(&database).await;

    let found = schema::migrate(&database.config("owner")).await.unwrap();

    assert_eq!(found, Migrated::Unchanged);
    assert_same(&before, &catalog(&database).await);
}

const OF_ANOTHER_VERSION: &str = "
    create or replace function bugle.protocol() returns integer language sql as 'select 99';
    drop view bugle.dead_letters;
    update bugle.schema_version set checksum = 'of another version'";

#[tokio::test]
async fn functions_that_changed_are_put_right_and_jobs_stay() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let before = catalog(&database).await;
    let id = common::enqueue(&owner, "noop").await;
    execute(&owner, OF_ANOTHER_VERSION).await;

    let found = schema::migrate(&database.config("owner")).await.unwrap();

    assert_eq!(found, Migrated::Upgraded);
    assert_same(&before, &catalog(&database).await);
    common::wait_for_state(&owner, id, "ready").await;
}

#[tokio::test]
async fn migrating_waits_for_a_lock_only_in_short_turns() {
    let database = Database::new().await;
    let (owner, mut other) = (database.owner().await, database.owner().await);
    execute(
        &owner,
        "update bugle.schema_version set checksum = 'of an earlier release'",
    )
    .await;
    for table in ["bugle.migrations", "bugle.jobs_live"] {
        let blocking = other.transaction().await.unwrap();
        let lock = format!("lock table {table} in access exclusive mode");
        blocking.batch_execute(&lock).await.unwrap();
        let config = database.config("owner");
        let migrating = tokio::spawn(async move { schema::migrate(&config).await });
        let waits = format!(
            "exists (select from pg_locks l where not l.granted and l.relation = '{table}'::regclass and l.database = \
             (select d.oid from pg_database d where d.datname = current_database()))"
        );

        for _ in 0..2 {
            wait_until(&owner, &format!("select {waits}")).await;
            wait_until(&owner, &format!("select not {waits}")).await;
        }
        blocking.rollback().await.unwrap();

        assert_eq!(migrating.await.unwrap().unwrap(), Migrated::Upgraded);
        execute(
            &owner,
            "update bugle.schema_version set checksum = 'of an earlier release'",
        )
        .await;
    }
}

#[tokio::test]
async fn a_newer_schema_is_left_alone() {
    let database = Database::new().await;
    let (owner, config) = (database.owner().await, database.config("owner"));
    let newer = format!(
        "update bugle.schema_version set revision = {}, checksum = 'newer'",
        schema::REVISION + 1
    );
    execute(&owner, &newer).await;
    let before = catalog(&database).await;

    let refused = schema::migrate(&config).await.expect_err("it is refused");

    assert!(refused.to_string().contains("newer"), "{refused}");
    assert!(refused.hint().is_some());
    assert_eq!(schema::check(&config).await.unwrap(), Status::Ahead);
    assert_same(&before, &catalog(&database).await);
}

#[tokio::test]
async fn the_script_makes_the_same_schema_in_a_transaction_and_without_one() {
    let migrated = Database::empty().await;
    schema::migrate(&migrated.config("owner")).await.expect("migrates");
    let script = schema::script(0).unwrap();
    for (begin, end) in [("", ""), ("begin", "commit")] {
        let scripted = Database::empty().await;
        let owner = scripted.owner().await;

        execute(&owner, begin).await;
        execute(&owner, &script).await;
        // as a tool does in the same transaction, with its own table in its own path
        execute(&owner, "create table applied (script text)").await;
        execute(&owner, end).await;

        assert_same(&catalog(&migrated).await, &catalog(&scripted).await);
        let found = schema::migrate(&scripted.config("owner")).await.unwrap();
        assert_eq!(found, Migrated::Unchanged);
        let place: String = query_value(
            &owner,
            "select relnamespace::regnamespace::text from pg_class where oid = 'applied'::regclass",
        )
        .await;
        assert_eq!(place, "public");
        let days: i64 = query_value(&owner, "select count(*) from bugle.history_days").await;
        assert_eq!(days, 6);
        common::enqueue(&owner, "noop").await;
    }
}

#[tokio::test]
async fn the_script_of_an_upgrade_does_what_migrating_does_while_jobs_are_there() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let before = catalog(&database).await;
    let id = common::enqueue(&owner, "noop").await;
    execute(&owner, OF_ANOTHER_VERSION).await;
    let settings = "select current_setting('search_path') || current_setting('lock_timeout')";
    let found: String = query_value(&owner, settings).await;

    execute(&owner, "begin").await;
    execute(&owner, &schema::script(schema::REVISION).unwrap()).await;
    let left: String = query_value(&owner, settings).await;
    execute(&owner, "commit").await;

    assert_eq!(left, found);
    assert_same(&before, &catalog(&database).await);
    assert_eq!(
        schema::migrate(&database.config("owner")).await.unwrap(),
        Migrated::Unchanged
    );
    common::wait_for_state(&owner, id, "ready").await;
}

#[tokio::test]
async fn a_script_for_another_revision_changes_nothing_and_says_which_one_fits() {
    let (migrated, empty) = (Database::new().await, Database::empty().await);
    let refused = async |database: &Database, script: &str| {
        let owner = database.owner().await;
        let things = "select format('%s %s %s', (select count(*) from pg_class), (select count(*) from pg_proc), \
            (select count(*) from pg_namespace))";
        let before: String = query_value(&owner, things).await;
        let error = owner.batch_execute(script).await.unwrap_err();
        assert_eq!(query_value::<String>(&owner, things).await, before);
        let error = error.as_db_error().expect("of the server").clone();
        format!("{}\n{}", error.message(), error.hint().unwrap_or_default())
    };
    let (create, upgrade) = (schema::script(0).unwrap(), schema::script(schema::REVISION).unwrap());

    let there = refused(&migrated, &create).await;
    let missing = refused(&empty, &upgrade).await;
    execute(&migrated.owner().await, "update bugle.schema_version set revision = 41").await;
    let other = refused(&migrated, &upgrade).await;

    assert!(
        there.contains("not empty") && there.contains("--from REVISION"),
        "{there}"
    );
    assert!(
        missing.contains("no Bugle schema") && missing.contains("--from 0"),
        "{missing}"
    );
    assert!(
        other.contains("has revision 41") && other.contains("--from 41"),
        "{other}"
    );
}

#[tokio::test]
async fn a_script_that_fails_leaves_nothing_and_names_the_file() {
    let database = Database::empty().await;
    let owner = database.owner().await;
    execute(
        &owner,
        "create function public.fail() returns event_trigger language plpgsql as 'begin raise ''no views today''; \
         end'; create event trigger fail on ddl_command_end when tag in ('CREATE VIEW') execute function public.fail()",
    )
    .await;

    let failed = owner.batch_execute(&schema::script(0).unwrap()).await.unwrap_err();

    let failed = failed.as_db_error().expect("of the server");
    assert!(failed.message().starts_with("no views today (sql/"), "{failed:?}");
    assert_eq!(failed.hint(), Some("Nothing was changed."));
    let left: i64 = query_value(&owner, "select count(*) from pg_namespace where nspname = 'bugle'").await;
    assert_eq!(left, 0);
}

#[test]
fn a_script_from_a_revision_that_is_not_known_is_refused_on_the_shell() {
    let newer = (schema::REVISION + 1).to_string();
    for unknown in ["-1", &newer] {
        let run = Command::new(BUGLE)
            .args(["migrate", "sql", "--from", unknown])
            .output()
            .expect("bugle runs");

        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!((run.status.code(), run.stdout.len()), (Some(1), 0), "{said}");
        assert!(said.contains(unknown) && said.contains("hint: "), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_may_not_create_roles_can_migrate() {
    let options = Options::new().bugle_bin(BUGLE);
    // a server where nobody has created them yet
    let server = tokio::task::spawn_blocking(move || PrivatePostgres::start(&options))
        .await
        .unwrap()
        .expect("a server");
    let superuser: Config = server.url("postgres").parse().unwrap();
    let (migrated, scripted) = (
        Database::empty_on(superuser.clone()).await,
        Database::empty_on(superuser.clone()).await,
    );
    let owner = connect(&superuser).await;
    execute(
        &owner,
        &format!(
            "create role app login; grant create on database {}, {} to app",
            migrated.name, scripted.name
        ),
    )
    .await;
    let as_app = |database: &Database| {
        let mut config = database.config("owner");
        config.user("app");
        config
    };

    let found = schema::migrate(&as_app(&migrated)).await.expect("migrates");
    let notices = run_with_notices(&as_app(&scripted), &schema::script(0).unwrap()).await;

    assert_eq!(found, Migrated::Created);
    assert_eq!(schema::migrate(&as_app(&migrated)).await.unwrap(), Migrated::Unchanged);
    for role in [
        "bugle_enqueuer",
        "bugle_worker",
        "bugle_observer",
        "bugle_viewer",
        "bugle_operator",
    ] {
        let told = notices
            .iter()
            .any(|notice| notice.contains(role) && notice.contains("app"));
        assert!(told, "no notice about {role} in {notices:?}");
    }
    common::enqueue(&connect(&as_app(&migrated)).await, "noop").await;

    // what the notice says: create them, and migrate again
    execute(
        &owner,
        "create role bugle_enqueuer; create role bugle_worker; create role bugle_observer; create role bugle_viewer; \
         create role bugle_operator",
    )
    .await;
    schema::migrate(&as_app(&migrated)).await.expect("migrates again");
    migrated.create_logins().await;
    common::enqueue(&migrated.connect("enqueuer").await, "noop").await;
    assert_eq!(schema::migrate(&as_app(&migrated)).await.unwrap(), Migrated::Unchanged);
}

async fn run_with_notices(config: &Config, sql: &str) -> Vec<String> {
    let (client, mut connection) = config.connect(NoTls).await.unwrap();
    let messages = tokio::spawn(async move {
        let mut notices = vec![];
        while let Some(Ok(message)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notice(notice) = message {
                notices.push(notice.message().to_owned());
            }
        }
        notices
    });
    execute(&client, sql).await;
    drop(client);
    messages.await.unwrap()
}

#[tokio::test]
async fn both_sides_know_the_same_states() {
    let owner = Database::new().await;
    let owner = owner.owner().await;
    let states_in = async |definition: &str| -> Vec<String> {
        let query = format!("select (regexp_matches({definition}, '''([a-z]+)''', 'g'))[1]");
        let rows = owner.query(&query, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    };
    let known = |live: bool| State::ALL.into_iter().filter(move |state| live != state.is_final());

    let live =
        states_in("(select pg_get_expr(relpartbound, oid) from pg_class where oid = 'bugle.jobs_live'::regclass)");
    let ended = states_in(
        "(select string_agg(pg_get_expr(relpartbound, oid), ' ' order by relname = 'jobs_failed') from pg_class \
         where oid in ('bugle.jobs_ended'::regclass, 'bugle.jobs_failed'::regclass))",
    );

    assert_eq!(live.await, known(true).map(State::as_str).collect::<Vec<_>>());
    let mut ended = ended.await;
    let mut finals: Vec<_> = known(false).map(State::as_str).collect();
    ended.sort();
    finals.sort();
    assert_eq!(ended, finals);
}

#[tokio::test]
async fn both_sides_know_the_same_errors() {
    let database = Database::new().await;
    let query = "select distinct (regexp_matches(p.prosrc, 'JB[0-9]{3}', 'g'))[1] \
        from pg_proc p where p.pronamespace = 'bugle'::regnamespace";

    let rows = database.owner().await.query(query, &[]).await.unwrap();

    let raised: BTreeSet<String> = rows.iter().map(|row| row.get(0)).collect();
    let known: BTreeSet<String> = Code::ALL.iter().map(|code| code.sqlstate().to_owned()).collect();
    assert_eq!(raised, known);
    assert!(Code::ALL.is_sorted_by_key(|code| code.sqlstate()), "in their order");
}

#[tokio::test]
async fn functions_with_the_owners_rights_pin_their_path() {
    let database = Database::new().await;
    let query = "select p.oid::regprocedure::text, \
            'search_path=pg_catalog, bugle, pg_temp' = any (coalesce(p.proconfig, '{}')) \
        from pg_proc p where p.pronamespace = 'bugle'::regnamespace and p.prosecdef";

    let rows = database.owner().await.query(query, &[]).await.unwrap();

    assert!(rows.len() > 20);
    for row in rows {
        let name: String = row.get(0);
        assert!(row.get::<_, bool>(1), "{name} does not pin its search_path");
    }
}

/// A function is open to everybody when it is created. `sql/99_grants.sql` closes them all, in the same transaction.
#[tokio::test]
async fn the_public_can_execute_no_function_and_read_no_table() {
    let database = Database::new().await;
    let open = "select p.oid::regprocedure::text from pg_proc p \
        where p.pronamespace = 'bugle'::regnamespace and has_function_privilege('public', p.oid, 'execute') \
        union all \
        select c.oid::regclass::text from pg_class c \
        where c.relnamespace = 'bugle'::regnamespace and c.relkind in ('r', 'p', 'v', 'm') \
          and has_any_column_privilege('public', c.oid, 'select, insert, update, references') \
        union all \
        select 'the schema' where has_schema_privilege('public', 'bugle', 'usage, create')";

    let rows = database.owner().await.query(open, &[]).await.unwrap();

    let open: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(open, Vec::<String>::new());
}

/// How often an index of, or all of, the live table was read in this transaction.
const SCANS: &str = "select pg_stat_get_xact_numscans($1::text::regclass)";

#[tokio::test]
async fn the_engine_enters_a_large_table_by_its_indexes() {
    let database = Database::new().await;
    let owner = database.owner().await;
    // statistics of an empty table, then of a full one
    execute(&owner, "analyze bugle.jobs_live").await;
    execute(
        &owner,
        "insert into bugle.jobs (command, queue, priority, run_at) \
             select 'c' || n % 5, 'q' || n % 3, n % 7, now() + case when n % 2 = 0 then interval '1 day' else '0' end \
             from generate_series(1, 50000) n",
    )
    .await;
    let worker: String = query_value(
        &owner,
        "select format('%s, %L', worker, nonce) from bugle.register('w', 'h', 1, \
        '0', bugle.protocol(), '{q0,q1,q2}', '{9,9,9}', '{c1,c3}')",
    )
    .await;
    let claim = format!(
        "select from bugle.claim({worker}, array[('q0', 9, null, 'awake'), ('q1', 9, null, \
            'awake')]::bugle.queue_request[])"
    );
    execute(
        &owner,
        "select bugle.set_limits('keyed', p_max_running => 1000, p_max_running_per_key => 1, p_max_starts \
        => 1000, p_starts_period => '1 hour');
             insert into bugle.jobs (command, queue, limit_key) select 'c1', 'keyed', 'k' || n % 20 from \
             generate_series(1, 5000) n;
             insert into bugle.jobs (command, queue, order_key) select 'c1', 'ordered', 'k' || n % 20 from \
             generate_series(1, 5000) n;
             insert into bugle.jobs (command, queue, fair_key) select 'c1', 'fair', 'k' || n % 20 from \
             generate_series(1, 5000) n",
    )
    .await;
    let exact = |queue: &str| {
        format!("select from bugle.claim({worker}, array[('{queue}', 90, null, 'awake')]::bugle.queue_request[])")
    };
    let (keyed, ordered, fair) = (exact("keyed"), exact("ordered"), exact("fair"));
    let complete = format!(
        "select from bugle.complete({worker}, array(select (r.id, r.claim, null)::bugle.finished_job from \
            bugle.running_jobs r))"
    );
    let calls = [
        (claim.as_str(), "bugle.jobs_live_claimable"),
        (keyed.as_str(), "bugle.jobs_live_keyed"),
        (keyed.as_str(), "bugle.jobs_live_limited"),
        (keyed.as_str(), "bugle.jobs_live_running"),
        (ordered.as_str(), "bugle.jobs_live_ordered"),
        (fair.as_str(), "bugle.jobs_live_fair"),
        (complete.as_str(), "bugle.jobs_live_pkey"),
        ("select from bugle.promote()", "bugle.jobs_live_due"),
        ("select bugle.expire()", "bugle.jobs_live_deadline"),
        ("select bugle.rescue()", "bugle.jobs_live_running"),
        ("select from bugle.unserved", "bugle.jobs_live_claimable"),
    ];

    for statistics in ["of an empty table", "of a full one"] {
        for (call, index) in calls {
            execute(&owner, "begin").await;
            execute(&owner, call).await;
            let by_index: i64 = owner.query_one(SCANS, &[&index]).await.unwrap().get(0);
            let whole: i64 = owner.query_one(SCANS, &[&"bugle.jobs_live"]).await.unwrap().get(0);
            execute(&owner, "commit").await;

            assert!(
                by_index > 0,
                "{call} does not use {index}, with statistics {statistics}"
            );
            assert_eq!(whole, 0, "{call} reads the whole table, with statistics {statistics}");
        }
        execute(&owner, "analyze bugle.jobs_live").await;
    }
}

/// Everything that makes the schema, a line for each thing.
async fn catalog(database: &Database) -> Vec<String> {
    let owner: Client = database.owner().await;
    let rows = owner.query(include_str!("schema/catalog.sql"), &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

fn assert_same(one: &[String], other: &[String]) {
    assert!(one.len() > 500, "only {} things were found", one.len());
    let (left, right): (BTreeSet<_>, BTreeSet<_>) = (one.iter().collect(), other.iter().collect());
    let only_left: Vec<_> = left.difference(&right).collect();
    let only_right: Vec<_> = right.difference(&left).collect();
    assert!(
        only_left.is_empty() && only_right.is_empty(),
        "only in the first: {only_left:#?}\nonly in the second: {only_right:#?}"
    );
}
