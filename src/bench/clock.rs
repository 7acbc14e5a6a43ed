//! One clock for all processes of a benchmark: the monotonic clock of the machine. An `Instant` cannot be sent to
//! another process.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since an arbitrary time that is the same for every process until the next reboot.
pub fn now() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Seconds since `start`.
pub fn seconds_since(start: i64) -> f64 {
    (now() - start) as f64 / 1e9
}
