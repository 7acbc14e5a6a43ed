//! What docs/security.md promises, tried: each role against what belongs to others, and hostile names, headers and
//! tokens against everything they are written into. What a role may touch at all is in tests/sql/grants and in
//! tests/proof/rights.rs.

mod common;

use std::net::SocketAddr;
use std::process::Command;

use common::{
    BUGLE, DEADLINE, Database, Folder, WorkerProcess, enqueue, execute, query_value, register, wait_for_state,
    wait_until,
};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_postgres::Client;

/// Names that anybody who may enqueue can give, each meant to become something else on its way.
const HOSTILE: [&str; 9] = [
    "x'; drop table public.canary; --",
    "x\"; drop table public.canary; --",
    "$$; drop table public.canary; $$",
    "\\'; drop table public.canary; --",
    "%I %s %L {} {0}",
    "../../../../tmp/x",
    "/etc/passwd",
    "$(touch pwned) `touch pwned` ; touch pwned",
    "x\n2026-01-01T00:00:00.000000Z  INFO forged\r\x1b[2Jforged\u{9b}31m",
];

fn sql_array(names: &[&str]) -> String {
    let quoted: Vec<String> = names
        .iter()
        .map(|name| format!("'{}'", name.replace('\'', "''")))
        .collect();
    format!("array[{}]", quoted.join(", "))
}

async fn claim_one(client: &Client, worker: &str) -> (i64, i64) {
    let sql = format!(
        "select id, claim from bugle.claim({worker}, array[('default', 1, null, 'awake')::bugle.queue_request])"
    );
    let row = client.query_one(&sql, &[]).await.expect("one is claimed");
    (row.get(0), row.get(1))
}

fn sqlstate(error: &tokio_postgres::Error) -> &str {
    error.code().map_or("no SQLSTATE", |code| code.code())
}

/// Whatever a worker says, it says under the nonce that only it was given. Tried with every function there is.
#[tokio::test]
async fn a_worker_login_cannot_speak_for_another_worker() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let victim = register(&database.connect("worker").await).await;
    let victim = victim.split(',').next().unwrap().to_owned();
    let attacker = database.connect("worker").await;
    let functions = "
        select p.proname::text, p.oid::regprocedure::text,
            coalesce(array_position(p.proargnames, 'p_nonce'), 0),
            array(select format_type(t, null) from unnest(p.proargtypes) with ordinality a (t, place) order by place)
        from pg_proc p
        where p.pronamespace = 'bugle'::regnamespace
            and 'p_worker' = any (p.proargnames)
            and has_function_privilege('bugle_worker', p.oid, 'execute')
        order by 1, 2";

    let mut without_nonce = Vec::new();
    let mut tried = 0;
    for row in owner.query(functions, &[]).await.unwrap() {
        let (name, signature, nonce, types): (String, String, i32, Vec<String>) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        if nonce == 0 {
            without_nonce.push(name);
            continue;
        }
        let rest: String = types[2..].iter().map(|kind| format!(", null::{kind}")).collect();
        let sql = format!("select * from bugle.{name}({victim}, gen_random_uuid(){rest})");
        if name == "should_drain" {
            assert!(!query_value::<bool>(&attacker, &sql).await, "no answer but no");
            continue;
        }
        let error = attacker.batch_execute(&sql).await.expect_err(&signature);
        assert_eq!(sqlstate(&error), "JB010", "{signature}: {error:?}");
        tried += 1;
    }

    // These change nothing of the other worker: they take and drop bells of the session that calls, and tell what may
    // be claimed.
    without_nonce.dedup();
    assert_eq!(without_nonce, ["arm", "scan_ready", "worker_channel"]);
    assert!(tried >= 20, "only {tried}");
}

/// The same with a nonce of one's own: a job belongs to the worker that claimed it.
#[tokio::test]
async fn a_worker_login_cannot_end_a_job_that_another_worker_runs() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let job = enqueue(&owner, "noop").await;
    let (victim, attacker) = (database.connect("worker").await, database.connect("worker").await);
    let (me, you) = (register(&victim).await, register(&attacker).await);
    let (id, claim) = claim_one(&victim, &me).await;
    assert_eq!(id, job);

    let held = format!("({id}, {claim})::bugle.held_job");
    for call in [
        format!("complete({you}, array[({id}, {claim}, null)::bugle.finished_job])"),
        format!("fail({you}, array[({id}, {claim}, 'boom', null, true, null)::bugle.failed_job])"),
        format!("give_back({you}, array[{held}])"),
        format!("cancel_held({you}, {held}, 'no')"),
        format!("snooze({you}, {held}, '1 hour')"),
        format!("wait({you}, {held}, null, null)"),
        format!("spawn({you}, {held}, '[{{\"command\": \"noop\"}}]')"),
        format!("attach({you}, array[{held}])"),
    ] {
        let verdict = format!("select (v).verdict from bugle.{call} v");
        let rows = attacker.query(&verdict, &[]).await.expect(&call);
        let verdicts: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(verdicts, ["fenced"], "{call}");
    }
    let sql = format!("select bugle.report_progress({you}, {held}, 0.5, 'mine')");
    assert!(!query_value::<bool>(&attacker, &sql).await);

    let done = format!("select * from bugle.complete({me}, array[({id}, {claim}, '\"mine\"')::bugle.finished_job])");
    assert!(
        victim.query(&done, &[]).await.unwrap().is_empty(),
        "it is still the victim's"
    );
    wait_for_state(&owner, job, "completed").await;
}

/// The row is judged when it is locked, not before: an answer that waits for the lock meets what the job has become
/// meanwhile.
#[tokio::test]
async fn an_enqueuer_cannot_answer_a_job_that_just_begins_to_wait_without_a_token() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let job = enqueue(&owner, "noop").await;
    let worker = database.connect("worker").await;
    let me = register(&worker).await;
    let (id, claim) = claim_one(&worker, &me).await;
    let enqueuer = database.connect("enqueuer").await;
    let pid: i32 = query_value(&enqueuer, "select pg_backend_pid()").await;

    let wait = format!("begin; select bugle.wait({me}, ({id}, {claim})::bugle.held_job, null, null)");
    execute(&worker, &wait).await;
    let answer = format!("select bugle.answer({id}, 'guess', '\"forged\"')");
    let answering = tokio::spawn(async move { enqueuer.batch_execute(&answer).await });
    let waits = format!("select cardinality(pg_blocking_pids({pid})) > 0");
    wait_until(&owner, &waits).await;
    execute(&worker, "commit").await;

    let answered = tokio::time::timeout(DEADLINE, answering)
        .await
        .expect("it ends")
        .unwrap();
    assert_eq!(sqlstate(&answered.expect_err("it is refused")), "JB032");
    wait_for_state(&owner, job, "waiting").await;
}

/// All a viewer can read, row by row: neither what a worker proves itself with, nor what a waiting job is answered
/// with.
#[tokio::test]
async fn a_viewer_can_read_neither_nonces_nor_tokens() {
    let database = Database::new().await;
    let owner = database.owner().await;
    enqueue(&owner, "noop").await;
    let worker = database.connect("worker").await;
    let me = register(&worker).await;
    let nonce = me.split('\'').nth(1).expect("a nonce").to_owned();
    let (id, claim) = claim_one(&worker, &me).await;
    let wait = format!("select bugle.wait({me}, ({id}, {claim})::bugle.held_job, 'open-sesame', null)");
    execute(&worker, &wait).await;

    let viewer = database.connect("viewer").await;
    let relations = "
        select c.oid::regclass::text from pg_class c
        where c.relnamespace = 'bugle'::regnamespace and c.relkind in ('r', 'p', 'v', 'm') and \
        has_table_privilege(c.oid, 'select')";
    let mut seen = String::new();
    for row in viewer.query(relations, &[]).await.unwrap() {
        let relation: String = row.get(0);
        let all = format!("select coalesce(string_agg(to_jsonb(r)::text, ' '), '') from {relation} r");
        seen += &viewer.query_one(&all, &[]).await.expect(&relation).get::<_, String>(0);
    }
    for call in [
        format!("bugle.job({id})"),
        format!("bugle.explain({id})"),
        "bugle.gauges()".to_owned(),
    ] {
        let all = format!("select coalesce(string_agg(to_jsonb(r)::text, ' '), '') from {call} r");
        seen += &viewer.query_one(&all, &[]).await.expect(&call).get::<_, String>(0);
    }

    assert!(
        seen.contains("answer_token") && seen.contains("waiting"),
        "the job is seen"
    );
    assert!(!seen.contains("open-sesame"), "the token is kept as a hash");
    assert!(!seen.contains(&nonce), "a nonce is the worker's own");
}

/// From the INSERT to the end of the job, and through everything that people say about jobs, a name stays a name.
#[tokio::test(flavor = "multi_thread")]
async fn no_name_becomes_sql_a_path_or_a_command_of_the_shell() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(&owner, "create table public.canary ()").await;
    let folder = Folder::new();
    let mut config = String::from("[queues]\n");
    let quoted = |name: &str| serde_json::to_string(name).unwrap();
    for name in HOSTILE {
        config += &format!("{} = 1\n", quoted(name));
    }
    for name in HOSTILE {
        let program =
            r#"printf '{"folder": "%s"}' "$BUGLE_WORKDIR"; test "$BUGLE_COMMAND" = "$(cat "$0"/name-"$BUGLE_JOB_ID")""#;
        config += &format!(
            "[commands.{}]\nprogram = [\"sh\", \"-c\", {}, {}]\n",
            quoted(name),
            quoted(program),
            quoted(folder.path().to_str().unwrap())
        );
    }

    let enqueuer = database.connect("enqueuer").await;
    let sql = format!(
        "insert into bugle.jobs (command, queue, unique_key, order_key, limit_key, fair_key, idempotency_key, headers) \
         select n, n, n, n, n, n, n, jsonb_build_object(n, n) from unnest({}) n returning id",
        sql_array(&HOSTILE)
    );
    let mut jobs: Vec<i64> = enqueuer
        .query(&sql, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    jobs.sort_unstable();
    for (name, job) in HOSTILE.iter().zip(&jobs) {
        folder.write(&format!("name-{job}"), name);
    }
    let operator = database.connect("operator").await;
    for name in HOSTILE {
        for verb in [
            "select bugle.pause_queue($1::text)",
            "select bugle.resume_queue($1::text, $1)",
            "select bugle.set_limits($1::text, p_note => $1)",
            "select bugle.set_command_limit($1::text, 5)",
            "select bugle.cancel_where($1::text, $1, p_state => 'failed', p_error_like => $1, p_note => $1)",
            "insert into bugle.schedules (name, cron, command, queue) values ($1, '0 0 1 1 *', $1, $1)",
            "select bugle.pause_schedule($1::text, $1)",
        ] {
            if let Err(error) = operator.query(verb, &[&name]).await {
                assert!(sqlstate(&error).starts_with("JB"), "{verb} {name:?}: {error:?}");
            }
        }
    }
    let worker = WorkerProcess::start(&database, &folder, "strange", &config, &["--log-format", "human"]);

    for (name, job) in HOSTILE.iter().zip(&jobs) {
        wait_for_state(&owner, *job, "completed").await;
        let row = owner
            .query_one(
                "select command, queue, result ->> 'folder' from bugle.jobs where id = $1",
                &[job],
            )
            .await
            .unwrap();
        assert_eq!((row.get(0), row.get(1)), (*name, *name));
        let place: String = row.get(2);
        let within = std::path::Path::new(&place)
            .strip_prefix(folder.join("work"))
            .expect("in the workdir");
        assert_eq!(within.components().count(), 3, "{place}");
        assert!(within.ends_with(format!("job-{job}-claim-1")), "{place}");
    }
    execute(&owner, "select from public.canary").await;
    assert!(!std::path::Path::new("pwned").exists() && !folder.join("pwned").exists());

    // one event on each line, however a name tries to end it
    worker.terminate();
    worker.ended().await;
    let log = std::fs::read_to_string(folder.join("strange.log")).unwrap();
    assert!(log.contains("forged"), "names are logged");
    for line in log.lines() {
        assert!(
            line.starts_with("20") && line.contains("event="),
            "a line of its own: {line:?}"
        );
        assert!(!line.contains(char::is_control), "{line:?}");
        assert!(!line.starts_with("2026-01-01T00:00:00.000000Z"), "forged: {line:?}");
    }
}

/// Escape sequences, carriage returns and line breaks in what others wrote reach no terminal.
#[tokio::test(flavor = "multi_thread")]
async fn what_others_wrote_does_not_steer_a_terminal() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let hostile = HOSTILE[8];
    let enqueuer = database.connect("enqueuer").await;
    let insert = "insert into bugle.jobs (command, queue, unique_key, order_key, payload, headers) \
        values ($1, $1, $1, $1, to_jsonb($1::text), jsonb_build_object('a', $1::text)) returning id";
    let job: i64 = enqueuer.query_one(insert, &[&hostile]).await.unwrap().get(0);
    execute(
        &owner,
        &format!(
            "select bugle.register(n, n, 1, n, bugle.protocol(), array[n], '{{1}}', array[n]), bugle.pause_queue(n) \
             from unnest({}) n",
            sql_array(&[hostile])
        ),
    )
    .await;

    for command in [
        "jobs list",
        "jobs show ID",
        "jobs explain ID",
        "jobs --json list",
        "jobs show ID --json",
        "jobs explain ID --json",
        "queues",
        "workers",
        "stats",
        "commands",
        "doctor",
        "doctor --json",
        "jobs cancel ID",
        "jobs cancel ID",
        "jobs wait ID",
        "enqueue HOSTILE --retry-policy HOSTILE",
    ] {
        let arguments = command.split(' ').map(|word| match word {
            "ID" => job.to_string(),
            "HOSTILE" => hostile.to_owned(),
            word => word.to_owned(),
        });
        let output = Command::new(BUGLE)
            .args(arguments)
            .env("DATABASE_URL", database.url("owner"))
            .output()
            .expect("bugle starts");
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(!text.is_empty() || command == "stats", "{command}");
        let steers = |c: char| c.is_control() && c != '\n' && c != '\t';
        assert!(!text.contains(steers), "{command}: {text:?}");
    }
}

/// The worker's file says where a request goes and what is in its head; a job brings the body.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_cannot_choose_where_a_request_goes_or_what_is_in_its_head() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (heads, mut received) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            while !request.ends_with(b"}") {
                if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
                    break;
                }
            }
            let answer = "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = heads.send(String::from_utf8_lossy(&request).into_owned());
        }
    });
    let folder = Folder::new();
    let config = format!(
        "[queues]\ndefault = 1\n[commands.call]\nhttp = {{ url = \"http://{address}/fixed\", headers = {{ \"x-key\" = \
            \"ours\" }} }}\n"
    );
    let _worker = WorkerProcess::start(&database, &folder, "caller", &config, &[]);
    let enqueuer = database.connect("enqueuer").await;

    for traceparent in [
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nx-evil: 1",
        "x\r\n\r\nGET /evil HTTP/1.1",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ] {
        let insert = "insert into bugle.jobs (command, payload, headers) values ('call', $1, $2) returning id";
        let payload = serde_json::json!({
            "url": "http://169.254.169.254/", "path": "/evil", "headers": {"x-evil": "1"}, "z": "evil",
        });
        let headers = serde_json::json!({
            "traceparent": traceparent, "x-evil": "1", "host": "evil.example.org", "x-key": "theirs",
            "a\r\nx-evil": "1",
        });
        let job: i64 = enqueuer.query_one(insert, &[&payload, &headers]).await.unwrap().get(0);
        wait_for_state(&owner, job, "completed").await;
        let request = tokio::time::timeout(DEADLINE, received.recv())
            .await
            .expect("a request")
            .unwrap();
        let head = request.split("\r\n\r\n").next().unwrap().to_lowercase();
        assert!(head.starts_with("post /fixed http/1.1\r\n"), "{head}");
        assert!(!head.contains("evil") && !head.contains("theirs"), "{head}");
        assert!(
            head.contains(&format!("host: {address}")) && head.contains("x-key: ours"),
            "{head}"
        );
    }
}

async fn status(address: SocketAddr, method: &str, path: &str, authorization: &str) -> u16 {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{authorization}Content-Length: 0\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text.split(' ').nth(1).expect("a status").parse().unwrap()
}

/// Every path of the description and a few others, with every kind of wrong token. With the right one, only what is
/// described.
#[tokio::test(flavor = "multi_thread")]
async fn without_its_token_the_api_opens_nothing_and_with_it_only_what_is_described() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(
        &owner,
        &format!("grant bugle_viewer, bugle_operator to {}_worker", database.name),
    )
    .await;
    let job = enqueue(&owner, "nobody serves this").await;
    let folder = Folder::new();
    let token = folder.write("token", "0123456789abcdef\n");
    let config = "[queues]\ndefault = 1\n[commands.noop]\nprogram = [\"true\"]\n";
    let arguments = ["--listen", "127.0.0.1:0", "--token-file", token.to_str().unwrap()];
    let worker = WorkerProcess::start(&database, &folder, "api", config, &arguments);
    let address = worker.address().await;

    let described: Value = serde_json::from_str(include_str!("../docs/openapi.json")).unwrap();
    let mut paths: Vec<String> = described["paths"].as_object().unwrap().keys().cloned().collect();
    paths.extend(
        [
            "/api/",
            "/api/v1/",
            "/api/v1/nothing",
            "/api/v1/../v1/jobs",
            "/api/v1//jobs",
            "/api/v1/%6aobs",
        ]
        .map(String::from),
    );
    let wrong = [
        "",
        "Authorization: Bearer\r\n",
        "Authorization: Bearer 0123456789abcde\r\n",
        "Authorization: Bearer 0123456789abcdef0\r\n",
        "Authorization: Basic 0123456789abcdef\r\n",
        "Authorization: 0123456789abcdef\r\n",
        "Authorization: Bearer wrong\r\nAuthorization: Bearer 0123456789abcdef\r\n",
        "Cookie: token=0123456789abcdef\r\n",
    ];
    let right = "Authorization: Bearer 0123456789abcdef\r\n";
    for path in paths.iter().filter(|path| path.starts_with("/api/")) {
        let path = path.replace("{id}", &job.to_string()).replace("{worker}", "1");
        let path = ["{name}", "{queue}", "{command}"]
            .iter()
            .fold(path, |path, part| path.replace(part, "default"));
        for method in ["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS"] {
            for authorization in wrong {
                let status = status(address, method, &path, authorization).await;
                assert_eq!(status, 401, "{method} {path} {authorization:?}");
            }
        }
        for method in ["PUT", "DELETE", "PATCH"] {
            assert_eq!(status(address, method, &path, right).await, 405, "{method} {path}");
        }
    }
    assert_eq!(status(address, "GET", "/api/v1/queues", right).await, 200);
    for path in [
        "/api/v1/jobs/1/explode",
        "/api/v1/settings",
        "/api/v1/jobs/1/cancel/2",
        "/api/jobs/1/cancel",
    ] {
        assert_eq!(status(address, "POST", path, right).await, 404, "{path}");
    }
    wait_for_state(&owner, job, "ready").await;
}

/// docs/security.md names a test in each line that says what somebody cannot do, and each of them is there.
#[test]
fn every_cannot_of_the_document_names_tests_that_exist() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(root.join("docs/security.md")).expect("the document");

    let mut in_table = false;
    let mut lines = 0;
    for line in document.lines() {
        in_table = line.starts_with('|') && (in_table || line.ends_with("| tested by |"));
        if in_table && !line.ends_with("| tested by |") && !line.starts_with("|---") {
            lines += 1;
            assert!(line.contains("[`"), "no test is named: {line}");
        }
    }
    assert!(lines >= 30, "only {lines} lines");

    for link in document.split("[`").skip(1) {
        let (name, rest) = link.split_once("`](").expect("a name and a place");
        let (place, _) = rest.split_once(')').expect("its end");
        // others lead to a page
        if !place.ends_with(".rs") && !place.ends_with(".sql") {
            continue;
        }
        let file = root.join("docs").join(place);
        let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{place}: {error}"));
        let is_there = match place.strip_suffix(".sql") {
            Some(place) => place.ends_with(&format!("/{name}")),
            None => text.contains(&format!("fn {name}()")),
        };
        assert!(is_there, "{place} has no test {name}");
    }
}

/// Notifications reach every login that listens, so they tell nothing but the names of queues, and ids and states of
/// jobs.
#[tokio::test(flavor = "multi_thread")]
async fn listeners_learn_no_payload_result_header_or_error() {
    const SECRET: &str = "0xC0FFEE";
    let database = Database::new().await;
    let owner = database.owner().await;
    // a login without any role
    let revoke = format!("revoke bugle_operator from {}_operator", database.name);
    execute(&owner, &revoke).await;

    let (client, mut connection) = database
        .config("operator")
        .connect(tokio_postgres::NoTls)
        .await
        .expect("logs in");
    let (sender, mut messages) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let tokio_postgres::AsyncMessage::Notification(notification) = message {
                let _ = sender.send(notification.payload().to_owned());
            }
        }
    });
    let bell: String = query_value(&owner, "select bugle.bell_channel('default')").await;
    let channels =
        format!("listen bugle_events; listen bugle_keeper; listen {bell}; listen bugle_worker_1; listen the_end");
    execute(&client, &channels).await;

    let subscriber = database.connect("viewer").await;
    execute(&subscriber, "select bugle.subscribe()").await;
    let folder = Folder::new();
    let config = format!(
        "[queues]\ndefault = 2\n[commands.tell]\nprogram = [\"echo\", '\"{SECRET}\"']\n\
         [commands.break]\nprogram = [\"sh\", \"-c\", \"echo {SECRET} >&2; exit 1\"]\n"
    );
    let worker = WorkerProcess::start(&database, &folder, "told", &config, &[]);
    worker.event("serve").await;
    let enqueuer = database.connect("enqueuer").await;
    for (command, end) in [("tell", "completed"), ("break", "failed")] {
        let insert = "insert into bugle.jobs (command, payload, headers, unique_key, max_attempts) \
            values ($1, to_jsonb($2::text), jsonb_build_object('a', $2::text), $2, 1) returning id";
        let job: i64 = enqueuer.query_one(insert, &[&command, &SECRET]).await.unwrap().get(0);
        wait_for_state(&owner, job, end).await;
    }
    let held: i64 = enqueue(&owner, "nobody serves this").await;
    let cancel = format!("select bugle.cancel({held}, '{SECRET}'); notify the_end, 'the end'");
    execute(&owner, &cancel).await;

    let mut heard = Vec::new();
    loop {
        let message = tokio::time::timeout(DEADLINE, messages.recv())
            .await
            .expect("the end is heard");
        match message.expect("the connection stays") {
            end if end == "the end" => break,
            message => heard.push(message),
        }
    }
    assert!(
        heard.iter().any(|message| message.contains("completed")),
        "ends are told: {heard:?}"
    );
    assert!(!heard.iter().any(|message| message.contains(SECRET)), "{heard:?}");
}
