//! What the pages can do, each by clicks and verified with SQL; and the pages without JavaScript.

use std::time::Duration;

use bugle::private_postgres::{Options, PrivatePostgres};
use bugle::{Context, Outcome, Registry};
use serde_json::Value;

use super::chromium::{Browser, Page};
use super::common::web::Web;
use super::common::{BUGLE, Database, enqueue, execute, query_value, wait_for_state, wait_until};
use super::{act, operator, url};

/// Click on what leads to another page, and wait for it.
async fn follow(page: &Page, element: &str) {
    let before = page.loads();
    page.click(element).await;
    page.loaded_after(before).await;
}

/// Write into a field of the page, instead of what it has.
async fn fill_in(page: &Page, field: &str, text: &str) {
    let field = format!("document.querySelector('{field}')");
    page.click(&field).await;
    page.eval(&format!("{field}.select(); 0")).await;
    page.write(text).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_an_answer_is_answered_by_clicks() {
    let Some(browser) = Browser::start() else { return };
    let database = Database::new().await;
    let owner = database.owner().await;
    let web = operator(&database, &[]).await;
    let page = browser.page().await;
    page.size(1280, 900).await;
    let registry = Registry::new().on("ask", async |context: Context, _: Value| {
        Ok(match context.answer::<Value>()? {
            None => Outcome::Wait {
                token: None,
                at_most: Some(Duration::from_secs(3600)),
            },
            Some(answer) => Outcome::complete(answer),
        })
    });
    let worker = database.worker(&[("default", 2)], registry);
    let is = async |sql: String| assert!(query_value::<bool>(&owner, &sql).await, "{sql}");

    for (operation, fields, state) in [
        ("resolve", ("result", "{\"paid\": 9007199254740993}"), "completed"),
        ("reject", ("error", "the bank says no"), "failed"),
        ("resume_with", ("answer", "{\"go\": 1}"), "completed"),
    ] {
        let job = enqueue(&owner, "ask").await;
        wait_for_state(&owner, job, "waiting").await;
        page.open(&url(&web, &format!("/jobs/{job}"))).await;
        act(&page, operation, &[fields]).await;
        wait_for_state(&owner, job, state).await;
    }
    is("select bool_or(result::text like '%9007199254740993%') from bugle.jobs".to_owned()).await;
    worker.stop().await;

    execute(
        &owner,
        "insert into bugle.jobs (command, steps) values ('chain', '{one,two}')",
    )
    .await;
    let chain: i64 = query_value(&owner, "select max(id) from bugle.jobs").await;
    page.open(&url(&web, &format!("/jobs/{chain}"))).await;
    act(&page, "set_step", &[("state", "done")]).await;
    is(format!(
        "select state = 'done' from bugle.steps where job = {chain} and position = 1"
    ))
    .await;
    assert_eq!(page.complaints(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_templates_and_dead_letters_are_changed_by_clicks() {
    let Some(browser) = Browser::start() else { return };
    let database = Database::new().await;
    let owner = database.owner().await;
    let page = browser.page().await;
    page.size(1280, 900).await;
    let is = async |sql: &str| assert!(query_value::<bool>(&owner, sql).await, "{sql}");
    // templates are rows of the owner
    let web = Web::start(&database, "owner", &[]);

    page.open(&url(&web, "/schedules")).await;
    let fields = [("name", "daily"), ("command", "report"), ("cron", "0 3 * * *")];
    act(&page, "add_schedule", &fields).await;
    is("select cron = '0 3 * * *' and command = 'report' from bugle.schedules where name = 'daily'").await;
    page.open(&url(&web, "/schedules/daily")).await;
    act(&page, "change_schedule", &[("cron", "30 4 * * *")]).await;
    is("select cron = '30 4 * * *' from bugle.schedules where name = 'daily'").await;
    page.open(&url(&web, "/schedules/daily")).await;
    act(&page, "remove_schedule", &[]).await;
    is("select not exists (select from bugle.schedules where name = 'daily')").await;

    execute(&owner, "insert into bugle.commands (name) values ('pay')").await;
    page.open(&url(&web, "/commands/pay")).await;
    fill_in(&page, "input[name=max_attempts]", "7").await;
    follow(&page, "document.querySelector('form[action$=\"/template\"] button')").await;
    is("select max_attempts = 7 from bugle.commands where name = 'pay'").await;
    page.open(&url(&web, "/commands/pay")).await;
    act(&page, "set_command_limit", &[("max_running", "3")]).await;
    is("select max_running = 3 from bugle.commands where name = 'pay'").await;

    // a dead letter is edited and sent again; the first stays as it is
    let job = enqueue(&owner, "pay").await;
    execute(&owner, &format!("select bugle.set_state({job}, 'failed', 'by a test')")).await;
    page.open(&url(&web, "/dead-letters")).await;
    follow(&page, "document.querySelector('a[href*=\"/enqueue?from=\"]')").await;
    act(&page, "enqueue_job", &[("payload", "{\"amount\": 5}")]).await;
    is("select count(*) = 1 from bugle.jobs where state = 'ready' and payload ->> 'amount' = '5'").await;
    page.open(&url(&web, "/dead-letters")).await;
    act(&page, "restart", &[]).await;
    is(&format!("select state = 'ready' from bugle.jobs where id = {job}")).await;
    assert_eq!(page.complaints(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_jobs_are_added_and_a_workflow_is_restarted_by_clicks() {
    let Some(browser) = Browser::start() else { return };
    let database = Database::new().await;
    let owner = database.owner().await;
    let web = operator(&database, &[]).await;
    let page = browser.page().await;
    page.size(1280, 900).await;
    let is = async |sql: &str| assert!(query_value::<bool>(&owner, sql).await, "{sql}");

    page.open(&url(&web, "/add-missing")).await;
    fill_in(&page, "input[name=command]", "index").await;
    fill_in(
        &page,
        "textarea[name=lines]:not([hidden])",
        "{\"key\": \"a\"}\n{\"key\": \"b\"}",
    )
    .await;
    follow(&page, "[...document.querySelectorAll('main form button')].at(-1)").await;
    page.until("document.body.innerText.includes('2 new')").await;
    is("select count(*) = 0 from bugle.jobs").await;
    follow(&page, "document.querySelector('button[name=apply]')").await;
    is("select count(*) = 2 from bugle.jobs where command = 'index'").await;

    let graph = "select bugle.enqueue_workflow('{\"jobs\": {\"<i>a</i>\": {\"command\": \"x\"}, \
        \"b\": {\"command\": \"x\", \"after\": [\"<i>a</i>\"]}}}')";
    execute(&owner, graph).await;
    let first: i64 = query_value(&owner, "select min(workflow) from bugle.workflow_jobs").await;
    execute(
        &owner,
        &format!("select bugle.set_state({first}, 'failed', 'by a test')"),
    )
    .await;
    page.open(&url(&web, &format!("/workflows/{first}"))).await;
    assert_eq!(page.eval("document.querySelectorAll('main i').length").await, 0);
    page.until("document.body.innerText.includes('not run: <i>a</i> failed')")
        .await;
    follow(&page, "document.querySelector('button[name=verb][value=restart]')").await;
    follow(
        &page,
        "document.querySelector('form[action$=\"/jobs/bulk/apply\"] button')",
    )
    .await;
    wait_until(
        &owner,
        "select not exists (select from bugle.jobs where state = 'failed') and \
         (select count(*) = 2 from bugle.jobs where state in ('ready', 'waiting') and command = 'x')",
    )
    .await;
    assert_eq!(page.complaints(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_matches_is_changed_in_steps_that_can_be_stopped() {
    let Some(browser) = Browser::start() else { return };
    let database = Database::new().await;
    let owner = database.owner().await;
    let web = operator(&database, &[]).await;
    let page = browser.page().await;
    page.size(1280, 900).await;
    execute(
        &owner,
        "insert into bugle.jobs (command) select 'many' from generate_series(1, 2500)",
    )
    .await;
    let begin = async |verb: &str| {
        page.open(&url(&web, "/jobs?q=command:many")).await;
        page.click("document.querySelector('input[name=all]')").await;
        follow(
            &page,
            &format!("document.querySelector('button[name=verb][value={verb}]')"),
        )
        .await;
        follow(
            &page,
            "document.querySelector('form[action$=\"/jobs/bulk/apply\"] button')",
        )
        .await;
    };

    // by hand: a page without its script does not go on by itself
    page.call(
        "Emulation.setScriptExecutionDisabled",
        serde_json::json!({ "value": true }),
    )
    .await;
    begin("pause").await;
    let paused = "select count(*) from bugle.jobs where state = 'paused'";
    assert_eq!(query_value::<i64>(&owner, paused).await, 1000, "one step");
    follow(&page, "document.querySelector('#stop')").await;
    assert_eq!(query_value::<i64>(&owner, paused).await, 1000, "it was stopped");
    page.call(
        "Emulation.setScriptExecutionDisabled",
        serde_json::json!({ "value": false }),
    )
    .await;

    begin("cancel").await;
    wait_until(
        &owner,
        "select count(*) = 2500 from bugle.jobs where state = 'cancelled'",
    )
    .await;
    page.until("!!document.querySelector('.notice')").await;
    assert_eq!(page.complaints(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_ended_and_upkeep_is_run_by_clicks() {
    let Some(browser) = Browser::start() else { return };
    let database = Database::new().await;
    let owner = database.owner().await;
    let web = Web::start(&database, "owner", &[]);
    let page = browser.page().await;
    page.size(1280, 900).await;
    let press = async |path: &str| {
        let button = format!("document.querySelector('form[action$=\"{path}\"] button')");
        page.until(&format!("!!{button}")).await;
        page.click(&format!("{button}.closest('details').querySelector('summary')"))
            .await;
        follow(&page, &button).await;
        page.until("!!document.querySelector('.notice')").await;
    };

    let job = enqueue(&owner, "nobody").await;
    let blocker = database.owner().await;
    execute(&blocker, "begin; select * from bugle.jobs_live for update").await;
    let pid: i32 = query_value(&blocker, "select pg_backend_pid()").await;
    page.open(&url(&web, &format!("/jobs/{job}"))).await;
    press("/database/end-session").await;
    let gone = format!("select not exists (select from pg_stat_activity where pid = {pid})");
    wait_until(&owner, &gone).await;

    execute(&owner, "alter table bugle.jobs detach partition bugle.jobs_failed").await;
    page.open(&url(&web, "/database")).await;
    press("/database/upkeep").await;
    wait_until(&owner, "select not exists (select from bugle.missing_parts())").await;
    assert_eq!(page.complaints(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_and_the_zone_of_times_are_chosen_by_clicks() {
    let Some(browser) = Browser::start() else { return };
    let database = Database::new().await;
    let owner = database.owner().await;
    let web = operator(&database, &[]).await;
    let page = browser.page().await;
    page.size(1280, 900).await;
    page.call(
        "Emulation.setTimezoneOverride",
        serde_json::json!({ "timezoneId": "Asia/Kolkata" }),
    )
    .await;
    let job = enqueue(&owner, "nobody").await;

    page.open(&url(&web, "/jobs")).await;
    page.click("document.querySelector('details.cols summary')").await;
    page.click("document.querySelector('input[name=columns][value=priority]')")
        .await;
    follow(&page, "document.querySelector('#columns button')").await;
    page.until("[...document.querySelectorAll('th')].some((th) => th.textContent === 'Priority')")
        .await;

    page.open(&url(&web, &format!("/jobs/{job}"))).await;
    let labels = "[...document.querySelectorAll('#zone, [data-zone]')].map((e) => e.textContent).join()";
    page.until(&format!("{labels} === 'UTC+5:30,UTC+5:30'")).await;
    let time = "document.querySelector('.timeline time').textContent";
    let here = page.eval(time).await;
    page.click("document.querySelector('#zone')").await;
    page.until(&format!("{labels} === 'UTC,UTC'")).await;
    assert_ne!(page.eval(time).await, here);
    page.open(&url(&web, "/")).await;
    page.until("document.querySelector('#zone').textContent === 'UTC'")
        .await;
    assert_eq!(page.complaints(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_are_keys_unless_they_are_turned_off() {
    let Some(browser) = Browser::start() else { return };
    let database = Database::new().await;
    let owner = database.owner().await;
    let web = operator(&database, &[]).await;
    let page = browser.page().await;
    page.size(1280, 900).await;
    for _ in 0..3 {
        enqueue(&owner, "nobody").await;
    }
    page.open(&url(&web, "/jobs")).await;

    // one stop for each row
    for row in 0..3 {
        page.press("j").await;
        page.until(&format!(
            "document.activeElement === document.querySelectorAll('tbody tr')[{row}].querySelector('a')"
        ))
        .await;
    }
    page.press("k").await;
    page.until("document.activeElement === document.querySelectorAll('tbody tr')[1].querySelector('a')")
        .await;

    page.open(&url(&web, "/jobs?before=3")).await;
    let before = page.loads();
    page.press("p").await;
    page.loaded_after(before).await;
    page.until("location.search === '' && document.querySelectorAll('tbody tr').length === 3")
        .await;

    page.press("?").await;
    page.until("document.querySelector('dialog[open]')?.innerText.includes('Next row') ?? false")
        .await;
    page.click("document.querySelector('dialog input')").await;
    page.press("Escape").await;
    page.until("!document.querySelector('dialog[open]')").await;
    page.eval("document.activeElement.blur()").await;
    page.press("/").await;
    page.press("j").await;
    assert_eq!(page.eval("document.activeElement === document.body").await, true);
    assert_eq!(page.complaints(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_javascript_a_job_is_found_looked_at_and_changed() {
    let Some(browser) = Browser::start() else { return };
    let database = Database::new().await;
    let owner = database.owner().await;
    let web = operator(&database, &[]).await;
    let page = browser.page().await;
    page.size(1280, 900).await;
    let job = enqueue(&owner, "nobody").await;
    page.call(
        "Emulation.setScriptExecutionDisabled",
        serde_json::json!({ "value": true }),
    )
    .await;

    page.open(&url(&web, "/jobs?q=state:ready")).await;
    // what only a script can do is not there
    let visible = "[...document.querySelectorAll('#zone, #theme, #help, #live, #select-all')] \
        .filter((e) => e.checkVisibility({ visibilityProperty: true })).length";
    assert_eq!(page.eval(visible).await, 0);
    follow(&page, "document.querySelector('tbody a')").await;
    assert_eq!(page.eval("location.pathname").await, format!("/jobs/{job}"));
    act(&page, "cancel", &[("note", "by hand")]).await;
    let done = "select exists (select from bugle.changes where note = 'by hand' and verb = 'cancel')";
    assert!(query_value::<bool>(&owner, done).await);

    page.open(&url(&web, "/jobs")).await;
    page.click("document.querySelector('input[name=id]')").await;
    follow(&page, "document.querySelector('button[name=verb][value=restart]')").await;
    follow(
        &page,
        "document.querySelector('form[action$=\"/jobs/bulk/apply\"] button')",
    )
    .await;
    wait_for_state(&owner, job, "ready").await;
    assert_eq!(page.complaints(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_signs_in_and_out_by_clicks() {
    let Some(browser) = Browser::start() else { return };
    // the server that tests share asks for no passwords
    let server = tokio::task::spawn_blocking(|| {
        let options = Options::new().tcp().bugle_bin(BUGLE);
        PrivatePostgres::start(&options).expect("a server")
    });
    let server = server.await.expect("a server");
    let config: tokio_postgres::Config = server.tcp_url("postgres").expect("it listens").parse().expect("a URL");
    let database = Database::empty_on(config).await;
    bugle::schema::migrate(&database.config("owner"))
        .await
        .expect("migrates");
    database.create_logins().await;
    let rights = format!("grant bugle_viewer to {}_operator", database.name);
    execute(&database.owner().await, &rights).await;
    let web = Web::start(&database, "stranger", &["--login"]);
    let page = browser.page().await;
    page.size(390, 900).await;

    page.open(&url(&web, "/queues")).await;
    page.until("location.pathname === '/login'").await;
    fill_in(&page, "input[name=login]", &database.login("operator")).await;
    fill_in(&page, "input[name=password]", &database.login("operator")).await;
    follow(&page, "document.querySelector('form button')").await;
    page.until("location.pathname === '/queues'").await;
    follow(&page, "document.querySelector('form[action$=\"/logout\"] button')").await;
    page.open(&url(&web, "/queues")).await;
    page.until("location.pathname === '/login'").await;
}
