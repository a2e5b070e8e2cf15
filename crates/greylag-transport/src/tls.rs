//! Whether connections are encrypted, and what a peer has to show.
//!
//! Both ends of a connection present a certificate that one authority has signed, and both look at
//! it: the dialling side finds the host it dialled in it, the called side the host that the caller's
//! Hello claims. So an address is as trustworthy as the authority. Source: cluster T16, T40.

#[cfg(feature = "tls")]
pub(crate) mod verifier;

use std::path::PathBuf;
use std::time::Duration;

/// Whether users other than the owner may read a file of this mode: all of them, or a group. A group may read what
/// belongs to root (`owner` 0), as libpq has it: that is how a system gives a service its key.
///
/// A file with a key or a password that others can read is worth a warning that names it. Source: persistence scenario 74.
pub fn others_can_read(mode: u32, owner: u32) -> bool {
    mode & 0o004 != 0 || (mode & 0o040 != 0 && owner != 0)
}

/// Encryption of all connections; a choice that has to be made before others can reach the node
/// (cluster T40).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Tls {
    /// Nothing was chosen: no encryption, and therefore loopback only. Binding any other address is
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
    /// The certificate of that key first, then the intermediate ones. It serves both directions, so
    /// its extended key usage, if it has any, must name both.
    pub cert: PathBuf,
    /// The authorities whose signatures are believed; no others are, the system's neither.
    pub ca: PathBuf,
    /// Whether callers, too, must present a certificate. Default true. Without it a caller's address
    /// is its own claim.
    pub mutual: bool,
    /// Whether the host that was dialled, and the host that a caller claims to be, must be among the
    /// peer certificate's subject alternative names. Default true.
    pub verify_hostname: bool,
    /// What else the peer's names must have in common with ours. Default nothing.
    pub peer_subject: PeerSubject,
    /// From one look at the files to the next. Connections stay as they are; new ones show what the
    /// files hold by then. Default 5 min.
    pub reload_interval: Duration,
}

/// What the subject alternative names of both certificates of a connection must have in common.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PeerSubject {
    /// Nothing: the authority's signature is enough.
    #[default]
    Any,
    /// At least one name, so that an authority may serve several clusters.
    Shared,
    /// This name.
    Named(String),
}

impl TlsSettings {
    /// These files and the defaults: mutual, hosts verified.
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
    fn scenario_74_what_others_can_read_is_told_by_mode_and_owner() {
        let exposed =
            [(0o600, 1), (0o400, 1), (0o640, 0), (0o640, 1), (0o644, 0), (0o604, 1), (0o100_660, 1), (0o711, 1)];
        let exposed = exposed.map(|(mode, owner)| others_can_read(mode, owner));
        assert_eq!(exposed, [false, false, false, true, true, true, true, false]);
    }
}
