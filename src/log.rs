//! Logs: for people on a terminal, as JSON otherwise. No payload, result, header value or password is ever logged.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// How much to log, and how.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct LogFlags {
    /// What to log: error, warn, info, debug (each job's start and end), trace, or filters like bugle=debug
    #[arg(long = "log", value_name = "LEVEL", env = "BUGLE_LOG", default_value = "info")]
    pub level: String,
    /// human or json [default: human on a terminal, else json]
    #[arg(long, value_name = "FORMAT", env = "BUGLE_LOG_FORMAT", value_parser = ["human", "json"])]
    pub log_format: Option<String>,
}

/// Start logging to stderr. Does nothing if the program already logs in a way of its own.
pub fn start(flags: &LogFlags) {
    let filter = filter(&flags.level);
    let to_terminal = std::io::stderr().is_terminal();
    let human = flags
        .log_format
        .as_deref()
        .map_or(to_terminal, |format| format == "human");
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false);
    let _ = if human {
        log.with_ansi(to_terminal && std::env::var_os("NO_COLOR").is_none())
            .try_init()
    } else {
        log.json()
            .flatten_event(true)
            .with_current_span(true)
            .with_span_list(false)
            .try_init()
    };
}

/// Libraries are heard only when they are named: the driver's debug log shows the parameters of every statement, and with
/// them payloads and results.
fn filter(level: &str) -> EnvFilter {
    let libraries = [
        "tokio_postgres",
        "postgres",
        "hyper",
        "hyper_util",
        "reqwest",
        "rustls",
        "refinery_core",
    ];
    let quiet = libraries
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
