//! The target of a connection: hosts are tried in turn until one accepts the connection and is of the requested kind.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::config::{ChannelBinding, Host, LoadBalanceHosts, SslMode, SslNegotiation, TargetSessionAttrs};
use tokio_postgres::{Client, Config};

use super::dial::Made;
use super::explain::{Where, explained};
use super::origin::origin;
use super::parameters::{self, Parameters};
use super::passfile::Passfile;
use super::replaced::Opened;
use super::server_address::{ServerAddress, Wanted, servers, wanted};
use super::tls::{Connector, Mode};
use crate::config::{Environment, environment};
use crate::db::versions::{self, Support};
use crate::error::{Error, Result};

/// A server that does not respond within this time is considered unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A dead connection is detected within about ten seconds: after 5 seconds, and three probes at intervals of 2.
const KEEPALIVES_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVES_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVES_COUNT: u32 = 3;
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(10);

/// Parameters of libpq that are rejected, except for these values.
const UNSUPPORTED: &[(&str, &[&str])] = &[
    ("requirepeer", &[]),
    ("require_auth", &[]),
    ("gssencmode", &["disable", "prefer"]),
    ("sslkeylogfile", &[]),
    // the driver supports 3.0, which every server supports
    ("min_protocol_version", &["3.0"]),
    ("max_protocol_version", &["3.0", "3.2", "latest"]),
    ("oauth_issuer", &[]),
    ("oauth_client_id", &[]),
    ("oauth_client_secret", &[]),
    ("oauth_scope", &[]),
    ("scram_client_key", &[]),
    ("scram_server_key", &[]),
];

/// Everything needed to connect, as `psql` would interpret the same string in the same environment.
#[derive(Clone)]
pub struct Target {
    parameters: Parameters,
    pub(super) servers: Vec<ServerAddress>,
    pub(super) mode: Mode,
    pub(super) tls: Option<Connector>,
    pub(super) wanted: Wanted,
    pub(super) shuffled: bool,
    pub(super) timeout: Duration,
    /// Why a password file was ignored.
    note: Option<String>,
    /// The origin of the address; `None` if a program built it.
    origin: Option<String>,
    /// Connections of this target and its clones.
    pub(super) opened: Opened,
}

impl Target {
    /// Parse a connection string. Missing parameters are taken from the environment.
    ///
    /// # Errors
    /// If it is invalid, or names a file that cannot be read. Errors do not contain passwords.
    pub fn parse(text: &str) -> Result<Target> {
        Target::parse_given_by("the connection string", text)
    }

    /// The same for a string from a variable, a flag or a file, which errors mention.
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
                // without the value, which may be secret
                return Err(Error::new(format!("{name} is not supported with this value"))
                    .with_hint("Remove it from the connection string."));
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
            // in libpq, zero and negative values mean no timeout, which is not useful for a worker
            timeout: number(&parameters, "connect_timeout")?
                .filter(|seconds| *seconds > 0)
                .map_or(CONNECT_TIMEOUT, |seconds| Duration::from_secs(seconds as u64)),
            note: passfile.ignored,
            origin: None,
            opened: Opened::default(),
            parameters,
        };
        target.config(&target.servers[0])?;
        Ok(target)
    }

    /// The same servers with another database.
    pub fn with_database(&self, name: &str) -> Target {
        self.with(&[("dbname", name)])
    }

    /// The same servers with another user.
    pub fn with_login(&self, user: &str, password: &str) -> Target {
        self.with(&[("user", user), ("password", password)])
    }

    /// The same servers and another user, without the password of any.
    #[cfg(feature = "web")]
    pub fn with_login_and_no_password(&self, user: &str) -> Target {
        let mut target = self.with(&[("user", user)]);
        target.parameters.remove("password");
        target.servers.iter_mut().for_each(|server| server.password = None);
        target
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

    /// The socket directory, if the first server is local.
    pub fn socket_folder(&self) -> Option<&PathBuf> {
        match &self.servers[0].host {
            Host::Unix(folder) => Some(folder),
            Host::Tcp(_) => None,
        }
    }

    /// Everything as one string, for another process. It may contain the password, so it must not be printed.
    pub fn connection_string(&self) -> String {
        parameters::written(&self.parameters)
    }

    /// Every parameter in effect by its libpq name, with the password hidden.
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
    /// If no server can be reached or is of the requested kind, or a server rejects the connection.
    pub async fn connect(&self, application_name: &str) -> Result<Made> {
        let (client, connection) = self
            .dial(application_name)
            .await
            .map_err(|(error, server)| self.explained(error, &server))?;
        if let Some(old) = connection
            .parameter("server_version")
            .filter(|version| is_too_old(version))
        {
            let error = Error::new(format!(
                "this server is PostgreSQL {old}, but Bugle needs version {} or newer",
                versions::OLDEST
            ));
            return Err(self.with_origin(error.with_hint("Upgrade the server, or use another one.")));
        }
        Ok((client, connection))
    }

    /// Connect and drive the connection, for callers that do not receive notifications.
    ///
    /// # Errors
    /// As [`Target::connect`].
    pub async fn client(&self, application_name: &str) -> Result<Client> {
        let (client, connection) = self.connect(application_name).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// The configuration for the driver.
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
                    "sslnegotiation must be postgres, or direct with sslmode=require or stronger",
                ));
            }
        });
        config.channel_binding(match self.parameters.get("channel_binding").map(String::as_str) {
            None | Some("prefer") => ChannelBinding::Prefer,
            Some("disable") => ChannelBinding::Disable,
            Some("require") => ChannelBinding::Require,
            Some(_) => return Err(Error::new("channel_binding must be disable, prefer or require")),
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

    /// The TLS connector for cancel requests.
    pub(super) fn connector(&self) -> Connector {
        let without = || Connector::new(Mode::Allow, &Parameters::new()).expect("it reads no file");
        self.tls.clone().unwrap_or_else(without)
    }

    /// An error of the driver while connecting, as an error for people.
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

    /// The same for a pool, which does not report the server.
    pub(super) fn explained_of_pool(&self, error: tokio_postgres::Error) -> Error {
        let servers: Vec<String> = self.servers.iter().map(ServerAddress::to_string).collect();
        self.explained(error, &servers.join(" or "))
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

/// From a configuration of the driver, without the environment.
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
            ("target_session_attrs", wanted_by(config).map(str::to_owned)),
            (
                "load_balance_hosts",
                (config.get_load_balance_hosts() == LoadBalanceHosts::Random).then(|| "random".to_owned()),
            ),
            (
                "connect_timeout",
                config
                    .get_connect_timeout()
                    .map(|limit| limit.as_secs().max(1).to_string()),
            ),
        ];
        let parameters = said
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect();
        Target::new(parameters).expect("a configuration of the driver")
    }
}

/// As libpq writes it.
fn wanted_by(config: &Config) -> Option<&'static str> {
    match config.get_target_session_attrs() {
        TargetSessionAttrs::ReadWrite => Some("read-write"),
        TargetSessionAttrs::ReadOnly => Some("read-only"),
        _ => None,
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
    versions::major_of(version).is_some_and(|major| versions::support(major) == Support::TooOld)
}

#[cfg(test)]
mod tests;
