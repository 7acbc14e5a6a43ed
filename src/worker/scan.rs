//! Decides where in its queue a claim starts to scan. No I/O; time is an argument.
//!
//! A claim normally starts at the start of the queue. Two things can make that expensive:
//!
//! - Under load, the entries of recently claimed jobs are still in the index. So after two full claims in a row, the
//!   next one starts after the last claimed job, the *cursor*, and occasionally at the start again, for urgent jobs and
//!   jobs that were committed late.
//! - While an old snapshot is held open anywhere, dead rows cannot be removed, and a scan from the start passes over
//!   all of them. A scan that took longer than its number of jobs explains is *suspect*. The next one starts at the
//!   cursor; if it is much faster, the start of the queue is *expensive*. From then on, claims start at the cursor,
//!   including the last one before the worker sleeps, and background scans on another connection find jobs before the
//!   cursor.

use std::time::{Duration, Instant};

use crate::db::calls::{Found, Position, QueueRequest, Share};

/// The minimum interval between scans from the start while there is a cursor.
const RESCAN: Duration = Duration::from_millis(50);
/// Scans from the start pause for this multiple of their own duration, because dead rows make them long.
const RESCAN_PAUSE: u32 = 20;
/// The same for a queue whose bell was rung when nothing was found after the cursor: the new job is probably before it.
const RUNG_RESCAN_PAUSE: u32 = 2;
/// A scan from the start is not suspect if it takes less than this,
const EXPENSIVE: Duration = Duration::from_millis(10);
/// or less than this per job, which is more than any job takes if claims are not serialized,
const EXPENSIVE_PER_JOB: Duration = Duration::from_micros(200);
/// or, if claims are serialized, if it found at least this number of jobs.
const JOBS_THAT_EXPLAIN: usize = 10;
/// A suspect scan was expensive if it took more than this multiple of the duration of the scan from the cursor.
const EXPENSIVE_FACTOR: u32 = 3;
/// The minimum age of a position before the cursor moves to it. Jobs are not committed in the order in which
/// they are due, so jobs that were due before a recently claimed one may still appear.
const CURSOR_LAG: Duration = Duration::from_secs(1);

/// The scan position of one queue.
#[derive(Debug)]
pub struct Scan {
    /// The job after which the next claim starts; `None` for the start of the queue.
    cursor: Option<Position>,
    /// The last job it ever claimed, from which a cursor can be restored.
    furthest: Option<Position>,
    history: CursorHistory,
    from_start: Cost,
    background: Background,
    /// Whether claims of the queue are serialized, because of limits or keys.
    is_serial: bool,
    /// Whether the bell was rung and nothing was found since.
    is_rung: bool,
    /// Whether a scan from the start found fewer jobs than requested, and no scan since found more.
    is_exhausted: bool,
    /// Whether the last claim got as many jobs as requested.
    was_full: bool,
    rescanned_at: Instant,
    rescan_took: Duration,
}

/// The cost of a scan from the start of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cost {
    Cheap,
    /// The last one took too long for what it found; the next one, from the cursor, shows why.
    Suspect,
    Expensive,
}

/// The state of the background scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Background {
    Idle,
    Running,
    /// It found jobs, which are claimed next.
    Found(Found),
    /// The claim for them is in flight.
    Claiming,
    /// Not possible, because limits or keys decide what may start, or because a scan failed.
    Unavailable,
}

/// What the lane does after a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Poll at once: there are probably more jobs.
    Continue,
    /// Poll at once from the cursor: the scan reached the end of the queue, but took too long.
    Compare,
    /// Poll soon: the comparison was made.
    Compared,
    /// Poll at increasing intervals: there is nothing more after the cursor.
    BackOff,
    /// Rest: the scan reached the end of the queue.
    Rest,
}

/// What the lane does after a background scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterBackground {
    /// Poll at once: it found jobs.
    Claim,
    /// Poll at once: the start of the queue is cheap again.
    StartOver,
    /// Continue as before.
    Nothing,
}

impl Scan {
    pub fn new(now: Instant) -> Self {
        Scan {
            cursor: None,
            furthest: None,
            history: CursorHistory::default(),
            from_start: Cost::Cheap,
            background: Background::Idle,
            is_serial: false,
            is_rung: false,
            is_exhausted: false,
            was_full: false,
            rescanned_at: now,
            rescan_took: Duration::ZERO,
        }
    }

    /// Reset what depends on the session.
    pub fn reset(&mut self) {
        self.cursor = None;
        if let Background::Found(_) | Background::Claiming = self.background {
            self.background = Background::Idle;
        }
    }

    /// The bell was rung: there may be more than the last scan found.
    pub fn rung(&mut self) {
        self.is_rung = true;
        self.is_exhausted = false;
    }

    pub fn is_rung(&self) -> bool {
        self.is_rung
    }

    pub fn is_serial(&self) -> bool {
        self.is_serial
    }

    /// Whether the last scan from the start found nothing more to claim.
    pub fn is_exhausted(&self) -> bool {
        self.is_exhausted
    }

    /// Whether the worker can sleep now without missing a job.
    pub fn may_sleep(&self) -> bool {
        match self.from_start {
            Cost::Cheap => true,
            Cost::Suspect => false,
            Cost::Expensive => self.cursor.is_none() || self.background != Background::Unavailable,
        }
    }

    /// Where the last scan before sleeping starts.
    pub fn cursor_for_sleep(&self) -> Option<Position> {
        self.cursor.filter(|_| self.scans_in_background())
    }

    /// How many jobs the next claim requests, at most `most`, and after which position.
    pub fn begin(&mut self, most: usize, now: Instant) -> (usize, Option<Position>) {
        if self.cursor.is_some() && !self.scans_in_background() && now >= self.rescan_at() {
            self.cursor = None;
        }
        match self.background {
            Background::Found(Found { count, first }) => {
                self.background = Background::Claiming;
                // no more than were found, because there are dead rows after the last of them
                (most.min(count), first.map(Position::just_before))
            }
            _ => (most, self.cursor),
        }
    }

    /// Process the reply to a claim that took this time.
    pub fn claimed(&mut self, request: &QueueRequest, share: Share, took: Duration, now: Instant) -> Next {
        let is_from_start = request.after.is_none();
        if is_from_start {
            self.rescanned(share.count, took, now);
        }
        if share.count > 0 {
            self.is_serial = share.is_serial;
            self.is_exhausted = false;
            self.is_rung = false;
        }
        if self.background == Background::Claiming {
            self.claimed_before_cursor(share);
            return Next::Continue;
        }
        if let Some(last) = share.last {
            self.furthest = Some(last);
            self.history.note(last, now);
        }
        let is_full = share.count >= request.slots as usize;
        let was_full = std::mem::replace(&mut self.was_full, is_full);
        match self.from_start {
            _ if is_full => {
                // one full claim may be a trickle; a cursor would cost another scan when the next claim finds nothing
                self.cursor = share.last.filter(|_| was_full || self.from_start == Cost::Expensive);
                Next::Continue
            }
            _ if is_from_start => self.reached_the_end(share.count, took),
            Cost::Cheap => {
                // there may be more dead rows before the cursor by now
                self.cursor = None;
                Next::Continue
            }
            Cost::Suspect => self.compare(took),
            Cost::Expensive => {
                // otherwise it would pass over all rows that died since
                self.cursor = self.cursor.map(|cursor| self.history.follow(cursor));
                Next::BackOff
            }
        }
    }

    fn rescanned(&mut self, count: usize, took: Duration, now: Instant) {
        (self.rescanned_at, self.rescan_took) = (now, took);
        if count < JOBS_THAT_EXPLAIN && took <= EXPENSIVE {
            if self.from_start == Cost::Expensive {
                self.from_start = Cost::Cheap;
            }
            if self.background == Background::Unavailable {
                self.background = Background::Idle;
            }
        }
    }

    /// Where there were jobs there may be more, and urgent jobs are likely to come again.
    fn claimed_before_cursor(&mut self, share: Share) {
        self.background = Background::Idle;
        self.rescan_took = Duration::ZERO;
        self.cursor = self.cursor.map(|cursor| {
            share
                .last
                .filter(|last| last.priority < cursor.priority)
                .unwrap_or(cursor)
        });
    }

    /// A claim from the start of the queue got fewer jobs than requested.
    fn reached_the_end(&mut self, count: usize, took: Duration) -> Next {
        self.is_exhausted = true;
        let is_explained =
            took <= EXPENSIVE.max(EXPENSIVE_PER_JOB * count as u32) || (self.is_serial && count >= JOBS_THAT_EXPLAIN);
        if self.from_start != Cost::Expensive {
            let is_suspect = !is_explained && self.furthest.is_some();
            self.from_start = if is_suspect { Cost::Suspect } else { Cost::Cheap };
        }
        self.cursor = self.furthest.filter(|_| self.from_start != Cost::Cheap);
        match self.from_start {
            Cost::Suspect => Next::Compare,
            _ => Next::Rest,
        }
    }

    /// Compare the suspect scan from the start with one from the cursor. If both are slow, the machine is.
    fn compare(&mut self, took: Duration) -> Next {
        if self.rescan_took > EXPENSIVE_FACTOR * took {
            self.from_start = Cost::Expensive;
        } else {
            self.from_start = Cost::Cheap;
            self.cursor = None;
        }
        Next::Compared
    }

    /// Whether jobs before the cursor are left to background scans.
    fn scans_in_background(&self) -> bool {
        self.from_start == Cost::Expensive && self.background != Background::Unavailable && self.cursor.is_some()
    }

    fn rescan_at(&self) -> Instant {
        let pause = if self.is_rung { RUNG_RESCAN_PAUSE } else { RESCAN_PAUSE };
        self.rescanned_at + RESCAN.max(self.rescan_took * pause)
    }

    /// When the next background scan is due, if there is to be one.
    pub fn next_background(&self) -> Option<Instant> {
        (self.scans_in_background() && self.background == Background::Idle).then(|| self.rescan_at())
    }

    /// A background scan has started.
    pub fn background_started(&mut self) {
        self.background = Background::Running;
    }

    /// A background scan ended after this time, with its result, or `None` if it could not be run.
    pub fn background_ended(&mut self, found: Option<Found>, took: Duration, now: Instant) -> AfterBackground {
        self.is_rung = false;
        (self.rescanned_at, self.rescan_took) = (now, took);
        let Some(found) = found else {
            self.background = Background::Unavailable;
            return AfterBackground::Nothing;
        };
        self.background = Background::Idle;
        if found.count > 0 {
            // jobs after the cursor are found from there
            if self.cursor.is_some() && found.first <= self.cursor {
                self.background = Background::Found(found);
            }
            AfterBackground::Claim
        } else if took > EXPENSIVE {
            self.is_exhausted = true;
            AfterBackground::Nothing
        } else {
            // the dead rows were removed: the next claim starts at the start again
            self.from_start = Cost::Cheap;
            self.cursor = None;
            AfterBackground::StartOver
        }
    }
}

/// The position of the last claimed job some time ago.
#[derive(Debug, Default)]
struct CursorHistory {
    noted: Option<(Instant, Position)>,
    before: Option<Position>,
}

impl CursorHistory {
    /// A job was claimed at this position.
    fn note(&mut self, position: Position, now: Instant) {
        if self.noted.is_none_or(|(noted_at, _)| now - noted_at >= CURSOR_LAG) {
            self.before = self.noted.map(|(_, position)| position);
            self.noted = Some((now, position));
        }
    }

    /// The cursor, advanced to where jobs were claimed some time ago. Only within its priority: less urgent jobs come
    /// after the last job anyway, however old they are.
    fn follow(&self, cursor: Position) -> Position {
        match self.before {
            Some(position) if position.priority == cursor.priority => cursor.max(position),
            _ => cursor,
        }
    }
}

#[cfg(test)]
mod tests;
