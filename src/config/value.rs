//! Values of settings: secrets and the environment.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// Looks up an environment variable.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The environment of this process.
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// A text that may be secret and is therefore never shown. `env:NAME` stands for the value of the variable NAME.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// A secret with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// The text as written.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The variable it refers to, if any.
    pub(crate) fn variable(&self) -> Option<&str> {
        self.0.strip_prefix("env:")
    }

    /// The text itself, or the value of the variable it refers to.
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
