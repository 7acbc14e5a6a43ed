//! Converts errors into those of the driver, which is the only type pools accept.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::{Config, NoTls};

/// The driver's error for a connection that fails like this.
pub async fn refusal(kind: io::ErrorKind, why: &str) -> tokio_postgres::Error {
    let broken = Broken(kind, why.to_owned());
    match Config::new().user("nobody").connect_raw(broken, NoTls).await {
        Ok(_) => unreachable!("it cannot be read from"),
        Err(error) => error,
    }
}

/// A connection that fails.
struct Broken(io::ErrorKind, String);

impl Broken {
    fn error<T>(&self) -> Poll<io::Result<T>> {
        Poll::Ready(Err(io::Error::new(self.0, self.1.clone())))
    }
}

impl AsyncRead for Broken {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.error()
    }
}

impl AsyncWrite for Broken {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        self.error()
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.error()
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.error()
    }
}
