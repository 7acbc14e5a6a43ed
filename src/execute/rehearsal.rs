//! What a context does in a test without a database: see `bugle::testing`. What the executor would have stored is noted
//! for the test, and what it asks for was given by the test.
#![cfg_attr(not(feature = "testing"), allow(dead_code))]

use std::sync::Mutex;

use serde_json::value::RawValue;

use crate::error::{Error, Result};
use crate::execute::family::DependencyResult;

#[derive(Default)]
pub(crate) struct Rehearsal {
    /// Whether `context.database()` is a connection to a database of the test.
    pub has_database: bool,
    pub children: Vec<DependencyResult>,
    pub dependencies: Vec<DependencyResult>,
    pub noted: Mutex<Noted>,
}

/// What the executor did with its context.
#[derive(Default)]
pub(crate) struct Noted {
    pub progress: Vec<(f32, String)>,
    /// The steps that are done, with their outputs, oldest first.
    pub steps: Vec<(String, Box<RawValue>)>,
    /// The children it spawned, as JSON.
    pub spawned: Option<Box<RawValue>>,
    /// The result it completed the job with, in a transaction of its own.
    pub completed_in: Option<Option<Box<RawValue>>>,
}

impl Rehearsal {
    /// # Errors
    /// If the test did not give it one.
    pub(crate) fn check_database(&self) -> Result<()> {
        match self.has_database {
            true => Ok(()),
            false => Err(Error::new("this job runs in a test without a database")
                .with_hint("Give it one: bugle::testing::run(…).database(url).")),
        }
    }

    pub(crate) fn output_of(&self, step: &str) -> Option<Box<RawValue>> {
        let noted = self.noted.lock().unwrap();
        let known = noted.steps.iter().find(|(name, _)| name == step);
        known.map(|(_, output)| output.clone())
    }
}
