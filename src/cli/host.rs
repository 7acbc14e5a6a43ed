//! `bugle host check`: whether a host follows the protocol.

use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::{Args, Subcommand};

use super::output;
use crate::host::check::{self, Checked, Verdict};

/// `bugle host`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Run a host without a database and check that it follows the protocol.
    Check {
        /// Program and its arguments
        #[arg(
            required = true,
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "PROGRAM"
        )]
        program: Vec<String>,
    },
}

pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let What::Check { program } = arguments.what;
    let passed = check::check(&program, |checked| drop(tell(checked))).await;
    match passed.map_err(|why| anyhow!("{why}\nhint: docs/hosts.md describes what a host to be checked has to do."))? {
        true => Ok(ExitCode::SUCCESS),
        false => Ok(ExitCode::FAILURE),
    }
}

fn tell(checked: &Checked) -> Result<()> {
    let name = checked.name;
    output::print(&match &checked.verdict {
        Verdict::Passed => format!("ok       {name}\n"),
        Verdict::Failed(why) => format!("FAILED   {name}: {}\n", output::harmless(why)),
        Verdict::Skipped(command) => format!("skipped  {name}: {command} is not announced\n"),
    })
}
