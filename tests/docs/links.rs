//! Links, excerpts and names of files lead somewhere.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::page::{Page, below, pages, root};

pub fn every_relative_link_leads_to_a_file() {
    for page in pages() {
        for target in links(&page.text) {
            let path = target.split('#').next().unwrap();
            if path.is_empty() || path.contains("://") {
                continue;
            }
            let file = page.file.parent().unwrap().join(path);
            assert!(file.exists(), "{}: {target} leads nowhere", page.name());
        }
    }
}

pub fn every_link_to_a_heading_leads_to_one() {
    let all = pages();
    for page in &all {
        for target in links(&page.text).filter(|target| !target.contains("://")) {
            let Some((path, heading)) = target.split_once('#') else {
                continue;
            };
            let file = match path {
                "" => page.file.clone(),
                path => page.file.parent().unwrap().join(path).canonicalize().unwrap(),
            };
            let to = all.iter().find(|page| page.file == file);
            let headings = to.map(Page::headings).unwrap_or_default();
            assert!(
                headings.iter().any(|known| known == heading),
                "{}: there is no heading {target}; there are {headings:?}",
                page.name()
            );
        }
    }
}

/// `[text][name]` needs a line `[name]: address`.
pub fn every_link_by_name_is_defined() {
    for page in pages() {
        for name in page.text.split("][").skip(1).filter_map(|rest| rest.split(']').next()) {
            let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '-');
            let definition = format!("\n[{name}]: ");
            assert!(
                !is_name || page.text.contains(&definition),
                "{}: [{name}] is not defined",
                page.name()
            );
        }
    }
}

/// Code, SQL, deployment files and examples name pages too.
pub fn every_page_that_the_code_names_exists() {
    let mut missing = BTreeSet::new();
    for folder in ["src", "sql", "migrations", "deploy", "examples", "bin"] {
        for file in below(Path::new(folder)) {
            let text = fs::read_to_string(root().join(&file)).unwrap_or_default();
            for (place, _) in text.match_indices("docs/") {
                let is_part = |c: char| c.is_ascii_alphanumeric() || "/_-.".contains(c);
                let name: String = text[place..].chars().take_while(|c| is_part(*c)).collect();
                let name = name.trim_end_matches('.');
                if name.ends_with(".md") && !root().join(name).exists() && !text[..place].ends_with(is_part) {
                    missing.insert(format!("{}: {name}", file.display()));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Link by link from docs/README.md.
pub fn every_page_can_be_reached_from_the_index() {
    let all = pages();
    let mut found = BTreeSet::new();
    let mut next = vec![root().join("docs/README.md")];
    while let Some(file) = next.pop() {
        if !found.insert(file.clone()) {
            continue;
        }
        let page = all.iter().find(|page| page.file == file).expect("a page");
        let targets = links(&page.text).map(|target| target.split('#').next().unwrap());
        let targets = targets.filter(|path| path.ends_with(".md") && !path.contains("://"));
        next.extend(targets.map(|path| page.file.parent().unwrap().join(path).canonicalize().unwrap()));
    }
    let lost: Vec<String> = all
        .iter()
        .filter(|page| !found.contains(&page.file))
        .map(Page::name)
        .collect();
    assert!(lost.is_empty(), "no link from docs/README.md leads to {lost:?}");
}

/// `<!-- from examples/web.rs -->` above a block: its lines stand in that file, one below the other. They may be
/// indented otherwise, and `…` stands for lines that are left out.
pub fn every_excerpt_is_in_the_file_it_is_taken_from() {
    for page in pages() {
        for block in &page.blocks {
            let Some(file) = block.above.strip_prefix("<!-- from ") else {
                continue;
            };
            let file = file.trim_end_matches(" -->");
            let text = fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{}: {error}", block.place));
            let trimmed = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
            let text = trimmed(&text);
            for part in trimmed(&block.text).split('…') {
                let part = part.trim();
                assert!(text.contains(part), "{}: {file} does not have\n{part}", block.place);
            }
        }
    }
}

pub fn the_readme_names_both_commands() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();

    for command in ["bin/demo", "bin/test"] {
        assert!(readme.contains(command), "{command} is not named");
        let mode = fs::metadata(root().join(command)).expect(command).permissions().mode();
        assert!(mode & 0o111 == 0o111, "{command} cannot be run by everyone");
    }
}

/// `cargo test --test <program> <name>`: the parts of a name stand in the program, or are a file or folder below it.
pub fn every_test_that_is_named_to_be_run_exists() {
    let guide = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let mut missing = Vec::new();
    for command in guide.split("cargo test --test ").skip(1) {
        let mut words = command.lines().next().unwrap_or_default().split([' ', '`']);
        let program = words.next().unwrap_or_default();
        let name = words
            .next()
            .filter(|word| !word.starts_with(['-', '#']))
            .unwrap_or_default();
        let text =
            text_of(&root().join(format!("tests/{program}.rs"))) + &text_of(&root().join(format!("tests/{program}")));
        if text.trim().is_empty() || !name.split("::").all(|part| text.contains(part)) {
            missing.push(format!("{program} {name}"));
        }
    }

    assert!(missing.is_empty(), "{missing:#?}");
}

/// The names of a file, or of a folder and all below it, and what is in them.
fn text_of(path: &Path) -> String {
    let below = fs::read_dir(path).into_iter().flatten();
    let below: String = below.map(|entry| text_of(&entry.unwrap().path())).collect();
    let name = path.file_stem().filter(|_| path.exists()).unwrap_or_default();
    name.to_string_lossy().into_owned() + " " + &fs::read_to_string(path).unwrap_or_default() + &below
}

/// The targets of `[text](target)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}
