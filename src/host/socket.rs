//! Lines over a Unix socket: read without buffering more than the longest, written many at once.

use std::io;
use std::path::Path;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::message::{LONGEST_LINE, Rejected, ToHost};
use crate::execute::shortage::Shortage;

/// How much is read at once, at least.
const CHUNK: usize = 64 * 1024;
/// The most lines that are written at once.
const MOST_AT_ONCE: usize = 512;

/// Listen at this path. The folder must be one that only this user can enter.
///
/// # Errors
/// If the socket cannot be made. The system limits the length of its path to about 100 bytes.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let _ = std::fs::remove_file(path);
    UnixListener::bind(path).map_err(|error| match Shortage::at_start(&error) {
        // callers look for it, and it has nothing to do with the path
        Some(_) => error,
        None => io::Error::new(
            error.kind(),
            format!(
                "cannot make the socket {}: {error}; a shorter workdir may help",
                path.display()
            ),
        ),
    })
}

/// Lines as they arrive.
pub struct Lines<R> {
    from: R,
    buffer: Vec<u8>,
    /// The position at which the next line begins.
    begin: usize,
    /// The position up to which there is no line end.
    scanned: usize,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub fn new(from: R) -> Lines<R> {
        Lines {
            from,
            buffer: Vec::new(),
            begin: 0,
            scanned: 0,
        }
    }

    /// The next line that has arrived as a whole, without its end. Empty lines are skipped.
    ///
    /// # Errors
    /// If it is too long.
    pub fn next(&mut self) -> Result<Option<&[u8]>, Rejected> {
        loop {
            let Some(at) = self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n') else {
                self.scanned = self.buffer.len();
                return match self.scanned - self.begin > LONGEST_LINE {
                    true => Err(too_long()),
                    false => Ok(None),
                };
            };
            let (begin, end) = (self.begin, self.scanned + at);
            (self.begin, self.scanned) = (end + 1, end + 1);
            if end - begin > LONGEST_LINE {
                return Err(too_long());
            }
            let line = &self.buffer[begin..end];
            if !line.trim_ascii().is_empty() {
                return Ok(Some(self.buffer[begin..end].trim_ascii()));
            }
        }
    }

    /// Wait for more. False at the end. Nothing is lost if it is dropped.
    pub async fn more(&mut self) -> io::Result<bool> {
        self.buffer.drain(..self.begin);
        self.scanned -= self.begin;
        self.begin = 0;
        if self.buffer.is_empty() && self.buffer.capacity() > 16 * CHUNK {
            self.buffer = Vec::new();
        }
        self.buffer.reserve(CHUNK);
        Ok(self.from.read_buf(&mut self.buffer).await? > 0)
    }
}

fn too_long() -> Rejected {
    Rejected::new("bad_line", format!("the line is longer than {LONGEST_LINE} bytes"))
}

enum Out {
    Line(Vec<u8>, Option<OwnedSemaphorePermit>),
    Close,
}

/// Messages that are to be sent. Cheap to clone.
#[derive(Clone)]
pub struct Outbox(mpsc::UnboundedSender<Out>);

impl Outbox {
    /// Open an outbox, and start the task that writes its messages.
    pub fn open(to: impl AsyncWrite + Unpin + Send + 'static) -> Outbox {
        let (outbox, lines) = mpsc::unbounded_channel();
        tokio::spawn(write(to, lines));
        Outbox(outbox)
    }

    /// Send a message. The other side may have stopped reading.
    pub fn send(&self, message: &ToHost) {
        let _ = self.0.send(Out::Line(message.line(), None));
    }

    /// Send a message that counts as unread until it is written.
    pub fn send_counted(&self, message: &ToHost, permit: Option<OwnedSemaphorePermit>) {
        let _ = self.0.send(Out::Line(message.line(), permit));
    }

    /// Close the connection after everything was written.
    pub fn close(&self) {
        let _ = self.0.send(Out::Close);
    }
}

async fn write(mut to: impl AsyncWrite + Unpin, mut lines: mpsc::UnboundedReceiver<Out>) {
    let (mut batch, mut buffer) = (Vec::new(), Vec::new());
    loop {
        if lines.recv_many(&mut batch, MOST_AT_ONCE).await == 0 {
            return;
        }
        let mut permits = Vec::new();
        let mut is_last = false;
        for out in batch.drain(..) {
            match out {
                Out::Line(line, permit) => {
                    buffer.extend_from_slice(&line);
                    permits.extend(permit);
                }
                Out::Close => is_last = true,
            }
        }
        if to.write_all(&buffer).await.is_err() || is_last {
            let _ = to.shutdown().await;
            return;
        }
        drop(permits);
        buffer.clear();
        buffer.shrink_to(16 * CHUNK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_whole_whatever_pieces_they_arrive_in() {
        let (near, mut far) = tokio::io::duplex(3);
        let writing = tokio::spawn(async move {
            far.write_all("one\n\r\n  \ntwo \u{fc}\r\nthree\nunfinished".as_bytes())
                .await
                .unwrap();
        });
        let mut lines = Lines::new(near);
        let mut read = Vec::new();

        loop {
            while let Some(line) = lines.next().unwrap() {
                read.push(String::from_utf8(line.to_vec()).unwrap());
            }
            if !lines.more().await.unwrap() {
                break;
            }
        }

        assert_eq!(read, ["one", "two ü", "three"]);
        writing.await.unwrap();
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_rejected_before_its_end() {
        let mut lines = Lines::new(tokio::io::repeat(b'x'));

        let rejected = loop {
            match lines.next() {
                Ok(line) => assert!(line.is_none()),
                Err(rejected) => break rejected,
            }
            lines.more().await.unwrap();
        };

        assert_eq!(rejected.code, "bad_line");
        assert!(lines.buffer.len() <= 2 * (LONGEST_LINE + CHUNK));
    }
}
