//! `bugle health`: the health check of a worker, for images without curl.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::output;

/// `bugle health`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Address the worker listens on; if it is 0.0.0.0 or [::], this machine is asked
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        env = "BUGLE_LISTEN",
        default_value = "127.0.0.1:8421"
    )]
    listen: SocketAddr,

    /// Check liveness (/livez) instead of readiness (/readyz)
    #[arg(long)]
    live: bool,

    /// Give up after this time
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "3s")]
    timeout: Duration,
}

/// Exit code 0 if the worker is healthy, 1 otherwise; prints one line either way.
pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let address = reachable(arguments.listen);
    let path = if arguments.live { "livez" } else { "readyz" };
    let (status, text) = tokio::time::timeout(arguments.timeout, get(address, path))
        .await
        .map_err(|_| anyhow!("no response within {}", humantime::format_duration(arguments.timeout)))
        .flatten()
        .with_context(|| format!("no worker responds at {address}"))?;
    let line = text.lines().collect::<Vec<_>>().join("; ");
    if !status.is_success() {
        bail!(
            "the worker at {address} returned {} for /{path}: {line}",
            status.as_u16()
        );
    }
    output::print(&format!("{line}\n"))?;
    Ok(ExitCode::SUCCESS)
}

async fn get(address: SocketAddr, path: &str) -> Result<(StatusCode, String)> {
    let stream = TokioIo::new(TcpStream::connect(address).await?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    let connection = tokio::spawn(connection);
    let request = Request::get(format!("/{path}")).header(HOST, address.to_string());
    let answer = sender.send_request(request.body(Empty::<Bytes>::new())?).await?;
    let status = answer.status();
    let text = answer.into_body().collect().await?.to_bytes();
    connection.abort();
    Ok((status, String::from_utf8_lossy(&text).into_owned()))
}

/// A worker may listen on all interfaces; the request goes to one of them.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}
