//! stand-in
use std::path::PathBuf;
use std::time::Duration;
/// s
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Settings {
    pub database_url: String,
    pub name: String,
    pub queues: Vec<(String, u32)>,
    pub drain: Duration,
    pub safety_poll: Duration,
    pub workdir: PathBuf,
    pub migrate: bool,
    pub pool_size: usize,
    pub until_empty: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            database_url: String::new(),
            name: "worker".into(),
            queues: vec![("default".into(), 4)],
            drain: Duration::from_secs(30),
            safety_poll: Duration::from_secs(10),
            workdir: "/tmp/bugle-work".into(),
            migrate: false,
            pool_size: 8,
            until_empty: false,
        }
    }
}
