//! The disk fills up under load, and is emptied again: what was acknowledged is there, and everything comes to its end.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bugle::Settings;
use bugle::private_postgres::{Options, PrivatePostgres};
use tokio_postgres::NoTls;

use crate::common::{BUGLE, Folder, RunningWorker, Shared, connect, eventually, noop, wait_until};

/// A small file system in memory, gone with the test.
struct SmallDisk {
    folder: Folder,
}

impl SmallDisk {
    fn new(megabytes: usize) -> Option<SmallDisk> {
        let folder = Folder::new();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={megabytes}m,mode=755"), "tmpfs"])
            .arg(folder.path())
            .output();
        mounted
            .is_ok_and(|output| output.status.success())
            .then_some(SmallDisk { folder })
    }

    /// Take all the space there is.
    fn fill(&self) -> PathBuf {
        let filler = self.folder.join("filler");
        let _ = Command::new("dd")
            .arg("if=/dev/zero")
            .arg(format!("of={}", filler.display()))
            .arg("bs=64k")
            .output();
        filler
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.folder.path()).output();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_and_loses_nothing() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: a small disk can be mounted by root alone");
        return;
    }
    let Some(disk) = SmallDisk::new(220) else {
        println!("skipped: no file system can be mounted here");
        return;
    };
    let mut server = server(&disk.folder.join("data"));
    let config: tokio_postgres::Config = server.url("postgres").parse().expect("a URL");
    connect(&config)
        .await
        .batch_execute("create database shop")
        .await
        .expect("a database");
    bugle::schema::migrate(&server.url("shop").parse::<tokio_postgres::Config>().expect("a URL"))
        .await
        .expect("migrates");
    let settings = Settings::new(server.url("shop")).queue("default", 8);
    let worker = RunningWorker::start(settings, noop());
    let (stop, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let acknowledged: Shared<Vec<i64>> = Shared::default();
    let enqueuer = tokio::spawn(enqueue(
        server.url("shop"),
        stop.clone(),
        refused.clone(),
        acknowledged.clone(),
    ));
    let owner = connect(&server.url("shop").parse().expect("a URL")).await;
    wait_until(&owner, "select count(*) > 100 from bugle.jobs_ended").await;

    let filler = disk.fill();
    eventually("something is refused on a full disk", || {
        refused.load(Ordering::Acquire) >= 5
    })
    .await;
    std::fs::remove_file(filler).expect("space again");
    // a server that could not write its log has ended itself: its supervisor starts it again
    let alive = config.connect(NoTls).await.is_ok();
    if !alive {
        let _ = server.kill();
        server.start_again().expect("it recovers");
    }
    let before = acknowledged.lock().unwrap().len();
    let owner = connect(&server.url("shop").parse().expect("a URL")).await;
    eventually("it goes on", || acknowledged.lock().unwrap().len() >= before + 50).await;
    stop.store(true, Ordering::Release);
    enqueuer.await.expect("no panic");
    wait_until(&owner, "select count(*) = 0 from bugle.jobs_live").await;

    let completed: HashSet<i64> = owner
        .query("select id from bugle.jobs where state = 'completed'", &[])
        .await
        .expect("asks")
        .iter()
        .map(|row| row.get(0))
        .collect();
    let acknowledged: HashSet<i64> = acknowledged.lock().unwrap().iter().copied().collect();
    let lost: Vec<_> = acknowledged.difference(&completed).collect();
    assert!(lost.is_empty(), "lost of {}: {lost:?}", acknowledged.len());
    println!(
        "disk: {} acknowledged, {} refused",
        acknowledged.len(),
        refused.load(Ordering::Acquire)
    );
    worker.stop().await;
}

fn server(data: &Path) -> PrivatePostgres {
    let options = Options::new()
        .keep(data)
        .setting("max_wal_size", "48MB")
        .setting("min_wal_size", "32MB")
        .setting("shared_buffers", "16MB")
        .bugle_bin(BUGLE);
    PrivatePostgres::start(&options).expect("a server of our own")
}

/// One after the other, with something to write each time; an error of the server that is not about the session is a
/// refusal.
async fn enqueue(url: String, stop: Arc<AtomicBool>, refused: Arc<AtomicUsize>, acknowledged: Shared<Vec<i64>>) {
    let config: tokio_postgres::Config = url.parse().expect("a URL");
    while !stop.load(Ordering::Acquire) {
        let Ok((client, connection)) = config.connect(NoTls).await else {
            refused.fetch_add(1, Ordering::AcqRel);
            // why: the pace of the load while the server is away; nothing is waited for
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        tokio::spawn(connection);
        while !stop.load(Ordering::Acquire) {
            let insert =
                "insert into bugle.jobs (command, payload) values ('noop', to_jsonb(md5(random()::text))) returning id";
            match client.query_one(insert, &[]).await {
                Ok(row) => acknowledged.lock().unwrap().push(row.get(0)),
                Err(_) => {
                    refused.fetch_add(1, Ordering::AcqRel);
                    break;
                }
            }
            // why: the pace of the load; nothing is waited for
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}
