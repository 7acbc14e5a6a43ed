//! What the judge lets pass because a fault explains it, and only then: histories written by hand.

use serde_json::{Value, json};

use crate::judge::{Bars, Entry, Evidence, History, Kind, judge};

/// Seconds, who, and what.
fn history(lines: &[(f64, &str, Value)]) -> History {
    let entry = |(at, who, what): &(f64, &str, Value)| {
        let mut line = what.clone();
        line["at"] = json!((at * 1e9) as u64);
        line["who"] = json!(who);
        serde_json::from_value::<Entry>(line).expect("a line of a history")
    };
    History {
        entries: lines.iter().map(entry).collect(),
    }
}

fn step(event: &str, claim: i64) -> Value {
    json!({"event": event, "job": 1, "claim": claim, "step": "1", "of": 1, "outcome": "complete"})
}

/// One worker is given the job of another and does its step; then the other begins with it.
fn a_step_done_and_begun_again(claims: [i64; 2], frozen: Option<&str>) -> usize {
    let mut lines = vec![
        (107.0, "second", step("step_started", claims[0])),
        (107.1, "second", step("step_finished", claims[0])),
        (108.0, "first", step("step_started", claims[1])),
    ];
    if let Some(whom) = frozen {
        let freeze = |event: &str| json!({"event": event, "fault": "freeze", "whom": whom});
        lines.insert(0, (100.0, "chaos", freeze("fault")));
        lines.insert(3, (107.9, "chaos", freeze("over")));
    }
    let report = judge(&history(&lines), &Evidence::default(), &Bars::default());
    report.violations.iter().filter(|v| v.kind == Kind::StepBroken).count()
}

#[test]
fn a_step_that_a_frozen_worker_begins_after_it_was_done_elsewhere_is_explained_by_its_freeze() {
    assert_eq!(a_step_done_and_begun_again([2, 1], Some("first")), 0);
    assert_eq!(a_step_done_and_begun_again([2, 1], None), 1, "by nothing else");
    assert_eq!(
        a_step_done_and_begun_again([2, 1], Some("third")),
        1,
        "by nobody else's"
    );
    assert_eq!(
        a_step_done_and_begun_again([2, 3], Some("first")),
        1,
        "nor where it was given the job after it woke up"
    );
}
