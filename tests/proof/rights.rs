//! Who may do what: the catalog against `docs/reference/rights.md`, and attempts to get more.

use crate::common::execute;
use std::fmt::Write;

use tokio_postgres::Client;

use crate::common::Database;

const ROLES: [&str; 6] = [
    "public",
    "bugle_enqueuer",
    "bugle_observer",
    "bugle_viewer",
    "bugle_worker",
    "bugle_operator",
];

/// Every right on a relation, column by column where it is not on the whole, of everyone who is not the owner.
const ON_RELATIONS: &str = "
    with acl as (
        select c.relname, c.relkind, null::text as columns, a.grantee, a.privilege_type
        from pg_class c, aclexplode(coalesce(c.relacl, acldefault(case c.relkind when 'S' then 's' else 'r' \
        end::\"char\", c.relowner))) a
        where c.relnamespace = 'bugle'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'S') and a.grantee <> \
        c.relowner
        union all
        select c.relname, c.relkind, string_agg(t.attname, ', ' order by t.attnum), a.grantee, a.privilege_type
        from pg_class c join pg_attribute t on t.attrelid = c.oid, aclexplode(t.attacl) a
        where c.relnamespace = 'bugle'::regnamespace and a.grantee <> c.relowner
        group by 1, 2, 4, 5)
    select coalesce(r.rolname, 'public'),
        case relkind when 'S' then 'sequence ' when 'v' then 'view ' else '' end || relname
            || ': ' || string_agg(lower(privilege_type) || coalesce(' (' || columns || ')', ''), '; ' order by \
            privilege_type)
    from acl left join pg_roles r on r.oid = grantee
    group by 1, relkind, relname
    order by 1, relkind, relname";

const ON_SCHEMA: &str = "
    select coalesce(r.rolname, 'public'), 'schema: ' || string_agg(lower(a.privilege_type), '; ' order by \
    a.privilege_type)
    from pg_namespace n, aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a left join pg_roles r on r.oid = \
    a.grantee
    where n.nspname = 'bugle' and a.grantee <> n.nspowner
    group by 1
    order by 1";

const ON_FUNCTIONS: &str = "
    select coalesce(r.rolname, 'public'), format('%s(%s)', p.proname, oidvectortypes(p.proargtypes))
    from pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a left join pg_roles r on r.oid = \
    a.grantee
    where p.pronamespace = 'bugle'::regnamespace and a.grantee <> p.proowner
    order by 1, 2";

#[tokio::test]
async fn every_right_is_in_the_documented_matrix_and_none_else() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let found = matrix(&owner).await;

    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/rights.md");
    let document = std::fs::read_to_string(path).unwrap_or_default();
    let (before, rest) = document.split_once("```text\n").expect("a matrix");
    let (written, after) = rest.split_once("```").expect("its end");
    if std::env::var_os("BUGLE_BLESS").is_some() {
        std::fs::write(path, format!("{before}```text\n{found}```{after}")).expect("written");
        return;
    }

    let missing: Vec<&str> = found.lines().filter(|line| !written.contains(line)).collect();
    let gone: Vec<&str> = written.lines().filter(|line| !found.contains(line)).collect();
    assert!(
        written == found,
        "docs/reference/rights.md does not match the grants.\ngranted, not documented: {missing:#?}\ndocumented, not \
         granted: {gone:#?}\nIf this is intended: BUGLE_BLESS=1 bin/test --quick -- --test proof rights"
    );
}

async fn matrix(owner: &Client) -> String {
    let mut relations = owner.query(ON_SCHEMA, &[]).await.expect("asks");
    relations.extend(owner.query(ON_RELATIONS, &[]).await.expect("asks"));
    let functions = owner.query(ON_FUNCTIONS, &[]).await.expect("asks");
    for row in relations.iter().chain(&functions) {
        let grantee: &str = row.get(0);
        assert!(
            ROLES.contains(&grantee),
            "{grantee} is in no matrix: {}",
            row.get::<_, &str>(1)
        );
    }
    let mut text = String::new();
    for role in ROLES {
        let of_role = |rows: &[tokio_postgres::Row]| -> Vec<String> {
            rows.iter()
                .filter(|row| row.get::<_, &str>(0) == role)
                .map(|row| row.get(1))
                .collect()
        };
        let (relations, functions) = (of_role(&relations), of_role(&functions));
        let _ = writeln!(text, "{role}");
        if relations.is_empty() && functions.is_empty() {
            let _ = writeln!(text, "  nothing");
        }
        for line in relations {
            let _ = writeln!(text, "  {line}");
        }
        for function in functions {
            let _ = writeln!(text, "  execute {function}");
        }
    }
    text
}

/// What a grant on a table or a function does not show: what the roles are themselves, and what will be granted later.
#[tokio::test]
async fn the_roles_are_nothing_but_their_grants() {
    let database = Database::new().await;
    let owner = database.owner().await;
    for (what, sql) in [
        (
            "a role that can log in, or do more than others",
            "select rolname::text from pg_roles where rolname like 'bugle\\_%' and rolname = any ($1) \
                and (rolcanlogin or rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls)",
        ),
        (
            "a role that is a member of another",
            "select r.rolname::text from pg_auth_members m join pg_roles r on r.oid = m.member where r.rolname = any \
                ($1)",
        ),
        (
            "rights on what is made later",
            "select d.defaclacl::text from pg_default_acl d where d.defaclnamespace = 'bugle'::regnamespace and \
                $1::text[] is not null",
        ),
        (
            "a right that can be passed on",
            "select a.grantee::regrole::text from pg_class c, aclexplode(c.relacl) a \
                where c.relnamespace = 'bugle'::regnamespace and a.is_grantable and a.grantee <> c.relowner and \
                $1::text[] is not null \
                union all select a.grantee::regrole::text from pg_proc p, aclexplode(p.proacl) a \
                where p.pronamespace = 'bugle'::regnamespace and a.is_grantable and a.grantee <> p.proowner",
        ),
        (
            "an object of another owner",
            "select c.relname::text from pg_class c where c.relnamespace = 'bugle'::regnamespace and $1::text[] is not \
                null \
                and c.relowner <> (select n.nspowner from pg_namespace n where n.nspname = 'bugle') \
                union all select p.proname::text from pg_proc p where p.pronamespace = 'bugle'::regnamespace \
                and p.proowner <> (select n.nspowner from pg_namespace n where n.nspname = 'bugle')",
        ),
    ] {
        let found: Vec<String> = owner
            .query(sql, &[&&ROLES[1..]])
            .await
            .expect(what)
            .iter()
            .map(|row| row.get(0))
            .collect();
        assert!(found.is_empty(), "{what}: {found:?}");
    }
}

/// What a role does not have it is refused, table by table and verb by verb, not only by the catalog's word.
#[tokio::test]
async fn what_is_not_granted_is_refused() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let tables = owner
        .query(
            "select relname::text from pg_class where relnamespace = 'bugle'::regnamespace and relkind in ('r', \
            'p') order by 1",
            &[],
        )
        .await
        .expect("asks");
    let mut tried = 0;
    let mut wrong = Vec::new();
    for role in ["enqueuer", "viewer", "worker", "operator"] {
        let client = database.connect(role).await;
        for row in &tables {
            let table: String = row.get(0);
            for (privilege, sql) in [
                ("select", format!("select * from bugle.{table} limit 0")),
                ("insert", format!("insert into bugle.{table} default values")),
                ("delete", format!("delete from bugle.{table} where false")),
                ("truncate", format!("truncate bugle.{table}")),
                (
                    "trigger",
                    format!(
                        "create trigger mine before insert on bugle.{table} execute function \
                            suppress_redundant_updates_trigger()"
                    ),
                ),
                (
                    "update",
                    format!(
                        "update bugle.{table} set {} where false",
                        a_column(&owner, &table).await
                    ),
                ),
            ] {
                tried += 1;
                let has = "select has_table_privilege($1, format('bugle.%I', $2::text), $3) \
                    or ($3 in ('insert', 'update') and has_any_column_privilege($1, format('bugle.%I', $2::text), $3))";
                let role_name = format!("bugle_{role}");
                let allowed: bool = owner
                    .query_one(has, &[&role_name, &table, &privilege])
                    .await
                    .expect("asks")
                    .get(0);
                execute(&client, "begin").await;
                let said = client.batch_execute(&sql).await;
                execute(&client, "rollback").await;
                let denied = said
                    .as_ref()
                    .is_err_and(|error| error.code().is_some_and(|code| code.code() == "42501"));
                if !allowed && !denied {
                    wrong.push(format!("{role}: {sql}: {said:?}"));
                }
            }
        }
        for sql in [
            "create table bugle.mine ()",
            "create function bugle.mine() returns int language sql return 1",
            "alter function bugle.claim(bigint, uuid, bugle.queue_request[]) owner to current_user",
            "select bugle.end_jobs('{}')",
            "select bugle.move_to_live('{1}')",
            "select bugle.operate('cancel', '{1}', null)",
            "select bugle.rescue()",
            "select bugle.note_lost(0)",
            "select bugle.try_to_terminate(1)",
            "set role postgres",
        ] {
            tried += 1;
            if let Ok(()) = client.batch_execute(sql).await {
                wrong.push(format!("{role}: {sql}"));
            }
        }
    }
    println!("rights: {tried} tried");
    assert!(tried > 400 && wrong.is_empty(), "{wrong:#?}");
}

async fn a_column(owner: &Client, table: &str) -> String {
    let sql = "select attname::text from pg_attribute where attrelid = format('bugle.%I', $1::text)::regclass and \
        attnum > 0 and not attisdropped \
        and attgenerated = '' and attidentity = '' order by attnum limit 1";
    let column: String = owner.query_one(sql, &[&table]).await.expect("asks").get(0);
    format!("{column} = {column}")
}

/// Names the engine uses, made by somebody else and put in front: none of them may ever run with the owner's rights.
#[tokio::test]
async fn nobody_can_slip_the_engine_a_function_of_their_own() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let login = |role: &str| format!("{}_{role}", database.name);
    for role in ["enqueuer", "operator", "worker"] {
        let name = login(role);
        execute(
            &owner,
            &format!("create schema {name} authorization {name}; grant usage on schema {name} to public"),
        )
        .await;
    }
    for role in ["enqueuer", "operator", "worker"] {
        let client = database.connect(role).await;
        let own = login(role);
        execute(
            &client,
            &format!(
                "create table {own}.seen (who text); grant insert, select on {own}.seen to public; \
                 create function {own}.trap() returns text language plpgsql as $$ begin insert into {own}.seen values \
                 (current_user); return current_user; end $$; \
                 create function {own}.now() returns timestamptz language plpgsql as $$ begin perform {own}.trap(); \
                 return clock_timestamp(); end $$; \
                 create function {own}.length(text) returns int language plpgsql as $$ begin perform {own}.trap(); \
                 return 1; end $$; \
                 create function {own}.ascii(text) returns int language plpgsql as $$ begin perform {own}.trap(); \
                 return 99; end $$; \
                 create function {own}.pg_notify(text, text) returns void language plpgsql as $$ begin perform \
                 {own}.trap(); end $$; \
                 create function {own}.random() returns float8 language plpgsql as $$ begin perform {own}.trap(); \
                 return 1; end $$; \
                 create function {own}.refuse(text, text, text) returns void language plpgsql as $$ begin perform \
                 {own}.trap(); end $$; \
                 create function {own}.ring(text) returns void language plpgsql as $$ begin perform {own}.trap(); end \
                 $$; \
                 create function {own}.eq(bigint, bigint) returns boolean language plpgsql as $$ begin perform \
                 {own}.trap(); return $1 operator(pg_catalog.=) $2; end $$; \
                 create operator {own}.= (leftarg = bigint, rightarg = bigint, function = {own}.eq); \
                 create temp table registrations (id bigint, nonce uuid, stopped_at timestamptz); \
                 create temp table jobs_live (id bigint); create temp table settings (keep_completed boolean); \
                 set search_path = {own}, pg_temp, bugle, pg_catalog"
            ),
        )
        .await;
        let calls: &[&str] = match role {
            "enqueuer" => &[
                "insert into bugle.jobs (command) values ('noop')",
                "insert into bugle.jobs (command, run_at, unique_key) values (' noop', pg_catalog.now() + '1 hour', \
                    'k')",
                "select bugle.enqueue('noop', p_idempotency_key => 'i')",
                "select bugle.add_missing('noop', '[{\"key\": \"a\"}]')",
            ],
            "worker" => &[
                "select * from bugle.register('w', 'h', 1, '0', bugle.protocol(), '{default}', '{1}', '{noop}')",
                "select * from bugle.promote()",
                "select bugle.expire()",
                "select bugle.upkeep()",
                "select * from bugle.complete(1, pg_catalog.gen_random_uuid(), '{}')",
            ],
            _ => &[
                "select bugle.pause_queue('default')",
                "select bugle.resume_queue('default')",
                "select bugle.cancel_where(p_queue => 'default')",
                "insert into bugle.schedules (name, cron, command) values ('s', '* * * * *', 'noop')",
                "select bugle.run_schedule_now('s')",
                "select * from bugle.explain(1)",
            ],
        };
        for call in calls {
            // refused is as good as done
            let _ = client.batch_execute(call).await;
        }
        let rows = owner
            .query(&format!("select distinct who from {own}.seen"), &[])
            .await
            .expect("asks");
        let who: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        assert!(who.iter().all(|who| *who == own), "{role}: run as {who:?}");
    }
}
