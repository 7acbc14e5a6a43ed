//! `bugle top`: queues, workers and jobs on the terminal, refreshed, with the verbs for them.

mod list;
mod screen;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tokio::sync::mpsc;
use tokio_postgres::Client;

use super::connect::{Connect, ask};
use super::hint::in_shell;
use crate::admin::operate;
use crate::admin::read::{self, Filter};
use crate::job::JobId;
use crate::state::or_gone;
use screen::{Act, Body, Jobs, Page, Screen, Seen, View};

/// `bugle top`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Refresh interval
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "2s")]
    every: Duration,

    #[command(flatten)]
    connect: Connect,
}

/// Maximum number of jobs in a list.
const MOST: i64 = 500;
/// Up to this many are counted.
const MOST_COUNTED: i64 = 100_000;

pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    if !std::io::stdout().is_terminal() {
        bail!("bugle top needs a terminal\nhint: use bugle queues --watch 2s");
    }
    // every change is confirmed with a key, also in production
    let client = arguments.connect.client().await?;
    let mut database = ask(&client, read::database(&client)).await?;
    if let Some(context) = arguments.connect.label()? {
        database = format!("{context}: {database}");
    }
    let mut screen = Screen::new(database, read_view(&client, &View::Queues).await?);
    let (keys, stop) = keys();
    let mut terminal = ratatui::init();
    let ended = watch(&mut terminal, &mut screen, client, keys, &arguments).await;
    ratatui::restore();
    stop.store(true, Ordering::Relaxed);
    ended.map(|()| ExitCode::SUCCESS)
}

async fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut Screen,
    mut client: Client,
    mut keys: mpsc::UnboundedReceiver<Event>,
    arguments: &Arguments,
) -> Result<()> {
    let mut ticks = tokio::time::interval(arguments.every.max(Duration::from_millis(200)));
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        let act = tokio::select! {
            _ = ticks.tick() => Act::Read,
            Some(event) = keys.recv() => match event {
                Event::Key(key) => screen.press_with(key),
                _ => Act::Nothing,
            },
        };
        match act {
            Act::Nothing => continue,
            Act::Quit => return Ok(()),
            Act::Read => {}
            act => {
                let outcome = carry_out(&client, act).await;
                screen.say(outcome.unwrap_or_else(|error| in_shell(&error.to_string())));
            }
        }
        // an error of the database does not end the screen: what was seen stays, and the next refresh tries again
        match read_view(&client, screen.view()).await {
            Ok(seen) => {
                screen.answered();
                screen.see(seen);
            }
            Err(error) => {
                screen.fail(format!("{error:#}"));
                if client.is_closed()
                    && let Ok(again) = arguments.connect.client().await
                {
                    client = again;
                }
            }
        }
    }
}

async fn read_view(client: &Client, view: &View) -> Result<Seen> {
    let body = match view {
        View::Queues => Body::Queues,
        View::Workers => Body::Workers(ask(client, read::workers(client, false)).await?),
        View::Jobs(jobs) => {
            let filter = filter(jobs);
            let listed = ask(client, read::jobs(client, &filter, MOST)).await?;
            let all = match (listed.len() as i64) < MOST {
                true => None,
                false => Some(ask(client, read::count_jobs(client, &filter, MOST_COUNTED)).await?),
            };
            Body::Jobs(listed, all.map(|count| (count, count >= MOST_COUNTED)))
        }
        View::Job(id) => Body::Job(page(client, *id).await?.map(Box::new)),
    };
    Ok(Seen {
        now: ask(client, read::now(client)).await?,
        queues: ask(client, read::queues(client)).await?,
        minutes: ask(client, read::last_hour(client)).await?,
        body,
    })
}

fn filter(jobs: &Jobs) -> Filter {
    let mut filter = Filter::new();
    filter.state = jobs.state;
    filter.queue = jobs.queue.clone();
    filter.worker = jobs.worker;
    filter
}

async fn page(client: &Client, id: JobId) -> Result<Option<Page>> {
    let Some(job) = ask(client, read::job(client, id)).await? else {
        return Ok(None);
    };
    let explanations = match ask(client, operate::explain(client, id)).await {
        // it may have been removed meanwhile
        Err(error) if error.sqlstate() == Some("JB030") => return Ok(None),
        explained => explained?,
    };
    Ok(Some(Page {
        explanations,
        documents: ask(client, read::documents(client, id)).await?,
        job,
    }))
}

async fn carry_out(client: &Client, act: Act) -> Result<String> {
    let note = Some("bugle top");
    match act {
        Act::Fleet(verb, whom) => {
            ask(client, operate::order(client, verb, &whom, note)).await?;
            Ok("done".into())
        }
        Act::Jobs(verb, ids) => {
            let operated = ask(client, operate::apply(client, &verb, &ids, note)).await?;
            let refused: Vec<_> = operated.iter().filter(|job| !job.done).collect();
            let done = operated.len() - refused.len();
            Ok(match (operated.as_slice(), refused.as_slice()) {
                ([job], []) => format!("job {} is {}", job.id, or_gone(job.state)),
                (_, []) => format!("done for {done} jobs"),
                (_, [first, ..]) => {
                    let reason = first.reason.as_deref().unwrap_or_default();
                    format!(
                        "done for {done} jobs, rejected for {}: job {}: {reason}",
                        refused.len(),
                        first.id
                    )
                }
            })
        }
        Act::Nothing | Act::Quit | Act::Read => Ok(String::new()),
    }
}

/// Keys as they are pressed and changes of the terminal's size, read by a thread of their own.
fn keys() -> (mpsc::UnboundedReceiver<Event>, Arc<AtomicBool>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            match event::poll(Duration::from_millis(100)) {
                Ok(true) => match event::read() {
                    Ok(Event::Key(key)) if key.kind != KeyEventKind::Press => {}
                    Ok(event) => {
                        let _ = sender.send(event);
                    }
                    Err(_) => return,
                },
                Ok(false) => {}
                Err(_) => return,
            }
        }
    });
    (receiver, stop)
}
