//! Who may use `bugle web`, as whom, and what strangers can do to it: over real sockets, with logins that have
//! passwords.

mod common;

use std::sync::OnceLock;

use bugle::private_postgres::{Options, PrivatePostgres};
use common::http::ask;
use common::poll::look_for;
use common::web::{Visitor, Web, hidden};
use common::{BUGLE, DEADLINE, Database, enqueue, execute, query_value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// On a server that asks for passwords: the one that tests share does not.
async fn database() -> Database {
    static SERVER: OnceLock<PrivatePostgres> = OnceLock::new();
    let url = tokio::task::spawn_blocking(|| {
        let server = SERVER.get_or_init(|| {
            let options = Options::new().tcp().bugle_bin(BUGLE);
            PrivatePostgres::start(&options).expect("a server")
        });
        server.tcp_url("postgres").expect("it listens")
    });
    let server: tokio_postgres::Config = url.await.expect("a server").parse().expect("a connection string");
    let database = Database::empty_on(server).await;
    let config = database.config("owner");
    bugle::schema::migrate(&config).await.expect("migrates");
    database.create_logins().await;
    execute(
        &database.owner().await,
        &format!("grant bugle_viewer to {}_operator", database.name),
    )
    .await;
    database
}

fn login(database: &Database, role: &str) -> String {
    format!("{}_{role}", database.name)
}

async fn signed_in<'a>(web: &'a Web, database: &Database, role: &str) -> Visitor<'a> {
    let mut visitor = web.visitor();
    let login = login(database, role);
    let answer = visitor.sign_in(&login, &login).await;
    assert_eq!(answer.status, 303, "{}", answer.body);
    visitor
}

async fn state(database: &Database, job: i64) -> String {
    let sql = format!("select state from bugle.jobs where id = {job}");
    query_value(&database.owner().await, &sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_signs_in_with_a_postgres_login_and_acts_under_that_name() {
    let database = database().await;
    let job = enqueue(&database.owner().await, "nobody").await;
    let web = Web::listening("0.0.0.0:0", &database.url("stranger"), &["--login"]);

    let away = web.get(&format!("/jobs/{job}?x=1")).await;
    assert_eq!(away.status, 303, "{}", away.body);
    assert!(
        away.head.contains("location: /login?to=%2fjobs%2f1%3fx%3d1"),
        "{}",
        away.head
    );
    for path in ["/live", "/api/v1/jobs"] {
        assert_eq!(web.get(path).await.status, 401, "{path}");
    }
    let mut visitor = web.visitor();
    let wrong = visitor.sign_in(&login(&database, "operator"), "wrong").await;
    assert_eq!(wrong.status, 403, "{}", wrong.body);
    assert!(wrong.body.contains("login or the password is wrong"), "{}", wrong.body);
    assert_eq!(visitor.session(), None);

    let operator = login(&database, "operator");
    let form = hidden(&visitor.get("/login").await.body, "form").unwrap();
    let right = format!("form={form}&to=%2Fjobs%2F{job}&login={operator}&password={operator}");
    let answer = visitor.post("/login", &right).await;
    assert_eq!(answer.status, 303, "{}", answer.body);
    assert!(
        answer.head.contains(&format!("location: /jobs/{job}\r\n")),
        "{}",
        answer.head
    );
    let cookie = answer.head.lines().find(|line| line.contains("bugle_session")).unwrap();
    assert!(
        cookie.contains("httponly; samesite=strict") && !cookie.contains("secure"),
        "{cookie}"
    );
    let page = visitor.get(&format!("/jobs/{job}")).await.body;
    assert!(page.contains("/act/cancel") && page.contains(&operator), "{page}");

    let csrf = hidden(&page, "csrf").unwrap();
    let cancelled = visitor
        .post("/act/cancel", &format!("csrf={csrf}&id={job}&note=by+the+test"))
        .await;
    assert_eq!(cancelled.status, 303, "{}", cancelled.body);
    let who = "select who from bugle.changes where note = 'by the test'";
    assert_eq!(query_value::<String>(&database.owner().await, who).await, operator);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_who_posts_an_operators_action_changes_nothing() {
    let database = database().await;
    let job = enqueue(&database.owner().await, "nobody").await;
    let web = Web::start(&database, "stranger", &["--login"]);
    let mut viewer = signed_in(&web, &database, "viewer").await;
    let mut operator = signed_in(&web, &database, "operator").await;

    let page = viewer.get(&format!("/jobs/{job}")).await;
    assert_eq!(page.status, 200, "{}", page.body);
    assert!(
        !page.body.contains("/act/") && page.body.contains("read-only"),
        "{}",
        page.body
    );
    let own = hidden(&page.body, "csrf").unwrap();
    let others = hidden(&operator.get(&format!("/jobs/{job}")).await.body, "csrf").unwrap();
    assert_ne!(own, others);

    for (csrf, form) in [(&own, "its own token"), (&others, "the token of another session")] {
        for path in ["/act/cancel", "/jobs/bulk/apply"] {
            let posted = viewer.post(path, &format!("csrf={csrf}&id={job}&verb=cancel")).await;
            assert_eq!(posted.status, 403, "{path} with {form}: {}", posted.body);
        }
    }
    assert_eq!(state(&database, job).await, "ready");
    let stranger = login(&database, "stranger");
    let nobody = web.visitor().sign_in(&stranger, &stranger).await;
    assert_eq!(nobody.status, 403, "{}", nobody.body);
    assert!(nobody.body.contains("grant bugle_viewer"), "{}", nobody.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_ends_with_a_click_and_with_the_login() {
    let database = database().await;
    let owner = database.owner().await;
    let web = Web::start(&database, "stranger", &["--login"]);
    let mut here = signed_in(&web, &database, "viewer").await;
    let mut there = signed_in(&web, &database, "viewer").await;
    let mut operator = signed_in(&web, &database, "operator").await;

    let stolen = here.cookies.clone();
    let csrf = hidden(&here.get("/").await.body, "csrf").unwrap();
    assert_eq!(here.post("/logout", "csrf=wrong").await.status, 403);
    assert_eq!(here.get("/").await.status, 200);
    assert_eq!(here.post("/logout", &format!("csrf={csrf}")).await.status, 303);
    here.cookies = stolen;
    assert_eq!(
        here.get("/").await.status,
        303,
        "the number in the cookie is worth nothing now"
    );
    assert_eq!(here.post("/act/cancel", &format!("csrf={csrf}&id=1")).await.status, 401);
    assert_eq!(there.get("/").await.status, 200, "only that session");

    let csrf = hidden(&there.get("/").await.body, "csrf").unwrap();
    let mut again = signed_in(&web, &database, "viewer").await;
    assert_eq!(
        there.post("/logout", &format!("csrf={csrf}&everywhere=1")).await.status,
        303
    );
    assert_eq!(again.get("/").await.status, 303, "all of this login");

    let nobody_left = format!(
        "select not exists (select from pg_stat_activity where usename = '{}')",
        login(&database, "operator")
    );
    common::wait_until(&owner, &nobody_left).await;
    assert_eq!(
        operator.get("/").await.status,
        200,
        "connections come back when they are needed"
    );
    execute(&owner, &format!("alter role {} nologin", login(&database, "operator"))).await;
    let operator = tokio::sync::Mutex::new(operator);
    let ended = look_for(|| async { (operator.lock().await.get("/").await.status == 303).then_some(()) }).await;
    assert!(ended.is_some(), "the session of a login that may not log in any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn passwords_cannot_be_guessed_for_long() {
    let database = database().await;
    let web = Web::start(&database, "stranger", &["--login", "--allow-host", "jobs.example.org"]);
    let viewer = login(&database, "viewer");
    let mut visitor = web.visitor();

    for _ in 0..5 {
        assert_eq!(visitor.sign_in(&viewer, "wrong").await.status, 403);
    }
    let refused = visitor.sign_in(&viewer, &viewer).await;
    assert_eq!(refused.status, 429, "{}", refused.body);
    assert!(refused.head.contains("retry-after"), "{}", refused.head);
    let mut other = signed_in(&web, &database, "operator").await;
    assert_eq!(other.get("/").await.status, 200);

    let mut forged = web.visitor();
    let form = hidden(&forged.get("/login").await.body, "form").unwrap();
    forged.cookies.clear();
    let body = format!("form={form}&login={viewer}&password={viewer}");
    assert_eq!(forged.post("/login", &body).await.status, 403, "a form of another page");
    let mut remote = web.visitor();
    remote.more = "Host: jobs.example.org\r\nX-Forwarded-Proto: https\r\n".to_owned();
    let operator = login(&database, "operator");
    let answer = remote.sign_in(&operator, &operator).await;
    let cookie = answer.head.lines().find(|line| line.contains("bugle_session")).unwrap();
    assert!(cookie.contains("; secure"), "{cookie}");
    let back = remote.session();
    for to in ["//evil.example/", "https://evil.example/", "/\\evil.example"] {
        let form = hidden(&remote.get("/login").await.body, "form").unwrap();
        let body = format!("form={form}&to={to}&login={operator}&password={operator}");
        let answer = remote.post("/login", &body).await;
        assert!(answer.head.contains("location: /\r\n"), "{to}: {}", answer.head);
    }
    assert_ne!(remote.session(), back, "each session has a new number");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_the_database_asks_for_no_password_cannot_sign_in() {
    // connections through its socket are trusted
    let database = Database::new().await;
    let web = Web::start(&database, "stranger", &["--login"]);
    let viewer = login(&database, "viewer");

    let refused = web.visitor().sign_in(&viewer, "anything").await;

    assert_eq!(refused.status, 403, "{}", refused.body);
    assert!(refused.body.contains("pg_hba.conf"), "{}", refused.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_is_listed_says_who_it_is() {
    let database = database().await;
    let owner = database.owner().await;
    let job = enqueue(&owner, "nobody").await;
    let (operator, viewer, site) = (
        login(&database, "operator"),
        login(&database, "viewer"),
        login(&database, "stranger"),
    );
    execute(
        &owner,
        &format!("grant {operator}, {viewer} to {site}; alter role {site} noinherit"),
    )
    .await;
    let trusted = ["--trust-header", "X-Forwarded-User", "--trust-from"];
    let web = Web::start(&database, "stranger", &[&trusted[..], &["127.0.0.1"]].concat());
    let elsewhere = Web::start(&database, "stranger", &[&trusted[..], &["192.0.2.1"]].concat());
    let mut ada = web.visitor();
    ada.more = format!("X-Forwarded-User: {operator}\r\n");

    let page = ada.get(&format!("/jobs/{job}")).await;
    assert_eq!(page.status, 200, "{}", page.body);
    assert!(
        page.body.contains(&operator) && !page.body.contains("/logout"),
        "{}",
        page.body
    );
    let csrf = hidden(&page.body, "csrf").unwrap();
    let body = format!("csrf={csrf}&id={job}&note=through+a+proxy");
    let forged = web
        .post("/act/cancel", &format!("X-Forwarded-User: {viewer}\r\n"), &body)
        .await;
    assert_eq!(forged.status, 403, "{}", forged.body);
    assert_eq!(state(&database, job).await, "ready");
    assert_eq!(ada.post("/act/cancel", &body).await.status, 303);
    let who = "select who from bugle.changes where note = 'through a proxy'";
    assert_eq!(query_value::<String>(&owner, who).await, operator);

    let strange = format!("X-Forwarded-User: {}\r\n", "postgres\"; reset role; --");
    for (more, status) in [
        (String::new(), 401),
        ("X-Forwarded-User: \r\n".to_owned(), 401),
        (format!("{0}{0}", ada.more), 401),
        ("X-Forwarded-User: postgres\r\n".to_owned(), 403),
        ("X-Forwarded-User: bugle_viewer\r\n".to_owned(), 403),
        (strange, 403),
    ] {
        let refused = ask(web.address, "GET", "/", &more, "").await;
        assert_eq!(refused.status, status, "{more:?}: {}", refused.body);
    }
    assert_eq!(ask(elsewhere.address, "GET", "/", &ada.more, "").await.status, 403);
}

/// What the server says until it closes the connection.
async fn rest_of(mut stream: TcpStream) -> String {
    let mut said = Vec::new();
    let _ = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut said))
        .await
        .expect("the server closes the connection");
    String::from_utf8_lossy(&said).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_are_slow_or_many_or_send_too_much_do_not_stop_the_site() {
    let database = database().await;
    let job = enqueue(&database.owner().await, "nobody").await;
    let web = Web::start(&database, "operator", &[]);
    let closed = Web::start(&database, "stranger", &["--login"]);
    let page = web.get(&format!("/jobs/{job}")).await.body;
    let csrf = hidden(&page, "csrf").unwrap();
    let form = "Host: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 1000\r\n\r\n";
    let slow = [
        (web.address, "GET /jobs HTTP/1.1\r\nHost: local".to_owned()),
        (
            web.address,
            format!("POST /act/cancel HTTP/1.1\r\n{form}csrf={csrf}&id={job}"),
        ),
        (closed.address, format!("POST /login HTTP/1.1\r\n{form}login=")),
    ];

    let mut waiting = Vec::new();
    for (address, begin) in slow {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(begin.as_bytes()).await.unwrap();
        waiting.push(tokio::spawn(rest_of(stream)));
    }
    let mut idle = Vec::new();
    for _ in 0..300 {
        idle.push(TcpStream::connect(web.address).await.unwrap());
    }
    assert_eq!(
        web.get("/jobs").await.status,
        200,
        "beside 300 connections that say nothing"
    );
    drop(idle);
    let large = format!("csrf={csrf}&id={job}&note={}", "x".repeat(5_000_000));
    let mut stream = TcpStream::connect(web.address).await.unwrap();
    let head = format!(
        "POST /act/cancel HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: \
         application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n",
        large.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let (reading, mut writing) = stream.into_split();
    // it may not be read to its end
    let _ = writing.write_all(large.as_bytes()).await;
    let said = rest_of(reading.reunite(writing).unwrap()).await;
    assert!(said.is_empty() || said.starts_with("HTTP/1.1 413"), "{said}");

    for slow in waiting {
        let said = slow.await.unwrap();
        assert!(!said.contains("200 OK") && !said.contains("303"), "{said}");
    }
    assert_eq!(state(&database, job).await, "ready");
    assert_eq!(web.get("/jobs").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn redacted_values_are_shown_nowhere() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(
        &owner,
        "update bugle.settings set redacted_paths = '{card.number}'; \
         insert into bugle.jobs (command, queue, payload, headers) values \
           ('pay', 'default', '{\"card\": {\"number\": \"4111-1111\", \"name\": \"Ada\"}}', \
            '{\"card\": {\"number\": \"4111-1111\"}}'); \
         select bugle.set_state(1, 'failed', 'a note')",
    )
    .await;
    let grants = format!("grant bugle_viewer, bugle_enqueuer to {}", login(&database, "operator"));
    execute(&owner, &grants).await;
    let operator = Web::start(&database, "operator", &[]);
    let observer = Web::start(&database, "observer", &[]);

    for path in [
        "/jobs/1",
        "/enqueue?from=1",
        "/jobs",
        "/dead-letters",
        "/errors",
        "/api/v1/jobs/1",
        "/api/v1/jobs",
    ] {
        let shown = operator.get(path).await;
        assert_eq!(shown.status, 200, "{path}: {}", shown.body);
        assert!(!shown.body.contains("4111"), "{path}: {}", shown.body);
    }
    let shown = operator.get("/jobs/1").await.body;
    assert!(shown.contains("[redacted]") && shown.contains("Ada"), "{shown}");
    let searched = operator.get("/jobs?q=payload.card.number:4111-1111").await.body;
    assert!(searched.contains("payload.card.number is redacted"), "{searched}");
    let found = operator.get("/jobs?q=payload.card.name:Ada").await.body;
    assert!(found.contains("/jobs/1\""), "{found}");
    let csrf = operator.csrf().await;
    let again = format!("csrf={csrf}&command=pay&payload=%7B%22card%22%3A+%22%5Bredacted%5D%22%7D");
    assert_eq!(operator.post("/act/enqueue_job", "", &again).await.status, 400);
    let shown = common::cli::bugle(&database, "operator", &["jobs", "show", "1"]).await;
    assert!(!shown.text().contains("4111"), "{}", shown.out);

    for path in [
        "/",
        "/jobs",
        "/api/v1/jobs?queue=default",
        "/queues",
        "/schedules",
        "/errors",
        "/dead-letters",
        "/database",
        "/changes",
    ] {
        let shown = observer.get(path).await;
        assert_eq!(shown.status, 200, "{path}: {}", shown.body);
    }
    for path in ["/jobs/1", "/api/v1/jobs/1"] {
        let shown = observer.get(path).await;
        assert_eq!(shown.status, 200, "{path}: {}", shown.body);
        assert!(
            shown.body.contains("[withheld]") && !shown.body.contains("Ada"),
            "{path}: {}",
            shown.body
        );
    }
    let refused = observer.get("/jobs?q=payload.card.name:Ada").await;
    assert!(
        refused.body.contains("permission denied") && !refused.body.contains("/jobs/1\""),
        "{}",
        refused.body
    );
}
