//! Certificates for a test, in files that are deleted after it.
//!
//! ```
//! use greylag_testkit::certificates::Authority;
//!
//! let authority = Authority::new();
//! let node = authority.sign("node", &["node.example", "127.0.0.1"]);
//! assert!(std::fs::read_to_string(&node.cert).unwrap().contains("BEGIN CERTIFICATE"));
//! ```

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

/// An authority, with a directory for the certificates that it signs.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    directory: TempDir,
}

/// Paths of a certificate and its files; all PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// The private key.
    pub key: PathBuf,
    /// The certificate of the private key.
    pub cert: PathBuf,
    /// The certificate of the authority that signed it.
    pub ca: PathBuf,
}

#[expect(clippy::new_without_default, reason = "no authority is like another")]
impl Authority {
    /// Makes a new authority, which no node trusts yet.
    ///
    /// # Panics
    /// If the system gives no temporary directory.
    #[must_use]
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no name is a fine name");
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("authority {}", MADE.fetch_add(1, Ordering::Relaxed));
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("keys can be made");
        let pem = params.self_signed(&key).expect("it signs itself").pem();
        let directory = tempfile::tempdir().expect("a directory for the test's files");
        Self { issuer: Issuer::new(params, key), pem, directory }
    }

    /// Writes a key, its certificate and the authority's own into files whose names start with `name`; replaces files
    /// that exist, the key first.
    ///
    /// # Panics
    /// If a host name is invalid, or the files cannot be written.
    pub fn sign(&self, name: &str, hosts: &[&str]) -> Files {
        self.sign_until(name, hosts, None)
    }

    /// The same with a certificate that expires after `not_after`, in seconds since 1970; `None`: in the far future.
    ///
    /// # Panics
    /// As [`Authority::sign`].
    pub fn sign_until(&self, name: &str, hosts: &[&str], not_after: Option<u64>) -> Files {
        let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(hosts).expect("host names and addresses");
        if let Some(seconds) = not_after {
            params.not_after = rcgen::date_time_ymd(1970, 1, 1) + std::time::Duration::from_secs(seconds);
        }
        let key = KeyPair::generate().expect("keys can be made");
        let cert = params.signed_by(&key, &self.issuer).expect("it signs");
        let file = |kind| self.file(name, kind);
        let files = Files { key: file("key"), cert: file("cert"), ca: file("ca") };
        for (path, pem) in [(&files.key, &key.serialize_pem()), (&files.cert, &cert.pem()), (&files.ca, &self.pem)] {
            std::fs::write(path, pem).expect("the test's directory can be written");
        }
        files
    }

    /// The path of a file of this name and kind.
    #[must_use]
    pub fn file(&self, name: &str, kind: &str) -> PathBuf {
        self.directory.path().join(format!("{name}.{kind}.pem"))
    }
}

impl Files {
    /// Copies these files over those of `others`, the key first.
    ///
    /// # Panics
    /// If a file cannot be copied.
    pub fn replace(&self, others: &Self) {
        let copy = |from: &Path, to: &Path| std::fs::copy(from, to).expect("the test's files can be written");
        copy(&self.key, &others.key);
        copy(&self.cert, &others.cert);
        copy(&self.ca, &others.ca);
    }
}
