//! `bugle doctor`: what is wrong, and what fixes it.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::connect::Connect;
use super::hint::in_shell;
use super::output::{self, Shown, Table};
use crate::admin::read::{self, Finding, Level};

/// Which database to look at.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    connect: Connect,

    #[command(flatten)]
    shown: Shown,
}

/// Exit code 1 if something does not work; warnings do not count.
pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let client = arguments.connect.client().await?;
    let found = read::doctor(&client).await?;
    arguments.shown.rows(&found, table)?;
    if !arguments.shown.as_json() {
        for finding in found.iter().filter(|finding| finding.fix.is_some()) {
            let fix = in_shell(finding.fix.as_deref().unwrap_or_default());
            let told = format!("\n{}: {}\n  {fix}\n", finding.check, finding.message);
            output::print(&output::harmless(&told))?;
        }
    }
    Ok(match found.iter().any(|finding| finding.level == Level::Fail) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

fn table(found: &[Finding]) -> Table {
    let mut table = Table::new(&["CHECK", "", ""]);
    for finding in found {
        let level = match finding.level {
            Level::Ok => "ok",
            Level::Skipped => "skipped",
            Level::Warn => "WARN",
            Level::Fail => "FAIL",
        };
        table.row(vec![
            finding.check.to_owned(),
            level.to_owned(),
            finding.message.clone(),
        ]);
    }
    table
}
