//! `bugle web`: the screens that show more than a list, against a real database.

mod common;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Stdio};

use common::cli::command;
use common::http::{Replied, ask};
use common::{Database, execute, query_value};

/// The process, ended when dropped.
struct Pages {
    process: Child,
    address: SocketAddr,
}

impl Pages {
    /// For a login that may do everything a person does here.
    async fn open(database: &Database) -> Pages {
        let owner = database.owner().await;
        let rights = format!("grant bugle_viewer, bugle_enqueuer to {}_operator", database.name);
        execute(&owner, &rights).await;
        Pages::open_as(database, "operator")
    }

    fn open_as(database: &Database, role: &str) -> Pages {
        let mut process = command(&["web", "--listen", "127.0.0.1:0"])
            .env("BUGLE_DATABASE_URL", database.url(role))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let mut line = String::new();
        let mut out = BufReader::new(process.stdout.take().expect("its output"));
        out.read_line(&mut line).expect("a line");
        let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
        let address = address.unwrap_or_else(|| panic!("no address in {line:?}"));
        Pages {
            address: address.parse().expect("an address"),
            process,
        }
    }

    async fn get(&self, path: &str) -> String {
        let page = ask(self.address, "GET", path, "", "").await;
        assert_eq!(page.status, 200, "{path}: {}", page.body);
        assert!(page.body.len() < 100_000, "{path} has {} bytes", page.body.len());
        page.body
    }

    async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Replied {
        let page = self.get("/enqueue").await;
        let csrf = page
            .split("name=\"csrf\" value=\"")
            .nth(1)
            .and_then(|rest| rest.split('"').next());
        let mut body = format!("csrf={}", csrf.expect("a token"));
        for (name, value) in fields {
            let value: String = value.bytes().map(|byte| format!("%{byte:02X}")).collect();
            body += &format!("&{name}={value}");
        }
        let more = "Content-Type: application/x-www-form-urlencoded\r\n";
        ask(self.address, "POST", path, more, &body).await
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const WORKFLOW: &str = "select count(*) from bugle.enqueue_workflow('{\"jobs\": { \
    \"<fetch>\": {\"command\": \"fetch\"}, \"count\": {\"command\": \"count\", \"after\": [\"<fetch>\"]}, \
    \"tell\": {\"command\": \"tell\", \"after\": [{\"job\": \"count\", \"on_failure\": \"run\"}]}}}')";

#[tokio::test]
async fn a_workflow_is_a_graph_that_says_what_failed_and_what_that_blocks_and_is_restarted_as_one() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(&owner, WORKFLOW).await;
    execute(&owner, "select bugle.set_state(1, 'failed', 'by the test')").await;
    let pages = Pages::open(&database).await;

    let list = pages.get("/workflows").await;
    assert!(
        list.contains("href=\"/workflows/1\"") && list.contains("3 jobs"),
        "{list}"
    );
    let page = pages.get("/workflows/3").await;
    assert!(!page.contains("<fetch>"), "a name is text: {page}");
    assert_eq!(page.matches("class=\"node ").count(), 3, "{page}");
    assert_eq!(page.matches("<path class=\"edge").count(), 2, "{page}");
    assert!(
        page.contains("dashed\" d="),
        "one edge lets its job start anyway: {page}"
    );
    assert!(page.contains("Blocks <b>count</b>."), "{page}");
    assert!(pages.get("/jobs/1").await.contains("href=\"/workflows/1\""));
    assert!(pages.get("/jobs?q=workflow:1").await.contains("href=\"/jobs/2\""));

    let fields = [
        ("verb", "restart"),
        ("q", "workflow:1"),
        ("all", "true"),
        ("back", "/workflows/1"),
    ];
    let rehearsed = pages.post("/jobs/bulk", &fields).await;
    assert!(rehearsed.body.contains("<b>2 jobs</b>"), "{}", rehearsed.body);
    let failed = "select count(*) from bugle.jobs where state = 'failed'";
    assert_eq!(query_value::<i64>(&owner, failed).await, 2, "it was rolled back");
    let done = pages.post("/jobs/bulk/apply", &fields).await;

    assert!(done.head.contains("location: /workflows/1\r\n"), "{}", done.head);
    assert_eq!(query_value::<i64>(&owner, failed).await, 0);
}

#[tokio::test]
async fn jobs_that_are_missing_are_found_in_a_dry_run_and_added_once() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(&owner, "select bugle.add_missing('mail', '[{\"key\": \"a\"}]')").await;
    let pages = Pages::open(&database).await;
    let lines = "{\"key\": \"a\"}\n{\"key\": \"b\", \"payload\": {\"id\": 9007199254740993}}\n";
    let jobs = "select count(*) from bugle.jobs";

    let dry = pages
        .post("/add-missing", &[("command", "mail"), ("lines", lines)])
        .await;
    assert!(dry.body.contains("<b>1 new</b>, 1 exist."), "{}", dry.body);
    assert_eq!(query_value::<i64>(&owner, jobs).await, 1, "it was rolled back");
    let apply = [("command", "mail"), ("lines", lines), ("apply", "true")];
    assert_eq!(pages.post("/add-missing", &apply).await.status, 303);
    assert_eq!(pages.post("/add-missing", &apply).await.status, 303);

    assert_eq!(query_value::<i64>(&owner, jobs).await, 2);
    let digits = "select payload ->> 'id' from bugle.jobs where unique_key = 'b'";
    assert_eq!(query_value::<String>(&owner, digits).await, "9007199254740993");
    let wrong = pages
        .post(
            "/add-missing",
            &[("command", "mail"), ("lines", "{\"key\": \"c\", \"max_attempts\": 0}")],
        )
        .await;
    assert!(wrong.body.contains("role=\"alert\""), "{}", wrong.body);
}

#[tokio::test]
async fn a_queue_shows_what_is_left_of_its_limits_whose_turn_is_next_and_which_keys_are_held() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let story = "select bugle.set_limits('q', p_max_running => 3, p_max_running_per_key => 1); \
        insert into bugle.jobs (command, queue, limit_key, fair_key) values ('x', 'q', 'acme', 'acme'); \
        insert into bugle.jobs (command, queue, order_key) values ('x', 'q', 'door'), ('x', 'q', 'door'); \
        select bugle.pause(2)";
    execute(&owner, story).await;
    let pages = Pages::open(&database).await;

    let page = pages.get("/queues/q").await;

    for part in [
        "Limits, live",
        "0 of 3",
        "Next turns",
        ">acme</a>",
        "Blocked order keys",
        ">door</a>",
    ] {
        assert!(page.contains(part), "{part} is missing: {page}");
    }
    assert!(page.contains("No worker serves it."), "{page}");
    assert!(pages.get("/queues").await.contains("Doorbell"));
}

#[tokio::test]
async fn a_schedule_is_told_in_words_with_its_next_times_in_two_zones() {
    let database = Database::new().await;
    let story = "insert into bugle.schedules (name, cron, timezone, command) \
        values ('nightly', '30 2 * * *', 'Asia/Tokyo', 'x'); \
        insert into bugle.schedules (name, every, command) values ('often', '2 minutes', 'x')";
    execute(&database.owner().await, story).await;
    let pages = Pages::open(&database).await;

    let page = pages.get("/schedules/nightly").await;
    assert!(page.contains("every day at 02:30"), "{page}");
    assert_eq!(page.matches(" 02:30:00 Asia/Tokyo").count(), 5, "{page}");
    assert_eq!(page.matches(" 17:30:00 UTC</time>").count(), 5, "{page}");
    assert_eq!(pages.get("/schedules/often").await.matches("data-full").count(), 5);
}

#[tokio::test]
async fn a_group_of_errors_is_restarted_and_an_operation_on_many_jobs_is_one_change() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let story = "insert into bugle.jobs (command, queue) select 'mail', 'q' from generate_series(1, 3); \
        insert into bugle.attempts (job, claim, attempt, command, code, error) \
        select j.id, 1, 1, 'mail', 'smtp', 'host \"' || j.id || '\" said 4' || j.id from bugle.jobs j; \
        update bugle.jobs_live set last_error = 'host \"' || id || '\" said 4' || id, last_error_code = 'smtp'; \
        select bugle.set_state_where('failed', p_queue => 'q', p_note => 'by the test')";
    execute(&owner, story).await;
    execute(
        &owner,
        "update bugle.jobs_failed set last_error = 'host \"' || id || '\" said 4' || id",
    )
    .await;
    let pages = Pages::open(&database).await;

    let page = pages.get("/errors").await;
    let query = page
        .split("name=\"everything\" value=\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next());
    let query = query
        .unwrap_or_else(|| panic!("no button: {page}"))
        .replace("&#34;", "\"")
        .replace("&quot;", "\"");
    let rehearsed = pages.post("/jobs/bulk", &[("everything", &query)]).await;

    assert!(rehearsed.body.contains("<b>3 jobs</b>"), "{query}: {}", rehearsed.body);
    let changes = pages.get("/changes").await;
    assert!(changes.contains("and 2 others, at once"), "{changes}");
    assert_eq!(changes.matches("by the test").count(), 1, "{changes}");
}

#[tokio::test]
async fn the_database_shows_history_by_day_and_who_pins_the_oldest_snapshot() {
    let database = Database::new().await;
    let reader = database.owner().await;
    execute(
        &reader,
        "begin isolation level repeatable read; select count(*) from bugle.jobs",
    )
    .await;
    let pid: i32 = query_value(&reader, "select pg_backend_pid()").await;
    let rights = format!("grant pg_monitor to {}_operator", database.name);
    execute(&database.owner().await, &rights).await;
    let pages = Pages::open(&database).await;

    let page = pages.get("/database").await;

    assert!(page.contains(&format!("select pg_terminate_backend({pid});")), "{page}");
    assert!(
        page.contains("History by day") && page.contains("bugle.jobs_live"),
        "{page}"
    );
}

#[tokio::test]
async fn a_template_is_changed_by_the_owner_and_shown_to_others() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(
        &owner,
        "insert into bugle.commands (name, queue, steps) values ('mail', 'slow', '{a,b}')",
    )
    .await;
    let pages = Pages::open(&database).await;
    let fields = [
        ("queue", ""),
        ("timeout", "5 minutes"),
        ("steps", "a, b, c"),
        ("limit_key", "$.tenant"),
        ("note", "slower now"),
    ];

    let page = pages.get("/commands/mail").await;
    assert!(
        page.contains("<code>slow</code>") && !page.contains("/template"),
        "{page}"
    );
    assert_eq!(pages.post("/commands/mail/template", &fields).await.status, 403);
    let pages = Pages::open_as(&database, "owner");
    assert!(
        pages
            .get("/commands/mail")
            .await
            .contains("name=\"timeout\" value=\"\"")
    );
    let done = pages.post("/commands/mail/template", &fields).await;

    assert_eq!(done.status, 303, "{}", done.body);
    let stored = "select concat_ws(' ', coalesce(queue, 'none'), timeout, steps, limit_key) from bugle.commands";
    assert_eq!(
        query_value::<String>(&owner, stored).await,
        "none 00:05:00 {a,b,c} $.\"tenant\""
    );
    let change = "select concat_ws(' | ', verb, from_state, to_state, note) from bugle.changes where command = 'mail'";
    assert_eq!(
        query_value::<String>(&owner, change).await,
        "set_template | queue slow, steps a, b | steps a, b, c, timeout 00:05:00, limit_key $.\"tenant\" | slower now"
    );
    let sql = pages
        .post(
            "/commands/mail/template/sql",
            &[("timeout", "00:05:00"), ("queue", "it's")],
        )
        .await;
    assert_eq!(
        sql.body,
        "insert into bugle.commands (name, queue)\nvalues ('mail', 'it''s')\non conflict (name) do update\n\
         set queue = excluded.queue;"
    );
    let wrong = pages.post("/commands/mail/template", &[("timeout", "soon")]).await;
    assert_eq!(wrong.status, 400, "{}", wrong.body);
}

#[tokio::test]
async fn more_jobs_than_a_step_takes_are_changed_step_by_step() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(
        &owner,
        "insert into bugle.jobs (command) select 'x' from generate_series(1, 1500)",
    )
    .await;
    let pages = Pages::open(&database).await;
    let all = [("verb", "pause"), ("q", "command:x"), ("all", "true")];
    let paused = "select count(*) from bugle.jobs where state = 'paused'";

    let rehearsed = pages.post("/jobs/bulk", &all).await;
    assert!(rehearsed.body.contains("1,500 match in all"), "{}", rehearsed.body);
    let step = pages.post("/jobs/bulk/apply", &all).await;

    assert_eq!(query_value::<i64>(&owner, paused).await, 1000);
    assert!(
        step.body.contains("<b>1000</b> of 1,500") && step.body.contains("Stop here"),
        "{}",
        step.body
    );
    let next = [
        &all[..],
        &[
            ("before", "501"),
            ("done", "1000"),
            ("seen", "1000"),
            ("matching", "1,500"),
        ],
    ]
    .concat();
    assert_eq!(pages.post("/jobs/bulk/apply", &next).await.status, 303);
    assert_eq!(query_value::<i64>(&owner, paused).await, 1500);
}

#[tokio::test]
async fn the_columns_of_the_jobs_page_can_be_chosen() {
    let database = Database::new().await;
    execute(
        &database.owner().await,
        "insert into bugle.jobs (command, priority) values ('x', -7)",
    )
    .await;
    let pages = Pages::open(&database).await;

    let usual = pages.get("/jobs").await;
    assert!(
        usual.contains(">Queue</th>") && !usual.contains(">Priority</th>"),
        "{usual}"
    );
    let chosen = pages.get("/jobs?q=&columns=priority&columns=due").await;
    assert!(
        chosen.contains(">Priority</th>") && chosen.contains(">-7</td>"),
        "{chosen}"
    );
    assert!(!chosen.contains(">Queue</th>"), "{chosen}");
}

#[tokio::test]
async fn an_observer_who_may_not_read_payloads_opens_the_same_screens() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(&owner, WORKFLOW).await;
    let story = format!(
        "insert into bugle.schedules (name, every, command) values ('often', '2 minutes', 'x'); \
         revoke bugle_viewer from {0}_viewer; grant bugle_observer to {0}_viewer",
        database.name
    );
    execute(&owner, &story).await;
    let pages = Pages::open_as(&database, "viewer");

    for path in [
        "/workflows",
        "/workflows/1",
        "/queues",
        "/queues/default",
        "/schedules/often",
        "/workers",
        "/database",
    ] {
        pages.get(path).await;
    }
    assert!(pages.get("/workflows/1").await.contains("class=\"node "));
}

#[tokio::test]
async fn a_command_that_no_worker_serves_comes_first_and_has_a_page_that_says_why() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let story = "insert into bugle.commands (name) values ('a'); \
        insert into bugle.jobs (command) values ('translate')";
    execute(&owner, story).await;
    let pages = Pages::open(&database).await;

    let list = pages.get("/commands").await;
    let rows: Vec<&str> = list
        .split("<tbody>")
        .nth(1)
        .expect("rows")
        .split("<tr>")
        .skip(1)
        .collect();
    assert!(
        rows[0].contains("/commands/translate") && rows[0].contains(">unserved<") && rows[0].contains("/jobs/1\">Why?"),
        "{list}"
    );
    assert!(
        rows[1].contains("/commands/a\"") && !rows[1].contains("unserved"),
        "{list}"
    );
    let page = pages.get("/commands/translate").await;
    assert!(page.contains("No live worker serves it in queue"), "{page}");
    assert!(pages.get("/").await.contains("href=\"/commands/translate\""));
    // one of which there are only jobs that cannot start yet
    execute(
        &owner,
        "insert into bugle.jobs (command, run_at) values ('later', now() + interval '1 day')",
    )
    .await;
    pages.get("/commands/later").await;
    assert_eq!(ask(pages.address, "GET", "/commands/nothing", "", "").await.status, 404);
}

#[tokio::test]
async fn errors_say_what_went_wrong_and_on_which_hosts() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let register = "select worker from bugle.register('w', 'node-a', 1, '0', bugle.protocol(), '{q}', '{3}', '{x}')";
    let worker: i64 = query_value(&owner, register).await;
    let story = format!(
        "insert into bugle.attempts (job, claim, attempt, worker, command, error) \
         values (1, 1, 1, {worker}, 'x', E'Traceback:\\n  line 7\\nno route to 10.0.0.7')"
    );
    execute(&owner, &story).await;
    let pages = Pages::open(&database).await;

    let page = pages.get("/errors").await;

    assert!(page.contains(">no route to 10.0.0.7</span>"), "{page}");
    assert!(page.contains("title=\"Fingerprint: no route to #\""), "{page}");
    assert!(page.contains(">node-a</span>"), "{page}");
    assert!(page.contains("Failed attempts of the last hour,"), "{page}");
}

#[tokio::test]
async fn the_keeper_and_its_deputy_are_named() {
    let database = Database::new().await;
    let owner = database.owner().await;
    for (name, role) in [("first", "keeper"), ("second", "deputy")] {
        let register = format!(
            "select worker from bugle.register('{name}', 'here', 1, '0', bugle.protocol(), '{{q}}', '{{3}}', '{{x}}')"
        );
        let worker: i64 = query_value(&owner, &register).await;
        execute(&owner, &format!("update bugle.keeping set {role} = {worker}")).await;
    }
    let pages = Pages::open(&database).await;

    let list = pages.get("/workers").await;
    assert!(
        list.contains("first <small class=\"dim\">keeper</small>")
            && list.contains("second <small class=\"dim\">deputy</small>"),
        "{list}"
    );
    assert!(
        pages
            .get("/workers/2")
            .await
            .contains("takes over if the keeper is lost")
    );
}
