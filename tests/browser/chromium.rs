//! A Chromium of one's own, spoken to in its own protocol over two pipes: no driver, no port, nothing to install beside
//! it.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::common::poll::{DEADLINE, look_for};
use crate::common::{Folder, debian};

const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome-stable", "google-chrome"];

/// The browser, ended when dropped.
pub struct Browser {
    process: Child,
    wire: Arc<Wire>,
    _profile: Folder,
}

/// What is under way.
struct Wire {
    out: Mutex<ChildStdin>,
    next: Mutex<u64>,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Value>>>,
    /// What pages complained about: their session, and the message.
    complaints: Mutex<Vec<(String, String)>>,
    /// How often each page has been loaded.
    loads: Mutex<HashMap<String, usize>>,
}

/// The program: the given one, that of the machine, or from Debian.
fn program() -> Option<PathBuf> {
    match std::env::var_os("BUGLE_CHROMIUM") {
        Some(given) => Some(given.into()),
        None => debian::program(&NAMES, "chromium"),
    }
}

impl Browser {
    /// None, with a sentence, if there is no Chromium to be had.
    pub fn start() -> Option<Browser> {
        static PROGRAM: std::sync::OnceLock<Option<PathBuf>> = std::sync::OnceLock::new();
        let program = PROGRAM.get_or_init(program).as_ref()?;
        let profile = Folder::new();
        // it reads from descriptor 3 and writes to 4
        let mut process = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>&2"])
            .arg(program)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--disable-dev-shm-usage",
                "--remote-debugging-pipe",
                "--lang=en-GB",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("Chromium starts");
        let wire = Arc::new(Wire {
            out: Mutex::new(process.stdin.take().expect("its input")),
            next: Mutex::default(),
            waiting: Mutex::default(),
            complaints: Mutex::default(),
            loads: Mutex::default(),
        });
        let said = BufReader::new(process.stdout.take().expect("its output"));
        let listening = wire.clone();
        std::thread::spawn(move || {
            for message in said.split(0).map_while(Result::ok) {
                if let Ok(message) = serde_json::from_slice(&message) {
                    listening.take(message);
                }
            }
        });
        Some(Browser {
            process,
            wire,
            _profile: profile,
        })
    }

    /// A tab with cookies of its own.
    pub async fn page(&self) -> Page {
        let call = async |method, parameters| self.wire.call(None, method, parameters).await;
        let context = call("Target.createBrowserContext", json!({})).await;
        let target = json!({ "url": "about:blank", "browserContextId": context["browserContextId"] });
        let target = call("Target.createTarget", target).await;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = call("Target.attachToTarget", attach).await;
        let page = Page {
            wire: self.wire.clone(),
            session: session["sessionId"].as_str().expect("a session").to_owned(),
        };
        for domain in ["Page", "Runtime", "Log"] {
            page.call(&format!("{domain}.enable"), json!({})).await;
        }
        // a tab that nobody looks at does not follow what happens
        page.call("Page.bringToFront", json!({})).await;
        page.call("Emulation.setFocusEmulationEnabled", json!({ "enabled": true }))
            .await;
        page
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Wire {
    fn take(&self, message: Value) {
        if let Some(id) = message["id"].as_u64() {
            if let Some(waiting) = self.waiting.lock().unwrap().remove(&id) {
                let _ = waiting.send(message);
            }
            return;
        }
        let session = message["sessionId"].as_str().unwrap_or_default().to_owned();
        let parameters = &message["params"];
        let complaint = match message["method"].as_str().unwrap_or_default() {
            "Page.loadEventFired" => {
                *self.loads.lock().unwrap().entry(session).or_default() += 1;
                return;
            }
            "Runtime.exceptionThrown" => parameters["exceptionDetails"].to_string(),
            "Runtime.consoleAPICalled" if parameters["type"] == "error" => parameters["args"].to_string(),
            "Log.entryAdded" if parameters["entry"]["level"] == "error" => parameters["entry"].to_string(),
            _ => return,
        };
        self.complaints.lock().unwrap().push((session, complaint));
    }

    async fn try_call(&self, session: Option<&str>, method: &str, parameters: Value) -> Result<Value, String> {
        let (sender, answer) = oneshot::channel();
        let id = {
            let mut next = self.next.lock().unwrap();
            *next += 1;
            *next
        };
        self.waiting.lock().unwrap().insert(id, sender);
        let mut message = json!({ "id": id, "method": method, "params": parameters });
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        let mut text = message.to_string().into_bytes();
        text.push(0);
        self.out
            .lock()
            .unwrap()
            .write_all(&text)
            .map_err(|error| error.to_string())?;
        let answer = tokio::time::timeout(DEADLINE, answer).await;
        let answer = answer.map_err(|_| format!("no answer to {method}"))?;
        let answer = answer.map_err(|_| "Chromium has ended".to_owned())?;
        match answer.get("error") {
            Some(error) => Err(format!("{method}: {error}")),
            None => Ok(answer["result"].clone()),
        }
    }

    async fn call(&self, session: Option<&str>, method: &str, parameters: Value) -> Value {
        let answer = self.try_call(session, method, parameters).await;
        answer.unwrap_or_else(|error| panic!("{error}"))
    }
}

/// A tab.
pub struct Page {
    wire: Arc<Wire>,
    session: String,
}

impl Page {
    pub async fn call(&self, method: &str, parameters: Value) -> Value {
        self.wire.call(Some(&self.session), method, parameters).await
    }

    /// Open an address, and wait until it is loaded.
    pub async fn open(&self, url: &str) {
        let before = self.loads();
        let opened = self.call("Page.navigate", json!({ "url": url })).await;
        assert!(opened.get("errorText").is_none(), "{url}: {opened}");
        self.loaded_after(before).await;
    }

    pub fn loads(&self) -> usize {
        self.wire
            .loads
            .lock()
            .unwrap()
            .get(&self.session)
            .copied()
            .unwrap_or_default()
    }

    pub async fn loaded_after(&self, before: usize) {
        let loaded = look_for(|| std::future::ready((self.loads() > before).then_some(()))).await;
        assert!(loaded.is_some(), "the page is not loaded");
    }

    /// What an expression is worth. An error is one of the expression, or a page that is just being left.
    pub async fn try_eval(&self, expression: &str) -> Result<Value, String> {
        let parameters = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self
            .wire
            .try_call(Some(&self.session), "Runtime.evaluate", parameters)
            .await?;
        match answer.get("exceptionDetails") {
            Some(error) => Err(format!("{expression}: {error}")),
            None => Ok(answer["result"]["value"].clone()),
        }
    }

    pub async fn eval(&self, expression: &str) -> Value {
        self.try_eval(expression)
            .await
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Wait until an expression is true.
    pub async fn until(&self, expression: &str) {
        let look = || async {
            let is_so = self.try_eval(expression).await.is_ok_and(|value| value == true);
            is_so.then_some(())
        };
        if look_for(look).await.is_none() {
            let text = self.eval("location.href + '\\n' + document.body.innerText").await;
            panic!("never {expression} in {}", text.as_str().unwrap_or_default());
        }
    }

    pub async fn size(&self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.call("Emulation.setDeviceMetricsOverride", size).await;
    }

    pub async fn scheme(&self, scheme: &str) {
        let features = json!({ "features": [
            { "name": "prefers-color-scheme", "value": scheme },
            { "name": "prefers-reduced-motion", "value": "reduce" },
        ] });
        self.call("Emulation.setEmulatedMedia", features).await;
    }

    /// Click with the mouse on the middle of what an expression finds.
    pub async fn click(&self, element: &str) {
        let place = format!(
            "(() => {{ const e = {element}; if (!e) \
             throw new Error('not found: ' + location.href + document.body.innerText); \
             e.scrollIntoView({{ block: 'center', inline: 'center' }}); const r = e.getBoundingClientRect(); \
             const x = r.x + r.width / 2, y = r.y + r.height / 2; const top = document.elementFromPoint(x, y); \
             return [x, y, !!top && (e === top || e.contains(top) || top.contains(e)), \
             top?.outerHTML.slice(0, 200)]; }})()"
        );
        let place = self.eval(&place).await;
        assert_eq!(place[2], true, "{element} is hidden behind {}", place[3]);
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({ "type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", event).await;
        }
    }

    /// Press a key: a letter, or `Enter`, `Tab`, `Escape`, ` `.
    pub async fn press(&self, key: &str) {
        let (code, number, text) = match key {
            "Enter" => ("Enter", 13, "\r"),
            "Tab" => ("Tab", 9, ""),
            "Escape" => ("Escape", 27, ""),
            " " => ("Space", 32, " "),
            other => (other, u32::from(other.to_ascii_uppercase().as_bytes()[0]), other),
        };
        let mut event = json!({ "type": "keyDown", "key": key, "code": code, "windowsVirtualKeyCode": number });
        if !text.is_empty() {
            event["text"] = text.into();
        }
        self.call("Input.dispatchKeyEvent", event.clone()).await;
        event["type"] = "keyUp".into();
        self.call("Input.dispatchKeyEvent", event).await;
    }

    pub async fn write(&self, text: &str) {
        self.call("Input.insertText", json!({ "text": text })).await;
    }

    /// What this page has complained about since the last time.
    pub fn complaints(&self) -> Vec<String> {
        let mut all = self.wire.complaints.lock().unwrap();
        let (own, others) = std::mem::take(&mut *all)
            .into_iter()
            .partition(|(session, _)| *session == self.session);
        *all = others;
        own.into_iter()
            .map(|(_, complaint): (String, String)| complaint)
            .collect()
    }
}

/// The source of axe-core, which finds what keeps people from using a page; from npm, if there is one.
pub async fn axe() -> Option<String> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("axe-core");
    let file = folder.join("package/axe.min.js");
    if !file.exists() {
        std::fs::create_dir_all(&folder).ok()?;
        let fetch = "npm pack axe-core@4.10.3 --silent >/dev/null && tar xzf axe-core-*.tgz";
        let mut fetching = tokio::process::Command::new("sh");
        fetching
            .args(["-c", fetch])
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        let _ = tokio::time::timeout(Duration::from_secs(120), fetching.status()).await;
    }
    let source = std::fs::read_to_string(file).ok();
    if source.is_none() {
        eprintln!("skipped the checks of axe-core: npm cannot fetch it (apt-get install nodejs npm)");
    }
    source
}
