//! `bugle web` as a process, and people who use it with a browser that keeps cookies.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Stdio};

use super::Database;
use super::cli::command;
use super::http::{Replied, ask};

/// The process, ended when dropped.
pub struct Web {
    process: Child,
    pub address: SocketAddr,
}

impl Web {
    pub fn start(database: &Database, role: &str, more: &[&str]) -> Web {
        Web::listening("127.0.0.1:0", &database.url(role), more)
    }

    /// Listening at this address, with the database of this URL.
    pub fn listening(listen: &str, url: &str, more: &[&str]) -> Web {
        Web::with(listen, url, more, &[])
    }

    /// The same with further variables.
    pub fn with(listen: &str, url: &str, more: &[&str], variables: &[(&str, &str)]) -> Web {
        let arguments = [&["web", "--listen", listen], more].concat();
        let mut process = command(&arguments)
            .env("BUGLE_DATABASE_URL", url)
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let mut line = String::new();
        let mut out = BufReader::new(process.stdout.take().expect("its output"));
        out.read_line(&mut line).expect("a line");
        let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
        let address = address.unwrap_or_else(|| panic!("no address in {line:?}"));
        let address: SocketAddr = address.parse().expect("an address");
        Web {
            address: SocketAddr::new([127, 0, 0, 1].into(), address.port()),
            process,
        }
    }

    /// A page, when nothing is left out of it: on a busy machine that may be a later one.
    pub async fn get(&self, path: &str) -> Replied {
        loop {
            let replied = ask(self.address, "GET", path, "", "").await;
            if !is_counting(&replied) {
                return replied;
            }
            tokio::task::yield_now().await;
        }
    }

    /// A page as it is at once.
    pub async fn get_at_once(&self, path: &str) -> Replied {
        ask(self.address, "GET", path, "", "").await
    }

    pub async fn post(&self, path: &str, more: &str, body: &str) -> Replied {
        let more = format!("Content-Type: application/x-www-form-urlencoded\r\n{more}");
        ask(self.address, "POST", path, &more, body).await
    }

    /// The token that is in every form.
    pub async fn csrf(&self) -> String {
        let page = self.get("/enqueue").await.body;
        hidden(&page, "csrf").unwrap_or_else(|| panic!("no token in {page}"))
    }

    /// Somebody who has no cookies yet.
    pub fn visitor(&self) -> Visitor<'_> {
        Visitor {
            web: self,
            more: String::new(),
            cookies: BTreeMap::new(),
        }
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The value of a hidden field.
pub fn hidden(page: &str, name: &str) -> Option<String> {
    let begin = format!("name=\"{name}\" value=\"");
    let value = page.split(begin.as_str()).nth(1)?.split('"').next()?;
    Some(value.to_owned())
}

/// A browser without JavaScript.
pub struct Visitor<'a> {
    web: &'a Web,
    /// Further lines of each request.
    pub more: String,
    pub cookies: BTreeMap<String, String>,
}

impl Visitor<'_> {
    pub async fn get(&mut self, path: &str) -> Replied {
        let more = self.head();
        loop {
            let replied = ask(self.web.address, "GET", path, &more, "").await;
            let replied = self.keep(replied);
            if !is_counting(&replied) {
                return replied;
            }
        }
    }

    pub async fn post(&mut self, path: &str, body: &str) -> Replied {
        let more = format!("Content-Type: application/x-www-form-urlencoded\r\n{}", self.head());
        let replied = ask(self.web.address, "POST", path, &more, body).await;
        self.keep(replied)
    }

    pub async fn sign_in(&mut self, login: &str, password: &str) -> Replied {
        let form = self.get("/login").await.body;
        let form = hidden(&form, "form").unwrap_or_else(|| panic!("no form in {form}"));
        self.post("/login", &format!("form={form}&to=&login={login}&password={password}"))
            .await
    }

    /// The number of the session, if there is one.
    pub fn session(&self) -> Option<String> {
        let mut cookies = self.cookies.iter();
        cookies
            .find(|(name, _)| name.starts_with("bugle_session_"))
            .map(|(_, number)| number.clone())
    }

    fn head(&self) -> String {
        let cookies: Vec<String> = self
            .cookies
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        match cookies.is_empty() {
            true => self.more.clone(),
            false => format!("{}Cookie: {}\r\n", self.more, cookies.join("; ")),
        }
    }

    fn keep(&mut self, replied: Replied) -> Replied {
        for line in replied.head.lines() {
            let Some((name, value)) = line
                .strip_prefix("set-cookie: ")
                .and_then(|cookie| cookie.split(';').next())
                .and_then(|pair| pair.split_once('='))
            else {
                continue;
            };
            if line.contains("max-age=0") {
                self.cookies.remove(name);
            } else {
                self.cookies.insert(name.to_owned(), value.to_owned());
            }
        }
        replied
    }
}

/// Whether a page says that something is left out of it.
pub fn is_counting(replied: &Replied) -> bool {
    replied.body.contains("is still being counted")
}
