//! Limits, order and turns: exact at any instant, with many workers, and nobody sleeps through what became possible.

mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bugle::{Context, Failure, Registry};
use common::poll::look_for;
use common::{
    Database, Folder, RunningWorker, Shared, WorkerProcess, eventually, execute, noop, query_value, register_for,
    wait_until,
};
use serde_json::Value;
use tokio_postgres::Client;

/// `note` writes its start and its end into one file, whose lines are in the order in which things happened; the first
/// attempt of a job with "fail" in its payload ends with an error, and one with "hold" lasts until the file `open` is
/// there.
fn journal_config(folder: &Folder) -> String {
    let folder = folder.path().display();
    format!(
        r#"
        [queues]
        default = 4

        [commands.note]
        program = ["sh", "-c", """
          p=$(cat)
          echo start $BUGLE_JOB_ID $BUGLE_ATTEMPT >> {folder}/journal
          case $p in *hold*) until [ -e {folder}/open ]; do sleep 0.02; done;; esac
          sleep 0.005
          echo end $BUGLE_JOB_ID $BUGLE_ATTEMPT >> {folder}/journal
          case $p$BUGLE_ATTEMPT in *fail*1) exit 1;; esac
          """]
        "#
    )
}

fn eight_processes(database: &Database, folder: &Folder) -> Vec<WorkerProcess> {
    (1..=8)
        .map(|n| WorkerProcess::start(database, folder, &format!("w{n}"), &journal_config(folder), &[]))
        .collect()
}

/// The journal: what happened to which job.
fn journal(folder: &Folder) -> Vec<(String, i64)> {
    folder
        .lines("journal")
        .iter()
        .map(|line| {
            let mut words = line.split(' ');
            let word = words.next().unwrap().to_string();
            (word, words.next().and_then(|id| id.parse().ok()).unwrap_or(0))
        })
        .collect()
}

async fn completed(owner: &Client, jobs: i64) {
    wait_until(
        owner,
        &format!("select count(*) = {jobs} from bugle.jobs where state = 'completed'"),
    )
    .await;
}

/// That many jobs of the journal have started and not ended.
async fn held(folder: &Folder, jobs: i64) {
    eventually(&format!("{jobs} at once"), || {
        let count = |word| journal(folder).iter().filter(|(w, _)| w == word).count() as i64;
        count("start") - count("end") == jobs
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_processes_never_run_more_than_the_limit_and_a_raised_one_holds_at_once() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let folder = Folder::new();
    let limit = |n: i32| format!("select bugle.set_limits('default', p_max_running => {n})");
    execute(&owner, &limit(3)).await;
    execute(
        &owner,
        "insert into bugle.jobs (command) select 'note' from generate_series(1, 150)",
    )
    .await;

    let workers = eight_processes(&database, &folder);
    wait_until(&owner, "select count(*) > 60 from bugle.jobs where state = 'completed'").await;
    std::fs::OpenOptions::new()
        .append(true)
        .open(folder.join("journal"))
        .and_then(|mut file| std::io::Write::write_all(&mut file, b"raise\n"))
        .unwrap();
    execute(&owner, &limit(6)).await;
    completed(&owner, 150).await;

    // The limits are made use of, whole: jobs that do not end fill them.
    execute(&owner, &limit(2)).await;
    execute(
        &owner,
        "insert into bugle.jobs (command, payload) select 'note', '\"hold\"' from generate_series(1, 12)",
    )
    .await;
    held(&folder, 2).await;
    execute(&owner, &limit(6)).await;
    held(&folder, 6).await;
    std::fs::write(folder.join("open"), "").unwrap();
    completed(&owner, 162).await;

    let (mut running, mut most, mut raised) = (0, [0, 0], 0);
    for (word, _) in journal(&folder) {
        match word.as_str() {
            "start" => running += 1,
            "end" => running -= 1,
            _ => raised = 1,
        }
        most[raised] = most[raised].max(running);
    }
    assert!(most[0] <= 3, "{} ran at once under a limit of 3", most[0]);
    assert!(most[1] <= 6, "{} ran at once under a limit of 6", most[1]);
    let by: i64 = query_value(&owner, "select count(distinct worker) from bugle.jobs").await;
    assert!(by > 1, "several took part");
    drop(workers);
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_processes_keep_the_order_of_each_key_across_retries_and_the_limit_of_each_key() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let folder = Folder::new();
    execute(
        &owner,
        "insert into bugle.retry_policies (name, kind, retries, delay, jitter) values ('soon', 'fixed', 5, \
        '20 milliseconds', 0);
             select bugle.set_limits('default', p_max_running_per_key => 2);
             insert into bugle.jobs (command, payload, retry_policy, order_key, limit_key)
             select 'note', case when i % 5 = 0 then '\"fail\"' else '{}' end::jsonb, 'soon', 'o' || i % 12, 'l' || i \
             % 4
             from generate_series(1, 240) i",
    )
    .await;

    let workers = eight_processes(&database, &folder);
    completed(&owner, 240).await;
    execute(
        &owner,
        "insert into bugle.jobs (command, payload, order_key, limit_key)
             select 'note', '\"hold\"', 'h' || i, 'l0' from generate_series(1, 4) i",
    )
    .await;
    held(&folder, 2).await;
    std::fs::write(folder.join("open"), "").unwrap();
    completed(&owner, 244).await;

    let keys: HashMap<i64, (String, String)> = owner
        .query("select id, order_key, limit_key from bugle.jobs", &[])
        .await
        .unwrap()
        .iter()
        .map(|row| (row.get(0), (row.get(1), row.get(2))))
        .collect();
    let mut holder: HashMap<&str, i64> = HashMap::new();
    let mut furthest: HashMap<&str, i64> = HashMap::new();
    let mut running: HashMap<&str, i32> = HashMap::new();
    let mut most = 0;
    for (word, id) in journal(&folder) {
        let (order, limit) = keys.get(&id).map(|(o, l)| (o.as_str(), l.as_str())).unwrap();
        if word == "start" {
            assert_eq!(holder.insert(order, id), None, "one at a time in {order}");
            let before = furthest.insert(order, id).unwrap_or(0);
            assert!(before <= id, "job {id} of {order} started after job {before}");
            *running.entry(limit).or_default() += 1;
            most = most.max(running[limit]);
        } else {
            assert_eq!(holder.remove(order), Some(id));
            *running.entry(limit).or_default() -= 1;
        }
    }
    assert_eq!(most, 2, "of one limit key at once");
    assert_eq!(journal(&folder).len(), 2 * (244 + 48), "every fifth ran twice");
    drop(workers);
}

/// Workers that rely on the bell alone: the safety poll is switched off.
fn without_safety_poll(database: &Database, queues: &[(&str, u32)], registry: Registry) -> RunningWorker {
    let mut settings = database.settings(queues);
    settings.safety_poll = Duration::ZERO;
    RunningWorker::start(settings, registry)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_held_back_by_a_limit_starts_as_soon_as_it_may() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(
        &owner,
        "select bugle.set_limits('running', p_max_running => 1);
             select bugle.set_limits('keys', p_max_running_per_key => 1);
             select bugle.set_limits('starts', p_max_starts => 10, p_starts_period => '100 milliseconds');
             select bugle.set_limits('key_starts', p_max_starts_per_key => 5, p_starts_per_key_period => '100 \
             milliseconds');
             select bugle.set_command_limit('scarce', 1);
             insert into bugle.retry_policies (name, kind, retries, delay, jitter) values ('soon', 'fixed', 5, '1 \
             millisecond', 0)",
    )
    .await;
    let queues = ["running", "keys", "starts", "key_starts", "order", "fair", "one", "two"].map(|queue| (queue, 8));
    let registry =
        noop()
            .on("scarce", async |_: Context, _: Value| Ok(()))
            .on("flaky", async |context: Context, _: Value| match context.attempt() {
                1 => Err(Failure::new("once")),
                _ => Ok(()),
            });
    let workers: Vec<_> = (0..3)
        .map(|_| without_safety_poll(&database, &queues, registry.clone()))
        .collect();
    wait_until(&owner, "select count(*) = 3 from bugle.workers where state = 'alive'").await;

    for round in 0..4 {
        execute(
            &owner,
            "insert into bugle.jobs (command, queue) select 'noop', 'running' from generate_series(1, 30);
                 insert into bugle.jobs (command, queue, limit_key) select 'noop', 'keys', 'k' || i % 3 from \
                 generate_series(1, 30) i;
                 insert into bugle.jobs (command, queue) select 'noop', 'starts' from generate_series(1, 30);
                 insert into bugle.jobs (command, queue, limit_key) select 'noop', 'key_starts', 'k' || i % 3 from \
                 generate_series(1, 30) i;
                 insert into bugle.jobs (command, queue, order_key, retry_policy)
                 select case when i % 6 = 0 then 'flaky' else 'noop' end, 'order', 'k' || i % 3, 'soon' from \
                 generate_series(1, 30) i;
                 insert into bugle.jobs (command, queue, fair_key) select 'noop', 'fair', 'k' || i % 3 from \
                 generate_series(1, 30) i;
                 insert into bugle.jobs (command, queue) select 'scarce', case when i % 2 = 0 then 'one' else 'two' \
                 end from generate_series(1, 20) i",
        )
        .await;
        completed(&owner, (round + 1) * 200).await;
    }

    let most: i64 = query_value(
        &owner,
        "select max(n) from (select count(*) over (order by started_at range between \
        interval '99900 microseconds' preceding and current row) as n \
             from bugle.jobs where queue = 'starts') w",
    )
    .await;
    assert!(most <= 10, "{most} starts in a tenth of a second");
    for worker in workers {
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_held_back_sleeps_and_a_raised_limit_wakes_it() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(&owner, "select bugle.set_limits('default', p_max_running => 1)").await;
    let (started, release) = (Shared::<Vec<i64>>::default(), Shared::<bool>::default());
    let registry = Registry::new().on("hold", {
        let (started, release) = (started.clone(), release.clone());
        move |context: Context, _: Value| {
            let (started, release) = (started.clone(), release.clone());
            async move {
                started.lock().unwrap().push(context.id());
                eventually("released", || *release.lock().unwrap()).await;
                Ok(())
            }
        }
    });
    let worker = without_safety_poll(&database, &[("default", 8)], registry);
    execute(
        &owner,
        "insert into bugle.jobs (command) select 'hold' from generate_series(1, 4)",
    )
    .await;
    eventually("one starts", || started.lock().unwrap().len() == 1).await;

    wait_until(
        &owner,
        "select exists (select from pg_locks l where l.locktype = 'advisory' and l.mode = 'ExclusiveLock' and \
            l.granted \
         and l.database = (select d.oid from pg_database d where d.datname = current_database()) \
         and (l.classid::bigint << 32 | l.objid::bigint) = bugle.bell_key('default'))",
    )
    .await;
    assert_eq!(started.lock().unwrap().len(), 1, "it sleeps although three are ready");
    database
        .connect("operator")
        .await
        .batch_execute("select bugle.set_limits('default', p_max_running => 3)")
        .await
        .unwrap();
    eventually("two more start", || started.lock().unwrap().len() == 3).await;
    *release.lock().unwrap() = true;
    completed(&owner, 4).await;
    worker.stop().await;
}

/// Whose turn it is at each claim: `tests/sql/limits/fair_keys_take_turns.sql`.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_one_tenant_do_not_wait_for_the_backlog_of_another() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(
        &owner,
        "insert into bugle.jobs (command, fair_key) select 'noop', 'large' from generate_series(1, 30000); \
        analyze bugle.jobs_live",
    )
    .await;
    let workers: Vec<_> = (0..4).map(|_| database.worker(&[("default", 4)], noop())).collect();
    wait_until(
        &owner,
        "select count(*) > 100 from bugle.jobs where state = 'completed'",
    )
    .await;

    execute(
        &owner,
        "insert into bugle.jobs (command, fair_key) select 'noop', 'small' from generate_series(1, 10)",
    )
    .await;
    let small = "select count(*) = 10 from bugle.jobs where fair_key = 'small' and state = 'completed'";
    wait_until(&owner, small).await;
    for worker in workers {
        worker.stop().await;
    }

    let behind = "select exists (select from bugle.jobs where fair_key = 'large' \
        and (started_at is null or started_at > (select max(started_at) from bugle.jobs where fair_key = 'small')))";
    let behind: bool = query_value(&owner, behind).await;
    assert!(behind, "they came after a backlog that was there before them");
}

/// Register for the command `noop` in the queues `default` and `other`.
async fn register(client: &Client) -> String {
    register_for(client, &[("default", 100), ("other", 100)], &["noop"]).await
}

async fn claim(client: &Client, me: &str, requests: &[(&str, i32)]) -> usize {
    let requests: Vec<String> = requests
        .iter()
        .map(|(queue, slots)| format!("('{queue}', {slots}, null, 'awake')"))
        .collect();
    let sql = format!(
        "select from bugle.claim({me}, array[{}]::bugle.queue_request[])",
        requests.join(", ")
    );
    client.query(&sql, &[]).await.expect("claims").len()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_limit_waits_for_a_claim_that_has_not_seen_it_and_counts_what_that_took() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let (one, two) = (database.connect("worker").await, database.connect("worker").await);
    let (me, you) = (register(&one).await, register(&two).await);
    execute(
        &owner,
        "insert into bugle.jobs (command) select 'noop' from generate_series(1, 20)",
    )
    .await;

    execute(&one, "begin").await;
    assert_eq!(claim(&one, &me, &[("default", 3)]).await, 3);
    let operator = database.connect("operator").await;
    let setting = tokio::spawn(async move {
        execute(&operator, "select bugle.set_limits('default', p_max_running => 5)").await;
    });
    wait_until(
        &owner,
        "select exists (select from pg_locks l where l.relation = 'bugle.limit_gate'::regclass and not l.granted)",
    )
    .await;
    assert_eq!(
        claim(&two, &you, &[("default", 10)]).await,
        0,
        "nobody claims while it is being set"
    );
    execute(&one, "commit").await;
    setting.await.unwrap();

    assert_eq!(claim(&two, &you, &[("default", 10)]).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_stopped_in_the_middle_of_a_counted_claim_does_not_stall_other_queues() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let (one, two) = (database.connect("worker").await, database.connect("worker").await);
    let (me, you) = (register(&one).await, register(&two).await);
    execute(
        &owner,
        "select bugle.set_limits('default', p_max_running => 5);
             insert into bugle.jobs (command, queue) select 'noop', q from generate_series(1, 9), \
             unnest('{default,other}'::text[]) q",
    )
    .await;

    execute(&one, "begin").await;
    assert_eq!(claim(&one, &me, &[("default", 3)]).await, 3);
    assert_eq!(
        claim(&two, &you, &[("default", 9), ("other", 9)]).await,
        9,
        "all of the other queue, none of the one whose lock is held"
    );
    execute(&one, "rollback").await;

    assert_eq!(claim(&two, &you, &[("default", 9)]).await, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_sessions_that_claim_and_end_at_random_never_exceed_a_limit() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(
        &owner,
        "select bugle.set_limits('default', p_max_running => 7, p_max_running_per_key => 2, p_max_starts \
        => 60, p_starts_period => '200 milliseconds');
             insert into bugle.jobs (command, limit_key, order_key, fair_key)
             select 'noop', 'l' || i % 5, case when i % 3 = 0 then 'o' || i % 11 end, case when i % 2 = 0 then 'f' || \
             i % 4 end
             from generate_series(1, 800) i",
    )
    .await;

    let done = Arc::new(AtomicUsize::new(0));
    let mut sessions = Vec::new();
    for _ in 0..16 {
        let (client, done) = (database.connect("worker").await, done.clone());
        sessions.push(tokio::spawn(async move {
            let me = register(&client).await;
            let claim = || async {
                let slots = fastrand::i32(1..6);
                let request = format!("array[('default', {slots}, null, 'awake')::bugle.queue_request]");
                let sql = format!("select id, claim from bugle.claim({me}, {request})");
                let rows = client.query(&sql, &[]).await.expect("claims");
                (!rows.is_empty() || done.load(Ordering::Acquire) == 800).then_some(rows)
            };
            while done.load(Ordering::Acquire) < 800 {
                let rows = look_for(&claim).await.expect("some may start");
                let (verb, result) = match fastrand::u8(..10) {
                    0 => ("give_back", ")::bugle.held_job"),
                    _ => ("complete", ", null)::bugle.finished_job"),
                };
                let held: Vec<String> = rows
                    .iter()
                    .map(|row| format!("({}, {}{result}", row.get::<_, i64>(0), row.get::<_, i64>(1)))
                    .collect();
                if held.is_empty() {
                    continue;
                }
                let end = format!("select bugle.{verb}({me}, array[{}])", held.join(", "));
                let refused = client.query(&end, &[]).await.expect(verb);
                assert!(refused.is_empty());
                if verb == "complete" {
                    done.fetch_add(held.len(), Ordering::AcqRel);
                }
            }
        }));
    }

    while sessions.iter().any(|session| !session.is_finished()) {
        let row = owner
            .query_one(
                "select (select count(*) from r), coalesce((select max(n) from (select count(*) as n from r group by \
                    limit_key) k), 0), \
                 coalesce((select max(n) from (select count(*) as n from r where order_key is not null group by \
                 order_key) k), 0) \
                 from (select) one"
                    .replace(
                        "from r",
                        "from (select * from bugle.jobs_live j where j.state = \
                 'running') r",
                    )
                    .as_str(),
                &[],
            )
            .await
            .unwrap();
        let now: (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        assert!(now.0 <= 7 && now.1 <= 2 && now.2 <= 1, "{now:?} run at once");
    }
    for session in sessions {
        session.await.unwrap();
    }
    completed(&owner, 800).await;
    let starts: i64 = query_value(
        &owner,
        "select max(n) from (select count(*) over (order by started_at range between \
        interval '199900 microseconds' preceding and current row) as n \
             from bugle.jobs) w",
    )
    .await;
    assert!(starts <= 60, "{starts} starts in a fifth of a second");
}

/// As a worker that freezes in the middle of a claim holds it.
#[tokio::test(flavor = "multi_thread")]
async fn a_limited_command_that_another_claim_has_locked_keeps_back_no_other_command() {
    let database = Database::new().await;
    let owner = database.owner().await;
    execute(
        &owner,
        "select bugle.set_command_limit('heavy', 5);
         insert into bugle.claim_locks (kind, name) values ('command', 'heavy') on conflict do nothing;
         insert into bugle.jobs (command, queue, priority)
         select c, q, case c when 'heavy' then 0 else 100 end
         from unnest('{heavy,light}'::text[]) c, unnest('{one,two}'::text[]) q, generate_series(1, 50);
         insert into bugle.jobs (command, steps) values ('heavy', '{light,light}')",
    )
    .await;
    let claiming = database.owner().await;
    let lock = "begin; select from bugle.claim_locks where kind = 'command' and name = 'heavy' for update";
    execute(&claiming, lock).await;

    let done = async |_: Context, _: Value| Ok(());
    let registry = Registry::new().on("heavy", done).on("light", done);
    let worker = database.worker(&[("default", 1), ("one", 2), ("two", 2)], registry);

    wait_until(
        &owner,
        "select count(*) = 100 from bugle.jobs where state = 'completed'",
    )
    .await;
    let ended = "select string_agg(distinct command, ', ') from bugle.jobs where state = 'completed'";
    assert_eq!(query_value::<String>(&owner, ended).await, "light");
    execute(&claiming, "commit").await;
    wait_until(
        &owner,
        "select count(*) = 201 from bugle.jobs where state = 'completed'",
    )
    .await;
    worker.stop().await;
}
