//! TLS of connections to the database, and which certificates are trusted: libpq's `sslmode`.
//!
//! The client library knows three of libpq's five modes and none of its words for files, so they are taken out of the
//! connection string here. The files are read for each connection, so certificates replaced on disk are used from the
//! next connection on.

mod words;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use greylag_transport::HostVerifier;
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::ConfigError;
use crate::exposed_file::warn_if_exposed;
use words::Words;

/// The TLS settings of a connection string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tls {
    mode: Mode,
    /// Paths of `sslkey` and `sslcert`.
    identity: Option<(PathBuf, PathBuf)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Mode {
    /// `disable`.
    Off,
    /// `prefer`: encrypted if the server supports it; any server is trusted.
    Prefer,
    /// `require`: encrypted; any server is trusted.
    AnyServer,
    /// `verify-ca`: encrypted; a certificate that these authorities have signed is trusted.
    Authority(PathBuf),
    /// `verify-full`: as `verify-ca`, and the certificate must be for the host.
    Host(PathBuf),
}

/// The names of all modes.
const MODES: [&str; 5] = ["disable", "prefer", "require", "verify-ca", "verify-full"];

impl Tls {
    /// Takes the words about TLS out of a connection string; the rest is for the client library.
    pub(crate) fn take(config: &str) -> Result<(String, Self), ConfigError> {
        let (rest, words) = words::take(config);
        let tls = Self::from_words(words).map_err(|why| ConfigError::Tls { why })?;
        // The named files are read once, so that a file that cannot be used shows at start.
        tls.connector()?;
        Ok((rest, tls))
    }

    fn from_words(words: Words) -> Result<Self, String> {
        let mode = words.mode.as_deref().unwrap_or("prefer");
        let needs_root = || format!("sslmode={mode} needs sslrootcert=…, the file of the authority");
        let wanted = match (mode, words.root.clone()) {
            ("disable", None) => Mode::Off,
            ("prefer", None) => Mode::Prefer,
            ("disable" | "prefer", Some(_)) => {
                return Err(format!("sslrootcert makes no sense with sslmode={mode}; verify-full makes use of it"));
            }
            ("require", None) => Mode::AnyServer,
            // libpq does so, too.
            ("require" | "verify-ca", Some(root)) => Mode::Authority(root),
            ("verify-full", Some(root)) => Mode::Host(root),
            ("verify-ca" | "verify-full", None) => return Err(needs_root()),
            _ => return Err(format!("sslmode={mode} is unknown; valid are {}", MODES.join(", "))),
        };
        let identity = match (words.key, words.cert) {
            (Some(key), Some(cert)) => Some((key, cert)),
            (None, None) => None,
            _ => return Err("sslcert and sslkey go together: a certificate and its key".to_owned()),
        };
        Ok(Self { mode: wanted, identity })
    }

    /// The client library's mode.
    pub(crate) fn mode(&self) -> SslMode {
        match self.mode {
            Mode::Off => SslMode::Disable,
            Mode::Prefer => SslMode::Prefer,
            Mode::AnyServer | Mode::Authority(_) | Mode::Host(_) => SslMode::Require,
        }
    }

    /// Checks the mode of a connection string in which one of several hosts is a socket: a mode that requires TLS is
    /// refused, and any other is warned of.
    pub(crate) fn check_beside_socket(&self) -> Result<(), ConfigError> {
        let mode = match self.mode {
            Mode::Off | Mode::Prefer => {
                tracing::warn!(
                    "the connection string names a socket among its hosts: all of them are reached without TLS; name \
                     hosts of one kind"
                );
                return Ok(());
            }
            Mode::AnyServer => "require",
            Mode::Authority(_) => "verify-ca",
            Mode::Host(_) => "verify-full",
        };
        let why = format!(
            "host names a socket, which has no TLS, beside hosts that sslmode={mode} is meant for, and one mode goes for \
             all of them; name hosts of one kind"
        );
        Err(ConfigError::Tls { why })
    }

    /// Whether a third party could read the traffic and answer in the server's place.
    pub(crate) fn believes_anybody(&self) -> bool {
        matches!(self.mode, Mode::Off | Mode::Prefer | Mode::AnyServer)
    }

    /// Reads the files and makes the connector; `None` without TLS.
    pub(crate) fn connector(&self) -> Result<Option<MakeRustlsConnect>, ConfigError> {
        let (root, checks_host) = match &self.mode {
            Mode::Off => return Ok(None),
            Mode::Prefer | Mode::AnyServer => (None, false),
            Mode::Authority(root) => (Some(root), false),
            Mode::Host(root) => (Some(root), true),
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = match root {
            Some(root) => HostVerifier::of_authority(chain_verifier(root, &provider)?, checks_host, provider.clone()),
            None => HostVerifier::accept_any(provider.clone()),
        };
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| ConfigError::Tls { why: error.to_string() })?;
        let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((key, cert)) => {
                warn_if_exposed(key);
                let key = PrivateKeyDer::from_pem_file(key).map_err(|error| failed(key, error))?;
                builder.with_client_auth_cert(certificates(cert)?, key).map_err(|error| failed(cert, error))?
            }
        };
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        Ok(Some(MakeRustlsConnect::new(config)))
    }
}

fn failed(file: &Path, why: impl ToString) -> ConfigError {
    ConfigError::TlsFile { file: file.to_owned(), why: why.to_string() }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let all = CertificateDer::pem_file_iter(file).map_err(|error| failed(file, error))?;
    let all = all.collect::<Result<Vec<_>, _>>().map_err(|error| failed(file, error))?;
    if all.is_empty() { Err(failed(file, "it holds no certificate")) } else { Ok(all) }
}

fn chain_verifier(root: &Path, provider: &Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>, ConfigError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(root)? {
        roots.add(authority).map_err(|error| failed(root, error))?;
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    verifier.map_err(|error| failed(root, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(config: &str) -> Result<Mode, String> {
        Tls::from_words(words::take(config).1).map(|tls| tls.mode)
    }

    #[test]
    fn modes_mean_what_libpq_means_by_them() {
        let root = || PathBuf::from("ca");
        for (config, mode) in [
            ("host=a", Mode::Prefer),
            ("host=a sslmode=disable", Mode::Off),
            ("host=a sslmode=require", Mode::AnyServer),
            ("host=a sslmode=require sslrootcert=ca", Mode::Authority(root())),
            ("host=a sslmode=verify-ca sslrootcert=ca", Mode::Authority(root())),
            ("postgres://a/b?sslmode=verify-full&sslrootcert=ca", Mode::Host(root())),
        ] {
            assert_eq!(said(config), Ok(mode), "{config}");
        }
        for (config, why) in [
            ("sslmode=verify-full", "sslrootcert"),
            ("sslmode=prefer sslrootcert=ca", "verify-full"),
            ("sslmode=verify_full", "disable, prefer, require, verify-ca, verify-full"),
            ("sslmode=require sslcert=c", "sslkey"),
        ] {
            assert!(said(config).unwrap_err().contains(why), "{config}");
        }
    }
}
