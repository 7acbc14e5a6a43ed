//! Shared plumbing of the Rust rivals; times are CLOCK_MONOTONIC nanoseconds (see node/lib.mjs).
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub fn now() -> i64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    ts.tv_sec * 1_000_000_000 + ts.tv_nsec
}

pub fn out(s: &str) {
    let mut o = std::io::stdout().lock();
    let _ = o.write_all(format!("{s}\n").as_bytes());
    let _ = o.flush();
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "k", rename_all = "lowercase")]
pub enum Payload {
    Noop { i: usize },
    Lat { t0: i64 },
    Sleep { ms: u64 },
}

pub struct Handler {
    expect: usize,
    total: AtomicUsize,
    uniq: AtomicUsize,
    dups: AtomicUsize,
    seen: Vec<AtomicU8>,
}

static HANDLER: OnceLock<Handler> = OnceLock::new();

/// Installs the process-wide handler and a SIGTERM/SIGINT task that prints STATS and exits.
pub fn install(expect: usize) {
    let _ = HANDLER.set(Handler {
        expect,
        total: AtomicUsize::new(0),
        uniq: AtomicUsize::new(0),
        dups: AtomicUsize::new(0),
        seen: (0..expect.max(1)).map(|_| AtomicU8::new(0)).collect(),
    });
    tokio::spawn(async {
        use tokio::signal::unix::{SignalKind, signal};
        let mut t = signal(SignalKind::terminate()).unwrap();
        let mut i = signal(SignalKind::interrupt()).unwrap();
        tokio::select! { _ = t.recv() => {}, _ = i.recv() => {} }
        let h = HANDLER.get().unwrap();
        out(&format!("STATS {} {} {}", h.total.load(Relaxed), h.uniq.load(Relaxed), h.dups.load(Relaxed)));
        std::process::exit(0);
    });
}

pub async fn handle(p: Payload) {
    let t = now();
    let h = HANDLER.get().expect("install() first");
    match p {
        Payload::Lat { t0 } => out(&format!("LAT {t0} {t}")),
        Payload::Sleep { ms } => {
            out(&format!("START {t} {}", std::process::id()));
            tokio::time::sleep(Duration::from_millis(ms)).await;
            out(&format!("END {}", now()));
        }
        Payload::Noop { i } => {
            let total = h.total.fetch_add(1, Relaxed) + 1;
            if total == 1 { out(&format!("FIRST {t}")); }
            if total % 1000 == 0 { out(&format!("PROG {total} {t}")); }
            if i < h.expect {
                if h.seen[i].swap(1, Relaxed) == 1 {
                    h.dups.fetch_add(1, Relaxed);
                } else if h.uniq.fetch_add(1, Relaxed) + 1 == h.expect {
                    out(&format!("HANDLED {} {t}", h.expect));
                }
            }
        }
    }
}

/// n single enqueues over `conns` parallel loops; prints {"seconds":…}
pub async fn single<F, Fut>(n: usize, conns: usize, enqueue: F)
where
    F: Fn(Payload, usize) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send,
{
    let f = Arc::new(enqueue);
    let next = Arc::new(AtomicUsize::new(0));
    let t0 = now();
    let mut js = tokio::task::JoinSet::new();
    for c in 0..conns {
        let (f, next) = (f.clone(), next.clone());
        js.spawn(async move {
            loop {
                let i = next.fetch_add(1, Relaxed);
                if i >= n { break; }
                f(Payload::Noop { i }, c).await;
            }
        });
    }
    while let Some(r) = js.join_next().await { r.unwrap(); }
    out(&format!("{{\"seconds\": {}}}", (now() - t0) as f64 / 1e9));
}

/// open loop producer: job i is due at start + i/rate; prints {"produced":…,"seconds":…}
pub async fn rate<F, Fut>(per_s: f64, secs: f64, conns: usize, enqueue: F)
where
    F: Fn(Payload, usize) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send,
{
    let f = Arc::new(enqueue);
    let (step, total) = (1e9 / per_s, (per_s * secs).round() as usize);
    let start = now() + 50_000_000;
    let end = start + (secs * 1e9) as i64;
    let made = Arc::new(AtomicI64::new(0));
    let mut js = tokio::task::JoinSet::new();
    for c in 0..conns {
        let (f, made) = (f.clone(), made.clone());
        js.spawn(async move {
            let mut i = c;
            while i < total {
                let w = start + (i as f64 * step) as i64 - now();
                if w > 0 { tokio::time::sleep(Duration::from_nanos(w as u64)).await; }
                let t0 = now();
                if t0 > end + 1_000_000_000 { return; }
                f(Payload::Lat { t0 }, c).await;
                made.fetch_add(1, Relaxed);
                i += conns;
            }
        });
    }
    while let Some(r) = js.join_next().await { r.unwrap(); }
    out(&format!("{{\"produced\": {}, \"seconds\": {}}}", made.load(Relaxed), (now() - start) as f64 / 1e9));
}

pub enum Cmd {
    Setup,
    Bulk { n: usize, batch: usize },
    Single { n: usize, conns: usize },
    Rate { per_s: f64, secs: f64, conns: usize },
    SleepJob { ms: u64 },
    Worker { conc: usize, expect: usize },
}

pub fn args() -> Cmd {
    let a: Vec<String> = std::env::args().skip(1).collect();
    let u = |i: usize| a[i].parse::<usize>().unwrap();
    let f = |i: usize| a[i].parse::<f64>().unwrap();
    match a[0].as_str() {
        "setup" => Cmd::Setup,
        "bulk" => Cmd::Bulk { n: u(1), batch: u(2) },
        "single" => Cmd::Single { n: u(1), conns: u(2) },
        "rate" => Cmd::Rate { per_s: f(1), secs: f(2), conns: u(3) },
        "sleepjob" => Cmd::SleepJob { ms: u(1) as u64 },
        "worker" => Cmd::Worker { conc: u(1), expect: u(2) },
        x => panic!("unknown command {x}"),
    }
}

pub fn url() -> String { std::env::var("PGURL").expect("PGURL") }
pub fn env_usize(k: &str, d: usize) -> usize { std::env::var(k).ok().and_then(|v| v.parse().ok()).unwrap_or(d) }
pub fn env_str(k: &str, d: &str) -> String { std::env::var(k).unwrap_or_else(|_| d.into()) }
