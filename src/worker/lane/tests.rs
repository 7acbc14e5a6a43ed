use super::*;

const MS: Duration = Duration::from_millis(1);

fn at(priority: i32, id: i64) -> Position {
    Position { priority, id }
}

/// So many jobs, of a queue without limits or keys, the last of them here.
fn share(count: usize, last: Position) -> Share {
    Share {
        count,
        last: (count > 0).then_some(last),
        is_serial: false,
    }
}

/// One look that takes `cost` and finds `got` jobs, the last of them at `id`.
fn look(lane: &mut Lane, now: &mut Instant, cost: Duration, got: usize, id: i64) -> QueueRequest {
    let asked_at = *now;
    let request = lane.request(asked_at).expect("it is time to look");
    *now += cost;
    lane.claimed(&request, share(got, Position { priority: 0, id }), asked_at, *now);
    request
}

#[test]
fn an_idle_lane_asks_to_sleep_after_one_look_in_vain() {
    let mut now = Instant::now();
    let mut lane = Lane::new("default", 4, now);
    assert!(!lane.wants_to_sleep());

    look(&mut lane, &mut now, MS, 0, 0);

    assert!(lane.wants_to_sleep() && lane.is_exhausted());
    lane.armed("sentinel", false, now);
    assert!(
        lane.request(now + Duration::from_secs(60)).is_none(),
        "it sleeps until it is rung"
    );
    lane.wake(now);
    assert_eq!(
        lane.request(now).unwrap().mode,
        "sentinel",
        "the claim lets go of the bell"
    );
}

#[test]
fn a_lane_that_could_not_fall_asleep_looks_more_often_before_it_tries_again() {
    let mut now = Instant::now();
    let mut lane = Lane::new("default", 4, now);
    look(&mut lane, &mut now, MS, 1, 1);
    assert!(lane.wants_to_sleep(), "a trickle: at once");

    lane.armed("sentinel", true, now);
    look(&mut lane, &mut now, MS, 1, 2);

    assert!(!lane.wants_to_sleep(), "work comes fast enough to poll for it");
    now = lane.next_poll().unwrap();
    look(&mut lane, &mut now, MS, 0, 0);
    assert!(lane.wants_to_sleep());
}

#[test]
fn a_long_look_is_followed_by_a_longer_pause() {
    let pause_after = |cost| {
        let mut now = Instant::now();
        let mut lane = Lane::new("default", 400, now);
        look(&mut lane, &mut now, cost, 150, 150);
        lane.next_poll().unwrap() - now
    };

    assert_eq!(
        [MS / 2, MS, 4 * MS, 9 * MS, 30 * MS].map(pause_after),
        [2 * MS, 2 * MS, 8 * MS, 18 * MS, 25 * MS]
    );
}

#[test]
fn where_limits_or_keys_decide_a_long_look_is_followed_by_a_short_pause() {
    let mut now = Instant::now();
    let mut lane = Lane::new("default", 40, now);
    let mut pause_after = |got, is_serial| {
        let request = lane.request(now).unwrap();
        let asked_at = now;
        now += 9 * MS;
        let share = Share {
            is_serial,
            ..share(got, at(0, 20))
        };
        lane.claimed(&request, share, asked_at, now);
        let pause = lane.next_poll().unwrap() - now;
        now += pause;
        pause
    };

    assert_eq!(
        pause_after(20, true),
        2 * MS,
        "there is more as soon as these have ended"
    );
    assert_eq!(pause_after(0, false), 2 * MS, "none came that would tell");
    assert_eq!(pause_after(20, false), 18 * MS, "the limit is gone");
}

#[test]
fn the_cursor_moves_on_under_load_and_starts_again_when_it_runs_dry() {
    let mut now = Instant::now();
    let mut lane = Lane::new("default", 4, now);

    look(&mut lane, &mut now, MS, 4, 10);
    look(&mut lane, &mut now, MS, 4, 20);
    let behind = look(&mut lane, &mut now, MS, 1, 21);
    let again = look(&mut lane, &mut now, MS, 0, 0);

    assert_eq!(behind.after_id, Some(20));
    assert_eq!(again.after_id, None, "from the beginning before it sleeps");
    assert!(lane.wants_to_sleep());
}

#[test]
fn a_claim_leaves_half_the_slots_for_the_next_unless_they_are_few() {
    let now = Instant::now();
    let asked = |slots| Lane::new("default", slots, now).request(now).unwrap().slots;

    assert_eq!([1, 80, 150, 500, 5_000].map(asked), [1, 80, 100, 250, 1_000]);
}

/// A lane that has claimed a job, then looked in vain for 80 ms, and behind its cursor for this long.
fn lane_after_a_long_look(now: &mut Instant, behind_cursor: Duration) -> Lane {
    let mut lane = Lane::new("default", 4, *now);
    look(&mut lane, now, MS, 1, 70);
    *now += 3 * MS;
    look(&mut lane, now, 80 * MS, 0, 0);
    assert!(!lane.wants_to_sleep(), "it compares first");
    let request = look(&mut lane, now, behind_cursor, 0, 0);
    assert_eq!(request.after_id, Some(70));
    lane
}

fn dear_lane(now: &mut Instant) -> Lane {
    lane_after_a_long_look(now, MS)
}

#[test]
fn a_look_that_takes_longer_than_what_it_found_explains_is_dear_too() {
    let is_dear_after = |cost| {
        let mut now = Instant::now();
        let mut lane = Lane::new("default", 400, now);
        look(&mut lane, &mut now, cost, 100, 70);
        now = lane.next_poll().unwrap();
        look(&mut lane, &mut now, MS, 3, 73);
        lane.next_background_scan().is_some()
    };

    assert!(!is_dear_after(20 * MS), "a hundred jobs take their time");
    assert!(is_dear_after(21 * MS));
}

#[test]
fn where_every_look_takes_long_it_is_the_machine() {
    let mut now = Instant::now();
    let lane = lane_after_a_long_look(&mut now, 60 * MS);

    assert!(lane.wants_to_sleep() && lane.cursor_for_sleep().is_none());
    assert_eq!(lane.next_background_scan(), None);
}

#[test]
fn a_lane_whose_beginning_is_dear_sleeps_behind_its_cursor_and_sends_scouts() {
    let mut now = Instant::now();
    let mut lane = dear_lane(&mut now);

    assert!(lane.wants_to_sleep());
    assert_eq!(lane.cursor_for_sleep(), Some(at(0, 70)));
    lane.armed("sentinel", false, now);
    assert_eq!(
        lane.next_background_scan(),
        Some((now - MS + 20 * 80 * MS, 4)),
        "seldom"
    );
    lane.wake(now);
    assert_eq!(look(&mut lane, &mut now, MS, 0, 0).after_id, Some(70));
    let (due, _) = lane.next_background_scan().unwrap();
    assert!(due <= now + 2 * 80 * MS, "sooner if it was rung for in vain");
    lane.background_scan_started();
    assert_eq!(lane.next_background_scan(), None, "one at a time");
}

#[test]
fn what_a_scout_found_is_claimed_and_the_cursor_stays() {
    let mut now = Instant::now();
    let mut lane = dear_lane(&mut now);
    lane.armed("sentinel", false, now);
    lane.background_scan_started();

    now += 80 * MS;
    let scouted = Found {
        count: 2,
        first: at(0, 7),
    };
    lane.background_scan_ended(Some(scouted), 80 * MS, now);
    let request = look(&mut lane, &mut now, MS, 2, 9);

    assert_eq!(
        (request.after_id, request.slots, request.mode),
        (Some(6), 2, "sentinel")
    );
    assert_eq!(look(&mut lane, &mut now, MS, 0, 0).after_id, Some(70));
    let (due, _) = lane.next_background_scan().unwrap();
    assert!(due <= now + 50 * MS, "there may be more");
}

#[test]
fn a_lane_follows_what_is_more_urgent_than_its_cursor() {
    let mut now = Instant::now();
    let mut lane = dear_lane(&mut now);
    lane.background_scan_started();
    let scouted = Found {
        count: 1,
        first: at(-5, 90),
    };
    lane.background_scan_ended(Some(scouted), 80 * MS, now);

    let asked_at = now;
    let request = lane.request(now).unwrap();
    lane.claimed(&request, share(1, at(-5, 90)), asked_at, now);

    assert_eq!(lane.cursor_for_sleep(), Some(at(-5, 90)));
}

#[test]
fn a_scout_that_is_back_soon_ends_it_all() {
    let mut now = Instant::now();
    let mut lane = dear_lane(&mut now);
    lane.armed("sentinel", false, now);
    lane.background_scan_started();

    let nothing = Found {
        count: 0,
        first: at(0, 0),
    };
    lane.background_scan_ended(Some(nothing), MS, now);

    assert_eq!(lane.next_background_scan(), None);
    let request = look(&mut lane, &mut now, MS, 0, 0);
    assert_eq!(request.after_id, None, "from the beginning, as ever");
    assert!(lane.wants_to_sleep() && lane.cursor_for_sleep().is_none());
}

#[test]
fn the_cursor_of_a_dear_lane_moves_on_a_while_behind_what_it_claims() {
    let mut now = Instant::now();
    let mut lane = dear_lane(&mut now);
    let mut behind = Vec::new();

    for id in 71..=120 {
        now = now.max(lane.next_poll().unwrap()) + 97 * MS;
        let request = look(&mut lane, &mut now, MS, 1, id);
        behind.push(id - request.after_id.expect("from its cursor"));
    }

    let most = behind[20..].iter().max().unwrap();
    assert!(
        (10..=25).contains(most),
        "one to two seconds, ten jobs each: {behind:?}"
    );
}

#[test]
fn where_scouts_are_of_no_use_a_dear_lane_polls_from_its_cursor_and_rescans_seldom() {
    let mut now = Instant::now();
    let mut lane = dear_lane(&mut now);
    lane.background_scan_started();
    lane.background_scan_ended(None, 80 * MS, now);

    assert!(!lane.wants_to_sleep());
    let (mut looks, mut rescans) = (0, 0);
    let until = now + Duration::from_secs(4);
    while now < until {
        now = now.max(lane.next_poll().unwrap());
        let request = look(&mut lane, &mut now, MS, 0, 0);
        looks += 1;
        rescans += u32::from(request.after_id.is_none());
        if request.after_id.is_none() {
            break;
        }
        assert_eq!(request.after_id, Some(70));
    }

    assert!(looks > 40, "it keeps looking: {looks}");
    assert_eq!(rescans, 1, "and from the beginning after a while");
    assert!(lane.wants_to_sleep(), "which is cheap again");
}

#[test]
fn a_lane_that_never_claimed_anything_sleeps_even_if_its_looks_are_dear() {
    let mut now = Instant::now();
    let mut lane = Lane::new("default", 4, now);

    look(&mut lane, &mut now, 80 * MS, 0, 0);

    assert!(lane.wants_to_sleep() && lane.cursor_for_sleep().is_none());
}
