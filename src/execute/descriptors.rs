//! How many files and connections this process may have open.

use std::sync::OnceLock;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};

/// The limits this process was started with, if they were raised.
static ORIGINAL: OnceLock<Rlimit> = OnceLock::new();

/// Raise the soft limit to the hard one, as servers do: the soft one is low (1,024, commonly) for the sake of programs
/// that call `select`, and each job that runs a program takes a handful.
pub fn raise() {
    let limits = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limits.maximum,
        ..limits
    };
    if limits.current == raised.current {
        return;
    }
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => drop(ORIGINAL.set(limits)),
        Err(error) => tracing::debug!(event = "descriptors", %error),
    }
}

/// Give a program that was just started the limit back that it would have without us. It has it before it gets its
/// payload.
pub fn restore(program: Pid) {
    #[cfg(target_os = "linux")]
    if let Some(original) = ORIGINAL.get() {
        // it may have ended
        let _ = rustix::process::prlimit(Some(program), Resource::Nofile, *original);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = program;
}
