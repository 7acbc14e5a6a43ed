//! Where in its queue a claim starts to scan. No I/O here; time is an argument.
//!
//! A claim normally starts at the start of the queue. Two things can make that expensive:
//!
//! - Under load, the jobs this worker claimed a moment ago still lie there. So after two full claims in a row the next
//!   one starts behind the last job claimed, the *cursor*, and from time to time at the start again, for urgent jobs
//!   and those that were committed late.
//! - While an old snapshot is held open anywhere, dead rows cannot be cleaned up, and a scan from the start walks over
//!   all of them. A scan that took longer than the jobs it found explain is *suspect*; the next one starts at the
//!   cursor, and if it is much faster the start of the queue is *expensive*. From then on claims start at the cursor,
//!   also the last one before the worker sleeps, and what lies before the cursor is looked for by scans in the
//!   background, on another connection.

use std::time::{Duration, Instant};

use crate::db::calls::{Found, Position, QueueRequest, Share};

/// How often at most a scan with a cursor starts at the start of the queue again.
const RESCAN: Duration = Duration::from_millis(50);
/// Scans from the start pause for this many times their own duration: with dead rows they are long.
const RESCAN_PAUSE: u32 = 20;
/// The same for a queue whose bell was rung when nothing was found behind the cursor: what rang probably lies before
/// it.
const RUNG_RESCAN_PAUSE: u32 = 2;
/// No scan from the start is suspect that takes less than this,
const EXPENSIVE: Duration = Duration::from_millis(10);
/// or less than this for each job it found, which is more than any job takes where claims are not serialized,
const EXPENSIVE_PER_JOB: Duration = Duration::from_micros(200);
/// or, where they are, if it found at least this many.
const JOBS_THAT_EXPLAIN: usize = 10;
/// A suspect scan that took more than this many times as long as the one from the cursor was expensive.
const EXPENSIVE_FACTOR: u32 = 3;
/// How old a position has to be before the cursor follows it. Jobs are committed in another order than they get their
/// ids: a job that was claimed just now says nothing about those with a lower id.
const CURSOR_LAG: Duration = Duration::from_secs(1);

/// Where one queue is scanned.
#[derive(Debug)]
pub struct Scan {
    /// The job behind which the next claim starts. None: at the start of the queue.
    cursor: Option<Position>,
    /// The last job it ever claimed: where a cursor can be set again.
    furthest: Option<Position>,
    history: CursorHistory,
    from_start: Cost,
    background: Background,
    /// Whether the last jobs came from a queue where claims are serialized, because of limits or keys.
    is_serial: bool,
    /// Whether the bell was rung and nothing has been found since.
    is_rung: bool,
    /// Whether a scan from the start found less than it asked for, and none since found more.
    is_exhausted: bool,
    /// Whether the last claim got all it asked for.
    was_full: bool,
    rescanned_at: Instant,
    rescan_took: Duration,
}

/// What a scan from the start of the queue costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cost {
    Cheap,
    /// The last one took too long for what it found; the next one, from the cursor, will tell why.
    Suspect,
    Expensive,
}

/// Scans before the cursor, on another connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Background {
    Idle,
    Running,
    /// These jobs are to be claimed next.
    Found(Found),
    /// The claim for them is under way.
    Claiming,
    /// They cannot be made, because limits or keys decide what may start, or because they failed.
    Unavailable,
}

/// What the lane does after a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Poll at once: there is probably more.
    Continue,
    /// Poll at once from the cursor: the end of the queue was reached, but it took too long.
    Compare,
    /// Poll soon: the comparison was made.
    Compared,
    /// Poll later and later: nothing more lies behind the cursor.
    BackOff,
    /// Rest: the end of the queue was reached.
    Rest,
}

/// What the lane does after a scan in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterBackground {
    /// Poll at once: it found jobs.
    Claim,
    /// Poll at once: the start of the queue is cheap again.
    StartOver,
    /// Go on as before.
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

    /// Forget what depends on the session.
    pub fn reset(&mut self) {
        self.cursor = None;
        if let Background::Found(_) | Background::Claiming = self.background {
            self.background = Background::Idle;
        }
    }

    /// The bell was rung.
    pub fn rung(&mut self) {
        self.is_rung = true;
    }

    pub fn is_rung(&self) -> bool {
        self.is_rung
    }

    pub fn is_serial(&self) -> bool {
        self.is_serial
    }

    /// Whether the last scan from the start found nothing more to take.
    pub fn is_exhausted(&self) -> bool {
        self.is_exhausted
    }

    /// Whether a worker that sleeps now would miss nothing.
    pub fn may_sleep(&self) -> bool {
        match self.from_start {
            Cost::Cheap => true,
            Cost::Suspect => false,
            Cost::Expensive => self.cursor.is_none() || self.background != Background::Unavailable,
        }
    }

    /// Where the last scan before sleep starts.
    pub fn cursor_for_sleep(&self) -> Option<Position> {
        self.cursor.filter(|_| self.scans_in_background())
    }

    /// How many jobs the next claim asks for, at most `most`, and behind which position.
    pub fn begin(&mut self, most: usize, now: Instant) -> (usize, Option<Position>) {
        if self.cursor.is_some() && !self.scans_in_background() && now >= self.rescan_at() {
            self.cursor = None;
        }
        match self.background {
            Background::Found(Found { count, first }) => {
                self.background = Background::Claiming;
                // no more than were found: behind the last of them lie dead rows
                (most.min(count), Some(first.just_before()))
            }
            _ => (most, self.cursor),
        }
    }

    /// A claim was answered after this time.
    pub fn claimed(&mut self, request: &QueueRequest, share: Share, took: Duration, now: Instant) -> Next {
        let is_from_start = request.after_id.is_none();
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
                // one full claim is a trickle's; a cursor for it would cost another scan when the next one finds
                // nothing
                self.cursor = share.last.filter(|_| was_full || self.from_start == Cost::Expensive);
                Next::Continue
            }
            _ if is_from_start => self.reached_the_end(share.count, took),
            Cost::Cheap => {
                // what lies before the cursor may have grown meanwhile
                self.cursor = None;
                Next::Continue
            }
            Cost::Suspect => self.compare(took),
            Cost::Expensive => {
                // else it would walk over all that has died since
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

    /// Where there were some there may be more, and what was urgent will be again.
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

    /// A claim from the start of the queue got less than it asked for.
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

    /// The suspect scan from the start, and now one from the cursor. Where both take long it is the machine.
    fn compare(&mut self, took: Duration) -> Next {
        if self.rescan_took > EXPENSIVE_FACTOR * took {
            self.from_start = Cost::Expensive;
        } else {
            self.from_start = Cost::Cheap;
            self.cursor = None;
        }
        Next::Compared
    }

    /// Whether jobs before the cursor are left to scans in the background.
    fn scans_in_background(&self) -> bool {
        self.from_start == Cost::Expensive && self.background != Background::Unavailable && self.cursor.is_some()
    }

    fn rescan_at(&self) -> Instant {
        let pause = if self.is_rung { RUNG_RESCAN_PAUSE } else { RESCAN_PAUSE };
        self.rescanned_at + RESCAN.max(self.rescan_took * pause)
    }

    /// When the next scan in the background is due, if there is to be one.
    pub fn next_background(&self) -> Option<Instant> {
        (self.scans_in_background() && self.background == Background::Idle).then(|| self.rescan_at())
    }

    /// A scan in the background has begun.
    pub fn background_started(&mut self) {
        self.background = Background::Running;
    }

    /// A scan in the background ended after this time: with what it found, or with nothing because it could not be
    /// made.
    pub fn background_ended(&mut self, found: Option<Found>, took: Duration, now: Instant) -> AfterBackground {
        self.is_rung = false;
        (self.rescanned_at, self.rescan_took) = (now, took);
        let Some(found) = found else {
            self.background = Background::Unavailable;
            return AfterBackground::Nothing;
        };
        self.background = Background::Idle;
        if found.count > 0 {
            // what lies behind the cursor is found from there
            if self.cursor.is_some_and(|cursor| found.first <= cursor) {
                self.background = Background::Found(found);
            }
            AfterBackground::Claim
        } else if took > EXPENSIVE {
            self.is_exhausted = true;
            AfterBackground::Nothing
        } else {
            // the dead rows are gone: the next claim is an ordinary one
            self.from_start = Cost::Cheap;
            self.cursor = None;
            AfterBackground::StartOver
        }
    }
}

/// Where the last claimed job was a while ago.
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

    /// The cursor, moved on to where jobs were claimed a while ago. Within its priority only: what is less urgent than
    /// the last job lies behind that one, however old it is.
    fn follow(&self, cursor: Position) -> Position {
        match self.before {
            Some(position) if position.priority == cursor.priority => cursor.max(position),
            _ => cursor,
        }
    }
}

#[cfg(test)]
mod tests;
