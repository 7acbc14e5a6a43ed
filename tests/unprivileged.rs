//! What a login without any of Bugle's roles can do: notify, and take advisory locks. It may slow Bugle down, and stops
//! nothing.

mod common;

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bugle::{Bugle, Context, Registry, State};
use common::{BUGLE, Database, RunningWorker, enqueue, execute, noop, query_value, wait_for_state, wait_until};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio_postgres::Client;

/// Workers that find nothing by chance: the safety poll is switched off.
fn start(database: &Database, queues: &[(&str, u32)], registry: Registry) -> RunningWorker {
    let mut settings = database.settings(queues);
    settings.safety_poll = Duration::ZERO;
    RunningWorker::start(settings, registry)
}

/// `hold` runs until it is released, `noop` does nothing.
fn holding() -> (Registry, Arc<Semaphore>) {
    let released = Arc::new(Semaphore::new(0));
    let registry = noop().on("hold", {
        let released = released.clone();
        move |_: Context, _: Value| {
            let released = released.clone();
            async move {
                released.acquire().await.unwrap().forget();
                Ok(())
            }
        }
    });
    (registry, released)
}

async fn text(client: &Client, sql: &str) -> String {
    query_value(client, sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_notifications_end_no_job_and_stop_no_worker() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let stranger = database.connect("stranger").await;
    let (registry, released) = holding();
    let worker = start(&database, &[("default", 4)], registry);
    let held = enqueue(&owner, "hold").await;
    wait_for_state(&owner, held, "running").await;

    // every order there is on every channel that workers listen to, and nonsense
    let forge = "select string_agg(format('notify %I, %L', channel, message), '; ') \
        from bugle.jobs_live j, \
          lateral (values (bugle.worker_channel(j.worker)), (bugle.bell_channel('default')), ('bugle_keeper')) \
            c (channel), \
          lateral (values ('drain'), ('pause'), ('resume'), ('scan default'), ('scan '), ('default'), ('due'), (''), \
            ('cancel'), ('cancel ' || j.id), (format('cancel %s %s', j.id, j.claim)), (repeat('x', 7000))) \
            m (message)";
    let forged = text(&owner, forge).await;
    for _ in 0..20 {
        execute(&stranger, &forged).await;
    }
    // heard after them
    let later = enqueue(&owner, "noop").await;
    wait_for_state(&owner, later, "completed").await;
    released.add_permits(1);
    wait_for_state(&owner, held, "completed").await;

    let attempts = format!("select format('%s %s', attempt, claim) from bugle.jobs where id = {held}");
    assert_eq!(text(&owner, &attempts).await, "1 1");
    assert_eq!(text(&owner, "select state from bugle.workers").await, "alive");
    // nor does it pause
    let last = enqueue(&owner, "noop").await;
    wait_for_state(&owner, last, "completed").await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_the_database_confirms_is_obeyed_after_forged_ones() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let stranger = database.connect("stranger").await;
    let (registry, _released) = holding();
    let worker = start(&database, &[("default", 4)], registry);
    let held = enqueue(&owner, "hold").await;
    wait_for_state(&owner, held, "running").await;
    let id = text(&owner, "select id::text from bugle.workers").await;
    for _ in 0..20 {
        let forged = format!("notify bugle_worker_{id}, 'drain'; notify bugle_worker_{id}, 'cancel {held} 1'");
        execute(&stranger, &forged).await;
    }

    let operator = database.connect("operator").await;
    let cancel = format!("select bugle.cancel({held})");
    execute(&operator, &cancel).await;
    wait_for_state(&owner, held, "cancelled").await;
    // the executor that never ends was ended, or the worker would wait for it
    execute(&operator, &format!("select bugle.drain_worker({id})")).await;
    worker.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_who_hold_bells_do_not_stop_pickup() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let bell = text(&owner, "select bugle.bell_key('default')::text").await;
    let follower = text(&owner, "select bugle.follower_key('default')::text").await;
    for held in [
        format!("pg_advisory_lock({bell})"),
        format!("pg_advisory_lock_shared({bell})"),
        format!("pg_advisory_lock({follower})"),
        format!("pg_advisory_lock_shared({follower})"),
        format!("pg_advisory_lock({bell}), pg_advisory_lock({follower})"),
        format!("pg_advisory_lock_shared({bell}), pg_advisory_lock({follower})"),
    ] {
        let stranger = database.connect("stranger").await;
        execute(&stranger, &format!("select {held}")).await;
        let workers: Vec<_> = (0..3).map(|_| start(&database, &[("default", 1)], noop())).collect();
        wait_until(&owner, "select count(*) = 3 from bugle.workers where state = 'alive'").await;
        for _ in 0..10 {
            let id = enqueue(&owner, "noop").await;
            wait_for_state(&owner, id, "completed").await;
        }
        for worker in workers {
            worker.stop().await;
        }
    }
}

/// The session of a worker that dies leaves its proof of life to the next in line, and everyone can read its key in
/// pg_locks.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_who_takes_the_proof_of_life_of_a_dead_worker_does_not_keep_its_jobs() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let dying = database.connect("worker").await;
    let register = "select format('%s, %L::uuid', worker, nonce) \
        from bugle.register('dying', 'h', 1, '0', bugle.protocol(), array['default'], array[1], array['noop'])";
    let me = text(&dying, register).await;
    let id = enqueue(&owner, "noop").await;
    let claim = format!("select from bugle.claim({me}, array[('default', 1, null, null)::bugle.queue_request])");
    assert_eq!(dying.query(&claim, &[]).await.unwrap().len(), 1);

    let stranger = database.connect("stranger").await;
    let take = format!(
        "select pg_advisory_lock({})",
        text(&owner, "select life_key::text from bugle.registrations").await
    );
    let taken = tokio::spawn(async move {
        execute(&stranger, &take).await;
        stranger
    });
    wait_until(
        &owner,
        "select exists (select from pg_stat_activity where wait_event = 'advisory' and datname = current_database())",
    )
    .await;
    drop(dying);
    let stranger = taken.await.unwrap();

    let worker = start(&database, &[("default", 1)], noop());
    wait_for_state(&owner, id, "completed").await;
    drop(stranger);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_who_hold_every_advisory_lock_stop_neither_promotion_nor_schedules_nor_limits() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let stranger = database.connect("stranger").await;
    // every number that any revision had for a key of its own, and every kind of key of these queues
    let all = text(
        &owner,
        "select format('select %s', string_agg(format('pg_advisory_lock(%s)', k), ', ')) from ( \
           select generate_series(7126490900, 7126491000) as k \
           union select hashtextextended(n.name, s) from unnest('{default,limited,all,\"queue \
           limited\",noop,\"\"}'::text[]) n (name), \
             generate_series(7126490900, 7126491000) s) keys",
    )
    .await;
    execute(&stranger, &all).await;
    execute(
        &owner,
        "select bugle.set_limits('limited', p_max_running => 1);
             select bugle.set_command_limit('noop', 1);
             insert into bugle.jobs (command, run_at) values ('noop', now() + interval '100 milliseconds');
             insert into bugle.jobs (command, queue) select 'noop', 'limited' from generate_series(1, 5);
             insert into bugle.schedules (name, every, command) values ('ticks', '1 second', 'noop')",
    )
    .await;
    let workers: Vec<_> = (0..2)
        .map(|_| start(&database, &[("default", 2), ("limited", 2)], noop()))
        .collect();

    wait_until(
        &owner,
        "select count(*) filter (where queue = 'limited') = 5 and count(*) filter (where queue = 'default') >= 2 \
         from bugle.jobs where state = 'completed'",
    )
    .await;
    for worker in workers {
        worker.stop().await;
    }
}

/// The caller learns of the end by its poll.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_who_holds_the_locks_of_subscribers_keeps_no_result_from_callers() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let bugle = Bugle::connect(&database.url("owner")).unwrap();
    for keys in [
        "bugle.subscribers_key()",
        "bugle.subscription_key('default')",
        "bugle.subscribers_key(), bugle.subscription_key(null), bugle.subscription_key('default'), bugle.silence_key()",
    ] {
        let keys = text(&owner, &format!("select array_to_string(array[{keys}], ',')")).await;
        let stranger = database.connect("stranger").await;
        let take = format!("select pg_advisory_lock(key) from unnest('{{{keys}}}'::bigint[]) key");
        execute(&stranger, &take).await;

        let id = enqueue(&owner, "noop").await;
        let job = bugle.job(id);
        let ended = tokio::spawn(async move { job.wait().await.unwrap() });
        // it has gone on without being subscribed, and waits in no statement
        wait_until(
            &owner,
            &format!(
                "select exists (select from pg_stat_activity where application_name = 'bugle client (listens)' \
                 and datname = current_database() and state = 'idle' and query ~ 'bugle.(attend|endings)' \
                 and query_start > (select created_at from bugle.jobs where id = {id}))"
            ),
        )
        .await;
        execute(&owner, &format!("select bugle.cancel({id})")).await;
        assert_eq!(ended.await.unwrap().state, Some(State::Cancelled), "{keys}");

        let viewer = database.connect("viewer").await;
        let channel = query_value::<Option<String>>(&viewer, "select bugle.subscribe('default')").await;
        assert_eq!(channel, None, "{keys}");
        let held = "select count(*)::text from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()";
        assert_eq!(text(&viewer, held).await, "0", "{keys}: nothing is kept");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limited_queue_named_all_is_claimed_while_somebody_subscribes() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let subscriber = database.connect("viewer").await;
    execute(
        &subscriber,
        "listen bugle_events; select bugle.subscribe(); select bugle.subscribe('all'); select bugle.subscribe('mail')",
    )
    .await;
    let queues = ["all", "queue mail", "mail"];
    for queue in queues {
        let limit = format!("select bugle.set_limits('{queue}', p_max_running => 1)");
        execute(&owner, &limit).await;
        let insert =
            format!("insert into bugle.jobs (command, queue) select 'noop', '{queue}' from generate_series(1, 3)");
        execute(&owner, &insert).await;
    }
    let worker = start(&database, &queues.map(|queue| (queue, 2)), noop());

    wait_until(&owner, "select count(*) = 9 from bugle.jobs where state = 'completed'").await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_names_sessions_that_hold_locks_of_workers_and_how_to_end_them() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let worker = start(&database, &[("default", 1)], noop());
    wait_until(&owner, "select count(*) = 1 from bugle.workers where state = 'alive'").await;
    let doctor = || {
        let run = Command::new(BUGLE)
            .args(["doctor", "--json"])
            .env_remove("DATABASE_URL")
            .env("BUGLE_DATABASE_URL", database.url("viewer"))
            .output()
            .unwrap();
        let findings: Vec<Value> = serde_json::from_slice(&run.stdout).unwrap();
        findings
            .into_iter()
            .find(|finding| finding["check"] == "locks")
            .unwrap()
    };
    assert_eq!(doctor()["level"], "ok", "{}", doctor());

    let stranger = database.connect("stranger").await;
    let pid = text(&stranger, "select pg_backend_pid()::text").await;
    let key = text(&owner, "select bugle.follower_key('default')::text").await;
    execute(&stranger, &format!("select pg_advisory_lock({key})")).await;

    let found = doctor();
    assert_eq!(found["level"], "warn");
    assert!(
        found["message"].as_str().unwrap().contains(&format!("process {pid}")),
        "{found}"
    );
    let fix = found["fix"].as_str().unwrap();
    assert_eq!(fix, format!("select pg_terminate_backend({pid});"));
    execute(&owner, fix).await;
    wait_until(
        &owner,
        &format!("select not exists (select from pg_stat_activity where pid = {pid})"),
    )
    .await;
    assert_eq!(doctor()["level"], "ok");
    worker.stop().await;
}
