//! The JSON API: complete, as it is described, and the same as SQL and the command line.

mod common;

use std::collections::BTreeSet;

use bugle::operations::{OPERATIONS, Operation, Statement};
use common::cli::{command, run};
use common::http::{TOKEN, ask, commands, get, listening, with_token};
use common::{Database, enqueue, execute, query_value, wait_for_state, wait_until};
use serde_json::{Value, json};

/// Functions that operators and enqueuers may call and that are no operation of their own: they read, they are called
/// by the trigger of an INSERT, or they are enqueue_job with parameters instead of JSON.
const NOT_OPERATIONS: [&str; 21] = [
    "job",
    "explain",
    "results_of",
    "workflow",
    "family",
    "next_slot",
    "schedule_preview",
    "enqueue",
    "enqueue_once",
    "enqueue_after",
    "validate_job",
    "ring",
    "announce",
    "bell_key",
    "bell_channel",
    "bell_is_free",
    "timeline",
    "throughput",
    "count_matching",
    "jobs_matching",
    "redacted",
];

fn description() -> Value {
    serde_json::from_str(include_str!("../docs/openapi.json")).expect("docs/openapi.json is JSON")
}

#[tokio::test]
async fn what_operators_can_do_in_sql_is_in_the_table_with_the_same_parameters() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let rows = owner
        .query(
            "select p.proname::text, array(select substr(a.name, 3) \
               from unnest(p.proargnames, coalesce(p.proargmodes, array_fill('i'::\"char\", \
                 array[cardinality(p.proargnames)]))) a (name, mode) where a.mode = 'i') \
             from pg_proc p \
             where p.pronamespace = 'bugle'::regnamespace \
               and (has_function_privilege('bugle_operator', p.oid, 'execute') \
                 or has_function_privilege('bugle_enqueuer', p.oid, 'execute'))",
            &[],
        )
        .await
        .unwrap();
    let functions: Vec<(String, BTreeSet<String>)> = rows
        .iter()
        .map(|row| (row.get(0), row.get::<_, Vec<String>>(1).into_iter().collect()))
        .filter(|(name, _): &(String, _)| !NOT_OPERATIONS.contains(&name.as_str()))
        .collect();

    for (name, _) in &functions {
        assert!(
            Operation::named(name).is_some(),
            "bugle.{name} is not in the table of operations"
        );
    }
    for operation in OPERATIONS.iter().filter(|one| one.statement == Statement::Function) {
        let known: BTreeSet<String> = operation.parameters.iter().map(|p| p.name.to_owned()).collect();
        let same = |(name, parameters): &(String, BTreeSet<String>)| name == operation.name && *parameters == known;
        assert!(
            functions.iter().any(same),
            "bugle.{} has other parameters",
            operation.name
        );
    }
    let columns: Vec<String> = query_value(&owner, "select bugle.settable_schedule_columns()").await;
    let add = Operation::named("add_schedule").unwrap();
    for column in columns.iter().filter(|column| *column != "paused_at") {
        assert!(add.parameters.iter().any(|p| p.name == column), "{column}");
    }
}

/// `BUGLE_BLESS=1 cargo test --test api documented` writes it.
#[test]
fn the_documented_operations_are_those_of_the_table() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/api.md");
    let mut text = std::fs::read_to_string(file).unwrap();
    let head = "|---|---|---|---|\n";
    let begin = text.rfind(head).expect("the table") + head.len();
    let mut table = String::new();
    for operation in OPERATIONS {
        let is_in_path = |name: &str| operation.path.contains(&format!("{{{name}}}"));
        let body: Vec<String> = (operation.parameters.iter())
            .filter(|parameter| !is_in_path(parameter.name))
            .map(|p| format!("`{}{}`", p.name, if p.required { "" } else { "?" }))
            .collect();
        let cli = operation.cli.join(" ");
        table += &format!(
            "| `{}` | `{}` | {} | `{cli}` |\n",
            operation.name,
            operation.path,
            body.join(" ")
        );
    }
    if std::env::var_os("BUGLE_BLESS").is_some() {
        text.replace_range(begin.., &table);
        std::fs::write(file, &text).unwrap();
    }

    assert!(
        text[begin..] == table,
        "docs/reference/api.md lacks operations: BUGLE_BLESS=1 writes them"
    );
}

/// How the help of the command shows a parameter: a flag of its name, unless it is listed here.
fn spelled_in_the_shell(operation: &str, parameter: &str) -> String {
    let one_of_many = operation.trim_end_matches("_where");
    match (one_of_many, parameter) {
        ("cancel" | "pause" | "resume" | "restart" | "remove" | "reschedule" | "set_priority" | "set_state", "id") => {
            "[IDS]...".into()
        }
        ("reschedule", "run_at") => "--at <TIME>".into(),
        ("set_step" | "resolve" | "reject" | "resume_with" | "answer", "id") => "<ID>".into(),
        ("set_step", "step") => "<STEP>".into(),
        ("set_step", "state") => "<STATE>".into(),
        ("resume_with", "answer") | ("answer", "resume") => "--resume".into(),
        ("add_missing", "command") => "<COMMAND>".into(),
        ("enqueue_job", "job") => "[COMMAND]".into(),
        ("add_missing", "jobs") | ("enqueue_workflow", "workflow") => "FILE".into(),
        (_, "queue") if operation.ends_with("_queue") || operation == "set_limits" => "<QUEUE>".into(),
        // with the number, as in 100/1m
        ("set_limits", "starts_period") => "--max-starts <N[/PERIOD]|none>".into(),
        ("set_limits", "starts_per_key_period") => "--max-starts-per-key <N[/PERIOD]|none>".into(),
        ("set_command_limit", "command") => "<COMMAND>".into(),
        ("set_command_limit", "max_running") => "<N|none>".into(),
        (_, "worker") if operation.ends_with("_worker") => "<ID>".into(),
        (_, "name") if operation.contains("schedule") || operation.contains("policy") => "<NAME>".into(),
        ("change_schedule", _) => "<COLUMN=VALUE>".into(),
        ("add_schedule", "payload") => "[JSON]".into(),
        ("add_schedule", "headers") => "--header <NAME=VALUE>".into(),
        ("add_schedule", "steps") => "--step <COMMAND>".into(),
        (_, name) => format!("--{}", name.replace('_', "-")),
    }
}

#[tokio::test]
async fn every_operation_is_on_the_command_line_and_in_the_description() {
    let description = description();
    for operation in OPERATIONS {
        let mut words = operation.cli.to_vec();
        words.push("--help");
        let help = run(&mut command(&words), "").await;
        assert_eq!(help.code, 0, "bugle {}: {}", operation.cli.join(" "), help.err);
        for parameter in operation.parameters {
            let spelled = spelled_in_the_shell(operation.name, parameter.name);
            assert!(
                help.out.contains(&spelled),
                "bugle {} has no {spelled} for {}:\n{}",
                operation.cli.join(" "),
                parameter.name,
                help.out
            );
        }

        let described = &description["paths"][format!("/api/v1{}", operation.path)]["post"];
        assert_eq!(described["operationId"], operation.name);
    }
}

#[tokio::test]
async fn with_a_token_the_api_changes_what_it_is_asked_to() {
    let database = Database::new().await;
    let (worker, address) = listening(&database, Some(TOKEN), commands()).await;
    let owner = database.owner().await;
    let job = enqueue(&owner, "hang").await;
    wait_for_state(&owner, job, "running").await;
    let path = |verb: &str| format!("/api/v1/jobs/{job}/{verb}");

    assert_eq!(get(address, "/api/v1/queues").await.status, 401);
    let wrong = ask(address, "POST", &path("cancel"), "Authorization: Bearer wrong\r\n", "").await;
    assert_eq!(wrong.status, 401);
    let cancelled = with_token(address, "POST", &path("cancel"), "{\"note\": \"by the test\"}").await;
    assert_eq!(
        (cancelled.status, cancelled.json()["state"].clone()),
        (200, json!("cancelled"))
    );
    let again = with_token(address, "POST", &path("cancel"), "").await;
    assert_eq!(again.status, 409, "{}", again.body);
    let nobody = with_token(address, "POST", "/api/v1/jobs/999999/cancel", "").await;
    assert_eq!(nobody.status, 404, "{}", nobody.body);
    let garbled = with_token(address, "POST", &path("restart"), "{\"color\": 1}").await;
    assert_eq!(garbled.status, 400, "{}", garbled.body);
    let paused = with_token(address, "POST", "/api/v1/queues/default/pause", "").await;
    assert_eq!(paused.status, 200, "{}", paused.body);

    wait_until(
        &owner,
        "select paused_at is not null from bugle.queues where name = 'default'",
    )
    .await;
    let noted = owner
        .query_one("select count(*) from bugle.changes where note = 'by the test'", &[])
        .await
        .unwrap();
    assert_eq!(noted.get::<_, i64>(0), 1);
    worker.stop().await;
}

/// Each operation once, in an order that allows it, and each path that is read.
#[tokio::test]
async fn the_api_is_complete_and_as_it_is_described() {
    let database = Database::new().await;
    let (worker, address) = listening(&database, Some(TOKEN), commands()).await;
    let owner = database.owner().await;
    let failing = enqueue(&owner, "break").await;
    wait_for_state(&owner, failing, "retrying").await;
    let hanging = enqueue(&owner, "hang").await;
    wait_for_state(&owner, hanging, "running").await;
    let done = enqueue(&owner, "noop").await;
    wait_for_state(&owner, done, "completed").await;
    // operated on: nobody serves it, so only operations change it
    let held = enqueue(&owner, "nobody").await;
    let id = query_value::<i64>(&owner, "select id from bugle.workers").await;
    let description = description();
    let mut called = BTreeSet::new();

    // one that waits for each kind of answer; nobody serves their command
    let waiting = "insert into bugle.jobs (command) values ('ask') returning id";
    let mut waiters = Vec::new();
    for _ in 0..4 {
        let job = query_value::<i64>(&owner, waiting).await;
        let wait = format!(
            "update bugle.jobs_live set state = 'waiting', first_started_at = now(), answer_token = \
             bugle.token_hash('secret') where id = {job}"
        );
        execute(&owner, &wait).await;
        waiters.push(job);
    }
    let chain = "insert into bugle.jobs (command, steps, run_at) values \
        ('chain', '{a,b}', now() + interval '1 day') returning id";
    let chain = query_value::<i64>(&owner, chain).await;
    execute(&owner, "insert into bugle.queues (name) values ('old')").await;
    let job = |id: i64, verb: &str| format!("/jobs/{id}/{verb}");
    let filter = json!({ "command": "nobody", "note": "all" });
    let with = |more: Value| {
        let mut filter = filter.clone();
        filter
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        filter
    };
    let later = "2100-01-01 00:00+00";
    let calls = [
        ("pause", job(held, "pause"), json!({ "note": "held" })),
        ("resume", job(held, "resume"), json!({})),
        ("reschedule", job(held, "reschedule"), json!({ "run_at": later })),
        ("set_priority", job(held, "set_priority"), json!({ "priority": -3 })),
        ("cancel", job(held, "cancel"), json!({})),
        ("restart", job(held, "restart"), json!({ "from_failed_step": true })),
        ("set_state", job(held, "set_state"), json!({ "to": "paused" })),
        ("resume_where", "/jobs/resume".into(), filter.clone()),
        (
            "reschedule_where",
            "/jobs/reschedule".into(),
            with(json!({ "run_at": later })),
        ),
        (
            "set_priority_where",
            "/jobs/set_priority".into(),
            with(json!({ "priority": 1 })),
        ),
        ("pause_where", "/jobs/pause".into(), filter.clone()),
        ("cancel_where", "/jobs/cancel".into(), filter.clone()),
        ("restart_where", "/jobs/restart".into(), filter.clone()),
        (
            "set_state_where",
            "/jobs/set_state".into(),
            with(json!({ "to": "failed" })),
        ),
        (
            "set_step",
            job(chain, "set_step"),
            json!({ "step": "a", "state": "done", "output": { "n": 1 } }),
        ),
        (
            "resolve",
            job(waiters[0], "resolve"),
            json!({ "result": 9_007_199_254_740_993_i64, "token": "secret" }),
        ),
        (
            "reject",
            job(waiters[1], "reject"),
            json!({ "error": "no", "token": "secret" }),
        ),
        (
            "resume_with",
            job(waiters[2], "resume_with"),
            json!({ "answer": null, "token": "secret" }),
        ),
        (
            "answer",
            job(waiters[3], "answer"),
            json!({ "token": "secret", "result": [1] }),
        ),
        ("remove", job(waiters[0], "remove"), json!({})),
        (
            "remove_where",
            "/jobs/remove".into(),
            json!({ "command": "ask", "state": "failed" }),
        ),
        (
            "add_missing",
            "/jobs/add_missing".into(),
            json!({ "command": "noop", "jobs": [{ "key": "x", "payload": {} }] }),
        ),
        (
            "enqueue_job",
            "/jobs".into(),
            json!({ "command": "noop", "payload": { "n": 1 } }),
        ),
        (
            "enqueue_workflow",
            "/workflows".into(),
            json!({ "jobs": { "one": { "command": "noop" }, "two": { "command": "noop", "after": ["one"] } } }),
        ),
        ("pause_queue", "/queues/default/pause".into(), json!({})),
        ("resume_queue", "/queues/default/resume".into(), json!({})),
        (
            "remove_queue",
            "/queues/old/remove".into(),
            json!({ "note": "not used" }),
        ),
        (
            "set_limits",
            "/queues/a%2Fb/set_limits".into(),
            json!({ "max_starts": 5, "starts_period": "1 minute" }),
        ),
        (
            "set_command_limit",
            "/commands/noop/set_limit".into(),
            json!({ "max_running": 2 }),
        ),
        (
            "add_schedule",
            "/schedules".into(),
            json!({ "name": "nightly", "cron": "0 3 * * *", "command": "noop", "payload": { "n": 1 } }),
        ),
        (
            "change_schedule",
            "/schedules/nightly/change".into(),
            json!({ "cron": "", "every": "1 hour" }),
        ),
        ("pause_schedule", "/schedules/nightly/pause".into(), json!({})),
        ("resume_schedule", "/schedules/nightly/resume".into(), json!({})),
        ("run_schedule_now", "/schedules/nightly/run_now".into(), json!({})),
        ("remove_schedule", "/schedules/nightly/remove".into(), json!({})),
        (
            "set_policy",
            "/policies/hasty/set".into(),
            json!({ "kind": "fixed", "retries": 3, "delay": "2 seconds", "jitter": 0.5, "note": "an outage" }),
        ),
        ("remove_policy", "/policies/hasty/remove".into(), json!({})),
        ("pause_worker", format!("/workers/{id}/pause"), json!({})),
        ("resume_worker", format!("/workers/{id}/resume"), json!({})),
    ];
    for (name, path, body) in calls {
        let operation = Operation::named(name).expect(name);
        let replied = with_token(address, "POST", &format!("/api/v1{path}"), &body.to_string()).await;
        assert_eq!(replied.status, 200, "{name} {path} {body}: {}", replied.body);
        let schema = &description["paths"][format!("/api/v1{}", operation.path)]["post"]["responses"]["200"]["content"]
            ["application/json"]["schema"];
        assert!(schema.is_object(), "{name} is not described");
        assert_fits(&description, schema, &replied.json(), name);
        called.insert(name);
    }
    let more = "insert into bugle.schedules (name, every, command) values ('hourly', '1 hour', 'noop')";
    execute(&owner, more).await;
    execute(&owner, "select bugle.run_schedule_now('hourly')").await;
    for (path, methods) in description["paths"].as_object().unwrap() {
        let Some(read) = methods.get("get") else { continue };
        for id in [failing, hanging, done, chain] {
            let place = path.replace("{id}", &id.to_string());
            let place = place.replace("{queue}", "default").replace("{name}", "hourly");
            let replied = with_token(address, "GET", &place, "").await;
            assert_eq!(replied.status, 200, "{place}: {}", replied.body);
            let schema = &read["responses"]["200"]["content"]["application/json"]["schema"];
            assert_fits(&description, schema, &replied.json(), &place);
        }
    }
    let drained = with_token(address, "POST", &format!("/api/v1/workers/{id}/drain"), "").await;
    assert_eq!(drained.status, 200, "{}", drained.body);
    called.insert("drain_worker");
    for operation in OPERATIONS {
        assert!(called.contains(operation.name), "{} was not called", operation.name);
    }
    // it drains already; the job that hangs need not be waited for
    worker.shutdown.request();
    worker.shutdown.request();
    worker.ended().await;
}

#[tokio::test]
async fn an_error_of_the_api_has_a_code_a_message_and_a_hint() {
    let database = Database::new().await;
    let (worker, address) = listening(&database, Some(TOKEN), commands()).await;
    let job = enqueue(&database.owner().await, "nobody").await;
    let description = description();
    let large = format!("{{\"note\": \"{}\"}}", "x".repeat(100_000));

    for (method, path, body, status, code) in [
        ("GET", "/jobs/x", "", 400, "bad_request"),
        ("GET", "/jobs?limit=0", "", 400, "bad_request"),
        ("GET", "/jobs?color=red", "", 400, "bad_request"),
        ("GET", "/errors?since=soon", "", 400, "bad_request"),
        ("GET", "/x", "", 404, "not_found"),
        ("GET", "/jobs/999999", "", 404, "JB030"),
        ("GET", &format!("/jobs/{job}/cancel"), "", 405, "method_not_allowed"),
        ("POST", "/jobs/999999/cancel", "", 404, "JB030"),
        ("POST", &format!("/jobs/{job}/restart"), "", 409, "JB031"),
        ("POST", &format!("/jobs/{job}/set_state"), "{}", 400, "bad_request"),
        (
            "POST",
            &format!("/jobs/{job}/set_priority"),
            "{\"priority\": \"high\"}",
            400,
            "bad_request",
        ),
        (
            "POST",
            &format!("/jobs/{job}/reschedule"),
            "{\"run_at\": \"soon\"}",
            400,
            "bad_request",
        ),
        ("POST", &format!("/jobs/{job}/cancel"), "not JSON", 400, "bad_request"),
        ("POST", &format!("/jobs/{job}/cancel"), &large, 413, "too_large"),
        ("POST", "/jobs/cancel", "{}", 400, "JB001"),
        ("POST", "/schedules/nightly/remove", "", 404, "not_found"),
        (
            "POST",
            "/schedules",
            "{\"name\": \"a\", \"command\": \"b\", \"cron\": \"soon\"}",
            400,
            "JB005",
        ),
    ] {
        let replied = with_token(address, method, &format!("/api/v1{path}"), body).await;

        assert_eq!(replied.status, status, "{method} {path}: {}", replied.body);
        assert_eq!(replied.json()["code"], code, "{method} {path}: {}", replied.body);
        assert_fits(
            &description,
            &json!({"$ref": "#/components/schemas/Error"}),
            &replied.json(),
            path,
        );
    }
    worker.stop().await;
}

/// The little of JSON Schema that the description uses.
fn assert_fits(all: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let schema = all
            .pointer(name.strip_prefix('#').unwrap())
            .expect("a schema of that name");
        return assert_fits(all, schema, value, at);
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(many) => many.iter().filter_map(Value::as_str).collect(),
        _ => return,
    };
    let fits = types.iter().any(|kind| match *kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("{at}: a type {other}"),
    });
    assert!(fits, "{at}: {value} is not {types:?}");
    if let Some(known) = schema["enum"].as_array() {
        assert!(known.contains(value), "{at}: {value} is none of {known:?}");
    }
    if let (Some(properties), Some(object)) = (schema["properties"].as_object(), value.as_object()) {
        for name in schema["required"].as_array().into_iter().flatten() {
            assert!(object.contains_key(name.as_str().unwrap()), "{at}: {name} is missing");
        }
        for (name, value) in object {
            match properties.get(name) {
                Some(schema) => assert_fits(all, schema, value, &format!("{at}.{name}")),
                None => assert!(schema["additionalProperties"] == true, "{at}: {name} is not described"),
            }
        }
    }
    for value in value.as_array().into_iter().flatten() {
        assert_fits(all, &schema["items"], value, at);
    }
}
