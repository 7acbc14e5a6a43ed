//! Explains why a connection failed, and how to fix it.

use std::error::Error as _;
use std::io::ErrorKind;
use std::time::Duration;

use super::tls::Mode;
use crate::error::Error;

/// The server and the user of the connection attempt.
pub struct Where {
    /// `host:port`, or the socket.
    pub server: String,
    pub user: String,
    pub database: String,
    pub mode: Mode,
    pub timeout: Duration,
    pub note: Option<String>,
}

/// Convert the driver's error into an error for people.
pub fn explained(error: tokio_postgres::Error, at: &Where) -> Error {
    let Where {
        server, user, database, ..
    } = at;
    let said = error
        .as_db_error()
        .map(|db| db.message().to_owned())
        .unwrap_or_default();
    let (message, hint) = match error.code().map(|code| code.code()) {
        Some("28P01") => (
            format!("{server} rejects the password of user {user:?}"),
            with_note(
                at,
                "Check the password in the connection string, PGPASSWORD or ~/.pgpass.",
            ),
        ),
        Some("28000") => (
            format!("{server} rejects user {user:?} for database {database:?}: {said}"),
            no_entry(&said, user),
        ),
        Some("3D000") => (
            format!("database {database:?} does not exist at {server}"),
            format!("Create it, for example with: createdb {database}; or correct the name."),
        ),
        Some("42501") => (
            format!("user {user:?} has no permission to connect to database {database:?} at {server}"),
            format!("As its owner: grant connect on database \"{database}\" to \"{user}\";"),
        ),
        Some("53300") => (
            format!("{server} has no free connections: {said}"),
            "Raise max_connections, or run fewer workers with a smaller pool_size.".to_owned(),
        ),
        Some(_) => return Error::from(error),
        None => match without_answer(&error, at) {
            Some(told) => told,
            None => return Error::from(error),
        },
    };
    Error::from(error).reworded(message, hint)
}

fn with_note(at: &Where, hint: &str) -> String {
    at.note
        .iter()
        .fold(hint.to_owned(), |text, note| format!("{text} {note}"))
}

fn no_entry(said: &str, user: &str) -> String {
    if said.contains("does not exist") {
        format!("Create the login, for example: create role \"{user}\" login in role bugle_worker;")
    } else if said.contains("client certificate") {
        "Set sslcert=… and sslkey=… to the client's certificate and key.".to_owned()
    } else if said.contains("no encryption") {
        "It may require encryption: sslmode=require. Otherwise its pg_hba.conf needs a line for this user and address."
            .to_owned()
    } else {
        "The server's pg_hba.conf needs a line for this user, database and address.".to_owned()
    }
}

/// Errors without a message from the server: it was not reached, or the encryption could not be negotiated.
fn without_answer(error: &tokio_postgres::Error, at: &Where) -> Option<(String, String)> {
    let server = &at.server;
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(tls) = inner.downcast_ref::<rustls::Error>() {
            return Some(untrusted(tls, at));
        }
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            if let Some(tls) = io.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
                return Some(untrusted(tls, at));
            }
            return unreached(io, at);
        }
        let text = inner.to_string();
        if text.contains("does not support TLS") {
            return Some((
                format!(
                    "{server} does not support TLS, but sslmode={} requires it",
                    written(at.mode)
                ),
                "Set ssl = on at the server, or use sslmode=prefer, which falls back to no TLS.".to_owned(),
            ));
        }
        if text.contains("password missing") {
            let hint = "Set it in PGPASSWORD, in ~/.pgpass (chmod 0600) or in the connection string.";
            return Some((
                format!(
                    "{server} requires a password for user {:?}, but none was given",
                    at.user
                ),
                with_note(at, hint),
            ));
        }
        cause = inner.source();
    }
    None
}

fn unreached(error: &std::io::Error, at: &Where) -> Option<(String, String)> {
    let server = &at.server;
    let is_socket = server.starts_with('/');
    Some(match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused if is_socket => (
            format!("no server listens on the socket {server}"),
            "Check that Postgres is running on this machine with this socket directory and port, or give a host."
                .to_owned(),
        ),
        ErrorKind::PermissionDenied if is_socket => (
            format!("this user has no permission to open the socket {server}"),
            "Use a socket directory that you can access, or give a host.".to_owned(),
        ),
        ErrorKind::ConnectionRefused => (
            format!("no server listens at {server}"),
            "Check that Postgres is running there, that host and port are correct, and its listen_addresses."
                .to_owned(),
        ),
        ErrorKind::AddrNotAvailable => (
            format!("the host of {server} cannot be resolved: {error}"),
            "Check its name, in the connection string or PGHOST.".to_owned(),
        ),
        ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => (
            format!("{server} does not respond within {} seconds", at.timeout.as_secs()),
            "Check host and port, and that no firewall is in between. Increase connect_timeout=… if needed.".to_owned(),
        ),
        ErrorKind::Other if error.to_string().contains("target_session_attrs") => (
            format!("{server}: {error}"),
            "Give more hosts, or change target_session_attrs.".to_owned(),
        ),
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => (
            format!("{server} closed the connection without a reply"),
            "Check that Postgres listens on that port, and see its log.".to_owned(),
        ),
        _ => return None,
    })
}

fn untrusted(error: &rustls::Error, at: &Where) -> (String, String) {
    use rustls::{AlertDescription, CertificateError, Error as Tls};
    let server = &at.server;
    match error {
        Tls::InvalidCertificate(CertificateError::UnknownIssuer) => (
            format!("the certificate of {server} is signed by an authority that is not trusted"),
            "Set sslrootcert=… to the certificate of the authority, or sslrootcert=system for a public one.".to_owned(),
        ),
        Tls::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => (
            format!("the certificate of {server} is for another host name"),
            "Use the host name of the certificate; sslmode=verify-ca does not compare names.".to_owned(),
        ),
        Tls::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => (
            format!("the certificate of {server} has expired"),
            "Renew the certificate of the server.".to_owned(),
        ),
        Tls::AlertReceived(AlertDescription::CertificateRequired) => (
            format!("{server} requires a client certificate, but none was given"),
            "Set sslcert=… and sslkey=….".to_owned(),
        ),
        Tls::AlertReceived(alert @ (AlertDescription::UnknownCA | AlertDescription::BadCertificate)) => (
            format!("{server} rejects the client certificate ({alert:?})"),
            "It must be signed by an authority of the server's ssl_ca_file.".to_owned(),
        ),
        other => (
            format!("TLS with {server} failed: {other}"),
            "Check the server's certificate, sslmode and sslrootcert.".to_owned(),
        ),
    }
}

fn written(mode: Mode) -> &'static str {
    match mode {
        Mode::Disable => "disable",
        Mode::Allow => "allow",
        Mode::Prefer => "prefer",
        Mode::Require => "require",
        Mode::VerifyCa => "verify-ca",
        Mode::VerifyFull => "verify-full",
    }
}
