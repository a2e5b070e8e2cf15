//! Certificates made for a test, in files.

#![allow(dead_code, unreachable_pub, reason = "each of the programs that include this file uses a part")]

use std::path::PathBuf;

use greylag_testkit::certificates;
use greylag_transport::{Tls, TlsSettings, TransportSettings};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// An authority, with a directory for the files that it signs.
pub struct Authority(certificates::Authority);

impl Authority {
    pub fn new() -> Self {
        Self(certificates::Authority::new())
    }

    /// Writes key, certificate and this authority's own certificate to files that start with `name`, replacing former
    /// ones.
    pub fn sign(&self, name: &str, hosts: &[&str]) -> TlsSettings {
        let files = self.0.sign(name, hosts);
        TlsSettings::new(files.key, files.cert, files.ca)
    }

    /// Signs a certificate that ends this many days from now; ago, if the number is negative.
    pub fn sign_for_days(&self, name: &str, hosts: &[&str], days: i64) -> TlsSettings {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let end = now.checked_add_signed(days * 86_400 + 3600).unwrap();
        let files = self.0.sign_until(name, hosts, Some(end));
        TlsSettings::new(files.key, files.cert, files.ca)
    }

    pub fn file(&self, name: &str, kind: &str) -> PathBuf {
        self.0.file(name, kind)
    }
}

/// A node's settings with a certificate.
pub fn with(tls: TlsSettings) -> TransportSettings {
    TransportSettings { tls: Tls::Files(tls), ..TransportSettings::test() }
}

/// The certificate in a file, and its key.
pub fn load(tls: &TlsSettings) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    (CertificateDer::from_pem_file(&tls.cert).unwrap(), PrivateKeyDer::from_pem_file(&tls.key).unwrap())
}
