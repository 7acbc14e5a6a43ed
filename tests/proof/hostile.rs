//! A schema of somebody else in front of everything, with a better match for each function, operator and type that the
//! engine uses: none of them is ever executed by an INSERT, a view or a function of ours.

use crate::common::execute;
use crate::common::query_value;
use tokio_postgres::Client;

use crate::common::Database;

/// Each trap draws from a sequence, which is not undone by a rollback, and raises.
const TRAPS: &str = r#"
create schema hostile;
grant usage on schema hostile to public;
create sequence hostile.tripped;
grant usage on sequence hostile.tripped to public;

create function hostile.trip(p_what text) returns void language plpgsql as $trap$
begin
  perform pg_catalog.nextval('hostile.tripped');
  raise exception using errcode = 'TRAP0', message = p_what;
end
$trap$;

create function pg_temp.lay(p_name text, p_arguments text, p_result text) returns void language plpgsql as $lay$
begin
  execute format('create function hostile.%I(%s) returns %s language plpgsql as
    $trap$ begin perform hostile.trip(%L); end $trap$',
    p_name, p_arguments, p_result, p_name || '(' || p_arguments || ')');
exception when others then
  null; -- an argument that plpgsql cannot have
end
$lay$;

-- the same arguments as those of pg_catalog, for every name that our functions call
select pg_temp.lay(c.proname, pg_get_function_arguments(c.oid), pg_get_function_result(c.oid))
from pg_proc c
where c.pronamespace = 'pg_catalog'::regnamespace
  and c.proname in (
    select m[1]
    from pg_proc p, regexp_matches(pg_get_functiondef(p.oid), '\m([a-z_][a-z0-9_]*)\s*\(', 'g') m
    where p.pronamespace = 'bugle'::regnamespace
      and p.prokind = 'f');

-- better matches than those of pg_catalog, which take anything, or a regclass where a string stands
select pg_temp.lay(f.name, a.arguments, f.result)
from (values ('pg_column_size', 'integer'), ('num_nulls', 'integer'), ('num_nonnulls', 'integer'),
    ('format', 'text'), ('concat', 'text'),
    ('jsonb_build_object', 'jsonb'), ('to_jsonb', 'jsonb'), ('nextval', 'bigint'), ('setval', 'bigint'),
    ('pg_sequence_last_value', 'bigint')) f (name, result),
  (values ('text'), ('jsonb'), ('bigint'), ('integer'), ('text, text'), ('text, integer'), ('text, bigint'),
    ('text, text, text'), ('text, text, text, text'), ('text, integer, text')) a (arguments);
-- of as many arguments as the trigger of an INSERT gives, with their types
select pg_temp.lay('num_nonnulls', (
    select string_agg(format_type(a.atttypid, a.atttypmod), ', ' order by n.place)
    from regexp_matches(m[1], 'new\.(\w+)', 'g') with ordinality n (column_name, place)
      join pg_attribute a on a.attrelid = 'bugle.jobs'::regclass and a.attname = n.column_name[1]), 'integer')
from pg_proc p, regexp_matches(p.prosrc, 'num_nonnulls\(([^)]*)\)', 'g') m
where p.oid = 'bugle.before_insert'::regproc;

do $do$
declare
  v_operator record;
begin
  for v_operator in
    select o.oprname, format_type(o.oprleft, null) as l, format_type(o.oprright, null) as r,
      format_type(o.oprresult, null) as result,
      o.oid::text as number
    from pg_operator o
    where o.oprnamespace = 'pg_catalog'::regnamespace and o.oprleft <> 0
    union all
    values ('||', 'text', 'integer', 'text', 'a'), ('||', 'text', 'bigint', 'text', 'b')
  loop
    begin
      perform pg_temp.lay('operator_' || v_operator.number, v_operator.l || ', ' || v_operator.r, v_operator.result);
      execute format('create operator hostile.%s (leftarg = %s, rightarg = %s, function = hostile.operator_%s)',
        v_operator.oprname, v_operator.l, v_operator.r, v_operator.number);
    exception when others then
      null;
    end;
  end loop;
end
$do$;

create function hostile.trip_type(anyelement) returns boolean language plpgsql as $trap$
begin
  perform hostile.trip('a type');
end
$trap$;
do $do$
declare
  v_type text;
begin
  foreach v_type in array array[
    'text', 'jsonb', 'timestamptz', 'int4', 'int8', 'bool', 'float8', 'date', 'uuid', 'oid', 'regclass', 'tid', 'name']
  loop
    execute format('create domain hostile.%I as pg_catalog.%I check (hostile.trip_type(value))', v_type, v_type);
  end loop;
end
$do$;
"#;

/// What an application, an operator and a migration write.
const WRITES: [&str; 17] = [
    "insert into bugle.jobs (command) values ('plain')",
    "insert into bugle.jobs (command) values ('a'), ('b'), ('c'), ('d')",
    "insert into bugle.jobs (command, queue) values ('a', 'q1'), ('b', 'q2'), ('c', 'q1'), ('d', 'rung')",
    "insert into bugle.jobs (command, queue) values ('wakes somebody', 'rung')",
    "insert into bugle.jobs (command, unique_key, order_key, limit_key, fair_key, headers) values ('keys', 'u', 'o', \
        'l', 'f', '{\"a\": 1}')",
    "insert into bugle.jobs (command, run_at) values ('later', 'tomorrow')",
    "insert into bugle.jobs (command, queue, priority, run_at, payload) values ('nulls', null, null, null, null)",
    "insert into bugle.jobs (command, idempotency_key) values ('once', 'k')",
    "insert into bugle.jobs (command, steps, on_success, on_failure) values ('chain', '{x,y}', 'yes', 'no')",
    "insert into bugle.jobs (command, timeout, retry_policy, max_attempts) values ('slow', '1 minute', 'fixed', 3)",
    "insert into bugle.jobs (command, headers) values ('refused', '[]')",
    "insert into bugle.jobs (command, state, finished_at) values ('by hand', 'completed', 'today')",
    "insert into bugle.jobs (command, state, finished_at, reason) values ('by hand', 'failed', 'today', 'x')",
    "insert into bugle.commands (name, queue, priority, max_running) values ('templated', 'q3', 5, 2)",
    "insert into bugle.jobs (command) values ('templated')",
    "insert into bugle.queues (name, max_running) values ('limited', 1)",
    "insert into bugle.schedules (name, cron, command) values ('hourly', '0 * * * *', 'plain')",
];

#[tokio::test(flavor = "multi_thread")]
async fn nobody_executes_a_function_that_somebody_else_put_in_the_way() {
    let database = Database::new().await;
    let (owner, sleeper) = (database.owner().await, database.owner().await);
    execute(
        &owner,
        "insert into bugle.minutes (minute, queue, command, worker, completed, failed, others, \
        run_seconds, wait_seconds, run, wait) \
             select now(), 'default', 'plain', w, 1, 0, 0, 1, 1, array_fill(1::bigint, array[21]), \
             array_fill(1::bigint, array[21]) \
             from generate_series(1, 2) w",
    )
    .await;
    execute(&owner, TRAPS).await;
    let laid = "select count(*) from pg_proc where pronamespace = 'hostile'::regnamespace";
    let laid: i64 = query_value(&owner, laid).await;
    assert!(laid > 800, "{laid} traps");
    // somebody sleeps there, so that an INSERT rings
    let hold = "select pg_advisory_lock(bugle.bell_key('rung'))";
    execute(&sleeper, hold).await;

    let (views, calls) = (views(&owner).await, calls(&owner).await);
    assert!(views.len() > 8 && calls.len() > 100, "{} {}", views.len(), calls.len());
    let mut tripped = Vec::new();
    let mut tried = 0;
    for role in ["owner", "enqueuer", "viewer", "worker", "operator"] {
        for path in ["hostile, bugle, pg_catalog", "hostile, public"] {
            // a session of its own: what it has read and planned already is not looked up again
            let client = database.connect(role).await;
            let set = format!("set search_path = {path}");
            execute(&client, &set).await;
            for statement in WRITES
                .iter()
                .copied()
                .chain(views.iter().chain(&calls).map(String::as_str))
            {
                tried += 1;
                execute(&client, "begin").await;
                let said = client.batch_execute(statement).await;
                execute(&client, "rollback").await;
                if was_tripped(&owner).await {
                    tripped.push(format!("{role}, {path}: {statement}: {said:?}"));
                }
            }
        }
    }
    assert!(tripped.is_empty(), "{} of {tried}: {tripped:#?}", tripped.len());
}

/// What a migration makes keeps for good what it found: defaults, views, indexes, functions that are read once.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_finds_nothing_that_somebody_else_put_in_the_way() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(&owner, TRAPS).await;
    execute(
        &owner,
        &format!(
            "alter database {} set search_path = hostile, pg_catalog; update bugle.schema_version set checksum = 'of \
                an earlier release'",
            database.name
        ),
    )
    .await;

    let migrated = bugle::schema::migrate(&database.config("owner")).await;

    assert!(!was_tripped(&owner).await, "{migrated:?}");
    assert_eq!(migrated.expect("migrates"), bugle::schema::Migrated::Upgraded);
    let kept = "select string_agg(pg_describe_object(d.classid, d.objid, d.objsubid), ', ') from pg_depend d \
        where d.refobjid in (select p.oid from pg_proc p where p.pronamespace = 'hostile'::regnamespace ) \
          and pg_describe_object(d.classid, d.objid, d.objsubid) like '%bugle.%'";
    let kept: Option<String> = query_value(&owner, kept).await;
    assert_eq!(kept, None);
}

/// Whether a trap was executed since the last time.
async fn was_tripped(owner: &Client) -> bool {
    let asked = "select is_called, setval('hostile.tripped', 1, false) from hostile.tripped";
    query_value(owner, asked).await
}

async fn views(owner: &Client) -> Vec<String> {
    let asked = "select format('select * from bugle.%I', relname) from pg_class \
        where relnamespace = 'bugle'::regnamespace and relkind = 'v' order by 1";
    owner
        .query(asked, &[])
        .await
        .expect("asks")
        .iter()
        .map(|row| row.get(0))
        .collect()
}

/// Every function that any role may call, with and without values.
async fn calls(owner: &Client) -> Vec<String> {
    let asked = "
        select format('select bugle.%I(%s)', p.proname, (
            select string_agg(case v.kind when 'nulls' then format('null::%I.%I', n.nspname, t.typname) else
                format('%L::%I.%I', case
                  when t.typcategory = 'A' then '{}' when t.typcategory = 'N' then '1' when t.typcategory = 'D' then \
                  '2030-01-01'
                  when t.typcategory = 'T' then '1 minute' when t.typcategory = 'B' then 'true' when t.typname = \
                  'jsonb' then '{}'
                  when t.typname = 'uuid' then '00000000-0000-0000-0000-000000000000' when t.typcategory = 'S' then \
                  'default' end,
                  n.nspname, t.typname) end, ', ' order by a.place)
            from unnest(p.proargtypes) with ordinality a (type, place)
              join pg_type t on t.oid = a.type
              join pg_namespace n on n.oid = t.typnamespace))
        from pg_proc p, (values ('nulls'), ('values')) v (kind)
        where p.pronamespace = 'bugle'::regnamespace
          and p.prorettype <> 'trigger'::regtype
          and exists (select from aclexplode(p.proacl) a where a.grantee <> p.proowner)
        order by 1";
    owner
        .query(asked, &[])
        .await
        .expect("asks")
        .iter()
        .map(|row| row.get(0))
        .collect()
}
