//! Jobs that the database says a worker runs, and that it does not know of, although it is alive: they are not left
//! lying.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bugle::{Context, Registry};
use common::{Database, RunningWorker, enqueue, execute, noop, query_value, wait_for_state, wait_until};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{Notify, Semaphore};
use tokio_postgres::Client;
use tokio_postgres::config::Host;

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_committed_after_its_worker_came_back_is_given_back() {
    let database = Database::new().await;
    let relay = Relay::to(&database).await;
    let owner = database.owner().await;
    let worker = relay.worker(&database, noop());
    wait_until(&owner, "select count(*) = 1 from bugle.workers where state = 'alive'").await;
    // a claim that has its row and takes its time
    let brake = database.owner().await;
    execute(
        &brake,
        "create function public.brake() returns trigger language plpgsql security definer \
               as $$ begin perform pg_advisory_xact_lock_shared(42); return new; end $$; \
             create trigger brake before update on bugle.jobs_live for each row \
               when (new.state = 'running' and old.claim = 0) execute function public.brake(); \
             select pg_advisory_lock(42)",
    )
    .await;
    let id = enqueue(&owner, "noop").await;
    let claiming = "select count(*) = 1 from pg_locks l join bugle.registrations r on r.backend_pid = l.pid \
        where l.locktype = 'advisory' and l.objid = 42 and not l.granted";
    wait_until(&owner, claiming).await;

    let former = backend_of_the_worker(&owner).await;
    relay.cut();
    wait_until(
        &owner,
        &format!("select backend_pid <> {former} and lost_at is null from bugle.registrations"),
    )
    .await;
    execute(&brake, "select pg_advisory_unlock(42)").await;
    wait_for_state(&owner, id, "completed").await;

    let row = owner
        .query_one("select claim, attempt from bugle.jobs where id = $1", &[&id])
        .await
        .unwrap();
    assert_eq!(
        row.get::<_, i64>(0),
        2,
        "the claim nobody heard of, and the one that ran it"
    );
    assert_eq!(row.get::<_, i32>(1), 1, "only one of them was an attempt");
    assert!(worker.stop().await.is_clean());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_taken_up_again_after_its_end_was_refused_is_given_back() {
    let database = Database::new().await;
    let relay = Relay::to(&database).await;
    let owner = database.owner().await;
    let (gate, ended) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let registry = Registry::new().on("hold", {
        let (gate, ended) = (gate.clone(), ended.clone());
        move |context: Context, _: Value| {
            let (gate, ended) = (gate.clone(), ended.clone());
            async move {
                tokio::select! {
                    permit = gate.acquire() => drop(permit),
                    () = context.cancellation().cancelled() => {}
                }
                ended.fetch_add(1, Ordering::AcqRel);
                Ok(())
            }
        }
    });
    let worker = relay.worker(&database, registry);
    let id = enqueue(&owner, "hold").await;
    wait_for_state(&owner, id, "running").await;

    // its way back is held up after it has said what it runs
    execute(
        &owner,
        "update bugle.registrations set running = 1, seen_at = now() + interval '1 hour'",
    )
    .await;
    let former = backend_of_the_worker(&owner).await;
    let mut barrier = database.owner().await;
    let barrier = barrier.transaction().await.unwrap();
    let lock = "select from bugle.registrations for update";
    barrier.batch_execute(lock).await.unwrap();
    relay.cut();
    wait_until(&owner, &waiting(former, 1)).await;
    // a crash that undid its claim would leave this; then the job ends, and nobody wants to hear of it
    execute(
        &owner,
        "update bugle.jobs_live set state = 'ready', claim = 0, attempt = 0, worker = null, \
               first_started_at = null, started_at = null",
    )
    .await;
    gate.add_permits(100);
    common::eventually("the executor ends", || ended.load(Ordering::Acquire) == 1).await;
    // a heartbeat that has fewer jobs to name is held up too
    wait_until(&owner, &waiting(former, 2)).await;
    barrier.commit().await.unwrap();
    wait_for_state(&owner, id, "completed").await;

    assert!(ended.load(Ordering::Acquire) == 2, "it ran again");
    assert!(worker.stop().await.is_clean());
}

/// Whether this number of sessions wait for the row of the worker, its former one not counted.
fn waiting(former: i32, sessions: u32) -> String {
    format!(
        "select count(distinct l.pid) = {sessions} from pg_locks l join pg_stat_activity a on a.pid = l.pid \
         where not l.granted and l.locktype in ('transactionid', 'tuple') and a.datname = current_database() and a.pid \
         <> {former}"
    )
}

async fn backend_of_the_worker(owner: &Client) -> i32 {
    query_value(owner, "select backend_pid from bugle.registrations").await
}

/// A way to the database that can be cut at the worker's end; what the server is doing it goes on doing.
struct Relay {
    port: u16,
    cut: Arc<Notify>,
}

impl Relay {
    async fn to(database: &Database) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().unwrap().port();
        let cut = Arc::new(Notify::new());
        let (config, told) = (database.config("worker"), cut.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (config, told) = (config.clone(), told.clone());
                tokio::spawn(async move {
                    let server_port = config.get_ports().first().copied().unwrap_or(5432);
                    match &config.get_hosts()[0] {
                        Host::Tcp(name) => {
                            pass(client, TcpStream::connect((name.as_str(), server_port)).await, &told).await
                        }
                        Host::Unix(path) => {
                            let socket = path.join(format!(".s.PGSQL.{server_port}"));
                            pass(client, UnixStream::connect(socket).await, &told).await
                        }
                    }
                });
            }
        });
        Relay { port, cut }
    }

    fn worker(&self, database: &Database, registry: Registry) -> RunningWorker {
        let mut settings = database.settings(&[("default", 1)]);
        settings.database_url = format!("{} host=127.0.0.1 port={}", database.url("worker"), self.port);
        RunningWorker::start(settings, registry)
    }

    /// Everyone who is connected now is cut off.
    fn cut(&self) {
        self.cut.notify_waiters();
    }
}

async fn pass(mut client: TcpStream, server: std::io::Result<impl AsyncRead + AsyncWrite + Unpin>, cut: &Notify) {
    let mut server = server.expect("the server is there");
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => {}
        () = cut.notified() => {}
    }
}
