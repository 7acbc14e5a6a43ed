//! The engine as it should be, in plain Rust: jobs, workers, keys and a clock that counts hours.

use std::collections::{BTreeMap, BTreeSet};

use super::op::{AMONG_RUNNING, Limit, New, Op, PERIOD, QUEUES, Verb, WORKERS, Whose, Word};

/// The policy `modelled`: fixed, with a number of attempts and a delay in hours.
pub const ATTEMPTS: i32 = 4;
pub const DELAY: i64 = 2;
const CRASH_LIMIT: i32 = 3;
const KEY_LASTS: i64 = 3;

/// How the engine answers. A refusal is told by its SQLSTATE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    Refused(&'static str),
    /// A job, and whether it is new.
    Job(i64, bool),
    /// Jobs and claims.
    Held(Vec<(i64, i64)>),
    /// A verdict, a state, a number: or nothing.
    Text(Option<String>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub state: String,
    pub attempt: i32,
    pub crashes: i32,
    pub claim: i64,
    pub worker: Option<usize>,
    pub reason: Option<String>,
    pub code: Option<String>,
    pub result: Option<String>,
    pub priority: i32,
    pub paused_from: Option<String>,
    pub unique: Option<u8>,
    /// Hours of the model's clock; told of live jobs only.
    pub run_at: i64,
    /// The number of the operation that set it: of two jobs due in the same hour, which was due first.
    pub due: usize,
    pub deadline: Option<i64>,
    pub queue: usize,
    pub max_attempts: Option<i32>,
    pub answer_by: Option<i64>,
    pub token: Option<&'static str>,
    /// For how many others it waits.
    pub outstanding: Option<i32>,
    /// How many of its steps are done, and whether one of them has put something out.
    pub step: i32,
    pub has_output: bool,
    pub is_chain: bool,
    pub order: Option<u8>,
    pub limit: Option<u8>,
    /// It was claimed once.
    pub started: bool,
}

/// Who waits for whom.
#[derive(Debug, Clone)]
struct Edge {
    job: i64,
    needs: i64,
    /// It runs whatever comes of it.
    however: bool,
    /// It was not counted down yet.
    is_open: bool,
}

const STEPS: i32 = 3;

impl Job {
    pub fn is_live(&self) -> bool {
        !matches!(self.state.as_str(), "completed" | "failed" | "cancelled")
    }

    fn becomes(&mut self, state: &str) {
        self.state = state.to_owned();
        self.paused_from = None;
    }

    fn ends(&mut self, state: &str, reason: Option<&str>) {
        self.becomes(state);
        self.reason = reason.map(str::to_owned);
    }

    /// Back among the live ones, from the beginning.
    fn revive(&mut self, now: i64, due: usize) {
        self.becomes("ready");
        (self.attempt, self.crashes) = (0, 0);
        (
            self.worker,
            self.reason,
            self.result,
            self.deadline,
            self.answer_by,
            self.token,
        ) = (None, None, None, None, None, None);
        (self.run_at, self.due) = (now, due);
        self.outstanding = None;
    }

    /// Before, in or behind the order of its key: running, ready, or only in the way.
    fn place_in_order(&self) -> Option<u8> {
        match self.state.as_str() {
            _ if !self.is_live() => None,
            "scheduled" | "waiting" if !self.started => None,
            "running" => Some(0),
            "ready" => Some(1),
            _ => Some(2),
        }
    }

    /// What its steps have put out.
    fn output(&self) -> Option<String> {
        self.has_output.then(|| r#"{"noop": 7}"#.to_owned())
    }
}

#[derive(Debug, Clone, Default)]
pub struct World {
    pub clock: i64,
    /// How many operations there were.
    pub played: usize,
    /// By id: in the order in which they were made.
    pub jobs: BTreeMap<i64, Job>,
    /// Which were made, also those that are gone.
    pub made: Vec<i64>,
    lost: [bool; WORKERS],
    stopped: [bool; WORKERS],
    paused: [bool; WORKERS],
    paused_queues: [bool; QUEUES.len()],
    /// Key, job, end.
    keys: BTreeMap<u8, (i64, i64)>,
    /// When the schedule fires next.
    next_slot: i64,
    edges: Vec<Edge>,
    limits: [Limits; QUEUES.len()],
    /// What was counted: when a job of which queue started, for the queue or for its key.
    starts: Vec<(i64, usize, Option<u8>)>,
    /// How many were not claimed because of a limit.
    pub held_back: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Limits {
    running: Option<usize>,
    running_per_key: Option<usize>,
    starts: Option<usize>,
    starts_per_key: Option<usize>,
}

impl World {
    pub fn new() -> World {
        World {
            next_slot: 1,
            ..World::default()
        }
    }

    /// The job that is meant by this number: id, claim, holder, steps done. There is always one to be meant, if only
    /// one that never was.
    pub fn meant(&self, place: usize) -> (i64, i64, Option<usize>, i32) {
        let running = self
            .jobs
            .iter()
            .filter(|(_, job)| place >= AMONG_RUNNING && job.state == "running");
        let running: Vec<i64> = running.map(|(id, _)| *id).collect();
        let among = if running.is_empty() { &self.made } else { &running };
        let Some(id) = among.get(place % among.len().max(1)).copied() else {
            return (-1, 1, None, 0);
        };
        let job = self.jobs.get(&id);
        (
            id,
            job.map_or(1, |job| job.claim),
            job.and_then(|job| job.worker),
            job.map_or(0, |job| job.step),
        )
    }

    /// What must come of it. `told`: what the engine said, of which only the ids of new jobs are believed.
    pub fn apply(&mut self, op: &Op, told: &Said, new_ids: &[i64]) -> Said {
        let before = self.live();
        self.played += 1;
        let said = self.change(op, told, new_ids);
        self.follow(&before);
        said
    }

    fn live(&self) -> BTreeSet<i64> {
        let live = self.jobs.iter().filter(|(_, job)| job.is_live());
        live.map(|(id, _)| *id).collect()
    }

    /// What is due when jobs have ended: those that need them go on, or fail.
    fn follow(&mut self, before: &BTreeSet<i64>) {
        let live = self.live();
        let mut ended: Vec<i64> = before.difference(&live).copied().collect();
        let mut at = 0;
        while at < ended.len() {
            let id = ended[at];
            at += 1;
            if self.jobs.get(&id).is_some_and(|job| job.state == "completed") {
                continue;
            }
            for edge in self
                .edges
                .iter()
                .filter(|edge| edge.needs == id && edge.is_open && !edge.however)
            {
                let waits = |job: &&mut Job| job.is_live() && job.outstanding.is_some();
                if let Some(job) = self.jobs.get_mut(&edge.job).filter(waits) {
                    job.ends("failed", Some("dependency_failed"));
                    job.code = Some("dependency_failed".into());
                    ended.push(edge.job);
                }
            }
        }
        let mut counts: BTreeMap<i64, i32> = BTreeMap::new();
        for edge in self
            .edges
            .iter_mut()
            .filter(|edge| edge.is_open && ended.contains(&edge.needs))
        {
            edge.is_open = false;
            *counts.entry(edge.job).or_default() += 1;
        }
        let now = self.clock;
        for (id, count) in counts {
            let Some(job) = self.jobs.get_mut(&id).filter(|job| job.is_live()) else {
                continue;
            };
            let Some(left) = job.outstanding.map(|outstanding| outstanding - count) else {
                continue;
            };
            job.outstanding = Some(left).filter(|left| *left > 0);
            if left > 0 {
                continue;
            }
            job.attempt = (job.attempt - 1).max(0);
            let next = if job.run_at > now { "scheduled" } else { "ready" };
            match job.state.as_str() {
                "paused" => job.paused_from = Some(next.into()),
                _ => job.becomes(next),
            }
        }
    }

    fn change(&mut self, op: &Op, told: &Said, new_ids: &[i64]) -> Said {
        match op {
            Op::Enqueue(new) => self.enqueue(new, told),
            Op::After { needs, however } => self.after(*needs, *however, told),
            Op::SetLimit { queue, limit, most } => {
                let limits = &mut self.limits[*queue];
                let limit = match limit {
                    Limit::Running => &mut limits.running,
                    Limit::RunningPerKey => &mut limits.running_per_key,
                    Limit::Starts => &mut limits.starts,
                    Limit::StartsPerKey => &mut limits.starts_per_key,
                };
                *limit = Some(*most).filter(|most| *most > 0);
                Said::Text(None)
            }
            Op::Claim { worker, queue, slots } => self.claim(*worker, *queue, *slots),
            Op::Word { word, job, claim } => self.word(*word, *job, *claim, new_ids),
            Op::Answer { job, resolve, token } => self.answer(*job, *resolve, *token),
            Op::Operate { verb, job } => self.operate(*verb, *job),
            Op::Promote => Said::Text(Some(self.promote().to_string())),
            Op::Expire => Said::Text(Some(self.expire().to_string())),
            Op::Lose { worker } => {
                self.lost[*worker] |= !self.stopped[*worker];
                Said::Text(Some(self.rescue().to_string()))
            }
            Op::Attach { worker, named } => self.attach(*worker, named),
            Op::Detach { worker } => {
                self.stopped[*worker] = true;
                Said::Text(None)
            }
            Op::Heartbeat { worker } => {
                self.lost[*worker] = false;
                for chore in [World::rescue, World::expire, World::promote] {
                    let before = self.live();
                    chore(self);
                    self.follow(&before);
                }
                Said::Text(Some(String::new()))
            }
            Op::PauseQueue { queue } => {
                self.paused_queues[*queue] = true;
                Said::Text(None)
            }
            Op::ResumeQueue { queue } => match std::mem::replace(&mut self.paused_queues[*queue], false) {
                true => Said::Text(None),
                false => Said::Refused("JB031"),
            },
            Op::PauseWorker { worker } => self.tell(*worker, true),
            Op::ResumeWorker { worker } => self.tell(*worker, false),
            Op::FireSchedules => self.fire(new_ids),
            Op::Step { hours } => {
                self.clock += hours;
                Said::Text(None)
            }
            Op::RolledBack(op) => self.clone().apply(op, told, new_ids),
        }
    }

    fn enqueue(&mut self, new: &New, told: &Said) -> Said {
        let run_at = self.clock + new.delay.unwrap_or(0);
        let deadline = new.deadline.map(|hours| self.clock + hours);
        let taken = new
            .idempotent
            .and_then(|key| self.keys.get(&key))
            .filter(|(_, end)| *end > self.clock)
            .copied();
        if let Some((job, _)) = taken.filter(|_| !new.by_insert) {
            return Said::Job(job, false);
        }
        if deadline.is_some_and(|deadline| deadline <= run_at) {
            return Said::Refused("JB001");
        }
        let holder = new.unique.and_then(|key| self.holder(key));
        if new.by_insert && (holder.is_some() || taken.is_some()) {
            return Said::Refused("23505");
        }
        if let Some(id) = holder {
            let now = self.clock;
            let job = self.jobs.get_mut(&id).expect("live");
            if new.conflict == Some("move") && job.state != "running" && !(job.state == "waiting" && job.attempt > 0) {
                if deadline.or(job.deadline).is_some_and(|deadline| deadline <= run_at) {
                    return Said::Refused("JB001");
                }
                (job.run_at, job.due) = (run_at, self.played);
                job.deadline = deadline.or(job.deadline);
                match job.state.as_str() {
                    "paused" if job.paused_from.as_deref() == Some("ready") && run_at > now => {
                        job.paused_from = Some("scheduled".into());
                    }
                    "paused" | "waiting" => {}
                    _ if run_at <= now => job.becomes("ready"),
                    "ready" => job.becomes("scheduled"),
                    _ => {}
                }
            }
            if let Some(key) = new.idempotent {
                self.keys.insert(key, (id, now + KEY_LASTS));
            }
            return Said::Job(id, false);
        }
        let Said::Job(id, _) = told else {
            return Said::Job(0, true);
        };
        if let Some(key) = new.idempotent {
            self.keys.insert(key, (*id, self.clock + KEY_LASTS));
        }
        let job = Job {
            state: if run_at > self.clock { "scheduled" } else { "ready" }.into(),
            priority: new.priority,
            unique: new.unique,
            run_at,
            due: self.played,
            deadline,
            queue: new.queue,
            max_attempts: new.max_attempts,
            order: new.order,
            limit: new.limit,
            is_chain: new.chain,
            ..World::plain()
        };
        self.made.push(*id);
        self.jobs.insert(*id, job);
        Said::Job(*id, true)
    }

    fn after(&mut self, needs: [usize; 2], however: bool, told: &Said) -> Said {
        let needs: BTreeSet<i64> = needs.iter().map(|place| self.meant(*place).0).collect();
        let found: Vec<(i64, &Job)> = needs.iter().filter_map(|id| Some((*id, self.jobs.get(id)?))).collect();
        if needs.iter().any(|id| *id < 0) {
            return Said::Refused("JB040");
        }
        if found.len() < needs.len() {
            return Said::Refused("JB030");
        }
        let Said::Job(id, _) = told else {
            return Said::Job(0, true);
        };
        let waits = found.iter().filter(|(_, job)| job.is_live()).count();
        let in_vain = found.iter().any(|(_, job)| !job.is_live() && job.state != "completed");
        let edges = found.iter().map(|(needs, job)| Edge {
            job: *id,
            needs: *needs,
            however,
            is_open: job.is_live(),
        });
        let edges: Vec<Edge> = edges.collect();
        self.edges.extend(edges);
        let mut job = Job {
            run_at: self.clock,
            due: self.played,
            ..World::plain()
        };
        if waits > 0 {
            job.becomes("waiting");
            job.outstanding = Some(waits as i32);
        }
        if in_vain && !however {
            job.ends("failed", Some("dependency_failed"));
            job.code = Some("dependency_failed".into());
        }
        self.made.push(*id);
        self.jobs.insert(*id, job);
        Said::Job(*id, true)
    }

    fn plain() -> Job {
        Job {
            state: "ready".into(),
            attempt: 0,
            crashes: 0,
            claim: 0,
            worker: None,
            reason: None,
            code: None,
            result: None,
            priority: 0,
            paused_from: None,
            unique: None,
            run_at: 0,
            due: 0,
            deadline: None,
            queue: 0,
            max_attempts: None,
            answer_by: None,
            token: None,
            outstanding: None,
            step: 0,
            has_output: false,
            is_chain: false,
            order: None,
            limit: None,
            started: false,
        }
    }

    /// The live job of a unique key.
    fn holder(&self, key: u8) -> Option<i64> {
        let holder = self
            .jobs
            .iter()
            .find(|(_, job)| job.is_live() && job.unique == Some(key));
        holder.map(|(id, _)| *id)
    }

    fn claim(&mut self, worker: usize, queue: usize, slots: usize) -> Said {
        if self.stopped[worker] {
            return Said::Refused("JB010");
        }
        // given up: it must come back first, or what it claims is taken away from it again
        if self.lost[worker] {
            return Said::Refused("JB011");
        }
        if self.paused[worker] || self.paused_queues[queue] {
            return Said::Held(vec![]);
        }
        let now = self.clock;
        let mut ready: Vec<(i32, i64, usize, i64)> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.state == "ready" && job.queue == queue)
            .filter(|(_, job)| job.deadline.is_none_or(|deadline| deadline > now))
            .map(|(id, job)| (job.priority, job.run_at, job.due, *id))
            .collect();
        ready.retain(|(.., id)| self.is_first_of_its_order(*id));
        ready.sort_unstable();
        let mut taken: Vec<i64> = Vec::new();
        for (.., id) in ready {
            if taken.len() == slots {
                break;
            }
            match self.has_room(queue, &taken, id) {
                true => taken.push(id),
                false => self.held_back += 1,
            }
        }
        for id in &taken {
            let (limits, key) = (self.limits[queue], self.jobs[id].limit);
            self.starts.extend(limits.starts.map(|_| (now, queue, None)));
            self.starts.extend(
                key.filter(|_| limits.starts_per_key.is_some())
                    .map(|key| (now, queue, Some(key))),
            );
        }
        let held = taken.iter().map(|id| {
            let job = self.jobs.get_mut(id).expect("there");
            job.becomes("running");
            job.started = true;
            (job.attempt, job.claim, job.worker) = (job.attempt + 1, job.claim + 1, Some(worker));
            (*id, job.claim)
        });
        Said::Held(held.collect())
    }

    /// Whether a job may start beside those that run, that have started, and that are taken with it.
    fn has_room(&self, queue: usize, taken: &[i64], id: i64) -> bool {
        let limits = self.limits[queue];
        let fits = |key: Option<u8>, running: Option<usize>, starts: Option<usize>| {
            let counts = |job: &Job| job.queue == queue && (key.is_none() || job.limit == key);
            let of_taken = taken.iter().filter(|id| counts(&self.jobs[id])).count();
            let now = self
                .jobs
                .values()
                .filter(|job| job.state == "running" && counts(job))
                .count();
            let lately = self
                .starts
                .iter()
                .filter(|(at, of, counted)| self.clock - at < PERIOD && *of == queue && *counted == key)
                .count();
            running.is_none_or(|most| now + of_taken < most) && starts.is_none_or(|most| lately + of_taken < most)
        };
        let key = self.jobs[&id].limit;
        fits(None, limits.running, limits.starts)
            && (key.is_none() || fits(key, limits.running_per_key, limits.starts_per_key))
    }

    /// None of its key runs, none before it is ready, none before it is in the way.
    fn is_first_of_its_order(&self, id: i64) -> bool {
        let job = &self.jobs[&id];
        let Some(key) = job.order else { return true };
        let others = self
            .jobs
            .iter()
            .filter(|(_, other)| other.order == Some(key) && other.queue == job.queue);
        others
            .filter(|(other, _)| **other != id)
            .all(|(other, job)| match job.place_in_order() {
                None => true,
                Some(0) => false,
                Some(_) => *other > id,
            })
    }

    fn word(&mut self, word: Word, place: usize, whose: Whose, new_ids: &[i64]) -> Said {
        let (id, current, holder, _) = self.meant(place);
        let holder = holder.unwrap_or(0);
        let (who, claim) = match whose {
            Whose::Current => (holder, current),
            Whose::Stale => (holder, current - 1),
            Whose::Other => ((holder + 1) % WORKERS, current),
        };
        let now = self.clock;
        let held = |job: &Job| job.claim == claim && job.worker == Some(who);
        let Some(job) = self.jobs.get_mut(&id) else {
            return Said::Text(Some(if word == Word::Progress { "false" } else { "gone" }.into()));
        };
        if word == Word::Progress {
            return Said::Text(Some((held(job) && job.state == "running").to_string()));
        }
        if !held(job) || job.state != "running" {
            let by_operator =
                ["failed", "cancelled"].contains(&job.state.as_str()) && job.reason.as_deref() == Some("operator");
            let by_rescue = job.state == "failed" && job.code.as_deref() == Some("worker_lost");
            let by_itself = held(job) && !by_operator && !by_rescue;
            let verdict = if by_itself { "repeated" } else { "fenced" };
            return Said::Text(Some(verdict.into()));
        }
        match word {
            Word::Complete => {
                job.ends("completed", None);
                job.result = Some(claim.to_string());
            }
            Word::FailForGood => {
                job.ends("failed", Some("not_retryable"));
                job.code = Some("bad".into());
            }
            Word::Fail | Word::FailSoon => {
                job.code = Some("bad".into());
                if job.attempt >= job.max_attempts.unwrap_or(ATTEMPTS) {
                    job.ends("failed", Some("attempts_exhausted"));
                } else {
                    job.becomes("retrying");
                    job.run_at = now + if word == Word::Fail { DELAY } else { 1 };
                    job.due = self.played;
                }
            }
            Word::Snooze => {
                job.becomes("scheduled");
                job.attempt -= 1;
                (job.run_at, job.due) = (now + 1, self.played);
            }
            Word::Wait => {
                job.becomes("waiting");
                (job.answer_by, job.token) = (Some(now + 2), None);
            }
            Word::WaitWithToken => {
                job.becomes("waiting");
                (job.answer_by, job.token) = (None, Some("secret"));
            }
            Word::CancelHeld => job.ends("cancelled", Some("executor")),
            Word::GiveBack => {
                job.becomes("ready");
                job.attempt -= 1;
            }
            Word::Progress => {}
            Word::StepDone if !job.is_chain => return Said::Refused("JB031"),
            Word::StepDone => {
                job.step += 1;
                if job.step == STEPS {
                    job.ends("completed", None);
                    job.result = job.output();
                }
            }
            Word::Spawn => {
                job.becomes("waiting");
                (job.answer_by, job.token, job.outstanding) = (None, None, Some(2));
                for child in new_ids.iter().copied() {
                    self.edges.push(Edge {
                        job: id,
                        needs: child,
                        however: true,
                        is_open: true,
                    });
                    let job = Job {
                        run_at: now,
                        due: self.played,
                        ..World::plain()
                    };
                    self.made.push(child);
                    self.jobs.insert(child, job);
                }
            }
        }
        Said::Text(None)
    }

    fn answer(&mut self, place: usize, resolve: bool, token: Option<&'static str>) -> Said {
        let (id, ..) = self.meant(place);
        let Some(job) = self.jobs.get_mut(&id) else {
            return Said::Refused("JB030");
        };
        let (state, reason) = if resolve {
            ("completed", "resolved")
        } else {
            ("failed", "rejected")
        };
        if job.state == state && job.reason.as_deref() == Some(reason) && job.token == token {
            return Said::Text(None);
        }
        if job.state != "waiting" || job.outstanding.is_some() {
            return Said::Refused("JB031");
        }
        if job.token.is_some() && job.token != token {
            return Said::Refused("JB032");
        }
        // a chain goes on with its next step, as the same attempt
        if resolve && job.is_chain && job.attempt > 0 {
            job.step += 1;
            job.has_output = true;
            if job.step < STEPS {
                job.becomes("ready");
                job.attempt -= 1;
                (job.answer_by, job.token) = (None, None);
            } else {
                job.ends(state, Some(reason));
                job.result = job.output();
            }
            return Said::Text(None);
        }
        job.ends(state, Some(reason));
        match resolve {
            true => job.result = Some("7".into()),
            false => job.code = Some("rejected".into()),
        }
        Said::Text(None)
    }

    fn operate(&mut self, verb: Verb, place: usize) -> Said {
        let (id, ..) = self.meant(place);
        let now = self.clock;
        let Some(job) = self.jobs.get(&id) else {
            return Said::Refused("JB030");
        };
        let state = job.state.as_str();
        let allowed = match verb {
            Verb::Cancel => job.is_live(),
            Verb::Pause => matches!(state, "scheduled" | "ready" | "retrying" | "waiting"),
            Verb::Resume => state == "paused",
            Verb::Restart => matches!(state, "failed" | "cancelled"),
            Verb::Remove => state != "running",
            Verb::Reschedule(_) => matches!(state, "scheduled" | "ready" | "retrying" | "paused"),
            Verb::SetPriority(_) => job.is_live() && state != "running",
            Verb::SetState(_) => !matches!(state, "running" | "completed"),
        };
        let rivalled = !job.is_live() && job.unique.is_some_and(|key| self.holder(key).is_some());
        if !allowed || (rivalled && matches!(verb, Verb::Restart | Verb::SetState(_))) {
            return Said::Refused("JB031");
        }
        let job = self.jobs.get_mut(&id).expect("there");
        match verb {
            Verb::Cancel => job.ends("cancelled", Some("operator")),
            Verb::Pause => {
                let before = job.state.clone();
                job.becomes("paused");
                job.paused_from = Some(before);
            }
            Verb::Resume => {
                let before = job.paused_from.clone().expect("it was somewhere");
                job.becomes(&before);
            }
            Verb::Restart => {
                job.revive(now, self.played);
                (job.step, job.has_output) = (0, false);
                self.wait_again(id);
                return Said::Text(Some(self.jobs[&id].state.clone()));
            }
            Verb::Remove => {
                if self.jobs.remove(&id).is_some_and(|job| job.is_live()) {
                    self.edges.retain(|edge| edge.job != id);
                }
                return Said::Text(Some("removed".into()));
            }
            Verb::Reschedule(hours) => {
                (job.run_at, job.due) = (now + hours, self.played);
                match job.state.as_str() {
                    // when it is resumed, it waits for its time
                    "paused" if hours > 0 && job.paused_from.as_deref() == Some("ready") => {
                        job.paused_from = Some("scheduled".into());
                    }
                    "paused" => {}
                    _ if hours > 0 => job.becomes("scheduled"),
                    _ => job.becomes("ready"),
                }
            }
            Verb::SetPriority(priority) => job.priority = priority,
            Verb::SetState(to @ ("completed" | "failed" | "cancelled")) => {
                let revived = !job.is_live();
                if revived {
                    job.revive(now, self.played);
                }
                job.ends(to, (revived || to != "completed").then_some("operator"));
            }
            Verb::SetState(to) => {
                if !job.is_live() {
                    job.revive(now, self.played);
                }
                let from = job.paused_from.clone().unwrap_or(job.state.clone());
                job.becomes(to);
                job.paused_from = (to == "paused").then_some(from);
                if to == "ready" {
                    (job.run_at, job.due) = (now, self.played);
                }
            }
        }
        // put elsewhere by hand, it waits for nobody any more
        if !matches!(job.state.as_str(), "waiting" | "paused") {
            job.outstanding = None;
        }
        Said::Text(Some(job.state.clone()))
    }

    /// A restarted job waits again for those it needs that are alive.
    fn wait_again(&mut self, id: i64) {
        let live = self.live();
        let mut waits = 0;
        for edge in self
            .edges
            .iter_mut()
            .filter(|edge| edge.job == id && live.contains(&edge.needs))
        {
            edge.is_open = true;
            waits += 1;
        }
        if let Some(job) = self.jobs.get_mut(&id).filter(|_| waits > 0) {
            job.becomes("waiting");
            job.outstanding = Some(waits);
        }
    }

    fn promote(&mut self) -> usize {
        let now = self.clock;
        let due = self
            .jobs
            .values_mut()
            .filter(|job| matches!(job.state.as_str(), "scheduled" | "retrying") && job.run_at <= now);
        due.map(|job| job.becomes("ready")).count()
    }

    fn expire(&mut self) -> usize {
        let now = self.clock;
        let mut expired = 0;
        for job in self
            .jobs
            .values_mut()
            .filter(|job| job.is_live() && job.state != "running")
        {
            let late = job.deadline.is_some_and(|deadline| deadline <= now);
            let unanswered = job.state == "waiting" && job.answer_by.is_some_and(|by| by <= now);
            if late || unanswered {
                let why = if late { "deadline" } else { "answer_overdue" };
                job.ends("failed", Some(why));
                job.code = Some(why.into());
                expired += 1;
            }
        }
        expired
    }

    fn rescue(&mut self) -> usize {
        let gone: Vec<bool> = (0..WORKERS)
            .map(|worker| self.lost[worker] || self.stopped[worker])
            .collect();
        let orphans = self
            .jobs
            .values_mut()
            .filter(|job| job.state == "running" && job.worker.is_some_and(|worker| gone[worker]));
        let mut rescued = 0;
        for job in orphans {
            rescued += 1;
            job.crashes += 1;
            job.code = Some("worker_lost".into());
            if job.crashes >= CRASH_LIMIT {
                job.ends("failed", Some("crash_loop"));
            } else if job.attempt >= job.max_attempts.unwrap_or(ATTEMPTS) {
                job.ends("failed", Some("attempts_exhausted"));
            } else {
                job.becomes("ready");
                job.worker = None;
            }
        }
        rescued
    }

    fn attach(&mut self, worker: usize, named: &[(usize, i64)]) -> Said {
        if self.stopped[worker] {
            return Said::Refused("JB010");
        }
        self.lost[worker] = false;
        let named: Vec<(i64, i64)> = named
            .iter()
            .map(|(place, more)| {
                let (id, claim, ..) = self.meant(*place);
                (id, claim + more)
            })
            .collect();
        for (id, claim) in &named {
            if let Some(job) = self
                .jobs
                .get_mut(id)
                .filter(|job| job.state == "ready" && job.claim == claim - 1)
            {
                job.becomes("running");
                (job.attempt, job.claim, job.worker) = (job.attempt + 1, *claim, Some(worker));
                job.started = true;
            }
        }
        for (id, job) in self.jobs.iter_mut() {
            if job.state == "running" && job.worker == Some(worker) && !named.contains(&(*id, job.claim)) {
                job.becomes("ready");
                job.attempt -= 1;
            }
        }
        let holds = |id: &i64, claim: i64| {
            let job = self.jobs.get(id);
            job.is_some_and(|job| job.state == "running" && job.worker == Some(worker) && job.claim == claim)
        };
        let mut lost: Vec<(i64, i64)> = named.iter().filter(|(id, claim)| !holds(id, *claim)).copied().collect();
        lost.sort_unstable();
        Said::Held(lost)
    }

    fn tell(&mut self, worker: usize, pause: bool) -> Said {
        if self.stopped[worker] || self.lost[worker] {
            return Said::Refused("JB030");
        }
        self.paused[worker] = pause;
        Said::Text(None)
    }

    /// A schedule of every hour, whose missed slots are made up for, at most three of them.
    fn fire(&mut self, new_ids: &[i64]) -> Said {
        let due = (self.clock - self.next_slot + 1).clamp(0, 3);
        self.next_slot = self.next_slot.max(self.clock + 1);
        for id in new_ids.iter().take(due as usize) {
            let job = Job {
                run_at: self.clock,
                due: self.played,
                ..World::plain()
            };
            self.made.push(*id);
            self.jobs.insert(*id, job);
        }
        Said::Text(Some(due.to_string()))
    }
}
