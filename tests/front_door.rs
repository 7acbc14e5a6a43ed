//! What a contributor meets first is true: the CI workflow, the scripts in bin/, the toolchain, the rules for
//! dependencies.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{file}: {error}"))
}

const BUGLE: &str = env!("CARGO_BIN_EXE_bugle");
const WORKFLOW: &str = ".github/workflows/ci.yml";

/// The words of every command that begins with `program`, wherever a text has it, up to the end of that command.
fn calls<'a>(text: &'a str, program: &str) -> Vec<Vec<&'a str>> {
    let lines = text.lines().filter_map(|line| {
        let at = line.find(program)?;
        let is_whole = !line[..at].ends_with(|c: char| c.is_alphanumeric() || "/_-".contains(c));
        let command = line[at..].split(['`', '#', ')', '|', '"']).next()?;
        is_whole.then(|| command.split_whitespace().collect::<Vec<_>>())
    });
    lines.filter(|words| !words.is_empty()).collect()
}

/// The flags that a command has, up to a `--` on its own.
fn flags<'a>(words: &[&'a str]) -> Vec<&'a str> {
    let own = words.iter().take_while(|word| **word != "--");
    let flags = own.filter(|word| word.starts_with("--"));
    flags.map(|word| word.split('=').next().unwrap_or(word)).collect()
}

#[test]
fn every_script_that_is_named_can_be_run_and_has_the_flags_that_are_used() {
    let mut seen = BTreeSet::new();
    for file in [WORKFLOW, "CONTRIBUTING.md", "README.md", "docs/getting-started.md"] {
        let text = read(file);
        for words in calls(&text, "bin/") {
            let script = words[0].trim_end_matches(['.', ',', ':', ';']);
            let is_script = script
                .trim_start_matches("bin/")
                .chars()
                .all(|c| c.is_ascii_lowercase());
            if !is_script || script == "bin/" {
                continue;
            }
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
            let mode = fs::metadata(&path)
                .unwrap_or_else(|_| panic!("{file}: there is no {script}"))
                .permissions();
            assert!(mode.mode() & 0o111 == 0o111, "{script} cannot be run by everyone");
            for flag in flags(&words) {
                assert!(read(script).contains(flag), "{file}: {script} has no {flag}");
            }
            seen.insert(script.to_owned());
        }
    }

    for script in ["bin/test", "bin/demo", "bin/chaos", "bin/features", "bin/package"] {
        assert!(seen.contains(script), "{script} is not named");
    }
}

#[test]
fn every_cargo_command_of_the_workflow_exists_with_its_flags() {
    let workflow = read(WORKFLOW);
    let mut seen = 0;
    for words in calls(&workflow, "cargo ") {
        let mut rest = words
            .iter()
            .skip(1)
            .filter(|word| !word.starts_with(['+', '$', '{', '}']));
        let subcommand = rest.find(|word| !word.contains("steps.")).expect("a subcommand");
        let command = match *subcommand {
            // with all that check has
            "clippy" => "check",
            // may not be installed
            "fmt" => continue,
            command => command,
        };
        let help = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args([command, "--help"])
            .output()
            .expect("cargo runs");
        let help = String::from_utf8_lossy(&help.stdout).into_owned();
        assert!(!help.is_empty(), "cargo {command} does not exist");
        for flag in flags(&words) {
            assert!(help.contains(flag), "cargo {command} has no {flag}");
        }
        seen += 1;
    }
    assert!(seen >= 3, "only {seen} commands were found");
}

/// There is no YAML parser among the dependencies: what most often goes wrong is looked for in the text.
#[test]
fn the_workflow_is_well_formed() {
    let workflow = read(WORKFLOW);
    for (number, line) in workflow.lines().enumerate() {
        let place = format!("{WORKFLOW}:{}: {line}", number + 1);
        let text = line.trim_start();
        assert!(!line.contains('\t') && (line.len() - text.len()) % 2 == 0, "{place}");
        assert_eq!(line.matches("${{").count(), line.matches("}}").count(), "{place}");
        if let Some(action) = text.trim_start_matches("- ").strip_prefix("uses: ") {
            let (_, version) = action
                .split_once('@')
                .unwrap_or_else(|| panic!("without a version: {place}"));
            assert!(version.starts_with('v'), "{place}");
        }
    }
    let jobs = workflow.split("\njobs:\n").nth(1).expect("jobs");
    let names = jobs
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   ") && line.ends_with(':'));
    let names = names.count();
    for key in ["runs-on: ", "timeout-minutes: ", "steps:"] {
        assert_eq!(jobs.matches(&format!("\n    {key}")).count(), names, "{key}");
    }
    assert!(
        workflow.contains("\npermissions:\n  contents: read\n"),
        "it can only read"
    );
}

#[test]
fn the_workflow_tests_every_supported_version_of_postgresql() {
    let workflow = read(WORKFLOW);
    assert!(workflow.contains("postgres: [14, 15, 16, 17, 18]"));
    assert!(workflow.contains("bin/test --quick --pg ${{ matrix.postgres }}"));
}

#[test]
fn the_oldest_supported_rust_is_the_same_everywhere() {
    let manifest: toml::Table = toml::from_str(&read("Cargo.toml")).expect("TOML");
    let oldest = manifest["package"]["rust-version"]
        .as_str()
        .expect("a version")
        .to_owned();

    assert!(
        read("Dockerfile").contains(&format!("FROM rust:{oldest}-")),
        "Dockerfile"
    );
    assert!(
        read("docs/getting-started.md").contains(&format!("{oldest} or newer")),
        "docs/getting-started.md"
    );
}

#[test]
fn the_toolchain_file_makes_no_machine_download_what_it_has() {
    let toolchain: toml::Table = toml::from_str(&read("rust-toolchain.toml")).expect("TOML");
    let toolchain = toolchain["toolchain"].as_table().expect("a table");

    assert_eq!(toolchain["channel"].as_str(), Some("stable"));
    assert_eq!(
        toolchain.len(),
        1,
        "a component or target that is missing would be downloaded before any build"
    );
}

/// The commands that `bugle --help` lists.
fn commands() -> Vec<String> {
    let help = Command::new(BUGLE).arg("--help").output().expect("bugle runs").stdout;
    let help = String::from_utf8(help).expect("text");
    let list = help
        .split("Commands:\n")
        .nth(1)
        .and_then(|rest| rest.split("\n\n").next());
    let lines = list
        .expect("a list")
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = lines.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn every_command_has_a_manual_page_and_no_hidden_one_has() {
    let folder = std::env::temp_dir().join(format!("bugle-man-{}", std::process::id()));

    let written = Command::new(BUGLE)
        .arg("man")
        .arg("--dir")
        .arg(&folder)
        .status()
        .expect("bugle runs");
    let pages: BTreeSet<String> = fs::read_dir(&folder)
        .expect("a folder")
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let worker = fs::read_to_string(folder.join("bugle-worker.1")).expect("a page");
    fs::remove_dir_all(&folder).expect("nothing is left");

    assert!(written.success());
    assert!(commands().len() > 15);
    for command in commands() {
        assert!(pages.contains(&format!("bugle-{command}.1")), "{command}: {pages:?}");
    }
    assert!(
        pages.contains("bugle.1") && pages.contains("bugle-jobs-list.1"),
        "{pages:?}"
    );
    assert!(
        !pages
            .iter()
            .any(|page| page.contains("guard") || page.contains("story")),
        "{pages:?}"
    );
    assert!(
        worker.starts_with(".ie") && worker.contains(".TH bugle-worker 1"),
        "{worker}"
    );
}

#[test]
fn the_completions_of_bash_are_a_script_that_knows_every_command() {
    let script = Command::new(BUGLE)
        .args(["completions", "bash"])
        .output()
        .expect("bugle runs")
        .stdout;
    let script = String::from_utf8(script).expect("text");

    // too long for an argument
    let file = std::env::temp_dir().join(format!("bugle-completions-{}", std::process::id()));
    fs::write(&file, &script).expect("a file");
    let checked = Command::new("bash").arg("-n").arg(&file).status().expect("bash runs");
    fs::remove_file(&file).expect("nothing is left");

    assert!(checked.success());
    for command in commands() {
        assert!(script.contains(&format!("bugle,{command})")), "{command}");
    }
}

#[test]
fn the_rules_for_dependencies_are_read() {
    let rules: toml::Table = toml::from_str(&read("deny.toml")).expect("TOML");

    let tables: Vec<&str> = rules.keys().map(String::as_str).collect();
    assert_eq!(tables, ["advisories", "bans", "graph", "licenses", "sources"]);
    let allowed = rules["licenses"]["allow"].as_array().expect("licenses");
    for license in allowed {
        let license = license.as_str().expect("a name");
        assert!(!license.contains("GPL"), "{license}");
    }
}

/// CONTRIBUTING.md lists where the address of the published project belongs. It is in all of these places, or in none.
#[test]
fn where_the_project_is_published_is_said_everywhere_or_nowhere() {
    let contributing = read("CONTRIBUTING.md");
    let (_, publish) = contributing.split_once("## Publish\n").expect("a section");
    let listed: Vec<&str> = publish
        .lines()
        .skip_while(|line| !line.starts_with("|---"))
        .skip(1)
        .map_while(|line| line.strip_prefix("| [")?.split(']').next())
        .collect();
    let manifest = read("Cargo.toml");
    let repository = manifest
        .lines()
        .find_map(|line| line.strip_prefix("repository = \"")?.strip_suffix('"'));

    assert!(listed.len() >= 6, "{listed:?}");
    for file in listed {
        let text = read(file);
        match repository {
            Some(address) => assert!(text.contains(address), "{file} does not name {address}"),
            None => {
                let keys = [
                    "\nrepository",
                    "image.source",
                    "runbook_url: http",
                    "[project.urls]",
                    "\"repository\"",
                ];
                let found = keys.iter().find(|key| text.contains(**key));
                assert_eq!(
                    found, None,
                    "{file} says where the project is published, and Cargo.toml does not"
                );
            }
        }
    }
}
