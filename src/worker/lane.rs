//! When to poll a queue and when to sleep: one lane for each queue a worker serves. No I/O here; time is an argument.
//!
//! Like a network driver: interrupts when idle, polling under load. A lane that finds work polls in short steps. One
//! that finds nothing asks for the bell (`bugle.arm`) and sleeps until it is rung, or follows the worker that has it.
//! Where in the queue a claim starts is decided by its [`Scan`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::db::calls::{Found, Position, QueueRequest, Share};
use crate::worker::scan::{AfterBackground, Next, Scan};

/// The pause between two polls of a lane that is awake.
const STEP: Duration = Duration::from_millis(2);
/// A poll that found less than it asked for is followed by a pause of this many times its length: on a busy server
/// fewer polls, each of which finds more, leave more to those who enqueue. Not where claims are serialized: there is
/// more as soon as our own jobs have ended.
const POLL_PAUSE: u32 = 2;
/// The longest pause, also when the bell is refused again and again because a transaction that has enqueued stays open.
const LONGEST_STEP: Duration = Duration::from_millis(25);
/// A bell that rings sooner than this after it was armed was armed too early: work comes fast enough to poll for it.
const SHORT_SLEEP: Duration = Duration::from_millis(5);
/// The most empty polls before sleeping.
const MOST_PATIENCE: u32 = 8;
/// The shortest pause after a ring for which nothing was found: anyone who can connect can ring.
const VAIN_PAUSE: Duration = Duration::from_millis(5);
/// How soon to ask for a place among the followers again if none could be had, because a foreign session holds their
/// lock.
const UNPLACED_PAUSE: Duration = Duration::from_secs(1);
/// How often at most an awake lane calls workers that serve what its own does not.
const HAND_ON: Duration = Duration::from_millis(20);
/// As good as never: until it is woken.
const ASLEEP: Duration = Duration::from_secs(86_400);
/// The most jobs in one claim.
const LARGEST_CLAIM: usize = 1_000;
/// A claim takes no more than half the slots: the other half can be claimed while these are started. Not by smaller
/// claims than this.
const SMALL_CLAIM: usize = 100;

/// The most jobs a lane with this many slots claims at once.
pub fn largest_claim(slots: usize) -> usize {
    slots.div_ceil(2).clamp(SMALL_CLAIM, LARGEST_CLAIM).min(slots)
}

/// What a worker holds on a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Nothing: it polls.
    Awake,
    /// The bell: it is rung for.
    Sentinel,
    /// A place behind the sentinel: it is called when there is more than that one can take.
    Follower,
    /// Nothing, and it does not poll either: an operator paused this worker.
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

/// How many jobs of a queue this worker runs at once.
#[derive(Debug)]
struct Slots {
    total: usize,
    /// Counted down when a job ends.
    running: Arc<AtomicUsize>,
}

impl Slots {
    fn free(&self) -> usize {
        self.total.saturating_sub(self.running.load(Ordering::Acquire))
    }
}

/// The channel on which a queue is rung for.
#[derive(Debug, Default)]
pub struct Bell {
    pub channel: String,
    pub is_heard: bool,
}

/// One queue, as one worker sees it.
#[derive(Debug)]
pub struct Lane {
    pub queue: String,
    pub bell: Bell,
    slots: Slots,
    scan: Scan,
    mode: Mode,
    asleep_since: Instant,
    /// Polls that found nothing since the last that did.
    empty_polls: u32,
    /// How many of them there are before it sleeps.
    patience: u32,
    step: Duration,
    next_poll: Instant,
    /// No poll before that, even if the bell is rung.
    quiet_until: Instant,
    hand_on_at: Instant,
}

impl Lane {
    pub fn new(queue: &str, slots: u32, now: Instant) -> Self {
        Lane {
            queue: queue.to_string(),
            bell: Bell::default(),
            slots: Slots {
                total: slots as usize,
                running: Arc::default(),
            },
            scan: Scan::new(now),
            mode: Mode::Awake,
            asleep_since: now,
            empty_polls: 0,
            patience: 1,
            step: STEP,
            next_poll: now,
            quiet_until: now,
            hand_on_at: now,
        }
    }

    /// Counts the jobs of this lane that run.
    pub fn running(&self) -> &Arc<AtomicUsize> {
        &self.slots.running
    }

    pub fn mode(&self) -> Mode {
        self.mode
    }

    pub fn slots(&self) -> usize {
        self.slots.total
    }

    /// On a new session nothing is held any more.
    pub fn reset(&mut self, channel: String, now: Instant) {
        self.bell = Bell {
            channel,
            is_heard: false,
        };
        self.scan.reset();
        self.mode = Mode::Awake;
        self.empty_polls = 0;
        self.next_poll = now;
    }

    /// What to ask for now, if it is time to poll and there is room.
    pub fn request(&mut self, now: Instant) -> Option<QueueRequest> {
        let most = self.room()?;
        if self.next_poll > now {
            return None;
        }
        let (slots, after) = self.scan.begin(most, now);
        Some(QueueRequest {
            queue: self.queue.clone(),
            slots: slots as i32,
            after_priority: after.map(|position| position.priority),
            after_id: after.map(|position| position.id),
            mode: self.mode_at(now),
        })
    }

    /// The most jobs it could claim now, if any.
    fn room(&self) -> Option<usize> {
        let free = self.slots.free();
        (free > 0).then(|| free.min(largest_claim(self.slots.total)))
    }

    fn mode_at(&mut self, now: Instant) -> &'static str {
        if self.mode != Mode::Awake || now < self.hand_on_at {
            return self.mode.as_str();
        }
        self.hand_on_at = now + HAND_ON;
        "lookout"
    }

    /// A claim was answered. It took from `asked_at` to `now`.
    pub fn claimed(&mut self, request: &QueueRequest, share: Share, asked_at: Instant, now: Instant) {
        let took = now - asked_at;
        self.mode = Mode::Awake;
        if share.count > 0 {
            self.empty_polls = 0;
            self.step = STEP;
        } else if self.scan.is_rung() {
            self.quiet_until = now + VAIN_PAUSE;
        }
        let pause = match self.scan.claimed(request, share, took, now) {
            Next::Continue => Duration::ZERO,
            Next::Compare => {
                self.empty_polls += 1;
                Duration::ZERO
            }
            Next::Compared => self.step,
            Next::BackOff => {
                self.empty_polls += u32::from(share.count == 0);
                self.longer_step()
            }
            Next::Rest => {
                self.empty_polls += 1;
                match self.scan.is_serial() {
                    true => self.step,
                    false => self.step.max(LONGEST_STEP.min(took * POLL_PAUSE)),
                }
            }
        };
        self.next_poll = now + pause;
    }

    /// This step; the next is twice as long.
    fn longer_step(&mut self) -> Duration {
        let longer = (self.step * 2).min(LONGEST_STEP);
        std::mem::replace(&mut self.step, longer)
    }

    /// When to begin the next scan in the background, if this lane has any, and how many jobs it may look for.
    pub fn next_background_scan(&self) -> Option<(Instant, i32)> {
        Some((self.scan.next_background()?, self.room()? as i32))
    }

    /// A scan in the background has begun.
    pub fn background_scan_started(&mut self) {
        self.scan.background_started();
    }

    /// A scan in the background ended after this time: with what it found, or with nothing because it could not be
    /// made.
    pub fn background_scan_ended(&mut self, found: Option<Found>, took: Duration, now: Instant) {
        match self.scan.background_ended(found, took, now) {
            AfterBackground::Nothing => {}
            AfterBackground::Claim => self.next_poll = now,
            AfterBackground::StartOver => {
                self.empty_polls = 0;
                self.next_poll = now;
            }
        }
    }

    /// Whether enough polls in a row found nothing.
    pub fn wants_to_sleep(&self) -> bool {
        self.mode == Mode::Awake && self.empty_polls >= self.patience && self.slots.free() > 0 && self.scan.may_sleep()
    }

    /// Where the last scan before sleep starts.
    pub fn cursor_for_sleep(&self) -> Option<Position> {
        self.scan.cursor_for_sleep()
    }

    /// Whether the last scan, from the start of the queue, found nothing more to take.
    pub fn is_exhausted(&self) -> bool {
        self.scan.is_exhausted()
    }

    /// `bugle.arm` was answered.
    pub fn armed(&mut self, mode: &str, has_work: bool, now: Instant) {
        self.mode = Mode::parse(mode);
        if mode == "unplaced" && !has_work {
            self.next_poll = now + UNPLACED_PAUSE;
        } else if self.mode == Mode::Awake || has_work {
            // not yet: a transaction that has enqueued is still open, or a job is there, perhaps one that another claim
            // has locked
            self.patience = (self.patience * 2).min(MOST_PATIENCE);
            self.empty_polls = 0;
            let step = self.longer_step();
            self.next_poll = if has_work { now } else { now + step };
        } else {
            self.asleep_since = now;
            self.step = STEP;
            self.next_poll = now + ASLEEP;
        }
    }

    /// Its bell was rung, or it was called or told that there is work.
    pub fn wake(&mut self, now: Instant) {
        if self.mode != Mode::Awake {
            self.patience = if now - self.asleep_since < SHORT_SLEEP {
                (self.patience * 2).min(MOST_PATIENCE)
            } else {
                (self.patience / 2).max(1)
            };
        }
        self.scan.rung();
        self.empty_polls = 0;
        self.next_poll = now.max(self.quiet_until);
    }

    /// When this lane wants to poll again, if it has room.
    pub fn next_poll(&self) -> Option<Instant> {
        (self.slots.free() > 0).then_some(self.next_poll)
    }
}

#[cfg(test)]
mod tests;
