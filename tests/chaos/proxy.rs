//! A small TCP proxy in front of Postgres, one for each client, through which links are cut, held, slowed and muted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::judge::now;

/// What is done to a link at this moment. Times are nanoseconds of the monotonic clock; zero for never.
#[derive(Default)]
pub struct Link {
    /// The number of bytes until every connection is cut; negative for unlimited.
    cut_after: AtomicI64,
    /// Nothing comes through until then; afterwards every connection that waited is cut.
    held_until: AtomicU64,
    /// What the server says is lost until then; afterwards every connection that lost something is cut.
    deaf_until: AtomicU64,
    slow_until: AtomicU64,
    muted_until: AtomicU64,
}

impl Link {
    /// Cut every connection after this number of bytes.
    pub fn cut_after(&self, bytes: i64) {
        self.cut_after.store(bytes, Ordering::Release);
    }

    pub fn hold(&self, time: Duration) {
        self.held_until.store(after(time), Ordering::Release);
    }

    pub fn swallow_replies(&self, time: Duration) {
        self.deaf_until.store(after(time), Ordering::Release);
    }

    pub fn slow_down(&self, time: Duration) {
        self.slow_until.store(after(time), Ordering::Release);
    }

    pub fn mute(&self, time: Duration) {
        self.muted_until.store(after(time), Ordering::Release);
    }

    /// As if nothing had ever been.
    pub fn restore(&self) {
        self.cut_after.store(-1, Ordering::Release);
        for until in [&self.held_until, &self.deaf_until, &self.slow_until, &self.muted_until] {
            until.store(0, Ordering::Release);
        }
    }

    /// Whether this many bytes may pass, or the connection is cut now.
    fn may_pass(&self, bytes: usize) -> usize {
        let left = self.cut_after.load(Ordering::Acquire);
        if left < 0 {
            return bytes;
        }
        let passing = (bytes as i64).min(left);
        // the connection that used it up is cut, and the next ones live
        let rest = if passing < bytes as i64 { -1 } else { left - passing };
        self.cut_after.store(rest, Ordering::Release);
        passing as usize
    }
}

fn after(time: Duration) -> u64 {
    now() + time.as_nanos() as u64
}

fn lasts(until: &AtomicU64) -> bool {
    until.load(Ordering::Acquire) > now()
}

/// A listening proxy. It ends with the runtime.
pub struct Proxy {
    pub port: u16,
    pub link: Arc<Link>,
}

impl Proxy {
    /// In front of Postgres, for clients that do not ask for TLS.
    pub async fn start(upstream: SocketAddr) -> Proxy {
        Proxy::listen(upstream, true).await
    }

    /// In front of anything. Notifications cannot be left out.
    pub async fn of_any(upstream: SocketAddr) -> Proxy {
        Proxy::listen(upstream, false).await
    }

    async fn listen(upstream: SocketAddr, is_postgres: bool) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let link = Arc::new(Link::default());
        link.restore();
        let of_listener = link.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, upstream, of_listener.clone(), is_postgres));
            }
        });
        Proxy { port, link }
    }
}

async fn serve(client: TcpStream, upstream: SocketAddr, link: Arc<Link>, is_postgres: bool) {
    // one that is held answers the connect, as a half-open link may, and then nothing
    let Ok(server) = TcpStream::connect(upstream).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let cut = CancellationToken::new();
    let there = pass(from_client, to_server, link.clone(), cut.clone(), None);
    let back = pass(
        from_server,
        to_client,
        link,
        cut.clone(),
        is_postgres.then(Frames::default),
    );
    tokio::join!(there, back);
}

/// Pass bytes on in one direction until either end closes, or the link is cut. `frames`: this is what the server says.
async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    link: Arc<Link>,
    cut: CancellationToken,
    mut frames: Option<Frames>,
) {
    let mut chunk = vec![0; 8192];
    let mut out = Vec::with_capacity(8192);
    loop {
        let size = tokio::select! {
            size = from.read(&mut chunk) => size.unwrap_or(0),
            () = cut.cancelled() => break,
        };
        if size == 0 {
            break;
        }
        let is_stopped = || lasts(&link.held_until) || (frames.is_some() && lasts(&link.deaf_until));
        if is_stopped() {
            while is_stopped() && !cut.is_cancelled() {
                // why: a link that is held lets nothing through for a time, and then is cut
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            break;
        }
        out.clear();
        match &mut frames {
            Some(frames) => frames.filter(&chunk[..size], lasts(&link.muted_until), &mut out),
            None => out.extend_from_slice(&chunk[..size]),
        }
        let passing = link.may_pass(out.len());
        let step = if lasts(&link.slow_until) { 64 } else { out.len().max(1) };
        for piece in out[..passing].chunks(step) {
            if to.write_all(piece).await.is_err() {
                cut.cancel();
                return;
            }
            if lasts(&link.slow_until) {
                let wait = if fastrand::u8(..) < 8 { 200 } else { 2 };
                // why: a slow link; now and then a piece is lost on the way and sent again
                tokio::time::sleep(Duration::from_millis(wait)).await;
            }
        }
        if passing < out.len() {
            break;
        }
    }
    cut.cancel();
}

/// The messages of the server, so that some can be left out: a byte, a length, a body.
#[derive(Default)]
struct Frames {
    header: Vec<u8>,
    left: usize,
    dropping: bool,
}

const NOTIFICATION: u8 = b'A';

impl Frames {
    fn filter(&mut self, mut input: &[u8], mute: bool, out: &mut Vec<u8>) {
        while !input.is_empty() {
            if self.left == 0 {
                let missing = 5 - self.header.len();
                let (header, rest) = input.split_at(missing.min(input.len()));
                self.header.extend_from_slice(header);
                input = rest;
                let [kind, a, b, c, d] = self.header[..] else { return };
                self.left = (u32::from_be_bytes([a, b, c, d]) as usize).saturating_sub(4);
                self.dropping = mute && kind == NOTIFICATION;
                if !self.dropping {
                    out.extend_from_slice(&self.header);
                }
                self.header.clear();
                continue;
            }
            let (body, rest) = input.split_at(self.left.min(input.len()));
            if !self.dropping {
                out.extend_from_slice(body);
            }
            self.left -= body.len();
            input = rest;
        }
    }
}
