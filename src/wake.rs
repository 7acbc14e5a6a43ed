//! When to look into a queue, when to sleep: one lane for each queue a worker serves. No I/O here; time is an argument.
//!
//! Like a network driver: interrupts when idle, polling under load. A lane that finds work keeps looking in short steps;
//! one that finds nothing asks for the bell (`bugle.arm`) and sleeps until it is rung, or follows whoever has it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::calls::QueueRequest;

/// The pause between two looks of a lane that is awake.
const STEP: Duration = Duration::from_millis(2);
/// The longest pause, when the bell is refused again and again: somebody enqueued and does not commit.
const LONGEST_STEP: Duration = Duration::from_millis(25);
/// A bell that rings sooner than this after it was armed was armed too early: work comes fast enough to poll for it.
const SHORT_SLEEP: Duration = Duration::from_millis(5);
/// The most empty looks before sleeping.
const MOST_PATIENCE: u32 = 8;
/// How often at most a lane with a cursor starts from the beginning again, for urgent and late-committed jobs.
const RESCAN: Duration = Duration::from_millis(50);
/// A rescan may take this part of the time: with an old snapshot held open it walks over everything that is dead.
const RESCAN_SHARE: u32 = 20;
/// A look from the beginning that finds next to nothing and takes longer than this walks over what is dead and cannot be
/// cleaned up. Such a lane does not sleep, because the last look before it sleeps would take as long and delay the next job
/// by it: it polls from its cursor, and starts from the beginning only as often as [`RESCAN_SHARE`] allows.
const DEAR: Duration = Duration::from_millis(10);
/// The most jobs in one claim.
const LARGEST_CLAIM: usize = 1_000;
/// A claim takes no more than half the slots: the other half can be claimed while these are started. Not by smaller claims than this.
const SMALL_CLAIM: usize = 100;

/// The most jobs a lane with so many slots claims at once.
pub fn largest_claim(slots: usize) -> usize {
    slots.div_ceil(2).clamp(SMALL_CLAIM, LARGEST_CLAIM).min(slots)
}

/// What a worker holds on a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Nothing: it looks.
    Awake,
    /// The bell: it is rung for.
    Sentinel,
    /// A place behind the sentinel: it is called when there is more than that one can take.
    Follower,
    /// Nothing, and it does not look either: an operator paused this worker.
    Paused,
}

impl Mode {
    /// As `bugle.claim` and `bugle.arm` spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Awake => "awake",
            Mode::Paused => "paused",
            Mode::Sentinel => "sentinel",
            Mode::Follower => "follower",
        }
    }

    fn parse(mode: &str) -> Mode {
        match mode {
            "sentinel" => Mode::Sentinel,
            "follower" => Mode::Follower,
            "paused" => Mode::Paused,
            _ => Mode::Awake,
        }
    }
}

/// One queue, as one worker sees it.
#[derive(Debug)]
pub struct Lane {
    pub queue: String,
    pub channel: String,
    pub listening: bool,
    slots: usize,
    running: Arc<AtomicUsize>,
    mode: Mode,
    cursor: Option<(i32, i64)>,
    /// The last job it ever claimed: where a cursor can start again.
    furthest: Option<(i32, i64)>,
    /// Whether a look from the beginning has become dear.
    is_dear: bool,
    /// Whether the last look from the beginning found less than it asked for, and none since found more.
    is_drained: bool,
    /// Claims in a row that got all they asked for.
    full_claims: u32,
    /// Looks that found nothing since the last that did.
    empty_looks: u32,
    patience: u32,
    step: Duration,
    next_look: Instant,
    asleep_since: Instant,
    rescanned_at: Instant,
    rescan_cost: Duration,
}

impl Lane {
    pub fn new(queue: &str, slots: u32, now: Instant) -> Self {
        Lane {
            queue: queue.to_string(),
            channel: String::new(),
            listening: false,
            slots: slots as usize,
            running: Arc::default(),
            mode: Mode::Awake,
            cursor: None,
            furthest: None,
            is_dear: false,
            is_drained: false,
            full_claims: 0,
            empty_looks: 0,
            patience: 1,
            step: STEP,
            next_look: now,
            asleep_since: now,
            rescanned_at: now,
            rescan_cost: Duration::ZERO,
        }
    }

    /// Counts the jobs of this lane that run. Whoever ends one counts it down.
    pub fn running(&self) -> &Arc<AtomicUsize> {
        &self.running
    }

    pub fn mode(&self) -> Mode {
        self.mode
    }

    pub fn free_slots(&self) -> usize {
        self.slots.saturating_sub(self.running.load(Ordering::Acquire))
    }

    /// On a new session nothing is held any more.
    pub fn reset(&mut self, channel: String, now: Instant) {
        self.channel = channel;
        self.listening = false;
        self.mode = Mode::Awake;
        self.cursor = None;
        self.empty_looks = 0;
        self.next_look = now;
    }

    /// What to ask for now, if it is time to look and there is room.
    pub fn request(&mut self, now: Instant) -> Option<QueueRequest> {
        let free = self.free_slots();
        if free == 0 || self.next_look > now {
            return None;
        }
        if self.cursor.is_some() && now >= self.rescanned_at + RESCAN.max(self.rescan_cost * RESCAN_SHARE) {
            self.cursor = None;
        }
        Some(QueueRequest {
            queue: self.queue.clone(),
            slots: free.min(largest_claim(self.slots)) as i32,
            after_priority: self.cursor.map(|c| c.0),
            after_id: self.cursor.map(|c| c.1),
            mode: self.mode.as_str(),
        })
    }

    /// A claim was answered: `got` jobs, the last at `last`. It took from `asked_at` to `now`.
    pub fn claimed(
        &mut self,
        request: &QueueRequest,
        got: usize,
        last: Option<(i32, i64)>,
        asked_at: Instant,
        now: Instant,
    ) {
        self.mode = Mode::Awake;
        let from_the_beginning = request.after_id.is_none();
        if from_the_beginning {
            self.rescanned_at = now;
            self.rescan_cost = now - asked_at;
            if got < 10 {
                self.is_dear = self.rescan_cost > DEAR;
            }
        }
        if got > 0 {
            self.empty_looks = 0;
            self.step = STEP;
            self.furthest = last;
            self.is_drained = false;
        }
        if got >= request.slots as usize {
            // one full claim is a trickle's; a cursor for it would cost another look when the next one finds nothing
            self.cursor = last.filter(|_| self.full_claims > 0);
            self.full_claims += 1;
            self.next_look = now;
        } else if !from_the_beginning && self.is_dear {
            self.full_claims = 0;
            self.next_look = now + self.step;
            self.step = (self.step * 2).min(LONGEST_STEP);
        } else if !from_the_beginning {
            self.full_claims = 0;
            // what lies behind the cursor may have grown while we were ahead of it
            self.cursor = None;
            self.next_look = now;
        } else {
            self.full_claims = 0;
            self.cursor = self.furthest.filter(|_| self.is_dear);
            self.is_drained = true;
            self.empty_looks += 1;
            self.next_look = now + self.step;
        }
    }

    /// Whether it has looked in vain often enough.
    pub fn wants_to_sleep(&self) -> bool {
        self.mode == Mode::Awake && self.empty_looks >= self.patience && self.free_slots() > 0 && !self.is_dear
    }

    /// Whether its last look, from the beginning, found nothing more to take.
    pub fn found_nothing(&self) -> bool {
        self.is_drained
    }

    /// `bugle.arm` was answered.
    pub fn armed(&mut self, mode: &str, has_work: bool, now: Instant) {
        self.mode = Mode::parse(mode);
        if self.mode == Mode::Awake || has_work {
            // Not yet: a silent transaction is still open, or a job is there that another claim has locked.
            self.empty_looks = 0;
            self.next_look = if has_work { now } else { now + self.step };
            self.step = (self.step * 2).min(LONGEST_STEP);
        } else {
            self.asleep_since = now;
            self.step = STEP;
            self.next_look = now + Duration::from_secs(86_400);
        }
    }

    /// Rung for, called, or told that there is work.
    pub fn wake(&mut self, now: Instant) {
        if self.mode != Mode::Awake {
            self.patience = if now - self.asleep_since < SHORT_SLEEP {
                (self.patience * 2).min(MOST_PATIENCE)
            } else {
                (self.patience / 2).max(1)
            };
        }
        self.empty_looks = 0;
        self.next_look = now;
    }

    /// When this lane wants to look again, if it has room and is not asleep.
    pub fn next_look(&self) -> Option<Instant> {
        (self.mode == Mode::Awake && self.free_slots() > 0).then_some(self.next_look)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// One look that takes `cost` and finds `got` jobs, the last of them at `id`.
    fn look(lane: &mut Lane, now: &mut Instant, cost: Duration, got: usize, id: i64) -> QueueRequest {
        let asked_at = *now;
        let request = lane.request(asked_at).expect("it is time to look");
        *now += cost;
        lane.claimed(&request, got, (got > 0).then_some((0, id)), asked_at, *now);
        request
    }

    #[test]
    fn an_idle_lane_asks_to_sleep_after_one_look_in_vain() {
        let mut now = Instant::now();
        let mut lane = Lane::new("default", 4, now);
        assert!(!lane.wants_to_sleep());

        look(&mut lane, &mut now, MS, 0, 0);

        assert!(lane.wants_to_sleep() && lane.found_nothing());
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

    #[test]
    fn a_lane_whose_beginning_is_dear_polls_from_its_cursor_and_rescans_seldom() {
        let mut now = Instant::now();
        let mut lane = Lane::new("default", 4, now);
        look(&mut lane, &mut now, MS, 1, 7);
        now += 3 * MS;

        look(&mut lane, &mut now, 80 * MS, 0, 0);
        assert!(!lane.wants_to_sleep());
        let (mut looks, mut rescans) = (0, 0);
        let until = now + Duration::from_secs(4);
        while now < until {
            now = now.max(lane.next_look().unwrap());
            let request = look(&mut lane, &mut now, MS, 0, 0);
            looks += 1;
            rescans += u32::from(request.after_id.is_none());
            if request.after_id.is_none() {
                break;
            }
            assert_eq!(request.after_id, Some(7));
        }

        assert!(looks > 40, "it keeps looking: {looks}");
        assert_eq!(rescans, 1, "and from the beginning after a while");
        assert!(lane.wants_to_sleep(), "which is cheap again");
    }
}
