//! Resources that the worker itself is short of: open files, memory, processes, connections, disk space.
//!
//! A job that runs into such a shortage is given back, and the attempt is not counted. The worker claims fewer jobs
//! until the shortage is over, logs it once, and is not ready meanwhile (`/readyz`).

use std::error::Error as StdError;
use std::io;
use std::net::{Ipv6Addr, UdpSocket};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::error::Error;

/// The first and the longest pause after a shortage, during which nothing is claimed.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How often the number of jobs that may run grows by a quarter while there is no shortage.
const GROW_EVERY: Duration = Duration::from_secs(1);

/// The resource that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// Open files, of this process or of the machine.
    Files,
    /// Memory.
    Memory,
    /// Processes or threads.
    Processes,
    /// Connections to the database: the pool is exhausted, or the server accepts no more.
    Connections,
    /// Disk space for working directories.
    Disk,
    /// Local ports for connections to one server.
    Ports,
    /// A history partition, or the database rejects outcomes for another reason that is not the job's.
    History,
}

impl Shortage {
    /// A description, and what to do.
    pub fn words(self) -> &'static str {
        match self {
            Shortage::Files => {
                "too many open files; raise the limit (ulimit -n, LimitNOFILE=), or run fewer jobs at once"
            }
            Shortage::Memory => "not enough memory; add some, or run fewer jobs at once",
            Shortage::Processes => {
                "too many processes; raise the limit (ulimit -u, TasksMax=), or run fewer jobs at once"
            }
            Shortage::Connections => {
                "no free connection to the database; raise pool_size or max_connections, or run fewer jobs at once"
            }
            Shortage::Ports => "no free local port; widen net.ipv4.ip_local_port_range, or run fewer jobs at once",
            Shortage::Disk => "no space for working directories; free some, or set another workdir",
            Shortage::History => "the database does not accept completions; see bugle doctor",
        }
    }

    /// The shortage that the operating system reports somewhere in the causes of an error.
    pub fn in_causes(error: &(dyn StdError + 'static)) -> Option<Shortage> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            let system = error.downcast_ref::<io::Error>();
            if let Some(shortage) = system.and_then(Shortage::of_process) {
                return Some(shortage);
            }
            // the source of such an error is that of the one it contains
            cause = match system.and_then(io::Error::get_ref) {
                Some(contained) => Some(contained),
                None => error.source(),
            };
        }
        None
    }

    fn of_process(error: &io::Error) -> Option<Shortage> {
        match Errno::from_io_error(error)? {
            Errno::MFILE | Errno::NFILE => Some(Shortage::Files),
            Errno::NOMEM => Some(Shortage::Memory),
            Errno::ADDRNOTAVAIL if has_ipv6() => Some(Shortage::Ports),
            _ => None,
        }
    }

    /// Why a process could not be started, or its files could not be written.
    pub fn at_start(error: &io::Error) -> Option<Shortage> {
        match error.kind() {
            io::ErrorKind::WouldBlock => Some(Shortage::Processes),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some(Shortage::Disk),
            io::ErrorKind::OutOfMemory => Some(Shortage::Memory),
            _ => Shortage::of_process(error),
        }
    }

    /// Why no connection to the database could be opened.
    pub fn of_connection(error: &Error) -> Option<Shortage> {
        match error.sqlstate() {
            Some("53300") => Some(Shortage::Connections),
            _ => Shortage::in_causes(error),
        }
    }
}

/// Without IPv6, the system also reports "no address" for each connection to an address of it.
fn has_ipv6() -> bool {
    UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
}

/// The limit of running jobs during a shortage.
#[derive(Default)]
pub struct Throttle(Mutex<Option<Limit>>);

struct Limit {
    shortage: Shortage,
    /// How many jobs may run at once.
    most: usize,
    paused_until: Instant,
    pause: Duration,
    grows_at: Instant,
}

impl Throttle {
    /// A job met a shortage while this number of jobs were running. True if there was no shortage before.
    pub fn hit(&self, shortage: Shortage, running: usize, now: Instant) -> bool {
        let mut limit = self.0.lock().unwrap();
        let Some(known) = limit.as_mut() else {
            *limit = Some(Limit {
                shortage,
                most: (running / 2).max(1),
                paused_until: now + FIRST_PAUSE,
                pause: FIRST_PAUSE,
                grows_at: now + FIRST_PAUSE + GROW_EVERY,
            });
            return true;
        };
        // failures of jobs that were started before the pause add no information
        if now >= known.paused_until {
            known.most = (known.most.min(running) / 2).max(1);
            known.pause = (known.pause * 2).min(LONGEST_PAUSE);
            known.paused_until = now + known.pause;
        }
        known.shortage = shortage;
        known.grows_at = known.paused_until.max(now) + GROW_EVERY;
        false
    }

    /// How many of these slots may be used now; `None` if there is no limit.
    pub fn most(&self, slots: usize, now: Instant) -> Option<usize> {
        let mut limit = self.0.lock().unwrap();
        let known = limit.as_mut()?;
        while now >= known.grows_at {
            known.most += known.most / 4 + 1;
            known.grows_at += GROW_EVERY;
            known.pause = FIRST_PAUSE;
            if known.most >= slots {
                tracing::info!(
                    event = "shortage_over",
                    "the shortage is over; all slots are in use again"
                );
                *limit = None;
                return None;
            }
        }
        Some(if now < known.paused_until { 0 } else { known.most })
    }

    /// When the limit may change.
    pub fn changes_at(&self, now: Instant) -> Option<Instant> {
        let limit = self.0.lock().unwrap();
        limit.as_ref().map(|limit| match now < limit.paused_until {
            true => limit.paused_until,
            false => limit.grows_at,
        })
    }

    /// A description of the shortage.
    pub fn words(&self) -> Option<&'static str> {
        self.0.lock().unwrap().as_ref().map(|limit| limit.shortage.words())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_is_short_of_something_claims_less_until_it_goes_well() {
        let throttle = Throttle::default();
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        assert_eq!(throttle.most(100, start), None);

        assert!(throttle.hit(Shortage::Files, 80, start), "the first is reported");
        assert!(!throttle.hit(Shortage::Files, 79, after(10)), "the others are not");
        assert_eq!(throttle.most(100, after(10)), Some(0), "a pause");
        assert_eq!(throttle.most(100, after(60)), Some(40));
        assert!(throttle.words().unwrap().contains("open files"));

        assert!(!throttle.hit(Shortage::Files, 40, after(60)));
        assert_eq!(throttle.most(100, after(60)), Some(0));
        assert_eq!(throttle.changes_at(after(60)), Some(after(160)), "the pauses grow");
        assert_eq!(throttle.most(100, after(170)), Some(20), "half of it");

        assert_eq!(throttle.most(100, after(1_200)), Some(26), "it grows again");
        assert_eq!(throttle.most(100, after(60_000)), None);
        assert_eq!(throttle.words(), None);
    }

    #[test]
    fn one_job_may_always_run() {
        let throttle = Throttle::default();
        let mut now = Instant::now();
        for _ in 0..20 {
            throttle.hit(Shortage::Memory, 1, now);
            now = throttle.changes_at(now).unwrap();
            assert_eq!(throttle.most(10, now), Some(1));
        }
    }

    #[test]
    fn a_shortage_is_found_in_the_causes_of_an_error() {
        let files = io::Error::from_raw_os_error(Errno::MFILE.raw_os_error());
        assert_eq!(Shortage::in_causes(&files), Some(Shortage::Files));
        let contained = io::Error::other(io::Error::other(files));
        assert_eq!(Shortage::in_causes(&contained), Some(Shortage::Files));
        let ports = io::Error::from_raw_os_error(Errno::ADDRNOTAVAIL.raw_os_error());
        assert_eq!(Shortage::in_causes(&ports), has_ipv6().then_some(Shortage::Ports));
        assert_eq!(
            Shortage::at_start(&io::Error::from_raw_os_error(Errno::AGAIN.raw_os_error())),
            Some(Shortage::Processes)
        );
        assert_eq!(
            Shortage::at_start(&io::Error::new(io::ErrorKind::StorageFull, "cannot make it")),
            Some(Shortage::Disk)
        );
        assert_eq!(
            Shortage::in_causes(&io::Error::from(io::ErrorKind::ConnectionRefused)),
            None
        );
    }
}
