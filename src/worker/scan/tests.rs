use super::*;
use crate::db::calls::Moment;

const MS: Duration = Duration::from_millis(1);
const START: Option<i64> = None;

fn behind(id: i64) -> Option<i64> {
    Some(id)
}

fn at(priority: i32, id: i64) -> Position {
    Position {
        priority,
        run_at: Moment::default(),
        id,
    }
}

/// A scan and the current time.
struct Played {
    scan: Scan,
    now: Instant,
}

impl Played {
    fn new() -> Played {
        let now = Instant::now();
        let scan = Scan::new(now);
        Played { scan, now }
    }

    /// One claim for 4 jobs: its duration in milliseconds and the number of jobs it gets. Returns the id after which it
    /// started.
    fn claim(&mut self, ms: u32, got: usize, last: Position) -> (Option<i64>, Next) {
        self.claim_of(4, ms, got, last, false)
    }

    fn claim_of(&mut self, most: usize, ms: u32, got: usize, last: Position, is_serial: bool) -> (Option<i64>, Next) {
        let (slots, after) = self.scan.begin(most, self.now);
        let request = QueueRequest {
            queue: "default".into(),
            slots: slots as i32,
            after,
            mode: "awake",
        };
        let share = Share {
            count: got,
            last: (got > 0).then_some(last),
            is_serial,
        };
        self.now += ms * MS;
        let next = self.scan.claimed(&request, share, ms * MS, self.now);
        (after.map(|position| position.id), next)
    }

    /// A sequence of claims: the id after which each starts, its milliseconds, the number of jobs it gets, the last of
    /// them, and the decision.
    fn claims(&mut self, rows: &[(Option<i64>, u32, usize, i64, Next)]) {
        for (number, (from, ms, got, last, next)) in rows.iter().enumerate() {
            let played = self.claim(*ms, *got, at(0, *last));
            assert_eq!(played, (*from, *next), "claim {number}");
        }
    }

    /// One immediate background scan.
    fn in_background(&mut self, found: Option<Found>, ms: u32) -> AfterBackground {
        self.scan.background_started();
        self.now += ms * MS;
        self.scan.background_ended(found, ms * MS, self.now)
    }

    /// The number of milliseconds until the next background scan.
    fn next_background(&self) -> Option<u128> {
        let due = self.scan.next_background()?;
        Some(due.saturating_duration_since(self.now).as_millis())
    }
}

/// A queue whose start is expensive, after one job with the id 70: a scan from there takes 80 ms, from the cursor 1 ms.
fn expensive() -> Played {
    let mut played = Played::new();
    played.claims(&[
        (START, 1, 1, 70, Next::Rest),
        (START, 80, 0, 0, Next::Compare),
        (behind(70), 1, 0, 0, Next::Compared),
    ]);
    played
}

#[test]
fn under_load_a_claim_starts_behind_the_one_before_and_at_the_start_again_when_it_runs_dry() {
    Played::new().claims(&[
        (START, 1, 4, 10, Next::Continue),
        (START, 1, 4, 20, Next::Continue), // one full claim could be a trickle
        (behind(20), 1, 4, 30, Next::Continue),
        (behind(30), 1, 1, 31, Next::Continue),
        (START, 1, 0, 0, Next::Rest),
    ]);
}

#[test]
fn a_cursor_is_given_up_from_time_to_time_for_what_is_urgent_or_was_committed_late() {
    Played::new().claims(&[
        (START, 1, 4, 10, Next::Continue),
        (START, 4, 4, 20, Next::Continue),
        (behind(20), 30, 4, 30, Next::Continue),
        (behind(30), 30, 4, 40, Next::Continue),
        (behind(40), 30, 4, 50, Next::Continue), // after 20 times the 4 ms it took
        (START, 1, 4, 60, Next::Continue),
    ]);
}

#[test]
fn a_scan_that_takes_longer_than_what_it_found_explains_is_suspect() {
    // milliseconds, jobs found, are claims serialized
    let next_after = |(ms, got, is_serial)| {
        let mut played = Played::new();
        played.claim(1, 1, at(0, 70));
        played.claim_of(400, ms, got, at(0, 70), is_serial).1
    };

    let table = [
        ((10, 0, false), Next::Rest),
        ((11, 0, false), Next::Compare),
        ((20, 100, false), Next::Rest),
        ((21, 100, false), Next::Compare),
        ((80, 10, true), Next::Rest),
        ((80, 9, true), Next::Compare),
    ];
    for (scan, next) in table {
        assert_eq!(next_after(scan), next, "{scan:?}");
    }
}

#[test]
fn a_scan_of_a_queue_from_which_nothing_was_ever_claimed_is_not_suspect() {
    let mut played = Played::new();

    played.claims(&[(START, 80, 0, 0, Next::Rest)]);

    assert!(played.scan.may_sleep() && played.scan.cursor_for_sleep().is_none());
}

#[test]
fn the_start_is_expensive_if_a_scan_from_the_cursor_is_three_times_as_fast() {
    // milliseconds of the scan from the cursor, after one of 80 ms from the start
    let table = [(1, true), (26, true), (27, false), (60, false)];

    for (ms, is_expensive) in table {
        let mut played = Played::new();
        played.claims(&[(START, 1, 1, 70, Next::Rest), (START, 80, 0, 0, Next::Compare)]);
        assert!(!played.scan.may_sleep(), "it compares first");

        played.claims(&[(behind(70), ms, 0, 0, Next::Compared)]);

        assert!(played.scan.may_sleep());
        let cursor = is_expensive.then_some(at(0, 70));
        assert_eq!(played.scan.cursor_for_sleep(), cursor, "{ms} ms");
        assert_eq!(played.next_background().is_some(), is_expensive, "{ms} ms");
    }
}

#[test]
fn a_queue_whose_start_is_expensive_is_scanned_from_the_cursor_and_seldom_in_the_background() {
    let mut played = expensive();

    assert_eq!(played.next_background(), Some(20 * 80 - 1), "seldom");
    played.claims(&[
        (behind(70), 1, 0, 0, Next::BackOff),
        (behind(70), 1, 0, 0, Next::BackOff),
    ]);
    played.scan.rung();
    assert_eq!(played.next_background(), Some(2 * 80 - 3), "sooner if it was rung for");
    played.scan.background_started();
    assert_eq!(played.next_background(), None, "one at a time");
}

#[test]
fn the_cursor_follows_one_to_two_seconds_behind_what_is_claimed() {
    let mut played = expensive();
    let mut lag = Vec::new();

    for id in 71..=120 {
        played.now += 99 * MS;
        let (from, _) = played.claim(1, 1, at(0, id));
        lag.push(id - from.expect("from its cursor"));
    }

    let most = lag[20..].iter().max().unwrap();
    assert!((10..=25).contains(most), "ten jobs each second: {lag:?}");
}

#[test]
fn after_a_scan_in_the_background() {
    let found = |count, first| {
        Some(Found {
            count,
            first: Some(first),
        })
    };
    // the result, the milliseconds, the decision, where the next claim starts, and why
    let table = [
        (
            found(2, at(0, 7)),
            80,
            AfterBackground::Claim,
            behind(6),
            "its jobs are claimed",
        ),
        (
            found(2, at(0, 71)),
            80,
            AfterBackground::Claim,
            behind(70),
            "the cursor finds them",
        ),
        (
            found(0, at(0, 0)),
            11,
            AfterBackground::Nothing,
            behind(70),
            "still expensive",
        ),
        (found(0, at(0, 0)), 10, AfterBackground::StartOver, START, "cheap again"),
        (None, 80, AfterBackground::Nothing, behind(70), "of no use here"),
    ];

    for (found, ms, decided, from, why) in table {
        let mut played = expensive();
        assert_eq!(played.in_background(found, ms), decided, "{why}");
        assert_eq!(played.claim(1, 0, at(0, 0)).0, from, "{why}");
    }
}

#[test]
fn no_more_is_claimed_before_the_cursor_than_was_found_there_and_the_cursor_stays() {
    let mut played = expensive();
    played.in_background(
        Some(Found {
            count: 2,
            first: Some(at(0, 7)),
        }),
        80,
    );

    assert_eq!(played.scan.begin(4, played.now), (2, Some(at(0, 6))));
    let request = QueueRequest {
        queue: "default".into(),
        slots: 2,
        after: Some(at(0, 6)),
        mode: "awake",
    };
    let share = Share {
        count: 2,
        last: Some(at(0, 9)),
        is_serial: false,
    };
    assert_eq!(played.scan.claimed(&request, share, MS, played.now), Next::Continue);

    assert_eq!(played.next_background(), Some(50), "there may be more");
    played.claims(&[(behind(70), 1, 0, 0, Next::BackOff)]);
}

#[test]
fn the_cursor_moves_to_what_is_more_urgent() {
    let mut played = expensive();
    played.in_background(
        Some(Found {
            count: 1,
            first: Some(at(-5, 90)),
        }),
        80,
    );

    assert_eq!(played.claim(1, 1, at(-5, 90)), (behind(89), Next::Continue));

    assert_eq!(played.scan.cursor_for_sleep(), Some(at(-5, 90)));
}

#[test]
fn without_scans_in_the_background_claims_start_at_the_start_again_now_and_then() {
    let mut played = expensive();
    played.in_background(None, 80);
    assert!(
        !played.scan.may_sleep(),
        "otherwise jobs before the cursor would be missed"
    );

    played.claims(&[(behind(70), 1, 0, 0, Next::BackOff)]);
    played.now += 20 * 80 * MS;
    played.claims(&[(START, 1, 0, 0, Next::Rest)]);

    assert!(played.scan.may_sleep(), "it was cheap again");
}

#[test]
fn a_queue_is_exhausted_when_a_scan_from_its_start_got_less_than_it_asked_for() {
    let mut played = Played::new();
    // jobs, exhausted
    let table = [
        (4, false),
        (1, true),
        (0, true),
        (4, false),
        (4, false),
        (0, false),
        (0, true),
    ];

    for (number, (got, is_exhausted)) in table.into_iter().enumerate() {
        played.claim(1, got, at(0, number as i64));
        assert_eq!(played.scan.is_exhausted(), is_exhausted, "claim {number}");
    }
}

/// A worker that stops when its queues are empty would otherwise stop before it polls for what it was told of.
#[test]
fn a_queue_whose_bell_is_rung_is_not_exhausted_until_the_next_scan() {
    let mut played = Played::new();
    played.claim(1, 0, at(0, 0));
    assert!(played.scan.is_exhausted());

    played.scan.rung();

    assert!(!played.scan.is_exhausted());
    played.claim(1, 0, at(0, 1));
    assert!(played.scan.is_exhausted());
}
