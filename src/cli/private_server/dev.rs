//! `bugle dev`: a private database and a worker for development, until Ctrl-C.

use std::collections::BTreeMap;
#[cfg(feature = "web")]
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use clap::Args;
use tokio_postgres::types::Type;

use super::NOTHING_ELSE;

use crate::cli::log::{self, LogFlags};
use crate::cli::{output, worker};
use crate::config::{
    Action, CommandConfig, Config, Cwd, Flags, HostConfig, ProgramConfig, Secret, Settings, environment,
};
use crate::db::connect::{self, Target};
use crate::execute::registry::Registry;
use crate::private_postgres::{Options, PrivatePostgres};
use crate::schema;
use crate::worker::shutdown::Shutdown;

/// `bugle dev`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Major version of Postgres to use
    #[arg(long, value_name = "MAJOR")]
    pg: Option<u32>,

    /// If no Postgres is installed, install or download one without asking
    #[arg(long)]
    obtain: bool,

    /// Keep the data in this directory and reuse it next time, at the same port; by default it is deleted at exit
    #[arg(long, value_name = "DIRECTORY")]
    keep: Option<PathBuf>,

    /// Configuration file of the worker [default: bugle.toml, if it exists]
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Use this database, and install the schema there, instead of a private server; env:NAME reads it from a variable
    // no environment variable: DATABASE_URL is usually set for something else
    #[arg(long, value_name = "URL", conflicts_with_all = ["pg", "keep", "obtain"])]
    database_url: Option<Secret>,

    /// Address of the pages [default: 127.0.0.1:8420, or any free port]
    #[cfg(feature = "web")]
    #[arg(long, value_name = "ADDRESS:PORT", env = "BUGLE_WEB_LISTEN")]
    web: Option<SocketAddr>,

    #[command(flatten)]
    log: LogFlags,
}

/// The configuration if there is no file.
const EXAMPLE: &str = r#"
[commands.hello]
program = ["cat"]
"#;

pub fn run(mut arguments: Arguments) -> Result<ExitCode> {
    if arguments.log.level == "info" {
        // a line for each job that has ended
        arguments.log.level = "info,bugle::worker::completer=debug".into();
    }
    let _logging = log::start(&arguments.log)?;
    let file = arguments.config.clone().unwrap_or_else(|| PathBuf::from("bugle.toml"));
    // before a server is started, so that an invalid file is reported at once
    let config = match arguments.config.is_some() || file.exists() {
        true => read(&file)?,
        false => Config::from_toml(EXAMPLE)?,
    };
    let watched = Watched::new(file, &config);
    let database = DevDatabase::find(&arguments)?;
    let runtime = tokio::runtime::Runtime::new()?;
    let code = runtime.block_on(serve(&arguments, &database, config, watched));
    // executors that block a thread must not keep the process alive
    runtime.shutdown_background();
    code
}

fn read(file: &Path) -> Result<Config> {
    let config = Config::from_file(file)?;
    worker::check(&config.commands, &config.hosts)?;
    // the values are checked as when a worker starts; any database will do
    resolve("postgresql://", None, &config)?;
    Ok(config)
}

/// The files that are edited: the configuration, and the programs of its hosts. Commands start theirs for each attempt.
struct Watched {
    file: PathBuf,
    seen: Vec<(PathBuf, State)>,
}

/// When a file was changed, and its size; `None` if there is no such file.
type State = Option<(SystemTime, u64)>;

impl Watched {
    fn new(file: PathBuf, config: &Config) -> Watched {
        let seen = vec![(file.clone(), Watched::state(&file))];
        let mut watched = Watched { file, seen };
        watched.follow(config);
        watched
    }

    fn state(file: &Path) -> State {
        let about = std::fs::metadata(file).ok()?;
        Some((about.modified().ok()?, about.len()))
    }

    /// Watch the files that the hosts of this configuration name.
    fn follow(&mut self, config: &Config) {
        let files = config.hosts.values().flat_map(|host| {
            let folder = match &host.cwd {
                Cwd::Folder(folder) => folder.clone(),
                Cwd::Worker | Cwd::Workspace => PathBuf::new(),
            };
            host.argv.iter().map(move |word| folder.join(word))
        });
        self.seen.truncate(1);
        let there = files.filter(|file| file.is_file());
        self.seen
            .extend(there.map(|file| (file.clone(), Watched::state(&file))));
    }

    /// Wait until one of them is another one, and say which. While it is gone, as in the middle of saving, the old one
    /// counts.
    async fn changed(&mut self) -> PathBuf {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        loop {
            looks.tick().await;
            for (file, seen) in &mut self.seen {
                let state = Watched::state(file);
                if state.is_some() && state != *seen {
                    *seen = state;
                    return file.clone();
                }
            }
        }
    }
}

/// How often to look whether a file was changed.
const LOOK_EVERY: Duration = Duration::from_millis(300);

/// The database, and its server if that is private. Removed when dropped.
struct DevDatabase {
    url: String,
    /// The flag or variable that it comes from.
    source: String,
    /// Commands to type in another terminal.
    there: String,
    about: String,
    server: Option<PrivatePostgres>,
}

impl DevDatabase {
    fn find(arguments: &Arguments) -> Result<DevDatabase> {
        if let Some(url) = &arguments.database_url {
            return Ok(DevDatabase {
                source: url.variable().unwrap_or("--database-url").to_owned(),
                url: url.resolve(&environment)?,
                // it may contain a password
                there: "psql, with the URL you gave".into(),
                about: "The schema is installed. Ctrl-C stops the worker; the database is kept.".into(),
                server: None,
            });
        }
        for name in ["BUGLE_DATABASE_URL", "DATABASE_URL"] {
            if environment(name).is_some_and(|url| !url.is_empty()) {
                eprintln!(
                    "{name} is set but not used: this is a private server. To use that database, give --database-url \
                     env:{name}"
                );
            }
        }
        let server = PrivatePostgres::start(&Options {
            version: arguments.pg,
            obtain: arguments.obtain,
            keep: arguments.keep.clone(),
            durable: arguments.keep.is_some(),
            // not every driver accepts a socket directory as the host
            tcp: true,
            ..Options::of_bugle()?
        })?;
        let version = server.binaries().major;
        let end = match &arguments.keep {
            Some(folder) => format!("its data is kept in {}", folder.display()),
            None => "its data is deleted".into(),
        };
        Ok(DevDatabase {
            url: server.url("postgres") + NOTHING_ELSE,
            source: "the private server".into(),
            there: format!(
                "export DATABASE_URL='{}'\n  psql '{}'",
                // some drivers require TLS unless told otherwise
                server
                    .tcp_url("postgres")
                    .map_or_else(|| server.url("postgres"), |url| url + "?sslmode=disable"),
                server.url("postgres")
            ),
            about: format!("A private PostgreSQL {version} server with the schema installed. Ctrl-C stops it; {end}."),
            server: Some(server),
        })
    }
}

async fn serve(
    arguments: &Arguments,
    database: &DevDatabase,
    mut config: Config,
    mut watched: Watched,
) -> Result<ExitCode> {
    let shutdown = Shutdown::on_signals()?;
    let target = connect::parse_given_by(&database.source, &database.url)?;
    schema::migrate(&target).await?;
    #[cfg(feature = "web")]
    let pages = crate::cli::web::bind(arguments.web).await?;
    #[cfg(feature = "web")]
    let open = format!("\n  open http://{}/\n", pages.local_addr()?);
    #[cfg(not(feature = "web"))]
    let open = String::new();
    let settings = settings(database, &config)?;
    output::print(&format!(
        "{}\n\n  {}\n{open}{}\n",
        database.about,
        database.there,
        to_try(&settings)
    ))?;
    #[cfg(feature = "web")]
    {
        let target = target.clone();
        tokio::spawn(async move {
            let options = crate::web::site::Options {
                name: Some("dev".into()),
                color: Some("gray".into()),
                ..Default::default()
            };
            if let Err(error) = crate::web::site::serve(pages, &target, options).await {
                tracing::warn!(event = "web", %error);
            }
        });
    }
    #[cfg(not(feature = "web"))]
    let _ = arguments;
    loop {
        let settings = self::settings(database, &config)?;
        for problem in problems(&settings, &target).await? {
            eprintln!("warning: {}", output::harmless(&problem));
        }
        match until_changed(settings, &shutdown, &mut watched).await? {
            After::Edit(changed) => {
                config = *changed;
                watched.follow(&config);
            }
            After::End(code) => return Ok(code),
        }
    }
}

fn settings(database: &DevDatabase, config: &Config) -> Result<Settings> {
    // deleted together with the server
    let workdir = database.server.as_ref().map(|server| server.host().join("work"));
    Ok(Settings {
        database_url_from: database.source.clone(),
        ..resolve(&database.url, workdir, config)?
    })
}

fn resolve(url: &str, workdir: Option<PathBuf>, config: &Config) -> Result<Settings> {
    // the database_url of the file is never used here
    let flags = Flags {
        database_url: Some(Secret::new(url)),
        name: Some("dev".into()),
        workdir: config.workdir.clone().or(workdir),
        ..Flags::default()
    };
    Ok(Settings::resolve(flags, Some(config.clone()))?)
}

/// Why a worker has ended.
enum After {
    /// The file was changed: this is what it says now.
    Edit(Box<Config>),
    End(ExitCode),
}

/// Run a worker until a file is changed, or it is asked to stop. A worker that cannot start, because its port is taken
/// for example, ends nothing: the server stays, with its data, and the next edit counts.
async fn until_changed(settings: Settings, shutdown: &Shutdown, watched: &mut Watched) -> Result<After> {
    let stop = Shutdown::new();
    let mut worker = std::pin::pin!(worker::serve(settings, Registry::new(), stop.clone()));
    let mut changed = None;
    let mut asked = 0;
    let mut has_ended = false;
    loop {
        tokio::select! {
            code = &mut worker, if !has_ended => {
                match changed.take().filter(|_| !shutdown.drain.is_cancelled()) {
                    Some(config) => return Ok(After::Edit(config)),
                    None if code.is_ok() || asked > 0 => return Ok(After::End(code?)),
                    None => {}
                }
                has_ended = true;
                if let Err(error) = code {
                    let (error, file) = (crate::cli::message(&error), watched.file.display());
                    eprintln!("no worker runs: {error}\nCorrect {file}; Ctrl-C ends bugle dev");
                }
            }
            () = shutdown.drain.cancelled(), if has_ended => return Ok(After::End(ExitCode::SUCCESS)),
            () = shutdown.drain.cancelled(), if asked == 0 => {
                asked = 1;
                stop.request();
            }
            () = shutdown.now.cancelled(), if asked == 1 => {
                asked = 2;
                stop.request();
            }
            edited = watched.changed(), if changed.is_none() => {
                let file = edited.display();
                match read(&watched.file) {
                    Ok(config) => {
                        let served = served(&config.commands, &config.hosts);
                        let told = format!("{file} has changed: the worker restarts and serves {served}\n");
                        output::print(&told)?;
                        if has_ended {
                            return Ok(After::Edit(Box::new(config)));
                        }
                        changed = Some(Box::new(config));
                        stop.request();
                    }
                    Err(error) => {
                        let error = crate::cli::message(&error);
                        eprintln!("{file} has changed, but cannot be used: {error}");
                    }
                }
            }
        }
    }
}

/// What would make every job of a command fail.
async fn problems(settings: &Settings, target: &Target) -> Result<Vec<String>> {
    let client = target.client("bugle dev").await?;
    let mut problems = Vec::new();
    for (name, command) in &settings.commands {
        let problem = match &command.action {
            Action::Program(program) => missing_program(program),
            Action::Sql(sql) => match client.prepare_typed(&sql.statement, &[Type::JSONB]).await {
                Ok(_) => None,
                Err(error) => Some(crate::Error::from(error).to_string()),
            },
            Action::Http(_) => None,
        };
        problems.extend(problem.map(|problem| format!("command {name}: {problem}")));
    }
    Ok(problems)
}

fn missing_program(program: &ProgramConfig) -> Option<String> {
    let file = Path::new(program.argv.first()?);
    let is_program = |file: &Path| {
        let about = std::fs::metadata(file);
        about.is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
    };
    let is_there = match (file.components().count(), &program.cwd) {
        (1, _) => std::env::split_paths(&std::env::var_os("PATH")?).any(|folder| is_program(&folder.join(file))),
        (_, Cwd::Worker) => is_program(file),
        (_, Cwd::Folder(folder)) => is_program(&folder.join(file)),
        // it is prepared for each attempt
        (_, Cwd::Workspace) => true,
    };
    (!is_there).then(|| format!("there is no program {}", file.display()))
}

/// A payload that a command can do something with: with the keys that its statement reads.
fn payload_for(action: &Action) -> String {
    let Action::Sql(sql) = action else {
        return r#"{"name": "Ada"}"#.into();
    };
    let mut fields = serde_json::Map::new();
    for read in sql.statement.split("->").skip(1) {
        let Some((key, rest)) = read
            .trim_start_matches('>')
            .trim_start()
            .strip_prefix('\'')
            .and_then(|r| r.split_once('\''))
        else {
            continue;
        };
        let rest = rest.trim_start_matches([')', ' ']);
        let numbers = [
            "::int",
            "::bigint",
            "::smallint",
            "::numeric",
            "::float",
            "::real",
            "::double",
        ];
        let is_number = numbers.iter().any(|cast| rest.starts_with(cast));
        let value = if is_number { 17.into() } else { "Ada".into() };
        fields.entry(key).or_insert(value);
    }
    serde_json::Value::Object(fields).to_string()
}

/// An INSERT of a job that this worker serves.
fn to_try(settings: &Settings) -> String {
    let served = served(&settings.commands, &settings.hosts);
    let Some((command, config)) = settings.commands.first_key_value() else {
        return format!("\nThe worker serves {served}: bugle workers lists them.\n");
    };
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let payload = quoted(&payload_for(&config.action));
    let insert = match settings
        .queues
        .iter()
        .find(|(queue, _)| queue == "default")
        .or(settings.queues.first())
    {
        Some((queue, _)) if queue != "default" => {
            format!(
                "(command, payload, queue) values ({}, {payload}, {})",
                quoted(command),
                quoted(queue)
            )
        }
        _ => format!("(command, payload) values ({}, {payload})", quoted(command)),
    };
    format!(
        "\nThe worker serves: {served}. Try:\n\n  insert into bugle.jobs {insert};\n  \
         select id, command, state, result from bugle.jobs order by id desc limit 5;\n"
    )
}

/// What a file lets a worker run. The commands of a host are known when it has started.
fn served(commands: &BTreeMap<String, CommandConfig>, hosts: &BTreeMap<String, HostConfig>) -> String {
    let mut served: Vec<String> = commands.keys().cloned().collect();
    served.extend(hosts.keys().map(|host| format!("the commands of the host {host}")));
    output::one_line(&served.join(", "))
}
