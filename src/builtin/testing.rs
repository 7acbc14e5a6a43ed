//! A job for testing executors without a database.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use crate::db::connect::{Pool, Target};
use crate::execute::context::{Context, Inner};
use crate::execute::executor::{Failure, Outcome};
use crate::execute::workspace::Workspaces;
use crate::job::{ClaimedJob, HeldJob};
use crate::worker::Identity;

pub struct TestJob {
    pub context: Context,
    pub workspaces: Workspaces,
}

impl TestJob {
    pub fn new(payload: &str) -> TestJob {
        let workspaces = Workspaces::open(&Workspaces::default_base()).unwrap();
        let nowhere = Target::parse("host=/nowhere user=nobody").unwrap();
        let pool = Pool::for_worker(&nowhere, "test", 1).unwrap();
        let now = SystemTime::now();
        let inner = Inner {
            job: ClaimedJob {
                held: HeldJob { id: 17, claim: 42 },
                command: "try".into(),
                queue: "default".into(),
                priority: 0,
                attempt: 3,
                max_attempts: Some(16),
                timeout: None,
                default_timeout: None,
                created_at: now,
                run_at: now,
                headers: Default::default(),
                payload: RawValue::from_string(payload.into()).unwrap(),
                answer: None,
                steps: None,
                step: 0,
                address: None,
            },
            identity: Identity {
                worker: 1,
                nonce: uuid::Uuid::nil(),
            },
            steps: pool.clone(),
            pool,
            cancellation: CancellationToken::new(),
            workspaces: workspaces.path().to_path_buf(),
            attempt: Arc::default(),
            position: None,
            outputs: None,
            database: None,
            rehearsal: None,
        };
        TestJob {
            context: Context::new(inner),
            workspaces,
        }
    }
}

/// The result of a successful attempt.
pub fn completed(outcome: Outcome) -> Option<String> {
    match outcome {
        Outcome::Complete(result) => result.map(|json| json.get().to_string()),
        other => panic!("not completed: {other:?}"),
    }
}

/// The failure of a failed attempt.
pub fn failed(outcome: Outcome) -> Failure {
    match outcome {
        Outcome::Fail(failure) => failure,
        other => panic!("not failed: {other:?}"),
    }
}

/// Wait until the condition holds.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        // why: this is the pause between two checks
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
