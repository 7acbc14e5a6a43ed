//! Python with the driver that examples need.

use std::path::Path;
use std::process::{Command, Stdio};

/// Python with this script, as it is, or with the driver fetched once beside the build. None, and a word about it, if it
/// cannot be had here.
pub fn script(script: &Path) -> Option<Command> {
    let mine = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    let can_import = || {
        let mut python = Command::new("python3");
        python.env("PYTHONPATH", &mine).args(["-c", "import psycopg"]);
        python
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    if !can_import() {
        let _ = Command::new("python3")
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--target",
            ])
            .arg(&mine)
            .arg("psycopg[binary]>=3.2")
            .status();
    }
    if !can_import() {
        eprintln!("skipped: there is no python3 with psycopg here, and it cannot be installed");
        return None;
    }
    let mut command = Command::new("python3");
    command
        .env("PYTHONPATH", &mine)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .arg(script);
    Some(command)
}
