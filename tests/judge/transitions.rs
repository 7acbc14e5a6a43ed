//! Which steps a job may take. The one place that says so for the tests; the engine does not know it.

use super::evidence::{Side, Step};

const LIVE: [&str; 6] = ["scheduled", "ready", "running", "retrying", "paused", "waiting"];

pub fn is_final(state: &str) -> bool {
    !LIVE.contains(&state)
}

/// From nothing, from one state to another, to nothing: all that one transaction did to one job at a time.
#[derive(Debug, Clone)]
pub struct Transition {
    pub job: i64,
    pub seq: i64,
    pub at: f64,
    pub xid: i64,
    pub old: Option<Side>,
    pub new: Option<Side>,
    /// The test itself did this.
    pub is_cleanup: bool,
}

/// The steps of all jobs, in order; a row that left one table for another in one transaction made one step.
pub fn transitions(steps: &[Step]) -> Vec<Transition> {
    let mut made: Vec<Transition> = Vec::new();
    let mut last: std::collections::HashMap<i64, usize> = std::collections::HashMap::new();
    for step in steps {
        let joined = match (last.get(&step.job).map(|at| &mut made[*at]), &step.old, &step.new) {
            // deleted there, inserted here
            (Some(before), None, _) if before.new.is_none() && before.xid == step.xid => {
                before.new = step.new.clone();
                true
            }
            // inserted here first, then deleted there
            (Some(before), Some(old), None) if before.old.is_none() && before.xid == step.xid => {
                let elsewhere = before
                    .new
                    .as_ref()
                    .is_some_and(|new| is_final(&new.state) != is_final(&old.state));
                if elsewhere {
                    before.old = step.old.clone();
                }
                elsewhere
            }
            _ => false,
        };
        if !joined {
            last.insert(step.job, made.len());
            made.push(Transition {
                job: step.job,
                seq: step.seq,
                at: step.at,
                xid: step.xid,
                old: step.old.clone(),
                new: step.new.clone(),
                is_cleanup: step.op == "cleanup",
            });
        }
    }
    made
}

/// Why a step is not allowed. `removed` and `overruled`: an operator did so to this job.
pub fn objection(step: &Transition, removed: bool, overruled: bool) -> Option<String> {
    let (old, new) = match (&step.old, &step.new) {
        _ if step.is_cleanup => return None,
        (None, Some(new)) => return born(new),
        (Some(old), None) if removed && old.state != "running" => return None,
        (Some(old), None) => return Some(format!("a {} job vanished", old.state)),
        (Some(old), Some(new)) => (old, new),
        (None, None) => return None,
    };
    let from_to = format!("{} -> {}", old.state, new.state);
    let counted = |claim: i64, attempt: i32, crashes: i32| -> Option<String> {
        let expected = (old.claim + claim, old.attempt + attempt, old.crashes + crashes);
        let found = (new.claim, new.attempt, new.crashes);
        (expected != found)
            .then(|| format!("{from_to}: claim, attempt and crashes are {found:?} instead of {expected:?}"))
    };
    match (old.state.as_str(), new.state.as_str()) {
        ("ready", "running") => {
            if old.deadline.is_some_and(|deadline| deadline < step.at - 1.0) {
                return Some(format!("{from_to}: its deadline had passed"));
            }
            counted(1, 1, 0)
        }
        ("running", "running" | "completed" | "cancelled" | "retrying" | "waiting") => counted(0, 0, 0),
        ("running", "failed") if matches!(new.reason.as_deref(), Some("deadline" | "answer_overdue")) => {
            Some(format!("{from_to}: {:?} while it ran", new.reason))
        }
        ("running", "failed") => counted(0, 0, 0),
        // a step of a chain is done: the next one starts from attempt 0
        ("running", "ready") if new.step != old.step => {
            (new.claim != old.claim).then(|| format!("{from_to}: another claim"))
        }
        ("running", "ready") if new.crashes > old.crashes => counted(0, 0, 1),
        ("running", "ready" | "scheduled") => counted(0, -1, 0),
        ("running", _) => Some(format!("{from_to} is no step a running job can take")),
        (_, "running") => Some(format!("{from_to}: only a ready job can be claimed")),
        ("completed", _) => Some(format!("{from_to}: completed work came back")),
        // put back among the live ones, from attempt 0
        ("failed" | "cancelled", _) => {
            let found = (new.claim, new.attempt, new.crashes);
            (!overruled || (found != (old.claim, 0, 0) && found != (old.claim, old.attempt, old.crashes)))
                .then(|| format!("{from_to}: {found:?}, and nobody asked for it"))
        }
        // its children have ended, or it was answered: it goes on as the same attempt
        ("waiting", "ready") if old.claim > 0 && old.attempt > 0 && new.step == old.step => {
            counted(0, -1, 0).filter(|_| !overruled || counted(0, 0, 0).is_some())
        }
        ("waiting", "completed") if new.reason.as_deref() == Some("resolved") => counted(0, 0, 0),
        (_, "completed") if overruled => counted(0, 0, 0),
        (_, "completed") => Some(format!("{from_to}: completed without having run")),
        ("ready", "failed") if new.reason.as_deref() == Some("crash_loop") => counted(0, 0, 0),
        _ => counted(0, 0, 0),
    }
}

fn born(new: &Side) -> Option<String> {
    if !matches!(new.state.as_str(), "ready" | "scheduled" | "waiting") {
        return Some(format!("it began as {}", new.state));
    }
    ((new.claim, new.attempt, new.crashes) != (0, 0, 0)).then(|| format!("it began with claim {}", new.claim))
}
