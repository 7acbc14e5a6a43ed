//! Awaiting the result of a job. Thousands of waiters share one connection, which listens while there are waiters.
//! Completions that no client waits for send no notification, and so cost nothing.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::db::calls;
use crate::db::connect::{self, Notifications, Pool, Session, Target};
use crate::error::{Error, Result};
use crate::job::JobId;
use crate::state::{self, Reason, State};

/// The pause between two polls of a waiter that cannot listen: short at first, longer while nothing ends.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(250);
/// How often a waiter that listens polls all the same: a notification may have been left out because too many were
/// under way, and a session that holds the locks of subscribers may have kept this one from subscribing.
const SAFETY: Duration = Duration::from_secs(2);
/// How long to keep listening after the last waiter has gone: the next one is likely to come soon.
const LINGER: Duration = Duration::from_secs(10);

/// The outcome of a job.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Ended {
    /// Completed, failed or cancelled; none if it was deleted, or its history is not kept.
    pub state: Option<State>,
    /// Why, if it did not complete.
    pub reason: Option<Reason>,
    /// Its result.
    pub result: Option<Box<RawValue>>,
    /// The last error, if there was one.
    pub error: Option<String>,
}

impl Ended {
    /// The result as `T`, or the failure as an error.
    ///
    /// # Errors
    /// If the job did not complete, or its result is not a `T`.
    pub fn into_result<T: DeserializeOwned>(self) -> Result<T> {
        if self.state != Some(State::Completed) {
            let reason = self.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            let error = self.error.map(|error| format!(": {error}")).unwrap_or_default();
            let state = state::or_gone(self.state);
            return Err(Error::new(format!("the job is {state}{reason}{error}")));
        }
        let result = self.result.as_deref().map_or("null", RawValue::get);
        serde_json::from_str(result)
            .map_err(|error| Error::new(format!("the result cannot be decoded as the requested type: {error}")))
    }
}

/// Everyone in this process who waits for jobs of one database.
pub(crate) struct Waiters {
    /// Where to listen.
    target: Target,
    crowd: Mutex<Crowd>,
    /// Notified when a waiter joins.
    joined: Notify,
}

#[derive(Default)]
struct Crowd {
    waiting: HashMap<JobId, watch::Sender<Option<Ended>>>,
    /// Whether a waiter asks for all of them.
    is_attended: bool,
}

impl Waiters {
    pub(crate) fn new(target: Target) -> Waiters {
        Waiters {
            target,
            crowd: Mutex::default(),
            joined: Notify::default(),
        }
    }

    /// Wait for the end of a job.
    pub(crate) async fn wait(self: &Arc<Self>, pool: &Pool, id: JobId) -> Result<Ended> {
        let mut ended = {
            let mut crowd = self.crowd.lock().unwrap();
            if !std::mem::replace(&mut crowd.is_attended, true) {
                tokio::spawn(attend(Arc::downgrade(self), pool.clone()));
            }
            let sender = crowd.waiting.entry(id).or_insert_with(|| watch::channel(None).0);
            sender.subscribe()
        };
        self.joined.notify_one();
        match ended.wait_for(Option::is_some).await {
            Ok(ended) => Ok(ended.clone().expect("just seen")),
            Err(_) => Err(Error::new("the client was dropped while a result was awaited")),
        }
    }

    /// The ids that are still awaited.
    fn ids(&self) -> HashSet<JobId> {
        let mut crowd = self.crowd.lock().unwrap();
        crowd.waiting.retain(|_, sender| sender.receiver_count() > 0);
        crowd.waiting.keys().copied().collect()
    }

    fn tell(&self, endings: Vec<(JobId, Ended)>) {
        let mut crowd = self.crowd.lock().unwrap();
        for (id, ended) in endings {
            if let Some(sender) = crowd.waiting.remove(&id) {
                let _ = sender.send(Some(ended));
            }
        }
    }

    /// Stop asking, unless a waiter has joined.
    fn may_leave(&self) -> bool {
        let mut crowd = self.crowd.lock().unwrap();
        crowd.is_attended = !crowd.waiting.is_empty();
        !crowd.is_attended
    }
}

/// Ask for all until no one is waiting. An outage of the database only makes them wait longer.
async fn attend(waiters: Weak<Waiters>, pool: Pool) {
    let mut pause = SHORTEST;
    let mut listens = None;
    loop {
        let Some(crowd) = waiters.upgrade() else { return };
        // through a pooler that lends sessions nothing is heard, so they are asked for
        if listens.is_none() {
            listens = connect::is_lent(&crowd.target).await.ok().map(|is_lent| !is_lent);
        }
        if listens == Some(true)
            && let Ok(mut ear) = Ear::open(&crowd.target).await
        {
            drop(crowd);
            match ear.attend(&waiters).await {
                Ok(()) => return,
                Err(error) => tracing::debug!(event = "subscribe", %error, "reconnecting"),
            }
            continue;
        }
        let ids: Vec<_> = crowd.ids().into_iter().collect();
        if ids.is_empty() && crowd.may_leave() {
            return;
        }
        match ask(&pool, &ids).await {
            Ok(endings) if !endings.is_empty() => {
                pause = SHORTEST;
                crowd.tell(endings);
            }
            _ => pause = (pause * 2).min(LONGEST),
        }
        drop(crowd);
        tokio::time::sleep(pause).await;
    }
}

async fn ask(pool: &Pool, ids: &[JobId]) -> Result<Vec<(JobId, Ended)>> {
    let connection = pool.get().await?;
    calls::endings(&connection, ids).await
}

/// The one connection that listens.
struct Ear {
    session: Arc<Session>,
    notifications: Notifications,
    /// Those whose queues this session listens to.
    attended: HashSet<JobId>,
    last_waiter: Instant,
}

/// What a notification on `bugle_events` says.
#[derive(Deserialize)]
struct Event {
    jobs: Vec<JobId>,
}

impl Ear {
    async fn open(target: &Target) -> Result<Ear> {
        let (session, notifications) = Session::open(target, "bugle client (listens)").await?;
        // before the first question: what ends from then on is heard
        calls::listen(&session, "bugle_events").await?;
        Ok(Ear {
            session,
            notifications,
            attended: HashSet::new(),
            last_waiter: Instant::now(),
        })
    }

    /// Until no one has waited for a while, or the connection is lost.
    async fn attend(&mut self, waiters: &Weak<Waiters>) -> Result<()> {
        let mut heard: Vec<JobId> = Vec::new();
        let mut asked_all = Instant::now();
        loop {
            {
                let Some(crowd) = waiters.upgrade() else { return Ok(()) };
                let ids = crowd.ids();
                self.attended.retain(|id| ids.contains(id));
                let new: Vec<_> = ids.difference(&self.attended).copied().collect();
                if !new.is_empty() {
                    crowd.tell(calls::attend(&self.session, &new).await?);
                    self.attended.extend(new);
                }
                heard.retain(|id| ids.contains(id));
                if asked_all.elapsed() >= SAFETY {
                    asked_all = Instant::now();
                    heard = ids.iter().copied().collect();
                }
                if !heard.is_empty() {
                    crowd.tell(calls::endings(self.session.client(), &heard).await?);
                    heard.clear();
                }
                if !ids.is_empty() {
                    self.last_waiter = Instant::now();
                } else if self.last_waiter.elapsed() >= LINGER && crowd.may_leave() {
                    return Ok(());
                }
            }
            heard = self.hear(waiters, asked_all + SAFETY).await?;
        }
    }

    /// The ids of jobs that ended; none if a waiter joined, or it is time to ask for all.
    async fn hear(&mut self, waiters: &Weak<Waiters>, at_most_until: Instant) -> Result<Vec<JobId>> {
        let Some(crowd) = waiters.upgrade() else {
            return Ok(Vec::new());
        };
        let joined = async { crowd.joined.notified().await };
        let first = tokio::select! {
            notification = self.notifications.recv() => {
                notification.ok_or_else(|| Error::new("the connection was lost"))?
            }
            () = joined => return Ok(Vec::new()),
            () = tokio::time::sleep_until(at_most_until) => return Ok(Vec::new()),
        };
        let mut ids = told(first.payload());
        while let Ok(next) = self.notifications.try_recv() {
            ids.extend(told(next.payload()));
        }
        Ok(ids)
    }
}

fn told(payload: &str) -> Vec<JobId> {
    serde_json::from_str::<Event>(payload)
        .map(|event| event.jobs)
        .unwrap_or_default()
}
