//! Requests to a server of ours, and its answers.

use std::net::SocketAddr;

use bugle::{Context, Registry};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::poll::look_for;
use super::{Database, RunningWorker, execute, free_address};

pub const TOKEN: &str = "0123456789abcdef";

pub struct Replied {
    pub status: u16,
    /// Of the answer, in lower case.
    pub head: String,
    pub body: String,
}

impl Replied {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// One request. `more` are further lines of its head.
pub async fn ask(address: SocketAddr, method: &str, path: &str, more: &str, body: &str) -> Replied {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let host = if more.contains("Host:") {
        ""
    } else {
        "Host: localhost\r\n"
    };
    let request = format!(
        "{method} {path} HTTP/1.1\r\n{host}{more}Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    Replied {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        head: head.to_lowercase(),
        body: body.to_owned(),
    }
}

pub async fn get(address: SocketAddr, path: &str) -> Replied {
    ask(address, "GET", path, "", "").await
}

pub async fn with_token(address: SocketAddr, method: &str, path: &str, body: &str) -> Replied {
    ask(
        address,
        method,
        path,
        &format!("Authorization: Bearer {TOKEN}\r\n"),
        body,
    )
    .await
}

/// A worker that listens, with the rights its API needs.
pub async fn listening(database: &Database, token: Option<&str>, registry: Registry) -> (RunningWorker, SocketAddr) {
    let owner = database.owner().await;
    execute(
        &owner,
        &format!(
            "grant bugle_viewer, bugle_operator, bugle_enqueuer to {}_worker",
            database.name
        ),
    )
    .await;
    let address = free_address();
    let mut settings = database.settings(&[("default", 4)]).listen(address);
    settings.token = token.map(str::to_owned);
    let worker = RunningWorker::start(settings, registry);
    until(address, "/readyz", |replied| replied.status == 200).await;
    (worker, address)
}

/// Ask until the answer is as expected.
pub async fn until(address: SocketAddr, path: &str, fits: impl FnMut(&Replied) -> bool) -> Replied {
    let state = std::sync::Mutex::new(("nobody listens".to_owned(), fits));
    let ask = || async {
        TcpStream::connect(address).await.ok()?;
        let replied = get(address, path).await;
        let (last, fits) = &mut *state.lock().unwrap();
        last.clone_from(&replied.body);
        fits(&replied).then_some(replied)
    };
    let found = look_for(ask).await;
    found.unwrap_or_else(|| panic!("{path}: {}", state.lock().unwrap().0))
}

pub fn commands() -> Registry {
    Registry::new()
        .on("noop", async |_: Context, _: Value| Ok(()))
        .on("break", async |_: Context, _: Value| {
            Err::<(), _>(bugle::Failure::new("order 17 is bad"))
        })
        .on("hang", async |context: Context, _: Value| {
            context.cancellation().cancelled().await;
            Ok(())
        })
}
