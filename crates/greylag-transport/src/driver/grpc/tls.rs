//! Certificates of this node and the judgement on those of others; files are read again and again.
//!
//! A connection uses what the files held when it was made. Resumption is off: each handshake shows certificates, so a
//! replaced certificate counts from the next connection on. [`TlsFiles`] is public, so that other listeners of a node,
//! such as its admin service, can use the same files; their callers use a [`TlsDialer`]. Source: cluster T16, T40.

mod handshake;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

pub use self::handshake::{HandshakeError, TlsDialer};

use crate::error::TlsError;
use crate::tls::expiry::{self, Warned};
use crate::tls::verifier::HostVerifier;
use crate::tls::{PeerSubject, TlsSettings, others_can_read};

/// The content of the files, as read last.
pub(crate) struct Credentials {
    pub(crate) acceptor: TlsAcceptor,
    pub(crate) connector: TlsConnector,
    own: Certificate,
    files: [Vec<u8>; 3],
}

/// The files that a [`TlsSettings`] names, and what they held when they were read last.
pub struct TlsFiles {
    settings: TlsSettings,
    current: ArcSwap<Credentials>,
    /// Serializes the reads of the timer and of callers.
    reading: std::sync::Mutex<()>,
    pub(crate) reloads: AtomicU64,
    pub(crate) failures: AtomicU64,
    warned: std::sync::Mutex<Warned>,
}

/// A certificate that the other end of a connection has shown and that was accepted.
#[derive(Debug, Clone)]
pub(crate) struct Certificate {
    der: CertificateDer<'static>,
    /// Its subject alternative names.
    names: BTreeSet<String>,
    /// The last second in which it is good, since 1970.
    not_after: i64,
}

/// A refusal of the other end's certificate, with its reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotBelieved(String);

impl TlsFiles {
    /// Reads the files, and warns if the certificate does not name `host`, which callers will look for.
    ///
    /// # Errors
    /// [`TlsError`] names the file. Blocks on the disk.
    pub fn open(settings: TlsSettings, host: &str) -> Result<Self, TlsError> {
        let files = Self::of_caller(settings)?;
        let own = &files.current.load().own;
        if files.settings.verify_hostname && !own.names_host(host) {
            let names = own.list();
            tracing::warn!(host, names, "the certificate does not name this node's host: peers will refuse it");
        }
        Ok(files)
    }

    /// Reads the files for a program that calls others and listens nowhere, so that its host is not compared.
    ///
    /// # Errors
    /// [`TlsError`] names the file. Blocks on the disk.
    pub fn of_caller(settings: TlsSettings) -> Result<Self, TlsError> {
        let credentials = read(&settings)?;
        warn_if_exposed(&settings.key);
        Ok(Self {
            settings,
            current: ArcSwap::from_pointee(credentials),
            reading: std::sync::Mutex::default(),
            reloads: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            warned: std::sync::Mutex::default(),
        })
    }

    pub(crate) fn current(&self) -> Arc<Credentials> {
        self.current.load_full()
    }

    /// Reads the files again; returns whether they held something new.
    ///
    /// # Errors
    /// [`TlsError`]; what was read before stays in use. Blocks on the disk.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let _reading = self.reading.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let read = read(&self.settings).inspect_err(|error| {
            self.failures.fetch_add(1, Ordering::Relaxed);
            tracing::error!(%error, "the certificate is not replaced; connections go on with the one before");
        })?;
        let is_new = read.files != self.current.load().files;
        if is_new {
            warn_if_exposed(&self.settings.key);
            tracing::info!(names = read.own.list(), "certificate reloaded; new connections use it");
            self.current.store(Arc::new(read));
            self.reloads.fetch_add(1, Ordering::Relaxed);
        }
        Ok(is_new)
    }

    /// Whole days until the own certificate ends; negative once it has ended, when other nodes refuse new connections
    /// for it. Source: cluster 83.
    pub fn days_left(&self) -> i64 {
        expiry::days_left(self.current.load().own.not_after, since_1970())
    }

    /// Warns 30, 7 and 1 days before the own certificate ends, and after its end, that it has to be replaced. `now` is
    /// in seconds since 1970.
    fn warn_of_its_end(&self, now: i64) {
        let own = &self.current.load().own;
        let mut warned = self.warned.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !warned.is_due(own.not_after, now) {
            return;
        }
        let days_left = expiry::days_left(own.not_after, now);
        let (names, file) = (own.list(), self.settings.cert.display());
        if days_left < 0 {
            tracing::error!(names, %file, "the certificate of this node has expired: no new connection is made by it; replace the file");
        } else {
            tracing::warn!(names, %file, days_left, "the certificate of this node ends soon; replace the file");
        }
    }

    /// Reads the files every `reload_interval`, for ever; after a failure sooner, because an operator or a program that
    /// replaces two files does so one after the other.
    pub async fn keep_reading(self: Arc<Self>) {
        const RETRY: Duration = Duration::from_secs(10);
        let interval = self.settings.reload_interval;
        let mut pause = interval;
        loop {
            self.warn_of_its_end(since_1970());
            tokio::time::sleep(pause).await;
            let files = self.clone();
            let outcome = tokio::task::spawn_blocking(move || files.reload()).await;
            pause = if matches!(outcome, Ok(Ok(_))) { interval } else { interval.min(RETRY) };
        }
    }

    /// The name that the certificate of a dialled host must have.
    pub(crate) fn server_name(&self, host: &str) -> Result<ServerName<'static>, NotBelieved> {
        match server_name(host) {
            Some(name) => Ok(name),
            // Any name will do: it is not compared.
            None if !self.settings.verify_hostname => Ok(ServerName::IpAddress(IpAddr::from([0, 0, 0, 0]).into())),
            None => Err(NotBelieved(format!("{host:?} is no valid name for a certificate"))),
        }
    }

    /// Returns the certificate that the other end has shown, if that end may speak to this node. `None`: none was
    /// shown, and none is required.
    pub(crate) fn judge(&self, chain: Option<&[CertificateDer<'static>]>) -> Result<Option<Certificate>, NotBelieved> {
        let Some(leaf) = chain.and_then(<[_]>::first) else {
            return if self.settings.mutual {
                Err(NotBelieved("it has shown no certificate".to_owned()))
            } else {
                Ok(None)
            };
        };
        let peer = Certificate::new(leaf.clone()).map_err(NotBelieved)?;
        let own = &self.current.load().own;
        let (is_alike, wanted) = match &self.settings.peer_subject {
            PeerSubject::Any => (true, String::new()),
            PeerSubject::Shared => (!peer.names.is_disjoint(&own.names), format!("one of {}", own.list())),
            PeerSubject::Named(name) => (peer.names.contains(&name.to_ascii_lowercase()), name.clone()),
        };
        if is_alike {
            Ok(Some(peer))
        } else {
            Err(NotBelieved(format!("its certificate names {}, and must name {wanted}", peer.list())))
        }
    }

    /// Whether the holder of a certificate may speak for a host.
    pub(crate) fn may_speak_for(&self, certificate: &Certificate, host: &str) -> Result<(), NotBelieved> {
        if !self.settings.verify_hostname || certificate.names_host(host) {
            return Ok(());
        }
        Err(NotBelieved(format!("the caller says it is {host}, its certificate names {}", certificate.list())))
    }
}

impl Certificate {
    fn new(der: CertificateDer<'static>) -> Result<Self, String> {
        let (_, parsed) = X509Certificate::from_der(&der).map_err(|error| error.to_string())?;
        let alternatives = parsed.subject_alternative_name().map_err(|error| error.to_string())?;
        let names = alternatives.map(|names| names.value.general_names.iter().filter_map(name).collect());
        let names = names.unwrap_or_default();
        let not_after = parsed.validity().not_after.timestamp();
        Ok(Self { der, names, not_after })
    }

    /// Whether the certificate names the host, by the rules of TLS: wildcards count, the common name does not.
    fn names_host(&self, host: &str) -> bool {
        let parsed = ParsedCertificate::try_from(&self.der);
        matches!((parsed, server_name(host)), (Ok(parsed), Some(name)) if verify_server_name(&parsed, &name).is_ok())
    }

    /// The certificate's names, for people.
    fn list(&self) -> String {
        let mut text = String::new();
        for (n, name) in self.names.iter().enumerate() {
            let _infallible = write!(text, "{}{name}", if n == 0 { "" } else { ", " });
        }
        if text.is_empty() { "no host".to_owned() } else { text }
    }
}

fn name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) | GeneralName::RFC822Name(name) | GeneralName::URI(name) => {
            Some(name.to_ascii_lowercase())
        }
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from)).ok().map(|ip| ip.to_string())
        }
        _ => None,
    }
}

/// Seconds since 1970 by the clock of this host.
fn since_1970() -> i64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX)
}

fn server_name(host: &str) -> Option<ServerName<'static>> {
    ServerName::try_from(host.to_owned()).ok()
}

fn failed(file: &Path, why: impl ToString) -> TlsError {
    TlsError { file: file.to_owned(), why: why.to_string() }
}

fn read(settings: &TlsSettings) -> Result<Credentials, TlsError> {
    let files = [read_file(&settings.key)?, read_file(&settings.cert)?, read_file(&settings.ca)?];
    let identity = Identity::parse(&settings.key, &files[0], &settings.cert, &files[1])?;
    let own = Certificate::new(identity.chain[0].clone()).map_err(|why| failed(&settings.cert, why))?;
    if let PeerSubject::Named(name) = &settings.peer_subject
        && !own.names.contains(&name.to_ascii_lowercase())
    {
        let why = format!("tls_peer_subject is {name:?}, and it names only {}", own.list());
        return Err(failed(&settings.cert, why));
    }
    let roots = Arc::new(roots(&settings.ca, &files[2])?);
    let server = server_config(settings, roots.clone(), &identity)?;
    let client = client_config(&settings.ca, roots, Some(&identity), settings.verify_hostname)?;
    let (acceptor, connector) = (TlsAcceptor::from(Arc::new(server)), TlsConnector::from(Arc::new(client)));
    Ok(Credentials { acceptor, connector, own, files })
}

/// Warns of a private key that other users can read: it lets them speak in this node's name. Source: persistence
/// scenario 74.
fn warn_if_exposed(key: &Path) {
    use std::os::unix::fs::MetadataExt;
    // Without metadata there is no warning; the key itself was read a moment ago.
    if std::fs::metadata(key).is_ok_and(|key| others_can_read(key.mode(), key.uid())) {
        tracing::warn!(file = %key.display(), "others can read this private key; `chmod 600` closes it to them");
    }
}

fn read_file(file: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(file).map_err(|error| failed(file, error))
}

fn certificates(file: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let all = all.map_err(|error| failed(file, error))?;
    if all.is_empty() { Err(failed(file, "it holds no certificate")) } else { Ok(all) }
}

fn roots(file: &Path, pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(file, pem)? {
        roots.add(authority).map_err(|error| failed(file, error))?;
    }
    Ok(roots)
}

/// A private key and the certificates that go with it.
struct Identity<'a> {
    key: PrivateKeyDer<'static>,
    chain: Vec<CertificateDer<'static>>,
    cert: &'a Path,
}

impl<'a> Identity<'a> {
    fn parse(key: &Path, key_pem: &[u8], cert: &'a Path, cert_pem: &[u8]) -> Result<Self, TlsError> {
        let key = PrivateKeyDer::from_pem_slice(key_pem).map_err(|error| failed(key, error))?;
        Ok(Self { key, chain: certificates(cert, cert_pem)?, cert })
    }

    fn does_not_fit(&self, error: &rustls::Error) -> TlsError {
        failed(self.cert, format!("with its key: {error}"))
    }
}

fn server_config(
    settings: &TlsSettings,
    roots: Arc<RootCertStore>,
    identity: &Identity<'_>,
) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
    let server = server.map_err(|error| identity.does_not_fit(&error))?;
    let server = if settings.mutual {
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
        server.with_client_cert_verifier(verifier.map_err(|error| failed(&settings.ca, error))?)
    } else {
        server.with_no_client_auth()
    };
    let server = server.with_single_cert(identity.chain.clone(), identity.key.clone_key());
    let mut server = server.map_err(|error| identity.does_not_fit(&error))?;
    server.alpn_protocols = vec![ALPN.to_vec()];
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    Ok(server)
}

/// The settings of a caller. Without an identity the caller shows no certificate, and a listener that requires one
/// refuses it.
fn client_config(
    ca: &Path,
    roots: Arc<RootCertStore>,
    identity: Option<&Identity<'_>>,
    verify_hostname: bool,
) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build();
    let verifier = verifier.map_err(|error| failed(ca, error))?;
    let verifier = Arc::new(HostVerifier::of_authority(verifier, verify_hostname, provider.clone()));
    let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let client = client.map_err(|error| failed(ca, error))?;
    let client = client.dangerous().with_custom_certificate_verifier(verifier);
    let mut client = match identity {
        Some(identity) => client
            .with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())
            .map_err(|error| identity.does_not_fit(&error))?,
        None => client.with_no_client_auth(),
    };
    client.alpn_protocols = vec![ALPN.to_vec()];
    client.resumption = Resumption::disabled();
    Ok(client)
}

/// HTTP/2, by its ALPN name.
pub(crate) const ALPN: &[u8] = b"h2";

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Mutex;

    use super::*;

    /// Collects the log of a test.
    #[derive(Clone, Default)]
    struct Told(Arc<Mutex<Vec<u8>>>);

    impl Told {
        fn take(&self) -> String {
            String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
        }
    }

    impl io::Write for Told {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(text);
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Cluster 83: the log lines over the whole life of a certificate that is checked twice a day.
    #[test]
    fn scenario_83_a_line_thirty_seven_and_one_days_before_a_certificate_ends_and_one_after_it() {
        const HALF_A_DAY: i64 = 12 * 3600;
        let end = since_1970() + 40 * 2 * HALF_A_DAY;
        let authority = greylag_testkit::certificates::Authority::new();
        let files = authority.sign_until("soon", &["node.example"], Some(end.unsigned_abs()));
        let files = TlsFiles::of_caller(TlsSettings::new(files.key, files.cert, files.ca)).unwrap();
        let told = Told::default();
        let writer = told.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        let mut lines = Vec::new();
        tracing::subscriber::with_default(log, || {
            for left in (-4..=80).rev() {
                files.warn_of_its_end(end - left * HALF_A_DAY);
                let line = told.take();
                if !line.is_empty() {
                    assert!(line.contains("soon.cert.pem") && line.contains("node.example"), "{line}");
                    lines.push((left, line));
                }
            }
        });
        let wanted = [(60, "days_left=30"), (14, "days_left=7"), (2, "days_left=1"), (-1, "has expired")];
        assert_eq!(lines.len(), wanted.len(), "{lines:?}");
        for ((left, line), (wanted_left, words)) in lines.iter().zip(wanted) {
            let level = if wanted_left > 0 { "WARN" } else { "ERROR" };
            assert_eq!(*left, wanted_left, "half days before the end: {line}");
            assert!(line.contains(level) && line.contains(words) && line.lines().count() == 1, "{line}");
        }
    }
}
