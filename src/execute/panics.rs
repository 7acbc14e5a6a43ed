//! Panics of executors: caught, and described with their place and stack, as failures of their jobs.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::pin::pin;
use std::sync::Once;
use std::task::Poll;

use crate::execute::executor::Failure;

/// The most frames of a stack that are kept.
const MOST_FRAMES: usize = 16;

/// The most of a function's name that is kept; names of generic functions can be very long.
const LONGEST_NAME: usize = 200;

/// Frames of these say nothing about the executor.
const NOT_THE_EXECUTORS: [&str; 9] = [
    "std::",
    "core::",
    "alloc::",
    "tokio::",
    "tokio_util::",
    "futures_util::",
    "tracing::",
    "rust_",
    "__",
];

thread_local! {
    /// Whether this thread is inside an executor.
    static IS_WATCHED: Cell<bool> = const { Cell::new(false) };
    /// Where its latest panic was.
    static PLACE: RefCell<Option<Place>> = const { RefCell::new(None) };
}

struct Place {
    location: String,
    stack: Backtrace,
}

/// Run to the end. If it panics, that is a failure with the code `panic`, which says where.
pub(crate) async fn caught<T>(execution: impl Future<Output = T>) -> Result<T, Failure> {
    watch_panics();
    let mut execution = pin!(execution);
    poll_fn(move |task| {
        let was_watched = IS_WATCHED.replace(true);
        let polled = catch_unwind(AssertUnwindSafe(|| execution.as_mut().poll(task)));
        IS_WATCHED.set(was_watched);
        match polled {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Poll::Ready(Err(failure(&*panic, PLACE.take()))),
        }
    })
    .await
}

/// Only a hook knows where a panic was. The hook that was there before, which prints the panic, is called as well.
fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic: &PanicHookInfo| {
            // not while the thread's variables are being dropped
            if IS_WATCHED.try_with(Cell::get).unwrap_or(false) {
                let location = panic.location().map(ToString::to_string).unwrap_or_default();
                let stack = stack();
                PLACE.set(Some(Place { location, stack }));
            }
            previous(panic);
        }));
    });
}

/// Unless it is switched off in the way that the standard library documents.
fn stack() -> Backtrace {
    let is_off = ["RUST_LIB_BACKTRACE", "RUST_BACKTRACE"]
        .into_iter()
        .find_map(std::env::var_os)
        .is_some_and(|value| value == "0");
    if is_off {
        Backtrace::disabled()
    } else {
        Backtrace::force_capture()
    }
}

/// All but the message is indented, so that `bugle.error_line` is the message.
fn failure(panic: &(dyn Any + Send), place: Option<Place>) -> Failure {
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    let mut text = format!("the executor panicked: {message}");
    if let Some(place) = place {
        let _ = write!(text, "\n    at {}", place.location);
        if place.stack.status() == BacktraceStatus::Captured {
            for frame in frames(&place.stack.to_string()) {
                let _ = write!(text, "\n    in {frame}");
            }
        }
    }
    Failure::new(text).code("panic")
}

/// The innermost frames of the executor, each with its file and line: between the panic itself and what called the
/// executor. In the text, a frame is a line `3: name`, and a line `at file:line:column` if that is known.
fn frames(stack: &str) -> Vec<String> {
    let mut frames: Vec<String> = Vec::new();
    let mut lines = stack.lines().map(str::trim).peekable();
    while let Some(line) = lines.next() {
        let name = line.split_once(": ").map_or(line, |(_, name)| name);
        let file = lines.next_if(|next| next.starts_with("at ")).map(|at| &at[3..]);
        if file.is_some_and(|file| file.contains("execute/panics.rs:")) && !frames.is_empty() {
            break; // what called the executor
        }
        if !is_executors(name, file) {
            continue;
        }
        let name: String = name.chars().take(LONGEST_NAME).collect();
        frames.push(file.map_or(name.clone(), |file| format!("{name} ({file})")));
        if frames.len() == MOST_FRAMES {
            break;
        }
    }
    frames
}

fn is_executors(name: &str, file: Option<&str>) -> bool {
    let path = name.trim_start_matches(['<', '&']).trim_start_matches("dyn ");
    let is_ours = path.starts_with("bugle::") && !path.starts_with("bugle::builtin::");
    let is_foreign = file.is_some_and(|file| file.starts_with("/rustc/") || file.contains("/registry/src/"));
    let is_noise = path == "unknown>" || NOT_THE_EXECUTORS.iter().any(|prefix| path.starts_with(prefix));
    !is_ours && !is_foreign && !is_noise
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_those_of_the_executor_and_bounded() {
        let own = (0..40).map(|n| format!("  {n}: shop::pay::step_{n}\n        at ./src/pay.rs:{n}:9\n"));
        let above = "  0: bugle::execute::panics::stack\n        at ./src/execute/panics.rs:1:1\n\
             1: <core::x as y>::z\n  2: <unknown>\n  3: poll<shop::pay>\n        at /rustc/1/future.rs:1:1\n";
        let below = "  50: {closure#0}\n        at ./src/execute/panics.rs:9:9\n  51: main\n";
        let long = frames(&(above.to_string() + &own.collect::<String>()));
        assert_eq!(
            (long.len(), &*long[0]),
            (MOST_FRAMES, "shop::pay::step_0 (./src/pay.rs:0:9)")
        );
        assert_eq!(frames(&format!("{above}  4: shop::pay\n{below}")), ["shop::pay"]);
    }

    #[tokio::test]
    async fn a_panic_says_where_it_was() {
        let line = line!() + 1;
        let failure = caught(async { panic!("at the disco") })
            .await
            .map(|(): ()| ())
            .unwrap_err();
        let (message, place) = failure.message.split_once('\n').unwrap();
        assert_eq!(message, "the executor panicked: at the disco");
        assert!(place.starts_with(&format!("    at {}:{line}:", file!())), "{place}");
        assert_eq!(failure.code.as_deref(), Some("panic"));
    }
}
