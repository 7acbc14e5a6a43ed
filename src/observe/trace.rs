//! The trace of a job: the `traceparent` header in the W3C Trace Context format.

#[cfg(feature = "otlp")]
mod otlp;

use std::fmt::{self, Display};

use crate::execute::context::Context;
use crate::execute::executor::Outcome;

#[cfg(feature = "otlp")]
pub use otlp::Exporter;

/// The name of the header in jobs and HTTP requests.
pub const HEADER: &str = "traceparent";

/// Parse `00-<trace>-<parent>-<flags>`, in lower-case hexadecimal, with trace and parent not zero. Anything else is
/// ignored.
pub fn parent(text: &str) -> Option<&str> {
    let parts: Vec<&str> = text.split('-').collect();
    let [version, trace, parent, flags] = parts[..] else {
        return None;
    };
    let is_hex = |part: &str, length| {
        part.len() == length && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let is_something = |part: &str| part.bytes().any(|byte| byte != b'0');
    let fits = version == "00"
        && is_hex(trace, 32)
        && is_hex(parent, 16)
        && is_hex(flags, 2)
        && is_something(trace)
        && is_something(parent);
    fits.then_some(text)
}

/// The trace context that an executor passes on to the services it calls: its own span if spans are exported, otherwise
/// the trace the job was enqueued in.
pub fn onward(context: &Context) -> Option<String> {
    current().or_else(|| context.traceparent().map(String::from))
}

/// The current span, if spans are exported.
pub fn current() -> Option<String> {
    #[cfg(feature = "otlp")]
    return otlp::current();
    #[cfg(not(feature = "otlp"))]
    None
}

/// The trace and the span of one attempt, for logs: those that are exported; else the trace the job was enqueued in, or
/// a new one, and a new span.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ids {
    trace: u128,
    span: u64,
}

impl Ids {
    /// Those of an attempt that begins in this span.
    pub fn of(span: &tracing::Span, traceparent: Option<&str>) -> Ids {
        #[cfg(feature = "otlp")]
        if let Some((trace, span)) = otlp::ids(span) {
            return Ids { trace, span };
        }
        let _ = span;
        let enqueued = traceparent
            .and_then(parent)
            .and_then(|text| u128::from_str_radix(text.get(3..35)?, 16).ok());
        Ids {
            trace: enqueued.unwrap_or_else(|| fastrand::u128(1..)),
            span: fastrand::u64(1..),
        }
    }

    /// The trace in hexadecimal.
    pub fn trace_id(&self) -> impl Display {
        Hex(self.trace, 32)
    }

    /// The span in hexadecimal.
    pub fn span_id(&self) -> impl Display {
        Hex(self.span.into(), 16)
    }
}

/// A number with this many digits.
struct Hex(u128, usize);

impl Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0digits$x}", self.0, digits = self.1)
    }
}

/// Record the outcome in the span around an executor, if spans are exported.
pub fn ended(_span: &tracing::Span, _outcome: &Outcome) {
    #[cfg(feature = "otlp")]
    otlp::ended(_span, _outcome);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_well_formed_is_a_trace() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

        assert_eq!(parent(good), Some(good));
        for bad in [
            "",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\nevil: 1",
        ] {
            assert_eq!(parent(bad), None, "{bad:?}");
        }
    }
}
