//! Values of the file that are more than plain data.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error as _, Visitor};

use crate::error::{Error, Result};

/// Looks up an environment variable.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The environment of this process.
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// A text that may be a secret and is therefore never shown; `env:NAME` stands for what the variable NAME holds.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// This text.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// The text as it was written.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The variable it stands for, if it stands for one.
    pub(crate) fn variable(&self) -> Option<&str> {
        self.0.strip_prefix("env:")
    }

    /// The text itself, or what the variable it names holds.
    ///
    /// # Errors
    /// If the variable is not set; the error names it.
    pub fn resolve(&self, environment: Environment) -> Result<String> {
        match self.variable() {
            None => Ok(self.0.clone()),
            Some(name) => {
                environment(name).ok_or_else(|| Error::new(format!("the environment variable {name:?} is not set")))
            }
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Secret::new(text))
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // serde's own message would show the value it did not expect
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) => Ok(Secret(text)),
            other => Err(D::Error::custom(format!(
                "expected a string, or \"env:NAME\", but found a value of type {}",
                other.type_str()
            ))),
        }
    }
}

/// For flags: a duration as people write it.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write it as \"30s\", \"5m\" or \"1h 30m\""))
}

/// For the file: a duration as people write it.
pub(super) fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    struct Written;

    impl Visitor<'_> for Written {
        type Value = Duration;

        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            f.write_str("a duration such as \"30s\" or \"5m\"")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Duration, E> {
            parse_duration(text).map_err(E::custom)
        }
    }

    deserializer.deserialize_str(Written).map(Some)
}
