//! The faults: each alone first, then all of them at once.

use std::future::ready;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bugle::private_postgres::PrivatePostgres;
use fastrand::Rng;
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::Mutex;
use tokio_postgres::Client;

use super::enqueuers::connect;
use super::fleet::Place;
use super::proxy::Link;
use crate::judge::{Event, Fault, Recorder};
use crate::poll::look_for;

/// How long a worker that is still connected may be silent: see `bugle.settings.lease`.
pub const LEASE: Duration = Duration::from_secs(6);

/// How much of each.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Kills while nothing else is broken, each until the jobs of the killed run elsewhere.
    pub calm_kills: usize,
    /// How long everything is done at once.
    pub combined: Duration,
    pub kills: usize,
    pub freezes: usize,
    pub server_kills: usize,
    pub host_kills: usize,
    pub host_freezes: usize,
    pub jobs: usize,
    /// This number of workers is never killed, to see whether their memory grows.
    pub spared: usize,
}

impl Plan {
    pub fn short() -> Plan {
        Plan {
            calm_kills: 12,
            combined: Duration::from_secs(50),
            kills: 12,
            freezes: 10,
            server_kills: 4,
            host_kills: 10,
            host_freezes: 3,
            jobs: 20_000,
            spared: 0,
        }
    }

    pub fn long() -> Plan {
        Plan {
            calm_kills: 40,
            combined: Duration::from_secs(1080),
            kills: 280,
            freezes: 100,
            server_kills: 40,
            host_kills: 100,
            host_freezes: 30,
            jobs: 200_000,
            spared: 0,
        }
    }

    /// A constant rate for this number of minutes, with occasional faults.
    pub fn soak(minutes: usize) -> Plan {
        Plan {
            calm_kills: 5,
            combined: Duration::from_secs(60 * minutes as u64),
            kills: 2 * minutes,
            freezes: minutes,
            server_kills: minutes.div_ceil(5),
            host_kills: 2 * minutes,
            host_freezes: minutes.div_ceil(2),
            jobs: 4_000 * minutes,
            spared: 2,
        }
    }
}

pub struct Faults {
    pub places: Vec<Arc<Place>>,
    /// The links of the enqueuers.
    pub links: Vec<Arc<Link>>,
    pub server: Arc<Mutex<PrivatePostgres>>,
    /// The owner, past every proxy.
    pub direct: String,
    pub recorder: Recorder,
    /// Where hosts are written down.
    pub hosts: PathBuf,
    pub spared: usize,
}

/// A fault on a link or in the database, apart from kills, freezes and crashes.
const SMALL: [Fault; 8] = [
    Fault::Cut,
    Fault::Slow,
    Fault::Muted,
    Fault::HalfOpen,
    Fault::BackendKill,
    Fault::TerminateAll,
    Fault::LockHeld,
    Fault::LongTransaction,
];

impl Faults {
    /// Kills, and nothing else: this is what recovery is measured by.
    pub async fn calm(&self, plan: &Plan, mut rng: Rng) {
        for number in 0..plan.calm_kills {
            let Some(client) = connect(&self.direct).await else {
                continue;
            };
            if let Err(error) = self.calm_kill(&client, number, &mut rng).await {
                let text = format!("nothing was broken, and the server said: {error}");
                self.recorder.record(Event::Complaint { text });
            }
        }
    }

    /// Give some jobs that take a while to those who are there, kill the worker that has most of them, and wait until
    /// they run elsewhere.
    async fn calm_kill(&self, client: &Client, number: usize, rng: &mut Rng) -> Result<(), tokio_postgres::Error> {
        // a worker that was killed before is replaced, and so are keeper and deputy, if it was one of them
        let settled = "select (select count(*) from bugle.workers w where w.state = 'alive') >= \
            cardinality($1::bigint[]) and 2 = ( \
            select count(*) from bugle.keeping k join bugle.workers w on w.id in (k.keeper, k.deputy) and w.state = \
            'alive')";
        let all: Vec<i64> = (0..self.places.len() as i64).collect();
        self.wait_for(client, &format!("select ({settled})::integer::bigint"), &all, 1)
            .await?;
        let tokens: Vec<String> = (0..10).map(|n| format!("calm-{number}-{n}")).collect();
        for token in &tokens {
            self.recorder.record(Event::Asked { token: token.clone() });
        }
        let insert = "insert into bugle.jobs (command, payload, retry_policy, priority) \
            select 'work', jsonb_build_object('token', t, 'ms', 1500), 'quick', -1 from unnest($1::text[]) t \
            returning id, payload ->> 'token'";
        let mut jobs: Vec<i64> = Vec::new();
        for row in client.query(insert, &[&tokens]).await? {
            let (job, token) = (row.get(0), row.get(1));
            self.recorder.record(Event::Acknowledged { token, job });
            jobs.push(job);
        }
        let begun = "select count(*) from bugle.jobs where id = any ($1) and state <> 'ready'";
        self.wait_for(client, begun, &jobs, jobs.len() as i64).await?;
        let most = "select r.name, array_agg(j.id) from bugle.jobs_live j join bugle.registrations r on r.id = \
            j.worker \
            where j.id = any ($1) and j.state = 'running' group by r.name order by count(*) desc limit 1";
        let Some(row) = client.query_opt(most, &[&jobs]).await? else {
            return Ok(());
        };
        let (name, orphans): (String, Vec<i64>) = (row.get(0), row.get(1));
        let Some(place) = self.places.iter().find(|place| place.life() == name) else {
            return Ok(());
        };
        look_for(|| ready(place.take().then_some(())))
            .await
            .expect("nobody keeps it");
        place.kill(Duration::from_millis(rng.u64(50..500))).await;
        place.let_go();
        let again = "select count(*) from bugle.jobs where id = any ($1) and (state <> 'running' or claim > 1) and \
            state <> 'ready'";
        self.wait_for(client, again, &orphans, orphans.len() as i64).await
    }

    /// Until the question about these jobs is answered with this number; that it never is, is a complaint.
    async fn wait_for(
        &self,
        client: &Client,
        question: &str,
        jobs: &[i64],
        number: i64,
    ) -> Result<(), tokio_postgres::Error> {
        let ask = || async {
            match client.query_one(question, &[&jobs]).await {
                Ok(row) => (row.get::<_, i64>(0) == number).then_some(Ok(())),
                Err(error) => Some(Err(error)),
            }
        };
        look_for(ask).await.unwrap_or_else(|| {
            let text = format!("nothing else was broken, and it was never true: {question}");
            self.recorder.record(Event::Complaint { text });
            Ok(())
        })
    }

    /// One kind after the other, each time for a moment.
    pub async fn alone(&self, mut rng: Rng) {
        for fault in SMALL {
            self.small(fault, &mut rng).await;
        }
        self.crash_server(false, &mut rng).await;
        pause(&mut rng, 1500..2000).await;
        self.crash_server(true, &mut rng).await;
        let mut two = (rng.fork(), rng.fork());
        tokio::join!(self.freeze(&mut two.0), self.freeze(&mut two.1));
    }

    /// Everything, over and over, until its time is over and all was done often enough.
    pub async fn combined(&self, plan: &Plan, mut rng: Rng) {
        let until = Instant::now() + plan.combined;
        let every = |count: usize| plan.combined / count.max(1) as u32;
        let mut rngs: Vec<Rng> = (0..9).map(|_| rng.fork()).collect();
        let [
            kills,
            freezes,
            more_freezes,
            crashes,
            links,
            more_links,
            database,
            host_kills,
            host_freezes,
        ] = &mut rngs[..]
        else {
            unreachable!("nine")
        };
        tokio::join!(
            async {
                for _ in 0..plan.kills {
                    let next = Instant::now() + every(plan.kills);
                    self.kill(kills).await;
                    // why: faults come at the pace of the plan
                    tokio::time::sleep_until(next.into()).await;
                }
            },
            async {
                for _ in 0..plan.freezes.div_ceil(2) {
                    let next = Instant::now() + every(plan.freezes.div_ceil(2));
                    self.freeze(freezes).await;
                    // why: faults come at the pace of the plan
                    tokio::time::sleep_until(next.into()).await;
                }
            },
            async {
                for _ in 0..plan.freezes / 2 {
                    let next = Instant::now() + every(plan.freezes / 2);
                    self.freeze(more_freezes).await;
                    // why: faults come at the pace of the plan
                    tokio::time::sleep_until(next.into()).await;
                }
            },
            async {
                for number in 0..plan.server_kills {
                    let next = Instant::now() + every(plan.server_kills);
                    pause(crashes, 200..3000).await;
                    self.crash_server(number % 2 == 1, crashes).await;
                    // why: faults come at the pace of the plan
                    tokio::time::sleep_until(next.into()).await;
                }
            },
            async {
                for _ in 0..plan.host_kills {
                    let next = Instant::now() + every(plan.host_kills);
                    self.kill_host(host_kills).await;
                    // why: faults come at the pace of the plan
                    tokio::time::sleep_until(next.into()).await;
                }
            },
            async {
                for _ in 0..plan.host_freezes {
                    let next = Instant::now() + every(plan.host_freezes);
                    self.freeze_host(host_freezes).await;
                    // why: faults come at the pace of the plan
                    tokio::time::sleep_until(next.into()).await;
                }
            },
            async {
                while Instant::now() < until {
                    let fault = *links.choice(&SMALL[..4]).expect("one");
                    self.small(fault, links).await;
                    pause(links, 50..400).await;
                }
            },
            async {
                while Instant::now() < until {
                    let fault = *more_links.choice(&SMALL[..4]).expect("one");
                    self.small(fault, more_links).await;
                    pause(more_links, 50..800).await;
                }
            },
            async {
                while Instant::now() < until {
                    let fault = *database.choice(&SMALL[4..]).expect("one");
                    self.small(fault, database).await;
                    pause(database, 500..2500).await;
                }
            },
        );
    }

    async fn kill(&self, rng: &mut Rng) {
        let place = self.free_place(rng).await;
        place.kill(Duration::from_millis(rng.u64(50..500))).await;
        place.let_go();
    }

    async fn freeze(&self, rng: &mut Rng) {
        let place = self.free_place(rng).await;
        place.freeze(LEASE + Duration::from_millis(rng.u64(1200..2200))).await;
        place.let_go();
    }

    /// kill -9 of a host. Its worker replaces it.
    async fn kill_host(&self, rng: &mut Rng) {
        let (pid, name) = self.free_host(1, rng).await;
        self.record(Fault::HostKill, &name);
        let _ = kill_process(pid, Signal::KILL);
        self.over(Fault::HostKill, &name);
    }

    /// SIGSTOP of a host. Its worker finds out by the first of its jobs whose time is over, and kills it.
    async fn freeze_host(&self, rng: &mut Rng) {
        // more than one job: those that are not to blame are to be judged
        let (pid, name) = self.free_host(3, rng).await;
        self.record(Fault::HostFreeze, &name);
        let _ = kill_process(pid, Signal::STOP);
        let died = look_for(|| ready((!is_alive(pid)).then_some(()))).await;
        if died.is_none() {
            let text = format!("the host {name} was frozen, and its worker did not kill it");
            self.recorder.record(Event::Complaint { text });
            let _ = kill_process(pid, Signal::KILL);
        }
        self.over(Fault::HostFreeze, &name);
    }

    /// A host that runs this number of jobs at this moment, or at least runs, and that nobody else has a fault for.
    async fn free_host(&self, jobs: usize, rng: &mut Rng) -> (Pid, String) {
        let mut looks = 0;
        let look = || {
            looks += 1;
            let files = std::fs::read_dir(&self.hosts).into_iter().flatten().flatten();
            let mut files: Vec<PathBuf> = files.map(|file| file.path()).collect();
            files.sort();
            rng.shuffle(&mut files);
            let found = files.into_iter().find_map(|file| {
                let pid = file.file_name()?.to_str()?.parse().ok().and_then(Pid::from_raw)?;
                let name = std::fs::read_to_string(&file).ok().filter(|name| !name.is_empty())?;
                if is_alive(pid) && looks < 500 && self.jobs_of(&name) < jobs {
                    return None;
                }
                // once, by the first that comes
                let is_mine = std::fs::remove_file(&file).is_ok();
                (is_mine && is_alive(pid)).then_some((pid, name))
            });
            ready(found)
        };
        look_for(look).await.expect("a host that runs")
    }

    /// How many jobs it has begun and not ended.
    fn jobs_of(&self, host: &str) -> usize {
        let path = self.hosts.with_file_name("history").join(format!("{host}.history"));
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let count = |what: &str| text.matches(what).count();
        let ended = count(r#""event":"finished""#) + count(r#""event":"stopped""#);
        count(r#""event":"started""#).saturating_sub(ended)
    }

    /// Killed with everything it has in memory. `in_replies`: after it has committed and before anybody was told.
    async fn crash_server(&self, in_replies: bool, rng: &mut Rng) {
        let fault = if in_replies {
            Fault::CommitReplyLost
        } else {
            Fault::ServerKill
        };
        self.record(fault, "");
        if in_replies {
            for link in self.all_links() {
                link.swallow_replies(Duration::from_millis(2000));
            }
            pause(rng, 20..120).await;
        }
        self.on_server(PrivatePostgres::kill).await;
        pause(rng, 0..400).await;
        self.on_server(PrivatePostgres::start_again).await;
        for link in self.all_links() {
            link.swallow_replies(Duration::ZERO);
        }
        self.over(fault, "");
    }

    /// Its calls block.
    async fn on_server<E: std::fmt::Debug + Send + 'static>(&self, call: fn(&mut PrivatePostgres) -> Result<(), E>) {
        let server = self.server.clone();
        let done = tokio::task::spawn_blocking(move || call(&mut server.blocking_lock()));
        done.await.expect("no panic").expect("the server dies and comes back");
    }

    fn all_links(&self) -> impl Iterator<Item = &Link> {
        let places = self.places.iter().map(|place| place.link());
        places.chain(self.links.iter().map(|link| &**link))
    }

    async fn small(&self, fault: Fault, rng: &mut Rng) {
        // a worker's link, or an enqueuer's
        let to_enqueuer = rng.u8(..5) == 0;
        let place = rng.choice(&self.places).expect("one").clone();
        let link = match to_enqueuer {
            true => rng.choice(&self.links).expect("one"),
            false => place.link(),
        };
        let whom = if to_enqueuer {
            "enqueuer".to_owned()
        } else {
            place.life()
        };
        match fault {
            Fault::Cut => {
                self.record(fault, &whom);
                link.cut_after(rng.i64(0..4000));
                pause(rng, 100..800).await;
                link.cut_after(-1);
                self.over(fault, &whom);
            }
            Fault::HalfOpen => {
                self.record(fault, &whom);
                link.hold(Duration::from_millis(rng.u64(800..6000)));
                pause(rng, 6000..6100).await;
                self.over(fault, &whom);
            }
            Fault::Slow => {
                self.record(fault, &whom);
                let time = Duration::from_millis(rng.u64(500..3000));
                link.slow_down(time);
                // why: how long it lasts is chosen by the round's seed
                tokio::time::sleep(time).await;
                self.over(fault, &whom);
            }
            Fault::Muted => {
                self.record(fault, &whom);
                let time = Duration::from_millis(rng.u64(1000..4000));
                link.mute(time);
                // why: how long it lasts is chosen by the round's seed
                tokio::time::sleep(time).await;
                self.over(fault, &whom);
            }
            Fault::BackendKill => {
                let life = place.life();
                self.record(fault, &life);
                let sessions = format!("application_name like 'bugle {life}%'");
                self.terminate(&sessions, "order by random() limit 1").await;
                self.over(fault, &life);
            }
            Fault::TerminateAll => {
                self.record(fault, "");
                self.terminate("pid <> pg_backend_pid()", "").await;
                self.over(fault, "");
            }
            Fault::LockHeld => {
                self.record(fault, "");
                let time = rng.f64() * 0.8;
                self.run(&format!(
                    // why: how long the lock is held is chosen by the round's seed
                    "begin; lock table bugle.jobs_live in share row exclusive mode; select pg_sleep({time}); commit"
                ))
                .await;
                self.over(fault, "");
            }
            _ => self.long_transaction(rng).await,
        }
    }

    /// One that pins the oldest snapshot, and one that enqueues and stays open, and is rolled back in the end or not.
    async fn long_transaction(&self, rng: &mut Rng) {
        self.record(Fault::LongTransaction, "");
        let (one, two) = (connect(&self.direct).await, connect(&self.direct).await);
        let time = Duration::from_millis(rng.u64(1000..4000));
        let commits = rng.bool();
        let token = format!("open-{:x}", rng.u64(..));
        if let (Some(one), Some(two)) = (one, two) {
            self.recorder.record(Event::Asked { token: token.clone() });
            let _ = one
                .batch_execute("begin isolation level repeatable read; select count(*) from bugle.jobs_live")
                .await;
            let insert = format!(
                "begin; insert into bugle.jobs (command, payload) values ('work', '{{\"token\": \"{token}\"}}')"
            );
            let inserted = two.batch_execute(&insert).await;
            // why: how long it stays open is chosen by the round's seed
            tokio::time::sleep(time).await;
            let _ = one.batch_execute("commit").await;
            match (inserted, commits) {
                (Ok(()), true) => {
                    let asked = "select currval('bugle.job_ids')";
                    let job = two.query_one(asked, &[]).await.map(|row| row.get::<_, i64>(0));
                    if let (Ok(job), Ok(())) = (job, two.batch_execute("commit").await) {
                        self.recorder.record(Event::Acknowledged { token, job });
                    }
                }
                (_, false) => {
                    let _ = two.batch_execute("rollback").await;
                    self.recorder.record(Event::Refused { token });
                }
                (Err(_), true) => {}
            }
        }
        self.over(Fault::LongTransaction, "");
    }

    async fn terminate(&self, which: &str, limit: &str) {
        let sql = format!(
            "select pg_terminate_backend(a.pid) from (select pid from pg_stat_activity \
             where datname = current_database() and {which} {limit}) a"
        );
        self.run(&sql).await;
    }

    async fn run(&self, sql: &str) {
        if let Some(client) = connect(&self.direct).await {
            let _ = client.batch_execute(sql).await;
        }
    }

    async fn free_place(&self, rng: &mut Rng) -> Arc<Place> {
        let look = || {
            let place = rng.choice(&self.places[self.spared..]).expect("one").clone();
            ready(place.take().then_some(place))
        };
        look_for(look).await.expect("a place that nobody has a fault for")
    }

    fn record(&self, fault: Fault, whom: &str) {
        let whom = whom.to_owned();
        self.recorder.record(Event::Fault { fault, whom });
    }

    fn over(&self, fault: Fault, whom: &str) {
        let whom = whom.to_owned();
        self.recorder.record(Event::Over { fault, whom });
    }
}

/// Whether it runs, or is stopped: not if it has ended and nobody has asked how.
fn is_alive(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

async fn pause(rng: &mut Rng, range: std::ops::Range<u64>) {
    // why: the pace of the faults is chosen by the round's seed
    tokio::time::sleep(Duration::from_millis(rng.u64(range))).await;
}
