//! Encryption: its settings, the judgement on servers, and the end of certificates.

#[cfg(feature = "grpc")]
pub(crate) mod expiry;
mod settings;
#[cfg(feature = "tls")]
pub(crate) mod verifier;

pub use settings::{PeerSubject, Tls, TlsSettings, others_can_read};
