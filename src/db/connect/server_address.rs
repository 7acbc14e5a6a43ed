//! The servers of a connection string, and the requested kind of server.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use tokio_postgres::config::Host;
use tokio_postgres::{Connection, Socket};

use super::parameters::Parameters;
use super::passfile::Passfile;
use super::refusal::refusal;
use super::tls::Stream;
use crate::error::{Error, Result};

/// The socket directories of distributions.
const SOCKET_FOLDERS: [&str; 3] = ["/var/run/postgresql", "/run/postgresql", "/tmp"];

/// A server.
#[derive(Clone)]
pub struct ServerAddress {
    pub host: Host,
    pub address: Option<IpAddr>,
    pub port: u16,
    pub password: Option<String>,
}

/// `host`, `hostaddr` and `port` are lists of the same length; a single port applies to all.
pub fn servers(parameters: &Parameters, passfile: &Passfile) -> Result<Vec<ServerAddress>> {
    let list = |name: &str| match parameters.get(name) {
        Some(text) => text.split(',').map(str::trim).collect(),
        None => Vec::new(),
    };
    let (hosts, addresses, ports) = (list("host"), list("hostaddr"), list("port"));
    let many = hosts.len().max(addresses.len()).max(1);
    let fits = |given: usize| given == 0 || given == many;
    if !fits(hosts.len()) || !fits(addresses.len()) || !(fits(ports.len()) || ports.len() == 1) {
        return Err(Error::new(format!(
            "{} hosts, {} addresses and {} ports do not match",
            hosts.len(),
            addresses.len(),
            ports.len()
        ))
        .with_hint("Give one port for each host, or one port for all."));
    }
    let at = |list: &[&'_ str], index: usize| list.get(index).map(|text| text.to_string()).unwrap_or_default();
    (0..many)
        .map(|index| {
            let port = match at(&ports, if ports.len() == 1 { 0 } else { index }).as_str() {
                "" => 5432,
                port => port.parse().ok().filter(|port| *port > 0).ok_or_else(|| {
                    Error::new(format!("{port:?} is not a port; it must be a number from 1 to 65535"))
                })?,
            };
            let address = match at(&addresses, index).as_str() {
                "" => None,
                text => Some(text.parse().map_err(|_| {
                    Error::new(format!("hostaddr {text:?} is not an IP address")).with_hint("Use host for names.")
                })?),
            };
            let host = match (at(&hosts, index), address) {
                (name, None) if name.is_empty() => default_host(port),
                (name, Some(address)) if name.is_empty() => Host::Tcp(IpAddr::to_string(&address)),
                (name, _) if name.starts_with('/') => Host::Unix(name.into()),
                (name, _) => Host::Tcp(name),
            };
            let known_as = match &host {
                Host::Unix(folder) if SOCKET_FOLDERS.iter().any(|usual| folder.as_os_str() == *usual) => {
                    "localhost".into()
                }
                Host::Unix(folder) => folder.display().to_string(),
                Host::Tcp(name) => name.clone(),
            };
            let password = parameters
                .get("password")
                .cloned()
                .or_else(|| passfile.password(&known_as, port, &parameters["dbname"], &parameters["user"]));
            Ok(ServerAddress {
                host,
                address,
                port,
                password,
            })
        })
        .collect()
}

/// The socket of the local server, in any of the known directories; TCP if there is none.
fn default_host(port: u16) -> Host {
    let has_socket = |folder: &&&str| PathBuf::from(folder).join(format!(".s.PGSQL.{port}")).exists();
    match SOCKET_FOLDERS.iter().find(has_socket) {
        Some(folder) => Host::Unix(folder.into()),
        None => Host::Tcp("localhost".into()),
    }
}

impl ServerAddress {
    /// The addresses of the host; none for a socket, or if an address is given.
    pub async fn addresses(&self) -> Result<Vec<Option<IpAddr>>, tokio_postgres::Error> {
        let (Host::Tcp(name), None) = (&self.host, self.address) else {
            return Ok(vec![None]);
        };
        match tokio::net::lookup_host((name.as_str(), self.port)).await {
            Ok(found) => Ok(found.map(|address| Some(address.ip())).collect()),
            Err(error) => Err(refusal(io::ErrorKind::AddrNotAvailable, &error.to_string()).await),
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Unix(folder) => write!(f, "{}/.s.PGSQL.{}", folder.display(), self.port),
            Host::Tcp(name) if name.contains(':') => write!(f, "[{name}]:{}", self.port),
            Host::Tcp(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

/// `target_session_attrs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    Any,
    ReadWrite,
    ReadOnly,
    Primary,
    Standby,
    PreferStandby,
}

impl Wanted {
    /// The server reports both at startup, since version 14.
    pub fn is(self, connection: &Connection<Socket, Stream<Socket>>) -> bool {
        let on = |name: &str| connection.parameter(name) == Some("on");
        let standby = on("in_hot_standby");
        let read_only = standby || on("default_transaction_read_only");
        match self {
            Wanted::Any | Wanted::PreferStandby => true,
            Wanted::ReadWrite => !read_only,
            Wanted::ReadOnly => read_only,
            Wanted::Primary => !standby,
            Wanted::Standby => standby,
        }
    }

    pub fn missing(self) -> &'static str {
        match self {
            Wanted::ReadWrite => "this server does not accept writes, but target_session_attrs=read-write",
            Wanted::ReadOnly => "this server accepts writes, but target_session_attrs=read-only",
            Wanted::Primary => "this server is a standby, but target_session_attrs=primary",
            _ => "this server is not a standby, but target_session_attrs=standby",
        }
    }
}

pub fn wanted(parameters: &Parameters) -> Result<Wanted> {
    match parameters.get("target_session_attrs").map(String::as_str) {
        None | Some("any") => Ok(Wanted::Any),
        Some("read-write") => Ok(Wanted::ReadWrite),
        Some("read-only") => Ok(Wanted::ReadOnly),
        Some("primary") => Ok(Wanted::Primary),
        Some("standby") => Ok(Wanted::Standby),
        Some("prefer-standby") => Ok(Wanted::PreferStandby),
        Some(other) => Err(Error::new(format!("target_session_attrs={other} is invalid"))
            .with_hint("Use any, read-write, read-only, primary, standby or prefer-standby.")),
    }
}
