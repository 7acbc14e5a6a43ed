//! What jobs have to do with each other, and the steps they are made of: order keys, jobs after others, children,
//! chains.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::history::Event;
use super::transitions::is_final;
use super::verdict::{Bars, Court, Kind, LONGEST_FREEZE};

/// One execution of one step.
struct StepRun<'a> {
    who: &'a str,
    claim: i64,
    from: u64,
    /// It came to a good end.
    done: bool,
}

impl Court<'_> {
    fn judge_count(&mut self, what: &'static str, count: usize) {
        *self.report.judged.entry(what).or_default() += count;
    }

    /// Of jobs with one order key the earlier ones first. `retrying`, put off and waiting ones are in the way too, once
    /// they were started. The enqueuer must have been told before: ids are not given in the order of commits.
    pub(super) fn order_of_keys(&mut self, bars: &Bars) {
        let mut told: HashMap<i64, f64> = HashMap::new();
        for entry in &self.history.entries {
            if let Event::Acknowledged { job, .. } = &entry.event {
                told.entry(*job).or_insert(entry.at as f64 / 1e9);
            }
        }
        let mut live: HashMap<(&str, &str), BTreeMap<i64, bool>> = HashMap::new();
        let (mut violations, mut judged) = (Vec::new(), 0);
        for step in &self.transitions {
            let side = step.new.as_ref().or(step.old.as_ref());
            let Some((queue, key)) = side.and_then(|side| Some((side.queue.as_str(), side.order_key.as_deref()?)))
            else {
                continue;
            };
            let others = live.entry((queue, key)).or_default();
            let Some(new) = step.new.as_ref().filter(|new| !is_final(&new.state)) else {
                others.remove(&step.job);
                continue;
            };
            let in_the_way = match new.state.as_str() {
                "ready" | "running" | "retrying" => true,
                _ => new.claim > 0,
            };
            if new.state == "running" && step.old.as_ref().is_some_and(|old| old.state != "running") {
                judged += 1;
                let at = self.evidence.monotonic(step.at) - bars.drift;
                let before = others
                    .range(..step.job)
                    .find(|(other, in_the_way)| **in_the_way && told.get(other).is_some_and(|told| *told < at));
                if let Some((other, _)) = before {
                    violations.push(format!(
                        "job {} of the order {key} was claimed while job {other} was in front of it",
                        step.job
                    ));
                }
            }
            others.insert(step.job, in_the_way);
        }
        self.judge_count("starts in an order", judged);
        for what in violations {
            self.report.violate(Kind::OrderBroken, what);
        }
    }

    /// Nothing is claimed before what it needs has ended, or at all if that failed and it was not told to run all the
    /// same; and no parent while a child lives.
    pub(super) fn needs(&mut self, bars: &Bars) {
        let by_token: HashMap<&str, i64> = self
            .evidence
            .jobs
            .values()
            .filter_map(|job| Some((job.token.as_deref()?, job.id)))
            .collect();
        // who waits, for whom, whether however that ends, whether as a parent
        let mut edges: Vec<(i64, i64, bool, bool)> = Vec::new();
        let (mut after, mut children) = (0, 0);
        for entry in &self.history.entries {
            let (edge, is_child) = match &entry.event {
                Event::After { token, after, however } => (
                    by_token
                        .get(token.as_str())
                        .zip(by_token.get(after.as_str()))
                        .map(|(job, needs)| (*job, *needs, *however, false)),
                    false,
                ),
                Event::Spawns { job, token } => (
                    by_token.get(token.as_str()).map(|child| (*job, *child, true, true)),
                    true,
                ),
                _ => continue,
            };
            let Some(edge) = edge else { continue };
            match is_child {
                true => children += 1,
                false => after += 1,
            }
            edges.push(edge);
        }
        edges.sort_unstable();
        edges.dedup();
        let mut born: HashMap<i64, i64> = HashMap::new();
        let mut ended: HashMap<i64, (i64, f64)> = HashMap::new();
        let mut begun: HashMap<i64, Vec<i64>> = HashMap::new();
        for step in &self.transitions {
            match (&step.old, &step.new) {
                (None, Some(_)) => drop(born.insert(step.job, step.seq)),
                (_, Some(new)) if is_final(&new.state) => drop(ended.insert(step.job, (step.seq, step.at))),
                _ => {}
            }
            let was_running = step.old.as_ref().is_some_and(|old| old.state == "running");
            let starts = step.new.as_ref().is_some_and(|new| match new.state.as_str() {
                "running" => !was_running,
                state => state == "completed",
            });
            if starts {
                begun.entry(step.job).or_default().push(step.seq);
            }
        }
        let mut violations = Vec::new();
        for (job, needs, however, is_child) in edges {
            if self.restarted(job) || self.restarted(needs) || self.evidence.is_removed(needs) {
                continue;
            }
            let since = if is_child {
                born.get(&needs).copied().unwrap_or(i64::MAX)
            } else {
                0
            };
            let mut begun = begun.get(&job).into_iter().flatten().filter(|seq| **seq > since);
            let Some(first) = begun.next() else { continue };
            let end = ended.get(&needs);
            if end.is_none_or(|(seq, _)| seq > first) {
                violations.push(format!(
                    "job {job} was started before job {needs}, which it needs, had ended"
                ));
                continue;
            }
            let state = self
                .evidence
                .jobs
                .get(&needs)
                .map_or("gone", |needed| needed.state.as_str());
            if !however && state != "completed" {
                violations.push(format!(
                    "job {job} was started although job {needs}, which it needs, is {state}"
                ));
            }
            // what executors saw must say the same
            let end = end.map_or(0.0, |(_, at)| self.evidence.monotonic(*at) - bars.drift);
            let runs = self.runs_of.get(&job).into_iter().flatten().map(|at| &self.runs[*at]);
            let early = runs.filter(|_| !is_child).find(|run| (run.from as f64 / 1e9) < end);
            if let Some(run) = early {
                violations.push(format!(
                    "{} ran job {job} before job {needs}, which it needs, had ended",
                    run.who
                ));
            }
        }
        self.judge_count("jobs after others", after);
        self.judge_count("children", children);
        for what in violations {
            self.report.violate(Kind::TooEarly, what);
        }
    }

    /// A chain goes on with the step that was not done: none is left out, and none that is done is run again.
    pub(super) fn steps(&mut self, bars: &Bars) {
        let mut done: HashMap<(i64, &str), f64> = HashMap::new();
        for step in &self.evidence.steps_done {
            let at = self.evidence.monotonic(step.at);
            done.entry((step.job, &step.step)).or_insert(at);
        }
        let mut runs: BTreeMap<(i64, &str), Vec<StepRun>> = BTreeMap::new();
        let (mut violations, mut of_chains, mut of_executors) = (Vec::new(), 0, 0);
        for entry in &self.history.entries {
            match &entry.event {
                Event::StepStarted { job, claim, step, of } => {
                    match of {
                        0 => of_executors += 1,
                        _ => of_chains += 1,
                    }
                    let left_out = (1..step.parse::<usize>().unwrap_or_default()).find(|before| {
                        let before = before.to_string();
                        let at = done.get(&(*job, before.as_str())).copied().unwrap_or(f64::INFINITY);
                        *of > 0 && at > entry.at as f64 / 1e9 + bars.drift
                    });
                    if let Some(left_out) = left_out {
                        violations.push(format!(
                            "step {step} of job {job} began before step {left_out} was done"
                        ));
                    }
                    runs.entry((*job, step)).or_default().push(StepRun {
                        who: &entry.who,
                        claim: *claim,
                        from: entry.at,
                        done: false,
                    });
                }
                Event::StepFinished { job, step, outcome, .. } if outcome == "complete" => {
                    let runs = runs.entry((*job, step)).or_default();
                    if let Some(run) = runs.iter_mut().rev().find(|run| run.who == entry.who) {
                        run.done = true;
                    }
                }
                _ => {}
            }
        }
        for (&(job, step), runs) in runs.iter().filter(|((job, _), _)| !self.restarted(*job)) {
            let done_at = done.get(&(job, step)).copied().unwrap_or(f64::INFINITY);
            for run in runs {
                let late = run.from as f64 / 1e9 > done_at + bars.drift;
                if late && !self.is_explained(run.who, run.from.saturating_sub(LONGEST_FREEZE), run.from) {
                    violations.push(format!("{} ran step {step} of job {job}, which was done", run.who));
                }
            }
            for pair in runs.windows(2).filter(|pair| pair[0].done) {
                // a worker that was frozen before it began has an older claim, and begins after the one that was given
                // its job
                let (victim, since) = match pair[0].claim <= pair[1].claim {
                    true => (pair[0].who, pair[0].from),
                    false => (pair[1].who, pair[1].from.saturating_sub(LONGEST_FREEZE)),
                };
                if !self.is_explained(victim, since, pair[1].from) {
                    violations.push(format!(
                        "step {step} of job {job} was done by {} and run again by {}, and nothing explains it",
                        pair[0].who, pair[1].who
                    ));
                }
            }
        }
        let mut known: HashSet<(i64, &str)> = HashSet::new();
        known.extend(done.keys());
        for job in self
            .evidence
            .jobs
            .values()
            .filter(|job| job.state == "completed" && job.reason.is_none())
        {
            let missing =
                (1..=job.steps.unwrap_or_default()).find(|step| !known.contains(&(job.id, &*step.to_string())));
            if let Some(missing) = missing.filter(|_| !self.restarted(job.id)) {
                violations.push(format!("job {} is completed without its step {missing}", job.id));
            }
        }
        self.judge_count("steps of chains", of_chains);
        self.judge_count("steps of executors", of_executors);
        for what in violations {
            self.report.violate(Kind::StepBroken, what);
        }
    }
}
