//! The pages in a real Chromium: every screen in light and dark, wide and narrow; every action by clicks; by keyboard
//! alone; live. Without a browser to be had, these tests are skipped.

mod common;

#[path = "browser/chromium.rs"]
mod chromium;
#[path = "browser/clicks.rs"]
mod clicks;

use chromium::{Browser, Page, axe};
use common::web::Web;
use common::{Database, Folder, enqueue, execute, noop, query_value, wait_until};
use tokio_postgres::Client;

/// Shown as text, whatever it would do elsewhere: code, another direction of writing, a terminal's escapes.
const HOSTILE: &str =
    "<script>window.pwned=1</script><img src=x onerror=window.pwned=1>\u{202e}evil\u{1b}[31m' \" & ${7*7}";

/// A login that may do everything a person does here.
async fn operator(database: &Database, more: &[&str]) -> Web {
    let owner = database.owner().await;
    let rights = format!("grant bugle_viewer, bugle_enqueuer to {}_operator", database.name);
    execute(&owner, &rights).await;
    Web::start(database, "operator", more)
}

fn url(web: &Web, path: &str) -> String {
    format!("http://{}{path}", web.address)
}

/// Something of everything, and all of it hostile.
async fn fill(owner: &Client) {
    let name = HOSTILE.replace('\'', "''");
    let sql = format!(
        "insert into bugle.jobs (command, queue, payload, headers, unique_key) values \
           ('{name}', '{name}', jsonb_build_object('{name}', repeat('{name}', 9000)), \
            jsonb_build_object('{name}', '{name}'), '{name}'); \
         insert into bugle.schedules (name, every, command) values ('{name}', '1 hour', '{name}'); \
         insert into bugle.schedules (name, cron, command) values ('nightly', '0 3 * * *', 'report'); \
         insert into bugle.retry_policies (name, kind, retries) values ('{name}', 'endless', null); \
         insert into bugle.commands (name, retry_policy) values ('{name}', '{name}'); \
         select bugle.pause_queue('{name}', '{name}'); \
         select bugle.set_limits('{name}', p_max_running => 3); \
         select bugle.set_state(1, 'failed', '{name}'); \
         insert into bugle.attempts (job, claim, attempt, command, outcome, code, error, started_at, ended_at) \
           values (1, 1, 1, '{name}', 'failed', '{name}', repeat('{name}' || chr(10), 100), now(), now()); \
         insert into bugle.registrations (name, host, protocol, queues, slots, commands, life_key, backend_pid) \
           values ('{name}', '{name}', bugle.protocol(), array['{name}'], '{{3}}', array['{name}'], 0, 0); \
         insert into bugle.jobs (command, steps) values ('chain', '{{one,two}}'); \
         insert into bugle.jobs (command, queue, run_at) \
           select 'mail', 'mail', now() + n * interval '1 minute' from generate_series(-40, 40) n; \
         select bugle.enqueue_workflow('{{\"jobs\": {{\"a\": {{\"command\": \"mail\"}}, \
           \"b\": {{\"command\": \"mail\", \"after\": [\"a\"]}}}}}}')"
    );
    for statement in sql.split("; ") {
        if let Err(error) = owner.batch_execute(statement).await {
            panic!("{statement}: {error:?}");
        }
    }
}

/// All screens: those in the navigation, and those behind their links.
async fn screens(page: &Page, web: &Web) -> Vec<String> {
    page.open(&url(web, "/")).await;
    let links = "[...document.querySelectorAll('nav.nav a, header a')].map((a) => new URL(a.href).pathname)";
    let mut paths: Vec<String> = serde_json::from_value(page.eval(links).await).expect("paths");
    for (list, pattern) in [
        ("/queues", "/queues/"),
        ("/commands", "/commands/"),
        ("/policies", "/policies/"),
        ("/schedules", "/schedules/"),
        ("/workflows", "/workflows/"),
        ("/workers", "/workers/"),
    ] {
        page.open(&url(web, list)).await;
        let one = format!(
            "[...document.querySelectorAll('main a[href^=\"{pattern}\"]')].map((a) => a.getAttribute('href')) \
             .slice(0, 2)"
        );
        paths.extend(serde_json::from_value::<Vec<String>>(page.eval(&one).await).expect("paths"));
    }
    for path in [
        "/?range=7d",
        "/jobs?q=state:failed",
        "/jobs?q=color:red",
        "/jobs?q=command:none",
        "/jobs/1",
        "/jobs/2",
    ] {
        paths.push(path.to_owned());
    }
    let others = [
        "/enqueue?from=1",
        "/enqueue",
        "/add-missing",
        "/errors?since=7d",
        "/policies",
        "/act/add_schedule",
        "/act/set_policy",
        "/act/set_limits?queue=mail",
        "/act/cancel?id=1",
        "/jobs?columns=queue&columns=priority&columns=worker&columns=error&columns=payload.a",
        "/jobs/987654",
        "/nowhere",
    ];
    paths.extend(others.map(str::to_owned));
    paths.sort();
    paths.dedup();
    paths
}

#[tokio::test(flavor = "multi_thread")]
async fn every_screen_is_in_order_in_light_and_dark_wide_and_narrow() {
    let Some(browser) = Browser::start() else { return };
    let database = Database::new().await;
    fill(&database.owner().await).await;
    let web = operator(
        &database,
        &["--name", "a <b>long</b> name of an instance", "--color", "red"],
    )
    .await;
    let axe = axe().await;
    let page = browser.page().await;
    page.size(1280, 900).await;
    let screens = screens(&page, &web).await;
    assert!(screens.len() > 20, "{screens:?}");
    assert!(screens.iter().any(|path| path.starts_with("/workers/")), "{screens:?}");
    let mut problems = Vec::new();
    page.complaints();

    for (width, scheme) in [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")] {
        page.size(width, 900).await;
        page.scheme(scheme).await;
        for path in &screens {
            page.open(&url(&web, path)).await;
            let at = format!("{path} {scheme} {width}");
            let complaints: Vec<String> = page
                .complaints()
                .into_iter()
                // also those of the page before
                .filter(|complaint| !["/nowhere", "/jobs/987654"].iter().any(|path| complaint.contains(path)))
                .collect();
            if !complaints.is_empty() {
                problems.push(format!("{at}: {complaints:?}"));
            }
            let state = page
                .eval(
                    "[window.pwned ?? 0, document.documentElement.scrollWidth - innerWidth, \
                     document.querySelectorAll('script:not([src]), [onerror], main img').length, \
                     [...document.querySelectorAll('body *')].filter((e) => \
                       e.getBoundingClientRect().right > innerWidth + 1 \
                       && !e.closest('.scroll, pre, svg, .sr, nav')) \
                       .map((e) => e.outerHTML.slice(0, 80)).slice(0, 3), \
                     [...document.querySelectorAll('.scroll:not(#graph, #waterfall, #minutes)')].filter((e) => \
                       e.scrollWidth > e.clientWidth + 1 && \
                       !(innerWidth > 1000 && e.textContent.includes('pwned'))).map((box) => \
                       [...box.querySelectorAll('*')].filter((e) => e.getBoundingClientRect().right > \
                         box.getBoundingClientRect().right + 1).slice(0, 3).map((e) => e.outerHTML.slice(0, 200)))]",
                )
                .await;
            if state[4] != serde_json::json!([]) {
                problems.push(format!("{at}: tables are wider than their boxes: {}", state[4]));
            }
            if state[0] != 0 || state[2] != 0 {
                problems.push(format!("{at}: hostile text became part of the page"));
            }
            if state[1].as_i64() > Some(0) {
                problems.push(format!("{at}: wider than the window by {} px: {}", state[1], state[3]));
            }
            if let Some(axe) = &axe {
                page.eval(&format!("{axe}; 0")).await;
                problems.extend(violations(&page).await.iter().map(|found| format!("{at}: {found}")));
                // with the largest of its popovers open
                let open = "(() => { const all = [...document.querySelectorAll('main details')]; \
                    const size = (e) => e.querySelectorAll('input, select, textarea').length; \
                    all.sort((a, b) => size(b) - size(a))[0]?.setAttribute('open', ''); return all.length; })()";
                if page.eval(open).await != 0 {
                    let at = format!("{at}, open");
                    problems.extend(violations(&page).await.iter().map(|found| format!("{at}: {found}")));
                }
            }
            // with everything open that can be opened
            let wider = "document.querySelectorAll('details').forEach((e) => e.setAttribute('open', '')); \
                document.documentElement.scrollWidth - innerWidth";
            let wider = page.eval(wider).await;
            if wider.as_i64() > Some(0) {
                problems.push(format!("{at}, all open: wider than the window by {wider} px"));
            }
        }
    }

    assert!(
        problems.is_empty(),
        "{} problems:\n{}",
        problems.len(),
        problems.join("\n")
    );
}

/// What axe-core, which is on the page already, finds.
async fn violations(page: &Page) -> Vec<String> {
    let run = "axe.run(document, { resultTypes: ['violations'] }).then((r) => r.violations.map((v) => \
         `${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + ' ' + \
         (n.any[0]?.message ?? '')).join(' | ')}`))";
    serde_json::from_value(page.eval(run).await).expect("a list")
}

/// Pages that are the answer to a form, and those of a database without anything.
#[tokio::test(flavor = "multi_thread")]
async fn previews_and_an_empty_database_are_in_order_in_light_and_dark_wide_and_narrow() {
    let Some(browser) = Browser::start() else { return };
    let (database, empty) = (Database::new().await, Database::new().await);
    fill(&database.owner().await).await;
    let (web, nothing) = (operator(&database, &[]).await, operator(&empty, &[]).await);
    let strangers = Web::start(&database, "stranger", &["--login"]);
    let folder = Folder::new();
    let file = folder.join("bugle.toml").display().to_string();
    let databases = format!(
        "[databases.shop]\nurl = \"{}\"\n[databases.{}]\nurl = \"host=/nowhere user=nobody dbname=none\"\n",
        database.url("operator"),
        "a-database-that-cannot-be-reached-and-has-a-long-name"
    );
    std::fs::write(&file, databases).expect("a file");
    let several = Web::listening("127.0.0.1:0", "", &["--config", &file]);
    let Some(axe) = axe().await else { return };
    let page = browser.page().await;
    let mut problems = Vec::new();

    for (width, scheme) in [(1280, "light"), (390, "dark")] {
        page.size(width, 900).await;
        page.scheme(scheme).await;
        let check = async |problems: &mut Vec<String>, what: &str| {
            page.eval(&format!("{axe}; 0")).await;
            let at = format!("{what} {scheme} {width}");
            problems.extend(violations(&page).await.iter().map(|found| format!("{at}: {found}")));
            let wider = page.eval("document.documentElement.scrollWidth - innerWidth").await;
            if wider.as_i64() > Some(0) {
                problems.push(format!("{at}: wider than the window by {wider} px"));
            }
        };
        let paths = "[...document.querySelectorAll('nav.nav a')].map((a) => new URL(a.href).pathname)";
        page.open(&url(&nothing, "/")).await;
        let paths: Vec<String> = serde_json::from_value(page.eval(paths).await).expect("paths");
        for path in &paths {
            page.open(&url(&nothing, path)).await;
            check(&mut problems, &format!("empty {path}")).await;
        }
        page.press("?").await;
        page.until("!!document.querySelector('dialog[open]')").await;
        check(&mut problems, "keys").await;
        page.open(&url(&strangers, "/login")).await;
        check(&mut problems, "login").await;
        page.open(&url(&several, "/")).await;
        check(&mut problems, "databases").await;
        page.open(&url(&web, "/jobs?q=state:ready,scheduled")).await;
        page.click("document.querySelector('input[name=all]')").await;
        check(&mut problems, "selected").await;
        let before = page.loads();
        page.click("document.querySelector('button[name=verb][value=pause]')")
            .await;
        page.loaded_after(before).await;
        check(&mut problems, "preview").await;
    }

    assert!(
        problems.is_empty(),
        "{} problems:\n{}",
        problems.len(),
        problems.join("\n")
    );
}

/// Do what a button on the page does: open what it is in, fill in its form, and click it. The notice of the next page.
async fn act(page: &Page, operation: &str, fields: &[(&str, &str)]) -> String {
    let button = format!(
        "document.querySelector('form[action$=\"/act/{operation}\"] button:not([type=button]):not([formaction])')"
    );
    // a button of a row leads to the form
    let link = format!("document.querySelector('a[href*=\"/act/{operation}?\"]')");
    page.until(&format!("!!{button} || !!{link}")).await;
    if page.eval(&format!("!{button}")).await == true {
        let before = page.loads();
        page.click(&link).await;
        page.loaded_after(before).await;
        page.until(&format!("!!{button}")).await;
    }
    // the outermost first
    let closed = format!(
        "(() => {{ let found = null; for (let e = {button}.closest('details:not([open])'); e; \
         e = e.parentElement?.closest('details:not([open])')) found = e; return found; }})()"
    );
    while page.eval(&format!("{closed} !== null")).await == true {
        page.click(&format!("{closed}.querySelector('summary')")).await;
    }
    for (name, value) in fields {
        let field = format!("{button}.form.elements.namedItem('{name}')");
        // what a list of choices drops down is not part of the page
        if page.eval(&format!("{field}.matches('select')")).await == true {
            page.eval(&format!("{field}.value = '{value}'; 0")).await;
            continue;
        }
        page.click(&field).await;
        page.eval(&format!("{field}.select?.()")).await;
        page.write(value).await;
    }
    let before = page.loads();
    page.click(&button).await;
    page.loaded_after(before).await;
    page.until("!!document.querySelector('.notice')").await;
    let notice = page.eval("document.querySelector('.notice').textContent").await;
    notice.as_str().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_action_on_a_job_is_done_by_clicks() {
    let Some(browser) = Browser::start() else { return };
    let database = Database::new().await;
    let owner = database.owner().await;
    let web = operator(&database, &[]).await;
    let page = browser.page().await;
    page.size(1280, 900).await;
    let job = enqueue(&owner, "nobody").await;
    let open = async |job: i64| page.open(&url(&web, &format!("/jobs/{job}"))).await;
    let is = async |sql: String| assert!(query_value::<bool>(&owner, &sql).await, "{sql}");
    let state = |job: i64, state: &str| format!("select state = '{state}' from bugle.jobs where id = {job}");

    open(job).await;
    act(&page, "pause", &[("note", "by <clicks>")]).await;
    is(state(job, "paused")).await;
    act(&page, "resume", &[]).await;
    is(state(job, "ready")).await;
    act(&page, "set_priority", &[("priority", "-7")]).await;
    is(format!("select priority = -7 from bugle.jobs where id = {job}")).await;
    act(&page, "reschedule", &[("run_at", "2099-01-01 00:00Z")]).await;
    is(state(job, "scheduled")).await;
    act(&page, "reschedule", &[("run_at", "now")]).await;
    is(state(job, "ready")).await;
    act(&page, "cancel", &[("note", "by clicks")]).await;
    is(state(job, "cancelled")).await;
    act(&page, "restart", &[]).await;
    is(state(job, "ready")).await;
    act(&page, "set_state", &[("to", "failed")]).await;
    is(state(job, "failed")).await;
    act(&page, "remove", &[]).await;
    is(format!("select not exists (select from bugle.jobs where id = {job})")).await;
    is(
        "select array_agg(distinct who)::text like '%operator%' and bool_or(note = 'by <clicks>') from bugle.changes"
            .to_owned(),
    )
    .await;

    page.open(&url(&web, "/enqueue")).await;
    let fields = [
        ("command", "pay"),
        ("queue", "shop"),
        ("payload", "{\"id\": 9007199254740993}"),
        ("priority", "3"),
    ];
    act(&page, "enqueue_job", &fields).await;
    let found = "select payload ->> 'id' = '9007199254740993' and priority = 3 and queue = 'shop' from bugle.jobs";
    is(found.to_owned()).await;
    assert_eq!(page.complaints(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_schedules_and_workers_are_operated_by_clicks() {
    let Some(browser) = Browser::start() else { return };
    let database = Database::new().await;
    let owner = database.owner().await;
    let web = operator(&database, &[]).await;
    let page = browser.page().await;
    page.size(1280, 900).await;
    enqueue(&owner, "nobody").await;
    let is = async |sql: &str| assert!(query_value::<bool>(&owner, sql).await, "{sql}");

    page.open(&url(&web, "/queues/default")).await;
    act(&page, "pause_queue", &[]).await;
    is("select paused_at is not null from bugle.queues where name = 'default'").await;
    act(&page, "resume_queue", &[]).await;
    is("select not exists (select from bugle.queues where paused_at is not null)").await;
    act(&page, "set_limits", &[("max_running", "5")]).await;
    is("select max_running = 5 from bugle.queues where name = 'default'").await;

    execute(
        &owner,
        "insert into bugle.schedules (name, cron, command) values ('nightly/<b>', '0 3 * * *', 'report')",
    )
    .await;
    page.open(&url(&web, "/schedules/nightly%2F%3Cb%3E")).await;
    act(&page, "pause_schedule", &[]).await;
    is("select paused_at is not null from bugle.schedules").await;
    act(&page, "resume_schedule", &[]).await;
    is("select paused_at is null from bugle.schedules").await;
    act(&page, "run_schedule_now", &[]).await;
    is("select exists (select from bugle.jobs where command = 'report')").await;

    let worker = database.worker(&[("default", 2)], noop());
    wait_until(
        &owner,
        "select exists (select from bugle.workers where state = 'alive')",
    )
    .await;
    page.open(&url(&web, "/workers")).await;
    act(&page, "pause_worker", &[]).await;
    is("select state = 'paused' from bugle.workers").await;
    page.open(&url(&web, "/workers")).await;
    act(&page, "resume_worker", &[]).await;
    is("select state = 'alive' from bugle.workers").await;
    page.open(&url(&web, "/workers")).await;
    act(&page, "drain_worker", &[]).await;
    wait_until(&owner, "select state = 'stopped' from bugle.workers").await;
    drop(worker);
    assert_eq!(page.complaints(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_can_be_done_with_the_keyboard_alone() {
    let Some(browser) = Browser::start() else { return };
    let database = Database::new().await;
    let owner = database.owner().await;
    let web = operator(&database, &[]).await;
    let page = browser.page().await;
    page.size(1280, 900).await;
    let job = enqueue(&owner, "nobody").await;
    page.open(&url(&web, "/jobs")).await;

    page.press("Tab").await;
    page.until("document.activeElement.className === 'skip'").await;
    page.press("/").await;
    page.until("document.activeElement.id === 'q'").await;
    page.write("state:ready").await;
    let before = page.loads();
    page.press("Enter").await;
    page.loaded_after(before).await;
    page.until("location.search.includes('ready') && !!document.querySelector('tbody a')")
        .await;
    page.press("j").await;
    page.until(&format!("document.activeElement.textContent === '{job}'"))
        .await;
    page.press("x").await;
    page.until("document.querySelectorAll('input[name=id]:checked').length === 1")
        .await;
    page.press("x").await;
    let before = page.loads();
    page.press("Enter").await;
    page.loaded_after(before).await;
    page.until(&format!("location.pathname === '/jobs/{job}'")).await;

    // every stop can be seen
    let cancel = "document.activeElement.matches('summary') \
        && !!document.activeElement.parentElement.querySelector('form[action$=\"/act/cancel\"]') \
        && !document.activeElement.parentElement.matches('.menu')";
    let mut stops = 0;
    while page.eval(cancel).await != true {
        page.press("Tab").await;
        let seen = "(() => { const e = document.activeElement, s = getComputedStyle(e); \
            return e === document.body || s.outlineStyle !== 'none' || s.boxShadow !== 'none'; })()";
        assert_eq!(page.eval(seen).await, true, "the focus cannot be seen");
        stops += 1;
        assert!(stops < 60, "the button is not reached");
    }
    page.press("Enter").await;
    page.until("document.activeElement.matches('details[open] input')")
        .await;
    page.press("Escape").await;
    page.until(&format!("{cancel} && !document.querySelector('details.act[open]')"))
        .await;
    page.press("Enter").await;
    page.until("document.activeElement.matches('details[open] input')")
        .await;
    page.write("by keyboard").await;
    let before = page.loads();
    page.press("Enter").await;
    page.loaded_after(before).await;
    let done = "select exists (select from bugle.changes where note = 'by keyboard' and verb = 'cancel')";
    assert!(query_value::<bool>(&owner, done).await);
    assert_eq!(page.complaints(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_follows_what_happens_and_stands_still_while_it_is_used() {
    let Some(browser) = Browser::start() else { return };
    let database = Database::new().await;
    let owner = database.owner().await;
    let web = operator(&database, &[]).await;
    let page = browser.page().await;
    page.size(1280, 900).await;
    enqueue(&owner, "first").await;
    page.open(&url(&web, "/jobs")).await;
    let rows = |count: usize| format!("document.querySelectorAll('tbody tr').length === {count}");
    page.until(&rows(1)).await;

    enqueue(&owner, "second").await;
    page.until(&rows(2)).await;
    page.click("document.querySelector('input[name=id]')").await;
    enqueue(&owner, "third").await;
    // the server has told it, twice
    let told = "new Promise((done) => { let count = 0; const source = new EventSource('/live'); \
        source.addEventListener('tick', () => { if (++count === 2) { source.close(); done(true); } }); })";
    page.eval(told).await;
    assert_eq!(
        page.eval(&rows(2)).await,
        true,
        "nothing moves while something is selected"
    );
    page.click("document.querySelector('input[name=id]:checked')").await;
    page.eval("document.activeElement.blur()").await;
    page.until(&rows(3)).await;
    assert_eq!(page.complaints(), Vec::<String>::new());

    drop(web);
    page.until("document.querySelector('#live').textContent.startsWith('stale since')")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_job_and_a_large_workflow_are_small_pages_and_what_is_copied_is_the_whole() {
    let Some(browser) = Browser::start() else { return };
    let database = Database::new().await;
    let owner = database.owner().await;
    let web = operator(&database, &[]).await;
    let page = browser.page().await;
    page.size(1280, 900).await;
    execute(
        &owner,
        "insert into bugle.jobs (command, payload) \
           select 'large', jsonb_build_object('n', 9007199254740993, 'text', repeat('<\"&', 40000)); \
         insert into bugle.attempts (job, claim, attempt, command, outcome, code, error, started_at, ended_at) \
           select 1, n, n, 'large', 'failed', 'x', repeat('<long>' || chr(10), 300), \
             now() - (3000 - n) * interval '1 minute', now() - (3000 - n) * interval '1 minute' \
           from generate_series(1, 3000) n; \
         insert into bugle.jobs (command) select 'child' from generate_series(1, 1500); \
         update bugle.jobs_live set parent = 1 where command = 'child'; \
         select bugle.enqueue_workflow(jsonb_build_object('jobs', (select jsonb_object_agg('job ' || n, \
           jsonb_build_object('command', 'x') || case when n > 1 then \
           jsonb_build_object('after', jsonb_build_array('job ' || n / 2)) else '{}' end) \
           from generate_series(1, 1000) n)))",
    )
    .await;
    let workflow: i64 = query_value(&owner, "select min(workflow) from bugle.workflow_jobs").await;

    for path in [
        "/jobs/1".to_owned(),
        format!("/workflows/{workflow}"),
        "/workflows".to_owned(),
    ] {
        let size = web.get(&path).await.body.len();
        assert!(size < 100_000, "{path} has {size} bytes");
    }
    page.open(&url(&web, "/jobs/1")).await;
    // a job of days says so: the day is part of each time
    page.until("/^[A-Z][a-z][a-z] \\d/.test(document.querySelector('.timeline time').textContent)")
        .await;
    let newest = page.eval("document.querySelector('.timeline').innerText").await;
    let before = page.loads();
    page.click("document.querySelector('.skip-to a')").await;
    page.loaded_after(before).await;
    assert_ne!(page.eval("document.querySelector('.timeline').innerText").await, newest);

    page.eval("navigator.clipboard.writeText = async (text) => { window.copied = text; }; 0")
        .await;
    page.click("document.querySelector('.doc .copy')").await;
    page.until(
        "JSON.parse(window.copied ?? '{}').text?.length === 120000 && window.copied.includes('9007199254740993')",
    )
    .await;
    assert_eq!(page.complaints(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_jobs_are_rehearsed_and_changed_by_clicks() {
    let Some(browser) = Browser::start() else { return };
    let database = Database::new().await;
    let owner = database.owner().await;
    let web = operator(&database, &[]).await;
    let page = browser.page().await;
    page.size(1280, 900).await;
    execute(
        &owner,
        "insert into bugle.jobs (command) select 'nobody' from generate_series(1, 7)",
    )
    .await;
    let cancelled = "select count(*) from bugle.jobs where state = 'cancelled'";
    page.open(&url(&web, "/jobs")).await;

    page.click("document.querySelectorAll('input[name=id]')[1]").await;
    page.click("document.querySelectorAll('input[name=id]')[2]").await;
    let before = page.loads();
    page.click("document.querySelector('button[name=verb][value=cancel]')")
        .await;
    page.loaded_after(before).await;
    page.until("document.body.innerText.includes('2 jobs')").await;
    assert_eq!(query_value::<i64>(&owner, cancelled).await, 0, "only a rehearsal");
    let before = page.loads();
    page.click("document.querySelector('form[action$=\"/jobs/bulk/apply\"] button')")
        .await;
    page.loaded_after(before).await;
    wait_until(&owner, "select count(*) = 2 from bugle.jobs where state = 'cancelled'").await;
    assert_eq!(page.complaints(), Vec::<String>::new());
}
