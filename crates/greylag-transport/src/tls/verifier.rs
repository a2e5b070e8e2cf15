//! Judges the server's certificate on the dialling side of a TLS connection; also for connections that are not the
//! transport's own, such as those to a database.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, SignatureScheme};

/// Judges the certificate of a server that was dialled: accepts any, or one signed by an authority, or one signed by an
/// authority for the host that was dialled. An accepted server has proven that it has its certificate's key.
#[derive(Debug)]
pub struct HostVerifier {
    chain: Option<Arc<WebPkiServerVerifier>>,
    checks_host: bool,
    provider: Arc<CryptoProvider>,
}

impl HostVerifier {
    /// Accepts every server: the connection is encrypted, but it is not known to which server.
    pub fn accept_any(provider: Arc<CryptoProvider>) -> Self {
        Self { chain: None, checks_host: false, provider }
    }

    /// Accepts the servers that `chain` accepts. Unless `checks_host` is set, the certificate may be another host's.
    pub fn of_authority(chain: Arc<WebPkiServerVerifier>, checks_host: bool, provider: Arc<CryptoProvider>) -> Self {
        Self { chain: Some(chain), checks_host, provider }
    }
}

impl ServerCertVerifier for HostVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use CertificateError::{NotValidForName, NotValidForNameContext};
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        // The name is checked last, after the chain and the dates, so a wrong name means that all else is right.
        match chain.verify_server_cert(leaf, intermediates, host, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }))
                if !self.checks_host =>
            {
                Ok(ServerCertVerified::assertion())
            }
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
