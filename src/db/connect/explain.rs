//! Why a connection did not come about, in a sentence, and what to do.

use std::error::Error as _;
use std::io::ErrorKind;
use std::time::Duration;

use super::tls::Mode;
use crate::error::Error;

/// Whom we wanted to reach, and as whom.
pub struct Where {
    /// `host:port`, or the socket.
    pub server: String,
    pub user: String,
    pub database: String,
    pub mode: Mode,
    pub timeout: Duration,
    pub note: Option<String>,
}

/// The driver's error, said for the person who has to do something about it.
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
            format!("{server} refuses the password of the user {user:?}"),
            with_note(at, "Check it: in the connection string, PGPASSWORD, or ~/.pgpass."),
        ),
        Some("28000") => (
            format!("{server} does not let the user {user:?} into the database {database:?}: {said}"),
            no_entry(&said, user),
        ),
        Some("3D000") => (
            format!("there is no database {database:?} at {server}"),
            format!("Create it, for example with: createdb {database}; or correct the name."),
        ),
        Some("42501") => (
            format!("the user {user:?} may not connect to the database {database:?} at {server}"),
            format!("As its owner: grant connect on database \"{database}\" to \"{user}\";"),
        ),
        Some("53300") => (
            format!("{server} has no connection left: {said}"),
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
        "Give the client's certificate and key: sslcert=… sslkey=….".to_owned()
    } else if said.contains("no encryption") {
        "It may want encryption: sslmode=require. Otherwise its pg_hba.conf needs a line for this user and address."
            .to_owned()
    } else {
        "The server's pg_hba.conf needs a line for this user, database and address.".to_owned()
    }
}

/// The server said nothing: it was not reached, or the link was not to its or our liking.
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
                format!("{server} offers no TLS, and sslmode={} asks for it", written(at.mode)),
                "Set ssl = on there, or use sslmode=prefer, which does without it.".to_owned(),
            ));
        }
        if text.contains("password missing") {
            let hint = "Give it in PGPASSWORD, in ~/.pgpass (chmod 0600), or in the connection string.";
            return Some((
                format!(
                    "{server} asks for the password of the user {:?}, and none was given",
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
            format!("there is no server behind the socket {server}"),
            "Is Postgres running on this machine, and is that the folder and port of its socket? Else name a host."
                .to_owned(),
        ),
        ErrorKind::PermissionDenied if is_socket => (
            format!("this user may not open the socket {server}"),
            "Use a folder whose socket is open to you, or a host.".to_owned(),
        ),
        ErrorKind::ConnectionRefused => (
            format!("no server listens at {server}"),
            "Is Postgres running there, are host and port right, and does its listen_addresses include this address?"
                .to_owned(),
        ),
        ErrorKind::AddrNotAvailable => (
            format!("the host of {server} cannot be found: {error}"),
            "Check its name, in the connection string or PGHOST.".to_owned(),
        ),
        ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => (
            format!("{server} does not answer within {} seconds", at.timeout.as_secs()),
            "Check host and port, and that no firewall is in between. connect_timeout=… waits longer.".to_owned(),
        ),
        ErrorKind::Other if error.to_string().contains("target_session_attrs") => (
            format!("{server}: {error}"),
            "Name more hosts, or ask for another kind of server.".to_owned(),
        ),
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => (
            format!("{server} hung up before it said anything"),
            "Is it Postgres that listens there? Its log says more.".to_owned(),
        ),
        _ => return None,
    })
}

fn untrusted(error: &rustls::Error, at: &Where) -> (String, String) {
    use rustls::{AlertDescription, CertificateError, Error as Tls};
    let server = &at.server;
    match error {
        Tls::InvalidCertificate(CertificateError::UnknownIssuer) => (
            format!("the certificate of {server} comes from an authority that is not trusted here"),
            "Name the authority's certificate with sslrootcert=…, or sslrootcert=system if it is a public one."
                .to_owned(),
        ),
        Tls::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => (
            format!("the certificate of {server} is for another name"),
            "Use the host name the certificate was made for; sslmode=verify-ca does not compare names.".to_owned(),
        ),
        Tls::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => (
            format!("the certificate of {server} has expired"),
            "Renew it at the server.".to_owned(),
        ),
        Tls::AlertReceived(AlertDescription::CertificateRequired) => (
            format!("{server} asks for a client certificate, and none was given"),
            "Give it and its key: sslcert=… sslkey=….".to_owned(),
        ),
        Tls::AlertReceived(alert @ (AlertDescription::UnknownCA | AlertDescription::BadCertificate)) => (
            format!("{server} does not accept our client certificate ({alert:?})"),
            "It must be signed by an authority of the server's ssl_ca_file.".to_owned(),
        ),
        other => (
            format!("no TLS with {server}: {other}"),
            "Check the server's certificate, and sslmode and sslrootcert here.".to_owned(),
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
