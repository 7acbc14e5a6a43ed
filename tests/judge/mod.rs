//! The judge of all proofs: compares what enqueuers, executors and workers saw, written to files outside of Postgres,
//! with what the tables say and what they went through, and names every promise that was not kept.
#![allow(dead_code)]

mod dependencies;
mod evidence;
mod history;
mod transitions;
mod verdict;

pub use evidence::{AUDIT, Evidence};
#[allow(unused_imports)]
pub use history::{Entry, Event, Fault, History, Recorder, now};
#[allow(unused_imports)]
pub use verdict::{Bars, Kind, Report, Violation, illegal_steps, judge};
