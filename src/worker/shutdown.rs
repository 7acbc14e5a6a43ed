//! Shutdown, as two tokens: the first request drains the worker, the second stops it at once.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A request to stop, shared by all that should stop together: workers, servers, tasks. Cheap to clone.
///
/// At the first request a worker claims nothing more and lets running jobs finish. At the second it gives them back at
/// once.
///
/// ```no_run
/// # async fn example(worker: bugle::Worker) -> Result<(), Box<dyn std::error::Error>> {
/// let shutdown = bugle::Shutdown::on_signals()?;
/// let stopped = shutdown.clone();
/// tokio::spawn(async move {
///     stopped.requested().await;
///     println!("stopping");
/// });
/// worker.run(shutdown).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    /// Stop claiming; running jobs may finish.
    pub(crate) drain: CancellationToken,
    /// Do not wait for them any longer.
    pub(crate) now: CancellationToken,
}

impl Shutdown {
    /// Nothing is requested yet.
    pub fn new() -> Self {
        Shutdown::default()
    }

    /// Request to drain; if that was requested before, to stop at once.
    pub fn request(&self) {
        if self.drain.is_cancelled() {
            self.now.cancel();
        }
        self.drain.cancel();
    }

    /// Wait until it is requested, for example as the graceful shutdown of a web server beside the worker.
    pub async fn requested(&self) {
        self.drain.cancelled().await;
    }

    /// A part that ends with the whole, or by itself.
    pub(crate) fn of_a_part(&self) -> Shutdown {
        Shutdown {
            drain: self.drain.child_token(),
            now: self.now.child_token(),
        }
    }

    /// A request at each SIGTERM and SIGINT.
    ///
    /// # Errors
    /// If signal handlers cannot be installed.
    pub fn on_signals() -> std::io::Result<Shutdown> {
        let shutdown = Shutdown::new();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let asked = shutdown.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    Some(()) = terminate.recv() => {}
                    Some(()) = interrupt.recv() => {}
                    else => return,
                }
                tracing::info!(event = "shutdown", again = asked.drain.is_cancelled());
                asked.request();
            }
        });
        Ok(shutdown)
    }
}
