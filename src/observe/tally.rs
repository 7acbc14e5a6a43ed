//! Counters by queue and command. Cheap enough to be always on: a lock and a few additions per job.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::db::calls::{BellReport, MinuteReport};

/// The upper bounds of the histogram buckets in seconds; the last bucket is open. The same as `bugle.bounds()`.
pub const BOUNDS: [f64; 20] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0,
    3600.0,
];

/// How an attempt ended, from the point of view of this worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    /// The executor completed the job.
    Completed,
    /// The executor failed or panicked.
    Failed,
    /// The executor did not end within its time limit.
    TimedOut,
    /// The job will run again later.
    Snoozed,
    /// The executor cancelled the job.
    Cancelled,
    /// The job waits for an answer or for other jobs.
    Waiting,
    /// The attempt was interrupted because the worker is stopping.
    GivenBack,
    /// The claim was lost: another worker has the job, or it was cancelled.
    Fenced,
}

impl Ending {
    /// All outcomes.
    pub const ALL: [Ending; 8] = [
        Ending::Completed,
        Ending::Failed,
        Ending::TimedOut,
        Ending::Snoozed,
        Ending::Cancelled,
        Ending::Waiting,
        Ending::GivenBack,
        Ending::Fenced,
    ];

    /// The value of the metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Ending::Completed => "completed",
            Ending::Failed => "failed",
            Ending::TimedOut => "timed_out",
            Ending::Snoozed => "snoozed",
            Ending::Cancelled => "cancelled",
            Ending::Waiting => "waiting",
            Ending::GivenBack => "given_back",
            Ending::Fenced => "fenced",
        }
    }
}

/// A histogram of durations.
#[derive(Debug, Clone, Default)]
pub struct Histogram {
    /// The number of durations in each bucket.
    pub counts: [u64; BOUNDS.len() + 1],
    /// The sum of all durations.
    pub seconds: f64,
}

impl Histogram {
    fn add(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        self.counts[BOUNDS.partition_point(|bound| *bound < seconds)] += 1;
        self.seconds += seconds;
    }
}

/// The counters of one queue and command.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Started attempts.
    pub started: u64,
    /// Finished attempts by outcome.
    pub ended: [u64; Ending::ALL.len()],
    /// Run times.
    pub run: Histogram,
    /// Wait times, from when the job was due.
    pub wait: Histogram,
    /// Counts that were not reported to the database yet.
    untold: Option<MinuteReport>,
}

impl Tally {
    /// Running attempts.
    pub fn running(&self) -> u64 {
        self.started - self.ended.iter().sum::<u64>()
    }
}

type Key = (String, String);

/// The tally of one queue and command.
#[derive(Default)]
struct Counted {
    queue: String,
    command: String,
    tally: Mutex<Tally>,
}

/// How an attempt of a step of a chain ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepEnding {
    /// The step is done.
    Done,
    /// The executor skipped it.
    Skipped,
    /// It failed, and is tried again in this worker.
    Retried,
    /// It failed, and the job with it.
    Failed,
}

impl StepEnding {
    /// All outcomes.
    pub const ALL: [StepEnding; 4] = [
        StepEnding::Done,
        StepEnding::Skipped,
        StepEnding::Retried,
        StepEnding::Failed,
    ];

    /// The value of the metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            StepEnding::Done => "done",
            StepEnding::Skipped => "skipped",
            StepEnding::Retried => "retried",
            StepEnding::Failed => "failed",
        }
    }
}

/// The counters of one step of chains.
#[derive(Debug, Clone, Default)]
pub struct StepTally {
    /// Attempts by outcome.
    pub ended: [u64; StepEnding::ALL.len()],
    /// Run times.
    pub run: Histogram,
}

/// All counters of a worker.
#[derive(Default)]
pub struct Tallies {
    /// By queue, then by command, so that a lookup needs no allocation.
    counted: Mutex<BTreeMap<String, BTreeMap<String, Arc<Counted>>>>,
    /// Steps of chains, by command.
    steps: Mutex<BTreeMap<String, StepTally>>,
    /// How far the database's clock is ahead of the local clock, in microseconds.
    ahead: AtomicI64,
    /// By queue: notifications, and jobs that only the safety poll found.
    bells: Mutex<BTreeMap<String, (i64, i64)>>,
    /// Durations of `bugle.claim` calls.
    pub claims: Mutex<Histogram>,
    /// Durations of completion calls.
    pub flushes: Mutex<Histogram>,
}

impl Tallies {
    /// Count the start of an attempt. The job was due at `due`, by the database's clock.
    pub fn start(&self, queue: &str, command: &str, due: SystemTime) -> Run {
        let counted = self.counted(queue, command);
        let wait = self.now().duration_since(due).unwrap_or_default();
        {
            let mut tally = counted.tally.lock().unwrap();
            tally.started += 1;
            tally.wait.add(wait);
        }
        Run {
            counted,
            wait,
            started: Instant::now(),
            ended: false,
        }
    }

    /// Show these counters from now on, even while they are 0: a counter that appears with its first event has no
    /// increase that could be seen.
    #[cfg(feature = "web")]
    pub fn expect(&self, queue: &str, command: &str) {
        self.counted(queue, command);
    }

    /// The same for the counters of a step.
    #[cfg(feature = "web")]
    pub fn expect_step(&self, command: &str) {
        self.steps.lock().unwrap().entry(command.to_owned()).or_default();
    }

    /// Count an attempt of a step.
    pub fn step(&self, command: &str, how: StepEnding, took: Duration) {
        let mut steps = self.steps.lock().unwrap();
        if !steps.contains_key(command) {
            steps.insert(command.to_owned(), StepTally::default());
        }
        if let Some(tally) = steps.get_mut(command) {
            tally.ended[how as usize] += 1;
            tally.run.add(took);
        }
    }

    /// A copy of the counters of steps.
    #[cfg(feature = "web")]
    pub fn steps(&self) -> Vec<(String, StepTally)> {
        let steps = self.steps.lock().unwrap();
        steps
            .iter()
            .map(|(step, tally)| (step.clone(), tally.clone()))
            .collect()
    }

    fn counted(&self, queue: &str, command: &str) -> Arc<Counted> {
        let mut all = self.counted.lock().unwrap();
        if let Some(counted) = all.get(queue).and_then(|of_queue| of_queue.get(command)) {
            return counted.clone();
        }
        let counted = Arc::new(Counted {
            queue: queue.to_owned(),
            command: command.to_owned(),
            tally: Mutex::default(),
        });
        let of_queue = all.entry(queue.to_owned()).or_default();
        of_queue.insert(command.to_owned(), counted.clone());
        counted
    }

    /// A copy of the counters, by queue and command.
    pub fn snapshot(&self) -> Vec<(Key, Tally)> {
        let all = self.counted.lock().unwrap();
        all.values()
            .flat_map(BTreeMap::values)
            .map(|c| ((c.queue.clone(), c.command.clone()), c.tally.lock().unwrap().clone()))
            .collect()
    }

    /// Counts that were not reported to the database yet.
    pub fn take_reports(&self) -> Vec<MinuteReport> {
        let all = self.counted.lock().unwrap();
        all.values()
            .flat_map(BTreeMap::values)
            .filter_map(|counted| counted.tally.lock().unwrap().untold.take())
            .collect()
    }

    /// Count notifications of a queue, and jobs for which none came.
    pub fn bell(&self, queue: &str, rings: i64, found_by_poll: i64) {
        let mut bells = self.bells.lock().unwrap();
        if !bells.contains_key(queue) {
            bells.insert(queue.to_owned(), (0, 0));
        }
        if let Some((all, found)) = bells.get_mut(queue) {
            *all += rings;
            *found += found_by_poll;
        }
    }

    /// Take the counts of the doorbell since the last time.
    pub fn take_bells(&self) -> Vec<BellReport> {
        let bells = std::mem::take(&mut *self.bells.lock().unwrap());
        (bells.into_iter())
            .map(|(queue, (rings, found_by_poll))| BellReport {
                queue,
                rings,
                found_by_poll,
            })
            .collect()
    }

    /// Put a report back that could not be delivered.
    pub fn put_back(&self, reports: Vec<MinuteReport>) {
        for report in reports {
            let counted = self.counted(&report.queue, &report.command);
            let mut tally = counted.tally.lock().unwrap();
            match &mut tally.untold {
                Some(untold) => untold.add(&report),
                none => *none = Some(report),
            }
        }
    }

    /// Record the current time of the database's clock.
    pub fn set_clock(&self, now: SystemTime) {
        let micros = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as i64;
        self.ahead
            .store(micros(now) - micros(SystemTime::now()), Ordering::Relaxed);
    }

    fn now(&self) -> SystemTime {
        let ahead = self.ahead.load(Ordering::Relaxed);
        let size = Duration::from_micros(ahead.unsigned_abs());
        match ahead < 0 {
            true => SystemTime::now() - size,
            false => SystemTime::now() + size,
        }
    }
}

/// A running attempt. If it is dropped without an outcome, it was aborted.
pub struct Run {
    counted: Arc<Counted>,
    wait: Duration,
    started: Instant,
    ended: bool,
}

impl Run {
    /// Record its outcome.
    pub fn end(mut self, how: Ending) {
        self.note(how);
    }

    fn note(&mut self, how: Ending) {
        self.ended = true;
        let took = self.started.elapsed();
        let counted = &self.counted;
        let mut tally = counted.tally.lock().unwrap();
        tally.ended[how as usize] += 1;
        tally.run.add(took);
        let report = tally
            .untold
            .get_or_insert_with(|| MinuteReport::of(&counted.queue, &counted.command, BOUNDS.len() + 1));
        match how {
            Ending::Completed => report.completed += 1,
            Ending::Failed | Ending::TimedOut => report.failed += 1,
            _ => report.others += 1,
        }
        let span = |time: Duration| BOUNDS.partition_point(|bound| *bound < time.as_secs_f64());
        report.run_seconds += took.as_secs_f64();
        report.wait_seconds += self.wait.as_secs_f64();
        report.run[span(took)] += 1;
        report.wait[span(self.wait)] += 1;
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.ended {
            self.note(Ending::GivenBack);
        }
    }
}

/// Record a duration.
pub fn time(histogram: &Mutex<Histogram>, took: Duration) {
    histogram.lock().unwrap().add(took);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_fall_into_the_span_that_ends_at_or_above_them() {
        let mut histogram = Histogram::default();
        for millis in [0, 1, 3, 4_000_000] {
            histogram.add(Duration::from_millis(millis));
        }

        assert_eq!(
            [histogram.counts[0], histogram.counts[2], histogram.counts[20]],
            [2, 1, 1]
        );
        assert_eq!(histogram.seconds, 4_000.004);
    }

    #[test]
    fn what_was_not_told_is_told_later_with_the_rest() {
        let tallies = Tallies::default();
        let due = SystemTime::now() - Duration::from_secs(4);
        tallies.start("mail", "send", due).end(Ending::Completed);

        let first = tallies.take_reports();
        tallies.start("mail", "send", due).end(Ending::Failed);
        drop(tallies.start("mail", "send", due));
        assert_eq!(tallies.snapshot()[0].1.running(), 0);
        tallies.put_back(first);
        let all = tallies.take_reports();

        assert_eq!((all[0].completed, all[0].failed, all[0].others), (1, 1, 1));
        assert_eq!(all[0].wait[11], 3, "between two and five seconds");
        assert!(tallies.take_reports().is_empty());
    }

    #[test]
    fn waits_are_measured_by_the_databases_clock() {
        let tallies = Tallies::default();
        let theirs = SystemTime::now() + Duration::from_secs(3600);
        tallies.set_clock(theirs);

        tallies
            .start("mail", "send", theirs - Duration::from_millis(1500))
            .end(Ending::Completed);

        assert_eq!(tallies.take_reports()[0].wait[10], 1, "between one and two seconds");
    }
}
