//! Logs: human-readable on a terminal, JSON otherwise. Payloads, results, header values and passwords are never logged.

use std::io::IsTerminal;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::error::Result;
#[cfg(feature = "otlp")]
use crate::observe::trace;

/// Log level and format.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct LogFlags {
    /// Log level: error, warn, info, debug (start and completion of each job) or trace; or filters like bugle=debug
    #[arg(long = "log", value_name = "LEVEL", env = "BUGLE_LOG", default_value = "info")]
    pub level: String,
    /// Log format [default: human on a terminal, json otherwise]
    #[arg(long, value_name = "FORMAT", env = "BUGLE_LOG_FORMAT", value_parser = ["human", "json"])]
    pub log_format: Option<String>,
}

/// Keeps the export of spans running; dropping it sends the remaining spans.
#[must_use = "spans are exported only while this value is alive"]
pub struct Logging {
    #[cfg(feature = "otlp")]
    _exporter: Option<trace::Exporter>,
}

/// Start logging to stderr, and exporting spans if that is compiled in and configured. Does nothing if the program has
/// already installed a logger.
///
/// # Errors
/// If the environment configures an export that is not possible.
pub fn start(flags: &LogFlags) -> Result<Logging> {
    let to_terminal = std::io::stderr().is_terminal();
    let human = flags
        .log_format
        .as_deref()
        .map_or(to_terminal, |format| format == "human");
    let log = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_target(false);
    let log = if human {
        log.with_ansi(to_terminal && std::env::var_os("NO_COLOR").is_none())
            .boxed()
    } else {
        log.json()
            .flatten_event(true)
            .with_current_span(true)
            .with_span_list(false)
            .boxed()
    };
    let subscriber = tracing_subscriber::registry().with(log.with_filter(filter(&flags.level)));
    #[cfg(feature = "otlp")]
    let exporter = trace::Exporter::from_environment()?;
    #[cfg(feature = "otlp")]
    let subscriber = subscriber.with(exporter.as_ref().map(trace::Exporter::layer));
    let _ = subscriber.try_init();
    Ok(Logging {
        #[cfg(feature = "otlp")]
        _exporter: exporter,
    })
}

const QUIET: [&str; 8] = [
    "tokio_postgres",
    "postgres",
    "hyper",
    "hyper_util",
    "reqwest",
    "rustls",
    "refinery_core",
    "opentelemetry",
];

/// Libraries are logged only if they are named explicitly: the debug log of the driver contains the parameters of every
/// statement, and with them payloads and results.
fn filter(level: &str) -> EnvFilter {
    let quiet = QUIET
        .into_iter()
        .filter(|library| !level.contains(library))
        .map(|library| format!(",{library}=warn"));
    let directives = level.to_string() + &quiet.collect::<String>();
    EnvFilter::try_new(directives).unwrap_or_else(|_| EnvFilter::new("info"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_that_log_data_are_silent_unless_they_are_named() {
        assert!(filter("debug").to_string().contains("tokio_postgres=warn"));
        assert!(
            !filter("info,tokio_postgres=debug")
                .to_string()
                .contains("tokio_postgres=warn")
        );
    }
}
