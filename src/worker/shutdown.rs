//! Signals, as two tokens: the first asks to drain, the second to stop at once.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Asks a worker to stop. The first request drains, the second gives everything back at once.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    /// Stop claiming; running jobs may finish.
    pub drain: CancellationToken,
    /// Do not wait for them any longer.
    pub now: CancellationToken,
}

impl Shutdown {
    /// Nobody asked yet.
    pub fn new() -> Self {
        Shutdown::default()
    }

    /// Ask once more: drain, or if that was asked before, stop at once.
    pub fn request(&self) {
        if self.drain.is_cancelled() {
            self.now.cancel();
        }
        self.drain.cancel();
    }

    /// Ask at each SIGTERM and SIGINT.
    ///
    /// # Errors
    /// If the process cannot listen to signals.
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
