//! The application: enqueues in every way there is, cancels, answers, and writes down what it was told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};
use tokio_postgres::types::{Json, ToSql};
use tokio_postgres::{Client, Config, Error, NoTls, Row};

use crate::judge::{Event, Recorder};

/// What all enqueuers share.
pub struct Load {
    pub enqueued: AtomicUsize,
    pub wanted: usize,
    /// Jobs a second, all together.
    pub rate: usize,
    pub stop: AtomicBool,
    /// Nothing else is broken on purpose: no jobs that break something themselves.
    pub calm: AtomicBool,
    /// There are a few of these only.
    pub suicides: AtomicUsize,
    pub most_suicides: usize,
}

/// How an attempt to say something to the database ended.
enum Answer<T> {
    Yes(T),
    No,
    /// The connection broke: it may have happened.
    Unknown,
}

pub struct Enqueuer {
    pub name: String,
    pub url: String,
    pub recorder: Recorder,
    pub load: Arc<Load>,
    pub rng: Rng,
    pub share: usize,
}

impl Enqueuer {
    /// Enqueue until there are enough.
    pub async fn run(mut self) {
        let mut count = 0;
        while !self.load.stop.load(Ordering::Acquire) && self.load.enqueued.load(Ordering::Acquire) < self.load.wanted {
            let Some(client) = connect(&self.url).await else {
                continue;
            };
            if client
                .batch_execute("set lock_timeout = '200ms'; set statement_timeout = '2s'")
                .await
                .is_err()
            {
                continue;
            }
            while !client.is_closed()
                && !self.load.stop.load(Ordering::Acquire)
                && self.load.enqueued.load(Ordering::Acquire) < self.load.wanted
            {
                count += 1;
                let made = self.enqueue(&client, count).await;
                self.load.enqueued.fetch_add(made, Ordering::AcqRel);
                let pause = made.max(1) as f64 * self.share as f64 / self.load.rate as f64;
                // why: the pace of the load; nothing is waited for
                tokio::time::sleep(Duration::from_secs_f64(pause.min(1.0))).await;
            }
        }
    }

    /// Enqueue something, in one of many ways. Returns how many jobs there are more, probably.
    async fn enqueue(&mut self, client: &Client, count: usize) -> usize {
        let name = self.name.clone();
        let token = |n: usize| format!("{name}-{count}-{n}");
        match self.rng.u8(..100) {
            // many in one statement
            0..42 => {
                let tokens: Vec<String> = (0..self.rng.usize(5..40)).map(token).collect();
                self.insert(client, &tokens, "").await
            }
            42..50 => {
                let tokens: Vec<String> = (0..self.rng.usize(5..25)).map(token).collect();
                self.hosted(client, &tokens).await
            }
            50..58 => self.insert(client, &[token(0)], "").await,
            // due later
            58..66 => {
                let tokens: Vec<String> = (0..5).map(token).collect();
                let later = format!("now() + interval '{} milliseconds'", self.rng.u32(50..3000));
                self.insert(client, &tokens, &later).await
            }
            66..69 => self.rolled_back(client, &token(0)).await,
            // one after another, or few at once
            69..74 => {
                let tokens: Vec<String> = (0..self.rng.usize(2..10)).map(token).collect();
                self.exact(client, &tokens).await
            }
            74..80 => {
                let tokens: Vec<String> = (0..self.rng.usize(2..12)).map(token).collect();
                self.chains(client, &tokens).await
            }
            80..85 => self.workflow(client, &token(0)).await,
            85..91 => self.unique(client, &token(0)).await,
            _ => self.idempotent(client, &token(0)).await,
        }
    }

    fn task(&mut self, token: &str) -> Value {
        let calm = self.load.calm.load(Ordering::Acquire);
        let act = match self.rng.u16(..1000) {
            220..227 if calm => "",
            0..40 => "fail",
            40..60 => "snooze",
            60..75 => "wait",
            75..85 => "give_up",
            85..95 => "fail_for_good",
            95..110 => "panic",
            110..200 => "settle",
            200..220 => "folder",
            220..223 => "block",
            223..225 => "memory",
            225..227 if self.load.suicides.fetch_add(1, Ordering::AcqRel) < self.load.most_suicides => "suicide",
            230..245 => "steps",
            245..253 => "spawn",
            _ => "",
        };
        // some take so long that a kill finds them running
        let ms = match self.rng.u8(..100) {
            0..4 => self.rng.u64(200..900),
            4..30 => self.rng.u64(1..40),
            _ => 0,
        };
        json!({ "token": token, "act": act, "ms": ms })
    }

    async fn insert(&mut self, client: &Client, tokens: &[String], run_at: &str) -> usize {
        let tasks: Vec<Json<Value>> = tokens.iter().map(|token| Json(self.task(token))).collect();
        let run_at = if run_at.is_empty() { "now()" } else { run_at };
        let sql = format!(
            "insert into bugle.jobs (command, payload, run_at, retry_policy) \
             select 'work', p, {run_at}, 'quick' from unnest($1::jsonb[]) p returning id, payload ->> 'token'"
        );
        self.send(client, &sql, &[&tasks], tokens).await
    }

    /// Jobs of hosts. Some are over their time soon, if their process is silent.
    async fn hosted(&mut self, client: &Client, tokens: &[String]) -> usize {
        let acts = ["", "", "", "", "", "fail", "snooze", "fail_for_good"];
        let tasks: Vec<Json<Value>> = tokens
            .iter()
            .map(|token| Json(json!({ "token": token, "act": self.rng.choice(acts), "ms": self.rng.u64(20..700) })))
            .collect();
        let command = self.rng.choice(["hosted", "hosted", "hosted_many"]).expect("one");
        let sql = format!(
            "insert into bugle.jobs (command, payload, retry_policy, timeout) \
             select '{command}', p, 'quick', case when n % 3 = 0 then 2 else 30 end * interval '1 second' \
             from unnest($1::jsonb[]) with ordinality as t (p, n) returning id, payload ->> 'token'"
        );
        self.send(client, &sql, &[&tasks], tokens).await
    }

    async fn exact(&mut self, client: &Client, tokens: &[String]) -> usize {
        let tasks: Vec<Json<Value>> = tokens
            .iter()
            .map(|token| {
                let act = if self.rng.u8(..10) == 0 { "fail" } else { "" };
                Json(json!({ "token": token, "act": act, "ms": self.rng.u64(..25) }))
            })
            .collect();
        let keys = match self.rng.bool() {
            true => format!("order_key) select 'work', p, 'exact', 'quick', 'o{}'", self.rng.u8(..5)),
            false => format!("limit_key) select 'work', p, 'exact', 'quick', 'l{}'", self.rng.u8(..3)),
        };
        let sql = format!(
            "insert into bugle.jobs (command, payload, queue, retry_policy, {keys} from unnest($1::jsonb[]) p \
                returning id, payload ->> 'token'"
        );
        self.send(client, &sql, &[&tasks], tokens).await
    }

    /// Jobs of three steps each.
    async fn chains(&mut self, client: &Client, tokens: &[String]) -> usize {
        let acts = ["", "", "fail", "fail_all", "snooze", "skip", "settle", "settle"];
        let tasks: Vec<Json<Value>> = tokens
            .iter()
            .map(|token| {
                let ms = if self.rng.u8(..5) == 0 {
                    self.rng.u64(50..300)
                } else {
                    self.rng.u64(..10)
                };
                Json(json!({ "token": token, "act": self.rng.choice(acts), "ms": ms }))
            })
            .collect();
        let sql = "insert into bugle.jobs (command, payload, steps, retry_policy) \
            select 'chain', p, '{step,step,step}', 'quick' from unnest($1::jsonb[]) p returning id, payload ->> \
            'token'";
        self.send(client, sql, &[&tasks], tokens).await
    }

    /// One first, then two, then one after both of them and one however they end.
    async fn workflow(&mut self, client: &Client, token: &str) -> usize {
        let edges = [
            ("b", "a", false),
            ("c", "a", false),
            ("d", "b", false),
            ("d", "c", false),
            ("e", "b", true),
            ("e", "c", true),
        ];
        let mut jobs = serde_json::Map::new();
        let mut tokens = Vec::new();
        for name in ["a", "b", "c", "d", "e"] {
            let own = format!("{token}-{name}");
            let after: Vec<Value> = edges
                .iter()
                .filter(|(job, ..)| *job == name)
                .map(|(_, needs, however)| json!({ "job": needs, "on_failure": if *however { "run" } else { "fail" } }))
                .collect();
            let spec =
                json!({ "command": "work", "payload": self.task(&own), "retry_policy": "quick", "after": after });
            jobs.insert(name.to_owned(), spec);
            tokens.push(own);
        }
        self.ask(&tokens);
        for (job, needs, however) in edges {
            self.recorder.record(Event::After {
                token: format!("{token}-{job}"),
                after: format!("{token}-{needs}"),
                however,
            });
        }
        let sql = "select id, $2 || '-' || name from bugle.enqueue_workflow($1)";
        let rows = client.query(sql, &[&Json(json!({ "jobs": jobs })), &token]).await;
        self.told(&tokens, answer(rows))
    }

    /// A job and an order of the application that never were.
    async fn rolled_back(&mut self, client: &Client, token: &str) -> usize {
        let task = Json(self.task(token));
        self.ask(&[token.to_owned()]);
        let done = async {
            client.batch_execute("begin").await?;
            client
                .execute(
                    "insert into bugle.jobs (command, payload) values ('work', $1)",
                    &[&task],
                )
                .await?;
            client.batch_execute("rollback").await
        };
        let _ = done.await;
        let _ = client.batch_execute("rollback").await;
        self.recorder.record(Event::Refused {
            token: token.to_owned(),
        });
        0
    }

    /// One of few keys: mostly there is such a job already.
    async fn unique(&mut self, client: &Client, token: &str) -> usize {
        let task = Json(self.task(token));
        let key = format!("k{}", self.rng.u8(..30));
        let conflict = self.rng.choice(["keep", "move"]).expect("one");
        let sql = format!(
            "select id, $2::text from bugle.enqueue_once('work', $1, p_unique_key => '{key}', p_on_conflict => \
                '{conflict}', p_retry_policy => 'quick')"
        );
        self.send(client, &sql, &[&task, &token], &[token.to_owned()]).await
    }

    /// Said again until there is an answer: it is one job all the same.
    async fn idempotent(&mut self, client: &Client, token: &str) -> usize {
        let task = Json(self.task(token));
        let sql = "select id, $2::text from bugle.enqueue_once('work', $1, p_idempotency_key => $2, p_retry_policy => \
            'quick')";
        self.ask(&[token.to_owned()]);
        let mut fresh = None;
        loop {
            let client = fresh.as_ref().unwrap_or(client);
            match answer(client.query(sql, &[&task, &token]).await) {
                Answer::Yes(rows) => return self.told(&[token.to_owned()], Answer::Yes(rows)),
                Answer::No if self.load.stop.load(Ordering::Acquire) => return 0,
                Answer::No | Answer::Unknown => {
                    fresh = connect(&self.url).await;
                    if self.load.stop.load(Ordering::Acquire) {
                        return 0;
                    }
                }
            }
        }
    }

    async fn send(&self, client: &Client, sql: &str, values: &[&(dyn ToSql + Sync)], tokens: &[String]) -> usize {
        self.ask(tokens);
        self.told(tokens, answer(client.query(sql, values).await))
    }

    fn ask(&self, tokens: &[String]) {
        for token in tokens {
            self.recorder.record(Event::Asked { token: token.clone() });
        }
    }

    /// `made`: the id and the token of each job that there is now.
    fn told(&self, tokens: &[String], made: Answer<Vec<Row>>) -> usize {
        match made {
            Answer::Yes(made) => {
                for row in &made {
                    self.recorder.record(Event::Acknowledged {
                        token: row.get(1),
                        job: row.get(0),
                    });
                }
                made.len()
            }
            Answer::No => {
                for token in tokens {
                    self.recorder.record(Event::Refused { token: token.clone() });
                }
                0
            }
            Answer::Unknown => 0,
        }
    }
}

/// An error of the server means no; but one that ends the session may come after the commit.
fn answer<T>(said: Result<T, Error>) -> Answer<T> {
    match said {
        Ok(it) => Answer::Yes(it),
        Err(error) => match error.code() {
            Some(code) if !code.code().starts_with("57P") => Answer::No,
            _ => Answer::Unknown,
        },
    }
}

/// Connect, or wait a moment.
pub async fn connect(url: &str) -> Option<Client> {
    let mut config: Config = url.parse().expect("a connection string");
    config.connect_timeout(Duration::from_secs(2));
    match tokio::time::timeout(Duration::from_secs(3), config.connect(NoTls)).await {
        Ok(Ok((client, connection))) => {
            tokio::spawn(connection);
            Some(client)
        }
        _ => {
            // why: the pace of attempts while the server or the link is broken
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}

/// Somebody who cancels some jobs, and answers those that wait for it.
pub async fn operate(url: String, recorder: Recorder, mut rng: Rng, done: Arc<AtomicBool>) {
    while !done.load(Ordering::Acquire) {
        let Some(client) = connect(&url).await else { continue };
        while !client.is_closed() && !done.load(Ordering::Acquire) {
            let said = async {
                let waiting = client
                    // those that wait for other jobs refuse
                    .query(
                        "select id from bugle.jobs_live where state = 'waiting' order by random() limit 40",
                        &[],
                    )
                    .await?;
                for row in &waiting {
                    let _ = client
                        .execute("select bugle.resolve($1, '1')", &[&row.get::<_, i64>(0)])
                        .await;
                }
                let live =
                    "select id from bugle.jobs_live where payload ->> 'act' <> 'suicide' order by random() limit 1";
                if rng.u8(..4) == 0
                    && let Some(row) = client.query_opt(live, &[]).await?
                {
                    let job: i64 = row.get(0);
                    client.query_one("select bugle.cancel($1::bigint)", &[&job]).await?;
                    recorder.record(Event::Cancelled { job });
                }
                Ok::<(), Error>(())
            };
            let _ = said.await;
            // why: the pace of the operator; nothing is waited for
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
    }
}
