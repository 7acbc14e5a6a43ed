//! The judge is tested: each bug here is applied to a copy of the SQL, and the judge must catch it in a short scenario,
//! as the kind of violation it is. Without a bug the same scenarios pass.
//!
//! One bug alone: `cargo test --test proof seeded::completion_ignores_the_claim`.

mod markers;
mod scenarios;

use crate::judge::Kind;
use markers::Edit;
use scenarios::{Scenario, play};

/// A mistake somebody could make.
struct Bug {
    name: &'static str,
    scenario: Scenario,
    caught_as: Kind,
    change: Change,
}

enum Change {
    /// Of `sql/`, at the markers with the bug's name.
    Edits(&'static [Edit]),
    /// Of the tables.
    Run(&'static str),
}

use Change::*;

/// A table of bugs, and a test for each.
macro_rules! bugs {
    ($($name:ident: $scenario:ident => $kind:ident, $change:expr;)*) => {
        const BUGS: &[Bug] = &[$(Bug {
            name: stringify!($name),
            scenario: Scenario::$scenario,
            caught_as: Kind::$kind,
            change: $change,
        }),*];

        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                is_caught(stringify!($name)).await;
            }
        )*
    };
}

bugs! {
    completion_ignores_the_claim: Zombie => StaleCompletion, Edits(&[
        ("bugle.is_held_by(j, p_worker, f.id, f.claim)", "j.id = f.id and j.state = 'running'"),
    ]);
    failure_ignores_the_claim: Zombie => Duplicated, Edits(&[
        (
            "bugle.lock_held(p_worker, p_nonce, (v_failed.id, v_failed.claim)::bugle.held_job)",
            "(select j from bugle.jobs_live j where j.id = v_failed.id and j.state = 'running')",
        ),
    ]);
    give_back_ignores_the_claim: Zombie => Duplicated, Edits(&[
        ("bugle.is_held_by(j, p_worker, h.id, h.claim)", "j.id = h.id and j.state = 'running'"),
    ]);
    a_stale_call_is_accepted: Zombie => Undone, Edits(&[
        ("h.id <> all (p_done)", "false"),
    ]);
    rescue_has_no_grace: Blip => Duplicated, Edits(&[
        ("or r.lost_at > clock_timestamp() - s.lost_grace", ""),
    ]);
    rescue_counts_no_crash: Zombie => IllegalTransition, Edits(&[
        ("crashes = j.crashes + 1,", ""),
    ]);
    rescue_does_nothing: Dead => Stuck, Edits(&[
        ("v_rescued := v_rescued + 1;", "v_rescued := v_rescued + 1; continue;"),
    ]);
    claim_counts_no_attempt: Calm => IllegalTransition, Edits(&[
        ("attempt = j.attempt + 1", "attempt = greatest(j.attempt, 1)"),
    ]);
    claim_number_is_reused: Calm => IllegalTransition, Edits(&[
        ("claim = j.claim + 1", "claim = 1"),
    ]);
    give_back_costs_an_attempt: Calm => IllegalTransition, Edits(&[
        ("attempt = j.attempt - 1,", ""),
    ]);
    completed_jobs_are_not_kept: Calm => Lost, Edits(&[
        ("e.state <> 'completed' or (select s.keep_completed from bugle.settings s)", "e.state <> 'completed'"),
        ("if (select s.keep_completed from bugle.settings s) then", "if false then"),
    ]);
    cancelled_jobs_are_not_kept: Cancel => Lost, Edits(&[
        (
            "e.state <> 'completed' or (select s.keep_completed from bugle.settings s)",
            "e.state <> 'cancelled'",
        ),
    ]);
    the_last_are_claimed_first: Calm => OrderBroken, Edits(&[
        ("j.priority, j.run_at, j.id", "j.priority desc, j.run_at desc, j.id desc"),
    ]);
    retries_never_become_ready: Calm => Stuck, Edits(&[
        ("'scheduled', 'retrying'", "'scheduled'"),
    ]);
    failed_attempts_leave_no_trace: Calm => Undone, Edits(&[
        ("do nothing", "do nothing; delete from bugle.attempts a where a.job = p_job.id"),
    ]);
    attach_takes_what_it_never_had: FalseMemory => IllegalTransition, Edits(&[
        ("and j.claim = h.claim - 1", ""),
    ]);
    cancel_leaves_running_jobs: Cancel => CancelOverwritten, Edits(&[
        (
            "where bugle.is_final(d.to_state)",
            "where bugle.is_final(d.to_state) and d.state <> 'running'",
        ),
    ]);
    completed_jobs_can_be_restarted: Restart => IllegalTransition, Edits(&[
        ("'failed', 'cancelled'", "'failed', 'cancelled', 'completed'"),
    ]);
    idempotency_key_is_taken_twice: Keys => Unexpected, Edits(&[
        ("where bugle.is_free(k)", ""),
    ]);
    unique_key_is_not_unique: Keys => UniquenessBroken, Run(
        "drop index bugle.jobs_live_unique_key"
    );
    slot_fires_twice: Schedule => SlotFiredTwice, Edits(&[
        ("bugle.free_slot_after(p_schedule, p_now)", "s.next_at"),
        ("not found or", ""),
    ]);
    claim_takes_no_row_locks: RacingClaims => IllegalTransition, Edits(&[
        ("for update skip locked", ""),
        (
            "j.ctid = any (v_addresses)",
            "j.id in (select x.id from bugle.jobs_live x where x.ctid = any (v_addresses))",
        ),
    ]);
    batch_is_locked_out_of_order: CrossingLocks => Complaint, Edits(&[
        ("order by d.id, d.claim desc", "order by d.id desc, d.claim desc"),
    ]);
    claim_ignores_the_deadline: Deadlines => IllegalTransition, Edits(&[
        ("and j.is_in_time", ""),
    ]);
    deadline_ends_running_jobs: Deadlines => IllegalTransition, Edits(&[
        ("and p_job.state <> 'running'", ""),
    ]);
    enqueue_never_rings: Wake => Complaint, Edits(&[
        ("and pg_try_advisory_xact_lock_shared(bugle.bell_key(p_queue))", ""),
    ]);
    promote_never_rings: Wake => Complaint, Edits(&[
        ("perform bugle.ring(q.queue) from", "perform from"),
    ]);
    rescue_never_rings: Wake => Complaint, Edits(&[
        ("perform bugle.ring(q.queue) from", "perform from"),
    ]);
    arm_does_not_look_again: Wake => Complaint, Edits(&[
        ("l (queue)", "l (queue) where false"),
    ]);
    bell_is_kept_after_commit: Calm => LeftOver, Edits(&[
        ("pg_try_advisory_xact_lock_shared", "pg_try_advisory_lock_shared"),
    ]);
    rescue_forgets_steps: Steps => StepBroken, Edits(&[
        ("last_error_code = 'worker_lost',", "last_error_code = 'worker_lost', step = 0,"),
        ("r.state in ('done', 'skipped')", "r.state = 'skipped'"),
    ]);
    a_step_is_skipped: Steps => StepBroken, Edits(&[
        ("step = p_position", "step = least(p_position + 1, cardinality(j.steps))"),
    ]);
    dependants_do_not_wait: Dependencies => TooEarly, Edits(&[
        ("v_job.state := 'waiting';", ""),
    ]);
    failure_counts_as_success: Dependencies => TooEarly, Edits(&[
        ("e.state <> 'completed'", "false"),
    ]);
    first_completion_releases_all: Dependencies => TooEarly, Edits(&[
        (
            "outstanding = nullif(j.outstanding - s.count, 0), state = case when j.outstanding > s.count or",
            "outstanding = null, state = case when",
        ),
    ]);
    retry_lets_others_pass: Ordered => OrderBroken, Edits(&[
        ("f.id > j.id or", "true or"),
    ]);
    running_jobs_are_not_counted: Limited => LimitBroken, Edits(&[
        ("p_limits.max_running - v_running", "p_limits.max_running"),
    ]);
    running_jobs_of_a_key_are_not_counted: Limited => LimitBroken, Edits(&[
        ("(p_search.limits).max_running_per_key - coalesce((p_search.running ->> p_key)::integer, 0)", "s.room"),
    ]);
    starts_are_not_noted: Limited => LimitBroken, Edits(&[
        ("cardinality(p_addresses) = 0", "true"),
    ]);
}

async fn is_caught(name: &str) {
    let bug = BUGS.iter().find(|bug| bug.name == name).expect("a bug of the table");

    let report = play(bug.scenario, &bug.seeded().unwrap_or_else(|error| panic!("{error}"))).await;

    let caught = report.kinds().contains(&bug.caught_as);
    assert!(caught, "{name} was not caught as {:?}:\n{report}", bug.caught_as);
}

impl Bug {
    /// The statements that apply it.
    fn seeded(&self) -> Result<Vec<String>, String> {
        match self.change {
            Edits(edits) => {
                let files = markers::apply(self.name, edits, &markers::files())?;
                Ok(files.into_iter().map(|(_, text)| text).collect())
            }
            Run(statement) => Ok(vec![statement.into()]),
        }
    }
}

#[test]
fn every_seeded_bug_can_be_applied_and_every_marker_is_of_a_bug() {
    let mut misfits: Vec<String> = BUGS.iter().filter_map(|bug| bug.seeded().err()).collect();
    for (file, text) in markers::files() {
        let unknown = markers::bugs_in(&text).filter(|name| BUGS.iter().all(|bug| bug.name != *name));
        misfits.extend(unknown.map(|name| format!("{name}: there is no such bug, but a marker in {file}")));
    }

    assert!(misfits.is_empty(), "the SQL has changed:\n{}", misfits.join("\n"));
}

/// Each scenario without a bug, as a test of its own.
macro_rules! without_a_bug {
    ($($name:ident: $scenario:ident;)*) => {
        mod without_a_bug {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    super::passes(super::Scenario::$scenario).await;
                }
            )*
        }
    };
}

without_a_bug! {
    calm: Calm;
    zombie: Zombie;
    dead: Dead;
    blip: Blip;
    false_memory: FalseMemory;
    cancel: Cancel;
    restart: Restart;
    keys: Keys;
    schedule: Schedule;
    racing_claims: RacingClaims;
    crossing_locks: CrossingLocks;
    deadlines: Deadlines;
    wake: Wake;
    steps: Steps;
    dependencies: Dependencies;
    ordered: Ordered;
    limited: Limited;
}

async fn passes(scenario: Scenario) {
    let report = play(scenario, &[]).await;

    assert!(report.violations.is_empty(), "{scenario:?}\n{report}");
    assert!(
        report.transitions > 2 && report.started > 0,
        "{scenario:?}: nothing happened\n{report}"
    );
}
