//! The decisions, without processes and without a database.

use fastrand::Rng;

use super::*;
use crate::builtin::testing::TestJob;
use crate::execute::context::{Context, Inner};

/// A pool, and what is known of every job that it was given.
struct Scene {
    pool: Pool,
    template: Inner,
    answers: HashMap<JobId, oneshot::Receiver<Answer>>,
    next: JobId,
}

impl Scene {
    fn new(hosts: usize) -> Scene {
        let job = TestJob::new("null");
        Scene {
            pool: Pool::new(hosts),
            template: Inner::clone(&job.context.inner),
            answers: HashMap::new(),
            next: 1,
        }
    }

    fn join(&mut self, host: usize, commands: &[(&str, Option<u32>)], concurrency: usize) -> ProcessId {
        let hello = Hello {
            commands: commands
                .iter()
                .map(|(name, most)| ((*name).to_owned(), *most))
                .collect(),
            concurrency: concurrency as u32,
            language: None,
            sdk: None,
        };
        let out = Outbox::open(tokio::io::sink());
        self.pool.join(host, hello, concurrency, None, out, Arc::default())
    }

    fn submit(&mut self, command: &str) -> JobId {
        let id = self.next;
        self.next += 1;
        self.submit_again(command, id);
        id
    }

    fn submit_again(&mut self, command: &str, id: JobId) {
        let mut inner = self.template.clone();
        inner.job.held = HeldJob { id, claim: 1 };
        command.clone_into(&mut inner.job.command);
        inner.attempt = Arc::default();
        let (answer, receiver) = oneshot::channel();
        self.answers.insert(id, receiver);
        let number = self.pool.number();
        let is_first = self.pool.submit(Waiting {
            number,
            command: command.to_owned(),
            talk: Talk::new(Context::new(inner)),
            traceparent: None,
            answer,
        });
        if is_first {
            self.pool.gather(command);
        }
    }

    fn end(&mut self, process: ProcessId, id: JobId) -> bool {
        self.pool
            .ended(process, HeldJob { id, claim: 1 }, Outcome::Complete(None))
    }

    /// The call of a job has failed, and so has the job.
    fn fail_with_its_call(&mut self, process: ProcessId, id: JobId) {
        let mut failure = Failure::new("the call failed");
        failure.alone = true;
        assert!(
            self.pool
                .ended(process, HeldJob { id, claim: 1 }, Outcome::Fail(failure))
        );
    }

    /// The jobs that a process has, in order.
    fn jobs_of(&self, process: ProcessId) -> Vec<JobId> {
        let of = self.pool.processes.get(&process);
        let mut jobs: Vec<JobId> = of
            .into_iter()
            .flat_map(|of| of.flights.keys().map(|held| held.id))
            .collect();
        jobs.sort_unstable();
        jobs
    }

    /// How a job was answered, if it was.
    fn code(&mut self, id: JobId) -> Option<String> {
        Some(match self.answers.get_mut(&id)?.try_recv().ok()? {
            Answer::Outcome(Outcome::Fail(failure)) => failure.code.unwrap_or_default(),
            Answer::Outcome(_) => "done".into(),
            Answer::GivenBack => "given back".into(),
        })
    }
}

#[tokio::test]
async fn the_process_with_the_fewest_jobs_gets_the_next_and_those_without_room_wait() {
    let mut scene = Scene::new(1);
    let (one, two) = (scene.join(0, &[("a", None)], 2), scene.join(0, &[("a", None)], 2));

    let jobs: Vec<JobId> = (0..6).map(|_| scene.submit("a")).collect();

    assert_eq!((scene.jobs_of(one).len(), scene.jobs_of(two).len()), (2, 2));
    assert_eq!(scene.pool.waiting_jobs, 2);
    let first = scene.jobs_of(two)[0];
    assert!(scene.end(two, first));
    assert!(scene.jobs_of(two).contains(&jobs[4]), "the one that waited first");
    assert!(!scene.end(two, first), "it is answered once");
}

#[tokio::test]
async fn two_hosts_share_a_command_until_one_of_them_has_another() {
    let mut scene = Scene::new(2);
    let one = scene.join(0, &[("a", None), ("b", None)], 2);
    let two = scene.join(1, &[("a", None)], 2);

    for _ in 0..4 {
        scene.submit("a");
    }
    assert_eq!((scene.jobs_of(one).len(), scene.jobs_of(two).len()), (2, 2));
    scene.pool.retire(one);
    assert_eq!(scene.pool.commands(), ["a", "b"], "its successor will have the same");
    let three = scene.join(0, &[("c", None)], 2);
    assert_eq!(scene.pool.commands(), ["a", "c"]);
    let late = scene.submit("b");
    assert_eq!(scene.code(late).as_deref(), Some("given back"));
    assert!(scene.jobs_of(three).is_empty());
}

#[tokio::test]
async fn a_suspect_runs_alone_and_three_deaths_end_it() {
    let mut scene = Scene::new(1);
    let first = scene.join(0, &[("a", None)], 4);
    let guilty = scene.submit("a");
    scene.pool.leave(first, None, "was killed by signal 9");
    assert_eq!(scene.code(guilty).as_deref(), Some("host_lost"));

    let second = scene.join(0, &[("a", None)], 4);
    scene.submit_again("a", guilty);
    let others = [scene.submit("a"), scene.submit("a")];
    assert_eq!(scene.jobs_of(second), [guilty], "the others wait");
    scene.pool.leave(second, None, "was killed by signal 9");
    assert_eq!(scene.code(guilty).as_deref(), Some("host_lost"));

    let third = scene.join(0, &[("a", None)], 4);
    assert_eq!(scene.jobs_of(third), others, "those that have waited");
    scene.submit_again("a", guilty);
    let late = scene.submit("a");
    assert_eq!(scene.jobs_of(third), others, "it is reserved");
    assert!(scene.end(third, others[0]) && scene.end(third, others[1]));
    assert_eq!(scene.jobs_of(third), [guilty]);
    scene.pool.leave(third, None, "was killed by signal 9");
    assert_eq!(scene.code(guilty).as_deref(), Some("crash_loop"));

    let fourth = scene.join(0, &[("a", None)], 4);
    assert_eq!(scene.jobs_of(fourth), [late]);
    scene.submit_again("a", guilty);
    assert_eq!(
        scene.jobs_of(fourth).len(),
        2,
        "it was restarted by an operator, and is not a suspect any more"
    );
}

#[tokio::test]
async fn after_a_call_that_failed_each_of_its_jobs_has_a_call_of_its_own_until_it_has_another_outcome() {
    let mut scene = Scene::new(1);
    let process = scene.join(0, &[("index", Some(10))], 1);
    let first = scene.submit("index");
    let jobs: Vec<JobId> = (0..3).map(|_| scene.submit("index")).collect();
    scene.end(process, first);
    assert_eq!(scene.jobs_of(process), jobs, "one call");

    for job in &jobs {
        scene.fail_with_its_call(process, *job);
    }
    for job in &jobs {
        scene.submit_again("index", *job);
    }
    let others: Vec<JobId> = (0..2).map(|_| scene.submit("index")).collect();

    assert_eq!(scene.jobs_of(process), jobs[..1]);
    scene.fail_with_its_call(process, jobs[0]);
    assert_eq!(scene.jobs_of(process), jobs[1..2]);
    scene.end(process, jobs[1]);
    assert_eq!(scene.jobs_of(process), jobs[2..]);
    scene.submit_again("index", jobs[1]);
    scene.submit_again("index", jobs[0]);
    scene.end(process, jobs[2]);
    let mut together = others;
    together.insert(0, jobs[1]);
    assert_eq!(
        scene.jobs_of(process),
        together,
        "not those that were answered otherwise"
    );
    together.iter().for_each(|job| _ = scene.end(process, *job));
    assert_eq!(scene.jobs_of(process), jobs[..1], "it failed its call again");
}

#[tokio::test]
async fn the_jobs_of_a_silent_process_are_given_back() {
    let mut scene = Scene::new(1);
    let process = scene.join(0, &[("a", None)], 4);
    let jobs: Vec<JobId> = (0..3).map(|_| scene.submit("a")).collect();
    let held = HeldJob { id: jobs[0], claim: 1 };

    assert!(scene.pool.cancel(held, 0, Some(Stop::Timeout)));
    scene.pool.give_up(held, 0);

    assert_eq!(scene.pool.order(process), Order::Kill(Kill::Silent));
    scene
        .pool
        .leave(process, Some(&Kill::Silent), "was killed: it did not answer ping");
    let codes: Vec<_> = jobs.iter().map(|job| scene.code(*job)).collect();
    let back = Some("given back".to_owned());
    assert_eq!(codes, [None, back.clone(), back], "nobody waits for the first any more");
}

#[tokio::test]
async fn whatever_comes_no_process_has_more_calls_than_it_may_and_no_job_is_anywhere_twice() {
    for seed in 0..200 {
        let mut random = Rng::with_seed(seed);
        let mut scene = Scene::new(2);
        let mut processes: Vec<ProcessId> = Vec::new();
        let mut live: HashMap<JobId, &str> = HashMap::new();
        for _ in 0..120 {
            match random.usize(..10) {
                0 if processes.len() < 4 => {
                    let host = random.usize(..2);
                    let commands: &[(&str, Option<u32>)] = match host {
                        0 => &[("a", None), ("many", Some(3))],
                        _ => &[("a", None), ("b", None)],
                    };
                    processes.push(scene.join(host, commands, random.usize(1..4)));
                }
                1 if !processes.is_empty() => {
                    let process = processes.swap_remove(random.usize(..processes.len()));
                    let kill = random.bool().then_some(Kill::Silent);
                    scene.pool.leave(process, kill.as_ref(), "it ended");
                }
                2 if !processes.is_empty() && random.u8(..4) == 0 => {
                    scene.pool.retire(processes[random.usize(..processes.len())]);
                }
                3..7 => {
                    let command = ["a", "b", "many"][random.usize(..3)];
                    let id = scene.submit(command);
                    live.insert(id, command);
                }
                _ => {
                    let busy: Vec<(ProcessId, JobId)> = processes
                        .iter()
                        .flat_map(|process| scene.jobs_of(*process).into_iter().map(|job| (*process, job)))
                        .collect();
                    if let Some((process, job)) = random.choice(busy) {
                        assert!(scene.end(process, job));
                    }
                }
            }
            let ended: Vec<JobId> = live.keys().copied().filter(|job| scene.code(*job).is_some()).collect();
            for job in ended {
                let command = live.remove(&job).expect("it is there");
                if random.u8(..3) == 0 && scene.pool.suspects.contains_key(&job) {
                    scene.submit_again(command, job);
                    live.insert(job, command);
                }
            }
            let pool = &scene.pool;
            let mut places: HashMap<JobId, usize> = HashMap::new();
            for process in pool.processes.values() {
                assert!(process.calls.len() <= process.concurrency, "seed {seed}");
                assert_eq!(
                    process.calls.values().sum::<usize>(),
                    process.flights.len(),
                    "seed {seed}"
                );
                assert!(!process.suspect || process.calls.len() == 1, "seed {seed}");
                process
                    .flights
                    .keys()
                    .for_each(|held| *places.entry(held.id).or_default() += 1);
            }
            let waiting = pool.waiting.values().flatten().chain(&pool.waiting_suspects);
            waiting.for_each(|job| *places.entry(job.held().id).or_default() += 1);
            let count = pool.waiting.values().map(VecDeque::len).sum::<usize>();
            assert_eq!(count, pool.waiting_jobs, "seed {seed}");
            for job in live.keys() {
                if scene
                    .answers
                    .get_mut(job)
                    .is_some_and(|answer| answer.try_recv().is_err())
                {
                    assert_eq!(places.get(job), Some(&1), "seed {seed}: job {job}");
                }
            }
        }
    }
}

#[test]
fn a_process_that_does_not_start_is_started_again_later_and_later() {
    let mut restart = Restart::default();
    let delays: Vec<u64> = (0..9).map(|_| restart.after(Instant::now(), false).as_secs()).collect();
    assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60, 60]);

    let Some(long_ago) = Instant::now().checked_sub(SHORT_LIFE) else {
        return;
    };
    assert_eq!(restart.after(long_ago, true), Duration::ZERO);
    assert_eq!(restart.after(Instant::now(), true).as_secs(), 1, "it lived shortly");
    assert_eq!(restart.after(long_ago, false).as_secs(), 2, "it never said hello");
}
