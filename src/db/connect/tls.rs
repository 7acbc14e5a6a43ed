//! TLS with the semantics of libpq, implemented with rustls. `sslmode` decides what is verified, and `sslrootcert`
//! which authorities are trusted.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};

use super::certificate;
use super::parameters::Parameters;
use crate::error::{Error, Result};

/// `sslmode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

impl Mode {
    /// Parse the mode; with `sslrootcert=system`, the default is the strongest one.
    pub fn read(parameters: &Parameters) -> Result<Mode> {
        let system = parameters.get("sslrootcert").is_some_and(|roots| roots == "system");
        match parameters.get("sslmode").map(String::as_str) {
            None if system => Ok(Mode::VerifyFull),
            Some("verify-full") => Ok(Mode::VerifyFull),
            Some(weak) if system => Err(Error::new(format!("sslmode={weak} is too weak for sslrootcert=system"))
                .with_hint("Any host can get a certificate from a public authority: use sslmode=verify-full.")),
            None | Some("prefer") => Ok(Mode::Prefer),
            Some("disable") => Ok(Mode::Disable),
            Some("allow") => Ok(Mode::Allow),
            Some("require") => Ok(Mode::Require),
            Some("verify-ca") => Ok(Mode::VerifyCa),
            Some(other) => Err(Error::new(format!("sslmode={other} is invalid"))
                .with_hint("Use disable, allow, prefer, require, verify-ca or verify-full.")),
        }
    }
}

/// Creates TLS streams for hosts.
#[derive(Clone)]
pub struct Connector {
    config: Arc<ClientConfig>,
    used: Arc<AtomicBool>,
}

impl Connector {
    /// Read the certificate and key files.
    pub fn new(mode: Mode, parameters: &Parameters) -> Result<Connector> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&versions(parameters)?)
            .map_err(|error| Error::new(format!("TLS: {error}")))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Verifier::new(mode, parameters, provider)?));
        let mut config = match identity(parameters)? {
            None => builder.with_no_client_auth(),
            Some((certificates, key)) => builder
                .with_client_auth_cert(certificates, key)
                .map_err(|error| Error::new(format!("sslcert and sslkey do not match: {error}")))?,
        };
        config.enable_sni = parameters.get("sslsni").is_none_or(|sni| sni != "0");
        if parameters.get("sslnegotiation").is_some_and(|how| how == "direct") {
            config.alpn_protocols = vec![b"postgresql".to_vec()];
        }
        Ok(Connector {
            config: Arc::new(config),
            used: Arc::default(),
        })
    }

    /// The same for another attempt.
    pub fn afresh(&self) -> Connector {
        Connector {
            config: self.config.clone(),
            used: Arc::default(),
        }
    }

    /// Whether a handshake was started.
    pub fn was_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }
}

fn versions(parameters: &Parameters) -> Result<Vec<&'static rustls::SupportedProtocolVersion>> {
    let bound = |name: &str, default: u8| match parameters.get(name).map(String::as_str) {
        None => Ok(default),
        Some("TLSv1" | "TLSv1.1" | "TLSv1.2") => Ok(2),
        Some("TLSv1.3") => Ok(3),
        Some(other) => Err(Error::new(format!("{name}={other} is invalid")).with_hint("Use TLSv1.2 or TLSv1.3.")),
    };
    let range = bound("ssl_min_protocol_version", 2)?..=bound("ssl_max_protocol_version", 3)?;
    let all = [(2, &rustls::version::TLS12), (3, &rustls::version::TLS13)];
    let chosen: Vec<_> = all
        .into_iter()
        .filter(|(n, _)| range.contains(n))
        .map(|(_, v)| v)
        .collect();
    match chosen.is_empty() {
        true => Err(Error::new("ssl_min_protocol_version is above ssl_max_protocol_version")),
        false => Ok(chosen),
    }
}

/// The client's certificate and key. A certificate in the default location may lack its key.
fn identity(parameters: &Parameters) -> Result<Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>> {
    let required = match parameters.get("sslcertmode").map(String::as_str) {
        Some("disable") => return Ok(None),
        Some("require") => true,
        None | Some("allow") => false,
        Some(other) => return Err(Error::new(format!("sslcertmode={other} is invalid"))),
    };
    let (Some(certificate), Some(key)) = (parameters.get("sslcert"), parameters.get("sslkey")) else {
        return match (required, parameters.contains_key("sslcert")) {
            (false, false) => Ok(None),
            (_, true) => Err(Error::new("sslcert is given without sslkey")
                .with_hint("Set sslkey=… to the file with the private key of that certificate.")),
            (true, false) => Err(Error::new("sslcertmode=require, but no sslcert is given")),
        };
    };
    let certificates = certificates("sslcert", certificate)?;
    let path = Path::new(key);
    let file = fs::metadata(path).map_err(|error| Error::new(format!("sslkey: cannot read {key}: {error}")))?;
    // as in libpq, a key owned by root may be readable by its group
    let open_to_others = match file.uid() {
        0 => 0o037,
        _ => 0o077,
    };
    if file.permissions().mode() & open_to_others != 0 {
        return Err(
            Error::new(format!("sslkey: others can read the private key {key}")).with_hint(format!("chmod 0600 {key}"))
        );
    }
    let text = fs::read(path).map_err(|error| Error::new(format!("sslkey: cannot read {key}: {error}")))?;
    if String::from_utf8_lossy(&text).contains("ENCRYPTED") {
        return Err(
            Error::new(format!("sslkey: the private key {key} needs a passphrase")).with_hint(
                "A worker cannot enter one. Store the key without it: openssl pkey -in KEY -out PLAIN_KEY; chmod 0600 \
                PLAIN_KEY.",
            ),
        );
    }
    let key = PrivateKeyDer::from_pem_slice(&text)
        .map_err(|error| Error::new(format!("sslkey: {key} contains no private key in PEM format: {error}")))?;
    Ok(Some((certificates, key)))
}

fn certificates(name: &str, path: &str) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(|all| all.collect::<Result<Vec<_>, _>>());
    match read {
        Ok(all) if all.is_empty() => Err(Error::new(format!(
            "{name}: {path} contains no certificate in PEM format"
        ))),
        Ok(all) => Ok(all),
        Err(error) => Err(Error::new(format!("{name}: cannot read {path}: {error}"))),
    }
}

/// The certificate revocation lists: one file, and those of a directory prepared by `openssl rehash`.
fn revoked(parameters: &Parameters) -> Result<Option<Vec<CertificateRevocationListDer<'static>>>> {
    let mut files = Vec::new();
    if let Some(folder) = parameters.get("sslcrldir") {
        let cannot = |error: io::Error| Error::new(format!("sslcrldir: cannot read {folder}: {error}"));
        for entry in fs::read_dir(folder).map_err(cannot)? {
            let path = entry.map_err(cannot)?.path();
            let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            let number = ending.strip_prefix('r').unwrap_or_default();
            if !number.is_empty() && number.chars().all(|digit| digit.is_ascii_digit()) {
                files.push(("sslcrldir", path));
            }
        }
    }
    files.extend(parameters.get("sslcrl").map(|file| ("sslcrl", file.into())));
    let mut lists = Vec::new();
    for (name, path) in files {
        let read =
            CertificateRevocationListDer::pem_file_iter(&path).and_then(|all| all.collect::<Result<Vec<_>, _>>());
        lists.extend(read.map_err(|error| Error::new(format!("{name}: cannot read {}: {error}", path.display())))?);
    }
    let named = ["sslcrl", "sslcrldir"]
        .iter()
        .any(|name| parameters.contains_key(*name));
    match (named, lists.is_empty()) {
        (false, _) => Ok(None),
        (true, false) => Ok(Some(lists)),
        (true, true) => Err(
            Error::new("sslcrl or sslcrldir is given, but contains no certificate revocation list")
                .with_hint("A file must be in PEM format; prepare a directory with: openssl rehash DIRECTORY."),
        ),
    }
}

/// Verifies the certificate of the server.
#[derive(Debug)]
struct Verifier {
    mode: Mode,
    /// `None` if no authority is verified, or only a self-signed certificate is trusted.
    chains: Option<Arc<WebPkiServerVerifier>>,
    /// Trusted self-signed certificates of servers, which need no authority.
    pinned: Vec<CertificateDer<'static>>,
    /// Intermediate certificates from the file, for servers that do not send them.
    between: Vec<CertificateDer<'static>>,
    /// Whether certificate revocation lists are checked.
    revocable: bool,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    /// With `require`, an existing root certificate is used: libpq has done so since before `verify-ca` existed.
    fn new(mode: Mode, parameters: &Parameters, provider: Arc<CryptoProvider>) -> Result<Verifier> {
        let roots = parameters.get("sslrootcert").map(String::as_str);
        let mode = match mode {
            Mode::Require if roots.is_some() => Mode::VerifyCa,
            mode => mode,
        };
        if mode < Mode::VerifyCa {
            return Ok(Verifier {
                mode,
                chains: None,
                pinned: Vec::new(),
                between: Vec::new(),
                revocable: false,
                provider,
            });
        }
        let given = match roots {
            Some("system") => rustls_native_certs::load_native_certs().certs,
            Some(file) => certificates("sslrootcert", file)?,
            None => {
                return Err(
                    Error::new("no root certificate is given to verify the server's certificate").with_hint(
                        "Set sslrootcert=… to the file of your authority, use sslrootcert=system for public \
                        ones, or put the file at ~/.postgresql/root.crt.",
                    ),
                );
            }
        };
        let (pinned, between): (Vec<_>, Vec<_>) = given
            .into_iter()
            .partition(|certificate| certificate::is_self_issued(certificate));
        let roots: Vec<_> = pinned
            .iter()
            .filter(|certificate| certificate::is_authority(certificate))
            .cloned()
            .collect();
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(roots);
        if pinned.is_empty() {
            return Err(Error::new("sslrootcert contains no usable root certificate").with_hint(
                "A root certificate is self-signed. A certificate signed by another one is not trusted without \
                     that one, as in psql.",
            ));
        }
        let revoked = revoked(parameters)?;
        let revocable = revoked.is_some();
        let chains = match store.is_empty() {
            true => None,
            false => {
                let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider.clone());
                // check every certificate of the chain, and reject outdated lists
                let builder = builder
                    .with_crls(revoked.unwrap_or_default())
                    .enforce_revocation_expiration();
                let chains = builder.build();
                Some(chains.map_err(|error| Error::new(format!("sslrootcert, sslcrl or sslcrldir: {error}")))?)
            }
        };
        Ok(Verifier {
            mode,
            chains,
            pinned,
            between,
            revocable,
            provider,
        })
    }

    /// Verify the server's name: in the subject alternative names or, in old certificates without them, the common
    /// name.
    fn check_name(&self, certificate: &CertificateDer<'_>, host: &ServerName<'_>) -> Result<(), rustls::Error> {
        if self.mode < Mode::VerifyFull || certificate::common_name_fits(certificate, &host.to_str()) {
            return Ok(());
        }
        rustls::client::verify_server_name(&ParsedCertificate::try_from(certificate)?, host)
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.mode < Mode::VerifyCa {
            return Ok(ServerCertVerified::assertion());
        }
        if self.pinned.iter().any(|root| root.as_ref() == end_entity.as_ref()) {
            let valid = certificate::is_valid_at(end_entity, std::time::Duration::from_secs(now.as_secs()));
            valid.then_some(()).ok_or(CertificateError::Expired)?;
            // a self-signed certificate would have to attest its own non-revocation
            (!self.revocable)
                .then_some(())
                .ok_or(CertificateError::UnknownRevocationStatus)?;
            self.check_name(end_entity, host)?;
            return Ok(ServerCertVerified::assertion());
        }
        // the chain is checked before the name
        let chains = self.chains.as_ref().ok_or(CertificateError::UnknownIssuer)?;
        let between: Vec<CertificateDer<'_>> = intermediates.iter().chain(&self.between).cloned().collect();
        match chains.verify_server_cert(end_entity, &between, host, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => {
                self.check_name(end_entity, host)?;
                Ok(ServerCertVerified::assertion())
            }
            judged => judged,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl<S> MakeTlsConnect<S> for Connector
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Stream<S>;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Handshake> {
        Ok(Handshake {
            connector: self.clone(),
            host: host.to_owned(),
        })
    }
}

/// A prepared handshake.
pub struct Handshake {
    connector: Connector,
    host: String,
}

impl<S> TlsConnect<S> for Handshake
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Stream<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        self.connector.used.store(true, Ordering::Relaxed);
        Box::pin(async move {
            let host = ServerName::try_from(self.host).map_err(io::Error::other)?;
            let connector = tokio_rustls::TlsConnector::from(self.connector.config);
            Ok(Stream(connector.connect(host, stream).await?))
        })
    }
}

/// An encrypted connection.
pub struct Stream<S>(tokio_rustls::client::TlsStream<S>);

impl<S> TlsStream for Stream<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    fn channel_binding(&self) -> ChannelBinding {
        let (_, session) = self.0.get_ref();
        let first = session.peer_certificates().and_then(|all| all.first());
        match first.and_then(|server| certificate::binding(server)) {
            Some(hash) => ChannelBinding::tls_server_end_point(hash),
            None => ChannelBinding::none(),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
