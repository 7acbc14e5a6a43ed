//! A Patroni cluster of our own: one etcd, three nodes, HAProxy in front of them. Everything listens on loopback, on
//! free ports, and runs as an unprivileged account.
//!
//! What the nodes say to etcd and to each other goes through proxies, so that a node can be cut off. Clients connect to
//! the nodes themselves, past these proxies, or through HAProxy.

use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::enqueuers::connect;
use super::proxy::Proxy;
use super::round::starved;
use crate::judge::{Recorder, now};
use crate::poll::look_for_up_to;

pub const NODES: usize = 3;
/// After this time without a renewal, the lock of the primary is free: `ttl`. Patroni recommends 30 seconds; a round
/// has more failovers with less.
pub const TTL: Duration = Duration::from_secs(12);
/// How often Patroni looks.
pub const LOOP_WAIT: Duration = Duration::from_secs(1);
const PASSWORD: &str = "chaos";

/// Writes down what the nodes and etcd say about themselves, several times a second.
pub struct Observer {
    log: PathBuf,
    etcd: (Ipv4Addr, u16),
    /// The name and the URL of each server.
    servers: Vec<(String, String)>,
    recorder: Recorder,
}

/// Its timeline, what it waits for, who receives what, and what the checkpointer does: only that process puts a changed
/// `synchronous_standby_names` into effect.
const STATE: &str = "select concat_ws(' ', case when pg_is_in_recovery() then 'replica' else 'primary' end, \
    'timeline', (select timeline_id from pg_control_checkpoint()), \
    'waits_for', quote_literal(current_setting('synchronous_standby_names')), \
    'at', case when pg_is_in_recovery() then pg_last_wal_receive_lsn() else pg_current_wal_flush_lsn() end, \
    'standbys', (select string_agg(concat_ws(':', r.application_name, r.sync_state, r.flush_lsn), ',') \
      from pg_stat_replication r), \
    'waiting', (select count(*) from pg_stat_activity a where a.wait_event = 'SyncRep'), \
    'checkpointer', (select coalesce(a.wait_event, 'busy') from pg_stat_activity a \
      where a.backend_type = 'checkpointer'))";

impl Observer {
    /// Until the round is over.
    pub async fn observe(self, done: Arc<AtomicBool>) {
        let mut log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .expect("a log");
        while !done.load(Ordering::Acquire) {
            let before = now();
            let servers = self.servers.iter().map(|(name, url)| async move {
                let asked = async {
                    let client = connect(url).await?;
                    Some(client.query_one(STATE, &[]).await.ok()?.get::<_, String>(0))
                };
                let said = tokio::time::timeout(Duration::from_secs(1), asked).await;
                format!(
                    "{name} {}",
                    said.ok().flatten().unwrap_or_else(|| "does not answer".into())
                )
            });
            let (mut said, sync) = tokio::join!(futures_util::future::join_all(servers), self.sync());
            // a session and a query take a second: what takes long then does not take long because of workers
            if !said.iter().any(|said| said.contains(" primary timeline ")) {
                starved(&self.recorder, before);
            }
            said.push(sync);
            for line in said {
                let _ = writeln!(log, "{} {line}", now());
            }
            // why: the pace of a watch that goes on until the round is over
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Who leads and who may be promoted: the keys of Patroni in etcd.
    async fn sync(&self) -> String {
        let mut keys = "etcd".to_owned();
        for name in ["leader", "sync", "failover", "failsafe"] {
            let value = value_of(self.etcd, name).await.unwrap_or_default();
            keys += &format!(" {name}={value}");
        }
        keys
    }
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(bytes: &[u8]) -> String {
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = three
            .iter()
            .chain([&0; 2])
            .take(3)
            .fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        let digits = (0..4).map(|place| BASE64[(bits >> (18 - 6 * place)) as usize & 63] as char);
        text.extend(
            digits
                .take(three.len() + 1)
                .chain(std::iter::repeat_n('=', 3 - three.len())),
        );
    }
    text
}

fn unbase64(text: &str) -> Vec<u8> {
    let digit = |digit: u8| BASE64.iter().position(|known| *known == digit);
    let digits: Vec<usize> = text.bytes().filter_map(digit).collect();
    let bytes = |four: &[usize]| {
        let bits = four
            .iter()
            .chain([&0; 3])
            .take(4)
            .fold(0, |bits, digit| bits << 6 | digit);
        let three = [bits >> 16, bits >> 8, bits].map(|byte| byte as u8);
        three[..four.len() - 1].to_vec()
    };
    digits.chunks(4).flat_map(bytes).collect()
}

/// Where the programs are.
pub struct Programs {
    patroni: PathBuf,
    etcd: PathBuf,
    haproxy: PathBuf,
    /// The folder of `initdb`, `pg_rewind` and so on.
    postgres: PathBuf,
}

/// The programs of PostgreSQL that Patroni runs.
const POSTGRES: [&str; 6] = [
    "initdb",
    "postgres",
    "pg_ctl",
    "pg_rewind",
    "pg_basebackup",
    "pg_controldata",
];

/// Nothing is started: a service that the packages contain is not wanted. An installed server is not upgraded while it
/// is in use.
const INSTALL: &str = "
    set -e
    export DEBIAN_FRONTEND=noninteractive
    conf=/etc/postgresql-common/createcluster.d/bugle.conf policy=/usr/sbin/policy-rc.d ours=
    mkdir -p ${conf%/*}
    [ -e $policy ] || { ours=$policy; printf '#!/bin/sh\\nexit 101\\n' > $policy; chmod 755 $policy; }
    trap 'rm -f $conf $ours; rmdir ${conf%/*} 2>/dev/null || true' EXIT
    echo 'create_main_cluster = false' > $conf
    apt-get update -q || true
    apt-get install -q -y --no-upgrade --no-install-recommends patroni etcd-server haproxy postgresql
";

impl Programs {
    /// Those of this machine. None if one is not installed; the sentence says which.
    pub fn find() -> Result<Programs, String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders: Vec<PathBuf> = std::env::split_paths(&path).chain(["/usr/sbin".into()]).collect();
        let program = |name: &str| {
            let found = folders
                .iter()
                .map(|folder| folder.join(name))
                .find(|path| path.is_file());
            found.ok_or_else(|| format!("{name} is not installed"))
        };
        let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let mut servers: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
        servers.sort();
        servers.extend(folders.iter().cloned());
        let complete = |folder: &PathBuf| POSTGRES.iter().all(|name| folder.join(name).is_file());
        Ok(Programs {
            patroni: program("patroni")?,
            etcd: program("etcd")?,
            haproxy: program("haproxy")?,
            postgres: servers
                .into_iter()
                .find(complete)
                .ok_or("no PostgreSQL with pg_rewind and pg_basebackup is installed")?,
        })
    }

    /// Those of this machine, after an installation if need be.
    pub fn obtain() -> Result<Programs, String> {
        let missing = match Programs::find() {
            Ok(found) => return Ok(found),
            Err(missing) => missing,
        };
        if std::env::var("BUGLE_PG_OBTAIN").as_deref() != Ok("yes") {
            return Err(format!("{missing}, and BUGLE_PG_OBTAIN=yes is not set"));
        }
        println!("chaos: installing patroni, etcd-server and haproxy with apt; no service is started");
        let mut install = match rustix::process::geteuid().is_root() {
            true => Command::new("sh"),
            false => {
                let mut sudo = Command::new("sudo");
                sudo.args(["-n", "sh"]);
                sudo
            }
        };
        let done = install.args(["-c", INSTALL]).stdin(Stdio::null()).output();
        let installed = done.is_ok_and(|output| output.status.success());
        match installed {
            true => Programs::find(),
            false => Err(format!("{missing}, and it cannot be installed with apt")),
        }
    }
}

/// One node: a Patroni and its server.
pub struct Node {
    pub number: usize,
    folder: PathBuf,
    port: u16,
    rest: u16,
    /// Of its server, of its API, and of its way to etcd.
    links: [Proxy; 3],
    patroni: Mutex<Option<Child>>,
}

/// The whole of it. Everything ends with it, and with this process, however that ends.
pub struct Cluster {
    pub nodes: Vec<Node>,
    programs: Programs,
    account: Option<(u32, u32)>,
    folder: PathBuf,
    ip: Ipv4Addr,
    haproxy_port: u16,
    etcd_port: u16,
    etcd: Mutex<Option<Child>>,
    _haproxy: Child,
    /// Ends all processes of the cluster as soon as its input is closed.
    reaper: Child,
}

/// A process belongs to the cluster if its working directory is in the folder of the cluster. It may be stopped, or
/// have lost its parent.
const REAPER: &str = "
    cat > /dev/null
    for again in 1 2 3; do
      for process in /proc/[0-9]*; do
        case $(readlink $process/cwd) in \"$0\" | \"$0\"/*) kill -9 ${process#/proc/} ;; esac
      done
    done
    rm -rf \"$0\"
";

impl Cluster {
    /// Start everything, and wait until there are a primary and two replicas.
    pub async fn start(programs: Programs, folder: &Path, synchronous: bool) -> Result<Cluster, String> {
        let account = account();
        std::fs::create_dir_all(folder).expect("a folder");
        give(folder, account);
        // an address that no other run on this machine has
        let ip = Ipv4Addr::new(127, fastrand::u8(1..), fastrand::u8(..), fastrand::u8(1..255));
        let [etcd_port, peer_port, haproxy_port] = free_ports(ip);
        let reaper = Command::new("sh")
            .args(["-c", REAPER])
            .arg(folder)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell");
        let etcd_at = format!("http://{ip}:{etcd_port}");
        let mut nodes = Vec::new();
        for number in 0..NODES {
            let [port, rest] = free_ports(ip);
            let at = |port: u16| SocketAddr::from((ip, port));
            nodes.push(Node {
                number,
                folder: folder.join(format!("node{number}")),
                port,
                rest,
                links: [
                    Proxy::of_any(at(port)).await,
                    Proxy::of_any(at(rest)).await,
                    Proxy::of_any(at(etcd_port)).await,
                ],
                patroni: Mutex::default(),
            });
        }
        let servers: Vec<String> = nodes
            .iter()
            .map(|node| {
                format!(
                    "  server node{} {ip}:{} check port {}\n",
                    node.number, node.port, node.rest
                )
            })
            .collect();
        let config = folder.join("haproxy.cfg");
        std::fs::write(&config, format!("{}{}", haproxy(ip, haproxy_port), servers.concat())).expect("a file");
        give(&config, account);
        let mut balancer = command(&programs.haproxy, folder, account);
        let cluster = Cluster {
            etcd: Mutex::default(),
            _haproxy: balancer
                .arg("-f")
                .arg(&config)
                .stdin(Stdio::null())
                .stdout(log(folder, "haproxy"))
                .stderr(log(folder, "haproxy"))
                .spawn()
                .expect("haproxy"),
            nodes,
            programs,
            account,
            folder: folder.to_owned(),
            ip,
            haproxy_port,
            etcd_port,
            reaper,
        };
        let peers = format!("http://{ip}:{peer_port}");
        let etcd = command(&cluster.programs.etcd, folder, account)
            .arg("--data-dir")
            .arg(folder.join("etcd"))
            .args(["--listen-client-urls", &etcd_at, "--advertise-client-urls", &etcd_at])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("default={peers}")])
            // a machine that is busy is not an outage of etcd
            .args(["--heartbeat-interval", "500", "--election-timeout", "2500"])
            .stdin(Stdio::null())
            .stdout(log(folder, "etcd"))
            .stderr(log(folder, "etcd"))
            .spawn();
        *cluster.etcd.lock().unwrap() = Some(etcd.expect("etcd"));
        let decided = look_for_up_to(Duration::from_secs(60), || async {
            let said = request((ip, etcd_port), "GET", "/version", "").await?;
            (said.contains("etcdcluster") && !said.contains("not_decided")).then_some(())
        });
        decided.await.ok_or_else(|| cluster.trouble("etcd does not come up"))?;
        for node in &cluster.nodes {
            cluster.prepare(node, synchronous);
            cluster.start_patroni(node);
        }
        match cluster.healthy(synchronous, Duration::from_secs(180)).await {
            Some(_) => Ok(cluster),
            None => Err(cluster.trouble("the cluster does not come up")),
        }
    }

    /// What is wrong, and the last lines of the logs.
    pub fn trouble(&self, what: &str) -> String {
        let last = |name: &str| {
            let text = std::fs::read_to_string(self.folder.with_file_name(name)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().rev().take(12).collect();
            format!("\n{name}:\n{}", lines.into_iter().rev().collect::<Vec<_>>().join("\n"))
        };
        let logs = ["etcd.log", "haproxy.log", "node0.log", "node1.log", "node2.log"];
        format!("{what}{}", logs.map(last).concat())
    }

    /// The files of a node.
    fn prepare(&self, node: &Node, synchronous: bool) {
        std::fs::create_dir_all(&node.folder).expect("a folder");
        give(&node.folder, self.account);
        let Node { number, port, rest, .. } = node;
        let [server, api, etcd] = node.links.each_ref().map(|link| link.port);
        let (ip, folder, bin) = (self.ip, node.folder.display(), self.programs.postgres.display());
        let (ttl, loop_wait) = (TTL.as_secs(), LOOP_WAIT.as_secs());
        let config = format!(
            "scope: chaos
name: node{number}
restapi: {{listen: '{ip}:{rest}', connect_address: '127.0.0.1:{api}'}}
etcd3: {{use_proxies: true, hosts: ['127.0.0.1:{etcd}']}}
bootstrap:
  dcs:
    ttl: {ttl}
    loop_wait: {loop_wait}
    retry_timeout: 5
    maximum_lag_on_failover: 1073741824
    primary_start_timeout: 0
    master_start_timeout: 0
    synchronous_mode: {synchronous}
    postgresql:
      use_pg_rewind: true
      use_slots: true
      parameters:
        max_connections: 200
        max_wal_senders: 10
        max_replication_slots: 10
        wal_log_hints: on
        wal_keep_size: 512MB
        wal_sender_timeout: 5s
        wal_receiver_timeout: 5s
        wal_receiver_status_interval: 1s
        shared_buffers: 64MB
        fsync: off
        log_min_messages: warning
  initdb: [{{encoding: UTF8}}, {{locale: C}}, no-sync]
postgresql:
  listen: {ip}:{port}
  connect_address: 127.0.0.1:{server}
  data_dir: {folder}/data
  bin_dir: {bin}
  pgpass: {folder}/pgpass
  remove_data_directory_on_rewind_failure: true
  remove_data_directory_on_diverged_timelines: true
  basebackup: [{{checkpoint: fast}}, no-sync]
  authentication:
    superuser: {{username: postgres, password: {PASSWORD}}}
    replication: {{username: replicator, password: {PASSWORD}}}
  parameters: {{unix_socket_directories: '{folder}'}}
  pg_hba:
    - local all all trust
    - host all all 127.0.0.0/8 scram-sha-256
    - host replication replicator 127.0.0.0/8 scram-sha-256
tags: {{nofailover: false, noloadbalance: false, clonefrom: false}}
"
        );
        let path = node.folder.join("patroni.yml");
        std::fs::write(&path, config).expect("a file");
        give(&path, self.account);
    }

    /// Start the Patroni of a node, which starts its server.
    pub fn start_patroni(&self, node: &Node) {
        let log = || log(&self.folder, &format!("node{}", node.number));
        let started = command(&self.programs.patroni, &node.folder, self.account)
            .arg(node.folder.join("patroni.yml"))
            .stdin(Stdio::null())
            .stdout(log())
            .stderr(log())
            .spawn()
            .expect("patroni");
        *node.patroni.lock().unwrap() = Some(started);
    }

    /// A URL of all nodes, as a worker gets it. `more` is the login.
    pub fn url(&self, more: &str) -> String {
        let list = |of: fn(&Cluster, &Node) -> String| {
            let all: Vec<String> = self.nodes.iter().map(|node| of(self, node)).collect();
            all.join(",")
        };
        let (hosts, ports) = (
            list(|cluster, _| cluster.ip.to_string()),
            list(|_, node| node.port.to_string()),
        );
        format!("host={hosts} port={ports} target_session_attrs=read-write {more}")
    }

    /// The same through HAProxy.
    pub fn balanced_url(&self, more: &str) -> String {
        format!("host={} port={} {more}", self.ip, self.haproxy_port)
    }

    /// The superuser, on the server of one node.
    pub fn url_of(&self, node: &Node, database: &str) -> String {
        let (ip, port) = (self.ip, node.port);
        format!("host={ip} port={port} user=postgres password={PASSWORD} dbname={database} sslmode=disable")
    }

    /// The superuser, wherever writes are taken.
    pub fn direct(&self, database: &str) -> String {
        let login = format!("user=postgres password={PASSWORD} dbname={database} sslmode=disable");
        format!("{} load_balance_hosts=random", self.url(&login))
    }

    /// Whether the server of a node takes writes. `None` if it does not answer soon.
    pub async fn takes_writes(&self, node: &Node) -> Option<bool> {
        Some(self.writable_since(node).await?.is_some())
    }

    /// When the server of a node was started, if it takes writes.
    pub async fn writable_since(&self, node: &Node) -> Option<Option<String>> {
        let question = "select pg_postmaster_start_time()::text where not pg_is_in_recovery()";
        let asked = async {
            let client = connect(&self.url_of(node, "postgres")).await?;
            let row = client.query_opt(question, &[]).await.ok()?;
            Some(row.map(|row| row.get(0)))
        };
        tokio::time::timeout(Duration::from_millis(700), asked).await.ok()?
    }

    /// What the Patroni of a node says: `GET /cluster`.
    async fn members(&self, node: &Node) -> Option<Vec<Value>> {
        let said = self.ask(node, "GET", "/cluster", "").await?;
        let said: Value = serde_json::from_str(said.split_once("\r\n\r\n")?.1).ok()?;
        Some(said["members"].as_array()?.clone())
    }

    /// One request to the API of a node.
    pub async fn ask(&self, node: &Node, method: &str, path: &str, body: &str) -> Option<String> {
        request((self.ip, node.rest), method, path, body).await
    }

    /// The node whose server is the primary, once all three are in order: two replicas stream from it, and, in
    /// synchronous mode, Patroni knows one that may take over.
    pub async fn healthy(&self, synchronous: bool, patience: Duration) -> Option<&Node> {
        look_for_up_to(patience, || async {
            let mut primary = None;
            for node in &self.nodes {
                if node.patroni_has_ended() {
                    self.start_patroni(node);
                }
                match self.takes_writes(node).await? {
                    true if primary.is_some() => return None,
                    true => primary = Some(node),
                    false => {}
                }
            }
            let primary = primary?;
            let client = connect(&self.url_of(primary, "postgres")).await?;
            let streaming = "select count(*) from pg_stat_replication where state = 'streaming' and application_name \
                like 'node%'";
            let streaming: i64 = client.query_one(streaming, &[]).await.ok()?.get(0);
            let members = self.members(primary).await?;
            let leads = |member: &&Value| member["role"] == "leader" && member["state"] == "running";
            let leader = members.iter().find(leads)?["name"].as_str()?.to_owned();
            let of_role = |role: &str| members.iter().filter(|member| member["role"] == role).count();
            let in_order = streaming as usize == NODES - 1
                && leader == format!("node{}", primary.number)
                && (!synchronous || of_role("sync_standby") > 0);
            in_order.then_some(primary)
        })
        .await
    }

    /// All processes of a node: its Patroni, its postmaster, and what these have started.
    pub fn processes(&self, node: &Node) -> Vec<Pid> {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let of_node = |id: &i32| {
            std::fs::read_link(format!("/proc/{id}/cwd")).is_ok_and(|folder| folder.starts_with(&node.folder))
        };
        entries
            .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
            .filter(of_node)
            .filter_map(Pid::from_raw)
            .collect()
    }

    /// What writes down the state of the cluster there.
    pub fn observer(&self, log: PathBuf, recorder: Recorder) -> Observer {
        let server = |node: &Node| (node.name(), self.url_of(node, "postgres"));
        Observer {
            log,
            etcd: (self.ip, self.etcd_port),
            servers: self.nodes.iter().map(server).collect(),
            recorder,
        }
    }

    /// A signal to all of them.
    pub fn signal(&self, node: &Node, signal: Signal) {
        for process in self.processes(node) {
            let _ = kill_process(process, signal);
        }
    }

    /// It does not reach etcd for this time, or from now on if there is none.
    pub fn cut_off_from_etcd(&self, node: &Node, time: Duration) {
        interrupt(&node.links[2..], time);
    }

    /// The other nodes do not reach its server and its Patroni; clients do.
    pub fn cut_off_from_others(&self, node: &Node, time: Duration) {
        interrupt(&node.links[..2], time);
    }

    /// Change `failsafe_mode`, and wait until it is in effect: the leader has published which nodes it has to reach.
    pub async fn set_failsafe(&self, leader: &Node, on: bool) -> bool {
        let body = format!("{{\"failsafe_mode\": {on}}}");
        let said = self.ask(leader, "PATCH", "/config", &body).await.unwrap_or_default();
        if !said.starts_with("HTTP/1.0 200") {
            return false;
        }
        let published = look_for_up_to(Duration::from_secs(60), || async {
            let value = value_of((self.ip, self.etcd_port), "failsafe").await?;
            let names = (0..NODES).all(|number| value.contains(&format!("node{number}")));
            (names || !on).then_some(())
        });
        published.await.is_some()
    }

    /// Its replicas receive nothing any more.
    pub fn stop_replication(&self, node: &Node, time: Duration) {
        node.links[0].link.hold(time);
    }

    pub fn signal_etcd(&self, signal: Signal) {
        if let Some(etcd) = &*self.etcd.lock().unwrap() {
            let _ = kill_process(Pid::from_child(etcd), signal);
        }
    }
}

impl Node {
    /// kill -9 of its postmaster.
    pub fn kill_server(&self) {
        let lock = std::fs::read_to_string(self.folder.join("data/postmaster.pid")).unwrap_or_default();
        let id = lock.lines().next().and_then(|line| line.trim().parse().ok());
        if let Some(id) = id.and_then(Pid::from_raw) {
            let _ = kill_process(id, Signal::KILL);
        }
    }

    /// kill -9 of its Patroni.
    pub fn kill_patroni(&self) {
        if let Some(mut patroni) = self.patroni.lock().unwrap().take() {
            let _ = patroni.kill();
            let _ = patroni.wait();
        }
    }

    /// Whether it was not killed.
    pub fn has_patroni(&self) -> bool {
        self.patroni.lock().unwrap().is_some()
    }

    /// By itself: it is started again, as a service is.
    fn patroni_has_ended(&self) -> bool {
        let mut patroni = self.patroni.lock().unwrap();
        let ended = |patroni: &mut Child| patroni.try_wait().ok().flatten().is_some();
        patroni.as_mut().is_some_and(ended)
    }

    pub fn name(&self) -> String {
        format!("node{}", self.number)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.reaper.stdin.take());
        let _ = self.reaper.wait();
        for node in &self.nodes {
            node.kill_patroni();
        }
        if let Some(etcd) = &mut *self.etcd.lock().unwrap() {
            let _ = etcd.wait();
        }
        let _ = self._haproxy.wait();
    }
}

fn interrupt(links: &[Proxy], time: Duration) {
    for proxy in links {
        match time {
            Duration::ZERO => proxy.link.restore(),
            time => proxy.link.hold(time),
        }
    }
}

/// The value of a key of Patroni in etcd; empty if there is none.
async fn value_of(etcd: (Ipv4Addr, u16), name: &str) -> Option<String> {
    let key = base64(format!("/service/chaos/{name}").as_bytes());
    let body = format!("{{\"key\": \"{key}\"}}");
    let asked = request(etcd, "POST", "/v3/kv/range", &body);
    let said = tokio::time::timeout(Duration::from_secs(1), asked).await.ok()??;
    let said: Value = serde_json::from_str(said.split_once("\r\n\r\n")?.1).ok()?;
    let value = said["kvs"][0]["value"].as_str().unwrap_or_default();
    Some(String::from_utf8_lossy(&unbase64(value)).into_owned())
}

/// The answer to one HTTP request. `None` if there is none soon.
async fn request(at: (Ipv4Addr, u16), method: &str, path: &str, body: &str) -> Option<String> {
    let asked = async {
        let mut stream = TcpStream::connect(at).await.ok()?;
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(format!("{head}{body}").as_bytes()).await.ok()?;
        let mut said = String::new();
        stream.read_to_string(&mut said).await.ok()?;
        Some(said)
    };
    tokio::time::timeout(Duration::from_secs(30), asked).await.ok()?
}

/// The account of the cluster; `None` for the current one. PostgreSQL refuses to run as root.
fn account() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let passwd = std::fs::read_to_string("/etc/passwd").expect("the accounts of this machine");
    let of = |name: &str| {
        let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
        let fields: Vec<&str> = line.split(':').collect();
        Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
    };
    Some(
        of("postgres")
            .or_else(|| of("nobody"))
            .expect("an account that is not root"),
    )
}

fn give(path: &Path, account: Option<(u32, u32)>) {
    if let Some((user, group)) = account {
        std::os::unix::fs::chown(path, Some(user), Some(group)).expect("another owner");
    }
}

/// As that account, in that folder, and not stopped by a Ctrl-C in the terminal before the reaper ends it.
fn command(program: &Path, folder: &Path, account: Option<(u32, u32)>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"PG") || name.as_encoded_bytes().starts_with(b"ETCD") {
            command.env_remove(name);
        }
    }
    command
        .env("LC_ALL", "C.UTF-8")
        .env("HOME", folder)
        .current_dir(folder)
        .process_group(0);
    if let Some((user, group)) = account {
        command.uid(user).gid(group);
    }
    command
}

/// Beside the folder of the cluster, which ends with it.
fn log(folder: &Path, name: &str) -> File {
    let path = folder.with_file_name(format!("{name}.log"));
    File::options().create(true).append(true).open(path).expect("a log")
}

/// Different ones: they are all taken at once.
fn free_ports<const N: usize>(ip: Ipv4Addr) -> [u16; N] {
    let listeners: [TcpListener; N] = std::array::from_fn(|_| TcpListener::bind((ip, 0)).expect("a port"));
    listeners.map(|listener| listener.local_addr().expect("an address").port())
}

fn haproxy(ip: Ipv4Addr, port: u16) -> String {
    format!(
        "global
  maxconn 1000
defaults
  mode tcp
  timeout connect 2s
  timeout client 1h
  timeout server 1h
  timeout check 2s
listen primary
  bind {ip}:{port}
  option httpchk OPTIONS /primary
  http-check expect status 200
  default-server inter 1s fastinter 500ms fall 2 rise 1 on-marked-down shutdown-sessions
"
    )
}
