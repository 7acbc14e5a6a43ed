//! Connecting as psql does: encrypted or not, to one of several servers, with passwords from elsewhere; and what is
//! said when it does not work.

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;

use bugle::connect::{self, Session};
use bugle::private_postgres::{Options, PrivatePostgres};
use common::{BUGLE, Folder, RunningWorker, execute, wait_until};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod, KeyPair,
    RevokedCertParams, date_time_ymd,
};

/// A server with TLS, whose certificate is for "localhost" alone, and the files of those who know it.
struct TlsServer {
    server: PrivatePostgres,
    files: Folder,
    password: String,
}

/// Who may come how: over TCP with TLS only, but for one; one with a certificate only.
const HBA: &str = "local all all trust
hostssl all certified 127.0.0.1/32 cert
hostnossl all plain 127.0.0.1/32 scram-sha-256
hostssl all plain 127.0.0.1/32 reject
hostssl all all 127.0.0.1/32 scram-sha-256
";

async fn tls_server() -> &'static TlsServer {
    static SERVER: OnceLock<TlsServer> = OnceLock::new();
    tokio::task::spawn_blocking(|| SERVER.get_or_init(TlsServer::start))
        .await
        .unwrap()
}

fn private() -> PrivatePostgres {
    PrivatePostgres::start(&Options::new().tcp().bugle_bin(BUGLE)).unwrap()
}

impl TlsServer {
    fn start() -> TlsServer {
        let server = private();
        let files = Folder::within(server.data_dir().parent().unwrap());
        let authority = Authority::new("the authority");
        let data = server.data_dir();
        let (certificate, key) = authority.signs("postgres", &["localhost"]);
        give(data, "server.crt", &certificate);
        give(data, "server.key", &key);
        give(data, "root.crt", &authority.certificate);
        give(data, "pg_hba.conf", HBA);
        secret(&files, "root.crt", &authority.certificate);
        secret(&files, "other.crt", &Authority::new("another").certificate);
        let (certificate, key) = authority.signs("certified", &[]);
        secret(&files, "client.crt", &certificate);
        secret(&files, "client.key", &key);
        psql(
            &server,
            "alter system set ssl = on",
            &["alter system set ssl_ca_file = 'root.crt'", "select pg_reload_conf()"],
        );
        for user in ["certified", "plain", "somebody"] {
            psql(
                &server,
                &format!("create role {user} login superuser password '{user}'"),
                &[],
            );
        }
        let url = server.tcp_url("postgres").unwrap();
        let password = url.split([':', '@']).nth(2).unwrap().to_owned();
        TlsServer {
            server,
            files,
            password,
        }
    }

    /// To this host by this mode and more, as the superuser unless said otherwise.
    fn at(&self, host: &str, more: &str) -> String {
        let more = more.replace("FILES", &self.files.path().display().to_string());
        let login = match more.contains("user=") {
            true => String::new(),
            false => format!("user=postgres password={}", self.password),
        };
        format!("host={host} port={} dbname=postgres {login} {more}", self.server.port())
    }
}

struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Authority {
            certificate: params.self_signed(&key).unwrap().pem(),
            issuer: Issuer::new(params, key),
        }
    }

    /// A list of what it has revoked, good until a year.
    fn revokes(&self, serials: &[u64], until: i32) -> String {
        revocations(serials, until)
            .signed_by(&self.issuer)
            .unwrap()
            .pem()
            .unwrap()
    }

    /// An empty list in the name of another, with its own signature.
    fn revokes_as(&self, name: &str) -> String {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let forger = Issuer::new(params, KeyPair::generate().unwrap());
        revocations(&[], 2049).signed_by(&forger).unwrap().pem().unwrap()
    }

    fn signs(&self, name: &str, hosts: &[&str]) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let hosts: Vec<String> = hosts.iter().map(|host| host.to_string()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.serial_number = Some(SERIAL.into());
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// Of every certificate that an authority of these tests signs.
const SERIAL: u64 = 4711;

fn revocations(serials: &[u64], until: i32) -> CertificateRevocationListParams {
    let revoked = |serial: &u64| RevokedCertParams {
        serial_number: (*serial).into(),
        revocation_time: date_time_ymd(2020, 6, 1),
        reason_code: None,
        invalidity_date: None,
    };
    CertificateRevocationListParams {
        this_update: date_time_ymd(2020, 1, 1),
        next_update: date_time_ymd(until, 1, 1),
        crl_number: 1.into(),
        issuing_distribution_point: None,
        revoked_certs: serials.iter().map(revoked).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    }
}

/// A file of the server, owned by whom it runs as.
fn give(data: &Path, name: &str, text: &str) {
    use std::os::unix::fs::MetadataExt;
    let path = data.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let owner = fs::metadata(data).unwrap();
    chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
}

fn secret(folder: &Folder, name: &str, text: &str) {
    let path = folder.write(name, text);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// As the superuser, over the socket, each statement for itself.
fn psql(server: &PrivatePostgres, first: &str, more: &[&str]) {
    let url = server.url("postgres");
    let statements: Vec<String> = [first].iter().chain(more).map(|text| text.to_string()).collect();
    // a runtime of its own: the caller may be on one, or on none
    let done = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let client = connect::parse(&url).unwrap().client("test").await.unwrap();
            for statement in statements {
                execute(&client, &statement).await;
            }
        });
    });
    done.join().unwrap();
}

/// Whether the connection is encrypted.
async fn is_encrypted(url: &str) -> bugle::Result<bool> {
    let client = connect::parse(url)?.client("test").await?;
    let row = client
        .query_one("select s.ssl from pg_stat_ssl s where s.pid = pg_backend_pid()", &[])
        .await?;
    Ok(row.get(0))
}

async fn refused(url: &str) -> String {
    match is_encrypted(url).await {
        Ok(encrypted) => panic!("connected (encrypted: {encrypted}) with {url}"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn each_sslmode_means_what_it_means_to_libpq() {
    let tls = tls_server().await;
    for (host, how, encrypted) in [
        ("127.0.0.1", "sslmode=prefer", true),
        ("127.0.0.1", "", true),
        ("127.0.0.1", "sslmode=allow", true),
        ("127.0.0.1", "sslmode=require", true),
        ("127.0.0.1", "sslmode=require sslrootcert=FILES/root.crt", true),
        ("127.0.0.1", "sslmode=verify-ca sslrootcert=FILES/root.crt", true),
        ("localhost", "sslmode=verify-full sslrootcert=FILES/root.crt", true),
        (
            "localhost",
            "sslmode=verify-full sslrootcert=FILES/root.crt hostaddr=127.0.0.1",
            true,
        ),
        ("localhost", "sslmode=require channel_binding=require", true),
        (
            "localhost",
            "sslmode=require ssl_max_protocol_version=TLSv1.2 channel_binding=require",
            true,
        ),
        ("127.0.0.1", "sslmode=disable user=plain password=plain", false),
        ("127.0.0.1", "sslmode=allow user=plain password=plain", false),
        ("127.0.0.1", "sslmode=prefer user=plain password=plain", false),
    ] {
        let answer = is_encrypted(&tls.at(host, how)).await;

        assert_eq!(answer.map_err(|error| error.to_string()), Ok(encrypted), "{host} {how}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_who_it_should_be_is_refused() {
    let tls = tls_server().await;
    for (host, how, says) in [
        (
            "127.0.0.1",
            "sslmode=verify-full sslrootcert=FILES/root.crt",
            "is for another host name",
        ),
        (
            "localhost",
            "sslmode=verify-full sslrootcert=FILES/other.crt",
            "authority that is not trusted",
        ),
        (
            "127.0.0.1",
            "sslmode=verify-ca sslrootcert=FILES/other.crt",
            "authority that is not trusted",
        ),
        (
            "127.0.0.1",
            "sslmode=require sslrootcert=FILES/other.crt",
            "authority that is not trusted",
        ),
        (
            "127.0.0.1",
            "sslmode=disable",
            "It may require encryption: sslmode=require",
        ),
        (
            "127.0.0.1",
            "sslmode=disable channel_binding=require user=plain password=plain",
            "channel binding",
        ),
    ] {
        let said = refused(&tls.at(host, how)).await;

        assert!(said.contains(says), "{host} {how}: {said}");
    }
}

#[tokio::test]
async fn a_certificate_that_is_itself_trusted_needs_no_authority() {
    let server = tokio::task::spawn_blocking(private).await.unwrap();
    let files = Folder::new();
    // as the manual of Postgres makes one: an authority of itself, with a common name only
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "localhost");
    let certificate = params.self_signed(&key).unwrap().pem();
    give(server.data_dir(), "server.crt", &certificate);
    give(server.data_dir(), "server.key", &key.serialize_pem());
    psql(&server, "alter system set ssl = on", &["select pg_reload_conf()"]);
    let root = files.write("root.crt", &certificate);
    let url = server.tcp_url("postgres").unwrap();
    let full = format!("{url}?sslmode=verify-full&sslrootcert={}", root.display());

    assert!(is_encrypted(&full.replace("127.0.0.1", "localhost")).await.unwrap());
    let other_name = refused(&full).await;

    assert!(other_name.contains("is for another host name"), "{other_name}");
    drop(server);
}

/// Whom psql believes is believed, and nobody else: each case is put to both. Where there is no psql, only to us.
#[tokio::test]
async fn certificates_are_trusted_and_revoked_as_by_psql() {
    // it wants its folder of lists to be prepared by openssl
    let has = |program: &str| Command::new(program).arg("version").output().is_ok();
    let beside_psql = has("psql") && has("openssl");
    if !beside_psql {
        eprintln!("psql or openssl is not installed: not compared with it");
    }
    let server = tokio::task::spawn_blocking(private).await.unwrap();
    let files = Folder::new();
    let (authority, other) = (Authority::new("the authority"), Authority::new("another"));
    let (leaf, key) = authority.signs("postgres", &["localhost"]);
    give(server.data_dir(), "server.crt", &leaf);
    give(server.data_dir(), "server.key", &key);
    psql(&server, "alter system set ssl = on", &["select pg_reload_conf()"]);
    let good = authority.revokes(&[], 2049);
    let revoked = authority.revokes(&[SERIAL], 2049);
    for (name, text) in [
        ("root.crt", &authority.certificate),
        ("other.crt", &other.certificate),
        ("leaf.crt", &leaf),
        ("both.crt", &[authority.certificate.as_str(), leaf.as_str()].concat()),
        ("good.crl", &good),
        ("revoked.crl", &revoked),
        ("expired.crl", &authority.revokes(&[], 2021)),
        ("other.crl", &other.revokes(&[], 2049)),
        ("forged.crl", &other.revokes_as("the authority")),
        ("mixed.crl", &[other.revokes(&[], 2049), good.clone()].concat()),
    ] {
        files.write(name, text);
    }
    for (folder, list) in [("good", Some(&good)), ("revoked", Some(&revoked)), ("empty", None)] {
        fs::create_dir(files.join(folder)).unwrap();
        if let Some(list) = list {
            fs::write(files.join(folder).join("list.crl"), list).unwrap();
            if beside_psql {
                let rehash = Command::new("openssl").arg("rehash").arg(files.join(folder)).status();
                assert!(rehash.unwrap().success());
            }
        }
    }
    let url = server.tcp_url("postgres").unwrap();
    for (how, is_trusted) in [
        ("sslrootcert=FILES/root.crt", true),
        ("sslrootcert=FILES/other.crt", false),
        ("sslrootcert=FILES/both.crt", true),
        // a leaf as the only root
        ("sslrootcert=FILES/leaf.crt", false),
        ("sslrootcert=FILES/leaf.crt&sslcrl=FILES/good.crl", false),
        ("sslrootcert=FILES/root.crt&sslcrl=FILES/good.crl", true),
        ("sslrootcert=FILES/root.crt&sslcrl=FILES/mixed.crl", true),
        ("sslrootcert=FILES/root.crt&sslcrl=FILES/revoked.crl", false),
        ("sslrootcert=FILES/root.crt&sslcrl=FILES/expired.crl", false),
        ("sslrootcert=FILES/root.crt&sslcrl=FILES/other.crl", false),
        ("sslrootcert=FILES/root.crt&sslcrl=FILES/forged.crl", false),
        // a revoked leaf that is listed as a root
        ("sslrootcert=FILES/both.crt&sslcrl=FILES/revoked.crl", false),
        ("sslrootcert=FILES/both.crt&sslcrl=FILES/good.crl", true),
        ("sslrootcert=FILES/root.crt&sslcrldir=FILES/good", true),
        ("sslrootcert=FILES/root.crt&sslcrldir=FILES/revoked", false),
        ("sslrootcert=FILES/root.crt&sslcrldir=FILES/empty", false),
    ] {
        for mode in ["require", "verify-ca", "verify-full"] {
            let how = how.replace("FILES", &files.path().display().to_string());
            let url = format!("{url}?sslmode={mode}&{how}").replace("127.0.0.1", "localhost");
            let by_us = is_encrypted(&url).await;

            if beside_psql {
                let mut command = Command::new("psql");
                command.args(["-XAtc", "select 1", &url]).env("HOME", "/nowhere");
                let by_psql = command.output().unwrap();
                assert_eq!(by_psql.status.success(), is_trusted, "psql: {how}: {}", said(&by_psql));
            }
            assert_eq!(by_us.is_ok(), is_trusted, "{mode} {how}: {by_us:?}");
        }
    }
    drop(server);
}

#[tokio::test]
async fn a_client_can_prove_itself_by_a_certificate() {
    let tls = tls_server().await;
    let with = tls.at(
        "127.0.0.1",
        "sslmode=require user=certified sslcert=FILES/client.crt sslkey=FILES/client.key",
    );
    let without = tls.at("127.0.0.1", "sslmode=require user=certified");

    assert!(is_encrypted(&with).await.unwrap());
    let said = refused(&without).await;

    assert!(
        said.contains("certificate") && said.contains("sslcert=… and sslkey=…"),
        "{said}"
    );
    secret(
        &tls.files,
        "open.key",
        &fs::read_to_string(tls.files.join("client.key")).unwrap(),
    );
    fs::set_permissions(tls.files.join("open.key"), fs::Permissions::from_mode(0o644)).unwrap();
    let open = tls.at(
        "127.0.0.1",
        "user=certified sslcert=FILES/client.crt sslkey=FILES/open.key",
    );
    let said = connect::parse(&open).unwrap_err().to_string();
    assert!(said.contains("others can read the private key"), "{said}");
}

#[tokio::test]
async fn a_worker_is_encrypted_in_all_it_does() {
    let tls = tls_server().await;
    let full = "sslmode=verify-full sslrootcert=FILES/root.crt user=somebody password=somebody";
    psql(&tls.server, "create database encrypted", &[]);
    let url = tls.at("localhost", full).replace("dbname=postgres", "dbname=encrypted");
    bugle::schema::migrate(&connect::parse(&url).unwrap()).await.unwrap();
    let client = connect::parse(&url).unwrap().client("test").await.unwrap();
    // why: a statement that is to be cancelled; nobody waits for its end
    let stuck = "select pg_sleep(600)";
    let file = format!(
        "[commands.ask]\nsql = \"select s.ssl from pg_stat_ssl s where s.pid = pg_backend_pid()\"\n\
         [commands.stuck]\nsql = \"{stuck}\"\ntimeout = \"300ms\""
    );
    let settings = bugle::Settings::new(&url)
        .commands(bugle::config::Config::from_toml(&file).unwrap().commands)
        .workdir(std::env::temp_dir().join("bugle-test-work"));
    let worker = RunningWorker::start(settings, bugle::Registry::new());
    execute(
        &client,
        "insert into bugle.jobs (command, max_attempts) values ('ask', 1), ('stuck', 1)",
    )
    .await;

    wait_until(
        &client,
        "select count(*) = 1 from bugle.jobs where command = 'ask' and state = 'completed' and result = 'true'",
    )
    .await;
    wait_until(
        &client,
        "select count(*) = 1 from bugle.jobs where command = 'stuck' and state = 'failed'",
    )
    .await;
    // the request to cancel went the same way
    wait_until(
        &client,
        "select not exists (select from pg_stat_activity a where a.query like 'select pg_sleep%' \
         and a.state = 'active' and a.pid <> pg_backend_pid())",
    )
    .await;
    wait_until(
        &client,
        "select count(*) >= 2 and bool_and(s.ssl) from pg_stat_activity a join pg_stat_ssl s using (pid) \
         where a.application_name like 'bugle worker%'",
    )
    .await;
    worker.stop().await;
}

#[tokio::test]
async fn the_systems_authorities_are_trusted_where_asked_for() {
    let tls = tls_server().await;
    let system = |file: &str| {
        cli(&["workers"], &tls.at("localhost", "sslrootcert=system"))
            .env("SSL_CERT_FILE", tls.files.join(file))
            .output()
            .unwrap()
    };

    // past TLS, it comes as far as asking for what is not there
    assert!(
        said(&system("root.crt")).contains("bugle migrate"),
        "{}",
        said(&system("root.crt"))
    );
    assert!(said(&system("other.crt")).contains("authority that is not trusted"));
}

#[tokio::test]
async fn without_tls_at_the_server_prefer_does_without_and_require_refuses() {
    let server = tokio::task::spawn_blocking(private).await.unwrap();
    let url = server.tcp_url("postgres").unwrap();

    assert!(!is_encrypted(&format!("{url}?sslmode=prefer")).await.unwrap());
    let said = refused(&format!("{url}?sslmode=require")).await;

    assert!(
        said.contains("does not support TLS, but sslmode=require requires it"),
        "{said}"
    );
    drop(server);
}

#[tokio::test]
async fn of_several_hosts_the_first_that_is_as_wanted_is_taken() {
    let tls = tls_server().await;
    let reader = tokio::task::spawn_blocking(private).await.unwrap();
    psql(
        &reader,
        "alter system set default_transaction_read_only = on",
        &["select pg_reload_conf()"],
    );
    let (reader_host, writer_host) = (reader.host().display(), tls.server.host().display());
    let (down, reader_port, writer_port) = ("/nowhere", reader.port(), tls.server.port());
    let at = |wanted: &str| {
        format!(
            "host={down},{reader_host},{writer_host} port=5432,{reader_port},{writer_port} user=postgres \
             dbname=postgres target_session_attrs={wanted}"
        )
    };
    for (wanted, port) in [
        ("any", reader_port),
        ("read-only", reader_port),
        ("read-write", writer_port),
        ("primary", reader_port),
        ("prefer-standby", reader_port),
    ] {
        let client = connect::parse(&at(wanted)).unwrap().client("test").await.unwrap();
        let row = client
            .query_one("select current_setting('port')::int", &[])
            .await
            .unwrap();
        let folder = client
            .query_one("select current_setting('unix_socket_directories')", &[])
            .await
            .unwrap();

        let expected = if port == writer_port && wanted == "read-write" {
            &writer_host
        } else {
            &reader_host
        };
        assert_eq!(row.get::<_, i32>(0), i32::from(port), "{wanted}");
        assert_eq!(folder.get::<_, String>(0), expected.to_string(), "{wanted}");
    }
    let said = refused(&at("standby")).await;
    assert!(said.contains("is not a standby"), "{said}");
    drop(reader);
}

#[tokio::test]
async fn a_server_that_accepts_connections_and_says_nothing_does_not_hold_up_the_next_one() {
    let tls = tls_server().await;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!(
        "host=127.0.0.1,{} port={},{} user=postgres dbname=postgres sslmode=disable connect_timeout=3600",
        tls.server.host().display(),
        silent.local_addr().unwrap().port(),
        tls.server.port()
    );

    let target = connect::parse(&url).unwrap();
    let connected = tokio::time::timeout(common::poll::DEADLINE, target.client("test")).await;

    connected.expect("the second server is tried").unwrap();
}

#[tokio::test]
async fn a_server_that_lacks_the_database_does_not_hide_one_that_has_it() {
    let tls = tls_server().await;
    let lagging = tokio::task::spawn_blocking(private).await.unwrap();
    psql(&tls.server, "create database newest", &[]);
    let url = format!(
        "host={},{} port={},{} user=postgres dbname=newest",
        lagging.host().display(),
        tls.server.host().display(),
        lagging.port(),
        tls.server.port()
    );

    connect::parse(&url).unwrap().client("test").await.unwrap();
    let said = refused(&url.replace("newest", "nowhere")).await;

    assert!(said.contains("database \"nowhere\" does not exist"), "{said}");
    drop(lagging);
}

#[tokio::test]
async fn a_password_can_come_from_a_file_that_nobody_else_may_read() {
    let tls = tls_server().await;
    let port = tls.server.port().to_string();
    let line = format!(
        "localhost:{port}:*:postgres:wrong\n127.0.0.1:{port}:postgres:postgres:{}\n",
        tls.password
    );
    let file = tls.files.write(".pgpass", &line);
    let run = |mode: u32, host: &str| {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let output = cli(&["workers"], "")
            .env_remove("BUGLE_DATABASE_URL")
            .envs([
                ("PGHOST", host),
                ("PGPORT", &port),
                ("PGUSER", "postgres"),
                ("PGDATABASE", "postgres"),
            ])
            .env("HOME", tls.files.path())
            .output()
            .unwrap();
        said(&output)
    };

    let connected = run(0o600, "127.0.0.1");
    let wrong = run(0o600, "localhost");
    let open = run(0o644, "127.0.0.1");

    assert!(connected.contains("no Bugle schema"), "{connected}");
    assert!(wrong.contains("rejects the password of user \"postgres\""), "{wrong}");
    assert!(
        open.contains("none was given") && open.contains("run chmod 0600"),
        "{open}"
    );
    assert!(![connected, wrong, open].concat().contains(&tls.password));
}

#[tokio::test]
async fn what_is_wrong_is_said_in_a_sentence_with_what_to_do() {
    let tls = tls_server().await;
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let p = tls.server.port();
    for (url, sentence, hint) in [
        (
            "postgres://ada@nowhere.invalid/shop".to_owned(),
            "cannot be resolved",
            "Check its name",
        ),
        (
            format!("postgres://ada@127.0.0.1:{closed}/shop"),
            "no server listens at 127.0.0.1:",
            "listen_addresses",
        ),
        (
            "host=/nowhere user=ada".to_owned(),
            "no server listens on the socket",
            "Check that Postgres is running",
        ),
        (
            format!("postgres://postgres:s3cret@127.0.0.1:{p}/x"),
            "rejects the password of user \"postgres\"",
            "PGPASSWORD",
        ),
        (
            format!("postgres://postgres@127.0.0.1:{p}/x"),
            "but none was given",
            ".pgpass",
        ),
        (
            tls.at("127.0.0.1", "dbname=shop"),
            "database \"shop\" does not exist",
            "createdb shop",
        ),
        (
            format!("host={} port={p} user=nobody_here", tls.server.host().display()),
            "does not exist",
            "create role",
        ),
    ] {
        for arguments in [&["workers"][..], &["migrate"], &["worker"]] {
            let mut command = cli(arguments, &url);
            if arguments == ["worker"] {
                let file = tls.files.write("worker.toml", "[commands.x]\nprogram = ['true']");
                command.arg("--config").arg(file);
            }
            let said = said(
                &command
                    .env_remove("PGPASSWORD")
                    .env("HOME", "/nowhere")
                    .output()
                    .unwrap(),
            );

            assert!(
                said.contains(sentence) && said.contains(hint),
                "{arguments:?} {url}: {said}"
            );
            assert!(!said.contains("s3cret") && !said.contains(&tls.password), "{said}");
            assert!(!said.contains("panicked"), "{said}");
            assert!(said.contains("The address is from BUGLE_DATABASE_URL (host"), "{said}");
        }
    }
}

#[tokio::test]
async fn an_error_of_connecting_says_where_the_address_came_from() {
    let folder = Folder::new();
    let services = folder.write("services.conf", "[shop]\nhost=/nowhere\n");
    let file = |url: &str| format!("database_url = '{url}'\n[commands.x]\nprogram = ['true']\n");
    let plain = folder.write("plain.toml", &file("host=/nowhere user=ada dbname=s3cret port=1"));
    let other = folder.write("other.toml", &file("env:SHOP_URL"));
    let (plain, other) = (plain.to_str().unwrap(), other.to_str().unwrap());
    let url = "postgres://ada:s3cret@%2Fnowhere:1/shop";
    type Variables<'a> = &'a [(&'a str, &'a str)];
    let cases: [(&[&str], Variables, &str); 10] = [
        (
            &["queues", "--database-url", url],
            &[],
            "--database-url (host, port, dbname, user).",
        ),
        (
            &["queues"],
            &[("DATABASE_URL", url), ("PGHOST", "other")],
            "DATABASE_URL (host, port, dbname, user).",
        ),
        (
            &["jobs", "wait", "1"],
            &[("BUGLE_DATABASE_URL", url)],
            "BUGLE_DATABASE_URL (host, port, dbname, user).",
        ),
        (
            &["queues"],
            &[("DATABASE_URL", "dbname=shop"), ("PGHOST", "/nowhere")],
            "PGHOST (host), default (port, user), DATABASE_URL (dbname).",
        ),
        (
            &["migrate"],
            &[("PGHOST", "/nowhere"), ("PGUSER", "s3cret")],
            "PGHOST (host), default (port, dbname), PGUSER (user).",
        ),
        (
            &["queues"],
            &[("PGSERVICE", "shop"), ("PGSERVICEFILE", services.to_str().unwrap())],
            "the service \"shop\" (host), default (port, dbname, user).",
        ),
        (
            &["worker", "--config", plain],
            &[("DATABASE_URL", "host=other")],
            "database_url of the worker's file (host, port, dbname, user).",
        ),
        (
            &["worker", "--config", other],
            &[("SHOP_URL", url)],
            "SHOP_URL, which is named by database_url of the worker's file (host, port, dbname, user).",
        ),
        (
            &["dev", "--database-url", "env:SHOP_URL"],
            &[("SHOP_URL", url)],
            "SHOP_URL (host, port, dbname, user).",
        ),
        (
            &["queues"],
            &[("DATABASE_URL", "postgres://h/d?color=s3cret")],
            "The connection string is from DATABASE_URL.",
        ),
    ];
    for (arguments, variables, origin) in cases {
        let mut command = Command::new(BUGLE);
        for name in [
            "DATABASE_URL",
            "BUGLE_DATABASE_URL",
            "PGHOST",
            "PGPORT",
            "PGUSER",
            "PGDATABASE",
        ] {
            command.env_remove(name);
        }
        command
            .args(arguments)
            .envs(variables.iter().copied())
            .current_dir(folder.path());

        let said = said(&command.output().unwrap());

        assert!(said.contains(origin), "{arguments:?} {variables:?}: {said}");
        assert!(!said.contains("s3cret"), "{said}");
    }
    let client = bugle::Bugle::connect(url).unwrap();
    let error = client.enqueue(&bugle::NewJob::new("x", ())).await.err().unwrap();
    assert!(
        error
            .to_string()
            .contains("The address is from the connection string (host"),
        "{error}"
    );
}

#[tokio::test]
async fn without_the_schema_or_the_right_to_it_a_worker_says_so() {
    let database = common::Database::empty().await;
    let folder = Folder::new();
    let file = folder.write("worker.toml", "[commands.x]\nprogram = ['true']");
    let worker = |url: &str| said(&cli(&["worker"], url).arg("--config").arg(&file).output().unwrap());

    let no_schema = worker(&database.url("owner"));
    bugle::schema::migrate(&database.config("owner")).await.unwrap();
    database.create_logins().await;
    let no_right = worker(&database.url("stranger"));
    let no_right_to_read = said(&cli(&["queues"], &database.url("enqueuer")).output().unwrap());

    assert!(
        no_schema.contains("no Bugle schema") && no_schema.contains("bugle migrate"),
        "{no_schema}"
    );
    assert!(
        no_right.contains("may not use the schema bugle") && no_right.contains("grant bugle_worker"),
        "{no_right}"
    );
    assert!(no_right_to_read.contains("bugle_viewer"), "{no_right_to_read}");
}

#[tokio::test]
async fn a_server_that_never_answers_is_given_up() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!(
        "host=127.0.0.1 port={} user=ada connect_timeout=1",
        silent.local_addr().unwrap().port()
    );

    let said = refused(&url).await;

    assert!(said.contains("does not respond within 1 seconds"), "{said}");
    let session = Session::open(&connect::parse(&url).unwrap(), "test").await;
    assert!(session.err().unwrap().is_transient());
}

fn cli(arguments: &[&str], url: &str) -> Command {
    let mut command = Command::new(BUGLE);
    command
        .args(arguments)
        .env_remove("DATABASE_URL")
        .env("BUGLE_DATABASE_URL", url);
    command
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|text| String::from_utf8_lossy(text).into_owned())
        .concat()
}
