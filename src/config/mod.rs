//! The configuration of a worker: its settings, and commands that need no code.

mod command;
#[cfg(feature = "cli")]
mod file;
#[cfg(feature = "cli")]
mod flags;
mod host;
mod settings;
mod value;

pub use command::{Action, CommandConfig, Cwd, HttpConfig, ProgramConfig, ProgramEnv, SqlConfig};
#[cfg(feature = "cli")]
pub use file::{Config, DatabaseConfig};
#[cfg(feature = "cli")]
pub use flags::Flags;
#[cfg(feature = "cli")]
pub(crate) use flags::{flag_or_variable, parse_duration};
pub use host::HostConfig;
pub use settings::{Database, Settings};
pub(crate) use value::environment;
pub use value::{Environment, Secret};

#[cfg(all(test, feature = "cli"))]
mod tests;
