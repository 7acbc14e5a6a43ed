//! The comparison of what was seen with what is.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;

use super::evidence::{Evidence, Side};
use super::history::{Event, Fault, History};
use super::transitions::{Transition, is_final, objection, transitions};

/// How many jobs a host of the tests takes in one call.
const MOST_IN_A_CALL: usize = 20;

/// Longer than anybody is kept from running.
pub(super) const LONGEST_FREEZE: u64 = 20_000_000_000;

/// The promises, by what breaking one is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Acknowledged and not there.
    Lost,
    /// There, and nobody asked for it, or it was refused, or it is there twice.
    Unexpected,
    /// Run twice, and no fault explains it.
    Duplicated,
    /// Not at its end, although nobody works any more.
    Stuck,
    /// Completed under a claim whose executor did not say so.
    StaleCompletion,
    /// Brought to an end twice.
    FinishedTwice,
    IllegalTransition,
    /// An acknowledged cancel, and something else happened afterwards.
    CancelOverwritten,
    /// An acknowledged end that is not in the tables.
    Undone,
    SlotFiredTwice,
    UniquenessBroken,
    /// More executors at once than slots.
    LimitBroken,
    /// Started before another that was to come first.
    OrderBroken,
    /// Started before what it needs had ended, or although that failed.
    TooEarly,
    /// A host died or was silent, and what became of a job it had does not fit that.
    Unaccounted,
    /// A step that was done was run again, or one was left out.
    StepBroken,
    /// Locks, running rows, folders, transactions.
    LeftOver,
    /// Said by a witness: a deadlock, an error that was not declared, a wake-up that did not come.
    Complaint,
}

#[derive(Debug, Clone)]
pub struct Violation {
    pub kind: Kind,
    pub what: String,
}

/// What to hold the run against, besides the promises.
#[derive(Debug, Clone, Default)]
pub struct Bars {
    /// How many executors each worker may run at once; 0 for no limit.
    pub slots: usize,
    /// How many calls a host may have at once; 0 for no limit.
    pub most_calls: usize,
    /// Jobs that must be started in the order of their ids, as all were there before anybody claimed.
    pub in_order: bool,
    /// The maximum number of running jobs per queue, and per `limit_key`.
    pub max_running: Vec<(String, usize, usize)>,
    /// The maximum number of starts in a number of seconds per queue, and per `limit_key`.
    pub max_starts: Vec<(String, usize, usize, f64)>,
    /// By how many seconds the clocks of the server and of the machine may drift apart.
    pub drift: f64,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Report {
    pub violations: Vec<Violation>,
    pub asked: usize,
    pub acknowledged: usize,
    pub refused: usize,
    pub unknown: usize,
    pub started: usize,
    /// Jobs whose executor came to its end more than once, all explained by faults unless there is a violation.
    pub run_again: usize,
    pub fenced: usize,
    pub transitions: usize,
    pub ended: BTreeMap<String, usize>,
    pub faults: BTreeMap<Fault, usize>,
    /// From each kill to the next start of each job that ran there, in milliseconds, sorted; nothing else was broken.
    pub recovery: Vec<u64>,
    /// Of how many kills.
    pub calm_kills: usize,
    /// How many of these times the machine had no time for us.
    pub starved: usize,
    /// The same with another fault on the way.
    pub recovery_under_faults: Vec<u64>,
    /// What there was of each to be judged: steps of chains, steps of executors, jobs after others, children, jobs with
    /// an order.
    pub judged: BTreeMap<&'static str, usize>,
}

/// One execution, as its executor saw it.
#[derive(Debug, Clone)]
pub(super) struct Run {
    /// The life of a worker.
    pub(super) who: String,
    /// The process: the same, or one of its hosts.
    process: String,
    pub(super) job: i64,
    pub(super) claim: i64,
    pub(super) from: u64,
    /// When it ended, if it said so.
    to: Option<u64>,
    outcome: Option<String>,
}

/// A fault with its time.
#[derive(Debug, Clone)]
pub(super) struct Spell {
    fault: Fault,
    whom: String,
    from: u64,
    to: u64,
}

impl Spell {
    fn touches(&self, who: &str, from: u64, to: u64) -> bool {
        (self.whom.is_empty() || self.whom == who) && self.from <= to && self.to >= from
    }
}

/// Compare.
pub fn judge(history: &History, evidence: &Evidence, bars: &Bars) -> Report {
    let runs = runs(history);
    let mut runs_of: HashMap<i64, Vec<usize>> = HashMap::new();
    for (at, run) in runs.iter().enumerate() {
        runs_of.entry(run.job).or_default().push(at);
    }
    let mut court = Court {
        spells: spells(history),
        runs,
        runs_of,
        transitions: transitions(&evidence.steps),
        history,
        evidence,
        report: Report::default(),
    };
    court.enqueued();
    court.every_step();
    court.every_end(bars);
    court.every_run();
    court.lost_hosts();
    court.words_taken();
    court.keys();
    court.limits(bars);
    court.starts(bars);
    court.slots(bars);
    court.order(bars);
    court.order_of_keys(bars);
    court.needs(bars);
    court.steps(bars);
    court.recovery();
    for left in &evidence.left_over {
        court.report.violate(Kind::LeftOver, left.clone());
    }
    court.report
}

/// Only the steps: which of them no job may take.
pub fn illegal_steps(evidence: &Evidence) -> Vec<String> {
    let mut court = Court {
        history: &History::default(),
        evidence,
        spells: Vec::new(),
        runs: Vec::new(),
        runs_of: HashMap::new(),
        transitions: transitions(&evidence.steps),
        report: Report::default(),
    };
    court.every_step();
    court.keys();
    court
        .report
        .violations
        .into_iter()
        .map(|violation| violation.what)
        .collect()
}

pub(super) struct Court<'a> {
    pub(super) history: &'a History,
    pub(super) evidence: &'a Evidence,
    spells: Vec<Spell>,
    pub(super) runs: Vec<Run>,
    /// By job, in the order of time.
    pub(super) runs_of: HashMap<i64, Vec<usize>>,
    pub(super) transitions: Vec<Transition>,
    pub(super) report: Report,
}

impl Court<'_> {
    /// Lost and unexpected.
    fn enqueued(&mut self) {
        let (mut asked, mut acknowledged, mut refused) = (HashSet::new(), HashMap::new(), HashSet::new());
        for entry in &self.history.entries {
            match &entry.event {
                Event::Asked { token } => drop(asked.insert(token.as_str())),
                Event::Acknowledged { token, job } => drop(acknowledged.insert(token.as_str(), *job)),
                Event::Refused { token } => drop(refused.insert(token.as_str())),
                Event::Complaint { text } => self.report.violate(Kind::Complaint, format!("{}: {text}", entry.who)),
                _ => {}
            }
        }
        self.report.asked = asked.len();
        self.report.acknowledged = acknowledged.len();
        self.report.refused = refused.len();
        self.report.unknown = asked.len().saturating_sub(acknowledged.len() + refused.len());
        for (token, job) in &acknowledged {
            if !self.evidence.jobs.contains_key(job) && !self.evidence.is_removed(*job) {
                self.report
                    .violate(Kind::Lost, format!("job {job} ({token}) was acknowledged and is gone"));
            }
        }
        let mut seen: HashMap<&str, i64> = HashMap::new();
        for job in self.evidence.jobs.values() {
            let Some(token) = job.token.as_deref() else { continue };
            if !asked.contains(token) {
                self.report
                    .violate(Kind::Unexpected, format!("nobody asked for job {} ({token})", job.id));
            }
            if refused.contains(token) {
                self.report.violate(
                    Kind::Unexpected,
                    format!("job {} ({token}) was refused and is there", job.id),
                );
            }
            if let Some(other) = seen.insert(token, job.id) {
                self.report.violate(
                    Kind::Unexpected,
                    format!("jobs {other} and {} are the same one ({token})", job.id),
                );
            }
        }
    }

    fn every_step(&mut self) {
        let mut ended: HashMap<i64, &str> = HashMap::new();
        self.report.transitions = self.transitions.len();
        for step in &self.transitions {
            let removed = self.evidence.is_removed(step.job);
            let overruled = ["restart", "set_state"]
                .iter()
                .any(|verb| self.evidence.changes.contains(&(step.job, (*verb).to_owned())));
            if let Some(why) = objection(step, removed, overruled) {
                self.report
                    .violate(Kind::IllegalTransition, format!("job {}: {why}", step.job));
            }
            match &step.new {
                Some(new) if is_final(&new.state) && step.old.as_ref().is_none_or(|old| !is_final(&old.state)) => {
                    if let Some(before) = ended.insert(step.job, &new.state) {
                        let what = format!("job {} was {before} and then {}", step.job, new.state);
                        self.report.violate(Kind::FinishedTwice, what);
                    }
                }
                // put back
                Some(new) if !is_final(&new.state) => drop(ended.remove(&step.job)),
                _ => {}
            }
        }
    }

    /// Where everything is now.
    fn every_end(&mut self, bars: &Bars) {
        let completed: HashMap<i64, f64> = self
            .transitions
            .iter()
            .filter(|step| step.new.as_ref().is_some_and(|new| new.state == "completed"))
            .map(|step| (step.job, self.evidence.monotonic(step.at) + bars.drift))
            .collect();
        let mut slots: HashMap<&str, i64> = HashMap::new();
        for job in self.evidence.jobs.values() {
            *self.report.ended.entry(job.state.clone()).or_default() += 1;
            if !is_final(&job.state) && !job.later {
                self.report
                    .violate(Kind::Stuck, format!("job {} is {} in the end", job.id, job.state));
            }
            if let Some(slot) = job.slot.as_deref()
                && let Some(other) = slots.insert(slot, job.id)
            {
                let what = format!("jobs {other} and {} are both of {slot}", job.id);
                self.report.violate(Kind::SlotFiredTwice, what);
            }
            if job.state == "completed" && job.reason.is_none() {
                let at = completed.get(&job.id).copied().unwrap_or_default();
                self.completed_by_the_worker_that_ran_it(job.id, job.claim, job.worker, at);
            }
        }
    }

    /// Under the claim that was current, by the worker that held it, after its executor had come to its end.
    fn completed_by_the_worker_that_ran_it(&mut self, job: i64, claim: i64, worker: Option<i64>, at: f64) {
        let done = self.runs_of.get(&job).into_iter().flatten().map(|at| &self.runs[*at]);
        let done: Vec<&Run> = done.filter(|run| run.outcome.as_deref() == Some("complete")).collect();
        let named = worker.and_then(|worker| self.evidence.workers.get(&worker));
        let by_holder = done.iter().any(|run| {
            let in_time = run.to.is_some_and(|to| to as f64 / 1e9 <= at);
            run.claim == claim && in_time && named.is_none_or(|name| *name == run.who)
        });
        if self.evidence.changes.contains(&(job, "set_state".to_owned())) || by_holder {
            return;
        }
        let others: Vec<i64> = done.iter().map(|run| run.claim).collect();
        let what = format!(
            "job {job} is completed under claim {claim} of {named:?}; by then executors had finished other claims, of \
                {others:?}"
        );
        self.report.violate(Kind::StaleCompletion, what);
    }

    /// Run twice?
    fn every_run(&mut self) {
        self.report.started = self.runs.len();
        for spell in &self.spells {
            *self.report.faults.entry(spell.fault).or_default() += 1;
        }
        let mut violations = Vec::new();
        let mut again = 0;
        for (&job, runs) in &self.runs_of {
            let runs: Vec<&Run> = runs.iter().map(|at| &self.runs[*at]).collect();
            again += usize::from(
                runs.iter()
                    .filter(|run| run.outcome.as_deref() == Some("complete"))
                    .count()
                    > 1,
            );
            for pair in runs.windows(2) {
                let (first, second) = (pair[0], pair[1]);
                let ended = first.to.is_some_and(|to| to <= second.from);
                let over = ended && first.outcome.as_deref() != Some("complete");
                if over && first.claim < second.claim || self.restarted(job) {
                    continue;
                }
                // a worker that was frozen between its claim and its start begins after the one that was given its job
                let (victim, since) = match first.claim <= second.claim {
                    true => (first, first.from),
                    false => (second, second.from.saturating_sub(LONGEST_FREEZE)),
                };
                let is_explained = |whom: &str| self.is_explained(whom, since, second.from);
                if !is_explained(&victim.who) && !is_explained(&victim.process) {
                    let what = format!(
                        "job {job} was run by {} under claim {} and by {} under claim {}, and nothing explains it",
                        first.who, first.claim, second.who, second.claim
                    );
                    violations.push(what);
                }
            }
        }
        self.report.run_again = again;
        for what in violations {
            self.report.violate(Kind::Duplicated, what);
        }
    }

    /// What became of the jobs that a host had when it was killed: they fail as `host_lost`, or as `crash_loop` in the
    /// end. Those of a silent one were not to blame, unless their own time was over: they are not counted. If something
    /// happened to its worker as well, that decides.
    fn lost_hosts(&mut self) {
        let (mut violations, mut lost, mut spared) = (Vec::new(), 0, 0);
        let is_of_a_host = |spell: &&Spell| matches!(spell.fault, Fault::HostKill | Fault::HostFreeze);
        for spell in self.spells.iter().filter(is_of_a_host) {
            let orphans = self
                .runs
                .iter()
                .filter(|run| run.process == spell.whom && run.to.is_none());
            for orphan in orphans {
                let (job, claim) = (orphan.job, orphan.claim);
                let ended = self.evidence.codes.get(&(job, claim)).map(String::as_str);
                let fits = match (spell.fault, ended) {
                    (Fault::HostKill, Some("host_lost" | "crash_loop")) => {
                        lost += 1;
                        true
                    }
                    (Fault::HostFreeze, Some("timeout")) => true,
                    (Fault::HostFreeze, None) => {
                        spared += 1;
                        true
                    }
                    _ => false,
                };
                let until = spell.from.saturating_add(LONGEST_FREEZE);
                let is_explained = || {
                    self.restarted(job)
                        || self.evidence.is_removed(job)
                        || self.evidence.changes.contains(&(job, "cancel".to_owned()))
                        || self.is_explained(&orphan.who, orphan.from, until)
                };
                if !fits && !is_explained() {
                    let (fault, whom) = (spell.fault, &spell.whom);
                    violations.push(format!(
                        "job {job} ran under claim {claim} in {whom} at its {fault:?}, and was recorded as {ended:?}"
                    ));
                }
            }
        }
        if self.spells.iter().any(|spell| is_of_a_host(&spell)) {
            self.report.judged.insert("jobs that lost their host", lost);
            self.report
                .judged
                .insert("jobs of silent hosts that were not counted", spared);
        }
        for what in violations {
            self.report.violate(Kind::Unaccounted, what);
        }
    }

    /// Whether something happened to them in this time that may have a job run twice.
    pub(super) fn is_explained(&self, who: &str, from: u64, to: u64) -> bool {
        self.spells
            .iter()
            .filter(|spell| spell.fault.explains_a_second_run())
            .any(|spell| spell.touches(who, from, to))
    }

    pub(super) fn restarted(&self, job: i64) -> bool {
        ["restart", "set_state"]
            .iter()
            .any(|verb| self.evidence.changes.contains(&(job, (*verb).to_owned())))
    }

    /// What the database acknowledged must have happened, and must not be undone.
    fn words_taken(&mut self) {
        let mut violations = Vec::new();
        for entry in &self.history.entries {
            match &entry.event {
                Event::Accepted { job, claim, outcome } if !self.evidence.is_removed(*job) => {
                    let happened = match outcome.as_str() {
                        "complete" => self
                            .evidence
                            .jobs
                            .get(job)
                            .is_some_and(|found| found.state == "completed" && found.claim == *claim),
                        "fail" => self.evidence.attempts.contains(&(*job, *claim)),
                        _ => true,
                    };
                    if !happened {
                        let what = format!(
                            "{}: {outcome} of job {job}, claim {claim}, was taken and did not happen",
                            entry.who
                        );
                        violations.push((Kind::Undone, what));
                    }
                }
                Event::Fenced { .. } => self.report.fenced += 1,
                Event::Cancelled { job } if !self.restarted(*job) && !self.evidence.is_removed(*job) => {
                    let found = self.evidence.jobs.get(job).map(|job| job.state.as_str());
                    if found != Some("cancelled") {
                        let what = format!("job {job} was cancelled and is {}", found.unwrap_or("gone"));
                        violations.push((Kind::CancelOverwritten, what));
                    }
                }
                _ => {}
            }
        }
        for (kind, what) in violations {
            self.report.violate(kind, what);
        }
    }

    /// At every moment one live job of each key, and one running job of each order key.
    fn keys(&mut self) {
        let mut unique: HashMap<(String, String), i64> = HashMap::new();
        let mut ordered: HashMap<(String, String), i64> = HashMap::new();
        let mut violations = Vec::new();
        for step in &self.transitions {
            if let Some(old) = &step.old {
                let key = |key: &Option<String>| key.clone().map(|key| (old.command.clone(), key));
                if let Some(key) = key(&old.unique_key).filter(|key| unique.get(key) == Some(&step.job)) {
                    unique.remove(&key);
                }
                let of_order = old.order_key.clone().map(|key| (old.queue.clone(), key));
                if let Some(key) = of_order.filter(|key| ordered.get(key) == Some(&step.job)) {
                    ordered.remove(&key);
                }
            }
            let Some(new) = step.new.as_ref().filter(|new| !is_final(&new.state)) else {
                continue;
            };
            if let Some(key) = &new.unique_key
                && let Some(other) = unique.insert((new.command.clone(), key.clone()), step.job)
            {
                violations.push((
                    Kind::UniquenessBroken,
                    format!("jobs {other} and {} are live under the key {key}", step.job),
                ));
            }
            if new.state == "running"
                && let Some(key) = &new.order_key
                && let Some(other) = ordered.insert((new.queue.clone(), key.clone()), step.job)
            {
                violations.push((
                    Kind::OrderBroken,
                    format!("jobs {other} and {} of the order {key} run at once", step.job),
                ));
            }
        }
        for (kind, what) in violations {
            self.report.violate(kind, what);
        }
    }

    /// At no moment more than the limits allow, over all workers.
    fn limits(&mut self, bars: &Bars) {
        let mut running: HashMap<(&str, Option<&str>), HashSet<i64>> = HashMap::new();
        let mut over = Vec::new();
        for step in self.transitions.iter().filter(|_| !bars.max_running.is_empty()) {
            if let Some(old) = step.old.as_ref().filter(|old| old.state == "running") {
                for key in [None, old.limit_key.as_deref()] {
                    running.entry((&old.queue, key)).or_default().remove(&step.job);
                }
            }
            let Some(new) = step.new.as_ref().filter(|new| new.state == "running") else {
                continue;
            };
            let Some((_, most, most_of_key)) = bars.max_running.iter().find(|(queue, ..)| *queue == new.queue) else {
                continue;
            };
            for (key, most) in limits_of(new, *most, *most_of_key) {
                let now = running.entry((&new.queue, key)).or_default();
                now.insert(step.job);
                if now.len() > most {
                    over.push(format!(
                        "{} jobs of {} {key:?} run at once, and {most} may",
                        now.len(),
                        new.queue
                    ));
                }
            }
        }
        for what in over {
            self.report.violate(Kind::LimitBroken, what);
        }
    }

    /// In no period more starts than the limits allow, over all workers.
    fn starts(&mut self, bars: &Bars) {
        let mut lately: HashMap<(&str, Option<&str>), VecDeque<f64>> = HashMap::new();
        let mut over = Vec::new();
        for step in &self.transitions {
            let was_running = step.old.as_ref().is_some_and(|old| old.state == "running");
            let Some(new) = step.new.as_ref().filter(|new| new.state == "running" && !was_running) else {
                continue;
            };
            let bar = bars.max_starts.iter().find(|(queue, ..)| *queue == new.queue);
            let (Some((_, most, most_of_key, period)), Some(started)) = (bar, new.started) else {
                continue;
            };
            for (key, most) in limits_of(new, *most, *most_of_key) {
                let lately = lately.entry((&new.queue, key)).or_default();
                lately.push_back(started);
                while lately.front().is_some_and(|first| started - first >= *period) {
                    lately.pop_front();
                }
                if lately.len() > most {
                    over.push(format!(
                        "{} jobs of {} {key:?} started within {period} s, and {most} may",
                        lately.len(),
                        new.queue
                    ));
                }
            }
        }
        for what in over {
            self.report.violate(Kind::LimitBroken, what);
        }
    }

    fn slots(&mut self, bars: &Bars) {
        let mut now: HashMap<&str, HashSet<(i64, i64)>> = HashMap::new();
        let mut over = Vec::new();
        let of_a_host = |who: &str| who.contains('@');
        for entry in self.history.entries.iter().filter(|_| bars.slots > 0) {
            // a host that was killed says nothing about the end of its jobs: for itself, each has a name of its own
            match entry.event {
                Event::Started { job, claim }
                | Event::StepStarted {
                    job, claim, of: 1.., ..
                } => {
                    let running = now.entry(&entry.who).or_default();
                    running.insert((job, claim));
                    let most = match of_a_host(&entry.who) {
                        true => bars.most_calls * MOST_IN_A_CALL,
                        false => bars.slots,
                    };
                    if running.len() > most {
                        over.push(format!(
                            "{} runs {} jobs at once, with {} slots",
                            entry.who,
                            running.len(),
                            most
                        ));
                    }
                }
                Event::Finished { job, claim, .. }
                | Event::Stopped { job, claim }
                | Event::StepFinished {
                    job, claim, of: 1.., ..
                }
                | Event::StepStopped {
                    job, claim, of: 1.., ..
                } => {
                    now.entry(&entry.who).or_default().remove(&(job, claim));
                }
                _ => {}
            }
        }
        for what in over {
            self.report.violate(Kind::LimitBroken, what);
        }
    }

    fn order(&mut self, bars: &Bars) {
        let first: Vec<&Run> = self.runs.iter().filter(|run| bars.in_order && run.claim == 1).collect();
        let wrong = first.windows(2).find(|pair| pair[0].job > pair[1].job);
        if let Some(pair) = wrong {
            let what = format!("job {} was started before job {}", pair[0].job, pair[1].job);
            self.report.violate(Kind::OrderBroken, what);
        }
    }

    /// How long the jobs of killed workers took to start elsewhere. In a calm nothing else was broken from the kill
    /// until then.
    fn recovery(&mut self) {
        for kill in self
            .spells
            .iter()
            .filter(|spell| matches!(spell.fault, Fault::Kill | Fault::Suicide))
        {
            let mut calm = false;
            let orphans = self
                .runs
                .iter()
                // what a host of it lost before is not its loss
                .filter(|run| run.process == kill.whom && run.to.is_none() && run.from <= kill.from);
            for orphan in orphans {
                let next = self
                    .runs
                    .iter()
                    .find(|run| run.job == orphan.job && run.from > kill.from);
                let Some(next) = next else { continue };
                let took = (next.from - kill.from) / 1_000_000;
                // who has to wait for others of its key waits for more than the rescue
                let held_up = self.evidence.jobs.get(&orphan.job).is_none_or(|job| job.has_keys);
                if held_up || self.spells.iter().any(|spell| spell.disturbs(kill, next.from)) {
                    self.report.recovery_under_faults.push(took);
                    continue;
                }
                self.report.recovery.push(took);
                calm = true;
                let starved = |spell: &Spell| spell.fault == Fault::Starved && spell.touches("", kill.from, next.from);
                self.report.starved += usize::from(self.spells.iter().any(starved));
            }
            self.report.calm_kills += usize::from(calm);
        }
        self.report.recovery.sort_unstable();
        self.report.recovery_under_faults.sort_unstable();
    }
}

impl Spell {
    /// Whether there was something else from this kill until then.
    fn disturbs(&self, kill: &Spell, until: u64) -> bool {
        match self.fault {
            // a clock is off all the time and must not matter; a machine that has no time for us breaks nothing
            Fault::ClockOff | Fault::Starved => false,
            Fault::Kill | Fault::Suicide => kill.from < self.from && self.from <= until,
            _ => self.touches(&self.whom, kill.from, until),
        }
    }
}

/// The life of a worker that a host belongs to; or of the worker itself.
/// How many jobs a queue, and the limit key of a job, have room for.
fn limits_of(job: &Side, most: usize, most_of_key: usize) -> impl Iterator<Item = (Option<&str>, usize)> {
    let of_key = job.limit_key.as_deref().map(|key| (Some(key), most_of_key));
    [Some((None, most)), of_key].into_iter().flatten()
}

fn worker_of(who: &str) -> &str {
    who.split('@').next().unwrap_or(who)
}

fn runs(history: &History) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut open: HashMap<(&str, i64, i64), usize> = HashMap::new();
    for entry in &history.entries {
        match &entry.event {
            Event::Started { job, claim } => {
                open.insert((&entry.who, *job, *claim), runs.len());
                runs.push(Run {
                    who: worker_of(&entry.who).to_owned(),
                    process: entry.who.clone(),
                    job: *job,
                    claim: *claim,
                    from: entry.at,
                    to: None,
                    outcome: None,
                });
            }
            Event::Finished { job, claim, outcome } => {
                if let Some(at) = open.get(&(entry.who.as_str(), *job, *claim)) {
                    runs[*at].to = Some(entry.at);
                    runs[*at].outcome = Some(outcome.clone());
                }
            }
            Event::Stopped { job, claim } => {
                if let Some(at) = open.get(&(entry.who.as_str(), *job, *claim)) {
                    runs[*at].to.get_or_insert(entry.at);
                }
            }
            // a chain is one execution, from its first step to its last; between two of them it runs
            Event::StepStarted {
                job, claim, of: 1.., ..
            } => {
                let at = *open.entry((&entry.who, *job, *claim)).or_insert_with(|| {
                    runs.push(Run {
                        who: entry.who.clone(),
                        process: entry.who.clone(),
                        job: *job,
                        claim: *claim,
                        from: entry.at,
                        to: None,
                        outcome: None,
                    });
                    runs.len() - 1
                });
                (runs[at].to, runs[at].outcome) = (None, None);
            }
            Event::StepFinished {
                job,
                claim,
                step,
                of: of @ 1..,
                outcome,
            } => {
                let goes_on = outcome == "complete" && *step != of.to_string();
                if let Some(at) = open.get(&(entry.who.as_str(), *job, *claim)).filter(|_| !goes_on) {
                    runs[*at].to = Some(entry.at);
                    runs[*at].outcome = Some(outcome.clone());
                }
            }
            Event::StepStopped {
                job, claim, of: 1.., ..
            } => {
                if let Some(at) = open.get(&(entry.who.as_str(), *job, *claim)) {
                    runs[*at].to.get_or_insert(entry.at);
                }
            }
            _ => {}
        }
    }
    runs
}

/// A fault lasts until its end is noted, and its traces for a moment longer.
fn spells(history: &History) -> Vec<Spell> {
    const TRACES: u64 = 3_000_000_000;
    let mut spells: Vec<Spell> = Vec::new();
    for entry in &history.entries {
        match &entry.event {
            Event::Fault { fault, whom } => spells.push(Spell {
                fault: *fault,
                whom: whom.clone(),
                from: entry.at,
                to: u64::MAX,
            }),
            Event::Over { fault, whom } => {
                let open = spells
                    .iter_mut()
                    .rev()
                    .find(|s| s.fault == *fault && s.whom == *whom && s.to == u64::MAX);
                if let Some(spell) = open {
                    // what was slow for a moment leaves none
                    let traces = if *fault == Fault::Starved { 0 } else { TRACES };
                    spell.to = entry.at + traces;
                }
            }
            _ => {}
        }
    }
    spells
}

impl Report {
    pub(super) fn violate(&mut self, kind: Kind, what: String) {
        self.violations.push(Violation { kind, what });
    }

    pub fn kinds(&self) -> std::collections::BTreeSet<Kind> {
        self.violations.iter().map(|violation| violation.kind).collect()
    }

    pub fn percentile(sorted: &[u64], percent: usize) -> u64 {
        match sorted.len() {
            0 => 0,
            len => sorted[((len - 1) * percent).div_ceil(100)],
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "enqueued: {} asked, {} acknowledged, {} refused, {} without an answer",
            self.asked, self.acknowledged, self.refused, self.unknown
        )?;
        let ended: Vec<String> = self
            .ended
            .iter()
            .map(|(state, count)| format!("{count} {state}"))
            .collect();
        writeln!(f, "ended: {}", ended.join(", "))?;
        writeln!(
            f,
            "ran: {} executions, {} jobs finished more than once (explained), {} transitions checked",
            self.started, self.run_again, self.transitions
        )?;
        let faults: Vec<String> = self
            .faults
            .iter()
            .map(|(fault, count)| format!("{count} {fault:?}"))
            .collect();
        writeln!(f, "faults: {}", faults.join(", "))?;
        let judged: Vec<String> = self
            .judged
            .iter()
            .map(|(what, count)| format!("{count} {what}"))
            .collect();
        writeln!(f, "judged: {}", judged.join(", "))?;
        for (name, times) in [
            ("recovery of killed workers' jobs in a calm", &self.recovery),
            ("the same while something else was broken", &self.recovery_under_faults),
        ] {
            writeln!(
                f,
                "{name}: {} jobs, p50 {} ms, p99 {} ms, longest {} ms",
                times.len(),
                Report::percentile(times, 50),
                Report::percentile(times, 99),
                times.last().copied().unwrap_or_default()
            )?;
        }
        write!(f, "violations: {}", self.violations.len())?;
        for kind in self.kinds() {
            let of_kind = self.violations.iter().filter(|violation| violation.kind == kind);
            write!(f, "\n  {kind:?}: {}", of_kind.count())?;
        }
        for violation in self.violations.iter().take(40) {
            write!(f, "\n  {:?}: {}", violation.kind, violation.what)?;
        }
        Ok(())
    }
}
