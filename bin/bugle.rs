//! The `bugle` command.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    bugle::cli::run(bugle::cli::Cli::parse()).unwrap_or_else(|error| {
        eprintln!("bugle: {}", bugle::cli::message(&error));
        ExitCode::FAILURE
    })
}
