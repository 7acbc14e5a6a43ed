//! When to look into a queue, when to sleep: one lane for each queue a worker serves. No I/O here; time is an argument.
//!
//! Like a network driver: interrupts when idle, polling under load. A lane that finds work keeps looking in short steps;
//! one that finds nothing asks for the bell (`bugle.arm`) and sleeps until it is rung, or follows whoever has it.

mod trail;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::db::calls::{QueueRequest, Share};
use trail::Trail;

/// The pause between two looks of a lane that is awake.
const STEP: Duration = Duration::from_millis(2);
/// A look that found less than it asked for is followed by a pause of so many times its length: on a busy server fewer looks, each of which
/// finds more, leave more to those who enqueue. Not where limits or keys decide: there is more as soon as our own jobs have ended.
const LOOK_SHARE: u32 = 2;
/// The longest pause, also when the bell is refused again and again: somebody enqueued and does not commit.
const LONGEST_STEP: Duration = Duration::from_millis(25);
/// A bell that rings sooner than this after it was armed, or that could not be armed, was armed too early: work comes fast enough to poll for it.
const SHORT_SLEEP: Duration = Duration::from_millis(5);
/// The most empty looks before sleeping.
const MOST_PATIENCE: u32 = 8;
/// The least pause after a ring for which nothing was found: anyone who can connect can ring.
const VAIN_PAUSE: Duration = Duration::from_millis(5);
/// How soon to ask for a place again if none could be had, because a stranger holds the lock of followers.
const UNPLACED_PAUSE: Duration = Duration::from_secs(1);
/// How often at most an awake lane calls workers that serve what its own does not.
const HAND_ON: Duration = Duration::from_millis(20);
/// How often at most a lane with a cursor starts from the beginning again, for urgent and late-committed jobs.
const RESCAN: Duration = Duration::from_millis(50);
/// A rescan may take this part of the time: with an old snapshot held open it walks over everything that is dead.
const RESCAN_SHARE: u32 = 20;
/// The same for a lane that was rung for and found nothing behind its cursor: what rang probably lies before it.
const RUNG_SHARE: u32 = 2;
/// A look from the beginning that takes longer than this, and than what it found explains, and much longer than one from the cursor right
/// after it, walks over what is dead and cannot be cleaned up. Such a lane looks from its cursor, also when it goes to sleep; what lies before it is scouted on another
/// connection, as often as [`RESCAN_SHARE`] allows, so that no job has to wait for it. Where a cursor is of no use, because of
/// limits or keys, it does not sleep, but polls.
const DEAR: Duration = Duration::from_millis(10);
/// More than any job that was found takes, where neither limits nor keys decide.
const DEAR_FOR_A_JOB: Duration = Duration::from_micros(200);
/// How much longer.
const DEAR_FACTOR: u32 = 3;
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

/// What a scout found: so many jobs, up to the number it was sent for, the first of them here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scouted {
    pub found: usize,
    pub first: (i32, i64),
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
    trail: Trail,
    /// Whether a look from the beginning has become dear.
    is_dear: bool,
    /// Whether the last look from the beginning took so long that it may be; the next one, from the cursor, will tell.
    may_be_dear: bool,
    /// Whether what lies before the cursor can be scouted.
    can_scout: bool,
    is_scouting: bool,
    /// Found by a scout: to be claimed next.
    scouted: Option<Scouted>,
    /// Whether the claim under way is for that.
    fetches_scouted: bool,
    /// Whether limits or keys decided what the last jobs were that it claimed.
    is_exact: bool,
    /// Whether it was rung for and has found nothing since.
    is_rung: bool,
    /// Whether the last look from the beginning found less than it asked for, and none since found more.
    is_drained: bool,
    /// Claims in a row that got all they asked for.
    full_claims: u32,
    /// Looks that found nothing since the last that did.
    empty_looks: u32,
    patience: u32,
    step: Duration,
    next_look: Instant,
    /// No look before that, even if it is rung for.
    quiet_until: Instant,
    hand_on_at: Instant,
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
            trail: Trail::default(),
            is_dear: false,
            may_be_dear: false,
            can_scout: true,
            is_scouting: false,
            scouted: None,
            fetches_scouted: false,
            is_exact: false,
            is_rung: false,
            is_drained: false,
            full_claims: 0,
            empty_looks: 0,
            patience: 1,
            step: STEP,
            next_look: now,
            quiet_until: now,
            hand_on_at: now,
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

    pub fn slots(&self) -> usize {
        self.slots
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
        self.scouted = None;
        self.fetches_scouted = false;
        self.empty_looks = 0;
        self.next_look = now;
    }

    /// What to ask for now, if it is time to look and there is room.
    pub fn request(&mut self, now: Instant) -> Option<QueueRequest> {
        let free = self.free_slots();
        if free == 0 || self.next_look > now {
            return None;
        }
        if self.cursor.is_some() && !self.scouts() && now >= self.rescan_at() {
            self.cursor = None;
        }
        let most = free.min(largest_claim(self.slots));
        let scouted = self.scouted.take();
        self.fetches_scouted = scouted.is_some();
        let (slots, after) = match scouted {
            // no more than that: behind the last of them lies what is dead
            Some(Scouted { found, first }) => (most.min(found), Some((first.0, first.1 - 1))),
            None => (most, self.cursor),
        };
        Some(QueueRequest {
            queue: self.queue.clone(),
            slots: slots as i32,
            after_priority: after.map(|c| c.0),
            after_id: after.map(|c| c.1),
            mode: self.mode_at(now),
        })
    }

    fn mode_at(&mut self, now: Instant) -> &'static str {
        if self.mode != Mode::Awake || now < self.hand_on_at {
            return self.mode.as_str();
        }
        self.hand_on_at = now + HAND_ON;
        "lookout"
    }

    /// Whether it leaves what lies before its cursor to scouts.
    fn scouts(&self) -> bool {
        self.is_dear && self.can_scout && self.cursor.is_some()
    }

    fn rescan_at(&self) -> Instant {
        let share = if self.is_rung { RUNG_SHARE } else { RESCAN_SHARE };
        self.rescanned_at + RESCAN.max(self.rescan_cost * share)
    }

    /// When to send the next scout, if this lane has any, and how many jobs it may look for.
    pub fn next_scout(&self) -> Option<(Instant, i32)> {
        let most = self.free_slots().min(largest_claim(self.slots));
        (self.scouts() && !self.is_scouting && self.scouted.is_none() && most > 0)
            .then(|| (self.rescan_at(), most as i32))
    }

    /// A scout is on its way.
    pub fn scout_left(&mut self) {
        self.is_scouting = true;
    }

    /// A scout is back, after so long: with what it found, or with nothing because it could not look.
    pub fn scout_returned(&mut self, report: Option<Scouted>, cost: Duration, now: Instant) {
        self.is_scouting = false;
        self.is_rung = false;
        self.rescanned_at = now;
        self.rescan_cost = cost;
        let Some(report) = report else {
            self.can_scout = false;
            return;
        };
        if report.found > 0 {
            // what lies behind the cursor is found from there
            self.scouted = Some(report).filter(|report| self.cursor.is_some_and(|cursor| report.first <= cursor));
            self.next_look = now;
        } else if cost > DEAR {
            self.is_drained = true;
        } else {
            // what was dead is gone: the next look is an ordinary one, from the beginning
            self.is_dear = false;
            self.cursor = None;
            self.empty_looks = 0;
            self.next_look = now;
        }
    }

    /// From where on the last look before sleep looks.
    pub fn cursor(&self) -> Option<(i32, i64)> {
        self.cursor.filter(|_| self.scouts())
    }

    /// A claim was answered. It took from `asked_at` to `now`.
    pub fn claimed(&mut self, request: &QueueRequest, share: Share, asked_at: Instant, now: Instant) {
        let (got, last) = (share.count, share.last);
        self.mode = Mode::Awake;
        if self.is_rung && got == 0 {
            self.quiet_until = now + VAIN_PAUSE;
        }
        let from_the_beginning = request.after_id.is_none();
        if from_the_beginning {
            self.rescanned_at = now;
            self.rescan_cost = now - asked_at;
            if got < 10 && self.rescan_cost <= DEAR {
                self.is_dear = false;
                self.can_scout = true;
            }
        }
        if got > 0 {
            self.is_exact = share.is_exact;
            self.empty_looks = 0;
            self.step = STEP;
            self.is_drained = false;
            self.is_rung = false;
        }
        if std::mem::take(&mut self.fetches_scouted) {
            // where there were some there may be more; and what was urgent will be again
            self.rescan_cost = Duration::ZERO;
            self.cursor = self
                .cursor
                .map(|cursor| last.filter(|last| last.0 < cursor.0).unwrap_or(cursor));
            self.next_look = now;
            return;
        }
        self.furthest = last.or(self.furthest);
        if let Some(last) = last {
            self.trail.note(last, now);
        }
        if got >= request.slots as usize {
            // one full claim is a trickle's; a cursor for it would cost another look when the next one finds nothing
            self.cursor = last.filter(|_| self.full_claims > 0 || self.is_dear);
            self.full_claims += 1;
            self.next_look = now;
        } else if !from_the_beginning && self.may_be_dear {
            self.full_claims = 0;
            self.may_be_dear = false;
            self.is_dear = self.rescan_cost > DEAR_FACTOR * (now - asked_at);
            self.cursor = self.cursor.filter(|_| self.is_dear);
            self.next_look = now + self.step;
        } else if !from_the_beginning && self.is_dear {
            // else it would walk over all that has died since
            self.cursor = self.cursor.map(|cursor| self.trail.follow(cursor));
            self.full_claims = 0;
            self.empty_looks += u32::from(got == 0);
            self.next_look = now + self.step;
            self.step = (self.step * 2).min(LONGEST_STEP);
        } else if !from_the_beginning {
            self.full_claims = 0;
            // what lies behind the cursor may have grown while we were ahead of it
            self.cursor = None;
            self.next_look = now;
        } else {
            self.full_claims = 0;
            let is_explained =
                self.rescan_cost <= DEAR.max(DEAR_FOR_A_JOB * got as u32) || (self.is_exact && got >= 10);
            self.may_be_dear = !self.is_dear && !is_explained && self.furthest.is_some();
            self.cursor = self.furthest.filter(|_| self.is_dear || self.may_be_dear);
            self.is_drained = true;
            self.empty_looks += 1;
            self.next_look = if self.may_be_dear {
                now
            } else if self.is_exact {
                now + self.step
            } else {
                now + self.step.max(LONGEST_STEP.min((now - asked_at) * LOOK_SHARE))
            };
        }
    }

    /// Whether it has looked in vain often enough.
    pub fn wants_to_sleep(&self) -> bool {
        let may_sleep = !self.may_be_dear && (!self.is_dear || self.cursor.is_none() || self.scouts());
        self.mode == Mode::Awake && self.empty_looks >= self.patience && self.free_slots() > 0 && may_sleep
    }

    /// Whether its last look, from the beginning, found nothing more to take.
    pub fn found_nothing(&self) -> bool {
        self.is_drained
    }

    /// `bugle.arm` was answered.
    pub fn armed(&mut self, mode: &str, has_work: bool, now: Instant) {
        self.mode = Mode::parse(mode);
        if mode == "unplaced" && !has_work {
            self.next_look = now + UNPLACED_PAUSE;
        } else if self.mode == Mode::Awake || has_work {
            // Not yet: a silent transaction is still open, or a job is there, perhaps one that another claim has locked.
            self.patience = (self.patience * 2).min(MOST_PATIENCE);
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
        self.is_rung = true;
        self.empty_looks = 0;
        self.next_look = now.max(self.quiet_until);
    }

    /// When this lane wants to look again, if it has room.
    pub fn next_look(&self) -> Option<Instant> {
        (self.free_slots() > 0).then_some(self.next_look)
    }
}

#[cfg(test)]
mod tests;
