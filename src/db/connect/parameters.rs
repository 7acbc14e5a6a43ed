//! Parameters from a connection string, the environment and the service file, as in libpq. No other I/O.
//!
//! The precedence is that of libpq: the string, the service it names, the environment, the defaults. Errors never show
//! values, because they may contain the password.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;

use crate::config::Environment;
use crate::error::{Error, Result};

/// Parameters by their libpq names.
pub type Parameters = BTreeMap<String, String>;

/// Every supported parameter, and its environment variable.
const KNOWN: [(&str, &str); 50] = [
    ("host", "PGHOST"),
    ("hostaddr", "PGHOSTADDR"),
    ("port", "PGPORT"),
    ("dbname", "PGDATABASE"),
    ("user", "PGUSER"),
    ("password", "PGPASSWORD"),
    ("passfile", "PGPASSFILE"),
    ("service", "PGSERVICE"),
    ("servicefile", "PGSERVICEFILE"),
    ("options", "PGOPTIONS"),
    ("application_name", "PGAPPNAME"),
    ("fallback_application_name", ""),
    ("client_encoding", ""),
    ("connect_timeout", "PGCONNECT_TIMEOUT"),
    ("keepalives", ""),
    ("keepalives_idle", ""),
    ("keepalives_interval", ""),
    ("keepalives_count", ""),
    ("tcp_user_timeout", ""),
    ("target_session_attrs", "PGTARGETSESSIONATTRS"),
    ("load_balance_hosts", "PGLOADBALANCEHOSTS"),
    ("channel_binding", "PGCHANNELBINDING"),
    ("gssencmode", "PGGSSENCMODE"),
    ("krbsrvname", "PGKRBSRVNAME"),
    ("gsslib", "PGGSSLIB"),
    ("gssdelegation", "PGGSSDELEGATION"),
    ("sslmode", "PGSSLMODE"),
    ("sslnegotiation", "PGSSLNEGOTIATION"),
    ("sslcompression", "PGSSLCOMPRESSION"),
    ("sslcert", "PGSSLCERT"),
    ("sslkey", "PGSSLKEY"),
    ("sslcertmode", "PGSSLCERTMODE"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("sslcrl", "PGSSLCRL"),
    ("sslsni", "PGSSLSNI"),
    ("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION"),
    ("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION"),
    ("sslcrldir", "PGSSLCRLDIR"),
    ("sslpassword", ""),
    ("sslkeylogfile", ""),
    ("min_protocol_version", "PGMINPROTOCOLVERSION"),
    ("max_protocol_version", "PGMAXPROTOCOLVERSION"),
    ("oauth_issuer", ""),
    ("oauth_client_id", ""),
    ("oauth_client_secret", ""),
    ("oauth_scope", ""),
    ("scram_client_key", ""),
    ("scram_server_key", ""),
    ("requirepeer", "PGREQUIREPEER"),
    ("require_auth", "PGREQUIREAUTH"),
];

/// Whether the environment alone specifies a database, as it may for psql.
pub fn named_by(environment: Environment) -> bool {
    ["PGHOST", "PGHOSTADDR", "PGDATABASE", "PGSERVICE"]
        .iter()
        .any(|name| environment(name).is_some_and(|value| !value.is_empty()))
}

/// All parameters of a connection, with the defaults that depend on the user and the home directory.
pub fn resolve(text: &str, environment: Environment) -> Result<Parameters> {
    let mut all = read(text)?;
    if let Some((_, section)) = service(&all, environment)? {
        for (name, value) in section {
            all.entry(name).or_insert(value);
        }
    }
    for (name, variable) in KNOWN.iter().filter(|(_, variable)| !variable.is_empty()) {
        if let Some(value) = environment(variable).filter(|value| !value.is_empty()) {
            all.entry((*name).to_owned()).or_insert(value);
        }
    }
    // empty values are ignored, including the password: libpq then uses the password file
    all.retain(|_, value| !value.is_empty());
    if !all.contains_key("user") {
        let user = ["USER", "LOGNAME"].iter().find_map(|name| environment(name));
        all.insert("user".into(), user.unwrap_or_else(|| "postgres".into()));
    }
    if !all.contains_key("dbname") {
        all.insert("dbname".into(), all["user"].clone());
    }
    if let Some(home) = environment("HOME").map(PathBuf::from) {
        let defaults = [
            ("passfile", ".pgpass"),
            ("sslrootcert", ".postgresql/root.crt"),
            ("sslcert", ".postgresql/postgresql.crt"),
            ("sslkey", ".postgresql/postgresql.key"),
            ("sslcrl", ".postgresql/root.crl"),
        ];
        for (name, file) in defaults {
            let path = home.join(file);
            if path.exists() {
                all.entry(name.into()).or_insert_with(|| path.display().to_string());
            }
        }
    }
    Ok(all)
}

/// The service named by the string or the environment: its name and its parameters.
pub fn service(said: &Parameters, environment: Environment) -> Result<Option<(String, Parameters)>> {
    let given = |name: &str, variable: &str| {
        said.get(name)
            .cloned()
            .or_else(|| environment(variable))
            .filter(|value| !value.is_empty())
    };
    let Some(service) = given("service", "PGSERVICE") else {
        return Ok(None);
    };
    let section = read_service(&service, given("servicefile", "PGSERVICEFILE"), environment)?;
    Ok(Some((service, section)))
}

/// A connection string: a URL, `name=value …`, or just the name of a database.
pub fn read(text: &str) -> Result<Parameters> {
    let text = text.trim();
    let url = ["postgres://", "postgresql://"]
        .iter()
        .find_map(|scheme| text.strip_prefix(scheme));
    let pairs = match url {
        Some(rest) => read_url(rest)?,
        None if text.is_empty() => Vec::new(),
        None if text.contains('=') => read_pairs(text)?,
        None if text.chars().all(|c| c.is_alphanumeric() || "_-".contains(c)) => vec![("dbname".into(), text.into())],
        None => return Err(unreadable("it is neither a URL nor a list of name=value")),
    };
    let mut parameters = Parameters::new();
    for (name, value) in pairs {
        // the JDBC spelling
        let (name, value) = match (name.as_str(), value.as_str()) {
            ("ssl", "true") => ("sslmode".to_owned(), "require".to_owned()),
            _ => (name, value),
        };
        if !KNOWN.iter().any(|(known, _)| *known == name) {
            return Err(unreadable(&format!("{name:?} is not a connection parameter")));
        }
        parameters.insert(name, value);
    }
    Ok(parameters)
}

fn unreadable(why: &str) -> Error {
    Error::new(format!("the connection string is invalid: {why}"))
        .with_hint("Expected postgres://user@host/database, or host=… user=… dbname=….")
}

/// `[user[:password]@][host[:port],…][/database][?name=value&…]`
fn read_url(rest: &str) -> Result<Vec<(String, String)>> {
    let (before, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, database) = before.split_once('/').unwrap_or((before, ""));
    let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let mut names = Vec::new();
    let mut ports = Vec::new();
    for place in hosts.split(',') {
        let (host, port) = match place.strip_prefix('[') {
            Some(address) => {
                let (address, after) = address
                    .split_once(']')
                    .ok_or_else(|| unreadable("an address in [ has no ]"))?;
                (address, after.strip_prefix(':').unwrap_or(""))
            }
            None => place.split_once(':').unwrap_or((place, "")),
        };
        names.push(decoded(host)?);
        ports.push(decoded(port)?);
    }
    let lists = [("host", names.join(",")), ("port", ports.join(","))];
    let mut pairs = vec![
        ("user".to_owned(), decoded(user)?),
        ("password".to_owned(), decoded(password)?),
        ("dbname".to_owned(), decoded(database)?),
    ];
    pairs.extend(lists.map(|(name, list)| (name.to_owned(), list)));
    // empty parts of a URL are not set
    pairs.retain(|(_, value)| !value.trim_matches(',').is_empty());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair
            .split_once('=')
            .ok_or_else(|| unreadable("a parameter after ? has no ="))?;
        pairs.push((decoded(name)?, decoded(value)?));
    }
    Ok(pairs)
}

/// Unlike in web URLs, a % that does not start an escape is an error, as in libpq.
fn decoded(text: &str) -> Result<String> {
    let is_escape = |after: &str| {
        let digits = after.get(..2);
        digits.is_some_and(|digits| digits != "00" && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
    };
    if !text.split('%').skip(1).all(is_escape) {
        return Err(unreadable("% must be followed by two hexadecimal digits"));
    }
    let plain = percent_decode_str(text).decode_utf8();
    Ok(plain.map_err(|_| unreadable("it is not UTF-8"))?.into_owned())
}

/// `name = value name='va l\'ue'`
fn read_pairs(text: &str) -> Result<Vec<(String, String)>> {
    let mut pairs = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (name, after) = rest
            .split_once('=')
            .ok_or_else(|| unreadable("a name is not followed by ="))?;
        let name = name.trim_end();
        if name.contains(char::is_whitespace) {
            return Err(unreadable("a name is not followed by ="));
        }
        let after = after.trim_start();
        let quoted = after.starts_with('\'');
        let mut value = String::new();
        let mut letters = after.char_indices().skip(usize::from(quoted));
        let mut end = if quoted { None } else { Some(after.len()) };
        while let Some((at, letter)) = letters.next() {
            match letter {
                '\\' => value.extend(letters.next().map(|(_, escaped)| escaped)),
                '\'' if quoted => {
                    end = Some(at + 1);
                    break;
                }
                letter if !quoted && letter.is_whitespace() => {
                    end = Some(at);
                    break;
                }
                letter => value.push(letter),
            }
        }
        let end = end.ok_or_else(|| unreadable("a quoted value is not terminated"))?;
        pairs.push((name.to_owned(), value));
        rest = after[end..].trim_start();
    }
    Ok(pairs)
}

/// The section of a service file: the user's, otherwise the system's.
fn read_service(service: &str, file: Option<String>, environment: Environment) -> Result<Parameters> {
    let home = environment("HOME").map(|home| Path::new(&home).join(".pg_service.conf"));
    let system = environment("PGSYSCONFDIR").unwrap_or_else(|| "/etc/postgresql-common".into());
    let places = [
        file.map(PathBuf::from).or(home),
        Some(Path::new(&system).join("pg_service.conf")),
    ];
    for place in places.into_iter().flatten() {
        let Ok(text) = std::fs::read_to_string(&place) else {
            continue;
        };
        let mut lines = text.lines().map(str::trim);
        if !lines.any(|line| line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) == Some(service)) {
            continue;
        }
        let section = lines
            .take_while(|line| !line.starts_with('['))
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        let mut parameters = Parameters::new();
        for line in section {
            match line.split_once('=') {
                Some((name, value)) if KNOWN.iter().any(|(known, _)| *known == name.trim()) => {
                    parameters.insert(name.trim().to_owned(), value.trim().to_owned());
                }
                _ => {
                    return Err(Error::new(format!(
                        "{}: a line of service {service:?} is not a connection parameter",
                        place.display()
                    )));
                }
            }
        }
        return Ok(parameters);
    }
    Err(
        Error::new(format!("service {service:?} was not found in a service file"))
            .with_hint("Services are sections of ~/.pg_service.conf, or of the file named by PGSERVICEFILE."),
    )
}

/// As one string, for another process. It may contain the password.
pub fn written(parameters: &Parameters) -> String {
    let quoted = |text: &str| format!("'{}'", text.replace('\\', r"\\").replace('\'', r"\'"));
    parameters
        .iter()
        .filter(|(name, _)| !["service", "servicefile"].contains(&name.as_str()))
        .map(|(name, value)| format!("{name}={}", quoted(value)))
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests;
