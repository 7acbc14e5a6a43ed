//! Where a lane was a while ago.

use std::time::{Duration, Instant};

/// How long ago, at least. Jobs are committed in another order than they get their ids: what was claimed just now says nothing about those
/// with a lower id.
const BEHIND: Duration = Duration::from_secs(1);

/// The last job that was claimed, noted once in a while.
#[derive(Debug, Default)]
pub struct Trail {
    noted: Option<(Instant, (i32, i64))>,
    before: Option<(i32, i64)>,
}

impl Trail {
    /// A job was claimed at this place.
    pub fn note(&mut self, place: (i32, i64), now: Instant) {
        if self.noted.is_none_or(|(noted_at, _)| now - noted_at >= BEHIND) {
            self.before = self.noted.map(|(_, place)| place);
            self.noted = Some((now, place));
        }
    }

    /// The cursor, moved on along this trail. Within its priority only: what is less urgent than the last job lies behind that one,
    /// however old it is.
    pub fn follow(&self, cursor: (i32, i64)) -> (i32, i64) {
        match self.before {
            Some(place) if place.0 == cursor.0 => cursor.max(place),
            _ => cursor,
        }
    }
}
