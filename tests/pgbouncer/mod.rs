//! A PgBouncer of one's own in transaction mode.
#![allow(dead_code)]

use std::process::{Child, Command, Stdio};

use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, NoTls};

use crate::common::poll::look_for;
use crate::common::{Folder, debian, free_address};

/// Stopped when it is dropped.
pub struct PgBouncer {
    process: Child,
    config: Config,
    ip: String,
    _folder: Folder,
}

/// Start one in front of the database and for the login that `config` names, with two connections for all its clients.
/// None, with a sentence, if there is no pgbouncer to be had.
pub fn start(config: &Config) -> Option<PgBouncer> {
    start_with(config, "")
}

/// The same, with more lines for its settings.
pub fn start_with(config: &Config, more: &str) -> Option<PgBouncer> {
    let program = debian::program(&["pgbouncer"], "pgbouncer")?;
    let user = config.get_user().expect("a login");
    let password = String::from_utf8_lossy(config.get_password().unwrap_or_default()).into_owned();
    let host = match &config.get_hosts()[0] {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    };
    let server_port = config.get_ports().first().copied().unwrap_or(5432);
    let address = free_address();
    let (ip, port) = (address.ip().to_string(), address.port());

    let folder = Folder::new();
    let users = folder.write("users.txt", &format!("\"{user}\" \"{password}\"\n"));
    let settings = folder.write(
        "pgbouncer.ini",
        &format!(
            "[databases]\n* = host={host} port={server_port}\n\
             [pgbouncer]\nlisten_addr = {ip}\nlisten_port = {port}\nunix_socket_dir =\nauth_type = plain\n\
             auth_file = {}\npool_mode = transaction\ndefault_pool_size = 2\n\
             ignore_startup_parameters = extra_float_digits\nlogfile =\npidfile =\n{more}\n",
            users.display()
        ),
    );
    let mut command = Command::new(program);
    if rustix::process::getuid().is_root() {
        // it refuses to run as root
        command.args(["-u", "postgres"]);
    }
    let process = command
        .arg(&settings)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("pgbouncer starts");
    let mut through = Config::new();
    through
        .host(&ip)
        .port(port)
        .user(user)
        .password(password)
        .dbname(config.get_dbname().expect("a database"));
    Some(PgBouncer {
        process,
        config: through,
        ip,
        _folder: folder,
    })
}

impl PgBouncer {
    /// As a connection string.
    pub fn url(&self) -> String {
        format!(
            "host={} port={} user='{}' password='{}' dbname='{}'",
            self.ip,
            self.config.get_ports()[0],
            self.config.get_user().expect("a login"),
            String::from_utf8_lossy(self.config.get_password().expect("a password")),
            self.config.get_dbname().expect("a database")
        )
    }

    /// Wait until it listens, and connect.
    pub async fn connect(&self) -> Client {
        let (client, connection) = look_for(|| async { self.config.connect(NoTls).await.ok() })
            .await
            .expect("it listens");
        tokio::spawn(connection);
        client
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
