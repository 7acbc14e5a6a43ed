//! Chaos: several worker processes and enqueuers behind proxies, on a server of their own, and everything that can go
//! wrong.
//!
//! `bin/chaos` plays it: a short round, or with `--long` one of twenty minutes. `--seed N` plays the same choices
//! again, `--host-kills N` kills more hosts. `--patroni` plays failovers of a Patroni cluster instead. What everybody
//! saw is compared with the tables in the end (`judge/`); there must be no violation. With `--bars`, as `bin/chaos`
//! plays it, figures are held against their bars too; without, as in `bin/test`, three failovers follow the short round
//! if `BUGLE_TEST_PATRONI` is set and Patroni is installed.

mod judge;
#[path = "common/poll.rs"]
mod poll;
#[path = "proof/random_seed.rs"]
mod random_seed;

mod chaos {
    pub mod enqueuers;
    pub mod failovers;
    pub mod faults;
    pub mod fleet;
    pub mod host;
    pub mod patroni;
    pub mod proxy;
    pub mod round;
    pub mod samples;
    pub mod steps;
    pub mod worker;
}

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(socket) = std::env::var_os(chaos::host::SOCKET) {
        return chaos::host::run(&PathBuf::from(socket));
    }
    if let Some(history) = std::env::var_os(chaos::worker::HISTORY) {
        return chaos::worker::run(&PathBuf::from(history));
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        println!("chaos: test");
        return ExitCode::SUCCESS;
    }
    let seed = arguments
        .iter()
        .position(|argument| argument == "--seed")
        .and_then(|at| arguments.get(at + 1)?.parse().ok())
        .unwrap_or_else(|| random_seed::seed("BUGLE_CHAOS_SEED"));
    if arguments.iter().any(|argument| argument == "--patroni") {
        return chaos::failovers::play(&chaos::failovers::Plan::from(&arguments), seed);
    }
    // as the test harness does: run what has all of the names that are asked for, and ignore flags of the harness
    let asked_for = |name: &&String| !name.starts_with('-') && name.parse::<u64>().is_err();
    let elsewhere = arguments
        .iter()
        .filter(asked_for)
        .any(|name| !"chaos".contains(name.as_str()));
    if elsewhere || std::env::var_os("BUGLE_SKIP_CHAOS").is_some() {
        println!("chaos: skipped");
        return ExitCode::SUCCESS;
    }
    let minutes = arguments.iter().position(|argument| argument == "--soak").map(|at| {
        arguments
            .get(at + 1)
            .and_then(|minutes| minutes.parse().ok())
            .unwrap_or(30)
    });
    let mut plan = match minutes {
        Some(minutes) => chaos::faults::Plan::soak(minutes),
        None if arguments.iter().any(|argument| argument == "--long") => chaos::faults::Plan::long(),
        None => chaos::faults::Plan::short(),
    };
    let host_kills = arguments.iter().position(|argument| argument == "--host-kills");
    if let Some(kills) = host_kills.and_then(|at| arguments.get(at + 1)?.parse().ok()) {
        plan.host_kills = kills;
    }
    let bars = arguments.iter().any(|argument| argument == "--bars");
    let played = chaos::round::play(plan, seed, bars);
    // bin/chaos, which plays rounds of its own on Patroni, has bars
    match bars || played != ExitCode::SUCCESS {
        true => played,
        false => chaos::failovers::play_short(seed),
    }
}
