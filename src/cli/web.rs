//! `bugle web`: the management pages.

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;

use super::connect::Connect;
use super::log::{self, LogFlags};
use super::output;
use crate::web::server;
use crate::web::site::{self, COLOURS, Options};
use crate::worker::shutdown::Shutdown;

/// `bugle web`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    connect: Connect,

    /// Address to listen on; only this machine can reach it
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        env = "BUGLE_WEB_LISTEN",
        default_value = "127.0.0.1:8420"
    )]
    listen: SocketAddr,

    /// Change nothing: no buttons, and every change is rejected
    #[arg(long)]
    read_only: bool,

    /// Name of this instance, in the header and the title
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Colour of this instance
    #[arg(long, value_name = "COLOUR", value_parser = COLOURS)]
    colour: Option<String>,

    /// Path below which a proxy serves the pages: /bugle
    #[arg(long, value_name = "PATH", default_value = "")]
    base_path: String,

    /// Further host name that the pages are reached by, through a proxy or a tunnel; may be given several times
    #[arg(long, value_name = "HOST")]
    allow_host: Vec<String>,

    /// Bearer token with which the JSON API accepts changes
    #[arg(long, value_name = "TOKEN", env = "BUGLE_TOKEN", hide_env_values = true)]
    token: Option<String>,

    #[command(flatten)]
    log: LogFlags,
}

pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let _logging = log::start(&arguments.log)?;
    let address = arguments.listen;
    if !address.ip().is_loopback() {
        bail!(
            "listen address {address} is reachable from other machines, and these pages have no login\n\
             hint: listen on 127.0.0.1, and reach it through an SSH tunnel (ssh -L 8420:127.0.0.1:8420 HOST) or a \
             proxy on this machine that authenticates"
        );
    }
    if arguments.token.as_ref().is_some_and(|token| token.len() < 16) {
        bail!("the token has fewer than 16 characters\nhint: for example, openssl rand -hex 16");
    }
    let base_path = arguments.base_path.trim_end_matches('/');
    let is_path = |path: &str| path.chars().all(|c| c.is_ascii_alphanumeric() || "/-_.~".contains(c));
    if !base_path.is_empty() && (!base_path.starts_with('/') || base_path.contains("//") || !is_path(base_path)) {
        bail!("--base-path {base_path:?} is not a path\nhint: for example /bugle");
    }
    let options = Options {
        name: arguments.name,
        colour: arguments.colour,
        base_path: base_path.to_owned(),
        read_only: arguments.read_only,
        hosts: arguments.allow_host,
        token: arguments.token,
    };
    let target = arguments.connect.target()?;
    let listener = server::bind(address).await?;
    let address = listener.local_addr()?;
    output::print(&format!("Bugle is at http://{address}{base_path}/\n"))?;
    let shutdown = Shutdown::on_signals()?;
    tokio::select! {
        served = site::serve(listener, &target, options) => served?,
        () = shutdown.drain.cancelled() => {}
    }
    Ok(ExitCode::SUCCESS)
}
