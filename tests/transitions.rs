//! Every state a job can be in, with everything that can be done to it: what must happen, or who must be told what.

mod common;

use bugle::{Code, State};
use common::{Database, execute, query_value, register};
use tokio_postgres::Client;

/// All that can be done to a job. The worker's verbs are said by the worker that claimed it last, under that claim,
/// unless they say otherwise.
#[derive(Debug, Clone, Copy)]
enum Verb {
    Claim,
    Complete,
    CompleteWithAStaleClaim,
    CompleteByAnotherWorker,
    Fail,
    FailNotRetryable,
    FailWithAStaleClaim,
    FailByAnotherWorker,
    Snooze,
    GiveBack,
    CancelHeld,
    Wait,
    Spawn,
    /// When its `run_at` has come.
    Promote,
    /// When its deadline has passed.
    Expire,
    /// When its `answer_by` has passed.
    ExpireAnswer,
    /// When its worker is gone.
    Rescue,
    Resolve,
    Reject,
    ResumeWith,
    ResolveWithAWrongToken,
    RejectWithAWrongToken,
    ResumeWithAWrongToken,
    Cancel,
    Pause,
    Resume,
    Restart,
    Remove,
    /// An operator's overrule, here to `ready`.
    SetState,
}

use Verb::*;

const VERBS: [Verb; 29] = [
    Claim,
    Complete,
    CompleteWithAStaleClaim,
    CompleteByAnotherWorker,
    Fail,
    FailNotRetryable,
    FailWithAStaleClaim,
    FailByAnotherWorker,
    Snooze,
    GiveBack,
    CancelHeld,
    Wait,
    Spawn,
    Promote,
    Expire,
    ExpireAnswer,
    Rescue,
    Resolve,
    Reject,
    ResumeWith,
    ResolveWithAWrongToken,
    RejectWithAWrongToken,
    ResumeWithAWrongToken,
    Cancel,
    Pause,
    Resume,
    Restart,
    Remove,
    SetState,
];

/// What a verb is answered with. Under all but `Becomes` the whole row stays as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    Becomes(State),
    /// It was said before, or the claim has ended otherwise.
    Repeated,
    /// The claim is not the current one, or another's.
    Fenced,
    /// A verb that looks for jobs itself does not find this one.
    PassedOver,
    /// It is so already: nothing to do, no error.
    SoAlready,
    /// There is no such job any more.
    Gone,
    Refused(Code),
}

/// The table. There is no default: a state or a verb that is missing here does not compile.
fn expected(verb: Verb, state: State) -> Answer {
    use Answer::*;
    use State::*;
    let ended_claim = |becomes: State| match state {
        Running => Becomes(becomes),
        Scheduled | Ready | Retrying | Paused | Waiting | Completed | Failed | Cancelled => Repeated,
    };
    let refused = Refused(Code::RefusedTransition);
    match verb {
        Claim => match state {
            Ready => Becomes(Running),
            Scheduled | Running | Retrying | Paused | Waiting | Completed | Failed | Cancelled => PassedOver,
        },
        Complete => ended_claim(Completed),
        Fail => ended_claim(Retrying),
        FailNotRetryable => ended_claim(Failed),
        Snooze => ended_claim(Scheduled),
        GiveBack => ended_claim(Ready),
        CancelHeld => ended_claim(Cancelled),
        Wait | Spawn => ended_claim(Waiting),
        CompleteWithAStaleClaim | CompleteByAnotherWorker | FailWithAStaleClaim | FailByAnotherWorker => match state {
            Scheduled | Ready | Running | Retrying | Paused | Waiting | Completed | Failed | Cancelled => Fenced,
        },
        Promote => match state {
            Scheduled | Retrying => Becomes(Ready),
            Ready | Running | Paused | Waiting | Completed | Failed | Cancelled => PassedOver,
        },
        Expire => match state {
            Scheduled | Ready | Retrying | Paused | Waiting => Becomes(Failed),
            Running | Completed | Failed | Cancelled => PassedOver,
        },
        ExpireAnswer => match state {
            Waiting => Becomes(Failed),
            Scheduled | Ready | Running | Retrying | Paused | Completed | Failed | Cancelled => PassedOver,
        },
        Rescue => match state {
            Running => Becomes(Ready),
            Scheduled | Ready | Retrying | Paused | Waiting | Completed | Failed | Cancelled => PassedOver,
        },
        Resolve => match state {
            Waiting => Becomes(Completed),
            Scheduled | Ready | Running | Retrying | Paused | Completed | Failed | Cancelled => refused,
        },
        Reject => match state {
            Waiting => Becomes(Failed),
            Scheduled | Ready | Running | Retrying | Paused | Completed | Failed | Cancelled => refused,
        },
        ResumeWith => match state {
            Waiting => Becomes(Ready),
            Scheduled | Ready | Running | Retrying | Paused | Completed | Failed | Cancelled => refused,
        },
        ResumeWithAWrongToken => match state {
            Waiting => Refused(Code::WrongToken),
            Scheduled | Ready | Running | Retrying | Paused | Completed | Failed | Cancelled => refused,
        },
        ResolveWithAWrongToken => match state {
            Waiting => Refused(Code::WrongToken),
            Scheduled | Ready | Running | Retrying | Paused | Completed | Failed | Cancelled => refused,
        },
        RejectWithAWrongToken => match state {
            Waiting => Refused(Code::WrongToken),
            Scheduled | Ready | Running | Retrying | Paused | Completed | Failed | Cancelled => refused,
        },
        Cancel => match state {
            Scheduled | Ready | Running | Retrying | Paused | Waiting => Becomes(Cancelled),
            Completed | Failed | Cancelled => refused,
        },
        Pause => match state {
            Scheduled | Ready | Retrying | Waiting => Becomes(Paused),
            Running | Paused | Completed | Failed | Cancelled => refused,
        },
        Resume => match state {
            Paused => Becomes(Ready),
            Scheduled | Ready | Running | Retrying | Waiting | Completed | Failed | Cancelled => refused,
        },
        Restart => match state {
            Failed | Cancelled => Becomes(Ready),
            Scheduled | Ready | Running | Retrying | Paused | Waiting | Completed => refused,
        },
        Remove => match state {
            Scheduled | Ready | Retrying | Paused | Waiting | Completed | Failed | Cancelled => Gone,
            Running => refused,
        },
        SetState => match state {
            Scheduled | Retrying | Paused | Waiting | Failed | Cancelled => Becomes(Ready),
            Ready => SoAlready,
            Running | Completed => refused,
        },
    }
}

#[tokio::test]
async fn every_verb_does_what_the_table_says_in_every_state_and_nothing_else() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let mut wrong = vec![];

    for state in State::ALL {
        for verb in VERBS {
            execute(&owner, "begin").await;
            let job = Job::in_state(&owner, state).await;
            job.make_due_for(verb).await;
            let (before, answer, after) = (job.row().await, job.apply(verb).await, job.row().await);
            execute(&owner, "rollback").await;

            let expected = expected(verb, state);
            if answer != expected {
                wrong.push(format!(
                    "{verb:?} of a {state:?} job: {answer:?} instead of {expected:?}"
                ));
            } else if !matches!(answer, Answer::Becomes(_) | Answer::Gone) && before != after {
                wrong.push(format!(
                    "{verb:?} of a {state:?} job changed it:\n  {before}\n  {after}"
                ));
            }
        }
    }

    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[tokio::test]
async fn a_call_about_a_job_that_does_not_exist_is_answered_with_gone() {
    let database = Database::new().await;
    let owner = database.owner().await;
    let job = Job::in_state(&owner, State::Running).await;
    let unknown = Job { id: -1, ..job };

    for verb in [
        Complete,
        Fail,
        FailNotRetryable,
        Snooze,
        GiveBack,
        CancelHeld,
        Wait,
        Spawn,
    ] {
        let rows = owner.query(&unknown.sql(verb), &[]).await.unwrap();
        assert_eq!(rows[0].get::<_, String>(0), "gone", "{verb:?}");
    }
    for verb in [
        Resolve, Reject, ResumeWith, Cancel, Pause, Resume, Restart, Remove, SetState,
    ] {
        let error = owner.query(&unknown.sql(verb), &[]).await.unwrap_err();
        assert_eq!(
            error.code().unwrap().code(),
            Code::UnknownJob.sqlstate(),
            "{verb:?}: {error}"
        );
    }
}

/// A job, the worker that claimed it under claim 2, and another one that did not. Ids and nonces as SQL spells them.
struct Job<'a> {
    client: &'a Client,
    id: i64,
    worker: String,
    other: String,
}

impl<'a> Job<'a> {
    /// Brought there by the engine's own verbs.
    async fn in_state(client: &'a Client, state: State) -> Job<'a> {
        let worker = register(client).await;
        let other = register(client).await;
        let id = query_value(client, "select bugle.enqueue('noop')").await;
        let job = Job {
            client,
            id,
            worker,
            other,
        };
        // given back once, so that there is a claim before the current one
        job.accept(Claim).await;
        job.run(&format!(
            "select bugle.give_back({}, array[({id}, 1)::bugle.held_job])",
            job.worker
        ))
        .await;
        job.accept(Claim).await;
        match state {
            State::Running => {}
            State::Ready => job.accept(GiveBack).await,
            State::Scheduled => job.accept(Snooze).await,
            State::Retrying => job.accept(Fail).await,
            State::Waiting => job.accept(Wait).await,
            State::Completed => job.accept(Complete).await,
            State::Failed => job.accept(FailNotRetryable).await,
            State::Cancelled => job.accept(CancelHeld).await,
            State::Paused => {
                job.accept(GiveBack).await;
                job.accept(Pause).await;
            }
        }
        assert_eq!(job.state().await, Some(state.as_str().to_owned()));
        job
    }

    /// The moment that the verbs of time wait for.
    async fn make_due_for(&self, verb: Verb) {
        let due = match verb {
            Promote => "update bugle.jobs_live set run_at = now() where id = ",
            Expire => "update bugle.jobs_live set deadline = now() where id = ",
            ExpireAnswer => "update bugle.jobs_live set answer_by = now() where id = ",
            Rescue => {
                return self
                    .run(&format!(
                        "update bugle.registrations set stopped_at = now() where ({}) = (id, nonce)",
                        self.worker
                    ))
                    .await;
            }
            _ => return,
        };
        self.run(&format!("{due}{}", self.id)).await;
    }

    /// Do it, and tell what came of it.
    async fn apply(&self, verb: Verb) -> Answer {
        let before = self.row().await;
        self.run("savepoint before_the_verb").await;
        let rows = match self.client.query(&self.sql(verb), &[]).await {
            Ok(rows) => rows,
            Err(error) => {
                let sqlstate = error
                    .code()
                    .unwrap_or_else(|| panic!("{verb:?}: {error}"))
                    .code()
                    .to_owned();
                self.run("rollback to before_the_verb").await;
                let code = Code::ALL.into_iter().find(|code| code.sqlstate() == sqlstate);
                return Answer::Refused(code.unwrap_or_else(|| panic!("{verb:?}: {error:?}")));
            }
        };
        let verdict = rows.first().and_then(|row| row.get::<_, Option<String>>(0));
        match (verdict.as_deref(), verb) {
            (Some("repeated"), _) => Answer::Repeated,
            (Some("fenced"), _) => Answer::Fenced,
            (Some(other), _) => panic!("{verb:?}: {other}"),
            (None, _) if before != self.row().await => {
                let Some(state) = self.state().await else {
                    return Answer::Gone;
                };
                Answer::Becomes(State::ALL.into_iter().find(|known| known.as_str() == state).unwrap())
            }
            (None, Claim | Promote | Expire | ExpireAnswer | Rescue) => Answer::PassedOver,
            (None, _) => Answer::SoAlready,
        }
    }

    async fn accept(&self, verb: Verb) {
        self.run(&self.sql(verb)).await;
    }

    /// The call. Its first column is a verdict, or null.
    fn sql(&self, verb: Verb) -> String {
        let Job { id, worker, other, .. } = self;
        let held = format!("({id}, 2)::bugle.held_job");
        match verb {
            Claim => format!(
                "select null::text from bugle.claim({worker}, array[('default', 9, null, \
                    'awake')::bugle.queue_request])"
            ),
            Complete => complete(worker, *id, 2),
            CompleteWithAStaleClaim => complete(worker, *id, 1),
            CompleteByAnotherWorker => complete(other, *id, 2),
            Fail => fail(worker, *id, 2, true),
            FailNotRetryable => fail(worker, *id, 2, false),
            FailWithAStaleClaim => fail(worker, *id, 1, false),
            FailByAnotherWorker => fail(other, *id, 2, false),
            Snooze => format!("select verdict from bugle.snooze({worker}, {held}, '1 hour')"),
            GiveBack => format!("select verdict from bugle.give_back({worker}, array[{held}])"),
            CancelHeld => format!("select verdict from bugle.cancel_held({worker}, {held}, 'no')"),
            Wait => format!("select verdict from bugle.wait({worker}, {held}, 'secret', '1 hour')"),
            Spawn => format!("select verdict from bugle.spawn({worker}, {held}, '[{{\"command\": \"noop\"}}]')"),
            ResumeWith => format!("select nullif(bugle.resume_with({id}, '1', 'secret')::text, '')"),
            ResumeWithAWrongToken => format!("select nullif(bugle.resume_with({id}, '1', 'guess')::text, '')"),
            Promote => "select null::text from bugle.promote()".into(),
            Expire | ExpireAnswer => "select null::text from bugle.expire()".into(),
            Rescue => "select null::text from bugle.rescue()".into(),
            Resolve => format!("select nullif(bugle.resolve({id}, '1', 'secret')::text, '')"),
            Reject => format!("select nullif(bugle.reject({id}, 'no', 'secret')::text, '')"),
            ResolveWithAWrongToken => format!("select nullif(bugle.resolve({id}, '1', 'guess')::text, '')"),
            RejectWithAWrongToken => format!("select nullif(bugle.reject({id}, 'no', 'guess')::text, '')"),
            Cancel | Pause | Resume | Restart | Remove => {
                let verb = format!("{verb:?}").to_lowercase();
                format!("select null::text from bugle.{verb}({id}::bigint)")
            }
            SetState => format!("select null::text from bugle.set_state({id}::bigint, 'ready')"),
        }
    }

    async fn run(&self, sql: &str) {
        self.client
            .batch_execute(sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    async fn row(&self) -> serde_json::Value {
        self.client
            .query_opt("select to_jsonb(j) from bugle.jobs j where j.id = $1", &[&self.id])
            .await
            .unwrap()
            .map_or(serde_json::Value::Null, |row| row.get(0))
    }

    async fn state(&self) -> Option<String> {
        self.row().await["state"].as_str().map(str::to_owned)
    }
}

fn complete(who: &str, id: i64, claim: i64) -> String {
    format!("select verdict from bugle.complete({who}, array[({id}, {claim}, null)::bugle.finished_job])")
}

fn fail(who: &str, id: i64, claim: i64, retryable: bool) -> String {
    format!(
        "select verdict from bugle.fail({who}, array[({id}, {claim}, 'boom', null, {retryable}, \
            null)::bugle.failed_job])"
    )
}
