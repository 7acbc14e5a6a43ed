//! `bugle top`: a screen with queues, workers, what runs and what failed, and the verbs for them.

mod screen;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use tokio::sync::mpsc;
use tokio_postgres::Client;

use super::connect::{Connect, ask};
use crate::admin::operate::{self, Verb};
use crate::admin::read::{self, Filter};
use screen::{Act, Screen, Seen};

/// What to watch.
#[derive(Debug, Args)]
pub struct Arguments {
    /// How often to look
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "2s")]
    every: Duration,

    #[command(flatten)]
    connect: Connect,
}

/// The most lines of each list.
const MOST: i64 = 100;

pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    if !std::io::stdout().is_terminal() {
        bail!("top needs a terminal\nhint: bugle queues --watch 2s prints lines");
    }
    let client = arguments.connect.client().await?;
    let mut screen = Screen::new(look(&client).await?);
    let (keys, stop) = keys();
    let mut terminal = ratatui::init();
    let ended = watch(&mut terminal, &mut screen, &client, keys, arguments.every).await;
    ratatui::restore();
    stop.store(true, Ordering::Relaxed);
    ended.map(|()| ExitCode::SUCCESS)
}

async fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut Screen,
    client: &Client,
    mut keys: mpsc::UnboundedReceiver<KeyEvent>,
    every: Duration,
) -> Result<()> {
    let mut ticks = tokio::time::interval(every.max(Duration::from_millis(200)));
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        tokio::select! {
            _ = ticks.tick() => screen.see(look(client).await?),
            Some(key) = keys.recv() => match screen.press(key.code) {
                Act::Nothing => {}
                Act::Quit => return Ok(()),
                act => {
                    let said = carry_out(client, act).await;
                    screen.say(said.unwrap_or_else(|error| error.to_string()));
                    screen.see(look(client).await?);
                }
            },
        }
    }
}

async fn look(client: &Client) -> Result<Seen> {
    let in_state = |state: &str| Filter {
        state: Some(state.to_owned()),
        ..Filter::default()
    };
    Ok(Seen {
        now: ask(client, read::now(client)).await?,
        queues: ask(client, read::queues(client)).await?,
        workers: ask(client, read::workers(client, false)).await?,
        running: ask(client, read::jobs(client, &in_state("running"), MOST)).await?,
        failed: ask(client, read::jobs(client, &in_state("failed"), MOST)).await?,
    })
}

async fn carry_out(client: &Client, act: Act) -> Result<String> {
    let note = Some("bugle top");
    let (verb, id) = match act {
        Act::Order(post, whom) => {
            ask(client, operate::order(client, post, &whom, note)).await?;
            return Ok("done".into());
        }
        Act::Cancel(id) => (Verb::Cancel, id),
        Act::Restart(id) => (Verb::Restart, id),
        Act::Nothing | Act::Quit => return Ok(String::new()),
    };
    let operated = ask(client, operate::apply(client, &verb, &[id], note)).await?;
    Ok(match operated.first() {
        Some(job) => job
            .why
            .clone()
            .unwrap_or_else(|| format!("job {id} is {}", job.state.as_deref().unwrap_or("gone"))),
        None => format!("there is no job {id}"),
    })
}

/// Keys as they are pressed, read by a thread of their own.
fn keys() -> (mpsc::UnboundedReceiver<KeyEvent>, Arc<AtomicBool>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            match event::poll(Duration::from_millis(100)) {
                Ok(true) => match event::read() {
                    Ok(Event::Key(key)) if key.kind == KeyEventKind::Press => {
                        let _ = sender.send(key);
                    }
                    Ok(_) => {}
                    Err(_) => return,
                },
                Ok(false) => {}
                Err(_) => return,
            }
        }
    });
    (receiver, stop)
}
