//! The documentation is true: its statements and commands run, its configuration is read, its links and names resolve.
//!
//! Each page is a test of its own, named after its file: `cargo test --test docs docs/retries.md` runs one page,
//! `cargo test --test docs how-to` all of a folder. What the words after a fence mean is said in `docs/page.rs`.

mod common;
#[path = "docs/links.rs"]
mod links;
#[path = "docs/names.rs"]
mod names;
#[allow(dead_code)] // each test program needs a part of it
#[path = "sdk/packages.rs"]
mod packages;
#[path = "docs/page.rs"]
mod page;
#[path = "docs/prose.rs"]
mod prose;
#[path = "docs/run.rs"]
mod run;
#[allow(dead_code)] // only one of the languages is needed here
#[path = "examples/runtime.rs"]
mod runtime;
#[path = "docs/words.rs"]
mod words;

use std::process::ExitCode;

use common::DEADLINE;
use libtest_mimic::{Arguments, Trial};
use tokio::runtime::{Handle, Runtime};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let runtime = Runtime::new().expect("a runtime");
    let mut trials = rules(runtime.handle());
    for page in page::pages().into_iter().filter(run::has_something_to_run) {
        let runtime = runtime.handle().clone();
        trials.push(Trial::test(page.name(), move || {
            let ended = runtime.block_on(async { tokio::time::timeout(4 * DEADLINE, run::run(&page)).await });
            ended.map_err(|_| "a statement does not come to its end".into())
        }));
    }

    libtest_mimic::run(&arguments, trials).exit_code()
}

/// What holds for all pages together.
fn rules(runtime: &Handle) -> Vec<Trial> {
    let rules: [(&str, fn()); 17] = [
        (
            "every_worker_file_in_the_documentation_is_read",
            run::every_worker_file_is_read,
        ),
        (
            "every_relative_link_leads_to_a_file",
            links::every_relative_link_leads_to_a_file,
        ),
        (
            "every_link_to_a_heading_leads_to_one",
            links::every_link_to_a_heading_leads_to_one,
        ),
        (
            "every_page_can_be_reached_from_the_index",
            links::every_page_can_be_reached_from_the_index,
        ),
        (
            "every_excerpt_is_in_the_file_it_is_taken_from",
            links::every_excerpt_is_in_the_file_it_is_taken_from,
        ),
        (
            "the_readme_names_both_commands_and_they_can_be_run",
            links::the_readme_names_both_commands,
        ),
        (
            "every_test_that_is_named_to_be_run_exists",
            links::every_test_that_is_named_to_be_run_exists,
        ),
        (
            "no_line_of_prose_is_wider_than_120_columns",
            prose::no_line_is_wider_than_120_columns,
        ),
        (
            "every_command_and_option_is_in_the_reference",
            names::every_command_and_option_is_in_the_reference,
        ),
        (
            "every_page_ends_with_one_newline",
            prose::every_page_ends_with_one_newline,
        ),
        ("the_documentation_is_in_plain_english", prose::no_word_is_on_the_list),
        (
            "every_command_that_is_shown_exists",
            names::every_command_that_is_shown_exists,
        ),
        (
            "every_cargo_feature_is_in_the_reference",
            names::every_cargo_feature_is_in_the_reference,
        ),
        (
            "every_page_that_the_code_names_exists",
            links::every_page_that_the_code_names_exists,
        ),
        ("every_link_by_name_is_defined", links::every_link_by_name_is_defined),
        (
            "every_code_of_a_failed_attempt_is_in_the_reference",
            names::every_code_of_a_failed_attempt_is_in_the_reference,
        ),
        (
            "every_event_of_the_log_is_on_the_page_about_monitoring",
            names::every_event_of_the_log_is_on_the_page_about_monitoring,
        ),
    ];
    let mut trials: Vec<Trial> = rules
        .into_iter()
        .map(|(name, rule)| {
            Trial::test(name, move || {
                rule();
                Ok(())
            })
        })
        .collect();
    let handle = runtime.clone();
    trials.push(Trial::test(
        "every_name_in_the_documentation_exists_in_the_database",
        move || {
            handle.block_on(names::every_name_exists_in_the_database());
            Ok(())
        },
    ));
    let handle = runtime.clone();
    let name = "every_column_a_job_can_be_given_and_every_error_has_its_place_in_the_documentation";
    trials.push(Trial::test(name, move || {
        handle.block_on(names::every_column_setting_and_error_is_described());
        Ok(())
    }));
    let handle = runtime.clone();
    let name = "every_function_and_view_for_people_is_in_the_reference";
    trials.push(Trial::test(name, move || {
        handle.block_on(names::every_function_and_view_for_people_is_in_the_reference());
        Ok(())
    }));
    trials
}
