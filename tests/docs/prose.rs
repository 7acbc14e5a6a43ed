//! The pages read alike: plain English, in lines that fit.

use crate::page::{self, Page};
use crate::words;

pub fn no_line_is_wider_than_120_columns() {
    let mut wide = Vec::new();
    for page in pages() {
        for (number, line) in prose(&page) {
            let is_link = line.starts_with('[') && line.contains("]: ");
            if line.chars().count() > 120 && !line.starts_with('|') && !is_link {
                wide.push(format!("{}:{number}", page.name()));
            }
        }
    }
    assert!(wide.is_empty(), "{wide:#?}");
}

/// A page that lost its end, in an edit or a merge, usually stops in the middle of a line.
pub fn every_page_ends_with_one_newline() {
    let is_whole = |page: &Page| page.text.ends_with('\n') && !page.text.ends_with("\n\n");
    let broken: Vec<String> = page::pages()
        .iter()
        .filter(|page| !is_whole(page))
        .map(Page::name)
        .collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Only what is not between fences: statements and output may contain any word.
pub fn no_word_is_on_the_list() {
    let mut found = Vec::new();
    for page in page::pages() {
        let mut text = String::new();
        let mut lines = 1;
        for (number, line) in prose(&page) {
            text.push_str(&"\n".repeat(number - lines));
            text.push_str(line);
            lines = number;
        }
        found.extend(words::found(&page.name(), &text));
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// All but those that only contributors read.
fn pages() -> impl Iterator<Item = Page> {
    let for_contributors = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"];
    let is_ours = move |page: &Page| !for_contributors.contains(&page.name().as_str());
    page::pages().into_iter().filter(is_ours)
}

/// The lines of a page that are not between fences, with their numbers.
fn prose(page: &Page) -> impl Iterator<Item = (usize, &str)> {
    let mut is_open = false;
    page.text.lines().enumerate().filter_map(move |(number, line)| {
        let is_fence = line.trim_start().starts_with("```");
        let is_prose = !is_open && !is_fence;
        is_open ^= is_fence;
        is_prose.then_some((number + 1, line))
    })
}
