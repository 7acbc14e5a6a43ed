//! `bugle dev`: a private database and a worker for development, until Ctrl-C.

#[cfg(feature = "web")]
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::NOTHING_ELSE;

use crate::cli::log::{self, LogFlags};
use crate::cli::{output, worker};
use crate::config::{Config, Flags, Secret, Settings, environment};
use crate::db::connect;
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

    /// Keep the data in this directory and reuse it next time; by default it is deleted at exit
    #[arg(long, value_name = "FOLDER")]
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

pub fn run(arguments: Arguments) -> Result<ExitCode> {
    let _logging = log::start(&arguments.log)?;
    let config = match &arguments.config {
        Some(file) => Config::from_file(file)?,
        None if Path::new("bugle.toml").exists() => Config::from_file(Path::new("bugle.toml"))?,
        None => Config::from_toml(EXAMPLE)?,
    };
    // before a server is started, so that an invalid file is reported at once
    worker::executors(Registry::new(), &config.commands, &config.hosts)?;
    let database = DevDatabase::find(&arguments)?;
    let runtime = tokio::runtime::Runtime::new()?;
    let code = runtime.block_on(serve(&arguments, &database, config));
    // executors that block a thread must not keep the process alive
    runtime.shutdown_background();
    code
}

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

async fn serve(arguments: &Arguments, database: &DevDatabase, config: Config) -> Result<ExitCode> {
    let shutdown = Shutdown::on_signals()?;
    let target = connect::parse_given_by(&database.source, &database.url)?;
    schema::migrate(&target).await?;
    #[cfg(feature = "web")]
    let pages = crate::cli::web::bind(arguments.web).await?;
    // the database_url of the file is never used here
    let flags = Flags {
        database_url: Some(Secret::new(&database.url)),
        name: Some("dev".into()),
        // deleted together with the server
        workdir: config
            .workdir
            .clone()
            .or(database.server.as_ref().map(|server| server.host().join("work"))),
        ..Flags::default()
    };
    let settings = Settings {
        database_url_from: database.source.clone(),
        ..Settings::resolve(flags, Some(config))?
    };
    #[cfg(feature = "web")]
    let open = format!("\n  open http://{}/\n", pages.local_addr()?);
    #[cfg(not(feature = "web"))]
    let open = String::new();
    output::print(&format!(
        "{}\n\n  {}\n{open}{}\n",
        database.about,
        database.there,
        to_try(&settings)
    ))?;
    #[cfg(feature = "web")]
    tokio::spawn(async move {
        let options = crate::web::site::Options {
            name: Some("dev".into()),
            colour: Some("grey".into()),
            ..Default::default()
        };
        if let Err(error) = crate::web::site::serve(pages, &target, options).await {
            tracing::warn!(event = "web", %error);
        }
    });
    worker::serve(settings, Registry::new(), shutdown).await
}

/// An INSERT of a job that this worker serves.
fn to_try(settings: &Settings) -> String {
    let Some(command) = settings.commands.keys().next() else {
        return String::new();
    };
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let insert = match settings
        .queues
        .iter()
        .find(|(queue, _)| queue == "default")
        .or(settings.queues.first())
    {
        Some((queue, _)) if queue != "default" => {
            format!(
                "(command, payload, queue) values ({}, '{{\"name\": \"Ada\"}}', {})",
                quoted(command),
                quoted(queue)
            )
        }
        _ => format!(
            "(command, payload) values ({}, '{{\"name\": \"Ada\"}}')",
            quoted(command)
        ),
    };
    let commands: Vec<&str> = settings.commands.keys().map(String::as_str).collect();
    format!(
        "\nThe worker serves: {}. Try:\n\n  insert into bugle.jobs {insert};\n  \
         select id, command, state, result from bugle.jobs order by id desc limit 5;\n",
        output::one_line(&commands.join(", "))
    )
}
