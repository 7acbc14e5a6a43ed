//! From flags, environment and file to settings, in this order of precedence.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::BoolishValueParser;

use super::settings::{check_queue, default_queues};
use super::{
    Action, CommandConfig, Config, Database, DatabaseConfig, Environment, HostConfig, Secret, Settings, environment,
};
use crate::db::connect::is_named_by;
use crate::error::{Error, Result};

/// Settings from the command line and the environment.
#[derive(Debug, Clone, Default, clap::Args)]
#[non_exhaustive]
pub struct Flags {
    /// Configuration file
    #[arg(long, short, value_name = "FILE", env = "BUGLE_CONFIG")]
    pub config: Option<PathBuf>,
    /// Database that holds the jobs [fallback: database_url of the file, then DATABASE_URL]
    #[arg(long, value_name = "URL", env = "BUGLE_DATABASE_URL", hide_env_values = true)]
    pub database_url: Option<Secret>,
    /// Queue to serve and number of its jobs to run at once; may be repeated; replaces the queues of the file
    #[arg(long = "queue", short, value_name = "NAME=SLOTS", env = "BUGLE_QUEUES", value_delimiter = ',',
        value_parser = parse_queue)]
    pub queues: Vec<(String, u32)>,
    /// Name of the worker
    #[arg(long, env = "BUGLE_NAME")]
    pub name: Option<String>,
    /// How long running jobs may continue after the worker was asked to stop [default: 30s]
    #[arg(long, value_name = "DURATION", env = "BUGLE_DRAIN", value_parser = parse_duration)]
    pub drain: Option<Duration>,
    /// How often to poll for jobs without a notification; 0s for never [default: 10s]
    #[arg(long, value_name = "DURATION", env = "BUGLE_SAFETY_POLL", value_parser = parse_duration)]
    pub safety_poll: Option<Duration>,
    /// Parent directory of the working directories of jobs [default: in the system's temporary directory]
    #[arg(long, value_name = "DIRECTORY", env = "BUGLE_WORKDIR")]
    pub workdir: Option<PathBuf>,
    /// Install or upgrade the schema at startup
    #[arg(long, value_name = "BOOL", env = "BUGLE_MIGRATE", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub migrate: Option<bool>,
    /// Size of the connection pool for executors [default: 8]
    #[arg(long, value_name = "N", env = "BUGLE_POOL_SIZE")]
    pub pool_size: Option<usize>,
    /// Exit when there are no more jobs to run
    #[arg(long)]
    pub until_empty: bool,
    /// Address for /metrics, /livez, /readyz and the JSON API
    #[arg(long, value_name = "ADDRESS:PORT", env = "BUGLE_LISTEN")]
    pub listen: Option<SocketAddr>,
    /// Bearer token required for writes to the JSON API; env:NAME reads it from a variable
    #[arg(long, value_name = "TOKEN", env = "BUGLE_TOKEN", hide_env_values = true)]
    pub token: Option<Secret>,
    /// File that contains the token; unlike an argument, it is not visible to other users of this machine
    #[arg(long, value_name = "FILE", env = "BUGLE_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
}

impl Settings {
    /// Combine the flags, the environment and the file.
    ///
    /// # Errors
    /// If no database is configured, an environment variable is not set, or a value is out of range.
    pub fn resolve(flags: Flags, file: Option<Config>) -> Result<Settings> {
        Settings::resolve_in(&environment, flags, file)
    }

    pub(super) fn resolve_in(environment: Environment, flags: Flags, file: Option<Config>) -> Result<Settings> {
        let file = file.unwrap_or_default();
        let default = Settings::default();
        let secrets = [&flags.database_url, &flags.token, &file.database_url, &file.token];
        let withheld: Vec<String> = secrets
            .into_iter()
            .flatten()
            .chain(file.databases.values().map(|database| &database.url))
            .filter_map(|secret| secret.variable().map(str::to_owned))
            .collect();
        let token = Token::one_of(flags.token, flags.token_file)?.or(Token::one_of(file.token, file.token_file)?);
        let databases = databases(environment, file.databases)?;
        let queues = queues(flags.queues, file.queues)?;
        let (database_url, database_url_from) = match databases.is_empty() {
            true => database_url(environment, flags.database_url, file.database_url)?,
            // checked below: DATABASE_URL is not meant, but a flag or a key of the file is
            false => {
                let url = flags.database_url.or(file.database_url);
                (
                    url.map(|url| url.expose().to_owned()).unwrap_or_default(),
                    String::new(),
                )
            }
        };
        let settings = Settings {
            database_url,
            database_url_from,
            name: flags.name.or(file.name).unwrap_or(default.name),
            queues: match databases.is_empty() {
                true => queues.unwrap_or_else(|| default_queues(&file.hosts)),
                false => queues.unwrap_or_default(),
            },
            databases,
            slots: file.slots,
            commands: without_secrets(file.commands, &withheld),
            hosts: hosts_without_secrets(file.hosts, &withheld),
            drain: flags.drain.or(file.drain).unwrap_or(default.drain),
            safety_poll: flags.safety_poll.or(file.safety_poll).unwrap_or(default.safety_poll),
            workdir: flags.workdir.or(file.workdir).unwrap_or(default.workdir),
            migrate: flags.migrate.or(file.migrate).unwrap_or(default.migrate),
            pool_size: flags.pool_size.or(file.pool_size).unwrap_or(default.pool_size),
            until_empty: flags.until_empty,
            listen: flags.listen.or(file.listen),
            token: token.map(|token| token.read(environment)).transpose()?,
            stuck_after: default.stuck_after,
        };
        settings.check()?;
        Ok(settings)
    }
}

fn databases(environment: Environment, file: BTreeMap<String, DatabaseConfig>) -> Result<Vec<Database>> {
    let read = |(name, database): (String, DatabaseConfig)| {
        let url = database.url.resolve(environment);
        Ok(Database {
            url: url.map_err(|error| error.in_context(&format!("databases.{name}.url")))?,
            url_from: match database.url.variable() {
                Some(variable) => format!("{variable}, which is named by databases.{name}"),
                None => format!("databases.{name} of the worker's file"),
            },
            queues: database.queues.into_iter().collect(),
            name,
        })
    };
    file.into_iter().map(read).collect()
}

/// `DATABASE_URL` has the lowest precedence, because it is often set for something else.
fn database_url(environment: Environment, flag: Option<Secret>, file: Option<Secret>) -> Result<(String, String)> {
    let given = [
        flag.map(|url| (flag_or_variable(url.expose(), environment), url)),
        file.map(|url| ("database_url of the worker's file", url)),
        environment("DATABASE_URL").map(|url| ("DATABASE_URL", Secret::new(url))),
    ];
    let Some((source, url)) = given.into_iter().flatten().find(|(_, url)| !url.expose().is_empty()) else {
        if is_named_by(environment) {
            return Ok((String::new(), "the connection string".into()));
        }
        return Err(Error::new("no database is configured").with_hint(
            "Give --database-url, or set BUGLE_DATABASE_URL, PGHOST, or database_url in the \
                worker's file.",
        ));
    };
    let source = match url.variable() {
        Some(variable) => format!("{variable}, which is named by {source}"),
        None => source.to_owned(),
    };
    let url = url
        .resolve(environment)
        .map_err(|error| error.in_context("database_url"))?;
    Ok((url, source))
}

/// Whether this URL comes from the flag or the variable; clap does not say.
pub(crate) fn flag_or_variable(url: &str, environment: Environment) -> &'static str {
    match environment("BUGLE_DATABASE_URL").is_some_and(|value| value == url) {
        true => "BUGLE_DATABASE_URL",
        false => "--database-url",
    }
}

/// Programs do not inherit the variables that contain the worker's own secrets.
fn without_secrets(
    mut commands: BTreeMap<String, CommandConfig>,
    withheld: &[String],
) -> BTreeMap<String, CommandConfig> {
    for command in commands.values_mut() {
        if let Action::Program(program) = &mut command.action {
            program.env.withheld.extend_from_slice(withheld);
        }
    }
    commands
}

fn hosts_without_secrets(mut hosts: BTreeMap<String, HostConfig>, withheld: &[String]) -> BTreeMap<String, HostConfig> {
    for host in hosts.values_mut() {
        host.env.withheld.extend_from_slice(withheld);
    }
    hosts
}

/// The source of the token.
enum Token {
    Given(Secret),
    File(PathBuf),
}

impl Token {
    fn one_of(given: Option<Secret>, file: Option<PathBuf>) -> Result<Option<Token>> {
        match (given, file) {
            (Some(_), Some(_)) => Err(Error::new("both a token and a token file are given")
                .with_hint("Give either --token (BUGLE_TOKEN, token) or --token-file (BUGLE_TOKEN_FILE, token_file).")),
            (Some(token), None) => Ok(Some(Token::Given(token))),
            (None, Some(file)) => Ok(Some(Token::File(file))),
            (None, None) => Ok(None),
        }
    }

    fn read(self, environment: Environment) -> Result<String> {
        let token = match self {
            Token::Given(token) => token.resolve(environment).map_err(|error| error.in_context("token"))?,
            Token::File(path) => read_token(&path)?,
        };
        // a short token could be guessed
        match token.len() < 16 || token.contains(char::is_whitespace) {
            true => Err(Error::new("the token has fewer than 16 characters, or contains blanks")
                .with_hint("Generate one with: openssl rand -hex 32")),
            false => Ok(token),
        }
    }
}

/// A file that others can write to is rejected, because they could choose the token. A file that others can read only
/// causes a warning, because container platforms mount secrets like that.
fn read_token(path: &Path) -> Result<String> {
    let cannot = |error: std::io::Error| Error::new(format!("cannot read the token file {}: {error}", path.display()));
    let mode = fs::metadata(path).map_err(cannot)?.permissions().mode();
    let hint = format!("Restrict its permissions: chmod 600 {}", path.display());
    if mode & 0o022 != 0 {
        return Err(Error::new(format!("other users can write to the token file {}", path.display())).with_hint(hint));
    }
    if mode & 0o004 != 0 {
        tracing::warn!(event = "config", file = %path.display(), hint, "other users can read the token file");
    }
    Ok(fs::read_to_string(path).map_err(cannot)?.trim().to_owned())
}

fn queues(flags: Vec<(String, u32)>, file: BTreeMap<String, u32>) -> Result<Option<Vec<(String, u32)>>> {
    let named = flags.len();
    let flags: BTreeMap<String, u32> = flags.into_iter().collect();
    if flags.len() < named {
        return Err(Error::new("a queue is given twice"));
    }
    let queues = if flags.is_empty() { file } else { flags };
    Ok((!queues.is_empty()).then(|| queues.into_iter().collect()))
}

fn parse_queue(text: &str) -> Result<(String, u32), String> {
    let (queue, slots) = text.rsplit_once('=').ok_or("expected NAME=SLOTS, such as mail=4")?;
    let slots = slots
        .trim()
        .parse()
        .map_err(|_| format!("{slots:?} is not a valid number of slots"))?;
    check_queue(queue.trim(), slots).map_err(|error| error.to_string())?;
    Ok((queue.trim().to_string(), slots))
}

/// For flags: a duration such as "5m".
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write it as \"30s\", \"5m\" or \"1h 30m\""))
}
