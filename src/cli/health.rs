//! `bugle health`: ask a worker how it is, for container health checks. Images need no curl for it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;

use super::output;

/// Which worker to ask, and what.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Where the worker listens; an address that means all interfaces (0.0.0.0) is asked on this machine
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        env = "BUGLE_LISTEN",
        default_value = "127.0.0.1:9187"
    )]
    listen: SocketAddr,

    /// Whether its process moves at all (/livez), instead of whether it takes jobs (/readyz)
    #[arg(long)]
    live: bool,

    /// Give up after
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "3s")]
    timeout: Duration,
}

/// Exit code 0 and one line if it is well; 1 and one line otherwise.
pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let address = reachable(arguments.listen);
    let path = if arguments.live { "livez" } else { "readyz" };
    // a client wants to know how it would encrypt, even if it never does
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder()
        .tls_certs_only([])
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(arguments.timeout)
        .build()?;
    let unreachable = || format!("no worker answers at {address}");
    let answer = client.get(format!("http://{address}/{path}")).send().await;
    let answer = answer.map_err(reqwest::Error::without_url).with_context(unreachable)?;
    let status = answer.status();
    let text = answer
        .text()
        .await
        .map_err(reqwest::Error::without_url)
        .with_context(unreachable)?;
    let line = text.lines().collect::<Vec<_>>().join("; ");
    if !status.is_success() {
        bail!("the worker at {address} answers {} to /{path}: {line}", status.as_u16());
    }
    output::print(&format!("{line}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// A worker may listen on all interfaces; a question goes to one of them.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}
