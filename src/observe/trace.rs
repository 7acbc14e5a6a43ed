//! The trace a job belongs to: the `traceparent` of its headers, as W3C Trace Context writes it.

#[cfg(feature = "otlp")]
mod otlp;

use crate::execute::context::Context;
use crate::execute::executor::Outcome;

#[cfg(feature = "otlp")]
pub use otlp::Exporter;

/// The header of a job, and of a request, that says which trace it belongs to.
pub const HEADER: &str = "traceparent";

/// `00-<trace>-<parent>-<flags>`, in lower-case hexadecimal, neither of them zero. Whatever else is there is nobody's
/// trace.
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

/// What the executor of a job passes on to services it calls: its own span, if spans are exported, else the trace
/// it was enqueued in.
pub fn onward(context: &Context) -> Option<String> {
    current().or_else(|| context.traceparent().map(String::from))
}

/// The span we are in, if spans are exported.
pub fn current() -> Option<String> {
    #[cfg(feature = "otlp")]
    return otlp::current();
    #[cfg(not(feature = "otlp"))]
    None
}

/// Note in the span around an executor how it ended, if spans are exported.
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
