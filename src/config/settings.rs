//! What a worker goes by in the end: flags over the environment over the file over the defaults.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, fs};

use clap::builder::BoolishValueParser;

use super::value::{Environment, Secret, environment, parse_duration};
use super::{Action, CommandConfig, Config, check_name, check_queue};
use crate::db::connect::is_named_by;
use crate::error::{Error, Result};
use crate::execute::workspace::Workspaces;
use crate::observe::check_address;

/// What is said about a worker on the command line, or in the environment.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Flags {
    /// The worker's file
    #[arg(long, short, value_name = "FILE", env = "BUGLE_CONFIG")]
    pub config: Option<PathBuf>,
    /// Where the jobs are [else: the file's database_url, then DATABASE_URL]
    #[arg(long, value_name = "URL", env = "BUGLE_DATABASE_URL", hide_env_values = true)]
    pub database_url: Option<Secret>,
    /// A queue to serve and how many jobs of it to run at once; can be repeated, and replaces those of the file
    #[arg(long = "queue", short, value_name = "NAME=SLOTS", env = "BUGLE_QUEUES", value_delimiter = ',',
        value_parser = parse_queue)]
    pub queues: Vec<(String, u32)>,
    /// What this worker calls itself
    #[arg(long, env = "BUGLE_NAME")]
    pub name: Option<String>,
    /// How long running jobs may go on after the worker was asked to stop [default: 30s]
    #[arg(long, value_name = "TIME", env = "BUGLE_DRAIN", value_parser = parse_duration)]
    pub drain: Option<Duration>,
    /// How often to look for jobs even if no bell rang; 0s for never [default: 10s]
    #[arg(long, value_name = "TIME", env = "BUGLE_SAFETY_POLL", value_parser = parse_duration)]
    pub safety_poll: Option<Duration>,
    /// Where working folders are made [default: in the system's folder for temporary files]
    #[arg(long, value_name = "FOLDER", env = "BUGLE_WORKDIR")]
    pub workdir: Option<PathBuf>,
    /// Bring the schema up to date first
    #[arg(long, value_name = "BOOL", env = "BUGLE_MIGRATE", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub migrate: Option<bool>,
    /// How many connections executors share [default: 8]
    #[arg(long, value_name = "NUMBER", env = "BUGLE_POOL_SIZE")]
    pub pool_size: Option<usize>,
    /// Stop when there is no job left that could run
    #[arg(long)]
    pub until_empty: bool,
    /// Answer on this address: /metrics, /livez, /readyz and the JSON API
    #[arg(long, value_name = "ADDRESS:PORT", env = "BUGLE_LISTEN")]
    pub listen: Option<SocketAddr>,
    /// Who sends it may change things by the API; env:NAME takes it from a variable
    #[arg(long, value_name = "TOKEN", env = "BUGLE_TOKEN", hide_env_values = true)]
    pub token: Option<Secret>,
    /// A file that holds the token: unlike an argument, it is not visible to every user of this machine
    #[arg(long, value_name = "FILE", env = "BUGLE_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
}

/// What a worker goes by.
#[derive(Clone)]
pub struct Settings {
    /// Where the jobs are.
    pub database_url: String,
    /// What gave that address, for errors: a flag, a variable or a file.
    pub database_url_from: String,
    /// What this worker calls itself.
    pub name: String,
    /// The queues it serves, and how many jobs of each it runs at once.
    pub queues: Vec<(String, u32)>,
    /// The commands it can carry out without any code.
    pub commands: BTreeMap<String, CommandConfig>,
    /// How long running jobs may go on after the worker was asked to stop.
    pub drain: Duration,
    /// How often to look for jobs even if no bell rang; zero for never.
    pub safety_poll: Duration,
    /// Where working folders are made.
    pub workdir: PathBuf,
    /// Whether to bring the schema up to date at the start.
    pub migrate: bool,
    /// How many connections executors share.
    pub pool_size: usize,
    /// Whether to stop when there is no job left that could run.
    pub until_empty: bool,
    /// Where to answer questions about this worker.
    pub listen: Option<SocketAddr>,
    /// Bearer token required for writes.
    pub token: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            database_url: String::new(),
            database_url_from: "the connection string".into(),
            name: "worker".into(),
            queues: vec![("default".into(), 4)],
            commands: BTreeMap::new(),
            drain: Duration::from_secs(30),
            safety_poll: Duration::from_secs(10),
            workdir: Workspaces::default_base(),
            migrate: false,
            pool_size: 8,
            until_empty: false,
            listen: None,
            token: None,
        }
    }
}

impl Settings {
    /// Put together what flags, environment and file say.
    ///
    /// # Errors
    /// If no database is named, a variable that is referred to is not set, or a value is out of its range.
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
            .filter_map(|secret| secret.variable().map(str::to_owned))
            .collect();
        let token = Token::one_of(flags.token, flags.token_file)?.or(Token::one_of(file.token, file.token_file)?);
        let (database_url, database_url_from) = database_url(environment, flags.database_url, file.database_url)?;
        let settings = Settings {
            database_url,
            database_url_from,
            name: flags.name.or(file.name).unwrap_or(default.name),
            queues: queues(flags.queues, file.queues)?.unwrap_or(default.queues),
            commands: without_secrets(file.commands, &withheld),
            drain: flags.drain.or(file.drain).unwrap_or(default.drain),
            safety_poll: flags.safety_poll.or(file.safety_poll).unwrap_or(default.safety_poll),
            workdir: flags.workdir.or(file.workdir).unwrap_or(default.workdir),
            migrate: flags.migrate.or(file.migrate).unwrap_or(default.migrate),
            pool_size: flags.pool_size.or(file.pool_size).unwrap_or(default.pool_size),
            until_empty: flags.until_empty,
            listen: flags.listen.or(file.listen),
            token: token.map(|token| token.read(environment)).transpose()?,
        };
        settings.check()?;
        Ok(settings)
    }

    fn check(&self) -> Result<()> {
        check_name("worker", &self.name, 200)?;
        if let Some(address) = self.listen {
            check_address(address, self.token.is_some())?;
        }
        if !(1..=1000).contains(&self.pool_size) {
            return Err(Error::new(format!(
                "pool_size is {}; it must be 1 to 1000",
                self.pool_size
            )));
        }
        if !self.safety_poll.is_zero() && self.safety_poll < Duration::from_millis(100) {
            return Err(Error::new("safety_poll is shorter than 100ms").hint(
                "Jobs are announced by a bell; this is only for bells that were not heard. 0s switches it off.",
            ));
        }
        Ok(())
    }
}

/// All but the address of the database, which may hold a password.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("name", &self.name)
            .field("queues", &self.queues)
            .field("commands", &self.commands)
            .field("drain", &self.drain)
            .field("safety_poll", &self.safety_poll)
            .field("workdir", &self.workdir)
            .field("migrate", &self.migrate)
            .field("pool_size", &self.pool_size)
            .field("until_empty", &self.until_empty)
            .field("listen", &self.listen)
            .finish_non_exhaustive()
    }
}

/// `DATABASE_URL` comes last: it is often set for something else.
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
        return Err(Error::new("no database is named").hint(
            "Give --database-url, or set BUGLE_DATABASE_URL, or PGHOST and the like, or database_url in the \
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

/// Which of the two gave this address: the parser of arguments does not tell.
pub(crate) fn flag_or_variable(url: &str, environment: Environment) -> &'static str {
    match environment("BUGLE_DATABASE_URL").is_some_and(|value| value == url) {
        true => "BUGLE_DATABASE_URL",
        false => "--database-url",
    }
}

/// The variables that hold the worker's own secrets are not inherited by programs.
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

/// Where the token is.
enum Token {
    Given(Secret),
    File(PathBuf),
}

impl Token {
    fn one_of(given: Option<Secret>, file: Option<PathBuf>) -> Result<Option<Token>> {
        match (given, file) {
            (Some(_), Some(_)) => Err(Error::new("both a token and a file with a token are given")
                .hint("Give one of --token (BUGLE_TOKEN, token) and --token-file (BUGLE_TOKEN_FILE, token_file).")),
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
        // a short one could be guessed
        match token.len() < 16 || token.contains(char::is_whitespace) {
            true => {
                Err(Error::new("the token has fewer than 16 characters, or blanks")
                    .hint("Make one: openssl rand -hex 32"))
            }
            false => Ok(token),
        }
    }
}

/// A file that others can write to is refused: they would choose the token. One that others can read is only warned of,
/// since container platforms mount secrets like that.
fn read_token(path: &Path) -> Result<String> {
    let cannot = |error: std::io::Error| Error::new(format!("cannot read the token file {}: {error}", path.display()));
    let mode = fs::metadata(path).map_err(cannot)?.permissions().mode();
    let hint = format!("Keep it to yourself: chmod 600 {}", path.display());
    if mode & 0o022 != 0 {
        return Err(Error::new(format!("other users can write to the token file {}", path.display())).hint(hint));
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
        return Err(Error::new("a queue is named twice"));
    }
    let queues = if flags.is_empty() { file } else { flags };
    Ok((!queues.is_empty()).then(|| queues.into_iter().collect()))
}

fn parse_queue(text: &str) -> Result<(String, u32), String> {
    let (queue, slots) = text.rsplit_once('=').ok_or("expected NAME=SLOTS, such as mail=4")?;
    let slots = slots
        .trim()
        .parse()
        .map_err(|_| format!("{slots:?} is no number of slots"))?;
    check_queue(queue.trim(), slots).map_err(|error| error.to_string())?;
    Ok((queue.trim().to_string(), slots))
}
