//! Sessions that are not ours: PgBouncer in transaction mode, where each transaction may meet another server
//! connection.

mod common;
mod pgbouncer;

use bugle::{Bugle, NewJob, State, Workflow};
use common::cli::bugle_at;
use common::{Database, execute, noop};
use pgbouncer::PgBouncer;
use tokio_postgres::Client;

/// How many server connections there are. They are used in turn, so that no two statements in a row meet the same one.
const SERVERS: usize = 3;

/// A pooler for a login that may enqueue, read and operate. None, with a sentence, if there is no PgBouncer to be had.
async fn pooler(database: &Database) -> Option<PgBouncer> {
    let config = database.config("operator");
    let login = config.get_user().unwrap();
    let rights =
        format!("grant bugle_enqueuer, bugle_viewer to {login}; alter role {login} set statement_timeout = '77s'");
    database.owner().await.batch_execute(&rights).await.unwrap();
    let settings = format!("default_pool_size = {SERVERS}\nserver_round_robin = 1");
    let pooler = pgbouncer::start_with(&config, &settings)?;
    // transactions that are open at once make it open all of them
    let mut clients: Vec<Client> = vec![];
    for _ in 0..SERVERS {
        let client = pooler.connect().await;
        execute(&client, "begin; select 1").await;
        clients.push(client);
    }
    for client in &clients {
        execute(client, "commit").await;
    }
    Some(pooler)
}

/// What it printed, if it went well.
async fn said(url: &str, arguments: &[&str]) -> String {
    bugle_at(url, arguments).await.text().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_works_repeatedly_through_a_pooler_in_transaction_mode() {
    let database = Database::new().await;
    let Some(pooler) = pooler(&database).await else { return };
    let url = pooler.url();
    let folder = common::Folder::new();
    let lines = folder.write("jobs.jsonl", "{\"command\": \"bulk\"}\n{\"command\": \"bulk\"}\n");
    let workflow = folder.write(
        "workflow.json",
        r#"{"jobs": {"a": {"command": "x"}, "b": {"command": "x", "after": ["a"]}}}"#,
    );

    for round in 0..SERVERS + 1 {
        let id = said(
            &url,
            &["enqueue", "noop", r#"{"n": 1}"#, "--run-at=tomorrow", "--header=a=b"],
        )
        .await;
        let after = said(&url, &["enqueue", "noop", "--after", &id]).await;
        said(&url, &["enqueue", "--jsonl", lines.to_str().unwrap()]).await;
        said(&url, &["workflow", "enqueue", workflow.to_str().unwrap()]).await;
        let schedule = format!("nightly-{round}");
        for arguments in [
            &["jobs", "list"][..],
            &["jobs", "list", "--queue=default", "--state=scheduled", "--since=1h"],
            &["jobs", "show", &id],
            &["jobs", "explain", &after],
            &["jobs", "pause", &id],
            &["jobs", "resume", &id],
            &["jobs", "set-priority", "--priority=-1", &id],
            &["jobs", "reschedule", "--at=2999-01-01", &id],
            &["jobs", "cancel", &id, "--note=no"],
            &["jobs", "restart", &id],
            &["jobs", "remove", &after],
            &["queues"],
            &["queues", "pause", "default"],
            &["queues", "resume", "default"],
            &["queues", "set", "default", "--max-running=5", "--max-starts=10/1m"],
            &["queues", "limit-command", "noop", "3"],
            &["schedules", "add", &schedule, "--cron=0 3 * * *", "--command=noop"],
            &["schedules", "list"],
            &["schedules", "preview", "0 3 * * *"],
            &["schedules", "pause", &schedule],
            &["schedules", "resume", &schedule],
            &["schedules", "run-now", &schedule],
            &["schedules", "remove", &schedule],
            &["workers", "--all"],
            &["commands"],
            &["policies"],
            &["stats"],
            &["stats", "errors"],
            &["migrate", "status"],
        ] {
            said(&url, arguments).await;
        }
        let doctor = bugle_at(&url, &["doctor"]).await;
        assert!(
            doctor.out.contains("no worker is alive"),
            "{}{}",
            doctor.out,
            doctor.err
        );
        said(&url, &["jobs", "cancel", "--command=bulk", "--yes"]).await;
    }

    // and nothing was left behind in sessions that others go on with
    let client = pooler.connect().await;
    for _ in 0..SERVERS {
        let row = client
            .query_typed_one(
                "select current_setting('statement_timeout'), current_setting('jit')",
                &[],
            )
            .await
            .unwrap();
        assert_eq!((row.get::<_, &str>(0), row.get::<_, &str>(1)), ("77s", "on"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_the_library_enqueues_and_waits_through_a_pooler_in_transaction_mode() {
    let database = Database::new().await;
    let Some(pooler) = pooler(&database).await else { return };
    let worker = database.worker(&[("default", 4)], noop());

    for _ in 0..2 {
        let client = Bugle::connect(&pooler.url()).unwrap();
        for _ in 0..SERVERS {
            let job = client.enqueue(&NewJob::new("noop", ())).await.unwrap();
            assert_eq!(job.wait().await.unwrap().state, Some(State::Completed));
        }
        let chain = Workflow::new()
            .job("first", NewJob::new("noop", ()))
            .job("then", NewJob::new("noop", ()).after("first"));
        let jobs = client.enqueue_workflow(&chain).await.unwrap();
        assert_eq!(jobs["then"].wait().await.unwrap().state, Some(State::Completed));
    }

    let id = said(&pooler.url(), &["enqueue", "noop", "--wait"]).await;
    assert_eq!(id, "null", "its result");
    worker.stop().await;
}

#[test]
fn packages_are_installed_only_where_that_was_allowed() {
    let allowed = [None, Some("never"), Some(""), Some("yes")].map(common::debian::may_install);

    assert_eq!(allowed, [false, false, false, true]);
}

#[tokio::test(flavor = "multi_thread")]
async fn migrate_works_through_a_pooler_in_transaction_mode_and_leaves_no_setting_behind() {
    for settings in ["", "server_round_robin = 1"] {
        let database = Database::empty().await;
        let config = database.config("operator");
        let login = config.get_user().expect("a login");
        let create = format!("create role {login} login password '{login}'");
        let own = format!("alter database {} owner to {login}", database.name);
        let owner = database.owner().await;
        execute(&owner, &format!("{create}; {own}")).await;
        let Some(pooler) = pgbouncer::start_with(&config, settings) else {
            return;
        };
        drop(pooler.connect().await);

        assert_eq!(said(&pooler.url(), &["migrate"]).await, "migrated");
        assert_eq!(said(&pooler.url(), &["migrate"]).await, "already up to date");

        let client = pooler.connect().await;
        let left = "select current_setting('search_path') || current_setting('lock_timeout')";
        let messages = client.simple_query(left).await.expect("asks");
        let left = messages.iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        assert_eq!(left, Some("\"$user\", public0"));
    }
}
