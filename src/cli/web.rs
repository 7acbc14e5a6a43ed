//! `bugle web`: the management pages.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use tokio::net::TcpListener;

use super::connect::Connect;
use super::contexts;
use super::log::{self, LogFlags};
use super::output;
#[cfg(feature = "dev")]
use super::private_server::shop::Shop;
use crate::config::{Config, DatabaseConfig, environment};
use crate::db::connect::{Target, parse_given_by};
use crate::web::access::Mode;
use crate::web::server;
use crate::web::several::Named;
use crate::web::site::{self, COLORS, Options};
use crate::worker::shutdown::Shutdown;

/// Where the pages are, unless another address is given.
const USUAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8420);

/// Bind the address that was given, which has to be of this machine, or else the usual one, or else any free port.
pub async fn bind(given: Option<SocketAddr>) -> Result<TcpListener> {
    if let Some(address) = given {
        check(address, &Mode::Open)?;
        return Ok(server::bind(address).await?);
    }
    match server::bind(USUAL).await {
        Ok(listener) => Ok(listener),
        Err(_) => Ok(server::bind(SocketAddr::new(USUAL.ip(), 0)).await?),
    }
}

/// `bugle web`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    connect: Connect,

    /// Address to listen on; other machines can only be let in with --login or --trust-header
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        env = "BUGLE_WEB_LISTEN",
        default_value_t = USUAL
    )]
    listen: SocketAddr,

    /// Everyone signs in with a Postgres login, and acts with its rights and under its name
    #[arg(long, env = "BUGLE_WEB_LOGIN", conflicts_with = "trust_header")]
    login: bool,

    /// Header in which a proxy names the Postgres role of a person it has authenticated: X-Forwarded-User
    #[arg(long, value_name = "HEADER", requires = "trust_from")]
    trust_header: Option<String>,

    /// Address of that proxy; may be given several times
    #[arg(long, value_name = "IP", requires = "trust_header")]
    trust_from: Vec<IpAddr>,

    /// List the databases of all contexts, and serve the pages of each below /db/NAME
    #[arg(long, conflicts_with_all = ["config", "context"])]
    all_contexts: bool,

    /// The same for the [databases] of this worker's file
    #[arg(long, value_name = "FILE", conflicts_with = "context")]
    config: Option<PathBuf>,

    /// Change nothing: no buttons, and every change is rejected
    #[arg(long)]
    read_only: bool,

    /// Name of this instance, in the header and the title
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Color of this instance
    #[arg(long, value_name = "COLOR", value_parser = COLORS)]
    color: Option<String>,

    /// Path below which a proxy serves the pages: /bugle
    #[arg(long, value_name = "PATH", default_value = "")]
    base_path: String,

    /// URL of a trace in another program, with {trace_id}, {job} or {worker}, such as
    /// `https://traces.example.org/{trace_id}`
    #[arg(long, value_name = "URL", value_parser = template)]
    trace_url: Option<String>,

    /// URL of the logs of a job in another program, with {job}, {worker} or {trace_id}
    #[arg(long, value_name = "URL", value_parser = template)]
    log_url: Option<String>,

    /// Further host name that the pages are reached by, through a proxy or a tunnel; may be given several times
    #[arg(long, value_name = "HOST")]
    allow_host: Vec<String>,

    /// Bearer token required for changes by the JSON API
    #[arg(long, value_name = "TOKEN", env = "BUGLE_TOKEN", hide_env_values = true)]
    token: Option<String>,

    /// Start a demo shop: a private database with sample jobs, and workers that process them. Removed at exit
    #[cfg(feature = "dev")]
    #[arg(long, conflicts_with = "database_url")]
    demo: bool,

    #[command(flatten)]
    log: LogFlags,
}

/// A URL of the web in which names in braces stand for ids.
fn template(url: &str) -> Result<String, String> {
    let is_web = url.starts_with("https://") || url.starts_with("http://");
    let rest = ["{trace_id}", "{job}", "{worker}"]
        .iter()
        .fold(url.to_owned(), |url, name| url.replace(name, ""));
    match is_web && rest.len() < url.len() && !rest.contains(['{', '}', ' ', '"', '<']) {
        true => Ok(url.to_owned()),
        false => Err("not a URL with {trace_id}, {job} or {worker}, such as https://logs.example.org/?q={job}".into()),
    }
}

impl Arguments {
    fn demo(&self) -> bool {
        #[cfg(feature = "dev")]
        return self.demo;
        #[cfg(not(feature = "dev"))]
        false
    }
}

pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    // what the shop's workers log would hide the address
    let is_demo = arguments.demo();
    let _logging = (!is_demo).then(|| log::start(&arguments.log)).transpose()?;
    let address = arguments.listen;
    let mode = mode(&arguments)?;
    if arguments.token.as_ref().is_some_and(|token| token.len() < 16) {
        bail!("the token has fewer than 16 characters\nhint: for example, openssl rand -hex 16");
    }
    let base_path = arguments.base_path.trim_end_matches('/');
    let is_path = |path: &str| path.chars().all(|c| c.is_ascii_alphanumeric() || "/-_.~".contains(c));
    if !base_path.is_empty() && (!base_path.starts_with('/') || base_path.contains("//") || !is_path(base_path)) {
        bail!("--base-path {base_path:?} is not a path\nhint: for example /bugle");
    }
    let is_several = arguments.all_contexts || arguments.config.is_some();
    let several = match is_several {
        true => several(arguments.config.as_deref())?,
        false => Vec::new(),
    };
    if is_several && several.is_empty() {
        bail!(
            "there are no databases to list\nhint: --config names a file with [databases]; bugle contexts lists the \
             contexts"
        );
    }
    if is_several && mode == Mode::Login {
        bail!(
            "--login is for one database, and there are several\nhint: give --trust-header, or start bugle web for \
             each database"
        );
    }
    let connect = arguments.connect;
    let options = Options {
        name: arguments.name,
        color: arguments.color,
        base_path: base_path.to_owned(),
        read_only: arguments.read_only,
        hosts: arguments.allow_host,
        token: arguments.token,
        trace_url: arguments.trace_url,
        log_url: arguments.log_url,
        mode,
    };
    let listener = server::bind(address).await?;
    let address = listener.local_addr()?;
    let open = format!("Bugle is at http://{address}{base_path}/\n");
    let shutdown = Shutdown::on_signals()?;
    #[cfg(feature = "dev")]
    if is_demo {
        return demo(listener, options, &open, shutdown).await;
    }
    if is_several {
        output::print(&open)?;
        tokio::select! {
            served = site::serve_several(listener, several, options) => served?,
            () = shutdown.drain.cancelled() => {}
        }
        return Ok(ExitCode::SUCCESS);
    }
    let target = connect.target()?;
    output::print(&open)?;
    tokio::select! {
        served = site::serve(listener, &target, options) => served?,
        () = shutdown.drain.cancelled() => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// The databases to list: those of a worker's file, or of all contexts. One whose URL is not known is listed with the
/// reason.
fn several(config: Option<&Path>) -> Result<Vec<Named>> {
    let Some(path) = config else {
        let named = |context: contexts::Context| Named {
            target: known(context.target()),
            production: context.production,
            name: context.name,
        };
        return Ok(contexts::all()?.into_iter().map(named).collect());
    };
    let named = |(name, database): (String, DatabaseConfig)| {
        let url = database.url.resolve(&environment);
        let url = url.map_err(|error| error.in_context(&format!("databases.{name}")));
        let target = url.and_then(|url| parse_given_by(&format!("databases.{name} of {}", path.display()), &url));
        Named {
            name,
            target: known(target.map_err(anyhow::Error::from)),
            production: false,
        }
    };
    Ok(Config::from_file(path)?.databases.into_iter().map(named).collect())
}

/// The target, or what is wrong with it, which is also said now.
fn known(target: Result<Target>) -> Result<Target, String> {
    target.map_err(|error| {
        eprintln!("warning: {error}");
        error.to_string()
    })
}

/// The pages of a shop that is open until Ctrl-C.
#[cfg(feature = "dev")]
async fn demo(listener: TcpListener, mut options: Options, open: &str, shutdown: Shutdown) -> Result<ExitCode> {
    eprintln!("Opening a shop on a private PostgreSQL server. This takes a few seconds.");
    let shop = tokio::task::spawn_blocking(|| Shop::open(false)).await??;
    shop.furnish().await?;
    options.name.get_or_insert_with(|| "shop".to_owned());
    options.color.get_or_insert_with(|| "green".to_owned());
    let target = shop.person()?;
    output::print(&format!(
        "{open}\nIts data is invented: two workers serve a shop whose payment provider fails. Press every button.\n\
         Ctrl-C closes the shop and deletes it.\n"
    ))?;
    tokio::select! {
        served = site::serve(listener, &target, options) => served?,
        worked = shop.serve(shutdown.clone()) => worked?,
        () = shutdown.requested() => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Who may use the pages. Other machines can reach them only if people sign in, or a proxy names them.
fn mode(arguments: &Arguments) -> Result<Mode> {
    let mode = match (arguments.login, &arguments.trust_header) {
        (true, _) => Mode::Login,
        (_, Some(header)) => Mode::Proxy {
            header: header_name(header)?,
            from: arguments.trust_from.iter().map(IpAddr::to_canonical).collect(),
        },
        _ => Mode::Open,
    };
    check(arguments.listen, &mode)?;
    Ok(mode)
}

fn check(address: SocketAddr, mode: &Mode) -> Result<()> {
    if !address.ip().is_loopback() && *mode == Mode::Open {
        bail!(
            "listen address {address} is reachable from other machines, but no one would have to log in\n\
             hint: give --login, or --trust-header X-Forwarded-User --trust-from IP for a proxy that authenticates; or \
             listen on 127.0.0.1 and use an SSH tunnel (ssh -L 8420:127.0.0.1:8420 HOST)"
        );
    }
    Ok(())
}

/// Headers are compared in lower case; those that mean something else are refused.
fn header_name(given: &str) -> Result<String> {
    let name = given.to_ascii_lowercase();
    let is_name = !name.is_empty() && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-');
    if !is_name || ["host", "cookie", "origin", "content-length"].contains(&name.as_str()) {
        bail!("--trust-header {given:?} cannot name a person\nhint: for example X-Forwarded-User");
    }
    Ok(name)
}
