//! Notifications to systemd for services of `Type=notify`: ready, stopping, alive.
//!
//! The protocol is a datagram to the socket named by `NOTIFY_SOCKET`. Without that variable nothing is sent.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Environment, environment};
use crate::observe::Observed;

/// Notify the service manager, if there is one.
pub fn tell(environment: Environment, state: &str) {
    let Some(address) = environment("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(&address, state) {
        tracing::debug!(event = "notify", %error);
    }
}

fn send(address: &str, state: &str) -> std::io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    match address.strip_prefix('@') {
        #[cfg(target_os = "linux")]
        Some(name) => {
            use std::os::linux::net::SocketAddrExt;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
            socket.send_to_addr(state.as_bytes(), &address)?;
        }
        _ => {
            socket.send_to(state.as_bytes(), Path::new(address))?;
        }
    }
    Ok(())
}

/// The watchdog interval: half of its timeout. `None` without a watchdog, or if it is for another process.
fn watchdog(environment: Environment) -> Option<Duration> {
    let mine = environment("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
    let micros: u64 = environment("WATCHDOG_USEC")?.parse().ok()?;
    (mine && micros > 0).then(|| Duration::from_micros(micros / 2))
}

/// Notify the watchdog as long as the worker makes progress, so that a stuck one is restarted. Waiting for a database
/// is progress.
pub async fn feed_watchdog(observed: Vec<Arc<Observed>>) {
    let Some(every) = watchdog(&environment) else {
        return;
    };
    loop {
        if observed.iter().all(|observed| observed.health.is_alive()) {
            tell(&environment, "WATCHDOG=1");
        }
        tokio::time::sleep(every).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_manager_is_told_over_its_socket() {
        let path = std::env::temp_dir().join(format!("bugle-notify-{:016x}", fastrand::u64(..)));
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let address = path.display().to_string();

        tell(&|name| (name == "NOTIFY_SOCKET").then(|| address.clone()), "READY=1");

        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(&buffer[..length], b"READY=1");
        tell(&|_| None, "READY=1");
    }

    #[test]
    fn the_watchdog_is_told_twice_in_its_time() {
        let asked = |name: &str| (name == "WATCHDOG_USEC").then(|| "30000000".to_owned());
        let anothers = |name: &str| match name {
            "WATCHDOG_PID" => Some("1".to_owned()),
            name => asked(name),
        };

        assert_eq!(watchdog(&asked), Some(Duration::from_secs(15)));
        assert_eq!(watchdog(&anothers), None);
        assert_eq!(watchdog(&|_| None), None);
    }
}
