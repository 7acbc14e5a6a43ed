//! Without the feature `http` there are no commands that send requests, and a worker that has one does not start.

use std::sync::Arc;
use std::time::Duration;

use crate::config::{Environment, HttpConfig};
use crate::error::{Error, Result};
use crate::execute::executor::Executor;

/// There are none.
#[derive(Default)]
pub struct Clients {}

pub fn executor(_: &HttpConfig, _: Duration, _: &mut Clients, _: Environment) -> Result<Arc<dyn Executor>> {
    Err(Error::without_feature("a command with http", "http"))
}
