//! The pages of the documentation, and what stands between their fences.
//!
//! What the words after a fence mean:
//!
//! | fence | |
//! |---|---|
//! | `sql` | runs, in the order of the file, in one database per file; as the owner, or as said first: `-- as viewer` |
//! | `sql,wait` | is repeated until its rows are those of the `text,output` below it |
//! | `sql,refused` | must fail; a `text` block below it, if there is one, must contain what the database says |
//! | `sql,rollback` | runs in a transaction that is rolled back: roles belong to the whole server |
//! | `sql,ignore` | does not run; a comment above it says why |
//! | `text,output` | the rows that the block above it returns, or what it prints |
//! | `toml,worker` | a worker's file; it is read |
//! | `toml,worker,run` | the same; it becomes `bugle.toml`, and a worker runs with it for the rest of the page |
//! | `python,file`, `ts,file`, … | becomes a file beside it, with the name that its first line has as a comment |
//! | `sh,run` | runs in that folder, with `bugle` on the path and `DATABASE_URL` set |
//!
//! A comment `<!-- from FILE -->` above a block says that its text is taken from a file of the repository.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// One page of the documentation.
pub struct Page {
    pub file: PathBuf,
    pub text: String,
    pub blocks: Vec<Block>,
}

/// What stands between two fences.
pub struct Block {
    /// File and line, for messages.
    pub place: String,
    pub info: String,
    pub text: String,
    /// The line above the fence.
    pub above: String,
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().unwrap()
}

pub fn pages() -> Vec<Page> {
    let mut files: Vec<PathBuf> = [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "bench/rivals/README.md",
    ]
    .map(PathBuf::from)
    .into();
    files.extend(below(Path::new("docs")));
    files.push("examples/README.md".into());
    files.extend(["sdk/python/README.md", "sdk/typescript/README.md"].map(PathBuf::from));
    for entry in fs::read_dir(root().join("examples")).unwrap() {
        let readme = Path::new("examples").join(entry.unwrap().file_name()).join("README.md");
        files.extend(Some(readme).filter(|readme| root().join(readme).exists()));
    }
    files.retain(|file: &PathBuf| file.extension().is_some_and(|ending| ending == "md"));
    files.sort();
    files.iter().map(|file| Page::read(&root().join(file))).collect()
}

/// All files below a folder of the repository.
pub fn below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(root().join(folder)).unwrap() {
        let entry = entry.unwrap();
        let path = folder.join(entry.file_name());
        match entry.path().is_dir() {
            true => files.extend(below(&path)),
            false => files.push(path),
        }
    }
    files
}

impl Page {
    pub fn read(file: &Path) -> Page {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mut page = Page {
            file: file.to_owned(),
            text,
            blocks: Vec::new(),
        };
        page.blocks = page.parse();
        page
    }

    pub fn name(&self) -> String {
        self.file.strip_prefix(root()).unwrap().display().to_string()
    }

    fn parse(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut open: Option<Block> = None;
        let mut above = "";
        for (number, line) in self.text.lines().enumerate() {
            match (&mut open, line.strip_prefix("```")) {
                (Some(_), Some("")) => blocks.extend(open.take()),
                (Some(block), _) => block.text.push_str(&format!("{line}\n")),
                (None, Some(info)) => {
                    open = Some(Block {
                        place: format!("{}:{}", self.name(), number + 1),
                        info: info.trim().to_owned(),
                        text: String::new(),
                        above: above.to_owned(),
                    });
                }
                (None, None) => {}
            }
            above = line;
        }
        assert!(open.is_none(), "{}: a fence is not closed", self.name());
        blocks
    }

    pub fn headings(&self) -> Vec<String> {
        let in_blocks: BTreeSet<&str> = self.blocks.iter().flat_map(|block| block.text.lines()).collect();
        self.text
            .lines()
            .filter(|line| line.starts_with('#') && !in_blocks.contains(line))
            .map(|line| anchor(line.trim_start_matches('#').trim()))
            .collect()
    }
}

/// A heading as a link spells it.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}
