//! A worker made of single calls, so that a test decides what happens when, and a history of all it saw.

use std::path::Path;

use tokio_postgres::types::Json;
use tokio_postgres::{Client, Row};

use crate::common::Database;
use crate::judge::{Event, Recorder};

/// One registered worker on one session.
pub struct ManualWorker {
    pub client: Client,
    pub name: String,
    /// Worker and nonce as SQL spells them: two arguments.
    pub me: String,
    pub id: i64,
    pub recorder: Recorder,
}

/// A job and the claim it is held under.
pub type Held = (i64, i64);

impl ManualWorker {
    pub async fn new(database: &Database, history: &Path, name: &str) -> ManualWorker {
        let client = database.connect("worker").await;
        let row = client
            .query_one(
                "select worker, format('%s, %L::uuid', worker, nonce) from bugle.register($1, 'here', 1, '0', \
                    bugle.protocol(), \
                 '{default,mail}', '{100,100}', '{noop,other}')",
                &[&name],
            )
            .await
            .expect("registers");
        ManualWorker {
            client,
            name: name.to_owned(),
            id: row.get(0),
            me: row.get(1),
            recorder: Recorder::new(history, name),
        }
    }

    /// Claim at most this number of jobs.
    pub async fn claim(&self, slots: usize) -> Vec<Held> {
        let sql = self.claim_sql(slots);
        self.started(self.query(&sql).await)
    }

    pub fn claim_sql(&self, slots: usize) -> String {
        format!(
            "select id, claim from bugle.claim({}, array[('default', {slots}, null, \
                'awake')::bugle.queue_request])",
            self.me
        )
    }

    /// Note that these were handed out.
    pub fn started(&self, rows: Vec<Row>) -> Vec<Held> {
        let held: Vec<Held> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        for (job, claim) in &held {
            self.recorder.record(Event::Started {
                job: *job,
                claim: *claim,
            });
        }
        held
    }

    /// The executors have come to their end.
    pub fn finished(&self, held: &[Held], outcome: &str) {
        for (job, claim) in held {
            self.recorder.record(Event::Finished {
                job: *job,
                claim: *claim,
                outcome: outcome.to_owned(),
            });
        }
    }

    /// Run and complete.
    pub async fn complete(&self, held: &[Held]) {
        self.finished(held, "complete");
        self.say_complete(held).await;
    }

    /// Only the word.
    pub async fn say_complete(&self, held: &[Held]) {
        self.say(held, "complete", &self.complete_sql(held)).await;
    }

    pub fn complete_sql(&self, held: &[Held]) -> String {
        let jobs: Vec<String> = held
            .iter()
            .map(|(job, claim)| format!("({job}, {claim}, null)"))
            .collect();
        format!(
            "select id, claim, verdict from bugle.complete({}, array[{}]::bugle.finished_job[])",
            self.me,
            jobs.join(", ")
        )
    }

    pub async fn fail(&self, held: &[Held]) {
        self.finished(held, "fail");
        self.say_fail(held).await;
    }

    pub async fn say_fail(&self, held: &[Held]) {
        let jobs: Vec<String> = held
            .iter()
            .map(|(job, claim)| format!("({job}, {claim}, 'boom', null, true, 0)"))
            .collect();
        let sql = format!(
            "select id, claim, verdict from bugle.fail({}, array[{}]::bugle.failed_job[])",
            self.me,
            jobs.join(", ")
        );
        self.say(held, "fail", &sql).await;
    }

    pub async fn snooze(&self, held: Held) {
        self.finished(&[held], "snooze");
        self.say_snooze(held).await;
    }

    pub async fn say_snooze(&self, held: Held) {
        let sql = format!(
            "select id, claim, verdict from bugle.snooze({}, ({}, {})::bugle.held_job, '0')",
            self.me, held.0, held.1
        );
        self.say(&[held], "snooze", &sql).await;
    }

    pub async fn give_back(&self, held: &[Held]) {
        for (job, claim) in held {
            self.recorder.record(Event::Stopped {
                job: *job,
                claim: *claim,
            });
        }
        let jobs: Vec<String> = held.iter().map(|(job, claim)| format!("({job}, {claim})")).collect();
        let sql = format!(
            "select id, claim, verdict from bugle.give_back({}, array[{}]::bugle.held_job[])",
            self.me,
            jobs.join(", ")
        );
        self.say(held, "give_back", &sql).await;
    }

    /// Run the next steps of a chain until this number of them are done, and start the one after them.
    pub async fn run_steps(&self, (job, claim): Held, of: usize, most: usize) {
        let held = format!("({job}, {claim})::bugle.held_job");
        let mut rows = self
            .query(&format!(
                "select \"position\" from bugle.start_step({}, {held})",
                self.me
            ))
            .await;
        for number in 0..=most {
            let Some(position) = rows.first().and_then(|row| row.get::<_, Option<i32>>(0)) else {
                return;
            };
            let step = position.to_string();
            self.recorder.record(Event::StepStarted {
                job,
                claim,
                step: step.clone(),
                of,
            });
            if number == most {
                return;
            }
            self.recorder.record(Event::StepFinished {
                job,
                claim,
                step,
                of,
                outcome: "complete".into(),
            });
            let finish = format!(
                "select \"position\" from bugle.finish_step({}, {held}, {position}, 1, null)",
                self.me
            );
            rows = self.query(&finish).await;
        }
    }

    /// Come back on the same session, naming what still runs.
    pub async fn attach(&self, held: &[Held]) {
        let jobs: Vec<String> = held.iter().map(|(job, claim)| format!("({job}, {claim})")).collect();
        let sql = format!(
            "select id, claim, verdict from bugle.attach({}, array[{}]::bugle.held_job[])",
            self.me,
            jobs.join(", ")
        );
        self.query(&sql).await;
    }

    /// Say something about jobs, and note what the database made of it.
    async fn say(&self, held: &[Held], outcome: &str, sql: &str) {
        match self.client.query(sql, &[]).await {
            Ok(rows) => self.answered(held, outcome, rows),
            Err(error) => self.complain(&error),
        }
    }

    pub fn answered(&self, held: &[Held], outcome: &str, rows: Vec<Row>) {
        for (job, claim) in held.iter().copied() {
            let verdict = rows
                .iter()
                .find(|row| row.get::<_, i64>(0) == job && row.get::<_, i64>(1) == claim);
            let outcome = outcome.to_owned();
            self.recorder.record(match verdict {
                None => Event::Accepted { job, claim, outcome },
                Some(row) => Event::Fenced {
                    job,
                    claim,
                    verdict: row.get(2),
                },
            });
        }
    }

    async fn query(&self, sql: &str) -> Vec<Row> {
        match self.client.query(sql, &[]).await {
            Ok(rows) => rows,
            Err(error) => {
                self.complain(&error);
                Vec::new()
            }
        }
    }

    /// The engine must not fail under a worker that does nothing wrong.
    pub fn complain(&self, error: &tokio_postgres::Error) {
        let text = match error.as_db_error() {
            Some(error) => format!("{}: {}", error.code().code(), error.message()),
            None => error.to_string(),
        };
        self.recorder.record(Event::Complaint { text });
    }
}

/// An enqueuer that records what it enqueues.
pub struct Enqueuer {
    pub client: Client,
    recorder: Recorder,
    count: std::sync::atomic::AtomicUsize,
}

impl Enqueuer {
    pub async fn new(database: &Database, history: &Path) -> Enqueuer {
        Enqueuer {
            client: database.connect("enqueuer").await,
            recorder: Recorder::new(history, "enqueuer"),
            count: std::sync::atomic::AtomicUsize::new(0),
        }
    }

    pub fn token(&self) -> String {
        let before = self.count.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
        format!("t{}", before + 1)
    }

    /// Enqueue one; `more` are further arguments of `bugle.enqueue`.
    pub async fn enqueue(&self, more: &str) -> i64 {
        let token = self.token();
        self.enqueue_token(&token, more).await.expect("enqueues")
    }

    pub async fn enqueue_token(&self, token: &str, more: &str) -> Option<i64> {
        self.recorder.record(Event::Asked {
            token: token.to_owned(),
        });
        let sql = format!("select bugle.enqueue('noop', $1{more})");
        match self
            .client
            .query_one(&sql, &[&Json(serde_json::json!({ "token": token }))])
            .await
        {
            Ok(row) => {
                let job = row.get(0);
                self.recorder.record(Event::Acknowledged {
                    token: token.to_owned(),
                    job,
                });
                Some(job)
            }
            Err(_) => {
                self.recorder.record(Event::Refused {
                    token: token.to_owned(),
                });
                None
            }
        }
    }

    pub async fn many(&self, count: usize) -> Vec<i64> {
        let mut jobs = Vec::new();
        for _ in 0..count {
            jobs.push(self.enqueue("").await);
        }
        jobs
    }
}
