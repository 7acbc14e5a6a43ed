//! Connecting: tries each host and each of its addresses in turn, encrypted according to `sslmode`.

use std::io;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Client, Connection, Socket};

use super::parameters::Parameters;
use super::refusal::refusal;
use super::server_address::{ServerAddress, Wanted};
use super::target::Target;
use super::tls::{Connector, Mode, Stream};

/// An open connection that is not driven yet.
pub type Made = (Client, Connection<Socket, Stream<Socket>>);

/// A server that says nothing for this time is still waited for, but the next one is tried as well. A primary that is
/// frozen accepts connections and says nothing, while its successor has long been ready.
const NEXT_SERVER: Duration = Duration::from_millis(500);

impl Target {
    /// For pools, which need the error type of the driver.
    pub(super) async fn dial(&self, application_name: &str) -> Result<Made, (tokio_postgres::Error, String)> {
        let mut servers: Vec<&ServerAddress> = self.servers.iter().collect();
        if self.shuffled {
            fastrand::shuffle(&mut servers);
        }
        let rounds = match self.wanted {
            Wanted::PreferStandby => vec![Wanted::Standby, Wanted::Any],
            wanted => vec![wanted],
        };
        let mut last = None;
        for wanted in rounds {
            match self.first_of(&servers, wanted, application_name).await {
                Ok(made) => return Ok(made),
                Err((error, server)) if is_final(&error) => return Err((error, server)),
                Err(failed) => last = Some(failed),
            }
        }
        Err(last.expect("there is always a server"))
    }

    /// In their order, as long as each says something soon. The error is that of the last one that answered at all.
    async fn first_of(
        &self,
        servers: &[&ServerAddress],
        wanted: Wanted,
        application_name: &str,
    ) -> Result<Made, (tokio_postgres::Error, String)> {
        let mut left = servers.iter().enumerate();
        let mut tries = FuturesUnordered::new();
        let mut last: Option<(usize, tokio_postgres::Error)> = None;
        loop {
            if let Some((number, server)) = left.next() {
                tries.push(async move { (number, self.try_server(server, wanted, application_name).await) });
            }
            tokio::select! {
                ended = tries.next() => match ended {
                    Some((_, Ok(made))) => return Ok(made),
                    Some((number, Err(error))) if is_final(&error) => return Err((error, servers[number].to_string())),
                    Some((number, Err(error))) => {
                        let is_worse = |(before, said): &(usize, tokio_postgres::Error)| {
                            (error.code().is_some(), number) > (said.code().is_some(), *before)
                        };
                        if last.as_ref().is_none_or(is_worse) {
                            last = Some((number, error));
                        }
                    }
                    None => {
                        let (number, error) = last.expect("there is always a server");
                        return Err((error, servers[number].to_string()));
                    }
                },
                () = tokio::time::sleep(NEXT_SERVER), if left.len() > 0 => {}
            }
        }
    }

    async fn try_server(
        &self,
        server: &ServerAddress,
        wanted: Wanted,
        name: &str,
    ) -> Result<Made, tokio_postgres::Error> {
        let mut last = None;
        for address in server.addresses().await? {
            let at = ServerAddress {
                address: address.or(server.address),
                ..server.clone()
            };
            match self.try_modes(&at, name).await {
                Ok(made) if wanted.is(&made.1) => return Ok(made),
                Ok(_) => last = Some(refusal(io::ErrorKind::Other, wanted.missing()).await),
                Err(error) if error.code().is_some() => return Err(error),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("there is always an address"))
    }

    /// `allow` and `prefer` try a second time with the opposite encryption. An authentication error is more important
    /// than an error about the encryption.
    async fn try_modes(&self, server: &ServerAddress, name: &str) -> Result<Made, tokio_postgres::Error> {
        let tries = match (&server.host, self.mode) {
            (Host::Unix(_), _) | (_, Mode::Disable) => vec![SslMode::Disable],
            (_, Mode::Allow) => vec![SslMode::Disable, SslMode::Require],
            (_, Mode::Prefer) => vec![SslMode::Prefer, SslMode::Disable],
            _ => vec![SslMode::Require],
        };
        let mut first: Option<tokio_postgres::Error> = None;
        for mode in tries {
            let tls = self.tls.as_ref().map(Connector::afresh);
            match self.try_once(server, mode, tls.clone(), name).await {
                Ok(made) => return Ok(made),
                Err(error) => {
                    let is_about_login =
                        |error: &tokio_postgres::Error| error.code().is_some_and(|code| code.code() == "28P01");
                    let handshake_failed = error.code().is_none() && tls.is_some_and(|tls| tls.was_used());
                    let other_way = match self.mode {
                        Mode::Prefer => handshake_failed || error.code().is_some_and(|code| code.code() == "28000"),
                        Mode::Allow => error.code().is_some_and(|code| code.code() == "28000"),
                        _ => false,
                    };
                    match first.take() {
                        Some(said) if is_about_login(&said) || !is_about_login(&error) && self.mode == Mode::Prefer => {
                            return Err(said);
                        }
                        _ if other_way => first = Some(error),
                        _ => return Err(error),
                    }
                }
            }
        }
        Err(first.expect("a try has failed"))
    }

    async fn try_once(
        &self,
        server: &ServerAddress,
        mode: SslMode,
        tls: Option<Connector>,
        name: &str,
    ) -> Result<Made, tokio_postgres::Error> {
        let mut config = self.config(server).expect("it was read once");
        config.application_name(name).ssl_mode(mode);
        // without TLS, the connector is only needed for its type
        let tls = tls.unwrap_or_else(|| Connector::new(Mode::Allow, &Parameters::new()).expect("it reads no file"));
        match tokio::time::timeout(self.timeout, config.connect(tls)).await {
            Ok(made) => made,
            Err(_) => Err(refusal(io::ErrorKind::TimedOut, "timeout").await),
        }
    }
}

/// Other servers would reject it, too. But one that is starting or full may have an available peer, and a replica that
/// lags does not know a database that was created just now.
fn is_final(error: &tokio_postgres::Error) -> bool {
    error
        .code()
        .is_some_and(|code| !["57P03", "53300", "3D000"].contains(&code.code()))
}
