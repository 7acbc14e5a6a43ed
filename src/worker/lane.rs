//! Decides when to poll a queue and when to sleep: one lane per queue of a worker. No I/O; time is an argument.
//!
//! It works like a network driver: interrupts when idle, polling under load. A lane that finds work polls at short
//! intervals. A lane that finds nothing tries to take the bell (`bugle.arm`) and sleeps until it is rung, or follows
//! the worker that holds it.
//! Where in the queue a claim starts is decided by its [`Scan`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::db::calls::{Found, Position, QueueRequest, Share};
use crate::worker::scan::{AfterBackground, Next, Scan};

/// The interval between polls of an awake lane.
const STEP: Duration = Duration::from_millis(2);
/// After a poll that found fewer jobs than requested, pause for this multiple of its duration: on a busy server, fewer
/// polls that each find more leave more capacity for enqueuers. Not if claims are serialized, because more jobs become
/// available as soon as the running ones end.
const POLL_PAUSE: u32 = 2;
/// The longest pause, also while the bell cannot be taken because a transaction that has enqueued stays open.
const LONGEST_STEP: Duration = Duration::from_millis(25);
/// If the bell rings sooner than this after it was armed, it was armed too early: jobs arrive fast enough for polling.
const SHORT_SLEEP: Duration = Duration::from_millis(5);
/// The largest [`Patience`].
const MOST_PATIENCE: u32 = 8;
/// The minimum pause after a ring that found nothing, because any login can ring.
const VAIN_PAUSE: Duration = Duration::from_millis(5);
/// How soon to try again to become a follower if another session holds the lock of the followers.
const UNPLACED_PAUSE: Duration = Duration::from_secs(1);
/// The minimum interval at which an awake lane calls workers that serve commands its own worker does not.
const HAND_ON: Duration = Duration::from_millis(20);
/// Effectively never: until it is woken.
const ASLEEP: Duration = Duration::from_secs(86_400);
/// The maximum number of jobs in one claim.
const LARGEST_CLAIM: usize = 1_000;
/// A claim takes at most half of the slots, so that the other half can be claimed while these jobs are started. Claims
/// are not limited below this number.
const SMALL_CLAIM: usize = 100;

/// The maximum number of jobs that a lane with this number of slots claims at once.
pub fn largest_claim(slots: usize) -> usize {
    slots.div_ceil(2).clamp(SMALL_CLAIM, LARGEST_CLAIM).min(slots)
}

/// The role of a worker in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It polls.
    Awake,
    /// It holds the bell and is woken by a ring.
    Sentinel,
    /// It is called when there are more jobs than the sentinel can take.
    Follower,
    /// It does not poll, because an operator paused this worker.
    Paused,
}

impl Mode {
    /// The name used by `bugle.claim` and `bugle.arm`.
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

/// The slots of a queue in this worker.
#[derive(Debug)]
struct Slots {
    total: usize,
    /// Decremented when a job ends.
    running: Arc<AtomicUsize>,
}

impl Slots {
    fn free(&self) -> usize {
        self.total.saturating_sub(self.running.load(Ordering::Acquire))
    }
}

/// The notification channel of a queue's bell.
#[derive(Debug, Default)]
pub struct Bell {
    pub channel: String,
    pub is_heard: bool,
}

/// Whether a lane that holds the bell had to find its work by itself.
#[derive(Debug, Default)]
struct Unannounced {
    /// It was rung or called since it fell asleep.
    is_rung: bool,
    /// Only the safety poll woke it.
    is_polled: bool,
    /// The jobs it then found, unless a late ring explains them.
    found: usize,
}

/// How many empty polls in a row it takes to fall asleep. It grows when the lane slept too soon.
#[derive(Debug)]
struct Patience {
    /// Since the last poll that found jobs.
    empty_polls: u32,
    most: u32,
}

impl Patience {
    fn new() -> Self {
        Patience {
            empty_polls: 0,
            most: 1,
        }
    }

    fn is_exhausted(&self) -> bool {
        self.empty_polls >= self.most
    }

    fn grow(&mut self) {
        self.most = (self.most * 2).min(MOST_PATIENCE);
    }

    fn shrink(&mut self) {
        self.most = (self.most / 2).max(1);
    }
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
    patience: Patience,
    step: Duration,
    next_poll: Instant,
    /// No poll before this time, even if the bell is rung.
    quiet_until: Instant,
    unannounced: Unannounced,
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
            patience: Patience::new(),
            step: STEP,
            next_poll: now,
            quiet_until: now,
            unannounced: Unannounced::default(),
            hand_on_at: now,
        }
    }

    /// Counts the running jobs of this lane.
    pub fn running(&self) -> &Arc<AtomicUsize> {
        &self.slots.running
    }

    pub fn mode(&self) -> Mode {
        self.mode
    }

    pub fn slots(&self) -> usize {
        self.slots.total
    }

    /// A new session holds no locks.
    pub fn reset(&mut self, channel: String, now: Instant) {
        self.bell = Bell {
            channel,
            is_heard: false,
        };
        self.scan.reset();
        self.mode = Mode::Awake;
        // a session that was lost was not notified
        self.unannounced = Unannounced::default();
        self.patience.empty_polls = 0;
        self.next_poll = now;
    }

    /// The request to send now, if it is time to poll and there is room.
    pub fn request(&mut self, now: Instant) -> Option<QueueRequest> {
        let most = self.room()?;
        if self.next_poll > now {
            return None;
        }
        let (slots, after) = self.scan.begin(most, now);
        Some(QueueRequest {
            queue: self.queue.clone(),
            slots: slots as i32,
            after,
            mode: self.mode_at(now),
        })
    }

    /// The maximum number of jobs that [`request`](Lane::request) would ask for.
    pub fn due(&self, now: Instant) -> usize {
        match self.next_poll > now {
            true => 0,
            false => self.room().unwrap_or_default(),
        }
    }

    /// The maximum number of jobs it could claim now, if any.
    fn room(&self) -> Option<usize> {
        let free = self.slots.free();
        (free > 0).then(|| free.min(largest_claim(self.slots.total)))
    }

    fn mode_at(&mut self, now: Instant) -> &'static str {
        if self.mode != Mode::Awake || now < self.hand_on_at {
            return self.mode.as_str();
        }
        self.hand_on_at = now + HAND_ON;
        "handing_on"
    }

    /// Process the reply to a claim, which took from `asked_at` to `now`.
    pub fn claimed(&mut self, request: &QueueRequest, share: Share, asked_at: Instant, now: Instant) {
        let took = now - asked_at;
        self.mode = Mode::Awake;
        if std::mem::take(&mut self.unannounced.is_polled) {
            self.unannounced.found = share.count;
        }
        if share.count > 0 {
            self.patience.empty_polls = 0;
            self.step = STEP;
        } else if self.scan.is_rung() {
            self.quiet_until = now + VAIN_PAUSE;
        }
        let pause = match self.scan.claimed(request, share, took, now) {
            Next::Continue => Duration::ZERO,
            Next::Compare => {
                self.patience.empty_polls += 1;
                Duration::ZERO
            }
            Next::Compared => self.step,
            Next::BackOff => {
                self.patience.empty_polls += u32::from(share.count == 0);
                self.longer_step()
            }
            Next::Rest => {
                self.patience.empty_polls += 1;
                match self.scan.is_serial() {
                    true => self.step,
                    false => self.step.max(LONGEST_STEP.min(took * POLL_PAUSE)),
                }
            }
        };
        self.next_poll = now + pause;
    }

    /// The current interval; the next one is twice as long.
    fn longer_step(&mut self) -> Duration {
        let longer = (self.step * 2).min(LONGEST_STEP);
        std::mem::replace(&mut self.step, longer)
    }

    /// When to start the next background scan, if this lane needs one, and its maximum number of jobs.
    pub fn next_background_scan(&self) -> Option<(Instant, i32)> {
        Some((self.scan.next_background()?, self.room()? as i32))
    }

    /// A background scan has started.
    pub fn background_scan_started(&mut self) {
        self.scan.background_started();
    }

    /// A background scan ended after this time, with its result, or `None` if it could not be run.
    pub fn background_scan_ended(&mut self, found: Option<Found>, took: Duration, now: Instant) {
        match self.scan.background_ended(found, took, now) {
            AfterBackground::Nothing => {}
            AfterBackground::Claim => self.next_poll = now,
            AfterBackground::StartOver => {
                self.patience.empty_polls = 0;
                self.next_poll = now;
            }
        }
    }

    /// Whether enough polls in a row found nothing.
    pub fn wants_to_sleep(&self) -> bool {
        self.mode == Mode::Awake && self.patience.is_exhausted() && self.slots.free() > 0 && self.scan.may_sleep()
    }

    /// Where the last scan before sleeping starts.
    pub fn cursor_for_sleep(&self) -> Option<Position> {
        self.scan.cursor_for_sleep()
    }

    /// Whether the last scan from the start of the queue found nothing more to claim.
    pub fn is_exhausted(&self) -> bool {
        self.scan.is_exhausted()
    }

    /// Process the reply of `bugle.arm`.
    pub fn armed(&mut self, mode: &str, has_work: bool, now: Instant) {
        self.mode = Mode::parse(mode);
        if mode == "unplaced" && !has_work {
            self.next_poll = now + UNPLACED_PAUSE;
        } else if self.mode == Mode::Awake || has_work {
            // not yet: a transaction that has enqueued is still open, or there is a job, perhaps locked by another
            // claim
            self.patience.grow();
            self.patience.empty_polls = 0;
            let step = self.longer_step();
            self.next_poll = if has_work { now } else { now + step };
        } else {
            self.asleep_since = now;
            self.unannounced.is_rung = false;
            self.step = STEP;
            self.next_poll = now + ASLEEP;
        }
    }

    /// The safety poll found work. If this lane holds the bell, it should have been rung.
    pub fn wake_by_poll(&mut self, now: Instant) {
        let is_polled = self.mode == Mode::Sentinel && !self.unannounced.is_rung;
        self.wake(now);
        self.unannounced = Unannounced {
            is_polled,
            ..Unannounced::default()
        };
    }

    /// How many jobs were found without a ring. Asked when the lane is about to sleep: a ring that was under way has
    /// arrived by then.
    pub fn take_unannounced(&mut self) -> usize {
        std::mem::take(&mut self.unannounced.found)
    }

    /// The bell was rung, or the lane was called or notified of work.
    pub fn wake(&mut self, now: Instant) {
        self.unannounced = Unannounced {
            is_rung: true,
            ..Unannounced::default()
        };
        if self.mode != Mode::Awake {
            match now - self.asleep_since < SHORT_SLEEP {
                true => self.patience.grow(),
                false => self.patience.shrink(),
            }
        }
        self.scan.rung();
        self.patience.empty_polls = 0;
        self.next_poll = now.max(self.quiet_until);
    }

    /// When this lane wants to poll again, if it has room.
    pub fn next_poll(&self) -> Option<Instant> {
        (self.slots.free() > 0).then_some(self.next_poll)
    }
}

#[cfg(test)]
mod tests;
