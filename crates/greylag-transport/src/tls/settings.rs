//! Settings of encryption, and of the certificates that peers have to show.
//!
//! Both ends of a connection present a certificate that one authority has signed, and both check the other's: the
//! dialling side looks in it for the host that it dialled, the called side for the host that the caller's Hello claims.
//! So an address is as trustworthy as the authority. Source: cluster T16, T40.

use std::path::PathBuf;
use std::time::Duration;

/// Whether users other than the owner may read a file of this mode: all users, or a group. A group may read a file that
/// belongs to root (`owner` 0), as in libpq: that is how a system gives a service its key.
///
/// Callers warn of a file with a key or a password that others can read. Source: persistence scenario 74.
pub fn others_can_read(mode: u32, owner: u32) -> bool {
    mode & 0o004 != 0 || (mode & 0o040 != 0 && owner != 0)
}

/// Encryption of all connections; a choice that has to be made before others can reach the node
/// (cluster T40).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Tls {
    /// No explicit choice: no encryption, and therefore loopback only. Binding any other address is
    /// refused at start.
    #[default]
    LoopbackOnly,
    /// No encryption on any address: the network is trusted. A public address logs a warning.
    None,
    /// TLS 1.2 or 1.3 with the certificate in these files.
    Files(TlsSettings),
}

/// Where the node's certificate is, and what peers have to show. All files are PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSettings {
    /// The private key (PKCS#8, PKCS#1 or SEC1).
    pub key: PathBuf,
    /// The certificate of that key first, then the intermediate ones. The certificate serves both directions, so its
    /// extended key usage, if it has any, must name both.
    pub cert: PathBuf,
    /// The trusted authorities; no others are trusted, the system's neither.
    pub ca: PathBuf,
    /// Whether callers, too, must present a certificate. Default true. If not, a caller's address is only its own
    /// claim.
    pub mutual: bool,
    /// Whether the host that was dialled, and the host that a caller claims to be, must be among the
    /// peer certificate's subject alternative names. Default true.
    pub verify_hostname: bool,
    /// A further condition on the peer's names. Default none.
    pub peer_subject: PeerSubject,
    /// Interval of reading the files again. Connections stay as they are; new ones show the certificate read last.
    /// Default 5 min.
    pub reload_interval: Duration,
}

/// The condition on the subject alternative names of both certificates of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PeerSubject {
    /// None: the authority's signature is enough.
    #[default]
    Any,
    /// Both have at least one name in common, so that an authority may serve several clusters.
    Shared,
    /// Both have this name.
    Named(String),
}

impl TlsSettings {
    /// Settings with these files and the defaults: mutual, hosts verified.
    pub fn new(key: impl Into<PathBuf>, cert: impl Into<PathBuf>, ca: impl Into<PathBuf>) -> Self {
        Self {
            key: key.into(),
            cert: cert.into(),
            ca: ca.into(),
            mutual: true,
            verify_hostname: true,
            peer_subject: PeerSubject::Any,
            reload_interval: Duration::from_secs(5 * 60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::others_can_read;

    #[test]
    fn scenario_74_a_readable_key_is_told_by_mode_and_owner() {
        let exposed =
            [(0o600, 1), (0o400, 1), (0o640, 0), (0o640, 1), (0o644, 0), (0o604, 1), (0o100_660, 1), (0o711, 1)];
        let exposed = exposed.map(|(mode, owner)| others_can_read(mode, owner));
        assert_eq!(exposed, [false, false, false, true, true, true, true, false]);
    }
}
