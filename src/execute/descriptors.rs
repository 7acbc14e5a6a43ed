//! The limit of open files and connections of this process.

use std::sync::OnceLock;

use rustix::process::{self, Pid, Resource, Rlimit};

/// The original limits of this process, if they were raised.
static ORIGINAL: OnceLock<Rlimit> = OnceLock::new();

/// Raise the soft limit to the hard limit, as servers do. The soft limit is low (usually 1,024) for programs that call
/// `select`, and each job that runs a program needs several descriptors.
#[cfg(feature = "cli")]
pub fn raise() {
    let limits = process::getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limits.maximum,
        ..limits
    };
    if limits.current == raised.current {
        return;
    }
    match process::setrlimit(Resource::Nofile, raised) {
        Ok(()) => drop(ORIGINAL.set(limits)),
        Err(error) => tracing::debug!(event = "descriptors", %error),
    }
}

/// Restore the original limit for a program that was just started, before it gets its payload.
pub fn restore(program: Pid) {
    #[cfg(target_os = "linux")]
    if let Some(original) = ORIGINAL.get() {
        // it may have exited
        let _ = process::prlimit(Some(program), Resource::Nofile, *original);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = program;
}
