//! `bugle bench worker`: an ordinary worker in a separate process, whose executors only count jobs and record times.
//!
//! It reports to its parent on stdout every few milliseconds: `FIRST t`, `COUNT n`, `LAT t0 t`. It drains when its
//! stdin is closed, by the parent or because the parent is gone.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::Notify;

use super::clock::now;
use crate::cli::log::{self, LogFlags};
use crate::config::Config;
use crate::{Context, Registry, Settings, Shutdown, Worker};

const REPORT_EVERY: Duration = Duration::from_millis(10);
/// How long the command `nap` takes.
const NAP: Duration = Duration::from_millis(20);
/// The variable with the URLs of several databases, one on each line.
pub(super) const DATABASES: &str = "BUGLE_BENCH_DATABASES";

#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    #[arg(long, default_value = "worker")]
    name: String,
    #[arg(long, default_value_t = 100)]
    slots: u32,
    /// Do not serve the command `stamp`.
    #[arg(long)]
    outdated: bool,
    /// Serve the commands and hosts of this file instead.
    #[arg(long)]
    file: Option<PathBuf>,
}

/// A job that carries its enqueue time.
#[derive(Debug, Deserialize)]
struct Stamp {
    t0: i64,
}

#[derive(Default)]
struct Seen {
    count: AtomicU64,
    first: AtomicI64,
    times: Mutex<Vec<(i64, i64)>>,
    /// Signals that there is something to report.
    news: Notify,
}

impl Seen {
    fn one(&self) {
        if self.count.fetch_add(1, Relaxed) == 0 {
            self.first.store(now(), Relaxed);
        }
        self.news.notify_one();
    }

    /// What is new since the last report, and the last reported count.
    fn report(&self, said: u64) -> std::io::Result<u64> {
        let times = std::mem::take(&mut *self.times.lock().unwrap());
        let (count, first) = (self.count.load(Relaxed), self.first.load(Relaxed));
        let mut out = String::new();
        if said == 0 && first != 0 {
            out.push_str(&format!("FIRST {first}\n"));
        }
        for (t0, t) in times {
            out.push_str(&format!("LAT {t0} {t}\n"));
        }
        if count != said && first != 0 {
            out.push_str(&format!("COUNT {count}\n"));
        }
        std::io::stdout().write_all(out.as_bytes())?;
        Ok(if first == 0 { 0 } else { count })
    }
}

pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let _logging = log::start(&LogFlags {
        level: "warn".into(),
        log_format: None,
    })?;
    let seen = Arc::new(Seen::default());
    let file = arguments.file.as_deref().map(Config::from_file).transpose()?;
    let registry = match &file {
        Some(_) => Registry::new(),
        None => executors(&seen, arguments.outdated),
    };
    let file = file.unwrap_or_default();
    let mut settings = Settings {
        name: arguments.name,
        commands: file.commands,
        hosts: file.hosts,
        ..Settings::default()
    };
    match std::env::var(DATABASES) {
        Ok(urls) => {
            for (place, url) in urls.lines().enumerate() {
                settings = settings.database(&format!("db{place}"), url, [("default", arguments.slots)]);
            }
            settings.slots = Some(arguments.slots as usize * settings.databases.len());
        }
        Err(_) => {
            settings.database_url = std::env::var("BUGLE_DATABASE_URL").context("BUGLE_DATABASE_URL is not set")?;
            settings.queues = vec![("default".into(), arguments.slots)];
        }
    }
    let shutdown = Shutdown::new();
    drain_at_end_of_stdin(shutdown.clone());

    let mut worker = tokio::spawn(Worker::new(settings, registry).run(shutdown));
    let mut said = 0;
    let drained = loop {
        tokio::select! {
            drained = &mut worker => break drained??,
            // no timer while nothing happens, so that an idle worker is measured as it is
            () = async { seen.news.notified().await; tokio::time::sleep(REPORT_EVERY).await } => {
                said = seen.report(said)?;
            }
        }
    };
    seen.report(said)?;
    Ok(if drained.is_clean() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn executors(seen: &Arc<Seen>, outdated: bool) -> Registry {
    let (count, nap, time) = (seen.clone(), seen.clone(), seen.clone());
    let registry = Registry::new().on("noop", move |_: Context, _: IgnoredAny| {
        count.one();
        async { Ok(()) }
    });
    let registry = registry.on("nap", move |_: Context, _: IgnoredAny| {
        nap.one();
        async {
            tokio::time::sleep(NAP).await;
            Ok(())
        }
    });
    if outdated {
        return registry;
    }
    registry.on("stamp", move |_: Context, stamp: Stamp| {
        let t = now();
        time.times.lock().unwrap().push((stamp.t0, t));
        time.one();
        async { Ok(()) }
    })
}

fn drain_at_end_of_stdin(shutdown: Shutdown) {
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        shutdown.request();
    });
}
