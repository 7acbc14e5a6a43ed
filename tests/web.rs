//! `bugle web`: the pages, what their buttons do, and who may not press them.

mod common;

use std::collections::BTreeSet;

use bugle::operations::allowed_from;
use common::cli::{command, run};
use common::http::ask;
use common::poll::look_for;
use common::web::{Web, is_counting};
use common::{DEADLINE, Database, Folder, enqueue, execute, query_value};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A login that may do everything a person does here.
async fn operator(database: &Database) -> Web {
    let owner = database.owner().await;
    let rights = format!("grant bugle_viewer, bugle_enqueuer to {}_operator", database.name);
    execute(&owner, &rights).await;
    Web::start(database, "operator", &["--name", "test & <b>"])
}

async fn state(database: &Database, job: i64) -> String {
    let sql = format!("select state from bugle.jobs where id = {job}");
    query_value(&database.owner().await, &sql).await
}

const HOSTILE: &str = "<script>alert(1)</script>";

#[tokio::test]
async fn every_page_opens_and_shows_hostile_text_as_text() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let hostile = format!(
        "insert into bugle.jobs (command, queue, payload, headers, unique_key) values \
           ('{HOSTILE}', '{HOSTILE}/ \"', jsonb_build_object('{HOSTILE}', repeat('{HOSTILE}', 20000)), \
            '{{\"{HOSTILE}\": \"\\u001b[31m\"}}', '{HOSTILE}'); \
         insert into bugle.schedules (name, every, command) values ('{HOSTILE}', '1 hour', '{HOSTILE}'); \
         select bugle.pause_queue('{HOSTILE}/ \"', '{HOSTILE}'); \
         select bugle.set_state(1, 'failed', '{HOSTILE}'); \
         insert into bugle.attempts (job, claim, attempt, code, error) values (1, 1, 1, '{HOSTILE}', '{HOSTILE}'); \
         insert into bugle.jobs (command, steps) values ('chain', '{{\"{HOSTILE}\"}}')"
    );
    execute(&owner, &hostile).await;
    let web = operator(&database).await;

    let name: String = HOSTILE.bytes().map(|byte| format!("%{byte:02X}")).collect();
    for path in [
        "/",
        "/?range=7d",
        "/jobs",
        "/jobs?q=state:failed",
        "/jobs/1",
        "/jobs/2",
        "/queues",
        "/commands",
        "/schedules",
        "/workers",
        "/errors",
        "/dead-letters",
        "/changes",
        "/database",
        "/enqueue?from=1",
        "/jobs?q=color:red",
        &format!("/queues/{name}%2F%20%22"),
        &format!("/schedules/{name}"),
        &format!("/jobs?q={name}"),
    ] {
        let page = web.get(path).await;

        assert_eq!(page.status, 200, "{path}: {}", page.body);
        assert!(!page.body.contains(HOSTILE) && !page.body.contains('\u{1b}'), "{path}");
        assert!(page.body.len() < 100_000, "{path} has {} bytes", page.body.len());
        let policy = "content-security-policy: default-src 'none'; script-src 'self'";
        assert!(
            page.head.contains(policy) && page.head.contains("frame-ancestors 'none'"),
            "{}",
            page.head
        );
        assert!(
            !page.body.contains(" style=") && !page.body.contains(" onclick="),
            "{path} has inline code"
        );
        assert!(
            page.body.contains("test &#38; &#60;b&#62;") || page.body.contains("test &amp; &lt;b&gt;"),
            "{path}"
        );
    }
    let page = web.get("/jobs").await.body;
    assert!(
        page.contains("&#60;script&#62;alert(1)") || page.contains("&lt;script&gt;alert(1)"),
        "{page}"
    );
    assert_eq!(web.get("/nowhere").await.status, 404);
    let unknown = web.get("/jobs/999999").await;
    assert_eq!(unknown.status, 404);
    assert!(unknown.body.contains("There is no job 999999."), "{}", unknown.body);
}

#[tokio::test]
async fn a_timeline_says_in_words_how_a_job_ended() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let (failed, cancelled) = (enqueue(&owner, "nobody").await, enqueue(&owner, "nobody").await);
    let sql = format!("select bugle.set_state({failed}, 'failed'); select bugle.cancel({cancelled})");
    execute(&owner, &sql).await;
    let web = operator(&database).await;

    for (job, words) in [
        (failed, "an operator failed it"),
        (cancelled, "an operator cancelled it"),
    ] {
        let page = web.get(&format!("/jobs/{job}")).await.body;
        let timeline = page.split("id=\"timeline\"").nth(1).expect("a timeline");
        let timeline = timeline.split("</ol>").next().unwrap();
        assert!(timeline.contains(words), "{timeline}");
    }
}

#[tokio::test]
async fn assets_have_a_hash_and_may_be_kept_for_ever() {
    let database = Database::new().await;
    let web = operator(&database).await;
    let page = web.get("/jobs").await.body;

    for attribute in ["href=\"/assets/style.", "src=\"/assets/app."] {
        let begin = page.find(attribute).expect("an asset") + attribute.find('"').unwrap() + 1;
        let url = page[begin..].split('"').next().unwrap();
        let asset = web.get(url).await;
        assert_eq!(asset.status, 200, "{url}");
        assert!(asset.head.contains("immutable"), "{}", asset.head);
    }
}

#[tokio::test]
async fn a_button_does_what_it_says_and_leaves_a_record() {
    let database = Database::new().await;
    let job = enqueue(&database.owner().await, "nobody").await;
    let web = operator(&database).await;
    let csrf = web.csrf().await;
    let page = web.get(&format!("/jobs/{job}")).await.body;
    assert!(page.contains("action=\"/act/cancel\""), "{page}");
    assert!(
        page.contains(&format!("select bugle.cancel({job});")),
        "the SQL of the button: {page}"
    );

    let form = format!("csrf={csrf}&id={job}&note=by+the+test&back=%2Fjobs%2F{job}");
    let done = web.post("/act/cancel", "", &form).await;

    assert_eq!(done.status, 303, "{}", done.body);
    assert!(done.head.contains(&format!("location: /jobs/{job}")), "{}", done.head);
    assert_eq!(state(&database, job).await, "cancelled");
    let owner = database.owner().await;
    let who: String = query_value(&owner, "select who from bugle.changes where note = 'by the test'").await;
    assert_eq!(who, format!("{}_operator", database.name));
    let again = web.post("/act/cancel", "", &form).await;
    assert_eq!(again.status, 409);
    assert!(again.body.contains("cancelled"), "{}", again.body);
    let elsewhere = web
        .post("/act/restart", "", &form.replace("%2Fjobs", "%2F%2Fevil.example"))
        .await;
    assert!(
        elsewhere.head.contains("location: /\r\n"),
        "only back to this site: {}",
        elsewhere.head
    );
}

#[tokio::test]
async fn a_form_that_is_not_of_this_site_changes_nothing() {
    let database = Database::new().await;
    let job = enqueue(&database.owner().await, "nobody").await;
    let web = operator(&database).await;
    let csrf = web.csrf().await;
    let right = format!("csrf={csrf}&id={job}&verb=cancel");

    for (more, body) in [
        ("", format!("id={job}&verb=cancel")),
        ("", format!("csrf=wrong&id={job}&verb=cancel")),
        ("Sec-Fetch-Site: cross-site\r\n", right.clone()),
        ("Sec-Fetch-Site: same-site\r\n", right.clone()),
        ("Origin: http://evil.example\r\n", right.clone()),
        ("Origin: null\r\n", right.clone()),
        ("Host: evil.example\r\n", right.clone()),
    ] {
        for path in ["/act/cancel", "/jobs/bulk/apply", "/jobs/bulk"] {
            let refused = web.post(path, more, &body).await;
            assert_eq!(refused.status, 403, "{path} {more:?} {body}: {}", refused.body);
        }
    }
    let api = web.post(&format!("/api/v1/jobs/{job}/cancel"), "", "").await;
    assert_eq!(api.status, 403, "without a token the API can only be read");
    assert_eq!(state(&database, job).await, "ready");
    assert_eq!(
        web.post("/act/cancel", "Sec-Fetch-Site: same-origin\r\n", &right)
            .await
            .status,
        303
    );
}

#[tokio::test]
async fn a_viewer_sees_no_buttons_and_the_database_rejects_what_is_posted_anyway() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let job = enqueue(&owner, "nobody").await;
    // a login that may enqueue gets a form, and with it the token that each POST needs
    execute(&owner, &format!("grant bugle_enqueuer to {}_viewer", database.name)).await;
    let viewer = Web::start(&database, "viewer", &[]);
    let operator = operator(&database).await;
    let read_only = Web::start(&database, "operator", &["--read-only"]);
    let csrf = |page: &str| {
        page.split("name=\"csrf\" value=\"")
            .nth(1)
            .and_then(|s| s.split('"').next())
            .map(str::to_owned)
    };

    for web in [&viewer, &read_only] {
        for path in ["/", "/jobs", &format!("/jobs/{job}"), "/queues"] {
            let page = web.get(path).await;
            assert_eq!(page.status, 200, "{path}: {}", page.body);
            assert!(
                !page.body.contains("/act/cancel") && page.body.contains("read-only"),
                "{path}"
            );
        }
        let csrf = csrf(&web.get("/add-missing").await.body).unwrap_or_default();
        assert_eq!(
            csrf.is_empty(),
            std::ptr::eq(web, &read_only),
            "a token only where there is a form"
        );
        let posted = web.post("/act/cancel", "", &format!("csrf={csrf}&id={job}")).await;
        assert_eq!(posted.status, 403, "{}", posted.body);
    }
    assert_eq!(state(&database, job).await, "ready");
    assert!(operator.get(&format!("/jobs/{job}")).await.body.contains("/act/cancel"));
}

/// Where a page posts something, and which forms of actions it links to.
fn offered(page: &str) -> BTreeSet<String> {
    let mut offered = BTreeSet::new();
    for tag in page.split('<').skip(1) {
        let tag = tag.split('>').next().unwrap_or_default();
        let value = |name: &str| {
            let value = tag.split(&format!(" {name}=\"")).nth(1)?.split('"').next()?;
            Some(value.split('?').next()?.to_owned())
        };
        let link = value("href").filter(|path| path.contains("/act/"));
        let form = match tag.contains("method=\"post\"") {
            true => Some(value("action").unwrap_or_else(|| "the page itself".to_owned())),
            false => None,
        };
        offered.extend([value("formaction"), link, form].into_iter().flatten());
    }
    offered
}

#[tokio::test]
async fn a_viewer_is_offered_no_form_but_those_that_the_login_may_use() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let story = "insert into bugle.jobs (command) select 'nobody' from generate_series(1, 6); \
        select bugle.pause(2); select bugle.set_state(3, 'failed'); select bugle.cancel(4); \
        update bugle.jobs_live set state = 'waiting', first_started_at = now() where id = 5; \
        insert into bugle.jobs (command, steps) values ('chain', '{a,b}'); \
        insert into bugle.jobs (command, run_at) values ('later', now() + interval '1 day'); \
        insert into bugle.attempts (job, claim, attempt, command, outcome, code, error, started_at, ended_at) \
          values (3, 1, 1, 'nobody', 'failed', 'x', 'boom', now(), now()); \
        insert into bugle.jobs (command, queue) values ('nobody', 'mail'); \
        select bugle.pause_queue('default'); select bugle.set_limits('mail', p_max_running => 1); \
        insert into bugle.schedules (name, every, command) values ('nightly', '1 day', 'report'); \
        insert into bugle.registrations (name, host, protocol, queues, slots, commands, life_key, backend_pid) \
          values ('w', 'h', bugle.protocol(), '{mail}', '{3}', '{nobody}', 0, 0)";
    execute(&owner, story).await;
    execute(&owner, WORKFLOW).await;
    let workflow: i64 = query_value(&owner, "select min(workflow) from bugle.workflow_jobs").await;
    let (viewer, stranger) = (
        format!("{}_viewer", database.name),
        format!("{}_stranger", database.name),
    );
    let logins = format!("grant bugle_enqueuer to {viewer}; grant bugle_viewer to {stranger}");
    execute(&owner, &logins).await;
    let webs = [
        (Web::start(&database, "stranger", &[]), "a viewer"),
        (Web::start(&database, "viewer", &[]), "a viewer who may enqueue"),
        (Web::start(&database, "operator", &["--read-only"]), "read-only"),
        (operator(&database).await, "an operator"),
    ];

    let mut paths: Vec<String> = [
        "/",
        "/jobs",
        "/jobs?q=state:failed",
        "/enqueue",
        "/add-missing",
        "/workflows",
        "/queues",
        "/queues/mail",
        "/queues/default",
        "/commands",
        "/commands/nobody",
        "/policies",
        "/policies/fixed",
        "/schedules",
        "/schedules/nightly",
        "/workers",
        "/workers/1",
        "/errors",
        "/dead-letters",
        "/changes",
        "/database",
    ]
    .map(str::to_owned)
    .to_vec();
    paths.extend((1..=8).map(|job| format!("/jobs/{job}")));
    paths.push(format!("/workflows/{workflow}"));
    for (web, who) in &webs {
        let mut all = BTreeSet::new();
        for path in &paths {
            let page = web.get(path).await;
            assert_eq!(page.status, 200, "{who} {path}: {}", page.body);
            all.extend(offered(&page.body));
        }
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        match *who {
            "an operator" => {
                let forms = all.iter().filter(|path| path.starts_with("/act/")).count();
                assert!(
                    forms > 15 && all.contains(&"/jobs/bulk"),
                    "the pages have them: {all:?}"
                );
            }
            "a viewer who may enqueue" => assert_eq!(all, ["/act/enqueue_job", "/add-missing"], "{who}"),
            _ => assert_eq!(all, [""; 0], "{who}"),
        }
    }
    let viewer = &webs[0].0;
    for path in ["/act/cancel?id=1", "/act/set_policy", "/act/pause_queue?queue=default"] {
        let page = viewer.get(path).await;
        assert_eq!(
            (page.status, offered(&page.body).len()),
            (403, 0),
            "{path}: {}",
            page.body
        );
    }
}

const WORKFLOW: &str = "select count(*) from bugle.enqueue_workflow('{\"jobs\": { \
    \"a\": {\"command\": \"nobody\"}, \"b\": {\"command\": \"nobody\", \"after\": [\"a\"]}}}')";

#[tokio::test]
async fn many_jobs_are_rehearsed_before_they_are_changed() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(
        &owner,
        "insert into bugle.jobs (command, queue) select 'nobody', 'mail' from generate_series(1, 12); \
         select bugle.cancel(1)",
    )
    .await;
    let web = operator(&database).await;
    let csrf = web.csrf().await;
    let count = "select count(*) from bugle.jobs where state = 'cancelled'";

    let selected = format!("csrf={csrf}&verb=cancel&id=1&id=2&id=3");
    let preview = web.post("/jobs/bulk", "", &selected).await;
    assert!(
        preview.body.contains("<b>2 jobs</b> would be changed"),
        "{}",
        preview.body
    );
    assert!(preview.body.contains("rolled back"), "{}", preview.body);
    assert_eq!(query_value::<i64>(&owner, count).await, 1);
    assert_eq!(web.post("/jobs/bulk/apply", "", &selected).await.status, 303);
    assert_eq!(query_value::<i64>(&owner, count).await, 3);

    let matching = format!("csrf={csrf}&verb=cancel&all=true&q=queue%3Amail&note=all");
    let preview = web.post("/jobs/bulk", "", &matching).await;
    assert!(
        preview.body.contains("<b>9 jobs</b> would be changed"),
        "{}",
        preview.body
    );
    assert_eq!(query_value::<i64>(&owner, count).await, 3);
    assert_eq!(web.post("/jobs/bulk/apply", "", &matching).await.status, 303);
    assert_eq!(query_value::<i64>(&owner, count).await, 12);
    assert_eq!(
        web.post("/jobs/bulk/apply", "", &matching).await.status,
        400,
        "nothing is left"
    );
}

#[tokio::test]
async fn a_job_is_run_again_with_an_edited_payload_that_keeps_its_digits() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(
        &owner,
        "insert into bugle.jobs (command, queue, payload) values ('nobody', 'mail', '{\"n\": 9007199254740993}')",
    )
    .await;
    let web = operator(&database).await;
    let csrf = web.csrf().await;
    let form = web.get("/enqueue?from=1").await.body;
    assert!(
        form.contains("9007199254740993") && form.contains("value=\"nobody\""),
        "{form}"
    );

    let body = format!("csrf={csrf}&command=nobody&queue=mail&payload=%7B%22n%22%3A+9007199254740995%7D");
    let done = web.post("/act/enqueue_job", "", &body).await;
    let wrong = web
        .post(
            "/act/enqueue_job",
            "",
            &format!("csrf={csrf}&command=x&payload=%7Bnot+json"),
        )
        .await;

    assert_eq!(done.status, 303, "{}", done.body);
    assert!(done.head.contains("location: /jobs/2"), "{}", done.head);
    assert_eq!(
        query_value::<String>(&owner, "select payload ->> 'n' from bugle.jobs where id = 2").await,
        "9007199254740995"
    );
    assert_eq!(wrong.status, 400, "{}", wrong.body);
    let found = web.get("/jobs?q=payload.n:9007199254740993").await.body;
    assert!(found.contains("/jobs/1\"") && !found.contains("/jobs/2\""), "{found}");
    let shown = web.get("/jobs/1").await.body;
    assert!(shown.contains("9007199254740993"), "{shown}");
}

#[tokio::test]
async fn a_reason_has_its_fix_as_a_button() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let job = enqueue(&owner, "nobody").await;
    execute(&owner, "select bugle.pause_queue('default')").await;
    let web = operator(&database).await;

    for path in [format!("/jobs/{job}"), "/".to_owned()] {
        let page = web.get(&path).await.body;
        assert!(
            page.contains("/act/resume_queue") && page.contains("Resume queue default"),
            "{page}"
        );
    }
    let csrf = web.csrf().await;
    let done = web
        .post("/act/resume_queue", "", &format!("csrf={csrf}&queue=default&back=/"))
        .await;
    assert_eq!(done.status, 303, "{}", done.body);
    let is_paused = "select count(*) from bugle.queues where paused_at is not null";
    assert_eq!(query_value::<i64>(&owner, is_paused).await, 0);
    assert!(!web.get("/").await.body.contains("/act/resume_queue"));
}

#[tokio::test]
async fn a_browser_is_told_when_there_is_something_new() {
    let database = Database::new().await;
    enqueue(&database.owner().await, "nobody").await;
    let web = operator(&database).await;
    let stream = TcpStream::connect(web.address).await.unwrap();
    let (reading, mut writing) = stream.into_split();
    writing
        .write_all(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await
        .unwrap();
    let mut lines = tokio::io::BufReader::new(reading).lines();

    let ticks = async {
        let mut ticks = Vec::new();
        while ticks.len() < 2 {
            let line = lines.next_line().await.unwrap().expect("it goes on");
            ticks.extend(line.strip_prefix("data: ").map(str::to_owned));
        }
        ticks
    };
    let ticks = tokio::time::timeout(DEADLINE, ticks).await.expect("two ticks");
    assert!(ticks.iter().all(|tick| tick.contains("\"ready\":1")), "{ticks:?}");
}

#[tokio::test]
async fn a_page_shows_older_counts_while_fresh_ones_take_long() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let web = operator(&database).await;
    assert_eq!(web.get("/queues").await.status, 200);
    let locking = database.owner().await;
    execute(&locking, "begin; lock table bugle.minutes in access exclusive mode").await;

    let is_counting = "select exists (select from pg_locks l where not l.granted
        and l.relation = 'bugle.minutes'::regclass and l.database = (
            select d.oid from pg_database d where d.datname = current_database()))";
    let opened = look_for(async || {
        let page = web.get("/queues").await;
        assert_eq!(page.status, 200, "{}", page.body);
        query_value::<bool>(&owner, is_counting).await.then_some(())
    });
    opened.await.expect("fresh counts are asked for");
    execute(&locking, "commit").await;
}

#[tokio::test]
async fn a_page_opens_before_its_jobs_are_counted_and_says_so() {
    let database = Database::new().await;
    enqueue(&database.owner().await, "nobody").await;
    let web = operator(&database).await;
    // what only the counts read
    let locking = database.owner().await;
    execute(&locking, "begin; lock table bugle.jobs_ended in access exclusive mode").await;

    for path in ["/", "/queues", "/commands"] {
        let page = web.get_at_once(path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.body);
        assert!(is_counting(&page), "{path}: {}", page.body);
        assert!(!page.body.contains("/queues/default"), "{path}: {}", page.body);
    }
    execute(&locking, "commit").await;

    let counted = look_for(async || {
        let page = web.get_at_once("/queues").await;
        (page.body.contains("/queues/default") && !is_counting(&page)).then_some(())
    });
    counted.await.expect("the queue");
}

#[tokio::test]
async fn the_pages_can_be_below_a_path_and_have_other_names() {
    let database = Database::new().await;
    enqueue(&database.owner().await, "nobody").await;
    let arguments = [
        "--base-path",
        "/bugle/",
        "--allow-host",
        "jobs.example.org",
        "--color",
        "red",
    ];
    let web = Web::start(&database, "viewer", &arguments);

    let page = ask(web.address, "GET", "/bugle/jobs", "Host: jobs.example.org\r\n", "").await;
    assert_eq!(page.status, 200, "{}", page.body);
    assert!(
        page.body.contains("href=\"/bugle/jobs/1\"") && page.body.contains("c-red"),
        "{}",
        page.body
    );
    assert_eq!(
        ask(web.address, "GET", "/bugle/jobs", "Host: evil.example\r\n", "")
            .await
            .status,
        403
    );
    let web = Web::start(&database, "viewer", &[]);
    let page = ask(web.address, "GET", "/jobs", "X-Forwarded-Prefix: /ops\r\n", "").await;
    assert!(page.body.contains("href=\"/ops/jobs/1\""), "{}", page.body);
    let page = ask(
        web.address,
        "GET",
        "/jobs",
        "X-Forwarded-Prefix: //evil.example\r\n",
        "",
    )
    .await;
    assert!(!page.body.contains("evil.example"), "{}", page.body);
}

#[tokio::test]
async fn an_address_that_others_can_reach_is_rejected() {
    let refused = run(
        &mut command(&["web", "--listen", "0.0.0.0:0", "--database-url", "host=/nowhere"]),
        "",
    )
    .await;

    assert_ne!(refused.code, 0);
    assert!(
        refused.err.contains("reachable from other machines")
            && ["--login", "--trust-header", "ssh -L"]
                .iter()
                .all(|way| refused.err.contains(way)),
        "{}",
        refused.err
    );
}

#[tokio::test]
async fn the_verbs_a_state_allows_are_those_of_the_schema() {
    let database = Database::new().await;
    let owner = database.owner().await;
    for verb in [
        "cancel",
        "pause",
        "resume",
        "restart",
        "remove",
        "reschedule",
        "set_priority",
        "set_state",
    ] {
        let allowed: Vec<String> = query_value(&owner, &format!("select bugle.allowed_from('{verb}')")).await;
        let known: Vec<&str> = allowed_from(verb).iter().map(|state| state.as_str()).collect();
        assert_eq!(known, allowed, "{verb}");
    }
}

#[tokio::test]
async fn contexts_in_production_ask_before_a_change_and_one_without_a_url_is_listed_with_the_reason() {
    let shop = Database::new().await;
    let owner = shop.owner().await;
    enqueue(&owner, "ship").await;
    let folder = Folder::new();
    std::fs::create_dir(folder.join("bugle")).expect("a folder");
    let url = shop.url("owner");
    let contexts = format!(
        "[contexts.shop]\nurl = \"{url}\"\nproduction = true\n[contexts.test]\nurl = \"{url}\"\n\
         [contexts.unset]\nurl = \"env:BUGLE_NO_SUCH_URL\"\n"
    );
    std::fs::write(folder.join("bugle/config.toml"), contexts).expect("a file");
    let home = folder.join("").display().to_string();
    let web = Web::with("127.0.0.1:0", "", &["--all-contexts"], &[("XDG_CONFIG_HOME", &home)]);

    let list = web.get("/").await;
    for text in [
        "href=\"/db/shop/\">shop</a> <span class=\"ro\">production</span>",
        "href=\"/db/test/\">test</a></td>",
        "context &#34;unset&#34;: ",
    ] {
        assert!(list.body.contains(text), "{text}: {}", list.body);
    }
    assert_eq!(web.get("/db/unset/").await.status, 503);

    let page = web.get("/db/shop/enqueue").await.body;
    assert!(page.contains("shop (production)") && page.contains("c-red"), "{page}");
    let csrf = common::web::hidden(&page, "csrf").expect("a token");
    let form = format!("csrf={csrf}&id=1&more=%0Atwo+%22lines%22");
    let state = "select state from bugle.jobs where id = 1";
    let asked = web.post("/db/shop/act/cancel", "", &form).await;
    assert_eq!(asked.status, 200, "{}", asked.body);
    for text in [
        "Change shop (production)?".to_owned(),
        "action=\"/db/shop/act/cancel?production=confirmed\"".to_owned(),
        format!("<textarea name=\"csrf\" hidden>\n{csrf}</textarea>"),
        "<textarea name=\"more\" hidden>\n\ntwo &#34;lines&#34;</textarea>".to_owned(),
    ] {
        assert!(asked.body.contains(&text), "{text}: {}", asked.body);
    }
    assert_eq!(query_value::<String>(&owner, state).await, "ready");
    let shown = web.post("/db/shop/act/cancel/sql", "", &form).await;
    assert!(shown.body.contains("bugle.cancel"), "{}", shown.body);
    let confirmed = web.post("/db/shop/act/cancel?production=confirmed", "", &form).await;
    assert_eq!(confirmed.status, 303, "{}", confirmed.body);
    assert_eq!(query_value::<String>(&owner, state).await, "cancelled");

    enqueue(&owner, "ship").await;
    let page = web.get("/db/test/enqueue").await.body;
    let csrf = common::web::hidden(&page, "csrf").expect("a token");
    let done = web.post("/db/test/act/cancel", "", &format!("csrf={csrf}&id=2")).await;
    assert_eq!(done.status, 303, "a test database does not ask: {}", done.body);
}

#[tokio::test]
async fn several_databases_are_listed_and_the_pages_of_each_are_below_its_name() {
    let (shop, billing) = (Database::new().await, Database::new().await);
    enqueue(&shop.owner().await, "ship").await;
    enqueue(&billing.owner().await, "charge").await;
    let folder = Folder::new();
    let file = folder.join("bugle.toml");
    let databases = [("shop", shop.url("owner")), ("billing", billing.url("owner"))];
    let mut text: String = databases
        .iter()
        .map(|(name, url)| format!("[databases.{name}]\nurl = \"{url}\"\n"))
        .collect();
    text += "[databases.down]\nurl = \"host=/nowhere user=nobody dbname=none\"\n";
    std::fs::write(&file, text).expect("a file");
    let file = file.display().to_string();
    let web = Web::listening("127.0.0.1:0", "", &["--config", &file, "--base-path", "/bugle"]);

    let list = web.get("/bugle/").await;
    assert_eq!(list.status, 200);
    for text in [
        "href=\"/bugle/db/shop/\"",
        "href=\"/bugle/db/billing/\"",
        "unreachable: ",
    ] {
        assert!(list.body.contains(text), "{text}: {}", list.body);
    }
    for (name, command, other) in [("shop", "ship", "charge"), ("billing", "charge", "ship")] {
        let jobs = web.get(&format!("/bugle/db/{name}/jobs")).await;
        assert!(
            jobs.status == 200 && jobs.body.contains(command) && !jobs.body.contains(other),
            "{}",
            jobs.body
        );
        assert!(
            jobs.body.contains(&format!("href=\"/bugle/db/{name}/queues\"")),
            "{}",
            jobs.body
        );
        let queues = web.get(&format!("/bugle/db/{name}/api/v1/queues")).await;
        assert_eq!(queues.status, 200, "{}", queues.body);
    }
    assert_eq!(web.get("/bugle/db/shop").await.status, 303);
    assert_eq!(web.get("/bugle/db/down/").await.status, 503);
    assert_eq!(web.get("/bugle/db/none/jobs").await.status, 404);
    assert_eq!(web.get("/bugle/jobs").await.status, 404);

    let page = web.get("/bugle/db/shop/enqueue").await.body;
    let csrf = common::web::hidden(&page, "csrf").expect("a token");
    let form = format!("csrf={csrf}&job=1");
    let elsewhere = web.post("/bugle/db/billing/act/cancel", "", &form).await;
    assert_ne!(
        elsewhere.status, 303,
        "the token of one database is not that of another"
    );
    let stranger = "Host: rebound.example.org\r\n";
    let rebound = ask(web.address, "GET", "/bugle/", stranger, "").await;
    assert_eq!(rebound.status, 403, "{}", rebound.body);
}
