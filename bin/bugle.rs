//! The `bugle` command.

use std::process::ExitCode;

/// Jobs are claimed on one thread, run on another and reported on a third. With the system allocator this takes half of
/// a worker's time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    bugle::cli::run(bugle::cli::parse()).unwrap_or_else(|error| {
        eprintln!("bugle: {}", bugle::cli::message(&error));
        ExitCode::FAILURE
    })
}
