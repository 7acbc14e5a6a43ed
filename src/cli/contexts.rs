//! Contexts: names for databases, in a file of the user's configuration folder; and `bugle contexts`, which lists them.
//!
//! ```toml
//! [contexts.shop]
//! url = "env:SHOP_URL"
//! production = true
//! ```

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use serde::{Deserialize, Serialize};

use super::output::{Shown, Table};
use crate::config::{Environment, Secret, environment};
use crate::db::connect::{Target, parse_given_by};

/// The variable that names the context if no flag does.
pub const VARIABLE: &str = "BUGLE_CONTEXT";

/// A database by name.
#[derive(Debug, Clone)]
pub struct Context {
    pub name: String,
    url: Secret,
    /// Whether every change must be confirmed.
    pub production: bool,
}

impl Context {
    /// The connection target. An error says which context is meant.
    pub fn target(&self) -> Result<Target> {
        let place = format!("context {:?}", self.name);
        let url = self.url.resolve(&environment).map_err(|error| {
            anyhow!(
                "{place}: {error}\nhint: set it, or change url in {}",
                shown_path(&environment)
            )
        })?;
        Ok(parse_given_by(&place, &url)?)
    }

    /// Where its URL comes from, without a password.
    fn origin(&self) -> String {
        match self.url.variable() {
            Some(name) => format!("env:{name}"),
            None => self
                .target()
                .map_or_else(|_| "not valid".into(), |target| place(&target)),
        }
    }
}

fn place(target: &Target) -> String {
    let shown = target.shown().into_iter();
    let named =
        shown.filter(|(name, value)| ["host", "port", "dbname", "user"].contains(&&**name) && !value.is_empty());
    let named: Vec<String> = named.map(|(name, value)| format!("{name}={value}")).collect();
    named.join(" ")
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    contexts: BTreeMap<String, Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    url: Secret,
    #[serde(default)]
    production: bool,
}

/// The file: in the user's configuration folder.
fn path(environment: Environment) -> Option<PathBuf> {
    let folder = |name: &str| environment(name).filter(|folder| folder.starts_with('/'));
    let config = folder("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(folder("HOME")?).join(".config")));
    Some(config?.join("bugle/config.toml"))
}

fn shown_path(environment: Environment) -> String {
    path(environment).map_or_else(
        || "$HOME/.config/bugle/config.toml".into(),
        |path| path.display().to_string(),
    )
}

/// All contexts of the user, by name. None if there is no file.
pub fn all() -> Result<Vec<Context>> {
    let Some(path) = path(&environment) else {
        return Ok(Vec::new());
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => read(&text).with_context(|| path.display().to_string()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(anyhow!("cannot read {}: {error}", path.display())),
    }
}

fn read(text: &str) -> Result<Vec<Context>> {
    // not the whole line, as the parser would show it, because it may contain a password
    let file: File = toml::from_str(text).map_err(|error| {
        let line = error
            .span()
            .map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        anyhow!(
            "line {line}: {}\nhint: for example [contexts.shop] with url = \"env:SHOP_URL\" and production = true",
            error.message()
        )
    })?;
    let context = |(name, entry): (String, Entry)| match is_name(&name) {
        true => Ok(Context {
            name,
            url: entry.url,
            production: entry.production,
        }),
        false => Err(anyhow!(
            "the context name {name:?} is not valid\nhint: Use 1 to 63 letters, digits, - and _."
        )),
    };
    file.contexts.into_iter().map(context).collect()
}

fn is_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    (1..=63).contains(&name.len()) && name.chars().all(is_allowed)
}

/// Their names, for completions. A file that cannot be read has none.
pub fn names() -> Vec<&'static str> {
    let contexts = all().unwrap_or_default().into_iter();
    contexts.map(|context| &*context.name.leak()).collect()
}

/// The context with this name.
pub fn named(name: &str) -> Result<Context> {
    let contexts = all()?;
    if let Some(context) = contexts.iter().find(|context| context.name == name) {
        return Ok(context.clone());
    }
    let known: Vec<&str> = contexts.iter().map(|context| &*context.name).collect();
    match known.as_slice() {
        [] => bail!(
            "there is no context {name:?}, because {} has none\nhint: write [contexts.{name}] and url = \"env:URL\" \
             into that file",
            shown_path(&environment)
        ),
        known => bail!("there is no context {name:?}\nhint: there are: {}", known.join(", ")),
    }
}

/// `bugle contexts`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    shown: Shown,
}

#[derive(Serialize)]
struct Line {
    name: String,
    url: String,
    production: bool,
    /// Whether it is that of BUGLE_CONTEXT.
    current: bool,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let current = environment(VARIABLE);
    let line = |context: Context| Line {
        url: context.origin(),
        current: current.as_ref() == Some(&context.name),
        production: context.production,
        name: context.name,
    };
    let lines: Vec<Line> = all()?.into_iter().map(line).collect();
    if lines.is_empty() && !arguments.shown.as_json() {
        eprintln!(
            "no contexts\nhint: write [contexts.shop] and url = \"env:SHOP_URL\" into {}",
            shown_path(&environment)
        );
    }
    arguments.shown.rows(&lines, |lines| {
        let mut table = Table::new(&["NAME", "URL", "PRODUCTION", "CURRENT"]);
        let yes = |is: bool| if is { "yes" } else { "" }.to_owned();
        for line in lines {
            let cells = [line.name.clone(), line.url.clone()];
            table.row(
                cells
                    .into_iter()
                    .chain([yes(line.production), yes(line.current)])
                    .collect(),
            );
        }
        table
    })?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_contexts_is_read_and_its_errors_name_the_line_without_a_password() {
        let contexts = read("[contexts.shop]\nurl = \"env:SHOP_URL\"\nproduction = true\n[contexts.test]\nurl = \"x\"");
        let read_ones: Vec<_> = contexts.unwrap().into_iter().map(|c| (c.name, c.production)).collect();
        assert_eq!(read_ones, [("shop".to_owned(), true), ("test".to_owned(), false)]);

        let said = read("[contexts.shop]\nurl = \"secret\"\nprod = true")
            .unwrap_err()
            .to_string();
        assert!(
            said.starts_with("line 3: unknown field `prod`") && !said.contains("secret"),
            "{said}"
        );
        let said = read("[contexts.\"a b\"]\nurl = \"x\"").unwrap_err().to_string();
        assert!(
            said.starts_with("the context name \"a b\" is not valid\nhint: "),
            "{said}"
        );
    }

    #[test]
    fn the_file_is_in_the_configuration_folder_of_the_user() {
        let of = |xdg: Option<&str>, home: Option<&str>| {
            let variable = |name: &str| match name {
                "XDG_CONFIG_HOME" => xdg.map(String::from),
                _ => home.map(String::from),
            };
            path(&variable).map(|path| path.display().to_string())
        };

        assert_eq!(
            of(Some("/c"), Some("/home/ada")).as_deref(),
            Some("/c/bugle/config.toml")
        );
        let in_home = Some("/home/ada/.config/bugle/config.toml");
        assert_eq!(of(None, Some("/home/ada")).as_deref(), in_home);
        assert_eq!(of(Some("relative"), Some("/home/ada")).as_deref(), in_home);
        assert_eq!(of(None, None), None);
    }
}
