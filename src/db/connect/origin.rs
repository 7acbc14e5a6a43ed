//! The origin of an address, for errors. A wrong database is often the address of something else in a variable.

use super::parameters::{self, Parameters};
use crate::config::Environment;
use crate::error::Result;

/// The parts of an address and their variables.
const PARTS: [(&str, &[(&str, &str)]); 4] = [
    ("host", &[("host", "PGHOST"), ("hostaddr", "PGHOSTADDR")]),
    ("port", &[("port", "PGPORT")]),
    ("dbname", &[("dbname", "PGDATABASE")]),
    ("user", &[("user", "PGUSER")]),
];

/// The origin of each part of the address: `DATABASE_URL (host, dbname), PGUSER (user), default (port)`. Without
/// values, because they may be secret.
pub fn origin(text: &str, given_by: &str, environment: Environment) -> Result<String> {
    let said = parameters::read(text)?;
    let service = parameters::service(&said, environment)?;
    let mut sources: Vec<(String, Vec<&str>)> = Vec::new();
    for (part, names) in PARTS {
        let has = |given: &Parameters| names.iter().any(|(name, _)| given.contains_key(*name));
        let variable = names.iter().find(|(_, variable)| is_set(variable, environment));
        let source = match (&service, variable) {
            _ if has(&said) => given_by.to_owned(),
            (Some((name, section)), _) if has(section) => format!("the service {name:?}"),
            (_, Some((_, variable))) => (*variable).to_owned(),
            _ => "default".to_owned(),
        };
        match sources.iter_mut().find(|(known, _)| *known == source) {
            Some((_, parts)) => parts.push(part),
            None => sources.push((source, vec![part])),
        }
    }
    let named = |(source, parts): &(String, Vec<&str>)| format!("{source} ({})", parts.join(", "));
    Ok(sources.iter().map(named).collect::<Vec<_>>().join(", "))
}

fn is_set(variable: &str, environment: Environment) -> bool {
    environment(variable).is_some_and(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_an_address_is_told_by_its_source_and_never_by_its_value() {
        let environment = |name: &str| match name {
            "PGPORT" => Some("5433".to_owned()),
            "PGHOST" => Some("s3cret".to_owned()),
            "PGUSER" => Some(String::new()),
            _ => None,
        };
        let told = |text| origin(text, "DATABASE_URL", &environment).unwrap();

        assert_eq!(
            told("postgres://ada:s3cret@s3cret:1/s3cret"),
            "DATABASE_URL (host, port, dbname, user)"
        );
        assert_eq!(
            told("postgres://s3cret/s3cret"),
            "DATABASE_URL (host, dbname), PGPORT (port), default (user)"
        );
        assert_eq!(told(""), "PGHOST (host), PGPORT (port), default (dbname, user)");
    }
}
