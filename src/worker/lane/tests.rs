use super::*;
use crate::db::calls::Moment;

const MS: Duration = Duration::from_millis(1);

fn at(id: i64) -> Position {
    Position {
        priority: 0,
        run_at: Moment::default(),
        id,
    }
}

/// An event for a lane.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// A poll, as soon as it is due: its duration in milliseconds and the number of jobs it finds.
    Poll(u32, usize),
    /// The same for a queue with serialized claims.
    SerialPoll(u32, usize),
    /// This number of milliseconds pass.
    Pass(u32),
    /// `bugle.arm` returns this mode and whether there is work.
    Arm(&'static str, bool),
    /// The bell is rung.
    Ring,
}
use Event::{Arm, Pass, Poll, Ring, SerialPoll};

/// What the lane does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    /// Poll again after this number of milliseconds.
    PollIn(u128),
    /// The same, unless it falls asleep before.
    SleepOrPollIn(u128),
    /// Sleep until it is woken.
    Sleep,
}
use Does::{PollIn, Sleep, SleepOrPollIn};

fn play(slots: u32, rows: &[(Event, Does)]) {
    let mut now = Instant::now();
    let mut lane = Lane::new("default", slots, now);
    for (number, (event, does)) in rows.iter().enumerate() {
        happen(&mut lane, &mut now, *event);
        assert_eq!(does_next(&lane, now), *does, "row {number}: {event:?}");
    }
}

fn happen(lane: &mut Lane, now: &mut Instant, event: Event) {
    match event {
        Poll(ms, got) => poll(lane, now, ms, got, false),
        SerialPoll(ms, got) => poll(lane, now, ms, got, true),
        Pass(ms) => *now += ms * MS,
        Arm(mode, has_work) => lane.armed(mode, has_work, *now),
        Ring => lane.wake(*now),
    }
}

fn poll(lane: &mut Lane, now: &mut Instant, ms: u32, count: usize, is_serial: bool) {
    let asked_at = (*now).max(lane.next_poll().expect("there is room"));
    let request = lane.request(asked_at).expect("it is time");
    *now = asked_at + ms * MS;
    let share = Share {
        count,
        last: (count > 0).then_some(at(70)),
        is_serial,
    };
    lane.claimed(&request, share, asked_at, *now);
}

fn does_next(lane: &Lane, now: Instant) -> Does {
    let pause = lane.next_poll().expect("there is room").saturating_duration_since(now);
    match lane.wants_to_sleep() {
        _ if pause > Duration::from_secs(3600) => Sleep,
        true => SleepOrPollIn(pause.as_millis()),
        false => PollIn(pause.as_millis()),
    }
}

#[test]
fn an_idle_lane_asks_to_sleep_after_one_empty_poll_and_sleeps_until_it_is_rung() {
    play(
        4,
        &[
            (Poll(1, 0), SleepOrPollIn(2)),
            (Arm("sentinel", false), Sleep),
            (Pass(60_000), Sleep),
            (Ring, PollIn(0)),
            (Poll(1, 1), SleepOrPollIn(2)),
            (Arm("follower", false), Sleep),
            (Ring, PollIn(0)),
        ],
    );
}

#[test]
fn a_lane_that_finds_as_much_as_it_asked_for_polls_at_once() {
    play(
        4,
        &[
            (Poll(9, 4), PollIn(0)),
            (Poll(9, 4), PollIn(0)),
            (Poll(1, 3), PollIn(0)), // from the start, before it rests
            (Poll(1, 0), SleepOrPollIn(2)),
        ],
    );
}

#[test]
fn a_lane_that_could_not_fall_asleep_polls_more_often_before_it_tries_again() {
    play(
        4,
        &[
            (Poll(1, 1), SleepOrPollIn(2)), // a trickle: at once
            (Arm("sentinel", true), PollIn(0)),
            (Poll(1, 1), PollIn(2)), // jobs arrive fast enough for polling
            (Poll(1, 0), SleepOrPollIn(2)),
        ],
    );
}

#[test]
fn while_a_transaction_that_has_enqueued_stays_open_a_lane_polls_in_longer_and_longer_steps() {
    let refused = Arm("awake", false);
    play(
        4,
        &[
            (Poll(1, 0), SleepOrPollIn(2)),
            (refused, PollIn(2)),
            (Poll(1, 0), PollIn(4)),
            (Poll(1, 0), SleepOrPollIn(4)),
            (refused, PollIn(4)),
            (refused, PollIn(8)),
            (refused, PollIn(16)),
            (refused, PollIn(25)),
            (refused, PollIn(25)),
        ],
    );
}

#[test]
fn a_lane_that_finds_no_place_among_the_followers_asks_again_after_a_second() {
    play(
        4,
        &[
            (Poll(1, 0), SleepOrPollIn(2)),
            (Arm("unplaced", false), SleepOrPollIn(1000)),
            (Arm("unplaced", true), PollIn(0)),
        ],
    );
}

#[test]
fn after_short_sleeps_a_lane_stays_awake_longer_and_after_long_ones_it_does_not() {
    let mut rows = vec![(Poll(1, 0), SleepOrPollIn(2))];
    for (asleep, empty_polls) in [(4, 2), (4, 4), (4, 8), (4, 8), (5, 4), (5, 2), (5, 1), (5, 1)] {
        rows.extend([
            (Arm("sentinel", false), Sleep),
            (Pass(asleep), Sleep),
            (Ring, PollIn(0)),
        ]);
        rows.extend([(Poll(1, 1), PollIn(2))].repeat(usize::from(empty_polls > 1)));
        rows.extend([(Poll(1, 0), PollIn(2))].repeat(empty_polls - usize::from(empty_polls > 1) - 1));
        rows.push((Poll(1, 0), SleepOrPollIn(2)));
    }
    play(4, &rows);
}

#[test]
fn rings_for_which_nothing_is_found_are_answered_after_a_pause() {
    play(
        4,
        &[
            (Poll(1, 0), SleepOrPollIn(2)),
            (Arm("sentinel", false), Sleep),
            (Pass(60_000), Sleep),
            (Ring, PollIn(0)),
            (Poll(1, 0), SleepOrPollIn(2)),
            (Ring, PollIn(5)),
            (Poll(1, 1), SleepOrPollIn(2)),
            (Ring, PollIn(0)),
        ],
    );
}

#[test]
fn a_long_poll_is_followed_by_a_longer_pause_unless_claims_are_serialized() {
    let table = [
        (Poll(0, 150), 2),
        (Poll(1, 150), 2),
        (Poll(4, 150), 8),
        (Poll(9, 150), 18),
        (Poll(30, 150), 25),
        (SerialPoll(9, 150), 2), // more becomes available as soon as these have ended
    ];
    for (event, pause) in table {
        play(400, &[(event, SleepOrPollIn(pause))]);
    }
    play(
        400,
        &[
            (SerialPoll(9, 20), SleepOrPollIn(2)),
            (Poll(9, 0), SleepOrPollIn(2)),   // no job shows whether claims are serialized
            (Poll(9, 20), SleepOrPollIn(18)), // the limit was removed
        ],
    );
}

#[test]
fn a_queue_whose_start_is_expensive_is_polled_less_and_less_often_until_the_lane_sleeps() {
    play(
        4,
        &[
            (Poll(1, 1), SleepOrPollIn(2)),
            (Arm("sentinel", true), PollIn(0)),
            (Poll(80, 0), PollIn(0)), // suspect: compare
            (Poll(1, 0), PollIn(4)),  // and only then
            (Poll(1, 0), SleepOrPollIn(4)),
            (Arm("awake", false), PollIn(8)),
            (Poll(1, 0), PollIn(16)),
        ],
    );
}

#[test]
fn a_claim_leaves_half_the_slots_for_the_next_unless_they_are_few() {
    let now = Instant::now();
    let asked = |slots| Lane::new("default", slots, now).request(now).unwrap().slots;

    assert_eq!([1, 80, 150, 500, 5_000].map(asked), [1, 80, 100, 250, 1_000]);
}

#[test]
fn a_lane_without_free_slots_neither_polls_nor_sleeps_nor_scans() {
    let now = Instant::now();
    let mut lane = Lane::new("default", 4, now);
    poll(&mut lane, &mut now.clone(), 1, 0, false);

    lane.running().fetch_add(4, Ordering::AcqRel);

    assert!(lane.request(now + MS * 60_000).is_none());
    assert_eq!((lane.next_poll(), lane.wants_to_sleep()), (None, false));
    assert_eq!(lane.next_background_scan(), None);
}

#[test]
fn a_claim_says_what_the_lane_holds_and_calls_others_now_and_then() {
    let mut now = Instant::now();
    let mut lane = Lane::new("default", 4, now);
    let mode = |lane: &mut Lane, now: Instant| lane.request(now).unwrap().mode;

    assert_eq!(mode(&mut lane, now), "handing_on");
    assert_eq!(mode(&mut lane, now + HAND_ON - MS), "awake");
    assert_eq!(mode(&mut lane, now + HAND_ON), "handing_on");

    now += HAND_ON;
    lane.armed("sentinel", false, now);
    lane.wake(now);
    assert_eq!(mode(&mut lane, now), "sentinel", "the claim lets go of the bell");
}

#[test]
fn what_a_background_scan_found_wakes_a_lane_that_sleeps() {
    let mut now = Instant::now();
    let mut lane = Lane::new("default", 4, now);
    for event in [Poll(1, 1), Poll(80, 0), Poll(1, 0), Arm("sentinel", false)] {
        happen(&mut lane, &mut now, event);
    }
    assert_eq!(does_next(&lane, now), Sleep);
    assert_eq!(lane.cursor_for_sleep(), Some(at(70)));

    lane.background_scan_started();
    let first = Some(at(7));
    lane.background_scan_ended(Some(Found { count: 2, first }), 80 * MS, now);

    let request = lane.request(now).expect("it is awake");
    assert_eq!(
        (request.after, request.slots, request.mode),
        (Some(at(6)), 2, "sentinel")
    );
}

#[test]
fn jobs_found_without_a_ring_are_counted_unless_a_ring_explains_them() {
    let found = |events: &dyn Fn(&mut Lane, &mut Instant)| {
        let mut now = Instant::now();
        let mut lane = Lane::new("default", 4, now);
        happen(&mut lane, &mut now, Arm("sentinel", false));
        events(&mut lane, &mut now);
        lane.take_unannounced()
    };

    let by_poll = found(&|lane, now| {
        lane.wake_by_poll(*now);
        happen(lane, now, Poll(1, 2));
        happen(lane, now, Poll(1, 0));
    });
    let by_ring = found(&|lane, now| {
        happen(lane, now, Ring);
        lane.wake_by_poll(*now);
        happen(lane, now, Poll(1, 2));
    });
    let by_a_ring_that_came_later = found(&|lane, now| {
        lane.wake_by_poll(*now);
        happen(lane, now, Poll(1, 2));
        happen(lane, now, Ring);
    });
    let by_a_follower = found(&|lane, now| {
        happen(lane, now, Arm("follower", false));
        lane.wake_by_poll(*now);
        happen(lane, now, Poll(1, 2));
    });

    assert_eq!(
        (by_poll, by_ring, by_a_ring_that_came_later, by_a_follower),
        (2, 0, 0, 0)
    );
}
