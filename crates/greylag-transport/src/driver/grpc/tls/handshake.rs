//! TLS for other listeners of a node and for their callers: the same files, the same judgement, and a text for each
//! reason why the two ends cannot speak.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::{AlertDescription, CertificateError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use super::{ALPN, Identity, NotBelieved, TlsFiles, client_config, read_file, roots, server_name};
use crate::error::TlsError;

/// Why the two ends of a connection cannot speak by TLS. No application data was exchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The other end speaks something else, most likely plain text.
    #[error("the other end does not speak TLS")]
    NotTls,
    /// The other end speaks TLS, but not HTTP/2 in it.
    #[error("the other end does not speak HTTP/2 over TLS")]
    NotHttp2,
    /// The other end's certificate bears no signature of an authority that is believed.
    #[error("no authority that is believed here has signed the other end's certificate")]
    ForeignAuthority,
    /// The certificate is valid, but for another host.
    #[error("the other end's certificate is not for the host that was dialled: {0}")]
    WrongHost(String),
    /// The other end's certificate is not believed for another reason: it is out of date, say.
    #[error("the other end's certificate is not believed: {0}")]
    NotBelieved(String),
    /// The caller has shown no certificate, and one is required.
    #[error("a certificate is asked for, and none was shown")]
    NoCertificate,
    /// The other end does not believe our certificate. Its log says why.
    #[error("the other end does not believe this end's certificate: {0}")]
    Refused(String),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[source] io::Error),
}

/// Classifies an error of reading or writing a TLS stream. In TLS 1.3 a caller's certificate is judged after the
/// handshake has ended for the caller, so the verdict is an error of the caller's first read.
impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        use rustls::Error as Tls;
        let Some(cause) = error.get_ref().and_then(|cause| cause.downcast_ref::<Tls>()) else {
            return Self::Broken(error);
        };
        match cause {
            Tls::InvalidMessage(_) => Self::NotTls,
            Tls::NoApplicationProtocol | Tls::AlertReceived(AlertDescription::NoApplicationProtocol) => Self::NotHttp2,
            Tls::NoCertificatesPresented | Tls::AlertReceived(AlertDescription::CertificateRequired) => {
                Self::NoCertificate
            }
            Tls::AlertReceived(alert) => Self::Refused(format!("{alert:?}")),
            Tls::InvalidCertificate(CertificateError::UnknownIssuer) => Self::ForeignAuthority,
            Tls::InvalidCertificate(CertificateError::NotValidForName) => Self::WrongHost(cause.to_string()),
            Tls::InvalidCertificate(why @ CertificateError::NotValidForNameContext { .. }) => {
                Self::WrongHost(why.to_string())
            }
            Tls::InvalidCertificate(why) => Self::NotBelieved(why.to_string()),
            other => Self::NotBelieved(other.to_string()),
        }
    }
}

impl From<NotBelieved> for HandshakeError {
    fn from(NotBelieved(why): NotBelieved) -> Self {
        Self::NotBelieved(why)
    }
}

impl TlsFiles {
    /// Performs the handshake with a caller, showing the certificate read last; where authentication is mutual, the
    /// caller's certificate must be accepted too.
    ///
    /// # Errors
    /// [`HandshakeError`]; the connection is closed. The call waits for the caller, so give it a time limit.
    pub async fn accept<S>(
        &self,
        socket: S,
    ) -> Result<impl AsyncRead + AsyncWrite + Unpin + Send + use<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let tls = self.current().acceptor.accept(socket).await?;
        let session = tls.get_ref().1;
        if session.alpn_protocol() != Some(ALPN) {
            return Err(HandshakeError::NotHttp2);
        }
        self.judge(session.peer_certificates())?;
        Ok(tls)
    }

    /// Performs the handshake with a listener, showing the certificate read last; the listener's certificate must be
    /// accepted and, where hosts are verified, be for `host`. Only once the listener has sent something is it certain
    /// that the listener accepts this end's certificate, as with [`TlsDialer::connect`].
    ///
    /// # Errors
    /// [`HandshakeError`]; the connection is closed. The call waits for the listener, so give it a time limit.
    pub async fn connect<S>(
        &self,
        host: &str,
        socket: S,
    ) -> Result<impl AsyncRead + AsyncWrite + Unpin + Send + use<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let name = self.server_name(host)?;
        let tls = self.current().connector.connect(name, socket).await?;
        let session = tls.get_ref().1;
        if session.alpn_protocol() != Some(ALPN) {
            return Err(HandshakeError::NotHttp2);
        }
        self.judge(session.peer_certificates())?;
        Ok(tls)
    }
}

impl fmt::Debug for TlsFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsFiles").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Calls listeners that speak HTTP/2 over TLS, for a program that is no node: the program has no address that a
/// certificate could vouch for, and may have no certificate.
#[derive(Clone)]
pub struct TlsDialer {
    connector: TlsConnector,
}

impl TlsDialer {
    /// Trusts the authorities in `ca`, and no others. `identity` is the private key and the certificate to show where
    /// one is required. All files are PEM, and read once.
    ///
    /// # Errors
    /// [`TlsError`] names the file.
    pub fn open(ca: &Path, identity: Option<(&Path, &Path)>) -> Result<Self, TlsError> {
        let roots = Arc::new(roots(ca, &read_file(ca)?)?);
        let identity = match identity {
            Some((key, cert)) => Some(Identity::parse(key, &read_file(key)?, cert, &read_file(cert)?)?),
            None => None,
        };
        let client = client_config(ca, roots, identity.as_ref(), true)?;
        Ok(Self { connector: TlsConnector::from(Arc::new(client)) })
    }

    /// Performs the handshake with a listener, whose certificate must be for `host`. Only once the listener has sent
    /// something is it certain that the listener accepts this end's certificate: read before you write, and treat an
    /// error of that read as a [`HandshakeError`] too.
    ///
    /// # Errors
    /// [`HandshakeError`]; the connection is closed. The call waits for the listener, so give it a time limit.
    pub async fn connect<S>(
        &self,
        host: &str,
        socket: S,
    ) -> Result<impl AsyncRead + AsyncWrite + Unpin + Send + use<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let nameless = || HandshakeError::WrongHost(format!("{host:?} is no valid name for a certificate"));
        let tls = self.connector.connect(server_name(host).ok_or_else(nameless)?, socket).await?;
        if tls.get_ref().1.alpn_protocol() != Some(ALPN) {
            return Err(HandshakeError::NotHttp2);
        }
        Ok(tls)
    }
}

impl fmt::Debug for TlsDialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsDialer").finish_non_exhaustive()
    }
}
