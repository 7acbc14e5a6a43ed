//! What `docker build` would see, without a container engine: the build context that `.dockerignore` leaves, and what
//! each stage of the Dockerfile copies out of it. Refuses loudly what it does not know, rather than guess.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The patterns of a `.dockerignore`, in order. The last one that matches a path, or a folder above it, decides.
pub struct Ignored(Vec<(bool, Vec<String>)>);

impl Ignored {
    pub fn parse(text: &str) -> Ignored {
        let lines = text.lines().filter(|line| !line.starts_with('#')).map(str::trim);
        let patterns = lines.filter(|line| !line.is_empty()).map(|line| {
            let (is_exception, pattern) = match line.strip_prefix('!') {
                Some(pattern) => (true, pattern.trim()),
                None => (false, line),
            };
            let parts = pattern.split('/').filter(|part| !part.is_empty() && *part != ".");
            let parts: Vec<String> = parts.map(String::from).collect();
            for part in &parts {
                let is_known = !part.contains('[') && (part == "**" || !part.contains("**")) && part != "..";
                assert!(is_known, ".dockerignore: this test does not know the pattern {line:?}");
            }
            (is_exception, parts)
        });
        Ignored(patterns.collect())
    }

    /// Whether the build context lacks this path, given from its root.
    pub fn lacks(&self, path: &str) -> bool {
        let parts: Vec<&str> = path.split('/').collect();
        let mut lacks = false;
        for (is_exception, pattern) in &self.0 {
            let pattern: Vec<&str> = pattern.iter().map(String::as_str).collect();
            if (1..=parts.len()).any(|length| matches(&pattern, &parts[..length])) {
                lacks = !is_exception;
            }
        }
        lacks
    }
}

/// `**` is any number of folders, none included.
fn matches(pattern: &[&str], path: &[&str]) -> bool {
    match (pattern.split_first(), path.split_first()) {
        (None, None) => true,
        (Some((&"**", [])), Some(_)) => true,
        (Some((&"**", rest)), _) => {
            matches(rest, path) || path.split_first().is_some_and(|(_, below)| matches(pattern, below))
        }
        (Some((part, rest)), Some((name, below))) => fits(part.as_bytes(), name.as_bytes()) && matches(rest, below),
        _ => false,
    }
}

/// One name: `*` is any number of letters, `?` is one, and what follows a backslash is itself.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => fits(rest, name) || (!name.is_empty() && fits(pattern, &name[1..])),
        ([b'\\', letter, rest @ ..], [first, below @ ..]) => letter == first && fits(rest, below),
        ([b'?', rest @ ..], [_, below @ ..]) => fits(rest, below),
        ([letter, rest @ ..], [first, below @ ..]) => letter == first && fits(rest, below),
        _ => false,
    }
}

/// The instructions of a Dockerfile, with continued lines joined: (`COPY`, the rest of the line).
pub fn instructions(dockerfile: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut line = String::new();
    for part in dockerfile.lines().filter(|line| !line.trim_start().starts_with('#')) {
        match part.strip_suffix('\\') {
            Some(begun) => line.push_str(begun),
            None => {
                line.push_str(part);
                if let Some((word, rest)) = line.trim().split_once(char::is_whitespace) {
                    found.push((word.to_uppercase(), rest.trim().to_owned()));
                }
                line.clear();
            }
        }
    }
    found
}

/// What one stage does.
#[derive(Default)]
pub struct Stage {
    pub name: String,
    /// The folder in the image its commands run in, when they run.
    pub workdir: String,
    /// What it copies from the build context, and the commands it runs.
    pub steps: Vec<Step>,
    /// What it takes from another stage: its name, the path there.
    pub taken: Vec<(String, String)>,
    pub arguments: BTreeMap<String, String>,
    pub healthcheck: Option<Vec<String>>,
    pub entrypoint: Option<Vec<String>>,
    pub user: Option<String>,
    pub labels: BTreeMap<String, String>,
}

pub enum Step {
    /// Sources in the build context, and where they go, as an absolute path of the image.
    Copy(Vec<String>, String),
    /// A command, as it is written.
    Run(String),
}

pub fn stages(dockerfile: &str) -> Vec<Stage> {
    let mut stages: Vec<Stage> = Vec::new();
    for (instruction, rest) in instructions(dockerfile) {
        if instruction == "FROM" {
            let words: Vec<&str> = rest.split_whitespace().collect();
            let name = match words[..] {
                [_, _, name] => name.to_owned(),
                _ => String::new(),
            };
            let workdir = "/".into();
            stages.push(Stage {
                name,
                workdir,
                ..Stage::default()
            });
            continue;
        }
        let stage = stages.last_mut().expect("FROM comes first");
        match instruction.as_str() {
            "WORKDIR" => stage.workdir = absolute(&stage.workdir, &rest),
            "COPY" => {
                let (flags, paths): (Vec<&str>, Vec<&str>) =
                    rest.split_whitespace().partition(|word| word.starts_with("--"));
                let (target, sources) = paths.split_last().expect("COPY names a target");
                let sources: Vec<String> = sources.iter().map(|source| source.to_string()).collect();
                let is_plain = sources.iter().all(|source| !source.contains(['*', '?', '[', '"']));
                assert!(is_plain, "this test does not know COPY {rest}");
                match flags[..] {
                    [] => stage.steps.push(Step::Copy(sources, absolute(&stage.workdir, target))),
                    [from] => {
                        let from = from
                            .strip_prefix("--from=")
                            .unwrap_or_else(|| panic!("unknown: COPY {rest}"));
                        stage
                            .taken
                            .extend(sources.into_iter().map(|source| (from.to_owned(), source)));
                    }
                    _ => panic!("this test does not know COPY {rest}"),
                }
            }
            "RUN" => stage.steps.push(Step::Run(rest)),
            "ARG" => {
                let (name, value) = rest.split_once('=').unwrap_or((&rest, ""));
                stage.arguments.insert(name.to_owned(), value.to_owned());
            }
            "HEALTHCHECK" => stage.healthcheck = Some(list(rest.split("CMD").nth(1).expect("a command"))),
            "ENTRYPOINT" => stage.entrypoint = Some(list(&rest)),
            "USER" => stage.user = Some(rest),
            "LABEL" => {
                for label in rest.split("\" ").map(|label| label.trim_end_matches('"')) {
                    let (name, value) = label.split_once("=\"").expect("name=\"value\"");
                    stage.labels.insert(name.trim().to_owned(), value.to_owned());
                }
            }
            "CMD" | "ENV" | "EXPOSE" | "STOPSIGNAL" => {}
            other => panic!("this test does not know the instruction {other}"),
        }
    }
    stages
}

/// Copy into `image` what a step takes from the build context at `root`.
///
/// # Panics
/// As the build would fail: if a source is not in the context, or several are copied to what is not a folder.
pub fn replay(sources: &[String], target: &str, root: &Path, ignored: &Ignored, image: &Path) {
    let into_a_folder = target.ends_with('/');
    assert!(
        sources.len() == 1 || into_a_folder,
        "COPY {sources:?} {target}: the target must end with /"
    );
    let target = image.join(target.trim_start_matches('/'));
    for source in sources {
        let name = source.trim_start_matches("./").trim_end_matches('/');
        let files: Vec<PathBuf> = files(&root.join(name))
            .into_iter()
            .filter(|file| !ignored.lacks(&file.strip_prefix(root).expect("inside").display().to_string()))
            .collect();
        assert!(
            !files.is_empty(),
            "COPY {source}: the build context does not contain it"
        );
        for file in files {
            let to = match file.strip_prefix(root.join(name)).expect("inside") {
                below if !below.as_os_str().is_empty() => target.join(below),
                _ if into_a_folder => target.join(file.file_name().expect("a name")),
                _ => target.clone(),
            };
            copy(&file, &to);
        }
    }
}

/// With its time of change, so that cargo finds what it has built of it before.
fn copy(file: &Path, to: &Path) {
    fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
    fs::copy(file, to).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let changed = fs::metadata(file).and_then(|file| file.modified()).expect("a time");
    fs::File::options()
        .write(true)
        .open(to)
        .and_then(|to| to.set_modified(changed))
        .expect("the same time");
}

/// The file itself, or all files in a folder.
fn files(path: &Path) -> Vec<PathBuf> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => fs::read_dir(path)
            .expect("a folder")
            .flat_map(|entry| files(&entry.expect("an entry").path()))
            .collect(),
        Ok(_) => vec![path.to_owned()],
        Err(_) => Vec::new(),
    }
}

fn absolute(workdir: &str, path: &str) -> String {
    match path.strip_prefix("./").unwrap_or(path) {
        path if path.starts_with('/') => path.to_owned(),
        path => format!("{}/{path}", workdir.trim_end_matches('/')),
    }
}

fn list(json: &str) -> Vec<String> {
    serde_json::from_str(json.trim()).unwrap_or_else(|error| panic!("not a list of strings: {json}: {error}"))
}
