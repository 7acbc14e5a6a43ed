//! Where a connection goes: one host after the other, encrypted as asked, until one is what was asked for.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::config::{ChannelBinding, Host, SslMode, SslNegotiation};
use tokio_postgres::{Client, Config};

use super::dial::Made;
use super::explain::{Where, explained};
use super::origin::origin;
use super::parameters::{self, Parameters};
use super::passfile::Passfile;
use super::server_address::{ServerAddress, Wanted, servers, wanted};
use super::tls::{Connector, Mode};
use crate::config::{Environment, environment};
use crate::error::{Error, Result};

/// A server that does not answer within this is taken to be unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A dead link is noticed within about ten seconds: 5, and three probes 2 apart.
const KEEPALIVES_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVES_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVES_COUNT: u32 = 3;
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(10);

/// Parameters of libpq that are refused, but for these values.
const UNSUPPORTED: &[(&str, &[&str])] = &[
    ("requirepeer", &[]),
    ("require_auth", &[]),
    ("gssencmode", &["disable", "prefer"]),
    ("sslkeylogfile", &[]),
    // the driver speaks 3.0, which every server does
    ("min_protocol_version", &["3.0"]),
    ("max_protocol_version", &["3.0", "3.2", "latest"]),
    ("oauth_issuer", &[]),
    ("oauth_client_id", &[]),
    ("oauth_client_secret", &[]),
    ("oauth_scope", &[]),
    ("scram_client_key", &[]),
    ("scram_server_key", &[]),
];

/// All that is needed to connect: what `psql` would make of the same string in the same environment.
#[derive(Clone)]
pub struct Target {
    parameters: Parameters,
    pub(super) servers: Vec<ServerAddress>,
    pub(super) mode: Mode,
    pub(super) tls: Option<Connector>,
    pub(super) wanted: Wanted,
    pub(super) shuffled: bool,
    pub(super) timeout: Duration,
    /// Why a password file was left out.
    note: Option<String>,
    /// Where the address came from. None if it was put together by a program.
    origin: Option<String>,
}

impl Target {
    /// Read a connection string, and the environment for what it leaves out.
    ///
    /// # Errors
    /// If it says something that is not understood, or names a file that cannot be read. No error shows a password.
    pub fn parse(text: &str) -> Result<Target> {
        Target::parse_given_by("the connection string", text)
    }

    /// The same, for a string that a variable, a flag or a file gave: errors say so.
    pub(super) fn parse_given_by(source: &str, text: &str) -> Result<Target> {
        Target::parse_in(source, text, &environment)
    }

    fn parse_in(source: &str, text: &str, environment: Environment) -> Result<Target> {
        let read = || {
            let target = Target::new(parameters::resolve(text, environment)?)?;
            Ok(Target {
                origin: Some(origin(text, source, environment)?),
                ..target
            })
        };
        read().map_err(|error: Error| match text.is_empty() {
            true => error,
            false => error.also(&format!("The connection string is from {source}.")),
        })
    }

    fn new(parameters: Parameters) -> Result<Target> {
        for (name, harmless) in UNSUPPORTED {
            if parameters
                .get(*name)
                .is_some_and(|value| !harmless.contains(&value.as_str()))
            {
                // not its value: it may be a secret
                return Err(Error::new(format!("{name} is not supported as it is given"))
                    .hint("Bugle does without it: leave it out. Accepting it would promise what is not done."));
            }
        }
        let mode = Mode::read(&parameters)?;
        let passfile = parameters
            .get("passfile")
            .map(|path| Passfile::read(path.as_ref()))
            .unwrap_or_default();
        let target = Target {
            servers: servers(&parameters, &passfile)?,
            mode,
            tls: (mode != Mode::Disable)
                .then(|| Connector::new(mode, &parameters))
                .transpose()?,
            wanted: wanted(&parameters)?,
            shuffled: parameters.get("load_balance_hosts").is_some_and(|how| how == "random"),
            // libpq: zero and less mean forever; nobody who runs a worker means that
            timeout: number(&parameters, "connect_timeout")?
                .filter(|seconds| *seconds > 0)
                .map_or(CONNECT_TIMEOUT, |seconds| Duration::from_secs(seconds as u64)),
            note: passfile.ignored,
            origin: None,
            parameters,
        };
        target.config(&target.servers[0])?;
        Ok(target)
    }

    /// The same servers, another database.
    pub fn with_database(&self, name: &str) -> Target {
        self.with(&[("dbname", name)])
    }

    /// The same servers, another user.
    pub fn with_login(&self, user: &str, password: &str) -> Target {
        self.with(&[("user", user), ("password", password)])
    }

    fn with(&self, changes: &[(&str, &str)]) -> Target {
        let mut parameters = self.parameters.clone();
        parameters.extend(
            changes
                .iter()
                .map(|(name, value)| (name.to_string(), value.to_string())),
        );
        Target {
            origin: self.origin.clone(),
            ..Target::new(parameters).expect("what was read once")
        }
    }

    /// The user's name.
    pub fn user(&self) -> &str {
        &self.parameters["user"]
    }

    /// The database's name.
    pub fn database(&self) -> &str {
        &self.parameters["dbname"]
    }

    /// The folder of the socket, if the first server is on this machine.
    pub fn socket_folder(&self) -> Option<&PathBuf> {
        match &self.servers[0].host {
            Host::Unix(folder) => Some(folder),
            Host::Tcp(_) => None,
        }
    }

    /// Everything as one string, for another process. It may hold the password: not for output.
    pub fn connection_string(&self) -> String {
        parameters::written(&self.parameters)
    }

    /// Every parameter that is in effect, for people: by libpq's names, with the password hidden.
    pub fn shown(&self) -> Vec<(String, String)> {
        let hidden = |name: &str, value: &str| match name {
            "password" | "sslpassword" => "…".to_owned(),
            _ => value.to_owned(),
        };
        self.parameters
            .iter()
            .map(|(name, value)| (name.clone(), hidden(name, value)))
            .collect()
    }

    /// Connect. The connection has to be driven by the caller.
    ///
    /// # Errors
    /// If no server can be reached, none is as asked for, or one refuses: each with a sentence of its own.
    pub async fn connect(&self, application_name: &str) -> Result<Made> {
        let (client, connection) = self
            .dial(application_name)
            .await
            .map_err(|(error, server)| self.explained(error, &server))?;
        if let Some(old) = connection
            .parameter("server_version")
            .filter(|version| is_too_old(version))
        {
            let error = Error::new(format!("this server is PostgreSQL {old}, and Bugle needs 14 or newer"));
            return Err(self.with_origin(error.hint("Upgrade the server, or use another one.")));
        }
        Ok((client, connection))
    }

    /// Connect and drive the connection, for callers that hear nothing unasked.
    ///
    /// # Errors
    /// As [`Target::connect`].
    pub async fn client(&self, application_name: &str) -> Result<Client> {
        let (client, connection) = self.connect(application_name).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// What the driver is told.
    pub(super) fn config(&self, server: &ServerAddress) -> Result<Config> {
        let mut config = Config::new();
        config
            .user(self.user())
            .dbname(self.database())
            .port(server.port)
            .connect_timeout(self.timeout);
        match (&server.host, server.address) {
            (Host::Unix(folder), _) => config.host_path(folder),
            (Host::Tcp(name), None) => config.host(name),
            (Host::Tcp(name), Some(address)) => config.host(name).hostaddr(address),
        };
        if let Some(password) = &server.password {
            config.password(password);
        }
        if let Some(options) = self.parameters.get("options") {
            config.options(options);
        }
        config.ssl_negotiation(match self.parameters.get("sslnegotiation").map(String::as_str) {
            None | Some("postgres") => SslNegotiation::Postgres,
            Some("direct") if self.mode >= Mode::Require => SslNegotiation::Direct,
            Some(_) => {
                return Err(Error::new(
                    "sslnegotiation is postgres, or direct with sslmode=require or stronger",
                ));
            }
        });
        config.channel_binding(match self.parameters.get("channel_binding").map(String::as_str) {
            None | Some("prefer") => ChannelBinding::Prefer,
            Some("disable") => ChannelBinding::Disable,
            Some("require") => ChannelBinding::Require,
            Some(_) => return Err(Error::new("channel_binding is disable, prefer or require")),
        });
        let seconds = |name: &str, default: Duration| {
            let given = number(&self.parameters, name)?.filter(|seconds| *seconds > 0);
            Ok::<_, Error>(given.map_or(default, |seconds| Duration::from_secs(seconds as u64)))
        };
        let count = number(&self.parameters, "keepalives_count")?.filter(|count| *count > 0);
        let user_timeout = number(&self.parameters, "tcp_user_timeout")?.filter(|millis| *millis > 0);
        config
            .keepalives(number(&self.parameters, "keepalives")?.is_none_or(|on| on != 0))
            .keepalives_idle(seconds("keepalives_idle", KEEPALIVES_IDLE)?)
            .keepalives_interval(seconds("keepalives_interval", KEEPALIVES_INTERVAL)?)
            .keepalives_retries(count.map_or(KEEPALIVES_COUNT, |count| count as u32))
            .tcp_user_timeout(user_timeout.map_or(TCP_USER_TIMEOUT, |millis| Duration::from_millis(millis as u64)));
        Ok(config)
    }

    /// The connector, for requests to cancel: they go the same way.
    pub(super) fn connector(&self) -> Connector {
        let without = || Connector::new(Mode::Allow, &Parameters::new()).expect("it reads no file");
        self.tls.clone().unwrap_or_else(without)
    }

    /// An error of the driver while it connected, said for people.
    pub(super) fn explained(&self, error: tokio_postgres::Error, server: &str) -> Error {
        let at = Where {
            server: server.to_owned(),
            user: self.user().to_owned(),
            database: self.database().to_owned(),
            mode: self.mode,
            timeout: self.timeout,
            note: self.note.clone(),
        };
        self.with_origin(explained(error, &at))
    }

    /// The same for a pool, which does not say which of the servers it was.
    pub(crate) fn explained_of_pool(&self, error: deadpool_postgres::PoolError) -> Error {
        let servers: Vec<String> = self.servers.iter().map(ServerAddress::to_string).collect();
        match error {
            deadpool_postgres::PoolError::Backend(error) => self.explained(error, &servers.join(" or ")),
            other => Error::from(other),
        }
    }

    fn with_origin(&self, error: Error) -> Error {
        match &self.origin {
            Some(origin) => error.also(&format!("The address is from {origin}.")),
            None => error,
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.shown()).finish()
    }
}

impl From<&Target> for Target {
    fn from(target: &Target) -> Target {
        target.clone()
    }
}

/// What was put together by hand, and nothing from the environment.
impl From<&Config> for Target {
    fn from(config: &Config) -> Target {
        let hosts = config.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(folder) => folder.display().to_string(),
        });
        let addresses = config.get_hostaddrs().iter().map(IpAddr::to_string);
        let ports = config.get_ports().iter().map(u16::to_string);
        let joined = |list: Vec<String>| Some(list.join(",")).filter(|list| !list.is_empty());
        let said = [
            ("host", joined(hosts.collect())),
            ("hostaddr", joined(addresses.collect())),
            ("port", joined(ports.collect())),
            ("user", Some(config.get_user().unwrap_or("postgres").to_owned())),
            (
                "password",
                config
                    .get_password()
                    .map(|text| String::from_utf8_lossy(text).into_owned()),
            ),
            (
                "dbname",
                config
                    .get_dbname()
                    .or(config.get_user())
                    .or(Some("postgres"))
                    .map(str::to_owned),
            ),
            ("options", config.get_options().map(str::to_owned)),
            (
                "sslmode",
                (config.get_ssl_mode() == SslMode::Disable).then(|| "disable".to_owned()),
            ),
            (
                "sslmode",
                (config.get_ssl_mode() == SslMode::Require).then(|| "require".to_owned()),
            ),
        ];
        let parameters = said
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect();
        Target::new(parameters).expect("a configuration of the driver")
    }
}

fn number(parameters: &Parameters, name: &str) -> Result<Option<i32>> {
    let read = |text: &String| {
        text.trim()
            .parse()
            .map_err(|_| Error::new(format!("{name} is not a number")))
    };
    parameters.get(name).map(read).transpose()
}

fn is_too_old(version: &str) -> bool {
    let major = version.split(|c: char| !c.is_ascii_digit()).next();
    major
        .and_then(|major| major.parse::<u32>().ok())
        .is_some_and(|major| major < 14)
}

#[cfg(test)]
mod tests;
