//! Certificates made for a test, in files.

#![allow(dead_code, unreachable_pub, reason = "not every test file uses everything")]

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use greylag_transport::{Tls, TlsSettings, TransportSettings};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// An authority, with a directory for what it signs.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    directory: tempfile::TempDir,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("authority {}", MADE.fetch_add(1, Ordering::Relaxed));
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem, directory: tempfile::tempdir().unwrap() }
    }

    /// Puts key, certificate and this authority's own into files that start with `name`; what was
    /// there is replaced.
    pub fn sign(&self, name: &str, hosts: &[&str]) -> TlsSettings {
        let params = CertificateParams::new(hosts.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let file = |kind| self.file(name, kind);
        std::fs::write(file("key"), key.serialize_pem()).unwrap();
        std::fs::write(file("cert"), cert.pem()).unwrap();
        std::fs::write(file("ca"), &self.pem).unwrap();
        TlsSettings::new(file("key"), file("cert"), file("ca"))
    }

    pub fn file(&self, name: &str, kind: &str) -> PathBuf {
        self.directory.path().join(format!("{name}.{kind}.pem"))
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
