//! Every function that a role may call, with everything that its arguments may be: it does its work, or refuses in
//! words of its own. Nothing else, and nothing is broken afterwards.

use std::collections::BTreeMap;

use fastrand::Rng;
use tokio_postgres::Client;

use super::random_seed::seed;
use crate::common::{DEADLINE, Database, enqueue, execute, noop, wait_for_state};
use crate::judge::{AUDIT, Evidence, illegal_steps};

const CALLS: usize = 20_500;
/// The state of a session is made anew every so often: some functions take locks for it.
const CALLS_OF_A_SESSION: usize = 250;

/// Besides the schema's own (JB…): a null where there must be none, a key that is taken, try again, no right.
const DECLARED: [&str; 4] = ["23502", "23505", "40001", "42501"];

/// These take columns of jobs as JSON: what is wrong with a value Postgres itself says (class 22).
const TAKES_COLUMNS: [&str; 5] = [
    "add_missing",
    "enqueue_job",
    "enqueue_after",
    "enqueue_workflow",
    "spawn",
];

struct Function {
    name: String,
    types: Vec<String>,
    role: String,
}

#[tokio::test(flavor = "multi_thread")]
async fn every_entry_point_accepts_everything_or_refuses_it_with_an_error_of_its_own() {
    let seed = seed("BUGLE_FUZZ_SEED");
    let mut rng = Rng::with_seed(seed);
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(&owner, AUDIT).await;
    let functions = functions(&owner).await;
    assert!(functions.len() > 60, "only {}", functions.len());

    let mut strange: BTreeMap<String, String> = BTreeMap::new();
    let mut done = 0;
    let mut answered = 0;
    let calls = std::env::var("BUGLE_FUZZ_CALLS")
        .ok()
        .and_then(|calls| calls.parse().ok());
    let calls = calls.unwrap_or(CALLS);
    while done < calls {
        let role = rng.choice(["enqueuer", "viewer", "worker", "operator"]).expect("one");
        let of_role: Vec<&Function> = functions.iter().filter(|function| function.role == role).collect();
        let client = database.connect(role).await;
        execute(&client, &format!("set statement_timeout = '{}s'", DEADLINE.as_secs())).await;
        let known = Known::new(&owner, &client, role).await;
        for _ in 0..CALLS_OF_A_SESSION {
            done += 1;
            let function = rng.choice(&of_role).expect("one");
            let arguments: Vec<String> = function.types.iter().map(|of| value(&mut rng, of, &known)).collect();
            let sql = format!("select * from bugle.{}({})", function.name, arguments.join(", "));
            match client.batch_execute(&sql).await {
                Ok(()) => answered += 1,
                Err(error) => {
                    let code = error
                        .code()
                        .map(|code| code.code().to_owned())
                        .unwrap_or_else(|| "none".into());
                    let of_a_field = TAKES_COLUMNS.contains(&function.name.as_str()) && code.starts_with("22");
                    if !code.starts_with("JB") && !DECLARED.contains(&code.as_str()) && !of_a_field {
                        let short: String = sql.chars().take(400).collect();
                        strange.insert(format!("{} {code}", function.name), format!("{short}\n    {error:?}"));
                    }
                    assert!(!client.is_closed(), "the session is gone: {sql}: {error:?}");
                }
            }
        }
    }
    println!(
        "fuzz: {done} calls of {} functions, {answered} answered",
        functions.len()
    );
    assert!(strange.is_empty(), "BUGLE_FUZZ_SEED={seed}\n{strange:#?}");

    let evidence = Evidence::gather(&owner, None).await;
    let illegal = illegal_steps(&evidence);
    assert!(illegal.is_empty(), "BUGLE_FUZZ_SEED={seed}\n{illegal:#?}");
    still_works(&database, &owner).await;
}

/// After all of it a job is run as on the first day.
async fn still_works(database: &Database, owner: &Client) {
    execute(
        owner,
        "set audit.op = 'cleanup'; delete from bugle.jobs; delete from bugle.schedules; update bugle.queues \
        set paused_at = null",
    )
    .await;
    let worker = database.worker(&[("default", 2)], noop());
    let id = enqueue(owner, "noop").await;
    wait_for_state(owner, id, "completed").await;
    worker.stop().await;
}

async fn functions(owner: &Client) -> Vec<Function> {
    let sql = "select p.proname::text, array(select format_type(t, null) from unnest(p.proargtypes) t)::text[], \
        substr(r.rolname, 7)::text \
        from pg_proc p, aclexplode(p.proacl) a join pg_roles r on r.oid = a.grantee \
        where p.pronamespace = 'bugle'::regnamespace and r.rolname like 'bugle\\_%' and p.prokind = 'f' \
          and p.prorettype <> 'trigger'::regtype order by 1, 2, 3";
    let rows = owner.query(sql, &[]).await.expect("asks");
    let function = |row: &tokio_postgres::Row| Function {
        name: row.get(0),
        types: row.get(1),
        role: row.get(2),
    };
    rows.iter().map(function).collect()
}

/// What there is, so that not every call is about nothing.
struct Known {
    jobs: Vec<i64>,
    worker: i64,
    nonce: String,
}

impl Known {
    async fn new(owner: &Client, client: &Client, role: &str) -> Known {
        execute(
            owner,
            "insert into bugle.jobs (command, unique_key) select 'noop', 'f' || random() from \
            generate_series(1, 3); \
                 insert into bugle.schedules (name, every, command) values ('hourly', '1 hour', 'noop') on conflict do \
                 nothing; \
                 update bugle.queues set paused_at = null",
        )
        .await;
        let jobs = owner
            .query("select id from bugle.jobs_live order by random() limit 6", &[])
            .await
            .expect("asks");
        let registered = match role {
            "worker" => {
                let sql = "select worker, nonce::text from bugle.register('w', 'h', 1, '0', bugle.protocol(), \
                    '{default}', '{3}', '{noop}')";
                client
                    .query_one(sql, &[])
                    .await
                    .map(|row| (row.get(0), row.get(1)))
                    .ok()
            }
            _ => None,
        };
        let (worker, nonce) = registered.unwrap_or((1, "00000000-0000-0000-0000-000000000000".to_owned()));
        if role == "worker" {
            let claim = format!(
                "select from bugle.claim({worker}, '{nonce}', array[('default', 3, null, \
                    'awake')::bugle.queue_request])"
            );
            let _ = client.batch_execute(&claim).await;
        }
        Known {
            jobs: jobs.iter().map(|row| row.get(0)).collect(),
            worker,
            nonce,
        }
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A value of a type, as SQL spells it, more often strange than not.
fn value(rng: &mut Rng, of: &str, known: &Known) -> String {
    if rng.u8(..12) == 0 && !["claim", "slots", "mode"].contains(&of) {
        return format!("null::{of}");
    }
    if let Some(element) = of.strip_suffix("[]") {
        let values: Vec<String> = (0..rng.usize(..4)).map(|_| value(rng, element, known)).collect();
        return format!("array[{}]::{of}", values.join(", "));
    }
    let literal = match of {
        "bigint" => match rng.u8(..10) {
            0..4 => rng.choice(&known.jobs).copied().unwrap_or(1).to_string(),
            4..6 => known.worker.to_string(),
            _ => rng
                .choice([
                    "0",
                    "-1",
                    "1",
                    "2147483648",
                    "9223372036854775807",
                    "-9223372036854775808",
                ])
                .expect("one")
                .into(),
        },
        "integer" => rng
            .choice(["0", "-1", "1", "2", "100", "2147483647", "-2147483648"])
            .expect("one")
            .into(),
        "boolean" => rng.choice(["true", "false"]).expect("one").into(),
        "uuid" => match rng.bool() {
            true => known.nonce.clone(),
            false => "11111111-2222-3333-4444-555555555555".into(),
        },
        "double precision" | "real" => rng
            .choice(["0", "-1", "1", "NaN", "Infinity", "-Infinity", "1e30", "-1e-30", "50"])
            .expect("one")
            .into(),
        "interval" => rng
            .choice([
                "0",
                "1 second",
                "-1 day",
                "1 hour",
                "10 years",
                "170000000 years",
                "-170000000 years",
                "1 month -30 days",
                "0.000001 seconds",
            ])
            .expect("one")
            .into(),
        "timestamp with time zone" => rng
            .choice([
                "now",
                "infinity",
                "-infinity",
                "epoch",
                "294276-12-31 00:00:00+00",
                "4713-01-02 00:00:00+00 BC",
                "2000-02-30T00:00Z",
            ])
            .filter(|time| !time.starts_with("2000-02-30"))
            .unwrap_or("now")
            .into(),
        "date" => "2026-11-16".into(),
        "jsonb" => json(rng),
        "text" | "name" | "character varying" => text(rng),
        "bugle.held_job" => return row(rng, of, &["bigint", "claim"], known),
        "bugle.finished_job" => return row(rng, of, &["bigint", "claim", "jsonb"], known),
        "bugle.failed_job" => {
            return row(
                rng,
                of,
                &["bigint", "claim", "text", "text", "boolean", "double precision"],
                known,
            );
        }
        "bugle.queue_position" => {
            return row(rng, of, &["integer", "timestamp with time zone", "bigint"], known);
        }
        "bugle.queue_request" => return row(rng, of, &["text", "slots", "bugle.queue_position", "mode"], known),
        // numbers that a row of the engine has: mostly the first claim
        "claim" => {
            return rng
                .choice(["1", "1", "1", "2", "0", "null", "9223372036854775807"])
                .expect("one")
                .into();
        }
        "slots" => {
            return rng
                .choice(["1", "0", "-1", "3", "null", "2147483647"])
                .expect("one")
                .into();
        }
        "mode" => {
            return rng
                .choice(["'awake'", "'awake'", "'paused'", "null", "'x'"])
                .expect("one")
                .into();
        }
        _ => return format!("null::{of}"),
    };
    format!("{}::{of}", quoted(&literal))
}

fn row(rng: &mut Rng, of: &str, fields: &[&str], known: &Known) -> String {
    let fields: Vec<String> = fields.iter().map(|field| value(rng, field, known)).collect();
    format!("row({})::{of}", fields.join(", "))
}

fn text(rng: &mut Rng) -> String {
    match rng.u8(..20) {
        0..5 => "noop".into(),
        5..8 => "default".into(),
        8 => String::new(),
        9 => " \t\n".into(),
        10 => "'; drop schema bugle cascade; --".into(),
        11 => "x".repeat(301),
        12 => "\u{1F980}\u{0301}\u{FFFF}\u{10FFFF}".into(),
        13 => "% %s %I $1 \\ \u{1}\u{7f}".into(),
        14 if rng.u8(..20) == 0 => "y".repeat(1 << 20),
        15 => "hourly".into(),
        16 => rng
            .choice(["keep", "move", "replace", "ready", "failed", "paused", "running"])
            .expect("one")
            .into(),
        17 => rng
            .choice([
                "* * * * *",
                "99 * * * *",
                "@yearly",
                "0 0 31 2 *",
                "*/0 * * * *",
                "1-0 * * * * *",
            ])
            .expect("one")
            .into(),
        18 => rng
            .choice(["UTC", "Europe/Berlin", "Nowhere/Else", "abc5"])
            .expect("one")
            .into(),
        _ => "key".into(),
    }
}

fn json(rng: &mut Rng) -> String {
    match rng.u8(..16) {
        0 => "null".into(),
        1 => "[]".into(),
        2 => "\"text\"".into(),
        3 => "1e300".into(),
        4 => "-123456789012345678901234567890.5".into(),
        5 if rng.u8(..10) == 0 => format!("{}1{}", "[".repeat(5000), "]".repeat(5000)),
        6 if rng.u8(..20) == 0 => format!("\"{}\"", "z".repeat(1 << 20)),
        7 => r#"[{"key": "a"}, {"key": "b", "run_at": "2026-01-01T00:00:00Z"}]"#.into(),
        8 => r#"[{"key": ""}, {"nokey": 1}, 3, null]"#.into(),
        9 => r#"{"\ud83e\udd80": "\u0001", "'": "\"", "$": {"a": [1, {"b": null}]}}"#.into(),
        10 => r#"[{"name": "a", "command": "noop"}, {"name": "b", "command": "noop", "needs": ["a"]}]"#.into(),
        11 => r#"{"command": "noop", "payload": {}, "queue": 7, "priority": "x", "run_at": "never"}"#.into(),
        12 => r#"[{"key": "a", "priority": "x"}]"#.into(),
        13 => r#"{"jobs": [{"name": "a", "command": "noop", "needs": ["a"]}]}"#.into(),
        _ => "{}".into(),
    }
}

/// What a worker reads at its start: whatever it is, it is taken or refused, and nothing panics.
#[test]
fn no_configuration_and_no_address_makes_a_worker_panic() {
    let mut rng = Rng::with_seed(7);
    let good = "database_url = \"postgres://a@b/c\"\nname = \"w\"\ndrain = \"30s\"\nsafety_poll = \"1s\"\n\
        [queues]\ndefault = 32\n[commands.a]\nprogram = [\"x\", \"y\"]\ntimeout = \"1m\"\n[commands.b]\nsql = \"select \
        1\"\n\
        [commands.c]\nhttp = { url = \"https://example.org\", headers = { a = \"env:B\" } }\n";
    let strange = [
        "\0",
        "\u{FFFF}",
        "'",
        "\"\"\"",
        "[",
        "]]",
        "{",
        "= =",
        "-1",
        "99999999999999999999",
        "1e999",
        "nan",
        "inf",
        "\r",
        "[[queues]]",
    ];
    let folder = crate::common::Folder::new();
    for _ in 0..1500 {
        let mut text = good.to_owned();
        for _ in 0..rng.usize(1..4) {
            let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
            let at = *rng.choice(&places).expect("one");
            match rng.bool() {
                true => text.insert_str(at, rng.choice(strange).expect("one")),
                false => drop(text.remove(at)),
            }
        }
        let file = folder.write("worker.toml", &text);
        if let Ok(config) = bugle::config::Config::from_file(&file) {
            let _ = bugle::Settings::resolve(bugle::config::Flags::default(), Some(config));
        }
        let url: String = text.chars().take(rng.usize(1..60)).collect();
        let _ = bugle::connect::parse(&url);
    }
}
