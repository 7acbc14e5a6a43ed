//! One run of the binary, from its arguments to what it printed.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{BUGLE, Database};

/// How a run of the binary ended.
pub struct CliRun {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// Run the binary, logged in as a role of the database.
pub async fn bugle(database: &Database, role: &str, arguments: &[&str]) -> CliRun {
    bugle_at(&database.url(role), arguments).await
}

/// The same at a connection string.
pub async fn bugle_at(url: &str, arguments: &[&str]) -> CliRun {
    run(command(arguments).env("BUGLE_DATABASE_URL", url), "").await
}

/// The binary with these arguments, and no database in its environment.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(BUGLE);
    command
        .args(arguments)
        .env_remove("DATABASE_URL")
        .env_remove("BUGLE_DATABASE_URL");
    command
}

/// Run a command with this input.
pub async fn run(command: &mut Command, input: &str) -> CliRun {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut stdin = child.stdin.take().expect("an input");
    let input = input.to_owned();
    // Both at once: a long input and a long output would wait for each other. A run that fails early does not read its
    // input.
    let writer = std::thread::spawn(move || {
        let _ = stdin.write_all(input.as_bytes());
    });
    let output = tokio::task::spawn_blocking(|| child.wait_with_output())
        .await
        .unwrap()
        .expect("it ends");
    writer.join().unwrap();
    CliRun {
        code: output.status.code().expect("an exit code"),
        out: String::from_utf8(output.stdout).expect("UTF-8"),
        err: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

impl CliRun {
    /// What it printed, if it succeeded.
    pub fn text(&self) -> &str {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self.out.trim_end()
    }

    /// The id it printed.
    pub fn id(&self) -> i64 {
        let text = self.text();
        text.parse().unwrap_or_else(|_| panic!("no id: {text}"))
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {} {}", self.out, self.err))
    }
}
