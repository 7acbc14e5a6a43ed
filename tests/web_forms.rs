//! `bugle web`: forms keep what was typed, ask before they act, and change no more than they show.

mod common;

use common::http::Replied;
use common::web::Web;
use common::{Database, execute, query_value};
use tokio_postgres::Client;

/// The pages for a login that may do everything a person does here.
async fn open(database: &Database) -> (Web, Client) {
    let owner = database.owner().await;
    let rights = format!("grant bugle_viewer, bugle_enqueuer to {}_operator", database.name);
    execute(&owner, &rights).await;
    (Web::start(database, "operator", &[]), owner)
}

async fn post(web: &Web, path: &str, fields: &[(&str, &str)]) -> Replied {
    let mut body = format!("csrf={}", web.csrf().await);
    for (name, value) in fields {
        body += &format!("&{}={}", escaped(name), escaped(value));
    }
    web.post(path, "", &body).await
}

fn escaped(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// The fields of the form that a page has for a path, as a browser would send them.
fn fields(page: &str, action: &str) -> Vec<(String, String)> {
    let form = page
        .split(&format!("action=\"{action}\""))
        .nth(1)
        .and_then(|rest| rest.split("</form>").next())
        .unwrap_or_else(|| panic!("no form for {action}: {page}"));
    let attribute = |tag: &str, name: &str| {
        let value = tag.split(&format!(" {name}=\"")).nth(1)?.split('"').next()?;
        Some(value.replace("&#34;", "\"").replace("&#60;", "<").replace("&#38;", "&"))
    };
    let mut fields = Vec::new();
    for input in form.split("<input").skip(1) {
        let tag = input.split('>').next().unwrap_or_default();
        if let Some(name) = attribute(tag, "name").filter(|_| !tag.contains("type=\"checkbox\"")) {
            fields.push((name, attribute(tag, "value").unwrap_or_default()));
        }
    }
    for select in form.split("<select").skip(1) {
        let chosen = select.split("<option").find(|option| option.contains(" selected"));
        let chosen = chosen.and_then(|option| attribute(option, "value"));
        fields.push((
            attribute(&format!(" {select}"), "name").expect("its name"),
            chosen.unwrap_or_default(),
        ));
    }
    for area in form.split("<textarea").skip(1) {
        let text = area.split('>').nth(1).and_then(|rest| rest.split('<').next());
        let text = text.unwrap_or_default().replace("&#34;", "\"");
        fields.push((attribute(area, "name").expect("its name"), text));
    }
    fields
}

/// The same with other values for some.
fn changed<'a>(fields: &'a [(String, String)], new: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut all: Vec<(&str, &str)> = (fields.iter())
        .filter(|(name, _)| name != "csrf" && !new.iter().any(|(other, _)| other == name))
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    all.extend(new);
    all
}

#[tokio::test]
async fn a_preview_counts_all_that_the_operation_changes() {
    let database = Database::new().await;
    let (web, owner) = open(&database).await;
    let story = "insert into bugle.jobs (command) select 'wanted' from generate_series(1, 3); \
        insert into bugle.jobs (command) select 'other' from generate_series(1, 99998); \
        insert into bugle.jobs (command) select 'wanted' from generate_series(1, 2)";
    execute(&owner, story).await;
    let everything = [("verb", "cancel"), ("all", "true"), ("q", "command:wanted")];
    let cancelled = "select count(*) from bugle.jobs where state = 'cancelled'";

    let preview = post(&web, "/jobs/bulk", &everything).await;
    assert!(
        preview.body.contains("<b>2 jobs</b> would be changed"),
        "{}",
        preview.body
    );
    assert!(preview.body.contains("Older ones stay as they are"), "{}", preview.body);
    // one that comes between the preview and the decision was not counted either
    execute(&owner, "insert into bugle.jobs (command) values ('wanted')").await;
    let form = fields(&preview.body, "/jobs/bulk/apply");
    let done = post(&web, "/jobs/bulk/apply", &changed(&form, &[])).await;

    assert_eq!(done.status, 303, "{}", done.body);
    assert_eq!(query_value::<i64>(&owner, cancelled).await, 2);
}

#[tokio::test]
async fn many_jobs_get_a_priority_and_a_state_after_a_rehearsal() {
    let database = Database::new().await;
    let (web, owner) = open(&database).await;
    execute(
        &owner,
        "insert into bugle.jobs (command) select 'x' from generate_series(1, 3)",
    )
    .await;
    let all = [("all", "true"), ("q", "command:x")];

    for (verb, value, then) in [
        (
            "set_priority",
            "-5",
            "select count(*) from bugle.jobs where priority = -5",
        ),
        (
            "set_state",
            "failed",
            "select count(*) from bugle.jobs where state = 'failed'",
        ),
    ] {
        let asked = post(&web, "/jobs/bulk", &[&all[..], &[("verb", verb)]].concat()).await;
        let form = fields(&asked.body, "/jobs/bulk");
        let preview = post(&web, "/jobs/bulk", &changed(&form, &[("value", value)])).await;
        assert!(
            preview.body.contains("<b>3 jobs</b> would be changed"),
            "{}",
            preview.body
        );
        assert_eq!(query_value::<i64>(&owner, then).await, 0, "only a rehearsal");
        let form = fields(&preview.body, "/jobs/bulk/apply");
        assert_eq!(post(&web, "/jobs/bulk/apply", &changed(&form, &[])).await.status, 303);
        assert_eq!(query_value::<i64>(&owner, then).await, 3);
    }
    let sql = post(&web, "/jobs/bulk", &[&all[..], &[("verb", "restart")]].concat())
        .await
        .body;
    assert!(sql.contains("select * from bugle.restart(array(select j.id"), "{sql}");
}

#[tokio::test]
async fn restarting_what_failed_is_rehearsed_first() {
    let database = Database::new().await;
    let (web, owner) = open(&database).await;
    execute(
        &owner,
        "insert into bugle.jobs (command) values ('x'); select bugle.set_state(1, 'failed')",
    )
    .await;

    for path in ["/errors", "/dead-letters"] {
        let page = web.get(path).await.body;
        assert!(!page.contains("/act/restart_where"), "{path}: {page}");
        let form = fields(&page, "/jobs/bulk");
        let preview = post(&web, "/jobs/bulk", &changed(&form, &[])).await;

        assert!(
            preview.body.contains("<b>1 job</b> would be changed"),
            "{path}: {}",
            preview.body
        );
    }
    let state: String = query_value(&owner, "select state from bugle.jobs").await;
    assert_eq!(state, "failed");
}

#[tokio::test]
async fn a_schedule_goes_from_cron_to_every_and_loses_what_is_emptied() {
    let database = Database::new().await;
    let (web, owner) = open(&database).await;
    let story = "insert into bugle.schedules (name, cron, command, timeout, steps, payload) \
        values ('nightly', '0 3 * * *', 'x', '5 minutes', '{a,b}', '{\"n\": 9007199254740993}')";
    execute(&owner, story).await;
    let stored = "select concat_ws(' ', cron, every, timeout, steps, payload, misfire) from bugle.schedules";

    let page = web.get("/schedules/nightly").await.body;
    let form = fields(&page, "/act/change_schedule");
    let new = [("every", "1 hour"), ("timeout", "")];
    let done = post(&web, "/act/change_schedule", &changed(&form, &new)).await;
    assert_eq!(done.status, 303, "{}", done.body);
    assert_eq!(
        query_value::<String>(&owner, stored).await,
        "01:00:00 {a,b} {\"n\": 9007199254740993} run_once"
    );

    let page = web.get("/schedules/nightly").await.body;
    let form = fields(&page, "/act/change_schedule");
    let new = [("cron", "@daily"), ("steps", "b, c"), ("misfire", "skip")];
    let done = post(&web, "/act/change_schedule", &changed(&form, &new)).await;
    assert_eq!(done.status, 303, "{}", done.body);
    assert_eq!(
        query_value::<String>(&owner, stored).await,
        "@daily {b,c} {\"n\": 9007199254740993} skip"
    );
}

#[tokio::test]
async fn columns_that_were_chosen_stay_through_searches_and_tabs() {
    let database = Database::new().await;
    let (web, owner) = open(&database).await;
    execute(&owner, "insert into bugle.jobs (command, queue) values ('a b', 'q')").await;

    let page = web
        .get("/jobs?q=command%3A%22a+b%22&columns=priority&columns=due")
        .await
        .body;
    assert!(page.contains("name=\"columns\" value=\"priority,due\""), "{page}");
    let tab = "href=\"/jobs?q=state%3Aready%20command%3A%22a%20b%22&#38;columns=priority%2Cdue\"";
    assert!(page.contains(tab), "{page}");
    let again = web.get("/jobs?q=state%3Aready&columns=priority%2Cdue").await.body;
    assert!(
        again.contains(">Priority</th>") && again.contains(">Due</th>"),
        "{again}"
    );
}

#[tokio::test]
async fn any_name_can_be_searched_for() {
    let database = Database::new().await;
    let (web, owner) = open(&database).await;
    let story = "insert into bugle.jobs (command, queue) values ('a,\"b\" \\c', 'x,y'), ('a', 'x'), ('y', 'y')";
    execute(&owner, story).await;

    for query in [r#"command:"a,\"b\" \\c""#, r#"queue:"x,y""#, r#""a,\"b\"""#] {
        let page = web.get(&format!("/jobs?q={}", escaped(query))).await.body;
        assert!(
            page.contains("href=\"/jobs/1\"")
                && !page.contains("href=\"/jobs/2\"")
                && !page.contains("href=\"/jobs/3\""),
            "{query}: {page}"
        );
    }
    let page = web.get("/queues/x%2Cy").await.body;
    assert!(page.contains(&format!("/jobs?q=queue%3A{}", "%22x%2Cy%22")), "{page}");
    let both = web.get("/jobs?q=queue%3Ax%2Cy").await.body;
    assert!(
        both.contains("href=\"/jobs/2\"") && both.contains("href=\"/jobs/3\""),
        "{both}"
    );
}

#[tokio::test]
async fn a_form_that_failed_is_shown_again_as_it_was_filled_in() {
    let database = Database::new().await;
    let (web, owner) = open(&database).await;
    execute(
        &owner,
        "insert into bugle.schedules (name, cron, command) values ('n', '@daily', 'x')",
    )
    .await;

    let wrong = post(
        &web,
        "/act/enqueue_job",
        &[
            ("command", "pay"),
            ("payload", "{not json"),
            ("queue", "shop"),
            ("run_at", "now"),
        ],
    )
    .await;
    assert_eq!(wrong.status, 400);
    let kept = fields(&wrong.body, "/act/enqueue_job");
    for (name, value) in [
        ("command", "pay"),
        ("payload", "{not json"),
        ("queue", "shop"),
        ("run_at", "now"),
    ] {
        assert!(kept.contains(&(name.to_owned(), value.to_owned())), "{name}: {kept:?}");
    }
    assert!(
        wrong.body.contains("role=\"alert\"") && wrong.body.contains("not JSON"),
        "{}",
        wrong.body
    );

    let new = [
        ("name", "new"),
        ("command", "x"),
        ("cron", "99 * * * *"),
        ("overlap", "skip"),
        ("payload", "{}"),
    ];
    let wrong = post(&web, "/act/add_schedule", &new).await;
    assert_eq!(wrong.status, 400, "{}", wrong.body);
    let kept = fields(&wrong.body, "/act/add_schedule");
    for (name, value) in new {
        assert!(kept.contains(&(name.to_owned(), value.to_owned())), "{name}: {kept:?}");
    }
    let done = post(&web, "/act/add_schedule", &changed(&kept, &[("cron", "9 * * * *")])).await;
    assert_eq!(done.status, 303, "{}", done.body);

    execute(&owner, "insert into bugle.commands (name) values ('x')").await;
    let owners = Web::start(&database, "owner", &[]);
    let wrong = post(
        &owners,
        "/commands/x/template",
        &[("timeout", "soon"), ("queue", "slow")],
    )
    .await;
    assert_eq!(wrong.status, 400, "{}", wrong.body);
    assert!(wrong.body.contains("role=\"alert\""), "{}", wrong.body);
    let kept = fields(&wrong.body, "/commands/x/template");
    assert!(kept.contains(&("timeout".to_owned(), "soon".to_owned())), "{kept:?}");
}

#[tokio::test]
async fn a_button_of_a_row_asks_for_a_note_and_shows_its_statement() {
    let database = Database::new().await;
    let (web, owner) = open(&database).await;
    execute(
        &owner,
        "insert into bugle.jobs (command) values ('x'); select bugle.set_state(1, 'failed')",
    )
    .await;

    let page = web.get("/dead-letters").await.body;
    assert!(
        page.contains("href=\"/act/restart?id=1&#38;back=%2Fdead%2Dletters\"")
            || page.contains("href=\"/act/restart?id=1&back=%2Fdead%2Dletters\""),
        "{page}"
    );
    let asked = web.get("/act/restart?id=1&back=%2Fdead-letters").await;
    assert_eq!(asked.status, 200);
    assert!(asked.body.contains("select bugle.restart(1);"), "{}", asked.body);
    let is_failed = "select state = 'failed' from bugle.jobs";
    assert!(query_value::<bool>(&owner, is_failed).await, "nothing was done yet");
    let form = fields(&asked.body, "/act/restart");
    let typed = changed(&form, &[("note", "it's fixed")]);
    let sql = post(&web, "/act/restart/sql", &typed).await;
    assert_eq!(sql.body, "select bugle.restart(1, p_note => 'it''s fixed');");
    let done = post(&web, "/act/restart", &typed).await;

    assert_eq!(done.status, 303, "{}", done.body);
    let note: String = query_value(&owner, "select note from bugle.changes where verb = 'restart'").await;
    assert_eq!(note, "it's fixed");
    let viewer = Web::start(&database, "viewer", &[]);
    assert_eq!(viewer.get("/act/restart?id=1").await.status, 403);
}

#[tokio::test]
async fn sites_on_one_host_have_cookies_of_their_own() {
    let database = Database::new().await;
    let (web, owner) = open(&database).await;
    execute(&owner, "insert into bugle.jobs (command) values ('x')").await;
    let below = Web::start(&database, "operator", &["--base-path", "/bugle"]);
    let cookie = |replied: &Replied| {
        let mut lines = replied.head.lines();
        let line = lines.find(|line| line.starts_with("set-cookie: bugle_notice_"));
        line.unwrap_or_else(|| panic!("no notice: {}", replied.head)).to_owned()
    };

    let here = cookie(&post(&web, "/act/pause", &[("id", "1"), ("back", "/jobs")]).await);
    let csrf = below.visitor().get("/bugle/enqueue").await.body;
    let csrf = common::web::hidden(&csrf, "csrf").expect("a token");
    let resumed = below
        .post("/bugle/act/resume", "Host: localhost\r\n", &format!("csrf={csrf}&id=1"))
        .await;
    let there = cookie(&resumed);

    assert!(here.contains("; path=/") && !here.contains("secure"), "{here}");
    assert!(there.contains("; path=/bugle"), "{there}");
    let name = |cookie: &str| cookie.split(['=', ' ']).nth(1).map(str::to_owned);
    assert_ne!(
        name(&here),
        name(&there),
        "a browser sends cookies to every port of a host"
    );
    let pair = |cookie: &str| {
        cookie["set-cookie: ".len()..]
            .split(';')
            .next()
            .map(str::to_owned)
            .unwrap()
    };
    let with = |cookie: String| format!("Cookie: {cookie}\r\n");
    let shown = common::http::ask(web.address, "GET", "/jobs", &with(pair(&here)), "")
        .await
        .body;
    assert!(shown.contains("class=\"notice\""), "{shown}");
    let shown = common::http::ask(web.address, "GET", "/jobs", &with(pair(&there)), "")
        .await
        .body;
    assert!(!shown.contains("class=\"notice\""), "{shown}");
    let page = below.get("/bugle/jobs?q=state%3Aready").await.body;
    assert!(
        page.contains("\"/bugle/jobs?q=state%3Aready"),
        "it leads back here: {page}"
    );
    assert!(!page.contains("/bugle/bugle"), "{page}");
    let far = web.post("/act/pause", "Host: jobs.example.org\r\n", "").await;
    assert_eq!(far.status, 403, "not by this name");
}

#[tokio::test]
async fn a_page_that_refreshes_itself_says_how_old_its_counts_are() {
    let database = Database::new().await;
    let (web, _) = open(&database).await;

    let refresh = "Bugle-Refresh: 1\r\n";
    let pages = [
        common::http::ask(web.address, "GET", "/", refresh, "").await,
        common::http::ask(web.address, "GET", "/", refresh, "").await,
    ];
    for page in &pages {
        assert_eq!(
            page.status, 200,
            "those who watch the same page share it: {}",
            page.body
        );
        let age = page.head.lines().find_map(|line| line.strip_prefix("bugle-age: "));
        assert!(age.is_some_and(|age| age.parse::<u64>().is_ok()), "{}", page.head);
    }
    assert!(pages[0].body.contains("<h1>Overview</h1>") && pages[0].head.contains("content-security-policy"));
}

#[tokio::test]
async fn the_overview_tells_of_rings_late_updates_and_rescues_and_has_buttons_that_fix() {
    let database = Database::new().await;
    let (_, owner) = open(&database).await;
    let story = "insert into bugle.doorbell_minutes values (now() - interval '2 minutes', 'default', 60, 3); \
        insert into bugle.late_updates (worker, job, claim, verdict, late_by) \
          values (7, 1, 1, 'fenced', '90 seconds'); \
        insert into bugle.attempts (job, claim, attempt, outcome) values (1, 1, 1, 'rescued'); \
        insert into bugle.jobs (command) select 'mail' from generate_series(1, 3); \
        select bugle.set_state_where('failed', p_command => 'mail')";
    execute(&owner, story).await;
    let web = Web::start(&database, "owner", &[]);

    // the overview does not wait for the doctor: the page of its findings does
    let database = web.get("/database").await.body;
    let page = web.get("/").await.body;
    for part in [
        "12 rings/min",
        "3 jobs found only by it in 24 h",
        "1 rejected in 24 h",
        "1 job in 24 h",
        "select * from bugle.queue_stats;",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    execute(&owner, "insert into bugle.queues (name) values ('default')").await;
    // dead letters: what they are is known, and restarting them is rehearsed
    let form = fields(&page, "/jobs/bulk");
    assert!(
        form.contains(&(
            "q".to_owned(),
            "state:failed ended:<1h command:mail reason:operator".to_owned()
        )),
        "{form:?}"
    );
    let preview = post(&web, "/jobs/bulk", &changed(&form, &[])).await;
    assert!(preview.body.contains("<b>3 jobs</b>"), "{}", preview.body);
    assert!(
        fields(&database, "/jobs/bulk").contains(&("verb".to_owned(), "restart".to_owned())),
        "{database}"
    );
    let workers = web.get("/workers").await.body;
    assert!(
        workers.contains("Late updates") && workers.contains(">90 s<"),
        "{workers}"
    );
    let queue = web.get("/queues/default").await.body;
    assert!(queue.contains("Rings per minute</dt><dd>12</dd>"), "{queue}");
}

#[tokio::test]
async fn a_session_that_locks_a_job_is_ended_by_a_button() {
    let database = Database::new().await;
    let (web, owner) = open(&database).await;
    execute(&owner, "insert into bugle.jobs (command) values ('x')").await;
    let blocker = database.owner().await;
    execute(&blocker, "begin; select * from bugle.jobs_live for update").await;
    let pid: i32 = query_value(&blocker, "select pg_backend_pid()").await;

    let page = web.get("/jobs/1").await.body;
    assert!(!page.contains("/database/end-session"), "this login may not: {page}");
    let sql = format!("<code data-copy>select pg_terminate_backend({pid});</code>");
    assert!(page.contains(&sql), "{page}");
    let owners = Web::start(&database, "owner", &[]);
    let form = fields(&owners.get("/jobs/1").await.body, "/database/end-session");
    let done = post(&owners, "/database/end-session", &changed(&form, &[])).await;

    assert_eq!(done.status, 303, "{}", done.body);
    let gone = format!("select not exists (select from pg_stat_activity where pid = {pid})");
    common::wait_until(&owner, &gone).await;
}

#[tokio::test]
async fn changes_are_filtered_and_many_jobs_are_one_entry() {
    let database = Database::new().await;
    let (web, owner) = open(&database).await;
    let story = "insert into bugle.jobs (command) select 'x' from generate_series(1, 700); \
        select bugle.pause_where(p_command => 'x', p_note => 'a flood'); \
        insert into bugle.queues (name) values ('mail'); \
        select bugle.pause_queue('mail', 'the provider is down'); \
        select bugle.set_priority(1, 5)";
    for statement in story.split("; ") {
        execute(&owner, statement).await;
    }

    let all = web.get("/changes").await.body;
    assert!(all.contains("and 699 others, at once"), "{all}");
    assert_eq!(all.matches("a flood").count(), 1, "{all}");
    for (query, shown, hidden) in [
        ("?queue=mail", "the provider", "a flood"),
        ("?note=PROVIDER", "the provider", "a flood"),
        ("?verb=pause", "a flood", "the provider"),
        ("?since=1+hour&who=nobody", "No change matches.", "a flood"),
    ] {
        let page = web.get(&format!("/changes{query}")).await.body;
        let body = page.split("</form>").skip(1).collect::<String>();
        assert!(body.contains(shown) && !body.contains(hidden), "{query}: {page}");
    }
    let sql = web.get("/changes?queue=mail&note=down").await.body;
    assert!(
        sql.contains("where queue = &#39;mail&#39; and strpos(lower(note)"),
        "{sql}"
    );
}

#[tokio::test]
async fn the_next_times_of_a_schedule_are_shown_before_it_is_stored() {
    let database = Database::new().await;
    let (web, owner) = open(&database).await;
    let page = web.get("/schedules").await.body;
    assert!(page.contains("href=\"/act/add_schedule?back=%2Fschedules\""), "{page}");

    let form = fields(
        &web.get("/act/add_schedule?back=%2Fschedules").await.body,
        "/act/add_schedule",
    );
    let new = [
        ("name", "nightly"),
        ("command", "x"),
        ("cron", "30 2 * * *"),
        ("timezone", "Asia/Tokyo"),
    ];
    let shown = post(&web, "/act/add_schedule/preview", &changed(&form, &new)).await;
    assert_eq!(shown.status, 200, "{}", shown.body);
    assert_eq!(shown.body.matches(" 02:30:00 Asia/Tokyo").count(), 5, "{}", shown.body);
    let count = "select count(*) from bugle.schedules";
    assert_eq!(query_value::<i64>(&owner, count).await, 0, "nothing is stored");
    let form = fields(&shown.body, "/act/add_schedule");
    let done = post(&web, "/act/add_schedule", &changed(&form, &[])).await;

    assert!(done.head.contains("location: /schedules\r\n"), "{}", done.head);
    assert_eq!(query_value::<i64>(&owner, count).await, 1);
    let wrong = post(
        &web,
        "/act/add_schedule/preview",
        &[("name", "n"), ("command", "x"), ("cron", "soon")],
    )
    .await;
    assert!(
        wrong.status == 400 && wrong.body.contains("role=\"alert\""),
        "{}",
        wrong.body
    );
}

#[tokio::test]
async fn dead_letters_are_grouped_filtered_and_selected() {
    let database = Database::new().await;
    let (web, owner) = open(&database).await;
    let story = "insert into bugle.jobs (command, steps) values ('chain', '{one,two}'); \
        insert into bugle.jobs (command) select 'mail' from generate_series(1, 3); \
        select bugle.set_state_where('failed', p_older_than => '0 s', p_state => 'ready'); \
        update bugle.jobs_failed set attempt = 1";
    for statement in story.split("; ") {
        execute(&owner, statement).await;
    }

    let page = web.get("/dead-letters").await.body;
    assert!(
        page.contains("href=\"/dead-letters?reason=operator\""),
        "grouped by reason: {page}"
    );
    assert!(page.contains(">one<"), "the step that failed: {page}");
    assert!(
        page.contains("operator <b>4</b></a>"),
        "how many of each, above them: {page}"
    );
    let worker: i64 = query_value(
        &owner,
        "select worker from bugle.register('digger', 'pit', 1, '0', bugle.protocol(), '{default}', '{3}', '{mail}')",
    )
    .await;
    let story = format!(
        "update bugle.jobs_failed set worker = {worker} where id = 2; \
         update bugle.jobs_failed set finished_at = now() - interval '3 hours' where id in (1, 3)"
    );
    execute(&owner, &story).await;
    for (filter, jobs) in [
        ("step=one", 1),
        ("step=two", 0),
        ("worker=pit", 1),
        ("worker=digger", 1),
        ("within=1+hour", 2),
        ("within=24+hours", 4),
        ("command=mail&within=1+hour", 2),
    ] {
        let page = web.get(&format!("/dead-letters?{filter}")).await.body;
        assert_eq!(page.matches("name=\"id\"").count(), jobs, "{filter}: {page}");
    }
    let mail = web.get("/dead-letters?command=mail").await.body;
    assert!(
        mail.matches("name=\"id\"").count() == 3 && !mail.contains(">chain<"),
        "{mail}"
    );
    let query = fields(&mail, "/jobs/bulk");
    assert!(
        query.contains(&("q".to_owned(), "state:failed command:mail".to_owned())),
        "{query:?}"
    );
    let preview = post(&web, "/jobs/bulk", &[("verb", "restart"), ("id", "2"), ("id", "3")]).await;

    assert!(
        preview.body.contains("<b>2 jobs</b> would be changed"),
        "{}",
        preview.body
    );
}

#[tokio::test]
async fn a_worker_has_a_page_with_what_it_runs() {
    let database = Database::new().await;
    let (web, owner) = open(&database).await;
    let register = "select worker from bugle.register('digger', 'here', 1, '0', bugle.protocol(), \
        array['default'], array[3], array['noop'])";
    let worker: i64 = query_value(&owner, register).await;
    let story = format!(
        "insert into bugle.jobs (command) values ('noop'); \
         update bugle.jobs_live set state = 'running', worker = {worker}, claim = 1, attempt = 1, started_at = now(), \
           first_started_at = now()"
    );
    execute(&owner, &story).await;

    let page = web.get(&format!("/workers/{worker}")).await.body;
    for part in ["digger", "default</a> 3", "href=\"/jobs/1\"", "/commands/noop"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert_eq!(web.get("/workers/999").await.status, 404);
    let command = web.get("/commands/noop").await.body;
    assert!(
        command.contains(&format!("href=\"/workers/{worker}\"")),
        "who serves it: {command}"
    );
}

#[tokio::test]
async fn a_job_links_to_its_trace_and_its_logs() {
    let database = Database::new().await;
    let (_, owner) = open(&database).await;
    let story = "insert into bugle.jobs (command, order_key, headers) values ('x', 'door', \
        '{\"traceparent\": \"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\"}'); \
        insert into bugle.jobs (command) values ('x')";
    execute(&owner, story).await;
    let trace = "https://traces.example.org/{trace_id}";
    let logs = "https://logs.example.org/?q={job}";
    let web = Web::start(&database, "operator", &["--trace-url", trace, "--log-url", logs]);

    let page = web.get("/jobs/1").await.body;
    assert!(
        page.contains("https://traces.example.org/0af7651916cd43dd8448eb211c80319c\""),
        "{page}"
    );
    assert!(page.contains("https://logs.example.org/?q=1\""), "{page}");
    assert!(page.contains(">door</a>") && page.contains("Enqueued by"), "{page}");
    let page = web.get("/jobs/2").await.body;
    assert!(!page.contains("traces.example.org") && page.contains("?q=2"), "{page}");
}

#[tokio::test]
async fn jobs_that_wait_for_another_with_their_order_key_are_explained_where_slots_are_free() {
    let database = Database::new().await;
    let (web, owner) = open(&database).await;
    let register = "select worker from bugle.register('w', 'here', 1, '0', bugle.protocol(), '{q}', '{3}', '{x}')";
    query_value::<i64>(&owner, register).await;
    let story = "insert into bugle.jobs (command, queue, order_key) values ('x', 'q', 'door'), ('x', 'q', 'door'); \
        select bugle.set_state(1, 'retrying')";
    for statement in story.split("; ") {
        execute(&owner, statement).await;
    }

    let queue = web.get("/queues/q").await.body;
    for button in [
        "/act/reschedule?id=1&amp;run_at=now&amp;back=",
        "/act/set_limits?queue=q&amp;order_on_retry=pass&amp;back=",
    ] {
        assert!(queue.contains(button), "{button}: {queue}");
    }
    let queues = web.get("/queues").await.body;
    assert!(queues.contains("1 blocked by their order keys"), "{queues}");
    let overview = web.get("/").await.body;
    assert!(
        overview.contains("1 job waits for job <a class=\"mono\" href=\"/jobs/1\">"),
        "{overview}"
    );
    let form = fields(&overview, "/act/set_limits");
    let done = post(&web, "/act/set_limits", &changed(&form, &[])).await;
    assert_eq!(done.status, 303, "{}", done.body);
    let passes = "select order_on_retry = 'pass' from bugle.queues where name = 'q'";
    assert!(query_value::<bool>(&owner, passes).await);
}

#[tokio::test]
async fn a_query_offers_what_its_states_allow_and_one_that_is_wrong_has_no_list() {
    let database = Database::new().await;
    let (web, owner) = open(&database).await;
    let story = "insert into bugle.jobs (command) values ('x'), ('x'); select bugle.set_state(1, 'failed', 'a test')";
    for statement in story.split("; ") {
        execute(&owner, statement).await;
    }
    let offers = |page: &str, verb: &str| page.contains(&format!("name=\"verb\" value=\"{verb}\""));

    let failed = web.get("/jobs?q=state:failed").await.body;
    assert!(
        offers(&failed, "restart") && offers(&failed, "remove") && !offers(&failed, "pause"),
        "{failed}"
    );
    let ready = web.get("/jobs?q=state:ready").await.body;
    assert!(offers(&ready, "pause") && !offers(&ready, "restart"), "{ready}");
    let all = web.get("/jobs").await.body;
    assert!(offers(&all, "pause") && offers(&all, "restart"), "{all}");
    let wrong = web.get("/jobs?q=color:red").await.body;
    assert!(
        wrong.contains("is not a name of the query") && !wrong.contains("No job matches"),
        "{wrong}"
    );
    assert!(
        wrong.contains("href=\"/jobs?q=state%3Afailed\""),
        "the states stay: {wrong}"
    );
}

#[tokio::test]
async fn the_columns_of_jobs_can_be_workers_keys_and_parts_of_payloads() {
    let database = Database::new().await;
    let (web, owner) = open(&database).await;
    let register = "select worker from bugle.register('digger', 'here', 1, '0', bugle.protocol(), '{q}', '{3}', '{x}')";
    let worker: i64 = query_value(&owner, register).await;
    let story = format!(
        "insert into bugle.jobs (command, order_key, payload) \
           values ('x', 'door', '{{\"user\": {{\"id\": 9007199254740993}}, \"secret\": \"hush\"}}'); \
         update bugle.settings set redacted_paths = '{{secret}}'; \
         update bugle.jobs_live set state = 'running', worker = {worker}, claim = 1, attempt = 1, progress = 40, \
           progress_note = 'page 2', started_at = now(), first_started_at = now()"
    );
    for statement in story.split("; ") {
        execute(&owner, statement).await;
    }

    let usual = web.get("/jobs").await.body;
    assert!(usual.contains("</progress> 40 % page 2"), "how far it is: {usual}");
    let chosen = web
        .get("/jobs?columns=worker&columns=keys&columns=payload.user.id&columns=payload.secret")
        .await
        .body;
    for part in [
        ">digger</a>",
        ">order door</span>",
        ">9007199254740993</span>",
        "payload.user.id</th>",
    ] {
        assert!(chosen.contains(part), "{part}: {chosen}");
    }
    assert!(!chosen.contains("hush"), "redacted: {chosen}");
}

#[tokio::test]
async fn the_timeline_counts_from_the_start_of_the_same_attempt() {
    let database = Database::new().await;
    let (web, owner) = open(&database).await;
    let story = "insert into bugle.jobs (command) values ('x'); \
        insert into bugle.attempts (job, claim, attempt, started_at, ended_at) values \
          (1, 1, 1, now() - interval '1 hour', now() - interval '1 hour' + interval '3 seconds'), \
          (1, 2, 2, null, now() - interval '20 minutes')";
    for statement in story.split("; ") {
        execute(&owner, statement).await;
    }

    let page = web.get("/jobs/1").await.body;
    assert!(page.contains("after 3.0 s"), "{page}");
    assert_eq!(
        page.matches("<small>after ").count(),
        1,
        "the start of the second is unknown: {page}"
    );
}

#[tokio::test]
async fn the_form_of_a_schedule_names_its_defaults_and_what_completes_it() {
    let database = Database::new().await;
    let (web, owner) = open(&database).await;
    execute(&owner, "insert into bugle.commands (name) values ('report')").await;

    let form = web.get("/act/add_schedule?back=%2Fschedules").await.body;
    for part in [
        "name=\"timezone\" value=\"\" placeholder=\"UTC\" list=\"zones\"",
        "name=\"queue\" value=\"\" placeholder=\"default\" list=\"queues\"",
        "run once (default)",
        "<datalist id=\"commands\"><option value=\"report\">",
        "<datalist id=\"policies\">",
        // the page it belongs to
        "href=\"/schedules\" aria-current=\"page\"",
    ] {
        assert!(form.contains(part), "{part}: {form}");
    }
    let words = web.get("/cron-in-words?cron=0+9+*+*+TUE").await;
    assert_eq!(words.body, "every Tuesday at 09:00");
    assert_eq!(web.get("/cron-in-words?cron=%3Cb%3E").await.body, "");
}

#[tokio::test]
async fn changes_say_in_words_what_became_of_a_queue() {
    let database = Database::new().await;
    let (web, owner) = open(&database).await;
    let story = "select bugle.set_limits('mail', p_max_running => 4, p_max_starts => 90, \
          p_starts_period => '1 minute'); \
        select bugle.pause_queue('mail'); select bugle.resume_queue('mail')";
    for statement in story.split("; ") {
        execute(&owner, statement).await;
    }

    let page = web.get("/changes").await.body;
    for part in ["none → 4 at once, 90 starts per minute", ">paused → resumed<"] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[tokio::test]
async fn a_retry_policy_is_added_changed_and_removed_unless_something_uses_it() {
    let database = Database::new().await;
    let (web, owner) = open(&database).await;
    let stored = "select bugle.describe_policy(p) from bugle.retry_policies p where name = 'hourly/<'";
    let page = "/policies/hourly%2F%3C";

    let form = web.get("/act/set_policy?back=%2Fpolicies").await.body;
    assert!(form.contains("href=\"/commands\" aria-current=\"page\""), "{form}");
    assert!(form.contains("exponential (default)"), "{form}");
    let empty = fields(&form, "/act/set_policy");
    let new = [
        ("name", "hourly/<"),
        ("kind", "fixed"),
        ("retries", "1"),
        ("delay", "1 hour"),
        ("note", "a partner"),
    ];
    let added = post(&web, "/act/set_policy", &changed(&empty, &new)).await;
    assert_eq!(added.status, 303, "{}", added.body);
    assert!(added.head.contains("location: /policies\r\n"), "{}", added.head);
    let policy: String = query_value(&owner, stored).await;
    assert_eq!(policy, "fixed, 1 retry, delay 01:00:00, jitter 0.1");

    let list = web.get("/policies").await.body;
    for part in [
        "hourly/&lt;</a>",
        ">1 retry<",
        ">1\u{a0}h<",
        "15 retries",
        "3 a day, on 2 days",
        "without end",
    ] {
        assert!(list.contains(part), "{part}: {list}");
    }
    let one = web.get(page).await.body;
    let sql = "select bugle.remove_policy(&#39;hourly/&#60;&#39;);";
    for part in [sql, "select bugle.set_policy(", "<h2>Retries</h2>", ">1\u{a0}h<"] {
        assert!(one.contains(part), "{part}: {one}");
    }

    // what stays as it is, is not sent: the number of retries goes with the kind
    let known = fields(&one, "/act/set_policy");
    let endless = post(&web, "/act/set_policy", &changed(&known, &[("kind", "endless")])).await;
    assert_eq!(endless.status, 303, "{}", endless.body);
    let policy: String = query_value(&owner, stored).await;
    assert_eq!(
        policy,
        "endless, delay 01:00:00, factor 2, max_delay 01:00:00, jitter 0.1"
    );
    let wrong = post(&web, "/act/set_policy", &changed(&known, &[("jitter", "7")])).await;
    assert_eq!(wrong.status, 400, "{}", wrong.body);
    assert!(
        wrong.body.contains("must be between 0 and 1, not &#39;7&#39;"),
        "{}",
        wrong.body
    );
    assert!(
        wrong.body.contains("spreads each delay by ten percent"),
        "{}",
        wrong.body
    );

    let used = "insert into bugle.commands (name, step_retry_policy) values ('pay', 'hourly/<'); \
        insert into bugle.schedules (name, every, command, retry_policy) \
        values ('nightly', '1 day', 'pay', 'hourly/<')";
    execute(&owner, used).await;
    let one = web.get(page).await.body;
    assert!(one.contains("command <a href=\"/commands/pay\">"), "{one}");
    assert!(one.contains("schedule <a href=\"/schedules/nightly\">"), "{one}");
    let refused = post(&web, "/act/remove_policy", &[("name", "hourly/<")]).await;
    assert_eq!(refused.status, 409, "{}", refused.body);
    assert!(refused.body.contains("is used by the schedule"), "{}", refused.body);
    execute(&owner, "delete from bugle.schedules").await;
    let refused = post(&web, "/act/remove_policy", &[("name", "hourly/<")]).await;
    assert!(refused.body.contains("is used by the command"), "{}", refused.body);
    execute(&owner, "delete from bugle.commands").await;
    let removed = post(&web, "/act/remove_policy", &[("name", "hourly/<"), ("note", "over")]).await;
    assert_eq!(removed.status, 303, "{}", removed.body);
    assert!(removed.head.contains("location: /policies\r\n"), "{}", removed.head);

    assert_eq!(web.get(page).await.status, 404);
    let recorded = "select array_agg(verb || ' ' || who order by id) from bugle.changes where policy = 'hourly/<'";
    let recorded: Vec<String> = query_value(&owner, recorded).await;
    let who = database.login("operator");
    let by_operator = |verb: &str| format!("{verb} {who}");
    let verbs = ["set_policy", "set_policy", "remove_policy"];
    assert_eq!(recorded, verbs.map(by_operator));
    let default = web.get("/policies/default").await.body;
    assert!(default.contains("jobs and commands that name none"), "{default}");
    assert!(!default.contains("/act/remove_policy"), "{default}");
}
