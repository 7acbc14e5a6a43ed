//! The proofs that need no chaos: the judge is tested itself, the engine is compared with a model of it, every pair of
//! verbs is raced, rights are walked, inputs are fuzzed, edges are met. What kills and cuts is in `chaos.rs`.

mod common;
mod judge;

mod proof {
    mod disk;
    mod edges;
    mod excuses;
    mod failover;
    mod fuzz;
    mod fuzz_cli;
    mod fuzz_http;
    mod hostile;
    mod interleave;
    mod manual;
    mod model;
    mod notify;
    mod random_seed;
    mod rights;
    mod seeded;
    mod upgrade;
}
